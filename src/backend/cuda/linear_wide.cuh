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

#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_typed.cuh"
#include "backend/cuda/wide_store.cuh"
#include "backend/cuda/wide_walk.h"

enum {
    STAGE_K = 64,
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    CHUNK_STAGES = CHUNK_K / STAGE_K,
    BLOCK_BYTES = STAGE_K * 8 * 2 /* 8 rows or outputs of a stage */
};

/* Where the residual is added by the copy engine (wide_store.cuh). */
template <int EPI> static constexpr bool STAGED = EPI == ROSE_CUDA_EPI_RESIDUAL;
template <int GROUPS, int TN>
static constexpr uint32_t WIDE_STAGE = (GROUPS * 64 + TN) / 8 * BLOCK_BYTES;
template <int EPI, int GROUPS, int TN, int STAGES> /* the ring, and what is to be stored */
static constexpr uint32_t WIDE_SHARED = STAGES *WIDE_STAGE<GROUPS, TN> +
                                        (STAGED<EPI> ? GROUPS * 4 * WIDE_OUT : 0);

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
    uint32_t rows; /* of SAME_ROWS */
} wide_copies;

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

/* The block's tiles, every `blocks`-th of the walk. The weights of the first stages are under way
 * before the kernel in front has ended. TELLS: places of tiles go to those that multiply.
 * SAME_ROWS: the PEERS have rows in common, not weights. */
