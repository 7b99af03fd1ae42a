/* backend/cuda/sampler.cu - the choice of one id from a row of logits: one block a row.
 *
 * The rule is that of backend.h (rose_sampling): temperature, min_p, top_k, top_p, then a walk by
 * ascending id to u * mass with u from Philox(seed, position). Greedy needs only the key that the
 * head left. Otherwise weights are w = exp((x - max) / T), and their mass is counted in units of
 * 2^-40, in 64-bit integers: sums do not depend on the order of threads and atomics, so neither
 * does the result. Weights under 2^-41 have no mass and are never chosen.
 *
 * The usual way (a top_k up to 512, or a top_p that few ids fill): every thread takes the largest
 * of its share; the k-th of these, to 20 bits, is a lower bound for the k-th logit; what reaches
 * it, found in a second pass over the row, is a short list, on which ranks and masses are found by
 * comparing all with all. The other way, for any
 * parameters: cuts are found by digits of 11 bits of the rank key, with a histogram in shared
 * memory for each. */
#include <float.h>

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

typedef unsigned long long u64;

enum {
    THREADS = 1024,
    BINS = 2048,
    LIST = THREADS,    /* a thread each */
    MOST_LISTED = 512, /* the largest top_k for the list */
    FEW = 256,         /* ids tried first for top_p alone */
    BATCH = 8,         /* loads in flight */
    LONG_BATCH = 16,   /* the same in the usual way */
    BOUND_BITS = 20    /* of a logit's order, for the bound of the list */
};

#define UNIT 1099511627776.0f /* 2^40 */

typedef struct work {
    const float *x;
    uint32_t vocab;
    float max, inv_temperature, min_p;
    u64 floor; /* rank keys below are dropped */
} work;

typedef struct memory {
    u64 mass[BINS];
    u64 list[LIST]; /* rank keys */
    u64 scan[THREADS / 32];
    u64 found_before;
    uint32_t found_digit, n_list, id;
} memory;

static __device__ __forceinline__ float philox_uniform(uint64_t seed, uint32_t position)
{
    uint32_t c0 = position, c1 = 0, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n1 = 0xCD9E8D57u * c2;
        uint32_t n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1, n3 = 0xD2511F53u * c0;
        c0 = n0;
        c1 = n1;
        c2 = n2;
        c3 = n3;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c0 >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}

/* Of a logit that may be chosen, in units of 2^-40; weights under min_p have none. */
static __device__ __forceinline__ u64 mass_at(const work &w, float x)
{
    float weight = exp_fast((x - w.max) * w.inv_temperature);
    if (!(weight >= w.min_p)) return 0;
    return (u64)__float2ull_rn(weight * UNIT);
}

/* Rank keys under the floor have none. */
static __device__ __forceinline__ u64 mass_of(const work &w, u64 key)
{
    if (key == 0 || key < w.floor) return 0;
    return mass_at(w, logit_of((uint32_t)(key >> 32)));
}

/* The rank key of id i; 0 for NaN and -inf. */
static __device__ __forceinline__ u64 key_of(float x, uint32_t i)
{
    return x > -INFINITY ? rank_key(x, i) : 0;
}

/* BATCH logits of this thread from place `at`, THREADS apart; NaN beyond the end. */
static __device__ __forceinline__ void load_batch(float v[BATCH], const work &w, uint32_t at)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        v[i] = at + i * THREADS < w.vocab ? __ldcg(w.x + at + i * THREADS) : NAN;
}

static __device__ __forceinline__ u64 sum_warp(u64 v)
{
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    return v;
}

/* Sum over the block, to every thread. m->scan is read up to the next barrier. */
static __device__ u64 block_sum(memory *m, u64 v)
{
    v = sum_warp(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) m->scan[threadIdx.x / 32] = v;
    __syncthreads();
    return sum_warp(m->scan[threadIdx.x % 32]);
}

static_assert(THREADS == 32 * 32, "a warp reads what each warp left, one a lane");

static __device__ u64 total_mass(const work &w, memory *m)
{
    u64 sum = 0;
    for (uint32_t at = threadIdx.x; at < w.vocab; at += BATCH * THREADS) {
        float v[BATCH];
        load_batch(v, w, at);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            sum += mass_of(w, key_of(v[i], at + i * THREADS));
    }
    return block_sum(m, sum);
}

