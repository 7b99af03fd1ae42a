/* backend/cpu/numerics.h - the scalar operations of docs/NUMERICS.md that every kernel repeats
 * bit for bit: bf16 rounding, exp, the activation functions, the 16-lane tree. The vector
 * versions in vec_<isa>.h are the same sequences of operations, so a change here needs the same
 * change there. Pure functions. */
#ifndef ROSE_BACKEND_CPU_NUMERICS_H
#define ROSE_BACKEND_CPU_NUMERICS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/kernels.h"

/* Coefficients, shared with the vector versions. exp: x = n ln 2 + r with |r| <= ln 2 / 2, and
 * e^r = 1 + r + r^2 P(r) with P from Cephes expf. Below EXP_LOW the result is +0; the true value
 * there is under 1.2e-38, where FTZ would begin. At EXP_HIGH it has overflowed to +inf. */
#define ROSE_EXP_LOW    (-87.33f)
#define ROSE_EXP_HIGH   89.0f
#define ROSE_EXP_LOG2E  1.44269504088896341f
#define ROSE_EXP_MAGIC  12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define ROSE_EXP_LN2_HI 0.693359375f
#define ROSE_EXP_LN2_LO (-2.12194440e-4f)
#define ROSE_EXP_P5     1.9875691500e-4f
#define ROSE_EXP_P4     1.3981999507e-3f
#define ROSE_EXP_P3     8.3334519073e-3f
#define ROSE_EXP_P2     4.1665795894e-2f
#define ROSE_EXP_P1     1.6666665459e-1f
#define ROSE_EXP_P0     5.0000001201e-1f

#define ROSE_GELU_C0 (-1.5957691216057308f) /* -2 sqrt(2/pi) */
#define ROSE_GELU_C1 (-0.0713548162726009f) /* 0.044715 times that */

/* erfc(z) = exp(-z^2) t Q(t), t = 1 / (1 + ERF_T z), z >= 0 (Abramowitz and Stegun 7.1.26). Here
 * it is written in terms of |x| = z sqrt 2. */
#define ROSE_ERF_T  0.2316418882f /* 0.3275911 / sqrt 2 */
#define ROSE_ERF_Q0 0.127414796f  /* half of each published value, because gelu needs erfc / 2 */
#define ROSE_ERF_Q1 (-0.142248368f)
#define ROSE_ERF_Q2 0.710706870f
#define ROSE_ERF_Q3 (-0.726576013f)
#define ROSE_ERF_Q4 0.530702714f

/* tanh below TANH_SMALL: Cephes' tanhf, a + a z P(z), z = a^2; from there on by exp. */
#define ROSE_TANH_SMALL 0.625f
#define ROSE_TANH_P4    (-5.70498872745e-3f)
#define ROSE_TANH_P3    2.06390887954e-2f
#define ROSE_TANH_P2    (-5.37397155531e-2f)
#define ROSE_TANH_P1    1.33314422036e-1f
#define ROSE_TANH_P0    (-3.33332819422e-1f)

static inline uint32_t rose_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float rose_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns the bf16 nearest to x, ties to even; NaN becomes a quiet NaN. This is integer
 * arithmetic, which FTZ does not affect. A denormal therefore stays one, and counts as zero in
 * any product. */
static inline uint16_t rose_bf16_from_f32(float x)
{
    uint32_t u = rose_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float rose_f32_from_bf16(uint16_t b)
{
    return rose_f32_from_bits((uint32_t)b << 16);
}

/* R(x) of docs/NUMERICS.md. */
static inline float rose_round_bf16(float x)
{
    return rose_f32_from_bf16(rose_bf16_from_f32(x));
}

static inline float rose_round_if(bool bf16, float x)
{
    return bf16 ? rose_round_bf16(x) : x;
}

/* Returns e^x, at most 2 ulp off where the result is a normal number; +0 below -87.33, +inf
 * above 88.73, NaN for NaN. */
static inline float rose_expf_ref(float x)
{
    if (x < ROSE_EXP_LOW) return 0.0f;
    if (x > ROSE_EXP_HIGH) x = ROSE_EXP_HIGH;
    float t = fmaf(x, ROSE_EXP_LOG2E, ROSE_EXP_MAGIC);
    int32_t n = (int32_t)(rose_f32_bits(t) - rose_f32_bits(ROSE_EXP_MAGIC));
    float nf = t - ROSE_EXP_MAGIC;
    float r = fmaf(nf, -ROSE_EXP_LN2_HI, x);
    r = fmaf(nf, -ROSE_EXP_LN2_LO, r);
    float p = fmaf(ROSE_EXP_P5, r, ROSE_EXP_P4);
    p = fmaf(p, r, ROSE_EXP_P3);
    p = fmaf(p, r, ROSE_EXP_P2);
    p = fmaf(p, r, ROSE_EXP_P1);
    p = fmaf(p, r, ROSE_EXP_P0);
    p = fmaf(p, r * r, r) + 1.0f;
    /* Multiplies by 2^n in two factors, because 2^128 is not a float. For a NaN, n may be
     * anything and the result stays NaN. */
    int32_t half = n >> 1;
    p = p * rose_f32_from_bits((uint32_t)(half + 127) << 23);
    return p * rose_f32_from_bits((uint32_t)(n - half + 127) << 23);
}

/* gelu with tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x / (1 + exp(x (C0 + C1
 * x^2))) */
static inline float rose_gelu_tanh_ref(float x)
{
    float u = x * fmaf(ROSE_GELU_C1, x * x, ROSE_GELU_C0);
    return x / (1.0f + rose_expf_ref(u));
}

/* gelu with erf: x Phi(x), where Phi(-|x|) = erfc(|x| / sqrt 2) / 2 */
static inline float rose_gelu_erf_ref(float x)
{
    float a = fabsf(x);
    float t = 1.0f / fmaf(ROSE_ERF_T, a, 1.0f);
    float q = fmaf(ROSE_ERF_Q4, t, ROSE_ERF_Q3);
    q = fmaf(q, t, ROSE_ERF_Q2);
    q = fmaf(q, t, ROSE_ERF_Q1);
    q = fmaf(q, t, ROSE_ERF_Q0);
    q = q * t;
    float tail = q * rose_expf_ref(a * a * -0.5f);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

static inline float rose_silu_ref(float x)
{
    return x / (1.0f + rose_expf_ref(-x));
}

static inline float rose_relu_ref(float x)
{
    return x < 0.0f ? 0.0f : x; /* NaN stays */
}

static inline float rose_tanh_ref(float x)
{
    const float a = fabsf(x), z = a * a;
    float p = fmaf(ROSE_TANH_P4, z, ROSE_TANH_P3);
    p = fmaf(p, z, ROSE_TANH_P2);
    p = fmaf(p, z, ROSE_TANH_P1);
    p = fmaf(p, z, ROSE_TANH_P0);
    p = fmaf(p * z, a, a);
    const float large = 1.0f - 2.0f / (1.0f + rose_expf_ref(a + a));
    const float t = a < ROSE_TANH_SMALL ? p : large; /* NaN: large, which is NaN */
    return x < 0.0f ? -t : t;
}

/* A soft cap of scores and logits. */
static inline float rose_softcap_ref(float x, float cap)
{
    return cap * rose_tanh_ref(x / cap);
}

/* The tree of rule 3: lanes l and l + 8, then + 4, + 2, + 1. Overwrites lanes. */
static inline float rose_tree16_ref(float lane[16])
{
    for (int step = 8; step > 0; step /= 2) {
        for (int l = 0; l < step; l++)
            lane[l] = lane[l] + lane[l + step];
    }
    return lane[0];
}

#endif
