/* tests/load/replay.h - a trace played through the scheduler without a model, on a clock of its
 * own: a step takes step_us + row_us * rows. It compares policies, not machines. Main thread. */
#ifndef ROSE_LOAD_REPLAY_H
#define ROSE_LOAD_REPLAY_H

#include "bench/load_trace.h"
#include "sched/sched.h"

typedef struct rose_replay_opts {
    double step_us, row_us;
    double scale; /* of the trace's times; smaller is heavier */
    uint32_t kv_pages;
    double ttft_ms, itl_ms; /* goals that results are held against; 0 = none */
    bool steer;             /* the scheduler knows them too */
} rose_replay_opts;

typedef struct rose_replay_spread {
    double p50, p90, p99, max; /* milliseconds */
} rose_replay_spread;

typedef struct rose_replay_result {
    uint32_t n_done, n_refused; /* queue full, or too long ever to run */
    uint32_t n_late;            /* refused because of the first goal; n_done, n_refused do not count
                                   them */
    uint32_t n_met;             /* of n_done: first token and every gap within the goals */
    uint32_t n_met_ttft, n_met_itl;
    uint64_t n_steps;
    double duration_s, tokens_per_s; /* of the simulated clock; output tokens */
    rose_replay_spread ttft, itl, e2e;
    rose_sched_stats stats;
} rose_replay_result;

/* so->ids and ids_user are set here. Errors: as rose_sched_create, NOMEM. */
rose_status rose_replay_run(const rose_load_trace *t, const rose_replay_opts *o,
                            const rose_sched_opts *so, rose_replay_result *out, rose_err *err);

#endif
