/* backend/cuda/norm.cu - kernels that work on one row at a time: embedding, LayerNorm, RMSNorm. All
 * are bound by memory bandwidth. */
#include "backend/cuda/attend_ops.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/norm.cuh"

/* ---- embedding: x = token row * scale + position row, in fp32 ---- */

template <typename T> static __global__ void embed_kernel(const rose_cuda_embed a)
{
    const uint32_t row = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t pos = a.where[row], id = token_of(a.ids[row], a.sampled, a.vocab);
    const T *tok = static_cast<const T *>(a.tok);
    for (uint32_t k = threadIdx.x * 2; k < a.d; k += blockDim.x * 2) {
        const T *p = tok + w_index(id, k, a.k_pad, tok);
        float2 v = make_float2(to_f32(p[0]) * a.scale, to_f32(p[1]) * a.scale);
        if (a.pos != NULL) {
            const float2 w = *reinterpret_cast<const float2 *>(a.pos + (size_t)pos * a.d + k);
            v = make_float2(v.x + w.x, v.y + w.y);
        }
        *reinterpret_cast<float2 *>(a.x + (size_t)row * a.d + k) = v;
    }
}

/* ---- norm of few rows, of fp32, and of rows wider than MANY_D: a thread block for each row ----
 */

enum {
    NORM_THREADS = NORM_GROUP,
    NORM_FEW = 8, /* most rows for each SM; with more, the kernels of many rows run */
    TILE_ROWS = 8,
    MANY_D = 4096 /* widest row of the kernels of many rows */
};

/* Parameters that a thread holds before the row is there. */
template <int G> constexpr int NORM_BATCH = G < 16 ? G : 16;

/* Values d .. out_k_pad - 1 of a row are zero, so that a GEMM may multiply them. */
template <typename T> ROSE_DEVICE void pad_row(const rose_cuda_norm &a, uint32_t row)
{
    T *out = static_cast<T *>(a.out);
    for (uint32_t k = a.d + threadIdx.x; k < a.out_k_pad; k += blockDim.x)
        from_f32(0, out + h_index(row, k, a.out_k_pad));
}

template <typename T, int G>
static __global__ void __launch_bounds__(NORM_THREADS) norm_kernel(const rose_cuda_norm a)
{
    __shared__ float red[64];
    const uint32_t row = blockIdx.x;
    T *out = static_cast<T *>(a.out);
    norm_batch<1, NORM_BATCH<G>> batch;
    pdl_launch();
    load_batch(&batch, a.by, 0, a.d, threadIdx.x);
    pdl_wait();
    if (a.key != NULL && threadIdx.x == 0) a.key[row] = 0;
    const uint32_t from = a.gather != NULL ? a.gather[row] : row;
    norm_row<1, G>(
        a.x + (size_t)from * a.d, a.by, batch, a.d, threadIdx.x, red,
        [&](uint32_t k, const float y[1]) { from_f32(y[0], out + h_index(row, k, a.out_k_pad)); });
    pad_row<T>(a, row);
}

/* x += norm(y), then y = 0. */
template <int G>
static __global__ void __launch_bounds__(NORM_THREADS) norm_add_kernel(const rose_cuda_norm_add a)
{
    __shared__ float red[64];
    float *x = a.x + (size_t)blockIdx.x * a.d, *y = a.y + (size_t)blockIdx.x * a.d;
    norm_batch<1, NORM_BATCH<G>> batch;
    pdl_launch();
    load_batch(&batch, a.by, 0, a.d, threadIdx.x);
    pdl_wait();
    norm_row<1, G>(y, a.by, batch, a.d, threadIdx.x, red, [&](uint32_t k, const float v[1]) {
        x[k] = __ldcg(x + k) + v[0];
        y[k] = 0;
    });
}

/* ---- norm of many rows, 16-bit types: a block has 8 rows, one for each warp ----
 *
 * The 8 rows of a block form one block of the "blocked" layout: they meet in shared memory and are
 * written as whole cache lines. (A warp that writes its row alone fills only 16 bytes of each line.
 * That took 98 us for 32768 rows of 768 values, and moved 150 MB to write 50; H100.) In shared
 * memory, row r of group g = k / 8 is stored at place r ^ (g % 8), which avoids bank conflicts. */

ROSE_DEVICE uint4 *staged_at(uint4 *staged, uint32_t row, uint32_t group)
{
    return staged + group * TILE_ROWS + (row ^ group % 8);
}

