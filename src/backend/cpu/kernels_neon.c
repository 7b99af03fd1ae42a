/* backend/cpu/kernels_neon.c - the table of NEON: the code of *_simd.h over vec_neon.h. A block
 * of 3 rows has 3 even and 3 odd chains of four registers each, in 24 of the 32 registers.
 * Attention takes 2 rows at a time. */
#include "backend/cpu/kernels_internal.h"

#if defined(__aarch64__)

#include "backend/cpu/vec_neon.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/elementwise_simd.h"
#include "backend/cpu/matmul_simd.h"
#include "backend/cpu/norm_simd.h"

ROSE_MATMUL(rose_matmul_f32_neon, matmul_panels(a, ROSE_F32, p0, p1, 3))
ROSE_MATMUL(rose_matmul_bf16_neon, matmul_panels(a, ROSE_BF16, p0, p1, 3))
ROSE_MATMUL(rose_matmul_i8_neon, matmul_panels(a, ROSE_I8, p0, p1, 3))

ROSE_SIMD_KERNELS(neon, ROSE_ISA_NEON, 2)

#endif
