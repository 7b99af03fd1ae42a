/* backend/cuda/joined.cu - a layer up to its attention in one kernel, for decode steps of up to 8
 * sequences: LayerNorm, QKV, append to the pages, attention. To the bits of linear_normed.cuh and
 * attention.cu.
 *
 * A cluster of 8 blocks has one head, and a block 8 dims of its q, k and v: the 24 outputs of a
 * block of normed_kernel. It sends them, row by row, to the shared memory of the cluster's block of
 * that number, which attends for the row. Its splits are a ring of one for each warp, filled by
 * bulk copies before the kernel in front has ended, the last one too: the row's own K and V are put
 * in by hand. So a border between kernels is left out. Bound: latency; then KV bytes.
 *
 * With head_dim 64 and models of up to 1024 values. */
#include "backend/cuda/attention_ahead.cuh"
#include "backend/cuda/linear_normed.cuh"

enum {
    PEERS = 8, /* blocks of a cluster */
    HEAD = 64, /* head_dim: 8 dims a block */
    SPLIT_BYTES = SPLIT_SIZE<HEAD>,
    ROW_BYTES = 3 * HEAD * 2, /* q, k and v of a row */
    /* Threads, more than a row of 768 has, so that registers are 112 a thread at most. Not 80 (a
     * bound of 768): then blocks of FC1 come beside it, and their weights before K and V (8
     * sequences +6 %). */
    JOINED_BOUND = 576
};

/* What a block gets of its row, and what its warps make of the splits. */
template <typename T> struct joined_parts {
    rose_cuda_item it;
    T row[3][HEAD];
    float sums[NORMED_WARPS][HEAD + 2];
    uint64_t full[NORMED_WARPS], sent;
};

#if __CUDA_ARCH__ >= 900
/* By one warp: each lane sets up the slot of one of the block's warps and finds the pages of its
 * first split, if there is one. */
template <typename T>
ROSE_DEVICE bool find_first(uint2 *pages, joined_parts<T> &p, const rose_cuda_attention &a,
                            bool attends, uint32_t rank, uint32_t n_warps, uint32_t lane)
{
    rose_cuda_item it = {};
    if (attends) {
        const uint4 u = load_early(reinterpret_cast<const uint4 *>(a.items + rank));
        it.row = u.x;
        it.n_rows = u.y;
        it.pos = u.z;
        it.table = u.w;
    }
    if (lane == 0) p.it = it;
    if (lane < n_warps) bulk_init(&p.full[lane], 1);
    __syncwarp(); /* as in joined_kernel */
    if (lane >= n_warps || lane >= splits_of(it)) return false;
    *pages = split_pages(a.tables + it.table, lane, it.pos / ROSE_PAGE + 1);
    return true;
}

/* The weights are there. */
ROSE_DEVICE void await_weights(const uint4 w[CHUNK][1])
{
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        asm volatile("" ::"r"(w[j][0].x), "r"(w[j][0].y), "r"(w[j][0].z), "r"(w[j][0].w)
                     : "memory");
}

/* The row's own K and V, in the split in which it is the last position. A lane has two dims. */
template <typename T>
ROSE_DEVICE void put_row(uint4 *split, const joined_parts<T> &p, uint32_t pos, int lane)
{
    T *page = reinterpret_cast<T *>(split) + pos / ROSE_PAGE % 2 * (2 * ROSE_PAGE * HEAD);
    const uint32_t dim = lane * 2;
    put_dims(page, page + ROSE_PAGE * HEAD, pos % ROSE_PAGE, dim,
             *reinterpret_cast<const uint32_t *>(&p.row[1][dim]),
             *reinterpret_cast<const uint32_t *>(&p.row[2][dim]));
}

/* Attention of the block's row for one head. K and V of the first splits are on their way to the
 * rings, q and the row's own k and v to p. */
