/* model/random.h - `roseinfer random-model`: writes a GPT-2 of any shape with seeded random
 * weights, as a Hugging Face folder that transformers loads. For tests and benchmarks. */
#ifndef ROSE_MODEL_RANDOM_H
#define ROSE_MODEL_RANDOM_H

#include "model/model.h"

typedef struct rose_random_opts {
    const char *arch;                                                     /* "gpt2" */
    uint32_t n_layers, d_model, n_heads, d_ff, vocab_size, max_positions; /* d_ff 0 = 4 d_model */
    rose_dtype dtype;
    bool tied_head;
    bool prefix;              /* names with "transformer." */
    uint64_t max_shard_bytes; /* 0 = one file; else model-0000i-of-0000n.safetensors + index */
    uint64_t seed;            /* the same options and seed give the same bytes on any machine */
    const char
        *tokenizer; /* folder whose tokenizer files are copied; NULL = a tokenizer of bytes */
} rose_random_opts;

/* GPT-2 124M, F32, tied, one file, seed 0. */
void rose_random_opts_default(rose_random_opts *o);

/* Creates the folder dir (it must not exist, or be empty). Writes config.json,
 * generation_config.json, the weight files, and a tokenizer (vocab.json + merges.txt +
 * tokenizer.json), so that text works. The tokenizer has 256 byte tokens, and filler entries up to
 * vocab_size.
 *
 * Weights: N(0, 0.02); residual projections are scaled by 1/sqrt(2 n_layers), LayerNorm weights are
 * 1 + N(0, 0.02), biases N(0, 0.02). They come from Philox counters and a fixed transform whose
 * result does not depend on libm (a sum of four uniforms: no draw beyond 3.46 sigma). Prefix,
 * sharding and dtype (before rounding) do not change them.
 *
 * vocab_size is at least 257; its last id is <|endoftext|>, the begin and end of text. With
 * `tokenizer`, the files of that folder's tokenizer are copied instead (GPT-2's also has
 * <|endoftext|> last). The caller makes sure that vocab_size holds its ids. Errors: INVAL,
 * UNSUPPORTED (arch), IO, NOMEM; a half-written folder is removed. About 2.5 s for the default
 * 498 MB. */
rose_status rose_random_model_write(const rose_random_opts *o, const char *dir, rose_err *err);

#endif
