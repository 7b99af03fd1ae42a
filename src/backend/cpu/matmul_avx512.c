/* backend/cpu/matmul_avx512.c - GEMM with AVX-512. Up to 6 rows the limit is memory: the code of
 * matmul_simd.h reads one panel at a time, in order.
 *
 * With more rows the limit is the number of loads, because each FMA broadcasts an activation from
 * memory. A tile of 4 rows and two panels uses each broadcast twice. Its 8 even chains, 8 odd
 * chains and 8 sums take 24 of the 32 registers. k is taken in chunks: all tiles read the weights
 * of a chunk before the next chunk begins, so all but the first tile find them in L1. The sums wait
 * in memory. The first tile prefetches one panel and the second tile the other panel. If the first
 * tile prefetched both, memory would rest during the second tile.
 *
 * Speed over one panel at a time on 2 cores of Zen 5 (2026-11-24): 1.08 with 8 rows, 1.13 with
 * 16, 1.11 with 512. FMA reaches 0.92 of its peak. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512F__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/matmul_simd.h"

enum { FEW_ROWS = 6, TILE_ROWS = 4, BLOCK_ROWS = 64, CHUNK_K = 128 };

/* A chunk of k for a tile, of two panels. */
typedef struct chunk {
    const uint8_t *w; /* of the first panel */
    size_t stride;    /* bytes of a panel */
    const float *x;
    size_t ldx;
    uint32_t n_k;
    intptr_t ahead; /* from w to the line to prefetch, in bytes */
    vec16 *sum;     /* [rows][2] */
} chunk;

/* Adds a chunk to the sums of n_rows rows. n_rows and fetch (prefetch weights) are constants. */
ROSE_INLINE void tile_chunk(const chunk *c, rose_format type, uint32_t n_rows, bool fetch)
{
    const size_t step = 2 * ROSE_PANEL * rose_format_size(type), stride = c->stride, ldx = c->ldx;
    const uint8_t *w = c->w;
    const float *x = c->x;
    vec16 acc[2 * TILE_ROWS];

    ROSE_UNROLL
    for (uint32_t i = 0; i < 2 * n_rows; i++)
        acc[i] = c->sum[i];
    for (uint32_t g = 0; g < c->n_k; g += ROSE_K_GROUP) {
        vec16 part[2][2 * TILE_ROWS]; /* the even chains, the odd chains */
        ROSE_UNROLL
        for (uint32_t i = 0; i < 2 * n_rows; i++)
            part[0][i] = part[1][i] = v_zero();
        for (uint32_t k = 0; k < ROSE_K_GROUP; k += 2, w += step, x += 2) {
            if (fetch) prefetch_at(w, c->ahead);
            ROSE_UNROLL
            for (uint32_t odd = 0; odd < 2; odd++) {
                const vec16 w0 = v_weights(w, type, odd), w1 = v_weights(w + stride, type, odd);
                ROSE_UNROLL
                for (uint32_t r = 0; r < n_rows; r++) {
                    const vec16 v = v_set1(x[r * ldx + odd]);
                    part[odd][2 * r] = v_fma(v, w0, part[odd][2 * r]);
                    part[odd][2 * r + 1] = v_fma(v, w1, part[odd][2 * r + 1]);
                }
            }
        }
        ROSE_UNROLL
        for (uint32_t i = 0; i < 2 * n_rows; i++)
            acc[i] = v_add(acc[i], v_add(part[0][i], part[1][i]));
    }
    ROSE_UNROLL
    for (uint32_t i = 0; i < 2 * n_rows; i++)
        c->sum[i] = acc[i];
}

/* More than FEW_ROWS rows, spread evenly over tiles, give tiles of 3 and 4 rows. */
ROSE_INLINE void tile_rows(const chunk *c, rose_format type, uint32_t n_rows, bool fetch)
{
    if (n_rows == 3)
        tile_chunk(c, type, 3, fetch);
    else
        tile_chunk(c, type, 4, fetch);
}

/* Multiplies rows m .. m + rows, more than FEW_ROWS and at most BLOCK_ROWS, with the panels p and
 * p + 1. */
ROSE_INLINE void two_panels(const rose_matmul *a, rose_format type, uint32_t m, uint32_t rows,
                            uint32_t p)
{
    const size_t k_bytes = ROSE_PANEL * rose_format_size(type), stride = a->k_pad * k_bytes;
    const uint32_t n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    vec16 sum[2 * BLOCK_ROWS];
    chunk c = {.w = (const uint8_t *)a->w + p * stride, .stride = stride, .ldx = a->ldx};

    for (uint32_t i = 0; i < 2 * rows; i++)
        sum[i] = v_zero();
    for (uint32_t k = 0; k < a->k_pad; k += c.n_k, c.w += c.n_k * k_bytes) {
        c.n_k = a->k_pad - k < CHUNK_K ? a->k_pad - k : CHUNK_K;
        c.ahead = ROSE_PREFETCH_BYTES;
        if (k * k_bytes + ROSE_PREFETCH_BYTES >= stride) c.ahead += (intptr_t)stride;
        for (uint32_t t = 0; t < n_tiles; t++) {
            const uint32_t r = rows * t / n_tiles, end = rows * (t + 1) / n_tiles;
            c.x = a->x + (m + r) * a->ldx + k;
            c.sum = sum + 2 * r;
            if (t == 1) c.ahead += (intptr_t)stride;
            if (t < 2)
                tile_rows(&c, type, end - r, true);
            else
                tile_rows(&c, type, end - r, false);
        }
    }
    for (uint32_t i = 0; i < 2 * rows; i++)
        finish_outputs(a, sum[i], m + i / 2, (p + i % 2) * ROSE_PANEL);
}

ROSE_INLINE void matmul_any(const rose_matmul *a, rose_format type, uint32_t p0, uint32_t p1)
{
    const uint64_t rows = a->m_rows, n = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (; rows > FEW_ROWS && p1 - p0 >= 2; p0 += 2)
        for (uint64_t b = 0; b < n; b++) {
            const uint32_t m = (uint32_t)(rows * b / n), end = (uint32_t)(rows * (b + 1) / n);
            two_panels(a, type, m, end - m, p0);
        }
    matmul_panels(a, type, p0, p1, 8);
}

ROSE_MATMUL(rose_matmul_f32_avx512, matmul_any(a, ROSE_F32, p0, p1))
ROSE_MATMUL(rose_matmul_bf16_avx512, matmul_any(a, ROSE_BF16, p0, p1))
ROSE_MATMUL(rose_matmul_i8_avx512, matmul_any(a, ROSE_I8, p0, p1))

#endif
