/* backend/cpu/attention_avx512.c - attention, and the store into KV pages, with AVX-512: blocks
 * of 8 rows. The code is in attention_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/attention_simd.h"

ROSE_ATTENTION_KERNELS(avx512, 8)

#endif
