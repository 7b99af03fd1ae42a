/* backend/cuda/gemm_wide_ends.cuh - the ends of gemm_ends.cuh for the accumulators of wgmma. A warp
 * has 16 rows of a tile. For each 8 outputs, lane 4 g + t holds outputs 2 t and 2 t + 1 of rows g
 * and g + 8. A warp's store of a pair therefore fills a whole block of 8 x 8 values of T. For
 * row-major rows a warp turns its sums in shared memory, so that a store fills lines of 128 bytes.
 * In gated matrices the next 8 outputs are `up` of the same outputs, so that gate and up meet in
 * one lane. */
#ifndef ROSE_BACKEND_CUDA_GEMM_WIDE_ENDS_CUH
#define ROSE_BACKEND_CUDA_GEMM_WIDE_ENDS_CUH

#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/hopper.cuh"

/* What a warp stores at a time of row-major rows: a line of each of 16 rows. */
enum { LINE_BYTES = 128, LINES_BYTES = 16 * LINE_BYTES };

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

/* ---- the bias ---- */

/* The bias of a tile's TN outputs to the warp's place `to`. A warp loads it before the products,
 * because a load takes as long as several stages of them. */
template <int TN> ROSE_DEVICE void put_bias(const rose_cuda_matrix &m, uint32_t to, uint32_t n0)
{
    const uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t EACH = (TN + 31) / 32; /* outputs of a lane */
    float bias[EACH];
    if (m.bias == NULL) return;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t n = n0 + i * 32 + lane;
        bias[i] = n < m.n ? __ldcg(m.bias + n) : 0;
    }
    __syncwarp(); /* the lanes have read the bias of the tile before */
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        if (i * 32 + lane < TN) put_shared(to + (i * 32 + lane) * 4, bias[i]);
    __syncwarp();
}

/* Add the bias, from where put_bias put it. */
template <int N>
ROSE_DEVICE void bias_sums(const rose_cuda_matrix &m, uint32_t from, float (&sum)[N])
{
    if (m.bias == NULL) return;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float2 bias;
        get_shared(&bias, from + (i * 8 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
        for (int h = 0; h < 2; h++)
            set_pair(sum, i, h, end_biased(m, pair_of(sum, i, h), bias));
    }
}

/* ---- row-major rows ---- */

/* Where a byte of a row's line is. Neither pairs of 8 rows nor the pieces of 16 bytes of a row
 * meet in a bank. */
ROSE_DEVICE uint32_t line_at(uint32_t lines, uint32_t row, uint32_t byte)
{
    const uint32_t turn = (row & 3) << 1 | (row >> 2 & 1);
    return lines + row * LINE_BYTES + (byte / 16 ^ turn) * 16 + byte % 16;
}

ROSE_DEVICE void put_pair(uint32_t at, float2 v, const float *)
{
    put_shared(at, v);
}
template <typename T> ROSE_DEVICE void put_pair(uint32_t at, float2 v, const T *type)
{
    put_shared(at, pair_f32(v.x, v.y, type));
}

/* A row-major matrix to store to. */
template <typename OUT> struct wide_out {
    OUT *at;
    uint32_t pitch, rows, n;
};

/* Whether the values can be stored by 16 bytes. */
template <typename OUT> ROSE_DEVICE bool has_pieces(const wide_out<OUT> &out)
{
    return out.pitch % (16 / sizeof(OUT)) == 0 && reinterpret_cast<uintptr_t>(out.at) % 16 == 0;
}

/* The sums of 16 rows of a tile, from row0 and n0 on, pair by pair. */
template <typename OUT, int N>
ROSE_DEVICE void store_pairs(const wide_out<OUT> &out, uint32_t row0, uint32_t n0,
                             const float (&sum)[N])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = row0 + lane / 4 + h * 8;
        if (row >= out.rows) continue;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const uint32_t n = n0 + i * 8 + lane % 4 * 2;
            const float2 v = pair_of(sum, i, h);
            OUT *const at = out.at + (size_t)row * out.pitch + n;
            if (n < out.n) from_f32(v.x, at);
            if (n + 1 < out.n) from_f32(v.y, at + 1);
        }
    }
}

