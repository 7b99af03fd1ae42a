/* api/responses.c - the body of /v1/responses becomes the body of a chat completion. This server
 * keeps nothing between requests, so fields that point to an earlier response are refused. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"

enum { MAX_NAME = 96 };

/* Writes the name of a member of the input, as "input[3].content". */
static const char *member(char name[MAX_NAME], size_t i, const char *key)
{
    snprintf(name, MAX_NAME, "input[%zu]%s%.60s", i, key[0] != '\0' ? "." : "", key);
    return name;
}

/* Refuses a member of the input: its value is of a type that this server cannot take. */
static bool refuse_type(rose_api_translation *t, size_t i, const char *key, const json_t *type)
{
    char name[MAX_NAME];
    return rose_api_fail(t->err, 400, "unsupported_field", "input",
                         "%s: the type '%.40s' is not supported by this server",
                         member(name, i, key),
                         json_is_string(type) ? json_string_value(type) : "null");
}

static bool wrong_member(rose_api_translation *t, size_t i, const char *key, const char *wanted)
{
    char name[MAX_NAME];
    return rose_api_fail(t->err, 400, NULL, "input", "%s must be %s", member(name, i, key), wanted);
}

/* ---- input ---- */

/* Adds a string, or a list of text parts, to a message. */
static bool add_content(rose_api_translation *t, json_t *message, const json_t *content, size_t i,
                        const char *key)
{
    if (json_is_string(content)) return rose_api_translate_text(t, message, content);
    if (!json_is_array(content)) return wrong_member(t, i, key, "a string or a list of parts");
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k), *type = json_object_get(part, "type");
        const bool refusal = rose_api_json_is(type, "refusal");
        const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
        if (!refusal && !rose_api_json_is(type, "input_text") &&
            !rose_api_json_is(type, "output_text") && !rose_api_json_is(type, "text"))
            return refuse_type(t, i, key, type);
        if (!json_is_string(text)) return wrong_member(t, i, key, "parts with a string as text");
        if (!rose_api_translate_text(t, message, text)) return false;
    }
    return true;
}

/* The role of a message for the template; NULL: there is no such role. Few templates know the
 * developer, who has the place of the system. */
static const char *role_of(const json_t *role)
{
    if (rose_api_json_is(role, "user")) return "user";
    if (rose_api_json_is(role, "assistant")) return "assistant";
    return rose_api_json_is(role, "system") || rose_api_json_is(role, "developer") ? "system"
                                                                                   : NULL;
}

static json_t *last_message(const rose_api_translation *t)
{
    const size_t n = json_array_size(t->messages);
    return n == 0 ? NULL : json_array_get(t->messages, n - 1);
}

/* Returns the message that goes on with this role, or a new one. Instructions and system messages
 * at the start are one message, because many templates take one system message alone. */
static json_t *message_for(rose_api_translation *t, const char *role)
{
    json_t *last = last_message(t);
    const bool first = json_array_size(t->messages) == 1 && strcmp(role, "system") == 0;
    if (first && rose_api_json_is(json_object_get(last, "role"), role)) return last;
    return rose_api_translate_message(t, role);
}

static bool add_message(rose_api_translation *t, const json_t *item, size_t i)
{
    const char *role = role_of(json_object_get(item, "role"));
    if (role == NULL)
        return wrong_member(t, i, "role", "'user', 'assistant', 'system' or 'developer'");
    json_t *m = message_for(t, role);
    return m != NULL && add_content(t, m, json_object_get(item, "content"), i, "content");
}

/* A call belongs to the message of the assistant before it. */
static bool add_call(rose_api_translation *t, const json_t *item, size_t i)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return wrong_member(t, i, "",
                            "a function_call with the strings 'call_id', 'name' and "
                            "'arguments'");
    json_t *m = last_message(t);
    if (!rose_api_json_is(json_object_get(m, "role"), "assistant"))
        m = rose_api_translate_message(t, "assistant");
    return m != NULL && rose_api_translate_call(t, m, id, name, arguments);
}

