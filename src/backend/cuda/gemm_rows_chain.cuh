/* backend/cuda/gemm_rows_chain.cuh - a warp of gemm_rows.cuh: its ring of weights in shared memory
 * and the chain of its part of a tile. Device code only. */
#ifndef ROSE_BACKEND_CUDA_GEMM_ROWS_CHAIN_CUH
#define ROSE_BACKEND_CUDA_GEMM_ROWS_CHAIN_CUH

#include "backend/cuda/attend_ops.cuh"
#include "backend/cuda/gemm.h"

enum {
    ROWS_SLOTS = 4,   /* of a warp's ring */
    ROWS_STAGE = 256, /* most k in a slot */
    ROWS_CHUNK = 256, /* k of a once-only copy of rows */
    ROWS_CHUNKS = 64,
    ROWS_WARPS = 16,         /* most of a block */
    ROWS_BARRIERS = 1536,    /* bytes at the beginning of shared memory */
    ROWS_BEYOND = 1024,      /* bytes at its end: the last step of a chain reads beyond its slot */
    ROWS_BUDGET = 112 << 10, /* bytes of a block, so that the next kernel's fits beside it */
    ROWS_ENOUGH = 64 << 10   /* bytes of weights that an SM must have under way to get its share */
};
static_assert((ROWS_WARPS * ROWS_SLOTS + ROWS_CHUNKS) * 8 <= ROWS_BARRIERS, "barriers");

/* Where the activation rows are. */
typedef enum rows_from { ROWS_WHOLE, ROWS_RING, ROWS_NORMED } rows_from;

/* How a block works. */
typedef struct rows_plan {
    uint32_t nb;      /* 1 or 2 blocks of 8 outputs in a tile */
    uint32_t tiles;   /* at a time in a block; each has a warp for every part */
    uint32_t n_tiles; /* of the matrix */
    uint32_t stage;   /* k in a slot */
    uint32_t slot_bytes, ring_bytes;
    uint32_t x_at, sums_at; /* offsets in shared memory */
    uint32_t grid, warps;
} rows_plan;

/* Sums of a row lie ROWS_WIDE(nb) floats apart: lanes that store meet no bank twice. */
#define ROWS_WIDE(nb) ((nb)*8 + 4)

/* The place of a warp's next piece: some k of a tile. */
typedef struct rows_place {
    uint32_t tile, k;
} rows_place;

/* A warp and its work: one part of each stride-th tile. */
template <typename T> struct rows_warp {
    uint32_t lane, id;       /* id: of the block's warps */
    uint32_t part, tile;     /* tile: which of the block's tiles at a time */
    uint32_t stride;         /* tiles from one to the next */
    uint32_t begin, end;     /* k of the part */
    uint32_t k_pad;          /* of weights and rows */
    uint32_t row_blocks;     /* blocks of 8 rows of the batch */
    const T *w, *h;          /* weights, rows */
    uint32_t ring, x;        /* shared addresses of the warp's ring and the block's rows */
    uint32_t lane_w;         /* offset of this lane's row of the four matrices of a step */
    uint64_t *full;          /* barriers of the slots */
    uint64_t *x_full;        /* barriers of the chunks of x, which the block copies once */
    float *sums, *tile_sums; /* of the warp, and of part 0 of its tile */
};

/* A unit of a chain is this many times 32 values of k. */
template <int RB> constexpr int ROWS_UNIT = RB == 4 ? 1 : 2;

/* Operands of a unit: of weights in each 16 values of k, of rows in each block of 8. */
template <int RB> struct rows_operands {
    uint32_t w[ROWS_UNIT<RB> * 2][4], x[RB][ROWS_UNIT<RB>][4];
};

template <typename T>
ROSE_DEVICE void next_place(rows_place *at, const rows_warp<T> &warp, const rows_plan &p)
{
    at->k += p.stage;
    if (at->k < warp.end) return;
    at->k = warp.begin;
    at->tile += warp.stride;
}

ROSE_DEVICE uint32_t piece_end(uint32_t k, uint32_t stage, uint32_t end)
{
    return k + stage < end ? k + stage : end;
}

