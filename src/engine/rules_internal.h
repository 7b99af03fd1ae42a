/* engine/rules_internal.h - what a request wants beyond plain sampling, in one block of memory
 * whose size is known at submit. The block holds the rules, the ids seen so far with their
 * counts, and the reports. A request without rules has no such block. Threads: created by the
 * submitter; then the engine thread writes, and the consumer reads the reports of tokens whose
 * events it has. */
#ifndef ROSE_ENGINE_RULES_INTERNAL_H
#define ROSE_ENGINE_RULES_INTERNAL_H

#include "engine/engine.h"

/* Facts about the request and the model that create needs; borrowed during the call, except for
 * eos. */
typedef struct rose_rules_ctx {
    const uint32_t *prompt;
    uint32_t n_prompt, max_tokens;
    uint32_t vocab;
    const uint32_t *eos; /* [n_eos] borrowed from the engine */
    uint32_t n_eos;
    bool ignore_eos;
    bool guided;      /* the mask of the guide sees to min_tokens */
    uint32_t caps;    /* of the backend */
    uint32_t n_guess; /* most ids of a guess */
    uint32_t width;   /* of a state */
} rose_rules_ctx;

typedef struct rose_rules {
    rose_output_rules out; /* rules for the backend; only score_id, report and banned change */
    const uint32_t *eos;   /* borrowed */
    uint32_t n_eos;
    uint32_t min_tokens, n_stop, n_bad;
    uint32_t prompt_n_top, n_prompt, max_tokens;
    uint32_t vocab;
    uint32_t n_scored;     /* prompt positions below this one already have their log-probability
                            * report */
    uint32_t n_seen_guess; /* ids that were seen, with those of a guess */
    uint32_t n_index;      /* number of cells of the hash table `index`, a power of two; 0 = the
                            * request has no penalties */
    bool logprobs, prompt_logprobs;
    /* within the block */
    uint32_t *stop; /* [n_stop] */
    uint32_t *bad,
        *bad_len; /* banned sequences of ids, one after the other; [n_bad] the length of each */
    uint32_t n_banned; /* n_eos + n_stop + n_bad */
    uint32_t *banned;  /* [1 + n_guess][n_banned] ids banned in this step, by output; scratch */
    uint32_t *index;   /* [n_index] place in seen + 1, 0 = empty */
    uint32_t n_counts; /* room for ids */
    uint32_t *seen;    /* [n_counts] out.n_seen are in use; after them new ids of a guess */
    uint32_t *counts;  /* [1 + n_guess][n_counts] of seen, by depth in a guess */
    rose_logprob *reports, *prompt_reports; /* reports [max_tokens][1 + n_top], and of the prompt
                                               [n_prompt][1 + n_top] */
} rose_rules;

/* Checks a request's sampling rules for every mistake that a submitter can make. Errors: INVAL,
 * UNSUPPORTED (the backend lacks it). */
rose_status rose_rules_check(const rose_request_rules *q, const rose_rules_ctx *c, rose_err *err);
/* Creates the state of a request's rules, which rose_rules_check has accepted. NULL: out of
 * memory. free() releases the state. */
rose_rules *rose_rules_create(const rose_request_rules *q, const rose_rules_ctx *c);

/* Engine thread. Fills the rules of the output that samples token n_generated + depth; events hold
 * the ids generated so far and then `depth` ids of a guess. In a step each depth from 0 on comes
 * once, in order. */
void rose_rules_next(rose_rules *u, const rose_event *events, uint32_t n_generated, uint32_t depth,
                     rose_output_rules *out);
/* Do they change or report token n at all? */
bool rose_rules_act(const rose_rules *u, uint32_t n);
/* Fills the rules of the output that scores the prompt's token at position pos >= 1. */
void rose_rules_score(rose_rules *u, uint32_t pos, uint32_t id, rose_output_rules *out);
/* Tells whether the rules and the mask of a guide (NULL: none) leave an id for token n_generated.
 * Submitter or engine thread. O(n log n) in the ids that the rules name; with a mask also
 * O(vocab). */
bool rose_rules_leave_one(rose_rules *u, const uint32_t *mask, const rose_event *events,
                          uint32_t n_generated);
bool rose_rules_stops(const rose_rules *u, uint32_t id); /* it is one of stop_ids */
void rose_rules_note(rose_rules *u, uint32_t id);        /* it was generated */

#endif
