/* backend/cuda/linear.cu - the choice of a matrix kernel: a matter of speed only, the bits are the
 * same (linear.cuh, linear_cluster.cuh, linear_head.cuh, linear_once.cuh, linear_pingpong.cuh,
 * linear_stationary.cuh, linear_team.cuh, linear_wide.cuh). */
#include <pthread.h>
#include <string.h>

#include "backend/cuda/linear_types.h"
#include "backend/cuda/wide_walk.h"
#include "model/model.h"

static int g_forced;
static pthread_once_t g_once = PTHREAD_ONCE_INIT; /* of the rest */
static cudaError_t g_init;
static bool g_team; /* the kernels of linear_team.cuh are in this program and run here */
static bool g_wide; /* those of linear_wide.cuh */
static rose_cuda_clusters g_clusters[ROSE_CUDA_N_CLUSTERS]; /* of either type the same */
static uint32_t g_multiprocessors;

void rose_cuda_linear_force(int kernel)
{
    g_forced = kernel;
}

static void init(void)
{
    bool f16 = false, bf16 = false;
    cudaError_t e = rose_cuda_linear_init_f16();
    if (e == cudaSuccess) e = rose_cuda_linear_init_bf16();
    if (e == cudaSuccess) e = rose_cuda_team_init_f16(&f16);
    if (e == cudaSuccess) e = rose_cuda_team_init_bf16(&bf16);
    g_team = f16 && bf16;
    if (e == cudaSuccess) e = rose_cuda_wide_init_f16(&f16, g_clusters);
    if (e == cudaSuccess) e = rose_cuda_wide_init_bf16(&bf16, g_clusters);
    g_wide = f16 && bf16;
    int n = 0;
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0);
    g_multiprocessors = (uint32_t)n;
    g_init = e;
}

cudaError_t rose_cuda_linear_init(bool *wide)
{
    pthread_once(&g_once, init);
    *wide = g_wide;
    return g_init;
}

uint32_t rose_cuda_linear_blocks(void)
{
    return g_wide ? g_multiprocessors : 0;
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
    CLUSTER = WIDE + ROSE_CUDA_CLUSTER_64_96,
    STATIONARY = WIDE + ROSE_CUDA_STATIONARY
};

const char *rose_cuda_linear_name(int kernel)
{
    static const char *const names[ROSE_CUDA_N_KERNELS] = {
        "auto", "rows", "tiles", "head", "team", "team-32",
        /* rose_cuda_wide */
        "wide-192", "wide-192-pair", "wide-160", "wide-128", "wide-96", "wide-64-96", "wide-64-48",
        "once-48", "once-48-alone", "once-64-alone", "once-96", "once-96-alone", "once-128-96",
        "once-128-128", "chain", "chain-alone", "cluster-64-96", "cluster-64-96-pair",
        "cluster-64-128", "cluster-128-80", "stationary", "pingpong", "pingpong-rows"};
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
static bool wide_takes(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    if (!g_wide || l->cores == NULL || l->kv != (io->epilogue == ROSE_CUDA_EPI_QKV)) return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && (l->k % 64 != 0 || io->kv.head_dim % 16 != 0))
        return false;
    if (io->epilogue == ROSE_CUDA_EPI_RESIDUAL && (l->n % 4 != 0 || io->ld_x % 4 != 0))
        return false;
    return io->epilogue != ROSE_CUDA_EPI_ACT || (io->act == ROSE_ACT_GELU_TANH && l->n % 4 == 0);
}

/* In QKV, groups of outputs of one part and quads of one head. */
static bool team_takes(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    if (!g_team || io->epilogue == ROSE_CUDA_EPI_LOGITS || l->k_pad > ROSE_CUDA_TEAM_K)
        return false;
    return io->epilogue != ROSE_CUDA_EPI_QKV || (l->k % 64 == 0 && io->kv.head_dim % 4 == 0);
}

static bool head_takes(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    const uint32_t staged = io->rows <= 8 ? 8 : io->rows <= 16 ? 16 : 32;
    return io->epilogue == ROSE_CUDA_EPI_LOGITS && io->rows <= ROSE_CUDA_HEAD_ROWS &&
           l->k_pad <= ROSE_CUDA_HEAD_VALUES / staged;
}

