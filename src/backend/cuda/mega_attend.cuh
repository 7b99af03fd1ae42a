/* backend/cuda/mega_attend.cuh - attention in the megakernel: QK-norm and RoPE of the row, append
 * to the KV pages, inner blocks by the warps of a block, merging. The arithmetic is that of
 * attend.cuh and attend_rotary.cuh. Device code only, sm_90a. */
#ifndef ROSE_BACKEND_CUDA_MEGA_ATTEND_CUH
#define ROSE_BACKEND_CUDA_MEGA_ATTEND_CUH

#include "backend/cuda/megakernel.cuh"

#if ROSE_HOPPER

/* A head of the row, from the sums of the QKV GEMM: `head` counts q, then K, then V. */
template <typename T, int HD>
ROSE_DEVICE void prepare_head(const rose_mega &a, const mega &m, const rose_mega_layer &l,
                              const rotary_angles<HD / 64> &by, uint32_t head)
{
    constexpr int P = HD / 64;
    const bool is_q = head < a.n_q, is_v = head >= a.n_q + a.n_kv;
    const uint32_t kv = (head - a.n_q) % a.n_kv;
    const float *norm = is_q ? l.q_norm : is_v ? NULL : l.k_norm;
    const float top = largest(static_cast<T *>(NULL));
    const uint64_t *at[P];
    uint2 u[P];
    float2 x[P], w[P];
    load_norm<P>(w, norm, HD, m.lane);
#pragma unroll
    for (uint32_t i = 0; i < P; i++)
        at[i] = a.qkv + (size_t)head * HD + i * 64 + m.lane * 2;
    poll<P>(u, at, m.number);
#pragma unroll
    for (uint32_t i = 0; i < P; i++)
        x[i] = make_float2(__uint_as_float(u[i].x), __uint_as_float(u[i].y));
    if (norm != NULL) norm_head<P>(x, w, HD, a.eps, m.lane);
    if (!is_v && l.rope != 0) {
        rose_cuda_rotary r = {};
        r.kv.head_dim = HD;
        r.rot_dim = a.rot_dim;
        rotate_head<P>(x, r, by, place<float>(m, a.at.stage) + m.warp * HD, m.lane);
    }
    T *to = is_q ? place<T>(m, a.at.q) + head * HD : place<T>(m, a.at.kv) + (kv * 2 + is_v) * HD;
    T *page = static_cast<T *>(l.kv) + m.slot / ROSE_PAGE * a.page_elems +
              (size_t)(kv * 2 + is_v) * ROSE_PAGE * HD;
#pragma unroll
    for (uint32_t i = 0; i < P; i++) {
        const uint32_t d = i * 64 + m.lane * 2;
        if (!is_q) /* as make_head: K and V saturate */
            x[i] = make_float2(fminf(fmaxf(x[i].x, -top), top), fminf(fmaxf(x[i].y, -top), top));
        store_pair(to + d, x[i].x, x[i].y);
        if (!is_q && m.slot != ROSE_CUDA_NO_SLOT)
            store_pair(page + page_index(m.slot % ROSE_PAGE, d, HD), x[i].x, x[i].y);
    }
}

/* The heads that this block's units need: query heads, and K and V where the block has the unit of
 * the row's own position. KV heads of the units repeat in a cycle. */
template <typename T, int HD>
ROSE_DEVICE void prepare_heads(const rose_mega &a, const mega &m, const rose_mega_layer &l,
                               const rotary_angles<HD / 64> &by, uint32_t units)
{
    const uint32_t group = a.n_q / a.n_kv;
    uint32_t turn = 0;
    for (uint32_t i = 0; i < units; i++) {
        const uint32_t kv = unit_of(a, m, i).head;
        if (i > 0 && kv == unit_of(a, m, 0).head) break;
        const bool own = ((m.n_splits - 1) * a.n_kv + kv) % a.grid == m.block;
        for (uint32_t j = 0; j < group + (own ? 2 : 0); j++)
            if (turn++ % WARPS == m.warp)
                prepare_head<T, HD>(a, m, l, by,
                                    j < group ? kv * group + j : a.n_q + (j - group) * a.n_kv + kv);
    }
    sync_warps();
}

