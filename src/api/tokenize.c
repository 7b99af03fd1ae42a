/* api/tokenize.c - /tokenize and /detokenize, in vLLM's shapes. */
#include "api/api_internal.h"

static void put_tokenize_reply(api_out *o, const rose_ids *ids, uint32_t max_model_len)
{
    api_putf(o, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->len, max_model_len);
    for (size_t i = 0; i < ids->len; i++) {
        if (i > 0) api_put(o, ",", 1);
        api_put_u64(o, ids->data[i]);
    }
    api_puts(o, "],\"token_strs\":null}");
}

void api_tokenize_run(api_job *j, const api_params *p, const api_prompt_ctx *c)
{
    rose_ids ids = {0};
    api_out text = {0};
    api_prompt_ctx any_length = *c; /* counting is what this is for: no limit but the body's */
    any_length.max_model_len = 0;
    bool ok;
    if (p->messages != NULL) {
        ok = api_chat_render(&text, p->messages, &j->err) &&
             api_encode(&ids, text.b.data, text.b.len, ROSE_ENCODE_PLAIN_SPECIAL, &any_length,
                        "messages", &j->err);
    } else if (!json_is_string(p->prompt)) {
        ok = api_fail(&j->err, 400, NULL, "prompt", "field 'prompt' must be a string");
    } else {
        ok = api_encode(&ids, json_string_value(p->prompt), json_string_length(p->prompt),
                        p->add_special_tokens ? ROSE_ENCODE_ADD_SPECIAL : 0, &any_length, "prompt",
                        &j->err);
    }
    if (ok) put_tokenize_reply(&j->reply, &ids, c->max_model_len);
    if (j->reply.oom) api_fail_nomem(&j->err);
    rose_ids_free(&ids);
    api_out_free(&text);
}

void api_detokenize_run(api_job *j, const api_params *p, const api_prompt_ctx *c)
{
    rose_ids ids = {0};
    rose_buf text = {0};
    rose_err err = {0};
    if (!json_is_array(p->tokens)) {
        api_fail(&j->err, 400, NULL, "tokens", "field 'tokens' must be a list of token ids");
    } else if (api_ids_load(&ids, p->tokens, "tokens", c->vocab_size, &j->err)) {
        rose_status st = rose_decode(c->tok, ids.data, ids.len, 0, &text, &err);
        if (st == ROSE_OK) {
            api_puts(&j->reply, "{\"prompt\":");
            api_put_string(&j->reply, text.data, text.len);
            api_puts(&j->reply, "}");
        } else {
            api_fail_status(&j->err, st, &err);
        }
    }
    if (j->reply.oom) api_fail_nomem(&j->err);
    rose_buf_free(&text);
    rose_ids_free(&ids);
}
