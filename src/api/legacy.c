/* api/legacy.c - forms of a chat's fields that clients send beside those that this server checks:
 * OpenAI's former `functions` and `function_call`, the forms of the Responses API in a chat, and
 * choices that are objects. They are rewritten before the fields are checked. Tokenizer workers, on
 * a body that they own. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"

static bool is_given(const rose_json *v)
{
    return v != NULL && !rose_json_is_null(v);
}

/* Sets a new value, which it takes; NULL: no memory. */
static bool put(rose_json *object, const char *key, rose_json *v, rose_api_error *err)
{
    return rose_json_set_new(object, key, v) == 0 || rose_api_fail_nomem(err);
}

/* ---- tools ---- */

/* The member `function` of a tool, or its name in a choice, is flat in the Responses API. */
static const rose_json *name_of(const rose_json *tool)
{
    const rose_json *f = rose_json_get(tool, "function");
    return rose_json_get(rose_json_is_object(f) ? f : tool, "name");
}

/* {"type": "function", "name": ...} becomes {"type": "function", "function": {"name": ...}}. */
static bool nest_tools(rose_json *tools, rose_api_error *err)
{
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        rose_json *tool = rose_json_at(tools, i);
        if (!rose_api_json_is(rose_json_get(tool, "type"), "function") ||
            rose_json_get(tool, "function") != NULL || rose_json_get(tool, "name") == NULL)
            continue;
        rose_json *f = rose_json_copy(tool);
        if (f != NULL) rose_json_del(f, "type");
        rose_json *nested =
            f != NULL ? rose_json_pack("{s:s, s:O}", "type", "function", "function", f) : NULL;
        rose_json_decref(f);
        if (nested == NULL || rose_json_replace_new(tools, i, nested) != 0)
            return rose_api_fail_nomem(err);
    }
    return true;
}

/* Programs that write the schema of a tool write null for `properties` or `required` that an object
 * does not have. Chat templates and grammars expect no null there. */
static void drop_nulls(rose_json *schema)
{
    static const char *const dropped[] = {"properties", "required", NULL};
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions",
                                       NULL};
    static const char *const values[] = {"const", "default", "enum", "examples", NULL};
    const char *key, *inner;
    rose_json *v, *x;
    size_t i;
    for (i = 0; dropped[i] != NULL; i++) {
        v = rose_json_get(schema, dropped[i]);
        if (v != NULL && rose_json_is_null(v)) rose_json_del(schema, dropped[i]);
    }
    rose_json_each (schema, key, v) {
        if (rose_api_is_one_of(key, values)) continue;
        if (rose_api_is_one_of(key, maps)) {
            rose_json_each (v, inner, x)
                drop_nulls(x);
        } else {
            if (rose_json_is_object(v)) drop_nulls(v);
            rose_json_each_item (v, i, x)
                drop_nulls(x);
        }
    }
}

static bool take_functions(rose_json *chat, rose_api_error *err)
{
    const rose_json *functions = rose_json_get(chat, "functions");
    if (!rose_json_is_array(functions))
        return rose_api_fail_wrong(err, "functions", "a list of objects");
    if (is_given(rose_json_get(chat, "tools")))
        return rose_api_fail(err, 400, NULL, "functions",
                             "fields 'functions' and 'tools' exclude each other");
    rose_json *tools = rose_json_array();
    bool ok = tools != NULL;
    for (size_t i = 0; ok && i < rose_json_count(functions); i++)
        ok =
            rose_json_append_new(tools, rose_json_pack("{s:s, s:O}", "type", "function", "function",
                                                       rose_json_at(functions, i))) == 0;
    ok = ok && rose_json_set(chat, "tools", tools) == 0 && rose_json_del(chat, "functions") == 0;
    rose_json_decref(tools);
    return ok || rose_api_fail_nomem(err);
}

/* ---- the choice ---- */

static bool choose(rose_json *chat, const rose_json *name, rose_api_error *err)
{
    return put(chat, "tool_choice",
               rose_json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name), err);
}

