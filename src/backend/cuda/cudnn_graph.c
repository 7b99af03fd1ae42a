/* backend/cuda/cudnn_graph.c - causal attention as a graph of cuDNN's operations.
 *
 * It is the one that cuDNN's engines for attention know, operation by operation (cuDNN's manual,
 * "fused flash attention fprop"; the order and types are those of NVIDIA's cudnn-frontend,
 * CompositeSDPANode): scores, times a scale, -inf beyond a sequence's rows and keys, -inf above the
 * diagonal that ends in its last row and key, softmax, times v. Newer versions have single
 * operations for parts of it; this one is known to every version from ROSE_CUDNN_OLDEST on. */
#include "backend/cuda/cudnn_internal.h"

/* ---- tensors ---- */

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

void *rose_cudnn_graph(builder *b)
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
