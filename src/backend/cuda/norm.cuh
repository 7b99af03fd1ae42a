/* backend/cuda/norm.cuh - LayerNorm and RMSNorm of a row by one warp or by eight. This file defines
 * the order of the sums for every kernel that norms.
 *
 * A row is summed as 32 lanes, whether one warp or eight run; with eight warps, eight threads act
 * as one lane. Values are in groups of 8, and lane l owns groups l, l + 32, and so on. A lane keeps
 * eight sums: sum j adds value j of its groups, ascending. Then the eight sums are added: 0+4, 1+5,
 * 2+6, 3+7, then 0+2, 1+3, then 0+1. Then lanes 16, 8, 4, 2, 1 apart are added. LayerNorm sums the
 * values, then the squares of the values minus their mean. RMSNorm sums the squares alone. Device
 * code only. */
#ifndef ROSE_BACKEND_CUDA_NORM_CUH
#define ROSE_BACKEND_CUDA_NORM_CUH

#include "backend/cuda/device.cuh"

enum { NORM_GROUP = 256 /* values in one group of every lane */ };

/* Set the shared-memory limits of the kernels of norm.cu on the current device. */
extern "C" cudaError_t rose_cuda_norm_prepare(void);

ROSE_DEVICE float sum_lanes(const float s[8])
{
    float a = (s[0] + s[4]) + (s[2] + s[6]);
    float b = (s[1] + s[5]) + (s[3] + s[7]);
    float v = a + b;
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    return v;
}

ROSE_DEVICE float norm_inverse(float squares, uint32_t d, float eps)
{
    return __frcp_rn(__fsqrt_rn(__fdiv_rn(squares, (float)d) + eps));
}

/* A value after its mean was subtracted. b is ignored where has_b is false. */
ROSE_DEVICE float norm_scale(float v, float inv, float w, float b, bool has_b)
{
    return has_b ? fmaf(v * inv, w, b) : v * inv * w;
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

/* ---- a row by 256 / P threads: P is 8 for one warp, 1 for eight warps ----
 *
 * Thread t has the places P t % 8 to P t % 8 + P - 1 of lane P t / 8, so its sums have the order
 * above for both. Its i-th run of P values begins at 256 i + P t. Eight warps meet in shared
 * memory: all threads of the block call these functions together. */

/* P neighbours. x is aligned to 32 bytes if P is 8. FIXED: parameters of a norm, which no kernel
 * writes. */
template <int P, bool FIXED = false> ROSE_DEVICE void load_run(float v[P], const float *x)
{
    if constexpr (P == 1) {
        v[0] = FIXED ? __ldg(x) : __ldcg(x);
    } else {
#pragma unroll
        for (int e = 0; e < P; e += 4) {
            const float4 *p = reinterpret_cast<const float4 *>(x + e);
            const float4 u = FIXED ? __ldg(p) : __ldcg(p);
            v[e] = u.x;
            v[e + 1] = u.y;
            v[e + 2] = u.z;
            v[e + 3] = u.w;
        }
    }
}

ROSE_DEVICE void meet_block(void)
{
    __syncthreads();
}

/* The sums of the row's threads, added. red: [32] in shared memory, not used for P = 8. MEET: a
 * barrier of the 256 threads. */
template <int P, void (*MEET)(void)> ROSE_DEVICE float sum_row(float s[P], float *red, uint32_t t)
{
    if constexpr (P == 8) {
        return sum_lanes(s);
    } else {
        for (int o = 4; o > 0; o /= 2) /* the other places of the lane */
            s[0] += __shfl_xor_sync(ROSE_ALL_LANES, s[0], o);
        if (t % 8 == 0) red[t / 8] = s[0];
        MEET();
        float v = red[threadIdx.x % 32];
        for (int o = 16; o > 0; o /= 2)
            v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
        return v;
    }
}

/* Mean and 1 / standard deviation of a row of at most 256 G values. v: the thread's runs. red:
 * [2][32] in shared memory. */
template <int P, int G, void (*MEET)(void) = meet_block>
ROSE_DEVICE float2 row_moments(const float v[G][P], const rose_cuda_norm_by &by, uint32_t d,
                               uint32_t t, float *red)
{
    float mean = 0, s[P] = {}, q[P] = {};
    if (by.kind == ROSE_CUDA_NORM_NONE) return make_float2(0, 1);
    if (by.kind == ROSE_CUDA_NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < G; i++) {
            if (i * NORM_GROUP >= d) break;
#pragma unroll
            for (int e = 0; e < P; e++)
                if (i * NORM_GROUP + t * P < d) s[e] += v[i][e];
        }
        mean = __fdiv_rn(sum_row<P, MEET>(s, red, t), (float)d);
    }
#pragma unroll
    for (int i = 0; i < G; i++) {
        if (i * NORM_GROUP >= d) break;
#pragma unroll
        for (int e = 0; e < P; e++)
            if (i * NORM_GROUP + t * P < d) q[e] = fmaf(v[i][e] - mean, v[i][e] - mean, q[e]);
    }
    return make_float2(mean, norm_inverse(sum_row<P, MEET>(q, red + 32, t), d, by.eps));
}

