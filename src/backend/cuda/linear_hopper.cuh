/* backend/cuda/linear_hopper.cuh - matrix products of 16-bit types on sm_90a, from about 64 rows
 * up. The same bits as linear.cuh: chunks of 192 values of k, in each the groups of 16 chained in
 * the accumulator from zero, the chunks added in fp32, ascending, to +0.
 *
 * Both kernels compute the product with outputs as the 64 rows of wgmma and the rows of the batch
 * as its columns: packed weights are then the operand in registers as they lie, one 16-byte load a
 * lane for two products, and blocked activations the operand in shared memory as they lie.
 *
 * The stream kernel (many rows): one block a multiprocessor walks over tiles of 128 outputs x TN
 * rows. One thread copies weights and rows ahead into a ring of stages of 64 values of k, two
 * instructions a stage; two warpgroups of 64 outputs each multiply, their operands a step of 32
 * ahead. They share nothing but the ring, so that one's epilogue can run under the other's
 * products. Bound: half of wgmma's rate at long k; at k = 768 the epilogue is as long as the
 * product.
 *
 * The split kernel (64 to a few hundred rows): a tile of 64 outputs x TN rows is shared by a
 * cluster of blocks, each with its share of the chunks, so that all weights are in flight at once,
 * straight to registers; the sums of the chunks are then added in order through distributed shared
 * memory. Bound: its chain of waits.
 *
 * The team kernel (on trial, rows as above, up to 4 chunks): the chunks of a tile are warpgroups of
 * one block instead, so that nothing waits for another block. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_HOPPER_CUH
#define ROSE_BACKEND_CUDA_LINEAR_HOPPER_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/hopper_epilogue.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_head.cuh"
#include "backend/cuda/linear_types.h"
#include "backend/cuda/wide_walk.h"

enum {
    GROUPS = 2, /* that multiply, in the stream kernel */
    STAGE_K = 64,
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    CHUNK_STAGES = CHUNK_K / STAGE_K,
    TEAM_GROUPS = 4 /* that multiply, at most, in the team kernel */
};

#if ROSE_HOPPER

/* The operands of 32 values of k x 16 outputs, of two products of 16: the lane's places in two
 * tiles. */
ROSE_DEVICE void place_outputs(uint32_t a[8], const uint4 &lo, const uint4 &hi)
{
    a[0] = lo.x;
    a[1] = hi.x;
    a[2] = lo.y;
    a[3] = hi.y;
    a[4] = lo.z;
    a[5] = hi.z;
    a[6] = lo.w;
    a[7] = hi.w;
}

/* From a stage in shared memory. */
ROSE_DEVICE void load_outputs(uint32_t a[8], uint32_t at)
{
    place_outputs(a, load_shared16(at), load_shared16(at + 1024));
}

/* ---- the stream kernel ---- */

/* The tiles of a block. In groups of one tile of rows they go over the outputs first: neighbours
 * have the same rows. */
typedef struct tile_walk {
    wide_walk all;
    uint32_t at, n, step;
} tile_walk;

ROSE_DEVICE tile_walk first_tile(const wide_walk &all)
{
    tile_walk w;
    w.all = all;
    w.n = all.n;
    w.at = blockIdx.x;
    w.step = gridDim.x;
    return w;
}

ROSE_DEVICE uint32_t tile_output(const tile_walk &w)
{
    return wide_place(&w.all, w.at).col * (GROUPS * GROUP_OUTPUTS);
}
template <int TN> ROSE_DEVICE uint32_t tile_row(const tile_walk &w)
{
    return wide_place(&w.all, w.at).row * TN;
}

ROSE_DEVICE uint32_t whole_stages(const rose_cuda_linear &l)
{
    return (l.k_pad + CHUNK_K - 1) / CHUNK_K * CHUNK_STAGES;
}

/* One thread: the ring, stage after stage: weights, then rows. The weights of the first stages are
 * under way before the kernel in front has ended. */
