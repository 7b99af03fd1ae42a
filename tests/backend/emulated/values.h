/* tests/backend/emulated/values.h - random numbers and values of the types, for the tests of the
 * emulated GPU. */
#ifndef ROSE_TESTS_BACKEND_EMULATED_VALUES_H
#define ROSE_TESTS_BACKEND_EMULATED_VALUES_H

#include "backend/cuda/layout.cuh"

static inline uint64_t g_state; /* of the random numbers: ROSE_TEST_SEED */

static inline uint32_t any(uint32_t below)
{
    g_state ^= g_state << 13;
    g_state ^= g_state >> 7;
    g_state ^= g_state << 17;
    return (uint32_t)(g_state >> 33) % below;
}

/* From -1 up to 1. */
static inline float any_float(void)
{
    return (float)any(1 << 20) / (1 << 19) - 1;
}

static inline float value_of(rose_format t, const void *from, size_t i)
{
    if (t == ROSE_F32) return static_cast<const float *>(from)[i];
    if (t == ROSE_F16) return to_f32(static_cast<const __half *>(from)[i]);
    return to_f32(static_cast<const __nv_bfloat16 *>(from)[i]);
}

static inline void put_value(rose_format t, void *to, size_t i, float x)
{
    if (t == ROSE_F32)
        static_cast<float *>(to)[i] = x;
    else if (t == ROSE_F16)
        from_f32(x, static_cast<__half *>(to) + i);
    else
        from_f32(x, static_cast<__nv_bfloat16 *>(to) + i);
}

#endif
