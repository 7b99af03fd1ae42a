/* backend/cuda/linear_wide.cuh - matrix products of 16-bit types on sm_90a with both operands of
 * wgmma in shared memory. The same bits as linear.cuh: chunks of 192 values of k, in each the
 * groups of 16 chained in the accumulator from zero, the chunks added in fp32, ascending, to +0.
 *
 * Rows of the batch are the 64 rows of wgmma, outputs its columns. Weights come from a second copy,
 * rose_cuda_linear.cores, which the copy engine takes as it takes blocked activations: a stage of
 * 64 values of k is two instructions of one thread, and the threads that multiply issue products
 * and nothing else.
 *
 * A block walks over tiles of GROUPS x 64 rows by TN outputs, a warpgroup for each 64 rows. The
 * contract's two sets of accumulators (a chunk's, the tile's) are used as a double buffer: the
 * first chunk of the next tile is under way in the one while the epilogue works on the other
 * (wide_epilogue.cuh). Tiles go row by row within groups of rows that fit the L2, so that weights
 * are read from memory once for each such group, not once for each tile of rows.
 *
 * Bound: shared memory, which the products read and the copies write: 128 x 192 asks 208 of its
 * cycles for 192 of the tensor cores'; 128 x 96 136 for 96. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_WIDE_CUH
#define ROSE_BACKEND_CUDA_LINEAR_WIDE_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_types.h"
#include "backend/cuda/wide_epilogue.cuh"
#include "backend/cuda/wide_walk.h"

enum {
    STAGE_K = 64,
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    CHUNK_STAGES = CHUNK_K / STAGE_K,
    BLOCK_BYTES = STAGE_K * 8 * 2 /* 8 rows or outputs of a stage */
};

template <int GROUPS, int TN>
static constexpr uint32_t WIDE_STAGE = (GROUPS * 64 + TN) / 8 * BLOCK_BYTES;

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

/* One thread: weights of a stage, then its rows. */
template <int GROUPS, int TN>
ROSE_DEVICE void copy_weights(uint32_t to, const CUtensorMap *map, uint32_t stage, uint32_t n0,
                              uint32_t full)
{
    barrier_expect(full, WIDE_STAGE<GROUPS, TN>);
    copy_box(to + GROUPS * 8 * BLOCK_BYTES, map, stage * (STAGE_K / 8), n0 / 8, full);
}

/* The weights of the first stages are under way before the kernel in front has ended. */
template <int GROUPS, int TN, int STAGES>
ROSE_DEVICE void copy_wide(const rose_cuda_linear &l, const wide_walk &walk, uint32_t at,
                           uint32_t step, const CUtensorMap *w_map, const CUtensorMap *h_map,
                           uint32_t ring, uint32_t full, uint32_t empty)
{
    constexpr uint32_t STAGE = WIDE_STAGE<GROUPS, TN>;
    const uint32_t n_stages = wide_stages(l);
    ring_place p = {0, 1};
    uint32_t early = 0;

    if (at < walk.n)
        for (const uint32_t n0 = wide_place(&walk, at).col * TN; early < STAGES && early < n_stages;
             early++)
            copy_weights<GROUPS, TN>(ring + early * STAGE, w_map, early, n0, full + early * 8);
    pdl_wait();
    for (; at < walk.n; at += step) {
        const wide_tile_place tile = wide_place(&walk, at);
        const uint32_t row0 = tile.row * (GROUPS * 64);
        for (uint32_t s = 0; s < n_stages; s++) {
            const uint32_t ready = full + p.slot * 8, to = ring + p.slot * STAGE;
            if (early > 0) {
                early--;
            } else {
                barrier_wait(empty + p.slot * 8, p.parity);
                copy_weights<GROUPS, TN>(to, w_map, s, tile.col * TN, ready);
            }
            copy_box(to, h_map, s * (STAGE_K / 8), row0 / 8, ready);
            next_place<STAGES>(&p);
        }
    }
}

