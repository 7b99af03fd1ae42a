/* backend/cuda/linear_stationary.cuh - matrix products of 16-bit types on sm_90a for hundreds of
 * rows and more where k is 577 to 768: a block keeps the weights of 96 outputs, all of their k, in
 * shared memory and has rows go past them. The same bits as linear.cuh; maps, cores and ends are
 * those of linear_wide.cuh.
 *
 * A tile of 128 x 192 of linear_wide.cuh takes in 40 KB for each 768 cycles of the tensor
 * cores and then ends in both warpgroups at once, 4,000 cycles for 9,216 of products (H100,
 * 2026-11-22). Here 64 rows x 96 outputs read their rows alone, 32 KB for as many cycles, and the
 * warpgroups take tiles by turns: one multiplies while the other ends. For that, one has to keep
 * the tensor cores busy by itself: of 96 outputs there is room for two sets of accumulators for
 * chunks, the next under way while one is added to the sum.
 *
 * Weights need no barriers of their own. The first tile of a column brings them, a stage with the
 * same stage of its rows. One thread copies all stages in order, and each waits until the stage
 * that was as many before as the ring has, at most a tile, has been read: so by then the tile
 * before is through with the weights of this one.
 *
 * Faster where ends are long (the residual) and where tiles of 128 x 192 do not come out even
 * (linear.cu). Bound: the other warpgroup's end, which slows the products beside it
 * (docs/PERFORMANCE.md).
 */
#ifndef ROSE_BACKEND_CUDA_LINEAR_STATIONARY_CUH
#define ROSE_BACKEND_CUDA_LINEAR_STATIONARY_CUH

#include "backend/cuda/linear_wide.cuh"

enum {
    STATIONARY_CHUNKS = ROSE_CUDA_STATIONARY_CHUNKS,
    STATIONARY_STAGES = STATIONARY_CHUNKS * CHUNK_STAGES, /* of a tile */
    STATIONARY_N = ROSE_CUDA_STATIONARY_N,                /* outputs of a tile */
    STATIONARY_M = ROSE_CUDA_STATIONARY_M,                /* rows: a warpgroup's */
    STATIONARY_ROWS = STATIONARY_M / 8 * BLOCK_BYTES,     /* a stage of rows; of weights: */
    STATIONARY_WEIGHTS = STATIONARY_N / 8 * BLOCK_BYTES,
    STATIONARY_BIASES = 3 /* the next but one column's may come before this one's last tile ends */
};

/* Of the ring; beside a residual's places there is room for fewer. */
template <int EPI> static constexpr int STATIONARY_RING = STAGED<EPI> ? 7 : 10;
template <int EPI>
static constexpr uint32_t STATIONARY_SHARED = STATIONARY_STAGES *STATIONARY_WEIGHTS +
                                              STATIONARY_RING<EPI> *STATIONARY_ROWS +
                                              (STAGED<EPI> ? 8 * WIDE_OUT : 0);

#if ROSE_HOPPER

/* One thread: all stages of the block's tiles. kept: shared address of the weights. */
template <int STAGES>
ROSE_DEVICE void copy_stationary(const wide_copies &c, uint32_t kept, column_tiles at)
{
    static_assert(STATIONARY_CHUNKS > 1 && STAGES <= STATIONARY_STAGES,
                  "weights are written when they have been read");
    ring_place p = {0, 1};
    uint32_t early = 0;
    bool fresh = true; /* the tile is the column's first */
    const auto copy_column = [&](uint32_t slot, uint32_t stage) {
        const uint32_t n0 = at.col * STATIONARY_N, full = c.full + slot * 8;
        const uint32_t outputs = c.n - n0 < STATIONARY_N ? c.n - n0 : (uint32_t)STATIONARY_N;
        const uint32_t bias_bytes = c.bias != NULL && stage == 0 ? outputs * 4 : 0;
        barrier_expect(full, STATIONARY_ROWS + (fresh ? STATIONARY_WEIGHTS + bias_bytes : 0u));
        if (!fresh) return;
        if (bias_bytes > 0)
            copy_piece(c.biases + at.turn % STATIONARY_BIASES * (STATIONARY_N * 4), c.bias + n0,
                       bias_bytes, full);
        copy_box(kept + stage * STATIONARY_WEIGHTS, c.w_map, stage * (STAGE_K / 8), n0 / 8, full);
    };

    for (; early < STAGES; early++)
        copy_column(early, early);
    pdl_wait();
    while (column_there(&at)) {
#pragma unroll 1
        for (uint32_t s = 0; s < STATIONARY_STAGES; s++) {
            const uint32_t full = c.full + p.slot * 8, to = c.ring + p.slot * STATIONARY_ROWS;
            if (early > 0) {
                early--;
            } else {
                barrier_wait(c.empty + p.slot * 8, p.parity);
                copy_column(p.slot, s);
            }
            copy_box(to, c.h_map, s * (STAGE_K / 8), at.row * (STATIONARY_M / 8), full);
            next_place<STAGES>(&p);
        }
        const uint32_t turn = at.turn;
        column_next(&at);
        fresh = at.turn != turn;
    }
}

