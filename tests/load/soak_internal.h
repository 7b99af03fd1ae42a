/* tests/load/soak_internal.h - what a soak gathers, and what is made of it. */
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
    double duration_s; /* of it */
    float load, capacity, capacity_s;
    uint32_t concurrency; /* of the measurement of capacity */
    float in_median, in_sigma, out_median, out_sigma;
    uint32_t slow_percent, leave_percent;
    float stall_ms, health_ms, growth_mib;
    uint32_t connections, timeout_s, nice;
    const char *backend, *output_dir;
    uint64_t seed;
    rose_server_flags server;
} rose_soak_opts;

/* A silence within streams, over the threshold; those that end together are one. */
typedef struct rose_stall {
    uint64_t from_ns, to_ns; /* of the longest */
    uint32_t n_streams;
    uint32_t n_held; /* of it: tokens that waited for one behind them (held.h), where without them
                        it would be under the threshold; such silences stand apart from others */
} rose_stall;

/* Once a second. */
typedef struct rose_soak_sample {
    uint64_t t_ns;
    rose_watch w;
    rose_gpu_memory gpu;
} rose_soak_sample;

/* Ten times a second. */
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
    uint64_t start_ns, end_ns; /* of the open loop */
    double capacity_rps, rate_rps;
    /* replies of the open loop */
    uint64_t n_sent, n_ok, n_refused, n_left, n_slow_ok, n_slow_dropped;
    uint64_t n_refused_bare; /* without Retry-After */
    uint64_t n_other_status, n_failed, n_unsent;
    int other_status;      /* the first */
    char first_error[160]; /* of n_failed */
    rose_spread ttft, itl, e2e, late, health;
    rose_stall stalls[ROSE_SOAK_MAX_STALLS];
    uint32_t n_stalls; /* may exceed the array */
    rose_slow_health slow_health[ROSE_SOAK_MAX_STALLS];
    uint32_t n_slow_health, n_health_failed; /* likewise */
    rose_soak_sample *samples;               /* [ROSE_SOAK_MAX_SAMPLES], owned */
    uint32_t n_samples;
    rose_soak_tick *ticks; /* owned */
    uint32_t n_ticks, cap_ticks;
    rose_watch fresh, end;
    uint64_t gpu_before_bytes; /* in use on the GPU when the server was not there yet */
    bool settled, clean_exit, stopped, hung;
    char died[320]; /* "" = the server lived */
    double client_cpu_s;
} rose_soak;

/* The whole of it, from the server's start to the report; the exit code. */
int rose_soak_run(const char *model_dir, const rose_soak_opts *o, int argc, char **argv);

/* Prints the verdicts and writes the JSON; the exit code. */
int rose_soak_report(const rose_soak *s, int argc, char **argv);

/* Slope of y over x by least squares; 0 for fewer than two points or one x. */
double rose_fit_slope(const double *x, const double *y, size_t n);

#endif
