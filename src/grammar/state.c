/* grammar/state.c - follows bytes through a program.
 *
 *     state  = a sorted set of items            next[class of byte] -> state
 *     item   = (op that takes a byte, frame)
 *     frame  = (parent frame, where to go on)   or (parent frame, loop, rounds so far)
 *                                               or (parent frame, keys, marks of members)
 *
 * A grammar with recursion has no finite automaton, so all readings of the text are followed at
 * once, each with a stack of its own. Stacks share their lower frames: a frame knows its parent.
 * With `root ::= v` and `v ::= "[" v? "]"`, after the text "[":
 *
 *     0 (empty stack) <- frame 1 (go on at the end of root) <- frame 2 (go on at the outer "]")
 *     state {("]", frame 1), ("[", frame 2)}
 *
 * Frames and states are interned: equal ones have one id, so two texts that leave the same
 * possibilities share transitions and masks. A transition is computed when a text first needs it.
 * Ids change only in rose_gr_clean, which keeps what the living matchers need. */
#include <stdlib.h>
#include <string.h>

#include "grammar/match_internal.h"

enum { FIRST_BUCKETS = 256, MAX_ITEMS = 4096, MAX_STEPS = 10000000 /* about 0.3 s */ };

enum { CROWDED_SHARE = 64 }; /* of max_run_bytes, if all grammars need much memory */

static uint32_t fail(rose_grammar *g, rose_status st)
{
    g->st = st;
    return GR_NONE;
}

