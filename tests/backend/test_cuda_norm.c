/* tests/backend/test_cuda_norm.c - the norm kernels against sums in double precision, and against
 * each other: the number of rows decides which kernel runs, and all give the same bits. */
#include <math.h>

#include "backend/cuda_fixture.h"

enum { CANARY = 64 };

static void fetch(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

static uint32_t up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static float get(rose_format t, const void *from, size_t i)
{
    if (t == ROSE_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return t == ROSE_F16 ? rose_f16_to_f32(h) : rose_bf16_to_f32(h);
}

/* ---- against double precision ---- */

typedef struct norm_case {
    uint32_t rows, d;
    rose_cuda_norm_kind kind;
    bool biased;
    float *x, *w; /* host: [rows][d], [2][d] */
    float *d_x, *d_w;
    rose_cuda_norm_by by;
} norm_case;

static norm_case make_case(fx_random *r, uint32_t rows, uint32_t d, rose_cuda_norm_kind kind,
                           bool biased)
{
    norm_case c = {.rows = rows, .d = d, .kind = kind, .biased = biased};
    c.x = calloc((size_t)rows * d, sizeof *c.x);
    c.w = calloc((size_t)2 * d, sizeof *c.w);
    assert_true(c.x && c.w);
    for (size_t j = 0; j < (size_t)rows * d; j++)
        c.x[j] = 3 * fx_uniform(r) + (j % d == 5 ? 100.0f : 0); /* an outlier, as GPT-2 has */
    for (uint32_t j = 0; j < 2 * d; j++)
        c.w[j] = fx_uniform(r);
    c.d_x = fx_to_device(c.x, (size_t)rows * d * sizeof *c.x);
    c.d_w = fx_to_device(c.w, (size_t)2 * d * sizeof *c.w);
    c.by =
        (rose_cuda_norm_by){.kind = kind, .w = c.d_w, .b = biased ? c.d_w + d : NULL, .eps = 1e-5f};
    return c;
}

static void drop_case(norm_case *c)
{
    cudaFree(c->d_x);
    cudaFree(c->d_w);
    free(c->x);
    free(c->w);
}

/* The norm of row m: to[d]. */
static void norm_row(const norm_case *c, uint32_t m, double *to)
{
    const float *x = c->x + (size_t)m * c->d;
    double mean = 0, var = 0;
    for (uint32_t j = 0; c->kind == ROSE_CUDA_NORM_LAYER && j < c->d; j++)
        mean += (double)x[j] / c->d;
    for (uint32_t j = 0; j < c->d; j++)
        var += pow((double)x[j] - mean, 2) / c->d;
    for (uint32_t j = 0; j < c->d; j++) {
        to[j] = (double)x[j];
        if (c->kind == ROSE_CUDA_NORM_NONE) continue;
        to[j] = ((double)x[j] - mean) / sqrt(var + 1e-5) * (double)c->w[j];
        if (c->biased) to[j] += (double)c->w[c->d + j];
    }
}

static void check_norm(const norm_case *c, rose_format type)
{
    static const double tolerance[] = {1e-6, 5e-4, 4e-3}; /* F32, F16, BF16 */
    const uint32_t k_pad = up(c->d, ROSE_CUDA_K_PAD);
    const size_t size = type == ROSE_F32 ? 4 : 2, n_out = (size_t)up(c->rows, 8) * k_pad;
    const rose_cuda_launch at = {.device = fx_gpu(), .type = type};
    uint8_t *y = calloc(n_out, size);
    double *want = calloc(c->d, sizeof *want), diff = 0, all = 0;
    assert_true(y && want);
    void *dy = fx_to_device(y, n_out * size);
    const rose_cuda_norm a = {
        .x = c->d_x, .by = c->by, .out = dy, .out_k_pad = k_pad, .d = c->d, .rows = c->rows};
    assert_int_equal(rose_cuda_norm_run(&at, &a), cudaSuccess);
    fetch(y, dy, n_out * size);
    for (uint32_t m = 0; m < c->rows; m++) {
        norm_row(c, m, want);
        for (uint32_t j = 0; j < c->d; j++) {
            diff += pow((double)get(type, y, fx_h_at(m, j, k_pad)) - want[j], 2);
            all += want[j] * want[j];
        }
    }
    if (!(sqrt(diff / all) < tolerance[type]))
        fail_msg("type %d, kind %d, %u x %u: relative error %g", (int)type, (int)c->kind, c->rows,
                 c->d, sqrt(diff / all));
    cudaFree(dy);
    free(y);
    free(want);
}

/* x += norm(y), y = 0. */
static void check_add(const norm_case *c)
{
    const rose_cuda_launch at = {.device = fx_gpu(), .type = ROSE_BF16};
    const size_t n = (size_t)c->rows * c->d;
    float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
    double *want = calloc(c->d, sizeof *want);
    assert_true(x && y && want);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(i % 13) - 6;
    float *dx = fx_to_device(x, n * sizeof *x), *dy = fx_to_device(c->x, n * sizeof *y);
    const rose_cuda_norm_add a = {.x = dx, .y = dy, .by = c->by, .d = c->d, .rows = c->rows};
    assert_int_equal(rose_cuda_norm_add_run(&at, &a), cudaSuccess);
    fetch(x, dx, n * sizeof *x);
    fetch(y, dy, n * sizeof *y);
    for (uint32_t m = 0; m < c->rows; m++) {
        norm_row(c, m, want);
        for (uint32_t j = 0; j < c->d; j++) {
            const size_t i = (size_t)m * c->d + j;
            const double sum = (double)(i % 13) - 6 + want[j];
            assert_true(y[i] == 0);
            assert_true(fabs((double)x[i] - sum) <= 1e-5 * (fabs(want[j]) + 6));
        }
    }
    cudaFree(dx);
    cudaFree(dy);
    free(x);
    free(y);
    free(want);
}

static void test_norm(void **state)
{
    static const uint32_t ds[] = {8, 80, 256, 576, 768, 1024, 1032, 1600, 2048, 4096};
    fx_random r = {.seed = fx_seed() + 1};
    (void)state;
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (int kind = 0; kind < 4; kind++) {
            static const rose_cuda_norm_kind kinds[] = {ROSE_CUDA_NORM_NONE, ROSE_CUDA_NORM_RMS,
                                                        ROSE_CUDA_NORM_LAYER, ROSE_CUDA_NORM_LAYER};
            norm_case c = make_case(&r, 37, ds[i], kinds[kind], kind == 3);
            for (int t = 0; t < 3; t++)
                check_norm(&c, (rose_format)t);
            if (kind > 0) check_add(&c);
            drop_case(&c);
        }
}

/* ---- against each other ---- */

/* As launches of up to `step` rows, a multiple of 8, each. */
static void norm_in_steps(rose_format type, const rose_cuda_norm *all, uint32_t step)
{
    const rose_cuda_launch at = {.device = fx_gpu(), .type = type};
    for (uint32_t row = 0; row < all->rows; row += step) {
        rose_cuda_norm a = *all;
        if (a.gather == NULL) a.x += (size_t)row * a.d;
        if (a.gather != NULL) a.gather += row;
        if (a.key != NULL) a.key += row;
        a.out = (uint16_t *)a.out + (size_t)row * a.out_k_pad;
        a.rows = a.rows - row < step ? a.rows - row : step;
        assert_int_equal(rose_cuda_norm_run(&at, &a), cudaSuccess);
    }
}

static void norm_both_ways(uint32_t m, uint32_t d, rose_format type, bool gathered, fx_random *r)
{
    const uint32_t k_pad = up(d, ROSE_CUDA_K_PAD);
    const rose_cuda_norm_kind kind = m % 2 != 0 ? ROSE_CUDA_NORM_LAYER : ROSE_CUDA_NORM_RMS;
    const size_t n_x = (size_t)m * d, n_keys = m + CANARY;
    const size_t n_out = (size_t)(m + CANARY) / 8 * 8 * k_pad * sizeof(uint16_t);
    float *values = malloc((n_x + 2 * d) * sizeof *values); /* x, w, b */
    uint32_t *from = malloc(m * sizeof *from);
    uint8_t *y[2];
    unsigned long long *keys[2];
    assert_non_null(values);
    assert_non_null(from);
    for (size_t i = 0; i < n_x + 2 * d; i++)
        values[i] = 3 * fx_uniform(r);
    for (uint32_t i = 0; i < m; i++)
        from[i] = m - 1 - i / 2;
    float *x = fx_to_device(values, (n_x + 2 * d) * sizeof *values);
    uint32_t *gather = fx_to_device(from, m * sizeof *from);
    void *out = fx_to_device(NULL, n_out), *key = fx_to_device(NULL, n_keys * sizeof *keys[0]);
    for (int i = 0; i < 2; i++) {
        const rose_cuda_norm a = {
            .x = x,
            .by = {.kind = kind, .w = x + n_x, .b = d % 64 == 0 ? x + n_x + d : NULL, .eps = 1e-5f},
            .gather = gathered ? gather : NULL,
            .key = gathered ? key : NULL,
            .out = out,
            .out_k_pad = k_pad,
            .d = d,
            .rows = m};
        assert_non_null(y[i] = malloc(n_out));
        assert_non_null(keys[i] = malloc(n_keys * sizeof *keys[i]));
        assert_int_equal(cudaMemset(out, 0x3c, n_out), cudaSuccess);
        assert_int_equal(cudaMemset(key, 0x3c, n_keys * sizeof *keys[i]), cudaSuccess);
        norm_in_steps(type, &a, i == 0 ? 1000 : m + 8);
        fetch(y[i], out, n_out);
        fetch(keys[i], key, n_keys * sizeof *keys[i]);
    }
    assert_memory_equal(y[0], y[1], n_out);
    assert_memory_equal(keys[0], keys[1], n_keys * sizeof *keys[0]);
    for (int i = 0; i < 2; i++) {
        free(y[i]);
        free(keys[i]);
    }
    free(values);
    free(from);
    cudaFree(x);
    cudaFree(gather);
    cudaFree(out);
    cudaFree(key);
}

/* As many rows as one kernel leaves to another: both give the same bits. */
static void test_many_norms(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1056, 1057, 1064, 2113, 5003},
                          dims[] = {64, 264, 768, 776, 1024};
    fx_random r = {.seed = fx_seed() + 3};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t j = 0; j < sizeof dims / sizeof *dims; j++)
                norm_both_ways(rows[i], dims[j], (rose_format)(ROSE_F16 + t), (i + j) % 2 != 0, &r);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm),
                                       cmocka_unit_test(test_many_norms)};
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