template <typename T, int TN, int STAGES>
ROSE_DEVICE void copy_ahead(const rose_cuda_linear &l, const wide_walk &all,
                            const CUtensorMap *w_map, const CUtensorMap *h_map, uint32_t ring,
                            uint32_t full, uint32_t empty)
{
    constexpr uint32_t WEIGHTS = GROUPS * GROUP_OUTPUTS * STAGE_K * sizeof(T);
    constexpr uint32_t STAGE = WEIGHTS + TN * STAGE_K * sizeof(T);
    const uint32_t n_stages = whole_stages(l); /* beyond k the copies are zeros */
    uint32_t slot = 0, parity = 1, early = 0;
    tile_walk w = first_tile(all);

    const uint32_t first = w.at < w.n ? tile_output(w) : 0;
    for (; w.at < w.n && early < STAGES && early < n_stages; early++) {
        barrier_expect(full + early * 8, STAGE);
        copy_box(ring + early * STAGE, w_map, early * (STAGE_K / 8), first / 8, full + early * 8);
    }
    pdl_wait();
    for (; w.at < w.n; w.at += w.step) {
        const uint32_t n0 = tile_output(w), row0 = tile_row<TN>(w);
        for (uint32_t s = 0; s < n_stages; s++) {
            const uint32_t ready = full + slot * 8, to = ring + slot * STAGE;
            if (early > 0) {
                early--;
            } else {
                barrier_wait(empty + slot * 8, parity);
                barrier_expect(ready, STAGE);
                copy_box(to, w_map, s * (STAGE_K / 8), n0 / 8, ready);
            }
            copy_box(to + WEIGHTS, h_map, s * (STAGE_K / 8), row0 / 8, ready);
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
    }
}

template <typename T, int TN, int STAGES>
ROSE_DEVICE void multiply_tiles(const rose_cuda_linear &l, const rose_cuda_io &io,
                                const wide_walk &all, uint32_t ring, uint32_t full, uint32_t empty,
                                float *part)
{
    constexpr uint32_t WEIGHTS = GROUPS * GROUP_OUTPUTS * STAGE_K * sizeof(T);
    constexpr uint32_t STAGE = WEIGHTS + TN * STAGE_K * sizeof(T);
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32;
    const int lane = threadIdx.x % 32;
    const uint32_t n_chunks = whole_stages(l) / CHUNK_STAGES;
    const uint32_t mine = (group * 8 + warp * 2) * 1024 + lane * 16;
    uint32_t a[3][8]; /* operands of this step of 32 values of k, of the next, of the one before */
    uint32_t slot = 0, parity = 0, at = ring;
    float acc[TN / 2], sum[TN / 2];

    tile_walk w = first_tile(all);
    pdl_wait();
    if (w.at < w.n) {
        barrier_wait(full, 0);
        load_outputs(a[0], at + mine);
    }
    for (; w.at < w.n; w.at += w.step) {
#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            sum[i] = 0;
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
            const bool last = chunk + 1 == n_chunks && w.at + w.step >= w.n;
#pragma unroll
            for (int i = 0; i < ROSE_CUDA_CHUNK_K32; i++) {
                const uint64_t rows = core_matrices(at + WEIGHTS, STAGE_K * 16) + i % 2 * 32;
                const uint32_t before = slot;
                wgmma_fence();
                wgmma(acc, a[i % 3], rows, i > 0, static_cast<const T *>(NULL));
                wgmma(acc, a[i % 3] + 4, rows + 16, 1, static_cast<const T *>(NULL));
                wgmma_commit();
                /* The next step's operands while the products run. */
                if (i % 2 == 1) {
                    if (++slot == STAGES) {
                        slot = 0;
                        parity ^= 1;
                    }
                    at = ring + slot * STAGE;
                }
                if (i + 1 < ROSE_CUDA_CHUNK_K32 || !last) {
                    if (i % 2 == 1) barrier_wait(full + slot * 8, parity);
                    load_outputs(a[(i + 1) % 3], at + mine + (i + 1) % 2 * 512);
                }
                if (i + 1 < ROSE_CUDA_CHUNK_K32)
                    wgmma_wait<1>();
                else
                    wgmma_wait<0>();
                if (i % 2 == 0 && i > 0 && lane == 0) /* the stage before has been read */
                    barrier_arrive(empty + (before == 0 ? STAGES - 1 : before - 1) * 8);
                if (i + 1 == ROSE_CUDA_CHUNK_K32 && lane == 0) barrier_arrive(empty + before * 8);
            }
            keep_here(acc);
#pragma unroll
            for (int i = 0; i < TN / 2; i++)
                sum[i] += acc[i];
        }
        finish_tile<T, TN>(sum, part + group * PART, 1 + group, l, io, tile_row<TN>(w),
                           tile_output(w) + group * GROUP_OUTPUTS);
    }
}

