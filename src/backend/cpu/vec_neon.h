/* backend/cpu/vec_neon.h - sixteen fp32 lanes in four NEON registers, under the names that the
 * *_simd.h files use; vec_avx512.h says what each does. AArch64 always has NEON, so no compiler
 * flags are needed.
 *
 * AArch64 decides before rounding whether a result is too small for a normal number; x86 decides
 * after it. A result that just rounds up to 2^-126 is therefore zero here and 2^-126 on x86.
 * Apart from that the bits are those of the other levels. */
#ifndef ROSE_BACKEND_CPU_VEC_NEON_H
#define ROSE_BACKEND_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#include "backend/cpu/vec_common.h"

typedef struct vec16 {
    float32x4_t q[4];
} vec16;

typedef struct ivec16 {
    uint32x4_t q[4];
} ivec16;

typedef struct dvec8 {
    float64x2_t q[4];
} dvec8;

/* One operation on the four registers. */
#define NEON_EACH(type, expression)                                                                \
    type y;                                                                                        \
    ROSE_UNROLL                                                                                    \
    for (int i = 0; i < 4; i++)                                                                    \
        y.q[i] = (expression);                                                                     \
    return y

#define V_OP2(name, type, op)                                                                      \
    ROSE_INLINE type name(type a, type b)                                                          \
    {                                                                                              \
        NEON_EACH(type, op(a.q[i], b.q[i]));                                                       \
    }

V_OP2(v_add, vec16, vaddq_f32)
V_OP2(v_sub, vec16, vsubq_f32)
V_OP2(v_mul, vec16, vmulq_f32)
V_OP2(v_div, vec16, vdivq_f32)
V_OP2(v_int_add, ivec16, vaddq_u32)
V_OP2(v_int_sub, ivec16, vsubq_u32)

ROSE_INLINE vec16 v_set1(float x)
{
    NEON_EACH(vec16, vdupq_n_f32(x));
}

ROSE_INLINE vec16 v_zero(void)
{
    return v_set1(0.0f);
}

/* All ones in lanes below n. */
ROSE_INLINE ivec16 v_first(uint32_t n)
{
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    NEON_EACH(ivec16, vcltq_u32(vld1q_u32(lanes + 4 * i), vdupq_n_u32(n)));
}

ROSE_INLINE vec16 v_load(const float *p)
{
    NEON_EACH(vec16, vld1q_f32(p + 4 * i));
}

ROSE_INLINE void v_store(float *p, vec16 x)
{
    ROSE_UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, x.q[i]);
}

/* NEON has no masked loads, so a short load goes through the stack. */
ROSE_INLINE vec16 v_load_n(const float *p, uint32_t n)
{
    if (n >= 16) return v_load(p);
    float lane[16] = {0};
    for (uint32_t l = 0; l < n; l++)
        lane[l] = p[l];
    return v_load(lane);
}

ROSE_INLINE void v_store_n(float *p, vec16 x, uint32_t n)
{
    if (n >= 16) {
        v_store(p, x);
        return;
    }
    float lane[16];
    v_store(lane, x);
    for (uint32_t l = 0; l < n; l++)
        p[l] = lane[l];
}

ROSE_INLINE vec16 v_blend(ivec16 mask, vec16 a, vec16 b) /* a where mask, else b */
{
    NEON_EACH(vec16, vbslq_f32(mask.q[i], a.q[i], b.q[i]));
}

ROSE_INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c)
{
    NEON_EACH(vec16, vfmaq_f32(c.q[i], a.q[i], b.q[i]));
}

