/* bench/machine.h - measures the memory bandwidth and the thread latency of this machine, so that a
 * benchmark can compare its times with them in the same run; and from this how fast a decode step
 * of one sequence could be at best. Used by `bench latency` and `bench kernels`. */
#ifndef ROSE_BENCH_MACHINE_H
#define ROSE_BENCH_MACHINE_H

#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
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

/* Measures the same threads again at another moment of the run and keeps the better figures. */
void rose_machine_better(rose_machine *m, const rose_machine *again);

/* The bytes of the weights divided by the speed of memory. */
double rose_floor_ms(const rose_machine *m, uint64_t bytes);

void rose_machine_print(FILE *f, const rose_machine *m); /* prints one line */
rose_json *rose_machine_json(const rose_machine *m);     /* NULL: out of memory */

#endif
