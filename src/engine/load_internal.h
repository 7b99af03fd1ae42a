/* engine/load_internal.h - what submitters can know of the engine's load without a lock. The
 * engine thread publishes some numbers after each step; submitters count the waiting requests
 * themselves. Each number is exact for some moment, but not all for the same one: they feed
 * estimates. Threads: publish on the engine thread, all else on any. Relaxed everywhere, because
 * no other data depends on them. */
#ifndef ROSE_ENGINE_LOAD_INTERNAL_H
#define ROSE_ENGINE_LOAD_INTERNAL_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "sched/sched.h"

typedef struct rose_load {
    uint64_t ttft_slo_ns;      /* constant; 0 = none */
    _Atomic uint64_t rows;     /* prompt rows of waiting requests, as expected to be computed */
    _Atomic uint32_t n_ranked; /* waiting requests with a priority other than 0 */
    _Atomic uint64_t known_n_running; /* known in bit 32, n_running */
    _Atomic uint32_t n_free;
    _Atomic uint64_t busy_ns, base_ns, prompt_ps, row_ps, place_ns, miss_ppm;
} rose_load;

void rose_load_publish(rose_load *l, const rose_sched_load *now);

/* Counts a request that enters the queue (sign 1) or leaves it in any way (sign -1). */
void rose_load_count(rose_load *l, uint32_t n_rows, int32_t priority, int sign);

/* Rows that the prompt is expected to take, before cached rows are subtracted. */
uint32_t rose_load_rows(const rose_request_opts *o, bool prefix_cache);

/* Tells whether a request of n_rows would have its first token later than due_ns if the request
 * waits after the n_waiting others. False if priorities differ, because the order is then
 * unknown here. */
bool rose_load_is_late(const rose_load *l, uint32_t n_waiting, uint32_t n_rows, int32_t priority,
                       uint64_t now_ns, uint64_t due_ns);

/* Estimates the time until the n_waiting requests have begun, in whole seconds, 1 ..
 * ROSE_MAX_RETRY_S. */
uint32_t rose_load_drain_s(const rose_load *l, uint32_t n_waiting);

#endif
