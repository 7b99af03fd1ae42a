/* backend/cuda/linear_wide.cuh - matrix products of 16-bit types on sm_90a with both operands of
 * wgmma in shared memory. The same bits as linear.cuh: chunks of 192 values of k, in each the
 * groups of 16 chained in the accumulator from zero, the chunks added in fp32, ascending, to +0; of
 * logits one chain over all of k.
 *
 * Rows of the batch are the 64 rows of wgmma, outputs its columns. Weights come from a second copy,
 * rose_cuda_linear.cores, which the copy engine takes as it takes blocked activations: a stage of
 * 64 values of k is two instructions of one thread, and the threads that multiply issue products
 * and nothing else.
 *
 * A block walks over tiles of GROUPS x 64 rows by TN outputs, a warpgroup for each 64 rows. The
 * contract's two sets of accumulators (a chunk's, the tile's; of logits the second is there for
 * this alone) are used as a double buffer: the first chunk of the next tile is under way in the one
 * while the epilogue works on the other (wide_epilogue.cuh). Tiles go row by row within groups of
 * rows that fit the L2, so that weights are read from memory once for each such group, not once for
 * each tile of rows.
 *
 * The end of a tile is dear: all warps of a multiprocessor are in it at once and wait for the same
 * things. So the bias comes with the tile's stages, and the addition to the residual stream is left
 * to the copy engine (wide_store.cuh).
 *
 * Where tiles do not come out even with multiprocessors and k is long, the last of them are shared
 * out by chunks (wide_walk.h): FC2 of GPT-2, 4224 to 11264 rows, in 0.84 to 0.97 of the time
 * (H100, 2026-11-23). A sum that is handed on lies in the L2, in the order of the registers. What
 * has to wait for it, that stores can be seen and that a flag is set, idle warps do.
 *
 * Where every block has one tile, linear_once.cuh is faster.
 *
 * Bound, ends apart: what copies bring, 40 KB for each 768 cycles of the tensor cores, 53 bytes a
 * cycle, where copies alone of tiles of 128 x 256 came to 46 (H100, 2026-11-23; the L2's way out,
 * which neighbours that ask for the same share). Ends: 32 bytes a cycle that a multiprocessor
 * sends, and GELU's special functions (docs/PERFORMANCE.md). With fp32 logits all kernels measured
 * with both warpgroups on one tile take 1.5 to 1.7 times their products, cuBLASLt's six too: from
 * hundreds of rows on linear_pingpong.cuh is ahead, whose warpgroups take whole tiles by turns. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_WIDE_CUH
#define ROSE_BACKEND_CUDA_LINEAR_WIDE_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_types.h"
#include "backend/cuda/wide_store.cuh"
#include "backend/cuda/wide_walk.h"

enum {
    STAGE_K = 64,
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    CHUNK_STAGES = CHUNK_K / STAGE_K,
    BLOCK_BYTES = STAGE_K * 8 * 2 /* 8 rows or outputs of a stage */
};

/* Where tiles may be shared out (wide_walk.h): where k is long, tiles are of so many outputs (QKV
 * and GELU of four chunks gained nothing; H100, 2026-11-23). */
template <int EPI, int TN>
static constexpr bool SHARED_OUT = TN == 192 && EPI == ROSE_CUDA_EPI_RESIDUAL;
/* Where the residual is added by the copy engine (wide_store.cuh). */
template <int EPI> static constexpr bool STAGED = EPI == ROSE_CUDA_EPI_RESIDUAL;
template <int GROUPS, int TN>
static constexpr int STAGES_OF = TN >= 160 || (GROUPS == 1 && TN == 96) ? 5
                                 : TN == 128                            ? 6
                                                                        : 7;

template <int GROUPS, int TN>
static constexpr uint32_t WIDE_STAGE = (GROUPS * 64 + TN) / 8 * BLOCK_BYTES;
template <int EPI, int GROUPS, int TN> /* the ring, and what is to be stored */
static constexpr uint32_t WIDE_SHARED = STAGES_OF<GROUPS, TN> *WIDE_STAGE<GROUPS, TN> +
                                        (STAGED<EPI> ? GROUPS * 4 * WIDE_OUT : 0);

/* Where sums are handed on: rose_cuda_launch. */
typedef struct wide_hands {
    float *sums;
    uint32_t *flags; /* of each block: its sum is there */
} wide_hands;

#if ROSE_HOPPER

ROSE_DEVICE uint32_t wide_stages(const rose_cuda_linear &l)
{
    return (l.k_pad + CHUNK_K - 1) / CHUNK_K * CHUNK_STAGES; /* beyond k the copies are zeros */
}

/* A place in the ring. */
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

/* Past the n stages of another warpgroup's tile. */
template <int STAGES> ROSE_DEVICE void skip_stages(ring_place *p, uint32_t n)
{
    p->slot += n;
    while (p->slot >= STAGES) {
        p->slot -= STAGES;
        p->parity ^= 1;
    }
}