template <typename T>
ROSE_DEVICE void attend_row(uint4 *ring, joined_parts<T> &p, const rose_cuda_attention &a,
                            uint32_t head, uint32_t warp, uint32_t n_warps, int lane)
{
    const rose_cuda_item it = p.it;
    const uint32_t n_splits = splits_of(it), n_pages = it.pos / ROSE_PAGE + 1;
    const uint32_t pos[2] = {it.pos, it.pos};
    const int g = lane / 4, t = lane % 4;
    uint32_t q[HEAD / 16][4];
    float max = -INFINITY, sum = 0, out = 0; /* of dim threadIdx.x */

    bulk_wait(&p.sent, 0);
#pragma unroll
    for (int c = 0; c < HEAD / 16; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            q[c][e] = 0;
            if (g == 0 && e % 2 == 0)
                q[c][e] =
                    *reinterpret_cast<const uint32_t *>(&p.row[0][c * 16 + e / 2 * 8 + t * 2]);
        }
    for (uint32_t first = 0, turn = 0; first < n_splits; first += n_warps, turn ^= 1) {
        const uint32_t split = first + warp, next = split + n_warps;
        if (split < n_splits) {
            float m[2], l[2], o[HEAD / 8][4];
            bulk_wait(&p.full[warp], turn);
            if (split + 1 == n_splits) {
                put_row(ring, p, it.pos, lane);
                __syncwarp();
            }
            attend<T, HEAD>(q, staged_kv<HEAD>{ring + lane}, split, pos,
                            (split + 1) * SPLIT <= it.pos + 1, a.scale, t, m, l, o);
            __syncwarp(); /* all lanes have read the split */
            if (lane == 0 && next < n_splits)
                stage_split<T, HEAD>(ring, &p.full[warp], a.kv,
                                     split_pages(a.tables + it.table, next, n_pages), head);
            if (g == 0) keep_part<HEAD>(p.sums[warp], m, l, o, t);
        }
        __syncthreads();
        const uint32_t n = min(n_splits - first, n_warps);
        if (threadIdx.x < HEAD)
            for (uint32_t i = 0; i < n; i++) {
                float x, y;
                merge_scale(&max, &sum, p.sums[i][HEAD], p.sums[i][HEAD + 1], &x, &y);
                out = fmaf(p.sums[i][threadIdx.x], y, out * x);
            }
        if (first + n_warps < n_splits) __syncthreads();
    }
    if (threadIdx.x < HEAD && n_splits > 0)
        from_f32(out * __frcp_rn(sum),
                 static_cast<T *>(a.out) + h_index(it.row, head * HEAD + threadIdx.x, a.out_k_pad));
}
#endif

/* As normed_kernel, but of a head's q, k and v 8 outputs each, and then the row of the block's
 * rank. Shared memory: a split for each warp; then as there. */
