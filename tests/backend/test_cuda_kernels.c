/* tests/backend/test_cuda_kernels.c - compares the GEMM kernels and LayerNorm with sums in
 * double precision: edge shapes, fresh inputs, poisoned outputs with canaries after them. */
#include <math.h>

#include "backend/cuda_bits.h"

enum { CANARY = 64 };
static const float g_poison = 12345.5f;

typedef struct problem {
    rose_cuda_type type;
    uint32_t m, k, n;
    rose_cuda_linear w;
    const rose_cuda_gemm *forced;
    void *h;              /* device, blocked */
    float *x, *wt, *bias; /* host: [m][k] and [k][n] rounded to the type, [n] */
    double *want;         /* [m][n] */
} problem;

static problem make_problem(fx_random *r, rose_cuda_type t, uint32_t m, uint32_t k, uint32_t n)
{
    problem p = {.type = t, .m = m, .k = k, .n = n};
    const size_t size = rose_cuda_type_size(t);
    const bool transposed = fx_below(r, 2) != 0;
    const rose_cuda_launch at = {.device = fx_gpu(), .type = t};
    p.w = (rose_cuda_linear){.k = k, .n = n, .k_pad = up(k, 32), .n_pad = up(n, 128)};
    p.x = calloc((size_t)m * k, sizeof(float));
    p.wt = calloc((size_t)k * n, sizeof(float));
    p.bias = calloc(n, sizeof(float));
    p.want = calloc((size_t)m * n, sizeof(double));
    uint8_t *h = calloc((size_t)up(m, 128) * p.w.k_pad, size);
    float *file = calloc((size_t)k * n, sizeof(float));
    assert_true(p.x && p.wt && p.bias && p.want && h && file);
    for (size_t i = 0; i < (size_t)m * k; i++) {
        p.x[i] = fx_rounded(t, 2 * fx_uniform(r) - 1);
        put(t, h, fx_h_at((uint32_t)(i / k), (uint32_t)(i % k), p.w.k_pad), p.x[i]);
    }
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < n; j++) {
            float v = fx_rounded(t, (2 * fx_uniform(r) - 1) * 0.1f);
            p.wt[(size_t)i * n + j] = v;
            file[transposed ? (size_t)j * k + i : (size_t)i * n + j] = v;
        }
    for (uint32_t j = 0; j < n; j++)
        p.bias[j] = 2 * fx_uniform(r) - 1;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t kk = 0; kk < k; kk++)
            for (uint32_t j = 0; j < n; j++)
                p.want[(size_t)i * n + j] +=
                    (double)p.x[(size_t)i * k + kk] * (double)p.wt[(size_t)kk * n + j];
    p.h = fx_to_device(h, (size_t)up(m, 128) * p.w.k_pad * size);
    p.w.bias = fx_to_device(p.bias, n * sizeof(float));
    p.w.w = fx_to_device(NULL, (size_t)p.w.k_pad * p.w.n_pad * size);
    void *src = fx_to_device(file, (size_t)k * n * sizeof(float));
    const rose_cuda_pack pack = {.src = src,
                                 .src_type = ROSE_F32,
                                 .n_rows = transposed ? n : k,
                                 .width = transposed ? k : n,
                                 .transposed = transposed,
                                 .dst = p.w.w,
                                 .k_pad = p.w.k_pad};
    assert_int_equal(rose_cuda_pack_run(&at, &pack), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    if (t != ROSE_CUDA_F32) {
        p.w.cores = fx_to_device(NULL, (size_t)p.w.k_pad * p.w.n_pad * size);
        assert_int_equal(rose_cuda_cores_run(&at, &p.w), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    }
    cudaFree(src);
    free(file);
    free(h);
    return p;
}

static void free_problem(problem *p)
{
    cudaFree(p->h);
    cudaFree(p->w.w);
    cudaFree(p->w.cores);
    cudaFree(p->w.bias);
    free(p->x);
    free(p->wt);
    free(p->bias);
    free(p->want);
}

/* x += x w + bias, on poisoned memory; the rows after it must stay unchanged. */
static float *run_residual(const problem *p)
{
    const size_t n = (size_t)(p->m + CANARY) * p->n;
    const rose_cuda_launch at = {.device = fx_gpu(), .type = p->type, .forced = p->forced};
    float *y = calloc(n, sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < n; i++)
        y[i] = i < (size_t)p->m * p->n ? 1.0f : g_poison;
    float *d = fx_to_device(y, n * sizeof *y);
    const rose_cuda_io io = {
        .h = p->h, .x = d, .ld_x = p->n, .rows = p->m, .epilogue = ROSE_CUDA_EPI_RESIDUAL};
    assert_int_equal(rose_cuda_linear_run(&at, &p->w, &io), cudaSuccess);
    fetch(y, d, n * sizeof *y);
    cudaFree(d);
    for (size_t i = (size_t)p->m * p->n; i < n; i++)
        assert_true(y[i] == g_poison);
    return y;
}

static void check_residual(const problem *p, const float *y)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < (size_t)p->m * p->n; i++) {
        double want = p->want[i] + (double)p->bias[i % p->n] + 1, e = (double)y[i] - want;
        diff += e * e;
        size += want * want;
    }
    if (!(sqrt(diff / size) < 1e-5))
        fail_msg("type %d, %u x %u x %u: relative error %g", (int)p->type, p->m, p->k, p->n,
                 sqrt(diff / size));
}

