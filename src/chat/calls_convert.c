/* chat/calls_convert.c - calls whose arguments become JSON: Qwen3's tags (a parameter's value is
 * its plain text) and Python's literals.
 *
 * A string is passed on as it comes. Other values of the tags wait until they are complete, because
 * only then is it known whether they are what the schema allows. A value that does not fit its
 * schema stays a string. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/chat_internal.h"

static void add_word(rose_calls *p, char c)
{
    if (rose_buf_add(&p->word, &c, 1) != ROSE_OK) p->oom = true;
}

static void put_args(rose_calls *p, const char *text)
{
    rose_calls_emit(p, ROSE_PART_ARGS, text, strlen(text));
}

/* Bytes within a JSON string. */
static void put_escaped(rose_calls *p, const char *bytes, size_t n)
{
    static const char *const named[32] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    char code[8];
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\') rose_calls_emit(p, ROSE_PART_ARGS, "\\", 1);
        if (c >= 32) {
            rose_calls_emit(p, ROSE_PART_ARGS, &bytes[i], 1);
        } else if (named[c] != NULL) {
            put_args(p, named[c]);
        } else {
            snprintf(code, sizeof code, "\\u%04x", c);
            put_args(p, code);
        }
    }
}

static void put_string(rose_calls *p, const char *bytes, size_t n)
{
    put_args(p, "\"");
    put_escaped(p, bytes, n);
    put_args(p, "\"");
}

/* ---- types ---- */

static unsigned type_of_name(const rose_json *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", CALLS_STRING},     {"number", CALLS_NUMBER}, {"integer", CALLS_NUMBER},
                 {"boolean", CALLS_BOOL},      {"null", CALLS_NULL},     {"array", CALLS_ARRAY},
                 {"object", CALLS_OBJECT_TYPE}};
    const char *s = rose_json_text(name);
    for (size_t i = 0; s != NULL && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, s) == 0) return types[i].type;
    return CALLS_ANY;
}

static unsigned type_of_value(const rose_json *v)
{
    return rose_json_is_string(v)    ? CALLS_STRING
           : rose_json_is_number(v)  ? CALLS_NUMBER
           : rose_json_is_boolean(v) ? CALLS_BOOL
           : rose_json_is_null(v)    ? CALLS_NULL
           : rose_json_is_array(v)   ? CALLS_ARRAY
                                     : CALLS_OBJECT_TYPE;
}

/* What "$ref": "#/a/b" names below root; NULL: nothing. */
static const rose_json *referred(const rose_json *root, const char *ref)
{
    char name[128];
    if (ref[0] != '#') return NULL;
    for (ref++; *ref == '/' && root != NULL;) {
        const size_t n = strcspn(++ref, "/");
        if (n >= sizeof name) return NULL;
        memcpy(name, ref, n);
        name[n] = '\0';
        root = rose_json_get(root, name);
        ref += n;
    }
    return *ref == '\0' ? root : NULL;
}

/* A walk through a schema. References can make it endless, so it is bounded. Its steps may nest. */
enum { MAX_STEPS = 256, MAX_ITEMS = 1 << 16 };
typedef struct type_walk {
    const rose_json *root;
    int left;       /* steps */
    int items_left; /* items of lists */
    bool listed;    /* enum or const was seen */
} type_walk;

static unsigned types_of(type_walk *w, const rose_json *schema);

/* The types of any item of a list: a schema, or by one(). */
static unsigned types_of_list(type_walk *w, const rose_json *list,
                              unsigned (*one)(const rose_json *))
{
    unsigned types = 0;
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *v = rose_json_at(list, i);
        if (--w->items_left < 0) return CALLS_ANY;
        types |= one != NULL ? one(v) : types_of(w, v);
    }
    return types != 0 ? types : CALLS_ANY;
}

/* The types that a schema allows, as far as these keywords say; all of them where they do not. */
static unsigned types_of(type_walk *w, const rose_json *schema)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    unsigned types = CALLS_ANY;
    if (--w->left < 0 || !rose_json_is_object(schema)) return types;
    const rose_json *type = rose_json_get(schema, "type"), *list = rose_json_get(schema, "enum");
    const rose_json *value = rose_json_get(schema, "const");
    const char *ref = rose_json_text(rose_json_get(schema, "$ref"));
    if (rose_json_is_string(type)) types &= type_of_name(type);
    if (rose_json_is_array(type)) types &= types_of_list(w, type, type_of_name);
    if (rose_json_is_array(list)) types &= types_of_list(w, list, type_of_value);
    if (value != NULL) types &= type_of_value(value);
    if (value != NULL || rose_json_is_array(list)) w->listed = true;
    if (ref != NULL) types &= types_of(w, referred(w->root, ref));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const rose_json *v = rose_json_get(schema, lists[i]);
        if (rose_json_is_array(v)) types &= types_of_list(w, v, NULL);
    }
    return types != 0 ? types : CALLS_ANY;
}