static bool add_output(rose_api_translation *t, const json_t *item, size_t i)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id)) return wrong_member(t, i, "call_id", "a string");
    json_t *m = rose_api_translate_message(t, "tool");
    if (m == NULL) return false;
    if (json_object_set_new(m, "tool_call_id", json_incref((json_t *)(uintptr_t)id)) != 0)
        return rose_api_fail_nomem(t->err);
    return add_content(t, m, json_object_get(item, "output"), i, "output");
}

static bool add_item(rose_api_translation *t, const json_t *item, size_t i)
{
    const json_t *type = json_object_get(item, "type");
    if (!json_is_object(item)) return wrong_member(t, i, "", "an object");
    if (type == NULL || json_is_null(type) || rose_api_json_is(type, "message"))
        return add_message(t, item, i);
    if (rose_api_json_is(type, "function_call")) return add_call(t, item, i);
    if (rose_api_json_is(type, "function_call_output")) return add_output(t, item, i);
    return rose_api_json_is(type, "reasoning") || refuse_type(t, i, "", type);
}

static bool take_input(rose_api_translation *t)
{
    const json_t *input = json_object_get(t->body, "input");
    const json_t *instructions = json_object_get(t->body, "instructions");
    if (json_is_string(instructions)) {
        json_t *m = rose_api_translate_message(t, "system");
        if (m == NULL || !rose_api_translate_text(t, m, instructions)) return false;
    } else if (instructions != NULL && !json_is_null(instructions)) {
        return rose_api_translate_wrong(t, "instructions", "a string");
    }
    if (input == NULL || json_is_null(input))
        return rose_api_fail(t->err, 400, "missing_required_parameter", "input",
                             "field 'input' is required");
    if (json_is_string(input)) {
        json_t *m = rose_api_translate_message(t, "user");
        return m != NULL && rose_api_translate_text(t, m, input);
    }
    if (!json_is_array(input) || json_array_size(input) == 0)
        return rose_api_translate_wrong(t, "input", "a string or a list of at least one item");
    for (size_t i = 0; i < json_array_size(input); i++) {
        if (!add_item(t, json_array_get(input, i), i)) return false;
    }
    return true;
}

/* ---- the other fields ---- */

static bool take_tools(rose_api_translation *t, const json_t *tools)
{
    if (!json_is_array(tools)) return rose_api_translate_wrong(t, "tools", "a list of objects");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        const json_t *name = json_object_get(tool, "name");
        if (!rose_api_json_is(type, "function"))
            return rose_api_fail(t->err, 400, "unsupported_field", "tools",
                                 "tools[%zu]: the type '%.40s' is not supported by this server, "
                                 "only 'function' is",
                                 i, json_is_string(type) ? json_string_value(type) : "null");
        if (!json_is_string(name))
            return rose_api_fail(t->err, 400, NULL, "tools", "tools[%zu].name must be a string", i);
        if (!rose_api_translate_tool(t, name, json_object_get(tool, "description"),
                                     json_object_get(tool, "parameters"),
                                     json_object_get(tool, "strict")))
            return false;
    }
    return true;
}

static bool take_tool_choice(rose_api_translation *t, const json_t *choice)
{
    const json_t *name = json_object_get(choice, "name");
    if (json_is_string(choice)) return rose_api_translate_copy(t, "tool_choice", choice);
    if (rose_api_json_is(json_object_get(choice, "type"), "function") && json_is_string(name))
        return rose_api_translate_choose(t, name);
    return rose_api_translate_refuse(t, "tool_choice",
                                     "it must be 'none', 'auto', 'required' or "
                                     "{\"type\": \"function\", \"name\": ...}");
}

