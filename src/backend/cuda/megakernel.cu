/* backend/cuda/megakernel.cu - a decode step of one sequence in one launch, sm_90 and later.
 *
 * At one row a step is a chain of small products, and what it costs between kernels (the wait, the
 * way to L2 and back, the start of the weights' loads) is more than the products. Here the blocks
 * stay: a cluster of 8 for each head, one block a multiprocessor. A block owns 8 dims of its head's
 * q, k and v, 8 outputs of each projection and its share of the MLP, and a stretch of the head.
 *
 * - Weights: a ninth warp copies this block's share in order of use to shared memory, a whole layer
 *   ahead, 4 KB at a time and paced, since bursts delay the exchanges (PACE). The head streams
 *   through the same four buffers at full speed.
 * - Within a cluster: q, k, v and the parts of the splits go through distributed shared memory
 *   (st.async, counted by barriers).
 * - Between blocks, four times a layer (attention, x, MLP, x): every 4 bytes travel with the number
 *   of the layer and step as 8, and readers poll until they have it: one trip through L2 instead of
 *   a barrier's three. A slot is written again only after everyone has read it, because the next
 *   writer's inputs come, by way of later exchanges, from every reader.
 * - LayerNorm: by one warp in every block, from its own copy of x.
 *
 * The sums are those of the other kernels, in their order (docs/NUMERICS.md), so the bits are too:
 * chunks of 192 chained through mma.sync and added ascending, in the head one chain, splits of 32
 * merged ascending.
 *
 * The polling needs all blocks on the chip at once: the host asks for that before it chooses this
 * kernel, and launches it cooperatively. If an exchange is lost all the same, the poll traps, which
 * the host sees as a device error. Bound: latency of 4 exchanges a layer; then HBM. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/megakernel.cuh"

#if __CUDA_ARCH__ >= 900

/* ---- LayerNorm by warp 0, from x's slots to the row ---- */

ROSE_DEVICE void fetch_x(float v[GROUPS][8], const uint2 *x, uint32_t d, uint32_t number, int lane)
{
    const uint4 *at = reinterpret_cast<const uint4 *>(x), *from[GROUPS];
    uint4 u[GROUPS * 4];
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        from[i] = at + ((uint32_t)(i * 32 + lane) * 8 < d ? i * 128 + lane : 0);
    poll<GROUPS * 4, 4>(u, from, number);
#pragma unroll
    for (int i = 0; i < GROUPS * 4; i++) {
        v[i / 4][i % 4 * 2] = __uint_as_float(u[i].x);
        v[i / 4][i % 4 * 2 + 1] = __uint_as_float(u[i].z);
    }
}

/* LayerNorm's vectors for the layer's first or second (which) norm, on their way. */
ROSE_DEVICE void fetch_norm(const rose_cuda_mega &a, const mega &m, int which, const float *w,
                            const float *b)
{
    if (m.lane > 0) return;
    uint64_t *barrier = here().barrier + NORM + which;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    bulk_expect(barrier, a.d * 8);
    bulk_copy(here().norm[which][0], w, a.d * 4, barrier);
    bulk_copy(here().norm[which][1], b, a.d * 4, barrier);
}

/* x as published under the number, normed, to the row. One copy, as multiply(). */
template <typename T>
static __device__ __noinline__ void norm_row(const uint2 *x, uint32_t number, uint32_t d, float eps,
                                             int which, uint32_t row_place)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t *row = reinterpret_cast<uint32_t *>(g_shared + row_place);
    float v[GROUPS][8];
    fetch_x(v, x, d, number, lane);
    const float inv = center_groups<GROUPS>(v, d, eps, lane);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const uint32_t k = (uint32_t)(i * 32 + lane) * 8;
        scale_group(v[i], inv, here().norm[which][0] + k, here().norm[which][1] + k);
    }
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const uint32_t k = (uint32_t)(i * 32 + lane) * 8;
        if (k >= d) continue;
#pragma unroll
        for (int p = 0; p < 4; p++)
            row[pair_slot(k / 2 + p)] =
                pair_f32(v[i][p * 2], v[i][p * 2 + 1], static_cast<const T *>(NULL));
    }
    __syncwarp();
}

