/* backend/cuda/linear_wide_bf16.cu - the matrix products of linear_wide.cuh, linear_once.cuh and
 * linear_stationary.cuh for bf16. */
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_stationary.cuh"

cudaError_t rose_cuda_wide_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_wide kernel)
{
    if (kernel >= ROSE_CUDA_STATIONARY) return run_stationary<__nv_bfloat16>(at, l, io);
    return kernel >= ROSE_CUDA_ONCE_48 ? run_once<__nv_bfloat16>(at, l, io, kernel)
                                       : run_wide<__nv_bfloat16>(at, l, io, kernel);
}

cudaError_t rose_cuda_wide_init_bf16(bool *there)
{
    cudaError_t e = init_wide<__nv_bfloat16>(there);
    if (e == cudaSuccess && *there) e = init_once<__nv_bfloat16>();
    return e == cudaSuccess && *there ? init_stationary<__nv_bfloat16>() : e;
}
