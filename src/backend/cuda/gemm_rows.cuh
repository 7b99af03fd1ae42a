/* backend/cuda/gemm_rows.cuh - GEMMs of up to 32 rows: decode. Instantiated for one type by
 * gemm_rows_f16.cu and gemm_rows_bf16.cu.
 *
 * A warp computes the chain of one part of one tile of 8 or 16 outputs. The weights are the operand
 * of 16 rows of mma.sync, and 8, 16 or 32 activation rows are 1, 2 or 4 operands of 8 columns. Each
 * warp has a ring of its own in shared memory, which it fills itself. Its first weights are
 * requested before the kernel before has ended. Where k is short, these are all weights of the
 * tile. After that only the L2 latency of the rows, the chain (24 to 33 cycles for 16 values of k)
 * and the end remain.
 *
 * The block reads its activation rows into shared memory once (WHOLE), or norms them there itself
 * (NORMED, up to 8 rows). Where so many values do not fit, the rings have the rows as well (RING).
 * The sums of all parts meet in shared memory. There the rows and the outputs change places, and
 * the parts are added in the order of gemm.h.
 *
 * A warp may have several tiles one after the other; its ring runs on across them. Bound: bytes of
 * weights; for a few MB of weights the latencies above. */
#ifndef ROSE_BACKEND_CUDA_GEMM_ROWS_CUH
#define ROSE_BACKEND_CUDA_GEMM_ROWS_CUH

#include "backend/cuda/attend_ops.cuh"
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/norm.cuh"

enum {
    ROWS_SLOTS = 6,
    ROWS_STAGE = 128, /* most k in a slot */
    ROWS_CHUNK = 256, /* k of a once-only copy of rows */
    ROWS_CHUNKS = 32,
    ROWS_WARPS = 16,         /* most of a block */
    ROWS_BARRIERS = 1024,    /* bytes at the beginning of shared memory */
    ROWS_BUDGET = 112 << 10, /* bytes of a block, so that the next kernel's fits beside it */
    ROWS_NORM_GROUPS = 8     /* groups of a lane that stay in registers while a row is normed */
};
static_assert((ROWS_WARPS * ROWS_SLOTS + ROWS_CHUNKS) * 8 <= ROWS_BARRIERS, "barriers");

/* Where the activation rows are. */
typedef enum rows_from { ROWS_WHOLE, ROWS_RING, ROWS_NORMED } rows_from;

/* How a block works. */
typedef struct rows_plan {
    uint32_t nb;      /* 1 or 2 blocks of 8 outputs in a tile */
    uint32_t tiles;   /* at a time in a block; each has a warp for every part */
    uint32_t n_tiles; /* of the matrix */
    uint32_t stage;   /* k in a slot */
    uint32_t slot_bytes;
    uint32_t x_at, sums_at; /* offsets in shared memory */
    uint32_t grid, warps;
} rows_plan;

/* Sums of a row lie ROWS_WIDE(nb) floats apart: lanes that store meet no bank twice. */
#define ROWS_WIDE(nb) ((nb)*8 + 4)

/* The place of a warp's next piece: some k of a tile. */
typedef struct rows_place {
    uint32_t tile, k;
} rows_place;

/* A warp and its work. */
template <typename T> struct rows_warp {
    const T *w, *h;
    uint64_t *full;       /* barriers of the slots */
    uint32_t ring, x;     /* shared addresses */
    uint32_t lane_w;      /* offset of this lane's row of the four matrices of a step */
    uint32_t begin, end;  /* the part */
    uint32_t k_pad, rows; /* of the matrix, of io */
    uint32_t lane, stride;
};

/* Operands of 32 values of k: of weights in each 16, of rows in each block of 8. */
template <int RB> struct rows_operands {
    uint32_t w[2][4], x[RB][4];
};

template <typename T>
ROSE_DEVICE void next_place(rows_place *at, const rows_warp<T> &warp, const rows_plan &p)
{
    at->k += p.stage;
    if (at->k < warp.end) return;
    at->k = warp.begin;
    at->tile += warp.stride;
}

ROSE_DEVICE uint32_t piece_end(uint32_t k, uint32_t stage, uint32_t end)
{
    return k + stage < end ? k + stage : end;
}

