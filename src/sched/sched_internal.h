/* sched/sched_internal.h - the scheduler's state, shared by its four files: sched.c (life of a
 * sequence, pages, the plan), admit.c (which sequences begin), share.c (use of the prefix index),
 * slo.c (latency goals).
 *
 * A node is in one of five states. Free. Waiting: in the queue. Prefilling: in a list in order
 * of key. Decoding: in a dense array, which each step visits. A removal moves the last entry
 * into the gap, so that the other entries, and their rows in the batch, stay in place. Done: all
 * tokens sampled, not yet finished, without lane and pages. A prefilling or decoding sequence
 * has a lane, which is a row of the page tables. */
#ifndef ROSE_SCHED_SCHED_INTERNAL_H
#define ROSE_SCHED_SCHED_INTERNAL_H

#include <stddef.h>

#include "sched/cost.h"
#include "sched/sched.h"
#include "sched/waitq.h"

#define ROSE_SCHED_NONE UINT32_MAX

typedef enum rose_seq_state {
    ROSE_SEQ_FREE,
    ROSE_SEQ_WAITING,
    ROSE_SEQ_PREFILL,
    ROSE_SEQ_DECODE,
    ROSE_SEQ_DONE
} rose_seq_state;

typedef struct rose_seq {
    uint8_t state; /* rose_seq_state */
    bool begun;    /* the sequence was admitted before; if the sequence waits now, it was
                    * preempted */
    bool no_lookup, same_prompt;
    bool held;        /* the sequence must not sample before rose_sched_allow */
    bool guided;      /* each sample holds it again */
    bool fresh;       /* the last step computed a part of the sequence's prompt */
    bool checked;     /* a step checks its guess: not planned before rose_sched_accept */
    uint32_t n_guess; /* ids that the next plan may check */
    uint32_t lane;    /* PREFILL, DECODE */
    uint32_t index;   /* DECODE: place in decode[] */
    uint32_t n_done, n_known, n_max;
    uint32_t check_at;  /* DECODE: when n_done reaches this, its pages are full */
    uint32_t n_indexed; /* the first n_indexed pages are a path of the prefix index */
    uint32_t node;      /* the last node of this path, held; WAITING: of match_n, not held */
    rose_kv_span own[ROSE_KV_MAX_POOLS]; /* pages, by place in the tables */
    uint32_t prev, next;       /* PREFILL: neighbours in the list; `next` also chains free nodes */
    uint32_t n_prompt, n_peak; /* n_peak is the value of n_done before the last preemption */
    uint32_t n_cached;         /* tokens found at the first admission */
    int64_t key;
    uint64_t order;
    rose_kv_salt salt;
    uint64_t due_ns; /* 0 = never */
    /* WAITING: a path of the index with match_n nodes has all the pages that are needed after it.
     * The search went on to walk_n nodes; the last run[p] of them have pages in pool p. It counts
     * while the index has the version match_version. */
    uint32_t match_n, walk_n, walk_node, run[ROSE_KV_MAX_POOLS];
    uint64_t match_version;
    bool match_miss; /* the next page, whose hash is next_hash, must be computed */
    uint64_t next_hash;
} rose_seq;

/* Hashes of the pages that sequences are computing now; an entry counts if its mark is the
 * current one. */
typedef struct rose_sched_pending {
    uint64_t *hashes; /* [mask + 1], owned */
    uint64_t *marks;  /* [mask + 1], owned */
    uint32_t mask;
    uint64_t mark;
} rose_sched_pending;

