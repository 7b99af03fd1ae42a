/* backend/cuda/linear_hopper.cuh - matrix products of 16-bit types on sm_90a, from about 64 rows
 * up. The same bits as linear.cuh: chunks of 192 values of k, in each the groups of 16 chained in
 * the accumulator from zero, the chunks added in fp32, ascending, to +0.
 *
 * Both kernels compute the product with outputs as the 64 rows of wgmma and the rows of the batch
 * as its columns: packed weights are then the operand in registers as they lie, one 16-byte load a
 * lane for two products, and never touch shared memory; blocked activations are the operand in
 * shared memory as they lie, in copies of whole kilobytes.
 *
 * The stream kernel (many rows): one block a multiprocessor walks over tiles of 128 outputs x TN
 * rows. A warp copies rows ahead into a ring of stages of 64 values of k, shared by a cluster of CL
 * blocks that have the same rows; two warpgroups of 64 outputs each multiply, weights loaded two
 * stages ahead. They share nothing but the ring, so one's epilogue can run under the other's products.
 *
 * The split kernel (64 to a few hundred rows): a tile of 64 outputs x TN rows is shared by a
 * cluster of blocks, each with its share of the chunks, so that all weights are in flight at once;
 * the sums of the chunks are then added in order through distributed shared memory. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_HOPPER_CUH
#define ROSE_BACKEND_CUDA_LINEAR_HOPPER_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_types.h"

enum {
    GROUP_OUTPUTS = 64, /* of a warpgroup */
    GROUPS = 2,         /* that multiply, in the stream kernel */
    STAGE_K = 64,
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    CHUNK_STAGES = CHUNK_K / STAGE_K,
    SUM_LD = GROUP_OUTPUTS + 4, /* floats from row to row of sums in shared memory */
    PART = 64 * SUM_LD          /* floats of sums that pass through it at a time */
};

#if ROSE_HOPPER

/* The operands of 32 values of k x 16 outputs, of two products of 16: the lane's places in two
 * tiles. */
ROSE_DEVICE void place_outputs(uint32_t a[8], const uint4 &lo, const uint4 &hi)
{
    a[0] = lo.x;
    a[1] = hi.x;
    a[2] = lo.y;
    a[3] = hi.y;
    a[4] = lo.z;
    a[5] = hi.z;
    a[6] = lo.w;
    a[7] = hi.w;
}

/* From a stage in shared memory. */
ROSE_DEVICE void load_outputs(uint32_t a[8], uint32_t at)
{
    place_outputs(a, load_shared16(at), load_shared16(at + 1024));
}

/* ---- the epilogue: four outputs n .. n + 3 of a row; short loops over shared memory, because code
 * unrolled over the fragments takes longer to fetch than the product takes ---- */

/* Loads that stay where they are written: else the compiler moves each to its use, behind the
 * barrier, one wait after the other. */
