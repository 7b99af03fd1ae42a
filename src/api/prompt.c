/* api/prompt.c - turns the four forms of a prompt (string, list of strings, ids, list of lists
 * of ids) into lists of ids. Runs on a tokenizer worker. */
#include <stdlib.h>

#include "api/api_internal.h"

void rose_api_prompts_free(rose_api_prompts *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        rose_ids_free(&p->v[i]);
    free(p->v);
    *p = (rose_api_prompts){0};
}

bool rose_api_ids_load(rose_ids *out, const rose_json *list, const char *param, uint32_t vocab_size,
                       rose_api_error *err)
{
    size_t n = rose_json_count(list);
    if (n == 0) return true;
    uint32_t *data = calloc(n, sizeof *data);
    if (data == NULL) return rose_api_fail_nomem(err);
    *out = (rose_ids){.data = data, .len = n, .cap = n};
    for (size_t i = 0; i < n; i++) {
        const rose_json *v = rose_json_at(list, i);
        if (!rose_json_is_integer(v))
            return rose_api_fail(err, 400, NULL, param, "token %zu of '%s' is not an integer", i,
                                 param);
        int64_t id = rose_json_int(v);
        if (id < 0 || id >= (int64_t)vocab_size)
            return rose_api_fail(
                err, 400, NULL, param,
                "token id %lld at index %zu of '%s' is out of range: the vocabulary "
                "has ids 0 to %u",
                (long long)id, i, param, vocab_size - 1);
        data[i] = (uint32_t)id;
    }
    return true;
}

/* No token has more than `cap` bytes, so a text that is longer than the context times `cap` cannot
 * fit: save the work. */
bool rose_api_may_fit(size_t len, const rose_api_prompt_ctx *c)
{
    const size_t cap = rose_detok_cap(c->tok);
    return cap == 0 || c->max_model_len == 0 || len / cap <= c->max_model_len;
}

static bool may_fit(size_t len, const rose_api_prompt_ctx *c, const char *param,
                    rose_api_error *err)
{
    if (rose_api_may_fit(len, c)) return true;
    const size_t cap = rose_detok_cap(c->tok);
    return rose_api_fail(err, 400, "context_length_exceeded", param,
                         "This model's maximum context length is %u tokens. However, '%s' has %zu "
                         "bytes, which are more than %zu tokens.",
                         c->max_model_len, param, len, len / cap);
}

static bool encoded(rose_status st, const char *param, const rose_err *e, rose_api_error *err)
{
    if (st == ROSE_OK) return true;
    if (st == ROSE_E_CLOSED) return rose_api_fail(err, 499, NULL, NULL, "the client has left");
    if (st == ROSE_E_NOMEM) return rose_api_fail_nomem(err);
    return rose_api_fail(err, 400, NULL, param, "'%s': %s", param, e->msg);
}

bool rose_api_encode(rose_ids *out, const char *text, size_t len, unsigned flags,
                     const rose_api_prompt_ctx *c, const char *param, rose_api_error *err)
{
    rose_err e = {0};
    if (!may_fit(len, c, param, err)) return false;
    rose_encoder_set_stop(c->enc, c->gone);
    rose_status st = rose_encode(c->enc, text, len, flags, out, &e);
    rose_encoder_set_stop(c->enc, NULL);
    return encoded(st, param, &e, err);
}

bool rose_api_encode_chat(rose_ids *out, const rose_template_text *text,
                          const rose_api_prompt_ctx *c, rose_api_error *err)
{
    rose_err e = {0};
    if (!may_fit(text->len, c, "messages", err)) return false;
    rose_encoder_set_stop(c->enc, c->gone);
    rose_status st = rose_chat_encode(c->enc, text, out, &e);
    rose_encoder_set_stop(c->enc, NULL);
    return encoded(st, "messages", &e, err);
}

static bool load_one(rose_ids *out, const rose_json *v, bool add_special,
                     const rose_api_prompt_ctx *c, rose_api_error *err)
{
    if (rose_json_is_string(v)) {
        if (!rose_api_encode(out, rose_json_text(v), rose_json_text_len(v),
                             add_special ? ROSE_ENCODE_ADD_SPECIAL : 0, c, "prompt", err))
            return false;
    } else if (!rose_api_ids_load(out, v, "prompt", c->vocab_size, err)) {
        return false;
    }
    return out->len > 0 || rose_api_fail(err, 400, NULL, "prompt", "the prompt is empty");
}

