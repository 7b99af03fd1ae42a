/* template/render.c - one render: the variables that a template sees, as transformers prepares
 * them, and the text with its runs. */
#include <stdlib.h>

#include "base/clock.h"
#include "template/template_internal.h"

static const char *const reasoning[] = {"reasoning_content", "thinking", "reasoning"};
static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG "; /* transformers' own */

/* ---- messages ---- */

/* Some templates make control tokens of roles: '<|' + message.role + '|>'. A role that OpenAI's API
 * knows is therefore template text: the message only chooses among names, of which the template
 * makes what its author wanted. Any other role stays message text. */
static tpl_value mark_role(rose_tpl *t, tpl_value role)
{
    static const char *const known[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (role.kind == TPL_STR && rose_tpl_text_is(role.u.str, known[i]))
            return rose_tpl_cstr(t, known[i]);
    }
    return role;
}

static tpl_value prepare(rose_tpl *t, tpl_value message, bool null_content)
{
    tpl_value out = rose_tpl_dict_new(t, message.mark);
    for (size_t i = 0; i < message.u.dict->n; i++) {
        const tpl_pair *p = &message.u.dict->pairs[i];
        if (p->value.kind != TPL_NONE ||
            (null_content && rose_tpl_text_is(p->key.u.str, "content")))
            rose_tpl_dict_put(t, out.u.dict, p->key,
                              rose_tpl_text_is(p->key.u.str, "role") ? mark_role(t, p->value)
                                                                     : p->value);
    }
    return out;
}

/* The reasoning of a message has three names: fills reasoning_content, and thinking if it lacks. */
static tpl_value alias_reasoning(rose_tpl *t, tpl_value message)
{
    const tpl_value *found = NULL;
    tpl_value out;
    for (size_t i = 0; i < 3 && found == NULL; i++)
        found = rose_tpl_dict_gets(t, message.u.dict, reasoning[i]);
    if (found == NULL) return message;
    out = rose_tpl_dict_new(t, message.mark);
    rose_tpl_dict_put(t, out.u.dict, rose_tpl_str(rose_tpl_text(t, "thinking", 8, TPL_MESSAGE)),
                      *found);
    for (size_t i = 0; i < message.u.dict->n; i++)
        rose_tpl_dict_put(t, out.u.dict, message.u.dict->pairs[i].key,
                          message.u.dict->pairs[i].value);
    rose_tpl_dict_put(t, out.u.dict,
                      rose_tpl_str(rose_tpl_text(t, "reasoning_content", 17, TPL_MESSAGE)), *found);
    return out;
}

static tpl_value make_messages(rose_tpl *t, const rose_template_input *in)
{
    tpl_value out = rose_tpl_from_json(t, in->messages, TPL_MESSAGE);
    if (out.kind != TPL_LIST || out.u.seq->n == 0)
        rose_tpl_fail(t, "messages must be a list of at least one message");
    for (size_t i = 0; i < out.u.seq->n; i++) {
        if (out.u.seq->items[i].kind != TPL_DICT)
            rose_tpl_fail(t, "messages[%zu] must be an object", i);
        out.u.seq->items[i] = alias_reasoning(t, prepare(t, out.u.seq->items[i], in->null_content));
    }
    return out;
}

/* ---- continue_final_message: a tag after the content shows where the rendered text is cut ---- */

static const tpl_text *with_tag(rose_tpl *t, tpl_value v)
{
    tpl_buf b = {.t = t};
    if (v.kind != TPL_STR)
        rose_tpl_fail(t, "continue_final_message needs a message whose content is text");
    rose_tpl_put_text(&b, v.u.str);
    rose_tpl_puts(&b, tag, TPL_MESSAGE);
    return rose_tpl_buf_text(&b);
}

/* Marks the end of a part of the list whose text comes last; returns that text. */
static const tpl_text *tag_part(rose_tpl *t, const tpl_seq *parts)
{
    for (size_t i = parts->n; i-- > 0;) {
        const tpl_value *text;
        if (parts->items[i].kind != TPL_DICT) continue;
        text = rose_tpl_dict_gets(t, parts->items[i].u.dict, "text");
        if (text == NULL) continue;
        tpl_value key = rose_tpl_cstr(t, "text"), before = *text;
        rose_tpl_dict_put(t, parts->items[i].u.dict, key, rose_tpl_str(with_tag(t, before)));
        return before.u.str;
    }
    rose_tpl_fail(t, "continue_final_message finds no text in the last message");
}

static const tpl_text *tag_final(rose_tpl *t, const rose_template *tpl, tpl_value messages)
{
    const tpl_value last = messages.u.seq->items[messages.u.seq->n - 1];
    const tpl_value *content = rose_tpl_dict_gets(t, last.u.dict, "content");
    const tpl_text *name = rose_tpl_cstr(t, "content").u.str;
    if (content == NULL)
        rose_tpl_fail(t, "continue_final_message: the last message has no content");
    if (rose_tpl_find(t, tpl->text, 0, name) == SIZE_MAX)
        rose_tpl_fail(t, "continue_final_message: the template does not use 'content'");
    if (content->kind == TPL_LIST) return tag_part(t, content->u.seq);
    tpl_value before = *content;
    rose_tpl_dict_put(t, last.u.dict, rose_tpl_str(name), rose_tpl_str(with_tag(t, before)));
    return before.u.str;
}

