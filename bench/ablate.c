/* bench/ablate.c - `roseinfer bench ablate` measures what each switch (bench/switches.c) is worth,
 * on an online and on an offline workload. Every measurement is a fresh process. Runs with the
 * switch on and off take turns (A B A B), so a drift of the machine's speed affects both. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/bench.h"
#include "bench/results.h"
#include "bench/server.h"
#include "bench/switches.h"
#include "bench/workload.h"

typedef struct ablate_opts {
    const char *switches, *output_dir;
    uint32_t pairs, n, input_len, output_len, concurrency, offline_prompts;
    float rate;
    bool online, offline;
    rose_request_flags req;
    rose_server_flags server;
} ablate_opts;

enum {
    M_TTFT,
    M_TTFT_P99,
    M_TPOT,
    M_ITL_P99,
    M_E2E,
    M_E2E_P99,
    M_ONLINE_S_PER_TOK,
    M_OFFLINE_S_PER_TOK,
    N_METRICS
};
static const struct {
    const char *key, *title;
} metrics[N_METRICS] = {
    {"online_ttft_p50_s", "online TTFT p50"},
    {"online_ttft_p99_s", "online TTFT p99"},
    {"online_tpot_p50_s", "online TPOT p50"},
    {"online_itl_p99_s", "online ITL p99"},
    {"online_e2e_p50_s", "online E2E p50"},
    {"online_e2e_p99_s", "online E2E p99"},
    {"online_s_per_token", "online time per token"},
    {"offline_s_per_token", "offline time per token"},
};

typedef struct ablation {
    const ablate_opts *o;
    const char *model_dir;
    rose_buf engine_args;     /* owned; the user's engine options as text, passed to both sides
                               * (switch on and off) */
    rose_server_flags server; /* how to start the server, without the user's engine options */
    rose_prompts *prompts;
    rose_load_trace_gen plain;
    rose_load_trace trace; /* the requests of the switch that is being measured */
    rose_prompt_mode mode;
    bool at_once;
    const volatile sig_atomic_t *stop;
    rose_json *root; /* owned; written to the folder after every switch */
    char dir[4096];  /* "" = no folder: the JSON goes to standard output at the end */
    double on[N_METRICS][ROSE_MAX_PAIRS], off[N_METRICS][ROSE_MAX_PAIRS];
} ablation;

static rose_status measure_online(ablation *a, const rose_switch *sw, const char *flag,
                                  uint32_t pair, double out[N_METRICS], rose_err *err)
{
    const rose_server_spec spec = {.label = "roseinfer", .driver = 0};
    const rose_workload w = {.prompts = a->prompts,
                             .trace = &a->trace,
                             .flags = &a->o->req,
                             .mode = a->mode,
                             .label = sw->name,
                             .stop = a->stop};
    const rose_run_spec warm = {.concurrency = 1, .n = 4, .variant = 1 << 20};
    const rose_run_spec measured = {
        .scale = a->at_once ? 0 : 1, .concurrency = a->o->concurrency, .variant = pair};
    rose_server server = {0};
    rose_run run = {0};
    rose_run_stats s;
    rose_status st = rose_server_start(&server, &spec, &a->server, a->model_dir, flag, NULL, err);
    const char *model = a->o->req.model_name != NULL ? a->o->req.model_name : server.model;
    if (st == ROSE_OK && sw->load != ROSE_LOAD_COLD)
        st = rose_workload_run(&w, &server.url, model, &warm, &run, err);
    rose_run_free(&run);
    if (st == ROSE_OK) st = rose_workload_run(&w, &server.url, model, &measured, &run, err);
    if (st == ROSE_OK && (st = rose_run_stats_make(&run, &s)) != ROSE_OK)
        rose_fail(err, st, "out of memory");
    if (st == ROSE_OK && s.n_error > 0)
        st = rose_fail(err, ROSE_E_CLOSED, "request %" PRIu32 ": %s", s.first_error_at,
                       s.first_error);
    if (st == ROSE_OK) {
        out[M_TTFT] = s.ttft.p50;
        out[M_TTFT_P99] = s.ttft.p99;
        out[M_TPOT] = s.tpot.p50;
        out[M_ITL_P99] = s.itl.p99;
        out[M_E2E] = s.e2e.p50;
        out[M_E2E_P99] = s.e2e.p99;
        out[M_ONLINE_S_PER_TOK] = s.duration_s / (double)s.tokens;
    }
    rose_run_free(&run);
    rose_server_stop(&server);
    return st;
}

