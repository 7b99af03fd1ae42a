/* backend/cpu/quant.h - panels of quantized weights and rows of int8 activations: the layouts that
 * the packer, the definition (quant_ref.c) and the vector kernels (quant_simd.h) share.
 *
 * A panel has 16 outputs and k values of each, in tiles of 32 k. It keeps three arrays, one after
 * the other:
 *
 *   quants   for each tile. Bytes (Q8_0): 8 vectors of 64 bytes; vector v holds k = 4 v .. 4 v + 3
 *            of output 0, then of output 1, ... Nibbles: 4 vectors; the low nibbles of vector v
 *            are k = 4 v .., the high ones k = 16 + 4 v .. Q6_K has two more vectors: bits 2 v and
 *            2 v + 1 of their bytes complete the low (first vector) and high nibbles of vector v.
 *   scales   for each tile. Q8_0 and Q4_0: fp16 d[16]. Q4_1: fp16 d[16], m[16]. Q4_K: bytes s[16],
 *            t[16]. Q6_K: int8 s[16] of the first 16 k, s[16] of the last 16 k.
 *   supers   K types, for each 8 tiles. Q4_K: fp16 d[16], m[16]. Q6_K: fp16 d[16].
 *
 * Integers are unsigned: the weight is q minus the type's bias. So VPDPBUSD takes them as they are.
 * A panel is as large as the blocks it was made of, rounded up to 64 bytes; Q4_K, whose 6-bit
 * factors become bytes, grows by 3 %. */
#ifndef ROSE_BACKEND_CPU_QUANT_H
#define ROSE_BACKEND_CPU_QUANT_H

#include "backend/cpu/kernels.h"
#include "model/model.h"

enum { ROSE_QUANT_K = 32, ROSE_SUPER_TILES = 8, ROSE_QUANT_ROWS = 64 /* taken at a time */ };

typedef struct rose_quant_layout {
    uint16_t quants, scales; /* bytes of a tile */
    uint16_t supers;         /* bytes of eight tiles */
    int16_t bias;
    bool has_min;
} rose_quant_layout;

/* Products with panels: the functions <name>_f32 and <name>_i8 of a level. */
#define ROSE_QUANT_ROW(of)                                                                         \
    {                                                                                              \
        [ROSE_Q8_0] = q8_0_##of, [ROSE_Q4_0] = q4_0_##of, [ROSE_Q4_1] = q4_1_##of,                 \
        [ROSE_Q4_K] = q4_k_##of, [ROSE_Q6_K] = q6_k_##of                                           \
    }
#define ROSE_QUANT_TABLE                                                                           \
    {                                                                                              \
        ROSE_QUANT_ROW(f32), ROSE_QUANT_ROW(i8)                                                    \
    }

/* Whether matrices of this format are multiplied without widening. */
static inline bool rose_quant_has(rose_format f)
{
    return f == ROSE_Q8_0 || f == ROSE_Q4_0 || f == ROSE_Q4_1 || f == ROSE_Q4_K || f == ROSE_Q6_K;
}

static inline rose_quant_layout rose_quant_layout_of(rose_format t)
{
    if (t == ROSE_Q8_0) return (rose_quant_layout){512, 32, 0, 128, false};
    if (t == ROSE_Q4_0) return (rose_quant_layout){256, 32, 0, 8, false};
    if (t == ROSE_Q4_1) return (rose_quant_layout){256, 64, 0, 0, true};
    if (t == ROSE_Q4_K) return (rose_quant_layout){256, 32, 64, 0, true};
    return (rose_quant_layout){384, 32, 32, 32, false}; /* Q6_K */
}

/* A panel of n_tiles. */
typedef struct rose_quant_panel {
    const uint8_t *quants, *scales, *supers;
} rose_quant_panel;

static inline rose_quant_panel rose_quant_panel_at(const void *panel, rose_format t,
                                                   uint32_t n_tiles)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    rose_quant_panel p = {.quants = panel};
    p.scales = p.quants + (size_t)n_tiles * l.quants;
    p.supers = p.scales + (size_t)n_tiles * l.scales;
    return p;
}

size_t rose_quant_panel_bytes(rose_format t, uint32_t k_pad);

/* Lanes of one tile of a panel, unpacked: for the definition and for single rows. */
typedef struct rose_quant_tile {
    int16_t q[ROSE_QUANT_K][ROSE_PANEL]; /* signed: bias taken off */
    float d[ROSE_PANEL];                 /* scale; Q6_K: without s */
    float s[2][ROSE_PANEL];              /* Q6_K: s of each half; else 1 */
    float m[ROSE_PANEL];                 /* added to each weight; 0 without a minimum */
} rose_quant_tile;

void rose_quant_tile_read(rose_quant_tile *out, const void *panel, rose_format t, uint32_t n_tiles,
                          uint32_t tile, uint32_t lane0, uint32_t lane1);

/* The fp32 weight at (k, lane) of a tile. */
static inline float rose_quant_weight(const rose_quant_tile *w, bool has_min, uint32_t k,
                                      uint32_t lane)
{
    const float v = w->d[lane] * w->s[k / 16][lane] * (float)w->q[k][lane];
    return has_min ? v + w->m[lane] : v;
}

/* Panels p0 .. p1-1 of the matrix w, stored [n][k] in blocks; see rose_pack_panels. */
void rose_quant_pack(void *panels, rose_format type, const rose_tensor *w, uint32_t k, uint32_t n,
                     uint32_t p0, uint32_t p1);

/* 32 activations of a row. */
typedef struct rose_quant_block {
    int8_t q[ROSE_QUANT_K];
    float d, dsum;    /* scale; scale times the sum of q */
    int32_t start[2]; /* minus the bias times the sum of q: of all 32 in [0], or, for Q6_K, of each
                         half */
} rose_quant_block;

/* Whether a magnitude is finite and large enough to divide by; compared as bits. */
#define ROSE_QUANT_LEAST 0x0DA24260u /* 1e-30 */
#define ROSE_QUANT_INF   0x7F800000u

/* From the bits of the largest magnitude of a block: its scale, and the factor that makes the
 * integers. A block below 1e-30 is zero; a block with a NaN or an infinity has the scale NaN. */
static inline void rose_quant_scale(uint32_t largest, float *d, float *inverse)
{
    float most;
    __builtin_memcpy(&most, &largest, sizeof most);
    *d = largest < ROSE_QUANT_LEAST ? 0.0f : most / 127.0f;
    *inverse = largest < ROSE_QUANT_LEAST ? 0.0f : 127.0f / most;
    if (largest < ROSE_QUANT_INF) return;
    *d = __builtin_nanf("");
    *inverse = 0.0f;
}

/* Fills everything but q, from the sums of both halves of q. */
static inline void rose_quant_sums(rose_quant_block *b, rose_format t, float d, int32_t first,
                                   int32_t last)
{
    const int32_t bias = rose_quant_layout_of(t).bias;
    b->d = d;
    b->dsum = d * (float)(first + last);
    b->start[0] = -bias * (t == ROSE_Q6_K ? first : first + last);
    b->start[1] = -bias * last;
}

#endif
