/* backend/cuda/gemm_table.c - the table of GEMM kernels (gemm.h), what each of them takes, and the
 * one function that runs a GEMM. */
#include <string.h>

#include "backend/cuda/gemm.h"

/* ---- the table: one line a kernel ---- */

#define BOTH(id)                                                                                   \
    {                                                                                              \
        [ROSE_F16] = rose_gemm_##id##_f16, [ROSE_BF16] = rose_gemm_##id##_bf16                     \
    }
#define BIT(end) (1u << ROSE_END_##end)
#define ENDS_ONE (BIT(ROWS) | BIT(ACT) | BIT(GATED) | BIT(LOGITS)) /* of one part */
#define ENDS_ALL (ENDS_ONE | BIT(RESIDUAL))

/* The fields of a kernel whose blocks work alone. TILE(name, family, rows and outputs of a tile,
 * stages, blocks on an SM, share, ends) */
#define TILE(called, kind, r, n, ring, per_sm, percent, which)                                     \
    .name = called, .family = ROSE_GEMM_##kind, .tile_rows = r, .tile_n = n, .stages = ring,       \
    .blocks_per_sm = per_sm, .share = percent, .ends = which, .cluster = 1, .split = 1
/* WIDE(id, name, rows and outputs of a tile, stages, cluster, across, split, blocks on an SM,
 * share, ends) */
#define WIDE(id, called, r, n, ring, blocks, wide, parts, per_sm, percent, which)                  \
    {                                                                                              \
        .name = called, .family = ROSE_GEMM_WIDE, .tile_rows = r, .tile_n = n, .stages = ring,     \
        .cluster = blocks, .across = wide, .split = parts, .blocks_per_sm = per_sm,                \
        .share = percent, .hopper = true, .ends = which, .run = BOTH(wide_##id)                    \
    }
ROSE_GEMM_FN(tiles_64x64);
ROSE_GEMM_FN(tiles_128x128);
ROSE_GEMM_FN(rows);
ROSE_GEMM_FN(wide_128x192_x2);
ROSE_GEMM_FN(wide_128x192_rows);
ROSE_GEMM_FN(wide_128x128);
ROSE_GEMM_FN(wide_64x192);
ROSE_GEMM_FN(wide_64x96);
ROSE_GEMM_FN(wide_64x32);
ROSE_GEMM_FN(wide_sum_192_x2);
ROSE_GEMM_FN(wide_sum_128);
ROSE_GEMM_FN(wide_sum_96);
ROSE_GEMM_FN(wide_split_128x144);
ROSE_GEMM_FN(wide_split_128x96);
ROSE_GEMM_FN(wide_split_128);
ROSE_GEMM_FN(wide_split_64x144);
ROSE_GEMM_FN(wide_split_64x96);
ROSE_GEMM_FN(wide_split_32);

/* The first kernel takes every shape of 16-bit values on every GPU. */
const rose_gemm_kernel rose_gemm_kernels[] = {
    {TILE("tiles-64x64", TILES, 64, 64, 4, 4, 28, ENDS_ALL), .run = BOTH(tiles_64x64)},
    {TILE("tiles-128x128", TILES, 128, 128, 4, 2, 40, ENDS_ALL), .run = BOTH(tiles_128x128)},
    /* A block has several tiles at a time, each with a warp for every part. */
    {TILE("rows", ROWS, 32, 8, 6, 8, 9, ENDS_ALL), .norms = true, .max_rows = 32,
     .run = BOTH(rows)},
    /* Without tensor cores; the only one of its format. */
    {TILE("fp32", TILES, 32, 32, 1, 4, 1, ENDS_ALL), .run = {[ROSE_F32] = rose_gemm_f32_run}},
    WIDE(128x192_x2, "wide-128x192-x2", 128, 192, 5, 2, false, 1, 1, 83, ENDS_ONE),
    WIDE(128x192_rows, "wide-128x192-rows", 128, 192, 5, 2, true, 1, 1, 63, ENDS_ONE),
    WIDE(128x128, "wide-128x128", 128, 128, 6, 1, false, 1, 1, 88, ENDS_ONE),
    WIDE(64x192, "wide-64x192", 64, 192, 6, 1, false, 1, 1, 70, ENDS_ONE),
    WIDE(64x96, "wide-64x96", 64, 96, 10, 1, false, 1, 1, 51, ENDS_ONE),
    WIDE(64x32, "wide-64x32", 64, 32, 16, 1, false, 1, 1, 15, ENDS_ONE),
    WIDE(sum_192_x2, "wide-sum-192-x2", 128, 192, 5, 2, false, 1, 1, 90, BIT(RESIDUAL)),
    WIDE(sum_128, "wide-sum-128", 128, 128, 6, 2, true, 1, 1, 79, BIT(RESIDUAL)),
    WIDE(sum_96, "wide-sum-96", 128, 96, 7, 2, true, 1, 1, 85, BIT(RESIDUAL)),
    WIDE(split_128x144, "wide-split-128x144", 128, 144, 8, 1, false, 4, 1, 90, BIT(RESIDUAL)),
    WIDE(split_128x96, "wide-split-128x96", 128, 96, 10, 1, false, 4, 1, 80, BIT(RESIDUAL)),
    WIDE(split_128, "wide-split-128", 128, 128, 8, 1, false, 4, 1, 90, BIT(RESIDUAL)),
    WIDE(split_64x144, "wide-split-64x144", 64, 144, 10, 1, false, 4, 1, 60, BIT(RESIDUAL)),
    WIDE(split_64x96, "wide-split-64x96", 64, 96, 12, 1, false, 4, 1, 45, BIT(RESIDUAL)),
    WIDE(split_32, "wide-split-32", 64, 32, 7, 1, false, 4, 2, 13, BIT(RESIDUAL)),
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
    cudaError_t e = rose_gemm_prepare_tiles(d);
    if (e == cudaSuccess) e = rose_gemm_prepare_rows(d);
    return e == cudaSuccess ? rose_gemm_prepare_wide(d) : e;
}

/* ---- what a kernel takes ---- */

bool rose_gemm_takes(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                     const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    if ((g->ends >> io->end & 1) == 0 || g->run[m->format] == NULL) return false;
    /* Values that are no blocks multiply rows of their own type. */
    if (!rose_format_is_quant(m->format) && m->format != at->type) return false;
    if (g->hopper && (!at->device->hopper || (at->without & ROSE_CUDA_WITHOUT_WIDE) != 0))
        return false;
    if (g->max_rows != 0 && io->rows > g->max_rows) return false;
    if ((io->end == ROSE_END_RESIDUAL) != (m->n_parts == ROSE_GEMM_PARTS)) return false;
    if (io->end == ROSE_END_GATED && !m->gated) return false;
    if (io->h != NULL) return true;
    return g->norms && rose_gemm_can_norm(m, io) && (at->without & ROSE_CUDA_WITHOUT_OPS) == 0;
}

/* ---- run ---- */

cudaError_t rose_gemm_run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                          const rose_gemm_io *io)
{
    if (io->rows == 0) return cudaSuccess;
    const rose_gemm_kernel *g = rose_gemm_choose(at, m, io);
    return g != NULL ? g->run[m->format](at, m, io, g) : cudaErrorInvalidValue;
}
