/* backend/cpu/sampler.h - the choice of one token id from a row of logits (docs/NUMERICS.md, rule
 * 8; backend.h, rose_sampling). A function of (logits, params, position) alone.
 *
 * Rank: the larger logit first, of equal logits the lower id; NaN and -inf are never chosen. A
 * logit of +inf is chosen outright. min_p and the rank filters act on w = exp((logit - max) / T).
 * The mass of top_p is summed in double; the walk goes through the surviving ids in ascending order
 * and takes the first whose cumulative w exceeds u * total.
 *
 * Cost: one pass for the maximum and one for the exponentials; selection is O(vocab), sorting only
 * ever touches a few dozen candidates or top_k of them. */
#ifndef ROSE_BACKEND_CPU_SAMPLER_H
#define ROSE_BACKEND_CPU_SAMPLER_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

size_t rose_sampler_scratch(uint32_t vocab); /* bytes, to be 64-byte aligned */

/* u from Philox(p->seed, position), stream 0. ROSE_TOKEN_NONE when all logits are NaN or -inf. The
 * thread has FTZ and DAZ set. vocab >= 1. */
uint32_t rose_sampler_pick(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                           const rose_sampling *p, uint32_t position, void *scratch);

/* The same under rules (not NULL): fills the report from the raw logits, changes a copy of them,
 * picks; or scores. Cost beyond pick: a pass of exponentials and a search for the n_top best where
 * there is a report, a copy of the row where the logits are changed. */
uint32_t rose_sampler_run(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                          const rose_sampling *p, const rose_output_rules *rules, uint32_t position,
                          void *scratch);

#endif