/* The row's own K or V to its place in a page in shared memory: memory may not have it yet. */
template <typename T, int HD>
ROSE_DEVICE void patch(const rose_mega &a, const mega &m, uint32_t at, uint32_t kv, uint32_t v)
{
    const uint32_t *from =
        reinterpret_cast<const uint32_t *>(place<T>(m, a.at.kv) + (kv * 2 + v) * HD);
    uint32_t *page = reinterpret_cast<uint32_t *>(m.smem + (at - shared_address(m.smem)));
#pragma unroll
    for (uint32_t i = 0; i < HD / 64; i++)
        page[page_index(m.pos % ROSE_PAGE, i * 64 + m.lane * 2, HD) / 2] = from[i * 32 + m.lane];
    bulk_written();
    __syncwarp();
}

/* An inner block by one warp. Its result goes to shared memory, `to` [group][HD + 2]. */
template <typename T, int HD>
ROSE_DEVICE void attend_inner(const rose_mega &a, mega &m, uint32_t head, uint32_t inner,
                              float scale, float *to)
{
    const uint32_t g = m.lane / 4, t = m.lane % 4, group = a.n_q / a.n_kv;
    const uint32_t pages = pages_of(m, inner);
    const uint32_t own = m.pos / ROSE_PAGE - inner * INNER_PAGES; /* the row's own page */
    const uint32_t lo[1] = {0}, end[1] = {m.pos + 1};
    const T *heads = place<const T>(m, a.at.q) + (head * group + g) * HD + t * 2;
    attend_score by;
    uint32_t q[HD / 16][4], prob[INNER_PAGES][4];
    float s[INNER_PAGES][2][4] = {}, o[HD / 8][4] = {}, max[1], sum[1];
    by.by = scale * ROSE_LOG2E;
    by.cap = 0;
#pragma unroll
    for (uint32_t c = 0; c < HD / 16; c++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            q[c][e] = e % 2 == 0 && g < group
                          ? *reinterpret_cast<const uint32_t *>(heads + c * 16 + e * 4)
                          : 0;
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j >= pages) continue;
        const uint32_t at = take(a, m);
        if (j == own) patch<T, HD>(a, m, at, head, 0);
#pragma unroll
        for (int c = 0; c < HD / 16; c++)
            add_scores<T>(s[j], q[c], at, c, HD * 16, m.lane);
        done(a, m);
    }
    soften<T, 1>(s, prob, max, sum, lo, end, inner * ROSE_ATTEND_INNER, by, t);
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j >= pages) continue;
        const uint32_t at = take(a, m);
        if (j == own) patch<T, HD>(a, m, at, head, 1);
        add_values<T, HD / 8>(o, prob[j], at, 0, HD * 16, m.lane);
        done(a, m);
    }
    if (g >= group) return;
    to += g * (HD + 2);
#pragma unroll
    for (uint32_t d = 0; d < HD / 8; d++)
        *reinterpret_cast<float2 *>(to + d * 8 + t * 2) = make_float2(o[d][0], o[d][1]);
    if (t == 0) *reinterpret_cast<float2 *>(to + HD) = make_float2(max[0], sum[0]);
}

/* Results that are being merged: maximum, sum, and some dims. */
template <int N> struct merged {
    float m, l, o[N];
};

template <int N> ROSE_DEVICE merged<N> nothing(void)
{
    merged<N> r = {};
    r.m = -INFINITY;
    return r;
}

template <int N> ROSE_DEVICE void add(merged<N> *to, const merged<N> &one)
{
    float a, b;
    to->m = merge_factors(to->m, one.m, &a, &b);
    to->l = fmaf(one.l, b, to->l * a);
#pragma unroll
    for (int i = 0; i < N; i++)
        to->o[i] = fmaf(one.o[i], b, to->o[i] * a);
}

/* Merges the inner blocks of a unit, which are in shared memory: a thread has 4 dims of a query
 * head. The result is the output, if the context has no other split, or goes to the slots `parts`.
 */
