/* backend/cuda/launch.cuh - the one function that launches kernels. It handles programmatic
 * dependence on the previous kernel, the preference for shared memory, and clusters. */
#ifndef ROSE_BACKEND_CUDA_LAUNCH_CUH
#define ROSE_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/kernels.h"

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_clusters(const rose_cuda_launch *at, unsigned peers,
                                   void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                                   size_t shared, const Arguments &...arguments)
{
    cudaLaunchAttribute attributes[3];
    unsigned n = 0;
    if (peers > 1) {
        attributes[n].id = cudaLaunchAttributeClusterDimension;
        attributes[n].val.clusterDim.x = peers;
        attributes[n].val.clusterDim.y = attributes[n].val.clusterDim.z = 1;
        n++;
    }
    if (at->dependent) {
        attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (at->shared) {
        attributes[n].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        attributes[n++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    }
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = at->stream;
    c.attrs = attributes;
    c.numAttrs = n;
    return cudaLaunchKernelEx(&c, kernel, arguments...);
}

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_kernel(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                 dim3 grid, unsigned threads, size_t shared,
                                 const Arguments &...arguments)
{
    return launch_clusters(at, 1, kernel, grid, threads, shared, arguments...);
}

/* All blocks are on the GPU at the same time, or the launch fails. It does not overlap the kernel
 * before it. */
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_together(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                   dim3 grid, unsigned threads, size_t shared,
                                   const Arguments &...arguments)
{
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = at->stream;
    c.attrs = &attribute;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, arguments...);
}

#endif
