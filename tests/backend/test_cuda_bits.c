/* tests/backend/test_cuda_bits.c - all matrix kernels against each other bit for bit: the shapes at
 * which what they share out, keep or hand on comes into play. */
#include "backend/cuda_bits.h"

static void test_same_bits(void **state)
{
    (void)state;
    /* 8200: so many tiles of one chunk and of two that a block has six and more. 6144: a chain of
     * eight blocks, and more than it takes. */
    static const uint32_t kn[][2] = {{768, 2304}, {768, 768},  {768, 3072},  {3072, 768},
                                     {64, 192},   {832, 2496}, {1024, 4104}, {1600, 136},
                                     {192, 8200}, {200, 8200}, {6144, 72},   {6176, 72}};
    fx_random r = {.seed = fx_seed() + 2};
    int n_bad = 0;
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 12; i++)
            for (int j = 0; j < 8; j++) {
                static const uint32_t fixed[] = {1, 64, 128, 2047};
                const uint32_t m = j < 4 ? fixed[j] : 1 + fx_below(&r, 300);
                if (m > 1000 && t > 0) continue;
                bits b = make_bits(&r, (rose_cuda_type)t, m, kn[i][0], kn[i][1]);
                b.head_dim = some_head_dim(b.k, (uint32_t)(i + j));
                n_bad += compare_bits(&b);
                free_bits(&b);
            }
    assert_int_equal(n_bad, 0);
}

/* What the engine chooses for hundreds of rows, where tiles of all kinds fill the chip: GPT-2's
 * products, 513 rows to more than any kernel has at once. */
static void test_hundreds(void **state)
{
    (void)state;
    static const uint32_t kn[][2] = {{3072, 768}, {768, 2304}, {768, 3072}};
    static const uint32_t ms[] = {513,  640,  760,  1024, 1200, 1280, 1408,
                                  1536, 1700, 2500, 3072, 4286, 4352};
    fx_random r = {.seed = fx_seed() + 8};
    int n_bad = 0;
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 3; i++)
            for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
                const uint32_t m = ms[j] - fx_below(&r, 2) * fx_below(&r, 60);
                bits b = make_bits(&r, (rose_cuda_type)t, m, kn[i][0], kn[i][1]);
                for (int e = 0; e < EPILOGUES; e++) {
                    size_t bytes;
                    b.to_rows = e == ROSE_CUDA_EPI_QKV && fx_below(&r, 2) != 0;
                    uint8_t *want = run_bits(&b, e, fx_named("tiles"), &bytes);
                    if (want != NULL)
                        n_bad += compare_kernel(&b, (rose_cuda_epilogue)e, NULL, want);
                    free(want);
                }
                free_bits(&b);
            }
    assert_int_equal(n_bad, 0);
}

/* The head's own kernel where a warp has several tiles: whole pairs of chunks and not, an odd
 * number of chunks, one; the longest k that it takes of 32, 16 and 8 rows, and more. */
static void test_head(void **state)
{
    (void)state;
    static const uint32_t ms[] = {1, 8, 9, 16, 24, 32, 33};
    static const uint32_t ks[] = {64, 192, 200, 384, 768, 832, 1536, 1600, 3072, 3104, 6144, 6176};
    fx_random r = {.seed = fx_seed() + 4};
    int n_bad = 0;
    for (int i = 0; i < 24; i++) {
        const uint32_t k = ks[i / 2];
        bits b = make_bits(&r, (rose_cuda_type)(i % 2), 33, k, k > 1600 ? 5200 : 50694);
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
            b.m = ms[j];
            n_bad += compare_epilogue(&b, ROSE_CUDA_EPI_LOGITS);
        }
        free_bits(&b);
    }
    assert_int_equal(n_bad, 0);
}

/* Logits by each of n kernels, against `tiles`. */
static int compare_logits(const bits *b, const char *const *names, size_t n)
{
    size_t bytes;
    int n_bad = 0;
    uint8_t *want = run_bits(b, ROSE_CUDA_EPI_LOGITS, fx_named("tiles"), &bytes);
    for (size_t i = 0; i < n; i++) {
        const rose_cuda_gemm *kernel = strcmp(names[i], "auto") == 0 ? NULL : fx_named(names[i]);
        if (!left_out(kernel)) n_bad += compare_kernel(b, ROSE_CUDA_EPI_LOGITS, kernel, want);
    }
    free(want);
    return n_bad;
}

/* The head with hundreds of rows, where every block has many tiles. Rows and outputs fill tiles
 * or do not; there are one or several chunks, whole or not. Among the shapes with fixed rows,
 * 11, 9 and 5 row tiles end in half a tile, which blocks take in turn, and 6 end in a whole one. */
static void test_many_logits(void **state)
{
    (void)state;
    static const char *const names[] = {"auto", "wide-192", "pingpong", "pingpong-rows"};
    static const struct {
        uint32_t m, less, k, n; /* half of the time up to `less` rows fewer */
    } shapes[] = {{900, 140, 768, 12300}, {2048, 140, 768, 11264}, {1300, 1, 64, 9000},
                  {1088, 1, 64, 30000},   {640, 140, 832, 20000},  {574, 1, 192, 50257},
                  {730, 1, 192, 50257}};
    fx_random r = {.seed = fx_seed() + 12};
    int n_bad = 0;
    if (!fx_gpu()->hopper) skip();
    for (int i = 0; i < 14; i++) {
        const uint32_t m = shapes[i / 2].m - fx_below(&r, 2) * fx_below(&r, shapes[i / 2].less);
        bits b = make_bits(&r, (rose_cuda_type)(i % 2), m, shapes[i / 2].k, shapes[i / 2].n);
        n_bad += compare_logits(&b, names, sizeof names / sizeof *names);
        free_bits(&b);
    }
    assert_int_equal(n_bad, 0);
}

