/* chat/describe.c - tools for a template that does not show them, or shows them in a form that this
 * server does not know. They are described in the system message as Qwen's templates do it
 * (hermes), and the calls and results of the history become text in the same form. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/chat_internal.h"

typedef struct writer {
    rose_json *out;     /* the new messages */
    rose_buf text;      /* of the message that is being made */
    rose_json *results; /* borrowed: the message of a user, in out, to which further results belong;
                         * its text is in `text`. NULL: there is none */
    bool oom;
} writer;

static void add(writer *w, const char *bytes, size_t n)
{
    if (rose_buf_add(&w->text, bytes, n) != ROSE_OK) w->oom = true;
}

static void put(writer *w, const char *text)
{
    add(w, text, strlen(text));
}

static void put_json(writer *w, const rose_json *v)
{
    char *text = rose_json_dumps(v, 0);
    if (text == NULL)
        w->oom = true;
    else
        put(w, text);
    free(text);
}

static void put_string(writer *w, const rose_json *v)
{
    add(w, rose_json_text(v), rose_json_text_len(v));
}

/* Sets a text as the content of the message; its bytes may be those of w->text. */
static void set_content(writer *w, rose_json *m)
{
    if (rose_json_set_new(m, "content",
                          rose_json_stringn(w->text.len > 0 ? w->text.data : "", w->text.len)) != 0)
        w->oom = true;
}

/* Later results belong to another message. */
static void end_results(writer *w)
{
    if (w->results != NULL) set_content(w, w->results);
    w->results = NULL;
    w->text.len = 0;
}

static void put_tools(writer *w, const rose_json *tools)
{
    put(w,
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
        "provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        put(w, "\n");
        put_json(w, rose_json_at(tools, i));
    }
    put(w, "\n</tools>\n\nFor each function call, return a json object with function name and "
           "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
           "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
}

/* A message, with a copy that may change. NULL: no memory. */
static rose_json *append_copy(writer *w, const rose_json *m)
{
    rose_json *copy = rose_json_copy(m);
    if (rose_json_append(w->out, copy) != 0) w->oom = true;
    rose_json_decref(copy); /* the list has it */
    return w->oom ? NULL : copy;
}

/* The system message at the start, with the description at its end, or a new one. */
static void describe(writer *w, const rose_json *first, const rose_json *tools)
{
    rose_json *m =
        first != NULL ? append_copy(w, first) : rose_json_pack("{s:s}", "role", "system");
    if (first != NULL && rose_json_text_len(rose_json_get(first, "content")) > 0) {
        put_string(w, rose_json_get(first, "content"));
        put(w, "\n\n");
    }
    put_tools(w, tools);
    if (m != NULL) set_content(w, m);
    if (first == NULL && rose_json_append_new(w->out, m) != 0) w->oom = true;
    w->text.len = 0;
}

static void put_calls(writer *w, const rose_json *m)
{
    const rose_json *calls = rose_json_get(m, "tool_calls");
    rose_json *copy = append_copy(w, m);
    put_string(w, rose_json_get(m, "content"));
    for (size_t i = 0; i < rose_json_count(calls); i++) {
        const rose_json *f = rose_json_get(rose_json_at(calls, i), "function");
        const rose_json *arguments = rose_json_get(f, "arguments");
        if (w->text.len > 0) put(w, "\n");
        put(w, "<tool_call>\n{\"name\": ");
        put_json(w, rose_json_get(f, "name"));
        put(w, ", \"arguments\": ");
        if (rose_json_is_string(arguments)) /* what is no JSON stays as the model wrote it */
            put_string(w, arguments);
        else if (arguments == NULL || rose_json_is_null(arguments))
            put(w, "{}");
        else
            put_json(w, arguments);
        put(w, "}\n</tool_call>");
    }
    if (copy != NULL) {
        set_content(w, copy);
        rose_json_del(copy, "tool_calls");
    }
    w->text.len = 0;
}

/* Results that follow each other are one turn of the user, and so is the user's own message after
 * them: many templates take no two turns of one role. */
static void put_result(writer *w, const rose_json *m)
{
    if (w->results == NULL) {
        rose_json *turn = rose_json_pack("{s:s}", "role", "user");
        if (rose_json_append_new(w->out, turn) != 0) w->oom = true;
        w->results = w->oom ? NULL : turn;
    } else {
        put(w, "\n");
    }
    put(w, "<tool_response>\n");
    put_string(w, rose_json_get(m, "content"));
    put(w, "\n</tool_response>");
}

static bool is_result(const rose_json *m)
{
    return rose_chat_has_role(m, "tool") || rose_chat_has_role(m, "function");
}

static void put_message(writer *w, const rose_json *m)
{
    if (is_result(m)) {
        put_result(w, m);
        return;
    }
    if (w->results != NULL && rose_chat_has_role(m, "user")) {
        put(w, "\n");
        put_string(w, rose_json_get(m, "content"));
        end_results(w);
        return;
    }
    end_results(w);
    if (rose_json_is_array(rose_json_get(m, "tool_calls")))
        put_calls(w, m);
    else if (rose_json_append_new(w->out, rose_json_incref(m)) != 0)
        w->oom = true;
}

/* Whether a conversation is one that the template cannot show. */
static bool has_tools(const rose_json *messages)
{
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        const rose_json *m = rose_json_at(messages, i);
        if (is_result(m) || rose_json_count(rose_json_get(m, "tool_calls")) > 0) return true;
    }
    return false;
}

rose_status rose_chat_describe(rose_json **out, const rose_json *messages, const rose_json *tools,
                               rose_err *err)
{
    rose_json *checked = NULL;
    *out = rose_json_incref(messages);
    if (rose_json_count(tools) == 0 && !has_tools(messages)) return ROSE_OK;
    rose_json_decref(*out);
    *out = NULL;
    /* without parts: every content is a string */
    const rose_status st =
        rose_chat_messages(&checked, messages, (rose_chat_forms){.text = true}, err);
    if (st != ROSE_OK) return st;
    writer w = {.out = rose_json_array()};
    const rose_json *first = rose_json_at(checked, 0);
    if (!rose_chat_has_role(first, "system") && !rose_chat_has_role(first, "developer"))
        first = NULL;
    w.oom = w.out == NULL;
    if (rose_json_count(tools) == 0) first = NULL; /* it stays as it is */
    if (rose_json_count(tools) > 0) describe(&w, first, tools);
    for (size_t i = first != NULL; i < rose_json_count(checked) && !w.oom; i++)
        put_message(&w, rose_json_at(checked, i));
    end_results(&w);
    rose_buf_free(&w.text);
    rose_json_decref(checked);
    if (!w.oom) {
        *out = w.out;
        return ROSE_OK;
    }
    rose_json_decref(w.out);
    return rose_fail(err, ROSE_E_NOMEM, "messages: out of memory");
}
