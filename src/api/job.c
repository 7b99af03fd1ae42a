/* api/job.c - the worker's part of a job: JSON -> checked fields -> ids -> submitted engine
 * requests. Everything is checked before anything is submitted. If a later part is refused,
 * requests that were already submitted are cancelled: a request runs as a whole or not at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/profile.h"
#include "base/stall.h"

/* A body may always hold this many values (40 bytes each while it is parsed), for /detokenize. */
enum { MIN_VALUES = 1 << 20 };

/* Submitting a choice takes a microsecond or more, so an I/O thread does not run jobs with more
 * choices than this. */
enum { MAX_SHORT_CHOICES = 4 };

/* The documented rule: choice 0 uses the seed itself; choice i uses the i-th output of
 * SplitMix64. */
static uint64_t choice_seed(uint64_t seed, uint64_t i)
{
    return i == 0 ? seed : rose_mix64(seed + i * 0x9E3779B97F4A7C15u);
}

/* The seed of a prompt whose request has none. --seed: output i of SplitMix64, where i counts these
 * prompts. Else a random one. Any thread. */
static uint64_t own_seed(rose_api *a)
{
    uint64_t seed;
    if (a->o.has_seed) {
        /* relaxed: the counter guards no data */
        const uint64_t i = atomic_fetch_add_explicit(&a->unseeded, 1, memory_order_relaxed);
        return choice_seed(a->o.seed, i + 1);
    }
    /* getrandom cannot fail for 8 bytes once the system has booted; the clock is a last resort. */
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = rose_mix64(rose_now_ns());
    return seed;
}

rose_api_job *rose_api_job_create(rose_api_io *io, rose_http_req *r, rose_api_kind kind,
                                  const rose_api_dialect *d)
{
    rose_api *a = io->api;
    rose_api_job *j = calloc(1, sizeof *j);
    if (j == NULL) return NULL;
    /* Take the body, because the client may leave while a worker reads it. A copy of 27 MB would
     * delay every stream of this thread. */
    if ((kind == ROSE_API_STORE && (j->store = rose_api_store_call_new(a, r)) == NULL) ||
        (j->body = rose_http_req_take_body(r, &j->body_len)) == NULL) {
        rose_api_store_call_free(j->store);
        free(j);
        return NULL;
    }
    j->api = a;
    j->io = io;
    j->r = r;
    j->kind = kind;
    j->dialect = d;
    j->created = rose_unix_time();
    j->background = rose_http_req_info(r)->own;
    j->turn.client = rose_api_client_of(a, r);
    j->turn.text = (uintptr_t)j; /* no other job's, until a grammar is needed */
    j->prof_id = rose_http_req_info(r)->prof_id;
    j->t_arrival = rose_http_req_info(r)->arrival_ns;
    j->t_complete = rose_http_req_info(r)->complete_ns;
    snprintf(j->id, sizeof j->id, "%s%016llx", d->id,
             (unsigned long long)rose_mix64(atomic_fetch_add_explicit(
                 &a->next_id, 0x9E3779B97F4A7C15u, memory_order_relaxed)));
    io->n_jobs++;
    return j;
}

void rose_api_job_free(rose_api_job *j)
{
    if (j == NULL) return;
    j->io->n_jobs--;
    rose_http_timer_cancel(j->timer);
    for (uint32_t i = 0; i < j->n_choices; i++) {
        rose_buf_free(&j->choices[i].text);
        free(j->choices[i].parts);
        rose_api_guide_destroy(&j->choices[i].guide);
        rose_calls_destroy(j->choices[i].calls);
        if (j->extras != NULL) rose_api_extra_free(&j->extras[i]);
    }
    free(j->extras);
    rose_grammar_unref(j->grammar);
    rose_json_decref(j->reading.tools);
    rose_json_decref(j->reading.tool_names);
    rose_api_prompts_free(&j->prompts);
    rose_api_pooled_free(j->pooled);
    rose_api_store_call_free(j->store);
    free(j->choices);
    free(j->stop_mem);
    rose_stops_free(&j->stops);
    rose_api_out_free(&j->head);
    rose_api_out_free(&j->reply);
    rose_api_out_free(&j->note);
    free(j->body);
    free(j);
}

