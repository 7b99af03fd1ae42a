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
        } else if (PATTERN == 5) { // as 0, but both 64 bytes of a line one after the other, rows in turn: same; streaming
            float *p = base + (size_t)(lane / 4) * COLS + lane % 4 * 4;
#pragma unroll 4
            for (int c = 0; c < tn; c += 16) {
                __stcs((float4 *)(p + c), v);
                __stcs((float4 *)(p + (size_t)8 * COLS + c), v);
            }
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
    void (*ks[])(float *, int, int, int, int, unsigned *) = {k<0>, k<1>, k<2>, k<3>, k<4>, k<5>};
    const char *names[] = {"8 x 64 B", "4 x 128 B", "1 x 512 B", "bulk rows", "8 x 32 B", "8 x 64 B cs"};
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    for (int i = 0; i < 6; i++) cudaFuncSetAttribute(ks[i], cudaFuncAttributeMaxDynamicSharedMemorySize, 65536 + 1024);
    for (int tn = 192; tn <= 256; tn += 64)
        for (int blocks = 132; blocks >= 1; blocks = blocks == 132 ? 16 : blocks == 16 ? 1 : 0)
            for (int phase = 0; phase < 2; phase++)
                for (int gap = 0; gap <= 12000; gap += 6000)
                    for (int p = 0; p < 6; p++) {
                        if (blocks < 132 && (phase || gap)) continue;
                        unsigned long long z = 0, c, n; float ms;
                        for (int rep = 0; rep < 2; rep++) {
                            cudaMemcpyToSymbol(g_cycles, &z, 8); cudaMemcpyToSymbol(g_n, &z, 8);
                            cudaEventRecord(a);
                            ks[p]<<<blocks, 256, 65536>>>(out, tn, gap, phase, 24, mx);
                            cudaEventRecord(b); cudaEventSynchronize(b);
                        }
                        cudaEventElapsedTime(&ms, a, b);
                        cudaMemcpyFromSymbol(&c, g_cycles, 8); cudaMemcpyFromSymbol(&n, g_n, 8);
                        printf("tn %d blocks %3d phase %d gap %5d %-12s burst %7.0f cycles (%5.1f B/cycle) kernel %.1f us %s\n", tn, blocks, phase, gap, names[p], (double)c / n, (double)TM * tn * 4 * n / c, ms * 1e3, cudaGetErrorString(cudaGetLastError()));
                    }
}
