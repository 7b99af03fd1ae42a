/* grammar/dfa.c - deterministic automata over bytes, for what needs intersection or difference: a
 * pattern with a length, names that a pattern of other properties excludes. A node becomes an
 * automaton with empty transitions, repetitions unrolled, and subsets of its states become the
 * states of the result (subset construction). State 0 is dead and state 1 is the start. Every
 * result is trimmed: from each state but 0 the end can be reached. Then an empty intersection is
 * seen at compile time, and a matcher never enters a text that cannot end. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { MAX_STATES = GR_DFA_STATES, UNROLLED = 200000 };

/* Steps (grammar.h) for a walk over the 256 transitions of a state. */
enum { STATE_STEPS = 10 };

typedef struct part { /* a state of the automaton with empty transitions */
    enum { PART_END, PART_SET, PART_FORK } kind;
    uint32_t a, b; /* SET: next, set; FORK: both ways, GR_NONE for none */
} part;

typedef struct parts {
    gr_build *b;
    part *v;
    size_t n, cap;
    gr_set *sets;
    size_t n_sets, cap_sets;
} parts;

static uint32_t add_part(parts *p, part x)
{
    p->v = rose_gr_grown(p->b, p->v, p->n, &p->cap, sizeof *p->v);
    if (p->n >= UNROLLED)
        rose_gr_fail(p->b, ROSE_E_UNSUPPORTED,
                     "a combination of string constraints needs more than %d states", UNROLLED);
    p->v[p->n] = x;
    return (uint32_t)p->n++;
}

static uint32_t add_set(parts *p, const gr_set *s, uint32_t next)
{
    p->sets = rose_gr_grown(p->b, p->sets, p->n_sets, &p->cap_sets, sizeof *p->sets);
    p->sets[p->n_sets] = *s;
    return add_part(p, (part){PART_SET, next, (uint32_t)p->n_sets++});
}

static uint32_t unroll(parts *p, gr_node x, uint32_t next);

static uint32_t unroll_repeat(parts *p, const gr_node_data *d, uint32_t next)
{
    uint32_t at = next;
    if (d->max == GR_INF) {
        at = add_part(p, (part){PART_FORK, GR_NONE, next});
        uint32_t body = unroll(p, d->a, at);
        p->v[at].a = body;
    } else {
        for (uint32_t i = d->min; i < d->max; i++)
            at = add_part(p, (part){PART_FORK, unroll(p, d->a, at), next});
    }
    for (uint32_t i = 0; i < d->min; i++)
        at = unroll(p, d->a, at);
    return at;
}

static uint32_t unroll_dfa(parts *p, const gr_dfa *d, uint32_t next)
{
    uint32_t first = (uint32_t)p->n;
    for (uint32_t s = 0; s < d->n; s++)
        add_part(p, (part){PART_FORK, GR_NONE, d->accept[s] ? next : GR_NONE});
    for (uint32_t s = 1; s < d->n; s++) {
        for (unsigned c = 0; c < 256; c++) {
            gr_set one = {{0}};
            unsigned hi = c;
            if (d->next[s][c] == 0) continue;
            while (hi < 255 && d->next[s][hi + 1] == d->next[s][c])
                hi++;
            gr_set_add(&one, c, hi);
            uint32_t edge = add_set(p, &one, first + d->next[s][c]);
            uint32_t more = p->v[first + s].a;
            p->v[first + s].a = more == GR_NONE ? edge : add_part(p, (part){PART_FORK, edge, more});
            c = hi;
        }
    }
    return first + 1;
}

static uint32_t unroll(parts *p, gr_node x, uint32_t next)
{
    gr_build *b = p->b;
    gr_node_data d = b->nodes[x];
    uint32_t at = next;
    rose_gr_work(b, 0);
    switch ((gr_node_kind)d.kind) {
    case NODE_EMPTY:
        break;
    case NODE_BYTES:
        for (uint32_t i = d.n; i-- > 0;) {
            gr_set s = {{0}};
            gr_set_add(&s, b->bytes[d.a + i], b->bytes[d.a + i]);
            at = add_set(p, &s, at);
        }
        break;
    case NODE_SET:
        return add_set(p, &b->sets[d.a], next);
    case NODE_SEQ:
        for (uint32_t i = d.n; i-- > 0;)
            at = unroll(p, b->kids[d.a + i], at);
        break;
    case NODE_ALT:
        at = GR_NONE;
        for (uint32_t i = d.n; i-- > 0;)
            at = add_part(p, (part){PART_FORK, unroll(p, b->kids[d.a + i], next), at});
        break;
    case NODE_REPEAT:
        return unroll_repeat(p, &d, next);
    case NODE_DFA:
        return unroll_dfa(p, b->dfas[d.a], next);
    case NODE_NEVER:
        return add_part(p, (part){PART_FORK, GR_NONE, GR_NONE});
    case NODE_COUNTED:
    case NODE_KEYS:
    case NODE_RULE:
    default:
        rose_gr_fail(b, ROSE_E_INTERNAL, "a string constraint holds a rule");
    }
    return at;
}

