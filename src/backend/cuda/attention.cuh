/* backend/cuda/attention.cuh - one split of the context of up to 16 rows (docs/NUMERICS.md, CUDA,
 * 6): its load from the pages, its scores and sums, and the merging of splits. Shared by every
 * attention. Device code only. */
#ifndef ROSE_BACKEND_CUDA_ATTENTION_CUH
#define ROSE_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/device.cuh"

enum { SPLIT = ROSE_CUDA_SPLIT };

/* Rows row0 + g and + 8; rows from n_rows on and dims from head_dim on are zeros. */
template <typename T, int HD>
ROSE_DEVICE void load_queries(uint32_t q[HD / 16][4], const rose_cuda_attention &a,
                              const rose_cuda_item &it, uint32_t head, int g, int t)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t r = g + e % 2 * 8, dim = c * 16 + e / 2 * 8 + t * 2;
            q[c][e] = 0;
            if (r < it.n_rows && dim < a.kv.head_dim)
                q[c][e] = __ldcg(reinterpret_cast<const uint32_t *>(static_cast<const T *>(a.q) +
                                                                    (size_t)(it.row + r) * a.d +
                                                                    head * a.kv.head_dim + dim));
        }
}

/* A split in registers. */
template <int HD> struct split_kv {
    uint4 k[2][HD / 16], v[2][HD / 16];
};

template <int HD> ROSE_DEVICE uint4 k_of(const split_kv<HD> &s, int page, int c)
{
    return s.k[page][c];
}
template <int HD> ROSE_DEVICE uint4 v_of(const split_kv<HD> &s, int page, int c)
{
    return s.v[page][c];
}

/* State of a row, or its part in one split: O unnormalised. */
ROSE_DEVICE void merge_scale(float *max, float *sum, float m, float l, float *a, float *b)
{
    /* exp2 of 0 is 1: one of the two factors is */
    const bool higher = m > *max;
    const float top = higher ? m : *max, other = exp2_fast((higher ? *max : m) - top);
    *a = higher ? other : 1.0f;
    *b = higher ? 1.0f : other;
    *max = top;
    *sum = fmaf(l, *b, *sum * *a);
}

/* Where the last split has one page only, the second is the first again: its positions are masked.
 */
ROSE_DEVICE uint2 split_pages(const uint32_t *table, uint32_t split, uint32_t n_pages)
{
    const uint32_t second = split * 2 + 1 < n_pages ? split * 2 + 1 : split * 2;
    return make_uint2(__ldcg(table + split * 2), __ldcg(table + second));
}

/* The load may come before pdl_wait. */
template <typename T, int HD>
ROSE_DEVICE void load_split(split_kv<HD> *s, const rose_cuda_kv &kv, uint2 pages, uint32_t head,
                            int lane)
{
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const uint4 *at =
            reinterpret_cast<const uint4 *>(kv_block<T>(kv, p == 0 ? pages.x : pages.y, head)) +
            lane;
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            const uint4 *k = at + c * 32, *v = at + (HD / 16 + c) * 32;
            s->k[p][c] = load_early(k);
            s->v[p][c] = load_early(v);
        }
    }
}

/* One split for 16 rows, in three parts: lane (g, t) has rows g and g + 8, at positions pos[0],
 * pos[1]. KV: where k_of and v_of find the lane's operands. */
template <typename T, int HD, typename KV>
ROSE_DEVICE void score(const uint32_t q[HD / 16][4], const KV &s, float p[4][4])
{
    const T *tag = NULL;
#pragma unroll
    for (int j = 0; j < 4; j++)
        p[j][0] = p[j][1] = p[j][2] = p[j][3] = 0;
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 k = k_of(s, j / 2, c);
            mma(p[j], q[c], j % 2 ? k.z : k.x, j % 2 ? k.w : k.y, tag);
        }
}

/* m, l and the probabilities of the scores p, as the second product takes them. whole: no position
 * of the split lies after a row. */
template <typename T>
ROSE_DEVICE void weigh(float p[4][4], uint32_t split, const uint32_t pos[2], bool whole,
                       float scale, int t, float m[2], float l[2], uint32_t prob[4][2])
{
    const T *tag = NULL;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[j][e] *= scale;
    if (!whole)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (split * SPLIT + j * 8 + t * 2 + e % 2 > pos[e / 2]) p[j][e] = -INFINITY;
    m[0] = m[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            m[e / 2] = fmaxf(m[e / 2], p[j][e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = fmaxf(m[r], __shfl_xor_sync(ROSE_ALL_LANES, m[r], 1));
        m[r] = fmaxf(m[r], __shfl_xor_sync(ROSE_ALL_LANES, m[r], 2));
        l[r] = 0;
    }
    const float base[2] = {m[0] == -INFINITY ? 0.0f : m[0], m[1] == -INFINITY ? 0.0f : m[1]};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            prob[j][r] = pair_f32(exp2_fast(p[j][r * 2] - base[r]),
                                  exp2_fast(p[j][r * 2 + 1] - base[r]), tag);
            float2 rounded = unpair(prob[j][r], tag);
            l[r] += rounded.x;
            l[r] += rounded.y;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(ROSE_ALL_LANES, l[r], 1);
        l[r] += __shfl_xor_sync(ROSE_ALL_LANES, l[r], 2);
    }
}

/* Adds one page to o of the dims 16 c to 16 c + 15. */
template <typename T, int HD, typename KV>
ROSE_DEVICE void add_values(const uint32_t prob[4][2], const KV &s, int page, int c, float o[2][4])
{
    const T *tag = NULL;
    const uint32_t a[4] = {prob[page * 2][0], prob[page * 2][1], prob[page * 2 + 1][0],
                           prob[page * 2 + 1][1]};
    const uint4 v = v_of(s, page, c);
    mma(o[0], a, v.x, v.y, tag);
    mma(o[1], a, v.z, v.w, tag);
}

/* All of it: m, l, o[HD / 8][4]. */
template <typename T, int HD, typename KV>
ROSE_DEVICE void attend(const uint32_t q[HD / 16][4], const KV &s, uint32_t split,
                        const uint32_t pos[2], bool whole, float scale, int t, float m[2],
                        float l[2], float o[HD / 8][4])
{
    float p[4][4];
    uint32_t prob[4][2];
    score<T, HD>(q, s, p);
    weigh<T>(p, split, pos, whole, scale, t, m, l, prob);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[j][e] = 0;
#pragma unroll
    for (int page = 0; page < 2; page++)
#pragma unroll
        for (int c = 0; c < HD / 16; c++)
            add_values<T, HD>(prob, s, page, c, o + c * 2);
}

/* Row 0 of a split, by its lanes (g is 0), to shared memory: o, then m and l. */
template <int HD>
ROSE_DEVICE void keep_part(float part[HD + 2], const float m[2], const float l[2],
                           const float o[HD / 8][4], int t)
{
#pragma unroll
    for (int j = 0; j < HD / 8; j++) {
        part[j * 8 + t * 2] = o[j][0];
        part[j * 8 + t * 2 + 1] = o[j][1];
    }
    if (t == 0) {
        part[HD] = m[0];
        part[HD + 1] = l[0];
    }
}

#endif
