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

enum {
    ROSE_PANEL =
        16, /* outputs in a weight panel, tokens in a KV page: one AVX-512 register of fp32 */
    ROSE_K_GROUP =
        32, /* k values that form one step of a sum in docs/NUMERICS.md: one AMX tile row */
    ROSE_ROW_TILE = 16 /* the most rows of one attention call: one AMX tile */
};

/* How a packed matrix stores its values. An int8 value is an integer in -127 .. 127, to be
 * multiplied by the scale of its output. Kernels multiply with the integer as a bf16, which is
 * exact. So all row counts and levels give the same bits, as they do for bf16. */
typedef enum rose_weight_type { ROSE_W_F32, ROSE_W_BF16, ROSE_W_I8 } rose_weight_type;

static inline size_t rose_weight_size(rose_weight_type t) /* bytes of a value */
{
    return t == ROSE_W_F32 ? 4 : t == ROSE_W_BF16 ? 2 : 1;
}

typedef enum rose_epilogue {
    ROSE_EPI_NONE,      /* y = acc + bias */
    ROSE_EPI_GELU_TANH, /* y = gelu(acc + bias) */
    ROSE_EPI_GELU_ERF,
    ROSE_EPI_RELU,
    ROSE_EPI_SILU,
    ROSE_EPI_RESIDUAL /* y = y + (acc + bias) */
} rose_epilogue;

/* A GEMM: y[m][n] = epilogue(sum_k x[m][k] w[k][n] + bias[n]) for rows m < m_rows and the
 * outputs of panels p0 .. p1-1. It writes nothing else: columns from n on are untouched, so zero
 * padding stays zero. */
typedef struct rose_matmul {
    const void *w;  /* panels, 64-byte aligned: bf16 [n_panels][k_pad/2][16][2], fp32 and int8
                       [n_panels][k_pad][16]; zero from k to k_pad and from n to 16 n_panels */
    uint32_t k_pad; /* depth rounded up to ROSE_K_GROUP */
    uint32_t n;     /* outputs */
    const float
        *x;     /* [m_rows][ldx]: in bf16 mode every value is already a bf16; k .. k_pad is zero */
    size_t ldx; /* distance between rows in floats, a multiple of 16; x is 64-byte aligned */
    uint32_t m_rows;    /* >= 1 */
    const float *scale; /* int8 only: [n] factors for the sums, before the bias; else NULL */
    const float *bias;  /* [n] or NULL: then nothing is added */
    rose_epilogue epilogue;
    bool round_bf16; /* round y to bf16 after the epilogue (never with RESIDUAL) */
    float *y;        /* [m_rows][ldy] */
    size_t ldy;      /* distance between rows in floats, a multiple of 16; y is 64-byte aligned */
    void *scratch;   /* scratch of this thread, rose_matmul_scratch(k_pad) bytes, 64-byte aligned */
} rose_matmul;

/* Bytes of scratch for a GEMM of depth k_pad: enough for every level, so that one buffer serves
 * any kernel table. */
size_t rose_matmul_scratch(uint32_t k_pad);

/* Bytes of a packed matrix [k][n] with its zero padding; 0 if that overflows. */
size_t rose_panels_bytes(rose_weight_type t, uint32_t k, uint32_t n);

typedef void (*rose_matmul_fn)(const rose_matmul *a, uint32_t p0, uint32_t p1);

/* Part tid of n of [0, total). */
static inline uint64_t rose_share(uint64_t total, uint32_t tid, uint32_t n)
{
    return total * tid / n;
}

/* Computes the part of thread tid in a GEMM with any number of rows; scratch belongs to that
 * thread. Rows are taken in blocks whose activations stay in the L2 cache while the weights are
 * read. With AMX a thread gets a rectangle of rows and panels, or nothing. */
void rose_cpu_matmul_share(rose_matmul_fn fn, const rose_matmul *whole, uint32_t tid, uint32_t n);

/* KV page of one layer: for each KV head a K block, then a V block, each 64-byte aligned.
 * K block: one panel, depth = head_dim padded to 32, outputs = the page's 16 tokens.
 * V block: ceil(head_dim/16) panels, depth = the page's 16 tokens, outputs = head dims.
 * Elements: bf16 [depth/2][16][2]; fp32 [depth][16].
 * These are the shapes of weight panels, so the same inner loops serve both. A page needs no
 * initial content: kv_append also writes the depth padding of a slot, and attention uses no slot
 * past a row's own position. */
size_t rose_kv_k_bytes(bool bf16, uint32_t head_dim);    /* one K block */
size_t rose_kv_head_bytes(bool bf16, uint32_t head_dim); /* K and V block of one head */

/* Causal attention of n_rows consecutive query rows of one sequence and one head. Row r attends
 * to positions 0 .. n_ctx + r - 1, the last of which is its own. */
typedef struct rose_attention {
    const float *q;        /* queries [n_rows][ldq], head_dim values each, rounded in bf16 mode */
    size_t ldq, ldo;       /* floats */
    uint32_t n_rows;       /* 1 .. ROSE_ROW_TILE */
    uint32_t n_ctx;        /* keys of row 0, >= 1 */
    uint32_t head_dim;     /* 1 .. 256 */
    float scale;           /* scores are multiplied by it */
    const uint8_t *kv;     /* the block of this layer and head within page 0 of the pool */
    size_t page_stride;    /* bytes from one page to the next */
    const uint32_t *pages; /* this sequence's page table */
    /* What this thread attends to next, to be prefetched: its block within page 0, and its page
     * table of next_n_pages. With 0 pages, this head's own next page is prefetched instead. */
    const uint8_t *next_kv;
    const uint32_t *next_pages;
    uint32_t next_n_pages;
    bool bf16;
    float *out;    /* [n_rows][ldo]: head_dim values a row, rounded in bf16 mode */
    void *scratch; /* scratch of this thread: rose_attention_scratch(max ctx, head_dim) bytes,
                      64-byte aligned */
} rose_attention;

/* Bytes of attention scratch, enough for every level. max_ctx: the most keys of any row, n_ctx +
 * n_rows - 1. */
size_t rose_attention_scratch(uint32_t max_ctx, uint32_t head_dim);

enum { ROSE_SUM_BLOCK = 256 };

typedef struct rose_cpu_kernels {
    rose_isa isa;
    rose_matmul_fn matmul_f32;
    rose_matmul_fn matmul_bf16;
    rose_matmul_fn matmul_i8; /* x: bf16 values */
    void (*attention)(const rose_attention *a);
    /* Stores one token's k and v (head_dim values each) of one head at slot 0..15 of its page. */
    void (*kv_append)(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                      uint32_t head_dim, bool bf16);
    /* y[0..d) = layernorm(x[0..d)) * w + b, rounded to bf16 if round_bf16. */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, uint32_t d,
                      bool round_bf16, float *y);
    /* Argmax: returns the largest of n values and sets the lowest index at which it occurs; NaN
     * counts as -inf. n >= 1. */
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

#endif
