/* model/format.c - see format.h. Every kind of block is taken apart by one short function, which
 * states where a block keeps its parts. */
#include "model/format.h"

#include <assert.h>
#include <string.h>

#include "model/convert.h"

enum { HALF = ROSE_GGML_GROUP / 2, GROUPS_OF_K = 8 /* in a block of 256 */ };

const rose_format_row rose_formats[] = {
    [ROSE_F32] = {"F32", "float32", 1, 4, 0, 0, false, 0},
    [ROSE_F16] = {"F16", "float16", 1, 2, 0, 0, false, 0},
    [ROSE_BF16] = {"BF16", "bfloat16", 1, 2, 0, 0, false, 0},
    [ROSE_I8] = {"int8", NULL, 1, 1, 0, 0, false, 0},
    [ROSE_Q8_0] = {"Q8_0", NULL, 32, 34, 32, 128, false, 0},
    [ROSE_Q4_0] = {"Q4_0", NULL, 32, 18, 32, 8, false, 0},
    [ROSE_Q4_1] = {"Q4_1", NULL, 32, 20, 32, 0, true, 0},
    [ROSE_Q5_0] = {"Q5_0", NULL, 32, 22, 32, 16, false, 0},
    [ROSE_Q5_1] = {"Q5_1", NULL, 32, 24, 32, 0, true, 0},
    [ROSE_Q4_K] = {"Q4_K", NULL, 256, 144, 32, 0, true, 0},
    [ROSE_Q5_K] = {"Q5_K", NULL, 256, 176, 32, 0, true, 0},
    [ROSE_Q6_K] = {"Q6_K", NULL, 256, 210, 16, 32, false, 208},
};

uint64_t rose_values_bytes(rose_format f, uint64_t n)
{
    assert(n % rose_formats[f].block == 0);
    return n / rose_formats[f].block * rose_formats[f].bytes;
}

bool rose_format_named(const char *name, rose_format *out)
{
    for (int f = 0; f < ROSE_N_FORMATS; f++) {
        if (f == ROSE_I8 || strcmp(rose_formats[f].name, name) != 0) continue;
        *out = (rose_format)f;
        return true;
    }
    return false;
}

static uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* 16 bytes hold 32 nibbles: the low ones are values 0 .. 15. */
static void read_nibbles(uint8_t *q, const uint8_t *p)
{
    for (int i = 0; i < HALF; i++) {
        q[i] = p[i] & 15;
        q[i + HALF] = p[i] >> 4;
    }
}

/* Bit i of 32 bits is the fifth bit of value i. */
static void add_fifth_bits(uint8_t *q, const uint8_t *p)
{
    for (int i = 0; i < ROSE_GGML_GROUP; i++)
        q[i] |= (uint8_t)((p[i / 8] >> i % 8 & 1) << 4);
}

/* Blocks of 32 values: the scale d, then the minimum m (Q4_1 and Q5_1), then the fifth bits (Q5_0
 * and Q5_1), then nibbles, or bytes (Q8_0). */
static void read_block32(rose_ggml_group *g, rose_format t, const uint8_t *p)
{
    const bool has_min = rose_formats[t].min;
    const bool five = t == ROSE_Q5_0 || t == ROSE_Q5_1;
    g->d = read_u16(p);
    p += 2;
    if (has_min) g->m = read_u16(p);
    p += has_min ? 2 : 0;
    if (t == ROSE_Q8_0) {
        for (int i = 0; i < ROSE_GGML_GROUP; i++)
            g->q[i] = p[i] ^ 0x80;
        return;
    }
    read_nibbles(g->q, p + (five ? 4 : 0));
    if (five) add_fifth_bits(g->q, p);
}

/* Twelve bytes hold eight 6-bit factors s and eight t: bytes 0-3 have s 0-3 and bytes 4-7 t 0-3 in
 * their low six bits; bytes 8-11 have the low nibbles of s and t 4-7, whose high two bits are the
 * high two bits of bytes 0-3 and 4-7. */
