/* backend/cpu/attention_avx2.c - attention, and the store into KV pages, with AVX2: blocks of 2
 * rows. The code is in attention_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/attention_simd.h"

void rose_attention_avx2(const rose_attention *a)
{
    if (a->bf16)
        attend(a, true, 2);
    else
        attend(a, false, 2);
}

void rose_kv_append_avx2(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                         uint32_t head_dim, bool bf16)
{
    if (bf16)
        append_bf16(head_block, slot, k, v, head_dim);
    else
        rose_kv_append_ref(head_block, slot, k, v, head_dim, false);
}

#endif
