/* backend/cpu/quant_avx512.c - products with quantized weights, AVX-512. See quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/quant_vec512.h"

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avx512)

#endif
