/* template/filters_seq.c - filters over lists and dictionaries. Filters that are generators in
 * jinja2 work through all items at once here. Their result can be read once, as in jinja2. */
#include "template/template_internal.h"

/* What a generator reads: a false value has no items, and one that cannot be read fails late. */
static bool lazy_items(rose_tpl *t, tpl_value v, const tpl_value **all, size_t *n, tpl_value *out)
{
    bool ok = rose_tpl_is_seq(v) || v.kind == TPL_STR || v.kind == TPL_DICT || v.kind == TPL_UNDEF;
    *all = NULL;
    *n = 0;
    if (rose_tpl_truth(v) && ok) *all = rose_tpl_items(t, v, n);
    *out = rose_tpl_seq_new(t, TPL_GEN, *n, v.mark);
    out->u.seq->broken = rose_tpl_truth(v) && !ok;
    return !out->u.seq->broken;
}

const tpl_builtin *rose_tpl_find_in(const tpl_builtin *table, const tpl_text *name)
{
    for (; table->name != NULL; table++) {
        if (rose_tpl_text_is(name, table->name)) return table;
    }
    return NULL;
}

/* ---- attributes ---- */

static tpl_value path_part(const tpl_text *x)
{
    int64_t i = 0;
    bool number = x->n > 0 && x->n < 18;
    for (size_t k = 0; k < x->n && number; k++) {
        number = x->s[k] >= '0' && x->s[k] <= '9';
        i = i * 10 + (x->s[k] - '0');
    }
    return number ? rose_tpl_int(i, TPL_TEMPLATE) : rose_tpl_str(x);
}

tpl_value rose_tpl_path(rose_tpl *t, tpl_value v, tpl_value path)
{
    const tpl_text dot = {.s = ".", .n = 1};
    if (path.kind == TPL_MISSING || path.kind == TPL_NONE) return v;
    if (path.kind != TPL_STR) return rose_tpl_item(t, v, path);
    for (size_t from = 0;;) {
        size_t to = rose_tpl_find(t, path.u.str, from, &dot);
        size_t end = to == SIZE_MAX ? path.u.str->n : to;
        v = rose_tpl_item(t, v, path_part(rose_tpl_part(t, path.u.str, from, end)));
        if (to == SIZE_MAX) return v;
        from = to + 1;
    }
}

static tpl_value fold_case(rose_tpl *t, tpl_value v)
{
    return v.kind == TPL_STR ? rose_tpl_str(rose_tpl_to_case(t, v.u.str, TPL_LOWER)) : v;
}

/* What items are sorted or told apart by. */
static tpl_value key_of(rose_tpl *t, tpl_value v, tpl_value path, bool case_sensitive)
{
    v = rose_tpl_path(t, v, path);
    return case_sensitive ? v : fold_case(t, v);
}

/* A list of the keys of "a,b.c", which compares as Python's lists do. */
static tpl_value sort_key(rose_tpl *t, tpl_value v, tpl_value paths, bool case_sensitive)
{
    const tpl_text comma = {.s = ",", .n = 1};
    size_t n = 1, from = 0;
    if (paths.kind == TPL_STR) {
        rose_tpl_visit(t, paths.u.str->n);
        for (size_t i = 0; i < paths.u.str->n; i++)
            n += paths.u.str->s[i] == ',';
    }
    tpl_value out = rose_tpl_seq_new(t, TPL_LIST, n, TPL_TEMPLATE);
    for (size_t i = 0; i < n; i++) {
        tpl_value path = paths;
        if (paths.kind == TPL_STR) {
            size_t to = rose_tpl_find(t, paths.u.str, from, &comma);
            if (to == SIZE_MAX) to = paths.u.str->n;
            path = rose_tpl_str(rose_tpl_part(t, paths.u.str, from, to));
            from = to + 1;
        }
        out.u.seq->items[i] = key_of(t, v, path, case_sensitive);
    }
    return out;
}

static tpl_value ordered(rose_tpl *t, const tpl_value *items, const tpl_value *keys, size_t n,
                         bool reverse, uint8_t mark)
{
    tpl_value out = rose_tpl_seq_new(t, TPL_LIST, n, mark);
    size_t *order = rose_tpl_array(t, n, sizeof *order);
    rose_tpl_sort(t, keys, order, n, reverse);
    for (size_t i = 0; i < n; i++)
        out.u.seq->items[i] = items[order[i]];
    return out;
}

