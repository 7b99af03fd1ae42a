/* chat/calls_json.c - calls written as JSON: an object with a name and arguments (hermes, llama3,
 * mistral), a list of such objects, or a name before the arguments (mistral). The object may also
 * hold them as OpenAI's API does: {"type": "function", "function": {...}}.
 *
 * The object around the arguments is checked as it comes, in any order of its members. The value of
 * the arguments is passed on byte by byte. The parser follows only its strings and
 * brackets, in order to find its end. Arguments that come before the name, or are JSON in a string,
 * wait until they are complete. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/chat_internal.h"

void rose_calls_json_begin(rose_calls *p, rose_calls_state state, bool marked)
{
    p->state = state;
    p->marked = marked;
    p->said = p->named = p->has_args = p->args_string = p->nested = false;
    p->args_at = p->args_len = 0;
    p->name.len = 0;
}

/* ---- values ---- */

static void scan_begin(rose_calls_scan *s, char c)
{
    *s = (rose_calls_scan){.depth = c == '{' || c == '[', .string = c == '"'};
    s->scalar = !s->string && s->depth == 0;
}

/* Takes a byte after the first one. True: the value ends with c, or before c if it is a scalar. */
static bool scan_step(rose_calls_scan *s, char c)
{
    if (s->scalar) return c == ',' || c == '}' || c == ']' || rose_calls_space(c);
    if (s->string) {
        if (s->escape)
            s->escape = false;
        else if (c == '\\')
            s->escape = true;
        else if (c == '"')
            s->string = false;
        return !s->string && s->depth == 0;
    }
    if (c == '"') s->string = true;
    if (c == '{' || c == '[') s->depth++;
    return (c == '}' || c == ']') && --s->depth == 0;
}

/* Appends the text of a JSON string, which is given with its quotes; false: it is no string. */
static bool unquote(rose_calls *p, rose_buf *out, const char *text, size_t n)
{
    rose_json_error e;
    rose_json *v = NULL;
    const rose_status st = rose_json_parse(&v, text, n, ROSE_JSON_ANY | ROSE_JSON_NUL, &e);
    const bool ok = st == ROSE_OK && rose_json_is_string(v);
    if (st == ROSE_E_NOMEM ||
        (ok && rose_buf_add(out, rose_json_text(v), rose_json_text_len(v)) != ROSE_OK))
        p->oom = true;
    rose_json_decref(v);
    return ok;
}

/* ---- the object of a call ---- */

/* Announces a call whose arguments, if there are any, are complete and held. */
static void say_whole(rose_calls *p)
{
    rose_buf args = {0};
    const char *at = p->held.data + p->args_at;
    const bool decoded = p->args_string && unquote(p, &args, at, p->args_len);
    if (!decoded && p->args_len > 0 && rose_buf_add(&args, at, p->args_len) != ROSE_OK)
        p->oom = true;
    rose_calls_say(p);
    if (args.len > 0)
        rose_calls_emit(p, ROSE_PART_ARGS, args.data, args.len);
    else
        rose_calls_emit(p, ROSE_PART_ARGS, "{}", 2);
    rose_buf_free(&args);
}

static void end_object(rose_calls *p)
{
    if (p->nested) { /* the object around it follows */
        p->nested = false;
        p->state = CALLS_NEXT;
        return;
    }
    const bool sound = p->named && (p->has_args || p->marked);
    if (!p->said && !sound) {
        rose_calls_give_up(p);
        return;
    }
    if (!p->said) say_whole(p);
    if (p->list) {
        p->held.len = p->mark = 0;
        p->state = CALLS_LIST_NEXT;
    } else {
        rose_calls_done(p);
    }
}

static bool key_is(const rose_calls *p, const char *name)
{
    return p->key_len == strlen(name) && memcmp(p->key, name, p->key_len) == 0;
}

static bool key_is_args(const rose_calls *p)
{
    return key_is(p, "arguments") || key_is(p, "parameters");
}

/* An object without a mark is no call if it has a member that calls do not have. */
static void end_key(rose_calls *p)
{
    p->state = CALLS_COLON;
    if (!p->marked && !key_is_args(p) && !key_is(p, "name") && !key_is(p, "type") &&
        !key_is(p, "id") && !key_is(p, "function"))
        rose_calls_give_up(p);
}

static void in_key(rose_calls *p, char c)
{
    rose_calls_hold(p, c);
    if (!p->scan.escape && c == '"') {
        end_key(p);
        return;
    }
    p->scan.escape = !p->scan.escape && c == '\\';
    if (p->key_len < sizeof p->key) p->key[p->key_len] = c;
    p->key_len++;
}

/* The first byte of the arguments. */
static void begin_args(rose_calls *p, char c)
{
    p->has_args = true;
    p->state = CALLS_ARGS;
    if (c == 'n') { /* null: no arguments */
        p->state = CALLS_SKIP;
    } else if (c == '"') {
        p->args_string = true;
    } else if (c != '{') {
        rose_calls_fail(p, c);
        return;
    } else if (p->named) {
        rose_calls_say(p);
        rose_calls_emit(p, ROSE_PART_ARGS, &c, 1);
        return;
    }
    p->args_at = p->held.len;
    rose_calls_hold(p, c);
}

