/* backend/cuda/linear_head.cuh - the head of up to 32 rows: fp32 logits and each row's largest. To
 * the bits of tiles_kernel (linear.cuh): one chain over all of k.
 *
 * A warp has 16 outputs at a time and all of k, 192 values at a time, so that nothing is summed
 * across warps and the next outputs' weights come while these are finished. Weights go to two sets
 * of registers in turn: such a chunk multiplies, and is loaded anew, while the other is on its way.
 * The rows lie in shared memory, copied once for a block. As many blocks as are on the chip at
 * once; their first two chunks come before the kernel in front has ended. Bound: weight bytes, of
 * GPT-2's head 3.0 TB/s at 1 row, 2.8 at 32 (H100, 2026-11-22). */
#ifndef ROSE_BACKEND_CUDA_LINEAR_HEAD_CUH
#define ROSE_BACKEND_CUDA_LINEAR_HEAD_CUH

#include "backend/cuda/gemm.h"
#include "backend/cuda/linear.cuh"

enum {
    HEAD_WARPS = 4,
    HEAD_BLOCKS = 3 /* a multiprocessor, of up to 168 registers a thread */
};

/* Rows that lie in shared memory, and the most chunks that k may have with so many. */
template <int MT, bool EIGHT> static constexpr int HEAD_STAGED = EIGHT ? 8 : MT * 16;
template <int MT, bool EIGHT>
static constexpr int HEAD_CHUNKS = ROSE_CUDA_HEAD_VALUES / HEAD_STAGED<MT, EIGHT> / (CHUNK * 32);

/* Where a warp's weights continue: two chunks of 16 outputs. */
typedef struct head_place {
    const uint4 *at; /* the lane's operands: one for each 32 values of k */
    uint32_t k32;    /* of the first, in units of 32 values */
    bool there;      /* false: no outputs are left */
} head_place;

template <bool WHOLE>
ROSE_DEVICE void load_head(uint4 w[2], const head_place &p, uint32_t n_k32, int j)
{
    if (!p.there || (!WHOLE && p.k32 + j >= n_k32)) return;
    w[0] = load_early(p.at + j * 32);
    w[1] = load_early(p.at + ((size_t)n_k32 + j) * 32);
}

/* One chunk: sum += rows x weights, which are replaced by those of two chunks on, behind the last
 * chunks by the next outputs'. ODD: it is the second of the two at `next`. */
template <typename T, int MT, bool EIGHT, bool WHOLE, bool ODD>
ROSE_DEVICE void multiply_head(float sum[MT][2][4], uint4 w[CHUNK][2], uint32_t rows_at,
                               uint32_t k32, uint32_t n_k32, const head_place &next)
{
    const uint32_t block_bytes = n_k32 * 512; /* of 8 rows */
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        if (WHOLE || k32 + j < n_k32) {
            const uint32_t at = rows_at + (k32 + j) * 512;
            if constexpr (EIGHT) {
                uint32_t r[4]; /* 8 rows x 32 values */
                ldmatrix4_at(r, at);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t a[4] = {r[half * 2], 0, r[half * 2 + 1], 0};
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        mma(sum[0][i], a, half ? w[j][i].z : w[j][i].x,
                            half ? w[j][i].w : w[j][i].y, static_cast<const T *>(NULL));
                }
            } else {
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        uint32_t a[4]; /* 16 rows x 16 values */
                        ldmatrix4_at(a, at + half * 256 + m * 2 * block_bytes);
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            mma(sum[m][i], a, half ? w[j][i].z : w[j][i].x,
                                half ? w[j][i].w : w[j][i].y, static_cast<const T *>(NULL));
                    }
            }
        }
        load_head<WHOLE>(w[j], next, n_k32, (ODD ? CHUNK : 0) + j);
    }
}

/* The block's rows to shared memory, chunk c by warp c % HEAD_WARPS. arrived[c], set up, tells of a
 * chunk; before sm_90 a barrier of the block tells of all. Blocks of 8 rows that are none are left
 * as they lie: they are multiplied for nothing. */
