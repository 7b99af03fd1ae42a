/* tests/backend/emulated/backend/cuda/launch.cuh - in place of the one of src: a launch runs on
 * machine.h and has ended when it returns, or is recorded in a capture (runtime.cc). */
#ifndef ROSE_BACKEND_CUDA_LAUNCH_CUH
#define ROSE_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/kernels.h"
#include "machine.h"

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_clusters(const rose_cuda_launch *, unsigned peers,
                                   void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                                   size_t shared, const Arguments &...arguments)
{
    if (shared > 227u << 10 || grid.x % peers != 0 || peers > 8) return cudaErrorInvalidValue;
    if (grid.x == 0 || grid.y > 65535 || threads > 1024) return cudaErrorInvalidValue;
    machine::g_kernel = reinterpret_cast<const void *>(kernel);
    const auto run = [=] {
        machine::launch l;
        l.grid = grid;
        l.threads = threads;
        l.shared = (uint32_t)shared;
        l.kernel = [&] { kernel(arguments...); };
        return machine::run(l, peers);
    };
    if (machine::g_recorded != nullptr) {
        machine::g_recorded->push_back(run);
        return cudaSuccess;
    }
    return run() ? cudaSuccess : cudaErrorLaunchTimeout;
}

template <typename... Parameters, typename... Arguments>
static cudaError_t launch_kernel(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                 dim3 grid, unsigned threads, size_t shared,
                                 const Arguments &...arguments)
{
    return launch_clusters(at, 1, kernel, grid, threads, shared, arguments...);
}

/* Blocks that run at the same time are a cluster here. */
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_together(const rose_cuda_launch *at, void (*kernel)(Parameters...),
                                   dim3 grid, unsigned threads, size_t shared,
                                   const Arguments &...arguments)
{
    return launch_clusters(at, grid.x, kernel, grid, threads, shared, arguments...);
}

#endif
