/* backend/cuda/gemm_rows.cuh - GEMMs of up to 32 rows: decode. Device code only;
 * gemm_rows_run.cuh launches it.
 *
 * A warp computes the chain of one part of one tile of 8 or 16 outputs. The weights are the operand
 * of 16 rows of mma.sync, and 8, 16 or 32 activation rows are 1, 2 or 4 operands of 8 columns. Each
 * warp has a ring of its own in shared memory, which it fills itself. A warp requests its first
 * weights before the previous kernel has ended. If k is small, these are all weights of the tile.
 * The time that remains is the L2 latency of the rows, the chain (24 to 33 cycles for 16 values of
 * k) and the epilogue. The loop of the chain has no branch between two MMAs and loads operands one
 * unit ahead, because one warp of a scheduler cannot hide other latencies.
 *
 * The block reads its activation rows into shared memory once (WHOLE), or norms a single row there
 * itself (NORMED). If the rows do not fit into shared memory, or if only one tile would use them,
 * the rings hold the rows too (RING). The sums of all parts are written to shared memory
 * transposed, and added in the order of gemm.h.
 *
 * A warp may have several tiles one after the other; its ring runs on across them. The bytes of the
 * weights bound the speed; for a few MB of weights the latencies above do. */
#ifndef ROSE_BACKEND_CUDA_GEMM_ROWS_CUH
#define ROSE_BACKEND_CUDA_GEMM_ROWS_CUH

#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/gemm_rows_chain.cuh"
#include "backend/cuda/norm.cuh"

/* ---- the end: a warp's sums to shared memory, [row][output]; then pairs of outputs ---- */

template <int RB>
ROSE_DEVICE void keep_sums(float *to, const float acc[RB][4], uint32_t nb, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4, wide = ROWS_WIDE(nb);
#pragma unroll
    for (int b = 0; b < RB; b++) {
        float *at = to + (b * 8 + t * 2) * wide + g;
        at[0] = acc[b][0];
        at[wide] = acc[b][1];
        if (nb == 1) continue;
        at[8] = acc[b][2];
        at[wide + 8] = acc[b][3];
    }
}

ROSE_DEVICE float2 pair_at(const float *p)
{
    return *reinterpret_cast<const float2 *>(p);
}

/* The pairs of a tile that a lane ends: its first one, then `step` on, and so on. */
typedef struct rows_pairs {
    uint32_t first, step;
    uint32_t shift; /* a row of the tile has 1 << shift pairs */
    uint32_t col;   /* output of the tile: the same in every row */
} rows_pairs;

ROSE_DEVICE rows_pairs pairs_of(const rose_gemm_io &io, const rows_plan &p, uint32_t part,
                                uint32_t n_parts, uint32_t lane)
{
    rows_pairs r;
    r.shift = io.end == ROSE_END_GATED || p.nb == 1 ? 2 : 3;
    r.first = part * 32 + lane;
    r.step = n_parts * 32;
    r.col = (r.first & ((1u << r.shift) - 1)) * 2;
    return r;
}

/* What a lane loads early: the biases of its column, and what x of its first row was. */
typedef struct rows_early {
    float2 bias, bias_up, old;
} rows_early;

ROSE_DEVICE void load_bias(rows_early *in, const rose_cuda_matrix &m, const rose_gemm_io &io,
                           uint32_t n)
{
    in->bias = end_bias(m, n);
    if (io.end == ROSE_END_GATED) in->bias_up = end_bias(m, n + 8);
}

ROSE_DEVICE float2 load_old(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row,
                            uint32_t n)
{
    if (io.end != ROSE_END_RESIDUAL || row >= io.rows || n >= m.n) return make_float2(0, 0);
    return __ldcg(end_residual_at(io, row, n));
}

