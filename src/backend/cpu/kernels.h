/* backend/cpu/kernels.h - the CPU backend's kernel table, and the data layouts that its kernels
 * share.
 *
 * The contract is docs/NUMERICS.md: every entry gives the same bits at every level, for any
 * number of rows, threads and chunks. <op>_ref.c defines each operation in plain C; the other
 * files are only faster. The level avx512-bf16 has GEMMs and attention of its own (rule 11),
 * with their own definitions. No kernel allocates or locks. The calling thread has set FTZ and
 * DAZ (rose_thread_ftz). */
#ifndef ROSE_BACKEND_CPU_KERNELS_H
#define ROSE_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpuinfo.h"
#include "model/format.h"

enum {
    ROSE_PANEL =
        16, /* outputs in a weight panel, tokens in a KV page: one AVX-512 register of fp32 */
    ROSE_K_GROUP =
        32, /* k values that form one step of a sum in docs/NUMERICS.md: one AMX tile row */
    ROSE_ROW_TILE = 16 /* the most rows of one attention call: one AMX tile */
};

/* A packed matrix keeps its values in a rose_format. The products of int8 are those of the integer
 * as a bf16, which is exact, so all row counts and levels agree as they do for bf16. Blocks of GGUF
 * files are repacked into panels (quant.h). */

typedef enum rose_epilogue {
    ROSE_EPI_NONE,      /* y = acc + bias */
    ROSE_EPI_GELU_TANH, /* y = gelu(acc + bias) */
    ROSE_EPI_GELU_ERF,
    ROSE_EPI_RELU,
    ROSE_EPI_SILU,
    ROSE_EPI_RESIDUAL, /* y = y + (acc + bias) */
    ROSE_EPI_SOFTCAP   /* y = cap tanh((acc + bias) / cap) */
} rose_epilogue;

/* y[m][n] = epilogue(sum_k x[m][k] w[k][n] + bias[n]) for rows m < m_rows and the outputs of panels
 * p0 .. p1-1. Writes nothing else: columns n .. are untouched, so zero padding stays zero.
 *
 * Gated (an MLP's gate and up in one product): panel 2 i holds the gate of outputs 16 i .. 16 i +
 * 15, panel 2 i + 1 their up, and y = epilogue(gate) * up. One call has both of a pair: p0 and p1
 * are even. */
typedef struct rose_matmul {
    const void *w;      /* panels, 64-byte aligned: bf16 [n_panels][k_pad/2][16][2], fp32 and int8
                           [n_panels][k_pad][16]; k from the true depth to k_pad, and outputs from n to
                           16 n_panels, are zero. Blocks: see quant.h */
    uint32_t k_pad;     /* depth rounded up to ROSE_K_GROUP */
    uint32_t n;         /* outputs: of y */
    const float *x;     /* [m_rows][ldx]: in bf16 mode every value is already a bf16; k .. k_pad is
         zero.     Quantized weights take any fp32 values. */
    size_t ldx;         /* floats, a multiple of 16; x is 64-byte aligned */
    uint32_t m_rows;    /* >= 1 */
    const float *scale; /* int8 only: [n] factors for the sums, before the bias; else NULL */
    const float *bias;  /* [n] or NULL: then nothing is added */
    bool gated;         /* scale and bias: [16 n_panels], in the order of the panels */
    rose_epilogue epilogue; /* gated: an activation */
    float cap;              /* of SOFTCAP */
    bool round_bf16;        /* round y to bf16 after the epilogue (never with RESIDUAL) */
    float *y;               /* [m_rows][ldy] */
    size_t ldy;             /* floats, a multiple of 16; y is 64-byte aligned */
    void *scratch;          /* this thread's, rose_matmul_scratch(k_pad) bytes, 64-byte aligned */
} rose_matmul;

/* Bytes of scratch for a GEMM of depth k_pad: enough for every level, so that one buffer serves
 * any kernel table. */
size_t rose_matmul_scratch(uint32_t k_pad);

/* Bytes of one packed panel: 16 outputs of all k_pad values. */
size_t rose_panel_bytes(rose_format t, uint32_t k_pad);

/* Bytes of a packed matrix [k][n] with its zero padding; 0 if that overflows. */
size_t rose_panels_bytes(rose_format t, uint32_t k, uint32_t n);

static inline uint32_t rose_matmul_panels(const rose_matmul *a)
{
    return (a->n + ROSE_PANEL - 1) / ROSE_PANEL * (a->gated ? 2 : 1);
}

typedef void rose_matmul_fn(const rose_matmul *a, uint32_t p0, uint32_t p1);

/* Part tid of n of [0, total). */
static inline uint64_t rose_share(uint64_t total, uint32_t tid, uint32_t n)
{
    return total * tid / n;
}

/* Computes the part of thread tid in a GEMM with any number of rows; scratch belongs to that
 * thread. Rows are taken in blocks whose activations stay in the L2 cache while the weights are
 * read. With AMX a thread gets a rectangle of rows and panels, or nothing. */
void rose_cpu_matmul_share(rose_matmul_fn *fn, const rose_matmul *whole, uint32_t tid, uint32_t n);

