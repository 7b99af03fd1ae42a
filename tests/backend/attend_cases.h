/* tests/backend/attend_cases.h - cases of attend.h, for the GPU (test_cuda_attend.c) and for the
 * emulated GPU (emulated/test_emulated_attend.cc), so it is C and C++.
 *
 * Sequences have their last rows as queries. Every slot of their pages is finite, and those past
 * the end are as large as T allows. Pages of no sequence, and pages that lie before the window of
 * every row, are NaN. The key before a window is the best of all keys, so that nobody may look at
 * it. */
#ifndef ROSE_TESTS_ATTEND_CASES_H
#define ROSE_TESTS_ATTEND_CASES_H

#include "backend/cuda/attend.h"

/* Hooks of the program that includes this. */
static void *at_device(const void *from, size_t bytes); /* a copy, from NULL: zeros */
static void at_fetch(void *to, const void *from, size_t bytes);
static void at_free(void *device);
static float at_value(rose_format t, const void *from, size_t i);
static void at_put(rose_format t, void *to, size_t i, float x); /* rounds */
static const rose_cuda_device *at_gpu(void);

enum { AT_MAX_SEQS = 12, AT_CANARY = 64, AT_SMS = 132 };
#define AT_POISON 0x7a7a7a7au

static uint64_t at_state;

static uint32_t at_any(uint32_t below)
{
    at_state ^= at_state << 13;
    at_state ^= at_state >> 7;
    at_state ^= at_state << 17;
    return (uint32_t)(at_state >> 33) % below;
}

static float at_float(void)
{
    return (float)at_any(1u << 20) / (float)(1 << 19) - 1.0f;
}

typedef struct at_shape {
    rose_format type;
    uint32_t head_dim, n_kv, group, window;
    float softcap;
} at_shape;

typedef struct at_problem {
    at_shape shape;
    uint32_t n_seqs, context[AT_MAX_SEQS], n_rows[AT_MAX_SEQS], table[AT_MAX_SEQS];
    uint32_t rows, n_q, pad, n_pages, n_table;
    size_t elem, page_elems, out_bytes;
    uint32_t *tables;
    void *q, *pages;                 /* on the host */
    void *dev[3];                    /* q, pages, tables */
    rose_cuda_item *singles, *tiles; /* [rows], [n_tiles]; on the host */
    uint32_t n_tiles, tile_rows, without;
    rose_cuda_attend a;
} at_problem;

static size_t at_page_index(const at_problem *p, uint32_t seq, uint32_t pos, uint32_t kv,
                            uint32_t v, uint32_t d)
{
    const uint32_t page = p->tables[p->table[seq] + pos / 16], token = pos % 16;
    return page * p->page_elems + (size_t)(kv * 2 + v) * 16 * p->pad +
           ((size_t)(token / 8 * (p->pad / 8) + d / 8)) * 64 + token % 8 * 8 + d % 8;
}

static uint32_t at_first(const at_problem *p, uint32_t pos)
{
    const uint32_t w = p->shape.window;
    return w != 0 && pos + 1 > w ? pos + 1 - w : 0;
}

static void at_fill_pages(at_problem *p)
{
    const at_shape *s = &p->shape;
    const float top = s->type == ROSE_F16 ? 65504.0f : 3.3e38f;
    for (size_t i = 0; i < p->n_pages * p->page_elems; i++)
        at_put(s->type, p->pages, i, NAN);
    for (uint32_t q = 0; q < p->n_seqs; q++) {
        const uint32_t first = at_first(p, p->context[q] - p->n_rows[q]) / 16 * 16;
        const uint32_t end = (p->context[q] + 15) / 16 * 16;
        for (uint32_t pos = first; pos < end; pos++)
            for (uint32_t i = 0; i < s->n_kv * 2 * p->pad; i++) {
                const uint32_t d = i % p->pad, kv = i / p->pad / 2, v = i / p->pad % 2;
                float x = pos < p->context[q] ? at_float() : d % 2 != 0 ? top : -top;
                if (d >= s->head_dim) x = 0;
                at_put(s->type, p->pages, at_page_index(p, q, pos, kv, v, d), x);
            }
    }
}

/* The best key for the first head of each group: the last row's own position, the first that it
 * sees, and the one before that, which is better still. */
