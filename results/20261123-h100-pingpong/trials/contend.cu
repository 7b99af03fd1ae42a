/* What slows a warpgroup's products? One warpgroup multiplies, another does something else at the
 * same time, a third may have rows copied in. Cycles a product of 64 x N x 16, of which N / 2 are
 * the tensor cores' own.  nvcc -arch=sm_90a -I ROOT/src contend.cu -o contend */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include "backend/cuda/hopper.cuh"

#if ROSE_HOPPER
#define D128 D64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82," \
    "%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102," \
    "%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119," \
    "%120,%121,%122,%123,%124,%125,%126,%127"
#define O128(d) O64(d), F16(d, 64), F16(d, 80), F16(d, 96), F16(d, 112)
WGMMA2(128, D64, O64, "%64", "%65", "%66", __half, "f16")
WGMMA2(256, D128, O128, "%128", "%129", "%130", __half, "f16")
#endif

enum { COLS = 50304, ROWS = 2048, STAGES = 4, TILE_STAGES = 12, TILES = 64, COPY = 8192, RING = 4 };
enum { IDLE, FADD, MUFU, SHFL, LDS, STS, S64, S64L2, S128, BULK, END, ENDL, ENDT, MATH, A_ADDI, A_ADD2, A_FMA, A_IADD, A_MOV, A_MAX, A_SETP, A_HADD, A_PACK, A_FEW, A_EVEN, N_MODES };
static const char *const NAMES[] = {"idle", "fadd", "mufu", "shfl", "lds.128", "sts.128", "stg 8x64", "stg 8x64 L2", "stg 4x128", "bulk 512 B", "end 8x64", "end 4x128", "end by bulk", "products", "fadd imm", "fadd 2", "ffma", "iadd", "mov", "fmnmx", "fsetp", "hadd2", "f2fp", "fadd few", "fadd even"};

struct totals { unsigned long long cycles, units, unit_cycles, copies, blocks; };
__device__ totals g_t;

#if ROSE_HOPPER
template <int SWIZZLE> ROSE_DEVICE uint64_t operand(uint32_t at)
{
    if (SWIZZLE) return (uint64_t)(at << 14 >> 18) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
    return core_matrices(at, 1024);
}
/* FORM 0: one sum. 1: chunks of 12 products, two sets and the sum. 2: one set and the sum. */
template <int N, int FORM, int SWIZZLE> ROSE_DEVICE float multiply(uint32_t a0, uint32_t b0, long long *took)
{
    float acc[FORM == 1 ? 2 : 1][N / 2], sum[FORM == 0 ? 1 : N / 2];
    constexpr int STEP = SWIZZLE ? 2 : 16;
    const __half *tag = NULL;
    float out = 0;
    for (int i = 0; i < N / 2; i++) acc[0][i] = 0;
    long long t0 = clock64();
#pragma unroll 1
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int s = 0; s < TILE_STAGES; s++) {
            const int set = FORM == 1 ? s / 3 % 2 : 0;
            const uint64_t a = operand<SWIZZLE>(a0 + s % STAGES * 8192), b = operand<SWIZZLE>(b0 + s % STAGES * (N * 128));
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                wgmma(acc[set], a + i * STEP, b + i * STEP, FORM == 0 ? (s > 0 || i > 0) : (s % 3 > 0 || i > 0), tag);
            wgmma_commit();
            if (FORM == 1) {
                if (s >= 2) wgmma_wait<2>();
                if (s % 3 == 1 && s > 3) {
                    keep_here(acc[(set + 1) % 2]);
                    for (int i = 0; i < N / 2; i++) sum[i] = s == 4 ? 0.0f + acc[(set + 1) % 2][i] : sum[i] + acc[(set + 1) % 2][i];
                }
            } else if (FORM == 2 && s % 3 == 2) {
                wgmma_wait<0>();
                keep_here(acc[0]);
                for (int i = 0; i < N / 2; i++) sum[i] = s == 2 ? 0.0f + acc[0][i] : sum[i] + acc[0][i];
            } else {
                wgmma_wait<1>();
            }
        }
        if (FORM == 1) {
            wgmma_wait<0>();
            keep_here(acc[1]);
            for (int i = 0; i < N / 2; i++) sum[i] += acc[1][i];
        }
        if (FORM > 0) for (int i = 0; i < N / 2; i++) asm volatile("" ::"f"(sum[i]));
    }
    wgmma_wait<0>();
    *took = clock64() - t0;
    keep_here(acc[0]);
    for (int i = 0; i < N / 2; i++) out += acc[0][i];
    return out;
}

