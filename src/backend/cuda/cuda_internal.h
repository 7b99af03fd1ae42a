/* backend/cuda/cuda_internal.h - the context of the CUDA backend, shared by its host files: plan.c
 * (sizes and places), load.c (weights), mega.c (the step in one kernel), forward.c (the launches of
 * a step, graphs), rules.c (what outputs want
 * beyond sampling), cuda_backend.c (the ops). Threads: the engine thread; plan any. */
#ifndef ROSE_BACKEND_CUDA_CUDA_INTERNAL_H
#define ROSE_BACKEND_CUDA_CUDA_INTERNAL_H

#include "backend/backend.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/megakernel.h"
#include "base/bump.h"

enum {
    ROSE_CUDA_OUT_BLOCK = 256, /* rows whose logits are held at a time */
    ROSE_CUDA_MAX_GRAPHS = 24,
    ROSE_CUDA_MAX_PROMPTS = 10, /* captured steps of one prompt */
    ROSE_CUDA_CHANGED = 128,    /* rows that rules have changed, held at a time */
    ROSE_CUDA_SLOTS = 2,        /* steps in flight */
    ROSE_CUDA_ALIGN = 256       /* bytes: alignment of every part of a region */
};

/* Most kernels of a captured step: two norms, four products, of which two may be two launches, and
 * attention a layer; embedding, last norm, head, sampler. */
#define ROSE_CUDA_NODES(n_layers) (9 * (uint64_t)(n_layers) + 4)

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
    float *x;      /* [rows][d_model] */
    void *h;       /* T, blocked [rows][k_pad of d_model]: normed rows, then attention output */
    void *q;       /* T [rows][d_model] */
    void *ff;      /* T, blocked [rows][k_pad of d_ff] */
    void *kv_rows; /* T [max_seqs][2 d_model]: K and V of a decode step's rows */
    void *out_h;
    float *logits; /* [out_block][ld_logits] */
    unsigned long long *key;
    uint32_t *sampled; /* ids of the last step's outputs: the next one may begin with them */
    uint2 *slots;      /* the megakernel's exchanges */
    uint8_t *header[ROSE_CUDA_SLOTS]; /* a step's tables */
    float *changed;                   /* [n_changed][ld_logits] */
    unsigned long long *changed_key;
    uint8_t *rules; /* what the outputs under way want; filled as the slot's `rules` */
    float *sums;    /* rose_cuda_launch; NULL: none are handed on */
    uint32_t *sum_flags;
    uint32_t ld_logits, out_block, n_changed;
    uint64_t header_bytes, rules_bytes;
} rose_cuda_scratch;

/* Where a step's tables lie in the header, in bytes. A graph has those of its size. */
typedef struct rose_cuda_header {
    uint64_t turn, ids, picks, items, tokens, where, slot, gather, tables, end;
} rose_cuda_header;

/* Rows, outputs and attention items of a step. */
typedef struct rose_cuda_shape {
    uint32_t n_rows, n_outputs;
    uint32_t n_single, n_tiles; /* items of one row, which come first, and of several */
    uint32_t n_table;           /* entries of all page tables */
} rose_cuda_shape;

/* Where a report goes when its step is collected. */
typedef struct rose_cuda_delivery {
    rose_logprob *to; /* borrowed: rose_output_rules.report */
    uint32_t at, n;   /* entries of the slot */
} rose_cuda_delivery;

typedef struct rose_cuda_slot {
    uint8_t *header;                /* pinned host memory, owned by the context's block */
    uint8_t *rules;                 /* likewise [rules_bytes] */
    uint32_t *ids;                  /* pinned, mapped: the sampler writes here */
    rose_cuda_logprob *entries;     /* pinned, mapped: reports [max_step_tokens * (1 + n_top)] */
    rose_cuda_delivery *deliveries; /* [max_step_tokens]; host memory, owned by the context */
    cudaEvent_t sent;               /* the header to the device, beside the step in front */
    cudaEvent_t done;
    uint64_t ticket;
    uint64_t rules_used;
    bool rules_again; /* the area is used again in this step, behind kernels that read it */
    uint32_t n_outputs, n_entries, n_deliveries;
} rose_cuda_slot;

/* A captured step of up to n rows: of n sequences, or (n_tiles > 0) of one prompt. */
typedef struct rose_cuda_graph {
    uint32_t n;
    rose_cuda_shape shape; /* n_table 0: the page tables come last, so nothing depends on it */
    cudaGraphExec_t exec[ROSE_CUDA_SLOTS]; /* with the header of each */
} rose_cuda_graph;

/* The step under way, for what follows each block of logits. */
typedef struct rose_cuda_step {
    const rose_batch *batch;
    rose_cuda_slot *slot;
    rose_cuda_header at;
} rose_cuda_step;

