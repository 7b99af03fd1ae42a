/* backend/cuda/linear_types.h - the GEMM kernels of each storage type, by family. linear.cu chooses
 * among them.
 *
 * "Blocks on an SM" below is how many blocks of a kernel fit on one SM at the same time. "Residual
 * only" and "head only" name the one epilogue that a kernel supports: ROSE_CUDA_EPI_RESIDUAL or
 * ROSE_CUDA_EPI_LOGITS. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_TYPES_H
#define ROSE_BACKEND_CUDA_LINEAR_TYPES_H

#include <cudaTypedefs.h>
#include <string.h>

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t rose_cuda_linear_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool tiles);
cudaError_t rose_cuda_linear_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, bool tiles);
/* linear_normed.cuh: call only if rose_cuda_linear_norms says that the shape fits. */
cudaError_t rose_cuda_normed_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io);
cudaError_t rose_cuda_normed_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io);
/* linear_head.cuh: logits of up to 32 rows. The rows of a block are kept in shared memory: at most
 * 96 KiB, because the smallest supported GPU gives a block 99 KiB. k_pad is therefore at most 6144
 * with 8 rows, 3072 with 16 and 1536 with 32. */
enum { ROSE_CUDA_HEAD_ROWS = 32, ROSE_CUDA_HEAD_VALUES = 32 * 8 * ROSE_CUDA_CHUNK_K32 * 32 };
cudaError_t rose_cuda_head_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io);
cudaError_t rose_cuda_head_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io);
cudaError_t rose_cuda_linear_prepare_f16(const rose_cuda_device *d);
cudaError_t rose_cuda_linear_prepare_bf16(const rose_cuda_device *d);

/* linear_team.cuh: call only if the device is hopper, and k_pad is at most
 * ROSE_CUDA_TEAM_K. */
enum { ROSE_CUDA_TEAM_K = 4 * ROSE_CUDA_CHUNK_K32 * 32 };
typedef enum rose_cuda_team {
    ROSE_CUDA_TEAM_64, /* tiles of 64 outputs x 64 rows */
    ROSE_CUDA_TEAM_32  /* tiles of 64 outputs x 32 rows */
} rose_cuda_team;
cudaError_t rose_cuda_team_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_team kernel);
cudaError_t rose_cuda_team_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_team kernel);
cudaError_t rose_cuda_team_prepare_f16(void);
cudaError_t rose_cuda_team_prepare_bf16(void);

/* linear_wide.cuh and the files that include it: call only if the device is hopper and the
 * weights have `cores`. */
enum {
    /* Chunks that one block of a chain multiplies: with 48 outputs their sums take 96
     * registers. */
    ROSE_CUDA_CHAIN_CHUNKS = 4,
    /* Most values of k in a chain, which has 8 blocks. */
    ROSE_CUDA_CHAIN_K = 8 * ROSE_CUDA_CHAIN_CHUNKS * ROSE_CUDA_CHUNK_K32 * 32,
    ROSE_CUDA_PINGPONG_N = 192, /* linear_pingpong.cuh: outputs of a tile */
    ROSE_CUDA_PINGPONG_ROWS_N = 176
};
typedef enum rose_cuda_wide {
    ROSE_CUDA_WIDE_192,      /* tiles of 128 rows x 192 outputs; not the residual */
    ROSE_CUDA_WIDE_192_PAIR, /* residual only: pairs of blocks share weights */
    ROSE_CUDA_WIDE_160,      /* 128 x 160; residual only */
    ROSE_CUDA_WIDE_128,      /* 128 x 128; not the head */
    ROSE_CUDA_WIDE_96,       /* 128 x 96 */
    ROSE_CUDA_WIDE_64_96,    /* 64 x 96, two blocks on an SM; head only */
    ROSE_CUDA_WIDE_64_48,    /* 64 x 48, two blocks on an SM; head only */
    /* linear_once.cuh, not the head: rows x outputs of a tile. Two blocks on an SM; ALONE: one
     * block on an SM, with more pipeline stages. */
    ROSE_CUDA_ONCE_48, /* 64 x 48 */
    ROSE_CUDA_ONCE_48_ALONE,
    ROSE_CUDA_ONCE_64_ALONE, /* 64 x 64; residual only */
    ROSE_CUDA_ONCE_96,       /* 64 x 96 */
    ROSE_CUDA_ONCE_96_ALONE,
    ROSE_CUDA_ONCE_128_96,  /* one block on an SM */
    ROSE_CUDA_ONCE_128_128, /* one block on an SM; not the residual */
    /* linear_once.cuh, residual only, k_pad at most ROSE_CUDA_CHAIN_K: a cluster computes one tile
     * of 64 x 48, and each of its blocks a part of k. */
    ROSE_CUDA_CHAIN,
    ROSE_CUDA_CHAIN_ALONE,
    /* linear_pingpong.cuh, head only: tiles of 128 x ROSE_CUDA_PINGPONG_N, where two blocks share
     * weights; and 128 x ROSE_CUDA_PINGPONG_ROWS_N, where two blocks share rows. */
    ROSE_CUDA_PINGPONG,
    ROSE_CUDA_PINGPONG_ROWS
} rose_cuda_wide;
cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel);
cudaError_t rose_cuda_wide_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_wide kernel);
cudaError_t rose_cuda_wide_prepare_f16(void);
cudaError_t rose_cuda_wide_prepare_bf16(void);

/* The driver's function that makes tensor maps. Only if the device is hopper. */
static inline PFN_cuTensorMapEncodeTiled_v12000 encoder_of(const rose_cuda_device *d)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode;
    memcpy(&encode, &d->encode, sizeof encode);
    return encode;
}

#ifdef __cplusplus
}
#endif

#endif
