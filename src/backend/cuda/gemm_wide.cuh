/* backend/cuda/gemm_wide.cuh - the GEMM family `wide`: 16-bit types on sm_90a, for tens of rows and
 * more. TMA copies both operands to shared memory (gemm_wide_ring.cuh), wgmma multiplies them
 * there, and gemm_wide_ends.cuh stores the sums. One kernel template has three modes:
 *
 * - TURNS, for matrices of one part. The two warpgroups of a block take whole tiles in turn: one
 *   multiplies while the other is in its epilogue. With one chain over k, a warpgroup has
 *   enough registers for a tile of 128 x 192.
 * - SUM, for the residual. The two warpgroups share a tile of 128 rows. A second set of registers
 *   holds x and the parts added so far. The second warpgroup stays LAG stages after the first, so
 *   that one multiplies while the other stores its tile and loads the next x.
 * - SPLIT, for the residual of few rows. A cluster of four blocks makes a tile, each block one
 *   part, so that few tiles keep all SMs busy. Rank r receives rows 16 r to
 *   16 r + 15 of each 64, of all parts, through distributed shared memory. It adds them to x in
 *   order.
 *
 * TURNS and SUM are persistent: a block walks over tiles (wide_walk.h). Two blocks of a cluster can
 * share weights or rows, which halves their reads of the L2. */
#ifndef ROSE_BACKEND_CUDA_GEMM_WIDE_CUH
#define ROSE_BACKEND_CUDA_GEMM_WIDE_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/gemm_wide_ring.cuh"
#include "backend/cuda/launch.cuh"

/* The kernels: M(id, mode, rows and outputs of a tile, stages of weights, of rows, blocks that
 * share, across). gemm_table.c has a line for each. */
#define ROSE_WIDE_KERNELS(M)                                                                       \
    M(wide_128x192_x2, WIDE_TURNS, 128, 192, 5, 5, 2, false)                                       \
    M(wide_128x192_rows, WIDE_TURNS, 128, 192, 5, 5, 2, true)                                      \
    M(wide_128x128, WIDE_TURNS, 128, 128, 6, 6, 1, false)                                          \
    M(wide_64x192, WIDE_TURNS, 64, 192, 6, 6, 1, false)                                            \
    M(wide_64x96, WIDE_TURNS, 64, 96, 10, 10, 1, false)                                            \
    M(wide_64x32, WIDE_TURNS, 64, 32, 16, 16, 1, false)                                            \
    M(wide_sum_192_x2, WIDE_SUM, 128, 192, 5, 5, 2, false)                                         \
    M(wide_sum_128, WIDE_SUM, 128, 128, 6, 6, 2, true)                                             \
    M(wide_sum_96, WIDE_SUM, 128, 96, 7, 7, 2, true)                                               \
    M(wide_split_128x144, WIDE_SPLIT, 128, 144, 8, 4, 1, false)                                    \
    M(wide_split_128x96, WIDE_SPLIT, 128, 96, 10, 5, 1, false)                                     \
    M(wide_split_128, WIDE_SPLIT, 128, 128, 8, 4, 1, false)                                        \
    M(wide_split_64x144, WIDE_SPLIT, 64, 144, 10, 5, 1, false)                                     \
    M(wide_split_64x96, WIDE_SPLIT, 64, 96, 12, 6, 1, false)                                       \
    M(wide_split_32, WIDE_SPLIT, 64, 32, 7, 7, 1, false)

#if ROSE_HOPPER

/* ---- TURNS ---- */

/* Every other of the block's tiles. The first warpgroup begins without a turn given to it. A
 * warpgroup gives the turn to the other when the products of its last stage are under way. */
template <typename T, typename L>
ROSE_DEVICE void multiply_turns(const rose_cuda_matrix &m, const rose_gemm_io &io,
                                const wide_walk &walk, uint32_t blocks, wide_ring *r)
{
    constexpr int M = L::ROWS / 64;
    const uint32_t groups = part_groups(m, 0), n_stages = stages_of(groups);

    if (r->group > 0) skip_stages<L::STAGES>(&r->at, n_stages);
    for (uint32_t turn = r->group;; turn += 2) {
        float acc[M][L::TN / 2];
        const uint32_t at = blockIdx.x / L::CLUSTER + turn * blocks;
        if (at >= walk.n) break;
        const bool more = at + blocks < walk.n;
        const auto issued = [&](uint32_t s) {
            if (s == n_stages - 1) pair_arrive(2 - r->group, more ? 0 : 1);
        };
        const uint2 tile = tile_origin<L>(walk, at, r->rank);
        put_bias<L::TN>(m, r->bias, tile.y);
        pair_wait(1 + r->group, turn);
        multiply_part<T, L, M>(acc, r, groups, issued, [] {});
        pdl_wait(); /* only the first time; the rows are copied after it anyway */
        const uint32_t row0 = tile.x + threadIdx.x % 128 / 32 * 16;
#pragma unroll
        for (int p = 0; p < M; p++) {
            bias_sums(m, r->bias, acc[p]);
            end_wide<T>(m, io, row0 + p * 64, tile.y, r->lines, acc[p]);
        }
        skip_stages<L::STAGES>(&r->at, n_stages);
    }
}

