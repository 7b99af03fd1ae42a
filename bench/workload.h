/* bench/workload.h - a workload against a server: requests built, sent, measured, summed up. What
 * `bench online`, `stream`, `ablate` and `start` share. Main thread. */
#ifndef ROSE_BENCH_WORKLOAD_H
#define ROSE_BENCH_WORKLOAD_H

#include "base/opts.h"
#include "bench/load.h"
#include "bench/prompts.h"
#include "bench/stats.h"

/* Between the start of the loop and the first request of an open loop. */
#define ROSE_START_OFFSET_S 0.02

/* Options of the requests; shared rows. */
typedef struct rose_request_flags {
    float temperature, top_p, timeout_s, stall_s;
    uint32_t top_k;
    bool ignore_eos;
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
    const rose_prompts *prompts;     /* borrowed */
    const rose_load_trace *trace;    /* borrowed */
    const rose_request_flags *flags; /* borrowed */
    rose_prompt_mode mode;
    const char *label;                 /* on the progress bar */
    const volatile sig_atomic_t *stop; /* may be NULL */
} rose_workload;

/* One run: how the trace is sent. */
typedef struct rose_run_spec {
    double scale;         /* open loop: multiplies the trace's times; 0 = all at once */
    uint32_t concurrency; /* closed loop if not 0 */
    uint32_t n;           /* rows of the trace, from its start; 0 = all */
    uint64_t variant;     /* of the prompts: fresh text, so a cold prefix cache */
    bool search;          /* one of a goodput search, which is recorded as such */
} rose_run_spec;

typedef struct rose_run {
    rose_run_spec spec;
    const rose_load_trace *trace; /* borrowed */
    rose_reply *replies;          /* owned */
    uint32_t n;
    uint64_t start_ns; /* of the first request */
} rose_run;

/* What a run amounts to; times in seconds. TTFT, E2E: from the sending of the request. */
typedef struct rose_run_stats {
    uint32_t n_success, n_error, n_usage_lies, n_short; /* short: fewer tokens than asked for */
    uint32_t n_prompt_mismatch; /* the server counts other prompt tokens than we sent */
    uint64_t events, tokens, prompt_tokens;
    double duration_s, offered_rps; /* offered: what the schedule asks for; 0 in a closed loop */
    bool tokens_counted;            /* every event said how many tokens it holds */
    rose_summary ttft, tpot, itl, e2e, lateness;
    rose_summary queue_wait, prefill_to_first, tokenize; /* of the server, where it says */
    double itl_cdf[101];                                 /* percentiles 0 .. 100 */
    const char *first_error;                             /* borrowed from the run; NULL if none */
    uint32_t first_error_at;                             /* number of that request */
    uint32_t n_uncounted; /* replies of which nobody says how many tokens they hold: events count */
    uint32_t first_lie_at, first_short_at, first_uncounted_at; /* numbers of requests, if any */
} rose_run_stats;

/* Runs; failures of requests are in the replies. Not OK: the run could not be made. */
rose_status rose_workload_run(const rose_workload *w, const rose_url *url, const char *model,
                              const rose_run_spec *spec, rose_run *out, rose_err *err);
void rose_run_free(rose_run *r); /* accepts {0}; leaves {0} */

rose_status rose_run_stats_make(const rose_run *r, rose_run_stats *out); /* NOMEM */

/* TPOT of one reply in seconds; NaN under two tokens. */
double rose_reply_tpot(const rose_reply *r);

/* Adds the gaps between neighbouring tokens of a reply, in seconds: 0 within an event. NOMEM. */
rose_status rose_reply_gaps(rose_samples *s, const rose_reply *r);

#endif
