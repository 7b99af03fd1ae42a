/* api/pooled.c - /v1/embeddings, /v1/rerank and /v1/score: requests that generate nothing.
 *
 * A worker turns the inputs into ids and submits them. A choice of the job is one engine request.
 * An input of /v1/embeddings is one choice. To rank with embeddings, each text is a choice, and the
 * scores are cosines. A reranker reads a query and a document in the template of its model card and
 * answers yes or no: such a pair is two choices, whose results are the log-probabilities of the two
 * answers. The second one finds the prompt of the first in the prefix cache.
 *
 * A request may have more inputs than the engine's queue takes. So at most WINDOW choices are
 * submitted at a time, and each end of a choice submits the next ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/clock.h"

enum { MAX_INPUTS = 2048, WINDOW = 256 };

/* A reranker reads the query again with each document. Without this limit, a body of a few hundred
 * kilobytes could occupy a worker for minutes. */
enum { MAX_PAIR_BYTES = 32 << 20 };

/* A reply with more values or more bytes of documents is written by a worker. A value takes 0.1 us.
 */
enum { MAX_VALUES_HERE = 4096, MAX_DOCUMENTS_HERE = 256 << 10 };

typedef struct rose_api_pooled {
    rose_pooling pool;
    bool normalizes, base64;
    uint32_t width, n_kept; /* values of a state; values of an embedding */
    bool ranks;             /* choices 2 i and 2 i + 1: the answers yes and no of pair i */
    uint32_t answers[2];    /* their ids */
    uint32_t n_pairs;       /* of /v1/rerank and /v1/score */
    uint32_t n_first;       /* without `ranks`: pair i compares input i % n_first, which comes
                             * before the others, with input n_first + i */
    float *states;          /* owned [n_choices][n_kept]; NULL with `ranks` */
    float *logprobs;        /* owned [n_choices], with `ranks`; or NULL */
    uint32_t top_n;
    rose_json *documents; /* a reference; NULL: the reply does not show them */
    rose_json *salt;      /* a reference to cache_salt, or NULL */
    int32_t priority;
} rose_api_pooled;

void rose_api_pooled_free(rose_api_pooled *d)
{
    if (d == NULL) return;
    free(d->states);
    free(d->logprobs);
    rose_json_decref(d->documents);
    rose_json_decref(d->salt);
    free(d);
}

/* ---- worker: the inputs ---- */

typedef struct input {
    rose_api_job *j;
    const rose_api_params *p;
    const rose_api_prompt_ctx *c;
    uint32_t most; /* tokens of an input */
} input;

static bool too_long(const input *in, const char *name, size_t n)
{
    return rose_api_fail(&in->j->err, 400, "context_length_exceeded", name,
                         "This model's maximum context length is %u tokens, of which an input may "
                         "have %u. However, '%s' has %zu tokens. Please shorten it, or set "
                         "truncate_prompt_tokens.",
                         in->c->max_model_len, in->most, name, n);
}

/* The most tokens that truncate_prompt_tokens leaves; 0 = it is absent. */
static uint32_t cut_of(const input *in)
{
    const int64_t cut = in->p->pooled.truncate;
    if (cut == 0) return 0;
    return cut < 0 || cut > (int64_t)in->most ? in->most : (uint32_t)cut;
}

static bool check_length(const input *in, const char *name, const rose_ids *ids)
{
    if (ids->len == 0) return rose_api_fail(&in->j->err, 400, NULL, name, "'%s' is empty", name);
    return ids->len <= in->most || too_long(in, name, ids->len);
}

/* A text that is cut may be of any length: only the size of the body limits it. */
static bool encode(const input *in, rose_ids *out, const rose_json *text, unsigned flags,
                   const char *name)
{
    rose_api_prompt_ctx c = *in->c;
    if (cut_of(in) > 0) c.max_model_len = 0;
    return rose_api_encode(out, rose_json_text(text), rose_json_text_len(text), flags, &c, name,
                           &in->j->err);
}

