/* backend/kernel_bench.h - runs a device's GEMMs, ours and the vendor library's, one at a time.
 * `roseinfer bench kernels` uses it and repeats the runs. Not part of the step interface.
 *
 * A run is y = x w for rows x n_in by n_in x n_out. Both sides use the same x. They use several
 * matrices w in turn, as the layers of a model do, so that no w is in a cache. Our side ends
 * with the epilogue that the engine uses there (the bias and the operations after it). The
 * library stores y in the storage type and does nothing else. If the library has our epilogue,
 * or nearly, a third side runs it. Threads: one at a time. */
#ifndef ROSE_BACKEND_KERNEL_BENCH_H
#define ROSE_BACKEND_KERNEL_BENCH_H

#include "backend/backend.h"

typedef struct rose_kernel_bench rose_kernel_bench;

/* The place of the GEMM in the model, which decides the epilogue. */
typedef enum rose_kernel_role {
    ROSE_KERNEL_QKV,
    ROSE_KERNEL_RESIDUAL,
    ROSE_KERNEL_ACT,
    ROSE_KERNEL_HEAD
} rose_kernel_role;

typedef struct rose_kernel_shape {
    rose_kernel_role role;
    uint32_t n_out, n_in; /* sizes, multiples of 64 */
    uint32_t rows;
    bool gated; /* ACT: n_out counts gate and up, whose product is y */
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
    const char *same;            /* what the library does to y on the third side; static lifetime */
} rose_kernel_sides;

typedef struct rose_kernel_opts {
    rose_compute dtype;
    const char *library; /* a path, or NULL for the usual names */
    const char *kernel;  /* CUDA: our kernel by name (backend/cuda/gemm.h); NULL: the engine's
                            choice, which also runs the shapes that this kernel does not take */
    const rose_kernel_shape *largest; /* [n_largest] CUDA: room for such products */
    uint32_t n_largest;
    uint32_t rest_ms;   /* idle time before each timed run (CPU: before the pass that wakes it) */
    const char *isa;    /* CPU, as in rose_backend_opts */
    uint32_t n_threads; /* CPU; 0 = all */
} rose_kernel_opts;

typedef struct rose_kernel_bench_ops {
    const char *library; /* "cuBLASLt", "oneDNN" */
    bool same;           /* some shapes have the third side */
    /* Errors: UNSUPPORTED (no such device, kernel or dtype; or the library that o->library
     * names, or cuBLASLt, cannot be used), NOMEM, BACKEND; then *out is NULL. */
    rose_status (*open)(rose_kernel_bench **out, const rose_kernel_opts *o, rose_err *err);
    /* Names the device and the version of the library. Lives as long as b. */
    const char *(*about)(const rose_kernel_bench *b);
    /* NULL if the library is there; otherwise why it is missing and how to get it. Lives as long
     * as b. */
    const char *(*missing)(const rose_kernel_bench *b);
    /* Prepares a shape to be timed; the previous shape is dropped. */
    rose_status (*prepare)(rose_kernel_bench *b, const rose_kernel_shape *s, rose_kernel_sides *out,
                           rose_err *err);
    /* Runs one side that the shape has, once, after the rest. *us: microseconds for one GEMM. */
    rose_status (*time)(rose_kernel_bench *b, rose_kernel_side side, double *us, rose_err *err);
    void (*close)(rose_kernel_bench *b); /* accepts NULL */
} rose_kernel_bench_ops;

/* Errors: UNSUPPORTED (built without the device). */
rose_status rose_kernel_bench_cpu(const rose_kernel_bench_ops **out, rose_err *err);
rose_status rose_kernel_bench_cuda(const rose_kernel_bench_ops **out, rose_err *err);

#endif
