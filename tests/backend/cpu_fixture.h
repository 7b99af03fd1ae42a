/* tests/backend/cpu_fixture.h - small random models in memory, and sequences that are run through
 * the CPU backend step by step while the logits of every position are kept. Header-only: each test
 * is one program. */
#ifndef TESTS_BACKEND_CPU_FIXTURE_H
#define TESTS_BACKEND_CPU_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_internal.h"
#include "base/philox.h"
#include "model/convert.h"

/* ---- random models ---- */

typedef struct fx_shape {
    const char *name;
    uint32_t n_layers, d_model, n_heads, d_ff, vocab, max_positions;
    rose_act act;
    rose_format dtype;
    bool untied, transposed, by_layer, no_bias;
} fx_shape;

typedef struct fx_random {
    uint64_t seed;
    uint32_t at;
} fx_random;

static inline uint64_t fx_seed(void)
{
    const char *text = getenv("ROSE_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : 20261121;
}

/* Ends the test, skipped, where the CPU lacks the level. */
static inline void fx_skip_without(const char *level)
{
    rose_isa isa;
    rose_err err;
    if (rose_isa_parse(level, &isa, &err) == ROSE_OK) return;
    print_message("NOT RUN: %s\n", err.msg);
    skip();
}

static inline float fx_uniform(fx_random *r) /* [0, 1) */
{
    return rose_philox_uniform(r->seed, r->at++, 7);
}

static inline uint32_t fx_below(fx_random *r, uint32_t n)
{
    return (uint32_t)((double)fx_uniform(r) * n);
}

static inline rose_tensor fx_tensor(fx_random *r, rose_format dtype, uint32_t rows, uint32_t cols,
                                    float center, float spread)
{
    rose_tensor t = {
        .name = "t", .dtype = dtype, .n_dims = cols > 1 ? 2 : 1, .shape = {rows, cols}};
    size_t n = (size_t)rows * cols;
    uint8_t *data = malloc(n * rose_format_size(dtype) + 1);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        float x = center + spread * (2 * fx_uniform(r) - 1);
        uint16_t h = dtype == ROSE_F16 ? rose_f32_to_f16(x) : rose_f32_to_bf16(x);
        if (dtype == ROSE_F32)
            memcpy(data + 4 * i, &x, 4);
        else
            memcpy(data + 2 * i, &h, 2);
    }
    t.data = data;
    return t;
}

static inline rose_linear fx_linear(fx_random *r, const fx_shape *s, uint32_t k, uint32_t n)
{
    rose_linear l = {.n_parts = 1, .transposed = s->transposed};
    float spread = 1.5f / sqrtf((float)k);
    l.w[0] = s->transposed ? fx_tensor(r, s->dtype, n, k, 0, spread)
                           : fx_tensor(r, s->dtype, k, n, 0, spread);
    if (!s->no_bias) l.b[0] = fx_tensor(r, s->dtype, n, 1, 0, 0.2f);
    return l;
}

static inline rose_model *fx_model(const fx_shape *s, uint64_t seed)
{
    fx_random r = {.seed = seed};
    rose_model *m = calloc(1, sizeof *m);
    const uint32_t d = s->d_model;
    assert_non_null(m);
    m->arch = (rose_arch){
        .model_type = "gpt2",
        .n_layers = s->n_layers,
        .d_model = d,
        .n_kinds = 1,
        .kinds = {{.mixer = {.n_heads = s->n_heads,
                             .n_kv_heads = s->n_heads,
                             .head_dim = d / s->n_heads,
                             .scale = 1.0f / sqrtf((float)(d / s->n_heads)),
                             .scale_by_layer = s->by_layer},
                   .mlp = {.d_ff = s->d_ff, .act = s->act}}},
        .vocab_size = s->vocab,
        .max_positions = s->max_positions,
        .norm_eps = 1e-5f,
        .embed_scale = 1.0f,
        .tied_head = !s->untied,
        .bos_id = -1,
    };
    m->dtype = s->dtype;
    m->tok_embed = fx_tensor(&r, s->dtype, s->vocab, d, 0, 0.5f);
    m->pos_embed = fx_tensor(&r, s->dtype, s->max_positions, d, 0, 0.3f);
    m->lnf_w = fx_tensor(&r, s->dtype, d, 1, 1, 0.2f);
    m->lnf_b = fx_tensor(&r, s->dtype, d, 1, 0, 0.2f);
    m->head = s->untied ? fx_tensor(&r, s->dtype, s->vocab, d, 0, 0.5f) : m->tok_embed;
    m->layers = calloc(s->n_layers, sizeof *m->layers);
    assert_non_null(m->layers);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        rose_layer *l = &m->layers[i];
        l->ln1_w = fx_tensor(&r, s->dtype, d, 1, 1, 0.2f);
        l->ln1_b = fx_tensor(&r, s->dtype, d, 1, 0, 0.2f);
        l->ln2_w = fx_tensor(&r, s->dtype, d, 1, 1, 0.2f);
        l->ln2_b = fx_tensor(&r, s->dtype, d, 1, 0, 0.2f);
        l->m[ROSE_QKV] = fx_linear(&r, s, d, 3 * d);
        l->m[ROSE_OUT] = fx_linear(&r, s, d, d);
        l->m[ROSE_UP] = fx_linear(&r, s, d, s->d_ff);
        l->m[ROSE_DOWN] = fx_linear(&r, s, s->d_ff, d);
    }
    return m;
}

