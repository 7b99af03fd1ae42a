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
#include "backend/kv_places.h"
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
    wide_turn_rows(&w, 1 + below(w.n < 140 ? w.n : 140));
    uint8_t *by_turns = calloc(w.n, 1);
    assert_non_null(by_turns);
    for (uint32_t i = 0; i < w.n; i++) {
        const wide_tile_place p = wide_place(&w, i);
        const wide_tile_place q = wide_place_by_turns(&w, i);
        assert_true(q.row < w.n_rows && q.col == p.col);
        assert_int_equal(by_turns[q.row * w.n_cols + q.col]++, 0);
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
    free(by_turns);
}

/* Every block has about as many tiles of a row as any other, whatever blocks and rows have in
 * common. */
static void test_rows_by_turns(void **state)
{
    (void)state;
    enum { BLOCKS = 66, MOST = 42 /* rows of tiles in a group */ };
    for (uint32_t rows = 1; rows <= MOST; rows++) {
        uint32_t had[BLOCKS][MOST] = {{0}};
        wide_walk w = wide_walk_of(rows * 128, 128, 50257, 352, 1536);
        assert_int_equal(w.group, rows);
        wide_turn_rows(&w, BLOCKS);
        for (uint32_t at = 0; at < w.n; at++)
            had[at % BLOCKS][wide_place_by_turns(&w, at).row]++;
        for (uint32_t b = 0; b < BLOCKS; b++)
            for (uint32_t row = 0; row < rows; row++)
                assert_in_range(had[b][row], w.n_cols / BLOCKS, w.n_cols / BLOCKS + 1);
    }
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

/* One product of 64 rows x N outputs x K, as the kernel makes it: rows and the copy of the weights
 * in blocks of 8 x 8; a stage copied by boxes; the operands found by a descriptor's two strides;
 * the results of a lane where wgmma puts them, taken as the epilogue takes them. */
enum { K = 64, N = 96, KV = 48 /* K and V from there on */, ROWS = 64, CORE = 64 /* values */ };

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
            w[blocked(wide_column(n, KV), k, K_PAD)] = plain_w[n][k] = (int)below(1000) - 500;
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
        for (uint32_t block = 0; block < N / 16; block++)
            for (uint32_t h = 0; h < 2; h++) {
                const int *at = s + block * 8; /* as sums_of */
                const int v[4] = {at[h * 2], at[h * 2 + 1], at[h * 2 + 4], at[h * 2 + 5]};
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t row = row0 + h * 8, at_kv = e / 2 * 8 + t * 2 + e % 2;
                    const uint32_t n = block * 16 + (block * 16 < KV ? t * 4 + e : at_kv);
                    int want = 0;
                    for (uint32_t k = stage * K; k < stage * K + K; k++)
                        want += plain_x[row][k] * plain_w[n][k];
                    assert_int_equal(v[e], want);
                    assert_int_equal(seen[row][n]++, 0);
                }
            }
    }
}

enum { TOKENS = 16, DIMS = 16 };

/* Lane (g, t)'s pairs of 16 tokens x 16 dims: tokens g and g + 8, dims 2 t and 8 + 2 t on. */
static uint32_t token_of(uint32_t lane, uint32_t pair)
{
    return lane / 4 + pair / 2 * 8;
}
static uint32_t dim_of(uint32_t lane, uint32_t pair)
{
    return pair % 2 * 8 + lane % 4 * 2;
}

/* A value of a pair after movmatrix: lane (g, t) gets column g of rows 2 t and 2 t + 1, which lanes
 * (2 t, g / 2) and (2 t + 1, g / 2) have. */
static uint32_t transposed(uint32_t (*pairs)[4][2], uint32_t lane, uint32_t pair, uint32_t e)
{
    const uint32_t g = lane / 4, t = lane % 4;
    return pairs[(t * 2 + e) * 4 + g / 2][pair][g % 2];
}

/* A block of K and of V as the epilogue stores them: each lane its 16 bytes where the rows are a
 * page, and row by row where they are not. */
static void test_pages(void **state)
{
    (void)state;
    static const uint32_t v_pairs[4] = {0, 2, 1, 3};
    uint32_t pairs[32][4][2], want[2][256], page[2][256], rows[2][256];
    memset(page, 0xff, sizeof page);
    memset(rows, 0xff, sizeof rows);
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t dim = 0; dim < DIMS; dim++) {
            want[0][kv_k_place(token, dim)] = token * DIMS + dim;
            want[1][kv_v_place(token, dim)] = token * DIMS + dim;
        }
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 8; i++)
            pairs[lane][i / 2][i % 2] = token_of(lane, i / 2) * DIMS + dim_of(lane, i / 2) + i % 2;
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t t = lane % 4;
        for (uint32_t i = 0; i < 8; i++) {
            page[0][lane * 8 + i] = pairs[lane][i / 2][i % 2];
            page[1][lane * 8 + i] = transposed(pairs, lane, v_pairs[i / 2], i % 2);
        }
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t token = lane / 4 + h * 8;
            uint32_t *k = rows[0] + kv_k_place(token, t * 2),
                     *v = rows[1] + kv_v_place(token, t * 2);
            for (uint32_t e = 0; e < 2; e++) {
                k[e] = pairs[lane][h * 2][e];
                k[2 + e] = pairs[lane][h * 2 + 1][e];
                v[e * 32] = pairs[lane][h * 2][e];
                v[4 + e * 32] = pairs[lane][h * 2 + 1][e];
            }
        }
    }
    assert_memory_equal(page, want, sizeof want);
    assert_memory_equal(rows, want, sizeof want);
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once), cmocka_unit_test(test_rows_by_turns),
        cmocka_unit_test(test_outputs), cmocka_unit_test(test_pages)};
    g_seed = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    print_message("seed %llu\n", (unsigned long long)g_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
