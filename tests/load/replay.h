/* tests/load/replay.h - plays a trace through the scheduler without a model, on a simulated clock.
 * A step takes step_us + row_us * rows. It compares policies, not machines. Main thread. */
#ifndef ROSE_LOAD_REPLAY_H
#define ROSE_LOAD_REPLAY_H

#include "bench/load_trace.h"
#include "sched/sched.h"

typedef struct rose_replay_opts {
    double step_us, row_us;
    double scale; /* factor on the times of the trace; smaller is heavier */
    uint32_t kv_pages;
    double ttft_ms, itl_ms; /* goals by which results are judged; 0 = none */
    bool steer;             /* the scheduler knows the goals and steers by them */
} rose_replay_opts;

typedef struct rose_replay_spread {
    double p50, p90, p99, max; /* milliseconds */
} rose_replay_spread;

typedef struct rose_replay_result {
    uint32_t n_done, n_refused; /* the queue was full, or the request could never fit */
    /* refused because the first token would come too late; not in n_done or n_refused */
    uint32_t n_late;
    uint32_t n_met; /* requests of n_done whose first token and gaps all met the goals */
    uint32_t n_met_ttft, n_met_itl;
    uint64_t n_steps;
    double duration_s, tokens_per_s; /* by the simulated clock; output tokens per second */
    rose_replay_spread ttft, itl, e2e;
    rose_sched_stats stats;
} rose_replay_result;

/* Sets so->ids and so->ids_user itself. Errors: those of rose_sched_create, NOMEM. */
rose_status rose_replay_run(const rose_load_trace *t, const rose_replay_opts *o,
                            const rose_sched_opts *so, rose_replay_result *out, rose_err *err);

#endif
