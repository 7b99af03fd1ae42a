/* backend/cuda/cublaslt.h - cuBLASLt, loaded at run time and only to be compared with: y = x w for
 * packed row-major operands of 16 bits, sums in fp32. Threads: one at a time. */
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
/* The algorithms for y [rows][n_out] = x [rows][n_in] w[n_out][n_in]^T; *n of them, best guess
 * first. */
rose_status rose_cublaslt_prepare(rose_cublaslt *c, rose_cuda_type type, uint32_t rows,
                                  uint32_t n_out, uint32_t n_in, uint32_t *n, rose_err *err);
/* Enqueues one product by algorithm `choice` of the last prepare. */
rose_status rose_cublaslt_run(rose_cublaslt *c, uint32_t choice, const void *x, const void *w,
                              void *y, cudaStream_t stream, rose_err *err);
void rose_cublaslt_close(rose_cublaslt *c); /* NULL, half-open: fine */

#endif
