/* backend/cuda/linear_f16.cu - the GEMM kernels of linear.cuh, linear_normed.cuh and
 * linear_head.cuh for fp16. */
#include "backend/cuda/linear_head.cuh"
#include "backend/cuda/linear_normed.cuh"

cudaError_t rose_gemm_rows_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    return run_rows<__half>(at, l, io);
}

cudaError_t rose_gemm_tiles_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io)
{
    return run_tiles<__half>(at, l, io);
}

cudaError_t rose_gemm_head_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    return run_head<__half>(at, l, io);
}

cudaError_t rose_prepare_mma_f16(const rose_cuda_device *d)
{
    return prepare_linear<__half>(d);
}

cudaError_t rose_prepare_head_f16(const rose_cuda_device *)
{
    return prepare_head<__half>();
}

cudaError_t rose_cuda_normed_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    return run_normed<__half>(at, l, io);
}
