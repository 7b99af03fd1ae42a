/* base/procstat.h - the system's figures for this process, under the names of Prometheus'
 * process metrics. Reads /proc; any thread. */
#ifndef ROSE_BASE_PROCSTAT_H
#define ROSE_BASE_PROCSTAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value that could not be had is 0. */
typedef struct rose_procstat {
    double cpu_seconds;         /* user and system, all threads */
    uint64_t resident_bytes;    /* RSS */
    uint64_t virtual_bytes;     /* address space */
    uint32_t open_fds, max_fds; /* open file descriptors, and the soft limit for them (0 = none) */
    double start_time_seconds;  /* of the Unix epoch */
    uint64_t minor_faults, major_faults; /* page faults of the process so far: those without and
                                          * those with a read from disk */
} rose_procstat;

rose_procstat rose_procstat_read(void);

/* Reads a file of the system into a string of at most cap - 1 bytes; false if it cannot be read. */
bool rose_proc_read(const char *path, char *text, size_t cap);

/* Finds the number after `key` at the start of a line; false if there is none. */
bool rose_proc_number(const char *text, const char *key, uint64_t *out);

#endif
