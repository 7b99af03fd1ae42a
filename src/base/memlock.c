/* base/memlock.c - see memlock.h. The kernel counts a locked range in full against
 * RLIMIT_MEMLOCK, even if some of its pages do not exist yet. */
#include "base/memlock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/procstat.h"

static rose_status refused(uint64_t bytes, const char *what, int error, rose_err *err)
{
    struct rlimit limit = {0};
    char allowed[48] = "no limit";
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(allowed, sizeof allowed, "a limit of %.1f MiB",
                 (double)limit.rlim_cur / 1048576.0);
    return rose_fail(
        err, ROSE_E_NOMEM,
        "%s: cannot lock %.1f MiB of memory (%s); RLIMIT_MEMLOCK is %s: raise it with "
        "'ulimit -l unlimited', LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 "
        "(docker), or lock less (--kv-cache-memory)",
        what, (double)bytes / 1048576.0, strerror(error), allowed);
}

/* 0 or the error's number. */
static int lock_range(void *base, uint64_t bytes)
{
    if (mlock2(base, bytes, MLOCK_ONFAULT) == 0) return 0;
    if (errno == ENOSYS || errno == EINVAL) return mlock(base, bytes) == 0 ? 0 : errno; /* < 4.4 */
    return errno;
}

rose_status rose_memory_lock(void *base, uint64_t bytes, const char *what, rose_err *err)
{
    if (bytes == 0) return ROSE_OK;
    int error = lock_range(base, bytes);
    return error == 0 ? ROSE_OK : refused(bytes, what, error, err);
}

rose_status rose_memory_lock_probe(uint64_t bytes, const char *what, rose_err *err)
{
    if (bytes == 0) return ROSE_OK;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return refused(bytes, what, errno, err);
    /* not mlock: that would take the memory */
    int error = mlock2(p, bytes, MLOCK_ONFAULT) == 0 ? 0 : errno;
    munmap(p, bytes);
    if (error == ENOSYS || error == EINVAL)
        return ROSE_OK; /* an old kernel: the lock itself tells */
    return error == 0 ? ROSE_OK : refused(bytes, what, error, err);
}

void rose_memory_touch(void *base, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    volatile uint8_t *p = base;
    for (uint64_t i = 0; i < bytes; i += page)
        p[i] = p[i];
    if (bytes > 0) p[bytes - 1] = p[bytes - 1]; /* base need not be the start of a page */
}

uint64_t rose_memory_locked(void)
{
    char text[8192];
    uint64_t kib = 0;
    if (rose_proc_read("/proc/self/status", text, sizeof text))
        rose_proc_number(text, "VmLck:", &kib);
    return kib * 1024;
}
