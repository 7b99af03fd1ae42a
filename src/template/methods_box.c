/* template/methods_box.c - methods of dictionaries, lists and `loop` that the sandbox allows: those
 * that change nothing. */
#include "template/template_internal.h"

/* ---- dictionaries ---- */

static tpl_value get(const tpl_in *in)
{
    const tpl_value *found = rose_tpl_dict_get(in->t, in->v.u.dict, in->arg[0]);
    if (found != NULL) return *found;
    return in->arg[1].kind == TPL_MISSING ? rose_tpl_none() : in->arg[1];
}

enum { KEYS, VALUES, ITEMS };

static tpl_value view(const tpl_in *in)
{
    static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
    const tpl_dict *d = in->v.u.dict;
    tpl_value out = rose_tpl_seq_new(in->t, TPL_VIEW, d->n, in->v.mark);
    out.u.seq->name = names[in->variant];
    for (size_t i = 0; i < d->n; i++) {
        const tpl_pair *p = &d->pairs[i];
        out.u.seq->items[i] = in->variant == KEYS     ? p->key
                              : in->variant == VALUES ? p->value
                                                      : rose_tpl_pair(in->t, p, in->v.mark);
    }
    return out;
}

static tpl_value copy(const tpl_in *in)
{
    return in->v;
}

/* ---- lists ---- */

static tpl_value list_count(const tpl_in *in)
{
    int64_t n = 0;
    for (size_t i = 0; i < in->v.u.seq->n; i++)
        n += rose_tpl_equal(in->t, in->v.u.seq->items[i], in->arg[0]);
    return rose_tpl_int(n, TPL_TEMPLATE);
}

static tpl_value list_index(const tpl_in *in)
{
    for (size_t i = 0; i < in->v.u.seq->n; i++) {
        if (rose_tpl_equal(in->t, in->v.u.seq->items[i], in->arg[0]))
            return rose_tpl_int((int64_t)i, TPL_TEMPLATE);
    }
    rose_tpl_fail(in->t, "the value is not in the list");
}

/* ---- loop ---- */

static tpl_value cycle(const tpl_in *in)
{
    if (in->raw->n == 0) rose_tpl_fail(in->t, "no items for cycling given");
    return in->raw->pos[in->v.u.loop->at % in->raw->n];
}

static tpl_value changed(const tpl_in *in)
{
    tpl_loop *l = in->v.u.loop;
    bool same = l->changed_set && l->n_changed == in->raw->n;
    for (size_t i = 0; i < in->raw->n && same; i++)
        same = rose_tpl_equal(in->t, l->changed[i], in->raw->pos[i]);
    l->changed_set = true;
    l->changed = in->raw->pos;
    l->n_changed = in->raw->n;
    return rose_tpl_bool(!same);
}

#define METHOD(n, of, f, p, k, v)                                                                  \
    {                                                                                              \
        .name = n, .fn = f, .params = p, .need = k, .kind = of, .pos_only = 1, .variant = v        \
    }
#define CHANGE(n, of)                                                                              \
    {                                                                                              \
        .name = n, .kind = of                                                                      \
    }

static const tpl_builtin methods[] = {METHOD("get", TPL_DICT, get, "key default", 1, 0),
                                      METHOD("keys", TPL_DICT, view, "", 0, KEYS),
                                      METHOD("values", TPL_DICT, view, "", 0, VALUES),
                                      METHOD("items", TPL_DICT, view, "", 0, ITEMS),
                                      METHOD("copy", TPL_DICT, copy, "", 0, 0),
                                      METHOD("count", TPL_LIST, list_count, "value", 1, 0),
                                      METHOD("index", TPL_LIST, list_index, "value", 1, 0),
                                      METHOD("copy", TPL_LIST, copy, "", 0, 0),
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
