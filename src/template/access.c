/* template/access.c - value.name, value[key] and value[a:b:c], with the rules of jinja2's sandbox:
 * `.name` looks for a method first, `[key]` for a member first. */
#include "template/template_internal.h"

static tpl_value method_of(rose_tpl *t, tpl_value v, const tpl_builtin *b)
{
    tpl_func *f = rose_tpl_take(t, sizeof *f);
    *f = (tpl_func){.builtin = b, .self = v};
    return (tpl_value){.kind = TPL_FUNC, .u.fn = f};
}

static tpl_value no_member(rose_tpl *t, tpl_value v, const tpl_text *name)
{
    return rose_tpl_undef(t, "%s has no member '%.*s'", rose_tpl_kind_name(v),
                          (int)(name->n > 60 ? 60 : name->n), name->s);
}

/* Members of `loop` that are numbers. Three of them depend on the number of all items. */
static bool loop_number(rose_tpl *t, tpl_loop *l, const tpl_text *name, tpl_value *out)
{
    static const char *const totals[] = {"revindex", "revindex0", "length"};
    size_t n = l->n;
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        if (rose_tpl_text_is(name, totals[i])) n = rose_tpl_loop_find(t, l, SIZE_MAX);
    const struct {
        const char *name;
        size_t value;
    } numbers[] = {{"index", l->at + 1},         {"index0", l->at}, {"revindex", n - l->at},
                   {"revindex0", n - l->at - 1}, {"length", n},     {"depth", l->depth0 + 1},
                   {"depth0", l->depth0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        *out = rose_tpl_int((int64_t)numbers[i].value, TPL_TEMPLATE);
        if (rose_tpl_text_is(name, numbers[i].name)) return true;
    }
    return false;
}

/* Members of `loop`. */
static bool loop_member(rose_tpl *t, tpl_loop *l, const tpl_text *name, tpl_value *out)
{
    if (loop_number(t, l, name, out)) return true;
    *out = rose_tpl_bool(l->at == 0);
    if (rose_tpl_text_is(name, "first")) return true;
    if (rose_tpl_text_is(name, "previtem")) {
        *out = l->at > 0 ? l->items[l->at - 1] : rose_tpl_undef(t, "there is no previous item");
        return true;
    }
    const bool last = rose_tpl_text_is(name, "last");
    if (!last && !rose_tpl_text_is(name, "nextitem")) return false;
    const bool more = rose_tpl_loop_find(t, l, l->at + 2) > l->at + 1;
    if (last)
        *out = rose_tpl_bool(!more);
    else
        *out = more ? l->items[l->at + 1] : rose_tpl_undef(t, "there is no next item");
    return true;
}

/* What Python's getattr finds. */
static bool attribute(rose_tpl *t, tpl_value v, const tpl_text *name, tpl_value *out)
{
    const tpl_builtin *b = rose_tpl_method(v, name);
    const tpl_value *member;
    if (b != NULL) {
        *out = method_of(t, v, b);
        return true;
    }
    if (rose_tpl_method_changes(v, name)) {
        *out = rose_tpl_undef(t, "a chat template may not change a %s", rose_tpl_kind_name(v));
        return true;
    }
    if (v.kind == TPL_LOOP) return loop_member(t, v.u.loop, name, out);
    if (v.kind != TPL_SPACE) return false;
    member = rose_tpl_dict_get(t, v.u.dict, rose_tpl_str(name));
    if (member != NULL) *out = *member;
    return member != NULL;
}

/* One element; false where Python raises an error that jinja2 turns into an undefined value. */
static bool element(rose_tpl *t, tpl_value v, tpl_value key, tpl_value *out)
{
    const tpl_value *member;
    int64_t i, n;
    if (v.kind == TPL_DICT) {
        if (key.kind == TPL_LIST || key.kind == TPL_DICT) return false;
        member = rose_tpl_dict_get(t, v.u.dict, key);
        if (member != NULL) *out = *member;
        return member != NULL;
    }
    if (key.kind != TPL_INT && key.kind != TPL_BOOL) return false;
    if (v.kind != TPL_STR && v.kind != TPL_LIST && v.kind != TPL_TUPLE && v.kind != TPL_RANGE)
        return false;
    i = key.kind == TPL_BOOL ? key.u.b : key.u.i;
    n = (int64_t)rose_tpl_length(t, v);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    if (v.kind == TPL_STR) {
        size_t at = rose_tpl_offset(t, v.u.str, (size_t)i);
        *out = rose_tpl_str(rose_tpl_part(t, v.u.str, at, at + rose_tpl_char_len(v.u.str, at)));
    } else {
        *out = v.u.seq->items[i];
    }
    return true;
}

tpl_value rose_tpl_attr(rose_tpl *t, tpl_value v, const tpl_text *name)
{
    tpl_value out;
    rose_tpl_want_defined(t, v);
    if (attribute(t, v, name, &out)) return out;
    if (v.kind == TPL_DICT && element(t, v, rose_tpl_str(name), &out)) return out;
    return no_member(t, v, name);
}

tpl_value rose_tpl_item(rose_tpl *t, tpl_value v, tpl_value key)
{
    tpl_value out;
    rose_tpl_want_defined(t, v);
    if (element(t, v, key, &out)) return out;
    if (key.kind == TPL_STR) {
        if (attribute(t, v, key.u.str, &out)) return out;
        return no_member(t, v, key.u.str);
    }
    return rose_tpl_undef(t, "%s has no such element", rose_tpl_kind_name(v));
}

/* ---- slices ---- */

/* Python's slice.indices: the first index, the limit and the step. */
typedef struct range {
    int64_t from, to, step;
    size_t n;
} range;

static int64_t bound(rose_tpl *t, tpl_value v, int64_t n, int64_t step, int64_t missing)
{
    int64_t i;
    if (!rose_tpl_given(v)) return missing;
    i = rose_tpl_index(t, v, "a slice index");
    if (i < 0) {
        i = i < -n ? -1 : i + n;
        if (i < 0) return step < 0 ? -1 : 0;
    }
    return i >= n ? (step < 0 ? n - 1 : n) : i;
}

static range range_of(rose_tpl *t, const tpl_value part[3], int64_t n)
{
    range r = {.step = 1};
    if (rose_tpl_given(part[2])) r.step = rose_tpl_index(t, part[2], "a slice step");
    if (r.step == 0) rose_tpl_fail(t, "a slice step cannot be zero");
    if (r.step < -n - 1) r.step = -n - 1;
    if (r.step > n + 1) r.step = n + 1;
    r.from = bound(t, part[0], n, r.step, r.step < 0 ? n - 1 : 0);
    r.to = bound(t, part[1], n, r.step, r.step < 0 ? -1 : n);
    if (r.step > 0 && r.from < r.to) r.n = (size_t)((r.to - r.from - 1) / r.step + 1);
    if (r.step < 0 && r.from > r.to) r.n = (size_t)((r.from - r.to - 1) / -r.step + 1);
    return r;
}

static tpl_value slice_text(rose_tpl *t, const tpl_text *x, const range *r)
{
    tpl_buf b = {.t = t};
    size_t *at, i = 0;
    if (r->n == 0) return rose_tpl_str(rose_tpl_part(t, x, 0, 0));
    if (r->step == 1) {
        size_t from = rose_tpl_offset(t, x, (size_t)r->from);
        tpl_text rest = {.s = x->s + from, .n = x->n - from};
        return rose_tpl_str(rose_tpl_part(t, x, from, from + rose_tpl_offset(t, &rest, r->n)));
    }
    at = rose_tpl_array(t, rose_tpl_chars(t, x), sizeof *at);
    rose_tpl_visit(t, x->n);
    for (size_t p = 0; p < x->n; p += rose_tpl_char_len(x, p))
        at[i++] = p;
    for (size_t k = 0; k < r->n; k++) {
        size_t p = at[r->from + (int64_t)k * r->step];
        rose_tpl_put_part(&b, x, p, p + rose_tpl_char_len(x, p));
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

tpl_value rose_tpl_slice(rose_tpl *t, tpl_value v, const tpl_value part[3])
{
    range r;
    tpl_value out;
    rose_tpl_want_defined(t, v);
    if (v.kind != TPL_STR && v.kind != TPL_LIST && v.kind != TPL_TUPLE && v.kind != TPL_RANGE)
        rose_tpl_fail(t, "%s cannot be sliced", rose_tpl_kind_name(v));
    r = range_of(t, part, (int64_t)rose_tpl_length(t, v));
    if (v.kind == TPL_STR) return slice_text(t, v.u.str, &r);
    out = rose_tpl_seq_new(t, (tpl_kind)v.kind, r.n, v.mark);
    for (size_t i = 0; i < r.n; i++)
        out.u.seq->items[i] = v.u.seq->items[r.from + (int64_t)i * r.step];
    if (v.kind == TPL_RANGE) {
        const tpl_seq *s = v.u.seq;
        out.u.seq->from = s->from + r.from * s->step;
        out.u.seq->to = s->from + r.to * s->step;
        out.u.seq->step = s->step * r.step;
    }
    return out;
}
