/* backend/cuda/linear.cu - the choice of a matrix kernel: a matter of speed only, the bits are the
 * same (linear.cuh, linear_head.cuh, linear_team.cuh, linear_wide.cuh). */
#include <pthread.h>

#include "backend/cuda/linear_types.h"
#include "model/model.h"

static int g_forced;
static pthread_once_t g_once = PTHREAD_ONCE_INIT; /* of the rest */
static cudaError_t g_init;
static bool g_team; /* the kernels of linear_team.cuh are in this program and run here */
static bool g_wide; /* those of linear_wide.cuh */

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
    if (e == cudaSuccess) e = rose_cuda_wide_init_f16(&f16);
    if (e == cudaSuccess) e = rose_cuda_wide_init_bf16(&bf16);
    g_wide = f16 && bf16;
    g_init = e;
}

cudaError_t rose_cuda_linear_init(bool *wide)
{
    pthread_once(&g_once, init);
    *wide = g_wide;
    return g_init;
}

enum {
    ROWS = 1,
    TILES,
    HEAD,
    TEAM_64, /* from here on as rose_cuda_team */
    TEAM_32,
    WIDE = ROSE_CUDA_WIDE,          /* from here on as rose_cuda_wide */
    BEST_WIDE = ROSE_CUDA_N_KERNELS /* of them by arithmetic */
};

const char *rose_cuda_linear_name(int kernel)
{
    static const char *const names[ROSE_CUDA_N_KERNELS] = {
        "auto",    "rows",     "tiles",   "head",       "team",
        "team-32", "wide-192", "wide-96", "wide-64-96", "wide-64-48"};
    return kernel >= 0 && kernel < ROSE_CUDA_N_KERNELS ? names[kernel] : NULL;
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
    return io->epilogue == ROSE_CUDA_EPI_LOGITS && io->rows <= ROSE_CUDA_HEAD_ROWS &&
           l->k_pad <= ROSE_CUDA_HEAD_K;
}

/* Of the wide kernels the one with the least product of waves and a tile's time (outputs of a
 * multiprocessor in a tile, over the share of the tensor cores that shared memory allows it, in %).
 */
static int best_wide(const rose_cuda_linear *l, uint32_t rows, bool residual)
{
    static const struct {
        rose_cuda_wide kernel;
        uint32_t rows, outputs, at_once, share;
    } shapes[] = {{ROSE_CUDA_WIDE_192, 128, 192, 132, 85},
                  {ROSE_CUDA_WIDE_96, 128, 96, 132, 68},
                  {ROSE_CUDA_WIDE_64_96, 64, 96, 264, 56},
                  {ROSE_CUDA_WIDE_64_48, 64, 48, 264, 42}};
    uint64_t least = UINT64_MAX;
    int best = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        /* Of the largest two blocks take rows that follow each other, where the residual is added.
         */
        const uint32_t step =
            shapes[i].rows * (residual && shapes[i].kernel == ROSE_CUDA_WIDE_192 ? 2 : 1);
        const uint64_t tiles = (uint64_t)((rows + step - 1) / step) * (step / shapes[i].rows) *
                               ((l->n + shapes[i].outputs - 1) / shapes[i].outputs);
        const uint64_t waves = (tiles + shapes[i].at_once - 1) / shapes[i].at_once;
        /* Two blocks share a multiprocessor where there are so many. */
        const uint64_t beside = shapes[i].at_once > 132 && tiles > 132 ? 2 : 1;
        const uint64_t cost =
            waves * beside * shapes[i].rows * shapes[i].outputs * 100 / shapes[i].share;
        if (cost < least) {
            least = cost;
            best = WIDE + shapes[i].kernel;
        }
    }
    return best;
}

/* By measurement on an H100, GPT-2 124M (2026-11-21): up to so many rows, the head; of the others
 * those with many outputs, else many inputs, else few of both. */
static int fastest(const rose_cuda_linear *l, uint32_t rows)
{
    enum { W48 = WIDE + ROSE_CUDA_WIDE_64_48, W96 = WIDE + ROSE_CUDA_WIDE_96, MANY = 1024 };
    static const struct {
        uint32_t rows;
        int head, wide, deep, small;
    } table[] = {{ROSE_CUDA_HEAD_ROWS, HEAD, ROWS, ROWS, ROWS},
                 {64, W48, TEAM_32, ROWS, TEAM_32},
                 {128, W96, W48, W48, TEAM_32},
                 {256, BEST_WIDE, W48, BEST_WIDE, BEST_WIDE},
                 {UINT32_MAX, BEST_WIDE, BEST_WIDE, BEST_WIDE, BEST_WIDE}};
    int i = 0;
    while (rows > table[i].rows)
        i++;
    return l->n > 16384  ? table[i].head
           : l->n > MANY ? table[i].wide
           : l->k > MANY ? table[i].deep
                         : table[i].small;
}

static int choose(const rose_cuda_linear *l, const rose_cuda_io *io, const rose_cuda_launch *at)
{
    const bool head = l->n > 16384;
    const uint32_t rows = io->rows;
    const bool wide = wide_takes(l, io),
               team = (at->without & ROSE_CUDA_WITHOUT_TEAM) == 0 && team_takes(l, io);
    int kernel = fastest(l, rows);
    /* Of the rows kernel each block would read all rows, which attention beside it slows. */
    if (at->beside && wide && rows > 32 && rows <= 64 && l->k > 1024 && l->n <= 1024)
        kernel = WIDE + ROSE_CUDA_WIDE_64_48;
    if (wide && kernel == BEST_WIDE)
        return best_wide(l, rows, io->epilogue == ROSE_CUDA_EPI_RESIDUAL);
    if (kernel == HEAD)
        return (at->without & ROSE_CUDA_WITHOUT_HEAD) == 0 && head_takes(l, io) ? HEAD : ROWS;
    if (kernel < TEAM_64 || (kernel < WIDE ? team : wide)) return kernel;
    if (team && rows > 64 && rows <= 128) return l->n > 1024 ? TEAM_64 : TEAM_32;
    /* The head is so wide that tiles fill the chip sooner. */
    return rows > 128 || (rows > 32 && head) ? TILES : ROWS;
}

bool rose_cuda_linear_norms(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    return (at->without & ROSE_CUDA_WITHOUT_NORMED) == 0 && g_forced == 0 &&
           at->type != ROSE_CUDA_F32 && io->rows <= 8 && l->k <= 1024 && l->k % 8 == 0 &&
           (io->epilogue == ROSE_CUDA_EPI_QKV || io->epilogue == ROSE_CUDA_EPI_ACT);
}

cudaError_t rose_cuda_linear_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    int kernel = g_forced;
    if (io->rows == 0) return cudaSuccess;
    if (io->norm_w != NULL) {
        if (!rose_cuda_linear_norms(at, l, io)) return cudaErrorInvalidValue;
        return at->type == ROSE_CUDA_F16 ? rose_cuda_normed_f16(at, l, io)
                                         : rose_cuda_normed_bf16(at, l, io);
    }
    if (at->type == ROSE_CUDA_F32) return rose_cuda_linear_f32(at, l, io);
    if (kernel == 0) kernel = choose(l, io, at);
    if (kernel >= HEAD && !(kernel == HEAD  ? head_takes(l, io)
                            : kernel < WIDE ? team_takes(l, io)
                                            : wide_takes(l, io)))
        kernel = TILES; /* forced */
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
