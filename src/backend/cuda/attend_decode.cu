/* backend/cuda/attend_decode.cu - attention of items of one row (attend.h). A thread block takes
 * units in turn. A unit belongs to one item and KV head; the query heads of the group are the
 * columns of mma.sync. A block has one to eight warps (choose_warps). Each takes every n-th inner
 * block and has a ring of pages of its own, which continues with the next unit. With many units the
 * kernel is bound by the bytes of K and V (1.03 to 1.1 times their time with 128 contexts of 320 to
 * 1,100 positions and heads of 128, H200). With few units a block runs its code once, and waits
 * longer for its instructions than for data.
 *
 * If `inner` (attend.h) is not 0, the result of each inner block goes to a.parts. Otherwise the
 * thread block merges inner blocks into splits: one warp in its registers (attend_alone), several
 * warps in shared memory, one round at a time, one inner block for each warp (attend_unit). The
 * splits go to a.parts. If the unit is the whole context, the block merges the splits too and
 * writes the output. The last thread block of an item merges what is in a.parts (attend_fold.cuh).
 *
 * With `fused` the block makes the query heads from the rows of the QKV GEMM. The block that has
 * the row's own position also makes its K and V, stores them to the page, and puts them into the
 * copy of the page in the ring: that copy may have been requested before. */
#include "backend/cuda/attend_fold.cuh"
#include "backend/cuda/attend_rotary.cuh"
#include "backend/cuda/launch.cuh"

enum {
    MAX_WARPS = 8,       /* an inner block of a split for each */
    HEADS_ABREAST = 4,   /* heads whose values a warp requests together */
    STATIC_BYTES = 1024, /* at least what the kernel has of static shared memory */
    SYSTEM_BYTES = 1024  /* of shared memory, for each block */
};

/* Pieces in flight for each warp: K or V of an inner block, 6 to 16 KB, 32 KB for 256 dims. Eight
 * warps with 64 dims fit beside a block of a GEMM with few rows of ROWS_BUDGET bytes, so that they
 * begin before that GEMM has ended. A warp alone has K and V of small heads in flight if all units
 * still fit on the SMs with such rings. Llama-1B, 128 x 320, whose units fit: 24 us with K and V,
 * 28 with one of them. GPT-2, whose units do not fit: 40 and 32 us (H200). */
enum { HALF = INNER_PAGES, BOTH = 2 * INNER_PAGES };
template <int HD> constexpr bool MAY_BOTH = HD <= 80;
/* Most warps of an SM: registers limit them, and shared memory for 256 dims. */
template <int HD> constexpr int SM_WARPS = HD > 128 ? 4 : HD > 64 ? 8 : 12;
/* Pages of K that a warp multiplies side by side. */
template <int HD> constexpr int ABREAST = HD > 80 ? 2 : 4;

/* q is in registers, or stays in shared memory where registers are too few. */
template <int HD> constexpr bool KEEP_Q = HD <= 128;

/* Whether a warp may compute a unit alone: the sums of 16 heads of 256 dims have no room in its
 * registers. */
template <int HD, int N> constexpr bool MAY_ALONE = HD <= 128 || N == 1;

/* Maximum and sum of the split, and of the splits before it (attend.h). */
typedef struct __align__(16) decode_ml
{
    float m, l, M, L;
}
decode_ml;

/* Pointers into the shared memory of a block, in this order: the rings of its warps (copied pieces
 * of K and V), then the buffers below. */
typedef struct decode_space {
    uint8_t *rings;
    uint8_t *q;    /* [8 or 16 heads][HD] of T, as a page has tokens of K */
    void *own;     /* K, then V, of the row's own position: T [2][HD] */
    decode_ml *ml; /* [group] */
    float2 *sums;  /* [group][HD] o of the split, O of those before it */
    float *parts;  /* [warps][group][HD + 2] the results of a round; a warp alone: [HD], for RoPE */
} decode_space;

/* Bytes of q and own. N: tiles of 8 query heads. */
template <int HD, int N> constexpr uint32_t HEADS_BYTES = PIECE<HD> / 2 * N + 4 * HD;

#define ALONE_OF(HD, N, warps) (MAY_ALONE<HD, N> && (warps) == 1)
/* Floats of decode_space.sums. A warp alone has all heads of its tiles (decode_sums.kept). */
#define SUMS_OF(HD, N, warps, group) ((HD) * (ALONE_OF(HD, N, warps) ? 8 * (N) : 2 * (group)))

template <int HD, int N> static size_t decode_shared(uint32_t warps, uint32_t slots, uint32_t group)
{
    const size_t parts = ALONE_OF(HD, N, warps) ? HD : warps * group * (HD + 2);
    const size_t bytes = (size_t)warps * slots * PIECE<HD> + HEADS_BYTES<HD, N> +
                         group * sizeof(decode_ml) +
                         (SUMS_OF(HD, N, warps, group) + parts) * sizeof(float);
    const size_t fold = FOLD_BYTES(HD, warps * 32);
    return bytes > fold ? bytes : fold;
}

template <int HD, int N>
ROSE_DEVICE decode_space space_of(uint8_t *memory, uint32_t warps, uint32_t slots, uint32_t group)
{
    decode_space s;
    s.rings = memory;
    s.q = memory + warps * slots * PIECE<HD>;
    s.own = s.q + PIECE<HD> / 2 * N;
    s.ml = reinterpret_cast<decode_ml *>(s.q + HEADS_BYTES<HD, N>);
    s.sums = reinterpret_cast<float2 *>(s.ml + group);
    s.parts = reinterpret_cast<float *>(s.sums) + SUMS_OF(HD, N, warps, group);
    return s;
}

