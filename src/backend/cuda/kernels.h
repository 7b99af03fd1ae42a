/* backend/cuda/kernels.h - what the device kernels take, and their launchers. Plain C on both
 * sides: kernels in *.cu, the host in cuda_backend.c.
 *
 * T below is the storage type of weights, KV and activations between kernels (fp16, bf16 or fp32);
 * the residual stream, LayerNorm parameters, biases and logits are fp32. docs/NUMERICS.md states
 * the order of every sum.  Launchers neither allocate nor synchronise, so a stream capture may
 * record them. They return the status of the launch. Threads: the engine thread. */
#ifndef ROSE_BACKEND_CUDA_KERNELS_H
#define ROSE_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_CUDA_CHUNK_K32 = 6,  /* a chunk of the sum over k: 6 x 32 = 192 values */
    ROSE_CUDA_N_PAD = 128,    /* packed weights have this multiple of outputs */
    ROSE_CUDA_K_PAD = 32,     /* and this multiple of inputs, zero-filled */
    ROSE_CUDA_ROW_PAD = 128,  /* activation buffers hold this multiple of rows */
    ROSE_CUDA_SPLIT = 32,     /* positions of a KV split: two pages */
    ROSE_CUDA_TILE_ROWS = 16, /* most rows of an attention item */
    ROSE_CUDA_MAX_HEAD_DIM = 128,
    ROSE_CUDA_BESIDE_THREADS = 96, /* of a block of attention beside which products find room */
    ROSE_CUDA_MAX_D = 4096,
    ROSE_CUDA_SUMS = 128 * 192 /* floats: of the largest tile */
};

#define ROSE_CUDA_NO_SLOT UINT32_MAX

typedef enum rose_cuda_type { ROSE_CUDA_F16, ROSE_CUDA_BF16, ROSE_CUDA_F32 } rose_cuda_type;

/* y = x w + bias. 16-bit weights: tiles of 8 outputs x 32 inputs, [n_pad / 8][k_pad / 32][32
 * lanes][8]: one 16-byte load of a lane holds its operand of two m16n8k16 products. fp32 weights:
 * [n_pad][k_pad]. Padding is zero. */
typedef struct rose_cuda_linear {
    void *w;
    float *bias; /* [n] or NULL */
    uint32_t k, k_pad, n, n_pad;
    void *cores; /* a second copy of 16-bit weights, for linear_wide.cuh and what includes it
                    (core_index); or NULL */
    bool kv;     /* outputs k to 3 k - 1 are K and V: `cores` has them in another order */
} rose_cuda_linear;

/* The pages of one layer. A page holds, per layer and head, K then V, each [16 tokens][hd_pad] in
 * the order in which the products take them (layout.cuh). */
typedef struct rose_cuda_kv {
    void *base;          /* T: the pool, advanced to the layer */
    uint64_t page_elems; /* from page to page */
    uint32_t head_dim, hd_pad, n_heads;
} rose_cuda_kv;

typedef enum rose_cuda_epilogue {
    ROSE_CUDA_EPI_QKV,      /* q to q[row][d]; K and V to kv_rows or the page slot of the row */
    ROSE_CUDA_EPI_RESIDUAL, /* x[row][n] += y */
    ROSE_CUDA_EPI_ACT,      /* h[row][n] = act(y) */
    ROSE_CUDA_EPI_LOGITS    /* logits[row][n], and the row's largest to key[row] */
} rose_cuda_epilogue;

/* Where a matrix product takes its rows from and puts them. Activations of type T ("h") lie in
 * blocks of 8 rows x 8 values: [row / 8][k_pad / 8][8][8]. */
typedef struct rose_cuda_io {
    const void *h;                /* T [rows][k_pad], blocked */
    float *x;                     /* [rows][ld_x]: residual stream */
    const float *norm_w, *norm_b; /* [k]: the rows are LayerNorm(x), h is not read, where
                                     rose_cuda_linear_norms; NULL: they are h */
    float norm_eps;
    rose_cuda_epilogue epilogue;
    void *q;              /* T [rows][n / 3] */
    rose_cuda_kv kv;      /* EPI_QKV */
    const uint32_t *slot; /* [rows] page * 16 + token; NO_SLOT: written nowhere */
    void *kv_rows; /* T [rows][2 n / 3]: K and V go there, not to the pages; or NULL (kv, slot) */
    void *out;     /* T, blocked with out_k_pad values a row */
    uint32_t out_k_pad;
    uint32_t act; /* rose_act */
    float *logits;
    unsigned long long *key; /* [rows] order-preserving image of the logit, then ~id; or NULL */
    uint32_t ld_logits;
    uint32_t rows;
    uint32_t ld_x;
    bool late; /* the kernel behind comes when this one ends, not beside it (team, wide, once,
                  cluster, stationary and pingpong) */
} rose_cuda_io;

