/* bench/latency.c - `roseinfer bench latency` measures how long one fixed batch takes from
 * submission to its last token, as `vllm bench latency` does. The engine runs in this process on
 * token ids, and nothing else runs at the same time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/offline_internal.h"
#include "bench/results.h"
#include "bench/stats.h"

typedef struct latency_opts {
    uint32_t batch_size, input_len, output_len, warmup, iters, top_k;
    float temperature, top_p;
    uint64_t seed;
    const char *output_dir;
    rose_engine_flags engine;
} latency_opts;

/* Times in seconds. */
typedef struct latency_times {
    double *batches;         /* [iters] of the measured batches, owned */
    rose_samples ttft, tpot; /* the median of each batch */
    /* A batch of one token each beside each measured batch, and the time of a further token: (batch
     * - batch of one token) / (tokens - 1). TPOT also holds the prefill of the sequences that begin
     * later in the batch. Empty for one token. */
    rose_samples one, by_difference;
} latency_times;

static rose_offline_work work_of(const latency_opts *o, const rose_offline_engine *e,
                                 const rose_load_trace *lengths)
{
    return (rose_offline_work){.rows = lengths->rows,
                               .n = lengths->n,
                               .vocab = rose_engine_arch(e->engine)->vocab_size,
                               .seed = o->seed,
                               .temperature = o->temperature,
                               .top_p = o->top_p,
                               .top_k = o->top_k};
}

/* Round i: a batch w[0], and w[1] for one token each, in turn the one and the other first. All
 * batches have their own prompts. */
static rose_status measure_round(const latency_opts *o, rose_offline_engine *e,
                                 const rose_offline_work *w, uint32_t i, latency_times *t,
                                 rose_err *err)
{
    const uint32_t further = o->output_len - 1;
    rose_offline_run r[2];
    rose_status st = ROSE_OK;
    for (uint32_t k = 0; k < 2 && st == ROSE_OK; k++) {
        const uint32_t one = (i + k) % 2;
        if (one == 1 && further == 0) continue;
        const uint64_t seed = rose_offline_seed(w, false, one * o->iters + i);
        st = rose_offline_engine_run(e, &w[one], seed, "measure", &r[one], err);
    }
    if (st != ROSE_OK) return st;
    t->batches[i] = r[0].total_s;
    st = rose_samples_add(&t->ttft, r[0].ttft_p50);
    if (st == ROSE_OK && further > 0) st = rose_samples_add(&t->tpot, r[0].tpot_p50);
    if (st == ROSE_OK && further > 0) st = rose_samples_add(&t->one, r[1].total_s);
    if (st == ROSE_OK && further > 0)
        st = rose_samples_add(&t->by_difference, (r[0].total_s - r[1].total_s) / further);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

static rose_status measure(const latency_opts *o, rose_offline_engine *e,
                           const rose_load_trace lengths[2], latency_times *t, rose_err *err)
{
    const rose_offline_work w[2] = {work_of(o, e, &lengths[0]), work_of(o, e, &lengths[1])};
    rose_offline_run r;
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < o->warmup && st == ROSE_OK; i++)
        st = rose_offline_engine_run(e, w, rose_offline_seed(w, true, i), "warm-up", &r, err);
    for (uint32_t i = 0; i < o->iters && st == ROSE_OK; i++)
        st = measure_round(o, e, w, i, t, err);
    return st;
}

/* Measures how fast the CPU backend's threads compute and read memory at this moment. If
 * m->n_threads is 0, this is the first measurement. */
static rose_status measure_machine(latency_opts *o, const rose_offline_engine *e, rose_machine *m,
                                   rose_err *err)
{
    const rose_memory_plan *p = rose_engine_plan(e->engine);
    rose_engine_opts eo;
    rose_machine now;
    if (p->weights_read == 0) return ROSE_OK;
    rose_status st = rose_engine_flags_read(&o->engine, &eo, err);
    if (st == ROSE_OK)
        st = rose_machine_measure(&now, p->n_threads, eo.backend.cpu.cpus, eo.backend.cpu.n_cpus,
                                  err);
    if (st != ROSE_OK) return st;
    if (m->n_threads == 0) *m = now;
    rose_machine_better(m, &now);
    return ROSE_OK;
}

