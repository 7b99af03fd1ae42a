/* model/random_internal.h - random weights: random.c (the writer's config and weights),
 * random_tokenizer.c, and dummy.c (a model without files). Internal to src/model. */
#ifndef ROSE_MODEL_RANDOM_INTERNAL_H
#define ROSE_MODEL_RANDOM_INTERNAL_H

#include "base/json.h"

#include "model/family.h"
#include "model/random.h"

/* One tensor of a random model, in the order of the files. */
typedef struct rose_random_tensor {
    char name[128];
    uint32_t n_dims;
    uint64_t shape[3];
    rose_tensor_kind kind;
    uint64_t n;     /* elements */
    uint64_t begin; /* offset within its shard's data */
    uint32_t shard;
} rose_random_tensor;

/* Lists the tensors in the order of the model: embeddings, layers, head. A tensor's number in the
 * list is the stream of its random values, so the order never changes. The caller frees *out. */
rose_status rose_random_list(rose_random_tensor **out, size_t *n, const rose_family *f,
                             const rose_arch *a, bool prefix, rose_err *err);

/* dummy.c: the tensors of a model without files. *out is NULL on failure. */
rose_status rose_weights_open_dummy(struct rose_weights **out, const char *dir,
                                    const rose_family *family, const rose_arch *a,
                                    rose_format dtype, rose_err *err);

/* presets.c: the config.json of a preset, owned by the caller; NULL on failure. INVAL: no such
 * preset. */
rose_status rose_random_preset(rose_json **out, const char *name, rose_err *err);

/* Fills mean and scale for tensors of this kind. */
void rose_random_scale(rose_random_values *v, rose_tensor_kind kind, const rose_arch *a,
                       float init_std);

/* Stores n values as F32, F16 or BF16. */
void rose_random_store(uint8_t *to, rose_format dtype, const float *values, size_t n);

/* A folder under construction. It remembers the files that it made, to remove them on failure. */
typedef struct rose_folder {
    const char *dir;
    bool made;    /* we created the folder */
    char **files; /* [n_files] paths that we created; owned */
    size_t n_files;
} rose_folder;

/* Writes a new file. */
rose_status rose_folder_write(rose_folder *f, const char *name, const void *bytes, size_t n,
                              rose_err *err);

/* Writes root as the file `name`; consumes root (NULL = it could not be built: ROSE_E_NOMEM). */
rose_status rose_folder_write_json(rose_folder *f, const char *name, rose_json *root,
                                   unsigned flags, rose_err *err);

/* Writes vocab.json, merges.txt, tokenizer.json, tokenizer_config.json: 256 byte tokens in
 * GPT-2's order, then fillers, and <|endoftext|> as the last id. */
rose_status rose_random_tokenizer_write(rose_folder *f, const rose_arch *a, rose_err *err);

/* Copies a tokenizer's files from the folder `from`; ROSE_E_INVAL if it has none. */
rose_status rose_random_tokenizer_copy(rose_folder *f, const char *from, rose_err *err);

#endif
