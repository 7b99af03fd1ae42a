/* backend/cuda/cuda_internal.h - the context of the CUDA backend, shared by its host files: plan.c
 * (sizes and places), load.c (weights), forward.c (the launches of a step, graphs), cuda_backend.c
 * (the ops). Threads: the engine thread; plan any. */
#ifndef ROSE_BACKEND_CUDA_CUDA_INTERNAL_H
#define ROSE_BACKEND_CUDA_CUDA_INTERNAL_H

#include "backend/backend.h"
#include "backend/cuda/kernels.h"

enum {
    ROSE_CUDA_OUT_BLOCK = 256, /* rows whose logits are held at a time */
    ROSE_CUDA_MAX_GRAPHS = 24,
    ROSE_CUDA_SLOTS = 2 /* steps in flight */
};

typedef struct rose_cuda_layer {
    float *ln1_w, *ln1_b, *ln2_w, *ln2_b; /* [d_model] */
    rose_cuda_linear qkv, proj, fc1, fc2;
    float scale; /* of scores, times log2(e) */
} rose_cuda_layer;

typedef struct rose_cuda_weights {
    rose_cuda_layer *layers;    /* [n_layers]; host memory, owned */
    float *pos, *lnf_w, *lnf_b; /* device */
    rose_cuda_linear head;
    void *tok; /* packed as head.w; the same memory when tied */
} rose_cuda_weights;

typedef struct rose_cuda_scratch {
    float *x; /* [rows][d_model] */
    void *h;  /* T, blocked [rows][k_pad of d_model]: normed rows, then attention output */
    void *q;  /* T [rows][d_model] */
    void *ff; /* T, blocked [rows][k_pad of d_ff] */
    void *out_h;
    float *logits; /* [out_block][ld_logits] */
    unsigned long long *key;
    uint32_t *sampled; /* ids of the last step's outputs: the next one may begin with them */
    uint8_t *header;   /* the step's tables */
    uint32_t ld_logits, out_block;
    uint64_t header_bytes;
} rose_cuda_scratch;

/* Bytes in one region; base NULL adds up only. */
typedef struct rose_cuda_bump {
    uint8_t *base;
    uint64_t used;
} rose_cuda_bump;

/* Where a step's tables lie in the header, in bytes. A graph has those of its size. */
typedef struct rose_cuda_header {
    uint64_t ids, picks, items, tokens, where, slot, gather, tables, end;
} rose_cuda_header;

/* Rows, outputs and attention items of a step. */
typedef struct rose_cuda_shape {
    uint32_t n_rows, n_outputs;
    uint32_t n_single, n_tiles; /* items of one row, which come first, and of several */
    uint32_t n_table;           /* entries of all page tables */
} rose_cuda_shape;

typedef struct rose_cuda_slot {
    uint8_t *header; /* pinned host memory, owned by the context's block */
    uint32_t *ids;   /* pinned, mapped: the sampler writes here */
    cudaEvent_t done;
    uint64_t ticket;
    uint32_t n_outputs;
} rose_cuda_slot;

typedef struct rose_cuda_graph {
    uint32_t n;
    cudaGraphExec_t exec;
} rose_cuda_graph;

typedef struct rose_cuda {
    rose_arch arch;
    rose_memory_plan plan;
    rose_cuda_type type;
    uint32_t hd_pad;
    cudaStream_t stream;
    void *weights_base, *kv_base, *scratch_base; /* device regions, owned */
    uint8_t *pinned;                             /* owned */
    rose_cuda_weights weights;
    rose_cuda_scratch scratch;
    rose_cuda_slot slots[ROSE_CUDA_SLOTS];
    rose_cuda_graph graphs[ROSE_CUDA_MAX_GRAPHS];
    uint32_t n_graphs;
    bool use_graphs;    /* tests turn it off */
    float *copy_logits; /* where the logits of the eager step under way go, or NULL */
    uint64_t ticket;
} rose_cuda;

/* err gets "what: the runtime's text"; NOMEM for exhausted device memory, else BACKEND. */
rose_status rose_cuda_fail(rose_err *err, cudaError_t e, const char *what);

/* A usable device 0 is made current. Errors: UNSUPPORTED (no driver, no device, too old: says
 * which). */
rose_status rose_cuda_select(rose_err *err);

/* plan.c */
size_t rose_cuda_type_size(rose_cuda_type t);
uint32_t rose_cuda_hd_pad(uint32_t head_dim);
uint64_t rose_cuda_kv_page_bytes(const rose_arch *a, rose_cuda_type t);
void *rose_cuda_take(rose_cuda_bump *b, uint64_t bytes); /* NULL while base is NULL */
void rose_cuda_layout_weights(rose_cuda_weights *w, rose_cuda_bump *b, const rose_model *m,
                              const rose_memory_plan *p);
void rose_cuda_layout_scratch(rose_cuda_scratch *s, rose_cuda_bump *b, const rose_arch *a,
                              const rose_memory_plan *p);
void rose_cuda_layout_header(rose_cuda_header *h, const rose_cuda_shape *s);
rose_cuda_type rose_cuda_type_of(rose_compute c);
rose_status rose_cuda_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                           rose_err *err);

/* load.c: pack all tensors; the KV region serves as staging and is zeroed afterwards. */
rose_status rose_cuda_load(rose_cuda *c, const rose_model *m, rose_err *err);

/* forward.c */
cudaError_t rose_cuda_forward(rose_cuda *c, const rose_cuda_shape *s);
rose_status rose_cuda_capture(rose_cuda *c, rose_err *err);

#endif
