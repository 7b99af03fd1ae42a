/* backend/cuda/tune_steps.c - whether the choices of the tuner make whole steps faster.
 *
 * tune.c times many launches of one kernel, one after the other. In a step other kernels run before
 * and after it, and choices that were 4 to 18 % faster alone made the steps of 2 to 16 sequences of
 * SmolLM2-135M 6 to 17 % longer (H100). So decode steps of each bucket are captured and timed with
 * and without the choices. Every sequence has a context of CONTEXT positions, or as many as the KV
 * cache holds of it, so that attention takes the time and the cache that it takes in use. Buckets
 * that no decode step reaches keep what was measured: there the kernels are long. Threads: the
 * engine thread. */
#include <math.h>
#include <stdlib.h>

#include "backend/checks.h"
#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/log.h"

enum { MOST_CHOICES = 32, WARM = 3, STEPS = 21, CONTEXT = 256 };

/* The decode steps of n sequences, and the choices of this bucket. */
typedef struct trial {
    rose_cuda_rank *rank;
    rose_gemm_tuning *line[MOST_CHOICES];
    const rose_gemm_kernel *measured[MOST_CHOICES];
    uint32_t n_lines, n;
    uint64_t until;            /* the time limit */
    uint32_t n_blocks;         /* of the smallest pool */
    uint32_t *numbers, *zeros; /* 0, 1, ...: the pages of all sequences; [n] 0, 0, ... */
    rose_batch_seq *seqs;      /* [n] of one row each */
    rose_batch_out *outs;      /* [n], greedy */
} trial;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static rose_status run_step(const trial *t, double *us, rose_err *err)
{
    const rose_batch b = {.n_seqs = t->n,
                          .n_tokens = t->n,
                          .n_outputs = t->n,
                          .tokens = t->zeros,
                          .seqs = t->seqs,
                          .outs = t->outs};
    rose_step_result result;
    uint64_t ticket;
    const uint64_t began = rose_now_ns();
    rose_status st = rose_cuda_ops.step(t->rank->c, &b, &ticket, err);
    if (st == ROSE_OK) st = rose_cuda_ops.collect(t->rank->c, ticket, &result, err);
    *us = rose_ms_between(began, rose_now_ns()) * 1e3;
    return st;
}

/* The median of STEPS steps with the choices of a bit mask, or INFINITY (rose_gemm_time). */
static rose_status time_steps(void *by, uint32_t choices, double *us, rose_err *err)
{
    trial *t = by;
    double all[STEPS];
    int i = -WARM;
    *us = INFINITY;
    if (rose_now_ns() >= t->until) return ROSE_OK;
    for (uint32_t k = 0; k < t->n_lines; k++)
        t->line[k]->kernel = (choices >> k & 1) != 0 ? t->measured[k] : t->line[k]->guess;
    rose_status st = rose_cuda_capture_decode(t->rank, t->n, err);
    for (; i < STEPS && st == ROSE_OK && rose_now_ns() < t->until; i++)
        st = run_step(t, &all[i < 0 ? 0 : i], err);
    if (!t->rank->c->lost) rose_cuda_drop_graphs(t->rank);
    if (st != ROSE_OK || i < STEPS) return st;
    qsort(all, STEPS, sizeof *all, compare);
    *us = all[STEPS / 2];
    return ROSE_OK;
}

/* The lines of the bucket whose fastest kernel is not the estimate's. */
static void find_lines(trial *t, uint32_t bucket)
{
    rose_gemm_tuned *all = &t->rank->c->tuned;
    t->n_lines = 0;
    for (uint32_t i = 0; i < all->n_lines && t->n_lines < MOST_CHOICES; i++) {
        rose_gemm_tuning *l = &all->lines[i];
        if (l->bucket != bucket || l->guess == NULL || l->guess == l->kernel) continue;
        t->measured[t->n_lines] = l->kernel;
        t->line[t->n_lines++] = l;
    }
}

/* Gives each of the n sequences its own pages, and a row at the last position of its context. */
static void place_contexts(trial *t)
{
    const rose_memory_plan *p = &t->rank->c->plan;
    uint32_t pages = t->n_blocks / t->n;
    if (pages > CONTEXT / ROSE_KV_PAGE_TOKENS) pages = CONTEXT / ROSE_KV_PAGE_TOKENS;
    uint32_t positions = pages * ROSE_KV_PAGE_TOKENS;
    if (positions > p->max_model_len) positions = p->max_model_len;
    for (uint32_t i = 0; i < t->n; i++) {
        t->seqs[i].pos = positions - 1;
        for (uint32_t k = 0; k < p->n_pools; k++)
            t->seqs[i].table[k] = t->numbers + (size_t)i * pages;
    }
}

static rose_status try_bucket(trial *t, uint32_t bucket, rose_err *err)
{
    uint32_t keep = 0;
    place_contexts(t);
    find_lines(t, bucket);
    const rose_status st = rose_gemm_keep(t->n_lines, time_steps, t, &keep, err);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; i < t->n_lines; i++) {
        rose_gemm_tuning *l = t->line[i];
        const bool kept = (keep >> i & 1) != 0;
        l->kernel = kept ? t->measured[i] : l->guess;
        if (!kept) l->us = l->guess_us;
        rose_log(ROSE_LOG_INFO, "cuda", "tune: steps of %u sequences of %u: n %u, k %u: %s is %s",
                 t->n, t->seqs[0].pos + 1, l->n, l->k, t->measured[i]->name,
                 kept ? "kept" : "not kept");
    }
    return ROSE_OK;
}

rose_status rose_cuda_tune_steps(rose_cuda_rank *rank, uint64_t until, rose_err *err)
{
    const rose_memory_plan *p = &rank->c->plan;
    trial t = {.rank = rank, .until = until, .n_blocks = rose_backend_least_blocks(p)};
    uint32_t most = p->max_seqs < t.n_blocks ? p->max_seqs : t.n_blocks;
    if (most > p->max_step_tokens) most = p->max_step_tokens;
    const size_t n_numbers = (size_t)most * (CONTEXT / ROSE_KV_PAGE_TOKENS);
    rose_status st = ROSE_OK;
    t.numbers = calloc(n_numbers, sizeof *t.numbers);
    t.zeros = calloc((size_t)most, sizeof *t.zeros);
    t.seqs = calloc((size_t)most, sizeof *t.seqs);
    t.outs = calloc((size_t)most, sizeof *t.outs);
    if (t.numbers == NULL || t.zeros == NULL || t.seqs == NULL || t.outs == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "tuning: out of memory");
    for (uint32_t i = 0; i < n_numbers && st == ROSE_OK; i++)
        t.numbers[i] = i;
    for (uint32_t i = 0; i < most && st == ROSE_OK; i++) {
        t.seqs[i] = (rose_batch_seq){.first = i, .n = 1};
        t.outs[i] = (rose_batch_out){.row = i, .params = {.top_p = 1}};
    }
    /* The last bucket may have more rows than the largest decode step. */
    for (uint32_t bucket = 1; rose_gemm_bucket(bucket) == bucket && st == ROSE_OK; bucket *= 2) {
        t.n = bucket < most ? bucket : most;
        st = try_bucket(&t, bucket, err);
        if (bucket >= most) break;
    }
    rank->c->slots[rank->c->ticket % ROSE_CUDA_SLOTS].n_outputs =
        0; /* no later step may refer to these ids */
    free(t.numbers);
    free(t.zeros);
    free(t.seqs);
    free(t.outs);
    return st;
}
