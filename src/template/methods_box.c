/* template/methods_box.c - methods of dictionaries, lists and `loop` that the sandbox allows: those
 * that change nothing. */
#include "template/template_internal.h"

#define METHOD(name)                                                                               \
    static tpl_value name(rose_tpl *t, tpl_value v, const tpl_value *arg, const tpl_args *raw)
#define UNUSED (void)t, (void)v, (void)arg, (void)raw

/* ---- dictionaries ---- */

METHOD(get)
{
    const tpl_value *found = rose_tpl_dict_get(t, v.u.dict, arg[0]);
    UNUSED;
    if (found != NULL) return *found;
    return arg[1].kind == TPL_MISSING ? rose_tpl_none() : arg[1];
}

static tpl_value view(rose_tpl *t, tpl_value v, const char *name, int what)
{
    const tpl_dict *d = v.u.dict;
    tpl_value out = rose_tpl_seq_new(t, TPL_VIEW, d->n, v.mark);
    out.u.seq->name = name;
    for (size_t i = 0; i < d->n; i++) {
        tpl_value *to = &out.u.seq->items[i];
        *to = what == 0 ? d->pairs[i].key : d->pairs[i].value;
        if (what < 2) continue;
        *to = rose_tpl_seq_new(t, TPL_TUPLE, 2, v.mark);
        to->u.seq->items[0] = d->pairs[i].key;
        to->u.seq->items[1] = d->pairs[i].value;
    }
    return out;
}

METHOD(keys)
{
    UNUSED;
    return view(t, v, "dict_keys", 0);
}

METHOD(values)
{
    UNUSED;
    return view(t, v, "dict_values", 1);
}

METHOD(items)
{
    UNUSED;
    return view(t, v, "dict_items", 2);
}

METHOD(copy)
{
    UNUSED;
    return v;
}

/* ---- lists ---- */

METHOD(list_count)
{
    int64_t n = 0;
    UNUSED;
    for (size_t i = 0; i < v.u.seq->n; i++)
        n += rose_tpl_equal(t, v.u.seq->items[i], arg[0]);
    return rose_tpl_int(n, TPL_TEMPLATE);
}

METHOD(list_index)
{
    UNUSED;
    for (size_t i = 0; i < v.u.seq->n; i++) {
        if (rose_tpl_equal(t, v.u.seq->items[i], arg[0]))
            return rose_tpl_int((int64_t)i, TPL_TEMPLATE);
    }
    rose_tpl_fail(t, "the value is not in the list");
}

/* ---- loop ---- */

METHOD(cycle)
{
    UNUSED;
    if (raw->n == 0) rose_tpl_fail(t, "no items for cycling given");
    return raw->pos[v.u.loop->at % raw->n];
}

METHOD(changed)
{
    tpl_loop *l = v.u.loop;
    bool same = l->changed_set && l->n_changed == raw->n;
    UNUSED;
    for (size_t i = 0; i < raw->n && same; i++)
        same = rose_tpl_equal(t, l->changed[i], raw->pos[i]);
    l->changed_set = true;
    l->changed = raw->pos;
    l->n_changed = raw->n;
    return rose_tpl_bool(!same);
}

#define DICT(n, f, p, k)                                                                           \
    {                                                                                              \
        .name = n, .fn = f, .params = p, .need = k, .kind = TPL_DICT, .pos_only = 1                \
    }
#define LIST(n, f, p, k)                                                                           \
    {                                                                                              \
        .name = n, .fn = f, .params = p, .need = k, .kind = TPL_LIST, .pos_only = 1                \
    }
#define CHANGE(n, of)                                                                              \
    {                                                                                              \
        .name = n, .kind = of                                                                      \
    }

static const tpl_builtin methods[] = {DICT("get", get, "key default", 1),
                                      DICT("keys", keys, "", 0),
                                      DICT("values", values, "", 0),
                                      DICT("items", items, "", 0),
                                      DICT("copy", copy, "", 0),
                                      LIST("count", list_count, "value", 1),
                                      LIST("index", list_index, "value", 1),
                                      LIST("copy", copy, "", 0),
                                      {.name = "cycle", .fn = cycle, .kind = TPL_LOOP},
                                      {.name = "changed", .fn = changed, .kind = TPL_LOOP},
                                      {0}};

/* Methods that would change a value: the sandbox hides them. */
static const tpl_builtin changing[] = {CHANGE("append", TPL_LIST),  CHANGE("clear", TPL_LIST),
                                       CHANGE("extend", TPL_LIST),  CHANGE("insert", TPL_LIST),
                                       CHANGE("pop", TPL_LIST),     CHANGE("remove", TPL_LIST),
                                       CHANGE("reverse", TPL_LIST), CHANGE("sort", TPL_LIST),
                                       CHANGE("clear", TPL_DICT),   CHANGE("pop", TPL_DICT),
                                       CHANGE("popitem", TPL_DICT), CHANGE("setdefault", TPL_DICT),
                                       CHANGE("update", TPL_DICT),  {0}};

static const tpl_builtin *find_method(const tpl_builtin *b, uint8_t kind, const tpl_text *name)
{
    for (; b->name != NULL; b++) {
        if (b->kind == kind && rose_tpl_text_is(name, b->name)) return b;
    }
    return NULL;
}

const tpl_builtin *rose_tpl_method(tpl_value v, const tpl_text *name)
{
    uint8_t kind = v.kind;
    if (kind == TPL_TUPLE && (rose_tpl_text_is(name, "count") || rose_tpl_text_is(name, "index")))
        kind = TPL_LIST;
    if (kind == TPL_STR) return rose_tpl_method_text(name);
    return find_method(methods, kind, name);
}

bool rose_tpl_method_changes(tpl_value v, const tpl_text *name)
{
    return find_method(changing, v.kind, name) != NULL;
}
