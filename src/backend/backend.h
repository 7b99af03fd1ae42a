/* backend/backend.h - the interface between engine and backends: one step of the forward pass over
 * a ragged batch.
 *
 * A backend computes its memory need, loads the weights, and runs steps. It decides itself how a
 * step is fused. It knows token ids, positions and pages; never text, requests or scheduling.
 * Threads: plan is pure; open, step, collect, close are called by the engine thread
 * only. No allocation after open(). */
#ifndef ROSE_BACKEND_BACKEND_H
#define ROSE_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "model/model.h"

enum {
    ROSE_KV_PAGE_TOKENS = 16 /* tokens in a KV page, in every backend */
};

/* A sequence drops pages of a pool with a window in whole groups of ROSE_KV_KEEP positions, as the
 * attention of every backend reads whole groups. */
enum { ROSE_KV_KEEP = 64 };

/* The first position whose page the sequence must still hold before a row at `pos` is computed: all
 * pages before it may be dropped. window 0: position 0. */
static inline uint32_t rose_pool_keeps_from(uint32_t window, uint32_t pos)
{
    const uint32_t first = window != 0 && pos >= window ? pos - window + 1 : 0;
    return first / ROSE_KV_KEEP * ROSE_KV_KEEP;
}

/* In results: every logit is NaN or -inf, so the sequence cannot continue. */
#define ROSE_TOKEN_NONE UINT32_MAX

/* In batches, with ROSE_CAP_AHEAD: ROSE_TOKEN_OUTPUT | i stands for the id of output i of the
 * previous step, collected or not. If that id is ROSE_TOKEN_NONE, the row is computed from any
 * id. No vocabulary is large enough to use this bit. */
#define ROSE_TOKEN_OUTPUT (UINT32_C(1) << 31)

typedef enum rose_compute {
    ROSE_COMPUTE_AUTO,
    ROSE_COMPUTE_F32,
    ROSE_COMPUTE_BF16,
    ROSE_COMPUTE_F16
} rose_compute;

/* How the weight matrices are stored; all other tensors have the dtype. */
typedef enum rose_quantization {
    ROSE_QUANT_NONE,
    ROSE_QUANT_INT8 /* CPU: integers in -127 .. 127 and a scale for each output, computed in
                       bfloat16; other backends refuse */
} rose_quantization;

const char *rose_quantization_name(rose_quantization q); /* "none", "int8" */

/* The format of a resolved type, which is not AUTO. */
static inline rose_format rose_compute_format(rose_compute c)
{
    return c == ROSE_COMPUTE_F32 ? ROSE_F32 : c == ROSE_COMPUTE_BF16 ? ROSE_BF16 : ROSE_F16;
}

/* "auto", "float32", "bfloat16", "float16": as --dtype spells them. */
const char *rose_compute_name(rose_compute c);

/* Which CUDA kernel computes the attention of prompts. */
typedef enum rose_prefill {
    ROSE_PREFILL_AUTO,  /* flash */
    ROSE_PREFILL_FLASH, /* tensor cores over paged KV: wgmma where GPU and shape allow it */
    ROSE_PREFILL_NAIVE, /* a plain kernel to compare with; its bits differ from the others', and
                           depend on whether a row is computed alone */
    ROSE_PREFILL_AUTO2  /* CUDA: flash by mma.sync alone, to the same bits; the CPU takes AUTO */
} rose_prefill;

/* "auto", "flash", "naive", "auto2": as --prefill-backend spells them. */
const char *rose_prefill_name(rose_prefill p);

/* Options of the CPU backend. */
typedef struct rose_cpu_opts {
    const char *isa;    /* "auto", "scalar", "avx2", "avx512", "avx512-bf16", "amx", "neon"; NULL =
                           auto */
    uint32_t n_threads; /* compute threads, the engine thread included; 0 = one per CPU in cpus */
    const int *cpus;    /* compute thread i is pinned to cpus[i % n_cpus]; borrowed */
    uint32_t n_cpus;    /* 0 = do not pin (n_threads 0 then means all allowed CPUs) */
    bool lock_memory;   /* mlock weights, KV pages and scratch, so that they are never paged out */
    bool prefault;      /* touch weights, KV pages and scratch before open returns, so that no step
                           takes a page fault */
} rose_cpu_opts;

