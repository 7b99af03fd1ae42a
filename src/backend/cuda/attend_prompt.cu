/* backend/cuda/attend_prompt.cu - attention of items of several rows (attend.h). A thread block has
 * 64 pairs (query row, head of the group) of one item and KV head, 16 for each of four warps, as
 * the rows of mma.sync. It copies K and V of an inner block as tiles to a ring in shared memory, a
 * page for each warp. Bound by the tensor cores.
 *
 * 256 dims need 160 KB of shared memory. Where a GPU has less, blocks have two warps with 16 rows
 * each, and room for one tile at a time. */
#include "backend/cuda/attend_prompt.cuh"
#include "backend/cuda/launch.cuh"

enum {
    WARPS = 4,
    WIDE_PAIRS = 49 /* of an item: all warps of a warpgroup have rows */
};

template <int HD> constexpr int FEWER_WARPS = HD > 128 ? 2 : WARPS;
/* Tiles of K or V in the ring, with W warps. */
template <int HD, int W> constexpr int TILES = HD > 128 ? W / 2 : 3;
/* 8-dim tiles that a warp multiplies at a time, so that their sums fit in registers. */
template <int HD> constexpr int DIM_TILES = HD > 96 ? 8 : HD / 8;
/* The ring, q, and O of the splits before the current one. */
template <int HD, int W>
constexpr uint32_t SHARED = TILES<HD, W> *TILE<HD> + W *(PIECE<HD> + 16 * HD * 4);

/* Sums over head_dim of the warp's rows with pages j0 .. j1 - 1 of K. */
template <typename T, int HD>
ROSE_DEVICE void tile_scores(float x[INNER_PAGES][2][4], uint32_t q_at, uint32_t at, uint32_t j0,
                             uint32_t j1, uint32_t lane)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++) {
        uint32_t q[4];
        load_q<HD>(q, q_at, c, lane);
#pragma unroll
        for (uint32_t j = 0; j < INNER_PAGES; j++)
            if (j >= j0 && j < j1) add_scores<T>(x[j], q, at + j * PIECE<HD>, c, HD * 16, lane);
    }
}

/* Multiplies the probabilities of an inner block with pages j0 .. j1 - 1 of V and merges. */
template <typename T, int HD>
ROSE_DEVICE void merge_values(prompt_sums<HD> *s, const uint32_t prob[INNER_PAGES][4], uint32_t at,
                              const float a[2], const float b[2], uint32_t j0, uint32_t j1,
                              uint32_t lane)
{
    constexpr int N = DIM_TILES<HD>;
#pragma unroll
    for (int first = 0; first < HD / 8; first += N) {
        float o[N][4] = {};
#pragma unroll
        for (uint32_t j = 0; j < INNER_PAGES; j++)
            if (j >= j0 && j < j1)
                add_values<T, N>(o, prob[j], at + j * PIECE<HD>, first, HD * 16, lane);
#pragma unroll
        for (int i = 0; i < N * 4; i++) {
            float *to = &s->o[first + i / 4][i % 4];
            *to = fmaf(o[i / 4][i % 4], b[i / 2 % 2], *to * a[i / 2 % 2]);
        }
    }
}

/* The ring of tiles: even ones are K, odd ones V. A warp copies its pages of each tile. */
template <int HD, int W> struct tile_ring {
    const uint32_t *table;
    uint64_t *full;                        /* [TILES] */
    uint32_t at;                           /* shared address */
    uint32_t head, lo, end, first, blocks; /* positions that the block's rows see; inner blocks */
    uint32_t next, slot, parity;           /* next: how many tiles are requested */
    uint32_t id[INNER_PAGES / W];          /* of the warp's pages of the next tile */
};

template <int HD, int W> ROSE_DEVICE bool tile_has(const tile_ring<HD, W> &r, uint32_t page)
{
    return page >= r.lo / ROSE_PAGE && page * ROSE_PAGE < r.end;
}

template <int HD, int W> ROSE_DEVICE void tile_ids(tile_ring<HD, W> *r, uint32_t block)
{
#pragma unroll
    for (uint32_t i = 0; i < INNER_PAGES / W; i++) {
        const uint32_t page = block * INNER_PAGES + i * W + threadIdx.x / 32;
        r->id[i] = tile_has(*r, page) ? r->table[page] : 0;
    }
}