/* A unit and what belongs to it. */
typedef struct decode_work {
    rose_attend_unit u;
    rose_cuda_item item;
    uint32_t head, group; /* KV head; query heads that share it */
    uint32_t slot;        /* fused, and the unit has the own position: where K and V belong */
} decode_work;

template <typename T>
ROSE_DEVICE void put_out(const rose_cuda_attend &a, uint32_t row, uint32_t q, uint32_t d, float v)
{
    if (d < a.kv.head_dim)
        from_f32(v, static_cast<T *>(a.out) + h_index(row, q * a.kv.head_dim + d, a.out_k_pad));
}

/* A round: warp i has inner block at + i of the unit, if that is one of from .. to - 1. */
typedef struct decode_round {
    uint32_t at, from, to;
} decode_round;

/* Merges a round into the sums of query head r of the group: one warp. A split that has ended goes
 * to the context if the unit is the whole context, else to a.parts. */
template <typename T, int HD>
ROSE_DEVICE void merge_round(const rose_cuda_attend &a, const decode_work &w, const decode_space &s,
                             uint32_t r, const decode_round &now)
{
    const uint32_t lane = threadIdx.x % 32, q = w.head * w.group + r;
    const bool whole = w.u.part == ROSE_ATTEND_NONE;
    const bool begins = now.at * ROSE_ATTEND_INNER <= w.u.begin;
    const bool ends = now.to * ROSE_ATTEND_INNER >= w.u.end;
    const bool border = !begins && now.at % SPLIT_BLOCKS == 0; /* a split has ended */
    const uint32_t part = w.u.part - w.u.begin / ROSE_ATTEND_SPLIT + now.at / SPLIT_BLOCKS;
    float *const before = border && !whole ? part_at<HD>(a, part - 1, q) : NULL;
    float *const out = ends && !whole ? part_at<HD>(a, part, q) : NULL;
    const float *const parts = s.parts + r * (HD + 2);
    const uint32_t apart = w.group * (HD + 2);
    decode_ml x = begins ? decode_ml{-INFINITY, 0, -INFINITY, 0} : s.ml[r];
    float2 by_split = {1, 0}, by_end = {1, 0}, by[MAX_WARPS];
    if (before != NULL && lane == 0) before[HD] = x.m, before[HD + 1] = x.l;
    if (border) {
        by_split = merge_ml(&x.M, &x.L, x.m, x.l);
        x.m = -INFINITY;
        x.l = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < MAX_WARPS; i++)
        if (now.at + i >= now.from && now.at + i < now.to)
            by[i] = merge_ml(&x.m, &x.l, parts[i * apart + HD], parts[i * apart + HD + 1]);
    if (ends && whole) by_end = merge_ml(&x.M, &x.L, x.m, x.l);
    const float inv = __frcp_rn(x.L);
#pragma unroll 1 /* as in block_scores */
    for (uint32_t d = lane; d < HD; d += 32) {
        float2 o = begins ? make_float2(0, 0) : s.sums[r * HD + d];
        if (before != NULL) before[d] = o.x;
        if (border) o = make_float2(0, merge_o(o.y, o.x, by_split));
#pragma unroll
        for (uint32_t i = 0; i < MAX_WARPS; i++)
            if (now.at + i >= now.from && now.at + i < now.to)
                o.x = merge_o(o.x, parts[i * apart + d], by[i]);
        if (!ends)
            s.sums[r * HD + d] = o;
        else if (whole)
            put_out<T>(a, w.item.row, q, d, merge_o(o.y, o.x, by_end) * inv);
        else
            out[d] = o.x;
    }
    __syncwarp();
    if (lane != 0) return;
    s.ml[r] = x;
    if (out != NULL) out[HD] = x.m, out[HD + 1] = x.l;
}

/* The inner block whose pages a warp requests next. The warp holds the page ids of it and of its 7
 * next inner blocks, 4 for each. */
