/* bench/cublaslt.c - the few functions of cuBLASLt that a comparison needs. They are
 * declared here as cuBLASLt's documentation describes them and are loaded at run time. The program
 * needs no header of cuBLASLt to build and no library to run. */
#include "bench/kernels_internal.h"

#if ROSE_CUDA

#include <stdlib.h>

#include "base/dl.h"

enum {
    COMPUTE_32F = 68,
    TYPE_32F = 0,
    TYPE_16F = 2,
    TYPE_16BF = 14,
    DESC_TRANSA = 3,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    OP_T = 1,
    EPILOGUE_DEFAULT = 1,
    EPILOGUE_BIAS = 4,
    EPILOGUE_GELU = 32,
    PREF_MAX_WORKSPACE = 1,
    SUCCESS = 0
};

static const size_t g_workspace = (size_t)64 << 20;

static const struct {
    uint32_t epilogue;
    bool f32, add; /* whether y is fp32, and whether the GEMM's result is added to y */
} g_ends[ROSE_CUBLASLT_N_ENDS] = {
    [ROSE_CUBLASLT_STORE] = {EPILOGUE_DEFAULT, false, false},
    [ROSE_CUBLASLT_BIAS] = {EPILOGUE_BIAS, false, false},
    [ROSE_CUBLASLT_BIAS_GELU] = {EPILOGUE_GELU | EPILOGUE_BIAS, false, false},
    [ROSE_CUBLASLT_ADD_BIAS] = {EPILOGUE_BIAS, true, true},
    [ROSE_CUBLASLT_ADD] = {EPILOGUE_DEFAULT, true, true},
    [ROSE_CUBLASLT_STORE_F32] = {EPILOGUE_DEFAULT, true, false},
};

typedef struct algorithm {
    uint64_t data[8];
} algorithm;

typedef struct heuristic {
    algorithm algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

/* Handles are pointers. A status is an int; 0 is success. */
typedef struct functions {
    int (*create)(void **);
    int (*destroy)(void *);
    size_t (*version)(void);
    int (*desc_create)(void **, int, int);
    int (*desc_destroy)(void *);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*pref_create)(void **);
    int (*pref_destroy)(void *);
    int (*pref_set)(void *, int, const void *, size_t);
    int (*choose)(void *, void *, void *, void *, void *, void *, void *, int, heuristic *, int *);
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *,
                  const void *, const void *, void *, void *, void *, const algorithm *, void *,
                  size_t, cudaStream_t);
} functions;

struct rose_cublaslt {
    void *library; /* owned */
    functions f;
    void *handle, *desc, *pref, *layout[3]; /* w, x, y; owned */
    bool add;                               /* the current problem adds to y */
    void *workspace;                        /* device memory, owned */
    heuristic choices[ROSE_CUBLASLT_CHOICES];
};

static rose_status load(rose_cublaslt *c, const char *path, rose_err *err)
{
    static const char *const usual[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    const rose_dl_function table[] = {{"cublasLtCreate", &c->f.create},
                                      {"cublasLtDestroy", &c->f.destroy},
                                      {"cublasLtGetVersion", &c->f.version},
                                      {"cublasLtMatmulDescCreate", &c->f.desc_create},
                                      {"cublasLtMatmulDescDestroy", &c->f.desc_destroy},
                                      {"cublasLtMatmulDescSetAttribute", &c->f.desc_set},
                                      {"cublasLtMatrixLayoutCreate", &c->f.layout_create},
                                      {"cublasLtMatrixLayoutDestroy", &c->f.layout_destroy},
                                      {"cublasLtMatmulPreferenceCreate", &c->f.pref_create},
                                      {"cublasLtMatmulPreferenceDestroy", &c->f.pref_destroy},
                                      {"cublasLtMatmulPreferenceSetAttribute", &c->f.pref_set},
                                      {"cublasLtMatmulAlgoGetHeuristic", &c->f.choose},
                                      {"cublasLtMatmul", &c->f.matmul}};
    const rose_status st = rose_dl_open(&c->library, path != NULL ? &path : usual,
                                        path != NULL ? 1 : sizeof usual / sizeof *usual, table,
                                        sizeof table / sizeof *table, err);
    if (st != ROSE_E_NOTFOUND) return st;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s not found: the benchmark compares our kernels with it (--library PATH)",
                     path != NULL ? path : "libcublasLt.so (.13, .12)");
}

