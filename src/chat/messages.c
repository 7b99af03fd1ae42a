/* chat/messages.c - checks messages in OpenAI's form and brings them into the form that templates
 * expect. What a template does not know of a message (its name, its tool calls) it passes over;
 * members that no template could show are refused. */
#include <ctype.h>
#include <stdint.h>
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
static rose_status append(const state *s, rose_json *list, rose_json *v)
{
    return rose_json_append_new(list, v) == 0 ? ROSE_OK : no_memory(s);
}

static rose_status put(const state *s, rose_json *object, const char *key, rose_json *v)
{
    return rose_json_set_new(object, key, v) == 0 ? ROSE_OK : no_memory(s);
}

/* ---- content ---- */

static rose_status check_part(const state *s, const rose_json *part)
{
    const rose_json *type = rose_json_get(part, "type"), *text = rose_json_get(part, "text");
    if (!rose_json_is_object(part) || !rose_json_is_string(type))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content: each part must be an object with a 'type'", s->i);
    if (strcmp(rose_json_text(type), "text") != 0)
        return rose_fail(s->err, ROSE_E_UNSUPPORTED,
                         "messages[%zu].content: part type '%.40s' is not supported by this server",
                         s->i, rose_json_text(type));
    if (!rose_json_is_string(text))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content: a text part needs a string 'text'", s->i);
    return ROSE_OK;
}

/* The texts of all parts, with a newline between two, as vLLM joins them; NULL: no memory. */
static rose_json *join(const rose_json *parts)
{
    rose_buf b = {0};
    const bool ok = rose_buf_reserve(&b, 1) == ROSE_OK && rose_chat_add_texts(&b, parts) == ROSE_OK;
    rose_json *out = ok ? rose_json_stringn(b.data, b.len) : NULL;
    rose_buf_free(&b);
    return out;
}

/* Agents send replies back that had calls only. A template that cannot take null gets the empty
 * content that vLLM gives it. */
static rose_status put_no_content(const state *s, rose_json *message)
{
    if (s->forms.null && rose_json_count(rose_json_get(message, "tool_calls")) > 0)
        return put(s, message, "content", rose_json_null());
    return put(s, message, "content", s->forms.wrap ? rose_json_array() : rose_json_string(""));
}

static rose_status put_content(const state *s, rose_json *message)
{
    rose_json *content = rose_json_get(message, "content");
    if (content == NULL || rose_json_is_null(content)) return put_no_content(s, message);
    if (rose_json_is_string(content)) {
        if (!s->forms.wrap) return ROSE_OK;
        return put(s, message, "content",
                   rose_json_pack("[{s:s,s:O}]", "type", "text", "text", content));
    }
    if (!rose_json_is_array(content))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].content must be a string or a list of text parts", s->i);
    for (size_t k = 0; k < rose_json_count(content); k++) {
        const rose_status st = check_part(s, rose_json_at(content, k));
        if (st != ROSE_OK) return st;
    }
    return s->forms.parts ? ROSE_OK : put(s, message, "content", join(content));
}

/* ---- tool calls ---- */

/* *out: the arguments as a value that the template shows, a new reference. The server may have sent
 * them itself, as its model wrote them: cut, with a comma or a line end too many. They are read as
 * far as they go. What is no JSON at all stays text. NULL, null and the empty text are no
 * arguments. */
static rose_status parse_arguments(state *s, const rose_json *text, rose_json **out)
{
    static const unsigned ways[] = {ROSE_JSON_PYTHON | ROSE_JSON_ANY,
                                    ROSE_JSON_PYTHON | ROSE_JSON_REPAIR};
    const size_t n = rose_json_text_len(text);
    *out = NULL;
    s->n_bytes += n;
    if (s->n_bytes > MAX_ARGUMENTS)
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages: the arguments of tool calls are over %d bytes", MAX_ARGUMENTS);
    if (n == 0) return (*out = rose_json_object()) != NULL ? ROSE_OK : no_memory(s);
    for (size_t i = 0; i < 2 && !s->forms.only_text; i++) {
        const rose_status st = rose_json_parse(out, rose_json_text(text), n, ways[i], NULL);
        if (st != ROSE_E_FORMAT) return st == ROSE_OK ? st : no_memory(s);
    }
    *out = s->forms.text ? rose_json_incref(text) : rose_json_pack("{s:O}", "arguments", text);
    return *out != NULL ? ROSE_OK : no_memory(s);
}