typedef struct decode_feed {
    uint32_t begin, end, table, head; /* of the unit */
    uint32_t block, n;                /* n: how many of its inner blocks come before this one */
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

/* A warp's ring. Slot i gets K of page i of an inner block, then its V, then K of the block that
 * follows, which may belong to the next unit: each is requested as soon as the one before it is
 * multiplied. A page that the unit does not see leaves its slot as it is. Barrier i is therefore in
 * phase 0 when K is awaited, and in phase 1 for V. With BOTH, V of page i has slot INNER_PAGES + i,
 * and the phases change with each block. */
typedef struct decode_ring {
    uint32_t at;    /* shared address */
    uint64_t *full; /* [slots] */
    uint32_t phase; /* BOTH: of the block that is multiplied */
    decode_feed feed;
    bool more;                  /* feed has a block */
    const void *k[INNER_PAGES]; /* K of the pages that were requested last; NULL: not seen */
    /* The unit after the one that the warp multiplies; item NONE: the ring ends with this one. */
    decode_work next;
    uint32_t next_i, asked; /* number of that unit for this grid; the unit whose K is in the ring */
} decode_ring;

/* The page ids of the next 8 blocks. */
ROSE_DEVICE void feed_ids(decode_feed *f, const rose_cuda_attend &a, uint32_t warps, uint32_t lane)
{
    const uint32_t page = (f->block + lane / 4 * warps) * INNER_PAGES + lane % 4;
    if (page >= f->begin / ROSE_PAGE && page * ROSE_PAGE < f->end)
        f->ids = (a.tables + f->table)[page];
}

/* Goes to the first inner block of the warp in unit i; false: it has none. */
ROSE_DEVICE bool feed_unit(decode_ring *r, const rose_cuda_attend &a, const decode_work &w,
                           uint32_t i, uint32_t warp, uint32_t warps, uint32_t lane)
{
    const uint32_t first = w.u.begin / ROSE_ATTEND_INNER, block = first / warps * warps + warp;
    r->feed = {w.u.begin, w.u.end, w.item.table, w.head, block < first ? block + warps : block,
               0,         0};
    r->asked = i;
    feed_ids(&r->feed, a, warps, lane);
    return r->feed.block * ROSE_ATTEND_INNER < w.u.end;
}

/* Goes to the block that follows, of this unit or of the next one. */
ROSE_DEVICE void feed_next(decode_ring *r, const rose_cuda_attend &a, uint32_t warp, uint32_t warps,
                           uint32_t lane)
{
    decode_feed *const f = &r->feed;
    f->block += warps;
    f->n++;
    r->more = f->block * ROSE_ATTEND_INNER < f->end;
    if (r->more) {
        if (f->n % 8 == 0) feed_ids(f, a, warps, lane);
        return;
    }
    if (r->next.u.item != ROSE_ATTEND_NONE)
        r->more = feed_unit(r, a, r->next, r->next_i, warp, warps, lane);
}

/* Requests K of page i of the feed's block. */
template <typename T, int HD>
ROSE_DEVICE void ask_k(decode_ring *r, const rose_cuda_attend &a, uint32_t i, uint32_t lane)
{
    const decode_feed &f = r->feed;
    const uint32_t page = f.block * INNER_PAGES + i;
    const uint32_t id = __shfl_sync(ROSE_ALL_LANES, f.ids, f.n % 8 * 4 + i);
    const T *k = page_of<T>(a.kv, id, f.head);
    r->k[i] = page >= f.begin / ROSE_PAGE && page * ROSE_PAGE < f.end ? k : NULL;
    ring_copy(r->at + i * PIECE<HD>, r->k[i], PIECE<HD>, &r->full[i], lane);
}

/* Requests V of page i, the page that ask_k has requested. */
template <typename T, int HD, uint32_t SLOTS>
ROSE_DEVICE void ask_v(decode_ring *r, uint32_t i, uint32_t lane)
{
    const T *const k = static_cast<const T *>(r->k[i]);
    const uint32_t slot = i + SLOTS - HALF;
    ring_copy(r->at + slot * PIECE<HD>, k == NULL ? k : k + ROSE_PAGE * HD, PIECE<HD>,
              &r->full[slot], lane);
}

/* Puts the row's own K (v 0) or V into the piece at `at`, its page. */
template <typename T, int HD>
ROSE_DEVICE void put_own(uint32_t at, const decode_space &s, const decode_work &w, uint32_t v,
                         uint32_t lane)
{
    uint4 *piece = reinterpret_cast<uint4 *>(s.rings + (at - shared_at(s.rings)));
    const uint4 *own = static_cast<const uint4 *>(s.own) + v * (HD / 8);
    for (uint32_t i = lane; i < HD / 8; i += 32)
        piece[page_index(w.item.pos % ROSE_PAGE, i * 8, HD) / 8] = own[i];
    ring_written();
    __syncwarp();
}

/* The query heads are the columns of the products, N tiles of 8 (row and head of the tile: layout
 * of mma.sync, lane = 4 g + t): K (16 positions) times q gives scores of positions g and g + 8 and
 * of heads 2 t and 2 t + 1; V transposed (16 dims) times the probabilities gives o of dims g and g
 * + 8 and of the same heads. The prompt kernel has the heads as rows. The bits are the same, and
 * half of the rows would be empty here. */
template <int HD, int N> struct decode_heads {
    uint32_t q[KEEP_Q<HD> ? (HD / 16 + 1) / 2 : 1][N][4]; /* 32 dims each */
    float o[HD / 16][N][4], m[N][2], l[N][2];             /* of an inner block */
};

/* Dims 32 c to 32 c + 31 of the query heads, as an operand. */
template <int HD, int N>
ROSE_DEVICE void load_heads(uint32_t q[N][4], uint32_t at, uint32_t c, uint32_t lane)
{
    const uint32_t core = min(4 * c + lane / 8, HD / 8u - 1);
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
        load_matrices(q[n], at + n * (HD * 16) + core * 128 + lane % 8 * 16);
}

/* Sums over head_dim of the pages of K of an inner block. The sums of a page that the unit does not
 * see come from what lies in the ring, and soften_heads masks them. own: the page that gets the
 * row's own K. */
template <typename T, int HD, int N, uint32_t SLOTS>
ROSE_DEVICE void block_scores(float x[INNER_PAGES][N][4], uint32_t (*q)[N][4], decode_ring *r,
                              const rose_cuda_attend &a, const decode_work &w,
                              const decode_space &s, uint32_t own)
{
    constexpr int M = ABREAST<HD>;
    constexpr bool both = SLOTS == BOTH;
    const uint32_t q_at = shared_at(s.q), lane = threadIdx.x % 32;
    const uint32_t place = r->at + lane / 8 % 2 * (HD * 16) + lane / 16 * 128 + lane % 8 * 16;
#pragma unroll
    for (uint32_t from = 0; from < INNER_PAGES; from += M) {
#pragma unroll
        for (uint32_t i = from; i < from + M; i++) {
            ring_wait<SLOTS - M + 1>(&r->full[i], both ? r->phase : 0);
            ring_meet_warp();
            if (i == own) put_own<T, HD>(r->at + i * PIECE<HD>, s, w, 0, lane);
        }
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            if (!KEEP_Q<HD> && c % 2 == 0) load_heads<HD, N>(q[0], q_at, c / 2, lane);
#pragma unroll
            for (uint32_t i = from; i < from + M; i++) {
                uint32_t k[4];
                load_matrices(k, place + i * PIECE<HD> + 256 * c);
#pragma unroll
                for (uint32_t n = 0; n < N; n++) {
                    const uint32_t *by = &q[KEEP_Q<HD> ? c / 2 : 0][n][c % 2 * 2];
                    mma(x[i][n], k, by[0], by[1], static_cast<const T *>(NULL));
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (uint32_t i = from; i < from + M; i++)
            if (!both)
                ask_v<T, HD, SLOTS>(r, i, lane);
            else if (r->more)
                ask_k<T, HD>(r, a, i, lane);
            else
                ring_close();
    }
}

/* As soften of attend.cuh: the softmax of an inner block from position p0 on. The row sees
 * positions lo to end - 1. prob: operands for each page; l in the order of soften. */
template <typename T, int N>
ROSE_DEVICE void soften_heads(float x[INNER_PAGES][N][4], uint32_t prob[INNER_PAGES][N][2],
                              float m[N][2], float l[N][2], uint32_t lo, uint32_t end, uint32_t p0,
                              const attend_score &by, uint32_t lane)
{
    const T *type = NULL;
    const bool edge = p0 < lo || p0 + ROSE_ATTEND_INNER > end;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float base[2], sum = 0;
#pragma unroll
        for (int i = 0; i < 4 * INNER_PAGES; i++)
            x[i / 4][n][i % 4] *= by.by;
        if (by.cap > 0)
#pragma unroll
            for (int i = 0; i < 4 * INNER_PAGES; i++)
                cap_score(&x[i / 4][n][i % 4], by);
        if (edge)
#pragma unroll
            for (int i = 0; i < 4 * INNER_PAGES; i++)
                if (p0 + i / 2 * 8 + lane / 4 - lo >= end - lo) x[i / 4][n][i % 4] = -INFINITY;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float top = -INFINITY;
#pragma unroll
            for (int i = 0; i < 2 * INNER_PAGES; i++)
                top = fmaxf(top, x[i / 2][n][i % 2 * 2 + j]);
            for (int k = 4; k < 32; k *= 2)
                top = fmaxf(top, __shfl_xor_sync(ROSE_ALL_LANES, top, k));
            m[n][j] = top;
            base[j] = top == -INFINITY ? 0.0f : top; /* all masked, or all NaN */
        }
#pragma unroll
        for (int i = 0; i < 2 * INNER_PAGES; i++) {
            const float *s = &x[i / 2][n][i % 2 * 2];
            const uint32_t u = transpose_matrix(
                pair_f32(exp2_fast(s[0] - base[0]), exp2_fast(s[1] - base[1]), type));
            const float2 r = unpair(u, type); /* of head g, positions 2 t and 2 t + 1 */
            sum += r.x;
            sum += r.y;
            prob[i / 2][n][i % 2] = u;
        }
        sum += __shfl_xor_sync(ROSE_ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ROSE_ALL_LANES, sum, 2);
#pragma unroll
        for (int j = 0; j < 2; j++)
            l[n][j] = lane_value(sum, lane % 4 * 8 + j * 4);
    }
}

/* One inner block. */
template <typename T, int HD, int N, uint32_t SLOTS>
ROSE_DEVICE void attend_block(decode_heads<HD, N> *h, decode_ring *r, const rose_cuda_attend &a,
                              const decode_work &w, const decode_space &s, uint32_t block,
                              uint32_t warp, uint32_t warps, const attend_score &by)
{
    const uint32_t j0 = first_page(w.u, block), j1 = last_page(w.u, block), lane = threadIdx.x % 32;
    const uint32_t place = r->at + lane / 16 * (HD * 16) + lane / 8 % 2 * 128 + lane % 8 * 16;
    const uint32_t own = w.slot == ROSE_CUDA_NO_SLOT ? (uint32_t)INNER_PAGES
                                                     : w.item.pos / ROSE_PAGE - block * INNER_PAGES;
    float x[INNER_PAGES][N][4] = {};
    uint32_t prob[INNER_PAGES][N][2];
#pragma unroll
    for (int d = 0; d < HD / 16 * N; d++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            h->o[d / N][d % N][k] = 0;
    if (SLOTS == BOTH) feed_next(r, a, warp, warps, lane);
    block_scores<T, HD, N, SLOTS>(x, h->q, r, a, w, s, own);
    if (SLOTS == HALF) feed_next(r, a, warp, warps, lane);
    soften_heads<T, N>(x, prob, h->m, h->l, w.u.begin, w.u.end, block * ROSE_ATTEND_INNER, by,
                       lane);
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        const uint32_t slot = j + SLOTS - HALF;
        ring_wait<SLOTS>(&r->full[slot], SLOTS == BOTH ? r->phase : 1);
        ring_meet_warp();
        if (j == own) put_own<T, HD>(r->at + slot * PIECE<HD>, s, w, 1, lane);
        if (j >= j0 && j < j1) {
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                uint32_t v[4];
                load_matrices_transposed(v, place + slot * PIECE<HD> + d * 256);
#pragma unroll
                for (int n = 0; n < N; n++)
                    mma(h->o[d][n], v, prob[j][n][0], prob[j][n][1], static_cast<const T *>(NULL));
            }
        }
        __syncwarp();
        if (!r->more)
            ring_close();
        else if (SLOTS == BOTH)
            ask_v<T, HD, SLOTS>(r, j, lane);
        else
            ask_k<T, HD>(r, a, j, lane);
    }
    r->phase ^= 1;
}

