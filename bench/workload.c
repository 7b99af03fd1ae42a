/* bench/workload.c - see workload.h. All requests are built before the clock starts. */
#include "bench/workload.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/utf8.h"

void rose_request_flags_init(rose_request_flags *f)
{
    *f = (rose_request_flags){.temperature = 0.7f,
                              .top_p = 0.9f,
                              .top_k = 50,
                              .timeout_s = 600,
                              .stall_s = 120,
                              .ignore_eos = true,
                              .send_seed = true,
                              .endpoint = "completions",
                              .prompt_form = "text"};
}

size_t rose_request_flags_rows(rose_request_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Requests", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_FLOAT("temperature", &f->temperature, "T", 0, 100, "0 is greedy"),
        ROSE_ROW_FLOAT("top-p", &f->top_p, "P", 1e-6f, 1, "nucleus sampling"),
        ROSE_ROW_U32("top-k", &f->top_k, "K", 0, 1u << 20, "0 leaves the field out"),
        ROSE_ROW_BOOL("ignore-eos", &f->ignore_eos,
                      "send ignore_eos, so that every reply has its full length"),
        ROSE_ROW_BOOL("send-seed", &f->send_seed,
                      "give each request a seed of its own; some servers sample more slowly then"),
        ROSE_ROW_BOOL("running-usage", &f->running_usage,
                      "ask for usage in each event (continuous_usage_stats), which tells how many "
                      "tokens the event holds if the server sends no ids"),
        ROSE_ROW_CHOICE("endpoint", &f->endpoint, "completions|chat",
                        "/v1/completions or /v1/chat/completions"),
        ROSE_ROW_CHOICE("prompt-form", &f->prompt_form, "text|ids",
                        "send prompts as text or as token ids; both hold the same tokens"),
        ROSE_ROW_STRING("model-name", &f->model_name, "NAME", "model field of the requests",
                        .unset = "the first of /v1/models"),
        ROSE_ROW_STRING("api-key", &f->api_key, "KEY", "sent as a bearer token", .unset = "none"),
        ROSE_ROW_STRING("extra-body", &f->extra_body, "JSON",
                        "an object whose members are added to each request", .unset = "none"),
        ROSE_ROW_FLOAT("timeout-s", &f->timeout_s, "S", 0, 86400,
                       "longest time of a request; 0 is no limit"),
        ROSE_ROW_FLOAT("stall-timeout-s", &f->stall_s, "S", 0, 86400,
                       "longest silence within a request; 0 is no limit"),
        ROSE_ROW_U64("seed", &f->seed, "N", 0, 0,
                     "seed of prompts, arrivals, lengths and sampling"),
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* The first member of `extra` that every request already has, or NULL. If a member were there
 * twice, servers would refuse the request or take either one. */
static const char *own_key(const rose_json *extra, const rose_request_flags *f)
{
    const char *const keys[] = {"model",
                                strcmp(f->endpoint, "chat") == 0 ? "messages" : "prompt",
                                "max_tokens",
                                "temperature",
                                "top_p",
                                f->send_seed ? "seed" : NULL,
                                "stream",
                                "stream_options",
                                f->top_k > 0 ? "top_k" : NULL,
                                f->ignore_eos ? "ignore_eos" : NULL};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i] != NULL && rose_json_get(extra, keys[i]) != NULL) return keys[i];
    }
    return NULL;
}

