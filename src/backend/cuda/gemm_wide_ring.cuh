/* backend/cuda/gemm_wide_ring.cuh - how the kernels of gemm_wide.cuh get and multiply their
 * operands. One thread requests copies by TMA into a ring of stages in shared memory. A stage has
 * 64 values of k for the rows and the outputs of a tile. Warpgroups multiply stages by wgmma with
 * both operands in shared memory, and then free them.
 *
 * Rows of the batch are the rows of wgmma, outputs its columns. Borders of parts are multiples of
 * 16, so the last stage of a part may be partial: its copy reads values of the next part, and the
 * products leave them out. Copies beyond the matrix give zeros. */
#ifndef ROSE_BACKEND_CUDA_GEMM_WIDE_RING_CUH
#define ROSE_BACKEND_CUDA_GEMM_WIDE_RING_CUH

#include "backend/cuda/gemm_wide_ends.cuh"
#include "backend/cuda/wide_walk.h"

enum {
    STAGE_GROUPS = 4, /* groups of 16 values of k in a stage */
    STAGE_K = STAGE_GROUPS * ROSE_GEMM_GROUP,
    BLOCK_BYTES = STAGE_K * 8 * 2, /* 8 rows or 8 outputs of a stage */
    ZERO_BYTES = 64 * 16 * 2       /* a group of 64 rows of zeros */
};

/* How a kernel divides its work. */
typedef enum wide_mode {
    WIDE_TURNS, /* two warpgroups take whole tiles in turn; one part */
    WIDE_SUM,   /* two warpgroups share a tile of 128 rows; x and the parts are summed */
    WIDE_SPLIT  /* the four blocks of a cluster multiply a part each */
} wide_mode;

/* What happens to the sums is one template, so a line of the table is one of these types. SHARE:
 * two blocks of a cluster share a tile's weights, or with ACROSS its rows: each copies half of them
 * to both. STAGES: of weights. ROW_STAGES: of rows, which divides it. Rows come from the L2,
 * weights from memory, which takes twice as long. With fewer stages of rows more weights are under
 * way. */
template <int MODE_, int ROWS_, int TN_, int STAGES_, int ROW_STAGES_, int SHARE_, bool ACROSS_>
struct wide_line {
    static constexpr int MODE = MODE_, ROWS = ROWS_, TN = TN_, STAGES = STAGES_, SHARE = SHARE_;
    static constexpr int ROW_STAGES = ROW_STAGES_;
    static constexpr bool ACROSS = ACROSS_;
    static_assert(STAGES % ROW_STAGES == 0 && ROW_STAGES > 1, "slots of rows");
    static constexpr int HIGH = ACROSS ? 1 : SHARE, WIDTH = ACROSS ? SHARE : 1; /* in tiles */
    static constexpr int CLUSTER = MODE == WIDE_SPLIT ? ROSE_GEMM_PARTS : SHARE;
    static constexpr int GROUPS = MODE == WIDE_SPLIT ? ROWS / 64 : 2; /* warpgroups that multiply */
    /* Warpgroups that read a stage. */
    static constexpr int READERS = MODE == WIDE_TURNS ? 1 : GROUPS;
    static constexpr int THREADS = (GROUPS + 1) * 128;
    /* Bytes of the rows of a stage, and of its weights. */
    static constexpr uint32_t H = ROWS / 8 * BLOCK_BYTES, W = TN / 8 * BLOCK_BYTES;
    static constexpr uint32_t RING = ROW_STAGES * H + STAGES * W;
    /* The sums that SPLIT receives. If they are large they lie where the ring was. */
    static constexpr uint32_t RECEIVED = MODE == WIDE_SPLIT ? ROWS * TN * 4 : 0;
    static constexpr bool OVER = RECEIVED >= 16384;
    static_assert(!OVER || RECEIVED <= RING, "the place of the ring");
    /* Each warp that multiplies has: the bias of its tile, and lines of 16 rows. */
    static constexpr uint32_t BIAS = TN * 4, OWN = MODE == WIDE_SPLIT ? 0 : BIAS + LINES_BYTES;
    static constexpr uint32_t RECEIVED_AT = OVER ? 0 : RING;
    static constexpr uint32_t SHARED = RING + (OVER ? 0 : RECEIVED) + GROUPS * 4 * OWN + ZERO_BYTES;
    static constexpr int BLOCKS = GROUPS == 1 && SHARED + 1024 <= 113 << 10 ? 2 : 1; /* of an SM */
};

