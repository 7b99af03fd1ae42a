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
 * chunks of 192 chained through mma.sync and added ascending, splits of 32 merged ascending.
 *
 * The polling needs all blocks on the chip at once: the host asks for that before it chooses this
 * kernel, and launches it cooperatively. If an exchange is lost all the same, the poll traps, which
 * the host sees as a device error. Bound: latency of 4 exchanges a layer; then HBM. */
#include "backend/cuda/attention.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/megakernel.h"

enum {
    HD = ROSE_CUDA_MEGA_HEAD_DIM,
    PEERS = ROSE_CUDA_MEGA_PEERS, /* blocks of a cluster */
    WARPS = 8,                    /* that compute */
    K32 = ROSE_CUDA_CHUNK_K32,
    GROUPS = ROSE_CUDA_MEGA_MAX_D / 256, /* of 8 values that a lane has of x */
    SPLIT_BYTES = SPLIT * HD * 2 * 2,
    ATTEND = 4,            /* warps 4 .. 7 take splits */
    PART = HD / PEERS + 2, /* floats of a split for one block: its dims, maximum, sum */
    COPY = 4096,           /* bytes of a bulk copy */
    PACE = 300,            /* cycles from copy to copy */
    PATIENCE = 1 << 23     /* polls, of half a microsecond or more each */
};

/* Barriers, in this order. */
enum {
    FULL = 0,
    EMPTY = 4,
    QKV = 8,
    PARTS = 9,
    PAGES = 10 /* of each attending warp */,
    NORM = 14,
    N_BARRIERS = 16
};

#if __CUDA_ARCH__ >= 900

/* Of a thread. */
typedef struct mega {
    uint32_t block, head, rank, n_blocks;
    int warp, lane;
    uint32_t phases; /* bit b: the parity that barrier b's next wait has */
} mega;

/* Keeps the compiler from computing every phase's addresses before the first layer, and so from
 * moving the loads of the polls to local memory for want of registers. */
ROSE_DEVICE void forget(mega &m)
{
    asm volatile("" : "+r"(m.block), "+r"(m.head), "+r"(m.rank), "+r"(m.warp), "+r"(m.lane));
}

/* ---- shared memory: fixed places first, then what the width moves ---- */

typedef struct fixed {
    uint64_t barrier[N_BARRIERS];
    float sums[2][ROSE_CUDA_MEGA_SUMS];     /* chunks' sums of a product */
    uint32_t qkv[3][HD / 2];                /* T, of this head */
    uint4 pages[ATTEND][SPLIT_BYTES / 16];  /* the first split of each attending warp */
    float norm[2][2][ROSE_CUDA_MEGA_MAX_D]; /* LayerNorm's vectors */
} fixed;

extern __shared__ __align__(1024) char g_shared[];

ROSE_DEVICE fixed &here(void)
{
    return *reinterpret_cast<fixed *>(g_shared);
}

/* Weights: qkv, proj, fc1, fc2. */
ROSE_DEVICE char *buffer_at(const rose_cuda_mega &a, int buffer)
{
    const uint32_t tiles = buffer == 0 ? 0 : buffer == 1 ? 3 : buffer == 2 ? 4 : 4 + a.ff_tiles;
    return g_shared + ROSE_CUDA_MEGA_FIXED + tiles * (a.d * 16);
}

/* T: input of a product, each 32 values in the order of the operands. */
ROSE_DEVICE char *row_at(const rose_cuda_mega &a)
{
    return g_shared + ROSE_CUDA_MEGA_FIXED + (4 + 2 * a.ff_tiles) * (a.d * 16);
}

/* [splits][PART] */
ROSE_DEVICE float *parts_at(const rose_cuda_mega &a)
{
    return reinterpret_cast<float *>(row_at(a) + a.d * a.ff_tiles * 2);
}

/* ---- primitives ---- */

/* The compute warps; not the copying one. */
ROSE_DEVICE void sync_warps(void)
{
    asm volatile("bar.sync 1,256;" ::: "memory");
}

