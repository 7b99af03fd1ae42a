/* backend/cpu/quant_pack.c - from GGUF's blocks to panels and back; see quant.h. Integers and fp16
 * bits only move: nothing is rounded. */
#include <assert.h>
#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/quant.h"
#include "model/convert.h"
#include "model/format.h"

_Static_assert((int)ROSE_QUANT_K == (int)ROSE_GGML_GROUP, "a tile is a group of each output");

size_t rose_quant_panel_bytes(rose_format t, uint32_t k_pad)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    const size_t tiles = k_pad / ROSE_QUANT_K;
    const size_t bytes = tiles * (l.quants + l.scales) + tiles / ROSE_SUPER_TILES * l.supers;
    return (bytes + 63) / 64 * 64;
}

/* Where byte k of output lane lies in a tile of Q8_0, and nibble k (below 16: the low one). */
static inline size_t byte_at(uint32_t k, uint32_t lane)
{
    return (size_t)k / 4 * 64 + lane * 4 + k % 4;
}

/* ---- packing ---- */

static void write_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v); /* little-endian, as all CPUs that we build for */
}

/* The bytes of one output, four to a vector. */
static void write_bytes(uint8_t *tile, uint32_t lane, const uint8_t *bytes, uint32_t n)
{
    for (uint32_t k = 0; k < n; k += 4)
        memcpy(tile + byte_at(k, lane), bytes + k, 4);
}

static void write_quants(uint8_t *tile, rose_format t, uint32_t lane, const uint8_t *q)
{
    uint8_t nibbles[16], pairs[8] = {0};
    for (uint32_t k = 0; k < 16; k++)
        nibbles[k] = (uint8_t)((q[k] & 15) | q[k + 16] << 4);
    write_bytes(tile, lane, nibbles, 16);
    if (t != ROSE_Q6_K) return;
    for (uint32_t k = 0; k < ROSE_QUANT_K; k++)
        pairs[k / 16 * 4 + k % 4] |= (uint8_t)(q[k] >> 4 << k % 16 / 4 * 2);
    write_bytes(tile + 256, lane, pairs, 8);
}

static void write_scales(uint8_t *scales, uint8_t *supers, rose_format t, uint32_t lane,
                         const rose_ggml_group *g)
{
    write_u16(supers + 2 * lane, g->d);
    if (t == ROSE_Q4_K) write_u16(supers + 32 + 2 * lane, g->m);
    scales[lane] = (uint8_t)g->scale[0];
    scales[16 + lane] = t == ROSE_Q4_K ? g->min : (uint8_t)g->scale[1];
}

/* A panel to be written; see quant.h. */
typedef struct target {
    uint8_t *quants, *scales, *supers;
    uint32_t n_tiles;
} target;

/* Packs output `lane` of a panel. The groups of the output begin at group `first` of w. */
static void pack_lane(const target *to, rose_format type, uint32_t lane, const rose_tensor *w,
                      uint64_t first)
{
    const rose_quant_layout l = rose_quant_layout_of(type);
    for (uint32_t i = 0; i < to->n_tiles; i++) {
        rose_ggml_group g;
        rose_ggml_group_read(&g, w->dtype, w->data, first + i);
        write_quants(to->quants + (size_t)i * l.quants, type, lane, g.q);
        write_scales(to->scales + (size_t)i * l.scales,
                     to->supers + (size_t)i / ROSE_SUPER_TILES * l.supers, type, lane, &g);
    }
}

/* The same for a type (a constant) whose blocks hold fp16 factors and then the bytes of a lane in
 * the order of a tile, so that four move at a time. flip: sign bits that make integers unsigned. */
static inline void move_lane(const target *to, rose_format type, uint32_t lane,
                             const uint8_t *block, uint32_t flip)
{
    const rose_quant_layout l = rose_quant_layout_of(type);
    uint8_t *quants = to->quants + 4 * lane, *scales = to->scales + 2 * lane;
    for (uint32_t i = 0; i < to->n_tiles; i++, quants += l.quants, scales += l.scales) {
        for (uint32_t f = 0; f < l.scales; f += 32, block += 2)
            memcpy(scales + f, block, 2);
        for (uint32_t v = 0; v < l.quants; v += 64, block += 4) {
            uint32_t word;
            memcpy(&word, block, sizeof word);
            word ^= flip;
            memcpy(quants + v, &word, sizeof word);
        }
    }
}

