/* backend/cuda/linear_normed.cuh - y = LayerNorm(x) w + bias of up to 8 rows in one kernel, to the
 * bits of norm_kernel and rows_kernel (linear.cuh): every block norms all rows for itself.
 * Instantiated for one type by linear_f16.cu and linear_bf16.cu; joined.cu uses its parts.
 *
 * A block computes 24 outputs, so that GPT-2's QKV and FC1 are one block a multiprocessor. A warp
 * multiplies one chunk of the sum by one tile of 8 outputs, whose weights it loads to registers
 * before the kernel in front has ended; gamma and beta come to shared memory as early. Behind the
 * wait a warp norms one row, into shared memory. Bound: latency; then the L2, from which each block
 * reads all rows once. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_NORMED_CUH
#define ROSE_BACKEND_CUDA_LINEAR_NORMED_CUH

#include "backend/cuda/linear.cuh"

/* NORMED_WARPS: of the longest row. NORMED_BOUND: more threads than a row of 768 has, so that
 * registers are 80 a thread and the next kernel's blocks fit beside this one's, with their weights
 * on the way. */
enum {
    NORMED_ROWS = 8,
    NORMED_TILES = 3,
    NORMED_MAX_D = 1024,
    NORMED_WARPS = 18,
    NORMED_BOUND = 768
};

/* A warp a chunk and tile, and one a row. */
static constexpr uint32_t normed_warps(uint32_t k_pad)
{
    const uint32_t products = (k_pad / 32 + CHUNK - 1) / CHUNK * NORMED_TILES;
    return products > NORMED_ROWS ? products : NORMED_ROWS;
}

/* Where, in units of 16 bytes, the 8 values of block kb of a row lie: blocks of 8 rows x 8 values
 * as in h_index, but rows in an order of the block's own: neighbouring blocks of one row, and the
 * rows of one block, are in different banks. */
ROSE_DEVICE uint32_t normed_index(uint32_t row, uint32_t kb, uint32_t n_kb)
{
    return (row / 8 * n_kb + kb) * 8 + ((row ^ kb) & 7);
}

/* The compiler computes p, of global memory, here and not where it is used. */
template <typename P> ROSE_DEVICE void settle(P *&p)
{
    size_t at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at));
    p = static_cast<P *>(__cvta_global_to_generic(at));
}

/* The shared address of p in a register that stays: ptxas computes what it can a second time, from
 * the thread's number on, where it is short of registers, and that behind a barrier. */
ROSE_DEVICE uint32_t hold_shared(const void *p, int lane)
{
    return __shfl_sync(ROSE_ALL_LANES, (uint32_t)__cvta_generic_to_shared(p), lane);
}

ROSE_DEVICE float2 load_pair(uint32_t at)
{
    float2 r;
    asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(r.x), "=f"(r.y) : "r"(at) : "memory");
    return r;
}

ROSE_DEVICE float4 load_quad(const float *p)
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
 * together, then the odd one's; swap_halves gives each its own. p: of this lane. */
ROSE_DEVICE const float *halves_of(const float *x, int lane)
{
    return x + lane / 2 * 16 + lane % 2 * 4;
}

template <int G>
ROSE_DEVICE void load_halves(float4 half[G][2], const float *p, uint32_t d, int lane)
{
#pragma unroll
    for (int i = 0; i < G; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            half[i][e] = make_float4(0, 0, 0, 0);
            if ((uint32_t)(i * 256 + lane / 2 * 16 + e * 8) < d)
                half[i][e] = load_quad(p + i * 256 + e * 8);
        }
}

ROSE_DEVICE void swap_halves(float v[8], const float4 half[2], int lane)
{
    const float even[] = {half[0].x, half[0].y, half[0].z, half[0].w};
    const float odd[] = {half[1].x, half[1].y, half[1].z, half[1].w};
    const bool is_odd = lane % 2 != 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float got = __shfl_xor_sync(ROSE_ALL_LANES, is_odd ? even[e] : odd[e], 1);
        v[e] = is_odd ? got : even[e];
        v[4 + e] = is_odd ? odd[e] : got;
    }
}