static void check_act(const problem *p)
{
    const size_t size = rose_cuda_type_size(p->type);
    const uint32_t k_pad = up(p->n, 32), rows = up(p->m, 8) + CANARY;
    const rose_cuda_launch at = {.device = fx_gpu(), .type = p->type, .forced = p->forced};
    const double tolerance = p->type == ROSE_CUDA_F16    ? 5e-4
                             : p->type == ROSE_CUDA_BF16 ? 4e-3
                                                         : 1e-5;
    uint8_t *y = calloc((size_t)rows * k_pad, size);
    double diff = 0, all = 0;
    assert_non_null(y);
    for (size_t i = 0; i < (size_t)rows * k_pad; i++)
        put(p->type, y, i, 99);
    void *d = fx_to_device(y, (size_t)rows * k_pad * size);
    const rose_cuda_io io = {.h = p->h,
                             .rows = p->m,
                             .epilogue = ROSE_CUDA_EPI_ACT,
                             .out = d,
                             .out_k_pad = k_pad,
                             .act = ROSE_ACT_GELU_TANH};
    assert_int_equal(rose_cuda_linear_run(&at, &p->w, &io), cudaSuccess);
    fetch(y, d, (size_t)rows * k_pad * size);
    cudaFree(d);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < k_pad; j++) {
            const double got = (double)get(p->type, y, fx_h_at(i, j, k_pad));
            if (i >= p->m || j >= p->n) {
                assert_true(got == 99);
                continue;
            }
            double x = p->want[(size_t)i * p->n + j] + (double)p->bias[j];
            double want = 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
            diff += (got - want) * (got - want);
            all += want * want;
        }
    assert_true(sqrt(diff / all) < tolerance);
    free(y);
}

/* Without bias, an odd number of outputs: in one chain over all of k, so apart from the residual;
 * and the largest of each row. */
