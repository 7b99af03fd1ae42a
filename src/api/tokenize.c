/* api/tokenize.c - /tokenize, /detokenize, /tokenizer_info and the two paths that end in /render in
 * vLLM's shapes, /apply-template in llama.cpp's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

void rose_api_put_ids(rose_api_out *o, const rose_ids *ids)
{
    rose_api_puts(o, "[");
    for (size_t i = 0; i < ids->len; i++) {
        if (i > 0) rose_api_put(o, ",", 1);
        rose_api_put_u64(o, ids->data[i]);
    }
    rose_api_puts(o, "]");
}

/* The ids of what a request counts: only the size of its body limits the text. */
static bool encode_all(rose_ids *out, rose_api_job *j, const rose_api_params *p,
                       const rose_api_prompt_ctx *c)
{
    rose_api_prompt_ctx any_length = *c;
    any_length.max_model_len = 0;
    if (p->messages != NULL) {
        rose_template_text text = {0};
        const bool ok = rose_api_messages_render(&text, p, c, &j->err) &&
                        rose_api_encode_chat(out, &text, &any_length, &j->err);
        rose_template_text_free(&text);
        return ok;
    }
    if (!rose_json_is_string(p->prompt)) return rose_api_fail_wrong(&j->err, "prompt", "a string");
    return rose_api_encode(out, rose_json_text(p->prompt), rose_json_text_len(p->prompt),
                           p->add_special_tokens ? ROSE_ENCODE_ADD_SPECIAL : 0, &any_length,
                           "prompt", &j->err);
}

void rose_api_tokenize_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_ids ids = {0};
    rose_api_out *o = &j->reply;
    if (encode_all(&ids, j, p, c)) {
        rose_api_json(o, "{'count':%zu,'max_model_len':%u,'tokens':", ids.len, c->max_model_len);
        rose_api_put_ids(o, &ids);
        rose_api_json(o, ",'token_strs':null}");
    }
    if (o->oom) rose_api_fail_nomem(&j->err);
    rose_ids_free(&ids);
}

void rose_api_count_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_ids ids = {0};
    if (encode_all(&ids, j, p, c)) rose_api_putf(&j->reply, "%s%zu}", j->dialect->count, ids.len);
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
    rose_ids_free(&ids);
}

static void put_prompt_reply(rose_api_job *j, const char *text, size_t len)
{
    rose_api_json(&j->reply, "{'prompt':");
    rose_api_put_string(&j->reply, text, len);
    rose_api_puts(&j->reply, "}");
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
}

/* The endpoint is for people who check a template: nothing is tokenised. */
void rose_api_apply_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_template_text text = {0};
    if (rose_api_messages_render(&text, p, c, &j->err)) put_prompt_reply(j, text.bytes, text.len);
    rose_template_text_free(&text);
}

void rose_api_detokenize_run(rose_api_job *j, const rose_api_params *p,
                             const rose_api_prompt_ctx *c)
{
    rose_ids ids = {0};
    rose_buf text = {0};
    rose_err err = {0};
    if (!rose_json_is_array(p->tokens)) {
        rose_api_fail_wrong(&j->err, "tokens", "a list of token ids");
    } else if (rose_api_ids_load(&ids, p->tokens, "tokens", c->vocab_size, &j->err)) {
        rose_status st = rose_decode(c->tok, ids.data, ids.len, 0, &text, &err);
        if (st == ROSE_OK)
            put_prompt_reply(j, text.data, text.len);
        else
            rose_api_fail_status(&j->err, st, &err, NULL);
    }
    rose_buf_free(&text);
    rose_ids_free(&ids);
}

/* ---- /v1/completions/render, /v1/chat/completions/render ---- */

/* Writes the float that v becomes for the engine, with the fewest digits that restore it. */
static void put_float(rose_api_out *o, const char *key, double v)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)(float)v);
        const float back = strtof(text, NULL);
        if (!(back < (float)v) && !(back > (float)v)) break;
    }
    rose_api_json(o, ",'%s':%s", key, text);
}

/* A number, or null where it is below 0, which means absent. */
static void put_count(rose_api_out *o, const char *key, int64_t v)
{
    rose_api_json(o, ",'%s':", key);
    if (v < 0)
        rose_api_puts(o, "null");
    else
        rose_api_put_u64(o, (uint64_t)v);
}

static const char *bool_text(bool v)
{
    return v ? "true" : "false";
}

static void put_member(rose_api_out *o, const char *key, const rose_json *v)
{
    rose_api_json(o, ",'%s':", key);
    rose_api_put_json(o, v);
}

/* The stop strings as a list, with the one that the plain template implies. */
static void put_stops(rose_api_out *o, const rose_api_job *j, const rose_api_params *p)
{
    const size_t n = p->stop == NULL               ? 0
                     : rose_json_is_array(p->stop) ? rose_json_count(p->stop)
                                                   : 1;
    rose_api_json(o, ",'stop':[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) rose_api_puts(o, ",");
        rose_api_put_json(o, rose_json_is_array(p->stop) ? rose_json_at(p->stop, i) : p->stop);
    }
    if (rose_api_is_plain_chat(j)) {
        if (n > 0) rose_api_puts(o, ",");
        rose_api_put_string(o, ROSE_API_CHAT_STOP, sizeof ROSE_API_CHAT_STOP - 1);
    }
    rose_api_puts(o, "]");
}

