/* bench/stop.h - the first Ctrl-C or SIGTERM ends the run under way and keeps what was measured;
 * the second one ends us. Main thread. */
#ifndef ROSE_BENCH_STOP_H
#define ROSE_BENCH_STOP_H

#include <signal.h>

/* Catches both from now on; what it returns becomes true with the first. */
const volatile sig_atomic_t *rose_stop_on_signals(void);

#endif
