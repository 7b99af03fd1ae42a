/* backend/kernel_bench.h - times of a device's matrix products beside those of its vendor's
 * library, for `roseinfer bench kernels`. Not part of the step interface.
 *
 * A measurement is y = x w for rows x n_in by n_in x n_out in the storage type. Both sides work on
 * the same x and the same twelve matrices w, taken in turn as a model's layers are, so that no w
 * is in a cache; each side's launches are one graph; the two graphs run alternately. Ours ends in
 * the epilogue that the engine uses there (bias, and what follows); the library's stores y in the
 * storage type and nothing else.  Threads: one at a time. */
#ifndef ROSE_BACKEND_KERNEL_BENCH_H
#define ROSE_BACKEND_KERNEL_BENCH_H

#include "backend/backend.h"

typedef struct rose_kernel_bench rose_kernel_bench;

/* What the product stands for; it decides the epilogue. */
typedef enum rose_kernel_role {
    ROSE_KERNEL_QKV,
    ROSE_KERNEL_RESIDUAL,
    ROSE_KERNEL_ACT,
    ROSE_KERNEL_HEAD
} rose_kernel_role;

typedef struct rose_kernel_shape {
    rose_kernel_role role;
    uint32_t n_out, n_in; /* multiples of 128 and of 64; QKV: n_out = 3 n_in, heads of 64 */
    uint32_t rows;
} rose_kernel_shape;

/* Medians over the repeats, microseconds a product. */
typedef struct rose_kernel_times {
    double own_us, library_us;
} rose_kernel_times;

/* Room for shapes of up to max_rows rows and the given sizes. library: a path or NULL for the
 * usual names. Errors: UNSUPPORTED (no GPU, fp32, or the library is absent: says which names were
 * tried), NOMEM, BACKEND; *out is NULL then. */
rose_status rose_kernel_bench_open(rose_kernel_bench **out, rose_compute dtype,
                                   const rose_kernel_shape *largest, uint32_t n_largest,
                                   const char *library, rose_err *err);
/* GPU and version of the library, of the object's lifetime. */
const char *rose_kernel_bench_about(const rose_kernel_bench *b);
rose_status rose_kernel_bench_run(rose_kernel_bench *b, const rose_kernel_shape *s,
                                  uint32_t repeats, rose_kernel_times *out, rose_err *err);
void rose_kernel_bench_close(rose_kernel_bench *b); /* NULL: nothing */

#endif
