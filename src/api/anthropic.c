/* api/anthropic.c - the body of /v1/messages becomes the body of a chat completion. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/api_internal.h"

enum { MAX_NAME = 96 };

static bool wrong_block(rose_api_translation *t, const char *name, const char *wanted)
{
    return rose_api_fail(t->err, 400, NULL, "messages", "%s must be %s", name, wanted);
}

static bool refuse_block(rose_api_translation *t, const char *name, const json_t *type)
{
    return rose_api_fail(t->err, 400, "unsupported_field", "messages",
                         "%s: the type '%.40s' is not supported by this server", name,
                         json_is_string(type) ? json_string_value(type) : "null");
}

/* ---- system ---- */

/* Returns the length of the header lines at the start of a system text. Some clients send such
 * lines with a value that differs in each request. In the prompt they would keep the prefix cache
 * from matching anything that follows. */
static size_t header_bytes(const char *s, size_t len)
{
    static const char prefix[] = "x-anthropic-";
    size_t n = 0;
    while (len - n >= sizeof prefix - 1 && strncasecmp(s + n, prefix, sizeof prefix - 1) == 0) {
        const char *end = memchr(s + n, '\n', len - n);
        const size_t line = end == NULL ? len - n : (size_t)(end - (s + n)) + 1;
        if (memchr(s + n, ':', line) == NULL) break;
        n += line;
    }
    return n;
}

/* Adds a text of the system without its header lines; a text without anything else is left out. */
static bool add_system_text(rose_api_translation *t, json_t *message, const json_t *text)
{
    const size_t len = json_string_length(text);
    const size_t skipped = header_bytes(json_string_value(text), len);
    if (skipped == 0) return rose_api_translate_text(t, message, text);
    if (skipped == len) return true;
    json_t *rest = json_stringn(json_string_value(text) + skipped, len - skipped);
    if (rest == NULL) return rose_api_fail_nomem(t->err);
    const bool ok = rose_api_translate_text(t, message, rest);
    json_decref(rest);
    return ok;
}

/* content: a string or a list of text blocks. */
static bool add_system(rose_api_translation *t, const json_t *content, const char *name)
{
    json_t *m = rose_api_translate_message(t, "system");
    if (m == NULL) return false;
    if (json_is_string(content)) return add_system_text(t, m, content);
    if (!json_is_array(content)) return wrong_block(t, name, "a string or a list of text blocks");
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *block = json_array_get(content, k), *text = json_object_get(block, "text");
        if (!rose_api_json_is(json_object_get(block, "type"), "text") || !json_is_string(text))
            return wrong_block(t, name, "a string or a list of text blocks");
        if (!add_system_text(t, m, text)) return false;
    }
    if (json_array_size(json_object_get(m, "content")) > 0) return true;
    return json_array_remove(t->messages, json_array_size(t->messages) - 1) == 0;
}

/* ---- messages ---- */

static json_t *last_message(const rose_api_translation *t)
{
    const size_t n = json_array_size(t->messages);
    return n == 0 ? NULL : json_array_get(t->messages, n - 1);
}

/* Turns of one role that follow each other are one turn. */
static json_t *message_for(rose_api_translation *t, const char *role)
{
    json_t *last = last_message(t);
    if (rose_api_json_is(json_object_get(last, "role"), role)) return last;
    return rose_api_translate_message(t, role);
}

static bool add_text(rose_api_translation *t, const char *role, const json_t *text)
{
    json_t *m = message_for(t, role);
    return m != NULL && rose_api_translate_text(t, m, text);
}

static bool add_tool_use(rose_api_translation *t, const json_t *block, const char *name)
{
    const json_t *id = json_object_get(block, "id"), *tool = json_object_get(block, "name");
    const json_t *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(tool) || !json_is_object(input))
        return wrong_block(t, name,
                           "a tool_use with the strings 'id' and 'name' and the object "
                           "'input'");
    json_t *m = message_for(t, "assistant");
    if (m == NULL) return false;
    rose_api_out text = {0};
    rose_api_put_json(&text, input);
    json_t *arguments = text.oom ? NULL : json_stringn(text.b.data, text.b.len);
    rose_api_out_free(&text);
    if (arguments == NULL) return rose_api_fail_nomem(t->err);
    const bool ok = rose_api_translate_call(t, m, id, tool, arguments);
    json_decref(arguments);
    return ok;
}

