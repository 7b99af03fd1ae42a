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
/* linear_normed.cuh: where rose_cuda_linear_norms. */
cudaError_t rose_cuda_normed_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io);
cudaError_t rose_cuda_normed_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io);
cudaError_t rose_cuda_linear_init_f16(void);
cudaError_t rose_cuda_linear_init_bf16(void);

/* linear_hopper.cuh: only where rose_cuda_hopper_init_* said that the kernels are there. */
typedef enum rose_cuda_hopper {
    ROSE_CUDA_HOPPER_STREAM,     /* tiles of 128 outputs x 128 rows */
    ROSE_CUDA_HOPPER_STREAM_64,  /* 128 x 64 */
    ROSE_CUDA_HOPPER_SPLIT,      /* 64 x 64, a cluster a tile */
    ROSE_CUDA_HOPPER_SPLIT_32,   /* 64 x 32 */
    ROSE_CUDA_HOPPER_ORDERED,    /* STREAM, tiles in the order of wide_walk.h */
    ROSE_CUDA_HOPPER_ORDERED_64, /* STREAM_64, likewise */
    ROSE_CUDA_HOPPER_SPLIT_8,    /* SPLIT by clusters of up to 8 blocks */
    ROSE_CUDA_HOPPER_TEAM,       /* 64 x 64, a warpgroup a chunk */
    ROSE_CUDA_HOPPER_TEAM_32,    /* 64 x 32 */
    ROSE_CUDA_HOPPER_HEAD        /* the head of up to 32 rows as one stream (linear_head.cuh) */
} rose_cuda_hopper;
cudaError_t rose_cuda_hopper_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, rose_cuda_hopper kernel);
cudaError_t rose_cuda_hopper_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, rose_cuda_hopper kernel);
cudaError_t rose_cuda_hopper_init_f16(bool *there);
cudaError_t rose_cuda_hopper_init_bf16(bool *there);

/* linear_wide.cuh: likewise, and only where the weights have their cores. */
typedef enum rose_cuda_wide {
    ROSE_CUDA_WIDE_192,   /* tiles of 128 rows x 192 outputs */
    ROSE_CUDA_WIDE_PAIR,  /* the same, two blocks share weights */
    ROSE_CUDA_WIDE_ADD,   /* the same, the residual added to by the L2: subnormals become zeros */
    ROSE_CUDA_WIDE_96,    /* 128 x 96 */
    ROSE_CUDA_WIDE_64_96, /* 64 x 96, two blocks a multiprocessor */
    ROSE_CUDA_WIDE_64_48  /* 64 x 48, likewise */
} rose_cuda_wide;
cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel);
cudaError_t rose_cuda_wide_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_wide kernel);
cudaError_t rose_cuda_wide_init_f16(bool *there);
cudaError_t rose_cuda_wide_init_bf16(bool *there);

#ifdef __cplusplus
}
#endif

#endif
