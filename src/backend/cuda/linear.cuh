/* backend/cuda/linear.cuh - matrix products of 16-bit types: y = x w + bias, then the epilogue.
 * Instantiated for one type by linear_f16.cu and linear_bf16.cu.
 *
 * Order of the sum, in both kernels: k in groups of 16, ascending, chained through mma.sync
 * m16n8k16 from zero over a chunk of 192 values; the chunks are added in fp32, ascending, to +0;
 * then bias. Logits are one chain over all of k. So a row has the same bits in both kernels, in
 * every tile slot, and beside any other rows.
 *
 * The rows kernel (few rows; no head): a block computes MT x 16 rows by NT x 8 outputs; its warps
 * split the chunks, so that all of a block's weights are in flight at once, and are loaded to
 * registers before the kernel in front has ended. Bound: weight bytes to 16 rows, then L2.
 *
 * The tiles kernel (many rows; the head): BM x BN tile, 32 values of k a stage, 4 stages of
 * cp.async, ldmatrix for the rows and one 16-byte load a lane for the weights. Four warps a block,
 * so that several blocks share a multiprocessor and the epilogue of one runs under the products of
 * another. Bound: mma.sync rate. */
#ifndef ROSE_BACKEND_CUDA_LINEAR_CUH
#define ROSE_BACKEND_CUDA_LINEAR_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

enum { CHUNK = ROSE_CUDA_CHUNK_K32, STAGES = 4 };

ROSE_DEVICE void ldmatrix4(uint32_t r[4], const void *at)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(at);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(a));
}

ROSE_DEVICE void copy_async(void *shared, const void *global)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(a), "l"(global) : "memory");
}

/* The operands of a chunk from blocked activations: for 16 rows x 16 values lane (g, t) needs pairs
 * t of rows g and g + 8 in two neighbouring blocks. Rows from `rows` on are zeros. E: 2 = rows 0-7
 * alone, 4 = all 16. All loads are in flight before the first product: left to the compiler they
 * went out in six turns, each a trip to L2. */
template <typename T, int E>
ROSE_DEVICE void load_rows(uint32_t a[CHUNK * 2][E], const T *h, uint32_t k_pad, uint32_t row0,
                           uint32_t chunk, uint32_t rows, int g, int t)
{
    const T *p = h + h_index(row0, chunk * (CHUNK * 32), k_pad) + g * 8 + t * 2;
    const uint32_t left = k_pad / 16 - chunk * (CHUNK * 2);
#pragma unroll
    for (int i = 0; i < CHUNK * 2; i++)
#pragma unroll
        for (int e = 0; e < E; e++) {
            const T *at = p + e % (E / 2) * (size_t)k_pad * 8 + (i * 128 + e / (E / 2) * 64);
            a[i][e] = 0;
            if (i < (int)left && row0 + g + e % (E / 2) * 8 < rows)
                asm volatile("ld.global.cg.u32 %0,[%1];" : "=r"(a[i][e]) : "l"(at) : "memory");
        }
}

template <typename T, int NT>
ROSE_DEVICE void load_weights(uint4 w[CHUNK][NT], const uint4 *at, uint32_t n_k32, uint32_t chunk)
{
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
#pragma unroll
        for (int i = 0; i < NT; i++)
            if (chunk * CHUNK + j < n_k32)
                w[j][i] = load_early(at + ((size_t)i * n_k32 + chunk * CHUNK + j) * 32);
}

/* A warp's rows of one chunk to shared memory: [2 MT blocks of 8 rows][24 blocks of 8 values], 128
 * bytes each: a bulk copy for each block of 8 rows (from sm_90 on, where ptxas puts three loads
 * before each cp.async), all in flight at once. `arrived` is the warp's own and set up; turn counts
 * its chunks. */