static bool takes(const rose_cuda_linear *l, const rose_cuda_io *io, int kernel)
{
    const bool head = io->epilogue == ROSE_CUDA_EPI_LOGITS,
               residual = io->epilogue == ROSE_CUDA_EPI_RESIDUAL;
    if (kernel == ROWS) return !head;
    if (kernel == TILES) return true;
    if (kernel == HEAD) return head_takes(l, io);
    if (kernel < WIDE) return team_takes(l, io);
    if (!wide_takes(l, io)) return false;
    if (kernel == WIDE + ROSE_CUDA_WIDE_192) return !residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_192_PAIR) return residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_160) return residual;
    if (kernel == WIDE + ROSE_CUDA_WIDE_128) return !head;
    if (kernel < WIDE_64) return true;
    if (kernel < ONCE) return head;
    if (kernel == WIDE + ROSE_CUDA_ONCE_64_ALONE) return residual;
    if (kernel == WIDE + ROSE_CUDA_ONCE_128_128) return !head && !residual;
    if (kernel < CHAIN) return !head;
    if (kernel < CLUSTER) return residual && l->k_pad <= ROSE_CUDA_CHAIN_K;
    if (kernel < STATIONARY) return residual;
    if (kernel > STATIONARY) return head;
    return !head && (l->k_pad + CHUNK_K - 1) / CHUNK_K == ROSE_CUDA_STATIONARY_CHUNKS;
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
    if (chunks > CHAIN_CHUNKS && chained <= g_multiprocessors && (apart || !at->beside) &&
        (at->without & ROSE_CUDA_WITHOUT_CHAIN) == 0 && takes(l, io, CHAIN))
        return apart && !at->beside ? WIDE + ROSE_CUDA_CHAIN_ALONE : CHAIN;
    if (!at->beside && n48 <= g_multiprocessors) return WIDE + ROSE_CUDA_ONCE_48_ALONE;
    if (!at->beside && n96 <= g_multiprocessors) return WIDE + ROSE_CUDA_ONCE_96_ALONE;
    if (n48 <= 2 * g_multiprocessors) return WIDE + ROSE_CUDA_ONCE_48;
    if (!at->beside && n128 <= g_multiprocessors) return WIDE + ROSE_CUDA_ONCE_128_96;
    if (n96 <= g_multiprocessors * 3 / 2) return WIDE + ROSE_CUDA_ONCE_96;
    return 0;
}

/* The same of more rows: the smallest tile of which all are on the chip at once, one a
 * multiprocessor; 0: none (H100, 2026-11-23). In clusters where the residual is added and k is
 * long, as what the L2 gives is what all wait for. */
static int filling(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const uint32_t n = g_multiprocessors;
    const bool clusters = (at->without & ROSE_CUDA_WITHOUT_CLUSTER) == 0;
    if (at->beside || (at->without & ROSE_CUDA_WITHOUT_ONCE) != 0) return 0;
    if (io->epilogue != ROSE_CUDA_EPI_RESIDUAL) {
        if (tiles_of(l, io->rows, 64, 96) <= n) return WIDE + ROSE_CUDA_ONCE_96_ALONE;
        if (tiles_of(l, io->rows, 128, 96) <= n) return WIDE + ROSE_CUDA_ONCE_128_96;
        return tiles_of(l, io->rows, 128, 128) <= n ? WIDE + ROSE_CUDA_ONCE_128_128 : 0;
    }
    if (l->k_pad <= ROSE_CUDA_STATIONARY_CHUNKS * CHUNK_K) return 0;
    if (tiles_of(l, io->rows, 64, 64) <= n) return WIDE + ROSE_CUDA_ONCE_64_ALONE;
    for (int i = 0; clusters && i < ROSE_CUDA_N_CLUSTERS; i++)
        if (tiles_of(l, io->rows, g_clusters[i].rows, g_clusters[i].outputs) <=
            g_clusters[i].at_once)
            return CLUSTER + i;
    return tiles_of(l, io->rows, 64, 96) <= n ? WIDE + ROSE_CUDA_ONCE_96_ALONE : 0;
}

/* Of linear_stationary.cuh, by measurement on an H100 (2026-11-23), in the measure of best_wide: a
 * tile at 75 %, half of one more for the weights. Where the residual is added it is always chosen,
 * if half of the chip is at work (measured of 640 rows and more, 768 outputs). UINT64_MAX: never.
 */
