/* backend/cuda/launch.cuh - the one function that launches kernels. It handles programmatic
 * dependence on the previous kernel, the preference for shared memory, and clusters. Also counts
 * how many clusters the GPU can run at once. */
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

/* Returns how many clusters of `peers` blocks of the kernel the GPU can run at once; 0 also if
 * the runtime does not say. */
template <typename... Parameters>
static uint32_t clusters_at_once(unsigned peers, void (*kernel)(Parameters...), unsigned threads,
                                 size_t shared)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t c = {};
    int n = 0;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = peers;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    c.gridDim = dim3(peers);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.attrs = &attribute;
    c.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, kernel, &c) == cudaSuccess) return (uint32_t)n;
    cudaGetLastError();
    return 0;
}

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_kernel(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                 dim3 grid, unsigned threads, size_t shared,
                                 const Arguments &...arguments)
{
    return launch_clusters(at, 1, kernel, grid, threads, shared, arguments...);
}

#endif