static bool take_function_call(rose_json *chat, rose_api_error *err)
{
    const rose_json *call = rose_json_get(chat, "function_call");
    const rose_json *name = rose_json_get(call, "name");
    bool ok;
    if (!is_given(call)) return true;
    if (rose_api_json_is(call, "none") || rose_api_json_is(call, "auto"))
        ok = put(chat, "tool_choice", rose_json_string(rose_json_text(call)), err);
    else if (rose_json_is_string(name))
        ok = choose(chat, name, err);
    else
        return rose_api_fail_wrong(err, "function_call", "\"none\", \"auto\" or {\"name\": ...}");
    return ok && (rose_json_del(chat, "function_call") == 0 || rose_api_fail_nomem(err));
}

/* The tools by name; of two with one name the first. Without this index, lists of many tools would
 * take the square of their length. NULL: no memory. */
static rose_json *by_name(const rose_json *tools)
{
    rose_json *index = rose_json_object();
    for (size_t i = 0; index != NULL && i < rose_json_count(tools); i++) {
        rose_json *tool = rose_json_at(tools, i);
        const rose_json *name = name_of(tool);
        if (!rose_json_is_string(name) || rose_json_get(index, rose_json_text(name)) != NULL)
            continue;
        if (rose_json_set(index, rose_json_text(name), tool) != 0) {
            rose_json_decref(index);
            return NULL;
        }
    }
    return index;
}

static rose_json *find_tool(const rose_json *index, const rose_json *name)
{
    rose_json *tool = rose_json_is_string(name) ? rose_json_get(index, rose_json_text(name)) : NULL;
    return tool != NULL && rose_json_equal(name_of(tool), name) ? tool : NULL;
}

/* The tools of the request that are allowed; NULL: err says why. */
static rose_json *keep_allowed(const rose_json *tools, const rose_json *allowed,
                               rose_api_error *err)
{
    rose_json *kept = rose_json_array(), *index = by_name(tools);
    bool ok = (kept != NULL && index != NULL) || rose_api_fail_nomem(err);
    for (size_t i = 0; ok && i < rose_json_count(allowed); i++) {
        const rose_json *name = name_of(rose_json_at(allowed, i));
        rose_json *tool = find_tool(index, name);
        if (!rose_api_json_is(rose_json_get(rose_json_at(allowed, i), "type"), "function"))
            continue; /* a tool that a server would run */
        if (tool == NULL)
            ok = rose_api_fail(err, 400, NULL, "tool_choice",
                               "field 'tool_choice' allows the function '%.128s', which is not in "
                               "'tools'",
                               rose_json_is_string(name) ? rose_json_text(name) : "");
        else if (rose_json_append(kept, tool) != 0)
            ok = rose_api_fail_nomem(err);
    }
    rose_json_decref(index);
    if (ok) return kept;
    rose_json_decref(kept);
    return NULL;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}; flat in the Responses
 * API. The model is offered the allowed tools alone. */
static bool take_allowed(rose_json *chat, const rose_json *choice, rose_api_error *err)
{
    const rose_json *inner = rose_json_get(choice, "allowed_tools");
    const rose_json *a = rose_json_is_object(inner) ? inner : choice;
    const rose_json *mode = rose_json_get(a, "mode"), *allowed = rose_json_get(a, "tools");
    const bool required = rose_api_json_is(mode, "required");
    if (!rose_json_is_array(allowed) || (!required && !rose_api_json_is(mode, "auto")))
        return rose_api_fail_wrong(
            err, "tool_choice",
            "{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\" or "
            "\"required\", \"tools\": [...]}}");
    rose_json *kept = keep_allowed(rose_json_get(chat, "tools"), allowed, err);
    if (kept == NULL) return false;
    const bool none = rose_json_count(kept) == 0;
    if (none && required) {
        rose_json_decref(kept);
        return rose_api_tools_none_left(err);
    }
    return put(chat, "tools", kept, err) &&
           put(chat, "tool_choice", rose_json_string(none ? "none" : rose_json_text(mode)), err);
}

