/* backend/cuda/linear_once.cuh - matrix products of 16-bit types on sm_90a for tens to hundreds of
 * rows: a block has one tile and ends with it. The same bits as linear.cuh; stages and products are
 * those of linear_wide.cuh, but nothing is there for a next tile, neither code nor products under
 * the epilogue (0.4 to 1.4 us of 3 to 6, H100, 2026-11-22), and weights and rows are copied by a
 * warp each.
 *
 * A block that had all of a long k would wait for its stages one ring after the other, a round trip
 * to memory each (1 us), while most multiprocessors have no tile. So a tile can be made by a CHAIN:
 * a cluster, each block of which multiplies CHAIN_CHUNKS of the chunks. As chunks are added in
 * order, a block keeps its chunks' sums apart until the sum of all chunks before comes from the
 * block before it, adds them and hands the sum on; the last block finishes the tile.
 *
 * Bound: the way of the first operands; from 256 rows on the L2, which tiles of 64 x 48 ask for 44
 * MB of 256 x 768 of k = 3072. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_ONCE_CUH
#define ROSE_BACKEND_CUDA_LINEAR_ONCE_CUH

#include "backend/cuda/linear_wide.cuh"

enum { CHAIN_CHUNKS = ROSE_CUDA_CHAIN_CHUNKS };

template <int TN> static constexpr uint32_t CHAIN_BYTES = 64 * TN * 4; /* a tile's sums */
template <int GROUPS, int TN, int STAGES, bool CHAIN> /* the ring; the sums of the chunks before */
static constexpr uint32_t ONCE_SHARED = STAGES *WIDE_STAGE<GROUPS, TN> +
                                        (CHAIN ? CHAIN_BYTES<TN> : 0);

#if ROSE_HOPPER

/* The block's share of its tile. */
typedef struct once_share {
    uint32_t rank, peers;   /* of the cluster */
    uint32_t chunk, chunks; /* the first, and how many */
    uint32_t before, sent;  /* shared addresses: the sums of the chunks before; their barrier */
} once_share;

/* A thread's quad q of its sums: lanes beside each other have neighbouring 16 bytes. */
ROSE_DEVICE uint32_t sums_at(uint32_t base, int q)
{
    return base + (q * 128 + threadIdx.x % 128) * 16;
}

template <int TN> ROSE_DEVICE void send_sums(const float (&sum)[TN / 2], const once_share &d)
{
    const uint32_t to = peer_address(d.before, d.rank + 1), sent = peer_address(d.sent, d.rank + 1);
#pragma unroll
    for (int q = 0; q < TN / 8; q++)
        send4(sums_at(to, q),
              make_float4(sum[q * 4], sum[q * 4 + 1], sum[q * 4 + 2], sum[q * 4 + 3]), sent);
}

template <int TN> ROSE_DEVICE void receive_sums(float (&sum)[TN / 2], const once_share &d)
{
    barrier_wait_cluster(d.sent, 0);
#pragma unroll
    for (int q = 0; q < TN / 8; q++) {
        float4 v;
        get_shared(&v, sums_at(d.before, q));
        sum[q * 4] = v.x;
        sum[q * 4 + 1] = v.y;
        sum[q * 4 + 2] = v.z;
        sum[q * 4 + 3] = v.w;
    }
}

/* The block's chunks, and those before. */
template <typename T, int TN, int STAGES>
ROSE_DEVICE void multiply_chain(float (&sum)[TN / 2], wide_ring *r, const once_share &d)
{
    float part[CHAIN_CHUNKS][TN / 2];
#pragma unroll
    for (int c = 0; c < CHAIN_CHUNKS; c++)
        if (c < d.chunks) multiply_chunk<T, 1, TN, STAGES, 1>(part[c], r);
#pragma unroll
    for (int i = 0; i < TN / 2; i++)
        sum[i] = 0;
    /* The next block's barrier is there. Not later: see cluster_arrive. */
    if (d.peers > 1) cluster_wait();
    if (d.rank > 0) receive_sums<TN>(sum, d);
#pragma unroll
    for (int c = 0; c < CHAIN_CHUNKS; c++)
        if (c < d.chunks) add_chunk(sum, part[c], false);
}

template <typename T, int GROUPS, int TN, int STAGES, int PEERS>
ROSE_DEVICE void multiply_all(float (&sum)[TN / 2], wide_ring *r, uint32_t chunks)
{
    float acc[TN / 2];
    multiply_chunk<T, GROUPS, TN, STAGES, PEERS>(acc, r);
    add_chunk(sum, acc, true);
#pragma unroll 1
    for (uint32_t c = 1; c < chunks; c++) {
        multiply_chunk<T, GROUPS, TN, STAGES, PEERS>(acc, r);
        add_chunk(sum, acc, false);
    }
}

/* What is stored, from block FIRST of 16 outputs on. Of q, K and V as many at once as are always of
 * one of them. */