/* Request the weights of a piece, and announce all that comes to its slot. */
template <typename T, int FROM>
ROSE_DEVICE void request_weights(const rows_warp<T> &warp, const rows_plan &p, const rows_place &at,
                                 uint32_t slot)
{
    if (at.tile < p.n_tiles) {
        const uint32_t bytes = (piece_end(at.k, p.stage, warp.end) - at.k) * 16;
        const uint32_t to = warp.ring + slot * p.slot_bytes;
        const T *from = warp.w + ((size_t)at.tile * p.nb * warp.k_pad + at.k) * 8;
        ring_expect(warp.full + slot, bytes * (p.nb + (FROM == ROWS_RING ? warp.row_blocks : 0)),
                    warp.lane);
        ring_part_once(to, from, bytes, warp.full + slot, warp.lane);
        if (p.nb == 2)
            ring_part_once(to + p.stage * 16, from + (size_t)warp.k_pad * 8, bytes,
                           warp.full + slot, warp.lane);
    }
    ring_close();
}

/* RING: request the piece's activation rows as well. */
template <typename T, int RB>
ROSE_DEVICE void request_rows(const rows_warp<T> &warp, const rows_plan &p, const rows_place &at,
                              uint32_t slot)
{
    if (at.tile < p.n_tiles) {
        const uint32_t bytes = (piece_end(at.k, p.stage, warp.end) - at.k) * 16;
        const uint32_t to = warp.ring + slot * p.slot_bytes + p.nb * p.stage * 16;
#pragma unroll
        for (uint32_t b = 0; b < RB; b++)
            if (b < warp.row_blocks)
                ring_part(to + b * p.stage * 16, warp.h + ((size_t)b * warp.k_pad + at.k) * 8,
                          bytes, warp.full + slot, warp.lane);
    }
    ring_close();
}

/* The position of a warp in its ring. */
typedef struct rows_ring {
    uint32_t slot, parity;
    rows_place ahead; /* the piece that the slot that is read next becomes */
    bool fresh;       /* the copy of x may be under way */
    bool more;        /* the matrix has the tile of `ahead` */
} rows_ring;

/* The slot's piece of the tile is used up: request the next piece. Before sm_90 an empty request
 * counts as well. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void refill_slot(const rows_warp<T> &warp, const rows_plan &p, rows_ring *ring,
                             uint32_t slot)
{
#if __CUDA_ARCH__ >= 900
    if (!ring->more) return;
#endif
    __syncwarp();
    request_weights<T, FROM>(warp, p, ring->ahead, slot);
    if (FROM == ROWS_RING) request_rows<T, RB>(warp, p, ring->ahead, slot);
    next_place(&ring->ahead, warp, p);
    ring->more = ring->ahead.tile < p.n_tiles;
}

/* A warp on its way along a chain. */
typedef struct rows_walk {
    uint32_t at;   /* the shared address of k in its slot */
    uint32_t k;    /* the next value */
    uint32_t in;   /* values of the slot that remain, of k on */
    uint32_t left; /* values of the part that remain */
} rows_walk;

/* Wait for the slot that is read next. */
template <typename T, int FROM>
ROSE_DEVICE void open_slot(rows_walk *walk, const rows_warp<T> &warp, const rows_plan &p,
                           const rows_ring &ring)
{
    walk->at = warp.ring + ring.slot * p.slot_bytes;
    walk->in = p.stage;
    /* The slot before is not requested anew yet. */
    ring_wait<ROWS_SLOTS - 1>(warp.full + ring.slot, ring.parity);
    ring_meet_warp();
    if (FROM == ROWS_WHOLE && ring.fresh) {
        const uint32_t k1 = piece_end(walk->k, p.stage, warp.end);
        for (uint32_t c = walk->k / ROWS_CHUNK; c * ROWS_CHUNK < k1; c++)
            ring_wait_once(warp.x_full + c);
    }
}