ROSE_DEVICE float4 load_now(const float4 *p)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
ROSE_DEVICE uint32_t load_now(const uint32_t *p)
{
    uint32_t r;
    asm volatile("ld.global.cg.u32 %0,[%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}

/* Of outputs n .. n + N - 1; zeros beyond the last. */
template <int N> ROSE_DEVICE void load_bias_now(float v[N], const rose_cuda_linear &l, uint32_t n)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = l.bias != NULL && n + i < l.n
                   ? __uint_as_float(load_now(reinterpret_cast<const uint32_t *>(l.bias) + n + i))
                   : 0.0f;
}

ROSE_DEVICE float4 load_bias4(const rose_cuda_linear &l, uint32_t n)
{
    float v[4];
    load_bias_now<4>(v, l, n);
    return make_float4(v[0], v[1], v[2], v[3]);
}

ROSE_DEVICE float4 add4(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <typename T> ROSE_DEVICE uint2 pack4(const float4 &v, const T *tag)
{
    return make_uint2(pair_f32(v.x, v.y, tag), pair_f32(v.z, v.w, tag));
}

ROSE_DEVICE float4 clamp4(const float4 &v, float top)
{
    return make_float4(fminf(fmaxf(v.x, -top), top), fminf(fmaxf(v.y, -top), top),
                       fminf(fmaxf(v.z, -top), top), fminf(fmaxf(v.w, -top), top));
}

ROSE_DEVICE float *residual_at(const rose_cuda_io &io, uint32_t row, uint32_t n)
{
    return io.x + (size_t)row * io.ld_x + n;
}

/* `act` a constant where it can be: the code of the others is then not fetched. */
ROSE_DEVICE float4 activate4(const float4 &v, uint32_t act)
{
    return make_float4(activate(v.x, act), activate(v.y, act), activate(v.z, act),
                       activate(v.w, act));
}

template <typename T>
ROSE_DEVICE void store_act4(const rose_cuda_io &io, uint32_t row, uint32_t n, const float4 &y)
{
    T *out = static_cast<T *>(io.out) + h_index(row, n, io.out_k_pad);
    *reinterpret_cast<uint2 *>(out) = pack4(y, out);
}

/* Where outputs n and those behind it in the same head go: `to` for q is their place in row 0, for
 * K and V in token 0 of page 0. */
typedef struct qkv_place {
    uint32_t part; /* 0 q, 1 K, 2 V */
    size_t to;     /* in values */
} qkv_place;

ROSE_DEVICE qkv_place place_qkv(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n)
{
    const uint32_t d = l.k, part = n >= 2 * d ? 2 : n >= d, c = n - part * d;
    const uint32_t head = c / io.kv.head_dim, dim = c % io.kv.head_dim;
    const size_t block = (size_t)head * (2 * ROSE_PAGE) * io.kv.hd_pad;
    qkv_place p;
    p.part = part;
    p.to = part == 0   ? c
           : part == 1 ? block + k_index(0, dim)
                       : block + ROSE_PAGE * io.kv.hd_pad + v_index(0, dim);
    return p;
}

template <typename T>
ROSE_DEVICE T *kv_at(const rose_cuda_io &io, const qkv_place &p, uint32_t slot)
{
    const uint32_t token = slot % ROSE_PAGE;
    return static_cast<T *>(io.kv.base) + slot / ROSE_PAGE * io.kv.page_elems + p.to +
           (p.part == 1 ? k_index(token, 0) : v_index(token, 0));
}

/* Four outputs from a multiple of 4 on, so of one head: its size is a multiple of 4. */
template <typename T>
ROSE_DEVICE void finish_qkv4(const rose_cuda_linear &l, const rose_cuda_io &io, const qkv_place &p,
                             uint32_t row, const float4 &v, uint32_t slot)
{
    if (p.part == 0) {
        T *q = static_cast<T *>(io.q) + (size_t)row * l.k + p.to;
        *reinterpret_cast<uint2 *>(q) = pack4(v, q);
        return;
    }
    if (slot == ROSE_CUDA_NO_SLOT) return;
    T *to = kv_at<T>(io, p, slot);
    const uint2 u = pack4(clamp4(v, largest(to)), to);
    if (p.part == 1) { /* two dims a lane of 8 values */
        *reinterpret_cast<uint32_t *>(to) = u.x;
        *reinterpret_cast<uint32_t *>(to + 8) = u.y;
        return;
    }
    uint16_t *at = reinterpret_cast<uint16_t *>(to); /* dims lie 4 lanes apart */
    at[0] = (uint16_t)u.x;
    at[32] = (uint16_t)(u.x >> 16);
    at[64] = (uint16_t)u.y;
    at[96] = (uint16_t)(u.y >> 16);
}

ROSE_DEVICE void store_logits4(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row,
                               uint32_t n, const float4 &v)
{
    float *at = io.logits + (size_t)row * io.ld_logits + n;
    if (io.ld_logits % 4 == 0 && n + 3 < l.n) {
        *reinterpret_cast<float4 *>(at) = v;
        return;
    }
    at[0] = v.x;
    if (n + 1 < l.n) at[1] = v.y;
    if (n + 2 < l.n) at[2] = v.z;
    if (n + 3 < l.n) at[3] = v.w;
}

/* The largest of them as an ordered number; *id is its place, the lowest of equals. */
ROSE_DEVICE uint32_t largest_of4(const rose_cuda_linear &l, uint32_t n, const float4 &v,
                                 uint32_t *id)
{
    const float y[4] = {v.x, v.y, v.z, v.w};
    uint32_t best = 0;
    *id = n;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t order = n + i < l.n ? order_of(y[i]) : 0;
        if (order > best) *id = n + i;
        best = max(best, order);
    }
    return best;
}

/* V of two neighbouring rows and outputs: neighbours in memory where the rows are in their page. */
template <typename T>
ROSE_DEVICE void finish_v2(const rose_cuda_io &io, const qkv_place &p, const float2 &a,
                           const float2 &b, uint32_t slot0, uint32_t slot1)
{
    const T *tag = NULL;
    const float top = largest(tag);
    const uint32_t u[2] = {
        pair_f32(fminf(fmaxf(a.x, -top), top), fminf(fmaxf(b.x, -top), top), tag),
        pair_f32(fminf(fmaxf(a.y, -top), top), fminf(fmaxf(b.y, -top), top), tag)};
    if (slot0 % 2 == 0 && slot1 == slot0 + 1) { /* NO_SLOT is odd, and no page ends before it */
        T *to = kv_at<T>(io, p, slot0);
        *reinterpret_cast<uint32_t *>(to) = u[0];
        *reinterpret_cast<uint32_t *>(to + 32) = u[1];
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint32_t slot = e == 0 ? slot0 : slot1;
        if (slot == ROSE_CUDA_NO_SLOT) continue;
        uint16_t *to = reinterpret_cast<uint16_t *>(kv_at<T>(io, p, slot));
        to[0] = (uint16_t)(u[0] >> (e * 16));
        to[32] = (uint16_t)(u[1] >> (e * 16));
    }
}

/* What the epilogue of a thread reads from memory, before the sums are there. */
typedef struct block_inputs {
    float4 bias;
    float4 old[8];    /* of the residual */
    uint32_t slot[8]; /* of K and V */
    float v_bias[2][2];
} block_inputs;

/* A thread's quads in 64 rows x 64 outputs: its four outputs of rows r, r + 8, ... For V, pairs
 * instead: rows v_row(i) and the next, outputs v_col(i) and the next. */
enum { QUAD_ROWS = 8 };

ROSE_DEVICE int v_row(int i)
{
    return (i / 2 * 8 + threadIdx.x % 8) * 2;
}
ROSE_DEVICE int v_col(int i)
{
    return (i % 2 * 16 + threadIdx.x % 128 / 8) * 2;
}

ROSE_DEVICE void load_block_inputs(block_inputs *in, const rose_cuda_linear &l,
                                   const rose_cuda_io &io, uint32_t row0, uint32_t n0)
{
    const uint32_t n = n0 + threadIdx.x % 16 * 4, r0 = row0 + threadIdx.x % 128 / 16;
    const bool v = n0 >= 2 * l.k;
    if (io.epilogue == ROSE_CUDA_EPI_QKV && v) {
        load_bias_now<2>(in->v_bias[0], l, n0 + v_col(0));
        load_bias_now<2>(in->v_bias[1], l, n0 + v_col(1));
    } else {
        in->bias = load_bias4(l, n);
    }
    if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t row = r0 + i * QUAD_ROWS;
            if (row < io.rows && n < l.n)
                in->old[i] = load_now(reinterpret_cast<const float4 *>(residual_at(io, row, n)));
        }
    } else if (io.epilogue == ROSE_CUDA_EPI_QKV && n0 >= l.k) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t row = v ? row0 + v_row(i) + i % 2 : r0 + i * QUAD_ROWS;
            in->slot[i] = row < io.rows ? load_now(io.slot + row) : ROSE_CUDA_NO_SLOT;
        }
    }
}

