/* grammar/program.c - from nodes to a program: the states of one pushdown automaton. The program is
 * written from its end: each node is given the op that follows it and returns the op to enter at.
 * A rule is written once and called. A repetition with bounds is written once and counted on the
 * stack, so that {0,1000000} costs three ops. */
#include <stdlib.h>
#include <string.h>

#include "grammar/match_internal.h"

typedef struct writer {
    gr_build *b;
    gr_op *ops;
    gr_edge *edges;
    uint32_t *targets;
    gr_loop *loops;
    gr_keys *keys;
    struct call {
        uint32_t op, rule;
    } * calls; /* to be filled in once all rules have their place */
    size_t n_ops, cap_ops, n_edges, cap_edges, n_targets, cap_targets, n_loops, cap_loops, n_keys,
        cap_keys, n_calls, cap_calls;
    uint8_t *productive; /* [n_nodes] */
} writer;

enum { MATCH = 0, RETURN = 1, DEAD = 2 }; /* the first ops */

static uint32_t add_op(writer *w, gr_op op)
{
    w->ops = rose_gr_grown(w->b, w->ops, w->n_ops, &w->cap_ops, sizeof *w->ops);
    if (w->n_ops >= w->b->opts.max_states)
        rose_gr_fail(w->b, ROSE_E_UNSUPPORTED, "needs more than %u states", w->b->opts.max_states);
    rose_gr_work(w->b, 1);
    w->ops[w->n_ops] = op;
    return (uint32_t)w->n_ops++;
}

static void add_target(writer *w, uint32_t to)
{
    w->targets = rose_gr_grown(w->b, w->targets, w->n_targets, &w->cap_targets, sizeof *w->targets);
    w->targets[w->n_targets++] = to;
}

static void add_edge(writer *w, unsigned lo, unsigned hi, uint32_t to)
{
    w->edges = rose_gr_grown(w->b, w->edges, w->n_edges, &w->cap_edges, sizeof *w->edges);
    w->edges[w->n_edges++] = (gr_edge){(uint8_t)lo, (uint8_t)hi, to};
}

/* A fork whose n targets are filled in later. */
static uint32_t add_fork(writer *w, uint32_t n)
{
    uint32_t at = (uint32_t)w->n_targets;
    for (uint32_t i = 0; i < n; i++)
        add_target(w, DEAD);
    return add_op(w, (gr_op){.kind = OP_FORK, .first = at, .n = n});
}

static void set_fork(writer *w, uint32_t fork, uint32_t one, uint32_t two)
{
    uint32_t *to = w->targets + w->ops[fork].first;
    to[0] = one;
    to[1] = two;
}

static uint32_t write_node(writer *w, gr_node x, uint32_t next);

static uint32_t write_set(writer *w, uint32_t set, uint32_t next)
{
    const gr_set *s = &w->b->sets[set];
    unsigned lo = 0, hi;
    while (!gr_set_has(s, lo))
        lo++;
    for (hi = lo; hi < 255 && gr_set_has(s, hi + 1);)
        hi++;
    for (unsigned c = hi + 1; c < 256; c++)
        if (gr_set_has(s, c)) return add_op(w, (gr_op){.kind = OP_SET, .to = next, .set = set});
    return add_op(w, (gr_op){.kind = OP_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .to = next});
}

static uint32_t write_alt(writer *w, const gr_node_data *d, uint32_t next)
{
    uint32_t n = 0, only = GR_NONE;
    for (uint32_t i = 0; i < d->n; i++)
        if (w->productive[w->b->kids[d->a + i]]) only = w->b->kids[d->a + i], n++;
    if (n == 1) return write_node(w, only, next);
    uint32_t fork = add_fork(w, n), at = w->ops[fork].first;
    for (uint32_t i = 0; i < d->n; i++) {
        gr_node kid = w->b->kids[d->a + i];
        if (!w->productive[kid]) continue;
        uint32_t to = write_node(w, kid, next);
        w->targets[at++] = to;
    }
    return fork;
}

static bool is_quote(const writer *w, uint32_t op)
{
    return w->ops[op].kind == OP_RANGE && w->ops[op].lo == '"' && w->ops[op].hi == '"';
}

