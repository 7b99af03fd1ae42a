/* backend/cuda/linear_wide_f16.cu - the matrix products of linear_wide.cuh, linear_once.cuh
 * and linear_pingpong.cuh for fp16. */
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_pingpong.cuh"

cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel)
{
    if (kernel >= ROSE_CUDA_PINGPONG) return run_pingpong<__half>(at, l, io, kernel);
    return kernel >= ROSE_CUDA_ONCE_48 ? run_once<__half>(at, l, io, kernel)
                                       : run_wide<__half>(at, l, io, kernel);
}

cudaError_t rose_cuda_wide_prepare_f16(void)
{
    cudaError_t e = prepare_wide<__half>();
    if (e == cudaSuccess) e = prepare_once<__half>();
    return e == cudaSuccess ? prepare_pingpong<__half>() : e;
}
