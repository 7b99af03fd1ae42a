/* bench/policies.h - `bench scheduler --trace`: one trace under each scheduling policy. */
#ifndef ROSE_BENCH_POLICIES_H
#define ROSE_BENCH_POLICIES_H

#include <stdint.h>

typedef struct rose_policies_opts {
    const char *trace;
    uint32_t num_requests; /* 0 = all */
    uint32_t max_num_seqs, max_num_batched_tokens, num_kv_pages, max_queued;
    float scale, step_us, row_us;
    uint32_t ttft_slo_ms, itl_slo_ms; /* 0 = none; with one, a row more: the scheduler steers */
} rose_policies_opts;

/* A table on standard error, JSON on standard output; returns the exit code. */
int rose_bench_policies(const rose_policies_opts *o);

#endif