static void at_plant(at_problem *p, uint32_t seq, uint32_t row)
{
    const uint32_t pos = p->context[seq] - 1, first = at_first(p, pos);
    for (uint32_t kv = 0; kv < p->shape.n_kv; kv++)
        for (uint32_t d = 0; d < p->shape.head_dim; d++) {
            const float x = at_value(p->shape.type, p->q,
                                     ((size_t)row * p->n_q + kv * p->shape.group) * p->pad + d);
            at_put(p->shape.type, p->pages, at_page_index(p, seq, pos, kv, 0, d), x * 0.3f);
            at_put(p->shape.type, p->pages, at_page_index(p, seq, first, kv, 0, d), x * 0.3f);
            if (first % 16 != 0)
                at_put(p->shape.type, p->pages, at_page_index(p, seq, first - 1, kv, 0, d), x * 9);
        }
}

static void at_items(at_problem *p)
{
    uint32_t row = 0, n = 0;
    p->singles = (rose_cuda_item *)calloc(p->rows, sizeof *p->singles);
    p->tiles = (rose_cuda_item *)calloc(p->rows, sizeof *p->tiles);
    assert_non_null(p->singles);
    assert_non_null(p->tiles);
    for (uint32_t s = 0; s < p->n_seqs; s++)
        for (uint32_t i = 0; i < p->n_rows[s]; i++, row++) {
            const rose_cuda_item one = {row, 1, p->context[s] - p->n_rows[s] + i, p->table[s]};
            p->singles[row] = one;
            if (i % p->tile_rows == 0) p->tiles[n++] = one;
            p->tiles[n - 1].n_rows = i % p->tile_rows + 1;
        }
    p->n_tiles = n;
}

/* contexts and rows: of each sequence. */
static at_problem at_make(const at_shape *s, uint32_t n_seqs, const uint32_t *contexts,
                          const uint32_t *rows, uint32_t tile_rows)
{
    at_problem p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.n_seqs = n_seqs;
    p.tile_rows = tile_rows;
    p.n_q = s->n_kv * s->group;
    p.pad = rose_cuda_attend_pad(s->head_dim);
    p.elem = s->type == ROSE_F32 ? 4 : 2;
    for (uint32_t i = 0; i < n_seqs; i++) {
        p.context[i] = contexts[i];
        p.n_rows[i] = rows[i] < contexts[i] ? rows[i] : contexts[i];
        p.table[i] = p.n_table;
        p.n_table += (contexts[i] + 15) / 16;
        p.rows += p.n_rows[i];
    }
    p.n_pages = p.n_table + 3;
    p.page_elems = (size_t)s->n_kv * 2 * 16 * p.pad;
    p.tables = (uint32_t *)calloc(p.n_table, sizeof *p.tables);
    p.q = calloc((size_t)p.rows * p.n_q * p.pad, p.elem);
    p.pages = malloc(p.n_pages * p.page_elems * p.elem);
    assert_true(p.tables != NULL && p.q != NULL && p.pages != NULL);
    for (uint32_t i = 0; i < p.n_table; i++) { /* a random order */
        const uint32_t j = at_any(i + 1);
        p.tables[i] = p.tables[j];
        p.tables[j] = i + 2;
    }
    for (size_t i = 0; i < (size_t)p.rows * p.n_q * p.pad; i++)
        at_put(s->type, p.q, i, i % p.pad < s->head_dim ? at_float() * 4 : 0);
    at_fill_pages(&p);
    for (uint32_t i = 0, row = 0; i < n_seqs; i++) {
        row += p.n_rows[i];
        at_plant(&p, i, row - 1);
    }
    at_items(&p);
    const uint32_t width = p.n_q * s->head_dim, k_pad = (width + 31) / 32 * 32;
    p.out_bytes = (size_t)((p.rows + 7) / 8 * 8) * k_pad * p.elem;
    p.dev[0] = at_device(p.q, (size_t)p.rows * p.n_q * p.pad * p.elem);
    p.dev[1] = at_device(p.pages, p.n_pages * p.page_elems * p.elem);
    p.dev[2] = at_device(p.tables, p.n_table * sizeof *p.tables);
    p.a.q = p.dev[0];
    p.a.kv.base = p.dev[1];
    p.a.kv.page_elems = p.page_elems;
    p.a.kv.head_dim = s->head_dim;
    p.a.kv.hd_pad = p.pad;
    p.a.kv.n_heads = s->n_kv;
    p.a.n_q = p.n_q;
    p.a.tables = (const uint32_t *)p.dev[2];
    p.a.scale = 1.0f / sqrtf((float)s->head_dim);
    p.a.softcap = s->softcap;
    p.a.window = s->window;
    p.a.out_k_pad = k_pad;
    return p;
}