/* V's share of finish_block. */
template <typename T>
ROSE_DEVICE void finish_v(const float *sums, const rose_cuda_linear &l, const rose_cuda_io &io,
                          uint32_t row0, uint32_t n0, const block_inputs &in)
{
    const qkv_place place[2] = {place_qkv(l, io, n0 + v_col(0)), place_qkv(l, io, n0 + v_col(1))};
    float2 a[8], b[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float *v = sums + v_row(i) * SUM_LD + v_col(i);
        a[i] = *reinterpret_cast<const float2 *>(v);
        b[i] = *reinterpret_cast<const float2 *>(v + SUM_LD);
        if (l.bias != NULL) {
            const float *add = in.v_bias[i % 2];
            a[i] = make_float2(a[i].x + add[0], a[i].y + add[1]);
            b[i] = make_float2(b[i].x + add[0], b[i].y + add[1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (n0 + v_col(i) < l.n)
            finish_v2<T>(io, place[i % 2], a[i], b[i], in.slot[i / 2 * 2], in.slot[i / 2 * 2 + 1]);
}

/* 64 rows x 64 outputs of sums, [64][SUM_LD], by one warpgroup. */
template <typename T>
ROSE_DEVICE void finish_block(const float *sums, const rose_cuda_linear &l, const rose_cuda_io &io,
                              uint32_t row0, uint32_t n0, const block_inputs &in)
{
    const int lane = threadIdx.x % 32;
    const uint32_t n = n0 + threadIdx.x % 16 * 4, r0 = row0 + threadIdx.x % 128 / 16;
    const float *at = sums + (threadIdx.x % 128 / 16) * SUM_LD + threadIdx.x % 16 * 4;
    const bool biased = l.bias != NULL, live = n < l.n;

    if (io.epilogue == ROSE_CUDA_EPI_QKV && n0 >= 2 * l.k) {
        finish_v<T>(sums, l, io, row0, n0, in);
        return;
    }
    if (io.epilogue == ROSE_CUDA_EPI_ACT && io.act != ROSE_ACT_GELU_TANH) {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            float4 v = *reinterpret_cast<const float4 *>(at + i * QUAD_ROWS * SUM_LD);
            if (biased) v = add4(v, in.bias);
            if (r0 + i * QUAD_ROWS < io.rows && live)
                store_act4<T>(io, r0 + i * QUAD_ROWS, n, activate4(v, io.act));
        }
        return;
    }
    /* All loads and sums first: between branches nothing would overlap. */
    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = *reinterpret_cast<const float4 *>(at + i * QUAD_ROWS * SUM_LD);
        if (biased) v[i] = add4(v[i], in.bias);
    }
    if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (r0 + i * QUAD_ROWS < io.rows && live)
                *reinterpret_cast<float4 *>(residual_at(io, r0 + i * QUAD_ROWS, n)) =
                    add4(in.old[i], v[i]);
    } else if (io.epilogue == ROSE_CUDA_EPI_ACT) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = activate4(v[i], ROSE_ACT_GELU_TANH);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (r0 + i * QUAD_ROWS < io.rows && live)
                store_act4<T>(io, r0 + i * QUAD_ROWS, n, v[i]);
    } else if (io.epilogue == ROSE_CUDA_EPI_LOGITS) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (r0 + i * QUAD_ROWS < io.rows && live)
                store_logits4(l, io, r0 + i * QUAD_ROWS, n, v[i]);
        if (io.key == NULL) return;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t id, best = largest_of4(l, n, v[i], &id), top = best;
#pragma unroll
            for (int x = 1; x < 16; x *= 2)
                top = max(top, __shfl_xor_sync(ROSE_ALL_LANES, top, x));
            /* The first lane of the row that has it has the lowest id. */
            const uint32_t have = __ballot_sync(ROSE_ALL_LANES, best == top) >> (lane & 16);
            if (__ffs((int)(have & 0xffff)) - 1 == lane % 16 && r0 + i * QUAD_ROWS < io.rows &&
                live)
                atomicMax(io.key + r0 + i * QUAD_ROWS,
                          (unsigned long long)best << 32 | (uint32_t)~id);
        }
    } else {
        const qkv_place place = place_qkv(l, io, n);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (r0 + i * QUAD_ROWS < io.rows && live)
                finish_qkv4<T>(l, io, place, r0 + i * QUAD_ROWS, v[i], in.slot[i]);
    }
}

