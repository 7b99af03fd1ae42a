/* backend/cuda/gemm_rows_f16.cu - the GEMMs of gemm_rows.cuh for fp16. */
#include "backend/cuda/gemm_rows_run.cuh"

extern "C" cudaError_t rose_gemm_rows_f16(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                          const rose_gemm_io *io, const rose_gemm_kernel *)
{
    return run_gemm_rows<__half>(at, m, io);
}

extern "C" cudaError_t rose_gemm_prepare_rows_bf16(const rose_cuda_device *d);

extern "C" cudaError_t rose_gemm_prepare_rows(const rose_cuda_device *d)
{
    cudaError_t e = prepare_rows<__half>(d);
    if (e == cudaSuccess) e = rose_gemm_prepare_rows_bf16(d);
    return e == cudaSuccess ? rose_cuda_norm_prepare() : e;
}
