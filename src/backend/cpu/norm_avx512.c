/* backend/cpu/norm_avx512.c - LayerNorm with AVX-512. The code is in norm_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/norm_simd.h"

void rose_layernorm_avx512(const float *x, const float *w, const float *b, float eps, uint32_t d,
                           bool round_bf16, float *y)
{
    norm_row(x, w, b, eps, d, round_bf16, y);
}

#endif
