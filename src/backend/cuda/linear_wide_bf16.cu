/* backend/cuda/linear_wide_bf16.cu - the matrix products of linear_wide.cuh, linear_once.cuh,
 * linear_cluster.cuh, linear_stationary.cuh and linear_pingpong.cuh for bf16. */
#include "backend/cuda/linear_cluster.cuh"
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_pingpong.cuh"
#include "backend/cuda/linear_stationary.cuh"

cudaError_t rose_cuda_wide_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_wide kernel)
{
    if (kernel >= ROSE_CUDA_PINGPONG) return run_pingpong<__nv_bfloat16>(at, l, io, kernel);
    if (kernel >= ROSE_CUDA_STATIONARY) return run_stationary<__nv_bfloat16>(at, l, io);
    if (kernel >= ROSE_CUDA_CLUSTER_64_96) return run_cluster<__nv_bfloat16>(at, l, io, kernel);
    return kernel >= ROSE_CUDA_ONCE_48 ? run_once<__nv_bfloat16>(at, l, io, kernel)
                                       : run_wide<__nv_bfloat16>(at, l, io, kernel);
}

cudaError_t rose_cuda_wide_init_bf16(bool *there, rose_cuda_clusters clusters[ROSE_CUDA_N_CLUSTERS])
{
    cudaError_t e = init_wide<__nv_bfloat16>(there);
    if (e == cudaSuccess && *there) e = init_once<__nv_bfloat16>();
    if (e == cudaSuccess && *there) e = init_cluster<__nv_bfloat16>(clusters);
    if (e == cudaSuccess && *there) e = init_stationary<__nv_bfloat16>();
    return e == cudaSuccess && *there ? init_pingpong<__nv_bfloat16>() : e;
}
