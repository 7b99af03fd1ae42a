/* model/family.h - a model family is a row of the table in config.c. The row names a parser for
 * config.json, and the tensors with their places and shapes. Both opening a model and the
 * random-model writer use it. Internal to src/model. */
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
    ROSE_DIM_QKV, /* (n_heads + 2 n_kv_heads) head_dim */
    ROSE_DIM_FF
} rose_dim;

/* The kind of a tensor; random weights depend on it. */
typedef enum rose_kind {
    ROSE_KIND_MATRIX,
    ROSE_KIND_RESIDUAL, /* a matrix whose output is added to the residual stream */
    ROSE_KIND_BIAS,
    ROSE_KIND_NORM
} rose_kind;

typedef struct rose_tensor_spec {
    const char *name; /* name of a layer's tensor, without the layer ("h.3.") */
    size_t offset;    /* offset of the rose_tensor within rose_layer or rose_model */
    rose_dim dims[2];
    rose_kind kind;
} rose_tensor_spec;

typedef struct rose_family {
    const char *model_type;   /* in config.json */
    const char *architecture; /* transformers' class with a head */
    const char *prefix;       /* that names may carry: "transformer." */
    const char *layer_prefix; /* "h.": then the layer, a dot, the tensor */
    const char *head_name;    /* name of the output matrix, never with the prefix */
    bool transposed;          /* matrices are stored [out][in] */
    /* Tensors and buffers of this family's weight files that inference does not need: a list of
     * name endings, ended by NULL. */
    const char *const *ignored;
    const rose_tensor_spec
        *model_tensors; /* list of specs, ended by a NULL name; the token embedding comes first */
    const rose_tensor_spec *layer_tensors; /* ends with name NULL */
    rose_status (*parse)(const rose_config *c, rose_arch *a, rose_err *err);
} rose_family;

extern const rose_family rose_family_gpt2;

/* Finds the row for the config's model_type. UNSUPPORTED names an unknown type; FORMAT: there is
 * no type. */
rose_status rose_family_find(const rose_family **out, const rose_config *c, rose_err *err);

uint64_t rose_dim_size(const rose_arch *a, rose_dim d); /* 1 for ROSE_DIM_NONE */

#endif