template <typename T>
ROSE_DEVICE void store_tile_rows(const uint4 *staged, const rose_cuda_norm &a, uint32_t tile)
{
    const uint32_t row = threadIdx.x % TILE_ROWS;
    uint4 *out = reinterpret_cast<uint4 *>(static_cast<T *>(a.out) +
                                           h_index(tile * TILE_ROWS, 0, a.out_k_pad));
    if (tile * TILE_ROWS + row >= a.rows) return;
    for (uint32_t i = threadIdx.x; i < a.out_k_pad; i += TILE_ROWS * 32) {
        const uint32_t group = i / TILE_ROWS;
        out[i] = group * 8 < a.d ? staged[group * TILE_ROWS + (row ^ group % 8)]
                                 : make_uint4(0, 0, 0, 0);
    }
}

/* Wide rows. */
template <typename T, int G>
static __global__ void __launch_bounds__(TILE_ROWS * 32) norm_tile_kernel(const rose_cuda_norm a)
{
    ROSE_ATTEND_MEMORY(memory);
    uint4 *staged = reinterpret_cast<uint4 *>(memory); /* [d / 8][8] */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = blockIdx.x * TILE_ROWS + warp;
    pdl_launch();
    touch_parameters(a.by, a.d);
    pdl_wait();
    if (row < a.rows) {
        if (a.key != NULL && lane == 0) a.key[row] = 0;
        const uint32_t from = a.gather != NULL ? a.gather[row] : row;
        norm_batch<8, 4> batch;
        load_batch(&batch, a.by, 0, a.d, lane);
        norm_row<8, G>(a.x + (size_t)from * a.d, a.by, batch, a.d, lane, NULL,
                       [&](uint32_t k, const float y[8]) {
                           store_group(reinterpret_cast<T *>(staged_at(staged, warp, k / 8)), y);
                       });
    }
    __syncthreads();
    store_tile_rows<T>(staged, a, blockIdx.x);
}

/* Up to 1024 values. Every load is 16 bytes for each lane and coalesced. A thread block takes
 * groups of 8 rows in turn, the last rows first. The last rows are still in the L2, and the output
 * of the first rows is in the L2 when the next GEMM starts.
 *
 * The results are the same bits as those of norm_row<8>, which gives each lane groups of 8 values.
 * Here lane p holds quads (4 values) p, p + 32, and so on. Its even quads are halves of groups of
 * norm_row's lane p / 2, its odd quads of lane p / 2 + 16. sum_quads adds in norm_row's order. */

/* The sum over a row. s[0] and s[1] are this lane's partial sums for lanes p / 2 and p / 2 + 16 of
 * norm_row. The even lane of a pair completes the first, the odd lane the second. */
ROSE_DEVICE float sum_quads(const float s[2][4], bool odd)
{
    float t[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        t[e] =
            (odd ? s[1][e] : s[0][e]) + __shfl_xor_sync(ROSE_ALL_LANES, odd ? s[0][e] : s[1][e], 1);
    float v = (t[0] + t[2]) + (t[1] + t[3]);
    v += __shfl_xor_sync(ROSE_ALL_LANES, v, 1);
#pragma unroll
    for (int o = 16; o > 1; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    return v;
}

template <int Q> ROSE_DEVICE void load_quads(float4 v[Q], const float *x, uint32_t d, int lane)
{
    const float4 *p = reinterpret_cast<const float4 *>(x) + lane;
#pragma unroll
    for (int i = 0; i < Q; i++)
        if ((uint32_t)(i * 32 + lane) * 4 < d) v[i] = __ldcg(p + i * 32);
}

template <int Q> ROSE_DEVICE float mean_quads(const float4 v[Q], uint32_t d, int lane)
{
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= d) continue;
        s[i % 2][0] += v[i].x;
        s[i % 2][1] += v[i].y;
        s[i % 2][2] += v[i].z;
        s[i % 2][3] += v[i].w;
    }
    return __fdiv_rn(sum_quads(s, lane % 2), (float)d);
}

/* Subtract the mean and return 1 / standard deviation; norm_moments gives the same bits. */
template <int Q>
ROSE_DEVICE float center_quads(float4 v[Q], const rose_cuda_norm_by &by, uint32_t d, int lane)
{
    float q[2][4] = {};
    if (by.kind == ROSE_CUDA_NORM_NONE) return 1;
    const float mean = by.kind == ROSE_CUDA_NORM_LAYER ? mean_quads<Q>(v, d, lane) : 0;
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= d) continue;
        v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
        q[i % 2][0] = fmaf(v[i].x, v[i].x, q[i % 2][0]);
        q[i % 2][1] = fmaf(v[i].y, v[i].y, q[i % 2][1]);
        q[i % 2][2] = fmaf(v[i].z, v[i].z, q[i % 2][2]);
        q[i % 2][3] = fmaf(v[i].w, v[i].w, q[i % 2][3]);
    }
    return norm_inverse(sum_quads(q, lane % 2), d, by.eps);
}

