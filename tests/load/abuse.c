/* tests/load/abuse.c - `load abuse` sends thousands of random clients to a server, most of them
 * rude, and then checks that they left nothing behind. Event i of a seed is always the same
 * request; only which events run at the same time varies.
 *
 * Before the events, three plain requests are sent and their replies kept. After the events these
 * must hold: nothing runs or waits; all KV pages are free (cached ones count as free); no more
 * descriptors are open than on the fresh server; resident memory has grown little since a warm-up
 * with the same kinds of events; the three requests get the same choices again. Every event must
 * have ended in a way that is right for its kind. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "bench/prompts.h"
#include "bench/results.h"
#include "bench/watch.h"
#include "load/abuse_internal.h"
#include "load/load.h"

enum { N_PROBES = 3, MAX_SHOWN = 10, SETTLE_S = 60, MAX_KINDS = 64, MAX_BODY_SIZE = 65536 };

/* Small queues and short time-outs, so that every possible fate of a request occurs. */
static const char server_args[] =
    "--max-num-seqs 24 --num-kv-pages 32 --max-num-queued-reqs 96 --max-body-size 65536 "
    "--header-timeout-ms 400 "
    "--body-timeout-ms 400 --write-timeout-ms 400 --idle-timeout-ms 3000 --max-pending-bytes 16384 "
    "--log-level error";

typedef struct abuse_opts {
    uint32_t events, warmup, connections, rss_growth_mib, timeout_s;
    const char *backend, *output_dir;
    uint64_t seed;
    bool light;
    rose_server_flags server;
} abuse_opts;

typedef struct kind_count {
    uint32_t n, wrong, ends[8];
} kind_count;

typedef struct abuse_run {
    const abuse_opts *o;
    rose_abuse_env env;
    rose_server server;
    rose_visitors *visitors;
    kind_count kinds[MAX_KINDS];
    uint32_t n_wrong, n_done, n_refused;
    rose_buf probe; /* the choices that the last three plain requests got */
    rose_watch fresh, warm, end;
    double fds_fresh;
    double duration_s;
} abuse_run;

/* ---- events ---- */

static void show_wrong(const rose_visit *v)
{
    fprintf(stderr, "wrong: '%s' ended as %s, statuses", rose_abuse_kinds[v->plan.kind].name,
            rose_visit_end_name(v->end));
    for (uint32_t i = 0; i < v->n_replies; i++)
        fprintf(stderr, " %d", v->status[i]);
    fprintf(stderr, ", %" PRIu64 " bytes in, after %.1f ms; the request begins:\n  ", v->bytes_in,
            (double)(v->end_ns - v->start_ns) * 1e-6);
    for (size_t i = 0; i < v->plan.bytes.len && i < 300; i++) {
        char c = v->plan.bytes.data[i];
        fputc(c >= 32 && c < 127 ? c : '.', stderr);
    }
    fputc('\n', stderr);
}

static void on_done(void *user, const rose_visit *v)
{
    abuse_run *r = user;
    kind_count *k = &r->kinds[v->plan.kind];
    r->n_done++;
    k->n++;
    k->ends[v->end]++;
    for (uint32_t i = 0; i < v->n_replies; i++)
        r->n_refused += v->status[i] == 429 || v->status[i] == 503;
    if (rose_abuse_right(v)) return;
    k->wrong++;
    if (r->n_wrong++ < MAX_SHOWN) show_wrong(v);
}

static rose_status run_events(abuse_run *r, uint32_t first, uint32_t n, rose_err *err)
{
    const rose_visitors_opts vo = {.url = &r->server.url,
                                   .max = r->o->connections + 1,
                                   .timeout_ms = r->o->timeout_s * 1000,
                                   .done = on_done,
                                   .user = r};
    char dead[320];
    uint64_t progress_ns = rose_now_ns();
    uint32_t seen = r->n_done;
    rose_status st = rose_visitors_create(&r->visitors, &vo, err);
    for (uint32_t i = 0; st == ROSE_OK && (i < n || rose_visitors_n_active(r->visitors) > 0);) {
        while (st == ROSE_OK && i < n && rose_visitors_n_active(r->visitors) < r->o->connections) {
            rose_visit_plan p;
            st = rose_abuse_make(&r->env, r->o->seed, first + i++, &p);
            if (st == ROSE_OK) st = rose_visitors_start(r->visitors, &p);
            if (st != ROSE_OK) rose_fail(err, st, "event %u cannot be sent", i - 1);
        }
        if (st == ROSE_OK) st = rose_visitors_turn(r->visitors, rose_now_ns() + 100000000);
        if (r->n_done != seen) {
            seen = r->n_done;
            progress_ns = rose_now_ns();
        } else if (st == ROSE_OK && rose_now_ns() > progress_ns + UINT64_C(1000000000)) {
            if (rose_server_dead(&r->server, dead, sizeof dead))
                st = rose_fail(err, ROSE_E_CLOSED, "%s", dead);
        }
    }
    rose_visitors_destroy(r->visitors);
    r->visitors = NULL;
    if (st == ROSE_OK && rose_server_dead(&r->server, dead, sizeof dead))
        st = rose_fail(err, ROSE_E_CLOSED, "%s", dead);
    return st;
}

