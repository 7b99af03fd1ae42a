/* spec/spec.h - guesses of the ids that come next in a text (speculative decoding). A step checks a
 * guess: it computes the guessed rows as it would a prompt, samples every position with that
 * position's own random number, and keeps the ids up to and with the first that differs. So a guess
 * changes how many steps a text takes, and never a token of it.
 *
 * A guess is what followed the same ids before. SUFFIX looks in the prompt and the output of the
 * request, and in past outputs of the server (SuffixDecoding, Oliaro et al., arXiv 2411.04975;
 * vLLM's `suffix`). NGRAM looks in the request alone, with vLLM's `ngram` rule. Both use hash
 * chains, as LZ77 compressors do, and no suffix tree. A chain links the positions whose last ids
 * have the same hash. An added id costs O(1) time and a few words of memory, and nothing is
 * allocated after create. Other guesses come from a grammar or from a client's prediction.
 *
 * Each id of a guess has a chance: how often guesses like it were right. The engine computes only
 * the ids whose chance is worth a row.
 *
 * Threads: rose_spec_text_create by any thread, several at once; the rest by the engine thread.
 * All results follow from the calls alone: no clock, no randomness. */
#ifndef ROSE_SPEC_SPEC_H
#define ROSE_SPEC_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    ROSE_SPEC_MAX = 15,      /* ids of a guess: a step has up to 16 rows of a sequence */
    ROSE_SPEC_MAX_DEPTH = 64 /* ids that are compared */
};

typedef enum rose_spec_method {
    ROSE_SPEC_NONE,
    ROSE_SPEC_SUFFIX,
    ROSE_SPEC_NGRAM
} rose_spec_method;

const char *rose_spec_method_name(rose_spec_method m); /* "none", "suffix" or "ngram" */

/* Where a guess comes from. The chance of its ids is learnt for each source apart. */
typedef enum rose_spec_source {
    ROSE_SPEC_FROM_TEXT,       /* prompt and output of the request */
    ROSE_SPEC_FROM_PAST,       /* past outputs */
    ROSE_SPEC_FROM_GRAMMAR,    /* the next bytes that a guide forces */
    ROSE_SPEC_FROM_PREDICTION, /* text that the client expects */
    ROSE_SPEC_FROM_OTHER,      /* rose_spec_opts.other */
    ROSE_SPEC_SOURCES
} rose_spec_source;

typedef struct rose_spec_guess {
    uint32_t n; /* 0 .. ROSE_SPEC_MAX */
    rose_spec_source source;
    uint32_t ids[ROSE_SPEC_MAX];
    float
        score[ROSE_SPEC_MAX]; /* what the source says of the chance that ids[0..i] are all right */
    float chance[ROSE_SPEC_MAX]; /* that chance, by what was seen so far; does not rise with i */
} rose_spec_guess;

typedef struct rose_spec_opts {
    rose_spec_method method;
    uint32_t n_tokens;             /* most ids of a guess, 1 .. ROSE_SPEC_MAX */
    uint32_t ngram_min, ngram_max; /* NGRAM: ids that must be the same, 1 <= min <= max <= 64 */
    uint32_t depth;                /* SUFFIX: most ids that are compared, 1 .. 64 */
    float factor;   /* SUFFIX: a match of m ids gives a guess of at most factor * m */
    float min_prob; /* SUFFIX: a guess ends before its score falls below this */
    /* SUFFIX: ids of past outputs that are kept, up to 2^30, rounded up to a power of two of at
     * least 64; 0 = none. The oldest go. Kept are at most past_tokens / 8 outputs. */
    uint32_t past_tokens;
    uint32_t past_requests; /* SUFFIX: outputs of at most this many requests are kept; 0 = none */
    bool always;            /* every guessed id has the chance 1 (tests, measurements) */
    /* Another source, which is asked first, or NULL (tests, benchmarks). Writes up to cap ids that
     * may follow text[0..n), any numbers, and returns how many. */
    uint32_t (*other)(void *user, const uint32_t *text, uint32_t n, uint32_t n_prompt, uint32_t cap,
                      uint32_t *ids);
    void *user;
} rose_spec_opts;

