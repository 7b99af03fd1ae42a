/* backend/cpu/quant_simd.h - products with quantized weights over vec16: one body for all vector
 * levels. Include after vec_<isa>.h and quant_vec256.h or quant_vec512.h, whose integer sums are
 * exact, so that all give the bits of quant_ref.c.
 *
 * int8 activations: the rows are rounded into scratch, up to 64 at a time. A panel then passes by
 * for blocks of R rows; a tile's integers are unpacked once for the R rows, whose fp32 sums stay in
 * registers. Bound: one row, memory; many rows, the instructions of the dot product.
 *
 * fp32 activations: a tile becomes fp32 values in scratch, and all rows add their group of 32. */
#ifndef ROSE_BACKEND_CPU_QUANT_SIMD_H
#define ROSE_BACKEND_CPU_QUANT_SIMD_H

#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/matmul_simd.h"
#include "backend/cpu/quant.h"

/* Scratch holds 64 rows of blocks, or the sums of 64 rows and a tile in fp32. */
_Static_assert(sizeof(rose_quant_block) * ROSE_QUANT_ROWS <=
                   (size_t)ROSE_QUANT_K * 2 * (ROSE_AMX_MIN_ROWS + ROSE_PANEL),
               "rose_matmul_scratch holds the rows of a block of k");
_Static_assert(sizeof(float) * ROSE_PANEL * (ROSE_QUANT_ROWS + ROSE_QUANT_K) <= ROSE_AMX_SUM_BYTES,
               "rose_matmul_scratch holds sums and a tile");

/* ---- scales ---- */

typedef struct tile_scales {
    vec16 d, m, s[2]; /* as in rose_quant_tile */
} tile_scales;

ROSE_INLINE void load_scales(tile_scales *out, const rose_quant_panel *p, rose_format t,
                             uint32_t tile)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    const uint8_t *scales = p->scales + (size_t)tile * l.scales;
    const uint8_t *supers = p->supers + (size_t)tile / ROSE_SUPER_TILES * l.supers;
    switch ((int)t) {
    case ROSE_Q4_1:
        out->m = q_load_f16(scales + 32);
        out->d = q_load_f16(scales);
        break;
    case ROSE_Q4_K:
        out->d = v_mul(q_load_f16(supers), q_load_u8(scales));
        out->m = v_mul(q_load_f16(supers + 32), v_sub(v_zero(), q_load_u8(scales + 16)));
        break;
    case ROSE_Q6_K:
        out->d = q_load_f16(supers);
        out->s[0] = v_load_i8(scales);
        out->s[1] = v_load_i8(scales + 16);
        break;
    default:
        out->d = q_load_f16(scales);
        break;
    }
}

/* ---- products of integers ---- */

#if defined(Q_DOT) /* q_add_products adds four products to each 32-bit sum */

typedef ivec16 q_bytes;

#if !defined(Q_SIGNED_BYTES) /* else q_load_bytes takes the bias off */
#define Q_SIGNED_BYTES 0

ROSE_INLINE q_bytes q_load_bytes(const uint8_t *p)
{
    return q_load(p);
}
#endif

ROSE_INLINE ivec16 q_begin(rose_format t, int32_t start)
{
    const bool no_bias = rose_quant_layout_of(t).has_min || (Q_SIGNED_BYTES && t == ROSE_Q8_0);
    return v_int_set1(no_bias ? 0 : start);
}

ROSE_INLINE ivec16 q_dot(rose_format t, ivec16 acc, ivec16 w, const int8_t *x)
{
    (void)t;
    return q_add_products(acc, w, x);
}

ROSE_INLINE ivec16 q_end(rose_format t, ivec16 acc, int32_t start)
{
    (void)t;
    (void)start;
    return acc;
}

ROSE_INLINE ivec16 q_dot_bytes(ivec16 acc, q_bytes w, const int8_t *x)
{
    return q_add_products(acc, w, x);
}

#else /* q_pair_sums adds two products in 16 bits */

ROSE_INLINE ivec16 q_begin(rose_format t, int32_t start)
{
    return v_int_set1(t == ROSE_Q6_K ? start : 0);
}

ROSE_INLINE ivec16 q_dot(rose_format t, ivec16 acc, ivec16 w, const int8_t *x)
{
    const ivec16 two = q_pair_sums(w, x);
    return t == ROSE_Q6_K ? v_int_add(acc, q_pairs_to_32(two)) : q_add_16(acc, two);
}