/* Runs `bench offline` in a process of its own, with the same sampling options. The JSON and the
 * error messages of that process come through two temporary files. */
static rose_status measure_offline(ablation *a, const char *flag, double *out, rose_err *err)
{
    const rose_request_flags *f = &a->o->req;
    char path[] = "/tmp/rose-ablate-XXXXXX", log[] = "/tmp/rose-ablate-XXXXXX";
    char fixed[320], why[256];
    char *argv[ROSE_PROC_MAX_ARGS + 1] = {(char *)(uintptr_t)rose_self_path(), (char[]){"offline"},
                                          (char *)(uintptr_t)a->model_dir};
    uint32_t n_args = 3;
    rose_buf words = {0}, more = {0};
    rose_proc p = {0};
    rose_buf text = {0};
    rose_json_error e;
    rose_json *o = NULL;
    const int fd = mkstemp(path), log_fd = mkstemp(log);
    rose_status st = ROSE_OK;
    if (fd < 0 || log_fd < 0) {
        st = rose_fail(err, ROSE_E_IO, "cannot write to /tmp");
        goto done;
    }
    snprintf(fixed, sizeof fixed,
             "--repeats 1 --num-prompts %" PRIu32 " --input-len %" PRIu32 " --output-len %" PRIu32
             " --temperature %.9g --top-p %.9g --top-k %" PRIu32 " --seed %" PRIu64,
             a->o->offline_prompts, a->o->input_len, a->o->output_len, (double)f->temperature,
             (double)f->top_p, f->top_k, f->seed);
    st = rose_args_split(fixed, &words, argv, &n_args, err);
    if (st == ROSE_OK) st = rose_args_split(flag, &more, argv, &n_args, err);
    argv[n_args] = NULL;
    if (st == ROSE_OK) st = rose_proc_start(&p, argv, path, log, NULL, 0, err);
    if (st == ROSE_OK && !rose_proc_wait(&p)) {
        rose_proc_log_why(log, why, sizeof why);
        st = rose_fail(err, ROSE_E_CLOSED, "bench offline %s failed: %s", flag, why);
    }
    if (st == ROSE_OK) st = rose_file_read(&text, path, 1u << 24, err);
    if (st == ROSE_OK && rose_json_parse(&o, text.data, text.len, 0, &e) != ROSE_OK)
        st = rose_fail(err, ROSE_E_FORMAT, "bench offline %s: no JSON", flag);
    double tps = rose_json_number_value(rose_json_get(o, "output_throughput_tps"));
    if (st == ROSE_OK && !(tps > 0))
        st = rose_fail(err, ROSE_E_FORMAT, "bench offline %s: no throughput", flag);
    if (st == ROSE_OK) *out = 1 / tps;
done:
    rose_json_decref(o);
    rose_buf_free(&text);
    rose_buf_free(&words);
    rose_buf_free(&more);
    if (fd >= 0) close(fd), unlink(path);
    if (log_fd >= 0) close(log_fd), unlink(log);
    return st;
}

static rose_status measure_side(ablation *a, const rose_switch *sw, bool on, uint32_t pair,
                                rose_err *err)
{
    char flag[1024];
    const char *more = a->engine_args.len > 0 ? a->engine_args.data : "";
    double v[N_METRICS] = {0};
    rose_status st = ROSE_OK;
    /* The last of equal options counts. So an option for all rows, such as --no-speculation, does
     * not override the switch that is measured. */
    if (snprintf(flag, sizeof flag, "%s %s %s", sw->both, more, on ? sw->on : sw->off) >=
        (int)sizeof flag)
        return rose_fail(err, ROSE_E_INVAL, "the engine options are too long");
    if (a->o->online) st = measure_online(a, sw, flag, pair, v, err);
    if (st == ROSE_OK && a->o->offline && sw->engine)
        st = measure_offline(a, flag, &v[M_OFFLINE_S_PER_TOK], err);
    for (int m = 0; m < N_METRICS; m++)
        (on ? a->on : a->off)[m][pair] = v[m];
    return st;
}