/* Options of the CUDA backend. The sampled ids do not depend on them, except on prefill. */
typedef struct rose_cuda_opts {
    float memory_utilization; /* share of the GPU's memory for weights, scratch, graphs and KV
                                 pages together, above 0 and at most 1; 0 = the default rule (see
                                 plan). Not used if kv_pages or kv_bytes is set */
    rose_prefill prefill;     /* the CPU backend refuses all but AUTO */
    uint32_t device;          /* GPU, counted among those that CUDA_VISIBLE_DEVICES shows */
    bool graph;               /* replay decode steps from captured graphs */
    bool guesses;             /* also steps whose sequences have guesses; not an option, it follows
                                 from rose_engine_opts.spec */
    bool pdl;                 /* programmatic dependent launch: a kernel starts while the kernel
                                 before it finishes */
    bool megakernel; /* run decode steps of one sequence as one kernel, if model and GPU allow it */
    /* Fusions: norm, MLP activation, largest logit in the GEMM; RoPE and KV append in the decode
     * kernel. paged_attn false: attention reads gathered rows instead of pages. The bits are the
     * same. */
    bool fused_ops, fused_mlp, fused_sampler, fused_kv_append, paged_attn;
    bool profiler_kernels; /* record kernels in profiles (base/profile.h), by CUPTI */
    const char *without;   /* names of optimisations to leave out, with commas between them
                              (switches.c of the backend). NULL, "" and "none" leave out none;
                              the CPU backend refuses all others */
    /* GEMM kernels: read the fastest of each shape from the GPU's file in this directory; NULL: no
     * file. tune: measure them at open (at most 30 s), and write the file. */
    const char *tune_dir;
    bool tune;
    uint32_t timeout_ms; /* time limit of one step: a device that takes longer has failed; 0 =
                          * wait for ever */
} rose_cuda_opts;

/* The plan is for steps of 8192 tokens, or for 4096 or 2048 if their scratch memory would take more
 * than a sixteenth of what the weights leave; the scheduler uses as many of them as make nobody
 * wait (busy_step_tokens). */
#define ROSE_STEP_AUTO UINT32_MAX

typedef struct rose_backend_opts {
    rose_compute dtype; /* data type of weights and activations. AUTO on a CPU: BF16 for BF16
                         * files and with INT8, else F32; for files with quantized matrices F32
                         * with int8 activations. F32 keeps quantized matrices as they are, BF16
                         * widens them. AUTO on CUDA: F16 or BF16 as most of the file; for files in
                         * F32 or with quantized matrices F16 for GPT-2, else BF16. CUDA widens
                         * quantized matrices */
    rose_quantization quantization;
    uint32_t max_seqs;        /* at most this many sequences in one step, 1 .. 4096 */
    uint32_t max_step_tokens; /* at most this many tokens (rows) in one step, >= max_seqs; or
                               * ROSE_STEP_AUTO; 0 = AUTO on CUDA, on a CPU 2048 (or max_seqs, if
                               * that is more) */
    uint32_t max_model_len;   /* longest context in tokens; 0 = the model's max_positions */
    uint32_t kv_pages;        /* pages of the first pool, the others in proportion; 0 = from
                               * kv_bytes */
    uint64_t kv_bytes; /* memory for pages if kv_pages is 0; 0 = the default rule (see plan) */
    rose_cpu_opts cpu;
    rose_cuda_opts cuda;
} rose_backend_opts;

/* Sets 256 seqs, graphs, dependent launch, one minute for a step, and auto for
 * everything else. */
void rose_backend_opts_default(rose_backend_opts *o);

/* Blocks of equal size, which the engine hands out to sequences: what the layers of a pool keep
 * of a sequence's past. */
typedef struct rose_pool {
    uint64_t block_bytes; /* one block: K and V of all layers of the pool */
    uint32_t n_blocks, n_layers;
    uint32_t tokens; /* positions that a block holds: ROSE_KV_PAGE_TOKENS */
    uint32_t window; /* a row reads itself and window - 1 positions before; 0 = all before */
} rose_pool;

