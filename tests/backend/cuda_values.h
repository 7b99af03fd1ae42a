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

/* rose_cuda_launch.sums and sum_flags, of all launches of a program; NULL: no sum is handed on. */
static float *fx_sums;
static uint32_t *fx_sum_flags;

static inline size_t fx_n_sums(void)
{
    return (size_t)rose_cuda_linear_blocks();
}

static inline int fx_make_sums(void **state)
{
    (void)state;
    bool wide;
    const int n = rose_cuda_linear_init(&wide) == cudaSuccess ? (int)fx_n_sums() : -1;
    if (n <= 0) return n;
    uint32_t *zeros = calloc((size_t)n, sizeof *zeros);
    assert_non_null(zeros);
    fx_sums = fx_to_device(NULL, rose_cuda_linear_blocks() * sizeof(float) * ROSE_CUDA_SUMS);
    fx_sum_flags = fx_to_device(zeros, (size_t)n * sizeof *zeros);
    free(zeros);
    return 0;
}

static inline int fx_free_sums(void **state)
{
    (void)state;
    cudaFree(fx_sums);
    cudaFree(fx_sum_flags);
    return 0;
}

/* All that was handed on was taken. */
static inline void fx_check_flags(void)
{
    uint32_t *flags = calloc(fx_n_sums() + 1, sizeof *flags);
    assert_non_null(flags);
    if (fx_sum_flags != NULL) fetch(flags, fx_sum_flags, fx_n_sums() * sizeof *flags);
    for (size_t i = 0; i < fx_n_sums(); i++)
        assert_int_equal(flags[i], 0);
    free(flags);
}

#endif