/* Cuts the ids of a text to the first ones. As in Hugging Face's tokenizers, the token that the
 * post-processor appends stays. */
static bool cut_text(const input *in, rose_ids *ids, const rose_json *text, const char *name)
{
    rose_ids plain = {0};
    const uint32_t cut = cut_of(in);
    if (cut == 0 || ids->len <= cut) return true;
    if (!encode(in, &plain, text, 0, name)) return false;
    const uint32_t last = ids->data[ids->len - 1];
    if (plain.len == 0 || plain.data[plain.len - 1] != last) ids->data[cut - 1] = last;
    ids->len = cut;
    rose_ids_free(&plain);
    return true;
}

static bool load_text(const input *in, rose_ids *out, const rose_json *text, const char *name)
{
    const unsigned flags = in->p->add_special_tokens ? ROSE_ENCODE_ADD_SPECIAL : 0;
    if (!rose_json_is_string(text))
        return rose_api_fail(&in->j->err, 400, NULL, name, "'%s' must be a string", name);
    return encode(in, out, text, flags, name) && cut_text(in, out, text, name) &&
           check_length(in, name, out);
}

static bool load_ids(const input *in, rose_ids *out, const rose_json *list, const char *name)
{
    const uint32_t cut = cut_of(in);
    if (!rose_api_ids_load(out, list, name, in->c->vocab_size, &in->j->err)) return false;
    if (cut > 0 && out->len > cut) out->len = cut;
    return check_length(in, name, out);
}

/* what: inputs, texts. */
static bool check_count(const input *in, size_t n, const char *name, const char *what)
{
    if (n == 0) return rose_api_fail(&in->j->err, 400, NULL, name, "'%s' is empty", name);
    return n <= MAX_INPUTS || rose_api_fail(&in->j->err, 400, NULL, name,
                                            "'%s' has %zu %s, the limit of a request is %d", name,
                                            n, what, MAX_INPUTS);
}

/* Room for n inputs. */
static bool create_inputs(const input *in, size_t n)
{
    rose_api_prompts *to = &in->j->prompts;
    to->v = calloc(n, sizeof *to->v);
    if (to->v == NULL) return rose_api_fail_nomem(&in->j->err);
    to->n = (uint32_t)n;
    return true;
}

/* Whether to go on: the client still waits. */
static bool is_there(const input *in)
{
    return !atomic_load_explicit(in->c->gone, memory_order_relaxed) || /* only saves work */
           rose_api_fail(&in->j->err, 499, NULL, NULL, "the client has left");
}

/* The four forms of `input`: a string, a list of strings, ids, a list of lists of ids. */
static bool load_embed(const input *in)
{
    const rose_json *v = in->p->pooled.input, *first = rose_json_at(v, 0);
    const bool many = rose_json_is_array(v) && !rose_json_is_integer(first);
    if (!rose_json_is_string(v) && !rose_json_is_array(v))
        return rose_api_fail_wrong(&in->j->err, "input", ROSE_API_PROMPT_FORMS);
    const size_t n = many ? rose_json_count(v) : 1;
    if (!check_count(in, n, "input", "inputs") || !create_inputs(in, n)) return false;
    rose_ids *to = in->j->prompts.v;
    if (!many)
        return rose_json_is_array(v) ? load_ids(in, to, v, "input") : load_text(in, to, v, "input");
    for (uint32_t i = 0; i < in->j->prompts.n; i++) {
        const rose_json *one = rose_json_at(v, i);
        char name[32];
        snprintf(name, sizeof name, "input[%u]", i);
        if (!is_there(in)) return false;
        if (rose_json_kind_of(one) != rose_json_kind_of(first) || rose_json_is_object(one))
            return rose_api_fail(&in->j->err, 400, NULL, name,
                                 "'%s' must be a string or a list of token ids, as all others",
                                 name);
        if (!(rose_json_is_array(one) ? load_ids(in, &to[i], one, name)
                                      : load_text(in, &to[i], one, name)))
            return false;
    }
    return true;
}