template <int MT>
ROSE_DEVICE void stage_rows(uint4 *to, uint64_t *arrived, const rose_cuda_io &io, uint32_t k_pad,
                            uint32_t row0, uint32_t chunk, uint32_t turn, int lane)
{
    const uint32_t left = k_pad / 8 - chunk * (CHUNK * 4);
    const int n = (int)(left < CHUNK * 4 ? left : CHUNK * 4) * 8;
    const uint4 *h = static_cast<const uint4 *>(io.h) +
                     ((size_t)row0 / 8 * (k_pad / 8) + chunk * (CHUNK * 4)) * 8;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        if (turn > 0) bulk_written();
        bulk_expect(arrived, MT * 2 * n * 16);
#pragma unroll
        for (int b = 0; b < MT * 2; b++)
            bulk_copy(to + b * (CHUNK * 32), h + (size_t)b * k_pad, n * 16, arrived);
    }
    bulk_wait(arrived, turn % 2);
#else
    (void)arrived;
    (void)turn;
#pragma unroll
    for (int b = 0; b < MT * 2; b++)
        for (int i = lane; i < n; i += 32)
            copy_async(to + b * (CHUNK * 32) + i, h + (size_t)b * k_pad + i);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncwarp();
#endif
}

/* Blocks that a multiprocessor is to hold: registers bounded so that the next kernel's blocks fit
 * beside this one's, with their weights on the way. */
static constexpr int blocks_for(int max_warps, bool eight)
{
    return max_warps == 16 && eight ? 2 : 1;
}

