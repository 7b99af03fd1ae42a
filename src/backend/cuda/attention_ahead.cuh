/* backend/cuda/attention_ahead.cuh - attention of many sequences of one row, from sm_90 on. A warp
 * has (head, item) units of its own and takes their splits in order from a ring of bulk copies,
 * which runs on from unit to unit: no load waits for a product, and no warp for another. (Warps
 * that share a unit merge their splits in rounds, and one split more than a round costs another.)
 * The same bits as attention.cu.
 *
 * Of one half of a step beside the other: one block a multiprocessor, of 72 KB (96 with six warps)
 * of its shared memory, which leaves products of the other half room. */
#ifndef ROSE_BACKEND_CUDA_ATTENTION_AHEAD_CUH
#define ROSE_BACKEND_CUDA_ATTENTION_AHEAD_CUH

#include "backend/cuda/attention.cuh"
#include "backend/cuda/launch.cuh"

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

template <int HD> static constexpr uint32_t SPLIT_SIZE = 4 * ROSE_PAGE *HD * 2;

ROSE_DEVICE uint32_t splits_of(const rose_cuda_item &it)
{
    return it.n_rows > 0 ? it.pos / SPLIT + 1 : 0;
}

#if __CUDA_ARCH__ >= 900
template <typename T, int HD>
ROSE_DEVICE void stage_split(uint4 *to, uint64_t *full, const rose_cuda_kv &kv, uint2 pages,
                             uint32_t head)
{
    const uint32_t bytes = SPLIT_SIZE<HD> / 2; /* K and V of a page */
    bulk_expect(full, 2 * bytes);
    bulk_copy(to, kv_block<T>(kv, pages.x, head), bytes, full);
    bulk_copy(to + bytes / sizeof *to, kv_block<T>(kv, pages.y, head), bytes, full);
}

/* The same of what is the first to leave the L2: weights are what is to stay. */
template <typename T, int HD>
ROSE_DEVICE void stage_once(uint4 *to, uint64_t *full, const rose_cuda_kv &kv, uint2 pages,
                            uint32_t head)
{
    const uint32_t bytes = SPLIT_SIZE<HD> / 2;
    bulk_expect(full, 2 * bytes);
    bulk_copy_once(to, kv_block<T>(kv, pages.x, head), bytes, full);
    bulk_copy_once(to + bytes / sizeof *to, kv_block<T>(kv, pages.y, head), bytes, full);
}
#endif

/* Of a warp, at most. Beside the other half six warps have two at most. */
template <int WARPS> static constexpr int AHEAD_UNITS = WARPS > 3 ? 16 : 32;

/* What a unit's row brings: a lane's part of q, for lanes of g 0; and of its k and v two dims each,
 * with the page that they are for. */
template <int HD> struct ahead_row {
    enum { N = HD > 64 ? HD / 64 : 1 };
    uint32_t q[HD / 16][2], k[N], v[N], page;
};

/* After pdl_wait. n_rows is 1 or 0. */
template <typename T, int HD>
ROSE_DEVICE void load_row(ahead_row<HD> *r, const rose_cuda_attention &a, const rose_cuda_item &it,
                          uint32_t head, uint32_t lane)
{
    const uint32_t first = head * a.kv.head_dim, t = lane % 4;
    const T *q = static_cast<const T *>(a.q) + (size_t)it.row * a.d + first;
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t dim = c * 16 + e * 8 + t * 2;
            r->q[c][e] = 0;
            if (lane < 4 && it.n_rows > 0 && dim < a.kv.head_dim)
                r->q[c][e] = __ldcg(reinterpret_cast<const uint32_t *>(q + dim));
        }
    if (a.kv_rows == NULL || it.n_rows == 0) return;
    const T *kv = static_cast<const T *>(a.kv_rows) + (size_t)it.row * 2 * a.d + first;
#pragma unroll
    for (int i = 0; i < ahead_row<HD>::N; i++) {
        const uint32_t dim = (lane + i * 32) * 2;
        r->k[i] = r->v[i] = 0;
        if (dim >= a.kv.head_dim) continue;
        r->k[i] = __ldcg(reinterpret_cast<const uint32_t *>(kv + dim));
        r->v[i] = __ldcg(reinterpret_cast<const uint32_t *>(kv + a.d + dim));
    }
    r->page = __ldcg(a.tables + it.table + it.pos / ROSE_PAGE);
}

