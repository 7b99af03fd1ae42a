/* backend/cpu/cpu_internal.h - the CPU backend's own objects: packed weights, scratch, context.
 * Nothing outside this folder and its tests includes it. The engine thread owns all of it.
 * During a step the compute threads read it, and each writes its own part of the scratch. */
#ifndef ROSE_BACKEND_CPU_INTERNAL_H
#define ROSE_BACKEND_CPU_INTERNAL_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/pool.h"
#include "base/bump.h"

enum {
    ROSE_CPU_OUT_BLOCK = 64,   /* output rows whose logits exist at one time */
    ROSE_CPU_BLOCK_ROWS = 512, /* at most this many rows go through a layer together */
    ROSE_CPU_OWN_ROWS = 4,     /* up to this many rows, each thread normalises all rows itself */
    ROSE_CPU_MAX_HEAD_DIM = 256,
    ROSE_CPU_ALIGN = 64 /* bytes: every part of a region begins at a cache line */
};

/* Outputs first .. first + n - 1 of a matrix, all kept in one type. */
typedef struct rose_cpu_run {
    void *w;      /* panels, kernels.h */
    float *scale; /* [n] of int8 weights, else NULL */
    rose_format type;
    uint32_t first, n;
} rose_cpu_run;

/* y = x w + bias, packed. Neighbouring parts of one type make a run; each run is a GEMM that writes
 * its own columns of y. So q, k and v of a GGUF file keep their types where v has more bits. */
typedef struct rose_cpu_linear {
    rose_cpu_run runs[ROSE_LINEAR_PARTS];
    uint32_t n_runs;
    float *bias;       /* [n] or NULL */
    uint32_t k_pad, n; /* gated: n outputs, and scale and bias of both panels of each 16 of them */
    bool gated;
    bool rounds_x; /* x must hold bf16 values: a run multiplies in bf16 */
} rose_cpu_linear;

typedef struct rose_cpu_layer {
    float *ln1_w, *ln1_b, *ln2_w, *ln2_b; /* [d_model]; NULL: no such norm, no such bias */
    float *post1, *post2;                 /* [d_model] or NULL */
    float *q_norm, *k_norm;               /* [head_dim] or NULL */
    rose_cpu_linear m[ROSE_N_ROLES];
    float scale; /* of attention scores */
    int rope;    /* of rose_cpu_weights.rope; -1 = none */
    /* Its K and V: head blocks [n_kv_heads] in block 0 of its pool, and from block to block. */
    uint8_t *kv;
    size_t kv_block_bytes;
    uint32_t pool;
} rose_cpu_layer;

/* [max_model_len][half] each; NULL where half is 0. */
typedef struct rose_cpu_rope {
    float *cos, *sin;
    uint32_t half;
} rose_cpu_rope;

typedef struct rose_cpu_weights {
    rose_cpu_layer *layers;             /* [n_layers] */
    float *pos;                         /* [max_model_len][d_model]; NULL with RoPE */
    rose_cpu_rope rope[ROSE_MAX_KINDS]; /* by the kind that has it first: rose_rope_of_kind */
    float *lnf_w, *lnf_b;               /* [d_model] */
    rose_cpu_linear head;               /* d_model -> vocab */
    rose_tensor tok; /* [vocab][d_model]; data NULL when tied: rows are read from the head's
                        panels */
} rose_cpu_weights;

/* A tile: at most ROSE_ROW_TILE rows of one sequence, all in the same KV page. */
typedef struct rose_cpu_tile {
    uint32_t row, n_rows; /* rows of the batch */
    uint32_t pos;         /* position of the first */
    uint32_t cost;        /* estimated cost of the tile: roughly proportional to the time that
                           * one head takes */
    bool has_output;      /* some row's logits are needed */
} rose_cpu_tile;

/* A piece of work: the query tiles of one sequence that lie within one block of rows of the step.
 */
typedef struct rose_cpu_piece {
    uint32_t seq, first_tile, n_tiles;
    uint64_t cost; /* of one head, all tiles */
} rose_cpu_piece;

/* A block: rows that go through a layer together, in whole tiles. */
typedef struct rose_cpu_block {
    uint32_t first_row, n_rows;
    uint32_t first_piece, n_pieces;
    bool shared_pages; /* true: a piece of this block has several tiles, so all K and V are
                        * appended before attention */
    uint64_t cost;     /* of attention in one layer */
} rose_cpu_block;

/* Activations. Rows are padded to a multiple of 32 values. Nothing writes the padding, so it
 * stays zero, as the system maps it. */
