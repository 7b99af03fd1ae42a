/* backend/cuda/rows.cu - kernels that work on one row at a time (embedding, LayerNorm), and the
 * packing of weights at load. All are bound by memory bandwidth. */
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch.cuh"

/* ---- embedding: x = token row + position row, in fp32 ---- */

template <typename T> static __global__ void embed_kernel(const rose_cuda_embed a)
{
    const uint32_t row = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t pos = a.where[row], id = token_of(a.ids[row], a.sampled, a.vocab);
    const T *tok = static_cast<const T *>(a.tok);
    for (uint32_t k = threadIdx.x * 2; k < a.d; k += blockDim.x * 2) {
        const T *p = tok + w_index(id, k, a.k_pad, tok);
        float2 w = *reinterpret_cast<const float2 *>(a.pos + (size_t)pos * a.d + k);
        *reinterpret_cast<float2 *>(a.x + (size_t)row * a.d + k) =
            make_float2(to_f32(p[0]) + w.x, to_f32(p[1]) + w.y);
    }
}

/* ---- LayerNorm: one warp for each row ---- */

enum { NORM_WARPS = 4 };

template <typename T, int G>
static __global__ void __launch_bounds__(NORM_WARPS * 32) norm_kernel(const rose_cuda_norm a)
{
    const int lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    float v[G][8], w[G][8], b[G][8];
    pdl_launch();
    load_groups<G>(w, a.w, a.d, lane);
    load_groups<G>(b, a.b, a.d, lane);
    pdl_wait();
    if (row >= a.rows) return;
    if (a.key != NULL && lane == 0) a.key[row] = 0;
    const uint32_t from = a.gather != NULL ? a.gather[row] : row;
    load_groups<G>(v, a.x + (size_t)from * a.d, a.d, lane);
    norm_groups<G>(v, w, b, a.d, a.eps, lane);
    T *out = static_cast<T *>(a.out);
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t k = (uint32_t)(i * 32 + lane) * 8;
        if (k < a.d) store_group(out + h_index(row, k, a.out_k_pad), v[i]);
    }
}

/* ---- LayerNorm of many rows, 16-bit types: a block has 8 rows, one for each warp ----
 *
 * Every load is 16 bytes for each lane and coalesced. The 8 rows of a block form one block of the
 * "blocked" layout: they meet in shared memory and are written as whole cache lines. (A warp that
 * writes its row alone fills only 16 bytes of each line. That took 98 us for 32768 rows of 768
 * values, and moved 150 MB to write 50; H100.) A thread block takes groups of 8 rows in turn, the
 * last rows first. The last rows are still in the L2, and the output of the first rows is in the L2
 * when the next GEMM starts.
 *
 * The results are the same bits as those of norm_groups, which gives each lane groups of 8 values.
 * Here lane p holds quads (4 values) p, p + 32, and so on. Its even quads are halves of groups of
 * norm_groups' lane p / 2, its odd quads of lane p / 2 + 16. sum_quads adds in norm_groups' order.
 */

enum { TILE_ROWS = 8 };

/* The sum over a row. s[0] and s[1] are this lane's partial sums for lanes p / 2 and p / 2 + 16 of
 * norm_groups. The even lane of a pair completes the first, the odd lane the second. */
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

/* Subtract the mean and return 1 / standard deviation, as center_groups does. */
template <int Q> ROSE_DEVICE float center_quads(float4 v[Q], uint32_t d, float eps, int lane)
{
    float s[2][4] = {}, q[2][4] = {};
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= d) continue;
        s[i % 2][0] += v[i].x;
        s[i % 2][1] += v[i].y;
        s[i % 2][2] += v[i].z;
        s[i % 2][3] += v[i].w;
    }
    const float mean = __fdiv_rn(sum_quads(s, lane % 2), (float)d);
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= d) continue;
        v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
        q[i % 2][0] = fmaf(v[i].x, v[i].x, q[i % 2][0]);
        q[i % 2][1] = fmaf(v[i].y, v[i].y, q[i % 2][1]);
        q[i % 2][2] = fmaf(v[i].z, v[i].z, q[i % 2][2]);
        q[i % 2][3] = fmaf(v[i].w, v[i].w, q[i % 2][3]);
    }
    return __frcp_rn(__fsqrt_rn(__fdiv_rn(sum_quads(q, lane % 2), (float)d) + eps));
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