/* Whether these options ask for guesses. */
static inline bool rose_spec_wanted(const rose_spec_opts *o)
{
    return o->method != ROSE_SPEC_NONE || o->other != NULL;
}

/* Sets SUFFIX: 15 tokens, depth 24, factor 1, min_prob 0.1, ngram 5 to 5 (vLLM's default), 1 Mi
 * past tokens of at most 10,000 requests. */
void rose_spec_opts_default(rose_spec_opts *o);

/* Changes what the members of a JSON object name, as vLLM's --speculative-config does. Errors:
 * INVAL, which names the member, and leaves *o as it was. */
rose_status rose_spec_opts_parse(rose_spec_opts *o, const char *json, rose_err *err);

typedef struct rose_spec rose_spec;           /* what all texts share */
typedef struct rose_spec_text rose_spec_text; /* the ids of a request */

/* Errors: INVAL (an option is out of range, by name), NOMEM. */
rose_status rose_spec_create(rose_spec **out, const rose_spec_opts *o, rose_err *err);
void rose_spec_destroy(rose_spec *s); /* accepts NULL; after the end of all texts */

/* A text that begins with a prompt and grows by up to max_tokens ids. n_prompt + max_tokens and all
 * ids are below UINT32_MAX. Texts share past outputs only with texts of the same salt. prediction:
 * NULL, or ids that the output may consist of, copied. The first guess is the beginning of the
 * prediction. When the output departs from the prediction, its place there is unknown until some
 * ids match again. While the place is known, guesses come from the prediction before the text and
 * past outputs. NULL: out of memory. */
rose_spec_text *rose_spec_text_create(const rose_spec *s, const uint32_t *prompt, uint32_t n_prompt,
                                      uint32_t max_tokens, const uint64_t salt[2],
                                      const uint32_t *prediction, uint32_t n_prediction);
void rose_spec_text_destroy(rose_spec_text *t); /* accepts NULL; any thread */

/* The text goes on with these ids. */
void rose_spec_add(rose_spec *s, rose_spec_text *t, const uint32_t *ids, uint32_t n);
/* The text has ended, and its output becomes a past output: the last min(past_tokens / 4, 16,384)
 * ids of it. Call it once. After it, only destroy is allowed. */
void rose_spec_end(rose_spec *s, rose_spec_text *t);

/* Guesses what follows: at most cap ids. Changes nothing but *g. */
void rose_spec_guess_next(const rose_spec *s, const rose_spec_text *t, uint32_t cap,
                          rose_spec_guess *g);
/* The same for ids that the caller has from `source`: sets source, score and chance of g->ids. */
void rose_spec_rate(const rose_spec *s, const rose_spec_text *t, rose_spec_source source,
                    rose_spec_guess *g);
/* The first n_tried ids of the guess were computed, and the first n_right of these were right. A
 * guess that was not computed (n_tried 0) also counts: what was seen of guesses like it is then
 * forgotten a little, so that they are tried again one day. */
void rose_spec_learn(rose_spec *s, rose_spec_text *t, const rose_spec_guess *g, uint32_t n_tried,
                     uint32_t n_right);

/* Since creation. Any thread may read while the engine thread works. */
typedef struct rose_spec_stats {
    uint64_t n_guesses, n_tried, n_right; /* guesses with n_tried > 0; ids */
    uint64_t right_at[ROSE_SPEC_MAX];     /* of these, by place in the guess */
    uint64_t tried_of[ROSE_SPEC_SOURCES]; /* ids, by source */
    uint64_t right_of[ROSE_SPEC_SOURCES];
    /* Reserved for past outputs and for all texts that live. The kernel gives the pages of a text
     * as it grows. */
    uint64_t bytes;
} rose_spec_stats;
rose_spec_stats rose_spec_get_stats(const rose_spec *s);

#endif
