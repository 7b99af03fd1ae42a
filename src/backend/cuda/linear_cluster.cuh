/* backend/cuda/linear_cluster.cuh - matrix products of 16-bit types on sm_90a for hundreds of rows
 * and a long k, to which the residual is added: as linear_once.cuh, but ROWS x COLS blocks, a
 * cluster, have tiles that are neighbours and bring each other what they share. Of a tile's weights
 * each of ROWS blocks copies a share to all of them, of its rows each of COLS blocks. The same bits
 * as linear.cuh.
 *
 * Where all tiles of such a product are on the chip at once, what they wait for is the L2's way
 * out: of 768 outputs and k = 3072, 1024 rows as 64 x 96 ask for 126 MB. What neighbours ask for at
 * the same time goes out once, so those of one column share their weights anyway: pairs that share
 * them by copies took 13.9 us, blocks for themselves 13.1, pairs that share rows 12.2; clusters of
 * four of 896 rows 11.2 for 11.9 (H100, 2026-11-23).
 *
 * Blocks meet before the first copy, when all barriers are there. A block must not be gone while
 * its copies to others are on the way: one of its warps stays until all have told it that
 * everything has come, which is under the end of the tile (as a meeting of all threads it cost 0.5
 * us). No arrival is on its way then: stages to which nothing will be copied are not freed. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_CLUSTER_CUH
#define ROSE_BACKEND_CUDA_LINEAR_CLUSTER_CUH

#include "backend/cuda/linear_once.cuh"

#if ROSE_HOPPER

/* The block in its cluster: ranks go by rows. */
typedef struct cluster_place {
    uint32_t row, col;             /* in the cluster */
    uint32_t row_mates, col_mates; /* ranks with its rows, with its weights: a bit each */
} cluster_place;

template <int ROWS, int COLS> ROSE_DEVICE cluster_place place_in_cluster(void)
{
    const uint32_t rank = cluster_rank();
    cluster_place p = {.row = rank % ROWS, .col = rank / ROWS, .row_mates = 0, .col_mates = 0};
#pragma unroll
    for (int i = 0; i < COLS; i++)
        p.row_mates |= 1u << (i * ROWS + p.row);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        p.col_mates |= 1u << (p.col * ROWS + i);
    return p;
}

/* Shared addresses of barriers of slot 0: all of a stage is there; weights, rows may be copied
 * there again, which the block's column, row of the cluster must say. */
typedef struct cluster_barriers {
    uint32_t full, weights, rows;
    uint32_t done; /* one: all of each block's stages have come */
} cluster_barriers;

/* One thread: the block's share of its weights to its column, and the bias. They are under way
 * before the kernel in front has ended. */
template <int GROUPS, int TN, int STAGES, int ROWS>
ROSE_DEVICE void share_weights(const wide_copies &c, const cluster_barriers &b,
                               const cluster_place &p, uint32_t n0)
{
    constexpr uint32_t SHARE = TN / 8 / ROWS;
    const uint32_t biased = c.bias == NULL ? 0 : bias_bytes<TN>(c, n0);
    ring_place at = {0, 1};
#pragma unroll 1
    for (uint32_t s = 0; s < c.n_stages; s++) {
        const uint32_t full = b.full + at.slot * 8;
        const uint32_t to =
            c.ring + at.slot * WIDE_STAGE<GROUPS, TN> + (GROUPS * 8 + p.row * SHARE) * BLOCK_BYTES;
        barrier_wait(b.weights + at.slot * 8, at.parity);
        barrier_expect(full, WIDE_STAGE<GROUPS, TN> + (s == 0 ? biased : 0));
        if (s == 0 && biased > 0) copy_piece(c.biases, c.bias + n0, biased, full);
        if (ROWS > 1)
            copy_box_to(to, c.w_map, s * (STAGE_K / 8), n0 / 8 + p.row * SHARE, full, p.col_mates);
        else
            copy_box(to, c.w_map, s * (STAGE_K / 8), n0 / 8, full);
        next_place<STAGES>(&at);
    }
}

