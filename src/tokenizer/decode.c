/* tokenizer/decode.c - ids to text. The bytes of the tokens are concatenated and read as UTF-8.
 * Each maximal part that cannot start a character becomes U+FFFD (Unicode 3.9, as in Rust's
 * from_utf8_lossy). The whole decode and the incremental one use the same state machine. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Tells whether byte b can follow pending[0..n), the start of a character. */
static bool may_follow(const uint8_t *pending, unsigned n, uint8_t b)
{
    uint8_t lead = pending[0];
    if (n > 1) return (b & 0xC0) == 0x80;
    switch (lead) { /* after the lead bytes E0, ED, F0 and F4 the second byte has a narrower
                     * range */
    case 0xE0:
        return b >= 0xA0 && b <= 0xBF;
    case 0xED:
        return b >= 0x80 && b <= 0x9F;
    case 0xF0:
        return b >= 0x90 && b <= 0xBF;
    case 0xF4:
        return b >= 0x80 && b <= 0x8F;
    default:
        return (b & 0xC0) == 0x80;
    }
}

static unsigned char_len(uint8_t lead)
{
    if (lead < 0xC2 || lead > 0xF4) return 0;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

static size_t replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* How many of the first spaces of a token do not belong to the text. */
static size_t added_spaces(rose_detok *d, const rose_tokenizer *t, const char *bytes, size_t n,
                           unsigned flags)
{
    size_t k = 0;
    if (d->started || n == 0) return 0;
    d->started = true;
    if ((flags & ROSE_DECODE_CONTINUES) != 0 || t->strip == ROSE_STRIP_NOTHING) return 0;
    while (k < n && bytes[k] == ' ' && (k == 0 || t->strip == ROSE_STRIP_FIRST_TOKEN))
        k++;
    return k;
}

/* Feed bytes; writes what is complete to out. At most 3 bytes for each byte and 3 more. */
static size_t feed(rose_detok *d, const char *bytes, size_t n, char *out)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)bytes[i];
        if (d->n_pending > 0) {
            if (may_follow(d->pending, d->n_pending, b)) {
                d->pending[d->n_pending++] = b;
                if (d->n_pending < char_len(d->pending[0])) continue;
                memcpy(out + w, d->pending, d->n_pending);
                w += d->n_pending;
                d->n_pending = 0;
                continue;
            }
            w += replacement(out + w);
            d->n_pending = 0;
        }
        if (b < 0x80) {
            out[w++] = (char)b;
        } else if (char_len(b) > 0) {
            d->pending[0] = b;
            d->n_pending = 1;
        } else {
            w += replacement(out + w);
        }
    }
    return w;
}

static const rose_token *token_at(const rose_tokenizer *t, uint32_t id)
{
    if (id >= t->vocab.n_ids || (t->vocab.tokens[id].flags & ROSE_TOK_EXISTS) == 0) return NULL;
    return &t->vocab.tokens[id];
}

static bool skipped(const rose_token *tok, unsigned flags)
{
    return (flags & ROSE_DECODE_SKIP_SPECIAL) != 0 && (tok->flags & ROSE_TOK_SPECIAL) != 0;
}

uint32_t rose_tokenizer_vocab_size(const rose_tokenizer *t)
{
    return t->vocab.n_ids;
}

bool rose_tokenizer_is_special(const rose_tokenizer *t, uint32_t id)
{
    const rose_token *tok = token_at(t, id);
    return tok != NULL && (tok->flags & ROSE_TOK_SPECIAL) != 0;
}

const char *rose_tokenizer_token_bytes(const rose_tokenizer *t, uint32_t id, size_t *len)
{
    const rose_token *tok = token_at(t, id);
    *len = tok != NULL ? tok->len : 0;
    return tok != NULL ? t->vocab.blob.data + tok->off : NULL;
}

/* Text with spaces, as a vocabulary that writes them as U+2581 has it. */
static uint32_t find_spaced(const rose_vocab *v, const char *text, size_t len)
{
    char mapped[256];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (n + ROSE_SPACE_MARK_LEN > sizeof mapped) return ROSE_NO_ID;
        if (text[i] == ' ') {
            memcpy(mapped + n, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN);
            n += ROSE_SPACE_MARK_LEN;
        } else {
            mapped[n++] = text[i];
        }
    }
    return rose_vocab_find(v, mapped, n);
}

bool rose_tokenizer_find(const rose_tokenizer *t, const char *text, size_t len, uint32_t *id)
{
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].content_len != len || memcmp(t->added[i].content, text, len) != 0) continue;
        *id = t->added[i].id;
        return true;
    }
    *id = rose_vocab_find(&t->vocab, text, len);
    if (*id == ROSE_NO_ID && t->space_mark) *id = find_spaced(&t->vocab, text, len);
    return *id != ROSE_NO_ID;
}

void rose_detok_begin(rose_detok *d, const rose_tokenizer *t, const uint32_t *prompt, size_t n,
                      unsigned flags)
{
    *d = (rose_detok){0};
    for (size_t i = 0; i < n && !d->started; i++) {
        const rose_token *tok = token_at(t, prompt[i]);
        d->started = tok != NULL && !skipped(tok, flags) && tok->len > 0;
    }
}

size_t rose_detok_cap(const rose_tokenizer *t)
{
    return 3 * t->vocab.max_token_bytes + 12;
}

size_t rose_detok_push(rose_detok *d, const rose_tokenizer *t, uint32_t id, unsigned flags,
                       char *out)
{
    const rose_token *tok = token_at(t, id);
    if (tok == NULL || skipped(tok, flags)) return 0;
    const char *bytes = t->vocab.blob.data + tok->off;
    const size_t k = added_spaces(d, t, bytes, tok->len, flags);
    return feed(d, bytes + k, tok->len - k, out);
}

size_t rose_detok_finish(rose_detok *d, char *out)
{
    size_t n = d->n_pending > 0 ? replacement(out) : 0;
    *d = (rose_detok){0};
    return n;
}

rose_status rose_decode(const rose_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                        rose_buf *out, rose_err *err)
{
    rose_detok d = {0};
    size_t start = out->len;
    for (size_t i = 0; i < n; i++) {
        const rose_token *tok = token_at(t, ids[i]);
        if (tok == NULL) {
            out->len = start;
            return rose_fail(err, ROSE_E_INVAL, "no token has id %u", ids[i]);
        }
        if (rose_buf_reserve(out, 3 * (size_t)tok->len + 3) != ROSE_OK) goto nomem;
        out->len += rose_detok_push(&d, t, ids[i], flags, out->data + out->len);
    }
    if (rose_buf_reserve(out, 3) != ROSE_OK) goto nomem;
    out->len += rose_detok_finish(&d, out->data + out->len);
    return ROSE_OK;
nomem:
    out->len = start;
    return rose_fail(err, ROSE_E_NOMEM, "decode: out of memory");
}
