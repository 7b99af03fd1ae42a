/* chat/calls.c - see calls.h: the formats by name and by template, the parts, and what lies around
 * calls: reasoning, text, and the marks that begin and end a call. The automaton of a call's body
 * is in calls_json.c, calls_convert.c and calls_python.c.
 *
 * Every byte goes through think_step and, after the reasoning, through rose_calls_step. Bytes
 * that could still become a call, or a mark, are kept in `held`. When they turn out to be text,
 * they are given as text and are not searched again, so the cost is linear. */
#include <stdlib.h>
#include <string.h>

#include "chat/chat_internal.h"

/* ---- formats ---- */

enum { MOST_MARKS = 4 }; /* with the NULL at the end */

static const struct {
    const char *name;                /* for options; NULL: no option names it */
    const char *begins[MOST_MARKS];  /* the marks that begin a call */
    const char *special[MOST_MARKS]; /* the marks that may be special tokens */
} formats[] = {
    [ROSE_CALLS_NONE] = {"none", {NULL}, {NULL}},
    [ROSE_CALLS_HERMES] = {"hermes", {"<tool_call>"}, {"<tool_call>", "</tool_call>"}},
    [ROSE_CALLS_LLAMA3] = {"llama3_json", {"{", "[", "<|python_tag|>"}, {"<|python_tag|>"}},
    [ROSE_CALLS_QWEN3_XML] = {"qwen3_xml",
                              {"<tool_call>", "<function="},
                              {"<tool_call>", "</tool_call>"}},
    [ROSE_CALLS_PYTHONIC] = {"pythonic", {"["}, {NULL}},
    [ROSE_CALLS_MISTRAL] = {"mistral", {"[TOOL_CALLS]"}, {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
    [ROSE_CALLS_LIST] = {NULL, {"["}, {NULL}}};

static const struct {
    const char *name, *open, *close;
} reasonings[] = {[ROSE_REASONING_NONE] = {"none", "", ""},
                  [ROSE_REASONING_QWEN3] = {"qwen3", "<think>", "</think>"},
                  [ROSE_REASONING_DEEPSEEK] = {"deepseek_r1", "<think>", "</think>"},
                  [ROSE_REASONING_MISTRAL] = {"mistral", "[THINK]", "[/THINK]"}};

bool rose_calls_format_find(const char *name, rose_calls_format *out)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].name == NULL || strcmp(formats[i].name, name) != 0) continue;
        *out = (rose_calls_format)i;
        return true;
    }
    return false;
}

