/* backend/cuda/wide_epilogue.cuh - what happens to the sums of linear_wide.cuh, linear_once.cuh
 * and linear_pingpong.cuh: the same as in finish_pair of device.cuh, straight from the fragments of
 * wgmma. The order of outputs in `cores` (layout.cuh) gives a lane four neighbouring outputs of
 * rows g and g + 8 in each 16, so that a warp's stores are whole sectors without a way through
 * shared memory. K and V are not reordered: of 16 tokens x 16 dims a lane has what k_index gives it
 * of a page, and after a transposition of each 8 x 8, which is one instruction, what v_index does.
 *
 * It is done by parts of a tile, N of its blocks of 16 outputs from block FIRST on, so that callers
 * free between them what the products under way have read. No branch depends on a lane but the
 * guards of stores. */
#ifndef ROSE_BACKEND_CUDA_WIDE_EPILOGUE_CUH
#define ROSE_BACKEND_CUDA_WIDE_EPILOGUE_CUH

#include "backend/cuda/hopper_epilogue.cuh"

#if ROSE_HOPPER

/* A thread's share of a tile whose sums are done. */
typedef struct wide_tile {
    uint32_t row[2];          /* g and g + 8 */
    uint32_t n0;              /* first output of the tile */
    uint32_t n;               /* first of the thread: + 16 i */
    uint32_t bias;            /* shared address of the tile's, where there is one */
    bool live[2];             /* the row is one */
    uint32_t slot[2];         /* QKV */
    uint32_t part, from, dim; /* QKV: of the next 16 outputs: 0 q, 1 K, 2 V; the first's place in
                                 the part and in the head */
    uint32_t to;              /* and in token 0 of a page */
    bool page;                /* QKV: the warp's 16 rows are a page */
    uint32_t seen[2];         /* LOGITS: the row's largest before the tile's end; it only grows */
    float top[2];             /* of the thread's sums, those that are no outputs as well */
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
            w->slot[h] = w->live[h] && io.kv_rows == NULL ? load_now(io.slot + w->row[h])
                                                          : ROSE_CUDA_NO_SLOT;
        if (EPI == ROSE_CUDA_EPI_LOGITS) {
            w->seen[h] = 0;
            if (io.key != NULL && w->live[h]) /* the order of the logit, without its id */
                w->seen[h] = load_now(reinterpret_cast<const uint32_t *>(io.key + w->row[h]) + 1);
            w->top[h] = __uint_as_float(0x7fffffff); /* NaN: every number is more */
        }
    }
}

/* QKV, before the first part: what begin_wide has loaded is looked at here. */
ROSE_DEVICE void find_places(wide_tile *w, const rose_cuda_linear &l, const rose_cuda_io &io)
{
    w->part = w->n0 / l.k;
    w->from = w->n0 - w->part * l.k;
    const uint32_t head = w->from / io.kv.head_dim;
    w->dim = w->from - head * io.kv.head_dim;
    w->to = (head * 2 + (w->part == 2)) * ROSE_PAGE * io.kv.hd_pad + w->dim * ROSE_PAGE;
    const uint32_t first = __shfl_sync(ROSE_ALL_LANES, w->slot[0], 0), g = threadIdx.x % 32 / 4;
    w->page = __all_sync(ROSE_ALL_LANES, first % ROSE_PAGE == 0 && w->slot[0] == first + g &&
                                             w->slot[1] == first + g + 8);
}

/* Of output n of the tile and the next three, which the copy engine has brought: loaded here, where
 * all wait for it, a bias cost 2 to 11 % of a product of 2048 rows and more (H100, 2026-11-22).
 * Behind the last output is whatever lies there, for outputs that nobody stores. */
ROSE_DEVICE float4 bias_of4(const wide_tile &w, const rose_cuda_linear &l, uint32_t n)
{
    float4 v = make_float4(0, 0, 0, 0);
    if (l.bias != NULL) get_shared(&v, w.bias + n * 4);
    return v;
}

ROSE_DEVICE float4 sums_of(const float *s, int h)
{
    return make_float4(s[h * 2], s[h * 2 + 1], s[h * 2 + 4], s[h * 2 + 5]);
}