/* Up to 16 rows of one sequence. n_rows 0: nothing. */
typedef struct rose_cuda_item {
    uint32_t row, n_rows;
    uint32_t pos;   /* of the first row */
    uint32_t table; /* first entry of its page table */
} rose_cuda_item;

typedef struct rose_cuda_attention {
    const void *q; /* T [rows][d] */
    rose_cuda_kv kv;
    const uint32_t *tables;
    const rose_cuda_item *items; /* [n_items] */
    uint32_t n_items;
    /* T [rows][2 d]: K and V of each row, which attention adds and puts into its page
     * (rose_cuda_attention_adds); or NULL: they are there. */
    const void *kv_rows;
    float scale; /* of the scores, times log2(e) */
    void *out;   /* T, blocked, out_k_pad values a row */
    uint32_t out_k_pad;
    uint32_t d;
} rose_cuda_attention;

typedef struct rose_cuda_norm {
    const float *x; /* [rows][d] */
    const float *w, *b;
    const uint32_t *gather;  /* row i reads x[gather[i]]; NULL: row i */
    unsigned long long *key; /* [rows] zeroed for the head; or NULL */
    float eps;
    void *out; /* T, blocked, out_k_pad values a row */
    uint32_t out_k_pad;
    uint32_t d, rows;
} rose_cuda_norm;

typedef struct rose_cuda_embed {
    const void *tok;         /* packed as weights of a rose_cuda_linear */
    const float *pos;        /* [max_model_len][d] */
    const uint32_t *ids;     /* [rows]; ROSE_TOKEN_OUTPUT | i: sampled[i] */
    const uint32_t *sampled; /* of the step before; beyond the vocabulary counts as 0 */
    const uint32_t *where;   /* [rows] positions */
    float *x;                /* [rows][d] */
    uint32_t d, k_pad, rows, vocab;
} rose_cuda_embed;

/* As rose_sampling, in the header of a step. */
typedef struct rose_cuda_pick {
    float inv_temperature; /* infinite: greedy */
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
    uint32_t *const
        *ids;       /* device memory that says where the ids go: it changes from step to step */
    uint32_t first; /* row 0 is ids[first] */
    const uint32_t *out; /* NULL, or [rows]: row i is ids[out[i]] instead */
    uint32_t vocab, ld_logits, rows;
    uint32_t *sampled; /* the ids stay here too, for the next step's embedding; or NULL */
} rose_cuda_sampler;

#define ROSE_CUDA_ALL_IDS UINT32_MAX

/* What the rules of an output (rose_output_rules) do to its row of logits. Lists lie in `words`,
 * from the places given. */
typedef struct rose_cuda_change {
    uint32_t row;              /* of the logits */
    uint32_t allowed;          /* a bit an id; ALL_IDS: no list */
    uint32_t banned, n_banned; /* ids */
    uint32_t bias, n_bias;     /* ids, then as many floats; distinct */
    uint32_t seen, n_seen;     /* ids, then as many counts; distinct */
    float repetition, frequency, presence;
    uint32_t unused;
} rose_cuda_change;

/* Row i of `changed` becomes row change[i].row of the logits under its rules; the logits stay. */
typedef struct rose_cuda_changes {
    const float *logits; /* [..][ld_logits] */
    const rose_cuda_change *change;
    const uint32_t *words;
    float *changed;          /* [rows][ld_logits] */
    unsigned long long *key; /* [rows] as the head leaves it */
    uint32_t vocab, ld_logits, rows;
} rose_cuda_changes;

typedef struct rose_cuda_logprob { /* as rose_logprob */
    uint32_t id, rank;
    float logprob;
} rose_cuda_logprob;

