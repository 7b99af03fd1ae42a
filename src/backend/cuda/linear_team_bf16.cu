/* backend/cuda/linear_team_bf16.cu - the GEMM kernels of linear_team.cuh for bf16. */
#define ROSE_T           __nv_bfloat16
#define ROSE_TYPED(name) name##_bf16
#include "backend/cuda/linear_team.cuh"
