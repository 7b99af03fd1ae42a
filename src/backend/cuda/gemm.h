/* backend/cuda/gemm.h - GEMMs of weights and rows, and the table of their kernels. Plain C, because
 * C files and CUDA files include it.
 *
 * The rule (docs/NUMERICS.md). A matrix has 1 or 4 parts of k. A part is a chain: groups of 16
 * values of k, ascending, through the tensor cores, from an fp32 accumulator of zero. Which 16
 * values form a group is part of the rule, their order inside it is not. A matrix with one part
 * gives y = p0 + bias. A matrix with four parts is added to the residual stream in this order:
 *     x = (((x + (p0 + bias)) + p1) + p2) + p3        (no bias: x + p0; an empty part is +0)
 * Part i begins at U * (i * (k / U) / 4), in integers; the last part ends at k. U is the head size
 * for the matrix after attention if 16 divides it, else 128 if that divides k, else 16. The rule
 * depends on the shape alone, so every kernel gives the same bits for every number of rows.
 * For fp32 a part is a chain of fused multiply-adds over k.
 *
 * Three families of kernels: `rows` (few rows, mma.sync or small wgmma, any k), `tiles` (mma.sync,
 * sm_80 and later) and `wide` (TMA and wgmma, sm_90a). To add a kernel, add a row to the table in
 * gemm_table.c and a line to its family's file. Names, limits, choice, tuner, benchmarks and tests
 * come from the table.
 *
 * Launchers neither allocate nor synchronise. Only the engine thread calls them. */
#ifndef ROSE_BACKEND_CUDA_GEMM_H
#define ROSE_BACKEND_CUDA_GEMM_H

#include "backend/cuda/kernels.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_GEMM_GROUP = 16, /* values of k in a step of a chain */
    ROSE_GEMM_PARTS = 4,
    /* Most values of the row that a GEMM norms itself. With several rows a norm kernel is faster:
     * it norms them once, and every block of a GEMM would norm all of them (GPT-2, 8 rows: 0.91 of
     * the time of a step; H100). */
    ROSE_GEMM_NORM_K = 4096
};

/* Packed weights. 16-bit types: blocks of 8 outputs x 8 inputs, [n_pad / 8][k_pad / 8][8][8]; fp32:
 * [n_pad][k_pad]. n_pad is a multiple of ROSE_CUDA_N_PAD, k_pad of ROSE_CUDA_K_PAD. Padding is
 * zero. */
typedef struct rose_cuda_matrix {
    void *w;
    float *bias;        /* [n], in the order of the packed outputs; or NULL */
    rose_format format; /* F16, BF16 or F32 */
    uint32_t k, k_pad, n, n_pad;
    uint32_t n_parts;                  /* 1 or ROSE_GEMM_PARTS */
    uint32_t cut[ROSE_GEMM_PARTS + 1]; /* part i is k in cut[i] .. cut[i + 1] - 1; multiples of 16,
                                          but the last, which is k */
    /* Blocks of 8 outputs of gate and of up in turn: output 16 i + j is gate 8 i + j for j < 8,
     * else up 8 i + j - 8. n counts both. The MLP's width is n / 2; 8 must divide it. */
    bool gated;
} rose_cuda_matrix;

/* Fill format .. gated of a matrix. head_dim: of the matrix after attention, else 0. */
void rose_cuda_matrix_shape(rose_cuda_matrix *m, rose_format format, uint32_t k, uint32_t n,
                            uint32_t n_parts, uint32_t head_dim, bool gated);

/* What happens to the sums; gemm_ends.cuh has each once. */
typedef enum rose_gemm_end {
    ROSE_END_ROWS,     /* out[row][n] = y, row-major, T or fp32 */
    ROSE_END_RESIDUAL, /* x[row][n] += y, part by part (the rule above); 4 parts only */
    ROSE_END_ACT,      /* out = act(y), blocked T */
    ROSE_END_GATED,  /* out = act(gate) * up, blocked T, n / 2 values a row; gated matrices only */
    ROSE_END_LOGITS, /* logits[row][n] = soft cap of y; the largest key of the row to key[row] */
    ROSE_N_ENDS
} rose_gemm_end;