rose_status rose_cublaslt_open(rose_cublaslt **out, const char *path, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_cublaslt *c = calloc(1, sizeof *c);

    *out = NULL;
    if (c == NULL) return rose_fail(err, ROSE_E_NOMEM, "cuBLASLt: out of memory");
    if ((st = load(c, path, err)) != ROSE_OK) goto done;
    if (c->f.create(&c->handle) != SUCCESS || c->f.pref_create(&c->pref) != SUCCESS ||
        c->f.pref_set(c->pref, PREF_MAX_WORKSPACE, &g_workspace, sizeof g_workspace) != SUCCESS ||
        cudaMalloc(&c->workspace, g_workspace) != cudaSuccess) {
        st = rose_fail(err, ROSE_E_BACKEND,
                       "cuBLASLt does not start: its handle or its workspace cannot be created");
        goto done;
    }
    *out = c;
done:
    if (st != ROSE_OK) rose_cublaslt_close(c);
    return st;
}

size_t rose_cublaslt_version(const rose_cublaslt *c)
{
    return c->f.version();
}

static void drop_problem(rose_cublaslt *c)
{
    if (c->desc != NULL) c->f.desc_destroy(c->desc);
    c->desc = NULL;
    for (int i = 0; i < 3; i++) {
        if (c->layout[i] != NULL) c->f.layout_destroy(c->layout[i]);
        c->layout[i] = NULL;
    }
}

static bool set_end(rose_cublaslt *c, const rose_cublaslt_product *p)
{
    const uint32_t epilogue = g_ends[p->end].epilogue;
    if (c->f.desc_set(c->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue) != SUCCESS) return false;
    return (epilogue & EPILOGUE_BIAS) == 0 ||
           c->f.desc_set(c->desc, DESC_BIAS_POINTER, &p->bias, sizeof p->bias) == SUCCESS;
}

/* cuBLASLt's matrices are column-major, so it computes y' = w'^T x': n_out x rows = (n_out x n_in)
 * (n_in x rows). A bias has one value for each row of y'. Its type is that of y'. */
rose_status rose_cublaslt_prepare(rose_cublaslt *c, const rose_cublaslt_product *p, uint32_t *n,
                                  rose_err *err)
{
    const int element = p->type == ROSE_F16 ? TYPE_16F : TYPE_16BF, transposed = OP_T;
    const int y = g_ends[p->end].f32 ? TYPE_32F : element;
    int found = 0;

    *n = 0;
    drop_problem(c);
    c->add = g_ends[p->end].add;
    if (c->f.desc_create(&c->desc, COMPUTE_32F, TYPE_32F) != SUCCESS ||
        c->f.desc_set(c->desc, DESC_TRANSA, &transposed, sizeof transposed) != SUCCESS ||
        !set_end(c, p) ||
        c->f.layout_create(&c->layout[0], element, p->n_in, p->n_out, p->n_in) != SUCCESS ||
        c->f.layout_create(&c->layout[1], element, p->n_in, p->rows, p->n_in) != SUCCESS ||
        c->f.layout_create(&c->layout[2], y, p->n_out, p->rows, p->n_out) != SUCCESS ||
        c->f.choose(c->handle, c->desc, c->layout[0], c->layout[1], c->layout[2], c->layout[2],
                    c->pref, ROSE_CUBLASLT_CHOICES, c->choices, &found) != SUCCESS ||
        found == 0)
        return rose_fail(err, ROSE_E_BACKEND,
                         "cuBLASLt has no algorithm for %u rows, %u outputs, %u inputs", p->rows,
                         p->n_out, p->n_in);
    *n = (uint32_t)found;
    return ROSE_OK;
}

rose_status rose_cublaslt_run(rose_cublaslt *c, uint32_t choice, const void *x, const void *w,
                              void *y, cudaStream_t stream, rose_err *err)
{
    const float one = 1, beta = c->add ? 1 : 0;
    int st = c->f.matmul(c->handle, c->desc, &one, w, c->layout[0], x, c->layout[1], &beta, y,
                         c->layout[2], y, c->layout[2], &c->choices[choice].algo, c->workspace,
                         g_workspace, stream);
    return st == SUCCESS
               ? ROSE_OK
               : rose_fail(err, ROSE_E_BACKEND, "cuBLASLt: a GEMM failed with status %d", st);
}

void rose_cublaslt_close(rose_cublaslt *c)
{
    if (c == NULL) return;
    drop_problem(c);
    if (c->pref != NULL) c->f.pref_destroy(c->pref);
    if (c->handle != NULL) c->f.destroy(c->handle);
    cudaFree(c->workspace);
    rose_dl_close(c->library);
    free(c);
}

#endif
