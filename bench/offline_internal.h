/* bench/offline_internal.h - declarations that the files of `bench offline` and `bench latency`
 * share. Main thread. */
#ifndef ROSE_BENCH_OFFLINE_INTERNAL_H
#define ROSE_BENCH_OFFLINE_INTERNAL_H

#include <signal.h>

#include "base/json.h"
#include "bench/load_trace.h"
#include "bench/server.h"
#include "bench/stats.h"
#include "engine/flags.h"

/* The work: prompts of random token ids, all present at the start. The end-of-sequence token is
 * ignored. */
typedef struct rose_offline_work {
    rose_load_trace_row *rows; /* [n] lengths; borrowed */
    uint32_t n;
    uint32_t vocab; /* size of the vocabulary; ids are smaller */
    uint64_t seed;
    float temperature, top_p;
    uint32_t top_k;
    bool send_seed; /* each request of a server or script gets a seed of its own */
    const volatile sig_atomic_t *stop; /* true makes the current run fail soon; may be NULL */
} rose_offline_work;

/* The lengths of the workload that nano-vllm and mini-sglang publish: 256 prompts and outputs of
 * 100 to 1024 tokens, as Python's random module draws them after seed(0). That is 133,966 output
 * tokens before rose_load_trace_clamp. Errors: NOMEM. */
rose_status rose_offline_nano_vllm(rose_load_trace *out, rose_err *err);

uint32_t rose_offline_longest(const rose_offline_work *w); /* tokens of the longest prompt */

/* Writes the prompt of row i in the run with this seed to ids[0 .. rows[i].n_in). */
void rose_offline_prompt(const rose_offline_work *w, uint64_t seed, uint32_t i, uint32_t *ids);

/* The seed of a run; warm-up and measured runs all have different prompts. */
uint64_t rose_offline_seed(const rose_offline_work *w, bool warm_up, uint32_t run);

/* One run. Times are in seconds; TTFT and TPOT are NaN if they are not known. */
typedef struct rose_offline_run {
    double total_s, ttft_p50, ttft_p99, tpot_p50, tpot_p99;
    uint64_t input_tokens, output_tokens;
} rose_offline_run;

/* Computes TTFT and TPOT of a run from the lists for all prompts, in seconds, and frees both
 * lists. */
void rose_offline_times(rose_offline_run *out, rose_samples *ttft, rose_samples *tpot);

/* The results of one backend. */
typedef struct rose_offline_result {
    char label[64];
    rose_offline_run *runs; /* owned */
    uint32_t n_runs;
    double ready_s; /* start-up time of the backend in seconds, from exec (in this process: from
                     * opening the model); 0 = unknown */
    uint64_t resident_peak_bytes; /* most memory that the backend's process has used up to the
                                   * last run; 0 = unknown */
    rose_json *extra;             /* owned object: what the backend reports about itself */
    char error[320];              /* "" = success */
} rose_offline_result;

void rose_offline_result_free(rose_offline_result *r); /* accepts {0}; leaves {0} */

/* ---- the engine in this process ---- */

typedef struct rose_offline_engine {
    rose_engine *engine;
    rose_wakeq
        *sink;     /* destroyed after the engine, which may signal it right after the last event */
    uint32_t *ids; /* room for the longest prompt */
    double load_s;
    const char *isa;
} rose_offline_engine;

/* Opens MODEL for runs of at most n prompts of at most max_in tokens. Call close even if this
 * fails. */
rose_status rose_offline_engine_open(rose_offline_engine *e, const char *model_dir,
                                     rose_engine_flags *f, uint32_t n, uint32_t max_in,
                                     rose_err *err);
void rose_offline_engine_close(rose_offline_engine *e); /* accepts {0} */

rose_status rose_offline_engine_run(rose_offline_engine *e, const rose_offline_work *w,
                                    uint64_t seed, const char *label, rose_offline_run *out,
                                    rose_err *err);

/* Threads, data type, sizes and memory of the engine. */
rose_json *rose_offline_engine_json(const rose_offline_engine *e);

/* ---- the whole benchmark ---- */

enum { ROSE_OFFLINE_DRIVERS = 5 };

typedef struct rose_offline_opts {
    uint32_t num_prompts, input_len, output_len, repeats, warmup, top_k, timeout_s;
    float temperature, top_p;
    uint64_t seed;
    const char *workload, *backends, *output_dir, *drivers, *llama_model;
    const char *python[ROSE_OFFLINE_DRIVERS], *args[ROSE_OFFLINE_DRIVERS], *profile;
    uint32_t profile_n;
    bool profile_only, record, send_seed;
    rose_server_flags server; /* its engine options are also those of the engine in this process */
} rose_offline_opts;

typedef struct rose_offline_backend {
    enum { ROSE_OFFLINE_IN_PROCESS, ROSE_OFFLINE_SERVER, ROSE_OFFLINE_SCRIPT } kind;
    int driver; /* only of a script: its place in rose_offline_drivers */
    rose_server_spec server;
    char label[64];
} rose_offline_backend;

/* One call of the benchmark. */
typedef struct rose_offline {
    rose_offline_opts *o;
    const char *model_dir;
    rose_load_trace lengths; /* owned */
    rose_offline_work work;
    rose_offline_backend backends[ROSE_MAX_BACKENDS];
    uint32_t n_backends, n_failed;
    char dir[4096];  /* "" = the JSON goes to standard output */
    rose_json *root; /* owned */
} rose_offline;

/* ---- other backends: they fill out->runs and out->extra ---- */

/* Runs the workload on a server: our own (driver 0), which it starts with the engine options of
 * r->o->server, or one at a URL. */
rose_status rose_offline_server(const rose_offline *r, const rose_offline_backend *b,
                                rose_offline_result *out, rose_err *err);

/* Runs the workload through a script of tools/drivers, by the script's own interpreter. */
extern const char *const rose_offline_drivers[ROSE_OFFLINE_DRIVERS];
rose_status rose_offline_script(const rose_offline *r, const rose_offline_backend *b,
                                rose_offline_result *out, rose_err *err);

/* ---- the profile stage (offline_profile.c) ---- */

/* Runs each backend once more with the recorder on, and writes profile_manifest.json to r->dir.
 * Returns how many failed; each failure is a row with its error. */
uint32_t rose_offline_profile(const rose_offline *r, int argc, char **argv);

/* Records a profile of one server: warm-up, /start_profile, the work, /stop_profile. dir gets
 * the server's log, and the trace if we started the server. row gets the server's answers. */
rose_status rose_offline_server_profile(const rose_offline *r, const rose_offline_work *w,
                                        const rose_server_spec *spec, const char *dir,
                                        rose_json *row, rose_err *err);

/* ---- results ---- */

/* Makes a row of `results`: the repeat with the median time, all repeats, and the spread. */
rose_json *rose_offline_row(const rose_offline_result *r, const rose_offline_work *w,
                            const char *model);

/* Writes offline_summary.md for results in memory, which may come from a file; `merge` also
 * calls it. */
rose_status rose_offline_summary(const rose_json *root, const char *dir, rose_err *err);

#endif
