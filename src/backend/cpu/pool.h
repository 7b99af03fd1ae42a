/* backend/cpu/pool.h - the compute threads of the CPU backend: a fixed set, pinned once, that runs
 * one function on all threads at a time. Work is split statically (thread index and count), so
 * results never depend on timing.
 *
 * Thread 0 is the caller of create, run and destroy (the engine thread); the pool owns threads 1
 * .. n-1. Between jobs they spin for ROSE_POOL_SPIN_US and then sleep in the kernel, so that an
 * idle process uses no CPU. Nothing here allocates after create. */
#ifndef ROSE_BACKEND_CPU_POOL_H
#define ROSE_BACKEND_CPU_POOL_H

#include <stdint.h>

#include "base/status.h"

enum {
    ROSE_POOL_MAX_THREADS = 1024,
    /* How long an idle thread spins. This covers the host's work between two decode steps and is
     * too short to show as CPU load. If there are more threads than CPUs, threads do not spin. */
    ROSE_POOL_SPIN_US = 50
};

typedef struct rose_pool rose_pool;

/* tid in 0 .. n_threads-1. */
typedef void (*rose_pool_fn)(void *arg, uint32_t tid, uint32_t n_threads);

/* Starts n_threads - 1 threads (1 .. ROSE_POOL_MAX_THREADS, the caller included). Thread i is
 * pinned to cpus[i % n_cpus]; n_cpus 0 pins nothing. The caller is also pinned, until destroy.
 * More threads than CPUs are allowed. Errors: INVAL, NOMEM, IO (no thread could be started). */
rose_status rose_pool_create(rose_pool **out, uint32_t n_threads, const int *cpus, uint32_t n_cpus,
                             rose_err *err);
void rose_pool_destroy(rose_pool *p); /* accepts NULL; joins the threads */

/* Calls fn on every thread and returns when all have returned. All of them run with FTZ and DAZ
 * set; the caller's own floating-point mode is restored. It takes about 1 us while the threads
 * still spin. */
void rose_pool_run(rose_pool *p, rose_pool_fn fn, void *arg);

/* Called within fn: waits until every thread has called it. Writes made before it are visible to
 * all threads after it. Every thread must call this barrier equally often. */
void rose_pool_barrier(rose_pool *p);

#endif
