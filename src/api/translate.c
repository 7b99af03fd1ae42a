/* api/translate.c - what the translations of other APIs share. They make the body of a chat
 * completion, so that limits, checks, templates and sampling are those of a chat. The new body
 * borrows the values of the client's body. Runs on a tokenizer worker. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"

bool rose_api_translate_set(rose_api_translation *t, const char *key, rose_json *v)
{
    return rose_json_set_new(t->chat, key, v) == 0 || rose_api_fail_nomem(t->err);
}

bool rose_api_translate_copy(rose_api_translation *t, const char *to, const rose_json *v)
{
    return rose_api_translate_set(t, to, rose_json_incref(v));
}

/* Handles a field that the API does not have: copies a sampling field of our own, such as min_p, or
 * notes an unknown field. */
static bool other_field(rose_api_translation *t, const char *name, const rose_json *v)
{
    static const char *const ours[] = {"top_k",
                                       "min_p",
                                       "seed",
                                       "stop",
                                       "stop_token_ids",
                                       "include_stop_str_in_output",
                                       "ignore_eos",
                                       "speculation",
                                       "min_tokens",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "logit_bias",
                                       "allowed_token_ids",
                                       "bad_words",
                                       "timeout",
                                       "priority",
                                       "cache_salt",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "structured_outputs",
                                       NULL};
    if (rose_api_is_one_of(name, ours)) return rose_api_translate_copy(t, name, v);
    return rose_api_unknown_field(t->ignored, name, t->err);
}

static bool take_field(rose_api_translation *t, const rose_api_translated *row, const char *key,
                       const rose_json *v)
{
    if (row->to != NULL) return rose_api_translate_copy(t, row->to, v);
    if (row->take != NULL) return row->take(t, v);
    if (row->list && rose_json_is_array(v) && rose_json_count(v) == 0) return true;
    if (row->hint) return rose_api_hint(t->ignored, key, t->err);
    return row->why == NULL ||
           rose_api_fail_unsupported(t->err, key, row->why[0] != '\0' ? row->why : NULL);
}

static bool other_member(rose_api_translation *t, const char *field, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%.60s", field, key);
    return rose_api_unknown_field(t->ignored, name, t->err);
}

bool rose_api_translate_members(rose_api_translation *t, const char *field, const rose_json *object,
                                const rose_api_translated *rows, size_t n)
{
    const char *key;
    rose_json *v;
    if (!rose_json_is_object(object)) return rose_api_fail_wrong(t->err, field, "an object");
    rose_json_each (object, key, v) {
        size_t i = 0;
        bool ok;
        if (rose_json_is_null(v)) continue;
        while (i < n && strcmp(key, rows[i].name) != 0)
            i++;
        if (i < n)
            ok = take_field(t, &rows[i], key, v);
        else
            ok = field != NULL ? other_member(t, field, key) : other_field(t, key, v);
        if (!ok) return false;
    }
    return true;
}

bool rose_api_translate_fields(rose_api_translation *t, const rose_api_translated *rows, size_t n)
{
    t->chat = rose_json_pack("{s:[]}", "messages");
    t->messages = rose_json_get(t->chat, "messages");
    if (t->messages == NULL) return rose_api_fail_nomem(t->err);
    return rose_api_translate_members(t, NULL, t->body, rows, n);
}

rose_json *rose_api_translate_message(rose_api_translation *t, const char *role)
{
    rose_json *m = rose_json_pack("{s:s, s:[]}", "role", role, "content");
    if (m != NULL && rose_json_append_new(t->messages, m) == 0) return m;
    rose_api_fail_nomem(t->err);
    return NULL;
}

rose_json *rose_api_translate_last(const rose_api_translation *t)
{
    const size_t n = rose_json_count(t->messages);
    return n == 0 ? NULL : rose_json_at(t->messages, n - 1);
}

rose_json *rose_api_translate_result(rose_api_translation *t, const rose_json *id)
{
    rose_json *m = rose_api_translate_message(t, "tool");
    if (m == NULL || rose_json_set_new(m, "tool_call_id", rose_json_incref(id)) == 0) return m;
    rose_api_fail_nomem(t->err);
    return NULL;
}

bool rose_api_translate_text(rose_api_translation *t, rose_json *message, const rose_json *text)
{
    rose_json *part = rose_json_pack("{s:s, s:O}", "type", "text", "text", text);
    return rose_json_append_new(rose_json_get(message, "content"), part) == 0 ||
           rose_api_fail_nomem(t->err);
}

bool rose_api_translate_text_new(rose_api_translation *t, rose_json *message, rose_json *text)
{
    const bool ok =
        text != NULL ? rose_api_translate_text(t, message, text) : rose_api_fail_nomem(t->err);
    rose_json_decref(text);
    return ok;
}

rose_json *rose_api_translate_dump(const rose_json *v)
{
    rose_api_out text = {0};
    rose_api_put_json(&text, v);
    rose_json *out = text.oom ? NULL : rose_json_stringn(text.b.data, text.b.len);
    rose_api_out_free(&text);
    return out;
}