ROSE_DEVICE uint32_t peer_address(uint32_t shared, uint32_t rank)
{
    uint32_t a;
    asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(a) : "r"(shared), "r"(rank));
    return a;
}

ROSE_DEVICE void send1(uint32_t to, uint32_t v, uint32_t barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(to), "r"(v),
        "r"(barrier)
        : "memory");
}

ROSE_DEVICE void send2(uint32_t to, float v, float u, uint32_t barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0],{%1,%2},[%3];" ::"r"(to),
        "r"(__float_as_uint(v)), "r"(__float_as_uint(u)), "r"(barrier)
        : "memory");
}

ROSE_DEVICE void arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

ROSE_DEVICE void wait_for(mega &m, int barrier)
{
    bulk_wait(here().barrier + barrier, m.phases >> barrier & 1);
    m.phases ^= 1u << barrier;
}

/* ---- exchanges: a value and its number in 8 bytes ---- */

ROSE_DEVICE void publish(uint2 *to, uint32_t v, uint32_t number)
{
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};" ::"l"(to), "r"(v), "r"(number)
                 : "memory");
}

/* Loads N / P x P pairs of slots, 32 apart after each from[i], until all carry the number. All of a
 * turn's loads are in flight together: a lane that needs fewer points at others' slots, since a
 * branch between the loads would wait for each. */
template <int N, int P> ROSE_DEVICE void poll(uint4 v[N], const uint4 *const *from, uint32_t number)
{
    bool all;
    int turns = 0;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%4];"
                         : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                         : "l"(from[i / P] + i % P * 32)
                         : "memory");
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && v[i].y == number && v[i].w == number;
        if (++turns > PATIENCE) __trap();
    } while (!all);
    __syncwarp();
}

/* Slot of value k of x: a lane's groups of 8, pair by pair. */
ROSE_DEVICE uint32_t x_slot(uint32_t k)
{
    return ((k / 256 * 4 + k % 8 / 2) * 32 + k / 8 % 32) * 2 + k % 2;
}

/* Place of pair j (values 2j and 2j + 1) of a row of T: as a lane's operands of 32 values. */
ROSE_DEVICE uint32_t pair_slot(uint32_t j)
{
    return j / 16 * 16 + j % 4 * 4 + j % 16 / 4;
}

/* ---- products ---- */

/* Two sums of a chunk at once, each of 8 outputs: the second hides the latency of the first. x: the
 * chunk's part of the row; w: its part of the weights. */
typedef struct run {
    const char *x, *w;
    float *to; /* [8] */
    int n_k32; /* 0: nothing to do */
} run;

enum { NONE, WHOLE, ASK }; /* what is known of a run: it is empty, a whole chunk, neither */

template <typename T, int A, int B> ROSE_DEVICE void multiply_runs(const run r[2], int lane)
{
    const int g = lane / 4, t = lane % 4;
    const T *tag = NULL;
    float acc[2][4] = {};
    uint4 w[2][K32], x[2][K32];
#define SKIPPED(i, j) ((i == 0 ? A : B) != WHOLE && ((i == 0 ? A : B) == NONE || j >= r[i].n_k32))
#pragma unroll
    for (int j = 0; j < K32; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x[i][j] = make_uint4(0, 0, 0, 0);
            if (SKIPPED(i, j)) continue;
            w[i][j] = *reinterpret_cast<const uint4 *>(r[i].w + j * 512 + lane * 16);
            if (g == 0) x[i][j] = *reinterpret_cast<const uint4 *>(r[i].x + j * 64 + t * 16);
        }
#pragma unroll
    for (int j = 0; j < K32; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (SKIPPED(i, j)) continue;
                const uint4 u = x[i][j];
                const uint32_t row[4] = {half ? u.z : u.x, 0, half ? u.w : u.y, 0};
                mma(acc[i], row, half ? w[i][j].z : w[i][j].x, half ? w[i][j].w : w[i][j].y, tag);
            }
    if (g == 0)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (!SKIPPED(i, 0))
                *reinterpret_cast<float2 *>(r[i].to + t * 2) = make_float2(acc[i][0], acc[i][1]);
#undef SKIPPED
}

