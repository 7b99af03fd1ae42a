/* backend/cpu/matmul_amx.c - bf16 matrix product on AMX tiles. TDPBF16PS over 32 k is rule 1 of
 * docs/NUMERICS.md in hardware: two chains from zero, then acc + (even + odd), denormals as zero.
 *
 * Rows are taken 64 at a time: converted once to bf16 tiles in scratch (exact: they are bf16
 * already), then every panel is walked for them, 2 row tiles x 2 panels at a time, so that a loaded
 * tile serves two products. A B tile is the panel itself: 16 rows of 64 bytes. Up to 16 rows the
 * tiles have just that many; above, short ones are filled with zero rows that are not stored. One
 * row stays on AVX-512 (the bits are the same).
 *
 * int8 panels are widened to bf16 in scratch, two at a time, for up to 64 rows. Bound: weight bytes
 * up to about 16 rows, then TDPBF16PS (16 cycles).
 *
 * Measured 2026-11-21 on a Xeon, one thread, depth 768: 2 to 8 rows stream 248 MB in 13.7 to 14.3
 * ms (AVX-512: 15.8 ms for 2 rows, 19.9 for 8), 64 rows from cache run at 709 GFLOP/s (80).
 * Blocks of k with the rows in L1 and the sums of 16 panels in L2 were no faster (two threads, 64
 * rows: 1,289 GFLOP/s, without blocks 1,564).
 * Prefetch here goes 4 KB ahead into L1: 8 KB into L2, best for AVX-512, costs a tenth. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AMX_TILE__) || defined(__AMXTILE__) /* gcc; clang 14 */

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/matmul_simd.h"

enum {
    PREFETCH_BYTES = 4096, /* how far ahead of its loads a panel is prefetched */
    FEW_I8_ROWS = 4        /* int8: up to so many rows AVX-512 beats widening to tiles */
};

/* Rows m .. m + n_rows of x as bf16 tiles [row tile][group][16][32] at `tiles`. */
static void convert_rows(const rose_matmul *a, uint32_t m, uint32_t n_rows, uint8_t *tiles)
{
    size_t tile_row_bytes = (size_t)(a->k_pad / ROSE_K_GROUP) * TILE_BYTES;
    for (uint32_t r = 0; r < rose_round_up(n_rows, TILE_ROWS); r++) {
        uint8_t *out = tiles + r / TILE_ROWS * tile_row_bytes + (size_t)(r % TILE_ROWS) * 64;
        const float *x = a->x + (m + r) * a->ldx;
        for (uint32_t k = 0; k < a->k_pad; k += ROSE_K_GROUP, out += TILE_BYTES) {
            tile_row_store(out, x + k, r < n_rows ? ROSE_K_GROUP : 0);
        }
    }
}

ROSE_INLINE void prefetch_tile(const uint8_t *w)
{
    intptr_t at = (intptr_t)w + PREFETCH_BYTES; /* may lie outside: a prefetch ignores that */
    for (intptr_t line = 0; line < TILE_BYTES; line += 64)
        _mm_prefetch((const char *)(at + line), _MM_HINT_T0);
}

/* Sums of 1 or 2 row tiles times 1 or 2 panels, into sums[4][16][16]. The counts are constants. */
ROSE_INLINE void tile_product(const uint8_t *x, size_t x_stride, const uint8_t *w, size_t w_stride,
                              uint32_t n_groups, bool two_rows, bool two_panels, float *sums)
{
    _tile_zero(0);
    if (two_panels) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_panels) _tile_zero(3);
    for (uint32_t g = 0; g < n_groups; g++, x += TILE_BYTES, w += TILE_BYTES) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        prefetch_tile(w);
        _tile_dpbf16ps(0, 4, 6);
        if (two_panels) {
            _tile_loadd(7, w + w_stride, 64);
            prefetch_tile(w + w_stride);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, x + x_stride, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (two_panels) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    if (two_panels) _tile_stored(1, sums + 256, 64);
    if (two_rows) _tile_stored(2, sums + 512, 64);
    if (two_rows && two_panels) _tile_stored(3, sums + 768, 64);
    MEMORY_BARRIER();
}

