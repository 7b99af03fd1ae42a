/* backend/opts.c - see opts.h: the table of the backends' options. */
#include "backend/opts.h"

#include <string.h>

#include "base/cpuinfo.h"

/* A table: as long as there are options. */
size_t rose_backend_opts_rows(rose_backend_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        ROSE_ROW_BRIEF_HEADING("Model and device"),
        ROSE_ROW_ENUM("dtype", rose_compute, &o->dtype, "auto|float32|bfloat16|float16",
                      "number format of weights, KV cache and activations. auto on cuda is the "
                      "type of the file; for float32 and quantized files it is float16 for GPT-2, "
                      "else bfloat16. auto on cpu is bfloat16 for BF16 files, else float32. "
                      "Quantized GGUF files on cpu: auto keeps the matrices as they are, with int8 "
                      "activations and a bfloat16 KV cache. float32 also keeps them, and bfloat16 "
                      "widens them, as cuda always does",
                      .first = true),
        ROSE_ROW_ENUM("quantization", rose_quantization, &o->quantization, "none|int8",
                      "int8 (cpu): weights are 8-bit integers with one scale for each output, "
                      "and the arithmetic is bfloat16; a decode step reads half the bytes",
                      .first = true),
        ROSE_ROW_U32("max-model-len", &o->max_model_len, "N", 0, 0,
                     "longest context in tokens, prompt and output together",
                     .unset = "the model's", .first = true),

        ROSE_ROW_BRIEF_HEADING("Scheduling"),
        ROSE_ROW_U32("max-num-seqs", &o->max_seqs, "N", 1, 4096,
                     "largest number of sequences in one step", .def = 256, .first = true),
        ROSE_ROW_U32("max-num-batched-tokens", &o->max_step_tokens, "N|auto", 1, 1u << 20,
                     "largest number of tokens in one step, prefill and decode together. auto is "
                     "2048 while sequences decode, or more if --itl-slo-ms allows it; while none "
                     "does, also as many as take 60 ms; 8192 in batch, bench and the library, "
                     "where nobody waits for single tokens. It never exceeds 8192, or 4096 or 2048 "
                     "where memory is short",
                     .word = "auto", .unset = "auto on cuda, 2048 on cpu", .first = true),

        ROSE_ROW_BRIEF_HEADING("KV and prefix cache"),
        ROSE_ROW_BYTES("kv-cache-memory", &o->kv_bytes, 0, 0, "memory for the KV cache",
                       .unset = "what full batches need; on cpu at most 4G and half of the free "
                                "memory",
                       .first = true),
        ROSE_ROW_FLOAT("gpu-memory-utilization", &o->cuda.memory_utilization, "SHARE", 0.01f, 1,
                       "cuda: share of the GPU's memory for weights, scratch and KV cache "
                       "together; --kv-cache-memory and --num-kv-pages take precedence",
                       .unset = "what full batches need, at most 90 % of the free memory",
                       .first = true),
        ROSE_ROW_U32("num-kv-pages", &o->kv_pages, "N", 0, 0,
                     "size of the KV cache in pages of 16 tokens; of the whole contexts, where "
                     "other layers have a window",
                     .unset = "follows from --kv-cache-memory"),

        ROSE_ROW_BRIEF_HEADING("CPU"),
        ROSE_ROW_U32("threads", &o->cpu.n_threads, "N", 0, ROSE_MAX_CPUS,
                     "number of compute threads on the CPU", .unset = "one per CPU", .first = true),
        ROSE_ROW_CHOICE("isa", &o->cpu.isa, "auto|scalar|avx2|avx512|avx512-bf16|amx|neon",
                        "highest instruction set of the CPU kernels. All give the same results "
                        "except avx512-bf16, which is faster in bfloat16 but sums in another "
                        "order; auto never chooses it",
                        .sdef = "auto"),
        ROSE_ROW_BOOL("mlock", &o->cpu.lock_memory,
                      "lock weights, KV cache and scratch in memory, so that they are never paged "
                      "out"),
        ROSE_ROW_BOOL("prefault", &o->cpu.prefault,
                      "touch weights, KV cache and scratch at the start, so that no step takes a "
                      "page fault"),

        ROSE_ROW_BRIEF_HEADING("Profiling"),
        ROSE_ROW_BOOL("profiler-kernels", &o->cuda.profiler_kernels,
                      "cuda: also record the GPU's kernels in a profile, if CUPTI is found; steps "
                      "take 1 to 6 % longer while a profile runs"),

        ROSE_ROW_BRIEF_HEADING("CUDA tuning"),
        ROSE_ROW_BOOL("cuda-graph", &o->cuda.graph,
                      "replay decode steps from CUDA graphs that were captured at the start",
                      .def = true),
        ROSE_ROW_BOOL("pdl", &o->cuda.pdl,
                      "let a kernel start and load weights while the kernel before it finishes "
                      "(programmatic dependent launch)",
                      .def = true),
        ROSE_ROW_BOOL("megakernel", &o->cuda.megakernel,
                      "run a decode step of one sequence as one kernel, if model and GPU allow it",
                      .def = true),
        ROSE_ROW_BOOL(
            "fused-ops", &o->cuda.fused_ops,
            "apply the norm to the input rows of a GEMM in the GEMM's own kernel, in steps of few "
            "rows. Like the next four options it changes no result; turn it off to measure its "
            "gain",
            .def = true),
        ROSE_ROW_BOOL("fused-mlp", &o->cuda.fused_mlp,
                      "apply the activation of the MLP in the GEMM's kernel", .def = true),
        ROSE_ROW_BOOL("fused-sampler", &o->cuda.fused_sampler,
                      "find the largest logit in the kernel that computes the logits", .def = true),
        ROSE_ROW_BOOL("fused-kv-append", &o->cuda.fused_kv_append,
                      "apply RoPE and append to the KV cache in the kernel of decode attention",
                      .def = true),
        ROSE_ROW_BOOL(
            "paged-attn", &o->cuda.paged_attn,
            "let attention read the pages of the KV cache in place; off: gather them into rows "
            "first",
            .def = true),
        ROSE_ROW_ENUM(
            "prefill-backend", rose_prefill, &o->cuda.prefill, "auto|flash|naive|auto2",
            "attention kernel of prefill. auto is flash, our tensor-core kernels (wgmma "
            "where the GPU has it); auto2 takes the mma.sync kernels, which give the same bits; "
            "naive is a plain kernel to compare with, whose logits differ by "
            "rounding and depend on how a prompt is cut into chunks",
            .removed = "cudnn",
            .removed_why = "removed: it was slower than our own kernel and gave other "
                           "bits; docs/PERFORMANCE.md has its measurements"),
        ROSE_ROW_BOOL(
            "tune", &o->cuda.tune,
            "at the start, measure for at most 30 seconds which GEMM kernels are fastest for "
            "the model, and save the choice to a file for later starts"),
        ROSE_ROW_STRING(
            "tune-dir", &o->cuda.tune_dir, "DIR",
            "directory of the files of tuned GEMM kernels, one for each kind of GPU",
            .unset = "$XDG_CACHE_HOME/roseinfer or ~/.cache/roseinfer; in bench no directory"),
        ROSE_ROW_U32("device-timeout-ms", &o->cuda.timeout_ms, "MS", 0, 3600000,
                     "treat the GPU as lost if a step takes longer; 0 waits for ever",
                     .def = 60000),
        ROSE_ROW_STRING("cuda-without", &o->cuda.without, "NAMES",
                        "leave out optimisations, to measure what each one gives. Names with "
                        "commas between them: wide, carveout, prompts, fetch, guesses; or all",
                        .unset = "none"),
    };
    const size_t n = sizeof all / sizeof *all;
    _Static_assert(sizeof all / sizeof *all <= ROSE_BACKEND_OPT_ROWS, "too many rows");
    memcpy(rows, all, sizeof all);
    return n;
}

void rose_backend_opts_default(rose_backend_opts *o)
{
    rose_opt rows[ROSE_BACKEND_OPT_ROWS];
    memset(o, 0, sizeof *o); /* what has no row, as cpus */
    rose_opts_default(rows, rose_backend_opts_rows(o, rows));
}