template <typename T, int HD>
ROSE_DEVICE void merge_inner(const rose_mega &a, const mega &m, const unit &u, const float *from)
{
    const uint32_t group = a.n_q / a.n_kv;
    const T *type = NULL;
    for (uint32_t i = m.thread; i < group * (HD / 4); i += THREADS) {
        const uint32_t g = i / (HD / 4), d = i % (HD / 4) * 4, q = u.head * group + g;
        merged<4> split = nothing<4>(), all = nothing<4>();
        for (uint32_t b = 0; b < u.n_inner; b++) {
            const float *p = from + (b * group + g) * (HD + 2);
            add(&split, {p[HD], p[HD + 1], {p[d], p[d + 1], p[d + 2], p[d + 3]}});
        }
        if (m.n_splits > 1) {
            uint64_t *to = a.parts + ((size_t)u.split * a.n_q + q) * (HD + 2);
            publish(to + d, __float_as_uint(split.o[0]), __float_as_uint(split.o[1]), m.number);
            publish(to + d + 2, __float_as_uint(split.o[2]), __float_as_uint(split.o[3]), m.number);
            if (d == 0)
                publish(to + HD, __float_as_uint(split.m), __float_as_uint(split.l), m.number);
            continue;
        }
        add(&all, split);
        const float inv = __frcp_rn(all.l);
        publish(a.attended + (q * HD + d) / 2, pair_f32(all.o[0] * inv, all.o[1] * inv, type),
                pair_f32(all.o[2] * inv, all.o[3] * inv, type), m.number);
    }
}

/* Merges the splits of 64 dims of a query head: a lane has 2 dims. */
template <typename T, int HD>
ROSE_DEVICE void merge_splits(const rose_mega &a, const mega &m, uint32_t q, uint32_t slice)
{
    enum { AHEAD = 8 }; /* splits whose loads overlap */
    const uint32_t dim = slice * 64 + m.lane * 2;
    merged<2> all = nothing<2>();
    for (uint32_t first = 0; first < m.n_splits; first += AHEAD) {
        const uint64_t *at[2 * AHEAD];
        uint2 v[2 * AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint64_t *part =
                a.parts + ((size_t)min(first + i, m.n_splits - 1) * a.n_q + q) * (HD + 2);
            at[i * 2] = part + dim;
            at[i * 2 + 1] = part + HD;
        }
        poll<2 * AHEAD>(v, at, m.number);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (first + i < m.n_splits)
                add(&all, {__uint_as_float(v[i * 2 + 1].x),
                           __uint_as_float(v[i * 2 + 1].y),
                           {__uint_as_float(v[i * 2].x), __uint_as_float(v[i * 2].y)}});
    }
    const float inv = __frcp_rn(all.l);
    const uint32_t u = pair_f32(all.o[0] * inv, all.o[1] * inv, static_cast<const T *>(NULL));
    const uint32_t other = __shfl_xor_sync(ROSE_ALL_LANES, u, 1);
    if (m.lane % 2 == 0) publish(a.attended + (q * HD + dim) / 2, u, other, m.number);
}

/* A unit is a split of a KV head. The warps of a block take its inner blocks, so contexts of up to
 * 512 positions need no exchange within attention. */
template <typename T, int HD>
ROSE_DEVICE void attend(const rose_mega &a, mega &m, const rose_mega_layer &l,
                        const rotary_angles<HD / 64> &by)
{
    const uint32_t units = m.of[ROSE_MEGA_ATTEND].jobs / WARPS;
    const uint32_t mine = first_job(m, ROSE_MEGA_ATTEND), tasks = a.n_q * (HD / 64);
    float *results = place<float>(m, a.at.inner);
    if (units > 0) prepare_heads<T, HD>(a, m, l, by, units);
    for (uint32_t i = 0; i < units; i++) {
        const unit u = unit_of(a, m, i);
        if (i > 0) sync_warps(); /* the results of the unit before have been read */
        if (mine < u.n_inner)
            attend_inner<T, HD>(a, m, u.head, u.inner + mine, l.scale,
                                results + mine * (a.n_q / a.n_kv) * (HD + 2));
        sync_warps();
        merge_inner<T, HD>(a, m, u, results);
    }
    if (m.n_splits == 1) return;
    /* The last blocks come first: they have the fewest units. */
    for (uint32_t i = a.grid - 1 - m.block, turn = m.warp; i < tasks; i += a.grid, turn++)
        if (turn % WARPS == 0) merge_splits<T, HD>(a, m, i / (HD / 64), i % (HD / 64));
}

#endif
#endif
