/* model/model.h - what a model is: its architecture and its tensors in a Hugging Face folder. No
 * arithmetic on weights here; the tensors are borrowed from read-only mappings that live as long as
 * the model.
 *
 * One description serves every backend. A new family needs a parser that fills rose_arch and the
 * tensor roles, and the operations that are missing.  Threads: immutable after open, any thread. */
#ifndef ROSE_MODEL_MODEL_H
#define ROSE_MODEL_MODEL_H

#include "base/file.h"
#include "model/format.h"

typedef enum rose_norm { ROSE_NORM_LAYER, ROSE_NORM_RMS } rose_norm;
typedef enum rose_pos { ROSE_POS_LEARNED, ROSE_POS_ROPE } rose_pos;
typedef enum rose_act {
    ROSE_ACT_GELU_TANH, /* gelu_new, gelu_pytorch_tanh, gelu_fast and similar:
                           0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
    ROSE_ACT_GELU_ERF,  /* gelu: 0.5x(1+erf(x/sqrt 2)) */
    ROSE_ACT_RELU,
    ROSE_ACT_SILU
} rose_act;

typedef enum rose_rope_kind {
    ROSE_ROPE_DEFAULT,
    ROSE_ROPE_LINEAR,
    ROSE_ROPE_DYNAMIC,
    ROSE_ROPE_LLAMA3,
    ROSE_ROPE_YARN,
    ROSE_ROPE_LONGROPE
} rose_rope_kind;

/* One table of inverse frequencies; model/rope.h computes it. Element i of a head is rotated
 * together with element i + dim / 2. 0 stands for a number that the config does not give. */
typedef struct rose_rope {
    float theta;
    uint32_t dim; /* rotated values of a head, the first ones; even, at most head_dim; 0 = none */
    rose_rope_kind kind;
    float factor;                    /* all kinds but default; longrope: 0 = from the lengths */
    uint32_t original_max_positions; /* dynamic, llama3, yarn, longrope: before the scaling */
    float low_freq_factor, high_freq_factor;            /* llama3 */
    float beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    float attention_factor;                             /* yarn, longrope: 0 = from the factor */
    bool truncate; /* yarn: round the bounds of the ramp to whole indices */
    /* longrope: [dim / 2] divisors of the frequencies, up to the original context and beyond it.
     * With another kind short_factor may be set as well: the result is divided by it (GGUF's
     * rope_freqs). Borrowed: rose_arch.rope_factors. */
    const float *short_factor, *long_factor;
} rose_rope;

/* ---- kinds of layer ----
 * A layer is: norm, mixer, add, norm, MLP, add. */

/* What mixes the positions of a sequence: attention, in which a position sees itself and those
 * before it. */
typedef struct rose_mixer {
    uint32_t n_heads;      /* query heads */
    uint32_t n_kv_heads;   /* a divisor of n_heads; == n_heads for GPT-2 */
    uint32_t head_dim;     /* free of d_model; d_model / n_heads for GPT-2 */
    uint32_t window;       /* a position sees itself and window - 1 before; 0 = all before */
    rose_rope rope;        /* dim 0: q and k are not rotated */
    float scale;           /* scores are scaled by this: 1/sqrt(head_dim) and others */
    bool scale_by_layer;   /* further divided by (layer + 1): rose_arch_scale */
    float softcap;         /* of scores: s -> cap tanh(s / cap); 0 = none */
    bool qk_norm;          /* RMS norm over head_dim of each head of q and k, before RoPE */
    bool qkv_bias, o_bias; /* the tensors that the files must hold */
} rose_mixer;

typedef struct rose_mlp {
    uint32_t d_ff; /* width (n_inner, default 4 d_model) */
    rose_act act;
    bool gated; /* act(gate) * up */
    bool bias;
} rose_mlp;

/* What is normed: the input, what comes out and is added to the residual stream, or both. Norms of
 * what comes out are RMS norms. */
typedef enum rose_norm_place {
    ROSE_NORM_BEFORE,
    ROSE_NORM_AFTER,
    ROSE_NORM_AROUND
} rose_norm_place;
typedef struct rose_norms {
    rose_norm_place mixer, mlp;
} rose_norms;

typedef struct rose_kind {
    rose_mixer mixer;
    rose_mlp mlp;
    rose_norms norms;
} rose_kind;

enum { ROSE_MAX_KINDS = 8, ROSE_MAX_EOS = 64, ROSE_MAX_LAYERS = 1024 };

