/* backend/cuda/attention.cu - causal attention over paged KV with mma.sync, 16-bit types.
 *
 * The context is cut into splits of 32 absolute positions (two pages). For each split, whoever
 * computes it: scores by m16n8k16 over the head's dims, ascending; times scale; positions after the
 * row are -inf; m = the largest; p = exp2(s - m), rounded to T; l = sum of p (each lane its 8,
 * ascending, then lanes 1 and 2 apart); o = p V by two m16n8k16, pages ascending. Splits are merged
 * in ascending order by merge(). So neither the number of warps, nor other rows in the tile, nor
 * where a chunk began enters a result. A split that lies wholly after a row leaves its state as it
 * is, bit for bit.
 *
 * Pages are laid out as the products take them: every load is 16 bytes a lane and coalesced, and no
 * shared memory is needed. together_kernel (one row): a warp a split, all of its 8 KB in registers
 * before the kernel in front has ended. apart_kernel (up to 16 rows): a warp a tile, splits one
 * after the other, K of the next one on its way. spread_kernel (few tiles): a block a tile, its
 * warps take the splits in turn, and all merge them, each for some dims. Many sequences of one row:
 * attention_ahead.cuh. Bound: KV bytes; the exponentials where there are many rows. */
#include "backend/cuda/attention_ahead.cuh"

enum { APART_WARPS = 4 };

template <typename T, int HD, int WARPS>
static __global__ void __launch_bounds__(WARPS * 32) together_kernel(const rose_cuda_attention a)
{
    __shared__ float part[WARPS][HD + 2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.x;
    const rose_cuda_item it = a.items[blockIdx.y];
    const uint32_t *table = a.tables + it.table;
    const uint32_t n_pages = it.pos / ROSE_PAGE + 1, n_splits = it.pos / SPLIT + 1;
    const uint32_t pos[2] = {it.pos, it.pos};
    split_kv<HD> s;
    uint2 pages = make_uint2(0, 0);

    pdl_launch();
    /* The last split holds the row itself, which the kernel in front writes: of it only the places
     * of its pages are taken early. */
    const bool early = it.n_rows > 0 && (uint32_t)warp + 1 < n_splits;
    if (it.n_rows > 0 && (uint32_t)warp < n_splits) pages = split_pages(table, warp, n_pages);
    if (early) load_split<T, HD>(&s, a.kv, pages, head, lane);
    pdl_wait();
    if (it.n_rows == 0) return;

    uint32_t q[HD / 16][4];
    float max = -INFINITY, sum = 0, out = 0; /* of dim threadIdx.x */
    load_queries<T, HD>(q, a, it, head, g, t);
    for (uint32_t first = 0; first < n_splits; first += WARPS) {
        const uint32_t split = first + warp;
        if (split < n_splits) {
            float m[2], l[2], o[HD / 8][4];
            if (first > 0) pages = split_pages(table, split, n_pages);
            if (first > 0 || !early) load_split<T, HD>(&s, a.kv, pages, head, lane);
            attend<T, HD>(q, s, split, pos, false, a.scale, t, m, l, o);
            if (g == 0) keep_part<HD>(part[warp], m, l, o, t);
        }
        __syncthreads();
        const uint32_t n = n_splits - first < WARPS ? n_splits - first : WARPS;
        if (threadIdx.x < HD)
            for (uint32_t i = 0; i < n; i++) {
                float x, y;
                merge_scale(&max, &sum, part[i][HD], part[i][HD + 1], &x, &y);
                out = fmaf(part[i][threadIdx.x], y, out * x);
            }
        __syncthreads();
    }
    if (threadIdx.x >= a.kv.head_dim) return;
    T *at =
        static_cast<T *>(a.out) + h_index(it.row, head * a.kv.head_dim + threadIdx.x, a.out_k_pad);
    from_f32(out * __frcp_rn(sum), at);
}

/* ---- tiles of up to 16 rows: a warp each ---- */

/* Rows g and g + 8 of a tile: what its splits up to here came to. */
template <int HD> struct tile_sums {
    float max[2], sum[2], out[HD / 8][4];
};

template <int HD> ROSE_DEVICE void begin_tile(tile_sums<HD> *r)
{
    r->max[0] = r->max[1] = -INFINITY;
    r->sum[0] = r->sum[1] = 0;
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[j][e] = 0;
}

template <typename T, int HD, typename KV>
ROSE_DEVICE void take_split(tile_sums<HD> *r, const uint32_t q[HD / 16][4], const KV &s,
                            uint32_t split, const uint32_t pos[2], bool whole, float scale, int t)
{
    float m[2], l[2], o[HD / 8][4], x[2], y[2];
    attend<T, HD>(q, s, split, pos, whole, scale, t, m, l, o);
#pragma unroll
    for (int i = 0; i < 2; i++)
        merge_scale(&r->max[i], &r->sum[i], m[i], l[i], &x[i], &y[i]);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[j][e] = fmaf(o[j][e], y[e / 2], r->out[j][e] * x[e / 2]);
}

template <typename T, int HD>
ROSE_DEVICE void store_tile(const tile_sums<HD> &r, const rose_cuda_attention &a,
                            const rose_cuda_item &it, uint32_t head, int g, int t)
{
    const float inv[2] = {__frcp_rn(r.sum[0]), __frcp_rn(r.sum[1])};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if ((uint32_t)(g + i * 8) >= it.n_rows) continue;
        T *at = static_cast<T *>(a.out) +
                h_index(it.row + g + i * 8, head * a.kv.head_dim + t * 2, a.out_k_pad);
#pragma unroll
        for (int j = 0; j < HD / 8; j++) /* 8 dims on are a block on */
            if ((uint32_t)(j * 8 + t * 2) < a.kv.head_dim)
                store_pair(at + j * 64, r.out[j][i * 2] * inv[i], r.out[j][i * 2 + 1] * inv[i]);
    }
}