template <typename T> ROSE_DEVICE void multiply(const run r[2], int lane)
{
    if (r[0].n_k32 == K32 && r[1].n_k32 == K32)
        multiply_runs<T, WHOLE, WHOLE>(r, lane);
    else if (r[0].n_k32 == K32 && r[1].n_k32 == 0)
        multiply_runs<T, WHOLE, NONE>(r, lane);
    else
        multiply_runs<T, ASK, ASK>(r, lane);
}

/* Chunk `chunk` of tile `tile`; beyond the last of either: nothing. */
ROSE_DEVICE run make_run(const rose_cuda_mega &a, const char *w, float *sums, uint32_t k,
                         uint32_t n_chunks, uint32_t n_tiles, uint32_t chunk, uint32_t tile)
{
    const uint32_t left = k / 32 - chunk * K32;
    run r;
    r.x = row_at(a) + chunk * (K32 * 64);
    r.w = w + (tile * (k / 32) + chunk * K32) * 512;
    r.to = sums + (chunk * n_tiles + tile) * 8;
    r.n_k32 = chunk >= n_chunks || tile >= n_tiles ? 0 : (int)(left < K32 ? left : K32);
    return r;
}

/* A product whose chunks are no more than the warps: a warp has one chunk and every so many tiles.
 * Sums to [chunk][tile][8]. */
template <typename T>
ROSE_DEVICE void multiply_few(const rose_cuda_mega &a, const mega &m, int buffer, float *sums,
                              uint32_t n_tiles)
{
    const uint32_t n_chunks = (a.d / 32 + K32 - 1) / K32, apart = WARPS / n_chunks;
    const uint32_t chunk = m.warp % n_chunks, first = m.warp / n_chunks;
    const char *w = buffer_at(a, buffer);
    if (first >= apart) return;
#pragma unroll 1
    for (uint32_t tile = first; tile < n_tiles; tile += apart * 2) {
        const run r[2] = {make_run(a, w, sums, a.d, n_chunks, n_tiles, chunk, tile),
                          make_run(a, w, sums, a.d, n_chunks, n_tiles, chunk, tile + apart)};
        multiply<T>(r, m.lane);
    }
}

/* The chunks' sums of output `n` of n_tiles x 8, ascending. */
ROSE_DEVICE float add_chunks(const float *sums, uint32_t k, uint32_t n_tiles, uint32_t n)
{
    const uint32_t n_chunks = (k / 32 + K32 - 1) / K32;
    float s = 0;
#pragma unroll 8
    for (uint32_t q = 0; q < n_chunks; q++)
        s += sums[q * n_tiles * 8 + n];
    return s;
}

/* The slots of two chunks (96 pairs of T each; beyond the last: none) to their places in the
 * row. */
ROSE_DEVICE void fetch_chunks(const rose_cuda_mega &a, const mega &m, const uint2 *from, uint32_t k,
                              uint32_t first, uint32_t second, uint32_t number)
{
    const uint4 *slots = reinterpret_cast<const uint4 *>(from), *at[4];
    uint32_t place[4];
    bool mine[4];
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t in = i % 2 * 32 + m.lane;
        place[i] = (i < 2 ? first : second) * (K32 * 8) + in;
        mine[i] = in < K32 * 8 && place[i] < k / 4;
        at[i] = slots + (mine[i] ? place[i] : first * (K32 * 8));
    }
    poll<4, 1>(v, at, number);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (mine[i]) reinterpret_cast<uint2 *>(row_at(a))[place[i]] = make_uint2(v[i].x, v[i].z);
    __syncwarp();
}

/* ---- the copying warp: one lane of it ---- */

typedef struct copier {
    long long next; /* when */
    uint32_t used, parity;
} copier;

