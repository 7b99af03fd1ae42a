/* tokenizer/vocab.c - the token store: bytes and text of each id, ids by text, merges by pair. Open
 * addressing at a load of at most one half; written while loading, read-only afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

void rose_vocab_free(rose_vocab *v)
{
    rose_buf_free(&v->blob);
    rose_buf_free(&v->texts);
    free(v->text_of);
    free(v->tokens);
    free(v->slots);
    free(v->merges);
    free(v->whole);
    *v = (rose_vocab){0};
}

static rose_status grow_ids(rose_vocab *v, uint32_t id, rose_err *err)
{
    if (id < v->n_ids) return ROSE_OK;
    if (id >= v->cap_ids) {
        uint32_t cap = v->cap_ids < 1024 ? 1024 : v->cap_ids * 2;
        if (cap <= id) cap = id + 1;
        rose_token *p = realloc(v->tokens, cap * sizeof *p);
        if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
        memset(p + v->cap_ids, 0, (cap - v->cap_ids) * sizeof *p);
        v->tokens = p;
        rose_text_ref *q = realloc(v->text_of, cap * sizeof *q);
        if (q == NULL) return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
        memset(q + v->cap_ids, 0, (cap - v->cap_ids) * sizeof *q);
        v->text_of = q;
        v->cap_ids = cap;
    }
    v->n_ids = id + 1;
    return ROSE_OK;
}

rose_status rose_vocab_put(rose_vocab *v, uint32_t id, const char *bytes, size_t len,
                           unsigned flags, bool replace, rose_err *err)
{
    if (id >= ROSE_MAX_ID)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: id %u is over the limit of %u", id,
                         ROSE_MAX_ID - 1);
    if (len > ROSE_MAX_TEXT || v->blob.len > ROSE_MAX_TEXT)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: the vocabulary is too large");
    rose_status st = grow_ids(v, id, err);
    if (st != ROSE_OK) return st;
    rose_token *tok = &v->tokens[id];
    if ((tok->flags & ROSE_TOK_EXISTS) != 0 && !replace)
        return rose_fail(err, ROSE_E_FORMAT, "tokenizer: id %u is given to two tokens", id);
    uint32_t off = (uint32_t)v->blob.len;
    if (rose_buf_reserve(&v->blob, len + 1) != ROSE_OK || /* never NULL, even for "" */
        rose_buf_add(&v->blob, bytes, len) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    *tok = (rose_token){off, (uint32_t)len, flags | ROSE_TOK_EXISTS};
    if (len > v->max_token_bytes) v->max_token_bytes = len;
    return ROSE_OK;
}

uint32_t rose_vocab_hash(const char *p, size_t n)
{
    uint64_t h = n, w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = rose_mix64(h ^ w);
    }
    w = 0;
    memcpy(&w, p, n);
    return (uint32_t)rose_mix64(rose_mix64(h ^ w) + n);
}

static void slot_put(rose_vocab *v, uint32_t hash, uint32_t id)
{
    uint32_t i = hash & v->slot_mask;
    while (v->slots[i].id != ROSE_NO_ID)
        i = (i + 1) & v->slot_mask;
    v->slots[i] = (rose_slot){id, hash};
}

/* An empty hash for n tokens. */
static rose_status slots_alloc(rose_vocab *v, size_t n, rose_err *err)
{
    uint32_t n_slots = 1024;
    while (n_slots < 2 * n)
        n_slots *= 2;
    rose_slot *slots = malloc(n_slots * sizeof *slots);
    if (slots == NULL) return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    memset(slots, 0xFF, n_slots * sizeof *slots); /* ROSE_NO_ID everywhere */
    free(v->slots);
    v->slots = slots;
    v->slot_mask = n_slots - 1;
    return ROSE_OK;
}

/* Room in the hash for one more text: twice as many slots if there is none. */
static rose_status slots_grow(rose_vocab *v, rose_err *err)
{
    if (v->slots != NULL && 2 * (v->n_model + 1) <= v->slot_mask) return ROSE_OK;
    rose_slot *old = v->slots;
    const uint32_t n_old = old != NULL ? v->slot_mask + 1 : 0;
    v->slots = NULL;
    const rose_status st = slots_alloc(v, n_old, err);
    if (st != ROSE_OK) {
        v->slots = old;
        return st;
    }
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].id != ROSE_NO_ID) slot_put(v, old[i].hash, old[i].id);
    free(old);
    return ROSE_OK;
}

