/* bench/offline.c - `roseinfer bench offline`: throughput of the engine in this process, on token
 * ids.
 *
 * All prompts are submitted at once, as a batch user would; one sink tells this thread when tokens
 * are there. Each repeat uses fresh prompts (seed + repeat), so nothing can be reused between
 * repeats. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/philox.h"
#include "base/progress.h"
#include "base/version.h"
#include "bench/bench.h"
#include "bench/results.h"
#include "bench/stats.h"
#include "engine/flags.h"

typedef struct offline_opts {
    uint32_t num_prompts, input_len, output_len, repeats, warmup, top_k;
    float temperature, top_p;
    uint64_t seed;
    const char *output_dir;
    rose_engine_flags engine;
} offline_opts;

/* What one repeat measured; times in seconds from the submission of the first prompt. */
typedef struct run_result {
    double total_s, ttft_p50, ttft_p99, tpot_p50, tpot_p99;
    uint64_t prompt_tokens, output_tokens;
} run_result;

typedef struct prompt_state {
    rose_request *req;
    uint64_t first_ns, last_ns;
    uint32_t n_out;
    bool done;
} prompt_state;

static rose_status submit_all(rose_engine *e, const offline_opts *o, uint64_t seed,
                              rose_wakeq *sink, prompt_state *ps, rose_err *err)
{
    uint32_t vocab = rose_engine_arch(e)->vocab_size;
    uint32_t *ids = malloc((size_t)o->input_len * sizeof *ids);
    if (ids == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < o->num_prompts && st == ROSE_OK; i++) {
        for (uint32_t j = 0; j < o->input_len; j++)
            ids[j] = (uint32_t)(rose_philox_uniform(seed, j, i + 1) * (float)vocab) % vocab;
        const rose_request_opts ro = {
            .prompt = ids,
            .n_prompt = o->input_len,
            .max_tokens = o->output_len,
            .sampling = {.temperature = o->temperature,
                         .top_p = o->top_p,
                         .top_k = o->top_k,
                         .seed = seed + i},
            .ignore_eos = true,
            .sink = sink,
            .user = &ps[i],
        };
        st = rose_engine_submit(e, &ro, &ps[i].req, err);
        if (st == ROSE_E_FULL)
            rose_fail(err, st,
                      "the waiting queue is full: raise --max-num-queued-reqs to --num-prompts");
        if (st == ROSE_E_LATE)
            rose_fail(err, st, "prompts that come all at once cannot meet --ttft-slo-ms");
    }
    free(ids);
    return st;
}

/* Polls one request dry; returns its new tokens, or -1 if it failed. */
static int64_t take_events(prompt_state *p)
{
    rose_event ev;
    int64_t n = 0;
    while (!p->done && rose_request_poll(p->req, &ev) == ROSE_OK) {
        if (ev.has_token) {
            if (p->n_out++ == 0) p->first_ns = ev.t_ns;
            p->last_ns = ev.t_ns;
            n++;
        }
        p->done = ev.finish != ROSE_FINISH_NONE;
        if (ev.finish == ROSE_FINISH_ERROR || ev.finish == ROSE_FINISH_NO_TOKEN ||
            ev.finish == ROSE_FINISH_LATE)
            return -1;
    }
    return n;
}

