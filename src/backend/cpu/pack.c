/* backend/cpu/pack.c - see pack.h. Blocks of 32 k by 16 n go through a small fp32 buffer. Reads
 * stay within a few rows of the file, and writes are whole cache lines. Rounding is integer
 * arithmetic, so the result does not depend on the thread's floating-point mode. */
#include "backend/cpu/pack.h"

#include <assert.h>
#include <string.h>

#include "backend/cpu/numerics.h"
#include "backend/cpu/quant.h"
#include "model/convert.h"

enum { BLOCK = ROSE_K_GROUP * ROSE_PANEL };

#define FLT_MAX_BITS 0x7F7FFFFFu
#define SMALLEST                                                                                   \
    1e-30f /* an output whose weights are all smaller than this becomes 0, so that 127 / x is      \
            * finite */

/* rose_f32_to_bf16 in a form that the compiler vectorises. */
static inline uint16_t round_bits(uint32_t u)
{
    uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    uint32_t quiet = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

/* A block reads 16 or 32 rows of the file, more streams than the hardware prefetcher follows. */
static void prefetch_ahead(const rose_tensor *w, uint64_t element)
{
    enum { AHEAD = 512 }; /* bytes */
    const uint32_t block = rose_formats[w->dtype].block;
    uintptr_t at =
        (uintptr_t)w->data + rose_values_bytes(w->dtype, element / block * block) + AHEAD;
    __builtin_prefetch((const void *)at); /* may lie past the end: ignored */
}

/* block[k][16] = w[k0 + k][n0 + ...], zero outside the matrix. */
static void read_block(float *block, const rose_tensor *w, uint32_t k, uint32_t n, bool transposed,
                       uint32_t k0, uint32_t n0)
{
    const uint32_t n_k = k - k0 < ROSE_K_GROUP ? k - k0 : ROSE_K_GROUP;
    const uint32_t n_n = n - n0 < ROSE_PANEL ? n - n0 : ROSE_PANEL;

    if (n_k < ROSE_K_GROUP || n_n < ROSE_PANEL) memset(block, 0, BLOCK * sizeof *block);
    if (!transposed) {
        for (uint32_t i = 0; i < n_k; i++) {
            uint64_t first = (uint64_t)(k0 + i) * n + n0;
            prefetch_ahead(w, first);
            rose_tensor_read_f32(w, first, n_n, block + i * ROSE_PANEL);
        }
        return;
    }
    for (uint32_t j = 0; j < n_n; j++) {
        float row[ROSE_K_GROUP];
        uint64_t first = (uint64_t)(n0 + j) * k + k0;
        prefetch_ahead(w, first);
        prefetch_ahead(w, first + ROSE_PANEL);
        rose_tensor_read_f32(w, first, n_k, row);
        for (uint32_t i = 0; i < n_k; i++)
            block[i * ROSE_PANEL + j] = row[i];
    }
}

/* Writes a block [32][16] of fp32 as [16][16][2] bf16: neighbours in k become neighbours in
 * memory. */
static void write_block_bf16(uint16_t *out, const float *block)
{
    uint32_t bits[BLOCK];
    memcpy(bits, block, sizeof bits);
    for (uint32_t pair = 0; pair < ROSE_K_GROUP / 2; pair++) {
        const uint32_t *even = bits + 2 * pair * ROSE_PANEL;
        const uint32_t *odd = even + ROSE_PANEL;
        uint32_t joined[ROSE_PANEL];
        for (uint32_t j = 0; j < ROSE_PANEL; j++)
            joined[j] = (uint32_t)round_bits(even[j]) | (uint32_t)round_bits(odd[j]) << 16;
        memcpy(out + pair * 2 * ROSE_PANEL, joined, sizeof joined); /* little-endian pairs */
    }
}

/* Returns a bf16 value unchanged, except that a NaN becomes quiet, as it does in the conversion
 * to fp32. */
static inline uint16_t quiet_bf16(uint16_t h)
{
    return (uint16_t)(h | ((h & 0x7FFFu) > 0x7F80u ? 0x40u : 0u));
}

/* Moves a whole block of bf16 to [16][16][2]. The input is [32][16] or, transposed, [16][32], in
 * rows that are ld elements apart. This takes a third of the time of converting through fp32. */
static void move_block_bf16(uint16_t *out, const uint8_t *in, size_t ld, bool transposed)
{
    _Static_assert(ROSE_K_GROUP == 2 * ROSE_PANEL, "pairs and outputs of a block are as many");
    uint32_t joined[BLOCK / 2];
    for (uint32_t i = 0; i < ROSE_PANEL; i++) {
        uint16_t a[ROSE_K_GROUP];
        if (transposed) { /* 32 k of output i */
            uint32_t pairs[ROSE_PANEL];
            memcpy(a, in + i * ld, sizeof a);
            for (uint32_t j = 0; j < ROSE_K_GROUP; j++)
                a[j] = quiet_bf16(a[j]);
            memcpy(pairs, a, sizeof pairs); /* little-endian, as the panels are */
            for (uint32_t pair = 0; pair < ROSE_PANEL; pair++)
                joined[pair * ROSE_PANEL + i] = pairs[pair];
        } else { /* k = 2 i and 2 i + 1 of all outputs */
            memcpy(a, in + 2 * i * ld, ROSE_PANEL * sizeof *a);
            memcpy(a + ROSE_PANEL, in + (2 * i + 1) * ld, ROSE_PANEL * sizeof *a);
            for (uint32_t j = 0; j < ROSE_PANEL; j++)
                joined[i * ROSE_PANEL + j] =
                    (uint32_t)quiet_bf16(a[j]) | (uint32_t)quiet_bf16(a[ROSE_PANEL + j]) << 16;
        }
    }
    memcpy(out, joined, sizeof joined);
}

/* State of a pass over the blocks of a matrix, which packs them or finds the largest values for
 * int8. */
typedef struct packing {
    void *panels;
    rose_format type;
    const rose_tensor *w;
    uint32_t k, n, k_pad;
    bool transposed;
    float *largest; /* [n] int8: first the largest magnitudes, then the scales */
    bool finite;
} packing;

typedef void block_fn(packing *s, uint32_t k0, uint32_t p, const float *block);

/* Compares magnitudes as integers, which have the same order as the values. Bits above those of
 * FLT_MAX are infinity or NaN. */
static void keep_largest(packing *s, uint32_t p, const uint32_t *bits)
{
    for (uint32_t j = 0; j < ROSE_PANEL && p * ROSE_PANEL + j < s->n; j++) {
        float x;
        memcpy(&x, bits + j, sizeof x);
        if (bits[j] > FLT_MAX_BITS)
            s->finite = false;
        else if (x > s->largest[p * ROSE_PANEL + j])
            s->largest[p * ROSE_PANEL + j] = x;
    }
}

static void block_largest(packing *s, uint32_t k0, uint32_t p, const float *block)
{
    int32_t bits[BLOCK], top[ROSE_PANEL] = {0};
    (void)k0;
    memcpy(bits, block, sizeof bits);
    for (uint32_t i = 0; i < BLOCK; i += ROSE_PANEL)
        for (uint32_t j = 0; j < ROSE_PANEL; j++) {
            int32_t x = bits[i + j] & 0x7FFFFFFF;
            top[j] = x > top[j] ? x : top[j];
        }
    uint32_t out[ROSE_PANEL];
    memcpy(out, top, sizeof out);
    keep_largest(s, p, out);
}

/* Finds the largest values of a whole block in a bf16 file: rows of 16 outputs, or of 32 k of
 * one output. */
static void block_largest_bf16(packing *s, uint32_t p, const uint8_t *in, size_t ld)
{
    uint32_t out[ROSE_PANEL] = {0};
    int16_t top[ROSE_PANEL] = {0}, x[ROSE_PANEL];
    const uint32_t n_rows = s->transposed ? ROSE_PANEL : ROSE_K_GROUP;
    const uint32_t parts = s->transposed ? 2 : 1;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (s->transposed) memset(top, 0, sizeof top);
        for (uint32_t part = 0; part < parts; part++) {
            memcpy(x, in + i * ld + part * sizeof x, sizeof x);
            for (uint32_t j = 0; j < ROSE_PANEL; j++) {
                int16_t m = (int16_t)(x[j] & 0x7FFF);
                top[j] = m > top[j] ? m : top[j];
            }
        }
        if (!s->transposed) continue;
        for (uint32_t j = 0; j < ROSE_PANEL; j++)
            if ((uint32_t)top[j] << 16 > out[i]) out[i] = (uint32_t)top[j] << 16;
    }
    for (uint32_t j = 0; j < ROSE_PANEL && !s->transposed; j++)
        out[j] = (uint32_t)top[j] << 16;
    keep_largest(s, p, out);
}

