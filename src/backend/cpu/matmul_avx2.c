/* backend/cpu/matmul_avx2.c - matrix product, AVX2: a row block of 3 holds 3 even and 3 odd chains
 * of two halves in 12 of the 16 registers; the sums go through the stack once per 32 k. See
 * matmul_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/matmul_simd.h"

void rose_matmul_f32_avx2(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_F32, p0, p1, 3);
}

void rose_matmul_bf16_avx2(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_BF16, p0, p1, 3);
}

void rose_matmul_i8_avx2(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_I8, p0, p1, 3);
}

#endif
