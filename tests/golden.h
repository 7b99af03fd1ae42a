/* golden.h - reads the golden vectors of tests/golden (its README.md describes the format): what
 * transformers computes in FP32 for models/rose-tiny and for random models. For cmocka tests:
 * a missing or malformed file is a failed test, not an error to handle. Single-threaded. */
#ifndef ROSE_TESTS_GOLDEN_H
#define ROSE_TESTS_GOLDEN_H

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "load_json.h"
#include "model/random.h"

/* Logits (or log-probabilities: golden.logprobs) at one position of ids + greedy: values[i] is the
 * logit of token i * stride. */
typedef struct golden_logits {
    uint32_t position, stride, n;
    float max_abs; /* largest magnitude over the whole vocabulary: what errors are relative to */
    const float *values; /* [n]; borrowed: golden */
} golden_logits;

typedef struct golden_prompt {
    const char *name;
    const char *text; /* NULL where the prompt is given as ids only */
    uint32_t *ids;    /* [n_ids] */
    uint32_t *greedy; /* [n_greedy]: the argmax continuation; nothing stops it, no EOS either */
    float *margin;    /* [n_greedy]: best logit less the second best at that step */
    golden_logits *logits;
    uint32_t n_ids, n_greedy, n_logits;
} golden_prompt;

/* Tokens ids[first+1 .. first+n] given ids[first .. first+n), from an empty context. */
typedef struct golden_window {
    uint32_t first, n;
    double nll_sum; /* nats */
} golden_window;

/* The options of roseinfer random-model; the fields of rose_random_opts. */
typedef struct golden_random {
    const char *config; /* under the root; then only dtype, init_std and seed count. Or NULL */
    float init_std;
    uint32_t n_layers, d_model, n_heads, d_ff, vocab_size, max_positions;
    const char *dtype; /* "F32", "F16", "BF16" */
    bool tied_head, prefix;
    uint64_t max_shard_bytes, seed;
} golden_random;

typedef struct golden {
    rose_json *json; /* owned; strings are borrowed from it */
    float *values;
    const char *folder;      /* of the model, under the root; NULL for a random model */
    golden_random random;    /* where folder is NULL */
    double tolerance;        /* of golden_logits_error or golden_logprob_error */
    bool logprobs;           /* the values are log-probabilities */
    uint32_t served_context; /* the longest context to serve with; 0 = any */
    golden_prompt *prompts;
    uint32_t n_prompts;
    uint32_t *held_ids; /* [n_held_ids]; with the windows, absent (0) for a random model */
    golden_window *windows;
    uint32_t n_held_ids, n_windows;
    double nll_mean; /* over all windows, nats a token */
} golden;

/* Open the vectors of "rose-tiny", "random-f32", "families/llama", ... */
static inline void golden_open(golden *g, const char *name);
static inline void golden_close(golden *g);

/* The golden models of all families in order of their names, "families/gemma3", ...: one for each
 * tests/golden/families/NAME.config.json. The only list of families that tests read. */
enum { GOLDEN_FAMILIES = 32 };
typedef struct golden_list {
    char name[GOLDEN_FAMILIES][48];
    uint32_t n;
} golden_list;
static inline const golden_list *golden_families(void);

/* A path under the repository (ROSE_ROOT, else the current folder) into out[0..cap). */
static inline void golden_path(char *out, size_t cap, const char *name);

/* The options that make a random model again. path: room for the config's. */
static inline void golden_random_opts(const golden_random *r, rose_random_opts *o, char path[1024])
{
    rose_random_opts_default(o);
    o->dtype = strcmp(r->dtype, "F32") == 0   ? ROSE_F32
               : strcmp(r->dtype, "F16") == 0 ? ROSE_F16
                                              : ROSE_BF16;
    o->seed = r->seed;
    if (r->config != NULL) {
        golden_path(path, 1024, r->config);
        o->config = path;
        o->init_std = r->init_std;
        return;
    }
    o->n_layers = r->n_layers;
    o->d_model = r->d_model;
    o->n_heads = r->n_heads;
    o->d_ff = r->d_ff;
    o->vocab_size = r->vocab_size;
    o->max_positions = r->max_positions;
    o->tied_head = r->tied_head;
    o->prefix = r->prefix;
    o->max_shard_bytes = r->max_shard_bytes;
}

/* Is the model in folder the one that the vectors were made from? Fails the test, naming the file
 * that differs, if not: then the model changed, and the engine is not to blame. */
static inline void golden_check_model(const golden *g, const char *folder);

/* The largest error of logits (one per token of the vocabulary) against l, relative to the largest
 * magnitude at that position; infinite if any is not a number. Pass if <= g->tolerance. */
static inline double golden_logits_error(const golden_logits *l, const float *logits)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < l->n; i++) {
        double diff = fabs((double)logits[(size_t)i * l->stride] - (double)l->values[i]);
        if (!(diff <= worst)) worst = isnan(diff) ? (double)INFINITY : diff;
    }
    return worst / (double)l->max_abs;
}

/* The largest absolute error of the log-probabilities of logits[0..vocab) against l. */
static inline double golden_logprob_error(const golden_logits *l, const float *logits,
                                          uint32_t vocab)
{
    double worst = 0.0, max = (double)logits[0], sum = 0.0;
    for (uint32_t i = 1; i < vocab; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    for (uint32_t i = 0; i < l->n; i++) {
        const double ours = (double)logits[(size_t)i * l->stride] - max - log(sum);
        const double diff = fabs(ours - (double)l->values[i]);
        if (!(diff <= worst)) worst = isnan(diff) ? (double)INFINITY : diff;
    }
    return worst;
}

/* How many tokens of got[0..n) agree with p's greedy continuation from its begin. Where that is
 * short of n_greedy, p->margin[result] tells a fault from a near-tie. */
static inline uint32_t golden_greedy_agreed(const golden_prompt *p, const uint32_t *got, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && i < p->n_greedy && got[i] == p->greedy[i])
        i++;
    return i;
}

#include "golden_read.h"

#endif
