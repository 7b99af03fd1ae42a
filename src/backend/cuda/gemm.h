/* backend/cuda/gemm.h - the table of GEMM kernels: one row describes one kernel. Names, limits, the
 * choice by cost, forced kernels, benchmarks and tests all come from it. To add a kernel, add a
 * line to a list below, and to its family's file (linear_*.cuh) what its template does not have
 * yet.
 *
 * Lines: M(family, id, name, rows and outputs of a tile, warpgroups that multiply, stages of the
 * ring, blocks on an SM, tiles of a cluster in rows and in outputs, share, share of the head,
 * epilogues). The shares are the part of the peak of the tensor cores, in %, that agrees with what
 * was measured for layers and for the head (GPT-2, H100, 2026-11-23); 0: the cost of a kernel is
 * not asked.
 *
 * Every kernel gives the same bits (docs/NUMERICS.md), so the choice is a matter of speed. */
#ifndef ROSE_BACKEND_CUDA_GEMM_H
#define ROSE_BACKEND_CUDA_GEMM_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets of epilogues. */
enum {
    ROSE_ENDS_QKV = 1 << ROSE_CUDA_EPI_QKV,
    ROSE_ENDS_RESIDUAL = 1 << ROSE_CUDA_EPI_RESIDUAL,
    ROSE_ENDS_ACT = 1 << ROSE_CUDA_EPI_ACT,
    ROSE_ENDS_LOGITS = 1 << ROSE_CUDA_EPI_LOGITS,
    ROSE_ENDS_STORE = ROSE_ENDS_QKV | ROSE_ENDS_ACT, /* what replaces its output */
    ROSE_ENDS_LAYER = ROSE_ENDS_STORE | ROSE_ENDS_RESIDUAL,
    ROSE_ENDS_ALL = ROSE_ENDS_LAYER | ROSE_ENDS_LOGITS
};

/* linear.cuh (mma.sync): two kernels for every supported GPU. Each chooses its tile at launch. */
#define ROSE_MMA_KERNELS(M)                                                                        \
    M(mma, rows, "rows", 0, 0, 0, 0, 0, 1, 1, 0, 0, ROSE_ENDS_LAYER)                               \
    M(mma, tiles, "tiles", 0, 0, 0, 4, 0, 1, 1, 0, 0, ROSE_ENDS_ALL)

/* linear_head.cuh (mma.sync): the head of few rows on every GPU. */
#define ROSE_HEAD_KERNELS(M) M(head, head, "head", 0, 16, 0, 0, 3, 1, 1, 0, 0, ROSE_ENDS_LOGITS)

/* linear_team.cuh: GEMMs of 33 to 128 rows with a short k (ROSE_CUDA_TEAM_K). */
#define ROSE_TEAM_KERNELS(M)                                                                       \
    M(team, team_64, "team", 64, 64, 4, 1, 1, 1, 1, 0, 0, ROSE_ENDS_LAYER)                         \
    M(team, team_32, "team-32", 32, 64, 4, 1, 1, 1, 1, 0, 0, ROSE_ENDS_LAYER)

/* linear_wide.cuh: a block takes one tile after the other. */
#define ROSE_WIDE_KERNELS(M)                                                                       \
    M(wide, wide_192, "wide-192", 128, 192, 2, 5, 1, 1, 1, 85, 87,                                 \
      ROSE_ENDS_STORE | ROSE_ENDS_LOGITS)                                                          \
    M(wide, wide_192_pair, "wide-192-pair", 128, 192, 2, 5, 1, 2, 1, 85, 0, ROSE_ENDS_RESIDUAL)    \
    M(wide, wide_96, "wide-96", 128, 96, 2, 7, 1, 1, 1, 68, 68, ROSE_ENDS_ALL)                     \
    M(wide, wide_160, "wide-160", 128, 160, 2, 5, 1, 1, 1, 78, 0, ROSE_ENDS_RESIDUAL)              \
    M(wide, wide_128, "wide-128", 128, 128, 2, 6, 1, 1, 1, 74, 0, ROSE_ENDS_LAYER)                 \
    M(wide, wide_64_96, "wide-64-96", 64, 96, 1, 5, 2, 1, 1, 0, 56, ROSE_ENDS_LOGITS)              \
    M(wide, wide_64_48, "wide-64-48", 64, 48, 1, 7, 2, 1, 1, 0, 42, ROSE_ENDS_LOGITS)

/* linear_once.cuh: each thread block computes one tile. The kernels named `alone` run one block per
 * SM and use more stages. */
#define ROSE_ONCE_KERNELS(M)                                                                       \
    M(once, once_96, "once-96", 64, 96, 1, 5, 2, 1, 1, 56, 0, ROSE_ENDS_LAYER)                     \
    M(once, once_48, "once-48", 64, 48, 1, 7, 2, 1, 1, 42, 0, ROSE_ENDS_LAYER)                     \
    M(once, once_48_alone, "once-48-alone", 64, 48, 1, 12, 1, 1, 1, 0, 0, ROSE_ENDS_LAYER)         \
    M(once, once_64_alone, "once-64-alone", 64, 64, 1, 13, 1, 1, 1, 0, 0, ROSE_ENDS_RESIDUAL)      \
    M(once, once_96_alone, "once-96-alone", 64, 96, 1, 10, 1, 1, 1, 0, 0, ROSE_ENDS_LAYER)         \
    M(once, once_128_96, "once-128-96", 128, 96, 2, 7, 1, 1, 1, 0, 0, ROSE_ENDS_LAYER)             \
    M(once, once_128_128, "once-128-128", 128, 128, 2, 7, 1, 1, 1, 0, 0, ROSE_ENDS_STORE)