static bool load_stops(rose_api_job *j, const rose_api_params *p)
{
    size_t n = p->stop == NULL ? 0 : rose_json_is_array(p->stop) ? rose_json_count(p->stop) : 1;
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < n && st == ROSE_OK; i++) {
        const rose_json *s = rose_json_is_array(p->stop) ? rose_json_at(p->stop, i) : p->stop;
        st = rose_stops_add(&j->stops, rose_json_text(s), rose_json_text_len(s));
    }
    if (rose_api_is_plain_chat(j) && st == ROSE_OK)
        st = rose_stops_add(&j->stops, ROSE_API_CHAT_STOP, sizeof ROSE_API_CHAT_STOP - 1);
    return st == ROSE_OK || rose_api_fail_nomem(&j->err);
}

static bool refuse_length(rose_api_job *j, const rose_api_params *p, uint64_t prompt, uint64_t want,
                          uint32_t limit)
{
    const char *const source = j->kind == ROSE_API_CHAT ? "messages" : "prompt";
    const char *param = source;
    if (prompt >= limit && j->dialect->overflow != NULL)
        return j->dialect->overflow(&j->err, prompt, limit - 1);
    if (prompt < limit && want > 1) /* with one token it would fit */
        param = p->max_completion_tokens >= 0 ? "max_completion_tokens" : "max_tokens";
    return rose_api_fail(&j->err, 400, "context_length_exceeded", param,
                         "This model's maximum context length is %u tokens. However, you requested "
                         "%llu tokens (%llu in the %s, %llu in the completion). Please reduce the "
                         "length of the %s or completion.",
                         limit, (unsigned long long)(prompt + want), (unsigned long long)prompt,
                         source, (unsigned long long)want, source);
}

/* The limit of tokens of a request that names none. */
static uint32_t default_tokens(const rose_api_job *j, uint32_t limit)
{
    const rose_generation *g = &j->api->o.generation;
    if (j->kind != ROSE_API_CHAT) return 16;
    return (g->has & ROSE_GENERATION_MAX_TOKENS) != 0 ? g->max_tokens : limit;
}

/* Checks that the longest prompt and its output fit the context of `limit` tokens, and says how
 * many tokens each choice gets. */
static bool fit_tokens(rose_api_job *j, const rose_api_params *p, uint32_t limit)
{
    const int64_t asked = p->max_completion_tokens >= 0 ? p->max_completion_tokens : p->max_tokens;
    uint64_t prompt = 0, want = asked >= 0 ? (uint64_t)asked : 1;
    for (uint32_t i = 0; i < j->prompts.n; i++)
        if (j->prompts.v[i].len > prompt) prompt = j->prompts.v[i].len;
    if (j->dialect->shortens && prompt < limit && want > limit - prompt) {
        want = limit - prompt;
        j->asked.shortened = true;
    }
    if (prompt + want > limit || (prompt >= limit && j->dialect->overflow != NULL))
        return refuse_length(j, p, prompt, want, limit);
    j->asked.max_tokens = asked >= 0 ? (uint32_t)want : default_tokens(j, limit);
    uint64_t most = limit - prompt;
    if (most > j->asked.max_tokens) most = j->asked.max_tokens;
    if ((uint64_t)p->min_tokens > most) /* as in vLLM */
        return rose_api_fail(&j->err, 400, NULL, "min_tokens",
                             "field 'min_tokens' is %lld, but at most %llu tokens are generated",
                             (long long)p->min_tokens, (unsigned long long)most);
    return true;
}

static void note_asked(rose_api_job *j, const rose_api_params *p, const rose_api_rules *u)
{
    j->asked = (rose_api_asked){
        .stream = p->stream,
        .usage = p->include_usage,
        .chunk_usage = p->continuous_usage,
        .echo = p->echo,
        .logprobs = p->n_logprobs >= 0,
        .prompt_logprobs = p->prompt_logprobs >= 0,
        .token_ids = p->token_ids,
        .as_ids = p->as_ids,
        .ignore_eos = p->ignore_eos,
        .prediction = p->prediction != NULL,
        .plain = j->api->o.chat == NULL && p->chat_template == NULL,
        .n = (uint32_t)p->n,
        .n_top = u->r.n_top,
        .prompt_n_top = p->prompt_logprobs > 0 ? (uint32_t)p->prompt_logprobs : 0,
        .min_tokens = u->r.min_tokens,
    };
    j->stops.include = p->include_stop;
}

