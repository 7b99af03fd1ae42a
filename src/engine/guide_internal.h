/* engine/guide_internal.h - the guide of a request (engine.h), with the mask of its next id. */
#ifndef ROSE_ENGINE_GUIDE_INTERNAL_H
#define ROSE_ENGINE_GUIDE_INTERNAL_H

#include "engine/rules_internal.h"

typedef struct rose_guided {
    rose_guide guide; /* owned */
    rose_err err;     /* why it failed; no message: it did not */
    uint32_t words[]; /* [(vocab_size + 31) / 32] the mask */
} rose_guided;

/* Takes the guide of o over, unless it returns NULL: out of memory. */
rose_guided *rose_guided_create(const rose_request_opts *o, const rose_rules_ctx *c);
void rose_guided_destroy(rose_guided *g); /* accepts NULL; no call of the guide runs */

#endif