#endif

template <typename T, int TN, int STAGES>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    stream_kernel(const rose_cuda_linear l, const rose_cuda_io io, const wide_walk walk,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    extern __shared__ __align__(1024) uint8_t stages[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr uint32_t STAGE = (GROUPS * GROUP_OUTPUTS + TN) * STAGE_K * sizeof(T);
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty);
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            copy_ahead<T, TN, STAGES>(l, walk, &w_map, &h_map, ring, full_at, empty_at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<T, TN, STAGES>(l, io, walk, ring, full_at, empty_at,
                                      reinterpret_cast<float *>(stages + STAGES * STAGE));
    }
#endif
}

/* ---- the split kernel ---- */

#if ROSE_HOPPER

/* Weights of one chunk for a warp's 16 outputs. */
ROSE_DEVICE void load_chunk(uint32_t (&a)[ROSE_CUDA_CHUNK_K32][8], const uint4 *w, uint32_t n_k32,
                            uint32_t chunk)
{
#pragma unroll
    for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
        const uint4 *at = w + (size_t)(chunk * ROSE_CUDA_CHUNK_K32 + j) * 32;
        if (chunk * ROSE_CUDA_CHUNK_K32 + j < n_k32) {
            place_outputs(a[j], load_early(at), load_early(at + (size_t)n_k32 * 32));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[j][i] = 0;
    }
}

/* What the epilogue of four outputs of rows r, r + step, ... of a tile reads from memory. */
template <int QUADS> struct split_inputs {
    float4 bias, old[QUADS];
    uint32_t slot[QUADS];
};

template <int QUADS>
ROSE_DEVICE void load_split_inputs(split_inputs<QUADS> *in, const rose_cuda_linear &l,
                                   const rose_cuda_io &io, uint32_t row0, uint32_t r0,
                                   uint32_t step, uint32_t end, uint32_t n)
{
    in->bias = load_bias4(l, n);
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const uint32_t r = r0 + q * step, row = row0 + r;
        if (r >= end || row >= io.rows || n >= l.n) continue;
        if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
            in->old[q] = load_now(reinterpret_cast<const float4 *>(residual_at(io, row, n)));
        if (io.epilogue == ROSE_CUDA_EPI_QKV) in->slot[q] = load_now(io.slot + row);
    }
}

/* Four sums of a row through the epilogue. */
template <typename T>
ROSE_DEVICE void finish4(const rose_cuda_linear &l, const rose_cuda_io &io, const qkv_place &place,
                         uint32_t row, uint32_t n, float4 v, const float4 &bias, const float4 &old,
                         uint32_t slot)
{
    if (l.bias != NULL) v = add4(v, bias);
    if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
        *reinterpret_cast<float4 *>(residual_at(io, row, n)) = add4(old, v);
    else if (io.epilogue == ROSE_CUDA_EPI_ACT)
        store_act4<T>(io, row, n, activate4(v, io.act));
    else
        finish_qkv4<T>(l, io, place, row, v, slot);
}

