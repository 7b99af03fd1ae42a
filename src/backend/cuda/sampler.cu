/* backend/cuda/sampler.cu - the choice of one id from a row of logits: one block a row.
 *
 * The rule is that of backend.h (rose_sampling): temperature, min_p, top_k, top_p, then a walk by
 * ascending id to u * mass with u from Philox(seed, position). Greedy needs only the key that the
 * head left. Otherwise weights are w = exp((x - max) / T), and their mass is counted in units of
 * 2^-40, in 64-bit integers: sums do not depend on the order of the atomics, so neither does the
 * result. Weights under 2^-41 have no mass and are never chosen.
 *
 * Every cut (the k-th best, the share top_p, the walk) is one operation: among the kept elements in
 * the order of a 64-bit number, find the one at which a running count or mass reaches `need`.
 * select() does it by digits of 11 bits, a histogram in shared memory for each. After the cut by
 * top_k, or after the first digit of top_p, what is left is usually short and is kept as a list in
 * shared memory. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

typedef unsigned long long u64;

enum { THREADS = 1024, DIGIT = 11, BINS = 1 << DIGIT, LIST = 2048 };

#define UNIT 1099511627776.0f /* 2^40 */

typedef struct work {
    const float *x;
    uint32_t vocab;
    float max, inv_temperature, min_p;
    u64 floor; /* rank keys below are dropped */
    bool listed;
    uint32_t n_list;
} work;

typedef struct memory {
    u64 mass[BINS];
    u64 list[LIST]; /* rank keys */
    u64 scan[THREADS / 32];
    u64 found_before;
    uint32_t found_digit, n_list;
    bool fits;
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

static __device__ __forceinline__ float logit_of(uint32_t order)
{
    return __uint_as_float(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

/* In units of 2^-40; what rank keys under the floor and weights under min_p do not have. */
static __device__ __forceinline__ u64 mass_of(const work &w, u64 key)
{
    if (key < w.floor) return 0;
    float weight = exp_fast((logit_of((uint32_t)(key >> 32)) - w.max) * w.inv_temperature);
    if (!(weight >= w.min_p)) return 0;
    return (u64)__float2ull_rn(weight * UNIT);
}

/* Element i of what is left, as a rank key; 0 for NaN and -inf. */
static __device__ __forceinline__ u64 element(const work &w, const memory *m, uint32_t i)
{
    if (w.listed) return m->list[i];
    float x = __ldcg(w.x + i);
    return x > -INFINITY ? rank_key(x, i) : 0;
}

/* Sum over the block, to every thread. */
static __device__ u64 block_sum(memory *m, u64 v)
{
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) m->scan[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < THREADS / 32; i++)
        v += m->scan[i];
    __syncthreads();
    return v;
}

static __device__ u64 total_mass(const work &w, memory *m)
{
    const uint32_t n = w.listed ? w.n_list : w.vocab;
    u64 v = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        v += mass_of(w, element(w, m, i));
    return block_sum(m, v);
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

/* Keep what ranks at `floor` or above as a list, if it is short enough. Its order does not matter.
 */
static __device__ void make_list(work *w, memory *m, u64 floor)
{
    if (w->listed) return;
    __syncthreads();
    if (threadIdx.x == 0) m->n_list = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < w->vocab; i += THREADS) {
        u64 key = element(*w, m, i);
        if (key == 0 || key < floor || key < w->floor) continue;
        uint32_t at = atomicAdd(&m->n_list, 1u);
        if (at < LIST) m->list[at] = key;
    }
    __syncthreads();
    if (m->n_list > LIST) return;
    w->n_list = m->n_list;
    w->listed = true;
}

/* By rank: the key down to which the best must be kept for their number (by_mass: their mass) to
 * reach need. 0 if all together do not reach it. */
static __device__ u64 select_rank(work *w, memory *m, bool by_mass, u64 need)
{
    static const int shifts[6] = {53, 42, 32, 21, 10, 0}, widths[6] = {11, 11, 10, 11, 11, 10};
    u64 prefix = 0, prefix_mask = 0, have = 0;

    for (int pass = 0; pass < 6; pass++) {
        const uint32_t n = w->listed ? w->n_list : w->vocab, bins = 1u << widths[pass];
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            m->mass[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            u64 key = element(*w, m, i);
            if (key == 0 || key < w->floor || (key & prefix_mask) != prefix) continue;
            u64 v = by_mass ? mass_of(*w, key) : 1;
            /* the best bin first */
            if (v != 0) atomicAdd(&m->mass[bins - 1 - ((key >> shifts[pass]) & (bins - 1))], v);
        }
        __syncthreads();
        if (pass == 0) {
            u64 mine = 0;
            for (int i = threadIdx.x; i < BINS; i += THREADS)
                mine += m->mass[i];
            if (block_sum(m, mine) < need) return 0;
        }
        find_bin(m, need - have);
        const u64 bin = bins - 1 - m->found_digit, held = m->mass[m->found_digit];
        have += m->found_before;
        prefix |= bin << shifts[pass];
        prefix_mask |= (u64)(bins - 1) << shifts[pass];
        __syncthreads();
        /* the bin as a whole: nothing further to split */
        if (!by_mass && have + held == need) return prefix;
        if (pass == 0) make_list(w, m, prefix);
    }
    return prefix;
}

/* The lowest id at which the running mass by ascending id reaches need. */
static __device__ uint32_t select_id(const work &w, memory *m, u64 need)
{
    uint32_t prefix = 0, mask = 0;
    u64 have = 0;
    for (int shift = 22; shift >= 0; shift -= DIGIT) {
        const uint32_t n = w.listed ? w.n_list : w.vocab;
        if (shift == 22 && w.vocab <= 1u << 22) continue;
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            m->mass[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            u64 key = element(w, m, i);
            uint32_t id = ~(uint32_t)key;
            if (key == 0 || (id & mask) != prefix) continue;
            u64 v = mass_of(w, key);
            if (v != 0) atomicAdd(&m->mass[(id >> shift) & (BINS - 1)], v);
        }
        __syncthreads();
        find_bin(m, need - have);
        have += m->found_before;
        prefix |= m->found_digit << shift;
        mask |= (uint32_t)(BINS - 1) << shift;
        __syncthreads();
    }
    return prefix;
}

static __device__ uint32_t sample(const rose_cuda_sampler &a, const rose_cuda_pick &p, memory *m,
                                  uint32_t row, float best)
{
    work w = {a.logits + (size_t)row * a.ld_logits,
              a.vocab,
              best,
              p.inv_temperature,
              p.min_p,
              0,
              false,
              0};
    if (p.top_k > 0 && p.top_k < a.vocab) {
        w.floor = select_rank(&w, m, false, p.top_k);
        make_list(&w, m, w.floor);
    }
    if (p.top_p < 1.0f) {
        u64 need = (u64)((double)p.top_p * (double)total_mass(w, m));
        w.floor = max(w.floor, select_rank(&w, m, true, need > 0 ? need : 1));
    }
    const u64 u = (u64)(philox_uniform((uint64_t)p.seed_hi << 32 | p.seed_lo, p.pos) * 16777216.0f);
    const u64 total = total_mass(w, m);
    const u64 target = __umul64hi(total, u) << 40 | (total * u) >> 24; /* floor(total u / 2^24) */
    return select_id(w, m, target + 1);
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
    if (threadIdx.x == 0) (*a.ids)[a.first + row] = id;
}

cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *at, const rose_cuda_sampler *a)
{
    if (a->rows == 0) return cudaSuccess;
    return launch_kernel(at, sampler_kernel, dim3(a->rows), THREADS, sizeof(memory), *a);
}