static void save(const ablation *a)
{
    rose_err err;
    if (a->dir[0] != '\0' &&
        rose_results_write(a->root, a->dir, "ablate_results.json", &err) != ROSE_OK)
        fprintf(stderr, "roseinfer: %s\n", err.msg);
}

static rose_json *list_json(const double *v, uint32_t n)
{
    rose_json *list = rose_json_array();
    for (uint32_t i = 0; i < n; i++)
        rose_json_append_new(list, rose_json_real(v[i]));
    return list;
}

static rose_json *report_switch(const ablation *a, const rose_switch *sw, uint32_t pairs)
{
    rose_json *all = rose_json_object();
    for (int m = 0; m < N_METRICS; m++) {
        if (!(a->on[m][0] > 0) || !(a->off[m][0] > 0)) continue; /* the metric was not measured */
        const rose_verdict v = rose_verdict_make(a->on[m], a->off[m], pairs);
        char verdict[64] = "no change";
        if (v.changed)
            snprintf(verdict, sizeof verdict, "on is %.3fx %s", v.ratio > 1 ? v.ratio : 1 / v.ratio,
                     v.ratio > 1 ? "faster" : "slower");
        fprintf(stderr, "%-22s %-24s off/on %.3f (%.3f to %.3f, noise %.3f): %s\n", sw->name,
                metrics[m].title, v.ratio, v.min, v.max, v.noise, verdict);
        rose_json_set_new(all, metrics[m].key,
                          rose_json_pack("{s:f, s:f, s:f, s:f, s:b, s:s, s:o, s:o}", "off_over_on",
                                         v.ratio, "min", v.min, "max", v.max, "noise", v.noise,
                                         "changed", (int)v.changed, "verdict", verdict, "on",
                                         list_json(a->on[m], pairs), "off",
                                         list_json(a->off[m], pairs)));
    }
    rose_json_set_new(all, "setting",
                      rose_json_pack("{s:s, s:s, s:s, s:s}", "on", sw->on, "off", sw->off, "both",
                                     sw->both, "workload", rose_switch_load_name(sw->load)));
    return all;
}

/* Measures one switch. If that fails, its entry in the results holds the error and the pairs that
 * were complete; the next switch still runs. */
static bool ablate_switch(ablation *a, const rose_switch *sw, rose_json *results)
{
    rose_err err = {{0}};
    memset(a->on, 0, sizeof a->on);
    memset(a->off, 0, sizeof a->off);
    rose_status st = rose_switch_trace(sw->load, &a->plain, rose_prompts_context(a->prompts),
                                       &a->trace, &a->mode, &a->at_once, &err);
    uint32_t pairs = 0;
    while (pairs < a->o->pairs && st == ROSE_OK) {
        st = measure_side(a, sw, true, pairs, &err);
        if (st == ROSE_OK) st = measure_side(a, sw, false, pairs, &err);
        if (st == ROSE_OK && ++pairs < a->o->pairs && *a->stop)
            st = rose_fail(&err, ROSE_E_CLOSED, "interrupted");
    }
    rose_load_trace_free(&a->trace);
    if (st != ROSE_OK) {
        rose_json *entry = pairs > 0 ? report_switch(a, sw, pairs) : rose_json_object();
        fprintf(stderr, "roseinfer: %s: %s (%" PRIu32 " pairs are kept)\n", sw->name, err.msg,
                pairs);
        rose_json_set_new(entry, "error", rose_results_string(err.msg));
        rose_json_set_new(entry, "pairs", rose_json_integer(pairs));
        rose_json_set_new(results, sw->name, entry);
    } else {
        rose_json_set_new(results, sw->name, report_switch(a, sw, pairs));
    }
    save(a);
    return st == ROSE_OK;
}

