/* chat/calls_convert.c - calls whose arguments become JSON: the types of parameters, and Qwen3's
 * tags, in which a parameter's value is its plain text.
 *
 * A string is passed on as it comes. Other values wait until they are complete, because only then
 * is it known whether they are what the schema allows. A value that does not fit its schema stays a
 * string. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/chat_internal.h"

void rose_calls_put(rose_calls *p, const char *text)
{
    rose_calls_emit(p, ROSE_PART_ARGS, text, strlen(text));
}

/* Bytes within a JSON string. */
static void put_escaped(rose_calls *p, const char *bytes, size_t n)
{
    p->json.len = 0;
    rose_python_escape(&p->json, bytes, n, &p->oom);
    rose_calls_emit(p, ROSE_PART_ARGS, p->json.data, p->json.len);
}

void rose_calls_put_string(rose_calls *p, const char *bytes, size_t n)
{
    rose_calls_put(p, "\"");
    put_escaped(p, bytes, n);
    rose_calls_put(p, "\"");
}

/* ---- types ---- */

/* A walk through a schema. References can make it endless, so it is bounded. Its steps may nest. */
enum { MAX_STEPS = 256, MAX_ITEMS = 1 << 16 };
typedef struct type_walk {
    const rose_json *root;
    const rose_json *value; /* looked for in enum and const; NULL: none */
    int left;               /* steps */
    int items_left;         /* items of lists */
    bool listed;            /* enum or const was seen */
    bool found;             /* one of them lists the value */
} type_walk;