/* Of so many tiles, by turns, the block keeps the place and the bias: the thread that copies knows
 * them first, and the place is two divisions, for which the warps that multiply would wait. While
 * one tile ends the copies are up to STAGES + 2 stages ahead. Both come with a tile's first stage;
 * of products of one chunk, where a tile is three stages, with its last, so that they do not come
 * before there is room. */
template <int STAGES> static constexpr int KEPT = 2 + (STAGES - 1) / 3;

/* What the thread that copies knows of the block. */
typedef struct wide_copies {
    const CUtensorMap *w_map, *h_map;
    const float *bias;                          /* [n], n a multiple of 4 (wide_takes); or NULL */
    uint32_t ring, full, empty, places, biases; /* shared addresses */
    uint32_t n, n_stages, rank /* of the cluster */;
    uint32_t ends; /* shared address, where tiles are shared out */
    uint32_t rows; /* of SAME_ROWS */
} wide_copies;

/* What the thread that copies tells those that multiply of a turn: nothing, where it lies, or also
 * what of it is the block's, where tiles may be shared out. */
enum { TELLS_NOTHING, TELLS_PLACES, TELLS_PARTS };

/* Where tiles are shared out, the block keeps this of a turn as well: chunks, and a sum of ENDS_*.
 */
enum {
    ENDS_HANDED = 1, /* its sum is handed on */
    ENDS_LAST = 2,
    ENDS_GOES_ON = 4 /* the next turn goes on with a sum */
};

/* Of the tile's bias; none behind the last output. */
template <int TN> ROSE_DEVICE uint32_t bias_bytes(const wide_copies &c, uint32_t n0)
{
    return n0 >= c.n ? 0 : (c.n - n0 < TN ? c.n - n0 : TN) * 4;
}

/* Weights of a stage to `slot`, and the tile's bias to place `place` where it is `biased`. */
template <int GROUPS, int TN, int PEERS>
ROSE_DEVICE void copy_weights(const wide_copies &c, uint32_t slot, uint32_t stage, uint32_t n0,
                              bool biased, uint32_t place)
{
    constexpr uint32_t SHARE = TN / 8 / PEERS;
    const uint32_t full = c.full + slot * 8;
    const uint32_t to = c.ring + slot * WIDE_STAGE<GROUPS, TN> + GROUPS * 8 * BLOCK_BYTES;
    const uint32_t bytes = biased ? bias_bytes<TN>(c, n0) : 0;
    barrier_expect(full, WIDE_STAGE<GROUPS, TN> + bytes);
    if (bytes > 0) copy_piece(c.biases + place * (TN * 4), c.bias + n0, bytes, full);
    if (PEERS == 2)
        copy_box_to(to + c.rank * SHARE * BLOCK_BYTES, c.w_map, stage * (STAGE_K / 8),
                    n0 / 8 + c.rank * SHARE, full, 3);
    else
        copy_box(to, c.w_map, stage * (STAGE_K / 8), n0 / 8, full);
}

ROSE_DEVICE uint32_t ends_of(const wide_turns &t, uint32_t turn)
{
    return (turn == 0 && t.head > 0 ? ENDS_HANDED : 0) | (turn + 1 == t.n ? ENDS_LAST : 0) |
           (turn + 2 == t.n && t.tail > 0 ? ENDS_GOES_ON : 0);
}

/* SAME_ROWS: of pairs that have rows in common, not weights, tiles go by turns (wide_walk.h). */
template <bool SAME_ROWS>
ROSE_DEVICE wide_tile_place place_of_tile(const wide_walk &walk, uint32_t at)
{
    return SAME_ROWS ? wide_place_by_turns(&walk, at) : wide_place(&walk, at);
}

/* The first row that the block copies of a tile. */
template <int GROUPS, int PEERS, bool SAME_ROWS>
ROSE_DEVICE uint32_t first_row(const wide_copies &c, const wide_tile_place &tile)
{
    if (!SAME_ROWS) return (tile.row * PEERS + c.rank) * (GROUPS * 64);
    const uint32_t first = tile.row * (GROUPS * 64), mine = first + c.rank * (GROUPS * 32);
    /* A box of nothing but rows behind the last is slow, and they are not looked at. */
    return mine < c.rows ? mine : first;
}

/* Rows of a stage to `slot`, of SAME_ROWS a half to both blocks. */
template <int GROUPS, int TN, bool SAME_ROWS>
ROSE_DEVICE void copy_rows(const wide_copies &c, uint32_t slot, uint32_t stage, uint32_t row0)
{
    const uint32_t to = c.ring + slot * WIDE_STAGE<GROUPS, TN>, full = c.full + slot * 8;
    if (SAME_ROWS)
        copy_box_to(to + c.rank * (GROUPS * 4 * BLOCK_BYTES), c.h_map, stage * (STAGE_K / 8),
                    row0 / 8, full, 3);
    else
        copy_box(to, c.h_map, stage * (STAGE_K / 8), row0 / 8, full);
}

