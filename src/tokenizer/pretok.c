/* tokenizer/pretok.c - cuts text into pieces: the stages of the pre-tokenizer. GPT-2's pattern
 * is matched by hand, about ten times as fast as a regular expression; other patterns run in
 * PCRE2. The text is well-formed UTF-8, which encode.c makes sure of. */
#include <string.h>

#include "tokenizer/encoder_internal.h"
#include "tokenizer/unicode.h"

enum { AHEAD = 16 }; /* pieces that are aimed at together */

/* Returns the end of the run of characters from p whose class, masked by LNS, is want. */
static const uint8_t *run_end(const uint8_t *p, const uint8_t *end, unsigned want)
{
    while (p < end) {
        uint32_t cp;
        unsigned k = rose_utf8_decode_valid(p, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_LNS) != want) break;
        p += k;
    }
    return p;
}

/* Returns the length of 's 't 'm 'd 're 've 'll at p (p[0] is the apostrophe), or 0. */
static size_t contraction(const uint8_t *p, size_t n)
{
    if (n < 2) return 0;
    if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd') return 2;
    if (n < 3) return 0;
    if ((p[1] == 'r' || p[1] == 'v') && p[2] == 'e') return 3;
    return p[1] == 'l' && p[2] == 'l' ? 3 : 0;
}

/* `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, with the
 * alternatives in this order. Every character belongs to exactly one of L, N, space and other,
 * so the next one or two characters decide. */
size_t rose_gpt2_piece(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n, *q = p;
    uint32_t cp;
    if (*p == '\'') {
        size_t k = contraction(p, n);
        if (k > 0) return k;
    }
    if (*p == ' ' && n > 1) q++; /* skip the optional space, if another character follows */
    unsigned k = rose_utf8_decode_valid(q, &cp);
    unsigned class = rose_cp_class[cp] & ROSE_CP_LNS;
    if (class != ROSE_CP_SPACE) return (size_t)(run_end(q + k, end, class) - p);

    /* White space from p on. At the end of the text the piece is all of it. Otherwise the piece
     * leaves out the last character, which may belong to the next piece; a single character is a
     * piece alone. */
    const uint8_t *last = p;
    const uint8_t *at = p;
    while (at < end) {
        k = rose_utf8_decode_valid(at, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_LNS) != ROSE_CP_SPACE) break;
        last = at;
        at += k;
    }
    return (size_t)((at == end || last == p ? at : last) - p);
}

static rose_status byte_level(rose_encoder *e, const rose_stage *s, const char *text, size_t n)
{
    if (s->add_prefix_space && text[0] != ' ') {
        e->prefixed.len = 0;
        if (rose_buf_add(&e->prefixed, " ", 1) != ROSE_OK ||
            rose_buf_add(&e->prefixed, text, n) != ROSE_OK)
            return rose_fail(e->err, ROSE_E_NOMEM, "tokenizer: out of memory");
        text = e->prefixed.data;
        n++;
    }
    if (!s->use_regex) return rose_bpe_piece(e, text, n);
    while (n > 0) {
        rose_piece ahead[AHEAD];
        uint32_t n_ahead = 0;
        for (; n > 0 && n_ahead < AHEAD; n_ahead++) {
            const size_t k = rose_gpt2_piece((const uint8_t *)text, n);
            ahead[n_ahead] = rose_bpe_aim(e, text, k);
            text += k;
            n -= k;
        }
        for (uint32_t i = 0; i < n_ahead; i++) {
            rose_status st = rose_bpe_take(e, &ahead[i]);
            if (st != ROSE_OK) return st;
        }
    }
    return ROSE_OK;
}

static rose_status digits(rose_encoder *e, uint32_t stage, const char *text, size_t n)
{
    const rose_stage *s = &e->t->stages[stage];
    const uint8_t *p = (const uint8_t *)text, *end = p + n, *piece = p;
    bool in_digits = false;
    while (p < end) {
        uint32_t cp;
        unsigned k = rose_utf8_decode_valid(p, &cp);
        bool digit = (rose_cp_class[cp] & ROSE_CP_DIGIT) != 0;
        if (p > piece && (digit != in_digits || (digit && s->individual))) {
            rose_status st =
                rose_pretokenize(e, stage + 1, (const char *)piece, (size_t)(p - piece));
            if (st != ROSE_OK) return st;
            piece = p;
        }
        in_digits = digit;
        p += k;
    }
    return rose_pretokenize(e, stage + 1, (const char *)piece, (size_t)(end - piece));
}

/* Finds one match of the stage's pattern at or after `from`: returns 1 and *begin, *end; 0 for
 * none; negative for an error of PCRE2. */
static int find_match(rose_encoder *e, uint32_t stage, const char *text, size_t n, size_t from,
                      size_t *begin, size_t *end)
{
    pcre2_match_data *md = e->match[stage];
    int rc = pcre2_match(e->t->stages[stage].code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK,
                         md, e->match_context);
    if (rc ==
        PCRE2_ERROR_JIT_STACKLIMIT) /* without JIT, PCRE2's interpreter has its stack on the heap */
        rc = pcre2_match(e->t->stages[stage].code, (PCRE2_SPTR)text, n, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md, e->match_context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return rc;
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
    *begin = ov[0];
    *end = ov[1];
    return 1;
}

static rose_status piece_of_split(rose_encoder *e, uint32_t stage, bool is_match, const char *text,
                                  size_t n)
{
    const rose_stage *s = &e->t->stages[stage];
    if (n == 0 || (s->removed && is_match != s->invert)) return ROSE_OK;
    return rose_pretokenize(e, stage + 1, text, n);
}

/* Splits text at matches of the pattern, from left to right, as the onig crate (Oniguruma) does.
 * An empty match directly after the last match does not count, and the search continues one
 * character later. */
static rose_status split(rose_encoder *e, uint32_t stage, const char *text, size_t n)
{
    size_t done = 0, from = 0, last_end = SIZE_MAX;
    rose_status st = ROSE_OK;
    while (st == ROSE_OK && from <= n) {
        size_t begin, end;
        int rc = find_match(e, stage, text, n, from, &begin, &end);
        if (rc == 0) break;
        if (rc < 0)
            return rose_fail(e->err, ROSE_E_UNSUPPORTED,
                             "tokenizer: the pattern of a Split gave up on this text (PCRE2 %d)",
                             rc);
        if (end < begin) end = begin;
        from = end;
        if (begin == end) {
            uint32_t cp;
            from += end < n ? rose_utf8_decode_valid((const uint8_t *)text + end, &cp) : 1;
            if (end == last_end) continue;
        }
        last_end = end;
        st = piece_of_split(e, stage, false, text + done, begin - done);
        if (st == ROSE_OK) st = piece_of_split(e, stage, true, text + begin, end - begin);
        done = end;
    }
    if (st == ROSE_OK) st = piece_of_split(e, stage, false, text + done, n - done);
    return st;
}

rose_status rose_pretokenize(rose_encoder *e, uint32_t stage, const char *text, size_t n)
{
    const rose_stage *s = &e->t->stages[stage];
    if (n == 0) return ROSE_OK;
    switch (s->kind) {
    case ROSE_STAGE_SPLIT:
        return split(e, stage, text, n);
    case ROSE_STAGE_DIGITS:
        return digits(e, stage, text, n);
    case ROSE_STAGE_BYTE_LEVEL:
        break;
    }
    return byte_level(e, s, text, n);
}
