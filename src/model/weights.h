/* model/weights.h - all weight files of a folder as one set of tensors found by name. The files
 * are one model.safetensors, or the shards that model.safetensors.index.json names. Internal to
 * src/model. Threads: immutable after the model is open. */
#ifndef ROSE_MODEL_WEIGHTS_H
#define ROSE_MODEL_WEIGHTS_H

#include "model/safetensors.h"

enum { ROSE_MAX_SHARDS = 4096 };

typedef struct rose_weights {
    rose_st_file *files; /* [n_files], owned */
    size_t n_files;
    rose_st_tensor **by_name; /* [n_tensors] pointers into files, sorted by name; owned */
    size_t n_tensors;
    uint64_t file_bytes; /* of all files */
} rose_weights;

/* Opens all files of the folder. It fails with a message if a name is found twice, a shard is
 * missing or lacks a tensor of the index, or a shard name leads out of the folder. A tensor that
 * the index does not list is accepted. *out is NULL on failure. */
rose_status rose_weights_open(rose_weights **out, const char *dir, rose_err *err);
void rose_weights_close(rose_weights *w); /* accepts NULL and half-open */

rose_st_tensor *rose_weights_find(const rose_weights *w, const char *name); /* NULL = none */

/* The file that holds t, for messages. */
const char *rose_weights_label(const rose_weights *w, const rose_st_tensor *t);

#endif
