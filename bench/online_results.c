/* bench/online_results.c - writes online_results.json, with the keys of an earlier benchmark suite
 * in Python plus what that lacked, and online_summary.md. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/online_internal.h"
#include "bench/watch.h"

/* Seconds since the start of the run; null for an event that did not happen. */
static rose_json *since(uint64_t t, uint64_t start)
{
    return t == 0 ? rose_json_null() : rose_json_real(((double)t - (double)start) * 1e-9);
}

static rose_json *between(uint64_t a, uint64_t b)
{
    return a == 0 || b == 0 ? rose_json_null() : rose_json_real(((double)b - (double)a) * 1e-9);
}

static rose_json *times_json(const rose_server_times *t)
{
    return rose_json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "receive_ms", t->receive,
                          "worker_wait_ms", t->worker_wait, "parse_ms", t->parse, "tokenize_ms",
                          t->tokenize, "queue_wait_ms", t->queue_wait, "prefill_to_first_ms",
                          t->prefill_to_first, "ttft_ms", t->ttft, "e2e_ms", t->e2e);
}

static rose_json *request_json(const rose_run *run, uint32_t i)
{
    const rose_reply *r = &run->replies[i];
    const rose_load_trace_row *row = &run->trace->rows[i];
    return rose_json_pack(
        "{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s, s:i, s:o, s:o}", "input_len",
        (int)row->n_in, "output_len", (int)row->n_out, "output_tokens", (int)r->n_tokens, "start_s",
        since(r->start_ns, run->start_ns), "end_s", since(r->end_ns, run->start_ns), "lateness_s",
        between(r->due_ns, r->start_ns), "ttft_s", between(r->start_ns, r->first_ns), "e2e_s",
        between(r->start_ns, r->last_ns), "tpot_s",
        r->error[0] == '\0' ? rose_number_json(rose_reply_tpot(r)) : rose_json_null(),
        "num_stream_events", (int)r->n_events, "finish_reason", r->finish, "http_status", r->status,
        "error", r->error[0] == '\0' ? rose_json_null() : rose_json_string(r->error),
        "server_times", r->has_times ? times_json(&r->times) : rose_json_null());
}

static rose_json *cdf_json(const double cdf[101])
{
    rose_json *list = rose_json_array();
    for (int p = 0; p <= 100; p++)
        rose_json_append_new(list, rose_number_json(cdf[p] * 1e3));
    return list;
}

/* Figures for each tenth of the requests of an open loop, in order of their due times. They show
 * how latency grows under a ramp, or under more load than the server can bear. */
static rose_json *slices_json(const rose_run *run)
{
    enum { N_SLICES = 10 };
    rose_json *list = rose_json_array();
    for (uint32_t k = 0; run->n >= 2 * N_SLICES && k < N_SLICES; k++) {
        const uint32_t begin = (uint32_t)((uint64_t)run->n * k / N_SLICES),
                       end = (uint32_t)((uint64_t)run->n * (k + 1) / N_SLICES);
        const double from = run->trace->rows[begin].at_s * run->spec.scale,
                     to = run->trace->rows[end - 1].at_s * run->spec.scale;
        rose_samples ttft = {0}, e2e = {0};
        for (uint32_t i = begin; i < end; i++) {
            const rose_reply *r = &run->replies[i];
            if (r->error[0] != '\0') continue;
            if (rose_samples_add(&ttft, (double)(r->first_ns - r->start_ns) * 1e-6) != ROSE_OK ||
                rose_samples_add(&e2e, (double)(r->last_ns - r->start_ns) * 1e-6) != ROSE_OK)
                break;
        }
        const size_t n_ok = ttft.n;
        const rose_summary t = rose_summarise(ttft.v, ttft.n), e = rose_summarise(e2e.v, e2e.n);
        rose_json_append_new(
            list, rose_json_pack("{s:f, s:f, s:o, s:i, s:i, s:o, s:o, s:o}", "from_s", from, "to_s",
                                 to, "offered_rps",
                                 to > from ? rose_json_real((end - begin - 1) / (to - from))
                                           : rose_json_null(),
                                 "num_requests", (int)(end - begin), "num_success", (int)n_ok,
                                 "ttft_p50_ms", rose_number_json(t.p50), "ttft_p99_ms",
                                 rose_number_json(t.p99), "e2e_p99_ms", rose_number_json(e.p99)));
        rose_samples_free(&ttft);
        rose_samples_free(&e2e);
    }
    return list;
}

