/* backend/cpu/quant_ref.c - products with quantized weights as plain C: the definition of rule 13
 * of docs/NUMERICS.md, which the other levels repeat bit for bit. */
#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"
#include "backend/cpu/quant.h"

/* ---- fp32 activations: rule 1 over the fp32 values of the weights ---- */

static void add_group_f32(float *acc, const rose_quant_tile *w, bool has_min, const float *x)
{
    for (uint32_t l = 0; l < ROSE_PANEL; l++) {
        float e = 0.0f, o = 0.0f;
        for (uint32_t k = 0; k < ROSE_QUANT_K; k += 2) {
            e = fmaf(x[k], rose_quant_weight(w, has_min, k, l), e);
            o = fmaf(x[k + 1], rose_quant_weight(w, has_min, k + 1, l), o);
        }
        acc[l] = acc[l] + (e + o);
    }
}

/* ---- int8 activations ---- */

static void quantize_block(rose_quant_block *b, rose_format t, const float *x)
{
    uint32_t largest = 0;
    int32_t sum[2] = {0, 0};
    float d, inverse;
    for (uint32_t i = 0; i < ROSE_QUANT_K; i++) {
        const uint32_t bits = rose_f32_bits(x[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    rose_quant_scale(largest, &d, &inverse);
    for (uint32_t i = 0; i < ROSE_QUANT_K; i++) {
        /* adding 1.5 * 2^23 rounds to an integer, ties to even, in the low bits */
        const float sum_bits = x[i] * inverse + ROSE_EXP_MAGIC;
        const int32_t q = (int32_t)(rose_f32_bits(sum_bits) - rose_f32_bits(ROSE_EXP_MAGIC));
        b->q[i] = (int8_t)(largest < ROSE_QUANT_INF ? q : 0);
        sum[i / 16] += b->q[i];
    }
    rose_quant_sums(b, t, d, sum[0], sum[1]);
}

static void add_group_i8(float *acc, const rose_quant_tile *w, bool has_min,
                         const rose_quant_block *x)
{
    for (uint32_t l = 0; l < ROSE_PANEL; l++) {
        int32_t sum[2] = {0, 0};
        for (uint32_t k = 0; k < ROSE_QUANT_K; k++)
            sum[k / 16] += w->q[k][l] * x->q[k];
        /* below 2^24 in magnitude, as each product with s is */
        const int32_t all = sum[0] * (int32_t)w->s[0][l] + sum[1] * (int32_t)w->s[1][l];
        acc[l] = fmaf((float)all, w->d[l] * x->d, acc[l]);
        if (has_min) acc[l] = fmaf(w->m[l], x->dsum, acc[l]);
    }
}

static void matmul(const rose_matmul *a, rose_format t, bool i8, uint32_t p0, uint32_t p1)
{
    const bool has_min = rose_quant_layout_of(t).has_min;
    const uint32_t n_tiles = a->k_pad / ROSE_QUANT_K;
    const size_t bytes = rose_quant_panel_bytes(t, a->k_pad);
    for (uint32_t p = p0; p < p1; p++) {
        for (uint32_t m = 0; m < a->m_rows; m++) {
            float acc[ROSE_PANEL] = {0};
            for (uint32_t i = 0; i < n_tiles; i++) {
                const float *x = a->x + m * a->ldx + (size_t)i * ROSE_QUANT_K;
                rose_quant_tile w;
                rose_quant_block b;
                rose_quant_tile_read(&w, (const uint8_t *)a->w + p * bytes, t, n_tiles, i, 0,
                                     ROSE_PANEL);
                if (i8) quantize_block(&b, t, x);
                if (i8)
                    add_group_i8(acc, &w, has_min, &b);
                else
                    add_group_f32(acc, &w, has_min, x);
            }
            rose_matmul_finish_ref(a, acc, m, p);
        }
    }
}

#define ENTRIES(name, type)                                                                        \
    static ROSE_MATMUL(name##_f32, matmul(a, type, false, p0, p1)) static ROSE_MATMUL(             \
        name##_i8, matmul(a, type, true, p0, p1))

ENTRIES(q8_0, ROSE_Q8_0)
ENTRIES(q4_0, ROSE_Q4_0)
ENTRIES(q4_1, ROSE_Q4_1)
ENTRIES(q4_k, ROSE_Q4_K)
ENTRIES(q6_k, ROSE_Q6_K)

const rose_quant_kernels rose_quant_ref = ROSE_QUANT_TABLE;