template <typename T, int EPI, int TN, int FIRST>
ROSE_DEVICE void finish_once(wide_tile *tile, const wide_old<TN> *old, const float (&sum)[TN / 2],
                             const rose_cuda_linear &l, const rose_cuda_io &io)
{
    constexpr int N = EPI != ROSE_CUDA_EPI_QKV ? TN / 16 : TN % 64 == 0 ? 4 : TN % 32 == 0 ? 2 : 1;
    finish_wide<T, EPI, TN, FIRST, N>(tile, old, sum, l, io);
    if constexpr (FIRST + N < TN / 16) finish_once<T, EPI, TN, FIRST + N>(tile, old, sum, l, io);
}

/* A warpgroup that multiplies; row0: of the warp. */
template <typename T, int EPI, int GROUPS, int TN, int STAGES, bool CHAIN>
ROSE_DEVICE void multiply_once(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row0,
                               uint32_t n0, uint32_t biases, wide_ring *r, const once_share &d)
{
    const bool last = !CHAIN || d.rank + 1 == d.peers;
    float sum[TN / 2];
    wide_tile tile;
    wide_old<TN> old;

    pdl_wait();
    if (last) {
        begin_wide<EPI>(&tile, io, row0, n0);
        tile.bias = biases;
        if (EPI == ROSE_CUDA_EPI_RESIDUAL) load_old<TN>(&old, tile, l, io);
        if (EPI == ROSE_CUDA_EPI_QKV) find_places(&tile, l, io);
    }
    if (CHAIN)
        multiply_chain<T, TN, STAGES>(sum, r, d);
    else
        multiply_all<T, GROUPS, TN, STAGES, 1>(sum, r, d.chunks);
    if (last) {
        finish_once<T, EPI, TN, 0>(&tile, &old, sum, l, io);
    } else {
        send_sums<TN>(sum, d);
    }
}

/* One thread: weights of the block's stages, and the tile's bias where the block finishes it. They
 * are under way before the kernel in front has ended, which writes neither: no pdl_wait. */
template <int GROUPS, int TN, int STAGES>
ROSE_DEVICE void copy_once_weights(const wide_copies &c, const once_share &d, uint32_t n0)
{
    const uint32_t first = d.chunk * CHUNK_STAGES, end = first + d.chunks * CHUNK_STAGES;
    const uint32_t biased = c.bias != NULL && d.rank + 1 == d.peers ? first : end;
    ring_place p = {0, 1};
#pragma unroll 1
    for (uint32_t s = first; s < end; s++) {
        barrier_wait(c.empty + p.slot * 8, p.parity);
        copy_weights<GROUPS, TN, 1>(c, p.slot, s, n0, s == biased, 0);
        next_place<STAGES>(&p);
    }
}

/* One thread of another warp: their rows. */
template <int GROUPS, int TN, int STAGES>
ROSE_DEVICE void copy_once_rows(const wide_copies &c, const once_share &d, uint32_t row0)
{
    const uint32_t first = d.chunk * CHUNK_STAGES, end = first + d.chunks * CHUNK_STAGES;
    ring_place p = {0, 1};
    pdl_wait();
#pragma unroll 1
    for (uint32_t s = first; s < end; s++) {
        barrier_wait(c.empty + p.slot * 8, p.parity);
        copy_box(c.ring + p.slot * WIDE_STAGE<GROUPS, TN>, c.h_map, s * (STAGE_K / 8), row0 / 8,
                 c.full + p.slot * 8);
        next_place<STAGES>(&p);
    }
}

#endif

/* Grid: tiles as the walk has them, each a block or a cluster. One warpgroup to copy, GROUPS to
 * multiply, 64 rows each. */
template <typename T, int EPI, int GROUPS, int TN, int STAGES, bool CHAIN>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, GROUPS == 1 ? 2 : 1)
    once_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[STAGES], empty[STAGES], sent;
    __shared__ __align__(16) float biases[TN];
    static_assert(ONCE_SHARED<GROUPS, TN, STAGES, CHAIN> +
                          (sizeof full + sizeof empty + sizeof sent + sizeof biases + 1023) / 1024 *
                              1024 <=
                      227 * 1024 / (GROUPS == 1 && STAGES <= 7 ? 2 : 1),
                  "more shared memory than a block may have");
    once_share d = {.rank = 0, .peers = 1, .chunk = 0, .chunks = wide_stages(l) / CHUNK_STAGES};
    const uint32_t ring = shared_address(stages);
    if (!io.late) pdl_launch();
    if (CHAIN) {
        d.rank = cluster_rank();
        d.peers = cluster_blocks();
        d.chunk = d.rank * CHAIN_CHUNKS;
        d.chunks = min((uint32_t)CHAIN_CHUNKS, d.chunks - d.chunk);
        d.before = ring + STAGES * WIDE_STAGE<GROUPS, TN>;
        d.sent = shared_address(&sent);
    }
    const wide_copies c = {.w_map = &w_map,
                           .h_map = &h_map,
                           .bias = l.bias,
                           .ring = ring,
                           .full = shared_address(full),
                           .empty = shared_address(empty),
                           .biases = shared_address(biases),
                           .n = l.n};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(c.full + i * 8, 1);
            barrier_init(c.empty + i * 8, GROUPS * 4);
        }
        if (CHAIN) barrier_init(d.sent, 1);
        barrier_init_done();
        if (CHAIN) barrier_expect(d.sent, CHAIN_BYTES<TN>);
    }
    __syncthreads();
    /* Of a single block ptxas makes the wait a barrier of the block, at two places of the code. */
    if (CHAIN && d.peers > 1) cluster_arrive();
    const wide_tile_place tile = wide_place(&walk, blockIdx.x / d.peers);
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) copy_once_weights<GROUPS, TN, STAGES>(c, d, tile.col * TN);
        if (threadIdx.x == 32) {
            copy_once_rows<GROUPS, TN, STAGES>(c, d, tile.row * (GROUPS * 64));
            if (io.late) pdl_launch();
        }
        if (CHAIN) __syncwarp(); /* lanes 0 that copied and the others */
        if (CHAIN && d.peers > 1) cluster_wait();
    } else {
        if (GROUPS == 1)
            more_registers<224>();
        else
            more_registers<240>();
        const uint32_t group = GROUPS == 1 ? 0 : threadIdx.x / 128 - 1;
        wide_ring r = {.ring = ring,
                       .full = c.full,
                       .empty = c.empty,
                       .group = group,
                       .lane = threadIdx.x % 32};
        const uint32_t row0 = (tile.row * GROUPS + group) * 64 + threadIdx.x % 128 / 32 * 16;
        multiply_once<T, EPI, GROUPS, TN, STAGES, CHAIN>(l, io, row0, tile.col * TN, c.biases, &r,
                                                         d);
    }
