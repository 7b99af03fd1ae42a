/* backend/cuda/wide_walk.h - the order in which the blocks of a persistent GEMM kernel take their
 * tiles. Plain C, for gemm_wide.cuh and tests/backend/test_walk.c.
 *
 * A tile is a part of the output matrix: some rows x some outputs. Tiles with the same rows form a
 * row of tiles, tiles with the same outputs a column. Row tiles are divided into groups that fit
 * the L2. Within a group the walk takes all row tiles of the first column, then all of the next
 * column. The blocks that run at the same time therefore work on few columns and many rows. The
 * rows stay in the L2, and the weights are read from memory once for each group. */
#ifndef ROSE_BACKEND_CUDA_WIDE_WALK_H
#define ROSE_BACKEND_CUDA_WIDE_WALK_H

#include <stdint.h>

#ifdef __CUDACC__
#define ROSE_BOTH static __host__ __device__ __forceinline__
#else
#define ROSE_BOTH static inline
#endif

/* Bytes of rows in a group. The L2 has 50 MB and also holds weights and outputs. */
enum { WIDE_GROUP_BYTES = 8 << 20 };

typedef struct wide_walk {
    uint32_t n;              /* number of tiles */
    uint32_t n_rows, n_cols; /* n = n_rows * n_cols */
    uint32_t group;          /* row tiles in a group; the last group may have fewer */
} wide_walk;

typedef struct wide_tile_place {
    uint32_t row, col; /* in tiles */
} wide_tile_place;

/* rows and n_out are at least 1. row_bytes: the size of one row of the batch. */
ROSE_BOTH wide_walk wide_walk_of(uint32_t rows, uint32_t tile_rows, uint32_t n_out,
                                 uint32_t tile_outputs, uint64_t row_bytes)
{
    wide_walk w;
    const uint64_t fit = WIDE_GROUP_BYTES / (tile_rows * row_bytes);
    w.n_rows = (rows + tile_rows - 1) / tile_rows;
    w.n_cols = (n_out + tile_outputs - 1) / tile_outputs;
    w.n = w.n_rows * w.n_cols;
    w.group = fit < 1 ? 1 : fit < w.n_rows ? (uint32_t)fit : w.n_rows;
    return w;
}

/* The place of tile number `at`, at < n. */
ROSE_BOTH wide_tile_place wide_place(const wide_walk *w, uint32_t at)
{
    const uint32_t whole = w->group * w->n_cols, group = at / whole, rest = at - group * whole;
    const uint32_t left = w->n_rows - group * w->group, rows = left < w->group ? left : w->group;
    wide_tile_place p;
    p.col = rest / rows;
    p.row = group * w->group + (rest - p.col * rows);
    return p;
}

#endif
