/* backend/cuda/device.c - finds and opens a GPU, waits for it, and words its errors. `index` counts
 * the GPUs that CUDA shows, which CUDA_VISIBLE_DEVICES selects. */
#include <stdatomic.h>

#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/log.h"

rose_status rose_cuda_status(rose_err *err, cudaError_t e, const char *what)
{
    rose_status st = e == cudaErrorMemoryAllocation ? ROSE_E_NOMEM : ROSE_E_BACKEND;
    if (e == cudaSuccess) return ROSE_OK;
    if (e == cudaErrorNotReady)
        return rose_fail(err, st,
                         "CUDA: %s: the GPU has not answered in time "
                         "(--device-timeout-ms)",
                         what);
    return rose_fail(err, st, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
                     cudaGetErrorName(e));
}

/* A decode step is shorter than a sleep and a wake-up, so the loop polls without a pause. */
cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event)
{
    const uint64_t start = rose_now_ns(), most = c->timeout * UINT64_C(1000000);
    cudaError_t e;
    if (c->lost) return cudaErrorNotReady;
    while ((e = cudaEventQuery(event)) == cudaErrorNotReady) {
        if (most == 0 || rose_now_ns() - start < most) continue;
        c->lost = true;
        break;
    }
    return e;
}

cudaError_t rose_cuda_finish(rose_cuda_rank *rank)
{
    cudaError_t e = cudaEventRecord(rank->staged, rank->stream);
    return e == cudaSuccess ? rose_cuda_wait(rank->c, rank->staged) : e;
}

/* Say why there is no device. The runtime reports "insufficient driver" even if there is no driver
 * at all, so the driver's version tells the two apart. */
static rose_status no_device(rose_err *err, cudaError_t e)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (e == cudaErrorInsufficientDriver && driver > 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "device cuda: no usable NVIDIA GPU: the driver is for CUDA %d.%d, and "
                         "this program needs one for %d.%d or later",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (e == cudaErrorInsufficientDriver)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "device cuda: no usable NVIDIA GPU: no driver is installed");
    return rose_fail(err, ROSE_E_UNSUPPORTED, "device cuda: no usable NVIDIA GPU: %s",
                     e != cudaSuccess ? cudaGetErrorString(e) : "no device");
}

rose_status rose_cuda_select(int index, rose_err *err)
{
    static atomic_flag opened = ATOMIC_FLAG_INIT;
    int n = 0, major = 0, minor = 0;
    const uint64_t began = rose_now_ns();
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) return no_device(err, e);
    if (index < 0 || index >= n)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "device cuda: there is no GPU %d: CUDA shows %d",
                         index, n);
    const uint64_t found = rose_now_ns();
    e = cudaSetDevice(index);
    if (!atomic_flag_test_and_set(&opened)) /* the first call creates the CUDA context */
        rose_log(ROSE_LOG_DEBUG, "cuda", "start: driver %.1f + context %.1f ms",
                 rose_ms_between(began, found), rose_ms_between(found, rose_now_ns()));
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "opening the GPU");
    if (major < 8)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "GPU %d has compute capability %d.%d: 8.0 or later is needed", index,
                         major, minor);
    return ROSE_OK;
}

static cudaError_t ask(const rose_cuda_device *d, enum cudaDeviceAttr what, int *value)
{
    *value = 0;
    return cudaDeviceGetAttribute(value, what, d->index);
}

rose_status rose_cuda_device_open(int index, rose_cuda_device *out, rose_err *err)
{
    rose_cuda_device d = {.index = index};
    int major, minor = 0, sms = 0, block = 0, sm = 0, l2 = 0, clock = 0, memory = 0, width = 0;
    rose_status st = rose_cuda_select(index, err);

    *out = (rose_cuda_device){0};
    if (st != ROSE_OK) return st;
    cudaError_t e = ask(&d, cudaDevAttrComputeCapabilityMajor, &major);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrComputeCapabilityMinor, &minor);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrMultiProcessorCount, &sms);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrMaxSharedMemoryPerBlockOptin, &block);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrMaxSharedMemoryPerMultiprocessor, &sm);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrL2CacheSize, &l2);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrClockRate, &clock);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrMemoryClockRate, &memory);
    if (e == cudaSuccess) e = ask(&d, cudaDevAttrGlobalMemoryBusWidth, &width);
    d.cc = (uint32_t)(10 * major + minor);
    d.sms = (uint32_t)sms;
    d.shared_max = (size_t)block;
    d.shared_sm = (size_t)sm;
    d.l2 = (size_t)l2;
    d.mhz = clock / 1e3;                         /* CUDA gives kHz */
    d.bytes_us = 2.0 * memory / 1e3 * width / 8; /* two transfers a clock */
    if (e == cudaSuccess) e = rose_cuda_device_code(&d);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "opening the GPU");
    *out = d;
    return ROSE_OK;
}
