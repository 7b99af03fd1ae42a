/* template/value.c - making values, and what every kind of value can do. */
#include "template/template_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

tpl_value rose_tpl_none(void)
{
    return (tpl_value){.kind = TPL_NONE};
}

tpl_value rose_tpl_bool(bool b)
{
    return (tpl_value){.kind = TPL_BOOL, .u.b = b};
}

tpl_value rose_tpl_int(int64_t i, uint8_t mark)
{
    return (tpl_value){.kind = TPL_INT, .mark = mark, .u.i = i};
}

tpl_value rose_tpl_float(double f, uint8_t mark)
{
    return (tpl_value){.kind = TPL_FLOAT, .mark = mark, .u.f = f};
}

tpl_value rose_tpl_str(const tpl_text *x)
{
    return (tpl_value){.kind = TPL_STR, .u.str = x};
}

tpl_value rose_tpl_cstr(rose_tpl *t, const char *s)
{
    return rose_tpl_str(rose_tpl_text(t, s, strlen(s), TPL_TEMPLATE));
}

tpl_value rose_tpl_undef(rose_tpl *t, const char *fmt, ...)
{
    char text[160];
    char *why;
    va_list args;
    rose_tpl_step(t, 4);
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    why = rose_tpl_take(t, strlen(text) + 1);
    strcpy(why, text);
    return (tpl_value){.kind = TPL_UNDEF, .u.why = why};
}

tpl_value rose_tpl_seq_of(rose_tpl *t, tpl_kind kind, tpl_value *items, size_t n, uint8_t mark)
{
    tpl_seq *s = rose_tpl_take(t, sizeof *s);
    if (items == NULL) items = rose_tpl_take(t, 1); /* never NULL, for pointer arithmetic */
    *s = (tpl_seq){.items = items, .n = n};
    return (tpl_value){.kind = (uint8_t)kind, .mark = mark, .u.seq = s};
}

tpl_value rose_tpl_seq_new(rose_tpl *t, tpl_kind kind, size_t n, uint8_t mark)
{
    return rose_tpl_seq_of(t, kind, rose_tpl_array(t, n, sizeof(tpl_value)), n, mark);
}

tpl_value rose_tpl_pair(rose_tpl *t, const tpl_pair *p, uint8_t mark)
{
    tpl_value out = rose_tpl_seq_new(t, TPL_TUPLE, 2, mark);
    out.u.seq->items[0] = p->key;
    out.u.seq->items[1] = p->value;
    return out;
}

/* ---- dictionaries: pairs in order, found by a linear search that counts as work ---- */

tpl_value rose_tpl_dict_new(rose_tpl *t, uint8_t mark)
{
    tpl_dict *d = rose_tpl_take(t, sizeof *d);
    return (tpl_value){.kind = TPL_DICT, .mark = mark, .u.dict = d};
}

static tpl_pair *find(rose_tpl *t, const tpl_dict *d, tpl_value key)
{
    rose_tpl_step(t, d->n / 8);
    for (size_t i = 0; i < d->n; i++) {
        const tpl_value *k = &d->pairs[i].key;
        if (key.kind == TPL_STR && k->kind == TPL_STR) {
            if (rose_tpl_text_eq(t, key.u.str, k->u.str)) return &d->pairs[i];
        } else if (rose_tpl_equal(t, *k, key)) {
            return &d->pairs[i];
        }
    }
    return NULL;
}

void rose_tpl_dict_put(rose_tpl *t, tpl_dict *d, tpl_value key, tpl_value value)
{
    tpl_pair *p;
    rose_tpl_hashable(t, key);
    if ((p = find(t, d, key)) != NULL) {
        p->value = value;
        return;
    }
    if (d->n == d->cap) d->pairs = rose_tpl_grown(t, d->pairs, d->n, &d->cap, sizeof *d->pairs);
    d->pairs[d->n++] = (tpl_pair){key, value};
}