/* The first bin, in ascending order, at which the running sum of m->mass reaches need (which the
 * total does); leaves it in m->found_digit and the sum before it in m->found_before. */
static __device__ void find_bin(memory *m, u64 need)
{
    const int per = BINS / THREADS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 mine = 0;
    for (int i = 0; i < per; i++)
        mine += m->mass[threadIdx.x * per + i];
    u64 upto = mine;
    for (int o = 1; o < 32; o *= 2) {
        u64 below = __shfl_up_sync(ROSE_ALL_LANES, upto, o);
        if (lane >= o) upto += below;
    }
    if (lane == 31) m->scan[warp] = upto;
    __syncthreads();
    u64 before = upto - mine;
    for (int i = 0; i < warp; i++)
        before += m->scan[i];
    if (before < need && before + mine >= need) {
        int i = 0;
        while (before + m->mass[threadIdx.x * per + i] < need)
            before += m->mass[threadIdx.x * per + i++];
        m->found_digit = threadIdx.x * per + i;
        m->found_before = before;
    }
    __syncthreads();
}

/* ---- the usual way ---- */

static __device__ u64 target_of(u64 total, const rose_cuda_pick &p)
{
    const u64 seed = (u64)p.seed_hi << 32 | p.seed_lo;
    const u64 u = (u64)(philox_uniform(seed, p.pos) * 16777216.0f);
    return __umul64hi(total, u) << 40 | (total * u) >> 24; /* floor(total u / 2^24) */
}

static __device__ __forceinline__ u64 need_of(float top_p, u64 total)
{
    const u64 need = (u64)((double)top_p * (double)total);
    return need > 0 ? need : 1;
}

/* LONG_BATCH logits of this thread from place `at`, THREADS apart; NaN beyond the end. */
static __device__ __forceinline__ void load_long(float v[LONG_BATCH], const work &w, uint32_t at)
{
    const float *x = w.x + at;
    if (at + (LONG_BATCH - 1) * THREADS < w.vocab) {
#pragma unroll
        for (int i = 0; i < LONG_BATCH; i++)
            v[i] = __ldcg(x + i * THREADS);
        return;
    }
#pragma unroll
    for (int i = 0; i < LONG_BATCH; i++)
        v[i] = at + i * THREADS < w.vocab ? __ldcg(x + i * THREADS) : NAN;
}

/* A logit that the best k reach, and not many more; -FLT_MAX where fewer than k threads have any.
 * with_mass: also the mass of all. */
static __device__ float lower_bound(const work &w, memory *m, uint32_t k, bool with_mass,
                                    u64 *total)
{
    float best = -INFINITY;
    u64 sum = 0;
    for (uint32_t at = threadIdx.x; at < w.vocab; at += LONG_BATCH * THREADS) {
        float v[LONG_BATCH];
        load_long(v, w, at);
#pragma unroll
        for (int i = 0; i < LONG_BATCH; i++)
            best = fmaxf(best, v[i]); /* passes NaN over */
        if (with_mass)
#pragma unroll
            for (int i = 0; i < LONG_BATCH; i++)
                if (v[i] > -INFINITY) sum += mass_at(w, v[i]);
    }
    if (with_mass) *total = block_sum(m, sum);
    const uint32_t mine = best > -INFINITY ? order_of(best) : 0;
    uint32_t bound = 0;
#pragma unroll 1
    for (int bit = 31; bit >= 32 - BOUND_BITS; bit--) {
        const uint32_t higher = bound | 1u << bit;
        if (__syncthreads_count(mine >= higher) >= (int)k) bound = higher;
    }
    return bound > order_of(-INFINITY) ? logit_of(bound) : -FLT_MAX;
}

