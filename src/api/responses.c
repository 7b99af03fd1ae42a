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
static bool refuse_type(rose_api_translation *t, size_t i, const char *key, const rose_json *type)
{
    char name[MAX_NAME];
    return rose_api_fail(t->err, 400, "unsupported_field", "input",
                         "%s: the type '%.40s' is not supported by this server",
                         member(name, i, key),
                         rose_json_is_string(type) ? rose_json_text(type) : "null");
}

static bool wrong_member(rose_api_translation *t, size_t i, const char *key, const char *wanted)
{
    char name[MAX_NAME];
    return rose_api_fail(t->err, 400, NULL, "input", "%s must be %s", member(name, i, key), wanted);
}

/* ---- input ---- */

/* Adds a string, or a list of text parts, to a message. */
static bool add_content(rose_api_translation *t, rose_json *message, const rose_json *content,
                        size_t i, const char *key)
{
    if (rose_json_is_string(content)) return rose_api_translate_text(t, message, content);
    if (!rose_json_is_array(content)) return wrong_member(t, i, key, "a string or a list of parts");
    for (size_t k = 0; k < rose_json_count(content); k++) {
        const rose_json *part = rose_json_at(content, k), *type = rose_json_get(part, "type");
        const bool refusal = rose_api_json_is(type, "refusal");
        const rose_json *text = rose_json_get(part, refusal ? "refusal" : "text");
        if (!refusal && !rose_api_json_is(type, "input_text") &&
            !rose_api_json_is(type, "output_text") && !rose_api_json_is(type, "text"))
            return refuse_type(t, i, key, type);
        if (!rose_json_is_string(text))
            return wrong_member(t, i, key, "parts with a string as text");
        if (!rose_api_translate_text(t, message, text)) return false;
    }
    return true;
}

/* The role of a message for the template; NULL: there is no such role. Few templates know the
 * developer, who has the place of the system. */
static const char *role_of(const rose_json *role)
{
    if (rose_api_json_is(role, "user")) return "user";
    if (rose_api_json_is(role, "assistant")) return "assistant";
    return rose_api_json_is(role, "system") || rose_api_json_is(role, "developer") ? "system"
                                                                                   : NULL;
}

static rose_json *last_message(const rose_api_translation *t)
{
    const size_t n = rose_json_count(t->messages);
    return n == 0 ? NULL : rose_json_at(t->messages, n - 1);
}

/* Returns the message that goes on with this role, or a new one. Instructions and system messages
 * at the start are one message, because many templates take one system message alone. */
static rose_json *message_for(rose_api_translation *t, const char *role)
{
    rose_json *last = last_message(t);
    const bool first = rose_json_count(t->messages) == 1 && strcmp(role, "system") == 0;
    if (first && rose_api_json_is(rose_json_get(last, "role"), role)) return last;
    return rose_api_translate_message(t, role);
}

static bool add_message(rose_api_translation *t, const rose_json *item, size_t i)
{
    const char *role = role_of(rose_json_get(item, "role"));
    if (role == NULL)
        return wrong_member(t, i, "role", "'user', 'assistant', 'system' or 'developer'");
    rose_json *m = message_for(t, role);
    return m != NULL && add_content(t, m, rose_json_get(item, "content"), i, "content");
}

/* A call belongs to the message of the assistant before it. */
static bool add_call(rose_api_translation *t, const rose_json *item, size_t i)
{
    const rose_json *id = rose_json_get(item, "call_id"), *name = rose_json_get(item, "name");
    const rose_json *arguments = rose_json_get(item, "arguments");
    if (!rose_json_is_string(id) || !rose_json_is_string(name) || !rose_json_is_string(arguments))
        return wrong_member(t, i, "",
                            "a function_call with the strings 'call_id', 'name' and "
                            "'arguments'");
    rose_json *m = last_message(t);
    if (!rose_api_json_is(rose_json_get(m, "role"), "assistant"))
        m = rose_api_translate_message(t, "assistant");
    return m != NULL && rose_api_translate_call(t, m, id, name, arguments);
}

static bool add_output(rose_api_translation *t, const rose_json *item, size_t i)
{
    const rose_json *id = rose_json_get(item, "call_id");
    if (!rose_json_is_string(id)) return wrong_member(t, i, "call_id", "a string");
    rose_json *m = rose_api_translate_message(t, "tool");
    if (m == NULL) return false;
    if (rose_json_set_new(m, "tool_call_id", rose_json_incref(id)) != 0)
        return rose_api_fail_nomem(t->err);
    return add_content(t, m, rose_json_get(item, "output"), i, "output");
}

