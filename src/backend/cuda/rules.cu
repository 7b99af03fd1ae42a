/* backend/cuda/rules.cu - what outputs want beyond sampling (rose_output_rules): change_kernel
 * changes logits before the sampler reads them, and report_kernel writes log-probabilities and
 * ranks after it.
 *
 * change_kernel: a block for each SPAN ids of a row. It applies the lists one after the other, with
 * a barrier between them, and takes from each list the ids of its span. One thread handles an id.
 * Every operation is a single fp32 rounding in the order that backend.h states, so the result has
 * the same bits as on the CPU. The changed logits go to a row of their own, because the report is
 * about the logits as the model gave them. Bound: one read and one write of the row, and a second
 * read where there are lists.
 *
 * report_kernel: one block for each row. It sums exp(x - max) in 64-bit integers of 2^-40, so that
 * the order of threads does not matter, and takes the logarithm in double. For the n_top best ids,
 * each thread owns the ids that are THREADS apart and knows the largest rank key among them; each
 * warp knows the largest of its threads. In each round the block takes the largest key, and the
 * warp that owned it searches the owner's ids for the next one. (A rank key orders ids by logit,
 * then by the lower id.) Bound: two reads of the row, then n_top rounds of about a microsecond. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

typedef unsigned long long u64;

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    BATCH = 16,            /* loads in flight in one thread */
    EACH = 4,              /* ids of a thread of change_kernel */
    SPAN = EACH * THREADS, /* ids of a block of change_kernel */
};

static_assert(WARPS == 32, "a warp reads what each warp left, one a lane");

#define UNIT 1099511627776.0f /* 2^40 */

static __device__ __forceinline__ u64 warp_max(u64 v)
{
    for (int o = 16; o > 0; o /= 2)
        v = max(v, __shfl_xor_sync(ROSE_ALL_LANES, v, o));
    return v;
}

static __device__ __forceinline__ u64 warp_sum(u64 v)
{
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(ROSE_ALL_LANES, v, o);
    return v;
}

/* Load BATCH logits of this thread, THREADS apart, from index `at` on; NaN after the end of the
 * row. */
static __device__ __forceinline__ void load_batch(float v[BATCH], const float *x, uint32_t at,
                                                  uint32_t n)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        v[i] = at + i * THREADS < n ? __ldcg(x + at + i * THREADS) : NAN;
}

/* ---- changes ---- */

static __device__ float penalised(const rose_cuda_change &c, float x, uint32_t count)
{
    x = x > 0 ? __fdiv_rn(x, c.repetition) : __fmul_rn(x, c.repetition);
    if (count == 0) return x;
    x = __fsub_rn(x, __fmul_rn(c.frequency, __uint2float_rn(count)));
    return __fsub_rn(x, c.presence);
}

static __device__ __forceinline__ bool is_allowed(const rose_cuda_changes &a,
                                                  const rose_cuda_change &c, uint32_t id)
{
    return c.allowed == ROSE_CUDA_ALL_IDS || (a.words[c.allowed + id / 32] >> id % 32 & 1) != 0;
}

/* The largest rank key of the block's ids. */
static __device__ u64 best_in_span(const float *y, uint32_t first, uint32_t end)
{
    u64 best = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t i = first + threadIdx.x + j * THREADS;
        if (i < end) best = max(best, rank_key(__ldcg(y + i), i));
    }
    return best;
}

static __global__ void __launch_bounds__(THREADS) change_kernel(const rose_cuda_changes a)
{
    __shared__ u64 part[WARPS];
    const rose_cuda_change c = a.change[blockIdx.y];
    const uint32_t first = blockIdx.x * SPAN, end = min(first + SPAN, a.vocab);
    const float *x = a.logits + (size_t)c.row * a.ld_logits;
    float *y = a.changed + (size_t)blockIdx.y * a.ld_logits;
    float v[EACH];
    u64 best = 0;

    pdl_launch();
    pdl_wait();
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t i = first + threadIdx.x + j * THREADS;
        v[j] = i < end ? __ldcg(x + i) : NAN;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t i = first + threadIdx.x + j * THREADS;
        if (i >= end) continue;
        if (!is_allowed(a, c, i)) v[j] = -INFINITY;
        y[i] = v[j];
        best = max(best, rank_key(v[j], i));
    }
    if (c.n_banned > 0 || c.n_bias > 0 || c.n_seen > 0) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < c.n_banned; i += THREADS) {
            const uint32_t id = a.words[c.banned + i];
            if (id - first < end - first) y[id] = -INFINITY;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < c.n_bias; i += THREADS) {
            const uint32_t id = a.words[c.bias + i];
            if (id - first < end - first)
                y[id] = __fadd_rn(y[id], __uint_as_float(a.words[c.bias + c.n_bias + i]));
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < c.n_seen; i += THREADS) {
            const uint32_t id = a.words[c.seen + i];
            if (id - first < end - first)
                y[id] = penalised(c, y[id], a.words[c.seen + c.n_seen + i]);
        }
        __syncthreads();
        best = best_in_span(y, first, end);
    }
    best = warp_max(best);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
    __syncthreads();
    best = warp_max(part[threadIdx.x % 32]);
    if (threadIdx.x == 0) atomicMax(a.key + blockIdx.y, best);
}