/* As load_queries. Of each sector of 32 bytes one load takes a half and another the rest, so it may
 * stay in the first-level cache. */
template <typename T, int HD>
ROSE_DEVICE void load_tile_queries(uint32_t q[HD / 16][4], const rose_cuda_attention &a,
                                   const rose_cuda_item &it, uint32_t head, int g, int t)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = g + i * 8;
        const uint32_t *at = reinterpret_cast<const uint32_t *>(static_cast<const T *>(a.q) +
                                                                (size_t)(it.row + row) * a.d +
                                                                head * a.kv.head_dim + t * 2);
#pragma unroll
        for (int j = 0; j < HD / 8; j++) {
            uint32_t *to = &q[j / 2][j % 2 * 2 + i];
            *to = 0;
            if (row < it.n_rows && (uint32_t)(j * 8 + t * 2) < a.kv.head_dim)
                *to = __ldca(at + j * 4);
        }
    }
}

/* K and V of a head in a split: this lane's places in its two pages. */
struct split_place {
    const uint4 *page[2];
};

/* first: this lane's place in page 0. */
template <typename T>
ROSE_DEVICE split_place place_split(const T *first, const rose_cuda_kv &kv, uint2 pages)
{
    split_place p;
    p.page[0] = reinterpret_cast<const uint4 *>(first + pages.x * kv.page_elems);
    p.page[1] = reinterpret_cast<const uint4 *>(first + pages.y * kv.page_elems);
    return p;
}

/* Other warps of the block want them as well, so they may stay in the first-level cache. */
template <int HD> ROSE_DEVICE void load_k(split_kv<HD> *s, const split_place &from)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int p = 0; p < 2; p++)
            s->k[p][c] = __ldca(from.page[p] + c * 32);
}
template <int HD> ROSE_DEVICE void load_v(split_kv<HD> *s, const split_place &from)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int p = 0; p < 2; p++)
            s->v[p][c] = __ldca(from.page[p] + (HD / 16 + c) * 32);
}

