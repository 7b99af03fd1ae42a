/* backend/cuda/device.cuh - the operations of docs/NUMERICS.md (CUDA) that several kernels share.
 * The files are compiled with -fmad=false: a fused multiply-add is written as one. Device code
 * only.
 */
#ifndef ROSE_BACKEND_CUDA_DEVICE_CUH
#define ROSE_BACKEND_CUDA_DEVICE_CUH

#include "backend/cuda/instructions.cuh"
#include "model/model.h"

/* ---- functions ---- */

/* The id of a row: one of the step before where the highest bit is set (ROSE_TOKEN_OUTPUT). */
ROSE_DEVICE uint32_t token_of(uint32_t id, const uint32_t *sampled, uint32_t vocab)
{
    if (id >> 31 != 0) id = __ldcg(sampled + (id & 0x7fffffffu));
    return id < vocab ? id : 0; /* no id was sampled: nobody looks at what comes of this row */
}

#define ROSE_LOG2E 1.44269504088896341f

ROSE_DEVICE float exp_fast(float x)
{
    return exp2_fast(x * ROSE_LOG2E);
}

ROSE_DEVICE float activate(float x, uint32_t act)
{
    /* 0.5 x (1 + tanh(u)) = x / (1 + 2^(-2 u log2(e))) */
    if (act == ROSE_ACT_GELU_TANH)
        return over(x,
                    1.0f + exp2_fast(x * fmaf(-0.1029432395800235f, x * x, -2.302208198144325f)));
    if (act == ROSE_ACT_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    if (act == ROSE_ACT_SILU) return over(x, 1.0f + exp_fast(-x));
    return x < 0.0f ? 0.0f : x;
}

/* Larger float, larger number; NaN is 0; -0 equals +0. */
ROSE_DEVICE uint32_t order_of(float x)
{
    if (x != x) return 0;
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The way back; NaN of 0. */
ROSE_DEVICE float logit_of(uint32_t order)
{
    return __uint_as_float(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

/* The larger key is the larger logit, of equal ones the lower id. */
ROSE_DEVICE unsigned long long rank_key(float x, uint32_t id)
{
    return (unsigned long long)order_of(x) << 32 | (uint32_t)~id;
}

#endif
