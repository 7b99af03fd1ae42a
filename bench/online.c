/* bench/online.c - `roseinfer bench online` measures latency under load, of one server or of
 * several in turn.
 *
 * A server that fails gets a row with its error, and the next one is measured. The results are
 * written after every run. The first Ctrl-C ends the current run, keeps the results so far and
 * stops the server that we started. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/fds.h"
#include "base/json.h"
#include "bench/bench.h"
#include "bench/online_internal.h"

enum {
    WARM_VARIANT = 1 << 20,
    /* prompts of the first run of a goodput search; later runs count on from it */
    GOODPUT_VARIANT = 1 << 21,
    DEFAULT_CONTEXT = 2048
};

/* parses "0.4,0.8,1.6" */
static rose_status parse_list(const char *what, const char *text, double min, bool whole,
                              double *out, uint32_t *n, rose_err *err)
{
    *n = 0;
    if (text == NULL || strcmp(text, "none") == 0) return ROSE_OK;
    for (const char *p = text;;) {
        char *end;
        double v = strtod(p, &end);
        if (end == p || !(v >= min) || v > 1e6 || (whole && v != floor(v)) ||
            (*end != ',' && *end != '\0') || *n == ROSE_ONLINE_POINTS)
            return rose_fail(err, ROSE_E_INVAL,
                             "--%s '%s': expected up to %d %snumbers from %g, as 1,2", what, text,
                             ROSE_ONLINE_POINTS, whole ? "whole " : "", min);
        out[(*n)++] = v;
        if (*end == '\0') return ROSE_OK;
        p = end + 1;
    }
}

static rose_status load_trace(rose_online *r, rose_err *err)
{
    const rose_online_opts *o = r->o;
    const uint32_t asked = o->server.engine.opts.backend.max_model_len;
    uint32_t context = asked != 0 ? asked : rose_prompts_context(r->prompts);
    const bool ramp = strcmp(o->ramp, "none") != 0;
    const rose_load_trace_gen g = {.seed = o->req.seed,
                                   .n = o->n,
                                   .rate = (double)(ramp ? o->ramp_start : o->rate),
                                   .burstiness = (double)o->burstiness,
                                   .end_rate = ramp ? (double)o->ramp_end : 0,
                                   .exponential = strcmp(o->ramp, "exponential") == 0,
                                   .in_median = (double)o->in_median,
                                   .in_sigma = (double)o->in_sigma,
                                   .out_median = (double)o->out_median,
                                   .out_sigma = (double)o->out_sigma};
    rose_status st = o->trace != NULL ? rose_load_trace_read(&r->trace, o->trace, o->n, stderr, err)
                                      : rose_load_trace_generate(&r->trace, &g, err);
    if (st != ROSE_OK) return st;
    if (ramp) rose_load_trace_retime(&r->trace, &g);
    if (context == 0) {
        fprintf(stderr, "config.json gives no context length: %d assumed (--max-model-len)\n",
                DEFAULT_CONTEXT);
        context = DEFAULT_CONTEXT;
    }
    if (context < o->prompt_overhead + 3)
        return rose_fail(err, ROSE_E_INVAL, "a context of %u is too short", context);
    context -= o->prompt_overhead;
    uint32_t cut = rose_load_trace_clamp(&r->trace, context, o->max_input_len, o->max_output_len);
    if (r->trace.n_bad > 0)
        fprintf(stderr, "%s: %u bad lines left out, the first is line %u\n", o->trace,
                r->trace.n_bad, r->trace.first_bad);
    fprintf(stderr, "%s trace: %u requests over %.1f s, %u with lengths cut to a room of %u\n",
            r->trace.format, r->trace.n, r->trace.rows[r->trace.n - 1].at_s, cut, context);
    const rose_load_trace_gen warm = {.n = o->warmup_requests > 0 ? o->warmup_requests : 1,
                                      .rate = 1,
                                      .burstiness = 1,
                                      .in_median = o->warmup_input_len,
                                      .out_median = o->warmup_output_len};
    st = rose_load_trace_generate(&r->warm_trace, &warm, err);
    if (st == ROSE_OK) rose_load_trace_clamp(&r->warm_trace, context, 0, 0);
    return st;
}

