/* backend/cuda/attend_wide.cu - prefill with wgmma, for head_dim 64 and 128 (attend.h). A thread
 * block works on one item and one KV head. Each of its G warpgroups has 64 pairs (query row, query
 * head). One warp of an extra warpgroup copies the K and V tiles of each inner block to a ring that
 * all G warpgroups read.
 * While one warpgroup computes its softmax, another one uses the tensor cores. The bits are those
 * of attend_prompt.cu: a position that a row does not see counts 0 exactly. */
#include "backend/cuda/attend_hopper.cuh"
#include "backend/cuda/attend_prompt.cuh"
#include "backend/cuda/launch.cuh"

template <int HD> constexpr int GROUPS = HD > 64 ? 2 : 3;
/* Stages of the ring. Two blocks of one warpgroup share an SM. */
template <int HD, int G> constexpr int TILES = HD <= 64 ? 8 : G > 1 ? 6 : 4;
/* The ring, q, and O of the splits before the current one. */
template <int HD, int G>
constexpr uint32_t SHARED = TILES<HD, G> *TILE<HD> + G *(64 * HD * 2 + 64 * HD * 4);
/* Registers of the threads that multiply. */
template <int HD, int G> constexpr int REGISTERS = G == 1 ? 232 : HD > 64 ? 240 : 160;

#if ROSE_HOPPER

/* Positions that the pairs of the block see, and where its tiles are. */
typedef struct wide_ring {
    uint32_t at;            /* shared address of the tiles: K and V of a block, then the next one */
    uint64_t *full, *empty; /* [TILES] */
    uint32_t lo, end, first, blocks;
    uint32_t slot, parity;
} wide_ring;

template <int N> ROSE_DEVICE void ring_step(wide_ring *r)
{
    if (++r->slot == N) r->slot = 0, r->parity ^= 1;
}

/* The warp that copies: a lane for each page of a tile. */
template <typename T, int HD, int N>
ROSE_DEVICE void copy_tiles(wide_ring r, const rose_cuda_attend &a, const uint32_t *table,
                            uint32_t head, uint32_t lane)
{
    for (uint32_t i = 0; i < (r.blocks - r.first) * 2; i++) {
        const uint32_t page = (r.first + i / 2) * INNER_PAGES + lane;
        const uint32_t full = shared_address(&r.full[r.slot]);
        const bool there =
            lane < INNER_PAGES && page >= r.lo / ROSE_PAGE && page * ROSE_PAGE < r.end;
        const T *from = page_of<T>(a.kv, there ? table[page] : 0, head) + i % 2 * (ROSE_PAGE * HD);
        if (i >= N) barrier_wait(shared_address(&r.empty[r.slot]), r.parity ^ 1);
        __syncwarp();
        if (there) {
            barrier_expect(full, PIECE<HD>);
            copy_piece(r.at + r.slot * TILE<HD> + lane * PIECE<HD>, from, PIECE<HD>, full);
        } else if (lane < INNER_PAGES) {
            barrier_arrive(full);
        }
        ring_step<N>(&r);
    }
}

/* The warp needs the tile no longer. */
template <int N> ROSE_DEVICE void tile_done(wide_ring *r, uint32_t lane)
{
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&r->empty[r->slot]));
    ring_step<N>(r);
}

template <int HD> ROSE_DEVICE uint32_t tile_take(const wide_ring &r)
{
    barrier_wait(shared_address(&r.full[r.slot]), r.parity);
    return r.at + r.slot * TILE<HD>;
}

/* Sums over head_dim of 64 rows of q with a tile of K. */
template <typename T, int HD>
ROSE_DEVICE void tile_scores(float (&x)[32], uint32_t q_at, uint32_t at)
{
    const uint64_t q = core_matrices(q_at, HD * 16), k = core_matrices(at, HD * 16);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        wgmma(x, q + c * 16, k + c * 16, c != 0, static_cast<const T *>(NULL));
    wgmma_commit();
    wgmma_wait<0>();
    keep_here(x);
}

/* Products of the probabilities with pages j0 .. j1 - 1 of a tile of V. */
template <typename T, int HD>
ROSE_DEVICE void tile_values(float (&o)[HD / 2], const uint32_t prob[INNER_PAGES][4], uint32_t at,
                             uint32_t j0, uint32_t j1)
{
    wgmma_fence();
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++)
        if (j >= j0 && j < j1)
            wgmma_values(o, prob[j], value_cores(at + j * PIECE<HD>, HD * 16), j != j0,
                         static_cast<const T *>(NULL));
    wgmma_commit();
    wgmma_wait<0>();
    keep_here(o);
}

