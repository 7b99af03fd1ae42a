/* backend/cuda/attend_rotary.cuh - one head of one row of the QKV GEMM: QK-norm, RoPE, rounding,
 * and the append to the page. One function, so that other kernels can also call it. Device code
 * only.
 *
 * QK-norm: a lane sums the squares of 2 neighbours, then of the 2 that lie 64 further, and so on;
 * then lanes 16, 8, 4, 2, 1 apart. y = (x * inv) * w, inv = 1 / sqrt(sum / head_dim + eps).
 * RoPE: y[i] = x[i] c - x[i + half] s, y[i + half] = x[i + half] c + x[i] s, half = rot_dim / 2,
 * each operation rounded. A value is rounded to T once, after both. K and V saturate, and their NaN
 * becomes finite; q does neither, so that a failure stays visible in the logits. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_ROTARY_CUH
#define ROSE_BACKEND_CUDA_ATTEND_ROTARY_CUH

#include "backend/cuda/attend.cuh"

enum { ROTARY_PAIRS = ROSE_ATTEND_MAX_HEAD_DIM / 64 /* of neighbours, for each lane */ };

template <typename T>
ROSE_DEVICE void load_head(float2 x[ROTARY_PAIRS], const rose_cuda_rotary &a, size_t from,
                           uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++) {
        const uint32_t d = i * 64 + lane * 2;
        x[i] = make_float2(0, 0);
        if (d >= a.kv.head_dim) continue;
        if (a.qkv_f32) {
            x[i] = __ldcg(
                reinterpret_cast<const float2 *>(static_cast<const float *>(a.qkv) + from + d));
        } else {
            const T *p = static_cast<const T *>(a.qkv) + from + d;
            x[i] = make_float2(to_f32(p[0]), to_f32(p[1]));
        }
    }
}

ROSE_DEVICE void norm_head(float2 x[ROTARY_PAIRS], const float *w, uint32_t head_dim, float eps,
                           uint32_t lane)
{
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++) {
        sum = fmaf(x[i].x, x[i].x, sum);
        sum = fmaf(x[i].y, x[i].y, sum);
    }
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(ROSE_ALL_LANES, sum, o);
    const float inv = __frcp_rn(__fsqrt_rn(__fdiv_rn(sum, (float)head_dim) + eps));
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d >= head_dim) continue;
        x[i].x = x[i].x * inv * w[d];
        x[i].y = x[i].y * inv * w[d + 1];
    }
}

/* Element d after rotation, d < rot_dim. */
ROSE_DEVICE float rotate(const float *x, const float *cos, const float *sin, uint32_t d,
                         uint32_t half)
{
    const uint32_t i = d < half ? d : d - half;
    const float own = x[d] * cos[i], other = x[d < half ? d + half : i] * sin[i];
    return d < half ? own - other : own + other;
}

/* stage: shared memory for head_dim floats, the warp's own. */
ROSE_DEVICE void rotate_head(float2 x[ROTARY_PAIRS], const rose_cuda_rotary &a, uint32_t row,
                             float *stage, uint32_t lane)
{
    const uint32_t half = a.rot_dim / 2, at = a.where[row];
    const float *cos = a.cos + (size_t)at * half, *sin = a.sin + (size_t)at * half;
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++)
        if (i * 64 + lane * 2 < a.kv.head_dim)
            *reinterpret_cast<float2 *>(stage + i * 64 + lane * 2) = x[i];
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d < a.rot_dim) x[i].x = rotate(stage, cos, sin, d, half);
        if (d + 1 < a.rot_dim) x[i].y = rotate(stage, cos, sin, d + 1, half);
    }
    __syncwarp();
}

ROSE_DEVICE float2 saturated(float2 v, float top)
{
    return make_float2(fminf(fmaxf(v.x, -top), top), fminf(fmaxf(v.y, -top), top));
}

/* head: of q, then of K, then of V. One warp; stage as rotate_head. */
template <typename T>
ROSE_DEVICE void rotate_append(const rose_cuda_rotary &a, uint32_t row, uint32_t head, float *stage,
                               uint32_t lane)
{
    const uint32_t n_kv = a.kv.n_heads, hd = a.kv.head_dim, pad = a.kv.hd_pad;
    const bool is_q = head < a.n_q, is_v = head >= a.n_q + n_kv;
    const float *norm = is_q ? a.q_norm : is_v ? NULL : a.k_norm;
    const uint32_t slot = is_q ? 0 : a.slot[row];
    float2 x[ROTARY_PAIRS];
    if (slot == ROSE_CUDA_NO_SLOT) return;
    load_head<T>(x, a, ((size_t)row * (a.n_q + 2 * n_kv) + head) * hd, lane);
    if (norm != NULL) norm_head(x, norm, hd, a.eps, lane);
    if (!is_v && a.cos != NULL) rotate_head(x, a, row, stage, lane);
    T *to = is_q ? static_cast<T *>(a.q) + ((size_t)row * a.n_q + head) * pad
                 : page_of<T>(a.kv, slot / ROSE_PAGE, (head - a.n_q) % n_kv) +
                       (is_v ? ROSE_PAGE * pad : 0);
#pragma unroll
    for (uint32_t i = 0; i < ROTARY_PAIRS; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d >= pad) continue;
        const float2 v = is_q ? x[i] : saturated(x[i], largest(static_cast<T *>(NULL)));
        store_pair(to + (is_q ? d : page_index(slot % ROSE_PAGE, d, pad)), v.x, v.y);
    }
}

#endif
