/* backend/cpu/norm_avx2.c - LayerNorm with AVX2. The code is in norm_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/norm_simd.h"

void rose_layernorm_avx2(const float *x, const float *w, const float *b, float eps, uint32_t d,
                         bool round_bf16, float *y)
{
    norm_row(x, w, b, eps, d, round_bf16, y);
}

#endif
