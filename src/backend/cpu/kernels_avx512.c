/* backend/cpu/kernels_avx512.c - the table of AVX-512: the code of *_simd.h over vec_avx512.h.
 * Attention takes 8 rows at a time. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/norm_simd.h"

static void attention(const rose_attention *a)
{
    if (a->bf16)
        attend(a, true, 8);
    else
        attend(a, false, 8);
}

const rose_cpu_kernels rose_kernels_avx512 = {
    .isa = ROSE_ISA_AVX512,
    .quant = &rose_quant_avx512,
    .matmul_f32 = rose_matmul_f32_avx512,
    .matmul_bf16 = rose_matmul_bf16_avx512,
    .matmul_i8 = rose_matmul_i8_avx512,
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