/* ---- worker: pairs ---- */

/* Text i of a string, or of a list whose items are strings or objects with a text; else NULL. */
static const rose_json *text_at(const rose_json *list, uint32_t i)
{
    const rose_json *v = rose_json_is_array(list) ? rose_json_at(list, i) : list;
    if (rose_json_is_object(v)) v = rose_json_get(v, "text");
    return rose_json_is_string(v) ? v : NULL;
}

typedef struct texts {
    const rose_json *list;
    const char *name;
    uint32_t n;
} texts;

static bool read_texts(const input *in, texts *t)
{
    const size_t n = rose_json_is_array(t->list) ? rose_json_count(t->list) : 1;
    if (!check_count(in, n, t->name, "texts")) return false;
    t->n = (uint32_t)n;
    for (uint32_t i = 0; i < t->n; i++)
        if (text_at(t->list, i) == NULL)
            return rose_api_fail_wrong(&in->j->err, t->name,
                                       "a string, or a list of strings or of objects with the "
                                       "string 'text'");
    return true;
}

/* The two sides of the pairs: one or n texts on the left, n on the right. */
static bool read_sides(const input *in, texts side[2])
{
    const rose_api_pooled_params *q = &in->p->pooled;
    const bool rerank = in->j->kind == ROSE_API_RERANK;
    side[0] = (texts){rerank ? q->query : q->text_1, rerank ? "query" : "text_1", 0};
    side[1] = (texts){rerank ? q->documents : q->text_2, rerank ? "documents" : "text_2", 0};
    if (rerank && !rose_json_is_string(q->query))
        return rose_api_fail_wrong(&in->j->err, "query", "a string");
    if (rerank && !rose_json_is_array(q->documents))
        return rose_api_fail_wrong(&in->j->err, "documents",
                                   "a list of strings or of objects with the string 'text'");
    if (!read_texts(in, &side[0]) || !read_texts(in, &side[1])) return false;
    return side[0].n == 1 || side[0].n == side[1].n ||
           rose_api_fail(&in->j->err, 400, NULL, "text_1",
                         "'text_1' has %u texts and 'text_2' has %u: one text is compared with "
                         "all, or both have as many",
                         side[0].n, side[1].n);
}

/* Embeddings: all texts of the left, then all of the right. */
static bool load_cosines(const input *in, rose_api_pooled *d, const texts side[2])
{
    uint32_t at = 0;
    if (in->c->api->o.pooling.own_head)
        return rose_api_fail(&in->j->err, 400, "not_a_reranker", NULL,
                             "the model scores texts with a head of its own, which is not "
                             "supported; /v1/embeddings serves its states, and --task embed "
                             "compares them");
    if (in->p->pooled.instruction != NULL)
        return rose_api_fail(&in->j->err, 400, NULL, "instruction",
                             "field 'instruction' is for rerankers, and this server compares "
                             "embeddings (--task rerank); put an instruction into the texts");
    d->n_pairs = side[1].n;
    d->n_first = side[0].n;
    if (!create_inputs(in, (size_t)side[0].n + side[1].n)) return false;
    for (const texts *s = side; s < side + 2; s++)
        for (uint32_t i = 0; i < s->n; i++, at++) {
            char name[40];
            snprintf(name, sizeof name, rose_json_is_array(s->list) ? "%s[%u]" : "%s", s->name, i);
            if (!is_there(in)) return false;
            if (!load_text(in, &in->j->prompts.v[at], text_at(s->list, i), name)) return false;
        }
    return true;
}

static bool find_answers(const input *in, rose_api_pooled *d)
{
    rose_err err;
    return rose_rank_answers(in->c->tok, in->c->vocab_size, d->answers, &err) == ROSE_OK ||
           rose_api_fail(&in->j->err, 400, "not_a_reranker", NULL, "%s", err.msg);
}

