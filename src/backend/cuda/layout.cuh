/* backend/cuda/layout.cuh - where an element lies: packed weights, blocked activations, KV pages;
 * and the conversions between fp32 and the storage type T. Device code only. */
#ifndef ROSE_BACKEND_CUDA_LAYOUT_CUH
#define ROSE_BACKEND_CUDA_LAYOUT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels.h"
#include "backend/cuda/wide_walk.h"

#define ROSE_DEVICE static __device__ __forceinline__

enum { ROSE_PAGE = 16 /* tokens, as ROSE_KV_PAGE_TOKENS */ };

/* ---- conversion ---- */

ROSE_DEVICE void from_f32(float v, __half *out)
{
    *out = __float2half_rn(v);
}
ROSE_DEVICE void from_f32(float v, __nv_bfloat16 *out)
{
    *out = __float2bfloat16_rn(v);
}
ROSE_DEVICE void from_f32(float v, float *out)
{
    *out = v;
}
ROSE_DEVICE float to_f32(__half v)
{
    return __half2float(v);
}
ROSE_DEVICE float to_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
ROSE_DEVICE float to_f32(float v)
{
    return v;
}

/* The largest finite value: K and V saturate, so that a page never holds an infinity or a NaN that
 * a zero probability would turn into NaN. */
ROSE_DEVICE float largest(const __half *)
{
    return 65504.0f;
}
ROSE_DEVICE float largest(const __nv_bfloat16 *)
{
    return 3.38953139e38f;
}
ROSE_DEVICE float largest(const float *)
{
    return 3.40282347e38f;
}

/* Two neighbours as one register. */
ROSE_DEVICE uint32_t pair_f32(float lo, float hi, const __half *)
{
    __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&h);
}
ROSE_DEVICE uint32_t pair_f32(float lo, float hi, const __nv_bfloat16 *)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&h);
}
ROSE_DEVICE float2 unpair(uint32_t u, const __half *)
{
    return __half22float2(*reinterpret_cast<__half2 *>(&u));
}
ROSE_DEVICE float2 unpair(uint32_t u, const __nv_bfloat16 *)
{
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&u));
}

/* Store values k and k + 1 of a row (k even). */
template <typename T> ROSE_DEVICE void store_pair(T *at, float lo, float hi)
{
    *reinterpret_cast<uint32_t *>(at) = pair_f32(lo, hi, at);
}
ROSE_DEVICE void store_pair(float *at, float lo, float hi)
{
    *reinterpret_cast<float2 *>(at) = make_float2(lo, hi);
}

/* ---- places, in elements ---- */

/* Activations: blocks of 8 rows x 8 values. */
ROSE_DEVICE size_t h_index(uint32_t row, uint32_t k, uint32_t k_pad)
{
    return ((size_t)(row / 8) * (k_pad / 8) + k / 8) * 64 + (row % 8) * 8 + k % 8;
}

/* 16-bit weights: lane (n % 8) * 4 + (k % 8) / 2 holds, for both k16 groups of a tile, its pairs of
 * the lower and the upper eight. */
template <typename T> ROSE_DEVICE size_t w_index(uint32_t n, uint32_t k, uint32_t k_pad, const T *)
{
    uint32_t lane = n % 8 * 4 + k % 8 / 2;
    return ((size_t)(n / 8) * (k_pad / 32) + k / 32) * 256 + lane * 8 + k % 32 / 8 * 2 + k % 2;
}
ROSE_DEVICE size_t w_index(uint32_t n, uint32_t k, uint32_t k_pad, const float *)
{
    return (size_t)n * k_pad + k;
}

/* 16-bit weights as `cores`: blocks of 8 x 8 values like activations, outputs in the order of
 * wide_column. */
ROSE_DEVICE size_t core_index(const rose_cuda_linear &l, uint32_t n, uint32_t k)
{
    return h_index(wide_column(n, l.kv ? l.k : l.n_pad), k, l.k_pad);
}

/* K of a page: chunks of 16 dims; a lane's 16 bytes are its operands for tokens 0-7 and 8-15. */
ROSE_DEVICE uint32_t k_index(uint32_t token, uint32_t dim)
{
    uint32_t lane = token % 8 * 4 + dim % 8 / 2;
    return dim / 16 * 256 + lane * 8 + (token / 8 * 2 + dim % 16 / 8) * 2 + dim % 2;
}

/* V of a page: chunks of 16 dims; a lane's 16 bytes are its operands for dims 0-7 and 8-15. */
ROSE_DEVICE uint32_t v_index(uint32_t token, uint32_t dim)
{
    uint32_t lane = dim % 8 * 4 + token % 8 / 2;
    return dim / 16 * 256 + lane * 8 + (dim % 16 / 8 * 2 + token / 8) * 2 + token % 2;
}

/* Dims `dim` (even) and the next of a token's K and V, each two values of 16 bits, into the K and V
 * of its page. */
template <typename T>
ROSE_DEVICE void put_dims(T *page_k, T *page_v, uint32_t token, uint32_t dim, uint32_t k,
                          uint32_t v)
{
    static_assert(sizeof(T) == 2, "pages of fp32 have another order");
    uint16_t *values = reinterpret_cast<uint16_t *>(page_v);
    *reinterpret_cast<uint32_t *>(page_k + k_index(token, dim)) = k;
    values[v_index(token, dim)] = (uint16_t)v;
    values[v_index(token, dim + 1)] = (uint16_t)(v >> 16);
}

template <typename T> ROSE_DEVICE T *kv_block(const rose_cuda_kv &kv, uint32_t page, uint32_t head)
{
    return static_cast<T *>(kv.base) + page * kv.page_elems +
           (size_t)head * (2 * ROSE_PAGE) * kv.hd_pad;
}

#endif
