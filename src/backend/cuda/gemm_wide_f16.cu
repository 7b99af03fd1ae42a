/* backend/cuda/gemm_wide_f16.cu - the GEMM kernels of gemm_wide.cuh for fp16. */
#define ROSE_T           __half
#define ROSE_TYPED(name) name##_f16
#include "backend/cuda/gemm_wide.cuh"

extern "C" cudaError_t rose_gemm_allow_wide_bf16(void);

cudaError_t rose_gemm_prepare_wide(const rose_cuda_device *d)
{
    if (!d->hopper) return cudaSuccess;
    const cudaError_t e = rose_gemm_allow_wide_f16();
    return e != cudaSuccess ? e : rose_gemm_allow_wide_bf16();
}
