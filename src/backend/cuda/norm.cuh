/* backend/cuda/norm.cuh - LayerNorm and RMSNorm of one row by one warp. This file defines the order
 * of the sums for every kernel that norms.
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

ROSE_DEVICE void split_float8(float v[8], float4 lo, float4 hi)
{
    v[0] = lo.x;
    v[1] = lo.y;
    v[2] = lo.z;
    v[3] = lo.w;
    v[4] = hi.x;
    v[5] = hi.y;
    v[6] = hi.z;
    v[7] = hi.w;
}

ROSE_DEVICE void load_float8(float v[8], const float *x)
{
    const float4 *p = reinterpret_cast<const float4 *>(x);
    const float4 lo = __ldcg(p), hi = __ldcg(p + 1);
    split_float8(v, lo, hi);
}

/* Parameters of a norm, which no kernel writes. */
ROSE_DEVICE void load_parameters(float v[8], const float *w)
{
    const float4 *p = reinterpret_cast<const float4 *>(w);
    const float4 lo = __ldg(p), hi = __ldg(p + 1);
    split_float8(v, lo, hi);
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

/* The lane's groups of a part of a row that begins at `base`: G of them at most. */
template <int G>
ROSE_DEVICE void load_groups(float v[G][8], const float *x, uint32_t base, uint32_t d,
                             uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t k = base + (i * 32 + lane) * 8;
        if (k < d) load_float8(v[i], x + k);
    }
}

template <int G>
ROSE_DEVICE void add_groups(float s[8], const float v[G][8], uint32_t base, uint32_t d,
                            uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < G; i++) {
        if (base + (i * 32 + lane) * 8 >= d) continue;
#pragma unroll
        for (int e = 0; e < 8; e++)
            s[e] += v[i][e];
    }
}

template <int G>
ROSE_DEVICE void add_squares(float q[8], const float v[G][8], float mean, uint32_t base, uint32_t d,
                             uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < G; i++) {
        if (base + (i * 32 + lane) * 8 >= d) continue;
#pragma unroll
        for (int e = 0; e < 8; e++)
            q[e] = fmaf(v[i][e] - mean, v[i][e] - mean, q[e]);
    }
}

/* Mean and 1 / standard deviation. v holds the first part of the row. A row of one part (d at most
 * G * NORM_GROUP) stays in v; the parts of a wider row are read again. */
template <int G>
ROSE_DEVICE float2 norm_moments(float v[G][8], const float *x, const rose_cuda_norm_by &by,
                                uint32_t d, uint32_t lane)
{
    constexpr uint32_t PART = G * NORM_GROUP;
    float mean = 0, s[8] = {0}, q[8] = {0};
    if (by.kind == ROSE_CUDA_NORM_NONE) return make_float2(0, 1);
    if (by.kind == ROSE_CUDA_NORM_LAYER) {
        add_groups<G>(s, v, 0, d, lane);
#pragma unroll 1
        for (uint32_t base = PART; base < d; base += PART) {
            load_groups<G>(v, x, base, d, lane);
            add_groups<G>(s, v, base, d, lane);
        }
        mean = __fdiv_rn(sum_lanes(s), (float)d);
        if (d > PART) load_groups<G>(v, x, 0, d, lane);
    }
    add_squares<G>(q, v, mean, 0, d, lane);
#pragma unroll 1
    for (uint32_t base = PART; base < d; base += PART) {
        load_groups<G>(v, x, base, d, lane);
        add_squares<G>(q, v, mean, base, d, lane);
    }
    if (d > PART) load_groups<G>(v, x, 0, d, lane);
    return make_float2(mean, norm_inverse(sum_lanes(q), d, by.eps));
}

/* The normed values of a group with the parameters w and b. */
ROSE_DEVICE void norm_values(float y[8], const float v[8], const float w[8], const float b[8],
                             const rose_cuda_norm_by &by, float2 moments)
{
#pragma unroll
    for (int e = 0; e < 8; e++)
        y[e] = by.kind == ROSE_CUDA_NORM_NONE
                   ? v[e]
                   : norm_scale(v[e] - moments.x, moments.y, w[e], b[e], by.b != NULL);
}

/* The normed values of the group that begins at k. */
ROSE_DEVICE void norm_group(float y[8], const float v[8], const rose_cuda_norm_by &by,
                            float2 moments, uint32_t k)
{
    float w[8], b[8] = {0};
    if (by.kind != ROSE_CUDA_NORM_NONE) load_parameters(w, by.w + k);
    if (by.kind != ROSE_CUDA_NORM_NONE && by.b != NULL) load_parameters(b, by.b + k);
    norm_values(y, v, w, b, by, moments);
}

/* Norm the row x. put(k, y) gets each of the lane's groups of 8 values, ascending. */
template <int G, typename F>
ROSE_DEVICE void norm_row(const float *x, const rose_cuda_norm_by &by, uint32_t d, uint32_t lane,
                          F put)
{
    float v[G][8];
    load_groups<G>(v, x, 0, d, lane);
    const float2 moments = norm_moments<G>(v, x, by, d, lane);
#pragma unroll 1
    for (uint32_t base = 0; base < d; base += G * NORM_GROUP) {
        if (base > 0) load_groups<G>(v, x, base, d, lane);
#pragma unroll
        for (int i = 0; i < G; i++) {
            const uint32_t k = base + (i * 32 + lane) * 8;
            float y[8];
            if (k >= d) continue;
            norm_group(y, v[i], by, moments, k);
            put(k, y);
        }
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
