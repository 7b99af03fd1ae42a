/* tests/backend/cuda_fixture.h - cpu_fixture.h turned to the GPU; without one a test program
 * exits 77. */
#ifndef TESTS_BACKEND_CUDA_FIXTURE_H
#define TESTS_BACKEND_CUDA_FIXTURE_H

#include "backend/cpu_fixture.h"
#include "backend/cuda/cuda_internal.h"

/* False, and a line that says why, without a GPU. */
static inline bool fx_use_gpu(void)
{
    const rose_backend_ops *ops;
    rose_err err = {""};
    if (rose_backend_cuda(&ops, &err) != ROSE_OK) {
        printf("no GPU: %s\n", err.msg);
        return false;
    }
    fx_device = "cuda";
    fx_without = getenv("ROSE_CUDA_WITHOUT");
    return true;
}

#define FX_WITHOUT_ALL "wide,team,ahead,halves,normed,carveout,prompts,spread,joined"

static inline rose_cuda *fx_cuda(const fx_backend *f)
{
    return (rose_cuda *)(void *)f->cpu;
}

#endif