/* Sums as wgmma leaves them: of 8 rows a lane has rows 2t and 2t + 1, outputs n + g and n + g + 8
 * of its warp. Through `part`, 64 rows at a time. */
template <typename T, int TN>
ROSE_DEVICE void finish_tile(const float (&s)[TN / 2], float *part, int barrier,
                             const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row0,
                             uint32_t n0)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, g = lane / 4, t = lane % 4;
    float *to = part + t * 2 * SUM_LD + thread / 32 * 16 + g;
#pragma unroll 1
    for (int first = 0; first < TN && row0 + first < io.rows; first += 64) {
        block_inputs in;
        load_block_inputs(&in, l, io, row0 + first, n0);
        asm volatile("bar.sync %0,128;" ::"r"(barrier) : "memory"); /* part is free */
#pragma unroll
        for (int half = 0; half < TN; half += 64)
            if (half == first)
#pragma unroll
                for (int i = 0; i < 32; i++)
                    to[(i / 4 * 8 + i % 2) * SUM_LD + i / 2 % 2 * 8] = s[half / 2 + i];
        asm volatile("bar.sync %0,128;" ::"r"(barrier) : "memory");
        finish_block<T>(part, l, io, row0 + first, n0, in);
    }
}

#endif

/* ---- the stream kernel ---- */

#if ROSE_HOPPER

/* The tiles of a block. A cluster has CX tiles side by side (same rows) and CY below each other
 * (same outputs); clusters go over the outputs first. */
typedef struct tile_walk {
    uint32_t at, n, step, n_cols, x, y;
} tile_walk;

template <int TN, int CX, int CY>
ROSE_DEVICE tile_walk first_tile(const rose_cuda_linear &l, const rose_cuda_io &io)
{
    const uint32_t rank = CX * CY > 1 ? cluster_rank() : 0;
    tile_walk w;
    w.n_cols = (l.n + GROUPS * GROUP_OUTPUTS * CX - 1) / (GROUPS * GROUP_OUTPUTS * CX);
    w.n = w.n_cols * ((io.rows + TN * CY - 1) / (TN * CY));
    w.at = blockIdx.x / (CX * CY);
    w.step = gridDim.x / (CX * CY);
    w.x = rank % CX;
    w.y = rank / CX;
    return w;
}

/* The first output and the first row of a tile; they may lie beyond the last. */
template <int CX> ROSE_DEVICE uint32_t tile_output(const tile_walk &w)
{
    return (w.at % w.n_cols * CX + w.x) * (GROUPS * GROUP_OUTPUTS);
}
template <int TN, int CY> ROSE_DEVICE uint32_t tile_row(const tile_walk &w)
{
    return (w.at / w.n_cols * CY + w.y) * TN;
}

ROSE_DEVICE uint32_t whole_stages(const rose_cuda_linear &l)
{
    return (l.k_pad + CHUNK_K - 1) / CHUNK_K * CHUNK_STAGES;
}

/* One thread: the ring, stage after stage: weights, then rows. The weights of the first stages are
 * under way before the kernel in front has ended. */