static void begin_value(rose_calls *p, char c)
{
    scan_begin(&p->scan, c);
    if (!p->has_args && key_is_args(p)) {
        begin_args(p, c);
        return;
    }
    if (!p->named && !p->nested && c == '{' && key_is(p, "function")) {
        p->nested = true;
        p->state = CALLS_KEY;
        rose_calls_hold(p, c);
        return;
    }
    p->state = CALLS_SKIP;
    if (!p->named && key_is(p, "name")) {
        p->state = CALLS_NAME;
        p->name.len = 0;
        if (c != '"') {
            rose_calls_fail(p, c);
            return;
        }
        rose_calls_add(p, &p->name, c);
    }
    rose_calls_hold(p, c);
}

/* The name is complete, with its quotes. */
static void end_name(rose_calls *p)
{
    rose_buf name = {0};
    p->named = unquote(p, &name, p->name.data, p->name.len) && name.len > 0;
    rose_buf_free(&p->name);
    p->name = name;
    p->state = CALLS_NEXT;
    if (!p->named || (!p->marked && !rose_calls_known(p, NULL)))
        rose_calls_give_up(p);
    else if (p->args_len > 0)
        say_whole(p);
}

static void in_name(rose_calls *p, char c)
{
    const bool end = scan_step(&p->scan, c);
    rose_calls_hold(p, c);
    rose_calls_add(p, &p->name, c);
    if (end) end_name(p);
}

static void in_args(rose_calls *p, char c)
{
    const bool end = scan_step(&p->scan, c);
    if (p->said)
        rose_calls_emit(p, ROSE_PART_ARGS, &c, 1);
    else
        rose_calls_hold(p, c);
    if (!end) return;
    p->state = CALLS_NEXT;
    if (p->said) return;
    p->args_len = p->held.len - p->args_at;
    if (p->named) say_whole(p);
}

static void in_skip(rose_calls *p, char c)
{
    const bool scalar = p->scan.scalar;
    if (!scan_step(&p->scan, c)) {
        rose_calls_hold(p, c);
        return;
    }
    p->state = CALLS_NEXT;
    if (scalar)
        rose_calls_json_step(p, c);
    else
        rose_calls_hold(p, c);
}

/* ---- a Python dict in place of the object: {'name': 'f', 'arguments': {'x': True}} ---- */

/* Whether c, the first quote of a key, stands in a dict. Only a mark makes it a call's. */
static bool begins_dict(const rose_calls *p, char c)
{
    size_t n = p->held.len;
    while (n > 0 && rose_calls_space(p->held.data[n - 1]))
        n--;
    return c == '\'' && p->state == CALLS_KEY && p->marked && !p->said && !p->nested && n > 0 &&
           p->held.data[n - 1] == '{';
}

static void begin_dict(rose_calls *p, char c)
{
    p->args_at = p->held.len;
    while (p->held.data[p->args_at - 1] != '{')
        p->args_at--;
    p->args_at--;
    p->depth = 1;
    p->in_str = true;
    rose_python_string_begin(&p->str, c, false);
    rose_calls_hold(p, c);
    p->state = CALLS_DICT;
}

/* Whether the JSON text is a call. */
static bool is_call(rose_calls *p, const rose_buf *json)
{
    rose_json *v = NULL;
    const rose_status st = rose_json_parse(&v, json->data, json->len, ROSE_JSON_NUL, NULL);
    const rose_json *f = rose_json_get(v, "function");
    const bool ok = rose_json_is_string(rose_json_get(rose_json_is_object(f) ? f : v, "name"));
    if (st == ROSE_E_NOMEM) p->oom = true;
    rose_json_decref(v);
    return ok;
}

/* The dict is complete: its JSON form is taken in its place. */
static void end_dict(rose_calls *p)
{
    rose_buf json = {0};
    unsigned type;
    const size_t n = p->held.len - p->args_at;
    if (!rose_python_value(&json, p->held.data + p->args_at, n, &type, &p->oom) ||
        !is_call(p, &json)) {
        rose_calls_give_up(p);
    } else {
        p->held.len = p->args_at;
        p->args_at = 0;
        p->state = CALLS_OBJECT;
        for (size_t i = 0; i < json.len; i++)
            rose_calls_step(p, json.data[i]);
    }
    rose_buf_free(&json);
}

static void in_dict(rose_calls *p, char c)
{
    if (p->in_str) {
        const rose_python_took took = rose_python_string_step(&p->str, NULL, c);
        p->in_str = took == PYTHON_MORE;
        if (took != PYTHON_BEFORE) {
            rose_calls_hold(p, c);
            return;
        }
    }
    if (c == '\'' || c == '"') {
        p->in_str = true;
        rose_python_string_begin(&p->str, c, false);
    }
    if (c == '{' || c == '[' || c == '(') p->depth++;
    if (c == '}' || c == ']' || c == ')') p->depth--;
    rose_calls_hold(p, c);
    if (p->depth == 0) end_dict(p);
}