static uint32_t write_counted(writer *w, const gr_node_data *d, uint32_t next)
{
    bool safe = w->b->nodes[d->a].flags & GR_SAFE_CHAR;
    uint32_t i = (uint32_t)w->n_loops;
    gr_op head = {.kind = OP_LOOP, .loop = i};
    if (safe && d->max == GR_INF) head.wild = WILD_SAFE;
    if (safe && d->max != GR_INF && is_quote(w, next)) head.wild = WILD_COUNT;
    w->loops = rose_gr_grown(w->b, w->loops, w->n_loops, &w->cap_loops, sizeof *w->loops);
    w->n_loops++;
    uint32_t at = add_op(w, head), again = add_op(w, (gr_op){.kind = OP_NEXT, .loop = i});
    w->loops[i] = (gr_loop){.min = d->min,
                            .max = d->max,
                            .body = DEAD,
                            .exit = next,
                            .head = at,
                            .plain_lo = d->min,
                            .plain_hi = d->max,
                            .lo_is_plain = true};
    uint32_t body = write_node(w, d->a, again);
    w->loops[i].body = body;
    return add_op(w, (gr_op){.kind = OP_ENTER, .loop = i});
}

static uint32_t write_repeat(writer *w, const gr_node_data *d, uint32_t next)
{
    unsigned flags = w->b->nodes[d->a].flags;
    if (!w->productive[d->a]) return next; /* min is 0, or this node would not be productive */
    if (d->max == 1) {
        uint32_t fork = add_fork(w, 2), kid = write_node(w, d->a, next);
        set_fork(w, fork, kid, next);
        return fork;
    }
    if (d->max != GR_INF || d->min > 1) return write_counted(w, d, next);
    uint32_t fork = add_fork(w, 2);
    if (flags & GR_SAFE_CHAR) w->ops[fork].wild = flags & GR_STRING_CHAR ? WILD_STRING : WILD_SAFE;
    uint32_t body = write_node(w, d->a, fork);
    set_fork(w, fork, body, next);
    return d->min == 0 ? fork : body;
}

/* True if all bytes of [lo, hi] lead from state s to a state of `in`. */
static bool all_in(const gr_dfa *d, uint32_t s, unsigned lo, unsigned hi, const uint8_t *in,
                   uint8_t bit)
{
    for (unsigned c = lo; c <= hi; c++)
        if (!(in[d->next[s][c]] & bit)) return false;
    return true;
}

/* One round: which states of `in` keep what their bits claim. Bit 1: every safe character stays in
 * a state with bit 1. Bits 2, 4, 8: the same after 1, 2, 3 more bytes 80..BF. Bit 16: at least one
 * of the narrower second bytes does not matter, because E0, ED, F0 and F4 are looked at here. */
static bool keep_safe(const gr_dfa *d, uint8_t *in)
{
    bool changed = false;
    for (uint32_t s = 1; s < d->n; s++) {
        uint8_t now = 0;
        for (uint8_t bit = 1; bit < 8; bit = (uint8_t)(bit << 1))
            if (all_in(d, s, 0x80, 0xbf, in, bit)) now |= (uint8_t)(bit << 1);
        if (all_in(d, s, 0xa0, 0xbf, in, 2)) now |= 16;  /* after E0 */
        if (all_in(d, s, 0x80, 0x9f, in, 2)) now |= 32;  /* after ED */
        if (all_in(d, s, 0x90, 0xbf, in, 4)) now |= 64;  /* after F0 */
        if (all_in(d, s, 0x80, 0x8f, in, 4)) now |= 128; /* after F4 */
        if (all_in(d, s, 0x20, 0x21, in, 1) && all_in(d, s, 0x23, 0x5b, in, 1) &&
            all_in(d, s, 0x5d, 0x7f, in, 1) && all_in(d, s, 0xc2, 0xdf, in, 2) &&
            all_in(d, s, 0xe0, 0xe0, in, 16) && all_in(d, s, 0xe1, 0xec, in, 4) &&
            all_in(d, s, 0xed, 0xed, in, 32) && all_in(d, s, 0xee, 0xef, in, 4) &&
            all_in(d, s, 0xf0, 0xf0, in, 64) && all_in(d, s, 0xf1, 0xf3, in, 8) &&
            all_in(d, s, 0xf4, 0xf4, in, 128))
            now |= 1;
        now &= in[s];
        changed = changed || now != in[s];
        in[s] = now;
    }
    return changed;
}