static unsigned type_of_name(type_walk *w, const rose_json *name)
{
    (void)w;
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

/* In JSON schemas 1.0 is 1. */
static bool same(const rose_json *a, const rose_json *b)
{
    if (!rose_json_is_number(a) || !rose_json_is_number(b)) return rose_json_equal(a, b);
    const double x = rose_json_number_value(a), y = rose_json_number_value(b);
    return !(x < y) && !(x > y);
}

/* The type of a value of enum or const. */
static unsigned type_of_listed(type_walk *w, const rose_json *v)
{
    w->listed = true;
    w->found = w->found || (w->value != NULL && same(v, w->value));
    return type_of_value(v);
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

/* The types of any item of a list, each by one(). */
static unsigned types_of_list(type_walk *w, const rose_json *list,
                              unsigned (*one)(type_walk *, const rose_json *))
{
    unsigned types = 0;
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *v = rose_json_at(list, i);
        if (--w->items_left < 0) return CALLS_ANY;
        types |= one(w, v);
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
    if (rose_json_is_string(type)) types &= type_of_name(w, type);
    if (rose_json_is_array(type)) types &= types_of_list(w, type, type_of_name);
    if (rose_json_is_array(list)) types &= types_of_list(w, list, type_of_listed);
    if (value != NULL) types &= type_of_listed(w, value);
    if (rose_json_is_array(list)) w->listed = true;
    if (ref != NULL) types &= types_of(w, referred(w->root, ref));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const rose_json *v = rose_json_get(schema, lists[i]);
        if (rose_json_is_array(v)) types &= types_of_list(w, v, types_of);
    }
    return types != 0 ? types : CALLS_ANY;
}

/* Whether an enum or const of the schema lists the value. */
static bool lists(type_walk *w, const rose_json *schema, const rose_json *value)
{
    w->value = value;
    w->found = false;
    types_of(w, schema);
    return w->found;
}

/* The schema of the parameter p->param of the function p->name, or NULL; *w can walk through it. */
static const rose_json *param_schema(rose_calls *p, type_walk *w)
{
    const rose_json *root = NULL;
    const char *key = rose_buf_str(&p->param);
    if (key == NULL) p->oom = true;
    if (key == NULL || !rose_calls_known(p, &root)) return NULL;
    *w = (type_walk){.root = root, .left = MAX_STEPS, .items_left = MAX_ITEMS};
    return rose_json_get(rose_json_get(root, "properties"), key);
}

/* Finds the types of the parameter `param` of the function `name`. A parameter that the request
 * does not describe is a string. */
static void find_types(rose_calls *p)
{
    type_walk w = {0};
    const rose_json *schema = param_schema(p, &w);
    p->types = schema != NULL ? types_of(&w, schema) : CALLS_STRING;
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

void rose_calls_say_call(rose_calls *p)
{
    if (p->said) return;
    rose_calls_say(p);
    rose_calls_put(p, "{");
}

void rose_calls_say_param(rose_calls *p)
{
    find_types(p);
    rose_calls_say_call(p);
    if (p->n_params++ > 0) rose_calls_put(p, ", ");
    rose_calls_put_string(p, p->param.data, p->param.len);
    rose_calls_put(p, ": ");
    p->word.len = 0;
    p->held.len = p->mark = 0;
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
    rose_calls_add(p, name, c);
    return false;
}

static void xml_name(rose_calls *p, char c)
{
    if (!xml_word(p, &p->name, c)) return;
    p->state = CALLS_XML_BODY;
    p->mark = p->held.len;
}

/* The call is complete. */
static void xml_end(rose_calls *p)
{
    rose_calls_say_call(p);
    rose_calls_put(p, "}");
    rose_calls_done(p);
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
        p->param.len = 0;
    } else if (end == 1) {
        xml_end(p);
    } else if (key < 0 && end < 0 && (n > 1 || !p->said)) {
        p->held.len--;
        xml_fail(p, c);
    } else if (key < 0 && end < 0) {
        drop_stray(p);
    }
}

/* The name of the parameter is in p->param. */
static void begin_value(rose_calls *p)
{
    rose_calls_say_param(p);
    if (streams(p)) rose_calls_put(p, "\"");
    p->begun = false;
    p->state = CALLS_XML_VALUE;
}

static void xml_key(rose_calls *p, char c)
{
    if (xml_word(p, &p->param, c)) begin_value(p);
}

/* Whether the text stands for this value: the schema allows its type, and does not list the text
 * itself. */
static bool stands_for(rose_calls *p, const rose_json *v, const char *text, size_t n)
{
    type_walk w = {0};
    const rose_json *schema = p->listed ? param_schema(p, &w) : NULL;
    if (schema == NULL || lists(&w, schema, v)) return (type_of_value(v) & p->types) != 0;
    rose_json *string = rose_json_stringn(text, n);
    const bool listed = string != NULL && lists(&w, schema, string);
    rose_json_decref(string); /* NULL: it is not UTF-8, or no memory, which the parts will show */
    return !listed && (type_of_value(v) & p->types) != 0;
}

/* Writes the text as the JSON value that it is, or as the value of a literal of Python, if the
 * schema allows that value. A string is written without quotes between tags, so a literal that may
 * be a string as it stands is one. */
static bool put_value(rose_calls *p, const char *text, size_t len)
{
    const char *s = text;
    size_t n = len;
    rose_json_error e;
    rose_json *v = NULL;
    unsigned type = 0;
    rose_status st = rose_json_parse(&v, s, n, ROSE_JSON_ANY | ROSE_JSON_NUL, &e);
    p->json.len = 0;
    if (st == ROSE_E_FORMAT && rose_python_value(&p->json, s, n, &type, &p->oom)) {
        const bool plain = type == CALLS_STRING || type == CALLS_NUMBER;
        if ((p->types & type) == 0 || (plain && (p->types & CALLS_STRING) != 0)) return false;
        if (!p->listed) {
            rose_calls_emit(p, ROSE_PART_ARGS, p->json.data, p->json.len);
            return true;
        }
        s = p->json.data;
        n = p->json.len;
        st = rose_json_parse(&v, s, n, ROSE_JSON_ANY | ROSE_JSON_NUL, &e);
    }
    if (st == ROSE_E_NOMEM) p->oom = true;
    const bool ok = st == ROSE_OK && stands_for(p, v, text, len);
    if (ok) rose_calls_emit(p, ROSE_PART_ARGS, s, n);
    rose_json_decref(v);
    return ok;
}

/* A value that may be no string: as JSON if it is a value of an allowed type, else a string. Where
 * values are listed, white space around the text is no part of it. */
static void put_typed(rose_calls *p, const char *text, size_t n)
{
    size_t len = n;
    const char *s = rose_calls_trimmed(text, &len);
    if (len > 0 && put_value(p, s, len)) return;
    if (p->listed)
        rose_calls_put_string(p, s, len);
    else
        rose_calls_put_string(p, text, n);
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
    p->state = CALLS_XML_VALUE;
}

static void end_value(rose_calls *p)
{
    if (streams(p))
        rose_calls_put(p, "\"");
    else
        put_typed(p, p->word.data, p->word.len);
    p->held.len = p->mark = 0;
    p->state = CALLS_XML_BODY;
}

/* The value's text stands between newlines, which are not part of it. Models forget the closing
 * tag. Then the tag of the next parameter ends the value, or the end of the call. */
static void xml_value(rose_calls *p, char c)
{
    static const char *const ends[] = {"</parameter>", "<parameter=", "</function>", NULL};
    const bool first = !p->begun;
    int which = 0;
    p->begun = true;
    if (first && c == '\n') return;
    rose_calls_hold(p, c);
    if (p->oom) return;
    const int best = rose_calls_best(ends, p->held.data + p->mark, p->held.len - p->mark, &which);
    if (best == 0) return;
    if (best == 1 && which == 0) {
        end_value(p);
    } else if (best == 1) {
        p->state = which == 1 ? CALLS_XML_VALUE_KEY : CALLS_XML_VALUE_END;
        p->args_at = p->held.len;
    } else if (p->held.len == 1 && c == '\n') {
        p->mark = 1;
    } else if (p->held.len == 1) {
        value_held(p);
    } else { /* c is no part of what was held */
        rose_calls_take_again(p, p->held.len - 1, value_held);
    }
}

/* Whether the text is the name of another parameter of the function. */
static bool is_other_param(rose_calls *p, const char *name, size_t n)
{
    const rose_json *schema = NULL, *properties;
    const char *key;
    rose_json *v;
    if (n == 0 || (n == p->param.len && memcmp(name, p->param.data, n) == 0)) return false;
    if (!rose_calls_known(p, &schema)) return true;
    properties = rose_json_get(schema, "properties");
    rose_json_each (properties, key, v) {
        if (strlen(key) == n && memcmp(key, name, n) == 0) return true;
    }
    return rose_json_size(properties) == 0;
}

/* <parameter= begins the next parameter if its name is one. */
static void xml_value_key(rose_calls *p, char c)
{
    const size_t n = p->held.len - p->args_at;
    if (c != '>' && c != '<' && c != '\n' && n < CALLS_MAX_NAME) {
        rose_calls_hold(p, c);
        return;
    }
    const char *name = p->held.data + p->args_at;
    if (c != '>' || !is_other_param(p, name, n)) {
        value_held(p);
        xml_value(p, c);
        return;
    }
    rose_buf next = {0};
    if (rose_buf_add(&next, name, n) != ROSE_OK) p->oom = true;
    end_value(p);
    rose_buf_free(&p->param);
    p->param = next;
    begin_value(p);
}

static void end_call(rose_calls *p)
{
    end_value(p);
    xml_end(p);
}

/* </function> ends the call if nothing but the end of the tag, or the next call, follows. */
static void xml_value_end(rose_calls *p, char c)
{
    static const char *const next[] = {"</tool_call>", "<tool_call>", "<function=", NULL};
    rose_calls_hold(p, c);
    if (p->oom) return;
    size_t at = p->args_at;
    while (at < p->held.len && rose_calls_space(p->held.data[at]))
        at++;
    int which;
    const int best = rose_calls_best(next, p->held.data + at, p->held.len - at, &which);
    if (best < 0)
        rose_calls_take_again(p, p->args_at, value_held);
    else if (best == 1)
        rose_calls_take_again(p, at, end_call);
}

void rose_calls_xml_step(rose_calls *p, char c)
{
    static void (*const steps[])(rose_calls *, char) = {
        [CALLS_XML_FUNCTION] = xml_function,  [CALLS_XML_NAME] = xml_name,
        [CALLS_XML_BODY] = xml_body,          [CALLS_XML_KEY] = xml_key,
        [CALLS_XML_VALUE] = xml_value,        [CALLS_XML_VALUE_KEY] = xml_value_key,
        [CALLS_XML_VALUE_END] = xml_value_end};
    steps[p->state](p, c);
}

/* A reply that ends between parameters has a complete object; one that ends in a value does not. */
void rose_calls_xml_finish(rose_calls *p)
{
    if (p->state == CALLS_XML_VALUE_END && !p->cut) {
        end_value(p);
        rose_calls_put(p, "}");
        return;
    }
    if (p->state == CALLS_XML_BODY && p->held.len == p->mark && !p->cut) rose_calls_put(p, "}");
    if (p->state != CALLS_XML_VALUE && p->state != CALLS_XML_VALUE_KEY &&
        p->state != CALLS_XML_VALUE_END)
        return;
    value_held(p);
    if (!streams(p)) rose_calls_emit(p, ROSE_PART_ARGS, p->word.data, p->word.len);
}