/* staged holds 8 rows in the blocked layout. Row r of group g = k / 8 is stored at place r ^ (g %
 * 8), which avoids bank conflicts. */
template <typename T, int Q>
ROSE_DEVICE void stage_row(uint4 *staged, float4 v[Q], const float4 w[Q], const float4 b[Q],
                           const rose_cuda_norm &a, int lane)
{
    const float inv = center_quads<Q>(v, a.d, a.eps, lane);
    const T *tag = NULL;
    const int row = threadIdx.x / 32, group = lane / 2; /* and + 16 i */
    uint2 *to =
        reinterpret_cast<uint2 *>(staged + group * TILE_ROWS + (row ^ group % 8)) + lane % 2;
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if ((uint32_t)(i * 32 + lane) * 4 >= a.d) continue;
        to[i * 16 * TILE_ROWS * 2] = make_uint2(
            pair_f32(fmaf(v[i].x * inv, w[i].x, b[i].x), fmaf(v[i].y * inv, w[i].y, b[i].y), tag),
            pair_f32(fmaf(v[i].z * inv, w[i].z, b[i].z), fmaf(v[i].w * inv, w[i].w, b[i].w), tag));
    }
}

template <typename T, int Q>
ROSE_DEVICE void store_tile_rows(const uint4 *staged, const rose_cuda_norm &a, uint32_t tile)
{
    const uint32_t row = threadIdx.x % TILE_ROWS, group = threadIdx.x / TILE_ROWS; /* and + 32 i */
    uint4 *out = reinterpret_cast<uint4 *>(static_cast<T *>(a.out) +
                                           h_index(tile * TILE_ROWS, 0, a.out_k_pad)) +
                 threadIdx.x;
    const uint4 *from = staged + group * TILE_ROWS + (row ^ group % 8);
    if (tile * TILE_ROWS + row >= a.rows) return;
#pragma unroll
    for (int i = 0; i < Q / 2; i++)
        if ((group + i * 32) * 8 < a.d) out[i * TILE_ROWS * 32] = from[i * TILE_ROWS * 32];
}

/* Q is even, and d is at most 128 Q. */
template <typename T, int Q>
static __global__ void __launch_bounds__(TILE_ROWS * 32, Q > 6 ? 1 : 2)
    norm_many_kernel(const rose_cuda_norm a)
{
    __shared__ uint4 staged[2][Q * 128];
    const int lane = threadIdx.x % 32;
    const uint32_t n_tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
    float4 v[Q], next[Q], w[Q], b[Q];
    pdl_launch();
    load_quads<Q>(w, a.w, a.d, lane);
    load_quads<Q>(b, a.b, a.d, lane);
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
        store_tile_rows<T, Q>(staged[half], a, tile);
#pragma unroll
        for (int i = 0; i < Q; i++)
            v[i] = next[i];
        has = has_next;
    }
}

/* ---- packing ---- */

static __device__ float read_element(const void *src, uint32_t type, size_t i)
{
    if (type == ROSE_F16) return __half2float(static_cast<const __half *>(src)[i]);
    if (type == ROSE_BF16) return __bfloat162float(static_cast<const __nv_bfloat16 *>(src)[i]);
    return static_cast<const float *>(src)[i];
}

template <typename T> static __global__ void pack_kernel(const rose_cuda_pack a)
{
    const size_t n = (size_t)a.n_rows * a.width;
    T *dst = static_cast<T *>(a.dst);
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t r = a.first_row + (uint32_t)(i / a.width), c = (uint32_t)(i % a.width);
        const uint32_t out = a.transposed ? r : c, k = a.transposed ? c : r;
        from_f32(read_element(a.src, a.src_type, i), dst + w_index(out, k, a.k_pad, dst));
    }
}

/* One thread for each element. The kernel moves 16-bit values of either type. */
static __global__ void cores_kernel(const rose_cuda_linear l)
{
    const uint16_t *from = static_cast<const uint16_t *>(l.w);
    uint16_t *to = static_cast<uint16_t *>(l.cores);
    const size_t n = (size_t)l.n_pad * l.k_pad;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t out = (uint32_t)(i / l.k_pad), k = (uint32_t)(i % l.k_pad);
        to[core_index(l, out, k)] =
            from[w_index(out, k, l.k_pad, static_cast<const __half *>(NULL))];
    }
}