/* Adds the machine's limits, to which the measured times are compared. Adds nothing if they were
 * not measured. */
static void add_floor(rose_json *root, const rose_machine *m, uint64_t bytes, double tpot_ms)
{
    if (m->n_threads == 0) return;
    /* One token alone has no time per output token: the ratio is NaN. */
    const double floor_ms = rose_floor_ms(m, bytes), ratio = tpot_ms / floor_ms;
    rose_machine_print(stderr, m);
    fprintf(stderr, "%.1f MB of weights at that speed: %.3f ms", (double)bytes * 1e-6, floor_ms);
    if (isfinite(ratio)) fprintf(stderr, ", TPOT p50 is %.3f of it", ratio);
    fputc('\n', stderr);
    rose_json_set_new(root, "machine", rose_machine_json(m));
    rose_json_set_new(root, "floor",
                      rose_json_pack("{s:I, s:f, s:o}", "weights_read_bytes", (int64_t)bytes,
                                     "tpot_ms", floor_ms, "tpot_p50_over_floor",
                                     rose_number_json(ratio)));
}

/* The median in milliseconds, or "-" without samples. */
static const char *median_ms(const rose_summary *s, char out[32])
{
    if (s->n == 0) return "-";
    snprintf(out, 32, "%.3f ms", s->p50 * 1e3);
    return out;
}

/* Writes the keys of vllm bench latency, and a few keys that vllm bench latency does not have. */
static rose_json *result_json(const latency_opts *o, const char *model,
                              const rose_offline_engine *e, latency_times *t, rose_json *meta)
{
    static const int at[] = {10, 25, 50, 75, 90, 99};
    rose_json *all = rose_json_array(), *percentiles = rose_json_object();
    double sum = 0;
    for (uint32_t i = 0; i < o->iters; i++) {
        rose_json_append_new(all, rose_json_real(t->batches[i]));
        sum += t->batches[i];
    }
    const rose_summary s = rose_summarise(t->batches, o->iters),
                       a = rose_summarise(t->ttft.v, t->ttft.n),
                       b = rose_summarise(t->tpot.v, t->tpot.n),
                       one = rose_summarise(t->one.v, t->one.n),
                       by = rose_summarise(t->by_difference.v, t->by_difference.n);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", at[i]);
        rose_json_set_new(percentiles, key,
                          rose_json_real(rose_percentile(t->batches, o->iters, at[i])));
    }
    char token[2][32];
    fprintf(stderr,
            "%u x (%u in, %u out): mean %.3f ms, p50 %.3f, p90 %.3f, p99 %.3f; TTFT p50 %.3f ms, "
            "TPOT p50 %s, by difference %s\n",
            o->batch_size, o->input_len, o->output_len, s.mean * 1e3, s.p50 * 1e3, s.p90 * 1e3,
            s.p99 * 1e3, a.p50 * 1e3, median_ms(&b, token[0]), median_ms(&by, token[1]));
    return rose_json_pack(
        "{s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "meta",
        meta, "model", rose_results_string(model), "batch_size", (int)o->batch_size, "input_len",
        (int)o->input_len, "output_len", (int)o->output_len, "num_iters_warmup", (int)o->warmup,
        "num_iters", (int)o->iters, "avg_latency", sum / o->iters, "latencies", all, "percentiles",
        percentiles, "latency_ms", rose_summary_json(&s, 1e3), "ttft_ms",
        rose_summary_json(&a, 1e3), "tpot_ms", rose_summary_json(&b, 1e3), "one_token_latency_ms",
        rose_summary_json(&one, 1e3), "tpot_by_difference_ms", rose_summary_json(&by, 1e3),
        "engine", rose_offline_engine_json(e));
}

