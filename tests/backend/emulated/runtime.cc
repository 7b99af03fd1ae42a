/* tests/backend/emulated/runtime.cc - the CUDA runtime over machine.h, in host memory: what the
 * CUDA backend calls. Every call has ended when it returns; streams and events order nothing more.
 * A capture records the launches, and a launch of the graph runs them. New memory holds NaN. */
#include "backend/cuda/kernels.h"
#include "machine.h"

using machine::g_recorded;

struct graph {
    std::vector<std::function<bool()>> launches;
};

enum { SMS = 4, MEMORY_BYTES = 1 << 30 };

static int g_thing; /* what all streams and events point to */

template <typename T> static cudaError_t make(T *out)
{
    *out = reinterpret_cast<T>(&g_thing);
    return cudaSuccess;
}

static cudaError_t allocate(void **out, size_t n)
{
    *out = aligned_alloc(1024, (n + 1023) / 1024 * 1024);
    if (*out == NULL) return cudaErrorMemoryAllocation;
    memset(*out, 0xff, n);
    return cudaSuccess;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int)
{
    *value = what == cudaDevAttrComputeCapabilityMajor             ? 9
             : what == cudaDevAttrComputeCapabilityMinor           ? 0
             : what == cudaDevAttrMultiProcessorCount              ? (int)SMS
             : what == cudaDevAttrMaxSharedMemoryPerBlockOptin     ? 227 << 10
             : what == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? 228 << 10
             : what == cudaDevAttrClockRate                        ? 1700000
             : what == cudaDevAttrMemoryClockRate                  ? 2600000
             : what == cudaDevAttrGlobalMemoryBusWidth             ? 5120
             : what == cudaDevAttrL2CacheSize                      ? 4096
                                                                   : 1 << 20;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = cudaDeviceProp{};
    snprintf(p->name, sizeof p->name, "emulated");
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
const char *cudaGetErrorName(cudaError_t)
{
    return "emulated";
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : "an error of the emulated GPU";
}
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
/* Code for 9.0, but not for 9.0a: the kernels with wgmma have tests of their own. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *)
{
    *a = cudaFuncAttributes{};
    a->ptxVersion = a->binaryVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t)
{
    *blocks = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    return allocate(out, n);
}
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned)
{
    return allocate(out, n);
}
cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = MEMORY_BYTES;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t)
{
    memset(p, value, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t)
{
    memcpy(to, from, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t)
{
    for (size_t i = 0; i < height; i++)
        memcpy(static_cast<char *>(to) + i * to_pitch,
               static_cast<const char *>(from) + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    return make(out);
}
cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    return make(out);
}
cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaSuccess;
}
/* Times that mean nothing: the tuner then chooses any of the kernels. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    static uint32_t any = 1;
    any = any * 1664525 + 1013904223;
    *ms = 1 + (float)(any >> 24) / 64;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    g_recorded = &(new graph)->launches;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out)
{
    *out = reinterpret_cast<cudaGraph_t>(g_recorded);
    g_recorded = NULL;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
    *out = reinterpret_cast<cudaGraphExec_t>(new graph(*reinterpret_cast<graph *>(g)));
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete reinterpret_cast<graph *>(g);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    delete reinterpret_cast<graph *>(g);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t)
{
    for (auto &launch : reinterpret_cast<graph *>(g)->launches)
        if (!launch()) return cudaErrorLaunchTimeout;
    return cudaSuccess;
}
}

/* ---- in place of sampler.cu: greedy ids alone, which are in the keys ---- */

static void take_largest(const rose_cuda_sampler &a)
{
    for (uint32_t i = 0; i < a.rows; i++) {
        const uint32_t at = a.out != NULL ? a.out[i] : a.first + i;
        const bool any = a.key[i] >> 32 > 0x007fffff; /* above -inf */
        const uint32_t id = any ? ~(uint32_t)a.key[i] : UINT32_MAX;
        (*a.ids)[at] = id;
        if (a.sampled != NULL) a.sampled[at] = id;
    }
}

extern "C" {

cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *, const rose_cuda_sampler *a)
{
    const rose_cuda_sampler copy = *a;
    const auto run = [copy] {
        take_largest(copy);
        return true;
    };
    if (g_recorded == NULL)
        run();
    else
        g_recorded->push_back(run);
    return cudaSuccess;
}
}
