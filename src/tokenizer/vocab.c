/* tokenizer/vocab.c - the token store: bytes of each id, ids by bytes, merges by pair. Hash
 * tables use open addressing and are at most half full. They are written while loading and
 * read-only afterwards. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

void rose_vocab_free(rose_vocab *v)
{
    rose_buf_free(&v->blob);
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

static uint32_t hash_bytes(const char *p, size_t n)
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

rose_status rose_vocab_index(rose_vocab *v, const uint8_t *is_raw, rose_err *err)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * v->n_model)
        n_slots *= 2;
    if ((v->slots = malloc(n_slots * sizeof *v->slots)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    memset(v->slots, 0xFF, n_slots * sizeof *v->slots); /* ROSE_NO_ID everywhere */
    v->slot_mask = n_slots - 1;
    for (unsigned b = 0; b < 256; b++)
        v->byte_ids[b] = ROSE_NO_ID;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        const rose_token *tok = &v->tokens[id];
        if ((tok->flags & ROSE_TOK_EXISTS) == 0 || is_raw[id]) continue;
        const char *bytes = v->blob.data + tok->off;
        if (tok->len == 1) v->byte_ids[(uint8_t)bytes[0]] = id;
        uint32_t i = hash_bytes(bytes, tok->len) & v->slot_mask;
        while (v->slots[i] != ROSE_NO_ID)
            i = (i + 1) & v->slot_mask;
        v->slots[i] = id;
    }
    return ROSE_OK;
}

uint32_t rose_vocab_find(const rose_vocab *v, const char *bytes, size_t len)
{
    if (len > v->max_token_bytes || len == 0) return ROSE_NO_ID;
    for (uint32_t i = hash_bytes(bytes, len) & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        uint32_t id = v->slots[i];
        if (id == ROSE_NO_ID) return ROSE_NO_ID;
        const rose_token *tok = &v->tokens[id];
        if (tok->len == len && memcmp(v->blob.data + tok->off, bytes, len) == 0) return id;
    }
}

rose_status rose_vocab_merges_alloc(rose_vocab *v, size_t n_merges, rose_err *err)
{
    if (n_merges > ROSE_MAX_ID * 8u)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: %zu merges are too many", n_merges);
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    if ((v->merges = malloc(n_slots * sizeof *v->merges)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    memset(v->merges, 0xFF, n_slots * sizeof *v->merges);
    v->merge_mask = n_slots - 1;
    return ROSE_OK;
}

/* A pair given twice keeps its last rank, as in `tokenizers`. */
void rose_vocab_merge_put(rose_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = (uint32_t)rose_mix64(pair) & v->merge_mask;
    while (v->merges[i].pair != UINT64_MAX && v->merges[i].pair != pair)
        i = (i + 1) & v->merge_mask;
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
