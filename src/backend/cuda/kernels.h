/* backend/cuda/kernels.h - the arguments of the CUDA kernels and the functions that launch them.
 * Plain C, because both sides include it: the kernels in *.cu and the host files in *.c.
 *
 * Words that the kernels and the host files use:
 *
 * - T: the storage type of weights, KV cache and activations between kernels: fp16, bf16 or fp32.
 * The residual stream, LayerNorm parameters, biases and logits are always fp32.
 * - head: the last GEMM, which computes the logits. n_heads and head_dim belong to attention.
 * - blocked: [row / 8][k_pad / 8][8][8] values of T, the order of weights and of activations
 *   between kernels.
 *
 * gemm.h declares the GEMMs, attend.h attention. docs/NUMERICS.md states the order of every sum.
 *
 * Launchers neither allocate nor synchronise, so a stream capture may record them. A launcher
 * returns the status of the launch. Threads: the engine thread. */
#ifndef ROSE_BACKEND_CUDA_KERNELS_H
#define ROSE_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/format.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_CUDA_N_PAD = 128,   /* packed weights have a multiple of this many outputs */
    ROSE_CUDA_K_PAD = 64,    /* packed weights and blocked rows have a multiple of this many k */
    ROSE_CUDA_ROW_PAD = 128, /* activation buffers have a multiple of this many rows */
    ROSE_CUDA_MAX_D = 16384  /* widest residual stream */
};

#define ROSE_CUDA_NO_SLOT UINT32_MAX

/* The KV pages of one layer; attend.h describes a page. */
typedef struct rose_cuda_kv {
    void *base;          /* T: the beginning of the pool plus the offset of the layer */
    uint64_t page_elems; /* distance between two pages, in values of T */
    uint32_t head_dim, hd_pad;
    uint32_t n_heads; /* KV heads */
} rose_cuda_kv;

/* A unit of work of attention: some rows of one sequence. An item with n_rows 0 is padding. */
typedef struct rose_cuda_item {
    uint32_t row, n_rows;
    uint32_t pos;   /* position of the first row */
    uint32_t table; /* index of the first entry of the sequence's page table */
} rose_cuda_item;

typedef enum rose_cuda_norm_kind {
    ROSE_CUDA_NORM_NONE, /* the rows are only rounded to T */
    ROSE_CUDA_NORM_LAYER,
    ROSE_CUDA_NORM_RMS
} rose_cuda_norm_kind;

/* How rows are normed. norm.cuh defines the order of the sums, for every kernel that norms. */
typedef struct rose_cuda_norm_by {
    rose_cuda_norm_kind kind;
    const float *w, *b; /* [d], fp32; w has the 1 of "1 + w" already; b NULL: no bias */
    float eps;
} rose_cuda_norm_by;

/* out = norm(x), for a GEMM that follows. */
typedef struct rose_cuda_norm {
    const float *x; /* [rows][d] */
    rose_cuda_norm_by by;
    const uint32_t *gather;  /* row i reads x[gather[i]]; NULL: row i reads x[i] */
    unsigned long long *key; /* [rows] set to zero, for the head GEMM that follows; or NULL */
    void *out;               /* T, blocked, out_k_pad values in a row */
    uint32_t out_k_pad;
    uint32_t d, rows;
} rose_cuda_norm;

/* The outputs [first, end) of a step whose states are added to one sum. */
typedef struct rose_cuda_sum {
    uint32_t first, end;
} rose_cuda_sum;

/* sums[i] += the states of those of sum[i]'s outputs that are in the block, output after output.
 * The states of outputs first .. first + n - 1 are the rows of h. */
typedef struct rose_cuda_states {
    const void *h; /* T, blocked, k_pad values in a row */
    uint32_t k_pad, d, first, n;
    const rose_cuda_sum *sum; /* [n_sums] */
    float *sums;              /* [n_sums][d] */
    uint32_t n_sums;
} rose_cuda_states;