ROSE_DEVICE void copy_float(float *shared, const float *global)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(a), "l"(global) : "memory");
}

/* To shared memory: gamma and beta of `d` values each, first halves of all groups of 8, then second
 * halves, so that a warp's loads of them meet no bank twice. By the first n_threads. */
ROSE_DEVICE void copy_norm(float4 *to, const rose_cuda_io &io, uint32_t d, uint32_t n_threads)
{
    const uint32_t quads = d / 4;
    for (uint32_t i = threadIdx.x; i < 2 * quads; i += n_threads) {
        const uint32_t q = i < quads ? i : i - quads;
        copy_async(to + (i - q) + q % 2 * (quads / 2) + q / 2,
                   (i < quads ? io.norm_w : io.norm_b) + q * 4);
    }
}

/* And the block's biases, from n0 on. */
ROSE_DEVICE void copy_parameters(float4 *to, float *bias, const rose_cuda_io &io,
                                 const rose_cuda_linear &l, uint32_t d, uint32_t n0)
{
    copy_norm(to, io, d, blockDim.x);
    if (l.bias != NULL && threadIdx.x < NORMED_TILES * 8 && n0 + threadIdx.x < l.n)
        copy_float(bias + threadIdx.x, l.bias + n0 + threadIdx.x);
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
                             float eps, uint32_t d, uint32_t n_kb, uint32_t row, int lane)
{
    float v[G][8];
#pragma unroll
    for (int i = 0; i < G; i++)
        swap_halves(v[i], half[i], lane);
    const float inv = center_groups<G>(v, d, eps, lane);
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

/* By the first ROWS warps, a row each: zeros where there is none. */
template <typename T, int G>
ROSE_DEVICE void norm_rows(uint4 *to, const float4 half[G][2], const float4 *parameters,
                           const rose_cuda_io &io, uint32_t d, uint32_t n_kb)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < io.rows) {
        norm_shared<T, G>(to, half, parameters, io.norm_eps, d, n_kb, warp, lane);
    } else if (warp < NORMED_ROWS) {
#pragma unroll 1
        for (uint32_t kb = lane; kb < n_kb; kb += 32)
            to[normed_index(warp, kb, n_kb)] = make_uint4(0, 0, 0, 0);
    }
}

/* Where a lane's rows of the first matrices of a chunk lie. */
ROSE_DEVICE const uint4 *chunk_rows(const uint4 *rows, uint32_t n_kb, uint32_t chunk, int lane)
{
    return rows + normed_index(lane % 8, chunk * (CHUNK * 4) + lane / 8, n_kb);
}

/* The sum over a chunk, WHOLE or to n_kb, for 8 rows x 8 outputs. `at` as chunk_rows: a chunk
 * begins at a multiple of 8 blocks, and the order of rows repeats every 8 blocks. */
template <typename T, bool WHOLE>
ROSE_DEVICE void multiply_normed(float acc[4], uint32_t at, const uint4 w[CHUNK][1], uint32_t n_kb,
                                 uint32_t chunk)
{
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        if (!WHOLE && (chunk * CHUNK + j) * 4 >= n_kb) continue;
        uint32_t r[4];
        ldmatrix4_at(r, (at ^ (j % 2 * 64)) + j * 512);
        const uint32_t a[2][4] = {{r[0], 0, r[1], 0}, {r[2], 0, r[3], 0}};
        mma(acc, a[0], w[j][0].x, w[j][0].y, static_cast<const T *>(NULL));
        mma(acc, a[1], w[j][0].z, w[j][0].w, static_cast<const T *>(NULL));
    }
}

/* A warp's sums, to [chunk][tile][row][8]. */
ROSE_DEVICE void keep_sums(float *sums, const float acc[4], uint32_t warp, uint32_t lane)
{
    float *to = sums + warp * (NORMED_ROWS * 8) + lane * 2;
    *reinterpret_cast<float2 *>(to) = make_float2(acc[0], acc[1]);
}

