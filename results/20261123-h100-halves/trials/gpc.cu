// which SMs are of one GPC: clusters of 8 (portable), many launches; union of co-clustered SMs; and block -> SM of a plain grid of 132
#include <cstdio>
#include <cstdint>
#include <cuda_runtime.h>
__global__ void plain(int *o) { unsigned s; asm("mov.u32 %0,%%smid;" : "=r"(s)); if (threadIdx.x == 0) o[blockIdx.x] = s; long long t = clock64(); while (clock64() - t < 200000) ; }
int main() {
    int *d, h[1024]; cudaMalloc(&d, 4096);
    cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10);
    plain<<<132, 384, 200 << 10>>>(d); cudaMemcpy(h, d, 528, cudaMemcpyDeviceToHost);
    printf("plain:"); for (int i = 0; i < 132; i++) printf(" %d", h[i]); printf("\n");
    for (int size = 2; size <= 16; size *= 2) {
    int p[132]; for (int i = 0; i < 132; i++) p[i] = i;
    auto find = [&](int x) { while (p[x] != x) x = p[x]; return x; };
    cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    for (int rep = 0; rep < 20; rep++) {
        cudaLaunchConfig_t c = {}; c.gridDim = 128 / size * size; c.blockDim = 384; c.dynamicSmemBytes = 200 << 10;
        cudaLaunchAttribute a[1]; a[0].id = cudaLaunchAttributeClusterDimension; a[0].val.clusterDim.x = size; a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
        c.attrs = a; c.numAttrs = 1;
        cudaError_t e = cudaLaunchKernelEx(&c, plain, d); cudaError_t f = cudaMemcpy(h, d, 512, cudaMemcpyDeviceToHost);
        if (e || f) { printf("size %d: %s %s\n", size, cudaGetErrorString(e), cudaGetErrorString(f)); break; }
        if (rep == 0) { printf("clusters of %d:", size); for (int i = 0; i < 128; i++) printf(" %d", h[i]); printf("\n"); }
        for (int i = 0; i < 128; i++) p[find(h[i])] = find(h[i / size * size]);
    }
    printf("groups by %d:\n", size); for (int r = 0; r < 132; r++) { int any = 0; for (int i = 0; i < 132; i++) if (find(i) == r) { printf("%s%d", any ? " " : "  ", i); any = 1; } if (any) printf("\n"); }
    }
}