/* One thread of another warp: its share of its rows to its row of the cluster. */
template <int GROUPS, int TN, int STAGES, int COLS>
ROSE_DEVICE void share_rows(const wide_copies &c, const cluster_barriers &b, const cluster_place &p,
                            uint32_t row0)
{
    constexpr uint32_t SHARE = GROUPS * 8 / COLS;
    static_assert(COLS > 1, "nobody to share rows with");
    ring_place at = {0, 1};
    pdl_wait();
#pragma unroll 1
    for (uint32_t s = 0; s < c.n_stages; s++) {
        barrier_wait(b.rows + at.slot * 8, at.parity);
        copy_box_to(c.ring + at.slot * WIDE_STAGE<GROUPS, TN> + p.col * (SHARE * BLOCK_BYTES),
                    c.h_map, s * (STAGE_K / 8), row0 / 8 + p.col * SHARE, b.full + at.slot * 8,
                    p.row_mates);
        next_place<STAGES>(&at);
    }
}

/* A warpgroup that multiplies; row0: of the warp. */
template <typename T, int GROUPS, int TN, int STAGES, int BLOCKS>
ROSE_DEVICE void multiply_shared(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row0,
                                 uint32_t n0, const wide_copies &c, uint32_t done, wide_ring *r)
{
    float sum[TN / 2];
    wide_tile tile;
    wide_old<TN> old;

    pdl_wait();
    begin_wide<ROSE_CUDA_EPI_RESIDUAL>(&tile, io, row0, n0);
    tile.bias = c.biases;
    load_old<TN>(&old, tile, l, io);
    multiply_all<T, GROUPS, TN, STAGES, BY_CLUSTER>(sum, r, c.n_stages / CHUNK_STAGES);
    /* All of the block's stages have come: to the warp of each block that waits for that. */
    if (threadIdx.x / 32 == 4 && r->lane < BLOCKS) peer_arrive(peer_address(done, r->lane));
    finish_once<T, ROSE_CUDA_EPI_RESIDUAL, TN, 0>(&tile, &old, sum, l, io);
}

#endif

/* Grid: tiles as the walk has them of whole clusters. One warpgroup to copy, GROUPS to multiply, 64
 * rows each. Launch bounds as linear_once.cuh has them, so that ptxas knows 224 registers. */
template <typename T, int GROUPS, int TN, int STAGES, int ROWS, int COLS>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, GROUPS == 1 ? 2 : 1)
    cluster_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                   const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[STAGES], weights[STAGES], rows[STAGES], done;
    __shared__ __align__(16) float biases[TN];
    static_assert(STAGES * WIDE_STAGE<GROUPS, TN> + (sizeof full + sizeof weights + sizeof rows +
                                                     sizeof done + sizeof biases + 1023) /
                                                        1024 * 1024 <=
                      227 * 1024,
                  "more shared memory than a block may have");
    static_assert(TN / 8 % ROWS == 0 && GROUPS * 8 % COLS == 0 && ROWS * COLS <= 8, "no shares");
    const cluster_barriers b = {.full = shared_address(full),
                                .weights = shared_address(weights),
                                .rows = shared_address(rows),
                                .done = shared_address(&done)};
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(b.full + i * 8, 1);
            barrier_init(b.weights + i * 8, ROWS * GROUPS * 4);
            barrier_init(b.rows + i * 8, COLS * GROUPS * 4);
        }
        barrier_init(b.done, ROWS * COLS);
        barrier_init_done();
    }
    __syncthreads();
    cluster_arrive();
    const cluster_place p = place_in_cluster<ROWS, COLS>();
    const wide_tile_place of = wide_place(&walk, blockIdx.x / (ROWS * COLS));
    const uint32_t n0 = (of.col * COLS + p.col) * TN, row0 = (of.row * ROWS + p.row) * GROUPS * 64;
    const wide_copies c = {.w_map = &w_map,
                           .h_map = &h_map,
                           .bias = l.bias,
                           .ring = shared_address(stages),
                           .biases = shared_address(biases),
                           .n = l.n,
                           .n_stages = wide_stages(l)};
    cluster_wait();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        /* A tile behind the last row or output multiplies the last one's, for nothing: boxes
         * outside the maps are slow (1408 rows 18.7 us, so 15.9). */
        if (threadIdx.x == 0)
            share_weights<GROUPS, TN, STAGES, ROWS>(c, b, p, min(n0, (l.n - 1) / TN * TN));
        if (threadIdx.x == 32) {
            const uint32_t last = (io.rows - 1) / (GROUPS * 64) * (GROUPS * 64);
            share_rows<GROUPS, TN, STAGES, COLS>(c, b, p, min(row0, last));
            if (io.late) pdl_launch();
        }
        if (threadIdx.x == 64) barrier_wait(b.done, 0);
    } else {
        if (GROUPS == 1)
            more_registers<224>();
        else
            more_registers<240>();
        const uint32_t group = GROUPS == 1 ? 0 : threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        wide_ring r = {.ring = c.ring, .full = b.full, .group = group, .lane = lane};
        r.left = c.n_stages > STAGES ? c.n_stages - STAGES : 0;
        if (lane < ROWS)
            r.to = peer_address(b.weights, p.col * ROWS + lane);
        else if (lane < ROWS + COLS)
            r.to = peer_address(b.rows, (lane - ROWS) * ROWS + p.row);
        multiply_shared<T, GROUPS, TN, STAGES, ROWS * COLS>(
            l, io, row0 + group * 64 + threadIdx.x % 128 / 32 * 16, n0, c, b.done, &r);
    }