ROSE_INLINE vec16 v_max(vec16 a, vec16 b)
{
    NEON_EACH(vec16, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}

/* a < b ? a : b; b where either is NaN. */
ROSE_INLINE vec16 v_min(vec16 a, vec16 b)
{
    NEON_EACH(vec16, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}

ROSE_INLINE ivec16 v_less(vec16 a, vec16 b)
{
    NEON_EACH(ivec16, vcltq_f32(a.q[i], b.q[i]));
}

ROSE_INLINE ivec16 v_int_if_less(vec16 a, vec16 b, ivec16 x, ivec16 z)
{
    ivec16 mask = v_less(a, b);
    NEON_EACH(ivec16, vbslq_u32(mask.q[i], x.q[i], z.q[i]));
}

ROSE_INLINE vec16 v_nan_to_zero(vec16 x)
{
    NEON_EACH(vec16, vbslq_f32(vceqq_f32(x.q[i], x.q[i]), x.q[i], vdupq_n_f32(0.0f)));
}

ROSE_INLINE dvec8 v_double_zero(void)
{
    NEON_EACH(dvec8, vdupq_n_f64(0));
}

ROSE_INLINE dvec8 v_double_add(dvec8 sum, vec16 x)
{
    ROSE_UNROLL
    for (int i = 0; i < 4; i++) {
        float64x2_t *lanes = &sum.q[i % 2 * 2];
        lanes[0] = vaddq_f64(lanes[0], vcvt_f64_f32(vget_low_f32(x.q[i])));
        lanes[1] = vaddq_f64(lanes[1], vcvt_high_f64_f32(x.q[i]));
    }
    return sum;
}

ROSE_INLINE double v_double_sum(dvec8 x)
{
    const float64x2_t a = vaddq_f64(x.q[0], x.q[2]), b = vaddq_f64(x.q[1], x.q[3]);
    return vaddvq_f64(vaddq_f64(a, b));
}

ROSE_INLINE ivec16 v_bits(vec16 x)
{
    NEON_EACH(ivec16, vreinterpretq_u32_f32(x.q[i]));
}

ROSE_INLINE vec16 v_from_bits(ivec16 x)
{
    NEON_EACH(vec16, vreinterpretq_f32_u32(x.q[i]));
}

ROSE_INLINE ivec16 v_int_set1(int32_t x)
{
    NEON_EACH(ivec16, vdupq_n_u32((uint32_t)x));
}

ROSE_INLINE ivec16 v_int_load(const uint32_t *p)
{
    NEON_EACH(ivec16, vld1q_u32(p + 4 * i));
}

ROSE_INLINE void v_int_store(uint32_t *p, ivec16 x)
{
    ROSE_UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_u32(p + 4 * i, x.q[i]);
}

ROSE_INLINE ivec16 v_int_half(ivec16 a)
{
    NEON_EACH(ivec16, vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a.q[i]), 1)));
}

ROSE_INLINE ivec16 v_int_shl23(ivec16 a)
{
    NEON_EACH(ivec16, vshlq_n_u32(a.q[i], 23));
}

ROSE_INLINE vec16 v_neg(vec16 x)
{
    NEON_EACH(vec16, vnegq_f32(x.q[i]));
}

ROSE_INLINE vec16 v_abs(vec16 x)
{
    NEON_EACH(vec16, vabsq_f32(x.q[i]));
}

ROSE_INLINE vec16 v_load_i8(const void *p)
{
    const int8x16_t b = vld1q_s8(p);
    const int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    return (vec16){
        {vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
         vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}

ROSE_INLINE ivec16 v_load_pairs(const void *p)
{
    return v_int_load(p);
}

ROSE_INLINE vec16 v_pairs_even(ivec16 w)
{
    NEON_EACH(vec16, vreinterpretq_f32_u32(vshlq_n_u32(w.q[i], 16)));
}

ROSE_INLINE vec16 v_pairs_odd(ivec16 w)
{
    NEON_EACH(vec16, vreinterpretq_f32_u32(vandq_u32(w.q[i], vdupq_n_u32(0xffff0000u))));
}

ROSE_INLINE float32x4_t round_bf16_f32x4(float32x4_t x)
{
    const uint32x4_t u = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    const uint32x4_t number = vceqq_f32(x, x);
    return vreinterpretq_f32_u32(vandq_u32(vbslq_u32(number, up, quiet), vdupq_n_u32(0xffff0000u)));
}

ROSE_INLINE vec16 v_round_bf16(vec16 x)
{
    NEON_EACH(vec16, round_bf16_f32x4(x.q[i]));
}

/* Lanes l and l + 8, then + 4, + 2, + 1. */
ROSE_INLINE float v_tree(vec16 x)
{
    const float32x4_t a = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
    const float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

#endif
