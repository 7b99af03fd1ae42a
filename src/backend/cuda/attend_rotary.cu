/* backend/cuda/attend_rotary.cu - from rows of the QKV GEMM to q rows and pages (attend.h):
 * QK-norm, RoPE, rounding, append. Bound by memory.
 *
 * A warp has one head of 8 neighbouring rows at a time, a lane 8 dims of each 32. Every access is
 * therefore 16 bytes, and the pieces of 8 tokens of a page fill lines of 128 bytes. Shapes that
 * have no multiples of 8 take the other kernel, where a warp has one head of one row. */
#include "backend/cuda/attend_rotary.cuh"
#include "backend/cuda/launch.cuh"

enum { ROTARY_WARPS = 4, ROTARY_ROWS = 8, MANY_ROWS = 1024, HEADS_OF_MANY = 4 };

/* ---- 8 neighbours ---- */

ROSE_DEVICE void load8(float x[8], const float *from)
{
    const float4 a = __ldcg(reinterpret_cast<const float4 *>(from));
    const float4 b = __ldcg(reinterpret_cast<const float4 *>(from) + 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
template <typename T> ROSE_DEVICE void load8(float x[8], const T *from)
{
    const uint4 v = __ldcg(reinterpret_cast<const uint4 *>(from));
    const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpair(u[i], from);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}
/* It loads values of a table, which the L1 cache may hold. */
ROSE_DEVICE void table8(float x[8], const float *from)
{
    const float4 a = __ldg(reinterpret_cast<const float4 *>(from));
    const float4 b = __ldg(reinterpret_cast<const float4 *>(from) + 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

template <typename T> ROSE_DEVICE void store8(T *to, const float x[8])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(pair_f32(x[0], x[1], to), pair_f32(x[2], x[3], to),
                                                pair_f32(x[4], x[5], to), pair_f32(x[6], x[7], to));
}

/* ---- a head of 8 rows: C pieces of 8 dims in a lane; t = lane % 4; piece i has dims from
 * 8 (4 i + t) on ---- */

/* The sums of norm_head, in the same order. All lanes. */
template <int C>
ROSE_DEVICE void norm_pieces(float x[C][8], const float *weights, uint32_t head_dim, float eps,
                             uint32_t t)
{
    float sum[2][4] = {}; /* of the lanes of norm_head: 4 t + j and 4 t + j + 16 */
#pragma unroll
    for (int i = 0; i < C; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum[i % 2][e / 2] = fmaf(x[i][e], x[i][e], sum[i % 2][e / 2]);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[0][j] += sum[1][j];
        sum[0][j] += __shfl_xor_sync(ROSE_ALL_LANES, sum[0][j], 2);
        sum[0][j] += __shfl_xor_sync(ROSE_ALL_LANES, sum[0][j], 1);
    }
    const float all = (sum[0][0] + sum[0][2]) + (sum[0][1] + sum[0][3]);
    const float inv = __frcp_rn(__fsqrt_rn(__fdiv_rn(all, (float)head_dim) + eps));
#pragma unroll
    for (int i = 0; i < C; i++) {
        float w[8];
        if ((i * 4 + t) * 8 >= head_dim) continue;
        table8(w, weights + (i * 4 + t) * 8);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[i][e] = x[i][e] * inv * w[e];
    }
}

/* half is 32 H: both dims of a rotation are in the same lane. */
template <int C, int H>
ROSE_DEVICE void rotate_here(float x[C][8], const float cos[C / 2][8], const float sin[C / 2][8])
{
#pragma unroll
    for (int i = 0; i < H && i + H < C; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float a = x[i][e], b = x[i + H][e];
            x[i][e] = a * cos[i][e] - b * sin[i][e];
            x[i + H][e] = b * cos[i][e] + a * sin[i][e];
        }
}

/* Any half that is a multiple of 8, where C is not too large. All lanes. */
template <int C>
ROSE_DEVICE void rotate_across(float x[C][8], const float *cos, const float *sin, uint32_t half,
                               uint32_t t, uint32_t lane)
{
    const uint32_t pieces = half / 8;
    float y[C][8] = {};
#pragma unroll
    for (int i = 0; i < C; i++) {
        const uint32_t own = i * 4 + t, other = own < pieces ? own + pieces : own - pieces;
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const uint32_t v = __shfl_sync(ROSE_ALL_LANES, __float_as_uint(x[k][e]),
                                               (int)((lane & ~3u) | other % 4));
                if (other / 4 == (uint32_t)k) y[i][e] = __uint_as_float(v);
            }
    }
#pragma unroll
    for (int i = 0; i < C; i++) {
        const uint32_t own = i * 4 + t;
        float c[8], s[8];
        if (own >= 2 * pieces) continue;
        table8(c, cos + own % pieces * 8);
        table8(s, sin + own % pieces * 8);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float a = x[i][e] * c[e], b = y[i][e] * s[e];
            x[i][e] = own < pieces ? a - b : a + b;
        }
    }
}

/* Whether rotate_here serves: half is 32, 64 or 128. */
static __host__ __device__ __forceinline__ bool turns_here(uint32_t rot_dim)
{
    return rot_dim % 64 == 0 && (rot_dim & (rot_dim - 1)) == 0;
}

/* The lane's row. */
typedef struct rotary_row {
    uint32_t row, slot;
    const float *cos, *sin;
    bool there;
} rotary_row;

ROSE_DEVICE rotary_row rotary_row_of(const rose_cuda_rotary &a, uint32_t row)
{
    rotary_row r = {min(row, a.rows - 1), 0, NULL, NULL, row < a.rows};
    r.slot = __ldg(a.slot + r.row);
    if (a.cos == NULL) return r;
    const size_t at = (size_t)__ldg(a.where + r.row) * (a.rot_dim / 2);
    r.cos = a.cos + at;
    r.sin = a.sin + at;
    return r;
}

/* Where piece `piece` of a head belongs; NULL: nowhere. */
template <typename T>
ROSE_DEVICE T *piece_to(const rose_cuda_rotary &a, const rotary_row &r, uint32_t head,
                        uint32_t piece)
{
    const uint32_t n_kv = a.kv.n_heads, pad = a.kv.hd_pad;
    if (!r.there || piece * 8 >= pad) return NULL;
    if (head < a.n_q)
        return static_cast<T *>(a.q) + ((size_t)r.row * a.n_q + head) * pad + piece * 8;
    if (r.slot == ROSE_CUDA_NO_SLOT) return NULL;
    return append_to<T>(a.kv, r.slot, (head - a.n_q) % n_kv, head >= a.n_q + n_kv) +
           page_index(r.slot % ROSE_PAGE, piece * 8, pad);
}

/* Cosines and sines of the row, where rotate_here serves. */
template <int C> struct piece_angles {
    float cos[C / 2][8], sin[C / 2][8];
    uint32_t turns; /* pieces of a lane in half */
    bool here;
};

template <int C> ROSE_DEVICE void load_here(piece_angles<C> *to, const rotary_row &r, uint32_t t)
{
#pragma unroll
    for (int i = 0; i < C / 2; i++)
        if ((uint32_t)i < to->turns) {
            table8(to->cos[i], r.cos + (i * 4 + t) * 8);
            table8(to->sin[i], r.sin + (i * 4 + t) * 8);
        }
}

template <typename T, int C>
ROSE_DEVICE void load_pieces(float x[C][8], const rose_cuda_rotary &a, size_t from, uint32_t t)
{
#pragma unroll
    for (int c = 0; c < C; c++) {
        const uint32_t d = (c * 4 + t) * 8;
        if (d >= a.kv.head_dim) continue;
        if (a.qkv_f32)
            load8(x[c], static_cast<const float *>(a.qkv) + from + d);
        else
            load8(x[c], static_cast<const T *>(a.qkv) + from + d);
    }
}

/* RoPE. C says how many pieces of 32 dims half may have: a case for each, as an index of x must be
 * known to the compiler. */
template <int C>
ROSE_DEVICE void rotate_pieces(float x[C][8], const rose_cuda_rotary &a, const rotary_row &r,
                               const piece_angles<C> &by, uint32_t t, uint32_t lane)
{
    if (C <= 4 && !by.here)
        rotate_across<C>(x, r.cos, r.sin, a.rot_dim / 2, t, lane);
    else if (by.turns == 1)
        rotate_here<C, 1>(x, by.cos, by.sin);
    else if (C >= 4 && by.turns == 2)
        rotate_here<C, 2>(x, by.cos, by.sin);
    else if (C >= 8)
        rotate_here<C, 4>(x, by.cos, by.sin);
}

/* K and V saturate (attend_rotary.cuh). */
template <typename T, int C>
ROSE_DEVICE void store_pieces(float x[C][8], const rose_cuda_rotary &a, const rotary_row &r,
                              uint32_t head, uint32_t t)
{
    const float top = largest(static_cast<T *>(NULL));
#pragma unroll
    for (int c = 0; c < C; c++) {
        T *to = piece_to<T>(a, r, head, c * 4 + t);
        if (to == NULL) continue;
        if (head >= a.n_q)
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[c][e] = fminf(fmaxf(x[c][e], -top), top);
        store8(to, x[c]);
    }
}

/* Blocks that an SM holds: 6, 4 or 2 with 2, 4 or 8 pieces, as registers allow. */
template <int C> constexpr int PIECE_BLOCKS = C > 2 ? 8 / (C / 2) : 6;

/* A block computes 8 rows, and each of its warps `per` heads of them. `parts` blocks share the same
 * 8 rows and divide the heads. */
template <typename T, int C>
static __global__ void __launch_bounds__(ROTARY_WARPS * 32, PIECE_BLOCKS<C>)
    pieces_kernel(const rose_cuda_rotary a, const uint32_t per, const uint32_t parts)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, n_kv = a.kv.n_heads;
    const uint32_t heads = a.n_q + 2 * n_kv;
    const uint32_t first = blockIdx.x % parts * ROTARY_WARPS * per + threadIdx.x / 32;
    piece_angles<C> by = {{}, {}, a.rot_dim / 64, turns_here(a.rot_dim)};
    pdl_launch();
    pdl_wait();
    const rotary_row r = rotary_row_of(a, blockIdx.x / parts * ROTARY_ROWS + lane / 4);
    if (a.cos != NULL && by.here) load_here<C>(&by, r, t);
    for (uint32_t i = 0, head = first; i < per && head < heads; i++, head += ROTARY_WARPS) {
        const float *norm = head < a.n_q ? a.q_norm : head < a.n_q + n_kv ? a.k_norm : NULL;
        float x[C][8] = {};
        load_pieces<T, C>(x, a, ((size_t)r.row * heads + head) * a.kv.head_dim, t);
        if (norm != NULL) norm_pieces<C>(x, norm, a.kv.head_dim, a.eps, t);
        if (a.cos != NULL && head < a.n_q + n_kv) rotate_pieces<C>(x, a, r, by, t, lane);
        store_pieces<T, C>(x, a, r, head, t);
    }
}

