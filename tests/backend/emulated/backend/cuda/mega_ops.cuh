/* tests/backend/emulated/backend/cuda/mega_ops.cuh - in place of the one of src: the same on
 * machine.h. */
#ifndef ROSE_BACKEND_CUDA_MEGA_OPS_CUH
#define ROSE_BACKEND_CUDA_MEGA_OPS_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/mega.h"

ROSE_DEVICE void publish(uint64_t *to, uint32_t a, uint32_t b, uint32_t number)
{
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0) machine::die("slots are not aligned");
    to[0] = (uint64_t)number << 32 | a;
    to[1] = (uint64_t)number << 32 | b;
}

template <int N> ROSE_DEVICE void poll(uint2 v[N], const uint64_t *const at[N], uint32_t number)
{
    machine::wait_until([&] {
        for (int i = 0; i < N; i++)
            if (at[i][0] >> 32 != number || at[i][1] >> 32 != number) return false;
        return true;
    });
    for (int i = 0; i < N; i++)
        v[i] = {(uint32_t)at[i][0], (uint32_t)at[i][1]};
}

template <int N>
ROSE_DEVICE void poll_floats(float v[N], const uint64_t *const at[N], uint32_t number)
{
    machine::wait_until([&] {
        for (int i = 0; i < N; i++)
            if (at[i][0] >> 32 != number) return false;
        return true;
    });
    for (int i = 0; i < N; i++)
        v[i] = __uint_as_float((uint32_t)at[i][0]);
}

ROSE_DEVICE void sync_warps(void)
{
    machine::meet(machine::g_block->barriers[1], ROSE_MEGA_WARPS * 32, true);
}

ROSE_DEVICE bool barrier_test(uint32_t at, uint32_t parity)
{
    machine::yield();
    return machine::barrier_at(at).phase != parity;
}

ROSE_DEVICE void bulk_written(void)
{
}

static inline void __threadfence(void)
{
}

#endif