/* What reaches `least`, in any order. False: too many for a list. */
static __device__ bool make_list(const work &w, memory *m, float least)
{
    if (threadIdx.x == 0) m->n_list = 0;
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < w.vocab; at += LONG_BATCH * THREADS) {
        float v[LONG_BATCH];
        uint32_t reach = 0; /* a bit a logit */
        load_long(v, w, at);
#pragma unroll
        for (int i = 0; i < LONG_BATCH; i++)
            reach |= (uint32_t)(v[i] >= least) << i;
        for (; reach != 0; reach &= reach - 1) { /* one copy of what is rarely run */
            const int which = __ffs((int)reach) - 1;
            float x = v[0];
#pragma unroll
            for (int i = 1; i < LONG_BATCH; i++)
                x = i == which ? v[i] : x;
            const uint32_t place = atomicAdd(&m->n_list, 1u);
            if (place < LIST) m->list[place] = rank_key(x, at + which * THREADS);
        }
    }
    __syncthreads();
    return m->n_list <= LIST;
}

/* Among the listed ids: the best k, of these the best whose mass reaches need (0: top_p of theirs).
 * False: their mass does not reach need. An id's comparisons are shared by as many lanes of a warp
 * as there are. */
static __device__ bool pick_listed(const work &w, memory *m, const rose_cuda_pick &p, uint32_t k,
                                   u64 need, uint32_t *id)
{
    const uint32_t n = m->n_list;
    uint32_t lanes = 1, rank = 0;
    while (lanes < 32 && n * lanes * 2 <= THREADS)
        lanes *= 2;
    const uint32_t me = threadIdx.x / lanes, part = threadIdx.x % lanes;
    const u64 key = me < n ? m->list[me] : 0, mass = mass_of(w, key);
    u64 before = 0, upto = 0; /* of lower ids, which are larger in the key's complement */

    if (me < n && part == 0) m->mass[me] = mass;
    if (threadIdx.x == 0) m->id = UINT32_MAX;
    __syncthreads();
    for (uint32_t j = part; j < n && key != 0; j += lanes)
        if (m->list[j] > key) {
            rank++;
            before += m->mass[j];
        }
    for (uint32_t o = lanes / 2; o > 0; o /= 2) {
        rank += __shfl_xor_sync(ROSE_ALL_LANES, rank, o);
        before += __shfl_xor_sync(ROSE_ALL_LANES, before, o);
    }
    const bool first = me < n && part == 0; /* of the lanes of an id: it speaks for them */
    bool kept = rank < k;
    const u64 total = block_sum(m, kept && first ? mass : 0);
    if (total < need) return false;
    if (need == 0) need = p.top_p < 1.0f ? need_of(p.top_p, total) : ~0ull;
    kept = kept && before < need;
    const u64 target = target_of(block_sum(m, kept && first ? mass : 0), p);
    if (first) m->mass[me] = kept ? mass : 0;
    __syncthreads();
    for (uint32_t j = part; j < n && kept && mass > 0; j += lanes)
        if ((uint32_t)m->list[j] > (uint32_t)key) upto += m->mass[j];
    for (uint32_t o = lanes / 2; o > 0; o /= 2)
        upto += __shfl_xor_sync(ROSE_ALL_LANES, upto, o);
    if (first && kept && mass > 0 && upto <= target && target < upto + mass) m->id = ~(uint32_t)key;
    __syncthreads();
    *id = m->id;
    return true;
}

/* False: this row is not of the usual kind. */
static __device__ bool sample_quick(const work &w, memory *m, const rose_cuda_pick &p,
                                    bool by_count, uint32_t k, uint32_t *id)
{
    u64 total = 0;
    const float least = lower_bound(w, m, k, !by_count, &total);
    return make_list(w, m, least) && pick_listed(w, m, p, by_count ? k : UINT32_MAX,
                                                 by_count ? 0 : need_of(p.top_p, total), id);
}

/* ---- the other way ---- */

/* The key down to which the best must be kept for their number (by_mass: their mass) to reach need.
 * 0 if all together do not reach it. */
