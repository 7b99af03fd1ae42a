/* sched/sched.h - decides which sequence computes what in the next step. It is a pure state
 * machine: events go in (submit, finish), a plan comes out (next). No clock, no thread, no
 * randomness: the same events give the same plans, so every policy can be simulated without a
 * model.
 *
 * A sequence is three counts. The first, n_done, counts tokens whose K and V are in its pages. The
 * second, n_known, counts tokens whose id is known or being sampled. The third, n_max, is its
 * length at the end. A step computes [n_done, n_done + n); when that reaches n_known, it also
 * samples one more token. Prefill, decode, a start after a cached prefix, and recomputation after a
 * preemption differ in these counts only.
 *
 * Order. Every sequence has a key, its arrival plus priority * age; lower keys go first. Because
 * the arrival counts, a low priority is worth a fixed time and no sequence waits for ever.
 *
 * Rows: first decodes, one each (decode_first off: last); then pieces of prompts; then admission.
 *
 * Admission: fifo takes waiting sequences in order until one does not fit. The policy pack looks at
 * the first `lookahead` and takes shorter ones first, so that they pass one that does not fit.
 * After force_fifo_every - 1 such rounds in a row, no sequence passes until that one is in.
 *
 * Guesses (speculative decoding): rose_sched_guess names ids that may follow a decoding sequence.
 * Its row of the next step is then followed by rows of these ids, each with an output, as far as
 * there are rows and pages besides those that others need. The counts move as without a guess, and
 * rose_sched_accept adds the guessed ids that were right. Until that call the sequence is in no
 * plan. So pages of wrong ids never enter the index, and a preemption forgets only the guess.
 *
 * Pages: there are one or more pools, and a sequence has a page table for each. In a pool with a
 * window it drops the pages that its next row does not read. Admission takes the pages of a prompt,
 * as many as a sequence ever holds of that pool; the others are taken when they are needed, for a
 * long piece of a prompt only as far as there are some. When none is left, idle pages of the prefix
 * index are evicted first. Then the running sequence with the highest key is preempted. It gives
 * its pages back and waits under its old key, to compute its prompt and its sampled tokens again.
 * The sequence with the lowest key is never preempted. A page that is given back may have a new
 * owner in the next plan, while a step that reads it is in flight: steps run in order.
 *
 * Prefixes: full pages enter the index (kv/prefix.h). Pages of a prompt enter one step after they
 * are computed; pages of generated text enter within about page_tokens steps, or at the end. An
 * admitted sequence looks up its prompt in the index and starts after the longest path that still
 * has all pages that its next row reads. At least one token is left to compute. If another sequence
 * is just computing the next page of a prompt, the prompt waits for that page. So n choices of one
 * prompt, or many requests with one system prompt, compute the shared part once.
 *
 * Goals: the cost of past steps (rose_sched_observe) predicts the cost of the next one. With
 * itl_goal_ns set, prompt rows and admissions are limited so that a step with decodes stays within
 * the goal. With busy_step_tokens set, a step may have more rows while no sequence decodes, or as
 * far as the goal allows. The function rose_sched_late names waiting sequences that cannot have
 * their first token by their due time. The clock is the caller's.
 *
 * Threads: owned by the engine thread. Memory: allocates in _create only. */
#ifndef ROSE_SCHED_SCHED_H
#define ROSE_SCHED_SCHED_H

#include <stdbool.h>

#include "kv/prefix.h"

typedef enum rose_admission { ROSE_ADMISSION_FIFO, ROSE_ADMISSION_PACK } rose_admission;

/* Writes the ids of positions [pos, pos + n) of a sequence, all of them known, to out. */
typedef void rose_sched_ids_fn(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out);

/* The first position whose page a sequence must hold before a row at `pos` is computed. Does not
 * fall when pos rises; window 0: 0. */
typedef uint32_t rose_sched_keeps_fn(uint32_t window, uint32_t pos);

