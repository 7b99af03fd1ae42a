/* backend/cuda/attend_decode.cu - attention of items of one row (attend.h). A thread block takes a
 * unit of one item and KV head, with the query heads of the group as rows of mma.sync. Each warp
 * takes every a.warps-th inner block and has a ring of page pieces of its own. Bound by the bytes
 * of K and V.
 *
 * With `inner` the results of inner blocks go to a.parts. Otherwise the block merges them round by
 * round (an inner block for each warp). The results of its splits go to a.parts, or the block also
 * merges them and writes the output, if the unit is the whole context. fold_kernel merges what is
 * in a.parts. */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/launch.cuh"

enum { MAX_WARPS = 4, FOLD_PARTS = 128, FOLD_BATCH = 32 /* loads in flight for each thread */ };
enum { BLOCK_BYTES = 99 * 1024 /* of shared memory: all GPUs from sm_80 on have it */ };

/* Pieces in flight for each warp: 20 KB, 32 KB for 256 dims. */
template <int HD> constexpr int SLOTS = HD > 128 ? 4 : 5 * 128 / HD;

/* q is in registers, or in shared memory after the rings where registers are too few. */
template <int HD> constexpr bool KEEP_Q = HD <= 128;
template <int HD> constexpr uint32_t Q_BYTES = KEEP_Q<HD> ? 0 : PIECE<HD>;

/* Shared memory after that: M and L of split and context, [group]; O of both, [group][HD]; the
 * results of a round, [warps][group][HD + 2]. */
typedef struct merge_space {
    float4 *ml;
    float2 *sums;
    float *parts;
} merge_space;

template <int HD> static size_t decode_shared(uint32_t warps, uint32_t group)
{
    return (size_t)warps * SLOTS<HD> * PIECE<HD> + Q_BYTES<HD> +
           group * (sizeof(float4) + HD * sizeof(float2) + warps * (HD + 2) * sizeof(float));
}

template <int HD> ROSE_DEVICE float *part_at(const rose_cuda_attend &a, uint32_t part, uint32_t q)
{
    return a.parts + ((size_t)part * a.n_q + q) * (HD + 2);
}

template <typename T>
ROSE_DEVICE void put_out(const rose_cuda_attend &a, uint32_t row, uint32_t q, uint32_t d, float v)
{
    if (d < a.kv.head_dim)
        from_f32(v, static_cast<T *>(a.out) + h_index(row, q * a.kv.head_dim + d, a.out_k_pad));
}

/* Merges the results of inner blocks `from` to `to` - 1, which are in rounds at parts[0 ..], into
 * the sums of row r: one warp. A split that has ended goes to the context if the unit is the whole
 * context, else to a.parts. */
template <typename T, int HD>
ROSE_DEVICE void merge_round(const rose_cuda_attend &a, const rose_attend_unit &u,
                             const merge_space &at, uint32_t r, uint32_t q, uint32_t round,
                             uint32_t from, uint32_t to, uint32_t lane)
{
    const uint32_t group = a.n_q / a.kv.n_heads, blocks = (u.end - 1) / ROSE_ATTEND_INNER + 1;
    const bool begins = round <= u.begin / ROSE_ATTEND_INNER, ends = to == blocks;
    const bool border = !begins && round % SPLIT_BLOCKS == 0, whole = u.part == ROSE_ATTEND_NONE;
    const uint32_t part = u.part - u.begin / ROSE_ATTEND_SPLIT + round / SPLIT_BLOCKS;
    float *before = border && !whole ? part_at<HD>(a, part - 1, q) : NULL;
    float *out = ends && !whole ? part_at<HD>(a, part, q) : NULL;
    float4 ml = begins ? make_float4(-INFINITY, 0, -INFINITY, 0) : at.ml[r];
    float fa[MAX_WARPS], fb[MAX_WARPS], sa = 1, sb = 0, ea = 1, eb = 0;
    if (before != NULL && lane == 0) before[HD] = ml.x, before[HD + 1] = ml.y;
    if (border) {
        ml.z = merge_factors(ml.z, ml.x, &sa, &sb);
        ml.w = fmaf(ml.y, sb, ml.w * sa);
        ml.x = -INFINITY;
        ml.y = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < MAX_WARPS; i++) {
        if (round + i < from || round + i >= to) continue;
        const float *one = at.parts + (i * group + r) * (HD + 2);
        ml.x = merge_factors(ml.x, one[HD], &fa[i], &fb[i]);
        ml.y = fmaf(one[HD + 1], fb[i], ml.y * fa[i]);
    }
    if (ends && whole) {
        ml.z = merge_factors(ml.z, ml.x, &ea, &eb);
        ml.w = fmaf(ml.y, eb, ml.w * ea);
    }
    const float inv = __frcp_rn(ml.w);
    for (uint32_t d = lane; d < HD; d += 32) {
        float2 o = begins ? make_float2(0, 0) : at.sums[r * HD + d];
        if (before != NULL) before[d] = o.x;
        if (border) o = make_float2(0, fmaf(o.x, sb, o.y * sa));
#pragma unroll
        for (uint32_t i = 0; i < MAX_WARPS; i++)
            if (round + i >= from && round + i < to)
                o.x = fmaf(at.parts[(i * group + r) * (HD + 2) + d], fb[i], o.x * fa[i]);
        if (!ends)
            at.sums[r * HD + d] = o;
        else if (whole)
            put_out<T>(a, a.items[u.item].row, q, d, fmaf(o.x, eb, o.y * ea) * inv);
        else
            out[d] = o.x;
    }
    __syncwarp();
    if (lane != 0) return;
    at.ml[r] = ml;
    if (out != NULL) out[HD] = ml.x, out[HD + 1] = ml.y;
}