template <typename T, int HD, int W>
ROSE_DEVICE void tile_fetch(tile_ring<HD, W> *r, const rose_cuda_attend &a, uint32_t slot)
{
    const uint32_t block = r->first + r->next / 2, warp = threadIdx.x / 32;
#pragma unroll
    for (uint32_t i = 0; i < INNER_PAGES / W; i++) {
        const uint32_t j = i * W + warp;
        const T *from = page_of<T>(a.kv, r->id[i], r->head) + r->next % 2 * (ROSE_PAGE * HD);
        ring_copy(r->at + slot * TILE<HD> + j * PIECE<HD>,
                  tile_has(*r, block * INNER_PAGES + j) ? from : NULL, PIECE<HD>, &r->full[slot],
                  threadIdx.x % 32);
    }
    if (r->next++ % 2 != 0) tile_ids(r, block + 1);
}

/* Waits for the next tile and returns its address. The whole block. */
template <int HD, int W> ROSE_DEVICE uint32_t tile_take(const tile_ring<HD, W> &r)
{
    ring_wait<(TILES<HD, W> - 1) * (INNER_PAGES / W) + 1>(&r.full[r.slot], r.parity);
    ring_meet_block();
    return r.at + r.slot * TILE<HD>;
}

template <typename T, int HD, int W>
ROSE_DEVICE void tile_done(tile_ring<HD, W> *r, const rose_cuda_attend &a)
{
    __syncthreads();
    tile_fetch<T>(r, a, r->slot);
    if (++r->slot == TILES<HD, W>) r->slot = 0, r->parity ^= 1;
}

/* The inner blocks of the warp's 16 pairs, from pair `mine` on. */
template <typename T, int HD, int W>
ROSE_DEVICE void attend_rows(prompt_sums<HD> *s, tile_ring<HD, W> *r, const rose_cuda_attend &a,
                             const rose_cuda_item &item, uint32_t mine, uint32_t q_at,
                             uint32_t group, const attend_score &by)
{
    const uint32_t lane = threadIdx.x % 32;
    const prompt_row rows[2] = {row_of(a, item, mine + lane / 4, group),
                                row_of(a, item, mine + lane / 4 + 8, group)};
    const uint32_t los[2] = {rows[0].lo, rows[1].lo}, ends[2] = {rows[0].end, rows[1].end};
    const prompt_row seen = rows_of(a, item, mine, mine + 16, group);
    for (uint32_t block = r->first; block < r->blocks; block++) {
        const uint32_t p0 = block * ROSE_ATTEND_INNER;
        const bool sees = p0 < seen.end && p0 + ROSE_ATTEND_INNER > seen.lo;
        const uint32_t j0 = seen.lo > p0 ? (seen.lo - p0) / ROSE_PAGE : 0;
        const uint32_t j1 =
            (min(seen.end, p0 + ROSE_ATTEND_INNER) - p0 + ROSE_PAGE - 1) / ROSE_PAGE;
        uint32_t prob[INNER_PAGES][4];
        float m[2], l[2], fa[2], fb[2], x[INNER_PAGES][2][4] = {};
        if (block % SPLIT_BLOCKS == 0 && block > r->first) end_split<HD, W>(s, false);
        uint32_t at = tile_take(*r);
        if (sees) tile_scores<T, HD>(x, q_at, at, j0, j1, lane);
        tile_done<T>(r, a);
        if (sees) {
            soften<T, 2>(x, prob, m, l, los, ends, p0, by, lane % 4);
            merge_block(s, m, l, fa, fb);
        }
        at = tile_take(*r);
        if (sees) merge_values<T, HD>(s, prob, at, fa, fb, j0, j1, lane);
        tile_done<T>(r, a);
    }
    end_split<HD, W>(s, true);
}