static rose_rank_text rank_text(const rose_json *text)
{
    return (rose_rank_text){rose_json_text(text), rose_json_text_len(text)};
}

static bool add_ids(const input *in, rose_ids *to, const rose_ids *from, size_t n)
{
    if (to->cap - to->len < n) {
        const size_t cap = to->len + n + 64;
        uint32_t *data = realloc(to->data, cap * sizeof *data);
        if (data == NULL) return rose_api_fail_nomem(&in->j->err);
        to->data = data;
        to->cap = cap;
    }
    if (n > 0) memcpy(to->data + to->len, from->data, n * sizeof *to->data);
    to->len += n;
    return true;
}

/* The part of a reranker's prompt that holds the request's texts, in which no text of a special
 * token counts as one. */
static bool encode_pair(const input *in, rose_ids *out, const rose_json *query,
                        const rose_json *document, const char *name)
{
    rose_buf body = {0};
    rose_api_prompt_ctx c = *in->c;
    if (cut_of(in) > 0) c.max_model_len = 0;
    const bool ok = rose_rank_body(&body, rank_text(in->p->pooled.instruction), rank_text(query),
                                   rank_text(document)) != ROSE_OK
                        ? rose_api_fail_nomem(&in->j->err)
                        : rose_api_encode(out, body.data, body.len, ROSE_ENCODE_PLAIN_SPECIAL, &c,
                                          name, &in->j->err);
    rose_buf_free(&body);
    return ok;
}

/* A prompt, and room for the answer after it. */
static bool build_pair(const input *in, rose_ids *to, const rose_ids part[3], const char *name)
{
    const size_t fixed = part[0].len + part[2].len;
    const uint32_t cut = cut_of(in);
    size_t n = part[1].len;
    if (cut > 0 && cut <= fixed)
        return rose_api_fail(&in->j->err, 400, NULL, "truncate_prompt_tokens",
                             "field 'truncate_prompt_tokens' is %u: the reranker's template alone "
                             "has %zu tokens",
                             cut, fixed);
    if (cut > 0 && fixed + n > cut) n = cut - fixed;
    if (fixed + n > in->most) return too_long(in, name, fixed + n);
    return add_ids(in, to, &part[0], part[0].len) && add_ids(in, to, &part[1], n) &&
           add_ids(in, to, &part[2], part[2].len) &&
           add_ids(in, to, &(rose_ids){.data = (uint32_t[1]){0}, .len = 1}, 1);
}

/* Checks the sum of what encode_pair reads for all pairs. */
static bool check_pair_bytes(const input *in, const texts side[2])
{
    size_t n = 0; /* at most MAX_INPUTS times the body */
    for (uint32_t i = 0; i < side[1].n; i++)
        n += rose_json_text_len(in->p->pooled.instruction) +
             rose_json_text_len(text_at(side[0].list, side[0].n > 1 ? i : 0)) +
             rose_json_text_len(text_at(side[1].list, i));
    return n <= MAX_PAIR_BYTES ||
           rose_api_fail(&in->j->err, 400, NULL, side[1].name,
                         "the texts of all pairs have %zu bytes, of which each pair counts its "
                         "instruction, '%s' and '%s'; the limit is %d. Please send fewer or "
                         "shorter ones.",
                         n, side[0].name, side[1].name, MAX_PAIR_BYTES);
}

