/* backend/cuda/linear_typed.cuh - what the GEMM families of sm_90a share to instantiate the lines
 * of their table (gemm.h) for one type. The including *.cu defines ROSE_T, the storage type, and
 * ROSE_TYPED(name), the name with the type's suffix. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_TYPED_CUH
#define ROSE_BACKEND_CUDA_LINEAR_TYPED_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/gemm.h"

template <int EPI> struct end_tag {
    static constexpr int value = EPI;
};

/* f(end_tag of the epilogue), if ENDS has it. */
template <unsigned ENDS, int EPI = 0, typename F>
static cudaError_t for_end(rose_cuda_epilogue epilogue, F f)
{
    if constexpr ((ENDS >> EPI & 1) != 0)
        if ((int)epilogue == EPI) return f(end_tag<EPI>());
    if constexpr (ENDS >> EPI > 1) return for_end<ENDS, EPI + 1>(epilogue, f);
    return cudaErrorInvalidValue;
}

/* f(end_tag) of each of ENDS until one fails. */
template <unsigned ENDS, int EPI = 0, typename F> static cudaError_t for_ends(F f)
{
    cudaError_t e = cudaSuccess;
    if constexpr ((ENDS >> EPI & 1) != 0) e = f(end_tag<EPI>());
    if constexpr (ENDS >> EPI > 1)
        if (e == cudaSuccess) e = for_ends<ENDS, EPI + 1>(f);
    return e;
}

static inline cudaError_t allow_shared(const void *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* The driver's function that makes tensor maps. Only if the device is hopper. */
static inline PFN_cuTensorMapEncodeTiled_v12000 encoder_of(const rose_cuda_device *d)
{
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(d->encode);
}

#endif
