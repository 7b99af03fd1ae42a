/* backend/cuda/attend_ops.cuh - the instructions of the attention kernels: matrix loads from shared
 * memory, and copies of page pieces into a ring in shared memory. From sm_90 on one lane copies a
 * piece in bulk, and an mbarrier counts its bytes. Before sm_90 all lanes of a warp copy 16 bytes
 * at a time (cp.async), and each piece is a group. Tests put a C++ of their own in its place
 * (tests/backend/emulated). Device code only. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_OPS_CUH
#define ROSE_BACKEND_CUDA_ATTEND_OPS_CUH

#include "backend/cuda/device.cuh"

#define ROSE_ATTEND_MEMORY(name) extern __shared__ __align__(128) uint8_t name[]

ROSE_DEVICE uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices of 16-bit values; lanes 8 i to 8 i + 7 give the rows of matrix i. */
ROSE_DEVICE void load_matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

ROSE_DEVICE void load_matrices_transposed(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* An 8 x 8 matrix of 16-bit values, a row for each 4 lanes, transposed. */
ROSE_DEVICE uint32_t transpose_matrix(uint32_t v)
{
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(v));
    return r;
}

/* ---- a ring of pieces. A barrier belongs to each slot; `warps` warps copy to a slot at a time.
 * SLOTS pieces are requested before the first wait, and one for each piece that was awaited (a NULL
 * or ring_close if there is none left), so that sm_80 can count groups. ---- */

#if __CUDA_ARCH__ >= 900
/* One thread, before a block barrier that all threads meet. */
ROSE_DEVICE void ring_init(uint64_t *barrier, uint32_t warps)
{
    bulk_init(barrier, warps);
}

/* All lanes of the warp. from NULL: the warp has nothing for this slot. */
ROSE_DEVICE void ring_copy(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                           uint32_t lane)
{
    if (lane != 0) return;
    if (from == NULL) {
        barrier_arrive(shared_address(barrier));
        return;
    }
    bulk_expect(barrier, bytes);
    copy_piece(to, from, bytes, shared_address(barrier));
}

/* The same in parts: ring_expect once with all bytes, ring_part or ring_part_once (copy_piece_once)
 * for each, ring_close. */
ROSE_DEVICE void ring_expect(uint64_t *barrier, uint32_t bytes, uint32_t lane)
{
    if (lane == 0) bulk_expect(barrier, bytes);
}
ROSE_DEVICE void ring_part(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                           uint32_t lane)
{
    if (lane == 0) copy_piece(to, from, bytes, shared_address(barrier));
}
ROSE_DEVICE void ring_part_once(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                                uint32_t lane)
{
    if (lane == 0) copy_piece_once(to, from, bytes, shared_address(barrier));
}
ROSE_DEVICE void ring_close(void)
{
}

template <int SLOTS> ROSE_DEVICE void ring_wait(uint64_t *barrier, uint32_t parity)
{
    bulk_wait(barrier, parity);
}
#else
ROSE_DEVICE void ring_init(uint64_t *, uint32_t)
{
}

ROSE_DEVICE void ring_expect(uint64_t *, uint32_t, uint32_t)
{
}
ROSE_DEVICE void ring_part(uint32_t to, const void *from, uint32_t bytes, uint64_t *, uint32_t lane)
{
    const uint8_t *p = static_cast<const uint8_t *>(from);
    for (uint32_t i = lane * 16; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + i), "l"(p + i)
                     : "memory");
}
ROSE_DEVICE void ring_part_once(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                                uint32_t lane)
{
    ring_part(to, from, bytes, barrier, lane);
}
ROSE_DEVICE void ring_close(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

ROSE_DEVICE void ring_copy(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                           uint32_t lane)
{
    if (from != NULL) ring_part(to, from, bytes, barrier, lane);
    ring_close();
}

/* What this thread has copied is there, but for the SLOTS - 1 pieces that were requested last. */
template <int SLOTS> ROSE_DEVICE void ring_wait(uint64_t *, uint32_t)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
}
#endif

/* What this thread has written to the ring comes before the copies to the same place. */
ROSE_DEVICE void ring_written(void)
{
#if __CUDA_ARCH__ >= 900
    bulk_written();
#endif
}

/* After ring_wait: pieces that other lanes or warps have copied are also visible. */
ROSE_DEVICE void ring_meet_warp(void)
{
#if __CUDA_ARCH__ < 900
    __syncwarp();
#endif
}

ROSE_DEVICE void ring_meet_block(void)
{
#if __CUDA_ARCH__ < 900
    __syncthreads();
#endif
}

/* Adds to a counter and returns its value before. What the block has written before a block barrier
 * comes before it, and what other blocks wrote before their turn is visible after it. */
ROSE_DEVICE uint32_t arrive(uint32_t *counter, uint32_t n)
{
    __threadfence();
    const uint32_t before = atomicAdd(counter, n);
    __threadfence();
    return before;
}

/* Pieces that a block copies once, and all of its warps read: their barriers stay in phase 1.
 * Before sm_90 the block meets here when all copies of all warps are there. */
ROSE_DEVICE void ring_meet_once(void)
{
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#endif
}

ROSE_DEVICE void ring_wait_once(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    bulk_wait(barrier, 0);
#else
    (void)barrier;
#endif
}

#endif