/* The block's turns. The weights of the first stages are under way before the kernel in front has
 * ended. But for TELLS_PARTS turns is not looked at, as it takes divisions (4 % of QKV of 1408
 * rows; H100, 2026-11-23). SAME_ROWS: the PEERS have rows in common, not weights. */
template <int GROUPS, int TN, int STAGES, int PEERS, int TELLS, bool SAME_ROWS = false>
ROSE_DEVICE void copy_wide(const wide_copies &c, const wide_walk &walk, const wide_shares &shares,
                           const wide_turns &turns)
{
    constexpr bool SHARED = TELLS == TELLS_PARTS;
    const uint32_t b = blockIdx.x / PEERS;
    ring_place p = {0, 1};
    uint32_t early = 0, turn = 0;
    wide_part part = {b, 0, shares.chunks};
    if (SHARED) part = wide_part_of(&shares, &turns, b, 0);
    wide_tile_place tile = place_of_tile<SAME_ROWS>(walk, part.tile);
    const auto copy_stage = [&](uint32_t slot, uint32_t stage) {
        const uint32_t kept = turn % KEPT<STAGES>;
        /* The stage with which place and bias come. */
        const uint32_t first = part.chunk * CHUNK_STAGES;
        const uint32_t told = c.n_stages > CHUNK_STAGES ? first : CHUNK_STAGES - 1;
        if (TELLS != TELLS_NOTHING && stage == told)
            put_shared(c.places + kept * 8, make_uint2(tile.row, tile.col));
        if (SHARED && stage == told)
            put_shared(c.ends + kept * 8, make_uint2(part.n, ends_of(turns, turn)));
        const uint32_t n0 = SAME_ROWS ? (tile.col * PEERS + c.rank) * TN : tile.col * TN;
        copy_weights<GROUPS, TN, SAME_ROWS ? 1 : PEERS>(c, slot, stage, n0,
                                                        stage == told && c.bias != NULL, kept);
    };

    for (; early < STAGES && early < part.n * CHUNK_STAGES; early++)
        copy_stage(early, early);
    pdl_wait();
    for (;;) {
        const uint32_t row0 = first_row<GROUPS, PEERS, SAME_ROWS>(c, tile);
        const uint32_t end = (part.chunk + part.n) * CHUNK_STAGES;
        for (uint32_t s = part.chunk * CHUNK_STAGES; s < end; s++) {
            if (early > 0) {
                early--;
            } else {
                barrier_wait(c.empty + p.slot * 8, p.parity);
                copy_stage(p.slot, s);
            }
            copy_rows<GROUPS, TN, SAME_ROWS>(c, p.slot, s, row0);
            next_place<STAGES>(&p);
        }
        turn++;
        if (SHARED) {
            if (turn == turns.n) return;
            part = wide_part_of(&shares, &turns, b, turn);
        } else {
            part.tile += shares.blocks;
            if (part.tile >= shares.by_turns) return;
        }
        tile = place_of_tile<SAME_ROWS>(walk, part.tile);
    }
}

/* What a warpgroup that multiplies knows of the block. */
typedef struct wide_ring {
    uint32_t ring, full, empty, places, biases, out; /* shared addresses; out: of the warp */
    uint32_t group, lane, rank /* of the cluster */;
    ring_place at;
    uint32_t chunk; /* its parity */
    /* linear_cluster.cuh: the barrier, of slot 0, at which the lane arrives; stages left to free.
     */
    uint32_t to, left;
    /* Where tiles are shared out: rose_cuda_launch, and shared addresses. */
    float *sums;
    uint32_t ends;
    uint32_t handed; /* the barrier at which warps arrive that have handed a sum on */
    uint32_t taken;  /* and that of the sum with which the last turn goes on */
} wide_ring;

/* The products of the stage at r->at, as one group; begin: of a chunk. There: it will be; else what
 * lies there is multiplied. */
template <typename T, int GROUPS, int TN, int STAGES>
ROSE_DEVICE void start_stage(float (&acc)[TN / 2], wide_ring *r, bool begin, bool there)
{
    const uint32_t at = r->ring + r->at.slot * WIDE_STAGE<GROUPS, TN>;
    const uint64_t rows = core_matrices(at + r->group * (8 * BLOCK_BYTES), BLOCK_BYTES);
    const uint64_t outputs = core_matrices(at + GROUPS * 8 * BLOCK_BYTES, BLOCK_BYTES);
    if (there) barrier_wait(r->full + r->at.slot * 8, r->at.parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STAGE_K / 16; i++)
        wgmma(acc, rows + i * 16, outputs + i * 16, !begin || i > 0, static_cast<const T *>(NULL));
    wgmma_commit();
    next_place<STAGES>(&r->at);
}

