/* bench/kernels_internal.h - runs a device's GEMMs, ours and the vendor library's, one at a time.
 * `roseinfer bench kernels` (kernels.c) uses it and repeats the runs; kernels_cpu.c and
 * kernels_cuda.c are the devices.
 *
 * A run is y = x w for rows x n_in by n_in x n_out. Both sides use the same x. They use several
 * matrices w in turn, as the layers of a model do, so that no w is in a cache. Our side ends
 * with the epilogue that the engine uses there (the bias and the operations after it). The
 * library stores y in the storage type and does nothing else. If the library has our epilogue,
 * or nearly, a third side runs it. Threads: one at a time. */
#ifndef ROSE_BENCH_KERNELS_INTERNAL_H
#define ROSE_BENCH_KERNELS_INTERNAL_H

#include "backend/backend.h"
#include "backend/parts.h"

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

/* A device that is open. */
typedef struct rose_kernel_bench rose_kernel_bench;
struct rose_kernel_bench {
    const char *library; /* "cuBLASLt", "oneDNN" */
    bool same;           /* some shapes have the third side */
    char about[200];     /* names the device and the version of the library */
    rose_err missing;    /* empty if the library is there; else why not and how to get it */
    /* Prepares a shape to be timed; the previous shape is dropped. */
    rose_status (*prepare)(rose_kernel_bench *b, const rose_kernel_shape *s, rose_kernel_sides *out,
                           rose_err *err);
    /* Runs one side that the shape has, once, after the rest. *us: microseconds for one GEMM. */
    rose_status (*time)(rose_kernel_bench *b, rose_kernel_side side, double *us, rose_err *err);
    void (*close)(rose_kernel_bench *b);
};

/* Errors: UNSUPPORTED (no such device, kernel or dtype; or the library that o->library names, or
 * cuBLASLt, cannot be used), NOMEM, BACKEND; then *out is NULL. */
rose_status rose_kernel_bench_cpu(rose_kernel_bench **out, const rose_kernel_opts *o,
                                  rose_err *err);
rose_status rose_kernel_bench_cuda(rose_kernel_bench **out, const rose_kernel_opts *o,
                                   rose_err *err);

/* Zeroed memory of whole cache lines, for free(). NULL: out of memory. */
void *rose_kernel_take(size_t bytes);

/* onednn.c - the GEMM of oneDNN 2.x, loaded at run time. It needs oneDNN's header when this program
 * is built (Debian: libdnnl-dev) and its library when the program runs (libdnnl2).
 *
 * It computes y[rows][n_out] = x[rows][n_in] w[n_in][n_out] in bf16 or fp32, with weights in the
 * layout that oneDNN prefers. OpenMP owns its threads.  Threads: one call at a time. */
typedef struct rose_onednn rose_onednn;

typedef struct rose_onednn_opts {
    const char *path; /* of the library; NULL: libdnnl.so.2 */
    bool bf16;        /* else fp32; without a bf16 GEMM (version 2 on a CPU without AVX-512) oneDNN
                         multiplies in fp32, and `about` says so */
    uint32_t n_threads; /* each pinned to one of cpus, in turn */
    const int *cpus;    /* [n_cpus] */
    uint32_t n_cpus;    /* 0: threads are not pinned */
} rose_onednn_opts;

/* An opened library, with its functions. A build without oneDNN's header has only
 * rose_onednn_open, which refuses. */
struct rose_onednn {
    char about[96]; /* version and type */
    /* Packs n_copies of w and times oneDNN's two ways (its matmul and its inner product) once
     * each; the faster is kept. w: fp32 [n_in][n_out]; x: fp32 [rows][n_in]. */
    rose_status (*prepare)(rose_onednn *o, const rose_kernel_shape *s, const float *w,
                           const float *x, uint32_t n_copies, rose_err *err);
    /* Runs one GEMM with each copy of w, in turn. */
    rose_status (*pass)(rose_onednn *o, rose_err *err);
    void (*close)(rose_onednn *o);
};

/* Errors of rose_onednn_open: UNSUPPORTED (built without the header, the library is absent or of
 * another version), INVAL, NOMEM, BACKEND. */
rose_status rose_onednn_open(rose_onednn **out, const rose_onednn_opts *opts, rose_err *err);

#if ROSE_CUDA
/* cublaslt.c - cuBLASLt, loaded at run time. It computes y = x w for packed row-major operands of
 * 16 bits, with fp32 sums and an optional epilogue. Threads: one at a time. */
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
    rose_format type; /* type of x and w */
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

#endif
