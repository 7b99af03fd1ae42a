/* backend/cuda/cudnn.c - the few functions of cuDNN's graph interface that attention needs,
 * declared here as its documentation has them, found by dlopen: no header of it is needed to build
 * and no library to run.
 *
 * The graph is the one that cuDNN's engines for attention know, operation by operation (cuDNN's
 * manual, "fused flash attention fprop"; the order and types are those of NVIDIA's cudnn-frontend,
 * CompositeSDPANode): scores, times a scale, -inf beyond a sequence's rows and keys, -inf above the
 * diagonal that ends in its last row and key, softmax, times v. Newer versions have single
 * operations for parts of it; this one is known to every version from ROSE_CUDNN_OLDEST on. */
#include "backend/cuda/cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cudnn_api.h"
#include "base/log.h"

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

/* ---- errors ---- */

/* Its own text may have lines: one, up to 2 KB of it to the log and what fits to err. */
static rose_status failed(const rose_cudnn *c, int status, const char *what, int which,
                          rose_err *err)
{
    static const char *const none = "no text";
    char text[2048] = "";
    const size_t v = c->f.version();

    c->f.last_error(text, sizeof text);
    text[sizeof text - 1] = '\0';
    for (char *p = text; *p != '\0'; p++)
        if (*p == '\n') *p = ' ';
    rose_log(ROSE_LOG_DEBUG, "cudnn", "%s (%d): %s (%d): %s", what, which, c->f.status_name(status),
             status, text[0] != '\0' ? text : none);
    return rose_fail(err,
                     status >= NOT_SUPPORTED && status < NOT_SUPPORTED_END ? ROSE_E_UNSUPPORTED
                                                                           : ROSE_E_BACKEND,
                     "cuDNN %zu.%zu.%zu: %s (%d): %s (%d): %s", v / 10000, v / 100 % 100, v % 100,
                     what, which, c->f.status_name(status), status, text[0] != '\0' ? text : none);
}

/* ---- the library ---- */

static rose_status find_functions(rose_cudnn *c, rose_err *err)
{
    static const char *const names[] = {"GetVersion",
                                        "GetErrorString",
                                        "GetLastErrorString",
                                        "Create",
                                        "Destroy",
                                        "SetStream",
                                        "BackendCreateDescriptor",
                                        "BackendDestroyDescriptor",
                                        "BackendFinalize",
                                        "BackendSetAttribute",
                                        "BackendGetAttribute",
                                        "BackendExecute"};
    enum { N = sizeof names / sizeof *names };
    void *found[N];
    _Static_assert(sizeof found == sizeof c->f, "one name a function");
    for (int i = 0; i < N; i++) {
        char name[64] = "cudnn";
        strcat(name, names[i]);
        if ((found[i] = dlsym(c->library, name)) == NULL)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "cuDNN lacks %s: version 9.15 or later is needed", name);
    }
    memcpy(&c->f, found, sizeof found);
    return ROSE_OK;
}

/* It stays loaded: it has threads and handlers of its own, and none of them likes to go. */
static rose_status load(rose_cudnn *c, const char *path, rose_err *err)
{
    static const char *const usual[] = {"libcudnn.so.9", "libcudnn.so",
                                        "/usr/local/cuda/lib64/libcudnn.so.9",
                                        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9"};
    const int how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    char why[256] = "";

    if (path != NULL && path[0] == '\0') path = NULL;
    if (path != NULL && (c->library = dlopen(path, how)) == NULL) {
        const char *text = dlerror();
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "cuDNN: %s: --cudnn-library wants the path of libcudnn.so.9",
                         text != NULL ? text : path);
    }
    for (size_t i = 0; c->library == NULL && i < sizeof usual / sizeof *usual; i++) {
        const char *text;
        c->library = dlopen(usual[i], how);
        if (c->library == NULL && i == 0 && (text = dlerror()) != NULL)
            strncpy(why, text, sizeof why - 1);
    }
    if (c->library == NULL)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "libcudnn.so.9 not found (%s): install cuDNN 9.15 or later, or say "
                         "where it is (--cudnn-library PATH)",
                         why);
    return find_functions(c, err);
}

