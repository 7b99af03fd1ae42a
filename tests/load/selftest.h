/* tests/load/selftest.h - measures the timing error of the benchmarks' own client. An instant
 * server in this process streams events at a given rate and notes when it writes each event. The
 * client measures as it always does. */
#ifndef ROSE_LOAD_SELFTEST_H
#define ROSE_LOAD_SELFTEST_H

#include "bench/stats.h"

typedef struct rose_self_test {
    uint32_t n_streams, n_events; /* events of each stream */
    double rate;           /* the rate that was reached, events per second over all streams */
    rose_summary error;    /* client's stamp minus server's stamp before write(), in seconds */
    rose_summary lateness; /* how late the requests were sent */
    uint32_t n_failed;     /* streams that did not arrive complete */
} rose_self_test;

/* Opens n_streams at once; each gets one event at every tick, `rate` events per second in all.
 * Errors: IO, NOMEM. */
rose_status rose_self_test_run(uint32_t n_streams, uint32_t n_events, uint32_t rate,
                               rose_self_test *out, rose_err *err);

#endif
