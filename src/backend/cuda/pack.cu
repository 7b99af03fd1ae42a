/* backend/cuda/pack.cu - the kernels of the load: they convert weights to the storage type and put
 * them into the blocked layout, or draw random weights. The file also asks which code the program
 * has for a GPU.
 *
 * A thread takes 8 values of one output with neighbouring k. These are 16 bytes of a block of 8
 * outputs x 8 inputs (layout.cuh). Eight lanes write a whole block of 128 bytes. All kernels are
 * bound by the memory bandwidth, and a load is bound by PCIe or by the disk. */
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch.cuh"
#include "base/philox.h"
#include "model/random.h"

enum { GROUP = 8, THREADS = 256, BLOCKS_PER_SM = 8 };

static __device__ float read_element(const void *src, uint32_t type, size_t i)
{
    if (type == ROSE_F16) return to_f32(static_cast<const __half *>(src)[i]);
    if (type == ROSE_BF16) return to_f32(static_cast<const __nv_bfloat16 *>(src)[i]);
    return static_cast<const float *>(src)[i];
}

template <typename S> ROSE_DEVICE void widen(float v[GROUP], uint4 from, const S *tag)
{
    const uint32_t pairs[] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < GROUP / 2; i++) {
        const float2 pair = unpair(pairs[i], tag);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
    }
}

/* Values i .. i + 7 of the source; i is a multiple of 8. */
ROSE_DEVICE void read_neighbours(float v[GROUP], const rose_cuda_pack &a, size_t i)
{
    if (a.src_type == ROSE_F32) {
        const float4 *from =
            reinterpret_cast<const float4 *>(static_cast<const float *>(a.src) + i);
        const float4 lo = from[0], hi = from[1];
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
        return;
    }
    const uint4 from = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.src) + i);
    if (a.src_type == ROSE_F16)
        widen(v, from, static_cast<const __half *>(NULL));
    else
        widen(v, from, static_cast<const __nv_bfloat16 *>(NULL));
}

/* Values i, i + step, ... of the source: n of them, then zeros. */
ROSE_DEVICE void read_group(float v[GROUP], const rose_cuda_pack &a, size_t i, size_t step,
                            uint32_t n)
{
    if (step == 1 && n >= GROUP && i % GROUP == 0) {
        read_neighbours(v, a, i);
        return;
    }
#pragma unroll
    for (uint32_t e = 0; e < GROUP; e++)
        v[e] = e < n ? read_element(a.src, a.src_type, i + e * step) : 0.0f;
}

