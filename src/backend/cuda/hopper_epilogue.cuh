/* backend/cuda/hopper_epilogue.cuh - what the epilogues of linear_team.cuh and linear_wide.cuh
 * share: the same as in finish_pair of device.cuh, to four outputs n .. n + 3 of a row at a time.
 */
#ifndef ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH
#define ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH

#include "backend/cuda/hopper.cuh"

#if ROSE_HOPPER

/* Loads that stay where they are written: else the compiler moves each to its use, behind the
 * barrier, one wait after the other. */
ROSE_DEVICE float4 load_now(const float4 *p)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
ROSE_DEVICE uint32_t load_now(const uint32_t *p)
{
    uint32_t r;
    asm volatile("ld.global.cg.u32 %0,[%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}

/* Of outputs n .. n + N - 1; zeros beyond the last. */
template <int N> ROSE_DEVICE void load_bias_now(float v[N], const rose_cuda_linear &l, uint32_t n)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = l.bias != NULL && n + i < l.n
                   ? __uint_as_float(load_now(reinterpret_cast<const uint32_t *>(l.bias) + n + i))
                   : 0.0f;
}

ROSE_DEVICE float4 load_bias4(const rose_cuda_linear &l, uint32_t n)
{
    float v[4];
    load_bias_now<4>(v, l, n);
    return make_float4(v[0], v[1], v[2], v[3]);
}

ROSE_DEVICE float4 add4(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <typename T> ROSE_DEVICE uint2 pack4(const float4 &v, const T *tag)
{
    return make_uint2(pair_f32(v.x, v.y, tag), pair_f32(v.z, v.w, tag));
}

ROSE_DEVICE float4 clamp4(const float4 &v, float top)
{
    return make_float4(fminf(fmaxf(v.x, -top), top), fminf(fmaxf(v.y, -top), top),
                       fminf(fmaxf(v.z, -top), top), fminf(fmaxf(v.w, -top), top));
}

ROSE_DEVICE float *residual_at(const rose_cuda_io &io, uint32_t row, uint32_t n)
{
    return io.x + (size_t)row * io.ld_x + n;
}

/* `act` a constant where it can be: the code of the others is then not fetched. */
ROSE_DEVICE float4 activate4(const float4 &v, uint32_t act)
{
    return make_float4(activate(v.x, act), activate(v.y, act), activate(v.z, act),
                       activate(v.w, act));
}

template <typename T>
ROSE_DEVICE void store_act4(const rose_cuda_io &io, uint32_t row, uint32_t n, const float4 &y)
{
    T *out = static_cast<T *>(io.out) + h_index(row, n, io.out_k_pad);
    *reinterpret_cast<uint2 *>(out) = pack4(y, out);
}

/* Where outputs n and those behind it in the same head go: `to` for q is their place in row 0, for
 * K and V in token 0 of page 0. */
typedef struct qkv_place {
    uint32_t part; /* 0 q, 1 K, 2 V */
    size_t to;     /* in values */
} qkv_place;

ROSE_DEVICE qkv_place place_qkv(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n)
{
    const uint32_t d = l.k, part = n >= 2 * d ? 2 : n >= d, c = n - part * d;
    const uint32_t head = c / io.kv.head_dim, dim = c % io.kv.head_dim;
    const size_t block = (size_t)head * (2 * ROSE_PAGE) * io.kv.hd_pad;
    qkv_place p;
    p.part = part;
    p.to = part == 0   ? c
           : part == 1 ? block + k_index(0, dim)
                       : block + ROSE_PAGE * io.kv.hd_pad + v_index(0, dim);
    return p;
}

template <typename T>
ROSE_DEVICE T *kv_at(const rose_cuda_io &io, const qkv_place &p, uint32_t slot)
{
    const uint32_t token = slot % ROSE_PAGE;
    return static_cast<T *>(io.kv.base) + slot / ROSE_PAGE * io.kv.page_elems + p.to +
           (p.part == 1 ? k_index(token, 0) : v_index(token, 0));
}

/* Four outputs from a multiple of 4 on, so of one head: its size is a multiple of 4. */
template <typename T>
ROSE_DEVICE void finish_qkv4(const rose_cuda_linear &l, const rose_cuda_io &io, const qkv_place &p,
                             uint32_t row, const float4 &v, uint32_t slot)
{
    if (p.part == 0) {
        T *q = static_cast<T *>(io.q) + (size_t)row * l.k + p.to;
        *reinterpret_cast<uint2 *>(q) = pack4(v, q);
        return;
    }
    if (slot == ROSE_CUDA_NO_SLOT) return;
    T *to = kv_at<T>(io, p, slot);
    const uint2 u = pack4(clamp4(v, largest(to)), to);
    if (p.part == 1) { /* two dims a lane of 8 values */
        *reinterpret_cast<uint32_t *>(to) = u.x;
        *reinterpret_cast<uint32_t *>(to + 8) = u.y;
        return;
    }
    uint16_t *at = reinterpret_cast<uint16_t *>(to); /* dims lie 4 lanes apart */
    at[0] = (uint16_t)u.x;
    at[32] = (uint16_t)(u.x >> 16);
    at[64] = (uint16_t)u.y;
    at[96] = (uint16_t)(u.y >> 16);
}

ROSE_DEVICE void store_logits4(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row,
                               uint32_t n, const float4 &v)
{
    float *at = io.logits + (size_t)row * io.ld_logits + n;
    if (io.ld_logits % 4 == 0 && n + 3 < l.n) {
        *reinterpret_cast<float4 *>(at) = v;
        return;
    }
    at[0] = v.x;
    if (n + 1 < l.n) at[1] = v.y;
    if (n + 2 < l.n) at[2] = v.z;
    if (n + 3 < l.n) at[3] = v.w;
}

#endif
#endif