/* Request the weights of a piece; nothing if no tile is left. */
template <typename T>
ROSE_DEVICE void request_weights(const rows_warp<T> &warp, const rows_plan &p, const rows_place &at,
                                 uint32_t slot)
{
    const uint32_t bytes = (piece_end(at.k, p.stage, warp.end) - at.k) * 16;
    const uint32_t to = warp.ring + slot * p.slot_bytes;
#pragma unroll
    for (uint32_t b = 0; b < 2; b++) {
        const T *from = warp.w + ((size_t)(at.tile * p.nb + b) * warp.k_pad + at.k) * 8;
        const bool there = b < p.nb && at.tile < p.n_tiles;
        ring_copy(to + b * p.stage * 16, there ? from : NULL, bytes, warp.full + slot, warp.lane);
    }
}

/* RING: request the piece's activation rows as well. */
template <typename T, int RB>
ROSE_DEVICE void request_rows(const rows_warp<T> &warp, const rows_plan &p, const rows_place &at,
                              uint32_t slot)
{
    const uint32_t bytes = (piece_end(at.k, p.stage, warp.end) - at.k) * 16;
    const uint32_t to = warp.ring + slot * p.slot_bytes + p.nb * p.stage * 16;
#pragma unroll
    for (uint32_t b = 0; b < RB; b++) {
        const T *from = warp.h + ((size_t)b * warp.k_pad + at.k) * 8;
        const bool there = b * 8 < warp.rows && at.tile < p.n_tiles;
        ring_copy(to + b * p.stage * 16, there ? from : NULL, bytes, warp.full + slot, warp.lane);
    }
}

/* The position of a warp in its ring. */
typedef struct rows_ring {
    uint32_t slot, parity;
    rows_place ahead; /* the piece that the slot that is read next becomes */
    bool fresh;       /* the once-only rows may be under way */
} rows_ring;

template <typename T, int RB, int FROM>
ROSE_DEVICE void open_slot(const rows_warp<T> &warp, rows_ring *ring, uint64_t *once, uint32_t k,
                           uint32_t k1)
{
    /* So many of the youngest pieces may be under way: the slot before is not requested anew yet.
     */
    constexpr int PIECES = (ROWS_SLOTS - 2) * (FROM == ROWS_RING ? RB : 2);
    ring_wait<PIECES + 1>(warp.full + ring->slot, ring->parity);
    ring_meet_warp();
    if (FROM == ROWS_WHOLE && ring->fresh)
        for (uint32_t c = k / ROWS_CHUNK; c * ROWS_CHUNK < k1; c++)
            ring_wait_once(once + c);
}

/* The operands of 32 values from k on. k0: where the slot begins. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void load_operands(rows_operands<RB> *o, const rows_warp<T> &warp, const rows_plan &p,
                               uint32_t slot, uint32_t k, uint32_t k0)
{
    const uint32_t at = warp.ring + slot * p.slot_bytes + (k - k0) * 16;
    load_matrices(o->w[0], at + warp.lane_w);
    load_matrices(o->w[1], at + warp.lane_w + 256);
    const uint32_t lane = warp.lane;
    if constexpr (FROM == ROWS_NORMED) {
        /* Row r of block kb lies at place r ^ kb % 8. */
        const uint32_t place = (lane / 8 * 128 + ((lane % 8) ^ (lane / 8)) * 16) ^ (k / 8 % 8 * 16);
        load_matrices(o->x[0], warp.x + k * 16 + place);
    } else {
#pragma unroll
        for (int b = 0; b < RB; b++)
            load_matrices(o->x[b], (FROM == ROWS_WHOLE ? warp.x + (b * warp.k_pad + k) * 16
                                                       : at + (p.nb + b) * p.stage * 16) +
                                       lane * 16);
    }
}

template <typename T, int RB>
ROSE_DEVICE void multiply(float acc[RB][4], const rows_operands<RB> &o, bool both)
{
    const T *tag = NULL;
#pragma unroll
    for (int b = 0; b < RB; b++)
        mma(acc[b], o.w[0], o.x[b][0], o.x[b][1], tag);
    if (!both) return;
#pragma unroll
    for (int b = 0; b < RB; b++)
        mma(acc[b], o.w[1], o.x[b][2], o.x[b][3], tag);
}

/* The chain of the warp's part of a tile. Operands of the next 32 values of k are loaded before
 * these are multiplied. A slot is requested anew when its last operands have been multiplied. */
