/* backend/cpu/onednn.h - the matrix product of oneDNN, loaded at run time, for `roseinfer bench
 * kernels` alone: nothing that serves uses it. Built where Debian's libdnnl-dev (2.x) has its
 * header.
 *
 * y[m][n] = x[m][k] w[k][n], bf16 or fp32 in and out, weights in the layout that oneDNN asks for.
 * Its threads are OpenMP's: OMP_NUM_THREADS must be set before open.  Threads: one at a time. */
#ifndef ROSE_BACKEND_CPU_ONEDNN_H
#define ROSE_BACKEND_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_onednn rose_onednn;
typedef struct rose_onednn_product rose_onednn_product;

enum { ROSE_ONEDNN_WAYS = 2 }; /* its matmul and its inner product: the caller times both */

/* path: the library, or NULL for libdnnl.so.2. Errors: UNSUPPORTED (absent, or another version),
 * BACKEND, NOMEM. */
rose_status rose_onednn_open(rose_onednn **out, const char *path, rose_err *err);
void rose_onednn_close(rose_onednn *o); /* accepts NULL */
const char *rose_onednn_version(const rose_onednn *o);

/* way: 0 .. ROSE_ONEDNN_WAYS - 1. Errors: UNSUPPORTED (it has no such product here: version 2
 * multiplies bf16 from AVX-512 on, where ONEDNN_MAX_CPU_ISA lets it), BACKEND (oneDNN refused, with
 * its code), NOMEM. */
rose_status rose_onednn_product_create(rose_onednn_product **out, rose_onednn *o, int way,
                                       bool bf16, uint32_t m, uint32_t n, uint32_t k,
                                       rose_err *err);
void rose_onednn_product_destroy(rose_onednn_product *p);           /* accepts NULL */
const char *rose_onednn_product_name(const rose_onednn_product *p); /* of the implementation */

/* Bytes of a packed w; 64-byte aligned memory of the caller's. */
size_t rose_onednn_weight_bytes(const rose_onednn_product *p);
rose_status rose_onednn_pack(rose_onednn_product *p, const void *plain, void *packed,
                             rose_err *err);

rose_status rose_onednn_run(rose_onednn_product *p, const void *x, const void *packed, void *y,
                            rose_err *err);

#endif