static bool take_format(rose_api_translation *t, const json_t *format)
{
    const json_t *type = json_object_get(format, "type");
    const json_t *schema = json_object_get(format, "schema");
    if (rose_api_json_is(type, "text")) return true;
    if (rose_api_json_is(type, "json_object"))
        return rose_api_translate_set(t, "response_format",
                                      json_pack("{s:s}", "type", "json_object"));
    if (!rose_api_json_is(type, "json_schema"))
        return rose_api_translate_wrong(t, "text.format",
                                        "of the type 'text', 'json_object' or 'json_schema'");
    if (!json_is_object(schema))
        return rose_api_translate_wrong(t, "text.format.schema", "an object");
    return rose_api_translate_schema(t, schema, json_object_get(format, "name"),
                                     json_object_get(format, "strict"),
                                     json_object_get(format, "description"));
}

/* Notes a member of an object that the API does not have. */
static bool other_member(rose_api_translation *t, const char *object, const char *key)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s.%.60s", object, key);
    return rose_api_unknown_field(t->ignored, name, t->err);
}

static bool take_text(rose_api_translation *t, const json_t *text)
{
    const char *key;
    json_t *v;
    if (!json_is_object(text)) return rose_api_translate_wrong(t, "text", "an object");
    json_object_foreach((json_t *)(uintptr_t)text, key, v)
    {
        bool ok = json_is_null(v);
        if (!ok && strcmp(key, "format") == 0)
            ok = take_format(t, v);
        else if (!ok && strcmp(key, "verbosity") == 0)
            ok = rose_api_translate_copy(t, key, v);
        else if (!ok)
            ok = other_member(t, "text", key);
        if (!ok) return false;
    }
    return true;
}

/* A summary asks for less than the whole reasoning, which the reply has. */
static bool take_reasoning(rose_api_translation *t, const json_t *reasoning)
{
    const char *key;
    json_t *v;
    if (!json_is_object(reasoning)) return rose_api_translate_wrong(t, "reasoning", "an object");
    json_object_foreach((json_t *)(uintptr_t)reasoning, key, v)
    {
        bool ok =
            json_is_null(v) || strcmp(key, "summary") == 0 || strcmp(key, "generate_summary") == 0;
        if (!ok && strcmp(key, "effort") == 0)
            ok = rose_api_translate_copy(t, "reasoning_effort", v);
        else if (!ok)
            ok = other_member(t, "reasoning", key);
        if (!ok) return false;
    }
    return true;
}

/* Most names ask for what the reply never has: outputs of tools that are refused. */
static bool take_include(rose_api_translation *t, const json_t *include)
{
    static const char *const without[] = {"file_search_call.results",
                                          "web_search_call.results",
                                          "web_search_call.action.sources",
                                          "message.input_image.image_url",
                                          "computer_call_output.output.image_url",
                                          "code_interpreter_call.outputs",
                                          "reasoning.encrypted_content"};
    const json_t *top = json_object_get(t->body, "top_logprobs");
    if (!json_is_array(include)) return rose_api_translate_wrong(t, "include", "a list of strings");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const json_t *v = json_array_get(include, i);
        bool known = rose_api_json_is(v, "message.output_text.logprobs");
        if (known && (!rose_api_translate_set(t, "logprobs", json_true()) ||
                      (top != NULL && !rose_api_translate_copy(t, "top_logprobs", top))))
            return false;
        for (size_t k = 0; k < sizeof without / sizeof *without && !known; k++)
            known = rose_api_json_is(v, without[k]);
        if (!known)
            return rose_api_fail(t->err, 400, "unsupported_field", "include",
                                 "include[%zu]: '%.60s' is not supported by this server", i,
                                 json_is_string(v) ? json_string_value(v) : "null");
    }
    return true;
}

