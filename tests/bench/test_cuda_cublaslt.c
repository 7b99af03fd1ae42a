/* tests/bench/test_cuda_cublaslt.c - what `bench kernels` asks of cuBLASLt is what it gets: every
 * end of a product, by every algorithm it offers, against sums in double precision. Exits 77
 * without a GPU or the library (ROSE_CUBLASLT: its path). */
#include "backend/cuda_fixture.h"
#include "bench/kernels_internal.h"

enum { N_OUT = 256, N_IN = 192 };

static rose_cublaslt *g_library;

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* Random numbers in (-scale, scale) of a type, on the device; their values to `values`. */
static void *random_device(fx_random *r, rose_format t, size_t n, float scale, float *values)
{
    const size_t size = rose_format_size(t);
    uint8_t *h = calloc(n, size);
    for (size_t i = 0; i < n; i++) {
        const float v = ((float)fx_below(r, 20001) / 10000 - 1) * scale;
        const uint16_t u = fx_16(t, v);
        values[i] = fx_rounded(t, v);
        memcpy(h + i * size, t == ROSE_F32 ? (const void *)&values[i] : (const void *)&u, size);
    }
    void *p = fx_to_device(h, n * size);
    free(h);
    return p;
}

typedef struct values {
    float x[128 * N_IN], w[N_OUT * N_IN], bias[N_OUT], y[128 * N_OUT];
} values;

static double expected(const values *v, rose_cublaslt_end end, uint32_t row, uint32_t n)
{
    double p = 0;
    for (uint32_t k = 0; k < N_IN; k++)
        p += (double)v->x[row * N_IN + k] * (double)v->w[n * N_IN + k];
    const double bias = (double)v->bias[n], old = (double)v->y[row * N_OUT + n];
    return end == ROSE_CUBLASLT_BIAS        ? p + bias
           : end == ROSE_CUBLASLT_BIAS_GELU ? gelu(p + bias)
           : end == ROSE_CUBLASLT_ADD_BIAS  ? old + p + bias
           : end == ROSE_CUBLASLT_ADD       ? old + p
                                            : p;
}

/* By every algorithm; returns how many. */
static uint32_t compare(fx_random *r, rose_format t, rose_cublaslt_end end, uint32_t rows)
{
    const rose_format y_type = end >= ROSE_CUBLASLT_ADD_BIAS ? ROSE_F32 : t;
    const size_t n_y = (size_t)rows * N_OUT, bytes = n_y * rose_format_size(y_type);
    const double unit = y_type == ROSE_F32 ? 1e-5 : t == ROSE_F16 ? 1.0 / 1024 : 1.0 / 128;
    values *v = calloc(1, sizeof *v);
    uint8_t *got = calloc(1, bytes);
    void *x = random_device(r, t, (size_t)rows * N_IN, 1, v->x);
    void *w = random_device(r, t, (size_t)N_OUT * N_IN, 0.25f, v->w);
    void *bias = random_device(r, y_type, N_OUT, 2, v->bias);
    void *old = random_device(r, y_type, n_y, 2, v->y), *y = NULL;
    const rose_cublaslt_product p = {t, end, rows, N_OUT, N_IN, bias};
    uint32_t n = 0;
    rose_err err = {""};

    assert_int_equal(cudaMalloc(&y, bytes), cudaSuccess);
    if (rose_cublaslt_prepare(g_library, &p, &n, &err) != ROSE_OK) print_message("%s\n", err.msg);
    for (uint32_t a = 0; a < n; a++) {
        assert_int_equal(cudaMemcpy(y, old, bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
        assert_int_equal(rose_cublaslt_run(g_library, a, x, w, y, NULL, &err), ROSE_OK);
        assert_int_equal(cudaMemcpy(got, y, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        for (size_t i = 0; i < n_y; i++) {
            const double want = expected(v, end, (uint32_t)(i / N_OUT), (uint32_t)(i % N_OUT));
            float have;
            uint16_t u;
            memcpy(&have, got + (y_type == ROSE_F32 ? i * 4 : 0), 4);
            memcpy(&u, got + (y_type == ROSE_F32 ? 0 : i * 2), 2);
            if (y_type != ROSE_F32) have = t == ROSE_F16 ? rose_f16_to_f32(u) : rose_bf16_to_f32(u);
            if (!(fabs((double)have - want) <= unit * (2 + fabs(want))))
                fail_msg("type %d, end %d, %u rows, algorithm %u, [%zu]: %g, not %g", t, end, rows,
                         a, i, (double)have, want);
        }
    }
    cudaFree(x);
    cudaFree(w);
    cudaFree(bias);
    cudaFree(old);
    cudaFree(y);
    free(got);
    free(v);
    return n;
}

static void test_ends(void **state)
{
    static const uint32_t rows[] = {1, 40, 128};
    fx_random r = {.seed = fx_seed()};
    (void)state;
    for (rose_format t = ROSE_F16; t <= ROSE_BF16; t++)
        for (rose_cublaslt_end end = 0; end < ROSE_CUBLASLT_N_ENDS; end++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                const uint32_t n = compare(&r, t, end, rows[i]);
                /* A residual and a bias at once it need not have. */
                if (end != ROSE_CUBLASLT_ADD_BIAS) assert_true(n > 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends)};
    rose_err err = {""};
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    const rose_status st = rose_cublaslt_open(&g_library, getenv("ROSE_CUBLASLT"), &err);
    if (st != ROSE_OK) printf("%s\n", err.msg);
    if (st == ROSE_E_UNSUPPORTED) return 77;
    const int rc = st == ROSE_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    rose_cublaslt_close(g_library);
    return rc;
}