static bool is_short_id(const rose_json *id)
{
    const char *s = rose_json_text(id);
    size_t n = rose_json_text_len(id);
    if (n != 9) return false;
    while (n > 0 && isalnum((unsigned char)s[n - 1]))
        n--;
    return n == 0;
}

void rose_chat_short_id(char out[ROSE_CHAT_SHORT_ID], uint64_t x)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (size_t i = 0; i < ROSE_CHAT_SHORT_ID - 1; i++, x /= 62)
        out[i] = digits[x % 62];
    out[ROSE_CHAT_SHORT_ID - 1] = '\0';
}

/* Clients bring ids of other servers, or make their own. Where the template takes only short ones,
 * a long one becomes a short one that follows from it, in the call as in the result. */
static rose_status put_id(const state *s, rose_json *object, const char *key)
{
    const rose_json *id = rose_json_get(object, key);
    char own[ROSE_CHAT_SHORT_ID];
    uint64_t x = 0xcbf29ce484222325u; /* FNV-1a */
    if (!s->forms.short_ids || !rose_json_is_string(id) || is_short_id(id)) return ROSE_OK;
    for (size_t i = 0; i < rose_json_text_len(id); i++)
        x = (x ^ (unsigned char)rose_json_text(id)[i]) * 0x100000001b3u;
    rose_chat_short_id(own, x);
    return put(s, object, key, rose_json_string(own));
}

static bool is_custom(const rose_json *call)
{
    const rose_json *custom = rose_json_get(call, "custom");
    return rose_json_is_string(rose_json_get(custom, "name")) &&
           rose_json_is_string(rose_json_get(custom, "input"));
}

/* A call of a custom tool, which takes a text, as that of a function with one string. NULL: no
 * memory. */
static rose_json *function_call(const rose_json *call)
{
    const rose_json *custom = rose_json_get(call, "custom"), *id = rose_json_get(call, "id");
    rose_json *out = rose_json_pack("{s:s,s:{s:O,s:{s:O}}}", "type", "function", "function", "name",
                                    rose_json_get(custom, "name"), "arguments", "input",
                                    rose_json_get(custom, "input"));
    if (id == NULL || rose_json_set_new(out, "id", rose_json_incref(id)) == 0) return out;
    rose_json_decref(out);
    return NULL;
}

/* Adds a call, a new value, which it takes. NULL: no memory. */
static rose_status append_call(const state *s, rose_json *list, rose_json *call)
{
    const rose_status st = call != NULL ? put_id(s, call, "id") : no_memory(s);
    if (st == ROSE_OK) return append(s, list, call);
    rose_json_decref(call);
    return st;
}

static rose_status add_call(state *s, size_t k, rose_json *call, rose_json *list)
{
    if (is_custom(call)) return append_call(s, list, function_call(call));
    rose_json *function = rose_json_get(call, "function"), *value = NULL;
    rose_json *arguments = rose_json_get(function, "arguments");
    if (!rose_json_is_object(call) || !rose_json_is_object(function) ||
        !rose_json_is_string(rose_json_get(function, "name")))
        return rose_fail(s->err, ROSE_E_INVAL,
                         "messages[%zu].tool_calls[%zu] needs a 'function' with a string 'name'",
                         s->i, k);
    const bool lacks = arguments == NULL || rose_json_is_null(arguments);
    if (!lacks && !rose_json_is_string(arguments))
        return append_call(s, list, rose_json_copy(call));
    rose_status st = parse_arguments(s, arguments, &value);
    if (st != ROSE_OK) return st;
    rose_json *f = rose_json_copy(function), *c = rose_json_copy(call);
    if (f == NULL || c == NULL) st = no_memory(s);
    if (st == ROSE_OK) st = put(s, f, "arguments", rose_json_incref(value));
    if (st == ROSE_OK) st = put(s, c, "function", rose_json_incref(f));
    if (st == ROSE_OK) st = append_call(s, list, rose_json_incref(c));
    rose_json_decref(f);
    rose_json_decref(c);
    rose_json_decref(value);
    return st;
}

