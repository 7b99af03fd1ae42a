/* engine/load_internal.h - what submitters may know of the engine's load without a lock: numbers
 * that the engine thread leaves after each step, and what waits, which submitters count themselves.
 * Each is exact for some moment, not all for the same one: they feed estimates.
 * Threads: publish on the engine thread, all else on any. Relaxed everywhere: nothing is published
 * through them. */
#ifndef ROSE_ENGINE_LOAD_INTERNAL_H
#define ROSE_ENGINE_LOAD_INTERNAL_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "sched/sched.h"

typedef struct rose_load {
    uint64_t ttft_slo_ns;             /* constant; 0 = none */
    _Atomic uint64_t rows;            /* prompts that wait, as far as they will be computed */
    _Atomic uint32_t n_ranked;        /* requests that wait with a priority other than 0 */
    _Atomic uint64_t known_n_running; /* known in bit 32, n_running */
    _Atomic uint32_t n_free;
    _Atomic uint64_t busy_ns, base_ns, prompt_ps, row_ps, place_ns, miss_ppm;
} rose_load;

void rose_load_publish(rose_load *l, const rose_sched_load *now);

/* A request enters the queue, or leaves it (sign -1) in whatever way. */
void rose_load_count(rose_load *l, uint32_t n_rows, int32_t priority, int sign);

/* Rows that the prompt is expected to take, before what may be cached. */
uint32_t rose_load_rows(const rose_request_opts *o, bool prefix_cache);

/* Would a request of n_rows have its first token later than due_ns, behind the n_waiting that wait?
 * False where it cannot be told here: priorities differ. */
bool rose_load_is_late(const rose_load *l, uint32_t n_waiting, uint32_t n_rows, int32_t priority,
                       uint64_t now_ns, uint64_t due_ns);

/* Until the n_waiting have begun, in whole seconds, 1 .. ROSE_MAX_RETRY_S. */
uint32_t rose_load_drain_s(const rose_load *l, uint32_t n_waiting);

#endif
