/* template/format.c - "%s" % values and "{}".format(values): the conversions that templates use.
 * Others are refused. */
#include "template/template_internal.h"

#include <math.h>
#include <stdio.h>

typedef struct spec {
    bool left, zero, plus;
    int64_t width, precision; /* precision -1: none */
    char type;
} spec;

static int64_t read_number(rose_tpl *t, const tpl_text *x, size_t *at)
{
    int64_t n = 0;
    for (; *at < x->n && x->s[*at] >= '0' && x->s[*at] <= '9'; (*at)++) {
        n = n * 10 + (x->s[*at] - '0');
        if (n > 10000) rose_tpl_fail(t, "a width of more than 10000 in a format");
    }
    return n;
}

static void put_padded(tpl_buf *b, const tpl_text *x, const spec *s, bool number)
{
    int64_t pad = s->width - (int64_t)rose_tpl_chars(b->t, x);
    size_t sign = number && s->zero && x->n > 0 && (x->s[0] == '-' || x->s[0] == '+');
    bool zero = s->zero && number && !s->left;
    if (s->left || zero) rose_tpl_put_part(b, x, 0, s->left ? x->n : sign);
    for (; pad > 0; pad--)
        rose_tpl_puts(b, zero ? "0" : " ", TPL_TEMPLATE);
    if (!s->left) rose_tpl_put_part(b, x, zero ? sign : 0, x->n);
}

static const tpl_text *number_text(rose_tpl *t, tpl_value v, const spec *s)
{
    char text[400];
    tpl_buf b = {.t = t};
    rose_tpl_want_defined(t, v);
    if (!rose_tpl_is_number(v)) rose_tpl_fail(t, "a format needs a number");
    if (v.kind == TPL_BIG && s->type != 'f' && !s->plus) return v.u.str;
    if (s->type == 'f') {
        int64_t digits = s->precision < 0 ? 6 : s->precision;
        if (digits > 60) rose_tpl_fail(t, "more than 60 digits in a format");
        rose_tpl_step(t, STEPS_A_FLOAT);
        snprintf(text, sizeof text, s->plus ? "%+.*f" : "%.*f", (int)digits, rose_tpl_as_double(v));
    } else {
        double f = v.kind == TPL_FLOAT ? trunc(v.u.f) : 0;
        if (!(fabs(f) < 9.2e18)) rose_tpl_fail(t, "an integer does not fit 64 bits");
        long long i = v.kind == TPL_FLOAT ? (long long)f : rose_tpl_as_int(t, v);
        snprintf(text, sizeof text, s->plus ? "%+lld" : "%lld", i);
    }
    rose_tpl_puts(&b, text, v.mark);
    return rose_tpl_buf_text(&b);
}

static void put_value(tpl_buf *b, tpl_value v, const spec *s)
{
    rose_tpl *t = b->t;
    if (s->type == 'd' || s->type == 'i' || s->type == 'u' || s->type == 'f') {
        put_padded(b, number_text(t, v, s), s, true);
        return;
    }
    if (s->type != 's' && s->type != 'r') rose_tpl_fail(t, "'%%%c' in a format", s->type);
    tpl_buf repr = {.t = t};
    const tpl_text *x;
    if (s->type == 'r') {
        rose_tpl_put_repr(&repr, v);
        x = rose_tpl_buf_text(&repr);
    } else {
        x = rose_tpl_to_text(t, v);
    }
    if (s->precision >= 0) x = rose_tpl_part(t, x, 0, rose_tpl_offset(t, x, (size_t)s->precision));
    put_padded(b, x, s, false);
}

static spec read_spec(rose_tpl *t, const tpl_text *x, size_t *at)
{
    spec s = {.precision = -1};
    for (; *at < x->n; (*at)++) {
        if (x->s[*at] == '-')
            s.left = true;
        else if (x->s[*at] == '0')
            s.zero = true;
        else if (x->s[*at] == '+')
            s.plus = true;
        else
            break;
    }
    s.width = read_number(t, x, at);
    if (*at < x->n && x->s[*at] == '.') {
        ++*at;
        s.precision = read_number(t, x, at);
    }
    if (*at >= x->n) rose_tpl_fail(t, "an incomplete format");
    s.type = x->s[(*at)++];
    return s;
}

