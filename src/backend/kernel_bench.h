/* backend/kernel_bench.h - the GEMMs of a device, ours and those of the vendor's library, one run
 * at a time, for `roseinfer bench kernels`, which repeats the runs. Not part of the step interface.
 *
 * A run is y = x w for rows x n_in by n_in x n_out. Both sides use the same x and several matrices
 * w in turn, as the layers of a model do, so that no w is in a cache. Our side ends in the epilogue
 * that the engine uses there (the bias and what follows). The library stores y in the storage type
 * and does nothing else. Where the library can do our epilogue, or nearly, that is a third side.
 * Threads: one at a time. */
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

/* What is timed. */
typedef enum rose_kernel_side {
    ROSE_KERNEL_OWN,
    ROSE_KERNEL_LIBRARY,
    ROSE_KERNEL_LIBRARY_SAME, /* the library with our epilogue, or nearly */
    ROSE_KERNEL_SIDES
} rose_kernel_side;

typedef struct rose_kernel_sides {
    bool has[ROSE_KERNEL_SIDES]; /* ours always */
    const char *same;            /* what the library does to y as the third side; static lifetime */
} rose_kernel_sides;

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
    bool same;           /* some shapes have the third side */
    /* Errors: UNSUPPORTED (no such device, kernel or dtype; or the library that o->library names,
     * or cuBLASLt, cannot be used), NOMEM, BACKEND; *out is NULL then. */
    rose_status (*open)(rose_kernel_bench **out, const rose_kernel_opts *o, rose_err *err);
    /* The device and the version of the library. Lives as long as b. */
    const char *(*about)(const rose_kernel_bench *b);
    /* NULL if the library is there; else why not, and how to get it. Lives as long as b. */
    const char *(*missing)(const rose_kernel_bench *b);
    /* Makes a shape ready to be timed; the one before it goes. */
    rose_status (*prepare)(rose_kernel_bench *b, const rose_kernel_shape *s, rose_kernel_sides *out,
                           rose_err *err);
    /* One run of one side that the shape has, after the rest: microseconds a product. */
    rose_status (*time)(rose_kernel_bench *b, rose_kernel_side side, double *us, rose_err *err);
    void (*close)(rose_kernel_bench *b); /* accepts NULL */
} rose_kernel_bench_ops;

/* Errors: UNSUPPORTED (built without the device). */
rose_status rose_kernel_bench_cpu(const rose_kernel_bench_ops **out, rose_err *err);
rose_status rose_kernel_bench_cuda(const rose_kernel_bench_ops **out, rose_err *err);

#endif
