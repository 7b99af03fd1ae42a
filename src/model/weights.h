/* model/weights.h - all weight files of a model as one set of tensors found by name: one
 * model.safetensors, the shards that model.safetensors.index.json names, or GGUF files. Internal to
 * the room.
 * Threads: immutable after the model is open. */
#ifndef ROSE_MODEL_WEIGHTS_H
#define ROSE_MODEL_WEIGHTS_H

#include "base/gguf.h"
#include "model/safetensors.h"

enum { ROSE_MAX_SHARDS = 4096 };

typedef struct rose_weight_file {
    const char *label;       /* of the reader below */
    rose_st_tensor *tensors; /* [n_tensors] by rising offset; the reader's, or owned for GGUF */
    size_t n_tensors;
    size_t size; /* bytes of the file */
    rose_st_file st;
    rose_gguf gguf; /* one of the two readers is {0} */
} rose_weight_file;

typedef struct rose_weights {
    rose_weight_file *files; /* [n_files], owned */
    size_t n_files;
    rose_st_tensor **by_name; /* [n_tensors] pointers into files, sorted by name; owned */
    size_t n_tensors;
    uint64_t file_bytes; /* of all files */
    /* Load format "dummy": what the tensors of files[0] hold; owned. NULL: there are files. */
    struct rose_random_tensor *random;
} rose_weights;

/* Opens all files of the folder. It fails with a message if a shard is missing or a shard name
 * leads out of the folder. The index gives only the names of the files; each file says which
 * tensors it holds. *out is NULL on failure. */
rose_status rose_weights_open(rose_weights **out, const char *dir, rose_err *err);

/* The same for the GGUF file at path, or for all files of the split model that it belongs to. The
 * first file holds the metadata. */
rose_status rose_weights_open_gguf(rose_weights **out, const char *path, rose_err *err);

/* The same for one GGUF file in memory, which must outlive out. label: the name in messages. */
rose_status rose_weights_parse_gguf(rose_weights **out, const uint8_t *bytes, size_t n,
                                    const char *label, rose_err *err);

/* Builds by_name over all files. If several safetensors files hold a tensor of one name, the last
 * one counts, with a warning; in GGUF files that is refused. source: for messages. */
rose_status rose_weights_index(rose_weights *w, const char *source, rose_err *err);
void rose_weights_close(rose_weights *w); /* accepts NULL and half-open */

rose_st_tensor *rose_weights_find(const rose_weights *w, const char *name); /* NULL = none */

/* The metadata of a GGUF model; NULL for safetensors. */
const rose_gguf *rose_weights_gguf(const rose_weights *w);

/* Refuses quantized weights in safetensors files, by the names of the tensors (packed.c). Errors:
 * UNSUPPORTED. */
rose_status rose_weights_check_packed(const rose_weights *w, rose_err *err);

/* The file that holds t, for messages. */
const char *rose_weights_label(const rose_weights *w, const rose_st_tensor *t);

#endif