/* Load this warp's row of group `tile` of 8 rows. False if there is no such row. */
template <int Q>
ROSE_DEVICE bool load_tile_row(float4 v[Q], const rose_cuda_norm &a, uint32_t tile, int lane)
{
    const uint32_t row = tile * TILE_ROWS + threadIdx.x / 32;
    if (row >= a.rows) return false;
    const uint32_t from = a.gather != NULL ? a.gather[row] : row;
    load_quads<Q>(v, a.x + (size_t)from * a.d, a.d, lane);
    return true;
}

template <typename T, int Q>
ROSE_DEVICE void stage_row(uint4 *staged, float4 v[Q], const float4 w[Q], const float4 b[Q],
                           const rose_cuda_norm &a, int lane)
{
    const float inv = center_quads<Q>(v, a.by, a.d, lane);
    const bool scales = a.by.kind != ROSE_CUDA_NORM_NONE, has_b = a.by.b != NULL;
    const T *tag = NULL;
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= a.d) continue;
        float4 y = v[i];
        if (scales)
            y = make_float4(norm_scale(v[i].x, inv, w[i].x, b[i].x, has_b),
                            norm_scale(v[i].y, inv, w[i].y, b[i].y, has_b),
                            norm_scale(v[i].z, inv, w[i].z, b[i].z, has_b),
                            norm_scale(v[i].w, inv, w[i].w, b[i].w, has_b));
        uint4 *at = staged_at(staged, threadIdx.x / 32, i * 16 + lane / 2);
        reinterpret_cast<uint2 *>(at)[lane % 2] =
            make_uint2(pair_f32(y.x, y.y, tag), pair_f32(y.z, y.w, tag));
    }
}

/* Q is even, and d is at most 128 Q. */
template <typename T, int Q>
static __global__ void __launch_bounds__(TILE_ROWS * 32, Q > 6 ? 1 : 2)
    norm_many_kernel(const rose_cuda_norm a)
{
    __shared__ uint4 staged[2][Q * 128];
    const int lane = threadIdx.x % 32;
    const uint32_t n_tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
    float4 v[Q], next[Q], w[Q] = {}, b[Q] = {};
    pdl_launch();
    if (a.by.kind != ROSE_CUDA_NORM_NONE) load_quads<Q>(w, a.by.w, a.d, lane);
    if (a.by.kind != ROSE_CUDA_NORM_NONE && a.by.b != NULL) load_quads<Q>(b, a.by.b, a.d, lane);
    pdl_wait();
    if (a.key != NULL)
        for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows;
             i += gridDim.x * blockDim.x)
            a.key[i] = 0;
    /* The next group is left - 1. The grid has at most n_tiles blocks. */
    uint32_t left = n_tiles - blockIdx.x;
    bool has = load_tile_row<Q>(v, a, left - 1, lane);
    for (uint32_t half = 0; left > 0; half ^= 1) {
        const uint32_t tile = left - 1;
        bool has_next = false;
        left = left > gridDim.x ? left - gridDim.x : 0;
        if (left > 0) has_next = load_tile_row<Q>(next, a, left - 1, lane);
        if (has) stage_row<T, Q>(staged[half], v, w, b, a, lane);
        /* After this, all warps have read the other half of `staged`, so it may be overwritten. */
        __syncthreads();
        store_tile_rows<T>(staged[half], a, tile);
#pragma unroll
        for (int i = 0; i < Q; i++)
            v[i] = next[i];
        has = has_next;
    }
}

/* ---- sums of states, for pooled requests: a thread has one value of one sum ---- */

enum { SUM_THREADS = 128 };

template <typename T> static __global__ void states_kernel(const rose_cuda_states a)
{
    const uint32_t k = blockIdx.x * SUM_THREADS + threadIdx.x;
    const T *h = static_cast<const T *>(a.h);
    pdl_launch();
    pdl_wait();
    const rose_cuda_sum s = a.sum[blockIdx.y];
    const uint32_t begin = s.first > a.first ? s.first : a.first;
    const uint32_t end = s.end < a.first + a.n ? s.end : a.first + a.n;
    if (k >= a.d || begin >= end) return;
    float *to = a.sums + (size_t)blockIdx.y * a.d + k;
    float sum = *to;
    for (uint32_t i = begin; i < end; i++)
        sum += to_f32(h[h_index(i - a.first, k, a.k_pad)]);
    *to = sum;
}

