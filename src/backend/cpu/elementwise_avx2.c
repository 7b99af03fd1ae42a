/* backend/cpu/elementwise_avx2.c - argmax and exponential weights with AVX2. The code is in
 * elementwise_simd.h. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX2__)

#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/elementwise_simd.h"

float rose_max_index_avx2(const float *x, uint32_t n, uint32_t *index)
{
    return max_index_row(x, n, index);
}

void rose_exp_weights_avx2(const float *x, uint32_t n, float max, float inv_temp, float *w)
{
    exp_weights_row(x, n, max, inv_temp, w);
}

void rose_exp_sums_avx2(const float *x, uint32_t n, float max, float inv_temp, float min_p,
                        float *w, double *sums)
{
    exp_sums_row(x, n, max, inv_temp, min_p, w, sums);
}

#endif
