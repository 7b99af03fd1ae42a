/* model/ggml_blocks.h - the quantized blocks of GGUF files, as values and as their parts.
 *
 * The formats are those of llama.cpp (ggml/src/ggml-common.h); the `gguf` package of PyPI
 * (gguf/quants.py) states the same values in Python. A row of a matrix is a sequence of whole
 * blocks. A block holds 32 or 256 integers q, fp16 factors d and m, and for the K types a 6-bit or
 * 8-bit factor s of every 32 or 16 values:
 *
 *   Q4_0 d (q - 8)     Q5_0 d (q - 16)   Q8_0 d (q - 128), where the file holds q - 128
 *   Q4_1 d q + m       Q5_1 d q + m
 *   Q4_K (d s) q - m t    Q5_K (d s) q - m t    Q6_K (d s) (q - 32)
 *
 * d s and m t are exact in fp32, and so is every product but that of Q6_K: each value is rounded
 * at most once. Pure functions, any thread; any alignment; no result depends on FTZ or DAZ. */
#ifndef ROSE_MODEL_GGML_BLOCKS_H
#define ROSE_MODEL_GGML_BLOCKS_H

#include "model/model.h"

/* 32 values in a row of a quantized tensor, aligned to 32: the unit of all formats. */
enum { ROSE_GGML_GROUP = 32 };

typedef struct rose_ggml_group {
    uint8_t q[ROSE_GGML_GROUP]; /* unsigned integers */
    uint16_t d, m;              /* fp16 bits; m is +0 in types without a minimum */
    int8_t scale[2];            /* s of the first and of the last 16 values; else 1 */
    uint8_t min;                /* t: m's factor; else 1 */
} rose_ggml_group;

/* The number that a GGUF file gives to a type; false if it is none of rose_dtype's. */
bool rose_ggml_dtype(uint32_t ggml_type, rose_dtype *out);

/* What is taken from q to make it signed: 128, 16, 8, 32 or 0. */
int rose_ggml_bias(rose_dtype t);

/* Group g (values 32 g .. 32 g + 31) of the blocks at `blocks`; t has blocks. */
void rose_ggml_group_read(rose_ggml_group *out, rose_dtype t, const void *blocks, uint64_t g);

/* The 32 values of group g as fp32. */
void rose_ggml_group_f32(float *out, rose_dtype t, const void *blocks, uint64_t g);

#endif
