/* backend/cuda/megakernel.cuh - what the ops of megakernel.cu are made of: a block's share of the
 * work, the ring of each warp, chains of products, fetching of slots, norms. Device code only,
 * sm_90a. */
#ifndef ROSE_BACKEND_CUDA_MEGAKERNEL_CUH
#define ROSE_BACKEND_CUDA_MEGAKERNEL_CUH

#include "backend/cuda/attend_rotary.cuh"
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/mega.h"
#include "backend/cuda/mega_ops.cuh"
#include "backend/cuda/norm.cuh"

#if ROSE_HOPPER

enum {
    WARPS = ROSE_MEGA_WARPS,
    THREADS = WARPS * 32,
    PIECE_GROUPS = ROSE_MEGA_PIECE / 256 /* groups of 16 values of a strip of 8 outputs */
};

/* What a block does of an op. A job is a part of k of a strip of 8 outputs, or an inner block of a
 * unit of attention, which has WARPS jobs. A warp has every WARPS-th job. `base` is the warp of job
 * 0: it differs from op to op, so that all warps have work and room in their rings. */
typedef struct share {
    uint32_t first; /* share of the matrix, or unit of attention */
    uint32_t jobs, base;
} share;

/* What comes next in the ring of a warp. */
typedef struct feed {
    uint32_t layer, op, job;
    uint32_t left;       /* matrices: bytes of the job; attention: pages, K and V apart */
    uint32_t pages;      /* attention: of the job */
    const uint8_t *from; /* matrices */
} feed;

typedef struct mega {
    uint8_t *smem;
    uint32_t block, warp, lane, thread;
    const share *of; /* [ROSE_MEGA_N_OPS], in shared memory, because feed.op indexes it */
    /* The row: position, place of its K and V, pages and inner blocks that it sees. */
    uint32_t id, pos, slot, n_pages, n_inner, n_splits;
    uint32_t number;        /* of the slots that the layer writes */
    uint32_t piece, parity; /* of the ring: what the warp takes, or copies, next */
} mega;

template <typename P> ROSE_DEVICE P *place(const mega &m, uint32_t at)
{
    return reinterpret_cast<P *>(m.smem + at);
}

ROSE_DEVICE const rose_mega_layer &layer_of(const rose_mega &a, const mega &m, uint32_t l)
{
    return place<const rose_mega_layer>(m, a.at.layers)[l];
}

ROSE_DEVICE uint32_t first_job(const mega &m, uint32_t op)
{
    return (m.warp - m.of[op].base) % WARPS;
}

/* Shares first .. of the next block - 1. Block 0 always has one. */
ROSE_DEVICE uint32_t first_share(uint32_t shares, uint32_t block, uint32_t blocks)
{
    return (shares * block + blocks - 1) / blocks;
}

/* One thread. */
ROSE_DEVICE void divide(const rose_mega &a, const mega &m)
{
    share *of = place<share>(m, a.at.shares);
    uint32_t base = 0;
    for (uint32_t op = 0; op < ROSE_MEGA_N_OPS; op++) {
        share s = {m.block, 0, base};
        uint32_t busy; /* jobs that are not empty */
        if (op == ROSE_MEGA_ATTEND) {
            const uint32_t all = m.n_splits * a.n_kv;
            const uint32_t units = all > m.block ? (all - m.block - 1) / a.grid + 1 : 0;
            s.jobs = units * WARPS;
            busy = units * min((uint32_t)SPLIT_BLOCKS, m.n_inner);
        } else {
            const rose_mega_matrix &x = a.matrix[op];
            s.first = first_share(x.shares, m.block, a.grid);
            s.jobs = (first_share(x.shares, m.block + 1, a.grid) - s.first) * x.strips * x.n_parts;
            busy = s.jobs;
        }
        of[op] = s;
        base = (base + busy) % WARPS;
    }
}

/* ---- jobs ---- */

/* A job of a matrix: groups begin .. end - 1 of a strip, which is counted in the matrix. */
typedef struct run {
    uint32_t strip, begin, end;
} run;

ROSE_DEVICE run run_of(const rose_mega &a, const mega &m, uint32_t op, uint32_t job)
{
    const rose_mega_matrix &x = a.matrix[op];
    const uint32_t part = job % x.n_parts;
    return {m.of[op].first * x.strips + job / x.n_parts, x.cut[part], x.cut[part + 1]};
}