static rose_status describe_device(rose_cudnn *c, const char *json, rose_err *err)
{
    int e = c->f.make(DEVICE, &c->device);
    if (e == SUCCESS)
        e = c->f.set(c->device, DEVICE_JSON, IS_CHAR, (int64_t)strlen(json) + 1, json);
    if (e == SUCCESS) e = c->f.finalize(c->device);
    return e == SUCCESS ? ROSE_OK : failed(c, e, "describing a device", 0, err);
}

rose_status rose_cudnn_open(rose_cudnn **out, const char *path, const char *device, rose_err *err)
{
    rose_cudnn *c = calloc(1, sizeof *c);
    rose_status st;
    int e;

    *out = NULL;
    if (c == NULL) return rose_fail(err, ROSE_E_NOMEM, "cuDNN: out of memory");
    if ((st = load(c, path, err)) != ROSE_OK) goto done;
    const size_t v = c->f.version();
    if (v < ROSE_CUDNN_OLDEST) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "cuDNN is version %zu.%zu.%zu: 9.15 or later is needed (another one: "
                       "--cudnn-library PATH)",
                       v / 10000, v / 100 % 100, v % 100);
        goto done;
    }
    if (device != NULL)
        st = describe_device(c, device, err);
    else if ((e = c->f.create(&c->handle)) != SUCCESS)
        st = failed(c, e, "starting on the GPU", 0, err);
    if (st == ROSE_OK) *out = c;
done:
    if (st != ROSE_OK) rose_cudnn_close(c);
    return st;
}

size_t rose_cudnn_version(const rose_cudnn *c)
{
    return c->f.version();
}

rose_status rose_cudnn_stream(rose_cudnn *c, cudaStream_t stream, rose_err *err)
{
    const int e = c->f.set_stream(c->handle, stream);
    return e == SUCCESS ? ROSE_OK : failed(c, e, "setting the stream", 0, err);
}

void rose_cudnn_close(rose_cudnn *c)
{
    if (c == NULL) return;
    if (c->device != NULL) c->f.drop(c->device);
    if (c->handle != NULL) c->f.destroy(c->handle);
    if (c->library != NULL) dlclose(c->library);
    free(c);
}

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

static bool check(builder *b, int status, int which)
{
    if (b->st == ROSE_OK && status != SUCCESS)
        b->st = failed(b->p->c, status, b->what, which, b->err);
    return b->st == ROSE_OK;
}

static void *make(builder *b, int kind)
{
    void *d = NULL;
    if (b->st == ROSE_OK && b->p->n == MAX_DESCRIPTORS)
        b->st = rose_fail(b->err, ROSE_E_INTERNAL, "cuDNN: %s: MAX_DESCRIPTORS", b->what);
    if (b->st != ROSE_OK || !check(b, b->p->c->f.make(kind, &d), kind)) return NULL;
    b->p->all[b->p->n++] = d;
    return d;
}

static void set(builder *b, void *d, int attribute, int type, int64_t n, const void *values)
{
    if (b->st == ROSE_OK) check(b, b->p->c->f.set(d, attribute, type, n, values), attribute);
}

static void set_type(builder *b, void *d, int attribute, int type)
{
    set(b, d, attribute, IS_TYPE, 1, &type);
}

static void set_part(builder *b, void *d, int attribute, void *part)
{
    if (part != NULL) set(b, d, attribute, IS_DESCRIPTOR, 1, &part);
}

static void *finish(builder *b, void *d)
{
    return b->st == ROSE_OK && check(b, b->p->c->f.finalize(d), -1) ? d : NULL;
}

/* ---- tensors ---- */

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

typedef struct tensor {
    int64_t id; /* 0: virtual, the next one */
    int type;
    int64_t dims[4], strides[4];
    void *ragged; /* where its sequences begin */
    bool by_value;
} tensor;