cudaError_t rose_cuda_changes_run(const rose_cuda_launch *at, const rose_cuda_changes *a)
{
    if (a->rows == 0) return cudaSuccess;
    const dim3 grid((a->vocab + SPAN - 1) / SPAN, a->rows);
    return launch_kernel(at, change_kernel, grid, THREADS, 0, *a);
}

/* ---- reports ---- */

typedef struct row_stats {
    u64 mass;        /* sum of exp(x - max), in units of 2^-40 */
    u64 n_above;     /* number of logits above that of the reported id */
    u64 best[WARPS]; /* each warp's largest rank key that has not been taken */
} row_stats;

/* Read the row once and fill *s. Returns the largest rank key of this thread. */
static __device__ u64 read_row(const rose_cuda_reports &a, const float *x, float max, float own,
                               row_stats *s)
{
    u64 mass = 0, n_above = 0, best = 0;
    if (threadIdx.x == 0) s->mass = s->n_above = 0;
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < a.vocab; at += BATCH * THREADS) {
        float v[BATCH];
        load_batch(v, x, at, a.vocab);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const uint32_t i = at + j * THREADS;
            const float weight = expf(v[j] - max);
            if (weight == weight) mass += __float2ull_rn(weight * UNIT);
            n_above += v[j] > own;
            if (i < a.vocab) best = ::max(best, rank_key(v[j], i));
        }
    }
    mass = warp_sum(mass);
    n_above = warp_sum(n_above);
    const u64 most = warp_max(best);
    if (threadIdx.x % 32 == 0) {
        s->best[threadIdx.x / 32] = most;
        atomicAdd(&s->mass, mass);
        atomicAdd(&s->n_above, n_above);
    }
    __syncthreads();
    return best;
}

/* The largest key below `taken` among the ids of the thread that owned `taken`. All lanes of that
 * thread's warp call this and get the result. */
static __device__ u64 next_in_share(const rose_cuda_reports &a, const float *x, u64 taken)
{
    const uint32_t first = ~(uint32_t)taken % THREADS;
    u64 best = 0;
    for (uint32_t i = first + threadIdx.x % 32 * THREADS; i < a.vocab; i += 32 * THREADS) {
        const u64 key = rank_key(__ldcg(x + i), i);
        if (key < taken) best = max(best, key);
    }
    return warp_max(best);
}

static __global__ void __launch_bounds__(THREADS) report_kernel(const rose_cuda_reports a)
{
    __shared__ row_stats s;
    const rose_cuda_report r = a.report[blockIdx.x];
    const float *x = a.logits + (size_t)r.row * a.ld_logits;
    const uint32_t warp = threadIdx.x / 32;

    pdl_launch();
    pdl_wait();
    uint32_t *ids = *a.ids;
    if (threadIdx.x == 0 && r.score_id != UINT32_MAX) ids[r.out] = a.sampled[r.out] = r.score_id;
    if (r.at == UINT32_MAX) return;
    /* NaN if the row has no number. */
    const float max = logit_of((uint32_t)(__ldcg(a.key + r.row) >> 32));
    const uint32_t id = r.score_id != UINT32_MAX ? r.score_id : __ldcg(ids + r.out);
    const float own = id < a.vocab ? __ldcg(x + id) : -INFINITY;
    u64 mine = read_row(a, x, max, own, &s);
    const double norm =
        isfinite(max) ? (double)max + log((double)s.mass * (1.0 / (double)UNIT)) : (double)NAN;
    rose_cuda_logprob *to = a.entries + r.at;
    if (threadIdx.x == 0) to[0] = {id, 1 + (uint32_t)s.n_above, (float)((double)own - norm)};
    for (uint32_t rank = 1; rank <= r.n_top; rank++) {
        const u64 taken = warp_max(s.best[threadIdx.x % 32]);
        const uint32_t top = ~(uint32_t)taken;
        if (threadIdx.x == 0) to[rank] = {top, rank, (float)((double)__ldcg(x + top) - norm)};
        __syncthreads(); /* every warp has read s.best */
        if (warp == top % THREADS / 32) {
            const u64 next = next_in_share(a, x, taken);
            if (threadIdx.x == top % THREADS) mine = next;
            const u64 most = warp_max(mine);
            if (threadIdx.x % 32 == 0) s.best[warp] = most;
        }
        __syncthreads();
    }
}

cudaError_t rose_cuda_reports_run(const rose_cuda_launch *at, const rose_cuda_reports *a)
{
    if (a->rows == 0) return cudaSuccess;
    return launch_kernel(at, report_kernel, dim3(a->rows), THREADS, 0, *a);
}
