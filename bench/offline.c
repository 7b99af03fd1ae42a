/* bench/offline.c - `roseinfer bench offline` measures tokens per second on token ids: of the
 * engine in this process, of our server, and of rivals through driver scripts.
 *
 * Every backend gets the same prompts. A warm-up is a whole run with prompts of its own. Each
 * repeat uses fresh prompts, so no cache can help. A backend that fails gets a row with its error.
 * With --output-dir the results are written after each backend. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/profile.h"
#include "bench/bench.h"
#include "bench/offline_internal.h"
#include "bench/results.h"
#include "bench/stats.h"
#include "bench/watch.h"

enum { MAX_LEN = 1 << 20 };

static rose_status parse_one(const char *part, rose_offline_backend *b, rose_err *err)
{
    uint32_t n;
    const size_t len = strcspn(part, "=");
    snprintf(b->label, sizeof b->label, "%.63s", part);
    if (len == 6 && strncmp(part, "inproc", len) == 0) {
        const char *name = part[len] == '=' ? part + len + 1 : "roseinfer+inproc";
        b->kind = ROSE_OFFLINE_IN_PROCESS;
        return rose_server_label(b->label, part, name, strlen(name), err);
    }
    for (int i = 0; i < ROSE_OFFLINE_DRIVERS; i++) {
        if (strcmp(part, rose_offline_drivers[i]) != 0) continue;
        b->kind = ROSE_OFFLINE_SCRIPT;
        b->driver = i;
        return ROSE_OK;
    }
    if ((len != 9 || strncmp(part, "roseinfer", len) != 0) && strncmp(part, "url=", 4) != 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "backend '%s': expected inproc or roseinfer, with =NAME or without, vllm, "
                         "sglang, trtllm, transformers, llama or url=NAME=http://HOST:PORT",
                         part);
    b->kind = ROSE_OFFLINE_SERVER;
    rose_status st = rose_server_list_parse(part, &b->server, &n, err);
    memcpy(b->label, b->server.label, sizeof b->label);
    return st;
}

static rose_status parse_backends(rose_offline *r, rose_err *err)
{
    for (const char *p = r->o->backends;;) {
        char part[512];
        const size_t len = strcspn(p, ",");
        if (r->n_backends == ROSE_MAX_BACKENDS || len >= sizeof part)
            return rose_fail(err, ROSE_E_INVAL, "--backends: at most %d, each under 512 bytes",
                             ROSE_MAX_BACKENDS);
        snprintf(part, sizeof part, "%.*s", (int)len, p);
        rose_status st = parse_one(part, &r->backends[r->n_backends], err);
        if (st != ROSE_OK) return st;
        if (r->o->record && r->backends[r->n_backends].kind != ROSE_OFFLINE_IN_PROCESS)
            return rose_fail(err, ROSE_E_INVAL, "--record: only inproc, not %s", part);
        r->n_backends++;
        if (p[len] == '\0') return ROSE_OK;
        p += len + 1;
    }
}

/* Makes the lengths of the workload and cuts them to the model's context. Also reads the size of
 * the vocabulary. */
static rose_status make_work(rose_offline *r, rose_err *err)
{
    const rose_offline_opts *o = r->o;
    const bool preset = strcmp(o->workload, "nano-vllm") == 0;
    const rose_load_trace_gen g = {.seed = o->seed,
                                   .n = o->num_prompts,
                                   .rate = 1,
                                   .burstiness = 1,
                                   .in_median = o->input_len,
                                   .out_median = o->output_len};
    rose_model *m = NULL;
    rose_status st = rose_model_open_as(&m, r->model_dir, o->server.engine.load_format, err);
    if (st != ROSE_OK) return st;
    uint32_t context = m->arch.max_positions;
    if (o->server.engine.opts.backend.max_model_len != 0 &&
        o->server.engine.opts.backend.max_model_len < context)
        context = o->server.engine.opts.backend.max_model_len;
    r->work = (rose_offline_work){.vocab = m->arch.vocab_size,
                                  .seed = o->seed,
                                  .temperature = o->temperature,
                                  .top_p = o->top_p,
                                  .top_k = o->top_k,
                                  .send_seed = o->send_seed,
                                  .stop = r->o->server.stop};
    rose_model_close(m);
    st = preset ? rose_offline_nano_vllm(&r->lengths, err)
                : rose_load_trace_generate(&r->lengths, &g, err);
    if (st != ROSE_OK) return st;
    if (!preset && (uint64_t)o->input_len + o->output_len > context)
        return rose_fail(err, ROSE_E_INVAL,
                         "--input-len %u and --output-len %u exceed the context of %u",
                         o->input_len, o->output_len, context);
    const uint32_t cut =
        preset && context >= 3 ? rose_load_trace_clamp(&r->lengths, context, 0, 0) : 0;
    if (cut > 0)
        fprintf(stderr, "%u of %u requests cut to the context of %u\n", cut, r->lengths.n, context);
    r->work.rows = r->lengths.rows;
    r->work.n = r->lengths.n;
    return ROSE_OK;
}

