/* backend/cuda/cudnn.h - cuDNN, loaded at run time: causal attention of sequences of several
 * lengths, the last row of each seeing all of its context. q, k, v and o are rows of n_heads *
 * head_dim values of 16 bits; a sequence begins at any row of each. Plans are made ahead; running
 * one takes no memory of ours. Threads: one at a time. */
#ifndef ROSE_BACKEND_CUDA_CUDNN_H
#define ROSE_BACKEND_CUDA_CUDNN_H

#include "backend/cuda/kernels.h"
#include "base/status.h"

enum {
    ROSE_CUDNN_OLDEST = 91500, /* 9.15: 9.15.1 is the oldest that took the graph; 9.12 did not */
    ROSE_CUDNN_WORKSPACE = 16 << 20 /* most that a plan may take, in bytes */
};

typedef struct rose_cudnn rose_cudnn;
typedef struct rose_cudnn_plan rose_cudnn_plan;

/* path NULL: libcudnn.so.9 by its usual names. device NULL: the current GPU; else one that is not
 * here, in cuDNN's own JSON (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION): its plans are made and
 * not run. Errors: UNSUPPORTED (not found, too old, lacks a function), BACKEND (does not start). */
rose_status rose_cudnn_open(rose_cudnn **out, const char *path, const char *device, rose_err *err);
size_t rose_cudnn_version(const rose_cudnn *c); /* 10000 major + 100 minor + patch */
/* Where everything that follows runs. */
rose_status rose_cudnn_stream(rose_cudnn *c, cudaStream_t stream, rose_err *err);
void rose_cudnn_close(rose_cudnn *c); /* NULL, half-open: fine; behind the last of its plans */

typedef struct rose_cudnn_problem {
    rose_cuda_type type; /* F16 or BF16 */
    uint32_t n_heads, head_dim;
    uint32_t n_seqs;          /* sequences of a run, at most; the rest have both lengths 0 */
    uint32_t q_rows, kv_rows; /* of one sequence, at most */
} rose_cudnn_problem;

/* Whether it has an engine for it: milliseconds, where a plan's kernel is compiled for a second.
 * Errors: UNSUPPORTED, BACKEND; the text has cuDNN's own. */
rose_status rose_cudnn_supports(rose_cudnn *c, const rose_cudnn_problem *p, rose_err *err);
/* Errors: likewise. */
rose_status rose_cudnn_plan_make(rose_cudnn_plan **out, rose_cudnn *c, const rose_cudnn_problem *p,
                                 rose_err *err);
uint64_t rose_cudnn_plan_workspace(const rose_cudnn_plan *p); /* <= ROSE_CUDNN_WORKSPACE */
int64_t rose_cudnn_plan_engine(const rose_cudnn_plan *p);     /* as cuDNN counts them */
void rose_cudnn_plan_drop(rose_cudnn_plan *p);                /* NULL: fine */

/* What a plan works on: device memory, and one number of the host's. All stay where they are. */
typedef struct rose_cudnn_operands {
    const void *q, *k, *v; /* T, aligned to 16 bytes */
    void *o;
    /* [n_seqs] rows; q_len <= kv_len. (Rows without a context are NaN before 9.25; sequences with
     * neither are how TransformerEngine and JAX fill up a batch.) What lies behind a context is
     * weighed with zeros: it must be finite. */
    const int32_t *q_len, *kv_len;
    /* [n_seqs + 1] values in front of each sequence's first row in q and o, in k and v; and of the
     * end */
    const int32_t *q_at, *kv_at;
    void *workspace;
    const float *scale; /* host: of the scores */
} rose_cudnn_operands;

/* The plan keeps it under the next number from 0 on. Errors: BACKEND, NOMEM. */
rose_status rose_cudnn_plan_bind(rose_cudnn_plan *p, const rose_cudnn_operands *a, rose_err *err);
/* Enqueues it on what binding `bound` gave. */
rose_status rose_cudnn_plan_run(rose_cudnn_plan *p, uint32_t bound, rose_err *err);

#endif