/* The pair of outputs whose sums of all chunks begin at `at`, with its bias (NULL: without). */
template <uint32_t D>
ROSE_DEVICE float2 sum_chunks(uint32_t at, uint32_t n_chunks, const float *bias)
{
    float2 sum = make_float2(0, 0);
#pragma unroll(D != 0 ? 8 : 1)
    for (uint32_t c = 0; c < n_chunks; c++) {
        const float2 v = load_pair(at + c * (NORMED_TILES * NORMED_ROWS * 8 * sizeof(float)));
        sum.x += v.x;
        sum.y += v.y;
    }
    if (bias != NULL) {
        sum.x += bias[0];
        sum.y += bias[1];
    }
    return sum;
}

/* What finish_pair does in QKV and ACT, in two parts: where a pair goes takes divisions, and is
 * found while rows are normed. */
template <typename T> struct normed_place {
    T *at;         /* NULL: nowhere */
    uint32_t part; /* of QKV */
};

template <typename T>
ROSE_DEVICE void place_pair(normed_place<T> *p, const rose_cuda_io &io, uint32_t d, uint32_t row,
                            uint32_t n)
{
    if (io.epilogue == ROSE_CUDA_EPI_ACT) {
        p->at = static_cast<T *>(io.out) + h_index(row, n, io.out_k_pad);
        return;
    }
    const uint32_t part = n >= 2 * d ? 2 : n >= d, c = n - part * d;
    p->part = part;
    if (part == 0) {
        p->at = static_cast<T *>(io.q) + (size_t)row * d + c;
        return;
    }
    if (io.kv_rows != NULL) {
        p->part = 1; /* in order, clamped */
        p->at = kv_row<T>(io, d, row) + n - d;
        return;
    }
    const uint32_t slot = __ldcg(io.slot + row), token = slot % ROSE_PAGE;
    const uint32_t head = c / io.kv.head_dim, dim = c % io.kv.head_dim;
    if (slot != ROSE_CUDA_NO_SLOT)
        p->at = kv_block<T>(io.kv, slot / ROSE_PAGE, head) +
                (part == 2 ? ROSE_PAGE * io.kv.hd_pad + v_index(token, dim) : k_index(token, dim));
}

template <typename T>
ROSE_DEVICE void put_pair(const normed_place<T> &p, const rose_cuda_io &io, float lo, float hi)
{
    if (p.at == NULL) return;
    if (io.epilogue == ROSE_CUDA_EPI_ACT) {
        store_pair(p.at, activate(lo, io.act), activate(hi, io.act));
        return;
    }
    if (p.part > 0) {
        const float top = largest(p.at);
        lo = fminf(fmaxf(lo, -top), top);
        hi = fminf(fmaxf(hi, -top), top);
    }
    if (p.part == 2) {
        from_f32(lo, p.at);
        from_f32(hi, p.at + v_index(0, 1)); /* the first dim is even */
    } else {
        store_pair(p.at, lo, hi);
    }
}

/* D: the values of a row, a multiple of 256, or 0: l.k. Shared memory: the rows; biases; then gamma
 * and beta, in whose place the sums of all chunks come, [chunk][tile][ROWS][8]. The last warps
 * finish, which norm no row where there are more (APART). */
