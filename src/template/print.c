/* template/print.c - values as text: Python's str() and repr(). */
#include "template/template_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- numbers ---- */

/* Digits and exponent of a float to the layout of Python's repr. */
static void lay_out(char out[40], const char *digits, size_t n, int exp, bool negative)
{
    char *p = out;
    if (negative) *p++ = '-';
    if (exp < -4 || exp >= 16) {
        *p++ = digits[0];
        if (n > 1) *p++ = '.';
        memcpy(p, digits + 1, n - 1);
        sprintf(p + n - 1, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return;
    }
    if (exp < 0) {
        memcpy(p, "0.", 2);
        p += 2;
        for (int i = -1; i > exp; i--)
            *p++ = '0';
        memcpy(p, digits, n);
        p[n] = '\0';
        return;
    }
    for (size_t i = 0; i <= (size_t)exp || i < n; i++) {
        if (i == (size_t)exp + 1) *p++ = '.';
        *p++ = i < n ? digits[i] : '0';
    }
    if (n <= (size_t)exp + 1) {
        *p++ = '.';
        *p++ = '0';
    }
    *p = '\0';
}

/* The shortest digits that read back as the same float. Up to 15 digits survive in a double, so a
 * shorter form is found by leaving out the zeros at its end; only subnormal numbers hold fewer. */
void rose_tpl_format_float(rose_tpl *t, char out[40], double f)
{
    char text[40], digits[24];
    size_t n = 0;
    rose_tpl_step(t, STEPS_A_FLOAT);
    if (isnan(f) || isinf(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = fabs(f) < DBL_MIN ? 0 : DBL_DIG - 1; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(f));
        if (strtod(text, NULL) == fabs(f)) break;
    }
    for (const char *p = text; *p != 'e'; p++) {
        if (*p != '.') digits[n++] = *p;
    }
    while (n > 1 && digits[n - 1] == '0')
        n--;
    lay_out(out, digits, n, atoi(strchr(text, 'e') + 1), signbit(f) != 0);
}

/* ---- strings ---- */

void rose_tpl_put_escaped(tpl_buf *b, uint32_t c, uint8_t mark)
{
    char text[16];
    rose_tpl_step(b->t, 1);
    snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    rose_tpl_puts(b, text, mark);
}

/* Python prints what is neither "other" nor a separator, and the space. */
static bool is_printable(uint32_t c)
{
    utf8proc_category_t k;
    if (c < 0x7F) return c >= 0x20;
    k = utf8proc_category((utf8proc_int32_t)c);
    return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

static void put_string_repr(tpl_buf *b, const tpl_text *x)
{
    rose_tpl_visit(b->t, x->n);
    bool single = memchr(x->s, '\'', x->n) != NULL, both = memchr(x->s, '"', x->n) != NULL;
    const char quote[] = {single && !both ? '"' : '\'', '\0'};
    uint8_t all = rose_tpl_text_mark(b->t, x, 0, x->n);
    rose_tpl_puts(b, quote, all);
    for (size_t i = 0; i < x->n;) {
        size_t n = rose_tpl_char_len(x, i);
        uint32_t c = rose_tpl_char(x, i);
        uint8_t mark = rose_tpl_text_mark(b->t, x, i, i + n);
        const char *p = c < 0x80 && c != 0 ? strchr("\nn\rr\tt", (int)c) : NULL;
        if (c == (uint32_t)quote[0] || c == '\\') {
            rose_tpl_puts(b, "\\", mark);
            rose_tpl_put_part(b, x, i, i + n);
        } else if (p != NULL && c < 0x20) {
            rose_tpl_puts(b, "\\", mark);
            rose_tpl_put(b, p + 1, 1, mark);
        } else if (is_printable(c)) {
            rose_tpl_put_part(b, x, i, i + n);
        } else {
            rose_tpl_put_escaped(b, c, mark);
        }
        i += n;
    }
    rose_tpl_puts(b, quote, all);
}

/* ---- containers ---- */

static void put_items(tpl_buf *b, tpl_value v, const char *open, const char *close)
{
    const tpl_seq *s = v.u.seq;
    rose_tpl_puts(b, open, v.mark);
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0) rose_tpl_puts(b, ", ", v.mark);
        rose_tpl_put_repr(b, s->items[i]);
    }
    if (v.kind == TPL_TUPLE && s->n == 1) rose_tpl_puts(b, ",", v.mark);
    rose_tpl_puts(b, close, v.mark);
}