/* The slot of n stages ago. */
template <int STAGES> ROSE_DEVICE uint32_t slot_before(const wide_ring &r, uint32_t n)
{
    return r.at.slot + (r.at.slot >= n ? 0 : STAGES) - n;
}

/* Of multiply_chunk, in place of a number of peers: as linear_cluster.cuh has them. */
enum { BY_CLUSTER = 0 };

/* This warp has read the stage in `slot`: every block that copies to it may do so again. */
template <int PEERS> ROSE_DEVICE void free_stage(wide_ring *r, uint32_t slot)
{
    if constexpr (PEERS == BY_CLUSTER) {
        if (r->left == 0) return;
        r->left--;
        if (r->to != 0) peer_arrive(r->to + slot * 8);
    } else if constexpr (PEERS == 1) {
        if (r->lane == 0) barrier_arrive(r->empty + slot * 8);
    } else {
        if (r->lane < PEERS) peer_arrive(peer_address(r->empty + slot * 8, r->lane));
    }
}

/* The second warpgroup stays a stage behind the first, so that one's products run under the other's
 * additions: in step, both would add at once and the tensor cores rest. Two barriers in turn: the
 * first may be more than a chunk ahead, but not two, as it waits for stages that the second has
 * freed (of more than seven stages it would not). Behind the last tile (not there) it waits for
 * nothing, and neither comes to a barrier: the first could complete by itself one at which the
 * second still waits. */
template <int GROUPS> ROSE_DEVICE void keep_behind(wide_ring *r, int stage, bool there)
{
    if (GROUPS == 1) return;
    if (stage == 0) pair_wait(1 + r->chunk, there ? r->group : 0);
    if (stage == 1) pair_arrive(1 + r->chunk, there ? r->group : 1);
    if (stage == CHUNK_STAGES - 1) r->chunk ^= 1;
}

/* Stage s of a chunk, which begins anew or GOES_ON with what is in the accumulators. */
template <typename T, int GROUPS, int TN, int STAGES, bool GOES_ON>
ROSE_DEVICE void start_in_turn(float (&acc)[TN / 2], wide_ring *r, int s, bool there)
{
    static_assert(GROUPS == 1 || STAGES <= 2 * CHUNK_STAGES + 1,
                  "the first warpgroup would come to a barrier twice before the second");
    if (s == 0) keep_behind<GROUPS>(r, s, there);
    start_stage<T, GROUPS, TN, STAGES>(acc, r, !GOES_ON && s == 0, there);
    if (s > 0) keep_behind<GROUPS>(r, s, there);
}

template <typename T, int GROUPS, int TN, int STAGES, int PEERS, bool GOES_ON = false>
ROSE_DEVICE void multiply_chunk(float (&acc)[TN / 2], wide_ring *r)
{
    uint32_t before = 0;
#pragma unroll
    for (int s = 0; s < CHUNK_STAGES; s++) {
        const uint32_t slot = r->at.slot;
        start_in_turn<T, GROUPS, TN, STAGES, GOES_ON>(acc, r, s, true);
        if (s > 0) {
            wgmma_wait<1>();
            free_stage<PEERS>(r, before);
        }
        before = slot;
    }
    wgmma_wait<0>();
    free_stage<PEERS>(r, before);
    keep_here(acc);
}

/* Of the tile of this turn, all of whose stages have come. One lane reads it, and the others have
 * it from there before any of them frees a stage of the next tile. */
template <int STAGES> ROSE_DEVICE wide_tile_place kept_place(const wide_ring &r, uint32_t turn)
{
    uint2 v = make_uint2(0, 0);
    if (r.lane == 0) get_shared(&v, r.places + turn % KEPT<STAGES> * 8);
    return {__shfl_sync(ROSE_ALL_LANES, v.x, 0), __shfl_sync(ROSE_ALL_LANES, v.y, 0)};
}

/* Where tiles are shared out. All lanes have it when the warp's next products begin. */
template <int STAGES> ROSE_DEVICE uint2 kept_ends(const wide_ring &r, uint32_t turn)
{
    uint2 v;
    get_shared(&v, r.ends + turn % KEPT<STAGES> * 8);
    return v;
}

template <int N> ROSE_DEVICE void add_chunk(float (&sum)[N], const float (&acc)[N], bool first)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = (first ? 0.0f : sum[i]) + acc[i];
}

/* Where the lane's sum of a tile lies when block `b` hands it on: of each lane float4 after float4,
 * 32 apart. */
template <int TN> ROSE_DEVICE float4 *sum_place(float *sums, uint32_t b)
{
    return reinterpret_cast<float4 *>(sums + (size_t)b * ROSE_CUDA_SUMS) +
           (threadIdx.x / 32 - 4) * (TN / 8 * 32) + threadIdx.x % 32;
}