static double cpu_s_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Measures what recording costs (--record), by one repeat with the recorder and one without.
 * Before each repeat there is a run that does not count, because starting the recorder takes
 * memory and leaves cold caches, which is not the cost of recording. The order of the two
 * alternates. The recordings are thrown away; their times go to `pairs` and not into the
 * results. */
static rose_status run_pair(rose_offline *r, rose_offline_engine *e, uint32_t i,
                            rose_offline_run *plain, rose_json *pairs, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_json *pair = rose_json_object();
    for (uint32_t k = 0; k < 2 && st == ROSE_OK; k++) {
        const bool on = (i + k) % 2 == 1;
        const uint32_t seed = 4 * i + 2 * k;
        rose_prof_result said = {0};
        rose_offline_run run = {0};
        double cpu_s = 0;
        if (on) st = rose_prof_start(ROSE_PROF_DEFAULT_EVENTS, err);
        for (uint32_t n = 0; n < 2 && st == ROSE_OK; n++) {
            cpu_s = cpu_s_now();
            st = rose_offline_engine_run(e, &r->work, rose_offline_seed(&r->work, false, seed + n),
                                         n == 0 ? "settle" : "measure", &run, err);
        }
        cpu_s = cpu_s_now() - cpu_s;
        if (on) rose_prof_stop(NULL, &said, NULL);
        if (!on) *plain = run;
        rose_json_set_new(pair, on ? "on" : "off",
                          rose_json_pack("{s:f, s:f, s:I, s:I}", "total_s", run.total_s, "cpu_s",
                                         cpu_s, "events", (int64_t)said.n_events, "dropped",
                                         (int64_t)said.n_dropped));
    }
    rose_json_append_new(pairs, pair);
    return st;
}