/* Makes room for one more element of *v, n of *cap of which are in use. */
static bool grow(rose_grammar *g, void **v, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap) return true;
    uint32_t more = *cap < 64 ? 64 : *cap * 2;
    void *p = more > UINT32_MAX / 4 ? NULL : realloc(*v, more * size);
    if (p == NULL) return fail(g, ROSE_E_NOMEM), false;
    g->s.bytes += (more - *cap) * size;
    *v = p;
    *cap = more;
    return true;
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b * UINT64_C(0xc2b2ae3d27d4eb4f)) ^
                 (c * UINT64_C(0x165667b19e3779f9));
    h ^= h >> 32;
    return (uint32_t)(h * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

static bool rehash_frames(rose_grammar *g)
{
    gr_states *s = &g->s;
    uint32_t n = s->n_frame_buckets * 2, *t = calloc(n, sizeof *t);
    if (t == NULL) return fail(g, ROSE_E_NOMEM), false;
    for (uint32_t i = 1; i < s->n_frames; i++) {
        gr_frame *f = &s->frames[i];
        uint32_t *at = &t[mix(f->parent, f->op, f->count) & (n - 1)];
        f->chain = *at;
        *at = i;
    }
    s->bytes += s->n_frame_buckets * sizeof *t;
    free(s->frame_buckets);
    s->frame_buckets = t;
    s->n_frame_buckets = n;
    return true;
}

uint32_t rose_gr_frame(rose_grammar *g, uint32_t parent, uint32_t op, uint32_t count)
{
    gr_states *s = &g->s;
    uint32_t h = mix(parent, op, count);
    for (uint32_t i = s->frame_buckets[h & (s->n_frame_buckets - 1)]; i != 0;
         i = s->frames[i].chain)
        if (s->frames[i].parent == parent && s->frames[i].op == op && s->frames[i].count == count)
            return i;
    if (s->n_frames >= s->n_frame_buckets && !rehash_frames(g)) return GR_NONE;
    if (!grow(g, (void **)&s->frames, s->n_frames, &s->cap_frames, sizeof *s->frames))
        return GR_NONE;
    uint32_t *at = &s->frame_buckets[h & (s->n_frame_buckets - 1)];
    s->frames[s->n_frames] = (gr_frame){.parent = parent,
                                        .op = op,
                                        .count = count,
                                        .depth = s->frames[parent].depth + 1,
                                        .plain = GR_NONE,
                                        .chain = *at};
    *at = s->n_frames;
    return s->n_frames++;
}

/* ---- closing: following ops that take no byte ----
 *
 * g->work is a stack of items to follow, g->found gets the items whose op takes a byte. A set of
 * seen items ends loops of empty ops; a new stamp empties the set without touching it. */

static bool push(rose_grammar *g, uint32_t op, uint32_t frame)
{
    if (frame == GR_NONE) return false;
    if (!grow(g, (void **)&g->work, g->n_work, &g->cap_work, sizeof *g->work)) return false;
    g->work[g->n_work++] = (gr_item){op, frame};
    return true;
}

static bool grow_seen(rose_grammar *g)
{
    uint32_t n = g->n_seen == 0 ? 1024 : g->n_seen * 2;
    uint64_t *v = malloc(n * sizeof *v);
    uint32_t *stamps = calloc(n, sizeof *stamps);
    if (v == NULL || stamps == NULL) {
        free(v);
        free(stamps);
        return fail(g, ROSE_E_NOMEM), false;
    }
    for (uint32_t i = 0; i < g->n_seen; i++) {
        if (g->seen_stamp[i] != g->stamp) continue;
        uint32_t h = mix((uint32_t)g->seen[i], (uint32_t)(g->seen[i] >> 32), 0);
        while (stamps[h & (n - 1)] == g->stamp)
            h++;
        v[h & (n - 1)] = g->seen[i];
        stamps[h & (n - 1)] = g->stamp;
    }
    free(g->seen);
    free(g->seen_stamp);
    g->seen = v;
    g->seen_stamp = stamps;
    g->n_seen = n;
    return true;
}

/* A new set of seen items. */
static void begin_close(rose_grammar *g)
{
    if (++g->stamp == 0) {
        if (g->n_seen > 0) memset(g->seen_stamp, 0, g->n_seen * sizeof *g->seen_stamp);
        g->stamp = 1;
    }
    g->n_found = g->n_marked = g->n_work = 0;
    g->wild = WILD_NO;
    g->wild_left = 0;
}

/* 1: the item is new; 0: it was seen in this closing; -1: an error. */
static int mark(rose_grammar *g, gr_item x)
{
    uint64_t key = (uint64_t)x.frame << 32 | x.op;
    if (2 * (g->n_marked + 1) > g->n_seen && !grow_seen(g)) return -1;
    uint32_t h = mix(x.op, x.frame, 0);
    for (; g->seen_stamp[h & (g->n_seen - 1)] == g->stamp; h++)
        if (g->seen[h & (g->n_seen - 1)] == key) return 0;
    g->seen[h & (g->n_seen - 1)] = key;
    g->seen_stamp[h & (g->n_seen - 1)] = g->stamp;
    if (++g->n_marked > 8 * MAX_ITEMS || ++g->steps > MAX_STEPS) {
        fail(g, ROSE_E_UNSUPPORTED);
        return -1;
    }
    return 1;
}

static void note_wild(rose_grammar *g, gr_item x, uint8_t wild, uint32_t left)
{
    if (wild < g->wild || (wild == g->wild && left <= g->wild_left)) return;
    g->wild = wild;
    g->wild_left = left;
    g->wild_item = x;
}

/* OP_LOOP: one more round, or the end of the loop. */
static bool at_loop(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_loop *l = &g->p.loops[op->loop];
    gr_frame f = g->s.frames[x.frame];
    if (op->wild == WILD_SAFE)
        note_wild(g, x, WILD_SAFE, GR_INF);
    else if (op->wild == WILD_COUNT && f.count < l->max)
        note_wild(g, x, WILD_COUNT, l->max - f.count);
    if (f.count < l->max && !push(g, l->body, x.frame)) return false;
    return f.count < l->min || push(g, l->exit, f.parent);
}

static bool at_next(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_loop *l = &g->p.loops[op->loop];
    gr_frame f = g->s.frames[x.frame];
    uint32_t most = l->max == GR_INF ? l->min : l->max;
    uint32_t count = f.count < most ? f.count + 1 : most;
    return push(g, l->head, rose_gr_frame(g, f.parent, GR_COUNTER | op->loop, count));
}

/* A step in a text whose characters are counted. */
static bool at_tick(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_loop *l = &g->p.loops[op->loop];
    gr_frame f = g->s.frames[x.frame];
    uint32_t most = l->max == GR_INF ? l->min : l->max;
    const uint32_t *bounds = g->p.targets + op->bounds;
    uint32_t count = f.count + op->lo;
    if (count > most && l->max == GR_INF) count = most;
    if (count < bounds[0] || count > bounds[1]) return true;
    if (count == f.count) return push(g, op->to, x.frame);
    return push(g, op->to, rose_gr_frame(g, f.parent, GR_COUNTER | op->loop, count));
}

/* A state of an automaton from which all safe tokens survive, or as many characters as are left. */
static void note_edges(rose_grammar *g, gr_item x, const gr_op *op)
{
    const uint32_t count = g->s.frames[x.frame].count;
    if (op->wild != WILD_COUNT)
        note_wild(g, x, WILD_SAFE, GR_INF);
    else if (count < g->p.loops[op->counted].safe_hi)
        note_wild(g, x, WILD_COUNT, g->p.loops[op->counted].safe_hi - count);
}

/* ---- members of an object that come in any order ---- */

/* frame with its word `at` (0 is the top) set to `value`. */
static uint32_t with_word(rose_grammar *g, uint32_t frame, uint32_t at, uint32_t value)
{
    gr_frame f = g->s.frames[frame];
    uint32_t parent = f.parent;
    if (at > 0 && (parent = with_word(g, parent, at - 1, value)) == GR_NONE) return GR_NONE;
    return rose_gr_frame(g, parent, f.op, at > 0 ? f.count : value);
}

static uint32_t word_at(const rose_grammar *g, uint32_t frame, uint32_t at)
{
    while (at-- > 0)
        frame = g->s.frames[frame].parent;
    return g->s.frames[frame].count;
}

/* Pushes the frames of an object, all marks clear. An object nested too deep is a dead end. */
static bool at_open(rose_grammar *g, gr_item x, const gr_op *op)
{
    uint32_t f = x.frame;
    if (g->s.frames[f].depth >= g->opts.max_stack) return true;
    for (uint32_t i = 0; i < g->p.keys[op->keys].n_frames && f != GR_NONE; i++)
        f = rose_gr_frame(g, f, GR_KEYS | op->keys, 0);
    return push(g, op->to, f);
}

/* ---- members that need others, or come in an order (gr_keys.linked) ---- */

enum { LINKED_WORDS = (GR_MAX_LINKED + 32) / 32 };

static void read_marks(const rose_grammar *g, const gr_keys *k, uint32_t frame, uint32_t *marks)
{
    for (uint32_t i = 0; i < k->n_words; i++, frame = g->s.frames[frame].parent)
        marks[i] = g->s.frames[frame].count;
}

/* How many members below `end` must be there because they are required or needed, and are not. */
static uint32_t n_missing(rose_grammar *g, const gr_keys *k, const uint32_t *marks, uint32_t end)
{
    const uint32_t *t = g->p.targets;
    uint32_t wanted[LINKED_WORDS], n = 0;
    memcpy(wanted, t + k->required, k->n_words * sizeof *wanted);
    for (uint32_t i = 0; i < k->n; i++) {
        if (!(marks[i / 32] >> (i % 32) & 1) || t[k->needs + i] == 0) continue;
        for (uint32_t j = 0; j < k->n_words; j++)
            wanted[j] |= t[t[k->needs + i] + j];
        g->steps++;
    }
    for (uint32_t i = 0; i * 32 < end; i++) {
        const uint32_t below = end - i * 32 < 32 ? (UINT32_C(1) << (end - i * 32)) - 1 : UINT32_MAX;
        n += (uint32_t)__builtin_popcount(wanted[i] & ~marks[i] & below);
    }
    return n;
}

/* May member i be the next one? n: one of the others. Then its mark is set. */
static bool take_linked(rose_grammar *g, const gr_keys *k, uint32_t *marks, uint32_t i)
{
    const uint32_t bit = UINT32_C(1) << (i % 32);
    if (i < k->n && (marks[i / 32] & bit)) return false;
    if (k->ordered && i < k->n && marks[i / 32] >> (i % 32) != 0) return false;
    for (uint32_t j = i / 32 + 1; k->ordered && j < k->n_words; j++)
        if (marks[j] != 0) return false;
    marks[i / 32] |= bit;
    return !k->ordered || n_missing(g, k, marks, i) == 0;
}

/* Is there a member that may come next? */
static bool more_linked(rose_grammar *g, const gr_keys *k, uint32_t frame)
{
    const uint32_t *able = g->p.targets + k->required + k->n_words;
    uint32_t marks[LINKED_WORDS], then[LINKED_WORDS];
    read_marks(g, k, frame, marks);
    for (uint32_t i = 0; i <= k->n; i++) {
        if (i < k->n ? !(able[i / 32] >> (i % 32) & 1) : !k->other) continue;
        memcpy(then, marks, sizeof then);
        if (take_linked(g, k, then, i)) return true;
    }
    return false;
}

/* How many members of this table of bits are not marked. */
static uint32_t unmarked(const rose_grammar *g, uint32_t frame, const uint32_t *bits, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++, frame = g->s.frames[frame].parent)
        count += (uint32_t)__builtin_popcount(bits[i] & ~g->s.frames[frame].count);
    return count;
}

