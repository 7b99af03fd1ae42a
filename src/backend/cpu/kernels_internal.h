/* backend/cpu/kernels_internal.h - declares the kernels of the table by name, and layout
 * arithmetic that the kernel files share. A kernel file for an instruction set compiles to
 * nothing where the compiler flags are missing (non-x86). */
#ifndef ROSE_BACKEND_CPU_KERNELS_INTERNAL_H
#define ROSE_BACKEND_CPU_KERNELS_INTERNAL_H

#include "backend/cpu/kernels.h"

rose_matmul_fn rose_matmul_f32_ref, rose_matmul_bf16_ref, rose_matmul_i8_ref;
void rose_matmul_finish_ref(const rose_matmul *a, const float *acc, uint32_t m, uint32_t p);
void rose_attention_ref(const rose_attention *a);
void rose_kv_append_ref(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                        uint32_t head_dim, bool bf16);
void rose_layernorm_ref(const float *x, const float *w, const float *b, float eps, uint32_t d,
                        bool round_bf16, float *y);
void rose_rmsnorm_ref(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                      float *y);
void rose_rope_ref(float *x, const float *cos, const float *sin, uint32_t half, uint32_t head_dim,
                   bool round_bf16);
float rose_max_index_ref(const float *x, uint32_t n, uint32_t *index);
void rose_exp_weights_ref(const float *x, uint32_t n, float max, float inv_temp, float *w);
void rose_exp_sums_ref(const float *x, uint32_t n, float max, float inv_temp, float min_p, float *w,
                       double *sums);

rose_matmul_fn rose_matmul_f32_avx2, rose_matmul_bf16_avx2, rose_matmul_i8_avx2;
rose_matmul_fn rose_matmul_f32_avx512, rose_matmul_bf16_avx512, rose_matmul_i8_avx512;
rose_matmul_fn rose_matmul_f32_neon, rose_matmul_bf16_neon, rose_matmul_i8_neon;

/* kernels_<isa>.c: the tables of these levels. */
extern const rose_cpu_kernels rose_kernels_avx2, rose_kernels_avx512, rose_kernels_neon;

/* Level avx512-bf16, whose products are rule 11: the definitions and their vector versions. */
rose_matmul_fn rose_matmul_bf16_pairs_ref, rose_matmul_i8_pairs_ref;
rose_matmul_fn rose_matmul_bf16_avx512bf16, rose_matmul_i8_avx512bf16;
void rose_attention_pairs_ref(const rose_attention *a); /* bf16 */
void rose_attention_avx512bf16(const rose_attention *a);

rose_matmul_fn rose_matmul_bf16_amx, rose_matmul_i8_amx;
void rose_attention_amx(const rose_attention *a);

/* A GEMM of a table whose body is one call with a, p0 and p1. */
#define ROSE_MATMUL(name, call)                                                                    \
    void name(const rose_matmul *a, uint32_t p0, uint32_t p1)                                      \
    {                                                                                              \
        call;                                                                                      \
    }

/* The table of a level over vec16, for a file that includes vec_<isa>.h and the *_simd.h files.
 * Attention takes n_rows rows at a time. */
#define ROSE_SIMD_KERNELS(level, of_isa, n_rows)                                                   \
    static void attention(const rose_attention *a)                                                 \
    {                                                                                              \
        if (a->bf16)                                                                               \
            attend(a, true, n_rows);                                                               \
        else                                                                                       \
            attend(a, false, n_rows);                                                              \
    }                                                                                              \
    const rose_cpu_kernels rose_kernels_##level = {                                                \
        .isa = of_isa,                                                                             \
        .quant = &rose_quant_##level,                                                              \
        .matmul[ROSE_F32] = rose_matmul_f32_##level,                                               \
        .matmul[ROSE_BF16] = rose_matmul_bf16_##level,                                             \
        .matmul[ROSE_I8] = rose_matmul_i8_##level,                                                 \
        .attention = attention,                                                                    \
        .kv_append = append_row,                                                                   \
        .layernorm = norm_row,                                                                     \
        .rmsnorm = rms_row,                                                                        \
        .rope = rope_row,                                                                          \
        .max_index = max_index_row,                                                                \
        .exp_weights = exp_weights_row,                                                            \
        .exp_sums = exp_sums_row,                                                                  \
    };

/* Quantized weights: the definition, and one table for each set of instructions. */
extern const rose_quant_kernels rose_quant_ref, rose_quant_avx2, rose_quant_avxvnni,
    rose_quant_avx512, rose_quant_avx512vnni, rose_quant_neon;

/* Scratch of the AMX product, which needs most: sums of 6 tiles, bf16 tiles of the rows taken at a
 * time, and two int8 panels as bf16. (AVX2: sums of rows, and 256 k of an int8 panel as fp32.) */
enum { ROSE_AMX_SUM_BYTES = 6144, ROSE_AMX_MIN_ROWS = 64, ROSE_AMX_MAX_ROWS = 512 };

/* Threads divide the rows of an AMX GEMM in units of two tiles. */
enum { ROSE_AMX_ROW_UNIT = 32 };

/* Bytes of bf16 tiles for the rows that an AMX GEMM takes together: as many rows as fit
 * into 800 KB, but at least 64 and at most 512. These tiles and the panels being read fit into 2
 * MiB of L2. The size grows with k_pad, so that scratch for the deepest GEMM serves all. */
static inline size_t rose_amx_tile_bytes(uint32_t k_pad)
{
    const size_t row = (size_t)k_pad * 2, most = row * ROSE_AMX_MAX_ROWS;
    const size_t bytes = most < 800u * 1024u ? most : 800u * 1024u;
    return bytes > row * ROSE_AMX_MIN_ROWS ? bytes : row * ROSE_AMX_MIN_ROWS;
}

/* The first column of y that panel p writes. */
static inline uint32_t rose_panel_column(const rose_matmul *a, uint32_t p)
{
    return (a->gated ? p / 2 : p) * ROSE_PANEL;
}

static inline uint32_t rose_round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Row r of an attention call attends to positions rose_row_first .. rose_row_end - 1. */
static inline uint32_t rose_row_end(const rose_attention *a, uint32_t r)
{
    return a->n_ctx + r / a->n_heads;
}

static inline uint32_t rose_row_first(const rose_attention *a, uint32_t r)
{
    const uint32_t end = rose_row_end(a, r);
    return a->window > 0 && end > a->window ? end - a->window : 0;
}

static inline const float *rose_row_q(const rose_attention *a, uint32_t r)
{
    return a->q + r / a->n_heads * a->ldq + (size_t)(r % a->n_heads) * a->head_dim;
}

static inline float *rose_row_out(const rose_attention *a, uint32_t r)
{
    return a->out + r / a->n_heads * a->ldo + (size_t)(r % a->n_heads) * a->head_dim;
}

/* Floats between two rows of scores in attention scratch: whole groups of 32 positions. */
static inline size_t rose_score_stride(uint32_t n_ctx)
{
    return rose_round_up(n_ctx, ROSE_K_GROUP);
}

#endif
