/* template/tojson.c - the filter tojson, as transformers defines it: Python's json.dumps, without
 * the escaping of HTML that Jinja's own has. Braces, commas and the like have the mark of their
 * container, so the JSON of a tool is message bytes as a whole. */
#include "template/template_internal.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"

typedef struct dump {
    tpl_buf b;
    bool ascii, sort;
    const tpl_text *indent; /* one level; NULL: all on one line */
    const tpl_text *comma, *colon;
    size_t level;
} dump;

static void put_char(dump *d, const tpl_text *x, size_t at, size_t n)
{
    char text[ROSE_JSON_CODE_CAP];
    const uint32_t c = rose_tpl_char(x, at);
    unsigned len = 1;
    if (c < 0x80)
        len = rose_json_escape_byte(text, x->s[at]);
    else if (d->ascii)
        len = rose_json_escape_code(text, c);
    if (len > 2) rose_tpl_step(d->b.t, 1);
    if (len > 1)
        rose_tpl_put(&d->b, text, len, rose_tpl_text_mark(d->b.t, x, at, at + n));
    else
        rose_tpl_put_part(&d->b, x, at, at + n);
}

static void put_string(dump *d, const tpl_text *x)
{
    rose_tpl_visit(d->b.t, x->n);
    uint8_t all = rose_tpl_text_mark(d->b.t, x, 0, x->n);
    rose_tpl_puts(&d->b, "\"", all);
    for (size_t i = 0; i < x->n;) {
        size_t n = rose_tpl_char_len(x, i);
        put_char(d, x, i, n);
        i += n;
    }
    rose_tpl_puts(&d->b, "\"", all);
}

static void put_scalar(dump *d, tpl_value v)
{
    char text[40] = "null";
    if (v.kind == TPL_BIG) {
        rose_tpl_put_part(&d->b, v.u.str, 0, v.u.str->n);
        return;
    }
    if (v.kind == TPL_BOOL) strcpy(text, v.u.b ? "true" : "false");
    if (v.kind == TPL_INT) snprintf(text, sizeof text, "%lld", (long long)v.u.i);
    if (v.kind == TPL_FLOAT) {
        rose_tpl_format_float(d->b.t, text, v.u.f);
        if (isnan(v.u.f)) strcpy(text, "NaN");
        if (isinf(v.u.f)) strcpy(text, v.u.f < 0 ? "-Infinity" : "Infinity");
    }
    rose_tpl_puts(&d->b, text, v.mark);
}

static void put_text(dump *d, const tpl_text *x, uint8_t mark)
{
    rose_tpl_put(&d->b, x->s, x->n,
                 mark == TPL_MESSAGE ? mark : rose_tpl_text_mark(d->b.t, x, 0, x->n));
}

static void new_line(dump *d, uint8_t mark)
{
    if (d->indent == NULL) return;
    rose_tpl_puts(&d->b, "\n", mark);
    for (size_t i = 0; i < d->level; i++)
        put_text(d, d->indent, mark);
}

static void put_value(dump *d, tpl_value v);

static void put_key(dump *d, tpl_value k, uint8_t mark)
{
    if (k.kind == TPL_STR) {
        put_string(d, k.u.str);
        return;
    }
    if (k.kind != TPL_NONE && !rose_tpl_is_number(k))
        rose_tpl_fail(d->b.t, "keys of JSON must be strings, not %s", rose_tpl_kind_name(k));
    rose_tpl_puts(&d->b, "\"", mark);
    put_scalar(d, k);
    rose_tpl_puts(&d->b, "\"", mark);
}

static const size_t *key_order(dump *d, const tpl_dict *x)
{
    rose_tpl *t = d->b.t;
    size_t *order = rose_tpl_array(t, x->n, sizeof *order);
    tpl_value *keys = rose_tpl_array(t, x->n, sizeof *keys);
    for (size_t i = 0; i < x->n; i++) {
        order[i] = i;
        keys[i] = x->pairs[i].key;
    }
    if (d->sort) rose_tpl_sort(t, keys, order, x->n, false);
    return order;
}

static void put_dict(dump *d, tpl_value v)
{
    const tpl_dict *x = v.u.dict;
    const size_t *order = key_order(d, x);
    rose_tpl_puts(&d->b, "{", v.mark);
    d->level++;
    for (size_t i = 0; i < x->n; i++) {
        const tpl_pair *p = &x->pairs[order[i]];
        if (i > 0) put_text(d, d->comma, v.mark);
        new_line(d, v.mark);
        put_key(d, p->key, v.mark);
        put_text(d, d->colon, v.mark);
        put_value(d, p->value);
    }
    d->level--;
    if (x->n > 0) new_line(d, v.mark);
    rose_tpl_puts(&d->b, "}", v.mark);
}

static void put_list(dump *d, tpl_value v)
{
    const tpl_seq *s = v.u.seq;
    rose_tpl_puts(&d->b, "[", v.mark);
    d->level++;
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0) put_text(d, d->comma, v.mark);
        new_line(d, v.mark);
        put_value(d, s->items[i]);
    }
    d->level--;
    if (s->n > 0) new_line(d, v.mark);
    rose_tpl_puts(&d->b, "]", v.mark);
}

static void put_value(dump *d, tpl_value v)
{
    rose_tpl_enter(d->b.t);
    rose_tpl_step(d->b.t, 0);
    if (v.kind == TPL_STR)
        put_string(d, v.u.str);
    else if (v.kind == TPL_DICT)
        put_dict(d, v);
    else if (v.kind == TPL_LIST || v.kind == TPL_TUPLE)
        put_list(d, v);
    else if (v.kind == TPL_NONE || rose_tpl_is_number(v))
        put_scalar(d, v);
    else
        rose_tpl_fail(d->b.t, "%s has no form in JSON", rose_tpl_kind_name(v));
    d->b.t->depth--;
}

static const tpl_text *indent_of(rose_tpl *t, tpl_value v)
{
    tpl_buf b = {.t = t};
    if (v.kind == TPL_MISSING || v.kind == TPL_NONE) return NULL;
    if (v.kind == TPL_STR) return v.u.str;
    int64_t n = rose_tpl_index(t, v, "indent");
    if (n > 1000) rose_tpl_fail(t, "an indent of more than 1000");
    for (int64_t i = 0; i < n; i++)
        rose_tpl_puts(&b, " ", TPL_TEMPLATE);
    return rose_tpl_buf_text(&b);
}

static void set_separators(dump *d, tpl_value v)
{
    rose_tpl *t = d->b.t;
    size_t n;
    d->comma = rose_tpl_cstr(t, d->indent == NULL ? ", " : ",").u.str;
    d->colon = rose_tpl_cstr(t, ": ").u.str;
    if (v.kind == TPL_MISSING || v.kind == TPL_NONE) return;
    const tpl_value *items = rose_tpl_items(t, v, &n);
    if (n != 2 || items[0].kind != TPL_STR || items[1].kind != TPL_STR)
        rose_tpl_fail(t, "separators of tojson must be two strings");
    d->comma = items[0].u.str;
    d->colon = items[1].u.str;
}

/* tojson(ensure_ascii, indent, separators, sort_keys) */
tpl_value rose_tpl_filter_tojson(const tpl_in *in)
{
    dump d = {
        .b = {.t = in->t}, .ascii = rose_tpl_truth(in->arg[0]), .sort = rose_tpl_truth(in->arg[3])};
    d.indent = indent_of(in->t, in->arg[1]);
    set_separators(&d, in->arg[2]);
    put_value(&d, in->v);
    return rose_tpl_str(rose_tpl_buf_text(&d.b));
}