struct rose_sched {
    rose_sched_opts o;                /* zeros replaced by what they stand for */
    rose_kv_prefix *prefix;           /* owned */
    uint32_t stride;                  /* pages of the longest sequence */
    uint32_t span[ROSE_KV_MAX_POOLS]; /* the most pages that a row needs; without chunked prefill
                                       * the most that a piece needs */
    uint32_t n_begun, n_preempted, n_decode, n_free_lanes, n_needs;
    uint32_t free_seq; /* chain of free nodes */
    uint32_t prefill_first, prefill_last;
    uint32_t index_at;     /* place in decode[] whose generated pages enter the index next */
    uint32_t decode_start; /* the sequence that gets the first row when rows are too few for all */
    uint64_t n_arrivals;
    uint64_t passed_head; /* PACK: order number of the passed first sequence, and in how many rounds
                             it was passed */
    uint32_t n_passed;
    rose_waitq waiting;
    rose_sched_pending pending;
    rose_sched_stats stats;
    rose_sched_cost cost;
    uint32_t most_rows;   /* of the steps observed so far, the most */
    uint32_t step_rows;   /* of this step; busy_step_tokens .. max_step_tokens */
    uint32_t goal_rows;   /* of prompts in this step */
    uint32_t goal_active; /* sequences that have begun */
    uint32_t late_at;     /* whose time due was looked at last */
    double mean_output, mean_pages, mean_miss;
    uint64_t n_ends, n_misses;
    /* all owned */
    rose_seq *seqs;   /* [max_seqs + max_queued] */
    uint32_t *decode; /* [max_seqs] */
    uint32_t *needs;  /* [max_seqs] handles to look at before the next plan: to index or grow their
                         page tables, or because all is sampled */
    uint32_t *free_lanes;   /* [max_seqs] */
    uint32_t *tables;       /* [max_seqs][n_pools][stride] page tables, by lane; always pages */
    uint32_t *window;       /* [lookahead] */
    uint32_t *ids;          /* [page_tokens] */
    rose_sched_item *items; /* [max_seqs] */
    uint32_t *admitted;     /* [max_seqs] */
};

/* ---- sched.c ---- */

static inline uint32_t *rose_sched_table(const rose_sched *s, const rose_seq *q, uint32_t pool)
{
    return s->tables + ((size_t)q->lane * s->o.n_pools + pool) * s->stride;
}

/* The place of the first page that a sequence must hold in a pool before a row at `pos`. */
static inline uint32_t rose_sched_keeps(const rose_sched_opts *o, uint32_t pool, uint32_t pos)
{
    return o->keeps_from(o->windows[pool], pos) / o->page_tokens;
}

static inline bool rose_seq_before(const rose_seq *a, const rose_seq *b)
{
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

/* Gives all pages in q's tables back, and its node. */
void rose_sched_give_back(rose_sched *s, const rose_seq *q);
/* Returns how many rows a prompt may still take in this step. */
uint32_t rose_sched_prefill_left(const rose_sched *s, const rose_sched_plan *p);
/* Tells whether q is held and its next piece would end in a sample: its prompt has `rest` rows to
 * compute, and the step takes `left` of them. */
bool rose_sched_must_wait(const rose_sched *s, const rose_seq *q, uint32_t rest, uint32_t left);
/* Moves sequence i from the queue to PREFILL, on the topmost free lane, whose tables are filled. */
void rose_sched_begin(rose_sched *s, rose_sched_plan *p, uint32_t i);
/* Plans the next piece of the prompt of sequence i (PREFILL). */
void rose_sched_plan_prefill(rose_sched *s, rose_sched_plan *p, uint32_t i);

/* ---- admit.c ---- */

void rose_sched_admit(rose_sched *s, rose_sched_plan *p);

/* ---- slo.c ---- */

void rose_sched_steer(
    rose_sched *s); /* Sets step_rows, goal_rows and goal_active for the next plan. */
void rose_sched_note_begin(rose_sched *s, const rose_seq *q);
void rose_sched_note_end(rose_sched *s, const rose_seq *q); /* of one that had begun */

/* ---- share.c ---- */

/* Puts the full pages of sequence i into the index. If another sequence has meanwhile entered an
 * equal page, sequence i uses that page instead of its own. */
void rose_sched_index_pages(rose_sched *s, uint32_t i);
/* Finds how far the index has the known tokens of i (WAITING); sets match_n and node. */
void rose_sched_match(rose_sched *s, uint32_t i);

bool rose_sched_pending_create(rose_sched_pending *t, uint32_t max_seqs);
void rose_sched_pending_destroy(rose_sched_pending *t);
void rose_sched_pending_begin(rose_sched *s);           /* of what prefills at this moment */
void rose_sched_pending_add(rose_sched *s, uint32_t i); /* and of i, which begins */
/* Tells whether another sequence is computing the page that i misses (call after match). */
bool rose_sched_pending_has(const rose_sched *s, uint32_t i);

#endif
