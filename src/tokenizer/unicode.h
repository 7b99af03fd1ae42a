/* tokenizer/unicode.h - the character classes of Hugging Face `tokenizers`.
 * tools/gen_unicode_tables.py asks that package for the classes code point by code point,
 * because its parts use different versions of Unicode. Immutable after rose_unicode_init; any
 * thread. */
#ifndef ROSE_TOKENIZER_UNICODE_H
#define ROSE_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/utf8.h"

/* Code points of the same classes: from `first` to the one before the next run. */
typedef struct rose_cp_run {
    uint32_t first;
    uint32_t kind; /* index in rose_cp_kinds */
} rose_cp_run;

#define ROSE_CP_SURROGATE (UINT32_C(1) << 31)

extern const rose_cp_run rose_cp_runs[];  /* ascending from 0; closed by first == 0x110000 */
extern const uint32_t rose_cp_kinds[];    /* classes as bits, or ROSE_CP_SURROGATE */
extern const char *const rose_cp_names[]; /* of bit i: "L", "Lu", ..., "\\s", "\\w", "\\d",
                                             "rust_word", "rust_numeric"; closed by NULL */

/* The bit of the class of that name; 0 when there is none. */
uint32_t rose_cp_set_find(const char *name, size_t len);

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

#endif
