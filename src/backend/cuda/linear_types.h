/* backend/cuda/linear_types.h - the matrix products of each storage type; linear.cu chooses. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_TYPES_H
#define ROSE_BACKEND_CUDA_LINEAR_TYPES_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t rose_cuda_linear_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool tiles);
cudaError_t rose_cuda_linear_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, bool tiles);
cudaError_t rose_cuda_linear_init_f16(void);
cudaError_t rose_cuda_linear_init_bf16(void);

#ifdef __cplusplus
}
#endif

#endif