static int run(const char *model_dir, latency_opts *o, int argc, char **argv)
{
    rose_load_trace_gen g = {.n = o->batch_size,
                             .rate = 1,
                             .burstiness = 1,
                             .in_median = o->input_len,
                             .out_median = o->output_len};
    rose_err err = {{0}};
    rose_offline_engine e = {0};
    rose_load_trace lengths[2] = {{0}};
    latency_times t = {.batches = calloc(o->iters, sizeof *t.batches)};
    rose_machine machine = {0};
    rose_json *root = NULL;
    rose_status st = t.batches == NULL ? rose_fail(&err, ROSE_E_NOMEM, "out of memory") : ROSE_OK;
    if (o->engine.opts.backend.max_seqs < o->batch_size)
        o->engine.opts.backend.max_seqs = o->batch_size;
    uint32_t *const tokens = &o->engine.opts.backend.max_step_tokens;
    if (*tokens != 0 && *tokens < o->batch_size) *tokens = o->batch_size;
    if (st == ROSE_OK) st = rose_load_trace_generate(&lengths[0], &g, &err);
    g.out_median = 1;
    if (st == ROSE_OK) st = rose_load_trace_generate(&lengths[1], &g, &err);
    if (st == ROSE_OK)
        st = rose_offline_engine_open(&e, model_dir, &o->engine, o->batch_size, o->input_len, &err);
    if (st == ROSE_OK) st = measure_machine(o, &e, &machine, &err);
    if (st == ROSE_OK) st = measure(o, &e, lengths, &t, &err);
    if (st == ROSE_OK) st = measure_machine(o, &e, &machine, &err);
    if (st == ROSE_OK) {
        root = result_json(o, model_dir, &e, &t, rose_results_meta(argc, argv));
        const rose_summary tpot = rose_summarise(t.tpot.v, t.tpot.n);
        add_floor(root, &machine, rose_engine_plan(e.engine)->weights_read, tpot.p50 * 1e3);
    }
    rose_offline_engine_close(&e);
    const int rc =
        st == ROSE_OK ? rose_results_emit(root, o->output_dir, "latency") : rose_die(&err);
    for (int i = 0; i < 2; i++)
        rose_load_trace_free(&lengths[i]);
    rose_samples_free(&t.ttft);
    rose_samples_free(&t.tpot);
    rose_samples_free(&t.one);
    rose_samples_free(&t.by_difference);
    free(t.batches);
    return rc;
}

int rose_bench_latency(int argc, char **argv)
{
    static latency_opts o;
    o = (latency_opts){.batch_size = 8,
                       .input_len = 32,
                       .output_len = 128,
                       .warmup = 10,
                       .iters = 30,
                       .temperature = 1,
                       .top_p = 1};
    rose_engine_flags_init(&o.engine);
    rose_opt opts[12 + ROSE_ENGINE_FLAG_ROWS] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_U32("batch-size", &o.batch_size, "N", 1, 4096,
                     "prompts of random ids, submitted together"),
        ROSE_ROW_U32("input-len", &o.input_len, "N", 1, 1u << 20, "tokens of each prompt"),
        ROSE_ROW_U32("output-len", &o.output_len, "N", 1, 1u << 20,
                     "tokens to generate for each; end-of-sequence is ignored"),
        ROSE_ROW_U32("num-iters-warmup", &o.warmup, "N", 0, 100000,
                     "batches before the measured ones"),
        ROSE_ROW_U32("num-iters", &o.iters, "N", 1, 100000,
                     "measured batches, each with its own prompts"),
        ROSE_ROW_FLOAT("temperature", &o.temperature, "T", 0, 100, "0 is greedy"),
        ROSE_ROW_FLOAT("top-p", &o.top_p, "P", 1e-6f, 1, "nucleus sampling"),
        ROSE_ROW_U32("top-k", &o.top_k, "K", 0, 0, "0 is off"),
        ROSE_ROW_U64("seed", &o.seed, "N", 0, 0, "of prompts and sampling"),
        ROSE_ROW_OUTPUT_DIR(&o.output_dir, "latency"),
    };
    const size_t own = 11;
    const char *model;
    const int rc = rose_opts_parse_one(
        "roseinfer bench latency MODEL [options]",
        "Time of one batch of fixed lengths in an engine of this process, from its submission to "
        "its last\ntoken. Workload and JSON keys are those of vllm bench latency. A batch of one "
        "token "
        "each runs beside\neach measured batch, for the time of a token by difference.",
        opts, own + rose_engine_flags_rows(&o.engine, opts + own), argc, argv, &model);
    return rc >= 0 ? rc : run(model, &o, argc, argv);
}