/* q = the integer nearest to w * inverse, ties to even, by adding 1.5 * 2^23, whose last bit is
 * worth 1. The product is at most 127.00002. The compiler vectorises this form; rintf would be a
 * call. */
static void write_block_i8(int8_t *out, const float *block, const float *inverse)
{
    for (uint32_t i = 0; i < BLOCK; i += ROSE_PANEL) {
        float sum[ROSE_PANEL];
        uint32_t bits[ROSE_PANEL];
        for (uint32_t j = 0; j < ROSE_PANEL; j++)
            sum[j] = block[i + j] * inverse[j] + 12582912.0f;
        memcpy(bits, sum, sizeof bits);
        for (uint32_t j = 0; j < ROSE_PANEL; j++)
            out[i + j] = (int8_t)(uint8_t)bits[j]; /* two's complement in the low bits */
    }
}

static void block_write(packing *s, uint32_t k0, uint32_t p, const float *block)
{
    const size_t at = ((size_t)p * s->k_pad + k0) * ROSE_PANEL; /* elements */
    const uint32_t n_n = s->n - p * ROSE_PANEL < ROSE_PANEL ? s->n - p * ROSE_PANEL : ROSE_PANEL;
    float inverse[ROSE_PANEL] = {0};
    int8_t *out = (int8_t *)s->panels + at;

    if (s->type == ROSE_F32) {
        memcpy((float *)s->panels + at, block, BLOCK * sizeof *block);
        return;
    }
    if (s->type == ROSE_BF16) {
        write_block_bf16((uint16_t *)s->panels + at, block);
        return;
    }
    for (uint32_t j = 0; j < n_n; j++)
        if (s->largest[p * ROSE_PANEL + j] >= SMALLEST)
            inverse[j] = 127.0f / s->largest[p * ROSE_PANEL + j];
    write_block_i8(out, block, inverse);
}

