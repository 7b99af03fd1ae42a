/* bench/start.c - `roseinfer bench start` measures how long a fresh server takes from exec until it
 * is ready, and until its first token arrives. /ready is asked every millisecond. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/results.h"
#include "bench/server.h"
#include "bench/workload.h"

typedef struct start_opts {
    uint32_t repeats, input_len;
    const char *backend, *output_dir;
    rose_request_flags req;
    rose_server_flags server;
} start_opts;

typedef struct start_run {
    const start_opts *o;
    const char *model_dir;
    rose_server_spec spec;
    rose_prompts *prompts;
    rose_load_trace trace; /* one request of one token */
    rose_samples ready, first;
} start_run;

static rose_status start_once(start_run *r, uint32_t i, rose_err *err)
{
    rose_server server = {0};
    rose_run run = {0};
    const rose_workload w = {
        .prompts = r->prompts, .trace = &r->trace, .flags = &r->o->req, .label = "start"};
    const rose_run_spec spec = {.concurrency = 1, .variant = i};
    rose_status st =
        rose_server_start(&server, &r->spec, &r->o->server, r->model_dir, NULL, NULL, err);
    if (st == ROSE_OK) {
        const char *model = r->o->req.model_name != NULL ? r->o->req.model_name : server.model;
        st = rose_workload_run(&w, &server.url, model, &spec, &run, err);
    }
    if (st == ROSE_OK && run.replies[0].error[0] != '\0')
        st = rose_fail(err, ROSE_E_CLOSED, "the first request: %s", run.replies[0].error);
    if (st == ROSE_OK) {
        const double first = (double)(run.replies[0].first_ns - server.start_ns) * 1e-9;
        fprintf(stderr, "start %u: ready after %.1f ms, first token after %.1f ms\n", i,
                server.ready_s * 1e3, first * 1e3);
        if (rose_samples_add(&r->ready, server.ready_s) != ROSE_OK ||
            rose_samples_add(&r->first, first) != ROSE_OK)
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    rose_run_free(&run);
    rose_server_stop(&server);
    return st;
}

static rose_status prepare(start_run *r, rose_err *err)
{
    rose_server_spec specs[ROSE_MAX_BACKENDS];
    uint32_t n;
    const rose_load_trace_gen g = {
        .n = 1, .rate = 1, .burstiness = 1, .in_median = r->o->input_len, .out_median = 1};
    rose_status st = rose_server_list_parse(r->o->backend, specs, &n, err);
    if (st == ROSE_OK && (n != 1 || specs[0].driver < 0))
        st = rose_fail(err, ROSE_E_INVAL, "--backend: one server that is started here");
    if (st != ROSE_OK) return st;
    r->spec = specs[0];
    if ((st = rose_request_flags_check(&r->o->req, err)) != ROSE_OK) return st;
    if ((st = rose_prompts_open(&r->prompts, r->model_dir, err)) != ROSE_OK) return st;
    if ((st = rose_load_trace_generate(&r->trace, &g, err)) != ROSE_OK) return st;
    const uint32_t context = rose_prompts_context(r->prompts);
    if (context >= 3) rose_load_trace_clamp(&r->trace, context, 0, 0);
    return ROSE_OK;
}

static int run(const char *model_dir, const start_opts *o, int argc, char **argv)
{
    rose_err err = {{0}};
    start_run r = {.o = o, .model_dir = model_dir};
    int rc = 1;
    rose_status st = prepare(&r, &err);
    for (uint32_t i = 0; i < o->repeats && st == ROSE_OK; i++)
        st = start_once(&r, i, &err);
    if (st != ROSE_OK) fprintf(stderr, "roseinfer: %s\n", err.msg);
    /* the results include the starts that were measured before a start failed */
    if (st == ROSE_OK || r.ready.n > 0) {
        const rose_summary ready = rose_summarise(r.ready.v, r.ready.n),
                           first = rose_summarise(r.first.v, r.first.n);
        fprintf(stderr, "%s: ready p50 %.1f ms (%.1f to %.1f), first token ", r.spec.label,
                ready.p50 * 1e3, ready.min * 1e3, ready.max * 1e3);
        if (first.n > 0)
            fprintf(stderr, "p50 %.1f ms (%.1f to %.1f)\n", first.p50 * 1e3, first.min * 1e3,
                    first.max * 1e3);
        else
            fputs("-\n", stderr);
        rose_json *meta = rose_results_meta(argc, argv);
        rc = rose_results_emit(rose_json_pack("{s:o, s:s, s:o, s:o, s:o}", "meta", meta, "backend",
                                              r.spec.label, "model", rose_results_string(model_dir),
                                              "ready_ms", rose_summary_json(&ready, 1e3),
                                              "first_token_ms", rose_summary_json(&first, 1e3)),
                               o->output_dir, "start");
    }
    if (st != ROSE_OK) rc = 1;
    rose_samples_free(&r.ready);
    rose_samples_free(&r.first);
    rose_load_trace_free(&r.trace);
    rose_prompts_close(r.prompts);
    return rc;
}

int rose_bench_start(int argc, char **argv)
{
    static start_opts o;
    o = (start_opts){.repeats = 5, .input_len = 16, .backend = "roseinfer"};
    rose_request_flags_init(&o.req);
    rose_server_flags_init(&o.server);
    rose_opt opts[8 + ROSE_REQUEST_ROWS + ROSE_SERVER_ROWS] = {
        {.name = "Starts", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_U32("repeats", &o.repeats, "N", 1, 1000, "number of starts, each a fresh process"),
        ROSE_ROW_U32("input-len", &o.input_len, "N", 1, 1u << 20,
                     "prompt tokens of the first request"),
        ROSE_ROW_STRING("backend", &o.backend, "NAME",
                        "roseinfer, vllm, sglang, trtllm, llama, llama-python or transformers"),
        ROSE_ROW_OUTPUT_DIR(&o.output_dir, "start"),
    };
    size_t n = 5;
    n += rose_request_flags_rows(&o.req, opts + n);
    n += rose_server_flags_rows(&o.server, false, opts + n);
    const char *model;
    const int rc = rose_opts_parse_one(
        "roseinfer bench start MODEL [options]",
        "Time from exec until a fresh server is ready, and until its first token arrives. After "
        "the first\nstart the model's files are in the page cache.",
        opts, n, argc, argv, &model);
    return rc >= 0 ? rc : run(model, &o, argc, argv);
}
