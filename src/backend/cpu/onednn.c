/* backend/cpu/onednn.c - see onednn.h. The C API of oneDNN 2.x, loaded by base/dl.h. */
#include "backend/cpu/onednn.h"

#if ROSE_DNNL /* set by the Makefile */

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dl.h"

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
    X(dnnl_primitive_desc_query)                                                                   \
    X(dnnl_primitive_desc_query_md)                                                                \
    X(dnnl_reorder_primitive_desc_create)                                                          \
    X(dnnl_primitive_create)                                                                       \
    X(dnnl_primitive_destroy)                                                                      \
    X(dnnl_primitive_execute)

struct rose_onednn {
    void *library;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    char version[32];
#define MEMBER(name) __typeof__(&name) name;
    ENTRIES(MEMBER)
#undef MEMBER
};

struct rose_onednn_product {
    rose_onednn *o; /* borrowed */
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t product, reorder;
    dnnl_memory_desc_t plain_desc, packed_desc;
    dnnl_memory_t x, plain, packed, y; /* without memory of their own */
};

static rose_status refused(rose_err *err, const char *what, dnnl_status_t e)
{
    return rose_fail(err, ROSE_E_BACKEND, "oneDNN: %s: status %d", what, (int)e);
}

static rose_status load(rose_onednn *o, const char *path, rose_err *err)
{
#define FUNCTION(name) {#name, &o->name},
    const rose_dl_function functions[] = {ENTRIES(FUNCTION)};
#undef FUNCTION
    rose_err why = {""};
    const rose_status st =
        rose_dl_open(&o->library, &path, 1, functions, sizeof functions / sizeof *functions, &why);
    if (st == ROSE_E_NOTFOUND)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "oneDNN: %s (Debian: libdnnl2)", why.msg);
    if (st != ROSE_OK) return rose_fail(err, st, "oneDNN: %s: not version 2", why.msg);
    return ROSE_OK;
}

rose_status rose_onednn_open(rose_onednn **out, const char *path, rose_err *err)
{
    rose_status st = ROSE_OK;
    dnnl_status_t e = dnnl_success;
    rose_onednn *o = calloc(1, sizeof *o);

    *out = NULL;
    if (o == NULL) return rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory");
    if (path == NULL) path = "libdnnl.so.2";
    if ((st = load(o, path, err)) != ROSE_OK) goto done;
    const dnnl_version_t *v = o->dnnl_version();
    snprintf(o->version, sizeof o->version, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (v->major != 2) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED, "%s: only version 2 is known", o->version);
        goto done;
    }
    if ((e = o->dnnl_engine_create(&o->engine, dnnl_cpu, 0)) != dnnl_success ||
        (e = o->dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags)) !=
            dnnl_success)
        st = refused(err, "a CPU engine", e);
done:
    if (st != ROSE_OK) {
        rose_onednn_close(o);
        o = NULL;
    }
    *out = o;
    return st;
}

void rose_onednn_close(rose_onednn *o)
{
    if (o == NULL) return;
    if (o->stream != NULL) o->dnnl_stream_destroy(o->stream);
    if (o->engine != NULL) o->dnnl_engine_destroy(o->engine);
    rose_dl_close(o->library);
    free(o);
}

const char *rose_onednn_version(const rose_onednn *o)
{
    return o->version;
}

/* The descriptor of the product alone; weights in any layout. */
static dnnl_status_t describe(rose_onednn_product *p, int way, dnnl_data_type_t type, uint32_t m,
                              uint32_t n, uint32_t k)
{
    rose_onednn *o = p->o;
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

static dnnl_status_t describe_packing(rose_onednn_product *p)
{
    rose_onednn *o = p->o;
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

rose_status rose_onednn_product_create(rose_onednn_product **out, rose_onednn *o, int way,
                                       bool bf16, uint32_t m, uint32_t n, uint32_t k, rose_err *err)
{
    rose_onednn_product *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "oneDNN: out of memory");
    p->o = o;
    dnnl_status_t e = describe(p, way, bf16 ? dnnl_bf16 : dnnl_f32, m, n, k);
    if (e == dnnl_success) e = describe_packing(p);
    if (e != dnnl_success) {
        rose_onednn_product_destroy(p);
        if (e == dnnl_unimplemented)
            return rose_fail(err, ROSE_E_UNSUPPORTED, "%s has no %s product here", o->version,
                             bf16 ? "bfloat16" : "float32");
        return refused(err, way == 0 ? "a matmul" : "an inner product", e);
    }
    *out = p;
    return ROSE_OK;
}

void rose_onednn_product_destroy(rose_onednn_product *p)
{
    if (p == NULL) return;
    rose_onednn *o = p->o;
    dnnl_memory_t memories[] = {p->x, p->plain, p->packed, p->y};
    for (int i = 0; i < 4; i++)
        if (memories[i] != NULL) o->dnnl_memory_destroy(memories[i]);
    if (p->product != NULL) o->dnnl_primitive_destroy(p->product);
    if (p->reorder != NULL) o->dnnl_primitive_destroy(p->reorder);
    if (p->desc != NULL) o->dnnl_primitive_desc_destroy(p->desc);
    free(p);
}

const char *rose_onednn_product_name(const rose_onednn_product *p)
{
    const char *name = NULL;
    if (p->o->dnnl_primitive_desc_query(p->desc, dnnl_query_impl_info_str, 0, (void *)&name) !=
        dnnl_success)
        return "?";
    return name;
}

size_t rose_onednn_weight_bytes(const rose_onednn_product *p)
{
    return p->o->dnnl_memory_desc_get_size(&p->packed_desc);
}

static rose_status execute(rose_onednn_product *p, dnnl_primitive_t what, int n,
                           const dnnl_exec_arg_t *args, rose_err *err)
{
    dnnl_status_t e = p->o->dnnl_primitive_execute(what, p->o->stream, n, args);
    if (e == dnnl_success) e = p->o->dnnl_stream_wait(p->o->stream);
    return e == dnnl_success ? ROSE_OK : refused(err, "running", e);
}

/* oneDNN does not write through the handles that are sources here. */
static void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

rose_status rose_onednn_pack(rose_onednn_product *p, const void *plain, void *packed, rose_err *err)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->plain}, {DNNL_ARG_TO, p->packed}};
    p->o->dnnl_memory_set_data_handle(p->plain, unconst(plain));
    p->o->dnnl_memory_set_data_handle(p->packed, packed);
    return execute(p, p->reorder, 2, args, err);
}

rose_status rose_onednn_run(rose_onednn_product *p, const void *x, const void *packed, void *y,
                            rose_err *err)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->packed}, {DNNL_ARG_DST, p->y}};
    p->o->dnnl_memory_set_data_handle(p->x, unconst(x));
    p->o->dnnl_memory_set_data_handle(p->packed, unconst(packed));
    p->o->dnnl_memory_set_data_handle(p->y, y);
    return execute(p, p->product, 3, args, err);
}

#endif
