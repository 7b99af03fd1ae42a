/* tests/backend/attend_rotary_cases.h - as attend_cases.h: the step from the rows of the QKV GEMM
 * to q rows and pages, in a kernel of its own and in the decode kernel. */
#ifndef ROSE_TESTS_ATTEND_ROTARY_CASES_H
#define ROSE_TESTS_ATTEND_ROTARY_CASES_H

#include "attend_cases.h"

typedef struct at_rotary {
    rose_format type;
    uint32_t head_dim, n_kv, group, rot_dim, rows;
    bool norm, f32;
} at_rotary;

/* attend_rotary.cuh in plain C: one head. */
static void at_rotate(const at_rotary *r, float *x, const float *w, const float *cos,
                      const float *sin)
{
    const uint32_t hd = r->head_dim, half = r->rot_dim / 2;
    if (w != NULL) {
        float sum[32] = {0};
        for (uint32_t d = 0; d < hd; d++)
            sum[d % 64 / 2] = fmaf(x[d], x[d], sum[d % 64 / 2]);
        for (uint32_t o = 16; o > 0; o /= 2)
            for (uint32_t i = 0; i < o; i++)
                sum[i] += sum[i + o];
        const float inv = 1.0f / sqrtf(sum[0] / (float)hd + 1e-6f);
        for (uint32_t d = 0; d < hd; d++)
            x[d] = x[d] * inv * w[d];
    }
    for (uint32_t i = 0; cos != NULL && i < half; i++) {
        const float a = x[i], b = x[i + half];
        const float p = a * cos[i], q = b * sin[i], u = b * cos[i], v = a * sin[i];
        x[i] = p - q;
        x[i + half] = u + v;
    }
}

static float at_saturated(rose_format t, float x)
{
    const float top = t == ROSE_F16 ? 65504.0f : t == ROSE_BF16 ? 3.38953139e38f : 3.40282347e38f;
    return fminf(fmaxf(x, -top), top);
}