static void *make_tensor(builder *b, const tensor *t)
{
    static const int64_t alignment = 16;
    const bool yes = true;
    const int64_t id = t->id != 0 ? t->id : b->next_id++;
    void *d = make(b, TENSOR);

    set_type(b, d, TENSOR_TYPE, t->type);
    set(b, d, TENSOR_DIMS, IS_INT64, 4, t->dims);
    set(b, d, TENSOR_STRIDES, IS_INT64, 4, t->strides);
    set(b, d, TENSOR_ID, IS_INT64, 1, &id);
    set(b, d, TENSOR_ALIGNMENT, IS_INT64, 1, &alignment);
    if (t->id == 0) set(b, d, TENSOR_VIRTUAL, IS_BOOL, 1, &yes);
    if (t->by_value) set(b, d, TENSOR_BY_VALUE, IS_BOOL, 1, &yes);
    set_part(b, d, TENSOR_RAGGED, t->ragged);
    return finish(b, d);
}

/* n int32 on the device. */
static void *numbers(builder *b, int64_t id, uint32_t n)
{
    return make_tensor(
        b, &(tensor){.id = id, .type = T_INT32, .dims = {n, 1, 1, 1}, .strides = {1, 1, 1, 1}});
}

static void *scalar(builder *b, int64_t id)
{
    return make_tensor(b, &(tensor){.id = id,
                                    .type = T_FLOAT,
                                    .dims = {1, 1, 1, 1},
                                    .strides = {1, 1, 1, 1},
                                    .by_value = true});
}

static int storage(const rose_cudnn_problem *p)
{
    return p->type == ROSE_CUDA_F16 ? T_HALF : T_BF16;
}

/* Rows of all heads, sequence after sequence: [n_seqs][n_heads][rows][head_dim]. */
static void *rows_of(builder *b, int64_t id, uint32_t rows, void *at)
{
    const rose_cudnn_problem *p = &b->p->problem;
    const int64_t stride = (int64_t)p->n_heads * p->head_dim;
    return make_tensor(b, &(tensor){.id = id,
                                    .type = storage(p),
                                    .dims = {p->n_seqs, p->n_heads, rows, p->head_dim},
                                    .strides = {rows * stride, p->head_dim, stride, 1},
                                    .ragged = at});
}

/* The same for k with its last two dims exchanged: the other operand of a product. */
static void *transposed(builder *b, int64_t id, uint32_t rows, void *at)
{
    const rose_cudnn_problem *p = &b->p->problem;
    const int64_t stride = (int64_t)p->n_heads * p->head_dim;
    return make_tensor(b, &(tensor){.id = id,
                                    .type = storage(p),
                                    .dims = {p->n_seqs, p->n_heads, p->head_dim, rows},
                                    .strides = {rows * stride, p->head_dim, 1, stride},
                                    .ragged = at});
}

/* A number for each row and key, or (of_rows) for each row. */
static void *between(builder *b, int type, bool of_rows)
{
    const rose_cudnn_problem *p = &b->p->problem;
    const int64_t q = p->q_rows, kv = of_rows ? 1 : p->kv_rows, h = p->n_heads;
    return make_tensor(b, &(tensor){.type = type,
                                    .dims = {p->n_seqs, h, q, kv},
                                    .strides = {h * q * kv, q * kv, kv, 1}});
}

/* ---- operations ---- */

static void add_operation(builder *b, void *d)
{
    if (finish(b, d) == NULL) return;
    if (b->n_operations == MAX_OPERATIONS)
        b->st = rose_fail(b->err, ROSE_E_INTERNAL, "cuDNN: %s: MAX_OPERATIONS", b->what);
    else
        b->operations[b->n_operations++] = d;
}

/* y = x op other (where t: t ? x : other). Returns y. */
static void *pointwise(builder *b, const char *what, int mode, int precision, void *x, void *other,
                       void *t, void *y)
{
    const float one = 1;
    b->what = what;
    void *d = make(b, POINTWISE), *op = NULL;
    set(b, d, POINTWISE_MODE, IS_POINTWISE, 1, &mode);
    set_type(b, d, POINTWISE_PRECISION, precision);
    finish(b, d);
    op = make(b, POINTWISE_OPERATION);
    set_part(b, op, POINTWISE_DESCRIPTOR, d);
    set_part(b, op, POINTWISE_X, x);
    set_part(b, op, POINTWISE_Y, y);
    set_part(b, op, POINTWISE_B, other);
    set_part(b, op, POINTWISE_T, t);
    set(b, op, POINTWISE_ALPHA1, IS_FLOAT, 1, &one);
    set(b, op, POINTWISE_ALPHA2, IS_FLOAT, 1, &one);
    add_operation(b, op);
    return y;
}