/* Unit number i of this block: a split and a KV head. `inner` is its first inner block. */
typedef struct unit {
    uint32_t split, head, inner, n_inner;
} unit;

ROSE_DEVICE unit unit_of(const rose_mega &a, const mega &m, uint32_t i)
{
    const uint32_t u = m.block + i * a.grid, split = u / a.n_kv, inner = split * SPLIT_BLOCKS;
    return {split, u % a.n_kv, inner, min((uint32_t)SPLIT_BLOCKS, m.n_inner - inner)};
}

/* Pages of an inner block; 0 after the last one. */
ROSE_DEVICE uint32_t pages_of(const mega &m, uint32_t inner)
{
    return inner < m.n_inner ? min((uint32_t)INNER_PAGES, m.n_pages - inner * INNER_PAGES) : 0;
}

/* ---- the rings. Each computing warp has one. It holds the weights and pages of the warp's jobs in
 * order, across ops and layers, so memory is busy while blocks wait for each other's values. Two
 * warps copy, each to half of the rings. ---- */

ROSE_DEVICE uint32_t ring_place(const rose_mega &a, const mega &m)
{
    return shared_address(m.smem) + (m.warp * a.pieces + m.piece) * ROSE_MEGA_PIECE;
}

ROSE_DEVICE uint32_t ring_barrier(const rose_mega &a, const mega &m, uint32_t barriers)
{
    return shared_address(m.smem) + barriers + (m.warp * a.pieces + m.piece) * 8;
}

ROSE_DEVICE void ring_advance(const rose_mega &a, mega &m)
{
    if (++m.piece < a.pieces) return;
    m.piece = 0;
    m.parity ^= 1;
}

/* Wait for the warp's next piece; its address. */
ROSE_DEVICE uint32_t take(const rose_mega &a, const mega &m)
{
    barrier_wait(ring_barrier(a, m, a.at.full), m.parity);
    return ring_place(a, m);
}

/* The warp has read the piece. All 32 lanes arrive: with one arrival a step alone took 1 to 2.5 %
 * longer, and the second of two in flight 0 to 2.5 % (H100). racecheck orders the next copy only
 * after the reads of lanes that arrived. */
ROSE_DEVICE void done(const rose_mega &a, mega &m)
{
    __syncwarp(); /* not for the order: without it SmolLM2-135M's steps took 1 to 5 % longer */
    barrier_arrive(ring_barrier(a, m, a.at.empty));
    ring_advance(a, m);
}

/* Go to the next job. False at the end of the step. */
ROSE_DEVICE bool feed_next(const rose_mega &a, const mega &m, feed &f)
{
    f.job += WARPS;
    while (f.job >= m.of[f.op].jobs) {
        if (f.op == ROSE_MEGA_HEAD) return false;
        if (f.op == ROSE_MEGA_DOWN)
            f.op = ++f.layer == a.n_layers ? (uint32_t)ROSE_MEGA_HEAD : (uint32_t)ROSE_MEGA_QKV;
        else
            f.op++;
        f.job = first_job(m, f.op);
    }
    if (f.op == ROSE_MEGA_ATTEND) {
        f.pages = pages_of(m, unit_of(a, m, f.job / WARPS).inner + f.job % WARPS);
        f.left = f.pages * 2;
        return true;
    }
    const run r = run_of(a, m, f.op, f.job);
    const void *w = f.op == ROSE_MEGA_HEAD ? a.head : layer_of(a, m, f.layer).w[f.op];
    f.from = static_cast<const uint8_t *>(w) + (size_t)r.strip * a.matrix[f.op].k_pad * 16 +
             r.begin * 256;
    f.left = (r.end - r.begin) * 256;
    return true;
}

/* K or V of a page and KV head. */
ROSE_DEVICE const uint8_t *feed_page(const rose_mega &a, const mega &m, const feed &f)
{
    const unit u = unit_of(a, m, f.job / WARPS);
    const uint32_t i = f.pages * 2 - f.left, v = i / f.pages;
    const uint32_t page = a.table[(u.inner + f.job % WARPS) * INNER_PAGES + i % f.pages];
    return static_cast<const uint8_t *>(layer_of(a, m, f.layer).kv) +
           (page * a.page_elems + (size_t)(u.head * 2 + v) * ROSE_PAGE * a.head_dim) * 2;
}