static rose_prompt_mode prompt_mode(const rose_online *r)
{
    if (r->o->shared_prefix) return ROSE_PROMPT_SHARED;
    return r->o->trace_prefixes && r->trace.block_tokens > 0 ? ROSE_PROMPT_TRACE
                                                             : ROSE_PROMPT_UNIQUE;
}

/* Adds the parameters that the trace was drawn from, defaults included. For a trace from a file
 * there are none, except under a ramp: it draws new arrival times. */
static void add_generator(rose_json *meta, const rose_online_opts *o)
{
    const bool ramp = strcmp(o->ramp, "none") != 0, generated = o->trace == NULL;
    const struct {
        const char *key;
        float value;
        bool used;
    } all[] = {{"rate", o->rate, generated && !ramp},
               {"burstiness", o->burstiness, generated || ramp},
               {"input_median", o->in_median, generated},
               {"input_sigma", o->in_sigma, generated},
               {"output_median", o->out_median, generated},
               {"output_sigma", o->out_sigma, generated}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rose_json_set_new(meta, all[i].key,
                          all[i].used ? rose_json_real((double)all[i].value) : rose_json_null());
}

static rose_json *meta_json(const rose_online *r, int argc, char **argv)
{
    static const char *const mode_names[] = {[ROSE_PROMPT_UNIQUE] = "unique",
                                             [ROSE_PROMPT_SHARED] = "shared-prefix",
                                             [ROSE_PROMPT_TRACE] = "trace-prefixes"};
    const rose_online_opts *o = r->o;
    rose_json *more = rose_json_pack(
        "{s:o, s:o, s:o, s:i, s:I, s:f, s:f, s:i, s:b, s:b, s:s, s:s, s:i, s:i, s:i, s:i, s:i, "
        "s:s, s:o, s:s?, s:s, s:{}}",
        "model", rose_results_string(r->model_dir), "backends", rose_results_string(o->backends),
        "trace_path", rose_results_string(o->trace), "n", (int)o->n, "seed", (int64_t)o->req.seed,
        "temperature", (double)o->req.temperature, "top_p", (double)o->req.top_p, "top_k",
        (int)o->req.top_k, "ignore_eos", o->req.ignore_eos, "send_seed", o->req.send_seed,
        "endpoint", o->req.endpoint, "prompt_form", o->req.prompt_form, "max_output_len",
        (int)o->max_output_len, "max_input_len", (int)o->max_input_len, "warmup_requests",
        (int)o->warmup_requests, "warmup_input_len", (int)o->warmup_input_len, "warmup_output_len",
        (int)o->warmup_output_len, "trace_format", r->trace.format, "server_cpus",
        rose_results_string(o->server.server_cpus), "client_cpus", o->client_cpus, "prompts",
        mode_names[prompt_mode(r)], "server_versions");
    char gpu[256];
    rose_json *scales = rose_json_array();
    rose_backend_gpu_name(gpu, sizeof gpu);
    for (uint32_t i = 0; i < r->n_scales; i++)
        rose_json_append_new(scales, rose_json_real(r->scales[i]));
    rose_json_set_new(more, "scales", scales);
    rose_json_set_new(more, "ramp_up_strategy", rose_json_string(o->ramp));
    if (strcmp(o->ramp, "none") != 0) {
        rose_json_set_new(more, "ramp_up_start_rps", rose_json_real((double)o->ramp_start));
        rose_json_set_new(more, "ramp_up_end_rps", rose_json_real((double)o->ramp_end));
    }
    rose_json_set_new(more, "prompt_overhead_tokens", rose_json_integer(o->prompt_overhead));
    rose_json_set_new(more, "gpu", rose_results_string(gpu[0] != '\0' ? gpu : NULL));
    rose_json_set_new(more, "dtype", rose_json_null()); /* null until a server reports it */
    rose_json_set_new(more, "start_offset_s", rose_json_real(ROSE_START_OFFSET_S));
    rose_json_set_new(more, "timeout_ready_s", rose_json_integer(o->server.ready_timeout_s));
    rose_json_set_new(more, "max_inflight_requests", rose_json_null()); /* null: no limit */
    rose_json_set_new(more, "trace_bad_lines", rose_json_integer(r->trace.n_bad));
    rose_json_set_new(more, "cold_prefix", rose_json_boolean(o->cold_prefix));
    add_generator(more, o);
    return rose_results_meta_more(argc, argv, more);
}

/* ---- one backend ---- */

typedef struct target {
    const char *label, *model;
    rose_server *server;
    rose_json *entry;
} target;

static void print_run(const char *label, const rose_run *run, const rose_run_stats *s)
{
    char ttft[ROSE_SUMMARY_TEXT], tpot[ROSE_SUMMARY_TEXT], itl[ROSE_SUMMARY_TEXT],
        e2e[ROSE_SUMMARY_TEXT];
    char load[48], late[48] = ""; /* a closed loop has no due times */
    if (s->lateness.n > 0)
        snprintf(late, sizeof late, "; client late p99 %.*f ms",
                 rose_summary_digits(s->lateness.p99 * 1e3), s->lateness.p99 * 1e3);
    if (run->spec.concurrency > 0)
        snprintf(load, sizeof load, "%u at once", run->spec.concurrency);
    else
        snprintf(load, sizeof load, "scale %.4g (%.2f req/s)", run->spec.scale, s->offered_rps);
    fprintf(stderr,
            "%s, %s: %u of %u ok, %.1f tok/s; p50/p90/p99 ms: TTFT %s, TPOT %s, ITL %s, E2E %s%s\n",
            label, load, s->n_success, run->n,
            s->duration_s > 0 ? (double)s->tokens / s->duration_s : 0.0,
            rose_summary_text(&s->ttft, 1e3, ttft), rose_summary_text(&s->tpot, 1e3, tpot),
            rose_summary_text(&s->itl, 1e3, itl), rose_summary_text(&s->e2e, 1e3, e2e), late);
    const rose_watch_guesses *g = &s->guesses;
    if (g->known && g->drafts > 0 && g->draft_tokens > 0)
        fprintf(
            stderr,
            "%s: speculation: %.0f of %.0f guessed tokens accepted (%.1f %%), %.2f tokens a step "
            "with a guess\n",
            label, g->accepted, g->draft_tokens, 100 * g->accepted / g->draft_tokens,
            1 + g->accepted / g->drafts);
    else if (g->known)
        fprintf(stderr, "%s: speculation: no guess was checked\n", label);
    if (s->first_error != NULL)
        fprintf(stderr, "%s: %u requests failed; request %u: %s\n", label, s->n_error,
                s->first_error_at, s->first_error);
    if (s->n_usage_lies > 0)
        fprintf(stderr,
                "%s: in %u replies the usage figures contradict what arrived; the first is request "
                "%u\n",
                label, s->n_usage_lies, s->first_lie_at);
    if (s->n_uncounted > 0)
        fprintf(stderr,
                "%s: %u replies give no possible number of tokens, so their events are counted; "
                "the first is request %u\n",
                label, s->n_uncounted, s->first_uncounted_at);
    if (s->n_short > 0)
        fprintf(stderr, "%s: %u replies are shorter than asked for; the first is request %u\n",
                label, s->n_short, s->first_short_at);
    if (!s->tokens_counted && s->events != s->tokens)
        fprintf(stderr,
                "%s: %" PRIu64 " tokens in %" PRIu64 " events: ITL is the gap between events\n",
                label, s->tokens, s->events);
}

/* Adds timing.scale_wall_s: how long the run of each scale took, including the time to build its
 * requests. */
static void add_wall(const target *t, const rose_run_spec *spec, double wall_s)
{
    char scale[32];
    rose_json *timing = rose_json_get(t->entry, "timing");
    if (spec->concurrency > 0 || spec->search) return;
    snprintf(scale, sizeof scale, "%.6g", spec->scale);
    rose_json_set_new(rose_json_get(timing, "scale_wall_s"), scale, rose_json_real(wall_s));
}

/* The results of one run that the goodput search needs. */
typedef struct point {
    bool met;
    double offered_rps, done_rps; /* done: successful requests / (last end - first start) */
} point;

/* Runs once, records the result and prints it. Fails if the server died. out may be NULL. */
static rose_status measure(rose_online *r, const target *t, const rose_run_spec *spec, point *out,
                           rose_err *err)
{
    const rose_online_opts *o = r->o;
    rose_run run = {0};
    rose_run_stats s;
    char dead[320];
    const rose_prompt_mode mode = prompt_mode(r);
    const rose_workload w = {.prompts = r->prompts,
                             .trace = &r->trace,
                             .flags = &o->req,
                             .mode = mode,
                             .label = t->label,
                             .stop = r->o->server.stop};
    const rose_watch_guesses before = rose_watch_read_guesses(&t->server->url, o->req.api_key);
    const uint64_t start = rose_now_ns();
    rose_status st = rose_workload_run(&w, &t->server->url, t->model, spec, &run, err);
    if (st == ROSE_OK) add_wall(t, spec, (double)(rose_now_ns() - start) * 1e-9);
    if (st == ROSE_OK && (st = rose_run_stats_make(&run, &s)) != ROSE_OK)
        rose_fail(err, st, "out of memory");
    if (st == ROSE_OK) {
        const rose_watch_guesses after = rose_watch_read_guesses(&t->server->url, o->req.api_key);
        s.guesses = rose_watch_guesses_since(&before, &after);
        print_run(t->label, &run, &s);
        st = rose_online_add_run(&r->results, t->entry, t->label, t->server, &run, &s, err);
        if (st == ROSE_OK && o->vllm_results && !spec->search)
            st = rose_online_export_vllm(r, t->label, t->model, &run, &s, err);
        if (out != NULL)
            *out = (point){.met = rose_goodput_met(&r->limits, &s),
                           .offered_rps = s.offered_rps,
                           .done_rps = s.duration_s > 0 ? s.n_success / s.duration_s : 0};
    }
    rose_run_free(&run);
    if (st == ROSE_OK && s.n_success == 0) r->n_failed++; /* counted for the exit code */
    if (st == ROSE_OK && rose_server_dead(t->server, dead, sizeof dead))
        st = rose_fail(err, ROSE_E_CLOSED, "%s", dead);
    if (st == ROSE_OK && *r->o->server.stop) st = rose_fail(err, ROSE_E_CLOSED, "interrupted");
    return st;
}

/* Writes the result of the search. A few requests may keep the limits at any rate. So the results
 * also say how many requests per second the server completed, and whether a rate broke the
 * limits. */
static void report_goodput(const rose_online *r, const target *t, const point *best,
                           double broken_rps)
{
    rose_json_set_new(t->entry, "goodput_rps", rose_json_real(best->offered_rps));
    rose_json_set_new(t->entry, "goodput_done_rps", rose_json_real(best->done_rps));
    rose_json_set_new(t->entry, "goodput_broken_rps",
                      broken_rps > 0 ? rose_json_real(broken_rps) : rose_json_null());
    rose_json_set_new(t->entry, "goodput_limits", rose_json_string(r->o->goodput));
    fprintf(stderr, "%s: goodput %.3f req/s within %s (p99), %.3f req/s done\n", t->label,
            best->offered_rps, r->o->goodput, best->done_rps);
    if (!(broken_rps > 0))
        fprintf(stderr,
                "%s: no run broke the limits, so the highest rate was not found; try more requests "
                "(-n), more --goodput-steps or tighter limits\n",
                t->label);
    if (best->done_rps < 0.8 * best->offered_rps)
        fprintf(stderr,
                "%s: requests came faster than they were answered; %u requests are too few to show "
                "what this rate does in the long run\n",
                t->label, r->trace.n);
}

/* Searches the heaviest scale that keeps the limits. The search doubles or halves the rate until
 * one rate keeps the limits and one breaks them, then halves that interval, on a logarithmic
 * axis. */
static rose_status search_goodput(rose_online *r, const target *t, rose_err *err)
{
    double good = 0, bad = 0, broken_rps = 0, scale = r->n_scales > 0 ? r->scales[0] : 1;
    rose_status st = ROSE_OK;
    point best = {0};
    if (scale <= 0) scale = 1;
    for (uint32_t i = 0; i < r->o->goodput_steps && st == ROSE_OK; i++) {
        point p = {0};
        const rose_run_spec spec = {
            .scale = scale, .variant = r->o->cold_prefix ? GOODPUT_VARIANT + i : 0, .search = true};
        st = measure(r, t, &spec, &p, err);
        if (st != ROSE_OK) break;
        fprintf(stderr, "%s: goodput search, %.3f req/s: limits %s\n", t->label, p.offered_rps,
                p.met ? "kept" : "broken");
        if (p.met) {
            good = scale;
            best = p;
        } else {
            bad = scale;
            broken_rps = p.offered_rps;
        }
        scale = good > 0 && bad > 0 ? sqrt(good * bad) : p.met ? scale / 2 : scale * 2;
    }
    if (st == ROSE_OK) {
        report_goodput(r, t, &best, broken_rps);
        st = rose_online_write(&r->results, err);
    }
    return st;
}

static rose_status warm_up(rose_online *r, const target *t, double *took_s, rose_err *err)
{
    const rose_workload w = {.prompts = r->prompts,
                             .trace = &r->warm_trace,
                             .flags = &r->o->req,
                             .label = "warm-up",
                             .stop = r->o->server.stop};
    const rose_run_spec spec = {.concurrency = 1, .variant = WARM_VARIANT};
    rose_run run = {0};
    const uint64_t start = rose_now_ns();
    if (r->o->warmup_requests == 0) return ROSE_OK;
    rose_status st = rose_workload_run(&w, &t->server->url, t->model, &spec, &run, err);
    for (uint32_t i = 0; st == ROSE_OK && i < run.n; i++) {
        if (run.replies[i].error[0] != '\0')
            st = rose_fail(err, ROSE_E_CLOSED, "warm-up request %u: %s", i, run.replies[i].error);
    }
    rose_run_free(&run);
    *took_s = (double)(rose_now_ns() - start) * 1e-9;
    return st;
}

static rose_status run_points(rose_online *r, const target *t, rose_err *err)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < r->n_scales && st == ROSE_OK; i++) {
        const rose_run_spec spec = {.scale = r->scales[i], .variant = r->o->cold_prefix ? i : 0};
        st = measure(r, t, &spec, NULL, err);
    }
    for (uint32_t i = 0; i < r->n_conc && st == ROSE_OK; i++) {
        const rose_run_spec spec = {.concurrency = (uint32_t)r->conc[i],
                                    .variant = r->o->cold_prefix ? ROSE_ONLINE_POINTS + i : 0};
        st = measure(r, t, &spec, NULL, err);
    }
    if (st == ROSE_OK && r->o->goodput != NULL) st = search_goodput(r, t, err);
    return st;
}