ROSE_INLINE ivec16 q_end(rose_format t, ivec16 acc, int32_t start)
{
    if (t == ROSE_Q6_K) return acc;
    acc = q_pairs_to_32(acc);
    return t == ROSE_Q4_0 ? v_int_add(acc, v_int_set1(start)) : acc;
}

#endif

/* ---- int8 activations ---- */

/* Vector v of a tile of nibbles: k = 4 v .. in low, 16 + 4 v .. in high. */
ROSE_INLINE void load_nibbles(ivec16 *low, ivec16 *high, const uint8_t *tile, uint32_t v)
{
    q_split_nibbles(low, high, q_load(tile + 64 * v));
}

ROSE_INLINE void load_six_bits(ivec16 *low, ivec16 *high, const uint8_t *tile, uint32_t v)
{
    load_nibbles(low, high, tile, v);
    *low = q_join(*low, q_load(tile + 256), v);
    *high = q_join(*high, q_load(tile + 320), v);
}

/* The integer sums of n_rows rows with one tile, less the bias: of all 32 k in sum[0], or (Q6_K)
 * of each half. x: their blocks, ldx apart. */
ROSE_INLINE void tile_sums(ivec16 (*sum)[ROSE_MAX_ROW_BLOCK], rose_format t, const uint8_t *tile,
                           const rose_quant_block *x, size_t ldx, uint32_t n_rows)
{
    const bool halves = t == ROSE_Q6_K;
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++) {
        sum[0][r] = q_begin(t, x[r * ldx].start[0]);
        if (halves) sum[1][r] = q_begin(t, x[r * ldx].start[1]);
    }
    if (t == ROSE_Q8_0) {
        ROSE_UNROLL
        for (uint32_t v = 0; v < 8; v++) {
            const q_bytes w = q_load_bytes(tile + 64 * v);
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                sum[0][r] = q_dot_bytes(sum[0][r], w, x[r * ldx].q + 4 * v);
        }
        return;
    }
    ROSE_UNROLL
    for (uint32_t v = 0; v < 4; v++) {
        ivec16 low, high;
        if (halves)
            load_six_bits(&low, &high, tile, v);
        else
            load_nibbles(&low, &high, tile, v);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            ivec16 *last = halves ? &sum[1][r] : &sum[0][r];
            sum[0][r] = q_dot(t, sum[0][r], low, x[r * ldx].q + 4 * v);
            *last = q_dot(t, *last, high, x[r * ldx].q + 16 + 4 * v);
        }
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++) {
        sum[0][r] = q_end(t, sum[0][r], x[r * ldx].start[0]);
        if (halves) sum[1][r] = q_end(t, sum[1][r], x[r * ldx].start[1]);
    }
}

/* n_rows rows (a constant) by one panel. */
ROSE_INLINE void quant_block(const rose_matmul *a, const void *panel, rose_format t, uint32_t m,
                             uint32_t n0, const rose_quant_block *x, uint32_t n_rows)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    const uint32_t n_tiles = a->k_pad / ROSE_QUANT_K;
    const rose_quant_panel p = rose_quant_panel_at(panel, t, n_tiles);
    const bool near = n_rows <= ROSE_NEAR_ROWS;
    vec16 acc[ROSE_MAX_ROW_BLOCK];

    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        acc[r] = v_zero();
    for (uint32_t i = 0; i < n_tiles; i++, x++) {
        const uint8_t *tile = p.quants + (size_t)i * l.quants;
        ivec16 sum[2][ROSE_MAX_ROW_BLOCK];
        tile_scales s;
        ROSE_UNROLL
        for (uint32_t b = 0; b < l.quants; b += 64)
            prefetch_weights(tile + b, ROSE_PREFETCH_BYTES, near);
        prefetch_weights(p.scales + (size_t)i * l.scales, ROSE_PREFETCH_BYTES, near);
        tile_sums(sum, t, tile, x, n_tiles, n_rows);
        load_scales(&s, &p, t, i);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            const rose_quant_block *b = x + (size_t)r * n_tiles;
            vec16 v = q_to_f32(sum[0][r]);
            if (t == ROSE_Q6_K) v = v_fma(q_to_f32(sum[1][r]), s.s[1], v_mul(v, s.s[0]));
            acc[r] = v_fma(v, v_mul(s.d, v_set1(b->d)), acc[r]);
            if (l.has_min) acc[r] = v_fma(s.m, v_set1(b->dsum), acc[r]);
        }
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        finish_outputs(a, acc[r], m + r, n0);
}