/* One pair. y: the sums of part 0; the other parts lie `apart` floats on. */
template <typename T>
ROSE_DEVICE void end_sums(const rose_cuda_matrix &m, const rose_gemm_io &io, const rows_early &in,
                          const float *y, uint32_t apart, uint32_t row, uint32_t n)
{
    const float2 first = end_biased(m, pair_at(y), in.bias);
    switch (io.end) {
    case ROSE_END_RESIDUAL: {
        if (n >= m.n) return;
        float2 x = end_added(in.old, first);
#pragma unroll
        for (uint32_t i = 1; i < ROSE_GEMM_PARTS; i++)
            x = end_added(x, pair_at(y + i * apart));
        *end_residual_at(io, row, n) = x;
        return;
    }
    case ROSE_END_GATED:
        end_gated<T>(m, io, row, n / 16 * 8 + n % 16, first,
                     end_biased(m, pair_at(y + 8), in.bias_up));
        return;
    case ROSE_END_ACT:
        end_pair<T, ROSE_END_ACT>(m, io, row, n, first);
        return;
    default:
        end_pair<T, ROSE_END_ROWS>(m, io, row, n, first);
    }
}

/* All pairs of the lane. */
template <typename T, int RB>
ROSE_DEVICE void end_tile(const rose_cuda_matrix &m, const rose_gemm_io &io, rows_early in,
                          const rows_pairs &r, const float *sums, uint32_t nb, uint32_t n)
{
    const uint32_t wide = ROWS_WIDE(nb);
#pragma unroll 1
    for (uint32_t i = r.first; i < io.rows << r.shift; i += r.step) {
        const uint32_t row = i >> r.shift;
        if (i != r.first) in.old = load_old(m, io, row, n);
        end_sums<T>(m, io, in, sums + row * wide + r.col, RB * 8 * wide, row, n);
    }
}

/* LOGITS: a tile has 16 outputs, so that lane l ends rows l / 8, l / 8 + 4 and so on. */
template <typename T, int RB>
ROSE_DEVICE void end_logits(unsigned long long best[RB * 2], const rose_cuda_matrix &m,
                            const rose_gemm_io &io, const rows_early &in, const float *sums,
                            uint32_t col, uint32_t n, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < RB * 2; i++) {
        const uint32_t row = lane / 8 + i * 4;
        const float2 y = end_biased(m, pair_at(sums + row * ROWS_WIDE(2) + col), in.bias);
        const unsigned long long key = end_pair<T, ROSE_END_LOGITS>(m, io, row, n, y);
        if (key > best[i]) best[i] = key;
    }
}

/* Each row's largest of the block's outputs to the largest of all: one atomic a row and block. */
template <typename T, int RB>
ROSE_DEVICE void send_best(const unsigned long long best[RB * 2], const rose_gemm_io &io,
                           const rows_warp<T> &warp)
{
    float *sums = warp.sums - warp.id * RB * 8 * ROWS_WIDE(2);
    unsigned long long *keys = reinterpret_cast<unsigned long long *>(sums);
    __syncthreads(); /* the keys come in the place of the sums */
#pragma unroll
    for (uint32_t i = 0; i < RB * 2; i++) {
        unsigned long long key = best[i];
        for (int x = 1; x < 8; x *= 2) {
            const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
            if (other > key) key = other;
        }
        if (warp.lane % 8 == 0) keys[warp.id * RB * 8 + warp.lane / 8 + i * 4] = key;
    }
    __syncthreads();
    if (threadIdx.x >= io.rows || threadIdx.x >= RB * 8) return;
    unsigned long long key = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++)
        if (keys[i * RB * 8 + threadIdx.x] > key) key = keys[i * RB * 8 + threadIdx.x];
    atomicMax(io.key + threadIdx.x, key);
}

/* ---- the rows in shared memory ---- */

enum { ROWS_NORM_THREADS = NORM_GROUP };

/* Copy all rows once, chunk by chunk, a warp each. */
template <typename T, int RB> ROSE_DEVICE void copy_rows(const rows_warp<T> &warp)
{
    for (uint32_t c = warp.id; c * ROWS_CHUNK < warp.k_pad; c += blockDim.x / 32) {
        const uint32_t k = c * ROWS_CHUNK, bytes = (piece_end(k, ROWS_CHUNK, warp.k_pad) - k) * 16;
        ring_expect(warp.x_full + c, bytes * warp.row_blocks, warp.lane);
#pragma unroll
        for (uint32_t b = 0; b < RB; b++) {
            const uint32_t at = b * warp.k_pad + k;
            if (b < warp.row_blocks)
                ring_part(warp.x + at * 16, warp.h + (size_t)at * 8, bytes, warp.x_full + c,
                          warp.lane);
        }
    }
    ring_close();
}

