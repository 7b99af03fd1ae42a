/* backend/cpu/attention_avx512.c - attention, and the store into KV pages, with AVX-512: blocks
 * of 8 rows. The code is in attention_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/attention_simd.h"

void rose_attention_avx512(const rose_attention *a)
{
    if (a->bf16)
        attend(a, true, 8);
    else
        attend(a, false, 8);
}

void rose_kv_append_avx512(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                           uint32_t head_dim, bool bf16)
{
    if (bf16)
        append_bf16(head_block, slot, k, v, head_dim);
    else
        rose_kv_append_ref(head_block, slot, k, v, head_dim, false);
}

#endif