static void at_case_rotary(const at_rotary *r)
{
    enum { POSITIONS = 50, PAGES = 9 };
    const uint32_t n_q = r->n_kv * r->group, heads = n_q + 2 * r->n_kv, hd = r->head_dim;
    const uint32_t pad = rose_cuda_attend_pad(hd), half = r->rot_dim / 2;
    const size_t elem = r->type == ROSE_F32 ? 4 : 2, n = (size_t)r->rows * heads * hd;
    const size_t page = (size_t)r->n_kv * 2 * 16 * pad, n_kv = PAGES * page;
    const rose_format in = r->f32 ? ROSE_F32 : r->type;
    const size_t q_bytes = (size_t)r->rows * n_q * pad * elem, kv_bytes = n_kv * elem;
    float *qkv = (float *)malloc(n * 4), *cos = (float *)malloc(2 * POSITIONS * (half + 4) * 4);
    float *sin = cos + POSITIONS * (half + 4), *w = (float *)malloc(2 * hd * 4);
    uint32_t *slot = (uint32_t *)malloc(r->rows * 8), *where = slot + r->rows;
    uint8_t *raw = (uint8_t *)malloc(n * 4), *want = (uint8_t *)malloc(q_bytes + kv_bytes);
    uint8_t *got = (uint8_t *)malloc(q_bytes + kv_bytes);
    assert_true(qkv && cos && w && slot && raw && want && got);
    for (size_t i = 0; i < n; i++) {
        const float big = at_any(60) == 0 ? 1e5f : at_any(200) == 0 ? INFINITY : 3;
        at_put(in, raw, i, at_float() * (r->norm && big > 4 ? 3 : big));
        qkv[i] = at_value(in, raw, i);
    }
    for (uint32_t i = 0; i < 2 * POSITIONS * (half + 4); i++)
        cos[i] = at_float();
    for (uint32_t i = 0; i < 2 * hd; i++)
        w[i] = at_float() + 1;
    for (uint32_t i = 0; i < r->rows; i++) {
        slot[i] = i % 5 == 3 ? ROSE_CUDA_NO_SLOT : (i * 37 + 5) % (PAGES * 16);
        where[i] = at_any(POSITIONS);
    }
    memset(want, 0x7a, q_bytes + kv_bytes);
    void *dev[7] = {at_device(raw, n * (in == ROSE_F32 ? 4 : 2)),
                    at_device(cos, 2 * POSITIONS * (half + 4) * 4),
                    at_device(w, 2 * hd * 4),
                    at_device(slot, r->rows * 8),
                    at_device(want, q_bytes),
                    at_device(want, kv_bytes),
                    NULL};
    for (uint32_t i = 0; i < r->rows; i++)
        for (uint32_t h = 0; h < heads; h++) {
            float x[ROSE_ATTEND_MAX_HEAD_DIM] = {0};
            const bool is_q = h < n_q, is_v = h >= n_q + r->n_kv;
            memcpy(x, qkv + ((size_t)i * heads + h) * hd, hd * 4);
            if (!is_v)
                at_rotate(r, x,
                          !r->norm ? NULL
                          : is_q   ? w
                                   : w + hd,
                          half != 0 ? cos + where[i] * half : NULL, sin + where[i] * half);
            if (!is_q && slot[i] == ROSE_CUDA_NO_SLOT) continue;
            for (uint32_t d = 0; d < pad; d++) {
                const uint32_t token = slot[i] % 16, kv = (h - n_q) % r->n_kv;
                if (is_q)
                    at_put(r->type, want, ((size_t)i * n_q + h) * pad + d, x[d]);
                else
                    at_put(r->type, want + q_bytes,
                           slot[i] / 16 * page + (size_t)(kv * 2 + is_v) * 16 * pad +
                               ((size_t)(token / 8 * (pad / 8) + d / 8)) * 64 + token % 8 * 8 +
                               d % 8,
                           at_saturated(r->type, x[d]));
            }
        }
    const rose_cuda_launch at = {.device = at_gpu(), .stream = NULL, .type = r->type};
    rose_cuda_rotary a;
    memset(&a, 0, sizeof a);
    a.qkv = dev[0];
    a.qkv_f32 = r->f32;
    a.rows = r->rows;
    a.n_q = n_q;
    a.kv.base = dev[5];
    a.kv.page_elems = page;
    a.kv.head_dim = hd;
    a.kv.hd_pad = pad;
    a.kv.n_heads = r->n_kv;
    a.slot = (const uint32_t *)dev[3];
    a.where = half != 0 ? a.slot + r->rows : NULL;
    a.q_norm = r->norm ? (const float *)dev[2] : NULL;
    a.k_norm = r->norm ? (const float *)dev[2] + hd : NULL;
    a.eps = 1e-6f;
    a.cos = half != 0 ? (const float *)dev[1] : NULL;
    a.sin = half != 0 ? (const float *)dev[1] + POSITIONS * (half + 4) : NULL;
    a.rot_dim = r->rot_dim;
    a.q = dev[4];
    assert_int_equal(rose_cuda_rotary_run(&at, &a), cudaSuccess);
    at_fetch(got, dev[4], q_bytes);
    at_fetch(got + q_bytes, dev[5], kv_bytes);
    for (size_t i = 0; i < (q_bytes + kv_bytes) / elem; i++) { /* NaN of q: any */
        const float x = at_value(r->type, want, i), y = at_value(r->type, got, i);
        if (x != x && y != y) continue;
        if (memcmp(want + i * elem, got + i * elem, elem) == 0) continue;
        printf("rotary: head_dim %u rot %u norm %d: element %zu of %zu + %zu: %g, not %g\n", hd,
               r->rot_dim, r->norm, i, q_bytes / elem, kv_bytes / elem, (double)y, (double)x);
        fail();
    }
    for (int i = 0; i < 6; i++)
        at_free(dev[i]);
    free(qkv), free(cos), free(w), free(slot), free(raw), free(want), free(got);
}

/* ---- the append in the decode kernel ---- */

