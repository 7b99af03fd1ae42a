// bursts of stores: each SM writes a tile of 128 x N fp32 (of a row-major array of 2048 x 50304),
// then idles, with patterns and phases; how many cycles does a burst take?
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cuda_runtime.h>
enum { ROWS = 2048, COLS = 50304, TM = 128 };
__device__ unsigned long long g_cycles[132 * 8]; __device__ unsigned long long g_n;
// 8 warps; warp w: rows w*16 .. +16
template <int PATTERN> __global__ void __launch_bounds__(256, 1) k(float *out, int tn, int gap, int phase, int tiles, unsigned *mx)
{
    extern __shared__ float sm[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n_rows = ROWS / TM, n_cols = COLS / tn, all = n_rows * n_cols;
    long long total = 0; int n = 0;
    if (phase) { long long t = clock64(); long long d = (long long)(gap + 4096) * (blockIdx.x * 37 % 132) / 132; while (clock64() - t < d) ; }
    float4 v = make_float4(lane, warp, blockIdx.x, 1);
    for (int at = blockIdx.x, i = 0; at < all && i < tiles; at += gridDim.x, i++) {
        const int col = at / n_rows, row = at % n_rows;
        float *base = out + (size_t)(row * TM + warp * 16) * COLS + (size_t)col * tn;
        __syncthreads();
        long long t0 = clock64();
        if (PATTERN == 0) { // fragments: 8 rows x 64 bytes
            float *p = base + (size_t)(lane / 4) * COLS + lane % 4 * 4;
#pragma unroll 4
            for (int c = 0; c < tn; c += 16) {
                *(float4 *)(p + c) = v;
                *(float4 *)(p + (size_t)8 * COLS + c) = v;
            }
        } else if (PATTERN == 1) { // 4 rows x 128 bytes
            float *p = base + (size_t)(lane / 8) * COLS + lane % 8 * 4;
#pragma unroll 4
            for (int c = 0; c < tn; c += 32)
#pragma unroll
                for (int r = 0; r < 16; r += 4) *(float4 *)(p + (size_t)r * COLS + c) = v;
        } else if (PATTERN == 2) { // 1 row x 512 bytes
            float *p = base + lane * 4;
            for (int r = 0; r < 16; r++)
#pragma unroll
                for (int c = 0; c < tn; c += 128) if (c + lane * 4 < tn) *(float4 *)(p + (size_t)r * COLS + c) = v;
        } else if (PATTERN == 3) { // bulk copies of rows from shared memory: tn * 4 bytes each
            if (lane < 16) {
                uint32_t s = (uint32_t)__cvta_generic_to_shared(sm) + (warp * 16 + lane) * 1024 % 65536;
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(base + (size_t)lane * COLS), "r"(s), "r"(tn * 4) : "memory");
                asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
            }
            __syncwarp();
        } else if (PATTERN == 4) { // fragments of float2: 8 rows x 32 bytes
            float *p = base + (size_t)(lane / 4) * COLS + lane % 4 * 2;
#pragma unroll 4
            for (int c = 0; c < tn; c += 8) {
                *(float2 *)(p + c) = make_float2(v.x, v.y);
                *(float2 *)(p + (size_t)8 * COLS + c) = make_float2(v.x, v.y);
            }
        } else if (PATTERN >= 5) {
            const int bytes = PATTERN >= 9 ? 8 : 16;
            float *p = base + (size_t)(lane / 4) * COLS + lane % 4 * (bytes / 4);
#define LOOP(OP) _Pragma("unroll 4") for (int c = 0; c < tn; c += bytes) { \
                for (int h = 0; h < 2; h++) { float *q = p + (size_t)h * 8 * COLS + c; \
                if (bytes == 16) asm volatile("st.global." OP ".v4.f32 [%0],{%1,%2,%3,%4};" ::"l"(q), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory"); \
                else asm volatile("st.global." OP ".v2.f32 [%0],{%1,%2};" ::"l"(q), "f"(v.x), "f"(v.y) : "memory"); } }
            if (PATTERN == 5 || PATTERN == 9) { LOOP("cs") }
            if (PATTERN == 6 || PATTERN == 10) { LOOP("cg") }
            if (PATTERN == 7 || PATTERN == 11) { LOOP("L1::no_allocate") }
            if (PATTERN == 8 || PATTERN == 12) { LOOP("wt") }
        }
        // a store that reads registers only when the queue takes it: the next use waits
        v.x += 1;
        __syncthreads();
        long long t1 = clock64();
        if (i > 0) total += t1 - t0, n++;
        while (clock64() - t1 < gap) ;
    }
    if (threadIdx.x == 0) { atomicAdd(&g_cycles[0], (unsigned long long)total); atomicAdd(&g_n, (unsigned long long)n); }
}
int main()
{
    float *out; unsigned *mx = 0; cudaMalloc(&out, (size_t)ROWS * COLS * 4);
    void (*ks[])(float *, int, int, int, int, unsigned *) = {k<0>, k<1>, k<2>, k<3>, k<4>, k<5>, k<6>, k<7>, k<8>, k<9>, k<10>, k<11>, k<12>};
    const char *names[] = {"8 x 64 B", "4 x 128 B", "1 x 512 B", "bulk rows", "8 x 32 B", "8 x 64 B cs", "8 x 64 B cg", "8 x 64 B na", "8 x 64 B wt", "8 x 32 B cs", "8 x 32 B cg", "8 x 32 B na", "8 x 32 B wt"};
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    for (int i = 0; i < 13; i++) cudaFuncSetAttribute(ks[i], cudaFuncAttributeMaxDynamicSharedMemorySize, 220 << 10);
    for (int kb = 64; kb <= 216; kb += 152)
        for (int tn = 192, blocks = 132, gap = 9000; tn <= 192; tn += 64)
            for (int phase = 0; phase < 2; phase++)
                    for (int p = 0; p < 13; p++) {
                        unsigned long long z = 0, c, n; float ms;
                        for (int rep = 0; rep < 2; rep++) {
                            cudaMemcpyToSymbol(g_cycles, &z, 8); cudaMemcpyToSymbol(g_n, &z, 8);
                            cudaEventRecord(a);
                            ks[p]<<<blocks, 256, kb << 10>>>(out, tn, gap, phase, 24, mx);
                            cudaEventRecord(b); cudaEventSynchronize(b);
                        }
                        cudaEventElapsedTime(&ms, a, b);
                        cudaMemcpyFromSymbol(&c, g_cycles, 8); cudaMemcpyFromSymbol(&n, g_n, 8);
                        printf("shared %3d tn %d blocks %3d phase %d gap %5d %-12s burst %7.0f cycles (%5.1f B/cycle) kernel %.1f us %s\n", kb, tn, blocks, phase, gap, names[p], (double)c / n, (double)TM * tn * 4 * n / c, ms * 1e3, cudaGetErrorString(cudaGetLastError()));
                    }
}