static void check_logits(const problem *p)
{
    const uint32_t n = p->n - 1, ld = p->n + 5;
    const rose_cuda_launch at = {.device = fx_gpu(), .type = p->type, .forced = p->forced};
    rose_cuda_linear w = p->w;
    float *y = calloc((size_t)p->m * ld, sizeof *y);
    unsigned long long *key = calloc(p->m, sizeof *key);
    assert_true(y && key);
    for (size_t i = 0; i < (size_t)p->m * ld; i++)
        y[i] = g_poison;
    float *d = fx_to_device(y, (size_t)p->m * ld * sizeof *y);
    unsigned long long *dk = fx_to_device(NULL, p->m * sizeof *dk);
    w.n = n;
    w.bias = NULL;
    const rose_cuda_io io = {.h = p->h,
                             .rows = p->m,
                             .epilogue = ROSE_CUDA_EPI_LOGITS,
                             .logits = d,
                             .key = dk,
                             .ld_logits = ld};
    assert_int_equal(rose_cuda_linear_run(&at, &w, &io), cudaSuccess);
    fetch(y, d, (size_t)p->m * ld * sizeof *y);
    fetch(key, dk, p->m * sizeof *key);
    cudaFree(d);
    cudaFree(dk);
    double diff = 0, size = 0;
    for (uint32_t i = 0; i < p->m; i++) {
        const float *row = y + (size_t)i * ld;
        const double *want = p->want + (size_t)i * p->n;
        uint32_t best = 0;
        for (uint32_t j = 0; j < ld; j++) {
            if (j >= n) {
                assert_true(row[j] == g_poison);
                continue;
            }
            if (row[j] > row[best]) best = j;
            diff += ((double)row[j] - want[j]) * ((double)row[j] - want[j]);
            size += want[j] * want[j];
        }
        assert_int_equal(~(uint32_t)key[i], best);
    }
    assert_true(sqrt(diff / size) < 1e-5);
    free(y);
    free(key);
}

static void compare_kernels(fx_random *r, rose_cuda_type type, uint32_t m, uint32_t k, uint32_t n)
{
    problem p = make_problem(r, type, m, k, n);
    const uint32_t n_kernels = type == ROSE_CUDA_F32 ? 1 : 1 + rose_cuda_n_gemms;
    float *want = NULL;
    for (uint32_t kernel = 0; kernel < n_kernels; kernel++) {
        p.forced = fx_kernel(kernel);
        if (kernel > 0 && left_out(p.forced)) continue;
        float *y = run_residual(&p);
        check_act(&p);
        check_logits(&p);
        if (kernel == 0) {
            want = y;
            continue;
        }
        assert_memory_equal(want, y, (size_t)p.m * p.n * sizeof *y);
        free(y);
    }
    check_residual(&p, want);
    free(want);
    free_problem(&p);
}

static void test_products(void **state)
{
    (void)state;
    static const uint32_t ms[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 300};
    static const uint32_t kn[][2] = {{8, 8},     {96, 24},   {192, 136}, {200, 1032},
                                     {768, 256}, {3072, 72}, {64, 16392}};
    fx_random r = {.seed = fx_seed()};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 15; i++)
            for (int j = 0; j < 7; j++)
                if (kn[j][1] <= 10000 || i % 4 == 0)
                    compare_kernels(&r, (rose_cuda_type)t, ms[i], kn[j][0], kn[j][1]);
}

/* What the sanitizers run: every kernel. */
static void test_little(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 3};
    compare_kernels(&r, ROSE_CUDA_F16, 20, 96, 20000);
    compare_kernels(&r, ROSE_CUDA_BF16, 7, 64, 26000);
    compare_kernels(&r, ROSE_CUDA_F16, 12, 200, 26000);
    compare_kernels(&r, ROSE_CUDA_BF16, 70, 768, 200);
}

/* Clusters of 3 and 4 blocks that make a tile together. */
static void test_chains(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 6};
    compare_kernels(&r, ROSE_CUDA_F16, 130, 1600, 264);
    compare_kernels(&r, ROSE_CUDA_BF16, 40, 3072, 136);
}

/* The residual of small numbers, of which some sums are denormal, cancel or are zeros of either
 * sign: by each kernel as plain fp32 addition has it. And of infinities and NaN: alike in all. */