/* Functions of their own, so that each has all registers. */
#define ROSE_QUANT_BLOCK(name, t, rows)                                                            \
    static __attribute__((noinline)) void name(const rose_matmul *a, const void *panel,            \
                                               uint32_t m, uint32_t n0, const rose_quant_block *x) \
    {                                                                                              \
        quant_block(a, panel, t, m, n0, x, rows);                                                  \
    }

typedef void quant_block_fn(const rose_matmul *a, const void *panel, uint32_t m, uint32_t n0,
                            const rose_quant_block *x);

/* The kernels of one type: row blocks of 1, 2, some and most rows. */
typedef struct quant_blocks {
    quant_block_fn *fn[4];
    uint32_t rows[4];
} quant_blocks;

/* q_store_rounded rounds ties to even, stores zeros if the block is not finite, and returns the
 * sum. */
ROSE_INLINE void q_quantize(rose_quant_block *b, rose_format t, const float *x)
{
    const vec16 first = v_load(x), last = v_load(x + 16);
    const uint32_t largest = q_largest(first, last);
    const bool finite = largest < ROSE_QUANT_INF;
    float d, inverse;
    rose_quant_scale(largest, &d, &inverse);
    const int32_t sum = q_store_rounded(b->q, v_mul(first, v_set1(inverse)), finite);
    const vec16 scaled = v_mul(last, v_set1(inverse));
    rose_quant_sums(b, t, d, sum, q_store_rounded(b->q + 16, scaled, finite));
}

static void quantize_rows(const rose_matmul *a, rose_format t, uint32_t m, uint32_t n_rows)
{
    const uint32_t n_tiles = a->k_pad / ROSE_QUANT_K;
    rose_quant_block *out = a->scratch;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < n_tiles; i++)
            q_quantize(out++, t, a->x + (m + r) * a->ldx + (size_t)i * ROSE_QUANT_K);
}

ROSE_INLINE void matmul_quant_i8(const rose_matmul *a, rose_format t, const quant_blocks *b,
                                 uint32_t p0, uint32_t p1)
{
    const size_t bytes = rose_panel_bytes(t, a->k_pad);
    const size_t n_tiles = a->k_pad / ROSE_QUANT_K;
    for (uint32_t m0 = 0; m0 < a->m_rows; m0 += ROSE_QUANT_ROWS) {
        const uint32_t left = a->m_rows - m0;
        const uint32_t n_rows = left < ROSE_QUANT_ROWS ? left : ROSE_QUANT_ROWS;
        quantize_rows(a, t, m0, n_rows);
        for (uint32_t p = p0; p < p1; p++) {
            const uint8_t *panel = (const uint8_t *)a->w + p * bytes;
            for (uint32_t r = 0, i = 3; r < n_rows;) {
                while (b->rows[i] > n_rows - r)
                    i--;
                b->fn[i](a, panel, m0 + r, p * ROSE_PANEL,
                         (const rose_quant_block *)a->scratch + r * n_tiles);
                r += b->rows[i];
            }
        }
    }
}

/* ---- fp32 activations ---- */

/* w[k][16] of one tile. */
ROSE_INLINE void widen_tile(float *w, const rose_quant_panel *p, rose_format t, uint32_t tile)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    const uint8_t *quants = p->quants + (size_t)tile * l.quants;
    const bool bytes = t == ROSE_Q8_0;
    tile_scales s;
    load_scales(&s, p, t, tile);
    for (uint32_t v = 0; v < (bytes ? 8 : 4); v++) {
        ivec16 q[2];
        if (bytes)
            q[0] = q[1] = q_load(quants + 64 * v);
        else if (t == ROSE_Q6_K)
            load_six_bits(&q[0], &q[1], quants, v);
        else
            load_nibbles(&q[0], &q[1], quants, v);
        for (uint32_t half = 0; half < (bytes ? 1 : 2); half++) {
            const vec16 d = t == ROSE_Q6_K ? v_mul(s.d, s.s[half]) : s.d;
            ROSE_UNROLL
            for (uint32_t b = 0; b < 4; b++) {
                const vec16 x = v_mul(d, q_byte_f32(q[half], b, l.bias));
                v_store(w + (16 * half + 4 * v + b) * ROSE_PANEL, l.has_min ? v_add(x, s.m) : x);
            }
        }
    }
}