static uint64_t stationary_cost(const rose_cuda_linear *l, const rose_cuda_io *io,
                                const rose_cuda_launch *at)
{
    enum { M = ROSE_CUDA_STATIONARY_M, N = ROSE_CUDA_STATIONARY_N };
    if ((at->without & ROSE_CUDA_WITHOUT_STATIONARY) != 0 || io->rows <= 512 ||
        !takes(l, io, STATIONARY))
        return UINT64_MAX;
    const column_walk w = column_walk_of(io->rows, M, l->n, N, g_multiprocessors);
    if (io->epilogue == ROSE_CUDA_EPI_RESIDUAL)
        return 2 * w.blocks > g_multiprocessors ? 0 : UINT64_MAX;
    return (2 * (uint64_t)column_most(&w) + 1) * (M * N * 100 / 75) / 2;
}

/* Of the tiles of pairs of linear_wide.cuh: what is left of their cost in whole waves where they
 * are shared out. */
static uint64_t shared_cost(const rose_cuda_linear *l, const rose_cuda_launch *at, uint32_t tiles,
                            uint64_t cost)
{
    const uint32_t chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K, pairs = g_multiprocessors / 2;
    const wide_shares s = wide_shares_of(tiles, pairs, chunks, rose_cuda_wide_shares(at));
    if (s.shared == 0) return cost;
    return cost * (wide_most(&s) + WIDE_SHARING) / ((tiles + pairs - 1) / pairs * chunks);
}

typedef struct choice {
    int kernel;
    uint64_t cost;
} choice;

/* Of tiles of 128 x 192 on every multiprocessor. */
enum { SHARE_192 = 85, WAVE_192 = 128 * 192 * 100 / SHARE_192 };

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
static choice least(const tiling *all, size_t n, const rose_cuda_linear *l, const rose_cuda_io *io,
                    const rose_cuda_launch *at)
{
    choice best = {0, UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
        const tiling t = all[i];
        if (!takes(l, io, WIDE + (int)t.kernel)) continue;
        const uint64_t tiles = (uint64_t)t.high * t.across *
                               tiles_of(l, io->rows, t.rows * t.high, t.outputs * t.across);
        const uint64_t at_once = (uint64_t)t.blocks * g_multiprocessors;
        const uint64_t waves = (tiles + at_once - 1) / at_once;
        /* Two blocks share a multiprocessor where there are so many; a whole tile of halves is two.
         */
        const bool halves = t.kernel == ROSE_CUDA_PINGPONG_ROWS;
        const uint64_t beside = t.blocks > 1 && (halves || tiles > g_multiprocessors) ? 2 : 1;
        uint64_t cost = waves * beside * t.rows * t.outputs * 100 / t.share;
        if (t.kernel == ROSE_CUDA_WIDE_192_PAIR)
            cost = shared_cost(l, at, (uint32_t)tiles / 2, cost);
        if (cost < best.cost) best = {WIDE + (int)t.kernel, cost};
    }
    return best;
}

/* Of linear_wide.cuh, linear_once.cuh for tiles of 64 rows, and linear_stationary.cuh; no head. */
static choice best_wide(const rose_cuda_linear *l, const rose_cuda_io *io,
                        const rose_cuda_launch *at)
{
    const bool residual = io->epilogue == ROSE_CUDA_EPI_RESIDUAL,
               once = (at->without & ROSE_CUDA_WITHOUT_ONCE) == 0;
    const tiling all[] = {{residual ? ROSE_CUDA_WIDE_192_PAIR : ROSE_CUDA_WIDE_192, 128, 192, 1,
                           SHARE_192, residual ? 2u : 1u, 1},
                          {ROSE_CUDA_WIDE_96, 128, 96, 1, 68, 1, 1},
                          {ROSE_CUDA_WIDE_160, 128, 160, 1, 78, 1, 1},
                          {ROSE_CUDA_WIDE_128, 128, 128, 1, 74, 1, 1},
                          {ROSE_CUDA_ONCE_96, 64, 96, 2, 56, 1, 1},
                          {ROSE_CUDA_ONCE_48, 64, 48, 2, 42, 1, 1}};
    const choice best = least(all, once ? 6 : 4, l, io, at);
    const uint64_t stationary = stationary_cost(l, io, at);
    return stationary < best.cost ? choice{STATIONARY, stationary} : best;
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
    return least(all, pingpong ? 6 : 4, l, io, at).kernel;
}

