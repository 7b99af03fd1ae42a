/* tokenizer/bpe.c - the merge loop and the word cache of an encoder.
 *
 * A word starts as one symbol a byte, or, SentencePiece style, one a character. A heap holds the
 * merges that are due, lowest rank first, then leftmost; symbols are a linked list, so a merge is
 * O(log n) and a word of n bytes O(n log n). This is the order of `tokenizers` (a stale heap entry
 * is known by the token it would make), so ids agree also where two merges make the same token.
 *
 * Words of at most ROSE_WHOLE_MAX bytes are first looked up in the table of whole words
 * (whole.c). Words of up to ROSE_WORD_KEY - 1 bytes are then looked up in a direct-mapped cache
 * of fixed size. Natural text repeats its words, so most pieces cost one cache line and a
 * comparison. rose_bpe_aim prefetches that line before the piece is needed. CPU caches are cold
 * after a pause. The prefetches then load many lines at the same time. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/encoder_internal.h"
#include "tokenizer/unicode.h"

static void heap_push(rose_encoder *e, rose_due due)
{
    size_t i = e->n_heap++;
    while (i > 0) {
        size_t up = (i - 1) / 2;
        if (e->heap[up].key <= due.key) break;
        e->heap[i] = e->heap[up];
        i = up;
    }
    e->heap[i] = due;
}

static rose_due heap_pop(rose_encoder *e)
{
    rose_due top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0, n = e->n_heap;
    for (;;) {
        size_t down = 2 * i + 1;
        if (down >= n) break;
        if (down + 1 < n && e->heap[down + 1].key < e->heap[down].key) down++;
        if (e->heap[down].key >= last.key) break;
        e->heap[i] = e->heap[down];
        i = down;
    }
    e->heap[i] = last;
    return top;
}

static bool is_special(const rose_encoder *e, uint32_t id)
{
    return (e->t->vocab.tokens[id].flags & ROSE_TOK_SPECIAL) != 0;
}

static void push_pair(rose_encoder *e, uint32_t left)
{
    const rose_symbol *s = e->symbols;
    const rose_merge *m = rose_vocab_merge(&e->t->vocab, s[left].id, s[s[left].next].id);
    if (m != NULL && e->blocks_special && is_special(e, m->id)) return;
    if (m != NULL) heap_push(e, (rose_due){(uint64_t)m->rank << 32 | left, m->id});
}

/* The heap never holds more than 2n entries: each of at most n - 1 merges takes one and adds at
 * most two. */
static rose_status reserve_word(rose_encoder *e, size_t n)
{
    if (n > e->cap_symbols) {
        rose_symbol *p = realloc(e->symbols, n * sizeof *p);
        if (p == NULL) return ROSE_E_NOMEM;
        e->symbols = p;
        e->cap_symbols = n;
    }
    if (2 * n > e->cap_heap) {
        rose_due *p = realloc(e->heap, 2 * n * sizeof *p);
        if (p == NULL) return ROSE_E_NOMEM;
        e->heap = p;
        e->cap_heap = 2 * n;
    }
    return ROSE_OK;
}

static void put_symbol(rose_encoder *e, uint32_t *k, uint32_t id)
{
    e->symbols[*k] = (rose_symbol){id, *k - 1, *k + 1, ROSE_SYMBOL_START};
    ++*k;
}

/* One symbol a byte. A byte without a token becomes the unknown token, or nothing. */
static uint32_t start_bytes(rose_encoder *e, const uint8_t *p, size_t n)
{
    const rose_tokenizer *t = e->t;
    uint32_t k = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = t->vocab.byte_ids[p[i]];
        bool unk = id == ROSE_NO_ID || (e->blocks_special && is_special(e, id));
        if (unk) {
            if (t->unk_id == ROSE_NO_ID || (after_unk && t->fuse_unk)) continue;
            id = t->unk_id;
        }
        after_unk = unk;
        put_symbol(e, &k, id);
    }
    return k;
}

/* The tokens of the n bytes of one character; false if one of these tokens is missing. */
static bool fall_back(rose_encoder *e, const uint8_t *p, unsigned n, uint32_t *k)
{
    const uint32_t *ids = e->t->vocab.byte_ids;
    if (!e->t->byte_fallback) return false;
    for (unsigned i = 0; i < n; i++)
        if (ids[p[i]] == ROSE_NO_ID || (e->blocks_special && is_special(e, ids[p[i]])))
            return false;
    for (unsigned i = 0; i < n; i++)
        put_symbol(e, k, ids[p[i]]);
    return true;
}

/* One symbol a character. As in `tokenizers`, an unknown token waits for the next character that is
 * known, even if tokens of bytes come between. */