static inline void fx_model_free(rose_model *m)
{
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        const rose_layer *l = &m->layers[i];
        const rose_tensor *all[] = {&l->ln1_w,
                                    &l->ln1_b,
                                    &l->ln2_w,
                                    &l->ln2_b,
                                    &l->m[ROSE_QKV].w[0],
                                    &l->m[ROSE_QKV].b[0],
                                    &l->m[ROSE_OUT].w[0],
                                    &l->m[ROSE_OUT].b[0],
                                    &l->m[ROSE_UP].w[0],
                                    &l->m[ROSE_UP].b[0],
                                    &l->m[ROSE_DOWN].w[0],
                                    &l->m[ROSE_DOWN].b[0]};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            free((void *)(uintptr_t)all[j]->data);
    }
    if (m->head.data != m->tok_embed.data) free((void *)(uintptr_t)m->head.data);
    free((void *)(uintptr_t)m->tok_embed.data);
    free((void *)(uintptr_t)m->pos_embed.data);
    free((void *)(uintptr_t)m->lnf_w.data);
    free((void *)(uintptr_t)m->lnf_b.data);
    free(m->layers);
    free(m);
}

/* ---- the backend under test ---- */

#ifndef FX_MAX_SEQS
#define FX_MAX_SEQS 80
#endif
#ifndef FX_MAX_ROWS
#define FX_MAX_ROWS 400
#endif
enum { FX_STRIDE = 96, FX_POOLS = 2 };

/* Which backend fx_open opens, and how. */
static const char *fx_device = "cpu";
static rose_quantization fx_quantization = ROSE_QUANT_NONE;
static uint32_t fx_max_model_len; /* 0 = the model's */
static bool fx_pdl = true, fx_graphs = true;
static const char *fx_without;                  /* of the CUDA backend, by name */
static void (*fx_change)(rose_backend_opts *o); /* NULL, or changes other options */
/* Fills bytes of the KV memory of a GPU (cuda_fixture.h). */
static void (*fx_fill_gpu)(void *ctx, uint64_t at, uint64_t bytes, int value);

typedef struct fx_backend {
    const rose_backend_ops *ops;
    const rose_model *model;
    rose_memory_plan plan;
    rose_cpu *cpu;                  /* the context, whatever the device */
    uint32_t *free_pages[FX_POOLS]; /* a shuffled stack for each pool */
    uint32_t n_free[FX_POOLS];
} fx_backend;

static inline bool fx_on_cpu(const fx_backend *f)
{
    return strcmp(f->ops->name, "cpu") == 0;
}

static inline void fx_open_pool(fx_backend *f, uint32_t k, fx_random *r, bool shuffled)
{
    const uint32_t n = f->plan.pools[k].n_blocks;
    uint32_t *pages = calloc(n, sizeof *pages);
    assert_non_null(pages);
    for (uint32_t i = 0; i < n; i++)
        pages[i] = n - 1 - i;
    for (uint32_t i = n; shuffled && i-- > 1;) {
        uint32_t j = fx_below(r, i + 1), t = pages[i];
        pages[i] = pages[j];
        pages[j] = t;
    }
    f->free_pages[k] = pages;
    f->n_free[k] = n;
}