/* Adds N pairs in order; all are loaded before the first addition. */
template <int N> ROSE_DEVICE void add_parts(float *lo, float *hi, const float *part, uint32_t apart)
{
    float2 v[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = *reinterpret_cast<const float2 *>(part + i * apart);
#pragma unroll
    for (int i = 0; i < N; i++) {
        *lo += v[i].x;
        *hi += v[i].y;
    }
}

/* EIGHT: there are no more than 8 rows. */
template <typename T, int MT, int NT, int MAX_WARPS, bool EIGHT>
static __global__ void __launch_bounds__(MAX_WARPS * 32, blocks_for(MAX_WARPS, EIGHT))
    rows_kernel(const rose_cuda_linear l, const rose_cuda_io io)
{
    /* Staged rows of each warp (MT > 1); part[warp][MT x 16][WIDE]; then, where warps take several
     * chunks, total[MT x 16][NT x 8]. */
    constexpr int ROWS = MT * 16, COLS = NT * 8, WIDE = NT == 1 ? 8 : COLS + 8;
    constexpr int STAGED = MT > 1 ? MT * 2 * CHUNK * 128 : 0; /* floats a warp */
    extern __shared__ __align__(128) float shared[];
    __shared__ uint64_t arrived[MT > 1 ? MAX_WARPS : 1]; /* MT > 1 */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_warps = blockDim.x / 32;
    const uint32_t n_k32 = l.k_pad / 32, n_chunks = (n_k32 + CHUNK - 1) / CHUNK;
    const uint32_t row0 = blockIdx.y * ROWS, tile0 = blockIdx.x * NT;
    const uint4 *w = static_cast<const uint4 *>(l.w) + (size_t)tile0 * n_k32 * 32 + lane;
    uint4 *staged = reinterpret_cast<uint4 *>(shared + warp * STAGED);
    float *part = shared + n_warps * STAGED, *total = part + n_warps * ROWS * WIDE;
    uint4 wr[CHUNK][NT];

    pdl_launch();
    if ((uint32_t)warp < n_chunks) load_weights<T, NT>(wr, w, n_k32, warp);
    if (MT > 1 && lane == 0) bulk_init(&arrived[warp], 1);
    __syncwarp();
    const int my_row = threadIdx.x / (COLS / 2), my_col = threadIdx.x % (COLS / 2) * 2;
    pair_inputs mine;
    mine.bias = load_bias(l, tile0 * 8 + my_col);
    pdl_wait();
    load_pair_inputs(&mine, l, io, row0 + my_row, tile0 * 8 + my_col);

    for (uint32_t first = 0, turn = 0; first < n_chunks; first += n_warps, turn++) {
        const uint32_t chunk = first + warp;
        if (chunk < n_chunks) {
            float acc[MT][NT][4] = {};
            if (first > 0) load_weights<T, NT>(wr, w, n_k32, chunk);
            constexpr bool DIRECT = MT == 1;
            constexpr int E = EIGHT ? 2 : 4;
            uint32_t direct[DIRECT ? CHUNK * 2 : 1][E];
            if constexpr (MT > 1)
                stage_rows<MT>(staged, &arrived[warp], io, l.k_pad, row0, chunk, turn, lane);
            if constexpr (DIRECT)
                load_rows<T, E>(direct, static_cast<const T *>(io.h), l.k_pad, row0, chunk, io.rows,
                                g, t);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                if (chunk * CHUNK + j >= n_k32) continue;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t k = (chunk * CHUNK + j) * 32 + half * 16;
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        uint32_t a[4];
                        if constexpr (MT > 1) {
                            ldmatrix4(a, staged + (m * 2 + lane / 8 % 2) * (CHUNK * 32) +
                                             (j * 4 + half * 2 + lane / 16) * 8 + lane % 8);
                        } else {
                            const uint32_t *d = direct[j * 2 + half];
                            a[0] = d[0];
                            a[1] = E == 4 ? d[1] : 0;
                            a[2] = d[E / 2];
                            a[3] = E == 4 ? d[3] : 0;
                        }
#pragma unroll
                        for (int i = 0; i < NT; i++)
                            mma(acc[m][i], a, half ? wr[j][i].z : wr[j][i].x,
                                half ? wr[j][i].w : wr[j][i].y, static_cast<const T *>(NULL));
                    }
                }
            }
            float *to = part + warp * ROWS * WIDE;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    float *at = to + (m * 16 + g) * WIDE + i * 8 + t * 2;
                    *reinterpret_cast<float2 *>(at) = make_float2(acc[m][i][0], acc[m][i][1]);
                    if (!EIGHT)
                        *reinterpret_cast<float2 *>(at + 8 * WIDE) =
                            make_float2(acc[m][i][2], acc[m][i][3]);
                }
        }
        __syncthreads();

        const uint32_t n = n_chunks - first < (uint32_t)n_warps ? n_chunks - first : n_warps;
        const bool last = first + n == n_chunks;
#pragma unroll 1
        for (int o = threadIdx.x; o < ROWS * COLS / 2; o += blockDim.x) {
            const int row = o / (COLS / 2), col = o % (COLS / 2) * 2;
            const bool live = row0 + row < io.rows;
            float lo = 0, hi = 0;
            if (first > 0) {
                lo = total[row * COLS + col];
                hi = total[row * COLS + col + 1];
            }
            uint32_t q = 0;
            for (; live && q + 4 <= n; q += 4)
                add_parts<4>(&lo, &hi, part + (q * ROWS + row) * WIDE + col, ROWS * WIDE);
            for (; live && q < n; q++)
                add_parts<1>(&lo, &hi, part + (q * ROWS + row) * WIDE + col, 0);
            if (!last) {
                total[row * COLS + col] = lo;
                total[row * COLS + col + 1] = hi;
                continue;
            }
            /* the column, and so the bias, is the same in every turn */
            if (o != (int)threadIdx.x) load_pair_inputs(&mine, l, io, row0 + row, tile0 * 8 + col);
            finish_pair<T>(l, io, row0 + row, tile0 * 8 + col, lo, hi, mine);
        }
        if (!last) __syncthreads();
    }
}

/* What one thread copies of each stage: the same places of successive k32 tiles, which lie 512
 * bytes apart in rows and in weights alike. */
