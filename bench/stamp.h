/* bench/stamp.h - recv() with the time at which the bytes arrived. Any thread. */
#ifndef ROSE_BENCH_STAMP_H
#define ROSE_BENCH_STAMP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Ask the kernel for stamps on this socket; where it has none, rose_recv_stamped gives our clock.
 */
void rose_stamp_enable(int fd);

/* As recv(fd, buf, n, 0), without EINTR. *t_ns (rose_now_ns): when the kernel took the last of
 * these bytes in, or now: on an end, an error, or without a stamp. */
ssize_t rose_recv_stamped(int fd, void *buf, size_t n, uint64_t *t_ns);

#endif
