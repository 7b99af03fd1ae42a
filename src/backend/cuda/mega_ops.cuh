/* backend/cuda/mega_ops.cuh - the instructions of the megakernel: slots that blocks exchange, and
 * barriers. Tests put a C++ of their own in its place (tests/backend/emulated). Device
 * code only, sm_90a. */
#ifndef ROSE_BACKEND_CUDA_MEGA_OPS_CUH
#define ROSE_BACKEND_CUDA_MEGA_OPS_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/mega.h"

#if ROSE_HOPPER

/* Polls before a trap, of about half a microsecond each: a second, or a minute for racecheck, under
 * which blocks wait long for each other. */
#ifdef ROSE_RACECHECK
enum { PATIENCE = 1 << 27 };
#else
enum { PATIENCE = 1 << 21 };
#endif

/* Two neighbouring slots. Each slot is one access of 8 bytes, so its value and its number arrive
 * together. */
ROSE_DEVICE void publish(uint64_t *to, uint32_t a, uint32_t b, uint32_t number)
{
    const uint64_t high = (uint64_t)number << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0],{%1,%2};" ::"l"(to), "l"(high | a),
                 "l"(high | b)
                 : "memory");
}

/* Values of N pairs of slots, after all of them carry the number. All loads of a turn are in flight
 * together. If the number never comes, the trap turns a hang into a device error. */
template <int N> ROSE_DEVICE void poll(uint2 v[N], const uint64_t *const at[N], uint32_t number)
{
    uint32_t differ, turns = 0;
    do {
        uint64_t u[N][2];
        differ = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];"
                         : "=l"(u[i][0]), "=l"(u[i][1])
                         : "l"(at[i])
                         : "memory");
#pragma unroll
        for (int i = 0; i < N; i++) {
            differ |= ((uint32_t)(u[i][0] >> 32) ^ number) | ((uint32_t)(u[i][1] >> 32) ^ number);
            v[i] = make_uint2((uint32_t)u[i][0], (uint32_t)u[i][1]);
        }
        if (++turns > PATIENCE) __trap();
    } while (differ != 0);
}

/* The same of N single slots, as floats. */
template <int N>
ROSE_DEVICE void poll_floats(float v[N], const uint64_t *const at[N], uint32_t number)
{
    uint32_t differ, turns = 0;
    do {
        uint64_t u[N];
        differ = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(u[i]) : "l"(at[i]) : "memory");
#pragma unroll
        for (int i = 0; i < N; i++) {
            differ |= (uint32_t)(u[i] >> 32) ^ number;
            v[i] = __uint_as_float((uint32_t)u[i]);
        }
        if (++turns > PATIENCE) __trap();
    } while (differ != 0);
}

/* Among the computing warps. */
ROSE_DEVICE void sync_warps(void)
{
    asm volatile("bar.sync 1,%0;" ::"n"(ROSE_MEGA_WARPS * 32) : "memory");
}

/* Whether the phase has ended; does not wait. */
ROSE_DEVICE bool barrier_test(uint32_t at, uint32_t parity)
{
    uint32_t ended;
    asm volatile("{.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p,[%1],%2;\n"
                 "selp.u32 %0,1,0,p;}"
                 : "=r"(ended)
                 : "r"(at), "r"(parity)
                 : "memory");
    return ended != 0;
}

#endif
#endif
