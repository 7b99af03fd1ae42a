/* backend/cuda/cudnn_prompts.c - attention of prompts by cuDNN (--prefill-backend cudnn): whether
 * it can be, its plans, which are all made at open, and its launches in a step.
 *
 * K and V lie in pages in an order of ours, so in every layer a kernel unpacks the contexts of a
 * group of prompts into rows, cuDNN attends, and behind the last group a kernel packs its output.
 * A group is as many prompts as a plan takes and as their contexts fit into the scratch. A plan's
 * sizes are the most that it takes: what a group has less costs a few blocks that do nothing, so
 * there are few of them. Threads: the engine thread; the check any. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/cudnn.h"
#include "base/clock.h"
#include "base/log.h"

enum {
    MOST_SEQS = 32, /* of a group */
    FEW_SEQS = 8,
    SHORT_ROWS = 256,
    MAX_PLANS = 4,
    TILE = 128,      /* plans' sizes are multiples of it */
    SLACK = 2 * TILE /* rows behind the last of a buffer: a tile may be read whole */
};

typedef struct group {
    uint32_t first, n;   /* prompts */
    uint32_t most_pages; /* of one of them */
    rose_cudnn_plan *plan;
    uint32_t n_seqs; /* of the plan */
} group;

struct rose_cuda_cudnn {
    rose_cudnn *library; /* owned */
    struct {
        uint32_t n_seqs, rows;
        rose_cudnn_plan *plan; /* owned */
    } plans[MAX_PLANS];        /* smallest first */
    uint32_t n_plans;
    float *scales; /* [n_layers] or [1]; owned: plans are bound to them in this order */
    group *groups; /* [max_seqs]; owned: of the step under way */
    uint32_t n_groups;
};

static uint32_t round_up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* Most rows of one prompt in a step. */
static uint32_t most_rows(const rose_memory_plan *p)
{
    return p->max_step_tokens < p->max_model_len ? p->max_step_tokens : p->max_model_len;
}

/* Rows of k and v that groups may fill: any one context fits, and all that begin in one step. */
static uint32_t capacity(const rose_memory_plan *p)
{
    const uint32_t most =
        p->max_step_tokens > p->max_model_len ? p->max_step_tokens : p->max_model_len;
    return round_up(most, ROSE_KV_PAGE_TOKENS) + MOST_SEQS * ROSE_KV_PAGE_TOKENS;
}

static rose_cudnn_problem problem_of(const rose_arch *a, const rose_memory_plan *p, uint32_t n_seqs,
                                     uint32_t rows)
{
    return (rose_cudnn_problem){.type = rose_cuda_type_of(p->dtype),
                                .n_heads = a->n_heads,
                                .head_dim = a->head_dim,
                                .n_seqs = n_seqs,
                                .q_rows = round_up(rows, TILE),
                                .kv_rows = round_up(p->max_model_len, TILE)};
}

/* ---- before anything is loaded ---- */

rose_status rose_cuda_cudnn_check(const rose_arch *a, const rose_memory_plan *p,
                                  const char *library, rose_err *err)
{
    rose_cudnn *c = NULL;
    rose_status st;

    if (p->dtype == ROSE_COMPUTE_F32)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "cuDNN attends in 16 bits: choose dtype float16 or bfloat16");
    if (a->head_dim % 8 != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: cuDNN attends heads of multiples of 8, not of %u: choose flash",
                         a->model_type, a->head_dim);
    if ((uint64_t)capacity(p) * a->d_model > INT32_MAX)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "cuDNN counts values in 31 bits, and %u rows of %u are more: lower "
                         "max_step_tokens or max_model_len",
                         capacity(p), a->d_model);
    if ((st = rose_cudnn_open(&c, library, NULL, err)) != ROSE_OK) return st;
    const rose_cudnn_problem most = problem_of(a, p, MOST_SEQS, most_rows(p));
    st = rose_cudnn_supports(c, &most, err);
    rose_cudnn_close(c);
    return st;
}

void rose_cuda_cudnn_layout(rose_cuda_cudnn_scratch *s, rose_cuda_bump *b, const rose_arch *a,
                            const rose_memory_plan *p)
{
    const uint64_t row = a->d_model * rose_cuda_type_size(rose_cuda_type_of(p->dtype));
    const uint64_t table = (MOST_SEQS + 1) * sizeof(int32_t);
    s->k = rose_cuda_take(b, (capacity(p) + SLACK) * row);
    s->v = rose_cuda_take(b, (capacity(p) + SLACK) * row);
    s->o = rose_cuda_take(b, (p->max_step_tokens + SLACK) * row);
    s->q_len = rose_cuda_take(b, table);
    s->kv_len = rose_cuda_take(b, table);
    s->q_at = rose_cuda_take(b, table);
    s->kv_at = rose_cuda_take(b, table);
    s->workspace = rose_cuda_take(b, ROSE_CUDNN_WORKSPACE);
}

/* ---- open and close ---- */