/* A lane's sums of a product of 64 outputs x TN rows to shared memory, [TN][SUM_LD]. */
template <int TN>
ROSE_DEVICE void store_sums(float *to, const float (&acc)[TN / 2], int warp, int g, int t)
{
    to += warp * 16 + g;
#pragma unroll
    for (int i = 0; i < TN / 2; i++)
        to[(i / 4 * 8 + t * 2 + i % 2) * SUM_LD + i / 2 % 2 * 8] = acc[i];
}

/* Four outputs of QUADS rows each: the chunks' sums, ascending, from whichever block has them. */
template <int QUADS>
ROSE_DEVICE void add_chunks(float4 v[QUADS], const uint32_t at[QUADS], uint32_t pitch,
                            uint32_t n_chunks, uint32_t each)
{
    uint32_t rank = 0, in_block = 0;
#pragma unroll
    for (int q = 0; q < QUADS; q++)
        v[q] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (uint32_t i = 0; i < n_chunks; i++) {
        float4 c[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            c[q] = cluster_load(cluster_address(at[q] + in_block * pitch, rank));
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            v[q].x += c[q].x;
            v[q].y += c[q].y;
            v[q].z += c[q].z;
            v[q].w += c[q].w;
        }
        if (++in_block == each) {
            in_block = 0;
            rank++;
        }
    }
}

#endif

/* Grid: (blocks of a cluster, n_pad / 64, row tiles); a block takes `each` chunks. */
template <typename T, int TN>
static __global__ void __launch_bounds__(128, 3)
    split_kernel(const rose_cuda_linear l, const rose_cuda_io io, const uint32_t each,
                 const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    constexpr uint32_t PITCH = TN * CHUNK_K * sizeof(T);
    static_assert(PITCH >= TN * SUM_LD * sizeof(float), "sums replace the rows they are made of");
    extern __shared__ __align__(1024) uint8_t chunks[];
    __shared__ uint64_t full[8];
    const uint32_t ring = shared_address(chunks), full_at = shared_address(full);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t n_k32 = l.k_pad / 32;
    const uint32_t n_chunks = (n_k32 + ROSE_CUDA_CHUNK_K32 - 1) / ROSE_CUDA_CHUNK_K32;
    const uint32_t first = blockIdx.x * each;
    const uint32_t mine = min(each, n_chunks - first);
    const uint32_t n0 = blockIdx.y * GROUP_OUTPUTS, row0 = blockIdx.z * TN;
    const uint4 *w =
        static_cast<const uint4 *>(l.w) + (size_t)(n0 / 8 + warp * 2) * n_k32 * 32 + lane;
    uint32_t a[ROSE_CUDA_CHUNK_K32][8], next[ROSE_CUDA_CHUNK_K32][8];

    pdl_launch();
    load_chunk(a, w, n_k32, first);
    if (mine > 1) load_chunk(next, w, n_k32, first + 1);
    if (threadIdx.x == 0) {
        for (uint32_t c = 0; c < mine; c++)
            barrier_init(full_at + c * 8, 1);
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x == 0)
        for (uint32_t c = 0; c < mine; c++) {
            barrier_expect(full_at + c * 8, PITCH);
            copy_box(ring + c * PITCH, &h_map, (first + c) * (CHUNK_K / 8), row0 / 8,
                     full_at + c * 8);
        }
    /* What is finished here, below: eight rows a round and block, 16 threads a row, two rounds at a
     * time. */
    constexpr int QUADS = 2;
    const uint32_t n = n0 + threadIdx.x % 16 * 4, step = gridDim.x * 8;
    const uint32_t my_row = blockIdx.x * 8 + threadIdx.x / 16;
    split_inputs<QUADS> in;
    qkv_place place;
    load_split_inputs<QUADS>(&in, l, io, row0, my_row, step, TN, n);
    if (io.epilogue == ROSE_CUDA_EPI_QKV) place = place_qkv(l, io, n);
#pragma unroll 1
    for (uint32_t c = 0; c < mine; c++) {
        float acc[TN / 2];
        const uint64_t rows = core_matrices(ring + c * PITCH, CHUNK_K * 16);
        barrier_wait(full_at + c * 8, 0);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
            wgmma(acc, a[j], rows + j * 32, j > 0, static_cast<const T *>(NULL));
            wgmma(acc, a[j] + 4, rows + j * 32 + 16, 1, static_cast<const T *>(NULL));
        }
        wgmma_commit();
        wgmma_wait<0>();
        keep_here(acc);
#pragma unroll
        for (int j = 0; j < ROSE_CUDA_CHUNK_K32 * 8; j++)
            a[j / 8][j % 8] = next[j / 8][j % 8];
        if (c + 2 < mine) load_chunk(next, w, n_k32, first + c + 2);
        __syncthreads(); /* every warp has read the rows */
        float *to = reinterpret_cast<float *>(chunks + c * PITCH) + warp * 16 + g;
#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            to[(i / 4 * 8 + t * 2 + i % 2) * SUM_LD + i / 2 % 2 * 8] = acc[i];
    }
