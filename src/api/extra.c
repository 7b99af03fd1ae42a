/* api/extra.c - additions to the text of a reply that a client may ask for: logprobs in the
 * forms of both endpoints, echo, token ids, prompt_logprobs. JSON pieces are appended token by
 * token. A stream sends and drops them with each chunk; a whole reply sends them at its end.
 * Choices that asked for none of it have no rose_api_extra. I/O thread only, except for create. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/utf8.h"

void rose_api_extra_free(rose_api_extra *x)
{
    rose_api_out_free(&x->tokens);
    rose_api_out_free(&x->values);
    rose_api_out_free(&x->tops);
    rose_api_out_free(&x->offsets);
    rose_api_out_free(&x->ids);
    rose_api_out_free(&x->prompt);
    rose_buf_free(&x->name);
}

/* ---- one token ---- */

/* Appends the token's text as clients see it, valid UTF-8 or "token_id:N", to x->name. flags: as
 * for rose_decode. With ROSE_DECODE_CONTINUES the names of a text's tokens join to the text. */
static void put_name_at(rose_api_choice *c, uint32_t id, unsigned flags)
{
    rose_api_extra *x = c->extra;
    char number[24];
    if (c->job->asked.as_ids) {
        snprintf(number, sizeof number, "token_id:%u", id);
        if (rose_buf_add(&x->name, number, strlen(number)) != ROSE_OK) x->tokens.oom = true;
    } else if (rose_decode(c->job->api->tok, &id, 1, flags, &x->name, NULL) == ROSE_E_NOMEM) {
        x->tokens.oom = true; /* an id without text (padding of the vocabulary) has an empty name */
    }
}

static void put_name(rose_api_choice *c, uint32_t id)
{
    put_name_at(c, id, ROSE_DECODE_CONTINUES);
}

/* Writes a logprob, at least vLLM's floor, because JSON has no infinity. Nine digits give back
 * the same float. */
static void put_logprob(rose_api_out *o, float x)
{
    if (!(x >= -9999.0f && x <= 0x1p100f)) x = -9999.0f;
    rose_api_putf(o, "%.9g", (double)x);
}

static void comma(rose_api_out *o)
{
    if (o->b.len > 0) rose_api_puts(o, ",");
}

/* Writes {"text":logprob,...}: the token itself, then the best ones; each text only once. */
static void put_top_object(rose_api_choice *c, const rose_logprob *report, uint32_t n_top)
{
    rose_api_extra *x = c->extra;
    rose_api_out *o = &x->tops;
    size_t begin[2 + ROSE_MAX_TOP_LOGPROBS], n = 0;
    x->name.len = 0;
    rose_api_puts(o, "{");
    for (uint32_t i = 0; i <= n_top; i++) {
        begin[n] = x->name.len;
        put_name(c, report[i].id);
        const char *text = x->name.data + begin[n];
        size_t len = x->name.len - begin[n];
        bool known = false;
        for (size_t k = 0; k < n && !known; k++)
            known = begin[k + 1] - begin[k] == len &&
                    (len == 0 || memcmp(x->name.data + begin[k], text, len) == 0);
        if (known) {
            x->name.len = begin[n];
            continue;
        }
        if (n > 0) rose_api_puts(o, ",");
        rose_api_put_string(o, text, len);
        rose_api_puts(o, ":");
        put_logprob(o, report[i].logprob);
        begin[++n] = x->name.len;
    }
    rose_api_puts(o, "}");
}

/* report NULL: the first token of an echoed prompt has no report. */
static void add_completion(rose_api_choice *c, uint32_t id, const rose_logprob *report)
{
    rose_api_extra *x = c->extra;
    comma(&x->tokens);
    comma(&x->values);
    comma(&x->tops);
    comma(&x->offsets);
    if (report == NULL) {
        rose_api_puts(&x->values, "null");
        rose_api_puts(&x->tops, "null");
    } else {
        put_logprob(&x->values, report[0].logprob);
        put_top_object(c, report, c->job->asked.n_top);
    }
    x->name.len = 0;
    put_name_at(c, id, report != NULL ? ROSE_DECODE_CONTINUES : 0);
    rose_api_put_string(&x->tokens, x->name.data, x->name.len);
    rose_api_put_u64(&x->offsets, x->offset);
    x->offset += (uint32_t)rose_utf8_count(x->name.data, x->name.len);
}

