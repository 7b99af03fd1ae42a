/* backend/cuda/cuda_internal.h - the context of the CUDA backend and the functions that its host
 * files share. rose_cuda is what is said once about a model, rose_cuda_rank is one GPU; a function
 * that enqueues work takes a rank.
 *
 * device.c opens the GPU; plan.c and scratch.c compute sizes and places; load.c uploads the
 * weights; forward.c launches the kernels of a step; graphs.c captures steps; switches.c reads
 * which optimisations to leave out; rules.c handles logit rules and log-probability reports;
 * states.c sums the states of pooled requests; warm.c runs the warm-up; cuda_backend.c implements
 * the interface of backend.h.
 *
 * Words that these files use:
 *
 * - step: one forward pass over a batch. A row is one token of the batch.
 * - slot: the pinned memory and the events of one step in flight. There are two slots. (In kernel
 *   arguments `slot` is something else: the place of a row's K and V in the KV pages.)
 * - header: all tables of a step (token ids, positions, page tables, ...), one block of memory that
 *   is copied to the GPU before the step.
 * - item: the unit of work of attention, some rows of one sequence. An item of one row is "single";
 *   an item of several rows is a "tile".
 * - cut: how the contexts of the single items are divided over thread blocks (attend.h). There is
 *   one for each pool.
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
    ROSE_CUDA_OUT_BYTES = 64 << 20, /* most bytes of their logits, if one row is not more */
    ROSE_CUDA_MAX_GRAPHS = 24,
    ROSE_CUDA_MAX_PROMPTS = 10, /* captured steps of a single prompt */
    ROSE_CUDA_MAX_GUESSES = 12, /* captured steps of sequences with guesses */
    /* Most rows of logits that rules have changed and that exist at one time. */
    ROSE_CUDA_CHANGED = 128,
    ROSE_CUDA_SLOTS = 2,  /* steps in flight */
    ROSE_CUDA_RANKS = 1,  /* GPUs that compute a model together */
    ROSE_CUDA_ALIGN = 256 /* bytes: alignment of every part of a region */
};

typedef struct rose_cuda_layer {
    rose_cuda_norm_by ln1, ln2;     /* before attention, before the MLP; kind NONE without a norm */
    rose_cuda_norm_by post1, post2; /* after attention, after the MLP; w NULL without */
    float *q_norm, *k_norm;         /* [head_dim] or NULL */
    rose_cuda_matrix m[ROSE_N_ROLES];
    float scale;    /* factor for attention scores */
    int rope;       /* index of the tables in rose_cuda_weights; -1: none */
    uint32_t act;   /* rose_act of the MLP */
    uint32_t pool;  /* of the plan: the window, and the blocks of K and V */
    uint64_t kv_at; /* bytes in the KV memory, where the pools follow each other: of block 0 */
} rose_cuda_layer;

typedef struct rose_cuda_weights {
    rose_cuda_layer *layers; /* [n_layers]; host memory, owned */
    float *pos;              /* [max_model_len][d_model] device memory; NULL with RoPE */
    /* [max_model_len][rot_dim / 2] device memory, by the kind that has them first
     * (rose_rope_of_kind); NULL and 0 for the others. */
    float *cos[ROSE_MAX_KINDS], *sin[ROSE_MAX_KINDS];
    uint32_t rot_dim[ROSE_MAX_KINDS];
    rose_cuda_norm_by lnf;
    rose_cuda_matrix head; /* one part */
    void *tok; /* token embedding, packed like head.w; the same memory if the model ties them */
} rose_cuda_weights;

