/* engine/flags.c - see flags.h. */
#include "engine/flags.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpuinfo.h"

void rose_engine_flags_init(rose_engine_flags *f)
{
    rose_engine_opts o;
    rose_engine_opts_default(&o);
    *f = (rose_engine_flags){
        .device = "auto",
        .dtype = "auto",
        .isa = "auto",
        .quantization = "none",
        .max_num_seqs = o.backend.max_seqs,
        .max_num_batched_tokens = o.backend.max_step_tokens,
        .max_num_queued_reqs = o.max_queued,
        .chunked_prefill = o.chunked_prefill,
        .prefill_chunk_size = o.prefill_chunk_size,
        .cpu_affinity = false,
        .megakernel = o.backend.megakernel,
        .admission = "fifo",
        .lookahead = o.lookahead,
        .force_fifo_every = o.force_fifo_every,
        .priority_age_ms = o.priority_age_ms,
        .decode_first = o.decode_first,
        .prefix_cache = o.prefix_cache,
        .overlap_schedule = o.overlap,
        .prefill_backend = rose_prefill_name(o.backend.prefill),
        .cudnn_library = o.backend.cudnn_library,
        .device_timeout_ms = o.backend.device_timeout_ms,
        .cuda_graph = o.backend.cuda_graph,
        .pdl = o.backend.pdl,
        .profiler_kernels = o.backend.profiler_kernels,
        .cuda_without = o.backend.cuda_without,
    };
}

