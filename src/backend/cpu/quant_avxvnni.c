/* backend/cpu/quant_avxvnni.c - products with quantized weights, AVX2 with AVX-VNNI. See
 * quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVXVNNI__)

#include "backend/cpu/quant_vec256.h"

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avxvnni)

#endif