/* Finds the states from which every safe token survives; gives up after a few rounds. */
static uint8_t *safe_states(writer *w, const gr_dfa *d)
{
    enum { ROUNDS = 12 };
    uint8_t *in = rose_gr_take(w->b, d->n);
    bool changed = true;
    memset(in + 1, 0xff, d->n - 1);
    for (int i = 0; i < ROUNDS && changed; i++) {
        rose_gr_work(w->b, d->n * UINT64_C(40));
        changed = keep_safe(d, in);
    }
    if (changed) memset(in, 0, d->n);
    return in;
}

/* The ops first + s of the states of d. enter[s]: where an edge to state s leads; tick[s]: the same
 * if the edge ends a character, or NULL. */
static void write_edges(writer *w, const gr_dfa *d, uint32_t first, const uint32_t *enter,
                        const uint32_t *tick, const uint8_t *place)
{
    for (uint32_t s = 1; s < d->n; s++) {
        uint32_t at = (uint32_t)w->n_edges;
        rose_gr_work(w->b, 20);
        for (unsigned c = 0; c < 256; c++) {
            unsigned lo = c;
            uint32_t to = d->next[s][c];
            if (to == 0) continue;
            while (c < 255 && d->next[s][c + 1] == to)
                c++;
            add_edge(w, lo, c, tick != NULL && place[to] == 0 ? tick[to] : enter[to]);
        }
        w->ops[first + s].first = at;
        w->ops[first + s].n = (uint32_t)w->n_edges - at;
    }
}

/* Makes room for the ops first + s; returns where to enter each state: one that accepts also leads
 * to `next`. */
static uint32_t *write_states(writer *w, const gr_dfa *d, uint32_t first, uint32_t next)
{
    const uint8_t *safe = safe_states(w, d);
    uint32_t *enter = rose_gr_take(w->b, d->n * sizeof *enter);
    for (uint32_t s = 1; s < d->n; s++)
        add_op(w, (gr_op){.kind = OP_EDGES, .wild = safe[s] & 1 ? WILD_SAFE : WILD_NO});
    for (uint32_t s = 1; s < d->n; s++) {
        enter[s] = first + s;
        if (!d->accept[s]) continue;
        enter[s] = add_fork(w, 2);
        set_fork(w, enter[s], first + s, next);
    }
    return enter;
}

static uint32_t write_dfa(writer *w, const gr_dfa *d, uint32_t next)
{
    uint32_t first = (uint32_t)w->n_ops - 1, *enter = write_states(w, d, first, next);
    write_edges(w, d, first, enter, NULL, NULL);
    return enter[1];
}

static uint32_t add_tick(writer *w, const gr_counted *k, uint32_t s, uint32_t loop, uint32_t to,
                         unsigned add)
{
    uint32_t at = (uint32_t)w->n_targets;
    add_target(w, k->lo[s]); /* a dead state has GR_NONE here, which no count reaches */
    add_target(w, k->hi[s]);
    return add_op(
        w, (gr_op){.kind = OP_TICK, .lo = (uint8_t)add, .to = to, .loop = loop, .bounds = at});
}

/* Says what masks may take for granted of the counts (mask.c). State s is alive with the counts
 * lo[s] to hi[s], and OP_TICK lets no other count in.
 * - plain: with a count in [plain_lo, plain_hi] every state that can end is alive.
 *   Two counts there differ only for a token that is long enough to pass plain_hi. If every lo is
 *   0, two counts below min also differ only for a token that is long enough to reach min.
 * - safe: safe characters lead from a safe state to safe states only. If each of these is alive
 *   with 0 to safe_hi, a safe token survives exactly if the count plus its characters stays within
 *   safe_hi. Otherwise no state of the automaton is wild, and masks walk the trie. */