/* ---- the same bytes before and after ---- */

static rose_status add_choices(rose_buf *out, const char *json, size_t len)
{
    rose_json_error e;
    rose_json *o = NULL;
    rose_status st = rose_json_parse(&o, json, len, 0, &e);
    char *text = st == ROSE_OK ? rose_json_dumps(rose_json_get(o, "choices"), 0) : NULL;
    if (st == ROSE_OK) st = text == NULL ? ROSE_E_FORMAT : rose_buf_addf(out, "%s\n", text);
    free(text);
    rose_json_decref(o);
    return st;
}

/* Keeps the choices of a reply, without its id and times. */
static void on_probe(void *user, const rose_visit *v)
{
    abuse_run *r = user;
    static const char data[] = "data: {";
    rose_status st = v->end == ROSE_VISIT_REPLIED && v->status[0] == 200 ? ROSE_OK : ROSE_E_FORMAT;
    const char *at = v->body.data, *end = at + v->body.len;
    if (st == ROSE_OK && at != NULL && *at == '{') {
        st = add_choices(&r->probe, at, v->body.len);
    } else {
        for (const char *p = at; st == ROSE_OK && p != NULL && p < end;) {
            const char *nl = memchr(p, '\n', (size_t)(end - p));
            if (nl == NULL) break;
            if ((size_t)(nl - p) > sizeof data && memcmp(p, data, sizeof data - 1) == 0)
                st = add_choices(&r->probe, p + 6, (size_t)(nl - p) - 6);
            p = nl + 1;
        }
    }
    if (st != ROSE_OK)
        rose_buf_addf(&r->probe, "failed: %s, status %d\n", rose_visit_end_name(v->end),
                      v->status[0]);
}

static rose_status run_probes(abuse_run *r, rose_err *err)
{
    static const char *const more[N_PROBES] = {
        "\"temperature\":0,\"logprobs\":5", "\"temperature\":1.2,\"seed\":7,\"n\":3",
        "\"temperature\":0.8,\"seed\":9,\"stream\":true,\"logprobs\":2,\"return_token_ids\":true"};
    const rose_visitors_opts vo = {
        .url = &r->server.url, .max = 1, .timeout_ms = 60000, .done = on_probe, .user = r};
    rose_visitors *v = NULL;
    r->probe.len = 0;
    rose_status st = rose_visitors_create(&v, &vo, err);
    for (int i = 0; i < N_PROBES && st == ROSE_OK; i++) {
        rose_buf b = {0};
        rose_visit_plan p = {.fresh = true, .keep_body = true};
        st = rose_buf_addf(&b,
                           "{\"model\":\"%s\",\"prompt\":[10,20,30,40,50],\"max_tokens\":48,"
                           "\"ignore_eos\":true,%s}",
                           r->env.model, more[i]);
        if (st == ROSE_OK)
            st = rose_request_write(&p.bytes, &r->server.url, "/v1/completions", NULL, b.data,
                                    b.len);
        rose_buf_free(&b);
        if (st == ROSE_OK) st = rose_visitors_start(v, &p);
        while (st == ROSE_OK && rose_visitors_n_active(v) > 0)
            st = rose_visitors_turn(v, rose_now_ns() + 100000000);
    }
    rose_visitors_destroy(v);
    if (st == ROSE_OK && (rose_buf_str(&r->probe) == NULL || strstr(r->probe.data, "failed:")))
        st = rose_fail(err, ROSE_E_FORMAT, "a plain request fails: %.200s", r->probe.data);
    return st;
}

/* ---- the run ---- */

static rose_status start(abuse_run *r, const char *model_dir, rose_err *err)
{
    const abuse_opts *o = r->o;
    rose_server_spec specs[ROSE_MAX_BACKENDS];
    rose_prompts *prompts = NULL;
    uint32_t n;
    rose_status st = rose_server_list_parse(o->backend, specs, &n, err);
    if (st == ROSE_OK && (n != 1 || specs[0].driver > 0))
        st = rose_fail(err, ROSE_E_INVAL, "--backend: one server is needed, roseinfer or a URL");
    if (st == ROSE_OK) st = rose_prompts_open(&prompts, model_dir, err);
    if (st != ROSE_OK) return st;
    r->env.context = rose_prompts_context(prompts);
    rose_prompts_close(prompts);
    if (r->env.context < 128)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "a context of %u tokens is too short: 128 are needed", r->env.context);
    st = rose_server_start(&r->server, &specs[0], &o->server, model_dir, server_args, NULL, err);
    r->env.url = r->server.url;
    r->env.model = r->server.model;
    r->env.vocab = 1000;
    r->env.max_body = MAX_BODY_SIZE;
    r->env.timeout_ms = 400;
    r->env.light = o->light;
    return st;
}

