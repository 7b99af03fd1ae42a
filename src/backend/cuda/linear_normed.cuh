/* backend/cuda/linear_normed.cuh - y = LayerNorm(x) w + bias of up to 16 rows in one kernel, to the
 * bits of norm_kernel and rows_kernel (linear.cuh): every block norms all rows for itself.
 * Instantiated for one type by linear_f16.cu and linear_bf16.cu.
 *
 * A block computes 24 outputs, so that GPT-2's QKV and FC1 are one block a multiprocessor. A warp
 * multiplies one chunk of the sum by one tile of 8 outputs, whose weights it loads to registers
 * before the kernel in front has ended; gamma and beta come to shared memory as early. Behind the
 * wait a warp norms one row, into shared memory. Bound: latency; then the L2, from which each block
 * reads all rows once. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_NORMED_CUH
#define ROSE_BACKEND_CUDA_LINEAR_NORMED_CUH

#include "backend/cuda/linear.cuh"

enum { NORMED_TILES = 3 };

/* A row of up to G x 256 values: a warp a chunk and tile, and one a row. */
static constexpr int normed_warps(int g, bool eight)
{
    const int products = (g * 8 + CHUNK - 1) / CHUNK * NORMED_TILES, rows = eight ? 8 : 16;
    return products > rows ? products : rows;
}

/* Where, in units of 16 bytes, the 8 values of block kb of a row lie: blocks of 8 rows x 8 values
 * as in h_index, but rows in an order of the block's own: neighbouring blocks of one row, and the
 * rows of one block, are in different banks. */
ROSE_DEVICE uint32_t normed_index(uint32_t row, uint32_t kb, uint32_t n_kb)
{
    return (row / 8 * n_kb + kb) * 8 + ((row ^ kb) & 7);
}

ROSE_DEVICE float4 load_now(const float *p)
{
    float4 r;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                 : "l"(p)
                 : "memory");
    return r;
}

/* What load_groups loads, in halves: a group of 8 values is a sector, and a lane that loaded its
 * two halves one after the other would fetch it twice. So two lanes fetch the even one's sector
 * together, then the odd one's; swap_halves gives each its own. */
template <int G>
ROSE_DEVICE void load_halves(float4 half[G][2], const float *x, uint32_t d, int lane)
{
    const float *p = x + lane / 2 * 16 + lane % 2 * 4;
#pragma unroll
    for (int i = 0; i < G; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            half[i][e] = make_float4(0, 0, 0, 0);
            if ((uint32_t)(i * 256 + lane / 2 * 16 + e * 8) < d)
                half[i][e] = load_now(p + i * 256 + e * 8);
        }
}

ROSE_DEVICE void swap_halves(float v[8], const float4 half[2], int lane)
{
    const float *even = &half[0].x, *odd = &half[1].x;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const bool is_odd = lane % 2 != 0;
        const float got = __shfl_xor_sync(ROSE_ALL_LANES, is_odd ? even[e] : odd[e], 1);
        v[e] = is_odd ? got : even[e];
        v[4 + e] = is_odd ? odd[e] : got;
    }
}

/* gamma and beta of `d` values each to shared memory: first halves of all groups of 8, then second
 * halves, so that a warp's loads of them meet no bank twice. */