/* Checks the size of reports before anything of that size is allocated. */
static bool cap_reports(rose_api_job *j, const rose_api_params *p, const rose_api_rules *u,
                        uint32_t limit)
{
    const uint32_t max_tokens = j->asked.max_tokens;
    uint64_t total = 0;
    for (uint32_t i = 0; i < j->prompts.n; i++) {
        uint64_t len = j->prompts.v[i].len, left = limit - len;
        if (u->r.logprobs) total += (max_tokens < left ? max_tokens : left) * (1 + u->r.n_top);
        if (u->r.prompt_logprobs) total += len * (1 + u->r.prompt_n_top);
    }
    total *= (uint64_t)p->n;
    return total <= ROSE_API_MAX_REPORTS ||
           rose_api_fail(&j->err, 400, NULL, "logprobs",
                         "the logprobs of all choices would be %llu entries, the limit is %d",
                         (unsigned long long)total, ROSE_API_MAX_REPORTS);
}

static bool create_extras(rose_api_job *j)
{
    const rose_api_asked *a = &j->asked;
    if (!a->echo && !a->logprobs && !a->prompt_logprobs && !a->token_ids) return true;
    j->extras = calloc(j->n_choices, sizeof *j->extras);
    if (j->extras == NULL) return rose_api_fail_nomem(&j->err);
    for (uint32_t i = 0; i < j->n_choices; i++)
        j->choices[i].extra = &j->extras[i];
    return true;
}

static bool create_choices(rose_api_job *j, const rose_api_params *p)
{
    const rose_api_prompts *prompts = &j->prompts;
    const uint32_t n = j->asked.n;
    uint32_t n_choices = prompts->n * n; /* at most max_n */
    size_t n_states = (size_t)n_choices * j->stops.n;
    j->choices = calloc(n_choices, sizeof *j->choices);
    j->stop_mem = calloc(n_states + 1, sizeof *j->stop_mem);
    if (j->choices == NULL || j->stop_mem == NULL) return rose_api_fail_nomem(&j->err);
    j->n_choices = n_choices;
    for (uint32_t i = 0; i < n_choices; i++) {
        rose_api_choice *c = &j->choices[i];
        c->job = j;
        c->index = i;
        const rose_ids *ids = &prompts->v[i / n];
        c->prompt_n = (uint32_t)ids->len;
        rose_detok_begin(&c->detok, j->api->tok, ids->data, ids->len, ROSE_DECODE_SKIP_SPECIAL);
        c->stop.state = j->stop_mem + (size_t)i * j->stops.n;
        c->trim_space = rose_api_is_plain_chat(j) && !p->continue_final &&
                        j->grammar == NULL; /* which may oblige to the space */
        if (!rose_api_calls_create(c)) return rose_api_fail_nomem(&j->err);
    }
    if (!create_extras(j) || !rose_api_guides_create(j)) return false;
    rose_grammar_unref(j->grammar);
    j->grammar = NULL;
    if (j->dialect->head != NULL) j->dialect->head(&j->head, j, p);
    return !j->head.oom || rose_api_fail_nomem(&j->err);
}

static rose_sampling sampling_of(const rose_api_params *p)
{
    rose_sampling s = {
        .temperature = (float)p->temperature,
        .top_p = (float)p->top_p,
        .min_p = (float)p->min_p,
        .top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0,
    };
    /* As in vLLM, a temperature below 1e-5 counts as 0: the division would overflow, and the
     * result is greedy anyway. */
    if (p->temperature < 1e-5) s.temperature = 0.0f;
    return s;
}

/* Makes room in this I/O thread's sink for n more engine requests. */
static bool reserve_live(rose_api_job *j, uint32_t n)
{
    unsigned before = atomic_fetch_add_explicit(&j->io->n_live, n, memory_order_relaxed);
    if (before + n < ROSE_API_MAX_LIVE)
        return true; /* the sink's capacity must be one more than the number of requests */
    atomic_fetch_sub_explicit(&j->io->n_live, n, memory_order_relaxed);
    rose_api_fail_status(&j->err, ROSE_E_FULL, NULL, rose_api_engine(j->api));
    return false;
}

