/* batch/batch_internal.h - what the files of src/batch share. */
#ifndef ROSE_BATCH_BATCH_INTERNAL_H
#define ROSE_BATCH_BATCH_INTERNAL_H

#include "batch/lines.h"

/* input.c: the entry with this custom_id; UINT32_MAX: there is none. Errors: IO, NOMEM. */
rose_status rose_batch_input_find(rose_batch_input *in, const rose_buf *id, uint32_t *found,
                                  rose_err *err);

#endif
