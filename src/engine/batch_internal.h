/* engine/batch_internal.h - the backend's structure of arrays, filled from the scheduler's plan.
 * Page tables are kept from step to step: a row of the table that still belongs to the same
 * admission gets only the pages it lacks, so a decode step copies no table at all.
 * Threads: the engine thread.  Memory: allocates in _create only. */
#ifndef ROSE_ENGINE_BATCH_INTERNAL_H
#define ROSE_ENGINE_BATCH_INTERNAL_H

#include "engine/request_internal.h"
#include "sched/sched.h"

typedef struct rose_batch_builder {
    rose_batch batch; /* what the backend gets; its pointers are the arrays below */
    uint32_t max_seqs, max_tokens;
    /* owned */
    uint32_t *tokens;                    /* [max_tokens] */
    uint32_t *seq_first;                 /* [max_seqs + 1] */
    uint32_t *seq_pos;                   /* [max_seqs] */
    uint32_t *pages;                     /* [max_seqs][stride] */
    uint32_t *out_row;                   /* [max_tokens] */
    uint32_t *out_pos;                   /* [max_tokens] */
    rose_sampling *params;               /* [max_tokens] */
    rose_output_rules *rules;            /* [max_tokens] of outputs that have any */
    const rose_output_rules **out_rules; /* [max_tokens] into rules, or NULL */
    uint32_t *sample_out; /* [max_seqs] which output is the sample of the sequence in that row */
    uint64_t *row_ticket; /* [max_seqs] whose table the row holds */
    uint32_t *row_pages;  /* [max_seqs] how many of its pages */
} rose_batch_builder;

/* stride: pages of the longest sequence. False: out of memory (destroy it all the same). */
bool rose_batch_create(rose_batch_builder *b, uint32_t max_seqs, uint32_t max_tokens,
                       uint32_t stride);
void rose_batch_destroy(rose_batch_builder *b);

void rose_batch_reset(rose_batch_builder *b);
/* Ids of positions pos .. pos + n - 1, all known: of the prompt, then of what was generated. */
void rose_batch_copy_ids(uint32_t *dst, const rose_request *r, uint32_t pos, uint32_t n);
/* The next sequence of the step. Changes r->rules only. */
void rose_batch_add(rose_batch_builder *b, const rose_sched_item *it, const rose_request *r);

#endif
