/* tests/backend/cuda_faults.h - faults of a GPU that begin in the middle of a server's life,
 * chosen by the environment. They work in the driver that stands before the real one
 * (cuda_faults.c) and in the runtime without a GPU (fake_cuda.c). ROSE_FAULT names the fault; it
 * begins when the file of ROSE_FAULT_WHEN exists. ROSE_FAULT_PACE_US is how long every launch of
 * a graph takes, so that a tiny model's streams are still open when the fault begins. Any
 * thread. */
#ifndef ROSE_TESTS_CUDA_FAULTS_H
#define ROSE_TESTS_CUDA_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum fault {
    FAULT_NONE,
    FAULT_STICKY, /* every call fails with a launch failure, as after an illegal address */
    FAULT_SILENT, /* nothing that was enqueued ends; who waits for it, waits for ever */
    FAULT_MEMORY, /* there is no device memory left */
    FAULT_MALLOC  /* a kernel's launch allocates: fake_cuda.c alone */
} fault;

/* What is wrong by now; it stays wrong. */
static fault fault_now(void)
{
    static const char *const names[] = {"none", "sticky", "silent", "memory", "malloc"};
    static _Atomic bool begun;
    const char *what = getenv("ROSE_FAULT"), *when = getenv("ROSE_FAULT_WHEN");
    if (what == NULL || when == NULL) return FAULT_NONE;
    if (!begun && access(when, F_OK) != 0) return FAULT_NONE;
    begun = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(what, names[i]) == 0) return (fault)i;
    abort(); /* a misspelt test */
}

static void fault_pace(void)
{
    const char *us = getenv("ROSE_FAULT_PACE_US");
    if (us != NULL) usleep((useconds_t)strtoul(us, NULL, 10));
}

#endif