typedef struct rose_cuda_scratch {
    float *x; /* [rows][d_model]: residual stream */
    float
        *y; /* [rows][d_model] zeros: what a layer adds, before its norm; NULL without post norms */
    void *h;   /* T, blocked [rows][k_pad of d_model]: normed rows */
    void *qkv; /* [rows][(n_heads + 2 n_kv_heads) head_dim] of T or fp32: rows of the QKV GEMM */
    void *q;   /* T [rows][n_heads][hd_pad]: rotated queries */
    void *o;   /* T, blocked [rows][k_pad of n_heads * head_dim]: output of attention */
    void *ff;  /* T, blocked [rows][k_pad of d_ff] */
    float *up; /* [rows][n of the up matrix] before the activation; NULL with the fused MLP */
    void *out_h;
    float *logits; /* [out_block][ld_logits] */
    unsigned long long *key;
    uint32_t
        *sampled; /* ids of the last step's outputs; tokens of the next step may refer to them */
    float *parts; /* partial results of decode attention */
    uint32_t *arrivals; /* [max_seqs][n_kv_heads] its counters */
    /* With --paged-attn off: the pages of a layer that the step sees, one for each entry of the
     * page tables, and page tables that hold 0, 1, 2, ...; else NULL. */
    void *dense;
    uint32_t *dense_table; /* [n_dense] */
    uint32_t n_dense;
    uint8_t *header[ROSE_CUDA_SLOTS]; /* tables of the step in each slot */
    float *changed;                   /* [n_changed][ld_logits] */
    uint8_t *rules;                   /* device copy of the slot's `rules` */
    uint32_t ld_logits, out_block, n_changed;
    uint64_t header_bytes, rules_bytes;
} rose_cuda_scratch;

/* Offset in bytes of each table in the header. A captured graph uses the offsets of the largest
 * step that it serves. What depends on page tables is there once for each pool, pool after pool. */
typedef struct rose_cuda_header {
    uint64_t turn, ids, picks, items, tokens, where, slot, gather;
    uint64_t cuttings, units, folds;
    uint64_t tables, end;
} rose_cuda_header;

enum { ROSE_CUDA_FEW_ROWS = 16 /* a sequence with more rows in a step has tiles */ };

/* The numbers of rows, outputs, attention items and table entries of a step. */
typedef struct rose_cuda_shape {
    uint32_t n_rows, n_outputs;
    uint32_t n_single, n_tiles; /* single items (they come first), and tiles */
    bool shared;                /* several single items belong to one sequence */
    uint32_t n_pools;           /* as the plan */
    uint32_t n_units;           /* most units of a cut; its folds are at most n_single */
    uint32_t n_table;           /* entries of all page tables of all pools together */
} rose_cuda_shape;

/* The items of a pool: single ones, then tiles. `items`: those of all pools. */
static inline rose_cuda_item *rose_cuda_items(void *items, const rose_cuda_shape *s, uint32_t pool)
{
    return (rose_cuda_item *)items + (size_t)pool * (s->n_single + s->n_tiles);
}

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
    /* Sums of states: their outputs, their values [max_seqs][d_model] (both pinned, mapped), and
     * where the caller wants them ([max_seqs]; part of rose_cuda.sums_to). */
    rose_cuda_sum *sum;
    float *sums, **sums_to;
    cudaEvent_t sent; /* event: the copy of the header to the device has finished */
    cudaEvent_t done;
    uint64_t ticket;
    uint64_t rules_used;
    /* `rules` was full and is filled again in this step; enqueued kernels may still read it. */
    bool rules_again;
    uint32_t n_outputs, n_entries, n_deliveries, n_sums;
} rose_cuda_slot;

/* A captured step. It serves decode steps of up to n sequences; if shape.n_tiles > 0, steps of one
 * prompt with up to n rows; if shape.shared, decode steps whose sequences have up to n rows
 * together. */
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

typedef struct rose_cuda rose_cuda;
typedef struct rose_cuda_rank rose_cuda_rank;

/* Runs the layers and the head of a decode step of one sequence in one kernel. The tables of the
 * step are at rank->header; the sampler follows. */
typedef cudaError_t rose_cuda_fast(rose_cuda_rank *rank, const rose_cuda_launch *at);

/* One GPU: its share of weights and KV pages, and what runs there. */
struct rose_cuda_rank {
    rose_cuda *c; /* what all ranks share */
    rose_cuda_device device;
    cudaStream_t stream;
    cudaStream_t side;  /* second stream: copies of headers and rules */
    cudaEvent_t staged; /* event: the last copy of a slot's `rules` has finished */
    void *weights_base, *kv_base, *scratch_base; /* device memory, owned */
    rose_cuda_weights weights;
    rose_cuda_scratch scratch;
    uint8_t *header; /* device memory: tables of the step that is being enqueued or captured */
    rose_cuda_graph graphs[ROSE_CUDA_MAX_GRAPHS];
    uint32_t n_graphs;
    rose_cuda_graph prompts[ROSE_CUDA_MAX_PROMPTS];
    uint32_t n_prompts;
    rose_cuda_graph guesses[ROSE_CUDA_MAX_GUESSES];
    uint32_t n_guesses;
    rose_cuda_fast *fast; /* the graph of one sequence is this and then the sampler; or NULL */
    struct rose_cuda_mega *mega; /* what `fast` uses, owned; or NULL */
};