/* Writes the grammar of the request as structured_outputs would ask for it. */
static void put_structure(rose_api_out *o, const rose_api_structure *s)
{
    static const char *const names[] = {[ROSE_GRAMMAR_JSON_OBJECT] = "json_object",
                                        [ROSE_GRAMMAR_JSON_SCHEMA] = "json",
                                        [ROSE_GRAMMAR_REGEX] = "regex",
                                        [ROSE_GRAMMAR_CHOICE] = "choice",
                                        [ROSE_GRAMMAR_EBNF] = "grammar",
                                        [ROSE_GRAMMAR_TAG] = "structural_tag"};
    if (!s->any) {
        rose_api_json(o, ",'structured_outputs':null");
        return;
    }
    rose_api_json(o, ",'structured_outputs':{'%s':", names[s->kind]);
    if (s->kind == ROSE_GRAMMAR_JSON_OBJECT)
        rose_api_puts(o, "true");
    else
        rose_api_put_json(o, s->value);
    rose_api_puts(o, "}");
}

/* Names are those of vLLM's SamplingParams. */
static void put_sampling(rose_api_out *o, const rose_api_job *j, const rose_api_params *p,
                         uint32_t max_tokens)
{
    rose_api_json(o, "{'n':%lld", (long long)p->n);
    put_float(o, "temperature", p->temperature);
    put_float(o, "top_p", p->top_p);
    rose_api_json(o, ",'top_k':%lld", (long long)p->top_k);
    put_float(o, "min_p", p->min_p);
    put_float(o, "presence_penalty", p->presence);
    put_float(o, "frequency_penalty", p->frequency);
    put_float(o, "repetition_penalty", p->repetition);
    rose_api_json(o, ",'seed':");
    if (p->has_seed)
        rose_api_json(o, "%lld", (long long)p->seed);
    else
        rose_api_puts(o, "null");
    rose_api_json(o, ",'max_tokens':%u,'min_tokens':%lld", max_tokens, (long long)p->min_tokens);
    put_count(o, "logprobs", p->n_logprobs);
    put_count(o, "prompt_logprobs", p->prompt_logprobs);
    rose_api_json(o, ",'ignore_eos':%s,'include_stop_str_in_output':%s", bool_text(p->ignore_eos),
                  bool_text(p->include_stop));
    put_stops(o, j, p);
    put_member(o, "stop_token_ids", p->stop_token_ids);
    put_member(o, "logit_bias", p->logit_bias);
    put_member(o, "allowed_token_ids", p->allowed_token_ids);
    put_member(o, "bad_words", p->bad_words);
    put_structure(o, &p->structure);
    rose_api_puts(o, "}");
}

static void put_rendered(rose_api_out *o, const rose_api_job *j, const rose_api_params *p,
                         const rose_ids *ids, uint32_t max_model_len)
{
    const uint32_t left = max_model_len - (uint32_t)ids->len; /* fit_tokens has checked it */
    rose_api_json(o, "{'request_id':'%s','token_ids':", j->id);
    rose_api_put_ids(o, ids);
    rose_api_json(o, ",'sampling_params':");
    put_sampling(o, j, p, j->asked.max_tokens < left ? j->asked.max_tokens : left);
    rose_api_json(o, ",'model':%-s,'stream':%s", j->api->o.model_id, bool_text(p->stream));
    put_member(o, "stream_options", p->stream_options);
    put_member(o, "cache_salt", p->cache_salt);
    rose_api_json(o, ",'priority':%lld}", (long long)p->priority);
}

void rose_api_render_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_api_out *o = &j->reply;
    const bool list = j->kind == ROSE_API_COMPLETION; /* as in vLLM */
    if (list) rose_api_puts(o, "[");
    for (uint32_t i = 0; i < j->prompts.n; i++) {
        if (i > 0) rose_api_puts(o, ",");
        put_rendered(o, j, p, &j->prompts.v[i], c->max_model_len);
    }
    if (list) rose_api_puts(o, "]");
    if (o->oom) rose_api_fail_nomem(&j->err);
}

/* ---- /tokenizer_info ---- */

/* Writes the text of the model's first end-of-text id, for a model whose files name no eos_token.
 */
static void put_end_token(rose_api_out *o, const rose_api *a, const rose_arch *arch,
                          const char *comma)
{
    rose_buf text = {0};
    rose_err err = {0};
    if (arch->n_eos == 0) return;
    const rose_status st = rose_decode(a->tok, arch->eos_ids, 1, 0, &text, &err);
    if (st == ROSE_E_NOMEM) o->oom = true;
    if (st == ROSE_OK && text.len > 0)
        rose_api_json(o, "%s'eos_token':%-.*s", comma, (int)text.len, text.data);
    rose_buf_free(&text);
}

void rose_api_tokenizer_json(rose_api_out *o, const rose_api *a, const rose_engine *e)
{
    const rose_json *tokens = a->o.texts != NULL ? rose_chat_tokens(a->o.texts) : NULL, *v;
    const char *key, *comma = "", *class = a->o.texts != NULL ? rose_chat_class(a->o.texts) : "";
    size_t len;
    rose_api_puts(o, "{");
    if (class[0] != '\0') {
        rose_api_json(o, "'tokenizer_class':%-s", class);
        comma = ",";
    }
    rose_json_each (tokens, key, v) {
        rose_api_json(o, "%s'%s':", comma, key);
        rose_api_put_json(o, v);
        comma = ",";
    }
    if (rose_json_get(tokens, "eos_token") == NULL) {
        put_end_token(o, a, rose_engine_arch(e), comma);
        if (o->b.len > 1) comma = ",";
    }
    if (a->o.chat != NULL) {
        const char *text = rose_chat_text(a->o.chat, &len);
        rose_api_json(o, "%s'chat_template':", comma);
        rose_api_put_string(o, text, len);
    }
    rose_api_puts(o, "}");
}