/* What a warpgroup that multiplies knows of the ring. */
typedef struct wide_ring {
    uint32_t ring, full, empty; /* shared addresses */
    uint32_t group, lane;
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

/* This warp has read the stage in `slot`. */
ROSE_DEVICE void free_stage(const wide_ring &r, uint32_t slot)
{
    if (r.lane == 0) barrier_arrive(r.empty + slot * 8);
}

/* The second warpgroup stays a stage behind the first, so that one's products run under the other's
 * additions: in step, both would add at once and the tensor cores rest. Two barriers in turn, as
 * the first may be more than a chunk ahead, but not two: the ring is shorter. */
template <int GROUPS> ROSE_DEVICE void keep_behind(wide_ring *r, int stage)
{
    if (GROUPS == 1) return;
    if (stage == 0)
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p bar.sync %0, 256;\n}" ::"r"(1 + r->chunk),
            "r"(r->group)
            : "memory");
    if (stage == 1)
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p bar.arrive %0, 256;\n}" ::"r"(
                         1 + r->chunk),
                     "r"(r->group)
                     : "memory");
    if (stage == CHUNK_STAGES - 1) r->chunk ^= 1;
}

template <typename T, int GROUPS, int TN, int STAGES>
ROSE_DEVICE void multiply_chunk(float (&acc)[TN / 2], wide_ring *r)
{
    uint32_t before = 0;
#pragma unroll
    for (int s = 0; s < CHUNK_STAGES; s++) {
        const uint32_t slot = r->at.slot;
        if (s == 0) keep_behind<GROUPS>(r, s);
        start_stage<T, GROUPS, TN, STAGES>(acc, r, s == 0, true);
        if (s > 0) keep_behind<GROUPS>(r, s);
        if (s > 0) {
            wgmma_wait<1>();
            free_stage(*r, before);
        }
        before = slot;
    }
    wgmma_wait<0>();
    free_stage(*r, before);
    keep_here(acc);
}

template <int N> ROSE_DEVICE void add_chunk(float (&sum)[N], const float (&acc)[N], bool first)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = (first ? 0.0f : sum[i]) + acc[i];
}

template <typename T, int EPI, int GROUPS, int TN, int STAGES>
ROSE_DEVICE void multiply_wide(const rose_cuda_linear &l, const rose_cuda_io &io,
                               const wide_walk &walk, uint32_t at, uint32_t step, wide_ring *r)
{
    const uint32_t n_chunks = wide_stages(l) / CHUNK_STAGES;
    const uint32_t my_row = r->group * 64 + threadIdx.x % 128 / 32 * 16;
    float acc[TN / 2], sum[TN / 2];
    wide_tile done;

    pdl_wait();
    if (at >= walk.n) return;
    wide_tile_place tile = wide_place(&walk, at);
    multiply_chunk<T, GROUPS, TN, STAGES>(acc, r);
    add_chunk(sum, acc, true);
    for (;;) {
#pragma unroll 1
        for (uint32_t c = 1; c < n_chunks; c++) {
            multiply_chunk<T, GROUPS, TN, STAGES>(acc, r);
            add_chunk(sum, acc, false);
        }
        wide_old<TN> old;
        begin_wide<EPI>(&done, io, tile.row * (GROUPS * 64) + my_row, tile.col * TN);
        if (EPI == ROSE_CUDA_EPI_RESIDUAL) begin_old<TN>(&old, done, l, io);
        at += step;
        const bool more = at < walk.n;
        /* The next tile's first chunk, and this one's epilogue under it. Behind the last tile the
         * products are of what lies there, and for nothing: on condition ptxas puts a wait behind
         * each (C7518), and a second epilogue without products is code that is fetched anew. */
        uint32_t slot[CHUNK_STAGES];
#pragma unroll
        for (int s = 0; s < CHUNK_STAGES; s++) {
            slot[s] = r->at.slot;
            if (s == 0) keep_behind<GROUPS>(r, s);
            start_stage<T, GROUPS, TN, STAGES>(acc, r, s == 0, more);
            if (s > 0) keep_behind<GROUPS>(r, s);
        }
        tile = wide_place(&walk, more ? at : 0);
        finish_wide<T, EPI, TN, 0>(&done, &old, sum, l, io);
        wgmma_wait<2>();
        if (more) free_stage(*r, slot[0]);
        finish_wide<T, EPI, TN, 1>(&done, &old, sum, l, io);
        wgmma_wait<1>();
        if (more) free_stage(*r, slot[1]);
        finish_wide<T, EPI, TN, 2>(&done, &old, sum, l, io);
        if (EPI == ROSE_CUDA_EPI_LOGITS) end_wide_logits(done, l, io);
        wgmma_wait<0>();
        keep_here(acc);
        if (!more) break;
        free_stage(*r, slot[2]);
        add_chunk(sum, acc, true);
    }
}