template <int N> struct stage_copies {
    const uint4 *from[N];
    uint32_t to; /* shared address in stage 0; the others follow THREADS x 16 bytes apart */
};

/* Stage: rows [BM / 8][4 blocks of 8 x 8], then weights [BN / 8][32 lanes], 16 bytes each. */
template <typename T, int BM, int BN, int THREADS>
ROSE_DEVICE void place_copies(stage_copies<(BM + BN) * 4 / THREADS> *c, const rose_cuda_linear &l,
                              const rose_cuda_io &io, uint32_t row0, uint32_t n0, uint32_t shared)
{
    const uint32_t n_k32 = l.k_pad / 32;
    static_assert(BM * 4 % THREADS == 0 && BN * 4 % THREADS == 0, "whole copies");
#pragma unroll
    for (int i = 0; i < (BM + BN) * 4 / THREADS; i++) {
        const uint32_t at = i * THREADS + threadIdx.x;
        const bool rows = i * THREADS < BM * 4;
        const uint4 *base = static_cast<const uint4 *>(rows ? io.h : l.w);
        const uint32_t tile = rows ? row0 / 8 + at / 32 : n0 / 8 + (at - BM * 4) / 32;
        c->from[i] = base + (size_t)tile * n_k32 * 32 + at % 32;
    }
    c->to = shared + threadIdx.x * 16;
}

template <int N, int THREADS> ROSE_DEVICE void copy_stage(stage_copies<N> *c, uint32_t offset)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile(
            "cp.async.cg.shared.global [%0],[%1],16;" ::"r"(c->to + offset + i * THREADS * 16),
            "l"(c->from[i])
            : "memory");
        c->from[i] += 32;
    }
}

ROSE_DEVICE void ldmatrix4_at(uint32_t r[4], uint32_t a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(a));
}

ROSE_DEVICE uint4 load_shared(uint32_t a)
{
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(a));
    return r;
}

/* A tile of sums in shared memory, [BM][BN + 8], through the epilogue. One short loop: unrolled in
 * place over the fragments it is so much code that fetching it took as long as the product. A warp
 * takes 8 rows at a time, and loads what the next 8 need before it finishes these. */
template <typename T, int BM, int BN, int WARPS>
ROSE_DEVICE void finish_tile(const float *out, const rose_cuda_linear &l, const rose_cuda_io &io,
                             uint32_t row0, uint32_t n0, int warp, int g, int t)
{
    constexpr int WIDE = BN + 8, PAIRS = BN / 8;
    const bool head = io.epilogue == ROSE_CUDA_EPI_LOGITS && io.key != NULL;
    pair_inputs in[PAIRS];
    float2 next[PAIRS];
    uint32_t next_slot = ROSE_CUDA_NO_SLOT;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        in[i].bias = load_bias(l, n0 + i * 8 + t * 2);
        load_pair_inputs(&in[i], l, io, row0 + warp * 8 + g, n0 + i * 8 + t * 2);
    }
    __syncthreads(); /* the sums are there */
#pragma unroll 1
    for (int r = warp * 8 + g; r < BM; r += WARPS * 8) {
        unsigned long long key = 0;
        if (r + WARPS * 8 < BM)
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                pair_inputs later;
                load_pair_inputs(&later, l, io, row0 + r + WARPS * 8, n0 + i * 8 + t * 2);
                next[i] = later.old;
                if (i == 0 || later.slot != ROSE_CUDA_NO_SLOT) next_slot = later.slot;
            }
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int c = i * 8 + t * 2;
            const float2 v = *reinterpret_cast<const float2 *>(out + r * WIDE + c);
            const unsigned long long k = finish_pair<T>(l, io, row0 + r, n0 + c, v.x, v.y, in[i]);
            if (k > key) key = k;
            in[i].old = next[i];
            in[i].slot = next_slot;
        }
        if (!head) continue;
        for (int x = 1; x < 4; x *= 2) {
            unsigned long long other = __shfl_xor_sync(ROSE_ALL_LANES, key, x);
            if (other > key) key = other;
        }
        if (t == 0 && row0 + r < io.rows) atomicMax(io.key + row0 + r, key);
    }
}

