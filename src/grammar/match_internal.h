/* grammar/match_internal.h - what matching shares: the program (program.c), the trie of tokens
 * (trie.c), states (state.c), masks (mask.c). */
#ifndef ROSE_GRAMMAR_MATCH_INTERNAL_H
#define ROSE_GRAMMAR_MATCH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "grammar/grammar_internal.h"

/* ---- the program (program.c) ---- */

typedef enum gr_op_kind {
    OP_MATCH,  /* the end of the text */
    OP_RETURN, /* the end of a rule: the frame on the stack says where to go on */
    OP_RANGE,  /* a byte of [lo, hi], then `to` */
    OP_SET,    /* a byte of sets[set], then `to` */
    OP_EDGES,  /* a byte of one of edges[first .. first + n), then its target; counted: a loop */
    OP_FORK,   /* all of targets[first .. first + n) */
    OP_CALL,   /* pushes the frame "go on at back", goes to `to` */
    OP_ENTER,  /* pushes a counter of loops[loop] at 0, goes to the loop's head */
    OP_LOOP,   /* the counter of loops[loop]: once more, or pops it and leaves */
    OP_NEXT,   /* counts one round of loops[loop], goes to its OP_LOOP */
    OP_TICK,   /* adds `lo` to the count of loops[loop]; goes to `to` if the sum is one of
                * [targets[bounds], targets[bounds + 1]] */
    OP_OPEN,   /* pushes the frames of keys[keys], goes to `to` */
    OP_MORE,   /* if a member of keys[keys] may still come: goes to `to` */
    OP_TAKE,   /* marks `member` in the frames of keys[keys], if it is not marked; goes to `to` */
    OP_CLOSE   /* if all that is required is marked: pops the frames of keys[keys], goes to `to` */
} gr_op_kind;

/* What mask.c knows of an op without a walk; a safe token has only safe characters. */
typedef enum gr_wild {
    WILD_NO,
    WILD_COUNT, /* OP_LOOP: each round takes one safe character */
    WILD_SAFE,  /* all safe tokens survive from here */
    WILD_STRING /* the inside of a free JSON string, as the vocabulary prepared it */
} gr_wild;

typedef struct gr_op { /* gr_op_kind says which names of the unions a kind has */
    uint8_t kind, wild, lo, hi;
    union {
        uint32_t to;    /* the next op */
        uint32_t first; /* of edges or targets */
    };
    union {
        uint32_t n, set, loop, keys, back;
    };
    union {
        uint32_t counted; /* the loop that counts characters, if wild is WILD_COUNT */
        uint32_t bounds;
        uint32_t member; /* GR_NONE: one without a mark */
    };
} gr_op;

typedef struct gr_edge {
    uint8_t lo, hi;
    uint32_t to;
} gr_edge;

typedef struct gr_loop {
    uint32_t min, max, body, exit, head; /* ops; head: its OP_LOOP */
    uint32_t plain_lo, plain_hi; /* between these, and far from plain_hi, all counts are alike */
    uint32_t safe_hi;            /* counted automata: the limit where all safe tokens survive */
    bool lo_is_plain;            /* far below min all counts are alike as well */
} gr_loop;

/* Which members of an object were written: n_words frames, of which the top one has members 0 to
 * 31; with bounds one more, the lowest, counts all members. */
typedef struct gr_keys {
    uint32_t n_words, n_frames, min, max;
    uint32_t required; /* targets[required .. required + n_words): bits; then those that can end */
    bool other;        /* members without a mark are allowed */
    /* The rest only if some members need others, or the order counts: at most GR_MAX_LINKED
     * members. Then others have a mark as well, number n, which may be set again. */
    bool linked, ordered;
    uint32_t n;     /* members */
    uint32_t needs; /* targets[needs + i]: 0, or where the bits of what member i needs begin */
} gr_keys;