/* Reserves places in the engine's queue for all choices, or for none. Otherwise the first of
 * many choices could fill the queue for the last. */
static bool reserve_places(rose_api_job *j, rose_engine *e, uint64_t n_tokens)
{
    rose_err err = {0};
    rose_status st = rose_engine_reserve(e, j->n_choices, n_tokens, &err);
    if (st == ROSE_E_INVAL)
        return rose_api_fail(&j->err, 400, NULL, "n", "too many choices (prompts x n): %s",
                             err.msg);
    if (st != ROSE_OK) rose_api_fail_status(&j->err, st, &err, e);
    return st == ROSE_OK;
}

/* What one run of a job needs. It owns all of it but the body. */
typedef struct run {
    rose_json *body, *chat, *names; /* chat: the body as a chat, or NULL; names: of its tools */
    rose_json *tag;                 /* the structural tag that p->structure may point to */
    rose_chat *own_template;
    rose_template_text text; /* the rendered messages; empty: they are not rendered yet */
    rose_ids prediction;     /* owned */
    rose_api_params p;       /* borrows from all of the above */
    rose_api_ignored ignored;
    uint64_t template_ns;
    rose_api_prompt_ctx c;
} run;

static void submit_all(rose_api_job *j, const run *r, const rose_api_rules *rules)
{
    const rose_api_params *p = &r->p;
    const rose_api_prompts *prompts = &j->prompts;
    rose_engine *e = rose_api_engine(j->api);
    const uint32_t n = j->asked.n;
    rose_request_opts o = {.max_tokens = j->asked.max_tokens,
                           .score_only = j->asked.max_tokens == 0,
                           .rules = rules->any ? &rules->r : NULL,
                           .sampling = sampling_of(p),
                           .ignore_eos = p->ignore_eos,
                           .no_speculation = !p->speculation,
                           .prediction = r->prediction.data,
                           .n_prediction = (uint32_t)r->prediction.len,
                           .priority =
                               j->background ? ROSE_API_BATCH_PRIORITY : (int32_t)p->priority,
                           .t_ns = j->t_complete,
                           .prof_id = j->prof_id,
                           .sink = j->io->sink};
    if (p->cache_salt != NULL) {
        o.cache_salt = rose_json_text(p->cache_salt);
        o.cache_salt_len = rose_json_text_len(p->cache_salt);
    }
    uint64_t seed = 0, n_tokens = (uint64_t)j->n_prompt_tokens * n; /* of those not submitted */
    if (!reserve_live(j, j->n_choices)) return;
    if (reserve_places(j, e, n_tokens)) o.n_reserved = j->n_choices;
    for (uint32_t i = 0; i < j->n_choices && j->err.status == 0; i++) {
        rose_err err = {0};
        const rose_ids *ids = &prompts->v[i / n];
        if (i % n == 0) seed = p->has_seed ? (uint64_t)p->seed : own_seed(j->api);
        o.prompt = ids->data;
        o.n_prompt = (uint32_t)ids->len;
        o.sampling.seed = choice_seed(seed, i % n);
        o.same_prompt = i % n > 0;
        o.user = &j->choices[i];
        o.guide = j->choices[i].guide;
        j->choices[i].guide = (rose_guide){0}; /* the engine's, even if it refuses */
        rose_status st = rose_engine_submit(e, &o, &j->choices[i].req, &err);
        o.n_reserved--;
        n_tokens -= o.n_prompt;
        if (st == ROSE_OK)
            j->n_submitted++;
        else
            rose_api_fail_status(&j->err, st, &err, e);
    }
    if (j->err.status == 0) return;
    if (o.n_reserved > 0) rose_engine_unreserve(e, o.n_reserved, n_tokens);
    for (uint32_t i = 0; i < j->n_submitted; i++)
        rose_request_cancel(j->choices[i].req);
    atomic_fetch_sub_explicit(&j->io->n_live, j->n_choices - j->n_submitted, memory_order_relaxed);
}

