/* backend/cpu/matmul_avx2.c - GEMM with AVX2; the code is in matmul_simd.h. A block of 3 rows has 3
 * even and 3 odd chains of two registers each, in 12 of the 16 registers. The sums go through the
 * stack once per 32 k.
 *
 * int8 values take two instructions a vector to become fp32, for every three rows. From 17 rows
 * on, 256 k of a panel are therefore widened once for up to 66 rows. The widened 16 KB stay in
 * L1 while the rows are multiplied. The sums of each row wait in scratch for the next 256 k.
 * bf16 needs one instruction and gains nothing from this (0.95 to 1.03 of the speed on Zen 3). */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include <string.h>

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/matmul_simd.h"

enum {
    TILE_ROWS = 3,
    FEW_ROWS = 16, /* up to this many rows, no widened weights are kept */
    WIDE_ROWS =
        66, /* at most this many rows that share widened weights; rose_cpu_matmul_share gives 64 */
    WIDE_K = 256
};
/* The widened weights and the sums fit into scratch: they take at most the memory of k_pad rows,
 * which scratch has for the AMX tiles. */
_Static_assert(sizeof(float) * WIDE_ROWS * ROSE_PANEL <= ROSE_AMX_SUM_BYTES, "sums of the rows");
_Static_assert(sizeof(float) * ROSE_PANEL <= 2 * ROSE_AMX_MIN_ROWS, "a widened k");

ROSE_MATMUL(rose_matmul_f32_avx2, matmul_panels(a, ROSE_F32, p0, p1, TILE_ROWS))
ROSE_MATMUL(rose_matmul_bf16_avx2, matmul_panels(a, ROSE_BF16, p0, p1, TILE_ROWS))

/* ---- int8, widened ---- */

/* [n_k][16] */
static void widen(float *to, const uint8_t *w, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k += 4, w += 4 * ROSE_PANEL, to += 4 * ROSE_PANEL) {
        prefetch_at(w, ROSE_PREFETCH_BYTES);
        for (uint32_t i = 0; i < 4 * ROSE_PANEL; i += ROSE_PANEL)
            v_store(to + i, v_load_i8(w + i));
    }
}

/* Adds n_k products to the sums of n_rows rows, [n_rows][16]. */
ROSE_INLINE void add_rows(float *sums, const float *w, const float *x, size_t ldx, uint32_t n_k,
                          uint32_t n_rows)
{
    vec16 acc[TILE_ROWS];
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        acc[r] = v_load(sums + r * ROSE_PANEL);
    for (uint32_t g = 0; g < n_k; g += ROSE_K_GROUP, x += ROSE_K_GROUP) {
        vec16 e[TILE_ROWS], o[TILE_ROWS];
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            e[r] = o[r] = v_zero();
        for (uint32_t k = 0; k < ROSE_K_GROUP; k += 2, w += 2 * ROSE_PANEL) {
            vec16 v = v_load(w);
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                e[r] = v_fma(v_set1(x[r * ldx + k]), v, e[r]);
            v = v_load(w + ROSE_PANEL);
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                o[r] = v_fma(v_set1(x[r * ldx + k + 1]), v, o[r]);
        }
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            acc[r] = v_add(acc[r], v_add(e[r], o[r]));
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        v_store(sums + r * ROSE_PANEL, acc[r]);
}

/* These are separate functions: in one function the compiler has too few registers for the inner
 * loops. */
static __attribute__((noinline)) void add_three(float *sums, const float *w, const float *x,
                                                size_t ldx, uint32_t n_k)
{
    add_rows(sums, w, x, ldx, n_k, 3);
}

static __attribute__((noinline)) void add_two(float *sums, const float *w, const float *x,
                                              size_t ldx, uint32_t n_k)
{
    add_rows(sums, w, x, ldx, n_k, 2);
}

/* Multiplies rows m to m + n_rows - 1 (at least two) with one panel. The time of matmul_few
 * divided by its time is 0.8 to 0.9 for 8 rows, 1.06 for 20 and 1.15 for 64. (Zen 3, one thread,
 * weights in cache.) */
static void matmul_wide(const rose_matmul *a, const uint8_t *panel, uint32_t m, uint32_t n_rows,
                        uint32_t n0)
{
    const uint32_t most_k = a->k_pad < WIDE_K ? a->k_pad : WIDE_K;
    float *wide = a->scratch, *sums = wide + (size_t)most_k * ROSE_PANEL; /* of WIDE_ROWS rows */
    memset(sums, 0, (size_t)n_rows * ROSE_PANEL * sizeof *sums);
    for (uint32_t k = 0; k < a->k_pad; k += WIDE_K) {
        const uint32_t n_k = a->k_pad - k < most_k ? a->k_pad - k : most_k;
        const float *x = a->x + m * a->ldx + k;
        uint32_t r = 0;
        widen(wide, panel + (size_t)k * ROSE_PANEL, n_k);
        /* a group never has one row alone, because the few sums of one row leave the multipliers
         * idle */
        for (; n_rows - r == 3 || n_rows - r > 4; r += 3)
            add_three(sums + r * ROSE_PANEL, wide, x + r * a->ldx, a->ldx, n_k);
        for (; r < n_rows; r += 2)
            add_two(sums + r * ROSE_PANEL, wide, x + r * a->ldx, a->ldx, n_k);
    }
    for (uint32_t r = 0; r < n_rows; r++)
        finish_outputs(a, v_load(sums + r * ROSE_PANEL), m + r, n0);
}

static __attribute__((noinline)) void matmul_few(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_I8, p0, p1, TILE_ROWS);
}

void rose_matmul_i8_avx2(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    const uint32_t n_blocks = (a->m_rows + WIDE_ROWS - 1) / WIDE_ROWS;
    if (a->m_rows <= FEW_ROWS) {
        matmul_few(a, p0, p1);
        return;
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint32_t m = (uint32_t)rose_share(a->m_rows, b, n_blocks);
        const uint32_t end = (uint32_t)rose_share(a->m_rows, b + 1, n_blocks);
        for (uint32_t p = p0; p < p1; p++)
            matmul_wide(a, (const uint8_t *)a->w + (size_t)p * a->k_pad * ROSE_PANEL, m, end - m,
                        p * ROSE_PANEL);
    }
}

#endif
