/* api/anthropic.c - the body of /v1/messages becomes the body of a chat completion. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/api_internal.h"
#include "base/json.h"

enum { MAX_NAME = 96 };

static bool wrong_block(rose_api_translation *t, const char *name, const char *wanted)
{
    return rose_api_fail(t->err, 400, NULL, "messages", "%s must be %s", name, wanted);
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
static bool add_system_text(rose_api_translation *t, rose_json *message, const rose_json *text)
{
    const size_t len = rose_json_text_len(text);
    const size_t skipped = header_bytes(rose_json_text(text), len);
    if (skipped == 0) return rose_api_translate_text(t, message, text);
    if (skipped == len) return true;
    return rose_api_translate_text_new(
        t, message, rose_json_stringn(rose_json_text(text) + skipped, len - skipped));
}

/* content: a string or a list of text blocks. */
static bool add_system(rose_api_translation *t, const rose_json *content, const char *name)
{
    rose_json *m = rose_api_translate_message(t, "system");
    if (m == NULL) return false;
    if (rose_json_is_string(content)) return add_system_text(t, m, content);
    if (!rose_json_is_array(content))
        return wrong_block(t, name, "a string or a list of text blocks");
    for (size_t k = 0; k < rose_json_count(content); k++) {
        const rose_json *block = rose_json_at(content, k), *text = rose_json_get(block, "text");
        if (!rose_api_json_is(rose_json_get(block, "type"), "text") || !rose_json_is_string(text))
            return wrong_block(t, name, "a string or a list of text blocks");
        if (!add_system_text(t, m, text)) return false;
    }
    if (rose_json_count(rose_json_get(m, "content")) > 0) return true;
    return rose_json_remove(t->messages, rose_json_count(t->messages) - 1) == 0;
}

/* ---- messages ---- */

/* Turns of one role that follow each other are one turn. */
static rose_json *message_for(rose_api_translation *t, const char *role)
{
    rose_json *last = rose_api_translate_last(t);
    if (rose_api_json_is(rose_json_get(last, "role"), role)) return last;
    return rose_api_translate_message(t, role);
}

static bool add_text(rose_api_translation *t, const char *role, const rose_json *text)
{
    rose_json *m = message_for(t, role);
    return m != NULL && rose_api_translate_text(t, m, text);
}

/* The text of the arguments of a tool_use, a new reference; NULL: no memory. Arguments that were no
 * object come back as they were sent: as one string in an object. */
static rose_json *input_text(const rose_json *input)
{
    const rose_json *raw = rose_json_get(input, "_raw_arguments");
    if (rose_json_is_string(raw) && rose_json_size(input) == 1) return rose_json_incref(raw);
    return rose_api_translate_dump(input);
}

static bool add_tool_use(rose_api_translation *t, const rose_json *block, const char *name)
{
    const rose_json *id = rose_json_get(block, "id"), *tool = rose_json_get(block, "name");
    const rose_json *input = rose_json_get(block, "input");
    const bool none = input == NULL || rose_json_is_null(input);
    if (!rose_json_is_string(id) || !rose_json_is_string(tool) ||
        (!none && !rose_json_is_object(input) && !rose_json_is_string(input)))
        return wrong_block(t, name,
                           "a tool_use with the strings 'id' and 'name' and the object "
                           "'input'");
    rose_json *m = message_for(t, "assistant");
    if (m == NULL) return false;
    /* A string is what a stream's pieces joined to: its JSON, whole or cut. */
    rose_json *arguments = none                         ? rose_json_string("{}")
                           : rose_json_is_string(input) ? rose_json_copy(input)
                                                        : input_text(input);
    if (arguments == NULL) return rose_api_fail_nomem(t->err);
    const bool ok = rose_api_translate_call(t, m, id, tool, arguments);
    rose_json_decref(arguments);
    return ok;
}

/* A tool that a search has found. All tools are there from the start, so the text says so. */
static bool add_reference(rose_api_translation *t, rose_json *message, const rose_json *part,
                          const char *name, size_t k)
{
    char member[MAX_NAME + 32];
    const rose_json *tool = rose_json_get(part, "tool_name");
    snprintf(member, sizeof member, "%s.content[%zu]", name, k);
    if (!rose_json_is_string(tool))
        return wrong_block(t, member, "a tool_reference with a 'tool_name'");
    if (!rose_api_leave_out(t->ignored, member, rose_json_get(part, "type"), t->err)) return false;
    rose_buf b = {0};
    rose_json *text = NULL;
    if (rose_buf_addf(&b, "The tool %s is available.", rose_json_text(tool)) == ROSE_OK)
        text = rose_json_stringn(b.data, b.len);
    rose_buf_free(&b);
    return rose_api_translate_text_new(t, message, text);
}

