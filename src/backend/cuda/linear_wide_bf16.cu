/* backend/cuda/linear_wide_bf16.cu - the GEMM kernels of linear_wide.cuh, linear_once.cuh and
 * linear_pingpong.cuh for bf16. */
#define ROSE_T           __nv_bfloat16
#define ROSE_TYPED(name) name##_bf16
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_pingpong.cuh"
