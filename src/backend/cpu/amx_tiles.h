/* backend/cpu/amx_tiles.h - sets up the AMX tile registers and converts data to tiles, for the
 * *_amx.c files. Include after vec_avx512.h.
 *
 * A tile is 16 rows of 64 bytes. A row of activations holds 32 bf16 values. A row of weights
 * holds, for each of 16 outputs, the weights of two consecutive k.
 *
 * The tile configuration belongs to the thread. Each call loads it at the start and releases it
 * at the end. After the release the system can switch threads without saving 8 KiB of tiles.
 * Load and release cost tens of cycles; a call takes many thousands. */
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

/* The compiler's tile intrinsics do not say that they read memory, so this barrier tells it. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

/* Configures tiles 0 .. n_short-1 with `rows` rows and all other tiles with 16. */
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

/* Writes 32 floats, whose values bf16 holds exactly, as bf16. Values from index n on are written
 * as zero. */
ROSE_INLINE void tile_row_store(uint8_t *out, const float *x, uint32_t n)
{
    if (n >= 32) { /* the packing instruction interleaves 64-bit parts of lo and hi; this
                    * permutation restores their order */
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