template <typename T>
ROSE_DEVICE void norm_x(const rose_cuda_mega &a, mega &m, const uint2 *x, int which,
                        uint32_t number)
{
    wait_for(m, NORM + which);
    norm_row<T>(x, number, a.d, a.eps, which, place_of(row_at(a)));
}

/* Value k of the embedding. */
template <typename T>
ROSE_DEVICE float embedded(const rose_cuda_mega &a, uint32_t id, uint32_t pos, uint32_t k)
{
    const T *tok = static_cast<const T *>(a.tok);
    return to_f32(tok[w_index(id, k, a.d, tok)]) + a.pos[(size_t)pos * a.d + k];
}

/* ---- attention ---- */

/* One split; its part for each block of the cluster goes there. All 16 rows of the operand are the
 * one row, so lanes g have the dims of block g at hand. */
template <typename T>
ROSE_DEVICE void attend_split(const rose_cuda_mega &a, const mega &m, const split_kv<HD> &s,
                              uint32_t split, uint32_t pos, float scale)
{
    const int g = m.lane / 4, t = m.lane % 4;
    const uint32_t at[2] = {pos, pos};
    uint32_t q[HD / 16][4];
    float max[2], sum[2], o[HD / 8][4], lo = 0, hi = 0;
#pragma unroll
    for (int c = 0; c < HD / 16; c++) {
        q[c][0] = q[c][1] = here().qkv[0][c * 8 + t];
        q[c][2] = q[c][3] = here().qkv[0][c * 8 + 4 + t];
    }
    attend<T, HD>(q, s, split, at, false, scale, t, max, sum, o);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
        if (j == g) {
            lo = o[j][0];
            hi = o[j][1];
        }
    const uint32_t to = peer_address(shared_address(parts_at(a) + split * PART), g);
    const uint32_t barrier = peer_address(shared_address(here().barrier + PARTS), g);
    send2(to + t * 8, lo, hi, barrier);
    if (t == 0) send2(to + 32, max[0], sum[0], barrier);
}

/* This block's 8 dims over all splits, ascending; lane l < 8 has dim l. */
template <typename T>
ROSE_DEVICE void merge_splits(const rose_cuda_mega &a, const mega &m, uint32_t n_splits,
                              uint32_t number)
{
    enum { AHEAD = 10 }; /* splits whose loads and exponentials overlap */
    const int dim = m.lane % 8;
    const float *p = parts_at(a);
    float max = -INFINITY, sum = 0, out = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < n_splits; i += AHEAD)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            /* beyond the last: m = -inf, which changes nothing */
            const bool live = i + j < n_splits;
            const float *q = p + (live ? i + j : i) * PART;
            float x, y;
            merge_scale(&max, &sum, live ? q[8] : -INFINITY, live ? q[9] : 0.0f, &x, &y);
            out = fmaf(live ? q[dim] : 0.0f, y, out * x);
        }
    out = out * __frcp_rn(sum);
    const float next = __shfl_down_sync(ROSE_ALL_LANES, out, 1);
    if (m.lane < 8 && m.lane % 2 == 0)
        publish(a.attended + pair_slot((m.block * 8 + m.lane) / 2),
                pair_f32(out, next, static_cast<const T *>(NULL)), number);
}

/* ---- what warp 0 does with the sums of each product ---- */

/* q, k, v of this block's 8 dims to the cluster and, k and v, to the page. */
template <typename T>
ROSE_DEVICE void finish_qkv(const mega &m, const rose_cuda_kv &kv, uint32_t slot, float v)
{
    const int part = m.lane / 8;
    T *block = kv_block<T>(kv, slot / ROSE_PAGE, m.head);
    const float top = largest(block);
    if (part > 0) v = fminf(fmaxf(v, -top), top);
    const float next = __shfl_down_sync(ROSE_ALL_LANES, v, 1);
    const uint32_t pair = pair_f32(v, next, block);
#pragma unroll
    for (int j = 0; j < 3; j++) { /* 12 pairs to 8 blocks */
        const int i = m.lane + 32 * j, to = i / 12, word = i % 12;
        const uint32_t u = __shfl_sync(ROSE_ALL_LANES, pair, word * 2);
        send1(peer_address(shared_address(&here().qkv[word / 4][m.rank * 4 + word % 4]), to), u,
              peer_address(shared_address(here().barrier + QKV), to));
    }
    const uint32_t token = slot % ROSE_PAGE, dim = m.rank * 8 + m.lane % 8;
    if (part == 1) from_f32(v, block + k_index(token, dim));
    if (part == 2) from_f32(v, block + ROSE_PAGE * HD + v_index(token, dim));
}

