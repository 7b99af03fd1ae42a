/* backend/cuda/wide_walk.h - two orders: that in which the blocks of a persistent GEMM kernel take
 * their tiles, and that of the outputs in the kernel's copy of the weights. Plain C, for the
 * kernels (linear_wide.cuh and the files that include it) and for tests/backend/test_walk.c.
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

/* The column of wgmma's result that holds output n. In each 8 columns, lane t of a row holds
 * columns 2 t and 2 t + 1. The four values that a lane holds in each 16 columns should be
 * neighbours, so column 8 q + 2 t + e is output 4 t + 2 q + e. K and V, the outputs from `kv` on (a
 * multiple of 16), keep their order: a lane's values are then its 16 bytes of a page
 * (wide_epilogue.cuh). */
ROSE_BOTH uint32_t wide_column(uint32_t n, uint32_t kv)
{
    return n < kv ? n / 16 * 16 + n / 2 % 2 * 8 + n % 16 / 4 * 2 + n % 2 : n;
}

/* Bytes of rows in a group. The L2 has 50 MB and also holds weights and outputs. */
enum { WIDE_GROUP_BYTES = 8 << 20 };

typedef struct wide_walk {
    uint32_t n;              /* number of tiles */
    uint32_t n_rows, n_cols; /* n = n_rows * n_cols */
    uint32_t group;          /* row tiles in a group; the last group may have fewer */
    /* After this many tiles (whole columns) the order of the rows shifts by one; 0: it never
     * shifts. */
    uint32_t period;
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
    w.period = 0;
    return w;
}

/* For blocks that take every `blocks`-th tile, if some row tiles have less work than others. A
 * block that would always meet the same row tile gets the next one each time instead. Only if there
 * is a single group. */