ROSE_DEVICE void copy_parameters(float4 *to, const rose_cuda_io &io, uint32_t d)
{
    const uint32_t quads = d / 4;
    for (uint32_t i = threadIdx.x; i < 2 * quads; i += blockDim.x) {
        const uint32_t q = i < quads ? i : i - quads;
        copy_async(to + (i - q) + q % 2 * (quads / 2) + q / 2,
                   (i < quads ? io.norm_w : io.norm_b) + q * 4);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

ROSE_DEVICE void read_halves(float to[8], const float4 *from, uint32_t apart)
{
    const float4 lo = from[0], hi = from[apart];
    to[0] = lo.x;
    to[1] = lo.y;
    to[2] = lo.z;
    to[3] = lo.w;
    to[4] = hi.x;
    to[5] = hi.y;
    to[6] = hi.z;
    to[7] = hi.w;
}

/* The row to shared memory as T, its padding zeros. */
template <typename T, int G>
ROSE_DEVICE void norm_shared(uint4 *to, const float4 half[G][2], const float4 *parameters,
                             const rose_cuda_io &io, uint32_t d, uint32_t n_kb, uint32_t row,
                             int lane)
{
    float v[G][8];
#pragma unroll
    for (int i = 0; i < G; i++)
        swap_halves(v[i], half[i], lane);
    const float inv = center_groups<G>(v, d, io.norm_eps, lane);
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t kb = i * 32 + lane;
        if (kb >= n_kb) continue;
        T *at = reinterpret_cast<T *>(to + normed_index(row, kb, n_kb));
        if (kb * 8 < d) {
            float w[8], b[8];
            read_halves(w, parameters + kb, d / 8);
            read_halves(b, parameters + d / 4 + kb, d / 8);
            scale_group(v[i], inv, w, b);
            store_group(at, v[i]);
        } else {
            *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* The sum over a chunk for 8 or 16 rows x 8 outputs. */
template <typename T, bool EIGHT>
ROSE_DEVICE void multiply_normed(float acc[4], const uint4 *rows, const uint4 w[CHUNK][1],
                                 uint32_t n_kb, uint32_t chunk, int lane)
{
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        const uint32_t kb = (chunk * CHUNK + j) * 4;
        if (kb >= n_kb) continue;
        uint32_t a[2][4] = {};
        if (EIGHT) {
            uint32_t r[4];
            ldmatrix4(r, rows + normed_index(lane % 8, kb + lane / 8, n_kb));
            a[0][0] = r[0];
            a[0][2] = r[1];
            a[1][0] = r[2];
            a[1][2] = r[3];
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++)
                ldmatrix4(a[half], rows + normed_index(lane % 16, kb + half * 2 + lane / 16, n_kb));
        }
        mma(acc, a[0], w[j][0].x, w[j][0].y, static_cast<const T *>(NULL));
        mma(acc, a[1], w[j][0].z, w[j][0].w, static_cast<const T *>(NULL));
    }
}

/* EIGHT: there are no more than 8 rows. Shared memory: the rows; then gamma and beta, in whose
 * place the sums of all chunks come, [chunk][tile][ROWS][8]. Two blocks a multiprocessor, as
 * blocks_for. */
template <typename T, int G, bool EIGHT>
static __global__ void __launch_bounds__(normed_warps(G, EIGHT) * 32, G == 3 ? 2 : 1)
    normed_kernel(const rose_cuda_linear l, const rose_cuda_io io)
{
    constexpr uint32_t ROWS = EIGHT ? 8 : 16, TILES = NORMED_TILES;
    extern __shared__ __align__(128) uint4 normed[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t n_kb = l.k_pad / 8, n_chunks = (n_kb + CHUNK * 4 - 1) / (CHUNK * 4);
    const uint32_t chunk = warp / TILES, tile0 = blockIdx.x * TILES, tile = tile0 + warp % TILES;
    const bool multiplies = chunk < n_chunks && tile < l.n_pad / 8;
    float4 *parameters = reinterpret_cast<float4 *>(normed + ROWS * n_kb);
    uint4 w[CHUNK][1];

    pdl_launch();
    if (multiplies)
        load_weights<T, 1>(w, static_cast<const uint4 *>(l.w) + (size_t)tile * (n_kb * 8) + lane,
                           n_kb / 4, chunk);
    copy_parameters(parameters, io, l.k);
    /* the pair of outputs that this thread finishes */
    const uint32_t row = threadIdx.x / 4 % ROWS, my_tile = threadIdx.x / (ROWS * 4);
    const uint32_t n = (tile0 + my_tile) * 8 + threadIdx.x % 4 * 2;
    const bool finishes = my_tile < TILES && row < io.rows && n < l.n;
    pair_inputs mine;
    mine.bias = load_bias(l, n);
    pdl_wait();

    float4 half[G][2];
    const bool norms = warp < io.rows;
    if (norms) load_halves<G>(half, io.x + (size_t)warp * io.ld_x, l.k, lane);
    if (finishes) load_pair_inputs(&mine, l, io, row, n);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (norms)
        norm_shared<T, G>(normed, half, parameters, io, l.k, n_kb, warp, lane);
    else if (warp < ROWS)
        for (uint32_t kb = lane; kb < n_kb; kb += 32)
            normed[normed_index(warp, kb, n_kb)] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    float *part = reinterpret_cast<float *>(parameters);
    if (multiplies) {
        float acc[4] = {};
        multiply_normed<T, EIGHT>(acc, normed, w, n_kb, chunk, lane);
        float *to = part + warp * (ROWS * 8) + lane * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(acc[0], acc[1]);
        if (!EIGHT) *reinterpret_cast<float2 *>(to + 64) = make_float2(acc[2], acc[3]);
    }
    __syncthreads();
    if (!finishes) return;
    float lo = 0, hi = 0;
    for (uint32_t c = 0; c < n_chunks; c++) {
        const float2 v =
            *reinterpret_cast<float2 *>(part + c * (TILES * ROWS * 8) + threadIdx.x * 2);
        lo += v.x;
        hi += v.y;
    }
    finish_pair<T>(l, io, row, n, lo, hi, mine);
}

template <typename T, int G, bool EIGHT>
static cudaError_t launch_normed(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    const uint32_t rows = EIGHT ? 8 : 16, n_chunks = (l->k_pad / 32 + CHUNK - 1) / CHUNK;
    const uint32_t products = n_chunks * NORMED_TILES, n_warps = products > rows ? products : rows;
    const size_t parameters = 2 * l->k * sizeof(float), sums = products * rows * 8 * sizeof(float);
    return launch_kernel(
        at, normed_kernel<T, G, EIGHT>, dim3((l->n + NORMED_TILES * 8 - 1) / (NORMED_TILES * 8)),
        n_warps * 32, (size_t)rows * l->k_pad * sizeof(T) + (parameters > sums ? parameters : sums),
        *l, *io);
}

/* At most 16 rows of at most 1024 values; QKV and ACT. */
template <typename T>
static cudaError_t run_normed(const rose_cuda_launch *at, const rose_cuda_linear *l,
                              const rose_cuda_io *io)
{
    if (io->rows <= 8)
        return l->k <= 768 ? launch_normed<T, 3, true>(at, l, io)
                           : launch_normed<T, 4, true>(at, l, io);
    return l->k <= 768 ? launch_normed<T, 3, false>(at, l, io)
                       : launch_normed<T, 4, false>(at, l, io);
}

#endif