/* Wait for the kernel before, and norm its row. The whole block, of 256 threads. */
template <typename T>
ROSE_DEVICE void norm_one(uint8_t *to, const rose_gemm_io &io, uint32_t d, float *red)
{
    constexpr int G = ROSE_GEMM_NORM_K / NORM_GROUP;
    const float zeros[8] = {0};
    norm_batch<1, G> batch;
    auto at = [&](uint32_t k) {
        return reinterpret_cast<T *>(to + k / 8 * 128 + k / 8 % 8 * 16) + k % 8;
    };
    load_batch(&batch, io.norm, 0, d, threadIdx.x);
    pdl_wait();
    norm_row<1, G>(io.x, io.norm, batch, d, threadIdx.x, red,
                   [&](uint32_t k, const float y[1]) { from_f32(y[0], at(k)); });
    if (d % 16 != 0 && threadIdx.x == 0) store_group(at(d), zeros);
}

/* ---- the kernel ---- */

template <typename T, int RB>
ROSE_DEVICE void place_warp(rows_warp<T> *warp, const rose_cuda_matrix &m, const rose_gemm_io &io,
                            const rows_plan &p, uint8_t *memory)
{
    const uint32_t lane = threadIdx.x % 32;
    /* ptxas shall see that all lanes have the same. */
    const uint32_t id = __shfl_sync(ROSE_ALL_LANES, threadIdx.x / 32, 0), part = id % m.n_parts;
    const bool last = part + 1 == m.n_parts;
    uint64_t *barriers = reinterpret_cast<uint64_t *>(memory);
    float *sums = reinterpret_cast<float *>(memory + p.sums_at);
    const uint32_t apart = RB * 8 * ROWS_WIDE(p.nb);
    warp->lane = lane;
    warp->id = id;
    warp->part = part;
    warp->tile = id / m.n_parts;
    warp->w = static_cast<const T *>(m.w);
    warp->h = static_cast<const T *>(io.h);
    warp->full = barriers + id * ROWS_SLOTS;
    warp->x_full = barriers + ROWS_WARPS * ROWS_SLOTS;
    warp->sums = sums + id * apart;
    warp->tile_sums = sums + warp->tile * m.n_parts * apart;
    warp->ring = shared_at(memory) + ROWS_BARRIERS + id * p.ring_bytes;
    warp->x = shared_at(memory) + p.x_at;
    /* Matrices of a step: outputs 0-7 and 8-15, k 0-7; then k 8-15. With one block of outputs its
     * rows come twice, and the second sums are ignored. */
    warp->lane_w = lane / 16 * 128 + lane % 8 * 16 + (p.nb == 2 ? lane / 8 % 2 * p.stage * 16 : 0);
    warp->begin = m.cut[part];
    warp->end =
        last ? (m.k + ROSE_GEMM_GROUP - 1) / ROSE_GEMM_GROUP * ROSE_GEMM_GROUP : m.cut[part + 1];
    warp->k_pad = m.k_pad;
    warp->row_blocks = (io.rows + 7) / 8;
    warp->stride = gridDim.x * p.tiles;
}

/* Set the barriers up, and request the first weights. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void start_ring(rows_ring *ring, const rows_warp<T> &warp, const rows_plan &p,
                            uint32_t tile, bool works)
{
    ring->slot = ring->parity = 0;
    ring->fresh = true;
    ring->ahead = {works && warp.begin < warp.end ? tile : p.n_tiles, warp.begin};
    ring->more = false;
    if (!works) return;
    if (warp.lane < ROWS_SLOTS) ring_init(warp.full + warp.lane, 1);
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = 0; i < ROWS_SLOTS; i++) {
        request_weights<T, FROM>(warp, p, ring->ahead, i);
        next_place(&ring->ahead, warp, p);
    }
    ring->more = ring->ahead.tile < p.n_tiles;
}

/* RING: the rows of the first pieces. */
template <typename T, int RB>
ROSE_DEVICE void start_rows(const rows_warp<T> &warp, const rows_plan &p, uint32_t tile)
{
    rows_place at = {warp.begin < warp.end ? tile : p.n_tiles, warp.begin};
#pragma unroll 1
    for (uint32_t i = 0; i < ROWS_SLOTS; i++) {
        request_rows<T, RB>(warp, p, at, i);
        next_place(&at, warp, p);
    }
}