/* Blocks of 8 rows in a copy of a stage's rows: no more than the batch has, because places outside
 * a map cost as much as others. The rows of a tile beyond them are never stored. */
template <typename L> ROSE_BOTH uint32_t row_box(uint32_t rows)
{
    constexpr uint32_t MOST = L::ROWS / 8 / L::WIDTH;
    return (rows + 7) / 8 < MOST ? (rows + 7) / 8 : MOST;
}

#if ROSE_HOPPER

/* ---- parts of k, in groups of 16 ---- */

ROSE_DEVICE uint32_t part_begin(const rose_cuda_matrix &m, uint32_t part)
{
    return m.cut[part] / ROSE_GEMM_GROUP;
}

ROSE_DEVICE uint32_t part_end(const rose_cuda_matrix &m, uint32_t part)
{
    return (m.cut[part + 1] + ROSE_GEMM_GROUP - 1) / ROSE_GEMM_GROUP;
}

ROSE_DEVICE uint32_t part_groups(const rose_cuda_matrix &m, uint32_t part)
{
    return part_end(m, part) - part_begin(m, part);
}

ROSE_DEVICE uint32_t stages_of(uint32_t groups)
{
    return (groups + STAGE_GROUPS - 1) / STAGE_GROUPS;
}

/* The next stage of a tile. */
typedef struct wide_k {
    uint32_t part, group;
} wide_k;

/* To the first group of the next part that has one, unless this part has one; end: of the parts. */
ROSE_DEVICE wide_k skip_empty(const rose_cuda_matrix &m, wide_k k, uint32_t end)
{
    while (k.part < end && k.group >= part_end(m, k.part)) {
        k.part++;
        if (k.part < end) k.group = part_begin(m, k.part);
    }
    return k;
}

/* ---- the ring ---- */

/* Addresses in shared memory: the stages; their barriers `full` and `empty`; `sent`, the barrier of
 * the sums that other blocks of SPLIT send; rows of zeros. */
typedef struct wide_memory {
    uint32_t stages, full, empty, sent, zeros;
} wide_memory;

typedef struct ring_place {
    uint32_t slot, parity;
} ring_place;

template <int STAGES> ROSE_DEVICE void next_place(ring_place *p)
{
    if (++p->slot == STAGES) {
        p->slot = 0;
        p->parity ^= 1;
    }
}

/* Past the n stages of the other warpgroup's tile. */
template <int STAGES> ROSE_DEVICE void skip_stages(ring_place *p, uint32_t n)
{
    p->slot += n;
    while (p->slot >= STAGES) {
        p->slot -= STAGES;
        p->parity ^= 1;
    }
}

/* ---- the thread that requests copies ---- */

typedef struct wide_copies {
    const CUtensorMap *w_map, *h_map;
    const rose_cuda_matrix *m;
    wide_memory at;
    uint32_t first, last; /* parts of k: first .. last - 1 */
    uint32_t rank;        /* in the cluster */
    uint32_t rows;
} wide_copies;

/* First row and first output of a block's tile. */
template <typename L>
ROSE_DEVICE uint2 tile_origin(const wide_walk &walk, uint32_t at, uint32_t rank)
{
    const wide_tile_place p = wide_place(&walk, at);
    return make_uint2((p.row * L::HIGH + (L::HIGH > 1 ? rank : 0)) * L::ROWS,
                      (p.col * L::WIDTH + (L::WIDTH > 1 ? rank : 0)) * L::TN);
}