static void print_cell(const rose_json *metric)
{
    double ratio = rose_json_number_value(rose_json_get(metric, "off_over_on"));
    if (metric == NULL)
        fprintf(stderr, " - |");
    else if (rose_json_is_true(rose_json_get(metric, "changed")))
        fprintf(stderr, " **%.2f** |", ratio);
    else
        fprintf(stderr, " %.2f |", ratio);
}

/* Prints all results as one Markdown table, which a document can take over. */
static void print_table(const rose_json *results)
{
    const char *name;
    rose_json *sw;
    fprintf(stderr,
            "\noff / on: over 1, on is faster; bold: outside the noise\n\n| switch | on | off "
            "| workload |");
    for (int m = 0; m < N_METRICS; m++)
        fprintf(stderr, " %s |", metrics[m].title);
    fprintf(stderr, "\n|---|---|---|---|");
    for (int m = 0; m < N_METRICS; m++)
        fprintf(stderr, "---|");
    fprintf(stderr, "\n");
    rose_json_each (results, name, sw) {
        const rose_json *setting = rose_json_get(sw, "setting");
        if (setting == NULL) {
            fprintf(stderr, "| %s | not measured: %s |\n", name,
                    rose_json_text(rose_json_get(sw, "error")));
            continue;
        }
        fprintf(stderr, "| %s | `%s` | `%s` | %s |", name,
                rose_json_text(rose_json_get(setting, "on")),
                rose_json_text(rose_json_get(setting, "off")),
                rose_json_text(rose_json_get(setting, "workload")));
        for (int m = 0; m < N_METRICS; m++)
            print_cell(rose_json_get(sw, metrics[m].key));
        fprintf(stderr, "\n");
    }
}

/* Measures every switch of the list, or all that are known. Returns how many failed, or -1 for a
 * bad list, of which it measured nothing. */
static int ablate_all(ablation *a, rose_json *results)
{
    int failed = 0;
    rose_err err;
    const rose_switch *sw;
    const char *list = a->o->switches;
    for (const char *p = list; p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL) {
        if (rose_switch_find(p, strcspn(p, ",")) != NULL) continue;
        fprintf(stderr,
                "roseinfer: --switches: unknown switch '%.*s'; known are:", (int)strcspn(p, ","),
                p);
        for (uint32_t i = 0; (sw = rose_switch_at(i)) != NULL; i++)
            fprintf(stderr, " %s", sw->name);
        fprintf(stderr, "\n");
        return -1;
    }
    if (a->o->output_dir != NULL &&
        rose_results_dir(a->o->output_dir, "ablate", a->dir, sizeof a->dir, &err) != ROSE_OK) {
        fprintf(stderr, "roseinfer: %s\n", err.msg);
        return -1;
    }
    for (uint32_t i = 0; list == NULL && !*a->stop && (sw = rose_switch_at(i)) != NULL; i++)
        failed += !ablate_switch(a, sw, results);
    for (const char *p = list; p != NULL && !*a->stop;
         p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL)
        failed += !ablate_switch(a, rose_switch_find(p, strcspn(p, ",")), results);
    print_table(results);
    return failed;
}