/* ---- from nodes to subsets ---- */

/* The parts in which the automaton can be after the same bytes are one subset, and a subset is a
 * state of the result. A subset leaves out the forks: they take no byte, so the parts that they
 * lead to say the same. For (a|ab)c:
 *
 *     {a, a'}  --a-->  {c, b}  --b-->  {c}  --c-->  {END}
 *                      {c, b}  --c-->  {END}
 *
 * Equal subsets are interned, so the construction ends. In the worst case there are 2^n subsets;
 * MAX_STATES refuses such a pattern. */
typedef struct subsets { /* found so far: each a sorted list of PART_SET and PART_END */
    parts *p;
    uint32_t *list; /* all lists one after the other */
    size_t n_list, cap_list;
    uint32_t *begin; /* [n + 1] into list */
    size_t n, cap;
    uint32_t *table, n_table; /* hash table of subset + 1 */
    uint32_t *mark, stamp;    /* [p->n] */
    uint32_t *stack;
    uint64_t visited; /* parts that closing has looked at since the last intern */
} subsets;

/* Appends to the list what `from` reaches without a byte. mark[x] == stamp: x was seen. */
static void close_over(subsets *s, uint32_t from)
{
    size_t n = 0;
    s->stack[n++] = from;
    while (n > 0) {
        uint32_t x = s->stack[--n];
        s->visited++;
        if (x == GR_NONE || s->mark[x] == s->stamp) continue;
        s->mark[x] = s->stamp;
        const part *q = &s->p->v[x];
        if (q->kind != PART_FORK) {
            s->list = rose_gr_grown(s->p->b, s->list, s->n_list, &s->cap_list, sizeof *s->list);
            s->list[s->n_list++] = x;
            continue;
        }
        s->stack[n++] = q->b;
        s->stack[n++] = q->a;
    }
}

static uint32_t hash_list(const uint32_t *v, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ v[i]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
    return (uint32_t)h;
}