static __device__ u64 select_rank(const work &w, memory *m, bool by_mass, u64 need)
{
    static const int shifts[6] = {53, 42, 32, 21, 10, 0}, widths[6] = {11, 11, 10, 11, 11, 10};
    u64 prefix = 0, mask = 0, have = 0;

    for (int pass = 0; pass < 6; pass++) {
        const uint32_t bins = 1u << widths[pass];
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            m->mass[i] = 0;
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < w.vocab; at += BATCH * THREADS) {
            float x[BATCH];
            load_batch(x, w, at);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const u64 key = key_of(x[i], at + i * THREADS);
                if (key == 0 || key < w.floor || (key & mask) != prefix) continue;
                const u64 v = by_mass ? mass_of(w, key) : 1;
                /* the best bin first */
                if (v != 0) atomicAdd(&m->mass[bins - 1 - ((key >> shifts[pass]) & (bins - 1))], v);
            }
        }
        __syncthreads();
        if (pass == 0) {
            u64 mine = 0;
            for (int i = threadIdx.x; i < BINS; i += THREADS)
                mine += m->mass[i];
            if (block_sum(m, mine) < need) return 0;
            __syncthreads();
        }
        find_bin(m, need - have);
        const u64 bin = bins - 1 - m->found_digit, held = m->mass[m->found_digit];
        have += m->found_before;
        prefix |= bin << shifts[pass];
        mask |= (u64)(bins - 1) << shifts[pass];
        __syncthreads();
        if (!by_mass && have + held == need) return prefix; /* the bin as a whole */
    }
    return prefix;
}

/* Each thread sums a stretch of ids; the one whose stretch holds the target walks it. */
static __device__ uint32_t walk_row(const work &w, memory *m, const rose_cuda_pick &p)
{
    const uint32_t per = (w.vocab + THREADS - 1) / THREADS;
    const uint32_t first = threadIdx.x * per, end = min(first + per, w.vocab);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 mine = 0;
    for (uint32_t i = first; i < end; i++)
        mine += mass_of(w, key_of(__ldcg(w.x + i), i));
    const u64 target = target_of(block_sum(m, mine), p);
    u64 upto = mine;
    __syncthreads();
    for (int o = 1; o < 32; o *= 2) {
        u64 below = __shfl_up_sync(ROSE_ALL_LANES, upto, o);
        if (lane >= o) upto += below;
    }
    if (lane == 31) m->scan[warp] = upto;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        upto += m->scan[i];
    u64 before = upto - mine;
    if (before <= target && target < upto) {
        uint32_t i = first;
        while ((before += mass_of(w, key_of(__ldcg(w.x + i), i))) <= target)
            i++;
        m->id = i;
    }
    __syncthreads();
    return m->id;
}

static __device__ uint32_t sample(const rose_cuda_sampler &a, const rose_cuda_pick &p, memory *m,
                                  uint32_t row, float best)
{
    work w = {a.logits + (size_t)row * a.ld_logits, a.vocab, best, p.inv_temperature, p.min_p, 0};
    const bool by_count = p.top_k > 0 && p.top_k < a.vocab, by_mass = p.top_p < 1.0f;
    const uint32_t k = by_count ? p.top_k : FEW;
    uint32_t id;

    if ((by_count || by_mass) && k <= MOST_LISTED) {
        if (sample_quick(w, m, p, by_count, k, &id)) return id;
        __syncthreads();
    }
    if (by_count) w.floor = select_rank(w, m, false, p.top_k);
    if (by_mass)
        w.floor = max(w.floor, select_rank(w, m, true, need_of(p.top_p, total_mass(w, m))));
    return walk_row(w, m, p);
}

static __global__ void __launch_bounds__(THREADS) sampler_kernel(const rose_cuda_sampler a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const uint32_t row = blockIdx.x;
    const rose_cuda_pick p = a.pick[row];
    pdl_launch();
    pdl_wait();
    const u64 key = __ldcg(a.key + row);
    const uint32_t order = (uint32_t)(key >> 32);
    uint32_t id = ~(uint32_t)key;
    const float max = logit_of(order);
    if (order <= order_of(-INFINITY)) {
        id = UINT32_MAX; /* ROSE_TOKEN_NONE */
    } else if (isfinite(p.inv_temperature) && isfinite(max)) {
        id = sample(a, p, reinterpret_cast<memory *>(shared), row, max);
    }
    if (threadIdx.x == 0) {
        const uint32_t at = a.out != NULL ? a.out[row] : a.first + row;
        (*a.ids)[at] = id;
        if (a.sampled != NULL) a.sampled[at] = id;
    }
}

cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *at, const rose_cuda_sampler *a)
{
    if (a->rows == 0) return cudaSuccess;
    return launch_kernel(at, sampler_kernel, dim3(a->rows), THREADS, sizeof(memory), *a);
}
