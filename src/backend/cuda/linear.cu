/* backend/cuda/linear.cu - the choice of a matrix kernel: a matter of speed only, the bits are the
 * same (linear.cuh, linear_head.cuh, linear_once.cuh, linear_pingpong.cuh, linear_team.cuh,
 * linear_wide.cuh). */
#include <string.h>

#include "backend/cuda/linear_types.h"
#include "backend/cuda/wide_walk.h"
#include "model/model.h"

static int g_forced;

void rose_cuda_linear_force(int kernel)
{
    g_forced = kernel;
}

cudaError_t rose_cuda_linear_prepare(const rose_cuda_device *d)
{
    cudaError_t e = rose_cuda_linear_prepare_f16(d);
    if (e == cudaSuccess) e = rose_cuda_linear_prepare_bf16(d);
    if (e != cudaSuccess || !d->hopper) return e;
    e = rose_cuda_team_prepare_f16();
    if (e == cudaSuccess) e = rose_cuda_team_prepare_bf16();
    if (e == cudaSuccess) e = rose_cuda_wide_prepare_f16();
    return e == cudaSuccess ? rose_cuda_wide_prepare_bf16() : e;
}

enum { CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32 };

enum {
    ROWS = 1,
    TILES,
    HEAD,
    TEAM_64, /* from here on as rose_cuda_team */
    TEAM_32,
    WIDE = ROSE_CUDA_WIDE, /* from here on as rose_cuda_wide */
    WIDE_64 = WIDE + ROSE_CUDA_WIDE_64_96,
    ONCE = WIDE + ROSE_CUDA_ONCE_48,
    CHAIN = WIDE + ROSE_CUDA_CHAIN,
    PINGPONG = WIDE + ROSE_CUDA_PINGPONG
};

const char *rose_cuda_linear_name(int kernel)
{
    static const char *const names[ROSE_CUDA_N_KERNELS] = {
        "auto", "rows", "tiles", "head", "team", "team-32",
        /* rose_cuda_wide */
        "wide-192", "wide-192-pair", "wide-160", "wide-128", "wide-96", "wide-64-96", "wide-64-48",
        "once-48", "once-48-alone", "once-64-alone", "once-96", "once-96-alone", "once-128-96",
        "once-128-128", "chain", "chain-alone", "pingpong", "pingpong-rows"};
    return kernel >= 0 && kernel < ROSE_CUDA_N_KERNELS ? names[kernel] : NULL;
}

int rose_cuda_linear_named(const char *name)
{
    int kernel = 0;
    while (kernel < ROSE_CUDA_N_KERNELS && strcmp(rose_cuda_linear_name(kernel), name) != 0)
        kernel++;
    return kernel;
}

/* In QKV, blocks of 16 outputs of one part and one head. */
static bool wide_takes(const rose_cuda_launch *at, const rose_cuda_linear *l,
                       const rose_cuda_io *io)
{
    if (!at->device->hopper || l->cores == NULL || l->kv != (io->epilogue == ROSE_CUDA_EPI_QKV))
        return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && (l->k % 64 != 0 || io->kv.head_dim % 16 != 0))
        return false;
    if (io->epilogue == ROSE_CUDA_EPI_RESIDUAL && (l->n % 4 != 0 || io->ld_x % 4 != 0))
        return false;
    return io->epilogue != ROSE_CUDA_EPI_ACT || (io->act == ROSE_ACT_GELU_TANH && l->n % 4 == 0);
}

/* In QKV, groups of outputs of one part and quads of one head. */
static bool team_takes(const rose_cuda_launch *at, const rose_cuda_linear *l,
                       const rose_cuda_io *io)
{
    if (!at->device->hopper || io->epilogue == ROSE_CUDA_EPI_LOGITS || l->k_pad > ROSE_CUDA_TEAM_K)
        return false;
    return io->epilogue != ROSE_CUDA_EPI_QKV || (l->k % 64 == 0 && io->kv.head_dim % 4 == 0);
}

static bool head_takes(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    const uint32_t staged = io->rows <= 8 ? 8 : io->rows <= 16 ? 16 : 32;
    return io->epilogue == ROSE_CUDA_EPI_LOGITS && io->rows <= ROSE_CUDA_HEAD_ROWS &&
           l->k_pad <= ROSE_CUDA_HEAD_VALUES / staged;
}