ROSE_DEVICE void copy_weights(copier &c, int buffer, char *to, const char *from, uint32_t bytes,
                              bool paced)
{
    for (uint32_t at = 0; at < bytes; at += COPY) {
        if (paced) {
            long long now;
            while ((now = clock64()) < c.next)
                ;
            c.next = now + PACE;
        }
        const uint32_t n = bytes - at < COPY ? bytes - at : COPY;
        bulk_copy(to + at, from + at, n, here().barrier + FULL + buffer);
    }
}

/* Waits until the buffer may be written, and says how much will come. */
ROSE_DEVICE void open_buffer(copier &c, int buffer, uint32_t bytes)
{
    if (c.used >> buffer & 1) {
        bulk_wait(here().barrier + EMPTY + buffer, c.parity >> buffer & 1);
        c.parity ^= 1u << buffer;
    }
    c.used |= 1u << buffer;
    bulk_expect(here().barrier + FULL + buffer, bytes);
}

/* Tiles of the head that a block has, and how they go through the buffers: 3, 1, F, F, 3, 1, ... */
ROSE_DEVICE uint32_t head_tiles(const rose_cuda_mega &a, const mega &m, uint32_t *first)
{
    const uint32_t all = (a.vocab + 7) / 8, each = all / m.n_blocks, more = all % m.n_blocks;
    *first = m.block * each + (m.block < more ? m.block : more);
    return each + (m.block < more);
}

ROSE_DEVICE uint32_t buffer_tiles(const rose_cuda_mega &a, int buffer)
{
    return buffer == 0 ? 3 : buffer == 1 ? 1 : a.ff_tiles;
}

static __device__ void copy_all(const rose_cuda_mega &a, const mega &m)
{
    const uint32_t tile = a.d * 16;
    copier c = {clock64(), 0, 0};
#pragma unroll 1
    for (uint32_t l = 0; l < a.n_layers; l++)
#pragma unroll 1
        for (int b = 0; b < 4; b++) {
            const char *w = static_cast<const char *>(a.w[b]) + l * a.w_stride;
            const uint32_t pieces = b == 0 ? 3 : 1, bytes = b < 2 ? tile : a.ff_tiles * tile;
            open_buffer(c, b, pieces * bytes);
            for (uint32_t p = 0; p < pieces; p++) /* q, k and v lie apart */
                copy_weights(c, b, buffer_at(a, b) + p * bytes,
                             w + (size_t)(p * m.n_blocks + m.block) * bytes, bytes, l > 0);
        }
    uint32_t first;
    const uint32_t n = head_tiles(a, m, &first);
    const char *head = static_cast<const char *>(a.head) + (size_t)first * tile;
#pragma unroll 1
    for (uint32_t at = 0, turn = 0; at < n; turn++) {
        const int b = (int)(turn % 4);
        const uint32_t take = min(buffer_tiles(a, b), n - at);
        open_buffer(c, b, take * tile);
        copy_weights(c, b, buffer_at(a, b), head + (size_t)at * tile, take * tile, turn < 4);
        at += take;
    }
}

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