static rose_status bind(rose_cuda *c, rose_cudnn_plan *plan, rose_err *err)
{
    const rose_cuda_cudnn *d = c->cudnn;
    const rose_cuda_cudnn_scratch *s = &c->scratch.cudnn;
    const uint32_t n = c->arch.attn_scale_by_layer ? c->arch.n_layers : 1;
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; st == ROSE_OK && i < n; i++) {
        const rose_cudnn_operands a = {.q = c->scratch.q,
                                       .k = s->k,
                                       .v = s->v,
                                       .o = s->o,
                                       .q_len = s->q_len,
                                       .kv_len = s->kv_len,
                                       .q_at = s->q_at,
                                       .kv_at = s->kv_at,
                                       .workspace = s->workspace,
                                       .scale = &d->scales[i]};
        st = rose_cudnn_plan_bind(plan, &a, err);
    }
    return st;
}

/* Once, with one row of one sequence: what is loaded at the first run is, and a kernel that does
 * not run is found before the program is ready. */
static rose_status try_plan(rose_cuda *c, rose_cudnn_plan *plan, rose_err *err)
{
    enum { TABLE = MOST_SEQS + 1 };
    _Static_assert(4 * TABLE <= ROSE_CUDA_OUT_BLOCK, "a slot's ids hold four tables");
    const rose_cuda_cudnn_scratch *s = &c->scratch.cudnn;
    void *const to[] = {s->q_len, s->kv_len, s->q_at, s->kv_at};
    int32_t *staged = (void *)c->slots[0].ids; /* pinned; nobody's before the first step */
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; i < TABLE; i++) {
        staged[i] = staged[TABLE + i] = i == 0;
        staged[2 * TABLE + i] = staged[3 * TABLE + i] = i == 0 ? 0 : (int32_t)c->arch.d_model;
    }
    for (int t = 0; t < 4 && e == cudaSuccess; t++)
        e = cudaMemcpyAsync(to[t], staged + t * TABLE, TABLE * sizeof *staged,
                            cudaMemcpyHostToDevice, c->stream);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "filling cuDNN's tables");
    rose_status st = rose_cudnn_plan_run(plan, 0, err);
    if (st != ROSE_OK) return st;
    e = rose_cuda_finish(c);
    return e == cudaSuccess ? ROSE_OK : rose_cuda_fail(err, e, "trying cuDNN's attention");
}

static rose_status add_plan(rose_cuda *c, uint32_t n_seqs, uint32_t rows, rose_err *err)
{
    rose_cuda_cudnn *d = c->cudnn;
    const rose_cudnn_problem problem = problem_of(&c->arch, &c->plan, n_seqs, rows);
    rose_cudnn_plan *plan = NULL;
    const uint64_t began = rose_now_ns();
    rose_status st = rose_cudnn_plan_make(&plan, d->library, &problem, err);
    if (st != ROSE_OK) return st;
    const uint64_t made = rose_now_ns();
    d->plans[d->n_plans].n_seqs = n_seqs;
    d->plans[d->n_plans].rows = problem.q_rows;
    d->plans[d->n_plans++].plan = plan;
    if ((st = bind(c, plan, err)) != ROSE_OK || (st = try_plan(c, plan, err)) != ROSE_OK) return st;
    rose_log(ROSE_LOG_DEBUG, "cuda",
             "start: cuDNN's attention of %u x %u rows: engine %lld, workspace %llu bytes, made in "
             "%.1f ms, first run %.1f ms",
             n_seqs, problem.q_rows, (long long)rose_cudnn_plan_engine(plan),
             (unsigned long long)rose_cudnn_plan_workspace(plan), rose_ms_between(began, made),
             rose_ms_between(made, rose_now_ns()));
    return ROSE_OK;
}

static rose_status add_plans(rose_cuda *c, rose_err *err)
{
    const uint32_t most = most_rows(&c->plan), seqs = c->plan.max_seqs;
    const uint64_t began = rose_now_ns();
    rose_status st = add_plan(c, 1, most, err);
    if (st == ROSE_OK && seqs > 1) st = add_plan(c, FEW_SEQS, most, err);
    if (st == ROSE_OK && seqs > FEW_SEQS && most > SHORT_ROWS)
        st = add_plan(c, MOST_SEQS, SHORT_ROWS, err);
    if (st == ROSE_OK && seqs > FEW_SEQS) st = add_plan(c, MOST_SEQS, most, err);
    const size_t v = rose_cudnn_version(c->cudnn->library);
    if (st == ROSE_OK)
        rose_log(ROSE_LOG_INFO, "cuda", "prompts attend by cuDNN %zu.%zu.%zu: %u plans in %.1f s",
                 v / 10000, v / 100 % 100, v % 100, c->cudnn->n_plans,
                 rose_ms_between(began, rose_now_ns()) / 1000);
    return st;
}