/* A result of the group's heads as rows, `apart` floats from one head to the next: o, m, l. */
template <int HD, int N>
ROSE_DEVICE void put_part(float *to, uint32_t apart, const float o[HD / 16][N][4],
                          const float m[N][2], const float l[N][2], uint32_t group, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        const uint32_t r = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float *row = to + r * apart;
        if (r >= group) continue;
#pragma unroll
        for (int d = 0; d < HD / 8; d++)
            row[d * 8 + lane / 4] = o[d / 2][i / 2][d % 2 * 2 + i % 2];
        if (lane < 4)
            *reinterpret_cast<float2 *>(row + HD) = make_float2(m[i / 2][i % 2], l[i / 2][i % 2]);
    }
}

/* The group's query heads to shared memory. The whole block. */
template <typename T, int HD, int N>
ROSE_DEVICE void copy_heads(const rose_cuda_attend &a, const decode_work &w, uint8_t *to)
{
    const T *heads =
        static_cast<const T *>(a.q) + ((size_t)w.item.row * a.n_q + w.head * w.group) * HD;
    for (uint32_t i = threadIdx.x; i < 8 * N * (HD / 8); i += blockDim.x) {
        const uint32_t r = i % (8 * N), d = i / (8 * N) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < w.group) v = __ldcg(reinterpret_cast<const uint4 *>(heads + r * HD + d));
        reinterpret_cast<uint4 *>(to)[page_index(r, d, HD) / 8] = v;
    }
}

