/* model/safetensors.h - one safetensors file, mapped and checked.
 *
 * Layout: the header length N as little-endian u64. Then N bytes of JSON, padded with spaces: an
 * object of name -> {"dtype", "shape", "data_offsets": [begin, end)}. Then the data, to which
 * the offsets are relative. Files must follow the format exactly: the tensors cover the data
 * without overlap, gap or trailing bytes, and every size agrees with dtype and shape. So code
 * that reads a tensor later needs no further check. The data itself is not read here. Threads:
 * immutable after open, any thread. */
#ifndef ROSE_MODEL_SAFETENSORS_H
#define ROSE_MODEL_SAFETENSORS_H

#include "model/model.h"

enum { ROSE_ST_MAX_DIMS = 8 };
#define ROSE_ST_MAX_HEADER_BYTES 100000000u /* as the reference implementation */

typedef struct rose_st_tensor {
    const char *name;       /* borrowed: from the file's header */
    const char *dtype_name; /* static */
    bool usable;            /* dtype is one of rose_format */
    bool used;              /* set by the model: has a role */
    rose_format dtype;      /* valid if usable */
    uint32_t n_dims;
    uint64_t shape[ROSE_ST_MAX_DIMS];
    uint64_t begin, end; /* bytes within the data */
    const uint8_t *data; /* borrowed from the mapping; any alignment */
} rose_st_tensor;

typedef struct rose_st_file {
    char label[256];          /* the path as messages show it; its last part if it is long */
    rose_map map;             /* owned; {0} if parsed from borrowed memory */
    struct rose_json *header; /* owned: holds the names */
    rose_st_tensor *tensors;  /* [n_tensors], owned, by rising offset */
    size_t n_tensors;
    size_t size; /* bytes of the whole file */
} rose_st_file;

/* Maps and checks the file at path. On failure *out is {0}, and err names the file, the tensor,
 * what was found and what was expected. Errors: NOTFOUND, IO, FORMAT, UNSUPPORTED (more than 8
 * dimensions), NOMEM. */
rose_status rose_st_open(rose_st_file *out, const char *path, rose_err *err);

/* Checks a safetensors file that is in memory. The bytes must outlive out. label: the name in
 * messages. */
rose_status rose_st_parse(rose_st_file *out, const uint8_t *bytes, size_t n, const char *label,
                          rose_err *err);

void rose_st_close(rose_st_file *f); /* accepts {0}; leaves {0} */

#endif