/* What is said once for all GPUs of a model. */
struct rose_cuda {
    rose_arch arch;
    rose_memory_plan plan;
    rose_format type;
    uint32_t hd_pad;
    bool plain;       /* no attention kernel with tensor cores supports the shape or type */
    bool naive;       /* true: the plain kernel (not flash) computes the attention of prompts */
    bool mma_prompts; /* true: the flash kernel of mma.sync does, also where wgmma is there */
    bool use_graphs;  /* false in some tests */
    bool pdl;         /* use programmatic dependent launch */
    uint32_t without; /* bits of rose_cuda_without */
    const rose_gemm_kernel *forced; /* NULL except in tests: rose_cuda_launch */
    rose_gemm_tuned tuned;          /* owned; empty: the cost model chooses */
    uint8_t *pinned;                /* pinned host memory of all slots, owned */
    rose_cuda_delivery *deliveries; /* of all slots, owned */
    float **sums_to;                /* likewise */
    rose_cuda_slot slots[ROSE_CUDA_SLOTS];
    uint64_t ticket,
        collected;    /* number of the last step enqueued, and of the last one collected */
    uint32_t timeout; /* milliseconds that a device may take to answer; 0 = no limit */
    bool lost;        /* a device did not answer in time, so nothing may wait for it again */
    rose_cuda_rank ranks[ROSE_CUDA_RANKS];
};

/* The launches of a step. */
typedef struct rose_cuda_pass {
    rose_cuda_rank *rank;
    const rose_cuda_shape *s;
    rose_cuda_header at;
    rose_cuda_launch launch;
    cudaError_t e; /* the first error */
} rose_cuda_pass;

/* device.c: ROSE_OK for cudaSuccess. Else fills err with "what: the text of the CUDA runtime" and
 * returns NOMEM if the device is out of memory, BACKEND otherwise. */
rose_status rose_cuda_status(rose_err *err, cudaError_t e, const char *what);

/* Wait for an event by polling. cudaErrorNotReady: the device has not answered in time; the context
 * is then marked as lost. */
cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event);
/* Wait by polling for everything that was enqueued on rank->stream; errors as rose_cuda_wait. */
cudaError_t rose_cuda_finish(rose_cuda_rank *rank);

/* Make GPU `index` the current device of this thread. Errors: UNSUPPORTED: no driver, no
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
uint64_t rose_cuda_kv_block_bytes(const rose_arch *a, uint32_t n_layers, const rose_memory_plan *p);
void rose_cuda_layout_weights(rose_cuda_weights *w, rose_bump *b, const rose_model *m,
                              const rose_memory_plan *p);

/* scratch.c. sms: SMs of the GPU. The scratch memory depends on the number of KV pages. */
void rose_cuda_layout_scratch(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                              const rose_memory_plan *p, uint32_t sms);
void rose_cuda_layout_header(rose_cuda_header *h, const rose_cuda_shape *s);
uint32_t rose_cuda_item_rows(const rose_arch *a); /* most rows of a tile */
/* How decode attention of n sequences may be divided. */
rose_attend_limits rose_cuda_attend_limits(const rose_arch *a, const rose_memory_plan *p,
                                           uint32_t sms, uint32_t n);
/* Fill n_pools and n_units, from n_single and the plan. */
void rose_cuda_shape_cuts(rose_cuda_shape *s, const rose_arch *a, const rose_memory_plan *p,
                          uint32_t sms);
/* switches.c: turn names, separated by commas, into bits of rose_cuda_without. NULL, "" and "none"
 * give no bit, "all" gives all bits. Errors: UNSUPPORTED: the message names the unknown word and
 * lists the known ones. */
rose_status rose_cuda_without_read(const char *names, uint32_t *without, rose_err *err);
/* All switches of the options as bits. Errors: UNSUPPORTED: a name that is unknown. */
rose_status rose_cuda_switches_read(const rose_cuda_opts *o, uint32_t *without, rose_err *err);

rose_status rose_cuda_check(const rose_model *m, rose_err *err); /* rose_backend_ops.check */
rose_status rose_cuda_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                           rose_err *err);

