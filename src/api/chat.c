/* api/chat.c - the plain chat template, for models that bring none:
 *
 *   System: <content>\n      role system or developer
 *   User: <content>\n        role user
 *   Assistant: <content>\n   role assistant
 *   Assistant:               at the end; the model goes on from here
 *
 * One leading space of the reply is dropped (models write " Hello" after the colon), so that a
 * reply sent back as history renders as the same text. "\nUser:" is an implied stop string. The
 * template cannot keep a message from imitating another role: it is for plain language models. */
#include <string.h>

#include "api/api_internal.h"

static bool put_part(rose_api_out *out, const json_t *part, size_t i, rose_api_error *err)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!json_is_object(part) || !json_is_string(type))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content: each part must be an object with a 'type'", i);
    if (strcmp(json_string_value(type), "text") != 0)
        return rose_api_fail(
            err, 400, "unsupported_field", "messages",
            "messages[%zu].content: part type '%.40s' is not supported by this server", i,
            json_string_value(type));
    if (!json_is_string(text))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content: a text part needs a string 'text'", i);
    rose_api_put(out, json_string_value(text), json_string_length(text));
    return true;
}

static bool put_content(rose_api_out *out, const json_t *content, size_t i, rose_api_error *err)
{
    if (json_is_string(content)) {
        rose_api_put(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return rose_api_fail(err, 400, NULL, "messages",
                             "messages[%zu].content must be a string or a list of text parts", i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        if (!put_part(out, json_array_get(content, k), i, err)) return false;
    }
    return true;
}

static const char *role_label(const json_t *role)
{
    static const char *const names[][2] = {{"system", "System: "},
                                           {"developer", "System: "},
                                           {"user", "User: "},
                                           {"assistant", "Assistant: "}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (json_is_string(role) && strcmp(json_string_value(role), names[i][0]) == 0)
            return names[i][1];
    }
    return NULL;
}

/* Other members than role and content must be null or empty, as clients send them back. */
static bool check_members(const json_t *message, size_t i, rose_api_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)message, key, v)
    {
        bool empty = json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0);
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0 || empty) continue;
        return rose_api_fail(err, 400, "unsupported_field", "messages",
                             "messages[%zu].%.60s is not supported by this server", i, key);
    }
    return true;
}

bool rose_api_chat_render(rose_api_out *out, const json_t *messages, rose_api_error *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return rose_api_fail(err, 400, NULL, "messages",
                             "field 'messages' must be a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        const char *label = role_label(json_object_get(m, "role"));
        if (!json_is_object(m))
            return rose_api_fail(err, 400, NULL, "messages", "messages[%zu] must be an object", i);
        if (label == NULL)
            return rose_api_fail(err, 400, NULL, "messages",
                                 "messages[%zu].role must be 'system', 'developer', 'user' or "
                                 "'assistant'",
                                 i);
        if (!check_members(m, i, err)) return false;
        rose_api_puts(out, label);
        if (!put_content(out, json_object_get(m, "content"), i, err)) return false;
        rose_api_puts(out, "\n");
    }
    rose_api_puts(out, "Assistant:");
    return !out->oom || rose_api_fail_nomem(err);
}