static void check_denormals(uint32_t k)
{
    enum { M = 130, N = 192 };
    static const int exponents[] = {-124, -126, -135};
    static float x[M * N], bias[N], want[M * N], y[M * N];
    fx_random r = {.seed = fx_seed() + 5};
    for (int i = 0; i < N; i++)
        bias[i] = i % 7 == 0 ? (i % 2 != 0 ? -0.0f : 0.0f)
                             : ldexpf(2 * fx_uniform(&r) - 1, exponents[fx_below(&r, 3)]);
    for (int i = 0; i < M * N; i++) {
        const uint32_t kind = fx_below(&r, 16);
        x[i] = kind == 0   ? 0.0f
               : kind == 1 ? -0.0f
               : kind == 2 ? -bias[i % N]
                           : ldexpf(2 * fx_uniform(&r) - 1, exponents[fx_below(&r, 3)]);
        if (i % 1001 == 0) x[i] = i % 3 == 0 ? NAN : i % 2 != 0 ? INFINITY : -INFINITY;
    }
    bits b = {.type = ROSE_CUDA_F16, .k = k, .n = N};
    b.w = fx_to_device(NULL, (size_t)up(k, 32) * up(N, 128) * 2);
    assert_int_equal(cudaMemset(b.w, 0, (size_t)up(k, 32) * up(N, 128) * 2), cudaSuccess);
    b.cores[0] = make_cores(&b, false);
    void *h = fx_to_device(NULL, (size_t)up(M, 128) * k * 2);
    assert_int_equal(cudaMemset(h, 0, (size_t)up(M, 128) * k * 2), cudaSuccess);
    float *on_device = fx_to_device(bias, sizeof bias);
    int n_bad = 0;
    for (uint32_t way = 0; way < 2 + rose_cuda_n_gemms; way++) {
        const rose_cuda_gemm *kernel = way == 0 ? fx_named("tiles") : fx_kernel(way - 1);
        const rose_cuda_launch at = {.device = fx_gpu(), .type = b.type, .forced = kernel};
        const rose_cuda_linear w = {.w = b.w,
                                    .cores = b.cores[0],
                                    .bias = on_device,
                                    .k = k,
                                    .k_pad = up(k, 32),
                                    .n = N,
                                    .n_pad = up(N, 128)};
        float *d = fx_to_device(x, sizeof x);
        const rose_cuda_io io = {
            .h = h, .rows = M, .epilogue = ROSE_CUDA_EPI_RESIDUAL, .x = d, .ld_x = N};
        assert_int_equal(rose_cuda_linear_run(&at, &w, &io), cudaSuccess);
        fetch(y, d, sizeof y);
        cudaFree(d);
        if (way == 0) memcpy(want, y, sizeof y);
        int n = 0;
        for (int i = 0; i < M * N; i++) {
            const float sum = x[i] + (0.0f + bias[i % N]);
            n += memcmp(&want[i], &y[i], sizeof sum) != 0 ||
                 (isfinite(x[i]) && memcmp(&sum, &y[i], sizeof sum) != 0);
        }
        if (n > 0) print_message("kernel %s: %d of %d differ\n", fx_kernel_name(kernel), n, M * N);
        n_bad += n > 0;
    }
    cudaFree(b.w);
    cudaFree(b.cores[0]);
    cudaFree(h);
    cudaFree(on_device);
    assert_int_equal(n_bad, 0);
}

/* A chunk of k, and four. */
static void test_denormals(void **state)
{
    (void)state;
    check_denormals(64);
    check_denormals(768);
}

