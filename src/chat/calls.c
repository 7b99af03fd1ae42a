/* chat/calls.c - see calls.h: the formats by name and by template, the parts, and what lies around
 * calls: reasoning, text, and the marks that begin and end a call. The automaton of a call's body
 * is in calls_json.c and calls_convert.c.
 *
 * Every byte goes through think_step and, after the reasoning, through rose_calls_step. Bytes
 * that could still become a call, or a mark, are kept in `held`. When they turn out to be text,
 * they are given as text and are not searched again, so the cost is linear. */
#include <stdlib.h>
#include <string.h>

#include "chat/chat_internal.h"

/* ---- formats ---- */

static const char *const format_names[] = {
    [ROSE_CALLS_NONE] = "none",          [ROSE_CALLS_HERMES] = "hermes",
    [ROSE_CALLS_LLAMA3] = "llama3_json", [ROSE_CALLS_QWEN3_XML] = "qwen3_xml",
    [ROSE_CALLS_PYTHONIC] = "pythonic",  [ROSE_CALLS_MISTRAL] = "mistral"};

static const char *const reasoning_names[] = {[ROSE_REASONING_NONE] = "none",
                                              [ROSE_REASONING_QWEN3] = "qwen3",
                                              [ROSE_REASONING_DEEPSEEK] = "deepseek_r1",
                                              [ROSE_REASONING_MISTRAL] = "mistral"};

bool rose_calls_format_find(const char *name, rose_calls_format *out)
{
    for (size_t i = 0; i < sizeof format_names / sizeof *format_names; i++) {
        if (strcmp(format_names[i], name) != 0) continue;
        *out = (rose_calls_format)i;
        return true;
    }
    return false;
}

bool rose_reasoning_format_find(const char *name, rose_reasoning_format *out)
{
    for (size_t i = 0; i < sizeof reasoning_names / sizeof *reasoning_names; i++) {
        if (strcmp(reasoning_names[i], name) != 0) continue;
        *out = (rose_reasoning_format)i;
        return true;
    }
    return false;
}

static bool holds(const char *text, size_t len, const char *what)
{
    return len > 0 && memmem(text, len, what, strlen(what)) != NULL;
}

rose_calls_format rose_calls_detect(const char *template, size_t len)
{
    static const struct {
        const char *text;
        rose_calls_format format;
    } signs[] = {{"<function=", ROSE_CALLS_QWEN3_XML},
                 {"<tool_call>", ROSE_CALLS_HERMES},
                 {"[TOOL_CALLS]", ROSE_CALLS_MISTRAL},
                 {"[func_name1(", ROSE_CALLS_PYTHONIC},
                 {"<|python_tag|>", ROSE_CALLS_LLAMA3},
                 {"{\"name\": function name, \"parameters\"", ROSE_CALLS_LLAMA3}};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (holds(template, len, signs[i].text)) return signs[i].format;
    return ROSE_CALLS_NONE;
}

rose_reasoning_format rose_reasoning_detect(const char *template, size_t len)
{
    return holds(template, len, "<think>")   ? ROSE_REASONING_QWEN3
           : holds(template, len, "[THINK]") ? ROSE_REASONING_MISTRAL
                                             : ROSE_REASONING_NONE;
}

const char *rose_reasoning_open(rose_reasoning_format f)
{
    static const char *const marks[] = {"", "<think>", "<think>", "[THINK]"};
    return marks[f];
}

const char *rose_reasoning_close(rose_reasoning_format f)
{
    static const char *const marks[] = {"", "</think>", "</think>", "[/THINK]"};
    return marks[f];
}

static bool ends_with(const char *text, size_t len, const char *what)
{
    const size_t n = strlen(what);
    while (len > 0 && rose_calls_space(text[len - 1]))
        len--;
    return len >= n && memcmp(text + len - n, what, n) == 0;
}

rose_reasoning_place rose_reasoning_find(rose_reasoning_format format, const char *prompt,
                                         size_t len)
{
    if (format == ROSE_REASONING_NONE || ends_with(prompt, len, rose_reasoning_close(format)))
        return ROSE_REASONING_AFTER;
    if (format == ROSE_REASONING_DEEPSEEK || ends_with(prompt, len, rose_reasoning_open(format)))
        return ROSE_REASONING_IN;
    return ROSE_REASONING_BEFORE;
}