#endif
}

/* ---- launchers ---- */

template <typename T, int EPI, int GROUPS, int TN, int STAGES, bool CHAIN>
static cudaError_t launch_once(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const wide_walk walk =
        wide_walk_of(io->rows, GROUPS * 64, l->n, TN, (uint64_t)l->k_pad * sizeof(T));
    const uint32_t chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    const uint32_t peers = CHAIN ? (chunks + CHAIN_CHUNKS - 1) / CHAIN_CHUNKS : 1;
    CUtensorMap w, h;
    cudaError_t e = map_cores(at->device, &w, l->cores, l->k_pad, l->n_pad / 8, TN / 8);
    if (e == cudaSuccess)
        e = map_cores(at->device, &h, io->h, l->k_pad, (io->rows + 7) / 8, GROUPS * 8);
    if (e != cudaSuccess) return e;
    return launch_clusters(at, peers, once_kernel<T, EPI, GROUPS, TN, STAGES, CHAIN>,
                           dim3(walk.n * peers), (GROUPS + 1) * 128,
                           (size_t)ONCE_SHARED<GROUPS, TN, STAGES, CHAIN>, *l, *io, walk, w, h);
}

/* Once for each line of the table. */
#define RUN_ONCE(CHAIN, id, TN, GROUPS, STAGES, ENDS)                                              \
    cudaError_t ROSE_TYPED(rose_gemm_##id)(const rose_cuda_launch *at, const rose_cuda_linear *l,  \
                                           const rose_cuda_io *io)                                 \
    {                                                                                              \
        return for_end<ENDS>(io->epilogue, [&](auto end) {                                         \
            return launch_once<ROSE_T, end.value, GROUPS, TN, STAGES, CHAIN>(at, l, io);           \
        });                                                                                        \
    }
#define PREPARE(CHAIN, TN, GROUPS, STAGES, ENDS)                                                   \
    if (e == cudaSuccess)                                                                          \
        e = for_ends<ENDS>([](auto end) {                                                          \
            return allow_shared(                                                                   \
                (const void *)once_kernel<ROSE_T, end.value, GROUPS, TN, STAGES, CHAIN>,           \
                ONCE_SHARED<GROUPS, TN, STAGES, CHAIN>);                                           \
        });
#define RUN(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, across, share, head, ENDS)   \
    RUN_ONCE(false, id, TN, GROUPS, STAGES, ENDS)
ROSE_ONCE_KERNELS(RUN)
#undef RUN
#define RUN(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, across, share, head, ENDS)   \
    RUN_ONCE(true, id, TN, GROUPS, STAGES, ENDS)
ROSE_CHAIN_KERNELS(RUN)
#undef RUN

cudaError_t ROSE_TYPED(rose_prepare_once)(const rose_cuda_device *)
{
    cudaError_t e = cudaSuccess;
#define ONE(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, across, share, head, ENDS)   \
    PREPARE(false, TN, GROUPS, STAGES, ENDS)
    ROSE_ONCE_KERNELS(ONE)
#undef ONE
    return e;
}

cudaError_t ROSE_TYPED(rose_prepare_chain)(const rose_cuda_device *)
{
    cudaError_t e = cudaSuccess;
#define ONE(family, id, name, ROWS, TN, GROUPS, STAGES, blocks, high, across, share, head, ENDS)   \
    PREPARE(true, TN, GROUPS, STAGES, ENDS)
    ROSE_CHAIN_KERNELS(ONE)
#undef ONE
    return e;
}
#undef PREPARE
#undef RUN_ONCE

#endif
