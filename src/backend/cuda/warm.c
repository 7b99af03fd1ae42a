/* backend/cuda/warm.c - the warm-up: a few steps before the first real one.
 *
 * The CUDA runtime loads a kernel when it is first launched. This takes host and device memory and
 * up to a millisecond. The kernels of captured graphs are already loaded; these steps load the
 * kernels of prompts, reports and rules. The steps write K and V of token 0 into the first pages,
 * which no sequence owns yet. The content of a page that is not in use has no effect
 * (docs/NUMERICS.md). */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

typedef struct warm {
    rose_cuda *c;
    const rose_backend_ops *ops;
    uint32_t *zeros; /* [max_step_tokens] */
    uint32_t *pages; /* [kv_pages] 0, 1, ... */
    uint32_t *first; /* [max_seqs + 1] */
    float *sum;      /* [d_model] */
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
    const rose_output_rules *const each[3] = {&rules[0], &rules[1], NULL};
    const rose_sampling params[3] = {
        {.temperature = 1, .top_p = 0.9f}, {.temperature = 1, .top_p = 1}, {.top_p = 1}};
    const uint32_t last = b->n_tokens - 1, rows[3] = {last, last, last}, pos[3] = {0, 0, 0};
    float *const states[3] = {NULL, NULL, w->sum};
    rose_step_result result;
    uint64_t ticket;

    b->n_outputs = b->n_tokens < 3 ? b->n_tokens : 3;
    b->out_row = rows;
    b->out_pos = pos;
    b->out_params = params;
    b->out_rules = each;
    if (b->n_outputs == 3) b->out_states = states;
    rose_status st = w->ops->step(w->c, b, &ticket, w->err);
    return st == ROSE_OK ? w->ops->collect(w->c, ticket, &result, w->err) : st;
}

/* Run a warm-up step of about n_rows rows, in as few sequences as possible. */
static rose_status warm_rows(warm *w, uint32_t n_rows)
{
    const rose_memory_plan *p = &w->c->plan;
    const uint32_t stride = (p->max_model_len - 1) / ROSE_KV_PAGE_TOKENS + 1;
    rose_batch b = {.tokens = w->zeros,
                    .seq_first = w->first,
                    .seq_pos = w->zeros,
                    .pages = w->pages,
                    .page_stride = stride};

    if (n_rows > p->max_step_tokens) n_rows = p->max_step_tokens;
    w->first[0] = 0;
    while (b.n_tokens < n_rows && b.n_seqs < p->max_seqs && b.n_seqs < p->kv_pages / stride) {
        const uint32_t left = n_rows - b.n_tokens;
        b.n_tokens += left < p->max_model_len ? left : p->max_model_len;
        w->first[++b.n_seqs] = b.n_tokens;
    }
    return run(w, &b);
}

rose_status rose_cuda_warm(rose_cuda *c, rose_err *err)
{
    static const uint32_t sizes[] = {1, 20, 300, 3072}; /* one size for each family of kernels */
    const rose_memory_plan *p = &c->plan;
    warm w = {.c = c, .ops = &rose_cuda_ops, .err = err};
    rose_status st = ROSE_OK;

    w.zeros = calloc(p->max_step_tokens, sizeof *w.zeros);
    w.pages = calloc(p->kv_pages, sizeof *w.pages);
    w.first = calloc((size_t)p->max_seqs + 1, sizeof *w.first);
    w.sum = calloc(c->arch.d_model, sizeof *w.sum);
    if (st == ROSE_OK && (w.zeros == NULL || w.pages == NULL || w.first == NULL || w.sum == NULL))
        st = rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    for (uint32_t i = 0; st == ROSE_OK && i < p->kv_pages; i++)
        w.pages[i] = i;
    for (size_t i = 0; st == ROSE_OK && i < sizeof sizes / sizeof *sizes; i++)
        st = warm_rows(&w, sizes[i]);
    c->slots[c->ticket % ROSE_CUDA_SLOTS].n_outputs = 0; /* no later step may refer to these ids */
    free(w.zeros);
    free(w.pages);
    free(w.first);
    free(w.sum);
    return st;
}