template <typename T, int TN, int CX, int CY, int STAGES>
ROSE_DEVICE void copy_ahead(const rose_cuda_linear &l, const rose_cuda_io &io,
                            const CUtensorMap *w_map, const CUtensorMap *h_map, uint32_t ring,
                            uint32_t full, uint32_t empty)
{
    constexpr uint32_t WEIGHTS = GROUPS * GROUP_OUTPUTS * STAGE_K * sizeof(T);
    constexpr uint32_t STAGE = WEIGHTS + TN * STAGE_K * sizeof(T);
    constexpr uint32_t N_W = GROUPS * GROUP_OUTPUTS / 8 / CY, N_H = TN / 8 / CX;
    const uint32_t n_stages = whole_stages(l); /* beyond k the copies are zeros */
    uint32_t slot = 0, parity = 1, early = 0;
    tile_walk w = first_tile<TN, CX, CY>(l, io);
    uint32_t below = 0; /* the blocks with the same outputs */
    const uint32_t beside = ((1u << CX) - 1) << (w.y * CX);
    for (int i = 0; i < CY; i++)
        below |= 1u << (w.x + i * CX);

    for (; w.at < w.n && early < STAGES && early < n_stages; early++) {
        barrier_expect(full + early * 8, STAGE);
        const uint32_t to = ring + early * STAGE + w.y * N_W * 1024;
        const uint32_t n8 = tile_output<CX>(w) / 8 + w.y * N_W;
        if constexpr (CY > 1)
            copy_box_all(to, w_map, early * (STAGE_K / 8), n8, full + early * 8, below);
        else
            copy_box(to, w_map, early * (STAGE_K / 8), n8, full + early * 8);
    }
    pdl_wait();
    for (; w.at < w.n; w.at += w.step) {
        const uint32_t n8 = tile_output<CX>(w) / 8 + w.y * N_W;
        const uint32_t row8 = tile_row<TN, CY>(w) / 8 + w.x * N_H;
        for (uint32_t s = 0; s < n_stages; s++) {
            const uint32_t ready = full + slot * 8, core = s * (STAGE_K / 8);
            const uint32_t to = ring + slot * STAGE, to_h = to + WEIGHTS + w.x * N_H * 1024;
            if (early > 0) {
                early--;
            } else {
                barrier_wait(empty + slot * 8, parity);
                barrier_expect(ready, STAGE);
                if constexpr (CY > 1)
                    copy_box_all(to + w.y * N_W * 1024, w_map, core, n8, ready, below);
                else
                    copy_box(to, w_map, core, n8, ready);
            }
            if constexpr (CX > 1)
                copy_box_all(to_h, h_map, core, row8, ready, beside);
            else
                copy_box(to_h, h_map, core, row8, ready);
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
    }
}

template <typename T, int TN, int CX, int CY, int STAGES>
ROSE_DEVICE void multiply_tiles(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t ring,
                                uint32_t full, uint32_t empty, float *part)
{
    constexpr uint32_t WEIGHTS = GROUPS * GROUP_OUTPUTS * STAGE_K * sizeof(T);
    constexpr uint32_t STAGE = WEIGHTS + TN * STAGE_K * sizeof(T);
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32;
    const int lane = threadIdx.x % 32;
    const uint32_t n_chunks = whole_stages(l) / CHUNK_STAGES;
    const uint32_t mine = (group * 8 + warp * 2) * 1024 + lane * 16;
    uint32_t a[3][8]; /* operands of this step of 32 values of k, of the next, of the one before */
    uint32_t slot = 0, parity = 0, at = ring;
    float acc[TN / 2], sum[TN / 2];

    tile_walk w = first_tile<TN, CX, CY>(l, io);
    /* Whom a lane tells that a stage is free: the blocks of its row, then those of its column. */
    const uint32_t other = lane - CX + (lane - CX >= (int)w.y);
    const uint32_t peer = lane < CX ? w.y * CX + lane : other * CX + w.x;
    const bool tells = lane < CX + CY - 1;
    pdl_wait();
    if (w.at < w.n) {
        barrier_wait(full, 0);
        load_outputs(a[0], at + mine);
    }
    for (; w.at < w.n; w.at += w.step) {
#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            sum[i] = 0;
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
            const bool last = chunk + 1 == n_chunks && w.at + w.step >= w.n;
#pragma unroll
            for (int i = 0; i < ROSE_CUDA_CHUNK_K32; i++) {
                const uint64_t rows = core_matrices(at + WEIGHTS, STAGE_K * 16) + i % 2 * 32;
                const uint32_t before = slot;
                wgmma_fence();
                wgmma(acc, a[i % 3], rows, i > 0, static_cast<const T *>(NULL));
                wgmma(acc, a[i % 3] + 4, rows + 16, 1, static_cast<const T *>(NULL));
                wgmma_commit();
                /* The next step's operands while the products run. */
                if (i % 2 == 1) {
                    if (++slot == STAGES) {
                        slot = 0;
                        parity ^= 1;
                    }
                    at = ring + slot * STAGE;
                }
                if (i + 1 < ROSE_CUDA_CHUNK_K32 || !last) {
                    if (i % 2 == 1) barrier_wait(full + slot * 8, parity);
                    load_outputs(a[(i + 1) % 3], at + mine + (i + 1) % 2 * 512);
                }
                if (i + 1 < ROSE_CUDA_CHUNK_K32)
                    wgmma_wait<1>();
                else
                    wgmma_wait<0>();
                if (i % 2 == 0 && i > 0 && tells) /* the stage before has been read */
                    barrier_arrive(empty + (before == 0 ? STAGES - 1 : before - 1) * 8, peer);
                if (i + 1 == ROSE_CUDA_CHUNK_K32 && tells) barrier_arrive(empty + before * 8, peer);
            }
            keep_here(acc);
#pragma unroll
            for (int i = 0; i < TN / 2; i++)
                sum[i] += acc[i];
        }
        finish_tile<T, TN>(sum, part + group * PART, 1 + group, l, io, tile_row<TN, CY>(w),
                           tile_output<CX>(w) + group * GROUP_OUTPUTS);
    }
}