typedef struct rose_arch {
    char model_type[32]; /* "gpt2" */
    uint32_t n_layers;   /* 1 .. ROSE_MAX_LAYERS */
    uint32_t d_model;    /* residual width */
    uint32_t vocab_size;
    uint32_t max_positions; /* n_positions: the longest context */
    float norm_eps;
    float logit_softcap; /* x -> cap tanh(x / cap); 0 = none */
    float embed_scale;   /* the token embedding is multiplied by this; 1 = none */
    rose_norm norm;
    bool norm_plus_one; /* every norm but LayerNorm multiplies by 1 + w (Gemma) */
    rose_pos pos;
    uint32_t n_kinds;                 /* 1 .. ROSE_MAX_KINDS; each has a layer */
    rose_kind kinds[ROSE_MAX_KINDS];  /* they differ in window and rotation alone (rose_arch_any) */
    uint8_t kind_of[ROSE_MAX_LAYERS]; /* index into kinds */
    float *rope_factors; /* what the ropes borrow; owned, freed by rose_arch_free; NULL = none */
    bool tied_head; /* the head is the token embedding: config.json says so and the files hold no
                       other head, or the files hold none at all */
    bool headless; /* ... the latter, and config.json says that there is one: logits have no meaning
                    */
    char no_text[128]; /* not "": what the model is instead of one that writes texts; the engine
                          generates nothing */
    int64_t bos_id;    /* -1 = none; always < vocab_size */
    uint32_t n_eos;
    uint32_t eos_ids[ROSE_MAX_EOS]; /* ids from config.json and generation_config.json, without
                                       duplicates; ids outside the vocabulary are dropped with a
                                       warning */
} rose_arch;

static inline const rose_kind *rose_arch_kind(const rose_arch *a, uint32_t layer)
{
    return &a->kinds[a->kind_of[layer]];
}

/* Some kind, for what all kinds of a model have in common: heads, MLP, norms. Whoever calls it
 * relies on that: memory of one size for every layer, one division of attention for all layers. */
static inline const rose_kind *rose_arch_any(const rose_arch *a)
{
    return &a->kinds[0];
}

/* The factor of a layer's scores. */
static inline float rose_arch_scale(const rose_arch *a, uint32_t layer)
{
    const rose_mixer *m = &rose_arch_kind(a, layer)->mixer;
    return m->scale_by_layer ? m->scale / (float)(layer + 1) : m->scale;
}

/* How many norms of a layer norm what comes out: 0 to 2. */
static inline uint32_t rose_norms_after(const rose_norms *n)
{
    return (n->mixer != ROSE_NORM_BEFORE ? 1u : 0u) + (n->mlp != ROSE_NORM_BEFORE ? 1u : 0u);
}

static inline bool rose_arch_is_eos(const rose_arch *a, uint64_t id)
{
    for (uint32_t i = 0; i < a->n_eos; i++)
        if (a->eos_ids[i] == id) return true;
    return false;
}

/* Adds an end-of-text id, unless it is known or outside the vocabulary. Returns false if the list
 * has no room for it. */
static inline bool rose_arch_add_eos(rose_arch *a, uint64_t id)
{
    if (id >= a->vocab_size || rose_arch_is_eos(a, id)) return true;
    if (a->n_eos == ROSE_MAX_EOS) return false;
    a->eos_ids[a->n_eos++] = (uint32_t)id;
    return true;
}

/* ---- what a layer keeps of the past ---- */

enum { ROSE_MAX_POOLS = 4 };

/* The layers that keep the same positions of a sequence share a pool of memory. */
typedef struct rose_pool_spec {
    uint32_t window;   /* positions that a row reads, itself included; 0 = all */
    uint32_t n_layers; /* at least one */
} rose_pool_spec;

/* The pools of a model and, for each kind of layer, the index of its pool (NULL: not wanted). The
 * pool of whole contexts is first, if there is one; the others have windows. Returns the number of
 * pools, at least one. */
uint32_t rose_arch_pools(const rose_arch *a, rose_pool_spec out[ROSE_MAX_POOLS],
                         uint8_t pool_of_kind[ROSE_MAX_KINDS]);

/* ---- the matrices of a layer ---- */

/* What a matrix computes. A layer has each role at most once, and the parts of a layer run in this
 * order. */
typedef enum rose_role {
    ROSE_QKV,  /* d_model -> (n_heads + 2 n_kv_heads) head_dim: q, k, v, each by head */
    ROSE_OUT,  /* n_heads head_dim -> d_model, added to the residual stream */
    ROSE_UP,   /* d_model -> d_ff; gated: 2 d_ff, gate first, then up */
    ROSE_DOWN, /* d_ff -> d_model, added to the residual stream */
    ROSE_N_ROLES
} rose_role;

/* How a matrix is divided over several devices: each has some of the outputs, or some of the inputs
 * and so a part of every sum. */
typedef enum rose_split { ROSE_SPLIT_NONE, ROSE_SPLIT_OUTPUTS, ROSE_SPLIT_INPUTS } rose_split;

/* y = x W: k inputs, n outputs. Everything that loads, packs, plans or tunes matrices loops over
 * the list that rose_kind_matrices makes. */
typedef struct rose_matrix_spec {
    rose_role role;
    uint32_t k, n;    /* gated: n counts gate and up */
    uint32_t n_stack; /* matrices of this shape in one tensor of the files; 1 */
    uint32_t unit;    /* inputs or outputs that a split keeps together: head_dim, or 1 */
    bool gated;       /* act(gate) * up is what comes out: n / 2 values */
    rose_split split;
} rose_matrix_spec;

/* The matrices of a kind of layer in the order of the roles; returns how many there are. */
size_t rose_kind_matrices(const rose_arch *a, const rose_kind *k,
                          rose_matrix_spec out[ROSE_N_ROLES]);

