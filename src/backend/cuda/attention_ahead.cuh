/* backend/cuda/attention_ahead.cuh - attention of many sequences of one row, from sm_90 on: splits
 * through a ring of bulk copies to shared memory a warp, so that no load waits for a product or a
 * merge. The same bits as attention.cu.
 *
 * ahead_kernel: a block a (head, item), three blocks a multiprocessor. list_kernel, of one half of
 * a step beside the other: one block a multiprocessor, which leaves products of the other half two
 * thirds of its shared memory, and most of its registers to all but 512 threads of 128. */
#ifndef ROSE_BACKEND_CUDA_ATTENTION_AHEAD_CUH
#define ROSE_BACKEND_CUDA_ATTENTION_AHEAD_CUH

#include "backend/cuda/attention.cuh"
#include "backend/cuda/launch.cuh"

enum { MULTIPROCESSORS = 132 /* of an H100: a matter of speed */ };

/* ---- one row: each warp's splits in a ring of its own ---- */

/* A lane's operands in a split in shared memory, laid out as its pages are. */
template <int HD> struct staged_kv {
    const uint4 *at;
};

template <int HD> ROSE_DEVICE uint4 k_of(const staged_kv<HD> &s, int page, int c)
{
    return s.at[(page * 2 * (HD / 16) + c) * 32];
}
template <int HD> ROSE_DEVICE uint4 v_of(const staged_kv<HD> &s, int page, int c)
{
    return s.at[((page * 2 + 1) * (HD / 16) + c) * 32];
}

#if __CUDA_ARCH__ >= 900
template <typename T, int HD>
ROSE_DEVICE void stage_split(uint4 *to, uint64_t *full, const rose_cuda_kv &kv, uint2 pages,
                             uint32_t head)
{
    const uint32_t bytes = 2 * ROSE_PAGE * HD * sizeof(T); /* K and V of a page */
    bulk_expect(full, 2 * bytes);
    bulk_copy(to, kv_block<T>(kv, pages.x, head), bytes, full);
    bulk_copy(to + bytes / sizeof *to, kv_block<T>(kv, pages.y, head), bytes, full);
}
#endif

/* Splits are merged at every turn of the rings. Three blocks a multiprocessor, of 72 KB of splits
 * at head_dim 64. */
template <int HD> struct ahead_parts {
    enum {
        WARPS = 3,
        SLOTS = HD > 64 ? 1 : 3,
        ROUND = WARPS * SLOTS,
        BYTES = 4 * ROSE_PAGE * HD * 2 /* of a split */
    };
    float sums[ROUND][HD + 2];
    uint64_t full[ROUND];
};

/* A block a (head, item). Warp w has the splits w, w + WARPS, ..; lane s of it looks their pages up
 * and copies those of its slot s. */
