/* backend/cuda/guard.c - the allocation guard of the checked build (base/allocguard.h) for the CUDA
 * runtime. A call that allocates or frees device memory, pinned memory, a graph or an event during
 * a step aborts. The linker sends these calls through this file (WRAP_FNS in the Makefile). */
#include "base/allocguard.h"

typedef int rose_cuda_guard_not_empty; /* ISO C wants at least one declaration in a file */

#ifdef ROSE_ALLOC_GUARD

#include <cuda_runtime_api.h>

#define GUARDED(function, parameters, arguments)                                                   \
    cudaError_t __real_##function parameters;                                                      \
    cudaError_t __wrap_##function parameters;                                                      \
    cudaError_t __wrap_##function parameters                                                       \
    {                                                                                              \
        rose_alloc_guard_check(#function);                                                         \
        return __real_##function arguments;                                                        \
    }

GUARDED(cudaMalloc, (void **p, size_t n), (p, n))
GUARDED(cudaFree, (void *p), (p))
GUARDED(cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))
GUARDED(cudaFreeHost, (void *p), (p))
GUARDED(cudaGraphInstantiate, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
        (exec, graph, flags))
GUARDED(cudaGraphExecDestroy, (cudaGraphExec_t exec), (exec))
GUARDED(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))

#endif
