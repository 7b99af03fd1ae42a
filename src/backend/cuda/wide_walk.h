/* backend/cuda/wide_walk.h - the order in which the blocks of a persistent matrix kernel take
 * tiles, and that of the outputs in its copy of the weights. Plain C: for the kernels
 * (linear_wide.cuh) and tests/backend/test_walk.c.
 *
 * Tiles of rows go in groups small enough for the L2; within a group, all rows of one column of
 * outputs, then the next column. So the blocks at work have few columns and many rows, the rows
 * stay in the L2, and the weights come from memory once for each group. */
#ifndef ROSE_BACKEND_CUDA_WIDE_WALK_H
#define ROSE_BACKEND_CUDA_WIDE_WALK_H

#include <stdint.h>

#ifdef __CUDACC__
#define ROSE_BOTH static __host__ __device__ __forceinline__
#else
#define ROSE_BOTH static inline
#endif

/* Where output n lies among the columns of the products. Of each 8 columns a lane t of a row has 2
 * t and 2 t + 1: so that its four of each 16 are neighbours, column 8 q + 2 t + e is output 4 t + 2
 * q + e. K and V, from output `kv` on (a multiple of 16), stay where they are: a lane's values are
 * then its 16 bytes of a page (wide_epilogue.cuh). */
ROSE_BOTH uint32_t wide_column(uint32_t n, uint32_t kv)
{
    return n < kv ? n / 16 * 16 + n / 2 % 2 * 8 + n % 16 / 4 * 2 + n % 2 : n;
}

enum { WIDE_GROUP_BYTES = 8 << 20 /* of rows: of the L2's 50 MB, beside weights and outputs */ };

typedef struct wide_walk {
    uint32_t n;              /* tiles */
    uint32_t n_rows, n_cols; /* n = n_rows * n_cols */
    uint32_t group;          /* tiles of rows in a group; the last group may have fewer */
} wide_walk;

typedef struct wide_tile_place {
    uint32_t row, col; /* in tiles */
} wide_tile_place;

/* rows, n_out >= 1; row_bytes: of one row of the batch. */
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

/* Of tile at < n. */
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
