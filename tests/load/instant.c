/* tests/load/instant.c - see instant.h. The ids walk through the middle of the vocabulary, so
 * neighbours differ and none is a special token. A step ends when its ids are due. The pace is kept
 * on average: shorter steps follow a step that was late, to make up for at most a tenth of a
 * second. */
#include "load/instant.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { MAX_BEHIND_NS = 100000000, HOLD_NS = 10000000 };

typedef struct instant {
    uint32_t *ids; /* [max_step_tokens], owned */
    uint32_t vocab, next, n_outputs, n_seqs;
    uint64_t due_ns;
} instant;

static instant g_instant;
static _Atomic uint64_t g_ps_per_id; /* both are relaxed: they are set only between runs */
static _Atomic uint32_t g_hold;

void rose_instant_set_rate(double ids_per_s)
{
    atomic_store_explicit(&g_ps_per_id, ids_per_s > 0 ? (uint64_t)(1e12 / ids_per_s) : 0,
                          memory_order_relaxed);
}

void rose_instant_hold_until(uint32_t n)
{
    atomic_store_explicit(&g_hold, n, memory_order_relaxed);
}

static rose_status plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                        rose_err *err)
{
    (void)err;
    *out = (rose_memory_plan){.dtype = ROSE_COMPUTE_F32,
                              .max_seqs = o->max_seqs,
                              .max_step_tokens = o->max_step_tokens,
                              .max_model_len =
                                  o->max_model_len != 0 ? o->max_model_len : m->arch.max_positions,
                              .n_threads = 1,
                              .n_pools = 1,
                              .pools = {{.n_blocks = o->kv_pages, .tokens = ROSE_KV_PAGE_TOKENS}}};
    return ROSE_OK;
}

static rose_status open_instant(void **ctx, const rose_model *m, const rose_backend_opts *o,
                                const rose_memory_plan *p, rose_err *err)
{
    (void)o;
    free(g_instant.ids);
    g_instant = (instant){.vocab = m->arch.vocab_size};
    g_instant.ids = calloc(p->max_step_tokens, sizeof *g_instant.ids);
    *ctx = &g_instant;
    return g_instant.ids != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

static rose_status step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    instant *g = ctx;
    (void)err;
    *ticket = 0;
    g->n_outputs = b->n_outputs;
    g->n_seqs = b->n_seqs;
    const uint32_t first = g->vocab / 4, span = g->vocab / 2 > 0 ? g->vocab / 2 : 1;
    for (uint32_t i = 0; i < b->n_outputs; i++)
        g->ids[i] = first + g->next++ % span;
    return ROSE_OK;
}

static rose_status collect(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err)
{
    instant *g = ctx;
    (void)ticket, (void)err;
    out->n_outputs = g->n_outputs;
    out->ids = g->ids;
    if (atomic_load_explicit(&g_hold, memory_order_relaxed) > g->n_seqs) {
        nanosleep(&(struct timespec){.tv_nsec = HOLD_NS}, NULL);
        return ROSE_OK;
    }
    atomic_store_explicit(&g_hold, 0, memory_order_relaxed);
    const uint64_t ps = atomic_load_explicit(&g_ps_per_id, memory_order_relaxed);
    if (ps == 0) return ROSE_OK;
    const uint64_t now = rose_now_ns();
    if (g->due_ns + MAX_BEHIND_NS < now) g->due_ns = now;
    g->due_ns += g->n_outputs * ps / 1000;
    const struct timespec until = {(time_t)(g->due_ns / 1000000000u),
                                   (long)(g->due_ns % 1000000000u)};
    if (g->due_ns > now) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    return ROSE_OK;
}

static void close_instant(void *ctx)
{
    instant *g = ctx;
    if (g == NULL) return;
    free(g->ids);
    g->ids = NULL;
}

const rose_backend_ops rose_instant_ops = {.name = "instant",
                                           .plan = plan,
                                           .open = open_instant,
                                           .step = step,
                                           .collect = collect,
                                           .close = close_instant};