rose_json *rose_online_guesses_json(const rose_watch_guesses *g)
{
    const bool any = g->drafts > 0 && g->draft_tokens > 0;
    rose_json *places = rose_json_array();
    for (uint32_t i = 0; any && i < g->n_places; i++)
        rose_json_append_new(places, rose_json_real(g->accepted_at[i] / g->drafts));
    rose_json *o = rose_json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o}", "num_drafts", (int64_t)g->drafts, "draft_tokens",
        (int64_t)g->draft_tokens, "accepted_tokens", (int64_t)g->accepted, "acceptance_rate",
        any ? rose_json_real(g->accepted / g->draft_tokens) : rose_json_null(), "acceptance_length",
        any ? rose_json_real(1 + g->accepted / g->drafts) : rose_json_null(),
        "per_position_acceptance_rates", places);
    if (g->known) return o;
    rose_json_decref(o);
    return rose_json_null();
}

static rose_json *summary_json(const char *label, const rose_run *run, const rose_run_stats *s)
{
    const double d = s->duration_s > 0 ? s->duration_s : (double)NAN;
    rose_json *o = rose_json_pack(
        "{s:s, s:o, s:i, s:o, s:i, s:i, s:i, s:f, s:I, s:I, s:I, s:f, s:o, s:o}", "backend", label,
        "scale", run->spec.concurrency > 0 ? rose_json_null() : rose_json_real(run->spec.scale),
        "concurrency", (int)run->spec.concurrency, "offered_rps",
        s->offered_rps > 0 ? rose_json_real(s->offered_rps) : rose_json_null(), "num_requests",
        (int)run->n, "num_success", (int)s->n_success, "num_error", (int)s->n_error, "success_rate",
        run->n > 0 ? (double)s->n_success / run->n : 0.0, "total_output_events", (int64_t)s->events,
        "total_output_tokens", (int64_t)s->tokens, "total_input_tokens", (int64_t)s->prompt_tokens,
        "duration_s", s->duration_s, "req_per_s", rose_number_json(s->n_success / d), "tok_per_s",
        rose_number_json((double)s->tokens / d));
    const struct {
        const char *name;
        const rose_summary *s;
    } all[] = {
        {"ttft_ms", &s->ttft},
        {"e2e_ms", &s->e2e},
        {"tpot_ms", &s->tpot},
        {"itl_ms", &s->itl},
        {"lateness_ms", &s->lateness},
        {"server_queue_wait_ms", &s->queue_wait},
        {"server_prefill_to_first_ms", &s->prefill_to_first},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rose_json_set_new(o, all[i].name, rose_summary_json(all[i].s, 1e3));
    rose_json_set_new(o, "itl_cdf_ms", cdf_json(s->itl_cdf));
    if (run->spec.concurrency == 0) rose_json_set_new(o, "slices", slices_json(run));
    rose_json_set_new(o, "num_short", rose_json_integer(s->n_short));
    rose_json_set_new(o, "num_usage_contradicted", rose_json_integer(s->n_usage_lies));
    rose_json_set_new(o, "num_prompt_len_differs", rose_json_integer(s->n_prompt_mismatch));
    rose_json_set_new(o, "itl_counts_tokens", rose_json_boolean(s->tokens_counted));
    rose_json_set_new(o, "num_uncounted", rose_json_integer(s->n_uncounted));
    const struct {
        const char *key;
        uint32_t n, at;
    } firsts[] = {{"first_usage_contradicted_request", s->n_usage_lies, s->first_lie_at},
                  {"first_short_request", s->n_short, s->first_short_at},
                  {"first_uncounted_request", s->n_uncounted, s->first_uncounted_at}};
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        if (firsts[i].n > 0) rose_json_set_new(o, firsts[i].key, rose_json_integer(firsts[i].at));
    }
    rose_json_set_new(o, "speculation", rose_online_guesses_json(&s->guesses));
    if (s->first_error != NULL) {
        rose_json_set_new(o, "first_error", rose_json_string(s->first_error));
        rose_json_set_new(o, "first_error_request", rose_json_integer(s->first_error_at));
    }
    return o;
}

/* Adds how long the server's process took to be ready, and the most memory it has had so far. Both
 * are null for a server at a URL. */
static void add_process(rose_json *summary, const rose_server *s)
{
    const uint64_t peak = s->proc.pid != 0 ? rose_watch_peak_bytes(s->proc.pid) : 0;
    rose_json_set_new(summary, "server_ready_s",
                      s->ready_s > 0 ? rose_json_real(s->ready_s) : rose_json_null());
    rose_json_set_new(summary, "server_resident_peak_bytes",
                      peak > 0 ? rose_json_integer((int64_t)peak) : rose_json_null());
}

static rose_json *string_or_null(const char *s)
{
    return s[0] != '\0' ? rose_json_string(s) : rose_json_null();
}

