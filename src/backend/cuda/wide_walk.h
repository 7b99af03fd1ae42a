/* backend/cuda/wide_walk.h - the order in which the blocks of a persistent matrix kernel take
 * tiles, and that of the outputs in its copy of the weights. Plain C: for the kernels
 * (linear_wide.cuh and what includes it) and tests/backend/test_walk.c.
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
    uint32_t period;         /* tiles, whole columns, after which rows shift by one; 0: never */
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
    w.period = 0;
    return w;
}

/* For blocks that take tiles `blocks` apart, of which some rows have less to do: where a block
 * would have the same rows of tiles over and over, it has the next ones each time. Not of several
 * groups. */
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

/* The same behind wide_turn_rows. */
ROSE_BOTH wide_tile_place wide_place_by_turns(const wide_walk *w, uint32_t at)
{
    wide_tile_place p = wide_place(w, at);
    if (w->period > 0) p.row = (p.row + at / w->period) % w->n_rows;
    return p;
}

/* How the blocks of a kernel take the tiles of a walk. Of the first `by_turns` block b takes b, b +
 * blocks and so on. Where these are not all, the tiles behind them, more than there are blocks and
 * fewer than twice as many, would not come out even, and are shared out as one row of chunks of k,
 * tile after tile, of which each block takes an equal part ("stream-K": Osama and others,
 * arXiv:2301.03598). A part is no shorter than a tile, so a tile is of two blocks at most.
 *
 * Chunks are added in order (docs/NUMERICS.md), so block b + 1 needs the sum that block b has when
 * its part ends. Therefore a block begins with the tile in which its part ends, and hands the sum
 * on; and ends with the tile in which its part begins. Nobody waits for long: a block that hands on
 * fewer chunks than the one before has a whole tile between. A block keeps its multiprocessor while
 * it waits, so none waits for ever as long as block b is started no later than b + 1: blocks are
 * started in order, which CUDA does not promise and GPUs do. */
typedef struct wide_shares {
    uint32_t blocks, chunks; /* of a tile */
    uint32_t by_turns;       /* where there is more, a multiple of blocks */
    uint32_t shared;         /* tiles behind them: none, or blocks < shared < 2 blocks */
    uint32_t each, over;     /* their chunks in a part; in the first `over` parts one more */
} wide_shares;

/* What handing on a sum and going on with one costs, in chunks: where it gains no more, tiles are
 * not shared (FC2 of GPT-2 on an H100, 2026-11-23). */
enum { WIDE_SHARING = 2 };

/* What a block does: `n` turns. */
typedef struct wide_turns {
    uint32_t n;
    uint32_t head;  /* chunks of turn 0, whose sum is handed on; 0: it is a whole tile */
    uint32_t tail;  /* chunks of the last turn, which goes on with a sum; 0: likewise */
    uint32_t taken; /* turns of the first `by_turns` tiles */
    uint32_t first; /* behind them, whole tiles from there on, if there are any */
} wide_turns;

/* Chunks from `chunk` on of a tile. */
typedef struct wide_part {
    uint32_t tile, chunk, n;
} wide_part;

/* Chunks of the block that has most. */
ROSE_BOTH uint32_t wide_most(const wide_shares *s)
{
    return (s->by_turns + s->blocks - 1) / s->blocks * s->chunks + s->each + (s->over > 0);
}

/* tiles, blocks, chunks >= 1. share: where that gains. */
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

/* Where tiles are shared, a tile of one row is `group` tiles behind its neighbour, which is group *
 * blocks / shared blocks. If that is about a whole number, both are at the same chunk at the same
 * time, and the rows come from memory once: FC2 of GPT-2, 5632 rows 1 %, 6144 and 6656 5 % (H100,
 * 2026-11-23). */
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

/* Of block b < s->blocks. */
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

/* Turn i < t->n. */
ROSE_BOTH wide_part wide_part_of(const wide_shares *s, const wide_turns *t, uint32_t b, uint32_t i)
{
    wide_part p;
    const uint32_t j = i - (t->head > 0); /* of whole tiles */
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

/* Where a block keeps the weights of a column and rows go past them (linear_stationary.cuh). Where
 * there are no more columns than blocks, each column has `slices` blocks, which take its rows by
 * turns, so that all blocks are at about the same rows; blocks that are left over take the last
 * rows, `tail`, of `shared` columns each, three at most: of more, each would bring its weights for
 * too few rows. Where there are more columns, a block has one after the other and `slices` is 0. */
typedef struct column_walk {
    uint32_t n_rows, n_cols; /* in tiles */
    uint32_t slices, tail, shared;
    uint32_t blocks; /* that have any */
} column_walk;

/* The tiles of a block from (row, col) on: rows from `first` on by `step`, for each column. */
typedef struct column_tiles {
    uint32_t row, first, step, rows; /* rows, cols: the ends */
    uint32_t col, col_step, cols;
    uint32_t turn; /* columns that the block has had before */
} column_tiles;

/* rows, n_out, blocks >= 1. */
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

/* Of block b < w->blocks. */
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

/* To the next, of which there may be none. The first is always one. */
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

/* Tiles of the block that has most: the first. */
ROSE_BOTH uint32_t column_most(const column_walk *w)
{
    const uint32_t rows = w->n_rows - w->tail, slices = w->slices > 0 ? w->slices : 1;
    const uint32_t columns = w->slices > 0 ? 1 : (w->n_cols + w->blocks - 1) / w->blocks;
    return (rows + slices - 1) / slices * columns;
}

#endif
