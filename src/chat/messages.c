/* chat/messages.c - checks messages in OpenAI's form and brings them into the form that templates
 * expect. What a template does not know of a message (its name, its tool calls) it passes over;
 * members that no template could show are refused. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "chat/chat_internal.h"

/* Most bytes of the arguments of all tool calls in one request. They are JSON within JSON, so the
 * checks of the request's own values have not seen them. */
enum { MAX_ARGUMENTS = 1 << 20 };

typedef struct state {
    rose_chat_forms forms;
    size_t i;       /* the message */
    size_t n_bytes; /* of arguments so far */
    rose_err *err;
} state;

static rose_status no_memory(const state *s)
{
    return rose_fail(s->err, ROSE_E_NOMEM, "messages: out of memory");
}

/* Puts a new reference into a list; NULL stands for a failed allocation. */
static rose_status append(const state *s, json_t *list, json_t *v)
{
    return json_array_append_new(list, v) == 0 ? ROSE_OK : no_memory(s);
}

static rose_status put(const state *s, json_t *object, const char *key, json_t *v)
{
    return json_object_set_new(object, key, v) == 0 ? ROSE_OK : no_memory(s);
}

/* A copy with the same values, or NULL. json_copy would lack members after a failed allocation. */
static json_t *copy_of(const json_t *object)
{
    json_t *copy = json_object();
    if (copy != NULL && json_object_update(copy, (json_t *)(uintptr_t)object) == 0) return copy;
    json_decref(copy);
    return NULL;
}

/* ---- content ---- */

static rose_status check_part(const state *s, const json_t *part)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!json_is_object(part) || !json_is_string(type))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content: each part must be an object with a 'type'", s->i);
    if (strcmp(json_string_value(type), "text") != 0)
        return rose_fail(s->err, ROSE_E_UNSUPPORTED,
                         "messages[%zu].content: part type '%.40s' is not supported by this server",
                         s->i, json_string_value(type));
    if (!json_is_string(text))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content: a text part needs a string 'text'", s->i);
    return ROSE_OK;
}

/* The texts of all parts, with a newline between two, as vLLM joins them; NULL: no memory. */
static json_t *join(const json_t *parts)
{
    rose_buf b = {0};
    bool ok = rose_buf_reserve(&b, 1) == ROSE_OK;
    for (size_t k = 0; ok && k < json_array_size(parts); k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        ok = (k == 0 || rose_buf_add(&b, "\n", 1) == ROSE_OK) &&
             rose_buf_add(&b, json_string_value(text), json_string_length(text)) == ROSE_OK;
    }
    json_t *out = ok ? json_stringn(b.data, b.len) : NULL;
    rose_buf_free(&b);
    return out;
}

static rose_status put_content(const state *s, json_t *message)
{
    json_t *content = json_object_get(message, "content");
    if (content == NULL || json_is_null(content)) return ROSE_OK;
    if (json_is_string(content)) {
        if (!s->forms.wrap) return ROSE_OK;
        return put(s, message, "content",
                   json_pack("[{s:s,s:O}]", "type", "text", "text", content));
    }
    if (!json_is_array(content))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content must be a string or a list of text parts", s->i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const rose_status st = check_part(s, json_array_get(content, k));
        if (st != ROSE_OK) return st;
    }
    return s->forms.parts ? ROSE_OK : put(s, message, "content", join(content));
}

/* ---- tool calls ---- */

