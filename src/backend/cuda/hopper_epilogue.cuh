/* backend/cuda/hopper_epilogue.cuh - what happens to the sums of linear_hopper.cuh: the same as in
 * finish_pair of device.cuh, to four outputs n .. n + 3 of a row at a time, taken from shared
 * memory in short loops, because code unrolled over the fragments takes longer to fetch than the
 * product takes. Everything is loaded before the barrier behind which the sums are there, and
 * computed before the first branch: between branches nothing overlaps. */
#ifndef ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH
#define ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH

#include "backend/cuda/hopper.cuh"

enum {
    GROUP_OUTPUTS = 64,         /* of a warpgroup */
    SUM_LD = GROUP_OUTPUTS + 4, /* floats from row to row of sums in shared memory */
    PART = 64 * SUM_LD          /* floats of sums that pass through it at a time */
};

#if ROSE_HOPPER

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
#endif
