// wgmma issue depth: time stamps after each of 12 wgmma instructions; 1 or 2 warpgroups; with N ALU work between
#include "backend/cuda/linear_types.h"
#include "backend/cuda/hopper.cuh"
#include <stdio.h>
__device__ long long g_t[4][64];
__device__ float g_o[1024];
template <int G, int TN>
static __global__ void __launch_bounds__(G*128,1) issue_kernel(int slot)
{
#if ROSE_HOPPER
    ROSE_BLOCK_MEMORY(m);
    for (int i = threadIdx.x; i < 160*1024/4; i += G*128) ((uint32_t*)m)[i] = 0x3c003c00u ^ (i*2654435761u>>20);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float acc[TN/2]; for (int i=0;i<TN/2;i++) acc[i]=0;
    long long t[16];
    uint32_t at = shared_address(m);
    int g = threadIdx.x/128;
    uint64_t rows = core_matrices(at + g*8192, 1024), outs = core_matrices(at+16384, 1024);
    for (int rep=0; rep<3; rep++) {
    __syncthreads();
    t[0]=clock64();
    wgmma_fence();
#pragma unroll
    for (int i=0;i<12;i++) {
        wgmma(acc, rows+i%4*16, outs+i%4*16, 1, (const __half*)0);
        t[i+1]=clock64();
    }
    wgmma_commit();
    t[13]=clock64();
    wgmma_wait<0>();
    t[14]=clock64();
    keep_here(acc);
    }
    if (threadIdx.x%128==0) for (int i=0;i<15;i++) g_t[slot][g*16+i]=t[i]-t[0];
    float s=0; for (int i=0;i<TN/2;i++) s+=acc[i]; g_o[threadIdx.x]=s;
#endif
}
template <int G, int TN> void go(int slot){
    cudaFuncSetAttribute(issue_kernel<G,TN>, cudaFuncAttributeMaxDynamicSharedMemorySize, 160*1024);
    issue_kernel<G,TN><<<1,G*128,160*1024>>>(slot);
    cudaDeviceSynchronize();
    long long h[4][64]; cudaMemcpyFromSymbol(h,g_t,sizeof h);
    for(int g=0;g<G;g++){ printf("wg%d of %d, n %d:",g,G,TN); for(int i=1;i<15;i++) printf(" %lld",h[slot][g*16+i]); printf("\n"); }
    printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
int main(){ go<1,192>(0); go<2,192>(1); go<1,96>(2); go<2,96>(3); }