/* Does the object have room for this many further members? */
static bool has_room(const rose_grammar *g, const gr_keys *k, uint32_t frame, uint32_t missing)
{
    if (k->max == GR_INF) return true;
    return (uint64_t)word_at(g, frame, k->n_words) + missing <= k->max;
}

static bool at_more(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_keys *k = &g->p.keys[op->keys];
    const uint32_t *able = g->p.targets + k->required + k->n_words;
    if (!has_room(g, k, x.frame, 1)) return true;
    if (k->linked && !more_linked(g, k, x.frame)) return true;
    if (!k->other && unmarked(g, x.frame, able, k->n_words) == 0) return true;
    return push(g, op->to, x.frame);
}

/* Counts and marks a member. Goes on only if the missing required members still have room. */
static bool at_take(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_keys *k = &g->p.keys[op->keys];
    uint32_t f = x.frame;
    if (k->n_frames > k->n_words) {
        uint32_t count = word_at(g, f, k->n_words), most = k->max == GR_INF ? k->min : k->max;
        if (count < most) f = with_word(g, f, k->n_words, count + 1);
        if (count >= k->max) return true;
        if (f == GR_NONE) return false;
    }
    uint32_t marks[LINKED_WORDS];
    if (k->linked) {
        read_marks(g, k, f, marks);
        if (!take_linked(g, k, marks, op->member)) return true;
        f = with_word(g, f, op->member / 32, marks[op->member / 32]);
        if (f == GR_NONE) return false;
    } else if (op->member != GR_NONE) {
        uint32_t old = word_at(g, f, op->member / 32), bit = UINT32_C(1) << (op->member % 32);
        if (old & bit) return true;
        if ((f = with_word(g, f, op->member / 32, old | bit)) == GR_NONE) return false;
    }
    const uint32_t missing = k->linked ? n_missing(g, k, marks, k->n)
                                       : unmarked(g, f, g->p.targets + k->required, k->n_words);
    if (!has_room(g, k, f, missing)) return true;
    return push(g, op->to, f);
}