template <int GROUPS, int TN, int STAGES, int PEERS, bool TELLS, bool SAME_ROWS = false>
ROSE_DEVICE void copy_wide(const wide_copies &c, const wide_walk &walk, uint32_t blocks)
{
    ring_place p = {0, 1};
    uint32_t early = 0, turn = 0, at = blockIdx.x / PEERS;
    wide_tile_place tile = place_of_tile<SAME_ROWS>(walk, at);
    /* The stage with which place and bias come. */
    const uint32_t told = c.n_stages > CHUNK_STAGES ? 0 : CHUNK_STAGES - 1;
    const auto copy_stage = [&](uint32_t slot, uint32_t stage) {
        const uint32_t kept = turn % KEPT<STAGES>;
        if (TELLS && stage == told) put_shared(c.places + kept * 8, make_uint2(tile.row, tile.col));
        const uint32_t n0 = SAME_ROWS ? (tile.col * PEERS + c.rank) * TN : tile.col * TN;
        copy_weights<GROUPS, TN, SAME_ROWS ? 1 : PEERS>(c, slot, stage, n0,
                                                        stage == told && c.bias != NULL, kept);
    };

    for (; early < STAGES && early < c.n_stages; early++)
        copy_stage(early, early);
    pdl_wait();
    for (;;) {
        const uint32_t row0 = first_row<GROUPS, PEERS, SAME_ROWS>(c, tile);
        for (uint32_t s = 0; s < c.n_stages; s++) {
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
        at += blocks;
        if (at >= walk.n) return;
        tile = place_of_tile<SAME_ROWS>(walk, at);
    }
}

/* What a warpgroup that multiplies knows of the block. */
typedef struct wide_ring {
    uint32_t ring, full, empty, places, biases, out; /* shared addresses; out: of the warp */
    uint32_t group, lane, rank /* of the cluster */;
    ring_place at;
    uint32_t chunk; /* its parity */
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

/* This warp has read the stage in `slot`: every block that copies to it may do so again. */
template <int PEERS> ROSE_DEVICE void free_stage(wide_ring *r, uint32_t slot)
{
    if constexpr (PEERS == 1) {
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

template <int N> ROSE_DEVICE void add_chunk(float (&sum)[N], const float (&acc)[N], bool first)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = (first ? 0.0f : sum[i]) + acc[i];
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

template <typename T, int EPI, int GROUPS, int TN, int STAGES, int PEERS>
ROSE_DEVICE void multiply_wide(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n_tiles,
                               uint32_t blocks, wide_ring *r, const CUtensorMap *x_map)
{
    constexpr bool CHAIN_OF_ALL = EPI == ROSE_CUDA_EPI_LOGITS;
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
#pragma unroll 1
        for (uint32_t c = 1; c < n_chunks; c++) {
            multiply_chunk<T, GROUPS, TN, STAGES, PEERS, CHAIN_OF_ALL>(acc, r);
            if (!CHAIN_OF_ALL) add_chunk(sum, acc, false);
        }
        if (CHAIN_OF_ALL) add_chunk(sum, acc, true);
        const wide_tile_place tile = kept_place<STAGES>(*r, turn);
        begin_wide<EPI>(&done, io, tile.row * (PEERS * GROUPS * 64) + my_row, tile.col * TN);
        done.bias = r->biases + turn % KEPT<STAGES> * (TN * 4);
        turn++;
        at += blocks;
        const bool more = at < n_tiles;
        /* The next tile's first chunk, and this one's epilogue under it. Behind the last tile the
         * products are of what lies there, and for nothing: on condition ptxas puts a wait behind
         * each (C7518), and a second epilogue without products is code that is fetched anew. */
#pragma unroll
        for (int s = 0; s < EARLY; s++)
            start_in_turn<T, GROUPS, TN, STAGES, false>(acc, r, s, more);
        if (EPI == ROSE_CUDA_EPI_QKV) find_places(&done, l, io);
        finish_part<T, EPI, GROUPS, TN, 0>(&done, *r, sum, l, io, x_map);
        if (EARLY < CHUNK_STAGES) start_in_turn<T, GROUPS, TN, STAGES, false>(acc, r, EARLY, more);
        wgmma_wait<2>();
        if (more) free_stage<PEERS>(r, slot_before<STAGES>(*r, 3));
        finish_part<T, EPI, GROUPS, TN, 1>(&done, *r, sum, l, io, x_map);
        wgmma_wait<1>();
        if (more) free_stage<PEERS>(r, slot_before<STAGES>(*r, 2));
        finish_part<T, EPI, GROUPS, TN, 2>(&done, *r, sum, l, io, x_map);
        if (EPI == ROSE_CUDA_EPI_LOGITS) end_wide_logits<TN>(done, sum, l, io);
        wgmma_wait<0>();
        keep_here(acc);
        if (!more) break;
        free_stage<PEERS>(r, slot_before<STAGES>(*r, 1));
        if (!CHAIN_OF_ALL) add_chunk(sum, acc, true);
    }
    if (STAGED<EPI> && threadIdx.x % 32 == 0) copies_done();
}

#endif

/* One warpgroup to copy, GROUPS to multiply. Of two PEERS, blocks that are neighbours in rows and
 * share their weights, each copies half of them to both. */
template <typename T, int EPI, int GROUPS, int TN, int STAGES, int PEERS>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, GROUPS == 1 ? 2 : 1)
    wide_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                const uint32_t blocks, const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap h_map,
                const __grid_constant__ CUtensorMap x_map)
{
#if ROSE_HOPPER
    const uint32_t rank = PEERS > 1 ? cluster_rank() : 0;
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ __align__(16) float biases[KEPT<STAGES>][TN];
    __shared__ uint2 places[KEPT<STAGES>]; /* a place is used again KEPT turns on */
    static_assert((KEPT<STAGES> - 1) * CHUNK_STAGES + CHUNK_STAGES - 1 >= STAGES + 2 &&
                      (KEPT<STAGES> - 1) * 2 * CHUNK_STAGES >= STAGES + 2,
                  "a place or a bias comes before there is room");
    static_assert(WIDE_SHARED<EPI, GROUPS, TN, STAGES> +
                          (sizeof full + sizeof empty + sizeof biases + sizeof places + 1023) /
                              1024 * 1024 <=
                      227 * 1024 / (GROUPS == 1 ? 2 : 1),
                  "more shared memory than a block may have");
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty);
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, PEERS * GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (PEERS > 1) cluster_sync(); /* the other block's barriers are there, too */
    if (threadIdx.x < 128) {
        if (PEERS > 1)
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
                                   .rank = rank};
            copy_wide<GROUPS, TN, STAGES, PEERS, true>(c, walk, blocks);
            if (io.late) pdl_launch();
        }
    } else {
        if (GROUPS == 1)
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
                       .chunk = 0};
        multiply_wide<T, EPI, GROUPS, TN, STAGES, PEERS>(l, io, walk.n, blocks, &r, &x_map);
    }
    if (PEERS > 1) {
        __syncthreads();
        cluster_sync(); /* the other block may still copy and arrive here */
    }