static rose_status run_in_process(rose_offline *r, rose_offline_result *out, rose_err *err)
{
    const rose_offline_opts *o = r->o;
    rose_offline_engine e = {0};
    rose_offline_run ignored;
    rose_json *pairs = o->record ? rose_json_array() : NULL;
    rose_status st = rose_offline_engine_open(&e, r->model_dir, &r->o->server.engine, r->work.n,
                                              rose_offline_longest(&r->work), err);
    if (st == ROSE_OK && (out->runs = calloc(o->repeats, sizeof *out->runs)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < o->warmup && st == ROSE_OK; i++)
        st = rose_offline_engine_run(&e, &r->work, rose_offline_seed(&r->work, true, i), "warm-up",
                                     &ignored, err);
    for (uint32_t i = 0; i < o->repeats && st == ROSE_OK; i++) {
        if (o->record)
            st = run_pair(r, &e, i, &out->runs[i], pairs, err);
        else
            st = rose_offline_engine_run(&e, &r->work, rose_offline_seed(&r->work, false, i),
                                         "measure", &out->runs[i], err);
        if (st == ROSE_OK) out->n_runs++;
    }
    out->ready_s = e.load_s;
    out->resident_peak_bytes = rose_watch_peak_bytes(getpid());
    if (st == ROSE_OK) out->extra = rose_offline_engine_json(&e);
    if (st == ROSE_OK && o->record) rose_json_set(out->extra, "recorder_pairs", pairs);
    rose_json_decref(pairs);
    rose_offline_engine_close(&e);
    return st;
}

static rose_status run_one(rose_offline *r, const rose_offline_backend *b, rose_offline_result *out,
                           rose_err *err)
{
    snprintf(out->label, sizeof out->label, "%s", b->label);
    if (b->kind == ROSE_OFFLINE_IN_PROCESS) return run_in_process(r, out, err);
    if (b->kind == ROSE_OFFLINE_SERVER) return rose_offline_server(r, b, out, err);
    return rose_offline_script(r, b, out, err);
}

static void print_result(const rose_offline_result *res, const rose_json *row)
{
    const rose_offline_run *m =
        &res->runs[(res->n_runs - 1) / 2]; /* rose_offline_row has sorted the runs */
    fprintf(stderr, "%s: %.1f output tok/s (median of %u, %.1f to %.1f), %.3f s", res->label,
            rose_json_number_value(rose_json_get(row, "output_throughput_tps")), res->n_runs,
            rose_json_number_value(rose_json_get(row, "output_throughput_tps_min")),
            rose_json_number_value(rose_json_get(row, "output_throughput_tps_max")), m->total_s);
    if (m->ttft_p50 > 0) fprintf(stderr, ", TTFT p50 %.1f ms", m->ttft_p50 * 1e3);
    if (m->tpot_p50 > 0) fprintf(stderr, ", TPOT p50 %.3f ms", m->tpot_p50 * 1e3);
    if (res->ready_s > 0) fprintf(stderr, ", ready after %.2f s", res->ready_s);
    if (res->resident_peak_bytes > 0)
        fprintf(stderr, ", at most %.0f MiB", (double)res->resident_peak_bytes / 1048576);
    fputc('\n', stderr);
}

static rose_status write_results(const rose_offline *r, rose_err *err)
{
    if (r->dir[0] == '\0') return ROSE_OK;
    rose_status st = rose_results_write(r->root, r->dir, "offline_results.json", err);
    return st == ROSE_OK ? rose_offline_summary(r->root, r->dir, err) : st;
}

static void run_backend(rose_offline *r, const rose_offline_backend *b)
{
    static const char *const copied[] = {"output_throughput_tps", "output_throughput_tps_min",
                                         "output_throughput_tps_max"};
    rose_offline_result res = {0};
    rose_err err = {{0}};
    rose_json *results = rose_json_get(r->root, "results");
    if (run_one(r, b, &res, &err) != ROSE_OK) {
        snprintf(res.error, sizeof res.error, "%.300s", err.msg);
        fprintf(stderr, "roseinfer: %s: %s\n", b->label, err.msg);
        r->n_failed++;
    }
    rose_json *row = rose_offline_row(&res, &r->work, r->model_dir);
    if (res.error[0] == '\0') print_result(&res, row);
    for (int i = 0; i < 3 && rose_json_count(results) == 0; i++)
        rose_json_set(r->root, copied[i], rose_json_get(row, copied[i]));
    rose_json_append_new(results, row);
    if (write_results(r, &err) != ROSE_OK) fprintf(stderr, "roseinfer: %s\n", err.msg);
    rose_offline_result_free(&res);
}

static rose_json *meta_json(const rose_offline *r, int argc, char **argv)
{
    const rose_offline_opts *o = r->o;
    rose_json *more = rose_json_pack(
        "{s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:i, s:b, s:b}", "model",
        rose_results_string(r->model_dir), "workload", o->workload, "backends",
        rose_results_string(o->backends), "num_prompts", (int)r->work.n, "input_len",
        (int)o->input_len, "output_len", (int)o->output_len, "max_batch_size",
        (int)o->server.engine.opts.backend.max_seqs, "repeats", (int)o->repeats, "warmup",
        (int)o->warmup, "seed", (int64_t)o->seed, "temperature", (double)o->temperature, "top_p",
        (double)o->top_p, "top_k", (int)o->top_k, "ignore_eos", 1, "send_seed", o->send_seed);
    if (strcmp(o->workload, "uniform") != 0) {
        rose_json_set_new(more, "input_len", rose_json_null());
        rose_json_set_new(more, "output_len", rose_json_null());
    }
    return rose_results_meta_more(argc, argv, more);
}

static rose_status check_profile(const rose_offline_opts *o, rose_err *err)
{
    const bool on = strcmp(o->profile, "none") != 0;
    if (o->profile_only && !on)
        return rose_fail(err, ROSE_E_INVAL, "--profile-only needs --profile");
    if (on && o->output_dir == NULL)
        return rose_fail(err, ROSE_E_INVAL, "--profile needs --output-dir");
    return ROSE_OK;
}

static int run(const char *model_dir, rose_offline_opts *o, int argc, char **argv)
{
    static rose_offline r;
    rose_err err = {{0}};
    int rc = 1;
    r = (rose_offline){.o = o, .model_dir = model_dir};
    rose_status st = parse_backends(&r, &err);
    if (st == ROSE_OK) st = make_work(&r, &err);
    if (st == ROSE_OK && o->output_dir != NULL)
        st = rose_results_dir(o->output_dir, "offline", r.dir, sizeof r.dir, &err);
    if (o->server.engine.opts.max_queued < r.work.n) o->server.engine.opts.max_queued = r.work.n;
    if (st == ROSE_OK) {
        r.root = rose_json_pack("{s:o, s:[]}", "meta", meta_json(&r, argc, argv), "results");
        if (r.root == NULL) st = rose_fail(&err, ROSE_E_NOMEM, "out of memory");
    }
    if (st != ROSE_OK) {
        fprintf(stderr, "roseinfer: %s\n", err.msg);
        goto done;
    }
    for (uint32_t i = 0; i < r.n_backends && !*o->server.stop && !o->profile_only; i++)
        run_backend(&r, &r.backends[i]);
    if (strcmp(o->profile, "none") != 0 && !*o->server.stop)
        r.n_failed += rose_offline_profile(&r, argc, argv);
    if (o->profile_only)
        rc = 0;
    else if (r.dir[0] == '\0')
        rc = rose_results_emit(rose_json_incref(r.root), NULL, "offline");
    else
        rc = printf("%s/offline_results.json\n", r.dir) < 0;
    if (r.n_failed > 0) rc = 1;
done:
    rose_json_decref(r.root);
    rose_load_trace_free(&r.lengths);
    return rc;
}

/* ---- options ---- */

static size_t workload_rows(rose_offline_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_STRING("backends", &o->backends, "LIST",
                        "measured in turn: inproc (the engine in this process), roseinfer (through "
                        "its server, with the same engine options), vllm, sglang, trtllm, "
                        "transformers, llama (each by a script), url=NAME=http://HOST:PORT; "
                        "inproc=NAME and roseinfer=NAME are shown under that name"),
        ROSE_ROW_CHOICE(
            "workload", &o->workload, "uniform|nano-vllm",
            "uniform: --num-prompts of --input-len and --output-len; nano-vllm: the 256 sequences "
            "with lengths from 100 to 1024 that nano-vllm and mini-sglang publish"),
        ROSE_ROW_U32("num-prompts", &o->num_prompts, "N", 1, 65536,
                     "random prompts, all submitted at once"),
        ROSE_ROW_U32("input-len", &o->input_len, "N", 1, MAX_LEN, "tokens of each prompt"),
        ROSE_ROW_U32("output-len", &o->output_len, "N", 1, MAX_LEN,
                     "tokens to generate for each; end-of-sequence is ignored"),
        ROSE_ROW_U32("max-batch-size", &o->server.engine.opts.backend.max_seqs, "N", 1, 4096,
                     "most sequences in one step; another name of --max-num-seqs"),
        ROSE_ROW_FLOAT("temperature", &o->temperature, "T", 0, 100, "0 is greedy"),
        ROSE_ROW_FLOAT("top-p", &o->top_p, "P", 1e-6f, 1, "nucleus sampling"),
        ROSE_ROW_U32("top-k", &o->top_k, "K", 0, 0, "0 is off"),
        ROSE_ROW_U64("seed", &o->seed, "N", 0, 0, "of prompts and sampling"),
        ROSE_ROW_BOOL("send-seed", &o->send_seed,
                      "give each request of a server or script a seed of its own; some engines "
                      "sample more slowly then"),
        ROSE_ROW_U32("repeats", &o->repeats, "N", 1, 1000, "measured runs"),
        ROSE_ROW_U32("warmup", &o->warmup, "N", 0, 1000, "runs before them"),
        ROSE_ROW_STRING(
            "output-dir", &o->output_dir, "DIR",
            "write offline_TIME/offline_results.json, offline_summary.md and logs there",
            .unset = "JSON to standard output"),
        ROSE_ROW_FLAG("record", &o->record,
                      "inproc: repeat each measured run with the recorder on, to show what "
                      "recording costs (recorder_pairs of the row)"),
        ROSE_ROW_CHOICE("profile", &o->profile, "none|trace",
                        "after the measurements, run the engine in this process and our servers "
                        "once more with their recorder on; writes profile_manifest.json"),
        ROSE_ROW_FLAG("profile-only", &o->profile_only, "measure nothing"),
        ROSE_ROW_U32("profile-n", &o->profile_n, "N", 1, 65536,
                     "prompts of a profile: the first of the workload"),
        ROSE_ROW_STRING("drivers", &o->drivers, "DIR", "where the scripts are",
                        .unset = "beside this program"),
        ROSE_ROW_STRING("llama-model", &o->llama_model, "FILE", "the GGUF file for llama.cpp",
                        .unset = "MODEL"),
        ROSE_ROW_U32("driver-timeout-s", &o->timeout_s, "S", 1, 86400, "longest run of a script"),
        ROSE_ROW_STRING("roseinfer-args", &o->server.args[0], "ARGS",
                        "more arguments for our server, as one quoted word", .unset = "none"),
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

static size_t driver_rows(rose_offline_opts *o, rose_opt *rows)
{
    static const char *const names[2 * ROSE_OFFLINE_DRIVERS] = {
        "vllm-python", "sglang-python", "trtllm-python", "transformers-python", "llama-python",
        "vllm-args",   "sglang-args",   "trtllm-args",   "transformers-args",   "llama-args"};
    for (int i = 0; i < ROSE_OFFLINE_DRIVERS; i++) {
        rows[i] = (rose_opt)ROSE_ROW_STRING(names[i], &o->python[i], "COMMAND",
                                            "interpreter that has it");
        rows[ROSE_OFFLINE_DRIVERS + i] = (rose_opt)ROSE_ROW_STRING(
            names[ROSE_OFFLINE_DRIVERS + i], &o->args[i], "ARGS",
            "NAME=VALUE ... for its constructor, as one quoted word", .unset = "none");
    }
    return 2 * ROSE_OFFLINE_DRIVERS;
}

int rose_bench_offline(int argc, char **argv)
{
    static rose_offline_opts o;
    o = (rose_offline_opts){.num_prompts = 128,
                            .input_len = 256,
                            .output_len = 64,
                            .repeats = 3,
                            .warmup = 1,
                            .top_k = 50,
                            .temperature = 0.7f,
                            .top_p = 0.9f,
                            .timeout_s = 3600,
                            .workload = "uniform",
                            .send_seed = true,
                            .profile = "none",
                            .profile_n = 32,
                            .backends = "inproc"};
    for (int i = 0; i < ROSE_OFFLINE_DRIVERS; i++)
        o.python[i] = "python3";
    rose_server_flags_init(&o.server);
    o.server.stop = rose_stop_on_signals();
    rose_opt opts[38 + ROSE_ENGINE_FLAG_ROWS];
    size_t n = workload_rows(&o, opts);
    n += driver_rows(&o, opts + n);
    n += rose_engine_flags_rows(&o.server.engine, opts + n);
    const char *model;
    rose_err err = {{0}};
    const int rc = rose_opts_parse_one(
        "roseinfer bench offline MODEL [options]",
        "Token throughput on prompts of random token ids. Measures the engine in this process, "
        "unless\n--backends names others. Prints a line for each on standard error, and JSON on "
        "standard output\nor in --output-dir.",
        opts, n, argc, argv, &model);
    if (rc >= 0) return rc;
    if (check_profile(&o, &err) == ROSE_OK) return run(model, &o, argc, argv);
    fprintf(stderr, "roseinfer: %s\n", err.msg);
    return 2;
}
