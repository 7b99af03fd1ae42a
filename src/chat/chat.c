/* chat/chat.c - see chat.h: compiles a model's templates, and turns messages into text and ids. */
#include "base/log.h"
#include "chat/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct rose_chat {
    rose_template *main;     /* owned */
    rose_template *tool_use; /* owned; NULL = main also serves tools */
    rose_json *tokens;       /* owned: an object */
    rose_chat_forms forms;
    rose_chat_places places, tool_use_places;
    rose_calls_format calls; /* NONE: the template names none that we know */
    bool shows_tools;
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

rose_calls_format rose_chat_calls(const rose_chat *c, const char *parser, bool *describe)
{
    const bool shown = c != NULL && c->shows_tools;
    rose_calls_format f;
    *describe = false;
    if (rose_calls_format_find(parser, &f)) {
        *describe = f == ROSE_CALLS_HERMES && !shown;
        return c == NULL && f != ROSE_CALLS_HERMES ? ROSE_CALLS_NONE : f;
    }
    if (shown && c->calls != ROSE_CALLS_NONE) return c->calls;
    *describe = true;
    return ROSE_CALLS_HERMES;
}

rose_reasoning_format rose_chat_reasoning(const rose_chat *c)
{
    return c->reasoning;
}

/* ---- open ---- */

enum { TRIAL_STEPS = 1000000 };

static const char needle[] = "ROSE-NEEDLE", other[] = "ROSE-OTHER";

rose_status rose_chat_trial(rose_template_text *text, const rose_template *t,
                            const rose_template_input *in, const rose_template_limits *limits)
{
    rose_template_input x = *in;
    uint64_t used = 0;
    x.limits = *limits;
    x.limits.used = &used;
    if (limits->steps == 0) x.limits.steps = TRIAL_STEPS;
    const rose_status st = rose_template_render(text, t, &x, NULL);
    if (limits->used != NULL && used > *limits->used) *limits->used = used;
    if (st == ROSE_E_NOMEM || st == ROSE_E_CLOSED) return st;
    return limits->steps > 0 && used > limits->steps ? ROSE_E_INVAL : ROSE_OK;
}

/* *shown: the template shows the content of one user message, which holds the needle, and as a list
 * also `other`, and not as Python prints a list. A template that fails on it counts as one that
 * does not. content is taken. */
static rose_status try_content(bool *shown, const rose_chat *c, rose_json *content, bool as_list,
                               const rose_template_limits *limits)
{
    rose_template_text text = {0};
    rose_json *messages = rose_json_pack("[{s:s,s:o}]", "role", "user", "content", content);
    const rose_template_input in = {.messages = messages, .tokens = c->tokens};
    *shown = false;
    if (messages == NULL) return ROSE_E_NOMEM;
    const rose_status st = rose_chat_trial(&text, c->main, &in, limits);
    if (text.bytes != NULL) {
        *shown = strstr(text.bytes, needle) != NULL;
        if (as_list && strstr(text.bytes, other) == NULL) *shown = false;
        if (as_list && strstr(text.bytes, "'type'") != NULL) *shown = false;
        if (as_list && strstr(text.bytes, "\"type\"") != NULL) *shown = false;
    }
    rose_template_text_free(&text);
    rose_json_decref(messages);
    return st;
}

/* Finds out which forms of content the template takes, by trying both. */
static rose_status try_forms(rose_chat *c, const rose_template_limits *limits)
{
    bool text = false;
    rose_status st = try_content(&c->forms.parts, c,
                                 rose_json_pack("[{s:s,s:s},{s:s,s:s}]", "type", "text", "text",
                                                needle, "type", "text", "text", other),
                                 true, limits);
    if (st == ROSE_OK) st = try_content(&text, c, rose_json_string(needle), false, limits);
    if (st == ROSE_OK)
        st = rose_chat_forms_calls(&c->forms, c->tool_use != NULL ? c->tool_use : c->main,
                                   c->tokens, limits);
    c->forms.wrap = c->forms.parts && !text;
    return st;
}

static rose_json *probe_tools(void)
{
    return rose_json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{}}}}]", "type", "function", "function",
                          "name", needle, "description", "x", "parameters", "type", "object",
                          "properties");
}

/* Finds out where the templates show instructions. */
static rose_status try_places(rose_chat *c, const rose_template_limits *limits)
{
    rose_json *tools = probe_tools();
    if (tools == NULL) return ROSE_E_NOMEM;
    rose_status st = rose_chat_places_find(&c->places, c->main, c->forms, c->tokens, tools, limits);
    if (st == ROSE_OK && c->tool_use != NULL)
        st = rose_chat_places_find(&c->tool_use_places, c->tool_use, c->forms, c->tokens, tools,
                                   limits);
    rose_json_decref(tools);
    return st;
}

/* A template may speak of calls and still not show the tools of a request, because it expects them
 * in a variable of its own. Then the model would not know them. */