#pragma unroll 1
    for (uint32_t r0 = my_row; r0 < TN; r0 += step * QUADS) {
        uint32_t at[QUADS];
        float4 v[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            at[q] = ring +
                    ((r0 + q * step < TN ? r0 + q * step : r0) * SUM_LD + threadIdx.x % 16 * 4) * 4;
        if (r0 == my_row)
            cluster_sync();
        else
            load_split_inputs<QUADS>(&in, l, io, row0, r0, step, TN, n);
        add_chunks<QUADS>(v, at, PITCH, n_chunks, each);
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const uint32_t r = r0 + q * step, row = row0 + r;
            if (r >= TN || row >= io.rows || n >= l.n) continue;
            if (l.bias != NULL) v[q] = add4(v[q], in.bias);
            if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
                *reinterpret_cast<float4 *>(residual_at(io, row, n)) = add4(in.old[q], v[q]);
            else if (io.epilogue == ROSE_CUDA_EPI_ACT)
                store_act4<T>(io, row, n, activate4(v[q], io.act));
            else
                finish_qkv4<T>(l, io, place, row, v[q], in.slot[q]);
        }
    }
    if (my_row >= TN) cluster_sync(); /* a block with no rows to finish */
    cluster_sync();                   /* the others may still read here */
#endif
}

/* ---- the team kernel ---- */

