/* backend/cuda/gemm_tiles.cu - the family `tiles` of GEMM kernels (gemm.h): any shape and any end,
 * on every GPU from sm_80 on, by mma.sync m16n8k16. The bits of this family define those of the
 * others.
 *
 * A block computes TM rows x TN outputs. A stage of its ring in shared memory holds 32 values of k:
 * rows [TM / 8][4 blocks], then weights [TN / 8][4 blocks]. Both are blocks of 8 x 8 values, of 128
 * bytes, so one ldmatrix loads four of them without a bank conflict. A stage begins at a multiple
 * of 16 and belongs to one part of k. Where the part ends inside the stage, the copies write zeros.
 *
 * With the end RESIDUAL the parts follow each other, and the sum with x stays in registers. The
 * other ends have one part. Their sums go to shared memory, and one short loop applies the end: if
 * the loop over the registers were unrolled, loading its code would take as long as the products.
 * Bound: the rate of mma.sync. */
#include "backend/cuda/attend_ops.cuh"
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/launch.cuh"

enum { DEPTH = 32, BLOCKS = DEPTH / 8, STAGES = 4, BLOCK_BYTES = 128 };

/* A tile and how its warps share it: WARPS_M x WARPS_N warps, each of M x N products of 16 x 8. */
template <int TM_, int TN_, int WARPS_M_, int WARPS_N_> struct tile {
    static constexpr int TM = TM_, TN = TN_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int M = TM / WARPS_M / 16, N = TN / WARPS_N / 8;
    static constexpr int STAGE = (TM + TN) * DEPTH * 2; /* bytes */
    static constexpr int PITCH = TN + 8;                /* floats in a row of sums */
    static constexpr int SUMS = TM * PITCH * 4, RING = STAGE * STAGES;
    static constexpr int SHARED = SUMS > RING ? SUMS : RING;
};

/* The next stage to copy: its part and first value of k. part == n_parts: there is none left. */
struct cursor {
    uint32_t part, k;
};

ROSE_DEVICE uint32_t part_end(const rose_cuda_matrix &m, uint32_t part)
{
    return (m.cut[part + 1] + ROSE_GEMM_GROUP - 1) / ROSE_GEMM_GROUP * ROSE_GEMM_GROUP;
}

/* At the end of a part go on to the next one that has values. */
ROSE_DEVICE void skip_empty(cursor *c, const rose_cuda_matrix &m)
{
    while (c->part < m.n_parts && c->k >= part_end(m, c->part))
        c->k = m.cut[++c->part];
}

ROSE_DEVICE void advance(cursor *c, const rose_cuda_matrix &m)
{
    if (c->part == m.n_parts) return;
    c->k += DEPTH;
    skip_empty(c, m);
}

/* Copy the TM or TN strips of a stage from blocked memory. Every strip has BLOCKS blocks, which are
 * neighbours in global memory too. `end` is the end of the part. */
template <int STRIPS, int THREADS>
ROSE_DEVICE void copy_strips(uint32_t to, const void *from, uint32_t strip0, uint32_t k_pad,
                             uint32_t k, uint32_t end)
{
    constexpr int PIECES = BLOCKS * 8; /* of 16 bytes, in a strip */
    static_assert(STRIPS * PIECES % THREADS == 0, "whole copies");
    const uint4 *base = static_cast<const uint4 *>(from) + k;
#pragma unroll
    for (int i = 0; i < STRIPS * PIECES / THREADS; i++) {
        const uint32_t at = i * THREADS + threadIdx.x, piece = at % PIECES;
        const bool there = k + piece / 8 * 8 < end;
        const uint4 *p = base + (size_t)(strip0 + at / PIECES) * k_pad + piece;
        copy_async(to + at * 16, there ? p : static_cast<const uint4 *>(from), there);
    }
}

template <typename S>
ROSE_DEVICE void copy_weights(uint32_t stage, const rose_cuda_matrix &m, uint32_t n0,
                              const cursor &c)
{
    if (c.part < m.n_parts)
        copy_strips<S::TN / 8, S::THREADS>(stage + S::TM * DEPTH * 2, m.w, n0 / 8, m.k_pad, c.k,
                                           part_end(m, c.part));
}