template <typename T, uint32_t D>
static __global__ void __launch_bounds__(D == 0 ? NORMED_WARPS * 32 : NORMED_BOUND)
    normed_kernel(const rose_cuda_linear l, const rose_cuda_io io)
{
    constexpr uint32_t ROWS = NORMED_ROWS, TILES = NORMED_TILES;
    constexpr bool WHOLE = D != 0 && D % (CHUNK * 32) == 0;
    constexpr int G = (D == 0 ? NORMED_MAX_D : D) / 256;
    constexpr bool APART = D != 0;
    extern __shared__ __align__(128) uint4 normed[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t d = D != 0 ? D : l.k, n_kb = (D != 0 ? D : l.k_pad) / 8;
    const uint32_t n_chunks = (n_kb + CHUNK * 4 - 1) / (CHUNK * 4);
    const uint32_t chunk = warp / TILES, tile0 = blockIdx.x * TILES, tile = tile0 + warp % TILES;
    const bool multiplies = chunk < n_chunks && tile < l.n_pad / 8, norms = warp < io.rows;
    float *bias = reinterpret_cast<float *>(normed + ROWS * n_kb);
    float4 *parameters = reinterpret_cast<float4 *>(bias) + TILES * 2;
    uint4 w[CHUNK][1];

    pdl_launch();
    if (multiplies) {
        const uint4 *from = static_cast<const uint4 *>(l.w) + (size_t)tile * (n_kb * 8) + lane;
        settle(from);
        load_weights<T, 1>(w, from, WHOLE ? UINT32_MAX : n_kb / 4, chunk);
    }
    copy_parameters(parameters, bias, io, l, d, tile0 * 8);
    const uint32_t pair = threadIdx.x - (blockDim.x - ROWS * TILES * 4); /* [tile][row][4] */
    const uint32_t row = pair / 4 % ROWS, col = pair / (ROWS * 4) * 8 + pair % 4 * 2;
    const uint32_t n = tile0 * 8 + col;
    const bool finishes = pair < ROWS * TILES * 4 && row < io.rows && n < l.n;
    float *part = reinterpret_cast<float *>(parameters);
    const uint32_t rows_at = hold_shared(chunk_rows(normed, n_kb, chunk, lane), lane);
    const uint32_t sums_at = hold_shared(part + pair * 2, lane);
    const float *x = halves_of(io.x + (size_t)warp * io.ld_x, lane);
    settle(x);
    pdl_wait();

    float4 half[G][2];
    if (norms) load_halves<G>(half, x, d, lane);
    normed_place<T> place = {NULL, 0};
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (finishes && (!APART || warp >= ROWS)) {
        place_pair(&place, io, d, row, n);
        settle(place.at);
    }
    norm_rows<T, G>(normed, half, parameters, io, d, n_kb);
    __syncthreads();
    if (multiplies) {
        float acc[4] = {};
        multiply_normed<T, WHOLE>(acc, rows_at, w, n_kb, chunk);
        keep_sums(part, acc, warp, lane);
    }
    __syncthreads();
    if (!finishes) return;
    const float2 y = sum_chunks<D>(sums_at, n_chunks, l.bias != NULL ? bias + col : NULL);
    put_pair(place, io, y.x, y.y);
}

/* Shared memory of a block. */
template <typename T> static size_t normed_bytes(const rose_cuda_linear *l)
{
    const uint32_t rows = NORMED_ROWS;
    const size_t parameters = 2 * l->k * sizeof(float),
                 sums = normed_warps(l->k_pad) * rows * 8 * sizeof(float);
    return (size_t)rows * l->k_pad * sizeof(T) + NORMED_TILES * 8 * sizeof(float) +
           (parameters > sums ? parameters : sums);
}

template <typename T, uint32_t D>
static cudaError_t launch_normed(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    return launch_kernel(at, normed_kernel<T, D>,
                         dim3((l->n + NORMED_TILES * 8 - 1) / (NORMED_TILES * 8)),
                         normed_warps(l->k_pad) * 32, normed_bytes<T>(l), *l, *io);
}

/* At most 8 rows of at most NORMED_MAX_D values; QKV and ACT. GPT-2's 768 have a kernel without
 * the bounds of other sizes. */
template <typename T>
static cudaError_t run_normed(const rose_cuda_launch *at, const rose_cuda_linear *l,
                              const rose_cuda_io *io)
{
    return l->k == 768 ? launch_normed<T, 768>(at, l, io) : launch_normed<T, 0>(at, l, io);
}

#endif