typedef struct rose_sched_opts {
    uint32_t n_pools; /* 1 .. ROSE_KV_MAX_POOLS; one without window comes first */
    rose_kv_pages *pools[ROSE_KV_MAX_POOLS]; /* borrowed, outlive the scheduler */
    uint32_t windows[ROSE_KV_MAX_POOLS];     /* of the pools; 0 = none */
    rose_sched_keeps_fn *keeps_from;
    uint32_t max_seqs;           /* running sequences, 1 .. 4096 */
    uint32_t max_step_tokens;    /* rows of a step, >= max_seqs */
    uint32_t busy_step_tokens;   /* 0 = max_step_tokens always. Else a step has more rows than this
                                    only as far as its predicted time stays within itl_goal_ns if
                                    sequences decode, 60 ms if none does; max_seqs ..
                                    max_step_tokens, not used without chunked_prefill */
    uint32_t max_model_len;      /* tokens of a sequence, prompt and output, 2 .. 2^28 */
    uint32_t max_queued;         /* waiting sequences, 1 .. 65536 */
    uint32_t page_tokens;        /* tokens in a page, 1 .. 2^16 */
    bool chunked_prefill;        /* off: a prompt runs in one piece */
    uint32_t prefill_chunk_size; /* at most this many rows of one prompt in a step; 0 =
                                    max_step_tokens */
    bool decode_first;           /* off: prompts take their rows before decodes */
    uint32_t prefill_max_batch;  /* at most this many sequences that prefill in one step; 0 = any
                                    number */
    uint32_t prefill_max_tokens; /* at most this many prompt rows in a step; 0 = no limit. A
                                  * prompt that must be one piece may exceed this limit if no
                                  * other prompt is in the step */
    uint32_t max_active; /* at most this many sequences begun and not finished; 0 = max_seqs */
    rose_admission admission;
    uint32_t lookahead;        /* PACK: how many of the first waiting sequences are sorted by
                                * length, 1 .. 4096; 0 = 64 */
    uint32_t force_fifo_every; /* PACK: 1 .. ; 0 = 8 */
    uint32_t priority_age;     /* what one step of priority is worth, in the unit of arrival */
    uint64_t itl_goal_ns;      /* longest time of a step with decodes; 0 = no goal */
    bool prefix_cache;
    uint32_t prefix_max_pages; /* at most this many idle pages of the index; 0 = the whole pool */
    uint64_t hash_key[2];      /* random key of the prefix index's hash function; it has no
                                * effect on any plan */
    rose_sched_ids_fn *ids;    /* callback that reads token ids; needed with prefix_cache; called
                                * in next and finish */
    void *ids_user;
    const rose_kv_watch *watch; /* NULL, or who follows the pages of the index; copied */
} rose_sched_opts;

typedef struct rose_sched_request {
    uint32_t n_prompt, max_tokens;
    int32_t priority; /* lower is sooner; taken as -1000 .. 1000 */
    uint64_t arrival; /* time of arrival on any clock that does not run backwards, below 2^62; the
                         engine uses milliseconds */
    rose_kv_salt salt;
    bool guided;      /* true: each sample needs a rose_sched_allow of its own before it */
    bool no_lookup;   /* true: compute the whole prompt, whatever part of it is cached */
    bool same_prompt; /* the prompt is that of the sequence submitted before; only estimates use
                         this */
    uint64_t due_ns;  /* when its first token is due, on the clock of rose_sched_late; 0 = never */
} rose_sched_request;

typedef struct rose_kv_span {
    uint32_t from, end;
} rose_kv_span;

/* One sequence's part of a step. */
typedef struct rose_sched_item {
    uint32_t seq;    /* its handle */
    uint32_t pos;    /* first position to compute */
    uint32_t n;      /* rows: positions pos .. pos + n - 1 */
    uint32_t n_outs; /* the last rows, as many, each sample the token after them; with a guess of
                      * g ids 1 + g, else 0 or 1 */
    /* Page tables, one a pool, in order of position; borrowed until the next call. Pages at places
     * from .. end - 1 are the sequence's; entries before them are any pages. */
    const uint32_t *table[ROSE_KV_MAX_POOLS];
    const rose_kv_span *own; /* [n_pools], borrowed too */
} rose_sched_item;

typedef struct rose_sched_plan {
    uint32_t n_items, n_tokens, n_outputs;
    uint32_t n_admitted, n_preempted;
    uint32_t n_prefill_seqs, n_prefill_tokens; /* of n_items and n_tokens */
    const rose_sched_item *items;              /* [n_items], each sequence once */
    const uint32_t *admitted; /* [n_admitted] handles that began, in order, without those that
                                 return after a preemption */
} rose_sched_plan;

/* Counters since creation. */
typedef struct rose_sched_stats {
    uint64_t prefix_queries,
        prefix_hits;    /* tokens of admitted prompts; those of them found in the cache */
    uint64_t evictions; /* pages */
    uint64_t preemptions;
    uint64_t recomputed_tokens; /* rows computed again because of a preemption */
} rose_sched_stats;

typedef struct rose_sched rose_sched;

/* Errors: INVAL (an option is out of range, or a pool with a window has too few pages for one
 * sequence), NOMEM. */
rose_status rose_sched_create(rose_sched **out, const rose_sched_opts *o, rose_err *err);
void rose_sched_destroy(rose_sched *s); /* accepts NULL; drops all pages */

/* Tells whether such a sequence could ever run. Pure: any thread. Errors: INVAL and why.
 * n_prompt >= 1, max_tokens >= 1, their sum at most max_model_len. */
rose_status rose_sched_check(const rose_sched_opts *o, uint32_t n_prompt, uint32_t max_tokens,
                             rose_err *err);

/* Event: a sequence arrives and waits. *seq is its handle, 0 .. max_seqs + max_queued - 1, until
 * it is finished. Errors: INVAL (as rose_sched_check, without text), FULL (max_queued sequences
 * wait already). */
