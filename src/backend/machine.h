/* backend/machine.h - what memory and threads of this machine give, measured, so that a benchmark
 * can set its times beside their floor in the same run. Not part of the step interface. */
#ifndef ROSE_BACKEND_MACHINE_H
#define ROSE_BACKEND_MACHINE_H

#include <stdint.h>

#include "base/status.h"

typedef struct rose_machine {
    uint32_t n_threads;
    /* Read by all threads at once, each its own part of 256 MiB in huge pages: the fastest of
     * plain loops, n_streams places of a part in turn, prefetched so far ahead (0: not). */
    double read_bytes_per_s;
    uint32_t n_streams, prefetch_bytes;
    double barrier_ns, barrier_p99_ns; /* one barrier of the compute threads, nothing between */
    double job_ns;                     /* handing them an empty job and having it back */
} rose_machine;

/* With compute threads as the CPU backend has them (rose_backend_opts: n_threads 1 .., cpus,
 * n_cpus). About half a second and 256 MiB. Errors: INVAL, NOMEM, IO. */
rose_status rose_machine_measure(rose_machine *out, uint32_t n_threads, const int *cpus,
                                 uint32_t n_cpus, rose_err *err);

#endif