typedef struct rose_cuda {
    rose_arch arch;
    rose_memory_plan plan;
    rose_cuda_type type;
    uint32_t hd_pad;
    cudaStream_t stream;
    void *weights_base, *kv_base, *scratch_base; /* device regions, owned */
    uint8_t *pinned;                             /* owned */
    rose_cuda_delivery *deliveries;              /* owned: of all slots */
    rose_cuda_weights weights;
    rose_cuda_scratch scratch;
    rose_cuda_slot slots[ROSE_CUDA_SLOTS];
    rose_cuda_graph graphs[ROSE_CUDA_MAX_GRAPHS];
    uint32_t n_graphs;
    rose_cuda_graph prompts[ROSE_CUDA_MAX_PROMPTS];
    uint32_t n_prompts;
    uint8_t *header;    /* on the device: of the step that is enqueued or captured */
    bool use_graphs;    /* tests turn it off */
    bool pdl;           /* programmatic dependent launch */
    uint32_t without;   /* rose_cuda_without */
    bool naive;         /* prompts attend by the plain kernel */
    uint32_t timeout;   /* ms that the device may take to answer; 0 = any time */
    bool lost;          /* it has not: nothing here may wait for it again */
    cudaEvent_t staged; /* the last copy out of a slot's `rules` */
    cudaStream_t side;  /* what captures fork to; copies of tables and rules */
    cudaEvent_t fork, join;
    bool has_mega; /* a graph of one sequence is the megakernel and the sampler */
    rose_cuda_mega mega;
    uint64_t ticket, collected; /* the last step, and the last that was collected */
} rose_cuda;

/* err gets "what: the runtime's text"; NOMEM for exhausted device memory, else BACKEND. */
rose_status rose_cuda_fail(rose_err *err, cudaError_t e, const char *what);

/* Wait for an event by asking for it. cudaErrorNotReady: the device has not answered in time, and
 * the context is lost. */
cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event);
/* Wait for all that was enqueued, in the same way. */
cudaError_t rose_cuda_finish(rose_cuda *c);

/* A usable device 0 is made current. Errors: UNSUPPORTED (no driver, no device, too old: says
 * which). */
rose_status rose_cuda_select(rose_err *err);

/* profile.c: kernels join in a recording of base/profile.h, or (kernels false) it says that they
 * were left out; on false: no longer. */
void rose_cuda_profile(bool on, bool kernels);

/* plan.c */
size_t rose_cuda_type_size(rose_cuda_type t);
uint32_t rose_cuda_hd_pad(uint32_t head_dim);
uint64_t rose_cuda_kv_page_bytes(const rose_arch *a, rose_cuda_type t);
void rose_cuda_layout_weights(rose_cuda_weights *w, rose_bump *b, const rose_model *m,
                              const rose_memory_plan *p);
void rose_cuda_layout_scratch(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                              const rose_memory_plan *p);
void rose_cuda_layout_header(rose_cuda_header *h, const rose_cuda_shape *s);
rose_cuda_type rose_cuda_type_of(rose_compute c);
/* without.c: the bits of names with commas between; NULL, "" and "none" have none, "all" has all.
 * Errors: UNSUPPORTED (says which name, and which there are). */
rose_status rose_cuda_without_read(const char *names, uint32_t *without, rose_err *err);

rose_status rose_cuda_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                           rose_err *err);

/* load.c: pack all tensors; the KV region serves as staging and is zeroed afterwards. */
rose_status rose_cuda_load(rose_cuda *c, const rose_model *m, rose_err *err);

/* mega.c: fills c->mega; has_mega says whether model and device are such that it can run. */
rose_status rose_cuda_mega_open(rose_cuda *c, rose_err *err);
/* From here on it takes the tables at c->header. */
void rose_cuda_mega_place(rose_cuda *c);

/* forward.c. step NULL: no output wants more than an id (a capture). */
cudaError_t rose_cuda_forward(rose_cuda *c, const rose_cuda_shape *s, const rose_cuda_step *step);
/* What follows the logits of outputs first .. first + n - 1, a block, behind the sampler. */
cudaError_t rose_cuda_after(rose_cuda *c, const rose_cuda_step *step, uint32_t first, uint32_t n);
rose_cuda_kv rose_cuda_layer_kv(const rose_cuda *c, uint32_t layer);
rose_status rose_cuda_capture(rose_cuda *c, rose_err *err);
/* Captured steps whose layers run in two halves, at most. */
uint32_t rose_cuda_halved(void);

/* warm.c: run some steps, so that none of the first real ones has to load a kernel. */
rose_status rose_cuda_warm(rose_cuda *c, rose_err *err);

/* rules.c */
uint64_t rose_cuda_rules_bytes(uint32_t vocab); /* of the staging area */
/* Whether the sampler is to see other logits than the model's: then the first pass over the row is
 * idle. */
bool rose_cuda_rules_change(const rose_output_rules *r);
rose_cuda_pick rose_cuda_pick_of(const rose_sampling *p, uint32_t pos);
cudaError_t rose_cuda_rules_run(rose_cuda *c, const rose_cuda_step *step, uint32_t first,
                                uint32_t n);
void rose_cuda_rules_deliver(const rose_cuda_slot *slot);

#endif