rose_status rose_request_flags_check(const rose_request_flags *f, rose_err *err)
{
    rose_json_error e;
    rose_json *o = NULL;
    if (f->extra_body != NULL) {
        rose_status st = rose_json_parse(&o, f->extra_body, strlen(f->extra_body), 0, &e);
        bool ok = st == ROSE_OK && rose_json_is_object(o);
        const char *key = ok ? own_key(o, f) : NULL;
        rose_json_decref(o);
        if (!ok) return rose_fail(err, ROSE_E_INVAL, "--extra-body: not a JSON object");
        if (key != NULL)
            return rose_fail(err, ROSE_E_INVAL,
                             "--extra-body: the client itself sets '%s' in every request", key);
    }
    if (f->model_name != NULL && !rose_utf8_is_valid(f->model_name, strlen(f->model_name)))
        return rose_fail(err, ROSE_E_INVAL,
                         "--model-name '%s' is not UTF-8: no request can carry it", f->model_name);
    if (strcmp(f->endpoint, "chat") == 0 && strcmp(f->prompt_form, "ids") == 0)
        return rose_fail(
            err, ROSE_E_INVAL,
            "--endpoint chat takes only text, so --prompt-form ids cannot be used with it");
    if (f->api_key != NULL && strpbrk(f->api_key, "\r\n") != NULL)
        return rose_fail(err, ROSE_E_INVAL, "--api-key: a line break");
    return ROSE_OK;
}

/* ---- requests ---- */

static rose_status write_body(const rose_workload *w, const rose_run_spec *spec, const char *model,
                              uint32_t i, rose_buf *b)
{
    const rose_request_flags *f = w->flags;
    const bool chat = strcmp(f->endpoint, "chat") == 0;
    const rose_prompt_spec ps = {.mode = w->mode,
                                 .as_ids = strcmp(f->prompt_form, "ids") == 0,
                                 .seed = f->seed,
                                 .variant = spec->variant};
    rose_json *name = rose_json_string(model);
    char *quoted = name != NULL ? rose_json_dumps(name, 0) : NULL;
    rose_status st = quoted == NULL ? ROSE_E_NOMEM : ROSE_OK;
    if (st == ROSE_OK)
        st = rose_buf_addf(b, "{\"model\":%s,\"%s\":", quoted,
                           chat ? "messages\":[{\"role\":\"user\",\"content" : "prompt");
    if (st == ROSE_OK && w->vocab == 0) st = rose_prompt_write(w->prompts, &ps, w->trace, i, b);
    for (uint32_t j = 0; w->vocab != 0 && j < w->trace->rows[i].n_in && st == ROSE_OK; j++)
        st = rose_buf_addf(b, "%c%" PRIu32, j > 0 ? ',' : '[',
                           rose_prompt_random_id(f->seed, i, j, w->vocab));
    if (st == ROSE_OK && w->vocab != 0) st = rose_buf_add(b, "]", 1);
    if (st == ROSE_OK)
        st = rose_buf_addf(b,
                           "%s,\"max_tokens\":%" PRIu32 ",\"temperature\":%g,\"top_p\":%g,"
                           "\"stream\":true,\"stream_options\":{\"include_usage\":true%s}",
                           chat ? "}]" : "", w->trace->rows[i].n_out, (double)f->temperature,
                           (double)f->top_p,
                           f->running_usage ? ",\"continuous_usage_stats\":true" : "");
    if (st == ROSE_OK && f->send_seed)
        st = rose_buf_addf(b, ",\"seed\":%" PRIu64, (f->seed + i) & INT64_MAX);
    if (st == ROSE_OK && (f->top_k > 0 || w->vocab != 0))
        st = rose_buf_addf(b, ",\"top_k\":%" PRIu32, f->top_k);
    if (st == ROSE_OK && f->ignore_eos) st = rose_buf_addf(b, ",\"ignore_eos\":true");
    if (st == ROSE_OK && f->extra_body != NULL) {
        const char *open = strchr(f->extra_body, '{'), *close = strrchr(f->extra_body, '}');
        if (strspn(open + 1, " \t\r\n") < (size_t)(close - open - 1))
            st = rose_buf_addf(b, ",%.*s", (int)(close - open - 1), open + 1);
    }
    if (st == ROSE_OK) st = rose_buf_add(b, "}", 1);
    free(quoted);
    rose_json_decref(name);
    return st;
}

/* Writes all requests into *all, one after another. The items point into *all only when it has
 * reached its final size. */
