/* sched/sched.h - which sequence computes what in the next step. A pure state machine: events in
 * (submit, finish), a plan out (next). No clock, no thread, no token ids, no randomness: the same
 * events give the same plans, so every policy can be simulated without a model.
 *
 * A sequence is three counts: n_done tokens whose K and V are in its pages, n_known tokens whose id
 * is known or being sampled, n_max where it ends. A step computes [n_done, n_done + n); when that
 * reaches n_known it also samples one more. Prefill, decode and (later) recomputing after a
 * preemption or starting behind a cached prefix differ in these counts only.
 *
 * Policy: running decodes first, one row each; then prefill pieces, first come first served; then
 * admission, first come first served, while rows, places and pages are left.
 * Pages for the whole of a sequence are taken at its admission, so nothing runs out midway. (Pages
 * on demand with preemption will replace this; it changes admit() in sched.c and nothing here.)
 *
 * Threads: owned by the engine thread.  Memory: allocates in _create only. */
#ifndef ROSE_SCHED_SCHED_H
#define ROSE_SCHED_SCHED_H

#include <stdbool.h>

#include "kv/pages.h"

typedef struct rose_sched_opts {
    uint32_t max_seqs;           /* running sequences, 1 .. 4096 */
    uint32_t max_step_tokens;    /* rows of a step, >= max_seqs */
    uint32_t max_model_len;      /* tokens of a sequence, prompt and output, 2 .. 2^28 */
    uint32_t max_queued;         /* waiting sequences, 1 .. 65536 */
    uint32_t page_tokens;        /* tokens in a page, 1 .. 2^16 */
    bool chunked_prefill;        /* off: a prompt runs in one piece */
    uint32_t prefill_chunk_size; /* most rows of a prompt in a step; 0 = max_step_tokens */
} rose_sched_opts;

/* One sequence's part of a step. */
typedef struct rose_sched_item {
    uint32_t seq; /* its handle */
    uint32_t pos; /* first position to compute */
    uint32_t n;   /* rows: positions pos .. pos + n - 1 */
    bool sample;  /* sample the token at position pos + n from the last row */
    uint64_t
        ticket; /* number of its admission, 1, 2, ...: unique over the scheduler's life, so that
                   (ticket, n_pages) tells whether a copy of its page table is still good */
    const uint32_t *pages; /* [n_pages] in order of position; borrowed until the next call */
    uint32_t n_pages;
} rose_sched_item;

typedef struct rose_sched_plan {
    uint32_t n_items, n_tokens, n_outputs;
    uint32_t n_admitted;
    const rose_sched_item *items; /* [n_items], each sequence once; decodes first */
    const uint32_t *admitted;     /* [n_admitted] handles, in order of admission */
} rose_sched_plan;

typedef struct rose_sched rose_sched;

/* pages: borrowed, outlives the scheduler. Errors: INVAL (an option is out of range), NOMEM. */
rose_status rose_sched_create(rose_sched **out, const rose_sched_opts *o, rose_kv_pages *pages,
                              rose_err *err);
void rose_sched_destroy(rose_sched *s); /* accepts NULL; drops the pages of what still runs */

/* Could such a sequence ever run? Pure: any thread. Errors: INVAL and why. n_prompt >= 1,
 * max_tokens >= 1, their sum at most max_model_len. */
rose_status rose_sched_check(const rose_sched_opts *o, uint32_t total_pages, uint32_t n_prompt,
                             uint32_t max_tokens, rose_err *err);

/* Event: a sequence arrives and waits. *seq is its handle, 0 .. max_seqs + max_queued - 1, until it
 * is finished. Errors: INVAL (as check, without text), FULL (max_queued wait). */
rose_status rose_sched_submit(rose_sched *s, uint32_t n_prompt, uint32_t max_tokens, uint32_t *seq);

/* Event: the sequence is over (ended or cancelled), in whatever state; its handle, place and pages
 * are free at once. */
void rose_sched_finish(rose_sched *s, uint32_t seq);

/* Plan the next step and count it as done. False: nothing to compute (*out has no items), call
 * again after an event. A sequence whose last token was sampled is never planned again, but keeps
 * its place until it is finished. Token path: O(items + admissions), no allocation. */
bool rose_sched_next(rose_sched *s, rose_sched_plan *out);

uint32_t rose_sched_n_running(const rose_sched *s);
uint32_t rose_sched_n_waiting(const rose_sched *s);

#endif