/* The row's own K and V to where they belong in a page: K, then V. */
template <typename T, int HD>
ROSE_DEVICE void put_own(T *page, const ahead_row<HD> &r, const rose_cuda_attention &a,
                         uint32_t pos, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < ahead_row<HD>::N; i++) {
        const uint32_t dim = (lane + i * 32) * 2;
        if (dim < a.kv.head_dim)
            put_dims(page, page + ROSE_PAGE * a.kv.hd_pad, pos % ROSE_PAGE, dim, r.k[i], r.v[i]);
    }
}

/* Warp w of block b has the units b + w gridDim.x + i gridDim.x WARPS: unit u is head u % n_heads
 * of item u / n_heads. Lane s < SLOTS of it copies to slot s of its ring: what is copied next is
 * one turn ahead of what is computed, its pages looked up a turn before that. */
template <typename T, int HD, int WARPS, int SLOTS, bool BESIDE>
static __global__ void __launch_bounds__(WARPS * 32) ahead_kernel(const rose_cuda_attention a)
{
#if __CUDA_ARCH__ >= 900
    enum { QUADS = SPLIT_SIZE<HD> / sizeof(uint4) };
    extern __shared__ __align__(128) uint4 rings[];
    __shared__ uint64_t barriers[WARPS * SLOTS];
    __shared__ rose_cuda_item all_items[WARPS][AHEAD_UNITS<WARPS>];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const uint32_t n_heads = a.kv.n_heads, n_all = a.n_items * n_heads;
    const uint32_t me = blockIdx.x + warp * gridDim.x, n_warps = gridDim.x * WARPS;
    const uint32_t n_units = me < n_all ? (n_all - me + n_warps - 1) / n_warps : 0;
    uint4 *ring = rings + warp * (SLOTS * QUADS), *slot = ring + lane * QUADS /* this lane's */;
    uint64_t *full = barriers + warp * SLOTS;
    rose_cuda_item *items = all_items[warp];

    if (!BESIDE) pdl_launch();
    if (lane < n_units) items[lane] = a.items[(me + lane * n_warps) / n_heads];
    if (lane < SLOTS) bulk_init(&full[lane], 1);
    __syncthreads(); /* one of warps would do, but racecheck misses it */

    /* What this lane's slot gets next: its pages, head, and whether there is such a split. */
    uint32_t unit_next = 0, split_next = 0, head = 0;
    uint2 pages = make_uint2(0, 0);
    bool more = false, last = false;
    auto seek = [&]() {
        while (unit_next < n_units && split_next >= splits_of(items[unit_next])) {
            unit_next++;
            split_next = 0;
        }
    };
    auto step = [&]() {
        split_next++;
        seek();
    };
    auto take = [&]() {
        more = unit_next < n_units;
        if (!more) return;
        const rose_cuda_item it = items[unit_next];
        last = split_next + 1 == splits_of(it);
        head = (me + unit_next * n_warps) % n_heads;
        pages = split_pages(a.tables + it.table, split_next, it.pos / ROSE_PAGE + 1);
    };
    auto stage = [&]() { stage_once<T, HD>(slot, &full[lane], a.kv, pages, head); };
    seek();
#pragma unroll 1
    for (uint32_t s = 0; s < SLOTS; s++, step())
        if (lane == s) take();
    /* A last split holds the row itself, which the kernel in front writes, if not to kv_rows. */
    const bool early = more && (!last || a.kv_rows != NULL);
    if (early) stage();
    pdl_wait();
    if (more && !early) stage();
#pragma unroll 1
    for (uint32_t s = 0; s < SLOTS; s++, step())
        if (lane == s) take();

    ahead_row<HD> next;
    uint32_t s = 0, turn = 0;
    if (n_units > 0) load_row<T, HD>(&next, a, items[0], me % n_heads, lane);
#pragma unroll 1
    for (uint32_t unit = 0; unit < n_units; unit++) {
        const rose_cuda_item it = items[unit];
        const uint32_t pos[2] = {it.pos, it.pos}, n_splits = splits_of(it);
        const uint32_t index = me + unit * n_warps;
        const ahead_row<HD> row = next;
        uint32_t q[HD / 16][4];
        float max = -INFINITY, sum = 0, out[HD / 8][2] = {}; /* of row 0: lanes of g 0 */

#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            q[c][0] = row.q[c][0];
            q[c][2] = row.q[c][1];
            q[c][1] = q[c][3] = 0;
        }
        if (unit + 1 < n_units)
            load_row<T, HD>(&next, a, items[unit + 1], (index + n_warps) % n_heads, lane);
        else if (BESIDE) /* kernels behind this one would wait in the places of those beside it */
            pdl_launch();
#pragma unroll 1
        for (uint32_t split = 0; split < n_splits; split++) {
            float m[2], l[2], o[HD / 8][4], x, y;
            uint4 *at = ring + s * QUADS;
            bulk_wait(&full[s], turn);
            if (split + 1 == n_splits && a.kv_rows != NULL) {
                T *page = reinterpret_cast<T *>(at) + it.pos / ROSE_PAGE % 2 * (2 * ROSE_PAGE * HD);
                put_own<T, HD>(page, row, a, it.pos, lane);
                put_own<T, HD>(kv_block<T>(a.kv, row.page, index % n_heads), row, a, it.pos, lane);
                bulk_written();
                __syncwarp();
            }
            attend<T, HD>(q, staged_kv<HD>{at + lane}, split, pos,
                          (split + 1) * SPLIT <= it.pos + 1, a.scale, t, m, l, o);
            __syncwarp(); /* all lanes have read the slot */
            if (lane == s) {
                if (more) stage();
                take();
            }
            step();
            merge_scale(&max, &sum, m[0], l[0], &x, &y);
#pragma unroll
            for (int j = 0; j < HD / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    out[j][e] = fmaf(o[j][e], y, out[j][e] * x);
            if (++s == SLOTS) {
                s = 0;
                turn ^= 1;
            }
        }
        if (lane >= 4 || n_splits == 0) continue;
        const float inv = __frcp_rn(sum);
        T *to = static_cast<T *>(a.out) +
                h_index(it.row, index % n_heads * a.kv.head_dim + t * 2, a.out_k_pad);
#pragma unroll
        for (int j = 0; j < HD / 8; j++) /* 8 dims on are a block on */
            if (j * 8 + t * 2 < a.kv.head_dim)
                store_pair(to + j * 64, out[j][0] * inv, out[j][1] * inv);
    }
#endif
}