/* ---- SUM ---- */

enum { WIDE_LAG = 2 /* stages */ };

/* x and the parts so far are in `sum`. The old tile is stored, and x of the new one loaded, while
 * the products of the tile's first stage are under way. */
template <typename T, typename L>
ROSE_DEVICE void multiply_sum(const rose_cuda_matrix &m, const rose_gemm_io &io,
                              const wide_walk &walk, uint32_t blocks, wide_ring *r)
{
    float acc[1][L::TN / 2], sum[L::TN / 2];
    uint32_t n_stages = 0, at = blockIdx.x / L::CLUSTER, stage = 0;
    const wide_out<float> x = {io.x, io.ld_x, io.rows, m.n};
    uint2 mine = make_uint2(io.rows, 0), before; /* first row and output of the warp: none yet */

    for (uint32_t p = 0; p < ROSE_GEMM_PARTS; p++)
        n_stages += stages_of(part_groups(m, p));
    /* The first warpgroup is at most STAGES stages ahead of the second. In a longer tile it cannot
     * come to the barrier twice before the second has passed it. */
    const bool lag = n_stages > L::STAGES;
    const auto issued = [&](uint32_t) {
        if (stage++ == WIDE_LAG && lag) pair_arrive(1, r->group);
    };
    for (; at < walk.n; at += blocks) {
        const uint2 tile = tile_origin<L>(walk, at, r->rank);
        const auto change = [&] {
            store_lines(x, before.x, before.y, r->lines, sum);
            load_lines(x, mine.x, mine.y, sum);
        };
        put_bias<L::TN>(m, r->bias, tile.y);
        pdl_wait(); /* only the first time */
        before = mine;
        mine = make_uint2(tile.x + r->first_row + threadIdx.x % 128 / 32 * 16, tile.y);
        stage = 0;
        if (lag) pair_wait(1, r->group);
        if (part_groups(m, 0) > 0) {
            multiply_part<T, L, 1>(acc, r, part_groups(m, 0), issued, change);
        } else {
            change();
            empty_part(acc[0]);
        }
        turn_lines(r->lines, sum);
        bias_sums(m, r->bias, acc[0]);
        add_part(sum, acc[0]);
#pragma unroll 1
        for (uint32_t p = 1; p < ROSE_GEMM_PARTS; p++) {
            const uint32_t groups = part_groups(m, p);
            if (groups > 0)
                multiply_part<T, L, 1>(acc, r, groups, issued, [] {});
            else
                empty_part(acc[0]);
            add_part(sum, acc[0]);
        }
    }
    store_lines(x, mine.x, mine.y, r->lines, sum);
}

/* ---- SPLIT ---- */

/* Where rank r gets 16 rows x 8 outputs of part `part` from warpgroup q's tile: a float4 a lane. */
template <typename L> ROSE_DEVICE uint32_t received_at(uint32_t part, uint32_t q, uint32_t i)
{
    return (((part * L::GROUPS + q) * (L::TN / 8) + i) * 32 + threadIdx.x % 32) * 16;
}

/* Warp v sends its 16 rows to rank v. */
template <typename L>
ROSE_DEVICE void send_part(const float (&acc)[L::TN / 2], const wide_ring &r, uint32_t received,
                           uint32_t sent)
{
    const uint32_t to = threadIdx.x % 128 / 32;
    const uint32_t base = peer_address(received, to), barrier = peer_address(sent, to);
#pragma unroll
    for (int i = 0; i < L::TN / 8; i++)
        send4(base + received_at<L>(r.rank, r.group, i),
              make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]), barrier);
}

/* The block's part of the tile; then the four parts of its share of the tile, a quarter of whose
 * outputs each warp of a warpgroup has. received, sent: shared addresses. */
