/* backend/cpu/elementwise_simd.h - argmax and exponential weights of a row of logits over vec16.
 * Include after vec_<isa>.h. */
#ifndef ROSE_BACKEND_CPU_ELEMENTWISE_SIMD_H
#define ROSE_BACKEND_CPU_ELEMENTWISE_SIMD_H

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/math_simd.h"

/* Each lane keeps its first largest value and the index of that value. The winners of the lanes
 * are then compared by value, and by index where values are equal. */
ROSE_INLINE float max_index_row(const float *x, uint32_t n, uint32_t *index)
{
    uint32_t at[ROSE_PANEL] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float lane[ROSE_PANEL];
    uint32_t i = 0;

    vec16 best = v_set1(-INFINITY);
    ivec16 here = v_int_load(at), best_at = v_int_set1(0), step = v_int_set1(ROSE_PANEL);
    for (; n - i >= ROSE_PANEL; i += ROSE_PANEL) {
        vec16 v = v_load(x + i);
        best_at = v_int_if_less(best, v, here, best_at);
        best = v_if_less(best, v, v, best);
        here = v_int_add(here, step);
    }
    v_int_store(at, best_at);
    v_store(lane, best);

    float top = -INFINITY;
    *index = 0;
    for (uint32_t l = 0; l < ROSE_PANEL; l++) {
        if (lane[l] < top || (lane[l] == top && (top == -INFINITY || at[l] > *index))) continue;
        top = lane[l];
        *index = at[l];
    }
    for (; i < n; i++) {
        if (!(x[i] > top)) continue;
        top = x[i];
        *index = i;
    }
    return top == -INFINITY ? top : x[*index]; /* as in the definition */
}

ROSE_INLINE void exp_weights_row(const float *x, uint32_t n, float max, float inv_temp, float *w)
{
    vec16 max16 = v_set1(max), scale = v_set1(inv_temp);
    for (uint32_t i = 0; i < n; i += ROSE_PANEL) {
        uint32_t m = n - i < ROSE_PANEL ? n - i : ROSE_PANEL;
        vec16 e = v_exp(v_mul(v_sub(v_load_n(x + i, m), max16), scale));
        v_store_n(w + i, v_nan_to_zero(e), m);
    }
}

ROSE_INLINE void exp_sums_row(const float *x, uint32_t n, float max, float inv_temp, float min_p,
                              float *w, double *sums)
{
    const vec16 max16 = v_set1(max), scale = v_set1(inv_temp), least = v_set1(min_p);
    for (uint32_t at = 0; at < n; at += ROSE_SUM_BLOCK) {
        const uint32_t end = n - at < ROSE_SUM_BLOCK ? n : at + ROSE_SUM_BLOCK;
        dvec8 sum = v_double_zero();
        for (uint32_t i = at; i < end; i += ROSE_PANEL) {
            const uint32_t m = end - i < ROSE_PANEL ? end - i : ROSE_PANEL;
            vec16 e = v_nan_to_zero(v_exp(v_mul(v_sub(v_load_n(x + i, m), max16), scale)));
            e = v_if_less(e, least, v_zero(), e);
            if (m < ROSE_PANEL) {
                float there[ROSE_PANEL] = {0};
                v_store_n(there, e, m);
                e = v_load(there);
            }
            if (w != NULL) v_store_n(w + i, e, m);
            sum = v_double_add(sum, e);
        }
        sums[at / ROSE_SUM_BLOCK] = v_double_sum(sum);
    }
}

#endif
