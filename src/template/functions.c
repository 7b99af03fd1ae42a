/* template/functions.c - range, dict, namespace, raise_exception, strftime_now. */
#include "template/template_internal.h"

#include <time.h>

enum { MAX_RANGE = 100000 }; /* jinja2's sandbox has the same limit */

static tpl_value range(const tpl_in *in)
{
    int64_t from = 0, to = rose_tpl_index(in->t, in->arg[0], "an argument of range"), step = 1,
            n = 0;
    if (in->arg[1].kind != TPL_MISSING) {
        from = to;
        to = rose_tpl_index(in->t, in->arg[1], "an argument of range");
    }
    if (in->arg[2].kind != TPL_MISSING)
        step = rose_tpl_index(in->t, in->arg[2], "an argument of range");
    if (step == 0) rose_tpl_fail(in->t, "the step of range cannot be zero");
    for (int64_t i = from; step > 0 ? i < to : i > to; n++) {
        if (n >= MAX_RANGE) rose_tpl_fail(in->t, "a range of more than %d items", MAX_RANGE);
        if (__builtin_add_overflow(i, step, &i)) i = to;
    }
    tpl_value out = rose_tpl_seq_new(in->t, TPL_RANGE, (size_t)n, in->arg[0].mark);
    out.u.seq->from = from;
    out.u.seq->to = to;
    out.u.seq->step = step;
    for (int64_t i = 0; i < n; i++)
        out.u.seq->items[i] = rose_tpl_int(from + i * step, TPL_TEMPLATE);
    return out;
}

static void put_all(rose_tpl *t, tpl_dict *to, tpl_value from)
{
    size_t n, two;
    if (from.kind == TPL_DICT) {
        for (size_t i = 0; i < from.u.dict->n; i++)
            rose_tpl_dict_put(t, to, from.u.dict->pairs[i].key, from.u.dict->pairs[i].value);
        return;
    }
    const tpl_value *items = rose_tpl_items(t, from, &n);
    for (size_t i = 0; i < n; i++) {
        const tpl_value *pair = rose_tpl_items(t, items[i], &two);
        if (two != 2) rose_tpl_fail(t, "a dict is made of pairs");
        rose_tpl_dict_put(t, to, pair[0], pair[1]);
    }
}

static tpl_value dict(const tpl_in *in)
{
    tpl_value out = rose_tpl_dict_new(in->t, TPL_TEMPLATE);
    if (in->raw->n > 1)
        rose_tpl_fail(in->t, "dict and namespace take at most one value without a name");
    if (in->raw->n == 1) {
        out.mark = in->raw->pos[0].mark;
        put_all(in->t, out.u.dict, in->raw->pos[0]);
    }
    for (size_t i = 0; i < in->raw->n_named; i++)
        rose_tpl_dict_put(in->t, out.u.dict, in->raw->named[i].key, in->raw->named[i].value);
    return out;
}

static tpl_value space(const tpl_in *in)
{
    tpl_value out = dict(in);
    for (size_t i = 0; i < out.u.dict->n; i++) {
        tpl_value k = out.u.dict->pairs[i].key;
        if (k.kind == TPL_STR && k.u.str->n > 0 && k.u.str->s[0] == '_')
            rose_tpl_fail(in->t, "an attribute of a namespace cannot begin with an underscore");
    }
    out.kind = TPL_SPACE;
    return out;
}

static tpl_value raise_exception(const tpl_in *in)
{
    const tpl_text *x = rose_tpl_to_text(in->t, in->arg[0]);
    rose_tpl_fail(in->t, "%.*s", (int)(x->n > 400 ? 400 : x->n), x->s);
}

static tpl_value strftime_now(const tpl_in *in)
{
    char format[200], out[600];
    time_t now = (time_t)in->t->now_s;
    struct tm tm;
    tpl_buf b = {.t = in->t};
    rose_tpl_step(in->t, STEPS_A_DATE);
    rose_tpl_want_defined(in->t, in->arg[0]);
    if (in->arg[0].kind != TPL_STR || in->arg[0].u.str->n >= sizeof format)
        rose_tpl_fail(in->t, "strftime_now takes a format of at most %zu bytes", sizeof format - 1);
    memcpy(format, in->arg[0].u.str->s, in->arg[0].u.str->n);
    format[in->arg[0].u.str->n] = '\0';
    if ((in->t->utc ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)) == NULL)
        rose_tpl_fail(in->t, "the clock is out of range");
    out[0] = '\0';
    /* The template's author writes the format, and strftime has no conversion that reads more. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(out, sizeof out, format, &tm);
#pragma GCC diagnostic pop
    if (!rose_utf8_is_valid(out, n)) rose_tpl_fail(in->t, "the date is not UTF-8");
    rose_tpl_put(&b, out, n, rose_tpl_text_mark(in->t, in->arg[0].u.str, 0, in->arg[0].u.str->n));
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

void rose_tpl_functions_add(rose_tpl *t, tpl_scope *s)
{
    static const tpl_builtin functions[] = {
        {.name = "range", .fn = range, .params = "start stop step", .need = 1, .pos_only = true},
        {.name = "dict", .fn = dict},
        {.name = "namespace", .fn = space},
        {.name = "raise_exception", .fn = raise_exception, .params = "message", .need = 1},
        {.name = "strftime_now", .fn = strftime_now, .params = "format", .need = 1},
        {0}};
    for (const tpl_builtin *b = functions; b->name != NULL; b++) {
        tpl_func *f = rose_tpl_take(t, sizeof *f);
        *f = (tpl_func){.builtin = b};
        rose_tpl_scope_set(t, s, rose_tpl_cstr(t, b->name).u.str,
                           (tpl_value){.kind = TPL_FUNC, .u.fn = f});
    }
}
