/* backend/cuda/cublaslt.h - cuBLASLt, loaded at run time, only to compare our kernels with it. It
 * computes y = x w for packed row-major operands of 16 bits, with fp32 sums and an optional
 * epilogue. Threads: one at a time. */
#ifndef ROSE_BACKEND_CUDA_CUBLASLT_H
#define ROSE_BACKEND_CUDA_CUBLASLT_H

#include "backend/cuda/kernels.h"
#include "base/status.h"

enum { ROSE_CUBLASLT_CHOICES = 8 }; /* at most this many algorithms to try for one shape */

typedef struct rose_cublaslt rose_cublaslt;

/* path NULL: try the usual names of libcublasLt.so. Errors: UNSUPPORTED: the library is not found
 * or lacks a function; BACKEND: cuBLASLt does not start. */
rose_status rose_cublaslt_open(rose_cublaslt **out, const char *path, rose_err *err);
size_t rose_cublaslt_version(const rose_cublaslt *c);

/* The epilogue: how y [rows][n_out] follows from p = x [rows][n_in] w [n_out][n_in]^T. */
typedef enum rose_cublaslt_end {
    ROSE_CUBLASLT_STORE,     /* y = p, 16 bits */
    ROSE_CUBLASLT_BIAS,      /* y = p + bias, 16 bits */
    ROSE_CUBLASLT_BIAS_GELU, /* y = gelu(p + bias), tanh form, 16 bits */
    ROSE_CUBLASLT_ADD_BIAS,  /* y = y + p + bias, fp32 */
    ROSE_CUBLASLT_ADD,       /* y = y + p, fp32 */
    ROSE_CUBLASLT_STORE_F32, /* y = p, fp32 */
    ROSE_CUBLASLT_N_ENDS
} rose_cublaslt_end;

typedef struct rose_cublaslt_product {
    rose_cuda_type type; /* type of x and w */
    rose_cublaslt_end end;
    uint32_t rows, n_out, n_in;
    /* Device memory [n_out], of y's type, aligned to 16 bytes; read only if `end` has a bias. */
    const void *bias;
} rose_cublaslt_product;

/* Ask for the algorithms that can compute this GEMM: *n of them, the best guess first. Errors:
 * BACKEND: there is none. */
rose_status rose_cublaslt_prepare(rose_cublaslt *c, const rose_cublaslt_product *p, uint32_t *n,
                                  rose_err *err);
/* Enqueue one GEMM with algorithm number `choice` of the last rose_cublaslt_prepare. */
rose_status rose_cublaslt_run(rose_cublaslt *c, uint32_t choice, const void *x, const void *w,
                              void *y, cudaStream_t stream, rose_err *err);
void rose_cublaslt_close(rose_cublaslt *c); /* accepts NULL and half-open */

#endif