static void describe_counts(writer *w, const gr_counted *k, uint32_t first, gr_loop *l)
{
    bool safe = true;
    l->plain_lo = k->min;
    l->plain_hi = k->max;
    l->safe_hi = GR_NONE;
    l->lo_is_plain = true;
    for (uint32_t s = 1; s < k->d->n; s++) {
        if (k->lo[s] == GR_NONE) continue;
        if (k->lo[s] > l->plain_lo) l->plain_lo = k->lo[s];
        if (k->hi[s] < l->plain_hi) l->plain_hi = k->hi[s];
        if (k->lo[s] > 0) l->lo_is_plain = false;
        if (w->ops[first + s].wild != WILD_SAFE || k->place[s] != 0) continue;
        if (k->lo[s] > 0 || (l->safe_hi != GR_NONE && l->safe_hi != k->hi[s])) safe = false;
        l->safe_hi = k->hi[s];
    }
    const uint8_t wild = !safe ? WILD_NO : k->max != GR_INF ? WILD_COUNT : WILD_SAFE;
    for (uint32_t s = 1; s < k->d->n; s++)
        if (w->ops[first + s].wild == WILD_SAFE) w->ops[first + s].wild = wild;
}

/* A counter is pushed before the first character; each edge checks that the end can be reached. */
static uint32_t write_counted_dfa(writer *w, const gr_counted *k, uint32_t next)
{
    const gr_dfa *d = k->d;
    uint32_t i = (uint32_t)w->n_loops, *tick = rose_gr_take(w->b, d->n * sizeof *tick);
    w->loops = rose_gr_grown(w->b, w->loops, w->n_loops, &w->cap_loops, sizeof *w->loops);
    w->n_loops++;
    uint32_t leave = add_op(w, (gr_op){.kind = OP_LOOP, .loop = i});
    uint32_t first = (uint32_t)w->n_ops - 1, *enter = write_states(w, d, first, leave);
    gr_loop l = {.min = k->min, .max = k->max, .body = DEAD, .exit = next, .head = enter[1]};
    describe_counts(w, k, first, &l);
    w->loops[i] = l;
    for (uint32_t s = 1; s < d->n; s++) {
        tick[s] = add_tick(w, k, s, i, enter[s], 1);
        enter[s] = add_tick(w, k, s, i, enter[s], 0);
        w->ops[first + s].counted = i;
    }
    write_edges(w, d, first, enter, tick, k->place);
    return add_op(w, (gr_op){.kind = OP_ENTER, .loop = i});
}

/* A call in the last place of a rule is a jump, so that right recursion needs no stack. */
static uint32_t write_call(writer *w, uint32_t rule, uint32_t next)
{
    uint32_t op =
        next == RETURN ? add_fork(w, 1) : add_op(w, (gr_op){.kind = OP_CALL, .back = next});
    w->calls = rose_gr_grown(w->b, w->calls, w->n_calls, &w->cap_calls, sizeof *w->calls);
    w->calls[w->n_calls++] = (struct call){op, rule};
    return op;
}

/* Writes gr_keys.needs. */
static uint32_t write_needs(writer *w, const gr_members *m, uint32_t n_words)
{
    const uint32_t table = (uint32_t)w->n_targets;
    for (uint32_t i = 0; i < m->n; i++)
        add_target(w, 0);
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->needs == NULL || m->needs[i] == NULL) continue;
        w->targets[table + i] = (uint32_t)w->n_targets;
        for (uint32_t j = 0; j < n_words; j++)
            add_target(w, j * 32 < m->n ? m->needs[i][j] : 0);
    }
    return table;
}

/* Can the text of member j end? j == m->n: a member without a name of its own. */
static bool member_ends(const writer *w, const gr_members *m, uint32_t j)
{
    return j < m->n ? rose_gr_member_ends(m, j, w->productive) : w->productive[m->other];
}

