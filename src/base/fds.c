/* base/fds.c - see fds.h. rose_fds_widen opens and closes a descriptor with a high number, which
 * makes the kernel widen the table. */
#include "base/fds.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 65536 };

void rose_fds_open_standard(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    }
    if (fd >= 0) close(fd);
}

int rose_fds_flush_stdout(int rc)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    fputs("roseinfer: cannot write all of standard output\n", stderr);
    return rc == 0 ? 1 : rc;
}

uint64_t rose_fds_raise(uint32_t n)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0) return UINT64_MAX;
    const struct rlimit raised = {.rlim_cur = l.rlim_max < n ? l.rlim_max : n,
                                  .rlim_max = l.rlim_max};
    if (l.rlim_cur < raised.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0) l = raised;
    return l.rlim_cur == RLIM_INFINITY ? UINT64_MAX : l.rlim_cur;
}

void rose_fds_widen(uint32_t n)
{
    struct rlimit l;
    if (n > MOST) n = MOST;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < n) n = (uint32_t)l.rlim_cur;
    if (n == 0) return;
    const int any = eventfd(0, EFD_CLOEXEC);
    if (any < 0) return;
    const int last = fcntl(any, F_DUPFD_CLOEXEC, (int)(n - 1));
    if (last >= 0) close(last);
    close(any);
}