/* x += norm(y), then y = 0: the branch of an architecture that norms what a layer adds. The next
 * GEMM with end RESIDUAL adds to y again. */
typedef struct rose_cuda_norm_add {
    float *x, *y; /* [rows][d] */
    rose_cuda_norm_by by;
    uint32_t d, rows;
} rose_cuda_norm_add;

/* The activation of an MLP as a kernel of its own, to the bits of the ends ACT and GATED. */
typedef struct rose_cuda_act {
    const float *y; /* [rows][n], with the bias, in the order of the packed outputs */
    uint32_t n;
    bool gated;   /* blocks of 8 outputs of gate and of up in turn, as rose_cuda_matrix.gated */
    uint32_t act; /* a rose_act */
    void *out;    /* T, blocked, out_k_pad values in a row */
    uint32_t out_k_pad;
    uint32_t rows;
} rose_cuda_act;

/* The key of the largest logit of each row, as the end LOGITS computes it. */
typedef struct rose_cuda_largest {
    const float *logits; /* [rows][ld_logits] */
    unsigned long long *key;
    uint32_t vocab, ld_logits, rows;
} rose_cuda_largest;

typedef struct rose_cuda_embed {
    const void *tok;         /* packed as rose_cuda_matrix.w */
    const float *pos;        /* [max_model_len][d]; NULL: no learned positions */
    float scale;             /* factor of the token's row, before the position is added; 1: none */
    const uint32_t *ids;     /* [rows] ids; ROSE_TOKEN_OUTPUT | i stands for sampled[i] */
    const uint32_t *sampled; /* ids of the step before; an id outside the vocabulary counts as 0 */
    const uint32_t *where;   /* [rows] position of each row */
    float *x;                /* [rows][d] */
    uint32_t d, k_pad, rows, vocab;
} rose_cuda_embed;

/* The fields of rose_sampling, in the form in which the header of a step holds them. */
typedef struct rose_cuda_pick {
    float inv_temperature; /* infinity means greedy */
    float top_p, min_p;
    uint32_t top_k;
    uint32_t seed_lo, seed_hi;
    uint32_t pos;
    uint32_t unused;
} rose_cuda_pick;

typedef struct rose_cuda_sampler {
    const float *logits; /* [rows][ld_logits] */
    const unsigned long long *key;
    const rose_cuda_pick *pick;
    /* Device memory that holds the address for the ids: that address changes with every step. */
    uint32_t *const *ids;
    uint32_t first;      /* the id of row 0 goes to ids[first] */
    const uint32_t *out; /* NULL; or [rows]: the id of row i goes to ids[out[i]] instead */
    uint32_t vocab, ld_logits, rows;
    uint32_t *sampled; /* a second copy of the ids, for the embedding of the next step; or NULL */
} rose_cuda_sampler;

#define ROSE_CUDA_ALL_IDS UINT32_MAX

/* The rules of one output (rose_output_rules), which change its row of logits. The lists are in
 * `words`; the fields give the index of each list's first word. */
typedef struct rose_cuda_change {
    uint32_t row;              /* row of the logits */
    uint32_t allowed;          /* bitmap, one bit for each id; ALL_IDS: every id is allowed */
    uint32_t banned, n_banned; /* list of ids */
    uint32_t bias,
        n_bias; /* list of ids with a bias, then a float for each; the ids are distinct */
    uint32_t seen, n_seen; /* list of seen ids, then a count for each; the ids are distinct */
    float repetition, frequency, presence;
    uint32_t unused;
} rose_cuda_change;

/* Row i of `changed` becomes row change[i].row of the logits, changed by its rules. The original
 * logits stay as they are. */
