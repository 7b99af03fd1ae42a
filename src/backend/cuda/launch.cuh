/* backend/cuda/launch.cuh - one way to launch a kernel: on a stream, with or without programmatic
 * dependence on the kernel before it. */
#ifndef ROSE_BACKEND_CUDA_LAUNCH_CUH
#define ROSE_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/kernels.h"

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_kernel(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                 dim3 grid, unsigned threads, size_t shared,
                                 const Arguments &...arguments)
{
    cudaLaunchAttribute dependent;
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = at->stream;
    c.attrs = &dependent;
    c.numAttrs = at->dependent ? 1 : 0;
    return cudaLaunchKernelEx(&c, kernel, arguments...);
}

#endif
