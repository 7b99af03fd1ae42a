/* A copy of a batch, for backends of tests that compute it later than step(): what step() borrows
 * is copied, what is borrowed until collect() is not. Room for the largest batch is made at open.
 */
#ifndef TESTS_ENGINE_BATCH_COPY_H
#define TESTS_ENGINE_BATCH_COPY_H

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

typedef struct batch_copy {
    rose_batch b;
    uint32_t *tokens, *seq_first, *seq_pos, *pages, *out_row, *out_pos;
    rose_sampling *params;
    const rose_output_rules **rules;
    uint32_t stride;
} batch_copy;

static inline void batch_copy_create(batch_copy *c, const rose_memory_plan *p)
{
    size_t seqs = p->max_seqs, rows = p->max_step_tokens;
    memset(c, 0, sizeof *c);
    c->stride = (p->max_model_len - 1) / ROSE_KV_PAGE_TOKENS + 1;
    c->tokens = calloc(rows, sizeof *c->tokens);
    c->seq_first = calloc(seqs + 1, sizeof *c->seq_first);
    c->seq_pos = calloc(seqs, sizeof *c->seq_pos);
    c->pages = calloc(seqs * c->stride, sizeof *c->pages);
    c->out_row = calloc(rows, sizeof *c->out_row);
    c->out_pos = calloc(rows, sizeof *c->out_pos);
    c->params = calloc(rows, sizeof *c->params);
    c->rules = calloc(rows, sizeof *c->rules);
}

static inline void batch_copy_destroy(batch_copy *c)
{
    free(c->tokens);
    free(c->seq_first);
    free(c->seq_pos);
    free(c->pages);
    free(c->out_row);
    free(c->out_pos);
    free(c->params);
    free(c->rules);
    memset(c, 0, sizeof *c);
}

/* b is within the plan. */
static inline void batch_copy_take(batch_copy *c, const rose_batch *b)
{
    c->b = *b;
    memcpy(c->tokens, b->tokens, b->n_tokens * sizeof *c->tokens);
    memcpy(c->seq_first, b->seq_first, (b->n_seqs + 1) * sizeof *c->seq_first);
    memcpy(c->seq_pos, b->seq_pos, b->n_seqs * sizeof *c->seq_pos);
    memcpy(c->pages, b->pages, (size_t)b->n_seqs * b->page_stride * sizeof *c->pages);
    memcpy(c->out_row, b->out_row, b->n_outputs * sizeof *c->out_row);
    memcpy(c->out_pos, b->out_pos, b->n_outputs * sizeof *c->out_pos);
    memcpy(c->params, b->out_params, b->n_outputs * sizeof *c->params);
    if (b->out_rules != NULL) memcpy(c->rules, b->out_rules, b->n_outputs * sizeof *c->rules);
    c->b.tokens = c->tokens;
    c->b.seq_first = c->seq_first;
    c->b.seq_pos = c->seq_pos;
    c->b.pages = c->pages;
    c->b.out_row = c->out_row;
    c->b.out_pos = c->out_pos;
    c->b.out_params = c->params;
    c->b.out_rules = b->out_rules != NULL ? c->rules : NULL;
}

#endif
