/* backend/cpu/kernels_neon.c - all kernels for NEON: the code of *_simd.h over vec_neon.h. A
 * block of 3 rows has 3 even and 3 odd chains of four registers each, in 24 of the 32 registers. */
#include "backend/cpu/kernels_internal.h"

#if defined(__aarch64__)

#include "backend/cpu/vec_neon.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/matmul_simd.h"
#include "backend/cpu/norm_simd.h"

enum { MATMUL_ROWS = 3, ATTENTION_ROWS = 2 };

void rose_matmul_f32_neon(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_F32, p0, p1, MATMUL_ROWS);
}

void rose_matmul_bf16_neon(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_BF16, p0, p1, MATMUL_ROWS);
}

void rose_matmul_i8_neon(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_I8, p0, p1, MATMUL_ROWS);
}

ROSE_ATTENTION_KERNELS(neon, ATTENTION_ROWS)

void rose_layernorm_neon(const float *x, const float *w, const float *b, float eps, uint32_t d,
                         bool round_bf16, float *y)
{
    norm_row(x, w, b, eps, d, round_bf16, y);
}

void rose_rmsnorm_neon(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                       float *y)
{
    rms_row(x, w, eps, d, round_bf16, y);
}

void rose_rope_neon(float *x, const float *cos, const float *sin, uint32_t half, uint32_t head_dim,
                    bool round_bf16)
{
    rope_row(x, cos, sin, half, head_dim, round_bf16);
}

float rose_max_index_neon(const float *x, uint32_t n, uint32_t *index)
{
    return max_index_row(x, n, index);
}

void rose_exp_weights_neon(const float *x, uint32_t n, float max, float inv_temp, float *w)
{
    exp_weights_row(x, n, max, inv_temp, w);
}

void rose_exp_sums_neon(const float *x, uint32_t n, float max, float inv_temp, float min_p,
                        float *w, double *sums)
{
    exp_sums_row(x, n, max, inv_temp, min_p, w, sums);
}

#endif
