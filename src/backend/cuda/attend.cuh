/* backend/cuda/attend.cuh - the arithmetic of attend.h, each step once, for the decode and the
 * prompt kernel: scores of a page, softmax of an inner block, values of a page, merging. A warp has
 * 16 rows (query rows or query heads) in the layout of mma.sync: a lane has rows g = lane / 4 and
 * g + 8, columns 2 t and 2 t + 1 of each 8, t = lane % 4. Device code only. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_CUH
#define ROSE_BACKEND_CUDA_ATTEND_CUH

#include "backend/cuda/attend.h"
#include "backend/cuda/attend_ops.cuh"

enum {
    INNER_PAGES = ROSE_ATTEND_INNER / ROSE_PAGE,
    SPLIT_BLOCKS = ROSE_ATTEND_SPLIT / ROSE_ATTEND_INNER
};

/* Bytes of K or V of one page and KV head. */
template <int HD> constexpr uint32_t PIECE = ROSE_PAGE *HD * 2;

/* How a score is made from a sum over head_dim: times `by`, in units of log2(e); with a soft cap
 * cap * tanh(s / cap), where tanh(x) = 1 - 2 / (1 + exp(2 x)). */
typedef struct attend_score {
    float by, cap;
} attend_score;

static inline attend_score score_of(const rose_cuda_attend *a)
{
    attend_score s;
    s.by = a->softcap > 0 ? a->scale * (2 * ROSE_LOG2E) / a->softcap : a->scale * ROSE_LOG2E;
    s.cap = a->softcap > 0 ? a->softcap * ROSE_LOG2E : 0;
    return s;
}

/* x: the sum times s.by. */
ROSE_DEVICE void cap_score(float *x, const attend_score &s)
{
    *x = fmaf(-2.0f, over(s.cap, 1.0f + exp2_fast(*x)), s.cap);
}

/* The element of K or V (token, dim) in its half of a page. */
ROSE_DEVICE uint32_t page_index(uint32_t token, uint32_t dim, uint32_t hd_pad)
{
    return (token / 8 * (hd_pad / 8) + dim / 8) * 64 + token % 8 * 8 + dim % 8;
}

/* K of a page and KV head; V follows after 16 hd_pad elements. */
template <typename T> ROSE_DEVICE T *page_of(const rose_cuda_kv &kv, uint32_t page, uint32_t head)
{
    return static_cast<T *>(kv.base) + page * kv.page_elems +
           (size_t)head * 2 * ROSE_PAGE * kv.hd_pad;
}

/* Merging results with maximum m into results with maximum M: O = fma(o, b, O a), the same for L.
 * Returns the new maximum. Nothing (m = -inf) changes no bit, not even the sign of a zero. */
ROSE_DEVICE float merge_factors(float M, float m, float *a, float *b)
{
    const bool higher = m > M;
    const float top = higher ? m : M, other = exp2_fast((higher ? M : m) - top);
    *a = higher ? other : 1.0f;
    *b = higher ? 1.0f : m == -INFINITY ? -0.0f : other;
    return top;
}

/* Merges m and l into M and L; returns the factors for O. */
ROSE_DEVICE float2 merge_ml(float *M, float *L, float m, float l)
{
    float2 by;
    *M = merge_factors(*M, m, &by.x, &by.y);
    *L = fmaf(l, by.y, *L * by.x);
    return by;
}

ROSE_DEVICE float merge_o(float O, float o, float2 by)
{
    return fmaf(o, by.y, O * by.x);
}

/* 16 pairs (query row, head of the group) of an item, from pair r0 on, in shared memory as a page
 * has 16 tokens of K. One warp. */
template <typename T, int HD>
ROSE_DEVICE void copy_q(uint8_t *to, const rose_cuda_attend &a, const rose_cuda_item &item,
                        uint32_t r0, uint32_t head, uint32_t group, uint32_t lane)
{
    for (uint32_t i = lane; i < 16 * (HD / 8); i += 32) {
        const uint32_t r = r0 + i % 16, d = i / 16 * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < item.n_rows * group)
            v = __ldcg(reinterpret_cast<const uint4 *>(
                static_cast<const T *>(a.q) +
                ((size_t)(item.row + r / group) * a.n_q + head * group + r % group) * HD + d));
        reinterpret_cast<uint4 *>(to)[page_index(i % 16, d, HD) / 8] = v;
    }
    __syncwarp();
}

/* Dims 16 c to 16 c + 15 of the rows that copy_q has copied to `at`, as an operand. */
template <int HD> ROSE_DEVICE void load_q(uint32_t q[4], uint32_t at, uint32_t c, uint32_t lane)
{
    load_matrices(q, at + lane / 8 % 2 * (HD * 16) + (2 * c + lane / 16) * 128 + lane % 8 * 16);
}

