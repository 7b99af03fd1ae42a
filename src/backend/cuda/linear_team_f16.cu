/* backend/cuda/linear_team_f16.cu - the GEMM kernels of linear_team.cuh for fp16. */
#define ROSE_T           __half
#define ROSE_TYPED(name) name##_f16
#include "backend/cuda/linear_team.cuh"