static rose_status read_client_cpus(rose_online *r, rose_err *err)
{
    int cpus[ROSE_MAX_CPUS];
    uint32_t n;
    rose_status st = rose_cpu_list_parse(r->o->client_cpus, cpus, ROSE_MAX_CPUS, &n, err);
    CPU_ZERO(&r->client_set);
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++)
        CPU_SET((size_t)cpus[i], &r->client_set);
    sched_getaffinity(0, sizeof r->all_set, &r->all_set);
    return st;
}

/* Pins this client's thread only during a run, because a server started later would inherit the
 * pinning. */
static void pin_client(const rose_online *r, bool on)
{
    if (r->o->client_cpus != NULL)
        sched_setaffinity(0, sizeof r->all_set, on ? &r->client_set : &r->all_set);
}

static void run_backend(rose_online *r, const rose_server_spec *spec)
{
    rose_server server = {0};
    rose_err err = {{0}}, write_err = {{0}};
    double warm_s = 0;
    const uint64_t start = rose_now_ns();
    char began[32];
    const struct tm tm = rose_results_now();
    strftime(began, sizeof began, ROSE_RESULTS_ISO, &tm);
    rose_status st =
        rose_server_start(&server, spec, &r->o->server, r->model_dir, NULL, r->results.dir, &err);
    target t = {.label = spec->label, .server = &server};
    t.model = r->o->req.model_name != NULL ? r->o->req.model_name : server.model;
    t.entry = rose_online_add_backend(&r->results, spec, &server);
    if (st == ROSE_OK) {
        if (spec->driver >= 0)
            fprintf(stderr, "%s: ready after %.3f s\n", spec->label, server.ready_s);
        pin_client(r, true);
        st = warm_up(r, &t, &warm_s, &err);
    }
    const uint64_t warm_end = rose_now_ns();
    if (st == ROSE_OK) st = run_points(r, &t, &err);
    pin_client(r, false);
    rose_json *timing = rose_json_get(t.entry, "timing");
    rose_json_set_new(timing, "server_ready_s", rose_json_real(server.ready_s));
    rose_json_set_new(timing, "warmup_s", rose_json_real(warm_s));
    rose_results_set_wall(timing, "runs_s", warm_end);
    rose_server_stop(&server);
    rose_json_set_new(timing, "backend_start_time", rose_json_string(began));
    rose_results_set_time(timing, "backend_end_time");
    rose_results_set_wall(timing, "backend_wall_s", start);
    if (st != ROSE_OK) {
        r->n_failed++;
        fprintf(stderr, "roseinfer: %s: %s\n", spec->label, err.msg);
        st = rose_online_add_failure(&r->results, t.entry, spec->label, err.msg, &write_err);
    } else {
        st = rose_online_write(&r->results, &write_err);
    }
    if (st != ROSE_OK) fprintf(stderr, "roseinfer: %s\n", write_err.msg);
}

