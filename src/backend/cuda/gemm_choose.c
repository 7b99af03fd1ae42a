/* backend/cuda/gemm_choose.c - the shape of a matrix, and the choice of a GEMM kernel for it. All
 * kernels give the same bits, so the choice decides the speed alone.
 *
 * A forced kernel comes first, then the one that the tuner measured, then the one with the lowest
 * estimate. The estimate comes from these times: reading the weights, moving rows and weights from
 * L2 to the SMs, the products, the latency of the chains of products, and the ends of tiles. */
#include <stdlib.h>

#include "backend/cuda/gemm.h"
#include "base/bump.h"

/* ---- the shape ---- */

/* Values of k that a unit of parts has: a part begins at a multiple of it. */
static uint32_t part_unit(uint32_t k, uint32_t head_dim)
{
    if (head_dim != 0 && head_dim % ROSE_GEMM_GROUP == 0) return head_dim;
    return k % 128 == 0 ? 128 : ROSE_GEMM_GROUP;
}

void rose_cuda_matrix_shape(rose_cuda_matrix *m, rose_format format, uint32_t k, uint32_t n,
                            uint32_t n_parts, uint32_t head_dim, bool gated)
{
    const uint32_t unit = part_unit(k, head_dim);
    m->format = format;
    m->k = k;
    m->n = n;
    m->k_pad = (uint32_t)rose_align_up(k, ROSE_CUDA_K_PAD);
    m->n_pad = (uint32_t)rose_align_up(n, ROSE_CUDA_N_PAD);
    m->n_parts = n_parts;
    m->gated = gated;
    for (uint32_t i = 0; i <= ROSE_GEMM_PARTS; i++)
        m->cut[i] = i < n_parts ? unit * (i * (k / unit) / n_parts) : k;
}

/* ---- the cost model ---- */

/* The numbers are fitted to the times of the wide kernels of that time for 22 matrices and 64 to
 * 8192 rows on an H100. There the kernel with the least estimate was at most 8 % slower than the
 * fastest, and 0.6 % on average. ROWS_L2_BYTES and UNDER_WAY are fitted on an H200. */
#define READ_SHARE     0.97    /* of the memory's bandwidth that a GEMM reaches */
#define L2_BYTES       44.0    /* that an SM gets from L2 in a cycle while all SMs do */
#define ROWS_L2_BYTES  15.0    /* the same for copies of rows by the kernels of few rows */
#define UNDER_WAY      98304.0 /* bytes of weights that an SM requests ahead to reach it */
#define GROUP_CYCLES   31.0    /* from a product of a chain to the next one that depends on it */
#define STEP_CYCLES    150.0   /* the same for a thread block that copies by itself (tiles) */
#define LAUNCH_US      0.95    /* of a kernel that follows another one, until it has its operands */
#define HIDDEN         0.58    /* of the shorter of reading and computing */
#define WRITTEN        1.6     /* a byte written costs as much as this many bytes read */
#define CLUSTERED      0.9     /* of the SMs that clusters of four blocks can use */
#define END_CYCLES     0.014   /* to store a sum, in an SM */
#define X_CYCLES       0.33    /* to read x, to add to it, and to write it */
#define BIAS_CYCLES    0.28
#define NORM_US        0.7 /* what a norm in the GEMM adds, and the bytes of x in a cycle */
#define NORM_BYTES     16.0
#define NORM_KERNEL_US 1.8

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

/* A kernel's blocks on the SMs. */
typedef struct spread {
    double busy;  /* SMs that have a block */
    double turns; /* blocks of the SM that has the most */
    double waves; /* the same, where those that run at the same time count as one */
} spread;

static spread spread_of(const rose_gemm_kernel *g, const rose_cuda_device *d,
                        const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    /* A cluster computes all its tiles, also those that have no rows or outputs. */
    const uint32_t high = g->across ? 1 : g->cluster, wide = g->across ? g->cluster : 1;
    const uint32_t tiles = over(io->rows, g->tile_rows * high) * over(m->n, g->tile_n * wide);
    const uint32_t blocks = tiles * g->cluster * g->split;
    const uint32_t sms = g->split > 1 ? (uint32_t)(d->sms * CLUSTERED) : d->sms;
    spread s = {.busy = blocks < d->sms ? blocks : d->sms,
                .turns = over(blocks, d->sms),
                .waves = over(blocks, sms * g->blocks_per_sm)};
    s.turns = larger(s.turns, s.waves);
    return s;
}

/* Cycles of the end of a tile. */
static double end_cycles(const rose_gemm_kernel *g, const rose_cuda_matrix *m,
                         const rose_gemm_io *io)
{
    const double by = io->end == ROSE_END_RESIDUAL ? X_CYCLES : END_CYCLES;
    return (by + (m->bias != NULL ? BIAS_CYCLES : 0)) * g->tile_rows * g->tile_n;
}

/* Products, copies from L2 to the SMs, and the latency of the chains: the longest counts. */
static double tiles_cycles(const rose_gemm_kernel *g, const rose_cuda_device *d,
                           const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    const spread s = spread_of(g, d, m, io);
    const double groups = (double)m->k_pad / ROSE_GEMM_GROUP / g->split;
    const double rows = g->tile_rows / (g->across ? (double)g->cluster : 1);
    const double outputs = g->tile_n / (g->across ? 1 : (double)g->cluster);
    const double product =
        2.0 * ROSE_GEMM_GROUP * g->tile_rows * g->tile_n / (peak(d) * g->share / 100);
    const double copy = 2.0 * ROSE_GEMM_GROUP * (rows + outputs) * s.busy / (L2_BYTES * d->sms);
    const double end = end_cycles(g, m, io);
    const double latency = g->family == ROSE_GEMM_TILES ? STEP_CYCLES : GROUP_CYCLES;
    const double work = groups * s.turns * larger(product, copy);
    const double all = larger(work, groups * s.waves * latency);
    if (io->end == ROSE_END_RESIDUAL) return all + end * (g->split > 1 ? s.waves : s.turns);
    /* The end of a tile runs beside the products of the next one. */
    return larger(all, (all + s.turns * end) / 2) + end;
}