static bool add_item(rose_api_translation *t, const rose_json *item, size_t i)
{
    const rose_json *type = rose_json_get(item, "type");
    if (!rose_json_is_object(item)) return wrong_member(t, i, "", "an object");
    if (type == NULL || rose_json_is_null(type) || rose_api_json_is(type, "message"))
        return add_message(t, item, i);
    if (rose_api_json_is(type, "function_call")) return add_call(t, item, i);
    if (rose_api_json_is(type, "function_call_output")) return add_output(t, item, i);
    return rose_api_json_is(type, "reasoning") || refuse_type(t, i, "", type);
}

static bool take_input(rose_api_translation *t)
{
    const rose_json *input = rose_json_get(t->body, "input");
    const rose_json *instructions = rose_json_get(t->body, "instructions");
    if (rose_json_is_string(instructions)) {
        rose_json *m = rose_api_translate_message(t, "system");
        if (m == NULL || !rose_api_translate_text(t, m, instructions)) return false;
    } else if (instructions != NULL && !rose_json_is_null(instructions)) {
        return rose_api_translate_wrong(t, "instructions", "a string");
    }
    if (input == NULL || rose_json_is_null(input))
        return rose_api_fail(t->err, 400, "missing_required_parameter", "input",
                             "field 'input' is required");
    if (rose_json_is_string(input)) {
        rose_json *m = rose_api_translate_message(t, "user");
        return m != NULL && rose_api_translate_text(t, m, input);
    }
    if (!rose_json_is_array(input) || rose_json_count(input) == 0)
        return rose_api_translate_wrong(t, "input", "a string or a list of at least one item");
    for (size_t i = 0; i < rose_json_count(input); i++) {
        if (!add_item(t, rose_json_at(input, i), i)) return false;
    }
    return true;
}

/* ---- the other fields ---- */

static bool take_tools(rose_api_translation *t, const rose_json *tools)
{
    if (!rose_json_is_array(tools))
        return rose_api_translate_wrong(t, "tools", "a list of objects");
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        const rose_json *tool = rose_json_at(tools, i), *type = rose_json_get(tool, "type");
        const rose_json *name = rose_json_get(tool, "name");
        if (!rose_api_json_is(type, "function"))
            return rose_api_fail(t->err, 400, "unsupported_field", "tools",
                                 "tools[%zu]: the type '%.40s' is not supported by this server, "
                                 "only 'function' is",
                                 i, rose_json_is_string(type) ? rose_json_text(type) : "null");
        if (!rose_json_is_string(name))
            return rose_api_fail(t->err, 400, NULL, "tools", "tools[%zu].name must be a string", i);
        if (!rose_api_translate_tool(t, name, rose_json_get(tool, "description"),
                                     rose_json_get(tool, "parameters"),
                                     rose_json_get(tool, "strict")))
            return false;
    }
    return true;
}

static bool take_tool_choice(rose_api_translation *t, const rose_json *choice)
{
    const rose_json *name = rose_json_get(choice, "name");
    if (rose_json_is_string(choice)) return rose_api_translate_copy(t, "tool_choice", choice);
    if (rose_api_json_is(rose_json_get(choice, "type"), "function") && rose_json_is_string(name))
        return rose_api_translate_choose(t, name);
    return rose_api_translate_refuse(t, "tool_choice",
                                     "it must be 'none', 'auto', 'required' or "
                                     "{\"type\": \"function\", \"name\": ...}");
}

static bool take_format(rose_api_translation *t, const rose_json *format)
{
    const rose_json *type = rose_json_get(format, "type");
    const rose_json *schema = rose_json_get(format, "schema");
    if (rose_api_json_is(type, "text")) return true;
    if (rose_api_json_is(type, "json_object"))
        return rose_api_translate_set(t, "response_format",
                                      rose_json_pack("{s:s}", "type", "json_object"));
    if (!rose_api_json_is(type, "json_schema"))
        return rose_api_translate_wrong(t, "text.format",
                                        "of the type 'text', 'json_object' or 'json_schema'");
    if (!rose_json_is_object(schema))
        return rose_api_translate_wrong(t, "text.format.schema", "an object");
    return rose_api_translate_schema(t, schema, rose_json_get(format, "name"),
                                     rose_json_get(format, "strict"),
                                     rose_json_get(format, "description"));
}

