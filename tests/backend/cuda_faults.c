/* tests/backend/cuda_faults.c - a libcuda.so.1 between the program and the real one
 * (ROSE_REAL_CUDA, its path). It passes all calls on until a fault of cuda_faults.h begins. The
 * CUDA runtime finds every function of the driver by cuGetProcAddress, which it finds by dlsym,
 * so replacing this one function is enough. Functions for per-thread streams are passed on
 * unchanged, because the program uses none. x86-64 and AArch64: all arguments of the functions
 * below are words. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cuda_faults.h"

/* Values of cuda.h, which need not be installed where the tests run. */
enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { PER_THREAD_STREAM = 2, SIZES_OF_64_BITS = 3020, CUDA_12 = 12000 };
enum { HOST_MAPPED = 2, UNTIL_EQUAL = 1 };

typedef uintptr_t word;
typedef int any_function(word, word, word, word, word, word, word, word, word, word, word, word);
typedef int get_function(const char *name, void **out, int version, uint64_t flags, int *found);
typedef int get_function_before_12(const char *name, void **out, int version, uint64_t flags);

/* The role of a function for the faults. For RECORDS and REPLAYS the second argument is the
 * stream. */
typedef enum role { PLAIN, ALLOCATES, RECORDS, REPLAYS } role;

static get_function *real_get(void);

/* Makes everything enqueued on the stream from now on wait for a word that nobody writes. A
 * thread that waits for it in the driver waits for ever, as with a lost device. */
static void silence(word stream)
{
    static volatile uint32_t *never;
    static any_function *wait;
    get_function *get = real_get();
    any_function *allocate = NULL;
    int found;
    if (get == NULL) abort();
    if (never == NULL &&
        (get("cuMemHostAlloc", (void **)&allocate, CUDA_12, 0, &found) != 0 || allocate == NULL ||
         allocate((word)&never, sizeof *never, HOST_MAPPED, 0, 0, 0, 0, 0, 0, 0, 0, 0) != 0))
        abort();
    if (wait == NULL &&
        (get("cuStreamWaitValue32", (void **)&wait, CUDA_12, 0, &found) != 0 || wait == NULL))
        abort();
    *never = 0;
    if (wait(stream, (word)never, 1, UNTIL_EQUAL, 0, 0, 0, 0, 0, 0, 0, 0) != 0) abort();
}

static int answer(role what, any_function *real, const word a[12])
{
    switch (fault_now()) {
    case FAULT_STICKY:
        return LAUNCH_FAILED;
    case FAULT_SILENT:
        if (what == RECORDS || what == REPLAYS) silence(a[1]);
        break;
    case FAULT_MEMORY:
        if (what == ALLOCATES) return OUT_OF_MEMORY;
        break;
    case FAULT_MALLOC: /* only fake_cuda.c has it */
    case FAULT_NONE:
        break;
    }
    if (what == REPLAYS) fault_pace();
    return real(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

#define EACH(X)                                                                                    \
    X(cuGraphLaunch, REPLAYS)                                                                      \
    X(cuLaunchKernel, PLAIN)                                                                       \
    X(cuLaunchKernelEx, PLAIN)                                                                     \
    X(cuMemcpyHtoDAsync, PLAIN)                                                                    \
    X(cuMemcpyDtoDAsync, PLAIN)                                                                    \
    X(cuMemcpyAsync, PLAIN)                                                                        \
    X(cuMemsetD8Async, PLAIN)                                                                      \
    X(cuEventRecord, RECORDS)                                                                      \
    X(cuEventRecordWithFlags, RECORDS)                                                             \
    X(cuEventSynchronize, PLAIN)                                                                   \
    X(cuStreamSynchronize, PLAIN)                                                                  \
    X(cuCtxSynchronize, PLAIN)                                                                     \
    X(cuMemAlloc, ALLOCATES)                                                                       \
    X(cuMemAllocHost, ALLOCATES)                                                                   \
    X(cuMemHostAlloc, ALLOCATES)                                                                   \
    X(cuMemFree, PLAIN)                                                                            \
    X(cuMemFreeHost, PLAIN)                                                                        \
    X(cuGraphExecDestroy, PLAIN)                                                                   \
    X(cuStreamDestroy, PLAIN)

#define DEFINE(name, what)                                                                         \
    static any_function *real_##name;                                                              \
    static int our_##name(word a, word b, word c, word d, word e, word f, word g, word h, word i,  \
                          word j, word k, word l)                                                  \
    {                                                                                              \
        return answer(what, real_##name, (const word[]){a, b, c, d, e, f, g, h, i, j, k, l});      \
    }
EACH(DEFINE)

typedef struct entry {
    const char *name;
    any_function *ours, **real;
} entry;

#define ROW(name, what) {#name, our_##name, &real_##name},
static const entry g_entries[] = {EACH(ROW)};

__attribute__((visibility("default"))) get_function cuGetProcAddress_v2;

static int get_before_12(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

static get_function *real_get(void)
{
    static get_function *get;
    const char *path = getenv("ROSE_REAL_CUDA");
    void *lib = get == NULL && path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (lib != NULL) *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
    if (get == NULL) fprintf(stderr, "ROSE_REAL_CUDA: no driver there\n");
    return get;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found)
{
    get_function *get = real_get();
    if (get == NULL) {
        *out = NULL;
        return NOT_FOUND;
    }
    const int rc = get(name, out, version, flags, found);
    if (rc != 0 || *out == NULL || (flags & PER_THREAD_STREAM) != 0) return rc;
    if (strcmp(name, "cuGetProcAddress") == 0) {
        if (version >= CUDA_12)
            *(get_function **)out = cuGetProcAddress_v2;
        else
            *(get_function_before_12 **)out = get_before_12;
        return rc;
    }
    for (size_t i = 0; i < sizeof g_entries / sizeof *g_entries; i++) {
        const entry *e = &g_entries[i];
        if (strcmp(name, e->name) != 0) continue;
        /* by the same name there are older ones, of 32-bit addresses */
        if (strncmp(name, "cuMem", 5) == 0 && version < SIZES_OF_64_BITS) continue;
        *(void **)e->real = *out;
        *(any_function **)out = e->ours;
    }
    return rc;
}