/* What a warp copies next: K pages of an inner block, then its V pages. The warp holds the page ids
 * of its next 8 inner blocks, 4 for each. */
typedef struct decode_feed {
    uint32_t block, page, v, n; /* n: how many of its inner blocks come before this one */
    uint32_t ids;
} decode_feed;

ROSE_DEVICE uint32_t first_page(const rose_attend_unit &u, uint32_t block)
{
    const uint32_t p0 = block * ROSE_ATTEND_INNER;
    return u.begin > p0 ? (u.begin - p0) / ROSE_PAGE : 0;
}

ROSE_DEVICE uint32_t last_page(const rose_attend_unit &u, uint32_t block)
{
    return min((uint32_t)INNER_PAGES,
               (u.end - block * ROSE_ATTEND_INNER + ROSE_PAGE - 1) / ROSE_PAGE);
}

/* The piece, or NULL; and on to the next. All lanes. */
template <typename T, int HD>
ROSE_DEVICE const T *next_piece(decode_feed *f, const rose_cuda_attend &a,
                                const rose_attend_unit &u, const uint32_t *table, uint32_t head,
                                uint32_t lane)
{
    if (f->block * ROSE_ATTEND_INNER >= u.end) return NULL;
    const uint32_t first = first_page(u, f->block), n = f->n % 8;
    if (n == 0 && f->v == 0 && f->page == first) {
        const uint32_t page = (f->block + lane / 4 * a.warps) * INNER_PAGES + lane % 4;
        if (page >= u.begin / ROSE_PAGE && page * ROSE_PAGE < u.end) f->ids = table[page];
    }
    const uint32_t id = __shfl_sync(ROSE_ALL_LANES, f->ids, n * 4 + f->page);
    const T *piece = page_of<T>(a.kv, id, head) + f->v * (ROSE_PAGE * HD);
    if (++f->page < last_page(u, f->block)) return piece;
    f->page = first;
    f->v ^= 1;
    if (f->v != 0) return piece;
    f->block += a.warps;
    f->n++;
    f->page = 0;
    return piece;
}

/* Dims 16 c to 16 c + 15 of the group's query heads, as an operand. `from`: head 0 of the group. */
template <typename T, int HD, int ROWS>
ROSE_DEVICE void load_heads(uint32_t q[4], const T *from, int c, uint32_t group, uint32_t lane)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const uint32_t r = lane / 4 + e % 2 * 8;
        q[e] = e % 2 < ROWS && r < group ? load_now(reinterpret_cast<const uint32_t *>(
                                               from + r * HD + c * 16 + e / 2 * 8 + lane % 4 * 2))
                                         : 0;
    }
}

/* One inner block. take() waits for the next piece in the ring and returns its address; done() lets
 * the ring go on. q: all chunks of 16 dims, or one where q lies in shared memory at q_at. */
