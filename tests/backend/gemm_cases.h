/* tests/backend/gemm_cases.h - cases of gemm.h, for the GPU (test_cuda_gemm.c) and for the emulated
 * GPU (emulated/test_emulated_gemm.cc), so it is C and C++.
 *
 * A problem has rows and weights. A way is an end with its options. gc_run runs one kernel in one
 * way on poisoned memory and returns all of that memory, which two kernels must leave with the same
 * bits. gc_check compares it with sums in double precision and looks for writes outside the
 * outputs. Rows past the last one are NaN. */
#ifndef ROSE_TESTS_GEMM_CASES_H
#define ROSE_TESTS_GEMM_CASES_H

#include <math.h>

#include "backend/cuda/gemm.h"
#include "model/model.h"

/* Hooks of the program that includes this. */
static void *gc_device(const void *from, size_t bytes); /* a copy */
static void gc_fetch(void *to, const void *from, size_t bytes);
static void gc_free(void *device);
static float gc_value(rose_format t, const void *from, size_t i);
static void gc_put(rose_format t, void *to, size_t i, float x); /* rounds */
static const rose_cuda_device *gc_gpu(void);

enum { GC_GUARD = 1024, GC_POISON = 0x7b, GC_PATTERN = 65521 };

static uint64_t gc_state;

static uint32_t gc_any(uint32_t below)
{
    gc_state ^= gc_state << 13;
    gc_state ^= gc_state >> 7;
    gc_state ^= gc_state << 17;
    return (uint32_t)(gc_state >> 33) % below;
}

static float gc_float(void)
{
    return (float)gc_any(1u << 20) / (float)(1 << 19) - 1.0f;
}