/* The warps of a tile meet, or the lanes of its one warp. */
ROSE_DEVICE void meet_parts(uint32_t n_parts)
{
    if (n_parts > 1)
        __syncthreads();
    else
        __syncwarp();
}

/* The rows, after the kernel before has ended. NORMED waits for that itself. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void bring_rows(const rows_warp<T> &warp, const rose_cuda_matrix &m,
                            const rose_gemm_io &io, const rows_plan &p, uint8_t *memory)
{
    if constexpr (FROM == ROWS_WHOLE) {
        copy_rows<T, RB>(warp);
        ring_meet_once();
    } else if constexpr (FROM == ROWS_RING) {
        start_rows<T, RB>(warp, p, blockIdx.x * p.tiles + warp.tile);
    } else {
        /* Nobody needs the place of the sums yet. */
        static_assert(ROWS_BEYOND >= 64 * sizeof(float), "room for the sums of a norm");
        norm_one<T>(memory + p.x_at, io, m.k, reinterpret_cast<float *>(memory + p.sums_at));
        __syncthreads();
    }
}

/* The block's tiles in turn. in: the biases of the first one. */
template <typename T, int RB, int FROM, bool HEAD>
ROSE_DEVICE void run_tiles(const rows_warp<T> &warp, rows_ring *ring, rows_early in,
                           const rows_pairs &r, const rose_cuda_matrix &m, const rose_gemm_io &io,
                           const rows_plan &p)
{
    unsigned long long best[RB * 2] = {};
    for (uint32_t t0 = blockIdx.x * p.tiles; t0 < p.n_tiles; t0 += warp.stride) {
        const uint32_t tile = t0 + warp.tile, n = tile * p.nb * 8 + r.col;
        float acc[RB][4] = {};
        if (t0 >= warp.stride) load_bias(&in, m, io, n);
        in.old = load_old(m, io, r.first >> r.shift, n);
        if (tile < p.n_tiles && warp.begin < warp.end) run_chain<T, RB, FROM>(acc, warp, p, ring);
        keep_sums<RB>(warp.sums, acc, p.nb, warp.lane);
        meet_parts(m.n_parts);
        if (HEAD && tile < p.n_tiles)
            end_logits<T, RB>(best, m, io, in, warp.tile_sums, r.col, n, warp.lane);
        if (!HEAD && tile < p.n_tiles) end_tile<T, RB>(m, io, in, r, warp.tile_sums, p.nb, n);
        meet_parts(m.n_parts); /* the next tile's sums come to the same place */
    }
    if (HEAD && io.key != NULL) send_best<T, RB>(best, io, warp);
}

/* Only a matrix of four parts has more than 8 warps in a block. */
static constexpr int rows_bound(int from, bool head)
{
    return from == ROWS_NORMED || head ? ROWS_NORM_THREADS : ROWS_WARPS * 32;
}

template <typename T, int RB, int FROM, bool HEAD>
static __global__ void __launch_bounds__(rows_bound(FROM, HEAD))
    rows_kernel(const __grid_constant__ rose_cuda_matrix m, const __grid_constant__ rose_gemm_io io,
                const __grid_constant__ rows_plan p)
{
    ROSE_ATTEND_MEMORY(memory);
    rows_warp<T> warp;
    rows_ring ring;
    rows_early in = {};
    pdl_launch();
    place_warp<T, RB>(&warp, m, io, p, memory);
    const bool works = warp.tile < p.tiles; /* the others only norm */
    const uint32_t tile = blockIdx.x * p.tiles + warp.tile;
    start_ring<T, RB, FROM>(&ring, warp, p, tile, works);
    if (FROM == ROWS_WHOLE) {
        for (uint32_t i = threadIdx.x; i * ROWS_CHUNK < m.k_pad; i += blockDim.x)
            ring_init(warp.x_full + i, 1);
        __syncthreads();
    }
    const rows_pairs r = pairs_of(io, p, warp.part, m.n_parts, warp.lane);
    load_bias(&in, m, io, tile * p.nb * 8 + r.col);
    if (FROM != ROWS_NORMED) pdl_wait();
    bring_rows<T, RB, FROM>(warp, m, io, p, memory);
    if (works) run_tiles<T, RB, FROM, HEAD>(warp, &ring, in, r, m, io, p);
}

#endif