/* x as published under the number, normed, to the row. */
template <typename T>
ROSE_DEVICE void norm_x(const rose_cuda_mega &a, mega &m, const uint2 *x, int which,
                        uint32_t number)
{
    uint32_t *row = reinterpret_cast<uint32_t *>(row_at(a));
    float v[GROUPS][8];
    fetch_x(v, x, a.d, number, m.lane);
    const float inv = center_groups<GROUPS>(v, a.d, a.eps, m.lane);
    wait_for(m, NORM + which);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const uint32_t k = (uint32_t)(i * 32 + m.lane) * 8;
        if (k >= a.d) continue;
        scale_group(v[i], inv, here().norm[which][0] + k, here().norm[which][1] + k);
#pragma unroll
        for (int p = 0; p < 4; p++)
            row[pair_slot(k / 2 + p)] =
                pair_f32(v[i][p * 2], v[i][p * 2 + 1], static_cast<const T *>(NULL));
    }
    __syncwarp();
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
    attend<T, HD>(q, s, split, at, scale, t, max, sum, o);
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
    const int dim = m.lane % 8;
    const float *p = parts_at(a);
    float max = -INFINITY, sum = 0, out = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < n_splits; i++, p += PART) {
        float x, y;
        merge_scale(&max, &sum, p[8], p[9], &x, &y);
        out = fmaf(p[dim], y, out * x);
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
        fetch_norm(a, m, 0, last ? a.lnf_w : a.ln1_w + next, last ? a.lnf_b : a.ln1_b + next);
    }
    sync_warps();
    wait_for(m, FULL + 0);
    multiply_few<T>(a, m, 0, here().sums[0], 3);
    sync_warps();
    if (threadIdx.x == 96) arrive(here().barrier + EMPTY + 0);
    if (m.warp == 0) {
        float y = m.lane < 24 ? add_chunks(here().sums[0], a.d, 3, m.lane) : 0;
        if (a.b_qkv != NULL) y += bias;
        finish_qkv<T>(m, r.kv, r.slot, y);
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
            /* the next is on its way under this one, or under the rest of the layer */
            if (i + ATTEND * PEERS < r.n_splits)
                fetch_pages<T>(m, r.kv, split_pages(a.table, i + ATTEND * PEERS, r.n_pages));
            else if (l + 1 < a.n_layers)
                fetch_pages<T>(m, advanced<T>(a, r.kv), r.pages);
            attend_split<T>(a, m, s, i, r.pos, a.scale[l]);
        }
    }
    if (m.warp == WARPS - 1) {
        wait_for(m, PARTS);
        if (m.lane == 0) bulk_expect(here().barrier + PARTS, r.n_splits * PART * 4);
        merge_splits<T>(a, m, r.n_splits, r.number);
    }
}

/* Adds the product in the second sums to x, and publishes. */
ROSE_DEVICE void add_to_x(const mega &m, stream &r, uint2 *x, uint32_t k, const float *bias,
                          float bias_value)
{
    float y = add_chunks(here().sums[1], k, 1, m.lane % 8);
    if (bias != NULL) y += bias_value;
    r.own += y;
    if (m.lane < 8) publish(x + x_slot(r.out), __float_as_uint(r.own), r.number);
}

template <typename T>
ROSE_DEVICE void projection(const rose_cuda_mega &a, mega &m, stream &r, uint32_t l)
{
    const uint32_t n_chunks = (a.d / 32 + K32 - 1) / K32;
    float bias = 0;
    if (a.b_proj != NULL && m.warp == 0) bias = __ldcg(a.b_proj + l * a.p_stride + r.out);
    if (m.warp < (int)n_chunks) fetch_chunks(a, m, a.attended, a.d, m.warp, n_chunks, r.number);
    wait_for(m, FULL + 1);
    multiply_few<T>(a, m, 1, here().sums[1], 1);
    sync_warps();
    if (threadIdx.x == 96) arrive(here().barrier + EMPTY + 1);
    if (m.warp == 0) add_to_x(m, r, a.x_mid, a.d, a.b_proj, bias);
}

