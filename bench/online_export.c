/* bench/online_export.c - writes a run with the keys of `vllm bench serve`, so that programs which
 * read its files can read ours. The keys mean the same: percentiles are over successful requests,
 * std is that of the population, peaks are over whole seconds since the first request. A failed
 * request has length 0 and its error. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/online_internal.h"

enum { MAX_SECONDS = 1 << 20 };

static bool success(const rose_reply *r)
{
    return r->error[0] == '\0';
}

static double seconds(uint64_t from, uint64_t to)
{
    return (double)(to - from) * 1e-9;
}

/* The gaps between events. As in vLLM, an event with several tokens counts once. */
static rose_json *gaps(const rose_reply *r)
{
    rose_json *list = rose_json_array();
    for (uint32_t i = 1; i < r->n_events && success(r); i++)
        rose_json_append_new(list,
                             rose_json_real(seconds(r->arrivals[i - 1].t_ns, r->arrivals[i].t_ns)));
    return list;
}

static void add_requests(rose_json *o, const rose_run *run)
{
    static const char *const keys[] = {"input_lens", "output_lens", "ttfts",       "itls",
                                       "latencies",  "start_times", "queue_times", "errors"};
    enum { N = sizeof keys / sizeof *keys };
    for (int k = 0; k < N; k++)
        rose_json_set_new(o, keys[k], rose_json_array());
    for (uint32_t i = 0; i < run->n; i++) {
        const rose_reply *r = &run->replies[i];
        const bool ok = success(r);
        rose_json *const values[N] = {rose_json_integer(run->trace->rows[i].n_in),
                                      rose_json_integer(ok ? r->n_tokens : 0),
                                      rose_json_real(ok ? seconds(r->start_ns, r->first_ns) : 0),
                                      gaps(r),
                                      rose_json_real(ok ? seconds(r->start_ns, r->last_ns) : 0),
                                      rose_json_real((double)r->start_ns * 1e-9),
                                      r->has_times && r->times.queue_wait >= 0
                                          ? rose_json_real(r->times.queue_wait * 1e-3)
                                          : rose_json_null(),
                                      rose_json_string(r->error)};
        for (int k = 0; k < N; k++)
            rose_json_append_new(rose_json_get(o, keys[k]), values[k]);
    }
}

static void add_summary(rose_json *o, const char *name, const rose_summary *s)
{
    const double population = s->n > 1 ? s->sd * sqrt((double)(s->n - 1) / (double)s->n) : 0;
    const struct {
        const char *stat;
        double value;
    } all[] = {{"mean", s->mean}, {"median", s->p50}, {"std", population}, {"p99", s->p99}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char key[48];
        snprintf(key, sizeof key, "%s_%s_ms", all[i].stat, name);
        rose_json_set_new(o, key, rose_json_real(s->n > 0 ? all[i].value * 1e3 : 0));
    }
}

/* The summary is over the gaps between events, so that it agrees with itls. */
static rose_status add_gap_summary(rose_json *o, const rose_run *run, rose_err *err)
{
    rose_samples s = {0};
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < run->n; i++) {
        const rose_reply *r = &run->replies[i];
        for (uint32_t k = 1; k < r->n_events && success(r) && st == ROSE_OK; k++)
            st = rose_samples_add(&s, seconds(r->arrivals[k - 1].t_ns, r->arrivals[k].t_ns));
    }
    const rose_summary sum = rose_summarise(s.v, s.n);
    add_summary(o, "itl", &sum);
    rose_samples_free(&s);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

