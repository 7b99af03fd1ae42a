/* backend/cpu/matmul_ref.c - the GEMM of docs/NUMERICS.md, rule 1, in plain C. It is the definition
 * that the other levels repeat bit for bit.
 *
 * For every aligned group of 32 k, sums e and o start from +0. e adds the 16 even k in ascending
 * order, o the 16 odd k, each by one fma. Then acc = acc + (e + o). Sixteen outputs (a panel)
 * are computed together, and lanes never mix. */
#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"

/* The panel's weight at (k, lane). */
static float weight_at(const void *panel, rose_format type, uint32_t k, uint32_t lane)
{
    const size_t at = (size_t)k * ROSE_PANEL + lane;
    if (type == ROSE_F32) return ((const float *)panel)[at];
    if (type == ROSE_I8) return (float)((const int8_t *)panel)[at];
    const uint16_t *w = panel;
    return rose_f32_from_bf16(w[((size_t)(k / 2) * ROSE_PANEL + lane) * 2 + k % 2]);
}

/* acc[lane] = sum over k of x[k] w[k][lane]. */
static void product_row(const void *panel, rose_format type, uint32_t k_pad, const float *x,
                        float *acc)
{
    for (uint32_t l = 0; l < ROSE_PANEL; l++)
        acc[l] = 0.0f;
    for (uint32_t g = 0; g < k_pad; g += ROSE_K_GROUP) {
        float e[ROSE_PANEL] = {0}, o[ROSE_PANEL] = {0};
        for (uint32_t k = g; k < g + ROSE_K_GROUP; k += 2) {
            for (uint32_t l = 0; l < ROSE_PANEL; l++) {
                e[l] = fmaf(x[k], weight_at(panel, type, k, l), e[l]);
                o[l] = fmaf(x[k + 1], weight_at(panel, type, k + 1, l), o[l]);
            }
        }
        for (uint32_t l = 0; l < ROSE_PANEL; l++)
            acc[l] = acc[l] + (e[l] + o[l]);
    }
}

/* acc[lane] by rule 11 of docs/NUMERICS.md: one running sum. Each pair of k adds the product of
 * its odd k first. */
static void product_row_pairs(const void *panel, rose_format type, uint32_t k_pad, const float *x,
                              float *acc)
{
    for (uint32_t l = 0; l < ROSE_PANEL; l++)
        acc[l] = 0.0f;
    for (uint32_t k = 0; k < k_pad; k += 2) {
        for (uint32_t l = 0; l < ROSE_PANEL; l++) {
            acc[l] = fmaf(x[k + 1], weight_at(panel, type, k + 1, l), acc[l]);
            acc[l] = fmaf(x[k], weight_at(panel, type, k, l), acc[l]);
        }
    }
}

/* i: of the sum among those of all panels. y_old: what is there; of an up panel, the activated
 * gate. */
static float apply_epilogue(const rose_matmul *a, float acc, uint32_t i, float y_old)
{
    const bool is_up = a->gated && i / ROSE_PANEL % 2 == 1;
    float v = a->scale != NULL ? acc * a->scale[i] : acc;
    if (a->bias != NULL) v = v + a->bias[i];
    if (is_up) return rose_round_if(a->round_bf16, y_old * v);
    switch (a->epilogue) {
    case ROSE_EPI_NONE:
        break;
    case ROSE_EPI_GELU_TANH:
        v = rose_gelu_tanh_ref(v);
        break;
    case ROSE_EPI_GELU_ERF:
        v = rose_gelu_erf_ref(v);
        break;
    case ROSE_EPI_RELU:
        v = rose_relu_ref(v);
        break;
    case ROSE_EPI_SILU:
        v = rose_silu_ref(v);
        break;
    case ROSE_EPI_RESIDUAL:
        v = y_old + v;
        break;
    case ROSE_EPI_SOFTCAP:
        v = rose_softcap_ref(v, a->cap);
        break;
    }
    return rose_round_if(a->round_bf16 && !a->gated, v);
}

void rose_matmul_finish_ref(const rose_matmul *a, const float *acc, uint32_t m, uint32_t p)
{
    float *y = a->y + m * a->ldy;
    const uint32_t n0 = rose_panel_column(a, p);
    for (uint32_t l = 0; l < ROSE_PANEL && n0 + l < a->n; l++)
        y[n0 + l] = apply_epilogue(a, acc[l], p * ROSE_PANEL + l, y[n0 + l]);
}

static void matmul(const rose_matmul *a, rose_format type, bool pairs, uint32_t p0, uint32_t p1)
{
    size_t panel_bytes = (size_t)a->k_pad * ROSE_PANEL * rose_format_size(type);
    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *panel = (const uint8_t *)a->w + p * panel_bytes;
        for (uint32_t m = 0; m < a->m_rows; m++) {
            float acc[ROSE_PANEL];
            (pairs ? product_row_pairs : product_row)(panel, type, a->k_pad, a->x + m * a->ldx,
                                                      acc);
            rose_matmul_finish_ref(a, acc, m, p);
        }
    }
}

ROSE_MATMUL(rose_matmul_f32_ref, matmul(a, ROSE_F32, false, p0, p1))
ROSE_MATMUL(rose_matmul_bf16_ref, matmul(a, ROSE_BF16, false, p0, p1))
ROSE_MATMUL(rose_matmul_i8_ref, matmul(a, ROSE_I8, false, p0, p1))
ROSE_MATMUL(rose_matmul_bf16_pairs_ref, matmul(a, ROSE_BF16, true, p0, p1))
ROSE_MATMUL(rose_matmul_i8_pairs_ref, matmul(a, ROSE_I8, true, p0, p1))