template <typename T>
ROSE_DEVICE void norm_and_widen(const rose_cuda_mega &a, mega &m, const stream &r, uint32_t l)
{
    const uint32_t wide = a.ff_tiles * 8, out = m.block * wide + m.lane;
    const size_t next = (l + 1) * a.p_stride;
    float bias = 0;
    if (m.warp == 0) {
        if (a.b_fc1 != NULL && m.lane < (int)wide) bias = __ldcg(a.b_fc1 + l * a.p_stride + out);
        norm_x<T>(a, m, a.x_mid, 1, r.number);
        if (l + 1 < a.n_layers) fetch_norm(a, m, 1, a.ln2_w + next, a.ln2_b + next);
    }
    sync_warps();
    wait_for(m, FULL + 2);
    multiply_few<T>(a, m, 2, here().sums[0], a.ff_tiles);
    sync_warps();
    if (threadIdx.x == 96) arrive(here().barrier + EMPTY + 2);
    if (m.warp == 0) {
        float y = m.lane < (int)wide ? add_chunks(here().sums[0], a.d, a.ff_tiles, m.lane) : 0;
        if (a.b_fc1 != NULL) y += bias;
        y = activate(y, a.act);
        const float next = __shfl_down_sync(ROSE_ALL_LANES, y, 1);
        if (m.lane < (int)wide && m.lane % 2 == 0)
            publish(a.hidden + pair_slot(out / 2), pair_f32(y, next, static_cast<const T *>(NULL)),
                    r.number);
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
        const run both[2] = {make_run(a, buffer_at(a, 3), sums, k, n_chunks, 1, c, 0),
                             make_run(a, buffer_at(a, 3), sums, k, n_chunks, 1, c + WARPS, 0)};
        multiply<T>(both, m.lane);
    }
    if ((uint32_t)m.warp >= n_chunks) wait_for(m, FULL + 3);
    sync_warps();
    if (threadIdx.x == 96) arrive(here().barrier + EMPTY + 3);
    if (m.warp == 0) add_to_x(m, r, a.x, k, a.b_fc2, bias);
}

template <typename T> ROSE_DEVICE void head(const rose_cuda_mega &a, mega &m, const stream &r)
{
    unsigned long long key = 0;
    uint32_t first, n = head_tiles(a, m, &first);
    if (m.warp == 0) norm_x<T>(a, m, a.x, 0, r.number);
    sync_warps();
#pragma unroll 1
    for (uint32_t at = 0, turn = 0; at < n; turn++) {
        const int buffer = (int)(turn % 4);
        const uint32_t take = min(buffer_tiles(a, buffer), n - at);
        float *sums = here().sums[turn % 2];
        wait_for(m, FULL + buffer);
        multiply_few<T>(a, m, buffer, sums, take);
        sync_warps();
        if (threadIdx.x == 96) arrive(here().barrier + EMPTY + buffer);
        const uint32_t id = (first + at) * 8 + m.lane;
        if (m.warp == 0 && m.lane < (int)take * 8 && id < a.vocab) {
            const float x = add_chunks(sums, a.d, take, m.lane);
            a.logits[id] = x;
            key = max(key, rank_key(x, id));
        }
        at += take;
    }
    if (m.warp > 0) return;
    for (int o = 16; o > 0; o /= 2)
        key = max(key, __shfl_xor_sync(ROSE_ALL_LANES, key, o));
    if (m.lane == 0) atomicMax(a.key, key);
}

template <typename T> ROSE_DEVICE void run_step(const rose_cuda_mega &a, mega &m)
{
    stream r;
    r.id = *a.tokens;
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
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
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
    const mega all = {blockIdx.x, blockIdx.x / PEERS,    blockIdx.x % PEERS,
                      gridDim.x,  (int)threadIdx.x / 32, (int)threadIdx.x % 32,
                      0};
    mega m = all;
    static_assert(sizeof(fixed) <= ROSE_CUDA_MEGA_FIXED && PART * 4 == ROSE_CUDA_MEGA_PART_BYTES,
                  "");
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_BARRIERS; i++)
            bulk_init(here().barrier + i, 1);
        if (blockIdx.x == 0) { /* before anyone can have this block's first x */
            *a.key = 0;
            __threadfence();
        }
    }
    __syncthreads();
    if (m.warp == WARPS) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        if (m.lane == 0) copy_all(a, m);
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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

cudaError_t rose_cuda_mega_fits(rose_cuda_type t, const rose_cuda_mega *a, bool *fits)
{
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t c = config_of(a, attributes);
    int major = 0, most = 0, clusters = 0;
    *fits = false;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    if (e != cudaSuccess || major < 9 || a->shared_bytes > (uint32_t)most) return e;
    e = cudaFuncSetAttribute(kernel_of(t), cudaFuncAttributeMaxDynamicSharedMemorySize,
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
