/* bench/selftest.h - how wrong is the client's own clock? An instant server in this process streams
 * events at a given rate and notes when it writes each; the client measures as it always does. */
#ifndef ROSE_BENCH_SELFTEST_H
#define ROSE_BENCH_SELFTEST_H

#include "bench/stats.h"

typedef struct rose_self_test {
    uint32_t n_streams, n_events; /* events of each stream */
    double rate;                  /* reached, events per second over all */
    rose_summary error;           /* client's stamp - server's stamp before write(), in seconds */
    rose_summary lateness;        /* of the sends */
    uint32_t n_failed;            /* streams that were not received whole */
} rose_self_test;

/* n_streams at once, one event each per tick, `rate` events per second in all. Errors: IO, NOMEM.
 */
rose_status rose_self_test_run(uint32_t n_streams, uint32_t n_events, uint32_t rate,
                               rose_self_test *out, rose_err *err);

/* `bench online --self-test`: JSON on stdout; exit code 0 if nothing was lost and the p99 of the
 * error is at most 50 us. */
int rose_client_self_test(uint32_t rate);

#endif
