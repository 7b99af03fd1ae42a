/* engine/batch_internal.h - builds the arrays that the backend takes from the scheduler's plan, and
 * records which request each output of a step belongs to.
 *
 * The page tables are the scheduler's own, which change only after step() has returned. One builder
 * serves two steps in flight. Until step() returns, the backend uses all arrays. After that it uses
 * only sampling rules (penalties, biases, bans, masks). Two steps in a row have rules in different
 * arrays. A request with a guide is in no second step before the first is collected, so its rules
 * do not change meanwhile; the flight keeps it alive. A step with rules of another request is
 * collected before the next one is built. Threads: the engine thread. Memory: allocates in _create
 * only. */
#ifndef ROSE_ENGINE_BATCH_INTERNAL_H
#define ROSE_ENGINE_BATCH_INTERNAL_H

#include "engine/request_internal.h"
#include "sched/sched.h"

/* Outputs that are samples, and the request that they are for. When they are known, the handle may
 * belong to another request; the number never does. */
typedef struct rose_flight_sample {
    uint32_t seq, out;  /* the scheduler's handle, and the index of the first among the step's
                         * outputs */
    uint32_t n;         /* outputs: 1, or one more than guessed ids */
    uint64_t number;    /* of the request */
    rose_request *held; /* a request with a guide, one reference; NULL = another request */
} rose_flight_sample;

/* When the parts of a step began; rose_now_ns. note_step of engine.c makes all figures from them.
 */
typedef struct rose_step_times {
    uint64_t idle; /* the backend had nothing to do from here, or was given the step at once */
    uint64_t plan, batch, step; /* planned; arrays built; given to the backend */
    uint64_t before;            /* the step before was collected; 0 = not since the engine slept */
    uint64_t collected;         /* its results were there */
    uint64_t delivered;         /* each request has its result */
} rose_step_times;

/* A step that was enqueued and not yet collected. */
typedef struct rose_flight {
    uint64_t ticket;      /* the backend's */
    uint64_t number;      /* as the batch builder counts steps */
    rose_sched_plan plan; /* its counts; the arrays are gone */
    uint32_t n_outputs, n_samples;
    rose_step_times at;
    rose_flight_sample *samples; /* [max_seqs] owned */
} rose_flight;

bool rose_flight_create(rose_flight *f, uint32_t max_seqs); /* false: out of memory */
void rose_flight_destroy(rose_flight *f);
void rose_flight_drop(rose_flight *f); /* forgets the samples; may free requests */

typedef struct rose_batch_builder {
    rose_batch batch; /* what the backend gets; its pointers are the arrays below */
    uint32_t max_seqs, max_tokens;
    /* owned */
    uint32_t *tokens;         /* [max_tokens] */
    rose_batch_seq *seqs;     /* [max_seqs] */
    rose_batch_out *outs;     /* [max_tokens] */
    rose_output_rules *rules; /* [2][max_tokens] of outputs that have any, by step */
    rose_flight *flight;      /* of the step that is being built */
    uint64_t n_steps;         /* with it */
    uint32_t n_waiting; /* requests that cannot be in the next step before this one is collected, or
                         * should not be: those with a guide or a guess */
    bool bound; /* a request without a guide has rules, or a request is pooled: collect this step
                   before the next is built */
} rose_batch_builder;

/* False: out of memory; call destroy all the same. */
bool rose_batch_create(rose_batch_builder *b, uint32_t max_seqs, uint32_t max_tokens);
void rose_batch_destroy(rose_batch_builder *b);

/* Begins a step, whose samples are recorded in f. */
void rose_batch_reset(rose_batch_builder *b, rose_flight *f);
/* Copies the ids of positions pos .. pos + n - 1, all known: first those of the prompt, then
 * those generated. */
void rose_batch_copy_ids(uint32_t *dst, const rose_request *r, uint32_t pos, uint32_t n);
/* Adds the next sequence of the step. If the previous step samples an id for r that is not known
 * yet, the id becomes a reference to that step's output. Rows of a guess have the ids of r->guess,
 * which also stand in r->events. Changes r->rules, r->out and r->n_pooled only. */
void rose_batch_add(rose_batch_builder *b, const rose_sched_item *it, rose_request *r);

#endif
