/* backend/cuda/linear_hopper_bf16.cu - the matrix products of linear_hopper.cuh for bf16. */
#include "backend/cuda/linear_hopper.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_hopper_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, rose_cuda_hopper kernel)
{
    return run_hopper<__nv_bfloat16>(at, l, io, kernel);
}

cudaError_t rose_cuda_hopper_init_bf16(bool *there)
{
    return init_hopper<__nv_bfloat16>(there);
}
