/* bench/stamp.h - a recv() that also tells when the bytes arrived. Any thread. */
#ifndef ROSE_BENCH_STAMP_H
#define ROSE_BENCH_STAMP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Asks the kernel for time stamps on this socket. If it has none, rose_recv_stamped returns the
 * present time. */
void rose_stamp_enable(int fd);

/* As recv(fd, buf, n, 0), repeated after EINTR. *t_ns is a rose_now_ns value: when the kernel
 * received the last of these bytes. It is the present time after an end, an error, or without a
 * stamp. */
ssize_t rose_recv_stamped(int fd, void *buf, size_t n, uint64_t *t_ns);

#endif