static rose_status build(const rose_workload *w, const rose_url *url, const char *model,
                         const rose_run_spec *spec, uint32_t n, rose_buf *all,
                         rose_load_item *items)
{
    const char *path =
        strcmp(w->flags->endpoint, "chat") == 0 ? "/v1/chat/completions" : "/v1/completions";
    rose_buf body = {0};
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        size_t before = all->len;
        body.len = 0;
        st = write_body(w, spec, model, i, &body);
        if (st == ROSE_OK)
            st = rose_request_write(all, url, path, w->flags->api_key, body.data, body.len);
        items[i].len = all->len - before;
        items[i].due_ns =
            (uint64_t)((w->trace->rows[i].at_s * spec->scale + ROSE_START_OFFSET_S) * 1e9);
    }
    rose_buf_free(&body);
    const char *p = all->data;
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        items[i].bytes = p;
        p += items[i].len;
    }
    return st;
}

static void show(void *user, uint32_t done, uint32_t n)
{
    (void)n;
    rose_progress_update(user, done, "req");
}

rose_status rose_workload_run(const rose_workload *w, const rose_url *url, const char *model,
                              const rose_run_spec *spec, rose_run *out, rose_err *err)
{
    const uint32_t n = spec->n != 0 && spec->n < w->trace->n ? spec->n : w->trace->n;
    rose_buf all = {0};
    rose_progress bar;
    rose_load_item *items = calloc(n, sizeof *items);
    rose_reply *replies = calloc(n, sizeof *replies);
    rose_status st = items == NULL || replies == NULL ? ROSE_E_NOMEM : ROSE_OK;

    *out = (rose_run){.spec = *spec, .trace = w->trace};
    if (st == ROSE_OK) st = build(w, url, model, spec, n, &all, items);
    if (st != ROSE_OK) {
        rose_fail(err, st, "out of memory");
        goto done;
    }
    const rose_load_opts o = {
        .url = url,
        .concurrency = spec->concurrency,
        .timeout_ns = (uint64_t)((double)w->flags->timeout_s * 1e9),
        .stall_ns = (uint64_t)((double)w->flags->stall_s * 1e9),
        .stop = w->stop,
        .progress = show,
        .user = &bar,
    };
    for (uint32_t i = 0; i < n; i++)
        replies[i].max_tokens = w->trace->rows[i].n_out;
    rose_progress_begin(&bar, w->label, n);
    st = rose_load_run(&o, items, n, replies, err);
    rose_progress_end(&bar);
    if (st != ROSE_OK) goto done;
    out->replies = replies;
    out->n = n;
    replies = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = out->replies[i].start_ns;
        if (t != 0 && (out->start_ns == 0 || t < out->start_ns)) out->start_ns = t;
    }
done:
    for (uint32_t i = 0; replies != NULL && i < n; i++)
        rose_reply_free(&replies[i]);
    free(replies);
    free(items);
    rose_buf_free(&all);
    return st;
}

void rose_run_free(rose_run *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        rose_reply_free(&r->replies[i]);
    free(r->replies);
    *r = (rose_run){0};
}

/* ---- statistics ---- */

double rose_reply_tpot(const rose_reply *r)
{
    if (r->n_tokens < 2) return (double)NAN;
    return (double)(r->last_ns - r->first_ns) * 1e-9 / (r->n_tokens - 1);
}

rose_status rose_reply_gaps(rose_samples *s, const rose_reply *r)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < r->n_events && st == ROSE_OK; i++) {
        if (i > 0)
            st =
                rose_samples_add(s, (double)(r->arrivals[i].t_ns - r->arrivals[i - 1].t_ns) * 1e-9);
        for (uint32_t k = 1; k < r->arrivals[i].n_tokens && st == ROSE_OK; k++)
            st = rose_samples_add(s, 0);
    }
    return st;
}

enum { S_TTFT, S_TPOT, S_ITL, S_E2E, S_LATE, S_QUEUE, S_PREFILL, S_TOKENIZE, N_S };

