/* backend/cpu/quant_vec256.h - integers of quantized weights in two AVX2 registers, for
 * quant_simd.h; see quant_vec512.h. With AVX-VNNI, VPDPBUSD is used. */
#ifndef ROSE_BACKEND_CPU_QUANT_VEC256_H
#define ROSE_BACKEND_CPU_QUANT_VEC256_H

#include "backend/cpu/quant.h"
#include "backend/cpu/vec_avx2.h"

#define Q_BOTH(op, x)         ((ivec16){op((x).lo), op((x).hi)})
#define Q_BOTH2(op, x, y)     ((ivec16){op((x).lo, (y).lo), op((x).hi, (y).hi)})
#define Q_BOTH_WITH(op, x, y) ((ivec16){op((x).lo, y), op((x).hi, y)})

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
    *low = Q_BOTH_WITH(_mm256_and_si256, w, mask);
    *high = Q_BOTH_WITH(_mm256_srli_epi16, w, 4);
    *high = Q_BOTH_WITH(_mm256_and_si256, *high, mask);
}

ROSE_INLINE ivec16 q_join(ivec16 x, ivec16 h, uint32_t v)
{
    const __m256i mask = _mm256_set1_epi8(0x30);
    if (v < 2) h = Q_BOTH_WITH(_mm256_slli_epi16, h, v == 0 ? 4 : 2);
    if (v == 3) h = Q_BOTH_WITH(_mm256_srli_epi16, h, 2);
    h = Q_BOTH_WITH(_mm256_and_si256, h, mask);
    return Q_BOTH2(_mm256_or_si256, x, h);
}

ROSE_INLINE vec16 q_byte_f32(ivec16 w, uint32_t b, int bias)
{
    w = Q_BOTH_WITH(_mm256_srli_epi32, w, (int)(8 * b));
    w = Q_BOTH_WITH(_mm256_and_si256, w, _mm256_set1_epi32(255));
    return q_to_f32(Q_BOTH_WITH(_mm256_sub_epi32, w, _mm256_set1_epi32(bias)));
}

ROSE_INLINE __m256i q_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

ROSE_INLINE ivec16 q_set1(int32_t x)
{
    return (ivec16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

#if defined(__AVXVNNI__)

typedef ivec16 q_bytes;

ROSE_INLINE ivec16 q_begin(rose_format t, int32_t start)
{
    return q_set1(rose_quant_layout_of(t).has_min ? 0 : start);
}

ROSE_INLINE ivec16 q_dot(rose_format t, ivec16 acc, ivec16 w, const int8_t *x)
{
    const __m256i four = q_four(x);
    (void)t;
    return (ivec16){_mm256_dpbusd_avx_epi32(acc.lo, w.lo, four),
                    _mm256_dpbusd_avx_epi32(acc.hi, w.hi, four)};
}

ROSE_INLINE ivec16 q_end(rose_format t, ivec16 acc, int32_t start)
{
    (void)t;
    (void)start;
    return acc;
}

ROSE_INLINE q_bytes q_load_bytes(const uint8_t *p)
{
    return q_load(p);
}

ROSE_INLINE ivec16 q_dot_bytes(ivec16 acc, q_bytes w, const int8_t *x)
{
    return q_dot(ROSE_Q8_0, acc, w, x);
}

#else

/* The bounds are those of quant_vec512.h. */
typedef struct q_bytes {
    ivec16 magnitude, sign;
} q_bytes;

ROSE_INLINE ivec16 q_pairs_to_32(ivec16 x)
{
    return Q_BOTH_WITH(_mm256_madd_epi16, x, _mm256_set1_epi16(1));
}

ROSE_INLINE ivec16 q_begin(rose_format t, int32_t start)
{
    return q_set1(t == ROSE_Q6_K ? start : 0);
}

ROSE_INLINE ivec16 q_dot(rose_format t, ivec16 acc, ivec16 w, const int8_t *x)
{
    const __m256i four = q_four(x);
    const ivec16 two = Q_BOTH_WITH(_mm256_maddubs_epi16, w, four);
    if (t != ROSE_Q6_K) return Q_BOTH2(_mm256_add_epi16, acc, two);
    return Q_BOTH2(_mm256_add_epi32, acc, q_pairs_to_32(two));
}

ROSE_INLINE ivec16 q_end(rose_format t, ivec16 acc, int32_t start)
{
    if (t == ROSE_Q6_K) return acc;
    acc = q_pairs_to_32(acc);
    return t == ROSE_Q4_0 ? Q_BOTH_WITH(_mm256_add_epi32, acc, _mm256_set1_epi32(start)) : acc;
}

ROSE_INLINE q_bytes q_load_bytes(const uint8_t *p)
{
    const ivec16 w = q_load(p);
    q_bytes out;
    out.sign = Q_BOTH_WITH(_mm256_xor_si256, w, _mm256_set1_epi8(-128));
    out.magnitude = Q_BOTH(_mm256_abs_epi8, out.sign);
    return out;
}

ROSE_INLINE ivec16 q_dot_bytes(ivec16 acc, q_bytes w, const int8_t *x)
{
    const __m256i four = q_four(x);
    const ivec16 with_sign = {_mm256_sign_epi8(four, w.sign.lo), _mm256_sign_epi8(four, w.sign.hi)};
    const ivec16 two = Q_BOTH2(_mm256_maddubs_epi16, w.magnitude, with_sign);
    return Q_BOTH2(_mm256_add_epi32, acc, q_pairs_to_32(two));
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

/* 16 integers, of which all fit into a byte. */
ROSE_INLINE void q_store_bytes(int8_t *to, ivec16 q)
{
    /* packs works within 128-bit lanes: the 64-bit parts come out in the order 0, 2, 1, 3 */
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q.lo, q.hi), 0xD8);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                            _mm256_extracti128_si256(words, 1)));
}

ROSE_INLINE ivec16 q_round(vec16 x, float inverse)
{
    const vec16 v = v_mul(x, v_set1(inverse));
    return (ivec16){_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)};
}

ROSE_INLINE void q_quantize(rose_quant_block *b, rose_format t, const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    const vec16 first = v_load(x), last = v_load(x + 16);
    const ivec16 first_bits = Q_BOTH_WITH(_mm256_and_si256, v_bits(first), magnitude);
    const ivec16 last_bits = Q_BOTH_WITH(_mm256_and_si256, v_bits(last), magnitude);
    const ivec16 both = Q_BOTH2(_mm256_max_epu32, first_bits, last_bits);
    const uint32_t largest =
        (uint32_t)_mm_cvtsi128_si32(q_fold(_mm256_max_epu32(both.lo, both.hi), true));
    float d, inverse;
    rose_quant_scale(largest, &d, &inverse);
    ivec16 q0 = q_round(first, inverse), q1 = q_round(last, inverse);
    if (largest >= ROSE_QUANT_INF) q0 = q1 = q_set1(0);
    q_store_bytes(b->q, q0);
    q_store_bytes(b->q + 16, q1);
    rose_quant_sums(b, t, d, _mm_cvtsi128_si32(q_fold(_mm256_add_epi32(q0.lo, q0.hi), false)),
                    _mm_cvtsi128_si32(q_fold(_mm256_add_epi32(q1.lo, q1.hi), false)));
}

#endif
