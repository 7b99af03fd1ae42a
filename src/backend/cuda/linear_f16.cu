/* backend/cuda/linear_f16.cu - the matrix products of linear.cuh for fp16. */
#include "backend/cuda/linear.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_linear_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool tiles)
{
    return run_linear<__half>(at, l, io, tiles);
}

cudaError_t rose_cuda_linear_init_f16(void)
{
    return init_linear<__half>();
}
