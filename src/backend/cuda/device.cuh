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

/* ---- LayerNorm of one row by one warp ----
 * Lane l owns the groups of 8 values l, l + 32, ... (G of them at most). Eight sums, one for each
 * place in a group, over the lane's groups ascending; then places 0+4, 1+5, 2+6, 3+7, then 0+2,
 * 1+3, then 0+1; then lanes 16, 8, 4, 2, 1 apart. */

ROSE_DEVICE float sum_lanes(float s[8])
{
    float a = (s[0] + s[4]) + (s[2] + s[6]);
    float b = (s[1] + s[5]) + (s[3] + s[7]);
    float v = a + b;
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    return v;
}

template <int G> ROSE_DEVICE void load_groups(float v[G][8], const float *x, uint32_t d, int lane)
{
#pragma unroll
    for (int i = 0; i < G; i++) {
        uint32_t k = (uint32_t)(i * 32 + lane) * 8;
        if (k >= d) continue;
        const float4 *p = reinterpret_cast<const float4 *>(x + k);
        float4 lo = __ldcg(p), hi = __ldcg(p + 1);
        v[i][0] = lo.x;
        v[i][1] = lo.y;
        v[i][2] = lo.z;
        v[i][3] = lo.w;
        v[i][4] = hi.x;
        v[i][5] = hi.y;
        v[i][6] = hi.z;
        v[i][7] = hi.w;
    }
}

/* Takes the mean off v and returns 1 / standard deviation. */
template <int G> ROSE_DEVICE float center_groups(float v[G][8], uint32_t d, float eps, int lane)
{
    float s[8] = {0}, q[8] = {0};
#pragma unroll
    for (int i = 0; i < G; i++) {
        if ((uint32_t)(i * 32 + lane) * 8 >= d) continue;
#pragma unroll
        for (int e = 0; e < 8; e++)
            s[e] += v[i][e];
    }
    float mean = __fdiv_rn(sum_lanes(s), (float)d);
#pragma unroll
    for (int i = 0; i < G; i++) {
        if ((uint32_t)(i * 32 + lane) * 8 >= d) continue;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[i][e] -= mean;
            q[e] = fmaf(v[i][e], v[i][e], q[e]);
        }
    }
    return __frcp_rn(__fsqrt_rn(__fdiv_rn(sum_lanes(q), (float)d) + eps));
}

ROSE_DEVICE void scale_group(float v[8], float inv, const float *w, const float *b)
{
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = fmaf(v[e] * inv, w[e], b[e]);
}

/* Overwrites v with the normed values. */
template <int G>
ROSE_DEVICE void norm_groups(float v[G][8], const float w[G][8], const float b[G][8], uint32_t d,
                             float eps, int lane)
{
    const float inv = center_groups<G>(v, d, eps, lane);
#pragma unroll
    for (int i = 0; i < G; i++)
        scale_group(v[i], inv, w[i], b[i]);
}

template <typename T> ROSE_DEVICE void store_group(T *at, const float v[8])
{
    uint4 u = make_uint4(pair_f32(v[0], v[1], at), pair_f32(v[2], v[3], at),
                         pair_f32(v[4], v[5], at), pair_f32(v[6], v[7], at));
    *reinterpret_cast<uint4 *>(at) = u;
}
ROSE_DEVICE void store_group(float *at, const float v[8])
{
    *reinterpret_cast<float4 *>(at) = make_float4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<float4 *>(at + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

#endif