static void pack_panel(const target *to, rose_format type, const rose_tensor *w, size_t row_bytes,
                       uint64_t row, uint32_t n_rows)
{
    for (uint32_t lane = 0; lane < n_rows; lane++, row++) {
        const uint8_t *blocks = (const uint8_t *)w->data + row * row_bytes;
        if (type == ROSE_Q8_0)
            move_lane(to, ROSE_Q8_0, lane, blocks, 0x80808080u);
        else if (type == ROSE_Q4_0)
            move_lane(to, ROSE_Q4_0, lane, blocks, 0);
        else if (type == ROSE_Q4_1)
            move_lane(to, ROSE_Q4_1, lane, blocks, 0);
        else
            pack_lane(to, type, lane, w, row * to->n_tiles);
    }
}

void rose_quant_pack(void *panels, rose_format type, const rose_tensor *w, uint32_t k, uint32_t n,
                     uint32_t p0, uint32_t p1)
{
    const rose_quant_layout l = rose_quant_layout_of(type);
    const size_t bytes = rose_quant_panel_bytes(type, k);
    const size_t row_bytes = (size_t)rose_values_bytes(w->dtype, k);
    assert(k % rose_formats[w->dtype].block == 0);

    for (uint32_t p = p0; p < p1; p++) {
        const uint32_t row = p * ROSE_PANEL;
        target to = {.quants = (uint8_t *)panels + p * bytes, .n_tiles = k / ROSE_QUANT_K};
        to.scales = to.quants + (size_t)to.n_tiles * l.quants;
        to.supers = to.scales + (size_t)to.n_tiles * l.scales;
        memset(to.quants, 0, bytes);
        pack_panel(&to, type, w, row_bytes, row, n - row < ROSE_PANEL ? n - row : ROSE_PANEL);
    }
}

/* ---- unpacking ---- */

static uint32_t read_quant(const uint8_t *tile, rose_format t, uint32_t k, uint32_t lane)
{
    const uint32_t half = k / 16, i = k % 16;
    if (t == ROSE_Q8_0) return tile[byte_at(k, lane)];
    const uint32_t low = (uint32_t)tile[byte_at(i, lane)] >> 4 * half & 15u;
    if (t != ROSE_Q6_K) return low;
    const uint32_t pairs = tile[256 + 64 * half + lane * 4 + i % 4];
    return low | (pairs >> i / 4 * 2 & 3u) << 4;
}

static float read_f16(const uint8_t *p, uint32_t lane)
{
    uint16_t h;
    memcpy(&h, p + 2 * lane, sizeof h);
    return rose_f16_to_f32(h);
}

static void read_scales(rose_quant_tile *out, const uint8_t *scales, const uint8_t *supers,
                        rose_format t, uint32_t lane)
{
    const bool k_type = t == ROSE_Q4_K || t == ROSE_Q6_K;
    const uint8_t *d = k_type ? supers : scales;
    out->d[lane] = read_f16(d, lane);
    out->m[lane] = rose_quant_layout_of(t).has_min ? read_f16(d + 32, lane) : 0.0f;
    out->s[0][lane] = out->s[1][lane] = 1.0f;
    if (t == ROSE_Q4_K) {
        out->d[lane] *= (float)scales[lane];
        out->m[lane] *= -(float)scales[16 + lane];
    }
    if (t == ROSE_Q6_K) {
        out->s[0][lane] = (float)(int8_t)scales[lane];
        out->s[1][lane] = (float)(int8_t)scales[16 + lane];
    }
}

void rose_quant_tile_read(rose_quant_tile *out, const void *panel, rose_format t, uint32_t n_tiles,
                          uint32_t tile, uint32_t lane0, uint32_t lane1)
{
    const rose_quant_layout l = rose_quant_layout_of(t);
    const rose_quant_panel p = rose_quant_panel_at(panel, t, n_tiles);
    const uint8_t *quants = p.quants + (size_t)tile * l.quants;
    for (uint32_t lane = lane0; lane < lane1; lane++) {
        for (uint32_t k = 0; k < ROSE_QUANT_K; k++)
            out->q[k][lane] = (int16_t)((int)read_quant(quants, t, k, lane) - l.bias);
        read_scales(out, p.scales + (size_t)tile * l.scales,
                    p.supers + (size_t)tile / ROSE_SUPER_TILES * l.supers, t, lane);
    }
}
