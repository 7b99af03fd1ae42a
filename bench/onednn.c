/* bench/onednn.c - see kernels_internal.h. It calls the C API of oneDNN 2.x, whose functions dlsym
 * finds. */
#include "bench/kernels_internal.h"

#if ROSE_DNNL /* set by the Makefile */

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dl.h"

enum { MAX_COPIES = 12, WAYS = 2 }; /* its matmul and its inner product */

#define ENTRIES(X)                                                                                 \
    X(dnnl_version)                                                                                \
    X(dnnl_engine_create)                                                                          \
    X(dnnl_engine_destroy)                                                                         \
    X(dnnl_stream_create)                                                                          \
    X(dnnl_stream_destroy)                                                                         \
    X(dnnl_stream_wait)                                                                            \
    X(dnnl_memory_desc_init_by_tag)                                                                \
    X(dnnl_memory_desc_get_size)                                                                   \
    X(dnnl_memory_create)                                                                          \
    X(dnnl_memory_destroy)                                                                         \
    X(dnnl_memory_set_data_handle)                                                                 \
    X(dnnl_matmul_desc_init)                                                                       \
    X(dnnl_inner_product_forward_desc_init)                                                        \
    X(dnnl_primitive_desc_create)                                                                  \
    X(dnnl_primitive_desc_destroy)                                                                 \
    X(dnnl_primitive_desc_query_md)                                                                \
    X(dnnl_reorder_primitive_desc_create)                                                          \
    X(dnnl_primitive_create)                                                                       \
    X(dnnl_primitive_destroy)                                                                      \
    X(dnnl_primitive_execute)

typedef struct library {
    rose_onednn public; /* first: a rose_onednn is one of these */
    void *handle;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16;
#define MEMBER(name) __typeof__(&name) name;
    ENTRIES(MEMBER)
#undef MEMBER
    /* the shape that is prepared */
    struct product *product; /* owned */
    void *w[MAX_COPIES];     /* packed, owned */
    void *x, *y;             /* in the library's type, owned */
    uint32_t n_copies;
} library;

typedef struct product {
    library *o; /* borrowed */
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t product, reorder;
    dnnl_memory_desc_t plain_desc, packed_desc;
    dnnl_memory_t x, plain, packed, y; /* without memory of their own */
} product;

static rose_status refused(rose_err *err, const char *what, dnnl_status_t e)
{
    return rose_fail(err, ROSE_E_BACKEND, "oneDNN: %s: status %d", what, (int)e);
}

/* ---- one product ---- */

/* Describes the GEMM without any fused operation, with weights in the layout that oneDNN
 * prefers. */
static dnnl_status_t describe(product *p, int way, dnnl_data_type_t type, uint32_t m, uint32_t n,
                              uint32_t k)
{
    library *o = p->o;
    dnnl_memory_desc_t x, w, y;
    dnnl_dims_t xd = {m, k}, yd = {m, n}, kn = {k, n}, nk = {n, k};
    dnnl_status_t e;
    dnnl_matmul_desc_t matmul;
    dnnl_inner_product_desc_t inner;
    void *op = way == 0 ? (void *)&matmul : (void *)&inner;

    if ((e = o->dnnl_memory_desc_init_by_tag(&x, 2, xd, type, dnnl_ab)) != dnnl_success ||
        (e = o->dnnl_memory_desc_init_by_tag(&y, 2, yd, type, dnnl_ab)) != dnnl_success ||
        (e = o->dnnl_memory_desc_init_by_tag(&w, 2, way == 0 ? kn : nk, type,
                                             dnnl_format_tag_any)) != dnnl_success ||
        (e = o->dnnl_memory_desc_init_by_tag(&p->plain_desc, 2, way == 0 ? kn : nk, type,
                                             way == 0 ? dnnl_ab : dnnl_ba)) != dnnl_success)
        return e;
    e = way == 0 ? o->dnnl_matmul_desc_init(&matmul, &x, &w, NULL, &y)
                 : o->dnnl_inner_product_forward_desc_init(&inner, dnnl_forward_inference, &x, &w,
                                                           NULL, &y);
    if (e == dnnl_success) e = o->dnnl_primitive_desc_create(&p->desc, op, NULL, o->engine, NULL);
    if (e != dnnl_success) return e;
    p->packed_desc = *o->dnnl_primitive_desc_query_md(p->desc, dnnl_query_weights_md, 0);
    if ((e = o->dnnl_memory_create(&p->x, &x, o->engine, DNNL_MEMORY_NONE)) != dnnl_success ||
        (e = o->dnnl_memory_create(&p->y, &y, o->engine, DNNL_MEMORY_NONE)) != dnnl_success)
        return e;
    return o->dnnl_primitive_create(&p->product, p->desc);
}

