/* api/stream.c - the dialects of completions and chats: one server-sent event per chunk, in the
 * form of OpenAI's chunks. Two writers give the same bytes. One uses prebuilt pieces (fast_sse), so
 * that its only work per token is escaping the text. The other builds a tree of JSON values and
 * exists for comparison. */
#include <string.h>

#include "api/api_internal.h"

static const char *chunk_object(const rose_api_job *j)
{
    return j->kind == ROSE_API_CHAT ? "chat.completion.chunk" : "text_completion";
}

static void put_head(rose_api_out *head, const rose_api_job *j, const rose_api_params *p)
{
    (void)p;
    rose_api_json(head, "data: {'id':'%s','object':'%s','created':%lld,'model':%-s,'choices':[",
                  j->id, chunk_object(j), (long long)j->created, j->api->o.model_id);
}

#define PUT(o, literal) rose_api_put(o, literal, sizeof literal - 1)

/* A piece of a call: first its id and name, then the text of its arguments. */
static void put_call(rose_api_out *o, const rose_api_choice *c, const rose_api_piece *p)
{
    const bool begins = p->kind == ROSE_API_PART_CALL;
    const int len = (int)p->len;
    if (c->job->reading.functions) {
        rose_api_json(o, "'function_call':{");
        if (begins) rose_api_json(o, "'name':%-.*s,", len, p->text);
        rose_api_json(o, "'arguments':%-.*s}", begins ? 0 : len, p->text);
        return;
    }
    rose_api_json(o, "'tool_calls':[{'index':%u,", p->call);
    if (begins)
        rose_api_json(o, "'id':'%s','type':'function','function':{'name':%-.*s,'arguments':''}}]",
                      p->id, len, p->text);
    else
        rose_api_json(o, "'function':{'arguments':%-.*s}}]", len, p->text);
}

static void put_delta(rose_api_out *o, const rose_api_choice *c, const rose_api_piece *p)
{
    const bool text = p->kind == ROSE_API_PART_TEXT;
    PUT(o, ",\"delta\":{");
    if (!c->begun) PUT(o, "\"role\":\"assistant\",");
    if (!c->begun && !text) PUT(o, "\"content\":null,");
    if (p->kind == ROSE_API_PART_REASONING) {
        PUT(o, "\"reasoning_content\":");
        rose_api_put_string(o, p->text, p->len);
        PUT(o, ",\"reasoning\":");
        rose_api_put_string(o, p->text, p->len);
    } else if (!text) {
        put_call(o, c, p);
    } else if (!c->begun || p->len > 0) {
        PUT(o, "\"content\":\"");
        rose_api_put_escaped(o, p->text, p->len);
        PUT(o, "\"");
    }
    PUT(o, "}");
}

static void chunk_fast(rose_api_out *o, const rose_api_choice *c, const rose_api_piece *p,
                       const char *finish)
{
    const rose_api_job *j = c->job;
    rose_api_put(o, j->head.b.data, j->head.b.len);
    PUT(o, "{\"index\":");
    rose_api_put_u64(o, c->index);
    if (j->kind == ROSE_API_CHAT) {
        put_delta(o, c, p);
    } else {
        PUT(o, ",\"text\":\"");
        rose_api_put_escaped(o, p->text, p->len);
        PUT(o, "\"");
    }
    if (finish == NULL && c->extra == NULL) {
        PUT(o, ",\"logprobs\":null,\"finish_reason\":null}]");
    } else {
        PUT(o, ",\"logprobs\":");
        rose_api_extra_logprobs(o, c);
        PUT(o, ",\"finish_reason\":");
        if (finish != NULL) PUT(o, "\"");
        rose_api_puts(o, finish != NULL ? finish : "null");
        if (finish != NULL) {
            PUT(o, "\"");
            rose_api_stop_reason(o, c);
        }
        rose_api_extra_members(o, c, c->extra != NULL && !c->extra->sent);
        PUT(o, "}]");
        rose_api_extra_chat(o, c);
    }
    if (j->asked.chunk_usage) {
        PUT(o, ",\"usage\":");
        rose_api_usage_counts(o, c->prompt_n, c->n_tokens);
        PUT(o, "}");
    } else if (j->asked.usage) {
        PUT(o, ",\"usage\":null");
    }
}

/* Takes ownership of v, which may be NULL (out of memory), for object; false on failure. */
static bool set(rose_json *object, const char *key, rose_json *v)
{
    return rose_json_set_new(object, key, v) == 0;
}

static bool fill_delta(rose_json *delta, const rose_api_choice *c, const char *text, size_t len)
{
    return (c->begun || set(delta, "role", rose_json_string("assistant"))) &&
           ((c->begun && len == 0) || set(delta, "content", rose_json_stringn(text, len)));
}

static rose_json *stop_reason(const rose_api_choice *c)
{
    if (c->stop_kind == ROSE_API_STOP_ID) return rose_json_integer(c->stop_id);
    if (c->stop_kind != ROSE_API_STOP_STRING) return rose_json_null();
    const struct rose_stop *s = &c->job->stops.v[c->stop.which];
    return rose_json_stringn(s->text, s->len);
}