/* Wider heads have no registers for the K of two splits. */
template <int HD> struct keys_ahead {
    enum { YES = HD <= 64 };
};

/* One split, at `at`; its K is there already, and that of the next one (or NULL) is on its way into
 * the same registers when it ends. */
template <typename T, int HD>
ROSE_DEVICE void pass_split(tile_sums<HD> *r, const uint32_t q[HD / 16][4], split_kv<HD> *s,
                            const split_place &at, const split_place *next, uint32_t split,
                            const uint32_t pos[2], bool whole, float scale, int t)
{
    float p[4][4], m[2], l[2], x[2], y[2];
    uint32_t prob[4][2];
    if (!keys_ahead<HD>::YES) load_k<HD>(s, at);
    load_v<HD>(s, at);
    score<T, HD>(q, *s, p);
    if (keys_ahead<HD>::YES && next != NULL) load_k<HD>(s, *next);
    weigh<T>(p, split, pos, whole, scale, t, m, l, prob);
#pragma unroll
    for (int i = 0; i < 2; i++)
        merge_scale(&r->max[i], &r->sum[i], m[i], l[i], &x[i], &y[i]);
#pragma unroll
    for (int c = 0; c < HD / 16; c++) {
        float o[2][4] = {};
        add_values<T, HD>(prob, *s, 0, c, o);
        add_values<T, HD>(prob, *s, 1, c, o);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float *out = &r->out[c * 2 + e / 4][e % 4];
            *out = fmaf(o[e / 4][e % 4], y[e % 4 / 2], *out * x[e % 4 / 2]);
        }
    }
}

/* Splits that all rows see whole come first: of these K is loaded a split ahead, and pages are
 * looked up two ahead. Without a branch in that loop the compiler lets a product wait for its own
 * operand alone. */
template <typename T, int HD>
static __global__ void __launch_bounds__(APART_WARPS * 32, HD > 64   ? 2
                                                           : HD > 32 ? 3
                                                                     : 4)
    apart_kernel(const rose_cuda_attention a)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.x, index = blockIdx.y * APART_WARPS + threadIdx.x / 32;
    pdl_launch();
    pdl_wait();
    if (index >= a.n_items) return;
    /* The longest first, as the items of a prompt come in ascending order. */
    const rose_cuda_item it = a.items[a.n_items - 1 - index];
    if (it.n_rows == 0) return;
    const uint32_t end = it.pos + it.n_rows - 1, n_pages = end / ROSE_PAGE + 1, last = end / SPLIT;
    const uint32_t n_whole = min((it.pos + 1) / SPLIT, last); /* the last one goes with the rest */
    const uint32_t *table = a.tables + it.table;
    const uint32_t pos[2] = {min(it.pos + g, end), min(it.pos + g + 8, end)};
    const T *first = kv_block<T>(a.kv, 0, head) + lane * (sizeof(uint4) / sizeof(T));
    split_place at = place_split(first, a.kv, split_pages(table, 0, n_pages));
    uint2 pages = split_pages(table, min(1u, last), n_pages); /* of the next split */
    uint32_t q[HD / 16][4], split = 0;
    split_kv<HD> s;
    tile_sums<HD> r;

    if (keys_ahead<HD>::YES) load_k<HD>(&s, at);
    load_tile_queries<T, HD>(q, a, it, head, g, t);
    begin_tile(&r);
    for (; split < n_whole; split++) {
        const split_place next = place_split(first, a.kv, pages);
        pages = split_pages(table, min(split + 2, last), n_pages);
        pass_split<T, HD>(&r, q, &s, at, &next, split, pos, true, a.scale, t);
        at = next;
    }
    for (; split <= last; split++) { /* usually one */
        pass_split<T, HD>(&r, q, &s, at, NULL, split, pos, false, a.scale, t);
        if (split == last) break;
        at = place_split(first, a.kv, pages);
        pages = split_pages(table, min(split + 2, last), n_pages);
        if (keys_ahead<HD>::YES) load_k<HD>(&s, at);
    }
    store_tile<T, HD>(r, a, it, head, g, t);
}

