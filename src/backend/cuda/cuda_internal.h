/* backend/cuda/cuda_internal.h - the context of the CUDA backend and the functions that its host
 * files share.
 *
 * device.c opens the GPU; plan.c computes sizes and places; load.c uploads the weights; forward.c
 * launches the kernels of a step and captures them into graphs; mega.c prepares the megakernel;
 * rules.c handles logit rules and log-probability reports; warm.c runs the warm-up; cuda_backend.c
 * implements the interface of backend.h.
 *
 * Words that these files use:
 *
 * - step: one forward pass over a batch. A row is one token of the batch.
 * - slot: the pinned memory and the events of one step in flight. There are two slots. (In kernel
 *   arguments `slot` is something else: the place of a row's K and V in the KV pages.)
 * - header: all tables of a step (token ids, positions, page tables, ...), one block of memory that
 *   is copied to the GPU before the step.
 * - item: the unit of work of attention, up to 16 rows of one sequence. An item of one row is
 *   "single"; an item of several rows is a "tile".
 * - half: a captured decode step may run its layers as two halves of the rows, on two streams.
 *
 * Threads: the engine thread; rose_cuda_plan may run on any thread. */
#ifndef ROSE_BACKEND_CUDA_CUDA_INTERNAL_H
#define ROSE_BACKEND_CUDA_CUDA_INTERNAL_H

#include "backend/backend.h"
#include "backend/cuda/attend.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.h"
#include "base/bump.h"

enum {
    ROSE_CUDA_OUT_BLOCK = 256, /* at most this many output rows whose logits exist at one time */
    ROSE_CUDA_MAX_GRAPHS = 24,
    ROSE_CUDA_MAX_PROMPTS = 10, /* captured steps of a single prompt */
    /* Most rows of logits that rules have changed and that exist at one time. */
    ROSE_CUDA_CHANGED = 128,
    ROSE_CUDA_SLOTS = 2,  /* steps in flight */
    ROSE_CUDA_ALIGN = 256 /* bytes: alignment of every part of a region */
};

/* The largest number of kernels in a captured step. A layer has two norms, four GEMMs and
 * attention. The rest is embedding, last norm, head and sampler. */
#define ROSE_CUDA_NODES(n_layers) (7 * (uint64_t)(n_layers) + 4)

typedef struct rose_cuda_layer {
    rose_cuda_norm_by ln1, ln2;     /* before attention, before the MLP; kind NONE without a norm */
    rose_cuda_norm_by post1, post2; /* after attention, after the MLP; w NULL without */
    float *q_norm, *k_norm;         /* [head_dim] or NULL */
    rose_cuda_matrix qkv;           /* one part */
    rose_cuda_matrix out;           /* four parts */
    rose_cuda_matrix up;            /* one part; gated: gate and up */
    rose_cuda_matrix down;          /* four parts */
    float scale;     /* factor for attention scores */
    uint32_t window; /* 0: full attention */
    int rope;        /* index of the tables in rose_cuda_weights; -1: none */
} rose_cuda_layer;

typedef struct rose_cuda_weights {
    rose_cuda_layer *layers;  /* [n_layers]; host memory, owned */
    float *pos;               /* [max_model_len][d_model] device memory; NULL with RoPE */
    float *cos[2], *sin[2];   /* [max_model_len][rot_dim / 2] device memory; NULL without */
    uint32_t rot_dim[2];
    rose_cuda_norm_by lnf;
    rose_cuda_matrix head; /* one part */
    void *tok; /* token embedding, packed like head.w; the same memory if the model ties them */
} rose_cuda_weights;

typedef struct rose_cuda_scratch {
    float *x; /* [rows][d_model]: residual stream */
    void *h;  /* T, blocked [rows][k_pad of d_model]: normed rows, later the output of attention */
    void *q;  /* T [rows][d_model] */
    void *ff; /* T, blocked [rows][k_pad of d_ff] */
    void *kv_rows; /* T [max_seqs][2 d_model]: K and V of the rows of a decode step */
    void *out_h;
    float *logits; /* [out_block][ld_logits] */
    unsigned long long *key;
    uint32_t
        *sampled; /* ids of the last step's outputs; tokens of the next step may refer to them */
    uint2 *slots; /* values that the blocks of the megakernel exchange */
    uint8_t *header[ROSE_CUDA_SLOTS]; /* tables of the step in each slot */
    float *changed;                   /* [n_changed][ld_logits] */
    unsigned long long *changed_key;
    uint8_t *rules; /* device copy of the slot's `rules` */
    uint32_t ld_logits, out_block, n_changed;
    uint64_t header_bytes, rules_bytes;
} rose_cuda_scratch;

