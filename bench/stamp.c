/* bench/stamp.c - see stamp.h. The kernel stamps with the wall clock, and we use the monotonic one.
 * So the age of the bytes is computed by the wall clock and subtracted from our clock. */
#include "bench/stamp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"

enum { MAX_AGE_NS = 1000000000, CLOCKS_APART_NS = 2000 };

void rose_stamp_enable(int fd)
{
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
}

/* Returns the present time if there is no stamp, or an impossible one because the wall clock was
 * set. */
static uint64_t arrival_ns(struct msghdr *m)
{
    struct timespec wall, stamp;
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    while (c != NULL && (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS))
        c = CMSG_NXTHDR(m, c);
    if (c == NULL || c->cmsg_len < CMSG_LEN(sizeof stamp)) return rose_now_ns();
    memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
    uint64_t before, now = rose_now_ns();
    int tries = 0;
    do { /* Reads both clocks; repeats that if the thread lost its CPU between the two. */
        before = now;
        clock_gettime(CLOCK_REALTIME, &wall);
        now = rose_now_ns();
    } while (now - before > CLOCKS_APART_NS && ++tries < 4);
    int64_t age = (wall.tv_sec - stamp.tv_sec) * 1000000000 + (wall.tv_nsec - stamp.tv_nsec);
    return age > 0 && age < MAX_AGE_NS ? now - (uint64_t)age : now;
}

ssize_t rose_recv_stamped(int fd, void *buf, size_t n, uint64_t *t_ns)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct timespec)) + 64];
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = n};
    struct msghdr m;
    ssize_t got;
    do {
        m = (struct msghdr){.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
        got = recvmsg(fd, &m, 0);
    } while (got < 0 && errno == EINTR);
    const int e = errno;
    *t_ns = got > 0 ? arrival_ns(&m) : rose_now_ns();
    errno = e;
    return got;
}