/* ---- few tiles: a block each ---- */

enum { SPREAD_WARPS = 4 };

/* The splits of a round, a warp each, as the products leave them: o[j][e] of every lane; m and l of
 * every row. */
template <int HD> struct spread_parts {
    float o[SPREAD_WARPS][HD / 8][4][32];
    float m[SPREAD_WARPS][ROSE_CUDA_TILE_ROWS], l[SPREAD_WARPS][ROSE_CUDA_TILE_ROWS];
};

/* Warp w has the splits w, w + WARPS, .., and merges every split for the dims 8 j of
 * j = w * OWN .. : those of its own lanes. K and V of its next split are on their way while the
 * round is merged. */
template <typename T, int HD>
static __global__ void __launch_bounds__(SPREAD_WARPS * 32, 3)
    spread_kernel(const rose_cuda_attention a)
{
    enum { WARPS = SPREAD_WARPS, OWN = (HD / 8 + WARPS - 1) / WARPS };
    __shared__ spread_parts<HD> part;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.x;
    /* The longest first, as the items of a prompt come in ascending order. */
    const rose_cuda_item it = a.items[a.n_items - 1 - blockIdx.y];
    const uint32_t end = it.pos + it.n_rows - 1, n_pages = end / ROSE_PAGE + 1, last = end / SPLIT;
    const uint32_t *table = a.tables + it.table;
    const uint32_t pos[2] = {min(it.pos + g, end), min(it.pos + g + 8, end)};
    const T *first_page = kv_block<T>(a.kv, 0, head) + lane * (sizeof(uint4) / sizeof(T));
    uint2 pages = make_uint2(0, 0);

    pdl_launch();
    if (it.n_rows > 0 && warp <= last) pages = split_pages(table, warp, n_pages);
    pdl_wait();
    if (it.n_rows == 0) return;

    uint32_t q[HD / 16][4];
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, out[OWN][4] = {};
    split_kv<HD> s;
    if (warp <= last) {
        const split_place at = place_split(first_page, a.kv, pages);
        load_k<HD>(&s, at);
        load_v<HD>(&s, at);
    }
    load_tile_queries<T, HD>(q, a, it, head, g, t);
    for (uint32_t first = 0; first <= last; first += WARPS) {
        const uint32_t split = first + warp, next = split + WARPS;
        if (split <= last) {
            split_place ahead = {};
            float p[4][4], m[2], l[2];
            uint32_t prob[4][2];
            if (next <= last)
                ahead = place_split(first_page, a.kv, split_pages(table, next, n_pages));
            score<T, HD>(q, s, p);
            if (next <= last) load_k<HD>(&s, ahead);
            weigh<T>(p, split, pos, (split + 1) * SPLIT <= it.pos + 1, a.scale, t, m, l, prob);
#pragma unroll
            for (int c = 0; c < HD / 16; c++) {
                float o[2][4] = {};
                add_values<T, HD>(prob, s, 0, c, o);
                add_values<T, HD>(prob, s, 1, c, o);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    part.o[warp][c * 2 + e / 4][e % 4][lane] = o[e / 4][e % 4];
            }
            if (next <= last) load_v<HD>(&s, ahead);
            if (t == 0) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    part.m[warp][g + i * 8] = m[i];
                    part.l[warp][g + i * 8] = l[i];
                }
            }
        }
        __syncthreads();
        const uint32_t n = min(last + 1 - first, (uint32_t)WARPS);
        for (uint32_t k = 0; k < n; k++) {
            float x[2], y[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                merge_scale(&max[i], &sum[i], part.m[k][g + i * 8], part.l[k][g + i * 8], &x[i],
                            &y[i]);
#pragma unroll
            for (int j = 0; j < OWN; j++)
                if (warp * OWN + j < HD / 8)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        out[j][e] = fmaf(part.o[k][warp * OWN + j][e][lane], y[e / 2],
                                         out[j][e] * x[e / 2]);
        }
        if (first + WARPS <= last) __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float inv = __frcp_rn(sum[i]);
        if (g + i * 8 >= it.n_rows) continue;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const uint32_t dim = (warp * OWN + j) * 8 + t * 2;
            if (dim < a.kv.head_dim)
                store_pair(static_cast<T *>(a.out) +
                               h_index(it.row + g + i * 8, head * a.kv.head_dim + dim, a.out_k_pad),
                           out[j][i * 2] * inv, out[j][i * 2 + 1] * inv);
        }
    }
}

