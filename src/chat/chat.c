/* chat/chat.c - see chat.h: compiles a model's templates, and turns messages into text and ids. */
#include "chat/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct rose_chat {
    rose_template *main;     /* owned */
    rose_template *tool_use; /* owned; NULL = main also serves tools */
    rose_json *tokens;       /* owned: an object */
    rose_chat_forms forms;
    rose_calls_format calls;
    rose_reasoning_format reasoning;
    rose_buf text; /* owned: what main was compiled from; empty after rose_chat_derive */
    char source[256];
    char tokenizer_class[ROSE_CHAT_CLASS];
};

void rose_chat_close(rose_chat *c)
{
    if (c == NULL) return;
    rose_template_free(c->main);
    rose_template_free(c->tool_use);
    rose_json_decref(c->tokens);
    rose_buf_free(&c->text);
    free(c);
}

const char *rose_chat_source(const rose_chat *c)
{
    return c->source;
}

const char *rose_chat_text(const rose_chat *c, size_t *len)
{
    *len = c->text.len;
    return c->text.data;
}

const rose_json *rose_chat_tokens(const rose_chat *c)
{
    return c->tokens;
}

const char *rose_chat_class(const rose_chat *c)
{
    return c->tokenizer_class;
}

rose_calls_format rose_chat_calls(const rose_chat *c)
{
    return c->calls;
}

rose_reasoning_format rose_chat_reasoning(const rose_chat *c)
{
    return c->reasoning;
}

/* ---- open ---- */

static const char needle[] = "ROSE-NEEDLE";

/* *shown: the template shows the content of one user message, and not as Python prints a list. A
 * template that fails on it counts as one that does not. content is taken. */
static rose_status try_content(bool *shown, const rose_chat *c, rose_json *content, bool as_list)
{
    rose_template_text text = {0};
    rose_json *messages = rose_json_pack("[{s:s,s:o}]", "role", "user", "content", content);
    const rose_template_input in = {
        .messages = messages, .tokens = c->tokens, .limits = {.steps = 1000000}};
    *shown = false;
    if (messages == NULL) return ROSE_E_NOMEM;
    const rose_status st = rose_template_render(&text, c->main, &in, NULL);
    if (st == ROSE_OK) {
        *shown = strstr(text.bytes, needle) != NULL;
        if (as_list && strstr(text.bytes, "'type'") != NULL) *shown = false;
        if (as_list && strstr(text.bytes, "\"type\"") != NULL) *shown = false;
    }
    rose_template_text_free(&text);
    rose_json_decref(messages);
    return st == ROSE_E_NOMEM ? st : ROSE_OK;
}

/* Finds out which forms of content the template takes, by trying both. */
static rose_status try_forms(rose_chat *c, rose_err *err)
{
    bool text = false;
    rose_status st = try_content(
        &c->forms.parts, c, rose_json_pack("[{s:s,s:s}]", "type", "text", "text", needle), true);
    if (st == ROSE_OK) st = try_content(&text, c, rose_json_string(needle), false);
    c->forms.wrap = c->forms.parts && !text;
    return st == ROSE_OK ? st : rose_fail(err, st, "chat template: out of memory");
}

/* A template may speak of calls and still not show the tools of a request, because it expects them
 * in a variable of its own. Then the model would not know them. */
static rose_status try_tools(rose_chat *c)
{
    rose_template_text text = {0};
    rose_json *messages = rose_json_pack("[{s:s,s:s}]", "role", "user", "content", "x");
    rose_json *tools =
        rose_json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{}}}}]", "type", "function", "function", "name",
                       needle, "description", "x", "parameters", "type", "object", "properties");
    const rose_template_input in = {.messages = messages,
                                    .tools = tools,
                                    .tokens = c->tokens,
                                    .add_generation_prompt = true,
                                    .limits = {.steps = 1000000}};
    const bool ok = messages != NULL && tools != NULL;
    const rose_template *t = c->tool_use != NULL ? c->tool_use : c->main;
    const rose_status st = ok ? rose_template_render(&text, t, &in, NULL) : ROSE_E_NOMEM;
    /* If it fails here, a request will tell why. */
    if (st == ROSE_OK && strstr(text.bytes, needle) == NULL) c->calls = ROSE_CALLS_NONE;
    rose_template_text_free(&text);
    rose_json_decref(messages);
    rose_json_decref(tools);
    return st == ROSE_E_NOMEM ? st : ROSE_OK;
}

static rose_status compile(rose_template **out, const char *source, const rose_buf *text,
                           rose_err *err)
{
    rose_err why = {{0}};
    const rose_status st = rose_template_compile(out, text->data, text->len, &why);
    return st == ROSE_OK ? st : rose_fail(err, st, "%s: %.240s", source, why.msg);
}

