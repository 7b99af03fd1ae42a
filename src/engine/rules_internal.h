/* engine/rules_internal.h - what a request wants beyond plain sampling, in one block of memory that
 * is sized at submit: the rules themselves, the ids seen so far with their counts, the reports. A
 * request without rules has none of this.
 * Threads: created by the submitter; then the engine thread writes, and the consumer reads the
 * reports of tokens whose events it has. */
#ifndef ROSE_ENGINE_RULES_INTERNAL_H
#define ROSE_ENGINE_RULES_INTERNAL_H

#include "engine/engine.h"

/* What create needs of the request and the model; borrowed for the call, but for eos. */
typedef struct rose_rules_ctx {
    const uint32_t *prompt;
    uint32_t n_prompt, max_tokens;
    uint32_t vocab;
    const uint32_t *eos; /* [n_eos] borrowed from the engine */
    uint32_t n_eos;      /* 0 where the request ignores them */
    uint32_t caps;       /* of the backend */
} rose_rules_ctx;

typedef struct rose_rules {
    rose_output_rules out; /* all but score_id, report, banned: constant */
    const uint32_t *eos;   /* borrowed */
    uint32_t n_eos;
    uint32_t min_tokens, n_stop, n_bad;
    uint32_t prompt_n_top, n_prompt, max_tokens;
    uint32_t vocab;
    uint32_t n_scored; /* prompt positions below it have their report */
    uint32_t n_index;  /* cells of index, a power of two; 0 = no penalties */
    bool logprobs, prompt_logprobs;
    /* within the block */
    uint32_t *stop;                         /* [n_stop] */
    uint32_t *bad, *bad_len;                /* words one behind the other; [n_bad] ids of each */
    uint32_t *banned;                       /* [n_eos + n_stop + n_bad] scratch of a step */
    uint32_t *index;                        /* [n_index] place in seen + 1, 0 = empty */
    uint32_t *seen, *counts;                /* out.n_seen are in use */
    rose_logprob *reports, *prompt_reports; /* [max_tokens][1 + n_top], [n_prompt][1 + ...] */
} rose_rules;

/* Everything a submitter can do wrong. Errors: INVAL, UNSUPPORTED (the backend cannot). */
rose_status rose_rules_check(const rose_request_rules *q, const rose_rules_ctx *c, rose_err *err);
/* After check. NULL: out of memory. free() releases it. */
rose_rules *rose_rules_create(const rose_request_rules *q, const rose_rules_ctx *c);

/* Engine thread. The rules of the next output, which samples token n_generated of r; events give
 * the ids generated so far. */
void rose_rules_next(rose_rules *u, const rose_event *events, uint32_t n_generated,
                     rose_output_rules *out);
/* Do they change or report token n at all? */
bool rose_rules_act(const rose_rules *u, uint32_t n);
/* The output that scores the prompt's token at position pos >= 1. */
void rose_rules_score(rose_rules *u, uint32_t pos, uint32_t id, rose_output_rules *out);
/* Do the rules leave an id for token n_generated? Submitter or engine thread. O(n log n) in the ids
 * that they name. */
bool rose_rules_leave_one(rose_rules *u, const rose_event *events, uint32_t n_generated);
bool rose_rules_stops(const rose_rules *u, uint32_t id); /* it is one of stop_ids */
void rose_rules_note(rose_rules *u, uint32_t id);        /* it was generated */

#endif
