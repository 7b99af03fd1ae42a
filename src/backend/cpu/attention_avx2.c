/* backend/cpu/attention_avx2.c - attention, and the store into KV pages, with AVX2: blocks of 2
 * rows. The code is in attention_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/attention_simd.h"

ROSE_ATTENTION_KERNELS(avx2, 2)

#endif
