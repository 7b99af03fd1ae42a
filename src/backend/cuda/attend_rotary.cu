/* backend/cuda/attend_rotary.cu - from rows of the QKV GEMM to q rows and pages (attend.h). A warp
 * has one head of one row: QK-norm, RoPE, rounding, append. Bound by memory. */
#include "backend/cuda/attend_rotary.cuh"
#include "backend/cuda/launch.cuh"

enum { ROTARY_WARPS = 4 };

template <typename T>
static __global__ void __launch_bounds__(ROTARY_WARPS * 32) rotary_kernel(const rose_cuda_rotary a)
{
    __shared__ float stage[ROTARY_WARPS][ROSE_ATTEND_MAX_HEAD_DIM];
    const uint32_t warp = threadIdx.x / 32, heads = a.n_q + 2 * a.kv.n_heads;
    const uint32_t i = blockIdx.x * ROTARY_WARPS + warp;
    pdl_launch();
    pdl_wait();
    if (i < a.rows * heads)
        rotate_append<T>(a, i / heads, i % heads, stage[warp], threadIdx.x % 32);
}

extern "C" cudaError_t rose_cuda_rotary_run(const rose_cuda_launch *l, const rose_cuda_rotary *a)
{
    const uint64_t heads = (uint64_t)a->rows * (a->n_q + 2 * a->kv.n_heads);
    const dim3 grid((unsigned)((heads + ROTARY_WARPS - 1) / ROTARY_WARPS));
    if (a->kv.hd_pad > ROSE_ATTEND_MAX_HEAD_DIM || a->kv.hd_pad % 8 != 0 ||
        a->kv.head_dim % 2 != 0 || a->rot_dim > a->kv.head_dim || heads > UINT32_MAX)
        return cudaErrorNotSupported;
    if (a->rows == 0) return cudaSuccess;
    switch (l->type) {
    case ROSE_CUDA_F16:
        return launch_kernel(l, rotary_kernel<__half>, grid, ROTARY_WARPS * 32, 0, *a);
    case ROSE_CUDA_BF16:
        return launch_kernel(l, rotary_kernel<__nv_bfloat16>, grid, ROTARY_WARPS * 32, 0, *a);
    default:
        return launch_kernel(l, rotary_kernel<float>, grid, ROTARY_WARPS * 32, 0, *a);
    }
}
