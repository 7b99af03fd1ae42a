/* bench/watch.h - what a server says of itself, and what the system says of its process: the
 * figures that must be back where they were. Main thread. */
#ifndef ROSE_BENCH_WATCH_H
#define ROSE_BENCH_WATCH_H

#include "bench/server.h"

/* Of /metrics; sums over engines. A figure that is not there is 0. */
typedef struct rose_watch {
    double running, waiting, kv_pages, kv_pages_free;
    double preemptions, engine_steps;
    double resident_bytes, open_fds;
} rose_watch;

/* A metric of a Prometheus text, summed over its labels; 0 if it is not there. */
double rose_watch_metric(const char *text, size_t len, const char *name);

void rose_watch_parse(rose_watch *out, const char *text, size_t len);

/* What the process itself cannot be wrong about: resident memory and descriptors of pid by /proc.
 * Leaves *out where there is no such process. */
void rose_watch_process(rose_watch *out, pid_t pid);

/* The most memory that pid has had resident since its exec, in bytes (VmHWM of /proc); 0 where the
 * system does not say. */
uint64_t rose_watch_peak_bytes(pid_t pid);

enum { ROSE_WATCH_MAX_THREADS = 24 };

/* How long each thread of pid was ready and waited for a CPU, in ns since its start, the oldest
 * thread first. Returns the number of threads (at most ROSE_WATCH_MAX_THREADS); 0 where the system
 * does not say. */
uint32_t rose_watch_cpu_wait(pid_t pid, uint64_t wait_ns[ROSE_WATCH_MAX_THREADS]);

/* All of it by one blocking GET /metrics; with /proc where the server is a child of ours. */
rose_status rose_watch_read(rose_watch *out, const rose_server *s, rose_err *err);

/* Wait until nothing runs or waits, all pages are free and at most max_fds descriptors (0 = any
 * number) are open; what was seen last is in *out. False: not within timeout_s. */
bool rose_watch_settle(rose_watch *out, const rose_server *s, double max_fds, uint32_t timeout_s,
                       rose_err *err);

#endif
