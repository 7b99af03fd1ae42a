/* tests/backend/emulated/backend/cuda/attend_ops.cuh - in place of the one of src: the same on
 * machine.h, with bulk copies and barriers as from sm_90 on. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_OPS_CUH
#define ROSE_BACKEND_CUDA_ATTEND_OPS_CUH

#include "backend/cuda/hopper.cuh"

#define ROSE_ATTEND_MEMORY(name) uint8_t *const name = machine::g_block->arena

ROSE_DEVICE uint32_t shared_at(const void *p)
{
    return machine::address_of(p);
}

ROSE_CALL void read_matrices(uint32_t r[4], uint32_t at, bool transposed)
{
    uint64_t rows[32];
    memcpy(rows, machine::exchange(at), sizeof rows);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint32_t m = 0; m < 4; m++) {
        uint16_t v[2];
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t row = transposed ? t * 2 + e : g, column = transposed ? g : t * 2 + e;
            if (rows[m * 8 + row] % 16 != 0) machine::die("a row of a matrix is not aligned");
            memcpy(&v[e], machine::pointer_at((uint32_t)rows[m * 8 + row] + column * 2), 2);
        }
        r[m] = v[0] | (uint32_t)v[1] << 16;
    }
    machine::exchange(0); /* lanes go on together */
}
ROSE_DEVICE void load_matrices(uint32_t r[4], uint32_t at)
{
    read_matrices(r, at, false);
}
ROSE_DEVICE void load_matrices_transposed(uint32_t r[4], uint32_t at)
{
    read_matrices(r, at, true);
}

ROSE_CALL uint32_t transpose_matrix(uint32_t v)
{
    const uint64_t *all = machine::exchange(v);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t lo = (uint32_t)all[t * 8 + g / 2], hi = (uint32_t)all[t * 8 + 4 + g / 2];
    return (lo >> g % 2 * 16 & 0xffff) | (hi >> g % 2 * 16 & 0xffff) << 16;
}

ROSE_DEVICE void ring_init(uint64_t *barrier, uint32_t warps)
{
    barrier_init(shared_at(barrier), warps);
}
ROSE_DEVICE void ring_copy(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                           uint32_t lane)
{
    if (lane != 0) return;
    const uint32_t at = shared_at(barrier);
    if (from == NULL) {
        barrier_arrive(at);
        return;
    }
    barrier_expect(at, bytes);
    copy_piece(to, from, bytes, at);
}
ROSE_DEVICE void ring_expect(uint64_t *barrier, uint32_t bytes, uint32_t lane)
{
    if (lane == 0) barrier_expect(shared_at(barrier), bytes);
}
ROSE_DEVICE void ring_part(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                           uint32_t lane)
{
    if (lane == 0) copy_piece(to, from, bytes, shared_at(barrier));
}
ROSE_DEVICE void ring_part_once(uint32_t to, const void *from, uint32_t bytes, uint64_t *barrier,
                                uint32_t lane)
{
    ring_part(to, from, bytes, barrier, lane);
}
ROSE_DEVICE void ring_close(void)
{
}
template <int SLOTS> ROSE_DEVICE void ring_wait(uint64_t *barrier, uint32_t parity)
{
    barrier_wait(shared_at(barrier), parity);
}
ROSE_DEVICE void ring_meet_warp(void)
{
}
ROSE_DEVICE void ring_meet_block(void)
{
}
ROSE_DEVICE void ring_written(void)
{
}

/* Blocks run one after the other. */
ROSE_DEVICE uint32_t arrive(uint32_t *counter, uint32_t n)
{
    *counter += n;
    return *counter - n;
}

ROSE_DEVICE void ring_meet_once(void)
{
}
ROSE_DEVICE void ring_wait_once(uint64_t *barrier)
{
    barrier_wait(shared_at(barrier), 0);
}

/* mma.sync: as wgmma, each sum of 16 products and the accumulator is rounded once. */
template <typename T>
ROSE_CALL void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const T *)
{
    uint64_t x[3][32];
    memcpy(x[0], machine::exchange(a[0] | (uint64_t)a[1] << 32), sizeof x[0]);
    memcpy(x[1], machine::exchange(a[2] | (uint64_t)a[3] << 32), sizeof x[0]);
    memcpy(x[2], machine::exchange(b0 | (uint64_t)b1 << 32), sizeof x[0]);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const double *value = values<T>();
    for (uint32_t e = 0; e < 4; e++) {
        sixteen p, q;
        for (uint32_t k = 0; k < 16; k++) {
            const uint64_t row = x[k / 8][g * 4 + k % 8 / 2] >> (e / 2 * 32);
            const uint64_t column = x[2][(t * 2 + e % 2) * 4 + k % 8 / 2] >> (k / 8 * 32);
            p.of[k] = value[row >> (k % 2 * 16) & 0xffff];
            q.of[k] = value[column >> (k % 2 * 16) & 0xffff];
        }
        c[e] = add_products(c[e], p, q);
    }
}

static inline float __shfl_up_sync(unsigned, float v, uint32_t n)
{
    const uint64_t *all = machine::exchange(__float_as_uint(v));
    const uint32_t lane = threadIdx.x % 32;
    return __uint_as_float((uint32_t)all[lane >= n ? lane - n : lane]);
}

#endif