/* Finds the types of the parameter p->word of the function p->name. A parameter that the request
 * does not describe is a string. */
static void find_types(rose_calls *p)
{
    const rose_json *root = NULL;
    const char *key = rose_buf_str(&p->word);
    p->types = CALLS_STRING;
    p->listed = false;
    if (key == NULL) p->oom = true;
    if (key == NULL || !rose_calls_known(p, &root)) return;
    const rose_json *schema = rose_json_get(rose_json_get(root, "properties"), key);
    type_walk w = {.root = root, .left = MAX_STEPS, .items_left = MAX_ITEMS};
    if (schema != NULL) p->types = types_of(&w, schema);
    p->listed = w.listed;
}

/* Whether the value is passed on as it comes. */
static bool streams(const rose_calls *p)
{
    return p->types == CALLS_STRING && !p->listed;
}

/* ---- Qwen3's tags ---- */

void rose_calls_xml_begin(rose_calls *p, rose_calls_state state)
{
    p->state = state;
    p->name.len = 0;
    p->n_params = 0;
    p->mark = p->held.len;
}

/* Announces the call with the first parameter, or at its end. */
static void say(rose_calls *p)
{
    if (p->said) return;
    rose_calls_say(p);
    put_args(p, "{");
}

/* Drops text that stands in an announced call, but in no parameter. The parts of a call follow each
 * other, so this text can be no part of the reply. */
static void drop_stray(rose_calls *p)
{
    p->held.len = p->mark = 0;
    p->state = CALLS_XML_BODY;
}

/* What is held is no part of the call. */
static void xml_fail(rose_calls *p, char c)
{
    if (!p->said) {
        rose_calls_fail(p, c);
        return;
    }
    drop_stray(p);
    rose_calls_xml_step(p, c);
}

static void xml_function(rose_calls *p, char c)
{
    if (p->held.len == p->mark && rose_calls_space(c)) {
        rose_calls_hold(p, c);
        p->mark++;
        return;
    }
    rose_calls_hold(p, c);
    if (p->oom) return;
    const int m = rose_calls_match("<function=", p->held.data + p->mark, p->held.len - p->mark);
    if (m < 0) {
        p->held.len--;
        rose_calls_fail(p, c);
    } else if (m == 1) {
        p->state = CALLS_XML_NAME;
    }
}

/* Collects a name up to `>`; true: it is complete. */
static bool xml_word(rose_calls *p, rose_buf *name, char c)
{
    if (c == '>' && name->len > 0) {
        rose_calls_hold(p, c);
        return true;
    }
    if (c == '>' || c == '<' || c == '\n' || name->len == CALLS_MAX_NAME) {
        xml_fail(p, c);
        return false;
    }
    rose_calls_hold(p, c);
    if (rose_buf_add(name, &c, 1) != ROSE_OK) p->oom = true;
    return false;
}

static void xml_name(rose_calls *p, char c)
{
    if (!xml_word(p, &p->name, c)) return;
    p->state = CALLS_XML_BODY;
    p->mark = p->held.len;
}

static void xml_body(rose_calls *p, char c)
{
    if (p->held.len == p->mark && rose_calls_space(c)) {
        rose_calls_hold(p, c);
        p->mark++;
        return;
    }
    rose_calls_hold(p, c);
    if (p->oom) return;
    const char *text = p->held.data + p->mark;
    const size_t n = p->held.len - p->mark;
    const int key = rose_calls_match("<parameter=", text, n);
    const int end = rose_calls_match("</function>", text, n);
    if (key == 1) {
        p->state = CALLS_XML_KEY;
        p->word.len = 0;
    } else if (end == 1) {
        say(p);
        put_args(p, "}");
        rose_calls_done(p);
    } else if (key < 0 && end < 0 && (n > 1 || !p->said)) {
        p->held.len--;
        xml_fail(p, c);
    } else if (key < 0 && end < 0) {
        drop_stray(p);
    }
}