typedef struct rose_cuda_report {
    uint32_t row;      /* of the logits */
    uint32_t out;      /* ids[out] is the result */
    uint32_t score_id; /* UINT32_MAX: what was sampled; else it becomes the result */
    uint32_t at;       /* first of 1 + n_top entries; UINT32_MAX: none */
    uint32_t n_top;    /* <= 20, <= vocab */
} rose_cuda_report;

/* After the sampler. */
typedef struct rose_cuda_reports {
    const float *logits;
    const unsigned long long *key; /* of the row, as the head leaves it */
    const rose_cuda_report *report;
    uint32_t *const *ids;
    uint32_t *sampled; /* as rose_cuda_sampler.sampled */
    rose_cuda_logprob *entries;
    uint32_t vocab, ld_logits, rows;
} rose_cuda_reports;

typedef struct rose_cuda_pack {
    const void *src;   /* device copy of elements first_row * width ... of the tensor */
    uint32_t src_type; /* rose_dtype */
    uint32_t first_row, n_rows, width;
    bool transposed; /* the tensor is [out][in] */
    void *dst;
    uint32_t k_pad;
} rose_cuda_pack;

/* What can be left out, to measure what it gives; the bits are the same (names: without.c). */
typedef enum rose_cuda_without {
    /* linear_wide.cuh, what includes it, and the weights' second copy */
    ROSE_CUDA_WITHOUT_WIDE = 1,
    ROSE_CUDA_WITHOUT_TEAM = 2,      /* linear_team.cuh */
    ROSE_CUDA_WITHOUT_AHEAD = 4,     /* attention of many single rows: a warp's ring of splits */
    ROSE_CUDA_WITHOUT_HALVES = 8,    /* captured decode steps of 25 on: two halves abreast */
    ROSE_CUDA_WITHOUT_NORMED = 16,   /* linear_normed.cuh */
    ROSE_CUDA_WITHOUT_CARVEOUT = 32, /* rose_cuda_launch.shared of the first 16 rows */
    ROSE_CUDA_WITHOUT_PROMPTS = 64,  /* captured steps of one prompt */
    ROSE_CUDA_WITHOUT_SPREAD = 128,  /* attention of few tiles: a block a tile */
    ROSE_CUDA_WITHOUT_JOINED = 256,  /* joined.cu */
    ROSE_CUDA_WITHOUT_HEAD = 512,    /* linear_head.cuh */
    ROSE_CUDA_WITHOUT_ONCE = 1024,   /* linear_once.cuh, linear_cluster.cuh */
    ROSE_CUDA_WITHOUT_CHAIN = 2048,  /* of it, tiles by clusters */
    ROSE_CUDA_WITHOUT_APPEND = 4096, /* decode steps: attention puts K and V into their pages */
    ROSE_CUDA_WITHOUT_FETCH = 8192,  /* tables come beside the step in front */
    ROSE_CUDA_WITHOUT_STATIONARY = 16384, /* linear_stationary.cuh */
    ROSE_CUDA_WITHOUT_CLUSTER = 32768,    /* linear_cluster.cuh */
    ROSE_CUDA_WITHOUT_STREAM_K = 65536,   /* of linear_wide.cuh, tiles shared out by chunks */
    ROSE_CUDA_WITHOUT_WAVES = 131072,     /* products of many rows in two launches */
    ROSE_CUDA_WITHOUT_PINGPONG = 262144   /* linear_pingpong.cuh */
} rose_cuda_without;

/* How launches are made; dependent = programmatic dependent launch behind the previous kernel. */
typedef struct rose_cuda_launch {
    cudaStream_t stream;
    rose_cuda_type type;
    bool dependent;
    bool shared; /* the first-level memory is all shared memory: blocks of kernels that agree on it
                    may be on a multiprocessor together */
    uint32_t without; /* rose_cuda_without */
    /* Of one half of a step, beside the other: attention of single rows is a block a multiprocessor
     * or fewer, products leave it room. */
    bool beside;
    /* Where blocks of linear_wide.cuh hand sums on: [rose_cuda_linear_blocks][ROSE_CUDA_SUMS], and
     * a flag a block, 0 between launches. It is one place: of launches that follow each other on
     * one stream. Both NULL: no sum is handed on. */
    float *sums;
    uint32_t *sum_flags;
} rose_cuda_launch;