/* Appends the text of a prediction's content. False: not a string or a list of text parts. */
static bool add_content(rose_buf *out, const rose_json *content, bool *oom)
{
    size_t i;
    const rose_json *part;
    if (rose_json_is_string(content)) {
        *oom |= rose_buf_add(out, rose_json_text(content), rose_json_text_len(content)) != ROSE_OK;
        return true;
    }
    if (!rose_json_is_array(content)) return false;
    rose_json_each_item (content, i, part) {
        const rose_json *type = rose_json_get(part, "type"), *text = rose_json_get(part, "text");
        if (!rose_json_is_object(part) || !rose_json_is_string(type) ||
            strcmp(rose_json_text(type), "text") != 0 || !rose_json_is_string(text))
            return false;
        *oom |= rose_buf_add(out, rose_json_text(text), rose_json_text_len(text)) != ROSE_OK;
    }
    return true;
}

bool rose_api_prediction_load(rose_ids *out, const rose_json *v, const rose_api_prompt_ctx *c,
                              rose_api_error *err)
{
    const rose_json *type = rose_json_get(v, "type");
    rose_buf text = {0};
    bool oom = false;
    if (v == NULL) return true;
    if (!rose_json_is_object(v) || !rose_json_is_string(type) ||
        strcmp(rose_json_text(type), "content") != 0)
        return rose_api_fail_wrong(err, "prediction",
                                   "an object with 'type': 'content' and a 'content'");
    bool ok = add_content(&text, rose_json_get(v, "content"), &oom) ||
              rose_api_fail_wrong(err, "prediction",
                                  "an object whose 'content' is a string or a list of text parts");
    if (ok && oom) ok = rose_api_fail_nomem(err);
    if (ok && text.len > 0) ok = rose_api_encode(out, text.data, text.len, 0, c, "prediction", err);
    rose_buf_free(&text);
    return ok;
}

/* Checks a list of strings or of lists: all items have the same type as the first. */
static bool check_items(const rose_json *list, const rose_api_prompt_ctx *c, rose_api_error *err)
{
    size_t n = rose_json_count(list);
    bool strings = rose_json_is_string(rose_json_at(list, 0));
    if (n > c->max_prompts)
        return rose_api_fail(
            err, 400, NULL, "prompt",
            "%zu prompts times 'n' give more choices than the server's --max-n allows "
            "(at most %u prompts here)",
            n, c->max_prompts);
    for (size_t i = 0; i < n; i++) {
        const rose_json *v = rose_json_at(list, i);
        if (strings ? !rose_json_is_string(v) : !rose_json_is_array(v))
            return rose_api_fail_wrong(err, "prompt", ROSE_API_PROMPT_FORMS);
    }
    return true;
}

bool rose_api_prompts_load(rose_api_prompts *out, const rose_json *prompt, bool add_special,
                           const rose_api_prompt_ctx *c, rose_api_error *err)
{
    bool many = rose_json_is_array(prompt) && !rose_json_is_integer(rose_json_at(prompt, 0));
    *out = (rose_api_prompts){0};
    if (!rose_json_is_string(prompt) && !rose_json_is_array(prompt))
        return rose_api_fail_wrong(err, "prompt", ROSE_API_PROMPT_FORMS);
    if (rose_json_is_array(prompt) && rose_json_count(prompt) == 0)
        return rose_api_fail(err, 400, NULL, "prompt", "the prompt is empty");
    if (many && !check_items(prompt, c, err)) return false;
    size_t n = many ? rose_json_count(prompt) : 1;
    out->v = calloc(n, sizeof *out->v);
    if (out->v == NULL) return rose_api_fail_nomem(err);
    out->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        if (atomic_load_explicit(c->gone, memory_order_relaxed)) /* only saves work */
            return rose_api_fail(err, 499, NULL, NULL, "the client has left");
        if (!load_one(&out->v[i], many ? rose_json_at(prompt, i) : prompt, add_special, c, err))
            return false;
    }
    return true;
}
