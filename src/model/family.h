/* model/family.h - what a model family is: a row of the table in family.c. A row names a parser for
 * config.json and the tensors with their places and shapes; opening and the random-model writer
 * both work from it. Internal to the room. */
#ifndef ROSE_MODEL_FAMILY_H
#define ROSE_MODEL_FAMILY_H

#include <stddef.h>

#include "model/config.h"

/* The dimensions that appear in tensor shapes by name; rose_arch gives their values. */
typedef enum rose_dim {
    ROSE_DIM_NONE, /* no second dimension: the tensor is a vector */
    ROSE_DIM_VOCAB,
    ROSE_DIM_POS,
    ROSE_DIM_MODEL,
    ROSE_DIM_HEAD, /* head_dim */
    ROSE_DIM_Q,    /* n_heads head_dim */
    ROSE_DIM_KV,   /* n_kv_heads head_dim */
    ROSE_DIM_QKV,  /* (n_heads + 2 n_kv_heads) head_dim */
    ROSE_DIM_FF,
    ROSE_DIM_FF2 /* 2 d_ff: gate and up in one matrix */
} rose_dim;

/* The kind of a tensor; random weights depend on it. */
typedef enum rose_kind {
    ROSE_KIND_MATRIX,
    ROSE_KIND_RESIDUAL, /* a matrix whose output is added to the residual stream */
    ROSE_KIND_BIAS,
    ROSE_KIND_NORM
} rose_kind;

/* When a file must hold the tensor. */
typedef enum rose_when {
    ROSE_WHEN_ALWAYS,
    ROSE_WHEN_QKV_BIAS,
    ROSE_WHEN_PROJ_BIAS,
    ROSE_WHEN_MLP_BIAS,
    ROSE_WHEN_QK_NORM
} rose_when;

typedef struct rose_tensor_spec {
    const char *name; /* name of a layer's tensor, without the layer ("h.3.") */
    size_t offset;    /* offset of the rose_tensor within rose_layer or rose_model */
    rose_dim dims[2];
    rose_kind kind;
    rose_when when;
} rose_tensor_spec;

/* Rows of the tables: the role is a member of rose_layer or rose_model, the other words stand for
 * ROSE_DIM_, ROSE_KIND_ and ROSE_WHEN_ names. */
#define ROSE_LAYER_TENSOR(name, role, rows, cols, kind, when)                                      \
    {                                                                                              \
        name, offsetof(rose_layer, role), {ROSE_DIM_##rows, ROSE_DIM_##cols}, ROSE_KIND_##kind,    \
            ROSE_WHEN_##when                                                                       \
    }
#define ROSE_MODEL_TENSOR(name, role, rows, cols, kind)                                            \
    {                                                                                              \
        name, offsetof(rose_model, role), {ROSE_DIM_##rows, ROSE_DIM_##cols}, ROSE_KIND_##kind,    \
            ROSE_WHEN_ALWAYS                                                                       \
    }

typedef struct rose_family {
    const char *model_type;       /* in config.json */
    const char *architecture;     /* transformers' class with a head */
    const char *prefix;           /* that names may carry: "transformer." */
    const char *layer_prefix;     /* "h.": then the layer, a dot, the tensor */
    const char *head_name;        /* of the output matrix, never with the prefix */
    bool transposed;              /* matrices are stored [out][in] */
    uint8_t qkv_parts, fc1_parts; /* 0 = 1: fused, or not gated */
    bool permuted;                /* rows of q and k are interleaved within each head */
    /* Tensors and buffers that such files carry and that inference does not need: a NULL-ended list
     * of endings of names. */
    const char *const *ignored;
    const rose_tensor_spec
        *model_tensors; /* list of specs, ended by a NULL name; the token embedding comes first */
    const rose_tensor_spec *layer_tensors; /* ends with name NULL */
    rose_status (*parse)(const rose_config *c, rose_arch *a, rose_err *err);
} rose_family;

extern const rose_family rose_family_gpt2, rose_family_llama, rose_family_mistral,
    rose_family_qwen2, rose_family_qwen3, rose_family_smollm3, rose_family_gemma3, rose_family_phi3;

/* Finds the row for the config's model_type. UNSUPPORTED names an unknown type; FORMAT: there is
 * no type. */
rose_status rose_family_find(const rose_family **out, const rose_config *c, rose_err *err);

/* Refuses the fields that no family knows, then calls f->parse. On failure *a owns nothing. May put
 * defaults of the family into c->root. */
rose_status rose_family_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                              rose_err *err);

/* Whether a model of this architecture has the tensor. */
bool rose_spec_applies(const rose_tensor_spec *s, const rose_arch *a);

uint64_t rose_dim_size(const rose_arch *a, rose_dim d); /* 1 for ROSE_DIM_NONE */

#endif
