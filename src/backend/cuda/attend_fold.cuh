/* backend/cuda/attend_fold.cuh - the last step of an item that several thread blocks of decode have
 * computed: the block that arrives last merges the partial results, in the order of the rule
 * (attend.h). Device code only.
 *
 * A partial result of a query head is a row of HD + 4 floats in a.parts: O, then m and l, then two
 * that nobody uses. Maxima are exact in any order, so lanes compute the factors side by side. A
 * thread then merges two dims of a head. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_FOLD_CUH
#define ROSE_BACKEND_CUDA_ATTEND_FOLD_CUH

#include "backend/cuda/attend.cuh"

enum {
    FOLD_PARTS = 32, /* most that are copied at a time */
    FOLD_FEW = 8     /* the same for a block of one or two warps, which has less shared memory */
};

static_assert(FOLD_FEW % SPLIT_BLOCKS == 0 && FOLD_PARTS % SPLIT_BLOCKS == 0,
              "a chunk ends where a split ends");

template <int HD> constexpr uint32_t PART_ROW = HD + 4; /* floats */
template <int HD> constexpr uint32_t FOLD_HEADS = 256 / HD;
/* Pairs of dims that a thread merges. With fewer threads a block merges fewer heads at a time. */
template <int HD> constexpr uint32_t FOLD_PAIRS = HD > 128 ? 4 : 2;
/* Parts that a block copies at a time, heads that it merges at a time, floats of a stage. */
#define FOLD_AT_ONCE(threads) ((threads) < 128 ? FOLD_FEW : FOLD_PARTS)
#define FOLD_SIDE(HD, threads)                                                                     \
    (FOLD_PAIRS<HD> * (threads)*2 / HD < FOLD_HEADS<HD> ? FOLD_PAIRS<HD> * (threads)*2 / HD        \
                                                        : FOLD_HEADS<HD>)
#define FOLD_STAGE(HD, threads) (FOLD_AT_ONCE(threads) * FOLD_SIDE(HD, threads) * PART_ROW<HD>)
/* Two stages, the factors of a stage, the maxima before it. */
#define FOLD_BYTES(HD, threads)                                                                    \
    ((2 * FOLD_STAGE(HD, threads) + FOLD_PARTS * FOLD_SIDE(HD, threads) * 4 + 8) * 4)

template <int HD> ROSE_DEVICE float *part_at(const rose_cuda_attend &a, uint32_t part, uint32_t q)
{
    return a.parts + ((size_t)part * a.n_q + q) * PART_ROW<HD>;
}

/* The partial results that are copied at a time: they end where a split ends. */
typedef struct fold_chunk {
    uint32_t first, skew, n; /* skew: blocks of the split that come before the first */
} fold_chunk;

ROSE_DEVICE fold_chunk chunk_at(const rose_attend_fold &f, uint32_t first)
{
    const uint32_t skew = first == 0 && f.inner != ROSE_ATTEND_NONE ? f.inner : 0;
    const uint32_t most = FOLD_AT_ONCE(blockDim.x) - skew;
    const fold_chunk c = {first, skew, min(f.n_parts - first, most)}; /* or n is 0 */
    return c;
}

/* The whole block. q: the first of n_heads query heads. */
template <int HD>
ROSE_DEVICE void copy_chunk(uint32_t to, const rose_cuda_attend &a, const rose_attend_fold &f,
                            const fold_chunk &c, uint32_t q, uint32_t n_heads)
{
    const uint32_t pieces = n_heads * (PART_ROW<HD> / 4);
    for (uint32_t i = threadIdx.x; i < c.n * pieces; i += blockDim.x)
        copy_async(to + i * 16,
                   part_at<HD>(a, f.part + c.first + i / pieces, q) + (size_t)(i % pieces) * 4,
                   true);
    copy_commit();
}

ROSE_DEVICE float lane_value(float x, uint32_t lane)
{
    return __uint_as_float(__shfl_sync(ROSE_ALL_LANES, __float_as_uint(x), (int)lane));
}

/* The maximum over the lanes up to this one, from lane `lane` / width * width on, of values of
 * which neighbours `step` apart are the first that differ. */
ROSE_DEVICE float max_up_to(float x, uint32_t step, uint32_t width, uint32_t lane)
{
    for (uint32_t i = step; i < width; i *= 2) {
        const float up = __shfl_up_sync(ROSE_ALL_LANES, x, i);
        if (lane % width >= i) x = fmaxf(x, up);
    }
    return x;
}

/* The factors of a part within its split, and those of its split. m: of the lane's part, -inf if
 * there is none. in_split: parts of a split. before: the maximum before the chunk. */
ROSE_DEVICE float4 fold_factors(float m, uint32_t in_split, float *before, uint32_t lane)
{
    float4 f;
    const float within = max_up_to(m, 1, in_split, lane);
    const float up = __shfl_up_sync(ROSE_ALL_LANES, within, 1);
    merge_factors(lane % in_split > 0 ? up : -INFINITY, m, &f.x, &f.y);
    const float split = lane_value(within, lane | (in_split - 1));
    const float all = max_up_to(split, in_split, 32, lane);
    const float under = __shfl_up_sync(ROSE_ALL_LANES, all, in_split);
    const float base = *before;
    merge_factors(lane >= in_split ? fmaxf(base, under) : base, split, &f.z, &f.w);
    const float last = lane_value(all, 31);
    __syncwarp();
    if (lane == 0) *before = fmaxf(base, last);
    return f;
}