/* sort(reverse, case_sensitive, attribute) */
static tpl_value sort(const tpl_in *in)
{
    size_t n;
    const tpl_value *items = rose_tpl_items(in->t, in->v, &n);
    tpl_value *keys = rose_tpl_array(in->t, n, sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = sort_key(in->t, items[i], in->arg[2], rose_tpl_truth(in->arg[1]));
    return ordered(in->t, items, keys, n, rose_tpl_truth(in->arg[0]), in->v.mark);
}

static const tpl_dict *want_dict(rose_tpl *t, tpl_value v)
{
    rose_tpl_want_defined(t, v);
    if (v.kind != TPL_DICT) rose_tpl_fail(t, "a mapping is needed, not %s", rose_tpl_kind_name(v));
    return v.u.dict;
}

/* dictsort(case_sensitive, by, reverse) */
static tpl_value dictsort(const tpl_in *in)
{
    const tpl_dict *d = want_dict(in->t, in->v);
    tpl_value *keys = rose_tpl_array(in->t, d->n, sizeof *keys);
    tpl_value *items = rose_tpl_array(in->t, d->n, sizeof *items);
    bool by_value = in->arg[1].kind == TPL_STR && rose_tpl_text_is(in->arg[1].u.str, "value");
    if (in->arg[1].kind != TPL_MISSING && !by_value &&
        !(in->arg[1].kind == TPL_STR && rose_tpl_text_is(in->arg[1].u.str, "key")))
        rose_tpl_fail(in->t, "dictsort sorts by key or value");
    for (size_t i = 0; i < d->n; i++) {
        tpl_value k = by_value ? d->pairs[i].value : d->pairs[i].key;
        keys[i] = rose_tpl_truth(in->arg[0]) ? k : fold_case(in->t, k);
        items[i] = rose_tpl_pair(in->t, &d->pairs[i], in->v.mark);
    }
    return ordered(in->t, items, keys, d->n, rose_tpl_truth(in->arg[2]), in->v.mark);
}

static tpl_value items(const tpl_in *in)
{
    size_t n = in->v.kind == TPL_DICT ? in->v.u.dict->n : 0;
    tpl_value out = rose_tpl_seq_new(in->t, TPL_GEN, n, in->v.mark);
    out.u.seq->broken = in->v.kind != TPL_DICT && in->v.kind != TPL_UNDEF;
    for (size_t i = 0; i < n; i++)
        out.u.seq->items[i] = rose_tpl_pair(in->t, &in->v.u.dict->pairs[i], in->v.mark);
    return out;
}

static tpl_value list(const tpl_in *in)
{
    size_t n;
    tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    return rose_tpl_seq_of(in->t, TPL_LIST, all, n, in->v.mark);
}

static tpl_value join(const tpl_in *in)
{
    size_t n;
    const tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    const tpl_text *by =
        in->arg[0].kind == TPL_MISSING ? NULL : rose_tpl_to_text(in->t, in->arg[0]);
    tpl_buf b = {.t = in->t};
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && by != NULL) rose_tpl_put_text(&b, by);
        rose_tpl_put_text(&b, rose_tpl_to_text(in->t, rose_tpl_path(in->t, all[i], in->arg[1])));
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static tpl_value first(const tpl_in *in)
{
    size_t n;
    tpl_value *all;
    if (in->v.kind == TPL_GEN) {
        tpl_seq *s = in->v.u.seq;
        if (s->cursor < s->n) return s->items[s->cursor++];
        rose_tpl_items(in->t, in->v, &n); /* fails if it is broken */
        return rose_tpl_undef(in->t, "No first item, sequence was empty.");
    }
    all = rose_tpl_items(in->t, in->v, &n);
    return n > 0 ? all[0] : rose_tpl_undef(in->t, "No first item, sequence was empty.");
}

static tpl_value last(const tpl_in *in)
{
    size_t n;
    const tpl_value *all;
    if (in->v.kind == TPL_GEN) rose_tpl_fail(in->t, "a generator cannot be reversed");
    all = rose_tpl_items(in->t, in->v, &n);
    return n > 0 ? all[n - 1] : rose_tpl_undef(in->t, "No last item, sequence was empty.");
}

static tpl_value reverse(const tpl_in *in)
{
    const tpl_value minus = rose_tpl_int(-1, TPL_TEMPLATE);
    const tpl_value part[3] = {{.kind = TPL_MISSING}, {.kind = TPL_MISSING}, minus};
    size_t n;
    if (in->v.kind == TPL_STR) return rose_tpl_slice(in->t, in->v, part);
    bool was_gen = in->v.kind == TPL_GEN;
    const tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    tpl_value out = rose_tpl_seq_new(in->t, was_gen ? TPL_LIST : TPL_GEN, n, in->v.mark);
    for (size_t i = 0; i < n; i++)
        out.u.seq->items[i] = all[n - 1 - i];
    return out;
}

/* unique(case_sensitive, attribute) */
static tpl_value unique(const tpl_in *in)
{
    size_t n, kept = 0;
    const tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    tpl_value out = rose_tpl_seq_new(in->t, TPL_GEN, n, in->v.mark);
    tpl_value seen = rose_tpl_dict_new(in->t, TPL_TEMPLATE);
    for (size_t i = 0; i < n; i++) {
        tpl_value key = key_of(in->t, all[i], in->arg[1], rose_tpl_truth(in->arg[0]));
        size_t before = seen.u.dict->n;
        rose_tpl_dict_put(in->t, seen.u.dict, key, key);
        if (seen.u.dict->n > before) out.u.seq->items[kept++] = all[i];
    }
    out.u.seq->n = kept;
    return out;
}

enum { MIN, MAX };

static tpl_value extreme(const tpl_in *in)
{
    rose_tpl *t = in->t;
    const bool max = in->variant == MAX;
    size_t n, best = 0;
    const tpl_value *all = rose_tpl_items(t, in->v, &n);
    tpl_value best_key = {0};
    if (n == 0) return rose_tpl_undef(t, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < n; i++) {
        tpl_value key = key_of(t, all[i], in->arg[1], rose_tpl_truth(in->arg[0]));
        if (i > 0 && rose_tpl_order(t, key, best_key, max ? ">" : "<") != (max ? 1 : -1)) continue;
        best = i;
        best_key = key;
    }
    return all[best];
}

/* sum(attribute, start) */
static tpl_value sum(const tpl_in *in)
{
    size_t n;
    const tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    tpl_value out = in->arg[1].kind == TPL_MISSING ? rose_tpl_int(0, TPL_TEMPLATE) : in->arg[1];
    if (out.kind == TPL_STR) rose_tpl_fail(in->t, "sum cannot add strings");
    for (size_t i = 0; i < n; i++)
        out = rose_tpl_binary(in->t, OP_ADD, out, rose_tpl_path(in->t, all[i], in->arg[0]));
    return out;
}

/* batch(linecount, fill_with) */
static tpl_value batch(const tpl_in *in)
{
    size_t n, rows;
    int64_t size = rose_tpl_index(in->t, in->arg[0], "linecount");
    tpl_value *all = rose_tpl_items(in->t, in->v, &n);
    if (size < 1) rose_tpl_fail(in->t, "batch needs a positive number of items");
    rows = (n + (size_t)size - 1) / (size_t)size;
    tpl_value out = rose_tpl_seq_new(in->t, TPL_GEN, rows, in->v.mark);
    for (size_t i = 0; i < rows; i++) {
        size_t from = i * (size_t)size;
        size_t have = n - from < (size_t)size ? n - from : (size_t)size;
        size_t len = rose_tpl_given(in->arg[1]) ? (size_t)size : have;
        tpl_value row = rose_tpl_seq_new(in->t, TPL_LIST, len, in->v.mark);
        for (size_t k = 0; k < len; k++)
            row.u.seq->items[k] = k < have ? all[from + k] : in->arg[1];
        out.u.seq->items[i] = row;
    }
    return out;
}

/* ---- map, select and their kind: the first argument names a filter or test ---- */

static const tpl_text *name_of(rose_tpl *t, tpl_value v)
{
    if (v.kind != TPL_STR) rose_tpl_fail(t, "the name of a filter or test must be a string");
    return v.u.str;
}

static tpl_value map_one(rose_tpl *t, tpl_value v, const tpl_args *raw, const tpl_builtin *filter,
                         const tpl_args *rest)
{
    tpl_value out = {.kind = TPL_MISSING}, standby = {.kind = TPL_NONE};
    if (filter != NULL) return rose_tpl_call_builtin(t, filter, v, rest);
    rose_tpl_step(t, raw->n_named);
    for (size_t i = 0; i < raw->n_named; i++) {
        if (rose_tpl_text_is(raw->named[i].key.u.str, "attribute"))
            out = rose_tpl_path(t, v, raw->named[i].value);
        else if (rose_tpl_text_is(raw->named[i].key.u.str, "default"))
            standby = raw->named[i].value;
        else
            rose_tpl_fail(t, "map takes attribute and default only");
    }
    if (out.kind == TPL_MISSING) rose_tpl_fail(t, "map needs a filter or an attribute");
    return out.kind == TPL_UNDEF && standby.kind != TPL_NONE ? standby : out;
}

static tpl_value map(const tpl_in *in)
{
    size_t n;
    const tpl_value *all;
    const tpl_builtin *filter = NULL;
    tpl_args rest = *in->raw;
    tpl_value out;
    if (!lazy_items(in->t, in->v, &all, &n, &out)) return out;
    if (n > 0 && in->raw->n > 0) {
        if ((filter = rose_tpl_filter_find(name_of(in->t, in->raw->pos[0]))) == NULL)
            rose_tpl_fail(in->t, "map names a filter that does not exist");
        rest.pos = in->raw->pos + 1;
        rest.n = in->raw->n - 1;
    }
    for (size_t i = 0; i < n; i++)
        out.u.seq->items[i] = map_one(in->t, all[i], in->raw, filter, &rest);
    return out;
}

enum { KEEP = 1, BY_ATTR = 2 };

/* select, reject, selectattr and rejectattr; variant: a set of KEEP and BY_ATTR */
static tpl_value choose(const tpl_in *in)
{
    rose_tpl *t = in->t;
    const tpl_args *raw = in->raw;
    const bool keep = (in->variant & KEEP) != 0, by_attr = (in->variant & BY_ATTR) != 0;
    size_t n, kept = 0, skip = by_attr ? 1 : 0;
    const tpl_value *all;
    const tpl_builtin *test = NULL;
    tpl_args rest = *raw;
    tpl_value out;
    if (!lazy_items(t, in->v, &all, &n, &out)) return out;
    if (n > 0 && raw->n < skip) rose_tpl_fail(t, "the name of an attribute is missing");
    if (n > 0 && raw->n > skip) {
        if ((test = rose_tpl_test_find(name_of(t, raw->pos[skip]))) == NULL)
            rose_tpl_fail(t, "names a test that does not exist");
        rest.pos = raw->pos + skip + 1;
        rest.n = raw->n - skip - 1;
    }
    for (size_t i = 0; i < n; i++) {
        tpl_value x = by_attr ? rose_tpl_path(t, all[i], raw->pos[0]) : all[i];
        bool is = rose_tpl_truth(test == NULL ? x : rose_tpl_call_builtin(t, test, x, &rest));
        if (is == keep) out.u.seq->items[kept++] = all[i];
    }
    out.u.seq->n = kept;
    return out;
}

static tpl_value attr(const tpl_in *in)
{
    const tpl_text *name = name_of(in->t, in->arg[0]);
    if (in->v.kind == TPL_DICT && rose_tpl_method(in->v, name) == NULL)
        return rose_tpl_undef(in->t, "dict has no attribute of that name");
    return rose_tpl_attr(in->t, in->v, name);
}

const tpl_builtin *rose_tpl_filter_seq_find(const tpl_text *name)
{
    static const tpl_builtin filters[] = {
        {.name = "attr", .fn = attr, .params = "name", .need = 1},
        {.name = "batch", .fn = batch, .params = "linecount fill_with", .need = 1},
        {.name = "dictsort", .fn = dictsort, .params = "case_sensitive by reverse"},
        {.name = "first", .fn = first, .params = ""},
        {.name = "items", .fn = items, .params = ""},
        {.name = "join", .fn = join, .params = "d attribute"},
        {.name = "last", .fn = last, .params = ""},
        {.name = "list", .fn = list, .params = ""},
        {.name = "map", .fn = map},
        {.name = "max", .fn = extreme, .params = "case_sensitive attribute", .variant = MAX},
        {.name = "min", .fn = extreme, .params = "case_sensitive attribute", .variant = MIN},
        {.name = "reject", .fn = choose},
        {.name = "rejectattr", .fn = choose, .variant = BY_ATTR},
        {.name = "reverse", .fn = reverse, .params = ""},
        {.name = "select", .fn = choose, .variant = KEEP},
        {.name = "selectattr", .fn = choose, .variant = BY_ATTR | KEEP},
        {.name = "sort", .fn = sort, .params = "reverse case_sensitive attribute"},
        {.name = "sum", .fn = sum, .params = "attribute start"},
        {.name = "unique", .fn = unique, .params = "case_sensitive attribute"},
        {0}};
    return rose_tpl_find_in(filters, name);
}
