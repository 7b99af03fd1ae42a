/* backend/cuda/load.c - copies the weights from the mapped files to the device, where kernels
 * convert and pack them. The weights pass in slices through a staging area. The staging area is the
 * memory of the KV pages, which are not in use yet; load zeroes it at the end. */
#include "backend/cuda/cuda_internal.h"

#define STAGING_BYTES (UINT64_C(64) << 20)

typedef struct loader {
    rose_cuda *c;
    rose_cuda_launch launch;
    rose_err *err;
    rose_status st; /* the first error; later work is skipped */
} loader;

static void check(loader *l, cudaError_t e)
{
    if (l->st == ROSE_OK && e != cudaSuccess)
        l->st = rose_cuda_fail(l->err, e, "loading the weights");
}

/* Load `rows` rows of `width` elements. pack.dst and the layout are already set. */
static void load_rows(loader *l, const rose_tensor *t, uint64_t rows, uint64_t width,
                      rose_cuda_pack pack, bool floats)
{
    const uint64_t row_bytes = width * rose_dtype_size(t->dtype);
    const uint64_t room = l->c->plan.kv < STAGING_BYTES ? l->c->plan.kv : STAGING_BYTES;
    const uint64_t step = room / row_bytes;

    if (l->st == ROSE_OK && step == 0)
        l->st = rose_fail(l->err, ROSE_E_NOMEM, "%s: a row of %llu bytes exceeds the KV pool",
                          t->name, (unsigned long long)row_bytes);
    for (uint64_t at = 0; at < rows && l->st == ROSE_OK; at += step) {
        const uint64_t n = rows - at < step ? rows - at : step;
        pack.src = l->c->kv_base;
        pack.src_type = t->dtype;
        pack.first_row = (uint32_t)at;
        pack.n_rows = (uint32_t)n;
        pack.width = (uint32_t)width;
        check(l, cudaMemcpyAsync(l->c->kv_base, (const uint8_t *)t->data + at * row_bytes,
                                 n * row_bytes, cudaMemcpyHostToDevice, l->c->stream));
        check(l, floats ? rose_cuda_floats_run(&l->launch, &pack)
                        : rose_cuda_pack_run(&l->launch, &pack));
    }
}

static void load_matrix(loader *l, const rose_tensor *t, bool transposed,
                        const rose_cuda_linear *to, void *dst)
{
    const rose_cuda_pack pack = {.transposed = transposed, .dst = dst, .k_pad = to->k_pad};
    load_rows(l, t, transposed ? to->n : to->k, transposed ? to->k : to->n, pack, false);
    if (l->st == ROSE_OK && to->cores != NULL && dst == to->w)
        check(l, rose_cuda_cores_run(&l->launch, to));
}

/* A tensor that the model does not have stays zero. */
static void load_floats(loader *l, const rose_tensor *t, float *to, uint64_t rows, uint64_t width)
{
    if (t->data == NULL || to == NULL) return;
    load_rows(l, t, rows, width, (rose_cuda_pack){.dst = to}, true);
}

static void load_linear(loader *l, const rose_linear *from, const rose_cuda_linear *to)
{
    load_matrix(l, &from->w[0], from->transposed, to, to->w);
    load_floats(l, &from->b[0], to->bias, 1, to->n);
}

rose_status rose_cuda_load(rose_cuda *c, const rose_model *m, rose_err *err)
{
    loader l = {
        .c = c, .err = err, .launch = {.device = &c->device, .stream = c->stream, .type = c->type}};
    const rose_cuda_weights *w = &c->weights;
    const uint32_t d = c->arch.d_model;

    check(&l, cudaMemsetAsync(c->weights_base, 0, c->plan.weights, c->stream));
    check(&l, cudaMemsetAsync(c->scratch_base, 0, c->plan.scratch, c->stream));
    for (uint32_t i = 0; i < c->arch.n_layers; i++) {
        const rose_layer *from = &m->layers[i];
        const rose_cuda_layer *to = &w->layers[i];
        load_floats(&l, &from->ln1_w, to->ln1_w, 1, d);
        load_floats(&l, &from->ln1_b, to->ln1_b, 1, d);
        load_linear(&l, &from->qkv, &to->qkv);
        load_linear(&l, &from->proj, &to->proj);
        load_floats(&l, &from->ln2_w, to->ln2_w, 1, d);
        load_floats(&l, &from->ln2_b, to->ln2_b, 1, d);
        load_linear(&l, &from->fc1, &to->fc1);
        load_linear(&l, &from->fc2, &to->fc2);
    }
    load_floats(&l, &m->pos_embed, w->pos, c->plan.max_model_len, d);
    load_floats(&l, &m->lnf_w, w->lnf_w, 1, d);
    load_floats(&l, &m->lnf_b, w->lnf_b, 1, d);
    load_matrix(&l, &m->head, true, &w->head, w->head.w);
    if (w->tok != w->head.w) load_matrix(&l, &m->tok_embed, true, &w->head, w->tok);
    /* KV pages never hold an infinity or a NaN, so a masked position contributes exactly zero. */
    check(&l, cudaMemsetAsync(c->kv_base, 0, c->plan.kv, c->stream));
    check(&l, rose_cuda_finish(c));
    return l.st;
}
