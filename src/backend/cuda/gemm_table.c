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

/* Values of k that a unit of parts has: a part begins at a multiple of it. */
static uint32_t part_unit(uint32_t k, uint32_t head_dim)
{
    if (head_dim != 0 && head_dim % ROSE_GEMM_GROUP == 0) return head_dim;
    return k % 128 == 0 ? 128 : ROSE_GEMM_GROUP;
}

static uint32_t padded(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

void rose_cuda_matrix_shape(rose_cuda_matrix *m, uint32_t k, uint32_t n, uint32_t n_parts,
                            uint32_t head_dim, bool gated)
{
    const uint32_t unit = part_unit(k, head_dim);
    m->k = k;
    m->n = n;
    m->k_pad = padded(k, ROSE_CUDA_K_PAD);
    m->n_pad = padded(n, ROSE_CUDA_N_PAD);
    m->n_parts = n_parts;
    m->gated = gated;
    for (uint32_t i = 0; i <= ROSE_GEMM_PARTS; i++)
        m->cut[i] = i < n_parts ? unit * (i * (k / unit) / n_parts) : k;
}

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
    return g->norms && io->rows <= ROSE_GEMM_NORM_ROWS && m->k % 8 == 0 &&
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
