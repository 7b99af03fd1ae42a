/* backend/cuda/mega.c - the host side of megakernel.cu: decides whether this model, these options
 * and this GPU can run the megakernel, and fills its arguments. Everything else runs as a graph of
 * kernels. */
#include <stddef.h>

#include "backend/cuda/cuda_internal.h"

static bool shapes_fit(const rose_cuda *c)
{
    const rose_arch *a = &c->arch;
    return c->type != ROSE_CUDA_F32 && a->head_dim == ROSE_CUDA_MEGA_HEAD_DIM &&
           a->d_model <= ROSE_CUDA_MEGA_MAX_D && a->d_ff % a->d_model == 0 &&
           a->d_ff / a->d_model <= ROSE_CUDA_MEGA_MAX_FF_TILES &&
           a->n_layers <= ROSE_CUDA_MEGA_MAX_LAYERS;
}

/* Whether the distance between the parameters of one layer and the next is the same for all layers.
 */
static bool layers_even(const rose_cuda *c, uint64_t *w_stride, uint64_t *p_stride)
{
    const rose_cuda_layer *l = c->weights.layers;
    *w_stride = *p_stride = 0;
    for (uint32_t i = 0; i + 1 < c->arch.n_layers; i++) {
        const ptrdiff_t w = (uint8_t *)l[i + 1].qkv.w - (uint8_t *)l[i].qkv.w;
        const ptrdiff_t p = l[i + 1].ln1_w - l[i].ln1_w;
        const bool same = (l[i].qkv.bias == NULL) == (l[0].qkv.bias == NULL) &&
                          (l[i].proj.bias == NULL) == (l[0].proj.bias == NULL) &&
                          (l[i].fc1.bias == NULL) == (l[0].fc1.bias == NULL) &&
                          (l[i].fc2.bias == NULL) == (l[0].fc2.bias == NULL);
        if (!same || (i > 0 && ((uint64_t)w != *w_stride || (uint64_t)p != *p_stride)))
            return false;
        *w_stride = (uint64_t)w;
        *p_stride = (uint64_t)p;
    }
    return true;
}

static uint32_t shared_bytes(const rose_cuda *c)
{
    const uint32_t d = c->arch.d_model, ff = c->arch.d_ff / d;
    const uint32_t splits = (c->plan.max_model_len + ROSE_CUDA_SPLIT - 1) / ROSE_CUDA_SPLIT;
    return ROSE_CUDA_MEGA_FIXED + (4 + 2 * ff) * d * 16 + d * ff * 2 +
           splits * ROSE_CUDA_MEGA_PART_BYTES;
}

static void fill_model(rose_cuda_mega *m, const rose_cuda *c)
{
    const rose_cuda_weights *w = &c->weights;
    const rose_cuda_layer *l = w->layers;

    m->tok = w->tok;
    m->pos = w->pos;
    m->w[0] = l->qkv.w;
    m->w[1] = l->proj.w;
    m->w[2] = l->fc1.w;
    m->w[3] = l->fc2.w;
    m->ln1_w = l->ln1_w;
    m->ln1_b = l->ln1_b;
    m->ln2_w = l->ln2_w;
    m->ln2_b = l->ln2_b;
    m->b_qkv = l->qkv.bias;
    m->b_proj = l->proj.bias;
    m->b_fc1 = l->fc1.bias;
    m->b_fc2 = l->fc2.bias;
    m->lnf_w = w->lnf_w;
    m->lnf_b = w->lnf_b;
    m->head = w->head.w;
    for (uint32_t i = 0; i < c->arch.n_layers; i++)
        m->scale[i] = l[i].scale;
}

void rose_cuda_mega_place(rose_cuda *c)
{
    const rose_cuda_shape one = {.n_rows = 1, .n_outputs = 1, .n_single = 1};
    rose_cuda_mega *m = &c->mega;
    rose_cuda_header at;
    rose_cuda_layout_header(&at, &one);
    m->tokens = (void *)(c->header + at.tokens);
    m->where = (void *)(c->header + at.where);
    m->slot = (void *)(c->header + at.slot);
    m->table = (void *)(c->header + at.tables);
    m->turn = (void *)(c->header + at.turn);
}

rose_status rose_cuda_mega_open(rose_cuda *c, rose_err *err)
{
    const rose_arch *a = &c->arch;
    rose_cuda_mega *m = &c->mega;

    c->has_mega = false;
    if (!shapes_fit(c) || !layers_even(c, &m->w_stride, &m->p_stride)) return ROSE_OK;
    m->sampled = c->scratch.sampled;
    fill_model(m, c);
    m->kv = rose_cuda_layer_kv(c, 0);
    m->kv_layer = c->plan.kv_page / a->n_layers / rose_cuda_type_size(c->type);
    m->x = c->scratch.slots;
    m->x_mid = m->x + ROSE_CUDA_MEGA_MAX_D;
    m->attended = m->x_mid + ROSE_CUDA_MEGA_MAX_D;
    m->hidden = m->attended + ROSE_CUDA_MEGA_MAX_D / 2;
    m->logits = c->scratch.logits;
    m->key = c->scratch.key;
    m->eps = a->norm_eps;
    m->d = a->d_model;
    m->ff_tiles = a->d_ff / a->d_model;
    m->n_heads = a->n_heads;
    m->n_layers = a->n_layers;
    m->vocab = a->vocab_size;
    m->act = (uint32_t)a->act;
    m->shared_bytes = shared_bytes(c);
    const cudaError_t e = rose_cuda_mega_fits(&c->device, c->type, m, &c->has_mega);
    return e == cudaSuccess ? ROSE_OK : rose_cuda_fail(err, e, "preparing the megakernel");
}