static void at_drop(at_problem *p)
{
    for (int i = 0; i < 3; i++)
        at_free(p->dev[i]);
    free(p->tables);
    free(p->q);
    free(p->pages);
    free(p->singles);
    free(p->tiles);
}

enum { AT_DECODE, AT_PROMPT, AT_PLAIN };

/* The tables of a decode step on the device, and its scratch memory, poisoned. */
typedef struct at_step {
    void *dev[5]; /* cutting, units, folds, parts, arrivals */
    uint32_t n_counters;
} at_step;

/* unit: positions of a thread block, 0: as chosen. parts: 0, or the most partial results. */
static at_step at_divide(const at_problem *p, rose_cuda_attend *a, const rose_cuda_item *items,
                         uint32_t n, uint32_t unit, uint32_t parts)
{
    at_step step;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        if (p->context[i] > longest) longest = p->context[i];
    rose_attend_limits l =
        rose_attend_limits_of(unit == 0 ? (uint32_t)AT_SMS : 1u << 20, p->n_q, p->shape.n_kv,
                              p->shape.head_dim, n, longest, p->n_pages);
    if (parts != 0) l.max_parts = parts;
    rose_attend_unit *units = (rose_attend_unit *)calloc(l.max_units + 1, sizeof *units);
    rose_attend_fold *folds = (rose_attend_fold *)calloc(n, sizeof *folds);
    float *poison = (float *)malloc(l.bytes);
    assert_true(units != NULL && folds != NULL && poison != NULL);
    rose_attend_cutting c = rose_attend_cut(&l, items, n, a->window, unit, units, folds);
    assert_true(c.n_units <= l.max_units && c.n_folds == n);
    for (uint32_t i = 0; i < c.n_units; i++) { /* rows of a sequence are written together */
        uint32_t j = units[i].item;
        while (j > 0 && items[j - 1].table == items[j].table)
            j--;
        assert_int_equal(units[i].written, items[j].pos);
    }
    units[c.n_units++].item = ROSE_ATTEND_NONE; /* padding */
    for (size_t i = 0; i < l.bytes / 4; i++)
        poison[i] = NAN;
    step.n_counters = n * p->shape.n_kv;
    step.dev[0] = at_device(&c, sizeof c);
    step.dev[1] = at_device(units, c.n_units * sizeof *units);
    step.dev[2] = at_device(folds, n * sizeof *folds);
    step.dev[3] = at_device(poison, l.bytes);
    step.dev[4] = at_device(NULL, step.n_counters * 4);
    a->cutting = (const rose_attend_cutting *)step.dev[0];
    a->units = (const rose_attend_unit *)step.dev[1];
    a->folds = (const rose_attend_fold *)step.dev[2];
    a->parts = (float *)step.dev[3];
    a->arrivals = (uint32_t *)step.dev[4];
    a->grid_units = at_any(2) == 0 ? c.n_units : 1 + at_any(c.n_units);
    free(units), free(folds), free(poison);
    return step;
}

/* The counters are zero again. */
static void at_undivide(at_step *step)
{
    uint32_t *counters = (uint32_t *)malloc(step->n_counters * 4);
    assert_non_null(counters);
    at_fetch(counters, step->dev[4], step->n_counters * 4);
    for (uint32_t i = 0; i < step->n_counters; i++)
        assert_int_equal(counters[i], 0);
    free(counters);
    for (int i = 0; i < 5; i++)
        at_free(step->dev[i]);
}

/* All of `out` after a run over the items, poisoned before; the caller's to free. unit, parts: of
 * decode. */
static uint8_t *at_run(at_problem *p, int kernel, const rose_cuda_item *items, uint32_t n,
                       uint32_t item_rows, uint32_t unit, uint32_t parts)
{
    const rose_cuda_launch at = {.device = at_gpu(), .stream = NULL, .type = p->shape.type};
    const size_t bytes = p->out_bytes + AT_CANARY;
    uint8_t *out = (uint8_t *)malloc(bytes);
    rose_cuda_attend a = p->a;
    assert_non_null(out);
    memset(out, 0x7a, bytes);
    a.out = at_device(out, bytes);
    a.items = (const rose_cuda_item *)at_device(items, n * sizeof *items);
    a.n_items = n;
    a.item_rows = item_rows;
    if (kernel == AT_DECODE) {
        at_step step = at_divide(p, &a, items, n, unit, parts);
        a.warps = at_any(2) == 0 ? 0 : 1u << at_any(4);
        a.slots = at_any(3) * 4;
        assert_int_equal(rose_cuda_decode_run(&at, &a), cudaSuccess);
        at_undivide(&step);
    } else {
        assert_int_equal(kernel == AT_PROMPT ? rose_cuda_prompt_run(&at, &a)
                                             : rose_cuda_attend_plain(&at, &a),
                         cudaSuccess);
    }
    at_fetch(out, a.out, bytes);
    for (size_t i = p->out_bytes; i < bytes; i++)
        assert_int_equal(out[i], 0x7a);
    at_free(a.out);
    at_free((void *)(uintptr_t)a.items);
    return out;
}