static bool add_tool_result(rose_api_translation *t, const json_t *block, const char *name)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    const json_t *content = json_object_get(block, "content");
    if (!json_is_string(id))
        return wrong_block(t, name, "a tool_result with the string 'tool_use_id'");
    json_t *m = rose_api_translate_message(t, "tool");
    if (m == NULL) return false;
    if (json_object_set_new(m, "tool_call_id", json_incref((json_t *)(uintptr_t)id)) != 0)
        return rose_api_fail_nomem(t->err);
    if (content == NULL || json_is_null(content)) return true;
    if (json_is_string(content)) return rose_api_translate_text(t, m, content);
    if (!json_is_array(content))
        return wrong_block(t, name, "a tool_result whose content is a string or a list of blocks");
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k), *text = json_object_get(part, "text");
        const json_t *type = json_object_get(part, "type");
        if (!rose_api_json_is(type, "text")) return refuse_block(t, name, type);
        if (!json_is_string(text)) return wrong_block(t, name, "made of blocks with a 'text'");
        if (!rose_api_translate_text(t, m, text)) return false;
    }
    return true;
}

static bool add_block(rose_api_translation *t, const char *role, const json_t *block,
                      const char *name)
{
    const json_t *type = json_object_get(block, "type"), *text = json_object_get(block, "text");
    const bool reply = strcmp(role, "assistant") == 0;
    if (rose_api_json_is(type, "text"))
        return json_is_string(text) ? add_text(t, role, text)
                                    : wrong_block(t, name, "a text block with a string 'text'");
    if (reply && rose_api_json_is(type, "tool_use")) return add_tool_use(t, block, name);
    if (!reply && rose_api_json_is(type, "tool_result")) return add_tool_result(t, block, name);
    if (reply &&
        (rose_api_json_is(type, "thinking") || rose_api_json_is(type, "redacted_thinking")))
        return true;
    return refuse_block(t, name, type);
}

static bool add_turn(rose_api_translation *t, const json_t *turn, size_t i)
{
    const json_t *role = json_object_get(turn, "role"), *content = json_object_get(turn, "content");
    char name[MAX_NAME];
    snprintf(name, sizeof name, "messages[%zu].content", i);
    if (rose_api_json_is(role, "system")) return add_system(t, content, name);
    if (!rose_api_json_is(role, "user") && !rose_api_json_is(role, "assistant")) {
        snprintf(name, sizeof name, "messages[%zu].role", i);
        return wrong_block(t, name, "'user', 'assistant' or 'system'");
    }
    if (json_is_string(content)) return add_text(t, json_string_value(role), content);
    if (!json_is_array(content)) return wrong_block(t, name, "a string or a list of blocks");
    for (size_t k = 0; k < json_array_size(content); k++) {
        snprintf(name, sizeof name, "messages[%zu].content[%zu]", i, k);
        if (!add_block(t, json_string_value(role), json_array_get(content, k), name)) return false;
    }
    return true;
}

/* A last turn of the assistant is the beginning of the reply. */
static bool continue_reply(rose_api_translation *t)
{
    const json_t *last = last_message(t);
    if (!rose_api_json_is(json_object_get(last, "role"), "assistant") ||
        json_object_get(last, "tool_calls") != NULL)
        return true;
    return rose_api_translate_set(t, "add_generation_prompt", json_false()) &&
           rose_api_translate_set(t, "continue_final_message", json_true());
}

