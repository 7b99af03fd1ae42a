/* backend/cuda/linear.cu - the choice of a matrix kernel: a matter of speed only, the bits are the
 * same (linear.cuh, linear_hopper.cuh). */
#include "backend/cuda/linear_types.h"
#include "model/model.h"

static int g_forced;
static bool g_hopper; /* the kernels of linear_hopper.cuh are in this program and run here */
static bool g_wide;   /* and those of linear_wide.cuh */

void rose_cuda_linear_force(int kernel)
{
    g_forced = kernel;
}

cudaError_t rose_cuda_linear_init(void)
{
    bool f16 = false, bf16 = false;
    cudaError_t e = rose_cuda_linear_init_f16();
    if (e == cudaSuccess) e = rose_cuda_linear_init_bf16();
    if (e == cudaSuccess) e = rose_cuda_hopper_init_f16(&f16);
    if (e == cudaSuccess) e = rose_cuda_hopper_init_bf16(&bf16);
    g_hopper = f16 && bf16;
    if (e == cudaSuccess) e = rose_cuda_wide_init_f16(&f16);
    if (e == cudaSuccess) e = rose_cuda_wide_init_bf16(&bf16);
    g_wide = g_hopper && f16 && bf16;
    return e;
}

enum { ROWS = 1, TILES, HOPPER /* + rose_cuda_hopper */, WIDE = ROSE_CUDA_WIDE /* + .._wide */ };

const char *rose_cuda_linear_name(int kernel)
{
    static const char *const names[ROSE_CUDA_N_KERNELS] = {
        "auto",      "rows",       "tiles",   "stream",     "stream-64", "split", "split-32",
        "ordered",   "ordered-64", "split-8", "team",       "team-32",   "head",  "wide-192",
        "wide-pair", "wide-add",   "wide-96", "wide-64-96", "wide-64-48"};
    return kernel >= 0 && kernel < ROSE_CUDA_N_KERNELS ? names[kernel] : NULL;
}

/* In QKV, blocks of 16 outputs of one part and one head. */
static bool wide_takes(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    if (!g_wide || l->cores == NULL) return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && (l->k % 64 != 0 || io->kv.head_dim % 16 != 0))
        return false;
    if (io->epilogue == ROSE_CUDA_EPI_RESIDUAL && l->n % 4 != 0) return false;
    return io->epilogue != ROSE_CUDA_EPI_ACT || (io->act == ROSE_ACT_GELU_TANH && l->n % 4 == 0);
}

/* In QKV, groups of outputs of one part and quads of one head. */
static bool hopper_takes(const rose_cuda_linear *l, const rose_cuda_io *io, int kernel)
{
    if (!g_hopper) return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && (l->k % 64 != 0 || io->kv.head_dim % 4 != 0))
        return false;
    switch (kernel - HOPPER) {
    case ROSE_CUDA_HOPPER_SPLIT:
    case ROSE_CUDA_HOPPER_SPLIT_32:
    case ROSE_CUDA_HOPPER_SPLIT_8:
        return io->epilogue != ROSE_CUDA_EPI_LOGITS && l->k_pad <= 8 * 8 * 192;
    case ROSE_CUDA_HOPPER_TEAM:
    case ROSE_CUDA_HOPPER_TEAM_32:
        return io->epilogue != ROSE_CUDA_EPI_LOGITS && l->k_pad <= 4 * 192;
    case ROSE_CUDA_HOPPER_HEAD: /* as linear_head.cuh */
        return io->epilogue == ROSE_CUDA_EPI_LOGITS && io->rows <= 32 && l->k_pad <= 1024;
    default:
        return true;
    }
}

/* The stream kernel's time in units of a wave of tiles of 64 rows: those of 128 cost nearly two. */
static uint32_t waves(const rose_cuda_linear *l, uint32_t rows, uint32_t tile_rows)
{
    const uint32_t tiles = (l->n + 127) / 128 * ((rows + tile_rows - 1) / tile_rows);
    return (tiles + 131) / 132 * (tile_rows == 128 ? 17 : 10);
}

/* Of the wide kernels that `trial` names by arithmetic, not yet by measurement: the least product
 * of waves and a tile's time (outputs of a multiprocessor in a tile, over the share of the tensor
 * cores that shared memory allows it, in %). */