static void summarise(const prompt_state *ps, const offline_opts *o, uint64_t start,
                      double *scratch, run_result *out)
{
    uint64_t end = start;
    *out = (run_result){.prompt_tokens = (uint64_t)o->num_prompts * o->input_len};
    for (uint32_t i = 0; i < o->num_prompts; i++) {
        out->output_tokens += ps[i].n_out;
        if (ps[i].last_ns > end) end = ps[i].last_ns;
        scratch[i] = (double)(ps[i].first_ns - start) * 1e-9;
    }
    out->total_s = (double)(end - start) * 1e-9;
    rose_sort_f64(scratch, o->num_prompts);
    out->ttft_p50 = rose_percentile(scratch, o->num_prompts, 50);
    out->ttft_p99 = rose_percentile(scratch, o->num_prompts, 99);
    if (o->output_len < 2) return;
    for (uint32_t i = 0; i < o->num_prompts; i++)
        scratch[i] = (double)(ps[i].last_ns - ps[i].first_ns) * 1e-9 / (ps[i].n_out - 1);
    rose_sort_f64(scratch, o->num_prompts);
    out->tpot_p50 = rose_percentile(scratch, o->num_prompts, 50);
    out->tpot_p99 = rose_percentile(scratch, o->num_prompts, 99);
}

/* sink outlives the engine: it may be signalled right after the last event. */
static rose_status run_once(rose_engine *e, rose_wakeq *sink, const offline_opts *o, uint64_t seed,
                            const char *label, run_result *out, rose_err *err)
{
    rose_status st = ROSE_E_NOMEM;
    rose_progress bar;
    uint64_t want = (uint64_t)o->num_prompts * o->output_len, got = 0;
    uint32_t open = 0;
    prompt_state *ps = calloc(o->num_prompts, sizeof *ps);
    double *scratch = calloc(o->num_prompts, sizeof *scratch);
    if (ps == NULL || scratch == NULL) {
        rose_fail(err, st, "out of memory");
        goto done;
    }
    rose_progress_begin(&bar, label, want);
    uint64_t start = rose_now_ns();
    st = submit_all(e, o, seed, sink, ps, err);
    for (uint32_t i = 0; i < o->num_prompts; i++)
        open += ps[i].req != NULL;
    for (uint32_t i = 0; i < o->num_prompts && st != ROSE_OK; i++) {
        if (ps[i].req != NULL) rose_request_cancel(ps[i].req);
    }
    while (open > 0) {
        void *p;
        rose_wakeq_wait(sink, 100000000);
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK) {
            prompt_state *s = rose_request_user(p);
            if (s->done) continue;
            int64_t n = take_events(s);
            if (n < 0) st = rose_fail(err, ROSE_E_BACKEND, "the engine failed during the run");
            got += n > 0 ? (uint64_t)n : 0;
            open -= s->done;
        }
        rose_progress_update(&bar, got, "tok");
    }
    rose_progress_end(&bar);
    if (st == ROSE_OK) summarise(ps, o, start, scratch, out);
done:
    for (uint32_t i = 0; ps != NULL && i < o->num_prompts; i++) {
        if (ps[i].req != NULL) rose_request_release(ps[i].req);
    }
    free(scratch);
    free(ps);
    return st;
}

static json_t *run_json(const run_result *r, uint32_t num_prompts)
{
    return json_pack("{s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "total_s", r->total_s,
                     "total_input_tokens", (json_int_t)r->prompt_tokens, "total_output_tokens",
                     (json_int_t)r->output_tokens, "request_throughput_rps",
                     num_prompts / r->total_s, "output_throughput_tps",
                     (double)r->output_tokens / r->total_s, "total_throughput_tps",
                     (double)(r->prompt_tokens + r->output_tokens) / r->total_s, "ttft_p50_ms",
                     r->ttft_p50 * 1e3, "ttft_p99_ms", r->ttft_p99 * 1e3, "tpot_p50_ms",
                     r->tpot_p50 * 1e3, "tpot_p99_ms", r->tpot_p99 * 1e3);
}