static inline fx_backend fx_open(const rose_model *m, rose_compute dtype, const char *isa,
                                 uint32_t n_threads, uint64_t page_seed)
{
    fx_backend f = {.model = m};
    fx_random r = {.seed = page_seed};
    rose_backend_opts o;
    rose_err err = {""};
    void *ctx = NULL;

    rose_backend_opts_default(&o);
    o.dtype = dtype;
    o.quantization = fx_quantization;
    o.cpu.isa = isa;
    o.cpu.n_threads = n_threads;
    o.max_seqs = FX_MAX_SEQS;
    o.max_step_tokens = FX_MAX_ROWS;
    o.max_model_len = fx_max_model_len;
    o.cuda.pdl = fx_pdl;
    o.cuda.without = fx_without;
    o.cuda.graph = fx_graphs;
    o.cuda.guesses = true;
    if (fx_change != NULL) fx_change(&o);
    if (rose_backend_pick(&f.ops, fx_device, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (f.ops->plan(m, &o, &f.plan, &err) != ROSE_OK) fail_msg("plan: %s", err.msg);
    if (f.ops->open(&ctx, m, &o, &f.plan, &err) != ROSE_OK) fail_msg("open: %s", err.msg);
    f.cpu = ctx;
    if (fx_on_cpu(&f)) memset(f.cpu->kv, 0xFF, f.plan.kv); /* dirty pages: every value is a NaN */
    assert_in_range(f.plan.n_pools, 1, FX_POOLS);
    for (uint32_t k = 0; k < f.plan.n_pools; k++)
        fx_open_pool(&f, k, &r, page_seed != 0);
    return f;
}

static inline void fx_close(fx_backend *f)
{
    f->ops->close(f->cpu);
    for (uint32_t k = 0; k < FX_POOLS; k++)
        free(f->free_pages[k]);
}

/* Fills a page of a pool. */
static inline void fx_fill(fx_backend *f, uint32_t k, uint32_t page, int value)
{
    const rose_pool *p = &f->plan.pools[k];
    uint64_t at = page * p->block_bytes;
    for (uint32_t i = 0; i < k; i++)
        at += f->plan.pools[i].n_blocks * f->plan.pools[i].block_bytes;
    if (fx_on_cpu(f))
        memset(f->cpu->kv + at, value, p->block_bytes);
    else
        fx_fill_gpu(f->cpu, at, p->block_bytes, value);
}

/* A sequence with all its tokens given; `done` of them are in the pages. */
typedef struct fx_seq {
    uint32_t *tokens;
    uint32_t n_tokens, done;
    uint32_t pages[FX_POOLS][FX_STRIDE];
    uint32_t n_pages, dropped[FX_POOLS]; /* the first `dropped` pages are not its own any more */
    float *logits;                       /* [n_tokens][vocab], of the positions that asked */
    uint32_t *next_ids;                  /* [n_tokens] greedy */
    float *sum; /* NULL, or [d_model]: the states of outputs are added, and no logits are kept */
} fx_seq;

static inline fx_seq fx_seq_make(const rose_model *m, uint64_t seed, uint32_t n_tokens)
{
    fx_random r = {.seed = seed};
    fx_seq s = {.n_tokens = n_tokens};
    s.tokens = calloc(n_tokens, sizeof *s.tokens);
    s.logits = calloc((size_t)n_tokens * m->arch.vocab_size, sizeof *s.logits);
    s.next_ids = calloc(n_tokens, sizeof *s.next_ids);
    assert_true(s.tokens != NULL && s.logits != NULL && s.next_ids != NULL);
    for (uint32_t i = 0; i < n_tokens; i++)
        s.tokens[i] = fx_below(&r, m->arch.vocab_size);
    return s;
}

static inline void fx_seq_free(fx_seq *s)
{
    free(s->tokens);
    free(s->logits);
    free(s->next_ids);
}

/* The pages go back to the stacks, dirty. */
static inline void fx_seq_drop(fx_backend *f, fx_seq *s)
{
    for (uint32_t k = 0; k < f->plan.n_pools; k++) {
        for (uint32_t i = s->n_pages; i > s->dropped[k];)
            f->free_pages[k][f->n_free[k]++] = s->pages[k][--i];
        s->dropped[k] = 0;
    }
    s->n_pages = s->done = 0;
}

/* A page of each pool. A GPU wants finite values in a page that is in use. */
static inline void fx_seq_grow(fx_backend *f, fx_seq *s)
{
    for (uint32_t k = 0; k < f->plan.n_pools; k++) {
        assert_true(f->n_free[k] > 0);
        s->pages[k][s->n_pages] = f->free_pages[k][--f->n_free[k]];
        if (!fx_on_cpu(f) && f->plan.pools[k].window != 0)
            fx_fill(f, k, s->pages[k][s->n_pages], 0);
    }
    s->n_pages++;
}

/* The pages that no later row reads go to others, with a NaN in every value. On a GPU these are
 * all pages before the window of the next row. */
static inline void fx_seq_pass(fx_backend *f, fx_seq *s)
{
    for (uint32_t k = 0; k < f->plan.n_pools; k++) {
        const uint32_t window = f->plan.pools[k].window;
        uint32_t keeps = rose_pool_keeps_from(window, s->done);
        if (!fx_on_cpu(f) && window != 0 && s->done >= window) keeps = s->done - window + 1;
        for (; (s->dropped[k] + 1) * ROSE_KV_PAGE_TOKENS <= keeps; s->dropped[k]++) {
            fx_fill(f, k, s->pages[k][s->dropped[k]], 0xFF);
            f->free_pages[k][f->n_free[k]++] = s->pages[k][s->dropped[k]];
        }
    }
}

/* Whose logits are kept: of all rows, or of the last one. */
typedef enum fx_out { FX_NONE, FX_ALL, FX_LAST } fx_out;

/* One sequence's part of a step. The next part may continue it. */
typedef struct fx_part {
    fx_seq *seq;
    uint32_t n_rows;
    fx_out out; /* true: FX_ALL */
} fx_part;

static inline void fx_step(fx_backend *f, const fx_part *parts, uint32_t n_parts)
{
    static uint32_t tokens[FX_MAX_ROWS], pages[FX_MAX_SEQS][FX_POOLS][FX_STRIDE];
    static rose_batch_seq seqs[FX_MAX_SEQS];
    static rose_batch_out outs[FX_MAX_ROWS]; /* temperature 0: greedy */
    const uint32_t vocab = f->model->arch.vocab_size;
    rose_batch b = {.n_seqs = n_parts, .tokens = tokens, .seqs = seqs, .outs = outs};
    rose_err err = {""};
    rose_step_result result;
    uint64_t ticket;
    uint32_t(*table)[FX_STRIDE] = pages[0];

    for (uint32_t i = 0; i < n_parts; i++) {
        fx_seq *s = parts[i].seq;
        const bool more = i > 0 && parts[i - 1].seq == s;
        const uint32_t from = more ? seqs[i - 1].pos + seqs[i - 1].n : s->done;
        const uint32_t end = from + parts[i].n_rows;
        if (!more) table = pages[i];
        assert_true(end <= s->n_tokens && b.n_tokens + parts[i].n_rows <= FX_MAX_ROWS);
        seqs[i] = (rose_batch_seq){.first = b.n_tokens, .n = parts[i].n_rows, .pos = from};
        while (s->n_pages * ROSE_KV_PAGE_TOKENS < end)
            fx_seq_grow(f, s);
        memset(table, 0xFF, sizeof pages[i]);
        for (uint32_t k = 0; k < f->plan.n_pools; k++) {
            memcpy(table[k], s->pages[k], s->n_pages * sizeof **table);
            seqs[i].table[k] = table[k];
        }
        for (uint32_t p = from; p < end; p++) {
            if (parts[i].out == FX_ALL || (parts[i].out == FX_LAST && p + 1 == end)) {
                assert_true(b.n_outputs < FX_MAX_ROWS);
                outs[b.n_outputs++] =
                    (rose_batch_out){.row = b.n_tokens, .pos = p + 1, .sum = s->sum};
            }
            tokens[b.n_tokens++] = s->tokens[p];
        }
    }
    const size_t logits_bytes = ((size_t)b.n_outputs * vocab + 1) * sizeof *b.logits;
    b.logits = malloc(logits_bytes);
    assert_non_null(b.logits);
    memset(b.logits, 0xFF, logits_bytes); /* the step's to overwrite */
    if (f->ops->step(f->cpu, &b, &ticket, &err) != ROSE_OK) fail_msg("step: %s", err.msg);
    if (f->ops->collect(f->cpu, ticket, &result, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    assert_int_equal(result.n_outputs, b.n_outputs);
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        fx_seq *s = parts[i].seq;
        uint32_t j = parts[i].out == FX_LAST ? parts[i].n_rows - 1 : 0;
        for (; parts[i].out != FX_NONE && j < parts[i].n_rows; j++, at++) {
            if (parts[i].seq->sum != NULL) continue;
            memcpy(s->logits + (size_t)(s->done + j) * vocab, b.logits + (size_t)at * vocab,
                   vocab * sizeof *s->logits);
            s->next_ids[s->done + j] = result.ids[at];
        }
        s->done += parts[i].n_rows;
        fx_seq_pass(f, s);
    }
    free(b.logits);
}

/* Run s from its present place to `end` in chunks, alone. */
static inline void fx_run(fx_backend *f, fx_seq *s, uint32_t end, uint32_t chunk)
{
    while (s->done < end) {
        uint32_t n = end - s->done < chunk ? end - s->done : chunk;
        fx_step(f, &(fx_part){s, n, true}, 1);
    }
}

/* Runs s from position n_prompt on in steps of up to `most` rows, in one to four parts each,
 * between decode steps of two others. */
static inline void fx_run_split(const rose_model *m, fx_backend *f, fx_seq *s, uint32_t n_prompt,
                                uint32_t most, uint64_t seed)
{
    fx_random r = {.seed = seed};
    fx_seq others[] = {fx_seq_make(m, seed + 1, 30), fx_seq_make(m, seed + 2, 30)};
    fx_run(f, s, n_prompt, 33);
    while (s->done < s->n_tokens) {
        fx_part parts[6];
        uint32_t n = 0, left = 1 + fx_below(&r, most), i;
        if (left > s->n_tokens - s->done) left = s->n_tokens - s->done;
        for (i = 0; i < 2; i++)
            if (others[i].done == others[i].n_tokens) fx_seq_drop(f, &others[i]);
        if (fx_below(&r, 2) == 0) parts[n++] = (fx_part){&others[0], 1, FX_ALL};
        for (i = 0; left > 0; left -= parts[n++].n_rows, i++)
            parts[n] = (fx_part){s, i == 3 ? left : 1 + fx_below(&r, left), FX_ALL};
        if (fx_below(&r, 2) == 0) parts[n++] = (fx_part){&others[1], 1, FX_ALL};
        fx_step(f, parts, n);
    }
    for (int i = 0; i < 2; i++) {
        fx_seq_drop(f, &others[i]);
        fx_seq_free(&others[i]);
    }
    fx_seq_drop(f, s);
}

static inline void fx_same(const rose_model *m, const fx_seq *a, const fx_seq *b, const char *what)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    for (uint32_t p = 0; p < a->n_tokens; p++) {
        const float *x = a->logits + (size_t)p * m->arch.vocab_size;
        const float *y = b->logits + (size_t)p * m->arch.vocab_size;
        for (uint32_t i = 0; i < m->arch.vocab_size; i++)
            if (memcmp(x + i, y + i, sizeof *x) != 0)
                fail_msg("%s: position %u, logit %u: %.9g and %.9g", what, p, i, (double)x[i],
                         (double)y[i]);
        if (a->next_ids[p] != b->next_ids[p])
            fail_msg("%s: position %u: id %u and %u", what, p, a->next_ids[p], b->next_ids[p]);
    }
}

/* The relative L2 error of all logits. */
static inline double fx_distance(const rose_model *m, const fx_seq *want, const fx_seq *got)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < (size_t)want->n_tokens * m->arch.vocab_size; i++) {
        const double w = (double)want->logits[i], e = (double)got->logits[i] - w;
        diff += e * e;
        size += w * w;
    }
    return sqrt(diff / size);
}

#endif
