/* backend/cpu/quant_avxvnni.c - products with quantized weights, AVX2 with AVX-VNNI. See
 * quant_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVXVNNI__)

#include <string.h>

#include "backend/cpu/quant_vec256.h"

enum { ROSE_QUANT_SOME = 3, ROSE_QUANT_MOST = 4, ROSE_QUANT_F32_ROWS = 3 }; /* rows of a block */

#include "backend/cpu/quant_simd.h"

ROSE_QUANT_LEVEL(rose_quant_avxvnni)

#endif