static void test_norm(void **state)
{
    (void)state;
    static const uint32_t ds[] = {8, 80, 256, 768, 1024, 1032, 1600, 4096};
    fx_random r = {.seed = fx_seed() + 1};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 8; i++) {
            enum { M = 37 };
            const uint32_t d = ds[i], k_pad = up(d, 32);
            const rose_cuda_type type = (rose_cuda_type)t;
            const size_t size = rose_cuda_type_size(type), n_out = (size_t)up(M, 8) * k_pad;
            const rose_cuda_launch at = {.device = fx_gpu(), .type = type};
            float *x = calloc((size_t)M * d, sizeof *x), *w = calloc(2 * d, sizeof *w);
            uint8_t *y = calloc(n_out, size);
            double diff = 0, all = 0;
            assert_true(x && w && y);
            for (size_t j = 0; j < (size_t)M * d; j++)
                x[j] =
                    3 * fx_uniform(&r) + (j % d == 5 ? 100.0f : 0); /* an outlier, as GPT-2 has */
            for (uint32_t j = 0; j < 2 * d; j++)
                w[j] = fx_uniform(&r);
            float *dx = fx_to_device(x, (size_t)M * d * sizeof *x),
                  *dw = fx_to_device(w, 2 * d * sizeof *w);
            void *dy = fx_to_device(y, n_out * size);
            const rose_cuda_norm a = {.x = dx,
                                      .w = dw,
                                      .b = dw + d,
                                      .eps = 1e-5f,
                                      .out = dy,
                                      .out_k_pad = k_pad,
                                      .d = d,
                                      .rows = M};
            assert_int_equal(rose_cuda_norm_run(&at, &a), cudaSuccess);
            fetch(y, dy, n_out * size);
            for (uint32_t m = 0; m < M; m++) {
                double mean = 0, var = 0;
                for (uint32_t j = 0; j < d; j++)
                    mean += (double)x[(size_t)m * d + j] / d;
                for (uint32_t j = 0; j < d; j++)
                    var += pow((double)x[(size_t)m * d + j] - mean, 2) / d;
                for (uint32_t j = 0; j < d; j++) {
                    double want =
                        ((double)x[(size_t)m * d + j] - mean) / sqrt(var + 1e-5) * (double)w[j] +
                        (double)w[d + j];
                    double e = (double)get(type, y, fx_h_at(m, j, k_pad)) - want;
                    diff += e * e;
                    all += want * want;
                }
            }
            assert_true(sqrt(diff / all) < (t == 0 ? 5e-4 : t == 1 ? 4e-3 : 1e-6));
            cudaFree(dx);
            cudaFree(dw);
            cudaFree(dy);
            free(x);
            free(w);
            free(y);
        }
}

/* As launches of up to `step` rows, a multiple of 8, each. */
static void norm_in_steps(rose_cuda_type type, const rose_cuda_norm *all, uint32_t step)
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

static void norm_both_ways(uint32_t m, uint32_t d, rose_cuda_type type, bool gathered, fx_random *r)
{
    const uint32_t k_pad = (d + 31) / 32 * 32;
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
        const rose_cuda_norm a = {.x = x,
                                  .w = x + n_x,
                                  .b = x + n_x + d,
                                  .gather = gathered ? gather : NULL,
                                  .key = gathered ? key : NULL,
                                  .eps = 1e-5f,
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
                norm_both_ways(rows[i], dims[j], (rose_cuda_type)t, (i + j) % 2 != 0, &r);
}

/* Rows of x about 1, an outlier in each; those from m on are NaNs, which nothing may read. */
static float *random_x(fx_random *r, uint32_t m, uint32_t k)
{
    float *x = malloc((size_t)16 * k * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < (size_t)16 * k; i++)
        x[i] = i >= (size_t)m * k ? NAN : i % k == 5 ? 100 : 2 * fx_uniform(r) - 1;
    float *d = fx_to_device(x, (size_t)16 * k * sizeof *x);
    free(x);
    return d;
}

static void compare_normed(fx_random *r, rose_cuda_type type, uint32_t m, uint32_t k, uint32_t n)
{
    static const rose_cuda_epilogue epilogues[] = {ROSE_CUDA_EPI_QKV, ROSE_CUDA_EPI_QKV,
                                                   ROSE_CUDA_EPI_ACT};
    bits b = {.type = type, .m = m, .k = k, .n = n, .x = random_x(r, m, k)};
    b.head_dim = some_head_dim(k, m);
    float *values = malloc((2 * k + n) * sizeof *values);
    assert_non_null(values);
    for (uint32_t i = 0; i < 2 * k + n; i++)
        values[i] = 2 * fx_uniform(r) - 1;
    b.norm = fx_to_device(values, 2 * k * sizeof *values);
    b.bias = fx_to_device(values + 2 * k, n * sizeof *values);
    free(values);
    b.w = random_values(r, type, (size_t)up(k, 32) * up(n, 128), 0.1f);
    b.h = fx_to_device(NULL, (size_t)up(m, 128) * up(k, 32) * 2);
    b.slot = random_slots(r, m, &b.n_pages);
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        b.without = ROSE_CUDA_WITHOUT_NORMED;
        b.to_rows = epilogues[i] == ROSE_CUDA_EPI_QKV && i > 0;
        uint8_t *want = run_bits(&b, epilogues[i], fx_named("rows"), &bytes);
        if (want == NULL) continue;
        b.without = 0;
        uint8_t *y = run_bits(&b, epilogues[i], NULL, &bytes);
        if (memcmp(y, want, bytes) != 0)
            fail_msg("type %d, %u x %u x %u, epilogue %d: LayerNorm in the product differs",
                     (int)type, m, k, n, (int)epilogues[i]);
        free(y);
        free(want);
    }
    cudaFree(b.x);
    cudaFree(b.norm);
    cudaFree(b.bias);
    cudaFree(b.w);
    cudaFree(b.h);
    cudaFree(b.slot);
}

