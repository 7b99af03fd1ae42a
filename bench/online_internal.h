/* bench/online_internal.h - declarations that the files of `bench online` share. */
#ifndef ROSE_BENCH_ONLINE_INTERNAL_H
#define ROSE_BENCH_ONLINE_INTERNAL_H

#include <sched.h>

#include "bench/results.h"
#include "bench/server.h"
#include "bench/workload.h"

/* Options of `bench online`. */
typedef struct rose_online_opts {
    const char *trace, *backends, *scales, *concurrency, *goodput, *output_dir, *client_cpus, *ramp;
    uint32_t n, max_output_len, max_input_len, prompt_overhead, goodput_steps;
    uint32_t warmup_requests, warmup_input_len, warmup_output_len;
    float rate, burstiness, in_median, in_sigma, out_median, out_sigma, ramp_start, ramp_end;
    const char *profile; /* "none", "trace", "nsys", "both" */
    uint32_t profile_n;
    float profile_scale;
    bool profile_only;
    bool shared_prefix, trace_prefixes, cold_prefix, vllm_results;
    rose_request_flags req;
    rose_server_flags server;
} rose_online_opts;

/* Sets the defaults and parses the command line. Returns -1 to go on, else the exit code. */
int rose_online_opts_parse(rose_online_opts *o, int argc, char **argv, const char **model_dir);

/* The results, which grow and are written after every run. */
typedef struct rose_online_results {
    rose_json *root; /* owned: {meta, summaries, by_backend} */
    char dir[4096];
} rose_online_results;

/* Adds the entry of a backend and returns it, borrowed. s says how the start went. */
rose_json *rose_online_add_backend(rose_online_results *r, const rose_server_spec *spec,
                                   const rose_server *s);

/* Adds a run to a backend: a row of `summaries`, and its request_metrics. The memory of a server
 * that we started is read at this moment. */
rose_status rose_online_add_run(rose_online_results *r, rose_json *backend, const char *label,
                                const rose_server *server, const rose_run *run,
                                const rose_run_stats *s, rose_err *err);

/* The members num_drafts, draft_tokens, accepted_tokens, acceptance_rate (0 .. 1, of draft_tokens),
 * acceptance_length (tokens of a step that checks a guess, with the one that the step gives itself)
 * and per_position_acceptance_rates (of num_drafts); null if the server did not report them. Rates
 * without a guess are null. */
rose_json *rose_online_guesses_json(const rose_watch_guesses *g);

/* Adds a row with the error of a backend that failed. */
rose_status rose_online_add_failure(rose_online_results *r, rose_json *backend, const char *label,
                                    const char *error, rose_err *err);

/* Writes online_results.json and online_summary.md. */
rose_status rose_online_write(const rose_online_results *r, rose_err *err);

/* Sets meta.dtype from by_backend: the dtype that every server reported, or null if one reported
 * none or another. `merge` also calls it. */
void rose_online_set_dtype(rose_json *root);

/* Writes the Markdown summary of results in memory, which may come from a file; `merge` also
 * calls it. */
rose_status rose_online_summary(const rose_json *root, const char *dir, rose_err *err);

/* Limits of a goodput search in seconds; 0 = no limit. */
typedef struct rose_goodput_limits {
    double ttft, tpot, itl, e2e;
} rose_goodput_limits;

/* Parses "ttft:200,tpot:20" (milliseconds). Errors: INVAL names the part that is wrong. */
rose_status rose_goodput_parse(const char *text, rose_goodput_limits *out, rose_err *err);
bool rose_goodput_met(const rose_goodput_limits *l,
                      /* true if the p99 values keep the limits and no request failed */
                      const rose_run_stats *s);

enum { ROSE_ONLINE_POINTS = 64 };

/* One call of the benchmark. */
typedef struct rose_online {
    const rose_online_opts *o;
    const char *model_dir;
    rose_prompts *prompts;
    rose_load_trace trace, warm_trace;
    rose_server_spec specs[ROSE_MAX_BACKENDS];
    uint32_t n_specs, n_scales, n_conc;
    double scales[ROSE_ONLINE_POINTS];
    double conc[ROSE_ONLINE_POINTS];
    rose_goodput_limits limits;
    rose_online_results results;
    uint32_t n_failed;
    /* the CPUs of --client-cpus, and those that this process had before */
    cpu_set_t client_set, all_set;
} rose_online;

/* online_profile.c: runs each server once more with a profiler on, and writes profile_manifest.json
 * to the folder of the results. Returns how many profiles failed; each failure is a row with its
 * error. */
uint32_t rose_online_profile(const rose_online *r, int argc, char **argv);

/* Writes one run as `vllm bench serve --save-result --save-detailed` does, to
 * dir/vllm/LABEL-LOAD.json. generated_texts is left out, because this client does not keep the
 * texts. model: the name that the server gives it. */
rose_status rose_online_export_vllm(const rose_online *r, const char *label, const char *model,
                                    const rose_run *run, const rose_run_stats *s, rose_err *err);

#endif
