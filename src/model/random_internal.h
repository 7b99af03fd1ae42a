/* model/random_internal.h - the two parts of the random-model writer: random.c (config and
 * weights) and random_tokenizer.c. Internal to src/model. */
#ifndef ROSE_MODEL_RANDOM_INTERNAL_H
#define ROSE_MODEL_RANDOM_INTERNAL_H

#include <jansson.h>

#include "model/random.h"

/* A folder under construction. It remembers the files that it made, to remove them on failure. */
typedef struct rose_folder {
    const char *dir;
    bool made;    /* we created the folder */
    char **files; /* [n_files] paths that we created; owned */
    size_t n_files;
} rose_folder;

/* Returns the path of a new file in the folder and records it for removal; owned by the folder.
 * NULL: out of memory. */
const char *rose_folder_add(rose_folder *f, const char *name);

/* Writes root as the file `name`; consumes root (NULL = it could not be built: ROSE_E_NOMEM). */
rose_status rose_folder_write_json(rose_folder *f, const char *name, json_t *root, size_t flags,
                                   rose_err *err);

/* Writes vocab.json, merges.txt, tokenizer.json, tokenizer_config.json: 256 byte tokens in
 * GPT-2's order, then fillers, and <|endoftext|> as the last id. */
rose_status rose_random_tokenizer_write(rose_folder *f, const rose_arch *a, rose_err *err);

/* Copies a tokenizer's files from the folder `from`; ROSE_E_INVAL if it has none. */
rose_status rose_random_tokenizer_copy(rose_folder *f, const char *from, rose_err *err);

#endif