/* Adds the table of an object; *n: members that OP_TAKE can choose from. */
static uint32_t add_keys(writer *w, const gr_members *m, uint32_t *n)
{
    const bool linked = m->needs != NULL || m->ordered;
    gr_keys k = {.n_words = (m->n + linked + 31) / 32,
                 .min = m->min,
                 .max = m->max,
                 .n = m->n,
                 .required = (uint32_t)w->n_targets,
                 .other = w->productive[m->other],
                 .linked = linked,
                 .ordered = m->ordered};
    k.n_frames = k.n_words + (m->min > 0 || m->max != GR_INF);
    *n = k.other;
    for (uint32_t j = 0; j < 2 * k.n_words; j++)
        add_target(w, 0);
    for (uint32_t j = 0; j < m->n; j++) {
        uint32_t *word = w->targets + k.required + j / 32, bit = UINT32_C(1) << (j % 32);
        if (m->required[j]) word[0] |= bit;
        if (!member_ends(w, m, j)) continue;
        word[k.n_words] |= bit;
        ++*n;
    }
    if (linked) k.needs = write_needs(w, m, k.n_words);
    w->keys = rose_gr_grown(w->b, w->keys, w->n_keys, &w->cap_keys, sizeof *w->keys);
    w->keys[w->n_keys] = k;
    return (uint32_t)w->n_keys++;
}

/* The members of an object, in any order. `begin`, `after` and `choose` are forks, m->comma and
 * m->close are nodes. OP_TAKE refuses a member that is marked, OP_CLOSE an object that lacks one.
 *
 *     OPEN -> begin ----> choose --> TAKE 0 -> member 0 ---> after
 *               |           ^ \----> TAKE n -> other ------> after
 *               |           |                               |  |
 *               |         comma <------- MORE <-------------+  |
 *               +-> CLOSE <------------------------------------+
 *                     \-> close -> next                        */
static uint32_t write_keys(writer *w, const gr_members *m, uint32_t next)
{
    uint32_t n, i = add_keys(w, m, &n);
    uint32_t close = write_node(w, m->close, next);
    close = add_op(w, (gr_op){.kind = OP_CLOSE, .to = close, .keys = i});
    uint32_t begin = add_fork(w, 2), after = add_fork(w, 2), choose = add_fork(w, n);
    uint32_t comma = write_node(w, m->comma, choose), at = w->ops[choose].first;
    uint32_t more = add_op(w, (gr_op){.kind = OP_MORE, .to = comma, .keys = i});
    for (uint32_t j = 0; j <= m->n; j++) {
        if (!member_ends(w, m, j)) continue;
        gr_op take = {.kind = OP_TAKE, .keys = i};
        take.to = write_node(w, j < m->n ? m->kids[j] : m->other, after);
        take.member = j < m->n || w->keys[i].linked ? j : GR_NONE;
        uint32_t to = add_op(w, take);
        w->targets[at++] = to;
    }
    set_fork(w, begin, close, choose);
    set_fork(w, after, close, more);
    return add_op(w, (gr_op){.kind = OP_OPEN, .to = begin, .keys = i});
}

static uint32_t write_node(writer *w, gr_node x, uint32_t next)
{
    gr_build *b = w->b;
    gr_node_data d = b->nodes[x];
    if (!w->productive[x]) return DEAD;
    switch ((gr_node_kind)d.kind) {
    case NODE_EMPTY:
        return next;
    case NODE_BYTES:
        for (uint32_t i = d.n; i-- > 0;) {
            uint8_t c = b->bytes[d.a + i];
            next = add_op(w, (gr_op){.kind = OP_RANGE, .lo = c, .hi = c, .to = next});
        }
        return next;
    case NODE_SET:
        return write_set(w, d.a, next);
    case NODE_SEQ:
        for (uint32_t i = d.n; i-- > 0;)
            next = write_node(w, b->kids[d.a + i], next);
        return next;
    case NODE_ALT:
        return write_alt(w, &d, next);
    case NODE_REPEAT:
        return write_repeat(w, &d, next);
    case NODE_RULE:
        return write_call(w, d.a, next);
    case NODE_DFA:
        return write_dfa(w, b->dfas[d.a], next);
    case NODE_COUNTED:
        return write_counted_dfa(w, b->counted[d.a], next);
    case NODE_KEYS:
        return write_keys(w, &b->keys[d.a], next);
    case NODE_NEVER:
    default:
        return DEAD;
    }
}