static bool load_ranks(const input *in, rose_api_pooled *d, const texts side[2])
{
    rose_ids part[3] = {{0}, {0}, {0}};
    if (in->p->pooled.instruction != NULL && !rose_json_is_string(in->p->pooled.instruction))
        return rose_api_fail_wrong(&in->j->err, "instruction", "a string");
    bool ok = find_answers(in, d) && check_pair_bytes(in, side) && create_inputs(in, side[1].n) &&
              rose_api_encode(&part[0], rose_rank_head, strlen(rose_rank_head), 0, in->c, "query",
                              &in->j->err) &&
              rose_api_encode(&part[2], rose_rank_tail, strlen(rose_rank_tail), 0, in->c, "query",
                              &in->j->err);
    d->n_pairs = side[1].n;
    for (uint32_t i = 0; ok && i < d->n_pairs; i++) {
        char name[40];
        snprintf(name, sizeof name, rose_json_is_array(side[1].list) ? "%s[%u]" : "%s",
                 side[1].name, i);
        part[1].len = 0;
        ok = is_there(in) &&
             encode_pair(in, &part[1], text_at(side[0].list, side[0].n > 1 ? i : 0),
                         text_at(side[1].list, i), name) &&
             build_pair(in, &in->j->prompts.v[i], part, name);
    }
    for (int i = 0; i < 3; i++)
        rose_ids_free(&part[i]);
    return ok;
}

static bool load_pairs(const input *in, rose_api_pooled *d)
{
    const rose_api_pooled_params *q = &in->p->pooled;
    texts side[2];
    if (!read_sides(in, side)) return false;
    d->ranks = in->c->api->o.pooling.ranks;
    d->top_n = q->top_n == 0 || q->top_n > (int64_t)side[1].n ? side[1].n : (uint32_t)q->top_n;
    if (in->j->kind == ROSE_API_RERANK && q->return_documents)
        d->documents = rose_json_incref(q->documents);
    return d->ranks ? load_ranks(in, d, side) : load_cosines(in, d, side);
}

/* ---- worker: the job ---- */

static bool read_embed(const input *in, rose_api_pooled *d)
{
    const rose_api_pooled_params *q = &in->p->pooled;
    const rose_pooling_config *pooling = &in->c->api->o.pooling;
    d->base64 = rose_api_json_is(q->encoding_format, "base64");
    if (q->encoding_format != NULL && !d->base64 && !rose_api_json_is(q->encoding_format, "float"))
        return rose_api_fail_wrong(&in->j->err, "encoding_format", "\"float\" or \"base64\"");
    if (q->normalize != NULL && !rose_json_is_boolean(q->normalize))
        return rose_api_fail_wrong(&in->j->err, "normalize", "true or false");
    if (q->normalize != NULL) d->normalizes = rose_json_is_true(q->normalize);
    if (q->dimensions == 0) return true;
    if (q->dimensions > (int64_t)d->width ||
        !rose_pooling_allows(pooling, d->width, (uint32_t)q->dimensions))
        return rose_api_fail(&in->j->err, 400, NULL, "dimensions",
                             "field 'dimensions' is %lld: the model's embeddings have %u values%s",
                             (long long)q->dimensions, d->width,
                             pooling->n_dimensions > 0
                                 ? " and may be cut to its matryoshka_dimensions"
                             : pooling->cuts ? " and may be cut to fewer"
                                             : ", and its files do not say that they may be cut");
    d->n_kept = (uint32_t)q->dimensions;
    return true;
}

static bool create_choices(const input *in, const rose_api_pooled *d)
{
    rose_api_job *j = in->j;
    const uint32_t each = d->ranks ? 2 : 1, n = j->prompts.n * each;
    j->choices = calloc(n, sizeof *j->choices);
    if (j->choices == NULL) return rose_api_fail_nomem(&j->err);
    j->n_choices = n;
    j->asked.n = each;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_tokens = (uint32_t)j->prompts.v[i / each].len - (d->ranks ? 1 : 0);
        j->choices[i] = (rose_api_choice){.job = j, .index = i, .prompt_n = n_tokens};
        if (i % each == 0) j->n_prompt_tokens += n_tokens;
    }
    return true;
}

static bool create_results(const input *in, rose_api_pooled *d)
{
    const size_t n = in->j->n_choices;
    if (d->ranks)
        d->logprobs = calloc(n, sizeof *d->logprobs);
    else
        d->states = calloc(n * d->n_kept, sizeof *d->states);
    return d->logprobs != NULL || d->states != NULL || rose_api_fail_nomem(&in->j->err);
}

