/* backend/cuda/megakernel.cuh - what the phases of megakernel.cu are made of: a block's shared
 * memory, its barriers, the exchanges between blocks, products of one row, the copying warp. Device
 * code only, sm_90 and later. */
#ifndef ROSE_BACKEND_CUDA_MEGAKERNEL_CUH
#define ROSE_BACKEND_CUDA_MEGAKERNEL_CUH

#include "backend/cuda/attention.cuh"
#include "backend/cuda/megakernel.h"

enum {
    HD = ROSE_CUDA_MEGA_HEAD_DIM,
    PEERS = ROSE_CUDA_MEGA_PEERS, /* blocks of a cluster */
    WARPS = 8,                    /* that compute */
    K32 = ROSE_CUDA_CHUNK_K32,
    GROUPS = ROSE_CUDA_MEGA_MAX_D / 256, /* of 8 values that a lane has of x */
    SPLIT_BYTES = SPLIT * HD * 2 * 2,
    FEW = (ROSE_CUDA_MEGA_MAX_D / 32 + K32 - 1) / K32, /* chunks of d values, at most */
    MANY = FEW * ROSE_CUDA_MEGA_MAX_FF_TILES,          /* and of the MLP's */
    ATTEND = 4,                                        /* warps 4 .. 7 take splits */
    PART = HD / PEERS + 2, /* floats of a split for one block: its dims, maximum, sum */
    COPY = 4096,           /* bytes of a bulk copy */
    PACE = 200,            /* cycles from copy to copy */
    PATIENCE = 1 << 21     /* polls, of half a microsecond or more each */
};

/* Barriers, in this order. */
enum {
    FULL = 0,
    EMPTY = 4, /* every computing thread arrives */
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
    /* Of a product with d inputs: this warp's chunk, its first tile, and the way to its next. */
    uint32_t n_chunks, chunk, tile, apart;
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
    float sums[2][ROSE_CUDA_MEGA_SUMS];     /* chunks' sums of a product; the head's chains */
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

ROSE_DEVICE void send2(uint32_t to, float v, float u, uint32_t barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0],{%1,%2},[%3];" ::"r"(to),
        "r"(__float_as_uint(v)), "r"(__float_as_uint(u)), "r"(barrier)
        : "memory");
}

ROSE_DEVICE void wait_for(mega &m, int barrier)
{
    bulk_wait(here().barrier + barrier, m.phases >> barrier & 1);
    m.phases ^= 1u << barrier;
}

/* This thread needs no more of the weights in the buffer. Every thread says so: by one lane for its
 * warp a step is 1 % faster at 288 positions (nothing at 1,000; H100, 2026-11-22), but the compiler
 * leaves out the __syncwarp in front of it, and racecheck cannot know that the others have read. */
ROSE_DEVICE void have_read(int buffer)
{
    barrier_arrive(shared_address(here().barrier + EMPTY + buffer));
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
    uint32_t differ;
    int turns = 0;
    do {
        differ = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%4];"
                         : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                         : "l"(from[i / P] + i % P * 32)
                         : "memory");
#pragma unroll
        for (int i = 0; i < N; i++)
            differ |= (v[i].y ^ number) | (v[i].w ^ number);
        if (++turns > PATIENCE) __trap();
    } while (differ != 0);
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

/* A sum of a chunk for 8 outputs; places in bytes of shared memory. */
typedef struct run {
    uint32_t x, w;  /* the chunk's part of the row and of the weights */
    uint32_t to;    /* float [8] */
    uint32_t n_k32; /* 0: nothing to do */
    bool goes_on;   /* the chain that this warp has left at `to`; else it begins */
} run;

enum { NONE, WHOLE, ASK }; /* what is known of a run: it is empty, a whole chunk, neither */

/* Two at once: the second hides the latency of the first. */
template <typename T, int A, int B> ROSE_DEVICE void multiply_runs(const run r[2], int lane)
{
    const int g = lane / 4, t = lane % 4;
    const T *tag = NULL;
    float acc[2][4] = {};
    uint4 w[2][K32], x[2][K32];
    if (A != NONE && r[0].goes_on && g == 0) {
        const float2 sum = *reinterpret_cast<const float2 *>(g_shared + r[0].to + t * 8);
        acc[0][0] = sum.x;
        acc[0][1] = sum.y;
    }
#define SKIPPED(i, j) ((i == 0 ? A : B) != WHOLE && ((i == 0 ? A : B) == NONE || j >= r[i].n_k32))
#pragma unroll
    for (uint32_t j = 0; j < K32; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x[i][j] = make_uint4(0, 0, 0, 0);
            if (SKIPPED(i, j)) continue;
            w[i][j] = *reinterpret_cast<const uint4 *>(g_shared + r[i].w + j * 512 + lane * 16);
            if (g == 0)
                x[i][j] = *reinterpret_cast<const uint4 *>(g_shared + r[i].x + j * 64 + t * 16);
        }
#pragma unroll
    for (uint32_t j = 0; j < K32; j++)
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
                *reinterpret_cast<float2 *>(g_shared + r[i].to + t * 8) =
                    make_float2(acc[i][0], acc[i][1]);
#undef SKIPPED
}

/* One copy for all products: a step runs through all code once a layer, and the first time from
 * memory that the weights have swept. */