ROSE_BOTH void wide_turn_rows(wide_walk *w, uint32_t blocks)
{
    uint32_t a = blocks, b = w->n_rows, rest;
    while (b > 0) {
        rest = a % b;
        a = b;
        b = rest;
    }
    w->period = w->group == w->n_rows ? blocks / a * w->n_rows : 0;
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

/* The same after wide_turn_rows. */
ROSE_BOTH wide_tile_place wide_place_by_turns(const wide_walk *w, uint32_t at)
{
    wide_tile_place p = wide_place(w, at);
    if (w->period > 0) p.row = (p.row + at / w->period) % w->n_rows;
    return p;
}

/* How the blocks of a kernel divide the tiles of a walk.
 *
 * The first `by_turns` tiles are taken in turns: block b takes tiles b, b + blocks, and so on. If
 * the number of tiles is not a multiple of the number of blocks, the last `shared` tiles are
 * divided differently: all their chunks of k form one long row, tile after tile, and each block
 * takes an equal part of it. (This is stream-K: Osama and others, arXiv:2301.03598.) There are more
 * shared tiles than blocks and fewer than twice as many. A part is thus at least as long as a tile,
 * so at most two blocks compute one tile.
 *
 * Chunks are added in order (docs/NUMERICS.md). Block b + 1 therefore continues with the sum that
 * block b has at the end of its part. A block begins with the tile in which its part ends, and
 * hands on the sum. It ends with the tile in which its part begins, and continues the sum that it
 * was handed. Waits are short: a block that hands on fewer chunks than the block before has a whole
 * tile to compute in between.
 *
 * A waiting block keeps its SM. There is no deadlock as long as block b starts no later than block
 * b + 1. GPUs start blocks in that order, although CUDA does not promise it. */
typedef struct wide_shares {
    uint32_t blocks, chunks; /* chunks: chunks of k in one tile */
    uint32_t by_turns;   /* tiles taken in turns; a multiple of blocks if there are shared tiles */
    uint32_t shared;     /* shared tiles: 0, or blocks < shared < 2 blocks */
    uint32_t each, over; /* chunks of a block's part; the first `over` blocks have one more */
} wide_shares;

/* The cost of handing a sum from block to block, in chunks. If sharing tiles gains no more than
 * that, tiles are not shared (FC2 of GPT-2 on an H100, 2026-11-23). */
enum { WIDE_SHARING = 2 };

/* The work of one block: n turns, each of which is a tile or a part of a tile. */
typedef struct wide_turns {
    uint32_t n;
    /* Chunks of turn 0, whose sum goes to the next block; 0: turn 0 is a whole tile. */
    uint32_t head;
    /* Chunks of the last turn, which continues the sum of the block before; 0: the last turn is a
     * whole tile. */
    uint32_t tail;
    uint32_t taken; /* turns among the first `by_turns` tiles */
    uint32_t first; /* the first whole tile among the shared ones, if the block has any */
} wide_turns;

/* Chunks [chunk, chunk + n) of a tile. */
typedef struct wide_part {
    uint32_t tile, chunk, n;
} wide_part;

/* Chunks of the block that has the most. */
ROSE_BOTH uint32_t wide_most(const wide_shares *s)
{
    return (s->by_turns + s->blocks - 1) / s->blocks * s->chunks + s->each + (s->over > 0);
}

/* tiles, blocks and chunks are at least 1. share: share tiles if that gains. */
ROSE_BOTH wide_shares wide_shares_of(uint32_t tiles, uint32_t blocks, uint32_t chunks, int share)
{
    wide_shares none, s;
    none.blocks = blocks;
    none.chunks = chunks;
    none.by_turns = tiles;
    none.shared = none.each = none.over = 0;
    if (!share || tiles <= blocks || tiles % blocks == 0) return none;
    s = none;
    s.shared = blocks + tiles % blocks;
    s.by_turns = tiles - s.shared;
    s.each = s.shared * chunks / blocks;
    s.over = s.shared * chunks % blocks;
    return wide_most(&s) + WIDE_SHARING < wide_most(&none) ? s : none;
}

/* Choose the size of a group for shared tiles. Two neighbouring tiles of one row of tiles are
 * `group` tiles apart, which is group * blocks / shared blocks. If that is nearly a whole number,
 * both tiles reach the same chunk at the same time, and their rows are read from memory only once.
 * For FC2 of GPT-2 this gains 1 % with 5632 rows and 5 % with 6144 and 6656 (H100, 2026-11-23). */
ROSE_BOTH void wide_group_shared(wide_walk *w, const wide_shares *s)
{
    const uint32_t most = 2 * w->group < w->n_rows ? 2 * w->group : w->n_rows;
    uint32_t g, least = s->shared;
    for (g = 1; s->shared > 0 && g <= most; g++) {
        const uint32_t over = g * s->blocks % s->shared;
        const uint32_t off = over < s->shared - over ? over : s->shared - over;
        if (off >= least) continue;
        least = off;
        w->group = g;
    }
}

/* The turns of block b, b < s->blocks. */
ROSE_BOTH wide_turns wide_turns_of(const wide_shares *s, uint32_t b)
{
    wide_turns t;
    const uint32_t from = s->each * b + (b < s->over ? b : s->over),
                   to = from + s->each + (b < s->over);
    t.head = to % s->chunks;
    t.tail = from % s->chunks == 0 ? 0 : s->chunks - from % s->chunks;
    t.first = (from + s->chunks - 1) / s->chunks;
    t.taken = b < s->by_turns ? (s->by_turns - b - 1) / s->blocks + 1 : 0;
    t.n = t.taken + to / s->chunks - t.first + (t.head > 0) + (t.tail > 0);
    t.first += s->by_turns;
    return t;
}

/* Turn i of block b, i < t->n. */
ROSE_BOTH wide_part wide_part_of(const wide_shares *s, const wide_turns *t, uint32_t b, uint32_t i)
{
    wide_part p;
    const uint32_t j = i - (t->head > 0); /* number of the turn among whole tiles */
    p.chunk = 0;
    p.n = s->chunks;
    if (t->head > 0 && i == 0) {
        p.tile = t->first + t->n - t->taken - 1 - (t->tail > 0);
        p.n = t->head;
    } else if (j < t->taken) {
        p.tile = j * s->blocks + b;
    } else if (t->tail > 0 && i == t->n - 1) {
        p.tile = t->first - 1;
        p.n = t->tail;
        p.chunk = s->chunks - t->tail;
    } else {
        p.tile = t->first + j - t->taken;
    }
    return p;
}

/* The walk of linear_stationary.cuh, where a block keeps the weights of a column while rows pass.
 *
 * With at least as many blocks as columns, each column has `slices` blocks. They take its row tiles
 * in turns, so that all blocks work on about the same rows. Each block that is left over takes the
 * last `tail` row tiles of `shared` columns. `shared` is at most three: with more columns, such a
 * block would load weights for too few rows. With fewer blocks than columns, a block has one column
 * after the other, and `slices` is 0. */
typedef struct column_walk {
    uint32_t n_rows, n_cols; /* in tiles */
    uint32_t slices, tail, shared;
    uint32_t blocks; /* blocks that have any tile */
} column_walk;

/* The tiles that a block still has, from (row, col) on. In each column it takes row tiles first,
 * first + step, ... */
typedef struct column_tiles {
    uint32_t row, first, step, rows; /* rows and cols are exclusive ends */
    uint32_t col, col_step, cols;
    uint32_t turn; /* columns that the block has finished */
} column_tiles;

/* rows, n_out and blocks are at least 1. */
ROSE_BOTH column_walk column_walk_of(uint32_t rows, uint32_t tile_rows, uint32_t n_out,
                                     uint32_t tile_outputs, uint32_t blocks)
{
    column_walk w;
    w.n_rows = (rows + tile_rows - 1) / tile_rows;
    w.n_cols = (n_out + tile_outputs - 1) / tile_outputs;
    w.slices = blocks / w.n_cols;
    w.tail = w.shared = 0;
    if (w.slices == 0) {
        w.blocks = blocks;
        return w;
    }
    if (w.slices > w.n_rows) w.slices = w.n_rows;
    w.blocks = w.slices * w.n_cols;
    if (blocks > w.blocks) {
        w.shared = (w.n_cols + (blocks - w.blocks) - 1) / (blocks - w.blocks);
        if (w.shared <= 3) w.tail = w.n_rows / (w.slices * w.shared + 1);
        if (w.tail > 0) w.blocks += (w.n_cols + w.shared - 1) / w.shared;
    }
    return w;
}

/* The tiles of block b, b < w->blocks. */
ROSE_BOTH column_tiles column_tiles_of(const column_walk *w, uint32_t b)
{
    column_tiles t;
    t.first = 0;
    t.step = 1;
    t.rows = w->n_rows;
    t.cols = w->n_cols;
    t.col = b;
    t.col_step = w->blocks;
    if (w->slices > 0 && b < w->slices * w->n_cols) {
        t.col = b % w->n_cols;
        t.col_step = w->n_cols;
        t.first = b / w->n_cols;
        t.step = w->slices;
        t.rows = w->n_rows - w->tail;
    } else if (w->slices > 0) {
        t.col = (b - w->slices * w->n_cols) * w->shared;
        t.col_step = 1;
        if (t.col + w->shared < t.cols) t.cols = t.col + w->shared;
        t.first = w->n_rows - w->tail;
    }
    t.row = t.first;
    t.turn = 0;
    return t;
}

/* Go to the next tile. There may be none (column_there); the first tile always exists. */
ROSE_BOTH void column_next(column_tiles *t)
{
    t->row += t->step;
    if (t->row < t->rows) return;
    t->row = t->first;
    t->col += t->col_step;
    t->turn++;
}

ROSE_BOTH int column_there(const column_tiles *t)
{
    return t->col < t->cols;
}

/* Tiles of the block that has the most, which is block 0. */
ROSE_BOTH uint32_t column_most(const column_walk *w)
{
    const uint32_t rows = w->n_rows - w->tail, slices = w->slices > 0 ? w->slices : 1;
    const uint32_t columns = w->slices > 0 ? 1 : (w->n_cols + w->blocks - 1) / w->blocks;
    return (rows + slices - 1) / slices * columns;
}

#endif
