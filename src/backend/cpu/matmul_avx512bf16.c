/* backend/cpu/matmul_avx512bf16.c - bf16 GEMM by VDPBF16PS, for the level avx512-bf16 (rule 11 of
 * docs/NUMERICS.md). One instruction adds the two products of a pair of k to 16 sums, the odd one
 * first, each by a fused multiply-add. So each output has one running sum, whatever the number of
 * rows.
 *
 * Rows are taken 64 at a time and converted once to bf16, which is exact because they are bf16
 * already. They are transposed to [k/2][rows], so that the pairs of the rows of a tile are
 * adjacent. Then the panels are read two at a time. A tile of up to 14 rows keeps its 28 sums in
 * registers from the first k to the last. That leaves 4 registers, for two panels of weights and a
 * broadcast pair.
 *
 * Rows are spread evenly over tiles. The first tile reads the weights from memory, the others from
 * L2. Up to 8 rows, panels are read one at a time, so that a thread reads memory in order, and they
 * are prefetched into L1. A sum then waits for its own last addition (6 cycles). That is no loss,
 * because memory delivers a line of weights more slowly. Four panels at a time are slower: by 1.20
 * with 1 row, 1.23 with 4 rows and 1.15 with 8 rows (2 cores of Zen 5, 2026-11-24).
 *
 * int8 panels are widened to bf16 in scratch, two at a time, for up to 64 rows. The limit up to
 * about 8 rows is reading weights; above, it is VDPBF16PS (one a cycle on Zen 4, twice the rate
 * of FMA). */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512BF16__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/bf16_pairs.h"
#include "backend/cpu/matmul_simd.h"

enum {
    TILE_ROWS = 14,
    BLOCK_ROWS = 64,
    FEW_ROWS = 8, /* up to this many rows, panels are read one at a time */
    AHEAD_K = ROSE_PREFETCH_BYTES / (2 * ROSE_PANEL), /* k that the prefetch is ahead */
    PAIR_BYTES = 2 * ROSE_PANEL * 2                   /* of a panel: 16 outputs of a pair of k */
};

/* Multiplies n_rows rows from m on, whose pairs are at x, with n_panels panels from p on, at w.
 * The counts are compile-time constants. */
ROSE_INLINE void tile_product(const rose_matmul *a, const uint32_t *x, const uint8_t *w, uint32_t m,
                              uint32_t p, uint32_t n_rows, uint32_t n_panels)
{
    const size_t stride = (size_t)a->k_pad * ROSE_PANEL * 2;
    const uint32_t turn = a->k_pad > AHEAD_K ? a->k_pad - AHEAD_K : 0;
    intptr_t ahead = ROSE_PREFETCH_BYTES;
    vec16 sum[TILE_ROWS * 2];

    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++) { /* what the epilogue will read or write */
        const uint8_t *y = (const uint8_t *)(a->y + (m + r) * a->ldy);
        ROSE_UNROLL
        for (uint32_t j = 0; j < n_panels; j++) {
            sum[r * n_panels + j] = v_zero();
            prefetch_at(y, (intptr_t)rose_panel_column(a, p + j) * (intptr_t)sizeof(float));
        }
    }
    for (uint32_t k = 0; k < a->k_pad; k += 2, w += PAIR_BYTES, x += n_rows) {
        ivec16 pairs[2];
        if (k == turn) ahead += (intptr_t)((n_panels - 1) * stride); /* on to the next panels */
        ROSE_UNROLL
        for (uint32_t j = 0; j < n_panels; j++) {
            pairs[j] = v_load_pairs(w + j * stride);
            prefetch_weights(w + j * stride, ahead, n_panels == 1);
        }
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            ROSE_UNROLL
            for (uint32_t j = 0; j < n_panels; j++)
                sum[r * n_panels + j] = v_dot(sum[r * n_panels + j], x[r], pairs[j]);
        }
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++) {
        ROSE_UNROLL
        for (uint32_t j = 0; j < n_panels; j++)
            finish_outputs(a, sum[r * n_panels + j], m + r, (p + j) * ROSE_PANEL);
    }
}

#define TILE(rows)                                                                                 \
    case rows:                                                                                     \
        tile_product(a, x, w, m, p, rows, n_panels);                                               \
        break

/* n_panels is a constant. */
ROSE_INLINE void tile_rows(const rose_matmul *a, const uint32_t *x, const uint8_t *w, uint32_t m,
                           uint32_t p, uint32_t n_rows, uint32_t n_panels)
{
    switch (n_rows) {
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
        TILE(6);
        TILE(7);
        TILE(8);
        TILE(9);
        TILE(10);
        TILE(11);
        TILE(12);
        TILE(13);
        TILE(14);
    default:
        break;
    }
}

static void tile_two(const rose_matmul *a, const uint32_t *x, const uint8_t *w, uint32_t m,
                     uint32_t p, uint32_t n_rows)
{
    tile_rows(a, x, w, m, p, n_rows, 2);
}

static void tile_one(const rose_matmul *a, const uint32_t *x, const uint8_t *w, uint32_t m,
                     uint32_t p, uint32_t n_rows)
{
    tile_rows(a, x, w, m, p, n_rows, 1);
}

/* Multiplies rows m .. m + rows, at most BLOCK_ROWS, with panels p0 .. p1-1. */
ROSE_INLINE void block_product(const rose_matmul *a, bool i8, uint32_t m, uint32_t rows,
                               uint32_t p0, uint32_t p1)
{
    const size_t panel_bytes = (size_t)a->k_pad * ROSE_PANEL * 2;
    uint32_t *pairs = a->scratch;
    uint8_t *expanded = (uint8_t *)a->scratch + (size_t)BLOCK_ROWS * a->k_pad * 2;
    const uint32_t n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const uint32_t most = i8 || rows > FEW_ROWS ? 2 : 1;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t r = rows * t / n_tiles, end = rows * (t + 1) / n_tiles;
        rows_to_pairs(a->x + (m + r) * a->ldx, a->ldx, a->k_pad, end - r,
                      pairs + (size_t)r * (a->k_pad / 2));
    }
    for (uint32_t p = p0, n; p < p1; p += n) {
        n = p1 - p < most ? 1 : most;
        const uint8_t *w = i8 ? expanded : (const uint8_t *)a->w + p * panel_bytes;
        for (uint32_t i = 0; i8 && i < n; i++)
            widen_panel(a, p + i, expanded + i * panel_bytes);
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t r = rows * t / n_tiles, end = rows * (t + 1) / n_tiles;
            const uint32_t *x = pairs + (size_t)r * (a->k_pad / 2);
            (n == 2 ? tile_two : tile_one)(a, x, w, m + r, p, end - r);
        }
    }
}

ROSE_INLINE void matmul_pairs(const rose_matmul *a, bool i8, uint32_t p0, uint32_t p1)
{
    for (uint32_t m = 0; m < a->m_rows; m += BLOCK_ROWS) {
        uint32_t left = a->m_rows - m;
        block_product(a, i8, m, left < BLOCK_ROWS ? left : BLOCK_ROWS, p0, p1);
    }
}

ROSE_MATMUL(rose_matmul_bf16_avx512bf16, matmul_pairs(a, false, p0, p1))
ROSE_MATMUL(rose_matmul_i8_avx512bf16, matmul_pairs(a, true, p0, p1))

#endif