/* Part 0, 1 or 2 of the tile. */
template <int TN, int PART> ROSE_DEVICE void hand_on(const wide_ring &r, const float (&s)[TN / 2])
{
    float4 *to = sum_place<TN>(r.sums, blockIdx.x);
#pragma unroll
    for (int i = PART * (TN / 8) / 3; i < (PART + 1) * (TN / 8) / 3; i++)
        to[i * 32] = make_float4(s[i * 4], s[i * 4 + 1], s[i * 4 + 2], s[i * 4 + 3]);
    if (PART < 2) return;
    __syncwarp();
    if (r.lane == 0) barrier_arrive(r.handed);
}

/* A part of the sum with which the last turn goes on. Waits for it, not for the loads. */
template <int TN, int PEERS, int PART>
ROSE_DEVICE void take_sum(const wide_ring &r, float (&s)[TN / 2])
{
    if (PART == 0) barrier_wait(r.taken, 0);
    const float4 *from = sum_place<TN>(r.sums, blockIdx.x - PEERS);
#pragma unroll
    for (int i = PART * (TN / 8) / 3; i < (PART + 1) * (TN / 8) / 3; i++) {
        const float4 v = load_now(from + i * 32);
        s[i * 4] = v.x;
        s[i * 4 + 1] = v.y;
        s[i * 4 + 2] = v.z;
        s[i * 4 + 3] = v.w;
    }
}

/* Part 0, 1 or 2 of the tile: about a third of its blocks of 16 outputs. By twos where the residual
 * is added, and where none may have outputs of two of q, K and V. */
template <typename T, int EPI, int GROUPS, int TN, int PART>
ROSE_DEVICE void finish_part(wide_tile *w, const wide_ring &r, const float (&s)[TN / 2],
                             const rose_cuda_linear &l, const rose_cuda_io &io,
                             const CUtensorMap *x_map)
{
    constexpr int BY = STAGED<EPI> || EPI == ROSE_CUDA_EPI_QKV ? 2 : 1, ALL = TN / 16 / BY;
    constexpr int FIRST = PART * ALL / 3 * BY, N = (PART + 1) * ALL / 3 * BY - FIRST;
    if constexpr (STAGED<EPI>)
        stage_residual<TN, FIRST, N>(*w, r.out, x_map, s, l, io);
    else
        finish_wide<T, EPI, TN, FIRST, N>(w, NULL, s, l, io);
}

/* The flags, by two warps that do nothing else: what they wait for is far away, until all that the
 * block has stored can be seen, and until the block before has done so. */
template <int PEERS>
ROSE_DEVICE void pass_sums(const wide_turns &turns, const wide_hands &hands, uint32_t handed,
                           uint32_t taken)
{
    if (threadIdx.x == 32 && turns.head > 0) {
        barrier_wait(handed, 0); /* of warps that are behind pdl_wait */
        flag_put(hands.flags + blockIdx.x);
    }
    if (threadIdx.x == 64 && turns.tail > 0) {
        pdl_wait();
        flag_take(hands.flags + blockIdx.x - PEERS);
        barrier_arrive(taken);
    }
}

template <typename T, int EPI, int GROUPS, int TN, int PEERS, int PART>
ROSE_DEVICE void end_part(wide_tile *w, const wide_ring &r, float (&s)[TN / 2],
                          const rose_cuda_linear &l, const rose_cuda_io &io,
                          const CUtensorMap *x_map, uint32_t ends)
{
    if ((ends & ENDS_HANDED) != 0)
        hand_on<TN, PART>(r, s);
    else
        finish_part<T, EPI, GROUPS, TN, PART>(w, r, s, l, io, x_map);
    /* The registers of this part are free, and the loads under way while the rest ends. But a sum
     * is handed on before one is waited for, else all blocks hand theirs on one after the other. */
    if ((ends & ENDS_GOES_ON) == 0) return;
    if ((ends & ENDS_HANDED) == 0) {
        take_sum<TN, PEERS, PART>(r, s);
    } else if (PART == 2) {
        take_sum<TN, PEERS, 0>(r, s);
        take_sum<TN, PEERS, 1>(r, s);
        take_sum<TN, PEERS, 2>(r, s);
    }
}

