/* template/scan.c - names that a template assigns before it reads them. jinja2 decides when it
 * compiles that such a name is the template's own: until the assignment runs, also a loop or macro
 * that comes first finds it undefined, whatever variable of that name the caller passes. A name
 * that is assigned only inside a condition stays the caller's. */
#include "template/template_internal.h"

typedef struct scan {
    rose_tpl *t;
    tpl_scope *seen;
    tpl_list *own; /* N_NAME nodes */
} scan;

static bool see(scan *s, const tpl_text *name)
{
    bool before = rose_tpl_scope_get(s->t, s->seen, name) != NULL;
    if (!before) rose_tpl_scope_set(s->t, s->seen, name, rose_tpl_none());
    return before;
}

static void read_expr(scan *s, const tpl_node *n);

static void read_list(scan *s, const tpl_list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        read_expr(s, l->at[i]);
}

static void read_expr(scan *s, const tpl_node *n)
{
    if (n == NULL) return;
    rose_tpl_enter(s->t);
    if (n->type == N_NAME || n->type == N_NSREF) see(s, n->text);
    read_expr(s, n->a);
    read_expr(s, n->b);
    read_expr(s, n->c);
    read_list(s, &n->list);
    read_list(s, &n->list2);
    s->t->depth--;
}

static void store(scan *s, tpl_node *target, bool always)
{
    if (target->type == N_NAME) {
        if (!see(s, target->text) && always) rose_tpl_list_add(s->t, s->own, target);
    } else if (target->type == N_NSREF) {
        see(s, target->text);
    } else {
        for (uint32_t i = 0; i < target->list.n; i++)
            store(s, target->list.at[i], always);
    }
}

static void scan_body(scan *s, const tpl_list *body, bool always);

static void scan_if(scan *s, const tpl_node *n)
{
    for (; n != NULL; n = n->b) {
        read_expr(s, n->a);
        scan_body(s, &n->list, false);
        scan_body(s, &n->list2, false);
    }
}

/* Bodies of loops, macros and other scopes are not looked into, as in jinja2. */
static void scan_node(scan *s, tpl_node *n, bool always)
{
    switch (n->type) {
    case N_OUTPUT:
    case N_CALLBLOCK:
        read_expr(s, n->a);
        break;
    case N_FOR:
    case N_FILTERBLOCK:
        read_expr(s, n->b);
        break;
    case N_IF:
        scan_if(s, n);
        break;
    case N_SET:
        read_expr(s, n->b);
        store(s, n->a, always);
        break;
    case N_SETBLOCK:
        store(s, n->a, always);
        break;
    case N_MACRO:
        if (!see(s, n->text) && always) rose_tpl_list_add(s->t, s->own, n);
        break;
    case N_WITH:
        for (uint32_t i = 1; i < n->list2.n; i += 2)
            read_expr(s, n->list2.at[i]);
        break;
    default:
        break;
    }
}

static void scan_body(scan *s, const tpl_list *body, bool always)
{
    rose_tpl_enter(s->t);
    for (uint32_t i = 0; i < body->n; i++)
        scan_node(s, body->at[i], always);
    s->t->depth--;
}

void rose_tpl_scan(rose_tpl *t, const tpl_list *body, tpl_list *own)
{
    scan s = {.t = t, .seen = rose_tpl_scope_new(t, NULL), .own = own};
    scan_body(&s, body, true);
}