bool rose_reasoning_format_find(const char *name, rose_reasoning_format *out)
{
    for (size_t i = 0; i < sizeof reasonings / sizeof *reasonings; i++) {
        if (strcmp(reasonings[i].name, name) != 0) continue;
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
    return reasonings[f].open;
}

const char *rose_reasoning_close(rose_reasoning_format f)
{
    return reasonings[f].close;
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
    for (; formats[calls].special[n] != NULL; n++)
        marks[n] = formats[calls].special[n];
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

void rose_calls_add(rose_calls *p, rose_buf *b, char c)
{
    if (rose_buf_add(b, &c, 1) != ROSE_OK) p->oom = true;
}

void rose_calls_hold(rose_calls *p, char c)
{
    rose_calls_add(p, &p->held, c);
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

void rose_calls_take_again(rose_calls *p, size_t from, void (*before)(rose_calls *p))
{
    rose_buf rest = {0};
    if (rose_buf_add(&rest, p->held.data + from, p->held.len - from) != ROSE_OK) p->oom = true;
    p->held.len = from;
    before(p);
    for (size_t i = 0; i < rest.len; i++)
        rose_calls_step(p, rest.data[i]);
    rose_buf_free(&rest);
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

int rose_calls_best(const char *const *marks, const char *text, size_t n, int *which)
{
    int best = -1;
    for (int i = 0; marks[i] != NULL; i++) {
        const int m = rose_calls_match(marks[i], text, n);
        if (m <= best) continue;
        best = m;
        *which = i;
    }
    return best;
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
        p->list = which == 1;
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
    int which = 0;
    rose_calls_hold(p, c);
    if (p->oom) return;
    const size_t n = p->held.len - p->mark;
    if (n == 1 && p->gap && is_gap(p, c)) {
        p->mark++;
        return;
    }
    const int best =
        rose_calls_best(formats[p->o.format].begins, p->held.data + p->mark, n, &which);
    if (best == 1)
        begin_call(p, which);
    else if (best < 0) /* the first byte is text; the others may begin another mark */
        rose_calls_take_again(p, p->mark + 1, rose_calls_give_up);
}

static void to_text(rose_calls *p)
{
    drop_held(p);
    p->state = CALLS_TEXT;
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
    if (p->o.format == ROSE_CALLS_HERMES && p->held.len - p->mark == 1 && (c == '{' || c == '[')) {
        p->held.len--; /* another call in the same tag */
        begin_call(p, 0);
        rose_calls_json_step(p, c);
    } else if (m < 0) {
        rose_calls_take_again(p, 0, to_text);
    } else if (m == 1) {
        to_text(p);
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
    THINK_CALL,  /* in reasoning, after a mark of a call */
    THINK_AFTER, /* before the first byte of the text */
    THINK_OFF    /* past, or there is none */
} think_state;

static void in_step(rose_calls *p, char c);

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

/* The marks of calls that count within reasoning: those that are no single bracket, if the request
 * has tools. */
static const char *const *thought_marks(const rose_calls *p)
{
    const char *const *marks = formats[p->o.format].begins;
    const bool some = p->o.tools != NULL && marks[0] != NULL && marks[0][1] != '\0';
    return some ? marks : formats[ROSE_CALLS_NONE].begins;
}

/* Takes the last byte of the thought back, gives the rest, and takes the byte again. */
static void again_in_thought(rose_calls *p, char c)
{
    p->thought.len--;
    put_thought(p);
    p->think = THINK_IN;
    in_step(p, c);
}

static void in_step(rose_calls *p, char c)
{
    const bool space = rose_calls_space(c), fresh = p->thought.len == p->think_mark;
    rose_calls_add(p, &p->thought, c);
    if (p->oom) return;
    if (fresh && space) {
        p->think_mark++;
        return;
    }
    const char *text = p->thought.data + p->think_mark;
    const size_t n = p->thought.len - p->think_mark;
    int which, best = rose_calls_match(rose_reasoning_close(p->o.reasoning), text, n);
    if (best == 1) {
        p->thought.len = p->think_mark = 0;
        p->think = THINK_AFTER;
        return;
    }
    const int call = rose_calls_best(thought_marks(p), text, n, &which);
    if (call > best) best = call;
    if (best == 1) {
        p->call_at = p->thought.len;
        p->think = THINK_CALL;
    } else if (best < 0 && fresh) {
        put_thought(p);
    } else if (best < 0) {
        again_in_thought(p, c);
    }
}

/* The rest of the thought, without white space at its end. */
static void end_thought(rose_calls *p)
{
    while (p->thought.len > 0 && rose_calls_space(p->thought.data[p->thought.len - 1]))
        p->thought.len--;
    put_thought(p);
}

/* Whether the first byte after a mark shows that no call follows it. */
static bool is_no_call(const rose_calls *p, char c)
{
    if (p->o.format == ROSE_CALLS_HERMES) return c != '{' && c != '[';
    return p->o.format == ROSE_CALLS_QWEN3_XML && p->thought.data[p->call_at - 1] == '>' &&
           c != '<';
}

/* In reasoning that may have turned into a call without its end. Models forget that end, but they
 * also write about calls. The end of the reasoning, or of the reply, decides, so all waits. */
static void call_step(rose_calls *p, char c)
{
    const char *end = rose_reasoning_close(p->o.reasoning);
    const size_t n = strlen(end);
    rose_calls_add(p, &p->thought, c);
    if (p->oom) return;
    if (p->thought.len == p->call_at + 1 && rose_calls_space(c)) {
        p->call_at++;
    } else if (p->thought.len == p->call_at + 1 && is_no_call(p, c)) {
        again_in_thought(p, c);
    } else if (p->thought.len >= n && memcmp(p->thought.data + p->thought.len - n, end, n) == 0) {
        p->thought.len -= n;
        end_thought(p);
        p->think = THINK_AFTER;
    }
}

typedef struct trial {
    bool call, text;
} trial;

static void note_trial(void *arg, const rose_part *part)
{
    trial *t = arg;
    if (part->kind == ROSE_PART_TEXT) t->text = true;
    if (part->kind == ROSE_PART_CALL) t->call = true;
}

/* Whether the text consists of calls, of which the last one may be cut. */
static bool is_calls(rose_calls *p, const char *text, size_t n)
{
    trial t = {0};
    rose_calls *inner = NULL;
    rose_calls_opts o = p->o;
    o.reasoning = ROSE_REASONING_NONE;
    o.sink = note_trial;
    o.arg = &t;
    if (rose_calls_create(&inner, &o, NULL) != ROSE_OK ||
        rose_calls_push(inner, text, n) != ROSE_OK || rose_calls_finish(inner, p->cut) != ROSE_OK)
        p->oom = true;
    rose_calls_destroy(inner);
    return t.call && !t.text;
}

/* The next mark of a call in the thought, from `from` on; the thought's length: there is none. */
static size_t next_mark(const rose_calls *p, size_t from)
{
    size_t best = p->thought.len;
    for (const char *const *mark = thought_marks(p); *mark != NULL; mark++) {
        const char *at =
            memmem(p->thought.data + from, p->thought.len - from, *mark, strlen(*mark));
        if (at != NULL && (size_t)(at - p->thought.data) < best)
            best = (size_t)(at - p->thought.data);
    }
    return best;
}

/* The reply has ended within reasoning, with marks of calls in it. If it ends with calls, they are
 * calls, and the reasoning ends before the first of them. Only the last marks are tried, so the
 * cost is linear. */
static void call_finish(rose_calls *p)
{
    enum { TRIES = 8 };
    size_t marks[TRIES], n = 0;
    for (size_t at = next_mark(p, 0); at < p->thought.len; at = next_mark(p, at + 1))
        marks[n++ % TRIES] = at;
    p->think = THINK_OFF;
    for (size_t i = n > TRIES ? n - TRIES : 0; i < n; i++) {
        const size_t at = marks[i % TRIES];
        if (!is_calls(p, p->thought.data + at, p->thought.len - at)) continue;
        rose_buf thought = p->thought;
        p->thought = (rose_buf){0};
        if (rose_buf_add(&p->thought, thought.data, at) != ROSE_OK) p->oom = true;
        end_thought(p);
        for (size_t k = at; k < thought.len; k++)
            rose_calls_step(p, thought.data[k]);
        rose_buf_free(&thought);
        return;
    }
    end_thought(p);
}

static void start_step(rose_calls *p, char c)
{
    rose_calls_add(p, &p->thought, c);
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
    case THINK_CALL:
        call_step(p, c);
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
    } else if (p->think == THINK_CALL) {
        call_finish(p);
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
    rose_buf_free(&p->param);
    rose_buf_free(&p->json);
    free(p);
}

bool rose_calls_reasons(const rose_calls *p)
{
    return p->think == THINK_OPENED || p->think == THINK_IN;
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
rose_status rose_calls_finish(rose_calls *p, bool cut)
{
    p->cut = cut;
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