template <typename T, int HD, int ROWS, typename Take, typename Done>
ROSE_DEVICE void attend_block(float o[HD / 8][4], float m[ROWS], float l[ROWS], uint32_t (*q)[4],
                              uint32_t q_at, const rose_attend_unit &u, uint32_t block,
                              const attend_score &by, uint32_t lane, Take take, Done done)
{
    const uint32_t j0 = first_page(u, block), j1 = last_page(u, block);
    const uint32_t lo[2] = {u.begin, u.begin}, end[2] = {u.end, u.end};
    float s[INNER_PAGES][2][4] = {};
    uint32_t prob[INNER_PAGES][4];
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j < j0 || j >= j1) continue;
        const uint32_t at = take();
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            if (!KEEP_Q<HD>) load_q<HD>(q[0], q_at, c, lane);
            add_scores<T>(s[j], q[KEEP_Q<HD> ? c : 0], at, c, HD * 16, lane);
        }
        done();
    }
    soften<T, ROWS>(s, prob, m, l, lo, end, block * ROSE_ATTEND_INNER, by, lane % 4);
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j < j0 || j >= j1) continue;
        add_values<T, HD / 8>(o, prob[j], take(), 0, HD * 16, lane);
        done();
    }
}

/* The lane's values of one row: h = 0: lane / 4, 1: 8 more. */
template <int HD>
ROSE_DEVICE void put_part(float *to, const float o[HD / 8][4], int h, float m, float l,
                          uint32_t lane)
{
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
        *reinterpret_cast<float2 *>(to + d * 8 + lane % 4 * 2) =
            make_float2(o[d][h * 2], o[d][h * 2 + 1]);
    if (lane % 4 == 0) *reinterpret_cast<float2 *>(to + HD) = make_float2(m, l);
}

template <typename T, int HD, int ROWS>
static __global__ void __launch_bounds__(MAX_WARPS * 32, HD > 128 ? 1 : 2)
    decode_kernel(const rose_cuda_attend a, const attend_score by)
{
    constexpr int S = SLOTS<HD>;
    ROSE_ATTEND_MEMORY(smem);
    __shared__ uint64_t full[MAX_WARPS][S];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t head = blockIdx.x % a.kv.n_heads, group = a.n_q / a.kv.n_heads;
    const rose_attend_unit u = a.units[blockIdx.x / a.kv.n_heads];
    pdl_launch();
    if (u.item == ROSE_ATTEND_NONE) {
        pdl_wait();
        return;
    }
    const rose_cuda_item item = a.items[u.item];
    const uint32_t *table = a.tables + item.table;
    const uint32_t first = u.begin / ROSE_ATTEND_INNER,
                   blocks = (u.end - 1) / ROSE_ATTEND_INNER + 1;
    const uint32_t base = first / a.warps * a.warps;
    const uint32_t ring = shared_at(smem) + warp * S * PIECE<HD>;
    if (threadIdx.x < a.warps * S) ring_init(&full[0][0] + threadIdx.x, 1);
    __syncthreads();

    decode_feed feed = {base + warp, 0, 0, 0, 0};
    if (feed.block < first) feed.block += a.warps;
    feed.page = first_page(u, feed.block);
    auto fetch = [&](uint32_t slot) {
        const T *piece = next_piece<T, HD>(&feed, a, u, table, head, lane);
        ring_copy(ring + slot * PIECE<HD>, piece, PIECE<HD>, &full[warp][slot], lane);
    };
    /* The kernel before this one may still be writing the row's own page. */
    uint32_t started = 0;
    while (started < S && feed.block * INNER_PAGES + feed.page != item.pos / ROSE_PAGE)
        fetch(started++);
    pdl_wait();
    while (started < S)
        fetch(started++);

    uint8_t *after = smem + a.warps * S * PIECE<HD>;
    const T *heads = static_cast<const T *>(a.q) + ((size_t)item.row * a.n_q + head * group) * HD;
    uint32_t q[KEEP_Q<HD> ? HD / 16 : 1][4], slot = 0, parity = 0;
#pragma unroll
    for (int c = 0; c < (KEEP_Q<HD> ? HD / 16 : 0); c++)
        load_heads<T, HD, ROWS>(q[c], heads, c, group, lane);
    if (!KEEP_Q<HD>) {
        if (warp == 0) copy_q<T, HD>(after, a, item, 0, head, group, lane);
        __syncthreads();
    }
    auto take = [&] {
        ring_wait<S>(&full[warp][slot], parity);
        ring_meet_warp();
        return ring + slot * PIECE<HD>;
    };
    auto done = [&] {
        __syncwarp();
        fetch(slot);
        if (++slot == S) slot = 0, parity ^= 1;
    };
    merge_space space;
    space.ml = reinterpret_cast<float4 *>(after + Q_BYTES<HD>);
    space.sums = reinterpret_cast<float2 *>(space.ml + group);
    space.parts = reinterpret_cast<float *>(space.sums + group * HD);

    const bool to_parts = a.inner && u.part != ROSE_ATTEND_NONE;
    for (uint32_t round = base; round < blocks; round += a.warps) {
        const uint32_t block = round + warp;
        if (block >= first && block < blocks) {
            float o[HD / 8][4] = {}, m[ROWS], l[ROWS];
            attend_block<T, HD, ROWS>(o, m, l, q, shared_at(after), u, block, by, lane, take, done);
#pragma unroll
            for (int h = 0; h < ROWS; h++) {
                const uint32_t r = lane / 4 + h * 8;
                if (r >= group) continue;
                float *to = to_parts ? part_at<HD>(a, u.part + block - first, head * group + r)
                                     : space.parts + (warp * group + r) * (HD + 2);
                put_part<HD>(to, o, h, m[h], l[h], lane);
            }
        }
        if (to_parts) continue;
        __syncthreads();
        for (uint32_t r = warp; r < group; r += a.warps)
            merge_round<T, HD>(a, u, space, r, head * group + r, round, max(round, first),
                               min(round + a.warps, blocks), lane);
        __syncthreads();
    }
}