/* One or two panels, at w, from p for one or two row tiles that start at row m and end before
 * m_end. */
static void tile_block(const rose_matmul *a, const uint8_t *x, const uint8_t *w, uint32_t m,
                       uint32_t m_end, uint32_t p, bool two_panels, float *sums)
{
    uint32_t n_groups = a->k_pad / ROSE_K_GROUP;
    size_t stride = (size_t)n_groups * TILE_BYTES; /* of a row tile and of a panel */
    bool two_rows = m_end - m > TILE_ROWS;

    if (two_rows && two_panels)
        tile_product(x, stride, w, stride, n_groups, true, true, sums);
    else if (two_rows)
        tile_product(x, stride, w, stride, n_groups, true, false, sums);
    else if (two_panels)
        tile_product(x, stride, w, stride, n_groups, false, true, sums);
    else
        tile_product(x, stride, w, stride, n_groups, false, false, sums);

    for (uint32_t r = m; r < m_end; r++) {
        const float *row = sums + (r - m) / TILE_ROWS * 512 + (r - m) % TILE_ROWS * 16;
        finish_outputs(a, v_load(row), r, p * ROSE_PANEL);
        if (two_panels) finish_outputs(a, v_load(row + 256), r, (p + 1) * ROSE_PANEL);
    }
}

/* An int8 panel as a bf16 one: integers up to 127 are exact. */
static void expand_panel(const rose_matmul *a, uint32_t p, uint8_t *out)
{
    const __m512i top = _mm512_set1_epi32((int)0xffff0000);
    const uint8_t *w = (const uint8_t *)a->w + (size_t)p * a->k_pad * ROSE_PANEL;
    for (uint32_t k = 0; k < a->k_pad; k += 2, w += 2 * ROSE_PANEL, out += 64) {
        __m512i even = v_bits(v_load_i8(w)), odd = v_bits(v_load_i8(w + ROSE_PANEL));
        prefetch_at(w, ROSE_PREFETCH_BYTES);
        _mm512_storeu_si512(
            out, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, top)));
    }
}

ROSE_INLINE void matmul_tiles(const rose_matmul *a, bool i8, uint32_t p0, uint32_t p1)
{
    float *sums = a->scratch;
    uint8_t *tiles = (uint8_t *)a->scratch + ROSE_AMX_SUM_BYTES;
    size_t tile_row_bytes = (size_t)(a->k_pad / ROSE_K_GROUP) * TILE_BYTES; /* of a panel too */
    uint8_t *expanded = tiles + ROSE_AMX_ROWS / TILE_ROWS * tile_row_bytes;

    for (uint32_t m = 0; m < a->m_rows; m += ROSE_AMX_ROWS) {
        uint32_t left = a->m_rows - m, rows = left < ROSE_AMX_ROWS ? left : ROSE_AMX_ROWS;
        convert_rows(a, m, rows, tiles);
        tiles_configure(rows < TILE_ROWS ? rows : TILE_ROWS, 6);
        for (uint32_t p = p0; p < p1; p += 2) {
            const uint8_t *w = i8 ? expanded : (const uint8_t *)a->w + p * tile_row_bytes;
            if (i8) expand_panel(a, p, expanded);
            if (i8 && p + 1 < p1) expand_panel(a, p + 1, expanded + tile_row_bytes);
            for (uint32_t r = 0; r < rows; r += 2 * TILE_ROWS) {
                uint32_t end = rows - r < 2 * TILE_ROWS ? rows : r + 2 * TILE_ROWS;
                tile_block(a, tiles + r / TILE_ROWS * tile_row_bytes, w, m + r, m + end, p,
                           p + 1 < p1, sums);
            }
        }
    }
    _tile_release();
}

void rose_matmul_bf16_amx(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    if (a->m_rows == 1)
        rose_matmul_bf16_avx512(a, p0, p1);
    else
        matmul_tiles(a, false, p0, p1);
}

void rose_matmul_i8_amx(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    if (a->m_rows <= FEW_I8_ROWS)
        rose_matmul_i8_avx512(a, p0, p1);
    else
        matmul_tiles(a, true, p0, p1);
}

#endif
