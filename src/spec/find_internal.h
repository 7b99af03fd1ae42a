/* spec/find_internal.h - where the last ids of a text stood before. An index has, for some lengths
 * n, a hash table of the last n ids. Its slot holds the newest place with that hash, and each place
 * holds a link to the next older one:
 *
 *     heads[hash(b,c)] ---> 7 ---> 3        places that end "b c", the newest first
 *     ids   . a b c . a b c                 a place is the position of the last of the n ids
 *     place 0 1 2 3 4 5 6 7
 *
 * A link may also lead to other ids with the same hash, so each place is compared. All walks are
 * bounded: hostile ids can make a guess worse, but not slow. Threads: none of its own. */
#ifndef ROSE_SPEC_FIND_INTERNAL_H
#define ROSE_SPEC_FIND_INTERNAL_H

#include "spec/spec.h"

enum {
    SPEC_PLACES = 64,      /* most places that count for a guess */
    SPEC_PAST_PLACES = 16, /* the same in past outputs, where each costs cache misses */
    SPEC_ENOUGH = 16,      /* places where all ids that are compared are the same end a search */
    SPEC_STEPS = 256       /* most links that a search follows */
};
#define SPEC_NONE UINT32_MAX /* no id: ids are below it */

/* Bytes are reserved at creation. links is written only where a place was added, so that the
 * kernel gives memory as a text grows. */
typedef struct spec_index {
    uint32_t *heads; /* owned: [per][2^bits], place + 1; 0 = none */
    uint32_t *links; /* owned: [n_places][per], place + 1; 0 = none */
    uint32_t per;    /* tables */
    uint32_t bits;   /* log2 of the slots of a table, 6 .. 24 */
    uint32_t mask;   /* a place's row of links is place & mask */
} spec_index;

/* per tables with about n_heads slots each, links for n_places places (mask UINT32_MAX: place is
 * the row). False: out of memory, nothing is held. */
bool spec_index_create(spec_index *x, uint32_t per, uint32_t n_heads, uint32_t n_places,
                       uint32_t mask);
void spec_index_destroy(spec_index *x); /* accepts a zeroed one */
size_t spec_index_bytes(const spec_index *x, uint32_t n_places);

static inline uint32_t spec_mix(uint32_t h, uint32_t id)
{
    h = (h ^ id) * 0x9E3779B1u;
    return h ^ h >> 15;
}

/* The head of a hash in a table. */
static inline uint32_t *spec_head(const spec_index *x, uint32_t table, uint32_t hash)
{
    return x->heads + ((size_t)table << x->bits) + (hash * 0x85EBCA6Bu >> (32 - x->bits));
}

static inline uint32_t *spec_link(const spec_index *x, uint32_t table, uint32_t place)
{
    return x->links + (size_t)(place & x->mask) * x->per + table;
}

/* Tables of an index of SUFFIX: places by their last 3 ids, and by their last id. */
enum { SPEC_LAST3, SPEC_LAST1, SPEC_TABLES };

/* Adds `place`, whose last id is last[0]. n: ids before and with last[0] that belong to it. */
void spec_index_add(spec_index *x, uint32_t seed, const uint32_t *last, uint32_t n, uint32_t place);
/* place + 1 of the newest place that may end as last[0] does, n ids of it; 0 = none. */
uint32_t spec_index_newest(const spec_index *x, uint32_t seed, const uint32_t *last,
                           uint32_t table);

/* The rule of NGRAM. The index has a table for each n in [min, min + per), and only the first place
 * of each n ids in it. Adds ids[place]. Returns the largest n for which the last n ids stood
 * before, and the first place where they did in *at; 0 = none. */
uint32_t spec_index_first(spec_index *x, uint32_t min, const uint32_t *ids, uint32_t place,
                          uint32_t *at);

/* A place where the last `same` ids of the text stand. What follows there are `left` ids from
 * ids[at & mask]. After these: SPEC_NONE in past outputs, the guess itself in a text, because its
 * end follows its own end, as in "abababab". */
typedef struct spec_place {
    uint32_t at, left, same;
} spec_place;

typedef struct spec_places {
    const uint32_t *ids; /* borrowed */
    uint32_t mask;
    bool repeats; /* the guess goes on after `left` ids */
    uint32_t n;
    spec_place p[SPEC_PLACES];
} spec_places;

/* How many ids up to and with a[0] and b[0] are the same; at most `most`. */
static inline uint32_t spec_same(const uint32_t *a, const uint32_t *b, uint32_t most)
{
    uint32_t k = 0;
    while (k < most && *(a - k) == *(b - k))
        k++;
    return k;
}

/* The rule of SuffixDecoding. For each number m of ids that are the same, the places with at least
 * m vote on each next id; the guess follows the majority while the product of its shares is at
 * least min_prob, for at most factor * m ids. Its score is the sum of these products. If the best
 * of the guesses with m in [from, to] has a score above *best, it becomes g, and *best its score.
 * With equal scores the longer m wins, with equal votes the place with more ids that are the same,
 * then the newer one. Sorts the places. */
void spec_vote(spec_places *c, const rose_spec_opts *o, uint32_t from, uint32_t to, uint32_t cap,
               float *best, rose_spec_guess *g);

#endif
