/* backend/backend.h - the narrow waist: one step of the forward pass over a ragged batch.
 *
 * A backend describes its memory need, loads the weights, and runs steps. How a step is fused
 * inside is its own affair. It knows token ids, positions and pages; never text, requests or
 * scheduling. Threads: plan is pure; open, step, collect, copy_pages, close are called by the
 * engine thread only. No allocation after open(). */
#ifndef ROSE_BACKEND_BACKEND_H
#define ROSE_BACKEND_BACKEND_H

#include "model/model.h"

enum {
    ROSE_KV_PAGE_TOKENS = 16 /* tokens in a KV page, in every backend */
};

/* In results: every logit is NaN or -inf, the sequence cannot go on. */
#define ROSE_TOKEN_NONE UINT32_MAX

typedef enum rose_compute { ROSE_COMPUTE_AUTO, ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16 } rose_compute;

typedef struct rose_backend_opts {
    rose_compute dtype; /* AUTO: BF16 for BF16 files, else F32 */
    const char *isa;    /* CPU: "auto" "scalar" "avx2" "avx512" "amx"; NULL = auto */
    uint32_t
        n_threads;   /* CPU: compute threads, the engine thread included; 0 = one per cpu in cpus */
    const int *cpus; /* CPU: compute thread i is pinned to cpus[i % n_cpus]; borrowed */
    uint32_t n_cpus; /* 0 = do not pin (n_threads 0 then means all allowed CPUs) */
    uint32_t max_seqs;        /* most sequences in one step, 1 .. 4096 */
    uint32_t max_step_tokens; /* most tokens (rows) in one step, >= max_seqs */
    uint32_t max_model_len;   /* longest context in tokens; 0 = the model's max_positions */
    uint32_t kv_pages;        /* pages in the pool; 0 = from kv_bytes */
    uint64_t kv_bytes; /* memory for pages when kv_pages is 0; 0 = the default rule (see plan) */
} rose_backend_opts;

void rose_backend_opts_default(
    rose_backend_opts *o); /* 256 seqs, 2048 tokens, everything else auto */

/* What start-up will take, from arithmetic alone. All in bytes unless said. */
typedef struct rose_memory_plan {
    rose_compute dtype; /* resolved, never AUTO */
    uint32_t max_seqs, max_step_tokens, max_model_len;
    uint32_t n_threads; /* resolved */
    uint64_t weights;   /* packed copies that the backend keeps */
    uint64_t kv_page;   /* one page, all layers, K and V */
    uint32_t kv_pages;  /* pages in the pool */
    uint64_t kv;        /* kv_page * kv_pages */
    uint64_t scratch;   /* activations, logits, per-thread buffers */
    uint64_t total;     /* weights + kv + scratch */
    uint64_t available; /* memory available now; 0 = unknown */
} rose_memory_plan;

/* How the next id is chosen. Filter order (as vLLM): divide by temperature, drop below min_p times
 * the highest probability, keep the top_k most probable, then the smallest set whose renormalised
 * probability reaches top_p (the token that crosses is kept). Ties go to the lower id. */
typedef struct rose_sampling {
    float temperature; /* >= 0; 0 = greedy (all below is ignored) */
    float top_p;       /* (0, 1]; 1 = off */
    float min_p;       /* [0, 1]; 0 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;     /* the random number is a function of (seed, out_pos) alone */
} rose_sampling;

/* Structure of arrays; all borrowed until step() returns. Sequence s owns rows
 * seq_first[s] .. seq_first[s+1)-1, which stand at positions seq_pos[s], seq_pos[s]+1, ... Its page
 * table is pages[s * page_stride ...]: page i holds positions 16 i .. 16 i + 15; entries are valid
 * up to its last row's position. Rows of earlier positions are already in the pages (from earlier
 * steps). No two sequences write the same page in one step. */
typedef struct rose_batch {
    uint32_t n_seqs;           /* 1 .. max_seqs */
    uint32_t n_tokens;         /* rows, 1 .. max_step_tokens */
    const uint32_t *tokens;    /* [n_tokens] ids < vocab_size */
    const uint32_t *seq_first; /* [n_seqs + 1] */
    const uint32_t *seq_pos;   /* [n_seqs] */
    const uint32_t *pages;     /* [n_seqs][page_stride] */
    uint32_t page_stride;
    uint32_t n_outputs; /* 0 .. max_seqs: ids to sample */
    const uint32_t
        *out_row; /* [n_outputs] the row whose logits are used; several outputs may share it */
    const uint32_t
        *out_pos; /* [n_outputs] position of the sampled token (key of the random number) */
    const rose_sampling *out_params; /* [n_outputs] */
    float *logits; /* NULL, or [n_outputs][vocab_size] host memory that gets the raw logits */
} rose_batch;

typedef struct rose_step_result {
    uint32_t n_outputs;
    const uint32_t *ids; /* [n_outputs], ROSE_TOKEN_NONE where no logit was above -inf; valid until
                            the next step() */
} rose_step_result;

typedef struct rose_backend_ops {
    const char *name; /* "cpu" */
    /* Default rule for pages: enough for max_seqs full contexts, but at most 4 GiB and at most half
     * of the memory that is available after the weights; at least one full context. An explicit
     * number that holds less than one full context is refused. Errors: INVAL (options), UNSUPPORTED
     * (architecture or dtype, by name), NOMEM (the plan exceeds `available`: the message gives the
     * parts and the option that shrinks them). */
    rose_status (*plan)(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                        rose_err *err);
    /* Packs the weights; the model's mappings are not used afterwards. */
    rose_status (*open)(void **ctx, const rose_model *m, const rose_backend_opts *o,
                        const rose_memory_plan *p, rose_err *err);
    /* Enqueue one step. Errors: BACKEND: the context is broken, close it; INVAL: the batch is
     * outside the plan or names an id that is not in the vocabulary, nothing was done. */
    rose_status (*step)(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err);
    /* Wait for that step and give its ids. */
    rose_status (*collect)(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err);
    /* Copy page src[i] to dst[i] in every layer, between steps. */
    rose_status (*copy_pages)(void *ctx, const uint32_t *src, const uint32_t *dst, uint32_t n,
                              rose_err *err);
    void (*close)(void *ctx); /* accepts NULL and half-open */
} rose_backend_ops;

const rose_backend_ops *rose_backend_cpu(void);

#endif