void rose_gr_set_cuts(gr_set *cuts, const gr_set *s)
{
    uint64_t carry = s->w[0] & 1; /* byte 0 has none before it */
    for (int i = 0; i < 4; i++) {
        cuts->w[i] |= s->w[i] ^ (s->w[i] << 1 | carry);
        carry = s->w[i] >> 63;
    }
}

unsigned rose_gr_classes(const gr_set *cuts, uint8_t class_of[256])
{
    unsigned n = 0;
    for (unsigned c = 0; c < 256; c++) {
        if (c > 0 && gr_set_has(cuts, c)) n++;
        class_of[c] = (uint8_t)n;
    }
    return n + 1;
}

static void cut_range(gr_set *cuts, unsigned lo, unsigned hi)
{
    gr_set_add(cuts, lo, lo);
    if (hi < 255) gr_set_add(cuts, hi + 1, hi + 1);
}

/* Bytes between which no op distinguishes are one class. */
static void find_classes(gr_program *p)
{
    gr_set cuts = {{0}};
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_RANGE) cut_range(&cuts, p->ops[i].lo, p->ops[i].hi);
    for (uint32_t i = 0; i < p->n_edges; i++)
        cut_range(&cuts, p->edges[i].lo, p->edges[i].hi);
    for (uint32_t i = 0; i < p->n_sets; i++)
        rose_gr_set_cuts(&cuts, &p->sets[i]);
    p->n_classes = rose_gr_classes(&cuts, p->class_of);
    for (unsigned c = 256; c-- > 0;)
        p->byte_of[p->class_of[c]] = (uint8_t)c;
}

static void *keep(gr_build *b, const void *from, size_t n, size_t size)
{
    void *p = malloc(n * size + 1);
    if (p == NULL) rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
    if (n > 0) memcpy(p, from, n * size);
    return p;
}

void rose_gr_program_make(gr_build *b, gr_node root, gr_program *out)
{
    writer w = {.b = b};
    b->cost = COST_RULES;
    w.productive = rose_gr_check_rules(b, root);
    b->cost = COST_PROGRAM;
    add_op(&w, (gr_op){.kind = OP_MATCH});
    add_op(&w, (gr_op){.kind = OP_RETURN});
    add_op(&w, (gr_op){.kind = OP_FORK});
    uint32_t *entry = rose_gr_take(b, (b->n_rules + 1) * sizeof *entry);
    out->start = write_node(&w, root, MATCH);
    for (size_t i = 0; i < b->n_rules; i++)
        if (b->rules[i].body != GR_NONE) entry[i] = write_node(&w, b->rules[i].body, RETURN);
    for (size_t i = 0; i < w.n_calls; i++) {
        gr_op *op = &w.ops[w.calls[i].op];
        if (op->kind == OP_CALL)
            op->to = entry[w.calls[i].rule];
        else
            w.targets[op->first] = entry[w.calls[i].rule];
    }
    out->ops = keep(b, w.ops, w.n_ops, sizeof *w.ops);
    out->edges = keep(b, w.edges, w.n_edges, sizeof *w.edges);
    out->targets = keep(b, w.targets, w.n_targets, sizeof *w.targets);
    out->loops = keep(b, w.loops, w.n_loops, sizeof *w.loops);
    out->keys = keep(b, w.keys, w.n_keys, sizeof *w.keys);
    out->n_keys = (uint32_t)w.n_keys;
    out->sets = keep(b, b->sets, b->n_sets, sizeof *b->sets);
    out->n_ops = (uint32_t)w.n_ops;
    out->n_edges = (uint32_t)w.n_edges;
    out->n_targets = (uint32_t)w.n_targets;
    out->n_loops = (uint32_t)w.n_loops;
    out->n_sets = (uint32_t)b->n_sets;
    find_classes(out);
}

void rose_gr_program_free(gr_program *p)
{
    free(p->ops);
    free(p->edges);
    free(p->targets);
    free(p->loops);
    free(p->keys);
    free(p->sets);
    *p = (gr_program){0};
}