static int by_number(const void *x, const void *y)
{
    const uint32_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static void sort_list(uint32_t *v, size_t n)
{
    if (n > 16) {
        qsort(v, n, sizeof *v, by_number);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        uint32_t x = v[i];
        size_t k = i;
        for (; k > 0 && v[k - 1] > x; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
}

static void grow_table(subsets *s)
{
    uint32_t size = s->n_table == 0 ? 256 : s->n_table * 2;
    uint32_t *t = rose_gr_take(s->p->b, size * sizeof *t);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t h = hash_list(s->list + s->begin[i], s->begin[i + 1] - s->begin[i]);
        while (t[h & (size - 1)] != 0)
            h++;
        t[h & (size - 1)] = i + 1;
    }
    s->table = t;
    s->n_table = size;
}

/* The list from begin[n] on as a subset: a new one, or one that exists. */
static uint32_t intern(subsets *s)
{
    uint32_t at = s->begin[s->n], len = (uint32_t)s->n_list - at;
    rose_gr_work(s->p->b, len * UINT64_C(3) + s->visited / 4);
    s->visited = 0;
    sort_list(s->list + at, len);
    if (2 * s->n + 2 > s->n_table) grow_table(s);
    uint32_t h = hash_list(s->list + at, len);
    for (;; h++) {
        uint32_t i = s->table[h & (s->n_table - 1)];
        if (i == 0) break;
        if (s->begin[i] - s->begin[i - 1] == len &&
            (len == 0 ||
             memcmp(s->list + s->begin[i - 1], s->list + at, len * sizeof *s->list) == 0)) {
            s->n_list = at;
            return i - 1;
        }
    }
    if (s->n + 1 >= MAX_STATES)
        rose_gr_fail(s->p->b, ROSE_E_UNSUPPORTED,
                     "a combination of string constraints needs more than %d states", MAX_STATES);
    s->table[h & (s->n_table - 1)] = (uint32_t)s->n + 1;
    s->n++;
    s->begin = rose_gr_grown(s->p->b, s->begin, s->n, &s->cap, sizeof *s->begin);
    s->begin[s->n] = (uint32_t)s->n_list;
    return (uint32_t)s->n - 1;
}

/* class_of[byte]: bytes between which no set of p distinguishes; returns how many classes. */
static unsigned classes(const parts *p, uint8_t class_of[256])
{
    gr_set cuts = {{0}};
    for (size_t i = 0; i < p->n_sets; i++)
        rose_gr_set_cuts(&cuts, &p->sets[i]);
    return rose_gr_classes(&cuts, class_of);
}

static gr_dfa *new_dfa(gr_build *b, size_t cap)
{
    gr_dfa *d = rose_gr_take(b, sizeof *d);
    d->next = rose_gr_take(b, cap * sizeof *d->next);
    d->accept = rose_gr_take(b, cap);
    return d;
}

/* Copies d from scratch to lasting memory, without the states from which the end cannot be reached,
 * and ends scratch. */
gr_dfa *rose_gr_dfa_finish(gr_build *b, const gr_dfa *d)
{
    uint16_t *to = rose_gr_take(b, d->n * sizeof *to);
    uint32_t n = 1;
    for (uint32_t s = 0; s < d->n; s++)
        to[s] = d->accept[s];
    for (bool changed = true; changed;) {
        changed = false;
        rose_gr_work(b, (uint64_t)d->n * STATE_STEPS);
        for (uint32_t s = d->n; s-- > 1;)
            for (unsigned c = 0; c < 256 && !to[s]; c++)
                if (to[d->next[s][c]]) to[s] = 1, changed = true;
    }
    for (uint32_t s = 1; s < d->n; s++)
        if (to[s] || s == 1) to[s] = (uint16_t)n++; /* an empty automaton keeps its start */
    rose_gr_scratch_pause(b);
    rose_gr_work(b, (uint64_t)d->n * STATE_STEPS);
    gr_dfa *out = new_dfa(b, n);
    out->n = n;
    for (uint32_t s = 1; s < d->n; s++) {
        if (to[s] == 0) continue;
        for (unsigned c = 0; c < 256; c++)
            out->next[to[s]][c] = to[d->next[s][c]];
        out->accept[to[s]] = d->accept[s];
    }
    rose_gr_scratch_end(b);
    if (rose_gr_dfa_empty(out)) memset(out->next[1], 0, sizeof out->next[1]);
    if (rose_gr_dfa_empty(out)) out->n = 2;
    return out;
}

/* The list of subsets is its own queue: s.n grows while i walks along it. Bytes of one class lead
 * to the same subset, so one byte stands for each class. */
gr_dfa *rose_gr_dfa_of(gr_build *b, gr_node x)
{
    parts p = {.b = b};
    subsets s = {.p = &p};
    uint8_t class_of[256];
    size_t cap = 0;
    uint16_t(*next)[256] = NULL;
    rose_gr_scratch_begin(b, COST_SUBSETS);
    uint32_t end = add_part(&p, (part){PART_END, 0, 0});
    uint32_t start = unroll(&p, x, end);
    unsigned n_classes = classes(&p, class_of);
    s.mark = rose_gr_take(b, p.n * sizeof *s.mark);
    s.stack = rose_gr_take(b, (2 * p.n + 4) * sizeof *s.stack);
    s.begin = rose_gr_grown(b, NULL, 0, &s.cap, sizeof *s.begin);
    s.list = rose_gr_grown(b, NULL, 0, &s.cap_list, sizeof *s.list);
    intern(&s); /* the empty subset is state 0 */
    s.stamp++;
    close_over(&s, start);
    uint32_t first = intern(&s);
    if (first == 0) { /* matches nothing */
        rose_gr_scratch_end(b);
        gr_dfa *none = new_dfa(b, 2);
        none->n = 2;
        return none;
    }
    for (uint32_t i = 0; i < s.n; i++) {
        uint32_t by_class[256];
        next = rose_gr_grown(b, next, i, &cap, sizeof *next);
        rose_gr_work(b, 16 + n_classes * (uint64_t)(s.begin[i + 1] - s.begin[i]) / 8);
        for (unsigned k = 0; k < n_classes; k++) {
            unsigned byte = 0;
            while (class_of[byte] != k)
                byte++;
            s.stamp++;
            for (uint32_t j = s.begin[i]; j < s.begin[i + 1]; j++) {
                const part *q = &p.v[s.list[j]];
                if (q->kind == PART_SET && gr_set_has(&p.sets[q->b], byte)) close_over(&s, q->a);
            }
            by_class[k] = intern(&s);
        }
        for (unsigned c = 0; c < 256; c++)
            next[i][c] = (uint16_t)by_class[class_of[c]];
    }
    gr_dfa *d = new_dfa(b, 0);
    d->n = (uint32_t)s.n;
    d->next = next;
    d->accept = rose_gr_take(b, d->n);
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t j = s.begin[i]; j < s.begin[i + 1]; j++)
            if (s.list[j] == end) d->accept[i] = 1;
    return rose_gr_dfa_finish(b, d);
}

gr_dfa *rose_gr_dfa_words(gr_build *b, const gr_word *words, size_t n)
{
    size_t states = 2;
    for (size_t i = 0; i < n; i++)
        states += words[i].n;
    if (states >= MAX_STATES)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "the names of one object need more than %d states",
                     MAX_STATES);
    gr_dfa *d = new_dfa(b, states);
    d->n = 2;
    for (size_t i = 0; i < n; i++) {
        uint32_t at = 1;
        for (size_t k = 0; k < words[i].n; k++) {
            uint16_t *to = &d->next[at][(uint8_t)words[i].bytes[k]];
            if (*to == 0) *to = (uint16_t)d->n++;
            at = *to;
        }
        d->accept[at] = 1;
    }
    return d;
}

