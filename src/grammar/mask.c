/* grammar/mask.c - the mask of a state: which tokens survive from it. In general a walk of the trie
 * finds them; a byte that is not allowed skips its subtree, so most states cost a few hundred
 * steps. Inside strings nearly all tokens survive. There the state says so (WILD_*), the tokens
 * that need no walk come from tables of the vocabulary, and only the others are walked:
 *
 *     WILD_STRING  a free JSON string: walk the tokens that contain a quote
 *     WILD_SAFE    all safe tokens survive: walk those that are not safe
 *     WILD_COUNT   safe tokens survive that have no more characters than the counter has left;
 *                  walk those that are not safe
 *
 * Only one item of the state is wild. The whole trie is walked for the other items alone; mostly
 * there are none. A mask is kept with its state. States that differ only in counters far from
 * their bounds share a mask (plain_state), so a string with maxLength 10000 needs few masks. */
#include <stdlib.h>
#include <string.h>

#include "grammar/match_internal.h"

/* Sets the bits of all tokens of t that survive from `state`. at[d] is the state after d bytes of
 * the current path, so tokens with a common start share the steps of that start. */
static rose_status walk(rose_grammar *g, const gr_trie *t, uint32_t state, uint32_t *mask)
{
    uint32_t *at = g->walk;
    at[0] = state;
    if (g->s.v[state].n == 0) return ROSE_OK;
    for (uint32_t i = 0; i < t->n;) {
        const gr_trie_node *x = &t->nodes[i];
        uint32_t to = rose_gr_step(g, at[x->depth], x->byte);
        if (to == GR_NONE) return g->st;
        if (to == GR_DEAD) {
            i = x->next;
            continue;
        }
        at[x->depth + 1] = to;
        for (uint32_t k = 0; k < x->n; k++)
            rose_gr_set_bit(mask, t->sorted[x->first + k]);
        i++;
    }
    return ROSE_OK;
}

/* ---- counters far from their bounds ---- */

/* A count that no token can tell from `count`: far below min, or between min and max and far from
 * max. far: no token makes more rounds. */
static uint32_t plain_count(const gr_loop *l, uint32_t count, uint32_t far)
{
    if (l->lo_is_plain && l->min > far + 1 && count < l->min - far - 1) return l->min - far - 1;
    if (count >= l->plain_lo && count < l->plain_hi && l->plain_hi - count > far &&
        l->max != GR_INF)
        return l->plain_lo;
    return count;
}

/* The frame with plain counts, in itself and in all frames below it. */
static uint32_t plain_frame(rose_grammar *g, uint32_t f)
{
    gr_frame x = g->s.frames[f];
    if (x.plain != GR_NONE) return x.plain;
    uint32_t parent = plain_frame(g, x.parent), count = x.count;
    if (parent == GR_NONE) return GR_NONE;
    if (x.op & GR_COUNTER)
        count = plain_count(&g->p.loops[x.op & ~GR_COUNTER], count, g->vocab->max_token);
    uint32_t plain =
        parent == x.parent && count == x.count ? f : rose_gr_frame(g, parent, x.op, count);
    if (plain != GR_NONE) g->s.frames[f].plain = plain;
    return plain;
}

/* The state whose mask this state has: the same with plain counters. */
static uint32_t plain_state(rose_grammar *g, uint32_t state)
{
    gr_state x = g->s.v[state];
    if (x.plain != GR_NONE) return x.plain;
    bool same = true;
    for (uint32_t i = 0; i < x.n; i++) {
        gr_item item = g->s.items[x.first + i];
        uint32_t f = plain_frame(g, item.frame);
        if (f == GR_NONE) return GR_NONE;
        same = same && f == item.frame;
    }
    if (same) return g->s.v[state].plain = state;
    gr_item *items = malloc(x.n * sizeof *items);
    if (items == NULL) {
        g->st = ROSE_E_NOMEM;
        return GR_NONE;
    }
    uint32_t n = 0, plain;
    for (uint32_t i = 0; i < x.n; i++) {
        items[n] = g->s.items[x.first + i];
        items[n].frame = g->s.frames[items[n].frame].plain;
        n++;
    }
    rose_gr_sort_items(items, n);
    for (uint32_t i = n, k = n = 0; k < i; k++) /* two counts may have become one */
        if (n == 0 || memcmp(&items[n - 1], &items[k], sizeof *items) != 0) items[n++] = items[k];
    g->wild = x.wild;
    g->wild_item = x.wild_item;
    g->wild_left = x.wild_left;
    if (x.wild != WILD_NO) g->wild_item.frame = plain_frame(g, x.wild_item.frame);
    plain =
        g->wild != WILD_NO && g->wild_item.frame == GR_NONE ? GR_NONE : rose_gr_intern(g, items, n);
    free(items);
    if (plain != GR_NONE) g->s.v[state].plain = plain;
    return plain;
}

