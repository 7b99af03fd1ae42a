/* backend/cuda/wide_epilogue.cuh - what happens to the sums of linear_wide.cuh: the same as in
 * finish_pair of device.cuh, straight from the fragments of wgmma. The order of outputs in `cores`
 * (layout.cuh) gives a lane four neighbouring outputs of rows g and g + 8 in each 16, so that a
 * warp's stores are whole sectors and shared memory is not needed.
 *
 * A part is a third of a tile's blocks of 16 outputs: between two parts the caller frees what the
 * products under way have read. No branch depends on a lane but the guards of stores. */
#ifndef ROSE_BACKEND_CUDA_WIDE_EPILOGUE_CUH
#define ROSE_BACKEND_CUDA_WIDE_EPILOGUE_CUH

#include "backend/cuda/hopper_epilogue.cuh"

#if ROSE_HOPPER

/* A thread's share of a tile whose sums are done. */
typedef struct wide_tile {
    uint32_t row[2];          /* g and g + 8 */
    uint32_t n0;              /* first output of the tile */
    uint32_t n;               /* first of the thread: + 16 i */
    bool live[2];             /* the row is one */
    uint32_t slot[2];         /* QKV */
    uint32_t part, head, dim; /* QKV: of the next 16 outputs: 0 q, 1 K, 2 V */
    bool page;                /* QKV: the warp's 16 rows are a page */
    uint32_t seen[2];         /* LOGITS: the largest when the tile began; it only grows */
    float best[2];
    uint32_t id[2];
} wide_tile;

/* After pdl_wait. */
template <int EPI>
ROSE_DEVICE void begin_wide(wide_tile *w, const rose_cuda_io &io, uint32_t row0, uint32_t n0)
{
    const int lane = threadIdx.x % 32, g = lane / 4;
    w->n0 = n0;
    w->n = n0 + lane % 4 * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w->row[h] = row0 + g + h * 8;
        w->live[h] = w->row[h] < io.rows;
        if (EPI == ROSE_CUDA_EPI_QKV)
            w->slot[h] = w->live[h] ? load_now(io.slot + w->row[h]) : ROSE_CUDA_NO_SLOT;
        if (EPI == ROSE_CUDA_EPI_LOGITS) {
            w->seen[h] = 0;
            if (io.key != NULL && w->live[h]) /* the order of the logit, without its id */
                w->seen[h] = load_now(reinterpret_cast<const uint32_t *>(io.key + w->row[h]) + 1);
            w->best[h] = __uint_as_float(0x7fffffff); /* NaN: every number is more */
            w->id[h] = w->n;
        }
    }
}

/* QKV: what begin_wide has loaded is looked at here, with products under way. */
ROSE_DEVICE void find_places(wide_tile *w, const rose_cuda_linear &l, const rose_cuda_io &io)
{
    const uint32_t c = w->n0 % l.k;
    w->part = w->n0 / l.k;
    w->head = c / io.kv.head_dim;
    w->dim = c % io.kv.head_dim;
    const uint32_t first = __shfl_sync(ROSE_ALL_LANES, w->slot[0], 0), g = threadIdx.x % 32 / 4;
    w->page = __all_sync(ROSE_ALL_LANES, first % ROSE_PAGE == 0 && w->slot[0] == first + g &&
                                             w->slot[1] == first + g + 8);
}

/* The number of outputs is a multiple of 4 wherever there is a bias. */
ROSE_DEVICE float4 bias_of4(const rose_cuda_linear &l, uint32_t n)
{
    if (l.bias == NULL || n >= l.n) return make_float4(0, 0, 0, 0);
    return __ldg(reinterpret_cast<const float4 *>(l.bias + n));
}

/* Four outputs from n on of half h; ids ascend from call to call. A NaN is never the best. */
ROSE_DEVICE void keep_best4(wide_tile *w, int h, const rose_cuda_linear &l, uint32_t n,
                            const float4 &v)
{
    const float y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (!(y[e] <= w->best[h]) && y[e] == y[e] && n + e < l.n) {
            w->best[h] = y[e];
            w->id[h] = n + e;
        }
}

/* V of 16 tokens x 16 dims from `to` on (token 0, page 0). Where they are a page, lanes of rows g
 * and g + 1 exchange two dims, so that each has pairs of tokens, which are neighbours in memory. */
template <typename T>
ROSE_DEVICE void finish_wide_v(const wide_tile &w, const rose_cuda_io &io, T *to,
                               const float4 (&v)[2])
{
    const int lane = threadIdx.x % 32, t = lane % 4;
    const bool odd = lane / 4 % 2 != 0;
    if (w.page) {
        uint32_t u[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float x = __shfl_xor_sync(ROSE_ALL_LANES, odd ? v[h].x : v[h].z, 4);
            const float y = __shfl_xor_sync(ROSE_ALL_LANES, odd ? v[h].y : v[h].w, 4);
            u[h][0] = odd ? pair_f32(x, v[h].z, to) : pair_f32(v[h].x, x, to);
            u[h][1] = odd ? pair_f32(y, v[h].w, to) : pair_f32(v[h].y, y, to);
        }
        T *at = to + w.slot[0] / ROSE_PAGE * io.kv.page_elems +
                v_index(lane / 8 * 2, t * 4 + (odd ? 2 : 0));
        *reinterpret_cast<uint2 *>(at) = make_uint2(u[0][0], u[1][0]);
        *reinterpret_cast<uint2 *>(at + 32) = make_uint2(u[0][1], u[1][1]);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (w.slot[h] == ROSE_CUDA_NO_SLOT) continue;
        const uint2 u = pack4(v[h], to);
        uint16_t *at = reinterpret_cast<uint16_t *>(to + w.slot[h] / ROSE_PAGE * io.kv.page_elems +
                                                    v_index(w.slot[h] % ROSE_PAGE, t * 4));
        at[0] = (uint16_t)u.x; /* dims lie 4 lanes of 8 values apart */
        at[32] = (uint16_t)(u.x >> 16);
        at[64] = (uint16_t)u.y;
        at[96] = (uint16_t)(u.y >> 16);
    }
}

