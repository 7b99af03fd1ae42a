/* backend/cuda/linear_team.cuh - matrix products of 16-bit types on sm_90a for a few tens of rows.
 * The same bits as linear.cuh: chunks of 192 values of k, in each the groups of 16 chained in the
 * accumulator from zero, the chunks added in fp32, ascending, to +0.
 *
 * Outputs are the 64 rows of wgmma and the rows of the batch its columns: packed weights are then
 * the operand in registers as they lie, one 16-byte load a lane for two products, and blocked
 * activations the operand in shared memory as they lie.
 *
 * A block has a tile of 64 outputs x TN rows, and a warpgroup for each chunk, so that all weights
 * are in flight at once, before the kernel in front has ended. The sums of the chunks are then
 * added in order through shared memory. Bound: its chain of waits. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_TEAM_CUH
#define ROSE_BACKEND_CUDA_LINEAR_TEAM_CUH

#include "backend/cuda/hopper_epilogue.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_typed.cuh"

enum {
    CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32,
    GROUP_OUTPUTS = 64,         /* of a warpgroup */
    SUM_LD = GROUP_OUTPUTS + 4, /* floats from row to row of sums in shared memory */
    GROUPS = ROSE_CUDA_TEAM_K / CHUNK_K
};

#if ROSE_HOPPER

/* The operands of 32 values of k x 16 outputs, of two products of 16: the lane's places in two
 * tiles. */
ROSE_DEVICE void place_outputs(uint32_t a[8], const uint4 &lo, const uint4 &hi)
{
    a[0] = lo.x;
    a[1] = hi.x;
    a[2] = lo.y;
    a[3] = hi.y;
    a[4] = lo.z;
    a[5] = hi.z;
    a[6] = lo.w;
    a[7] = hi.w;
}

/* Weights of one chunk for a warp's 16 outputs. */
ROSE_DEVICE void load_chunk(uint32_t (&a)[ROSE_CUDA_CHUNK_K32][8], const uint4 *w, uint32_t n_k32,
                            uint32_t chunk)
{
#pragma unroll
    for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
        const uint4 *at = w + (size_t)(chunk * ROSE_CUDA_CHUNK_K32 + j) * 32;
        if (chunk * ROSE_CUDA_CHUNK_K32 + j < n_k32) {
            place_outputs(a[j], load_early(at), load_early(at + (size_t)n_k32 * 32));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[j][i] = 0;
    }
}

/* ---- the epilogue: from shared memory, what it reads loaded before the sums are there ---- */

/* Where outputs n and those behind it in the same head go: `to` for q is their place in row 0, for
 * K and V in token 0 of page 0, or in row 0 of kv_rows. */
typedef struct qkv_place {
    uint32_t part; /* 0 q, 1 K, 2 V */
    size_t to;     /* in values */
} qkv_place;

ROSE_DEVICE qkv_place place_qkv(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t n)
{
    const uint32_t d = l.k, part = n >= 2 * d ? 2 : n >= d, c = n - part * d;
    const uint32_t head = c / io.kv.head_dim, dim = c % io.kv.head_dim;
    const size_t block = (size_t)head * (2 * ROSE_PAGE) * io.kv.hd_pad;
    qkv_place p;
    p.part = part;
    p.to = part == 0            ? c
           : io.kv_rows != NULL ? n - d
           : part == 1          ? block + k_index(0, dim)
                                : block + ROSE_PAGE * io.kv.hd_pad + v_index(0, dim);
    return p;
}

template <typename T>
ROSE_DEVICE T *kv_at(const rose_cuda_io &io, const qkv_place &p, uint32_t slot)
{
    const uint32_t token = slot % ROSE_PAGE;
    return static_cast<T *>(io.kv.base) + slot / ROSE_PAGE * io.kv.page_elems + p.to +
           (p.part == 1 ? k_index(token, 0) : v_index(token, 0));
}

/* Four outputs from a multiple of 4 on, so of one head: its size is a multiple of 4. */
template <typename T>
ROSE_DEVICE void finish_qkv4(const rose_cuda_linear &l, const rose_cuda_io &io, const qkv_place &p,
                             uint32_t row, const float4 &v, uint32_t slot)
{
    if (p.part == 0) {
        T *q = static_cast<T *>(io.q) + (size_t)row * l.k + p.to;
        *reinterpret_cast<uint2 *>(q) = pack4(v, q);
        return;
    }
    if (io.kv_rows != NULL) {
        T *to = kv_row<T>(io, l.k, row) + p.to;
        *reinterpret_cast<uint2 *>(to) = pack4(clamp4(v, largest(to)), to);
        return;
    }
    if (slot == ROSE_CUDA_NO_SLOT) return;
    T *to = kv_at<T>(io, p, slot);
    const uint2 u = pack4(clamp4(v, largest(to)), to);
    if (p.part == 1) { /* two dims a lane of 8 values */
        *reinterpret_cast<uint32_t *>(to) = u.x;
        *reinterpret_cast<uint32_t *>(to + 8) = u.y;
        return;
    }
    uint16_t *at = reinterpret_cast<uint16_t *>(to); /* dims lie 4 lanes apart */
    at[0] = (uint16_t)u.x;
    at[32] = (uint16_t)(u.x >> 16);
    at[64] = (uint16_t)u.y;
    at[96] = (uint16_t)(u.y >> 16);
}

