/* backend/cuda/gemm_rows_bf16.cu - the GEMMs of gemm_rows.cuh for bf16. */
#include "backend/cuda/gemm_rows_run.cuh"

extern "C" cudaError_t rose_gemm_rows_bf16(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                           const rose_gemm_io *io, const rose_gemm_kernel *)
{
    return run_gemm_rows<__nv_bfloat16>(at, m, io);
}

extern "C" cudaError_t rose_gemm_prepare_rows_bf16(const rose_cuda_device *d)
{
    return prepare_rows<__nv_bfloat16>(d);
}