/* Of each score, its row (axis 2) or its key (axis 3). */
static void *index_of(builder *b, const char *what, int64_t axis, int precision, void *scores)
{
    const float one = 1;
    const int mode = OP_INDEX;
    b->what = what;
    void *y = between(b, T_INT32, false), *d = make(b, POINTWISE), *op = NULL;
    set(b, d, POINTWISE_MODE, IS_POINTWISE, 1, &mode);
    set_type(b, d, POINTWISE_PRECISION, precision);
    set(b, d, POINTWISE_AXIS, IS_INT64, 1, &axis);
    finish(b, d);
    op = make(b, POINTWISE_OPERATION);
    set_part(b, op, POINTWISE_DESCRIPTOR, d);
    set_part(b, op, POINTWISE_X, scores);
    set_part(b, op, POINTWISE_Y, y);
    set(b, op, POINTWISE_ALPHA1, IS_FLOAT, 1, &one);
    set(b, op, POINTWISE_ALPHA2, IS_FLOAT, 1, &one);
    add_operation(b, op);
    return y;
}

/* lengths: of the product's m, n and k in each sequence; NULL: whole. */
static void *matmul(builder *b, const char *what, void *x, void *w, void *y, void *const lengths[3])
{
    b->what = what;
    void *d = make(b, MATMUL), *op = NULL;
    set_type(b, d, MATMUL_PRECISION, T_FLOAT);
    finish(b, d);
    op = make(b, MATMUL_OPERATION);
    set_part(b, op, MATMUL_A, x);
    set_part(b, op, MATMUL_B, w);
    set_part(b, op, MATMUL_C, y);
    set_part(b, op, MATMUL_DESCRIPTOR, d);
    for (int i = 0; i < 3; i++)
        set_part(b, op, MATMUL_M + i, lengths[i]);
    add_operation(b, op);
    return y;
}

/* Over the keys. */
static void *reduce(builder *b, const char *what, int operator, void * x)
{
    b->what = what;
    void *y = between(b, T_FLOAT, true), *d = make(b, REDUCTION), *op = NULL;
    set_type(b, d, REDUCTION_PRECISION, T_FLOAT);
    set(b, d, REDUCTION_OPERATOR, IS_REDUCTION, 1, &operator);
    finish(b, d);
    op = make(b, REDUCTION_OPERATION);
    set_part(b, op, REDUCTION_DESCRIPTOR, d);
    set_part(b, op, REDUCTION_X, x);
    set_part(b, op, REDUCTION_Y, y);
    add_operation(b, op);
    return y;
}

/* ---- the graph ---- */

/* -inf beyond the rows and keys that a sequence has. */
static void *mask_padding(builder *b, void *scores, void *q_len, void *kv_len, void *beyond)
{
    void *row = index_of(b, "rows of the padding mask", 2, T_INT32, scores);
    void *key = index_of(b, "keys of the padding mask", 3, T_INT32, scores);
    row = pointwise(b, "rows within", OP_LT, T_BOOLEAN, row, q_len, NULL,
                    between(b, T_BOOLEAN, false));
    key = pointwise(b, "keys within", OP_LT, T_BOOLEAN, key, kv_len, NULL,
                    between(b, T_BOOLEAN, false));
    void *both = pointwise(b, "rows and keys within", OP_AND, T_BOOLEAN, row, key, NULL,
                           between(b, T_BOOLEAN, false));
    return pointwise(b, "padding mask", OP_SELECT, T_FLOAT, scores, beyond, both,
                     between(b, T_FLOAT, false));
}