void rose_api_pooled_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    const rose_pooling_config *pooling = &c->api->o.pooling;
    const rose_engine *e = rose_api_engine(c->api);
    /* An embedding leaves room for a token, which is never computed. */
    const input in = {.j = j, .p = p, .c = c, .most = c->max_model_len - 1};
    rose_api_pooled *d = calloc(1, sizeof *d);
    if ((j->pooled = d) == NULL) {
        rose_api_fail_nomem(&j->err);
        return;
    }
    d->pool = pooling->pool;
    d->normalizes = pooling->normalizes;
    d->width = d->n_kept = rose_engine_arch(e)->d_model;
    d->priority = j->background ? ROSE_API_BATCH_PRIORITY : (int32_t)p->priority;
    d->salt = rose_json_incref(p->cache_salt);
    j->timeout_s = p->timeout;
    bool ok =
        j->kind == ROSE_API_EMBED ? read_embed(&in, d) && load_embed(&in) : load_pairs(&in, d);
    j->t_tokenized = rose_now_ns();
    ok = ok && create_choices(&in, d) && create_results(&in, d);
    if (!ok || rose_api_is_gone(j)) return;
    if (rose_api_pooled_submit(j)) return;
    for (uint32_t i = 0; i < j->n_submitted; i++)
        rose_request_cancel(j->choices[i].req);
}

/* ---- worker, then I/O thread: submission ---- */

static rose_status submit_one(rose_api_job *j, uint32_t i, rose_err *err)
{
    /* of the last token of the prompt alone, which is the answer */
    rose_request_rules rules = {.repetition = 1, .prompt_logprobs = true};
    rose_api_pooled *d = j->pooled;
    rose_engine *e = rose_api_engine(j->api);
    const rose_ids *ids = &j->prompts.v[d->ranks ? i / 2 : i];
    rose_request_opts o = {.prompt = ids->data,
                           .n_prompt = (uint32_t)ids->len,
                           .max_tokens = 1,
                           .sampling = {.top_p = 1},
                           .priority = d->priority,
                           .t_ns = j->t_complete,
                           .prof_id = j->prof_id,
                           .sink = j->io->sink,
                           .user = &j->choices[i]};
    if (d->salt != NULL) {
        o.cache_salt = rose_json_text(d->salt);
        o.cache_salt_len = rose_json_text_len(d->salt);
    }
    if (d->ranks) {
        ids->data[ids->len - 1] = d->answers[i % 2];
        rules.prompt_from = (uint32_t)ids->len - 1;
        o.rules = &rules;
        o.score_only = true;
        o.same_prompt = i % 2 == 1;
    } else {
        o.pool = d->pool;
    }
    /* relaxed: a count; it guards the sink's capacity, which is one more */
    if (atomic_fetch_add_explicit(&j->io->n_live, 1, memory_order_relaxed) + 1 >=
        ROSE_API_MAX_LIVE) {
        atomic_fetch_sub_explicit(&j->io->n_live, 1, memory_order_relaxed);
        return ROSE_E_FULL;
    }
    const rose_status st = rose_engine_submit(e, &o, &j->choices[i].req, err);
    if (st != ROSE_OK) atomic_fetch_sub_explicit(&j->io->n_live, 1, memory_order_relaxed);
    return st;
}

bool rose_api_pooled_submit(rose_api_job *j)
{
    while (j->n_submitted < j->n_choices && j->n_submitted - j->n_released < WINDOW) {
        rose_err err = {{0}};
        const rose_status st = submit_one(j, j->n_submitted, &err);
        if (st == ROSE_E_FULL && j->n_submitted > j->n_released) return true; /* later */
        if (st != ROSE_OK) {
            rose_api_fail_status(&j->err, st, &err, rose_api_engine(j->api));
            return false;
        }
        j->n_submitted++;
    }
    return true;
}

