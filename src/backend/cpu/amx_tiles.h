/* backend/cpu/amx_tiles.h - tile configuration and conversion to tiles, for the *_amx.c files. A
 * tile is 16 rows of 64 bytes: 32 bf16 of a row of activations, or 16 outputs of 32 k in pairs.
 * Include after vec_avx512.h.
 *
 * The configuration is per-thread state. It is loaded per call and released at its end: a release
 * lets the system switch threads without saving 8 KiB, and both cost tens of cycles beside a call
 * of many thousands. */
#ifndef ROSE_BACKEND_CPU_AMX_TILES_H
#define ROSE_BACKEND_CPU_AMX_TILES_H

#include <stdint.h>

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 1024 /* 16 rows of 64 bytes */
};

/* Operand of LDTILECFG. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "LDTILECFG reads 64 bytes");

/* The compiler's tile intrinsics do not say that they read memory. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

/* Tiles 0 .. n_short-1 have `rows` rows, the others 16. */
static inline void tiles_configure(uint32_t rows, int n_short)
{
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)(i < n_short ? rows : TILE_ROWS);
    }
    MEMORY_BARRIER();
    _tile_loadconfig(&c);
}

/* 32 floats that are bf16 values already, as bf16; those from n on are zero. */
ROSE_INLINE void tile_row_store(uint8_t *out, const float *x, uint32_t n)
{
    if (n >= 32) { /* 64-bit parts of lo and hi alternate after the packing */
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        const __m512i packed = _mm512_packus_epi32(_mm512_srli_epi32(v_bits(v_load(x)), 16),
                                                   _mm512_srli_epi32(v_bits(v_load(x + 16)), 16));
        _mm512_storeu_si512(out, _mm512_permutexvar_epi64(order, packed));
        return;
    }
    vec16 lo = v_load_n(x, n), hi = v_load_n(x + 16, n > 16 ? n - 16 : 0);
    __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bits(lo), 16));
    __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bits(hi), 16));
    _mm256_storeu_si256((__m256i_u *)out, a);
    _mm256_storeu_si256((__m256i_u *)(out + 32), b);
}

#endif
