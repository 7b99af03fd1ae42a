/* backend/cuda/cublaslt.h - cuBLASLt, loaded at run time and only to be compared with: y = x w for
 * packed row-major operands of 16 bits, sums in fp32, and what it can do to y before it stores it.
 * Threads: one at a time. */
#ifndef ROSE_BACKEND_CUDA_CUBLASLT_H
#define ROSE_BACKEND_CUDA_CUBLASLT_H

#include "backend/cuda/kernels.h"
#include "base/status.h"

enum { ROSE_CUBLASLT_CHOICES = 8 }; /* algorithms asked for */

typedef struct rose_cublaslt rose_cublaslt;

/* path NULL: libcublasLt.so by its usual names. Errors: UNSUPPORTED (not found; lacks a function),
 * BACKEND. */
rose_status rose_cublaslt_open(rose_cublaslt **out, const char *path, rose_err *err);
size_t rose_cublaslt_version(const rose_cublaslt *c);

/* What y [rows][n_out] becomes of p = x [rows][n_in] w [n_out][n_in]^T. */
typedef enum rose_cublaslt_end {
    ROSE_CUBLASLT_STORE,     /* p, of 16 bits, as the next three */
    ROSE_CUBLASLT_BIAS,      /* p + bias */
    ROSE_CUBLASLT_BIAS_GELU, /* gelu(p + bias), by tanh */
    ROSE_CUBLASLT_ADD_BIAS,  /* y + p + bias, fp32, as the next two */
    ROSE_CUBLASLT_ADD,       /* y + p */
    ROSE_CUBLASLT_STORE_F32, /* p */
    ROSE_CUBLASLT_N_ENDS
} rose_cublaslt_end;

typedef struct rose_cublaslt_product {
    rose_cuda_type type; /* of x and w */
    rose_cublaslt_end end;
    uint32_t rows, n_out, n_in;
    const void *bias; /* device, [n_out], of y's type, aligned to 16 bytes; where `end` has one */
} rose_cublaslt_product;

/* Its algorithms; *n of them, best guess first. Errors: BACKEND (it has none). */
rose_status rose_cublaslt_prepare(rose_cublaslt *c, const rose_cublaslt_product *p, uint32_t *n,
                                  rose_err *err);
/* Enqueues one product by algorithm `choice` of the last prepare. */
rose_status rose_cublaslt_run(rose_cublaslt *c, uint32_t choice, const void *x, const void *w,
                              void *y, cudaStream_t stream, rose_err *err);
void rose_cublaslt_close(rose_cublaslt *c); /* NULL, half-open: fine */

#endif