/* The memory that start-up will take, from arithmetic alone. All in bytes unless said. */
typedef struct rose_memory_plan {
    rose_compute dtype; /* resolved, never AUTO */
    rose_quantization quantization;
    bool int8_activations; /* CPU, dtype F32, files with quantized matrices: a GEMM first rounds its
                              input to int8 in blocks of 32; attention and KV are BF16 */
    uint32_t max_seqs, max_step_tokens, max_model_len;
    uint32_t busy_step_tokens; /* ROSE_STEP_AUTO: tokens of a step for which no estimate of its time
                                  is needed, 2048 or max_seqs; 0 = max_step_tokens was given */
    uint32_t n_threads;        /* resolved */
    rose_prefill prefill;      /* CUDA: resolved: FLASH or NAIVE */
    uint32_t without;          /* CUDA: opts.cuda.without and the fusions that are off as bits, plus
                                * bits for the optimisations that the GPU cannot run; `scratch` and
                                * `graphs` depend on it */
    uint64_t weights;          /* packed copies that the backend keeps */
    uint64_t weights_read; /* CPU: bytes of weights that a one-row step reads; CUDA: 0, unknown */
    uint32_t n_pools;      /* 1 .. ROSE_MAX_POOLS */
    rose_pool pools[ROSE_MAX_POOLS]; /* in the order of rose_arch_pools */
    uint64_t kv;                     /* all blocks of all pools */
    uint64_t scratch;                /* activations, logits, per-thread buffers */
    uint64_t graphs;    /* CUDA: captured steps and loaded kernels, an upper estimate */
    uint64_t total;     /* weights + kv + scratch + graphs */
    uint64_t available; /* memory available now; 0 = unknown */
} rose_memory_plan;

/* The arithmetic of a plan, for people: "float32", "bfloat16 with int8 weights", ... */
const char *rose_plan_text(const rose_memory_plan *p);
/* Its pools: "8192 pages of 16 tokens for 5 full layers, 2100 for 29 layers with a window of 1024",
 * or without the layers if all keep whole contexts. */
enum { ROSE_PLAN_KV_TEXT = 400 };
void rose_plan_kv_text(const rose_memory_plan *p, char out[ROSE_PLAN_KV_TEXT]);
/* Its steps: "steps of up to 256 sequences and 8192 tokens, 2048 while sequences decode". */
enum { ROSE_PLAN_STEPS_TEXT = 120 };
void rose_plan_steps_text(const rose_memory_plan *p, char out[ROSE_PLAN_STEPS_TEXT]);

/* The sampling parameters: they say how the next id is chosen. The filters act in this order (as
 * in vLLM). Divide by temperature. Drop ids below min_p times the highest probability. Keep the
 * top_k most probable. Keep the smallest set whose renormalised probability reaches top_p,
 * including the token that crosses it. Ties go to the lower id. */
typedef struct rose_sampling {
    float temperature; /* >= 0; 0 = greedy (all below is ignored) */
    float top_p;       /* (0, 1]; 1 = off */
    float min_p;       /* [0, 1]; 0 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;     /* the random number is a function of (seed, rose_batch_out.pos) alone */
} rose_sampling;

/* One entry of a log-probability report: the log-probability of an id and its rank (1 = the
 * largest logit). The natural logarithm is taken from the model's raw logits, without
 * temperature and rules. A NaN logit weighs nothing, and its own entry is NaN. If the largest
 * logit is +inf or -inf, all entries are NaN. */
typedef struct rose_logprob {
    uint32_t id, rank;
    float logprob;
} rose_logprob;

enum { ROSE_MAX_TOP_LOGPROBS = 20 };

/* The rules of an output beyond plain sampling (penalties, biases, bans, reports). Most outputs
 * have none and carry NULL instead. The logits are changed in the order of the fields, before
 * temperature and filters (as in vLLM). The report uses the logits as the model gave them. All
 * arithmetic is fp32, with one rounding each. */
