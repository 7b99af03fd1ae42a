/* backend/cpu/norm_simd.h - LayerNorm and RMSNorm (docs/NUMERICS.md, rule 3) and RoPE (rule 12)
 * over vec16. A norm takes two or three passes over one row, which fits L1. A short last vector
 * leaves the lanes past the end as they are. Include after vec_<isa>.h. */
#ifndef ROSE_BACKEND_CPU_NORM_SIMD_H
#define ROSE_BACKEND_CPU_NORM_SIMD_H

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/math_simd.h"

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

ROSE_INLINE void rms_row(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                         float *y)
{
    uint32_t whole = d / ROSE_PANEL * ROSE_PANEL, rest = d - whole;
    vec16 sum = v_zero();
    for (uint32_t i = 0; i < whole; i += ROSE_PANEL) {
        vec16 t = v_load(x + i);
        sum = v_fma(t, t, sum);
    }
    if (rest > 0) {
        vec16 t = v_load_n(x + whole, rest);
        sum = v_first_of(v_fma(t, t, sum), sum, rest);
    }
    vec16 inv = v_set1(1.0f / sqrtf(v_tree(sum) / (float)d + eps));

    for (uint32_t i = 0; i < d; i += ROSE_PANEL) {
        uint32_t n = d - i < ROSE_PANEL ? d - i : ROSE_PANEL;
        vec16 t = v_mul(v_mul(v_load_n(x + i, n), inv), v_load_n(w + i, n));
        v_store_n(y + i, round_bf16 ? v_round_bf16(t) : t, n);
    }
}

ROSE_INLINE void rope_row(float *x, const float *cos, const float *sin, uint32_t half,
                          uint32_t head_dim, bool round_bf16)
{
    for (uint32_t i = 0; i < half; i += ROSE_PANEL) {
        uint32_t n = half - i < ROSE_PANEL ? half - i : ROSE_PANEL;
        vec16 a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
        vec16 c = v_load_n(cos + i, n), s = v_load_n(sin + i, n);
        vec16 first = v_sub(v_mul(a, c), v_mul(b, s));
        vec16 second = v_add(v_mul(b, c), v_mul(a, s));
        v_store_n(x + i, round_bf16 ? v_round_bf16(first) : first, n);
        v_store_n(x + half + i, round_bf16 ? v_round_bf16(second) : second, n);
    }
    for (uint32_t i = 2 * half; round_bf16 && i < head_dim; i += ROSE_PANEL) {
        uint32_t n = head_dim - i < ROSE_PANEL ? head_dim - i : ROSE_PANEL;
        v_store_n(x + i, v_round_bf16(v_load_n(x + i, n)), n);
    }
}

#endif