/* Once per process, any thread: shared-memory limits of the kernels. *wide: those of
 * linear_wide.cuh run here. */
cudaError_t rose_cuda_linear_init(bool *wide);
/* After it: blocks whose sums rose_cuda_launch has room for; 0: none hands any on here. */
uint32_t rose_cuda_linear_blocks(void);
cudaError_t rose_cuda_linear_run(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io);
/* Whether rose_cuda_linear_run takes norm_w: not left out, no kernel forced, the shape one of
 * linear_normed.cuh. Else norm_w of other than NULL is refused. */
bool rose_cuda_linear_norms(const rose_cuda_launch *l, const rose_cuda_linear *w,
                            const rose_cuda_io *io);
/* Which kernel runs; tests and measurements force one: 0 = the best for the shape, 1 = rows, 2 =
 * tiles, 3 = head, and on sm_90a 4, 5 = team, from ROSE_CUDA_WIDE on those of
 * linear_wide.cuh and what includes it, which want the weights' cores. One that does not take the
 * shape gives way to tiles. */
enum { ROSE_CUDA_N_KERNELS = 29, ROSE_CUDA_WIDE = 6 };
void rose_cuda_linear_force(int kernel);
/* Its name; NULL from ROSE_CUDA_N_KERNELS on. */
const char *rose_cuda_linear_name(int kernel);
/* The kernel of that name; ROSE_CUDA_N_KERNELS: none has it. */
int rose_cuda_linear_named(const char *name);
/* Fills l->cores, k_pad x n_pad values like l->w, from l->w. Not for fp32. */
cudaError_t rose_cuda_cores_run(const rose_cuda_launch *at, const rose_cuda_linear *l);

/* together: of items with n_rows 1, one block a (head, item), whose warps share the context, or of
 * many one warp; else one warp a (head, item), or of few items one block. */
cudaError_t rose_cuda_attention_run(const rose_cuda_launch *l, const rose_cuda_attention *a,
                                    bool together);
/* Whether it takes kv_rows, together, of so many (row, head); elsewhere they are refused. Of fewer,
 * where a warp has no more than a split, it cost what it saved and more: 32 sequences +20 % (H100,
 * 2026-11-22). */
bool rose_cuda_attention_adds(const rose_cuda_launch *l, uint32_t n_units);
/* joined.cu: rose_cuda_linear_run of QKV with norm_w, then rose_cuda_attention_run of its rows, one
 * by one (items[i].row is i, or its n_rows 0), in one kernel; q is not written. Where not
 * rose_cuda_joins: refused.
 */
bool rose_cuda_joins(const rose_cuda_launch *l, const rose_cuda_linear *w, const rose_cuda_io *io,
                     const rose_cuda_attention *a);
cudaError_t rose_cuda_joined_run(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io, const rose_cuda_attention *a);
cudaError_t rose_cuda_norm_run(const rose_cuda_launch *l, const rose_cuda_norm *a);
cudaError_t rose_cuda_embed_run(const rose_cuda_launch *l, const rose_cuda_embed *a);
cudaError_t rose_cuda_sampler_run(const rose_cuda_launch *l, const rose_cuda_sampler *a);
cudaError_t rose_cuda_changes_run(const rose_cuda_launch *l, const rose_cuda_changes *a);
cudaError_t rose_cuda_reports_run(const rose_cuda_launch *l, const rose_cuda_reports *a);
/* What this program's code for GPU 0 was compiled for, 10 major + minor: less than the chip's where
 * there is only PTX of an older one. 0: none was found. What the code leaves out below some version
 * must not be launched. Any thread; asked once. */
int rose_cuda_code_version(void);
cudaError_t rose_cuda_pack_run(const rose_cuda_launch *l, const rose_cuda_pack *a);
cudaError_t rose_cuda_floats_run(const rose_cuda_launch *l, const rose_cuda_pack *a); /* to fp32 */

/* fp32.cu: the same operations without tensor cores. attention_plain takes every type:
 * --prefill-backend naive. */
cudaError_t rose_cuda_linear_f32(const rose_cuda_launch *l, const rose_cuda_linear *w,
                                 const rose_cuda_io *io);
cudaError_t rose_cuda_attention_plain(const rose_cuda_launch *l, const rose_cuda_attention *a);

#ifdef __cplusplus
}
#endif

#endif