/* Offset in bytes of each table in the header. A captured graph uses the offsets of the largest
 * step that it serves. */
typedef struct rose_cuda_header {
    uint64_t turn, ids, picks, items, tokens, where, slot, gather, tables, end;
} rose_cuda_header;

/* The numbers of rows, outputs, attention items and table entries of a step. */
typedef struct rose_cuda_shape {
    uint32_t n_rows, n_outputs;
    uint32_t n_single, n_tiles; /* single items (they come first), and tiles */
    uint32_t n_table;           /* entries of all page tables together */
} rose_cuda_shape;

/* A log-probability report that the backend copies to the caller when the step is collected. */
typedef struct rose_cuda_delivery {
    rose_logprob *to; /* borrowed: report of rose_output_rules */
    uint32_t at, n;   /* entries [at, at + n) of the slot */
} rose_cuda_delivery;

typedef struct rose_cuda_slot {
    uint8_t *header;            /* pinned host memory, part of rose_cuda.pinned */
    uint8_t *rules;             /* pinned host memory [rules_bytes]: rules of the step's outputs */
    uint32_t *ids;              /* pinned host memory, mapped: the sampler writes the ids here */
    rose_cuda_logprob *entries; /* pinned, mapped host memory [max_step_tokens * (1 + n_top)] for
                                   log-probabilities */
    rose_cuda_delivery *deliveries; /* [max_step_tokens]; part of rose_cuda.deliveries */
    cudaEvent_t sent;               /* event: the copy of the header to the device has finished */
    cudaEvent_t done;
    uint64_t ticket;
    uint64_t rules_used;
    /* `rules` was full and is filled again in this step; enqueued kernels may still read it. */
    bool rules_again;
    uint32_t n_outputs, n_entries, n_deliveries;
} rose_cuda_slot;

/* A captured step. It serves decode steps of up to n sequences or, if shape.n_tiles > 0, steps of
 * one prompt with up to n rows. */
typedef struct rose_cuda_graph {
    uint32_t n;
    rose_cuda_shape shape; /* n_table is 0: the page tables are last in the header, so no offset
                              depends on n_table */
    cudaGraphExec_t exec[ROSE_CUDA_SLOTS]; /* one graph for the header of each slot */
} rose_cuda_graph;

/* The step that is being enqueued; rose_cuda_after needs it after each block of logits. */
typedef struct rose_cuda_step {
    const rose_batch *batch;
    rose_cuda_slot *slot;
    rose_cuda_header at;
} rose_cuda_step;

typedef struct rose_cuda {
    rose_cuda_device device;
    rose_arch arch;
    rose_memory_plan plan;
    rose_cuda_type type;
    uint32_t hd_pad;
    cudaStream_t stream;
    void *weights_base, *kv_base, *scratch_base; /* device memory, owned */
    uint8_t *pinned;                             /* pinned host memory of all slots, owned */
    rose_cuda_delivery *deliveries;              /* of all slots, owned */
    rose_cuda_weights weights;
    rose_cuda_scratch scratch;
    rose_cuda_slot slots[ROSE_CUDA_SLOTS];
    rose_cuda_graph graphs[ROSE_CUDA_MAX_GRAPHS];
    uint32_t n_graphs;
    rose_cuda_graph prompts[ROSE_CUDA_MAX_PROMPTS];
    uint32_t n_prompts;
    uint8_t *header;  /* device memory: tables of the step that is being enqueued or captured */
    bool use_graphs;  /* false in some tests */
    bool pdl;         /* use programmatic dependent launch */
    uint32_t without; /* bits of rose_cuda_without */
    const rose_cuda_gemm *forced; /* NULL except in tests: rose_cuda_launch */
    bool naive;         /* true: the plain kernel (not flash) computes the attention of prompts */
    uint32_t timeout;   /* milliseconds that the device may take to answer; 0 = no limit */
    bool lost;          /* the device did not answer in time, so nothing may wait for it again */
    cudaEvent_t staged; /* event: the last copy of a slot's `rules` has finished */
    cudaStream_t side;  /* second stream: the second half of a captured step, and copies of headers
                           and rules */
    cudaEvent_t fork, join;
    bool has_mega; /* the graph of one sequence is the megakernel and then the sampler */
    rose_cuda_mega mega;
    uint64_t ticket,
        collected; /* number of the last step enqueued, and of the last one collected */
} rose_cuda;