/* Where the next N blocks of 16 outputs lie in token 0 of a page; and on to those behind. */
template <int N>
ROSE_DEVICE void next_places(wide_tile *w, const rose_cuda_linear &l, const rose_cuda_io &io,
                             uint32_t (&to)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        to[i] = w->to;
        w->to += 16 * ROSE_PAGE;
        w->dim += 16;
        if (w->dim == io.kv.head_dim) {
            w->dim = 0;
            w->to += (2 * io.kv.hd_pad - io.kv.head_dim) * ROSE_PAGE;
        }
    }
    w->from += N * 16;
    if (w->from == l.k) {
        w->part++;
        w->from = w->dim = 0;
        w->to = w->part == 2 ? ROSE_PAGE * io.kv.hd_pad : 0;
    }
}

/* As clamp4 before it was packed: what is larger has become an infinity, or the largest. */
ROSE_DEVICE uint32_t saturated(uint32_t u, const __half *)
{
    const __half2 top = __half2half2(__ushort_as_half(0x7bff)), low = __hneg2(top);
    const __half2 v = __hmin2(__hmax2(*reinterpret_cast<const __half2 *>(&u), low), top);
    return *reinterpret_cast<const uint32_t *>(&v);
}
ROSE_DEVICE uint32_t saturated(uint32_t u, const __nv_bfloat16 *)
{
    const __nv_bfloat162 top = __bfloat162bfloat162(__ushort_as_bfloat16(0x7f7f)),
                         low = __hneg2(top);
    const __nv_bfloat162 v =
        __hmin2(__hmax2(*reinterpret_cast<const __nv_bfloat162 *>(&u), low), top);
    return *reinterpret_cast<const uint32_t *>(&v);
}
template <typename T> ROSE_DEVICE uint2 saturated(const uint2 &u, const T *tag)
{
    return make_uint2(saturated(u.x, tag), saturated(u.y, tag));
}

/* N blocks of K or V of rows that are no page. */
template <int N>
ROSE_DEVICE void store_rows(const wide_tile &w, const rose_cuda_io &io, bool is_k,
                            const uint32_t (&to)[N], const uint2 (&u)[N][2])
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (w.slot[h] == ROSE_CUDA_NO_SLOT) continue;
        const uint32_t token = w.slot[h] % ROSE_PAGE;
        uint16_t *page = static_cast<uint16_t *>(io.kv.base) +
                         w.slot[h] / ROSE_PAGE * io.kv.page_elems +
                         (is_k ? k_index(token, t * 2) : v_index(token, t * 2));
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint16_t *at = page + to[i];
            if (is_k) {
                *reinterpret_cast<uint2 *>(at) = u[i][h];
                continue;
            }
            at[0] = (uint16_t)u[i][h].x; /* dims lie 4 lanes of 8 values apart */
            at[32] = (uint16_t)(u[i][h].x >> 16);
            at[4] = (uint16_t)u[i][h].y;
            at[36] = (uint16_t)(u[i][h].y >> 16);
        }
    }
}

/* The same for attention to put them there. `first`: of the lane's in kv_rows, + 16 i, two and two.
 */
template <typename T, int N>
ROSE_DEVICE void store_kv_rows(const wide_tile &w, const rose_cuda_io &io, uint32_t d,
                               uint32_t first, const uint2 (&u)[N][2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!w.live[h]) continue;
        T *at = kv_row<T>(io, d, w.row[h]) + first;
#pragma unroll
        for (int i = 0; i < N; i++) {
            *reinterpret_cast<uint32_t *>(at + i * 16) = u[i][h].x;
            *reinterpret_cast<uint32_t *>(at + i * 16 + 8) = u[i][h].y;
        }
    }
}