/* Handles a whole block of a bf16 file without conversion to fp32. It moves the block or, for
 * int8, finds its largest values. */
static void whole_block_bf16(packing *s, uint32_t k0, uint32_t p)
{
    const uint64_t n0 = (uint64_t)p * ROSE_PANEL, size = sizeof(uint16_t);
    const uint64_t first = s->transposed ? n0 * s->k + k0 : (uint64_t)k0 * s->n + n0;
    const uint64_t ld = (s->transposed ? s->k : s->n) * size;
    const uint8_t *in = (const uint8_t *)s->w->data + first * size;

    for (uint32_t i = 0; i < (s->transposed ? ROSE_PANEL : ROSE_K_GROUP); i++)
        prefetch_ahead(s->w, first + i * (ld / size));
    if (s->type == ROSE_I8)
        block_largest_bf16(s, p, in, ld);
    else
        move_block_bf16((uint16_t *)s->panels + ((size_t)p * s->k_pad + k0) * ROSE_PANEL, in, ld,
                        s->transposed);
}

/* Visits the blocks along the rows of the file, for either orientation of the matrix. */
static void walk(packing *s, uint32_t p0, uint32_t p1, block_fn *fn)
{
    const bool moves = s->w->dtype == ROSE_BF16 &&
                       (s->type == ROSE_BF16 || (s->type == ROSE_I8 && fn == block_largest));
    const uint32_t n_outer = s->transposed ? p1 - p0 : s->k_pad / ROSE_K_GROUP;
    const uint32_t n_inner = s->transposed ? s->k_pad / ROSE_K_GROUP : p1 - p0;
    float block[BLOCK];

    for (uint32_t i = 0; i < n_outer; i++) {
        for (uint32_t j = 0; j < n_inner; j++) {
            uint32_t k0 = (s->transposed ? j : i) * ROSE_K_GROUP;
            uint32_t p = p0 + (s->transposed ? i : j);
            if (moves && k0 + ROSE_K_GROUP <= s->k && (p + 1) * ROSE_PANEL <= s->n) {
                whole_block_bf16(s, k0, p);
                continue;
            }
            read_block(block, s->w, s->k, s->n, s->transposed, k0, p * ROSE_PANEL);
            fn(s, k0, p, block);
        }
    }
}

