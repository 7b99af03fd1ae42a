/* backend/cuda/gemm_choose.c - the shape of a matrix, and the choice of a GEMM kernel for it. All
 * kernels give the same bits, so the choice decides the speed alone.
 *
 * A forced kernel comes first, then the one that the tuner measured, then the one with the lowest
 * estimate. The estimate comes from four times: reading the weights, moving rows and weights from
 * L2 to the SMs, the products, and the latency of the chains of products. The longest counts. */
#include <stdlib.h>

#include "backend/cuda/gemm.h"

/* ---- the shape ---- */

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

/* ---- the cost model ---- */

#define READ_SHARE   0.9  /* of the memory's bandwidth that a GEMM reaches */
#define L2_BYTES     28.0 /* bytes that an SM gets from L2 in a cycle */
#define GROUP_CYCLES 24.0 /* from a product of a chain to the next one that depends on it */
#define START_US     0.7  /* until a large tile has its first operands, and its end */
#define LAUNCH_US    2.0  /* also the time of a norm kernel of a few rows */

static uint32_t over(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Floating-point operations of the tensor cores of an SM in a cycle, with fp32 sums. */
static double peak(const rose_cuda_device *d)
{
    if (d->cc >= 100) return 8192;
    if (d->cc >= 90) return 4096;
    return d->cc == 80 ? 2048 : 1024; /* 8.6 and 8.9 have half the tensor cores of 8.0 */
}

/* The chains of a tile that run at the same time, each over its part of k. */
static uint32_t chains(const rose_gemm_kernel *g, const rose_cuda_matrix *m)
{
    return g->family == ROSE_GEMM_ROWS ? m->n_parts : g->split;
}

/* Rows of a tile. The family `rows` has kernels of 8, 16 and 32 rows. */
static uint32_t rows_of(const rose_gemm_kernel *g, const rose_gemm_io *io)
{
    if (g->family != ROSE_GEMM_ROWS || io->rows > 16) return g->tile_rows;
    return io->rows > 8 ? 16 : 8;
}

/* Bytes that the SM with the most tiles gets from L2: rows and weights of its tiles, and outputs.
 * The blocks of `rows` read their rows once; others read them for every tile. */
static double moved(const rose_gemm_kernel *g, const rose_cuda_matrix *m, const rose_gemm_io *io,
                    double turns, double busy)
{
    const double times = g->family == ROSE_GEMM_ROWS ? 1 : turns;
    const double values = times * rows_of(g, io) + turns * g->tile_n / (double)g->cluster;
    return 2.0 * m->k_pad * values / g->split + 4.0 * io->rows * m->n / busy;
}

/* Cycles of the products of one of `turns` tiles. Fewer blocks than an SM can have keep its tensor
 * cores less busy. */
static double tile_cycles(const rose_gemm_kernel *g, const rose_cuda_device *d,
                          const rose_cuda_matrix *m, const rose_gemm_io *io, uint32_t turns)
{
    const double full = 1.5 * turns / g->blocks_per_sm, share = g->share / 100.0;
    const double reached = peak(d) * share * (full < 1 ? full : 1);
    return 2.0 * rows_of(g, io) * g->tile_n * m->k_pad / g->split / reached;
}

double rose_gemm_cost(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                      const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    const rose_cuda_device *d = at->device;
    /* A cluster computes all its tiles, also those that have no rows or outputs. */
    const uint32_t high = g->across ? 1 : g->cluster, wide = g->across ? g->cluster : 1;
    const uint32_t tiles =
        over(io->rows, g->tile_rows * high) * over(m->n, g->tile_n * wide) * g->cluster;
    const uint32_t blocks = tiles * g->split;
    const uint32_t turns = over(blocks, d->sms); /* tiles of the SM that has the most */
    const double sms = d->sms, busy = blocks < d->sms ? blocks : sms;
    /* Half of the SMs are enough to use all of the memory's bandwidth. */
    const double bandwidth = d->bytes_us * READ_SHARE * (2 * busy < sms ? 2 * busy / sms : 1);
    const double products = turns * tile_cycles(g, d, m, io, turns);
    const double chain = (double)m->k_pad / ROSE_GEMM_GROUP / chains(g, m) * GROUP_CYCLES *
                         over(turns, g->blocks_per_sm);
    const double cycles = larger(larger(products, chain), moved(g, m, io, turns, busy) / L2_BYTES);
    const double read = 2.0 * m->n * m->k_pad / bandwidth, work = cycles / d->mhz;
    const double start = g->family == ROSE_GEMM_ROWS ? 0 : START_US;
    /* The shorter of the two is not hidden entirely. */
    return larger(read, work) + 0.2 * (read < work ? read : work) + start + LAUNCH_US;
}

/* ---- what the tuner measured ---- */

static int order(uint32_t a, uint32_t b)
{
    return a < b ? -1 : a > b;
}

int rose_gemm_tuning_order(const rose_gemm_tuning *a, const rose_gemm_tuning *b)
{
    int by = order(a->type, b->type);
    if (by == 0) by = order(a->n, b->n);
    if (by == 0) by = order(a->k, b->k);
    if (by == 0) by = order(a->n_parts, b->n_parts);
    if (by == 0) by = order(a->end, b->end);
    return by != 0 ? by : order(a->bucket, b->bucket);
}

uint32_t rose_gemm_bucket(uint32_t rows)
{
    uint32_t bucket = 1;
    while (bucket < rows && bucket < 512)
        bucket *= 2;
    if (rows <= bucket) return bucket;
    return rows <= 2048 ? 2048 : 8192;
}

static int compare(const void *a, const void *b)
{
    return rose_gemm_tuning_order(a, b);
}

const rose_gemm_tuning *rose_gemm_tuned_find(const rose_gemm_tuned *t, const rose_gemm_tuning *key)
{
    if (t == NULL || t->n_lines == 0) return NULL;
    return bsearch(key, t->lines, t->n_lines, sizeof *key, compare);
}

static const rose_gemm_kernel *tuned(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                     const rose_gemm_io *io)
{
    const rose_gemm_tuning key = {.n = m->n,
                                  .k = m->k,
                                  .bucket = rose_gemm_bucket(io->rows),
                                  .type = at->type,
                                  .end = io->end,
                                  .n_parts = m->n_parts};
    const rose_gemm_tuning *line = rose_gemm_tuned_find(at->tuned, &key);
    return line != NULL && rose_gemm_takes(line->kernel, at, m, io) ? line->kernel : NULL;
}

/* ---- the choice ---- */

static const rose_gemm_kernel *cheapest(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                        const rose_gemm_io *io)
{
    const rose_gemm_kernel *best = NULL;
    double least = 0;
    for (uint32_t i = 0; i < rose_gemm_n_kernels; i++) {
        const rose_gemm_kernel *g = &rose_gemm_kernels[i];
        if (!rose_gemm_takes(g, at, m, io)) continue;
        const double us = rose_gemm_cost(g, at, m, io);
        if (best != NULL && us >= least) continue;
        best = g;
        least = us;
    }
    return best;
}

const rose_gemm_kernel *rose_gemm_choose(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                         const rose_gemm_io *io)
{
    if (at->forced != NULL && rose_gemm_takes(at->forced, at, m, io)) return at->forced;
    const rose_gemm_kernel *g = tuned(at, m, io);
    return g != NULL ? g : cheapest(at, m, io);
}

/* A tile of rows that norms its rows itself saves a kernel. It does not pay if the GEMM itself gets
 * slower by more than that. A forced kernel norms the rows only if it can. */
bool rose_gemm_norms(const rose_cuda_launch *at, const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    rose_gemm_io alone = *io, apart = *io;
    if (at->type == ROSE_CUDA_F32 || io->rows > ROSE_GEMM_NORM_ROWS) return false;
    alone.h = NULL;
    if (apart.h == NULL) apart.h = m->w; /* any address: the rows are in memory */
    const rose_gemm_kernel *g = rose_gemm_choose(at, m, &alone);
    if (g == NULL || (at->forced != NULL && g != at->forced)) return false;
    const rose_gemm_kernel *plain = rose_gemm_choose(at, m, &apart);
    return rose_gemm_cost(g, at, m, &alone) <= rose_gemm_cost(plain, at, m, &apart) + LAUNCH_US;
}