static bool take_messages(rose_api_translation *t)
{
    const json_t *system = json_object_get(t->body, "system");
    const json_t *messages = json_object_get(t->body, "messages");
    if (system != NULL && !json_is_null(system) && !add_system(t, system, "system")) return false;
    if (messages == NULL || json_is_null(messages))
        return rose_api_fail(t->err, 400, "missing_required_parameter", "messages",
                             "field 'messages' is required");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return rose_api_translate_wrong(t, "messages", "a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!add_turn(t, json_array_get(messages, i), i)) return false;
    }
    return continue_reply(t);
}

/* ---- the other fields ---- */

static bool take_tools(rose_api_translation *t, const json_t *tools)
{
    if (!json_is_array(tools)) return rose_api_translate_wrong(t, "tools", "a list of objects");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        const json_t *name = json_object_get(tool, "name");
        const json_t *schema = json_object_get(tool, "input_schema");
        if (type != NULL && !json_is_null(type) && !rose_api_json_is(type, "custom"))
            return rose_api_fail(t->err, 400, "unsupported_field", "tools",
                                 "tools[%zu]: the type '%.40s' is not supported by this server, "
                                 "only 'custom' is",
                                 i, json_is_string(type) ? json_string_value(type) : "null");
        if (!json_is_string(name) || !json_is_object(schema))
            return rose_api_fail(t->err, 400, NULL, "tools",
                                 "tools[%zu] must have the string 'name' and the object "
                                 "'input_schema'",
                                 i);
        if (!rose_api_translate_tool(t, name, json_object_get(tool, "description"), schema,
                                     json_object_get(tool, "strict")))
            return false;
    }
    return true;
}

static bool take_tool_choice(rose_api_translation *t, const json_t *choice)
{
    const json_t *type = json_object_get(choice, "type"), *name = json_object_get(choice, "name");
    const json_t *single = json_object_get(choice, "disable_parallel_tool_use");
    if (json_is_true(single) && !rose_api_translate_set(t, "parallel_tool_calls", json_false()))
        return false;
    if (rose_api_json_is(type, "tool") && json_is_string(name))
        return rose_api_translate_choose(t, name);
    if (rose_api_json_is(type, "any"))
        return rose_api_translate_set(t, "tool_choice", json_string("required"));
    if (rose_api_json_is(type, "auto") || rose_api_json_is(type, "none"))
        return rose_api_translate_copy(t, "tool_choice", type);
    return rose_api_translate_wrong(t, "tool_choice",
                                    "of the type 'auto', 'any', 'none', or 'tool' with a 'name'");
}

/* Templates that can think take the variable enable_thinking. */
static bool take_thinking(rose_api_translation *t)
{
    const json_t *thinking = json_object_get(t->body, "thinking");
    const json_t *type = json_object_get(thinking, "type");
    const json_t *kwargs = json_object_get(t->chat, "chat_template_kwargs");
    const json_t *budget = json_object_get(thinking, "budget_tokens");
    const bool off = rose_api_json_is(type, "disabled");
    if (thinking == NULL || json_is_null(thinking)) return true;
    if (!off && !rose_api_json_is(type, "enabled") && !rose_api_json_is(type, "adaptive"))
        return rose_api_translate_wrong(t, "thinking",
                                        "of the type 'enabled', 'adaptive' or 'disabled'");
    if (!t->templated) return off || rose_api_translate_hint(t, "thinking");
    if (budget != NULL && !json_is_null(budget) && !off &&
        !rose_api_translate_hint(t, "thinking.budget_tokens"))
        return false;
    if (kwargs != NULL && !json_is_object(kwargs)) return true; /* the chat refuses it */
    json_t *all = kwargs != NULL ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    if (json_object_get(all, "enable_thinking") == NULL &&
        json_object_set_new(all, "enable_thinking", json_boolean(!off)) != 0) {
        json_decref(all);
        return rose_api_fail_nomem(t->err);
    }
    return rose_api_translate_set(t, "chat_template_kwargs", all);
}

