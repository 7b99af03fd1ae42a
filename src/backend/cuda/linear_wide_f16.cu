/* backend/cuda/linear_wide_f16.cu - the GEMM kernels of linear_wide.cuh, linear_once.cuh and
 * linear_pingpong.cuh for fp16. */
#define ROSE_T           __half
#define ROSE_TYPED(name) name##_f16
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_pingpong.cuh"
