/* api/metrics.c - see metrics.h. The I/O threads count; writing the page adds up their tables.
 * Names, types and labels are those of vLLM if it has the metric (prefix vllm:), or those of the
 * usual HTTP and process exporters. All others are ours (prefix roseinfer:). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/procstat.h"
#include "base/stall.h"

static const char *const methods[ROSE_METRIC_METHODS] = {"GET", "HEAD", "POST", "other"};
static const int statuses[ROSE_METRIC_STATUSES] = {200, 304, 400, 401, 403, 404, 405, 408,
                                                   409, 413, 414, 415, 417, 429, 431, 499,
                                                   500, 501, 503, 504, 505, 0};
static const char *const outcomes[ROSE_N_OUTCOMES] = {"stop", "length", "abort", "error"};
static const char *const rejections[ROSE_N_REJECTIONS] = {"queue_full", "slo_ttft", "not_ready",
                                                          "out_of_memory", "too_many_connections"};

/* ---- counting ---- */

static uint32_t status_index(int status)
{
    uint32_t i = 0;
    while (i + 1 < ROSE_METRIC_STATUSES && statuses[i] != status)
        i++;
    return i;
}

static uint32_t method_index(const char *method)
{
    uint32_t i = 0;
    while (i + 1 < ROSE_METRIC_METHODS && strcmp(methods[i], method) != 0)
        i++;
    return i;
}

void rose_api_count_http(rose_api_io *io, const rose_http_req *r, int status)
{
    uint32_t route = rose_api_route_index(rose_http_req_info(r)->path);
    uint32_t method = method_index(rose_http_req_info(r)->method);
    rose_count_add(&io->metrics->http[route][method][status_index(status)], 1);
}

void rose_api_count_http_time(rose_api_io *io, const rose_http_req *r)
{
    uint64_t now = rose_now_ns(), start = rose_http_req_info(r)->arrival_ns;
    rose_hist_add(&io->metrics->http_time, &rose_hist_latency, now > start ? now - start : 0);
}

void rose_api_count_refusal(rose_api_io *io, const rose_api_error *e)
{
    rose_api_rejection why = ROSE_REJECT_NOT_READY;
    if (e->status != 429 && e->status != 503) return;
    if (e->status == 429)
        why = e->code != NULL && strcmp(e->code, ROSE_API_CODE_LATE) == 0 ? ROSE_REJECT_LATE
                                                                          : ROSE_REJECT_QUEUE_FULL;
    else if (e->code != NULL && strcmp(e->code, "out_of_memory") == 0)
        why = ROSE_REJECT_MEMORY;
    rose_count_add(&io->metrics->rejections[why], 1);
}

void rose_api_count_early(rose_api *a, int status)
{
    /* relaxed: a count; several threads add */
    atomic_fetch_add_explicit(&a->early[status_index(status)], 1, memory_order_relaxed);
}

void rose_api_count_token(const rose_api_choice *c, uint64_t t_ns)
{
    rose_api_metrics *m = c->job->io->metrics;
    rose_count_add(&m->generation_tokens, 1);
    if (c->t_first_ns == 0) {
        uint64_t start = c->job->t_arrival;
        rose_count_add(&m->prompt_tokens, c->prompt_n);
        rose_count_add(&m->cached_tokens, rose_request_cached_tokens(c->req));
        rose_hist_add(&m->ttft, &rose_hist_latency, t_ns > start ? t_ns - start : 0);
    } else {
        rose_hist_add(&m->itl, &rose_hist_latency, t_ns - c->t_last_ns);
    }
}

static void add_time(rose_hist *h, uint64_t from, uint64_t to)
{
    if (from != 0 && to >= from) rose_hist_add(h, &rose_hist_latency, to - from);
}

static rose_api_outcome outcome_of(const rose_api_choice *c)
{
    const rose_api_job *j = c->job;
    if (c->finish != NULL)
        return strcmp(c->finish, "length") == 0 ? ROSE_OUTCOME_LENGTH : ROSE_OUTCOME_STOP;
    bool closed = j->err.code != NULL && strcmp(j->err.code, "service_unavailable") == 0;
    return j->err.status != 0 && !closed ? ROSE_OUTCOME_ERROR : ROSE_OUTCOME_ABORT;
}

