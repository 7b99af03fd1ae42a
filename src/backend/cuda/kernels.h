/* backend/cuda/kernels.h - the arguments of the CUDA kernels and the functions that launch them.
 * Plain C, because both sides include it: the kernels in *.cu and the host files in *.c.
 *
 * Words that the kernels and the host files use:
 *
 * - T: the storage type of weights, KV cache and activations between kernels: fp16, bf16 or fp32.
 * The residual stream, LayerNorm parameters, biases and logits are always fp32.
 * - chunk: 192 values of k. A GEMM sums every chunk by itself and then adds up the chunks, so that
 *   all kernels give the same bits. docs/NUMERICS.md states the order of every sum.
 * - split: 32 positions of a context. Attention computes every split by itself and merges them.
 * - head: the last GEMM, which computes the logits. n_heads and head_dim belong to attention.
 * - family: GEMM kernels of one file (linear_*.cuh); gemm.h has the table of all kernels.
 *
 * Launchers neither allocate nor synchronise, so a stream capture may record them. A launcher
 * returns the status of the launch. Threads: the engine thread. */
#ifndef ROSE_BACKEND_CUDA_KERNELS_H
#define ROSE_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_CUDA_CHUNK_K32 = 6,  /* values of k in one chunk of a sum: 6 x 32 = 192 */
    ROSE_CUDA_N_PAD = 128,    /* packed weights have a multiple of this many outputs */
    ROSE_CUDA_K_PAD = 32,     /* packed weights have a multiple of this many inputs */
    ROSE_CUDA_ROW_PAD = 128,  /* activation buffers have a multiple of this many rows */
    ROSE_CUDA_SPLIT = 32,     /* positions in one split of the KV cache: two pages */
    ROSE_CUDA_TILE_ROWS = 16, /* at most this many rows in one attention item */
    ROSE_CUDA_MAX_HEAD_DIM = 128,
    /* Threads of an attention block that leaves room for GEMM blocks on the same SM. */
    ROSE_CUDA_BESIDE_THREADS = 96,
    ROSE_CUDA_MAX_D = 4096
};

#define ROSE_CUDA_NO_SLOT UINT32_MAX

typedef enum rose_cuda_type { ROSE_CUDA_F16, ROSE_CUDA_BF16, ROSE_CUDA_F32 } rose_cuda_type;

/* The weights of y = x w + bias. 16-bit weights are tiles of 8 outputs x 32 inputs: [n_pad /
 * 8][k_pad / 32][32 lanes][8]. One 16-byte load gives a lane its operands of two m16n8k16
 * instructions. fp32 weights are [n_pad][k_pad]. Padding is zero. */
typedef struct rose_cuda_linear {
    void *w;
    float *bias; /* [n] or NULL */
    uint32_t k, k_pad, n, n_pad;
    /* A second copy of 16-bit weights for linear_wide.cuh and the files that include it, in the
     * order in which wgmma reads them from shared memory (core_index); or NULL. */
    void *cores;
    bool kv; /* outputs k to 3 k - 1 are K and V, which have another order in `cores` */
} rose_cuda_linear;

/* The KV pages of one layer. For each layer and head a page holds K and then V, each [16
 * tokens][hd_pad], in the order in which mma.sync reads them (layout.cuh). */
typedef struct rose_cuda_kv {
    void *base;          /* T: the beginning of the pool plus the offset of the layer */
    uint64_t page_elems; /* distance between two pages, in values of T */
    uint32_t head_dim, hd_pad, n_heads;
} rose_cuda_kv;

typedef enum rose_cuda_epilogue {
    ROSE_CUDA_EPI_QKV,      /* stores q to q[row][d], and K and V to kv_rows or to the row's page */
    ROSE_CUDA_EPI_RESIDUAL, /* x[row][n] += y */
    ROSE_CUDA_EPI_ACT,      /* h[row][n] = act(y) */
    ROSE_CUDA_EPI_LOGITS    /* stores logits[row][n], and the key of each row's largest logit to
                               key[row] */
} rose_cuda_epilogue;

/* Input and output of a GEMM. Activations of type T ("h") are stored in blocks of 8 rows x 8
 * values: [row / 8][k_pad / 8][8][8]. The comments call this layout "blocked". */