/* Of outputs n .. n + 3; zeros beyond the last. */
ROSE_DEVICE float4 load_bias4(const rose_cuda_linear &l, uint32_t n)
{
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = l.bias != NULL && n + i < l.n
                   ? __uint_as_float(load_now(reinterpret_cast<const uint32_t *>(l.bias) + n + i))
                   : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* What the epilogue of four outputs of rows r, r + step, ... of a tile reads from memory. */
template <int QUADS> struct team_inputs {
    float4 bias, old[QUADS];
    uint32_t slot[QUADS];
};

template <int QUADS>
ROSE_DEVICE void load_inputs(team_inputs<QUADS> *in, const rose_cuda_linear &l,
                             const rose_cuda_io &io, uint32_t row0, uint32_t r0, uint32_t step,
                             uint32_t end, uint32_t n)
{
    in->bias = load_bias4(l, n);
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const uint32_t r = r0 + q * step, row = row0 + r;
        if (r >= end || row >= io.rows || n >= l.n) continue;
        if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
            in->old[q] = load_now(reinterpret_cast<const float4 *>(residual_at(io, row, n)));
        if (io.epilogue == ROSE_CUDA_EPI_QKV && io.kv_rows == NULL)
            in->slot[q] = load_now(io.slot + row);
    }
}

/* Four sums of a row through the epilogue. */
template <typename T>
ROSE_DEVICE void finish4(const rose_cuda_linear &l, const rose_cuda_io &io, const qkv_place &place,
                         uint32_t row, uint32_t n, float4 v, const float4 &bias, const float4 &old,
                         uint32_t slot)
{
    if (l.bias != NULL) v = add4(v, bias);
    if (io.epilogue == ROSE_CUDA_EPI_RESIDUAL)
        *reinterpret_cast<float4 *>(residual_at(io, row, n)) = add4(old, v);
    else if (io.epilogue == ROSE_CUDA_EPI_ACT)
        store_act4<T>(io, row, n, activate4(v, io.act));
    else
        finish_qkv4<T>(l, io, place, row, v, slot);
}

/* A lane's sums of a product of 64 outputs x TN rows to shared memory, [TN][SUM_LD]. */
template <int TN>
ROSE_DEVICE void store_sums(float *to, const float (&acc)[TN / 2], int warp, int g, int t)
{
    to += warp * 16 + g;
#pragma unroll
    for (int i = 0; i < TN / 2; i++)
        to[(i / 4 * 8 + t * 2 + i % 2) * SUM_LD + i / 2 % 2 * 8] = acc[i];
}

#endif

/* Grid: (n_pad / 64, row tiles); a warpgroup a chunk. BESIDE: a block of attention finds registers
 * on the same multiprocessor (of 32 rows; 64 would spill). */
