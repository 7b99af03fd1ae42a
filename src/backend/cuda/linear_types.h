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
/* linear_head.cuh: logits of up to 32 rows. Of 8, 16 or 32 rows so many values at most, which is
 * 96 KiB, where the least chip gives a block 99: k_pad of 6144, 3072, 1536. */
enum { ROSE_CUDA_HEAD_ROWS = 32, ROSE_CUDA_HEAD_VALUES = 32 * 8 * ROSE_CUDA_CHUNK_K32 * 32 };
cudaError_t rose_cuda_head_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io);
cudaError_t rose_cuda_head_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io);
cudaError_t rose_cuda_linear_init_f16(void);
cudaError_t rose_cuda_linear_init_bf16(void);

/* linear_team.cuh: only where rose_cuda_team_init_* said that the kernels are there, and k_pad is
 * ROSE_CUDA_TEAM_K at most. */
enum { ROSE_CUDA_TEAM_K = 4 * ROSE_CUDA_CHUNK_K32 * 32 };
typedef enum rose_cuda_team {
    ROSE_CUDA_TEAM_64, /* tiles of 64 outputs x 64 rows */
    ROSE_CUDA_TEAM_32  /* 64 x 32 */
} rose_cuda_team;
cudaError_t rose_cuda_team_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_team kernel);
cudaError_t rose_cuda_team_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_team kernel);
cudaError_t rose_cuda_team_init_f16(bool *there);
cudaError_t rose_cuda_team_init_bf16(bool *there);

/* linear_wide.cuh: likewise, and only where the weights have their cores. */
enum {
    ROSE_CUDA_CHAIN_CHUNKS =
        4, /* of a block of a chain: with 48 outputs their sums are 96 registers */
    ROSE_CUDA_CHAIN_K = 8 * ROSE_CUDA_CHAIN_CHUNKS * ROSE_CUDA_CHUNK_K32 * 32, /* 8 blocks */
    /* Of k, and outputs: their weights fill the shared memory; rows of a tile. */
    ROSE_CUDA_STATIONARY_CHUNKS = 4,
    ROSE_CUDA_STATIONARY_N = 96,
    ROSE_CUDA_STATIONARY_M = 64,
    ROSE_CUDA_PINGPONG_N = 192, /* outputs of a tile */
    ROSE_CUDA_PINGPONG_ROWS_N = 176
};
typedef enum rose_cuda_wide {
    ROSE_CUDA_WIDE_192,      /* tiles of 128 rows x 192 outputs; not where the residual is added */
    ROSE_CUDA_WIDE_192_PAIR, /* by pairs of blocks that share weights; there alone */
    ROSE_CUDA_WIDE_160,      /* 128 x 160, where the residual is added */
    ROSE_CUDA_WIDE_128,      /* 128 x 128; no head */
    ROSE_CUDA_WIDE_96,       /* 128 x 96 */
    ROSE_CUDA_WIDE_64_96,    /* 64 x 96, two blocks a multiprocessor; the head alone */
    ROSE_CUDA_WIDE_64_48,    /* 64 x 48, likewise */
    /* linear_once.cuh, no head: rows x outputs of a tile. Two blocks a multiprocessor; alone: one,
     * with more stages. */
    ROSE_CUDA_ONCE_48, /* 64 x 48 */
    ROSE_CUDA_ONCE_48_ALONE,
    ROSE_CUDA_ONCE_64_ALONE, /* 64 x 64; residual alone */
    ROSE_CUDA_ONCE_96,       /* 64 x 96 */
    ROSE_CUDA_ONCE_96_ALONE,
    ROSE_CUDA_ONCE_128_96,  /* one block a multiprocessor */
    ROSE_CUDA_ONCE_128_128, /* likewise; no residual */
    /* Residual alone, k_pad of ROSE_CUDA_CHAIN_K at most: clusters for tiles of 64 x 48 */
    ROSE_CUDA_CHAIN,
    ROSE_CUDA_CHAIN_ALONE,
    /* linear_cluster.cuh, residual alone: rows x outputs of a tile, tiles of a cluster. */
    ROSE_CUDA_CLUSTER_64_96,      /* 64 x 96, 2 x 2 */
    ROSE_CUDA_CLUSTER_64_96_PAIR, /* 64 x 96, 1 x 2 */
    ROSE_CUDA_CLUSTER_64_128,     /* 64 x 128, 2 x 2 */
    ROSE_CUDA_CLUSTER_128_80,     /* 128 x 80, 2 x 2 */
    ROSE_CUDA_STATIONARY, /* linear_stationary.cuh, k_pad of ROSE_CUDA_STATIONARY_CHUNKS alone */
    /* linear_pingpong.cuh, the head alone: 128 x ROSE_CUDA_PINGPONG_N by pairs of blocks that share
     * weights; 128 x ROSE_CUDA_PINGPONG_ROWS_N by pairs that share rows. */
    ROSE_CUDA_PINGPONG,
    ROSE_CUDA_PINGPONG_ROWS
} rose_cuda_wide;
cudaError_t rose_cuda_wide_f16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io, rose_cuda_wide kernel);
cudaError_t rose_cuda_wide_bf16(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, rose_cuda_wide kernel);
/* Whether tiles of ROSE_CUDA_WIDE_192_PAIR to which the residual is added may be shared out
 * (wide_walk.h). */
static inline bool rose_cuda_wide_shares(const rose_cuda_launch *at)
{
    return at->sums != NULL && (at->without & ROSE_CUDA_WITHOUT_STREAM_K) == 0;
}
/* Of a kernel of linear_cluster.cuh: rows and outputs of a whole cluster, and how many of them are
 * on the chip at once (0: it takes none). */
typedef struct rose_cuda_clusters {
    uint32_t rows, outputs, at_once;
} rose_cuda_clusters;
enum { ROSE_CUDA_N_CLUSTERS = ROSE_CUDA_CLUSTER_128_80 - ROSE_CUDA_CLUSTER_64_96 + 1 };
/* clusters: from ROSE_CUDA_CLUSTER_64_96 on. */
cudaError_t rose_cuda_wide_init_f16(bool *there, rose_cuda_clusters clusters[ROSE_CUDA_N_CLUSTERS]);
cudaError_t rose_cuda_wide_init_bf16(bool *there,
                                     rose_cuda_clusters clusters[ROSE_CUDA_N_CLUSTERS]);

#ifdef __cplusplus
}
#endif

#endif