/* Pairs of values that a lane has of a head. */
template <int HD> constexpr int HEAD_PAIRS = (HD + 63) / 64;

/* What the heads of a unit need besides the rows of the QKV GEMM. */
template <int HD> struct decode_rotary {
    rotary_angles<HEAD_PAIRS<HD>> angles;
    rotary_norms<HEAD_PAIRS<HD>> norms;
};

/* Head r, with its values y after make_head, to shared memory; K and V also to their page. */
template <typename T, int HD>
ROSE_DEVICE void put_head(const float2 y[HEAD_PAIRS<HD>], const rose_cuda_kv &kv,
                          const decode_work &w, const decode_space &s, uint32_t r, uint32_t lane)
{
    const bool is_q = r < w.group;
    const uint32_t v = r - w.group; /* 0: K, 1: V */
    T *page = is_q ? NULL : append_to<T>(kv, w.slot, w.head, v != 0);
#pragma unroll
    for (uint32_t i = 0; i < HEAD_PAIRS<HD>; i++) {
        const uint32_t d = i * 64 + lane * 2;
        if (d >= HD) continue;
        if (!is_q) store_pair(page + page_index(w.slot % ROSE_PAGE, d, HD), y[i].x, y[i].y);
        store_pair(is_q ? reinterpret_cast<T *>(s.q) + page_index(r, d, HD)
                        : static_cast<T *>(s.own) + v * HD + d,
                   y[i].x, y[i].y);
    }
}

/* Like copy_heads, but from the rows of the QKV GEMM. It also makes K and V of the own position,
 * and stores them to their page. Each warp makes one head at a time, and requests the values of
 * several together. */
template <typename T, int HD>
ROSE_DEVICE void make_heads(const rose_cuda_rotary &x, const decode_rotary<HD> &by,
                            const rose_cuda_kv &kv, const decode_work &w, const decode_space &s,
                            uint32_t warp, uint32_t lane)
{
    constexpr int P = HEAD_PAIRS<HD>;
    const uint32_t warps = blockDim.x / 32, n = w.group + (w.slot == ROSE_CUDA_NO_SLOT ? 0 : 2);
    auto head = [&](uint32_t r) {
        return r < w.group ? w.head * w.group + r : x.n_q + (r - w.group) * kv.n_heads + w.head;
    };
    float2 y[HEADS_ABREAST][P];
#pragma unroll 1
    for (uint32_t r = warp, i = 0; r < n; r += warps, i++) {
        if (i % HEADS_ABREAST == 0)
#pragma unroll
            for (uint32_t k = 0; k < HEADS_ABREAST; k++)
                if (r + k * warps < n)
                    take_head<T, P>(y[k], x, w.item.row, head(r + k * warps), lane);
        make_head<T, P>(y[0], x, by.angles, by.norms, head(r), s.parts + warp * HD, lane);
        put_head<T, HD>(y[0], kv, w, s, r, lane);
#pragma unroll
        for (uint32_t k = 0; k + 1 < HEADS_ABREAST; k++)
#pragma unroll
            for (uint32_t p = 0; p < P; p++)
                y[k][p] = y[k + 1][p];
    }
}

/* Where the unit's partial result i belongs. */
template <int HD>
ROSE_DEVICE float *unit_part(const rose_cuda_attend &a, const decode_work &w, uint32_t i)
{
    return part_at<HD>(a, w.u.part + i, w.head * w.group);
}

template <int HD, int N> ROSE_DEVICE void load_all_heads(decode_heads<HD, N> *h, const uint8_t *q)
{
#pragma unroll
    for (int c = 0; c < (KEEP_Q<HD> ? (HD / 16 + 1) / 2 : 0); c++)
        load_heads<HD, N>(h->q[c], shared_at(q), c, threadIdx.x % 32);
}

/* The inner blocks of a unit, a round at a time. */
template <typename T, int HD, int N>
ROSE_DEVICE void attend_unit(const rose_cuda_attend &a, const decode_work &w, const decode_space &s,
                             decode_ring *r, bool to_parts, const attend_score &by)
{
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = w.u.begin / ROSE_ATTEND_INNER,
                   blocks = (w.u.end - 1) / ROSE_ATTEND_INNER + 1;
    decode_heads<HD, N> h;
    load_all_heads<HD, N>(&h, s.q);
    for (uint32_t at = first / warps * warps; at < blocks; at += warps) {
        const decode_round now = {at, max(at, first), min(at + warps, blocks)};
        const uint32_t block = at + warp;
        if (block >= now.from && block < now.to) {
            attend_block<T, HD, N, HALF>(&h, r, a, w, s, block, warp, warps, by);
            put_part<HD, N>(to_parts ? unit_part<HD>(a, w, block - first)
                                     : s.parts + warp * w.group * (HD + 2),
                            to_parts ? PART_ROW<HD> : HD + 2, h.o, h.m, h.l, w.group, lane);
        }
        if (to_parts) continue;
        __syncthreads();
        for (uint32_t i = warp; i < w.group; i += warps)
            merge_round<T, HD>(a, w, s, i, now);
        __syncthreads();
    }
}