void rose_api_count_choice(const rose_api_choice *c, const rose_request_times *t)
{
    const rose_api_job *j = c->job;
    rose_api_metrics *m = j->io->metrics;
    rose_api_outcome outcome = outcome_of(c);
    if (j->err.status == 429) return; /* refused as a whole: counted there */
    rose_count_add(&m->outcomes[outcome], 1);
    if (outcome != ROSE_OUTCOME_STOP && outcome != ROSE_OUTCOME_LENGTH) return;
    if (c->n_tokens == 0) { /* only scored */
        rose_count_add(&m->prompt_tokens, c->prompt_n);
        rose_count_add(&m->cached_tokens, c->n_cached);
    }
    add_time(&m->e2e, j->t_arrival, c->t_last_ns);
    add_time(&m->queue, t->submitted, t->admitted);
    add_time(&m->prefill, t->admitted, j->asked.max_tokens == 0 ? c->t_last_ns : c->t_first_ns);
    add_time(&m->decode, c->t_first_ns, c->t_last_ns);
    add_time(&m->inference, t->admitted, c->t_last_ns);
    if (c->n_tokens > 1)
        add_time(&m->tpot, 1, 1 + (c->t_last_ns - c->t_first_ns) / (c->n_tokens - 1));
    rose_hist_add(&m->prompt_len, &rose_hist_tokens, c->prompt_n);
    rose_hist_add(&m->computed_len, &rose_hist_tokens, c->prompt_n - c->n_cached);
    rose_hist_add(&m->generation_len, &rose_hist_tokens, c->n_tokens);
}

void rose_api_count_job(const rose_api_job *j)
{
    rose_hist_add(&j->io->metrics->n, &rose_hist_tokens, j->asked.n);
    rose_hist_add(&j->io->metrics->max_tokens, &rose_hist_tokens, j->asked.max_tokens);
}

void rose_api_count_ignored(const rose_api_job *j)
{
    if (j->err.status == 0 && j->n_ignored > 0)
        rose_count_add(&j->io->metrics->ignored_fields, j->n_ignored);
}

void rose_api_count_end(const rose_api_job *j)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        if (j->choices[i].finish == NULL) return; /* it failed, or nobody waited for it */
        if (j->choices[i].n_tokens > longest) longest = j->choices[i].n_tokens;
    }
    rose_hist_add(&j->io->metrics->longest_len, &rose_hist_tokens, longest);
}

/* ---- the page ---- */

typedef struct page {
    rose_api_out *o;
    const rose_api *a;
} page;

static void put_label_value(rose_api_out *o, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '\n')
            rose_api_puts(o, "\\n");
        else if (*s == '"' || *s == '\\')
            rose_api_putf(o, "\\%c", *s);
        else
            rose_api_put(o, s, 1);
    }
}

