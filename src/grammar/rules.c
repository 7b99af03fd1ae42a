/* grammar/rules.c - what is wrong with the rules of a grammar as a whole: a rule without a body, a
 * rule that never ends (its text would be endless), a rule that begins with itself (its stack
 * would be). Nodes stand after their kids in the list, so one pass over the list sees all nodes
 * but for rules, and passes are repeated until the rules no longer change. Their direction
 * alternates: then a long chain of rules takes two passes, whichever end was written first. */
#include "grammar/match_internal.h"

/* The bit of a node; of a rule also that of its body. */
static bool bit_of(const gr_build *b, const uint8_t *bits, gr_node x)
{
    const gr_node_data *d = &b->nodes[x];
    if (bits[x] || d->kind != NODE_RULE) return bits[x];
    return b->rules[d->a].body != GR_NONE && bits[b->rules[d->a].body];
}

static bool kid_bits(const gr_build *b, const gr_node_data *d, const uint8_t *bits, bool all)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (bit_of(b, bits, b->kids[d->a + i]) != all) return !all;
    return all;
}

/* Can member i and all that it needs end? */
bool rose_gr_member_ends(const gr_members *m, uint32_t i, const uint8_t *can)
{
    const uint32_t *needs = m->needs != NULL ? m->needs[i] : NULL;
    if (!can[m->kids[i]]) return false;
    for (uint32_t j = 0; needs != NULL && j < m->n; j++)
        if ((needs[j / 32] >> (j % 32) & 1) && !can[m->kids[j]]) return false;
    return true;
}

/* An object ends if all that is required can, and enough others can. */
static bool keys_end(const gr_members *m, const uint8_t *can)
{
    uint32_t able = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        const bool ends = rose_gr_member_ends(m, i, can);
        if (m->required[i] && !ends) return false;
        able += ends;
    }
    return able >= m->min || can[m->other];
}

/* Sets *answer for a node whose answer depends on other nodes alone. Leaves it for other kinds. */
static void by_kids(const gr_build *b, const gr_node_data *d, const uint8_t *can, bool *answer)
{
    switch ((gr_node_kind)d->kind) {
    case NODE_SEQ:
    case NODE_ALT:
        *answer = kid_bits(b, d, can, d->kind == NODE_SEQ);
        return;
    case NODE_REPEAT:
        *answer = d->min == 0 || bit_of(b, can, d->a);
        return;
    case NODE_RULE:
        *answer = b->rules[d->a].body != GR_NONE && bit_of(b, can, b->rules[d->a].body);
        return;
    case NODE_NEVER:
    case NODE_EMPTY:
    case NODE_BYTES:
    case NODE_SET:
    case NODE_DFA:
    case NODE_COUNTED:
    case NODE_KEYS:
    default:
        return;
    }
}

/* Can the node end at all? */
static bool ends(const gr_build *b, const gr_node_data *d, const uint8_t *can)
{
    bool answer = d->kind != NODE_NEVER;
    if (d->kind == NODE_KEYS) return keys_end(&b->keys[d->a], can);
    by_kids(b, d, can, &answer);
    return answer;
}

/* Can the node match the empty text? */
static bool is_nullable(const gr_build *b, const gr_node_data *d, const uint8_t *can)
{
    bool answer = (d->flags & GR_NULLABLE) != 0;
    by_kids(b, d, can, &answer);
    return answer;
}

static uint8_t *fixpoint(gr_build *b,
                         bool (*f)(const gr_build *, const gr_node_data *, const uint8_t *))
{
    uint8_t *can = rose_gr_take(b, b->n_nodes);
    const size_t n = b->n_nodes;
    bool backward = false;
    for (bool changed = true; changed; backward = !backward) {
        changed = false;
        rose_gr_work(b, n * 2);
        for (size_t k = 0; k < n; k++) {
            const size_t i = backward ? n - 1 - k : k;
            if (can[i] || !f(b, &b->nodes[i], can)) continue;
            can[i] = 1;
            changed = true;
        }
        changed = changed && b->n_rules > 0;
    }
    return can;
}

typedef struct left { /* the graph "rule x may begin with rule y" */
    gr_build *b;
    const uint8_t *nullable;
    uint32_t *stamp; /* [n_nodes]: the last rule in which the node was visited, + 1 */
    struct pair {
        uint32_t from, to;
    } * pairs;
    size_t n, cap;
} left;

static void find_left(left *l, gr_node x, uint32_t rule)
{
    const gr_build *b = l->b;
    gr_node_data d = b->nodes[x];
    if (l->stamp[x] == rule + 1) return;
    l->stamp[x] = rule + 1;
    rose_gr_work(l->b, 0);
    if (d.kind == NODE_RULE) {
        l->pairs = rose_gr_grown(l->b, l->pairs, l->n, &l->cap, sizeof *l->pairs);
        l->pairs[l->n++] = (struct pair){rule, d.a};
    } else if (d.kind == NODE_REPEAT) {
        find_left(l, d.a, rule);
    } else if (d.kind == NODE_ALT || d.kind == NODE_SEQ) {
        for (uint32_t i = 0; i < d.n; i++) {
            find_left(l, b->kids[d.a + i], rule);
            if (d.kind == NODE_SEQ && !l->nullable[b->kids[d.a + i]]) break;
        }
    }
}

/* Removes rules that begin with no remaining rule, until none is left or all that are left form
 * circles. */
static void check_left(left *l)
{
    gr_build *b = l->b;
    uint32_t *out = rose_gr_take(b, b->n_rules * sizeof *out), *done, n = 0;
    uint32_t *begin = rose_gr_take(b, (b->n_rules + 2) * sizeof *begin);
    uint32_t *callers = rose_gr_take(b, l->n * sizeof *callers + 4);
    done = rose_gr_take(b, b->n_rules * sizeof *done);
    for (size_t i = 0; i < l->n; i++)
        out[l->pairs[i].from]++, begin[l->pairs[i].to + 2]++;
    for (size_t i = 2; i < b->n_rules + 2; i++)
        begin[i] += begin[i - 1];
    for (size_t i = 0; i < l->n; i++)
        callers[begin[l->pairs[i].to + 1]++] = l->pairs[i].from;
    for (uint32_t r = 0; r < b->n_rules; r++)
        if (out[r] == 0) done[n++] = r;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = begin[done[i]]; k < begin[done[i] + 1]; k++)
            if (--out[callers[k]] == 0) done[n++] = callers[k];
    for (uint32_t r = 0; r < b->n_rules; r++)
        if (out[r] != 0)
            rose_gr_fail(b, ROSE_E_UNSUPPORTED,
                         "the rule %s begins with itself (left recursion); write it as a "
                         "repetition",
                         b->rules[r].name);
}

uint8_t *rose_gr_check_rules(gr_build *b, gr_node root)
{
    left l = {.b = b};
    for (size_t r = 0; r < b->n_rules; r++)
        if (b->rules[r].body == GR_NONE)
            rose_gr_fail(b, ROSE_E_INVAL, "the rule %s is used but not defined", b->rules[r].name);
    uint8_t *productive = fixpoint(b, ends);
    if (!productive[root]) rose_gr_fail(b, ROSE_E_INVAL, "allows no text at all");
    l.nullable = fixpoint(b, is_nullable);
    l.stamp = rose_gr_take(b, b->n_nodes * sizeof *l.stamp);
    for (uint32_t r = 0; r < b->n_rules; r++)
        find_left(&l, b->rules[r].body, r);
    check_left(&l);
    return productive;
}
