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
    return rose_api_fail_type(t->err, "input", member(name, i, key), type);
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

static bool add_message(rose_api_translation *t, const rose_json *item, size_t i)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    const rose_json *role = rose_json_get(item, "role");
    if (!rose_api_is_one_of(rose_json_text(role), roles))
        return wrong_member(t, i, "role", "'user', 'assistant', 'system' or 'developer'");
    rose_json *m = rose_api_translate_message(t, rose_json_text(role));
    const rose_json *content = rose_json_get(item, "content");
    if (rose_api_json_is(role, "assistant") && (content == NULL || rose_json_is_null(content)))
        return m != NULL; /* a reply without text */
    return m != NULL && add_content(t, m, content, i, "content");
}

/* Texts as one string; NULL: no memory. */
static rose_json *join(const char *a, const char *b, const char *c, const char *d)
{
    rose_buf text = {0};
    const bool ok = rose_buf_addf(&text, "%s%s%s%s", a, b, c, d) == ROSE_OK;
    rose_json *out = ok ? rose_json_stringn(text.data, text.len) : NULL;
    rose_buf_free(&text);
    return out;
}

/* The name of a function for the chat: that of its namespace, two underscores, and its own. */
static rose_json *chat_name(const rose_json *space, const rose_json *name)
{
    const char *s = rose_json_text(space);
    if (s == NULL || s[0] == '\0') return rose_json_incref(name);
    const bool joined = s[strlen(s) - 1] == '_';
    return join(s, joined ? "" : "__", rose_json_text(name), "");
}

/* A call belongs to the message of the assistant before it. name and arguments are taken. */
static bool put_call(rose_api_translation *t, const rose_json *id, rose_json *name,
                     rose_json *arguments)
{
    rose_json *m = rose_api_translate_last(t);
    bool ok = (name != NULL && arguments != NULL) || rose_api_fail_nomem(t->err);
    if (ok && !rose_api_json_is(rose_json_get(m, "role"), "assistant"))
        ok = (m = rose_api_translate_message(t, "assistant")) != NULL;
    ok = ok && rose_api_translate_call(t, m, id, name, arguments);
    rose_json_decref(name);
    rose_json_decref(arguments);
    return ok;
}

/* A call of a function has arguments, that of a custom tool an input. */
static bool add_call(rose_api_translation *t, const rose_json *item, size_t i, bool custom)
{
    const rose_json *id = rose_json_get(item, "call_id"), *name = rose_json_get(item, "name");
    const rose_json *text = rose_json_get(item, custom ? "input" : "arguments");
    if (!rose_json_is_string(id) || !rose_json_is_string(name) || !rose_json_is_string(text))
        return wrong_member(t, i, "",
                            custom ? "a custom_tool_call with the strings 'call_id', 'name' and "
                                     "'input'"
                                   : "a function_call with the strings 'call_id', 'name' and "
                                     "'arguments'");
    rose_json *input = custom ? rose_json_pack("{s:O}", "input", text) : NULL;
    rose_json *arguments = custom ? rose_api_translate_dump(input) : rose_json_incref(text);
    rose_json_decref(input);
    return put_call(t, id, chat_name(rose_json_get(item, "namespace"), name), arguments);
}

/* Whether a value is a string or a list of text parts. */
static bool is_text(const rose_json *v)
{
    bool text = rose_json_is_string(v) || rose_json_is_array(v);
    for (size_t k = 0; k < rose_json_count(v) && text; k++)
        text = rose_json_is_string(rose_json_get(rose_json_at(v, k), "text"));
    return text;
}

