/* backend/cuda/hopper.cuh - instructions that only sm_90a has: GEMMs of a warpgroup (wgmma) with
 * both operands in shared memory, and copies by TMA that a barrier counts. Code that uses them is
 * under ROSE_HOPPER. Other GPUs get an empty kernel, which is never launched.
 *
 * Device code only. "Shared" addresses are 32 bits, of the shared window. */
#ifndef ROSE_BACKEND_CUDA_HOPPER_CUH
#define ROSE_BACKEND_CUDA_HOPPER_CUH

#include <cuda.h>

#include "backend/cuda/device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ROSE_HOPPER 1
#else
#define ROSE_HOPPER 0
#endif

#if ROSE_HOPPER

/* The block's shared memory as its launch asks for it. */
#define ROSE_BLOCK_MEMORY(name) extern __shared__ __align__(1024) uint8_t name[]

/* Registers of a thread from here on, of all warps of a warpgroup. */
template <int N> ROSE_DEVICE void fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> ROSE_DEVICE void more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Which of the block's it is, so that ptxas sees that all lanes have the same, and computes what
 * follows from it once a warp: else it moves the places of each product to uniform registers anew
 * (116 moves for 48 products, 2 to 6 % of the time; H100, 2026-11-23). */
ROSE_DEVICE uint32_t warpgroup(void)
{
    return __shfl_sync(ROSE_ALL_LANES, threadIdx.x / 128, 0);
}

/* ---- barriers in shared memory (arriving and waiting: instructions.cuh) ---- */

ROSE_DEVICE void barrier_init(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Call it after all barrier_init, before another thread or TMA uses the barriers. */
ROSE_DEVICE void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
}

/* Where another block of the cluster has stored what it waits for. */
ROSE_DEVICE void barrier_wait_cluster(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nWAIT:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%0],%1;\n"
                 "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* ---- TMA: copies of a box from core `core` of block `block` on, which a barrier counts. What lies
 * outside the map is zeros. ---- */

ROSE_DEVICE void copy_box(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block,
                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0],[%1,{%2,%3,%4}],[%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(core), "r"(block), "r"(barrier)
                 : "memory");
}

/* The same to the blocks of a cluster whose bits are set in `ranks`, at the same place and barrier
 * in each. */
ROSE_DEVICE void copy_box_to(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block,
                             uint32_t barrier, uint32_t ranks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0],[%1,{%2,%3,%4}],[%5],%6;" ::"r"(to),
                 "l"(map), "r"(0), "r"(core), "r"(block), "r"(barrier), "h"((uint16_t)ranks)
                 : "memory");
}

/* As barrier_arrive, at a place of peer_address. Not .release.cluster: that waits for all of the
 * warp's stores, and a place that was read and is to be written again needs none of them. */
ROSE_DEVICE void peer_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" ::"r"(at) : "memory");
}

ROSE_DEVICE uint32_t cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0,%%cluster_ctarank;" : "=r"(r));
    return r;
}

/* As send1 of instructions.cuh: 16 bytes. */
ROSE_DEVICE void send4(uint32_t to, const float4 &v, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0],{%1,%2,%3,%4},[%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

/* ---- shared memory ---- */

/* What this warp has written to shared memory is visible to wgmma and to TMA, after a barrier also
 * for other warps. */
ROSE_DEVICE void copies_ready(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}

ROSE_DEVICE void put_shared(uint32_t at, const float4 &v)
{
    asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}

ROSE_DEVICE void put_shared(uint32_t at, const float2 &v)
{
    asm volatile("st.shared.v2.f32 [%0],{%1,%2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}

ROSE_DEVICE void put_shared(uint32_t at, float v)
{
    asm volatile("st.shared.f32 [%0],%1;" ::"r"(at), "f"(v) : "memory");
}

ROSE_DEVICE void put_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.b32 [%0],%1;" ::"r"(at), "r"(v) : "memory");
}

ROSE_DEVICE void get_shared(float2 *v, uint32_t at)
{
    asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v->x), "=f"(v->y) : "r"(at) : "memory");
}