/* KV page of one layer: for each KV head a K block, then a V block, each 64-byte aligned.
 * K block: one panel, depth = head_dim padded to 32, outputs = the page's 16 tokens.
 * V block: ceil(head_dim/16) panels, depth = the page's 16 tokens, outputs = head dims.
 * Elements: bf16 [depth/2][16][2]; fp32 [depth][16].
 * These are the shapes of weight panels, so the same inner loops serve both. A page needs no
 * initial content: kv_append also writes the depth padding of a slot, and attention uses no slot
 * past a row's own position. */
size_t rose_kv_k_bytes(bool bf16, uint32_t head_dim);    /* one K block */
size_t rose_kv_head_bytes(bool bf16, uint32_t head_dim); /* K and V block of one head */

/* Causal attention of consecutive tokens of one sequence, each with n_heads neighbouring query
 * heads that share a KV head. Row r of the call is head r % n_heads of token r / n_heads; token t
 * attends to positions 0 .. n_ctx + t - 1 (itself the last), with a window to the last `window` of
 * them. */
typedef struct rose_attention {
    const float *q;        /* [tokens][ldq], n_heads x head_dim values each, rounded in bf16 mode */
    size_t ldq, ldo;       /* floats */
    uint32_t n_heads;      /* >= 1 */
    uint32_t n_rows;       /* tokens x n_heads, 1 .. ROSE_ROW_TILE */
    uint32_t n_ctx;        /* keys of token 0 without a window, >= 1 */
    uint32_t window;       /* 0 = none */
    uint32_t head_dim;     /* 1 .. 256 */
    float scale;           /* scores are multiplied by it */
    float cap;             /* 0, or scores become cap tanh(score / cap) */
    const uint8_t *kv;     /* head's block inside page 0 of the pool, this layer */
    size_t page_stride;    /* bytes from one page to the next */
    const uint32_t *pages; /* this sequence's page table */
    /* What this thread attends to next, to be prefetched: its block within page 0, and its page
     * table of next_n_pages. With 0 pages, this head's own next page is prefetched instead. */
    const uint8_t *next_kv;
    const uint32_t *next_pages;
    uint32_t next_n_pages;
    bool bf16;
    float *out;    /* [tokens][ldo]: as q, rounded in bf16 mode */
    void *scratch; /* this thread's, rose_attention_scratch(max ctx, head_dim) bytes, 64-byte
                      aligned */
} rose_attention;

/* max_ctx: the last token's position + 1. At every level. */
size_t rose_attention_scratch(uint32_t max_ctx, uint32_t head_dim);

enum { ROSE_SUM_BLOCK = 256 };

/* Products with quantized weights, by format. f32: the weights as fp32 values and the
 * activations as they are. i8: each thread first rounds its rows to int8 in blocks of 32. */
typedef struct rose_quant_kernels {
    rose_matmul_fn *f32[ROSE_N_FORMATS], *i8[ROSE_N_FORMATS];
} rose_quant_kernels;

typedef struct rose_cpu_kernels {
    rose_isa isa;
    const rose_quant_kernels *quant; /* of the fastest instructions that the CPU has at this level;
                                        all give the same bits */
    rose_matmul_fn *matmul[ROSE_I8 + 1]; /* by format: F32, BF16, and I8, for which x is bf16 */
    void (*attention)(const rose_attention *a);
    /* Stores one token's k and v (head_dim values each) of one head at slot 0..15 of its page. */
    void (*kv_append)(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                      uint32_t head_dim, bool bf16);
    /* y[0..d) = layernorm(x[0..d)) * w + b, rounded to bf16 if round_bf16. */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, uint32_t d,
                      bool round_bf16, float *y);
    /* y[0..d) = x / rms(x) * w, rounded if round_bf16; x and y may be the same. */
    void (*rmsnorm)(const float *x, const float *w, float eps, uint32_t d, bool round_bf16,
                    float *y);
    /* Rotates x[i] together with x[i + half] by the angle of cos[i] and sin[i], in place; all
     * head_dim values are rounded if round_bf16. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t half, uint32_t head_dim,
                 bool round_bf16);
    /* Largest value and its lowest index; NaN counts as -inf. n >= 1. */
    float (*max_index)(const float *x, uint32_t n, uint32_t *index);
    /* w[i] = exp((x[i] - max) * inv_temp) with the bits of rose_expf_ref; NaN and -inf give 0. */
    void (*exp_weights)(const float *x, uint32_t n, float max, float inv_temp, float *w);
    /* As exp_weights, but weights below min_p become 0, and with w NULL the weights are not
     * stored. sums[b] is the sum in double of block b of ROSE_SUM_BLOCK weights. Lane l of 8
     * adds weights l, l + 8, ...; then lanes 4, 2 and 1 apart are added. */
    void (*exp_sums)(const float *x, uint32_t n, float max, float inv_temp, float min_p, float *w,
                     double *sums);
} rose_cpu_kernels;

/* Fills the table with scalar kernels, so that it is complete on any CPU, and then replaces them
 * level by level up to isa. The level avx512-bf16 replaces kernels of avx512. */
void rose_cpu_kernels_init(rose_cpu_kernels *k, rose_isa isa);

/* The product for weights of this type; int8_activations counts for quantized weights only. */
rose_matmul_fn *rose_cpu_matmul_fn(const rose_cpu_kernels *k, rose_format type,
                                   bool int8_activations);

#endif
