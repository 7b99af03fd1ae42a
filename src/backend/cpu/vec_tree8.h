/* backend/cpu/vec_tree8.h - the lower half of the 16-lane tree sum, and the sum of 8 doubles.
 * Only for files compiled with AVX flags. */
#ifndef ROSE_BACKEND_CPU_VEC_TREE8_H
#define ROSE_BACKEND_CPU_VEC_TREE8_H

#include <immintrin.h>

#include "backend/cpu/vec_common.h"

ROSE_INLINE float v_tree8(__m256 x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* Lanes 2 apart, then 1. */
ROSE_INLINE double v_double_sum4(__m256d x)
{
    const __m128d a = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)));
}

#endif