/* Notes a member of an object that the API does not have. */
static bool other_member(rose_api_translation *t, const char *object, const char *key)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s.%.60s", object, key);
    return rose_api_unknown_field(t->ignored, name, t->err);
}

static bool take_text(rose_api_translation *t, const rose_json *text)
{
    const char *key;
    rose_json *v;
    if (!rose_json_is_object(text)) return rose_api_translate_wrong(t, "text", "an object");
    rose_json_each (text, key, v) {
        bool ok = rose_json_is_null(v);
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
static bool take_reasoning(rose_api_translation *t, const rose_json *reasoning)
{
    const char *key;
    rose_json *v;
    if (!rose_json_is_object(reasoning))
        return rose_api_translate_wrong(t, "reasoning", "an object");
    rose_json_each (reasoning, key, v) {
        bool ok = rose_json_is_null(v) || strcmp(key, "summary") == 0 ||
                  strcmp(key, "generate_summary") == 0;
        if (!ok && strcmp(key, "effort") == 0)
            ok = rose_api_translate_copy(t, "reasoning_effort", v);
        else if (!ok)
            ok = other_member(t, "reasoning", key);
        if (!ok) return false;
    }
    return true;
}

/* Most names ask for what the reply never has: outputs of tools that are refused. */
static bool take_include(rose_api_translation *t, const rose_json *include)
{
    static const char *const without[] = {"file_search_call.results",
                                          "web_search_call.results",
                                          "web_search_call.action.sources",
                                          "message.input_image.image_url",
                                          "computer_call_output.output.image_url",
                                          "code_interpreter_call.outputs",
                                          "reasoning.encrypted_content"};
    const rose_json *top = rose_json_get(t->body, "top_logprobs");
    if (!rose_json_is_array(include))
        return rose_api_translate_wrong(t, "include", "a list of strings");
    for (size_t i = 0; i < rose_json_count(include); i++) {
        const rose_json *v = rose_json_at(include, i);
        bool known = rose_api_json_is(v, "message.output_text.logprobs");
        if (known && (!rose_api_translate_set(t, "logprobs", rose_json_true()) ||
                      (top != NULL && !rose_api_translate_copy(t, "top_logprobs", top))))
            return false;
        for (size_t k = 0; k < sizeof without / sizeof *without && !known; k++)
            known = rose_api_json_is(v, without[k]);
        if (!known)
            return rose_api_fail(t->err, 400, "unsupported_field", "include",
                                 "include[%zu]: '%.60s' is not supported by this server", i,
                                 rose_json_is_string(v) ? rose_json_text(v) : "null");
    }
    return true;
}

/* Without the name in `include` it asks for nothing; take_include has the other case. */
static bool take_top_logprobs(rose_api_translation *t, const rose_json *v)
{
    const rose_json *include = rose_json_get(t->body, "include");
    for (size_t i = 0; i < rose_json_count(include); i++) {
        if (rose_api_json_is(rose_json_at(include, i), "message.output_text.logprobs")) return true;
    }
    return (rose_json_is_integer(v) && rose_json_int(v) == 0) ||
           rose_api_translate_hint(t, "top_logprobs");
}

static bool take_truncation(rose_api_translation *t, const rose_json *v)
{
    return rose_api_json_is(v, "disabled") || rose_api_translate_hint(t, "truncation");
}

/* This server answers a request while its client waits. */
static bool take_background(rose_api_translation *t, const rose_json *v)
{
    return rose_json_is_false(v) || rose_api_translate_refuse(t, "background", NULL);
}

/* ---- the table of fields ---- */

typedef struct row {
    const char *name;
    const char *to; /* the field of a chat with the same meaning, or NULL */
    bool (*take)(rose_api_translation *t, const rose_json *v);
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

static bool take_field(rose_api_translation *t, const char *key, const rose_json *v)
{
    if (rose_json_is_null(v)) return true;
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
    rose_json *v;
    t->chat = rose_json_pack("{s:[]}", "messages");
    t->messages = rose_json_get(t->chat, "messages");
    if (t->messages == NULL) return rose_api_fail_nomem(t->err);
    rose_json_each (t->body, key, v) {
        if (!take_field(t, key, v)) return false;
    }
    return take_input(t) && rose_api_translate_end(t);
}
