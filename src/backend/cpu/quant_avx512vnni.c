/* backend/cpu/quant_avx512vnni.c - products with quantized weights, AVX-512 with VNNI. See
 * quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512VNNI__)

#include "backend/cpu/quant_vec512.h"

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avx512vnni)

#endif