/* The output of a tool that only its client knows becomes text, whatever it is. */
static bool add_output(rose_api_translation *t, const rose_json *item, size_t i, bool function)
{
    const rose_json *id = rose_json_get(item, "call_id"), *output = rose_json_get(item, "output");
    if (!rose_json_is_string(id) && !function) id = rose_json_get(item, "id");
    if (!rose_json_is_string(id)) return wrong_member(t, i, "call_id", "a string");
    rose_json *m = rose_api_translate_result(t, id);
    if (m == NULL) return false;
    if (function || is_text(output)) return add_content(t, m, output, i, "output");
    return rose_api_translate_text_new(t, m, rose_api_translate_dump(output));
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static bool take_tools(rose_api_translation *t, const rose_json *tools);

/* Items of tools that this server does not have. Calls that the client ran (of a shell, of a patch)
 * and their outputs belong to the conversation; what a server ran is left out. */
static bool add_other(rose_api_translation *t, const rose_json *item, size_t i)
{
    const char *type = rose_json_text(rose_json_get(item, "type"));
    const rose_json *id = rose_json_get(item, "call_id");
    const rose_json *action = rose_json_get(item, "action");
    const bool screen = type != NULL && strncmp(type, "computer", 8) == 0;
    char name[MAX_NAME];
    if (type != NULL && strcmp(type, "item_reference") == 0)
        return refuse_type(t, i, "", rose_json_get(item, "type"));
    if (type != NULL && strcmp(type, "additional_tools") == 0)
        return take_tools(t, rose_json_get(item, "tools"));
    if (action == NULL) action = rose_json_get(item, "operation");
    if (type != NULL && !screen && ends_with(type, "_call") && rose_json_is_string(id) &&
        rose_json_is_object(action))
        return put_call(t, id, rose_json_stringn(type, strlen(type) - 5),
                        rose_api_translate_dump(action));
    if (type != NULL && !screen && ends_with(type, "_call_output"))
        return add_output(t, item, i, false);
    return rose_api_leave_out(t->ignored, member(name, i, ""), rose_json_get(item, "type"), t->err);
}

static bool add_item(rose_api_translation *t, const rose_json *item, size_t i)
{
    const rose_json *type = rose_json_get(item, "type");
    if (!rose_json_is_object(item)) return wrong_member(t, i, "", "an object");
    if (type == NULL || rose_json_is_null(type) || rose_api_json_is(type, "message"))
        return add_message(t, item, i);
    const bool custom = rose_api_json_is(type, "custom_tool_call");
    if (custom || rose_api_json_is(type, "function_call")) return add_call(t, item, i, custom);
    if (rose_api_json_is(type, "function_call_output") ||
        rose_api_json_is(type, "custom_tool_call_output"))
        return add_output(t, item, i, true);
    return rose_api_json_is(type, "reasoning") || add_other(t, item, i);
}

static bool take_input(rose_api_translation *t)
{
    const rose_json *input = rose_json_get(t->body, "input");
    const rose_json *instructions = rose_json_get(t->body, "instructions");
    if (rose_json_is_string(instructions)) {
        rose_json *m = rose_api_translate_message(t, "system");
        if (m == NULL || !rose_api_translate_text(t, m, instructions)) return false;
    } else if (instructions != NULL && !rose_json_is_null(instructions)) {
        return rose_api_fail_wrong(t->err, "instructions", "a string");
    }
    if (input == NULL || rose_json_is_null(input))
        return rose_api_fail(t->err, 400, "missing_required_parameter", "input",
                             "field 'input' is required");
    if (rose_json_is_string(input)) {
        rose_json *m = rose_api_translate_message(t, "user");
        return m != NULL && rose_api_translate_text(t, m, input);
    }
    if (!rose_json_is_array(input) || rose_json_count(input) == 0)
        return rose_api_fail_wrong(t->err, "input", "a string or a list of at least one item");
    for (size_t i = 0; i < rose_json_count(input); i++) {
        if (!add_item(t, rose_json_at(input, i), i)) return false;
    }
    return true;
}

/* ---- the other fields ---- */

/* Remembers how the client calls a tool. name is that of the chat. */
static bool note_name(rose_api_translation *t, const rose_json *name, const rose_json *space,
                      const rose_json *own, bool custom)
{
    rose_json *v = rose_json_pack("{s:O,s:b}", "name", own, "custom", custom);
    if (t->tool_names == NULL) t->tool_names = rose_json_object();
    bool ok = v != NULL &&
              (space == NULL || rose_json_set_new(v, "namespace", rose_json_incref(space)) == 0);
    ok = ok && t->tool_names != NULL && rose_json_set(t->tool_names, rose_json_text(name), v) == 0;
    rose_json_decref(v);
    return ok || rose_api_fail_nomem(t->err);
}

/* The description of a custom tool, with the grammar of its input. NULL: no memory. */
static rose_json *describe_custom(const rose_json *tool)
{
    const rose_json *format = rose_json_get(tool, "format");
    const char *text = rose_json_text(rose_json_get(tool, "description"));
    const char *syntax = rose_json_text(rose_json_get(format, "syntax"));
    const char *definition = rose_json_text(rose_json_get(format, "definition"));
    if (text == NULL) text = "";
    if (definition == NULL) return rose_json_string(text);
    const bool lark = syntax != NULL && strcmp(syntax, "lark") == 0;
    return join(text, text[0] != '\0' ? "\n\n" : "",
                lark ? "The string `input` must follow this Lark grammar:\n"
                     : "The string `input` must match this regular expression:\n",
                definition);
}

/* A custom tool takes any text: a function with one string. */
static bool add_custom(rose_api_translation *t, const rose_json *tool, const rose_json *name)
{
    rose_json *description = describe_custom(tool);
    rose_json *schema =
        rose_json_pack("{s:s,s:{s:{s:s}},s:[s],s:b}", "type", "object", "properties", "input",
                       "type", "string", "required", "input", "additionalProperties", 0);
    const bool ok = description != NULL && schema != NULL
                        ? rose_api_translate_tool(t, name, description, schema, NULL)
                        : rose_api_fail_nomem(t->err);
    rose_json_decref(description);
    rose_json_decref(schema);
    return ok;
}

/* space: the namespace of the tool, or NULL. */
static bool add_tool(rose_api_translation *t, const rose_json *tool, const char *where,
                     const rose_json *space)
{
    const rose_json *type = rose_json_get(tool, "type"), *own = rose_json_get(tool, "name");
    const bool custom = rose_api_json_is(type, "custom");
    if (!custom && !rose_api_json_is(type, "function"))
        return rose_api_leave_out(t->ignored, where, type, t->err);
    if (!rose_json_is_string(own))
        return rose_api_fail(t->err, 400, NULL, "tools", "%s.name must be a string", where);
    rose_json *name = chat_name(space, own);
    if (name == NULL) return rose_api_fail_nomem(t->err);
    bool ok = custom ? add_custom(t, tool, name)
                     : rose_api_translate_tool(t, name, rose_json_get(tool, "description"),
                                               rose_json_get(tool, "parameters"),
                                               rose_json_get(tool, "strict"));
    if (custom || space != NULL) ok = ok && note_name(t, name, space, own, custom);
    rose_json_decref(name);
    return ok;
}

static bool take_tools(rose_api_translation *t, const rose_json *tools)
{
    char where[MAX_NAME];
    if (!rose_json_is_array(tools))
        return rose_api_fail_wrong(t->err, "tools", "a list of objects");
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        const rose_json *tool = rose_json_at(tools, i), *inner = rose_json_get(tool, "tools");
        const rose_json *space = rose_json_get(tool, "name");
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!rose_api_json_is(rose_json_get(tool, "type"), "namespace")) {
            if (!add_tool(t, tool, where, NULL)) return false;
            continue;
        }
        if (!rose_json_is_string(space) || !rose_json_is_array(inner))
            return rose_api_fail(t->err, 400, NULL, "tools",
                                 "%s must have the string 'name' and the list 'tools'", where);
        for (size_t k = 0; k < rose_json_count(inner); k++) {
            snprintf(where, sizeof where, "tools[%zu].tools[%zu]", i, k);
            if (!add_tool(t, rose_json_at(inner, k), where, space)) return false;
        }
    }
    return true;
}