/* A table: as long as there are options. */
size_t rose_engine_flags_rows(rose_engine_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Engine options", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_CHOICE("device", &f->device, "auto|cpu|cuda",
                        "where the model runs; auto is cuda where there is a usable GPU, else cpu"),
        ROSE_ROW_CHOICE("dtype", &f->dtype, "auto|float32|bfloat16|float16",
                        "arithmetic of weights, KV and activations; auto is float16 on cuda; on "
                        "cpu bfloat16 for BF16 files, else float32"),
        ROSE_ROW_CHOICE("quantization", &f->quantization, "none|int8",
                        "int8: weights as integers with a scale for each output, computed in "
                        "bfloat16; half the bytes of a decode step (cpu)"),
        ROSE_ROW_CHOICE("isa", &f->isa, "auto|scalar|avx2|avx512|avx512-bf16|amx|neon",
                        "highest instruction-set level of the CPU kernels; results are the same at "
                        "every level but avx512-bf16, which auto never chooses: bfloat16 products "
                        "at twice the rate of avx512, summed in another order"),
        ROSE_ROW_U32("threads", &f->threads, "N", 0, ROSE_MAX_CPUS, "compute threads",
                     .unset = "one per CPU"),
        ROSE_ROW_U32("max-model-len", &f->max_model_len, "N", 0, 0,
                     "longest context in tokens, prompt and output", .unset = "the model's"),
        ROSE_ROW_U32("max-num-seqs", &f->max_num_seqs, "N", 1, 4096, "most sequences in one step"),
        ROSE_ROW_U32("max-num-batched-tokens", &f->max_num_batched_tokens, "N", 1, 1u << 20,
                     "most tokens in one step, decodes and prompt chunks"),
        ROSE_ROW_BOOL("chunked-prefill", &f->chunked_prefill,
                      "let a long prompt span several steps beside running decodes"),
        ROSE_ROW_U32("prefill-chunk-size", &f->prefill_chunk_size, "N", 0, 0,
                     "most prompt tokens of one sequence in a step", .unset = "the step's budget"),
        ROSE_ROW_U32("num-kv-pages", &f->num_kv_pages, "N", 0, 0,
                     "size of the KV pool in pages of 16 tokens",
                     .unset = "from --kv-cache-memory"),
        ROSE_ROW_BYTES("kv-cache-memory", &f->kv_cache_memory, 0, 0, "memory for the KV pool",
                       .unset =
                           "what full batches need; cpu: at most 4G and half of the free memory"),
        ROSE_ROW_FLOAT("gpu-memory-utilization", &f->gpu_memory_utilization, "SHARE", 0.01f, 1,
                       "cuda: share of the GPU's memory for weights, scratch and KV pages "
                       "together; --kv-cache-memory and --num-kv-pages come first",
                       .unset = "what full batches need, at most 90 % of what is free"),
        ROSE_ROW_U32("max-num-queued-reqs", &f->max_num_queued_reqs, "N", 1, 65536,
                     "requests that wait for admission; one more is refused"),
        ROSE_ROW_U32("max-num-queued-tokens", &f->max_num_queued_tokens, "N", 0, UINT32_MAX,
                     "prompt tokens that wait for admission; a request beyond is refused, unless "
                     "it would wait alone",
                     .unset = "no bound"),
        ROSE_ROW_U32("max-active-requests", &f->max_active_requests, "N", 0, 4096,
                     "requests that have begun and not ended, those preempted among them",
                     .unset = "--max-num-seqs"),
        ROSE_ROW_CHOICE("admission", &f->admission, "fifo|pack",
                        "who begins next: in order, or the shorter of the first --lookahead first"),
        ROSE_ROW_U32("lookahead", &f->lookahead, "N", 1, 4096,
                     "waiting requests that --admission pack chooses from"),
        ROSE_ROW_U32("force-fifo-every", &f->force_fifo_every, "N", 1, UINT32_MAX,
                     "with pack: rounds until nobody may pass the first in the queue any more"),
        ROSE_ROW_U32(
            "priority-age-ms", &f->priority_age_ms, "MS", 0, 3600000,
            "waiting that makes up for one level of a request's priority; 0 = ignore priorities"),
        ROSE_ROW_U32("ttft-slo-ms", &f->ttft_slo_ms, "MS", 0, 3600000,
                     "first tokens come within MS: who cannot have it so is refused with 429",
                     .unset = "no goal"),
        ROSE_ROW_U32("itl-slo-ms", &f->itl_slo_ms, "MS", 0, 3600000,
                     "the next token comes within MS: prompts and new requests get as much of a "
                     "step as that leaves",
                     .unset = "no goal"),
        ROSE_ROW_BOOL("decode-first", &f->decode_first,
                      "running sequences take their row of a step before prompts take theirs"),
        ROSE_ROW_U32("prefill-max-batch-size", &f->prefill_max_batch_size, "N", 0, 4096,
                     "most sequences that prefill in one step", .unset = "no bound"),
        ROSE_ROW_U32("prefill-max-tokens", &f->prefill_max_tokens, "N", 0, 1u << 20,
                     "most prompt tokens in one step, over all sequences",
                     .unset = "the step's budget"),
        ROSE_ROW_BOOL("overlap-schedule", &f->overlap_schedule,
                      "build and enqueue the next step while one runs on the device (cuda; the cpu "
                      "backend computes in the engine's own thread)"),
        ROSE_ROW_BOOL("prefix-cache", &f->prefix_cache,
                      "keep the KV of prompts and outputs, by whole pages, and start behind it "
                      "when a prompt begins the same"),
        ROSE_ROW_U32("prefix-cache-max-pages", &f->prefix_cache_max_pages, "N", 0, INT32_MAX,
                     "most cached pages that are kept while no request uses them",
                     .unset = "the whole pool"),
        ROSE_ROW_BOOL("cuda-graph", &f->cuda_graph,
                      "cuda: decode steps replay graphs that were captured at start"),
        ROSE_ROW_BOOL(
            "pdl", &f->pdl,
            "cuda: a kernel begins, and loads weights, under the end of the one before it"),
        ROSE_ROW_BOOL("profiler-kernels", &f->profiler_kernels,
                      "cuda: a recording holds the device's kernels too, where CUPTI is found; "
                      "steps take 1 to 6 % longer while it runs"),
        ROSE_ROW_STRING("cuda-without", &f->cuda_without, "NAMES",
                        "cuda: leave out optimisations of the backend, to measure what each gives, "
                        "with commas between: wide, team, ahead, halves, normed, "
                        "carveout, prompts, spread, joined, head, once, chain, append, fetch, "
                        "stationary, cluster, stream-k, waves, pingpong; or all",
                        .unset = "none"),
        ROSE_ROW_CHOICE(
            "prefill-backend", &f->prefill_backend, "auto|auto2|flash|cudnn|naive",
            "cuda: attention of prompts; auto is flash, our own kernel; naive is a plain one to "
            "compare with; cudnn is NVIDIA's library, where it is installed, auto2 tries it first "
            "and else is flash. Logits of naive and cudnn differ by rounding, and with either also "
            "by how a prompt is cut into chunks"),
        ROSE_ROW_STRING("cudnn-library", &f->cudnn_library, "PATH",
                        "cuda, prefill backend cudnn or auto2: cuDNN 9.15 or later",
                        .unset = "libcudnn.so.9, where the system finds it"),
        ROSE_ROW_U32("device-timeout-ms", &f->device_timeout_ms, "MS", 0, 3600000,
                     "cuda: a step that takes longer has failed, as if the device were lost; 0 = "
                     "wait for ever"),
        ROSE_ROW_BOOL(
            "megakernel", &f->megakernel,
            "cuda: a decode step of one sequence in one kernel, where model and GPU allow it"),
        ROSE_ROW_BOOL(
            "cpu-affinity", &f->cpu_affinity,
            "pin each compute thread to a CPU; only for CPUs that nothing else uses, since "
            "two servers would pin to the same ones"),
        ROSE_ROW_STRING("engine-cpus", &f->engine_cpus, "LIST",
                        "pin the compute threads to these CPUs, as 0-3,6", .unset = "not pinned"),
        ROSE_ROW_BOOL("mlock", &f->mlock,
                      "cpu: lock weights, KV pool and scratch, so that they are never paged out"),
        ROSE_ROW_BOOL(
            "prefault", &f->prefault,
            "cpu: touch all of them at the start, so that no step meets a page for the first time"),
    };
    const size_t n = sizeof all / sizeof *all;
    memcpy(rows, all, sizeof all);
    return n;
}

static bool is_allowed(int cpu)
{
    int allowed[ROSE_MAX_CPUS];
    uint32_t n = rose_cpus_allowed(allowed, ROSE_MAX_CPUS);
    for (uint32_t i = 0; i < n; i++) {
        if (allowed[i] == cpu) return true;
    }
    return false;
}