static json_t *meta_json(const char *model, const offline_opts *o, const rose_engine *e,
                         double load_s)
{
    const rose_memory_plan *p = rose_engine_plan(e);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:f, "
        "s:i, "
        "s:b, "
        "s:f, s:I, s:I}",
        "backend", "roseinfer", "version", rose_version(), "commit", rose_commit(), "model", model,
        "dtype", rose_compute_name(p->dtype), "quantization",
        rose_quantization_name(p->quantization), "isa",
        strcmp(o->engine.isa, "auto") == 0 ? rose_isa_name(rose_isa_probe()) : o->engine.isa,
        "threads", (int)p->n_threads, "num_prompts", (int)o->num_prompts, "input_len",
        (int)o->input_len, "output_len", (int)o->output_len, "max_batch_size", (int)p->max_seqs,
        "max_num_batched_tokens", (int)p->max_step_tokens, "repeats", (int)o->repeats, "seed",
        (json_int_t)o->seed, "temperature", (double)o->temperature, "top_p", (double)o->top_p,
        "top_k", (int)o->top_k, "ignore_eos", 1, "load_s", load_s, "resident_bytes",
        (json_int_t)rose_memory_resident(), "unix_time", (json_int_t)rose_unix_time());
}

static int report(const char *model, const offline_opts *o, const rose_engine *e, double load_s,
                  const run_result *runs)
{
    json_t *list = json_array();
    double *tps = calloc(o->repeats, sizeof *tps);
    if (list == NULL || tps == NULL) {
        fprintf(stderr, "roseinfer: out of memory\n");
        json_decref(list);
        free(tps);
        return 1;
    }
    for (uint32_t i = 0; i < o->repeats; i++) {
        tps[i] = (double)runs[i].output_tokens / runs[i].total_s;
        json_array_append_new(list, run_json(&runs[i], o->num_prompts));
    }
    rose_sort_f64(tps, o->repeats);
    double median = rose_percentile(tps, o->repeats, 50);
    fprintf(stderr,
            "%u x (%u in, %u out), batch %u: %.1f output tok/s (median of %u, %.1f to %.1f), TTFT "
            "p50 %.1f ms, "
            "TPOT p50 %.3f ms, %.1f MiB resident\n",
            o->num_prompts, o->input_len, o->output_len, rose_engine_plan(e)->max_seqs, median,
            o->repeats, tps[0], tps[o->repeats - 1], runs[0].ttft_p50 * 1e3, runs[0].tpot_p50 * 1e3,
            (double)rose_memory_resident() / 1048576.0);
    json_t *root = json_pack("{s:o, s:f, s:f, s:f, s:o}", "meta", meta_json(model, o, e, load_s),
                             "output_throughput_tps", median, "output_throughput_tps_min", tps[0],
                             "output_throughput_tps_max", tps[o->repeats - 1], "results", list);
    int rc = rose_results_emit(root, o->output_dir, "offline");
    free(tps);
    return rc;
}

static int run(const char *path, offline_opts *o)
{
    rose_err err = {{0}};
    if (o->output_dir != NULL && mkdir(o->output_dir, 0777) != 0 &&
        access(o->output_dir, W_OK) != 0) {
        fprintf(stderr, "roseinfer: --output-dir %s: %s\n", o->output_dir, strerror(errno));
        return 1; /* before the run, not after it */
    }
    rose_model *m = NULL;
    rose_engine *e = NULL;
    rose_wakeq *sink = NULL;
    rose_engine_opts eo;
    const rose_backend_ops *ops = NULL;
    run_result *runs = calloc(o->repeats, sizeof *runs);
    int rc = 1;
    rose_status st = runs == NULL ? rose_fail(&err, ROSE_E_NOMEM, "out of memory") : ROSE_OK;
    uint64_t t0 = rose_now_ns();
    if (o->engine.max_num_queued_reqs < o->num_prompts)
        o->engine.max_num_queued_reqs = o->num_prompts;
    if (st == ROSE_OK) st = rose_engine_flags_read(&o->engine, &eo, &err);
    if (st == ROSE_OK) st = rose_wakeq_create(&sink, o->num_prompts + 1, &err);
    if (st == ROSE_OK) st = rose_model_open(&m, path, &err);
    if (st == ROSE_OK) st = rose_backend_pick(&ops, o->engine.device, &err);
    if (st == ROSE_OK) st = rose_engine_open(&e, ops, m, &eo, &err);
    rose_model_close(m);
    double load_s = (double)(rose_now_ns() - t0) * 1e-9;
    for (uint32_t i = 0; i < o->warmup && st == ROSE_OK; i++) {
        run_result ignored;
        st = run_once(e, sink, o, o->seed + 1000003u * (i + 1), "warm-up", &ignored, &err);
    }
    for (uint32_t i = 0; i < o->repeats && st == ROSE_OK; i++)
        st = run_once(e, sink, o, o->seed + 7919u * i, "measure", &runs[i], &err);
    if (st == ROSE_OK)
        rc = report(path, o, e, load_s, runs);
    else
        fprintf(stderr, "roseinfer: %s\n", err.msg);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    free(runs);
    return rc;
}