static bool takes(const rose_cuda_launch *at, const rose_cuda_linear *l, const rose_cuda_io *io,
                  int kernel)
{
    const bool head = io->epilogue == ROSE_CUDA_EPI_LOGITS,
               residual = io->epilogue == ROSE_CUDA_EPI_RESIDUAL;
    if (kernel == ROWS) return !head;
    if (kernel == TILES) return true;
    if (kernel == HEAD) return head_takes(l, io);
    if (kernel < WIDE) return team_takes(at, l, io);
    if (!wide_takes(at, l, io)) return false;
    if (kernel == WIDE + ROSE_CUDA_WIDE_192) return !residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_192_PAIR) return residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_160) return residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_128) return !head;
    if (kernel < WIDE_64) return true;
    if (kernel < ONCE) return head;
    if (kernel == WIDE + ROSE_CUDA_ONCE_64_ALONE) return residual;
    if (kernel == WIDE + ROSE_CUDA_ONCE_128_128) return !head && !residual;
    if (kernel < CHAIN) return !head;
    return kernel < PINGPONG ? residual && l->k_pad <= ROSE_CUDA_CHAIN_K : head;
}

static uint32_t tiles_of(const rose_cuda_linear *l, uint32_t rows, uint32_t tile_rows,
                         uint32_t outputs)
{
    return (rows + tile_rows - 1) / tile_rows * ((l->n + outputs - 1) / outputs);
}

/* Of linear_once.cuh, by measurement on an H100 of 132 multiprocessors (2026-11-22): the smallest
 * tile of which all are on the chip at once, if possible one a multiprocessor; 0: none. Beside
 * attention blocks leave it memory. Of 512 rows at most, and no head. */
static int once_for(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    enum { CHAIN_CHUNKS = ROSE_CUDA_CHAIN_CHUNKS };
    const uint32_t n48 = tiles_of(l, io->rows, 64, 48), n96 = tiles_of(l, io->rows, 64, 96);
    const uint32_t n128 = tiles_of(l, io->rows, 128, 96);
    const uint32_t chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    const uint32_t chained = n48 * ((chunks + CHAIN_CHUNKS - 1) / CHAIN_CHUNKS); /* blocks */
    /* Of more, not all clusters find multiprocessors of one group for themselves (of 132). */
    const bool apart = chained <= 96;
    if ((at->without & ROSE_CUDA_WITHOUT_ONCE) != 0) return 0;
    if (chunks > CHAIN_CHUNKS && chained <= at->device->sms && (apart || !at->beside) &&
        (at->without & ROSE_CUDA_WITHOUT_CHAIN) == 0 && takes(at, l, io, CHAIN))
        return apart && !at->beside ? WIDE + ROSE_CUDA_CHAIN_ALONE : CHAIN;
    if (!at->beside && n48 <= at->device->sms) return WIDE + ROSE_CUDA_ONCE_48_ALONE;
    if (!at->beside && n96 <= at->device->sms) return WIDE + ROSE_CUDA_ONCE_96_ALONE;
    if (n48 <= 2 * at->device->sms) return WIDE + ROSE_CUDA_ONCE_48;
    if (!at->beside && n128 <= at->device->sms) return WIDE + ROSE_CUDA_ONCE_128_96;
    if (n96 <= at->device->sms * 3 / 2) return WIDE + ROSE_CUDA_ONCE_96;
    return 0;
}

/* The same of more rows: the smallest tile of which all are on the chip at once, one a
 * multiprocessor; 0: none (H100, 2026-11-23). Where the residual is added, of a long k alone. */
static int filling(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const uint32_t n = at->device->sms;
    if (at->beside || (at->without & ROSE_CUDA_WITHOUT_ONCE) != 0) return 0;
    if (io->epilogue != ROSE_CUDA_EPI_RESIDUAL) {
        if (tiles_of(l, io->rows, 64, 96) <= n) return WIDE + ROSE_CUDA_ONCE_96_ALONE;
        if (tiles_of(l, io->rows, 128, 96) <= n) return WIDE + ROSE_CUDA_ONCE_128_96;
        return tiles_of(l, io->rows, 128, 128) <= n ? WIDE + ROSE_CUDA_ONCE_128_128 : 0;
    }
    if (l->k_pad <= ROSE_CUDA_CHAIN_CHUNKS * CHUNK_K) return 0;
    if (tiles_of(l, io->rows, 64, 64) <= n) return WIDE + ROSE_CUDA_ONCE_64_ALONE;
    return tiles_of(l, io->rows, 64, 96) <= n ? WIDE + ROSE_CUDA_ONCE_96_ALONE : 0;
}

