/* grammar/nodes.c - the intermediate form: a graph of nodes that all front ends build. A node never
 * changes after it is made, and it may be used in several places. Constructors simplify, so that
 * what matches nothing is found while compiling: NEVER swallows sequences and leaves alternatives.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { WORDS_DEPTH = 2000 }; /* words of which each begins the next: 2 MB of text */

/* Functions that walk over nodes recurse. A level takes 200 bytes of a stack of perhaps 2 MiB. */
enum { MAX_HEIGHT = 5000 };

static uint32_t highest(const gr_build *b, const gr_node *kids, uint32_t n, uint32_t most)
{
    for (uint32_t i = 0; i < n; i++) {
        if (b->nodes[kids[i]].height > most) most = b->nodes[kids[i]].height;
    }
    return most;
}

static uint16_t height_of(gr_build *b, const gr_node_data *d)
{
    uint32_t most = 0;
    if (d->kind == NODE_REPEAT) {
        most = highest(b, &d->a, 1, 0) + 1;
    } else if (d->kind == NODE_SEQ || d->kind == NODE_ALT) {
        most = highest(b, b->kids + d->a, d->n, 0) + 1;
    } else if (d->kind == NODE_KEYS) {
        const gr_members *m = &b->keys[d->a];
        const gr_node others[3] = {m->other, m->comma, m->close};
        most = highest(b, m->kids, m->n, highest(b, others, 3, 0)) + 1;
    }
    if (most > MAX_HEIGHT)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "its parts are nested more than %d deep", MAX_HEIGHT);
    return (uint16_t)most;
}

static gr_node add(gr_build *b, gr_node_data d)
{
    d.height = height_of(b, &d);
    b->nodes = rose_gr_grown(b, b->nodes, b->n_nodes, &b->cap_nodes, sizeof *b->nodes);
    if (b->n_nodes >= GR_NONE)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "needs more than %u nodes", GR_NONE - 1);
    rose_gr_work(b, 2);
    b->nodes[b->n_nodes] = d;
    return (gr_node)b->n_nodes++;
}

void rose_gr_nodes_init(gr_build *b)
{
    add(b, (gr_node_data){.kind = NODE_NEVER});
    add(b, (gr_node_data){.kind = NODE_EMPTY, .flags = GR_NULLABLE});
    for (size_t i = 0; i < sizeof b->json_rules / sizeof b->json_rules[0]; i++)
        b->json_rules[i] = GR_NONE;
}

gr_node rose_gr_bytes(gr_build *b, const void *bytes, size_t n)
{
    size_t at = b->n_bytes;
    if (n == 0) return GR_EMPTY;
    if (n > UINT32_MAX / 2 - at)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "compiling needs more than 2 GiB of literal text");
    while (b->cap_bytes < at + n)
        b->bytes = rose_gr_grown(b, b->bytes, b->n_bytes = b->cap_bytes, &b->cap_bytes, 1);
    memcpy(b->bytes + at, bytes, n);
    b->n_bytes = at + n;
    return add(b, (gr_node_data){.kind = NODE_BYTES, .a = (uint32_t)at, .n = (uint32_t)n});
}

gr_node rose_gr_text(gr_build *b, const char *text)
{
    return rose_gr_bytes(b, text, strlen(text));
}

gr_node rose_gr_set(gr_build *b, const gr_set *s)
{
    if ((s->w[0] | s->w[1] | s->w[2] | s->w[3]) == 0) return GR_NEVER;
    b->sets = rose_gr_grown(b, b->sets, b->n_sets, &b->cap_sets, sizeof *b->sets);
    b->sets[b->n_sets] = *s;
    return add(b, (gr_node_data){.kind = NODE_SET, .a = (uint32_t)b->n_sets++});
}

gr_node rose_gr_range(gr_build *b, unsigned lo, unsigned hi)
{
    gr_set s = {{0}};
    uint8_t byte = (uint8_t)lo;
    if (lo == hi) return rose_gr_bytes(b, &byte, 1);
    gr_set_add(&s, lo, hi);
    return rose_gr_set(b, &s);
}