/* Adds the group of 32 k of n_rows rows to their sums, [n_rows][16]. */
ROSE_INLINE void add_groups(float *sums, const float *w, const float *x, size_t ldx,
                            uint32_t n_rows)
{
    vec16 e[ROSE_MAX_ROW_BLOCK], o[ROSE_MAX_ROW_BLOCK];
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        e[r] = o[r] = v_zero();
    for (uint32_t k = 0; k < ROSE_QUANT_K; k += 2) {
        const vec16 w_even = v_load(w + k * ROSE_PANEL), w_odd = v_load(w + (k + 1) * ROSE_PANEL);
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            e[r] = v_fma(v_set1(x[r * ldx + k]), w_even, e[r]);
            o[r] = v_fma(v_set1(x[r * ldx + k + 1]), w_odd, o[r]);
        }
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        v_store(sums + r * ROSE_PANEL, v_add(v_load(sums + r * ROSE_PANEL), v_add(e[r], o[r])));
}

static void add_all_groups(float *sums, const float *w, const float *x, size_t ldx, uint32_t n_rows)
{
    uint32_t r = 0;
    for (; n_rows - r >= ROSE_QUANT_F32_ROWS; r += ROSE_QUANT_F32_ROWS)
        add_groups(sums + r * ROSE_PANEL, w, x + r * ldx, ldx, ROSE_QUANT_F32_ROWS);
    for (; n_rows - r >= 2; r += 2)
        add_groups(sums + r * ROSE_PANEL, w, x + r * ldx, ldx, 2);
    if (r < n_rows) add_groups(sums + r * ROSE_PANEL, w, x + r * ldx, ldx, 1);
}

ROSE_INLINE void matmul_quant_f32(const rose_matmul *a, rose_format t, uint32_t p0, uint32_t p1)
{
    const size_t bytes = rose_panel_bytes(t, a->k_pad);
    const uint32_t n_tiles = a->k_pad / ROSE_QUANT_K;
    float *sums = a->scratch, *w = sums + ROSE_QUANT_ROWS * ROSE_PANEL;
    for (uint32_t m = 0; m < a->m_rows; m += ROSE_QUANT_ROWS) {
        const uint32_t left = a->m_rows - m;
        const uint32_t n_rows = left < ROSE_QUANT_ROWS ? left : ROSE_QUANT_ROWS;
        for (uint32_t p = p0; p < p1; p++) {
            const rose_quant_panel panel =
                rose_quant_panel_at((const uint8_t *)a->w + p * bytes, t, n_tiles);
            memset(sums, 0, (size_t)n_rows * ROSE_PANEL * sizeof *sums);
            for (uint32_t i = 0; i < n_tiles; i++) {
                widen_tile(w, &panel, t, i);
                add_all_groups(sums, w, a->x + m * a->ldx + (size_t)i * ROSE_QUANT_K, a->ldx,
                               n_rows);
            }
            for (uint32_t r = 0; r < n_rows; r++)
                finish_outputs(a, v_load(sums + r * ROSE_PANEL), m + r, p * ROSE_PANEL);
        }
    }
}

/* ---- the table ---- */

#define ROSE_QUANT_TYPE(name, t)                                                                   \
    ROSE_QUANT_BLOCK(name##_one, t, 1)                                                             \
    ROSE_QUANT_BLOCK(name##_two, t, 2)                                                             \
    ROSE_QUANT_BLOCK(name##_some, t, ROSE_QUANT_SOME)                                              \
    ROSE_QUANT_BLOCK(name##_most, t, ROSE_QUANT_MOST)                                              \
    static void name##_i8(const rose_matmul *a, uint32_t p0, uint32_t p1)                          \
    {                                                                                              \
        static const quant_blocks blocks = {{name##_one, name##_two, name##_some, name##_most},    \
                                            {1, 2, ROSE_QUANT_SOME, ROSE_QUANT_MOST}};             \
        matmul_quant_i8(a, t, &blocks, p0, p1);                                                    \
    }                                                                                              \
    static ROSE_MATMUL(name##_f32, matmul_quant_f32(a, t, p0, p1))

/* All functions of a level and its table. */
#define ROSE_QUANT_LEVEL(table)                                                                    \
    ROSE_QUANT_TYPE(q8_0, ROSE_Q8_0)                                                               \
    ROSE_QUANT_TYPE(q4_0, ROSE_Q4_0)                                                               \
    ROSE_QUANT_TYPE(q4_1, ROSE_Q4_1)                                                               \
    ROSE_QUANT_TYPE(q4_k, ROSE_Q4_K)                                                               \
    ROSE_QUANT_TYPE(q6_k, ROSE_Q6_K)                                                               \
    const rose_quant_kernels table = ROSE_QUANT_TABLE;

#endif
