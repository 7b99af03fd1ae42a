/* backend/cuda/gemm_wide_bf16.cu - the GEMM kernels of gemm_wide.cuh for bf16. */
#define ROSE_T           __nv_bfloat16
#define ROSE_TYPED(name) name##_bf16
#include "backend/cuda/gemm_wide.cuh"
