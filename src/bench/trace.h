/* bench/trace.h - request traces: when a request came, how long its prompt and its output are, and,
 * where the trace says so, which prompts begin the same. Read: JSON lines with timestamp,
 * input_length, output_length and perhaps hash_ids (Mooncake: whole numbers of milliseconds; Qwen-
 * Bailian: seconds), and CSV with a header (Azure 2023, BurstGPT). Main thread. */
#ifndef ROSE_BENCH_TRACE_H
#define ROSE_BENCH_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_trace_request {
    double at_s; /* after the first */
    uint32_t n_prompt, n_output;
    uint32_t n_blocks, block_tokens; /* blocks with the same number hold the same tokens */
    uint64_t *blocks;                /* [n_blocks], owned; NULL = nothing is known */
} rose_trace_request;

typedef struct rose_trace {
    rose_trace_request *requests; /* [n], owned, in order of time */
    uint32_t n;
} rose_trace;

/* The first max_requests (0 = all) requests; those without prompt or output are left out. Errors:
 * IO, FORMAT (with the line), NOMEM; then *out is empty. */
rose_status rose_trace_read(rose_trace *out, const char *path, uint32_t max_requests,
                            rose_err *err);
void rose_trace_free(rose_trace *t); /* accepts an empty one */

#endif
