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

/* linear_hopper.cuh: only where rose_cuda_hopper_init_* said that the kernels are there. */
typedef enum rose_cuda_hopper {
    ROSE_CUDA_HOPPER_STREAM,    /* tiles of 128 outputs x 128 rows */
    ROSE_CUDA_HOPPER_STREAM_64, /* 128 x 64 */
    ROSE_CUDA_HOPPER_SPLIT,     /* 64 x 64, a cluster a tile */
    ROSE_CUDA_HOPPER_SPLIT_32   /* 64 x 32 */
} rose_cuda_hopper;
cudaError_t rose_cuda_hopper_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, rose_cuda_hopper kernel);
cudaError_t rose_cuda_hopper_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, rose_cuda_hopper kernel);
cudaError_t rose_cuda_hopper_init_f16(bool *there);
cudaError_t rose_cuda_hopper_init_bf16(bool *there);

#ifdef __cplusplus
}
#endif

#endif