static rose_status try_tools(rose_chat *c, const rose_template_limits *limits)
{
    rose_template_text text = {0};
    rose_json *messages = rose_json_pack("[{s:s,s:s}]", "role", "user", "content", "x");
    rose_json *tools = probe_tools();
    const rose_template_input in = {
        .messages = messages, .tools = tools, .tokens = c->tokens, .add_generation_prompt = true};
    const bool ok = messages != NULL && tools != NULL;
    const rose_template *t = c->tool_use != NULL ? c->tool_use : c->main;
    const rose_status st = ok ? rose_chat_trial(&text, t, &in, limits) : ROSE_E_NOMEM;
    /* If it fails here, a request will tell why. */
    c->shows_tools = text.bytes == NULL || strstr(text.bytes, needle) != NULL;
    rose_template_text_free(&text);
    rose_json_decref(messages);
    rose_json_decref(tools);
    return st;
}

static rose_status try_all(rose_chat *c, const rose_template_limits *limits, rose_err *err)
{
    rose_status st = try_forms(c, limits);
    if (st == ROSE_OK) st = try_places(c, limits);
    if (st == ROSE_OK) st = try_tools(c, limits);
    if (st == ROSE_OK) return st;
    return rose_fail(err, st, "chat template: %s",
                     st == ROSE_E_NOMEM    ? "out of memory"
                     : st == ROSE_E_CLOSED ? "stopped, because the client has left"
                                           : "takes too many steps");
}

static rose_status compile(rose_template **out, const char *source, const rose_buf *text,
                           rose_err *err)
{
    rose_err why = {{0}};
    const rose_status st = rose_template_compile(out, text->data, text->len, &why);
    return st == ROSE_OK ? st : rose_fail(err, st, "%s: %.240s", source, why.msg);
}

/* Makes a rose_chat of texts, whose tokens it takes. */
static rose_status create(rose_chat **out, rose_chat_texts *x, const rose_template_limits *limits,
                          rose_err *err)
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
    if (st == ROSE_OK) st = try_all(c, limits, err);
    if (st == ROSE_OK)
        *out = c;
    else
        rose_chat_close(c);
    return st;
}

/* A model's own template that this interpreter cannot run does not keep the model from serving
 * other requests, as in transformers. In its place stands one that gives the reason for each chat.
 */
static rose_status open_refusal(rose_chat **out, const char *model, const char *why, rose_err *err)
{
    rose_chat_texts x;
    rose_status st = rose_chat_texts_read(&x, model, NULL, err);
    if (st != ROSE_OK) return st;
    rose_log(ROSE_LOG_WARN, "chat",
             "%s; chats are refused, other requests are served; --chat-template takes another "
             "template, or plain",
             why);
    rose_buf_free(&x.tool_use);
    rose_buf_free(&x.main);
    x.tool_use = x.main = (rose_buf){0};
    st = rose_buf_addf(&x.main, "{{ raise_exception(\"the model's template does not work here: ");
    for (const char *s = why; *s != '\0' && st == ROSE_OK; s++)
        st = rose_buf_addf(&x.main, "%c", *s == '"' || *s == '\\' || *s < ' ' ? '\'' : *s);
    if (st == ROSE_OK) st = rose_buf_addf(&x.main, "\") }}");
    if (st == ROSE_OK) st = create(out, &x, &(rose_template_limits){0}, err);
    rose_chat_texts_free(&x);
    return st;
}