static rose_status add_success(rose_samples s[N_S], const rose_reply *r)
{
    rose_status st = rose_samples_add(&s[S_TTFT], (double)(r->first_ns - r->start_ns) * 1e-9);
    if (st == ROSE_OK && r->n_tokens > 1) st = rose_samples_add(&s[S_TPOT], rose_reply_tpot(r));
    if (st == ROSE_OK) st = rose_samples_add(&s[S_E2E], (double)(r->last_ns - r->start_ns) * 1e-9);
    if (st == ROSE_OK) st = rose_reply_gaps(&s[S_ITL], r);
    if (st != ROSE_OK || !r->has_times) return st;
    if (r->times.queue_wait >= 0) st = rose_samples_add(&s[S_QUEUE], r->times.queue_wait * 1e-3);
    if (st == ROSE_OK && r->times.prefill_to_first >= 0)
        st = rose_samples_add(&s[S_PREFILL], r->times.prefill_to_first * 1e-3);
    if (st == ROSE_OK && r->times.tokenize >= 0)
        st = rose_samples_add(&s[S_TOKENIZE], r->times.tokenize * 1e-3);
    return st;
}

static rose_status add_reply(rose_run_stats *o, rose_samples s[N_S], const rose_run *run,
                             uint32_t i)
{
    const rose_reply *r = &run->replies[i];
    rose_status st = ROSE_OK;
    if (r->start_ns != 0 && run->spec.concurrency == 0)
        st = rose_samples_add(&s[S_LATE], (double)(r->start_ns - r->due_ns) * 1e-9);
    if (r->error[0] != '\0') {
        if (o->n_error++ == 0) {
            o->first_error = r->error;
            o->first_error_at = i;
        }
        return st;
    }
    o->n_success++;
    o->events += r->n_events;
    o->tokens += r->n_tokens;
    o->prompt_tokens += r->usage_prompt;
    if (r->usage_lies && o->n_usage_lies++ == 0) o->first_lie_at = i;
    if (r->n_tokens < run->trace->rows[i].n_out && o->n_short++ == 0) o->first_short_at = i;
    o->n_prompt_mismatch += r->has_usage && r->usage_prompt != run->trace->rows[i].n_in;
    const bool said = r->counted || (r->has_usage && !r->usage_lies);
    if (!said && o->n_uncounted++ == 0) o->first_uncounted_at = i;
    if (!said || (!r->counted && r->n_tokens != r->n_events)) o->tokens_counted = false;
    if (st == ROSE_OK) st = add_success(s, r);
    return st;
}

rose_status rose_run_stats_make(const rose_run *run, rose_run_stats *o)
{
    rose_samples s[N_S] = {{0}};
    rose_status st = ROSE_OK;
    uint64_t end = run->start_ns;

    *o = (rose_run_stats){.tokens_counted = true};
    for (uint32_t i = 0; i < run->n && st == ROSE_OK; i++) {
        if (run->replies[i].end_ns > end) end = run->replies[i].end_ns;
        st = add_reply(o, s, run, i);
    }
    o->duration_s = (double)(end - run->start_ns) * 1e-9;
    const double span = run->n > 1 ? run->trace->rows[run->n - 1].at_s * run->spec.scale : 0;
    if (run->spec.concurrency == 0 && span > 0) o->offered_rps = (run->n - 1) / span;
    rose_summary *to[N_S] = {
        &o->ttft,    &o->tpot, &o->itl, &o->e2e, &o->lateness, &o->queue_wait, &o->prefill_to_first,
        &o->tokenize};
    for (int i = 0; i < N_S; i++)
        *to[i] = rose_summarise(s[i].v, s[i].n);
    for (int p = 0; p <= 100; p++)
        o->itl_cdf[p] = rose_percentile(s[S_ITL].v, s[S_ITL].n, p);
    for (int i = 0; i < N_S; i++)
        rose_samples_free(&s[i]);
    return st;
}
