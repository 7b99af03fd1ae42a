/* tokenizer/unicode.h - UTF-8 decoding and the character classes of Hugging Face `tokenizers`.
 * tools/gen_unicode_tables.py asks that package for the classes code point by code point,
 * because its parts use different versions of Unicode. Immutable after rose_unicode_init; any
 * thread. */
#ifndef ROSE_TOKENIZER_UNICODE_H
#define ROSE_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef struct rose_cp_range {
    uint32_t lo, hi; /* both inclusive */
} rose_cp_range;

typedef struct rose_cp_set {
    const char
        *name; /* name of a class: "L", "Lu", ..., "\s", "\w", "\d", "rust_word", "rust_numeric" */
    const rose_cp_range *ranges; /* ascending, disjoint */
    size_t n_ranges;
} rose_cp_set;

extern const rose_cp_set rose_cp_sets[]; /* closed by name == NULL */

/* NULL when there is no set of that name. */
const rose_cp_set *rose_cp_set_find(const char *name, size_t len);

enum {
    ROSE_CP_L = 1u << 0,     /* \p{L} of patterns */
    ROSE_CP_N = 1u << 1,     /* \p{N} of patterns */
    ROSE_CP_SPACE = 1u << 2, /* white space: the class \s of patterns, and the characters that
                              * lstrip and rstrip remove */
    ROSE_CP_WORD = 1u << 3,  /* the characters that single_word counts as part of a word */
    ROSE_CP_DIGIT = 1u << 4, /* the characters that the Digits pre-tokenizer counts as digits */
    ROSE_CP_NORM_INERT = 1u << 5, /* too new for the normaliser, which leaves them unchanged */
    ROSE_CP_LNS = ROSE_CP_L | ROSE_CP_N | ROSE_CP_SPACE
};

/* Class bits by code point; valid after rose_unicode_init. Only memory pages with a member are
 * touched. */
extern uint8_t rose_cp_class[0x110000];

/* Fills rose_cp_class, once per process. Any thread; cheap if it is done already. */
void rose_unicode_init(void);

/* Decodes one character of p[0..end), p < end. Returns its length in bytes (1 to 4) and *cp; 0
 * if no well-formed character starts at p. */
static inline unsigned rose_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp)
{
    uint32_t c = p[0];
    size_t left = (size_t)(end - p);
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xC2 || left < 2 || (p[1] & 0xC0) != 0x80) return 0;
    if (c < 0xE0) {
        *cp = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (left < 3 || (p[2] & 0xC0) != 0x80) return 0;
    if (c < 0xF0) {
        uint32_t v = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if (v < 0x800 || (v >= 0xD800 && v < 0xE000)) return 0;
        *cp = v;
        return 3;
    }
    if (c > 0xF4 || left < 4 || (p[3] & 0xC0) != 0x80) return 0;
    uint32_t v = (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    if (v < 0x10000 || v > 0x10FFFF) return 0;
    *cp = v;
    return 4;
}

/* As rose_utf8_decode, for bytes known to be well-formed. */
static inline unsigned rose_utf8_decode_valid(const uint8_t *p, uint32_t *cp)
{
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xE0) {
        *cp = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (c < 0xF0) {
        *cp = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

/* Decodes the well-formed character that ends at p (begin < p). Returns its length. */
static inline unsigned rose_utf8_decode_back(const uint8_t *begin, const uint8_t *p, uint32_t *cp)
{
    const uint8_t *q = p - 1;
    while (q > begin && (*q & 0xC0) == 0x80)
        q--;
    rose_utf8_decode_valid(q, cp);
    return (unsigned)(p - q);
}

/* Returns the length of the longest well-formed prefix of p[0..n). */
size_t rose_utf8_valid_prefix(const uint8_t *p, size_t n);

/* Appends p[0..n) to out as well-formed text: each byte that is not part of a character becomes
 * \xNN. Errors: NOMEM. */
rose_status rose_utf8_escape(rose_buf *out, const char *p, size_t n);

/* Writes cp to out (room for 4 bytes); returns the length. cp <= 0x10FFFF. */
unsigned rose_utf8_encode(uint32_t cp, char *out);

#endif