static uint32_t start_chars(rose_encoder *e, const uint8_t *p, size_t n)
{
    const rose_tokenizer *t = e->t;
    const uint8_t *end = p + n;
    uint32_t k = 0;
    bool unk = false;
    while (p < end) {
        uint32_t cp;
        unsigned len = rose_utf8_decode(p, end, &cp);
        uint32_t id = ROSE_NO_ID;
        if (len == 1) id = t->vocab.ascii_ids[*p];
        if (len > 1) id = rose_vocab_find(&t->vocab, (const char *)p, len);
        if (len == 0) len = 1; /* a byte that is no character */
        if (id != ROSE_NO_ID && e->blocks_special && is_special(e, id)) id = ROSE_NO_ID;
        if (id != ROSE_NO_ID) {
            if (unk) put_symbol(e, &k, t->unk_id);
            unk = false;
            put_symbol(e, &k, id);
        } else if (!fall_back(e, p, len, &k) && t->unk_id != ROSE_NO_ID) {
            if (unk && !t->fuse_unk) put_symbol(e, &k, t->unk_id);
            unk = true;
        }
        p += len;
    }
    if (unk) put_symbol(e, &k, t->unk_id);
    return k;
}

/* Fill the symbols of a word. Returns how many there are. */
static uint32_t start_symbols(rose_encoder *e, const uint8_t *p, size_t n)
{
    const uint32_t k = e->t->is_chars ? start_chars(e, p, n) : start_bytes(e, p, n);
    if (k > 0) {
        e->symbols[0].prev = ROSE_NO_ID;
        e->symbols[k - 1].next = ROSE_NO_ID;
    }
    return k;
}

/* False: stopped. */
static bool merge_symbols(rose_encoder *e, uint32_t n)
{
    rose_symbol *s = e->symbols;
    uint32_t n_popped = 0;
    e->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        if ((i & 0xFFFF) == 0xFFFF && rose_encoder_stopped(e)) return false;
        push_pair(e, i);
    }
    while (e->n_heap > 0) {
        if ((++n_popped & 0xFFFF) == 0 && rose_encoder_stopped(e)) return false;
        rose_due due = heap_pop(e);
        uint32_t at = (uint32_t)due.key;
        if (s[at].state == ROSE_SYMBOL_GONE || s[at].next == ROSE_NO_ID) continue;
        uint32_t right = s[at].next;
        const rose_merge *m = rose_vocab_merge(&e->t->vocab, s[at].id, s[right].id);
        if (m == NULL || m->id != due.id) continue; /* stale */
        s[at].id = due.id;
        s[at].next = s[right].next;
        s[right].state = ROSE_SYMBOL_GONE;
        s[at].state = ROSE_SYMBOL_MERGED;
        if (s[at].next != ROSE_NO_ID) s[s[at].next].prev = at;
        if (s[at].prev != ROSE_NO_ID) push_pair(e, s[at].prev);
        if (s[at].next != ROSE_NO_ID) push_pair(e, at);
    }
    return true;
}

static rose_status stopped(rose_encoder *e)
{
    return rose_fail(e->err, ROSE_E_CLOSED, "tokenizer: stopped");
}

/* Some symbol is a special token. The unknown token counts only if merges made it. */
static bool holds_special(const rose_encoder *e, uint32_t n)
{
    for (uint32_t i = 0; n > 0 && i != ROSE_NO_ID; i = e->symbols[i].next) {
        const rose_symbol *s = &e->symbols[i];
        const bool unknown = s->id == e->t->unk_id && s->state == ROSE_SYMBOL_START;
        if (!unknown && is_special(e, s->id)) return true;
    }
    return false;
}

/* A word may become a special token and must not. */
static bool guards(const rose_encoder *e)
{
    return e->is_marked && e->t->special_reachable;
}

/* Symbols of a word with all merges done, their number in *k. */
static rose_status merge_symbols_of(rose_encoder *e, const char *word, size_t n, uint32_t *k)
{
    if (reserve_word(e, n) != ROSE_OK)
        return rose_fail(e->err, ROSE_E_NOMEM, "tokenizer: out of memory for a word of %zu bytes",
                         n);
    *k = start_symbols(e, (const uint8_t *)word, n);
    if (!merge_symbols(e, *k)) return stopped(e);
    if (!guards(e) || e->blocks_special || !holds_special(e, *k)) return ROSE_OK;
    e->blocks_special = true;
    rose_status st = merge_symbols_of(e, word, n, k);
    e->blocks_special = false;
    return st;
}

/* Ids of a word without table and cache, appended to out; room for n ids is there. */
static rose_status merge_word(rose_encoder *e, const char *word, size_t n)
{
    rose_ids *out = e->out;
    uint32_t k = 0;
    if (e->t->ignore_merges) {
        uint32_t id = rose_vocab_find(&e->t->vocab, word, n);
        if (id != ROSE_NO_ID && !(guards(e) && is_special(e, id))) {
            out->data[out->len++] = id;
            return ROSE_OK;
        }
    }
    rose_status st = merge_symbols_of(e, word, n, &k);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; k > 0 && i != ROSE_NO_ID; i = e->symbols[i].next)
        out->data[out->len++] = e->symbols[i].id;
    return ROSE_OK;
}