bool rose_api_fail_timeout(rose_api_error *e, double timeout_s)
{
    return rose_api_fail(e, 504, "timeout", "timeout",
                         "the request took longer than its 'timeout' of %g s", timeout_s);
}

/* Returns false, with an error, if the request's time-out has passed, because further work is
 * then useless. */
static bool in_time(rose_api_job *j)
{
    if (!(j->timeout_s > 0)) return true;
    if ((double)(rose_now_ns() - j->t_arrival) * 1e-9 < j->timeout_s) return true;
    return rose_api_fail_timeout(&j->err, j->timeout_s);
}

/* Tells the I/O thread the time-out before the job is tokenised. For a short body it knows
 * already. */
static void give_notice(rose_api_job *j)
{
    if (j->notice) return; /* in a run that was declined */
    j->notice = j->timeout_s > 0 && j->api->o.async_admit && j->body_len > ROSE_API_MAX_PEEK;
    if (!j->notice) return;
    rose_wakeq_push(j->io->done, j); /* it has room for every job twice */
    rose_wakeq_signal(j->io->done);
}

static void run_free(run *r)
{
    rose_template_text_free(&r->text);
    rose_ids_free(&r->prediction);
    rose_json_decref(r->tag);
    rose_json_decref(r->chat);
    rose_json_decref(r->names);
    rose_json_decref(r->body);
    rose_chat_close(r->own_template);
}

static bool load_chat(rose_api_job *j, run *r)
{
    rose_api_prompts *prompts = &j->prompts;
    const rose_api_prompt_ctx *c = &r->c;
    prompts->v = calloc(1, sizeof *prompts->v);
    if (prompts->v == NULL) return rose_api_fail_nomem(&j->err);
    prompts->n = 1;
    if (r->text.bytes == NULL && !rose_api_messages_render(&r->text, &r->p, c, &j->err))
        return false;
    rose_api_tools_prompt(j, &r->text);
    if (j->dialect->overflow != NULL && !rose_api_may_fit(r->text.len, c))
        return j->dialect->overflow(&j->err, r->text.len / rose_detok_cap(c->tok),
                                    c->max_model_len - 1);
    if (!rose_api_encode_chat(&prompts->v[0], &r->text, c, &j->err)) return false;
    if (prompts->v[0].len > 0) return true;
    return rose_api_fail(&j->err, 400, NULL, "messages", "the chat template gives an empty prompt");
}

/* Notes the ignored fields for the reply's header, the metric and the log. */
static bool note_ignored(rose_api_job *j, const rose_api_ignored *g)
{
    if (g->n == 0) return true;
    j->n_ignored = g->n;
    rose_api_ignored_header(&j->note, g);
    if (j->note.oom || rose_buf_str(&j->note.b) == NULL) return rose_api_fail_nomem(&j->err);
    rose_api_ignored_log(&j->api->logged, g);
    return true;
}

/* Makes the prompts and the rules of a generation, and checks what depends on their lengths. */
static bool prepare(rose_api_job *j, run *r, rose_api_rules *rules)
{
    const rose_api_params *p = &r->p;
    const uint32_t limit = r->c.max_model_len;
    const rose_prof_span span = rose_prof_begin("api.tokenize");
    r->c.max_prompts = j->api->o.max_n / (uint32_t)p->n;
    j->timeout_s = p->timeout;
    give_notice(j);
    bool ok = in_time(j);
    if (ok && j->kind == ROSE_API_CHAT)
        ok = load_chat(j, r);
    else if (ok)
        ok = rose_api_prompts_load(&j->prompts, p->prompt, p->add_special_tokens, &r->c, &j->err);
    ok = ok && rose_api_rules_load(rules, p, &r->c, &j->err) &&
         rose_api_prediction_load(&r->prediction, p->prediction, &r->c, &j->err);
    j->t_tokenized = rose_now_ns();
    rose_prof_end(&span);
    if (!ok || !in_time(j)) return false;
    note_asked(j, p, rules);
    return fit_tokens(j, p, limit) && cap_reports(j, p, rules, limit);
}