/* Several tiles a block, of little k: for the sanitizers. The last of three rows of tiles is half
 * of one. */
static void test_little_turns(void **state)
{
    (void)state;
    static const char *const names[] = {"pingpong", "pingpong-rows"};
    fx_random r = {.seed = fx_seed() + 14};
    int n_bad = 0;
    if (!fx_gpu()->hopper) skip();
    for (int i = 0; i < 2; i++) {
        bits b = make_bits(&r, (rose_cuda_type)i, i == 0 ? 200 : 310, 64, 26000);
        n_bad += compare_logits(&b, names, 2);
        free_bits(&b);
    }
    assert_int_equal(n_bad, 0);
}

/* ---- zeros ---- */

enum { SIGN = 0x8000 };

/* Weights of column n: of every six one of positive numbers, negative, either, and the same of the
 * smallest. Sums of rows of zeros are then zeros of which all products have one sign, or not; so
 * are in bf16 those of the smallest with the smallest, whose products are too small for fp32. */
static void sign_weights(fx_random *r, uint16_t *w, uint32_t k, uint32_t n_pad)
{
    for (uint32_t n = 0; n < n_pad; n++)
        for (uint32_t i = 0; i < k; i++) {
            uint16_t *v = &w[fx_w_at(n, i, k)];
            *v = n % 6 < 3 ? (uint16_t)(*v & ~SIGN) : 1;
            if (n % 3 == 1 || (n % 3 == 2 && fx_below(r, 2) != 0)) *v |= SIGN;
        }
}

/* Row m: +0, -0, the smallest, that below 0, zeros of either sign, or as it is. */
static void sign_rows(fx_random *r, uint16_t *h, uint32_t k, uint32_t rows)
{
    static const uint16_t same[] = {0, SIGN, 1, SIGN | 1};
    for (uint32_t m = 0; m < rows; m++)
        for (uint32_t i = 0; m % 6 < 5 && i < k; i++)
            h[fx_h_at(m, i, k)] =
                m % 6 < 4 ? same[m % 6] : (uint16_t)(fx_below(r, 2) != 0 ? SIGN : 0);
}

/* Logits that are zeros are +0; rows of zeros have no others. */
static int check_zeros(const bits *b, const rose_cuda_gemm *kernel)
{
    size_t bytes;
    uint32_t n_bad = 0;
    uint8_t *y = run_bits(b, ROSE_CUDA_EPI_LOGITS, kernel, &bytes);
    for (uint32_t m = 0; m < b->m; m++)
        for (uint32_t n = 0; n + 1 < b->n; n++) {
            const bool zeros = m % 6 < 2 || m % 6 == 4;
            uint32_t v;
            memcpy(&v, y + ((size_t)m * bits_ld_logits(b) + n) * sizeof v, sizeof v);
            n_bad += v == 0x80000000u || (zeros && v != 0);
        }
    if (n_bad > 0)
        print_message("type %d, %u x %u x %u: %u logits of %s are -0, or not 0\n", (int)b->type,
                      b->m, b->k, b->n, n_bad, fx_kernel_name(kernel));
    free(y);
    return n_bad > 0;
}

/* Sums of nothing but zeros, of either sign, k in whole chunks and not: +0 from every kernel,
 * though each adds up in its own way. With a bias of -0, which leaves a sum its sign for all to see
 * but the residual. */
static void test_zeros(void **state)
{
    (void)state;
    static const uint32_t kn[][2] = {{192, 576}, {768, 2304}, {400, 1200}};
    fx_random r = {.seed = fx_seed() + 13};
    int n_bad = 0;
    for (int i = 0; i < 6; i++) {
        bits b = make_bits(&r, (rose_cuda_type)(i % 2), 300, kn[i / 2][0], kn[i / 2][1]);
        b.head_dim = some_head_dim(b.k, b.k == 400 ? 7 : 0);
        const uint32_t k = up(b.k, 32), n_pad = up(b.n, 128);
        const size_t n_w = (size_t)k * n_pad, n_h = (size_t)up(b.m, 8) * k;
        uint16_t *w = malloc(n_w * 2), *h = malloc(n_h * 2);
        float *bias = malloc(b.n * sizeof *bias);
        assert_true(w && h && bias);
        fetch(w, b.w, n_w * 2);
        fetch(h, b.h, n_h * 2);
        sign_weights(&r, w, k, n_pad);
        sign_rows(&r, h, k, b.m);
        for (uint32_t n = 0; n < b.n; n++)
            bias[n] = -0.0f;
        assert_int_equal(cudaMemcpy(b.w, w, n_w * 2, cudaMemcpyHostToDevice), cudaSuccess);
        assert_int_equal(cudaMemcpy(b.h, h, n_h * 2, cudaMemcpyHostToDevice), cudaSuccess);
        assert_int_equal(cudaMemcpy(b.bias, bias, b.n * sizeof *bias, cudaMemcpyHostToDevice),
                         cudaSuccess);
        for (int kv = 0; kv < 2; kv++) {
            cudaFree(b.cores[kv]);
            b.cores[kv] = make_cores(&b, kv != 0);
        }
        static const uint32_t ms[] = {21, 160, 299};
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
            b.m = ms[j];
            n_bad += compare_bits(&b);
            for (uint32_t i2 = 0; i2 <= rose_cuda_n_gemms; i2++)
                if (!left_out(fx_kernel(i2))) n_bad += check_zeros(&b, fx_kernel(i2));
        }
        free(w);
        free(h);
        free(bias);
        free_bits(&b);
    }
    assert_int_equal(n_bad, 0);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_hundreds),
        cmocka_unit_test(test_head),        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_many_logits), cmocka_unit_test(test_little_turns),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