/* The product: its states are the pairs of states that one text can reach, found from (1, 1) on.
 * With DFA_MINUS y may be dead: then the text is not in y. */
gr_dfa *rose_gr_dfa_combine(gr_build *b, const gr_dfa *x, const gr_dfa *y, gr_dfa_op op)
{
    size_t size = (size_t)x->n * y->n, n = 2, cap = 0, cap_pairs = 0;
    if (size > UINT32_MAX)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "two string constraints are too large to combine");
    rose_gr_scratch_begin(b, COST_PRODUCTS);
    uint32_t *id = rose_gr_take(b, size * sizeof *id), *pairs = NULL;
    gr_dfa *d = new_dfa(b, 0);
    pairs = rose_gr_grown(b, pairs, 0, &cap_pairs, sizeof *pairs);
    pairs[1] = y->n + 1; /* the pair (1, 1) as x * y->n + y */
    id[pairs[1]] = 1;
    for (uint32_t s = 1; s < n; s++) {
        uint32_t i = pairs[s] / y->n, j = pairs[s] % y->n;
        rose_gr_work(b, 3 * STATE_STEPS);
        d->next = rose_gr_grown(b, d->next, cap == 0 ? 0 : s, &cap, sizeof *d->next);
        for (unsigned c = 0; c < 256; c++) {
            uint32_t p = x->next[i][c], q = y->next[j][c], pair = p * y->n + q;
            if (p == 0 || (op == DFA_AND && q == 0)) continue;
            if (id[pair] == 0) {
                if (n >= MAX_STATES)
                    rose_gr_fail(b, ROSE_E_UNSUPPORTED,
                                 "a combination of string constraints needs more than %d states",
                                 MAX_STATES);
                pairs = rose_gr_grown(b, pairs, n, &cap_pairs, sizeof *pairs);
                pairs[n] = pair;
                id[pair] = (uint32_t)n++;
            }
            d->next[s][c] = (uint16_t)id[pair];
        }
    }
    d->n = (uint32_t)n;
    d->accept = rose_gr_take(b, n);
    for (uint32_t s = 1; s < n; s++) {
        bool in_y = y->accept[pairs[s] % y->n];
        d->accept[s] = x->accept[pairs[s] / y->n] && (op == DFA_AND) == in_y;
    }
    return rose_gr_dfa_finish(b, d);
}

/* Sets the transitions of a trie, made by rose_gr_dfa_words, where it has none: to the state of the
 * longest end of the text that begins a word (Aho and Corasick). States are taken by length. A
 * state whose text ends with a word becomes 0. */
static void link_trie(gr_build *b, gr_dfa *d)
{
    uint16_t *order = rose_gr_take(b, d->n * sizeof *order), *back, *to;
    back = rose_gr_take(b, d->n * sizeof *back);
    uint32_t n = 1;
    order[0] = back[1] = 1;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t s = order[i];
        const uint16_t *other = d->next[back[s]];
        rose_gr_work(b, STATE_STEPS);
        for (unsigned c = 0; c < 256; c++) {
            to = &d->next[s][c];
            const uint16_t end = s == 1 ? 1 : other[c]; /* 0: it ends with a word */
            if (*to == 0) {
                *to = end;
            } else if (end == 0 || d->accept[*to]) {
                *to = 0;
            } else {
                back[*to] = end;
                order[n++] = *to;
            }
        }
    }
}

gr_dfa *rose_gr_dfa_without(gr_build *b, const gr_word *words, size_t n)
{
    rose_gr_scratch_begin(b, COST_SUBSETS);
    gr_dfa *d = rose_gr_dfa_words(b, words, n);
    link_trie(b, d);
    memset(d->accept + 1, 1, d->n - 1);
    return rose_gr_dfa_finish(b, d);
}

bool rose_gr_dfa_empty(const gr_dfa *d)
{
    for (uint32_t s = 1; s < d->n; s++)
        if (d->accept[s]) return false;
    return true;
}

bool rose_gr_dfa_match(const gr_dfa *d, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++)
        s = d->next[s][p[i]];
    return d->accept[s];
}