/* ---- launchers ---- */

extern "C" cudaError_t rose_cuda_embed_run(const rose_cuda_launch *at, const rose_cuda_embed *a)
{
    const unsigned threads = 128;
    if (at->type == ROSE_F16)
        return launch_kernel(at, embed_kernel<__half>, dim3(a->rows), threads, 0, *a);
    if (at->type == ROSE_BF16)
        return launch_kernel(at, embed_kernel<__nv_bfloat16>, dim3(a->rows), threads, 0, *a);
    return launch_kernel(at, embed_kernel<float>, dim3(a->rows), threads, 0, *a);
}

template <typename T>
static cudaError_t run_norm_many(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    const unsigned n_tiles = (a->rows + TILE_ROWS - 1) / TILE_ROWS, threads = TILE_ROWS * 32;
    /* as many as the registers allow */
    const unsigned blocks = a->d <= 768 ? 2 * at->device->sms : at->device->sms;
    const dim3 grid(n_tiles < blocks ? n_tiles : blocks);
    const size_t bytes = (size_t)TILE_ROWS * a->d * sizeof(T);
    if (a->d <= 768) return launch_kernel(at, norm_many_kernel<T, 6>, grid, threads, 0, *a);
    if (a->d <= 1024) return launch_kernel(at, norm_many_kernel<T, 8>, grid, threads, 0, *a);
    if (a->d <= 2048)
        return launch_kernel(at, norm_tile_kernel<T, 8>, dim3(n_tiles), threads, bytes, *a);
    return launch_kernel(at, norm_tile_kernel<T, 16>, dim3(n_tiles), threads, bytes, *a);
}

template <typename T>
static cudaError_t run_norm(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    if (a->d <= 1024)
        return launch_kernel(at, norm_kernel<T, 4>, dim3(a->rows), NORM_THREADS, 0, *a);
    if (a->d <= 4096)
        return launch_kernel(at, norm_kernel<T, 16>, dim3(a->rows), NORM_THREADS, 0, *a);
    return launch_kernel(at, norm_kernel<T, 64>, dim3(a->rows), NORM_THREADS, 0, *a);
}

extern "C" cudaError_t rose_cuda_norm_run(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    const bool many = a->d <= MANY_D && a->rows > at->device->sms * NORM_FEW;
    if (a->d % 8 != 0 || a->d > ROSE_CUDA_MAX_D) return cudaErrorInvalidValue;
    if (many && at->type == ROSE_F16) return run_norm_many<__half>(at, a);
    if (many && at->type == ROSE_BF16) return run_norm_many<__nv_bfloat16>(at, a);
    if (at->type == ROSE_F16) return run_norm<__half>(at, a);
    if (at->type == ROSE_BF16) return run_norm<__nv_bfloat16>(at, a);
    return run_norm<float>(at, a);
}

extern "C" cudaError_t rose_cuda_norm_add_run(const rose_cuda_launch *at,
                                              const rose_cuda_norm_add *a)
{
    const dim3 grid(a->rows);
    if (a->d % 8 != 0 || a->d > ROSE_CUDA_MAX_D) return cudaErrorInvalidValue;
    if (a->d <= 1024) return launch_kernel(at, norm_add_kernel<4>, grid, NORM_THREADS, 0, *a);
    if (a->d <= 4096) return launch_kernel(at, norm_add_kernel<16>, grid, NORM_THREADS, 0, *a);
    return launch_kernel(at, norm_add_kernel<64>, grid, NORM_THREADS, 0, *a);
}

extern "C" cudaError_t rose_cuda_states_run(const rose_cuda_launch *at, const rose_cuda_states *a)
{
    const dim3 grid((a->d + SUM_THREADS - 1) / SUM_THREADS, a->n_sums);
    if (a->n_sums == 0) return cudaSuccess;
    if (at->type == ROSE_F16)
        return launch_kernel(at, states_kernel<__half>, grid, SUM_THREADS, 0, *a);
    if (at->type == ROSE_BF16)
        return launch_kernel(at, states_kernel<__nv_bfloat16>, grid, SUM_THREADS, 0, *a);
    return launch_kernel(at, states_kernel<float>, grid, SUM_THREADS, 0, *a);
}

extern "C" cudaError_t rose_cuda_norm_prepare(void)
{
    const void *const kernels[] = {(const void *)norm_tile_kernel<__half, 16>,
                                   (const void *)norm_tile_kernel<__nv_bfloat16, 16>};
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 TILE_ROWS * MANY_D * 2);
    return e;
}