template <typename T, int EPI, int GROUPS, int TN, int STAGES, int PEERS>
ROSE_DEVICE void multiply_wide(const rose_cuda_linear &l, const rose_cuda_io &io,
                               const wide_shares &shares, wide_ring *r, const CUtensorMap *x_map)
{
    constexpr bool SHARED = SHARED_OUT<EPI, TN>, CHAIN_OF_ALL = EPI == ROSE_CUDA_EPI_LOGITS;
    /* The chunk's last stage may not be there yet: the largest tiles' end does not wait for it. */
    constexpr int EARLY = TN >= 160 ? CHUNK_STAGES - 1 : CHUNK_STAGES;
    const uint32_t n_chunks = wide_stages(l) / CHUNK_STAGES;
    const uint32_t my_row = (r->rank * GROUPS + r->group) * 64 + threadIdx.x % 128 / 32 * 16;
    float acc[TN / 2], sum[TN / 2];
    wide_tile done;
    uint32_t turn = 0, at = blockIdx.x / PEERS;

    pdl_wait();
    multiply_chunk<T, GROUPS, TN, STAGES, PEERS>(acc, r);
    if (!CHAIN_OF_ALL) add_chunk(sum, acc, true);
    for (;;) {
        const uint32_t n = SHARED ? kept_ends<STAGES>(*r, turn).x : n_chunks;
#pragma unroll 1
        for (uint32_t c = 1; c < n; c++) {
            multiply_chunk<T, GROUPS, TN, STAGES, PEERS, CHAIN_OF_ALL>(acc, r);
            if (!CHAIN_OF_ALL) add_chunk(sum, acc, false);
        }
        if (CHAIN_OF_ALL) add_chunk(sum, acc, true);
        const wide_tile_place tile = kept_place<STAGES>(*r, turn);
        begin_wide<EPI>(&done, io, tile.row * (PEERS * GROUPS * 64) + my_row, tile.col * TN);
        done.bias = r->biases + turn % KEPT<STAGES> * (TN * 4);
        const uint32_t ends = SHARED ? kept_ends<STAGES>(*r, turn).y : 0;
        turn++;
        at += shares.blocks;
        const bool more = SHARED ? (ends & ENDS_LAST) == 0 : at < shares.by_turns;
        /* The next tile's first chunk, and this one's epilogue under it. Behind the last tile the
         * products are of what lies there, and for nothing: on condition ptxas puts a wait behind
         * each (C7518), and a second epilogue without products is code that is fetched anew. */
#pragma unroll
        for (int s = 0; s < EARLY; s++)
            start_in_turn<T, GROUPS, TN, STAGES, false>(acc, r, s, more);
        if (EPI == ROSE_CUDA_EPI_QKV) find_places(&done, l, io);
        end_part<T, EPI, GROUPS, TN, PEERS, 0>(&done, *r, sum, l, io, x_map, ends);
        if (EARLY < CHUNK_STAGES) start_in_turn<T, GROUPS, TN, STAGES, false>(acc, r, EARLY, more);
        wgmma_wait<2>();
        if (more) free_stage<PEERS>(r, slot_before<STAGES>(*r, 3));
        end_part<T, EPI, GROUPS, TN, PEERS, 1>(&done, *r, sum, l, io, x_map, ends);
        wgmma_wait<1>();
        if (more) free_stage<PEERS>(r, slot_before<STAGES>(*r, 2));
        end_part<T, EPI, GROUPS, TN, PEERS, 2>(&done, *r, sum, l, io, x_map, ends);
        if (EPI == ROSE_CUDA_EPI_LOGITS) end_wide_logits<TN>(done, sum, l, io);
        wgmma_wait<0>();
        keep_here(acc);
        if (!more) break;
        free_stage<PEERS>(r, slot_before<STAGES>(*r, 1));
        if (CHAIN_OF_ALL) continue;
        if ((ends & ENDS_GOES_ON) != 0)
            add_chunk(sum, acc, false);
        else
            add_chunk(sum, acc, true);
    }
    if (STAGED<EPI> && threadIdx.x % 32 == 0) copies_done();
}

#endif

/* One warpgroup to copy, GROUPS to multiply. Of two PEERS, blocks that are neighbours in rows and
 * share their weights, each copies half of them to both. */