/* ---- I/O thread: results ---- */

bool rose_api_pooled_take(rose_api_choice *c)
{
    rose_api_job *j = c->job;
    rose_api_pooled *d = j->pooled;
    if (d->ranks) {
        const rose_logprob *l = rose_request_prompt_logprobs(c->req, c->prompt_n);
        d->logprobs[c->index] = l->logprob;
        return isfinite(l->logprob) ||
               rose_api_fail(&j->err, 500, "engine_error", NULL,
                             "the model gave no finite logit for this request");
    }
    memcpy(d->states + (size_t)c->index * d->n_kept, rose_request_state(c->req),
           d->n_kept * sizeof *d->states);
    return true;
}

bool rose_api_pooled_is_long(const rose_api_job *j)
{
    const rose_api_pooled *d = j->pooled;
    return d != NULL && (d->documents != NULL
                             ? j->body_len > MAX_DOCUMENTS_HERE
                             : !d->ranks && (uint64_t)j->n_choices * d->n_kept > MAX_VALUES_HERE);
}

/* ---- I/O thread, or a worker: replies ---- */

enum { DIGITS = 9 }; /* restore any float */

/* Writes v with nine digits, without the trailing zeros. From 1e-4 to 10 these are integers; any
 * other number is rare here. */
static void put_value(rose_api_out *o, float v)
{
    char text[32];
    double size = fabs((double)v), scale = 1e8;
    int zeros = -1; /* after the point; -1: a digit stands before it */
    for (; size < 1 && zeros < 3 && size * scale < 1e8; zeros++)
        scale *= 10;
    const uint64_t whole = size < 10 ? (uint64_t)(size * scale + 0.5) : 0;
    if (!(whole >= 100000000 && whole < 1000000000)) {
        snprintf(text, sizeof text, "%.*g", DIGITS, (double)v);
        rose_api_puts(o, text);
        if (strpbrk(text, ".e") == NULL) rose_api_put(o, ".0", 2);
        return;
    }
    char *at = text, digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)whole);
    int n = DIGITS;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (v < 0) *at++ = '-';
    *at++ = zeros < 0 ? digits[0] : '0';
    *at++ = '.';
    for (int i = 0; i < zeros; i++)
        *at++ = '0';
    const int from = zeros < 0 ? 1 : 0;
    if (n == from) *at++ = '0';
    memcpy(at, digits + from, (size_t)(n - from));
    rose_api_put(o, text, (size_t)(at - text) + (size_t)(n - from));
}

/* Base64 of little-endian floats. */
static void put_base64(rose_api_out *o, const uint8_t *bytes, size_t n)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i < 3 ? n - i : 3;
        const uint32_t bits = (uint32_t)bytes[i] << 16 |
                              (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        const char four[4] = {letters[bits >> 18], letters[bits >> 12 & 63],
                              left > 1 ? letters[bits >> 6 & 63] : '=',
                              left > 2 ? letters[bits & 63] : '='};
        rose_api_put(o, four, 4);
    }
}

static void put_embedding(rose_api_out *o, const rose_api_pooled *d, const float *state)
{
    const double divisor = rose_pooling_divisor(state, d->n_kept, d->normalizes);
    uint8_t block[3 * 4 * 64]; /* whole groups of three bytes */
    size_t used = 0;
    rose_api_put(o, d->base64 ? "\"" : "[", 1);
    for (uint32_t i = 0; i < d->n_kept; i++) {
        const float v = (float)((double)state[i] / divisor);
        if (!d->base64) {
            if (i > 0) rose_api_put(o, ",", 1);
            put_value(o, v);
            continue;
        }
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        for (int k = 0; k < 4; k++)
            block[used++] = (uint8_t)(bits >> 8 * k);
        if (used < sizeof block && i + 1 < d->n_kept) continue;
        put_base64(o, block, used);
        used = 0;
    }
    rose_api_put(o, d->base64 ? "\"" : "]", 1);
}