void rose_calls_marks(rose_calls_format calls, rose_reasoning_format reasoning,
                      const char *marks[ROSE_CALLS_MARKS])
{
    size_t n = 0;
    if (calls == ROSE_CALLS_HERMES || calls == ROSE_CALLS_QWEN3_XML) {
        marks[n++] = "<tool_call>";
        marks[n++] = "</tool_call>";
    } else if (calls == ROSE_CALLS_LLAMA3) {
        marks[n++] = "<|python_tag|>";
    } else if (calls == ROSE_CALLS_MISTRAL) {
        marks[n++] = "[TOOL_CALLS]";
        marks[n++] = "[ARGS]";
        marks[n++] = "[CALL_ID]";
    }
    if (reasoning != ROSE_REASONING_NONE) {
        marks[n++] = rose_reasoning_open(reasoning);
        marks[n++] = rose_reasoning_close(reasoning);
    }
    marks[n] = NULL;
}

/* ---- parts ---- */

static void flush(rose_calls *p)
{
    if (!p->out_any) return;
    const rose_part part = {p->out_kind, p->out_call, p->out.data, p->out.len};
    p->out_any = false;
    p->o.sink(p->o.arg, &part);
    p->out.len = 0;
}

void rose_calls_emit(rose_calls *p, rose_part_kind kind, const char *bytes, size_t n)
{
    const bool of_call = kind == ROSE_PART_CALL || kind == ROSE_PART_ARGS;
    const uint32_t call = of_call ? p->n_calls - 1 : 0;
    if (n == 0 || (of_call && p->o.one_call && call > 0)) return;
    if (kind == ROSE_PART_CALL || kind != p->out_kind || call != p->out_call) flush(p);
    p->out_any = true;
    p->out_kind = kind;
    p->out_call = call;
    if (rose_buf_add(&p->out, bytes, n) != ROSE_OK) p->oom = true;
}

uint32_t rose_calls_count(const rose_calls *p)
{
    return p->o.one_call && p->n_calls > 1 ? 1 : p->n_calls;
}

/* ---- what is held back ---- */

static void add(rose_calls *p, rose_buf *b, char c)
{
    if (rose_buf_add(b, &c, 1) != ROSE_OK) p->oom = true;
}

void rose_calls_hold(rose_calls *p, char c)
{
    add(p, &p->held, c);
}

static void drop_held(rose_calls *p)
{
    p->held.len = p->mark = 0;
}

/* A text, which may also be held and found to be no call. */
static void put_text(rose_calls *p, const char *bytes, size_t n)
{
    if (n > 0) p->gap = false;
    rose_calls_emit(p, ROSE_PART_TEXT, bytes, n);
}

void rose_calls_give_up(rose_calls *p)
{
    put_text(p, p->held.data, p->held.len);
    drop_held(p);
    p->state = CALLS_TEXT;
}

void rose_calls_fail(rose_calls *p, char c)
{
    rose_calls_give_up(p);
    rose_calls_step(p, c);
}

void rose_calls_say(rose_calls *p)
{
    p->said = true;
    p->n_calls++;
    rose_calls_emit(p, ROSE_PART_CALL, p->name.data, p->name.len);
    drop_held(p);
}

/* Takes the bytes that are held again, as text that may begin a call. */
static void again(rose_calls *p)
{
    rose_buf held = p->held;
    p->held = (rose_buf){0};
    drop_held(p);
    p->state = CALLS_TEXT;
    for (size_t i = 0; i < held.len; i++)
        rose_calls_step(p, held.data[i]);
    rose_buf_free(&held);
}

void rose_calls_done(rose_calls *p)
{
    const bool tagged = p->o.format == ROSE_CALLS_HERMES || p->o.format == ROSE_CALLS_QWEN3_XML;
    drop_held(p);
    p->gap = true;
    p->state = tagged ? CALLS_END : CALLS_TEXT;
}

bool rose_calls_known(const rose_calls *p, const rose_json **schema)
{
    if (schema != NULL) *schema = NULL;
    for (size_t i = 0; i < rose_json_count(p->o.tools); i++) {
        const rose_json *f = rose_json_get(rose_json_at(p->o.tools, i), "function");
        const rose_json *name = rose_json_get(f, "name");
        if (!rose_json_is_string(name) || rose_json_text_len(name) != p->name.len ||
            memcmp(rose_json_text(name), p->name.data, p->name.len) != 0)
            continue;
        if (schema != NULL) *schema = rose_json_get(f, "parameters");
        return true;
    }
    return false;
}

/* ---- text, and marks that begin a call ---- */

int rose_calls_match(const char *mark, const char *text, size_t n)
{
    const size_t len = strlen(mark);
    if (n > len || memcmp(mark, text, n) != 0) return -1;
    return n == len;
}