/* The units of the other warpgroup: each what the end of a tile of 64 x 192 has. */
template <int MODE> ROSE_DEVICE float unit(float (&v)[96], uint32_t shared, float *out, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t tile = n % 32, col = (blockIdx.x * 2 + n / 32) % 262;
    float *base = out + (size_t)(tile * 64 + warp * 16) * COLS + col * 192;
    float z = 0;
    if (MODE == FADD || MODE == END || MODE == ENDL || MODE == ENDT)
#pragma unroll
        for (int r = 0; r < (MODE == FADD ? 4 : 1); r++)
            for (int i = 0; i < 96; i++) v[i] = v[i] + __int_as_float(0x3f800000 + n);
    if (MODE == MUFU)
        for (int i = 0; i < 96; i++) asm volatile("ex2.approx.f32 %0,%0;" : "+f"(v[i]));
    if (MODE == SHFL)
        for (int i = 0; i < 96; i++) v[i] = __shfl_xor_sync(~0u, v[i], 4);
    /* 384 instructions a unit */
    if (MODE >= A_ADDI)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < 96; i++) {
                if (MODE == A_ADDI) asm volatile("add.f32 %0,%0,0f3f800000;" : "+f"(v[i]));
                if (MODE == A_ADD2) asm volatile("add.f32 %0,%0,%1;" : "+f"(v[i]) : "f"(v[(i + 48 + r) % 96]));
                if (MODE == A_FMA) asm volatile("fma.rn.f32 %0,%0,%1,%2;" : "+f"(v[i]) : "f"(v[(i + 48 + r) % 96]), "f"(v[(i + 25 + r) % 96]));
                if (MODE == A_IADD) asm volatile("add.s32 %0,%0,12345;" : "+r"(*(int *)&v[i]));
                if (MODE == A_MOV) asm volatile("mov.b32 %0,%1;" : "=r"(*(int *)&v[i]) : "n"(0x3f800001));
                if (MODE == A_MAX) asm volatile("max.f32 %0,%0,%1;" : "+f"(v[i % 4]) : "f"(v[i]));
                if (MODE == A_SETP) asm volatile("{.reg .pred p;\n setp.gt.f32 p,%0,0f4f800000;\n@p exit;}" ::"f"(v[i]));
                if (MODE == A_HADD) asm volatile("add.f16x2 %0,%0,%1;" : "+r"(*(int *)&v[i]) : "r"(*(int *)&v[(i + 48 + r) % 96]));
                if (MODE == A_PACK) asm volatile("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(*(int *)&v[i]) : "f"(v[(i + 48 + r) % 96]), "f"(v[(i + 49 + r) % 96]));
                if (MODE == A_FEW) asm volatile("add.f32 %0,%0,%1;" : "+f"(v[i % 8]) : "f"(v[8 + i % 2]));
                if (MODE == A_EVEN) asm volatile("add.f32 %0,%0,%1;" : "+f"(v[i / 2 * 2]) : "f"(v[(i / 2 * 2 + 48) % 96]));
            }
    if (MODE == LDS)
#pragma unroll
        for (int i = 0; i < 24; i++) {
            float4 f;
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "r"(shared + warp * 4096 + i % 8 * 512 + lane * 16));
            v[i * 4] += f.x, v[i * 4 + 1] += f.y, v[i * 4 + 2] += f.z, v[i * 4 + 3] += f.w;
        }
    if (MODE == STS || MODE == ENDT)