static void head(page *p, const char *name, const char *type, const char *help)
{
    rose_api_putf(p->o, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Writes name{model_name="...",engine="0" - the caller closes the braces. */
static void put_series(page *p, const char *name, const char *suffix)
{
    rose_api_puts(p->o, name);
    rose_api_puts(p->o, suffix);
    rose_api_puts(p->o, "{model_name=\"");
    put_label_value(p->o, p->a->o.model_id);
    rose_api_puts(p->o, "\",engine=\"0\"");
}

static void one(page *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    put_series(p, name, "");
    rose_api_putf(p->o, "} %.17g\n", value);
}

/* unit: what a count of one means in the metric's unit. */
static void hist(page *p, const char *name, const char *help, const rose_hist *h,
                 const rose_hist_bounds *b, double unit)
{
    uint64_t total = 0;
    head(p, name, "histogram", help);
    for (uint32_t i = 0; i <= b->n; i++) {
        total += rose_count_get(&h->count[i]);
        put_series(p, name, "_bucket");
        if (i < b->n)
            rose_api_putf(p->o, ",le=\"%.10g\"} %" PRIu64 "\n", (double)b->le[i] * unit, total);
        else
            rose_api_putf(p->o, ",le=\"+Inf\"} %" PRIu64 "\n", total);
    }
    put_series(p, name, "_sum");
    rose_api_putf(p->o, "} %.17g\n", (double)rose_count_get(&h->sum) * unit);
    put_series(p, name, "_count");
    rose_api_putf(p->o, "} %" PRIu64 "\n", total);
}

static void by_label(page *p, const char *name, const char *label, const char *const *values,
                     const _Atomic uint64_t *counts, uint32_t n, const char *help)
{
    head(p, name, "counter", help);
    for (uint32_t i = 0; i < n; i++) {
        put_series(p, name, "");
        rose_api_putf(p->o, ",%s=\"%s\"} %" PRIu64 "\n", label, values[i],
                      rose_count_get(&counts[i]));
    }
}

/* Adds up what the I/O threads have counted: a table is an array of counts. dst is zero. */
static void merge(rose_api_metrics *dst, const rose_api *a)
{
    _Atomic uint64_t *to = (_Atomic uint64_t *)dst;
    _Static_assert(sizeof *dst % sizeof *to == 0, "members other than counts");
    for (uint32_t i = 0; i < a->o.n_io_threads; i++) {
        const _Atomic uint64_t *from = (const _Atomic uint64_t *)a->io[i].metrics;
        for (size_t k = 0; k < sizeof *dst / sizeof *to; k++)
            rose_count_add(&to[k], rose_count_get(&from[k]));
    }
    rose_count_add(&dst->rejections[ROSE_REJECT_CONNECTIONS],
                   rose_count_get(&a->early[status_index(503)]));
}

static void put_gauges(page *p, const rose_engine_stats *s)
{
    double used = s->kv_pages == 0 ? 0.0 : 1.0 - (double)s->kv_pages_free / s->kv_pages;
    one(p, "vllm:num_requests_running", "gauge", "Requests in execution.", s->running);
    one(p, "vllm:num_requests_waiting", "gauge", "Requests that wait for admission.", s->waiting);
    one(p, "vllm:kv_cache_usage_perc", "gauge", "KV pages in use, 1 is all of them.", used);
}

static void put_counters(page *p, const rose_api_metrics *m)
{
    one(p, "vllm:prompt_tokens_total", "counter",
        "Prompt tokens of choices that have their first token.",
        (double)rose_count_get(&m->prompt_tokens));
    one(p, "vllm:prompt_tokens_cached_total", "counter",
        "Prompt tokens that were found in the prefix cache.",
        (double)rose_count_get(&m->cached_tokens));
    one(p, "vllm:generation_tokens_total", "counter", "Generated tokens, as in usage.",
        (double)rose_count_get(&m->generation_tokens));
    one(p, "roseinfer:ignored_fields_total", "counter",
        "Fields of requests that were ignored; X-Ignored-Fields names them.",
        (double)rose_count_get(&m->ignored_fields));
    by_label(p, "vllm:request_success_total", "finished_reason", outcomes, m->outcomes,
             ROSE_N_OUTCOMES, "Choices that ended, by how.");
    by_label(p, "vllm:admission_rejections_total", "reason", rejections, m->rejections,
             ROSE_N_REJECTIONS, "Requests refused with 429 or 503, by why.");
}

static void put_hists(page *p, const rose_api_metrics *m)
{
    const rose_hist_bounds *t = &rose_hist_latency, *n = &rose_hist_tokens;
    hist(p, "vllm:time_to_first_token_seconds",
         "First byte of the request to the first token of a choice.", &m->ttft, t, 1e-9);
    hist(p, "vllm:inter_token_latency_seconds", "Between two tokens of a choice.", &m->itl, t,
         1e-9);
    hist(p, "vllm:request_time_per_output_token_seconds",
         "First to last token over the tokens after the first, by choice.", &m->tpot, t, 1e-9);
    hist(p, "vllm:e2e_request_latency_seconds",
         "First byte of the request to the last token of a choice.", &m->e2e, t, 1e-9);
    hist(p, "vllm:request_queue_time_seconds", "Submitted to the engine until admitted.", &m->queue,
         t, 1e-9);
    hist(p, "vllm:request_prefill_time_seconds", "Admitted to first token.", &m->prefill, t, 1e-9);
    hist(p, "vllm:request_decode_time_seconds", "First to last token.", &m->decode, t, 1e-9);
    hist(p, "vllm:request_inference_time_seconds", "Admitted to last token.", &m->inference, t,
         1e-9);
    hist(p, "vllm:request_prompt_tokens", "Prompt tokens of a choice.", &m->prompt_len, n, 1);
    hist(p, "vllm:request_prefill_kv_computed_tokens",
         "Prompt tokens of a choice that were not found in the prefix cache.", &m->computed_len, n,
         1);
    hist(p, "vllm:request_generation_tokens", "Generated tokens of a choice.", &m->generation_len,
         n, 1);
    hist(p, "vllm:request_max_num_generation_tokens",
         "Generated tokens of a request's longest choice.", &m->longest_len, n, 1);
    hist(p, "vllm:request_params_max_tokens", "max_tokens of a request, as asked or implied.",
         &m->max_tokens, n, 1);
    hist(p, "vllm:request_params_n", "n of a request.", &m->n, n, 1);
}

static void put_engine(page *p, const rose_engine *e, const rose_engine_stats *s)
{
    const rose_engine_hists *h = rose_engine_get_hists(e);
    hist(p, "vllm:iteration_tokens_total", "Rows of an engine step.", &h->tokens, &rose_hist_tokens,
         1);
    hist(p, "roseinfer:step_host_seconds", "Engine step: planning, batch, delivery.", &h->host_ns,
         &rose_hist_step, 1e-9);
    hist(p, "roseinfer:step_compute_seconds", "Engine step: in the backend.", &h->compute_ns,
         &rose_hist_step, 1e-9);
    hist(p, "roseinfer:step_exposed_seconds", "Engine step: own work that the backend waited for.",
         &h->exposed_ns, &rose_hist_step, 1e-9);
    one(p, "roseinfer:engine_steps_total", "counter", "Engine steps.", (double)s->steps);
    one(p, "roseinfer:engine_prompt_tokens_total", "counter",
        "Prompt tokens of admitted sequences.", (double)s->prompt_tokens);
    one(p, "roseinfer:engine_generated_tokens_total", "counter",
        "Tokens that the engine sampled, those nobody waits for too.", (double)s->generated_tokens);
    one(p, "vllm:num_preemptions_total", "counter", "Requests that gave their pages back.",
        (double)s->preemptions);
    one(p, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.",
        (double)s->prefix_queries);
    one(p, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.",
        (double)s->prefix_hits);
    one(p, "roseinfer:prefix_evictions_total", "counter", "Cached pages evicted.",
        (double)s->prefix_evictions);
    one(p, "roseinfer:recomputed_tokens_total", "counter", "Computed again after a preemption.",
        (double)s->recomputed_tokens);
    one(p, "roseinfer:kv_events_total", "counter", "Changes of the prefix cache for KV events.",
        (double)s->kv_changes);
    one(p, "roseinfer:kv_events_dropped_total", "counter",
        "Changes that found the queue of KV events full; the pages are sent again.",
        (double)s->kv_changes_dropped);
    const rose_memory_plan *plan = rose_engine_plan(e);
    head(p, "vllm:cache_config_info", "gauge", "1; the KV pool is in the labels.");
    put_series(p, "vllm:cache_config_info", "");
    rose_api_putf(p->o,
                  ",block_size=\"%d\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\","
                  "num_cpu_blocks=\"0\",num_gpu_blocks=\"%u\"} 1\n",
                  ROSE_KV_PAGE_TOKENS,
                  rose_compute_name(plan->int8_activations ? ROSE_COMPUTE_BF16 : plan->dtype),
                  rose_engine_has_prefix_cache(e) ? "True" : "False", s->kv_pages);
    one(p, "roseinfer:waiting_tokens", "gauge", "Prompt tokens that wait for admission.",
        s->waiting_tokens);
    one(p, "roseinfer:kv_pages_cached", "gauge", "Free pages that hold a cached prefix.",
        s->kv_pages_cached);
    one(p, "roseinfer:kv_pages", "gauge", "Pages of the KV pool.", s->kv_pages);
    one(p, "roseinfer:kv_pages_free", "gauge", "Free pages of the KV pool.", s->kv_pages_free);
    one(p, "roseinfer:engine_failed", "gauge", "1 once the backend has failed.", s->failed);
}

/* Under vLLM's names, and by source. Absent without speculation, as in vLLM. */
static void put_speculation(page *p, const rose_engine *e)
{
    static const char *const sources[ROSE_SPEC_SOURCES] = {[ROSE_SPEC_FROM_TEXT] = "text",
                                                           [ROSE_SPEC_FROM_PAST] = "past",
                                                           [ROSE_SPEC_FROM_GRAMMAR] = "grammar",
                                                           [ROSE_SPEC_FROM_PREDICTION] =
                                                               "prediction",
                                                           [ROSE_SPEC_FROM_OTHER] = "other"};
    const rose_spec_stats s = rose_engine_get_spec(e);
    if (!rose_engine_speculates(e)) return;
    one(p, "vllm:spec_decode_num_drafts_total", "counter", "Guesses that steps have checked.",
        (double)s.n_guesses);
    one(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens of these guesses.",
        (double)s.n_tried);
    one(p, "vllm:spec_decode_num_accepted_tokens_total", "counter",
        "Guessed tokens that were right.", (double)s.n_right);
    head(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Guessed tokens that were right, by place in the guess.");
    for (uint32_t i = 0; i < ROSE_SPEC_MAX; i++) {
        put_series(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "");
        rose_api_putf(p->o, ",position=\"%u\"} %" PRIu64 "\n", i, s.right_at[i]);
    }
    head(p, "roseinfer:spec_tokens_total", "counter",
         "Guessed tokens, by where the guess is from and what came of it.");
    for (uint32_t i = 0; i < ROSE_SPEC_FROM_OTHER; i++) {
        const uint64_t n[2] = {s.tried_of[i] - s.right_of[i], s.right_of[i]};
        for (int k = 0; k < 2; k++) {
            put_series(p, "roseinfer:spec_tokens_total", "");
            rose_api_putf(p->o, ",result=\"%s\",source=\"%s\"} %" PRIu64 "\n",
                          k == 0 ? "rejected" : "accepted", sources[i], n[k]);
        }
    }
    one(p, "roseinfer:spec_memory_bytes", "gauge",
        "Memory reserved for past outputs and for the texts of running requests.", (double)s.bytes);
}

static void put_grammars(page *p)
{
    rose_grammar_cache_stats s;
    rose_api_grammars_read(&p->a->grammars, &s);
    one(p, "roseinfer:grammar_cache_hits_total", "counter",
        "Structured requests whose grammar was compiled already.", (double)s.hits);
    one(p, "roseinfer:grammar_cache_misses_total", "counter", "Grammars compiled, or refused.",
        (double)s.misses);
    one(p, "roseinfer:grammar_cache_evictions_total", "counter",
        "Compiled grammars that left the cache.", (double)s.evicted);
    one(p, "roseinfer:grammar_cache_grammars", "gauge", "Compiled grammars in the cache.",
        (double)s.grammars);
    one(p, "roseinfer:grammar_cache_bytes", "gauge",
        "Memory of these grammars, with their states and masks.", (double)s.bytes);
}

/* Zero with --stall-warn-ms off. */
static void put_stalls(page *p)
{
    const char *names[ROSE_N_STALL_PLACES];
    _Atomic uint64_t counts[ROSE_N_STALL_PLACES];
    for (uint32_t i = 0; i < ROSE_N_STALL_PLACES; i++) {
        names[i] = rose_stall_place_name((rose_stall_place)i);
        atomic_init(&counts[i], rose_stall_count((rose_stall_place)i));
    }
    by_label(p, "roseinfer:stalls_total", "where", names, counts, ROSE_N_STALL_PLACES,
             "What took longer than --stall-warn-ms.");
}

static void put_slow(page *p)
{
    static const char *const why[ROSE_HTTP_N_SLOW] = {"stalled", "stream", "together"};
    _Atomic uint64_t counts[ROSE_HTTP_N_SLOW];
    for (uint32_t i = 0; i < ROSE_HTTP_N_SLOW; i++)
        atomic_init(&counts[i], rose_http_n_slow(p->a->http, (rose_http_slow)i));
    by_label(p, "roseinfer:slow_clients_dropped_total", "reason", why, counts, ROSE_HTTP_N_SLOW,
             "Connections closed because the client did not take its reply.");
}

static void put_limit(page *p)
{
    one(p, "roseinfer:connections_dropped_total", "counter",
        "Connections without a complete request that gave way to new ones at --max-connections.",
        (double)rose_http_n_dropped(p->a->http));
    one(p, "roseinfer:connections_refused_total", "counter",
        "New connections that got 503 at --max-connections.",
        (double)rose_http_n_refused(p->a->http));
}

/* Writes HTTP metrics under the usual exporter's names, without labels of our own. */
static void put_http(page *p, const rose_api_metrics *m)
{
    head(p, "http_requests_total", "counter", "Requests by route, method and status.");
    for (uint32_t r = 0; r < ROSE_METRIC_ROUTES; r++) {
        for (uint32_t k = 0; k < ROSE_METRIC_METHODS; k++) {
            for (uint32_t s = 0; s < ROSE_METRIC_STATUSES; s++) {
                uint64_t n = rose_count_get(&m->http[r][k][s]);
                if (n == 0) continue;
                rose_api_putf(p->o,
                              "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%d\"} "
                              "%" PRIu64 "\n",
                              rose_api_route_name(r), methods[k], statuses[s], n);
            }
        }
    }
    for (uint32_t s = 0; s < ROSE_METRIC_STATUSES; s++) {
        uint64_t n = rose_count_get(&p->a->early[s]);
        if (n == 0) continue;
        rose_api_putf(p->o,
                      "http_requests_total{handler=\"unread\",method=\"other\",status=\"%d\"} "
                      "%" PRIu64 "\n",
                      statuses[s], n);
    }
    hist(p, "http_request_duration_seconds", "First byte of the request to the end of the reply.",
         &m->http_time, &rose_hist_latency, 1e-9);
}

static void plain(page *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    rose_api_putf(p->o, "%s %.17g\n", name, value);
}

static void put_process(page *p)
{
    rose_procstat s = rose_procstat_read();
    plain(p, "process_cpu_seconds_total", "counter", "CPU time, user and system.", s.cpu_seconds);
    head(p, "roseinfer:page_faults_total", "counter", "Page faults; major ones read from disk.");
    rose_api_putf(p->o,
                  "roseinfer:page_faults_total{kind=\"minor\"} %" PRIu64
                  "\nroseinfer:page_faults_total{kind=\"major\"} %" PRIu64 "\n",
                  s.minor_faults, s.major_faults);
    plain(p, "process_resident_memory_bytes", "gauge", "Resident memory.",
          (double)s.resident_bytes);
    plain(p, "process_virtual_memory_bytes", "gauge", "Address space.", (double)s.virtual_bytes);
    plain(p, "process_open_fds", "gauge", "Open file descriptors.", s.open_fds);
    plain(p, "process_max_fds", "gauge", "Most file descriptors.", s.max_fds);
    plain(p, "process_start_time_seconds", "gauge", "Start, seconds of the Unix epoch.",
          s.start_time_seconds);
}

void rose_api_metrics_page(rose_api_out *o, const rose_api *a)
{
    page p = {.o = o, .a = a};
    const rose_engine *e = rose_api_engine(a);
    rose_api_metrics *sum = calloc(1, sizeof *sum);
    if (sum == NULL) {
        o->oom = true;
        return;
    }
    merge(sum, a);
    rose_engine_stats s = {0};
    if (e != NULL) s = rose_engine_get_stats(e);
    put_gauges(&p, &s);
    put_counters(&p, sum);
    put_hists(&p, sum);
    if (e != NULL) {
        put_engine(&p, e, &s);
        put_speculation(&p, e);
    }
    put_grammars(&p);
    put_stalls(&p);
    if (e != NULL) { /* before that, no HTTP server may be attached yet */
        put_slow(&p);
        put_limit(&p);
    }
    put_http(&p, sum);
    put_process(&p);
    free(sum);
}

/* ---- /v1/loads, in SGLang's form ---- */

enum { LOAD_CORE = 1, LOAD_MEMORY = 2, LOAD_QUEUES = 4, LOAD_ALL = 7 };

/* SGLang's sections. This server has nothing to tell in those without bits. */
static const struct {
    const char *name;
    unsigned bits;
} sections[] = {{"core", LOAD_CORE}, {"memory", LOAD_MEMORY}, {"queues", LOAD_QUEUES}, {"spec", 0},
                {"lora", 0},         {"disagg", 0},           {"all", LOAD_ALL}};
enum { N_SECTIONS = sizeof sections / sizeof *sections };

/* Returns the length of the first name of a list of n bytes. *comma: the bytes of the comma that
 * follows it, which clients write as it is or as %2C. */
static size_t name_length(const char *list, size_t n, size_t *comma)
{
    for (size_t i = 0; i < n; i++) {
        const bool coded = n - i >= 3 && strncasecmp(list + i, "%2C", 3) == 0;
        *comma = coded ? 3 : 1;
        if (coded || list[i] == ',') return i;
    }
    *comma = 0;
    return n;
}

static bool read_sections(unsigned *bits, const char *list, size_t n, rose_api_error *err)
{
    if (n > 0) *bits = 0;
    while (n > 0) {
        size_t comma, len = name_length(list, n, &comma), i = 0;
        while (i < N_SECTIONS &&
               (strlen(sections[i].name) != len || memcmp(sections[i].name, list, len) != 0))
            i++;
        if (i == N_SECTIONS)
            return rose_api_fail(err, 400, NULL, "include",
                                 "'include' names the section '%.*s'; the sections are core, "
                                 "memory, queues, spec, lora, disagg and all",
                                 len < 40 ? (int)len : 40, list);
        *bits |= sections[i].bits;
        list += len + comma;
        n -= len + comma;
    }
    return true;
}

static bool is_pair(const char *s, size_t n, const char *pair)
{
    return strlen(pair) == n && memcmp(s, pair, n) == 0;
}

/* Reads the query of /v1/loads. Members that are not SGLang's are ignored. */
static bool read_loads_query(unsigned *bits, const char *query, rose_api_error *err)
{
    *bits = LOAD_ALL;
    for (const char *s = query; *s != '\0';) {
        const size_t n = strcspn(s, "&");
        if (strncmp(s, "include=", 8) == 0 && !read_sections(bits, s + 8, n - 8, err)) return false;
        if (strncmp(s, "dp_rank=", 8) == 0 && !is_pair(s, n, "dp_rank=0"))
            return rose_api_fail(err, 400, NULL, "dp_rank",
                                 "'dp_rank' must be 0: this server has one engine");
        if (strncmp(s, "format=", 7) == 0 && !is_pair(s, n, "format=json"))
            return rose_api_fail(err, 400, NULL, "format",
                                 "'format' must be json; Prometheus reads /metrics");
        s += n;
        if (*s == '&') s++;
    }
    return true;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

static void put_load(rose_api_out *o, const rose_engine *e, unsigned bits)
{
    const rose_engine_stats s = rose_engine_get_stats(e);
    const rose_memory_plan *p = rose_engine_plan(e);
    const uint64_t capacity = (uint64_t)s.kv_pages * ROSE_KV_PAGE_TOKENS;
    const uint64_t used = (uint64_t)(s.kv_pages - s.kv_pages_free) * ROSE_KV_PAGE_TOKENS;
    rose_api_json(o, "{'dp_rank':0");
    if ((bits & LOAD_CORE) != 0) {
        rose_api_json(o, ",'num_running_reqs':%u,'num_waiting_reqs':%u,'num_total_reqs':%" PRIu64,
                      s.running, s.waiting, (uint64_t)s.running + s.waiting);
        rose_api_json(o, ",'num_used_tokens':%" PRIu64 ",'num_total_tokens':%" PRIu64, used,
                      used + s.waiting_tokens);
        rose_api_json(o, ",'max_total_num_tokens':%" PRIu64 ",'token_usage':%.9g", capacity,
                      capacity == 0 ? 0.0 : (double)used / (double)capacity);
        if (s.prefix_queries > 0)
            rose_api_json(o, ",'cache_hit_rate':%.9g",
                          (double)s.prefix_hits / (double)s.prefix_queries);
    }
    if ((bits & LOAD_MEMORY) != 0)
        rose_api_json(o,
                      ",'memory':{'weight_gb':%.6f,'kv_cache_gb':%.6f,'graph_gb':%.6f,"
                      "'token_capacity':%" PRIu64 "}",
                      gib(p->weights), gib(p->kv), gib(p->graphs), capacity);
    if ((bits & LOAD_QUEUES) != 0) rose_api_json(o, ",'queues':{'waiting':%u}", s.waiting);
    rose_api_puts(o, "}");
}

bool rose_api_loads_json(rose_api_out *o, const rose_api *a, const rose_engine *e,
                         const char *query, rose_api_error *err)
{
    unsigned bits;
    char when[32];
    struct tm tm;
    const time_t now = (time_t)rose_unix_time();
    if (!read_loads_query(&bits, query, err)) return false;
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S+00:00", &tm);
    rose_api_json(o, "{'timestamp':'%s','version':%-s,'dp_rank_count':1,'loads':[", when,
                  a->o.version);
    put_load(o, e, bits);
    rose_api_puts(o, "]}");
    return true;
}