/* Makes a rose_chat of texts, whose tokens it takes. */
static rose_status create(rose_chat **out, rose_chat_texts *x, rose_err *err)
{
    rose_chat *c = calloc(1, sizeof *c);
    if (c == NULL) return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
    c->tokens = x->tokens;
    x->tokens = NULL;
    const rose_buf *tools = x->tool_use.len > 0 ? &x->tool_use : &x->main;
    c->calls = rose_calls_detect(tools->data, tools->len);
    c->reasoning = rose_reasoning_detect(x->main.data, x->main.len);
    memcpy(c->source, x->source, sizeof c->source);
    memcpy(c->tokenizer_class, x->tokenizer_class, sizeof c->tokenizer_class);
    rose_status st = compile(&c->main, c->source, &x->main, err);
    if (st == ROSE_OK && x->tool_use.len > 0)
        st = compile(&c->tool_use, c->source, &x->tool_use, err);
    if (st == ROSE_OK) st = try_forms(c, err);
    if (st == ROSE_OK && c->calls != ROSE_CALLS_NONE && (st = try_tools(c)) != ROSE_OK)
        st = rose_fail(err, st, "chat template: out of memory");
    if (st == ROSE_OK)
        *out = c;
    else
        rose_chat_close(c);
    return st;
}

rose_status rose_chat_open(rose_chat **out, const char *model, const char *given, rose_err *err)
{
    rose_chat_texts x;
    rose_err why = {{0}};
    *out = NULL;
    if (given != NULL && strcmp(given, "plain") == 0) return ROSE_OK;
    rose_status st = rose_chat_texts_read(&x, model, given, err);
    if (st != ROSE_OK) return st;
    if (x.found) st = create(out, &x, &why);
    if (*out != NULL) {
        (*out)->text = x.main;
        x.main = (rose_buf){0};
    }
    rose_chat_texts_free(&x);
    if (st == ROSE_OK) return st;
    return rose_fail(err, st, "%.400s%s", why.msg,
                     st == ROSE_E_NOMEM ? ""
                                        : "; --chat-template takes another template, or plain");
}

rose_status rose_chat_derive(rose_chat **out, const rose_chat *base, const char *text, size_t n,
                             rose_err *err)
{
    rose_chat_texts x = {.main = {.data = (char *)(uintptr_t)text, .len = n},
                         .source = "field 'chat_template'"};
    *out = NULL;
    /* A deep copy, because threads share base, and so must not count references to its values. */
    x.tokens = base != NULL ? rose_json_deep_copy(base->tokens) : rose_json_object();
    if (x.tokens == NULL) return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
    const rose_status st = create(out, &x, err);
    rose_json_decref(x.tokens); /* if create did not take them */
    return st;
}

void rose_chat_add_eos(const rose_chat *c, const rose_tokenizer *t, rose_arch *a)
{
    const rose_json *eos = c != NULL ? rose_json_get(c->tokens, "eos_token") : NULL;
    uint32_t id;
    if (rose_json_is_string(eos) &&
        rose_tokenizer_find(t, rose_json_text(eos), rose_json_text_len(eos), &id))
        rose_arch_add_eos(a, id);
}

/* ---- a request ---- */

rose_status rose_chat_render(const rose_chat *c, const rose_template_input *in,
                             rose_template_text *text, rose_err *err)
{
    rose_json *messages = NULL;
    *text = (rose_template_text){0};
    rose_status st = rose_chat_messages(&messages, in->messages, c->forms, err);
    if (st != ROSE_OK) return st;
    rose_template_input x = *in;
    x.messages = messages;
    x.tokens = c->tokens;
    if (rose_json_count(x.tools) == 0) x.tools = NULL;
    const bool tool_use = x.tools != NULL && c->tool_use != NULL;
    st = rose_template_render(text, tool_use ? c->tool_use : c->main, &x, err);
    rose_json_decref(messages);
    return st;
}

rose_status rose_chat_encode(rose_encoder *e, const rose_template_text *text, rose_ids *ids,
                             rose_err *err)
{
    size_t begin = 0;
    rose_mark_run *runs = malloc((text->n_runs + 1) * sizeof *runs);
    if (runs == NULL) return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
    for (size_t i = 0; i < text->n_runs; i++) {
        runs[i] = (rose_mark_run){text->runs[i].end - begin, !text->runs[i].message};
        begin = text->runs[i].end;
    }
    const rose_status st =
        rose_encode_marked(e, text->bytes, text->len, runs, text->n_runs, 0, ids, err);
    free(runs);
    return st;
}

rose_status rose_chat_prompt(const rose_chat *c, rose_encoder *e, const rose_template_input *in,
                             rose_template_text *text, rose_ids *ids, rose_err *err)
{
    rose_template_text own;
    rose_status st = rose_chat_render(c, in, &own, err);
    if (st != ROSE_OK) {
        if (text != NULL) *text = (rose_template_text){0};
        return st;
    }
    st = rose_chat_encode(e, &own, ids, err);
    if (text != NULL && st == ROSE_OK) {
        *text = own;
        return ROSE_OK;
    }
    if (text != NULL) *text = (rose_template_text){0};
    rose_template_text_free(&own);
    return st;
}