template <typename T, int HD, int WARPS, int SLOTS, bool BESIDE>
static cudaError_t launch_ahead(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    const size_t bytes = (size_t)WARPS * SLOTS * SPLIT_SIZE<HD>;
    const cudaError_t allowed =
        cudaFuncSetAttribute((const void *)ahead_kernel<T, HD, WARPS, SLOTS, BESIDE>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    constexpr uint32_t UNITS = AHEAD_UNITS<WARPS> * WARPS;
    static_assert(WARPS * SLOTS * (SPLIT_SIZE<HD> + sizeof(uint64_t)) +
                          UNITS * sizeof(rose_cuda_item) <=
                      99 * 1024,
                  "more shared memory than a block has on every chip from sm_90 on");
    const uint32_t n_units = a->n_items * a->kv.n_heads, least = (n_units + UNITS - 1) / UNITS;
    uint32_t n = (BESIDE ? 1 : 3) * at->device->sms;
    if (n < least) n = least;
    if (n > n_units) n = n_units;
    if (allowed != cudaSuccess) return allowed;
    return launch_kernel(at, ahead_kernel<T, HD, WARPS, SLOTS, BESIDE>, dim3(n), WARPS * 32, bytes,
                         *a);
}

/* Beside the other half, twice the warps where half of them would have a second unit and the others
 * none (96 sequences -5 %; 128, where all have two, +3 %). */
template <typename T, int HD>
static cudaError_t run_ahead(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    enum { WARPS = ROSE_CUDA_BESIDE_THREADS / 32, SLOTS = HD > 64 ? 1 : 3, FEW = HD > 64 ? 1 : 2 };
    const uint32_t n_units = a->n_items * a->kv.n_heads, at_once = WARPS * at->device->sms;
    if (!at->beside) return launch_ahead<T, HD, WARPS, SLOTS, false>(at, a);
    if (n_units > at_once && n_units <= at_once * 7 / 4)
        return launch_ahead<T, HD, 2 * WARPS, FEW, true>(at, a);
    return launch_ahead<T, HD, WARPS, SLOTS, true>(at, a);
}

#endif
