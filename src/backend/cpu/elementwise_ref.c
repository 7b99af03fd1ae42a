/* backend/cpu/elementwise_ref.c - argmax and exponential weights of a row of logits, for the
 * sampler, in plain C. It is the definition (docs/NUMERICS.md, rules 4 and 8). */
#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"

float rose_max_index_ref(const float *x, uint32_t n, uint32_t *index)
{
    float best = -INFINITY;
    *index = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] > best)) continue; /* NaN compares false */
        best = x[i];
        *index = i;
    }
    /* Returns the value from memory, because the compiler may have computed `best` with MAXSS,
     * which flushes a denormal to zero. */
    return best == -INFINITY ? best : x[*index];
}

void rose_exp_weights_ref(const float *x, uint32_t n, float max, float inv_temp, float *w)
{
    for (uint32_t i = 0; i < n; i++) {
        float e = rose_expf_ref((x[i] - max) * inv_temp);
        w[i] = e == e ? e : 0.0f; /* NaN counts as impossible */
    }
}

void rose_exp_sums_ref(const float *x, uint32_t n, float max, float inv_temp, float min_p, float *w,
                       double *sums)
{
    for (uint32_t at = 0; at < n; at += ROSE_SUM_BLOCK) {
        double lane[8] = {0};
        for (uint32_t i = at; i < n && i < at + ROSE_SUM_BLOCK; i++) {
            float e;
            rose_exp_weights_ref(x + i, 1, max, inv_temp, &e);
            if (e < min_p) e = 0;
            if (w != NULL) w[i] = e;
            lane[i % 8] += (double)e;
        }
        for (int apart = 4; apart > 0; apart /= 2)
            for (int l = 0; l < apart; l++)
                lane[l] += lane[l + apart];
        sums[at / ROSE_SUM_BLOCK] = lane[0];
    }
}
