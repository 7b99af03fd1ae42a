/* grammar/matcher.c - the public side of matching: one text that grows token by token. Every
 * function that touches the states of the grammar takes its lock. */
#include <stdlib.h>
#include <string.h>

#include "grammar/match_internal.h"

static rose_status say(const rose_grammar *g, rose_status st, rose_err *err)
{
    if (st == ROSE_E_NOMEM) return rose_fail(err, st, "grammar: out of memory");
    if (st != ROSE_E_UNSUPPORTED) return st;
    return rose_fail(
        err, st,
        "grammar: the text has too many possible readings (limits: 4096 at one place, "
        "10,000,000 steps for a mask, %zu MiB in all); make the grammar less ambiguous",
        g->opts.max_run_bytes >> 20);
}

void rose_gr_free_gone(rose_grammar *g)
{
    /* acquire: pairs with the release in rose_matcher_destroy */
    rose_matcher *m = atomic_exchange_explicit(&g->gone, NULL, memory_order_acquire);
    while (m != NULL) {
        rose_matcher *next = m->next_gone;
        LIST_REMOVE(m, link);
        free(m);
        m = next;
    }
}

static void lock(rose_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    g->steps = 0;
    rose_gr_free_gone(g);
}

static rose_status create(rose_matcher **out, rose_grammar *g, const rose_matcher *from,
                          rose_err *err)
{
    rose_matcher *m = calloc(1, sizeof *m);
    *out = m;
    if (m == NULL) return rose_fail(err, ROSE_E_NOMEM, "grammar: out of memory");
    rose_grammar_ref(g);
    lock(g);
    m->g = g;
    m->state = from != NULL ? from->state : g->s.start;
    m->ended = from != NULL && from->ended;
    LIST_INSERT_HEAD(&g->matchers, m, link);
    rose_gr_unlock(g);
    return ROSE_OK;
}

rose_status rose_matcher_create(rose_matcher **out, rose_grammar *g, rose_err *err)
{
    return create(out, g, NULL, err);
}

rose_status rose_matcher_copy(rose_matcher **out, const rose_matcher *m, rose_err *err)
{
    return create(out, m->g, m, err);
}

/* The caller may be a thread that must not wait for another thread's mask. So if the lock is taken,
 * the next holder of the lock frees the matcher. */
void rose_matcher_destroy(void *matcher)
{
    rose_matcher *m = matcher;
    if (m == NULL) return;
    rose_grammar *g = m->g;
    rose_matcher *first = atomic_load_explicit(&g->gone, memory_order_relaxed);
    do
        m->next_gone = first;
    while (!atomic_compare_exchange_weak_explicit(&g->gone, &first, m, memory_order_release,
                                                  memory_order_relaxed));
    if (pthread_mutex_trylock(&g->lock) == 0) {
        g->steps = 0;
        rose_gr_free_gone(g);
        rose_gr_unlock(g);
    }
    rose_grammar_unref(g);
}

bool rose_matcher_is_slow(void *matcher)
{
    const rose_matcher *m = matcher;
    return atomic_load_explicit(&m->g->slow, memory_order_relaxed);
}

/* A token was accepted. */
static void move(rose_matcher *m, uint32_t state, uint32_t id)
{
    const struct gr_span_of *t = &m->g->vocab->tokens[id];
    m->state = state;
    m->last = m->g->vocab->blob[t->at + t->n - 1];
}

/* The state after the bytes of a token; GR_DEAD: not allowed; GR_NONE: g->st says why. */
static uint32_t follow_token(rose_grammar *g, uint32_t state, uint32_t id)
{
    const rose_vocab_trie *v = g->vocab;
    if (id >= v->n_ids || v->tokens[id].n == 0) return GR_DEAD;
    const uint8_t *p = v->blob + v->tokens[id].at;
    for (uint32_t i = 0; i < v->tokens[id].n && state != GR_DEAD && state != GR_NONE; i++)
        state = rose_gr_step(g, state, p[i]);
    return state;
}

static rose_status accept_eos(rose_matcher *m, uint32_t id, rose_err *err)
{
    if (!m->ended && !m->g->s.v[m->state].accepting)
        return rose_fail(err, ROSE_E_INVAL, "grammar: the text may not end here (id %u)", id);
    m->ended = true;
    return ROSE_OK;
}