template <typename T, uint32_t D>
static __global__ void __launch_bounds__(D == 0 ? NORMED_WARPS * 32 : JOINED_BOUND)
    joined_kernel(const rose_cuda_linear l, const rose_cuda_io io, const rose_cuda_attention a)
{
#if __CUDA_ARCH__ >= 900
    constexpr uint32_t ROWS = NORMED_ROWS, TILES = NORMED_TILES;
    constexpr bool WHOLE = D != 0 && D % (CHUNK * 32) == 0;
    constexpr int G = (D == 0 ? NORMED_MAX_D : D) / 256;
    constexpr bool APART = D != 0;
    extern __shared__ __align__(128) uint4 rings[];
    __shared__ joined_parts<T> p;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const uint32_t head = blockIdx.x / PEERS, rank = blockIdx.x % PEERS;
    const uint32_t d = D != 0 ? D : l.k, n_kb = (D != 0 ? D : l.k_pad) / 8;
    const uint32_t n_chunks = (n_kb + CHUNK * 4 - 1) / (CHUNK * 4);
    const uint32_t chunk = warp / TILES, first_dim = head * HEAD + rank * 8;
    const bool multiplies = chunk < n_chunks, norms = warp < io.rows, attends = rank < io.rows;
    /* Some warps norm, others finish pairs, and one has the splits copied: none waits for another's
     * loads before the wait. */
    const bool apart = APART || n_warps >= ROWS + 4;
    uint4 *ring = rings + warp * (SPLIT_BYTES / sizeof(uint4));
    uint4 *normed = rings + n_warps * (SPLIT_BYTES / sizeof(uint4));
    float *bias = reinterpret_cast<float *>(normed + ROWS * n_kb);
    float4 *parameters = reinterpret_cast<float4 *>(bias) + TILES * 2;
    uint4 w[CHUNK][1];

    if (multiplies) {
        const uint4 *from = static_cast<const uint4 *>(l.w) +
                            (size_t)((warp % TILES * d + first_dim) / 8) * (n_kb * 8) + lane;
        settle(from);
        load_weights<T, 1>(w, from, WHOLE ? UINT32_MAX : n_kb / 4, chunk);
    }
    if (threadIdx.x == 0) bulk_init(&p.sent, 1);
    __syncwarp(); /* for racecheck, to which init is the warp's */
    if (threadIdx.x == 0) bulk_expect(&p.sent, ROW_BYTES);
    /* relaxed: what it tells of is fenced by bulk_init, and a release would wait for the weights */
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    if (warp == (apart ? ROWS : n_warps - 1)) {
        uint2 pages;
        const bool copies = find_first(&pages, p, a, attends, rank, n_warps, lane);
        if (multiplies) await_weights(w); /* which are wanted before K and V */
        if (copies)
            stage_split<T, HEAD>(rings + lane * (SPLIT_BYTES / sizeof(uint4)), &p.full[lane], a.kv,
                                 pages, head);
    }
    if (!apart || warp < ROWS) copy_norm(parameters, io, d, apart ? ROWS * 32 : blockDim.x);
    if (l.bias != NULL && threadIdx.x < TILES * 8)
        copy_float(bias + threadIdx.x, l.bias + threadIdx.x / 8 * d + first_dim + threadIdx.x % 8);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const uint32_t pair = threadIdx.x - (blockDim.x - ROWS * TILES * 4); /* [tile][row][4] */
    const uint32_t row = pair / 4 % ROWS, part = pair / (ROWS * 4), col = pair % 4 * 2;
    const bool finishes = pair < ROWS * TILES * 4 && row < io.rows;
    float *sums = reinterpret_cast<float *>(parameters);
    const uint32_t rows_at = hold_shared(chunk_rows(normed, n_kb, chunk, lane), lane);
    const uint32_t sums_at = hold_shared(sums + pair * 2, lane);
    const float *x = halves_of(io.x + (size_t)warp * io.ld_x, lane);
    settle(x);
    pdl_wait();
    pdl_launch(); /* not before: the kernels behind load their weights at once, and what this one
                     waits for would come later (8 sequences +1 to 3 %) */

    float4 half[G][2];
    if (norms) load_halves<G>(half, x, d, lane);
    T *page = NULL; /* of K or V, where the pair goes */
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (!apart)
        __syncthreads();
    else if (warp < ROWS)
        asm volatile("bar.sync 1,%0;" ::"n"(ROWS * 32) : "memory");
    else /* racecheck loses count of barrier 0 where some warps alone meet at another */
        asm volatile("bar.sync 2,%0;" ::"r"(blockDim.x - ROWS * 32) : "memory");
    if (finishes && part > 0 && (!apart || warp >= ROWS)) {
        const uint32_t slot = __ldcg(io.slot + row), token = slot % ROSE_PAGE;
        const uint32_t dim = rank * 8 + col;
        if (slot != ROSE_CUDA_NO_SLOT)
            page = kv_block<T>(io.kv, slot / ROSE_PAGE, head) +
                   (part == 2 ? ROSE_PAGE * HEAD + v_index(token, dim) : k_index(token, dim));
        settle(page);
    }
    norm_rows<T, G>(normed, half, parameters, io, d, n_kb);
    __syncthreads();
    if (multiplies) {
        float acc[4] = {};
        multiply_normed<T, WHOLE>(acc, rows_at, w, n_kb, chunk);
        keep_sums(sums, acc, warp, lane);
    }
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); /* all barriers are set up */
    __syncthreads();
    if (finishes) {
        const T *tag = NULL;
        float2 y = sum_chunks<D>(sums_at, n_chunks, l.bias != NULL ? bias + part * 8 + col : NULL);
        if (part > 0) {
            const float top = largest(tag);
            y.x = fminf(fmaxf(y.x, -top), top);
            y.y = fminf(fmaxf(y.y, -top), top);
        }
        send1(peer_address(shared_address(&p.row[part][rank * 8 + col]), row),
              pair_f32(y.x, y.y, tag), peer_address(shared_address(&p.sent), row));
        if (page != NULL && part == 1) {
            store_pair(page, y.x, y.y);
        } else if (page != NULL) {
            from_f32(y.x, page);
            from_f32(y.y, page + v_index(0, 1)); /* the first dim is even */
        }
    }
    if (attends) attend_row(ring, p, a, head, warp, n_warps, lane);
