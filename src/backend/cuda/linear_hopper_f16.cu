/* backend/cuda/linear_hopper_f16.cu - the matrix products of linear_hopper.cuh for fp16. */
#include "backend/cuda/linear_hopper.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_hopper_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, rose_cuda_hopper kernel)
{
    return run_hopper<__half>(at, l, io, kernel);
}

cudaError_t rose_cuda_hopper_init_f16(bool *there)
{
    return init_hopper<__half>(there);
}