static bool at_close(rose_grammar *g, gr_item x, const gr_op *op)
{
    const gr_keys *k = &g->p.keys[op->keys];
    const uint32_t *required = g->p.targets + k->required;
    uint32_t f = x.frame, marks[LINKED_WORDS];
    if (k->linked) {
        read_marks(g, k, f, marks);
        if (n_missing(g, k, marks, k->n) > 0) return true;
    }
    for (uint32_t i = 0; i < k->n_words; i++, f = g->s.frames[f].parent)
        if ((g->s.frames[f].count & required[i]) != required[i]) return true;
    if (k->n_frames > k->n_words) {
        if (g->s.frames[f].count < k->min) return true;
        f = g->s.frames[f].parent;
    }
    return push(g, op->to, f);
}

static bool follow(rose_grammar *g, gr_item x)
{
    const gr_op *op = &g->p.ops[x.op];
    switch ((gr_op_kind)op->kind) {
    case OP_RETURN:
        return push(g, g->s.frames[x.frame].op, g->s.frames[x.frame].parent);
    case OP_FORK:
        if (op->wild != WILD_NO) note_wild(g, x, op->wild, GR_INF);
        for (uint32_t i = op->n; i-- > 0;)
            if (!push(g, g->p.targets[op->first + i], x.frame)) return false;
        return true;
    case OP_CALL:
        if (g->s.frames[x.frame].depth >= g->opts.max_stack) return true;
        return push(g, op->to, rose_gr_frame(g, x.frame, op->back, 0));
    case OP_ENTER:
        return push(g, g->p.loops[op->loop].head,
                    rose_gr_frame(g, x.frame, GR_COUNTER | op->loop, 0));
    case OP_LOOP:
        return at_loop(g, x, op);
    case OP_NEXT:
        return at_next(g, x, op);
    case OP_TICK:
        return at_tick(g, x, op);
    case OP_OPEN:
        return at_open(g, x, op);
    case OP_MORE:
        return at_more(g, x, op);
    case OP_TAKE:
        return at_take(g, x, op);
    case OP_CLOSE:
        return at_close(g, x, op);
    case OP_MATCH:
    case OP_RANGE:
    case OP_SET:
    case OP_EDGES:
    default:
        break;
    }
    if (op->kind == OP_EDGES && op->wild != WILD_NO) note_edges(g, x, op);
    if (g->n_found >= MAX_ITEMS) return fail(g, ROSE_E_UNSUPPORTED), false;
    if (!grow(g, (void **)&g->found, g->n_found, &g->cap_found, sizeof *g->found)) return false;
    g->found[g->n_found++] = x;
    return true;
}

