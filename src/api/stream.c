/* api/stream.c - the bytes of a stream: one server-sent event per chunk, in OpenAI's chunk shapes.
 * Two writers give the same bytes: from prebuilt pieces (fast_sse; the only work per token is the
 * escape of its text), and through jansson's tree, which is there to be compared with. */
#include <string.h>

#include "api/api_internal.h"

static const char *chunk_object(const api_job *j)
{
    return j->kind == API_CHAT ? "chat.completion.chunk" : "text_completion";
}

void api_sse_head(api_out *head, const api_job *j)
{
    api_puts(head, "data: {\"id\":\"");
    api_puts(head, j->id);
    api_puts(head, "\",\"object\":\"");
    api_puts(head, chunk_object(j));
    api_putf(head, "\",\"created\":%lld,\"model\":", (long long)j->created);
    api_put_string(head, j->api->model_id, strlen(j->api->model_id));
    api_puts(head, ",\"choices\":[");
}

#define PUT(o, literal) api_put(o, literal, sizeof literal - 1)

static void put_delta(api_out *o, const api_choice *c, const char *text, size_t len)
{
    if (c->role_sent && len == 0) {
        PUT(o, ",\"delta\":{}");
        return;
    }
    if (c->role_sent)
        PUT(o, ",\"delta\":{\"content\":\"");
    else
        PUT(o, ",\"delta\":{\"role\":\"assistant\",\"content\":\"");
    api_put_escaped(o, text, len);
    PUT(o, "\"}");
}

static void chunk_fast(api_out *o, const api_job *j, const api_choice *c, const char *text,
                       size_t len, const char *finish)
{
    api_put(o, j->head.b.data, j->head.b.len);
    PUT(o, "{\"index\":");
    api_put_u64(o, c->index);
    if (j->kind == API_CHAT) {
        put_delta(o, c, text, len);
    } else {
        PUT(o, ",\"text\":\"");
        api_put_escaped(o, text, len);
        PUT(o, "\"");
    }
    if (finish == NULL) {
        PUT(o, ",\"logprobs\":null,\"finish_reason\":null}]");
    } else {
        PUT(o, ",\"logprobs\":null,\"finish_reason\":\"");
        api_puts(o, finish);
        PUT(o, "\"}]");
    }
    if (j->usage) PUT(o, ",\"usage\":null");
}

static json_t *choice_tree(const api_job *j, const api_choice *c, const char *text, size_t len,
                           const char *finish)
{
    json_t *t = json_object();
    if (len == 0) text = ""; /* it may be NULL then */
    json_object_set_new(t, "index", json_integer(c->index));
    if (j->kind == API_CHAT) {
        json_t *delta = json_object();
        if (!c->role_sent) json_object_set_new(delta, "role", json_string("assistant"));
        if (!c->role_sent || len > 0)
            json_object_set_new(delta, "content", json_stringn(text, len));
        json_object_set_new(t, "delta", delta);
    } else {
        json_object_set_new(t, "text", json_stringn(text, len));
    }
    json_object_set_new(t, "logprobs", json_null());
    json_object_set_new(t, "finish_reason", finish == NULL ? json_null() : json_string(finish));
    return t;
}

static int put_callback(const char *bytes, size_t len, void *out)
{
    api_put(out, bytes, len);
    return 0;
}

/* Everything up to the closing brace, which the caller adds behind the tail. */
static void chunk_generic(api_out *o, const api_job *j, const api_choice *c, const char *text,
                          size_t len, const char *finish)
{
    json_t *root = json_object(), *choices = json_array();
    json_array_append_new(choices, choice_tree(j, c, text, len, finish));
    json_object_set_new(root, "id", json_string(j->id));
    json_object_set_new(root, "object", json_string(chunk_object(j)));
    json_object_set_new(root, "created", json_integer(j->created));
    json_object_set_new(root, "model", json_string(j->api->model_id));
    json_object_set_new(root, "choices", choices);
    if (j->usage) json_object_set_new(root, "usage", json_null());
    PUT(o, "data: ");
    if (json_dump_callback(root, put_callback, o, JSON_COMPACT) != 0)
        o->oom = true;
    else
        o->b.len--;
    json_decref(root);
}

void api_sse_chunk(api_out *o, const api_job *j, const api_choice *c, const char *text, size_t len,
                   const char *finish, const char *tail, size_t tail_len)
{
    if (j->api->o.fast_sse)
        chunk_fast(o, j, c, text, len, finish);
    else
        chunk_generic(o, j, c, text, len, finish);
    api_put(o, tail, tail_len);
    PUT(o, "}\n\n");
}

void api_sse_usage(api_out *o, const api_job *j, const char *tail, size_t tail_len)
{
    api_put(o, j->head.b.data, j->head.b.len);
    PUT(o, "],\"usage\":");
    api_usage_json(o, j);
    api_put(o, tail, tail_len);
    PUT(o, "}\n\n");
}

void api_sse_error(api_out *o, const api_error *e)
{
    PUT(o, "data: ");
    api_error_json(o, e);
    PUT(o, "\n\n");
}
