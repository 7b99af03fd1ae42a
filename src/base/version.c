/* base/version.c - the one object that is rebuilt when the commit changes. */
#include "base/version.h"

#ifndef ROSE_COMMIT
#define ROSE_COMMIT "unknown"
#endif

#ifndef ROSE_DATE
#define ROSE_DATE ""
#endif

const char *rose_version(void)
{
    return ROSE_VERSION;
}

const char *rose_commit(void)
{
    return ROSE_COMMIT;
}

const char *rose_commit_date(void)
{
    return ROSE_DATE;
}