#pragma unroll
        for (int i = 0; i < 24; i++) {
            if (MODE == ENDT && i % 8 == 0) {
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                __syncwarp();
            }
            asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(shared + warp * 4096 + i % 8 * 512 + lane * 16), "f"(v[i * 4]), "f"(v[i * 4 + 1]), "f"(v[i * 4 + 2]), "f"(v[i * 4 + 3]) : "memory");
            if (MODE == ENDT && i % 8 == 7) { /* 16 pieces of 256 bytes */
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane < 16) {
                    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(base + (size_t)lane * COLS + i / 8 * 64), "r"(shared + warp * 4096 + lane * 256), "r"(256) : "memory");
                }
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
    if (MODE == S64 || MODE == END || MODE == S64L2) {
        float *p = (MODE == S64L2 ? out + (size_t)blockIdx.x * 24576 + warp * 6144 + lane * 4 : base + (size_t)(lane / 4) * COLS + lane % 4 * 4);
#pragma unroll
        for (int i = 0; i < 12; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float4 *)(p + (MODE == S64L2 ? (size_t)(i * 2 + h) * 128 : (size_t)h * 8 * COLS + i * 16)) = make_float4(v[i * 8 + h * 4], v[i * 8 + h * 4 + 1], v[i * 8 + h * 4 + 2], v[i * 8 + h * 4 + 3]);
    }
    if (MODE == S128 || MODE == ENDL) {
        float *p = base + (size_t)(lane / 8) * COLS + lane % 8 * 4;
#pragma unroll
        for (int i = 0; i < 6; i++)
#pragma unroll
            for (int h = 0; h < 4; h++)
                *(float4 *)(p + (size_t)h * 4 * COLS + i * 32) = make_float4(v[i * 16 + h * 4], v[i * 16 + h * 4 + 1], v[i * 16 + h * 4 + 2], v[i * 16 + h * 4 + 3]);
    }
    if (MODE == BULK) {
        if (lane < 16)
            for (int i = 0; i < 1; i++)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(base + (size_t)lane * COLS), "r"(shared + warp * 4096 + lane % 4 * 768), "r"(768) : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
    }
    return z;
}
#endif