/* The products of a tile. Two stages are under way while the warpgroup adds a chunk. A barrier
 * tells a phase only from the one before: so the other warpgroup, for which `more` says whether
 * there is a tile, begins when the last stage of this one is there. */
template <typename T, int STAGES>
ROSE_DEVICE void multiply_tile(float (&sum)[STATIONARY_N / 2], wide_ring *r, uint32_t kept,
                               bool more)
{
    float acc[2][STATIONARY_N / 2];
#pragma unroll
    for (int s = 0; s < STATIONARY_STAGES; s++) {
        const int chunk = s / CHUNK_STAGES;
        const uint64_t rows = core_matrices(r->ring + r->at.slot * STATIONARY_ROWS, BLOCK_BYTES);
        const uint64_t outputs = core_matrices(kept + s * STATIONARY_WEIGHTS, BLOCK_BYTES);
        barrier_wait(r->full + r->at.slot * 8, r->at.parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STAGE_K / 16; i++)
            wgmma(acc[chunk % 2], rows + i * 16, outputs + i * 16, s % CHUNK_STAGES > 0 || i > 0,
                  static_cast<const T *>(NULL));
        wgmma_commit();
        next_place<STAGES>(&r->at);
        if (s == STATIONARY_STAGES - 1) pair_arrive(2 - r->group, more ? 0 : 1);
        if (s < 2) continue;
        wgmma_wait<2>();
        free_stage<1>(r, slot_before<STAGES>(*r, 3));
        if (s % CHUNK_STAGES == 1 && chunk > 0) {
            keep_here(acc[(chunk + 1) % 2]);
            add_chunk(sum, acc[(chunk + 1) % 2], chunk == 1);
        }
    }
    wgmma_wait<1>();
    free_stage<1>(r, slot_before<STAGES>(*r, 2));
    wgmma_wait<0>();
    free_stage<1>(r, slot_before<STAGES>(*r, 1));
    keep_here(acc[(STATIONARY_CHUNKS - 1) % 2]);
    add_chunk(sum, acc[(STATIONARY_CHUNKS - 1) % 2], false);
}

/* A warpgroup that multiplies: every second of the block's tiles. */
template <typename T, int EPI, int STAGES>
ROSE_DEVICE void multiply_stationary(const rose_cuda_linear &l, const rose_cuda_io &io,
                                     column_tiles at, wide_ring *r, uint32_t kept,
                                     const CUtensorMap *x_map)
{
    const uint32_t my_row = threadIdx.x % 128 / 32 * 16;
    bool first = r->group == 0;

    pdl_wait();
    if (r->group > 0) {
        column_next(&at);
        skip_stages<STAGES>(&r->at, STATIONARY_STAGES);
    }
    while (column_there(&at)) {
        wide_tile tile;
        float sum[STATIONARY_N / 2];
        begin_wide<EPI>(&tile, io, at.row * STATIONARY_M + my_row, at.col * STATIONARY_N);
        tile.bias = r->biases + at.turn % STATIONARY_BIASES * (STATIONARY_N * 4);
        column_next(&at); /* the other's */
        pair_wait(1 + r->group, first ? 0 : 1);
        first = false;
        multiply_tile<T, STAGES>(sum, r, kept, column_there(&at));
        if (EPI == ROSE_CUDA_EPI_QKV) find_places(&tile, l, io);
        finish_part<T, EPI, 2, STATIONARY_N, 0>(&tile, *r, sum, l, io, x_map);
        finish_part<T, EPI, 2, STATIONARY_N, 1>(&tile, *r, sum, l, io, x_map);
        finish_part<T, EPI, 2, STATIONARY_N, 2>(&tile, *r, sum, l, io, x_map);
        column_next(&at);
        skip_stages<STAGES>(&r->at, STATIONARY_STAGES);
    }
    if (STAGED<EPI> && threadIdx.x % 32 == 0) copies_done();
}