/* A kernel that walks over tiles. */
typedef struct tiling {
    rose_cuda_wide kernel;
    uint32_t rows, outputs; /* of a tile */
    uint32_t blocks;        /* that a multiprocessor has at once */
    uint32_t share;         /* of the tensor cores, in %, that agrees with what was measured */
    uint32_t high, across;  /* tiles that follow each other, for blocks that work together */
} tiling;

/* Of the kernels that take the shape the one with the least product of waves and a tile's time:
 * outputs of a multiprocessor in a tile over their share. */
static int least(const tiling *all, size_t n, const rose_cuda_linear *l, const rose_cuda_io *io,
                 const rose_cuda_launch *at)
{
    uint64_t best_cost = UINT64_MAX;
    int best = 0;
    for (size_t i = 0; i < n; i++) {
        const tiling t = all[i];
        if (!takes(at, l, io, WIDE + (int)t.kernel)) continue;
        const uint64_t tiles = (uint64_t)t.high * t.across *
                               tiles_of(l, io->rows, t.rows * t.high, t.outputs * t.across);
        const uint64_t at_once = (uint64_t)t.blocks * at->device->sms;
        const uint64_t waves = (tiles + at_once - 1) / at_once;
        /* Two blocks share a multiprocessor where there are so many; a whole tile of halves is two.
         */
        const bool halves = t.kernel == ROSE_CUDA_PINGPONG_ROWS;
        const uint64_t beside = t.blocks > 1 && (halves || tiles > at->device->sms) ? 2 : 1;
        const uint64_t cost = waves * beside * t.rows * t.outputs * 100 / t.share;
        if (cost >= best_cost) continue;
        best_cost = cost;
        best = WIDE + (int)t.kernel;
    }
    return best;
}

/* Of linear_wide.cuh and linear_once.cuh for tiles of 64 rows; no head. */
static int best_wide(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const bool residual = io->epilogue == ROSE_CUDA_EPI_RESIDUAL,
               once = (at->without & ROSE_CUDA_WITHOUT_ONCE) == 0;
    const tiling all[] = {{residual ? ROSE_CUDA_WIDE_192_PAIR : ROSE_CUDA_WIDE_192, 128, 192, 1, 85,
                           residual ? 2u : 1u, 1},
                          {ROSE_CUDA_WIDE_96, 128, 96, 1, 68, 1, 1},
                          {ROSE_CUDA_WIDE_160, 128, 160, 1, 78, 1, 1},
                          {ROSE_CUDA_WIDE_128, 128, 128, 1, 74, 1, 1},
                          {ROSE_CUDA_ONCE_96, 64, 96, 2, 56, 1, 1},
                          {ROSE_CUDA_ONCE_48, 64, 48, 2, 42, 1, 1}};
    return least(all, once ? 6 : 4, l, io, at);
}

/* Of linear_wide.cuh and linear_pingpong.cuh (GPT-2's on an H100, 2026-11-23). Of pairs a last tile
 * without a neighbour multiplies for nothing. Where tiles of rows are odd and the last has 64 rows
 * or fewer, those that share rows do half of it. */
static int best_head(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const uint32_t high = (io->rows + 127) / 128, half = high > 1 && high % 2 != 0 ? 2 : 1;
    const tiling all[] = {
        {ROSE_CUDA_WIDE_192, 128, 192, 1, 87, 1, 1},
        {ROSE_CUDA_WIDE_96, 128, 96, 1, 68, 1, 1},
        {ROSE_CUDA_WIDE_64_96, 64, 96, 2, 56, 1, 1},
        {ROSE_CUDA_WIDE_64_48, 64, 48, 2, 42, 1, 1},
        {ROSE_CUDA_PINGPONG, 128, ROSE_CUDA_PINGPONG_N, 1, 95, 2, 1},
        {ROSE_CUDA_PINGPONG_ROWS, 128 / half, ROSE_CUDA_PINGPONG_ROWS_N, half, 92, 1, 2}};
    const bool pingpong = (at->without & ROSE_CUDA_WITHOUT_PINGPONG) == 0;
    return least(all, pingpong ? 6 : 4, l, io, at);
}

