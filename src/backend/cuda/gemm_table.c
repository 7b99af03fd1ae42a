/* backend/cuda/gemm_table.c - the table of GEMM kernels (gemm.h), what each of them takes, and the
 * one function that runs a GEMM. */
#include <string.h>

#include "backend/cuda/gemm.h"

/* ---- the table: one line a kernel ---- */

#define BOTH(id)                                                                                   \
    {                                                                                              \
        rose_gemm_##id##_f16, rose_gemm_##id##_bf16                                                \
    }
#define BIT(end) (1u << ROSE_END_##end)
#define ENDS_ALL (BIT(ROWS) | BIT(RESIDUAL) | BIT(ACT) | BIT(GATED) | BIT(LOGITS))

/* TILES(rows and outputs of a tile, blocks on an SM, share) */
#define TILES(r, n, blocks, percent)                                                               \
    {                                                                                              \
        .name = "tiles-" #r "x" #n, .family = ROSE_GEMM_TILES, .tile_rows = r, .tile_n = n,        \
        .stages = 4, .cluster = 1, .split = 1, .blocks_per_sm = blocks, .share = percent,          \
        .ends = ENDS_ALL, .run = BOTH(tiles_##r##x##n)                                             \
    }
ROSE_GEMM_FN(tiles_64x64);
ROSE_GEMM_FN(tiles_128x128);

/* The first kernel takes every shape on every GPU. */
const rose_gemm_kernel rose_gemm_kernels[] = {
    TILES(64, 64, 4, 40),
    TILES(128, 128, 2, 50),
};
const uint32_t rose_gemm_n_kernels = sizeof rose_gemm_kernels / sizeof *rose_gemm_kernels;

const rose_gemm_kernel *rose_gemm_named(const char *name)
{
    for (uint32_t i = 0; i < rose_gemm_n_kernels; i++)
        if (strcmp(rose_gemm_kernels[i].name, name) == 0) return &rose_gemm_kernels[i];
    return NULL;
}

cudaError_t rose_gemm_prepare(const rose_cuda_device *d)
{
    return rose_gemm_prepare_tiles(d);
}

/* ---- what a kernel takes ---- */

bool rose_gemm_takes(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                     const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    if ((g->ends >> io->end & 1) == 0 || at->type == ROSE_CUDA_F32) return false;
    if (g->hopper && (!at->device->hopper || (at->without & ROSE_CUDA_WITHOUT_WIDE) != 0))
        return false;
    if (g->max_rows != 0 && io->rows > g->max_rows) return false;
    if (g->max_k != 0 && m->k_pad > g->max_k) return false;
    if ((io->end == ROSE_END_RESIDUAL) != (m->n_parts == ROSE_GEMM_PARTS)) return false;
    if (io->end == ROSE_END_GATED && !m->gated) return false;
    if (io->h != NULL) return true;
    /* No model has a norm before a GEMM of several parts. The head has its rows gathered. */
    return g->norms && m->n_parts == 1 && io->end != ROSE_END_LOGITS &&
           io->rows <= ROSE_GEMM_NORM_ROWS && m->k % 8 == 0 && m->k <= ROSE_GEMM_NORM_K &&
           (at->without & ROSE_CUDA_WITHOUT_OPS) == 0;
}

/* ---- run ---- */

cudaError_t rose_gemm_run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                          const rose_gemm_io *io)
{
    if (io->rows == 0) return cudaSuccess;
    if (at->type == ROSE_CUDA_F32)
        return io->h != NULL ? rose_gemm_f32_run(at, m, io) : cudaErrorInvalidValue;
    const rose_gemm_kernel *g = rose_gemm_choose(at, m, io);
    if (g == NULL) return cudaErrorInvalidValue;
    return g->run[at->type == ROSE_CUDA_BF16](at, m, io, g);
}
