/* backend/cpu/quant_avx2.c - products with quantized weights, AVX2. See quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/quant_vec256.h"

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avx2)

#endif