const char *rose_role_name(rose_role r); /* "qkv", "out", "up", "down" */

/* ---- tensors ---- */

/* A tensor borrowed from the mapping. Dimensions that it does not have are 1. Row-major,
 * little-endian. The data may have any alignment, so read it with memcpy or unaligned loads. */
typedef struct rose_tensor {
    const char *name; /* as in the file; borrowed */
    const void *data;
    rose_format dtype;
    uint32_t n_dims;
    uint64_t shape[3];
} rose_tensor;

enum { ROSE_LINEAR_PARTS = 3 };

/* Matrices multiply as y = x W + b with W stored [in][out] (GPT-2's Conv1D) unless `transposed`,
 * then [out][in] (Linear). The outputs of the parts are stacked in order. A file that holds the
 * parts fused gives one part. A missing bias has data NULL; either all parts have one or none. */
typedef struct rose_linear {
    rose_tensor w[ROSE_LINEAR_PARTS], b[ROSE_LINEAR_PARTS];
    uint32_t n_parts; /* 1 .. ROSE_LINEAR_PARTS */
    bool transposed;
    /* Heads of part p whose output rows the file keeps interleaved, as GGUF files of some families
     * do for q and k; 0 = the rows are in order. Read rows through rose_linear_row. */
    uint32_t permuted_heads[ROSE_LINEAR_PARTS];
} rose_linear;

/* Where output i of a part is stored: its row in w[part] and its element in b[part]. Outputs are
 * counted with the two halves of a rotated head one after the other; see NUMERICS.md, RoPE. */
uint64_t rose_linear_row(const rose_linear *l, uint32_t part, uint64_t i);

/* Norm weights that the architecture does not have keep data NULL. */
typedef struct rose_layer {
    rose_tensor ln1_w, ln1_b, ln2_w, ln2_b; /* before attention, before the MLP */
    rose_tensor post1, post2;               /* after attention, after the MLP */
    rose_tensor q_norm, k_norm;             /* [head_dim] */
    rose_linear m[ROSE_N_ROLES];
} rose_layer;

/* Free what the architecture owns. rose_model_close calls it; a copy of an architecture borrows. */
void rose_arch_free(rose_arch *a);

typedef struct rose_model {
    char *path; /* the folder or the GGUF file, owned */
    char *name; /* last component of the path, without ".gguf", owned: default name in the API */
    char class_name[64]; /* the first of config.json's `architectures`; "" = none */
    rose_arch arch;
    rose_tensor tok_embed;        /* [vocab][d_model] */
    rose_tensor pos_embed;        /* [max_positions][d_model]; data NULL with RoPE */
    rose_layer *layers;           /* [n_layers], owned */
    rose_tensor lnf_w, lnf_b;     /* lnf_b: data NULL with RMSNorm */
    rose_tensor head;             /* [vocab][d_model]; == tok_embed when tied */
    rose_format dtype;            /* of the majority of the weight bytes */
    bool has_blocks;              /* some tensor has a block type */
    bool dummy;                   /* the weights have no file: model/random.h */
    uint64_t n_params;            /* elements of all used tensors, tied ones once */
    uint64_t file_bytes;          /* of all weight files */
    struct rose_weights *weights; /* the mappings, owned */
} rose_model;

/* Open the model at path: a folder with config.json (+ generation_config.json) and
 * model.safetensors or a sharded index; a GGUF file or any part of a split one; or a folder that
 * holds one GGUF model and no safetensors. Check every size against every other. On failure *out is
 * NULL and err says which file, which field, what was found and what was expected. It
 * reads no tensor data, except where it must know whether a head equals the embedding. Errors:
 * NOTFOUND, IO, FORMAT, UNSUPPORTED (by name: model_type, dtype, a field that no family computes),
 * NOMEM. */
rose_status rose_model_open(rose_model **out, const char *path, rose_err *err);

/* Opens the folder as rose_model_open does, but reads config.json alone. The weights are those that
 * random-model writes for this config with seed 0, in the config's torch_dtype (float32 without
 * one). The tensors have addresses but no memory: a backend draws their values (model/random.h).
 * Errors: as rose_model_open. */
rose_status rose_model_open_dummy(rose_model **out, const char *dir, rose_err *err);

/* Opens as `format` says: "auto" or NULL is rose_model_open, "dummy" is rose_model_open_dummy.
 * Errors: INVAL for another name. */
rose_status rose_model_open_as(rose_model **out, const char *path, const char *format,
                               rose_err *err);

void rose_model_close(rose_model *m); /* accepts NULL and half-open */

/* As what a backend keeps a matrix of the files in memory. */
typedef struct rose_kept {
    const char *type; /* "Q4_1", "BF16", "F32", "int8"; NULL: no matrix that the model uses */
    bool widened;     /* a value takes more bits than in the file */
} rose_kept;

/* Returns ROSE_E_FORMAT, which names the tensor, if a weight that the model uses is NaN or
 * infinite. It reads all weights once with this many threads (1 .. 8, the calling one included).
 * Call it while another thread works. */
rose_status rose_model_check_finite(const rose_model *m, uint32_t n_threads, rose_err *err);

#endif