template <typename T, int HD>
static __global__ void __launch_bounds__(ahead_parts<HD>::WARPS * 32)
    ahead_kernel(const rose_cuda_attention a)
{
#if __CUDA_ARCH__ >= 900
    typedef ahead_parts<HD> parts;
    enum { WARPS = parts::WARPS, SLOTS = parts::SLOTS, ROUND = parts::ROUND };
    enum { THREADS = WARPS * 32, OUTS = (HD + THREADS - 1) / THREADS };
    extern __shared__ __align__(128) uint4 rings[];
    __shared__ parts p;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.x;
    const rose_cuda_item it = a.items[blockIdx.y];
    const uint32_t *table = a.tables + it.table;
    const uint32_t n_pages = it.pos / ROSE_PAGE + 1, n_splits = it.pos / SPLIT + 1;
    const uint32_t pos[2] = {it.pos, it.pos};
    uint4 *ring = rings + warp * (SLOTS * parts::BYTES / sizeof(uint4));
    uint64_t *full = p.full + warp * SLOTS;
    /* this lane's slot, and its split at this turn */
    uint4 *slot = ring + lane * (parts::BYTES / sizeof(uint4));
    uint32_t mine = lane * WARPS + warp;
    const bool copies = lane < SLOTS && it.n_rows > 0;
    uint2 pages = make_uint2(0, 0);

    pdl_launch();
    if (lane < SLOTS) bulk_init(&full[lane], 1);
    __syncthreads(); /* the barriers are set up; one of warps would do, but racecheck misses it */
    if (copies && mine < n_splits) pages = split_pages(table, mine, n_pages);
    /* The last split holds the row itself, which the kernel in front writes. */
    if (copies && mine + 1 < n_splits) stage_split<T, HD>(slot, &full[lane], a.kv, pages, head);
    pdl_wait();
    if (it.n_rows == 0) return;
    if (copies && mine + 1 == n_splits) stage_split<T, HD>(slot, &full[lane], a.kv, pages, head);

    uint32_t q[HD / 16][4];
    float max = -INFINITY, sum = 0, out[OUTS] = {}; /* of dims threadIdx.x, + THREADS .. */
    load_queries<T, HD>(q, a, it, head, g, t);
    for (uint32_t first = 0, turn = 0; first < n_splits; first += ROUND, turn ^= 1) {
        mine += ROUND;
        if (copies && mine < n_splits) pages = split_pages(table, mine, n_pages);
#pragma unroll 1
        for (uint32_t s = 0; s < SLOTS; s++) {
            const uint32_t index = s * WARPS + warp, split = first + index;
            if (split >= n_splits) break;
            float m[2], l[2], o[HD / 8][4];
            bulk_wait(&full[s], turn);
            attend<T, HD>(q, staged_kv<HD>{ring + s * (parts::BYTES / sizeof(uint4)) + lane}, split,
                          pos, (split + 1) * SPLIT <= it.pos + 1, a.scale, t, m, l, o);
            __syncwarp(); /* all lanes have read the slot */
            if (lane == s && mine < n_splits) stage_split<T, HD>(slot, &full[s], a.kv, pages, head);
            if (g == 0) keep_part<HD>(p.sums[index], m, l, o, t);
        }
        __syncthreads();
        const uint32_t n = min(n_splits - first, (uint32_t)ROUND);
        for (uint32_t i = 0; i < n; i++) {
            float x, y;
            merge_scale(&max, &sum, p.sums[i][HD], p.sums[i][HD + 1], &x, &y);
#pragma unroll
            for (int j = 0; j < OUTS; j++)
                if (threadIdx.x + j * THREADS < HD)
                    out[j] = fmaf(p.sums[i][threadIdx.x + j * THREADS], y, out[j] * x);
        }
        if (first + ROUND < n_splits) __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < OUTS; j++) {
        const uint32_t dim = threadIdx.x + j * THREADS;
        if (dim < a.kv.head_dim)
            from_f32(out[j] * __frcp_rn(sum),
                     static_cast<T *>(a.out) +
                         h_index(it.row, head * a.kv.head_dim + dim, a.out_k_pad));
    }
#endif
}

template <typename T, int HD>
static cudaError_t run_ahead(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    const size_t bytes = (size_t)ahead_parts<HD>::ROUND * ahead_parts<HD>::BYTES;
    static const cudaError_t allowed = cudaFuncSetAttribute(
        (const void *)ahead_kernel<T, HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (allowed != cudaSuccess) return allowed;
    return launch_kernel(at, ahead_kernel<T, HD>, dim3(a->kv.n_heads, a->n_items),
                         ahead_parts<HD>::WARPS * 32, bytes, *a);
}

/* ---- the same by few blocks, each of which has a list of (head, item) ---- */

enum { LIST_UNITS = 32 /* of a block */ };

template <int HD> struct list_parts {
    ahead_parts<HD> p;
    rose_cuda_item items[LIST_UNITS];
};
static_assert(ahead_parts<64>::WARPS * 32 <= ROSE_CUDA_BESIDE_THREADS, "what products leave it");

/* A warp's way through the splits of its block's units. */
typedef struct list_place {
    uint32_t unit, split;
} list_place;

ROSE_DEVICE uint32_t splits_of(const rose_cuda_item &it)
{
    return it.n_rows > 0 ? it.pos / SPLIT + 1 : 0;
}

ROSE_DEVICE void seek_split(list_place *at, const rose_cuda_item *items, uint32_t n_units,
                            uint32_t warp)
{
    while (at->unit < n_units && at->split >= splits_of(items[at->unit])) {
        at->unit++;
        at->split = warp;
    }
}

/* The row's operand alone: n_rows is 1 or 0. */
template <typename T, int HD>
ROSE_DEVICE void load_query(uint32_t q[HD / 16][2], const rose_cuda_attention &a,
                            const rose_cuda_item &it, uint32_t head, int g, int t)
{
    const uint32_t *at = reinterpret_cast<const uint32_t *>(
        static_cast<const T *>(a.q) + (size_t)it.row * a.d + head * a.kv.head_dim + t * 2);
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            q[c][e] = 0;
            if (g == 0 && it.n_rows > 0 && (uint32_t)(c * 16 + e * 8 + t * 2) < a.kv.head_dim)
                q[c][e] = __ldcg(at + c * 8 + e * 4);
        }
}

