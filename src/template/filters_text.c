/* template/filters_text.c - filters whose input is a string or a number. */
#include "template/template_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool given(tpl_value v)
{
    return v.kind != TPL_MISSING;
}

static tpl_value string(const tpl_in *in)
{
    return rose_tpl_str(rose_tpl_to_text(in->t, in->v));
}

static tpl_value trim(const tpl_in *in)
{
    const tpl_text *chars = NULL;
    if (given(in->arg[0]) && in->arg[0].kind != TPL_NONE) {
        if (in->arg[0].kind != TPL_STR) rose_tpl_fail(in->t, "trim takes a string");
        chars = in->arg[0].u.str;
    }
    return rose_tpl_str(
        rose_tpl_strip(in->t, rose_tpl_to_text(in->t, in->v), chars, TPL_LEFT | TPL_RIGHT));
}

static tpl_value replace(const tpl_in *in)
{
    tpl_value args[3] = {rose_tpl_str(rose_tpl_to_text(in->t, in->arg[0])),
                         rose_tpl_str(rose_tpl_to_text(in->t, in->arg[1])), in->arg[2]};
    tpl_args call = {.pos = args, .n = given(in->arg[2]) && in->arg[2].kind != TPL_NONE ? 3 : 2};
    const tpl_text name = {.s = "replace", .n = 7};
    tpl_value self = rose_tpl_str(rose_tpl_to_text(in->t, in->v));
    return rose_tpl_call_builtin(in->t, rose_tpl_method(self, &name), self, &call);
}

/* ---- indent ---- */

static tpl_value lines_of(rose_tpl *t, const tpl_text *x)
{
    tpl_value self = rose_tpl_str(x);
    const tpl_text name = {.s = "splitlines", .n = 10};
    const tpl_args none = {0};
    return rose_tpl_call_builtin(t, rose_tpl_method(self, &name), self, &none);
}

static const tpl_text *indention(rose_tpl *t, tpl_value width)
{
    tpl_buf b = {.t = t};
    int64_t n;
    if (width.kind == TPL_STR) return width.u.str;
    n = given(width) ? rose_tpl_index(t, width, "width") : 4;
    for (int64_t i = 0; i < n; i++)
        rose_tpl_puts(&b, " ", TPL_TEMPLATE);
    return rose_tpl_buf_text(&b);
}

