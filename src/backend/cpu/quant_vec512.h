/* backend/cpu/quant_vec512.h - integers of quantized weights in AVX-512 registers, for
 * quant_simd.h. VPDPBUSD multiplies bytes and adds four products to each 32-bit sum. Without it
 * VPMADDUBSW adds two products in 16 bits: no sum that is formed here can saturate. */
#ifndef ROSE_BACKEND_CPU_QUANT_VEC512_H
#define ROSE_BACKEND_CPU_QUANT_VEC512_H

#include <string.h>

#include "backend/cpu/quant.h"
#include "backend/cpu/vec_avx512.h"

/* As in quant_vec256.h. */
enum { ROSE_QUANT_SOME = 4, ROSE_QUANT_MOST = 8, ROSE_QUANT_F32_ROWS = 8 };

ROSE_INLINE ivec16 q_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

ROSE_INLINE vec16 q_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

ROSE_INLINE vec16 q_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

ROSE_INLINE vec16 q_to_f32(ivec16 x)
{
    return _mm512_cvtepi32_ps(x);
}

ROSE_INLINE void q_split_nibbles(ivec16 *low, ivec16 *high, ivec16 w)
{
    const ivec16 mask = _mm512_set1_epi8(15);
    *low = _mm512_and_si512(w, mask);
    *high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
}

/* x with bits 2 v and 2 v + 1 of every byte of h above its nibbles. */
ROSE_INLINE ivec16 q_join(ivec16 x, ivec16 h, uint32_t v)
{
    const ivec16 moved = v < 2    ? _mm512_slli_epi16(h, v == 0 ? 4 : 2)
                         : v == 2 ? h
                                  : _mm512_srli_epi16(h, 2);
    return _mm512_or_si512(x, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
}

/* Byte b of each 32 bits, less the bias, as fp32. */
ROSE_INLINE vec16 q_byte_f32(ivec16 w, uint32_t b, int bias)
{
    const ivec16 q = _mm512_and_si512(_mm512_srli_epi32(w, 8 * b), _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(bias)));
}

ROSE_INLINE ivec16 q_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

#if defined(__AVX512VNNI__)

#define Q_DOT 1

ROSE_INLINE ivec16 q_add_products(ivec16 acc, ivec16 w, const int8_t *x)
{
    return _mm512_dpbusd_epi32(acc, w, q_four(x));
}

#else

/* Nibbles: eight sums of two products are at most 8 * 2 * 15 * 127 = 30480, and are added in 16
 * bits. Six bits: one such sum is at most 2 * 63 * 127. Bytes: signed weights, whose magnitude
 * (128 at most) is multiplied by the activation with the weight's sign; at most 2 * 128 * 127. */
typedef struct q_bytes {
    ivec16 magnitude;
    __mmask64 negative;
} q_bytes;

ROSE_INLINE ivec16 q_pairs_to_32(ivec16 x)
{
    return _mm512_madd_epi16(x, _mm512_set1_epi16(1));
}

ROSE_INLINE ivec16 q_pair_sums(ivec16 w, const int8_t *x)
{
    return _mm512_maddubs_epi16(w, q_four(x));
}

V_OP2(q_add_16, ivec16, _mm512_add_epi16)

ROSE_INLINE q_bytes q_load_bytes(const uint8_t *p)
{
    const ivec16 w = _mm512_xor_si512(q_load(p), _mm512_set1_epi8(-128));
    return (q_bytes){_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
}

ROSE_INLINE ivec16 q_dot_bytes(ivec16 acc, q_bytes w, const int8_t *x)
{
    const ivec16 four = q_four(x);
    const ivec16 with_sign = _mm512_mask_sub_epi8(four, w.negative, _mm512_setzero_si512(), four);
    return _mm512_add_epi32(acc, q_pairs_to_32(_mm512_maddubs_epi16(w.magnitude, with_sign)));
}

#endif

ROSE_INLINE uint32_t q_largest(vec16 a, vec16 b)
{
    return _mm512_reduce_max_epu32(_mm512_max_epu32(v_bits(v_abs(a)), v_bits(v_abs(b))));
}

ROSE_INLINE int32_t q_store_rounded(int8_t *to, vec16 x, bool finite)
{
    const ivec16 q = _mm512_maskz_cvtps_epi32(finite ? 0xFFFF : 0, x);
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(q));
    return _mm512_reduce_add_epi32(q);
}

#endif