ROSE_DEVICE void leave_slot(rows_ring *ring)
{
    if (++ring->slot < ROWS_SLOTS) return;
    ring->slot = 0;
    ring->parity ^= 1;
}

ROSE_DEVICE void walk_on(rows_walk *walk, uint32_t by)
{
    walk->at += by * 16;
    walk->k += by;
    walk->in -= by;
    walk->left -= by;
}

/* The shared address of this lane's row for 32 values of k, of the block b of 8 rows. */
template <typename T, int FROM>
ROSE_DEVICE uint32_t rows_at(const rows_warp<T> &warp, const rows_plan &p, const rows_walk &walk,
                             uint32_t b, uint32_t u)
{
    const uint32_t lane = warp.lane;
    if (FROM == ROWS_RING) return walk.at + lane * 16 + (p.nb + b) * p.stage * 16 + u * 512;
    if (FROM == ROWS_WHOLE) return warp.x + lane * 16 + (b * warp.k_pad + walk.k) * 16 + u * 512;
    /* Row r of the block kb of 8 values lies at place r ^ kb % 8. */
    const uint32_t kb = walk.k / 8 + u * 4 + lane / 8;
    return warp.x + kb * 128 + ((lane ^ kb) % 8) * 16;
}

/* The operands of step i of a unit; an even step loads the rows of the step after as well. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void load_step(rows_operands<RB> *o, const rows_warp<T> &warp, const rows_plan &p,
                           const rows_walk &walk, int i)
{
    load_matrices(o->w[i], walk.at + warp.lane_w + i * 256);
    if (i % 2 != 0) return;
#pragma unroll
    for (int b = 0; b < RB; b++)
        load_matrices(o->x[b][i / 2], rows_at<T, FROM>(warp, p, walk, b, i / 2));
}

template <typename T, int RB>
ROSE_DEVICE void multiply_step(float acc[RB][4], const rows_operands<RB> &o, int i)
{
#pragma unroll
    for (int b = 0; b < RB; b++)
        mma(acc[b], o.w[i], o.x[b][i / 2][i % 2 * 2], o.x[b][i / 2][i % 2 * 2 + 1],
            static_cast<const T *>(NULL));
}

/* The chain of the warp's part of a tile. The operands of the next unit are loaded between the
 * products of this one. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void run_chain(float acc[RB][4], const rows_warp<T> &warp, const rows_plan &p,
                           rows_ring *ring)
{
    constexpr int STEPS = ROWS_UNIT<RB> * 2;
    constexpr uint32_t UNIT = STEPS * 16;
    rows_walk walk = {0, warp.begin, 0, warp.end - warp.begin};
    rows_operands<RB> even, odd;
    auto turn = [&](const rows_operands<RB> &now, rows_operands<RB> &next) {
        const bool more = walk.left >= 2 * UNIT;
        const uint32_t old = ring->slot;
        walk_on(&walk, UNIT);
        const bool ends = walk.in == 0 && walk.left > 0;
        if (ends) {
            leave_slot(ring);
            open_slot<T, FROM>(&walk, warp, p, *ring);
        }
        if (more) {
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                multiply_step<T, RB>(acc, now, i);
                load_step<T, RB, FROM>(&next, warp, p, walk, i);
            }
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                multiply_step<T, RB>(acc, now, i);
        }
        if (ends) refill_slot<T, RB, FROM>(warp, p, ring, old);
        return more;
    };
    open_slot<T, FROM>(&walk, warp, p, *ring);
    if (walk.left >= UNIT) {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            load_step<T, RB, FROM>(&even, warp, p, walk, i);
        while (turn(even, odd) && turn(odd, even)) {
        }
    }
#pragma unroll 1
    for (; walk.left > 0; walk_on(&walk, 16)) { /* k of the part is no multiple of a unit */
        load_step<T, RB, FROM>(&even, warp, p, walk, 0);
        multiply_step<T, RB>(acc, even, 0);
    }
    const uint32_t old = ring->slot;
    leave_slot(ring);
    refill_slot<T, RB, FROM>(warp, p, ring, old);
    ring->fresh = false;
}

#endif