bool rose_api_translate_call(rose_api_translation *t, rose_json *message, const rose_json *id,
                             const rose_json *name, const rose_json *arguments)
{
    rose_json *calls = rose_json_get(message, "tool_calls");
    rose_json *call = rose_json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                     "function", "name", name, "arguments", arguments);
    if (calls == NULL && rose_json_set_new(message, "tool_calls", rose_json_array()) == 0)
        calls = rose_json_get(message, "tool_calls");
    if (calls != NULL && rose_json_append_new(calls, call) == 0) return true;
    if (calls == NULL) rose_json_decref(call);
    return rose_api_fail_nomem(t->err);
}

/* Sets a copy of v, unless it is NULL or null. */
static bool set_some(rose_json *object, const char *key, const rose_json *v)
{
    return v == NULL || rose_json_is_null(v) ||
           rose_json_set_new(object, key, rose_json_incref(v)) == 0;
}

bool rose_api_translate_tool(rose_api_translation *t, const rose_json *name,
                             const rose_json *description, const rose_json *parameters,
                             const rose_json *strict)
{
    rose_json *tools = rose_json_get(t->chat, "tools");
    rose_json *function = rose_json_pack("{s:O}", "name", name);
    bool ok = function != NULL && set_some(function, "description", description) &&
              set_some(function, "parameters", parameters) && set_some(function, "strict", strict);
    if (tools == NULL && rose_json_set_new(t->chat, "tools", rose_json_array()) == 0)
        tools = rose_json_get(t->chat, "tools");
    ok = ok && tools != NULL &&
         rose_json_append_new(
             tools, rose_json_pack("{s:s, s:O}", "type", "function", "function", function)) == 0;
    rose_json_decref(function);
    return ok || rose_api_fail_nomem(t->err);
}

bool rose_api_translate_choose(rose_api_translation *t, const rose_json *name)
{
    return rose_api_translate_set(
        t, "tool_choice",
        rose_json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
}

bool rose_api_translate_schema(rose_api_translation *t, const rose_json *schema,
                               const rose_json *name, const rose_json *strict,
                               const rose_json *description)
{
    rose_json *f = rose_json_pack("{s:O}", "schema", schema);
    bool ok = f != NULL && set_some(f, "name", name) && set_some(f, "strict", strict) &&
              set_some(f, "description", description) &&
              (name != NULL || rose_json_set_new(f, "name", rose_json_string("reply")) == 0);
    ok = ok && rose_json_set_new(
                   t->chat, "response_format",
                   rose_json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", f)) == 0;
    rose_json_decref(f);
    return ok || rose_api_fail_nomem(t->err);
}

static bool end_tools(rose_api_translation *t)
{
    const rose_json *choice = rose_json_get(t->chat, "tool_choice");
    if (choice == NULL || rose_json_count(rose_json_get(t->body, "tools")) == 0 ||
        rose_json_get(t->chat, "tools") != NULL)
        return true;
    if (t->generates && !rose_api_json_is(choice, "none") && !rose_api_json_is(choice, "auto"))
        return rose_api_tools_none_left(t->err);
    return rose_json_del(t->chat, "tool_choice") == 0;
}

bool rose_api_translate_end(rose_api_translation *t)
{
    if (!end_tools(t)) return false;
    for (size_t i = 0; i < rose_json_count(t->messages); i++) {
        rose_json *m = rose_json_at(t->messages, i), *parts = rose_json_get(m, "content");
        const size_t n = rose_json_count(parts);
        if (n > 1) continue;
        const bool calls = rose_json_get(m, "tool_calls") != NULL;
        rose_json *content = n == 1
                                 ? rose_json_incref(rose_json_get(rose_json_at(parts, 0), "text"))
                             : calls ? rose_json_null()
                                     : rose_json_string("");
        if (rose_json_set_new(m, "content", content) != 0) return rose_api_fail_nomem(t->err);
    }
    return true;
}

/* ---- the client's names of fields ---- */

/* Replaces the first `from` of a text by `to`; false: it is not there. The end may be cut. */
static bool replace(char *text, size_t cap, const char *from, const char *to)
{
    char rest[ROSE_ERR_CAP];
    char *at = strstr(text, from);
    if (at == NULL) return false;
    snprintf(rest, sizeof rest, "%s", at + strlen(from));
    snprintf(at, cap - (size_t)(at - text), "%s%s", to, rest);
    return true;
}

bool rose_api_translate_name(char *name, size_t cap, const rose_api_rename *renames)
{
    for (; renames->chat != NULL; renames++) {
        if (renames->chat[0] != '.' ? strcmp(name, renames->chat) != 0
                                    : strstr(name, renames->chat) == NULL)
            continue;
        return replace(name, cap, renames->chat, renames->client);
    }
    return false;
}

void rose_api_translate_error(rose_api_error *e, const rose_api_rename *renames)
{
    char from[sizeof e->param + 2], to[sizeof e->param + 2];
    snprintf(from, sizeof from, "'%s'", e->param);
    if (!rose_api_translate_name(e->param, sizeof e->param, renames)) return;
    snprintf(to, sizeof to, "'%s'", e->param);
    (void)replace(e->msg, sizeof e->msg, from, to);
    rose_api_utf8_clean(e->msg);
}