/* indent(width, first, blank): lines are split as Python's splitlines does, joined by "\n". */
static tpl_value indent(const tpl_in *in)
{
    tpl_buf b = {.t = in->t}, line = {.t = in->t};
    const tpl_text *by = indention(in->t, in->arg[0]);
    bool blank = rose_tpl_truth(in->arg[2]);
    rose_tpl_want_defined(in->t, in->v);
    if (in->v.kind != TPL_STR)
        rose_tpl_fail(in->t, "indent takes a string, not %s", rose_tpl_kind_name(in->v));
    rose_tpl_put_text(&line, in->v.u.str);
    rose_tpl_puts(&line, "\n", TPL_TEMPLATE);
    const tpl_seq *lines = lines_of(in->t, rose_tpl_buf_text(&line)).u.seq;
    if (rose_tpl_truth(in->arg[1])) rose_tpl_put_text(&b, by);
    for (size_t i = 0; i < lines->n; i++) {
        const tpl_text *x = lines->items[i].u.str;
        if (i > 0) rose_tpl_puts(&b, "\n", TPL_TEMPLATE);
        if (i > 0 && (blank || x->n > 0)) rose_tpl_put_text(&b, by);
        rose_tpl_put_text(&b, x);
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static tpl_value center(const tpl_in *in)
{
    const tpl_text *x = rose_tpl_to_text(in->t, in->v);
    int64_t width = given(in->arg[0]) ? rose_tpl_index(in->t, in->arg[0], "width") : 80;
    int64_t pad = width - (int64_t)rose_tpl_chars(in->t, x), left;
    tpl_buf b = {.t = in->t};
    if (pad <= 0) return rose_tpl_str(x);
    left = pad / 2 + (pad & width & 1);
    for (int64_t i = 0; i < left; i++)
        rose_tpl_puts(&b, " ", TPL_TEMPLATE);
    rose_tpl_put_text(&b, x);
    for (int64_t i = left; i < pad; i++)
        rose_tpl_puts(&b, " ", TPL_TEMPLATE);
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static bool is_word(uint32_t c)
{
    return c >= 0x80 || isalnum((int)c) || c == '_';
}

static tpl_value wordcount(const tpl_in *in)
{
    const tpl_text *x = rose_tpl_to_text(in->t, in->v);
    int64_t n = 0;
    bool inside = false;
    rose_tpl_visit(in->t, x->n);
    for (size_t i = 0; i < x->n; i += rose_tpl_char_len(x, i)) {
        bool is = is_word(rose_tpl_char(x, i));
        n += is && !inside;
        inside = is;
    }
    return rose_tpl_int(n, TPL_TEMPLATE);
}

/* escape, without the later effects of markup: see safe. */
static tpl_value escape(const tpl_in *in)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const tpl_text *x = rose_tpl_to_text(in->t, in->v);
    tpl_buf b = {.t = in->t};
    for (size_t i = 0; i < x->n; i++) {
        const char *p = x->s[i] == '\0' ? NULL : strchr(from, x->s[i]);
        if (p != NULL)
            rose_tpl_puts(&b, to[p - from], rose_tpl_text_mark(in->t, x, i, i + 1));
        else
            rose_tpl_put_part(&b, x, i, i + 1);
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

/* ---- numbers ---- */

/* Copies a number's text without white space around it and underscores inside; false: too long. */
static bool number_text(rose_tpl *t, const tpl_text *x, char *out, size_t cap)
{
    size_t n = 0;
    x = rose_tpl_strip(t, x, NULL, TPL_LEFT | TPL_RIGHT);
    for (size_t i = 0; i < x->n; i++) {
        char c = x->s[i];
        if (c == '_') {
            if (i == 0 || i + 1 == x->n || !isalnum((uint8_t)x->s[i - 1]) ||
                !isalnum((uint8_t)x->s[i + 1]))
                return false;
            continue;
        }
        if (n + 1 >= cap || c == '\0') return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return n > 0 && !isspace((uint8_t)out[0]);
}

static bool parse_float(rose_tpl *t, const tpl_text *x, double *out)
{
    char s[400], *end;
    rose_tpl_step(t, STEPS_A_FLOAT);
    if (!number_text(t, x, s, sizeof s) || strpbrk(s, "xX(") != NULL) return false;
    *out = strtod(s, &end);
    return *end == '\0';
}

static bool parse_int(rose_tpl *t, const tpl_text *x, int base, int64_t *out)
{
    char s[200], *end, *digits = s;
    if (!number_text(t, x, s, sizeof s)) return false;
    digits += *s == '-' || *s == '+';
    if ((base == 2 || base == 8) && digits[0] == '0' && (digits[1] | 32) == (base == 2 ? 'b' : 'o'))
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    if (!isalnum((uint8_t)*digits)) return false;
    errno = 0;
    *out = strtoll(s, &end, base);
    if (*end != '\0') return false;
    if (errno != 0) rose_tpl_fail(t, "an integer does not fit 64 bits");
    return true;
}

static bool float_to_int(rose_tpl *t, double f, int64_t *out)
{
    if (isnan(f) || isinf(f)) return false;
    if (fabs(f) >= 9.2e18) rose_tpl_fail(t, "an integer does not fit 64 bits");
    *out = (int64_t)f;
    return true;
}

static tpl_value to_int(const tpl_in *in)
{
    int64_t i = 0, base = given(in->arg[1]) ? rose_tpl_index(in->t, in->arg[1], "base") : 10;
    double f;
    bool ok = false;
    uint8_t mark = in->v.mark;
    rose_tpl_want_defined(in->t, in->v);
    if (base < 2 || base > 36) rose_tpl_fail(in->t, "the base %lld of int", (long long)base);
    if (in->v.kind == TPL_STR) {
        mark = rose_tpl_text_mark(in->t, in->v.u.str, 0, in->v.u.str->n);
        ok = parse_int(in->t, in->v.u.str, (int)base, &i) ||
             (parse_float(in->t, in->v.u.str, &f) && float_to_int(in->t, f, &i));
    } else if (in->v.kind == TPL_FLOAT) {
        if (isinf(in->v.u.f)) rose_tpl_fail(in->t, "cannot convert infinity to an integer");
        ok = float_to_int(in->t, in->v.u.f, &i);
    } else if (in->v.kind == TPL_BIG) {
        return in->v;
    } else if (rose_tpl_is_number(in->v)) {
        i = rose_tpl_as_int(in->t, in->v);
        ok = true;
    }
    if (!ok) return given(in->arg[0]) ? in->arg[0] : rose_tpl_int(0, TPL_TEMPLATE);
    return rose_tpl_int(i, mark);
}

static tpl_value to_float(const tpl_in *in)
{
    double f;
    rose_tpl_want_defined(in->t, in->v);
    if (rose_tpl_is_number(in->v)) return rose_tpl_float(rose_tpl_as_double(in->v), in->v.mark);
    if (in->v.kind == TPL_STR && parse_float(in->t, in->v.u.str, &f))
        return rose_tpl_float(f, rose_tpl_text_mark(in->t, in->v.u.str, 0, in->v.u.str->n));
    return given(in->arg[0]) ? in->arg[0] : rose_tpl_float(0, TPL_TEMPLATE);
}

static tpl_value absolute(const tpl_in *in)
{
    rose_tpl_want_defined(in->t, in->v);
    if (!rose_tpl_is_number(in->v))
        rose_tpl_fail(in->t, "abs takes a number, not %s", rose_tpl_kind_name(in->v));
    if (in->v.kind == TPL_FLOAT) return rose_tpl_float(fabs(in->v.u.f), in->v.mark);
    if (in->v.kind == TPL_INT && in->v.u.i < 0) return rose_tpl_negate(in->t, in->v);
    if (in->v.kind == TPL_BIG && in->v.u.str->s[0] != '-') return in->v;
    return rose_tpl_int(rose_tpl_as_int(in->t, in->v), in->v.mark);
}

/* Python's round of an integer to tens, hundreds, ...: half to even. */
static int64_t round_int(rose_tpl *t, int64_t i, int64_t digits)
{
    int64_t unit = 1, rest;
    if (digits >= 0) return i;
    if (digits < -18) return 0;
    for (; digits < 0; digits++)
        unit *= 10;
    rest = ((i % unit) + unit) % unit;
    if (__builtin_sub_overflow(i, rest, &i)) rose_tpl_fail(t, "an integer does not fit 64 bits");
    if (rest > unit - rest || (rest == unit - rest && (i / unit) % 2 != 0)) i += unit;
    return i;
}

/* round(precision, method); rounding goes through decimal digits, half to even. */
double rose_tpl_round(rose_tpl *t, double f, int64_t digits)
{
    char s[400];
    rose_tpl_step(t, STEPS_A_FLOAT);
    if (!isfinite(f) || digits > 300) return f;
    if (digits < -300) return copysign(0.0, f);
    if (digits >= 0) {
        snprintf(s, sizeof s, "%.*f", (int)digits, f);
        return strtod(s, NULL);
    }
    double unit = pow(10, (double)-digits);
    return nearbyint(f / unit) * unit;
}

static tpl_value round_number(const tpl_in *in)
{
    int64_t digits = given(in->arg[0]) ? rose_tpl_index(in->t, in->arg[0], "precision") : 0;
    const tpl_text *how = given(in->arg[1]) ? rose_tpl_to_text(in->t, in->arg[1])
                                            : rose_tpl_text(in->t, "common", 6, 0);
    double unit;
    rose_tpl_want_defined(in->t, in->v);
    if (!rose_tpl_is_number(in->v)) rose_tpl_fail(in->t, "round takes a number");
    if (rose_tpl_text_is(how, "common")) {
        if (in->v.kind == TPL_FLOAT)
            return rose_tpl_float(rose_tpl_round(in->t, in->v.u.f, digits), in->v.mark);
        if (in->v.kind == TPL_BIG && digits >= 0) return in->v;
        return rose_tpl_int(round_int(in->t, rose_tpl_as_int(in->t, in->v), digits), in->v.mark);
    }
    unit = pow(10, (double)digits);
    if (rose_tpl_text_is(how, "ceil"))
        return rose_tpl_float(ceil(rose_tpl_as_double(in->v) * unit) / unit, in->v.mark);
    if (!rose_tpl_text_is(how, "floor")) rose_tpl_fail(in->t, "round takes common, ceil or floor");
    return rose_tpl_float(floor(rose_tpl_as_double(in->v) * unit) / unit, in->v.mark);
}

static tpl_value use_default(const tpl_in *in)
{
    bool empty = in->v.kind == TPL_UNDEF || (rose_tpl_truth(in->arg[1]) && !rose_tpl_truth(in->v));
    if (!empty) return in->v;
    return given(in->arg[0]) ? in->arg[0] : rose_tpl_cstr(in->t, "");
}

static tpl_value format(const tpl_in *in)
{
    tpl_value all = rose_tpl_seq_of(in->t, TPL_TUPLE, in->raw->pos, in->raw->n, TPL_TEMPLATE);
    if (in->raw->n_named > 0 && in->raw->n > 0)
        rose_tpl_fail(in->t, "format takes values or names, not both");
    if (in->raw->n_named > 0) {
        all = rose_tpl_dict_new(in->t, TPL_TEMPLATE);
        for (size_t i = 0; i < in->raw->n_named; i++)
            rose_tpl_dict_put(in->t, all.u.dict, in->raw->named[i].key, in->raw->named[i].value);
    }
    return rose_tpl_percent(in->t, rose_tpl_to_text(in->t, in->v), all);
}

static tpl_value length(const tpl_in *in)
{
    return rose_tpl_int((int64_t)rose_tpl_length(in->t, in->v), TPL_TEMPLATE);
}

static const tpl_builtin filters[] = {
    {.name = "abs", .fn = absolute, .params = ""},
    {.name = "capitalize", .fn = rose_tpl_filter_case, .params = "", .variant = TPL_CAPITALIZE},
    {.name = "center", .fn = center, .params = "width"},
    {.name = "count", .fn = length, .params = ""},
    {.name = "d", .fn = use_default, .params = "default_value boolean"},
    {.name = "default", .fn = use_default, .params = "default_value boolean"},
    {.name = "e", .fn = escape, .params = ""},
    {.name = "escape", .fn = escape, .params = ""},
    {.name = "float", .fn = to_float, .params = "default"},
    {.name = "format", .fn = format},
    {.name = "indent", .fn = indent, .params = "width first blank"},
    {.name = "int", .fn = to_int, .params = "default base"},
    {.name = "length", .fn = length, .params = ""},
    {.name = "lower", .fn = rose_tpl_filter_case, .params = "", .variant = TPL_LOWER},
    {.name = "replace", .fn = replace, .params = "old new count", .need = 2},
    {.name = "round", .fn = round_number, .params = "precision method"},
    {.name = "safe", .fn = string, .params = ""},
    {.name = "string", .fn = string, .params = ""},
    {.name = "title", .fn = rose_tpl_filter_case, .params = "", .variant = TPL_TITLE_WORDS},
    {.name = "tojson",
     .fn = rose_tpl_filter_tojson,
     .params = "ensure_ascii indent separators sort_keys"},
    {.name = "trim", .fn = trim, .params = "chars"},
    {.name = "upper", .fn = rose_tpl_filter_case, .params = "", .variant = TPL_UPPER},
    {.name = "wordcount", .fn = wordcount, .params = ""},
    {0}};

const tpl_builtin *rose_tpl_filter_text_find(const tpl_text *name)
{
    return rose_tpl_find_in(filters, name);
}

const tpl_builtin *rose_tpl_filter_find(const tpl_text *name)
{
    const tpl_builtin *b = rose_tpl_filter_text_find(name);
    return b != NULL ? b : rose_tpl_filter_seq_find(name);
}