/* Products of 16 rows with K of a page at `at`. p: 2 tiles of 8 positions. q: chunks of 16 dims. */
template <typename T>
ROSE_DEVICE void add_scores(float p[2][4], const uint32_t q[4], uint32_t at, uint32_t c,
                            uint32_t half, uint32_t lane)
{
    uint32_t k[4];
    load_matrices(k, at + lane / 16 * half + (2 * c + lane / 8 % 2) * 128 + lane % 8 * 16);
    mma(p[0], q, k[0], k[1], static_cast<const T *>(NULL));
    mma(p[1], q, k[2], k[3], static_cast<const T *>(NULL));
}

/* Products of 16 rows of probabilities with V of a page at `at`: N tiles of 8 dims from tile
 * `first` on. */
template <typename T, int N>
ROSE_DEVICE void add_values(float (*o)[4], const uint32_t p[4], uint32_t at, uint32_t first,
                            uint32_t half, uint32_t lane)
{
    const uint32_t row = at + lane / 8 % 2 * half + (first + lane / 16) * 128 + lane % 8 * 16;
#pragma unroll
    for (int d = 0; d < N; d += 2) {
        uint32_t v[4];
        load_matrices_transposed(v, row + d * 128);
        mma(o[d], p, v[0], v[1], static_cast<const T *>(NULL));
        mma(o[d + 1], p, v[2], v[3], static_cast<const T *>(NULL));
    }
}

/* The softmax of an inner block from position p0 on, for ROWS = 1 or 2 rows of a lane. Row h sees
 * positions lo[h] to end[h] - 1. s: sums over head_dim; those of other positions may be anything.
 * prob[j]: operands of the instruction for page j. */
template <typename T, int ROWS>
ROSE_DEVICE void soften(float s[INNER_PAGES][2][4], uint32_t prob[INNER_PAGES][4], float m[ROWS],
                        float l[ROWS], const uint32_t *lo, const uint32_t *end, uint32_t p0,
                        const attend_score &by, uint32_t t)
{
    const T *type = NULL;
#pragma unroll
    for (int h = 0; h < ROWS; h++) {
        m[h] = -INFINITY;
        l[h] = 0;
#pragma unroll
        for (int i = 0; i < 4 * INNER_PAGES; i++)
            s[i / 4][i / 2 % 2][h * 2 + i % 2] *= by.by;
        if (by.cap > 0)
#pragma unroll
            for (int i = 0; i < 4 * INNER_PAGES; i++)
                cap_score(&s[i / 4][i / 2 % 2][h * 2 + i % 2], by);
#pragma unroll
        for (int i = 0; i < 4 * INNER_PAGES; i++) {
            float *x = &s[i / 4][i / 2 % 2][h * 2 + i % 2];
            const uint32_t at = p0 + i / 2 * 8 + t * 2 + i % 2;
            if (at - lo[h] >= end[h] - lo[h]) *x = -INFINITY;
            m[h] = fmaxf(m[h], *x);
        }
        m[h] = fmaxf(m[h], __shfl_xor_sync(ROSE_ALL_LANES, m[h], 1));
        m[h] = fmaxf(m[h], __shfl_xor_sync(ROSE_ALL_LANES, m[h], 2));
        const float base = m[h] == -INFINITY ? 0.0f : m[h]; /* all masked, or all NaN */
#pragma unroll
        for (int i = 0; i < 2 * INNER_PAGES; i++) {
            const float *x = &s[i / 2][i % 2][h * 2];
            const uint32_t u = pair_f32(exp2_fast(x[0] - base), exp2_fast(x[1] - base), type);
            const float2 r = unpair(u, type);
            l[h] += r.x;
            l[h] += r.y;
            prob[i / 2][i % 2 * 2 + h] = u;
        }
        l[h] += __shfl_xor_sync(ROSE_ALL_LANES, l[h], 1);
        l[h] += __shfl_xor_sync(ROSE_ALL_LANES, l[h], 2);
    }
    if (ROWS == 1)
#pragma unroll
        for (int j = 0; j < INNER_PAGES; j++)
            prob[j][1] = prob[j][3] = 0;
}

/* The part of rose_cuda_attend_prepare that belongs to decode. */
extern "C" cudaError_t rose_cuda_decode_prepare(void);

/* head_dim as a class that the kernels are compiled for. */
#define ROSE_ATTEND_CLASSES(CASE) CASE(48) CASE(64) CASE(80) CASE(96) CASE(128) CASE(256)

#endif