const tpl_value *rose_tpl_dict_get(rose_tpl *t, const tpl_dict *d, tpl_value key)
{
    const tpl_pair *p;
    rose_tpl_hashable(t, key);
    p = find(t, d, key);
    return p == NULL ? NULL : &p->value;
}

const tpl_value *rose_tpl_dict_gets(rose_tpl *t, const tpl_dict *d, const char *key)
{
    return rose_tpl_dict_get(t, d, rose_tpl_cstr(t, key));
}

/* ---- JSON ---- */

static tpl_value object_from_json(rose_tpl *t, const rose_json *v, uint8_t mark)
{
    tpl_value out = rose_tpl_dict_new(t, mark);
    tpl_dict *d = out.u.dict;
    const char *key;
    size_t len;
    rose_json *member;
    d->cap = rose_json_size(v);
    d->pairs = rose_tpl_array(t, d->cap, sizeof *d->pairs);
    rose_json_each_n (v, key, len, member) {
        /* Keys of a JSON object differ already. */
        tpl_value k = rose_tpl_str(rose_tpl_text(t, key, len, mark));
        d->pairs[d->n++] = (tpl_pair){k, rose_tpl_from_json(t, member, mark)};
    }
    return out;
}

static tpl_value array_from_json(rose_tpl *t, const rose_json *v, uint8_t mark)
{
    tpl_value out = rose_tpl_seq_new(t, TPL_LIST, rose_json_count(v), mark);
    for (size_t i = 0; i < out.u.seq->n; i++)
        out.u.seq->items[i] = rose_tpl_from_json(t, rose_json_at(v, i), mark);
    return out;
}

/* Strings are borrowed from the JSON. */
tpl_value rose_tpl_from_json(rose_tpl *t, const rose_json *v, uint8_t mark)
{
    tpl_value out = {.kind = TPL_NONE, .mark = mark};
    rose_tpl_enter(t);
    if (rose_json_is_string(v)) {
        out = rose_tpl_str(rose_tpl_text(t, rose_json_text(v), rose_json_text_len(v), mark));
    } else if (rose_json_is_object(v)) {
        out = object_from_json(t, v, mark);
    } else if (rose_json_is_array(v)) {
        out = array_from_json(t, v, mark);
    } else if (rose_json_is_integer(v)) {
        out = rose_tpl_int(rose_json_int(v), mark);
    } else if (rose_json_is_big(v)) {
        const char *digits = rose_json_number_text(v, NULL);
        out.kind = TPL_BIG;
        out.u.str = rose_tpl_text(t, digits, strlen(digits), mark);
    } else if (rose_json_is_real(v)) {
        out = rose_tpl_float(rose_json_real_value(v), mark);
    } else if (rose_json_is_boolean(v)) {
        out.kind = TPL_BOOL;
        out.u.b = rose_json_is_true(v);
    }
    t->depth--;
    return out;
}

/* ---- kinds ---- */

const char *rose_tpl_kind_name(tpl_value v)
{
    static const char *const names[] = {
        "missing",   "undefined", "NoneType",  "bool",        "int",     "int",
        "float",     "str",       "list",      "tuple",       "range",   "dict view",
        "generator", "dict",      "Namespace", "LoopContext", "function"};
    return names[v.kind];
}

bool rose_tpl_given(tpl_value v)
{
    return v.kind != TPL_MISSING && v.kind != TPL_NONE;
}

bool rose_tpl_is_seq(tpl_value v)
{
    return v.kind >= TPL_LIST && v.kind <= TPL_GEN;
}

bool rose_tpl_is_number(tpl_value v)
{
    return v.kind >= TPL_BOOL && v.kind <= TPL_FLOAT;
}