template <typename T, int EPI, int GROUPS, int TN, int PEERS>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, GROUPS == 1 ? 2 : 1)
    wide_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                const wide_shares shares, const wide_hands hands,
                const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap h_map,
                const __grid_constant__ CUtensorMap x_map)
{
#if ROSE_HOPPER
    constexpr int STAGES = STAGES_OF<GROUPS, TN>;
    constexpr bool SHARED = SHARED_OUT<EPI, TN>;
    const uint32_t rank = PEERS > 1 ? cluster_rank() : 0;
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[STAGES], empty[STAGES], handed, taken;
    __shared__ __align__(16) float biases[KEPT<STAGES>][TN];
    __shared__ uint2 places[KEPT<STAGES>], ends[KEPT<STAGES>];
    /* A place is used again KEPT turns on. The turns between are neither the block's first nor its
     * last, and so whole tiles, where tiles are shared out as well. */
    static_assert((KEPT<STAGES> - 1) * CHUNK_STAGES + CHUNK_STAGES - 1 >= STAGES + 2 &&
                      (KEPT<STAGES> - 1) * 2 * CHUNK_STAGES >= STAGES + 2,
                  "a place or a bias comes before there is room");
    static_assert(WIDE_SHARED<EPI, GROUPS, TN> +
                          (sizeof full + sizeof empty + sizeof handed + sizeof taken +
                           sizeof biases + sizeof places + sizeof ends + 1023) /
                              1024 * 1024 <=
                      227 * 1024 / (GROUPS == 1 ? 2 : 1),
                  "more shared memory than a block may have");
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty), handed_at = shared_address(&handed),
                   taken_at = shared_address(&taken);
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, PEERS * GROUPS * 4);
        }
        barrier_init(handed_at, GROUPS * 4);
        barrier_init(taken_at, 1);
        barrier_init_done();
    }
    __syncthreads();
    if (PEERS > 1) cluster_sync(); /* the other block's barriers are there, too */
    wide_turns turns = {};
    if (SHARED) turns = wide_turns_of(&shares, blockIdx.x / PEERS);
    if (threadIdx.x < 128) {
        if (SHARED)
            fewer_registers<56>();
        else if (PEERS > 1)
            fewer_registers<40>();
        else
            fewer_registers<24>();
        if (threadIdx.x == 0) {
            const wide_copies c = {.w_map = &w_map,
                                   .h_map = &h_map,
                                   .bias = EPI == ROSE_CUDA_EPI_LOGITS ? NULL : l.bias,
                                   .ring = ring,
                                   .full = full_at,
                                   .empty = empty_at,
                                   .places = shared_address(places),
                                   .biases = shared_address(biases),
                                   .n = l.n,
                                   .n_stages = wide_stages(l),
                                   .rank = rank,
                                   .ends = shared_address(ends)};
            copy_wide<GROUPS, TN, STAGES, PEERS, SHARED ? TELLS_PARTS : TELLS_PLACES>(
                c, walk, shares, turns);
            if (io.late) pdl_launch();
        }
        if (SHARED) pass_sums<PEERS>(turns, hands, handed_at, taken_at);
    } else {
        if (GROUPS == 1 || SHARED)
            more_registers<224>();
        else if (PEERS > 1)
            more_registers<232>();
        else
            more_registers<240>();
        wide_ring r = {.ring = ring,
                       .full = full_at,
                       .empty = empty_at,
                       .places = shared_address(places),
                       .biases = shared_address(biases),
                       .out = ring + STAGES * WIDE_STAGE<GROUPS, TN> +
                              (threadIdx.x / 32 - 4) * WIDE_OUT,
                       .group = threadIdx.x / 128 - 1,
                       .lane = threadIdx.x % 32,
                       .rank = rank,
                       .at = {0, 0},
                       .chunk = 0,
                       .sums = hands.sums,
                       .ends = shared_address(ends),
                       .handed = handed_at,
                       .taken = taken_at};
        multiply_wide<T, EPI, GROUPS, TN, STAGES, PEERS>(l, io, shares, &r, &x_map);
    }
    if (PEERS > 1) {
        __syncthreads();
        cluster_sync(); /* the other block may still copy and arrive here */
    }
#endif
}

/* ---- launchers ---- */

static PFN_cuTensorMapEncodeTiled_v12000 g_encode; /* of the driver; set by init */
static int g_multiprocessors;

/* As make_map of linear_team.cuh, for the copy of the weights and for the rows. */
static cudaError_t map_cores(CUtensorMap *map, const void *base, uint32_t k_pad, uint32_t blocks,
                             uint32_t box_blocks)
{
    const cuuint64_t size[3] = {64, k_pad / 8, blocks}, pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, STAGE_K / 8, box_blocks}, one[3] = {1, 1, 1};
    const CUresult r =
        g_encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(base), size, pitch, box,
                 one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The residual stream as wide_store.cuh adds to it. */
static cudaError_t map_residual(CUtensorMap *map, const rose_cuda_io *io, uint32_t n)
{
    const cuuint64_t size[2] = {n, io->rows}, pitch[1] = {(cuuint64_t)io->ld_x * sizeof(float)};
    const cuuint32_t box[2] = {PLACE_COLUMNS, PLACE_ROWS}, one[2] = {1, 1};
    const CUresult r = g_encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, io->x, size, pitch, box,
                                one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int EPI, int GROUPS, int TN, int PEERS>
static cudaError_t launch_wide(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    wide_walk walk =
        wide_walk_of(io->rows, PEERS * GROUPS * 64, l->n, TN, (uint64_t)l->k_pad * sizeof(T));
    const uint32_t most = (uint32_t)g_multiprocessors / PEERS * (GROUPS == 1 ? 2 : 1);
    const wide_hands hands = {at->sums, at->sum_flags};
    const wide_shares shares =
        wide_shares_of(walk.n, walk.n < most ? walk.n : most, (l->k_pad + CHUNK_K - 1) / CHUNK_K,
                       SHARED_OUT<EPI, TN> && rose_cuda_wide_shares(at));
    wide_group_shared(&walk, &shares);
    CUtensorMap w, h, x = {};
    cudaError_t e = map_cores(&w, l->cores, l->k_pad, l->n_pad / 8, TN / 8 / PEERS);
    if (e == cudaSuccess) e = map_cores(&h, io->h, l->k_pad, (io->rows + 7) / 8, GROUPS * 8);
    if (e == cudaSuccess && STAGED<EPI>) e = map_residual(&x, io, l->n);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, PEERS, wide_kernel<T, EPI, GROUPS, TN, PEERS>,
                           dim3(shares.blocks * PEERS), (GROUPS + 1) * 128,
                           (size_t)WIDE_SHARED<EPI, GROUPS, TN>, *l, *io, walk, shares, hands, w, h,
                           x);
}