static void read_factors(rose_ggml_group *g, const uint8_t *p, uint32_t j)
{
    if (j < 4) {
        g->scale[0] = (int8_t)(p[j] & 63);
        g->min = p[j + 4] & 63;
    } else {
        g->scale[0] = (int8_t)((p[j + 4] & 15) | (p[j - 4] >> 6) << 4);
        g->min = (uint8_t)(p[j + 4] >> 4 | (p[j] >> 6) << 4);
    }
    g->scale[1] = g->scale[0];
}

/* Q4_K: d, m, 12 bytes of factors, then nibbles: bytes 32 i .. 32 i + 31 hold groups 2 i (low) and
 * 2 i + 1 (high). Q5_K has 32 bytes before the nibbles: bit j of byte i is the fifth bit of value i
 * of group j. */
static void read_q45_k(rose_ggml_group *g, bool five, const uint8_t *p, uint32_t j)
{
    const uint8_t *nibbles = p + 16 + (five ? 32 : 0) + j / 2 * ROSE_GGML_GROUP;
    g->d = read_u16(p);
    g->m = read_u16(p + 2);
    read_factors(g, p + 4, j);
    for (int i = 0; i < ROSE_GGML_GROUP; i++) {
        g->q[i] = nibbles[i] >> (j % 2 * 4) & 15;
        if (five) g->q[i] |= (uint8_t)((p[16 + i] >> j & 1) << 4);
    }
}

/* Q6_K: 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 factors, d. Each half of the
 * block has 64 bytes of nibbles (low: groups 0 and 1 of the half, high: groups 2 and 3) and 32
 * bytes of pairs (the bits 2 j and 2 j + 1 belong to group j of the half). */
static void read_q6_k(rose_ggml_group *g, const uint8_t *p, uint32_t group)
{
    const uint32_t half = group / 4, j = group % 4;
    const uint8_t *low = p + half * 64 + j % 2 * ROSE_GGML_GROUP;
    const uint8_t *high = p + 128 + half * 32;
    for (int i = 0; i < ROSE_GGML_GROUP; i++)
        g->q[i] = (uint8_t)((low[i] >> (j / 2 * 4) & 15) | (high[i] >> 2 * j & 3) << 4);
    for (int i = 0; i < 2; i++)
        memcpy(&g->scale[i], p + 192 + 2 * group + (uint32_t)i, 1);
    g->d = read_u16(p + rose_formats[ROSE_Q6_K].scale_at);
}

void rose_ggml_group_read(rose_ggml_group *out, rose_format t, const void *blocks, uint64_t g)
{
    const uint32_t n = rose_formats[t].block / ROSE_GGML_GROUP; /* groups of a block */
    assert(n == 1 || n == GROUPS_OF_K);
    const uint8_t *p = (const uint8_t *)blocks + rose_values_bytes(t, g / n * n * ROSE_GGML_GROUP);
    const uint32_t j = (uint32_t)(g % n);
    *out = (rose_ggml_group){.scale = {1, 1}, .min = 1};
    if (t == ROSE_Q6_K)
        read_q6_k(out, p, j);
    else if (n == GROUPS_OF_K)
        read_q45_k(out, t == ROSE_Q5_K, p, j);
    else
        read_block32(out, t, p);
}

void rose_ggml_group_f32(float *out, rose_format t, const void *blocks, uint64_t g)
{
    const int bias = rose_formats[t].zero;
    const bool has_min = rose_formats[t].min;
    rose_ggml_group u;
    rose_ggml_group_read(&u, t, blocks, g);
    const float d = rose_f16_to_f32(u.d), m = rose_f16_to_f32(u.m) * (float)u.min;
    const bool subtract = rose_formats[t].block > ROSE_GGML_GROUP;
    for (int i = 0; i < ROSE_GGML_GROUP; i++) {
        const float v = d * (float)u.scale[i / HALF] * (float)(u.q[i] - bias);
        out[i] = !has_min ? v : subtract ? v - m : v + m;
    }
}
