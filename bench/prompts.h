/* bench/prompts.h - prompts of an exact number of tokens, as text or as ids. One thread.
 *
 * Made of words: tokens that are a space and ASCII letters and that encode back to themselves. A
 * pre-tokenizer splits before every such space, so any sequence of words is as many tokens as
 * words, in text as in ids. */
#ifndef ROSE_BENCH_PROMPTS_H
#define ROSE_BENCH_PROMPTS_H

#include <stdbool.h>

#include "base/buf.h"
#include "bench/load_trace.h"

typedef struct rose_prompts rose_prompts;

typedef enum rose_prompt_mode {
    ROSE_PROMPT_UNIQUE, /* no two share more than chance gives */
    ROSE_PROMPT_SHARED, /* each is a prefix of one text */
    ROSE_PROMPT_TRACE   /* blocks with equal hash ids hold equal text */
} rose_prompt_mode;

/* Reads tokenizer and config.json of a model folder (not the weights). Errors as of these files;
 * UNSUPPORTED when the vocabulary has fewer than 64 such words. */
rose_status rose_prompts_open(rose_prompts **out, const char *model_dir, rose_err *err);
void rose_prompts_close(rose_prompts *p); /* accepts NULL */

uint32_t rose_prompts_context(const rose_prompts *p); /* of config.json; 0 = it does not say */
uint32_t rose_prompts_n_words(const rose_prompts *p);

typedef struct rose_prompt_spec {
    rose_prompt_mode mode;
    bool as_ids;
    uint64_t seed;
    uint64_t variant; /* another variant, other text: one for each run keeps prefix caches cold */
} rose_prompt_spec;

/* Appends the prompt of row i of t as a JSON value: "text" or [ids]. Errors: NOMEM. */
rose_status rose_prompt_write(const rose_prompts *p, const rose_prompt_spec *s,
                              const rose_load_trace *t, uint32_t i, rose_buf *out);

#endif
