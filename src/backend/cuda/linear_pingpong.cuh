/* backend/cuda/linear_pingpong.cuh - the head of many rows on sm_90a. To the bits of tiles_kernel
 * (linear.cuh): one chain over all of k, so that a warpgroup has registers for a whole tile of 128
 * rows. The two warpgroups of a block take tiles by turns: one multiplies for all of the other's
 * end, in which up to 98 KB of logits go out, 32 bytes a cycle. Ring and copies as in
 * linear_wide.cuh, whose tiles both warpgroups end at once.
 *
 * By pairs of blocks, which ask the L2 for less, and so leave more power to the products (many rows
 * are at the chip's limit): two that follow each other in rows share the weights, or, of an odd
 * number of tiles of rows, two that follow each other in outputs the rows; there a last tile of 64
 * rows or fewer is half of one, of which blocks have as many (wide_turn_rows: where the rows fit
 * the L2). Alone, head of GPT-2, 8192 rows: 1.13 to 1.18 of the time (H100, 2026-11-23).
 *
 * 448 rows and more: 0.86 to 0.96 of the time of linear_wide.cuh. Bound: the products, at the clock
 * that the power leaves them (docs/PERFORMANCE.md). */
#ifndef ROSE_BACKEND_CUDA_LINEAR_PINGPONG_CUH
#define ROSE_BACKEND_CUDA_LINEAR_PINGPONG_CUH

#include "backend/cuda/linear_wide.cuh"

enum { PINGPONG_PEERS = 2 };

template <int TN> static constexpr uint32_t PINGPONG_STAGE = WIDE_STAGE<2, TN>;
template <int TN, int STAGES>
static constexpr size_t PINGPONG_SHARED = STAGES *(size_t)PINGPONG_STAGE<TN>;

#if ROSE_HOPPER

/* The products of a tile, rows 0 to 63 and, of two PARTS, 64 to 127. The other warpgroup, if `more`
 * says that it has a tile, begins when the last stage of this one is there: a barrier tells a phase
 * only from the one before. */
template <typename T, int TN, int STAGES, int PARTS>
ROSE_DEVICE void multiply_by_turns(float (&acc)[2][TN / 2], wide_ring *r, uint32_t n_stages,
                                   bool more)
{
#pragma unroll 1
    for (uint32_t s = 0; s < n_stages; s++) {
        const uint32_t at = r->ring + r->at.slot * PINGPONG_STAGE<TN>;
        const uint64_t rows = core_matrices(at, BLOCK_BYTES);
        const uint64_t below = core_matrices(at + 8 * BLOCK_BYTES, BLOCK_BYTES);
        const uint64_t outputs = core_matrices(at + 16 * BLOCK_BYTES, BLOCK_BYTES);
        barrier_wait(r->full + r->at.slot * 8, r->at.parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STAGE_K / 16; i++) {
            const bool goes_on = s > 0 || i > 0;
            wgmma(acc[0], rows + i * 16, outputs + i * 16, goes_on, static_cast<const T *>(NULL));
            if constexpr (PARTS > 1)
                wgmma(acc[1], below + i * 16, outputs + i * 16, goes_on,
                      static_cast<const T *>(NULL));
        }
        wgmma_commit();
        next_place<STAGES>(&r->at);
        if (s == n_stages - 1) pair_arrive(2 - r->group, more ? 0 : 1);
        if (s == 0) continue;
        wgmma_wait<1>();
        free_stage<PINGPONG_PEERS>(r, slot_before<STAGES>(*r, 2));
    }
    wgmma_wait<0>();
    free_stage<PINGPONG_PEERS>(r, slot_before<STAGES>(*r, 1));
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        keep_here(acc[p]);
}

/* 64 of the tile's rows, from row0 on. */
template <typename T, int TN>
ROSE_DEVICE void end_rows(const float (&sum)[TN / 2], uint32_t row0, uint32_t n0,
                          const rose_cuda_linear &l, const rose_cuda_io &io)
{
    constexpr int EPI = ROSE_CUDA_EPI_LOGITS;
    wide_tile tile;
    begin_wide<EPI>(&tile, io, row0 + threadIdx.x % 128 / 32 * 16, n0);
    finish_wide<T, EPI, TN, 0, TN / 16>(&tile, NULL, sum, l, io);
    end_wide_logits<TN>(tile, sum, l, io);
}

/* Every other of the block's tiles. The first warpgroup begins without a turn given to it. */
template <typename T, int TN, int STAGES, bool SAME_ROWS>
ROSE_DEVICE void multiply_pingpong(const rose_cuda_linear &l, const rose_cuda_io &io,
                                   const wide_walk &walk, uint32_t blocks, wide_ring *r)
{
    constexpr int PEERS = PINGPONG_PEERS;
    const uint32_t n_stages = wide_stages(l);

    pdl_wait();
    if (r->group > 0) skip_stages<STAGES>(&r->at, n_stages);
    for (uint32_t turn = r->group;; turn += 2) {
        float acc[2][TN / 2];
        const uint32_t at = blockIdx.x / PEERS + turn * blocks, next = at + blocks;
        if (at >= walk.n) break;
        const bool half = SAME_ROWS && place_of_tile<SAME_ROWS>(walk, at).row * 128 + 64 >= io.rows;
        pair_wait(1 + r->group, turn);
        if (half)
            multiply_by_turns<T, TN, STAGES, 1>(acc, r, n_stages, next < walk.n);
        else
            multiply_by_turns<T, TN, STAGES, 2>(acc, r, n_stages, next < walk.n);
        const wide_tile_place tile = place_of_tile<SAME_ROWS>(walk, at);
        const uint32_t row0 = (SAME_ROWS ? tile.row : tile.row * PEERS + r->rank) * 128;
        const uint32_t n0 = (SAME_ROWS ? tile.col * PEERS + r->rank : tile.col) * TN;
        end_rows<T, TN>(acc[0], row0, n0, l, io);
        if (!half) end_rows<T, TN>(acc[1], row0 + 64, n0, l, io);
        skip_stages<STAGES>(&r->at, n_stages);
    }
}

