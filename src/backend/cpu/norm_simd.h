/* backend/cpu/norm_simd.h - LayerNorm over vec16 (docs/NUMERICS.md, rule 3): three passes over
 * one row, which fits into L1. If the last vector is short, the lanes past the end of the row
 * keep their sums. Include after vec_<isa>.h. */
#ifndef ROSE_BACKEND_CPU_NORM_SIMD_H
#define ROSE_BACKEND_CPU_NORM_SIMD_H

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"

ROSE_INLINE void norm_row(const float *x, const float *w, const float *b, float eps, uint32_t d,
                          bool round_bf16, float *y)
{
    uint32_t whole = d / ROSE_PANEL * ROSE_PANEL, rest = d - whole;
    vec16 sum = v_zero();
    for (uint32_t i = 0; i < whole; i += ROSE_PANEL)
        sum = v_add(sum, v_load(x + i));
    if (rest > 0) sum = v_first_of(v_add(sum, v_load_n(x + whole, rest)), sum, rest);
    vec16 mean = v_set1(v_tree(sum) / (float)d);

    vec16 var = v_zero();
    for (uint32_t i = 0; i < whole; i += ROSE_PANEL) {
        vec16 t = v_sub(v_load(x + i), mean);
        var = v_fma(t, t, var);
    }
    if (rest > 0) {
        vec16 t = v_sub(v_load_n(x + whole, rest), mean);
        var = v_first_of(v_fma(t, t, var), var, rest);
    }
    vec16 inv = v_set1(1.0f / sqrtf(v_tree(var) / (float)d + eps));

    for (uint32_t i = 0; i < d; i += ROSE_PANEL) {
        uint32_t n = d - i < ROSE_PANEL ? d - i : ROSE_PANEL;
        vec16 t = v_mul(v_sub(v_load_n(x + i, n), mean), inv);
        t = v_fma(t, v_load_n(w + i, n), v_load_n(b + i, n));
        v_store_n(y + i, round_bf16 ? v_round_bf16(t) : t, n);
    }
}

#endif