/* The marks that begin a call; at most two. */
static const char *begin_mark(rose_calls_format f, int i)
{
    static const char *const marks[][2] = {[ROSE_CALLS_HERMES] = {"<tool_call>", NULL},
                                           [ROSE_CALLS_LLAMA3] = {"{", "<|python_tag|>"},
                                           [ROSE_CALLS_QWEN3_XML] = {"<tool_call>", "<function="},
                                           [ROSE_CALLS_PYTHONIC] = {"[", NULL},
                                           [ROSE_CALLS_MISTRAL] = {"[TOOL_CALLS]", NULL},
                                           [ROSE_CALLS_LIST] = {"[", NULL}};
    return f == ROSE_CALLS_NONE ? NULL : marks[f][i];
}

static void begin_call(rose_calls *p, int which)
{
    p->said = p->list = p->named = p->has_args = false;
    switch (p->o.format) {
    case ROSE_CALLS_HERMES:
        rose_calls_json_begin(p, CALLS_OBJECT, true);
        break;
    case ROSE_CALLS_LLAMA3:
        rose_calls_json_begin(p, which == 0 ? CALLS_KEY : CALLS_OBJECT, false);
        break;
    case ROSE_CALLS_QWEN3_XML:
        rose_calls_xml_begin(p, which == 0 ? CALLS_XML_FUNCTION : CALLS_XML_NAME);
        break;
    case ROSE_CALLS_PYTHONIC:
        rose_calls_py_begin(p);
        break;
    case ROSE_CALLS_MISTRAL:
        rose_calls_json_begin(p, CALLS_MISTRAL, true);
        break;
    case ROSE_CALLS_LIST: /* a structured reply may be another list */
        rose_calls_json_begin(p, CALLS_OBJECT, false);
        p->list = true;
        break;
    case ROSE_CALLS_NONE: /* it has no marks */
        break;
    }
}

/* What may stand between calls, and before the first one if there is no text. */
static bool is_gap(const rose_calls *p, char c)
{
    return rose_calls_space(c) ||
           (p->o.format == ROSE_CALLS_LLAMA3 && p->n_calls > 0 && (c == ';' || c == ','));
}

static void text_step(rose_calls *p, char c)
{
    int best = -1, which = 0;
    rose_calls_hold(p, c);
    if (p->oom) return;
    const size_t n = p->held.len - p->mark;
    if (n == 1 && p->gap && is_gap(p, c)) {
        p->mark++;
        return;
    }
    for (int i = 0; i < 2 && begin_mark(p->o.format, i) != NULL; i++) {
        const int m = rose_calls_match(begin_mark(p->o.format, i), p->held.data + p->mark, n);
        if (m > best) {
            best = m;
            which = i;
        }
    }
    if (best == 1) {
        begin_call(p, which);
    } else if (best < 0) { /* the first byte is text; the others may begin another mark */
        char rest[32];
        memcpy(rest, p->held.data + p->mark + 1, n - 1);
        put_text(p, p->held.data, p->mark + 1);
        drop_held(p);
        for (size_t i = 0; i + 1 < n; i++)
            rose_calls_step(p, rest[i]);
    }
}

static void end_step(rose_calls *p, char c)
{
    rose_calls_hold(p, c);
    if (p->oom) return;
    if (p->held.len - p->mark == 1 && rose_calls_space(c)) {
        p->mark++;
        return;
    }
    const int m = rose_calls_match("</tool_call>", p->held.data + p->mark, p->held.len - p->mark);
    if (m < 0) {
        again(p);
    } else if (m == 1) {
        drop_held(p);
        p->state = CALLS_TEXT;
    }
}

void rose_calls_step(rose_calls *p, char c)
{
    if (p->oom) return;
    if (p->state == CALLS_TEXT)
        text_step(p, c);
    else if (p->state == CALLS_END)
        end_step(p, c);
    else if (p->state < CALLS_XML_FUNCTION)
        rose_calls_json_step(p, c);
    else if (p->state < CALLS_PY_CALL)
        rose_calls_xml_step(p, c);
    else
        rose_calls_py_step(p, c);
}

/* ---- reasoning ---- */

typedef enum think_state {
    THINK_START,  /* at the start of the reply: white space, then maybe the mark */
    THINK_OPENED, /* before the first byte of the reasoning */
    THINK_IN,
    THINK_AFTER, /* before the first byte of the text */
    THINK_OFF    /* past, or there is none */
} think_state;

static void put_thought(rose_calls *p)
{
    rose_calls_emit(p, ROSE_PART_REASONING, p->thought.data, p->thought.len);
    p->thought.len = p->think_mark = 0;
}

