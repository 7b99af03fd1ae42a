/* backend/cpu/matmul_simd.h - the GEMM over vec16, one source for all vector levels. The AMX file
 * also uses its epilogue. Include after vec_<isa>.h.
 *
 * One weight vector holds 16 outputs of one k or, in bf16, of a pair of k. (Even k: shift left by
 * 16; odd k: mask. int8: widened.) It is loaded and converted once for a block of rows. Each row
 * adds two FMAs per pair, with the activation broadcast from memory. The sums e, o and acc of every
 * row of the block stay in registers. Each row block reads the panel once: the first from memory,
 * the others from L1 or L2.
 *
 * The limit for one row is memory bandwidth; from about four rows on it is FMA throughput. */
#ifndef ROSE_BACKEND_CPU_MATMUL_SIMD_H
#define ROSE_BACKEND_CPU_MATMUL_SIMD_H

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/math_simd.h"

enum {
    /* How far ahead of its loads a panel is prefetched. Up to NEAR_ROWS rows it goes into L1, above
     * that into L2, because 24 kB of rows occupy L1.
     *
     * Speed into L1 divided by speed into L2, on Zen 4 (2026-11-21) with 260 MB of weights. One
     * thread: 1 row 1.40, 4 rows 0.73, 8 rows 0.91. Two threads: 1 row 1.06 to 1.42, 2 rows 1.02
     * to 1.14, 4 rows 0.67. The figures for two threads vary with the load on memory at that
     * minute. Prefetching 4 KB ahead into L2 is slower than 8 KB. */
    ROSE_PREFETCH_BYTES = 8192,
    ROSE_NEAR_ROWS = 2,
    ROSE_MAX_ROW_BLOCK = 8
};

ROSE_INLINE void prefetch_at(const uint8_t *w, intptr_t ahead)
{
    /* Integer arithmetic, because the address may lie outside the object. A prefetch of such an
     * address is ignored. */
    __builtin_prefetch((const void *)((intptr_t)w + ahead), 0, 2); /* into L2 */
}

ROSE_INLINE void prefetch_weights(const uint8_t *w, intptr_t ahead, bool near)
{
    if (near)
        __builtin_prefetch((const void *)((intptr_t)w + ahead), 0, 3); /* into L1 */
    else
        prefetch_at(w, ahead);
}

/* Loads sixteen outputs of one k as fp32. odd: take the second k of the pair at w. */
ROSE_INLINE vec16 v_weights(const uint8_t *w, rose_format type, bool odd)
{
    if (type == ROSE_F32) return v_load((const float *)(const void *)(w + (odd ? 64 : 0)));
    if (type == ROSE_I8) return v_load_i8(w + (odd ? 16 : 0));
    return odd ? v_pairs_odd(v_load_pairs(w)) : v_pairs_even(v_load_pairs(w));
}

/* Adds the products of n_k (even) consecutive k, whose weights are at w, to the sums e and o of
 * n_rows rows. The cache line `ahead` bytes after each weight vector is prefetched: into L1 if
 * `near` is set, else into L2. `near` must be a compile-time constant. */
ROSE_INLINE void v_chains(vec16 *e, vec16 *o, const uint8_t *w, rose_format type, uint32_t n_k,
                          const float *x, size_t ldx, uint32_t n_rows, intptr_t ahead, bool near)
{
    size_t step = 2 * ROSE_PANEL * rose_format_size(type); /* bytes of a pair of k */
    for (uint32_t k = 0; k < n_k; k += 2, w += step) {
        /* Even before odd: AVX2 has no register to hold both next to three rows of chains. */
        vec16 w_even = v_weights(w, type, false);
        prefetch_weights(w, ahead, near);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            e[r] = v_fma(v_set1(x[r * ldx + k]), w_even, e[r]);

        vec16 w_odd = v_weights(w, type, true);
        if (type == ROSE_F32) prefetch_weights(w, ahead + 64, near);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            o[r] = v_fma(v_set1(x[r * ldx + k + 1]), w_odd, o[r]);
    }
}

