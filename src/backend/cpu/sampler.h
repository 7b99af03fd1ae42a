/* backend/cpu/sampler.h - chooses one token id from a row of logits (docs/NUMERICS.md, rule 8;
 * backend.h, rose_sampling). The choice depends on (logits, params, position) alone.
 *
 * Rank: larger logits come first; of equal logits, the lower id does. NaN and -inf are never
 * chosen, and +inf is chosen outright. min_p and the rank filters act on w = exp((logit - max) /
 * T). The mass of top_p is summed in double. The walk visits the remaining ids in ascending order
 * and takes the first whose cumulative w exceeds u * total.
 *
 * Cost: one pass for the maximum and one for the exponentials. Selection is O(vocab); sorting
 * only touches a few dozen candidates, or top_k of them. */
#ifndef ROSE_BACKEND_CPU_SAMPLER_H
#define ROSE_BACKEND_CPU_SAMPLER_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

size_t rose_sampler_scratch(uint32_t vocab); /* bytes, to be 64-byte aligned */

/* Chooses an id with u from Philox(p->seed, position), stream 0. Returns ROSE_TOKEN_NONE when
 * all logits are NaN or -inf. The thread has FTZ and DAZ set. vocab >= 1. */
uint32_t rose_sampler_pick(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                           const rose_sampling *p, uint32_t position, void *scratch);

/* As rose_sampler_pick, under rules (not NULL). It fills the report from the raw logits, changes
 * a copy of them, and picks an id or only scores the given one. A report costs one more pass of
 * exponentials and a search for the n_top best. Changed logits cost a copy of the row. */
uint32_t rose_sampler_run(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                          const rose_sampling *p, const rose_output_rules *rules, uint32_t position,
                          void *scratch);

#endif
