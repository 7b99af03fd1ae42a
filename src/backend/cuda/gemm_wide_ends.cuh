/* backend/cuda/gemm_wide_ends.cuh - the ends of gemm_ends.cuh for the accumulators of wgmma. A warp
 * has 16 rows of a tile. For each 8 outputs, lane 4 g + t holds outputs 2 t and 2 t + 1 of rows g
 * and g + 8. A warp's store of a pair therefore fills a sector of 32 bytes in each of 8 rows of
 * fp32, or a whole block of 8 x 8 values of T. In gated matrices the next 8 outputs are `up` of the
 * same outputs, so that gate and up meet in one lane. */
#ifndef ROSE_BACKEND_CUDA_GEMM_WIDE_ENDS_CUH
#define ROSE_BACKEND_CUDA_GEMM_WIDE_ENDS_CUH

#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/hopper.cuh"

#if ROSE_HOPPER

/* A lane's share of a warp's 16 rows of a tile. */
typedef struct wide_lane {
    uint32_t n;      /* its first output: + 8 i */
    uint32_t left;   /* outputs of the matrix from n on */
    uint32_t row[2]; /* g and g + 8 */
    bool live[2];    /* the row is one */
} wide_lane;

ROSE_DEVICE wide_lane lane_of(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row0,
                              uint32_t n0)
{
    const uint32_t lane = threadIdx.x % 32;
    wide_lane w;
    w.n = n0 + lane % 4 * 2;
    w.left = w.n < m.n ? m.n - w.n : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.row[h] = row0 + lane / 4 + h * 8;
        w.live[h] = w.row[h] < io.rows;
    }
    return w;
}

/* The pair of row h of the lane's i-th 8 outputs. */
template <int N> ROSE_DEVICE float2 pair_of(const float (&sum)[N], int i, int h)
{
    return make_float2(sum[i * 4 + h * 2], sum[i * 4 + h * 2 + 1]);
}

template <int N> ROSE_DEVICE void set_pair(float (&sum)[N], int i, int h, float2 v)
{
    sum[i * 4 + h * 2] = v.x;
    sum[i * 4 + h * 2 + 1] = v.y;
}

/* Add the bias. Loads come several at a time: one after the other, their latency would be longer
 * than the products of a tile. */
template <int N>
ROSE_DEVICE void bias_sums(const rose_cuda_matrix &m, const wide_lane &w, float (&sum)[N])
{
    constexpr int ALL = N / 4, BATCH = ALL % 8 == 0 ? 8 : ALL % 4 == 0 ? 4 : ALL;
    if (m.bias == NULL) return;
#pragma unroll
    for (int first = 0; first < ALL; first += BATCH) {
        float2 bias[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            bias[i] = end_bias(m, w.n + (first + i) * 8);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                set_pair(sum, first + i, h, end_biased(m, pair_of(sum, first + i, h), bias[i]));
    }
}

/* ---- ends of matrices of one part; sums have the bias ---- */

/* Row-major out, as OUT. */
template <typename OUT, int N>
ROSE_DEVICE void end_wide_rows(const rose_gemm_io &io, const wide_lane &w, const float (&sum)[N])
{
    OUT *const out = static_cast<OUT *>(io.out) + w.n;
    OUT *const at[2] = {out + (size_t)w.row[0] * io.out_pitch,
                        out + (size_t)w.row[1] * io.out_pitch};
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 y = pair_of(sum, i, h);
            if (w.live[h] && i * 8 < w.left) store_pair(at[h] + i * 8, y.x, y.y);
        }
}

template <typename T, int N>
ROSE_DEVICE void end_wide_act(const rose_gemm_io &io, const wide_lane &w, const float (&sum)[N])
{
    T *const out = static_cast<T *>(io.out);
    T *const at[2] = {out + h_index(w.row[0], w.n, io.out_pitch),
                      out + h_index(w.row[1], w.n, io.out_pitch)};
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 v = end_act_values(io, pair_of(sum, i, h));
            if (w.live[h] && i * 8 < w.left) store_pair(at[h] + i * 64, v.x, v.y);
        }
}

/* n0, the tile's first output, is a multiple of 16. */
template <typename T, int N>
ROSE_DEVICE void end_wide_gated(const rose_gemm_io &io, const wide_lane &w, uint32_t n0,
                                const float (&sum)[N])
{
    const uint32_t n = n0 / 2 + threadIdx.x % 4 * 2;
    T *const out = static_cast<T *>(io.out);
    T *const at[2] = {out + h_index(w.row[0], n, io.out_pitch),
                      out + h_index(w.row[1], n, io.out_pitch)};
#pragma unroll
    for (int i = 0; i < N / 4; i += 2)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 v = end_gated_values(io, pair_of(sum, i, h), pair_of(sum, i + 1, h));
            if (w.live[h] && i * 8 < w.left) store_pair(at[h] + i * 32, v.x, v.y);
        }
}

/* f(io) with io.act a constant, so that the code of one activation is in one place. */
template <typename F> ROSE_DEVICE void with_act(const rose_gemm_io &io, F f)
{
    rose_gemm_io fixed = io;
    if (io.act == ROSE_ACT_SILU) {
        fixed.act = ROSE_ACT_SILU;
        f(fixed);
    } else if (io.act == ROSE_ACT_GELU_TANH) {
        fixed.act = ROSE_ACT_GELU_TANH;
        f(fixed);
    } else {
        f(io);
    }
}

