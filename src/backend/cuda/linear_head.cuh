/* backend/cuda/linear_head.cuh - the head of up to 32 rows as one stream of weights (on trial;
 * sm_90). The same bits as linear.cuh: mma.sync over chunks of 192, added in fp32, ascending.
 *
 * A block a multiprocessor walks over tiles of 16 outputs, the rows in shared memory. One thread
 * copies whole tiles ahead, contiguous as they are packed, into a ring that is full before the
 * kernel in front has ended; a warp multiplies a tile all by itself, so nothing waits but for bytes
 * from memory, and the largest logits stay in registers to the end. Bound: bytes of the weights. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_HEAD_CUH
#define ROSE_BACKEND_CUDA_LINEAR_HEAD_CUH

#include "backend/cuda/hopper.cuh"

enum {
    HEAD_WARPS = 4, /* that multiply */
    HEAD_OUTPUTS = 16,
    HEAD_SLOTS = 8,          /* of the ring, at most */
    HEAD_SHARED = 192 * 1024 /* rows and ring: room for small blocks of the kernels in front */
};

#if ROSE_HOPPER

/* The rows of a warp's ldmatrix: 8 x 8 values at the address of each lane. */
ROSE_DEVICE void load_matrices(uint32_t r[4], const uint4 *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at))
                 : "memory");
}

/* One thread: rows and tiles to shared memory. */
template <typename T, int MT>
ROSE_DEVICE void copy_head(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n_tiles,
                           uint4 *rows, uint4 *ring, uint64_t *rows_full, uint64_t *full,
                           uint64_t *empty, uint32_t slots)
{
    const uint32_t bytes = HEAD_OUTPUTS * l.k_pad * sizeof(T), each = bytes / sizeof(uint4);
    const uint4 *w = static_cast<const uint4 *>(l.w);
    uint32_t tile = blockIdx.x, slot = 0, parity = 1;

    for (; slot < slots && tile < n_tiles; slot++, tile += gridDim.x) {
        bulk_expect(&full[slot], bytes);
        bulk_copy(ring + slot * each, w + (size_t)tile * each, bytes, &full[slot]);
    }
    pdl_wait();
    bulk_expect(rows_full, MT * bytes); /* a tile has 16 outputs, a row block 16 rows */
    bulk_copy(rows, io.h, MT * bytes, rows_full);
    for (; tile < n_tiles; tile += gridDim.x) {
        if (slot == slots) {
            slot = 0;
            parity ^= 1;
        }
        bulk_wait(&empty[slot], parity);
        bulk_expect(&full[slot], bytes);
        bulk_copy(ring + slot * each, w + (size_t)tile * each, bytes, &full[slot]);
        slot++;
    }
}

/* A tile by a warp: 16 MT rows x 16 outputs. */
template <typename T, int MT>
ROSE_DEVICE void multiply_head(float sum[MT][2][4], const uint4 *rows, const uint4 *w,
                               uint32_t k_pad, int lane)
{
    const uint32_t n_k32 = k_pad / 32;
    const uint4 *a_at = rows + lane / 8 % 2 * k_pad + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < MT * 8; i++)
        sum[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < n_k32; first += ROSE_CUDA_CHUNK_K32) {
        float acc[MT][2][4] = {};
#pragma unroll
        for (uint32_t j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
            if (first + j >= n_k32) continue;
            const uint4 b[2] = {w[(first + j) * 32 + lane], w[(n_k32 + first + j) * 32 + lane]};
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    uint32_t a[4];
                    load_matrices(a, a_at + m * 2 * k_pad + (first + j) * 32 + half * 16);
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        mma(acc[m][i], a, half ? b[i].z : b[i].x, half ? b[i].w : b[i].y,
                            static_cast<const T *>(NULL));
                }
        }
#pragma unroll
        for (int i = 0; i < MT * 8; i++)
            sum[i / 8][i / 4 % 2][i % 4] += acc[i / 8][i / 4 % 2][i % 4];
    }
}

#endif

template <typename T, int MT>
static __global__ void __launch_bounds__((HEAD_WARPS + 1) * 32, 1)
    head_kernel(const rose_cuda_linear l, const rose_cuda_io io, const uint32_t slots)
{
#if ROSE_HOPPER
    extern __shared__ __align__(128) uint4 head_shared[];
    __shared__ uint64_t rows_full, full[HEAD_SLOTS], empty[HEAD_SLOTS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t n_tiles = (l.n + HEAD_OUTPUTS - 1) / HEAD_OUTPUTS;
    const uint32_t each = HEAD_OUTPUTS * l.k_pad * sizeof(T) / sizeof(uint4);
    uint4 *ring = head_shared + MT * each;

    if (io.epilogue != ROSE_CUDA_EPI_LOGITS) return; /* no code for others */
    pdl_launch();
    if (threadIdx.x == 0) {
        bulk_init(&rows_full, 1);
        for (uint32_t i = 0; i < slots; i++) {
            bulk_init(&full[i], 1);
            bulk_init(&empty[i], 1);
        }
    }
    __syncthreads();
    if (warp == HEAD_WARPS) {
        if (lane == 0)
            copy_head<T, MT>(l, io, n_tiles, head_shared, ring, &rows_full, full, empty, slots);
        return;
    }
    unsigned long long best[MT][2] = {};
    pdl_wait();
    bulk_wait(&rows_full, 0);
    for (uint32_t turn = warp; blockIdx.x + turn * gridDim.x < n_tiles; turn += HEAD_WARPS) {
        const uint32_t n0 = (blockIdx.x + turn * gridDim.x) * HEAD_OUTPUTS, slot = turn % slots;
        float sum[MT][2][4];
        bulk_wait(&full[slot], turn / slots % 2);
        multiply_head<T, MT>(sum, head_shared, ring + slot * each, l.k_pad, lane);
        __syncwarp(); /* all lanes have read the slot */
        if (lane == 0) barrier_arrive(shared_address(&empty[slot]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            pair_inputs in = {};
            const uint32_t n = n0 + i * 8 + t * 2;
            in.bias = load_bias(l, n);
#pragma unroll
            for (int m = 0; m < MT * 2; m++) {
                const float *v = &sum[m / 2][i][m % 2 * 2];
                const unsigned long long key = finish_pair<T>(l, io, m * 8 + g, n, v[0], v[1], in);
                if (key > best[m / 2][m % 2]) best[m / 2][m % 2] = key;
            }
        }
    }
    if (io.key == NULL) return;
#pragma unroll
    for (int m = 0; m < MT * 2; m++) {
        unsigned long long key = best[m / 2][m % 2];
        for (int x = 1; x < 4; x *= 2) {
            const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
            if (other > key) key = other;
        }
        if (t == 0 && m * 8 + g < io.rows) atomicMax(io.key + m * 8 + g, key);
    }
#endif
}

/* Up to 32 rows, k_pad up to 1024 (linear.cu): at least four tiles fit beside them. */
template <typename T, int MT>
static cudaError_t launch_head(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, uint32_t multiprocessors)
{
    const uint32_t tile = HEAD_OUTPUTS * l->k_pad * sizeof(T);
    const uint32_t n_tiles = (l->n + HEAD_OUTPUTS - 1) / HEAD_OUTPUTS;
    uint32_t slots = HEAD_SHARED / tile - MT;
    if (slots > HEAD_SLOTS) slots = HEAD_SLOTS;
    return launch_kernel(at, head_kernel<T, MT>,
                         dim3(n_tiles < multiprocessors ? n_tiles : multiprocessors),
                         (HEAD_WARPS + 1) * 32, (size_t)(MT + slots) * tile, *l, *io, slots);
}

#endif
