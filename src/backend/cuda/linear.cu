/* backend/cuda/linear.cu - the choice of a matrix kernel: a matter of speed only, the bits are the
 * same (linear.cuh, linear_hopper.cuh). */
#include "backend/cuda/linear_types.h"

static int g_forced;
static bool g_hopper; /* the kernels of linear_hopper.cuh are in this program and run here */

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
    return e;
}

enum { ROWS = 1, TILES, HOPPER /* + rose_cuda_hopper */ };

/* In QKV, groups of outputs of one part and quads of one head. */
static bool hopper_takes(const rose_cuda_linear *l, const rose_cuda_io *io, int kernel)
{
    if (!g_hopper) return false;
    if (io->epilogue == ROSE_CUDA_EPI_QKV && (l->k % 64 != 0 || io->kv.head_dim % 4 != 0))
        return false;
    if (kernel < HOPPER + ROSE_CUDA_HOPPER_SPLIT) return true;
    return io->epilogue != ROSE_CUDA_EPI_LOGITS && l->k_pad <= 8 * 8 * 192;
}

/* The stream kernel's time in units of a wave of tiles of 64 rows: those of 128 cost nearly two. */
static uint32_t waves(const rose_cuda_linear *l, uint32_t rows, uint32_t tile_rows)
{
    const uint32_t tiles = (l->n + 127) / 128 * ((rows + tile_rows - 1) / tile_rows);
    return (tiles + 131) / 132 * (tile_rows == 128 ? 17 : 10);
}

/* By measurement on an H100, GPT-2 124M. */
static int choose(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    const bool head = l->n > 16384;
    const uint32_t rows = io->rows;
    /* The head is so wide that tiles fill the chip sooner. */
    const int otherwise = rows > 128 || (rows > 32 && head) ? TILES : ROWS;
    const int stream =
        HOPPER + (waves(l, rows, 64) < waves(l, rows, 128) ? ROSE_CUDA_HOPPER_STREAM_64
                                                           : ROSE_CUDA_HOPPER_STREAM);
    int kernel = otherwise;
    if ((rows > 32 && head) || rows > 300 || (rows > 128 && l->n >= 2048) ||
        (rows > 64 && l->n >= 3072))
        kernel = stream;
    else if (rows > 128 || (rows > 64 && (l->n > 1024 || l->k > 1024)))
        kernel = HOPPER + ROSE_CUDA_HOPPER_SPLIT;
    return kernel < HOPPER || hopper_takes(l, io, kernel) ? kernel : otherwise;
}

cudaError_t rose_cuda_linear_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    int kernel = g_forced;
    if (io->rows == 0) return cudaSuccess;
    if (at->type == ROSE_CUDA_F32) return rose_cuda_linear_f32(at, l, io);
    if (kernel == 0) kernel = choose(l, io);
    if (kernel >= HOPPER && !hopper_takes(l, io, kernel)) kernel = TILES; /* forced */
    if (kernel >= HOPPER) {
        const rose_cuda_hopper which = (rose_cuda_hopper)(kernel - HOPPER);
        return at->type == ROSE_CUDA_F16 ? rose_cuda_hopper_f16(at, l, io, which)
                                         : rose_cuda_hopper_bf16(at, l, io, which);
    }
    return at->type == ROSE_CUDA_F16 ? rose_cuda_linear_f16(at, l, io, kernel == TILES)
                                     : rose_cuda_linear_bf16(at, l, io, kernel == TILES);
}
