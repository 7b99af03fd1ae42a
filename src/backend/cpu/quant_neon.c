/* backend/cpu/quant_neon.c - products with quantized weights over NEON; see quant_simd.h. An ivec16
 * is four registers. SMULL, ADDP and SADALP multiply signed bytes, add pairs in 16 bits and add
 * pairs of these to each 32-bit sum. A pair is at most 2 * 128 * 127 in magnitude, which 16 bits
 * hold. So every AArch64 CPU runs this; SDOT, which some lack, is not used. */
#include "backend/cpu/kernels_internal.h"

#if defined(__aarch64__)

#include <string.h>

#include "backend/cpu/quant.h"
#include "backend/cpu/vec_neon.h"

/* As in quant_vec256.h. */
enum { ROSE_QUANT_SOME = 3, ROSE_QUANT_MOST = 4, ROSE_QUANT_F32_ROWS = 3 };

#define Q_DOT          1
#define Q_SIGNED_BYTES 1 /* SMULL takes them */

ROSE_INLINE ivec16 q_load(const uint8_t *p)
{
    NEON_EACH(ivec16, vreinterpretq_u32_u8(vld1q_u8(p + 16 * i)));
}

ROSE_INLINE vec16 q_load_f16(const uint8_t *p)
{
    NEON_EACH(vec16, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i))));
}

ROSE_INLINE vec16 q_to_f32(ivec16 x)
{
    NEON_EACH(vec16, vcvtq_f32_s32(vreinterpretq_s32_u32(x.q[i])));
}

ROSE_INLINE vec16 q_load_u8(const uint8_t *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_u8(vget_high_u8(bytes));
    return (vec16){
        {vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo))),
         vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi)))}};
}

ROSE_INLINE ivec16 q_and_bytes(ivec16 x, uint8_t mask)
{
    NEON_EACH(ivec16, vandq_u32(x.q[i], vreinterpretq_u32_u8(vdupq_n_u8(mask))));
}

/* Bytes shifted to the left, or to the right if by is negative. */
ROSE_INLINE ivec16 q_shift_bytes(ivec16 x, int8_t by)
{
    NEON_EACH(ivec16, vreinterpretq_u32_u8(vshlq_u8(vreinterpretq_u8_u32(x.q[i]), vdupq_n_s8(by))));
}

ROSE_INLINE void q_split_nibbles(ivec16 *low, ivec16 *high, ivec16 w)
{
    *low = q_and_bytes(w, 15);
    *high = q_shift_bytes(w, -4);
}

ROSE_INLINE ivec16 q_join(ivec16 x, ivec16 h, uint32_t v)
{
    h = q_and_bytes(q_shift_bytes(h, (int8_t)(4 - 2 * (int)v)), 0x30);
    NEON_EACH(ivec16, vorrq_u32(x.q[i], h.q[i]));
}

ROSE_INLINE vec16 q_byte_f32(ivec16 w, uint32_t b, int bias)
{
    const int32x4_t down = vdupq_n_s32(-(int)(8 * b));
    NEON_EACH(vec16, vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(vandq_u32(
                                                 vshlq_u32(w.q[i], down), vdupq_n_u32(255))),
                                             vdupq_n_s32(bias))));
}

ROSE_INLINE ivec16 q_add_products(ivec16 acc, ivec16 w, const int8_t *x)
{
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(bits));
    ROSE_UNROLL
    for (int i = 0; i < 4; i++) {
        const int8x16_t q = vreinterpretq_s8_u32(w.q[i]);
        const int16x8_t pairs =
            vpaddq_s16(vmull_s8(vget_low_s8(q), vget_low_s8(four)), vmull_high_s8(q, four));
        acc.q[i] = vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(acc.q[i]), pairs));
    }
    return acc;
}

ROSE_INLINE ivec16 q_load_bytes(const uint8_t *p)
{
    NEON_EACH(ivec16, vreinterpretq_u32_u8(veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(128))));
}

/* ---- activations ---- */

ROSE_INLINE uint32_t q_largest(vec16 a, vec16 b)
{
    uint32x4_t most = vdupq_n_u32(0);
    const ivec16 x = v_bits(v_abs(a)), y = v_bits(v_abs(b));
    ROSE_UNROLL
    for (int i = 0; i < 4; i++)
        most = vmaxq_u32(most, vmaxq_u32(x.q[i], y.q[i]));
    return vmaxvq_u32(most);
}

ROSE_INLINE int32_t q_store_rounded(int8_t *to, vec16 x, bool finite)
{
    int32x4_t q[4];
    ROSE_UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = finite ? vcvtnq_s32_f32(x.q[i]) : vdupq_n_s32(0);
    const int16x8_t first = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    const int16x8_t last = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
    vst1q_s8(to, vcombine_s8(vmovn_s16(first), vmovn_s16(last)));
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
}

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_neon)

#endif