/* ---- the kernel ---- */

/* What the layers share. */
typedef struct stream {
    uint32_t id, pos, slot, number; /* of the layer's exchanges */
    uint32_t n_pages, n_splits, first_split;
    uint32_t out; /* output of the narrow products that this lane of warp 0 has */
    float own;    /* x[out] */
    rose_cuda_kv kv;
    uint2 pages; /* of this warp's first split */
} stream;

/* The next layer's pages. */
template <typename T> ROSE_DEVICE rose_cuda_kv advanced(const rose_cuda_mega &a, rose_cuda_kv kv)
{
    kv.base = static_cast<T *>(kv.base) + a.kv_layer;
    return kv;
}

template <typename T>
ROSE_DEVICE void norm_and_qkv(const rose_cuda_mega &a, mega &m, const stream &r, uint32_t l)
{
    const size_t next = (l + 1) * a.p_stride;
    const bool last = l + 1 == a.n_layers;
    float bias = 0;
    if (m.warp == 0) {
        if (a.b_qkv != NULL && m.lane < 24)
            bias = __ldcg(a.b_qkv + l * a.p_stride + m.lane / 8 * a.d + r.out);
        norm_x<T>(a, m, a.x, 0, r.number - 1);
    }
    sync_warps();
    wait_for(m, FULL + 0);
    multiply_few<T>(a, m, 0, here().sums[0], 3);
    have_read(0);
    sync_warps();
    if (m.warp == 0) {
        float y = m.lane < 24 ? add_chunks<FEW>(here().sums[0], m.n_chunks, 3, m.lane) : 0;
        if (a.b_qkv != NULL) y += bias;
        finish_qkv<T>(m, r.kv, r.slot, y);
        fetch_norm(a, m, 0, last ? a.lnf_w : a.ln1_w + next, last ? a.lnf_b : a.ln1_b + next);
    }
}

/* A split to this attending warp's place in shared memory: a page's K and V of a head lie
 * together. */
template <typename T>
ROSE_DEVICE void fetch_pages(const mega &m, const rose_cuda_kv &kv, uint2 pages)
{
    uint64_t *barrier = here().barrier + PAGES + (m.warp - ATTEND);
    char *to = reinterpret_cast<char *>(here().pages[m.warp - ATTEND]);
    if (m.lane > 0) return;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    bulk_expect(barrier, SPLIT_BYTES);
    bulk_copy(to, kv_block<T>(kv, pages.x, m.head), SPLIT_BYTES / 2, barrier);
    bulk_copy(to + SPLIT_BYTES / 2, kv_block<T>(kv, pages.y, m.head), SPLIT_BYTES / 2, barrier);
}

/* The split that is there, to registers. In the last one the row's own K and V, which memory may
 * not have yet, take their place first. */
template <typename T> ROSE_DEVICE void take_pages(mega &m, split_kv<HD> *s, bool last, uint32_t pos)
{
    uint4 *at = here().pages[m.warp - ATTEND];
    wait_for(m, PAGES + (m.warp - ATTEND));
    if (last) {
        T *page = reinterpret_cast<T *>(at) + pos % SPLIT / ROSE_PAGE * (2 * ROSE_PAGE * HD);
        const uint32_t token = pos % ROSE_PAGE;
        const T *v = reinterpret_cast<const T *>(here().qkv[2]);
        *reinterpret_cast<uint32_t *>(page + k_index(token, m.lane * 2)) = here().qkv[1][m.lane];
        page[ROSE_PAGE * HD + v_index(token, m.lane * 2)] = v[m.lane * 2];
        page[ROSE_PAGE * HD + v_index(token, m.lane * 2 + 1)] = v[m.lane * 2 + 1];
        __syncwarp();
    }
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            s->k[p][c] = at[(p * (HD / 8) + c) * 32 + m.lane];
            s->v[p][c] = at[(p * (HD / 8) + HD / 16 + c) * 32 + m.lane];
        }
    __syncwarp();
}

