/* engine/flags.h - the command-line options of an engine, shared by every program that opens one,
 * so that they are spelled, checked and explained in one place. Main thread. */
#ifndef ROSE_ENGINE_FLAGS_H
#define ROSE_ENGINE_FLAGS_H

#include "base/opts.h"
#include "engine/engine.h"

enum { ROSE_ENGINE_FLAG_ROWS = 56, ROSE_MAX_CPUS = 1024 };

/* Destinations of the options; rose_engine_flags_init sets the defaults. */
typedef struct rose_engine_flags {
    const char *device, *dtype, *isa, *quantization, *engine_cpus;
    uint32_t threads, max_num_seqs, max_num_batched_tokens, max_model_len, num_kv_pages;
    uint32_t max_num_queued_reqs, prefill_chunk_size;
    uint64_t kv_cache_memory;
    bool chunked_prefill, cpu_affinity, megakernel;
    /* scheduling */
    const char *admission;
    uint32_t lookahead, force_fifo_every, priority_age_ms, max_active_requests;
    uint32_t prefill_max_batch_size, prefill_max_tokens, max_num_queued_tokens;
    uint32_t prefix_cache_max_pages, ttft_slo_ms, itl_slo_ms;
    bool decode_first, prefix_cache, overlap_schedule;
    bool mlock, prefault;
    /* CUDA */
    const char *prefill_backend;
    float gpu_memory_utilization;
    uint32_t device_timeout_ms;
    bool cuda_graph, pdl, profiler_kernels;
    const char *cuda_without;
    int cpus[ROSE_MAX_CPUS]; /* filled by rose_engine_flags_read */
} rose_engine_flags;

void rose_engine_flags_init(rose_engine_flags *f);

/* Write the option rows, which point into f, to rows; returns how many (<= ROSE_ENGINE_FLAG_ROWS).
 */
size_t rose_engine_flags_rows(rose_engine_flags *f, rose_opt *rows);

/* After parsing: *o borrows f->cpus. Errors: INVAL (a CPU list that cannot be read or is not
 * allowed). */
rose_status rose_engine_flags_read(rose_engine_flags *f, rose_engine_opts *o, rose_err *err);

/* "0-3,6" -> cpus[0..n); only CPUs this process may use. Errors: INVAL naming the part. */
rose_status rose_cpu_list_parse(const char *text, int *cpus, uint32_t cap, uint32_t *n,
                                rose_err *err);

#endif
