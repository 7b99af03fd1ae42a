/* backend/cpu/quant_avx512.c - products with quantized weights, AVX-512. See quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include <string.h>

#include "backend/cpu/quant_vec512.h"

enum { ROSE_QUANT_SOME = 4, ROSE_QUANT_MOST = 8, ROSE_QUANT_F32_ROWS = 8 }; /* rows of a block */

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avx512)

#endif