static void put_chat_token(rose_api_choice *c, const rose_logprob *e)
{
    rose_api_extra *x = c->extra;
    rose_api_out *o = &x->tokens;
    size_t n = 0;
    x->name.len = 0;
    put_name(c, e->id);
    rose_api_json(o, "{'token':%-.*s,'logprob':", (int)x->name.len, x->name.data);
    put_logprob(o, e->logprob);
    rose_api_json(o, ",'bytes':[");
    const char *bytes = rose_tokenizer_token_bytes(c->job->api->tok, e->id, &n);
    for (size_t i = 0; bytes != NULL && i < n; i++)
        rose_api_putf(o, i > 0 ? ",%u" : "%u", (unsigned)(unsigned char)bytes[i]);
    rose_api_puts(o, "]");
}

static void add_chat(rose_api_choice *c, const rose_logprob *report)
{
    rose_api_out *o = &c->extra->tokens;
    comma(o);
    put_chat_token(c, &report[0]);
    rose_api_json(o, ",'top_logprobs':[");
    for (uint32_t i = 1; i <= c->job->asked.n_top; i++) {
        if (i > 1) rose_api_puts(o, ",");
        put_chat_token(c, &report[i]);
        rose_api_puts(o, "}");
    }
    rose_api_puts(o, "]}");
}

void rose_api_extra_token(rose_api_choice *c, uint32_t id)
{
    rose_api_extra *x = c->extra;
    const rose_api_job *j = c->job;
    if (j->asked.token_ids) {
        comma(&x->ids);
        rose_api_put_u64(&x->ids, id);
    }
    if (!j->asked.logprobs) return;
    const rose_logprob *report = rose_request_logprobs(c->req, c->n_tokens - 1);
    if (j->kind == ROSE_API_CHAT)
        add_chat(c, report);
    else
        add_completion(c, id, report);
}

/* ---- the prompt ---- */

/* Writes the form of vLLM: null, then one object of ids for each token. */
static void put_prompt_logprobs(rose_api_choice *c, const rose_ids *ids)
{
    rose_api_extra *x = c->extra;
    rose_api_out *o = &x->prompt;
    rose_api_puts(o, "null");
    for (uint32_t pos = 1; pos < ids->len; pos++) {
        const rose_logprob *e = rose_request_prompt_logprobs(c->req, pos);
        rose_api_puts(o, ",{");
        for (uint32_t i = 0; i <= c->job->asked.prompt_n_top; i++) {
            if (i > 0 && e[i].id == e[0].id) continue;
            x->name.len = 0;
            put_name(c, e[i].id);
            rose_api_json(o, "%s'%u':{'logprob':", i > 0 ? "," : "", e[i].id);
            put_logprob(o, e[i].logprob);
            rose_api_json(o, ",'rank':%u,'decoded_token':%-.*s}", e[i].rank, (int)x->name.len,
                          x->name.data);
        }
        rose_api_puts(o, "}");
    }
}

void rose_api_extra_prompt(rose_api_choice *c, rose_api_out *text)
{
    rose_api_extra *x = c->extra;
    const rose_api_job *j = c->job;
    const rose_ids *ids = &j->prompts.v[c->index / j->asked.n];
    x->begun = true;
    if (j->asked.prompt_logprobs) put_prompt_logprobs(c, ids);
    if (!j->asked.echo) return;
    if (rose_decode(j->api->tok, ids->data, ids->len, 0, &text->b, NULL) == ROSE_E_NOMEM)
        text->oom = true;
    for (uint32_t pos = 0; j->asked.logprobs && pos < ids->len; pos++)
        add_completion(c, ids->data[pos],
                       pos == 0 ? NULL : rose_request_prompt_logprobs(c->req, pos));
}

