/* backend/cuda/linear_bf16.cu - the GEMM kernels of linear.cuh, linear_normed.cuh and
 * linear_head.cuh for bf16. */
#include "backend/cuda/linear_head.cuh"
#include "backend/cuda/linear_normed.cuh"

cudaError_t rose_gemm_rows_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io)
{
    return run_rows<__nv_bfloat16>(at, l, io);
}

cudaError_t rose_gemm_tiles_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    return run_tiles<__nv_bfloat16>(at, l, io);
}

cudaError_t rose_gemm_head_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io)
{
    return run_head<__nv_bfloat16>(at, l, io);
}

cudaError_t rose_prepare_mma_bf16(const rose_cuda_device *d)
{
    return prepare_linear<__nv_bfloat16>(d);
}

cudaError_t rose_prepare_head_bf16(const rose_cuda_device *)
{
    return prepare_head<__nv_bfloat16>();
}

cudaError_t rose_cuda_normed_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io)
{
    return run_normed<__nv_bfloat16>(at, l, io);
}