/* The format that most models without a template of their own were trained on. */
static const char CHATML[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                             "<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

rose_status rose_chat_open(rose_chat **out, const char *model, const char *given, rose_err *err)
{
    rose_chat_texts x;
    rose_err why = {{0}};
    *out = NULL;
    if (given != NULL && strcmp(given, "plain") == 0) return ROSE_OK;
    if (given != NULL && strcmp(given, "chatml") == 0) given = CHATML;
    rose_status st = rose_chat_texts_read(&x, model, given, err);
    if (st != ROSE_OK) return st;
    if (x.found) st = create(out, &x, &(rose_template_limits){0}, &why);
    if ((st == ROSE_E_FORMAT || st == ROSE_E_UNSUPPORTED) && given == NULL) {
        const rose_err first = why;
        st = open_refusal(out, model, first.msg, &why);
    }
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
                             const rose_template_limits *limits, rose_err *err)
{
    rose_chat_texts x = {.main = {.data = (char *)(uintptr_t)text, .len = n},
                         .source = "field 'chat_template'"};
    *out = NULL;
    x.tokens = base != NULL ? rose_json_incref(base->tokens) : rose_json_object();
    if (x.tokens == NULL) return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
    const rose_status st = create(out, &x, limits, err);
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

/* One way to render: a template, and what it shows. */
typedef struct way {
    const rose_template *t;
    const rose_chat_places *places;
    rose_chat_forms forms;
    const rose_template_input *in; /* all but the messages counts */
    bool head;                     /* instructions move to the start */
} way;

static rose_status no_memory(rose_err *err)
{
    return rose_fail(err, ROSE_E_NOMEM, "messages: out of memory");
}

static rose_status render_placed(const way *w, const rose_json *messages, rose_template_text *text,
                                 rose_err *err)
{
    rose_template_input x = *w->in;
    rose_json *placed = NULL;
    rose_status st = rose_chat_places_apply(&placed, messages, w->places, w->forms, w->head);
    if (st != ROSE_OK) return no_memory(err);
    x.messages = placed;
    st = rose_template_render(text, w->t, &x, err);
    rose_json_decref(placed);
    return st;
}

/* Checks that the text shows each message that must not vanish. */
static rose_status check_shown(const way *w, const rose_json *messages,
                               const rose_template_text *text, rose_err *err)
{
    rose_template_text shown = {0};
    const size_t from = rose_chat_places_unseen(messages, text), n = rose_json_count(messages);
    size_t lost = n;
    if (from == n) return ROSE_OK;
    rose_json *needles = rose_chat_places_needles(messages, from);
    if (needles == NULL) return no_memory(err);
    rose_status st = render_placed(w, needles, &shown, err);
    if (st == ROSE_OK && rose_chat_places_lost(&lost, needles, from, &shown) != ROSE_OK)
        st = no_memory(err);
    if (lost < n)
        st = rose_fail(err, ROSE_E_INVAL,
                       "messages[%zu]: the chat template does not show this message of the role "
                       "'%.40s', so the model would not read it; send its text as the role 'user'",
                       lost, rose_json_text(rose_json_get(rose_json_at(messages, lost), "role")));
    rose_template_text_free(&shown);
    rose_json_decref(needles);
    return st;
}

static rose_status render_checked(const way *w, const rose_json *messages, rose_template_text *text,
                                  rose_err *err)
{
    rose_status st = render_placed(w, messages, text, err);
    if (st == ROSE_OK && (st = check_shown(w, messages, text, err)) != ROSE_OK)
        rose_template_text_free(text);
    return st;
}

/* Renders in another way than the first. INVAL: it changes nothing, or does not help. */
static rose_status render_otherwise(const way *first, const way *w, const rose_json *messages,
                                    rose_template_text *text)
{
    rose_err second = {{0}}; /* the first error is the one to tell */
    rose_json *here = NULL, *there = NULL;
    rose_status st =
        rose_chat_places_apply(&here, messages, first->places, first->forms, first->head);
    if (st == ROSE_OK) st = rose_chat_places_apply(&there, messages, w->places, w->forms, w->head);
    if (st == ROSE_OK && rose_json_equal(here, there)) st = ROSE_E_INVAL;
    rose_json_decref(here);
    rose_json_decref(there);
    return st == ROSE_OK ? render_checked(w, messages, text, &second) : st;
}

/* What took too many steps may be right with more of them: the caller decides. When the CPU time of
 * the request is over, no other way is tried. */
static bool took_too_long(const way *w)
{
    const rose_template_limits *limits = &w->in->limits;
    return (limits->steps > 0 && *limits->used > limits->steps) ||
           (limits->cpu_ms > 0 && limits->spent_ns != NULL &&
            *limits->spent_ns >= limits->cpu_ms * UINT64_C(1000000));
}

/* Renders as the template shows the instructions; if it fails or drops one, with all of them at the
 * start; and if that fails, in the user's turns: there are templates that show the system message
 * only if the last message is a user's. */
static rose_status render_ways(const way *w, const rose_json *messages, rose_template_text *text,
                               rose_err *err)
{
    rose_chat_places marks = *w->places;
    marks.system_first = marks.developer_first = false;
    marks.system_later = marks.developer_later = false;
    way head = *w, marked = *w;
    head.head = true;
    marked.places = &marks;
    rose_status st = render_checked(w, messages, text, err);
    if (st != ROSE_E_INVAL || took_too_long(w)) return st;
    st = render_otherwise(w, &head, messages, text);
    if (st != ROSE_OK && st != ROSE_E_NOMEM && !took_too_long(w))
        st = render_otherwise(w, &marked, messages, text);
    if (st == ROSE_E_NOMEM) return no_memory(err);
    return st == ROSE_OK ? st : ROSE_E_INVAL;
}

rose_status rose_chat_render(const rose_chat *c, const rose_template_input *in,
                             rose_template_text *text, rose_err *err)
{
    rose_json *messages = NULL;
    uint64_t used = 0, spent_ns = 0;
    *text = (rose_template_text){0};
    rose_status st = rose_chat_messages(&messages, in->messages, c->forms, err);
    if (st != ROSE_OK) return st;
    rose_template_input x = *in;
    x.tokens = c->tokens;
    if (x.limits.used == NULL) x.limits.used = &used;
    if (x.limits.spent_ns == NULL) x.limits.spent_ns = &spent_ns; /* of all ways together */
    x.null_content = true; /* rose_chat_messages leaves null only where the template takes it */
    if (rose_json_count(x.tools) == 0) x.tools = NULL;
    const bool tool_use = x.tools != NULL && c->tool_use != NULL;
    way w = {.t = tool_use ? c->tool_use : c->main,
             .places = tool_use ? &c->tool_use_places : &c->places,
             .forms = c->forms,
             .in = &x};
    st = render_ways(&w, messages, text, err);
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
