/* tests/backend/amx_emulation.h - AMX tile instructions in plain C, as Intel's manual defines them,
 * so that matmul_amx.c runs (and is checked for indexing, not for hardware) on any CPU with
 * AVX-512. The whole tree is built with it forced in:
 *   make B=build/amx-emulation EXTRA_CFLAGS="-include tests/backend/amx_emulation.h" \
 *        build/amx-emulation/tests/backend/test_kernels
 * Files without AMX flags see only the macro ROSE_AMX_EMULATED. */
#ifndef AMX_EMULATION_H
#define AMX_EMULATION_H

#define ROSE_AMX_EMULATED 1

#if defined(__AMX_TILE__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static __thread struct {
    uint8_t rows[8], configured;
    uint8_t data[8][16][64];
} amx_state;

static inline void amx_loadconfig(const void *config)
{
    const uint8_t *c = config;
    memset(&amx_state, 0, sizeof amx_state);
    memcpy(amx_state.rows, c + 48, 8);
    amx_state.configured = c[0];
}

static inline void amx_release(void)
{
    memset(&amx_state, 0xff, sizeof amx_state);
    amx_state.configured = 0;
}

static inline void amx_fault_if_unconfigured(int tile)
{
    if (amx_state.configured != 1 || amx_state.rows[tile] == 0 || amx_state.rows[tile] > 16)
        __builtin_trap();
}

static inline void amx_zero(int tile)
{
    amx_fault_if_unconfigured(tile);
    memset(amx_state.data[tile], 0, sizeof amx_state.data[tile]);
}

static inline void amx_load(int tile, const void *base, size_t stride)
{
    amx_zero(tile);
    for (uint32_t r = 0; r < amx_state.rows[tile]; r++)
        memcpy(amx_state.data[tile][r], (const uint8_t *)base + r * stride, 64);
}

static inline void amx_store(int tile, void *base, size_t stride)
{
    amx_fault_if_unconfigured(tile);
    for (uint32_t r = 0; r < amx_state.rows[tile]; r++)
        memcpy((uint8_t *)base + r * stride, amx_state.data[tile][r], 64);
}

static inline float amx_bf16(const uint8_t *p)
{
    uint16_t b;
    memcpy(&b, p, sizeof b);
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The caller's thread has FTZ and DAZ set, as the instruction always does. */
static inline void amx_dpbf16(int c, int a, int b)
{
    amx_fault_if_unconfigured(c);
    for (uint32_t m = 0; m < amx_state.rows[c]; m++) {
        for (uint32_t n = 0; n < 16; n++) {
            float even = 0, odd = 0, sum;
            for (uint32_t k = 0; k < 16; k++) {
                const uint8_t *pa = &amx_state.data[a][m][4 * k],
                              *pb = &amx_state.data[b][k][4 * n];
                even = fmaf(amx_bf16(pa), amx_bf16(pb), even);
                odd = fmaf(amx_bf16(pa + 2), amx_bf16(pb + 2), odd);
            }
            memcpy(&sum, &amx_state.data[c][m][4 * n], sizeof sum);
            sum = sum + (even + odd);
            memcpy(&amx_state.data[c][m][4 * n], &sum, sizeof sum);
        }
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig         amx_loadconfig
#define _tile_release            amx_release
#define _tile_zero(t)            amx_zero(t)
#define _tile_loadd(t, base, s)  amx_load(t, base, s)
#define _tile_stored(t, base, s) amx_store(t, base, s)
#define _tile_dpbf16ps(c, a, b)  amx_dpbf16(c, a, b)

#endif
#endif