/* load.c: pack all tensors on the device. The memory of the KV pages serves as the staging area and
 * is zeroed afterwards. */
rose_status rose_cuda_load(rose_cuda_rank *rank, const rose_model *m, rose_err *err);

/* mega.c: set rank->fast if the megakernel can run this model on this GPU. */
rose_status rose_cuda_mega_open(rose_cuda_rank *rank, rose_err *err);
void rose_cuda_mega_close(rose_cuda_rank *rank);
/* tune_steps.c: keep the choices of tune.c (lines with a guess) that make a decode step faster.
 * The other lines get the estimate's kernel, and so do those that were not tried before `until`
 * (rose_now_ns). Buckets that no decode step reaches stay as they are. Call while there are no
 * graphs and no sequences. Threads: the engine thread. */
rose_status rose_cuda_tune_steps(rose_cuda_rank *rank, uint64_t until, rose_err *err);
/* tune.c: read the tuned GEMM kernels of this GPU from the directory `dir` (NULL: no file). With
 * `measure` also time the kernels on the model's shapes, for at most 30 s, and write the file. Then
 * add the choices that ship with the program, where there is none yet. Call after rose_cuda_load
 * and before the first step. A file that cannot be read or written is a warning. */
rose_status rose_cuda_tune(rose_cuda_rank *rank, const char *dir, bool measure, rose_err *err);

/* forward.c: enqueue one step. step is NULL while a graph is captured; then the step produces only
 * ids. */
cudaError_t rose_cuda_forward(rose_cuda_rank *rank, const rose_cuda_shape *s,
                              const rose_cuda_step *step);
/* Enqueue what follows the sampler for outputs first .. first + n - 1, which are one block of
 * logits: rules, reports, and the copy of the logits. */
cudaError_t rose_cuda_after(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                            uint32_t n);
rose_cuda_kv rose_cuda_layer_kv(const rose_cuda_rank *rank, uint32_t layer);
/* A step that graphs.c launches itself: its tables, and the sampler of outputs first .. first + n -
 * 1. */
rose_cuda_pass rose_cuda_pass_begin(rose_cuda_rank *rank, const rose_cuda_shape *s);
void rose_cuda_pass_sample(rose_cuda_pass *p, uint32_t first, uint32_t n);
/* Whether all of the L1 is shared memory in a step of n rows. */
bool rose_cuda_carveout(uint32_t without, uint32_t n_rows);

/* graphs.c: capture the steps. */
rose_status rose_cuda_capture(rose_cuda_rank *rank, rose_err *err);
/* Capture the decode step of n sequences too. Call with ascending n. */
rose_status rose_cuda_capture_decode(rose_cuda_rank *rank, uint32_t n, rose_err *err);
/* Destroy all graphs. No step may be in flight, and the device must not be lost. */
void rose_cuda_drop_graphs(rose_cuda_rank *rank);
/* The captured step for the batch, or NULL. */
const rose_cuda_graph *rose_cuda_graph_for(const rose_cuda_rank *rank, const rose_batch *b);
/* The largest number of kernels in all captured steps together. */
uint64_t rose_cuda_graph_nodes(const rose_arch *a, uint32_t without);

/* warm.c: run some steps, so that no kernel has to be loaded during the first real step. */
rose_status rose_cuda_warm(rose_cuda *c, rose_err *err);

/* rules.c */
uint64_t rose_cuda_rules_bytes(uint32_t vocab); /* size of the staging area `rules` */
/* Whether the rules change the logits of this output. The sampler then runs on the changed logits,
 * and its pass over the original row does as little as possible. */
bool rose_cuda_rules_change(const rose_output_rules *r);
rose_cuda_pick rose_cuda_pick_of(const rose_sampling *p, uint32_t pos);
cudaError_t rose_cuda_rules_run(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                                uint32_t n);
void rose_cuda_rules_deliver(const rose_cuda_slot *slot);

/* states.c: the sums of states (rose_batch_out.sum). Before the step: copy the caller's sums to
 * the slot. */
void rose_cuda_sums_begin(const rose_cuda *c, rose_cuda_slot *slot, const rose_batch *b);
/* After the norm of these outputs: add their states. */
cudaError_t rose_cuda_sums_run(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                               uint32_t n);
/* Call after the step has ended: copy the sums to the caller. */
void rose_cuda_sums_deliver(const rose_cuda *c, const rose_cuda_slot *slot);

#endif
