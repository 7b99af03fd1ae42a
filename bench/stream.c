/* bench/stream.c - `roseinfer bench stream` splits the time to the first token into its parts, by
 * the server's own clock (`timings` of each reply), and compares the sum with what the client sees.
 *
 * The server's TTFT is the sum of its parts by definition. The rest of the client's TTFT is the
 * connection, the network and this client. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/results.h"
#include "bench/server.h"
#include "bench/workload.h"

typedef struct stream_opts {
    uint32_t n, input_len, output_len, repeats, warmup;
    float interval_ms;
    bool unique_prompts;
    const char *backend, *output_dir, *prompt_repeats;
    rose_request_flags req;
    rose_server_flags server;
} stream_opts;

enum {
    P_LAG,
    P_RECEIVE,
    P_WORKER,
    P_PARSE,
    P_TOKENIZE,
    P_QUEUE,
    P_PREFILL,
    P_SERVER_TTFT,
    P_TTFT,
    P_REST,
    P_TPOT,
    P_ITL,
    P_LATENCY,
    N_PARTS
};

static const struct {
    const char *key, *title;
} parts[N_PARTS] = {
    {"submit_lag", "submit lag (client)"},
    {"receive", "receive"},
    {"worker_wait", "wait for a tokenizer worker"},
    {"parse", "parse"},
    {"tokenize", "tokenize"},
    {"queue_wait", "queue wait"},
    {"prefill_to_first", "prefill -> first token"},
    {"server_ttft", "TTFT (server)"},
    {"ttft", "TTFT (client)"},
    {"ttft_outside_server", "TTFT outside the server"},
    {"tpot", "TPOT"},
    {"itl", "ITL"},
    {"latency", "latency (E2E)"},
};

typedef struct stream_run {
    const stream_opts *o;
    const char *model_dir;
    rose_prompts *prompts;
    rose_load_trace trace;
    rose_samples s[N_PARTS]; /* seconds */
    uint64_t tokens;
    double duration_s;
    uint32_t n_failed, n_without_times;
} stream_run;

static rose_status add_reply(stream_run *r, const rose_reply *p)
{
    double v[N_PARTS];
    const rose_server_times *t = &p->times;
    v[P_LAG] = (double)(p->start_ns - p->due_ns) * 1e-9;
    v[P_RECEIVE] = t->receive * 1e-3;
    v[P_WORKER] = t->worker_wait * 1e-3;
    v[P_PARSE] = t->parse * 1e-3;
    v[P_TOKENIZE] = t->tokenize * 1e-3;
    v[P_QUEUE] = t->queue_wait * 1e-3;
    v[P_PREFILL] = t->prefill_to_first * 1e-3;
    v[P_SERVER_TTFT] = t->ttft * 1e-3;
    v[P_TTFT] = (double)(p->first_ns - p->start_ns) * 1e-9;
    v[P_REST] = v[P_TTFT] - v[P_SERVER_TTFT];
    v[P_TPOT] = rose_reply_tpot(p);
    v[P_LATENCY] = (double)(p->last_ns - p->start_ns) * 1e-9;
    rose_status st = ROSE_OK;
    for (int i = 0; i < N_PARTS && st == ROSE_OK; i++) {
        if (i == P_ITL || (i == P_TPOT && p->n_tokens < 2)) continue;
        const bool server = (i >= P_RECEIVE && i <= P_SERVER_TTFT) || i == P_REST;
        if (server && (!p->has_times || t->ttft < 0)) continue;
        if (server && i != P_REST && v[i] < 0) continue; /* the server did not report this part */
        st = rose_samples_add(&r->s[i], v[i]);
    }
    if (st == ROSE_OK) st = rose_reply_gaps(&r->s[P_ITL], p);
    r->n_without_times += !p->has_times || t->ttft < 0;
    r->tokens += p->n_tokens;
    return st;
}

static rose_status repeat(stream_run *r, const rose_server *server, uint32_t i, bool keep,
                          rose_err *err)
{
    const stream_opts *o = r->o;
    const rose_workload w = {.prompts = r->prompts,
                             .trace = &r->trace,
                             .flags = &o->req,
                             .mode = o->unique_prompts ? ROSE_PROMPT_UNIQUE : ROSE_PROMPT_SHARED,
                             .label = keep ? "measure" : "warm-up",
                             .stop = o->server.stop};
    const rose_run_spec spec = {.scale = 1, .variant = o->unique_prompts ? i : 0};
    rose_run run = {0};
    uint64_t end = 0;
    const char *model = o->req.model_name != NULL ? o->req.model_name : server->model;
    rose_status st = rose_workload_run(&w, &server->url, model, &spec, &run, err);
    for (uint32_t k = 0; st == ROSE_OK && keep && k < run.n; k++) {
        const rose_reply *p = &run.replies[k];
        if (p->end_ns > end) end = p->end_ns;
        if (p->error[0] != '\0') {
            if (r->n_failed++ == 0) fprintf(stderr, "request %" PRIu32 ": %s\n", k, p->error);
        } else if ((st = add_reply(r, p)) != ROSE_OK) {
            rose_fail(err, st, "out of memory");
        }
    }
    if (end > run.start_ns) r->duration_s += (double)(end - run.start_ns) * 1e-9;
    rose_run_free(&run);
    return st;
}

