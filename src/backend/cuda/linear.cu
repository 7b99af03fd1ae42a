/* backend/cuda/linear.cu - the table of GEMM kernels (gemm.h) and the choice of a kernel for a
 * shape. The choice is a matter of speed only, as all kernels give the same bits. */
#include <string.h>

#include "backend/cuda/gemm.h"
#include "model/model.h"

enum { CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32 };

/* ---- the table ---- */

/* What the kernels of a family have in common; the fields as in rose_cuda_gemm. */
typedef struct family {
    bool hopper, cores;
    uint32_t max_k, max_rows, max_values, head_unit, without;
} family;

static constexpr family g_mma = {};
static constexpr family g_head = {
    false, false, 0, ROSE_CUDA_HEAD_ROWS, ROSE_CUDA_HEAD_VALUES, 0, ROSE_CUDA_WITHOUT_HEAD};
static constexpr family g_team = {true, false, ROSE_CUDA_TEAM_K, 0, 0, 4, ROSE_CUDA_WITHOUT_TEAM};
static constexpr family g_wide = {true, true, 0, 0, 0, 16, 0};
static constexpr family g_once = {true, true, 0, 0, 0, 16, ROSE_CUDA_WITHOUT_ONCE};
static constexpr family g_chain = {
    true, true, ROSE_CUDA_CHAIN_K, 0, 0, 16, ROSE_CUDA_WITHOUT_ONCE | ROSE_CUDA_WITHOUT_CHAIN};
static constexpr family g_pingpong = {true, true, 0, 0, 0, 16, ROSE_CUDA_WITHOUT_PINGPONG};

static constexpr rose_cuda_gemm row(const family &f, rose_gemm_run *f16, rose_gemm_run *bf16,
                                    const char *name, int rows, int outputs, int groups, int stages,
                                    int blocks, int high, int across, int share, int share_head,
                                    int ends)
{
    return {name,
            (uint16_t)rows,
            (uint16_t)outputs,
            (uint8_t)groups,
            (uint8_t)stages,
            (uint8_t)blocks,
            (uint8_t)high,
            (uint8_t)across,
            (uint8_t)share,
            (uint8_t)share_head,
            f.hopper,
            f.cores,
            (uint8_t)ends,
            f.max_k,
            f.max_rows,
            f.max_values,
            f.head_unit,
            f.without,
            {f16, bf16}};
}