template <typename T>
ROSE_DEVICE void attention(const rose_cuda_mega &a, mega &m, const stream &r, uint32_t l)
{
    if (m.warp >= ATTEND) {
        wait_for(m, QKV);
        if (m.warp == ATTEND && m.lane == 0) bulk_expect(here().barrier + QKV, 3 * HD * 2);
#pragma unroll 1
        for (uint32_t i = r.first_split; i < r.n_splits; i += ATTEND * PEERS) {
            split_kv<HD> s;
            take_pages<T>(m, &s, i + 1 == r.n_splits, r.pos);
            const bool more = i + ATTEND * PEERS < r.n_splits;
            if (more) /* on its way under this one */
                fetch_pages<T>(m, r.kv, split_pages(a.table, i + ATTEND * PEERS, r.n_pages));
            attend_split<T>(a, m, s, i, r.pos, a.scale[l]);
            if (!more && l + 1 < a.n_layers) /* under the rest of the layer */
                fetch_pages<T>(m, advanced<T>(a, r.kv), r.pages);
        }
    }
    if (m.warp == WARPS - 1) {
        wait_for(m, PARTS);
        if (m.lane == 0) bulk_expect(here().barrier + PARTS, r.n_splits * PART * 4);
        merge_splits<T>(a, m, r.n_splits, r.number);
    }
}

/* Adds a product (without its bias) to x, and publishes. */
ROSE_DEVICE void add_to_x(const mega &m, stream &r, uint2 *x, float y, const float *bias,
                          float bias_value)
{
    if (bias != NULL) y += bias_value;
    r.own += y;
    if (m.lane < 8) publish(x + x_slot(r.out), __float_as_uint(r.own), r.number);
}

template <typename T>
ROSE_DEVICE void projection(const rose_cuda_mega &a, mega &m, stream &r, uint32_t l)
{
    float bias = 0;
    if (a.b_proj != NULL && m.warp == 0) bias = __ldcg(a.b_proj + l * a.p_stride + r.out);
    if (m.warp < (int)m.n_chunks) fetch_chunks(a, m, a.attended, a.d, m.warp, m.n_chunks, r.number);
    wait_for(m, FULL + 1);
    multiply_few<T>(a, m, 1, here().sums[1], 1);
    have_read(1);
    sync_warps();
    if (m.warp == 0)
        add_to_x(m, r, a.x_mid, add_chunks<FEW>(here().sums[1], m.n_chunks, 1, m.lane % 8),
                 a.b_proj, bias);
}

template <typename T>
ROSE_DEVICE void norm_and_widen(const rose_cuda_mega &a, mega &m, const stream &r, uint32_t l)
{
    const uint32_t wide = a.ff_tiles * 8, out = m.block * wide + m.lane;
    const size_t next_layer = (l + 1) * a.p_stride;
    float bias = 0;
    if (m.warp == 0) {
        if (a.b_fc1 != NULL && m.lane < (int)wide) bias = __ldcg(a.b_fc1 + l * a.p_stride + out);
        norm_x<T>(a, m, a.x_mid, 1, r.number);
    }
    sync_warps();
    wait_for(m, FULL + 2);
    multiply_few<T>(a, m, 2, here().sums[0], a.ff_tiles);
    have_read(2);
    sync_warps();
    if (m.warp == 0) {
        float y = m.lane < (int)wide
                      ? add_chunks<FEW>(here().sums[0], m.n_chunks, a.ff_tiles, m.lane)
                      : 0;
        if (a.b_fc1 != NULL) y += bias;
        y = activate(y, a.act);
        const float next = __shfl_down_sync(ROSE_ALL_LANES, y, 1);
        if (m.lane < (int)wide && m.lane % 2 == 0)
            publish(a.hidden + pair_slot(out / 2), pair_f32(y, next, static_cast<const T *>(NULL)),
                    r.number);
        if (l + 1 < a.n_layers) fetch_norm(a, m, 1, a.ln2_w + next_layer, a.ln2_b + next_layer);
    }
}