template <typename T, int TN, bool BESIDE>
static __global__ void __launch_bounds__(GROUPS * 128 + (BESIDE ? ROSE_CUDA_BESIDE_THREADS : 0), 1)
    team_kernel(const rose_cuda_linear l, const rose_cuda_io io,
                const __grid_constant__ CUtensorMap h_map)
{
#if ROSE_HOPPER
    constexpr uint32_t PITCH = TN * CHUNK_K * sizeof(T);
    constexpr int QUADS = 2; /* rounds of rows at a time */
    static_assert(PITCH >= TN * SUM_LD * sizeof(float), "sums replace the rows they are made of");
    extern __shared__ __align__(1024) uint8_t chunks[];
    __shared__ uint64_t full[GROUPS];
    const uint32_t group = threadIdx.x / 128, n_chunks = blockDim.x / 128;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full_at = shared_address(full) + group * 8;
    const uint32_t rows_at = shared_address(chunks) + group * PITCH;
    const uint32_t n_k32 = l.k_pad / 32;
    const uint32_t n0 = blockIdx.x * GROUP_OUTPUTS, row0 = blockIdx.y * TN;
    const uint4 *w =
        static_cast<const uint4 *>(l.w) + (size_t)(n0 / 8 + warp * 2) * n_k32 * 32 + lane;
    uint32_t a[ROSE_CUDA_CHUNK_K32][8];

    if (!io.late) pdl_launch();
    load_chunk(a, w, n_k32, group);
    if (threadIdx.x % 128 == 0) {
        barrier_init(full_at, 1);
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x % 128 == 0) {
        barrier_expect(full_at, PITCH);
        copy_box(rows_at, &h_map, group * (CHUNK_K / 8), row0 / 8, full_at);
    }
    /* What is finished below: 16 threads a row. */
    const uint32_t n = n0 + threadIdx.x % 16 * 4, my_row = threadIdx.x / 16, step = n_chunks * 8;
    team_inputs<QUADS> in;
    qkv_place place;
    load_inputs<QUADS>(&in, l, io, row0, my_row, step, TN, n);
    if (io.epilogue == ROSE_CUDA_EPI_QKV) place = place_qkv(l, io, n);

    float acc[TN / 2];
    const uint64_t rows = core_matrices(rows_at, CHUNK_K * 16);
    barrier_wait(full_at, 0);
    if (io.late) pdl_launch();
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROSE_CUDA_CHUNK_K32; j++) {
        wgmma(acc, a[j], rows + j * 32, j > 0, static_cast<const T *>(NULL));
        wgmma(acc, a[j] + 4, rows + j * 32 + 16, 1, static_cast<const T *>(NULL));
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep_here(acc);
    group_sync(group + 1); /* its warps have read the rows */
    store_sums<TN>(reinterpret_cast<float *>(chunks + group * PITCH), acc, warp, g, t);
    __syncthreads();
#pragma unroll 1
    for (uint32_t r0 = my_row; r0 < TN; r0 += step * QUADS) {
        if (r0 != my_row) load_inputs<QUADS>(&in, l, io, row0, r0, step, TN, n);
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const uint32_t r = r0 + q * step, row = row0 + r;
            if (r >= TN || row >= io.rows || n >= l.n) continue;
            const uint8_t *at = chunks + (r * SUM_LD + threadIdx.x % 16 * 4) * sizeof(float);
            float4 v = make_float4(0, 0, 0, 0);
            for (uint32_t c = 0; c < n_chunks; c++)
                v = add4(v, *reinterpret_cast<const float4 *>(at + c * PITCH));
            finish4<T>(l, io, place, row, n, v, in.bias, in.old[q], in.slot[q]);
        }
    }
#endif
}

/* ---- launchers ---- */

/* Blocks of 8 rows x k as cores of 8 x 8 values, 128 bytes: boxes of a chunk of `box_rows` rows. */
static cudaError_t map_rows(const rose_cuda_device *d, CUtensorMap *map, const rose_cuda_io *io,
                            uint32_t k_pad, uint32_t box_rows)
{
    const cuuint64_t size[3] = {64, k_pad / 8, (io->rows + 7) / 8},
                     pitch[2] = {128, (cuuint64_t)k_pad * 16};
    const cuuint32_t box[3] = {64, CHUNK_K / 8, box_rows / 8}, one[3] = {1, 1, 1};
    const CUresult r =
        encoder_of(d)(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(io->h), size,
                      pitch, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T, int TN, bool BESIDE>
static cudaError_t launch_team(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const uint32_t n_chunks = (l->k_pad + CHUNK_K - 1) / CHUNK_K;
    CUtensorMap h;
    cudaError_t e = map_rows(at->device, &h, io, l->k_pad, TN);
    if (e != cudaSuccess) return e;
    return launch_kernel(at, team_kernel<T, TN, BESIDE>,
                         dim3((l->n + 63) / 64, (io->rows + TN - 1) / TN), n_chunks * 128,
                         (size_t)n_chunks * TN * CHUNK_K * sizeof(T), *l, *io, h);
}

cudaError_t ROSE_TYPED(rose_gemm_team_64)(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                          const rose_cuda_io *io)
{
    return launch_team<ROSE_T, 64, false>(at, l, io);
}

cudaError_t ROSE_TYPED(rose_gemm_team_32)(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                          const rose_cuda_io *io)
{
    return at->beside ? launch_team<ROSE_T, 32, true>(at, l, io)
                      : launch_team<ROSE_T, 32, false>(at, l, io);
}

cudaError_t ROSE_TYPED(rose_prepare_team)(const rose_cuda_device *)
{
    constexpr size_t row = GROUPS * CHUNK_K * sizeof(ROSE_T);
    cudaError_t e = allow_shared((const void *)team_kernel<ROSE_T, 64, false>, 64 * row);
    if (e == cudaSuccess) e = allow_shared((const void *)team_kernel<ROSE_T, 32, false>, 32 * row);
    if (e == cudaSuccess) e = allow_shared((const void *)team_kernel<ROSE_T, 32, true>, 32 * row);
    return e;
}

#endif