static __global__ void floats_kernel(const rose_cuda_pack a)
{
    const size_t n = (size_t)a.n_rows * a.width;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        static_cast<float *>(a.dst)[(size_t)a.first_row * a.width + i] =
            read_element(a.src, a.src_type, i);
}

/* ---- launchers ---- */

/* Code for sm_90a gives this kernel shared memory, other code does not. It is never launched. */
static __global__ void hopper_kernel(uint32_t *to)
{
#if ROSE_HOPPER
    __shared__ uint32_t shared[32];
    shared[threadIdx.x % 32] = to[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = shared[31 - threadIdx.x % 32];
#else
    (void)to;
#endif
}

cudaError_t rose_cuda_device_code(rose_cuda_device *d)
{
    cudaFuncAttributes a;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;
    d->code = 0;
    d->hopper = false;
    d->encode = NULL;
    if (cudaFuncGetAttributes(&a, (const void *)floats_kernel) != cudaSuccess) {
        cudaGetLastError(); /* no code for this GPU */
        return cudaSuccess;
    }
    d->code = (uint32_t)a.ptxVersion;
    cudaError_t e = cudaFuncGetAttributes(&a, (const void *)hopper_kernel);
    if (e != cudaSuccess || d->cc / 10 != 9 || a.sharedSizeBytes == 0) return e;
    e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) return e;
    d->hopper = true;
    d->encode = encode;
    return cudaSuccess;
}

cudaError_t rose_cuda_embed_run(const rose_cuda_launch *at, const rose_cuda_embed *a)
{
    const unsigned threads = 128;
    if (at->type == ROSE_CUDA_F16)
        return launch_kernel(at, embed_kernel<__half>, dim3(a->rows), threads, 0, *a);
    if (at->type == ROSE_CUDA_BF16)
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
    if (a->d <= 768) return launch_kernel(at, norm_many_kernel<T, 6>, grid, threads, 0, *a);
    return launch_kernel(at, norm_many_kernel<T, 8>, grid, threads, 0, *a);
}

template <typename T>
static cudaError_t run_norm(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    dim3 grid((a->rows + NORM_WARPS - 1) / NORM_WARPS);
    if (a->d <= 1024) return launch_kernel(at, norm_kernel<T, 4>, grid, NORM_WARPS * 32, 0, *a);
    return launch_kernel(at, norm_kernel<T, ROSE_CUDA_MAX_D / 256>, grid, NORM_WARPS * 32, 0, *a);
}

cudaError_t rose_cuda_norm_run(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    /* where an SM has more than TILE_ROWS rows */
    const bool many = a->d <= 1024 && a->rows > at->device->sms * TILE_ROWS;
    if (many && at->type == ROSE_CUDA_F16) return run_norm_many<__half>(at, a);
    if (many && at->type == ROSE_CUDA_BF16) return run_norm_many<__nv_bfloat16>(at, a);
    if (at->type == ROSE_CUDA_F16) return run_norm<__half>(at, a);
    if (at->type == ROSE_CUDA_BF16) return run_norm<__nv_bfloat16>(at, a);
    return run_norm<float>(at, a);
}

cudaError_t rose_cuda_pack_run(const rose_cuda_launch *at, const rose_cuda_pack *a)
{
    if (at->type == ROSE_CUDA_F16)
        return launch_kernel(at, pack_kernel<__half>, dim3(1024), 256, 0, *a);
    if (at->type == ROSE_CUDA_BF16)
        return launch_kernel(at, pack_kernel<__nv_bfloat16>, dim3(1024), 256, 0, *a);
    return launch_kernel(at, pack_kernel<float>, dim3(1024), 256, 0, *a);
}

cudaError_t rose_cuda_cores_run(const rose_cuda_launch *at, const rose_cuda_linear *l)
{
    if (at->type == ROSE_CUDA_F32 || l->cores == NULL) return cudaErrorInvalidValue;
    return launch_kernel(at, cores_kernel, dim3(1024), 256, 0, *l);
}

cudaError_t rose_cuda_floats_run(const rose_cuda_launch *at, const rose_cuda_pack *a)
{
    return launch_kernel(at, floats_kernel, dim3(256), 256, 0, *a);
}