/* linear_once.cuh: a cluster computes one tile. Each of its blocks multiplies one part of k. */
#define ROSE_CHAIN_KERNELS(M)                                                                      \
    M(chain, chain, "chain", 64, 48, 1, 7, 2, 1, 1, 0, 0, ROSE_ENDS_RESIDUAL)                      \
    M(chain, chain_alone, "chain-alone", 64, 48, 1, 12, 1, 1, 1, 0, 0, ROSE_ENDS_RESIDUAL)

/* linear_pingpong.cuh: a cluster of two blocks shares the weights if its tiles are neighbours in
 * the row dimension. It shares the rows if its tiles are neighbours in the output dimension. */
#define ROSE_PINGPONG_KERNELS(M)                                                                   \
    M(pingpong, pingpong, "pingpong", 128, 192, 2, 5, 1, 2, 1, 0, 95, ROSE_ENDS_LOGITS)            \
    M(pingpong, pingpong_rows, "pingpong-rows", 128, 176, 2, 5, 1, 1, 2, 0, 92, ROSE_ENDS_LOGITS)

/* All kernels. If several kernels have the same cost, the first one in this list is chosen. */
#define ROSE_GEMM_KERNELS(M)                                                                       \
    ROSE_MMA_KERNELS(M)                                                                            \
    ROSE_HEAD_KERNELS(M)                                                                           \
    ROSE_TEAM_KERNELS(M)                                                                           \
    ROSE_WIDE_KERNELS(M)                                                                           \
    ROSE_ONCE_KERNELS(M)                                                                           \
    ROSE_CHAIN_KERNELS(M)                                                                          \
    ROSE_PINGPONG_KERNELS(M)
#define ROSE_GEMM_FAMILIES(F) F(mma) F(head) F(team) F(wide) F(once) F(chain) F(pingpong)

enum {
    /* linear_head.cuh keeps the rows of a block in shared memory: at most 96 KiB, because the
     * smallest supported GPU gives a block 99 KiB. k_pad is therefore at most 6144 with 8 rows,
     * 3072 with 16 and 1536 with 32. */
    ROSE_CUDA_HEAD_ROWS = 32,
    ROSE_CUDA_HEAD_VALUES = 32 * 8 * ROSE_CUDA_CHUNK_K32 * 32,
    ROSE_CUDA_TEAM_K = 4 * ROSE_CUDA_CHUNK_K32 * 32, /* longest k of linear_team.cuh */
    /* Chunks of k that one block of a chain multiplies. With 48 outputs the accumulators of four
     * chunks take 96 registers. */
    ROSE_CUDA_CHAIN_CHUNKS = 4,
    /* Longest k of a chain, which has at most 8 blocks. */
    ROSE_CUDA_CHAIN_K = 8 * ROSE_CUDA_CHAIN_CHUNKS * ROSE_CUDA_CHUNK_K32 * 32
};

typedef cudaError_t rose_gemm_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                  const rose_cuda_io *io);

struct rose_cuda_gemm {
    const char *name;
    uint16_t tile_rows, tile_outputs; /* 0: the kernel chooses */
    uint8_t groups, stages;           /* warpgroups that multiply; stages of the ring */
    uint8_t blocks;                   /* on an SM */
    uint8_t high, across;             /* tiles of a cluster, in rows and in outputs */
    /* Percent of peak speed that the kernel reaches, in the layers and in the head. The estimate of
     * its time uses them. 0: the estimate never chooses the kernel. */
    uint8_t share, share_head;
    bool hopper; /* only sm_90a */
    bool cores;  /* needs the second copy of the weights, rose_cuda_linear.cores */
    uint8_t ends;
    uint32_t max_k;        /* longest k_pad; 0: any */
    uint32_t max_rows;     /* 0: any */
    uint32_t max_values;   /* k_pad times rows, rounded up to 8, 16 or 32; 0: any */
    uint32_t head_unit;    /* QKV: head_dim must be a multiple of this; 0: any */
    uint32_t without;      /* bits of rose_cuda_without that leave the kernel out */
    rose_gemm_run *run[2]; /* f16, bf16 */
};

extern const rose_cuda_gemm rose_cuda_gemms[];
extern const uint32_t rose_cuda_n_gemms;

/* Whether a kernel supports the shape, the epilogue and the GPU. */
bool rose_cuda_gemm_takes(const rose_cuda_gemm *g, const rose_cuda_launch *at,
                          const rose_cuda_linear *l, const rose_cuda_io *io);

/* The functions that the table points at, and those that set the kernels' limits of shared memory,
 * for each type: rose_gemm_wide_192_f16, rose_prepare_wide_f16, ... */
#define ROSE_GEMM_RUN(family, id, ...) rose_gemm_run rose_gemm_##id##_f16, rose_gemm_##id##_bf16;
#define ROSE_GEMM_PREPARE(family)                                                                  \
    cudaError_t rose_prepare_##family##_f16(const rose_cuda_device *d);                            \
    cudaError_t rose_prepare_##family##_bf16(const rose_cuda_device *d);
ROSE_GEMM_KERNELS(ROSE_GEMM_RUN)
ROSE_GEMM_FAMILIES(ROSE_GEMM_PREPARE)
#undef ROSE_GEMM_PREPARE
#undef ROSE_GEMM_RUN

/* linear_normed.cuh: call only if rose_cuda_linear_norms says that the shape fits. */
rose_gemm_run rose_cuda_normed_f16, rose_cuda_normed_bf16;

#ifdef __cplusplus
}
#endif

#endif