typedef struct rose_output_rules {
    /* The id to score, or ROSE_TOKEN_NONE: an id is sampled. If an id is given, nothing is
     * sampled: this id is the result, and the report is about it (log-likelihood of a given
     * text). */
    uint32_t score_id;
    /* NULL, or [1 + n_top] entries that step() fills: the resulting id, then the n_top largest
     * logits by rank (equal logits: the lower id first). n_top <= ROSE_MAX_TOP_LOGPROBS, <=
     * vocab_size. */
    rose_logprob *report;
    uint32_t n_top;
    /* NULL, or words [(vocab_size + 31) / 32]: an id whose bit (id % 32 of word id / 32) is 0 gets
     * -inf. The bits after vocab_size are 0. */
    const uint32_t *mask;
    uint32_t n_allowed; /* 0 = all ids; else all but these get -inf */
    const uint32_t *allowed;
    const uint32_t *banned; /* [n_banned] get -inf */
    uint32_t n_banned;
    uint32_t n_bias;
    const uint32_t *bias_ids; /* [n_bias] distinct */
    const float *bias;        /* [n_bias] added */
    /* The n_seen distinct ids in the text so far, with the number of times each was generated (0
     * = in the prompt only). For each: x = x > 0 ? x / repetition : x * repetition. If it was
     * generated, then x = x - frequency * count, and x = x - presence. */
    const uint32_t *seen_ids, *seen_counts;
    uint32_t n_seen;
    float repetition, frequency, presence; /* 1, 0, 0 = off */
} rose_output_rules;

/* A sequence of a step: neighbouring rows of the batch at neighbouring positions. Earlier steps
 * have already written the K and V of earlier positions to its pages. The next entry may continue
 * it: the same tables, from the next position on. Both are then one sequence, with the bits of one
 * entry that has all rows. */
typedef struct rose_batch_seq {
    uint32_t first, n; /* rows first .. first + n - 1, at least one */
    uint32_t pos;      /* of the first row */
    uint32_t adapter;  /* 0 = none; no backend has others yet */
    /* Its page tables, one a pool: entry i is the page of positions 16 i .. 16 i + 15. Entries are
     * valid up to the position of the last row. In a pool with a window the entries of dropped
     * pages (rose_pool_keeps_from) are numbers of blocks too, but nobody reads these blocks for
     * this sequence. */
    const uint32_t *table[ROSE_MAX_POOLS];
} rose_batch_seq;

/* An id to sample or to score, or a state to add. */
typedef struct rose_batch_out {
    uint32_t row; /* of the batch: its logits are used; outputs may share a row */
    uint32_t pos; /* position of the sampled token: the key of the random number */
    rose_sampling params;
    const rose_output_rules *rules; /* NULL = none; borrowed until collect() */
    /* NULL, or a sum, [d_model], borrowed until collect(). The state of the row is added to the
     * sum: what the head's GEMM reads, as fp32. Each addition is one fp32 rounding, output after
     * output. Outputs of the same sum are neighbours, and there are at most n_seqs sums. An output
     * with a sum samples nothing: it has no rules, and its id means nothing. */
    float *sum;
} rose_batch_out;

/* A batch: all arrays are borrowed until step() returns. The sequences stand in the order of their
 * rows and have all rows. No two sequences write the same page in one step. */
typedef struct rose_batch {
    uint32_t n_seqs;            /* 1 .. max_seqs */
    uint32_t n_tokens;          /* rows, 1 .. max_step_tokens */
    uint32_t n_outputs;         /* 0 .. max_step_tokens */
    const uint32_t *tokens;     /* [n_tokens] ids < vocab_size, or ROSE_TOKEN_OUTPUT | i */
    const rose_batch_seq *seqs; /* [n_seqs] */
    const rose_batch_out *outs; /* [n_outputs] */
    float *logits; /* NULL, or [n_outputs][vocab_size] host memory that gets the raw logits */
} rose_batch;

/* The sequence from entry *i on, with the rows of all entries that continue it; *i moves on. */
rose_batch_seq rose_batch_next(const rose_batch *b, uint32_t *i);
/* Whether an output has rules, or a sum. */
bool rose_batch_has_rules(const rose_batch *b);
bool rose_batch_has_sums(const rose_batch *b);
/* Whether one of the outputs first .. end - 1 has no sum, so that its logits are needed. */
bool rose_batch_needs_logits(const rose_batch *b, uint32_t first, uint32_t end);
/* Whether the rules change the logits that an id is sampled from. */
bool rose_rules_change(const rose_output_rules *r);

typedef struct rose_step_result {
    uint32_t n_outputs;
    const uint32_t *ids; /* [n_outputs] resulting ids; ROSE_TOKEN_NONE if no logit was above -inf;
                            valid until the next step() */
} rose_step_result;

/* What a backend can do beyond sampling, as bits of rose_backend_ops.caps. When a request is
 * submitted that needs a missing capability, the engine refuses the request and names the
 * capability. */
