/* tokenizer/encoder_internal.h - one thread's encoder: scratch, word cache, and the steps from a
 * piece of text to ids. Threads do not share an encoder. */
#ifndef ROSE_TOKENIZER_ENCODER_INTERNAL_H
#define ROSE_TOKENIZER_ENCODER_INTERNAL_H

#include "tokenizer/tokenizer_internal.h"

enum {
    ROSE_WORD_KEY = 27,       /* bytes of a word that fits the cache */
    ROSE_WORD_IDS = 9,        /* ids of a word that fits the cache */
    ROSE_WORD_SLOTS = 1 << 14 /* 1 MiB an encoder */
};

/* One cache line: a word and its ids. The cache is direct-mapped, so a new word replaces the old
 * one. */
typedef struct rose_word {
    uint32_t ids[ROSE_WORD_IDS];
    uint8_t n_ids;
    uint8_t len; /* of the key; 0 = empty slot */
    char key[ROSE_WORD_KEY - 1];
} rose_word;

/* A symbol of a word that is being merged, in a doubly linked list over positions. */
typedef struct rose_symbol {
    uint32_t id;
    uint32_t prev, next; /* positions; ROSE_NO_ID = none */
    enum { ROSE_SYMBOL_GONE, ROSE_SYMBOL_START, ROSE_SYMBOL_MERGED } state;
} rose_symbol;

/* A possible merge. The merge with the smallest key (rank, then position) goes first. */
typedef struct rose_due {
    uint64_t key; /* rank << 32 | position */
    uint32_t id;  /* the token that this merge would make; if the pair now makes another token,
                   * the entry is stale */
} rose_due;

struct rose_encoder {
    const rose_tokenizer *t; /* borrowed: outlives the encoder */
    rose_word *words;        /* owned, [ROSE_WORD_SLOTS] */
    rose_symbol *symbols;    /* owned, [cap_symbols] */
    rose_due *heap;          /* owned, [cap_heap] */
    size_t cap_symbols, cap_heap, n_heap;
    rose_buf norm[2];                         /* normalised text, used alternately */
    rose_buf prefixed;                        /* a piece with its added space */
    rose_buf spaced;                          /* a piece with its spaces replaced */
    rose_buf marks, norm_marks;               /* marks of the text, and of a normalised stretch */
    pcre2_match_data *match[ROSE_MAX_STAGES]; /* owned; one per Split stage */
    pcre2_match_context *match_context;       /* owned */
    pcre2_jit_stack *jit_stack;               /* owned */
    const atomic_bool *stop;                  /* borrowed; NULL = none */
    rose_ids *out;                            /* borrowed during a call */
    unsigned flags;                           /* of the call */
    const char *text;                         /* of the call */
    const char *first;   /* the text after normalisation, if the stretch begins the call's text */
    bool is_marked;      /* rose_encode_marked: plain text never becomes a special token */
    bool blocks_special; /* merges into special tokens do not count */
    rose_err *err;       /* of the call */
};

/* A piece of text whose cache line is known and being prefetched. */
typedef struct rose_piece {
    const char *text;
    size_t len; /* > 0 */
    rose_whole_key key;
    uint32_t at; /* line of vocab.whole, or slot of `words` */
} rose_piece;

/* bpe.c: aim finds the cache line of a piece (any bytes, n > 0) and prefetches it; the second
 * call appends the piece's ids. Between the two calls, other pieces may be aimed at, but the
 * encoder may not be used otherwise. */
rose_piece rose_bpe_aim(const rose_encoder *e, const char *text, size_t n);
rose_status rose_bpe_take(rose_encoder *e, const rose_piece *p);
/* Both. */
rose_status rose_bpe_piece(rose_encoder *e, const char *piece, size_t n);
/* Encodes a piece of text by the merges alone, without the table of whole words and the cache. */
rose_status rose_bpe_merge(rose_encoder *e, const char *piece, size_t n);

/* pretok.c: splits text[0..n) (well-formed UTF-8) by the stages from `stage` on, and gives each
 * piece to rose_bpe_piece. */
rose_status rose_pretokenize(rose_encoder *e, uint32_t stage, const char *text, size_t n);

/* Somebody asked us to give up. */
static inline bool rose_encoder_stopped(const rose_encoder *e)
{
    /* relaxed: it only saves work */
    return e->stop != NULL && atomic_load_explicit(e->stop, memory_order_relaxed);
}

rose_status rose_ids_reserve(rose_ids *ids, size_t more);

#endif
