/* tests/load/selftest.h - how wrong is the client's own clock? An instant server in this process
 * streams events at a given rate and notes when it writes each; the client measures as it always
 * does. */
#ifndef ROSE_LOAD_SELFTEST_H
#define ROSE_LOAD_SELFTEST_H

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

#endif