#endif
}

/* ---- launchers ---- */

template <typename T, int GROUPS, int TN, int STAGES, int ROWS, int COLS>
static cudaError_t launch_cluster(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io)
{
    const wide_walk walk =
        wide_walk_of(io->rows, ROWS * GROUPS * 64, l->n, COLS * TN, (uint64_t)l->k_pad * sizeof(T));
    CUtensorMap w, h;
    cudaError_t e = map_cores(&w, l->cores, l->k_pad, l->n_pad / 8, TN / 8 / ROWS);
    if (e == cudaSuccess) e = map_cores(&h, io->h, l->k_pad, (io->rows + 7) / 8, GROUPS * 8 / COLS);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, ROWS * COLS, cluster_kernel<T, GROUPS, TN, STAGES, ROWS, COLS>,
                           dim3(walk.n * ROWS * COLS), (GROUPS + 1) * 128,
                           (size_t)STAGES * WIDE_STAGE<GROUPS, TN>, *l, *io, walk, w, h);
}

/* Every kernel once: which of rose_cuda_wide, warpgroups, outputs of a tile, stages, tiles of a
 * cluster in rows and in outputs. */
#define CLUSTER_KERNELS(M)                                                                         \
    M(ROSE_CUDA_CLUSTER_64_96, 1, 96, 10, 2, 2)                                                    \
    M(ROSE_CUDA_CLUSTER_64_96_PAIR, 1, 96, 10, 1, 2)                                               \
    M(ROSE_CUDA_CLUSTER_64_128, 1, 128, 9, 2, 2)                                                   \
    M(ROSE_CUDA_CLUSTER_128_80, 2, 80, 7, 2, 2)

template <typename T>
static cudaError_t run_cluster(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel)
{
#define LAUNCH(KIND, G, TN, S, R, C)                                                               \
    if (kernel == KIND) return launch_cluster<T, G, TN, S, R, C>(at, l, io);
    CLUSTER_KERNELS(LAUNCH)
#undef LAUNCH
    return cudaErrorInvalidValue;
}

/* After init_wide has found that they are there. */
template <typename T>
static cudaError_t init_cluster(rose_cuda_clusters clusters[ROSE_CUDA_N_CLUSTERS])
{
#define KERNEL(KIND, G, TN, S, R, C)                                                               \
    {(const void *)cluster_kernel<T, G, TN, S, R, C>, (size_t)S * WIDE_STAGE<G, TN>},
    const wide_needs kernels[] = {CLUSTER_KERNELS(KERNEL)};
#undef KERNEL
    const cudaError_t e = allow_shared(kernels, sizeof kernels / sizeof *kernels);
    if (e != cudaSuccess) return e;
#define KERNEL(KIND, G, TN, S, R, C)                                                               \
    clusters[KIND - ROSE_CUDA_CLUSTER_64_96] = {                                                   \
        R * G * 64, C * TN,                                                                        \
        clusters_at_once(R * C, cluster_kernel<T, G, TN, S, R, C>, (G + 1) * 128,                  \
                         (size_t)S * WIDE_STAGE<G, TN>)};
    CLUSTER_KERNELS(KERNEL)
#undef KERNEL
    return cudaSuccess;
}

#endif
