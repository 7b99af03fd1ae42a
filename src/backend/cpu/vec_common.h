/* backend/cpu/vec_common.h - macros that the files for all vector widths share: forced inlining
 * and unrolling. */
#ifndef ROSE_BACKEND_CPU_VEC_COMMON_H
#define ROSE_BACKEND_CPU_VEC_COMMON_H

/* Functions take row counts and dtypes as constant arguments, so they must be inlined to be
 * specialised. */
#define ROSE_INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define ROSE_UNROLL _Pragma("unroll")
#else
#define ROSE_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
