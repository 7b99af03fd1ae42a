/* backend/cuda/attend_rotary.cuh - one head of one row of the QKV GEMM: QK-norm, RoPE, rounding,
 * and the append to the page. Other kernels also call these functions. Device code only.
 *
 * QK-norm: a lane sums the squares of 2 neighbours, then of the 2 that lie 64 further, and so on;
 * then lanes 16, 8, 4, 2, 1 apart. y = (x * inv) * w, inv = 1 / sqrt(sum / head_dim + eps).
 * RoPE: y[i] = x[i] c - x[i + half] s, y[i + half] = x[i + half] c + x[i] s, half = rot_dim / 2,
 * each operation rounded. A value is rounded to T once, after both. K and V saturate, and their NaN
 * becomes finite; q does neither, so that a failure stays visible in the logits.
 *
 * A lane has P pairs of neighbours: dims 64 i + 2 lane and the next one. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_ROTARY_CUH
#define ROSE_BACKEND_CUDA_ATTEND_ROTARY_CUH

#include "backend/cuda/attend.cuh"

enum { ROTARY_PAIRS = ROSE_ATTEND_MAX_HEAD_DIM / 64 /* of the largest head */ };

/* Cosines and sines of a position, for the dims of the lane. */
template <int P> struct rotary_angles {
    float2 c[P], s[P];
};

/* The tables do not change, so a kernel may call this before pdl_wait. */
template <int P>
ROSE_DEVICE void load_angles(rotary_angles<P> *to, const rose_cuda_rotary &a, uint32_t pos,
                             uint32_t lane)
{
    if (a.cos == NULL) return;
    const uint32_t half = a.rot_dim / 2;
    const size_t at = (size_t)pos * half;
    const uint32_t *cos = reinterpret_cast<const uint32_t *>(a.cos + at),
                   *sin = reinterpret_cast<const uint32_t *>(a.sin + at);
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d >= a.rot_dim) continue;
        const uint32_t x = d < half ? d : d - half, y = d + 1 < half ? d + 1 : d + 1 - half;
        to->c[i] =
            make_float2(__uint_as_float(load_now(cos + x)), __uint_as_float(load_now(cos + y)));
        to->s[i] =
            make_float2(__uint_as_float(load_now(sin + x)), __uint_as_float(load_now(sin + y)));
    }
}

template <typename T> ROSE_DEVICE float2 load_pair(const T *p)
{
    return unpair(__ldcg(reinterpret_cast<const uint32_t *>(p)), p);
}
ROSE_DEVICE float2 load_pair(const float *p)
{
    return __ldcg(reinterpret_cast<const float2 *>(p));
}

template <typename T, int P>
ROSE_DEVICE void load_head(float2 x[P], const rose_cuda_rotary &a, size_t from, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + lane * 2;
        x[i] = make_float2(0, 0);
        if (d < a.kv.head_dim)
            x[i] = a.qkv_f32 ? load_pair(static_cast<const float *>(a.qkv) + from + d)
                             : load_pair(static_cast<const T *>(a.qkv) + from + d);
    }
}

/* Weights of the QK-norm, for the dims of the lane. */
template <int P> struct rotary_norms {
    float2 q[P], k[P];
};

template <int P>
ROSE_DEVICE void load_norm(float2 w[P], const float *from, uint32_t head_dim, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + lane * 2;
        w[i] = from != NULL && d < head_dim ? make_float2(__ldg(from + d), __ldg(from + d + 1))
                                            : make_float2(0, 0);
    }
}

/* The weights do not change, so a kernel may call this before pdl_wait. */
template <int P>
ROSE_DEVICE void load_norms(rotary_norms<P> *to, const rose_cuda_rotary &a, uint32_t lane)
{
    load_norm<P>(to->q, a.q_norm, a.kv.head_dim, lane);
    load_norm<P>(to->k, a.k_norm, a.kv.head_dim, lane);
}

template <int P>
ROSE_DEVICE void norm_head(float2 x[P], const float2 w[P], uint32_t head_dim, float eps,
                           uint32_t lane)
{
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        sum = fmaf(x[i].x, x[i].x, sum);
        sum = fmaf(x[i].y, x[i].y, sum);
    }
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(ROSE_ALL_LANES, sum, o);
    const float inv = __frcp_rn(__fsqrt_rn(__fdiv_rn(sum, (float)head_dim) + eps));
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        if (i * 64 + lane * 2 >= head_dim) continue;
        x[i].x = x[i].x * inv * w[i].x;
        x[i].y = x[i].y * inv * w[i].y;
    }
}

