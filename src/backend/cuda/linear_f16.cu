/* backend/cuda/linear_f16.cu - the matrix products of linear.cuh,
 * linear_normed.cuh and linear_head.cuh for fp16. */
#include "backend/cuda/linear_head.cuh"
#include "backend/cuda/linear_normed.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_linear_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool tiles)
{
    return run_linear<__half>(at, l, io, tiles);
}

cudaError_t rose_cuda_normed_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    return run_normed<__half>(at, l, io);
}

cudaError_t rose_cuda_linear_prepare_f16(const rose_cuda_device *d)
{
    return prepare_linear<__half>(d);
}

cudaError_t rose_cuda_head_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    return run_head<__half>(at, l, io);
}
