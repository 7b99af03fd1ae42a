/* bench/stop.h - handles Ctrl-C and SIGTERM. The first signal ends the current run and keeps what
 * was measured; the second one ends this program at once. Main thread. */
#ifndef ROSE_BENCH_STOP_H
#define ROSE_BENCH_STOP_H

#include <signal.h>

/* Installs the handlers of SIGINT and SIGTERM. The value that the result points to becomes true
 * with the first signal. */
const volatile sig_atomic_t *rose_stop_on_signals(void);

#endif