#endif

/* One warpgroup to copy, GROUPS to multiply. */
template <typename T, int EPI, int GROUPS, int TN, int STAGES>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, GROUPS == 1 ? 2 : 1)
    wide_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    extern __shared__ __align__(1024) uint8_t stages[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty);
    if (!io.late) pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            copy_wide<GROUPS, TN, STAGES>(l, walk, blockIdx.x, gridDim.x, &w_map, &h_map, ring,
                                          full_at, empty_at);
            if (io.late) pdl_launch();
        }
    } else {
        if (GROUPS == 1)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        wide_ring r = {ring, full_at, empty_at, threadIdx.x / 128 - 1, threadIdx.x % 32, {0, 0}, 0};
        multiply_wide<T, EPI, GROUPS, TN, STAGES>(l, io, walk, blockIdx.x, gridDim.x, &r);
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

template <typename T, int EPI, int GROUPS, int TN, int STAGES>
static cudaError_t launch_wide(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const wide_walk walk =
        wide_walk_of(io->rows, GROUPS * 64, l->n, TN, (uint64_t)l->k_pad * sizeof(T));
    const uint32_t most = (uint32_t)g_multiprocessors * (GROUPS == 1 ? 2 : 1);
    CUtensorMap w, h;
    cudaError_t e = map_cores(&w, l->cores, l->k_pad, l->n_pad / 8, TN / 8);
    if (e == cudaSuccess) e = map_cores(&h, io->h, l->k_pad, (io->rows + 7) / 8, GROUPS * 8);
    if (e != cudaSuccess) return e;
    return launch_kernel(at, wide_kernel<T, EPI, GROUPS, TN, STAGES>,
                         dim3(walk.n < most ? walk.n : most), (GROUPS + 1) * 128,
                         (size_t)STAGES * WIDE_STAGE<GROUPS, TN>, *l, *io, walk, w, h);
}

/* Every kernel once: what it is and its shared memory. */
#define WIDE_EPILOGUES(M, G, TN, STAGES)                                                           \
    M(ROSE_CUDA_EPI_QKV, G, TN, STAGES)                                                            \
    M(ROSE_CUDA_EPI_RESIDUAL, G, TN, STAGES)                                                       \
    M(ROSE_CUDA_EPI_ACT, G, TN, STAGES)                                                            \
    M(ROSE_CUDA_EPI_LOGITS, G, TN, STAGES)

template <typename T, int GROUPS, int TN, int STAGES>
static cudaError_t run_shape(const rose_cuda_launch *at, const rose_cuda_linear *l,
                             const rose_cuda_io *io)
{
#define LAUNCH(EPI, G, N, S)                                                                       \
    if (io->epilogue == EPI) return launch_wide<T, EPI, G, N, S>(at, l, io);
    WIDE_EPILOGUES(LAUNCH, GROUPS, TN, STAGES)
#undef LAUNCH
    return cudaErrorInvalidValue;
}

template <typename T>
static cudaError_t run_wide(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io, rose_cuda_wide kernel)
{
    if (kernel == ROSE_CUDA_WIDE_192) return run_shape<T, 2, 192, 5>(at, l, io);
    if (kernel == ROSE_CUDA_WIDE_96) return run_shape<T, 2, 96, 7>(at, l, io);
    if (kernel == ROSE_CUDA_WIDE_64_96) return run_shape<T, 1, 96, 5>(at, l, io);
    return run_shape<T, 1, 48, 7>(at, l, io);
}

/* The kernels are empty in code that is not for sm_90a: then they have no shared memory. */
template <typename T> static cudaError_t init_wide(bool *there)
{
#define KERNEL(EPI, G, N, S)                                                                       \
    {(const void *)wide_kernel<T, EPI, G, N, S>, (size_t)S * WIDE_STAGE<G, N>},
    const struct {
        const void *kernel;
        size_t shared;
    } kernels[] = {WIDE_EPILOGUES(KERNEL, 2, 192, 5) //
                   WIDE_EPILOGUES(KERNEL, 2, 96, 7)  //
                   WIDE_EPILOGUES(KERNEL, 1, 96, 5)  //
                   WIDE_EPILOGUES(KERNEL, 1, 48, 7)};
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
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)kernels[i].shared);
    *there = e == cudaSuccess;
    return e;
}

#endif
