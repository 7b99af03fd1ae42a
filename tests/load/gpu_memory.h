/* tests/load/gpu_memory.h - how much GPU memory is in use, as NVML reports it. NVML comes with the
 * driver and is loaded by name, so nothing of it is needed to build, or to run without a GPU. It
 * creates no CUDA context, so asking takes no GPU memory. One thread. */
#ifndef ROSE_LOAD_GPU_MEMORY_H
#define ROSE_LOAD_GPU_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rose_gpu_memory {
    bool known;            /* a driver and a GPU are there */
    uint64_t device_bytes; /* in use on all GPUs by all processes */
    /* in use by pid; also 0 if the driver does not know our pids, as in most containers */
    uint64_t process_bytes;
} rose_gpu_memory;

/* Takes tens of microseconds. The first call loads the library, which takes milliseconds. */
rose_gpu_memory rose_gpu_memory_read(pid_t pid);

#endif
