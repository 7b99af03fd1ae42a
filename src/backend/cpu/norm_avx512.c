/* backend/cpu/norm_avx512.c - norms and RoPE. See norm_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/norm_simd.h"

void rose_layernorm_avx512(const float *x, const float *w, const float *b, float eps, uint32_t d,
                           bool round_bf16, float *y)
{
    norm_row(x, w, b, eps, d, round_bf16, y);
}

void rose_rmsnorm_avx512(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                         float *y)
{
    rms_row(x, w, eps, d, round_bf16, y);
}

void rose_rope_avx512(float *x, const float *cos, const float *sin, uint32_t half,
                      uint32_t head_dim, bool round_bf16)
{
    rope_row(x, cos, sin, half, head_dim, round_bf16);
}

#endif
