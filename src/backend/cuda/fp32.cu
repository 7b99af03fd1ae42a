/* backend/cuda/fp32.cu - GEMMs without tensor cores, for --dtype float32, where exactness matters
 * more than time. A part of k is a chain of fused multiply-adds from zero, in ascending order of k.
 * Parts are added as gemm.h says. */
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/launch.cuh"

enum { TILE = 32, DEPTH = 32, THREADS = 256 };

typedef float tile[TILE][DEPTH + 1];

/* DEPTH values of k of the tile's rows and outputs, from k on. */
ROSE_DEVICE void load_tiles(tile rows, tile weights, const rose_cuda_matrix &m,
                            const rose_gemm_io &io, uint32_t row0, uint32_t n0, uint32_t k)
{
    const float *h = static_cast<const float *>(io.h), *w = static_cast<const float *>(m.w);
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const uint32_t r = i / DEPTH, at = k + i % DEPTH;
        const bool there = at < m.k_pad;
        rows[r][i % DEPTH] = there && row0 + r < io.rows ? h[h_index(row0 + r, at, m.k_pad)] : 0.0f;
        weights[r][i % DEPTH] = there ? w[w_index(n0 + r, at, m.k_pad, w)] : 0.0f;
    }
}

/* The chains of one part. Thread (ty, tx) computes rows ty * 2 + 0, 1 and outputs tx * 2 + 0, 1. */
ROSE_DEVICE void multiply_part(float acc[2][2], tile rows, tile weights, const rose_cuda_matrix &m,
                               const rose_gemm_io &io, uint32_t row0, uint32_t n0, uint32_t part)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const uint32_t end = m.cut[part + 1];
    for (uint32_t k = m.cut[part]; k < end; k += DEPTH) {
        load_tiles(rows, weights, m, io, row0, n0, k);
        __syncthreads();
        const int n = end - k < DEPTH ? (int)(end - k) : DEPTH;
        for (int d = 0; d < n; d++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    acc[i][j] = fmaf(rows[ty * 2 + i][d], weights[tx * 2 + j][d], acc[i][j]);
        __syncthreads();
    }
}

/* All ends but GATED. RESIDUAL adds the parts to x in their order; the others have one part. */
template <int END>
ROSE_DEVICE void end_row(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row,
                         uint32_t n, uint32_t part, float2 y)
{
    if (row >= io.rows || n >= m.n) return;
    if (part == 0) y = end_biased(m, y, end_bias(m, n));
    if constexpr (END == ROSE_END_RESIDUAL) {
        float2 *x = end_residual_at(io, row, n);
        *x = end_added(*x, y);
    } else {
        const unsigned long long key = end_pair<float, END>(m, io, row, n, y);
        if (END == ROSE_END_LOGITS && io.key != NULL) atomicMax(io.key + row, key);
    }
}

/* The tile's sums meet in shared memory: thread i has 2 of the 16 outputs of the MLP of row i / 8.
 */
ROSE_DEVICE void end_gated_tile(tile sums, const rose_cuda_matrix &m, const rose_gemm_io &io,
                                uint32_t row0, uint32_t n0, const float acc[2][2])
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            sums[ty * 2 + i][tx * 2 + j] = acc[i][j];
    __syncthreads();
    const int r = threadIdx.x / 8, o = threadIdx.x % 8 * 2, c = o / 8 * 16 + o % 8;
    const float2 gate = make_float2(sums[r][c], sums[r][c + 1]);
    const float2 up = make_float2(sums[r][c + 8], sums[r][c + 9]);
    end_gated<float>(m, io, row0 + r, n0 / 2 + o, end_biased(m, gate, end_bias(m, n0 + c)),
                     end_biased(m, up, end_bias(m, n0 + c + 8)));
}

template <int END>
static __global__ void __launch_bounds__(THREADS)
    gemm_kernel(const __grid_constant__ rose_cuda_matrix m, const __grid_constant__ rose_gemm_io io)
{
    __shared__ tile rows, weights;
    const uint32_t row0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE;
    const uint32_t row = row0 + threadIdx.x / 16 * 2, n = n0 + threadIdx.x % 16 * 2;

    pdl_launch();
    pdl_wait();
    for (uint32_t part = 0; part < m.n_parts; part++) {
        float acc[2][2] = {};
        multiply_part(acc, rows, weights, m, io, row0, n0, part);
        if constexpr (END == ROSE_END_GATED) {
            end_gated_tile(rows, m, io, row0, n0, acc);
        } else {
            for (uint32_t i = 0; i < 2; i++)
                end_row<END>(m, io, row + i, n, part, make_float2(acc[i][0], acc[i][1]));
        }
    }
}

cudaError_t rose_gemm_f32_run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                              const rose_gemm_io *io, const rose_gemm_kernel *)
{
    const dim3 grid((io->rows + TILE - 1) / TILE, (m->n + TILE - 1) / TILE);
    switch (io->end) {
    case ROSE_END_ROWS:
        return launch_kernel(at, gemm_kernel<ROSE_END_ROWS>, grid, THREADS, 0, *m, *io);
    case ROSE_END_RESIDUAL:
        return launch_kernel(at, gemm_kernel<ROSE_END_RESIDUAL>, grid, THREADS, 0, *m, *io);
    case ROSE_END_ACT:
        return launch_kernel(at, gemm_kernel<ROSE_END_ACT>, grid, THREADS, 0, *m, *io);
    case ROSE_END_GATED:
        return launch_kernel(at, gemm_kernel<ROSE_END_GATED>, grid, THREADS, 0, *m, *io);
    default:
        return launch_kernel(at, gemm_kernel<ROSE_END_LOGITS>, grid, THREADS, 0, *m, *io);
    }
}