/* The copies since the last call form a group, also if there are none. */
template <typename S>
ROSE_DEVICE void copy_rows(uint32_t stage, const rose_cuda_matrix &m, const rose_gemm_io &io,
                           uint32_t row0, const cursor &c)
{
    if (c.part < m.n_parts)
        copy_strips<S::TM / 8, S::THREADS>(stage, io.h, row0 / 8, m.k_pad, c.k,
                                           part_end(m, c.part));
    copy_commit();
}

/* The products of one stage. Lane i of ldmatrix gives a row of block i / 8. */
template <typename T, typename S>
ROSE_DEVICE void multiply(float acc[S::M][S::N][4], uint32_t stage, int warp, int lane)
{
    const uint32_t row = lane % 8 * 16;
    const uint32_t rows =
        stage + row +
        ((warp / S::WARPS_N * S::M * 2 + lane / 8 % 2) * BLOCKS + lane / 16) * BLOCK_BYTES;
    const uint32_t weights =
        stage + S::TM * DEPTH * 2 + row +
        ((warp % S::WARPS_N * S::N + lane / 16) * BLOCKS + lane / 8 % 2) * BLOCK_BYTES;
#pragma unroll
    for (int g = 0; g < DEPTH / ROSE_GEMM_GROUP; g++) {
        uint32_t a[S::M][4], b[S::N / 2][4];
#pragma unroll
        for (int i = 0; i < S::M; i++)
            load_matrices(a[i], rows + (i * 2 * BLOCKS + g * 2) * BLOCK_BYTES);
#pragma unroll
        for (int j = 0; j < S::N / 2; j++)
            load_matrices(b[j], weights + (j * 2 * BLOCKS + g * 2) * BLOCK_BYTES);
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int j = 0; j < S::N; j++)
                mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1],
                    static_cast<const T *>(NULL));
    }
}

/* Place in the tile of a thread's first pair of sums. Pair (i, j, e) is 16 i + 8 e rows and 8 j
 * outputs after it. */
struct place {
    int row, n;
};