static bool add_tool_result(rose_api_translation *t, const rose_json *block, const char *name)
{
    const rose_json *id = rose_json_get(block, "tool_use_id");
    const rose_json *content = rose_json_get(block, "content");
    if (!rose_json_is_string(id))
        return wrong_block(t, name, "a tool_result with the string 'tool_use_id'");
    rose_json *m = rose_api_translate_result(t, id);
    if (m == NULL) return false;
    if (content == NULL || rose_json_is_null(content)) return true;
    if (rose_json_is_string(content)) return rose_api_translate_text(t, m, content);
    if (!rose_json_is_array(content))
        return wrong_block(t, name, "a tool_result whose content is a string or a list of blocks");
    for (size_t k = 0; k < rose_json_count(content); k++) {
        const rose_json *part = rose_json_at(content, k), *text = rose_json_get(part, "text");
        const rose_json *type = rose_json_get(part, "type");
        if (rose_api_json_is(type, "tool_reference")) {
            if (!add_reference(t, m, part, name, k)) return false;
            continue;
        }
        if (!rose_api_json_is(type, "text"))
            return rose_api_fail_type(t->err, "messages", name, type);
        if (!rose_json_is_string(text)) return wrong_block(t, name, "made of blocks with a 'text'");
        if (!rose_api_translate_text(t, m, text)) return false;
    }
    return true;
}

/* Whether a block is about a tool that Anthropic's servers run. */
static bool is_of_server(const rose_json *type)
{
    static const char *const ends[] = {"_tool_result", "_tool_use", "_tool_listing",
                                       "container_upload"};
    const char *s = rose_json_text(type);
    for (size_t i = 0; s != NULL && i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(s), m = strlen(ends[i]);
        if (n >= m && strcmp(s + n - m, ends[i]) == 0) return true;
    }
    return false;
}

static bool add_block(rose_api_translation *t, const char *role, const rose_json *block,
                      const char *name)
{
    const rose_json *type = rose_json_get(block, "type"), *text = rose_json_get(block, "text");
    const bool reply = strcmp(role, "assistant") == 0;
    if (rose_api_json_is(type, "text"))
        return rose_json_is_string(text)
                   ? add_text(t, role, text)
                   : wrong_block(t, name, "a text block with a string 'text'");
    if (reply && rose_api_json_is(type, "tool_use")) return add_tool_use(t, block, name);
    if (!reply && rose_api_json_is(type, "tool_result")) return add_tool_result(t, block, name);
    if (reply &&
        (rose_api_json_is(type, "thinking") || rose_api_json_is(type, "redacted_thinking")))
        return true;
    if (is_of_server(type)) return rose_api_leave_out(t->ignored, name, type, t->err);
    return rose_api_fail_type(t->err, "messages", name, type);
}

static bool add_turn(rose_api_translation *t, const rose_json *turn, size_t i)
{
    const rose_json *role = rose_json_get(turn, "role"), *content = rose_json_get(turn, "content");
    char name[MAX_NAME];
    snprintf(name, sizeof name, "messages[%zu].content", i);
    if (rose_api_json_is(role, "system")) return add_system(t, content, name);
    if (!rose_api_json_is(role, "user") && !rose_api_json_is(role, "assistant")) {
        snprintf(name, sizeof name, "messages[%zu].role", i);
        return wrong_block(t, name, "'user', 'assistant' or 'system'");
    }
    if (rose_json_is_string(content)) return add_text(t, rose_json_text(role), content);
    if (rose_api_json_is(role, "assistant") && (content == NULL || rose_json_is_null(content)))
        return message_for(t, "assistant") != NULL; /* a reply without text */
    if (!rose_json_is_array(content)) return wrong_block(t, name, "a string or a list of blocks");
    for (size_t k = 0; k < rose_json_count(content); k++) {
        snprintf(name, sizeof name, "messages[%zu].content[%zu]", i, k);
        if (!add_block(t, rose_json_text(role), rose_json_at(content, k), name)) return false;
    }
    return true;
}

/* A last turn of the assistant is the beginning of the reply. */
static bool continue_reply(rose_api_translation *t)
{
    const rose_json *last = rose_api_translate_last(t);
    if (!rose_api_json_is(rose_json_get(last, "role"), "assistant") ||
        rose_json_get(last, "tool_calls") != NULL)
        return true;
    return rose_api_translate_set(t, "add_generation_prompt", rose_json_false()) &&
           rose_api_translate_set(t, "continue_final_message", rose_json_true());
}

