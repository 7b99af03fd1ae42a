/* template/eval.c - expressions to values, by a walk over the tree. There is no bytecode: a
 * template runs once a request, so a second form of it would save little.
 *
 * A value that does not exist is no error here but TPL_UNDEF, which carries the words of the error:
 * templates ask `is defined` about it, and only a use of it fails. */
#include "template/template_internal.h"

/* ---- scopes ---- */

/* A scope is a list of names, looked through from its end outwards to the caller's variables. It
 * has a few names, so a list beats a hash table. An assignment always writes to the innermost
 * scope: as in jinja2, a `set` in a loop does not outlive its iteration, which is what namespace()
 * is for. */

tpl_scope *rose_tpl_scope_new(rose_tpl *t, tpl_scope *parent)
{
    tpl_scope *s = rose_tpl_take(t, sizeof *s);
    s->parent = parent;
    return s;
}

void rose_tpl_scope_set(rose_tpl *t, tpl_scope *s, const tpl_text *name, tpl_value v)
{
    rose_tpl_step(t, s->n / 8);
    for (uint32_t i = 0; i < s->n; i++) {
        if (!rose_tpl_text_eq(t, s->binds[i].name, name)) continue;
        s->binds[i].value = v;
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap;
        s->binds = rose_tpl_grown(t, s->binds, s->n, &cap, sizeof *s->binds);
        s->cap = (uint32_t)cap;
    }
    s->binds[s->n++] = (struct tpl_bind){name, v};
}

const tpl_value *rose_tpl_scope_get(rose_tpl *t, const tpl_scope *s, const tpl_text *name)
{
    for (; s != NULL; s = s->parent) {
        rose_tpl_step(t, s->n / 8);
        for (uint32_t i = 0; i < s->n; i++) {
            if (rose_tpl_text_eq(t, s->binds[i].name, name)) return &s->binds[i].value;
        }
    }
    return NULL;
}

/* ---- expressions ---- */

static tpl_value eval_name(rose_tpl *t, const tpl_node *n)
{
    const tpl_value *v = rose_tpl_scope_get(t, t->scope, n->text);
    if (v != NULL) return *v;
    return rose_tpl_undef(t, "'%.*s' is undefined", (int)(n->text->n > 60 ? 60 : n->text->n),
                          n->text->s);
}

static tpl_value eval_list(rose_tpl *t, const tpl_node *n)
{
    tpl_kind kind = n->type == N_LIST ? TPL_LIST : TPL_TUPLE;
    tpl_value out = rose_tpl_seq_new(t, kind, n->list.n, TPL_TEMPLATE);
    for (uint32_t i = 0; i < n->list.n; i++)
        out.u.seq->items[i] = rose_tpl_eval(t, n->list.at[i]);
    return out;
}

static tpl_value eval_dict(rose_tpl *t, const tpl_node *n)
{
    tpl_value out = rose_tpl_dict_new(t, TPL_TEMPLATE);
    for (uint32_t i = 0; i + 1 < n->list.n; i += 2) {
        tpl_value key = rose_tpl_eval(t, n->list.at[i]);
        rose_tpl_dict_put(t, out.u.dict, key, rose_tpl_eval(t, n->list.at[i + 1]));
    }
    return out;
}

static tpl_value eval_compare(rose_tpl *t, const tpl_node *n)
{
    tpl_value left = rose_tpl_eval(t, n->a);
    for (uint32_t i = 0; i < n->list.n; i++) {
        const tpl_node *o = n->list.at[i];
        tpl_value right = rose_tpl_eval(t, o->a);
        t->line = n->line;
        if (!rose_tpl_compare(t, (tpl_op)o->op, left, right)) return rose_tpl_bool(false);
        left = right;
    }
    return rose_tpl_bool(true);
}