rose_status rose_vocab_add_text(rose_vocab *v, uint32_t id, const char *text, size_t len,
                                rose_err *err)
{
    if (id >= ROSE_MAX_ID)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: id %u is over the limit of %u", id,
                         ROSE_MAX_ID - 1);
    if (len > ROSE_MAX_TEXT || v->texts.len > ROSE_MAX_TEXT)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: the vocabulary is too large");
    rose_status st = grow_ids(v, id, err);
    if (st == ROSE_OK) st = slots_grow(v, err);
    if (st != ROSE_OK) return st;
    if ((v->tokens[id].flags & ROSE_TOK_EXISTS) != 0)
        return rose_fail(err, ROSE_E_FORMAT, "tokenizer: id %u is given to two tokens", id);
    const uint32_t other = rose_vocab_find(v, text, len);
    if (other != ROSE_NO_ID)
        return rose_fail(err, ROSE_E_FORMAT, "tokenizer: token \"%.*s\" has two ids, %u and %u",
                         (int)(len < 40 ? len : 40), text, other, id);
    v->text_of[id] = (rose_text_ref){(uint32_t)v->texts.len, (uint32_t)len};
    if (rose_buf_reserve(&v->texts, len + 1) != ROSE_OK || /* never NULL, even for "" */
        rose_buf_add(&v->texts, text, len) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    v->tokens[id].flags = ROSE_TOK_EXISTS | ROSE_TOK_MODEL;
    v->n_model++;
    if (len > v->max_text) v->max_text = len;
    slot_put(v, rose_vocab_hash(text, len), id);
    return ROSE_OK;
}

uint32_t rose_vocab_find(const rose_vocab *v, const char *text, size_t len)
{
    if (len > v->max_text || v->slots == NULL) return ROSE_NO_ID;
    const uint32_t hash = rose_vocab_hash(text, len);
    for (uint32_t i = hash & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        const uint32_t id = v->slots[i].id;
        size_t n;
        if (id == ROSE_NO_ID) return ROSE_NO_ID;
        if (v->slots[i].hash != hash) continue;
        const char *other = rose_vocab_text(v, id, &n);
        if (n == len && memcmp(other, text, len) == 0) return id;
    }
}

/* The bytes from `off` to the end of the blob are those of token id. */
static void close_bytes(rose_vocab *v, uint32_t id, size_t off)
{
    v->tokens[id].off = (uint32_t)off;
    v->tokens[id].len = (uint32_t)(v->blob.len - off);
    if (v->tokens[id].len > v->max_token_bytes) v->max_token_bytes = v->tokens[id].len;
}

static void no_ids(uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = ROSE_NO_ID;
}

rose_status rose_vocab_merges_alloc(rose_vocab *v, size_t n_merges, rose_err *err)
{
    if (n_merges > ROSE_MAX_ID * 8u)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: %zu merges are too many", n_merges);
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    rose_merge *old = v->merges;
    const uint32_t n_old = old != NULL ? v->merge_mask + 1 : 0;
    rose_merge *merges = malloc(n_slots * sizeof *merges);
    if (merges == NULL) return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    memset(merges, 0xFF, n_slots * sizeof *merges);
    v->merges = merges;
    v->merge_mask = n_slots - 1;
    v->n_merges = 0;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].pair != UINT64_MAX)
            rose_vocab_merge_put(v, (uint32_t)(old[i].pair >> 32), (uint32_t)old[i].pair,
                                 old[i].rank, old[i].id);
    free(old);
    return ROSE_OK;
}

rose_status rose_vocab_merges_grow(rose_vocab *v, rose_err *err)
{
    if (v->merges != NULL && 2 * (v->n_merges + 1) <= v->merge_mask + 1) return ROSE_OK;
    return rose_vocab_merges_alloc(v, 2 * (size_t)v->n_merges + 1, err);
}

/* A pair given twice keeps its last rank, as in `tokenizers`. */
void rose_vocab_merge_put(rose_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = (uint32_t)rose_mix64(pair) & v->merge_mask;
    while (v->merges[i].pair != UINT64_MAX && v->merges[i].pair != pair)
        i = (i + 1) & v->merge_mask;
    v->n_merges += v->merges[i].pair == UINT64_MAX;
    v->merges[i] = (rose_merge){pair, rank, id};
}