typedef struct rose_cuda_changes {
    const float *logits; /* [any number of rows][ld_logits] */
    const rose_cuda_change *change;
    const uint32_t *words;
    float *changed; /* [rows][ld_logits] */
    unsigned long long
        *key; /* [rows] 0 before; key of the largest changed logit, as the head GEMM computes it */
    uint32_t vocab, ld_logits, rows;
} rose_cuda_changes;

typedef struct rose_cuda_logprob { /* the same fields as rose_logprob */
    uint32_t id, rank;
    float logprob;
} rose_cuda_logprob;

typedef struct rose_cuda_report {
    uint32_t row;      /* row of the logits */
    uint32_t out;      /* the resulting id is ids[out] */
    uint32_t score_id; /* UINT32_MAX: report the sampled id; else this id becomes the result */
    uint32_t at;       /* index of the first of 1 + n_top entries; UINT32_MAX: no report */
    uint32_t n_top;    /* at most 20 and at most vocab */
} rose_cuda_report;

/* Log-probability reports; launched after the sampler. */
typedef struct rose_cuda_reports {
    const float *logits;
    /* For each row the sort key (logit, then id) of its largest logit, as the head GEMM writes
     * it. */
    const unsigned long long *key;
    const rose_cuda_report *report;
    uint32_t *const *ids;
    uint32_t *sampled; /* the same memory as rose_cuda_sampler.sampled */
    rose_cuda_logprob *entries;
    uint32_t vocab, ld_logits, rows;
} rose_cuda_reports;

typedef struct rose_cuda_pack {
    const void *src;   /* device copy of n_rows rows of the tensor, from row first_row on */
    uint32_t src_type; /* F32, F16 or BF16 of rose_format; blocks of GGUF are widened on the host */
    uint32_t first_row, n_rows, width;
    bool transposed;    /* the tensor is [out][in], as PyTorch stores a Linear */
    void *dst;          /* rose_cuda_matrix.w */
    rose_format format; /* of dst: F16, BF16 or F32 */
    uint32_t k_pad;
    /* Where output i of the tensor goes: first_out + i; with gated to block 2 (i / 8) + first_out
     * of 8 outputs, place i % 8 (first_out 0: gate, 1: up). */
    uint32_t first_out;
    bool gated;
    /* Outputs of a head whose two halves are interleaved in the file (rose_linear.permuted_heads);
     * 0: the outputs are in order. */
    uint32_t permuted_dim;
    float add; /* floats: added to every value: 1 for norms that multiply by 1 + w */
} rose_cuda_pack;

/* Random weights: element i of dst is element first + i of a tensor (rose_random_values). */
typedef struct rose_cuda_draw {
    void *dst;
    uint32_t type; /* F32, F16 or BF16 of rose_format */
    uint64_t n, first, seed;
    uint32_t stream;
    float mean, scale;
} rose_cuda_draw;

/* Optimisations that can be left out to measure what each is worth. The bits of the results do not
 * change. The options are --fused-ops and so on; switches.c has the names. */
typedef enum rose_cuda_without {
    ROSE_CUDA_WITHOUT_OPS = 1,       /* --fused-ops: the norm of a row in the GEMM */
    ROSE_CUDA_WITHOUT_MLP = 2,       /* --fused-mlp: the activation in the GEMM */
    ROSE_CUDA_WITHOUT_SAMPLER = 4,   /* --fused-sampler: the largest logit in the head GEMM */
    ROSE_CUDA_WITHOUT_KV_APPEND = 8, /* --fused-kv-append: RoPE and append in the decode kernel */
    ROSE_CUDA_WITHOUT_PAGED = 16,    /* --paged-attn: attention reads the pages */
    ROSE_CUDA_WITHOUT_WIDE = 32,     /* kernels of sm_90a: wgmma and TMA */
    ROSE_CUDA_WITHOUT_CARVEOUT = 64, /* all of the L1 is shared memory, up to 16 rows */
    ROSE_CUDA_WITHOUT_PROMPTS = 128, /* captured steps of a single prompt */
    ROSE_CUDA_WITHOUT_FETCH = 256,   /* the header of a step is copied while the step before runs */
    ROSE_CUDA_WITHOUT_GUESSES = 512  /* captured steps of sequences with guesses */
} rose_cuda_without;