/* -inf above the diagonal: row + kv_len - q_len >= key is seen. */
static void *mask_future(builder *b, void *scores, void *q_len, void *kv_len, void *above)
{
    void *row = index_of(b, "rows of the causal mask", 2, T_FLOAT, scores);
    void *key = index_of(b, "keys of the causal mask", 3, T_FLOAT, scores);
    row = pointwise(b, "diagonal + context", OP_ADD, T_INT32, row, kv_len, NULL,
                    between(b, T_INT32, false));
    row = pointwise(b, "diagonal - rows", OP_SUB, T_INT32, row, q_len, NULL,
                    between(b, T_INT32, false));
    void *seen = pointwise(b, "diagonal >= key", OP_GE, T_BOOLEAN, row, key, NULL,
                           between(b, T_BOOLEAN, false));
    return pointwise(b, "causal mask", OP_SELECT, T_FLOAT, scores, above, seen,
                     between(b, T_FLOAT, false));
}

/* Probabilities, of the storage type. Nobody wants the logarithms of the rows' sums, but they
 * belong to the graph: without them the engine of 9.19 is found, runs, and writes them to the
 * address of another operand (the scale's, on the host). */
static void *softmax(builder *b, void *scores)
{
    void *max = reduce(b, "softmax: maximum", REDUCE_MAX, scores);
    void *x = pointwise(b, "softmax: difference", OP_SUB, T_FLOAT, scores, max, NULL,
                        between(b, T_FLOAT, false));
    x = pointwise(b, "softmax: exponential", OP_EXP, T_FLOAT, x, NULL, NULL,
                  between(b, T_FLOAT, false));
    void *sum = reduce(b, "softmax: sum", REDUCE_ADD, x);
    void *log = pointwise(b, "softmax: logarithm", OP_LOG, T_FLOAT, sum, NULL, NULL,
                          between(b, T_FLOAT, true));
    pointwise(b, "softmax: logarithm + maximum", OP_ADD, T_FLOAT, max, log, NULL,
              between(b, T_FLOAT, true));
    return pointwise(b, "softmax: quotient", OP_DIV, T_FLOAT, x, sum, NULL,
                     between(b, storage(&b->p->problem), false));
}

static void *make_graph(builder *b)
{
    const rose_cudnn_problem *p = &b->p->problem;
    const uint32_t n = p->n_seqs;

    b->what = "the operands";
    void *q_len = numbers(b, ID_Q_LEN, n), *kv_len = numbers(b, ID_KV_LEN, n);
    void *q = rows_of(b, ID_Q, p->q_rows, numbers(b, ID_Q_AT, n + 1));
    void *k = transposed(b, ID_K, p->kv_rows, numbers(b, ID_K_AT, n + 1));
    void *v = rows_of(b, ID_V, p->kv_rows, numbers(b, ID_V_AT, n + 1));
    void *o = rows_of(b, ID_O, p->q_rows, numbers(b, ID_O_AT, n + 1));
    void *scale = scalar(b, ID_SCALE), *beyond = scalar(b, ID_BEYOND), *above = scalar(b, ID_ABOVE);

    void *s =
        matmul(b, "scores", q, k, between(b, T_FLOAT, false), (void *const[]){q_len, kv_len, NULL});
    s = pointwise(b, "scale", OP_MUL, T_FLOAT, s, scale, NULL, between(b, T_FLOAT, false));
    s = mask_padding(b, s, q_len, kv_len, beyond);
    s = mask_future(b, s, q_len, kv_len, above);
    matmul(b, "output", softmax(b, s), v, o, (void *const[]){q_len, NULL, kv_len});

    b->what = "the operation graph";
    void *g = make(b, OPERATION_GRAPH);
    set(b, g, GRAPH_OPERATIONS, IS_DESCRIPTOR, b->n_operations, b->operations);
    if (b->p->c->handle != NULL) set(b, g, GRAPH_HANDLE, IS_HANDLE, 1, &b->p->c->handle);
    return finish(b, g);
}

/* ---- plans ---- */

/* Configurations of engines for the graph, the best guess first; returns how many. */
static int64_t ask(builder *b, void *graph, int mode, void **configs)
{
    int64_t n = 0;
    b->what = mode == HEURISTICS_A ? "asking for engines" : "asking for engines to fall back on";
    void *h = make(b, HEURISTICS);
    set_part(b, h, HEURISTICS_GRAPH, graph);
    set(b, h, HEURISTICS_MODE, IS_HEURISTICS, 1, &mode);
    set_part(b, h, HEURISTICS_DEVICE, b->p->c->device);
    if (finish(b, h) == NULL) return 0;
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = make(b, ENGINE_CONFIG);
    if (b->st == ROSE_OK)
        check(b, b->p->c->f.get(h, HEURISTICS_RESULTS, IS_DESCRIPTOR, MAX_CONFIGS, &n, configs),
              HEURISTICS_RESULTS);
    if (b->st != ROSE_OK || n < 0) return 0;
    return n < MAX_CONFIGS ? n : MAX_CONFIGS; /* it says how many there are, not how many we got */
}

