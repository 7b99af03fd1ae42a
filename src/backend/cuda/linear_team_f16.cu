/* backend/cuda/linear_team_f16.cu - the matrix products of linear_team.cuh for fp16. */
#include "backend/cuda/linear_team.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_team_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_team kernel)
{
    return run_team<__half>(at, l, io, kernel);
}

cudaError_t rose_cuda_team_prepare_f16(void)
{
    return prepare_team<__half>();
}
