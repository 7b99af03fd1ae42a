/* model/generation.h - the sampling defaults of a model: those of generation_config.json, or the
 * keys general.sampling.* of a GGUF file. GGUF files rarely have these keys, and their users come
 * from llama.cpp: what such a file does not say is as in llama.cpp. Any thread. */
#ifndef ROSE_MODEL_GENERATION_H
#define ROSE_MODEL_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* A member counts only where its bit is set in `has`. Ranges are those of the API's fields. */
enum {
    ROSE_GENERATION_TEMPERATURE = 1,
    ROSE_GENERATION_TOP_P = 2,
    ROSE_GENERATION_TOP_K = 4,
    ROSE_GENERATION_MIN_P = 8,
    ROSE_GENERATION_REPETITION = 16,
    ROSE_GENERATION_MAX_TOKENS = 32
};

/* The defaults of llama.cpp. At temperature 1 small models ramble, at 0 they repeat themselves. */
#define ROSE_GENERATION_GGUF_TEMPERATURE 0.8f
#define ROSE_GENERATION_GGUF_TOP_P       0.95f
#define ROSE_GENERATION_GGUF_TOP_K       40u

typedef struct rose_generation {
    uint32_t has;        /* ROSE_GENERATION_* */
    float temperature;   /* 0 .. 100 */
    float top_p;         /* above 0, at most 1 */
    float min_p;         /* 0 .. 1 */
    float repetition;    /* repetition_penalty; 0.01 .. 100 */
    uint32_t top_k;      /* 0 = off */
    uint32_t max_tokens; /* max_new_tokens, at least 1: the default of max_tokens for chat */
} rose_generation;

/* Reads the defaults of a model (a folder or a GGUF file), or of a file generation_config.json. A
 * folder without any gives zeros. A value out of range becomes the nearest one, or none, with a
 * warning. do_sample false gives temperature 0. The log names the fields that are not applied.
 * Errors: FORMAT (a file that is no JSON object; in a folder it counts as none), IO, NOTFOUND (no
 * such path), INVAL, NOMEM; then *out is zero. */
rose_status rose_generation_read(rose_generation *out, const char *path, rose_err *err);

/* As --generation-config and --override-generation-config say: from is "auto" or NULL (the defaults
 * of the model), "none" or "vllm" (no defaults), or a path. override is a JSON object whose values
 * take precedence, or NULL; a person wrote it, so nothing in it is ignored. Errors: as
 * rose_generation_read; INVAL (override has an unknown name or a value out of range). */
rose_status rose_generation_choose(rose_generation *out, const char *model, const char *from,
                                   const char *override, rose_err *err);

/* The defaults as one line, "temperature 0.6, top_p 0.95"; "" if there are none. */
enum { ROSE_GENERATION_TEXT = 192 };
void rose_generation_text(const rose_generation *g, char out[ROSE_GENERATION_TEXT]);

#endif