/* Every kernel once: which of rose_cuda_wide, end, warpgroups, outputs of a tile, peers. Of one
 * warpgroup the head alone: else linear_once.cuh. */
#define WIDE_KERNELS(M)                                                                            \
    M(ROSE_CUDA_WIDE_192, ROSE_CUDA_EPI_QKV, 2, 192, 1)                                            \
    M(ROSE_CUDA_WIDE_192, ROSE_CUDA_EPI_ACT, 2, 192, 1)                                            \
    M(ROSE_CUDA_WIDE_192, ROSE_CUDA_EPI_LOGITS, 2, 192, 1)                                         \
    M(ROSE_CUDA_WIDE_192_PAIR, ROSE_CUDA_EPI_RESIDUAL, 2, 192, 2)                                  \
    M(ROSE_CUDA_WIDE_160, ROSE_CUDA_EPI_RESIDUAL, 2, 160, 1)                                       \
    M(ROSE_CUDA_WIDE_128, ROSE_CUDA_EPI_QKV, 2, 128, 1)                                            \
    M(ROSE_CUDA_WIDE_128, ROSE_CUDA_EPI_RESIDUAL, 2, 128, 1)                                       \
    M(ROSE_CUDA_WIDE_128, ROSE_CUDA_EPI_ACT, 2, 128, 1)                                            \
    M(ROSE_CUDA_WIDE_96, ROSE_CUDA_EPI_QKV, 2, 96, 1)                                              \
    M(ROSE_CUDA_WIDE_96, ROSE_CUDA_EPI_RESIDUAL, 2, 96, 1)                                         \
    M(ROSE_CUDA_WIDE_96, ROSE_CUDA_EPI_ACT, 2, 96, 1)                                              \
    M(ROSE_CUDA_WIDE_96, ROSE_CUDA_EPI_LOGITS, 2, 96, 1)                                           \
    M(ROSE_CUDA_WIDE_64_96, ROSE_CUDA_EPI_LOGITS, 1, 96, 1)                                        \
    M(ROSE_CUDA_WIDE_64_48, ROSE_CUDA_EPI_LOGITS, 1, 48, 1)

template <typename T>
static cudaError_t run_wide(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io, rose_cuda_wide kernel)
{
#define LAUNCH(KIND, EPI, G, N, P)                                                                 \
    if (kernel == KIND && io->epilogue == EPI) return launch_wide<T, EPI, G, N, P>(at, l, io);
    WIDE_KERNELS(LAUNCH)
#undef LAUNCH
    return cudaErrorInvalidValue;
}

/* A kernel and the dynamic shared memory that it is launched with, bytes. */
typedef struct wide_needs {
    const void *kernel;
    size_t shared;
} wide_needs;

static cudaError_t allow_shared(const wide_needs *kernels, size_t n)
{
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < n && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)kernels[i].shared);
    return e;
}

/* The kernels are empty in code that is not for sm_90a: then they have no shared memory. */
template <typename T> static cudaError_t init_wide(bool *there)
{
#define KERNEL(KIND, EPI, G, N, P)                                                                 \
    {(const void *)wide_kernel<T, EPI, G, N, P>, (size_t)WIDE_SHARED<EPI, G, N>},
    const wide_needs kernels[] = {WIDE_KERNELS(KERNEL)};
#undef KERNEL
    int major = 0;
    cudaFuncAttributes a;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;

    *there = false;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (e != cudaSuccess || major != 9) return e;
    e = cudaFuncGetAttributes(&a, kernels[0].kernel);
    if (e != cudaSuccess || a.sharedSizeBytes == 0) return e;
    e = cudaDeviceGetAttribute(&g_multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    if (e == cudaSuccess)
        e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                             cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) return e;
    g_encode = (PFN_cuTensorMapEncodeTiled_v12000)encode;
    e = allow_shared(kernels, sizeof kernels / sizeof *kernels);
    *there = e == cudaSuccess;
    return e;
}

#endif