typedef struct gr_program { /* owned arrays */
    gr_op *ops;
    gr_edge *edges;
    uint32_t *targets;
    gr_loop *loops;
    gr_keys *keys;
    gr_set *sets;
    uint32_t n_keys, n_ops, n_edges, n_targets, n_loops, n_sets, n_classes, start;
    uint8_t class_of[256], byte_of[256]; /* bytes of one class behave alike everywhere */
} gr_program;

/* Refuses rules that are not defined or begin with themselves, and a root that never ends
 * (rules.c). */
/* Returns, for each node, 1 if it can end: the others are left out of the program. */
uint8_t *rose_gr_check_rules(gr_build *b, gr_node root);
void rose_gr_program_make(gr_build *b, gr_node root, gr_program *out);
void rose_gr_program_free(gr_program *p);

/* ---- the trie (trie.c) ---- */

typedef struct gr_trie_node { /* in depth-first order */
    uint32_t next;            /* the first node after the subtree */
    uint32_t first;           /* sorted[first .. first + n): the ids that end here */
    uint16_t n, depth;
    uint8_t byte;
} gr_trie_node;

typedef struct gr_trie {
    gr_trie_node *nodes;
    uint32_t n;
    uint32_t *sorted;
    uint32_t n_sorted;
} gr_trie;

struct rose_vocab_trie {
    atomic_uint refs;
    atomic_size_t grammar_bytes;        /* of all grammars that live */
    uint32_t n_ids, n_words, max_token; /* max_token: bytes of the longest token */
    uint8_t *blob;                      /* bytes of all tokens */
    struct gr_span_of {
        uint32_t at, n;
    } * tokens; /* [n_ids] into blob; n == 0: no text */
    uint32_t *eos;
    size_t n_eos;
    gr_trie all;
    gr_trie unsafe;        /* tokens that are not made of safe characters */
    gr_trie quoted;        /* tokens that contain '"' */
    uint32_t *safe_mask;   /* [n_words] tokens of safe characters */
    uint32_t *inside_mask; /* [n_words] tokens that stay inside a free JSON string */
    uint32_t *safe_ids;    /* by length in characters */
    uint32_t *safe_end; /* [max_safe + 1]: safe_ids[0 .. safe_end[k]) have at most k characters */
    uint32_t max_safe;
};

static inline bool rose_gr_is_eos(const rose_vocab_trie *v, uint32_t id)
{
    for (size_t i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id) return true;
    return false;
}

static inline void rose_gr_set_bit(uint32_t *mask, uint32_t id)
{
    mask[id / 32] |= UINT32_C(1) << (id % 32);
}

/* ---- states (state.c). All need the lock of the grammar. ---- */

typedef struct gr_frame {
    uint32_t parent; /* a frame; 0 is the empty stack */
    uint32_t op;     /* where to go on; or GR_COUNTER | a loop; or GR_KEYS | keys */
    uint32_t count;  /* rounds of the loop; marks or number of members */
    uint32_t depth;
    uint32_t plain; /* the frame with plain counters (mask.c); GR_NONE: not known yet */
    uint32_t chain; /* of the hash table */
} gr_frame;
#define GR_COUNTER 0x80000000u
#define GR_KEYS    0x40000000u

typedef struct gr_item {
    uint32_t op, frame;
} gr_item;

typedef struct gr_state {
    uint32_t first, n; /* items */
    uint32_t hash, chain;
    uint32_t *next; /* [n_classes] states, GR_NONE: not known yet; NULL until one is */
    uint32_t *mask; /* NULL: not known yet */
    uint32_t plain; /* the state with plain counters; GR_NONE: not known yet */
    gr_item wild_item;
    uint32_t wild_left; /* WILD_COUNT: characters that are left */
    uint8_t wild;
    bool accepting;
    bool any; /* with mask: it allows an id */
} gr_state;
enum { GR_DEAD = 0 }; /* the state without items */