template <typename T, int RB, int FROM>
ROSE_DEVICE void run_chain(float acc[RB][4], const rows_warp<T> &warp, const rows_plan &p,
                           rows_ring *ring, uint64_t *once)
{
    uint32_t k = warp.begin, k0 = k, k1 = piece_end(k, p.stage, warp.end);
    rows_operands<RB> even, odd;
    auto turn = [&](const rows_operands<RB> &now, rows_operands<RB> &next) {
        const bool ends = k + 32 >= k1, more = k + 32 < warp.end, both = k + 16 < warp.end;
        const uint32_t old = ring->slot;
        k += 32;
        if (ends && ++ring->slot == ROWS_SLOTS) {
            ring->slot = 0;
            ring->parity ^= 1;
        }
        if (ends && more) {
            k0 = k;
            k1 = piece_end(k, p.stage, warp.end);
            open_slot<T, RB, FROM>(warp, ring, once, k0, k1);
        }
        if (more) load_operands<T, RB, FROM>(&next, warp, p, ring->slot, k, k0);
        multiply<T, RB>(acc, now, both);
        if (ends) {
            __syncwarp();
            request_weights(warp, p, ring->ahead, old);
            if (FROM == ROWS_RING) request_rows<T, RB>(warp, p, ring->ahead, old);
            next_place(&ring->ahead, warp, p);
        }
        return more;
    };
    open_slot<T, RB, FROM>(warp, ring, once, k0, k1);
    load_operands<T, RB, FROM>(&even, warp, p, ring->slot, k, k0);
    while (turn(even, odd) && turn(odd, even)) {
    }
    ring->fresh = false;
}

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
    uint32_t first, step, in_row; /* pairs in a row of the tile */
    uint32_t col;                 /* output of the tile: the same in every row */
} rows_pairs;

