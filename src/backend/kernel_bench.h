/* backend/kernel_bench.h - times of a device's matrix products beside those of its vendor's
 * library, for `roseinfer bench kernels`. Not part of the step interface.
 *
 * A measurement is y = x w for rows x n_in by n_in x n_out. Both sides work on the same x and on
 * several matrices w in turn, as a model's layers do, so that no w is in a cache; the sides run
 * alternately. Ours ends in the epilogue that the engine uses there (bias, and what follows); the
 * library's stores y in the storage type and nothing else. Where it can do (nearly) what ours does,
 * that is timed, too.  Threads: one at a time. */
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
    uint32_t n_out, n_in; /* multiples of 64; QKV: n_out = 3 n_in, heads of 64 */
    uint32_t rows;
} rose_kernel_shape;

/* Medians over the repeats, microseconds a product. */
typedef struct rose_kernel_times {
    double own_us, library_us;
    double library_same_us;   /* the library at (nearly) our work; 0: it cannot */
    const char *library_same; /* what it does to y then, of static lifetime; NULL: it cannot */
} rose_kernel_times;

typedef struct rose_kernel_opts {
    rose_compute dtype;
    const char *library; /* a path, or NULL for the usual names */
    const char *kernel;  /* CUDA: ours by name (rose_cuda_linear_name); NULL: the engine's choice. A
                            kernel that does not take a shape gives way to `tiles` */
    const rose_kernel_shape *largest; /* [n_largest] CUDA: room for such products */
    uint32_t n_largest;
    uint32_t rest_ms;   /* idle time before each timed run (CPU: before the pass that wakes it) */
    const char *isa;    /* CPU, as in rose_backend_opts */
    uint32_t n_threads; /* CPU; 0 = all */
} rose_kernel_opts;

typedef struct rose_kernel_bench_ops {
    const char *library; /* "cuBLASLt", "oneDNN" */
    bool same;           /* it is timed at our work, too */
    /* Errors: UNSUPPORTED (no such device, kernel, the dtype, or the library is absent: says which
     * names were tried), NOMEM, BACKEND; *out is NULL then. */
    rose_status (*open)(rose_kernel_bench **out, const rose_kernel_opts *o, rose_err *err);
    /* Device and version of the library, of the object's lifetime. */
    const char *(*about)(const rose_kernel_bench *b);
    /* repeats: 1 .. 1000. */
    rose_status (*run)(rose_kernel_bench *b, const rose_kernel_shape *s, uint32_t repeats,
                       rose_kernel_times *out, rose_err *err);
    void (*close)(rose_kernel_bench *b); /* NULL: nothing */
} rose_kernel_bench_ops;

/* Errors: UNSUPPORTED: built without the device or the library's header. */
rose_status rose_kernel_bench_cpu(const rose_kernel_bench_ops **out, rose_err *err);
rose_status rose_kernel_bench_cuda(const rose_kernel_bench_ops **out, rose_err *err);

#endif
