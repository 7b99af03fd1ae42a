/* backend/cpu/kernels_neon.c - the table of NEON: the code of *_simd.h over vec_neon.h. A block
 * of 3 rows has 3 even and 3 odd chains of four registers each, in 24 of the 32 registers.
 * Attention takes 2 rows at a time. */
#include "backend/cpu/kernels_internal.h"

#if defined(__aarch64__)

#include "backend/cpu/vec_neon.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/matmul_simd.h"
#include "backend/cpu/norm_simd.h"

static void matmul_f32(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_F32, p0, p1, 3);
}

static void matmul_bf16(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_BF16, p0, p1, 3);
}

static void matmul_i8(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    matmul_panels(a, ROSE_I8, p0, p1, 3);
}

static void attention(const rose_attention *a)
{
    if (a->bf16)
        attend(a, true, 2);
    else
        attend(a, false, 2);
}

const rose_cpu_kernels rose_kernels_neon = {
    .isa = ROSE_ISA_NEON,
    .quant = &rose_quant_neon,
    .matmul_f32 = matmul_f32,
    .matmul_bf16 = matmul_bf16,
    .matmul_i8 = matmul_i8,
    .attention = attention,
    .kv_append = append_row,
    .layernorm = norm_row,
    .rmsnorm = rms_row,
    .rope = rope_row,
    .max_index = max_index_row,
    .exp_weights = exp_weights_row,
    .exp_sums = exp_sums_row,
};

#endif