void rose_online_set_dtype(rose_json *root)
{
    const char *label;
    rose_json *b, *common = NULL;
    bool same = true;
    rose_json_each (rose_json_get(root, "by_backend"), label, b) {
        rose_json *dtype = rose_json_get(b, "dtype");
        if (dtype == NULL) dtype = rose_json_null(); /* a file of an older version */
        /* this backend never answered */
        if (rose_json_text_len(rose_json_get(b, "model")) == 0) continue;
        same = same && (common == NULL || rose_json_equal(common, dtype));
        common = dtype;
    }
    if (common != NULL)
        rose_json_set(rose_json_get(root, "meta"), "dtype", same ? common : rose_json_null());
}

rose_json *rose_online_add_backend(rose_online_results *r, const rose_server_spec *spec,
                                   const rose_server *s)
{
    char url[640];
    snprintf(url, sizeof url, "http://%s:%s%s", s->url.host, s->url.port, s->url.path);
    rose_json *b = rose_json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:s, s:o, s:[], s:{s:{}}}", "backend", spec->label, "base_url",
        rose_results_string(url), "cmd", rose_results_stringn(s->command.data, s->command.len),
        "log_path", rose_results_string(s->log), "model", s->model, "version", s->version, "dtype",
        string_or_null(s->dtype), "runs", "timing", "scale_wall_s");
    rose_json_set_new(rose_json_get(r->root, "by_backend"), spec->label, b);
    rose_online_set_dtype(r->root);
    if (s->version[0] != '\0')
        rose_json_set_new(rose_json_get(rose_json_get(r->root, "meta"), "server_versions"),
                          spec->label, rose_json_string(s->version));
    return b;
}

rose_status rose_online_add_run(rose_online_results *r, rose_json *backend, const char *label,
                                const rose_server *server, const rose_run *run,
                                const rose_run_stats *s, rose_err *err)
{
    rose_json *summary = summary_json(label, run, s);
    rose_json *requests = rose_json_array();
    add_process(summary, server);
    if (run->spec.search) rose_json_set_new(summary, "goodput_search", rose_json_true());
    for (uint32_t i = 0; i < run->n; i++)
        rose_json_append_new(requests, request_json(run, i));
    rose_json_append(rose_json_get(r->root, "summaries"), summary);
    rose_json *entry = rose_json_pack(
        "{s:O, s:i, s:o, s:o}", "scale", rose_json_get(summary, "scale"), "concurrency",
        (int)run->spec.concurrency, "summary", summary, "request_metrics", requests);
    if (rose_json_append_new(rose_json_get(backend, "runs"), entry) != 0)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    return rose_online_write(r, err);
}

rose_status rose_online_add_failure(rose_online_results *r, rose_json *backend, const char *label,
                                    const char *error, rose_err *err)
{
    rose_json_set_new(backend, "error", rose_results_string(error));
    rose_json_append_new(rose_json_get(r->root, "summaries"),
                         rose_json_pack("{s:s, s:n, s:i, s:i, s:i, s:i, s:o}", "backend", label,
                                        "scale", "concurrency", 0, "num_requests", 0, "num_success",
                                        0, "num_error", 0, "error", rose_results_string(error)));
    return rose_online_write(r, err);
}

rose_status rose_online_write(const rose_online_results *r, rose_err *err)
{
    rose_status st = rose_results_write(r->root, r->dir, "online_results.json", err);
    if (st == ROSE_OK) st = rose_online_summary(r->root, r->dir, err);
    return st;
}

/* ---- Markdown ---- */

enum { LOAD_TEXT = 48 };

static double value(const rose_json *row, const char *metric, const char *p)
{
    const rose_json *v = rose_json_get(rose_json_get(row, metric), p);
    return rose_json_is_number(v) ? rose_json_number_value(v) : (double)NAN;
}

static void print_triple(FILE *f, const rose_json *row, const char *metric)
{
    const rose_summary s = {.n = 1,
                            .p50 = value(row, metric, "p50"),
                            .p90 = value(row, metric, "p90"),
                            .p99 = value(row, metric, "p99")};
    const bool all = isfinite(s.p50) && isfinite(s.p90) && isfinite(s.p99);
    char text[ROSE_SUMMARY_TEXT] = "-";
    fprintf(f, " %s |", all ? rose_summary_text(&s, 1, text) : text);
}

static const char *load_text(const rose_json *row, char out[LOAD_TEXT])
{
    const int64_t conc = rose_json_int(rose_json_get(row, "concurrency"));
    if (conc > 0)
        snprintf(out, LOAD_TEXT, "%d at once", (int)conc);
    else
        snprintf(out, LOAD_TEXT, "scale %.4g", rose_json_number_value(rose_json_get(row, "scale")));
    return out;
}