#endif

/* One warpgroup to copy, two to multiply. SAME_ROWS: the pair shares its rows, else its weights. */
template <typename T, int TN, int STAGES, bool SAME_ROWS>
static __global__ void __launch_bounds__(384, 1)
    pingpong_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                    const uint32_t blocks, const __grid_constant__ CUtensorMap w_map,
                    const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    constexpr int PEERS = PINGPONG_PEERS;
    const uint32_t rank = cluster_rank();
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    static_assert(PINGPONG_SHARED<TN, STAGES> + 1024 /* full and empty, in whole KB */ <=
                      227 * 1024,
                  "more shared memory than a block may have");
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty);
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, PEERS * 4); /* of each block one warpgroup's warps */
        }
        barrier_init_done();
    }
    __syncthreads();
    cluster_sync(); /* the other block's barriers are there, too */
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x == 0) {
            const wide_copies c = {.w_map = &w_map,
                                   .h_map = &h_map,
                                   .bias = NULL,
                                   .ring = ring,
                                   .full = full_at,
                                   .empty = empty_at,
                                   .n = l.n,
                                   .n_stages = wide_stages(l),
                                   .rank = rank,
                                   .rows = io.rows};
            copy_wide<2, TN, STAGES, PEERS, false, SAME_ROWS>(c, walk, blocks);
            if (io.late) pdl_launch();
        }
    } else {
        more_registers<232>();
        wide_ring r = {.ring = ring,
                       .full = full_at,
                       .empty = empty_at,
                       .group = warpgroup() - 1,
                       .lane = threadIdx.x % 32,
                       .rank = rank,
                       .at = {0, 0},
                       .chunk = 0};
        multiply_pingpong<T, TN, STAGES, SAME_ROWS>(l, io, walk, blocks, &r);
    }
    __syncthreads();
    cluster_sync(); /* the other block may still copy and arrive here */
#endif
}

/* ---- launchers ---- */

template <typename T, int TN, int STAGES, bool SAME_ROWS>
static cudaError_t launch_pingpong(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                   const rose_cuda_io *io)
{
    constexpr uint32_t PEERS = PINGPONG_PEERS, HIGH = SAME_ROWS ? 1 : PEERS,
                       ACROSS = SAME_ROWS ? PEERS : 1;
    wide_walk walk =
        wide_walk_of(io->rows, 128 * HIGH, l->n, TN * ACROSS, (uint64_t)l->k_pad * sizeof(T));
    const uint32_t most = at->device->sms / PEERS;
    const uint32_t blocks = walk.n < most ? walk.n : most;
    if (SAME_ROWS) wide_turn_rows(&walk, blocks);
    CUtensorMap w, h;
    cudaError_t e = map_cores(at->device, &w, l->cores, l->k_pad, l->n_pad / 8, TN / 8 / HIGH);
    if (e == cudaSuccess)
        e = map_cores(at->device, &h, io->h, l->k_pad, (io->rows + 7) / 8, 16 / ACROSS);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, PEERS, pingpong_kernel<T, TN, STAGES, SAME_ROWS>,
                           dim3(blocks * PEERS), 384, PINGPONG_SHARED<TN, STAGES>, *l, *io, walk,
                           blocks, w, h);
}

/* Once for each line of the table. */
#define RUN_PINGPONG(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, ACROSS, share,      \
                     head, ENDS)                                                                   \
    cudaError_t ROSE_TYPED(rose_gemm_##id)(const rose_cuda_launch *at, const rose_cuda_linear *l,  \
                                           const rose_cuda_io *io)                                 \
    {                                                                                              \
        static_assert(ROWS == 128 && GROUPS == 2 && (ENDS) == ROSE_ENDS_LOGITS,                    \
                      "what pingpong_kernel is written for");                                      \
        return launch_pingpong<ROSE_T, TN, STAGES, (ACROSS > 1)>(at, l, io);                       \
    }
ROSE_PINGPONG_KERNELS(RUN_PINGPONG)
#undef RUN_PINGPONG

cudaError_t ROSE_TYPED(rose_prepare_pingpong)(const rose_cuda_device *)
{
    cudaError_t e = cudaSuccess;
#define PREPARE(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, ACROSS, share, head,     \
                ENDS)                                                                              \
    if (e == cudaSuccess)                                                                          \
        e = allow_shared((const void *)pingpong_kernel<ROSE_T, TN, STAGES, (ACROSS > 1)>,          \
                         PINGPONG_SHARED<TN, STAGES>);
    ROSE_PINGPONG_KERNELS(PREPARE)
#undef PREPARE
    return e;
}

#endif