static bool take_messages(rose_api_translation *t)
{
    const rose_json *system = rose_json_get(t->body, "system");
    const rose_json *messages = rose_json_get(t->body, "messages");
    if (system != NULL && !rose_json_is_null(system) && !add_system(t, system, "system"))
        return false;
    if (messages == NULL || rose_json_is_null(messages))
        return rose_api_fail(t->err, 400, "missing_required_parameter", "messages",
                             "field 'messages' is required");
    if (!rose_json_is_array(messages) || rose_json_count(messages) == 0)
        return rose_api_fail_wrong(t->err, "messages", "a list of at least one message");
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        if (!add_turn(t, rose_json_at(messages, i), i)) return false;
    }
    return continue_reply(t);
}

/* ---- the other fields ---- */

/* The members of the tools that edit files. */
#define FILE_MEMBERS                                                                               \
    "\"path\":{\"type\":\"string\"},\"view_range\":{\"type\":\"array\",\"items\":{\"type\":"       \
    "\"integer\"},\"description\":\"view: the first and the last line\"},\"file_text\":{\"type\":" \
    "\"string\",\"description\":\"create\"},\"old_str\":{\"type\":\"string\",\"description\":"     \
    "\"str_replace: a text that occurs once\"},\"new_str\":{\"type\":\"string\",\"description\":"  \
    "\"str_replace: what takes its place\"},\"insert_line\":{\"type\":\"integer\","                \
    "\"description\":\"insert: after this line\"},\"insert_text\":{\"type\":\"string\","           \
    "\"description\":\"insert\"}"

/* Tools that Anthropic defines and clients run. Anthropic's models know their schemas; other models
 * must be told. A type is one of these names and a date. */
static const struct typed {
    const char *type, *description, *schema;
} typed_tools[] = {
    {"bash_", "Runs a command in a bash session, which keeps its state between calls.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\"},\"restart\":{\"type\":"
     "\"boolean\",\"description\":\"true begins a new session\"}}}"},
    {"text_editor_", "Views, creates and edits files.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\","
     "\"str_replace\",\"insert\"]}," FILE_MEMBERS "},\"required\":[\"command\",\"path\"]}"},
    {"memory_", "Keeps notes between conversations, in files under /memories.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\","
     "\"str_replace\",\"insert\",\"delete\",\"rename\"]}," FILE_MEMBERS
     ",\"old_path\":{\"type\":\"string\",\"description\":\"rename\"},\"new_path\":{\"type\":"
     "\"string\",\"description\":\"rename\"}},\"required\":[\"command\"]}"}};

/* The typed tool of this type, or NULL. */
static const struct typed *find_typed(const rose_json *type)
{
    const char *s = rose_json_text(type);
    for (size_t i = 0; s != NULL && i < sizeof typed_tools / sizeof *typed_tools; i++) {
        const size_t n = strlen(typed_tools[i].type);
        if (strncmp(s, typed_tools[i].type, n) == 0 && s[n] >= '0' && s[n] <= '9')
            return &typed_tools[i];
    }
    return NULL;
}

static bool add_typed(rose_api_translation *t, const rose_json *tool, const struct typed *typed)
{
    rose_json_error e;
    rose_json *schema = NULL, *description = rose_json_string(typed->description);
    (void)rose_json_parse(&schema, typed->schema, strlen(typed->schema), 0, &e);
    const bool ok = schema != NULL && description != NULL
                        ? rose_api_translate_tool(t, rose_json_get(tool, "name"), description,
                                                  schema, rose_json_get(tool, "strict"))
                        : rose_api_fail_nomem(t->err);
    rose_json_decref(schema);
    rose_json_decref(description);
    return ok;
}

static bool take_tools(rose_api_translation *t, const rose_json *tools)
{
    if (!rose_json_is_array(tools))
        return rose_api_fail_wrong(t->err, "tools", "a list of objects");
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        const rose_json *tool = rose_json_at(tools, i), *type = rose_json_get(tool, "type");
        const rose_json *name = rose_json_get(tool, "name");
        const rose_json *schema = rose_json_get(tool, "input_schema");
        const struct typed *typed = find_typed(type);
        char where[MAX_NAME];
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (typed != NULL && rose_json_is_string(name)) {
            if (!add_typed(t, tool, typed)) return false;
            continue;
        }
        if (type != NULL && !rose_json_is_null(type) && !rose_api_json_is(type, "custom")) {
            if (!rose_api_leave_out(t->ignored, where, type, t->err)) return false;
            continue;
        }
        if (!rose_json_is_string(name) || !rose_json_is_object(schema))
            return rose_api_fail(t->err, 400, NULL, "tools",
                                 "tools[%zu] must have the string 'name' and the object "
                                 "'input_schema'",
                                 i);
        if (!rose_api_translate_tool(t, name, rose_json_get(tool, "description"), schema,
                                     rose_json_get(tool, "strict")))
            return false;
    }
    return true;
}

