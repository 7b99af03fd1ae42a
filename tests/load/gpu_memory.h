/* tests/load/gpu_memory.h - how much GPU memory is in use, as NVML says it. The library comes with
 * the driver and is loaded by name: nothing of it is needed to build, nor to run without a GPU. It
 * makes no context, so the client that asks takes no GPU memory itself. One thread. */
#ifndef ROSE_LOAD_GPU_MEMORY_H
#define ROSE_LOAD_GPU_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rose_gpu_memory {
    bool known;             /* there are a driver and a GPU */
    uint64_t device_bytes;  /* in use on all GPUs, by whomever */
    uint64_t process_bytes; /* of it by pid; 0 too where the driver does not know our pids, as in
                               most containers */
} rose_gpu_memory;

/* Tens of microseconds; the first call loads the library, which takes milliseconds. */
rose_gpu_memory rose_gpu_memory_read(pid_t pid);

#endif