ROSE_DEVICE void get_shared(uint2 *v, uint32_t at)
{
    asm volatile("ld.shared.v2.b32 {%0,%1},[%2];" : "=r"(v->x), "=r"(v->y) : "r"(at) : "memory");
}

ROSE_DEVICE void get_shared(float4 *v, uint32_t at)
{
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(v->x), "=f"(v->y), "=f"(v->z), "=f"(v->w)
                 : "r"(at)
                 : "memory");
}

/* A barrier of 256 threads, without branches: 128 threads wait if `there` is not 0, and 128 arrive
 * if `away` is 0. */
ROSE_DEVICE void pair_wait(uint32_t barrier, uint32_t there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p bar.sync %0, 256;\n}" ::"r"(barrier),
                 "r"(there)
                 : "memory");
}
ROSE_DEVICE void pair_arrive(uint32_t barrier, uint32_t away)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p bar.arrive %0, 256;\n}" ::"r"(barrier),
        "r"(away)
        : "memory");
}

/* ---- wgmma: d (64 x N) = a (64 x 16) b (16 x N) + d ----
 * d consists of groups of 8 columns. In each group lane 4 g + t holds columns 2 t and 2 t + 1 of
 * row g, then the same columns of row g + 8. a and b are in shared memory, in cores of 8 rows or
 * columns x 16 bytes of k, 128 bytes each. */

/* Cores that follow in k lie 128 bytes apart, cores that follow in the columns `stride` bytes. The
 * next 16 values of k: + 16. `at` counts only as a place in this block's memory. */
ROSE_DEVICE uint64_t core_matrices(uint32_t at, uint32_t stride)
{
    return (uint64_t)(at << 14 >> 18) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}

ROSE_DEVICE void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

ROSE_DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> ROSE_DEVICE void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Nothing that uses d moves across. */
template <int N> ROSE_DEVICE void keep_here(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* clang-format off */
#define D16  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D32 D16 "," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D64 D32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50," \
    "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D72 D64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71"
#define D48 D32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define D96 D64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82," \
    "%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define F4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define F16(d, i) F4(d, i), F4(d, (i) + 4), F4(d, (i) + 8), F4(d, (i) + 12)
#define O16(d) F16(d, 0)
#define O32(d) O16(d), F16(d, 16)
#define O64(d) O32(d), F16(d, 32), F16(d, 48)
#define O48(d) O32(d), F16(d, 32)
#define O72(d) O64(d), F4(d, 64), F4(d, 68)
#define O96(d) O64(d), F16(d, 64), F16(d, 80)

/* keep 0: d is overwritten. */
#define WGMMA(N, REGS, OUT, A, B, KEEP, T, NAME)                                                   \
    ROSE_DEVICE void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int keep, const T *)         \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p," KEEP ",0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGS     \
                     "}, " A ", " B ", p, 1, 1, 0, 0;\n}"                                          \
                     : OUT(d)                                                                      \
                     : "l"(a), "l"(b), "r"(keep));                                                 \
    }
#define WGMMA_TYPES(N, REGS, OUT, A, B, KEEP)                                                      \
    WGMMA(N, REGS, OUT, A, B, KEEP, __half, "f16")                                                 \
    WGMMA(N, REGS, OUT, A, B, KEEP, __nv_bfloat16, "bf16")

WGMMA_TYPES(32, D16, O16, "%16", "%17", "%18")
WGMMA_TYPES(64, D32, O32, "%32", "%33", "%34")
WGMMA_TYPES(96, D48, O48, "%48", "%49", "%50")
WGMMA_TYPES(128, D64, O64, "%64", "%65", "%66")
WGMMA_TYPES(144, D72, O72, "%72", "%73", "%74")
WGMMA_TYPES(192, D96, O96, "%96", "%97", "%98")
/* clang-format on */

#endif
#endif
