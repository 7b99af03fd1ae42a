/* tests/load/gpu_memory.c - see gpu_memory.h. Declares the few functions and structs of NVML that
 * are used here, as NVML's documentation gives them. */
#include "load/gpu_memory.h"

#include <stddef.h>

#include "base/dl.h"

enum { MAX_GPUS = 16, MAX_PROCESSES = 128 };

typedef void *nvml_device;

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes; /* all bits set means unknown */
    unsigned gpu_instance, compute_instance;
} nvml_process;

typedef struct nvml {
    int (*init)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, nvml_device *out);
    int (*memory)(nvml_device d, nvml_memory *out);
    int (*processes)(nvml_device d, unsigned *n, nvml_process *out);
    unsigned n_gpus;
    nvml_device gpus[MAX_GPUS];
} nvml;

/* The library is never closed; it goes when the process ends. */
static nvml load(void)
{
    nvml l = {0}, none = {0};
    static const char *const path = "libnvidia-ml.so.1";
    const rose_dl_function all[] = {
        {"nvmlInit_v2", &l.init},
        {"nvmlDeviceGetCount_v2", &l.count},
        {"nvmlDeviceGetHandleByIndex_v2", &l.handle},
        {"nvmlDeviceGetMemoryInfo", &l.memory},
        {"nvmlDeviceGetComputeRunningProcesses_v3", &l.processes},
    };
    void *lib;
    if (rose_dl_open(&lib, &path, 1, all, sizeof all / sizeof *all, NULL) != ROSE_OK) return none;
    if (l.init() != 0 || l.count(&l.n_gpus) != 0) return none;
    if (l.n_gpus > MAX_GPUS) l.n_gpus = MAX_GPUS;
    for (unsigned i = 0; i < l.n_gpus; i++)
        if (l.handle(i, &l.gpus[i]) != 0) return none;
    return l;
}

rose_gpu_memory rose_gpu_memory_read(pid_t pid)
{
    static nvml l;
    static bool loaded;
    rose_gpu_memory out = {0};
    if (!loaded) l = load();
    loaded = true;
    for (unsigned i = 0; i < l.n_gpus; i++) {
        nvml_memory m = {0};
        nvml_process p[MAX_PROCESSES];
        unsigned n = MAX_PROCESSES;
        if (l.memory(l.gpus[i], &m) != 0) return (rose_gpu_memory){0};
        out.known = true;
        out.device_bytes += m.used;
        if (l.processes(l.gpus[i], &n, p) != 0) continue;
        for (unsigned k = 0; k < n; k++)
            if (p[k].pid == (unsigned)pid && p[k].used_bytes + 1 > 1)
                out.process_bytes += p[k].used_bytes;
    }
    return out;
}