/* Adds what can be reached from (op, frame) to the items found. */
static bool add_closed(rose_grammar *g, uint32_t op, uint32_t frame)
{
    if (!push(g, op, frame)) return false;
    while (g->n_work > 0) {
        gr_item x = g->work[--g->n_work];
        int is_new = mark(g, x);
        if (is_new < 0 || (is_new > 0 && !follow(g, x))) return false;
    }
    return true;
}

static int by_item(const void *x, const void *y)
{
    const gr_item *a = x, *b = y;
    if (a->op != b->op) return a->op < b->op ? -1 : 1;
    return (a->frame > b->frame) - (a->frame < b->frame);
}

void rose_gr_sort_items(gr_item *v, uint32_t n)
{
    if (n > 16) {
        qsort(v, n, sizeof *v, by_item);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        gr_item x = v[i];
        uint32_t k = i;
        for (; k > 0 && by_item(&v[k - 1], &x) > 0; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
}

bool rose_gr_close(rose_grammar *g, gr_item from)
{
    begin_close(g);
    if (!add_closed(g, from.op, from.frame)) return false;
    rose_gr_sort_items(g->found, g->n_found);
    return true;
}

/* ---- states ---- */

static bool rehash_states(rose_grammar *g)
{
    gr_states *s = &g->s;
    uint32_t n = s->n_buckets * 2, *t = malloc(n * sizeof *t);
    if (t == NULL) return fail(g, ROSE_E_NOMEM), false;
    memset(t, 0xff, n * sizeof *t);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t *at = &t[s->v[i].hash & (n - 1)];
        s->v[i].chain = *at;
        *at = i;
    }
    s->bytes += s->n_buckets * sizeof *t;
    free(s->buckets);
    s->buckets = t;
    s->n_buckets = n;
    return true;
}

/* A new state of items[0..n), with what the last closing noted. */
static uint32_t add_state(rose_grammar *g, const gr_item *items, uint32_t n, uint32_t hash)
{
    gr_states *s = &g->s;
    if (s->bytes > g->opts.max_run_bytes * 4) return fail(g, ROSE_E_UNSUPPORTED);
    if (s->n >= s->n_buckets && !rehash_states(g)) return GR_NONE;
    if (!grow(g, (void **)&s->v, s->n, &s->cap, sizeof *s->v)) return GR_NONE;
    gr_state x = {.first = s->n_items,
                  .n = n,
                  .hash = hash,
                  .plain = GR_NONE,
                  .wild = g->wild,
                  .wild_item = g->wild_item,
                  .wild_left = g->wild_left};
    for (uint32_t i = 0; i < n; i++) {
        if (!grow(g, (void **)&s->items, s->n_items, &s->cap_items, sizeof *s->items)) {
            s->n_items = x.first;
            return GR_NONE;
        }
        s->items[s->n_items++] = items[i];
        if (g->p.ops[items[i].op].kind == OP_MATCH) x.accepting = true;
    }
    uint32_t *at = &s->buckets[hash & (s->n_buckets - 1)];
    x.chain = *at;
    s->v[s->n] = x;
    *at = s->n;
    return s->n++;
}

uint32_t rose_gr_intern(rose_grammar *g, const gr_item *items, uint32_t n)
{
    const gr_states *s = &g->s;
    uint32_t hash = n;
    for (uint32_t i = 0; i < n; i++)
        hash = mix(hash, items[i].op, items[i].frame);
    for (uint32_t i = s->buckets[hash & (s->n_buckets - 1)]; i != GR_NONE; i = s->v[i].chain)
        if (s->v[i].hash == hash && s->v[i].n == n &&
            (n == 0 || memcmp(s->items + s->v[i].first, items, n * sizeof *items) == 0))
            return i;
    return add_state(g, items, n, hash);
}

/* Where the op of an item leads with this byte; GR_NONE: nowhere. */
static uint32_t take_byte(const gr_program *p, uint32_t at, uint8_t byte)
{
    const gr_op *op = &p->ops[at];
    if (op->kind == OP_RANGE) return byte >= op->lo && byte <= op->hi ? op->to : GR_NONE;
    if (op->kind == OP_SET) return gr_set_has(&p->sets[op->set], byte) ? op->to : GR_NONE;
    if (op->kind != OP_EDGES) return GR_NONE;
    const gr_edge *e = p->edges + op->first, *end = e + op->n;
    for (; e < end && e->lo <= byte; e++)
        if (byte <= e->hi) return e->to;
    return GR_NONE;
}

/* The state after a byte of this class, computed. */
static uint32_t new_step(rose_grammar *g, uint32_t state, uint8_t class)
{
    gr_state x = g->s.v[state];
    if (x.next == NULL) {
        size_t size = g->p.n_classes * sizeof *x.next;
        if ((x.next = malloc(size)) == NULL) return fail(g, ROSE_E_NOMEM);
        memset(x.next, 0xff, size);
        g->s.v[state].next = x.next;
        g->s.bytes += size;
    }
    begin_close(g);
    for (uint32_t i = 0; i < x.n; i++) {
        gr_item item = g->s.items[x.first + i];
        uint32_t to = take_byte(&g->p, item.op, g->p.byte_of[class]);
        if (to != GR_NONE && !add_closed(g, to, item.frame)) return GR_NONE;
    }
    rose_gr_sort_items(g->found, g->n_found);
    uint32_t to = rose_gr_intern(g, g->found, g->n_found);
    if (to != GR_NONE) x.next[class] = to;
    return to;
}

uint32_t rose_gr_step(rose_grammar *g, uint32_t state, uint8_t byte)
{
    uint8_t class = g->p.class_of[byte];
    const uint32_t *next = g->s.v[state].next;
    if (next != NULL && next[class] != GR_NONE) return next[class];
    return new_step(g, state, class);
}

/* ---- the whole table ---- */

void rose_gr_states_free(gr_states *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        free(s->v[i].next);
        free(s->v[i].mask);
    }
    free(s->v);
    free(s->items);
    free(s->frames);
    free(s->buckets);
    free(s->frame_buckets);
    *s = (gr_states){0};
}

