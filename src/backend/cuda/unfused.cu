/* backend/cuda/unfused.cu - the activation and the largest logit as kernels of their own, for
 * --fused-mlp off and --fused-sampler off. They use the functions of gemm_ends.cuh, so the bits are
 * those of the GEMM kernels. */
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/launch.cuh"

enum { THREADS = 256 };

/* A thread has two neighbouring outputs of the MLP; blockIdx.y is the row. */
template <typename T> static __global__ void act_kernel(const rose_cuda_act a)
{
    const uint32_t width = a.gated ? a.n / 2 : a.n, row = blockIdx.y;
    const uint32_t i = (blockIdx.x * THREADS + threadIdx.x) * 2;
    rose_gemm_io io = {};
    io.act = a.act;
    pdl_launch();
    pdl_wait();
    if (i >= width) return;
    const float *y = a.y + (size_t)row * a.n;
    float2 v;
    if (a.gated) {
        const float *gate = y + i / 8 * 16 + i % 8;
        v = end_gated_values(io, __ldcg(reinterpret_cast<const float2 *>(gate)),
                             __ldcg(reinterpret_cast<const float2 *>(gate + 8)));
    } else {
        v = end_act_values(io, __ldcg(reinterpret_cast<const float2 *>(y + i)));
    }
    store_pair(static_cast<T *>(a.out) + h_index(row, i, a.out_k_pad), v.x, v.y);
}

/* A thread block has a row. */
static __global__ void largest_kernel(const rose_cuda_largest a)
{
    __shared__ unsigned long long keys[THREADS / 32];
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
    unsigned long long best = 0;
    pdl_launch();
    pdl_wait();
    for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
        const unsigned long long key =
            rank_key(__ldcg(a.logits + (size_t)row * a.ld_logits + i), i);
        best = key > best ? key : best;
    }
    for (int o = 16; o > 0; o /= 2) {
        const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, best, o);
        best = other > best ? other : best;
    }
    if (lane == 0) keys[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < THREADS / 32; i++)
        best = keys[i] > best ? keys[i] : best;
    a.key[row] = best;
}

/* The y dimension of a grid has at most 65,535 blocks, which a step can exceed. */
enum { MAX_ROWS = 65528 /* a multiple of 8: whole blocks of the output */ };

template <typename T> static cudaError_t run_act(const rose_cuda_launch *l, const rose_cuda_act *a)
{
    const uint32_t width = a->gated ? a->n / 2 : a->n;
    for (uint32_t first = 0; first < a->rows; first += MAX_ROWS) {
        rose_cuda_act part = *a;
        part.rows = a->rows - first < MAX_ROWS ? a->rows - first : (uint32_t)MAX_ROWS;
        part.y += (size_t)first * a->n;
        part.out = static_cast<T *>(a->out) + (size_t)first * a->out_k_pad;
        const cudaError_t e =
            launch_kernel(l, act_kernel<T>, dim3((width / 2 + THREADS - 1) / THREADS, part.rows),
                          THREADS, 0, part);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

extern "C" cudaError_t rose_cuda_act_run(const rose_cuda_launch *l, const rose_cuda_act *a)
{
    if (l->type == ROSE_F16) return run_act<__half>(l, a);
    if (l->type == ROSE_BF16) return run_act<__nv_bfloat16>(l, a);
    return run_act<float>(l, a);
}

extern "C" cudaError_t rose_cuda_largest_run(const rose_cuda_launch *l, const rose_cuda_largest *a)
{
    if (a->rows == 0) return cudaSuccess;
    return launch_kernel(l, largest_kernel, dim3(a->rows), THREADS, 0, *a);
}