/* Rows of a QKV GEMM for the rows of a problem, and their slots and positions. */
static void at_fused_rows(const at_problem *p, const at_rotary *r, rose_cuda_rotary *a,
                          void *dev[5])
{
    const uint32_t hd = r->head_dim, half = r->rot_dim / 2, heads = p->n_q + 2 * r->n_kv;
    const rose_format in = r->f32 ? ROSE_F32 : r->type;
    const size_t n = (size_t)p->rows * heads * hd;
    uint32_t longest = 0, *slot = (uint32_t *)malloc(p->rows * 8);
    for (uint32_t i = 0; i < p->n_seqs; i++)
        if (p->context[i] > longest) longest = p->context[i];
    const size_t n_table = (size_t)longest * half + 1;
    float *table = (float *)malloc((2 * n_table + 2 * hd) * 4);
    uint8_t *raw = (uint8_t *)malloc(n * 4);
    assert_true(table != NULL && raw != NULL && slot != NULL);
    for (size_t i = 0; i < n; i++)
        at_put(in, raw, i, at_float() * (at_any(60) == 0 ? 1e5f : 3));
    for (size_t i = 0; i < 2 * n_table + 2 * hd; i++)
        table[i] = at_float();
    for (uint32_t i = 0; i < p->rows; i++) {
        const uint32_t pos = p->singles[i].pos;
        slot[i] = p->tables[p->singles[i].table + pos / 16] * 16 + pos % 16;
        if (i % 3 == 2) slot[i] = ROSE_CUDA_NO_SLOT;
        slot[p->rows + i] = pos;
    }
    dev[0] = at_device(raw, n * (in == ROSE_F32 ? 4 : 2));
    dev[1] = at_device(table, (2 * n_table + 2 * hd) * 4);
    dev[2] = at_device(slot, p->rows * 8);
    dev[3] = at_device(NULL, (size_t)p->rows * p->n_q * p->pad * p->elem);
    memset(a, 0, sizeof *a);
    a->qkv = dev[0];
    a->qkv_f32 = r->f32;
    a->rows = p->rows;
    a->n_q = p->n_q;
    a->kv = p->a.kv;
    a->slot = (const uint32_t *)dev[2];
    a->where = a->slot + p->rows;
    a->cos = half != 0 ? (const float *)dev[1] : NULL;
    a->sin = half != 0 ? (const float *)dev[1] + n_table : NULL;
    a->q_norm = r->norm ? (const float *)dev[1] + 2 * n_table : NULL;
    a->k_norm = r->norm ? a->q_norm + hd : NULL;
    a->eps = 1e-6f;
    a->rot_dim = r->rot_dim;
    a->q = dev[3];
    free(table), free(raw), free(slot);
}

/* rose_cuda_rotary_run and decode give the bits of decode with `fused`, in the output and in the
 * pages, for every division. Each sequence has one row. r->rows is not used. */
static void at_case_fused(const at_rotary *r, uint32_t window, uint32_t n_seqs,
                          const uint32_t *contexts)
{
    static const uint32_t units[] = {0, 64, 128, 512, 1024};
    const at_shape shape = {r->type, r->head_dim, r->n_kv, r->group, window, 0};
    const rose_cuda_launch at = {.device = at_gpu(), .stream = NULL, .type = r->type};
    uint32_t ones[AT_MAX_SEQS];
    for (uint32_t i = 0; i < n_seqs; i++)
        ones[i] = 1;
    at_problem p = at_make(&shape, n_seqs, contexts, ones, 1);
    const size_t bytes = p.n_pages * p.page_elems * p.elem;
    uint8_t *pages = (uint8_t *)malloc(bytes), *got = (uint8_t *)malloc(bytes);
    void *dev[5] = {NULL, NULL, NULL, NULL, NULL};
    rose_cuda_rotary x;
    assert_true(pages != NULL && got != NULL);
    at_fused_rows(&p, r, &x, dev);
    assert_int_equal(rose_cuda_rotary_run(&at, &x), cudaSuccess);
    p.a.q = x.q;
    uint8_t *want = at_run(&p, AT_DECODE, p.singles, p.rows, 1, 512, 0);
    at_fetch(pages, p.dev[1], bytes);
    p.a.q = x.q = NULL;
    p.a.fused = &x;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char name[32];
        at_free(p.dev[1]);
        p.dev[1] = at_device(p.pages, bytes);
        p.a.kv.base = x.kv.base = p.dev[1];
        snprintf(name, sizeof name, "fused, unit %u", units[i]);
        at_same(&p, want, at_run(&p, AT_DECODE, p.singles, p.rows, 1, units[i], 0), name);
        at_fetch(got, p.dev[1], bytes);
        assert_memory_equal(got, pages, bytes);
    }
    for (int i = 0; i < 4; i++)
        at_free(dev[i]);
    free(want), free(pages), free(got);
    at_drop(&p);
}

#endif