static double cosine(const float *a, const float *b, uint32_t n)
{
    double dot = 0;
    for (uint32_t i = 0; i < n; i++)
        dot += (double)a[i] * (double)b[i];
    const double size = rose_pooling_length(a, n) * rose_pooling_length(b, n);
    return size > 0 ? dot / size : 0;
}

static double score_of(const rose_api_pooled *d, uint32_t pair)
{
    if (!d->ranks)
        return cosine(d->states + (size_t)(pair % d->n_first) * d->n_kept,
                      d->states + ((size_t)d->n_first + pair) * d->n_kept, d->n_kept);
    const double yes = (double)d->logprobs[2 * pair], no = (double)d->logprobs[2 * pair + 1];
    return 1 / (1 + exp(no - yes));
}

/* Begins a reply and its list of results. */
static void put_head(rose_api_out *o, const rose_api_job *j, const char *members, const char *list)
{
    rose_api_json(o, "{'id':'%s',%s'created':%lld,'model':%-s,'%s':[", j->id, members,
                  (long long)j->created, j->api->o.model_id, list);
}

/* Ends the list of results and the reply. */
static void end_reply(rose_api_out *o, const rose_api_job *j)
{
    rose_api_json(o, "],'usage':");
    rose_api_usage_json(o, j);
    rose_api_puts(o, "}");
}

static void put_embeddings(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_pooled *d = j->pooled;
    put_head(o, j, "\"object\":\"list\",", "data");
    for (uint32_t i = 0; i < j->n_choices; i++) {
        rose_api_json(o, "%s{'object':'embedding','index':%u,'embedding':", i > 0 ? "," : "", i);
        put_embedding(o, d, d->states + (size_t)i * d->n_kept);
        rose_api_puts(o, "}");
    }
    end_reply(o, j);
}

static void put_scores(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_pooled *d = j->pooled;
    put_head(o, j, "\"object\":\"list\",", "data");
    for (uint32_t i = 0; i < d->n_pairs; i++)
        rose_api_json(o, "%s{'object':'score','index':%u,'score':%.9g}", i > 0 ? "," : "", i,
                      score_of(d, i));
    end_reply(o, j);
}

typedef struct ranked {
    double score;
    uint32_t index;
} ranked;

/* Higher scores first; equal ones in the order of the request. */
static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score > y->score) return -1;
    if (x->score < y->score) return 1;
    return x->index < y->index ? -1 : 1;
}

static void put_ranks(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_pooled *d = j->pooled;
    ranked *all = calloc(d->n_pairs, sizeof *all);
    if (all == NULL) {
        o->oom = true;
        return;
    }
    for (uint32_t i = 0; i < d->n_pairs; i++)
        all[i] = (ranked){score_of(d, i), i};
    qsort(all, d->n_pairs, sizeof *all, by_score);
    put_head(o, j, "", "results");
    for (uint32_t i = 0; i < d->top_n; i++) {
        rose_api_json(o, "%s{'index':%u,", i > 0 ? "," : "", all[i].index);
        if (d->documents != NULL) {
            rose_api_json(o, "'document':{'text':");
            rose_api_put_json(o, text_at(d->documents, all[i].index));
            rose_api_puts(o, "},");
        }
        rose_api_json(o, "'relevance_score':%.9g}", all[i].score);
    }
    end_reply(o, j);
    free(all);
}

const rose_api_dialect rose_api_dialect_embed = {
    .id = "embd-", .whole = put_embeddings, .error = rose_api_error_json};
const rose_api_dialect rose_api_dialect_rerank = {
    .id = "rerank-", .whole = put_ranks, .error = rose_api_error_json};
const rose_api_dialect rose_api_dialect_score = {
    .id = "score-", .whole = put_scores, .error = rose_api_error_json};
