/* backend/machine.h - measures the memory bandwidth and the thread latency of this machine, so
 * that a benchmark can compare its times with them in the same run. Not part of the step
 * interface. */
#ifndef ROSE_BACKEND_MACHINE_H
#define ROSE_BACKEND_MACHINE_H

#include <stdint.h>

#include "base/status.h"

typedef struct rose_machine {
    uint32_t n_threads;
    /* All threads read at once, each its own part of 256 MiB in huge pages. This is the fastest
     * of several plain loops: they read n_streams places of a part in turn and prefetch this far
     * ahead (0: not). */
    double read_bytes_per_s;
    uint32_t n_streams, prefetch_bytes;
    double barrier_ns, barrier_p99_ns; /* duration of one barrier of the compute threads, without
                                          work in between */
    double job_ns; /* time to give the threads an empty job and wait for its end */
} rose_machine;

/* Measures with the compute threads that the CPU backend would use (rose_backend_opts: n_threads
 * 1 .., cpus, n_cpus). Takes about half a second and 256 MiB. Errors: INVAL, NOMEM, IO. */
rose_status rose_machine_measure(rose_machine *out, uint32_t n_threads, const int *cpus,
                                 uint32_t n_cpus, rose_err *err);

#endif