static bool take_tool_choice(rose_api_translation *t, const rose_json *choice)
{
    const rose_json *name = rose_json_get(choice, "name"), *type = rose_json_get(choice, "type");
    if (rose_json_is_string(choice) || rose_api_json_is(type, "allowed_tools"))
        return rose_api_translate_copy(t, "tool_choice", choice);
    if ((rose_api_json_is(type, "function") || rose_api_json_is(type, "custom")) &&
        rose_json_is_string(name)) {
        rose_json *whole = chat_name(rose_json_get(choice, "namespace"), name);
        const bool ok =
            whole != NULL ? rose_api_translate_choose(t, whole) : rose_api_fail_nomem(t->err);
        rose_json_decref(whole);
        return ok;
    }
    return rose_api_fail_unsupported(t->err, "tool_choice",
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
        return rose_api_fail_wrong(t->err, "text.format",
                                   "of the type 'text', 'json_object' or 'json_schema'");
    if (!rose_json_is_object(schema))
        return rose_api_fail_wrong(t->err, "text.format.schema", "an object");
    return rose_api_translate_schema(t, schema, rose_json_get(format, "name"),
                                     rose_json_get(format, "strict"),
                                     rose_json_get(format, "description"));
}

static bool take_text(rose_api_translation *t, const rose_json *text)
{
    static const rose_api_translated members[] = {{"format", .take = take_format},
                                                  {"verbosity", .to = "verbosity"}};
    return rose_api_translate_members(t, "text", text, members, 2);
}

/* A summary asks for less than the whole reasoning, which the reply has. */
static bool take_reasoning(rose_api_translation *t, const rose_json *reasoning)
{
    static const rose_api_translated members[] = {
        {.name = "summary"}, {.name = "generate_summary"}, {"effort", .to = "reasoning_effort"}};
    return rose_api_translate_members(t, "reasoning", reasoning, members, 3);
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
                                          "reasoning.encrypted_content",
                                          NULL};
    const rose_json *top = rose_json_get(t->body, "top_logprobs");
    if (!rose_json_is_array(include))
        return rose_api_fail_wrong(t->err, "include", "a list of strings");
    for (size_t i = 0; i < rose_json_count(include); i++) {
        const rose_json *v = rose_json_at(include, i);
        const bool known = rose_api_json_is(v, "message.output_text.logprobs");
        if (known && (!rose_api_translate_set(t, "logprobs", rose_json_true()) ||
                      (top != NULL && !rose_api_translate_copy(t, "top_logprobs", top))))
            return false;
        if (!known && !rose_api_is_one_of(rose_json_text(v), without))
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
           rose_api_hint(t->ignored, "top_logprobs", t->err);
}

static bool take_truncation(rose_api_translation *t, const rose_json *v)
{
    return rose_api_json_is(v, "disabled") || rose_api_hint(t->ignored, "truncation", t->err);
}

/* This server answers a request while its client waits. */
static bool take_background(rose_api_translation *t, const rose_json *v)
{
    return rose_json_is_false(v) || rose_api_fail_unsupported(t->err, "background", NULL);
}

/* ---- the table of fields ---- */

#define STATELESS "this server keeps no responses; send the whole conversation as 'input'"
static const rose_api_translated rows[] = {
    {"model", .to = "model"},
    {"max_output_tokens", .to = "max_completion_tokens"},
    {"temperature", .to = "temperature"},
    {"top_p", .to = "top_p"},
    {"stream", .to = "stream"},
    {"stream_options", .to = "stream_options"},
    {"parallel_tool_calls", .to = "parallel_tool_calls"},
    {"metadata", .to = "metadata"},
    {"user", .to = "user"},
    {"safety_identifier", .to = "safety_identifier"},
    {"prompt_cache_key", .to = "prompt_cache_key"},
    {"service_tier", .to = "service_tier"},
    {"store", .to = "store"},
    {"tools", .take = take_tools},
    {"tool_choice", .take = take_tool_choice},
    {"text", .take = take_text},
    {"reasoning", .take = take_reasoning},
    {"include", .take = take_include},
    {"truncation", .take = take_truncation},
    {"background", .take = take_background},
    {.name = "input"}, /* take_input */
    {.name = "instructions"},
    {"top_logprobs", .take = take_top_logprobs},
    {.name = "max_tool_calls"}, /* of the tools that a server runs itself */
    {.name = "prompt_cache_retention"},
    {.name = "prompt_cache_options"},
    {"previous_response_id", .why = STATELESS},
    {"conversation", .why = STATELESS},
    {"prompt", .why = "it has no stored prompts"},
    {"moderation", .why = "it has no moderation model"},
};

bool rose_api_responses_translate(rose_api_translation *t)
{
    return rose_api_translate_fields(t, rows, sizeof rows / sizeof *rows) && take_input(t) &&
           rose_api_translate_end(t);
}