template <typename T> ROSE_DEVICE void store_values(T *at, const float v[GROUP])
{
    *reinterpret_cast<uint4 *>(at) = make_uint4(pair_f32(v[0], v[1], at), pair_f32(v[2], v[3], at),
                                                pair_f32(v[4], v[5], at), pair_f32(v[6], v[7], at));
}
ROSE_DEVICE void store_values(float *at, const float v[GROUP])
{
    reinterpret_cast<float4 *>(at)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4 *>(at)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* The packed output for output i of the tensor. The file has the rows of a permuted head in the
 * order 0, dim / 2, 1, dim / 2 + 1, ... (rose_linear_row is the inverse of this). */
ROSE_DEVICE size_t output_of(const rose_cuda_pack &a, size_t i)
{
    if (a.permuted_dim != 0) {
        const size_t j = i % a.permuted_dim;
        i = i - j + j / 2 + (j % 2 != 0 ? a.permuted_dim / 2 : 0);
    }
    return a.gated ? (2 * (i / 8) + a.first_out) * 8 + i % 8 : a.first_out + i;
}

/* The lanes of a warp take 8 outputs x 4 groups of k where the tensor is [out][in]: reads fill
 * sectors and writes fill blocks. Where it is [in][out] they take 32 outputs of one group. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) pack_kernel(const rose_cuda_pack a)
{
    const uint32_t n_out = a.transposed ? a.n_rows : a.width;
    const uint32_t n_k = a.transposed ? a.width : a.n_rows;
    const uint32_t groups = (n_k + GROUP - 1) / GROUP;
    const uint32_t n = (a.transposed ? (n_out + 7) / 8 * 8 : n_out) * groups;
    const uint32_t first_out = a.transposed ? a.first_row : 0;
    const uint32_t first_k = a.transposed ? 0 : a.first_row;
    T *dst = static_cast<T *>(a.dst);
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const uint32_t out = a.transposed ? i / (8 * groups) * 8 + i % 8 : i % n_out;
        const uint32_t k = (a.transposed ? i / 8 % groups : i / n_out) * GROUP;
        float v[GROUP];
        if (out >= n_out) continue;
        read_group(v, a, a.transposed ? (size_t)out * a.width + k : (size_t)k * a.width + out,
                   a.transposed ? 1 : a.width, n_k - k);
        store_values(dst + w_index((uint32_t)output_of(a, first_out + out), first_k + k, a.k_pad,
                                   static_cast<const T *>(NULL)),
                     v);
    }
}

static __global__ void __launch_bounds__(THREADS) floats_kernel(const rose_cuda_pack a)
{
    const size_t n = (size_t)a.n_rows * a.width, first = (size_t)a.first_row * a.width;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        static_cast<float *>(a.dst)[output_of(a, first + i)] =
            read_element(a.src, a.src_type, i) + a.add;
}

/* The bits of rose_random_draw. */
static __global__ void __launch_bounds__(THREADS) draw_kernel(const rose_cuda_draw a)
{
    const uint32_t key[2] = {(uint32_t)a.seed, (uint32_t)(a.seed >> 32)};
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t e = a.first + i, k = e / 2;
        const uint32_t ctr[4] = {(uint32_t)k, (uint32_t)(k >> 32), a.stream, ROSE_RANDOM_TAG};
        uint32_t r[4];
        rose_philox4x32(ctr, key, r);
        const int32_t z = e % 2 == 0 ? ROSE_RANDOM_Z(r, 0) : ROSE_RANDOM_Z(r, 1);
        const float v = a.mean + (float)z * a.scale;
        if (a.type == ROSE_F16)
            from_f32(v, static_cast<__half *>(a.dst) + i);
        else if (a.type == ROSE_BF16)
            from_f32(v, static_cast<__nv_bfloat16 *>(a.dst) + i);
        else
            static_cast<float *>(a.dst)[i] = v;
    }
}

/* ---- launchers ---- */

static dim3 blocks_for(const rose_cuda_launch *at, uint64_t threads)
{
    const uint64_t n = (threads + THREADS - 1) / THREADS;
    const uint64_t most = (uint64_t)BLOCKS_PER_SM * (at->device->sms > 0 ? at->device->sms : 1);
    return dim3((unsigned)(n < most ? n : most));
}

cudaError_t rose_cuda_pack_run(const rose_cuda_launch *at, const rose_cuda_pack *a)
{
    const uint32_t n_out = a->transposed ? a->n_rows : a->width;
    const uint32_t n_k = a->transposed ? a->width : a->n_rows;
    const dim3 grid = blocks_for(at, (uint64_t)(n_out + 7) / 8 * 8 * ((n_k + GROUP - 1) / GROUP));
    /* A group of k must not be split between two calls. */
    if (!a->transposed && a->first_row % GROUP != 0) return cudaErrorInvalidValue;
    if (a->format == ROSE_F16) return launch_kernel(at, pack_kernel<__half>, grid, THREADS, 0, *a);
    if (a->format == ROSE_BF16)
        return launch_kernel(at, pack_kernel<__nv_bfloat16>, grid, THREADS, 0, *a);
    return launch_kernel(at, pack_kernel<float>, grid, THREADS, 0, *a);
}

cudaError_t rose_cuda_floats_run(const rose_cuda_launch *at, const rose_cuda_pack *a)
{
    return launch_kernel(at, floats_kernel, blocks_for(at, (uint64_t)a->n_rows * a->width), THREADS,
                         0, *a);
}

cudaError_t rose_cuda_draw_run(const rose_cuda_launch *at, const rose_cuda_draw *a)
{
    return launch_kernel(at, draw_kernel, blocks_for(at, a->n), THREADS, 0, *a);
}

/* ---- the code for a GPU ---- */

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