/* Parses "1,1,1,64": the prompt of request i is longer by the i-th factor; after the last factor
 * comes the first again. */
static rose_status repeat_prompts(rose_load_trace *t, const char *text, rose_err *err)
{
    enum { MAX_FACTORS = 256, MAX_FACTOR = 65536 };
    uint32_t factor[MAX_FACTORS], n = 0;
    for (const char *p = text;;) {
        char *end;
        const unsigned long v = strtoul(p, &end, 10);
        if (end == p || *p == '-' || v < 1 || v > MAX_FACTOR || n == MAX_FACTORS ||
            (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL,
                             "--prompt-repeats '%s': expected up to %d numbers from 1 to %d, as "
                             "1,1,64",
                             text, MAX_FACTORS, MAX_FACTOR);
        factor[n++] = (uint32_t)v;
        if (*end == '\0') break;
        p = end + 1;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        const uint64_t len = (uint64_t)t->rows[i].n_in * factor[i % n];
        t->rows[i].n_in = len > UINT32_MAX ? UINT32_MAX : (uint32_t)len;
    }
    return ROSE_OK;
}

static rose_status prepare(stream_run *r, rose_server_spec *spec, rose_err *err)
{
    const stream_opts *o = r->o;
    rose_server_spec specs[ROSE_MAX_BACKENDS];
    uint32_t n;
    const rose_load_trace_gen g = {.n = o->n,
                                   .rate = 1,
                                   .burstiness = 1,
                                   .in_median = o->input_len,
                                   .out_median = o->output_len};
    rose_status st = rose_server_list_parse(o->backend, specs, &n, err);
    if (st == ROSE_OK && n != 1) st = rose_fail(err, ROSE_E_INVAL, "--backend: one server");
    if (st == ROSE_OK) st = rose_request_flags_check(&o->req, err);
    if (st == ROSE_OK) st = rose_prompts_open(&r->prompts, r->model_dir, err);
    if (st == ROSE_OK) st = rose_load_trace_generate(&r->trace, &g, err);
    if (st != ROSE_OK) return st;
    *spec = specs[0];
    for (uint32_t i = 0; i < r->trace.n; i++)
        r->trace.rows[i].at_s = i * (double)o->interval_ms * 1e-3;
    if (o->prompt_repeats != NULL &&
        (st = repeat_prompts(&r->trace, o->prompt_repeats, err)) != ROSE_OK)
        return st;
    const uint32_t context = rose_prompts_context(r->prompts);
    if (context >= 3 && rose_load_trace_clamp(&r->trace, context, 0, 0) > 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "--input-len %u (and its --prompt-repeats) and --output-len %u exceed the "
                         "context of %u",
                         o->input_len, o->output_len, context);
    return ROSE_OK;
}

static int report(stream_run *r, const char *label, int argc, char **argv)
{
    rose_json *times = rose_json_object();
    fprintf(stderr, "%-28s %10s %10s %10s %10s  ms\n", "", "p50", "p95", "p99", "max");
    for (int i = 0; i < N_PARTS; i++) {
        const rose_summary s = rose_summarise(r->s[i].v, r->s[i].n);
        char key[40];
        if (s.n > 0)
            fprintf(stderr, "%-28s %10.3f %10.3f %10.3f %10.3f\n", parts[i].title, s.p50 * 1e3,
                    s.p95 * 1e3, s.p99 * 1e3, s.max * 1e3);
        snprintf(key, sizeof key, "%s_ms", parts[i].key);
        rose_json_set_new(times, key, rose_summary_json(&s, 1e3));
    }
    const double tps = r->duration_s > 0 ? (double)r->tokens / r->duration_s : 0;
    fprintf(stderr, "%s: %.1f completion tok/s, %" PRIu32 " requests failed\n", label, tps,
            r->n_failed);
    if (r->n_without_times > 0)
        fprintf(stderr, "%s: %" PRIu32 " replies have no timings, so their parts are unknown\n",
                label, r->n_without_times);
    const rose_samples *rest = &r->s[P_REST]; /* the caller has sorted the values */
    if (rest->n > 0 && rest->v[0] < -1e-4)
        fprintf(stderr, "%s: a server TTFT exceeds the client's by %.3f ms: its clock is wrong\n",
                label, -rest->v[0] * 1e3);
    rose_json *root =
        rose_json_pack("{s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:f, s:i, s:f, s:o}", "meta",
                       rose_results_meta(argc, argv), "backend", label, "model",
                       rose_results_string(r->model_dir), "num_requests", (int)r->o->n, "repeats",
                       (int)r->o->repeats, "input_len", (int)r->o->input_len, "output_len",
                       (int)r->o->output_len, "interval_ms", (double)r->o->interval_ms,
                       "num_failed", (int)r->n_failed, "completion_tok_per_s", tps, "times", times);
    int rc = rose_results_emit(root, r->o->output_dir, "stream");
    return r->n_failed > 0 ? 1 : rc;
}

static int run(const char *model_dir, const stream_opts *o, int argc, char **argv)
{
    rose_err err = {{0}};
    static stream_run r;
    rose_server server = {0};
    rose_server_spec spec = {.driver = -1};
    int rc = 1;
    r = (stream_run){.o = o, .model_dir = model_dir};
    rose_status st = prepare(&r, &spec, &err);
    if (st == ROSE_OK)
        st = rose_server_start(&server, &spec, &o->server, model_dir, NULL, NULL, &err);
    for (uint32_t i = 0; i < o->warmup + o->repeats && st == ROSE_OK; i++) {
        st = repeat(&r, &server, i, i >= o->warmup, &err);
        if (st == ROSE_OK && *o->server.stop) st = rose_fail(&err, ROSE_E_CLOSED, "interrupted");
    }
    rose_server_stop(&server);
    if (st != ROSE_OK) fprintf(stderr, "roseinfer: %s\n", err.msg);
    if (st == ROSE_OK || r.s[P_TTFT].n > 0) /* the results include what was measured before a
                                             * failure */
        rc = report(&r, spec.label, argc, argv);
    if (st != ROSE_OK) rc = 1;
    for (int i = 0; i < N_PARTS; i++)
        rose_samples_free(&r.s[i]);
    rose_load_trace_free(&r.trace);
    rose_prompts_close(r.prompts);
    return rc;
}

int rose_bench_stream(int argc, char **argv)
{
    static stream_opts o;
    o = (stream_opts){.n = 32,
                      .input_len = 128,
                      .output_len = 32,
                      .repeats = 3,
                      .warmup = 1,
                      .unique_prompts = true,
                      .backend = "roseinfer"};
    rose_request_flags_init(&o.req);
    rose_server_flags_init(&o.server);
    o.server.stop = rose_stop_on_signals();
    rose_opt opts[12 + ROSE_REQUEST_ROWS + ROSE_SERVER_ROWS] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_U32("num-requests", &o.n, "N", 1, 100000, "requests of a repeat", .letter = 'n'),
        ROSE_ROW_U32("input-len", &o.input_len, "N", 1, 1u << 20, "prompt tokens"),
        ROSE_ROW_U32("output-len", &o.output_len, "N", 1, 1u << 20, "output tokens"),
        ROSE_ROW_STRING("prompt-repeats", &o.prompt_repeats, "LIST",
                        "factors on the prompt length, used by the requests in turn; 1,1,1,64 "
                        "makes every fourth prompt a long one",
                        .unset = "1"),
        ROSE_ROW_FLOAT("interval-ms", &o.interval_ms, "MS", 0, 1e6f,
                       "time between two requests; 0 sends all at once"),
        ROSE_ROW_BOOL(
            "unique-prompts", &o.unique_prompts,
            "give each request other text; otherwise all requests of all repeats have the same"),
        ROSE_ROW_U32("repeats", &o.repeats, "N", 1, 1000,
                     "measured repeats; the figures are over the requests of all of them"),
        ROSE_ROW_U32("warmup", &o.warmup, "N", 0, 1000, "repeats before them"),
        ROSE_ROW_STRING("backend", &o.backend, "NAME",
                        "roseinfer, or url=NAME=http://HOST:PORT of one"),
        ROSE_ROW_OUTPUT_DIR(&o.output_dir, "stream"),
    };
    size_t n = 11;
    n += rose_request_flags_rows(&o.req, opts + n);
    n += rose_server_flags_rows(&o.server, false, opts + n);
    const char *model;
    const int rc = rose_opts_parse_one(
        "roseinfer bench stream MODEL [options]",
        "Splits the time to the first token into its parts by the server's time stamps, and "
        "compares the\nsum with the time that the client measured.",
        opts, n, argc, argv, &model);
    return rc >= 0 ? rc : run(model, &o, argc, argv);
}