enum {
    ROSE_CAP_REPORTS = 1u << 0,     /* report and score_id, outputs at any row */
    ROSE_CAP_LOGIT_RULES = 1u << 1, /* mask .. presence */
    /* step() returns before its work is done, and the next one is accepted before this one is
     * collected. Two steps may be in flight; they run and are collected in order. Tokens may be
     * ROSE_TOKEN_OUTPUT. */
    ROSE_CAP_AHEAD = 1u << 2,
    ROSE_CAP_STATES = 1u << 3, /* sums */
};

typedef struct rose_backend_ops {
    const char *name; /* "cpu", "cuda" */
    uint32_t caps;    /* ROSE_CAP_* */
    /* Whether the backend computes this model at all, as plan() asks first; NULL = every model.
     * UNSUPPORTED names the field. */
    rose_status (*check)(const rose_model *m, rose_err *err);
    /* Computes the memory plan. Default rule for the number of KV pages: enough for max_seqs
     * full contexts, but at most 4 GiB and at most half of the memory that the weights leave.
     * CUDA instead: at most 90 % of the memory left after weights, scratch and graphs. Always at
     * least one full context; an explicit number that holds less is refused. checks.h says how the
     * memory is divided over pools.
     *
     * Errors: INVAL (options), UNSUPPORTED (architecture or dtype, by name), NOMEM. NOMEM: the
     * plan exceeds `available` (the message gives the parts and the option that shrinks them),
     * or the system does not let us lock so much. */
    rose_status (*plan)(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                        rose_err *err);
    /* Says as what the plan keeps the matrix whose bytes in the file begin at data. NULL: a backend
     * that does not say. */
    rose_kept (*kept)(const rose_model *m, const rose_memory_plan *p, const void *data);
    /* Packs the weights; the model's mappings are not used afterwards. */
    rose_status (*open)(void **ctx, const rose_model *m, const rose_backend_opts *o,
                        const rose_memory_plan *p, rose_err *err);
    /* Enqueues one step. Errors: BACKEND: the context is broken, close it. INVAL: the batch is
     * outside the plan or names an id that is not in the vocabulary; nothing was done. */
    rose_status (*step)(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err);
    /* Wait for that step and give its ids. */
    rose_status (*collect)(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err);
    /* Closes the context after it has waited for the steps in flight. Accepts NULL and a
     * half-opened context. */
    void (*close)(void *ctx);
} rose_backend_ops;

const rose_backend_ops *rose_backend_cpu(void);

/* The CUDA backend, if this GPU of those that CUDA shows is usable; it becomes the calling
 * thread's device until plan or open choose another (rose_cuda_opts.device). Errors: UNSUPPORTED,
 * and why (built without CUDA, no driver, no GPU, a GPU that is too old); then *out is NULL. */
rose_status rose_backend_cuda(const rose_backend_ops **out, uint32_t gpu, rose_err *err);

/* Writes the name of GPU 0 to out, whether it is usable or not; false and "" if this build or
 * this machine has none. Starts the driver, but takes no GPU memory and sets no thread's device. */
bool rose_backend_gpu_name(char *out, size_t cap);

/* From now on the spans of base/profile.h are also NVTX ranges, which nsys shows. Call once,
 * before threads. UNSUPPORTED: built without CUDA. */
rose_status rose_backend_nvtx(rose_err *err);

/* Whether device is "cuda", which is GPU 0, or "cuda:N", which is GPU N; *gpu gets its number. */
bool rose_backend_is_gpu(const char *device, uint32_t *gpu);

/* Picks a backend. device: "auto" (cuda if there is a usable GPU, else cpu), "cpu", "cuda",
 * "cuda:N" (the caller also sets rose_cuda_opts.device); NULL = auto. Errors: UNSUPPORTED (as
 * rose_backend_cuda), INVAL (device is none of these names). */
rose_status rose_backend_pick(const rose_backend_ops **out, const char *device, rose_err *err);

/* The same for a model: with "auto", a backend that refuses the model gives way to the CPU, and the
 * log says why. */
rose_status rose_backend_pick_for(const rose_backend_ops **out, const char *device,
                                  const rose_model *m, rose_err *err);

/* first, if it computes the model, else the CPU, and then the log says why. */
const rose_backend_ops *rose_backend_that_computes(const rose_backend_ops *first,
                                                   const rose_model *m);

#endif