static dnnl_status_t describe_packing(product *p)
{
    library *o = p->o;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t e = o->dnnl_reorder_primitive_desc_create(&desc, &p->plain_desc, o->engine,
                                                            &p->packed_desc, o->engine, NULL);
    if (e == dnnl_success) e = o->dnnl_primitive_create(&p->reorder, desc);
    if (desc != NULL) o->dnnl_primitive_desc_destroy(desc);
    if (e != dnnl_success) return e;
    e = o->dnnl_memory_create(&p->plain, &p->plain_desc, o->engine, DNNL_MEMORY_NONE);
    if (e != dnnl_success) return e;
    return o->dnnl_memory_create(&p->packed, &p->packed_desc, o->engine, DNNL_MEMORY_NONE);
}

static void product_destroy(product *p)
{
    if (p == NULL) return;
    library *o = p->o;
    dnnl_memory_t memories[] = {p->x, p->plain, p->packed, p->y};
    for (int i = 0; i < 4; i++)
        if (memories[i] != NULL) o->dnnl_memory_destroy(memories[i]);
    if (p->product != NULL) o->dnnl_primitive_destroy(p->product);
    if (p->reorder != NULL) o->dnnl_primitive_destroy(p->reorder);
    if (p->desc != NULL) o->dnnl_primitive_desc_destroy(p->desc);
    free(p);
}

static rose_status product_create(product **out, library *o, int way, bool bf16, uint32_t m,
                                  uint32_t n, uint32_t k, rose_err *err)
{
    product *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory");
    p->o = o;
    dnnl_status_t e = describe(p, way, bf16 ? dnnl_bf16 : dnnl_f32, m, n, k);
    if (e == dnnl_success) e = describe_packing(p);
    if (e != dnnl_success) {
        product_destroy(p);
        if (e == dnnl_unimplemented)
            return rose_fail(err, ROSE_E_UNSUPPORTED, "oneDNN has no %s GEMM on this CPU",
                             bf16 ? "bfloat16" : "float32");
        return refused(err, way == 0 ? "a matmul" : "an inner product", e);
    }
    *out = p;
    return ROSE_OK;
}

static rose_status execute(product *p, dnnl_primitive_t what, int n, const dnnl_exec_arg_t *args,
                           rose_err *err)
{
    dnnl_status_t e = p->o->dnnl_primitive_execute(what, p->o->stream, n, args);
    if (e == dnnl_success) e = p->o->dnnl_stream_wait(p->o->stream);
    return e == dnnl_success ? ROSE_OK : refused(err, "running", e);
}

static rose_status pack(product *p, void *plain, void *packed, rose_err *err)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->plain}, {DNNL_ARG_TO, p->packed}};
    p->o->dnnl_memory_set_data_handle(p->plain, plain);
    p->o->dnnl_memory_set_data_handle(p->packed, packed);
    return execute(p, p->reorder, 2, args, err);
}

/* ---- the shape that is prepared ---- */

