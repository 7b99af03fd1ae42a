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
        .cpu_affinity = true,
        .megakernel = o.backend.megakernel,
        .admission = "fifo",
        .lookahead = o.lookahead,
        .force_fifo_every = o.force_fifo_every,
        .priority_age_ms = o.priority_age_ms,
        .decode_first = o.decode_first,
        .prefix_cache = o.prefix_cache,
        .overlap_schedule = o.overlap,
        .prefill_backend = rose_prefill_name(o.backend.prefill),
        .device_timeout_ms = o.backend.device_timeout_ms,
        .cuda_graph = o.backend.cuda_graph,
        .pdl = o.backend.pdl,
        .cuda_trial = o.backend.cuda_trial,
    };
}

/* A table: as long as there are options. */
size_t rose_engine_flags_rows(rose_engine_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Engine options", .kind = ROSE_OPT_HEADING},
        {.name = "device",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->device,
         .choices = "auto|cpu|cuda",
         .help = "where the model runs; auto is cuda where there is a usable GPU, else cpu"},
        {.name = "dtype",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->dtype,
         .choices = "auto|float32|bfloat16|float16",
         .help = "arithmetic of weights, KV and activations; auto is float16 on cuda; on cpu "
                 "bfloat16 for BF16 files, else float32"},
        {.name = "quantization",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->quantization,
         .choices = "none|int8",
         .help = "int8: weights as integers with a scale for each output, computed in bfloat16; "
                 "half the bytes of a decode step (cpu)"},
        {.name = "isa",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->isa,
         .choices = "auto|scalar|avx2|avx512|avx512-bf16|amx|neon",
         .help = "highest instruction-set level of the CPU kernels; results are the same at every "
                 "level but avx512-bf16, which auto never chooses: bfloat16 products at twice the "
                 "rate of avx512, summed in another order"},
        {.name = "threads",
         .kind = ROSE_OPT_U32,
         .dest = &f->threads,
         .arg = "N",
         .max = ROSE_MAX_CPUS,
         .unset = "one per CPU",
         .help = "compute threads"},
        {.name = "max-model-len",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_model_len,
         .arg = "N",
         .unset = "the model's",
         .help = "longest context in tokens, prompt and output"},
        {.name = "max-num-seqs",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_num_seqs,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .help = "most sequences in one step"},
        {.name = "max-num-batched-tokens",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_num_batched_tokens,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "most tokens in one step, decodes and prompt chunks"},
        {.name = "chunked-prefill",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->chunked_prefill,
         .help = "let a long prompt span several steps beside running decodes"},
        {.name = "prefill-chunk-size",
         .kind = ROSE_OPT_U32,
         .dest = &f->prefill_chunk_size,
         .arg = "N",
         .unset = "the step's budget",
         .help = "most prompt tokens of one sequence in a step"},
        {.name = "num-kv-pages",
         .kind = ROSE_OPT_U32,
         .dest = &f->num_kv_pages,
         .arg = "N",
         .unset = "from --kv-cache-memory",
         .help = "size of the KV pool in pages of 16 tokens"},
        {.name = "kv-cache-memory",
         .kind = ROSE_OPT_BYTES,
         .dest = &f->kv_cache_memory,
         .arg = "BYTES",
         .unset = "what full batches need; cpu: at most 4G and half of the free memory",
         .help = "memory for the KV pool"},
        {.name = "gpu-memory-utilization",
         .kind = ROSE_OPT_FLOAT,
         .dest = &f->gpu_memory_utilization,
         .arg = "SHARE",
         .fmin = 0.01f,
         .fmax = 1,
         .unset = "what full batches need, at most 90 % of what is free",
         .help = "cuda: share of the GPU's memory for weights, scratch and KV pages together; "
                 "--kv-cache-memory and --num-kv-pages come first"},
        {.name = "max-num-queued-reqs",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_num_queued_reqs,
         .arg = "N",
         .min = 1,
         .max = 65536,
         .help = "requests that wait for admission; one more is refused"},
        {.name = "max-num-queued-tokens",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_num_queued_tokens,
         .arg = "N",
         .max = UINT32_MAX,
         .unset = "no bound",
         .help = "prompt tokens that wait for admission; a request beyond is refused, unless it "
                 "would wait alone"},
        {.name = "max-active-requests",
         .kind = ROSE_OPT_U32,
         .dest = &f->max_active_requests,
         .arg = "N",
         .max = 4096,
         .unset = "--max-num-seqs",
         .help = "requests that have begun and not ended, those preempted among them"},
        {.name = "admission",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->admission,
         .choices = "fifo|pack",
         .help = "who begins next: in order, or the shorter of the first --lookahead first"},
        {.name = "lookahead",
         .kind = ROSE_OPT_U32,
         .dest = &f->lookahead,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .help = "waiting requests that --admission pack chooses from"},
        {.name = "force-fifo-every",
         .kind = ROSE_OPT_U32,
         .dest = &f->force_fifo_every,
         .arg = "N",
         .min = 1,
         .max = UINT32_MAX,
         .help = "with pack: rounds until nobody may pass the first in the queue any more"},
        {.name = "priority-age-ms",
         .kind = ROSE_OPT_U32,
         .dest = &f->priority_age_ms,
         .arg = "MS",
         .max = 3600000,
         .help = "waiting that makes up for one level of a request's priority; 0 = ignore "
                 "priorities"},
        {.name = "ttft-slo-ms",
         .kind = ROSE_OPT_U32,
         .dest = &f->ttft_slo_ms,
         .arg = "MS",
         .max = 3600000,
         .unset = "no goal",
         .help = "first tokens come within MS: who cannot have it so is refused with 429"},
        {.name = "itl-slo-ms",
         .kind = ROSE_OPT_U32,
         .dest = &f->itl_slo_ms,
         .arg = "MS",
         .max = 3600000,
         .unset = "no goal",
         .help = "the next token comes within MS: prompts and new requests get as much of a step "
                 "as that leaves"},
        {.name = "decode-first",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->decode_first,
         .help = "running sequences take their row of a step before prompts take theirs"},
        {.name = "prefill-max-batch-size",
         .kind = ROSE_OPT_U32,
         .dest = &f->prefill_max_batch_size,
         .arg = "N",
         .max = 4096,
         .unset = "no bound",
         .help = "most sequences that prefill in one step"},
        {.name = "prefill-max-tokens",
         .kind = ROSE_OPT_U32,
         .dest = &f->prefill_max_tokens,
         .arg = "N",
         .max = 1u << 20,
         .unset = "the step's budget",
         .help = "most prompt tokens in one step, over all sequences"},
        {.name = "overlap-schedule",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->overlap_schedule,
         .help = "build and enqueue the next step while one runs on the device (cuda; the cpu "
                 "backend computes in the engine's own thread)"},
        {.name = "prefix-cache",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->prefix_cache,
         .help = "keep the KV of prompts and outputs, by whole pages, and start behind it when a "
                 "prompt begins the same"},
        {.name = "prefix-cache-max-pages",
         .kind = ROSE_OPT_U32,
         .dest = &f->prefix_cache_max_pages,
         .arg = "N",
         .max = INT32_MAX,
         .unset = "the whole pool",
         .help = "most cached pages that are kept while no request uses them"},
        {.name = "cuda-graph",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->cuda_graph,
         .help = "cuda: decode steps replay graphs that were captured at start"},
        {.name = "pdl",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->pdl,
         .help = "cuda: a kernel begins, and loads weights, under the end of the one before it"},
        {.name = "cuda-trial",
         .kind = ROSE_OPT_STRING,
         .dest = &f->cuda_trial,
         .arg = "NAMES",
         .unset = "none",
         .help = "cuda: kernels on trial, the same bits in another way, with commas between: "
                 "sampler, prompts4, prompts8, norm, halves, quarters, rules, ordered, wide, "
                 "wide-192, wide-pair, wide-add, wide-96, wide-64-96, wide-64-48, ahead, ahead-4, "
                 "split-8, head-64, team, head"},
        {.name = "prefill-backend",
         .kind = ROSE_OPT_CHOICE,
         .dest = &f->prefill_backend,
         .choices = "auto|auto2|flash|cudnn|naive",
         .help = "cuda: attention of prompts; auto is flash, our own kernel; naive is a plain one "
                 "to compare with; cudnn, and auto2 which tries it first, are not built in"},
        {.name = "device-timeout-ms",
         .kind = ROSE_OPT_U32,
         .dest = &f->device_timeout_ms,
         .arg = "MS",
         .max = 3600000,
         .help = "cuda: a step that takes longer has failed, as if the device were lost; 0 = wait "
                 "for ever"},
        {.name = "megakernel",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->megakernel,
         .help = "cuda: a decode step of one sequence in one kernel, where model and GPU allow it"},
        {.name = "cpu-affinity",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->cpu_affinity,
         .help = "pin each compute thread to a CPU"},
        {.name = "engine-cpus",
         .kind = ROSE_OPT_STRING,
         .dest = &f->engine_cpus,
         .arg = "LIST",
         .unset = "all allowed",
         .help = "CPUs of the compute threads, as 0-3,6"},
        {.name = "mlock",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->mlock,
         .help = "cpu: lock weights, KV pool and scratch, so that they are never paged out"},
        {.name = "prefault",
         .kind = ROSE_OPT_BOOL,
         .dest = &f->prefault,
         .help = "cpu: touch all of them at the start, so that no step meets a page for the first "
                 "time"},
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
    b->cuda_graph = f->cuda_graph;
    b->pdl = f->pdl;
    b->cuda_trial = f->cuda_trial;
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
    if (f->cpu_affinity && n > 0) {
        b->cpus = f->cpus;
        b->n_cpus = n;
        o->engine_cpu = f->cpus[0];
    }
    return ROSE_OK;
}