static void xml_key(rose_calls *p, char c)
{
    if (!xml_word(p, &p->word, c)) return;
    find_types(p);
    say(p);
    if (p->n_params++ > 0) put_args(p, ", ");
    put_string(p, p->word.data, p->word.len);
    put_args(p, streams(p) ? ": \"" : ": ");
    p->word.len = 0;
    p->begun = false;
    p->held.len = p->mark = 0;
    p->state = CALLS_XML_VALUE;
}

/* A value that may be no string: as JSON if it is JSON of an allowed type, else a string. */
static void put_typed(rose_calls *p, const char *text, size_t n)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *s = text;
    size_t len = n;
    rose_json_error e;
    rose_json *v = NULL;
    while (len > 0 && rose_calls_space(s[len - 1]))
        len--;
    while (len > 0 && rose_calls_space(*s)) {
        s++;
        len--;
    }
    if (p->listed) { /* the text of a listed string has no white space around it */
        text = s;
        n = len;
    }
    for (size_t i = 0; i < 3; i++) {
        if (len != strlen(words[i][0]) || memcmp(s, words[i][0], len) != 0) continue;
        s = words[i][1];
        len = strlen(s);
        break;
    }
    const rose_status st = rose_json_parse(&v, s, len, ROSE_JSON_ANY | ROSE_JSON_NUL, &e);
    if (st == ROSE_E_NOMEM) p->oom = true;
    if (st == ROSE_OK && (type_of_value(v) & p->types) != 0)
        rose_calls_emit(p, ROSE_PART_ARGS, s, len);
    else
        put_string(p, text, n);
    rose_json_decref(v);
}

static void value_bytes(rose_calls *p, const char *bytes, size_t n)
{
    if (streams(p))
        put_escaped(p, bytes, n);
    else if (rose_buf_add(&p->word, bytes, n) != ROSE_OK)
        p->oom = true;
}

/* The held bytes are a newline, or the beginning of the end, but not the end: they are a part of
 * the value. */
static void value_held(rose_calls *p)
{
    value_bytes(p, p->held.data, p->held.len);
    p->held.len = p->mark = 0;
}

/* The value's text stands between newlines, which are not part of it. */
static void xml_value(rose_calls *p, char c)
{
    static const char end[] = "</parameter>";
    const bool first = !p->begun;
    p->begun = true;
    if (first && c == '\n') return;
    if (p->held.len > p->mark && end[p->held.len - p->mark] != c) value_held(p);
    if (c == '\n') {
        if (p->held.len > 0) value_held(p);
        rose_calls_hold(p, c);
        p->mark = 1;
        return;
    }
    if (p->held.len == p->mark && c != end[0]) {
        value_held(p);
        value_bytes(p, &c, 1);
        return;
    }
    rose_calls_hold(p, c);
    if (end[p->held.len - p->mark] != '\0') return;
    if (streams(p))
        put_args(p, "\"");
    else
        put_typed(p, p->word.data, p->word.len);
    p->held.len = p->mark = 0;
    p->state = CALLS_XML_BODY;
}

void rose_calls_xml_step(rose_calls *p, char c)
{
    if (p->state == CALLS_XML_FUNCTION)
        xml_function(p, c);
    else if (p->state == CALLS_XML_NAME)
        xml_name(p, c);
    else if (p->state == CALLS_XML_BODY)
        xml_body(p, c);
    else if (p->state == CALLS_XML_KEY)
        xml_key(p, c);
    else
        xml_value(p, c);
}

/* A reply that ends between parameters has a complete object; one that ends in a value does not. */
void rose_calls_xml_finish(rose_calls *p)
{
    if (p->state == CALLS_XML_BODY && p->held.len == p->mark) put_args(p, "}");
    if (p->state != CALLS_XML_VALUE) return;
    value_held(p);
    if (!streams(p)) rose_calls_emit(p, ROSE_PART_ARGS, p->word.data, p->word.len);
}

/* ---- Python ---- */

void rose_calls_py_begin(rose_calls *p)
{
    p->state = CALLS_PY_CALL;
    p->name.len = p->word.len = 0;
}

static bool in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void py_call(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (!in_name(c)) {
        rose_calls_fail(p, c);
    } else {
        p->state = CALLS_PY_NAME;
        p->name.len = 0;
        rose_calls_py_step(p, c);
    }
}

static void py_name(rose_calls *p, char c)
{
    if ((in_name(c) || c == '.' || c == '-') && p->name.len < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        if (rose_buf_add(&p->name, &c, 1) != ROSE_OK) p->oom = true;
    } else if (c == '(' && rose_calls_known(p, NULL)) {
        rose_calls_hold(p, c);
        p->said = false;
        p->n_params = 0;
        p->word.len = 0;
        p->state = CALLS_PY_ARG;
    } else {
        rose_calls_fail(p, c);
    }
}