template <typename T>
ROSE_DEVICE void narrow(const rose_cuda_mega &a, mega &m, stream &r, uint32_t l)
{
    const uint32_t k = a.d * a.ff_tiles, n_chunks = (k / 32 + K32 - 1) / K32;
    float *sums = here().sums[1], bias = 0;
    if (a.b_fc2 != NULL && m.warp == 0) bias = __ldcg(a.b_fc2 + l * a.p_stride + r.out);
#pragma unroll 1
    for (uint32_t c = m.warp; c < n_chunks; c += 2 * WARPS) {
        fetch_chunks(a, m, a.hidden, k, c, c + WARPS, r.number);
        if (c == (uint32_t)m.warp) wait_for(m, FULL + 3);
        multiply<T>(make_run(a, 3, sums, k, n_chunks, 1, c, 0),
                    make_run(a, 3, sums, k, n_chunks, 1, c + WARPS, 0));
    }
    if ((uint32_t)m.warp >= n_chunks) wait_for(m, FULL + 3);
    have_read(3);
    sync_warps();
    if (m.warp == 0)
        add_to_x(m, r, a.x, add_chunks<MANY>(here().sums[1], n_chunks, 1, m.lane % 8), a.b_fc2,
                 bias);
}

/* A warp has every eighth tile, in one chain over all of k, so that no warp waits for another. */
template <typename T> ROSE_DEVICE void head(const rose_cuda_mega &a, mega &m, const stream &r)
{
    unsigned long long key = 0;
    uint32_t first, n = head_tiles(a, m, &first);
    float *sums = here().sums[0] + m.warp * 8;
    if (m.warp == 0) norm_x<T>(a, m, a.x, 0, r.number);
    sync_warps();
#pragma unroll 1
    for (uint32_t at = 0, turn = 0; at < n; turn++) {
        const int buffer = (int)(turn % 4);
        const uint32_t take = min(buffer_tiles(a, buffer), n - at);
        const uint32_t mine = ((uint32_t)m.warp - at) % WARPS; /* 4 tiles at most */
        wait_for(m, FULL + buffer);
        if (mine < take) multiply_all<T>(a, m, buffer, sums, mine);
        have_read(buffer);
        const uint32_t id = (first + at + mine) * 8 + m.lane;
        if (mine < take && m.lane < 8 && id < a.vocab) {
            const float x = sums[m.lane];
            a.logits[id] = x;
            key = max(key, rank_key(x, id));
        }
        at += take;
        __syncwarp(); /* the sums are read before the next tile's */
    }
    for (int o = 16; o > 0; o /= 2)
        key = max(key, __shfl_xor_sync(ROSE_ALL_LANES, key, o));
    if (m.lane == 0) atomicMax(a.key, key);
}

template <typename T> ROSE_DEVICE void run_step(const rose_cuda_mega &a, mega &m)
{
    stream r;
    r.id = token_of(*a.tokens, a.sampled, a.vocab);
    r.pos = *a.where;
    r.slot = *a.slot;
    r.n_pages = r.pos / ROSE_PAGE + 1;
    r.n_splits = r.pos / SPLIT + 1;
    r.first_split = m.rank + (uint32_t)(m.warp - ATTEND) * PEERS;
    r.out = m.block * 8 + (uint32_t)m.lane % 8;
    r.kv = a.kv;
    r.pages = make_uint2(0, 0);
    r.own = m.warp == 0 ? embedded<T>(a, r.id, r.pos, r.out) : 0;
    r.number = *a.turn * (a.n_layers + 1);
    if (m.warp == 0) {
        fetch_norm(a, m, 0, a.ln1_w, a.ln1_b);
        fetch_norm(a, m, 1, a.ln2_w, a.ln2_b);
        if (m.lane < 8) publish(a.x + x_slot(r.out), __float_as_uint(r.own), r.number);
    }
    if (threadIdx.x == 0) {
        bulk_expect(here().barrier + QKV, 3 * HD * 2);
        bulk_expect(here().barrier + PARTS, r.n_splits * PART * 4);
    }
    if (m.warp >= ATTEND && r.first_split < r.n_splits) {
        r.pages = split_pages(a.table, r.first_split, r.n_pages);
        fetch_pages<T>(m, r.kv, r.pages);
    }
    /* nobody sends before the barriers expect */
    cluster_sync();
#pragma unroll 1
    for (uint32_t l = 0; l < a.n_layers; l++) {
        r.number++;
        forget(m);
        norm_and_qkv<T>(a, m, r, l);
        forget(m);
        attention<T>(a, m, r, l);
        forget(m);
        projection<T>(a, m, r, l);
        forget(m);
        norm_and_widen<T>(a, m, r, l);
        forget(m);
        narrow<T>(a, m, r, l);
        r.kv = advanced<T>(a, r.kv);
    }
    head<T>(a, m, r);
}
#endif

