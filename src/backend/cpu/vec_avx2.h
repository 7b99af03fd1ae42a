/* backend/cpu/vec_avx2.h - sixteen fp32 lanes in two AVX2 registers (lo = lanes 0-7), under the
 * names that the *_simd.h files use; vec_avx512.h says what each does. Only for files compiled
 * with FLAGS_avx2. */
#ifndef ROSE_BACKEND_CPU_VEC_AVX2_H
#define ROSE_BACKEND_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/vec_tree8.h"

typedef struct vec16 {
    __m256 lo, hi;
} vec16;

typedef struct ivec16 {
    __m256i lo, hi;
} ivec16;

typedef struct dvec8 {
    __m256d lo, hi;
} dvec8;

/* One instruction on both halves: of one operand, of two, or of one and a constant. */
#define V_BOTH(type, op, x)         ((type){op((x).lo), op((x).hi)})
#define V_BOTH2(type, op, x, y)     ((type){op((x).lo, (y).lo), op((x).hi, (y).hi)})
#define V_BOTH_WITH(type, op, x, y) ((type){op((x).lo, y), op((x).hi, y)})

#define V_OP2(name, type, op)                                                                      \
    ROSE_INLINE type name(type a, type b)                                                          \
    {                                                                                              \
        return V_BOTH2(type, op, a, b);                                                            \
    }

V_OP2(v_add, vec16, _mm256_add_ps)
V_OP2(v_sub, vec16, _mm256_sub_ps)
V_OP2(v_mul, vec16, _mm256_mul_ps)
V_OP2(v_div, vec16, _mm256_div_ps)
V_OP2(v_max, vec16, _mm256_max_ps)
V_OP2(v_min, vec16, _mm256_min_ps)
V_OP2(v_int_add, ivec16, _mm256_add_epi32)
V_OP2(v_int_sub, ivec16, _mm256_sub_epi32)

ROSE_INLINE vec16 v_zero(void)
{
    return (vec16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

ROSE_INLINE vec16 v_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (vec16){v, v};
}

/* All ones in lanes below n. */
ROSE_INLINE ivec16 v_first(uint32_t n)
{
    __m256i count = _mm256_set1_epi32(n >= 16 ? 16 : (int)n);
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (ivec16){_mm256_cmpgt_epi32(count, lane),
                    _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}

ROSE_INLINE vec16 v_load(const float *p)
{
    return (vec16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

ROSE_INLINE vec16 v_load_n(const float *p, uint32_t n)
{
    ivec16 m = v_first(n);
    return (vec16){_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}

ROSE_INLINE void v_store(float *p, vec16 x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

ROSE_INLINE void v_store_n(float *p, vec16 x, uint32_t n)
{
    ivec16 m = v_first(n);
    _mm256_maskstore_ps(p, m.lo, x.lo);
    _mm256_maskstore_ps(p + 8, m.hi, x.hi);
}

ROSE_INLINE vec16 v_blend(ivec16 mask, vec16 a, vec16 b) /* a where mask, else b */
{
    return (vec16){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(mask.lo)),
                   _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(mask.hi))};
}

ROSE_INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c)
{
    return (vec16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

ROSE_INLINE ivec16 v_less(vec16 a, vec16 b)
{
    return (ivec16){_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                    _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

ROSE_INLINE ivec16 v_int_if_less(vec16 a, vec16 b, ivec16 x, ivec16 y)
{
    ivec16 m = v_less(a, b);
    return (ivec16){_mm256_blendv_epi8(y.lo, x.lo, m.lo), _mm256_blendv_epi8(y.hi, x.hi, m.hi)};
}

ROSE_INLINE vec16 v_nan_to_zero(vec16 x)
{
    return (vec16){_mm256_and_ps(x.lo, _mm256_cmp_ps(x.lo, x.lo, _CMP_ORD_Q)),
                   _mm256_and_ps(x.hi, _mm256_cmp_ps(x.hi, x.hi, _CMP_ORD_Q))};
}

ROSE_INLINE dvec8 v_double_zero(void)
{
    return (dvec8){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

ROSE_INLINE dvec8 v_double_add(dvec8 sum, vec16 x)
{
    sum.lo = _mm256_add_pd(sum.lo, _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)));
    sum.hi = _mm256_add_pd(sum.hi, _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1)));
    sum.lo = _mm256_add_pd(sum.lo, _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)));
    sum.hi = _mm256_add_pd(sum.hi, _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1)));
    return sum;
}

ROSE_INLINE double v_double_sum(dvec8 x)
{
    return v_double_sum4(_mm256_add_pd(x.lo, x.hi));
}

ROSE_INLINE ivec16 v_bits(vec16 x)
{
    return (ivec16){_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}

ROSE_INLINE vec16 v_from_bits(ivec16 x)
{
    return (vec16){_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}

ROSE_INLINE ivec16 v_int_set1(int32_t x)
{
    __m256i v = _mm256_set1_epi32(x);
    return (ivec16){v, v};
}

ROSE_INLINE ivec16 v_int_load(const uint32_t *p)
{
    return (ivec16){_mm256_loadu_si256((const __m256i_u *)p),
                    _mm256_loadu_si256((const __m256i_u *)(p + 8))};
}

ROSE_INLINE void v_int_store(uint32_t *p, ivec16 x)
{
    _mm256_storeu_si256((__m256i_u *)p, x.lo);
    _mm256_storeu_si256((__m256i_u *)(p + 8), x.hi);
}

ROSE_INLINE ivec16 v_int_half(ivec16 a)
{
    return (ivec16){_mm256_srai_epi32(a.lo, 1), _mm256_srai_epi32(a.hi, 1)};
}

ROSE_INLINE ivec16 v_int_shl23(ivec16 a)
{
    return (ivec16){_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)};
}

ROSE_INLINE vec16 v_neg(vec16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec16){_mm256_xor_ps(x.lo, sign), _mm256_xor_ps(x.hi, sign)};
}

ROSE_INLINE vec16 v_abs(vec16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec16){_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}

ROSE_INLINE vec16 v_load_i8(const void *p)
{
    /* the compiler folds these loads into the widening instructions */
    __m128i lo = _mm_loadl_epi64(p), hi = _mm_loadl_epi64((const void *)((const uint8_t *)p + 8));
    return (vec16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi))};
}

ROSE_INLINE ivec16 v_load_pairs(const void *p)
{
    return v_int_load(p);
}

ROSE_INLINE vec16 v_pairs_even(ivec16 w)
{
    return (vec16){_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
}

ROSE_INLINE vec16 v_pairs_odd(ivec16 w)
{
    __m256i top = _mm256_set1_epi32((int)0xffff0000);
    return (vec16){_mm256_castsi256_ps(_mm256_and_si256(w.lo, top)),
                   _mm256_castsi256_ps(_mm256_and_si256(w.hi, top))};
}

ROSE_INLINE __m256 round_bf16_f32x8(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i top = _mm256_set1_epi32((int)0xffff0000);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_blendv_epi8(up, quiet, nan), top));
}

ROSE_INLINE vec16 v_round_bf16(vec16 x)
{
    return (vec16){round_bf16_f32x8(x.lo), round_bf16_f32x8(x.hi)};
}

ROSE_INLINE float v_tree(vec16 x)
{
    return v_tree8(_mm256_add_ps(x.lo, x.hi));
}

#endif
