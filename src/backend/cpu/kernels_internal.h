/* backend/cpu/kernels_internal.h - declares the kernels of the table by name, and layout
 * arithmetic that the kernel files share. A kernel file for an instruction set compiles to
 * nothing where the compiler flags are missing (non-x86). */
#ifndef ROSE_BACKEND_CPU_KERNELS_INTERNAL_H
#define ROSE_BACKEND_CPU_KERNELS_INTERNAL_H

#include "backend/cpu/kernels.h"

/* Declares the kernels that these levels have, with the level's name at the end of each. */
#define ROSE_CPU_KERNELS(isa)                                                                      \
    void rose_matmul_f32_##isa(const rose_matmul *a, uint32_t p0, uint32_t p1);                    \
    void rose_matmul_bf16_##isa(const rose_matmul *a, uint32_t p0, uint32_t p1);                   \
    void rose_matmul_i8_##isa(const rose_matmul *a, uint32_t p0, uint32_t p1);                     \
    void rose_attention_##isa(const rose_attention *a);                                            \
    void rose_kv_append_##isa(uint8_t *head_block, uint32_t slot, const float *k, const float *v,  \
                              uint32_t head_dim, bool bf16);                                       \
    void rose_layernorm_##isa(const float *x, const float *w, const float *b, float eps,           \
                              uint32_t d, bool round_bf16, float *y);                              \
    float rose_max_index_##isa(const float *x, uint32_t n, uint32_t *index);                       \
    void rose_exp_weights_##isa(const float *x, uint32_t n, float max, float inv_temp, float *w);  \
    void rose_exp_sums_##isa(const float *x, uint32_t n, float max, float inv_temp, float min_p,   \
                             float *w, double *sums)

ROSE_CPU_KERNELS(ref);
ROSE_CPU_KERNELS(avx2);
ROSE_CPU_KERNELS(neon);
ROSE_CPU_KERNELS(avx512);

/* Kernels of the level avx512-bf16, which multiplies by rule 11 of docs/NUMERICS.md: the
 * definitions and their vector versions. */
void rose_matmul_bf16_pairs_ref(const rose_matmul *a, uint32_t p0, uint32_t p1);
void rose_matmul_i8_pairs_ref(const rose_matmul *a, uint32_t p0, uint32_t p1);
void rose_attention_pairs_ref(const rose_attention *a); /* bf16 */
void rose_attention_avx512bf16(const rose_attention *a);
void rose_matmul_bf16_avx512bf16(const rose_matmul *a, uint32_t p0, uint32_t p1);
void rose_matmul_i8_avx512bf16(const rose_matmul *a, uint32_t p0, uint32_t p1);

void rose_attention_amx(const rose_attention *a);
void rose_matmul_bf16_amx(const rose_matmul *a, uint32_t p0, uint32_t p1);
void rose_matmul_i8_amx(const rose_matmul *a, uint32_t p0, uint32_t p1);

/* Scratch of the AMX GEMM, which needs most: sums of 6 tiles, bf16 tiles of the rows taken
 * together, and two int8 panels as bf16. AVX2 uses it for sums of rows and for 256 k of an int8
 * panel as fp32. */
enum { ROSE_AMX_SUM_BYTES = 6144, ROSE_AMX_MIN_ROWS = 64, ROSE_AMX_MAX_ROWS = 512 };

/* Threads divide the rows of an AMX GEMM in units of two tiles. */
enum { ROSE_AMX_ROW_UNIT = 32 };

/* Bytes of bf16 tiles for the rows that an AMX GEMM takes together: 64 to 512 rows, at most 800
 * KB or 64 rows. These tiles and the panels being read fit into 2 MiB of L2. The size grows with
 * k_pad, so that scratch for the deepest GEMM serves all. */
static inline size_t rose_amx_tile_bytes(uint32_t k_pad)
{
    const size_t row = (size_t)k_pad * 2, most = row * ROSE_AMX_MAX_ROWS;
    const size_t bytes = most < 800u * 1024u ? most : 800u * 1024u;
    return bytes > row * ROSE_AMX_MIN_ROWS ? bytes : row * ROSE_AMX_MIN_ROWS;
}

static inline uint32_t rose_round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Floats between two rows of scores in attention scratch: whole groups of 32 positions. */
static inline size_t rose_score_stride(uint32_t n_ctx)
{
    return rose_round_up(n_ctx, ROSE_K_GROUP);
}

#endif