/* What a thread has of two dims of a head, and the place of these dims in a stage. */
typedef struct fold_sums {
    float2 o, O; /* of the split, of the context */
    float l, L;
    uint32_t head, dim;
} fold_sums;

/* Parts of a chunk, in order. */
template <int HD>
ROSE_DEVICE void add_parts(fold_sums *s, const float *parts, const float4 *factors,
                           const fold_chunk &c, uint32_t n_heads, uint32_t in_split)
{
#pragma unroll 4
    for (uint32_t i = 0; i < c.n; i++) {
        const float *part = parts + (i * n_heads + s->head) * PART_ROW<HD>;
        const float4 f = factors[s->head * FOLD_PARTS + i + c.skew];
        const float2 o = *reinterpret_cast<const float2 *>(part + s->dim);
        s->l = in_split > 1 ? fmaf(part[HD + 1], f.y, s->l * f.x) : part[HD + 1];
        s->o.x = in_split > 1 ? fmaf(o.x, f.y, s->o.x * f.x) : o.x;
        s->o.y = in_split > 1 ? fmaf(o.y, f.y, s->o.y * f.x) : o.y;
        if ((i + c.skew + 1) % in_split != 0 && i + 1 < c.n) continue;
        s->L = fmaf(s->l, f.w, s->L * f.z);
        s->O.x = fmaf(s->o.x, f.w, s->O.x * f.z);
        s->O.y = fmaf(s->o.y, f.w, s->O.y * f.z);
        s->l = 0;
        s->o = make_float2(0, 0);
    }
}

/* The factors of a chunk; a warp for each head. */
template <int HD>
ROSE_DEVICE void chunk_factors(float4 *factors, float *before, const float *parts,
                               const fold_chunk &c, uint32_t n_heads, uint32_t in_split)
{
    const uint32_t lane = threadIdx.x % 32, i = lane - c.skew;
    for (uint32_t r = threadIdx.x / 32; r < n_heads; r += blockDim.x / 32) {
        const bool there = lane >= c.skew && i < c.n;
        const float m = there ? parts[(i * n_heads + r) * PART_ROW<HD> + HD] : -INFINITY;
        factors[r * FOLD_PARTS + lane] = fold_factors(m, in_split, before + r, lane);
    }
}

template <typename T>
ROSE_DEVICE void put_pair(const rose_cuda_attend &a, uint32_t row, uint32_t q, uint32_t d, float2 v)
{
    T *to = static_cast<T *>(a.out) + h_index(row, q * a.kv.head_dim + d, a.out_k_pad);
    if (d < a.kv.head_dim) store_pair(to, v.x, v.y);
}

/* n_heads query heads from q on. The whole block. */
template <typename T, int HD>
ROSE_DEVICE void fold_heads(const rose_cuda_attend &a, const rose_attend_fold &f, uint32_t row,
                            uint32_t q, uint32_t n_heads, uint8_t *smem)
{
    const uint32_t apart = FOLD_STAGE(HD, blockDim.x);
    float *const stage = reinterpret_cast<float *>(smem);
    float4 *const factors = reinterpret_cast<float4 *>(stage + 2 * apart);
    float *const before =
        reinterpret_cast<float *>(factors + FOLD_PARTS * FOLD_SIDE(HD, blockDim.x));
    const uint32_t in_split = f.inner != ROSE_ATTEND_NONE ? (uint32_t)SPLIT_BLOCKS : 1;
    fold_sums sums[FOLD_PAIRS<HD>] = {};
#pragma unroll
    for (uint32_t k = 0; k < FOLD_PAIRS<HD>; k++) {
        const uint32_t d = (k * blockDim.x + threadIdx.x) * 2;
        sums[k].head = d / HD;
        sums[k].dim = d % HD;
    }
    if (threadIdx.x < FOLD_SIDE(HD, blockDim.x)) before[threadIdx.x] = -INFINITY;
    fold_chunk c = chunk_at(f, 0);
    copy_chunk<HD>(shared_at(stage), a, f, c, q, n_heads);
    for (uint32_t turn = 0, more = 1; more != 0; turn ^= 1) {
        const float *parts = stage + turn * apart;
        const fold_chunk next = chunk_at(f, c.first + c.n);
        more = c.first + c.n < f.n_parts;
        copy_chunk<HD>(shared_at(stage + (turn ^ 1) * apart), a, f, next, q, n_heads);
        copy_wait<1>();
        __syncthreads();
        chunk_factors<HD>(factors, before, parts, c, n_heads, in_split);
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < FOLD_PAIRS<HD>; k++)
            if (sums[k].head < n_heads)
                add_parts<HD>(&sums[k], parts, factors, c, n_heads, in_split);
        __syncthreads();
        c = next;
    }
#pragma unroll
    for (uint32_t k = 0; k < FOLD_PAIRS<HD>; k++) {
        const float inv = __frcp_rn(sums[k].L);
        if (sums[k].head < n_heads)
            put_pair<T>(a, row, q + sums[k].head, sums[k].dim,
                        make_float2(sums[k].O.x * inv, sums[k].O.y * inv));
    }
}

/* All query heads of a group, from q on. The whole block, whose shared memory of FOLD_BYTES is
 * free. */
template <typename T, int HD>
ROSE_DEVICE void fold_group(const rose_cuda_attend &a, const rose_attend_fold &f, uint32_t row,
                            uint32_t q, uint32_t group, uint8_t *smem)
{
    const uint32_t most = FOLD_SIDE(HD, blockDim.x);
    for (uint32_t r = 0; r < group; r += most)
        fold_heads<T, HD>(a, f, row, q + r, min(most, group - r), smem);
}

#endif