/* N blocks of K or V from output n on. */
template <typename T, int N>
ROSE_DEVICE void finish_wide_kv(const wide_tile &w, const float *s, const float4 (&bias)[N],
                                const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n,
                                bool is_k, const uint32_t (&to)[N])
{
    const T *tag = NULL;
    uint2 u[N][2];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            u[i][h] = saturated(pack4(add4(sums_of(s + i * 8, h), bias[i]), tag), tag);
    if (io.kv_rows != NULL) {
        store_kv_rows<T, N>(w, io, l.k, n - l.k + threadIdx.x % 4 * 2, u);
        return;
    }
    if (!w.page) {
        store_rows<N>(w, io, is_k, to, u);
        return;
    }
    T *page = static_cast<T *>(io.kv.base) + w.slot[0] / ROSE_PAGE * io.kv.page_elems +
              threadIdx.x % 32 * 8;
    if (is_k) {
#pragma unroll
        for (int i = 0; i < N; i++)
            store16(page + to[i], u[i][0].x, u[i][0].y, u[i][1].x, u[i][1].y);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        store16(page + to[i], transpose8(u[i][0].x), transpose8(u[i][1].x), transpose8(u[i][0].y),
                transpose8(u[i][1].y));
}

/* A lane's outputs of 16: n and n + 1, then `apart` from them. */
ROSE_DEVICE float4 bias_of_pairs(const wide_tile &w, const rose_cuda_linear &l, uint32_t n,
                                 uint32_t apart)
{
    if (l.bias == NULL) return make_float4(0, 0, 0, 0);
    const float2 lo = get_shared2(w.bias + n * 4), hi = get_shared2(w.bias + (n + apart) * 4);
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/* Outputs of one of q, K and V, each of which has a multiple of 64. */
template <typename T, int TN, int FIRST, int N>
ROSE_DEVICE void finish_wide_qkv(wide_tile *w, const float (&s)[TN / 2], const rose_cuda_linear &l,
                                 const rose_cuda_io &io)
{
    static_assert(64 % (N * 16) == 0 && FIRST % N == 0 && TN % (N * 16) == 0,
                  "outputs of two of q, K and V");
    const uint32_t n = w->n0 + FIRST * 16, part = w->part, from = w->from;
    const uint32_t t = threadIdx.x % 4, mine = part == 0 ? t * 4 : t * 2, apart = part == 0 ? 2 : 8;
    uint32_t to[N];
    float4 bias[N];
    if (n >= l.n) return;
#pragma unroll
    for (int i = 0; i < N; i++)
        bias[i] = bias_of_pairs(*w, l, (FIRST + i) * 16 + mine, apart);
    next_places<N>(w, l, io, to);
    if (part != 0) {
        finish_wide_kv<T, N>(*w, s + FIRST * 8, bias, l, io, n, part == 1, to);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!w->live[h]) continue;
        T *q = static_cast<T *>(io.q) + (size_t)w->row[h] * l.k + from + mine;
#pragma unroll
        for (int i = 0; i < N; i++)
            *reinterpret_cast<uint2 *>(q + i * 16) =
                pack4(add4(sums_of(s + (FIRST + i) * 8, h), bias[i]), q);
    }
}

/* A thread's share of the residual (linear_once.cuh): what was there of blocks
 * of 16 outputs. */
template <int TN> struct wide_old {
    float *at[2];     /* of rows g and g + 8 */
    uint32_t left[2]; /* outputs from there on; 0: no row */
    float4 v[TN / 16][2];
};

/* After pdl_wait. Zeros first: ptxas keeps what a load on condition may leave. */
template <int TN>
ROSE_DEVICE void load_old(wide_old<TN> *old, const wide_tile &w, const rose_cuda_linear &l,
                          const rose_cuda_io &io)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        old->at[h] = residual_at(io, w.row[h], w.n);
        old->left[h] = w.live[h] && w.n < l.n ? l.n - w.n : 0;
    }
#pragma unroll
    for (int i = 0; i < TN / 16; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            old->v[i][h] = make_float4(0, 0, 0, 0);
            if (i * 16 < old->left[h])
                old->v[i][h] = load_now(reinterpret_cast<const float4 *>(old->at[h] + i * 16));
        }
}

template <int TN, int FIRST, int N>
ROSE_DEVICE void finish_wide_old(const wide_tile &w, const wide_old<TN> &old,
                                 const float (&s)[TN / 2], const rose_cuda_linear &l)
{
#pragma unroll
    for (int i = FIRST; i < FIRST + N; i++) {
        const float4 b = bias_of4(w, l, i * 16 + threadIdx.x % 4 * 4);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (i * 16 < old.left[h])
                *reinterpret_cast<float4 *>(old.at[h] + i * 16) =
                    add4(old.v[i][h], add4(sums_of(s + i * 8, h), b));
    }
}

/* GELU. 16 outputs are two blocks of 8 x 8 of the next product's rows. The branch for rows that are
 * none also keeps ptxas from moving all of this above the products that it runs under. */