/* A GEMM that computes the LayerNorm of its rows gives the same bits as a GEMM after LayerNorm. */
static void test_normed(void **state)
{
    (void)state;
    static const uint32_t kn[][2] = {{8, 32},     {64, 192},   {192, 576},  {200, 100},
                                     {256, 768},  {320, 960},  {768, 2304}, {768, 3072},
                                     {768, 1034}, {832, 2496}, {1000, 40},  {1024, 3072}};
    fx_random r = {.seed = fx_seed() + 4};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof kn / sizeof *kn; i++)
            for (uint32_t m = 1; m <= 8; m++)
                compare_normed(&r, (rose_cuda_type)t, m, kn[i][0], kn[i][1]);
}

/* Refused, not done otherwise: more rows, longer ones, another epilogue, left out. */
static void test_normed_refused(void **state)
{
    (void)state;
    const float one = 1;
    const rose_cuda_linear l = {.k = 768, .k_pad = 768, .n = 2304, .n_pad = 2304};
    const rose_cuda_launch at = {.device = fx_gpu(), .without = 0};
    for (int i = 0; i < 6; i++) {
        rose_cuda_launch a = at;
        rose_cuda_linear w = l;
        rose_cuda_io io = {.epilogue = ROSE_CUDA_EPI_ACT, .rows = 8, .norm_w = &one};
        if (i == 1) io.rows = 9;
        if (i == 2) w.k = w.k_pad = 1056;
        if (i == 3) io.epilogue = ROSE_CUDA_EPI_RESIDUAL;
        if (i == 4) a.without = ROSE_CUDA_WITHOUT_NORMED;
        if (i == 5) a.type = ROSE_CUDA_F32;
        assert_int_equal(rose_cuda_linear_norms(&a, &w, &io), i == 0);
        if (i > 0) assert_int_equal(rose_cuda_linear_run(&a, &w, &io), cudaErrorInvalidValue);
    }
    rose_cuda_launch forced = at;
    forced.forced = fx_named("rows");
    const rose_cuda_io io = {.epilogue = ROSE_CUDA_EPI_ACT, .rows = 8};
    assert_false(rose_cuda_linear_norms(&forced, &l, &io));
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_little),
        cmocka_unit_test(test_chains),   cmocka_unit_test(test_denormals),
        cmocka_unit_test(test_norm),     cmocka_unit_test(test_many_norms),
        cmocka_unit_test(test_normed),   cmocka_unit_test(test_normed_refused),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