/* ---- members of a choice ---- */

static void put_list(rose_api_out *o, const char *name, const rose_api_out *items)
{
    rose_api_puts(o, name);
    rose_api_put(o, items->b.data, items->b.len);
    rose_api_puts(o, "]");
}

void rose_api_extra_logprobs(rose_api_out *o, const rose_api_choice *c)
{
    const rose_api_extra *x = c->extra;
    if (x == NULL || !c->job->asked.logprobs) {
        rose_api_puts(o, "null");
    } else if (c->job->kind == ROSE_API_CHAT) {
        put_list(o, "{\"content\":[", &x->tokens);
        rose_api_puts(o, ",\"refusal\":null}");
    } else {
        put_list(o, "{\"tokens\":[", &x->tokens);
        put_list(o, ",\"token_logprobs\":[", &x->values);
        put_list(o, ",\"top_logprobs\":[", &x->tops);
        put_list(o, ",\"text_offset\":[", &x->offsets);
        rose_api_puts(o, "}");
    }
}

void rose_api_extra_own(rose_api_choice *c, rose_api_part *part)
{
    rose_api_extra *x = c->extra;
    if (x == NULL) return;
    if (part != NULL && part->tokens_end == 0) part->tokens = x->n_owned;
    x->n_owned = x->tokens.b.len;
    if (part != NULL) part->tokens_end = x->n_owned;
}

/* Writes the items in [from, to) of the list of tokens. */
static void put_tokens(rose_api_out *o, const rose_api_choice *c, size_t from, size_t to)
{
    rose_api_puts(o, "[");
    if (from > 0) from++; /* the comma after the items before */
    if (from < to) rose_api_put(o, c->extra->tokens.b.data + from, to - from);
    rose_api_puts(o, "]");
}

void rose_api_extra_list(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    const size_t all = c->extra != NULL ? c->extra->tokens.b.len : 0;
    put_tokens(o, c, part != NULL ? part->tokens : 0, part != NULL ? part->tokens_end : all);
}

void rose_api_extra_list_new(rose_api_out *o, rose_api_choice *c, const rose_api_part *part)
{
    const size_t out = c->extra != NULL ? c->extra->n_out : 0;
    put_tokens(o, c, out > part->tokens ? out : part->tokens, part->tokens_end);
    if (c->extra != NULL) c->extra->n_out = part->tokens_end;
}

static void put_prompt(rose_api_out *o, const rose_api_choice *c)
{
    const rose_api_job *j = c->job;
    const rose_ids *ids = &j->prompts.v[c->index / j->asked.n];
    if (j->asked.token_ids) {
        rose_api_json(o, ",'prompt_token_ids':");
        rose_api_put_ids(o, ids);
    }
    if (j->asked.prompt_logprobs) put_list(o, ",\"prompt_logprobs\":[", &c->extra->prompt);
}

void rose_api_extra_members(rose_api_out *o, const rose_api_choice *c, bool first)
{
    if (c->extra == NULL) return;
    if (first && c->job->kind != ROSE_API_CHAT) put_prompt(o, c);
    if (c->job->asked.token_ids) put_list(o, ",\"token_ids\":[", &c->extra->ids);
}

void rose_api_extra_chat(rose_api_out *o, const rose_api_choice *c)
{
    if (c->extra != NULL && !c->extra->sent && c->job->kind == ROSE_API_CHAT) put_prompt(o, c);
}

bool rose_api_extra_failed(const rose_api_choice *c)
{
    const rose_api_extra *x = c->extra;
    return x->tokens.oom || x->values.oom || x->tops.oom || x->offsets.oom || x->ids.oom ||
           x->prompt.oom;
}

void rose_api_extra_sent(rose_api_choice *c)
{
    rose_api_extra *x = c->extra;
    x->sent = true;
    x->n_owned = 0;
    rose_api_out_reset(&x->tokens);
    rose_api_out_reset(&x->values);
    rose_api_out_reset(&x->tops);
    rose_api_out_reset(&x->offsets);
    rose_api_out_reset(&x->ids);
}
