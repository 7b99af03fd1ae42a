/* tests/backend/kernels_data.h - seeded inputs, guarded buffers and bit comparison for the kernel
 * tests. Every float kind stresses a rule: overflow, underflow (FTZ), signed zero, NaN. */
#ifndef KERNELS_DATA_H
#define KERNELS_DATA_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"
#include "backend/rotary.h"

typedef enum data_kind {
    DATA_NORMAL,
    DATA_WIDE,     /* normal times 2^-30 .. 2^30 */
    DATA_TINY,     /* around 2^-64: products on both sides of the smallest normal; denormals */
    DATA_LARGE,    /* products overflow, sums meet inf - inf */
    DATA_POSITIVE, /* no cancellation: the largest rounding error in a row */
    DATA_SPECIAL,  /* normal with -0, denormals, inf and NaN sprinkled in */
    N_DATA_KINDS
} data_kind;

static const char *const g_kind_names[N_DATA_KINDS] = {"normal", "wide",     "tiny",
                                                       "large",  "positive", "special"};

static uint64_t g_rng;

static inline uint64_t rng_next(void) /* splitmix64 */
{
    uint64_t z = (g_rng += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint32_t rng_below(uint32_t n)
{
    return (uint32_t)((rng_next() >> 32) * n >> 32);
}

static inline float rng_uniform(void)
{
    return (float)(rng_next() >> 40) * 0x1p-24f;
}

static inline float rng_normal(void) /* sum of uniforms: near enough, and no libm */
{
    float s = 0.0f;
    for (int i = 0; i < 6; i++)
        s += rng_uniform();
    return (s - 3.0f) * 1.4142135f;
}

static inline float rng_special(void)
{
    static const uint32_t bits[] = {0x80000000u, 0x00000001u, 0x80012345u, 0x007fffffu, 0x7f800000u,
                                    0xff800000u, 0x7fc00001u, 0xffa00000u, 0x7f7fffffu};
    return rose_f32_from_bits(bits[rng_below(sizeof bits / sizeof bits[0])]);
}

static inline float rng_value(data_kind kind)
{
    float x = rng_normal();
    switch (kind) {
    case DATA_WIDE:
        return x * ldexpf(1.0f, (int)rng_below(61) - 30);
    case DATA_TINY:
        return rng_below(16) == 0 ? ldexpf(x, -130) : ldexpf(x, (int)rng_below(14) - 70);
    case DATA_LARGE:
        return x * (rng_below(4) == 0 ? 1e38f : 1e17f);
    case DATA_POSITIVE:
        return x < 0.0f ? -x : x;
    case DATA_SPECIAL:
        return rng_below(200) == 0 ? rng_special() : x;
    case DATA_NORMAL:
    case N_DATA_KINDS:
    default:
        return x;
    }
}

static inline void fill(float *x, size_t n, data_kind kind, bool bf16)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rose_round_if(bf16, rng_value(kind));
}

/* 64-byte aligned, `bytes` long with 64 guard bytes on both sides; all of it poisoned. */
enum { GUARD = 64, POISON = 0xA5 }; /* as a float: -2.9e-16, finite on purpose */

typedef struct guarded {
    uint8_t *base;
    size_t bytes;
} guarded;

static inline void *guarded_alloc(guarded *g, size_t bytes)
{
    size_t all = (bytes + 2 * GUARD + 63) / 64 * 64;
    g->bytes = bytes;
    g->base = aligned_alloc(64, all);
    if (g->base == NULL) {
        perror("guarded_alloc");
        exit(1);
    }
    memset(g->base, POISON, all);
    return g->base + GUARD;
}

static inline bool guarded_ok(const guarded *g)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (g->base[i] != POISON || g->base[GUARD + g->bytes + i] != POISON) return false;
    }
    return true;
}

/* Frees; false if a guard byte changed. */
static inline bool guarded_free(guarded *g)
{
    bool ok = guarded_ok(g);
    free(g->base);
    g->base = NULL;
    return ok;
}

/* Same bits, or NaN in both: which NaN comes out of an operation is not part of the contract. */
static inline bool same_float(float a, float b)
{
    return rose_f32_bits(a) == rose_f32_bits(b) || (isnan(a) && isnan(b));
}

/* Index of the first difference, n if none. */
static inline size_t first_difference(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!same_float(a[i], b[i])) return i;
    }
    return n;
}

/* Pack w[k][n] (row-major) into panels with zero padding. */
static inline void pack_panels(void *panels, rose_format type, const float *w, uint32_t k,
                               uint32_t n)
{
    memset(panels, 0, rose_panels_bytes(type, k, n));
    uint32_t k_pad = rose_round_up(k, ROSE_K_GROUP);
    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t j = 0; j < n; j++) {
            uint32_t p = j / ROSE_PANEL, l = j % ROSE_PANEL;
            size_t at = (size_t)p * k_pad * ROSE_PANEL;
            float x = w[(size_t)i * n + j];
            if (type == ROSE_I8)
                ((int8_t *)panels)[at + (size_t)i * ROSE_PANEL + l] = (int8_t)x;
            else if (type == ROSE_BF16)
                ((uint16_t *)panels)[at + ((size_t)(i / 2) * ROSE_PANEL + l) * 2 + i % 2] =
                    rose_bf16_from_f32(x);
            else
                ((float *)panels)[at + (size_t)i * ROSE_PANEL + l] = x;
        }
    }
}

#endif