/* What a warp keeps that computes a unit alone: o, m and l of the split so far, and M and L of the
 * splits before it. The O of those splits is in shared memory: value i of the lane at kept[i * 32].
 */
template <int HD, int N> struct decode_sums {
    float o[HD / 16][N][4], m[N][2], l[N][2], M[N][2], L[N][2];
    float *kept;
    uint32_t splits; /* how many splits of the unit have ended */
};

template <int HD, int N> ROSE_DEVICE void begin_split(decode_sums<HD, N> *z)
{
#pragma unroll
    for (int i = 0; i < HD / 16 * N * 4; i++)
        z->o[i / 4 / N][i / 4 % N][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        z->m[i / 2][i % 2] = -INFINITY;
        z->l[i / 2][i % 2] = 0;
    }
}

/* Merges an inner block into its split. */
template <int HD, int N>
ROSE_DEVICE void merge_block(decode_sums<HD, N> *z, const decode_heads<HD, N> &h)
{
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        const int n = i / 2, j = i % 2;
        const float2 by = merge_ml(&z->m[n][j], &z->l[n][j], h.m[n][j], h.l[n][j]);
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
            float *o = &z->o[d / 2][n][d % 2 * 2 + j];
            *o = merge_o(*o, h.o[d / 2][n][d % 2 * 2 + j], by);
        }
    }
}

/* Merges the split into the context, and leaves the context's o in z->o. */
template <int HD, int N> ROSE_DEVICE void merge_split(decode_sums<HD, N> *z)
{
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        const int n = i / 2, j = i % 2;
        const float2 by = merge_ml(&z->M[n][j], &z->L[n][j], z->m[n][j], z->l[n][j]);
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
            const int k = d % 2 * 2 + j;
            float *o = &z->o[d / 2][n][k];
            *o = merge_o(z->splits > 0 ? z->kept[((d / 2 * N + n) * 4 + k) * 32] : 0.0f, *o, by);
        }
    }
    z->splits++;
}

/* A split has ended, and the unit goes on. */
template <int HD, int N>
ROSE_DEVICE void end_split(decode_sums<HD, N> *z, const rose_cuda_attend &a, const decode_work &w)
{
    if (w.u.part != ROSE_ATTEND_NONE) {
        put_part<HD, N>(unit_part<HD>(a, w, z->splits++), PART_ROW<HD>, z->o, z->m, z->l, w.group,
                        threadIdx.x % 32);
    } else {
        merge_split<HD, N>(z);
#pragma unroll
        for (int i = 0; i < HD / 16 * N * 4; i++)
            z->kept[i * 32] = z->o[i / 4 / N][i / 4 % N][i % 4];
    }
    begin_split<HD, N>(z);
}

/* The output of the group's heads. */
template <typename T, int HD, int N>
ROSE_DEVICE void put_heads(const rose_cuda_attend &a, const decode_work &w,
                           const decode_sums<HD, N> &z)
{
    const uint32_t lane = threadIdx.x % 32, hd = a.kv.head_dim;
    T *const out = static_cast<T *>(a.out);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float inv[2] = {__frcp_rn(z.L[n][0]), __frcp_rn(z.L[n][1])};
        const uint32_t r = n * 8 + lane / 4, q = w.head * w.group + r;
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
            const float *o = &z.o[d / 2][n][d % 2 * 2];
            const uint32_t u = transpose_matrix(
                pair_f32(o[0] * inv[0], o[1] * inv[1], static_cast<const T *>(NULL)));
            const uint32_t dim = d * 8 + lane % 4 * 2;
            if (r < w.group && dim < hd)
                *reinterpret_cast<uint32_t *>(out +
                                              h_index(w.item.row, q * hd + dim, a.out_k_pad)) = u;
        }
    }
}

/* The inner blocks of a unit by one warp, which merges them in registers. */
template <typename T, int HD, int N, uint32_t SLOTS>
ROSE_DEVICE void attend_alone(const rose_cuda_attend &a, const decode_work &w,
                              const decode_space &s, decode_ring *r, bool to_parts,
                              const attend_score &by)
{
    const uint32_t lane = threadIdx.x % 32, first = w.u.begin / ROSE_ATTEND_INNER,
                   blocks = (w.u.end - 1) / ROSE_ATTEND_INNER + 1;
    decode_heads<HD, N> h;
    decode_sums<HD, N> z;
    load_all_heads<HD, N>(&h, s.q);
    z.kept = reinterpret_cast<float *>(s.sums) + lane;
    z.splits = 0;
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        z.M[i / 2][i % 2] = -INFINITY;
        z.L[i / 2][i % 2] = 0;
    }
    begin_split<HD, N>(&z);
#pragma unroll 1
    for (uint32_t block = first; block < blocks; block++) {
        if (block % SPLIT_BLOCKS == 0 && block != first && !to_parts) end_split<HD, N>(&z, a, w);
        attend_block<T, HD, N, SLOTS>(&h, r, a, w, s, block, 0, 1, by);
        if (to_parts)
            put_part<HD, N>(unit_part<HD>(a, w, block - first), PART_ROW<HD>, h.o, h.m, h.l,
                            w.group, lane);
        else
            merge_block<HD, N>(&z, h);
    }
    if (to_parts) return;
    if (w.u.part != ROSE_ATTEND_NONE) {
        end_split<HD, N>(&z, a, w);
        return;
    }
    merge_split<HD, N>(&z);
    put_heads<T, HD, N>(a, w, z);
}

