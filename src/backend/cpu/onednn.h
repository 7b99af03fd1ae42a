/* backend/cpu/onednn.h - the GEMM of oneDNN 2.x, loaded at run time, for `roseinfer bench kernels`
 * alone: nothing that serves uses it. It needs oneDNN's header when this program is built (Debian:
 * libdnnl-dev) and its library when the program runs (libdnnl2).
 *
 * It computes y[rows][n_out] = x[rows][n_in] w[n_in][n_out] in bf16 or fp32, with weights in the
 * layout that oneDNN prefers. OpenMP owns its threads.  Threads: one call at a time. */
#ifndef ROSE_BACKEND_CPU_ONEDNN_H
#define ROSE_BACKEND_CPU_ONEDNN_H

#include "backend/kernel_bench.h"

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

#endif
