/* api/rules.h - the fields of a request that become the engine's sampling rules: bias,
 * penalties, allowed ids, stop ids, banned words, reports. Used by workers. */
#ifndef ROSE_API_RULES_H
#define ROSE_API_RULES_H

#include "engine/engine.h"

enum {
    ROSE_API_MAX_REPORTS =
        1 << 22 /* logprob entries of a whole request: 12 bytes each, and about 40 in the reply */
};

typedef struct rose_api_rules {
    rose_request_rules r; /* its arrays are owned by this */
    bool any;             /* r asks for something */
    uint32_t *mem[6];     /* owned */
} rose_api_rules;

void rose_api_rules_free(rose_api_rules *u);

#endif