/* Input and output of a GEMM. */
typedef struct rose_gemm_io {
    rose_gemm_end end;
    uint32_t rows;
    const void *h; /* T, blocked, [rows][k_pad]; NULL: the kernel norms x itself (norm) */
    /* h NULL: the row is norm(x), rounded to T; to the same bits as rose_cuda_norm_run. Only if
     * rose_gemm_norms says so. */
    rose_cuda_norm_by norm;
    float *x; /* [rows][ld_x]: read by norm, or written by RESIDUAL */
    uint32_t ld_x;
    void *out;          /* ROWS, ACT, GATED */
    uint32_t out_pitch; /* values in a row of out; for blocked ends the k_pad of the next matrix */
    bool out_f32;       /* ROWS: out is fp32 */
    uint32_t act;       /* a rose_act */
    float *logits;      /* [rows][ld_logits] */
    uint32_t ld_logits;
    float softcap; /* 0: none; else logits = cap tanh(y / cap) */
    /* [rows] key of the row's largest logit: the upper half orders logits, the lower half is ~id,
     * so the maximum is the largest logit with the lowest id. Or NULL. */
    unsigned long long *key;
} rose_gemm_io;

typedef enum rose_gemm_family { ROSE_GEMM_ROWS, ROSE_GEMM_TILES, ROSE_GEMM_WIDE } rose_gemm_family;

typedef cudaError_t rose_gemm_fn(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                 const rose_gemm_io *io, const rose_gemm_kernel *g);

/* One kernel. A launch function reads tile and cluster from here, or is compiled for them. */
struct rose_gemm_kernel {
    const char *name; /* "wide-128x192-x2" */
    rose_gemm_family family;
    uint16_t tile_rows, tile_n; /* of a block */
    uint8_t stages;             /* of the ring of copies */
    uint8_t cluster; /* blocks that share a tile's rows or outputs by multicast; 1: none */
    bool across;     /* blocks of a cluster have neighbouring outputs, else neighbouring rows */
    uint8_t split;   /* blocks of a cluster that take parts of k: 1, 2 or 4 */
    uint8_t blocks_per_sm;
    uint8_t share; /* percent of the peak of products that it reaches; the cost model's number */
    bool hopper;   /* only sm_90a */
    bool norms;    /* takes io.norm */
    uint16_t max_rows;                 /* 0: any */
    uint32_t ends;                     /* bits 1 << rose_gemm_end */
    rose_gemm_fn *run[ROSE_N_FORMATS]; /* one for each format of a matrix; NULL: refused */
};

extern const rose_gemm_kernel rose_gemm_kernels[];
extern const uint32_t rose_gemm_n_kernels;

/* Whether the kernel takes the shape on this device with these switches; from its fields alone. */
bool rose_gemm_takes(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                     const rose_cuda_matrix *m, const rose_gemm_io *io);
/* The kernel's estimated time in us; a model from the fields, without a launch. */
double rose_gemm_cost(const rose_gemm_kernel *g, const rose_cuda_launch *at,
                      const rose_cuda_matrix *m, const rose_gemm_io *io);
/* The forced kernel if it takes the shape; else the tuned one; else the cheapest; NULL: none does.
 */
const rose_gemm_kernel *rose_gemm_choose(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                         const rose_gemm_io *io);
const rose_gemm_kernel *rose_gemm_named(const char *name); /* or NULL */
/* Whether a kernel of gemm_rows.cuh can norm the row of this GEMM itself. */
static inline bool rose_gemm_can_norm(const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    /* No model has a norm before a GEMM of several parts. The head has its rows gathered. */
    return m->n_parts == 1 && io->end != ROSE_END_LOGITS && io->rows == 1 && m->k % 8 == 0 &&
           m->k <= ROSE_GEMM_NORM_K;
}

/* Whether a GEMM of this shape norms its row itself (io.h NULL), and should. */
bool rose_gemm_norms(const rose_cuda_launch *at, const rose_cuda_matrix *m, const rose_gemm_io *io);

