/* backend/cpu/kernels_avx512.c - the table of AVX-512: the code of *_simd.h over vec_avx512.h.
 * Attention takes 8 rows at a time. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/norm_simd.h"

ROSE_SIMD_KERNELS(avx512, ROSE_ISA_AVX512, 8)

#endif