static uint32_t add_kids(gr_build *b, const gr_node *kids, size_t n)
{
    size_t at = b->n_kids;
    while (b->cap_kids < at + n)
        b->kids = rose_gr_grown(b, b->kids, b->n_kids = b->cap_kids, &b->cap_kids, sizeof *b->kids);
    memcpy(b->kids + at, kids, n * sizeof *kids);
    b->n_kids = at + n;
    if (b->n_kids >= UINT32_MAX)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "needs more than %u nodes", UINT32_MAX);
    return (uint32_t)at;
}

gr_node rose_gr_seq(gr_build *b, const gr_node *kids, size_t n)
{
    gr_list l = {0};
    bool nullable = true;
    for (size_t i = 0; i < n; i++) {
        if (kids[i] == GR_NEVER) return GR_NEVER;
        if (kids[i] == GR_EMPTY) continue;
        nullable = nullable && (b->nodes[kids[i]].flags & GR_NULLABLE);
        rose_gr_push(b, &l, kids[i]);
    }
    if (l.n == 0) return GR_EMPTY;
    if (l.n == 1) return l.v[0];
    return add(b, (gr_node_data){.kind = NODE_SEQ,
                                 .flags = nullable ? GR_NULLABLE : 0,
                                 .a = add_kids(b, l.v, l.n),
                                 .n = (uint32_t)l.n});
}

gr_node rose_gr_alt(gr_build *b, const gr_node *kids, size_t n)
{
    gr_list l = {0};
    unsigned flags = 0;
    for (size_t i = 0; i < n; i++) {
        if (kids[i] == GR_NEVER) continue;
        flags |= b->nodes[kids[i]].flags & GR_NULLABLE;
        rose_gr_push(b, &l, kids[i]);
    }
    if (l.n == 0) return GR_NEVER;
    if (l.n == 1) return l.v[0];
    return add(b, (gr_node_data){.kind = NODE_ALT,
                                 .flags = (uint8_t)flags,
                                 .a = add_kids(b, l.v, l.n),
                                 .n = (uint32_t)l.n});
}

/* x{0,1}{min,max} and the like: true if the outer bounds alone say it all. */
static bool swallow(const gr_node_data *inner, uint32_t *min, uint32_t max)
{
    if (inner->kind != NODE_REPEAT || inner->min > 1) return false;
    if (inner->max == 1 && inner->min == 0) {
        *min = 0;
        return true;
    }
    if (inner->max != GR_INF || max != GR_INF) return false;
    if (inner->min == 0) *min = 0;
    return true;
}

gr_node rose_gr_repeat(gr_build *b, gr_node kid, uint32_t min, uint32_t max)
{
    gr_node_data d = b->nodes[kid];
    if (max == 0 || kid == GR_EMPTY) return GR_EMPTY;
    if (kid == GR_NEVER) return min == 0 ? GR_EMPTY : GR_NEVER;
    if (min == 1 && max == 1) return kid;
    if (d.flags & GR_NULLABLE) min = 0;
    if (swallow(&d, &min, max)) return rose_gr_repeat(b, d.a, min, max);
    if (max == GR_INF && (d.flags & GR_NULLABLE) && d.kind == NODE_REPEAT && d.max == GR_INF &&
        d.min <= 1)
        return kid;
    return add(b, (gr_node_data){.kind = NODE_REPEAT,
                                 .flags = min == 0 ? GR_NULLABLE : 0,
                                 .a = kid,
                                 .min = min,
                                 .max = max});
}

gr_node rose_gr_dfa_node(gr_build *b, gr_dfa *d)
{
    if (rose_gr_dfa_empty(d)) return GR_NEVER;
    b->dfas = rose_gr_grown(b, b->dfas, b->n_dfas, &b->cap_dfas, sizeof *b->dfas);
    b->dfas[b->n_dfas] = d;
    return add(b, (gr_node_data){.kind = NODE_DFA,
                                 .flags = d->accept[1] ? GR_NULLABLE : 0,
                                 .a = (uint32_t)b->n_dfas++});
}

