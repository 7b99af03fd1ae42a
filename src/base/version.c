/* base/version.c - the commit and its date; only this object is rebuilt when the commit changes. */
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