/* Fill err with "what: the text of the CUDA runtime". Returns NOMEM if the device is out of memory,
 * else BACKEND. */
rose_status rose_cuda_fail(rose_err *err, cudaError_t e, const char *what);

/* Wait for an event by polling. cudaErrorNotReady: the device has not answered in time; the context
 * is then marked as lost. */
cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event);
/* Wait by polling for everything that was enqueued on c->stream; errors as rose_cuda_wait. */
cudaError_t rose_cuda_finish(rose_cuda *c);

/* device.c: make GPU `index` the current device of this thread. Errors: UNSUPPORTED: no driver, no
 * such GPU, or a GPU that is too old; the message says which. */
rose_status rose_cuda_select(int index, rose_err *err);
/* The same, and fill *out. */
rose_status rose_cuda_device_open(int index, rose_cuda_device *out, rose_err *err);

/* cuda_backend.c: the functions of the backend. */
extern const rose_backend_ops rose_cuda_ops;

/* profile.c: from now on recordings of base/profile.h include the GPU's kernels. With kernels false
 * a recording only notes that they were left out; with on false the GPU adds nothing. */
void rose_cuda_profile(bool on, bool kernels);

/* weights.c */
size_t rose_cuda_type_size(rose_cuda_type t);
uint64_t rose_cuda_kv_page_bytes(const rose_arch *a, rose_cuda_type t);
void rose_cuda_layout_weights(rose_cuda_weights *w, rose_bump *b, const rose_model *m,
                              const rose_memory_plan *p);
void rose_cuda_layout_scratch(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                              const rose_memory_plan *p);
void rose_cuda_layout_header(rose_cuda_header *h, const rose_cuda_shape *s);
rose_cuda_type rose_cuda_type_of(rose_compute c);
/* without.c: turn names, separated by commas, into bits of rose_cuda_without. NULL, "" and "none"
 * give no bit, "all" gives all bits. Errors: UNSUPPORTED: the message names the unknown word and
 * lists the known ones. */
rose_status rose_cuda_without_read(const char *names, uint32_t *without, rose_err *err);

rose_status rose_cuda_check(const rose_model *m, rose_err *err); /* rose_backend_ops.check */
rose_status rose_cuda_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                           rose_err *err);

/* load.c: pack all tensors on the device. The memory of the KV pages serves as the staging area and
 * is zeroed afterwards. */
rose_status rose_cuda_load(rose_cuda *c, const rose_model *m, rose_err *err);

/* mega.c: fill c->mega and set c->has_mega, which says whether this model and GPU can run the
 * megakernel. */
rose_status rose_cuda_mega_open(rose_cuda *c, rose_err *err);
/* Let the megakernel read the tables at c->header. */
void rose_cuda_mega_place(rose_cuda *c);

/* forward.c: enqueue one step. step is NULL while a graph is captured; then the step produces only
 * ids. */
cudaError_t rose_cuda_forward(rose_cuda *c, const rose_cuda_shape *s, const rose_cuda_step *step);
/* Enqueue what follows the sampler for outputs first .. first + n - 1, which are one block of
 * logits: rules, reports, and the copy of the logits. */
cudaError_t rose_cuda_after(rose_cuda *c, const rose_cuda_step *step, uint32_t first, uint32_t n);
rose_cuda_kv rose_cuda_layer_kv(const rose_cuda *c, uint32_t layer);
rose_status rose_cuda_capture(rose_cuda *c, rose_err *err);
/* The largest number of captured steps that run in two halves. */
uint32_t rose_cuda_halved(void);

/* warm.c: run some steps, so that no kernel has to be loaded during the first real step. */
rose_status rose_cuda_warm(rose_cuda *c, rose_err *err);

/* rules.c */
uint64_t rose_cuda_rules_bytes(uint32_t vocab); /* size of the staging area `rules` */
/* Whether the rules change the logits of this output. The sampler then runs on the changed logits,
 * and its pass over the original row does as little as possible. */
bool rose_cuda_rules_change(const rose_output_rules *r);
rose_cuda_pick rose_cuda_pick_of(const rose_sampling *p, uint32_t pos);
cudaError_t rose_cuda_rules_run(rose_cuda *c, const rose_cuda_step *step, uint32_t first,
                                uint32_t n);
void rose_cuda_rules_deliver(const rose_cuda_slot *slot);

#endif