static int run(const char *model_dir, const ablate_opts *o, int argc, char **argv)
{
    static ablation a;
    rose_err err = {{0}};
    const rose_load_trace_gen plain = {.seed = o->req.seed,
                                       .n = o->n,
                                       .rate = (double)o->rate,
                                       .burstiness = 1,
                                       .in_median = o->input_len,
                                       .out_median = o->output_len};
    int rc = 1;
    a = (ablation){.o = o, .model_dir = model_dir, .plain = plain, .stop = o->server.stop};
    rose_json *results = rose_json_object();
    a.root =
        rose_json_pack("{s:o, s:o, s:i, s:o}", "meta", rose_results_meta(argc, argv), "model",
                       rose_results_string(model_dir), "pairs", (int)o->pairs, "switches", results);
    if (a.root == NULL) return rose_die(&(rose_err){"out of memory"});
    rose_status st = rose_request_flags_check(&o->req, &err);
    if (st == ROSE_OK) st = rose_engine_args(&o->server.engine, &a.engine_args, &err);
    a.server = o->server;
    rose_engine_flags_init(&a.server.engine);
    if (st == ROSE_OK) st = rose_prompts_open(&a.prompts, model_dir, &err);
    if (st != ROSE_OK) {
        fprintf(stderr, "roseinfer: %s\n", err.msg);
        goto done;
    }
    int failed = ablate_all(&a, results);
    if (failed < 0) {
        rc = 2;
        goto done;
    }
    if (a.dir[0] == '\0') {
        rc = rose_results_emit(a.root, NULL, "ablate");
        a.root = NULL;
    } else {
        rc = 0;
        fprintf(stderr, "wrote %s/ablate_results.json\n", a.dir);
    }
    if (failed > 0 || *a.stop) rc = 1;
done:
    rose_json_decref(a.root);
    rose_prompts_close(a.prompts);
    rose_buf_free(&a.engine_args);
    return rc;
}

int rose_bench_ablate(int argc, char **argv)
{
    static ablate_opts o;
    o = (ablate_opts){.pairs = 5,
                      .n = 64,
                      .input_len = 128,
                      .output_len = 32,
                      .offline_prompts = 64,
                      .rate = 20,
                      .online = true,
                      .offline = true};
    rose_request_flags_init(&o.req);
    rose_server_flags_init(&o.server);
    o.server.stop = rose_stop_on_signals();
    rose_opt opts[13 + ROSE_REQUEST_ROWS + ROSE_SERVER_ROWS] = {
        {.name = "Pairs", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_STRING("switches", &o.switches, "LIST",
                        "names of the switches to measure, with commas between",
                        .unset = "all that are known"),
        ROSE_ROW_U32("pairs", &o.pairs, "N", 1, ROSE_MAX_PAIRS,
                     "pairs of runs for each switch, on and off in turn; with fewer than 3 the "
                     "verdict is always no change"),
        ROSE_ROW_BOOL("online", &o.online, "measure through the server"),
        ROSE_ROW_BOOL("offline", &o.offline,
                      "measure the engine alone, for switches of the engine"),
        ROSE_ROW_U32("num-requests", &o.n, "N", 1, 100000, "requests of an online run",
                     .letter = 'n'),
        ROSE_ROW_FLOAT("rate", &o.rate, "R", 1e-3f, 1e6f, "requests per second, Poisson"),
        ROSE_ROW_U32("concurrency", &o.concurrency, "N", 0, 65536,
                     "closed loop with N requests at a time", .unset = "open loop"),
        ROSE_ROW_U32("num-prompts", &o.offline_prompts, "N", 1, 65536, "prompts of an offline run"),
        ROSE_ROW_U32("input-len", &o.input_len, "N", 1, 1u << 20, "prompt tokens"),
        ROSE_ROW_U32("output-len", &o.output_len, "N", 1, 1u << 20, "output tokens"),
        ROSE_ROW_OUTPUT_DIR(&o.output_dir, "ablate"),
    };
    size_t n = 12;
    n += rose_request_flags_rows(&o.req, opts + n);
    n += rose_server_flags_rows(&o.server, true, opts + n);
    const char *model;
    const int rc =
        rose_opts_parse_one("roseinfer bench ablate MODEL [options]",
                            "What each switch is worth: pairs of runs with it on and off, in turn, "
                            "each in a fresh process.\nA ratio over 1 means that `on` is faster; a "
                            "ratio within the noise is reported as `no change`.\n"
                            "Prompts are random words. Those of the row speculation are English "
                            "sentences, one sequence at a\ntime: half of them ask for the same "
                            "text once more, the others for more text. Use a trained\nmodel and "
                            "--output-len 128.",
                            opts, n, argc, argv, &model);
    return rc >= 0 ? rc : run(model, &o, argc, argv);
}
