/* backend/cuda/attend_prompt.cuh - what the prompt kernels share: which positions a pair (query
 * row, head of the group) of an item sees, and the sums of a thread, which has rows g and g + 8 of
 * 16 in the layout of mma.sync and wgmma (attend.cuh). Device code only. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_PROMPT_CUH
#define ROSE_BACKEND_CUDA_ATTEND_PROMPT_CUH

#include "backend/cuda/attend.cuh"

template <int HD>
constexpr uint32_t TILE = INNER_PAGES *PIECE<HD>; /* bytes of K or V of an inner block */

/* Positions that a row sees. */
typedef struct prompt_row {
    uint32_t lo, end; /* equal: there is no such row */
} prompt_row;

ROSE_DEVICE prompt_row row_of(const rose_cuda_attend &a, const rose_cuda_item &item, uint32_t r,
                              uint32_t group)
{
    prompt_row p = {0, 0};
    if (r >= item.n_rows * group) return p;
    p.end = item.pos + r / group + 1;
    if (a.window != 0 && p.end > a.window) p.lo = p.end - a.window;
    return p;
}

/* The positions that pairs r0 .. r1 - 1 of an item see together; none if there are no such pairs.
 */
ROSE_DEVICE prompt_row rows_of(const rose_cuda_attend &a, const rose_cuda_item &item, uint32_t r0,
                               uint32_t r1, uint32_t group)
{
    prompt_row p = row_of(a, item, r0, group);
    if (p.end != 0) p.end = row_of(a, item, min(r1, item.n_rows * group) - 1, group).end;
    return p;
}

/* M, L and O of a split, and O of the splits before it, which lie in shared memory. */
template <int HD> struct prompt_sums {
    float o[HD / 8][4], m[2], l[2], M[2], L[2];
    float *before; /* [HD / 2][threads] */
    bool any;      /* there was a split before */
};

template <int HD> ROSE_DEVICE void clear_split(prompt_sums<HD> *s)
{
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
        s->o[d][0] = s->o[d][1] = s->o[d][2] = s->o[d][3] = 0;
    s->m[0] = s->m[1] = -INFINITY;
    s->l[0] = s->l[1] = 0;
}

template <int HD> ROSE_DEVICE void begin_sums(prompt_sums<HD> *s, float *before)
{
    s->M[0] = s->M[1] = -INFINITY;
    s->L[0] = s->L[1] = 0;
    s->before = before;
    s->any = false;
    clear_split(s);
}

/* Merges the maxima and sums of an inner block into the split. */
template <int HD>
ROSE_DEVICE void merge_block(prompt_sums<HD> *s, const float m[2], const float l[2], float a[2],
                             float b[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s->m[h] = merge_factors(s->m[h], m[h], &a[h], &b[h]);
        s->l[h] = fmaf(l[h], b[h], s->l[h] * a[h]);
    }
}

/* Merges the split into the context. last: O of the context comes to s->o instead of memory. */
template <int HD, int W> ROSE_DEVICE void end_split(prompt_sums<HD> *s, bool last)
{
    float a[2], b[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s->M[h] = merge_factors(s->M[h], s->m[h], &a[h], &b[h]);
        s->L[h] = fmaf(s->l[h], b[h], s->L[h] * a[h]);
    }
#pragma unroll
    for (int i = 0; i < HD / 2; i++) {
        float *at = s->before + i * (W * 32) + threadIdx.x;
        const int h = i / 2 % 2;
        const float sum = fmaf(s->o[i / 4][i % 4], b[h], (s->any ? *at : 0.0f) * a[h]);
        if (last)
            s->o[i / 4][i % 4] = sum;
        else
            *at = sum;
    }
    s->any = true;
    if (!last) clear_split(s);
}

template <typename T, int HD>
ROSE_DEVICE void put_rows(const rose_cuda_attend &a, const rose_cuda_item &item,
                          const prompt_sums<HD> &s, uint32_t r0, uint32_t head, uint32_t group,
                          uint32_t lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t r = r0 + lane / 4 + h * 8;
        if (r >= item.n_rows * group) continue;
        const uint32_t row = item.row + r / group, q = head * group + r % group;
        const float inv = __frcp_rn(s.L[h]);
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
            const uint32_t dim = d * 8 + lane % 4 * 2;
            if (dim >= a.kv.head_dim) continue;
            store_pair(static_cast<T *>(a.out) + h_index(row, q * a.kv.head_dim + dim, a.out_k_pad),
                       s.o[d][h * 2] * inv, s.o[d][h * 2 + 1] * inv);
        }
    }
}

/* attend_wide.cu: as rose_cuda_prompt_run, by wgmma; for head_dim 64 and 128 on a GPU of sm_90a. */
extern "C" cudaError_t rose_cuda_prompt_wide(const rose_cuda_launch *l, const rose_cuda_attend *a);
extern "C" cudaError_t rose_cuda_prompt_wide_prepare(void);

#endif