/* Few rows: bytes of weights in an SM's rings, as launch_rows (gemm_rows_run.cuh) sizes them. own:
 * the rings hold rows and weights, because each warp copies its own rows. beside: the block keeps
 * its rows once, outside of the rings. */
static double rows_rings(const rose_cuda_device *d, const rose_cuda_matrix *m,
                         const rose_gemm_io *io)
{
    const double blocks = io->rows <= 8 ? 1 : io->rows <= 16 ? 2 : 4; /* of 8 rows */
    const bool head = m->n > d->sms * 256, few = m->n <= d->sms * 128;
    const double room = head ? (double)d->shared_max : (double)d->shared_max / 8 * 7;
    const double own = room * 2 / (2 + blocks), beside = room - blocks * 16 * m->k_pad;
    return m->n_parts > 1 || (few && own > beside) || beside < room / 4 ? own : beside;
}

/* How much longer the SMs with the most tiles read than all SMs would evenly, for a matrix with
 * parts. Its tiles are 16 outputs, or 8 where there is at most one of those for an SM (down of
 * Qwen3-4B, 2560 outputs: 160 tiles, 20 us for 11.6 of bytes; H200). */
static double rows_uneven(const rose_cuda_device *d, const rose_cuda_matrix *m)
{
    const uint32_t tiles = over(m->n, m->n > d->sms * 8 ? 16 : 8);
    return tiles < d->sms ? 1 : (double)over(tiles, d->sms) * d->sms / tiles;
}

/* Few rows: all warps of the GPU share the weights, and begin with the latency of a chain. */
static double rows_us(const rose_gemm_kernel *g, const rose_cuda_device *d,
                      const rose_cuda_matrix *m, const rose_gemm_io *io, double read)
{
    const double groups = (double)m->k_pad / ROSE_GEMM_GROUP / m->n_parts;
    const double rows = over(io->rows, 8) * 8;
    const double all = 2.0 * rows * m->n_pad * m->k_pad / (peak(d) * g->share / 100 * d->sms);
    read *= m->n_parts > 1 && io->rows <= 16 ? rows_uneven(d, m)
                                             : larger(1, UNDER_WAY / rows_rings(d, m, io));
    const double first = read + groups * GROUP_CYCLES / d->mhz;
    double work = all / d->mhz;
    const double x = io->h == NULL ? 4.0 * io->rows * m->k : 0;
    /* Each tile of a matrix with parts copies the rows for itself. */
    const double copies = m->n_parts > 1 ? 2.0 * rows * m->k_pad * over(m->n, 16) : 0;
    work = larger(work, copies / (ROWS_L2_BYTES * d->sms * d->mhz));
    return larger(first, work) + 0.2 * (first < work ? first : work) +
           (x > 0 ? NORM_US + x / NORM_BYTES / d->mhz : 0);
}

double rose_gemm_cost(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                      const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    const rose_cuda_device *d = at->device;
    const double size = io->end == ROSE_END_RESIDUAL                ? 8
                        : io->end == ROSE_END_LOGITS || io->out_f32 ? 4
                        : io->end == ROSE_END_GATED                 ? 1
                                                                    : 2;
    const double bytes = 2.0 * m->n * m->k_pad + WRITTEN * size * io->rows * m->n;
    const double read = bytes / (d->bytes_us * READ_SHARE);
    if (g->family == ROSE_GEMM_ROWS) return LAUNCH_US + rows_us(g, d, m, io, read);
    const double work = tiles_cycles(g, d, m, io) / d->mhz;
    return larger(read, work) + (1 - HIDDEN) * (read < work ? read : work) + LAUNCH_US;
}

/* ---- what the tuner measured ---- */

static int order(uint32_t a, uint32_t b)
{
    return a < b ? -1 : a > b;
}

int rose_gemm_tuning_order(const rose_gemm_tuning *a, const rose_gemm_tuning *b)
{
    int by = order(a->format, b->format);
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
    rose_gemm_tuning key = {.n = m->n,
                            .k = m->k,
                            .bucket = rose_gemm_bucket(io->rows),
                            .format = m->format,
                            .end = io->end,
                            .n_parts = m->n_parts};
    const rose_gemm_tuning *line = rose_gemm_tuned_find(at->tuned, &key);
    key.format = m->format == ROSE_F16 ? ROSE_BF16 : ROSE_F16;
    if (line == NULL) line = rose_gemm_tuned_find(at->tuned, &key);
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

/* A GEMM that norms its row itself saves a kernel. It does not pay if the GEMM gets slower by more
 * than that. A forced kernel norms the row only if it can. */
bool rose_gemm_norms(const rose_cuda_launch *at, const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    rose_gemm_io alone = *io, apart = *io;
    if (!rose_gemm_can_norm(m, io)) return false;
    alone.h = NULL;
    if (apart.h == NULL) apart.h = m->w; /* any address: the rows are in memory */
    const rose_gemm_kernel *g = rose_gemm_choose(at, m, &alone);
    if (g == NULL || (at->forced != NULL && g != at->forced)) return false;
    const rose_gemm_kernel *plain = rose_gemm_choose(at, m, &apart);
    return rose_gemm_cost(g, at, m, &alone) <=
           rose_gemm_cost(plain, at, m, &apart) + NORM_KERNEL_US;
}