static int64_t engine_of(rose_cudnn_plan *p, void *config)
{
    int64_t n = 0, engine = -1;
    void *d = NULL;
    const rose_cudnn_functions *f = &p->c->f;
    if (f->make(ENGINE, &d) != SUCCESS) return -1;
    if (f->get(config, CONFIG_ENGINE, IS_DESCRIPTOR, 1, &n, &d) != SUCCESS ||
        f->get(d, ENGINE_INDEX, IS_INT64, 1, &n, &engine) != SUCCESS)
        engine = -1;
    f->drop(d);
    return engine;
}

/* False: this one does not do it (b->st says why). */
static bool take_config(builder *b, void *config)
{
    rose_cudnn_plan *p = b->p;
    int64_t n = 0;
    b->what = "making the plan";
    void *d = make(b, EXECUTION_PLAN);
    set_part(b, d, PLAN_CONFIG, config);
    if (p->c->handle != NULL) set(b, d, PLAN_HANDLE, IS_HANDLE, 1, &p->c->handle);
    set_part(b, d, PLAN_DEVICE, p->c->device);
    if (finish(b, d) == NULL) return false;
    if (!check(b, p->c->f.get(d, PLAN_WORKSPACE, IS_INT64, 1, &n, &p->workspace), PLAN_WORKSPACE))
        return false;
    p->engine = engine_of(p, config);
    if (p->workspace > ROSE_CUDNN_WORKSPACE) {
        b->st = rose_fail(b->err, ROSE_E_UNSUPPORTED,
                          "cuDNN: engine %lld wants a workspace of %lld bytes",
                          (long long)p->engine, (long long)p->workspace);
        return false;
    }
    p->execution = d;
    return true;
}

/* The first configuration that a plan can be made of; else the first reason why none can. */
static void choose(builder *b, void *graph)
{
    static const int modes[] = {HEURISTICS_A, HEURISTICS_FALLBACK};
    rose_err first = {""};
    rose_status st = ROSE_OK;

    for (int m = 0; m < 2; m++) {
        void *configs[MAX_CONFIGS];
        const int64_t n = ask(b, graph, modes[m], configs);
        for (int64_t i = 0; i < n; i++) {
            if (take_config(b, configs[i])) return;
            if (st == ROSE_OK) first = *b->err;
            if (st == ROSE_OK) st = b->st;
            b->st = ROSE_OK;
        }
        if (b->st != ROSE_OK && st == ROSE_OK) first = *b->err;
        if (b->st != ROSE_OK && st == ROSE_OK) st = b->st;
        b->st = ROSE_OK;
    }
    b->st = st != ROSE_OK ? st : ROSE_E_UNSUPPORTED;
    rose_fail(b->err, b->st, "%s", st != ROSE_OK ? first.msg : "cuDNN has no engine for it");
}

static rose_status begin(builder *b, rose_cudnn *c, const rose_cudnn_problem *p, void **graph)
{
    *graph = NULL;
    if ((b->p = calloc(1, sizeof *b->p)) == NULL)
        return rose_fail(b->err, ROSE_E_NOMEM, "cuDNN: out of memory");
    b->p->c = c;
    b->p->problem = *p;
    b->next_id = ID_VIRTUAL;
    *graph = make_graph(b);
    return b->st;
}

static rose_status refuse(const builder *b, const rose_cudnn_problem *p, rose_status st,
                          rose_err *err)
{
    return rose_fail(err, st, "attention of %u sequences, %u rows, %u keys, %u heads of %u: %s",
                     p->n_seqs, p->q_rows, p->kv_rows, p->n_heads, p->head_dim, b->err->msg);
}

