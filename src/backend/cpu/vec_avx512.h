/* backend/cpu/vec_avx512.h - sixteen fp32 lanes in one AVX-512 register, under the names that
 * the *_simd.h files use. vec_avx2.h gives the same names to two halves of 8 lanes. Each
 * function is one IEEE operation per lane unless its comment says otherwise. Only for files
 * compiled with FLAGS_avx512. */
#ifndef ROSE_BACKEND_CPU_VEC_AVX512_H
#define ROSE_BACKEND_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/vec_tree8.h"

typedef __m512 vec16;
typedef __m512i ivec16;
typedef __m512d dvec8;

/* A function of two vectors that is one instruction. */
#define V_OP2(name, type, op)                                                                      \
    ROSE_INLINE type name(type a, type b)                                                          \
    {                                                                                              \
        return op(a, b);                                                                           \
    }

V_OP2(v_add, vec16, _mm512_add_ps)
V_OP2(v_sub, vec16, _mm512_sub_ps)
V_OP2(v_mul, vec16, _mm512_mul_ps)
V_OP2(v_div, vec16, _mm512_div_ps)
V_OP2(v_max, vec16, _mm512_max_ps) /* a > b ? a : b; b where either is NaN */
V_OP2(v_min, vec16, _mm512_min_ps) /* a < b ? a : b; b where either is NaN */
V_OP2(v_int_add, ivec16, _mm512_add_epi32)
V_OP2(v_int_sub, ivec16, _mm512_sub_epi32)
V_OP2(v_int_and, ivec16, _mm512_and_si512)

ROSE_INLINE vec16 v_zero(void)
{
    return _mm512_setzero_ps();
}

ROSE_INLINE vec16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}

ROSE_INLINE __mmask16 v_first(uint32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

ROSE_INLINE vec16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* Loads the first n lanes. The other lanes are +0, and their memory is not touched. */
ROSE_INLINE vec16 v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}

ROSE_INLINE void v_store(float *p, vec16 x)
{
    _mm512_storeu_ps(p, x);
}

ROSE_INLINE void v_store_n(float *p, vec16 x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v_first(n), x);
}

ROSE_INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

ROSE_INLINE vec16 v_blend(__mmask16 mask, vec16 a, vec16 b) /* a where mask, else b */
{
    return _mm512_mask_blend_ps(mask, b, a);
}

/* Not where either is NaN. */
ROSE_INLINE __mmask16 v_less(vec16 a, vec16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

ROSE_INLINE ivec16 v_int_if_less(vec16 a, vec16 b, ivec16 x, ivec16 y)
{
    return _mm512_mask_blend_epi32(v_less(a, b), y, x);
}

/* x, or +0 where x is NaN. */
ROSE_INLINE vec16 v_nan_to_zero(vec16 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
}

ROSE_INLINE dvec8 v_double_zero(void)
{
    return _mm512_setzero_pd();
}

/* sum + lanes 0-7 + lanes 8-15. */
ROSE_INLINE dvec8 v_double_add(dvec8 sum, vec16 x)
{
    sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

/* Lanes 4 apart, then 2, then 1. */
ROSE_INLINE double v_double_sum(dvec8 x)
{
    return v_double_sum4(_mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1)));
}

ROSE_INLINE ivec16 v_bits(vec16 x)
{
    return _mm512_castps_si512(x);
}

ROSE_INLINE vec16 v_from_bits(ivec16 x)
{
    return _mm512_castsi512_ps(x);
}

ROSE_INLINE ivec16 v_int_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

ROSE_INLINE ivec16 v_int_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}

ROSE_INLINE void v_int_store(uint32_t *p, ivec16 x)
{
    _mm512_storeu_si512(p, x);
}

ROSE_INLINE ivec16 v_int_half(ivec16 a) /* arithmetic a >> 1 */
{
    return _mm512_srai_epi32(a, 1);
}

ROSE_INLINE ivec16 v_int_shl23(ivec16 a)
{
    return _mm512_slli_epi32(a, 23);
}

ROSE_INLINE vec16 v_neg(vec16 x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

ROSE_INLINE vec16 v_abs(vec16 x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

/* x 2^n, rounded once; n holds an integer. */
#define V_HAS_SCALE 1
ROSE_INLINE vec16 v_scale(vec16 x, vec16 n)
{
    return _mm512_scalef_ps(x, n);
}

/* Loads 16 pairs of bf16. v_pairs_even and v_pairs_odd return their members as fp32. */
ROSE_INLINE ivec16 v_load_pairs(const void *p)
{
    return _mm512_loadu_si512(p);
}

ROSE_INLINE vec16 v_pairs_even(ivec16 w)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

ROSE_INLINE vec16 v_pairs_odd(ivec16 w)
{
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}

/* Sixteen int8 as fp32. */
ROSE_INLINE vec16 v_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

/* R() of docs/NUMERICS.md: rounds to bf16 with integer arithmetic, and makes NaN quiet. */
ROSE_INLINE vec16 v_round_bf16(vec16 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i top = _mm512_set1_epi32((int)0xffff0000);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_blend_epi32(nan, up, quiet), top));
}

/* The tree of rule 3: adds lanes l and l + 8, then l + 4, l + 2, l + 1. */
ROSE_INLINE float v_tree(vec16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return v_tree8(a);
}

#endif
