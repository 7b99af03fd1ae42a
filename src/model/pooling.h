/* model/pooling.h - how a model's author pools its states into an embedding, and whether the model
 * ranks documents. Any thread. */
#ifndef ROSE_MODEL_POOLING_H
#define ROSE_MODEL_POOLING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* A state is what the head of a model reads: the row of a token after the last norm, in fp32. */
typedef enum rose_pooling {
    ROSE_POOL_NONE,
    ROSE_POOL_LAST, /* the state of the last token */
    ROSE_POOL_MEAN  /* the mean of the states of all tokens */
} rose_pooling;

enum { ROSE_MAX_DIMENSIONS = 32 };

typedef struct rose_pooling_config {
    bool embeds;           /* the folder has modules.json of sentence-transformers */
    rose_pooling pool;     /* LAST for a model that does not say, as in vLLM */
    bool normalizes;       /* embeddings have length 1 */
    bool cuts;             /* the first values of an embedding are an embedding (Matryoshka) */
    uint32_t n_dimensions; /* with `cuts`: how many values are allowed; 0 = any number */
    uint32_t dimensions[ROSE_MAX_DIMENSIONS];
    bool ranks;    /* a reranker: a text and a query give the answer yes or no */
    bool own_head; /* a classifier or reward model, whose own head scores: it has no cosines */
} rose_pooling_config;

/* Reads what the model at path says of pooling. A folder: config.json (architectures,
 * is_matryoshka, matryoshka_dimensions), modules.json and the configuration of its module Pooling.
 * A GGUF file: the metadata ARCH.pooling_type.
 *
 * type is "auto" or NULL, or "last" or "mean", which then holds instead of the module Pooling (and
 * the other modules are not read). task is "auto" or NULL, or "embed" or "rerank", which then holds
 * instead of `architectures`.
 *
 * Errors: UNSUPPORTED (the model pools in another way, has another module, or lacks the head that
 * a reranker needs; the message names it), FORMAT, IO, INVAL, NOMEM; then *out is zero. */
rose_status rose_pooling_read(rose_pooling_config *out, const char *path, const char *type,
                              const char *task, rose_err *err);

/* Whether an embedding of `width` values may be cut to n. */
bool rose_pooling_allows(const rose_pooling_config *c, uint32_t width, uint32_t n);

/* The length of a vector v[0..n). The sum is in double, in order. */
double rose_pooling_length(const float *v, uint32_t n);

/* What the values of an embedding are divided by: with `normalizes` its length, but not less than
 * 1e-12, as in PyTorch; else 1. */
double rose_pooling_divisor(const float *v, uint32_t n, bool normalizes);

#endif