#if __CUDA_ARCH__ >= 900
/* As stage_split. The weights, which the other half is about to read, are what is to stay in the
 * L2. */
template <typename T, int HD>
ROSE_DEVICE void stage_once(uint4 *to, uint64_t *full, const rose_cuda_kv &kv, uint2 pages,
                            uint32_t head)
{
    const uint32_t bytes = 2 * ROSE_PAGE * HD * sizeof(T);
    bulk_expect(full, 2 * bytes);
    bulk_copy_once(to, kv_block<T>(kv, pages.x, head), bytes, full);
    bulk_copy_once(to + bytes / sizeof *to, kv_block<T>(kv, pages.y, head), bytes, full);
}
#endif

/* Block b has the units b, b + gridDim.x, ..: unit u is head u % n_heads of item u / n_heads. The
 * rings run on from unit to unit: what is copied next is two turns ahead of what is computed, its
 * pages looked up a turn before that. */
template <typename T, int HD>
static __global__ void __launch_bounds__(ahead_parts<HD>::WARPS * 32)
    list_kernel(const rose_cuda_attention a)
{
#if __CUDA_ARCH__ >= 900
    typedef ahead_parts<HD> parts;
    enum { WARPS = parts::WARPS, SLOTS = parts::SLOTS, ROUND = parts::ROUND };
    enum { THREADS = WARPS * 32, OUTS = (HD + THREADS - 1) / THREADS };
    extern __shared__ __align__(128) uint4 rings[];
    __shared__ list_parts<HD> l;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t n_heads = a.kv.n_heads, n_all = a.n_items * n_heads;
    const uint32_t n_units = (n_all - blockIdx.x + gridDim.x - 1) / gridDim.x;
    uint4 *ring = rings + warp * (SLOTS * parts::BYTES / sizeof(uint4));
    uint64_t *full = l.p.full + warp * SLOTS;
    uint4 *slot = ring + lane * (parts::BYTES / sizeof(uint4)); /* this lane's */

    if (threadIdx.x < n_units)
        l.items[threadIdx.x] = a.items[(blockIdx.x + threadIdx.x * gridDim.x) / n_heads];
    if (lane < SLOTS) bulk_init(&full[lane], 1);
    __syncthreads();

    /* What this lane's slot gets next: its pages, head, and whether there is such a split. */
    list_place look = {0, warp};
    uint2 pages = make_uint2(0, 0);
    uint32_t head = 0;
    bool more = false, last = false;
    seek_split(&look, l.items, n_units, warp);
    auto take = [&]() {
        more = look.unit < n_units;
        if (!more) return;
        const rose_cuda_item it = l.items[look.unit];
        last = look.split + 1 == splits_of(it);
        head = (blockIdx.x + look.unit * gridDim.x) % n_heads;
        pages = split_pages(a.tables + it.table, look.split, it.pos / ROSE_PAGE + 1);
    };
    auto step = [&]() {
        look.split += WARPS;
        seek_split(&look, l.items, n_units, warp);
    };
    auto stage = [&]() { stage_once<T, HD>(slot, &full[lane], a.kv, pages, head); };
#pragma unroll 1
    for (uint32_t s = 0; s < SLOTS; s++, step())
        if (lane == s) take();
    /* A last split holds the row itself, which the kernel in front writes. */
    if (more && !last) stage();
    pdl_wait();
    if (more && last) stage();
#pragma unroll 1
    for (uint32_t s = 0; s < SLOTS; s++, step())
        if (lane == s) take();

    uint32_t next[HD / 16][2], s = 0, turn = 0;
    load_query<T, HD>(next, a, l.items[0], blockIdx.x % n_heads, g, t);
#pragma unroll 1
    for (uint32_t unit = 0; unit < n_units; unit++) {
        const rose_cuda_item it = l.items[unit];
        const uint32_t pos[2] = {it.pos, it.pos}, n_splits = splits_of(it);
        const uint32_t index = blockIdx.x + unit * gridDim.x;
        uint32_t q[HD / 16][4];
        float max = -INFINITY, sum = 0, out[OUTS] = {}; /* of dims threadIdx.x, + THREADS .. */

#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            q[c][0] = next[c][0];
            q[c][2] = next[c][1];
            q[c][1] = q[c][3] = 0;
        }
        /* Kernels behind this one would wait in the places of those beside it. */
        if (unit + 1 == n_units)
            pdl_launch();
        else
            load_query<T, HD>(next, a, l.items[unit + 1], (index + gridDim.x) % n_heads, g, t);
#pragma unroll 1
        for (uint32_t first = 0; first < n_splits; first += ROUND) {
            const uint32_t n = min(n_splits - first, (uint32_t)ROUND);
#pragma unroll 1
            for (uint32_t i = warp; i < n; i += WARPS) {
                float m[2], l_[2], o[HD / 8][4];
                bulk_wait(&full[s], turn);
                attend<T, HD>(q, staged_kv<HD>{ring + s * (parts::BYTES / sizeof(uint4)) + lane},
                              first + i, pos, (first + i + 1) * SPLIT <= it.pos + 1, a.scale, t, m,
                              l_, o);
                __syncwarp(); /* all lanes have read the slot */
                if (lane == s) {
                    if (more) stage();
                    take();
                }
                step();
                if (g == 0) keep_part<HD>(l.p.sums[i], m, l_, o, t);
                if (++s == SLOTS) {
                    s = 0;
                    turn ^= 1;
                }
            }
            __syncthreads();
            for (uint32_t i = 0; i < n; i++) {
                float x, y;
                merge_scale(&max, &sum, l.p.sums[i][HD], l.p.sums[i][HD + 1], &x, &y);
#pragma unroll
                for (int j = 0; j < OUTS; j++)
                    if (threadIdx.x + j * THREADS < HD)
                        out[j] = fmaf(l.p.sums[i][threadIdx.x + j * THREADS], y, out[j] * x);
            }
            __syncthreads();
        }
#pragma unroll
        for (int j = 0; j < OUTS; j++) {
            const uint32_t dim = threadIdx.x + j * THREADS;
            if (n_splits > 0 && dim < a.kv.head_dim)
                from_f32(out[j] * __frcp_rn(sum),
                         static_cast<T *>(a.out) +
                             h_index(it.row, index % n_heads * a.kv.head_dim + dim, a.out_k_pad));
        }
    }
#endif
}

template <typename T, int HD>
static cudaError_t run_list(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    const size_t bytes = (size_t)ahead_parts<HD>::ROUND * ahead_parts<HD>::BYTES;
    static const cudaError_t allowed = cudaFuncSetAttribute(
        (const void *)list_kernel<T, HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const uint32_t n_units = a->n_items * a->kv.n_heads,
                   least = (n_units + LIST_UNITS - 1) / LIST_UNITS;
    uint32_t n = least > MULTIPROCESSORS ? least : MULTIPROCESSORS;
    if (n > n_units) n = n_units;
    if (allowed != cudaSuccess) return allowed;
    return launch_kernel(at, list_kernel<T, HD>, dim3(n), ahead_parts<HD>::WARPS * 32, bytes, *a);
}

#endif