/* The block has written its partial results: it merges all of the item if it is the last one. */
template <typename T, int HD>
ROSE_DEVICE void end_unit(const rose_cuda_attend &a, const decode_work &w, uint32_t size,
                          uint8_t *smem)
{
    __shared__ bool last;
    const rose_attend_fold f = a.folds[w.u.item];
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = a.arrivals + w.u.item * a.kv.n_heads + w.head;
        const uint32_t mine = (w.u.end - 1) / size - w.u.begin / size + 1;
        last = arrive(counter, mine) + mine == f.n_parts;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    fold_group<T, HD>(a, f, w.item.row, w.head * w.group, w.group, smem);
    ring_written();
    __syncthreads();
}

ROSE_DEVICE decode_work work_at(const rose_cuda_attend &a, uint32_t i)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(a.units + i / a.kv.n_heads);
    const uint4 u = __ldcg(from), of = __ldcg(from + 1);
    decode_work w;
    w.u = {u.x, u.y, u.z, u.w, of.x, of.y, of.z, of.w};
    w.item = {of.x, 1, of.y, of.z};
    w.head = i % a.kv.n_heads;
    w.group = a.n_q / a.kv.n_heads;
    w.slot = ROSE_CUDA_NO_SLOT;
    return w;
}

/* Finds the slot for K and V of the own position, if the unit has that position. */
ROSE_DEVICE void find_slot(decode_work *w, const rose_cuda_rotary &x)
{
    if (x.qkv != NULL && w->u.end == w->item.pos + 1) w->slot = load_now(x.slot + w->item.row);
}

/* fused.qkv NULL: rose_cuda_rotary_run has run. late: the kernel before this one has written all
 * pages. The bound on threads limits the registers, so that SM_WARPS warps fit on an SM. */
template <typename T, int HD, int N, bool ALONE, uint32_t SLOTS>
static __global__ void __launch_bounds__(ALONE     ? 32
                                         : HD > 64 ? 256
                                                   : 384,
                                         ALONE ? SM_WARPS<HD> : 1)
    decode_kernel(const rose_cuda_attend a, const attend_score by, const rose_cuda_rotary fused,
                  const bool late)
{
    ROSE_ATTEND_MEMORY(smem);
    __shared__ uint64_t full[ALONE ? 1 : MAX_WARPS][SLOTS];
    const uint32_t warps = ALONE ? 1 : blockDim.x / 32, warp = ALONE ? 0 : threadIdx.x / 32,
                   lane = threadIdx.x % 32;
    pdl_launch();
    const rose_attend_cutting c = *a.cutting;
    decode_work w = work_at(a, blockIdx.x); /* requested together with *a.cutting */
    decode_rotary<HD> rotary;
    if (fused.qkv != NULL) load_norms(&rotary.norms, fused, lane);
    for (uint32_t i = threadIdx.x; i < warps * SLOTS; i += blockDim.x)
        ring_init(&full[0][0] + i, 1);
    __syncthreads();
    const decode_space s = space_of<HD, N>(smem, warps, SLOTS, a.n_q / a.kv.n_heads);
    decode_ring r = {shared_at(smem) + warp * SLOTS * PIECE<HD>, full[warp], 0};
    const uint32_t n = c.n_units * a.kv.n_heads;
    bool waited = false;
    r.asked = UINT32_MAX;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        if (i != blockIdx.x) w = work_at(a, i);
        if (w.u.item == ROSE_ATTEND_NONE) continue;
        find_slot(&w, fused);
        const bool parts = w.u.part != ROSE_ATTEND_NONE;
        r.next.u.item = ROSE_ATTEND_NONE;
        const bool asks = r.asked != i && feed_unit(&r, a, w, i, warp, warps, lane);
        /* Without `fused` the kernel before this one may still be writing the last pages. */
        const uint32_t soon = waited || (fused.qkv != NULL && !late) ? UINT32_MAX
                              : late                                 ? 0
                                                                     : w.u.written / ROSE_PAGE;
        uint32_t started = 0; /* in order, as ring_wait of sm_80 counts */
        auto ask = [&](uint32_t before) {
#pragma unroll
            for (uint32_t k = 0; k < SLOTS; k++) {
                const uint32_t j = k % INNER_PAGES;
                if (k != started || r.feed.block * INNER_PAGES + j >= before) continue;
                if (k < INNER_PAGES)
                    ask_k<T, HD>(&r, a, j, lane);
                else
                    ask_v<T, HD, SLOTS>(&r, j, lane);
                started++;
            }
        };
        if (asks) ask(soon);
        if (fused.qkv != NULL) load_angles(&rotary.angles, fused, w.item.pos, lane);
        if (!waited) pdl_wait();
        waited = true;
        if (asks) ask(UINT32_MAX);
        if (fused.qkv != NULL)
            make_heads<T, HD>(fused, rotary, a.kv, w, s, warp, lane);
        else
            copy_heads<T, HD, N>(a, w, s.q);
        /* The results of several blocks are merged where the ring is. */
        if (!parts && i + gridDim.x < n) r.next = work_at(a, i + gridDim.x);
        r.next_i = i + gridDim.x;
        __syncthreads();
        if (ALONE)
            attend_alone<T, HD, N, SLOTS>(a, w, s, &r, c.inner != 0 && parts, by);
        else
            attend_unit<T, HD, N>(a, w, s, &r, c.inner != 0 && parts, by);
        if (parts)
            end_unit<T, HD>(a, w, c.inner != 0 ? ROSE_ATTEND_INNER : ROSE_ATTEND_SPLIT, smem);
    }
    if (!waited) pdl_wait();
}