rose_status rose_cuda_cudnn_open(rose_cuda *c, const char *library, rose_err *err)
{
    const rose_arch *a = &c->arch;
    rose_cuda_cudnn *d = calloc(1, sizeof *d);
    rose_status st;

    if ((c->cudnn = d) == NULL) return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    d->scales = calloc(a->n_layers, sizeof *d->scales);
    d->groups = calloc(c->plan.max_seqs, sizeof *d->groups);
    if (d->scales == NULL || d->groups == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    for (uint32_t i = 0; i < a->n_layers; i++)
        d->scales[i] = a->attn_scale / (a->attn_scale_by_layer ? (float)(i + 1) : 1.0f);
    /* Rows behind the last are read by whole tiles, and weighed with zeros: they are finite, as
     * load.c clears all scratch. */
    if ((st = rose_cudnn_open(&d->library, library, NULL, err)) != ROSE_OK) return st;
    if ((st = rose_cudnn_stream(d->library, c->stream, err)) != ROSE_OK) return st;
    return add_plans(c, err);
}

void rose_cuda_cudnn_close(rose_cuda *c)
{
    rose_cuda_cudnn *d = c->cudnn;
    if (d == NULL) return;
    if (!c->lost) { /* else what it calls would wait: its memory goes with the process */
        while (d->n_plans > 0)
            rose_cudnn_plan_drop(d->plans[--d->n_plans].plan);
        rose_cudnn_close(d->library);
    }
    free(d->scales);
    free(d->groups);
    free(d);
    c->cudnn = NULL;
}

/* ---- steps ---- */

/* The smallest plan for n prompts of up to so many rows. There is one: the last is for all. */
static void choose_plan(const rose_cuda_cudnn *d, group *g, uint32_t rows)
{
    uint32_t i = 0;
    while (i + 1 < d->n_plans && (d->plans[i].n_seqs < g->n || d->plans[i].rows < rows))
        i++;
    g->plan = d->plans[i].plan;
    g->n_seqs = d->plans[i].n_seqs;
}

void rose_cuda_cudnn_fill(rose_cuda *c, rose_cuda_prompt *prompts, const rose_batch *b)
{
    rose_cuda_cudnn *d = c->cudnn;
    const uint32_t cap = capacity(&c->plan), most_seqs = d->plans[d->n_plans - 1].n_seqs;
    uint32_t n = 0, table = 0, rows = 0, used = 0;
    group *g = NULL;

    d->n_groups = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t n_rows = b->seq_first[i + 1] - b->seq_first[i];
        const uint32_t pages = (b->seq_pos[i] + n_rows - 1) / ROSE_KV_PAGE_TOKENS + 1;
        if (n_rows > 1) {
            if (g == NULL || g->n == most_seqs || used + pages * ROSE_KV_PAGE_TOKENS > cap) {
                if (g != NULL) choose_plan(d, g, rows);
                g = &d->groups[d->n_groups++];
                *g = (group){.first = n};
                used = rows = 0;
            }
            prompts[n++] = (rose_cuda_prompt){b->seq_first[i], n_rows, b->seq_pos[i], table, used};
            used += pages * ROSE_KV_PAGE_TOKENS;
            g->n++;
            if (g->most_pages < pages) g->most_pages = pages;
            if (rows < n_rows) rows = n_rows;
        }
        table += pages;
    }
    if (g != NULL) choose_plan(d, g, rows);
}

cudaError_t rose_cuda_cudnn_attend(rose_cuda *c, const rose_cuda_launch *at,
                                   const rose_cuda_attention *a, const rose_cuda_prompt *prompts,
                                   uint32_t layer)
{
    const rose_cuda_cudnn *d = c->cudnn;
    const rose_cuda_cudnn_scratch *s = &c->scratch.cudnn;
    const uint32_t bound = c->arch.attn_scale_by_layer ? layer : 0;

    for (uint32_t i = 0; i < d->n_groups; i++) {
        const group *g = &d->groups[i];
        const rose_cuda_unpack u = {.kv = a->kv,
                                    .tables = a->tables,
                                    .prompts = prompts + g->first,
                                    .n_prompts = g->n,
                                    .most_pages = g->most_pages,
                                    .n_seqs = g->n_seqs,
                                    .d = a->d,
                                    .k = s->k,
                                    .v = s->v,
                                    .q_len = s->q_len,
                                    .kv_len = s->kv_len,
                                    .q_at = s->q_at,
                                    .kv_at = s->kv_at};
        rose_err why = {""};
        const cudaError_t e = rose_cuda_unpack_run(at, &u);
        if (e != cudaSuccess) return e;
        if (rose_cudnn_plan_run(g->plan, bound, &why) != ROSE_OK) {
            rose_fail(&c->trouble, ROSE_E_BACKEND,
                      "layer %u, %u prompts from %u on, plan of %u: %s", layer, g->n, g->first,
                      g->n_seqs, why.msg);
            return cudaErrorUnknown;
        }
    }
    const rose_cuda_rows r = {.rows = s->o,
                              .items = a->items,
                              .n_items = a->n_items,
                              .out = a->out,
                              .out_k_pad = a->out_k_pad,
                              .d = a->d};
    return rose_cuda_block_rows_run(at, &r);
}
