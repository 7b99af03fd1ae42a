/* backend/cpu/quant_vec256.h - integers of quantized weights in two AVX2 registers, for
 * quant_simd.h; see quant_vec512.h. With AVX-VNNI, VPDPBUSD is used. */
#ifndef ROSE_BACKEND_CPU_QUANT_VEC256_H
#define ROSE_BACKEND_CPU_QUANT_VEC256_H

#include <string.h>

#include "backend/cpu/quant.h"
#include "backend/cpu/vec_avx2.h"

/* Rows that share one pass over a panel: of some and of most rows, and of fp32 activations. */
enum { ROSE_QUANT_SOME = 3, ROSE_QUANT_MOST = 4, ROSE_QUANT_F32_ROWS = 3 };

ROSE_INLINE __m256i q_load_half(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

ROSE_INLINE __m128i q_load_quarter(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

ROSE_INLINE ivec16 q_load(const uint8_t *p)
{
    return (ivec16){q_load_half(p), q_load_half(p + 32)};
}

ROSE_INLINE vec16 q_load_f16(const uint8_t *p)
{
    return (vec16){_mm256_cvtph_ps(q_load_quarter(p)), _mm256_cvtph_ps(q_load_quarter(p + 16))};
}

ROSE_INLINE vec16 q_to_f32(ivec16 x)
{
    return (vec16){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

ROSE_INLINE vec16 q_load_u8(const uint8_t *p)
{
    const __m128i bytes = q_load_quarter(p);
    return q_to_f32((ivec16){_mm256_cvtepu8_epi32(bytes),
                             _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))});
}

ROSE_INLINE void q_split_nibbles(ivec16 *low, ivec16 *high, ivec16 w)
{
    const __m256i mask = _mm256_set1_epi8(15);
    *low = V_BOTH_WITH(ivec16, _mm256_and_si256, w, mask);
    *high = V_BOTH_WITH(ivec16, _mm256_srli_epi16, w, 4);
    *high = V_BOTH_WITH(ivec16, _mm256_and_si256, *high, mask);
}

ROSE_INLINE ivec16 q_join(ivec16 x, ivec16 h, uint32_t v)
{
    const __m256i mask = _mm256_set1_epi8(0x30);
    if (v < 2) h = V_BOTH_WITH(ivec16, _mm256_slli_epi16, h, v == 0 ? 4 : 2);
    if (v == 3) h = V_BOTH_WITH(ivec16, _mm256_srli_epi16, h, 2);
    h = V_BOTH_WITH(ivec16, _mm256_and_si256, h, mask);
    return V_BOTH2(ivec16, _mm256_or_si256, x, h);
}

ROSE_INLINE vec16 q_byte_f32(ivec16 w, uint32_t b, int bias)
{
    w = V_BOTH_WITH(ivec16, _mm256_srli_epi32, w, (int)(8 * b));
    w = V_BOTH_WITH(ivec16, _mm256_and_si256, w, _mm256_set1_epi32(255));
    return q_to_f32(V_BOTH_WITH(ivec16, _mm256_sub_epi32, w, _mm256_set1_epi32(bias)));
}

ROSE_INLINE __m256i q_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

#if defined(__AVXVNNI__)

#define Q_DOT 1

ROSE_INLINE ivec16 q_add_products(ivec16 acc, ivec16 w, const int8_t *x)
{
    const __m256i four = q_four(x);
    return (ivec16){_mm256_dpbusd_avx_epi32(acc.lo, w.lo, four),
                    _mm256_dpbusd_avx_epi32(acc.hi, w.hi, four)};
}

#else

/* The bounds are those of quant_vec512.h. */
typedef struct q_bytes {
    ivec16 magnitude, sign;
} q_bytes;

ROSE_INLINE ivec16 q_pairs_to_32(ivec16 x)
{
    return V_BOTH_WITH(ivec16, _mm256_madd_epi16, x, _mm256_set1_epi16(1));
}

ROSE_INLINE ivec16 q_pair_sums(ivec16 w, const int8_t *x)
{
    return V_BOTH_WITH(ivec16, _mm256_maddubs_epi16, w, q_four(x));
}

V_OP2(q_add_16, ivec16, _mm256_add_epi16)

ROSE_INLINE q_bytes q_load_bytes(const uint8_t *p)
{
    const ivec16 w = q_load(p);
    q_bytes out;
    out.sign = V_BOTH_WITH(ivec16, _mm256_xor_si256, w, _mm256_set1_epi8(-128));
    out.magnitude = V_BOTH(ivec16, _mm256_abs_epi8, out.sign);
    return out;
}

ROSE_INLINE ivec16 q_dot_bytes(ivec16 acc, q_bytes w, const int8_t *x)
{
    const __m256i four = q_four(x);
    const ivec16 with_sign = {_mm256_sign_epi8(four, w.sign.lo), _mm256_sign_epi8(four, w.sign.hi)};
    const ivec16 two = V_BOTH2(ivec16, _mm256_maddubs_epi16, w.magnitude, with_sign);
    return v_int_add(acc, q_pairs_to_32(two));
}

#endif

/* ---- activations ---- */

ROSE_INLINE __m128i q_fold(__m256i x, bool max)
{
    const __m128i lo = _mm256_castsi256_si128(x), hi = _mm256_extracti128_si256(x, 1);
    __m128i v = max ? _mm_max_epu32(lo, hi) : _mm_add_epi32(lo, hi);
    __m128i w = _mm_shuffle_epi32(v, 0x4E);
    v = max ? _mm_max_epu32(v, w) : _mm_add_epi32(v, w);
    w = _mm_shuffle_epi32(v, 0xB1);
    return max ? _mm_max_epu32(v, w) : _mm_add_epi32(v, w);
}

/* The largest magnitude, as bits. */
ROSE_INLINE uint32_t q_largest(vec16 a, vec16 b)
{
    const ivec16 most = V_BOTH2(ivec16, _mm256_max_epu32, v_bits(v_abs(a)), v_bits(v_abs(b)));
    return (uint32_t)_mm_cvtsi128_si32(q_fold(_mm256_max_epu32(most.lo, most.hi), true));
}

ROSE_INLINE int32_t q_store_rounded(int8_t *to, vec16 x, bool finite)
{
    ivec16 q = V_BOTH(ivec16, _mm256_cvtps_epi32, x);
    if (!finite) q = v_int_set1(0);
    /* packs works within 128-bit lanes: the 64-bit parts come out in the order 0, 2, 1, 3 */
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q.lo, q.hi), 0xD8);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                            _mm256_extracti128_si256(words, 1)));
    return _mm_cvtsi128_si32(q_fold(_mm256_add_epi32(q.lo, q.hi), false));
}

#endif