gr_node rose_gr_counted_node(gr_build *b, gr_counted *k)
{
    b->counted = rose_gr_grown(b, b->counted, b->n_counted, &b->cap_counted, sizeof(gr_counted *));
    b->counted[b->n_counted] = k;
    return add(b, (gr_node_data){.kind = NODE_COUNTED,
                                 .flags = k->d->accept[1] && k->min == 0 ? GR_NULLABLE : 0,
                                 .a = (uint32_t)b->n_counted++});
}

gr_node rose_gr_keys_node(gr_build *b, const gr_members *m)
{
    b->keys = rose_gr_grown(b, b->keys, b->n_keys, &b->cap_keys, sizeof *b->keys);
    b->keys[b->n_keys] = *m;
    return add(b, (gr_node_data){.kind = NODE_KEYS, .a = (uint32_t)b->n_keys++});
}

gr_node rose_gr_rule_new(gr_build *b, const char *name)
{
    b->rules = rose_gr_grown(b, b->rules, b->n_rules, &b->cap_rules, sizeof *b->rules);
    b->rules[b->n_rules] = (gr_rule){GR_NONE, name};
    return add(b, (gr_node_data){.kind = NODE_RULE, .a = (uint32_t)b->n_rules++});
}

void rose_gr_rule_define(gr_build *b, gr_node rule, gr_node body)
{
    b->rules[b->nodes[rule].a].body = body;
}

void rose_gr_push(gr_build *b, gr_list *l, gr_node x)
{
    l->v = rose_gr_grown(b, l->v, l->n, &l->cap, sizeof *l->v);
    l->v[l->n++] = x;
}

int rose_gr_by_bytes(const void *x, const void *y)
{
    const gr_word *a = x, *c = y;
    size_t n = a->n < c->n ? a->n : c->n;
    int d = n == 0 ? 0 : memcmp(a->bytes, c->bytes, n);
    return d != 0 ? d : (a->n > c->n) - (a->n < c->n);
}

void rose_gr_sort_words(gr_build *b, gr_word *words, size_t n)
{
    rose_gr_work(b, n * 16);
    if (n > 0) qsort(words, n, sizeof *words, rose_gr_by_bytes);
}

/* words[0..n), sorted, that are equal before byte `at`. */
static gr_node tree(gr_build *b, const gr_word *words, size_t n, size_t at)
{
    size_t end = at;
    gr_list alts = {0};
    const gr_word *first = words, *last = words + n - 1;
    rose_gr_enter(b);
    while (end < first->n && end < last->n && first->bytes[end] == last->bytes[end])
        end++;
    gr_node head = rose_gr_bytes(b, first->bytes + at, end - at);
    while (n > 0 && words->n == end) { /* duplicates are the same word */
        if (alts.n == 0) rose_gr_push(b, &alts, GR_EMPTY);
        words++, n--;
    }
    while (n > 0) {
        size_t k = 1;
        while (k < n && words[k].bytes[end] == words->bytes[end])
            k++;
        rose_gr_push(b, &alts, tree(b, words, k, end));
        words += k, n -= k;
    }
    rose_gr_leave(b);
    return GR_SEQ(b, head, rose_gr_alt(b, alts.v, alts.n));
}

gr_node rose_gr_words(gr_build *b, gr_word *words, size_t n)
{
    uint32_t limit = b->opts.max_depth;
    if (n == 0) return GR_NEVER;
    rose_gr_sort_words(b, words, n);
    /* Each level splits the words, so the depth is at most their number. */
    b->opts.max_depth = b->depth + WORDS_DEPTH;
    gr_node x = tree(b, words, n, 0);
    b->opts.max_depth = limit;
    return x;
}