ROSE_DEVICE void stage_head(uint4 *to, uint64_t *arrived, const rose_cuda_io &io, uint32_t k_pad,
                            uint32_t n_chunks, uint32_t warp, uint32_t lane)
{
    const uint32_t n_blocks = (io.rows + 7) / 8;
    const uint4 *h = static_cast<const uint4 *>(io.h);
#if __CUDA_ARCH__ >= 900
    for (uint32_t c = warp; c < n_chunks && lane == 0; c += HEAD_WARPS) {
        const uint32_t left = k_pad - c * (CHUNK * 32);
        const uint32_t n = left < CHUNK * 32 ? left : CHUNK * 32; /* uint4 of 8 rows */
        bulk_expect(&arrived[c], n_blocks * n * 16);
        for (uint32_t b = 0; b < n_blocks; b++) {
            const uint32_t at = b * k_pad + c * (CHUNK * 32);
            bulk_copy(to + at, h + at, n * 16, &arrived[c]);
        }
    }
#else
    (void)arrived;
    (void)n_chunks;
    (void)warp;
    (void)lane;
    for (uint32_t i = threadIdx.x; i < n_blocks * k_pad; i += HEAD_WARPS * 32)
        copy_async(to + i, h + i);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#endif
}

/* Each row's largest of the warp's outputs to that of all, one atomic a row and block. The block's
 * threads together. */
template <int MT, int SIDES>
ROSE_DEVICE void send_best(const unsigned long long best[MT][SIDES], const rose_cuda_io &io,
                           unsigned long long keys[HEAD_WARPS][MT * SIDES * 8], uint32_t warp,
                           uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int s = 0; s < SIDES; s++) {
            unsigned long long key = best[m][s];
            for (int x = 1; x < 4; x *= 2) {
                const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
                if (other > key) key = other;
            }
            if (t == 0) keys[warp][m * 16 + s * 8 + g] = key;
        }
    __syncthreads();
    if (threadIdx.x < MT * SIDES * 8 && threadIdx.x < io.rows) {
        unsigned long long key = keys[0][threadIdx.x];
        for (int i = 1; i < HEAD_WARPS; i++)
            if (keys[i][threadIdx.x] > key) key = keys[i][threadIdx.x];
        atomicMax(io.key + threadIdx.x, key);
    }
}

/* MT x 16 rows. EIGHT: there are no more than 8. WHOLE: k is a multiple of two chunks. */
template <typename T, int MT, bool EIGHT, bool WHOLE>
static __global__ void __launch_bounds__(HEAD_WARPS * 32, HEAD_BLOCKS)
    head_kernel(const rose_cuda_linear l, const rose_cuda_io given)
{
    constexpr int SIDES = EIGHT ? 1 : 2;           /* blocks of 8 rows in a tile of 16 */
    extern __shared__ __align__(128) uint4 rows[]; /* [rows / 8][k_pad / 8][8] */
    __shared__ uint64_t arrived[HEAD_CHUNKS<MT, EIGHT>];
    __shared__ unsigned long long keys[HEAD_WARPS][MT * SIDES * 8];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t n_k32 = l.k_pad / 32, n_chunks = (n_k32 + CHUNK - 1) / CHUNK;
    const uint32_t n_tiles = (l.n + 15) / 16, stride = gridDim.x * HEAD_WARPS;
    const uint4 *w = static_cast<const uint4 *>(l.w) + lane;
    uint32_t tile = blockIdx.x + warp * gridDim.x;
    uint4 even[CHUNK][2], odd[CHUNK][2];
    head_place next = {w + (size_t)tile * 2 * n_k32 * 32, 0, tile < n_tiles};
    rose_cuda_io io = given;
    io.epilogue = ROSE_CUDA_EPI_LOGITS; /* a constant: of finish_pair no other code is left */

    pdl_launch();
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        load_head<WHOLE>(even[j], next, n_k32, j);
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        load_head<WHOLE>(odd[j], next, n_k32, CHUNK + j);
    for (uint32_t c = warp; c < n_chunks && lane == 0; c += HEAD_WARPS)
        bulk_init(&arrived[c], 1);
    __syncthreads(); /* before the wait: other warps look at the barriers behind it */
    pdl_wait();
    stage_head(rows, arrived, io, l.k_pad, n_chunks, warp, lane);

    /* ldmatrix: lane i has row i % 8 of matrix i / 8. Of 16 rows x 16 values the matrices lie
     * rows 0-7 and 8-15, values 0-7; then 8-15. Of 8 rows they are four neighbours. */
    const uint32_t block_bytes = l.k_pad * 16;
    const uint32_t rows_at =
        (uint32_t)__cvta_generic_to_shared(rows) + lane % 8 * 16 +
        (EIGHT ? lane / 8 * 128 : lane / 8 % 2 * block_bytes + lane / 16 * 128);
    unsigned long long best[MT][SIDES] = {};
    bool fresh = true; /* the rows may be on their way */
    for (; tile < n_tiles; tile += stride) {
        float sum[MT][2][4] = {};
#pragma unroll 1
        for (uint32_t c = 0; c < n_chunks; c += 2) {
            const bool last = c + 2 >= n_chunks;
            next.k32 = last ? 0 : next.k32 + 2 * CHUNK;
            next.there = !last || tile + stride < n_tiles;
            next.at =
                last ? w + (size_t)(tile + stride) * 2 * n_k32 * 32 : next.at + 2 * CHUNK * 32;
#if __CUDA_ARCH__ >= 900
            if (fresh) bulk_wait(&arrived[c], 0);
#endif
            multiply_head<T, MT, EIGHT, WHOLE, false>(sum, even, rows_at, c * CHUNK, n_k32, next);
            if (!WHOLE && c + 1 == n_chunks) {
#pragma unroll
                for (int j = 0; j < CHUNK; j++)
                    load_head<WHOLE>(odd[j], next, n_k32, CHUNK + j);
                continue;
            }
#if __CUDA_ARCH__ >= 900
            if (fresh) bulk_wait(&arrived[c + 1], 0);
#endif
            multiply_head<T, MT, EIGHT, WHOLE, true>(sum, odd, rows_at, (c + 1) * CHUNK, n_k32,
                                                     next);
        }
        fresh = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t n = tile * 16 + i * 8 + t * 2;
            pair_inputs in = {};
            in.bias = load_bias(l, n);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int s = 0; s < SIDES; s++) {
                    const unsigned long long key = finish_pair<T>(
                        l, io, m * 16 + s * 8 + g, n, sum[m][i][s * 2], sum[m][i][s * 2 + 1], in);
                    if (key > best[m][s]) best[m][s] = key;
                }
        }
    }
    if (io.key != NULL) send_best<MT, SIDES>(best, io, keys, warp, lane);
}

