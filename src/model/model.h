/* model/model.h - what a model is: its architecture and its tensors in a Hugging Face folder. No
 * arithmetic here; the tensors are borrowed from read-only mappings that live as long as the model.
 *
 * One description drives every backend: a new family is a parser that fills rose_arch and the
 * tensor roles, plus the ops that it misses.  Threads: immutable after open, any thread. */
#ifndef ROSE_MODEL_MODEL_H
#define ROSE_MODEL_MODEL_H

#include <stdbool.h>

#include "base/file.h"

/* The types from Q8_0 on are the quantized blocks of GGUF files (ggml_blocks.h). */
typedef enum rose_dtype {
    ROSE_F32,
    ROSE_F16,
    ROSE_BF16,
    ROSE_Q8_0,
    ROSE_Q4_0,
    ROSE_Q4_1,
    ROSE_Q5_0,
    ROSE_Q5_1,
    ROSE_Q4_K,
    ROSE_Q5_K,
    ROSE_Q6_K
} rose_dtype;
const char *rose_dtype_name(rose_dtype t); /* "F32", "F16", "BF16", "Q8_0", ... as files spell it */
size_t rose_dtype_size(rose_dtype t);      /* bytes of a value; 0 for blocks */
uint32_t rose_dtype_block(rose_dtype t);   /* values of a block: 32 or 256; 1 without blocks */
uint64_t rose_dtype_bytes(rose_dtype t, uint64_t n); /* of n values, a multiple of the block */

typedef enum rose_norm { ROSE_NORM_LAYER, ROSE_NORM_RMS } rose_norm;
typedef enum rose_pos { ROSE_POS_LEARNED, ROSE_POS_ROPE } rose_pos;
typedef enum rose_act {
    ROSE_ACT_GELU_TANH, /* gelu_new, gelu_pytorch_tanh, gelu_fast-alike:
                           0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
    ROSE_ACT_GELU_ERF,  /* gelu: 0.5x(1+erf(x/sqrt 2)) */
    ROSE_ACT_RELU,
    ROSE_ACT_SILU
} rose_act;

enum { ROSE_MAX_EOS = 8 };

typedef struct rose_arch {
    char model_type[32]; /* "gpt2" */
    uint32_t n_layers;   /* 1 .. 1024 */
    uint32_t d_model;    /* residual width */
    uint32_t n_heads;    /* query heads */
    uint32_t n_kv_heads; /* == n_heads for GPT-2 */
    uint32_t head_dim;   /* d_model / n_heads for GPT-2 */
    uint32_t d_ff;       /* MLP width (n_inner, default 4 d_model) */
    uint32_t vocab_size;
    uint32_t max_positions; /* n_positions: the longest context */
    float norm_eps;
    float attn_scale; /* scores are scaled by this: 1/sqrt(head_dim), or 1 with scale_attn_weights
                         false */
    bool attn_scale_by_layer; /* scale_attn_by_inverse_layer_idx: further divided by (layer + 1) */
    rose_norm norm;
    rose_pos pos;
    rose_act act;
    bool tied_head; /* the head is the token embedding: config.json says so (a head in the file is
                       then not used, as in transformers), or the file holds no head */
    int64_t bos_id; /* -1 = none; always < vocab_size */
    uint32_t n_eos;
    uint32_t eos_ids[ROSE_MAX_EOS]; /* from config.json and generation_config.json, no doubles;
                                       those outside the vocabulary are
                                       dropped with a warning */
} rose_arch;

/* A tensor borrowed from the mapping. shape[1] is 1 for vectors. Row-major, little-endian. The data
 * may have any alignment: read it with memcpy or unaligned loads. */
typedef struct rose_tensor {
    const char *name; /* as in the file; borrowed */
    const void *data;
    rose_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[2];
} rose_tensor;

/* Matrices multiply as y = x W + b with W stored [in][out] (GPT-2's Conv1D) unless `transposed`,
 * then [out][in] (Linear). A missing bias has data NULL. */
typedef struct rose_linear {
    rose_tensor w, b;
    bool transposed;
} rose_linear;

typedef struct rose_layer {
    rose_tensor ln1_w, ln1_b, ln2_w, ln2_b;
    rose_linear qkv;  /* d_model -> 3 d_model: q, k, v thirds, each by head */
    rose_linear proj; /* d_model -> d_model */
    rose_linear fc1;  /* d_model -> d_ff */
    rose_linear fc2;  /* d_ff -> d_model */
} rose_layer;

typedef struct rose_model {
    char *path; /* the folder, owned */
    char *name; /* last component of the folder, owned: default name in the API */
    rose_arch arch;
    rose_tensor tok_embed; /* [vocab][d_model] */
    rose_tensor pos_embed; /* [max_positions][d_model] */
    rose_layer *layers;    /* [n_layers], owned */
    rose_tensor lnf_w, lnf_b;
    rose_tensor head;             /* [vocab][d_model]; == tok_embed when tied */
    rose_dtype dtype;             /* of the majority of the weight bytes */
    uint64_t n_params;            /* elements of all used tensors, tied ones once */
    uint64_t file_bytes;          /* of all weight files */
    struct rose_weights *weights; /* the mappings, owned */
} rose_model;

/* Open the folder: config.json (+ generation_config.json), model.safetensors or a sharded index;
 * check every size against every other. On failure *out is NULL and err says which file, which
 * field, what was found and what was expected. Nothing of the tensor data is touched. Errors:
 * NOTFOUND, IO, FORMAT, UNSUPPORTED (by name: model_type, activation, dtype, cross attention),
 * NOMEM. */
rose_status rose_model_open(rose_model **out, const char *dir, rose_err *err);
void rose_model_close(rose_model *m); /* accepts NULL and half-open */

/* ROSE_E_FORMAT naming the tensor if a weight that the model uses is NaN or infinite. Reads all
 * weights once, at the speed of one thread: call it while another thread works. */
rose_status rose_model_check_finite(const rose_model *m, rose_err *err);

/* Every tensor of the files, used or not, for `inspect`: i in 0 .. n-1, borrowed. shape_out gets up
 * to 8 dimensions. */
size_t rose_model_n_tensors(const rose_model *m);
const char *rose_model_tensor_info(const rose_model *m, size_t i, const char **dtype_name,
                                   uint64_t shape_out[8], uint32_t *n_dims, uint64_t *bytes);

#endif