bool rose_tpl_truth(tpl_value v)
{
    switch (v.kind) {
    case TPL_BOOL:
        return v.u.b;
    case TPL_INT:
        return v.u.i != 0;
    case TPL_FLOAT:
        return v.u.f != 0;
    case TPL_STR:
        return v.u.str->n > 0;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        return v.u.seq->n > 0;
    case TPL_DICT:
        return v.u.dict->n > 0;
    case TPL_LOOP:
        return v.u.loop->n > 0;
    case TPL_BIG:
    case TPL_GEN:
    case TPL_SPACE:
    case TPL_FUNC:
        return true;
    default:
        return false;
    }
}

/* The largest double has 309 digits, so no more than a sign and 309 digits are ever read. */
static double big_as_double(const char *s, size_t n)
{
    if (n > 310) return s[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    return strtod(s, NULL);
}

double rose_tpl_as_double(tpl_value v)
{
    if (v.kind == TPL_FLOAT) return v.u.f;
    if (v.kind == TPL_BIG) return big_as_double(v.u.str->s, v.u.str->n);
    return v.kind == TPL_BOOL ? (double)v.u.b : (double)v.u.i;
}

int64_t rose_tpl_index(rose_tpl *t, tpl_value v, const char *what)
{
    if (v.kind == TPL_BOOL) return v.u.b;
    rose_tpl_want_defined(t, v);
    if (v.kind != TPL_INT && v.kind != TPL_BIG)
        rose_tpl_fail(t, "%s must be an integer, not %s", what, rose_tpl_kind_name(v));
    return rose_tpl_as_int(t, v);
}

void rose_tpl_want_defined(rose_tpl *t, tpl_value v)
{
    if (v.kind == TPL_UNDEF) rose_tpl_fail(t, "%s", v.u.why);
}

/* ---- iteration ---- */

static tpl_value *chars_of(rose_tpl *t, const tpl_text *x, size_t *n)
{
    tpl_value *items;
    size_t at = 0;
    *n = rose_tpl_chars(t, x);
    items = rose_tpl_array(t, *n, sizeof *items);
    for (size_t i = 0; i < *n; i++) {
        size_t end = at + rose_tpl_char_len(x, at);
        items[i] = rose_tpl_str(rose_tpl_part(t, x, at, end));
        at = end;
    }
    return items;
}

static tpl_value *keys_of(rose_tpl *t, const tpl_dict *d, size_t *n)
{
    tpl_value *items = rose_tpl_array(t, d->n, sizeof *items);
    for (size_t i = 0; i < d->n; i++)
        items[i] = d->pairs[i].key;
    *n = d->n;
    return items;
}

tpl_value *rose_tpl_items(rose_tpl *t, tpl_value v, size_t *n)
{
    *n = 0;
    if (v.kind == TPL_UNDEF) return NULL;
    if (v.kind == TPL_STR) return chars_of(t, v.u.str, n);
    if (v.kind == TPL_DICT) return keys_of(t, v.u.dict, n);
    if (!rose_tpl_is_seq(v)) rose_tpl_fail(t, "%s is not iterable", rose_tpl_kind_name(v));
    if (v.u.seq->broken) rose_tpl_fail(t, "a filter got a value of a kind that it cannot read");
    tpl_value *from = v.u.seq->items + v.u.seq->cursor;
    *n = v.u.seq->n - v.u.seq->cursor;
    rose_tpl_step(t, *n);
    if (v.kind == TPL_GEN) v.u.seq->cursor = v.u.seq->n;
    return from;
}

size_t rose_tpl_length(rose_tpl *t, tpl_value v)
{
    if (v.kind == TPL_UNDEF) return 0;
    if (v.kind == TPL_STR) return rose_tpl_chars(t, v.u.str);
    if (v.kind == TPL_DICT) return v.u.dict->n;
    if (v.kind == TPL_LOOP) return rose_tpl_loop_find(t, v.u.loop, SIZE_MAX);
    if (!rose_tpl_is_seq(v) || v.kind == TPL_GEN)
        rose_tpl_fail(t, "%s has no length", rose_tpl_kind_name(v));
    return v.u.seq->n;
}