/* Grid: (n_pad / 64, row tiles); a warpgroup a chunk, of 4 at most. */
template <typename T, int TN>
static __global__ void __launch_bounds__(TEAM_GROUPS * 128, 1)
    team_kernel(const rose_cuda_linear l, const rose_cuda_io io,
                const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    constexpr uint32_t PITCH = TN * CHUNK_K * sizeof(T);
    constexpr int QUADS = 2; /* rounds of rows at a time */
    static_assert(PITCH >= TN * SUM_LD * sizeof(float), "sums replace the rows they are made of");
    extern __shared__ __align__(1024) uint8_t chunks[];
    __shared__ uint64_t full[TEAM_GROUPS];
    const uint32_t group = threadIdx.x / 128, n_chunks = blockDim.x / 128;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full_at = shared_address(full) + group * 8;
    const uint32_t rows_at = shared_address(chunks) + group * PITCH;
    const uint32_t n_k32 = l.k_pad / 32;
    const uint32_t n0 = blockIdx.x * GROUP_OUTPUTS, row0 = blockIdx.y * TN;
    const uint4 *w =
        static_cast<const uint4 *>(l.w) + (size_t)(n0 / 8 + warp * 2) * n_k32 * 32 + lane;
    uint32_t a[ROSE_CUDA_CHUNK_K32][8];

    pdl_launch();
    load_chunk(a, w, n_k32, group);
    if (threadIdx.x % 128 == 0) {
        barrier_init(full_at, 1);
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x % 128 == 0) {
        barrier_expect(full_at, PITCH);
        copy_box(rows_at, &h_map, group * (CHUNK_K / 8), row0 / 8, full_at);
    }
    /* What is finished below: 16 threads a row. */
    const uint32_t n = n0 + threadIdx.x % 16 * 4, my_row = threadIdx.x / 16, step = n_chunks * 8;
    split_inputs<QUADS> in;
    qkv_place place;
    load_split_inputs<QUADS>(&in, l, io, row0, my_row, step, TN, n);
    if (io.epilogue == ROSE_CUDA_EPI_QKV) place = place_qkv(l, io, n);

    float acc[TN / 2];
    const uint64_t rows = core_matrices(rows_at, CHUNK_K * 16);
    barrier_wait(full_at, 0);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
        wgmma(acc, a[j], rows + j * 32, j > 0, static_cast<const T *>(NULL));
        wgmma(acc, a[j] + 4, rows + j * 32 + 16, 1, static_cast<const T *>(NULL));
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep_here(acc);
    group_sync(group + 1); /* its warps have read the rows */
    store_sums<TN>(reinterpret_cast<float *>(chunks + group * PITCH), acc, warp, g, t);
    __syncthreads();
#pragma unroll 1
    for (uint32_t r0 = my_row; r0 < TN; r0 += step * QUADS) {
        if (r0 != my_row) load_split_inputs<QUADS>(&in, l, io, row0, r0, step, TN, n);
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const uint32_t r = r0 + q * step, row = row0 + r;
            if (r >= TN || row >= io.rows || n >= l.n) continue;
            const uint8_t *at = chunks + (r * SUM_LD + threadIdx.x % 16 * 4) * sizeof(float);
            float4 v = make_float4(0, 0, 0, 0);
            for (uint32_t c = 0; c < n_chunks; c++)
                v = add4(v, *reinterpret_cast<const float4 *>(at + c * PITCH));
            finish4<T>(l, io, place, row, n, v, in.bias, in.old[q], in.slot[q]);
        }
    }
#endif
}

/* ---- launchers ---- */

static PFN_cuTensorMapEncodeTiled_v12000 g_encode; /* of the driver; set by init */
static int g_multiprocessors;

/* Blocks of 8 (outputs or rows) x k as cores of 8 x 8 values, 128 bytes: boxes of so many. */
static cudaError_t make_map(CUtensorMap *map, const void *base, uint32_t k_pad, uint32_t blocks,
                            uint32_t box_cores, uint32_t box_blocks)
{
    const cuuint64_t size[3] = {64, k_pad / 8, blocks}, pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, box_cores, box_blocks}, one[3] = {1, 1, 1};
    const CUresult r =
        g_encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(base), size, pitch, box,
                 one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int TN, int STAGES> static constexpr size_t stream_bytes()
{
    return (size_t)STAGES * (GROUPS * GROUP_OUTPUTS + TN) * STAGE_K * sizeof(T) +
           GROUPS * PART * sizeof(float);
}

template <typename T, int TN, int STAGES>
static cudaError_t launch_stream(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool ordered)
{
    const uint32_t most = (uint32_t)g_multiprocessors;
    wide_walk walk =
        wide_walk_of(io->rows, TN, l->n, GROUPS * GROUP_OUTPUTS, (uint64_t)l->k_pad * sizeof(T));
    CUtensorMap w, h;
    if (!ordered) walk.group = 1;
    cudaError_t e =
        make_map(&w, l->w, l->k_pad, l->n_pad / 8, STAGE_K / 8, GROUPS * GROUP_OUTPUTS / 8);
    if (e == cudaSuccess)
        e = make_map(&h, io->h, l->k_pad, (io->rows + 7) / 8, STAGE_K / 8, TN / 8);
    if (e != cudaSuccess) return e;
    return launch_kernel(at, stream_kernel<T, TN, STAGES>, dim3(walk.n < most ? walk.n : most),
                         (GROUPS + 1) * 128, stream_bytes<T, TN, STAGES>(), *l, *io, walk, w, h);
}