static size_t at_out_index(const at_problem *p, uint32_t row, uint32_t k)
{
    return ((size_t)(row / 8) * (p->a.out_k_pad / 8) + k / 8) * 64 + row % 8 * 8 + k % 8;
}

/* The rule in double, of one row and query head. */
static void at_reference(const at_problem *p, uint32_t seq, uint32_t row, uint32_t pos,
                         uint32_t head, double *o)
{
    const at_shape *s = &p->shape;
    const uint32_t first = at_first(p, pos), kv = head / s->group;
    double *x = (double *)calloc(pos + 1, sizeof *x), top = -(double)INFINITY, sum = 0;
    assert_non_null(x);
    for (uint32_t j = first; j <= pos; j++) {
        for (uint32_t d = 0; d < s->head_dim; d++)
            x[j] += (double)at_value(s->type, p->q, ((size_t)row * p->n_q + head) * p->pad + d) *
                    (double)at_value(s->type, p->pages, at_page_index(p, seq, j, kv, 0, d));
        x[j] *= (double)p->a.scale;
        if (s->softcap > 0) x[j] = (double)s->softcap * tanh(x[j] / (double)s->softcap);
        if (x[j] > top) top = x[j];
    }
    for (uint32_t j = first; j <= pos; j++) {
        x[j] = exp(x[j] - top);
        sum += x[j];
    }
    for (uint32_t d = 0; d < s->head_dim; d++) {
        o[d] = 0;
        for (uint32_t j = first; j <= pos; j++)
            o[d] += x[j] / sum *
                    (double)at_value(s->type, p->pages, at_page_index(p, seq, j, kv, 1, d));
    }
    free(x);
}

/* Some rows and heads against the reference: V is at most 1, so an error of p of one part in `u`
 * moves the output by at most 2 / u, and the output is rounded once more. */
static void at_check(const at_problem *p, const uint8_t *out, uint32_t samples)
{
    const at_shape *s = &p->shape;
    const double u = s->type == ROSE_BF16  ? 1.0 / 512
                     : s->type == ROSE_F16 ? 1.0 / 2048
                                           : 1.0 / (1 << 18);
    double o[ROSE_ATTEND_MAX_HEAD_DIM], worst = 0;
    for (uint32_t i = 0; i < samples; i++) {
        const uint32_t row = i == 0 ? p->rows - 1 : at_any(p->rows), head = at_any(p->n_q);
        uint32_t seq = 0;
        while (p->table[seq] != p->singles[row].table)
            seq++;
        at_reference(p, seq, row, p->singles[row].pos, head, o);
        for (uint32_t d = 0; d < s->head_dim; d++) {
            const double y =
                (double)at_value(s->type, out, at_out_index(p, row, head * s->head_dim + d));
            const double off = fabs(y - o[d]);
            if (!(off <= worst)) worst = off;
        }
    }
    if (!(worst <= 4 * u)) {
        printf("head_dim %u group %u window %u cap %g context %u: off by %g\n", s->head_dim,
               s->group, s->window, (double)s->softcap, p->context[0], worst);
        fail();
    }
}

static void at_same(const at_problem *p, const uint8_t *want, uint8_t *got, const char *what)
{
    if (memcmp(want, got, p->out_bytes) != 0) {
        size_t i = 0;
        while (want[i] == got[i])
            i++;
        printf("%s: head_dim %u group %u window %u cap %g context %u, rows %u: byte %zu of %zu\n",
               what, p->shape.head_dim, p->shape.group, p->shape.window, (double)p->shape.softcap,
               p->context[0], p->rows, i, p->out_bytes);
        fail();
    }
    free(got);
}