static uint32_t word_hash(const char *p, size_t n)
{
    uint64_t a = 0, b = 0, c = 0;
    if (n >= 8) {
        memcpy(&a, p, 8);
        memcpy(&b, p + n - 8, 8); /* overlaps the first for n < 16 */
        if (n > 16) {
            memcpy(&c, p + 8, 8);
            a ^= rose_mix64(c);
        }
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        a = (uint64_t)hi << 32 | lo;
    } else {
        a = (uint64_t)(uint8_t)p[0] | (uint64_t)(uint8_t)p[n / 2] << 8 |
            (uint64_t)(uint8_t)p[n - 1] << 16;
    }
    return (uint32_t)(rose_mix64(a + n) ^ rose_mix64(b ^ 0xD1B54A32D192ED03u)) % ROSE_WORD_SLOTS;
}

static bool same_bytes(const char *a, const char *b, size_t n)
{
    uint64_t x, y;
    if (n >= 8) {
        memcpy(&x, a + n - 8, 8);
        memcpy(&y, b + n - 8, 8);
        if (x != y) return false;
        for (size_t i = 0; i + 8 < n; i += 8) {
            memcpy(&x, a + i, 8);
            memcpy(&y, b + i, 8);
            if (x != y) return false;
        }
        return true;
    }
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) return false;
    return true;
}

rose_piece rose_bpe_aim(const rose_encoder *e, const char *text, size_t n)
{
    rose_piece p = {.text = text, .len = n};
    if (n <= ROSE_WHOLE_MAX) {
        p.key = rose_whole_key_of(text, n);
        p.at = rose_whole_line_of(&e->t->vocab, p.key, n);
        __builtin_prefetch(&e->t->vocab.whole[p.at]);
    } else if (n < ROSE_WORD_KEY) {
        p.at = word_hash(text, n);
        __builtin_prefetch(&e->words[p.at]);
    }
    return p;
}

/* Returns the id of a whole word of at most ROSE_WHOLE_MAX bytes, or ROSE_NO_ID. */
static uint32_t find_whole(const rose_vocab *v, const rose_piece *p)
{
    for (uint32_t at = p->at;; at = (at + 1) & v->whole_mask)
        for (int i = 0; i < ROSE_WHOLE_SLOTS; i++) {
            const rose_whole *w = &v->whole[at].slot[i];
            if (w->lo == p->key.lo && w->hi == p->key.hi && (w->id_len & 15) == p->len)
                return w->id_len >> 4;
            if (w->id_len == 0) return ROSE_NO_ID;
        }
}

static rose_status reserve_ids(rose_encoder *e, size_t n)
{
    if (rose_ids_reserve(e->out, n) == ROSE_OK) return ROSE_OK;
    return rose_fail(e->err, ROSE_E_NOMEM, "tokenizer: out of memory for %zu ids", n);
}

rose_status rose_bpe_merge(rose_encoder *e, const char *piece, size_t n)
{
    rose_status st = reserve_ids(e, n);
    return st == ROSE_OK ? merge_word(e, piece, n) : st;
}

rose_status rose_bpe_piece(rose_encoder *e, const char *piece, size_t n)
{
    const rose_piece p = rose_bpe_aim(e, piece, n);
    return rose_bpe_take(e, &p);
}

rose_status rose_bpe_take(rose_encoder *e, const rose_piece *p)
{
    rose_ids *out = e->out;
    const char *piece = p->text;
    const size_t n = p->len;
    if (rose_encoder_stopped(e)) return stopped(e);
    rose_status st = reserve_ids(e, n > ROSE_WORD_IDS ? n : ROSE_WORD_IDS);
    if (st != ROSE_OK) return st;
    if (n >= ROSE_WORD_KEY || guards(e)) return merge_word(e, piece, n);
    const uint32_t id = n <= ROSE_WHOLE_MAX ? find_whole(&e->t->vocab, p) : ROSE_NO_ID;
    if (id != ROSE_NO_ID) {
        out->data[out->len++] = id;
        return ROSE_OK;
    }
    rose_word *w = &e->words[n <= ROSE_WHOLE_MAX ? word_hash(piece, n) : p->at];
    if (w->len == n && same_bytes(w->key, piece, n)) {
        memcpy(out->data + out->len, w->ids, sizeof w->ids); /* room is reserved for all */
        out->len += w->n_ids;
        return ROSE_OK;
    }
    size_t start = out->len;
    st = merge_word(e, piece, n);
    if (st != ROSE_OK || out->len - start > ROSE_WORD_IDS) return st;
    w->len = (uint8_t)n;
    w->n_ids = (uint8_t)(out->len - start);
    memcpy(w->key, piece, n);
    memcpy(w->ids, out->data + start, w->n_ids * sizeof w->ids[0]);
    return ROSE_OK;
}