template <typename S, typename F> ROSE_DEVICE void each_pair(const F &each)
{
#pragma unroll
    for (int i = 0; i < S::M; i++)
#pragma unroll
        for (int j = 0; j < S::N; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                each(i, j, e);
}

template <typename S>
ROSE_DEVICE void load_x(float2 x[S::M][S::N][2], const rose_cuda_matrix &m, const rose_gemm_io &io,
                        uint32_t row0, uint32_t n0, const place &mine)
{
    each_pair<S>([&](int i, int j, int e) {
        const uint32_t row = row0 + mine.row + i * 16 + e * 8, n = n0 + mine.n + j * 8;
        x[i][j][e] = make_float2(0, 0);
        if (row < io.rows && n < m.n) x[i][j][e] = __ldcg(end_residual_at(io, row, n));
    });
}

template <typename S>
ROSE_DEVICE void store_x(const float2 x[S::M][S::N][2], const rose_cuda_matrix &m,
                         const rose_gemm_io &io, uint32_t row0, uint32_t n0, const place &mine)
{
    each_pair<S>([&](int i, int j, int e) {
        const uint32_t row = row0 + mine.row + i * 16 + e * 8, n = n0 + mine.n + j * 8;
        if (row < io.rows && n < m.n) *end_residual_at(io, row, n) = x[i][j][e];
    });
}

template <typename S>
ROSE_DEVICE void add_part(float2 x[S::M][S::N][2], const float acc[S::M][S::N][4],
                          const float2 *bias, const rose_cuda_matrix &m, uint32_t part,
                          const place &mine)
{
    each_pair<S>([&](int i, int j, int e) {
        const float2 p = make_float2(acc[i][j][e * 2], acc[i][j][e * 2 + 1]);
        x[i][j][e] =
            end_added(x[i][j][e], part == 0 ? end_biased(m, p, bias[mine.n / 2 + j * 4]) : p);
    });
}

template <typename S>
ROSE_DEVICE void put_sums(float *sums, const float acc[S::M][S::N][4], const place &mine)
{
    each_pair<S>([&](int i, int j, int e) {
        float *to = sums + (mine.row + i * 16 + e * 8) * S::PITCH + mine.n + j * 8;
        *reinterpret_cast<float2 *>(to) = make_float2(acc[i][j][e * 2], acc[i][j][e * 2 + 1]);
    });
}

/* The largest key of the four lanes that have the row. */
ROSE_DEVICE void row_key(const rose_gemm_io &io, uint32_t row, unsigned long long key, int t)
{
    if (io.key == NULL) return;
    for (int x = 1; x < 4; x *= 2) {
        const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
        if (other > key) key = other;
    }
    if (t == 0 && row < io.rows) atomicMax(io.key + row, key);
}

/* A tile of sums, [TM][PITCH] in shared memory, through all ends but RESIDUAL. A warp takes 8 rows
 * at a time, and its lanes 8 x 8 sums. */
template <typename T, int END, typename S>
ROSE_DEVICE void end_tile(const float *sums, const float2 *bias, const rose_cuda_matrix &m,
                          const rose_gemm_io &io, uint32_t row0, uint32_t n0, int warp, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int r = warp * 8 + g; r < S::TM; r += S::WARPS * 8) {
        const float *from = sums + r * S::PITCH + t * 2;
        unsigned long long key = 0;
        if constexpr (END == ROSE_END_GATED) {
#pragma unroll 2
            for (int c = 0; c < S::TN; c += 16) {
                const float2 gate = *reinterpret_cast<const float2 *>(from + c);
                const float2 up = *reinterpret_cast<const float2 *>(from + c + 8);
                end_gated<T>(m, io, row0 + r, (n0 + c) / 2 + t * 2,
                             end_biased(m, gate, bias[c / 2 + t]),
                             end_biased(m, up, bias[c / 2 + 4 + t]));
            }
        } else {
#pragma unroll 4
            for (int c = 0; c < S::TN; c += 8) {
                const float2 y = *reinterpret_cast<const float2 *>(from + c);
                const unsigned long long k = end_pair<T, END>(m, io, row0 + r, n0 + c + t * 2,
                                                              end_biased(m, y, bias[c / 2 + t]));
                if (k > key) key = k;
            }
        }
        if constexpr (END == ROSE_END_LOGITS) row_key(io, row0 + r, key, t);
    }
}

/* Blocks on an SM, which bounds the registers. RESIDUAL of the large tile needs most of them. */
template <int END, typename S> static constexpr int blocks_of(void)
{
    return S::TM == 64 ? 4 : END == ROSE_END_RESIDUAL ? 1 : 2;
}

template <typename T, int END, typename S>
static __global__ void __launch_bounds__(S::THREADS, blocks_of<END, S>())
    tiles_kernel(const __grid_constant__ rose_cuda_matrix m,
                 const __grid_constant__ rose_gemm_io io)
{
    ROSE_ATTEND_MEMORY(shared);
    __shared__ float2 bias[S::TN / 2];
    constexpr bool RESIDUAL = END == ROSE_END_RESIDUAL;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row0 = blockIdx.x * S::TM, n0 = blockIdx.y * S::TN, ring = shared_at(shared);
    const place mine = {warp / S::WARPS_N * S::M * 16 + lane / 4,
                        warp % S::WARPS_N * S::N * 8 + lane % 4 * 2};
    float acc[S::M][S::N][4];
    float2 x[RESIDUAL ? S::M : 1][S::N][2];
    cursor copying = {0, 0};

    pdl_launch();
    skip_empty(&copying, m);
    cursor rows = copying;
    for (int i = 0; i < STAGES - 1; i++, advance(&copying, m))
        copy_weights<S>(ring + i * S::STAGE, m, n0, copying);
    for (int i = threadIdx.x; i < S::TN / 2; i += S::THREADS)
        bias[i] = end_bias(m, n0 + i * 2);
    pdl_wait();
    for (int i = 0; i < STAGES - 1; i++, advance(&rows, m))
        copy_rows<S>(ring + i * S::STAGE, m, io, row0, rows);
    if constexpr (RESIDUAL) load_x<S>(x, m, io, row0, n0, mine);
    __syncthreads(); /* the bias is there, also for a part 0 without values */

    uint32_t stage = 0;
    for (uint32_t part = 0; part < m.n_parts; part++) {
        memset(acc, 0, sizeof acc);
        for (uint32_t k = m.cut[part]; k < part_end(m, part); k += DEPTH) {
            copy_wait<STAGES - 2>();
            __syncthreads(); /* all have copied this stage, and have read the one before */
            const uint32_t free = ring + (stage + STAGES - 1) % STAGES * S::STAGE;
            copy_weights<S>(free, m, n0, copying);
            copy_rows<S>(free, m, io, row0, copying);
            advance(&copying, m);
            multiply<T, S>(acc, ring + stage * S::STAGE, warp, lane);
            stage = (stage + 1) % STAGES;
        }
        if constexpr (RESIDUAL) add_part<S>(x, acc, bias, m, part, mine);
    }

    copy_wait<0>();
    if constexpr (RESIDUAL) {
        store_x<S>(x, m, io, row0, n0, mine);
    } else {
        float *sums = reinterpret_cast<float *>(shared);
        __syncthreads(); /* the sums take the place of the ring */
        put_sums<S>(sums, acc, mine);
        __syncthreads();
        end_tile<T, END, S>(sums, bias, m, io, row0, n0, warp, lane);
    }
}