/* Attention of the items over dense pages, whose entries nobody may see are NaN. */
static uint8_t *at_dense(at_problem *p, int kernel, const rose_cuda_item *items, uint32_t n,
                         uint32_t item_rows)
{
    const rose_cuda_launch at = {.device = at_gpu(), .stream = NULL, .type = p->shape.type};
    at_problem q = *p;
    const size_t n_values = p->n_table * p->page_elems;
    uint32_t *order = (uint32_t *)malloc(p->n_table * sizeof *order);
    uint8_t *poison = (uint8_t *)malloc(n_values * p->elem);
    assert_true(order != NULL && poison != NULL);
    for (uint32_t i = 0; i < p->n_table; i++)
        order[i] = i;
    for (size_t i = 0; i < n_values; i++)
        at_put(p->shape.type, poison, i, NAN);
    q.a.items = (const rose_cuda_item *)at_device(items, n * sizeof *items);
    q.a.n_items = n;
    q.a.item_rows = item_rows;
    void *dense = at_device(poison, n_values * p->elem);
    assert_int_equal(rose_cuda_gather_run(&at, &q.a, dense), cudaSuccess);
    at_free((void *)(uintptr_t)q.a.items);
    q.a.kv.base = dense;
    q.a.tables = (const uint32_t *)at_device(order, p->n_table * sizeof *order);
    q.without = ROSE_CUDA_WITHOUT_PAGED;
    uint8_t *out = at_run(&q, kernel, items, n, item_rows, 0, 0);
    at_free((void *)(uintptr_t)q.a.tables);
    at_free(dense);
    free(order), free(poison);
    return out;
}

/* Every division of the contexts and both kernels give the same bits, which are right. */
static void at_case(const at_shape *s, uint32_t n_seqs, const uint32_t *contexts,
                    const uint32_t *rows, uint32_t tile_rows, uint32_t samples)
{
    at_problem p = at_make(s, n_seqs, contexts, rows, tile_rows);
    const uint32_t units[] = {0, 64, 128, 256, 512, 1024, 4096};
    uint8_t *plain = at_run(&p, AT_PLAIN, p.tiles, p.n_tiles, tile_rows, 0, 0);
    at_check(&p, plain, samples);
    free(plain);
    if (s->type != ROSE_F32) {
        uint8_t *want = at_run(&p, AT_PROMPT, p.tiles, p.n_tiles, tile_rows, 0, 0);
        at_check(&p, want, samples);
        at_same(&p, want, at_run(&p, AT_PROMPT, p.singles, p.rows, 1, 0, 0), "prompt, single rows");
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            char name[32];
            snprintf(name, sizeof name, "decode, unit %u", units[i]);
            at_same(&p, want, at_run(&p, AT_DECODE, p.singles, p.rows, 1, units[i], 0), name);
        }
        at_same(&p, want, at_run(&p, AT_DECODE, p.singles, p.rows, 1, 0, 1), "decode, whole");
        at_same(&p, want, at_dense(&p, AT_DECODE, p.singles, p.rows, 1), "decode, dense");
        at_same(&p, want, at_dense(&p, AT_PROMPT, p.tiles, p.n_tiles, tile_rows), "prompt, dense");
        free(want);
    }
    at_drop(&p);
}

/* Prompts of whole sequences: the kernel with wgmma has the bits of the one without. */
static void at_case_wide(const at_shape *s, uint32_t n_seqs, const uint32_t *contexts,
                         const uint32_t *rows, uint32_t tile, uint32_t samples)
{
    at_problem p = at_make(s, n_seqs, contexts, rows, tile);
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        if (p.n_rows[i] > most) most = p.n_rows[i];
    if (most > tile) most = tile;
    uint8_t *wide = at_run(&p, AT_PROMPT, p.tiles, p.n_tiles, most, 0, 0);
    at_check(&p, wide, samples);
    p.without = ROSE_CUDA_WITHOUT_WIDE;
    at_same(&p, wide, at_run(&p, AT_PROMPT, p.tiles, p.n_tiles, most, 0, 0), "prompt, mma.sync");
    free(wide);
    at_drop(&p);
}

/* Rows alone give what they give in the batch. */
static void at_alone(const at_shape *s, uint32_t n_seqs, const uint32_t *contexts)
{
    uint32_t ones[AT_MAX_SEQS];
    for (uint32_t i = 0; i < n_seqs; i++)
        ones[i] = 1;
    at_problem p = at_make(s, n_seqs, contexts, ones, 1);
    uint8_t *all = at_run(&p, AT_DECODE, p.singles, p.rows, 1, 0, 0);
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint8_t *one = at_run(&p, AT_DECODE, p.singles + i, 1, 1, 0, 0);
        for (uint32_t k = 0; k < p.n_q * s->head_dim; k++)
            assert_memory_equal(all + at_out_index(&p, i, k) * p.elem,
                                one + at_out_index(&p, i, k) * p.elem, p.elem);
        free(one);
    }
    free(all);
    at_drop(&p);
}

#endif
