/* base/version.c - the one object that is rebuilt when the commit changes. */
#include "base/version.h"

#ifndef ROSE_COMMIT
#define ROSE_COMMIT "unknown"
#endif

const char *rose_version(void)
{
    return ROSE_VERSION;
}

const char *rose_commit(void)
{
    return ROSE_COMMIT;
}