static void submit(rose_api_job *j, const run *r, const rose_api_rules *rules)
{
    if (!load_stops(j, &r->p) || !create_choices(j, &r->p) || !note_ignored(j, &r->ignored)) return;
    for (uint32_t i = 0; i < j->prompts.n; i++)
        j->n_prompt_tokens += (uint32_t)j->prompts.v[i].len;
    if (rose_api_is_gone(j)) return;
    const rose_prof_span span = rose_prof_begin("api.submit");
    submit_all(j, r, rules);
    rose_prof_end_with(&span, "choices", j->n_submitted);
}

static void run_generation(rose_api_job *j, run *r)
{
    rose_api_rules rules = {0};
    if (prepare(j, r, &rules)) {
        if (!j->render) {
            submit(j, r, &rules);
        } else {
            rose_api_render_run(j, &r->p, &r->c);
            if (j->err.status == 0) (void)note_ignored(j, &r->ignored);
        }
    }
    rose_api_rules_free(&rules);
    if (j->extras == NULL) rose_api_prompts_free(&j->prompts); /* the reply does not show them */
}

static void run_text(rose_api_job *j, const run *r)
{
    if ((j->kind & ROSE_API_POOLED) != 0) {
        if (note_ignored(j, &r->ignored)) rose_api_pooled_run(j, &r->p, &r->c);
        return;
    }
    if (j->kind == ROSE_API_TOKENIZE)
        rose_api_tokenize_run(j, &r->p, &r->c);
    else if (j->kind == ROSE_API_DETOKENIZE)
        rose_api_detokenize_run(j, &r->p, &r->c);
    else if (j->dialect->count != NULL)
        rose_api_count_run(j, &r->p, &r->c);
    else
        rose_api_apply_run(j, &r->p, &r->c);
    if (j->err.status == 0 && !j->declined) (void)note_ignored(j, &r->ignored);
}

/* Checks the body, after its translation if the dialect is not that of a chat. */
static bool check_body(rose_api_job *j, run *r)
{
    const rose_api *a = j->api;
    const rose_api_dialect *d = j->dialect;
    const rose_api_schema_opts so = {.model_id = a->o.model_id,
                                     .model_aliases = &a->o.model_aliases,
                                     .max_n = a->o.max_n,
                                     .max_stop = a->o.max_stop,
                                     .has_template = a->o.chat != NULL,
                                     .trust_template = a->o.trusted != NULL,
                                     .generation = a->o.generation};
    rose_api_ignored *g = &r->ignored;
    rose_api_translation t = {.body = r->body,
                              .generates = j->kind == ROSE_API_CHAT,
                              .templated = so.has_template,
                              .ignored = g,
                              .err = &j->err};
    bool functions = false, ok = d->translate == NULL || d->translate(&t);
    rose_json *chat = d->translate == NULL ? r->body : t.chat;
    r->chat = t.chat;
    r->names = t.tool_names;
    if (ok && (j->kind & (ROSE_API_CHAT | ROSE_API_APPLY | ROSE_API_TOKENIZE)) != 0)
        ok = rose_api_legacy(chat, &functions, &j->err);
    ok = ok && rose_api_schema_check(&r->p, chat, j->kind, &so, g, &j->err);
    r->p.functions = functions;
    for (uint32_t i = 0; i < g->n && i < ROSE_API_MAX_IGNORED && d->renames != NULL; i++)
        rose_api_translate_name(g->names[i], sizeof g->names[i], d->renames);
    r->p.body = r->body;
    r->p.tool_names = t.tool_names;
    return ok;
}

/* Parses and checks the body, and compiles its own template. */
static bool read_body(rose_api_job *j, run *r)
{
    const size_t most = (size_t)j->api->o.max_n * r->c.max_model_len;
    const rose_prof_span span = rose_prof_begin("api.parse");
    rose_prof_flow(ROSE_PROF_FLOW_STEP, j->prof_id);
    const bool ok = rose_api_json_load(&r->body, j->body, j->body_len,
                                       most < MIN_VALUES ? MIN_VALUES : most, &j->err) &&
                    check_body(j, r) &&
                    rose_api_own_template(&r->own_template, &r->p, &r->c, &j->err);
    rose_prof_end_with(&span, "bytes", j->body_len);
    if (r->own_template != NULL) r->c.chat = r->own_template;
    if (ok) j->t_parsed = rose_now_ns();
    return ok;
}

