/* tests/backend/cuda_values.h - device memory of the product tests: values of each type, and where
 * blocks hand sums on. */
#ifndef ROSE_TESTS_CUDA_VALUES_H
#define ROSE_TESTS_CUDA_VALUES_H

#include "backend/cuda_fixture.h"

static inline void fetch(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

static inline uint32_t up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static inline void put(rose_cuda_type t, void *to, size_t i, float x)
{
    const uint16_t h = fx_16(t, x);
    if (t == ROSE_CUDA_F32)
        memcpy((float *)to + i, &x, 4);
    else
        memcpy((uint16_t *)to + i, &h, 2);
}

static inline float get(rose_cuda_type t, const void *from, size_t i)
{
    if (t == ROSE_CUDA_F32) return ((const float *)from)[i];
    uint16_t h = ((const uint16_t *)from)[i];
    return t == ROSE_CUDA_F16 ? rose_f16_to_f32(h) : rose_bf16_to_f32(h);
}

#endif
