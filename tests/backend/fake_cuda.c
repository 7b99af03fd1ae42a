/* tests/backend/fake_cuda.c - a CUDA runtime and kernels that compute nothing, in the host's
 * memory: linked in place of the real ones it makes a server whose CUDA backend runs from open to
 * close where there is no GPU. Every token is TOKEN. Faults of cuda_faults.h begin in it as a GPU's
 * do; test_cuda_serve.py says what the server makes of them. It stands on the border of
 * backend/cuda/kernels.h, gemm.h and attend.h, and says of the runtime no more than our calls ask.
 */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/attend.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/mega.h"
#include "backend/cuda_faults.h"

static void fault_for_ever(void)
{
    for (;;)
        pause();
}

enum { MEMORY_BYTES = 1 << 30, DRIVER = 13000, TOKEN = 300 };

static int g_thing; /* what all streams, events and graphs point to */

static cudaError_t answer(void)
{
    return fault_now() == FAULT_STICKY ? cudaErrorLaunchFailure : cudaSuccess;
}

/* For calls that wait until the device is done. */
static cudaError_t answer_waiting(void)
{
    if (fault_now() == FAULT_SILENT) fault_for_ever();
    return answer();
}

/* In a step. */
static cudaError_t answer_launch(void)
{
    if (fault_now() == FAULT_MALLOC) {
        void *volatile p = malloc(1);
        free(p);
    }
    return answer();
}

static cudaError_t make(void **out)
{
    *out = &g_thing;
    return answer();
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return answer();
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    (void)device;
    *value = what == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    if (what == cudaDevAttrMultiProcessorCount) *value = 132;
    return answer();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    *p = (struct cudaDeviceProp){.name = "none: tests/backend/fake_cuda.c", .major = 9};
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = DRIVER;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = DRIVER;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaErrorLaunchFailure      ? "cudaErrorLaunchFailure"
           : e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                            : "another";
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorLaunchFailure      ? "unspecified launch failure"
           : e == cudaErrorMemoryAllocation ? "out of memory"
                                            : "another error";
}

cudaError_t cudaGetLastError(void)
{
    return answer();
}

/* ---- memory ---- */

static cudaError_t take(void **out, size_t n)
{
    *out = NULL;
    if (answer() != cudaSuccess) return answer();
    if (fault_now() == FAULT_MEMORY || n > MEMORY_BYTES) return cudaErrorMemoryAllocation;
    *out = calloc(1, n);
    return *out != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    return take(out, n);
}

/* Sampled ids lie in it. */
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    const cudaError_t e = take(out, n);
    for (size_t i = 0; e == cudaSuccess && i < n / sizeof(uint32_t); i++)
        ((uint32_t *)*out)[i] = TOKEN;
    return e;
}

/* A broken context gives nothing back; here it does, so that a leak of ours shows. */
cudaError_t cudaFree(void *p)
{
    const cudaError_t e = answer_waiting();
    free(p);
    return e;
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = MEMORY_BYTES;
    return answer();
}

cudaError_t cudaMemset(void *p, int value, size_t n)
{
    memset(p, value, n);
    return answer_waiting();
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    (void)s;
    memset(p, value, n);
    return answer();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, n);
    return answer_waiting();
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    (void)s;
    memcpy(to, from, n);
    return answer();
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    for (size_t i = 0; i < height; i++)
        cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind,
                        s);
    return answer();
}

cudaError_t cudaDeviceSynchronize(void)
{
    return answer_waiting();
}

/* ---- streams, events, graphs ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    return make((void **)out);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)s;
    return answer_waiting();
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return answer_waiting();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)s;
    (void)e;
    (void)flags;
    return answer();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s;
    (void)mode;
    return answer();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    (void)s;
    return make((void **)out);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return make((void **)out);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    return make((void **)out);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return answer();
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e;
    (void)s;
    return answer();
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    (void)e;
    return fault_now() == FAULT_SILENT ? cudaErrorNotReady : answer();
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    (void)e;
    return answer_waiting();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    (void)from;
    (void)to;
    *ms = 1;
    return answer();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    (void)g;
    (void)flags;
    return make((void **)out);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t g, cudaStream_t s)
{
    (void)g;
    (void)s;
    return answer();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    (void)g;
    (void)s;
    fault_pace();
    return answer_launch();
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    (void)g;
    return answer();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    (void)g;
    return answer_waiting();
}

/* ---- kernels ---- */