static uint32_t gc_up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static void *gc_alloc(size_t bytes)
{
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

/* ---- problems ---- */

typedef struct gc_problem {
    rose_format type;
    uint32_t rows, k, n, head_dim, k_pad;
    size_t elem;
    void *h, *w;     /* on the host, packed as on the device */
    float *bias, *x; /* [n], [rows][n]: the residual stream before */
    bool biased;     /* whether the matrix has its bias */
    void *d_h, *d_w, *d_bias;
} gc_problem;

/* As layout.cuh. */
static size_t gc_h_at(uint32_t row, uint32_t k, uint32_t k_pad)
{
    return ((size_t)(row / 8) * (k_pad / 8) + k / 8) * 64 + row % 8 * 8 + k % 8;
}

static size_t gc_w_at(const gc_problem *p, uint32_t n, uint32_t k)
{
    return p->type == ROSE_F32 ? (size_t)n * p->k_pad + k : gc_h_at(n, k, p->k_pad);
}

/* [n_pad][k_pad] values of a pattern whose length is a prime, so that no two tiles are alike. The
 * padding of k is zero, and rows past the last one are `rest`. */
static void *gc_random(const gc_problem *p, uint32_t n, uint32_t n_pad, bool weights, float scale,
                       float rest)
{
    uint8_t *v = (uint8_t *)gc_alloc((size_t)n_pad * p->k_pad * p->elem);
    uint8_t *pattern = (uint8_t *)gc_alloc((GC_PATTERN + 2) * p->elem);
    size_t from = gc_any(GC_PATTERN);
    for (size_t i = 0; i < GC_PATTERN; i++)
        gc_put(p->type, pattern, i, gc_float() * scale * (gc_any(40) == 0 ? 8.0f : 1.0f));
    gc_put(p->type, pattern, GC_PATTERN, 0);
    gc_put(p->type, pattern, GC_PATTERN + 1, rest);
    for (uint32_t i = 0; i < n_pad; i++)
        for (uint32_t k = 0; k < p->k_pad; k++) {
            const size_t at = weights ? gc_w_at(p, i, k) : gc_h_at(i, k, p->k_pad);
            const size_t which = i >= n      ? (size_t)GC_PATTERN + 1
                                 : k >= p->k ? (size_t)GC_PATTERN
                                             : from;
            memcpy(v + at * p->elem, pattern + which * p->elem, p->elem);
            if (++from == GC_PATTERN) from = 0;
        }
    free(pattern);
    return v;
}

static gc_problem gc_make(rose_format t, uint32_t rows, uint32_t k, uint32_t n, uint32_t head_dim)
{
    gc_problem p;
    memset(&p, 0, sizeof p);
    p.type = t;
    p.rows = rows;
    p.k = k;
    p.n = n;
    p.head_dim = head_dim;
    p.k_pad = gc_up(k, ROSE_CUDA_K_PAD);
    p.elem = t == ROSE_F32 ? 4 : 2;
    p.biased = gc_any(4) != 0;
    const uint32_t high = gc_up(rows, ROSE_CUDA_ROW_PAD), n_pad = gc_up(n, ROSE_CUDA_N_PAD);
    p.h = gc_random(&p, rows, high, false, 1, NAN);
    for (uint32_t i = 0; rows > 2 && i < k; i++) /* a row of zeros: its sums are +0 */
        gc_put(t, p.h, gc_h_at(1, i, p.k_pad), i % 2 != 0 ? -0.0f : 0.0f);
    p.w = gc_random(&p, n, n_pad, true, 1.0f / sqrtf((float)k), 0);
    p.bias = (float *)gc_alloc(n * sizeof(float));
    p.x = (float *)gc_alloc((size_t)rows * n * sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        p.bias[i] = i % 11 == 3 ? -0.0f : gc_float();
    for (size_t i = 0; i < (size_t)rows * n; i++)
        p.x[i] = i % 97 == 5 ? -0.0f : (float)(i * 2654435761u % 4001) / 1000.0f - 2.0f;
    p.d_h = gc_device(p.h, (size_t)high * p.k_pad * p.elem);
    p.d_w = gc_device(p.w, (size_t)n_pad * p.k_pad * p.elem);
    p.d_bias = gc_device(p.bias, n * sizeof(float));
    return p;
}

static void gc_drop(gc_problem *p)
{
    gc_free(p->d_h);
    gc_free(p->d_w);
    gc_free(p->d_bias);
    free(p->h);
    free(p->w);
    free(p->bias);
    free(p->x);
}

/* ---- ways ---- */

typedef struct gc_way {
    rose_gemm_end end;
    bool out_f32;
    uint32_t act;
    float softcap;
    uint32_t fewer; /* outputs of the problem that the matrix does not have */
    bool gated;     /* whether the matrix is; with ROWS, gate and up are stored as they are */
} gc_way;

static const gc_way gc_ways[] = {
    {ROSE_END_ROWS, false, 0, 0, 0, false},
    {ROSE_END_ROWS, true, 0, 0, 0, false},
    {ROSE_END_ROWS, true, 0, 0, 0, true},
    {ROSE_END_RESIDUAL, true, 0, 0, 0, false},
    {ROSE_END_ACT, false, ROSE_ACT_GELU_TANH, 0, 0, false},
    {ROSE_END_ACT, false, ROSE_ACT_GELU_ERF, 0, 0, false},
    {ROSE_END_ACT, false, ROSE_ACT_RELU, 0, 0, false},
    {ROSE_END_GATED, false, ROSE_ACT_SILU, 0, 0, true},
    {ROSE_END_GATED, false, ROSE_ACT_GELU_TANH, 0, 0, true},
    {ROSE_END_LOGITS, true, 0, 0, 0, false},
    {ROSE_END_LOGITS, true, 0, 5, 1, false},
};
enum { GC_WAYS = sizeof gc_ways / sizeof *gc_ways };

static bool gc_has(const gc_problem *p, const gc_way *w)
{
    return !w->gated || p->n % 16 == 0;
}

static rose_cuda_matrix gc_matrix(const gc_problem *p, const gc_way *w)
{
    rose_cuda_matrix m;
    memset(&m, 0, sizeof m);
    rose_cuda_matrix_shape(&m, p->type, p->k, p->n - w->fewer, w->end == ROSE_END_RESIDUAL ? 4 : 1,
                           p->head_dim, w->gated);
    m.n_pad = gc_up(p->n, ROSE_CUDA_N_PAD);
    m.w = p->d_w;
    m.bias = p->biased && w->end != ROSE_END_LOGITS ? (float *)p->d_bias : NULL;
    return m;
}

/* How the outputs of a way lie in memory, after GC_GUARD bytes. */
typedef struct gc_layout {
    uint32_t n, pitch; /* outputs of a row, values from a row to the next one */
    bool blocked, f32;
    size_t bytes, keys; /* of the outputs; where the keys begin */
    size_t all;         /* bytes of the memory */
} gc_layout;

static gc_layout gc_layout_of(const gc_problem *p, const gc_way *w)
{
    gc_layout l;
    memset(&l, 0, sizeof l);
    l.n = w->end == ROSE_END_GATED ? p->n / 2 : p->n - w->fewer;
    l.blocked = w->end == ROSE_END_ACT || w->end == ROSE_END_GATED;
    l.f32 = w->out_f32 || p->type == ROSE_F32;
    l.pitch = l.blocked                   ? gc_up(l.n, ROSE_CUDA_K_PAD)
              : w->end == ROSE_END_LOGITS ? l.n + (p->rows % 2 != 0 ? 3 : 0)
                                          : l.n + 8;
    l.bytes = (size_t)(l.blocked ? gc_up(p->rows, 8) : p->rows) * l.pitch * (l.f32 ? 4 : 2);
    l.keys = GC_GUARD + (l.bytes + GC_GUARD - 1) / GC_GUARD * GC_GUARD + GC_GUARD;
    l.all = l.keys + p->rows * sizeof(unsigned long long) + GC_GUARD;
    return l;
}

/* Offset in bytes of an output. */
static size_t gc_out_at(const gc_layout *l, uint32_t row, uint32_t n)
{
    const size_t i = l->blocked ? gc_h_at(row, n, l->pitch) : (size_t)row * l->pitch + n;
    return GC_GUARD + i * (l->f32 ? 4 : 2);
}

static void gc_initial(const gc_problem *p, const gc_way *w, const gc_layout *l, uint8_t *to)
{
    memset(to, GC_POISON, l->all);
    memset(to + l->keys, 0, p->rows * sizeof(unsigned long long));
    if (w->end != ROSE_END_RESIDUAL) return;
    for (uint32_t i = 0; i < p->rows; i++)
        for (uint32_t j = 0; j < l->n; j++)
            memcpy(to + gc_out_at(l, i, j), &p->x[(size_t)i * p->n + j], sizeof(float));
}

static rose_gemm_io gc_io(const gc_problem *p, const gc_way *w, const gc_layout *l, uint8_t *d)
{
    rose_gemm_io io;
    memset(&io, 0, sizeof io);
    io.end = w->end;
    io.rows = p->rows;
    io.h = p->d_h;
    if (w->end == ROSE_END_RESIDUAL) {
        io.x = (float *)(void *)(d + GC_GUARD);
        io.ld_x = l->pitch;
    } else if (w->end == ROSE_END_LOGITS) {
        io.logits = (float *)(void *)(d + GC_GUARD);
        io.ld_logits = l->pitch;
        io.softcap = w->softcap;
        io.key = (unsigned long long *)(void *)(d + l->keys);
    } else {
        io.out = d + GC_GUARD;
        io.out_pitch = l->pitch;
        io.out_f32 = w->out_f32;
        io.act = w->act;
    }
    return io;
}

static rose_cuda_launch gc_launch(const gc_problem *p, const rose_gemm_kernel *kernel)
{
    rose_cuda_launch at;
    memset(&at, 0, sizeof at);
    at.device = gc_gpu();
    at.type = p->type;
    at.forced = kernel;
    return at;
}

/* Whether the kernel runs in this way. kernel NULL: the choice of rose_gemm_choose. */
static bool gc_takes(const gc_problem *p, const gc_way *w, const rose_gemm_kernel *kernel)
{
    const rose_cuda_matrix m = gc_matrix(p, w);
    rose_gemm_io io;
    memset(&io, 0, sizeof io);
    io.end = w->end;
    io.rows = p->rows;
    io.h = p->d_h;
    const rose_cuda_launch at = gc_launch(p, kernel);
    return gc_has(p, w) && (kernel == NULL || rose_gemm_takes(kernel, &at, &m, &io));
}

/* The memory afterwards, gc_layout.all bytes; the caller frees it. norm: not NULL if the kernel
 * norms x ([rows][k] on the device) itself. */
static uint8_t *gc_run_normed(const gc_problem *p, const gc_way *w, const rose_gemm_kernel *kernel,
                              const rose_cuda_norm_by *norm, float *x)
{
    const gc_layout l = gc_layout_of(p, w);
    uint8_t *y = (uint8_t *)gc_alloc(l.all);
    gc_initial(p, w, &l, y);
    uint8_t *d = (uint8_t *)gc_device(y, l.all);
    const rose_cuda_matrix m = gc_matrix(p, w);
    const rose_cuda_launch at = gc_launch(p, kernel);
    rose_gemm_io io = gc_io(p, w, &l, d);
    if (norm != NULL) {
        io.h = NULL;
        io.norm = *norm;
        io.x = x;
        io.ld_x = p->k;
    }
    const cudaError_t e = rose_gemm_run(&at, &m, &io);
    if (e != cudaSuccess)
        fail_msg("kernel %s, end %d, %u x %u x %u: error %d",
                 kernel != NULL ? kernel->name : "auto", (int)w->end, p->rows, p->k, p->n, (int)e);
    gc_fetch(y, d, l.all);
    gc_free(d);
    return y;
}

static uint8_t *gc_run(const gc_problem *p, const gc_way *w, const rose_gemm_kernel *kernel)
{
    return gc_run_normed(p, w, kernel, NULL, NULL);
}

/* Print where two results differ. Returns whether they do. */
static bool gc_differ(const gc_problem *p, const gc_way *w, const char *kernel, const uint8_t *got,
                      const uint8_t *want)
{
    const gc_layout l = gc_layout_of(p, w);
    size_t first = 0, n = 0;
    uint32_t row = UINT32_MAX, out = 0;
    if (memcmp(got, want, l.all) == 0) return false;
    for (size_t i = l.all; i-- > 0;)
        if (got[i] != want[i]) n++, first = i;
    for (uint32_t i = 0; i < p->rows && row == UINT32_MAX; i++)
        for (uint32_t j = 0; j < l.n && row == UINT32_MAX; j++)
            if (gc_out_at(&l, i, j) / 2 == first / 2 || gc_out_at(&l, i, j) / 4 * 2 == first / 2)
                row = i, out = j;
    printf(
        "FAILED kernel %s: type %d, rows %u, k %u, n %u, end %d (way %d), head size %u, bias %d: "
        "%zu of %zu bytes differ; first byte %zu, ",
        kernel, (int)p->type, p->rows, p->k, p->n, (int)w->end, (int)(w - gc_ways), p->head_dim,
        p->biased, n, l.all, first);
    if (row == UINT32_MAX)
        printf("no output\n");
    else
        printf("row %u, output %u\n", row, out);
    return true;
}

/* ---- in double precision ---- */

typedef struct gc_sum {
    double y, size; /* the sum with the bias, and the sum of the absolute values */
} gc_sum;

static gc_sum gc_dot(const gc_problem *p, const rose_cuda_matrix *m, uint32_t row, uint32_t n)
{
    gc_sum s = {0, 0};
    for (uint32_t k = 0; k < p->k; k++) {
        const double a = (double)gc_value(p->type, p->h, gc_h_at(row, k, p->k_pad));
        const double b = (double)gc_value(p->type, p->w, gc_w_at(p, n, k));
        s.y += a * b;
        s.size += fabs(a * b);
    }
    if (m->bias != NULL) {
        s.y += (double)p->bias[n];
        s.size += fabs((double)p->bias[n]);
    }
    return s;
}

static double gc_act(double x, uint32_t act)
{
    if (act == ROSE_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    if (act == ROSE_ACT_GELU_ERF) return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    if (act == ROSE_ACT_SILU) return x / (1 + exp(-x));
    return x < 0 ? 0 : x;
}

/* The value of an output and how far a kernel may be from it. */
static gc_sum gc_want(const gc_problem *p, const gc_way *w, const rose_cuda_matrix *m, uint32_t row,
                      uint32_t n)
{
    const double unit = (p->type == ROSE_F32 ? p->k : p->k / 16.0 + 8) * ldexp(1, -23);
    const bool gated = w->end == ROSE_END_GATED;
    gc_sum s = gc_dot(p, m, row, gated ? n / 8 * 16 + n % 8 : n);
    double far = s.size * unit * 1.2;
    if (w->end == ROSE_END_RESIDUAL) {
        const double x = (double)p->x[(size_t)row * p->n + n];
        s.y += x;
        far += (s.size + fabs(x)) * ldexp(1, -21);
    } else if (w->end == ROSE_END_ACT) {
        s.y = gc_act(s.y, w->act);
    } else if (gated) {
        const gc_sum up = gc_dot(p, m, row, n / 8 * 16 + 8 + n % 8);
        const double gate = gc_act(s.y, w->act);
        far = far * fabs(up.y) + up.size * unit * (fabs(gate) + far);
        s.y = gate * up.y;
    } else if (w->softcap != 0) {
        s.y = (double)w->softcap * tanh(s.y / (double)w->softcap);
        far += (double)w->softcap * ldexp(1, -20);
    }
    const double rounding = w->out_f32 || p->type == ROSE_F32 ? -19
                            : p->type == ROSE_F16             ? -11
                                                              : -8;
    s.size = far + fabs(s.y) * ldexp(1, (int)rounding) + fabs(s.y) * ldexp(1, -19) + 1e-7;
    return s;
}

static void gc_check_keys(const gc_problem *p, const gc_layout *l, const uint8_t *y)
{
    for (uint32_t i = 0; i < p->rows; i++) {
        unsigned long long key;
        float best = -INFINITY;
        uint32_t id = 0;
        memcpy(&key, y + l->keys + i * sizeof key, sizeof key);
        for (uint32_t j = 0; j < l->n; j++) {
            const float v = gc_value(ROSE_F32, y + gc_out_at(l, i, j), 0);
            if (v > best) best = v, id = j;
        }
        if (~(uint32_t)key != id)
            fail_msg("row %u: the key is of output %u, the largest logit is %u", i, ~(uint32_t)key,
                     id);
    }
}

/* Fail if an output is too far from the sum in double precision, if a key is wrong, or if memory
 * that is no output has changed. */
static void gc_check(const gc_problem *p, const gc_way *w, const char *kernel, const uint8_t *y)
{
    const gc_layout l = gc_layout_of(p, w);
    const rose_cuda_matrix m = gc_matrix(p, w);
    uint8_t *rest = (uint8_t *)gc_alloc(l.all);
    memcpy(rest, y, l.all);
    for (uint32_t i = 0; i < p->rows; i++)
        for (uint32_t j = 0; j < l.n; j++) {
            const gc_sum want = gc_want(p, w, &m, i, j);
            const size_t at = gc_out_at(&l, i, j);
            const double got = (double)gc_value(l.f32 ? ROSE_F32 : p->type, y + at, 0);
            if (!(fabs(got - want.y) <= want.size))
                fail_msg("kernel %s: type %d, rows %u, k %u, n %u, end %d: row %u, output %u: %.9g "
                         "for %.9g, at most %.3g apart",
                         kernel, (int)p->type, p->rows, p->k, p->n, (int)w->end, i, j, got, want.y,
                         want.size);
            memset(rest + at, GC_POISON, l.f32 ? 4 : 2);
        }
    if (w->end == ROSE_END_LOGITS) gc_check_keys(p, &l, y);
    for (size_t i = 0; i < l.all; i++)
        if (rest[i] != GC_POISON &&
            (i < l.keys || i >= l.keys + p->rows * sizeof(unsigned long long)))
            fail_msg("kernel %s: type %d, rows %u, k %u, n %u, end %d: byte %zu is no output",
                     kernel, (int)p->type, p->rows, p->k, p->n, (int)w->end, i);
    free(rest);
}

/* The residual stream as gemm.h writes it, from the parts one by one. A part alone is the GEMM of
 * weights that are zero outside the part. kernel NULL for fp32. */
static void gc_check_parts(const gc_problem *p, const rose_gemm_kernel *kernel)
{
    static const gc_way residual = {ROSE_END_RESIDUAL, true, 0, 0, 0, false};
    static const gc_way rows = {ROSE_END_ROWS, true, 0, 0, 0, false};
    const gc_layout l = gc_layout_of(p, &rows);
    const rose_cuda_matrix m = gc_matrix(p, &residual);
    const size_t bytes = (size_t)m.n_pad * m.k_pad * p->elem;
    float *x = (float *)gc_alloc((size_t)p->rows * p->n * sizeof *x);
    memcpy(x, p->x, (size_t)p->rows * p->n * sizeof *x);
    for (uint32_t part = 0; part < ROSE_GEMM_PARTS; part++) {
        gc_problem alone = *p;
        uint8_t *w = (uint8_t *)gc_alloc(bytes);
        memcpy(w, p->w, bytes);
        for (uint32_t n = 0; n < p->n; n++)
            for (uint32_t k = 0; k < p->k; k++)
                if (k < m.cut[part] || k >= m.cut[part + 1])
                    memset(w + gc_w_at(p, n, k) * p->elem, 0, p->elem);
        alone.d_w = gc_device(w, bytes);
        alone.biased = p->biased && part == 0;
        uint8_t *y = gc_run(&alone, &rows, kernel);
        for (uint32_t i = 0; i < p->rows; i++)
            for (uint32_t j = 0; j < p->n; j++)
                x[(size_t)i * p->n + j] += gc_value(ROSE_F32, y + gc_out_at(&l, i, j), 0);
        gc_free(alone.d_w);
        free(w);
        free(y);
    }
    uint8_t *y = gc_run(p, &residual, kernel);
    const gc_layout r = gc_layout_of(p, &residual);
    for (uint32_t i = 0; i < p->rows; i++)
        for (uint32_t j = 0; j < p->n; j++)
            if (memcmp(&x[(size_t)i * p->n + j], y + gc_out_at(&r, i, j), sizeof *x) != 0)
                fail_msg("type %d, rows %u, k %u, n %u: row %u, output %u: x + parts is %.9g, the "
                         "kernel has %.9g",
                         (int)p->type, p->rows, p->k, p->n, i, j, (double)x[(size_t)i * p->n + j],
                         (double)gc_value(ROSE_F32, y + gc_out_at(&r, i, j), 0));
    free(x);
    free(y);
}

#endif