/* There was no reasoning: what was held back is the beginning of the text. */
static void no_thought(rose_calls *p)
{
    p->think = THINK_OFF;
    for (size_t i = 0; i < p->thought.len; i++)
        rose_calls_step(p, p->thought.data[i]);
    p->thought.len = 0;
}

static void in_step(rose_calls *p, char c)
{
    const bool space = rose_calls_space(c);
    const char *end = rose_reasoning_close(p->o.reasoning);
    if (p->thought.len > p->think_mark && end[p->thought.len - p->think_mark] != c) put_thought(p);
    if (p->thought.len == p->think_mark && !space && c != end[0]) {
        put_thought(p);
        rose_calls_emit(p, ROSE_PART_REASONING, &c, 1);
        return;
    }
    add(p, &p->thought, c);
    if (space) {
        p->think_mark++;
    } else if (end[p->thought.len - p->think_mark] == '\0') {
        p->thought.len = p->think_mark = 0;
        p->think = THINK_AFTER;
    }
}

static void start_step(rose_calls *p, char c)
{
    add(p, &p->thought, c);
    if (p->oom) return;
    if (p->thought.len - p->think_mark == 1 && rose_calls_space(c)) {
        p->think_mark++;
        return;
    }
    const int m = rose_calls_match(rose_reasoning_open(p->o.reasoning),
                                   p->thought.data + p->think_mark, p->thought.len - p->think_mark);
    if (m == 0) return;
    if (m == 1) {
        p->thought.len = p->think_mark = 0;
        p->think = THINK_OPENED;
    } else if (p->think == THINK_START) {
        no_thought(p);
    } else { /* THINK_OPENED: the white space is dropped */
        char rest[16];
        const size_t n = p->thought.len - p->think_mark;
        memcpy(rest, p->thought.data + p->think_mark, n); /* at most one mark */
        p->thought.len = p->think_mark = 0;
        p->think = THINK_IN;
        for (size_t i = 0; i < n; i++)
            in_step(p, rest[i]);
    }
}

static void think_step(rose_calls *p, char c)
{
    switch ((think_state)p->think) {
    case THINK_START:
    case THINK_OPENED:
        start_step(p, c);
        break;
    case THINK_IN:
        in_step(p, c);
        break;
    case THINK_AFTER:
        if (rose_calls_space(c)) break;
        p->think = THINK_OFF;
        rose_calls_step(p, c);
        break;
    case THINK_OFF:
        rose_calls_step(p, c);
    }
}

static void think_finish(rose_calls *p)
{
    if (p->think == THINK_START) {
        no_thought(p);
    } else if (p->thought.len > p->think_mark) {
        if (p->think == THINK_OPENED) { /* without the white space at the start */
            p->thought.len -= p->think_mark;
            memmove(p->thought.data, p->thought.data + p->think_mark, p->thought.len);
        }
        put_thought(p);
    }
}

/* ---- the parser ---- */

rose_status rose_calls_create(rose_calls **out, const rose_calls_opts *o, rose_err *err)
{
    rose_calls *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "tool calls: out of memory");
    p->o = *o;
    rose_json_incref(p->o.tools); /* accepts NULL */
    p->think = o->reasoning == ROSE_REASONING_NONE ? THINK_OFF
               : o->in_reasoning                   ? THINK_OPENED
                                                   : THINK_START;
    p->gap = true;
    *out = p;
    return ROSE_OK;
}

void rose_calls_destroy(rose_calls *p)
{
    if (p == NULL) return;
    rose_json_decref(p->o.tools);
    rose_buf_free(&p->out);
    rose_buf_free(&p->thought);
    rose_buf_free(&p->held);
    rose_buf_free(&p->name);
    rose_buf_free(&p->word);
    free(p);
}

static rose_status end_push(rose_calls *p)
{
    flush(p);
    return p->oom ? ROSE_E_NOMEM : ROSE_OK;
}

rose_status rose_calls_push(rose_calls *p, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        think_step(p, bytes[i]);
    return end_push(p);
}

/* What is held at the end is text, unless it is white space between calls or the beginning of what
 * follows an announced call. */
rose_status rose_calls_finish(rose_calls *p)
{
    think_finish(p);
    const bool in_call = p->state > CALLS_END;
    const bool between = p->state == CALLS_TEXT && p->n_calls > 0 && p->held.len == p->mark;
    if (in_call && p->said && p->state >= CALLS_PY_CALL)
        rose_calls_py_finish(p);
    else if (in_call && p->said && p->state >= CALLS_XML_FUNCTION)
        rose_calls_xml_finish(p);
    else if (p->state != CALLS_END && !between && !(in_call && p->said))
        rose_calls_give_up(p);
    return end_push(p);
}
