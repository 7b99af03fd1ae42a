/* template/exec.c - statements: they write to t->out and set names in t->scope. Blocks of `for`,
 * macros, `with`, and block assignments have a scope of their own; `if` has none.
 *
 * `break` and `continue` are values that functions return (tpl_flow). A body that gets one stops
 * and returns it to its caller, up to the nearest loop. */
#include "template/template_internal.h"

static void assign_space(rose_tpl *t, const tpl_node *target, tpl_value v)
{
    const tpl_value *space = rose_tpl_scope_get(t, t->scope, target->text);
    if (space == NULL || space->kind != TPL_SPACE)
        rose_tpl_fail(t, "cannot assign an attribute of something other than a namespace");
    if (target->text2->n > 0 && target->text2->s[0] == '_')
        rose_tpl_fail(t, "an attribute of a namespace cannot begin with an underscore");
    rose_tpl_dict_put(t, space->u.dict, rose_tpl_str(target->text2), v);
}

void rose_tpl_assign(rose_tpl *t, const tpl_node *target, tpl_value v)
{
    size_t n;
    const tpl_value *items;
    if (target->type == N_NAME) {
        rose_tpl_scope_set(t, t->scope, target->text, v);
        return;
    }
    if (target->type == N_NSREF) {
        assign_space(t, target, v);
        return;
    }
    items = rose_tpl_items(t, v, &n);
    if (n != target->list.n)
        rose_tpl_fail(t, "cannot unpack %zu values into %u names", n, target->list.n);
    rose_tpl_enter(t);
    for (uint32_t i = 0; i < target->list.n; i++)
        rose_tpl_assign(t, target->list.at[i], items[i]);
    t->depth--;
}

/* The text that a block writes, in a scope of its own. */
static tpl_value text_of(rose_tpl *t, const tpl_list *body, tpl_flow *flow)
{
    tpl_buf out = {.t = t}, *before = t->out;
    tpl_scope *scope = t->scope;
    t->out = &out;
    t->scope = rose_tpl_scope_new(t, scope);
    *flow = rose_tpl_exec(t, body);
    t->scope = scope;
    t->out = before;
    return rose_tpl_str(rose_tpl_buf_text(&out));
}

/* ---- for ---- */

/* Each iteration starts with no names of its own. The scope of the one before serves again, unless
 * a macro was defined in it and will read it later. */
static tpl_scope *iteration_scope(rose_tpl *t, tpl_scope *used, tpl_scope *parent)
{
    if (used == NULL || used->captured) return rose_tpl_scope_new(t, parent);
    used->n = 0;
    return used;
}

/* Whether the condition of the loop holds for an item. */
static bool is_selected(rose_tpl *t, tpl_loop *loop, tpl_value item)
{
    tpl_scope *scope = t->scope;
    loop->test_scope = iteration_scope(t, loop->test_scope, loop->outer);
    t->scope = loop->test_scope;
    rose_tpl_assign(t, loop->node->a, item);
    const bool holds = rose_tpl_truth(rose_tpl_eval(t, loop->node->c));
    t->scope = scope;
    return holds;
}

size_t rose_tpl_loop_find(rose_tpl *t, tpl_loop *loop, size_t n)
{
    if (loop->testing && loop->n < n)
        rose_tpl_fail(t, "the condition of a loop asks for the items of its loop");
    loop->testing = true;
    while (loop->n < n && loop->next < loop->n_raw) {
        const tpl_value item = loop->raw[loop->next++];
        rose_tpl_step(t, 0);
        if (is_selected(t, loop, item)) loop->items[loop->n++] = item;
    }
    loop->testing = false;
    return loop->n;
}

static void run_loop(rose_tpl *t, const tpl_node *n, tpl_loop *loop)
{
    tpl_scope *outer = t->scope, *scope = NULL;
    tpl_value self = {.kind = TPL_LOOP, .u.loop = loop};
    const tpl_text *name = rose_tpl_text(t, "loop", 4, TPL_TEMPLATE);
    for (; rose_tpl_loop_find(t, loop, loop->at + 1) > loop->at; loop->at++) {
        scope = iteration_scope(t, scope, outer);
        t->scope = scope;
        rose_tpl_step(t, 0);
        rose_tpl_scope_set(t, scope, name, self);
        rose_tpl_assign(t, n->a, loop->items[loop->at]);
        if (rose_tpl_exec(t, &n->list) == FLOW_BREAK) break;
    }
    t->scope = outer;
}