/* The call is complete. */
static void py_end(rose_calls *p, char c)
{
    rose_calls_hold(p, c);
    say(p);
    put_args(p, "}");
    p->held.len = p->mark = 0;
    p->state = CALLS_PY_NEXT;
}

static void py_arg(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
    } else if (c == ')') {
        py_end(p, c);
    } else if (in_name(c)) {
        p->state = CALLS_PY_KEY;
        p->word.len = 0;
        rose_calls_py_step(p, c);
    } else {
        rose_calls_fail(p, c);
    }
}

static void py_equals(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
        return;
    }
    if (c != '=') {
        rose_calls_fail(p, c);
        return;
    }
    find_types(p);
    say(p);
    if (p->n_params++ > 0) put_args(p, ", ");
    put_string(p, p->word.data, p->word.len);
    put_args(p, ": ");
    p->depth = 0;
    p->comma = p->dict_key = false;
    p->held.len = p->mark = 0;
    p->state = CALLS_PY_VALUE;
}

static void py_key(rose_calls *p, char c)
{
    if (in_name(c) && p->word.len < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        add_word(p, c);
        return;
    }
    p->state = CALLS_PY_EQUALS;
    py_equals(p, c);
}

static char closing(char open)
{
    return open == '[' ? ']' : open == '(' ? ')' : '}';
}

static void py_close(rose_calls *p)
{
    put_args(p, p->stack[--p->depth] == '{' ? "}" : "]");
    p->state = CALLS_PY_AFTER;
    p->dict_key = p->comma = false;
}

/* A word of Python as JSON; false: it is none that we know. Numbers may have underscores, a sign
 * and a missing digit on one side of the point. */
static bool put_word(rose_calls *p)
{
    static const char *const words[][2] = {{"True", "true"},   {"true", "true"}, {"False", "false"},
                                           {"false", "false"}, {"None", "null"}, {"null", "null"}};
    char s[64];
    size_t n = 0;
    rose_json_error e;
    rose_json *v = NULL;
    const char *word = p->word.data;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (p->word.len != strlen(words[i][0]) || memcmp(word, words[i][0], p->word.len) != 0)
            continue;
        if (p->dict_key)
            put_string(p, words[i][1], strlen(words[i][1]));
        else
            put_args(p, words[i][1]);
        return true;
    }
    if (p->word.len > sizeof s - 4) return false;
    for (size_t i = 0; i < p->word.len; i++) {
        const bool digit_before = n > 0 && s[n - 1] >= '0' && s[n - 1] <= '9';
        const char next = i + 1 < p->word.len ? word[i + 1] : '\0';
        if (word[i] == '_' || (word[i] == '+' && i == 0)) continue;
        if (word[i] == '.' && !digit_before) s[n++] = '0';
        s[n++] = word[i];
        if (word[i] == '.' && !(next >= '0' && next <= '9')) s[n++] = '0';
        if (n > sizeof s - 4) return false;
    }
    const rose_status st = rose_json_parse(&v, s, n, ROSE_JSON_ANY, &e);
    const bool ok = st == ROSE_OK && rose_json_is_number(v);
    if (st == ROSE_E_NOMEM) p->oom = true;
    if (ok && (p->dict_key || (p->depth == 0 && p->types == CALLS_STRING)))
        put_string(p, s, n); /* keys are strings, and so is what its schema says is one */
    else if (ok)
        rose_calls_emit(p, ROSE_PART_ARGS, s, n);
    rose_json_decref(v);
    return ok;
}

/* The first byte of a value, or the bracket that ends an empty list. */
static void py_value(rose_calls *p, char c)
{
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
        return;
    }
    if (p->depth > 0 && c == closing(p->stack[p->depth - 1]) &&
        (p->stack[p->depth - 1] != '{' || p->dict_key)) {
        p->held.len = 0;
        py_close(p);
        return;
    }
    const bool open = c == '[' || c == '(' || c == '{';
    if ((open && (p->dict_key || p->depth == CALLS_PY_DEPTH)) ||
        (!open && c != '"' && c != '\'' && !in_name(c) && strchr("+-.", c) == NULL)) {
        rose_calls_fail(p, c);
        return;
    }
    if (p->comma) put_args(p, ", ");
    p->comma = false;
    p->held.len = 0;
    p->word.len = 0;
    if (open) {
        p->stack[p->depth++] = c;
        p->dict_key = c == '{';
        put_args(p, c == '{' ? "{" : "[");
    } else if (c == '"' || c == '\'') {
        p->quote = c;
        p->state = CALLS_PY_STRING;
        put_args(p, "\"");
    } else {
        p->state = CALLS_PY_WORD;
        rose_calls_py_step(p, c);
    }
}