static bool take_choice(rose_json *chat, rose_api_error *err)
{
    const rose_json *choice = rose_json_get(chat, "tool_choice");
    const rose_json *type = rose_json_get(choice, "type"), *name = rose_json_get(choice, "name");
    if (rose_api_json_is(type, "allowed_tools")) return take_allowed(chat, choice, err);
    if (rose_api_json_is(type, "none") || rose_api_json_is(type, "auto") ||
        rose_api_json_is(type, "required"))
        return put(chat, "tool_choice", rose_json_string(rose_json_text(type)), err);
    if (rose_api_json_is(type, "function") && rose_json_is_string(name) &&
        rose_json_get(choice, "function") == NULL)
        return choose(chat, name, err);
    return true;
}

/* ---- messages ---- */

/* An id that no client has given: a former message has none. */
static rose_json *call_id(size_t i)
{
    char id[48];
    snprintf(id, sizeof id, "call_function%zu", i);
    return rose_json_string(id);
}

/* The call of an assistant's message becomes a list of one call. */
static bool take_call(rose_json *message, size_t i, rose_api_error *err)
{
    rose_json *call = rose_json_get(message, "function_call");
    if (!rose_json_is_object(call) || is_given(rose_json_get(message, "tool_calls"))) return true;
    rose_json *calls =
        rose_json_pack("[{s:o, s:s, s:O}]", "id", call_id(i), "type", "function", "function", call);
    return put(message, "tool_calls", calls, err) &&
           (rose_json_del(message, "function_call") == 0 || rose_api_fail_nomem(err));
}

/* The result of such a call has the role `function`, and the function's name in place of an id. */
static bool take_result(rose_json *message, size_t caller, rose_api_error *err)
{
    return put(message, "role", rose_json_string("tool"), err) &&
           put(message, "tool_call_id", call_id(caller), err);
}

/* A refusal is what the assistant said, if the message has no other content. */
static bool take_refusal(rose_json *message, rose_api_error *err)
{
    rose_json *refusal = rose_json_get(message, "refusal"), *text;
    text = rose_json_get(message, "content");
    const bool empty =
        !is_given(text) || (!rose_json_is_object(text) && rose_api_json_is_empty(text));
    if (!rose_json_is_string(refusal)) return true;
    if (rose_json_text_len(refusal) > 0) {
        if (!empty) return true; /* the check of messages refuses it */
        if (!put(message, "content", rose_json_incref(refusal), err)) return false;
    }
    return rose_json_del(message, "refusal") == 0 || rose_api_fail_nomem(err);
}

static bool take_messages(rose_json *messages, rose_api_error *err)
{
    size_t caller = 0;
    bool called = false, ok = true;
    for (size_t i = 0; ok && i < rose_json_count(messages); i++) {
        rose_json *m = rose_json_at(messages, i);
        const rose_json *role = rose_json_get(m, "role");
        if (rose_api_json_is(role, "assistant")) {
            called = rose_json_is_object(rose_json_get(m, "function_call"));
            caller = i;
            ok = take_call(m, i, err) && take_refusal(m, err);
        } else if (called && rose_api_json_is(role, "function")) {
            ok = take_result(m, caller, err);
        }
    }
    return ok;
}

bool rose_api_legacy(rose_json *chat, bool *functions, rose_api_error *err)
{
    const rose_json *list = rose_json_get(chat, "functions");
    rose_json *tool;
    size_t i;
    *functions = is_given(list) && !(rose_json_is_array(list) && rose_json_count(list) == 0);
    if (*functions && !(take_functions(chat, err) && take_function_call(chat, err))) return false;
    if (!nest_tools(rose_json_get(chat, "tools"), err)) return false;
    rose_json_each_item (rose_json_get(chat, "tools"), i, tool)
        drop_nulls(rose_json_get(rose_json_get(tool, "function"), "parameters"));
    return take_choice(chat, err) && take_messages(rose_json_get(chat, "messages"), err);
}