ROSE_DEVICE rows_pairs pairs_of(const rose_gemm_io &io, const rows_plan &p, uint32_t part,
                                uint32_t n_parts, uint32_t lane)
{
    rows_pairs r;
    r.in_row = io.end == ROSE_END_GATED ? 4 : p.nb * 4;
    r.first = part * 32 + lane;
    r.step = n_parts * 32;
    r.col = r.first % r.in_row * 2;
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
    for (uint32_t i = r.first; i < io.rows * r.in_row; i += r.step) {
        const uint32_t row = i / r.in_row;
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
template <int RB>
ROSE_DEVICE void send_best(const unsigned long long best[RB * 2], const rose_gemm_io &io,
                           unsigned long long *keys, uint32_t warp, uint32_t n_warps, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < RB * 2; i++) {
        unsigned long long key = best[i];
        for (int x = 1; x < 8; x *= 2) {
            const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
            if (other > key) key = other;
        }
        if (lane % 8 == 0) keys[warp * RB * 8 + lane / 8 + i * 4] = key;
    }
    __syncthreads();
    if (threadIdx.x >= io.rows || threadIdx.x >= RB * 8) return;
    unsigned long long key = 0;
    for (uint32_t i = 0; i < n_warps; i++)
        if (keys[i * RB * 8 + threadIdx.x] > key) key = keys[i * RB * 8 + threadIdx.x];
    atomicMax(io.key + threadIdx.x, key);
}

/* ---- the rows in shared memory ---- */

/* Copy all rows once, chunk by chunk, a warp each. */
template <typename T, int RB>
ROSE_DEVICE void copy_rows(const rows_warp<T> &warp, uint64_t *once, uint32_t first, uint32_t step)
{
    for (uint32_t c = first; c * ROWS_CHUNK < warp.k_pad; c += step) {
        const uint32_t k = c * ROWS_CHUNK, k1 = piece_end(k, ROWS_CHUNK, warp.k_pad);
#pragma unroll
        for (uint32_t b = 0; b < RB; b++) {
            const uint32_t at = b * warp.k_pad + k;
            ring_copy(warp.x + at * 16, b * 8 < warp.rows ? warp.h + (size_t)at * 8 : NULL,
                      (k1 - k) * 16, once + c, warp.lane);
        }
    }
}

/* Norm all rows, a warp each. */
template <typename T>
ROSE_DEVICE void norm_rows(uint8_t *to, const rose_gemm_io &io, uint32_t d, uint32_t first,
                           uint32_t step, uint32_t lane)
{
    const float zeros[8] = {0};
    for (uint32_t row = first; row < io.rows; row += step) {
        auto put = [&](uint32_t k, const float y[8]) {
            store_group(reinterpret_cast<T *>(to + k * 16 + (row ^ k / 8 % 8) * 16), y);
        };
        norm_row<ROWS_NORM_GROUPS>(io.x + (size_t)row * io.ld_x, io.norm, d, lane, put);
        if (d % 16 != 0 && lane == 0) put(d, zeros);
    }
}

/* ---- the kernel ---- */

template <typename T>
ROSE_DEVICE void place_warp(rows_warp<T> *warp, const rose_cuda_matrix &m, const rose_gemm_io &io,
                            const rows_plan &p, uint8_t *memory, uint32_t id)
{
    const uint32_t lane = threadIdx.x % 32, part = id % m.n_parts;
    const bool last = part + 1 == m.n_parts;
    warp->w = static_cast<const T *>(m.w);
    warp->h = static_cast<const T *>(io.h);
    warp->full = reinterpret_cast<uint64_t *>(memory) + id * ROWS_SLOTS;
    warp->ring = shared_at(memory) + ROWS_BARRIERS + id * ROWS_SLOTS * p.slot_bytes;
    warp->x = shared_at(memory) + p.x_at;
    /* Matrices of a step: outputs 0-7 and 8-15, k 0-7; then k 8-15. With one block of outputs its
     * rows come twice, and the second sums are ignored. */
    warp->lane_w = lane / 16 * 128 + lane % 8 * 16 + (p.nb == 2 ? lane / 8 % 2 * p.stage * 16 : 0);
    warp->begin = m.cut[part];
    warp->end =
        last ? (m.k + ROSE_GEMM_GROUP - 1) / ROSE_GEMM_GROUP * ROSE_GEMM_GROUP : m.cut[part + 1];
    warp->k_pad = m.k_pad;
    warp->rows = io.rows;
    warp->lane = lane;
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
    if (!works) return;
    if (warp.lane == 0)
        for (uint32_t i = 0; i < ROWS_SLOTS; i++)
            ring_init(warp.full + i, FROM == ROWS_RING ? 2 + RB : 2);
    for (uint32_t i = 0; i < ROWS_SLOTS; i++) {
        request_weights(warp, p, ring->ahead, i);
        next_place(&ring->ahead, warp, p);
    }
}

/* RING: the rows of the first pieces. */
template <typename T, int RB>
ROSE_DEVICE void start_rows(const rows_warp<T> &warp, const rows_plan &p, uint32_t tile)
{
    rows_place at = {warp.begin < warp.end ? tile : p.n_tiles, warp.begin};
    for (uint32_t i = 0; i < ROWS_SLOTS; i++) {
        request_rows<T, RB>(warp, p, at, i);
        next_place(&at, warp, p);
    }
}

/* Only a matrix of four parts has more than 8 warps in a block. */
static constexpr int rows_bound(int from, bool head)
{
    return from == ROWS_NORMED || head ? ROWS_WARPS * 16 : ROWS_WARPS * 32;
}

template <typename T, int RB, int FROM, bool HEAD>
static __global__ void __launch_bounds__(rows_bound(FROM, HEAD))
    rows_kernel(const __grid_constant__ rose_cuda_matrix m, const __grid_constant__ rose_gemm_io io,
                const __grid_constant__ rows_plan p)
{
    ROSE_ATTEND_MEMORY(memory);
    const uint32_t id = threadIdx.x / 32, lane = threadIdx.x % 32, parts = m.n_parts;
    const uint32_t part = id % parts, mine = id / parts; /* tile of the block */
    const bool works = mine < p.tiles;                   /* the others only norm */
    uint64_t *once = reinterpret_cast<uint64_t *>(memory) + ROWS_WARPS * ROWS_SLOTS;
    float *sums = reinterpret_cast<float *>(memory + p.sums_at);
    const uint32_t apart = RB * 8 * ROWS_WIDE(p.nb), outputs = p.nb * 8;
    rows_warp<T> warp;
    rows_ring ring;
    rows_early in = {};

    if (!io.late) pdl_launch();
    place_warp(&warp, m, io, p, memory, id);
    uint32_t tile = blockIdx.x * p.tiles + mine;
    start_ring<T, RB, FROM>(&ring, warp, p, tile, works);
    if (FROM == ROWS_NORMED) touch_parameters(io.norm, m.k);
    if (FROM == ROWS_WHOLE && threadIdx.x == 0)
        for (uint32_t i = 0; i * ROWS_CHUNK < m.k_pad; i++)
            ring_init(once + i, RB);
    const rows_pairs r = pairs_of(io, p, part, parts, lane);
    load_bias(&in, m, io, tile * outputs + r.col);
    if (FROM == ROWS_WHOLE)
        __syncthreads();
    else
        __syncwarp();
    pdl_wait();
    if constexpr (FROM == ROWS_WHOLE) {
        copy_rows<T, RB>(warp, once, id, blockDim.x / 32);
        ring_meet_once();
    } else if constexpr (FROM == ROWS_RING) {
        start_rows<T, RB>(warp, p, tile);
    } else {
        norm_rows<T>(memory + p.x_at, io, m.k, id, blockDim.x / 32, lane);
        __syncthreads();
        if (!works) return;
    }

    unsigned long long best[RB * 2] = {};
    float *own = sums + id * apart, *first = sums + mine * parts * apart;
    for (uint32_t t0 = blockIdx.x * p.tiles; t0 < p.n_tiles; t0 += warp.stride) {
        const uint32_t n = tile * outputs + r.col;
        float acc[RB][4] = {};
        if (t0 != blockIdx.x * p.tiles) load_bias(&in, m, io, n);
        in.old = load_old(m, io, r.first / r.in_row, n);
        if (tile < p.n_tiles && warp.begin < warp.end)
            run_chain<T, RB, FROM>(acc, warp, p, &ring, once);
        keep_sums<RB>(own, acc, p.nb, lane);
        if (parts > 1)
            __syncthreads();
        else
            __syncwarp();
        if (tile < p.n_tiles) {
            if constexpr (HEAD)
                end_logits<T, RB>(best, m, io, in, first, r.col, n, lane);
            else
                end_tile<T, RB>(m, io, in, r, first, p.nb, n);
        }
        /* before the sums of the next tile */
        if (parts > 1)
            __syncthreads();
        else
            __syncwarp();
        tile += warp.stride;
    }
    if (HEAD && io.key != NULL) {
        __syncthreads();
        send_best<RB>(best, io, reinterpret_cast<unsigned long long *>(sums), id, blockDim.x / 32,
                      lane);
    }
}

/* ---- launchers ---- */

static inline uint32_t rows_up_div(uint32_t x, uint32_t by)
{
    return (x + by - 1) / by;
}

/* Bytes of shared memory, and the offsets in it. */
static inline size_t rows_bytes(rows_plan *p, uint32_t rb, rows_from from,
                                const rose_cuda_matrix *m)
{
    const uint32_t wide = ROWS_WIDE(p->nb), warps = p->tiles * m->n_parts;
    p->slot_bytes = p->stage * 16 * (p->nb + (from == ROWS_RING ? rb : 0));
    p->x_at = ROWS_BARRIERS + warps * ROWS_SLOTS * p->slot_bytes;
    p->sums_at = p->x_at + (from == ROWS_RING ? 0 : rb * 16 * m->k_pad);
    return (size_t)p->sums_at + (size_t)warps * rb * 8 * wide * sizeof(float);
}

/* One wave of blocks of as few tiles as that allows; then smaller slots, then several waves' work
 * for each block, until a block is in its budget. Returns the bytes. */
static inline size_t rows_fit(rows_plan *p, uint32_t rb, rows_from from, const rose_cuda_matrix *m,
                              uint32_t sms, size_t budget)
{
    const uint32_t most = m->n_parts > 1 ? ROWS_WARPS / ROSE_GEMM_PARTS : ROWS_WARPS / 2;
    const uint32_t turns = rows_up_div(p->n_tiles, sms * most);
    p->tiles = rows_up_div(p->n_tiles, sms * turns);
    p->stage = ROWS_STAGE;
    while (rows_bytes(p, rb, from, m) > budget && p->stage > ROWS_STAGE / 2)
        p->stage /= 2;
    while (rows_bytes(p, rb, from, m) > budget && p->tiles > 1)
        p->tiles = (p->tiles + 1) / 2;
    while (rows_bytes(p, rb, from, m) > budget && p->stage > 32)
        p->stage /= 2;
    p->grid = rows_up_div(p->n_tiles, p->tiles);
    const uint32_t waves = rows_up_div(p->grid, sms);
    p->grid = rows_up_div(p->grid, waves);
    p->warps = p->tiles * m->n_parts;
    return rows_bytes(p, rb, from, m);
}

/* Whether the rows lie in shared memory once. They are worth more of it where many tiles follow. */
static inline bool rows_whole(const rows_plan *p, uint32_t rb, const rose_cuda_matrix *m,
                              const rose_cuda_device *d)
{
    const size_t bytes = (size_t)rb * 16 * m->k_pad;
    const bool many = p->n_tiles >= 3 * ROWS_WARPS / 2 * d->sms;
    return m->k_pad <= ROWS_CHUNK * ROWS_CHUNKS && bytes <= d->shared_max / 7 * (many ? 4 : 2);
}

template <typename T, int RB, int FROM, bool HEAD>
static cudaError_t launch_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                               const rose_gemm_io *io, rows_plan *p)
{
    const rose_cuda_device *d = at->device;
    const bool one = FROM != ROWS_NORMED && m->n_parts == 1 && p->n_tiles > d->sms * ROWS_WARPS;
    const size_t room = d->shared_max / 8 * 7, budget = ROWS_BUDGET;
    const size_t most = one || room < budget ? room : budget;
    const size_t bytes = rows_fit(p, RB, (rows_from)FROM, m, d->sms, most);
    if (bytes > d->shared_max) return cudaErrorInvalidConfiguration;
    uint32_t warps = p->warps;
    if (FROM == ROWS_NORMED && warps < io->rows) warps = io->rows;
    return launch_kernel(at, rows_kernel<T, RB, FROM, HEAD>, dim3(p->grid), warps * 32, bytes, *m,
                         *io, *p);
}