/* Without the name in `include` it asks for nothing; take_include has the other case. */
static bool take_top_logprobs(rose_api_translation *t, const json_t *v)
{
    const json_t *include = json_object_get(t->body, "include");
    for (size_t i = 0; i < json_array_size(include); i++) {
        if (rose_api_json_is(json_array_get(include, i), "message.output_text.logprobs"))
            return true;
    }
    return (json_is_integer(v) && json_integer_value(v) == 0) ||
           rose_api_translate_hint(t, "top_logprobs");
}

static bool take_truncation(rose_api_translation *t, const json_t *v)
{
    return rose_api_json_is(v, "disabled") || rose_api_translate_hint(t, "truncation");
}

/* This server answers a request while its client waits. */
static bool take_background(rose_api_translation *t, const json_t *v)
{
    return json_is_false(v) || rose_api_translate_refuse(t, "background", NULL);
}

/* ---- the table of fields ---- */

typedef struct row {
    const char *name;
    const char *to; /* the field of a chat with the same meaning, or NULL */
    bool (*take)(rose_api_translation *t, const json_t *v);
    const char *why; /* without `to` and `take`: why the field is refused; NULL: it has no effect */
} row;

#define STATELESS "this server keeps no responses; send the whole conversation as 'input'"
static const row rows[] = {
    {"model", "model", NULL, NULL},
    {"max_output_tokens", "max_completion_tokens", NULL, NULL},
    {"temperature", "temperature", NULL, NULL},
    {"top_p", "top_p", NULL, NULL},
    {"stream", "stream", NULL, NULL},
    {"stream_options", "stream_options", NULL, NULL},
    {"parallel_tool_calls", "parallel_tool_calls", NULL, NULL},
    {"metadata", "metadata", NULL, NULL},
    {"user", "user", NULL, NULL},
    {"safety_identifier", "safety_identifier", NULL, NULL},
    {"prompt_cache_key", "prompt_cache_key", NULL, NULL},
    {"service_tier", "service_tier", NULL, NULL},
    {"store", "store", NULL, NULL},
    {"tools", NULL, take_tools, NULL},
    {"tool_choice", NULL, take_tool_choice, NULL},
    {"text", NULL, take_text, NULL},
    {"reasoning", NULL, take_reasoning, NULL},
    {"include", NULL, take_include, NULL},
    {"truncation", NULL, take_truncation, NULL},
    {"background", NULL, take_background, NULL},
    {"input", NULL, NULL, NULL}, /* take_input */
    {"instructions", NULL, NULL, NULL},
    {"top_logprobs", NULL, take_top_logprobs, NULL},
    {"max_tool_calls", NULL, NULL, NULL}, /* of the tools that a server runs itself */
    {"prompt_cache_retention", NULL, NULL, NULL},
    {"prompt_cache_options", NULL, NULL, NULL},
    {"previous_response_id", NULL, NULL, STATELESS},
    {"conversation", NULL, NULL, STATELESS},
    {"prompt", NULL, NULL, "it has no stored prompts"},
    {"moderation", NULL, NULL, "it has no moderation model"},
};

static bool take_field(rose_api_translation *t, const char *key, const json_t *v)
{
    if (json_is_null(v)) return true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(key, rows[i].name) != 0) continue;
        if (rows[i].to != NULL) return rose_api_translate_copy(t, rows[i].to, v);
        if (rows[i].take != NULL) return rows[i].take(t, v);
        return rows[i].why == NULL || rose_api_translate_refuse(t, key, rows[i].why);
    }
    return rose_api_translate_other(t, key, v);
}

bool rose_api_responses_translate(rose_api_translation *t)
{
    const char *key;
    json_t *v;
    t->chat = json_pack("{s:[]}", "messages");
    t->messages = json_object_get(t->chat, "messages");
    if (t->messages == NULL) return rose_api_fail_nomem(t->err);
    json_object_foreach((json_t *)(uintptr_t)t->body, key, v)
    {
        if (!take_field(t, key, v)) return false;
    }
    return take_input(t) && rose_api_translate_end(t);
}
