/* model/random.h - `roseinfer random-model`: a model of any family and shape with seeded weights,
 * written as a Hugging Face folder that transformers loads. For tests and benchmarks. */
#ifndef ROSE_MODEL_RANDOM_H
#define ROSE_MODEL_RANDOM_H

#include "model/model.h"

/* Shapes of public models. */
#define ROSE_RANDOM_PRESETS                                                                        \
    "smollm2-135m, qwen3-0.6b, llama-3.2-1b, qwen3-4b, qwen3-8b, gemma3-270m"

typedef struct rose_random_opts {
    const char *preset;     /* one of ROSE_RANDOM_PRESETS; NULL = config */
    uint32_t preset_layers; /* blocks of the preset; 0 = its own number */
    const char *config; /* a config.json that says everything but dtype; NULL = the fields below */
    const char *arch;   /* a model_type that rose_model_open knows: "gpt2" */
    uint32_t n_kv_heads, head_dim; /* 0 = n_heads; 0 = d_model / n_heads; not for gpt2 */
    float init_std;                /* of the weights; 0.02 */
    uint32_t n_layers, d_model, n_heads, d_ff, vocab_size, max_positions; /* d_ff 0 = 4 d_model */
    rose_format dtype;
    bool tied_head;
    bool prefix;              /* names with "transformer." */
    uint64_t max_shard_bytes; /* 0 = one file; else model-0000i-of-0000n.safetensors + index */
    uint64_t seed;            /* the same options and seed give the same bytes on any machine */
    const char
        *tokenizer;  /* folder whose tokenizer files are copied; NULL = a tokenizer of bytes */
    bool no_weights; /* no weight files: rose_model_open_dummy opens the folder */
} rose_random_opts;

/* GPT-2 124M, F32, tied, one file, seed 0. */
void rose_random_opts_default(rose_random_opts *o);

/* Create the folder dir (it must not exist, or be empty) and write config.json,
 * generation_config.json, the weight files, and a tokenizer of 256 byte tokens plus filler entries
 * up to vocab_size (vocab.json + merges.txt + tokenizer.json), so that text works.
 * Weights: N(0, init_std), residual projections scaled by 1/sqrt(2 n_layers), norm weights
 * 1 + N(0, init_std) (0 + ... where the norm itself adds 1), biases N(0, init_std), from Philox
 * counters and a fixed transform whose result does not depend on libm (a sum of four uniforms: no
 * draw beyond 3.46 sigma). Prefix, sharding and dtype (before rounding) do not change them.
 * vocab_size is at least 257; its last id is
 * <|endoftext|>, the begin and end of text. With `tokenizer` the files of that folder's tokenizer
 * are copied instead (GPT-2's tokenizer also has <|endoftext|> last); whether vocab_size holds its
 * ids is the caller's affair. Errors: INVAL, UNSUPPORTED (arch, config), IO, NOMEM; a half-written
 * folder is removed. About 2.5 s for the default 498 MB. */
rose_status rose_random_model_write(const rose_random_opts *o, const char *dir, rose_err *err);

/* ---- values ---- */

/* The values of one tensor from element `first` on. */
typedef struct rose_random_values {
    uint64_t first;
    uint64_t seed;
    uint32_t stream; /* number of the tensor */
    float mean, scale;
} rose_random_values;

/* Two neighbours are drawn from one Philox block: element e is pair e / 2, place e % 2, and its
 * value is mean + z * scale, in fp32. ctr: the block's counter; the key is the seed. */
#define ROSE_RANDOM_TAG 0x57454947u /* "WEIG": the last word of the counter */

/* z of place 0 or 1: the sum of four uniform 16-bit numbers, less their mean. r: the Philox block.
 */
#define ROSE_RANDOM_Z(r, place)                                                                    \
    ((int32_t)(((r)[2 * (place)] & 0xffff) + ((r)[2 * (place)] >> 16) +                            \
               ((r)[2 * (place) + 1] & 0xffff) + ((r)[2 * (place) + 1] >> 16)) -                   \
     131070)

/* Elements v->first .. v->first + n - 1 in out. */
void rose_random_draw(float *out, const rose_random_values *v, size_t n);

/* ---- a model without weight files (dummy.c) ---- */

/* Draws share `part` of n_parts of all weights of a dummy model. Shares may be drawn by several
 * threads at the same time. */
void rose_dummy_fill(const rose_model *m, uint32_t part, uint32_t n_parts);

/* The values of a tensor of a dummy model, or of rows of it: t->data says which. For a backend that
 * draws the values itself. */
rose_random_values rose_dummy_values(const rose_model *m, const rose_tensor *t);

#endif