template <int N, int FORM, int SWIZZLE, int MODE>
__global__ void __launch_bounds__(384, 1) contend(float *out, const uint8_t *rows, int period, int copy_period)
{
#if ROSE_HOPPER
    ROSE_BLOCK_MEMORY(mem);
    __shared__ uint64_t full[RING];
    __shared__ volatile int done;
    const uint32_t a0 = shared_address(mem), b0 = a0 + STAGES * 8192, ring = b0 + STAGES * N * 128, spare = ring + RING * COPY;
    for (int i = threadIdx.x; i < (STAGES * (8192 + N * 128)) / 2; i += 384) {
        uint32_t x = (i + blockIdx.x * 77777) * 2654435761u; x ^= x >> 15; x *= 2246822519u; x ^= x >> 13;
        ((__half *)mem)[i] = __float2half((float)(int)x * 4.6566e-10f);
    }
    if (threadIdx.x == 0) {
        done = 0;
        for (int i = 0; i < RING; i++) barrier_init(shared_address(full) + i * 8, 1);
        barrier_init_done();
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const uint32_t g = warpgroup();
    if (g == 0) {
        fewer_registers<24>();
        if (threadIdx.x == 0 && copy_period > 0) {
            long long next = clock64();
            unsigned long long n = 0;
            for (; !done; n++) {
                const uint32_t slot = n % RING, bar = shared_address(full) + slot * 8;
                if (n >= RING) barrier_wait(bar, (n / RING - 1) % 2);
                barrier_expect(bar, COPY);
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(ring + slot * COPY), "l"(rows + (n * 1 + blockIdx.x / 2 * 5) % 384 * COPY), "r"(COPY), "r"(bar) : "memory");
                next += copy_period;
                while (clock64() < next && !done) ;
            }
            for (unsigned long long i = n < RING ? 0 : n - RING; i < n; i++) barrier_wait(shared_address(full) + i % RING * 8, i / RING % 2);
            atomicAdd(&g_t.copies, n);
        }
    } else if (g == 1 || MODE == MATH) {
        more_registers<240>();
        long long took;
        float x = multiply<N, FORM, SWIZZLE>(a0, b0, &took);
        if (g == 1) done = 1;
        if (x == 12345.678f) out[0] = x;
        if (threadIdx.x == 128) {
            atomicAdd(&g_t.cycles, (unsigned long long)took);
            atomicAdd(&g_t.blocks, 1ull);
        }
    } else {
        more_registers<240>();
        float v[96];
        unsigned long long n = 0, in = 0;
        for (int i = 0; i < 96; i++) v[i] = (float)(threadIdx.x * i);
        if (MODE != IDLE) {
            long long next = clock64();
            while (!done) {
                long long t = clock64();
                unit<MODE>(v, spare, out, (uint32_t)n);
                for (int i = 0; i < 96; i++) asm volatile("" : "+f"(v[i]));
                in += clock64() - t;
                n++;
                next += period;
                while (period > 0 && clock64() < next && !done) ;
            }
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        float x = 0;
        for (int i = 0; i < 96; i++) x += v[i];
        if (x == 12345.678f) out[1] = x;
        if (threadIdx.x == 256) { atomicAdd(&g_t.units, n); atomicAdd(&g_t.unit_cycles, in); }
    }
#endif
}

static float *g_out; static uint8_t *g_rows;
template <int N, int FORM, int SWIZZLE, int MODE> static void one(int period, int copy_period)
{
    const size_t shared = STAGES * (8192 + N * 128) + RING * COPY + 16384;
    totals t;
    static totals zero;
    cudaFuncSetAttribute(contend<N, FORM, SWIZZLE, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    for (int r = 0; r < 2; r++) {
        cudaMemcpyToSymbol(g_t, &zero, sizeof zero);
        contend<N, FORM, SWIZZLE, MODE><<<132, 384, shared>>>(g_out, g_rows, period, copy_period);
        cudaDeviceSynchronize();
    }
    cudaError_t e = cudaGetLastError();
    cudaMemcpyFromSymbol(&t, g_t, sizeof t);
    const double per = (double)t.cycles / t.blocks / (TILES * TILE_STAGES * 4), total = (double)t.cycles / t.blocks;
    printf("N %3d form %d swizzle %d %-12s every %5d: product %6.1f = %5.3f of N/2; unit %7.0f cycles, one for %7.0f, %5.1f B/cycle in %s\n", N, FORM, SWIZZLE, NAMES[MODE], period, per / (MODE == MATH ? 2 : 1), per / (N / 2) / (MODE == MATH ? 2 : 1),
           t.units ? (double)t.unit_cycles / t.units : 0, t.units ? total / ((double)t.units / 132) : 0, (double)t.copies / 132 * COPY / total, e == cudaSuccess ? "" : cudaGetErrorString(e));
    fflush(stdout);
}

template <int N, int FORM, int SWIZZLE> static void modes(int copy)
{
    const int every = 4608;
    one<N, FORM, SWIZZLE, IDLE>(0, copy);
    one<N, FORM, SWIZZLE, MATH>(0, copy);
    one<N, FORM, SWIZZLE, A_ADD2>(every / 2, copy);
    one<N, FORM, SWIZZLE, END>(every, copy);
    one<N, FORM, SWIZZLE, ENDL>(every, copy);
    one<N, FORM, SWIZZLE, ENDT>(every, copy);
    one<N, FORM, SWIZZLE, S64>(every, copy);
    one<N, FORM, SWIZZLE, S64L2>(every, copy);
    one<N, FORM, SWIZZLE, S128>(every, copy);
    one<N, FORM, SWIZZLE, BULK>(every, copy);
    one<N, FORM, SWIZZLE, LDS>(every, copy);
    one<N, FORM, SWIZZLE, STS>(every, copy);
}
template <int N> static void alone(int copy)
{
#define A(M) one<N, 0, 0, M>(0, copy); one<N, 0, 0, M>(1536, copy);
    A(A_ADDI) A(A_ADD2) A(A_FMA) A(A_IADD) A(A_MOV) A(A_MAX) A(A_SETP) A(A_HADD) A(A_PACK) A(A_FEW) A(A_EVEN) A(MUFU) A(SHFL) A(LDS) A(STS) A(S64) A(S64L2) A(S128) A(BULK)
}

int main(void)
{
    cudaMalloc(&g_out, (size_t)ROWS * COLS * 4);
    cudaMalloc(&g_rows, 384 * COPY);
    cudaMemset(g_rows, 0x35, 384 * COPY);
    static const int copies[] = {0, 384, 192, 150};
    for (int c = 0; c < 4; c++) {
        const int copy = copies[c];
        modes<192, 0, 0>(copy);
        modes<192, 0, 1>(copy);
        modes<192, 2, 0>(copy);
        modes<96, 0, 0>(copy);
        modes<96, 1, 0>(copy);
        modes<128, 0, 0>(copy);
        modes<128, 1, 0>(copy);
        modes<128, 1, 1>(copy);
        modes<256, 0, 0>(copy);
        modes<256, 0, 1>(copy);
        if (c == 0 || c == 2) alone<192>(copy);
        if (c == 0) alone<96>(copy);
    }
    return 0;
}