template <typename T, int TN>
static cudaError_t launch_split(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, uint32_t blocks)
{
    const uint32_t n_chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    const uint32_t each = (n_chunks + blocks - 1) / blocks;
    CUtensorMap h;
    cudaError_t e = make_map(&h, io->h, l->k_pad, (io->rows + 7) / 8, CHUNK_K / 8, TN / 8);
    if (e != cudaSuccess) return e;
    blocks = (n_chunks + each - 1) / each;
    return launch_cluster(at, split_kernel<T, TN>,
                          dim3(blocks, (l->n + 63) / 64, (io->rows + TN - 1) / TN), 128,
                          (size_t)each * TN * CHUNK_K * sizeof(T), blocks, *l, *io, each, h);
}

template <typename T, int TN>
static cudaError_t launch_team(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const uint32_t n_chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    CUtensorMap h;
    cudaError_t e = make_map(&h, io->h, l->k_pad, (io->rows + 7) / 8, CHUNK_K / 8, TN / 8);
    if (e != cudaSuccess) return e;
    return launch_kernel(at, team_kernel<T, TN>, dim3((l->n + 63) / 64, (io->rows + TN - 1) / TN),
                         n_chunks * 128, (size_t)n_chunks * TN * CHUNK_K * sizeof(T), *l, *io, h);
}

template <typename T>
static cudaError_t run_hopper(const rose_cuda_launch *at, const rose_cuda_linear *l,
                              const rose_cuda_io *io, rose_cuda_hopper kernel)
{
    const uint32_t blocks = l->k_pad > 4 * 8 * CHUNK_K ? 8 : 4;
    const bool ordered =
        kernel == ROSE_CUDA_HOPPER_ORDERED || kernel == ROSE_CUDA_HOPPER_ORDERED_64;
    if (kernel == ROSE_CUDA_HOPPER_STREAM || kernel == ROSE_CUDA_HOPPER_ORDERED)
        return launch_stream<T, 128, 6>(at, l, io, ordered);
    if (kernel == ROSE_CUDA_HOPPER_STREAM_64 || ordered)
        return launch_stream<T, 64, 8>(at, l, io, ordered);
    if (kernel == ROSE_CUDA_HOPPER_HEAD)
        return io->rows <= 16 ? launch_head<T, 1>(at, l, io, g_multiprocessors)
                              : launch_head<T, 2>(at, l, io, g_multiprocessors);
    if (kernel == ROSE_CUDA_HOPPER_TEAM) return launch_team<T, 64>(at, l, io);
    if (kernel == ROSE_CUDA_HOPPER_TEAM_32) return launch_team<T, 32>(at, l, io);
    if (kernel == ROSE_CUDA_HOPPER_SPLIT_8) return launch_split<T, 64>(at, l, io, 8);
    if (kernel == ROSE_CUDA_HOPPER_SPLIT) return launch_split<T, 64>(at, l, io, blocks);
    return launch_split<T, 32>(at, l, io, blocks);
}

/* The kernels are empty in code that is not for sm_90a: then they have no shared memory. */
template <typename T> static cudaError_t init_hopper(bool *there)
{
    const struct {
        const void *kernel;
        size_t shared;
    } kernels[] = {
        {(const void *)stream_kernel<T, 128, 6>, stream_bytes<T, 128, 6>()},
        {(const void *)stream_kernel<T, 64, 8>, stream_bytes<T, 64, 8>()},
        {(const void *)split_kernel<T, 64>, 8 * 64 * CHUNK_K * sizeof(T)},
        {(const void *)split_kernel<T, 32>, 8 * 32 * CHUNK_K * sizeof(T)},
        {(const void *)team_kernel<T, 64>, TEAM_GROUPS * 64 * CHUNK_K * sizeof(T)},
        {(const void *)team_kernel<T, 32>, TEAM_GROUPS * 32 * CHUNK_K * sizeof(T)},
        {(const void *)head_kernel<T, 1>, HEAD_SHARED},
        {(const void *)head_kernel<T, 2>, HEAD_SHARED},
    };
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