/* ---- launch ---- */

typedef tile<64, 64, 2, 2> small;
typedef tile<128, 128, 2, 4> large;

template <typename T, int END, typename S>
static cudaError_t run_end(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                           const rose_gemm_io *io)
{
    const dim3 grid((io->rows + S::TM - 1) / S::TM, (m->n + S::TN - 1) / S::TN);
    return launch_kernel(at, tiles_kernel<T, END, S>, grid, S::THREADS, S::SHARED, *m, *io);
}

template <typename T, typename S>
static cudaError_t run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                       const rose_gemm_io *io)
{
    switch (io->end) {
    case ROSE_END_ROWS:
        return run_end<T, ROSE_END_ROWS, S>(at, m, io);
    case ROSE_END_RESIDUAL:
        return run_end<T, ROSE_END_RESIDUAL, S>(at, m, io);
    case ROSE_END_ACT:
        return run_end<T, ROSE_END_ACT, S>(at, m, io);
    case ROSE_END_GATED:
        return run_end<T, ROSE_END_GATED, S>(at, m, io);
    default:
        return run_end<T, ROSE_END_LOGITS, S>(at, m, io);
    }
}

template <typename T, typename S> static cudaError_t prepare(void)
{
    const void *const kernels[] = {(const void *)tiles_kernel<T, ROSE_END_ROWS, S>,
                                   (const void *)tiles_kernel<T, ROSE_END_RESIDUAL, S>,
                                   (const void *)tiles_kernel<T, ROSE_END_ACT, S>,
                                   (const void *)tiles_kernel<T, ROSE_END_GATED, S>,
                                   (const void *)tiles_kernel<T, ROSE_END_LOGITS, S>};
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 S::SHARED);
    return e;
}

cudaError_t rose_gemm_prepare_tiles(const rose_cuda_device *)
{
    cudaError_t e = prepare<__half, small>();
    if (e == cudaSuccess) e = prepare<__half, large>();
    if (e == cudaSuccess) e = prepare<__nv_bfloat16, small>();
    if (e == cudaSuccess) e = prepare<__nv_bfloat16, large>();
    return e;
}

#define TILES(id, size)                                                                            \
    extern "C" cudaError_t rose_gemm_tiles_##id##_f16(                                             \
        const rose_cuda_launch *at, const rose_cuda_matrix *m, const rose_gemm_io *io,             \
        const rose_gemm_kernel *)                                                                  \
    {                                                                                              \
        return run<__half, size>(at, m, io);                                                       \
    }                                                                                              \
    extern "C" cudaError_t rose_gemm_tiles_##id##_bf16(                                            \
        const rose_cuda_launch *at, const rose_cuda_matrix *m, const rose_gemm_io *io,             \
        const rose_gemm_kernel *)                                                                  \
    {                                                                                              \
        return run<__nv_bfloat16, size>(at, m, io);                                                \
    }
TILES(64x64, small)
TILES(128x128, large)
