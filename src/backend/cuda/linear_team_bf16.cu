/* backend/cuda/linear_team_bf16.cu - the matrix products of linear_team.cuh for bf16. */
#include "backend/cuda/linear_team.cuh"
#include "backend/cuda/linear_types.h"

cudaError_t rose_cuda_team_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_team kernel)
{
    return run_team<__nv_bfloat16>(at, l, io, kernel);
}

cudaError_t rose_cuda_team_prepare_bf16(void)
{
    return prepare_team<__nv_bfloat16>();
}