template <typename T>
static __global__ void __launch_bounds__(ROTARY_WARPS * 32) rotary_kernel(const rose_cuda_rotary a)
{
    __shared__ float stage[ROTARY_WARPS][ROSE_ATTEND_MAX_HEAD_DIM];
    const uint32_t warp = threadIdx.x / 32, heads = a.n_q + 2 * a.kv.n_heads;
    const uint32_t i = blockIdx.x * ROTARY_WARPS + warp;
    pdl_launch();
    pdl_wait();
    if (i < a.rows * heads)
        rotate_append<T>(a, i / heads, i % heads, stage[warp], threadIdx.x % 32);
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Whether every access can have 16 bytes. */
static bool takes_pieces(const rose_cuda_launch *l, const rose_cuda_rotary *a)
{
    return l->type != ROSE_F32 && a->kv.head_dim % 8 == 0 && a->rot_dim % 16 == 0 &&
           (a->kv.hd_pad <= 128 || turns_here(a->rot_dim)) && aligned(a->qkv) && aligned(a->q) &&
           aligned(a->kv.base) && a->kv.page_elems % 8 == 0 && aligned(a->cos) && aligned(a->sin) &&
           aligned(a->q_norm) && aligned(a->k_norm);
}

/* With many rows a warp takes several heads, so that it loads cosines and sines once for them. */
template <typename T>
static cudaError_t run_pieces(const rose_cuda_launch *l, const rose_cuda_rotary *a)
{
    const uint32_t heads = a->n_q + 2 * a->kv.n_heads, pad = a->kv.hd_pad;
    const uint32_t per = a->rows >= MANY_ROWS ? HEADS_OF_MANY : 1;
    const uint32_t parts = (heads + ROTARY_WARPS * per - 1) / (ROTARY_WARPS * per);
    const dim3 grid((a->rows + ROTARY_ROWS - 1) / ROTARY_ROWS * parts);
    const unsigned threads = ROTARY_WARPS * 32;
    if (pad <= 64) return launch_kernel(l, pieces_kernel<T, 2>, grid, threads, 0, *a, per, parts);
    if (pad <= 128) return launch_kernel(l, pieces_kernel<T, 4>, grid, threads, 0, *a, per, parts);
    return launch_kernel(l, pieces_kernel<T, 8>, grid, threads, 0, *a, per, parts);
}

template <typename T> static cudaError_t run(const rose_cuda_launch *l, const rose_cuda_rotary *a)
{
    const uint32_t heads = a->rows * (a->n_q + 2 * a->kv.n_heads);
    return launch_kernel(l, rotary_kernel<T>, dim3((heads + ROTARY_WARPS - 1) / ROTARY_WARPS),
                         ROTARY_WARPS * 32, 0, *a);
}

extern "C" cudaError_t rose_cuda_rotary_run(const rose_cuda_launch *l, const rose_cuda_rotary *a)
{
    const uint64_t heads = (uint64_t)a->rows * (a->n_q + 2 * a->kv.n_heads);
    if (a->kv.hd_pad > ROSE_ATTEND_MAX_HEAD_DIM || a->kv.hd_pad % 8 != 0 ||
        a->kv.head_dim % 2 != 0 || a->rot_dim > a->kv.head_dim || heads > UINT32_MAX / 2)
        return cudaErrorNotSupported;
    if (a->rows == 0) return cudaSuccess;
    if (takes_pieces(l, a))
        return l->type == ROSE_F16 ? run_pieces<__half>(l, a) : run_pieces<__nv_bfloat16>(l, a);
    switch (l->type) {
    case ROSE_F16:
        return run<__half>(l, a);
    case ROSE_BF16:
        return run<__nv_bfloat16>(l, a);
    default:
        return run<float>(l, a);
    }
}