/* In the object, outside its keys and values: c is punctuation. */
static void between(rose_calls *p, char c)
{
    static const struct {
        rose_calls_state state;
        char c;
        rose_calls_state next;
    } steps[] = {{CALLS_OBJECT, '{', CALLS_KEY},
                 {CALLS_KEY, '"', CALLS_IN_KEY},
                 {CALLS_COLON, ':', CALLS_VALUE},
                 {CALLS_NEXT, ',', CALLS_KEY},
                 {CALLS_LIST_NEXT, ',', CALLS_OBJECT}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (steps[i].state != p->state || steps[i].c != c) continue;
        if (p->state == CALLS_LIST_NEXT) rose_calls_json_begin(p, CALLS_OBJECT, p->marked);
        p->state = steps[i].next;
        if (p->state == CALLS_IN_KEY) p->key_len = 0;
        p->scan.escape = false;
        rose_calls_hold(p, c);
        return;
    }
    if (p->state == CALLS_VALUE) {
        begin_value(p, c);
    } else if (begins_dict(p, c)) {
        begin_dict(p, c);
    } else if (c == '}' && (p->state == CALLS_KEY || p->state == CALLS_NEXT)) {
        rose_calls_hold(p, c);
        end_object(p);
    } else if (c == '[' && p->state == CALLS_OBJECT && !p->list) {
        p->list = true;
        rose_calls_hold(p, c);
    } else if (c == ']' && p->state == CALLS_LIST_NEXT) {
        rose_calls_done(p);
    } else {
        rose_calls_fail(p, c);
    }
}

/* ---- a name before the arguments ---- */

static bool in_word(char c)
{
    return rose_calls_name_char(c) || c == '-' || c == '.';
}

/* After [TOOL_CALLS]. */
static void mistral_step(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (c == '[' || c == '{') {
        p->state = CALLS_OBJECT;
        rose_calls_json_step(p, c);
    } else if (in_word(c)) {
        p->state = CALLS_MISTRAL_NAME;
        rose_calls_json_step(p, c);
    } else {
        rose_calls_fail(p, c);
    }
}

static void mistral_name(rose_calls *p, char c)
{
    if (in_word(c) && p->name.len < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        rose_calls_add(p, &p->name, c);
        return;
    }
    p->word.len = 0;
    p->state = c == '[' ? CALLS_MISTRAL_MARK : CALLS_MISTRAL_ARGS;
    rose_calls_json_step(p, c);
}

static void mistral_mark(rose_calls *p, char c)
{
    rose_calls_add(p, &p->word, c);
    if (p->oom) return;
    const int args = rose_calls_match("[ARGS]", p->word.data, p->word.len);
    const int id = rose_calls_match("[CALL_ID]", p->word.data, p->word.len);
    if (args < 0 && id < 0) {
        rose_calls_fail(p, c);
        return;
    }
    rose_calls_hold(p, c);
    if (args == 1 || id == 1) p->word.len = 0;
    if (args == 1) p->state = CALLS_MISTRAL_ARGS;
    if (id == 1) p->state = CALLS_MISTRAL_ID;
}

static void mistral_id(rose_calls *p, char c)
{
    if (in_word(c) || rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else {
        p->state = c == '[' ? CALLS_MISTRAL_MARK : CALLS_MISTRAL_ARGS;
        rose_calls_json_step(p, c);
    }
}

static void mistral_args(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (c == '{') {
        scan_begin(&p->scan, c);
        p->state = CALLS_BARE_ARGS;
        rose_calls_say(p);
        rose_calls_emit(p, ROSE_PART_ARGS, &c, 1);
    } else {
        rose_calls_fail(p, c);
    }
}

static void bare_args(rose_calls *p, char c)
{
    rose_calls_emit(p, ROSE_PART_ARGS, &c, 1);
    if (scan_step(&p->scan, c)) rose_calls_done(p);
}

void rose_calls_json_step(rose_calls *p, char c)
{
    static void (*const steps[])(rose_calls *, char) = {
        [CALLS_IN_KEY] = in_key,
        [CALLS_SKIP] = in_skip,
        [CALLS_NAME] = in_name,
        [CALLS_ARGS] = in_args,
        [CALLS_DICT] = in_dict,
        [CALLS_MISTRAL] = mistral_step,
        [CALLS_MISTRAL_NAME] = mistral_name,
        [CALLS_MISTRAL_MARK] = mistral_mark,
        [CALLS_MISTRAL_ID] = mistral_id,
        [CALLS_MISTRAL_ARGS] = mistral_args,
        [CALLS_BARE_ARGS] = bare_args,
    };
    if (steps[p->state] != NULL)
        steps[p->state](p, c);
    else if (rose_calls_space(c))
        rose_calls_hold(p, c);
    else
        between(p, c);
}
