/* tests/backend/test_walk.c - the arithmetic of backend/cuda/wide_walk.h, without a GPU. Every
 * tile must come once, and weights once for each group of rows or for each block. The places of
 * outputs are compared with a plain model of what TMA and tensor cores do with memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/wide_walk.h"
#include "base/philox.h"

static uint64_t g_seed;
static uint32_t g_drawn;

static uint32_t below(uint32_t n)
{
    const uint32_t v = (uint32_t)(rose_philox_uniform(g_seed, g_drawn++, 0) * (float)n);
    return v < n ? v : n - 1;
}

static void check_walk(uint32_t rows, uint32_t tile_rows, uint32_t n_out, uint32_t tile_outputs,
                       uint32_t row_bytes)
{
    wide_walk w = wide_walk_of(rows, tile_rows, n_out, tile_outputs, row_bytes);
    uint8_t *seen = calloc(w.n, 1);
    uint32_t changes = 0;
    wide_tile_place before = {0, 0};
    assert_non_null(seen);
    assert_true(w.n_rows * tile_rows >= rows && (w.n_rows - 1) * tile_rows < rows);
    assert_true(w.n_cols * tile_outputs >= n_out && (w.n_cols - 1) * tile_outputs < n_out);
    assert_true(w.group >= 1 && w.group <= w.n_rows);
    for (uint32_t i = 0; i < w.n; i++) {
        const wide_tile_place p = wide_place(&w, i);
        assert_true(p.row < w.n_rows && p.col < w.n_cols);
        assert_int_equal(seen[p.row * w.n_cols + p.col]++, 0);
        if (i == 0 || p.col != before.col || p.row / w.group != before.row / w.group) changes++;
        before = p;
    }
    const uint32_t groups = (w.n_rows + w.group - 1) / w.group;
    assert_int_equal(changes, groups * w.n_cols);
    if (w.group > 1)
        assert_true((uint64_t)w.group * tile_rows * row_bytes <= (uint64_t)WIDE_GROUP_BYTES);
    free(seen);
}

static void test_every_tile_once(void **state)
{
    (void)state;
    static const uint32_t outputs[] = {768, 2304, 3072, 50304};
    for (int i = 0; i < 4; i++)
        for (uint32_t rows = 1; rows <= 32768; rows = rows * 2 + 1)
            for (uint32_t tile = 64; tile <= 256; tile *= 2)
                check_walk(rows, tile, outputs[i], 192, i == 0 ? 6144 : 1536);
    for (int i = 0; i < 2000; i++)
        check_walk(1 + below(5000), 64u << below(3), 1 + below(6000), 48u << below(3),
                   64 * (1 + below(128)));
}

/* One product of 64 rows x N outputs x K, as a kernel makes it. Rows and weights are in blocks of
 * 8 x 8. Boxes copy a stage. The two strides of a descriptor find the operands. Each lane takes the
 * results that wgmma gives it, as gemm_wide_ends.cuh does. */
enum { K = 64, N = 96, ROWS = 64, CORE = 64 /* values */ };

static size_t blocked(uint32_t row, uint32_t k, uint32_t k_pad) /* as layout.cuh, h_index */
{
    return ((size_t)(row / 8) * (k_pad / 8) + k / 8) * CORE + row % 8 * 8 + k % 8;
}

/* A box of {64, K / 8, blocks} from core `core` of block `block` on. */
static void copy_box(int *to, const int *from, uint32_t k_pad, uint32_t core, uint32_t block,
                     uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t c = 0; c < K / 8; c++)
            memcpy(to + (b * (K / 8) + c) * CORE,
                   from + ((size_t)(block + b) * (k_pad / 8) + core + c) * CORE, CORE * sizeof *to);
}

/* Value (i, k) of an operand of 16 of k: cores follow 128 bytes apart in k, `stride` bytes in i. */
static int operand(const int *at, uint32_t stride, uint32_t i, uint32_t k)
{
    return at[(i / 8 * stride + k / 8 * 128) / 2 + i % 8 * 8 + k % 8];
}

static void test_outputs(void **state)
{
    (void)state;
    enum { K_PAD = 2 * K, BLOCK_BYTES = K * 8 * 2 };
    static int x[ROWS * K_PAD], w[N * K_PAD], rows[ROWS * K], outputs[N * K], d[ROWS][N];
    static int plain_x[ROWS][K_PAD], plain_w[N][K_PAD], seen[ROWS][N];
    const uint32_t stage = 1;
    for (uint32_t k = 0; k < K_PAD; k++) {
        for (uint32_t i = 0; i < ROWS; i++)
            x[blocked(i, k, K_PAD)] = plain_x[i][k] = (int)below(1000) - 500;
        for (uint32_t n = 0; n < N; n++)
            w[blocked(n, k, K_PAD)] = plain_w[n][k] = (int)below(1000) - 500;
    }
    copy_box(rows, x, K_PAD, stage * (K / 8), 0, ROWS / 8);
    copy_box(outputs, w, K_PAD, stage * (K / 8), 0, N / 8);
    for (uint32_t step = 0; step < K / 16; step++)
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t n = 0; n < N; n++)
                for (uint32_t k = 0; k < 16; k++)
                    d[i][n] += operand(rows + step * 256 / 2, BLOCK_BYTES, i, k) *
                               operand(outputs + step * 256 / 2, BLOCK_BYTES, n, k);
    for (uint32_t thread = 0; thread < 128; thread++) {
        const uint32_t g = thread % 32 / 4, t = thread % 4, row0 = thread / 32 * 16 + g;
        int s[N / 2];
        for (uint32_t i = 0; i < N / 2; i++) /* of 8 columns: row g, then row g + 8 */
            s[i] = d[row0 + i / 2 % 2 * 8][i / 4 * 8 + t * 2 + i % 2];
        for (uint32_t i = 0; i < N / 2; i++) {
            const uint32_t row = row0 + i / 2 % 2 * 8, n = i / 4 * 8 + t * 2 + i % 2;
            int want = 0;
            for (uint32_t k = stage * K; k < stage * K + K; k++)
                want += plain_x[row][k] * plain_w[n][k];
            assert_int_equal(s[i], want);
            assert_int_equal(seen[row][n]++, 0);
        }
    }
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_tile_once),
                                       cmocka_unit_test(test_outputs)};
    g_seed = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    print_message("seed %llu\n", (unsigned long long)g_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