/* The head of 33 to 64 rows, and of fewer where it has no kernel of its own (heads of GPT-2s on an
 * H100, 2026-11-24): of a long k the larger tile is ahead by 1 to 4 %. */
static int head_of_64(const rose_cuda_linear *l, uint32_t rows)
{
    return WIDE + (l->k_pad >= 1024 && rows <= 48 ? ROSE_CUDA_WIDE_64_96 : ROSE_CUDA_WIDE_64_48);
}

/* By measurement on an H100 of 132 multiprocessors, GPT-2 124M (2026-11-21 to 23). Bounds on rows
 * and outputs below are those that it gave there. */
static int choose(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const bool head = io->epilogue == ROSE_CUDA_EPI_LOGITS, many = l->n > 16384;
    const bool wide = wide_takes(at, l, io);
    const uint32_t rows = io->rows;
    int once = 0;
    if (wide && !head) once = rows <= 512 ? once_for(l, io, at) : filling(l, io, at);
    if (head && (at->without & ROSE_CUDA_WITHOUT_HEAD) == 0 && takes(at, l, io, HEAD)) return HEAD;
    if (!head && rows <= ROSE_CUDA_HEAD_ROWS) return ROWS;
    if (once != 0) return once;
    if (wide && head && many && rows <= 128)
        return rows <= 64 ? head_of_64(l, rows) : WIDE + ROSE_CUDA_WIDE_96;
    if (rows <= 128 && (at->without & ROSE_CUDA_WITHOUT_TEAM) == 0 && team_takes(at, l, io))
        return rows > 64 && l->n > 1024 ? TEAM_64 : TEAM_32;
    if (wide && head) return best_head(l, io, at);
    if (wide && rows > 64) return best_wide(l, io, at);
    /* The kernel of rows takes no head. */
    return rows > 128 || head ? TILES : ROWS;
}

bool rose_cuda_linear_norms(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    return (at->without & ROSE_CUDA_WITHOUT_NORMED) == 0 && g_forced == 0 &&
           at->type != ROSE_CUDA_F32 && io->rows <= 8 && l->k <= 1024 && l->k % 8 == 0 &&
           (io->epilogue == ROSE_CUDA_EPI_QKV || io->epilogue == ROSE_CUDA_EPI_ACT);
}

/* By `kernel`, which takes the shape. */
static cudaError_t run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                       const rose_cuda_io *io, int kernel)
{
    if (kernel >= WIDE) {
        const rose_cuda_wide which = (rose_cuda_wide)(kernel - WIDE);
        return at->type == ROSE_CUDA_F16 ? rose_cuda_wide_f16(at, l, io, which)
                                         : rose_cuda_wide_bf16(at, l, io, which);
    }
    if (kernel >= TEAM_64) {
        const rose_cuda_team which = (rose_cuda_team)(kernel - TEAM_64);
        return at->type == ROSE_CUDA_F16 ? rose_cuda_team_f16(at, l, io, which)
                                         : rose_cuda_team_bf16(at, l, io, which);
    }
    if (kernel == HEAD)
        return at->type == ROSE_CUDA_F16 ? rose_cuda_head_f16(at, l, io)
                                         : rose_cuda_head_bf16(at, l, io);
    return at->type == ROSE_CUDA_F16 ? rose_cuda_linear_f16(at, l, io, kernel == TILES)
                                     : rose_cuda_linear_bf16(at, l, io, kernel == TILES);
}

cudaError_t rose_cuda_linear_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    if (io->rows == 0) return cudaSuccess;
    if (io->norm_w != NULL) {
        if (!rose_cuda_linear_norms(at, l, io)) return cudaErrorInvalidValue;
        return at->type == ROSE_CUDA_F16 ? rose_cuda_normed_f16(at, l, io)
                                         : rose_cuda_normed_bf16(at, l, io);
    }
    if (at->type == ROSE_CUDA_F32) return rose_cuda_linear_f32(at, l, io);
    if (g_forced != 0) return run(at, l, io, takes(at, l, io, g_forced) ? g_forced : TILES);
    return run(at, l, io, choose(l, io, at));
}