ROSE_DEVICE void feed_piece(const rose_mega &a, const mega &m, feed &f)
{
    const uint32_t to = ring_place(a, m), barrier = ring_barrier(a, m, a.at.full);
    if (f.op == ROSE_MEGA_ATTEND) {
        const uint32_t bytes = ROSE_PAGE * a.head_dim * 2;
        barrier_expect(barrier, bytes);
        copy_piece(to, feed_page(a, m, f), bytes, barrier);
        f.left--;
        return;
    }
    const uint32_t bytes = min((uint32_t)ROSE_MEGA_PIECE, f.left);
    barrier_expect(barrier, bytes);
    copy_piece_once(to, f.from, bytes, barrier);
    f.from += bytes;
    f.left -= bytes;
}

/* A copying warp: each lane fills a ring of its own, and no ring waits for another. */
ROSE_DEVICE void copy_all(const rose_mega &a, mega &m)
{
    feed f = {};
    constexpr uint32_t rings = WARPS / ROSE_MEGA_COPIERS;
    bool more = m.lane < rings;
    m.warp = (m.warp - WARPS) * rings + m.lane % rings;
    m.parity = 1; /* all places are empty */
    f.job = first_job(m, ROSE_MEGA_QKV) - WARPS;
#ifdef ROSE_RACECHECK
    /* racecheck credits a bulk copy to any lane that is at the same instruction, so here the lanes
     * copy in turn. A step then takes 1.1 to 1.4 times as long. */
    while (__any_sync(ROSE_ALL_LANES, more)) {
        bool room = false;
        if (more && f.left == 0)
            more = feed_next(a, m, f);
        else if (more)
            room = barrier_test(ring_barrier(a, m, a.at.empty), m.parity);
        for (uint32_t left = __ballot_sync(ROSE_ALL_LANES, room); left != 0; left &= left - 1) {
            if (m.lane == (uint32_t)__ffs((int)left) - 1) {
                feed_piece(a, m, f);
                ring_advance(a, m);
            }
            __syncwarp();
        }
    }
#else
    while (more) {
        if (f.left == 0) {
            more = feed_next(a, m, f);
        } else if (barrier_test(ring_barrier(a, m, a.at.empty), m.parity)) {
            feed_piece(a, m, f);
            ring_advance(a, m);
        }
    }
#endif
}

/* ---- chains ---- */

/* Operands of a lane (g, t): values 4 t to 4 t + 3 of output g, and the same of the row. All lanes
 * g have the row, so that every lane has the sums of outputs 2 t and 2 t + 1. */
ROSE_DEVICE uint32_t weights_place(uint32_t lane)
{
    return lane % 4 / 2 * 128 + lane / 4 * 16 + lane % 2 * 8;
}

/* Operands of N groups. */
template <int N> struct operands {
    uint2 w[N], x[N];
};

template <int N> ROSE_DEVICE void load(operands<N> &to, uint32_t w_at, uint32_t x_at)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        get_shared(&to.w[i], w_at + i * 256);
        get_shared(&to.x[i], x_at + i * 32);
    }
}

template <typename T, int N> ROSE_DEVICE void steps(float acc[4], const operands<N> &by)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t row[4] = {by.x[i].x, 0, by.x[i].y, 0};
        mma(acc, row, by.w[i].x, by.w[i].y, static_cast<const T *>(NULL));
    }
}

template <typename T, int N> ROSE_DEVICE void steps(float acc[4], uint32_t w_at, uint32_t x_at)
{
    operands<N> by;
    load(by, w_at, x_at);
    steps<T>(acc, by);
}

/* The sums of a strip over groups begin .. end - 1 of the row: outputs 2 t and 2 t + 1. A product
 * waits for the one before, so the operands of the next half piece are loaded meanwhile. Loads
 * ahead of 4 groups, with a predicate for each group, made a decode step 3 to 15 % longer than no
 * loads ahead (H100). */