/* Returns the number of choices asked for, even if that number is over the limit. */
static uint64_t count_choices(const rose_api_params *p)
{
    const bool many =
        rose_json_is_array(p->prompt) && !rose_json_is_integer(rose_json_at(p->prompt, 0));
    return (many ? rose_json_count(p->prompt) : 1) * (uint64_t)p->n;
}

/* The jobs of the tokenizer: all but profiles, files and batches. */
static void run_body(rose_api_job *j, rose_encoder *enc)
{
    const rose_api *a = j->api;
    rose_engine *e = rose_api_engine(a);
    run r = {.ignored = {.strict = a->o.strict_fields}};
    r.c = (rose_api_prompt_ctx){.enc = enc,
                                .tok = a->tok,
                                .vocab_size = rose_engine_arch(e)->vocab_size,
                                .max_model_len = rose_engine_plan(e)->max_model_len,
                                .gone = &j->gone,
                                .job = j,
                                .ignored = &r.ignored,
                                .api = a,
                                .chat = a->o.chat,
                                .template_ns = &r.template_ns};
    if (a->o.early_wake && !j->render && rose_api_generates(j)) j->device = rose_engine_expect(e);
    const rose_prof_span span = rose_prof_begin("api.job");
    if (read_body(j, &r)) {
        j->declined = j->phase == ROSE_API_READING_HERE && count_choices(&r.p) > MAX_SHORT_CHOICES;
        if (!rose_api_generates(j))
            run_text(j, &r);
        else if (!j->declined && rose_api_tools_load(j, &r.p, &r.c, &r.text, &r.tag) &&
                 rose_api_guide_load(j, &r.p.structure))
            run_generation(j, &r);
    }
    if (j->dialect->renames != NULL) {
        if (j->err.status != 0) rose_api_translate_error(&j->err, j->dialect->renames);
        rose_api_translate_name(j->guided_by, sizeof j->guided_by, j->dialect->renames);
    }
    run_free(&r);
    rose_prof_end(&span);
}

/* Profiles, files and batches. */
static void run_task(rose_api_job *j)
{
    rose_api_ignored ignored = {.strict = j->api->o.strict_fields};
    if (j->kind == ROSE_API_STORE)
        rose_api_store_run(j, &ignored);
    else
        rose_api_profile_run(j, &ignored);
    if (j->err.status == 0) (void)note_ignored(j, &ignored);
}

static void process(rose_api_job *j, rose_encoder *enc)
{
    if (rose_api_is_gone(j)) return;
    j->t_worker = rose_now_ns();
    if ((j->kind & (ROSE_API_PROFILE_START | ROSE_API_PROFILE_STOP | ROSE_API_STORE)) != 0)
        run_task(j);
    else
        run_body(j, enc);
    if (j->declined) return;
    free(j->body);
    j->body = NULL; /* body_len stays: worker.c has counted it */
}

/* Before the job is handed back. */
static void watch_job(rose_stall_span *s, const rose_api_job *j)
{
    static const char *const kinds[] = {
        [ROSE_API_COMPLETION] = "completion",    [ROSE_API_CHAT] = "chat",
        [ROSE_API_TOKENIZE] = "tokenize",        [ROSE_API_DETOKENIZE] = "detokenize",
        [ROSE_API_APPLY] = "apply-template",     [ROSE_API_PROFILE_START] = "start_profile",
        [ROSE_API_PROFILE_STOP] = "stop_profile"};
    if (!rose_stall_stop(s)) return;
    const char *name = (j->kind & ROSE_API_POOLED) != 0 ? "pooled"
                       : j->kind == ROSE_API_STORE      ? "files and batches"
                                                        : kinds[j->kind];
    uint64_t parse = j->t_parsed > j->t_worker ? j->t_parsed - j->t_worker : 0;
    rose_stall_report(ROSE_STALL_TOKENIZE, s, "%s, body of %zu bytes, JSON %.1f ms, %u tokens",
                      name, j->body_len, (double)parse * 1e-6, j->n_prompt_tokens);
}

void rose_api_job_process(rose_api_job *j, rose_encoder *enc)
{
    rose_stall_span span = {0};
    rose_stall_begin(&span);
    process(j, enc);
    watch_job(&span, j);
}
