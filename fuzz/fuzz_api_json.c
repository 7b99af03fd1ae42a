/* libFuzzer target: a request body as arbitrary bytes, through JSON, the field table, the chat
 * template, stop strings and the lists of ids; with two of its bits, through the translation of
 * another API first. The first byte picks the endpoint. */
#include <stdlib.h>

#include "api/api_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void load_ids(const rose_json *v)
{
    rose_ids ids = {0};
    rose_api_error err = {0};
    if (rose_json_is_array(v) && rose_api_ids_load(&ids, v, "tokens", 1000, &err)) {
        for (size_t i = 0; i < ids.len; i++) {
            if (ids.data[i] >= 1000) abort();
        }
    }
    rose_ids_free(&ids);
}

static void load_stops(const rose_json *v)
{
    rose_stops s = {0};
    for (size_t i = 0; i < rose_json_count(v); i++) {
        const rose_json *t = rose_json_at(v, i);
        if (rose_stops_add(&s, rose_json_text(t), rose_json_text_len(t)) != ROSE_OK) abort();
    }
    rose_stops_free(&s);
}

/* Whatever the names hold, the header is one line of few characters. */
static void check_ignored(const rose_api_ignored *g)
{
    rose_api_out line = {0};
    if (g->strict && g->n > 0) abort();
    rose_api_ignored_header(&line, g);
    if (line.b.len > 1120 || (line.b.len == 0) != (g->n == 0)) abort();
    for (size_t i = 0; i + 2 < line.b.len; i++) {
        if (line.b.data[i] < ' ' || line.b.data[i] > '~') abort();
    }
    rose_api_out_free(&line);
}

static void check_params(const rose_api_params *p, rose_api_ignored *ignored)
{
    rose_api_out text = {0};
    rose_api_error err = {0};
    if (!(p->temperature >= 0 && p->top_p > 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1))
        abort();
    /* max_tokens is -1 where the body does not give it. */
    if (p->n < 1 || p->n > 128 || p->top_k < -1 || p->max_tokens < -1 || p->max_tokens > INT32_MAX)
        abort();
    if (p->messages != NULL && rose_api_chat_render(&text, p, ignored, &err)) {
        rose_json *v = rose_json_stringn(text.b.data, text.b.len);
        if (v == NULL) abort(); /* not UTF-8 */
        rose_json_decref(v);
    }
    rose_api_out_free(&text);
    if (rose_json_is_array(p->stop)) load_stops(p->stop);
    load_ids(p->tokens);
    load_ids(p->prompt);
}

/* Translates the body of another API; d NULL: it is none. False: err says why not. */
static bool translate(rose_json **body, const rose_api_dialect *d, rose_api_ignored *ignored,
                      rose_api_error *err)
{
    rose_api_translation t = {
        .body = *body, .generates = true, .templated = true, .ignored = ignored, .err = err};
    if (d == NULL) return true;
    const bool ok = d->translate(&t);
    if (ok != (err->status == 0) || (ok && !rose_json_is_array(rose_json_get(t.chat, "messages"))))
        abort();
    rose_json_decref(*body);
    *body = t.chat;
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const rose_api_dialect *const dialects[] = {NULL, &rose_api_dialect_responses,
                                                       &rose_api_dialect_messages, NULL};
    static const rose_api_kind kinds[] = {ROSE_API_COMPLETION, ROSE_API_CHAT, ROSE_API_TOKENIZE,
                                          ROSE_API_DETOKENIZE};
    static const rose_opt_list no_aliases;
    const rose_api_schema_opts o = {
        .model_id = "m", .model_aliases = &no_aliases, .max_n = 128, .max_stop = 64};
    rose_api_ignored ignored = {.strict = size > 0 && (data[0] & 4) != 0};
    rose_api_error err = {0};
    rose_api_params p;
    rose_json *root = NULL;
    if (size == 0) return 0;
    if (rose_api_json_load(&root, (const char *)data + 1, size - 1, 65536, &err) &&
        translate(&root, dialects[data[0] >> 3 & 3], &ignored, &err) &&
        rose_api_schema_check(&p, root, kinds[data[0] & 3], &o, &ignored, &err))
        check_params(&p, &ignored);
    check_ignored(&ignored);
    rose_json_decref(root);
    if (err.status == 0) return 0;
    rose_api_out out = {0};
    rose_api_error_json(&out, &err);
    rose_json *e = rose_json_loadb(out.b.data, out.b.len, 0, NULL);
    if (e == NULL) abort(); /* our own errors are valid JSON whatever they quote */
    rose_json_decref(e);
    rose_api_out_free(&out);
    return 0;
}
