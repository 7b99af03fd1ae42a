/* backend/cuda/warm.c - the warm-up: a few steps before the first real one.
 *
 * The CUDA runtime loads a kernel when it is first launched. This takes host and device memory and
 * up to a millisecond. The kernels of captured graphs are already loaded; these steps load the
 * kernels of prompts, reports and rules. The steps write K and V of token 0 into the first pages,
 * which no sequence owns yet. The content of a page that is not in use has no effect
 * (docs/NUMERICS.md). */
#include <stdlib.h>
#include <string.h>

#include "backend/checks.h"
#include "backend/cuda/cuda_internal.h"

typedef struct warm {
    rose_cuda *c;
    const rose_backend_ops *ops;
    uint32_t *zeros;      /* [max_step_tokens] */
    uint32_t *pages;      /* [n_pages] 0, 1, ...: the table of every pool */
    uint32_t n_pages;     /* of the smallest pool */
    rose_batch_seq *seqs; /* [max_seqs] */
    float *sum;           /* [d_model] */
    rose_err *err;
} warm;

/* The last row asks for rules, for a report and for its state, so that every kernel after the last
 * norm runs. */
static rose_status run(warm *w, rose_batch *b)
{
    static const uint32_t banned[] = {0};
    rose_logprob report[2];
    const rose_output_rules rules[2] = {
        {.score_id = ROSE_TOKEN_NONE, .report = report, .n_top = 1},
        {.score_id = ROSE_TOKEN_NONE, .banned = banned, .n_banned = 1},
    };
    const uint32_t last = b->n_tokens - 1;
    const rose_batch_out outs[3] = {
        {.row = last, .params = {.temperature = 1, .top_p = 0.9f}, .rules = &rules[0]},
        {.row = last, .params = {.temperature = 1, .top_p = 1}, .rules = &rules[1]},
        {.row = last, .params = {.top_p = 1}, .sum = w->sum}};
    rose_step_result result;
    uint64_t ticket;

    b->n_outputs = b->n_tokens < 3 ? b->n_tokens : 3;
    b->outs = outs;
    rose_status st = w->ops->step(w->c, b, &ticket, w->err);
    return st == ROSE_OK ? w->ops->collect(w->c, ticket, &result, w->err) : st;
}

/* Run a warm-up step of about n_rows rows, in as few sequences as possible. */
static rose_status warm_rows(warm *w, uint32_t n_rows)
{
    const rose_memory_plan *p = &w->c->plan;
    const uint32_t context = (p->max_model_len - 1) / ROSE_KV_PAGE_TOKENS + 1;
    const uint32_t stride = context < w->n_pages ? context : w->n_pages;
    const uint32_t most =
        context <= w->n_pages ? p->max_model_len : w->n_pages * ROSE_KV_PAGE_TOKENS;
    rose_batch b = {.tokens = w->zeros, .seqs = w->seqs};

    if (n_rows > p->max_step_tokens) n_rows = p->max_step_tokens;
    while (b.n_tokens < n_rows && b.n_seqs < p->max_seqs && b.n_seqs < w->n_pages / stride) {
        const uint32_t left = n_rows - b.n_tokens, n = left < most ? left : most;
        w->seqs[b.n_seqs] = (rose_batch_seq){.first = b.n_tokens, .n = n};
        for (uint32_t k = 0; k < p->n_pools; k++)
            w->seqs[b.n_seqs].table[k] = w->pages + (size_t)b.n_seqs * stride;
        b.n_tokens += n;
        b.n_seqs++;
    }
    return run(w, &b);
}

rose_status rose_cuda_warm(rose_cuda *c, rose_err *err)
{
    static const uint32_t sizes[] = {1, 20, 300, 3072}; /* one size for each family of kernels */
    const rose_memory_plan *p = &c->plan;
    warm w = {.c = c, .ops = &rose_cuda_ops, .n_pages = rose_backend_least_blocks(p), .err = err};
    rose_status st = ROSE_OK;

    w.zeros = calloc(p->max_step_tokens, sizeof *w.zeros);
    w.pages = calloc(w.n_pages, sizeof *w.pages);
    w.seqs = calloc(p->max_seqs, sizeof *w.seqs);
    w.sum = calloc(c->arch.d_model, sizeof *w.sum);
    if (st == ROSE_OK && (w.zeros == NULL || w.pages == NULL || w.seqs == NULL || w.sum == NULL))
        st = rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    for (uint32_t i = 0; st == ROSE_OK && i < w.n_pages; i++)
        w.pages[i] = i;
    for (size_t i = 0; st == ROSE_OK && i < sizeof sizes / sizeof *sizes; i++)
        st = warm_rows(&w, sizes[i]);
    c->slots[c->ticket % ROSE_CUDA_SLOTS].n_outputs = 0; /* no later step may refer to these ids */
    free(w.zeros);
    free(w.pages);
    free(w.seqs);
    free(w.sum);
    return st;
}