rose_status rose_matcher_accept(void *matcher, uint32_t id, rose_err *err)
{
    rose_matcher *m = matcher;
    rose_grammar *g = m->g;
    rose_status st;
    lock(g);
    if (rose_gr_is_eos(g->vocab, id)) {
        st = accept_eos(m, id, err);
    } else if (m->ended) {
        st = rose_fail(err, ROSE_E_INVAL, "grammar: id %u comes after the end of the text", id);
    } else if ((st = rose_gr_clean(g)) != ROSE_OK) {
        say(g, st, err);
    } else {
        uint32_t to = follow_token(g, m->state, id);
        if (to == GR_NONE)
            st = say(g, g->st, err);
        else if (to == GR_DEAD)
            st = rose_fail(err, ROSE_E_INVAL, "grammar: id %u is not allowed here", id);
        else
            move(m, to, id);
    }
    rose_gr_unlock(g);
    return st;
}

static void mask_of_eos(const rose_vocab_trie *v, uint32_t *words)
{
    memset(words, 0, v->n_words * sizeof *words);
    for (size_t i = 0; i < v->n_eos; i++)
        rose_gr_set_bit(words, v->eos[i]);
}

rose_status rose_matcher_mask(void *matcher, uint32_t *words, rose_err *err)
{
    rose_matcher *m = matcher;
    rose_grammar *g = m->g;
    rose_status st = ROSE_OK;
    uint32_t at;
    lock(g);
    if (m->ended) {
        mask_of_eos(g->vocab, words);
    } else if ((st = rose_gr_clean(g)) != ROSE_OK ||
               (st = rose_gr_mask(g, m->state, &at)) != ROSE_OK) {
        say(g, st, err);
    } else if (!g->s.v[at].any) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "grammar: no token of the vocabulary can continue the text");
    } else {
        memcpy(words, g->s.v[at].mask, g->vocab->n_words * sizeof *words);
    }
    rose_gr_unlock(g);
    return st;
}

/* The state after the bytes of a token, if every step is known. */
static uint32_t known_after(const rose_grammar *g, uint32_t state, uint32_t id)
{
    const rose_vocab_trie *v = g->vocab;
    if (id >= v->n_ids || v->tokens[id].n == 0 || rose_gr_is_eos(v, id)) return GR_NONE;
    const uint8_t *p = v->blob + v->tokens[id].at;
    for (uint32_t i = 0; i < v->tokens[id].n && state != GR_NONE; i++) {
        const uint32_t *next = g->s.v[state].next;
        state = next != NULL ? next[g->p.class_of[p[i]]] : GR_NONE;
    }
    return state;
}

/* The state that has the mask after `state`, if it is known and has an id; else GR_NONE. */
static uint32_t known_mask(const rose_grammar *g, uint32_t state)
{
    const uint32_t at = state != GR_NONE ? g->s.v[state].plain : GR_NONE;
    return at != GR_NONE && g->s.v[at].mask != NULL && g->s.v[at].any ? at : GR_NONE;
}

bool rose_matcher_try_next(void *matcher, uint32_t id, uint32_t *words)
{
    rose_matcher *m = matcher;
    rose_grammar *g = m->g;
    if (pthread_mutex_trylock(&g->lock) != 0) return false;
    const uint32_t to = m->ended ? GR_NONE : known_after(g, m->state, id);
    const uint32_t at = known_mask(g, to);
    if (at != GR_NONE) {
        move(m, to, id);
        memcpy(words, g->s.v[at].mask, g->vocab->n_words * sizeof *words);
    }
    pthread_mutex_unlock(&g->lock); /* nothing was computed: no figure changes */
    return at != GR_NONE;
}

uint32_t rose_matcher_walk(void *matcher, const uint32_t *ids, uint32_t n, uint32_t *words)
{
    const rose_matcher *m = matcher;
    rose_grammar *g = m->g;
    const uint32_t n_words = g->vocab->n_words;
    uint32_t k = 0, at, state;
    if (pthread_mutex_trylock(&g->lock) != 0) return 0;
    state = m->ended ? GR_NONE : m->state;
    while (k < n && state != GR_NONE) {
        state = known_after(g, state, ids[k]);
        if ((at = known_mask(g, state)) == GR_NONE) break;
        memcpy(words + (size_t)n_words * k++, g->s.v[at].mask, n_words * sizeof *words);
    }
    pthread_mutex_unlock(&g->lock);
    return k;
}