/* Where the rows and the weights of the stage in `slot` are. */
template <typename L> ROSE_DEVICE uint32_t rows_of(const wide_memory &s, uint32_t slot)
{
    return s.stages + (L::ROW_STAGES == L::STAGES ? slot : slot % L::ROW_STAGES) * L::H;
}

template <typename L> ROSE_DEVICE uint32_t weights_of(const wide_memory &s, uint32_t slot)
{
    return s.stages + L::ROW_STAGES * L::H + slot * L::W;
}

/* The weights of a stage; the barrier of the stage also expects its rows. */
template <typename L>
ROSE_DEVICE void copy_weights(const wide_copies &c, uint32_t slot, uint32_t group, uint32_t n0)
{
    constexpr uint32_t PIECE = L::TN / 8 / L::HIGH;
    const uint32_t full = c.at.full + slot * 8, to = weights_of<L>(c.at, slot);
    barrier_expect(full, L::W + row_box<L>(c.rows) * L::WIDTH * BLOCK_BYTES);
    if constexpr (L::HIGH > 1)
        copy_box_to(to + c.rank * PIECE * BLOCK_BYTES, c.w_map, group * 2, n0 / 8 + c.rank * PIECE,
                    full, (1u << L::HIGH) - 1);
    else
        copy_box(to, c.w_map, group * 2, n0 / 8, full);
}

template <typename L>
ROSE_DEVICE void copy_rows(const wide_copies &c, uint32_t slot, uint32_t group, uint32_t row0)
{
    constexpr uint32_t PIECE = L::ROWS / 8 / L::WIDTH;
    const uint32_t to = rows_of<L>(c.at, slot), full = c.at.full + slot * 8;
    if constexpr (L::WIDTH > 1) {
        /* TMA is slow for a box that lies outside. Nobody looks at these rows: copy others. */
        const uint32_t mine = row0 / 8 + c.rank * PIECE;
        copy_box_to(to + c.rank * PIECE * BLOCK_BYTES, c.h_map, group * 2,
                    mine * 8 < c.rows ? mine : row0 / 8, full, (1u << L::WIDTH) - 1);
    } else {
        copy_box(to, c.h_map, group * 2, row0 / 8, full);
    }
}

/* A stage of the block's tiles. None is left when `at` is walk.n or more. */
typedef struct wide_stage {
    wide_k k;
    uint32_t at; /* the tile in the walk */
    uint2 tile;  /* its first row and output */
} wide_stage;

/* All stages of the block's tiles: every `blocks`-th tile of the walk. The weights of the first
 * stages are requested before the previous kernel has ended, because it does not write them. The
 * rows follow STAGES - ROW_STAGES stages later: once a stage has been read, its places can take the
 * weights of the stage STAGES on, and the rows of the stage ROW_STAGES on. */
template <typename L>
ROSE_DEVICE void copy_tiles(const wide_copies &c, const wide_walk &walk, uint32_t blocks)
{
    const wide_k first = skip_empty(*c.m, {c.first, part_begin(*c.m, c.first)}, c.last);
    const uint32_t begin = blockIdx.x / L::CLUSTER, at = first.part < c.last ? begin : walk.n;
    wide_stage w = {first, at, tile_origin<L>(walk, begin, c.rank)}, h = w;
    const auto next = [&](wide_stage *s) {
        s->k.group += STAGE_GROUPS;
        s->k = skip_empty(*c.m, s->k, c.last);
        if (s->k.part < c.last) return;
        s->k = first;
        s->at += blocks;
        if (s->at < walk.n) s->tile = tile_origin<L>(walk, s->at, c.rank);
    };
    ring_place p = {0, 0};
    uint32_t slot = 0; /* of h */

    for (uint32_t i = 0; i < L::STAGES && w.at < walk.n; i++, next(&w))
        copy_weights<L>(c, i, w.k.group, w.tile.y);
    pdl_wait();
    for (; slot < L::ROW_STAGES && h.at < walk.n; slot++, next(&h))
        copy_rows<L>(c, slot, h.k.group, h.tile.x);
    for (; h.at < walk.n; next(&h)) {
        barrier_wait(c.at.empty + p.slot * 8, p.parity);
        if (w.at < walk.n) {
            copy_weights<L>(c, p.slot, w.k.group, w.tile.y);
            next(&w);
        }
        next_place<L::STAGES>(&p);
        if (slot == L::STAGES) slot = 0;
        copy_rows<L>(c, slot++, h.k.group, h.tile.x);
    }
}

