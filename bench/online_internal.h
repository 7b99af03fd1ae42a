/* bench/online_internal.h - between the parts of `bench online`. */
#ifndef ROSE_BENCH_ONLINE_INTERNAL_H
#define ROSE_BENCH_ONLINE_INTERNAL_H

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

/* Defaults, then the command line. -1 to go on, else the exit code. */
int rose_online_opts_parse(rose_online_opts *o, int argc, char **argv, const char **model_dir);

/* The growing result: written after every run. */
typedef struct rose_online_results {
    json_t *root; /* owned: {meta, summaries, by_backend} */
    char dir[4096];
} rose_online_results;

/* Adds a backend's entry (state so far: failed or ready) and returns it, borrowed. */
json_t *rose_online_add_backend(rose_online_results *r, const rose_server_spec *spec,
                                const rose_server *s);

/* Adds a run to a backend: a row of `summaries`, and its request_metrics. What is said of the
 * process of a server that we started is as it is now. */
rose_status rose_online_add_run(rose_online_results *r, json_t *backend, const char *label,
                                const rose_server *server, const rose_run *run,
                                const rose_run_stats *s, rose_err *err);

/* A backend that failed is a row with its error. */
rose_status rose_online_add_failure(rose_online_results *r, json_t *backend, const char *label,
                                    const char *error, rose_err *err);

/* online_results.json and online_summary.md. */
rose_status rose_online_write(const rose_online_results *r, rose_err *err);

/* meta.dtype of results with by_backend: what every server that came up says; null where one says
 * nothing, or another. Also for `merge`. */
void rose_online_set_dtype(json_t *root);

/* The markdown of results that were read from a file; also for `merge`. */
rose_status rose_online_summary(const json_t *root, const char *dir, rose_err *err);

/* Limits of a goodput search, in seconds; 0 = no limit. */
typedef struct rose_goodput_limits {
    double ttft, tpot, itl, e2e;
} rose_goodput_limits;

/* "ttft:200,tpot:20" in ms. INVAL names the part. */
rose_status rose_goodput_parse(const char *text, rose_goodput_limits *out, rose_err *err);
bool rose_goodput_met(const rose_goodput_limits *l,
                      const rose_run_stats *s); /* at p99, no errors */

/* online_profile.c: each server once more, with a profiler on; profile_manifest.json in dir. */
typedef struct rose_profile_stage {
    const rose_online_opts *o;
    const char *model_dir, *dir;
    const rose_prompts *prompts;
    const rose_load_trace *trace, *warm_trace;
    const rose_server_spec *specs; /* [n_specs] */
    uint32_t n_specs;
    const volatile sig_atomic_t *stop;
} rose_profile_stage;
/* Returns how many profiles failed; each is a row with its error. */
uint32_t rose_online_profile(const rose_profile_stage *s, int argc, char **argv);

/* One run as `vllm bench serve --save-result --save-detailed` writes it: dir/vllm/LABEL-LOAD.json.
 * Without generated_texts, which this client does not keep. */
typedef struct rose_online_names {
    const char *dir, *label, *model, *tokenizer; /* model: as the server calls it */
} rose_online_names;
rose_status rose_online_export_vllm(const rose_online_names *names, const rose_online_opts *o,
                                    const rose_goodput_limits *limits, const rose_run *run,
                                    const rose_run_stats *s, rose_err *err);

#endif