/* The epilogue of n sums of row m, which begin at the i-th of all panels and go to column n0. */
ROSE_INLINE vec16 v_epilogue(const rose_matmul *a, vec16 v, uint32_t m, uint32_t i, uint32_t n0,
                             uint32_t n)
{
    if (a->scale != NULL) v = v_mul(v, v_load_n(a->scale + i, n));
    if (a->bias != NULL) v = v_add(v, v_load_n(a->bias + i, n));
    if (a->gated && i / ROSE_PANEL % 2 == 1) { /* up: y holds the activated gate */
        v = v_mul(v_load_n(a->y + m * a->ldy + n0, n), v);
        return a->round_bf16 ? v_round_bf16(v) : v;
    }
    switch (a->epilogue) {
    case ROSE_EPI_NONE:
        break;
    case ROSE_EPI_GELU_TANH:
        v = v_gelu_tanh(v);
        break;
    case ROSE_EPI_GELU_ERF:
        v = v_gelu_erf(v);
        break;
    case ROSE_EPI_RELU:
        v = v_relu(v);
        break;
    case ROSE_EPI_SILU:
        v = v_silu(v);
        break;
    case ROSE_EPI_RESIDUAL:
        v = v_add(v_load_n(a->y + m * a->ldy + n0, n), v);
        break;
    case ROSE_EPI_SOFTCAP:
        v = v_softcap(v, v_set1(a->cap));
        break;
    }
    return a->round_bf16 && !a->gated ? v_round_bf16(v) : v;
}

/* Not inlined: sixteen sums of one row, from the i-th of all panels, once per whole reduction. */
static void finish_outputs(const rose_matmul *a, vec16 acc, uint32_t m, uint32_t i)
{
    const uint32_t n0 = rose_panel_column(a, i / ROSE_PANEL);
    const uint32_t n = a->n - n0 < ROSE_PANEL ? a->n - n0 : ROSE_PANEL;
    v_store_n(a->y + m * a->ldy + n0, v_epilogue(a, acc, m, i, n0, n), n);
}

ROSE_INLINE void matmul_block(const rose_matmul *a, const uint8_t *panel, rose_format type,
                              uint32_t m, uint32_t n0, uint32_t n_rows)
{
    size_t group_bytes = (size_t)ROSE_K_GROUP * ROSE_PANEL * rose_format_size(type);
    const float *x = a->x + m * a->ldx;
    vec16 acc[ROSE_MAX_ROW_BLOCK];

    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        acc[r] = v_zero();
    for (uint32_t g = 0; g < a->k_pad; g += ROSE_K_GROUP) {
        vec16 e[ROSE_MAX_ROW_BLOCK], o[ROSE_MAX_ROW_BLOCK];
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            e[r] = o[r] = v_zero();
        v_chains(e, o, panel, type, ROSE_K_GROUP, x + g, a->ldx, n_rows, ROSE_PREFETCH_BYTES,
                 n_rows <= ROSE_NEAR_ROWS);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            acc[r] = v_add(acc[r], v_add(e[r], o[r]));
        panel += group_bytes;
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        finish_outputs(a, acc[r], m + r, n0);
}

#define BLOCK(rows)                                                                                \
    case rows:                                                                                     \
        if (max_block >= (rows)) matmul_block(a, panel, type, m, n0, rows);                        \
        break

/* Multiplies all rows with one panel, in blocks of at most max_block rows (a constant: what the
 * registers hold). */
ROSE_INLINE void matmul_panel(const rose_matmul *a, const uint8_t *panel, rose_format type,
                              uint32_t n0, uint32_t max_block)
{
    uint32_t m = 0;
    while (m < a->m_rows) {
        uint32_t left = a->m_rows - m;
        uint32_t block = left < max_block ? left : max_block;
        switch (block) {
            BLOCK(1);
            BLOCK(2);
            BLOCK(3);
            BLOCK(4);
            BLOCK(5);
            BLOCK(6);
            BLOCK(7);
            BLOCK(8);
        default:
            break;
        }
        m += block;
    }
}

#undef BLOCK

ROSE_INLINE void matmul_panels(const rose_matmul *a, rose_format type, uint32_t p0, uint32_t p1,
                               uint32_t max_block)
{
    size_t panel_bytes = (size_t)a->k_pad * ROSE_PANEL * rose_format_size(type);
    for (uint32_t p = p0; p < p1; p++) {
        matmul_panel(a, (const uint8_t *)a->w + p * panel_bytes, type, p * ROSE_PANEL, max_block);
    }
}

#if defined(__AVX512F__)
/* An int8 panel as bf16, for the levels that multiply pairs; integers up to 127 are exact. */
static inline void widen_panel(const rose_matmul *a, uint32_t p, uint8_t *out)
{
    const uint8_t *w = (const uint8_t *)a->w + (size_t)p * a->k_pad * ROSE_PANEL;
    for (uint32_t k = 0; k < a->k_pad; k += 2, w += 2 * ROSE_PANEL, out += 64) {
        const ivec16 even = v_bits(v_load_i8(w)), odd = v_bits(v_load_i8(w + ROSE_PANEL));
        prefetch_at(w, ROSE_PREFETCH_BYTES);
        v_int_store((uint32_t *)(void *)out, _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
    }
}
#endif

#endif