static rose_status pass(rose_onednn *base, rose_err *err)
{
    library *o = (library *)base;
    product *p = o->product;
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->packed}, {DNNL_ARG_DST, p->y}};
    rose_status st = ROSE_OK;
    o->dnnl_memory_set_data_handle(p->x, o->x);
    o->dnnl_memory_set_data_handle(p->y, o->y);
    for (uint32_t i = 0; i < o->n_copies && st == ROSE_OK; i++) {
        o->dnnl_memory_set_data_handle(p->packed, o->w[i]);
        st = execute(p, p->product, 3, args, err);
    }
    return st;
}

static void release_way(library *o)
{
    product_destroy(o->product);
    o->product = NULL;
    for (uint32_t i = 0; i < MAX_COPIES; i++) {
        free(o->w[i]);
        o->w[i] = NULL;
    }
}

static void store_rounded(void *out, const float *in, size_t n, bool bf16)
{
    if (!bf16) {
        memcpy(out, in, n * sizeof *in);
        return;
    }
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)out)[i] = rose_bf16_from_f32(in[i]);
}

/* Prepares the GEMM in one of oneDNN's ways (matmul or inner product). w: in the type that the
 * library multiplies. */
static rose_status prepare_way(library *o, int way, const rose_kernel_shape *s, void *w,
                               rose_err *err)
{
    release_way(o);
    rose_status st = product_create(&o->product, o, way, o->bf16, s->rows, s->n_out, s->n_in, err);
    for (uint32_t i = 0; i < o->n_copies && st == ROSE_OK; i++) {
        o->w[i] = rose_kernel_take(o->dnnl_memory_desc_get_size(&o->product->packed_desc));
        st = o->w[i] == NULL ? rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory")
                             : pack(o->product, w, o->w[i], err);
    }
    return st;
}

/* Prepares the faster of oneDNN's two ways (matmul, inner product). Each way runs one pass to
 * wake the threads, then one that is timed. */
static rose_status prepare_best(library *o, const rose_kernel_shape *s, void *w, rose_err *err)
{
    uint64_t ns[WAYS] = {0};
    for (int i = 0; i < WAYS; i++) {
        rose_status st = prepare_way(o, i, s, w, err);
        if (st == ROSE_OK) st = pass(&o->public, err);
        ns[i] = rose_now_ns();
        if (st == ROSE_OK) st = pass(&o->public, err);
        if (st != ROSE_OK) return st;
        ns[i] = rose_now_ns() - ns[i];
    }
    return ns[0] < ns[1] ? prepare_way(o, 0, s, w, err) : ROSE_OK; /* the last is prepared */
}

static rose_status prepare(rose_onednn *base, const rose_kernel_shape *s, const float *w,
                           const float *x, uint32_t n_copies, rose_err *err)
{
    library *o = (library *)base;
    const size_t size = o->bf16 ? 2 : 4, n_w = (size_t)s->n_in * s->n_out,
                 n_x = (size_t)s->rows * s->n_in;
    void *typed_w = rose_kernel_take(n_w * size);
    free(o->x);
    free(o->y);
    o->x = rose_kernel_take(n_x * size);
    o->y = rose_kernel_take((size_t)s->rows * s->n_out * size);
    o->n_copies = n_copies < MAX_COPIES ? n_copies : MAX_COPIES;
    rose_status st = ROSE_OK;
    if (typed_w == NULL || o->x == NULL || o->y == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory");
    } else {
        store_rounded(o->x, x, n_x, o->bf16);
        store_rounded(typed_w, w, n_w, o->bf16);
        st = prepare_best(o, s, typed_w, err);
    }
    free(typed_w);
    return st;
}

/* ---- the library ---- */

static void close_library(rose_onednn *base)
{
    library *o = (library *)base;
    if (o == NULL) return;
    release_way(o);
    free(o->x);
    free(o->y);
    if (o->stream != NULL) o->dnnl_stream_destroy(o->stream);
    if (o->engine != NULL) o->dnnl_engine_destroy(o->engine);
    rose_dl_close(o->handle);
    free(o);
}

