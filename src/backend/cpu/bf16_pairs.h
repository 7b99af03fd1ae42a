/* backend/cpu/bf16_pairs.h - arranges activations as VDPBF16PS needs them, for the
 * *_avx512bf16.c files. Each pair is two bf16 values with consecutive k. The pairs of
 * neighbouring rows are adjacent, so that a kernel's broadcasts read memory in order. Include
 * after vec_avx512.h. */
#ifndef ROSE_BACKEND_CPU_BF16_PAIRS_H
#define ROSE_BACKEND_CPU_BF16_PAIRS_H

#include <immintrin.h>
#include <stdint.h>

/* Transposes 16 rows of 16 pairs to 16 vectors, each with one pair of all 16 rows. */
ROSE_INLINE void transpose(__m512i r[16])
{
    __m512i t[16];
    ROSE_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    ROSE_UNROLL
    for (int i = 0; i < 16;
         i += 4) { /* r[i + j]: pair j of each group of 4 lanes, of rows i .. i + 3 */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    ROSE_UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88); /* lanes 0 and 2 of rows 0 .. 7 */
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    ROSE_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Loads 32 floats, whose values bf16 holds exactly, as 16 pairs of bf16. */
ROSE_INLINE __m512i load_pairs(const float *x)
{
    return (__m512i)_mm512_cvtne2ps_pbh(v_load(x + 16), v_load(x));
}

/* Converts n_rows (1 .. 16) rows of n_k values (a multiple of 32) to pairs, out[n_k /
 * 2][n_rows]. */
static void rows_to_pairs(const float *x, size_t ldx, uint32_t n_k, uint32_t n_rows, uint32_t *out)
{
    for (uint32_t k = 0; k < n_k; k += 32, x += 32, out += 16 * n_rows) {
        if (n_rows == 1) {
            _mm512_storeu_si512(out, load_pairs(x));
            continue;
        }
        __m512i r[16];
        ROSE_UNROLL
        for (uint32_t i = 0; i < 16; i++)
            r[i] = i < n_rows ? load_pairs(x + i * ldx) : _mm512_setzero_si512();
        transpose(r);
        ROSE_UNROLL
        for (uint32_t i = 0; i < 16; i++)
            _mm512_mask_storeu_epi32(out + i * n_rows, v_first(n_rows), r[i]);
    }
}

/* Returns sum plus the two products of a pair of k. The product of the odd k is added first. */
ROSE_INLINE vec16 v_dot(vec16 sum, uint32_t pair, ivec16 w)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)w);
}

#endif
