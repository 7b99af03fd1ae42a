/* backend/cuda/norm.cuh - LayerNorm and RMSNorm of a row by one to eight warps. This file defines
 * the order of the sums for every kernel that norms.
 *
 * Lane l owns the groups of 8 values l, l + 32, and so on. Eight sums, one for each place in a
 * group, run over the lane's groups ascending. Then places 0+4, 1+5, 2+6, 3+7 are added, then 0+2,
 * 1+3, then 0+1; then lanes 16, 8, 4, 2, 1 apart. LayerNorm sums the values, then the squares of
 * the values minus their mean. RMSNorm sums the squares alone. Device code only. */
#ifndef ROSE_BACKEND_CUDA_NORM_CUH
#define ROSE_BACKEND_CUDA_NORM_CUH

#include "backend/cuda/device.cuh"

enum { NORM_GROUP = 256 /* values of a group of each lane */ };

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

/* ---- a row by a team of 256 / P threads, P = 1, 2, 4 or 8 ----
 *
 * Thread t of the team has the places P t % 8 to P t % 8 + P - 1 of lane P t / 8, so its sums have
 * the order above for every P. Its i-th run of P values begins at 256 i + P t. A team of more than
 * one warp meets in shared memory: all threads of the block call these functions together. */

/* P neighbours. x is aligned to them. FIXED: parameters of a norm, which no kernel writes. */
template <int P, bool FIXED = false> ROSE_DEVICE void load_run(float v[P], const float *x)
{
    if constexpr (P == 8) {
        load_run<4, FIXED>(v, x);
        load_run<4, FIXED>(v + 4, x + 4);
    } else if constexpr (P == 4) {
        const float4 *p = reinterpret_cast<const float4 *>(x), u = FIXED ? __ldg(p) : __ldcg(p);
        v[0] = u.x;
        v[1] = u.y;
        v[2] = u.z;
        v[3] = u.w;
    } else if constexpr (P == 2) {
        const float2 *p = reinterpret_cast<const float2 *>(x), u = FIXED ? __ldg(p) : __ldcg(p);
        v[0] = u.x;
        v[1] = u.y;
    } else {
        v[0] = FIXED ? __ldg(x) : __ldcg(x);
    }
}

/* Round P values to T and store them. */
template <int P, typename T> ROSE_DEVICE void store_run(T *at, const float v[P])
{
    if constexpr (P == 1) {
        from_f32(v[0], at);
    } else {
#pragma unroll
        for (int e = 0; e < P; e += 2)
            store_pair(at + e, v[e], v[e + 1]);
    }
}

ROSE_DEVICE void meet_block(void)
{
    __syncthreads();
}

/* The sums of a team's threads, added. red: [32] in shared memory, the team's own; not used for
 * P = 8. MEET: a barrier of all threads that call this. */
template <int P, void (*MEET)(void)> ROSE_DEVICE float sum_team(float s[P], float *red, uint32_t t)
{
    if constexpr (P == 8) {
        return sum_lanes(s);
    } else {
#pragma unroll
        for (int o = 4 / P; o > 0; o /= 2) /* places 0+4 and so on, which other threads have */
#pragma unroll
            for (int e = 0; e < P; e++)
                s[e] += __shfl_xor_sync(ROSE_ALL_LANES, s[e], o);
        if constexpr (P == 4) s[0] = (s[0] + s[2]) + (s[1] + s[3]);
        if constexpr (P == 2) s[0] = s[0] + s[1];
        if (P * t % 8 == 0) red[P * t / 8] = s[0];
        MEET();
        float v = red[threadIdx.x % 32];
        for (int o = 16; o > 0; o /= 2)
            v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
        return v;
    }
}

/* Mean and 1 / standard deviation of a row of at most 256 G values. v: the thread's runs. red:
 * [2][32] of the team. */
template <int P, int G, void (*MEET)(void) = meet_block>
ROSE_DEVICE float2 team_moments(const float v[G][P], const rose_cuda_norm_by &by, uint32_t d,
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
        mean = __fdiv_rn(sum_team<P, MEET>(s, red, t), (float)d);
    }
#pragma unroll
    for (int i = 0; i < G; i++) {
        if (i * NORM_GROUP >= d) break;
#pragma unroll
        for (int e = 0; e < P; e++)
            if (i * NORM_GROUP + t * P < d) q[e] = fmaf(v[i][e] - mean, v[i][e] - mean, q[e]);
    }
    return make_float2(mean, norm_inverse(sum_team<P, MEET>(q, red + 32, t), d, by.eps));
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
 * thread's runs, ascending. A team without a row has x NULL. */
template <int P, int G, int B, typename F>
ROSE_DEVICE void norm_row(const float *x, const rose_cuda_norm_by &by, norm_batch<P, B> batch,
                          uint32_t d, uint32_t t, float *red, F put)
{
    float v[G][P];
    const uint32_t has = x != NULL ? d : 0;
    load_row<P, G>(v, x, has, t);
    const float2 moments = team_moments<P, G>(v, by, d, t, red);
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t k = i * NORM_GROUP + t * P;
        float y[P];
        if (i * NORM_GROUP >= has) break;
        if (i > 0 && i % B == 0) load_batch(&batch, by, i, d, t);
        norm_values<P>(y, v[i], batch.w[i % B], batch.b[i % B], by, moments);
        if (k < has) put(k, y);
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