/* Clients send an empty list back that a reply had; some templates would take it for calls. */
static rose_status put_calls(state *s, rose_json *message)
{
    rose_json *calls = rose_json_get(message, "tool_calls");
    if (calls == NULL || rose_json_is_null(calls)) return ROSE_OK;
    if (!rose_json_is_array(calls))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu].tool_calls must be a list", s->i);
    if (rose_json_count(calls) == 0) {
        rose_json_del(message, "tool_calls");
        return ROSE_OK;
    }
    rose_json *list = rose_json_array();
    rose_status st = list != NULL ? ROSE_OK : no_memory(s);
    for (size_t k = 0; st == ROSE_OK && k < rose_json_count(calls); k++)
        st = add_call(s, k, rose_json_at(calls, k), list);
    if (st == ROSE_OK) return put(s, message, "tool_calls", list);
    rose_json_decref(list);
    return st;
}

/* ---- messages ---- */

/* Members that no chat template shows, so that the model would answer without them. */
static rose_status refuse_members(const state *s, const rose_json *m)
{
    static const char *const names[] = {"function_call", "refusal", "audio"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const rose_json *v = rose_json_get(m, names[i]);
        if (v != NULL && !rose_json_is_null(v))
            return rose_fail(s->err, ROSE_E_UNSUPPORTED,
                             "messages[%zu].%s is not supported by this server", s->i, names[i]);
    }
    return ROSE_OK;
}

/* Replies have the reasoning under two names, and clients send either back. Templates know one. */
static rose_status put_reasoning(const state *s, rose_json *message)
{
    rose_json *v = rose_json_get(message, "reasoning");
    if (!rose_json_is_string(v) || rose_json_is_string(rose_json_get(message, "reasoning_content")))
        return ROSE_OK;
    return put(s, message, "reasoning_content", rose_json_incref(v));
}

static rose_status add_message(state *s, rose_json *m, rose_json *list)
{
    if (!rose_json_is_object(m))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu] must be an object", s->i);
    if (!rose_json_is_string(rose_json_get(m, "role")))
        return rose_fail(s->err, ROSE_E_INVAL, "messages[%zu].role must be a string", s->i);
    rose_status st = refuse_members(s, m);
    if (st != ROSE_OK) return st;
    rose_json *copy = rose_json_copy(m);
    if (copy == NULL) return no_memory(s);
    st = put_content(s, copy);
    if (st == ROSE_OK) st = put_calls(s, copy);
    if (st == ROSE_OK) st = put_id(s, copy, "tool_call_id");
    if (st == ROSE_OK) st = put_reasoning(s, copy);
    if (st == ROSE_OK) st = append(s, list, rose_json_incref(copy));
    rose_json_decref(copy);
    return st;
}

rose_status rose_chat_messages(rose_json **out, const rose_json *messages, rose_chat_forms forms,
                               rose_err *err)
{
    state s = {.forms = forms, .err = err};
    *out = NULL;
    if (!rose_json_is_array(messages) || rose_json_count(messages) == 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "field 'messages' must be a list of at least one message");
    rose_json *list = rose_json_array();
    rose_status st = list != NULL ? ROSE_OK : no_memory(&s);
    for (; st == ROSE_OK && s.i < rose_json_count(messages); s.i++)
        st = add_message(&s, rose_json_at(messages, s.i), list);
    if (st == ROSE_OK)
        *out = list;
    else
        rose_json_decref(list);
    return st;
}