static bool take_tool_choice(rose_api_translation *t, const rose_json *choice)
{
    const rose_json *type = rose_json_get(choice, "type"), *name = rose_json_get(choice, "name");
    const rose_json *single = rose_json_get(choice, "disable_parallel_tool_use");
    if (rose_json_is_true(single) &&
        !rose_api_translate_set(t, "parallel_tool_calls", rose_json_false()))
        return false;
    if (rose_api_json_is(type, "tool") && rose_json_is_string(name))
        return rose_api_translate_choose(t, name);
    if (rose_api_json_is(type, "any"))
        return rose_api_translate_set(t, "tool_choice", rose_json_string("required"));
    if (rose_api_json_is(type, "auto") || rose_api_json_is(type, "none"))
        return rose_api_translate_copy(t, "tool_choice", type);
    return rose_api_fail_wrong(t->err, "tool_choice",
                               "of the type 'auto', 'any', 'none', or 'tool' with a 'name'");
}

/* Templates that can think take the variable enable_thinking. */
static bool take_thinking(rose_api_translation *t)
{
    const rose_json *thinking = rose_json_get(t->body, "thinking");
    const rose_json *type = rose_json_get(thinking, "type");
    const rose_json *kwargs = rose_json_get(t->chat, "chat_template_kwargs");
    const rose_json *budget = rose_json_get(thinking, "budget_tokens");
    const bool off = rose_api_json_is(type, "disabled");
    if (thinking == NULL || rose_json_is_null(thinking)) return true;
    if (!off && !rose_api_json_is(type, "enabled") && !rose_api_json_is(type, "adaptive"))
        return rose_api_fail_wrong(t->err, "thinking",
                                   "of the type 'enabled', 'adaptive' or 'disabled'");
    if (!t->templated) return off || rose_api_hint(t->ignored, "thinking", t->err);
    if (budget != NULL && !rose_json_is_null(budget) && !off &&
        !rose_api_hint(t->ignored, "thinking.budget_tokens", t->err))
        return false;
    if (kwargs != NULL && !rose_json_is_object(kwargs)) return true; /* the chat refuses it */
    rose_json *all = kwargs != NULL ? rose_json_copy(kwargs) : rose_json_object();
    if (rose_json_get(all, "enable_thinking") == NULL &&
        rose_json_set_new(all, "enable_thinking", rose_json_boolean(!off)) != 0) {
        rose_json_decref(all);
        return rose_api_fail_nomem(t->err);
    }
    return rose_api_translate_set(t, "chat_template_kwargs", all);
}

static bool take_format(rose_api_translation *t, const rose_json *format)
{
    const rose_json *schema = rose_json_get(format, "schema");
    if (!rose_api_json_is(rose_json_get(format, "type"), "json_schema") ||
        !rose_json_is_object(schema))
        return rose_api_fail_wrong(t->err, "output_config.format",
                                   "of the type 'json_schema', with an object 'schema'");
    return rose_api_translate_schema(t, schema, NULL, rose_json_true(), NULL);
}

static bool take_output_config(rose_api_translation *t, const rose_json *config)
{
    static const rose_api_translated members[] = {{"format", .take = take_format},
                                                  {"effort", .to = "reasoning_effort"}};
    return rose_api_translate_members(t, "output_config", config, members, 2);
}

/* ---- the table of fields ---- */

static const rose_api_translated rows[] = {
    {"model", .to = "model"},
    {"max_tokens", .to = "max_tokens"},
    {"stop_sequences", .to = "stop"},
    {"temperature", .to = "temperature"},
    {"top_p", .to = "top_p"},
    {"top_k", .to = "top_k"},
    {"stream", .to = "stream"},
    {"metadata", .to = "metadata"},
    {"service_tier", .to = "service_tier"},
    {"tools", .take = take_tools},
    {"tool_choice", .take = take_tool_choice},
    {"output_config", .take = take_output_config},
    {"output_format", .take = take_format},
    {.name = "system"},
    {.name = "messages"},
    {.name = "thinking"},
    {.name = "cache_control"}, /* all prompts are cached */
    {"context_management", .hint = true},
    {"diagnostics", .hint = true},
    {"inference_geo", .hint = true},
    {"speed", .hint = true},
    {"container", .list = true, .why = ""},
    {"mcp_servers", .list = true, .hint = true}, /* their tools: this server calls none */
};

bool rose_api_anthropic_translate(rose_api_translation *t)
{
    if (!rose_api_translate_fields(t, rows, sizeof rows / sizeof *rows)) return false;
    if (t->generates && rose_json_get(t->chat, "max_tokens") == NULL)
        return rose_api_fail(t->err, 400, "missing_required_parameter", "max_tokens",
                             "field 'max_tokens' is required");
    return take_thinking(t) && take_messages(t) && rose_api_translate_end(t);
}