#endif

template <typename T, int TN, int CX, int CY, int STAGES>
static __global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    stream_kernel(const rose_cuda_linear l, const rose_cuda_io io,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    extern __shared__ __align__(1024) uint8_t stages[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr uint32_t STAGE = (GROUPS * GROUP_OUTPUTS + TN) * STAGE_K * sizeof(T);
    const uint32_t ring = shared_address(stages), full_at = shared_address(full),
                   empty_at = shared_address(empty);
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full_at + i * 8, 1);
            barrier_init(empty_at + i * 8, GROUPS * 4 * (CX + CY - 1));
        }
        barrier_init_done();
    }
    if constexpr (CX * CY > 1)
        cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            copy_ahead<T, TN, CX, CY, STAGES>(l, io, &w_map, &h_map, ring, full_at, empty_at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<T, TN, CX, CY, STAGES>(l, io, ring, full_at, empty_at,
                                              reinterpret_cast<float *>(stages + STAGES * STAGE));
    }
    if constexpr (CX * CY > 1) cluster_sync(); /* no block leaves while others signal it */
#endif
}

/* ---- the split kernel ---- */

#if ROSE_HOPPER

/* Weights of one chunk for a warp's 16 outputs. */
ROSE_DEVICE void load_chunk(uint32_t (&a)[ROSE_CUDA_CHUNK_K32][8], const uint4 *w, uint32_t n_k32,
                            uint32_t chunk)
{
#pragma unroll
    for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
        const uint4 *at = w + (size_t)(chunk * ROSE_CUDA_CHUNK_K32 + j) * 32;
        if (chunk * ROSE_CUDA_CHUNK_K32 + j < n_k32) {
            place_outputs(a[j], load_early(at), load_early(at + (size_t)n_k32 * 32));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[j][i] = 0;
    }
}

/* What the epilogue of four outputs of rows r, r + step, ... of a tile reads from memory. */
template <int QUADS> struct split_inputs {
    float4 bias, old[QUADS];
    uint32_t slot[QUADS];
};

template <int QUADS>
ROSE_DEVICE void load_split_inputs(split_inputs<QUADS> *in, const rose_cuda_linear &l,
                                   const rose_cuda_io &io, uint32_t row0, uint32_t r0,
                                   uint32_t step, uint32_t end, uint32_t n)
{
    in->bias = load_bias4(l, n);
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const uint32_t r = r0 + q * step, row = row0 + r;
        if (r >= end || row >= io.rows || n >= l.n) continue;
        if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
            in->old[q] = load_now(reinterpret_cast<const float4 *>(residual_at(io, row, n)));
        if (io.epilogue == ROSE_CUDA_EPI_QKV) in->slot[q] = load_now(io.slot + row);
    }
}

/* Four outputs of QUADS rows each: the chunks' sums, ascending, from whichever block has them. */
template <int QUADS>
ROSE_DEVICE void add_chunks(float4 v[QUADS], const uint32_t at[QUADS], uint32_t pitch,
                            uint32_t n_chunks, uint32_t each)
{
    uint32_t rank = 0, in_block = 0;
#pragma unroll
    for (int q = 0; q < QUADS; q++)
        v[q] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (uint32_t i = 0; i < n_chunks; i++) {
        float4 c[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            c[q] = cluster_load(cluster_address(at[q] + in_block * pitch, rank));
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            v[q].x += c[q].x;
            v[q].y += c[q].y;
            v[q].z += c[q].z;
            v[q].w += c[q].w;
        }
        if (++in_block == each) {
            in_block = 0;
            rank++;
        }
    }
}

#endif