rose_status rose_gr_states_init(rose_grammar *g)
{
    gr_states *s = &g->s;
    *s = (gr_states){.n_buckets = FIRST_BUCKETS, .n_frame_buckets = FIRST_BUCKETS};
    s->buckets = malloc(FIRST_BUCKETS * sizeof *s->buckets);
    s->frame_buckets = calloc(FIRST_BUCKETS, sizeof *s->frame_buckets);
    if (s->buckets == NULL || s->frame_buckets == NULL) return ROSE_E_NOMEM;
    memset(s->buckets, 0xff, FIRST_BUCKETS * sizeof *s->buckets);
    s->bytes = 2 * FIRST_BUCKETS * sizeof *s->buckets;
    if (!grow(g, (void **)&s->frames, 0, &s->cap_frames, sizeof *s->frames)) return g->st;
    s->frames[0] = (gr_frame){.plain = 0};
    s->n_frames = 1;
    begin_close(g);
    if (rose_gr_intern(g, NULL, 0) == GR_NONE) return g->st; /* GR_DEAD */
    if (!rose_gr_close(g, (gr_item){g->p.start, 0})) return g->st;
    s->start = rose_gr_intern(g, g->found, g->n_found);
    return s->start == GR_NONE ? g->st : ROSE_OK;
}

