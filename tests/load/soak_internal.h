/* tests/load/soak_internal.h - what a soak collects, and how it is reported. */
#ifndef ROSE_LOAD_SOAK_INTERNAL_H
#define ROSE_LOAD_SOAK_INTERNAL_H

#include "bench/watch.h"
#include "load/gpu_memory.h"
#include "load/spread.h"
#include "load/visit.h"
#include "tokenizer/tokenizer.h"

enum {
    ROSE_SOAK_MAX_STALLS = 1000,
    ROSE_SOAK_MAX_SAMPLES = 1 << 17,
    ROSE_SOAK_MAX_TICKS = 1 << 21
};

typedef struct rose_soak_opts {
    const char *duration;
    double duration_s; /* the same, in seconds */
    float load, capacity, capacity_s;
    uint32_t concurrency; /* requests at a time while the capacity is measured */
    float in_median, in_sigma, out_median, out_sigma;
    uint32_t slow_percent, leave_percent;
    float stall_ms, health_ms, growth_mib;
    uint32_t connections, timeout_s, nice;
    const char *backend, *output_dir;
    uint64_t seed;
    rose_server_flags server;
} rose_soak_opts;

/* A silence within streams that is longer than the threshold. Silences of several streams that end
 * together are one stall. */
typedef struct rose_stall {
    uint64_t from_ns, to_ns; /* begin and end of the longest of these silences */
    uint32_t n_streams;
    /* Tokens of the longest silence that waited for a later token (held.h), if it would be below
     * the threshold without them. These stalls are listed apart from others. */
    uint32_t n_held;
} rose_stall;

/* Taken once per second. */
typedef struct rose_soak_sample {
    uint64_t t_ns;
    rose_watch w;
    rose_gpu_memory gpu;
} rose_soak_sample;

/* Taken ten times per second. */
typedef struct rose_soak_tick {
    uint64_t t_ns;
    uint32_t n_threads;
    uint64_t wait_ns[ROSE_WATCH_MAX_THREADS];
} rose_soak_tick;

/* A /health that took longer than allowed. */
typedef struct rose_slow_health {
    uint64_t from_ns, to_ns;
} rose_slow_health;

typedef struct rose_soak {
    const rose_soak_opts *o;
    rose_server server;
    rose_tokenizer *tok;       /* owned */
    char *scratch;             /* [rose_detok_cap(tok)], owned */
    uint64_t start_ns, end_ns; /* the open loop */
    double capacity_rps, rate_rps;
    /* replies of the open loop */
    uint64_t n_sent, n_ok, n_refused, n_left, n_slow_ok, n_slow_dropped;
    uint64_t n_refused_bare; /* refusals without a Retry-After header */
    uint64_t n_other_status, n_failed, n_unsent;
    int other_status;      /* the first status that is not expected */
    char first_error[160]; /* of the first request in n_failed */
    rose_spread ttft, itl, e2e, late, health;
    rose_stall stalls[ROSE_SOAK_MAX_STALLS];
    uint32_t n_stalls; /* may be larger than the array */
    rose_slow_health slow_health[ROSE_SOAK_MAX_STALLS];
    uint32_t n_slow_health, n_health_failed; /* may be larger than the arrays */
    rose_soak_sample *samples;               /* [ROSE_SOAK_MAX_SAMPLES], owned */
    uint32_t n_samples;
    rose_soak_tick *ticks; /* owned */
    uint32_t n_ticks, cap_ticks;
    rose_watch fresh, end;
    uint64_t gpu_before_bytes; /* in use on the GPU before the server was started */
    bool settled, clean_exit, stopped, hung;
    char died[320]; /* "" = the server lived to the end */
    double client_cpu_s;
} rose_soak;

/* Runs everything from the server's start to the report. Returns the exit code. */
int rose_soak_run(const char *model_dir, const rose_soak_opts *o, int argc, char **argv);

/* Prints the verdicts and writes the JSON. Returns the exit code. */
int rose_soak_report(const rose_soak *s, int argc, char **argv);

/* The slope of y over x by least squares; 0 for fewer than two points, or if all x are equal. */
double rose_fit_slope(const double *x, const double *y, size_t n);

#endif