/* ---- what probably comes next ---- */

enum { PROPOSE_BYTES = 64, PROPOSE_STEPS = 20000, PROPOSE_ITEMS = 32 };

/* Whether one of the items of a state takes the byte. */
static bool takes(const rose_grammar *g, const gr_state *x, uint32_t byte)
{
    for (uint32_t i = 0; i < x->n; i++) {
        const gr_op *op = &g->p.ops[g->s.items[x->first + i].op];
        if (op->kind == OP_RANGE && byte >= op->lo && byte <= op->hi) return true;
        if (op->kind == OP_SET && gr_set_has(&g->p.sets[op->set], byte)) return true;
        for (uint32_t k = 0; op->kind == OP_EDGES && k < op->n; k++) {
            const gr_edge *e = &g->p.edges[op->first + k];
            if (byte >= e->lo && byte <= e->hi) return true;
        }
    }
    return false;
}

static bool is_space(int byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* The byte that is likely to come next in `state` after the byte `last`; -1: several are. */
static int next_byte(const rose_grammar *g, uint32_t state, uint8_t last)
{
    const gr_state *x = &g->s.v[state];
    const bool after = last == ',' || last == ':'; /* where a space is usual */
    int any = -1, other = -1, n = 0;               /* other: no white space */
    bool space = false;
    if (x->accepting || x->n > PROPOSE_ITEMS) return -1;
    for (int b = 0; b < 256; b++) {
        if (!takes(g, x, (uint32_t)b)) continue;
        any = b;
        n++;
        space = space || b == ' ';
        if (is_space(b)) continue;
        if (other >= 0) return space && after ? ' ' : -1;
        other = b;
    }
    if (n <= 1) return any;
    return space && (other < 0 || after) ? ' ' : other;
}

/* The longest token that is a beginning of bytes[0..n), and its length in *len; GR_NONE: none. */
static uint32_t longest_token(const gr_trie *t, const uint8_t *bytes, uint32_t n, uint32_t *len)
{
    uint32_t id = GR_NONE, i = 0, end = t->n;
    for (uint32_t depth = 0; depth < n; depth++) {
        while (i < end && t->nodes[i].byte != bytes[depth])
            i = t->nodes[i].next;
        if (i >= end) break;
        if (t->nodes[i].n > 0) {
            id = t->sorted[t->nodes[i].first];
            *len = depth + 1;
        }
        end = t->nodes[i++].next;
    }
    return id;
}

uint32_t rose_matcher_propose(void *matcher, uint32_t cap, uint32_t *ids, bool compute)
{
    const rose_matcher *m = matcher;
    rose_grammar *g = m->g;
    uint8_t bytes[PROPOSE_BYTES];
    uint32_t n = 0, n_ids = 0, at = 0, len = 0, state, id, mask;
    int next;
    if (compute)
        lock(g);
    else if (pthread_mutex_trylock(&g->lock) != 0)
        return 0;
    state = m->state;
    while (!m->ended && n < PROPOSE_BYTES && !(compute && g->steps > PROPOSE_STEPS) &&
           (next = next_byte(g, state, n > 0 ? bytes[n - 1] : m->last)) >= 0) {
        const uint32_t *known = g->s.v[state].next;
        if (compute)
            state = rose_gr_step(g, state, (uint8_t)next);
        else
            state = known != NULL ? known[g->p.class_of[next]] : GR_NONE;
        if (state == GR_NONE || state == GR_DEAD) break;
        bytes[n++] = (uint8_t)next;
    }
    for (state = m->state; n_ids < cap && at < n; at += len) {
        if ((id = longest_token(&g->vocab->all, bytes + at, n - at, &len)) == GR_NONE) break;
        ids[n_ids++] = id;
        if (!compute) continue;
        state = follow_token(g, state, id);
        if (state == GR_NONE || g->steps > PROPOSE_STEPS ||
            rose_gr_mask(g, state, &mask) != ROSE_OK)
            break;
    }
    if (compute)
        rose_gr_unlock(g);
    else
        pthread_mutex_unlock(&g->lock);
    return n_ids;
}

bool rose_matcher_accepting(const rose_matcher *m)
{
    lock(m->g);
    bool accepting = m->ended || m->g->s.v[m->state].accepting;
    rose_gr_unlock(m->g);
    return accepting;
}
