/* backend/cuda/sampler.cu - chooses one id from each row of logits; one block for each row.
 *
 * The rule is that of backend.h (rose_sampling): temperature, min_p, top_k and top_p, then a walk
 * by ascending id up to u * mass, where u is Philox(seed, position). Greedy needs only the key that
 * the head GEMM wrote. Otherwise an id has the weight exp((x - max) / T). The mass of ids is the
 * sum of their weights, counted in 64-bit integers of 2^-40. These sums do not depend on the order
 * of threads and atomics, so the result does not either. Weights under 2^-41 have no mass and are
 * never chosen. A rank key orders ids by logit, then by the lower id.
 *
 * The quick way serves a top_k of up to 512, or a top_p that few ids reach. Every thread finds the
 * largest logit among its ids. The k-th largest of these, to 20 bits, is a lower bound for the k-th
 * largest logit. A second pass over the row lists the logits that reach the bound. Ranks and masses
 * in this short list come from comparing each entry with all others.
 *
 * The general way serves all parameters. It finds each cut by digits of 11 bits of the rank key,
 * with a histogram in shared memory for each digit. */
#include <float.h>

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

typedef unsigned long long u64;

enum {
    THREADS = 1024,
    BINS = 2048,
    LIST = THREADS,    /* entries of the list, one for each thread */
    MOST_LISTED = 512, /* the largest top_k that the quick way serves */
    FEW = 256,         /* k of the quick way if only top_p is set */
    BATCH = 8,         /* loads in flight in one thread */
    LONG_BATCH = 16,   /* the same in the quick way */
    BOUND_BITS = 20    /* leading bits of a logit's order that the bound of the list uses */
};

#define UNIT 1099511627776.0f /* 2^40 */

typedef struct work {
    const float *x;
    uint32_t vocab;
    float max, inv_temperature, min_p;
    u64 floor; /* ids with a smaller rank key are dropped */
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

/* The mass of a logit, in units of 2^-40. A weight under min_p has no mass. */
static __device__ __forceinline__ u64 mass_at(const work &w, float x)
{
    float weight = exp_fast((x - w.max) * w.inv_temperature);
    if (!(weight >= w.min_p)) return 0;
    return (u64)__float2ull_rn(weight * UNIT);
}

/* The mass of the id with this rank key. Keys under the floor have no mass. */
static __device__ __forceinline__ u64 mass_of(const work &w, u64 key)
{
    if (key == 0 || key < w.floor) return 0;
    return mass_at(w, logit_of((uint32_t)(key >> 32)));
}

/* The rank key of id i; 0 for NaN and -inf, which are never chosen. */
static __device__ __forceinline__ u64 key_of(float x, uint32_t i)
{
    return x > -INFINITY ? rank_key(x, i) : 0;
}

/* Load BATCH logits of this thread, THREADS apart, from index `at` on; NaN after the end of the
 * row. */
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

/* The sum of a value over all threads of the block; every thread gets the sum. Threads read
 * m->scan until the next barrier. */
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

/* Find the first bin at which the running sum of m->mass reaches `need`; the total does reach it.
 * m->found_digit gets the bin, and m->found_before the sum of the bins before it. */
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

/* ---- the quick way ---- */

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

/* Load LONG_BATCH logits of this thread, THREADS apart, from index `at` on; NaN after the end of
 * the row. */
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

/* A bound that at least k logits reach, and not many more than k; -FLT_MAX if fewer than k threads
 * have a logit above -inf. with_mass: *total gets the mass of all ids. */
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
            best = fmaxf(best, v[i]); /* fmaxf ignores NaN */
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

/* List all logits that reach `least`, in any order. False if they do not fit the list. */
static __device__ bool make_list(const work &w, memory *m, float least)
{
    if (threadIdx.x == 0) m->n_list = 0;
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < w.vocab; at += LONG_BATCH * THREADS) {
        float v[LONG_BATCH];
        uint32_t reach = 0; /* bit i: logit i of the batch reaches `least` */
        load_long(v, w, at);
#pragma unroll
        for (int i = 0; i < LONG_BATCH; i++)
            reach |= (uint32_t)(v[i] >= least) << i;
        /* A loop, not LONG_BATCH copies of code that rarely runs. */
        for (; reach != 0; reach &= reach - 1) {
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

/* Choose among the listed ids. Keep the best k; of these, keep the best whose mass reaches `need`
 * (0: top_p of the mass of the k). False if the list's mass does not reach `need`. Several lanes of
 * a warp share the comparisons of one id: as many as there are threads for. */
static __device__ bool pick_listed(const work &w, memory *m, const rose_cuda_pick &p, uint32_t k,
                                   u64 need, uint32_t *id)
{
    const uint32_t n = m->n_list;
    uint32_t lanes = 1, rank = 0;
    while (lanes < 32 && n * lanes * 2 <= THREADS)
        lanes *= 2;
    const uint32_t me = threadIdx.x / lanes, part = threadIdx.x % lanes;
    const u64 key = me < n ? m->list[me] : 0, mass = mass_of(w, key);
    u64 before = 0, upto = 0; /* upto: the mass of lower ids, whose keys have larger low words */

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
    const bool first = me < n && part == 0; /* one lane acts for all lanes of the id */
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

/* Try the quick way. False if it cannot serve this row. */
static __device__ bool sample_quick(const work &w, memory *m, const rose_cuda_pick &p,
                                    bool by_count, uint32_t k, uint32_t *id)
{
    u64 total = 0;
    const float least = lower_bound(w, m, k, !by_count, &total);
    return make_list(w, m, least) && pick_listed(w, m, p, by_count ? k : UINT32_MAX,
                                                 by_count ? 0 : need_of(p.top_p, total), id);
}

/* ---- the general way ---- */

/* The smallest rank key to keep, so that the number of kept ids (by_mass: their mass) reaches
 * `need`. 0 if all ids together do not reach it. */
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
                /* bins in descending order of keys */
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
        /* Exactly all ids of this bin are needed. */
        if (!by_mass && have + held == need) return prefix;
    }
    return prefix;
}

/* Walk by ascending id. Each thread first sums a stretch of ids; then the thread whose stretch
 * contains the target walks through it. */
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