#define KERNEL(name, type)                                                                         \
    cudaError_t name(const rose_cuda_launch *l, const type *a)                                     \
    {                                                                                              \
        (void)l;                                                                                   \
        (void)a;                                                                                   \
        return answer_launch();                                                                    \
    }
KERNEL(rose_cuda_norm_run, rose_cuda_norm)
KERNEL(rose_cuda_norm_add_run, rose_cuda_norm_add)
KERNEL(rose_cuda_states_run, rose_cuda_states)
KERNEL(rose_cuda_embed_run, rose_cuda_embed)
KERNEL(rose_cuda_act_run, rose_cuda_act)
KERNEL(rose_cuda_largest_run, rose_cuda_largest)
KERNEL(rose_cuda_rotary_run, rose_cuda_rotary)
KERNEL(rose_cuda_decode_run, rose_cuda_attend)
KERNEL(rose_cuda_prompt_run, rose_cuda_attend)
KERNEL(rose_cuda_attend_plain, rose_cuda_attend)
cudaError_t rose_cuda_gather_run(const rose_cuda_launch *l, const rose_cuda_attend *a, void *dense)
{
    (void)dense;
    return rose_cuda_decode_run(l, a);
}
KERNEL(rose_cuda_sampler_run, rose_cuda_sampler)
KERNEL(rose_cuda_changes_run, rose_cuda_changes)
KERNEL(rose_cuda_reports_run, rose_cuda_reports)
KERNEL(rose_cuda_pack_run, rose_cuda_pack)
KERNEL(rose_cuda_floats_run, rose_cuda_pack)
KERNEL(rose_cuda_draw_run, rose_cuda_draw)
KERNEL(rose_mega_run, rose_mega)

/* The megakernel does not fit. */

bool rose_mega_measure(rose_mega *a, uint32_t grid, size_t shared_max)
{
    (void)a;
    (void)grid;
    (void)shared_max;
    return false;
}

uint64_t rose_mega_layout(rose_mega *a, uint64_t *base, uint32_t positions)
{
    (void)a;
    (void)base;
    (void)positions;
    return 0;
}

void rose_mega_matrix_of(rose_mega_matrix *to, const rose_cuda_matrix *m)
{
    (void)to;
    (void)m;
}

cudaError_t rose_mega_prepare(const rose_cuda_device *d, rose_format t, const rose_mega *a,
                              bool *fits)
{
    (void)d;
    (void)t;
    (void)a;
    *fits = false;
    return answer();
}

/* The table of gemm_table.c, with one kernel that takes everything. */

static cudaError_t run_gemm(const rose_cuda_launch *l, const rose_cuda_matrix *m,
                            const rose_gemm_io *io, const rose_gemm_kernel *g)
{
    (void)l;
    (void)m;
    (void)io;
    (void)g;
    return answer();
}

const rose_gemm_kernel rose_gemm_kernels[] = {{.name = "fake",
                                               .tile_rows = 64,
                                               .tile_n = 64,
                                               .cluster = 1,
                                               .split = 1,
                                               .blocks_per_sm = 1,
                                               .share = 50,
                                               .run = {run_gemm, run_gemm, run_gemm}}};
const uint32_t rose_gemm_n_kernels = 1;

bool rose_gemm_takes(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                     const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    (void)g;
    (void)at;
    (void)m;
    return io->h != NULL;
}

const rose_gemm_kernel *rose_gemm_named(const char *name)
{
    return strcmp(name, rose_gemm_kernels[0].name) == 0 ? rose_gemm_kernels : NULL;
}

cudaError_t rose_gemm_run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                          const rose_gemm_io *io)
{
    return run_gemm(at, m, io, NULL);
}

cudaError_t rose_gemm_prepare(const rose_cuda_device *d)
{
    (void)d;
    return answer();
}

cudaError_t rose_cuda_attend_prepare(void)
{
    return answer();
}

cudaError_t rose_cuda_device_code(rose_cuda_device *d)
{
    d->code = 90;
    d->hopper = true;
    return cudaSuccess;
}