/* What QKV and GELU read and write, from row `first` on, a multiple of 128. */
static rose_cuda_io rows_from(const rose_cuda_linear *l, const rose_cuda_io *io, uint32_t first)
{
    enum { SIZE = 2 /* of a value */ };
    rose_cuda_io r = *io;
    const auto on = [first](void *p, size_t row_bytes) {
        return p != NULL ? static_cast<uint8_t *>(p) + first * row_bytes : NULL;
    };
    r.rows -= first;
    r.h = static_cast<const uint8_t *>(io->h) + (size_t)first * l->k_pad * SIZE;
    r.q = on(io->q, (size_t)l->n / 3 * SIZE);
    r.slot = io->slot != NULL ? io->slot + first : NULL;
    r.kv_rows = on(io->kv_rows, (size_t)l->n / 3 * 2 * SIZE);
    r.out = on(io->out, (size_t)io->out_k_pad * SIZE);
    return r;
}

/* Of QKV and GELU: the rows whose tiles of 128 x 192 are whole waves, but for less than a row of
 * tiles, where those behind them are faster by a launch of their own than in a last wave of few
 * tiles; 0: none are. */
static uint32_t whole_waves(const rose_cuda_linear *l, const rose_cuda_io *io,
                            const rose_cuda_launch *at)
{
    /* What a launch costs beside its tiles, over k, in the measure of best_wide, which the rows
     * behind have even where `choose` takes another kernel: few rows of GPT-2's QKV or FC1 take 4
     * us and more, and a dependent launch hides none of it (H100, 2026-11-23). GAIN: less than a
     * fortieth saved is what one run differs from the next. */
    enum { LAUNCH = 13000 * 768, GAIN = 40 };
    if ((at->without & ROSE_CUDA_WITHOUT_WAVES) != 0 || at->beside || !wide_takes(l, io) ||
        (io->epilogue != ROSE_CUDA_EPI_QKV && io->epilogue != ROSE_CUDA_EPI_ACT))
        return 0;
    const uint32_t columns = tiles_of(l, 1, 128, 192), n = g_multiprocessors,
                   high = tiles_of(l, io->rows, 128, 192) / n * n / columns, first = high * 128;
    if (first == 0 || first >= io->rows) return 0;
    const rose_cuda_io rest = rows_from(l, io, first);
    const uint64_t waves = (high * columns + n - 1) / n, one = best_wide(l, io, at).cost;
    const uint64_t two = waves * WAVE_192 + best_wide(l, &rest, at).cost + LAUNCH / l->k_pad;
    return two < one - one / GAIN ? first : 0;
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
    const bool wide = wide_takes(l, io);
    const uint32_t rows = io->rows;
    int once = 0;
    if (wide && !head) once = rows <= 512 ? once_for(l, io, at) : filling(l, io, at);
    if (head && (at->without & ROSE_CUDA_WITHOUT_HEAD) == 0 && takes(l, io, HEAD)) return HEAD;
    if (!head && rows <= ROSE_CUDA_HEAD_ROWS) return ROWS;
    if (once != 0) return once;
    if (wide && head && many && rows <= 128)
        return rows <= 64 ? head_of_64(l, rows) : WIDE + ROSE_CUDA_WIDE_96;
    if (rows <= 128 && (at->without & ROSE_CUDA_WITHOUT_TEAM) == 0 && team_takes(l, io))
        return rows > 64 && l->n > 1024 ? TEAM_64 : TEAM_32;
    if (wide && head) return best_head(l, io, at);
    if (wide && rows > 64) return best_wide(l, io, at).kernel;
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
    if (g_forced != 0) return run(at, l, io, takes(l, io, g_forced) ? g_forced : TILES);
    const uint32_t first = whole_waves(l, io, at);
    if (first == 0) return run(at, l, io, choose(l, io, at));
    rose_cuda_io whole = *io;
    const rose_cuda_io rest = rows_from(l, io, first);
    whole.rows = first;
    const cudaError_t e = run(at, l, &whole, WIDE + ROSE_CUDA_WIDE_192);
    return e == cudaSuccess ? run(at, l, &rest, choose(l, &rest, at)) : e;
}