template <typename T, int BM, int BN, int WM, int WN>
static __global__ void __launch_bounds__((WM * WN * 32), (BM == 128 ? 3 : 4))
    tiles_kernel(const rose_cuda_linear l, const rose_cuda_io io)
{
    constexpr int MI = BM / WM / 16, NI = BN / WN / 8, THREADS = WM * WN * 32;
    constexpr int STAGE = (BM + BN) * 64, COPIES = (BM + BN) * 4 / THREADS, WIDE = BN + 8;
    extern __shared__ __align__(128) uint4 stages[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int m_base = warp / WN * (BM / WM), n_base = warp % WN * (BN / WN);
    const uint32_t row0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const uint32_t n_k32 = l.k_pad / 32;
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(stages);
    /* of this lane in stage 0: its row of the first four 8 x 8 blocks; its weights */
    const uint32_t a_at =
        shared + ((m_base / 8 + lane / 8 % 2) * 4 + lane / 16) * 128 + lane % 8 * 16;
    const uint32_t b_at = shared + BM * 64 + n_base / 8 * 512 + lane * 16;
    const uint32_t chunk = io.epilogue == ROSE_CUDA_EPI_LOGITS ? n_k32 : CHUNK;
    float acc[MI][NI][4] = {}, sum[MI][NI][4] = {};
    stage_copies<COPIES> copies;

    pdl_launch();
    place_copies<T, BM, BN, THREADS>(&copies, l, io, row0, n0, shared);
    pdl_wait();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < (int)n_k32) copy_stage<COPIES, THREADS>(&copies, s * STAGE);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    uint32_t in_chunk = 0, use = 0, fill = (STAGES - 1) * STAGE;
#pragma unroll 1
    for (uint32_t kk = 0; kk < n_k32; kk++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (kk + STAGES - 1 < n_k32) copy_stage<COPIES, THREADS>(&copies, fill);
        asm volatile("cp.async.commit_group;" ::: "memory");
        fill = fill == (STAGES - 1) * STAGE ? 0 : fill + STAGE;

        uint4 b[NI];
        uint32_t a[2][MI][4];
#pragma unroll
        for (int i = 0; i < NI; i++)
            b[i] = load_shared(b_at + use + i * 512);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int m = 0; m < MI; m++)
                ldmatrix4_at(a[half][m], a_at + use + m * 1024 + half * 256);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int m = 0; m < MI; m++)
#pragma unroll
                for (int i = 0; i < NI; i++)
                    mma(acc[m][i], a[half][m], half ? b[i].z : b[i].x, half ? b[i].w : b[i].y,
                        static_cast<const T *>(NULL));
        use = use == (STAGES - 1) * STAGE ? 0 : use + STAGE;
        if (++in_chunk < chunk && kk + 1 < n_k32) continue;
        in_chunk = 0;
#pragma unroll
        for (int m = 0; m < MI; m++)
#pragma unroll
            for (int i = 0; i < NI; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum[m][i][e] += acc[m][i][e];
                    acc[m][i][e] = 0;
                }
    }

    float *out = reinterpret_cast<float *>(stages);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MI; m++)
#pragma unroll
        for (int i = 0; i < NI; i++) {
            float *at = out + (m_base + m * 16 + g) * WIDE + n_base + i * 8 + t * 2;
            *reinterpret_cast<float2 *>(at) = make_float2(sum[m][i][0], sum[m][i][1]);
            *reinterpret_cast<float2 *>(at + 8 * WIDE) = make_float2(sum[m][i][2], sum[m][i][3]);
        }
    finish_tile<T, BM, BN, WM * WN>(out, l, io, row0, n0, warp, g, t);
}

