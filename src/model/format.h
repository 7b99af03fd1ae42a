/* model/format.h - the formats of matrices: in files, in memory and on a GPU. One row of a table
 * says what there is to know about a format.
 *
 * The quantized formats are those of llama.cpp (ggml/src/ggml-common.h); the `gguf` package of PyPI
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
#ifndef ROSE_MODEL_FORMAT_H
#define ROSE_MODEL_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rose_format {
    ROSE_F32,
    ROSE_F16,
    ROSE_BF16,
    ROSE_I8,   /* in memory alone: an integer in -127 .. 127 times the fp32 scale of its output */
    ROSE_Q8_0, /* from here on blocks of GGUF files */
    ROSE_Q4_0,
    ROSE_Q4_1,
    ROSE_Q5_0,
    ROSE_Q5_1,
    ROSE_Q4_K,
    ROSE_Q5_K,
    ROSE_Q6_K,
    ROSE_N_FORMATS
} rose_format;

typedef struct rose_format_row {
    const char *name;      /* as files spell it: "F32", "Q4_K"; "int8" */
    const char *torch;     /* as config.json and --dtype spell it: "float32"; NULL: they do not */
    uint16_t block, bytes; /* values and bytes of a block; 1 and bytes of a value without blocks */
    uint16_t group;        /* values that share a scale; 0: no scale, or that of a whole output */
    int16_t zero;          /* the integer that stands for 0: 128, 16, 8, 32 or 0 */
    bool min;              /* a minimum is added or taken off: in a block m follows d */
    uint8_t scale_at;      /* the byte of a block at which d begins */
} rose_format_row;

extern const rose_format_row rose_formats[ROSE_N_FORMATS];

/* Whether values are stored in blocks. */
static inline bool rose_format_is_quant(rose_format f)
{
    return f >= ROSE_Q8_0;
}

/* Bytes of a value; 0 with blocks. Inline: kernels are compiled for a format. */
static inline size_t rose_format_size(rose_format f)
{
    return f == ROSE_F32 ? 4 : f <= ROSE_BF16 ? 2 : f == ROSE_I8 ? 1 : 0;
}

/* Bytes of n values, a multiple of the block. */
uint64_t rose_values_bytes(rose_format f, uint64_t n);

/* The format of files with this name; false: there is none. */
bool rose_format_named(const char *name, rose_format *out);

/* 32 values in a row of a quantized tensor, aligned to 32: the unit of all formats. */
enum { ROSE_GGML_GROUP = 32 };

typedef struct rose_ggml_group {
    uint8_t q[ROSE_GGML_GROUP]; /* unsigned integers */
    uint16_t d, m;              /* fp16 bits; m is +0 in types without a minimum */
    int8_t scale[2];            /* s of the first and of the last 16 values; else 1 */
    uint8_t min;                /* t: m's factor; else 1 */
} rose_ggml_group;

/* Group g (values 32 g .. 32 g + 31) of the blocks at `blocks`; t has blocks. */
void rose_ggml_group_read(rose_ggml_group *out, rose_format t, const void *blocks, uint64_t g);

/* The 32 values of group g as fp32. */
void rose_ggml_group_f32(float *out, rose_format t, const void *blocks, uint64_t g);

#endif