rose_status rose_cudnn_supports(rose_cudnn *c, const rose_cudnn_problem *p, rose_err *err)
{
    rose_err why = {""};
    builder b = {.err = &why};
    void *graph, *configs[MAX_CONFIGS];
    rose_status st = begin(&b, c, p, &graph);
    if (st == ROSE_OK && ask(&b, graph, HEURISTICS_A, configs) == 0) {
        b.st = ROSE_OK; /* as choose() does */
        if (ask(&b, graph, HEURISTICS_FALLBACK, configs) == 0 && (st = b.st) == ROSE_OK)
            st = rose_fail(&why, ROSE_E_UNSUPPORTED, "cuDNN has no engine for it");
    }
    rose_cudnn_plan_drop(b.p);
    return st == ROSE_OK ? ROSE_OK : refuse(&b, p, st, err);
}

rose_status rose_cudnn_plan_make(rose_cudnn_plan **out, rose_cudnn *c, const rose_cudnn_problem *p,
                                 rose_err *err)
{
    rose_err why = {""};
    builder b = {.err = &why};
    void *graph;
    rose_status st = begin(&b, c, p, &graph);

    *out = NULL;
    if (st == ROSE_OK) choose(&b, graph);
    if (st == ROSE_OK && b.p->execution == NULL) st = b.st;
    if (st == ROSE_OK)
        *out = b.p;
    else
        rose_cudnn_plan_drop(b.p);
    return st == ROSE_OK ? ROSE_OK : refuse(&b, p, st, err);
}

uint64_t rose_cudnn_plan_workspace(const rose_cudnn_plan *p)
{
    return (uint64_t)p->workspace;
}

int64_t rose_cudnn_plan_engine(const rose_cudnn_plan *p)
{
    return p->engine;
}

rose_status rose_cudnn_plan_bind(rose_cudnn_plan *p, const rose_cudnn_operands *a, rose_err *err)
{
    static float minus_infinity = -INFINITY;
    static const int64_t ids[N_IDS] = {ID_Q,      ID_K,      ID_V,    ID_O,    ID_Q_LEN,
                                       ID_KV_LEN, ID_Q_AT,   ID_K_AT, ID_V_AT, ID_O_AT,
                                       ID_SCALE,  ID_BEYOND, ID_ABOVE};
    const void *const at[N_IDS] = {
        a->q,     a->k,     a->v,    a->o,     a->q_len,        a->kv_len,      a->q_at,
        a->kv_at, a->kv_at, a->q_at, a->scale, &minus_infinity, &minus_infinity};
    const rose_cudnn_functions *f = &p->c->f;
    void *d = NULL;

    void **more = realloc(p->bound, (p->n_bound + 1) * sizeof *more);
    if (more == NULL) return rose_fail(err, ROSE_E_NOMEM, "cuDNN: out of memory");
    p->bound = more;
    int e = f->make(VARIANT_PACK, &d);
    if (e == SUCCESS) e = f->set(d, VARIANT_IDS, IS_INT64, N_IDS, ids);
    if (e == SUCCESS) e = f->set(d, VARIANT_POINTERS, IS_POINTER, N_IDS, at);
    if (e == SUCCESS) e = f->set(d, VARIANT_WORKSPACE, IS_POINTER, 1, &a->workspace);
    if (e == SUCCESS) e = f->finalize(d);
    if (e != SUCCESS) {
        if (d != NULL) f->drop(d);
        return failed(p->c, e, "binding a plan", 0, err);
    }
    p->bound[p->n_bound++] = d;
    return ROSE_OK;
}

rose_status rose_cudnn_plan_run(rose_cudnn_plan *p, uint32_t bound, rose_err *err)
{
    const int e = p->c->f.execute(p->c->handle, p->execution, p->bound[bound]);
    return e == SUCCESS ? ROSE_OK : failed(p->c, e, "running attention", (int)p->engine, err);
}

void rose_cudnn_plan_drop(rose_cudnn_plan *p)
{
    if (p == NULL) return;
    while (p->n_bound > 0)
        p->c->f.drop(p->bound[--p->n_bound]);
    while (p->n > 0)
        p->c->f.drop(p->all[--p->n]);
    free(p->bound);
    free(p);
}