static tpl_flow exec_for(rose_tpl *t, const tpl_node *n)
{
    tpl_loop *loop = rose_tpl_take(t, sizeof *loop);
    tpl_value *items = rose_tpl_items(t, rose_tpl_eval(t, n->b), &loop->n_raw);
    t->line = n->line;
    loop->raw = loop->items = items;
    loop->node = n;
    loop->outer = t->scope;
    if (n->c != NULL)
        loop->items = rose_tpl_array(t, loop->n_raw, sizeof *items);
    else
        loop->n = loop->next = loop->n_raw;
    run_loop(t, n, loop);
    if (loop->n > 0 || n->list2.n == 0) return FLOW_NEXT;
    tpl_scope *outer = t->scope;
    t->scope = rose_tpl_scope_new(t, outer);
    const tpl_flow flow = rose_tpl_exec(t, &n->list2);
    t->scope = outer;
    return flow;
}

/* ---- other statements ---- */

/* A chain of if and elif. */
static tpl_flow exec_if(rose_tpl *t, const tpl_node *n)
{
    for (;; n = n->b) {
        if (rose_tpl_truth(rose_tpl_eval(t, n->a))) return rose_tpl_exec(t, &n->list);
        if (n->b == NULL) return rose_tpl_exec(t, &n->list2);
    }
}

static tpl_value macro_value(rose_tpl *t, const tpl_node *n)
{
    tpl_func *f = rose_tpl_take(t, sizeof *f);
    *f = (tpl_func){.macro = n, .scope = t->scope};
    for (tpl_scope *s = t->scope; s != NULL; s = s->parent)
        s->captured = true;
    return (tpl_value){.kind = TPL_FUNC, .u.fn = f};
}

static void exec_call_block(rose_tpl *t, const tpl_node *n)
{
    tpl_value f = rose_tpl_eval(t, n->a->a);
    tpl_args args;
    rose_tpl_eval_args(t, n->a, &args);
    args.named[args.n_named++] = (tpl_pair){rose_tpl_cstr(t, "caller"), macro_value(t, n->b)};
    rose_tpl_put_text(t->out, rose_tpl_to_text(t, rose_tpl_call(t, f, &args)));
}

static tpl_flow exec_with(rose_tpl *t, const tpl_node *n)
{
    tpl_scope *outer = t->scope;
    tpl_value *values = rose_tpl_array(t, n->list2.n, sizeof *values);
    tpl_flow flow;
    for (uint32_t i = 1; i < n->list2.n; i += 2)
        values[i] = rose_tpl_eval(t, n->list2.at[i]);
    t->scope = rose_tpl_scope_new(t, outer);
    for (uint32_t i = 1; i < n->list2.n; i += 2)
        rose_tpl_assign(t, n->list2.at[i - 1], values[i]);
    flow = rose_tpl_exec(t, &n->list);
    t->scope = outer;
    return flow;
}

/* The filtered text of a filter block or a block assignment. If the body ends early, jinja2 drops
 * its text. */
static tpl_flow filtered(rose_tpl *t, const tpl_node *n, tpl_value *v)
{
    tpl_flow flow;
    *v = text_of(t, &n->list, &flow);
    if (flow == FLOW_NEXT) *v = rose_tpl_apply_filters(t, n->b, *v);
    return flow;
}

static tpl_flow exec_set(rose_tpl *t, const tpl_node *n)
{
    tpl_flow flow = FLOW_NEXT;
    tpl_value v;
    if (n->type == N_SET)
        v = rose_tpl_eval(t, n->b);
    else if ((flow = filtered(t, n, &v)) != FLOW_NEXT)
        return flow;
    t->line = n->line;
    rose_tpl_assign(t, n->a, v);
    return flow;
}

static tpl_flow exec_node(rose_tpl *t, const tpl_node *n)
{
    tpl_value v;
    tpl_flow flow;
    switch (n->type) {
    case N_DATA:
        rose_tpl_put_text(t->out, n->text);
        break;
    case N_OUTPUT:
        rose_tpl_put_text(t->out, rose_tpl_to_text(t, rose_tpl_eval(t, n->a)));
        break;
    case N_FOR:
        return exec_for(t, n);
    case N_IF:
        return exec_if(t, n);
    case N_SET:
    case N_SETBLOCK:
        return exec_set(t, n);
    case N_MACRO:
        rose_tpl_scope_set(t, t->scope, n->text, macro_value(t, n));
        break;
    case N_CALLBLOCK:
        exec_call_block(t, n);
        break;
    case N_FILTERBLOCK:
        flow = filtered(t, n, &v);
        if (flow == FLOW_NEXT) rose_tpl_put_text(t->out, rose_tpl_to_text(t, v));
        return flow;
    case N_WITH:
        return exec_with(t, n);
    case N_BLOCK:
        rose_tpl_put_text(t->out, text_of(t, &n->list, &flow).u.str);
        break;
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        break;
    }
    return FLOW_NEXT;
}

tpl_flow rose_tpl_exec(rose_tpl *t, const tpl_list *body)
{
    tpl_flow flow = FLOW_NEXT;
    rose_tpl_enter(t);
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT; i++) {
        rose_tpl_step(t, 0);
        t->line = body->at[i]->line;
        flow = exec_node(t, body->at[i]);
    }
    t->depth--;
    return flow;
}
