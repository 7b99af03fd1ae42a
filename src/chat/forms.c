/* chat/forms.c - finds out, by trying, which forms of an assistant's calls a template shows. */
#include <string.h>

#include "chat/chat_internal.h"

static const char needle[] = "ROSE-NEEDLE";

/* *shown: the template shows the needle in the arguments of a call, and no null as Python prints
 * it. A template that fails counts as one that does not. content and arguments are taken. */
static rose_status try_call(bool *shown, const rose_template *t, const rose_json *tokens,
                            const char *id, rose_json *content, rose_json *arguments,
                            const rose_template_limits *limits)
{
    rose_template_text text = {0};
    /* There are templates that show calls only to requests with tools. */
    rose_json *messages =
        rose_json_pack("[{s:s,s:s},{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]}]", "role", "user", "content",
                       "x", "role", "assistant", "content", content, "tool_calls", "id", id, "type",
                       "function", "function", "name", "f", "arguments", arguments);
    rose_json *tools =
        rose_json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{}}}}]", "type", "function", "function", "name",
                       "f", "description", "x", "parameters", "type", "object", "properties");
    const rose_template_input in = {
        .messages = messages, .tools = tools, .tokens = tokens, .null_content = true};
    const bool ok = messages != NULL && tools != NULL;
    const rose_status st = ok ? rose_chat_trial(&text, t, &in, limits) : ROSE_E_NOMEM;
    *shown = text.bytes != NULL && strstr(text.bytes, needle) != NULL &&
             strstr(text.bytes, "None") == NULL;
    rose_template_text_free(&text);
    rose_json_decref(messages);
    rose_json_decref(tools);
    return st;
}

rose_status rose_chat_forms_calls(rose_chat_forms *forms, const rose_template *t,
                                  const rose_json *tokens, const rose_template_limits *limits)
{
    bool shown[2][2] = {{false}}; /* by content: empty or null; by arguments: an object or text */
    rose_status st = ROSE_OK;
    for (int i = 0; i < 4 && st == ROSE_OK; i++)
        st = try_call(&shown[i / 2][i % 2], t, tokens, "abcdefghi",
                      i / 2 ? rose_json_null() : rose_json_string(""),
                      i % 2 ? rose_json_string(needle) : rose_json_pack("{s:s}", "x", needle),
                      limits);
    forms->null = shown[1][0] || shown[1][1];
    forms->text = shown[0][1] || shown[1][1];
    forms->only_text = forms->text && !shown[0][0] && !shown[1][0];
    bool longer = true;
    if (st == ROSE_OK && (shown[0][0] || shown[0][1]))
        st = try_call(&longer, t, tokens, "call_0123456789abcdef", rose_json_string(""),
                      shown[0][0] ? rose_json_pack("{s:s}", "x", needle) : rose_json_string(needle),
                      limits);
    forms->short_ids = !longer;
    return st;
}