/* Returns the byte for which character cp of the alphabet stands, or -1. Bytes that do not stand
 * for themselves are numbered from U+0100 in order: 0-32, 127-160, 173. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= '!' && cp <= '~') || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD)) return (int)cp;
    if (cp < 0x100 || cp > 0x143) return -1;
    uint32_t k = cp - 0x100;
    if (k <= 32) return (int)k;
    return k < 67 ? (int)(127 + (k - 33)) : 173;
}

bool rose_alphabet_to_bytes(const char *text, size_t len, rose_buf *out, rose_status *st)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    size_t start = out->len;
    if ((*st = rose_buf_reserve(out, len)) != ROSE_OK) return false;
    while (p < end) {
        uint32_t cp;
        p += rose_utf8_decode_valid(p, &cp);
        int b = alphabet_byte(cp);
        if (b < 0) {
            out->len = start;
            *st = rose_buf_add(out, text, len);
            return false;
        }
        out->data[out->len++] = (char)b;
    }
    return true;
}

rose_status rose_vocab_finish_bytes(rose_vocab *v, rose_err *err)
{
    rose_status st = rose_buf_reserve(&v->blob, v->texts.len + 1);
    uint32_t n_raw = 0;
    for (uint32_t id = 0; id < v->n_ids && st == ROSE_OK; id++) {
        const size_t off = v->blob.len;
        if ((v->tokens[id].flags & ROSE_TOK_MODEL) == 0) continue;
        const char *text = v->texts.data + v->text_of[id].off;
        if (!rose_alphabet_to_bytes(text, v->text_of[id].len, &v->blob, &st)) {
            v->tokens[id].flags |= ROSE_TOK_RAW;
            n_raw++;
        }
        close_bytes(v, id, off);
    }
    if (st != ROSE_OK) return rose_fail(err, st, "tokenizer: out of memory");
    if (v->n_model == n_raw)
        return rose_fail(err, ROSE_E_FORMAT,
                         "tokenizer: the vocabulary has no token of the byte-level alphabet");
    free(v->text_of);
    v->text_of = NULL;
    rose_buf_free(&v->texts);
    v->max_text = v->max_token_bytes;
    no_ids(v->byte_ids, 256);
    if ((st = slots_alloc(v, v->n_model, err)) != ROSE_OK) return st;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        const rose_token *tok = &v->tokens[id];
        if ((tok->flags & (ROSE_TOK_MODEL | ROSE_TOK_RAW)) != ROSE_TOK_MODEL || tok->len == 0)
            continue;
        const char *bytes = v->blob.data + tok->off;
        if (tok->len == 1) v->byte_ids[(uint8_t)bytes[0]] = id;
        slot_put(v, rose_vocab_hash(bytes, tok->len), id);
    }
    return ROSE_OK;
}

/* The byte that <0xXX> names, or -1. */
static int named_byte(const char *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    const int hi = rose_hex_digit(text[3]), lo = rose_hex_digit(text[4]);
    return hi < 0 || lo < 0 ? -1 : hi << 4 | lo;
}

rose_status rose_vocab_text_bytes(const char *text, size_t len, bool space_mark, bool byte_tokens,
                                  rose_buf *out)
{
    const int byte = byte_tokens ? named_byte(text, len) : -1;
    rose_status st = rose_buf_reserve(out, len + 1);
    if (st != ROSE_OK) return st;
    if (byte >= 0) {
        out->data[out->len++] = (char)byte;
        return ROSE_OK;
    }
    for (size_t i = 0; i < len; i++) {
        const bool mark = space_mark && len - i >= ROSE_SPACE_MARK_LEN &&
                          memcmp(text + i, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN) == 0;
        out->data[out->len++] = mark ? ' ' : text[i];
        if (mark) i += ROSE_SPACE_MARK_LEN - 1;
    }
    return ROSE_OK;
}

/* Take tokens that no text becomes out of the hash. */
static rose_status hide_raw(rose_vocab *v, rose_err *err)
{
    size_t n_raw = 0;
    for (uint32_t id = 0; id < v->n_ids; id++)
        n_raw += (v->tokens[id].flags & ROSE_TOK_RAW) != 0;
    if (n_raw == 0) return ROSE_OK;
    rose_status st = slots_alloc(v, v->n_model, err);
    for (uint32_t id = 0; id < v->n_ids && st == ROSE_OK; id++)
        if ((v->tokens[id].flags & (ROSE_TOK_MODEL | ROSE_TOK_RAW)) == ROSE_TOK_MODEL)
            slot_put(v, rose_vocab_hash(v->texts.data + v->text_of[id].off, v->text_of[id].len),
                     id);
    return st;
}

rose_status rose_vocab_finish_chars(rose_vocab *v, bool space_mark, bool byte_tokens, rose_err *err)
{
    rose_status st = rose_buf_reserve(&v->blob, v->texts.len + 1);
    for (uint32_t id = 0; id < v->n_ids && st == ROSE_OK; id++) {
        const size_t off = v->blob.len;
        if ((v->tokens[id].flags & ROSE_TOK_MODEL) == 0) continue;
        st = rose_vocab_text_bytes(v->texts.data + v->text_of[id].off, v->text_of[id].len,
                                   space_mark, byte_tokens, &v->blob);
        close_bytes(v, id, off);
    }
    if (st != ROSE_OK) return rose_fail(err, st, "tokenizer: out of memory");
    no_ids(v->byte_ids, 256);
    no_ids(v->ascii_ids, 128);
    for (unsigned b = 0; b < 256; b++) { /* the upper-case form alone takes part in encoding */
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        v->byte_ids[b] = rose_vocab_find(v, name, 6);
    }
    if ((st = hide_raw(v, err)) != ROSE_OK) return st;
    for (unsigned c = 0; c < 128; c++) {
        const char text[1] = {(char)c};
        v->ascii_ids[c] = rose_vocab_find(v, text, 1);
    }
    return ROSE_OK;
}