static const tpl_text *cut(rose_tpl *t, const tpl_text *out, const tpl_text *final)
{
    const tpl_text *short_tag = rose_tpl_text(t, tag, sizeof tag - 2, TPL_MESSAGE);
    const tpl_text *core = rose_tpl_strip(t, final, NULL, TPL_LEFT | TPL_RIGHT);
    size_t at = SIZE_MAX;
    for (size_t p = 0; (p = rose_tpl_find(t, out, p, short_tag)) != SIZE_MAX; p++)
        at = p;
    if (at == SIZE_MAX || rose_tpl_find(t, out, 0, core) == SIZE_MAX)
        rose_tpl_fail(t, "continue_final_message: the last message's content is not in the text");
    if (out->n - at >= sizeof tag - 1 && memcmp(out->s + at, tag, sizeof tag - 1) == 0)
        return rose_tpl_part(t, out, 0, at);
    return rose_tpl_strip(t, rose_tpl_part(t, out, 0, at), NULL, TPL_RIGHT);
}

/* ---- variables ---- */

static void set(rose_tpl *t, const char *name, tpl_value v)
{
    rose_tpl_scope_set(t, t->scope, rose_tpl_cstr(t, name).u.str, v);
}

static void set_all(rose_tpl *t, const rose_json *object, uint8_t mark)
{
    tpl_value all = rose_tpl_none();
    if (object != NULL) all = rose_tpl_from_json(t, object, mark);
    for (size_t i = 0; all.kind == TPL_DICT && i < all.u.dict->n; i++)
        rose_tpl_scope_set(t, t->scope, all.u.dict->pairs[i].key.u.str, all.u.dict->pairs[i].value);
}

static tpl_value list_or_none(rose_tpl *t, const rose_json *v)
{
    return v == NULL ? rose_tpl_none() : rose_tpl_from_json(t, v, TPL_MESSAGE);
}

static const tpl_text *run(rose_tpl *t, const rose_template *tpl, const rose_template_input *in)
{
    tpl_buf out = {.t = t};
    const tpl_text *final = NULL;
    t->scope = rose_tpl_scope_new(t, NULL);
    rose_tpl_functions_add(t, t->scope);
    set_all(t, in->tokens, TPL_TEMPLATE);
    set_all(t, in->kwargs, TPL_MESSAGE);
    tpl_value messages = make_messages(t, in);
    if (in->continue_final_message && in->add_generation_prompt)
        rose_tpl_fail(t, "continue_final_message and add_generation_prompt exclude each other");
    if (in->continue_final_message) final = tag_final(t, tpl, messages);
    set(t, "messages", messages);
    set(t, "tools", list_or_none(t, in->tools));
    set(t, "documents", list_or_none(t, in->documents));
    set(t, "add_generation_prompt", rose_tpl_bool(in->add_generation_prompt));
    t->scope = rose_tpl_scope_new(t, t->scope);
    for (uint32_t i = 0; i < tpl->own.n; i++)
        rose_tpl_scope_set(t, t->scope, tpl->own.at[i]->text,
                           rose_tpl_undef(t, "a name is used before it is set"));
    t->out = &out;
    rose_tpl_exec(t, &tpl->body);
    const tpl_text *text = rose_tpl_buf_text(&out);
    return final == NULL ? text : cut(t, text, final);
}

/* ---- the result ---- */

static size_t run_end(const tpl_text *x, size_t from)
{
    size_t end = from + 1;
    if (x->marks == NULL) return x->n;
    while (end < x->n && x->marks[end] == x->marks[from])
        end++;
    return end;
}

static rose_status copy_out(rose_template_text *out, const tpl_text *x, rose_err *err)
{
    size_t n = 0;
    for (size_t at = 0; at < x->n; at = run_end(x, at))
        n++;
    out->bytes = malloc(x->n + 1);
    out->runs = malloc((n + 1) * sizeof *out->runs);
    if (out->bytes == NULL || out->runs == NULL) {
        rose_template_text_free(out);
        return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
    }
    if (x->n > 0) memcpy(out->bytes, x->s, x->n);
    out->bytes[x->n] = '\0';
    out->len = x->n;
    for (size_t at = 0; at < x->n; at = out->runs[out->n_runs++].end) {
        bool message = (x->marks == NULL ? x->mark : x->marks[at]) == TPL_MESSAGE;
        out->runs[out->n_runs] = (rose_template_run){run_end(x, at), message};
    }
    return ROSE_OK;
}

rose_status rose_template_render(rose_template_text *out, const rose_template *tpl,
                                 const rose_template_input *in, rose_err *err)
{
    const rose_template_limits *l = &in->limits;
    rose_tpl t = {.err = err, .now_s = in->now_s, .utc = in->utc, .line = 1};
    t.max_work = (l->steps > 0 ? l->steps : 20000000) * WORK_A_STEP;
    t.stop = l->stop;
    if (l->spent_ns != NULL) t.cpu_began_ns = rose_thread_cpu_ns();
    if (l->cpu_ms > 0) rose_tpl_limit_cpu(&t, l->cpu_ms, l->spent_ns != NULL ? *l->spent_ns : 0);
    t.max_memory = l->memory_bytes > 0 ? l->memory_bytes : (size_t)256 << 20;
    t.max_output = l->output_bytes > 0 ? l->output_bytes : (size_t)32 << 20;
    t.max_depth = l->depth > 0 ? l->depth : 400;
    *out = (rose_template_text){0};
    if (setjmp(t.trap) == 0) t.st = copy_out(out, run(&t, tpl, in), err);
    if (l->spent_ns != NULL) *l->spent_ns += rose_thread_cpu_ns() - t.cpu_began_ns;
    if (l->used != NULL) *l->used = (t.work + WORK_A_STEP - 1) / WORK_A_STEP;
    rose_tpl_chunks_free(t.chunks);
    return t.st;
}

void rose_template_text_free(rose_template_text *text)
{
    free(text->bytes);
    free(text->runs);
    *text = (rose_template_text){0};
}
