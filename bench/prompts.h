/* bench/prompts.h - makes prompts with an exact number of tokens, as text or as token ids. One
 * thread.
 *
 * A prompt consists of words: tokens that are a space and ASCII letters, and whose text encodes to
 * the same token again. A pre-tokenizer splits before each space, so a prompt of n words has n
 * tokens, as text and as ids. Only the prompts of ROSE_PROMPT_TEXT are English sentences. */
#ifndef ROSE_BENCH_PROMPTS_H
#define ROSE_BENCH_PROMPTS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/philox.h"
#include "bench/load_trace.h"

typedef struct rose_prompts rose_prompts;

typedef enum rose_prompt_mode {
    ROSE_PROMPT_UNIQUE, /* prompts share no more than chance gives */
    ROSE_PROMPT_SHARED, /* each prompt is a prefix of one long text */
    ROSE_PROMPT_TRACE,  /* blocks with equal hash ids hold equal text */
    /* English sentences in another order for each prompt, at most as many tokens as asked for.
     * Prompts with an even number end in " The same text once more:" and the first words of it. */
    ROSE_PROMPT_TEXT
} rose_prompt_mode;

/* Reads tokenizer and config.json of a model folder, not the weights. Errors: as for these
 * files; UNSUPPORTED if the vocabulary has fewer than 64 words that are usable for prompts. */
rose_status rose_prompts_open(rose_prompts **out, const char *model_dir, rose_err *err);
void rose_prompts_close(rose_prompts *p); /* accepts NULL */

/* the context length that config.json gives; 0 = config.json gives no context length */
uint32_t rose_prompts_context(const rose_prompts *p);

typedef struct rose_prompt_spec {
    rose_prompt_mode mode;
    bool as_ids;
    uint64_t seed;
    /* number of the prompt variant: another number gives other text; a new number for each run
     * keeps prefix caches cold */
    uint64_t variant;
} rose_prompt_spec;

/* Token j of prompt i, if prompts are random ids below vocab; seed is that of the run. */
static inline uint32_t rose_prompt_random_id(uint64_t seed, uint32_t i, uint32_t j, uint32_t vocab)
{
    return (uint32_t)(rose_philox_uniform(seed, j, i + 1) * (float)vocab) % vocab;
}

/* Appends the prompt of row i of t as a JSON value: "text" or [ids]. Errors: NOMEM; of
 * ROSE_PROMPT_TEXT also those of rose_encode. */
rose_status rose_prompt_write(const rose_prompts *p, const rose_prompt_spec *s,
                              const rose_load_trace *t, uint32_t i, rose_buf *out);

#endif
