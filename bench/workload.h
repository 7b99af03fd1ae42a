/* bench/workload.h - runs a workload against a server: builds the requests, sends them, measures
 * and sums up. `bench online`, `stream`, `ablate` and `start` share it. Main thread. */
#ifndef ROSE_BENCH_WORKLOAD_H
#define ROSE_BENCH_WORKLOAD_H

#include "base/opts.h"
#include "bench/load.h"
#include "bench/prompts.h"
#include "bench/stats.h"
#include "bench/watch.h"

/* Time from the start of the loop to the first request of an open loop. */
#define ROSE_START_OFFSET_S 0.02

/* Options of the requests, which several benchmarks share. */
typedef struct rose_request_flags {
    float temperature, top_p, timeout_s, stall_s;
    uint32_t top_k;
    bool ignore_eos, send_seed, running_usage;
    const char *endpoint;    /* "completions" or "chat" */
    const char *prompt_form; /* "text" or "ids" */
    const char *api_key, *model_name, *extra_body;
    uint64_t seed;
} rose_request_flags;

enum { ROSE_REQUEST_ROWS = 16 };
void rose_request_flags_init(rose_request_flags *f);
size_t rose_request_flags_rows(rose_request_flags *f, rose_opt *rows);
rose_status rose_request_flags_check(const rose_request_flags *f, rose_err *err);

typedef struct rose_workload {
    const rose_prompts *prompts; /* borrowed; NULL with vocab */
    uint32_t vocab; /* not 0: prompts of random ids below it, and top_k is sent even if it is 0 */
    const rose_load_trace *trace;    /* borrowed */
    const rose_request_flags *flags; /* borrowed */
    rose_prompt_mode mode;
    const char *label;                 /* name on the progress bar */
    const volatile sig_atomic_t *stop; /* true ends the run; may be NULL */
} rose_workload;

/* One run: which rows of the trace are sent, and how. */
typedef struct rose_run_spec {
    double scale; /* open loop: factor on the times of the trace; 0 = all requests at once */
    uint32_t concurrency; /* requests that a closed loop keeps open; 0 = an open loop */
    uint32_t n;           /* how many rows of the trace; 0 = all */
    uint64_t variant;     /* number of the prompt variant: each variant has other text, so no prefix
                           * cache helps */
    bool search;          /* true: this is a run of a goodput search, and the results say so */
} rose_run_spec;

typedef struct rose_run {
    rose_run_spec spec;
    const rose_load_trace *trace; /* borrowed */
    rose_reply *replies;          /* owned */
    uint32_t n;
    uint64_t start_ns; /* when the first request was sent */
} rose_run;

/* The figures of a run. Times are in seconds; TTFT and E2E begin when the request is sent. */
typedef struct rose_run_stats {
    /* short: replies with fewer tokens than asked for */
    uint32_t n_success, n_error, n_usage_lies, n_short;
    uint32_t n_prompt_mismatch; /* replies whose server counted other prompt tokens than we sent */
    uint64_t events, tokens, prompt_tokens;
    /* offered: the rate that the schedule asks for; 0 in a closed loop */
    double duration_s, offered_rps;
    bool tokens_counted; /* true: every event said how many tokens it holds */
    rose_summary ttft, tpot, itl, e2e, lateness;
    /* times by the server's own clock, if the server reports them */
    rose_summary queue_wait, prefill_to_first, tokenize;
    double itl_cdf[101];     /* percentiles 0 .. 100 of ITL */
    const char *first_error; /* borrowed from the run; NULL if no request failed */
    uint32_t first_error_at; /* number of the request that failed first */
    uint32_t n_uncounted;    /* replies whose number of tokens is unknown, so events are counted */
    /* numbers of the first requests counted in n_usage_lies, n_short and n_uncounted, if there
     * are any */
    uint32_t first_lie_at, first_short_at, first_uncounted_at;
    /* what the server counted during the run; the caller reads it, rose_run_stats_make leaves it
     * unknown */
    rose_watch_guesses guesses;
} rose_run_stats;

/* Runs a workload. A request that fails is noted in its reply; an error means that the run itself
 * was impossible. */
rose_status rose_workload_run(const rose_workload *w, const rose_url *url, const char *model,
                              const rose_run_spec *spec, rose_run *out, rose_err *err);
void rose_run_free(rose_run *r); /* accepts {0}; leaves {0} */

rose_status rose_run_stats_make(const rose_run *r, rose_run_stats *out); /* NOMEM */

/* The TPOT of one reply in seconds; NaN for fewer than two tokens. */
double rose_reply_tpot(const rose_reply *r);

/* Adds the gaps between neighbouring tokens of a reply, in seconds. Tokens of one event have a gap
 * of 0. Errors: NOMEM. */
rose_status rose_reply_gaps(rose_samples *s, const rose_reply *r);

#endif