static void put_dict(tpl_buf *b, tpl_value v)
{
    const tpl_dict *d = v.u.dict;
    rose_tpl_puts(b, v.kind == TPL_SPACE ? "<Namespace {" : "{", v.mark);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) rose_tpl_puts(b, ", ", v.mark);
        rose_tpl_put_repr(b, d->pairs[i].key);
        rose_tpl_puts(b, ": ", v.mark);
        rose_tpl_put_repr(b, d->pairs[i].value);
    }
    rose_tpl_puts(b, v.kind == TPL_SPACE ? "}>" : "}", v.mark);
}

static void put_range(tpl_buf *b, tpl_value v)
{
    char text[96];
    const tpl_seq *s = v.u.seq;
    int n = snprintf(text, sizeof text, "range(%lld, %lld", (long long)s->from, (long long)s->to);
    if (s->step != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)s->step);
    rose_tpl_put(b, text, (size_t)n, v.mark);
    rose_tpl_puts(b, ")", v.mark);
}

static void put_seq(tpl_buf *b, tpl_value v)
{
    switch (v.kind) {
    case TPL_LIST:
        put_items(b, v, "[", "]");
        break;
    case TPL_TUPLE:
        put_items(b, v, "(", ")");
        break;
    case TPL_RANGE:
        put_range(b, v);
        break;
    case TPL_VIEW:
        rose_tpl_puts(b, v.u.seq->name, v.mark);
        put_items(b, v, "([", "])");
        break;
    default: /* Python prints the address of such an object, which no text can depend on */
        rose_tpl_fail(b->t, "a %s is printed; use the filter list first", rose_tpl_kind_name(v));
    }
}

static void put_plain(tpl_buf *b, tpl_value v)
{
    char text[40] = "";
    if (v.kind == TPL_NONE) strcpy(text, "None");
    if (v.kind == TPL_BOOL) strcpy(text, v.u.b ? "True" : "False");
    if (v.kind == TPL_INT) snprintf(text, sizeof text, "%lld", (long long)v.u.i);
    if (v.kind == TPL_FLOAT) rose_tpl_format_float(b->t, text, v.u.f);
    if (v.kind == TPL_BIG) rose_tpl_put_part(b, v.u.str, 0, v.u.str->n);
    rose_tpl_puts(b, text, v.mark);
}

static void put_loop(tpl_buf *b, tpl_value v)
{
    char text[64];
    snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->at + 1,
             rose_tpl_loop_find(b->t, v.u.loop, SIZE_MAX));
    rose_tpl_puts(b, text, v.mark);
}

void rose_tpl_put_repr(tpl_buf *b, tpl_value v)
{
    rose_tpl_enter(b->t);
    rose_tpl_step(b->t, 0);
    if (v.kind == TPL_STR)
        put_string_repr(b, v.u.str);
    else if (v.kind == TPL_UNDEF)
        rose_tpl_puts(b, "Undefined", TPL_TEMPLATE);
    else if (v.kind == TPL_DICT || v.kind == TPL_SPACE)
        put_dict(b, v);
    else if (v.kind == TPL_LOOP)
        put_loop(b, v);
    else if (v.kind <= TPL_FLOAT)
        put_plain(b, v);
    else
        put_seq(b, v);
    b->t->depth--;
}

const tpl_text *rose_tpl_to_text(rose_tpl *t, tpl_value v)
{
    tpl_buf b = {.t = t};
    if (v.kind == TPL_STR) return v.u.str;
    if (v.kind != TPL_UNDEF) rose_tpl_put_repr(&b, v);
    return rose_tpl_buf_text(&b);
}
