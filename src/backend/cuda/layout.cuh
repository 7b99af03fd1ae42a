/* backend/cuda/layout.cuh - where an element lies: packed weights, blocked activations, KV pages;
 * and the conversions between fp32 and the storage type T. Device code only. */
#ifndef ROSE_BACKEND_CUDA_LAYOUT_CUH
#define ROSE_BACKEND_CUDA_LAYOUT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels.h"

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

/* 16-bit weights have the same blocks, of 8 outputs x 8 inputs. */
template <typename T> ROSE_DEVICE size_t w_index(uint32_t n, uint32_t k, uint32_t k_pad, const T *)
{
    return h_index(n, k, k_pad);
}
ROSE_DEVICE size_t w_index(uint32_t n, uint32_t k, uint32_t k_pad, const float *)
{
    return (size_t)n * k_pad + k;
}

#endif