/* Grid: (blocks of a cluster, n_pad / 64, row tiles); a block takes `each` chunks. */
template <typename T, int TN>
static __global__ void __launch_bounds__(128, 3)
    split_kernel(const rose_cuda_linear l, const rose_cuda_io io, const uint32_t each,
                 const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    constexpr uint32_t PITCH = TN * CHUNK_K * sizeof(T);
    static_assert(PITCH >= TN * SUM_LD * sizeof(float), "sums replace the rows they are made of");
    extern __shared__ __align__(1024) uint8_t chunks[];
    __shared__ uint64_t full[8];
    const uint32_t ring = shared_address(chunks), full_at = shared_address(full);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t n_k32 = l.k_pad / 32;
    const uint32_t n_chunks = (n_k32 + ROSE_CUDA_CHUNK_K32 - 1) / ROSE_CUDA_CHUNK_K32;
    const uint32_t first = blockIdx.x * each;
    const uint32_t mine = min(each, n_chunks - first);
    const uint32_t n0 = blockIdx.y * GROUP_OUTPUTS, row0 = blockIdx.z * TN;
    const uint4 *w =
        static_cast<const uint4 *>(l.w) + (size_t)(n0 / 8 + warp * 2) * n_k32 * 32 + lane;
    uint32_t a[ROSE_CUDA_CHUNK_K32][8], next[ROSE_CUDA_CHUNK_K32][8];

    pdl_launch();
    load_chunk(a, w, n_k32, first);
    if (mine > 1) load_chunk(next, w, n_k32, first + 1);
    if (threadIdx.x == 0) {
        for (uint32_t c = 0; c < mine; c++)
            barrier_init(full_at + c * 8, 1);
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x == 0)
        for (uint32_t c = 0; c < mine; c++) {
            barrier_expect(full_at + c * 8, PITCH);
            copy_box(ring + c * PITCH, &h_map, (first + c) * (CHUNK_K / 8), row0 / 8,
                     full_at + c * 8);
        }
    /* What is finished here, below: eight rows a round and block, 16 threads a row, two rounds at a
     * time. */
    constexpr int QUADS = 2;
    const uint32_t n = n0 + threadIdx.x % 16 * 4, step = gridDim.x * 8;
    const uint32_t my_row = blockIdx.x * 8 + threadIdx.x / 16;
    split_inputs<QUADS> in;
    qkv_place place;
    load_split_inputs<QUADS>(&in, l, io, row0, my_row, step, TN, n);
    if (io.epilogue == ROSE_CUDA_EPI_QKV) place = place_qkv(l, io, n);
#pragma unroll 1
    for (uint32_t c = 0; c < mine; c++) {
        float acc[TN / 2];
        const uint64_t rows = core_matrices(ring + c * PITCH, CHUNK_K * 16);
        barrier_wait(full_at + c * 8, 0);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
            wgmma(acc, a[j], rows + j * 32, j > 0, static_cast<const T *>(NULL));
            wgmma(acc, a[j] + 4, rows + j * 32 + 16, 1, static_cast<const T *>(NULL));
        }
        wgmma_commit();
        wgmma_wait<0>();
        keep_here(acc);
#pragma unroll
        for (int j = 0; j < ROSE_CUDA_CHUNK_K32 * 8; j++)
            a[j / 8][j % 8] = next[j / 8][j % 8];
        if (c + 2 < mine) load_chunk(next, w, n_k32, first + c + 2);
        __syncthreads(); /* every warp has read the rows */
        float *to = reinterpret_cast<float *>(chunks + c * PITCH) + warp * 16 + g;
#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            to[(i / 4 * 8 + t * 2 + i % 2) * SUM_LD + i / 2 % 2 * 8] = acc[i];
    }
#pragma unroll 1
    for (uint32_t r0 = my_row; r0 < TN; r0 += step * QUADS) {
        uint32_t at[QUADS];
        float4 v[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            at[q] = ring +
                    ((r0 + q * step < TN ? r0 + q * step : r0) * SUM_LD + threadIdx.x % 16 * 4) * 4;
        if (r0 == my_row)
            cluster_sync();
        else
            load_split_inputs<QUADS>(&in, l, io, row0, r0, step, TN, n);
        add_chunks<QUADS>(v, at, PITCH, n_chunks, each);
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const uint32_t r = r0 + q * step, row = row0 + r;
            if (r >= TN || row >= io.rows || n >= l.n) continue;
            if (l.bias != NULL) v[q] = add4(v[q], in.bias);
            if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
                *reinterpret_cast<float4 *>(residual_at(io, row, n)) = add4(in.old[q], v[q]);
            else if (io.epilogue == ROSE_CUDA_EPI_ACT)
                store_act4<T>(io, row, n, activate4(v[q], io.act));
            else
                finish_qkv4<T>(l, io, place, row, v[q], in.slot[q]);
        }
    }
    if (my_row >= TN) cluster_sync(); /* a block with no rows to finish */
    cluster_sync();                   /* the others may still read here */