static int choose_wide(const rose_cuda_linear *l, const rose_cuda_io *io, uint32_t trial)
{
    static const struct {
        rose_cuda_wide kernel;
        uint32_t trial, rows, outputs, at_once, share;
    } shapes[] = {{ROSE_CUDA_WIDE_ADD, ROSE_CUDA_TRY_WIDE_ADD, 128, 192, 132, 85},
                  {ROSE_CUDA_WIDE_PAIR, ROSE_CUDA_TRY_WIDE_PAIR, 128, 192, 132, 85},
                  {ROSE_CUDA_WIDE_192, ROSE_CUDA_TRY_WIDE_192, 128, 192, 132, 85},
                  {ROSE_CUDA_WIDE_96, ROSE_CUDA_TRY_WIDE_96, 128, 96, 132, 68},
                  {ROSE_CUDA_WIDE_64_96, ROSE_CUDA_TRY_WIDE_64_96, 64, 96, 264, 56},
                  {ROSE_CUDA_WIDE_64_48, ROSE_CUDA_TRY_WIDE_64_48, 64, 48, 264, 42}};
    uint64_t least = UINT64_MAX;
    int best = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if ((trial & shapes[i].trial) == 0) continue;
        const uint64_t tiles = (uint64_t)((io->rows + shapes[i].rows - 1) / shapes[i].rows) *
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

/* What `trial` names for a decode step's few rows; 0: nothing. */
static int choose_few(const rose_cuda_linear *l, uint32_t rows, uint32_t trial)
{
    const bool head = l->n > 16384;
    if (rows > 128) return 0;
    if (head && rows <= 32 && (trial & ROSE_CUDA_TRY_HEAD) != 0)
        return HOPPER + ROSE_CUDA_HOPPER_HEAD;
    if (head && rows > 16 && (trial & ROSE_CUDA_TRY_HEAD_64) != 0)
        return HOPPER + ROSE_CUDA_HOPPER_STREAM_64;
    if (head && rows > 64 && (trial & ROSE_CUDA_TRY_WIDE_96) != 0) return WIDE + ROSE_CUDA_WIDE_96;
    if (head && rows > 16 && (trial & ROSE_CUDA_TRY_WIDE_64_48) != 0)
        return WIDE + ROSE_CUDA_WIDE_64_48;
    if (head || rows <= 32) return 0;
    if (rows > 64 && (l->n > 1024 || l->k > 1024) && (trial & ROSE_CUDA_TRY_WIDE_64_48) != 0)
        return WIDE + ROSE_CUDA_WIDE_64_48;
    if ((trial & ROSE_CUDA_TRY_SPLIT_8) != 0 && l->k_pad >= 8 * 192)
        return HOPPER + ROSE_CUDA_HOPPER_SPLIT_8;
    if ((trial & ROSE_CUDA_TRY_TEAM) != 0 && l->k_pad <= 4 * 192)
        return HOPPER +
               (rows > 64 && l->n > 1024 ? ROSE_CUDA_HOPPER_TEAM : ROSE_CUDA_HOPPER_TEAM_32);
    return 0;
}

/* By measurement on an H100, GPT-2 124M. */
static int choose(const rose_cuda_linear *l, const rose_cuda_io *io, uint32_t trial)
{
    const bool head = l->n > 16384;
    const uint32_t rows = io->rows;
    /* The head is so wide that tiles fill the chip sooner. */
    const int otherwise = rows > 128 || (rows > 32 && head) ? TILES : ROWS;
    const bool ordered = (trial & ROSE_CUDA_TRY_ORDERED) != 0;
    const int stream =
        HOPPER + (waves(l, rows, 64) < waves(l, rows, 128)
                      ? ordered ? ROSE_CUDA_HOPPER_ORDERED_64 : ROSE_CUDA_HOPPER_STREAM_64
                  : ordered ? ROSE_CUDA_HOPPER_ORDERED
                            : ROSE_CUDA_HOPPER_STREAM);
    int kernel = choose_few(l, rows, trial);
    if (kernel != 0 && (kernel >= WIDE ? wide_takes(l, io) : hopper_takes(l, io, kernel)))
        return kernel;
    kernel = otherwise;
    if (rows > 128 && (trial & ROSE_CUDA_TRY_CORES) != 0 && wide_takes(l, io)) {
        if (rows <= 256 && !head && l->n > 1024 && (trial & ROSE_CUDA_TRY_WIDE_64_48) != 0)
            return WIDE + ROSE_CUDA_WIDE_64_48;
        return choose_wide(l, io, trial);
    }
    if ((rows > 32 && head) || rows > 300 || (rows > 128 && l->n >= 2048) ||
        (rows > 64 && l->n >= 3072))
        kernel = stream;
    else if (rows > 128 || (rows > 64 && (l->n > 1024 || l->k > 1024)))
        kernel = HOPPER + ROSE_CUDA_HOPPER_SPLIT;
    return kernel < HOPPER || hopper_takes(l, io, kernel) ? kernel : otherwise;
}

bool rose_cuda_linear_norms(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    return (at->trial & ROSE_CUDA_TRY_FUSED) != 0 && g_forced == 0 && at->type != ROSE_CUDA_F32 &&
           io->rows <= 16 && l->k <= 1024 && l->k % 8 == 0 &&
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
    if (kernel == 0) kernel = choose(l, io, at->trial);
    if (kernel >= WIDE ? !wide_takes(l, io) : kernel >= HOPPER && !hopper_takes(l, io, kernel))
        kernel = TILES; /* forced */
    if (kernel >= WIDE) {
        const rose_cuda_wide which = (rose_cuda_wide)(kernel - WIDE);
        return at->type == ROSE_CUDA_F16 ? rose_cuda_wide_f16(at, l, io, which)
                                         : rose_cuda_wide_bf16(at, l, io, which);
    }
    if (kernel >= HOPPER) {
        const rose_cuda_hopper which = (rose_cuda_hopper)(kernel - HOPPER);
        return at->type == ROSE_CUDA_F16 ? rose_cuda_hopper_f16(at, l, io, which)
                                         : rose_cuda_hopper_bf16(at, l, io, which);
    }
    return at->type == ROSE_CUDA_F16 ? rose_cuda_linear_f16(at, l, io, kernel == TILES)
                                     : rose_cuda_linear_bf16(at, l, io, kernel == TILES);
}
