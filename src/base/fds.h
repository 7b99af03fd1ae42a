/* base/fds.h - room for file descriptors before they are needed. The kernel doubles a process's
 * table of them when it is full (64, 128, 256, ...), and where threads share the table the call
 * that asked for the descriptor, an accept() perhaps, then waits 5 to 30 ms for an RCU grace
 * period. It never shrinks. Any thread; free of charge before the first one is started. */
#ifndef ROSE_BASE_FDS_H
#define ROSE_BASE_FDS_H

#include <stdint.h>

/* Raises the soft limit of descriptors (ulimit -n) to n, or as far as the hard limit allows;
 * returns the limit that holds now. Shells set a low soft limit for the sake of programs that use
 * select(), which this one does not. */
uint64_t rose_fds_raise(uint32_t n);

/* Makes room for descriptors 0 .. n - 1, or as many of them as the limit allows (and at most
 * 65,536). Does nothing where that fails: it is only slower then. */
void rose_fds_widen(uint32_t n);

#endif
