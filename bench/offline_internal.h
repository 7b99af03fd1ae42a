/* bench/offline_internal.h - between the parts of `bench offline` and `bench latency`. Main thread.
 */
#ifndef ROSE_BENCH_OFFLINE_INTERNAL_H
#define ROSE_BENCH_OFFLINE_INTERNAL_H

#include <jansson.h>
#include <signal.h>

#include "bench/load_trace.h"
#include "bench/server.h"
#include "bench/stats.h"
#include "engine/flags.h"

/* What is computed: prompts of random ids, all there at once; end-of-sequence is ignored. */
typedef struct rose_offline_work {
    const rose_load_trace_row *rows; /* [n] lengths; borrowed */
    uint32_t n;
    uint32_t vocab; /* ids are below it */
    uint64_t seed;
    float temperature, top_p;
    uint32_t top_k;
    const volatile sig_atomic_t *stop; /* true ends the run under way, as a failure; may be NULL */
} rose_offline_work;

/* The lengths of the workload that nano-vllm and mini-sglang publish: 256 prompts and outputs of
 * 100 .. 1024 tokens each, as Python's random draws them after seed(0): 133,966 output tokens,
 * before rose_load_trace_clamp. NOMEM. */
rose_status rose_offline_nano_vllm(rose_load_trace *out, rose_err *err);

/* Row i's prompt of run `seed` into ids[0 .. rows[i].n_in). */
void rose_offline_prompt(const rose_offline_work *w, uint64_t seed, uint32_t i, uint32_t *ids);

/* Each run has its own prompts; warm-up runs, too. */
uint64_t rose_offline_seed(const rose_offline_work *w, bool warm_up, uint32_t run);

/* One run. Times in seconds; those of TTFT and TPOT are NaN where they are not known. */
typedef struct rose_offline_run {
    double total_s, ttft_p50, ttft_p99, tpot_p50, tpot_p99;
    uint64_t input_tokens, output_tokens;
} rose_offline_run;

/* Fills in TTFT and TPOT from those of each prompt, in seconds; frees both lists. */
void rose_offline_times(rose_offline_run *out, rose_samples *ttft, rose_samples *tpot);

/* What one backend did. */
typedef struct rose_offline_result {
    char label[64];
    rose_offline_run *runs; /* owned */
    uint32_t n_runs;
    double ready_s;               /* from exec (in process: from opening the model); 0 = unknown */
    uint64_t resident_peak_bytes; /* of its process, after the last run; 0 = unknown */
    json_t *extra;                /* owned object: what this backend says of itself */
    char error[320];              /* "" = success */
} rose_offline_result;

void rose_offline_result_free(rose_offline_result *r); /* accepts {0}; leaves {0} */

/* ---- the engine in this process ---- */

typedef struct rose_offline_engine {
    rose_engine *engine;
    rose_wakeq *sink; /* outlives the engine: it may be signalled right after the last event */
    uint32_t *ids;    /* scratch for the longest prompt */
    double load_s;
    const char *isa;
} rose_offline_engine;

/* Opens MODEL for work of at most n prompts of at most max_in tokens. Close it in either case. */
rose_status rose_offline_engine_open(rose_offline_engine *e, const char *model_dir,
                                     rose_engine_flags *f, uint32_t n, uint32_t max_in,
                                     rose_err *err);
void rose_offline_engine_close(rose_offline_engine *e); /* accepts {0} */

rose_status rose_offline_engine_run(rose_offline_engine *e, const rose_offline_work *w,
                                    uint64_t seed, const char *label, rose_offline_run *out,
                                    rose_err *err);

/* Threads, arithmetic, sizes, memory. */
json_t *rose_offline_engine_json(const rose_offline_engine *e);

/* ---- other ways to the same work: they fill r->runs and r->extra ---- */

/* Through a server: ours (spec->driver 0, started with the engine options of sf) or one at a URL.
 */
rose_status rose_offline_server(const rose_offline_work *w, const rose_server_spec *spec,
                                const rose_server_flags *sf, const char *model_dir, uint32_t warmup,
                                uint32_t repeats, rose_offline_result *r, rose_err *err);

/* By a script of tools/drivers, in its own interpreter. */
typedef struct rose_offline_driver {
    const char *name, *python, *args; /* args: further ones, or NULL */
    const char *dir;                  /* where the scripts are; NULL: beside this program */
    const char *model;                /* what the script opens */
    const char *log_dir;              /* NULL: no log */
    uint32_t timeout_s, max_batch_size;
} rose_offline_driver;
rose_status rose_offline_script(const rose_offline_work *w, const rose_offline_driver *d,
                                uint32_t warmup, uint32_t repeats, rose_offline_result *r,
                                rose_err *err);

/* ---- the profile stage (offline_profile.c) ---- */

typedef struct rose_offline_stage {
    rose_offline_work work; /* its first rows */
    const char *model_dir, *dir;
    const rose_server_flags
        *server; /* its engine options are those of the engine in process, too */
} rose_offline_stage;

/* Neither in_process nor a server: a script. */
typedef struct rose_offline_target {
    const char *label;
    bool in_process;
    const rose_server_spec *server;
} rose_offline_target;

/* Each target once more with the recorder on; profile_manifest.json in s->dir. Returns how many
 * failed; each is a row with its error. */
uint32_t rose_offline_profile(const rose_offline_stage *s, const rose_offline_target *targets,
                              uint32_t n, int argc, char **argv);

/* Its part for a server: warm-up, /start_profile, the work, /stop_profile. dir gets the server's
 * log and, where we start it, the trace; row what the server says. */
rose_status rose_offline_server_profile(const rose_offline_stage *s, const rose_server_spec *spec,
                                        const char *dir, json_t *row, rose_err *err);

/* ---- results ---- */

/* A row of `results`: the repeat with the median time, all repeats, and the spread. */
json_t *rose_offline_row(const rose_offline_result *r, const rose_offline_work *w,
                         const char *model);

/* offline_summary.md of results that may have been read from a file; also for `merge`. */
rose_status rose_offline_summary(const json_t *root, const char *dir, rose_err *err);

#endif