static rose_status measure(abuse_run *r, rose_buf *before, rose_err *err)
{
    const abuse_opts *o = r->o;
    if (!rose_watch_settle(&r->fresh, &r->server, 0, SETTLE_S, err)) return ROSE_E_CLOSED;
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    rose_watch_process(&r->fresh, r->server.proc.pid);
    /* the connection that reads /metrics counts in the server until the server sees that we closed
     * it */
    r->fds_fresh = r->fresh.open_fds;
    rose_status st = run_probes(r, err);
    if (st == ROSE_OK) st = rose_buf_add(before, r->probe.data, r->probe.len);
    if (st == ROSE_OK) st = run_events(r, 0, o->warmup, err);
    if (st != ROSE_OK) return st;
    if (!rose_watch_settle(&r->warm, &r->server, r->fds_fresh, SETTLE_S, err)) return ROSE_E_CLOSED;
    const uint64_t start_ns = rose_now_ns();
    memset(r->kinds, 0, sizeof r->kinds);
    r->n_done = r->n_wrong = r->n_refused = 0;
    if ((st = run_events(r, o->warmup, o->events, err)) != ROSE_OK) return st;
    r->duration_s = (double)(rose_now_ns() - start_ns) * 1e-9;
    if (!rose_watch_settle(&r->end, &r->server, r->fds_fresh, SETTLE_S, err)) return ROSE_E_CLOSED;
    return run_probes(r, err);
}

static bool verdict(rose_json *list, const char *name, bool pass, const char *detail)
{
    fprintf(stderr, "%s  %s: %s\n", pass ? "pass" : "FAIL", name, detail);
    rose_json_append_new(list, rose_json_pack("{s:s, s:b, s:s}", "criterion", name, "pass",
                                              (int)pass, "detail", detail));
    return pass;
}

static rose_json *kinds_json(const abuse_run *r)
{
    rose_json *all = rose_json_object();
    for (uint32_t i = 0; i < rose_abuse_n_kinds; i++) {
        const kind_count *k = &r->kinds[i];
        rose_json *o = rose_json_pack("{s:i, s:i}", "events", (int)k->n, "wrong", (int)k->wrong);
        for (int e = 0; e <= ROSE_VISIT_TIMEOUT; e++) {
            if (k->ends[e] > 0)
                rose_json_set_new(o, rose_visit_end_name((rose_visit_end)e),
                                  rose_json_integer(k->ends[e]));
        }
        rose_json_set_new(all, rose_abuse_kinds[i].name, o);
    }
    return all;
}

/* Judges all criteria. Returns false if one fails. */
static bool judge(const abuse_run *r, const rose_buf *before, bool clean_exit, rose_json *list)
{
    char d[160];
    const double mib = 1048576.0, grown = (r->end.resident_bytes - r->warm.resident_bytes) / mib;
    bool ok = true;
    snprintf(d, sizeof d,
             "%" PRIu32 " events in %.1f s, %" PRIu32 " of them wrong, %" PRIu32
             " refused with 429 or 503",
             r->n_done, r->duration_s, r->n_wrong, r->n_refused);
    ok &= verdict(list, "every event ends in a right way", r->n_wrong == 0 && r->n_done > 0, d);
    snprintf(d, sizeof d, "%.0f running, %.0f waiting, %.0f of %.0f pages free", r->end.running,
             r->end.waiting, r->end.kv_pages_free, r->end.kv_pages);
    ok &= verdict(list, "nothing runs, all pages are free",
                  r->end.running <= 0 && r->end.waiting <= 0 && r->end.kv_pages > 0 &&
                      r->end.kv_pages_free >= r->end.kv_pages,
                  d);
    snprintf(d, sizeof d, "%.0f open, %.0f on the fresh server", r->end.open_fds, r->fds_fresh);
    ok &= verdict(list, "descriptors", r->end.open_fds <= r->fds_fresh, d);
    snprintf(d, sizeof d, "%.1f MiB, %+.2f since the warm-up (%.1f fresh)",
             r->end.resident_bytes / mib, grown, r->fresh.resident_bytes / mib);
    if (r->o->rss_growth_mib > 0)
        ok &= verdict(list, "resident memory", grown <= r->o->rss_growth_mib, d);
    snprintf(d, sizeof d, "%zu bytes of choices", before->len);
    ok &= verdict(list, "the same request, the same bytes",
                  before->len == r->probe.len && before->len > 0 &&
                      memcmp(before->data, r->probe.data, before->len) == 0,
                  d);
    if (r->server.command.len > 0)
        ok &= verdict(list, "the server ends with exit code 0", clean_exit, "after SIGTERM");
    return ok;
}