static void print_row(FILE *f, const rose_json *row)
{
    const char *label = rose_json_text(rose_json_get(row, "backend"));
    const char *error = rose_json_text(rose_json_get(row, "error"));
    char load[LOAD_TEXT];
    if (label == NULL) label = "?";
    if (error != NULL) {
        fprintf(f, "| %s | | failed: %s | | | | | | | | | |\n", label, error);
        return;
    }
    fprintf(f, "| %s | %s | %d/%d |", label, load_text(row, load),
            (int)rose_json_int(rose_json_get(row, "num_success")),
            (int)rose_json_int(rose_json_get(row, "num_requests")));
    print_triple(f, row, "ttft_ms");
    print_triple(f, row, "tpot_ms");
    print_triple(f, row, "itl_ms");
    print_triple(f, row, "e2e_ms");
    fprintf(f, " %.2f | %.1f |", rose_json_number_value(rose_json_get(row, "req_per_s")),
            rose_json_number_value(rose_json_get(row, "tok_per_s")));
    rose_summary_cell(f, rose_json_get(rose_json_get(row, "lateness_ms"), "p99"), 1, -1);
    rose_summary_cell(f, rose_json_get(row, "server_ready_s"), 1, 3);
    rose_summary_cell(f, rose_json_get(row, "server_resident_peak_bytes"), 1.0 / 1048576, 0);
    fputc('\n', f);
}

/* Prints how latency grew with the rate, for a run under a ramp. */
static void print_ramp(FILE *f, const rose_json *row)
{
    static const char *const keys[] = {"offered_rps", "ttft_p50_ms", "ttft_p99_ms", "e2e_p99_ms"};
    size_t i;
    const rose_json *s, *slices = rose_json_get(row, "slices");
    const char *label = rose_json_text(rose_json_get(row, "backend"));
    if (rose_json_count(slices) == 0) return;
    fprintf(f,
            "\n%s, scale %.4g, by tenths of the requests:\n\n"
            "| from s | ok | req/s offered | TTFT p50 | TTFT p99 | E2E p99 |\n"
            "|---|---|---|---|---|---|\n",
            label != NULL ? label : "?", rose_json_number_value(rose_json_get(row, "scale")));
    rose_json_each_item (slices, i, s) {
        fprintf(f, "| %.2f | %d/%d |", rose_json_number_value(rose_json_get(s, "from_s")),
                (int)rose_json_int(rose_json_get(s, "num_success")),
                (int)rose_json_int(rose_json_get(s, "num_requests")));
        for (int k = 0; k < 4; k++)
            rose_summary_cell(f, rose_json_get(s, keys[k]), 1, 2);
        fputc('\n', f);
    }
}

/* A table of the runs whose server reported its guesses, if there are any. */
static void print_guesses(FILE *f, const rose_json *rows)
{
    size_t i;
    const rose_json *row;
    bool began = false;
    rose_json_each_item (rows, i, row) {
        const rose_json *g = rose_json_get(row, "speculation");
        const char *label = rose_json_text(rose_json_get(row, "backend"));
        char load[LOAD_TEXT];
        if (!rose_json_is_object(g)) continue;
        if (!began)
            fputs(
                "\nSpeculation, by the server's own count:\n\n"
                "| backend | load | guesses | guessed tokens | accepted | acceptance rate | tokens "
                "a step with a guess |\n|---|---|---|---|---|---|---|\n",
                f);
        began = true;
        fprintf(f, "| %s | %s |", label != NULL ? label : "?", load_text(row, load));
        rose_summary_cell(f, rose_json_get(g, "num_drafts"), 1, 0);
        rose_summary_cell(f, rose_json_get(g, "draft_tokens"), 1, 0);
        rose_summary_cell(f, rose_json_get(g, "accepted_tokens"), 1, 0);
        rose_summary_cell(f, rose_json_get(g, "acceptance_rate"), 1, 3);
        rose_summary_cell(f, rose_json_get(g, "acceptance_length"), 1, 2);
        fputc('\n', f);
    }
}

rose_status rose_online_summary(const rose_json *root, const char *dir, rose_err *err)
{
    rose_summary_file s;
    size_t i;
    const rose_json *row, *rows = rose_json_get(root, "summaries");
    const char *ramp =
        rose_json_text(rose_json_get(rose_json_get(root, "meta"), "ramp_up_strategy"));
    rose_status st = rose_summary_open(
        &s, root, dir, "online_summary.md", "Online latency",
        "Times in ms as p50/p90/p99 over successful requests; scale multiplies the trace's times "
        "(smaller = heavier).",
        "backend | load | ok | TTFT | TPOT | ITL | E2E | req/s | output tok/s | client late p99 | "
        "ready s | peak MiB",
        err);
    if (st != ROSE_OK) return st;
    rose_json_each_item (rows, i, row)
        print_row(s.f, row);
    print_guesses(s.f, rows);
    if (ramp != NULL && strcmp(ramp, "none") != 0) {
        rose_json_each_item (rows, i, row)
            print_ramp(s.f, row);
    }
    return rose_summary_close(&s, err);
}