/* The next 16 outputs of the tile: of one part and one head, whose size is a multiple of 16. */
template <typename T>
ROSE_DEVICE void finish_wide_qkv(wide_tile *w, const rose_cuda_linear &l, const rose_cuda_io &io,
                                 const float4 (&v)[2])
{
    const uint32_t t = threadIdx.x % 4, head = w->head, dim = w->dim, part = w->part;
    const T *tag = NULL;
    w->dim += 16;
    if (w->dim == io.kv.head_dim) {
        w->dim = 0;
        if (++w->head == io.kv.n_heads) {
            w->head = 0;
            w->part++;
        }
    }
    if (part == 0) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (w->live[h])
                *reinterpret_cast<uint2 *>(static_cast<T *>(io.q) + (size_t)w->row[h] * l.k +
                                           head * io.kv.head_dim + dim + t * 4) = pack4(v[h], tag);
        return;
    }
    const float4 s[2] = {clamp4(v[0], largest(tag)), clamp4(v[1], largest(tag))};
    T *to = static_cast<T *>(io.kv.base) + (size_t)head * (2 * ROSE_PAGE) * io.kv.hd_pad;
    if (part == 2) {
        finish_wide_v<T>(*w, io, to + ROSE_PAGE * io.kv.hd_pad + v_index(0, dim), s);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (w->slot[h] == ROSE_CUDA_NO_SLOT) continue;
        const uint2 u = pack4(s[h], tag);
        T *at = to + w->slot[h] / ROSE_PAGE * io.kv.page_elems +
                k_index(w->slot[h] % ROSE_PAGE, dim + t * 4);
        *reinterpret_cast<uint32_t *>(at) = u.x; /* two dims a lane of 8 values */
        *reinterpret_cast<uint32_t *>(at + 8) = u.y;
    }
}

ROSE_DEVICE float4 sums_of(const float *s, int h)
{
    return make_float4(s[h * 2], s[h * 2 + 1], s[h * 2 + 4], s[h * 2 + 5]);
}

/* Part 0, 1 or 2 of the tile. */
template <typename T, int EPI, int TN, int PART>
ROSE_DEVICE void finish_wide(wide_tile *w, const float (&s)[TN / 2], const rose_cuda_linear &l,
                             const rose_cuda_io &io)
{
    constexpr int BLOCKS = TN / 48, FIRST = PART * BLOCKS;
    /* Residual: so many blocks are loaded before the first is needed. As registers allow. */
    constexpr int OLD_BLOCKS = TN > 96 ? 2 : 4;
    float4 old[OLD_BLOCKS][2];
    if (EPI == ROSE_CUDA_EPI_QKV && PART == 0) find_places(w, l, io);
#pragma unroll
    for (int i = FIRST; i < FIRST + BLOCKS; i++) {
        const uint32_t n = w->n + i * 16;
        const bool live = n < l.n;
        float4 v[2] = {sums_of(s + i * 8, 0), sums_of(s + i * 8, 1)};
        if (EPI == ROSE_CUDA_EPI_RESIDUAL && (i - FIRST) % OLD_BLOCKS == 0)
#pragma unroll
            for (int b = 0; b < OLD_BLOCKS && i + b < FIRST + BLOCKS; b++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (w->live[h] && n + b * 16 < l.n)
                        old[b][h] = load_now(reinterpret_cast<const float4 *>(
                            residual_at(io, w->row[h], n + b * 16)));
        if (EPI != ROSE_CUDA_EPI_LOGITS) {
            const float4 bias = bias_of4(l, n);
            v[0] = add4(v[0], bias);
            v[1] = add4(v[1], bias);
        }
        if (EPI == ROSE_CUDA_EPI_QKV && w->n0 + i * 16 < l.n) finish_wide_qkv<T>(w, l, io, v);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (EPI == ROSE_CUDA_EPI_ACT) v[h] = activate4(v[h], ROSE_ACT_GELU_TANH);
            if (EPI == ROSE_CUDA_EPI_LOGITS) keep_best4(w, h, l, n, v[h]);
            if (!w->live[h] || !live) continue;
            if (EPI == ROSE_CUDA_EPI_RESIDUAL)
                *reinterpret_cast<float4 *>(residual_at(io, w->row[h], n)) =
                    add4(old[(i - FIRST) % OLD_BLOCKS][h], v[h]);
            if (EPI == ROSE_CUDA_EPI_ACT) store_act4<T>(io, w->row[h], n, v[h]);
            if (EPI == ROSE_CUDA_EPI_LOGITS) store_logits4(l, io, w->row[h], n, v[h]);
        }
    }
}

/* After the last part: the row's largest of this tile, where it may be the row's. */
ROSE_DEVICE void end_wide_logits(const wide_tile &w, const rose_cuda_linear &l,
                                 const rose_cuda_io &io)
{
    if (io.key == NULL) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        unsigned long long best = w.n < l.n ? rank_key(w.best[h], w.id[h]) : 0;
#pragma unroll
        for (int x = 1; x < 4; x *= 2)
            best = max(best, __shfl_xor_sync(ROSE_ALL_LANES, best, x));
        if (threadIdx.x % 4 == 0 && w.live[h] && (uint32_t)(best >> 32) >= w.seen[h])
            atomicMax(io.key + w.row[h], best);
    }
}

#endif
#endif
