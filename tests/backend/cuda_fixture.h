/* tests/backend/cuda_fixture.h - cpu_fixture.h turned to the GPU; without one a test program
 * exits 77. */
#ifndef TESTS_BACKEND_CUDA_FIXTURE_H
#define TESTS_BACKEND_CUDA_FIXTURE_H

#include "backend/cpu_fixture.h"
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/gemm.h"

static inline void fx_cuda_fill(void *ctx, uint64_t at, uint64_t bytes, int value)
{
    rose_cuda_rank *rank = &((rose_cuda *)ctx)->ranks[0];
    assert_int_equal(cudaMemsetAsync((uint8_t *)rank->kv_base + at, value, bytes, rank->stream),
                     cudaSuccess);
}

/* False, and a line that says why, without a GPU. */
static inline bool fx_use_gpu(void)
{
    const rose_backend_ops *ops;
    rose_err err = {""};
    if (rose_backend_cuda(&ops, 0, &err) != ROSE_OK) {
        printf("no GPU: %s\n", err.msg);
        return false;
    }
    fx_device = "cuda";
    fx_fill_gpu = fx_cuda_fill;
    fx_without = getenv("ROSE_CUDA_WITHOUT");
    return true;
}

/* The GPU, its kernels prepared. */
static inline const rose_cuda_device *fx_gpu(void)
{
    static rose_cuda_device device;
    rose_err err = {""};
    if (device.sms > 0) return &device;
    if (rose_cuda_device_open(0, &device, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(rose_gemm_prepare(&device), cudaSuccess);
    assert_int_equal(rose_cuda_attend_prepare(), cudaSuccess);
    return &device;
}

/* The kernel with that name. */
static inline const rose_gemm_kernel *fx_named(const char *name)
{
    const rose_gemm_kernel *g = rose_gemm_named(name);
    if (g == NULL) fail_msg("no kernel %s", name);
    return g;
}

/* Number 0 is NULL, the engine's choice; then come the kernels of the table. */
static inline const rose_gemm_kernel *fx_kernel(uint32_t i)
{
    return i == 0 ? NULL : &rose_gemm_kernels[i - 1];
}

static inline const char *fx_kernel_name(const rose_gemm_kernel *g)
{
    return g == NULL ? "auto" : g->name;
}

#define FX_WITHOUT_ALL "wide,carveout,prompts,fetch,guesses"

static inline rose_cuda *fx_cuda(const fx_backend *f)
{
    return (rose_cuda *)(void *)f->cpu;
}

/* A copy on the device, of zeros where `from` is NULL; the caller's to cudaFree. */
static inline void *fx_to_device(const void *from, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from != NULL)
        assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    else
        assert_int_equal(cudaMemset(p, 0, bytes), cudaSuccess);
    return p;
}

/* x in one of the 16-bit types. */
static inline uint16_t fx_16(rose_format t, float x)
{
    return t == ROSE_F16 ? rose_f32_to_f16(x) : rose_f32_to_bf16(x);
}

/* x as the type holds it. */
static inline float fx_rounded(rose_format t, float x)
{
    if (t == ROSE_F32) return x;
    return t == ROSE_F16 ? rose_f16_to_f32(fx_16(t, x)) : rose_bf16_to_f32(fx_16(t, x));
}

/* n values in (-scale, scale), one in 40 of them 20 times as large; the caller's to free. */
static inline uint16_t *fx_random_16(fx_random *r, rose_format t, size_t n, float scale)
{
    uint16_t *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = fx_16(t, (2 * fx_uniform(r) - 1) * scale * (fx_below(r, 40) == 0 ? 20.0f : 1.0f));
    return v;
}

/* As layout.cuh, h_index. */
static inline size_t fx_h_at(uint32_t row, uint32_t k, uint32_t k_pad)
{
    return ((size_t)(row / 8) * (k_pad / 8) + k / 8) * 64 + row % 8 * 8 + k % 8;
}

/* A sequence with the run's seed: the prompt in chunks, then token by token. */
static inline fx_seq fx_run_alone(const rose_model *m, fx_backend *f, uint32_t n_prompt,
                                  uint32_t n_tokens, uint32_t chunk)
{
    fx_seq s = fx_seq_make(m, fx_seed() + 99, n_tokens);
    fx_run(f, &s, n_prompt, chunk);
    fx_run(f, &s, n_tokens, 1);
    fx_seq_drop(f, &s);
    return s;
}

#endif