rose_status rose_cpu_list_parse(const char *text, int *cpus, uint32_t cap, uint32_t *n,
                                rose_err *err)
{
    const char *p = text;
    *n = 0;
    while (*p != '\0') {
        char *end;
        long a = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        long b = a;
        if (a >= 0 && *end == '-' && end[1] >= '0' && end[1] <= '9') b = strtol(end + 1, &end, 10);
        if (a < 0 || b < a || b >= ROSE_MAX_CPUS || (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL, "CPU list '%s': expected something like 0-3,6",
                             text);
        for (long c = a; c <= b; c++) {
            if (!is_allowed((int)c))
                return rose_fail(err, ROSE_E_INVAL,
                                 "CPU list '%s': this process may not use CPU %ld", text, c);
            if (*n == cap) return rose_fail(err, ROSE_E_INVAL, "CPU list '%s' is too long", text);
            cpus[(*n)++] = (int)c;
        }
        p = *end == ',' ? end + 1 : end;
    }
    if (*n == 0) return rose_fail(err, ROSE_E_INVAL, "the CPU list is empty");
    return ROSE_OK;
}

/* The parser has checked that it is one of them. */
static rose_prefill prefill_of(const char *name)
{
    int p = ROSE_PREFILL_AUTO2;
    while (p > ROSE_PREFILL_AUTO && strcmp(name, rose_prefill_name((rose_prefill)p)) != 0)
        p--;
    return (rose_prefill)p;
}

rose_status rose_engine_flags_read(rose_engine_flags *f, rose_engine_opts *o, rose_err *err)
{
    rose_engine_opts_default(o);
    o->max_queued = f->max_num_queued_reqs;
    o->chunked_prefill = f->chunked_prefill;
    o->prefill_chunk_size = f->prefill_chunk_size;
    o->decode_first = f->decode_first;
    o->prefill_max_seqs = f->prefill_max_batch_size;
    o->prefill_max_tokens = f->prefill_max_tokens;
    o->max_active = f->max_active_requests;
    o->admission = strcmp(f->admission, "pack") == 0 ? ROSE_ENGINE_PACK : ROSE_ENGINE_FIFO;
    o->lookahead = f->lookahead;
    o->force_fifo_every = f->force_fifo_every;
    o->priority_age_ms = f->priority_age_ms;
    o->ttft_slo_ms = f->ttft_slo_ms;
    o->itl_slo_ms = f->itl_slo_ms;
    o->max_queued_tokens = f->max_num_queued_tokens;
    o->prefix_cache = f->prefix_cache;
    o->overlap = f->overlap_schedule;
    o->prefix_cache_max_pages = f->prefix_cache_max_pages;
    rose_backend_opts *b = &o->backend;
    b->dtype = strcmp(f->dtype, "float32") == 0    ? ROSE_COMPUTE_F32
               : strcmp(f->dtype, "bfloat16") == 0 ? ROSE_COMPUTE_BF16
               : strcmp(f->dtype, "float16") == 0  ? ROSE_COMPUTE_F16
                                                   : ROSE_COMPUTE_AUTO;
    rose_status parsed = rose_quantization_parse(f->quantization, &b->quantization, err);
    if (parsed != ROSE_OK) return parsed;
    b->isa = f->isa;
    b->n_threads = f->threads;
    b->max_seqs = f->max_num_seqs;
    b->max_step_tokens = f->max_num_batched_tokens;
    b->max_model_len = f->max_model_len;
    b->kv_pages = f->num_kv_pages;
    b->kv_bytes = f->kv_cache_memory;
    b->lock_memory = f->mlock;
    b->prefault = f->prefault;
    b->gpu_memory_utilization = f->gpu_memory_utilization;
    b->prefill = prefill_of(f->prefill_backend);
    b->cudnn_library = f->cudnn_library;
    b->cuda_graph = f->cuda_graph;
    b->pdl = f->pdl;
    b->profiler_kernels = f->profiler_kernels;
    b->cuda_without = f->cuda_without;
    b->device_timeout_ms = f->device_timeout_ms;
    b->megakernel = f->megakernel;
    if (b->max_step_tokens < b->max_seqs)
        return rose_fail(err, ROSE_E_INVAL,
                         "--max-num-batched-tokens %u is less than --max-num-seqs %u",
                         b->max_step_tokens, b->max_seqs);
    uint32_t n = 0;
    if (f->engine_cpus != NULL) {
        rose_status st = rose_cpu_list_parse(f->engine_cpus, f->cpus, ROSE_MAX_CPUS, &n, err);
        if (st != ROSE_OK) return st;
    } else {
        n = rose_cpus_allowed(f->cpus, ROSE_MAX_CPUS);
    }
    if (b->n_threads == 0) b->n_threads = n > 0 ? n : 1;
    if ((f->cpu_affinity || f->engine_cpus != NULL) && n > 0) {
        b->cpus = f->cpus;
        b->n_cpus = n;
        o->engine_cpu = f->cpus[0];
    }
    return ROSE_OK;
}
