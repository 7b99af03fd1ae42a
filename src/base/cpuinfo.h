/* base/cpuinfo.h - what this processor offers. Any thread. */
#ifndef ROSE_BASE_CPUINFO_H
#define ROSE_BASE_CPUINFO_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { ROSE_MAX_CPUS = 1024 }; /* of a CPU list */

/* Instruction-set levels. Each includes all below it, except as noted. The kernels of a level
 * may use the instruction sets named in its comment and no others. */
typedef enum rose_isa {
    ROSE_ISA_SCALAR,     /* plain C, any CPU */
    ROSE_ISA_AVX2,       /* AVX2, FMA, F16C (Haswell 2013, Zen 2017) */
    ROSE_ISA_AVX512,     /* AVX-512 F, BW, VL, DQ (Skylake-X 2017, Zen 4 2022) */
    ROSE_ISA_AMX,        /* AVX512 and AMX tile, bf16 (Sapphire Rapids 2023) */
    ROSE_ISA_NEON,       /* NEON, which every AArch64 CPU has; this level includes SCALAR alone */
    ROSE_ISA_AVX512_BF16 /* AVX512 and VDPBF16PS (Cooper Lake 2020, Zen 4 2022). GEMMs of this
                          * level give other bits, so the level is used only if the user names it */
} rose_isa;

/* Returns the highest level that both the CPU and the operating system support. For AMX this
 * asks the kernel, once per process, for permission to use tile registers (arch_prctl). Call it
 * before threads start. */
rose_isa rose_isa_probe(void);

/* Dot products of bytes (VPDPBUSD), in the VEX form for level avx2 and the EVEX form for level
 * avx512. The levels do not ask for them: kernels that use them give the same bits without. */
bool rose_cpu_has_avxvnni(void);
bool rose_cpu_has_avx512vnni(void);

const char *rose_isa_name(rose_isa isa); /* "scalar" "avx2" "avx512" "amx" "neon" "avx512-bf16" */

/* "auto" gives the probed level. A name above that level fails, and the message names the
 * missing features. */
rose_status rose_isa_parse(const char *name, rose_isa *out, rose_err *err);

/* Writes the CPUs that this thread may run on (sched_getaffinity), in ascending order and at
 * most cap of them; returns how many. */
uint32_t rose_cpus_allowed(int *cpus, uint32_t cap);

/* Returns how many CPUs the cgroup of this process and those above it may use, rounded up;
 * UINT32_MAX: no limit. It reads cpu.max of cgroup version 2, if that file system is mounted. */
uint32_t rose_cpus_quota(void);
uint32_t rose_cpus_quota_parse(
    const char *text); /* parses the text of cpu.max: "200000 100000\n", "max .." */

/* In a loop that waits for another thread. */
static inline void rose_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* As pthread_create, for a thread that takes no signals: the main thread handles them. Threads that
 * it creates inherit this. Returns an errno. */
int rose_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* Pins the calling thread to one CPU (cpu >= 0) and names it (at most 15 bytes) for top and gdb.
 * If the system refuses, that is logged once and ignored, because pinning affects only speed. */
void rose_thread_setup(const char *name, int cpu);

/* Asks the scheduler for another time slice, 100 .. 100000 us; 0 = the system's own. On Linux
 * 6.12 and later, a thread with a short slice that wakes up takes its CPU from a thread with a
 * longer slice at once. Otherwise it would wait for up to a timer tick. It gets no larger share
 * of the CPU and needs no privilege. Threads inherit the slice. Older systems ignore it, which
 * affects only speed. */
void rose_thread_slice(uint32_t us);

/* Sets flush-to-zero and denormals-are-zero in the calling thread (x86 MXCSR, AArch64 FPCR).
 * This is part of the numerics contract, because AMX always works so. Every thread that computes
 * calls it. */
void rose_thread_ftz(void);

/* Returns the bytes of memory available now (MemAvailable, or a smaller cgroup limit); 0 if
 * unknown. */
uint64_t rose_memory_available(void);

#endif