#endif
}

template <typename T> static size_t joined_bytes(const rose_cuda_linear *l)
{
    return (size_t)normed_warps(l->k_pad) * SPLIT_BYTES + normed_bytes<T>(l);
}

/* Dynamic shared memory that a block can have beside joined_parts, the same for every D. GPUs after
 * Hopper may have 99 KiB in all, where rows of 768 values want 119. */
static size_t joined_room(const rose_cuda_device *d)
{
    constexpr size_t own = (sizeof(joined_parts<__half>) + 127) / 128 * 128;
    return d->shared_max > own ? d->shared_max - own : 0;
}

template <typename T, uint32_t D>
static cudaError_t launch_joined(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, const rose_cuda_attention *a)
{
    const cudaError_t allowed =
        cudaFuncSetAttribute((const void *)joined_kernel<T, D>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)joined_bytes<T>(l));
    if (allowed != cudaSuccess) return allowed;
    return launch_clusters(at, PEERS, joined_kernel<T, D>, dim3(a->kv.n_heads * PEERS),
                           normed_warps(l->k_pad) * 32, joined_bytes<T>(l), *l, *io, *a);
}

template <typename T>
static cudaError_t run_joined(const rose_cuda_launch *at, const rose_cuda_linear *l,
                              const rose_cuda_io *io, const rose_cuda_attention *a)
{
    return l->k == 768 ? launch_joined<T, 768>(at, l, io, a) : launch_joined<T, 0>(at, l, io, a);
}

bool rose_cuda_joins(const rose_cuda_launch *at, const rose_cuda_linear *l, const rose_cuda_io *io,
                     const rose_cuda_attention *a)
{
    return (at->without & ROSE_CUDA_WITHOUT_JOINED) == 0 && at->device->code >= 90 &&
           rose_cuda_linear_norms(at, l, io) && io->epilogue == ROSE_CUDA_EPI_QKV &&
           io->kv_rows == NULL && a->kv_rows == NULL && a->n_items == io->rows &&
           a->kv.head_dim == HEAD && a->kv.hd_pad == HEAD && l->k == a->kv.n_heads * HEAD &&
           l->n == 3 * l->k && joined_bytes<__half>(l) <= joined_room(at->device);
}

cudaError_t rose_cuda_joined_run(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, const rose_cuda_attention *a)
{
    if (io->norm_w == NULL || !rose_cuda_joins(at, l, io, a)) return cudaErrorInvalidValue;
    return at->type == ROSE_CUDA_F16 ? run_joined<__half>(at, l, io, a)
                                     : run_joined<__nv_bfloat16>(at, l, io, a);
}