template <typename T>
ROSE_DEVICE float2 chain(const rose_mega &a, mega &m, uint32_t begin, uint32_t end)
{
    enum { HALF = PIECE_GROUPS / 2 };
    float acc[4] = {};
    uint32_t x_at = shared_address(m.smem) + a.at.row + begin * 32 + m.lane % 4 * 8;
    const uint32_t at = weights_place(m.lane);
    uint32_t pieces = (end - begin) / PIECE_GROUPS, n = (end - begin) % PIECE_GROUPS;
    if (pieces > 0) {
        operands<HALF> one, two;
        uint32_t w_at = take(a, m) + at;
        load(one, w_at, x_at);
#pragma unroll 1
        for (;;) {
            load(two, w_at + HALF * 256, x_at + HALF * 32);
            steps<T>(acc, one);
            done(a, m);
            x_at += PIECE_GROUPS * 32;
            if (--pieces == 0) break;
            w_at = take(a, m) + at;
            load(one, w_at, x_at);
            steps<T>(acc, two);
        }
        steps<T>(acc, two);
    }
    if (n > 0) {
        uint32_t w_at = take(a, m) + at;
        for (; n >= 4; n -= 4, w_at += 4 * 256, x_at += 4 * 32)
            steps<T, 4>(acc, w_at, x_at);
        for (; n > 0; n--, w_at += 256, x_at += 32)
            steps<T, 1>(acc, w_at, x_at);
        done(a, m);
    }
    return make_float2(acc[0], acc[1]);
}

/* ---- slots to shared memory ---- */

template <int N>
ROSE_DEVICE void fetch_pairs(uint2 *to, const uint64_t *slots, uint32_t first, uint32_t pairs,
                             uint32_t number)
{
    const uint64_t *at[N];
    uint2 v[N];
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        at[i] = slots + (size_t)min(first + i * THREADS, pairs - 1) * 2;
    poll<N>(v, at, number);
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        if (first + i * THREADS < pairs) to[first + i * THREADS] = v[i];
}

/* Values of n slots (an even number) to shared memory: all threads. The warps meet at the end. */
ROSE_DEVICE void fetch(const mega &m, uint32_t to, const uint64_t *slots, uint32_t n,
                       uint32_t number)
{
    uint2 *words = place<uint2>(m, to);
    const uint32_t pairs = n / 2;
    for (uint32_t first = 0; first < pairs;) {
        const uint32_t left = pairs - first;
        if (left > 4 * THREADS) {
            fetch_pairs<8>(words, slots, first + m.thread, pairs, number);
            first += 8 * THREADS;
        } else if (left > 2 * THREADS) {
            fetch_pairs<4>(words, slots, first + m.thread, pairs, number);
            first += 4 * THREADS;
        } else {
            fetch_pairs<2>(words, slots, first + m.thread, pairs, number);
            first += 2 * THREADS;
        }
    }
    sync_warps();
}

/* ---- norms ---- */

/* The row of at most 256 G values of x, normed, to shared memory. All computing warps share
 * it as norm.cuh says: thread t has values t, t + 256 and so on. slots NULL: x is in shared memory.
 * The warps meet at the end. */
template <typename T, int G>
ROSE_DEVICE void norm_x(const rose_mega &a, const mega &m, const rose_cuda_norm_by &by,
                        const uint64_t *slots, uint32_t number)
{
    static_assert((int)THREADS == (int)NORM_GROUP, "a value of each group for each thread");
    const float *x = place<const float>(m, a.at.x);
    T *row = place<T>(m, a.at.row);
    float v[G][1], w[G], b[G] = {};
    const uint64_t *at[G];
#pragma unroll
    for (uint32_t i = 0; i < G; i++) { /* while the values are still on their way */
        const uint32_t k = min(i * THREADS + m.thread, a.d - 1);
        w[i] = __ldcg(by.w + k);
        if (by.b != NULL) b[i] = __ldcg(by.b + k);
        at[i] = slots != NULL ? slots + k : NULL;
    }
    if (slots != NULL)
        poll_floats<G>(&v[0][0], at, number);
    else
#pragma unroll
        for (uint32_t i = 0; i < G; i++)
            v[i][0] = x[min(i * THREADS + m.thread, a.d - 1)];
    const float2 moments =
        row_moments<1, G, sync_warps>(v, by, a.d, m.thread, place<float>(m, a.at.red));
#pragma unroll
    for (uint32_t i = 0; i < G; i++) {
        const uint32_t k = i * THREADS + m.thread;
        const float y = norm_scale(v[i][0] - moments.x, moments.y, w[i], b[i], by.b != NULL);
        if (k < a.d) from_f32(y, row + k);
    }
    sync_warps();
}

#endif
#endif