typedef struct gr_states {
    gr_state *v;
    gr_item *items;
    gr_frame *frames;
    uint32_t n, cap, n_items, cap_items, n_frames, cap_frames;
    uint32_t *buckets, n_buckets, *frame_buckets, n_frame_buckets;
    size_t bytes;
    uint32_t start;
} gr_states;

struct rose_grammar {
    atomic_uint refs;
    atomic_size_t bytes; /* written with the lock, read without: a figure, nothing depends on it */
    _Atomic(rose_matcher *) gone; /* matchers that were destroyed and not yet freed, linked by
                                   * next_gone */
    atomic_bool slow;             /* the last calls have taken many steps */
    pthread_mutex_t lock;         /* of everything below */
    rose_vocab_trie *vocab;
    rose_grammar_opts opts;
    gr_program p;
    size_t program_bytes;
    gr_states s;
    LIST_HEAD(, rose_matcher) matchers; /* all that live, so that their states survive a clean-up */
    /* scratch */
    gr_item *work, *found;
    uint32_t n_work, cap_work, n_found, cap_found;
    uint64_t *seen; /* a hash table of (stamp, item) */
    uint32_t *seen_stamp, n_seen, stamp, n_marked;
    gr_item wild_item;
    uint32_t wild_left;
    uint8_t wild;
    uint32_t *walk; /* [max_token + 2] states along a path of the trie */
    uint32_t steps; /* of the closings of one call from outside */
    uint32_t usual; /* steps of a call: each one moves it by an eighth of the difference */
    rose_status st; /* why the last GR_NONE came back */
};

/* The memory of all grammars of the vocabulary; relaxed: a bound that need not be exact. */
static inline size_t rose_gr_live_bytes(const rose_grammar *g)
{
    return atomic_load_explicit(&g->vocab->grammar_bytes, memory_order_relaxed);
}

struct rose_matcher {
    rose_grammar *g;
    LIST_ENTRY(rose_matcher) link; /* in g->matchers */
    rose_matcher *next_gone;       /* in g->gone */
    uint32_t state, moved;         /* moved: used by rose_gr_clean */
    bool ended;
    uint8_t last; /* byte of the text */
};

void rose_gr_unlock(rose_grammar *g); /* notes the bytes in use */
/* With the lock, or as the last holder: frees the matchers that were destroyed. */
void rose_gr_free_gone(rose_grammar *g);
rose_status rose_gr_states_init(rose_grammar *g);
void rose_gr_states_free(gr_states *s);
/* The state after one byte; GR_DEAD if there is none; GR_NONE after an error (g->st). */
uint32_t rose_gr_step(rose_grammar *g, uint32_t state, uint8_t byte);
/* The state of these items, which are sorted and closed; GR_NONE after an error. */
uint32_t rose_gr_intern(rose_grammar *g, const gr_item *items, uint32_t n);
uint32_t rose_gr_frame(rose_grammar *g, uint32_t parent, uint32_t op, uint32_t count);
/* Closes one item into g->found[0 .. g->n_found), sorted; false after an error. */
bool rose_gr_close(rose_grammar *g, gr_item from);
void rose_gr_sort_items(gr_item *v, uint32_t n);
/* Drops cached states when they take more than the limit; ids of states change. */
rose_status rose_gr_clean(rose_grammar *g);

/* ---- masks (mask.c) ---- */

/* Finds or computes the mask of a state, which is g->s.v[*at].mask. */
rose_status rose_gr_mask(rose_grammar *g, uint32_t state, uint32_t *at);

/* Fills in v->inside_mask. */
rose_status rose_gr_inside(rose_vocab_trie *v);

/* A grammar without cached states around a node, for rose_grammar_compile and rose_gr_inside. */
rose_status rose_gr_compile(rose_grammar **out, rose_vocab_trie *v, const rose_grammar_opts *opts,
                            const char *what, gr_node (*front)(gr_build *, void *), void *arg,
                            rose_err *err);

#endif