/* %(name)s takes a member of a dictionary. */
static const tpl_value *named(rose_tpl *t, const tpl_text *x, size_t *at, tpl_value values)
{
    const char *end = memchr(x->s + *at, ')', x->n - *at);
    const tpl_value *v;
    if (end == NULL || values.kind != TPL_DICT) rose_tpl_fail(t, "a format needs a mapping");
    size_t to = (size_t)(end - x->s);
    v = rose_tpl_dict_get(t, values.u.dict, rose_tpl_str(rose_tpl_part(t, x, *at + 1, to)));
    if (v == NULL) rose_tpl_fail(t, "a name of a format is missing");
    *at = to + 1;
    return v;
}

tpl_value rose_tpl_percent(rose_tpl *t, const tpl_text *x, tpl_value values)
{
    tpl_buf b = {.t = t};
    tpl_value one[1] = {values};
    const tpl_value *all = values.kind == TPL_TUPLE ? values.u.seq->items : one;
    size_t n = values.kind == TPL_TUPLE ? values.u.seq->n : 1, used = 0;
    for (size_t i = 0; i < x->n;) {
        const char *p = memchr(x->s + i, '%', x->n - i);
        size_t at = p == NULL ? x->n : (size_t)(p - x->s);
        rose_tpl_put_part(&b, x, i, at);
        rose_tpl_step(t, 0);
        if (at == x->n) break;
        i = at + 1;
        const tpl_value *v = i < x->n && x->s[i] == '(' ? named(t, x, &i, values) : NULL;
        spec s = read_spec(t, x, &i);
        if (s.type == '%') {
            rose_tpl_put_part(&b, x, at, at + 1);
            continue;
        }
        if (v == NULL && used == n) rose_tpl_fail(t, "not enough values for a format");
        put_value(&b, v == NULL ? all[used++] : *v, &s);
    }
    /* Python ignores a single value that has members. */
    if (used < n && values.kind != TPL_UNDEF && values.kind != TPL_LIST &&
        values.kind != TPL_RANGE && values.kind != TPL_DICT)
        rose_tpl_fail(t, "too many values for a format");
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

/* The value of {}, {0} or {name}. */
static tpl_value field(rose_tpl *t, const tpl_text *name, const tpl_args *raw, size_t *next)
{
    size_t at = 0;
    if (name->n == 0) {
        if (*next >= raw->n) rose_tpl_fail(t, "not enough values for a format");
        return raw->pos[(*next)++];
    }
    rose_tpl_step(t, raw->n_named / 8);
    for (size_t i = 0; i < raw->n_named; i++) {
        if (rose_tpl_text_eq(t, raw->named[i].key.u.str, name)) return raw->named[i].value;
    }
    int64_t i = read_number(t, name, &at);
    if (at != name->n || i >= (int64_t)raw->n)
        rose_tpl_fail(t, "the field '%.*s' of a format", (int)(name->n > 40 ? 40 : name->n),
                      name->s);
    return raw->pos[i];
}

tpl_value rose_tpl_method_format(const tpl_in *in)
{
    rose_tpl *t = in->t;
    const tpl_args *raw = in->raw;
    const tpl_text *x = in->v.u.str;
    tpl_buf b = {.t = t};
    size_t next = 0;
    for (size_t i = 0; i < x->n; i++) {
        bool twice = i + 1 < x->n && x->s[i + 1] == x->s[i];
        if (x->s[i] != '{' && x->s[i] != '}') {
            rose_tpl_put_part(&b, x, i, i + 1);
        } else if (twice) {
            rose_tpl_put_part(&b, x, i, i + 1);
            i++;
        } else {
            const char *end = x->s[i] == '{' ? memchr(x->s + i, '}', x->n - i) : NULL;
            if (end == NULL) rose_tpl_fail(t, "a single brace in a format");
            const tpl_text *name = rose_tpl_part(t, x, i + 1, (size_t)(end - x->s));
            rose_tpl_put_text(&b, rose_tpl_to_text(t, field(t, name, raw, &next)));
            i = (size_t)(end - x->s);
        }
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}
