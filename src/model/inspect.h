/* model/inspect.h - describes a model for a person or a program: architecture and tensors. The
 * memory plan belongs to the backend; `roseinfer inspect` prints both. Any thread. */
#ifndef ROSE_MODEL_INSPECT_H
#define ROSE_MODEL_INSPECT_H

#include <stdio.h>

#include "base/json.h"
#include "model/model.h"

/* Says as what the matrix whose bytes begin at data will be kept in memory. NULL where a keeper is
 * expected: the output does not mention it. */
typedef struct rose_keeper {
    rose_kept (*kept)(const void *ctx, const void *data);
    const void *ctx;
} rose_keeper;

/* Prints tables to out, each followed by an empty line. Names come from the files, so control
 * characters and bytes that a terminal might obey are printed as '?'. ROSE_E_IO if out cannot be
 * written. */
rose_status rose_model_print_arch(const rose_model *m, const rose_keeper *k, FILE *out);
rose_status rose_model_print_tensors(const rose_model *m, const rose_keeper *k, FILE *out);

/* {"name", "path", "model_type", "architecture": {...}, "weights": {"dtype", "parameters", "files",
 * "bytes", "types": {"F32": {"tensors", "bytes", "in_memory", "widened"}, ...}}, "tensors":
 * [{"name", "dtype", "shape", "bytes", "used", "in_memory"}, ...]}: a new reference, to which the
 * caller may add; NULL when out of memory. The in_memory of a type counts its matrices by their
 * type in memory, and widened says whether one of them grows; the in_memory of a tensor is a type,
 * or null if it is no matrix. Without a keeper these three are absent. */
rose_json *rose_model_json(const rose_model *m, const rose_keeper *k);

/* Format n with thousands separators ("1,234,567"), and bytes in a suitable binary unit ("12.3
 * MiB"), as the tables print them. */
const char *rose_format_count(uint64_t n, char out[32]);
const char *rose_format_bytes(uint64_t n, char out[32]);

#endif