/* *out: the arguments as a value, a new reference. */
static rose_status parse_arguments(state *s, size_t k, const json_t *text, json_t **out)
{
    json_error_t e;
    const size_t n = json_string_length(text);
    *out = NULL;
    s->n_bytes += n;
    if (s->n_bytes > MAX_ARGUMENTS)
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages: the arguments of tool calls are over %d bytes", MAX_ARGUMENTS);
    if (n == 0) return (*out = json_object()) != NULL ? ROSE_OK : no_memory(s);
    const rose_status st =
        rose_json_parse(out, json_string_value(text), n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (st == ROSE_E_NOMEM) return no_memory(s);
    if (st == ROSE_OK) return ROSE_OK;
    return rose_fail(s->err, ROSE_E_INVAL,
                     "messages[%zu].tool_calls[%zu].function.arguments is not valid JSON: %.100s",
                     s->i, k, e.text);
}

static rose_status add_call(state *s, size_t k, json_t *call, json_t *list)
{
    json_t *function = json_object_get(call, "function"), *value = NULL;
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_object(call) || !json_is_object(function) ||
        !json_is_string(json_object_get(function, "name")))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].tool_calls[%zu] needs a 'function' with a string 'name'",
                         s->i, k);
    if (!json_is_string(arguments)) return append(s, list, json_incref(call));
    rose_status st = parse_arguments(s, k, arguments, &value);
    if (st != ROSE_OK) return st;
    json_t *f = copy_of(function), *c = copy_of(call);
    if (f == NULL || c == NULL) st = no_memory(s);
    if (st == ROSE_OK) st = put(s, f, "arguments", json_incref(value));
    if (st == ROSE_OK) st = put(s, c, "function", json_incref(f));
    if (st == ROSE_OK) st = append(s, list, json_incref(c));
    json_decref(f);
    json_decref(c);
    json_decref(value);
    return st;
}

/* Clients send an empty list back that a reply had; some templates would take it for calls. */
static rose_status put_calls(state *s, json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls == NULL || json_is_null(calls)) return ROSE_OK;
    if (!json_is_array(calls))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu].tool_calls must be a list", s->i);
    if (json_array_size(calls) == 0) {
        json_object_del(message, "tool_calls");
        return ROSE_OK;
    }
    json_t *list = json_array();
    rose_status st = list != NULL ? ROSE_OK : no_memory(s);
    for (size_t k = 0; st == ROSE_OK && k < json_array_size(calls); k++)
        st = add_call(s, k, json_array_get(calls, k), list);
    if (st == ROSE_OK) return put(s, message, "tool_calls", list);
    json_decref(list);
    return st;
}

/* ---- messages ---- */

/* Members that no chat template shows, so that the model would answer without them. */
static rose_status refuse_members(const state *s, const json_t *m)
{
    static const char *const names[] = {"function_call", "refusal", "audio"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(m, names[i]);
        if (v != NULL && !json_is_null(v))
            return rose_fail(s->err, ROSE_E_UNSUPPORTED,
                             "messages[%zu].%s is not supported by this server", s->i, names[i]);
    }
    return ROSE_OK;
}

/* Replies have the reasoning under two names, and clients send either back. Templates know one. */
static rose_status put_reasoning(const state *s, json_t *message)
{
    json_t *v = json_object_get(message, "reasoning");
    if (!json_is_string(v) || json_is_string(json_object_get(message, "reasoning_content")))
        return ROSE_OK;
    return put(s, message, "reasoning_content", json_incref(v));
}

static rose_status add_message(state *s, json_t *m, json_t *list)
{
    if (!json_is_object(m))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu] must be an object", s->i);
    if (!json_is_string(json_object_get(m, "role")))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu].role must be a string", s->i);
    rose_status st = refuse_members(s, m);
    if (st != ROSE_OK) return st;
    json_t *copy = copy_of(m);
    if (copy == NULL) return no_memory(s);
    st = put_content(s, copy);
    if (st == ROSE_OK) st = put_calls(s, copy);
    if (st == ROSE_OK) st = put_reasoning(s, copy);
    if (st == ROSE_OK) st = append(s, list, json_incref(copy));
    json_decref(copy);
    return st;
}

rose_status rose_chat_messages(json_t **out, const json_t *messages, rose_chat_forms forms,
                               rose_err *err)
{
    state s = {.forms = forms, .err = err};
    *out = NULL;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "field 'messages' must be a list of at least one message");
    json_t *list = json_array();
    rose_status st = list != NULL ? ROSE_OK : no_memory(&s);
    for (; st == ROSE_OK && s.i < json_array_size(messages); s.i++)
        st = add_message(&s, json_array_get(messages, s.i), list);
    if (st == ROSE_OK)
        *out = list;
    else
        json_decref(list);
    return st;
}
