/* tests/backend/test_cuda_gemm.c - every GEMM kernel of the table (gemm.h). The kernel tiles-64x64
 * against sums in double precision; all others against it, bit for bit, at random and at odd
 * shapes; parts against a loop over them; a norm in the GEMM against the norm kernel; and kernels
 * that start before the one that they depend on has finished. A line that begins with FAILED names
 * each kernel and shape. ROSE_CUDA_KERNEL=NAME tests only kernels whose names begin so. */
#include "backend/cuda_fixture.h"
#include "backend/gemm_cases.h"

/* ---- hooks of gemm_cases.h ---- */

static void *gc_device(const void *from, size_t bytes)
{
    return fx_to_device(from, bytes);
}
static void gc_fetch(void *to, const void *from, size_t bytes)
{
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) fail_msg("a kernel failed: %s", cudaGetErrorString(e));
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}
static void gc_free(void *device)
{
    cudaFree(device);
}
static float gc_value(rose_format t, const void *from, size_t i)
{
    if (t == ROSE_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return t == ROSE_F16 ? rose_f16_to_f32(h) : rose_bf16_to_f32(h);
}
static void gc_put(rose_format t, void *to, size_t i, float x)
{
    if (t == ROSE_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = fx_16(t, x);
}
static const rose_cuda_device *gc_gpu(void)
{
    return fx_gpu();
}

/* ---- all kernels, bit for bit ---- */

static uint32_t g_compared[256]; /* of each kernel: how many results were compared */

static bool left_out(const rose_gemm_kernel *g)
{
    const char *only = getenv("ROSE_CUDA_KERNEL");
    return only != NULL && (g == NULL || strncmp(only, g->name, strlen(only)) != 0);
}

/* How many kernels differ from tiles-64x64. */
static int compare_way(const gc_problem *p, const gc_way *w)
{
    int n_bad = 0;
    uint8_t *want = NULL;
    for (uint32_t i = 0; gc_has(p, w) && i <= rose_gemm_n_kernels; i++) {
        const rose_gemm_kernel *g = fx_kernel(i);
        if (left_out(g) || !gc_takes(p, w, g)) continue;
        if (want == NULL) want = gc_run(p, w, fx_named("tiles-64x64"));
        uint8_t *y = gc_run(p, w, g);
        n_bad += gc_differ(p, w, fx_kernel_name(g), y, want);
        g_compared[i]++;
        free(y);
    }
    free(want);
    return n_bad;
}

/* logits: only the ways of LOGITS, else every other one too. */
static int compare_shape(rose_format t, uint32_t rows, uint32_t k, uint32_t n, bool logits)
{
    static const uint32_t heads[] = {0, 64, 128, 80, 96, 48};
    const uint32_t head = heads[gc_any(6)];
    int n_bad = 0;
    gc_problem p = gc_make(t, rows, k, n, head != 0 && k % head == 0 ? head : 0);
    for (uint32_t i = 0; i < GC_WAYS; i++)
        if (!logits || gc_ways[i].end == ROSE_END_LOGITS) n_bad += compare_way(&p, &gc_ways[i]);
    gc_drop(&p);
    return n_bad;
}

static void test_odd(void **state)
{
    static const uint32_t shapes[][3] = {
        {1, 16, 8},       {2, 64, 16},      {8, 576, 576},   {9, 768, 136},    {16, 72, 24},
        {17, 200, 264},   {33, 1000, 1000}, {64, 960, 2560}, {65, 1024, 128},  {129, 3072, 768},
        {257, 64, 392},   {300, 1536, 960}, {1, 3072, 1024}, {4, 2048, 1024},  {128, 2048, 48},
        {31, 4096, 1160}, {100, 3072, 872}, {1, 2560, 6144}, {13, 4096, 6144},
    };
    int n_bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++)
            n_bad += compare_shape((rose_format)(ROSE_F16 + t), shapes[i][0], shapes[i][1],
                                   shapes[i][2], false);
    assert_int_equal(n_bad, 0);
}

static void test_random(void **state)
{
    static const uint32_t ks[] = {64, 576, 768, 960, 1024, 1536, 2048, 3072},
                          most[] = {8, 8, 16, 32, 64, 128, 300};
    int n_bad = 0;
    (void)state;
    for (int i = 0; i < 50; i++) {
        const uint32_t k = gc_any(6) == 0 ? 8 + gc_any(200) * 8 : ks[gc_any(8)];
        const uint32_t rows = 1 + gc_any(most[i % 7]), n = 8 * (1 + gc_any(i % 3 == 0 ? 300 : 60));
        n_bad += compare_shape((rose_format)(ROSE_F16 + i % 2), rows, k, n, false);
    }
    assert_int_equal(n_bad, 0);
}

/* Prompts, and logits of a whole vocabulary. */
static void test_large(void **state)
{
    int n_bad = 0;
    (void)state;
    n_bad += compare_shape(ROSE_BF16, 2048, 1024, 512, false);
    n_bad += compare_shape(ROSE_F16, 2048, 576, 320, false);
    n_bad += compare_shape(ROSE_F16, 3, 768, 50264, true);
    n_bad += compare_shape(ROSE_BF16, 32, 1024, 32000, true);
    n_bad += compare_shape(ROSE_BF16, 129, 576, 49152, true);
    assert_int_equal(n_bad, 0);
}

/* What the sanitizers run: every kernel, few values. */
static void test_little(void **state)
{
    int n_bad = 0;
    (void)state;
    n_bad += compare_shape(ROSE_BF16, 5, 192, 144, false);
    n_bad += compare_shape(ROSE_F16, 140, 80, 272, false);
    assert_int_equal(n_bad, 0);
}

/* ---- against other sums ---- */

static void check_exactly(rose_format t, uint32_t rows, uint32_t k, uint32_t n, uint32_t head)
{
    const rose_gemm_kernel *g = t == ROSE_F32 ? NULL : fx_named("tiles-64x64");
    gc_problem p = gc_make(t, rows, k, n, head);
    for (uint32_t i = 0; i < GC_WAYS; i++) {
        if (!gc_has(&p, &gc_ways[i])) continue;
        uint8_t *y = gc_run(&p, &gc_ways[i], g);
        gc_check(&p, &gc_ways[i], g != NULL ? g->name : "fp32", y);
        free(y);
    }
    gc_check_parts(&p, g);
    gc_drop(&p);
}

static void test_exact(void **state)
{
    static const uint32_t shapes[][4] = {
        {1, 16, 16, 0},     {7, 72, 24, 0},    {37, 200, 136, 0}, {70, 768, 80, 64},
        {130, 960, 72, 80}, {9, 3072, 64, 96}, {3, 576, 592, 64},
    };
    (void)state;
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_exactly((rose_format)t, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
}

/* fp32: exactly the chains of fused multiply-adds that gemm.h states. */
static void test_chains(void **state)
{
    static const gc_way residual = {ROSE_END_RESIDUAL, true, 0, 0, 0, false};
    (void)state;
    gc_problem p = gc_make(ROSE_F32, 35, 200, 72, 0);
    const rose_cuda_matrix m = gc_matrix(&p, &residual);
    const gc_layout l = gc_layout_of(&p, &residual);
    uint8_t *y = gc_run(&p, &residual, NULL);
    for (uint32_t i = 0; i < p.rows; i++)
        for (uint32_t j = 0; j < p.n; j++) {
            float x = p.x[i * p.n + j];
            for (uint32_t part = 0; part < ROSE_GEMM_PARTS; part++) {
                float sum = 0;
                for (uint32_t k = m.cut[part]; k < m.cut[part + 1]; k++)
                    sum = fmaf(gc_value(p.type, p.h, gc_h_at(i, k, p.k_pad)),
                               gc_value(p.type, p.w, gc_w_at(&p, j, k)), sum);
                if (part == 0 && m.bias != NULL) sum += p.bias[j];
                x += sum;
            }
            assert_memory_equal(&x, y + gc_out_at(&l, i, j), sizeof x);
        }
    free(y);
    gc_drop(&p);
}

/* ---- norms in the GEMM ---- */

enum { X_ROWS = 8 };

/* x [8][k] on the device. Rows from `rows` on are NaN. */
static float *random_x(uint32_t rows, uint32_t k)
{
    float *x = gc_alloc(X_ROWS * (size_t)k * sizeof *x);
    for (uint32_t i = 0; i < X_ROWS * k; i++)
        x[i] = i / k >= rows ? NAN : i % k == 5 ? 100 : gc_float();
    float *d = gc_device(x, X_ROWS * (size_t)k * sizeof *x);
    free(x);
    return d;
}

static int compare_normed(const gc_problem *p, const rose_cuda_norm_by *by, float *x)
{
    int n_bad = 0;
    const rose_cuda_launch at = gc_launch(p, NULL);
    const rose_cuda_norm norm = {
        .x = x, .by = *by, .out = p->d_h, .out_k_pad = p->k_pad, .d = p->k, .rows = p->rows};
    assert_int_equal(rose_cuda_norm_run(&at, &norm), cudaSuccess);
    for (uint32_t way = 0; way < GC_WAYS; way++) {
        const gc_way *w = &gc_ways[way];
        if (!gc_has(p, w) || w->end == ROSE_END_RESIDUAL) continue;
        uint8_t *want = gc_run(p, w, fx_named("tiles-64x64"));
        for (uint32_t i = 0; i < rose_gemm_n_kernels; i++) {
            const rose_gemm_kernel *g = &rose_gemm_kernels[i];
            const rose_cuda_matrix m = gc_matrix(p, w);
            const rose_gemm_io io = {.end = w->end, .rows = p->rows};
            const rose_cuda_launch with = gc_launch(p, g);
            if (left_out(g) || !rose_gemm_takes(g, &with, &m, &io)) continue;
            uint8_t *y = gc_run_normed(p, w, g, by, x);
            if (gc_differ(p, w, g->name, y, want)) {
                printf("FAILED norm of kind %d in kernel %s\n", (int)by->kind, g->name);
                n_bad++;
            }
            free(y);
        }
        free(want);
    }
    return n_bad;
}

/* A GEMM that norms its row gives the same bits as a GEMM after the norm kernel. */
static void test_normed(void **state)
{
    static const uint32_t kn[][2] = {{64, 192},   {576, 1536}, {768, 2304}, {200, 136},
                                     {1024, 512}, {2048, 512}, {1000, 48},  {4096, 96}};
    int n_bad = 0;
    (void)state;
    for (uint32_t i = 0; i < 2 * sizeof kn / sizeof *kn; i++) {
        const uint32_t k = kn[i / 2][0], n = kn[i / 2][1], rows = 1;
        gc_problem p = gc_make((rose_format)(ROSE_F16 + i % 2), rows, k, n, 0);
        float *x = random_x(rows, k), *values = gc_alloc(2 * k * sizeof *values);
        for (uint32_t j = 0; j < 2 * k; j++)
            values[j] = gc_float();
        float *w = gc_device(values, 2 * k * sizeof *values);
        for (int kind = ROSE_CUDA_NORM_LAYER; kind <= ROSE_CUDA_NORM_RMS; kind++) {
            const rose_cuda_norm_by by = {.kind = (rose_cuda_norm_kind)kind,
                                          .w = w,
                                          .b = kind == ROSE_CUDA_NORM_LAYER ? w + k : NULL,
                                          .eps = 1e-5f};
            n_bad += compare_normed(&p, &by, x);
        }
        cudaFree(x);
        cudaFree(w);
        free(values);
        gc_drop(&p);
    }
    assert_int_equal(n_bad, 0);
}

/* ---- kernels that start early ---- */

/* Six times an ACT and a RESIDUAL that reads its output, the first with `kernel` where it takes the
 * shape. Returns x. */
static float *run_pairs(const gc_problem *p, const rose_gemm_kernel *kernel, bool dependent)
{
    const uint32_t wide = p->n, d = p->k;
    const size_t bytes = (size_t)p->rows * d * sizeof(float);
    const size_t ff_bytes = (size_t)gc_up(p->rows, 128) * gc_up(wide, 64) * 2;
    rose_cuda_launch at = gc_launch(p, kernel);
    rose_cuda_matrix up = {.w = NULL}, down = {.w = NULL};
    float *x = gc_alloc(bytes);
    memset(x, 0, bytes);
    float *d_x = gc_device(x, bytes);
    void *ff = fx_to_device(NULL, ff_bytes);
    rose_cuda_matrix_shape(&up, p->type, d, wide, 1, 0, false);
    rose_cuda_matrix_shape(&down, p->type, wide, d, ROSE_GEMM_PARTS, 0, false);
    up.w = down.w = p->d_w; /* the same values in two orders: d and wide are multiples of 128 */
    for (int i = 0; i < 6; i++) {
        const rose_gemm_io act = {.end = ROSE_END_ACT,
                                  .rows = p->rows,
                                  .h = p->d_h,
                                  .out = ff,
                                  .out_pitch = down.k_pad,
                                  .act = i % 2 != 0 ? ROSE_ACT_RELU : ROSE_ACT_GELU_TANH};
        const rose_gemm_io add = {
            .end = ROSE_END_RESIDUAL, .rows = p->rows, .h = ff, .x = d_x, .ld_x = d};
        assert_int_equal(rose_gemm_run(&at, &up, &act), cudaSuccess);
        at.dependent = dependent;
        assert_int_equal(rose_gemm_run(&at, &down, &add), cudaSuccess);
    }
    gc_fetch(x, d_x, bytes);
    cudaFree(d_x);
    cudaFree(ff);
    return x;
}

/* With programmatic dependent launch a kernel must wait for the rows and for x. */
static void test_dependent(void **state)
{
    static const uint32_t rows[] = {1, 8, 30, 200};
    int n_bad = 0;
    (void)state;
    for (int i = 0; i < 4; i++) {
        const gc_problem p = gc_make((rose_format)(ROSE_F16 + i % 2), rows[i], 768, 3072, 0);
        float *want = run_pairs(&p, fx_named("tiles-64x64"), false);
        for (uint32_t g = 0; g <= rose_gemm_n_kernels; g++) {
            if (left_out(fx_kernel(g))) continue;
            float *x = run_pairs(&p, fx_kernel(g), true);
            if (memcmp(x, want, (size_t)rows[i] * 768 * sizeof *x) != 0) {
                printf("FAILED kernel %s: rows %u: a dependent launch gives other bits\n",
                       fx_kernel_name(fx_kernel(g)), rows[i]);
                n_bad++;
            }
            free(x);
        }
        free(want);
        gc_problem drop = p;
        gc_drop(&drop);
    }
    assert_int_equal(n_bad, 0);
}

/* ---- the choice ---- */

/* Whatever is asked for, some kernel runs; a norm in the GEMM only where the switches allow it. */
static void test_choice(void **state)
{
    static const uint32_t rows[] = {1, 7, 8, 9, 64, 300, 2048, 30000};
    static const float one = 1;
    (void)state;
    for (int i = 0; i < 8; i++)
        for (uint32_t end = 0; end < ROSE_N_ENDS; end++) {
            rose_cuda_matrix m = {.w = NULL};
            rose_cuda_launch at = {.device = fx_gpu(), .type = ROSE_BF16};
            rose_gemm_io io = {.end = (rose_gemm_end)end, .rows = rows[i], .h = &one};
            rose_cuda_matrix_shape(&m, ROSE_BF16, 1024, 4096, end == ROSE_END_RESIDUAL ? 4 : 1, 0,
                                   end == ROSE_END_GATED);
            const rose_gemm_kernel *g = rose_gemm_choose(&at, &m, &io);
            assert_non_null(g);
            print_message("rows %5u, end %u: %-20s %8.1f us by the estimate\n", rows[i], end,
                          g->name, rose_gemm_cost(g, &at, &m, &io));
            if (rows[i] > 1) assert_false(rose_gemm_norms(&at, &m, &io));
            at.without = ROSE_CUDA_WITHOUT_OPS | ROSE_CUDA_WITHOUT_WIDE;
            g = rose_gemm_choose(&at, &m, &io);
            assert_non_null(g);
            assert_false(g->hopper);
            assert_false(rose_gemm_norms(&at, &m, &io));
            io.h = NULL;
            assert_int_equal(rose_gemm_run(&at, &m, &io), cudaErrorInvalidValue);
        }
}

/* A line of the table that no shape reached is a hole in this test. */
static void test_all_met(void **state)
{
    int n_bad = 0;
    (void)state;
    for (uint32_t i = 1; i <= rose_gemm_n_kernels; i++) {
        const rose_gemm_kernel *g = fx_kernel(i);
        print_message("kernel %-24s %5u results compared\n", g->name, g_compared[i]);
        if (g->run[ROSE_F16] == NULL) continue; /* the only one of its format */
        if (g_compared[i] > 0 || left_out(g) || (g->hopper && !fx_gpu()->hopper)) continue;
        printf("FAILED kernel %s: no shape of this test reaches it\n", g->name);
        n_bad++;
    }
    assert_int_equal(n_bad, 0);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_little), cmocka_unit_test(test_exact),
        cmocka_unit_test(test_chains), cmocka_unit_test(test_odd),
        cmocka_unit_test(test_random), cmocka_unit_test(test_large),
        cmocka_unit_test(test_normed), cmocka_unit_test(test_dependent),
        cmocka_unit_test(test_choice), cmocka_unit_test(test_all_met),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    gc_state = fx_seed() * 2 + 1;
    if (!fx_use_gpu()) return 77;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (rose_gemm_n_kernels >= sizeof g_compared / sizeof *g_compared) return 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