/* A GPU, as far as launchers ask; rose_cuda_device_open fills it. Everything about the hardware
 * comes from here: no file assumes a number of SMs or the first GPU. */
typedef struct rose_cuda_device {
    int index;
    uint32_t sms;
    uint32_t cc; /* compute capability, 10 * major + minor */
    /* The architecture that this program's code for the GPU was compiled for, as cc; 0: there is no
     * code for it. Below cc if only PTX of an older architecture fits. A kernel that is compiled
     * only from some version on must not be launched below it. */
    uint32_t code;
    bool hopper;       /* the program has code for sm_90a, and the GPU is one */
    size_t shared_max; /* most bytes of shared memory that a block can have */
    size_t shared_sm;  /* bytes of shared memory of an SM */
    size_t l2;         /* bytes */
    double bytes_us;   /* bytes of device memory that can be read in a us, from clock and width */
    double mhz;        /* clock of the SMs */
    void *encode;      /* the driver's cuTensorMapEncodeTiled; NULL unless hopper */
} rose_cuda_device;

/* Fill code, hopper and encode; cc is set already. */
cudaError_t rose_cuda_device_code(rose_cuda_device *d);

typedef struct rose_gemm_kernel rose_gemm_kernel; /* a row of the table in gemm.h */
typedef struct rose_gemm_tuned rose_gemm_tuned;   /* measured choices; gemm.h */

/* How a kernel is launched. dependent: by programmatic dependent launch, so that it may start while
 * the kernel before it on the stream still runs. */
typedef struct rose_cuda_launch {
    const rose_cuda_device *device; /* borrowed; the thread's current device */
    cudaStream_t stream;
    rose_format type; /* T: F16, BF16 or F32 */
    bool dependent;
    /* All of the L1 is shared memory. Blocks of two kernels can be on one SM at the same time only
     * if both kernels have the same setting. */
    bool shared;
    uint32_t without; /* bits of rose_cuda_without */
    /* The GEMM kernel that tests and benchmarks force, where it takes the shape; NULL: the best. */
    const rose_gemm_kernel *forced;
    const rose_gemm_tuned *tuned; /* borrowed; NULL: the cost model chooses alone */
} rose_cuda_launch;

cudaError_t rose_cuda_norm_run(const rose_cuda_launch *l, const rose_cuda_norm *a);
cudaError_t rose_cuda_norm_add_run(const rose_cuda_launch *l, const rose_cuda_norm_add *a);
cudaError_t rose_cuda_states_run(const rose_cuda_launch *l, const rose_cuda_states *a);
/* unfused.cu: what the GEMMs do themselves unless a switch is off */
cudaError_t rose_cuda_act_run(const rose_cuda_launch *l, const rose_cuda_act *a);
cudaError_t rose_cuda_largest_run(const rose_cuda_launch *l, const rose_cuda_largest *a);
cudaError_t rose_cuda_embed_run(const rose_cuda_launch *l, const rose_cuda_embed *a);
cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *l, const rose_cuda_sampler *a);
cudaError_t rose_cuda_changes_run(const rose_cuda_launch *l, const rose_cuda_changes *a);
cudaError_t rose_cuda_reports_run(const rose_cuda_launch *l, const rose_cuda_reports *a);
cudaError_t rose_cuda_pack_run(const rose_cuda_launch *l, const rose_cuda_pack *a);
cudaError_t rose_cuda_floats_run(const rose_cuda_launch *l,
                                 const rose_cuda_pack *a); /* convert to fp32 */
cudaError_t rose_cuda_draw_run(const rose_cuda_launch *l, const rose_cuda_draw *a);

#ifdef __cplusplus
}
#endif

#endif
