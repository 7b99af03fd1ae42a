/* chat/calls_python.c - calls written as Python: [f(a=1, s='x')]. A string is passed on as it
 * comes. Any other value waits until it is complete, and then becomes JSON (python.c). A value that
 * is no literal becomes a string of its text. */
#include <string.h>

#include "chat/chat_internal.h"

void rose_calls_py_begin(rose_calls *p)
{
    p->state = CALLS_PY_CALL;
    p->name.len = p->word.len = 0;
}

static void py_call(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (!rose_calls_name_char(c)) {
        rose_calls_fail(p, c);
    } else {
        p->state = CALLS_PY_NAME;
        p->name.len = 0;
        rose_calls_py_step(p, c);
    }
}

static void py_name(rose_calls *p, char c)
{
    if ((rose_calls_name_char(c) || c == '.' || c == '-') && p->name.len < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        rose_calls_add(p, &p->name, c);
    } else if (c == '(' && rose_calls_known(p, NULL)) {
        rose_calls_hold(p, c);
        p->said = false;
        p->n_params = 0;
        p->state = CALLS_PY_ARG;
    } else {
        rose_calls_fail(p, c);
    }
}

/* The call is complete. */
static void py_end(rose_calls *p)
{
    rose_calls_say_call(p);
    rose_calls_put(p, "}");
    p->held.len = p->mark = 0;
    p->state = CALLS_PY_NEXT;
}

static void py_arg(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (c == ')') {
        py_end(p);
    } else if (rose_calls_name_char(c)) {
        p->state = CALLS_PY_KEY;
        p->param.len = 0;
        rose_calls_py_step(p, c);
    } else {
        rose_calls_fail(p, c);
    }
}

static void py_equals(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (c != '=') {
        rose_calls_fail(p, c);
    } else {
        rose_calls_say_param(p);
        p->depth = 0;
        p->in_str = p->open_str = false;
        p->state = CALLS_PY_VALUE;
    }
}

static void py_key(rose_calls *p, char c)
{
    if (rose_calls_name_char(c) && p->param.len < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        rose_calls_add(p, &p->param, c);
        return;
    }
    p->state = CALLS_PY_EQUALS;
    py_equals(p, c);
}

/* The bytes of p->word without white space around them. */
static const char *trimmed(const rose_calls *p, size_t *n)
{
    *n = p->word.len;
    return rose_calls_trimmed(p->word.data, n);
}

/* The value is complete: p->word has its text, or what follows a string that was passed on. */
static void put_value(rose_calls *p)
{
    unsigned type = 0;
    size_t n;
    const char *s = trimmed(p, &n);
    p->json.len = 0;
    if (p->open_str) {
        if (n > 0) { /* the string is a part of something that is no literal */
            rose_python_escape(&p->json, &p->str.quote, 1, &p->oom);
            rose_python_escape(&p->json, p->word.data, p->word.len, &p->oom);
            rose_calls_emit(p, ROSE_PART_ARGS, p->json.data, p->json.len);
        }
        rose_calls_put(p, "\"");
    } else if (!rose_python_value(&p->json, s, n, &type, &p->oom)) {
        rose_calls_put_string(p, s, n);
    } else {
        const bool text = type == CALLS_NUMBER && p->types == CALLS_STRING;
        if (text) rose_calls_put(p, "\""); /* a number where the schema has strings */
        rose_calls_emit(p, ROSE_PART_ARGS, p->json.data, p->json.len);
        if (text) rose_calls_put(p, "\"");
    }
    p->word.len = 0;
}

/* A quote: the string is passed on if it is the value, or the next of the strings that are. */
static void py_quote(rose_calls *p, char c)
{
    size_t n;
    bool raw;
    const char *s = trimmed(p, &n);
    const bool prefix = rose_python_prefix(s, n, &raw);
    if (p->depth > 0 || !prefix) {
        rose_python_string_begin(&p->str, c, false);
        p->in_str = true;
        rose_calls_add(p, &p->word, c);
        return;
    }
    if (!p->open_str) rose_calls_put(p, "\"");
    p->open_str = true;
    p->word.len = 0;
    rose_python_string_begin(&p->str, c, raw);
    p->state = CALLS_PY_STRING;
}

static void py_value(rose_calls *p, char c)
{
    if (p->in_str) {
        const rose_python_took took = rose_python_string_step(&p->str, NULL, c);
        p->in_str = took == PYTHON_MORE;
        if (took != PYTHON_BEFORE) rose_calls_add(p, &p->word, c);
        if (took != PYTHON_BEFORE) return;
    }
    const bool end = p->depth == 0 && (c == ',' || c == ')' || c == ']');
    if (end) {
        put_value(p);
        p->state = CALLS_PY_ARG;
        if (c != ',') py_end(p);
        if (c == ']') rose_calls_done(p); /* without the parenthesis before it */
    } else if (c == '"' || c == '\'') {
        py_quote(p, c);
    } else {
        if (c == '[' || c == '(' || c == '{') p->depth++;
        if ((c == ']' || c == ')' || c == '}') && p->depth > 0) p->depth--;
        rose_calls_add(p, &p->word, c);
    }
}

static void py_string(rose_calls *p, char c)
{
    p->json.len = 0;
    const rose_python_took took = rose_python_string_step(&p->str, &p->json, c);
    if (p->str.oom) p->oom = true;
    rose_calls_emit(p, ROSE_PART_ARGS, p->json.data, p->json.len);
    if (took != PYTHON_MORE) p->state = CALLS_PY_VALUE;
    if (took == PYTHON_BEFORE) py_value(p, c);
}

static void py_next(rose_calls *p, char c)
{
    if (c == ']') {
        rose_calls_done(p);
    } else if (rose_calls_space(c) || c == ',') {
        rose_calls_hold(p, c);
        if (c == ',') p->state = CALLS_PY_CALL;
    } else {
        rose_calls_fail(p, c);
    }
}

void rose_calls_py_step(rose_calls *p, char c)
{
    static void (*const steps[])(rose_calls *, char) = {
        [CALLS_PY_CALL] = py_call,     [CALLS_PY_NAME] = py_name,     [CALLS_PY_ARG] = py_arg,
        [CALLS_PY_KEY] = py_key,       [CALLS_PY_EQUALS] = py_equals, [CALLS_PY_VALUE] = py_value,
        [CALLS_PY_STRING] = py_string, [CALLS_PY_NEXT] = py_next,
    };
    steps[p->state](p, c);
}

/* A value at the end of the reply may be incomplete; it is passed on as it is. The quotes of a
 * string that the model has ended are. */
void rose_calls_py_finish(rose_calls *p)
{
    size_t n;
    if (p->state != CALLS_PY_VALUE) return;
    (void)trimmed(p, &n);
    if (p->open_str && n == 0)
        rose_calls_put(p, "\"");
    else
        rose_calls_emit(p, ROSE_PART_ARGS, p->word.data, p->word.len);
}
