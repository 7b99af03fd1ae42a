/* backend/cpu/matmul_avx512.c - GEMM with AVX-512; the code is in matmul_simd.h. A block of 8
 * rows has 8 even chains, 8 odd chains and 8 sums, in 24 of the 32 registers. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/matmul_simd.h"

void rose_matmul_f32_avx512(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_F32, p0, p1, 8);
}

void rose_matmul_bf16_avx512(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_BF16, p0, p1, 8);
}

void rose_matmul_i8_avx512(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_W_I8, p0, p1, 8);
}

#endif