typedef struct rose_cpu_scratch {
    float *x;      /* [max_step_tokens][ld_d] residual stream */
    float *h;      /* [max_step_tokens][ld_d] normed rows */
    float *o;      /* [max_step_tokens][ld_o] attention output; h itself where widths are equal */
    float *branch; /* [block rows][ld_d] output of attention or MLP before its norm; else NULL */
    float *qkv;    /* [block rows][ld_qkv] of the block under way */
    float *ff;     /* [block rows][ld_ff]; the same memory as qkv where that has no padding */
    float *out_x;  /* [out_block][ld_d] rows whose logits are needed: residual stream */
    float *out_h;  /* [out_block][ld_d] the same: normed rows */
    float *out_o;  /* [out_block][ld_o] the same: attention output; out_h itself as o is h */
    float *logits; /* [out_block][ld_vocab] */
    size_t ld_d, ld_o, ld_qkv, ld_ff, ld_vocab;
    uint32_t out_block;
    rose_cpu_tile *tiles;   /* [max tiles] */
    rose_cpu_piece *pieces; /* [max_seqs + max blocks] */
    rose_cpu_block *blocks; /* [max blocks] */
    uint32_t *slot_row;   /* [max_step_tokens] rows that need logits; equal neighbours count once */
    uint32_t *slot_first; /* [max_step_tokens + 1] first output of each slot */
    uint32_t *ids;        /* [max_step_tokens] results */
    uint8_t *thread;      /* [n_threads][thread_stride] kernel and sampler scratch */
    float *own_h;         /* [n_threads][own_stride] each thread's normed rows */
    size_t thread_stride, own_stride;
} rose_cpu_scratch;

typedef struct rose_region {
    void *base;
    size_t size;
} rose_region;

typedef struct rose_cpu {
    rose_arch arch;
    rose_memory_plan plan;
    bool bf16; /* attention and KV */
    rose_cpu_kernels kernels;
    rose_pool *pool;
    rose_region weights_region, kv_region, scratch_region;
    rose_cpu_weights weights;
    rose_cpu_scratch scratch;
    uint8_t *kv; /* pool after pool: [blocks][layers of the pool][n_kv_heads] head blocks */
    size_t kv_head_bytes;
    uint64_t ticket;
    uint32_t n_results;
} rose_cpu;

/* The types in which the plan keeps the parts of a matrix. A gated matrix has one type: if the file
 * has two, it is widened, because the panels of gate and up alternate. */
void rose_cpu_part_types(rose_format types[ROSE_LINEAR_PARTS], const rose_linear *from, bool gated,
                         const rose_memory_plan *p);
/* The type in which the plan keeps the token embedding of a model whose head is not tied. */
rose_format rose_cpu_tok_dtype(const rose_model *m, const rose_memory_plan *p);
rose_linear rose_cpu_head(const rose_model *m);
rose_kept rose_cpu_kept(const rose_model *m, const rose_memory_plan *p, const void *data);
/* "1 Q8_0, 210 Q4_1": how many matrices of the files are kept as what. */
void rose_cpu_types_text(char *out, size_t cap, const rose_model *m, const rose_memory_plan *p);

/* layout.c: sizes and places of the backend's memory, from the plan's resolved fields (dtype,
 * quantization, max_*, n_threads). With b->base NULL only sizes are added up, and the pointers
 * of the result are NULL. */
void rose_cpu_layout_weights(rose_cpu_weights *w, rose_bump *b, const rose_model *m,
                             const rose_memory_plan *p);
void rose_cpu_layout_scratch(rose_cpu_scratch *s, rose_bump *b, const rose_arch *a,
                             const rose_memory_plan *p);
/* Bytes of a KV page with n_layers layers. */
uint64_t rose_cpu_kv_page_bytes(const rose_arch *a, uint32_t n_layers, bool bf16);

/* Maps zeroed anonymous memory, in huge pages where the system has them. */
rose_status rose_region_map(rose_region *r, uint64_t bytes, const char *what, rose_err *err);
void rose_region_unmap(rose_region *r); /* accepts {0}; leaves {0} */

/* load.c: packs all tensors of m into c->weights. Errors: UNSUPPORTED (a tensor's shape, or NaN or
 * infinity with quantization int8), NOMEM. */
rose_status rose_cpu_load(rose_cpu *c, const rose_model *m, rose_err *err);

/* What one thread knows of a step. */
typedef struct rose_cpu_worker {
    rose_cpu *c;
    const struct rose_cpu_step *s; /* of forward.c */
    const rose_batch *b;
    uint32_t tid, n;
    void *scratch;
    float *own_h; /* [ROSE_CPU_OWN_ROWS][ld_d] */
} rose_cpu_worker;

/* attend.c: this thread's part of a block's attention in one layer, from sc->qkv to the pages and
 * sc->o. All threads call it: it meets at a barrier where tiles of a sequence share pages. */
void rose_cpu_attend(const rose_cpu_worker *w, uint32_t layer, const rose_cpu_block *block);

/* forward.c: one step; the batch has been checked. Results in scratch.ids. */
void rose_cpu_forward(rose_cpu *c, const rose_batch *b);

#endif
