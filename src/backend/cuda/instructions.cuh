/* backend/cuda/instructions.cuh - the instructions of every chip, and of sm_90 where they stand
 * under it, that several kernels share and C++ has no name for (those of sm_90a alone: hopper.cuh).
 * Tests put a C++ of their own in its place (tests/backend/emulated). Device code only. */
#ifndef ROSE_BACKEND_CUDA_INSTRUCTIONS_CUH
#define ROSE_BACKEND_CUDA_INSTRUCTIONS_CUH

#include "backend/cuda/layout.cuh"

#define ROSE_ALL_LANES 0xffffffffu

/* ---- programmatic dependent launch: nothing before sm_90 ---- */

ROSE_DEVICE void pdl_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* All memory of the kernels before is visible after it. Every thread of every kernel calls it
 * before it reads what they wrote or writes what they read. */
ROSE_DEVICE void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Loads that stay where they are written. Without this the compiler moves each load to its use,
 * after the barrier, so that the loads wait one after the other. */
ROSE_DEVICE float4 load_now(const float4 *p)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
ROSE_DEVICE float2 load_now(const float2 *p)
{
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}
ROSE_DEVICE uint32_t load_now(const uint32_t *p)
{
    uint32_t r;
    asm volatile("ld.global.cg.u32 %0,[%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}

/* ---- copies to shared memory by every thread, 16 bytes at a time ---- */

/* Zeros if `there` is false; the address must be valid all the same. */
ROSE_DEVICE void copy_async(uint32_t shared, const void *global, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* The copies of this thread since the last call form a group. */
ROSE_DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for all groups of this thread but the last N. */
template <int N> ROSE_DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Bring the cache line of *p nearer. Nothing waits for it. */
ROSE_DEVICE void touch(const float *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* ---- bulk copies to shared memory, stores to a peer's, and the barriers on which they arrive:
 * from sm_90 on ---- */

#if __CUDA_ARCH__ >= 900
ROSE_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

ROSE_DEVICE void bulk_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;\n"
                 "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* One arrival, and the phase also waits for this many bytes. */
ROSE_DEVICE void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

ROSE_DEVICE void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(at) : "memory");
}

ROSE_DEVICE void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n"
                 "@!p bra again;}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* The same by pointers. */
ROSE_DEVICE void bulk_expect(uint64_t *barrier, uint32_t bytes)
{
    barrier_expect(shared_address(barrier), bytes);
}
ROSE_DEVICE void bulk_wait(uint64_t *barrier, uint32_t parity)
{
    barrier_wait(shared_address(barrier), parity);
}

/* What this thread has written to shared memory comes before copies to the same place. */
ROSE_DEVICE void bulk_written(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* By shared addresses. Sizes and addresses are multiples of 16 bytes. */
ROSE_DEVICE void copy_piece(uint32_t shared, const void *global, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,"
                 "[%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The same for data that a step reads once, such as weights. The L2 evicts them first, so that
 * rows, tables and instructions stay in it. */
ROSE_DEVICE void copy_piece_once(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("{.reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy,1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0],[%1],%2,[%3],policy;}" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* An address of this block's shared memory as one of the cluster's block `rank`. */
ROSE_DEVICE uint32_t peer_address(uint32_t shared, uint32_t rank)
{
    uint32_t a;
    asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(a) : "r"(shared), "r"(rank));
    return a;
}

/* Among all threads of a cluster, each of which does both. Between them nothing may wait for
 * another block: under racecheck arrival and wait are one meeting. */
ROSE_DEVICE void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

ROSE_DEVICE void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

ROSE_DEVICE void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

/* Four bytes for the barrier, which lies in the same block as `to`. */
ROSE_DEVICE void send1(uint32_t to, uint32_t v, uint32_t barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(to), "r"(v),
        "r"(barrier)
        : "memory");
}
#else
ROSE_DEVICE void bulk_init(uint64_t *, uint32_t)
{
}
#endif

/* ---- tensor cores: c += a b, 16 x 8 x 16 ---- */

ROSE_DEVICE void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const __half *)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
ROSE_DEVICE void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                     const __nv_bfloat16 *)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- functions of about 22 bits ---- */

ROSE_DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

/* x / y for y of 1 or more: without the scaling of small y that __fdividef has (FC1 of 32,768 rows
 * -4 %, H100, 2026-11-22). */
ROSE_DEVICE float over(float x, float y)
{
    float r;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(y));
    return x * r;
}

#endif