/* Sets OpenMP's environment, which it reads when the library is loaded. It then also pins the
 * calling thread to the first CPU. */
static bool set_openmp(uint32_t n_threads, const int *cpus, uint32_t n_cpus)
{
    char threads[16], places[ROSE_POOL_MAX_THREADS * 8] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < n_threads && n_cpus > 0; i++)
        at += (size_t)snprintf(places + at, sizeof places - at, "%s{%d}", i > 0 ? "," : "",
                               cpus[i % n_cpus] % 10000);
    snprintf(threads, sizeof threads, "%u", n_threads);
    return setenv("OMP_NUM_THREADS", threads, 1) == 0 &&
           setenv("GOMP_SPINCOUNT", "100000", 0) == 0 &&
           (n_cpus == 0 || setenv("OMP_PLACES", places, 1) == 0) &&
           setenv("OMP_PROC_BIND", n_cpus > 0 ? "close" : "false", 1) == 0;
}

static rose_status open_library(library *o, const char *path, rose_err *err)
{
#define FUNCTION(name) {#name, &o->name},
    const rose_dl_function functions[] = {ENTRIES(FUNCTION)};
#undef FUNCTION
    dnnl_status_t e;
    rose_err why = {""};
    if (path == NULL) path = "libdnnl.so.2";
    const rose_status st =
        rose_dl_open(&o->handle, &path, 1, functions, sizeof functions / sizeof *functions, &why);
    if (st == ROSE_E_NOTFOUND)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "oneDNN: %s (Debian: libdnnl2)", why.msg);
    if (st != ROSE_OK) return rose_fail(err, st, "oneDNN: %s: not version 2", why.msg);
    const dnnl_version_t *v = o->dnnl_version();
    if (v->major != 2)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "oneDNN %d.%d.%d: only version 2 is known",
                         v->major, v->minor, v->patch);
    if ((e = o->dnnl_engine_create(&o->engine, dnnl_cpu, 0)) != dnnl_success ||
        (e = o->dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags)) !=
            dnnl_success)
        return refused(err, "a CPU engine", e);
    return ROSE_OK;
}

/* Chooses the GEMM's data type: bf16 if the caller asks for it and oneDNN has a bf16 GEMM, else
 * fp32. */
static rose_status choose_type(library *o, bool bf16, rose_err *err)
{
    product *p;
    const dnnl_version_t *v = o->dnnl_version();
    rose_status st = product_create(&p, o, 0, bf16, 1, 64, 64, NULL);
    product_destroy(p);
    o->bf16 = bf16 && st != ROSE_E_UNSUPPORTED;
    if (st != ROSE_OK) {
        st = product_create(&p, o, 0, o->bf16, 1, 64, 64, err);
        product_destroy(p);
    }
    snprintf(o->public.about, sizeof o->public.about, "oneDNN %d.%d.%d%s", v->major, v->minor,
             v->patch, bf16 == o->bf16 ? "" : " in float32 (it has no bfloat16 GEMM on this CPU)");
    return st;
}

rose_status rose_onednn_open(rose_onednn **out, const rose_onednn_opts *opts, rose_err *err)
{
    library *o = calloc(1, sizeof *o);
    *out = NULL;
    if (o == NULL || !set_openmp(opts->n_threads, opts->cpus, opts->n_cpus)) {
        free(o);
        return rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory");
    }
    o->public.prepare = prepare;
    o->public.pass = pass;
    o->public.close = close_library;
    rose_status st = open_library(o, opts->path, err);
    if (st == ROSE_OK) st = choose_type(o, opts->bf16, err);
    if (st == ROSE_OK)
        *out = &o->public;
    else
        close_library(&o->public);
    return st;
}

#else

rose_status rose_onednn_open(rose_onednn **out, const rose_onednn_opts *opts, rose_err *err)
{
    (void)opts;
    *out = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "this program was built without oneDNN's header (install Debian's libdnnl-dev "
                     "and libdnnl2, then run make again)");
}

#endif