static void py_word(rose_calls *p, char c)
{
    const bool exponent = p->word.len > 0 && (p->word.data[p->word.len - 1] | 32) == 'e';
    const bool sign = c == '+' || c == '-';
    if (in_name(c) || c == '.' || (sign && (exponent || p->word.len == 0))) {
        rose_calls_hold(p, c);
        add_word(p, c);
        return;
    }
    if (!put_word(p)) {
        rose_calls_fail(p, c);
        return;
    }
    p->held.len = 0;
    p->state = CALLS_PY_AFTER;
    rose_calls_py_step(p, c);
}

static void put_code(rose_calls *p, uint32_t code)
{
    char s[16];
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
    if (code < 0x10000)
        snprintf(s, sizeof s, "\\u%04x", code);
    else
        snprintf(s, sizeof s, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                 0xdc00 + ((code - 0x10000) & 0x3ff));
    put_args(p, s);
}

static void py_string(rose_calls *p, char c)
{
    if (c == '\\') {
        p->state = CALLS_PY_ESCAPE;
    } else if (c == p->quote) {
        put_args(p, "\"");
        p->state = CALLS_PY_AFTER;
    } else {
        put_escaped(p, &c, 1);
    }
}

/* A backslash before another letter is itself, as in Python. */
static void py_escape(rose_calls *p, char c)
{
    static const char letters[] = "abfnrtv0\n\\'\"", values[] = "\a\b\f\n\r\t\v\0\n\\'\"";
    const char *at = c != '\0' ? strchr(letters, c) : NULL;
    p->state = CALLS_PY_STRING;
    if (c == 'x' || c == 'u' || c == 'U') {
        p->digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        p->code = 0;
        p->state = CALLS_PY_CODE;
    } else if (at == NULL) {
        put_escaped(p, "\\", 1);
        put_escaped(p, &c, 1);
    } else if (c != '\n') { /* a backslash joins two lines */
        put_escaped(p, &values[at - letters], 1);
    }
}

static void py_code(rose_calls *p, char c)
{
    const bool letter = (c | 32) >= 'a' && (c | 32) <= 'f', digit = c >= '0' && c <= '9';
    if (!letter && !digit) { /* too few digits: what is there counts */
        put_code(p, p->code);
        p->state = CALLS_PY_STRING;
        py_string(p, c);
        return;
    }
    p->code = p->code * 16 + (uint32_t)(digit ? c - '0' : (c | 32) - 'a' + 10);
    if (--p->digits > 0) return;
    put_code(p, p->code);
    p->state = CALLS_PY_STRING;
}

static void py_after(rose_calls *p, char c)
{
    const char open = p->depth > 0 ? p->stack[p->depth - 1] : '\0';
    if (rose_calls_space(c)) {
        rose_calls_hold(p, c);
        return;
    }
    if (p->depth == 0 && c == ')') {
        p->held.len = 0;
        py_end(p, c);
    } else if (p->depth == 0 && c == ',') {
        rose_calls_hold(p, c);
        p->state = CALLS_PY_ARG;
    } else if (open == '{' && p->dict_key && c == ':') {
        p->held.len = 0;
        put_args(p, ": ");
        p->dict_key = false;
        p->state = CALLS_PY_VALUE;
    } else if (open != '\0' && c == closing(open) && !p->dict_key) {
        p->held.len = 0;
        py_close(p);
    } else if (open != '\0' && c == ',' && !p->dict_key) {
        rose_calls_hold(p, c);
        p->comma = true;
        p->dict_key = open == '{';
        p->state = CALLS_PY_VALUE;
    } else {
        rose_calls_fail(p, c);
    }
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
        [CALLS_PY_STRING] = py_string, [CALLS_PY_ESCAPE] = py_escape, [CALLS_PY_CODE] = py_code,
        [CALLS_PY_WORD] = py_word,     [CALLS_PY_AFTER] = py_after,   [CALLS_PY_NEXT] = py_next,
    };
    steps[p->state](p, c);
}

/* A number at the end of the reply may be incomplete; it is passed on as it is. */
void rose_calls_py_finish(rose_calls *p)
{
    if (p->state == CALLS_PY_WORD) rose_calls_emit(p, ROSE_PART_ARGS, p->word.data, p->word.len);
}
