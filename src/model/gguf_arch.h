/* model/gguf_arch.h - the architecture that the metadata of a GGUF file describe. Internal to the
 * room. */
#ifndef ROSE_MODEL_GGUF_ARCH_H
#define ROSE_MODEL_GGUF_ARCH_H

#include "model/family.h"
#include "model/weights.h"

/* Fill *a from the metadata in the first file of w, and *out with the family. a->rope_factors may
 * be set on failure too: rose_arch_free. Errors: FORMAT, UNSUPPORTED (by key), NOMEM. */
rose_status rose_gguf_read_arch(const rose_family **out, rose_weights *w, rose_arch *a,
                                rose_err *err);

/* gguf_rope.c: the rope of a->kinds[0] and that of sliding layers, with the tensors that hold
 * factors. */
rose_status rose_gguf_read_rope(const rose_family *f, rose_weights *w, rose_arch *a,
                                rose_rope *sliding, rose_err *err);

/* The reads of gguf.h with the key "<architecture>.<name>", which are checked for range. */
typedef struct rose_gguf_reader {
    const rose_gguf *g;
    const char *architecture;
    rose_err *err;
} rose_gguf_reader;

bool rose_gguf_has(const rose_gguf_reader *r, const char *name);
rose_status rose_gguf_read_u32(const rose_gguf_reader *r, const char *name, uint32_t min,
                               uint32_t max, uint32_t *out); /* absent: *out stays */
rose_status rose_gguf_read_f32(const rose_gguf_reader *r, const char *name, float max,
                               float *out); /* > 0 and <= max; absent: *out stays */

#endif