/* The normed values of a run with the parameters w and b. */
template <int P>
ROSE_DEVICE void norm_values(float y[P], const float v[P], const float w[P], const float b[P],
                             const rose_cuda_norm_by &by, float2 moments)
{
#pragma unroll
    for (int e = 0; e < P; e++)
        y[e] = by.kind == ROSE_CUDA_NORM_NONE
                   ? v[e]
                   : norm_scale(v[e] - moments.x, moments.y, w[e], b[e], by.b != NULL);
}

template <int P, int G>
ROSE_DEVICE void load_row(float v[G][P], const float *x, uint32_t d, uint32_t t)
{
#pragma unroll
    for (int i = 0; i < G; i++) {
        if (i * NORM_GROUP >= d) break;
        if (i * NORM_GROUP + t * P < d) load_run<P>(v[i], x + i * NORM_GROUP + t * P);
    }
}

/* Parameters of the norm for B runs of a thread. */
template <int P, int B> struct norm_batch {
    float w[B][P], b[B][P];
};

/* Runs `first` to first + B - 1. A kernel may load the first batch before pdl_wait. */
template <int P, int B>
ROSE_DEVICE void load_batch(norm_batch<P, B> *to, const rose_cuda_norm_by &by, uint32_t first,
                            uint32_t d, uint32_t t)
{
    if (by.kind == ROSE_CUDA_NORM_NONE) return;
#pragma unroll
    for (uint32_t i = 0; i < B; i++) {
        const uint32_t k = (first + i) * NORM_GROUP + t * P;
        if ((first + i) * NORM_GROUP >= d) break;
        if (k >= d) continue;
        load_run<P, true>(to->w[i], by.w + k);
        if (by.b != NULL) load_run<P, true>(to->b[i], by.b + k);
    }
}

/* Norm the row x of at most 256 G values. batch: the first one. put(k, y) gets each of the
 * thread's runs, ascending. */
template <int P, int G, int B, typename F>
ROSE_DEVICE void norm_row(const float *x, const rose_cuda_norm_by &by, norm_batch<P, B> batch,
                          uint32_t d, uint32_t t, float *red, F put)
{
    float v[G][P];
    load_row<P, G>(v, x, d, t);
    const float2 moments = row_moments<P, G>(v, by, d, t, red);
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t k = i * NORM_GROUP + t * P;
        float y[P];
        if (i * NORM_GROUP >= d) break;
        if (i > 0 && i % B == 0) load_batch(&batch, by, i, d, t);
        norm_values<P>(y, v[i], batch.w[i % B], batch.b[i % B], by, moments);
        if (k < d) put(k, y);
    }
}

/* Ask for the parameters before pdl_wait: they are then in the L1 when a warp needs them. By all
 * threads of the block. */
ROSE_DEVICE void touch_parameters(const rose_cuda_norm_by &by, uint32_t d)
{
    if (by.kind == ROSE_CUDA_NORM_NONE) return;
    for (uint32_t k = threadIdx.x * 8; k < d; k += blockDim.x * 8) {
        touch(by.w + k);
        if (by.b != NULL) touch(by.b + k);
    }
}

#endif