#endif
}

/* ---- launchers ---- */

static PFN_cuTensorMapEncodeTiled_v12000 g_encode; /* of the driver; set by init */
static int g_multiprocessors;

/* Blocks of 8 (outputs or rows) x k as cores of 8 x 8 values, 128 bytes: boxes of so many. */
static cudaError_t make_map(CUtensorMap *map, const void *base, uint32_t k_pad, uint32_t blocks,
                            uint32_t box_cores, uint32_t box_blocks)
{
    const cuuint64_t size[3] = {64, k_pad / 8, blocks}, pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, box_cores, box_blocks}, one[3] = {1, 1, 1};
    const CUresult r =
        g_encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(base), size, pitch, box,
                 one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int TN, int STAGES> static constexpr size_t stream_bytes()
{
    return (size_t)STAGES * (GROUPS * GROUP_OUTPUTS + TN) * STAGE_K * sizeof(T) +
           GROUPS * PART * sizeof(float);
}

template <typename T, int TN, int CX, int CY, int STAGES>
static cudaError_t launch_stream(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    const uint32_t cols = (l->n + 128 * CX - 1) / (128 * CX);
    const uint32_t clusters = cols * ((io->rows + TN * CY - 1) / (TN * CY));
    const uint32_t most = g_multiprocessors / (CX * CY);
    CUtensorMap w, h;
    cudaError_t e =
        make_map(&w, l->w, l->k_pad, l->n_pad / 8, STAGE_K / 8, GROUPS * GROUP_OUTPUTS / 8 / CY);
    if (e == cudaSuccess)
        e = make_map(&h, io->h, l->k_pad, (io->rows + 7) / 8, STAGE_K / 8, TN / 8 / CX);
    if (e != cudaSuccess) return e;
    return launch_cluster(at, stream_kernel<T, TN, CX, CY, STAGES>,
                          dim3((clusters < most ? clusters : most) * CX * CY), (GROUPS + 1) * 128,
                          stream_bytes<T, TN, STAGES>(), CX * CY, *l, *io, w, h);
}

template <typename T, int TN>
static cudaError_t launch_split(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io, uint32_t blocks)
{
    const uint32_t n_chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    const uint32_t each = (n_chunks + blocks - 1) / blocks;
    CUtensorMap h;
    cudaError_t e = make_map(&h, io->h, l->k_pad, (io->rows + 7) / 8, CHUNK_K / 8, TN / 8);
    if (e != cudaSuccess) return e;
    blocks = (n_chunks + each - 1) / each;
    return launch_cluster(at, split_kernel<T, TN>,
                          dim3(blocks, (l->n + 63) / 64, (io->rows + TN - 1) / TN), 128,
                          (size_t)each * TN * CHUNK_K * sizeof(T), blocks, *l, *io, each, h);
}

template <typename T>
static cudaError_t run_hopper(const rose_cuda_launch *at, const rose_cuda_linear *l,
                              const rose_cuda_io *io, rose_cuda_hopper kernel)
{
    const uint32_t blocks = l->k_pad > 4 * 8 * CHUNK_K ? 8 : 4;
    if (kernel == ROSE_CUDA_HOPPER_STREAM) return launch_stream<T, 128, 1, 1, 6>(at, l, io);
    if (kernel == ROSE_CUDA_HOPPER_STREAM_64) return launch_stream<T, 64, 1, 1, 8>(at, l, io);
    if (kernel == ROSE_CUDA_HOPPER_SPLIT) return launch_split<T, 64>(at, l, io, blocks);
    return launch_split<T, 32>(at, l, io, blocks);
}

/* The kernels are empty in code that is not for sm_90a: then they have no shared memory. */
template <typename T> static cudaError_t init_hopper(bool *there)
{
    const struct {
        const void *kernel;
        size_t shared;
    } kernels[] = {
        {(const void *)stream_kernel<T, 128, 1, 1, 6>, stream_bytes<T, 128, 6>()},
        {(const void *)stream_kernel<T, 64, 1, 1, 8>, stream_bytes<T, 64, 8>()},
        {(const void *)split_kernel<T, 64>, 8 * 64 * CHUNK_K * sizeof(T)},
        {(const void *)split_kernel<T, 32>, 8 * 32 * CHUNK_K * sizeof(T)},
    };
    int major = 0;
    cudaFuncAttributes a;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;

    *there = false;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (e != cudaSuccess || major != 9) return e;
    e = cudaFuncGetAttributes(&a, kernels[0].kernel);
    if (e != cudaSuccess || a.sharedSizeBytes == 0) return e;
    e = cudaDeviceGetAttribute(&g_multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    if (e == cudaSuccess)
        e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                             cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) return e;
    g_encode = (PFN_cuTensorMapEncodeTiled_v12000)encode;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)kernels[i].shared);
    *there = e == cudaSuccess;
    return e;
}

#endif
