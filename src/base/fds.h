/* base/fds.h - a program's standard file descriptors, and room in the kernel's table for many
 * others before they are needed.
 *
 * The kernel doubles a process's table of descriptors when it is full (64, 128, 256, ...). If
 * threads share the table, the call that needed the descriptor, perhaps accept(), then waits 5
 * to 30 ms for an RCU grace period. The table never shrinks. Any thread; widening costs nothing
 * before the first thread is started. */
#ifndef ROSE_BASE_FDS_H
#define ROSE_BASE_FDS_H

#include <stdint.h>

/* Call in the first line of main(): opens /dev/null for each of stdin, stdout and stderr that is
 * closed. Otherwise the next file or socket would get that number, and messages for people would
 * be written into it. */
void rose_fds_open_standard(void);

/* Call in the last line of main(): flushes stdout. Returns rc; if rc is 0 and stdout could not
 * be written in full, returns 1 with a message on stderr. */
int rose_fds_flush_stdout(int rc);

/* Raises the soft limit of descriptors (ulimit -n) to n, or as far as the hard limit allows.
 * Returns the new limit. Shells set a low soft limit for programs that use select(), which this
 * program does not. */
uint64_t rose_fds_raise(uint32_t n);

/* Makes room for descriptors 0 .. n - 1, or as many of them as the limit allows (at most
 * 65,536). A failure is ignored, because only speed suffers. */
void rose_fds_widen(uint32_t n);

#endif
