/* api/tokenize.c - /tokenize and /detokenize in vLLM's shapes, /apply-template in llama.cpp's. */
#include "api/api_internal.h"

static void put_tokenize_reply(rose_api_out *o, const rose_ids *ids, uint32_t max_model_len)
{
    rose_api_putf(o, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->len, max_model_len);
    for (size_t i = 0; i < ids->len; i++) {
        if (i > 0) rose_api_put(o, ",", 1);
        rose_api_put_u64(o, ids->data[i]);
    }
    rose_api_puts(o, "],\"token_strs\":null}");
}

void rose_api_tokenize_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_ids ids = {0};
    rose_template_text text = {0};
    rose_api_prompt_ctx any_length =
        *c; /* this endpoint counts tokens, so only the size of the body limits the text */
    any_length.max_model_len = 0;
    bool ok;
    if (p->messages != NULL) {
        ok = rose_api_messages_render(&text, p, c, &j->err) &&
             rose_api_encode_chat(&ids, &text, &any_length, &j->err);
    } else if (!json_is_string(p->prompt)) {
        ok = rose_api_fail(&j->err, 400, NULL, "prompt", "field 'prompt' must be a string");
    } else {
        ok = rose_api_encode(&ids, json_string_value(p->prompt), json_string_length(p->prompt),
                             p->add_special_tokens ? ROSE_ENCODE_ADD_SPECIAL : 0, &any_length,
                             "prompt", &j->err);
    }
    if (ok) put_tokenize_reply(&j->reply, &ids, c->max_model_len);
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
    rose_ids_free(&ids);
    rose_template_text_free(&text);
}

/* The endpoint is for people who check a template: nothing is tokenised. */
void rose_api_apply_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c)
{
    rose_template_text text = {0};
    if (rose_api_messages_render(&text, p, c, &j->err)) {
        rose_api_puts(&j->reply, "{\"prompt\":");
        rose_api_put_string(&j->reply, text.bytes, text.len);
        rose_api_puts(&j->reply, "}");
    }
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
    rose_template_text_free(&text);
}

void rose_api_detokenize_run(rose_api_job *j, const rose_api_params *p,
                             const rose_api_prompt_ctx *c)
{
    rose_ids ids = {0};
    rose_buf text = {0};
    rose_err err = {0};
    if (!json_is_array(p->tokens)) {
        rose_api_fail(&j->err, 400, NULL, "tokens", "field 'tokens' must be a list of token ids");
    } else if (rose_api_ids_load(&ids, p->tokens, "tokens", c->vocab_size, &j->err)) {
        rose_status st = rose_decode(c->tok, ids.data, ids.len, 0, &text, &err);
        if (st == ROSE_OK) {
            rose_api_puts(&j->reply, "{\"prompt\":");
            rose_api_put_string(&j->reply, text.data, text.len);
            rose_api_puts(&j->reply, "}");
        } else {
            rose_api_fail_status(&j->err, st, &err, NULL);
        }
    }
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
    rose_buf_free(&text);
    rose_ids_free(&ids);
}