template <typename T, typename L>
ROSE_DEVICE void multiply_split(const rose_cuda_matrix &m, const rose_gemm_io &io,
                                const wide_walk &walk, wide_ring *r, uint32_t received,
                                uint32_t sent)
{
    constexpr int BLOCKS = L::TN / 8, MINE = (BLOCKS + 3) / 4; /* of 8 outputs; most of a warp */
    const uint2 tile = tile_origin<L>(walk, blockIdx.x / L::CLUSTER, 0);
    const uint32_t groups = part_groups(m, r->rank), first = threadIdx.x % 128 / 32 * MINE;
    wide_lane w = lane_of(m, io, tile.x + r->first_row + r->rank * 16, tile.y + first * 8);
    w.left = min(w.left, L::TN + tile.y - w.n); /* the last warp may have fewer */
    float acc[1][L::TN / 2] = {}, sum[MINE * 4];
    float2 bias[MINE];

#pragma unroll
    for (int i = 0; i < MINE; i++)
        bias[i] = end_bias(m, w.n + i * 8);
    pdl_wait();
    load_residual(io, w, sum);
    if (groups > 0)
        multiply_part<T, L, 1>(
            acc, r, groups, [](uint32_t) {}, [] {});
    if (L::OVER) cluster_arrive();
    cluster_wait(); /* the barriers of the others are there; OVER: their rings are free */
    send_part<L>(acc[0], *r, received, sent);
    barrier_wait_cluster(sent, 0);
#pragma unroll
    for (int p = 0; p < ROSE_GEMM_PARTS; p++) {
        float part[MINE * 4];
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            float4 v = make_float4(0, 0, 0, 0);
            if (BLOCKS % 4 == 0 || first + i < BLOCKS)
                get_shared(&v, received + received_at<L>(p, r->group, first + i));
            part[i * 4] = v.x;
            part[i * 4 + 1] = v.y;
            part[i * 4 + 2] = v.z;
            part[i * 4 + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; p == 0 && i < MINE; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                set_pair(part, i, h, end_biased(m, pair_of(part, i, h), bias[i]));
        add_part(sum, part);
    }
    store_residual(io, w, sum);
}

/* ---- the kernel: one warpgroup loads, L::GROUPS multiply and store ---- */

/* Barriers and zeros of the block, and those of its cluster; the peers of a SPLIT wait later. */
template <typename L> ROSE_DEVICE void begin_wide(const wide_memory &s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < L::STAGES; i++) {
            barrier_init(s.full + i * 8, 1);
            barrier_init(s.empty + i * 8, L::SHARE * L::READERS * 4);
        }
        if (L::MODE == WIDE_SPLIT) barrier_init(s.sent, 1);
        barrier_init_done();
        if (L::MODE == WIDE_SPLIT) barrier_expect(s.sent, L::RECEIVED);
    }
    if (threadIdx.x / 32 == 1) {
        for (uint32_t i = threadIdx.x % 32; i < ZERO_BYTES / 16; i += 32)
            put_shared(s.zeros + i * 16, make_float4(0, 0, 0, 0));
        copies_ready(); /* wgmma sees the zeros */
    }
    __syncthreads();
    if (L::MODE == WIDE_SPLIT && !L::OVER) cluster_arrive();
    if (L::MODE != WIDE_SPLIT && L::CLUSTER > 1) cluster_sync();
}

template <typename L>
ROSE_DEVICE void load_wide(const wide_copies &c, const wide_walk &walk, uint32_t blocks)
{
    if (L::MODE != WIDE_SPLIT) fewer_registers<40>();
    if (threadIdx.x == 0) copy_tiles<L>(c, walk, blocks);
    if (L::MODE != WIDE_SPLIT) return;
    __syncwarp();
    if (L::OVER) cluster_arrive();
    cluster_wait();
}

template <typename T, typename L>
ROSE_DEVICE void multiply_wide(const wide_memory &s, const rose_cuda_matrix &m,
                               const rose_gemm_io &io, const wide_walk &walk, uint32_t blocks,
                               uint32_t rank)
{
    const uint32_t group = warpgroup() - 1, own = s.zeros - (threadIdx.x / 32 - 3) * L::OWN;
    wide_ring r = {.in = s,
                   .bias = own,
                   .lines = own + L::BIAS,
                   .group = group,
                   .first_row = L::MODE == WIDE_TURNS ? 0 : group * 64,
                   .lane = threadIdx.x % 32,
                   .rank = rank,
                   .at = {0, 0}};
    if (L::MODE != WIDE_SPLIT) more_registers<232>();
    if constexpr (L::MODE == WIDE_TURNS)
        multiply_turns<T, L>(m, io, walk, blocks, &r);
    else if constexpr (L::MODE == WIDE_SUM)
        multiply_sum<T, L>(m, io, walk, blocks, &r);
    else
        multiply_split<T, L>(m, io, walk, &r, s.stages + L::RECEIVED_AT, s.sent);
}

#endif