/* What the tuner (tune.c) measured: the fastest kernel of a shape and a bucket of rows. The lines
 * of one 16-bit format also serve the other one. */
typedef struct rose_gemm_tuning {
    uint32_t n, k, bucket;
    rose_format format; /* of the matrix */
    rose_gemm_end end;
    uint32_t n_parts;
    const rose_gemm_kernel *kernel;
    float us, guess_us;            /* its time, and that of the estimate's choice */
    const rose_gemm_kernel *guess; /* the estimate's choice; NULL in a line from a file */
} rose_gemm_tuning;

struct rose_gemm_tuned {
    uint32_t n_lines;
    rose_gemm_tuning *lines; /* ascending by rose_gemm_tuning_order */
};

/* Compare the shapes of two lines: less than, equal to or greater than 0. */
int rose_gemm_tuning_order(const rose_gemm_tuning *a, const rose_gemm_tuning *b);
/* The bucket of a number of rows: the smallest of 1, 2, 4 ... 512, 2048 and 8192 that is not less;
 * above that 8192. */
uint32_t rose_gemm_bucket(uint32_t rows);
/* The line with the key's shape, or NULL. t may be NULL. */
const rose_gemm_tuning *rose_gemm_tuned_find(const rose_gemm_tuned *t, const rose_gemm_tuning *key);
/* gemm_tuned.c: which of n <= 32 choices make a step faster. A kernel that is faster alone can make
 * a step slower: the kernels before and after it change too (what they hold of an SM, which code is
 * in its cache). `time` gives the us of a step with the choices of a bit mask. All choices are
 * tried together, then without each of them; a choice that changes nothing may stay. *keep is 0
 * unless the step gets at least 1 % faster. Once the time limit is over, `time` gives INFINITY: the
 * choices that were better than none until then stay. Errors: those of `time`. */
typedef rose_status rose_gemm_time(void *by, uint32_t choices, double *us, rose_err *err);
rose_status rose_gemm_keep(uint32_t n, rose_gemm_time *time, void *by, uint32_t *keep,
                           rose_err *err);
/* Add a line, or replace the one of its shape. Errors: NOMEM; FULL: there are too many. */
rose_status rose_gemm_tuned_set(rose_gemm_tuned *t, const rose_gemm_tuning *line);
/* Add the lines of a file for a GPU of this name. Lines that do not fit this version or GPU are
 * ignored with one warning; no file is no error. */
void rose_gemm_tuned_read(rose_gemm_tuned *t, const char *path, const char *gpu);
/* Add those lines of a text for a GPU of this name whose shapes are not there yet. The text holds
 * one file after the other. Returns how many lines of that GPU were ignored. */
uint32_t rose_gemm_tuned_add(rose_gemm_tuned *t, const char *text, const char *gpu);
extern const char rose_gemm_shipped[]; /* tuned.txt: such a text, for GPUs that were measured */
/* Errors: IO, NOMEM, INVAL (path); the file is then as it was. */
rose_status rose_gemm_tuned_write(const rose_gemm_tuned *t, const char *path, const char *gpu,
                                  rose_err *err);
void rose_gemm_tuned_free(rose_gemm_tuned *t);

/* Choose and run. */
cudaError_t rose_gemm_run(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                          const rose_gemm_io *io);
/* Set the shared-memory limits of all kernels on the current device, which is *d. Call before the
 * first GEMM. */
cudaError_t rose_gemm_prepare(const rose_cuda_device *d);
cudaError_t rose_gemm_prepare_rows(const rose_cuda_device *d);
cudaError_t rose_gemm_prepare_tiles(const rose_cuda_device *d);
cudaError_t rose_gemm_prepare_wide(const rose_cuda_device *d);

/* The launch functions of the table, in fp32.cu, gemm_rows_*.cu, gemm_tiles.cu and gemm_wide_*.cu.
 */
rose_gemm_fn rose_gemm_f32_run;
#define ROSE_GEMM_FN(id) rose_gemm_fn rose_gemm_##id##_f16, rose_gemm_##id##_bf16

#ifdef __cplusplus
}
#endif

#endif