/* The maximum of `before` and of m of the threads before this one. All threads of the block. */
ROSE_DEVICE float max_before(float m, float before, float *warps, uint32_t lane, uint32_t warp)
{
    for (uint32_t i = 1; i < 32; i *= 2) {
        const float up = __shfl_up_sync(ROSE_ALL_LANES, m, i);
        if (lane >= i) m = fmaxf(m, up);
    }
    const float up = __shfl_up_sync(ROSE_ALL_LANES, m, 1);
    if (lane == 31) warps[warp] = m;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        before = fmaxf(before, warps[w]);
    return lane > 0 ? fmaxf(up, before) : before;
}

/* A part in fold_kernel: L, its factors within the split, and those of its split. */
typedef struct fold_part {
    float m, l, a, b;
} fold_part;

ROSE_DEVICE float max_of(const fold_part *part, uint32_t from, uint32_t to)
{
    float m = -INFINITY;
    for (uint32_t i = from; i < to; i++)
        m = fmaxf(m, part[i].m);
    return m;
}

/* Merges the partial results of one item and query head: a thread for each dim. Maxima are exact in
 * any order, so the threads compute all factors side by side. */
template <typename T, int HD>
static __global__ void __launch_bounds__(HD > FOLD_PARTS ? HD : FOLD_PARTS, HD > FOLD_PARTS ? 1 : 2)
    fold_kernel(const rose_cuda_attend a)
{
    __shared__ fold_part part[FOLD_PARTS];
    __shared__ float sa[FOLD_PARTS], sb[FOLD_PARTS], warps[8], before;
    const rose_attend_fold f = a.folds[blockIdx.x / a.n_q];
    const uint32_t q = blockIdx.x % a.n_q, i = threadIdx.x, lane = i % 32;
    const bool inner = f.inner != ROSE_ATTEND_NONE;
    const uint32_t shift = inner ? f.inner : 0, in_split = inner ? (uint32_t)SPLIT_BLOCKS : 1;
    float L = 0, O = 0, l = 0, o = 0;
    pdl_launch();
    if (i == 0) before = -INFINITY;
    pdl_wait();
    if (f.item == ROSE_ATTEND_NONE) return;
    for (uint32_t first = 0, n; first < f.n_parts; first += n) {
        /* A chunk ends where a split ends. */
        n = min(f.n_parts - first, FOLD_PARTS - (first == 0 ? shift : 0));
        const uint32_t skew = first == 0 ? shift : 0, splits = (n + skew + in_split - 1) / in_split;
        const float *from = part_at<HD>(a, f.part + first, q);
        const size_t step = (size_t)a.n_q * (HD + 2);
        if (i < n) {
            const float2 ml = __ldcg(reinterpret_cast<const float2 *>(from + i * step + HD));
            part[i].m = ml.x;
            part[i].l = ml.y;
        }
        __syncthreads();
        const uint32_t begin = max(skew, (i + skew) / in_split * in_split) - skew;
        if (i < n) merge_factors(max_of(part, begin, i), part[i].m, &part[i].a, &part[i].b);
        const float m = i < splits ? max_of(part, max(skew, i * in_split) - skew,
                                            min(n, (i + 1) * in_split - skew))
                                   : -INFINITY;
        const float under = max_before(m, before, warps, lane, i / 32);
        if (i < splits) merge_factors(under, m, &sa[i], &sb[i]);
        __syncthreads();
        if (i == blockDim.x - 1) before = fmaxf(under, m);
        for (uint32_t j = 0; i < HD && j < n; j += FOLD_BATCH) {
            float v[FOLD_BATCH];
#pragma unroll
            for (uint32_t e = 0; e < FOLD_BATCH; e++)
                v[e] = j + e < n ? __ldcg(from + (j + e) * step + i) : 0;
#pragma unroll
            for (uint32_t e = 0; e < FOLD_BATCH; e++) {
                if (j + e >= n) continue;
                const fold_part p = part[j + e];
                const uint32_t s = (j + e + skew) / in_split;
                l = inner ? fmaf(p.l, p.b, l * p.a) : p.l;
                o = inner ? fmaf(v[e], p.b, o * p.a) : v[e];
                if ((j + e + skew + 1) % in_split != 0 && j + e + 1 < n) continue;
                L = fmaf(l, sb[s], L * sa[s]);
                O = fmaf(o, sb[s], O * sa[s]);
                l = o = 0;
            }
        }
        __syncthreads();
    }
    if (i < HD) put_out<T>(a, a.items[f.item].row, q, i, O * __frcp_rn(L));
}