template <typename T, typename L>
static __global__ void __launch_bounds__(L::THREADS, L::BLOCKS)
    wide_kernel(const __grid_constant__ rose_cuda_matrix m, const __grid_constant__ rose_gemm_io io,
                const __grid_constant__ wide_walk walk, const uint32_t blocks,
                const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    static_assert(L::SHARED + 1024 /* barriers, and what the system takes */ <=
                      (L::BLOCKS == 2 ? 113 : 227) * 1024,
                  "more shared memory than a block may have");
    const uint32_t rank = L::CLUSTER > 1 ? cluster_rank() : 0;
    ROSE_BLOCK_MEMORY(stages);
    __shared__ uint64_t full[L::STAGES], empty[L::STAGES], sent;
    const uint32_t at = shared_address(stages);
    const wide_memory s = {at, shared_address(full), shared_address(empty), shared_address(&sent),
                           at + L::SHARED - ZERO_BYTES};
    constexpr bool SPLIT = L::MODE == WIDE_SPLIT;
    pdl_launch();
    begin_wide<L>(s);
    if (threadIdx.x < 128)
        load_wide<L>(
            {&w_map, &h_map, &m, s, SPLIT ? rank : 0, SPLIT ? rank + 1 : m.n_parts, rank, io.rows},
            walk, blocks);
    else
        multiply_wide<T, L>(s, m, io, walk, blocks, rank);
    if (L::SHARE > 1) {
        __syncthreads();
        cluster_sync(); /* the other block may still copy and arrive here */
    }
#endif
}

/* ---- launchers ---- */

/* Blocks of 8 rows or outputs x 8 values of k: a box has STAGE_K values of k of `box_blocks`. */
static cudaError_t map_blocks(const rose_cuda_device *d, CUtensorMap *map, const void *base,
                              uint32_t k_pad, uint32_t blocks, uint32_t box_blocks)
{
    const PFN_cuTensorMapEncodeTiled_v12000 encode =
        reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(d->encode);
    const cuuint64_t size[3] = {64, k_pad / 8, blocks}, pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, STAGE_K / 8, box_blocks}, one[3] = {1, 1, 1};
    const CUresult r =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(base), size, pitch, box,
               one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, typename L>
static cudaError_t launch_wide(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                               const rose_gemm_io *io)
{
    const wide_walk walk = wide_walk_of(io->rows, L::ROWS * L::HIGH, m->n, L::TN * L::WIDTH,
                                        (uint64_t)m->k_pad * sizeof(T));
    const uint32_t most = L::MODE == WIDE_SPLIT ? walk.n : at->device->sms / L::CLUSTER;
    const uint32_t blocks = walk.n < most ? walk.n : most;
    CUtensorMap w, h;
    cudaError_t e = map_blocks(at->device, &w, m->w, m->k_pad, m->n_pad / 8, L::TN / 8 / L::HIGH);
    if (e == cudaSuccess)
        e = map_blocks(at->device, &h, io->h, m->k_pad, (io->rows + 7) / 8, row_box<L>(io->rows));
    if (e != cudaSuccess) return e;
    return launch_clusters(at, L::CLUSTER, wide_kernel<T, L>, dim3(blocks * L::CLUSTER), L::THREADS,
                           (size_t)L::SHARED, *m, *io, walk, blocks, w, h);
}

/* The launch functions of one type. The including file defines ROSE_T, the type, and
 * ROSE_TYPED(name), the name with the type's suffix. */
extern "C" {
#define DEFINE(id, MODE, ROWS, TN, STAGES, ROW_STAGES, SHARE, ACROSS)                              \
    ROSE_GEMM_FN(id);                                                                              \
    cudaError_t ROSE_TYPED(rose_gemm_##id)(const rose_cuda_launch *at, const rose_cuda_matrix *m,  \
                                           const rose_gemm_io *io, const rose_gemm_kernel *)       \
    {                                                                                              \
        return launch_wide<ROSE_T, wide_line<MODE, ROWS, TN, STAGES, ROW_STAGES, SHARE, ACROSS>>(  \
            at, m, io);                                                                            \
    }
ROSE_WIDE_KERNELS(DEFINE)
#undef DEFINE

/* Allows the kernels their shared memory. */
cudaError_t ROSE_TYPED(rose_gemm_allow_wide)(void);
cudaError_t ROSE_TYPED(rose_gemm_allow_wide)(void)
{
    cudaError_t e = cudaSuccess;
#define ALLOW(id, MODE, ROWS, TN, STAGES, ROW_STAGES, SHARE, ACROSS)                               \
    if (e == cudaSuccess)                                                                          \
        e = cudaFuncSetAttribute(                                                                  \
            (const void *)                                                                         \
                wide_kernel<ROSE_T, wide_line<MODE, ROWS, TN, STAGES, ROW_STAGES, SHARE, ACROSS>>, \
            cudaFuncAttributeMaxDynamicSharedMemorySize,                                           \
            (int)wide_line<MODE, ROWS, TN, STAGES, ROW_STAGES, SHARE, ACROSS>::SHARED);
    ROSE_WIDE_KERNELS(ALLOW)
#undef ALLOW
    return e;
}
}

#endif
