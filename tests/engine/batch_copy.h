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
    uint32_t *tokens, *pages;
    rose_batch_seq *seqs;
    rose_batch_out *outs;
    uint32_t stride, n_pools;
} batch_copy;

static inline void batch_copy_create(batch_copy *c, const rose_memory_plan *p)
{
    size_t seqs = p->max_seqs, rows = p->max_step_tokens;
    memset(c, 0, sizeof *c);
    c->stride = (p->max_model_len - 1) / ROSE_KV_PAGE_TOKENS + 1;
    c->tokens = calloc(rows, sizeof *c->tokens);
    c->n_pools = p->n_pools;
    c->pages = calloc(seqs * c->n_pools * c->stride, sizeof *c->pages);
    c->seqs = calloc(seqs, sizeof *c->seqs);
    c->outs = calloc(rows, sizeof *c->outs);
}

static inline void batch_copy_destroy(batch_copy *c)
{
    free(c->tokens);
    free(c->pages);
    free(c->seqs);
    free(c->outs);
    memset(c, 0, sizeof *c);
}

/* b is within the plan. */
static inline void batch_copy_take(batch_copy *c, const rose_batch *b)
{
    c->b = *b;
    memcpy(c->tokens, b->tokens, b->n_tokens * sizeof *c->tokens);
    memcpy(c->seqs, b->seqs, b->n_seqs * sizeof *c->seqs);
    if (b->n_outputs > 0) memcpy(c->outs, b->outs, b->n_outputs * sizeof *c->outs);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        rose_batch_seq *q = &c->seqs[i];
        const uint32_t n = (q->pos + q->n - 1) / ROSE_KV_PAGE_TOKENS + 1;
        for (uint32_t k = 0; k < c->n_pools; k++) {
            uint32_t *to = c->pages + ((size_t)i * c->n_pools + k) * c->stride;
            q->table[k] = memcpy(to, q->table[k], n * sizeof *to);
        }
    }
    c->b.tokens = c->tokens;
    c->b.seqs = c->seqs;
    c->b.outs = c->outs;
}

#endif