template <typename T> static __device__ __noinline__ void multiply(run first, run second)
{
    const int lane = (int)threadIdx.x % 32;
    const run r[2] = {first, second};
    if (first.n_k32 == K32 && second.n_k32 == K32)
        multiply_runs<T, WHOLE, WHOLE>(r, lane);
    else if (first.n_k32 == K32 && second.n_k32 == 0)
        multiply_runs<T, WHOLE, NONE>(r, lane);
    else
        multiply_runs<T, ASK, ASK>(r, lane);
}

ROSE_DEVICE uint32_t place_of(const void *p)
{
    return (uint32_t)(static_cast<const char *>(p) - g_shared);
}

/* Chunk `chunk` of tile `tile`; beyond the last of either: nothing. */
ROSE_DEVICE run make_run(const rose_cuda_mega &a, int buffer, const float *sums, uint32_t k,
                         uint32_t n_chunks, uint32_t n_tiles, uint32_t chunk, uint32_t tile)
{
    const uint32_t left = k / 32 - chunk * K32;
    run r;
    r.x = place_of(row_at(a)) + chunk * (K32 * 64);
    r.w = place_of(buffer_at(a, buffer)) + (tile * (k / 32) + chunk * K32) * 512;
    r.to = place_of(sums) + (chunk * n_tiles + tile) * 32;
    r.n_k32 = chunk >= n_chunks || tile >= n_tiles ? 0 : left < K32 ? left : K32;
    r.goes_on = false;
    return r;
}

/* A product whose chunks are no more than the warps: a warp has one chunk and every so many tiles.
 * Sums to [chunk][tile][8]. */
template <typename T>
ROSE_DEVICE void multiply_few(const rose_cuda_mega &a, const mega &m, int buffer, float *sums,
                              uint32_t n_tiles)
{
    if (m.tile >= m.apart) return;
#pragma unroll 1
    for (uint32_t tile = m.tile; tile < n_tiles; tile += m.apart * 2)
        multiply<T>(make_run(a, buffer, sums, a.d, m.n_chunks, n_tiles, m.chunk, tile),
                    make_run(a, buffer, sums, a.d, m.n_chunks, n_tiles, m.chunk, tile + m.apart));
}

/* A tile by this warp, all chunks as one chain. Sums to [8], for all lanes to read. */
template <typename T>
ROSE_DEVICE void multiply_all(const rose_cuda_mega &a, const mega &m, int buffer, float *sums,
                              uint32_t tile)
{
    run nothing = {};
#pragma unroll 1
    for (uint32_t c = 0; c < m.n_chunks; c++) {
        run r = make_run(a, buffer, sums, a.d, m.n_chunks, tile + 1, c, tile);
        r.to = place_of(sums);
        r.goes_on = c > 0;
        multiply<T>(r, nothing);
    }
    __syncwarp();
}

/* The chunks' sums (at most MOST) of output `n` of n_tiles x 8, ascending. All are loaded, so that
 * no load waits for another. */
template <int MOST>
ROSE_DEVICE float add_chunks(const float *sums, uint32_t n_chunks, uint32_t n_tiles, uint32_t n)
{
    float v[MOST], s = 0;
#pragma unroll
    for (int q = 0; q < MOST; q++)
        v[q] = sums[q * n_tiles * 8 + n];
#pragma unroll
    for (int q = 0; q < MOST; q++)
        if (q < (int)n_chunks) s += v[q];
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

/* ---- the copying warp ---- */

ROSE_DEVICE void bulk_stream(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
                             uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0],[%1],%2,[%3],%4;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}

typedef struct copier {
    long long next; /* when */
    uint32_t used, parity;
    uint64_t policy; /* in L2 the weights make room first: not for them the code or the KV */
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
        bulk_stream(to + at, from + at, n, here().barrier + FULL + buffer, c.policy);
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

ROSE_DEVICE void copy_layer(copier &c, const rose_cuda_mega &a, const mega &m, uint32_t l)
{
    const uint32_t tile = a.d * 16;
#pragma unroll 1
    for (int b = 0; b < 4; b++) {
        const char *w = static_cast<const char *>(a.w[b]) + l * a.w_stride;
        const uint32_t pieces = b == 0 ? 3 : 1, bytes = b < 2 ? tile : a.ff_tiles * tile;
        open_buffer(c, b, pieces * bytes);
        for (uint32_t p = 0; p < pieces; p++) /* q, k and v lie apart */
            copy_weights(c, b, buffer_at(a, b) + p * bytes,
                         w + (size_t)(p * m.n_blocks + m.block) * bytes, bytes, l > 0);
    }
}

ROSE_DEVICE void copy_head(copier &c, const rose_cuda_mega &a, const mega &m)
{
    uint32_t first;
    const uint32_t n = head_tiles(a, m, &first), tile = a.d * 16;
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

/* The copying warp: lane 0. The first layer's weights are on their way before the cluster meets. */
static __device__ void copy_all(const rose_cuda_mega &a, const mega &m)
{
    copier c = {clock64(), 0, 0, 0};
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(c.policy));
    cluster_arrive();
#pragma unroll 1
    for (uint32_t l = 0; l < a.n_layers; l++) {
        if (m.lane == 0) copy_layer(c, a, m, l);
        __syncwarp();
        if (l == 0) cluster_wait(); /* not behind a buffer that others must have read first */
    }
    if (m.lane == 0) copy_head(c, a, m);
}

#endif
#endif