template <typename T, int HD, int ROWS>
static cudaError_t run_rows(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const uint32_t group = a->n_q / a->kv.n_heads;
    rose_cuda_attend b = *a;
    while (b.warps > 1 && decode_shared<HD>(b.warps, group) > BLOCK_BYTES)
        b.warps /= 2;
    cudaError_t e = launch_kernel(l, decode_kernel<T, HD, ROWS>, dim3(a->n_units * a->kv.n_heads),
                                  b.warps * 32, decode_shared<HD>(b.warps, group), b, score_of(a));
    if (e == cudaSuccess && a->n_folds > 0)
        e = launch_kernel(l, fold_kernel<T, HD>, dim3(a->n_folds * a->n_q),
                          HD > FOLD_PARTS ? HD : FOLD_PARTS, 0, b);
    return e;
}

template <typename T>
static cudaError_t run_type(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const bool two = a->n_q / a->kv.n_heads > 8;
    switch (a->kv.hd_pad) {
#define CASE(HD)                                                                                   \
    case HD:                                                                                       \
        return two ? run_rows<T, HD, 2>(l, a) : run_rows<T, HD, 1>(l, a);
        ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    default:
        return cudaErrorNotSupported;
    }
}

extern "C" cudaError_t rose_cuda_decode_run(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    if (a->n_units == 0) return cudaSuccess;
    if (a->n_q / a->kv.n_heads > ROSE_ATTEND_MAX_GROUP || l->type == ROSE_CUDA_F32)
        return cudaErrorNotSupported;
    return l->type == ROSE_CUDA_F16 ? run_type<__half>(l, a) : run_type<__nv_bfloat16>(l, a);
}

template <typename T, int HD> static cudaError_t prepare(void)
{
    const cudaFuncAttribute attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const cudaError_t e =
        cudaFuncSetAttribute((const void *)decode_kernel<T, HD, 1>, attribute, BLOCK_BYTES);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute((const void *)decode_kernel<T, HD, 2>, attribute, BLOCK_BYTES);
}

extern "C" cudaError_t rose_cuda_decode_prepare(void)
{
    cudaError_t e = cudaSuccess;
#define CASE(HD)                                                                                   \
    if (e == cudaSuccess) e = prepare<__half, HD>();                                               \
    if (e == cudaSuccess) e = prepare<__nv_bfloat16, HD>();
    ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    return e;
}
