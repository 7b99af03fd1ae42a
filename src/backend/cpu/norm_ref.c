/* backend/cpu/norm_ref.c - LayerNorm, RMSNorm (docs/NUMERICS.md, rule 3) and RoPE (rule 12) as
 * plain C: the definition. */
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

void rose_rmsnorm_ref(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                      float *y)
{
    float lane[ROSE_PANEL] = {0};
    for (uint32_t i = 0; i < d; i++)
        lane[i % ROSE_PANEL] = fmaf(x[i], x[i], lane[i % ROSE_PANEL]);
    float inv = 1.0f / sqrtf(rose_tree16_ref(lane) / (float)d + eps);
    for (uint32_t i = 0; i < d; i++)
        y[i] = rose_round_if(round_bf16, (x[i] * inv) * w[i]);
}

void rose_rope_ref(float *x, const float *cos, const float *sin, uint32_t half, uint32_t head_dim,
                   bool round_bf16)
{
    for (uint32_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = rose_round_if(round_bf16, a * cos[i] - b * sin[i]);
        x[i + half] = rose_round_if(round_bf16, b * cos[i] + a * sin[i]);
    }
    for (uint32_t i = 2 * half; i < head_dim; i++)
        x[i] = rose_round_if(round_bf16, x[i]);
}