/* ---- warpgroups that multiply ---- */

typedef struct wide_ring {
    wide_memory in;
    uint32_t bias, lines; /* of the warp: put_bias, store_lines */
    uint32_t group;       /* of the warpgroups that multiply */
    uint32_t first_row;   /* of the tile: the warpgroup's */
    uint32_t lane, rank;
    ring_place at;
} wide_ring;

template <typename L> ROSE_DEVICE uint32_t slot_before(const wide_ring &r, uint32_t n)
{
    return r.at.slot + (r.at.slot >= n ? 0 : L::STAGES) - n;
}

/* This warp has read the stage in `slot`: every block that copies to it may do so again. */
template <typename L> ROSE_DEVICE void free_stage(const wide_ring &r, uint32_t slot)
{
    if constexpr (L::SHARE == 1) {
        if (r.lane == 0) barrier_arrive(r.in.empty + slot * 8);
    } else {
        if (r.lane < L::SHARE) peer_arrive(peer_address(r.in.empty + slot * 8, r.lane));
    }
}

/* Begin the products of the stage at r->at, for M times 64 rows. `left`: groups of the part from
 * this stage on; the groups after them are multiplied by rows of zeros, because wgmma on a
 * condition would make ptxas wait after each instruction. goes_on: add to acc. */
template <typename T, typename L, int M>
ROSE_DEVICE void start_stage(float (&acc)[M][L::TN / 2], wide_ring *r, uint32_t left, bool goes_on)
{
    const uint64_t zeros = core_matrices(r->in.zeros, 256);
    const uint64_t rows =
        core_matrices(rows_of<L>(r->in, r->at.slot) + r->first_row / 8 * BLOCK_BYTES, BLOCK_BYTES);
    const uint64_t outputs = core_matrices(weights_of<L>(r->in, r->at.slot), BLOCK_BYTES);
    barrier_wait(r->in.full + r->at.slot * 8, r->at.parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STAGE_GROUPS; i++)
#pragma unroll
        for (int p = 0; p < M; p++) {
            const uint64_t mine = rows + i * 16 + p * (8 * BLOCK_BYTES / 16);
            wgmma(acc[p], i < left ? mine : zeros, outputs + i * 16, goes_on || i > 0,
                  static_cast<const T *>(NULL));
        }
    wgmma_commit();
    next_place<L::STAGES>(&r->at);
}

/* acc = the chain of a part of `groups` groups, at least 1. issued(s) is called when the products
 * of stage s are under way, and `under` once after the first stage. */
template <typename T, typename L, int M, typename F, typename G>
ROSE_DEVICE void multiply_part(float (&acc)[M][L::TN / 2], wide_ring *r, uint32_t groups, F issued,
                               G under)
{
    const uint32_t n_stages = stages_of(groups);
    start_stage<T, L, M>(acc, r, groups, false);
    issued(0);
    under();
#pragma unroll 1
    for (uint32_t s = 1; s < n_stages; s++) {
        start_stage<T, L, M>(acc, r, groups - s * STAGE_GROUPS, true);
        issued(s);
        wgmma_wait<1>();
        free_stage<L>(*r, slot_before<L>(*r, 2));
    }
    wgmma_wait<0>();
    free_stage<L>(*r, slot_before<L>(*r, 1));
#pragma unroll
    for (int p = 0; p < M; p++)
        keep_here(acc[p]);
}

#endif
#endif