typedef struct rose_cuda_io {
    const void *h; /* T [rows][k_pad], blocked */
    float *x;      /* [rows][ld_x]: residual stream */
    /* [k]: the GEMM computes LayerNorm(x) itself and does not read h (see rose_cuda_linear_norms);
     * NULL: the input is h. */
    const float *norm_w, *norm_b;
    float norm_eps;
    rose_cuda_epilogue epilogue;
    void *q;         /* T [rows][n / 3] */
    rose_cuda_kv kv; /* only for EPI_QKV */
    /* [rows] page * 16 + token: where K and V of a row go; NO_SLOT: nowhere. */
    const uint32_t *slot;
    /* T [rows][2 n / 3]: K and V go here instead of to the pages; or NULL: kv and slot say where.
     */
    void *kv_rows;
    void *out; /* T, blocked, out_k_pad values in a row */
    uint32_t out_k_pad;
    uint32_t act; /* a rose_act */
    float *logits;
    /* [rows] key of the row's largest logit: the upper half of a key orders logits, the lower half
     * is ~id, so the maximum is the largest logit with the lowest id. Or NULL. */
    unsigned long long *key;
    uint32_t ld_logits;
    uint32_t rows;
    uint32_t ld_x;
    /* The next kernel may start only when this one finishes, not while it runs. Only the families
     * team, wide, once and pingpong read this. */
    bool late;
} rose_cuda_io;

/* A unit of work of attention: up to 16 rows of one sequence. An item with n_rows 0 is padding. */
typedef struct rose_cuda_item {
    uint32_t row, n_rows;
    uint32_t pos;   /* position of the first row */
    uint32_t table; /* index of the first entry of the sequence's page table */
} rose_cuda_item;

typedef struct rose_cuda_attention {
    const void *q; /* T [rows][d] */
    rose_cuda_kv kv;
    const uint32_t *tables;
    const rose_cuda_item *items; /* [n_items] */
    uint32_t n_items;
    /* T [rows][2 d]: K and V of each row, which attention writes into the row's page (see
     * rose_cuda_attention_adds); or NULL: the pages have them already */
    const void *kv_rows;
    float scale; /* factor for attention scores, including log2(e) */
    void *out;   /* T, blocked, out_k_pad values in a row */
    uint32_t out_k_pad;
    uint32_t d;
} rose_cuda_attention;

typedef struct rose_cuda_norm {
    const float *x; /* [rows][d] */
    const float *w, *b;
    const uint32_t *gather;  /* row i reads x[gather[i]]; NULL: row i reads x[i] */
    unsigned long long *key; /* [rows] set to zero, for the head GEMM that follows; or NULL */
    float eps;
    void *out; /* T, blocked, out_k_pad values in a row */
    uint32_t out_k_pad;
    uint32_t d, rows;
} rose_cuda_norm;

typedef struct rose_cuda_embed {
    const void *tok;         /* packed like the weights of a rose_cuda_linear */
    const float *pos;        /* [max_model_len][d] */
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
        *key; /* [rows] key of the largest changed logit, as the head GEMM computes it */
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
    uint32_t src_type; /* a rose_dtype */
    uint32_t first_row, n_rows, width;
    bool transposed; /* the tensor is [out][in], as PyTorch stores a Linear */
    void *dst;
    uint32_t k_pad;
} rose_cuda_pack;

/* Optimisations that can be left out to measure what each is worth (--cuda-without; the names are
 * in without.c). The bits of the results do not change. */
typedef enum rose_cuda_without {
    /* leaves out linear_wide.cuh, the files that include it, and the second copy of the weights */
    ROSE_CUDA_WITHOUT_WIDE = 1,
    ROSE_CUDA_WITHOUT_TEAM = 2, /* linear_team.cuh: GEMMs of 33 to 128 rows */
    /* attention_ahead.cuh: attention of many single rows, where each warp prefetches its splits. */
    ROSE_CUDA_WITHOUT_AHEAD = 4,
    /* From 25 rows on, a captured decode step runs as two halves on two streams. */
    ROSE_CUDA_WITHOUT_HALVES = 8,
    /* linear_normed.cuh: LayerNorm and GEMM in one kernel, up to 8 rows. */
    ROSE_CUDA_WITHOUT_NORMED = 16,
    /* In steps of up to 16 rows, all of the L1 is shared memory (rose_cuda_launch.shared). */
    ROSE_CUDA_WITHOUT_CARVEOUT = 32,
    ROSE_CUDA_WITHOUT_PROMPTS = 64, /* captured steps of a single prompt */
    /* Attention of few tiles: the warps of a block share one tile. */
    ROSE_CUDA_WITHOUT_SPREAD = 128,
    ROSE_CUDA_WITHOUT_JOINED = 256, /* joined.cu: LayerNorm, QKV and attention in one kernel */
    ROSE_CUDA_WITHOUT_HEAD = 512,   /* linear_head.cuh: logits of up to 32 rows */
    /* linear_once.cuh: every block has one tile. */
    ROSE_CUDA_WITHOUT_ONCE = 1024,
    /* linear_once.cuh: the blocks of a cluster split the k of one tile. */
    ROSE_CUDA_WITHOUT_CHAIN = 2048,
    /* In decode steps attention writes K and V into the pages, not the QKV GEMM. */
    ROSE_CUDA_WITHOUT_APPEND = 4096,
    /* The header of a step is copied to the GPU while the step before runs. */
    ROSE_CUDA_WITHOUT_FETCH = 8192,
    /* linear_pingpong.cuh: the two warpgroups of a block take turns with whole tiles. */
    ROSE_CUDA_WITHOUT_PINGPONG = 16384
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
    void *encode;      /* the driver's cuTensorMapEncodeTiled; NULL unless hopper */
} rose_cuda_device;