static bool fill_choice(rose_json *t, const rose_api_choice *c, const rose_api_piece *p,
                        const char *finish)
{
    rose_json *delta = NULL;
    const char *text = p->len == 0 ? "" : p->text; /* it may be NULL then */
    const size_t len = p->len;
    if (!set(t, "index", rose_json_integer(c->index))) return false;
    if (c->job->kind != ROSE_API_CHAT) {
        if (!set(t, "text", rose_json_stringn(text, len))) return false;
    } else if (!set(t, "delta", delta = rose_json_object()) || !fill_delta(delta, c, text, len)) {
        return false;
    }
    return set(t, "logprobs", rose_json_null()) &&
           set(t, "finish_reason", finish == NULL ? rose_json_null() : rose_json_string(finish)) &&
           (finish == NULL || set(t, "stop_reason", stop_reason(c)));
}

/* The usage of a choice so far, as in vLLM: its own prompt tokens and its own output tokens. */
static rose_json *chunk_usage(const rose_api_choice *c)
{
    if (!c->job->asked.chunk_usage) return rose_json_null();
    return rose_json_pack("{sI sI sI}", "prompt_tokens", (int64_t)c->prompt_n, "completion_tokens",
                          (int64_t)c->n_tokens, "total_tokens",
                          (int64_t)c->prompt_n + (int64_t)c->n_tokens);
}

static bool fill_chunk(rose_json *root, const rose_api_choice *c, rose_json *choice)
{
    const rose_api_job *j = c->job;
    rose_json *choices = rose_json_array();
    bool ok = rose_json_append(choices, choice) == 0 && set(root, "id", rose_json_string(j->id)) &&
              set(root, "object", rose_json_string(chunk_object(j))) &&
              set(root, "created", rose_json_integer(j->created)) &&
              set(root, "model", rose_json_string(j->api->o.model_id)) &&
              rose_json_set(root, "choices", choices) == 0 &&
              (!j->asked.usage || set(root, "usage", chunk_usage(c)));
    rose_json_decref(choices);
    return ok;
}

void rose_api_put_json(rose_api_out *o, const rose_json *v)
{
    if (v == NULL)
        rose_api_puts(o, "null");
    else if (!o->oom && rose_json_dump(&o->b, v, ROSE_JSON_COMPACT) != ROSE_OK)
        o->oom = true;
}

/* Writes a chunk up to the closing brace, which the caller writes after any further members. */
static void chunk_generic(rose_api_out *o, const rose_api_choice *c, const rose_api_piece *p,
                          const char *finish)
{
    rose_json *root = rose_json_object(), *choice = rose_json_object();
    PUT(o, "data: ");
    bool ok = root != NULL && choice != NULL && fill_choice(choice, c, p, finish) &&
              fill_chunk(root, c, choice);
    if (ok)
        rose_api_put_json(o, root);
    else
        o->oom = true;
    if (!o->oom) o->b.len--;
    rose_json_decref(choice);
    rose_json_decref(root);
}

/* Tells whether the chunk with this finish is the last one of the stream. */
static bool ends_stream(const rose_api_job *j, const char *finish)
{
    return finish != NULL && !j->asked.usage && j->n_released == j->n_choices;
}

static void put_timings(rose_api_out *o, const rose_api_job *j)
{
    PUT(o, ",\"timings\":");
    rose_api_timings_json(o, j);
}

static void put_chunk(rose_api_out *o, rose_api_choice *c, const rose_api_piece *p,
                      const char *finish)
{
    /* the tree knows plain text only */
    if (c->job->api->o.fast_sse || c->extra != NULL || p->kind != ROSE_API_PART_TEXT)
        chunk_fast(o, c, p, finish);
    else
        chunk_generic(o, c, p, finish);
    if (ends_stream(c->job, finish)) put_timings(o, c->job);
    PUT(o, "}\n\n");
    c->begun = true;
    if (c->extra != NULL) rose_api_extra_sent(c);
}

/* A chunk for each piece. The last of them has the finish; without a piece an empty text has it. */
static void put_event(rose_api_out *o, rose_api_choice *c, bool last)
{
    rose_api_piece p = {.kind = ROSE_API_PART_TEXT}, next;
    bool more = rose_api_piece_next(c, &p);
    do {
        more = more && rose_api_piece_next(c, &next);
        put_chunk(o, c, &p, last && !more ? c->finish : NULL);
        if (more) p = next;
    } while (more);
    rose_api_parts_clear(c);
}

static void put_end(rose_api_out *o, rose_api_job *j)
{
    if (j->err.status != 0) {
        PUT(o, "data: ");
        rose_api_error_json(o, &j->err);
        PUT(o, "\n\n");
    } else if (j->asked.usage) {
        rose_api_put(o, j->head.b.data, j->head.b.len);
        PUT(o, "],\"usage\":");
        rose_api_usage_json(o, j);
        put_timings(o, j);
        PUT(o, "}\n\n");
    }
    PUT(o, "data: [DONE]\n\n");
}

const rose_api_dialect rose_api_dialect_completion = {.id = "cmpl-",
                                                      .ping = ROSE_API_PING,
                                                      .head = put_head,
                                                      .event = put_event,
                                                      .end = put_end,
                                                      .whole = rose_api_reply_json,
                                                      .error = rose_api_error_json};
const rose_api_dialect rose_api_dialect_chat = {.id = "chatcmpl-",
                                                .ping = ROSE_API_PING,
                                                .head = put_head,
                                                .event = put_event,
                                                .end = put_end,
                                                .whole = rose_api_reply_json,
                                                .error = rose_api_error_json};
