/* backend/cuda/linear_wide_f16.cu - the matrix products of linear_wide.cuh for fp16. */
#include "backend/cuda/linear_wide.cuh"

cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel)
{
    return run_wide<__half>(at, l, io, kernel);
}

cudaError_t rose_cuda_wide_init_f16(bool *there)
{
    return init_wide<__half>(there);
}