/* The largest key of the lane's logits of row h; a NaN has order 0. */
template <int N>
ROSE_DEVICE unsigned long long best_key(const wide_lane &w, int h, const float (&logit)[N])
{
    unsigned long long best = 0;
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (i * 8 + e < w.left)
                best = max(best, rank_key(logit[i * 4 + h * 2 + e], w.n + i * 8 + e));
    return best;
}

/* The rows' largest logits of this tile to io.key. Keys only grow, so a tile whose largest logits
 * are below the keys so far has nothing to add. That is the case for most tiles, and the order of
 * floats shows it with one comparison a logit. */
template <int N>
ROSE_DEVICE void end_wide_keys(const rose_gemm_io &io, const wide_lane &w, const float (&logit)[N])
{
    bool may = false;
    if (io.key == NULL) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = __uint_as_float(0x7fffffff); /* NaN: fmaxf takes the other number */
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            top = fmaxf(top, fmaxf(logit[i * 4 + h * 2], logit[i * 4 + h * 2 + 1]));
        if (!w.live[h]) continue;
        const uint32_t *key = reinterpret_cast<const uint32_t *>(io.key + w.row[h]);
        may |= order_of(top) >= load_now(key + 1); /* the order of the largest logit so far */
    }
    if (__all_sync(ROSE_ALL_LANES, !may)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        unsigned long long best = best_key(w, h, logit);
#pragma unroll
        for (int x = 1; x < 4; x *= 2) {
            const unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, best, x);
            best = max(best, other);
        }
        if (threadIdx.x % 4 == 0 && w.live[h]) atomicMax(io.key + w.row[h], best);
    }
}

/* sum becomes the logits. */
template <int N>
ROSE_DEVICE void end_wide_logits(const rose_gemm_io &io, const wide_lane &w, float (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 y = pair_of(sum, i, h);
            set_pair(sum, i, h, make_float2(end_logit(io, y.x), end_logit(io, y.y)));
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *const at = io.logits + (size_t)w.row[h] * io.ld_logits + w.n;
        if (!w.live[h]) continue;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const float *v = sum + i * 4 + h * 2;
            if (io.ld_logits % 2 == 0 && i * 8 + 1 < w.left) {
                store_pair(at + i * 8, v[0], v[1]);
            } else if (i * 8 < w.left) {
                at[i * 8] = v[0];
                if (i * 8 + 1 < w.left) at[i * 8 + 1] = v[1];
            }
        }
    }
    end_wide_keys(io, w, sum);
}

/* The end of a matrix of one part for 16 rows of a tile, from row0 and n0 on. */
template <typename T, int N>
ROSE_DEVICE void end_wide(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row0,
                          uint32_t n0, float (&sum)[N])
{
    const wide_lane w = lane_of(m, io, row0, n0);
    bias_sums(m, w, sum);
    if (io.end == ROSE_END_ROWS) {
        if (io.out_f32)
            end_wide_rows<float>(io, w, sum);
        else
            end_wide_rows<T>(io, w, sum);
    } else if (io.end == ROSE_END_ACT) {
        with_act(io, [&](const rose_gemm_io &fixed) { end_wide_act<T>(fixed, w, sum); });
    } else if (io.end == ROSE_END_GATED) {
        with_act(io, [&](const rose_gemm_io &fixed) { end_wide_gated<T>(fixed, w, n0, sum); });
    } else {
        end_wide_logits(io, w, sum);
    }
}

/* ---- RESIDUAL: a lane's sums begin with x ---- */

/* Where rows or outputs do not exist, it loads others, without a branch. */
template <int N>
ROSE_DEVICE void load_residual(const rose_gemm_io &io, const wide_lane &w, float (&sum)[N])
{
    const uint32_t n = w.left > 0 ? w.n : 0;
    const float2 *const at[2] = {end_residual_at(io, w.live[0] ? w.row[0] : 0, n),
                                 end_residual_at(io, w.live[1] ? w.row[1] : 0, n)};
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            set_pair(sum, i, h, load_now(at[h] + (i * 8 < w.left ? i * 4 : 0)));
}

/* One more part. Part 0 has the bias already. */
template <int N> ROSE_DEVICE void add_part(float (&sum)[N], const float (&part)[N])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            set_pair(sum, i, h, end_added(pair_of(sum, i, h), pair_of(part, i, h)));
}

/* A part without values of k is +0. */
template <int N>
ROSE_DEVICE void add_empty_part(const rose_cuda_matrix &m, const wide_lane &w, float (&sum)[N],
                                bool first)
{
    float part[N] = {};
    if (first) bias_sums(m, w, part);
    add_part(sum, part);
}

template <int N>
ROSE_DEVICE void store_residual(const rose_gemm_io &io, const wide_lane &w, const float (&sum)[N])
{
    float2 *const at[2] = {end_residual_at(io, w.row[0], w.n), end_residual_at(io, w.row[1], w.n)};
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (w.live[h] && i * 8 < w.left) at[h][i * 4] = pair_of(sum, i, h);
}

#endif
#endif
