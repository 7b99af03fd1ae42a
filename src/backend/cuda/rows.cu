/* backend/cuda/rows.cu - what is done row by row (embedding, LayerNorm), the packing of weights at
 * load. All bound by bytes. */
#include "backend/cuda/device.cuh"
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

/* ---- LayerNorm: one warp a row ---- */

enum { NORM_WARPS = 4 };

/* Four blocks a multiprocessor, as many as registers allow. */
enum { NORM_BLOCKS = 4 * 132 };

template <typename T, int G>
ROSE_DEVICE void norm_row(const rose_cuda_norm &a, uint32_t row, const float w[G][8],
                          const float b[G][8], int lane)
{
    float v[G][8];
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

/* MANY: a warp takes one row after the other, and reads w and b once. */
template <typename T, int G, bool MANY>
static __global__ void __launch_bounds__(NORM_WARPS * 32) norm_kernel(const rose_cuda_norm a)
{
    const int lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    float w[G][8], b[G][8];
    pdl_launch();
    load_groups<G>(w, a.w, a.d, lane);
    load_groups<G>(b, a.b, a.d, lane);
    pdl_wait();
    if (MANY) {
        for (uint32_t r = row; r < a.rows; r += gridDim.x * NORM_WARPS)
            norm_row<T, G>(a, r, w, b, lane);
    } else if (row < a.rows) {
        norm_row<T, G>(a, row, w, b, lane);
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

/* One thread an element: values move, whatever 16-bit type they are. */
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
static cudaError_t run_norm(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
    dim3 grid((a->rows + NORM_WARPS - 1) / NORM_WARPS);
    if ((at->trial & ROSE_CUDA_TRY_NORM) != 0 && a->d <= 1024 && grid.x > NORM_BLOCKS)
        return launch_kernel(at, norm_kernel<T, 4, true>, dim3(NORM_BLOCKS), NORM_WARPS * 32, 0,
                             *a);
    if (a->d <= 1024)
        return launch_kernel(at, norm_kernel<T, 4, false>, grid, NORM_WARPS * 32, 0, *a);
    return launch_kernel(at, norm_kernel<T, ROSE_CUDA_MAX_D / 256, false>, grid, NORM_WARPS * 32, 0,
                         *a);
}

cudaError_t rose_cuda_norm_run(const rose_cuda_launch *at, const rose_cuda_norm *a)
{
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