/* The frame of the old table in the new one; map[] remembers what was moved. */
static uint32_t move_frame(rose_grammar *g, const gr_states *old, uint32_t *map, uint32_t f)
{
    uint32_t at = f, n = 0;
    for (; map[at] == GR_NONE; at = old->frames[at].parent)
        n++;
    for (; n > 0; n--) { /* from the outermost frame that is missing inwards */
        at = f;
        for (uint32_t i = 1; i < n; i++)
            at = old->frames[at].parent;
        const gr_frame *o = &old->frames[at];
        if ((map[at] = rose_gr_frame(g, map[o->parent], o->op, o->count)) == GR_NONE)
            return GR_NONE;
    }
    return map[f];
}

static uint32_t move_state(rose_grammar *g, const gr_states *old, uint32_t *map, uint32_t state)
{
    const gr_state *x = &old->v[state];
    begin_close(g);
    for (uint32_t i = 0; i < x->n; i++) {
        gr_item item = old->items[x->first + i];
        if ((item.frame = move_frame(g, old, map, item.frame)) == GR_NONE) return GR_NONE;
        if (!grow(g, (void **)&g->found, i, &g->cap_found, sizeof *g->found)) return GR_NONE;
        g->found[i] = item;
    }
    g->n_found = x->n;
    rose_gr_sort_items(g->found, g->n_found);
    g->wild = x->wild;
    g->wild_left = x->wild_left;
    g->wild_item = x->wild_item;
    if (x->wild != WILD_NO &&
        (g->wild_item.frame = move_frame(g, old, map, x->wild_item.frame)) == GR_NONE)
        return GR_NONE;
    return rose_gr_intern(g, g->found, g->n_found);
}

rose_status rose_gr_clean(rose_grammar *g)
{
    gr_states old = g->s;
    rose_status st = ROSE_OK;
    const bool crowded = rose_gr_live_bytes(g) > g->opts.max_live_bytes / 2;
    if (old.bytes <= g->opts.max_run_bytes / (crowded ? CROWDED_SHARE : 1)) return ROSE_OK;
    uint32_t *map = malloc(old.n_frames * sizeof *map);
    if (map == NULL) return ROSE_E_NOMEM;
    memset(map, 0xff, old.n_frames * sizeof *map);
    map[0] = 0;
    st = rose_gr_states_init(g);
    rose_matcher *m;
    LIST_FOREACH(m, &g->matchers, link)
    {
        if (st != ROSE_OK) break;
        m->moved = move_state(g, &old, map, m->state);
        if (m->moved == GR_NONE) st = g->st;
    }
    if (st == ROSE_OK && g->s.bytes > g->opts.max_run_bytes) st = ROSE_E_UNSUPPORTED;
    if (st == ROSE_OK) {
        LIST_FOREACH(m, &g->matchers, link)
        m->state = m->moved;
        rose_gr_states_free(&old);
    } else {
        rose_gr_states_free(&g->s);
        g->s = old;
    }
    free(map);
    return st;
}