#endif

/* One warpgroup to copy, two to multiply. */
template <typename T, int EPI>
static __global__ void __launch_bounds__(384, 1)
    stationary_kernel(const rose_cuda_linear l, const rose_cuda_io io, const column_walk walk,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap h_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if ROSE_HOPPER
    constexpr int STAGES = STATIONARY_RING<EPI>;
    ROSE_BLOCK_MEMORY(kept);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ __align__(16) float biases[STATIONARY_BIASES][STATIONARY_N];
    static_assert(STATIONARY_SHARED<EPI> +
                          (sizeof full + sizeof empty + sizeof biases + 1023) / 1024 * 1024 <=
                      227 * 1024,
                  "more shared memory than a block may have");
    const uint32_t kept_at = shared_address(kept),
                   ring = kept_at + STATIONARY_STAGES * STATIONARY_WEIGHTS,
                   full_at = shared_address(full), empty_at = shared_address(empty);
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    const column_tiles mine = column_tiles_of(&walk, blockIdx.x);
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) {
            const wide_copies c = {.w_map = &w_map,
                                   .h_map = &h_map,
                                   .bias = l.bias,
                                   .ring = ring,
                                   .full = full_at,
                                   .empty = empty_at,
                                   .biases = shared_address(biases),
                                   .n = l.n};
            copy_stationary<STAGES>(c, kept_at, mine);
            if (io.late) pdl_launch();
        }
    } else {
        more_registers<240>();
        wide_ring r = {.ring = ring,
                       .full = full_at,
                       .empty = empty_at,
                       .biases = shared_address(biases),
                       .out = ring + STAGES * STATIONARY_ROWS + (threadIdx.x / 32 - 4) * WIDE_OUT,
                       .group = warpgroup() - 1,
                       .lane = threadIdx.x % 32,
                       .rank = 0,
                       .at = {0, 0},
                       .chunk = 0};
        multiply_stationary<T, EPI, STAGES>(l, io, mine, &r, kept_at, &x_map);
    }
#endif
}

/* ---- launchers ---- */

template <typename T, int EPI>
static cudaError_t launch_stationary(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                     const rose_cuda_io *io)
{
    const column_walk walk =
        column_walk_of(io->rows, STATIONARY_M, l->n, STATIONARY_N, (uint32_t)g_multiprocessors);
    CUtensorMap w, h, x = {};
    cudaError_t e = map_cores(&w, l->cores, l->k_pad, l->n_pad / 8, STATIONARY_N / 8);
    if (e == cudaSuccess) e = map_cores(&h, io->h, l->k_pad, (io->rows + 7) / 8, STATIONARY_M / 8);
    if (e == cudaSuccess && STAGED<EPI>) e = map_residual(&x, io, l->n);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, 1, stationary_kernel<T, EPI>, dim3(walk.blocks), 384,
                           (size_t)STATIONARY_SHARED<EPI>, *l, *io, walk, w, h, x);
}

template <typename T>
static cudaError_t run_stationary(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io)
{
    switch (io->epilogue) {
    case ROSE_CUDA_EPI_QKV:
        return launch_stationary<T, ROSE_CUDA_EPI_QKV>(at, l, io);
    case ROSE_CUDA_EPI_RESIDUAL:
        return launch_stationary<T, ROSE_CUDA_EPI_RESIDUAL>(at, l, io);
    case ROSE_CUDA_EPI_ACT:
        return launch_stationary<T, ROSE_CUDA_EPI_ACT>(at, l, io);
    case ROSE_CUDA_EPI_LOGITS:
        break;
    }
    return cudaErrorInvalidValue;
}

/* After init_wide has found that they are there. */
template <typename T> static cudaError_t init_stationary(void)
{
#define KERNEL(EPI)                                                                                \
    {                                                                                              \
        (const void *)stationary_kernel<T, EPI>, (size_t)STATIONARY_SHARED<EPI>                    \
    }
    const wide_needs kernels[] = {KERNEL(ROSE_CUDA_EPI_QKV), KERNEL(ROSE_CUDA_EPI_RESIDUAL),
                                  KERNEL(ROSE_CUDA_EPI_ACT)};
#undef KERNEL
    return allow_shared(kernels, sizeof kernels / sizeof *kernels);
}

#endif