template <typename T, int HD>
static cudaError_t run_spread(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    /* wider heads would have no registers for it; the launch is not reached */
    enum { TAKEN = HD <= 64 ? HD : 64 };
    return launch_kernel(at, spread_kernel<T, TAKEN>, dim3(a->kv.n_heads, a->n_items),
                         SPREAD_WARPS * 32, 0, *a);
}

/* Single rows, so many (row, head). */
static bool ahead_takes(const rose_cuda_launch *at, uint32_t n_units)
{
    const bool many = n_units > 3 * at->device->sms && (at->without & ROSE_CUDA_WITHOUT_AHEAD) == 0;
    return (many || at->beside) && at->device->code >= 90;
}

bool rose_cuda_attention_adds(const rose_cuda_launch *at, uint32_t n_units)
{
    return at->type != ROSE_CUDA_F32 && (at->without & ROSE_CUDA_WITHOUT_APPEND) == 0 &&
           ahead_takes(at, n_units);
}

template <typename T, int HD>
static cudaError_t run_size(const rose_cuda_launch *at, const rose_cuda_attention *a, bool together)
{
    if (!together && HD <= 64 && a->n_items * a->kv.n_heads <= 3 * at->device->sms &&
        (at->without & ROSE_CUDA_WITHOUT_SPREAD) == 0)
        return run_spread<T, HD>(at, a);
    if (!together) {
        dim3 grid(a->kv.n_heads, (a->n_items + APART_WARPS - 1) / APART_WARPS);
        return launch_kernel(at, apart_kernel<T, HD>, grid, APART_WARPS * 32, 0, *a);
    }
    if (ahead_takes(at, a->n_items * a->kv.n_heads)) return run_ahead<T, HD>(at, a);
    dim3 grid(a->kv.n_heads, a->n_items);
    /* One wave of blocks, as wide as registers allow. */
    if (a->n_items * a->kv.n_heads <= at->device->sms)
        return launch_kernel(at, together_kernel<T, HD, 12>, grid, 12 * 32, 0, *a);
    if (a->n_items * a->kv.n_heads <= 3 * at->device->sms)
        return launch_kernel(at, together_kernel<T, HD, 5>, grid, 5 * 32, 0, *a);
    return launch_kernel(at, together_kernel<T, HD, 4>, grid, 4 * 32, 0, *a);
}

template <typename T>
static cudaError_t run_type(const rose_cuda_launch *at, const rose_cuda_attention *a, bool together)
{
    if (a->n_items == 0) return cudaSuccess;
    if (a->kv.hd_pad <= 16) return run_size<T, 16>(at, a, together);
    if (a->kv.hd_pad <= 32) return run_size<T, 32>(at, a, together);
    if (a->kv.hd_pad <= 64) return run_size<T, 64>(at, a, together);
    return run_size<T, 128>(at, a, together);
}

cudaError_t rose_cuda_attention_run(const rose_cuda_launch *at, const rose_cuda_attention *a,
                                    bool together)
{
    if (a->kv_rows != NULL &&
        !(together && rose_cuda_attention_adds(at, a->n_items * a->kv.n_heads)))
        return cudaErrorInvalidValue;
    if (at->type == ROSE_CUDA_F16) return run_type<__half>(at, a, together);
    if (at->type == ROSE_CUDA_BF16) return run_type<__nv_bfloat16>(at, a, together);
    return rose_cuda_attention_plain(at, a);
}
