/* base/clock.h - the one clock. Every time stamp in the program is monotonic nanoseconds from here.
 */
#ifndef ROSE_BASE_CLOCK_H
#define ROSE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in ns; about 20-40 ns a call (vDSO). Any thread. */
static inline uint64_t rose_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* CPU time that the calling thread has taken, in ns; a system call, about 300 ns. */
static inline uint64_t rose_thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* From one time stamp to a later one. */
static inline double rose_ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-6;
}

/* 0: at once. A signal may end it early. */
static inline void rose_sleep_ms(uint32_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms > 0) nanosleep(&t, NULL);
}

/* Wall-clock seconds since 1970, for the `created` fields of the API only. */
static inline int64_t rose_unix_time(void)
{
    return (int64_t)time(NULL);
}

#endif
