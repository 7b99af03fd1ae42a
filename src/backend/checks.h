/* backend/checks.h - code that all backends share: the checks of options and of a batch
 * against the plan, and the number of KV pages. For backends only. Threads: any, no state. */
#ifndef ROSE_BACKEND_CHECKS_H
#define ROSE_BACKEND_CHECKS_H

#include "backend/backend.h"

/* Tells whether step() may run the batch. A batch that passes neither reads nor writes memory
 * outside the plan, page tables included. n_before is the number of outputs of the previous
 * step, to which tokens may refer (ROSE_TOKEN_OUTPUT | i); 0 without ROSE_CAP_AHEAD. Errors:
 * INVAL, and which part of the batch is wrong. Token path: no allocation. */
rose_status rose_backend_check_batch(const rose_batch *b, const rose_memory_plan *p, uint32_t vocab,
                                     uint32_t n_before, rose_err *err);

/* Checks the limits of a step and of a context, and puts them into the plan. Errors: INVAL. */
rose_status rose_backend_check_opts(const rose_backend_opts *o, const rose_arch *a,
                                    rose_memory_plan *p, rose_err *err);

/* Plans with plan() for the number of tokens that max_step_tokens stands for, which is a number
 * from there on. by_default: 0 is ROSE_STEP_AUTO. Errors: those of plan(). */
typedef rose_status rose_plan_fn(const rose_model *m, const rose_backend_opts *o,
                                 rose_memory_plan *out, rose_err *err);
rose_status rose_backend_plan_steps(rose_plan_fn *plan, bool by_default, const rose_model *m,
                                    const rose_backend_opts *o, rose_memory_plan *out,
                                    rose_err *err);

/* Pages that hold one sequence of the longest context; max_model_len must be set. */
uint64_t rose_backend_context_pages(const rose_memory_plan *p);

/* How to shrink the KV cache of a plan that exceeds p->available: which number of pages, or which
 * context, fits beside the other parts. False: not even a short context does. */
enum { ROSE_KV_ADVICE = 160 };
bool rose_backend_kv_advice(const rose_memory_plan *p, char out[ROSE_KV_ADVICE]);

/* Bytes of a block with K and V of n_layers layers. */
typedef uint64_t rose_block_bytes(const rose_arch *a, uint32_t n_layers, const rose_memory_plan *p);

/* Fills n_pools and pools but for the numbers of blocks. p->dtype must be set. */
void rose_backend_plan_pools(const rose_arch *a, rose_block_bytes *bytes, rose_memory_plan *p);

/* Blocks of the first pool that hold one sequence of the longest context; in a pool with a window a
 * sequence keeps only the positions of the window, of a step, and of a group of ROSE_KV_KEEP. */
uint64_t rose_backend_least_pages(const rose_memory_plan *p);
/* Bytes of all pools together when the first one has `pages` blocks. This number gives the sizes of
 * the others: while every sequence is as long as four of the longest windows, all pools are full at
 * the same time. Each pool also holds at least one sequence of the longest context. */
uint64_t rose_backend_kv_bytes(const rose_memory_plan *p, uint64_t pages);
/* The largest number of blocks of the first pool for which rose_backend_kv_bytes is at most
 * `bytes`. */
uint64_t rose_backend_pages_in(const rose_memory_plan *p, uint64_t bytes);
/* Blocks of the smallest pool. */
uint32_t rose_backend_least_blocks(const rose_memory_plan *p);

/* Fills the numbers of blocks and p->kv; max_model_len and the pools must be set. default_pages is
 * used if the options give neither pages nor bytes. Errors: INVAL: one context of max_model_len
 * does not fit, so a request of that length could never finish. */
rose_status rose_backend_plan_pages(const rose_backend_opts *o, uint64_t default_pages,
                                    rose_memory_plan *p, rose_err *err);

#endif