static rose_status prepare(rose_online *r, int argc, char **argv, rose_err *err)
{
    const rose_online_opts *o = r->o;
    rose_status st = rose_server_list_parse(o->backends, r->specs, &r->n_specs, err);
    if (st == ROSE_OK) st = parse_list("scales", o->scales, 0, false, r->scales, &r->n_scales, err);
    if (st == ROSE_OK)
        st = parse_list("concurrency", o->concurrency, 1, true, r->conc, &r->n_conc, err);
    if (st == ROSE_OK && r->n_scales + r->n_conc == 0 && o->goodput == NULL && !o->profile_only)
        st = rose_fail(err, ROSE_E_INVAL,
                       "nothing to measure: no --scales, --concurrency or --goodput");
    if (st == ROSE_OK) st = rose_request_flags_check(&o->req, err);
    if (st == ROSE_OK && o->goodput != NULL) st = rose_goodput_parse(o->goodput, &r->limits, err);
    if (st == ROSE_OK && o->client_cpus != NULL) st = read_client_cpus(r, err);
    if (st == ROSE_OK) st = rose_prompts_open(&r->prompts, r->model_dir, err);
    if (st == ROSE_OK) st = load_trace(r, err);
    if (st == ROSE_OK)
        st = rose_results_dir(o->output_dir, "online", r->results.dir, sizeof r->results.dir, err);
    if (st != ROSE_OK) return st;
    r->results.root = rose_json_pack("{s:o, s:[], s:{}}", "meta", meta_json(r, argc, argv),
                                     "summaries", "by_backend");
    if (r->results.root == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    return rose_online_write(&r->results, err);
}

static int run(const char *model_dir, const rose_online_opts *o, int argc, char **argv)
{
    static rose_online r;
    rose_err err = {{0}};
    int rc = 1;
    r = (rose_online){.o = o, .model_dir = model_dir};
    rose_fds_raise(UINT32_MAX); /* each request that runs at the same time needs a connection */
    if (prepare(&r, argc, argv, &err) != ROSE_OK) {
        fprintf(stderr, "roseinfer: %s\n", err.msg);
        goto done;
    }
    const uint64_t start = rose_now_ns();
    for (uint32_t i = 0; i < r.n_specs && !*o->server.stop && !o->profile_only; i++)
        run_backend(&r, &r.specs[i]);
    rose_results_set_time(rose_json_get(r.results.root, "meta"), "run_end_time");
    rose_results_set_wall(rose_json_get(r.results.root, "meta"), "wall_s", start);
    if (rose_online_write(&r.results, &err) != ROSE_OK)
        fprintf(stderr, "roseinfer: %s\n", err.msg);
    else
        rc = r.n_failed == 0 && !*o->server.stop ? 0 : 1;
    printf("%s/online_results.json\n", r.results.dir);
    fflush(stdout);
    fprintf(stderr, "figures: roseinfer bench plot %s\na page:  roseinfer bench report %s\n",
            r.results.dir, r.results.dir);
    /* The profile stage comes last, after the results of all measurements are written. */
    if (strcmp(o->profile, "none") != 0 && rose_online_profile(&r, argc, argv) > 0) rc = 1;
done:
    rose_json_decref(r.results.root);
    rose_load_trace_free(&r.trace);
    rose_load_trace_free(&r.warm_trace);
    rose_prompts_close(r.prompts);
    return rc;
}

int rose_bench_online(int argc, char **argv)
{
    static rose_online_opts o;
    const char *model_dir;
    int rc = rose_online_opts_parse(&o, argc, argv, &model_dir);
    if (rc >= 0) return rc;
    o.server.stop = rose_stop_on_signals();
    return run(model_dir, &o, argc, argv);
}