/* The same by lines. lines: LINES_BYTES of the warp. */
template <typename OUT, int N>
ROSE_DEVICE void store_lines(const wide_out<OUT> &out, uint32_t row0, uint32_t n0, uint32_t lines,
                             const float (&sum)[N])
{
    constexpr int PIECE = 16 / sizeof(OUT), LINE = LINE_BYTES / sizeof(OUT);
    const uint32_t lane = threadIdx.x % 32, piece = lane % 8 * PIECE;
    if (!has_pieces(out) || (out.n % PIECE != 0 && n0 + N * 2 > out.n)) {
        store_pairs(out, row0, n0, sum);
        return;
    }
#pragma unroll
    for (int first = 0; first < N * 2; first += LINE) {
        const uint32_t width = N * 2 - first < LINE ? N * 2 - first : LINE, n = n0 + first + piece;
        float4 v[4];
        __syncwarp(); /* the lanes have read the lines before */
#pragma unroll
        for (uint32_t i = 0; i < width / 8; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                put_pair(line_at(lines, lane / 4 + h * 8, (i * 8 + lane % 4 * 2) * sizeof(OUT)),
                         pair_of(sum, first / 8 + i, h), static_cast<const OUT *>(NULL));
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++)
            get_shared(&v[j], line_at(lines, j * 4 + lane / 8, piece * sizeof(OUT)));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t row = row0 + j * 4 + lane / 8;
            if (piece < width && row < out.rows && n < out.n)
                *reinterpret_cast<float4 *>(out.at + (size_t)row * out.pitch + n) = v[j];
        }
    }
}

/* ---- ends of matrices of one part; sums have the bias ---- */

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
ROSE_DEVICE void end_wide_logits(const rose_cuda_matrix &m, const rose_gemm_io &io,
                                 const wide_lane &w, uint32_t row0, uint32_t n0, uint32_t lines,
                                 float (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 y = pair_of(sum, i, h);
            set_pair(sum, i, h, make_float2(end_logit(io, y.x), end_logit(io, y.y)));
        }
    store_lines(wide_out<float>{io.logits, io.ld_logits, io.rows, m.n}, row0, n0, lines, sum);
    end_wide_keys(io, w, sum);
}

/* The end of a matrix of one part for 16 rows of a tile, from row0 and n0 on. lines: as in
 * store_lines. */
template <typename T, int N>
ROSE_DEVICE void end_wide(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row0,
                          uint32_t n0, uint32_t lines, float (&sum)[N])
{
    const wide_lane w = lane_of(m, io, row0, n0);
    if (io.end == ROSE_END_ROWS) {
        if (io.out_f32)
            store_lines(wide_out<float>{static_cast<float *>(io.out), io.out_pitch, io.rows, m.n},
                        row0, n0, lines, sum);
        else
            store_lines(wide_out<T>{static_cast<T *>(io.out), io.out_pitch, io.rows, m.n}, row0, n0,
                        lines, sum);
    } else if (io.end == ROSE_END_ACT) {
        with_act(io, [&](const rose_gemm_io &fixed) { end_wide_act<T>(fixed, w, sum); });
    } else if (io.end == ROSE_END_GATED) {
        with_act(io, [&](const rose_gemm_io &fixed) { end_wide_gated<T>(fixed, w, n0, sum); });
    } else {
        end_wide_logits(m, io, w, row0, n0, lines, sum);
    }
}

/* ---- RESIDUAL ---- */

/* x of 16 rows of a tile, from row0 and n0 on, to sum, as lines: of each 32 outputs a lane has four
 * pieces of 16 bytes. Where rows or outputs do not exist, it loads others, without a branch. */
template <int N>
ROSE_DEVICE void load_lines(const wide_out<float> &x, uint32_t row0, uint32_t n0, float (&sum)[N])
{
    const uint32_t lane = threadIdx.x % 32;
    const bool aligned = has_pieces(x) && x.n % 4 == 0;
    const auto from = [&](int i, uint32_t h) {
        const uint32_t row = row0 + i % 4 * 4 + lane / 8, n = n0 + i / 4 * 32 + lane % 8 * 4 + h;
        return x.at + (size_t)(row < x.rows ? row : 0) * x.pitch + (n < x.n ? n : 0);
    };
    if (aligned) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const float4 v = load_now(reinterpret_cast<const float4 *>(from(i, 0)));
            set_pair(sum, i, 0, make_float2(v.x, v.y));
            set_pair(sum, i, 1, make_float2(v.z, v.w));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                set_pair(sum, i, h, load_now(reinterpret_cast<const float2 *>(from(i, h * 2))));
    }
}

/* The lines of load_lines to the places of sums. */
template <int N> ROSE_DEVICE void turn_lines(uint32_t lines, float (&sum)[N])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / 4; i += 4) {
        __syncwarp(); /* the lanes have read the lines before */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 lo = pair_of(sum, i + j, 0), hi = pair_of(sum, i + j, 1);
            put_shared(line_at(lines, j * 4 + lane / 8, lane % 8 * 16),
                       make_float4(lo.x, lo.y, hi.x, hi.y));
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 v;
                get_shared(&v, line_at(lines, lane / 4 + h * 8, j * 32 + lane % 4 * 8));
                set_pair(sum, i + j, h, v);
            }
    }
}

/* x of a lane's sums, at once. */
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
template <int N> ROSE_DEVICE void empty_part(float (&part)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        part[i] = 0;
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