/* Element d after rotation, d < rot_dim. */
ROSE_DEVICE float rotate(const float *x, float cos, float sin, uint32_t d, uint32_t half)
{
    const float own = x[d] * cos, other = x[d < half ? d + half : d - half] * sin;
    return d < half ? own - other : own + other;
}

/* stage: shared memory for head_dim floats, the warp's own. */
template <int P>
ROSE_DEVICE void rotate_head(float2 x[P], const rose_cuda_rotary &a, const rotary_angles<P> &by,
                             float *stage, uint32_t lane)
{
    const uint32_t half = a.rot_dim / 2;
#pragma unroll
    for (uint32_t i = 0; i < P; i++)
        if (i * 64 + lane * 2 < a.kv.head_dim)
            *reinterpret_cast<float2 *>(stage + i * 64 + lane * 2) = x[i];
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d >= a.rot_dim) continue; /* rot_dim is even */
        x[i].x = rotate(stage, by.c[i].x, by.s[i].x, d, half);
        x[i].y = rotate(stage, by.c[i].y, by.s[i].y, d + 1, half);
    }
    __syncwarp();
}

/* The values of a head, from the rows of the QKV GEMM. head: of q, then of K, then of V. */
template <typename T, int P>
ROSE_DEVICE void take_head(float2 x[P], const rose_cuda_rotary &a, uint32_t row, uint32_t head,
                           uint32_t lane)
{
    const size_t heads = a.n_q + 2 * a.kv.n_heads;
    load_head<T, P>(x, a, (row * heads + head) * a.kv.head_dim, lane);
}

/* x, from take_head, after QK-norm and RoPE; zeros from head_dim on. One warp; stage as
 * rotate_head. K and V are saturated. */
template <typename T, int P>
ROSE_DEVICE void make_head(float2 x[P], const rose_cuda_rotary &a, const rotary_angles<P> &by,
                           const rotary_norms<P> &norms, uint32_t head, float *stage, uint32_t lane)
{
    const uint32_t n_kv = a.kv.n_heads, hd = a.kv.head_dim;
    const bool is_q = head < a.n_q, is_v = head >= a.n_q + n_kv;
    if ((is_q ? a.q_norm : is_v ? NULL : a.k_norm) != NULL) {
        float2 w[P];
#pragma unroll
        for (uint32_t i = 0; i < P; i++)
            w[i] = is_q ? norms.q[i] : norms.k[i];
        norm_head<P>(x, w, hd, a.eps, lane);
    }
    if (!is_v && a.cos != NULL) rotate_head<P>(x, a, by, stage, lane);
    if (is_q) return;
    const float top = largest(static_cast<T *>(NULL));
#pragma unroll
    for (uint32_t i = 0; i < P; i++)
        x[i] = make_float2(fminf(fmaxf(x[i].x, -top), top), fminf(fmaxf(x[i].y, -top), top));
}

/* Where K or V of a new position belongs. head: as make_head. */
template <typename T>
ROSE_DEVICE T *append_to(const rose_cuda_kv &kv, uint32_t slot, uint32_t head, bool is_v)
{
    return page_of<T>(kv, slot / ROSE_PAGE, head) + (is_v ? ROSE_PAGE * kv.hd_pad : 0);
}

/* One head to q or to its page. */
template <typename T>
ROSE_DEVICE void rotate_append(const rose_cuda_rotary &a, uint32_t row, uint32_t head, float *stage,
                               uint32_t lane)
{
    constexpr int P = ROTARY_PAIRS;
    const uint32_t n_kv = a.kv.n_heads, pad = a.kv.hd_pad;
    const bool is_q = head < a.n_q;
    const uint32_t slot = is_q ? 0 : a.slot[row];
    rotary_angles<P> by;
    rotary_norms<P> norms;
    float2 x[P];
    if (slot == ROSE_CUDA_NO_SLOT) return;
    if (head < a.n_q + n_kv && a.cos != NULL) load_angles<P>(&by, a, load_now(a.where + row), lane);
    load_norms<P>(&norms, a, lane);
    take_head<T, P>(x, a, row, head, lane);
    make_head<T, P>(x, a, by, norms, head, stage, lane);
    T *to = is_q ? static_cast<T *>(a.q) + ((size_t)row * a.n_q + head) * pad
                 : append_to<T>(a.kv, slot, (head - a.n_q) % n_kv, head >= a.n_q + n_kv);
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d < pad)
            store_pair(to + (is_q ? d : page_index(slot % ROSE_PAGE, d, pad)), x[i].x, x[i].y);
    }
}

#endif