template <typename T, int HD, int W>
static __global__ void __launch_bounds__(W * 32, HD > 128 ? 1 : 2)
    prompt_kernel(const rose_cuda_attend a, const attend_score by, const uint32_t tiles)
{
    constexpr int N = TILES<HD, W>;
    ROSE_ATTEND_MEMORY(smem);
    __shared__ uint64_t full[N];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.n_q / a.kv.n_heads;
    const uint32_t work = blockIdx.x / a.kv.n_heads;
    /* Later items and tiles have longer contexts in general: they begin first. */
    const uint32_t r0 = (tiles - 1 - work % tiles) * W * 16, mine = r0 + warp * 16;
    const rose_cuda_item item = a.items[a.n_items - 1 - work / tiles];
    pdl_launch();
    pdl_wait();
    if (r0 >= item.n_rows * group) return;
    if (threadIdx.x < N) ring_init(&full[threadIdx.x], INNER_PAGES);
    __syncthreads();

    const prompt_row all = rows_of(a, item, r0, r0 + W * 16, group);
    uint8_t *q = smem + N * TILE<HD> + warp * PIECE<HD>;
    tile_ring<HD, W> r = {a.tables + item.table, full, shared_at(smem)};
    r.head = blockIdx.x % a.kv.n_heads;
    r.lo = all.lo;
    r.end = all.end;
    r.first = all.lo / ROSE_ATTEND_INNER;
    r.blocks = (all.end - 1) / ROSE_ATTEND_INNER + 1;
    tile_ids(&r, r.first);
    for (uint32_t i = 0; i < N; i++)
        tile_fetch<T>(&r, a, i);
    copy_q<T, HD>(q, a, item, mine, r.head, group, lane);
    prompt_sums<HD> s;
    begin_sums(&s, reinterpret_cast<float *>(smem + N * TILE<HD> + W * PIECE<HD>));
    attend_rows<T>(&s, &r, a, item, mine, shared_at(q), group, by);
    put_rows<T, HD>(a, item, s, mine, r.head, group, lane);
}

template <typename T, int HD, int W>
static cudaError_t run_warps(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const uint32_t group = a->n_q / a->kv.n_heads;
    const uint32_t tiles = (a->item_rows * group + W * 16 - 1) / (W * 16);
    return launch_kernel(l, prompt_kernel<T, HD, W>, dim3(a->n_items * tiles * a->kv.n_heads),
                         W * 32, SHARED<HD, W>, *a, score_of(a), tiles);
}

template <typename T>
static cudaError_t run_type(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    switch (a->kv.hd_pad) {
#define CASE(HD)                                                                                   \
    case HD:                                                                                       \
        return HD > 128 && l->device->shared_max < SHARED<HD, WARPS> + 1024                        \
                   ? run_warps<T, HD, FEWER_WARPS<HD>>(l, a)                                       \
                   : run_warps<T, HD, WARPS>(l, a);
        ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    default:
        return cudaErrorNotSupported;
    }
}

extern "C" cudaError_t rose_cuda_prompt_run(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    if (a->n_items == 0 || a->item_rows == 0) return cudaSuccess;
    if (a->n_q / a->kv.n_heads > ROSE_ATTEND_MAX_GROUP || l->type == ROSE_F32)
        return cudaErrorNotSupported;
    if (l->device->hopper && (l->without & ROSE_CUDA_WITHOUT_WIDE) == 0 &&
        (a->kv.hd_pad == 64 || a->kv.hd_pad == 128) &&
        a->item_rows * (a->n_q / a->kv.n_heads) >= WIDE_PAIRS)
        return rose_cuda_prompt_wide(l, a);
    return l->type == ROSE_F16 ? run_type<__half>(l, a) : run_type<__nv_bfloat16>(l, a);
}

template <typename T, int HD, int W> static cudaError_t allow_shared(void)
{
    return cudaFuncSetAttribute((const void *)prompt_kernel<T, HD, W>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED<HD, W>);
}

/* A GPU may have too little shared memory for four warps with 256 dims. */
template <typename T, int HD> static cudaError_t prepare(void)
{
    const cudaError_t e = allow_shared<T, HD, WARPS>();
    if (HD <= 128 || (e != cudaSuccess && e != cudaErrorInvalidValue)) return e;
    cudaGetLastError();
    return allow_shared<T, HD, FEWER_WARPS<HD>>();
}

extern "C" cudaError_t rose_cuda_attend_prepare(void)
{
    cudaError_t e = rose_cuda_decode_prepare();
    if (e == cudaSuccess) e = rose_cuda_prompt_wide_prepare();
#define CASE(HD)                                                                                   \
    if (e == cudaSuccess) e = prepare<__half, HD>();                                               \
    if (e == cudaSuccess) e = prepare<__nv_bfloat16, HD>();
    ROSE_ATTEND_CLASSES(CASE)
#undef CASE
    return e;
}