bool rose_pack_panels(void *panels, float *scale, rose_format type, const rose_tensor *w,
                      uint32_t k, uint32_t n, bool transposed, uint32_t p0, uint32_t p1)
{
    packing s = {.panels = panels, .type = type, .w = w, .k = k, .n = n};
    const uint32_t end = p1 * ROSE_PANEL < n ? p1 * ROSE_PANEL : n;
    s.k_pad = (k + ROSE_K_GROUP - 1) / ROSE_K_GROUP * ROSE_K_GROUP;
    s.transposed = transposed;
    s.largest = scale;
    s.finite = true;

    if (rose_format_is_quant(type)) {
        assert(transposed);
        rose_quant_pack(panels, type, w, k, n, p0, p1);
        return true;
    }
    if (type == ROSE_I8) {
        for (uint32_t j = p0 * ROSE_PANEL; j < end; j++)
            scale[j] = 0.0f;
        walk(&s, p0, p1, block_largest);
        if (!s.finite) return false;
    }
    walk(&s, p0, p1, block_write);
    for (uint32_t j = p0 * ROSE_PANEL; type == ROSE_I8 && j < end; j++)
        scale[j] = scale[j] >= SMALLEST ? scale[j] / 127.0f : 0.0f;
    return true;
}

void rose_pack_bf16(uint16_t *out, const rose_tensor *t, uint64_t first, uint64_t count)
{
    float part[BLOCK];
    for (uint64_t done = 0; done < count; done += BLOCK) {
        uint64_t n = count - done < BLOCK ? count - done : BLOCK;
        uint32_t bits[BLOCK];
        rose_tensor_read_f32(t, first + done, n, part);
        memcpy(bits, part, n * sizeof *bits);
        for (uint64_t i = 0; i < n; i++)
            out[done + i] = round_bits(bits[i]);
    }
}

static void quant_row(float *out, const void *panel, rose_format type, uint32_t k, uint32_t column)
{
    const bool has_min = rose_quant_layout_of(type).has_min;
    for (uint32_t i = 0; i < k / ROSE_QUANT_K; i++) {
        rose_quant_tile w;
        rose_quant_tile_read(&w, panel, type, k / ROSE_QUANT_K, i, column, column + 1);
        for (uint32_t j = 0; j < ROSE_QUANT_K; j++)
            *out++ = rose_quant_weight(&w, has_min, j, column);
    }
}

void rose_panel_row(float *out, const void *panels, const float *scale, rose_format type,
                    uint32_t k, uint32_t n)
{
    const uint32_t k_pad = (k + ROSE_K_GROUP - 1) / ROSE_K_GROUP * ROSE_K_GROUP;
    const size_t panel = (size_t)(n / ROSE_PANEL) * k_pad * ROSE_PANEL;
    const uint32_t column = n % ROSE_PANEL;

    if (rose_format_is_quant(type)) {
        quant_row(out, (const uint8_t *)panels + n / ROSE_PANEL * rose_panel_bytes(type, k), type,
                  k, column);
        return;
    }
    if (type == ROSE_I8) {
        const int8_t *w = (const int8_t *)panels + panel + column;
        for (uint32_t i = 0; i < k; i++)
            out[i] = rose_round_bf16((float)w[(size_t)i * ROSE_PANEL] * scale[n]);
        return;
    }
    if (type == ROSE_F32) {
        const float *w = (const float *)panels + panel + column;
        for (uint32_t i = 0; i < k; i++)
            out[i] = w[(size_t)i * ROSE_PANEL];
        return;
    }
    const uint16_t *w = (const uint16_t *)panels + panel + 2 * column;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t bits = (uint32_t)w[(size_t)(i / 2) * 2 * ROSE_PANEL + i % 2] << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}
