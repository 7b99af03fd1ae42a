/* api/chat.c - the plain chat template, for models that have none of their own:
 *
 * System: <content>\n      role system or developer
 * User: <content>\n        role user
 * Assistant: <content>\n   role assistant
 * Assistant:               at the end, with add_generation_prompt; the model continues from here
 *
 * One leading space of the reply is dropped (models write " Hello" after the colon). A reply that
 * is sent back as history then renders as the same text. "\nUser:" is an implied stop string. The
 * template cannot keep a message from imitating another role: it is for plain language models.
 *
 * The template has no place for a message's name or its reasoning, so these are ignored. Tool
 * calls and their results are refused: they have become texts before (chat/describe.c), or
 * --tool-call-parser turns calls off. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"

static bool check_part(const rose_json *part, size_t i, size_t k, rose_api_ignored *g,
                       rose_api_error *err)
{
    const char *key;
    rose_json *v;
    char name[128];
    rose_json_each (part, key, v) {
        if (strcmp(key, "type") == 0 || strcmp(key, "text") == 0 || rose_json_is_null(v)) continue;
        snprintf(name, sizeof name, "messages[%zu].content[%zu].%s", i, k, key);
        if (!rose_api_unknown_field(g, name, err)) return false;
    }
    return true;
}

static bool put_part(rose_api_out *out, const rose_json *part, size_t i, rose_api_error *err)
{
    const rose_json *type = rose_json_get(part, "type"), *text = rose_json_get(part, "text");
    if (!rose_json_is_object(part) || !rose_json_is_string(type))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content: each part must be an object with a 'type'", i);
    if (strcmp(rose_json_text(type), "text") != 0)
        return rose_api_fail(
            err, 400, "unsupported_field", "messages",
            "messages[%zu].content: part type '%.40s' is not supported by this server", i,
            rose_json_text(type));
    if (!rose_json_is_string(text))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content: a text part needs a string 'text'", i);
    rose_api_put(out, rose_json_text(text), rose_json_text_len(text));
    return true;
}

/* may_lack: null or missing content counts as the empty text. */
static bool put_content(rose_api_out *out, const rose_json *content, bool may_lack, size_t i,
                        rose_api_ignored *g, rose_api_error *err)
{
    if (may_lack && (content == NULL || rose_json_is_null(content))) return true;
    if (rose_json_is_string(content)) {
        rose_api_put(out, rose_json_text(content), rose_json_text_len(content));
        return true;
    }
    if (!rose_json_is_array(content))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content must be a string or a list of text parts", i);
    for (size_t k = 0; k < rose_json_count(content); k++) {
        const rose_json *part = rose_json_at(content, k);
        if (!put_part(out, part, i, err) || !check_part(part, i, k, g, err)) return false;
    }
    return true;
}

static const char *role_label(const rose_json *role)
{
    static const char *const names[][2] = {{"system", "System: "},
                                           {"developer", "System: "},
                                           {"user", "User: "},
                                           {"assistant", "Assistant: "}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (rose_api_json_is(role, names[i][0])) return names[i][1];
    }
    return NULL;
}

/* Checks the members of a message. null and [] count as absent, because clients send back the
 * replies that they got. */
static bool check_members(const rose_json *message, size_t i, rose_api_ignored *g,
                          rose_api_error *err)
{
    static const char *const used[] = {"role", "content", NULL};
    static const char *const refused[] = {"tool_calls", "tool_call_id", "function_call",
                                          "refusal",    "audio",        NULL};
    char name[128];
    const char *key;
    rose_json *v;
    rose_json_each (message, key, v) {
        bool empty = rose_json_is_null(v) || (rose_json_is_array(v) && rose_json_count(v) == 0);
        if (empty || rose_api_is_one_of(key, used)) continue;
        if (rose_api_is_one_of(key, refused))
            return rose_api_fail(err, 400, "unsupported_field", "messages",
                                 "messages[%zu].%s is not supported by this server", i, key);
        snprintf(name, sizeof name, "messages[%zu].%s", i, key);
        if (!rose_api_unknown_field(g, name, err)) return false;
    }
    return true;
}

static bool render_message(rose_api_out *out, const rose_json *m, size_t i, rose_api_ignored *g,
                           rose_api_error *err)
{
    const char *label = role_label(rose_json_get(m, "role"));
    if (!rose_json_is_object(m))
        return rose_api_fail(err, 400, NULL, "messages", "messages[%zu] must be an object", i);
    if (label == NULL)
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].role must be 'system', 'developer', 'user' or "
                             "'assistant'",
                             i);
    const bool reply = rose_api_json_is(rose_json_get(m, "role"), "assistant");
    if (!check_members(m, i, g, err)) return false;
    rose_api_puts(out, label);
    if (!put_content(out, rose_json_get(m, "content"), reply, i, g, err)) return false;
    rose_api_puts(out, "\n");
    return true;
}

bool rose_api_chat_render(rose_api_out *out, const rose_api_params *p, rose_api_ignored *g,
                          rose_api_error *err)
{
    const rose_json *messages = p->messages;
    if (p->add_generation_prompt && p->continue_final)
        return rose_api_fail(err, 400, NULL, "continue_final_message",
                             "continue_final_message and add_generation_prompt exclude each other");
    if (!rose_json_is_array(messages) || rose_json_count(messages) == 0)
        return rose_api_fail_wrong(err, "messages", "a list of at least one message");
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        if (!render_message(out, rose_json_at(messages, i), i, g, err)) return false;
    }
    if (p->add_generation_prompt) rose_api_puts(out, "Assistant:");
    if (p->continue_final && !out->oom) out->b.len--; /* without the newline */
    return !out->oom || rose_api_fail_nomem(err);
}