template <typename T, int RB>
static cudaError_t run_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                            const rose_gemm_io *io)
{
    const rose_cuda_device *d = at->device;
    const bool head = io->end == ROSE_END_LOGITS;
    const uint32_t n8 = rows_up_div(m->n, 8);
    rows_plan p = {};
    p.nb = m->gated || head || n8 > d->sms * ROWS_WARPS / (m->n_parts > 1 ? 4 : 2) ? 2 : 1;
    p.n_tiles = rows_up_div(n8, p.nb);
    const bool whole = rows_whole(&p, RB, m, d);
    /* The rings of fewer warps read fewer copies of the rows. */
    if (RB > 1 && !whole) p.nb = 2;
    p.n_tiles = rows_up_div(n8, p.nb);
    if (whole && head) return launch_rows<T, RB, ROWS_WHOLE, true>(at, m, io, &p);
    if (whole) return launch_rows<T, RB, ROWS_WHOLE, false>(at, m, io, &p);
    if (head) return launch_rows<T, RB, ROWS_RING, true>(at, m, io, &p);
    return launch_rows<T, RB, ROWS_RING, false>(at, m, io, &p);
}

template <typename T>
static cudaError_t run_normed(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                              const rose_gemm_io *io)
{
    const uint32_t n8 = rows_up_div(m->n, 8);
    rows_plan p = {};
    if (io->rows > ROSE_GEMM_NORM_ROWS || m->n_parts != 1 || io->end == ROSE_END_LOGITS ||
        m->k % 8 != 0)
        return cudaErrorInvalidValue;
    p.nb = m->gated || n8 > at->device->sms * ROWS_WARPS / 2 ? 2 : 1;
    p.n_tiles = rows_up_div(n8, p.nb);
    return launch_rows<T, 1, ROWS_NORMED, false>(at, m, io, &p);
}