#define ID(family, id, ...) ID_##id,
#define ROW(family, id, ...)                                                                       \
    row(g_##family, rose_gemm_##id##_f16, rose_gemm_##id##_bf16, __VA_ARGS__),
enum { ROSE_GEMM_KERNELS(ID) N_GEMMS };
const rose_cuda_gemm rose_cuda_gemms[N_GEMMS] = {ROSE_GEMM_KERNELS(ROW)};
const uint32_t rose_cuda_n_gemms = N_GEMMS;
#undef ROW
#undef ID

const rose_cuda_gemm *rose_cuda_gemm_named(const char *name)
{
    for (const rose_cuda_gemm &g : rose_cuda_gemms)
        if (strcmp(g.name, name) == 0) return &g;
    return NULL;
}

cudaError_t rose_cuda_linear_prepare(const rose_cuda_device *d)
{
    cudaError_t e = cudaSuccess;
#define PREPARE(family)                                                                            \
    if (e == cudaSuccess && (d->hopper || !g_##family.hopper)) e = rose_prepare_##family##_f16(d); \
    if (e == cudaSuccess && (d->hopper || !g_##family.hopper)) e = rose_prepare_##family##_bf16(d);
    ROSE_GEMM_FAMILIES(PREPARE)
#undef PREPARE
    return e;
}

/* ---- what a kernel takes ---- */

/* Kernels that read `cores`: q, K and V have an order of their own there, and stores are of four
 * outputs. */
static bool cores_take(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    if (l->cores == NULL || l->kv != (io->epilogue == ROSE_CUDA_EPI_QKV)) return false;
    if (io->epilogue == ROSE_CUDA_EPI_RESIDUAL) return l->n % 4 == 0 && io->ld_x % 4 == 0;
    return io->epilogue != ROSE_CUDA_EPI_ACT || (io->act == ROSE_ACT_GELU_TANH && l->n % 4 == 0);
}

/* In QKV, blocks of outputs belong to one of q, K and V, and to one head. */
bool rose_cuda_gemm_takes(const rose_cuda_gemm *g, const rose_cuda_launch *at,
                          const rose_cuda_linear *l, const rose_cuda_io *io)
{
    const uint32_t staged = io->rows <= 8 ? 8 : io->rows <= 16 ? 16 : 32;
    if ((g->ends >> io->epilogue & 1) == 0 || (g->hopper && !at->device->hopper)) return false;
    if (g->max_rows != 0 && io->rows > g->max_rows) return false;
    if (g->max_k != 0 && l->k_pad > g->max_k) return false;
    if (g->max_values != 0 && l->k_pad > g->max_values / staged) return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && g->head_unit != 0 &&
        (l->k % 64 != 0 || io->kv.head_dim % g->head_unit != 0))
        return false;
    return !g->cores || cores_take(l, io);
}

/* ---- the choice ---- */

typedef struct shape {
    const rose_cuda_launch *at;
    const rose_cuda_linear *l;
    const rose_cuda_io *io;
} shape;

/* Returns the kernel if it supports the shape and is not disabled, else NULL. */
static const rose_cuda_gemm *may(const shape &s, int id)
{
    const rose_cuda_gemm *g = &rose_cuda_gemms[id];
    const bool left_out = (s.at->without & g->without) != 0;
    return !left_out && rose_cuda_gemm_takes(g, s.at, s.l, s.io) ? g : NULL;
}

static uint32_t tiles_of(const shape &s, uint32_t tile_rows, uint32_t outputs)
{
    return (s.io->rows + tile_rows - 1) / tile_rows * ((s.l->n + outputs - 1) / outputs);
}

/* Like may(), but returns NULL if the kernel needs more than `most` tiles. */
static const rose_cuda_gemm *may_fit(const shape &s, int id, uint32_t most)
{
    const rose_cuda_gemm *g = may(s, id);
    return g != NULL && tiles_of(s, g->tile_rows, g->tile_outputs) <= most ? g : NULL;
}

/* Returns the first of n kernels that needs at most one tile per SM, or NULL. */
static const rose_cuda_gemm *first_fit(const shape &s, const int *ids, size_t n)
{
    const rose_cuda_gemm *g = NULL;
    for (size_t i = 0; i < n && g == NULL; i++)
        g = may_fit(s, ids[i], s.at->device->sms);
    return g;
}

/* Returns a chain kernel, in which the blocks of a cluster compute one tile together. Returns NULL
 * if no chain kernel fits. */
static const rose_cuda_gemm *chain_for(const shape &s)
{
    const uint32_t sms = s.at->device->sms, chunks = (s.l->k_pad + CHUNK_K - 1) / CHUNK_K;
    const uint32_t peers = (chunks + ROSE_CUDA_CHAIN_CHUNKS - 1) / ROSE_CUDA_CHAIN_CHUNKS;
    const rose_cuda_gemm *g = &rose_cuda_gemms[ID_chain];
    const uint32_t blocks = peers * tiles_of(s, g->tile_rows, g->tile_outputs);
    /* The SMs of a cluster belong to one GPC. With more blocks, some clusters share their SMs with
     * others. The bound is measured: 96 of 132 SMs (H100). */
    const bool apart = blocks <= sms * 8 / 11;
    if (peers < 2 || blocks > sms || (!apart && s.at->beside)) return NULL;
    return may(s, apart && !s.at->beside ? ID_chain_alone : ID_chain);
}

/* Chooses a kernel for at most 512 rows, but not for the head. It takes the smallest tile with
 * which all tiles run on the GPU at once, and prefers one tile per SM. If attention runs at the
 * same time, the GEMM has to leave shared memory for it. The order is measured (H100, 2026-11-22).
 */
static const rose_cuda_gemm *once_for(const shape &s)
{
    static const int alone[] = {ID_once_48_alone, ID_once_96_alone};
    const uint32_t sms = s.at->device->sms;
    const rose_cuda_gemm *g = chain_for(s);
    if (g == NULL && !s.at->beside) g = first_fit(s, alone, 2);
    if (g == NULL) g = may_fit(s, ID_once_48, 2 * sms);
    if (g == NULL && !s.at->beside) g = may_fit(s, ID_once_128_96, sms);
    return g != NULL ? g : may_fit(s, ID_once_96, sms * 3 / 2);
}

/* Like once_for, but for more than 512 rows (H100, 2026-11-23). If the epilogue adds the residual,
 * only a long k gets a kernel here. */
static const rose_cuda_gemm *filling(const shape &s)
{
    static const int store[] = {ID_once_96_alone, ID_once_128_96, ID_once_128_128},
                     residual[] = {ID_once_64_alone, ID_once_96_alone};
    if (s.at->beside) return NULL;
    if (s.io->epilogue != ROSE_CUDA_EPI_RESIDUAL) return first_fit(s, store, 3);
    return s.l->k_pad > ROSE_CUDA_CHAIN_CHUNKS * CHUNK_K ? first_fit(s, residual, 2) : NULL;
}

/* Estimates the run time: the number of waves times the time of one tile. The time of a tile is its
 * number of outputs divided by the share of peak speed (in percent) that the kernel reaches. A
 * cluster computes all its tiles, so a tile without a neighbour is wasted work. A cluster that
 * shares rows can leave out half of its last tile. If the number of row tiles is odd, the estimate
 * for such a cluster therefore counts half tiles. */
static uint64_t cost_of(const shape &s, const rose_cuda_gemm *g, uint32_t share)
{
    const uint32_t sms = s.at->device->sms, high = (s.io->rows + g->tile_rows - 1) / g->tile_rows;
    const uint32_t halves = g->across > 1 && high > 1 && high % 2 != 0 ? 2 : 1;
    const uint32_t tile_rows = g->tile_rows / halves, blocks = g->blocks * halves;
    const uint64_t tiles = (uint64_t)g->high * g->across *
                           tiles_of(s, tile_rows * g->high, (uint32_t)g->tile_outputs * g->across);
    const uint64_t at_once = (uint64_t)blocks * sms, waves = (tiles + at_once - 1) / at_once;
    /* A tile takes twice as long if two blocks share the SM. Two half tiles are one whole tile. */
    const uint64_t beside = halves > 1 || (blocks > 1 && tiles > sms) ? 2 : 1;
    return waves * beside * tile_rows * g->tile_outputs * 100 / share;
}

static const rose_cuda_gemm *least_cost(const shape &s)
{
    const bool head = s.io->epilogue == ROSE_CUDA_EPI_LOGITS;
    const rose_cuda_gemm *best = NULL;
    uint64_t best_cost = UINT64_MAX;
    for (int i = 0; i < N_GEMMS; i++) {
        const rose_cuda_gemm *g = may(s, i);
        const uint32_t share = g == NULL ? 0 : head ? g->share_head : g->share;
        const uint64_t cost = share > 0 ? cost_of(s, g, share) : UINT64_MAX;
        if (cost >= best_cost) continue;
        best_cost = cost;
        best = g;
    }
    return best;
}

/* Chooses a kernel for a large head and up to 128 rows. For a long k the larger tile is 1 to 4 %
 * faster (the GPT-2 models on an H100, 2026-11-24). */
static int large_head(const shape &s)
{
    if (s.io->rows > 64) return ID_wide_96;
    return s.l->k_pad >= 1024 && s.io->rows <= 48 ? ID_wide_64_96 : ID_wide_64_48;
}

/* Chooses the kernel of a shape. The bounds on rows and outputs are measured with GPT-2 124M on an
 * H100 (2026-11-21 to 23). */
static const rose_cuda_gemm *choose(const shape &s)
{
    const bool head = s.io->epilogue == ROSE_CUDA_EPI_LOGITS;
    const uint32_t rows = s.io->rows;
    const rose_cuda_gemm *g = may(s, ID_head);
    if (g != NULL) return g;
    if (!head && rows <= ROSE_CUDA_HEAD_ROWS) return &rose_cuda_gemms[ID_rows];
    if (!head) g = rows <= 512 ? once_for(s) : filling(s);
    if (g == NULL && head && s.l->n > 16384 && rows <= 128) g = may(s, large_head(s));
    if (g == NULL && rows <= 128) g = may(s, rows > 64 && s.l->n > 1024 ? ID_team_64 : ID_team_32);
    if (g == NULL && (head || rows > 64)) g = least_cost(s);
    if (g != NULL) return g;
    return &rose_cuda_gemms[rows > 128 || head ? ID_tiles : ID_rows]; /* `rows` takes no head */
}

/* ---- run ---- */

bool rose_cuda_linear_norms(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    return (at->without & ROSE_CUDA_WITHOUT_NORMED) == 0 && at->forced == NULL &&
           at->type != ROSE_CUDA_F32 && io->rows <= 8 && l->k <= 1024 && l->k % 8 == 0 &&
           (io->epilogue == ROSE_CUDA_EPI_QKV || io->epilogue == ROSE_CUDA_EPI_ACT);
}

cudaError_t rose_cuda_linear_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    const rose_cuda_gemm *g = at->forced;
    if (io->rows == 0) return cudaSuccess;
    if (io->norm_w != NULL) {
        if (!rose_cuda_linear_norms(at, l, io)) return cudaErrorInvalidValue;
        return at->type == ROSE_CUDA_F16 ? rose_cuda_normed_f16(at, l, io)
                                         : rose_cuda_normed_bf16(at, l, io);
    }
    if (at->type == ROSE_CUDA_F32) return rose_cuda_linear_f32(at, l, io);
    if (g == NULL) g = choose({at, l, io});
    if (!rose_cuda_gemm_takes(g, at, l, io)) g = &rose_cuda_gemms[ID_tiles];
    return g->run[at->type == ROSE_CUDA_BF16](at, l, io);
}