/* The inner blocks of a warpgroup's 64 pairs, from pair `mine` on. */
template <typename T, int HD, int G>
ROSE_DEVICE void attend_rows(prompt_sums<HD> *s, wide_ring r, const rose_cuda_attend &a,
                             const rose_cuda_item &item, uint32_t mine, uint32_t q_at,
                             uint32_t group, const attend_score &by)
{
    constexpr int W = G * 4, N = TILES<HD, G>;
    const uint32_t lane = threadIdx.x % 32, g = mine + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const prompt_row rows[2] = {row_of(a, item, g, group), row_of(a, item, g + 8, group)};
    const uint32_t los[2] = {rows[0].lo, rows[1].lo}, ends[2] = {rows[0].end, rows[1].end};
    const prompt_row seen = rows_of(a, item, mine, mine + 64, group);
    for (uint32_t block = r.first; block < r.blocks; block++) {
        const uint32_t p0 = block * ROSE_ATTEND_INNER;
        const bool sees = p0 < seen.end && p0 + ROSE_ATTEND_INNER > seen.lo;
        const uint32_t j0 = seen.lo > p0 ? (seen.lo - p0) / ROSE_PAGE : 0;
        const uint32_t j1 =
            (min(seen.end, p0 + ROSE_ATTEND_INNER) - p0 + ROSE_PAGE - 1) / ROSE_PAGE;
        uint32_t prob[INNER_PAGES][4];
        float m[2], l[2], fa[2], fb[2], x[INNER_PAGES][2][4], o[HD / 2];
        if (block % SPLIT_BLOCKS == 0 && block > r.first) end_split<HD, W>(s, false);
        uint32_t at = tile_take<HD>(r);
        if (sees) tile_scores<T, HD>(reinterpret_cast<float(&)[32]>(x), q_at, at);
        tile_done<N>(&r, lane);
        if (sees) {
            soften<T, 2>(x, prob, m, l, los, ends, p0, by, lane % 4);
            merge_block(s, m, l, fa, fb);
        }
        at = tile_take<HD>(r);
        if (sees) tile_values<T, HD>(o, prob, at, j0, j1);
        tile_done<N>(&r, lane);
        if (!sees) continue;
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            s->o[i / 4][i % 4] = fmaf(o[i], fb[i / 2 % 2], s->o[i / 4][i % 4] * fa[i / 2 % 2]);
    }
    end_split<HD, W>(s, true);
}

#endif

template <typename T, int HD, int G>
static __global__ void __launch_bounds__(G * 128 + 128, G > 1 ? 1 : 2)
    wide_kernel(const rose_cuda_attend a, const attend_score by, const uint32_t tiles)
{
#if ROSE_HOPPER
    constexpr int N = TILES<HD, G>;
    ROSE_BLOCK_MEMORY(smem);
    __shared__ uint64_t full[N], empty[N];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.n_q / a.kv.n_heads;
    const uint32_t head = blockIdx.x % a.kv.n_heads, work = blockIdx.x / a.kv.n_heads;
    /* Later tiles have longer contexts in general: they begin first. */
    const uint32_t r0 = (tiles - 1 - work % tiles) * G * 64;
    const rose_cuda_item item = a.items[a.n_items - 1 - work / tiles];
    pdl_launch();
    if (threadIdx.x < N) {
        barrier_init(shared_address(&full[threadIdx.x]), INNER_PAGES);
        barrier_init(shared_address(&empty[threadIdx.x]), G * 4);
        barrier_init_done();
    }
    pdl_wait();
    if (r0 >= item.n_rows * group) return;
    const prompt_row all = rows_of(a, item, r0, r0 + G * 64, group);
    uint8_t *q = smem + N * TILE<HD>;
    if (warp < G * 4)
        copy_q<T, HD>(q + warp * PIECE<HD>, a, item, r0 + warp * 16, head, group, lane);
    ring_written();
    __syncthreads();
    const wide_ring r = {shared_address(smem),
                         full,
                         empty,
                         all.lo,
                         all.end,
                         all.lo / ROSE_ATTEND_INNER,
                         (all.end - 1) / ROSE_ATTEND_INNER + 1,
                         0,
                         0};
    if (warpgroup() == G) {
        fewer_registers<24>();
        if (warp == G * 4) copy_tiles<T, HD, N>(r, a, a.tables + item.table, head, lane);
    } else {
        more_registers<REGISTERS<HD, G>>();
        const uint32_t wg = warpgroup();
        prompt_sums<HD> s;
        begin_sums(&s, reinterpret_cast<float *>(q + G * 64 * HD * 2));
        attend_rows<T, HD, G>(&s, r, a, item, r0 + wg * 64, shared_address(q) + wg * 4 * PIECE<HD>,
                              group, by);
        put_rows<T, HD>(a, item, s, r0 + warp * 16, head, group, lane);
    }
#endif
}

template <typename T, int HD, int G>
static cudaError_t run_groups(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const uint32_t pairs = a->item_rows * (a->n_q / a->kv.n_heads), rows = G * 64;
    const uint32_t tiles = (pairs + rows - 1) / rows;
    return launch_kernel(l, wide_kernel<T, HD, G>, dim3(a->n_items * tiles * a->kv.n_heads),
                         G * 128 + 128, SHARED<HD, G>, *a, score_of(a), tiles);
}

template <typename T, int HD>
static cudaError_t run(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    return a->item_rows * (a->n_q / a->kv.n_heads) <= 64 ? run_groups<T, HD, 1>(l, a)
                                                         : run_groups<T, HD, GROUPS<HD>>(l, a);
}

extern "C" cudaError_t rose_cuda_prompt_wide(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    if (l->type == ROSE_F16)
        return a->kv.hd_pad == 64 ? run<__half, 64>(l, a) : run<__half, 128>(l, a);
    return a->kv.hd_pad == 64 ? run<__nv_bfloat16, 64>(l, a) : run<__nv_bfloat16, 128>(l, a);
}

template <typename T, int HD, int G> static cudaError_t allow_shared(cudaError_t before)
{
    const cudaError_t e =
        cudaFuncSetAttribute((const void *)wide_kernel<T, HD, G>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED<HD, G>);
    if (e != cudaErrorInvalidValue) return before != cudaSuccess ? before : e;
    cudaGetLastError(); /* a GPU before sm_90, which never runs the kernel */
    return before;
}

template <typename T> static cudaError_t prepare(cudaError_t e)
{
    e = allow_shared<T, 64, 1>(e);
    e = allow_shared<T, 64, GROUPS<64>>(e);
    e = allow_shared<T, 128, 1>(e);
    return allow_shared<T, 128, GROUPS<128>>(e);
}

extern "C" cudaError_t rose_cuda_prompt_wide_prepare(void)
{
    return prepare<__nv_bfloat16>(prepare<__half>(cudaSuccess));
}
