/* model/rope.h - the inverse frequencies of rotary positions. One table serves all positions of a
 * model: what depends on a length depends on the served context, so cached keys stay valid.
 * Threads: any, no state. */
#ifndef ROSE_MODEL_ROPE_H
#define ROSE_MODEL_ROPE_H

#include "model/model.h"

/* The largest base: no power of it overflows fp32. */
#define ROSE_MAX_THETA 3e38

/* inv_freq[0 .. r->dim / 2) and the factor by which sine and cosine are multiplied. Position p
 * rotates pair i by the angle p * inv_freq[i], a product in fp32.
 * The formulas are those of transformers, each operation rounded to fp32 as PyTorch does it. Powers
 * and logarithms are computed by code of ours from + - * / alone, so the bits are the same on every
 * machine. served_context: the longest sequence that will be served; dynamic and longrope read it.
 * No allocation. */
void rose_rope_table(const rose_rope *r, uint32_t served_context, float *inv_freq,
                     float *attention_factor);

/* The kind whose table of frequencies this kind uses: the first one with the same rope, so a table
 * exists for each distinct rope. -1: the kind does not rotate. */
int rose_rope_of_kind(const rose_arch *a, uint32_t kind);

/* Logs it if the served context decides which frequencies the model has: those of longrope's long
 * factors, or those of a grown base (dynamic). */
void rose_rope_log_context(const rose_arch *a, uint32_t served_context);

const char *rose_rope_kind_name(rose_rope_kind k); /* "llama3", as configs spell it */

#endif