/* Fill code, hopper and encode; cc is set already. */
cudaError_t rose_cuda_device_code(rose_cuda_device *d);

typedef struct rose_cuda_gemm rose_cuda_gemm; /* a row of the table in gemm.h */

/* How a kernel is launched. dependent: by programmatic dependent launch, so that it may start while
 * the kernel before it on the stream still runs. */
typedef struct rose_cuda_launch {
    const rose_cuda_device *device; /* borrowed; the thread's current device */
    cudaStream_t stream;
    rose_cuda_type type;
    bool dependent;
    /* All of the L1 is shared memory. Blocks of two kernels can be on one SM at the same time only
     * if both kernels have the same setting. */
    bool shared;
    uint32_t without; /* bits of rose_cuda_without */
    /* The GEMM kernel that tests and benchmarks force; NULL: the best for the shape. If the forced
     * kernel does not take the shape, `tiles` runs instead. */
    const rose_cuda_gemm *forced;
    /* The kernel belongs to one half of a step whose other half runs at the same time. Attention of
     * single rows then uses at most one block for each SM, which leaves room for GEMM blocks. */
    bool beside;
} rose_cuda_launch;

/* Set the shared-memory limits of the GEMM kernels on the thread's current device, which is *d.
 * Call before the first GEMM; again does no harm. */
cudaError_t rose_cuda_linear_prepare(const rose_cuda_device *d);
cudaError_t rose_cuda_linear_run(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io);
/* Whether rose_cuda_linear_run computes the LayerNorm itself (norm_w). It does so for shapes of
 * linear_normed.cuh, unless that is left out or a kernel is forced. Otherwise rose_cuda_linear_run
 * refuses a norm_w that is not NULL. */
bool rose_cuda_linear_norms(const rose_cuda_launch *l, const rose_cuda_linear *w,
                            const rose_cuda_io *io);
/* The GEMM kernel with that name, or NULL. */
const rose_cuda_gemm *rose_cuda_gemm_named(const char *name);
/* Fill l->cores from l->w; both have k_pad x n_pad values. Not for fp32. */
cudaError_t rose_cuda_cores_run(const rose_cuda_launch *at, const rose_cuda_linear *l);

/* together: all items have one row. The warps of a block then share the context of one (head,
 * item), or each warp takes one if there are many. Otherwise items have several rows: a warp
 * computes one (head, item), or a whole block does if there are few items. */
cudaError_t rose_cuda_attention_run(const rose_cuda_launch *l, const rose_cuda_attention *a,
                                    bool together);
/* Whether attention can write K and V into the pages itself (kv_rows) for this number of (row,
 * head) pairs. Only with together; otherwise kv_rows is refused. It needs many pairs: for 32
 * sequences, where a warp has at most one split, it was 20 % slower (H100, 2026-11-22). */
bool rose_cuda_attention_adds(const rose_cuda_launch *l, uint32_t n_units);
/* joined.cu: the QKV GEMM with norm_w and the attention of its rows, in one kernel. Item i is row i
 * or has n_rows 0. q is not written. Refused unless rose_cuda_joins says that the shape fits. */
bool rose_cuda_joins(const rose_cuda_launch *l, const rose_cuda_linear *w, const rose_cuda_io *io,
                     const rose_cuda_attention *a);
cudaError_t rose_cuda_joined_run(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io, const rose_cuda_attention *a);
cudaError_t rose_cuda_norm_run(const rose_cuda_launch *l, const rose_cuda_norm *a);
cudaError_t rose_cuda_embed_run(const rose_cuda_launch *l, const rose_cuda_embed *a);
cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *l, const rose_cuda_sampler *a);
cudaError_t rose_cuda_changes_run(const rose_cuda_launch *l, const rose_cuda_changes *a);
cudaError_t rose_cuda_reports_run(const rose_cuda_launch *l, const rose_cuda_reports *a);
cudaError_t rose_cuda_pack_run(const rose_cuda_launch *l, const rose_cuda_pack *a);
cudaError_t rose_cuda_floats_run(const rose_cuda_launch *l,
                                 const rose_cuda_pack *a); /* convert to fp32 */

/* fp32.cu: the same operations without tensor cores. rose_cuda_attention_plain takes every type;
 * it also serves --prefill-backend naive. */
cudaError_t rose_cuda_linear_f32(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io);
cudaError_t rose_cuda_attention_plain(const rose_cuda_launch *l, const rose_cuda_attention *a);

#ifdef __cplusplus
}
#endif

#endif
