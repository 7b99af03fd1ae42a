/* backend/cuda/linear_wide_f16.cu - the matrix products of linear_wide.cuh, linear_once.cuh,
 * linear_cluster.cuh, linear_stationary.cuh and linear_pingpong.cuh for fp16. */
#include "backend/cuda/linear_cluster.cuh"
#include "backend/cuda/linear_once.cuh"
#include "backend/cuda/linear_pingpong.cuh"
#include "backend/cuda/linear_stationary.cuh"

cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel)
{
    if (kernel >= ROSE_CUDA_PINGPONG) return run_pingpong<__half>(at, l, io, kernel);
    if (kernel >= ROSE_CUDA_STATIONARY) return run_stationary<__half>(at, l, io);
    if (kernel >= ROSE_CUDA_CLUSTER_64_96) return run_cluster<__half>(at, l, io, kernel);
    return kernel >= ROSE_CUDA_ONCE_48 ? run_once<__half>(at, l, io, kernel)
                                       : run_wide<__half>(at, l, io, kernel);
}

cudaError_t rose_cuda_wide_init_f16(bool *there, rose_cuda_clusters clusters[ROSE_CUDA_N_CLUSTERS])
{
    cudaError_t e = init_wide<__half>(there);
    if (e == cudaSuccess && *there) e = init_once<__half>();
    if (e == cudaSuccess && *there) e = init_cluster<__half>(clusters);
    if (e == cudaSuccess && *there) e = init_stationary<__half>();
    return e == cudaSuccess && *there ? init_pingpong<__half>() : e;
}
