/* backend/cuda/cudnn_internal.h - what cudnn.c and cudnn_graph.c share: the library, a plan, and
 * the making of descriptors. For those two alone: the names are short. */
#ifndef ROSE_BACKEND_CUDA_CUDNN_INTERNAL_H
#define ROSE_BACKEND_CUDA_CUDNN_INTERNAL_H

#include "backend/cuda/cudnn.h"
#include "backend/cuda/cudnn_api.h"

struct rose_cudnn {
    void *library; /* owned */
    rose_cudnn_functions f;
    void *handle; /* owned; NULL: a GPU that is not here */
    void *device; /* a descriptor, owned; NULL: the current GPU */
};

enum { MAX_DESCRIPTORS = 128, MAX_CONFIGS = 8, MAX_OPERATIONS = 32 };

struct rose_cudnn_plan {
    rose_cudnn *c; /* borrowed */
    rose_cudnn_problem problem;
    void *all[MAX_DESCRIPTORS]; /* owned: what the plan was made from, in order */
    uint32_t n;
    void *execution; /* one of them */
    void **bound;    /* [n_bound] owned, each of them too */
    uint32_t n_bound;
    int64_t engine, workspace;
};

/* The text of a status that is not SUCCESS. Its own may have lines: one, up to 2 KB of it to the
 * log and what fits to err. Returns UNSUPPORTED or BACKEND. */
rose_status rose_cudnn_failed(const rose_cudnn *c, int status, const char *what, int which,
                              rose_err *err);

enum { /* ids; those of virtual tensors come behind */
       ID_Q = 1,
       ID_K,
       ID_V,
       ID_O,
       ID_Q_LEN,
       ID_KV_LEN,
       ID_Q_AT,
       ID_K_AT,
       ID_V_AT,
       ID_O_AT,
       ID_SCALE,
       ID_BEYOND, /* -inf of padding */
       ID_ABOVE,  /* and of the diagonal */
       N_IDS = ID_ABOVE,
       ID_VIRTUAL = 100
};

/* ---- descriptors ---- */

/* The making of a plan; after its first failure the rest does nothing. */
typedef struct builder {
    rose_cudnn_plan *p;
    const char *what; /* what is being made */
    rose_status st;
    rose_err *err;
    int64_t next_id; /* of virtual tensors */
    void *operations[MAX_OPERATIONS];
    uint32_t n_operations;
} builder;

static inline bool check(builder *b, int status, int which)
{
    if (b->st == ROSE_OK && status != SUCCESS)
        b->st = rose_cudnn_failed(b->p->c, status, b->what, which, b->err);
    return b->st == ROSE_OK;
}

static inline void *make(builder *b, int kind)
{
    void *d = NULL;
    if (b->st == ROSE_OK && b->p->n == MAX_DESCRIPTORS)
        b->st = rose_fail(b->err, ROSE_E_INTERNAL, "cuDNN: %s: MAX_DESCRIPTORS", b->what);
    if (b->st != ROSE_OK || !check(b, b->p->c->f.make(kind, &d), kind)) return NULL;
    b->p->all[b->p->n++] = d;
    return d;
}

static inline void set(builder *b, void *d, int attribute, int type, int64_t n, const void *values)
{
    if (b->st == ROSE_OK) check(b, b->p->c->f.set(d, attribute, type, n, values), attribute);
}

static inline void set_type(builder *b, void *d, int attribute, int type)
{
    set(b, d, attribute, IS_TYPE, 1, &type);
}

static inline void set_part(builder *b, void *d, int attribute, void *part)
{
    if (part != NULL) set(b, d, attribute, IS_DESCRIPTOR, 1, &part);
}

static inline void *finish(builder *b, void *d)
{
    return b->st == ROSE_OK && check(b, b->p->c->f.finalize(d), -1) ? d : NULL;
}

/* ---- cudnn_graph.c ---- */

/* Attention of b->p->problem on operands ID_Q .. ID_ABOVE, finished; NULL: b->st says why. */
void *rose_cudnn_graph(builder *b);

#endif
