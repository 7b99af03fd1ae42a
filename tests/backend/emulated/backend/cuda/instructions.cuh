/* tests/backend/emulated/backend/cuda/instructions.cuh - in place of the one of src: the same on
 * machine.h. */
#ifndef ROSE_BACKEND_CUDA_INSTRUCTIONS_CUH
#define ROSE_BACKEND_CUDA_INSTRUCTIONS_CUH

#include <cmath>

#include "machine.h"

/* What nvcc has and a C++ compiler has not. */
#undef __device__
#undef __global__
#undef __shared__
#undef __align__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__   static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (machine::me().thread)
#define blockIdx  (machine::g_block->place)
#define gridDim   (machine::now().grid)
#define blockDim  (dim3(machine::now().threads))

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
static inline float __uint_as_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint32_t __float_as_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __uint2float_rn(uint32_t u)
{
    return (float)u;
}
static inline unsigned long long __float2ull_rn(float x)
{
    return (unsigned long long)rintf(x);
}
static inline float __frcp_rn(float a)
{
    return 1 / a;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int lane)
{
    return (T)machine::exchange((uint64_t)v)[lane % 32];
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int mask)
{
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    u = machine::exchange(u)[(threadIdx.x % 32) ^ (unsigned)mask];
    memcpy(&v, &u, sizeof v);
    return v;
}
static inline int __all_sync(unsigned, int v)
{
    const uint64_t *all = machine::exchange(v != 0);
    int n = 0;
    for (int i = 0; i < 32; i++)
        n += all[i] != 0;
    return n == 32;
}
static inline void __syncwarp(void)
{
    machine::exchange(0);
}
static inline void __syncthreads(void)
{
    machine::meet(machine::g_block->all, machine::now().threads, true);
}
static inline void atomicMax(unsigned long long *at, unsigned long long v)
{
    if (*at < v) *at = v;
}
static inline void atomicAdd(unsigned long long *at, unsigned long long v)
{
    *at += v;
}
template <typename A, typename B> static inline std::common_type_t<A, B> min(A a, B b)
{
    return a < b ? a : b;
}
template <typename A, typename B> static inline std::common_type_t<A, B> max(A a, B b)
{
    return a < b ? b : a;
}

using std::isfinite;

#include "backend/cuda/layout.cuh"

#define ROSE_ALL_LANES 0xffffffffu

ROSE_DEVICE void pdl_launch(void)
{
}
ROSE_DEVICE void pdl_wait(void)
{
}

ROSE_DEVICE float4 load_now(const float4 *p)
{
    return *p;
}
ROSE_DEVICE float2 load_now(const float2 *p)
{
    return *p;
}
ROSE_DEVICE uint32_t load_now(const uint32_t *p)
{
    return *p;
}

ROSE_CALL void copy_async(uint32_t shared, const void *global, bool there)
{
    void *to = machine::pointer_at(shared);
    if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0)
        machine::die("a copy of 16 bytes to place %u", shared);
    machine::me().adding.push_back([=] {
        if (there)
            memcpy(to, global, 16);
        else
            memset(to, 0, 16);
    });
}
ROSE_CALL void copy_commit(void)
{
    machine::fiber &f = machine::me();
    f.added.push_back(std::move(f.adding));
    f.adding.clear();
    if (!machine::now().how.late_copies) machine::wait_added(0);
}
template <int N> ROSE_DEVICE void copy_wait(void)
{
    machine::wait_added(N);
}

ROSE_DEVICE void touch(const float *)
{
}

ROSE_DEVICE uint32_t shared_address(const void *p)
{
    return machine::address_of(p);
}

/* TMA requires this alignment and size. */
ROSE_CALL void copy_piece(uint32_t shared, const void *global, uint32_t bytes, uint32_t barrier)
{
    void *to = machine::pointer_at(shared);
    machine::barrier *b = &machine::barrier_at(barrier);
    if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 ||
        bytes == 0)
        machine::die("a copy of %u bytes to place %u", bytes, shared);
    machine::start_copy([=] {
        memcpy(to, global, bytes);
        machine::complete(*b, bytes);
    });
}
ROSE_DEVICE void copy_piece_once(uint32_t shared, const void *global, uint32_t bytes,
                                 uint32_t barrier)
{
    copy_piece(shared, global, bytes, barrier);
}

ROSE_DEVICE uint32_t peer_address(uint32_t shared, uint32_t rank)
{
    if (rank >= machine::now().blocks.size()) machine::die("no block %u in the cluster", rank);
    return (shared & machine::LOCAL) | (rank + 1) << 24;
}

ROSE_DEVICE void cluster_arrive(void)
{
    machine::launch &l = machine::now();
    machine::me().cluster_turn = l.cluster.turn;
    machine::meet(l.cluster, (uint32_t)(l.threads * l.blocks.size()), false);
}

ROSE_DEVICE void cluster_wait(void)
{
    machine::launch *l = &machine::now();
    const uint32_t turn = machine::me().cluster_turn;
    machine::wait_until([=] { return l->cluster.turn != turn; });
}

ROSE_DEVICE void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

ROSE_DEVICE float exp2_fast(float x)
{
    return exp2f(x);
}

ROSE_DEVICE float over(float x, float y)
{
    return x * (1 / y);
}

#endif
