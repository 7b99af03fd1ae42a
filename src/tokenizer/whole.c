/* tokenizer/whole.c - the table of whole words. A token is whole if the merges make it of its own
 * bytes, so that a piece found here needs no merge. Most pieces of text are short whole tokens. A
 * piece that is not in a CPU cache costs one line of memory, instead of two or three probes for
 * each byte. The table is built once and read-only afterwards.
 *
 * How to find whole tokens without merging each. Let exactly one merge make token t, of l and r,
 * which have lower ranks and are whole themselves. (A byte is whole if it has a token.) Then t
 * is whole, unless the merges combine a pair across the border of l and r while they make l and
 * r. The ranks of these merges never decrease. So a pair across the border is merged if it ranks
 * before the merge that would change one of its two tokens; with equal ranks the left one goes
 * first. The pairs are found backwards from (l, r), by undoing the last merge each time. If two
 * merges make the same token, each token is merged instead. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tokenizer/encoder_internal.h"

enum { HUGE_PAGE = 2 << 20 };

/* Allocates the hash table's cache lines, for at least twice n_words words. For GPT-2 one huge page
 * holds all lines; after a pause, 512 small pages would each cost a look-up of their address. */
static rose_status allocate(rose_vocab *v, uint32_t n_words)
{
    uint32_t n_lines = 1;
    while (n_lines * (ROSE_WHOLE_SLOTS / 2) < n_words)
        n_lines *= 2;
    const size_t bytes = n_lines * sizeof *v->whole;
    v->whole = aligned_alloc(bytes >= HUGE_PAGE ? HUGE_PAGE : 64, bytes);
    if (v->whole == NULL) return ROSE_E_NOMEM;
    if (bytes >= HUGE_PAGE) (void)madvise(v->whole, bytes, MADV_HUGEPAGE); /* a wish */
    memset(v->whole, 0, bytes);
    v->whole_mask = n_lines - 1;
    return ROSE_OK;
}

static void put(rose_vocab *v, const char *bytes, size_t len, uint32_t id)
{
    const rose_whole_key key = rose_whole_key_of(bytes, len);
    for (uint32_t at = rose_whole_line_of(v, key, len);; at = (at + 1) & v->whole_mask)
        for (int i = 0; i < ROSE_WHOLE_SLOTS; i++) {
            rose_whole *w = &v->whole[at].slot[i];
            if (w->id_len != 0) continue;
            *w = (rose_whole){key.lo, key.hi, id << 4 | (uint32_t)len};
            return;
        }
}

/* ---- which tokens are whole ---- */

typedef struct origin {
    uint32_t left, right; /* tokens */
    uint32_t rank;        /* of the merge, + 1; 0: no merge makes it */
    enum { UNKNOWN, WHOLE, NOT_WHOLE } state;
} origin;

typedef struct origins {
    const rose_vocab *v;
    origin *of; /* owned, [n_ids] */
    bool sole;  /* no token has two */
} origins;

static rose_status read_origins(origins *o, const rose_vocab *v)
{
    *o = (origins){.v = v, .of = calloc(v->n_ids, sizeof *o->of), .sole = true};
    if (o->of == NULL) return ROSE_E_NOMEM;
    for (uint32_t i = 0; i <= v->merge_mask; i++) {
        const rose_merge *m = &v->merges[i];
        if (m->pair == UINT64_MAX) continue;
        origin *at = &o->of[m->id];
        o->sole = o->sole && at->rank == 0;
        *at = (origin){(uint32_t)(m->pair >> 32), (uint32_t)m->pair, m->rank + 1, UNKNOWN};
    }
    return ROSE_OK;
}

/* Tells whether no pair across the border of l and r is merged before l and r are complete. */
static bool border_holds(const origins *o, uint32_t l, uint32_t r)
{
    for (;;) {
        const origin *a = &o->of[l], *b = &o->of[r];
        if (a->rank == 0 && b->rank == 0) return true;
        const bool left = a->rank > b->rank; /* of equal ones the left was merged first */
        const uint32_t end = left ? a->rank : b->rank;
        if (left)
            l = a->right;
        else
            r = b->left;
        const rose_merge *m = rose_vocab_merge(o->v, l, r);
        if (m != NULL && (left ? m->rank + 1 < end : m->rank + 1 <= end)) return false;
    }
}

/* As deep as the token has bytes. */
static bool is_whole(origins *o, uint32_t id)
{
    const rose_token *tok = &o->v->tokens[id];
    origin *at = &o->of[id];
    if (at->state != UNKNOWN) return at->state == WHOLE;
    bool yes = false;
    if (tok->len == 1)
        yes = o->v->byte_ids[(uint8_t)o->v->blob.data[tok->off]] == id;
    else if (tok->len <= ROSE_WHOLE_MAX && at->rank > o->of[at->left].rank &&
             at->rank > o->of[at->right].rank)
        yes =
            is_whole(o, at->left) && is_whole(o, at->right) && border_holds(o, at->left, at->right);
    at->state = yes ? WHOLE : NOT_WHOLE;
    return yes;
}

/* Finds out by merging whether token id is whole: *whole. ids: scratch. */
static rose_status merge_token(rose_encoder *e, rose_ids *ids, uint32_t id, bool *whole)
{
    size_t len;
    const char *text = rose_vocab_text(&e->t->vocab, id, &len);
    ids->len = 0;
    rose_status st = rose_bpe_merge(e, text, len);
    *whole = st == ROSE_OK && ids->len == 1 && ids->data[0] == id;
    return st;
}

/* Whether token id can be a word of the table. SentencePiece style: nearly all pieces begin with
 * U+2581. For others the merges serve, so that a large vocabulary opens fast. */
static bool may_be_word(const rose_tokenizer *t, uint32_t id)
{
    size_t len;
    if ((t->vocab.tokens[id].flags & ROSE_TOK_MODEL) == 0) return false;
    const char *text = rose_vocab_text(&t->vocab, id, &len);
    if (len == 0 || len > ROSE_WHOLE_MAX) return false;
    return !t->is_chars ||
           (len >= ROSE_SPACE_MARK_LEN && memcmp(text, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN) == 0);
}

rose_status rose_whole_build(rose_tokenizer *t, rose_err *err)
{
    rose_vocab *v = &t->vocab;
    origins o = {0};
    rose_ids ids = {0};
    rose_encoder e = {.t = t, .out = &ids, .err = err};
    uint32_t n_words = 0;
    for (uint32_t id = 0; id < v->n_ids; id++)
        n_words += may_be_word(t, id);
    rose_status st = allocate(v, n_words);

    if (st == ROSE_OK && !t->ignore_merges && !t->is_chars) st = read_origins(&o, v);
    if (st != ROSE_OK) rose_fail(err, st, "tokenizer: out of memory");
    for (uint32_t id = 0; id < v->n_ids && st == ROSE_OK; id++) {
        size_t len;
        bool whole = false;
        if (!may_be_word(t, id)) continue;
        const char *text = rose_vocab_text(v, id, &len);
        if (o.sole)
            whole = is_whole(&o, id);
        else
            st = merge_token(&e, &ids, id, &whole);
        if (whole) put(v, text, len, id);
    }
    free(o.of);
    rose_ids_free(&ids);
    free(e.symbols);
    free(e.heap);
    return st;
}