/* Most tokens that arrived within one second, and most requests at a time. */
static rose_status add_peaks(rose_json *o, const rose_run *run, const rose_run_stats *s,
                             rose_err *err)
{
    const double d = s->duration_s;
    const uint32_t n = d < MAX_SECONDS - 2 ? (uint32_t)ceil(d) + 1 : MAX_SECONDS;
    uint64_t *tokens = calloc(n, sizeof *tokens), *under_way = calloc(n, sizeof *under_way);
    uint64_t most_tokens = 0, most = 0;
    rose_status st = tokens == NULL || under_way == NULL ? ROSE_E_NOMEM : ROSE_OK;
    for (uint32_t i = 0; i < run->n && st == ROSE_OK; i++) {
        const rose_reply *r = &run->replies[i];
        if (!success(r)) continue;
        for (uint32_t k = 0; k < r->n_events; k++) {
            const double at = seconds(run->start_ns, r->arrivals[k].t_ns);
            if (at >= 0 && at < n) tokens[(uint32_t)at] += r->arrivals[k].n_tokens;
        }
        const double from = seconds(run->start_ns, r->start_ns),
                     to = seconds(run->start_ns, r->last_ns);
        for (uint32_t t = (uint32_t)from; t < n && t <= to; t++)
            under_way[t]++;
    }
    for (uint32_t t = 0; t < n && st == ROSE_OK; t++) {
        if (tokens[t] > most_tokens) most_tokens = tokens[t];
        if (under_way[t] > most) most = under_way[t];
    }
    rose_json_set_new(o, "max_output_tokens_per_s", rose_json_real((double)most_tokens));
    rose_json_set_new(o, "max_concurrent_requests", rose_json_integer((int64_t)most));
    free(tokens);
    free(under_way);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

/* Requests per second that kept every limit; null if no limit was given. */
static rose_json *request_goodput(const rose_goodput_limits *l, const rose_run *run,
                                  double duration_s)
{
    uint32_t good = 0;
    if (l->ttft <= 0 && l->tpot <= 0 && l->itl <= 0 && l->e2e <= 0) return rose_json_null();
    for (uint32_t i = 0; i < run->n; i++) {
        const rose_reply *r = &run->replies[i];
        bool ok = success(r);
        if (ok && l->ttft > 0) ok = seconds(r->start_ns, r->first_ns) <= l->ttft;
        if (ok && l->e2e > 0) ok = seconds(r->start_ns, r->last_ns) <= l->e2e;
        if (ok && l->tpot > 0 && r->n_tokens > 1) ok = rose_reply_tpot(r) <= l->tpot;
        for (uint32_t k = 1; ok && l->itl > 0 && k < r->n_events; k++)
            ok = seconds(r->arrivals[k - 1].t_ns, r->arrivals[k].t_ns) <= l->itl;
        good += ok;
    }
    return rose_json_real(duration_s > 0 ? good / duration_s : 0);
}

static rose_json *header(const rose_online *r, const char *label, const char *model,
                         const rose_run *run, const rose_run_stats *s)
{
    char date[32];
    uint64_t in = 0;
    for (uint32_t i = 0; i < run->n; i++)
        in += success(&run->replies[i]) ? run->trace->rows[i].n_in : 0;
    const double d = s->duration_s > 0 ? s->duration_s : (double)INFINITY;
    const struct tm tm = rose_results_now();
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm);
    return rose_json_pack(
        "{s:s, s:s, s:s, s:o, s:i, s:o, s:o, s:o, s:f, s:i, s:i, s:I, s:I, s:f, s:f, s:f}", "date",
        date, "backend", label, "model_id", model, "tokenizer_id",
        rose_results_string(r->model_dir), "num_prompts", (int)run->n, "request_rate",
        s->offered_rps > 0 ? rose_json_real(s->offered_rps) : rose_json_string("inf"), "burstiness",
        r->o->trace == NULL ? rose_json_real((double)r->o->burstiness) : rose_json_null(),
        "max_concurrency",
        run->spec.concurrency > 0 ? rose_json_integer(run->spec.concurrency) : rose_json_null(),
        "duration", s->duration_s, "completed", (int)s->n_success, "failed", (int)s->n_error,
        "total_input_tokens", (int64_t)in, "total_output_tokens", (int64_t)s->tokens,
        "request_throughput", s->n_success / d, "output_throughput", (double)s->tokens / d,
        "total_token_throughput", (double)(s->tokens + in) / d);
}

/* Only if the server checked guesses, as vLLM does. Its acceptance rate is in percent. */
static void add_guesses(rose_json *o, const rose_watch_guesses *g)
{
    static const char *const keys[] = {"acceptance_length", "num_drafts", "draft_tokens",
                                       "accepted_tokens", "per_position_acceptance_rates"};
    char key[64];
    if (!g->known || !(g->drafts > 0 && g->draft_tokens > 0)) return;
    rose_json *all = rose_online_guesses_json(g);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "spec_decode_%s", keys[i]);
        rose_json_set(o, key, rose_json_get(all, keys[i]));
    }
    rose_json_set_new(o, "spec_decode_acceptance_rate",
                      rose_json_real(100 * g->accepted / g->draft_tokens));
    rose_json_decref(all);
}

rose_status rose_online_export_vllm(const rose_online *r, const char *label, const char *model,
                                    const rose_run *run, const rose_run_stats *s, rose_err *err)
{
    char folder[4200], name[128];
    rose_json *root = header(r, label, model, run, s);
    if (root == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_status st = ROSE_OK;
    rose_json_set_new(root, "request_goodput", request_goodput(&r->limits, run, s->duration_s));
    add_summary(root, "ttft", &s->ttft);
    add_summary(root, "tpot", &s->tpot);
    if (st == ROSE_OK) st = add_gap_summary(root, run, err);
    add_summary(root, "e2el", &s->e2e);
    add_requests(root, run);
    add_guesses(root, &s->guesses);
    if (st == ROSE_OK) st = add_peaks(root, run, s, err);
    snprintf(folder, sizeof folder, "%s/vllm", r->results.dir);
    /* an existing folder is fine; any other failure shows when the file is written */
    mkdir(folder, 0777);
    if (run->spec.concurrency > 0)
        snprintf(name, sizeof name, "%.64s-concurrency%u.json", label, run->spec.concurrency);
    else
        snprintf(name, sizeof name, "%.64s-scale%.6g.json", label, run->spec.scale);
    if (st == ROSE_OK) st = rose_results_write(root, folder, name, err);
    rose_json_decref(root);
    return st;
}
