/* sched/sched.h - which sequence computes what in the next step. A pure state machine: events in
 * (submit, finish), a plan out (next). No clock, no thread, no randomness: the same events give the
 * same plans, so every policy can be simulated without a model.
 *
 * A sequence is three counts: n_done tokens whose K and V are in its pages, n_known tokens whose id
 * is known or being sampled, n_max where it ends. A step computes [n_done, n_done + n); when that
 * reaches n_known it also samples one more. Prefill, decode, starting behind a cached prefix and
 * recomputing after a preemption differ in these counts only.
 *
 * Order. Every sequence has a key, its arrival plus priority * age: the lower goes first. Because
 * the arrival counts, a low priority is worth a fixed time and nothing waits for ever.
 * Rows: decodes first, one each (decode_first off: last); then pieces of prompts; then admission.
 * Admission: fifo takes waiting sequences in order until one does not fit. pack looks at the first
 * `lookahead`, takes the shorter first and lets them pass one that does not fit, but only
 * force_fifo_every - 1 rounds in a row; then nobody passes until that one is in.
 * Pages: those of a prompt are taken at admission, the others when they are needed. When none is
 * left, idle pages of the prefix index go first, then the running sequence with the highest key is
 * preempted: it gives its pages back and waits, under its old key, to be computed again from its
 * prompt and what it has sampled so far. The one with the lowest key is never preempted.
 * Prefixes: full pages enter the index (kv/prefix.h), those of a prompt one step after they are
 * computed, those of generated text within about page_tokens steps or at the end; an admission
 * starts behind the longest path found there, leaving at least one token to compute. A prompt whose
 * next page is just being computed by another waits for that page instead of computing it too, so
 * n choices of one prompt, or a crowd with one system prompt, compute it once.
 * Goals. From what steps have cost (rose_sched_observe) follows what a step will: beside running
 * decodes prompts get as many rows, and as many sequences begin, as keep it within itl_goal_ns; and
 * a sequence with a time due that it can no longer meet is named by rose_sched_late while it waits.
 * The clock is the caller's.
 *
 * Threads: owned by the engine thread.  Memory: allocates in _create only. */
#ifndef ROSE_SCHED_SCHED_H
#define ROSE_SCHED_SCHED_H

#include <stdbool.h>

#include "kv/prefix.h"

typedef enum rose_admission { ROSE_ADMISSION_FIFO, ROSE_ADMISSION_PACK } rose_admission;

/* Ids of positions [pos, pos + n) of a sequence, all of them known, to out. */
typedef void rose_sched_ids_fn(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out);

typedef struct rose_sched_opts {
    uint32_t max_seqs;           /* running sequences, 1 .. 4096 */
    uint32_t max_step_tokens;    /* rows of a step, >= max_seqs */
    uint32_t max_model_len;      /* tokens of a sequence, prompt and output, 2 .. 2^28 */
    uint32_t max_queued;         /* waiting sequences, 1 .. 65536 */
    uint32_t page_tokens;        /* tokens in a page, 1 .. 2^16 */
    bool chunked_prefill;        /* off: a prompt runs in one piece */
    uint32_t prefill_chunk_size; /* most rows of a prompt in a step; 0 = max_step_tokens */
    bool decode_first;           /* off: prompts take their rows before decodes */
    uint32_t prefill_max_batch;  /* most sequences of a step that prefill; 0 = any number */
    uint32_t prefill_max_tokens; /* most rows of a step that prefill; 0 = what the step has left. A
                                    prompt in one piece may exceed it, alone */
    uint32_t max_active;         /* sequences begun and not finished; 0 = max_seqs */
    rose_admission admission;
    uint32_t lookahead;        /* PACK: waiting sequences looked at, 1 .. 4096; 0 = 64 */
    uint32_t force_fifo_every; /* PACK: 1 .. ; 0 = 8 */
    uint32_t priority_age;     /* what one priority is worth, in the unit of arrival */
    uint64_t itl_goal_ns;      /* a step with decodes should not take longer; 0 = no goal */
    bool prefix_cache;
    uint32_t prefix_max_pages; /* most idle pages of the index; 0 = the whole pool */
    uint64_t hash_key[2];      /* of the index: random, without effect on any plan */
    rose_sched_ids_fn *ids;    /* needed with prefix_cache; called in next and finish */
    void *ids_user;
} rose_sched_opts;

typedef struct rose_sched_request {
    uint32_t n_prompt, max_tokens;
    int32_t priority; /* lower is sooner; taken as -1000 .. 1000 */
    uint64_t arrival; /* any clock that does not run backwards, below 2^62; milliseconds in the
                         engine */
    rose_kv_salt salt;
    bool no_lookup;   /* compute the whole prompt, whatever is cached */
    bool same_prompt; /* as the sequence submitted before: only the estimates use it */
    uint64_t due_ns;  /* when its first token is due, on the clock of rose_sched_late; 0 = never */
} rose_sched_request;

/* One sequence's part of a step. */
typedef struct rose_sched_item {
    uint32_t seq;    /* its handle */
    uint32_t pos;    /* first position to compute */
    uint32_t n;      /* rows: positions pos .. pos + n - 1 */
    bool sample;     /* sample the token at position pos + n from the last row */
    uint64_t ticket; /* of its page table, 1, 2, ...: unique over the scheduler's life, so that
                        (ticket, n_pages) tells whether a copy of the table is still good */
    const uint32_t *pages; /* [n_pages] in order of position; borrowed until the next call */
    uint32_t n_pages;
} rose_sched_item;

