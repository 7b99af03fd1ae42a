/* backend/cpu/math_simd.h - choices of lanes, and exp and the activation functions of numerics.h
 * over 16 lanes. They do the same operations in the same order, so they give the same bits. Include
 * after vec_<isa>.h. */
#ifndef ROSE_BACKEND_CPU_MATH_SIMD_H
#define ROSE_BACKEND_CPU_MATH_SIMD_H

#include "backend/cpu/numerics.h"

/* Lanes below n from a, the others from b. */
ROSE_INLINE vec16 v_first_of(vec16 a, vec16 b, uint32_t n)
{
    return v_blend(v_first(n), a, b);
}

/* a < b ? x : y; y where either is NaN. */
ROSE_INLINE vec16 v_if_less(vec16 a, vec16 b, vec16 x, vec16 y)
{
    return v_blend(v_less(a, b), x, y);
}

/* Returns p 2^n for n in -126 .. 128, where t = n + ROSE_EXP_MAGIC. Two exact factors and one
 * scaling instruction give the same overflow, and the same underflow to zero. */
ROSE_INLINE vec16 v_times_power(vec16 p, vec16 t)
{
    const vec16 magic = v_set1(ROSE_EXP_MAGIC);
#ifdef V_HAS_SCALE
    return v_scale(p, v_sub(t, magic));
#else
    const ivec16 bias = v_int_set1(127), n = v_int_sub(v_bits(t), v_bits(magic));
    const ivec16 half = v_int_half(n);
    p = v_mul(p, v_from_bits(v_int_shl23(v_int_add(half, bias))));
    return v_mul(p, v_from_bits(v_int_shl23(v_int_add(v_int_sub(n, half), bias))));
#endif
}

/* Returns exp(x) for x in ROSE_EXP_LOW .. ROSE_EXP_HIGH, and NaN for NaN. */
ROSE_INLINE vec16 v_exp_in_range(vec16 x)
{
    vec16 t = v_fma(x, v_set1(ROSE_EXP_LOG2E), v_set1(ROSE_EXP_MAGIC));
    vec16 nf = v_sub(t, v_set1(ROSE_EXP_MAGIC));
    vec16 r = v_fma(nf, v_set1(-ROSE_EXP_LN2_HI), x);
    r = v_fma(nf, v_set1(-ROSE_EXP_LN2_LO), r);
    vec16 p = v_fma(v_set1(ROSE_EXP_P5), r, v_set1(ROSE_EXP_P4));
    p = v_fma(p, r, v_set1(ROSE_EXP_P3));
    p = v_fma(p, r, v_set1(ROSE_EXP_P2));
    p = v_fma(p, r, v_set1(ROSE_EXP_P1));
    p = v_fma(p, r, v_set1(ROSE_EXP_P0));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    return v_times_power(p, t);
}

ROSE_INLINE vec16 v_exp(vec16 x)
{
    vec16 e = v_exp_in_range(v_min(v_set1(ROSE_EXP_HIGH), x));
    return v_if_less(x, v_set1(ROSE_EXP_LOW), v_zero(), e);
}

/* Returns 1 + exp(x). Below ROSE_EXP_LOW, exp(x) is too small to change the 1, so x is clamped
 * there. */
ROSE_INLINE vec16 v_one_plus_exp(vec16 x)
{
    vec16 c = v_max(v_set1(ROSE_EXP_LOW), v_min(v_set1(ROSE_EXP_HIGH), x));
    return v_add(v_set1(1.0f), v_exp_in_range(c));
}

ROSE_INLINE vec16 v_gelu_tanh(vec16 x)
{
    vec16 u = v_fma(v_set1(ROSE_GELU_C1), v_mul(x, x), v_set1(ROSE_GELU_C0));
    return v_div(x, v_one_plus_exp(v_mul(x, u)));
}

ROSE_INLINE vec16 v_gelu_erf(vec16 x)
{
    vec16 one = v_set1(1.0f), a = v_abs(x);
    vec16 t = v_div(one, v_fma(v_set1(ROSE_ERF_T), a, one));
    vec16 q = v_fma(v_set1(ROSE_ERF_Q4), t, v_set1(ROSE_ERF_Q3));
    q = v_fma(q, t, v_set1(ROSE_ERF_Q2));
    q = v_fma(q, t, v_set1(ROSE_ERF_Q1));
    q = v_fma(q, t, v_set1(ROSE_ERF_Q0));
    q = v_mul(q, t);
    vec16 tail = v_mul(q, v_exp(v_mul(v_mul(a, a), v_set1(-0.5f))));
    return v_mul(x, v_if_less(v_zero(), x, v_sub(one, tail), tail));
}

ROSE_INLINE vec16 v_silu(vec16 x)
{
    return v_div(x, v_one_plus_exp(v_neg(x)));
}

ROSE_INLINE vec16 v_relu(vec16 x)
{
    return v_if_less(x, v_zero(), v_zero(), x);
}

ROSE_INLINE vec16 v_tanh(vec16 x)
{
    vec16 one = v_set1(1.0f), a = v_abs(x), z = v_mul(a, a);
    vec16 p = v_fma(v_set1(ROSE_TANH_P4), z, v_set1(ROSE_TANH_P3));
    p = v_fma(p, z, v_set1(ROSE_TANH_P2));
    p = v_fma(p, z, v_set1(ROSE_TANH_P1));
    p = v_fma(p, z, v_set1(ROSE_TANH_P0));
    p = v_fma(v_mul(p, z), a, a);
    vec16 large = v_sub(one, v_div(v_set1(2.0f), v_add(one, v_exp(v_add(a, a)))));
    vec16 t = v_if_less(a, v_set1(ROSE_TANH_SMALL), p, large);
    return v_if_less(x, v_zero(), v_neg(t), t);
}

ROSE_INLINE vec16 v_softcap(vec16 x, vec16 cap)
{
    return v_mul(cap, v_tanh(v_div(x, cap)));
}

#endif