/* The smallest kernel that takes the rows. */
template <typename T>
static cudaError_t run_gemm_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                 const rose_gemm_io *io)
{
    if ((io->end == ROSE_END_RESIDUAL) != (m->n_parts > 1) ||
        (io->end == ROSE_END_GATED && !m->gated))
        return cudaErrorInvalidValue;
    if (io->h == NULL) return run_normed<T>(at, m, io);
    if (io->rows <= 8) return run_rows<T, 1>(at, m, io);
    if (io->rows <= 16) return run_rows<T, 2>(at, m, io);
    if (io->rows <= 32) return run_rows<T, 4>(at, m, io);
    return cudaErrorInvalidValue;
}

template <typename T> static cudaError_t prepare_rows(const rose_cuda_device *d)
{
#define EACH(RB)                                                                                   \
    (const void *)rows_kernel<T, RB, ROWS_WHOLE, false>,                                           \
        (const void *)rows_kernel<T, RB, ROWS_WHOLE, true>,                                        \
        (const void *)rows_kernel<T, RB, ROWS_RING, false>,                                        \
        (const void *)rows_kernel<T, RB, ROWS_RING, true>
    const void *const kernels[] = {(const void *)rows_kernel<T, 1, ROWS_NORMED, false>, EACH(1),
                                   EACH(2), EACH(4)};
#undef EACH
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)d->shared_max);
    return e;
}

#endif