template <typename T, int TN, int FIRST, int N>
ROSE_DEVICE void finish_wide_act(const wide_tile &w, const float (&s)[TN / 2],
                                 const rose_cuda_linear &l, const rose_cuda_io &io)
{
    T *at[2];
    uint32_t left[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        at[h] = static_cast<T *>(io.out) + h_index(w.row[h], w.n, io.out_k_pad);
        left[h] = w.live[h] && w.n < l.n ? l.n - w.n : 0;
    }
    if (left[0] == 0) return;
#pragma unroll
    for (int i = FIRST; i < FIRST + N; i++) {
        const float4 b = bias_of4(w, l, i * 16 + threadIdx.x % 4 * 4);
        float4 v[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            v[h] = activate4(add4(sums_of(s + i * 8, h), b), ROSE_ACT_GELU_TANH);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (i * 16 < left[h]) *reinterpret_cast<uint2 *>(at[h] + i * 128) = pack4(v[h], at[h]);
    }
}

template <int TN, int FIRST, int N>
ROSE_DEVICE void finish_wide_logits(wide_tile *w, const float (&s)[TN / 2],
                                    const rose_cuda_linear &l, const rose_cuda_io &io)
{
    const bool whole = io.ld_logits % 4 == 0 && w->n0 + (FIRST + N) * 16 <= l.n;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *at = io.logits + (size_t)w->row[h] * io.ld_logits + w->n;
#pragma unroll
        for (int i = FIRST; i < FIRST + N; i++) {
            const float4 v = sums_of(s + i * 8, h);
            w->top[h] = fmaxf(w->top[h], fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
            if (whole && w->live[h]) *reinterpret_cast<float4 *>(at + i * 16) = v;
        }
        if (whole || !w->live[h]) continue;
#pragma unroll
        for (int i = FIRST; i < FIRST + N; i++)
            if (w->n + i * 16 < l.n)
                store_logits4(l, io, w->row[h], w->n + i * 16, sums_of(s + i * 8, h));
    }
}

/* The N from block FIRST on of the tile's blocks of 16 outputs; old: RESIDUAL. */
template <typename T, int EPI, int TN, int FIRST, int N>
ROSE_DEVICE void finish_wide(wide_tile *w, const wide_old<TN> *old, const float (&s)[TN / 2],
                             const rose_cuda_linear &l, const rose_cuda_io &io)
{
    if constexpr (EPI == ROSE_CUDA_EPI_QKV)
        finish_wide_qkv<T, TN, FIRST, N>(w, s, l, io);
    else if constexpr (EPI == ROSE_CUDA_EPI_RESIDUAL)
        finish_wide_old<TN, FIRST, N>(*w, *old, s, l);
    else if constexpr (EPI == ROSE_CUDA_EPI_ACT)
        finish_wide_act<T, TN, FIRST, N>(*w, s, l, io);
    else
        finish_wide_logits<TN, FIRST, N>(w, s, l, io);
}

/* The largest of the thread's outputs of half h, of equal ones the first; a NaN never is. */
template <int TN>
ROSE_DEVICE unsigned long long best_of(const wide_tile &w, int h, const float (&s)[TN / 2],
                                       const rose_cuda_linear &l)
{
    float best = __uint_as_float(0x7fffffff);
    uint32_t id = w.n;
#pragma unroll
    for (int i = 0; i < TN / 16; i++) {
        const float4 v = sums_of(s + i * 8, h);
        const float y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!(y[e] <= best) && y[e] == y[e] && w.n + i * 16 + e < l.n) {
                best = y[e];
                id = w.n + i * 16 + e;
            }
    }
    return w.n < l.n ? rank_key(best, id) : 0;
}

/* After the last part: the row's largest of this tile, where it may be the row's. Most tiles have
 * none of any of a warp's rows, which takes one comparison a sum to see; which output it is is
 * looked up where they have. */
template <int TN>
ROSE_DEVICE void end_wide_logits(const wide_tile &w, const float (&s)[TN / 2],
                                 const rose_cuda_linear &l, const rose_cuda_io &io)
{
    if (io.key == NULL) return;
    const bool may = (w.live[0] && order_of(w.top[0]) >= w.seen[0]) ||
                     (w.live[1] && order_of(w.top[1]) >= w.seen[1]);
    if (__all_sync(ROSE_ALL_LANES, !may)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        unsigned long long best = best_of<TN>(w, h, s, l);
#pragma unroll
        for (int x = 1; x < 4; x *= 2)
            best = max(best, __shfl_xor_sync(ROSE_ALL_LANES, best, x));
        if (threadIdx.x % 4 == 0 && w.live[h] && (uint32_t)(best >> 32) >= w.seen[h])
            atomicMax(io.key + w.row[h], best);
    }
}

#endif
#endif