rose_status rose_sched_submit(rose_sched *s, const rose_sched_request *r, uint32_t *seq);

/* Event: the sequence has ended or was cancelled, in any state. Its handle, lane and pages are
 * free at once. The scheduler still asks for the ids of the tokens that it computed. */
void rose_sched_finish(rose_sched *s, uint32_t seq);

/* Event: only the first n_ids tokens of the sequence have an id, or ever will (n_ids >= the
 * count known before the last plan). Needed when a step was planned before the results of the
 * step before it were known. Call it before finish, so that nothing computed from a missing id
 * enters the index. */
void rose_sched_truncate(rose_sched *s, uint32_t seq, uint32_t n_ids);

/* Event: the sequence, which is guided, may sample its next token. Until then it computes only
 * pieces of its prompt that end without a sample. In the queue other sequences may pass it. */
void rose_sched_allow(rose_sched *s, uint32_t seq);

/* Event: the ids of the next n tokens of the sequence were guessed. Call it only when all its
 * tokens are known, it needs no rose_sched_allow, and n is below the number of tokens that it may
 * still have. The guess counts until the next row of the sequence, another guess, or a preemption.
 * It has no effect unless the sequence decodes. */
void rose_sched_guess(rose_sched *s, uint32_t seq, uint32_t n);

/* Event: the results of an item with a guess are there, and the first n ids of the guess were
 * right. Call it before finish, truncate and allow. */
void rose_sched_accept(rose_sched *s, uint32_t seq, uint32_t n);

/* One more guessed id gives more tokens a second only if its chance of being right is above this.
 * It follows from the rows of the next step and the measured cost of past steps. 0 while no cost is
 * known. */
double rose_sched_least_chance(const rose_sched *s);

/* Plans the next step and counts it as done. False: nothing to compute (*out has no items), call
 * again after an event.
 *
 * Before the call, the ids of all samples up to the plan before the last must be known. The
 * scheduler asks for an id one step after the row that computed it. A sequence whose last token
 * was sampled gives its pages back and is never planned again, but counts as running until it is
 * finished. Token path: O(items + admissions), no allocation. */
bool rose_sched_next(rose_sched *s, rose_sched_plan *out);

/* Event: a step with these numbers of decodes and prompt rows took ns. The time counts from the
 * end of the previous step or the start of this one, whichever was later. O(1). */
void rose_sched_observe(rose_sched *s, uint32_t n_decode, uint32_t n_prefill, uint64_t ns);

/* Finds waiting sequences that can no longer have their first token when it is due. The estimate
 * uses the cost of steps, the queue before a sequence, and the length of outputs. Handles go to
 * out[0..n), n <= cap, and the caller finishes them.
 *
 * Sequences that have begun are not named. Nor is one that could begin at once while nothing
 * runs: so a wrong estimate is corrected by what then runs. Looks at the first `lookahead`
 * sequences and, in turn, at the others; 0 means none at this moment. */
uint32_t rose_sched_late(rose_sched *s, uint64_t now_ns, uint32_t *out, uint32_t cap);

/* The load that a new request would meet, as plain numbers that another thread may read. */
typedef struct rose_sched_load {
    bool known;         /* a step was observed; if not, all other fields are 0 (miss: 1) */
    uint32_t n_running; /* sequences */
    uint32_t n_free;    /* that could begin now */
    double busy_ns;     /* time until the prompts that have begun are computed */
    double base_ns;     /* a step without prompts */
    double prompt_ns;   /* more for each row of a prompt */
    double row_ns;      /* cost of one row of a long prompt, with its share of the steps */
    double place_ns;    /* time from one end of a sequence to the next, once n_free is used up */
    double miss;        /* the recent share of prompt tokens that was not cached */
} rose_sched_load;
rose_sched_load rose_sched_get_load(const rose_sched *s);

/* Estimates the time until a prompt of `own` rows has its first token. n_ahead sequences, of
 * rows_ahead uncached rows together, wait before it. own 0: the time until all of those have
 * begun. Pure. */
double rose_sched_wait_ns(const rose_sched_load *l, uint32_t n_ahead, double rows_ahead,
                          double own);

/* Prompt tokens that the sequence found in the index when it began; 0 before it begins. */
uint32_t rose_sched_cached_tokens(const rose_sched *s, uint32_t seq);

uint32_t rose_sched_n_running(const rose_sched *s);
uint32_t rose_sched_n_waiting(const rose_sched *s); /* preempted ones among them */
uint32_t rose_sched_n_preempted(const rose_sched *s);
const rose_kv_prefix *rose_sched_prefix(const rose_sched *s);
void rose_sched_catch_up(rose_sched *s, uint32_t n); /* rose_kv_prefix_catch_up */
rose_sched_stats rose_sched_get_stats(const rose_sched *s);

#endif