static tpl_value eval_concat(rose_tpl *t, const tpl_node *n)
{
    tpl_buf b = {.t = t};
    for (uint32_t i = 0; i < n->list.n; i++)
        rose_tpl_put_text(&b, rose_tpl_to_text(t, rose_tpl_eval(t, n->list.at[i])));
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static tpl_value eval_slice(rose_tpl *t, const tpl_node *n)
{
    tpl_value v = rose_tpl_eval(t, n->a), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = n->list.at[i] == NULL ? (tpl_value){.kind = TPL_MISSING}
                                        : rose_tpl_eval(t, n->list.at[i]);
    t->line = n->line;
    return rose_tpl_slice(t, v, part);
}

void rose_tpl_eval_args(rose_tpl *t, const tpl_node *n, tpl_args *out)
{
    *out = (tpl_args){.n = n->list.n, .n_named = n->list2.n};
    out->pos = rose_tpl_array(t, out->n, sizeof *out->pos);
    out->named = rose_tpl_array(t, out->n_named + 1, sizeof *out->named); /* 1: for a caller */
    for (size_t i = 0; i < out->n; i++)
        out->pos[i] = rose_tpl_eval(t, n->list.at[i]);
    for (size_t i = 0; i < out->n_named; i++) {
        const tpl_node *arg = n->list2.at[i];
        out->named[i] = (tpl_pair){rose_tpl_str(arg->text), rose_tpl_eval(t, arg->a)};
    }
    t->line = n->line;
}

static tpl_value eval_call(rose_tpl *t, const tpl_node *n)
{
    tpl_value f = rose_tpl_eval(t, n->a);
    tpl_args args;
    rose_tpl_eval_args(t, n, &args);
    return rose_tpl_call(t, f, &args);
}

/* A filter or a test. */
static tpl_value apply(rose_tpl *t, const tpl_node *n, tpl_value v)
{
    tpl_args args;
    t->line = n->line;
    if (n->builtin == NULL)
        rose_tpl_fail(t, "no %s named '%.*s'", n->type == N_FILTER ? "filter" : "test",
                      (int)(n->text->n > 60 ? 60 : n->text->n), n->text->s);
    rose_tpl_eval_args(t, n, &args);
    return rose_tpl_call_builtin(t, n->builtin, v, &args);
}

/* The filters of a {% set %} or {% filter %} block on its text. */
tpl_value rose_tpl_apply_filters(rose_tpl *t, const tpl_node *chain, tpl_value v)
{
    if (chain == NULL) return v;
    rose_tpl_enter(t);
    v = apply(t, chain, rose_tpl_apply_filters(t, chain->a, v));
    t->depth--;
    return v;
}

static tpl_value eval_cond(rose_tpl *t, const tpl_node *n)
{
    if (rose_tpl_truth(rose_tpl_eval(t, n->b))) return rose_tpl_eval(t, n->a);
    if (n->c != NULL) return rose_tpl_eval(t, n->c);
    return rose_tpl_undef(t, "the inline if-expression is false and has no else");
}

static tpl_value eval_pair(rose_tpl *t, const tpl_node *n)
{
    tpl_value a = rose_tpl_eval(t, n->a), b = rose_tpl_eval(t, n->b);
    t->line = n->line;
    if (n->type == N_ITEM) return rose_tpl_item(t, a, b);
    return rose_tpl_binary(t, (tpl_op)n->op, a, b);
}

static tpl_value eval_sign(rose_tpl *t, const tpl_node *n)
{
    tpl_value v = rose_tpl_eval(t, n->a);
    t->line = n->line;
    if (n->type == N_NEG) return rose_tpl_negate(t, v);
    rose_tpl_want_defined(t, v);
    if (!rose_tpl_is_number(v))
        rose_tpl_fail(t, "'+' is not supported for %s", rose_tpl_kind_name(v));
    return v.kind == TPL_BOOL ? rose_tpl_int(v.u.b, v.mark) : v;
}

static tpl_value eval_logic(rose_tpl *t, const tpl_node *n)
{
    tpl_value a = rose_tpl_eval(t, n->a);
    if (n->type == N_NOT) return rose_tpl_bool(!rose_tpl_truth(a));
    return rose_tpl_truth(a) == (n->type == N_OR) ? a : rose_tpl_eval(t, n->b);
}

static tpl_value eval_node(rose_tpl *t, const tpl_node *n)
{
    switch (n->type) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return eval_name(t, n);
    case N_LIST:
    case N_TUPLE:
        return eval_list(t, n);
    case N_DICT:
        return eval_dict(t, n);
    case N_COND:
        return eval_cond(t, n);
    case N_OR:
    case N_AND:
    case N_NOT:
        return eval_logic(t, n);
    case N_COMPARE:
        return eval_compare(t, n);
    case N_CONCAT:
        return eval_concat(t, n);
    case N_NEG:
    case N_POS:
        return eval_sign(t, n);
    case N_BINARY:
    case N_ITEM:
        return eval_pair(t, n);
    case N_SLICE:
        return eval_slice(t, n);
    case N_ATTR:
        return rose_tpl_attr(t, rose_tpl_eval(t, n->a), n->text);
    case N_CALL:
        return eval_call(t, n);
    case N_FILTER:
    case N_TEST:
        return apply(t, n, rose_tpl_eval(t, n->a));
    default:
        return rose_tpl_none(); /* the parser puts nothing else here */
    }
}

tpl_value rose_tpl_eval(rose_tpl *t, const tpl_node *n)
{
    tpl_value v;
    rose_tpl_enter(t);
    rose_tpl_step(t, 0);
    t->line = n->line;
    v = eval_node(t, n);
    t->depth--;
    return v;
}