static int report(abuse_run *r, const rose_buf *before, bool clean_exit, int argc, char **argv)
{
    rose_json *criteria = rose_json_array();
    const bool ok = judge(r, before, clean_exit, criteria);
    rose_json *root = rose_json_pack(
        "{s:o, s:o, s:I, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:b}",
        "meta", rose_results_meta(argc, argv), "server",
        rose_results_stringn(r->server.command.data, r->server.command.len), "seed",
        (int64_t)r->o->seed, "events", (int)r->n_done, "warmup", (int)r->o->warmup, "connections",
        (int)r->o->connections, "duration_s", r->duration_s, "refused", (int)r->n_refused,
        "preemptions", r->end.preemptions, "rss_fresh_bytes", r->fresh.resident_bytes,
        "rss_warm_bytes", r->warm.resident_bytes, "rss_end_bytes", r->end.resident_bytes,
        "fds_fresh", r->fds_fresh, "fds_end", r->end.open_fds, "criteria", criteria, "kinds",
        kinds_json(r), "pass", (int)ok);
    int rc = rose_results_emit(root, r->o->output_dir, "abuse");
    return ok ? rc : 1;
}

static int run(const char *model_dir, const abuse_opts *o, int argc, char **argv)
{
    static abuse_run r;
    rose_err err = {{0}};
    rose_buf before = {0};
    r = (abuse_run){.o = o};
    fprintf(stderr, "seed %" PRIu64 "\n", o->seed);
    rose_status st = start(&r, model_dir, &err);
    if (st == ROSE_OK) st = measure(&r, &before, &err);
    const bool had = r.server.proc.pid != 0;
    rose_proc_stop(&r.server.proc, 60000);
    const bool clean = had && r.server.proc.ended && r.server.proc.status == 0;
    const int rc = st == ROSE_OK ? report(&r, &before, clean, argc, argv) : rose_die(&err);
    rose_server_stop(&r.server);
    rose_buf_free(&before);
    rose_buf_free(&r.probe);
    return rc;
}

int rose_load_abuse(int argc, char **argv)
{
    static abuse_opts o;
    o = (abuse_opts){.events = 20000,
                     .warmup = 2000,
                     .connections = 48,
                     .rss_growth_mib = 8,
                     .timeout_s = 60,
                     .backend = "roseinfer",
                     .seed = 20261121};
    rose_server_flags_init(&o.server);
    rose_opt opts[11 + ROSE_SERVER_ROWS] = {
        {.name = "Events", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_U32("events", &o.events, "N", 1, 100000000, "visits after the warm-up"),
        ROSE_ROW_U32("warmup", &o.warmup, "N", 0, 1000000,
                     "visits before memory is measured for the first time"),
        ROSE_ROW_U32("connections", &o.connections, "N", 1, 4096, "visits at a time"),
        ROSE_ROW_U64("seed", &o.seed, "N", 0, 0,
                     "seed of the events; the same seed gives the same events"),
        ROSE_ROW_U32("rss-growth-mib", &o.rss_growth_mib, "MIB", 0, 1u << 20,
                     "most growth of resident memory after the warm-up; 0 does not check it"),
        ROSE_ROW_FLAG("light", &o.light,
                      "no request of thousands of tokens: for servers under a sanitizer"),
        ROSE_ROW_U32("timeout-s", &o.timeout_s, "S", 1, 3600,
                     "longest time of a visit; a longer one counts as wrong"),
        ROSE_ROW_STRING("backend", &o.backend, "NAME",
                        "roseinfer, or url=NAME=http://HOST:PORT of one with the same limits"),
        ROSE_ROW_OUTPUT_DIR(&o.output_dir, "abuse"),
    };
    size_t n = 10;
    n += rose_server_flags_rows(&o.server, true, opts + n);
    const char *model;
    const int rc =
        rose_opts_parse_one("load abuse MODEL [options]",
                            "Sends random clients that leave early, stall, or send wrong requests. "
                            "Then checks that the server is\nas before: KV pages, memory, "
                            "descriptors, and the choices of a plain request.",
                            opts, n, argc, argv, &model);
    return rc >= 0 ? rc : run(model, &o, argc, argv);
}
