/* backend/cpu/norm_ref.c - LayerNorm in plain C. It is the definition (docs/NUMERICS.md, rule
 * 3). */
#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"

void rose_layernorm_ref(const float *x, const float *w, const float *b, float eps, uint32_t d,
                        bool round_bf16, float *y)
{
    float lane[ROSE_PANEL] = {0};
    for (uint32_t i = 0; i < d; i++)
        lane[i % ROSE_PANEL] = lane[i % ROSE_PANEL] + x[i];
    float mean = rose_tree16_ref(lane) / (float)d;

    for (uint32_t l = 0; l < ROSE_PANEL; l++)
        lane[l] = 0.0f;
    for (uint32_t i = 0; i < d; i++) {
        float t = x[i] - mean;
        lane[i % ROSE_PANEL] = fmaf(t, t, lane[i % ROSE_PANEL]);
    }
    float inv = 1.0f / sqrtf(rose_tree16_ref(lane) / (float)d + eps);
    for (uint32_t i = 0; i < d; i++) {
        y[i] = rose_round_if(round_bf16, fmaf((x[i] - mean) * inv, w[i], b[i]));
    }
}