static bool take_format(rose_api_translation *t, const json_t *format)
{
    const json_t *schema = json_object_get(format, "schema");
    if (!rose_api_json_is(json_object_get(format, "type"), "json_schema") ||
        !json_is_object(schema))
        return rose_api_translate_wrong(t, "output_config.format",
                                        "of the type 'json_schema', with an object 'schema'");
    return rose_api_translate_schema(t, schema, NULL, json_true(), NULL);
}

static bool take_output_config(rose_api_translation *t, const json_t *config)
{
    const char *key;
    json_t *v;
    char name[MAX_NAME];
    if (!json_is_object(config)) return rose_api_translate_wrong(t, "output_config", "an object");
    json_object_foreach((json_t *)(uintptr_t)config, key, v)
    {
        bool ok = json_is_null(v);
        snprintf(name, sizeof name, "output_config.%.60s", key);
        if (!ok && strcmp(key, "format") == 0)
            ok = take_format(t, v);
        else if (!ok && strcmp(key, "effort") == 0)
            ok = rose_api_translate_copy(t, "reasoning_effort", v);
        else if (!ok)
            ok = rose_api_unknown_field(t->ignored, name, t->err);
        if (!ok) return false;
    }
    return true;
}

/* ---- the table of fields ---- */

typedef enum effect {
    COPIED, /* `to` is the field of a chat with the same meaning */
    TAKEN,  /* by `take`, or where it is NULL by rose_api_anthropic_translate */
    NONE,   /* accepted: it asks for nothing that this server lacks */
    HINT,
    REFUSED
} effect;

typedef struct row {
    const char *name;
    effect effect;
    const char *to;
    bool (*take)(rose_api_translation *t, const json_t *v);
} row;

static const row rows[] = {
    {"model", COPIED, "model", NULL},
    {"max_tokens", COPIED, "max_tokens", NULL},
    {"stop_sequences", COPIED, "stop", NULL},
    {"temperature", COPIED, "temperature", NULL},
    {"top_p", COPIED, "top_p", NULL},
    {"top_k", COPIED, "top_k", NULL},
    {"stream", COPIED, "stream", NULL},
    {"metadata", COPIED, "metadata", NULL},
    {"service_tier", COPIED, "service_tier", NULL},
    {"tools", TAKEN, NULL, take_tools},
    {"tool_choice", TAKEN, NULL, take_tool_choice},
    {"output_config", TAKEN, NULL, take_output_config},
    {"output_format", TAKEN, NULL, take_format},
    {"system", TAKEN, NULL, NULL},
    {"messages", TAKEN, NULL, NULL},
    {"thinking", TAKEN, NULL, NULL},
    {"cache_control", NONE, NULL, NULL}, /* all prompts are cached */
    {"context_management", HINT, NULL, NULL},
    {"diagnostics", HINT, NULL, NULL},
    {"inference_geo", HINT, NULL, NULL},
    {"speed", HINT, NULL, NULL},
    {"container", REFUSED, NULL, NULL},
    {"mcp_servers", REFUSED, NULL, NULL},
};

static bool take_field(rose_api_translation *t, const char *key, const json_t *v)
{
    const row *r = NULL;
    if (json_is_null(v)) return true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && r == NULL; i++) {
        if (strcmp(key, rows[i].name) == 0) r = &rows[i];
    }
    if (r == NULL) return rose_api_translate_other(t, key, v);
    switch (r->effect) {
    case COPIED:
        return rose_api_translate_copy(t, r->to, v);
    case TAKEN:
        return r->take == NULL || r->take(t, v);
    case HINT:
        return rose_api_translate_hint(t, key);
    case REFUSED:
        return (json_is_array(v) && json_array_size(v) == 0) ||
               rose_api_translate_refuse(t, key, NULL);
    case NONE:
        return true;
    }
    return true;
}

bool rose_api_anthropic_translate(rose_api_translation *t)
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
    if (t->generates && json_object_get(t->chat, "max_tokens") == NULL)
        return rose_api_fail(t->err, 400, "missing_required_parameter", "max_tokens",
                             "field 'max_tokens' is required");
    return take_thinking(t) && take_messages(t) && rose_api_translate_end(t);
}