/* Blocks of `warps` warps that an SM holds. slots: of a warp. */
template <int HD, int N>
static uint32_t resident_blocks(const rose_cuda_device *d, uint32_t warps, uint32_t slots,
                                uint32_t group)
{
    const size_t bytes = decode_shared<HD, N>(warps, slots, group) + STATIC_BYTES;
    const uint32_t fit = (uint32_t)(d->shared_sm / (bytes + SYSTEM_BYTES));
    const uint32_t most = SM_WARPS<HD> / warps;
    if (bytes > d->shared_max) return 0;
    return fit < most ? fit : most < 1 && fit > 0 ? 1 : most;
}

/* The most warps of a block with which all units are on the SMs at the same time. With more units
 * than that a block has one warp, which waits for no other. For example, 288 positions are five
 * inner blocks: of four warps one gets two, and three wait for it (one warp: 0.85 of the time of a
 * step; Qwen3-0.6B, 128 sequences, H100). Two warps are never better than one. rose_attend_cut
 * estimates the places of units without this function (n_places). */
template <int HD, int N>
static uint32_t choose_warps(const rose_cuda_device *d, const rose_cuda_attend *a, uint32_t group)
{
    const uint64_t units = a->warps != 0 ? 1 : (uint64_t)a->n_items * a->kv.n_heads;
    uint32_t warps = a->warps != 0 ? a->warps : (uint32_t)MAX_WARPS;
    while (warps > 1 && units > (uint64_t)d->sms * resident_blocks<HD, N>(d, warps, HALF, group))
        warps = a->warps == 0 && warps == 4 ? 1 : warps / 2;
    return warps;
}

template <int HD, int N>
static uint32_t choose_slots(const rose_cuda_device *d, const rose_cuda_attend *a, uint32_t warps,
                             uint32_t group)
{
    const uint64_t units = (uint64_t)a->n_items * a->kv.n_heads;
    if (warps > 1 || !MAY_BOTH<HD>) return HALF;
    if (a->slots != 0) return a->slots;
    return units <= (uint64_t)d->sms * resident_blocks<HD, N>(d, 1, BOTH, group) ? BOTH : HALF;
}

typedef void decode_kernel_fn(const rose_cuda_attend, const attend_score, const rose_cuda_rotary,
                              const bool);

template <typename T, int HD, int N> static decode_kernel_fn *kernel_of(bool alone, bool both)
{
    constexpr bool may = MAY_ALONE<HD, N>;
    constexpr uint32_t most = may && MAY_BOTH<HD> ? BOTH : HALF;
    if (!alone) return decode_kernel<T, HD, N, false, HALF>;
    return both ? decode_kernel<T, HD, N, may, most> : decode_kernel<T, HD, N, may, HALF>;
}

template <typename T, int HD, int N>
static cudaError_t run_tiles(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const rose_cuda_device *d = l->device;
    const uint32_t group = a->n_q / a->kv.n_heads;
    const rose_cuda_rotary none = {}, *fused = a->fused != NULL ? a->fused : &none;
    const uint32_t warps = choose_warps<HD, N>(d, a, group),
                   slots = choose_slots<HD, N>(d, a, warps, group);
    const uint32_t blocks = resident_blocks<HD, N>(d, warps, slots, group);
    const uint32_t resident = d->sms * (blocks == 0 ? 1 : blocks);
    const uint64_t all = (uint64_t)a->grid_units * a->kv.n_heads;
    const dim3 grid(all < resident ? (uint32_t)all : resident);
    return launch_kernel(l, kernel_of<T, HD, N>(warps == 1, slots == BOTH), grid, warps * 32,
                         decode_shared<HD, N>(warps, slots, group), *a, score_of(a), *fused,
                         (l->without & ROSE_CUDA_WITHOUT_PAGED) != 0);
}

template <typename T>
static cudaError_t run_type(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const bool two = a->n_q / a->kv.n_heads > 8;
    switch (a->kv.hd_pad) {
#define CASE(HD)                                                                                   \
    case HD:                                                                                       \
        return two ? run_tiles<T, HD, 2>(l, a) : run_tiles<T, HD, 1>(l, a);
        ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    default:
        return cudaErrorNotSupported;
    }
}

extern "C" cudaError_t rose_cuda_decode_run(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    if (a->grid_units == 0) return cudaSuccess;
    if (a->n_q / a->kv.n_heads > ROSE_ATTEND_MAX_GROUP || l->type == ROSE_F32)
        return cudaErrorNotSupported;
    return l->type == ROSE_F16 ? run_type<__half>(l, a) : run_type<__nv_bfloat16>(l, a);
}

template <typename T, int HD> static cudaError_t prepare(int bytes)
{
    cudaError_t e = cudaSuccess;
    const void *const kernels[] = {(const void *)kernel_of<T, HD, 1>(false, false),
                                   (const void *)kernel_of<T, HD, 2>(false, false),
                                   (const void *)kernel_of<T, HD, 1>(true, false),
                                   (const void *)kernel_of<T, HD, 2>(true, false),
                                   (const void *)kernel_of<T, HD, 1>(true, true),
                                   (const void *)kernel_of<T, HD, 2>(true, true)};
    for (size_t i = 0; e == cudaSuccess && i < sizeof kernels / sizeof *kernels; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e;
}

extern "C" cudaError_t rose_cuda_decode_prepare(void)
{
    int device = 0, most = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most -= STATIC_BYTES;
#define CASE(HD)                                                                                   \
    if (e == cudaSuccess) e = prepare<__half, HD>(most);                                           \
    if (e == cudaSuccess) e = prepare<__nv_bfloat16, HD>(most);
    ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    return e;
}
