/* backend/cpu/kernels_avx2.c - the table of AVX2: the code of *_simd.h over vec_avx2.h. Attention
 * takes 2 rows at a time. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/norm_simd.h"

ROSE_SIMD_KERNELS(avx2, ROSE_ISA_AVX2, 2)

#endif