#endif
}

/* ---- launchers ---- */

/* As make_map of linear_team.cuh, for the copy of the weights and for the rows. */
static cudaError_t map_cores(const rose_cuda_device *d, CUtensorMap *map, const void *base,
                             uint32_t k_pad, uint32_t blocks, uint32_t box_blocks)
{
    const cuuint64_t size[3] = {64, k_pad / 8, blocks}, pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, STAGE_K / 8, box_blocks}, one[3] = {1, 1, 1};
    const CUresult r =
        encoder_of(d)(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(base), size, pitch,
                      box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The residual stream as wide_store.cuh adds to it. */
static cudaError_t map_residual(const rose_cuda_device *d, CUtensorMap *map, const rose_cuda_io *io,
                                uint32_t n)
{
    const cuuint64_t size[2] = {n, io->rows}, pitch[1] = {(cuuint64_t)io->ld_x * sizeof(float)};
    const cuuint32_t box[2] = {PLACE_COLUMNS, PLACE_ROWS}, one[2] = {1, 1};
    const CUresult r =
        encoder_of(d)(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, io->x, size, pitch, box, one,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int EPI, int GROUPS, int TN, int STAGES, int PEERS>
static cudaError_t launch_wide(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const wide_walk walk =
        wide_walk_of(io->rows, PEERS * GROUPS * 64, l->n, TN, (uint64_t)l->k_pad * sizeof(T));
    const uint32_t most = at->device->sms / PEERS * (GROUPS == 1 ? 2 : 1);
    const uint32_t blocks = walk.n < most ? walk.n : most;
    CUtensorMap w, h, x = {};
    cudaError_t e = map_cores(at->device, &w, l->cores, l->k_pad, l->n_pad / 8, TN / 8 / PEERS);
    if (e == cudaSuccess)
        e = map_cores(at->device, &h, io->h, l->k_pad, (io->rows + 7) / 8, GROUPS * 8);
    if (e == cudaSuccess && STAGED<EPI>) e = map_residual(at->device, &x, io, l->n);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, PEERS, wide_kernel<T, EPI, GROUPS, TN, STAGES, PEERS>,
                           dim3(blocks * PEERS), (GROUPS + 1) * 128,
                           (size_t)WIDE_SHARED<EPI, GROUPS, TN, STAGES>, *l, *io, walk, blocks, w,
                           h, x);
}

/* Once for each line of the table. */
#define RUN_WIDE(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, PEERS, across, share, head,   \
                 ENDS)                                                                             \
    cudaError_t ROSE_TYPED(rose_gemm_##id)(const rose_cuda_launch *at, const rose_cuda_linear *l,  \
                                           const rose_cuda_io *io)                                 \
    {                                                                                              \
        static_assert(ROWS == GROUPS * 64, "64 rows of a tile a warpgroup");                       \
        return for_end<ENDS>(io->epilogue, [&](auto end) {                                         \
            return launch_wide<ROSE_T, end.value, GROUPS, TN, STAGES, PEERS>(at, l, io);           \
        });                                                                                        \
    }
ROSE_WIDE_KERNELS(RUN_WIDE)
#undef RUN_WIDE

cudaError_t ROSE_TYPED(rose_prepare_wide)(const rose_cuda_device *)
{
    cudaError_t e = cudaSuccess;
#define PREPARE(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, PEERS, across, share, head,    \
                ENDS)                                                                              \
    if (e == cudaSuccess)                                                                          \
        e = for_ends<ENDS>([](auto end) {                                                          \
            return allow_shared(                                                                   \
                (const void *)wide_kernel<ROSE_T, end.value, GROUPS, TN, STAGES, PEERS>,           \
                WIDE_SHARED<end.value, GROUPS, TN, STAGES>);                                       \
        });
    ROSE_WIDE_KERNELS(PREPARE)
#undef PREPARE
    return e;
}

#endif