/* ---- launchers ---- */

/* Dynamic shared memory that a block can have beside its barriers. */
static size_t shared_room(const rose_cuda_device *d)
{
    return d->shared_max - 256;
}

/* As many warps as there are chunks, unless their shared memory is more than a block may have. */
template <typename T, int MT, int NT, int MAX_WARPS, bool EIGHT>
static cudaError_t launch_rows(const rose_cuda_launch *at, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    const uint32_t n_chunks = (l->k_pad / 32 + CHUNK - 1) / CHUNK;
    const uint32_t wide = NT == 1 ? 8 : NT * 8 + 8;
    const size_t each =
        (size_t)MT * 16 * wide * sizeof(float) + (MT > 1 ? MT * 2 * CHUNK * 512 : 0);
    const size_t once = (size_t)MT * 16 * NT * 8 * sizeof(float);
    uint32_t n_warps = n_chunks < MAX_WARPS ? n_chunks : MAX_WARPS;
    if (n_warps * each + once > shared_room(at->device))
        n_warps = (uint32_t)((shared_room(at->device) - once) / each);
    dim3 grid((l->n + NT * 8 - 1) / (NT * 8), (io->rows + MT * 16 - 1) / (MT * 16));
    return launch_kernel(at, rows_kernel<T, MT, NT, MAX_WARPS, EIGHT>, grid, n_warps * 32,
                         n_warps * each + once, *l, *io);
}

template <int BM, int BN> static size_t tiles_bytes(void)
{
    const size_t stages = (size_t)STAGES * (BM + BN) * 64;
    const size_t out = (size_t)BM * (BN + 8) * sizeof(float);
    return stages > out ? stages : out;
}

template <typename T, int BM, int BN, int WM, int WN>
static cudaError_t launch_tiles(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                const rose_cuda_io *io)
{
    dim3 grid((l->n + BN - 1) / BN, (io->rows + BM - 1) / BM);
    return launch_kernel(at, tiles_kernel<T, BM, BN, WM, WN>, grid, WM * WN * 32,
                         tiles_bytes<BM, BN>(), *l, *io);
}

/* Blocks enough for every multiprocessor, as wide as that allows. No head. */
template <typename T>
static cudaError_t run_rows(const rose_cuda_launch *at, const rose_cuda_linear *l,
                            const rose_cuda_io *io)
{
    const bool wide = l->n > 1024;
    if (io->rows <= 8) {
        if (wide) return launch_rows<T, 1, 2, 8, true>(at, l, io);
        return launch_rows<T, 1, 1, 16, true>(at, l, io);
    }
    if (io->rows <= 16) {
        if (wide) return launch_rows<T, 1, 2, 8, false>(at, l, io);
        return launch_rows<T, 1, 1, 16, false>(at, l, io);
    }
    if (wide && io->rows <= 32) return launch_rows<T, 1, 2, 8, false>(at, l, io);
    if (wide) return launch_rows<T, 2, 2, 4, false>(at, l, io);
    return launch_rows<T, 2, 1, 16, false>(at, l, io);
}

template <typename T>
static cudaError_t run_tiles(const rose_cuda_launch *at, const rose_cuda_linear *l,
                             const rose_cuda_io *io)
{
    if (io->rows <= 64 || (io->rows + 127) / 128 * (l->n_pad / 64) < 256)
        return launch_tiles<T, 64, 64, 2, 2>(at, l, io);
    return launch_tiles<T, 128, 64, 2, 2>(at, l, io);
}

template <typename T> static cudaError_t prepare_linear(const rose_cuda_device *d)
{
    const void *const kernels[] = {(const void *)tiles_kernel<T, 128, 64, 2, 2>,
                                   (const void *)rows_kernel<T, 2, 2, 4, false>,
                                   (const void *)rows_kernel<T, 2, 1, 16, false>};
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared_room(d));
    return e;
}

#endif