/* Mostly the table of options. */
int rose_bench_offline(int argc, char **argv)
{
    static offline_opts o;
    o = (offline_opts){.num_prompts = 128,
                       .input_len = 256,
                       .output_len = 64,
                       .repeats = 3,
                       .warmup = 1,
                       .top_k = 50,
                       .temperature = 0.7f,
                       .top_p = 0.9f};
    rose_engine_flags_init(&o.engine);
    rose_opt opts[16 + ROSE_ENGINE_FLAG_ROWS] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        {.name = "num-prompts",
         .kind = ROSE_OPT_U32,
         .dest = &o.num_prompts,
         .arg = "N",
         .min = 1,
         .max = 65536,
         .help = "random prompts, all submitted at once"},
        {.name = "input-len",
         .kind = ROSE_OPT_U32,
         .dest = &o.input_len,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "tokens of each prompt"},
        {.name = "output-len",
         .kind = ROSE_OPT_U32,
         .dest = &o.output_len,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "tokens to generate for each; end-of-sequence is ignored"},
        {.name = "max-batch-size",
         .kind = ROSE_OPT_U32,
         .dest = &o.engine.max_num_seqs,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .help = "most sequences in one step; another name of --max-num-seqs"},
        {.name = "temperature",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o.temperature,
         .arg = "T",
         .fmin = 0,
         .fmax = 100,
         .help = "0 is greedy"},
        {.name = "top-p",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o.top_p,
         .arg = "P",
         .fmin = 1e-6f,
         .fmax = 1,
         .help = "nucleus sampling"},
        {.name = "top-k", .kind = ROSE_OPT_U32, .dest = &o.top_k, .arg = "K", .help = "0 is off"},
        {.name = "seed",
         .kind = ROSE_OPT_U64,
         .dest = &o.seed,
         .arg = "N",
         .help = "of prompts and sampling"},
        {.name = "repeats",
         .kind = ROSE_OPT_U32,
         .dest = &o.repeats,
         .arg = "N",
         .min = 1,
         .max = 1000,
         .help = "measured runs"},
        {.name = "warmup",
         .kind = ROSE_OPT_U32,
         .dest = &o.warmup,
         .arg = "N",
         .max = 1000,
         .help = "runs before them"},
        {.name = "output-dir",
         .kind = ROSE_OPT_STRING,
         .dest = &o.output_dir,
         .arg = "DIR",
         .unset = "JSON to standard output",
         .help = "write offline_TIME/offline_results.json there"},
    };
    const size_t own = 12;
    const rose_command cmd = {
        .usage = "roseinfer bench offline MODEL [options]",
        .about =
            "Token throughput of the engine in this process: random token ids in, tokens out.\n"
            "One line on standard error, JSON on standard output or in --output-dir.",
        .opts = opts,
        .n_opts = own + rose_engine_flags_rows(&o.engine, opts + own),
        .min_args = 1,
        .max_args = 1,
    };
    const char *args[1];
    uint32_t n_args;
    int rc = rose_opts_parse(&cmd, argc, argv, args, &n_args);
    return rc >= 0 ? rc : run(args[0], &o);
}