/* ---- launchers ---- */

/* How many blocks the GPU runs at once with so much shared memory each. */
static uint32_t blocks_at_once(const rose_cuda_device *d, size_t bytes)
{
    enum { OWN = 3 * 1024 }; /* the barriers and keys, and what the driver takes of each block */
    const uint32_t fit = (uint32_t)(d->shared_sm / (bytes + OWN));
    return d->sms * (fit < HEAD_BLOCKS ? fit : HEAD_BLOCKS);
}

template <typename T, int MT, bool EIGHT, bool WHOLE>
static cudaError_t launch_head(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const size_t bytes = (size_t)HEAD_STAGED<MT, EIGHT> * l->k_pad * 2;
    const uint32_t at_once = blocks_at_once(at->device, bytes);
    const uint32_t most = (l->n + 16 * HEAD_WARPS - 1) / (16 * HEAD_WARPS);
    if (at_once == 0) return cudaErrorInvalidConfiguration;
    return launch_kernel(at, head_kernel<T, MT, EIGHT, WHOLE>,
                         dim3(at_once < most ? at_once : most), HEAD_WARPS * 32, bytes, *l, *io);
}

template <typename T, bool WHOLE>
static cudaError_t launch_head_for(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                   const rose_cuda_io *io)
{
    if (io->rows <= 8) return launch_head<T, 1, true, WHOLE>(at, l, io);
    if (io->rows <= 16) return launch_head<T, 1, false, WHOLE>(at, l, io);
    return launch_head<T, 2, false, WHOLE>(at, l, io);
}

template <typename T>
static cudaError_t run_head(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    return l->k_pad % (CHUNK * 64) == 0 ? launch_head_for<T, true>(at, l, io)
                                        : launch_head_for<T, false>(at, l, io);
}

template <typename T> static cudaError_t prepare_head(void)
{
    const void *const kernels[] = {(const void *)head_kernel<T, 1, true, true>,
                                   (const void *)head_kernel<T, 1, false, true>,
                                   (const void *)head_kernel<T, 2, false, true>,
                                   (const void *)head_kernel<T, 1, true, false>,
                                   (const void *)head_kernel<T, 1, false, false>,
                                   (const void *)head_kernel<T, 2, false, false>};
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 ROSE_CUDA_HEAD_VALUES * 2);
    return e;
}

#endif
