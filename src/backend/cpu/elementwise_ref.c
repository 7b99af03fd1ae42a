/* backend/cpu/elementwise_ref.c - what the sampler asks of a row of logits, as plain C: the
 * definition (docs/NUMERICS.md, rules 4 and 8). */
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
    /* Read again: a compiler may have made `best` with MAXSS, which flushes a denormal. */
    return best == -INFINITY ? best : x[*index];
}

void rose_exp_weights_ref(const float *x, uint32_t n, float max, float inv_temp, float *w)
{
    for (uint32_t i = 0; i < n; i++) {
        float e = rose_expf_ref((x[i] - max) * inv_temp);
        w[i] = e == e ? e : 0.0f; /* NaN counts as impossible */
    }
}