/* ---- wild states ---- */

/* The items of x that do not come from its wild item, as a state: x without the closure of the wild
 * item. Both lists are sorted, so one pass subtracts them. */
static uint32_t others(rose_grammar *g, gr_state x)
{
    gr_item from = x.wild_item;
    uint32_t n = 0;
    if (x.wild == WILD_COUNT && g->p.ops[from.op].kind == OP_LOOP)
        from.op = g->p.loops[g->p.ops[from.op].loop].body;
    if (!rose_gr_close(g, from)) return GR_NONE;
    gr_item *items = malloc((x.n + 1) * sizeof *items);
    if (items == NULL) {
        g->st = ROSE_E_NOMEM;
        return GR_NONE;
    }
    for (uint32_t i = 0, k = 0; i < x.n; i++) {
        gr_item item = g->s.items[x.first + i];
        while (k < g->n_found && (g->found[k].op < item.op ||
                                  (g->found[k].op == item.op && g->found[k].frame < item.frame)))
            k++;
        if (k == g->n_found || memcmp(&g->found[k], &item, sizeof item) != 0) items[n++] = item;
    }
    g->wild = WILD_NO;
    uint32_t state = rose_gr_intern(g, items, n);
    free(items);
    return state;
}

/* Safe tokens of at most `left` characters. safe_ids is sorted by length, so they are its start. */
static void add_safe(const rose_vocab_trie *v, uint32_t left, uint32_t *mask)
{
    if (left >= v->max_safe) {
        for (uint32_t i = 0; i < v->n_words; i++)
            mask[i] |= v->safe_mask[i];
        return;
    }
    for (uint32_t i = 0; i < v->safe_end[left]; i++)
        rose_gr_set_bit(mask, v->safe_ids[i]);
}

static rose_status wild_mask(rose_grammar *g, uint32_t state, uint32_t *mask)
{
    const rose_vocab_trie *v = g->vocab;
    gr_state x = g->s.v[state];
    rose_status st;
    uint32_t rest = others(g, x);
    if (rest == GR_NONE) return g->st;
    if (x.wild == WILD_STRING) {
        for (uint32_t i = 0; i < v->n_words; i++)
            mask[i] |= v->inside_mask[i];
        st = walk(g, &v->quoted, state, mask);
    } else {
        add_safe(v, x.wild_left, mask);
        st = walk(g, &v->unsafe, state, mask);
    }
    return st != ROSE_OK ? st : walk(g, &v->all, rest, mask);
}

rose_status rose_gr_mask(rose_grammar *g, uint32_t state, uint32_t *at)
{
    const rose_vocab_trie *v = g->vocab;
    rose_status st;
    *at = state = plain_state(g, state);
    if (state == GR_NONE) return g->st;
    if (g->s.v[state].mask != NULL) return ROSE_OK;
    uint32_t *mask = calloc(v->n_words + 1, sizeof *mask);
    if (mask == NULL) return ROSE_E_NOMEM;
    st = g->s.v[state].wild != WILD_NO && v->inside_mask != NULL ? wild_mask(g, state, mask)
                                                                 : walk(g, &v->all, state, mask);
    if (st != ROSE_OK) {
        free(mask);
        return st;
    }
    gr_state *x = &g->s.v[state];
    if (x->accepting)
        for (size_t i = 0; i < v->n_eos; i++)
            rose_gr_set_bit(mask, v->eos[i]);
    x->mask = mask;
    g->s.bytes += v->n_words * sizeof *mask;
    for (uint32_t i = 0; i < v->n_words; i++)
        x->any = x->any || mask[i] != 0;
    return ROSE_OK;
}

/* ---- the inside of a free string ---- */

static gr_node string_rest(gr_build *b, void *arg)
{
    (void)arg;
    return rose_gr_string_rest(b);
}

/* The tokens that survive in a free string and contain no quote stay in the string. */
rose_status rose_gr_inside(rose_vocab_trie *v)
{
    rose_grammar *g;
    uint32_t at;
    rose_status st = rose_gr_compile(&g, v, NULL, "string", string_rest, NULL, NULL);
    if (st != ROSE_OK) return st;
    if ((st = rose_gr_mask(g, g->s.start, &at)) == ROSE_OK) {
        uint32_t *mask = g->s.v[at].mask;
        for (uint32_t i = 0; i < v->quoted.n_sorted; i++)
            mask[v->quoted.sorted[i] / 32] &= ~(UINT32_C(1) << (v->quoted.sorted[i] % 32));
        v->inside_mask = mask;
        g->s.v[at].mask = NULL;
    }
    rose_grammar_unref(g);
    return st;
}