typedef struct rose_sched_plan {
    uint32_t n_items, n_tokens, n_outputs;
    uint32_t n_admitted, n_preempted;
    uint32_t n_prefill_seqs, n_prefill_tokens; /* of n_items and n_tokens */
    const rose_sched_item *items;              /* [n_items], each sequence once */
    const uint32_t *admitted; /* [n_admitted] handles that began, in order; not those that come
                                 back after a preemption */
} rose_sched_plan;

/* Counters since creation. */
typedef struct rose_sched_stats {
    uint64_t prefix_queries, prefix_hits; /* tokens of admitted prompts; of these, cached */
    uint64_t evictions;                   /* pages */
    uint64_t preemptions;
    uint64_t recomputed_tokens; /* rows that had been computed before a preemption */
} rose_sched_stats;

typedef struct rose_sched rose_sched;

/* pages: borrowed, outlives the scheduler. Errors: INVAL (an option is out of range), NOMEM. */
rose_status rose_sched_create(rose_sched **out, const rose_sched_opts *o, rose_kv_pages *pages,
                              rose_err *err);
void rose_sched_destroy(rose_sched *s); /* accepts NULL; drops all pages */

/* Could such a sequence ever run? Pure: any thread. Errors: INVAL and why. n_prompt >= 1,
 * max_tokens >= 1, their sum at most max_model_len. */
rose_status rose_sched_check(const rose_sched_opts *o, uint32_t total_pages, uint32_t n_prompt,
                             uint32_t max_tokens, rose_err *err);

/* Event: a sequence arrives and waits. *seq is its handle, 0 .. max_seqs + max_queued - 1, until it
 * is finished. Errors: INVAL (as check, without text), FULL (max_queued wait to begin). */
rose_status rose_sched_submit(rose_sched *s, const rose_sched_request *r, uint32_t *seq);

/* Event: the sequence is over (ended or cancelled), in whatever state; its handle, place and pages
 * are free at once. The ids of what it computed are still asked for. */
void rose_sched_finish(rose_sched *s, uint32_t seq);

/* Event: of the sequence's tokens only the first n_ids have an id, and will have (n_ids >= what was
 * known before the last plan). For a plan that ran ahead of what the step before it found: before
 * finish, so that nothing computed from an id that there is not enters the index. */
void rose_sched_truncate(rose_sched *s, uint32_t seq, uint32_t n_ids);

/* Plan the next step and count it as done. False: nothing to compute (*out has no items), call
 * again after an event. Before the call all ids sampled by the plan before the last one are known
 * (a sampled id is asked for one step after the row that computed it). A sequence whose last token
 * was sampled gives its pages back and is never planned again, but counts as running until it is
 * finished. Token path: O(items + admissions), no allocation. */
bool rose_sched_next(rose_sched *s, rose_sched_plan *out);

/* Event: a step with so many decodes and rows of prompts took ns, from the end of the step before
 * or the begin of this one, whichever was later. O(1). */
void rose_sched_observe(rose_sched *s, uint32_t n_decode, uint32_t n_prefill, uint64_t ns);

/* Waiting sequences that can no longer have their first token when it is due, as far as the cost of
 * steps, the queue before them and the length of outputs tell: handles to out[0..n), n <= cap, for
 * the caller to finish. Not those that have begun, and not one that could begin at once while
 * nothing runs: so estimates that went wrong are corrected by what runs. Looks at the first
 * `lookahead` and, in turn, at the others; 0 means none at this moment. */
uint32_t rose_sched_late(rose_sched *s, uint64_t now_ns, uint32_t *out, uint32_t cap);

/* What whoever comes now has before him, as numbers that another thread may have. */
typedef struct rose_sched_load {
    bool known;         /* a step was observed; all else is 0 before (miss: 1) */
    uint32_t n_running; /* sequences */
    uint32_t n_free;    /* that could begin now */
    double busy_ns;     /* until the prompts that have begun are computed */
    double base_ns;     /* a step without prompts */
    double prompt_ns;   /* more for each row of a prompt */
    double row_ns;      /* a row of a long prompt, its part of the steps included */
    double place_ns;    /* from one end of a sequence to the next, once n_free is used up */
    double miss;        /* part of a prompt that is not cached, lately */
} rose_sched_load;
rose_sched_load rose_sched_get_load(const rose_sched *s);

/* Until a prompt of `own` rows has its first token behind n_ahead waiting sequences of rows_ahead
 * rows together (what is cached not counted); own 0: until they have all begun. Pure. */
double rose_sched_wait_ns(const rose_sched_load *l, uint32_t n_ahead, double rows_ahead,
                          double own);

/* Prompt tokens that the sequence found in the index when it began; 0 before. */
uint32_t rose_sched_cached_tokens(const rose_sched *s, uint32_t seq);

uint32_t rose_sched_n_running(const rose_sched *s);
uint32_t rose_sched_n_waiting(const rose_sched *s); /* preempted ones among them */
uint32_t rose_sched_n_preempted(const rose_sched *s);
const rose_kv_prefix *rose_sched_prefix(const rose_sched *s);
rose_sched_stats rose_sched_get_stats(const rose_sched *s);

#endif
