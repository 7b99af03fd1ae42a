/* tokenizer/pretok.c - cuts text into pieces: the stages of the pre-tokenizer. The common patterns
 * are scanned by hand (scan.c); others run in PCRE2. Text here is well-formed UTF-8 (encode.c sees
 * to it). */
#include <string.h>

#include "tokenizer/encoder_internal.h"
#include "tokenizer/unicode.h"

enum { AHEAD = 16 }; /* pieces that are aimed at together */

/* Cut text into pieces by `scan`, look the pieces up a few at a time, and append their ids. */
static rose_status take_pieces(rose_encoder *e, rose_scan scan, const char *text, size_t n)
{
    if (scan == NULL) return rose_bpe_piece(e, text, n);
    while (n > 0) {
        rose_piece ahead[AHEAD];
        uint32_t n_ahead = 0;
        for (; n > 0 && n_ahead < AHEAD; n_ahead++) {
            const size_t k = scan((const uint8_t *)text, n);
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
    return take_pieces(e, s->scan, text, n);
}

/* Spaces become U+2581, and one more goes first where the rule says so. */
static rose_status metaspace(rose_encoder *e, const rose_stage *s, const char *text, size_t n)
{
    static const rose_norm mark = {.kind = ROSE_NORM_REPLACE,
                                   .from = " ",
                                   .to = ROSE_SPACE_MARK,
                                   .n_from = 1,
                                   .n_to = ROSE_SPACE_MARK_LEN};
    const bool begins = text[0] == ' ' || (n >= ROSE_SPACE_MARK_LEN &&
                                           memcmp(text, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN) == 0);
    const bool wanted =
        s->prepend == ROSE_PREPEND_ALWAYS || (s->prepend == ROSE_PREPEND_FIRST && text == e->first);
    rose_status st = rose_normalize(&mark, text, n, &e->spaced, &text, &n, NULL);
    if (st == ROSE_OK && wanted && !begins) {
        e->prefixed.len = 0;
        st = rose_buf_add(&e->prefixed, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN);
        if (st == ROSE_OK) st = rose_buf_add(&e->prefixed, text, n);
        text = e->prefixed.data;
        n = e->prefixed.len;
    }
    if (st != ROSE_OK) return rose_fail(e->err, st, "tokenizer: out of memory");
    return take_pieces(e, s->scan, text, n);
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

/* A split in progress: what was found and not passed on yet. */
typedef struct split_run {
    uint32_t stage;
    const char *text;
    size_t held, end; /* text[held, end) waits for what follows */
    bool holds_match;
} split_run;

static rose_status pass_held(rose_encoder *e, split_run *r)
{
    const size_t begin = r->held;
    r->held = r->end;
    if (begin == r->end) return ROSE_OK;
    return rose_pretokenize(e, r->stage + 1, r->text + begin, r->end - begin);
}

/* The text up to `end` is a match, or what lies between two. */
static rose_status found(rose_encoder *e, split_run *r, bool is_match, size_t end)
{
    const rose_stage *s = &e->t->stages[r->stage];
    if (end == r->end) return ROSE_OK;
    is_match = is_match != s->invert;
    const bool joins = (s->split == ROSE_SPLIT_WITH_PREVIOUS && is_match && !r->holds_match) ||
                       (s->split == ROSE_SPLIT_WITH_NEXT && !is_match && r->holds_match);
    rose_status st = joins ? ROSE_OK : pass_held(e, r);
    r->end = end;
    r->holds_match = is_match;
    if (s->split == ROSE_SPLIT_REMOVED && is_match) r->held = end;
    return st;
}

/* Matches from left to right as the onig crate yields them: an empty match directly after the last
 * match does not count, and the search goes on one character later. */
static rose_status split(rose_encoder *e, uint32_t stage, const char *text, size_t n)
{
    size_t from = 0, last_end = SIZE_MAX;
    split_run run = {.stage = stage, .text = text};
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
        st = found(e, &run, false, begin);
        if (st == ROSE_OK) st = found(e, &run, true, end);
    }
    if (st == ROSE_OK) st = found(e, &run, false, n);
    return st == ROSE_OK ? pass_held(e, &run) : st;
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
        return byte_level(e, s, text, n);
    case ROSE_STAGE_METASPACE:
        return metaspace(e, s, text, n);
    case ROSE_STAGE_CHARS:
        break;
    }
    return take_pieces(e, s->scan, text, n);
}