template <typename T>
static __global__ void __launch_bounds__((WARPS + 1) * 32, 1)
    mega_kernel(const __grid_constant__ rose_cuda_mega a)
{
#if __CUDA_ARCH__ >= 900
    mega m = {};
    m.block = blockIdx.x;
    m.head = blockIdx.x / PEERS;
    m.rank = blockIdx.x % PEERS;
    m.n_blocks = gridDim.x;
    m.warp = (int)threadIdx.x / 32;
    m.lane = (int)threadIdx.x % 32;
    m.n_chunks = (a.d / 32 + K32 - 1) / K32;
    m.chunk = m.warp % m.n_chunks;
    m.tile = m.warp / m.n_chunks;
    m.apart = WARPS / m.n_chunks;
    static_assert(sizeof(fixed) <= ROSE_CUDA_MEGA_FIXED && PART * 4 == ROSE_CUDA_MEGA_PART_BYTES,
                  "");
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_BARRIERS; i++)
            bulk_init(here().barrier + i, i >= EMPTY && i < EMPTY + 4 ? WARPS * 32 : 1);
        if (blockIdx.x == 0) { /* before anyone can have this block's first x */
            *a.key = 0;
            __threadfence();
        }
    }
    __syncthreads();
    if (m.warp == WARPS) {
        copy_all(a, m);
        return;
    }
    run_step<T>(a, m);
#endif
}

/* ---- launchers ---- */

static const void *kernel_of(rose_cuda_type t)
{
    return t == ROSE_CUDA_F16 ? (const void *)mega_kernel<__half>
                              : (const void *)mega_kernel<__nv_bfloat16>;
}

static cudaLaunchConfig_t config_of(const rose_cuda_mega *a, cudaLaunchAttribute attributes[2])
{
    cudaLaunchConfig_t c = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = PEERS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    c.gridDim = dim3(a->n_heads * PEERS);
    c.blockDim = dim3((WARPS + 1) * 32);
    c.dynamicSmemBytes = a->shared_bytes;
    c.attrs = attributes;
    c.numAttrs = 2;
    return c;
}

cudaError_t rose_cuda_mega_fits(const rose_cuda_device *d, rose_cuda_type t,
                                const rose_cuda_mega *a, bool *fits)
{
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t c = config_of(a, attributes);
    int clusters = 0;
    *fits = false;
    if (d->code < 90 || a->shared_bytes > d->shared_max) return cudaSuccess;
    cudaError_t e = cudaFuncSetAttribute(kernel_of(t), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)a->shared_bytes);
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveClusters(&clusters, kernel_of(t), &c);
    *fits = e == cudaSuccess && clusters >= (int)a->n_heads;
    return e;
}

cudaError_t rose_cuda_mega_run(const rose_cuda_launch *at, const rose_cuda_mega *a)
{
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t c = config_of(a, attributes);
    c.stream = at->stream;
    if (at->type == ROSE_CUDA_F16) return cudaLaunchKernelEx(&c, mega_kernel<__half>, *a);
    return cudaLaunchKernelEx(&c, mega_kernel<__nv_bfloat16>, *a);
}
