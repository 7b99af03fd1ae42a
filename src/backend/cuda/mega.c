/* backend/cuda/mega.c - the host side of megakernel.cu: decides whether this model and this GPU can
 * run the megakernel, fills its arguments and owns its memory. Other models run as a graph of
 * kernels. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/mega.h"

typedef struct rose_cuda_mega {
    rose_mega args;
    void *memory; /* device memory: layers, then slots */
} rose_cuda_mega;

/* ---- what fits ---- */

/* What the megakernel cannot leave out. */
enum {
    NEEDED = ROSE_CUDA_WITHOUT_OPS | ROSE_CUDA_WITHOUT_MLP | ROSE_CUDA_WITHOUT_SAMPLER |
             ROSE_CUDA_WITHOUT_KV_APPEND | ROSE_CUDA_WITHOUT_PAGED | ROSE_CUDA_WITHOUT_WIDE
};

static bool sizes_fit(const rose_cuda_rank *rank)
{
    const rose_arch *a = &rank->c->arch;
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const rose_memory_plan *p = &rank->c->plan;
    return rank->device.hopper && (rank->c->without & NEEDED) == 0 && p->n_pools == 1 &&
           p->pools[0].window == 0 && rank->c->type != ROSE_F32 &&
           (m->head_dim == 64 || m->head_dim == 128) && rank->c->hd_pad == m->head_dim &&
           m->n_heads % m->n_kv_heads == 0 && m->n_heads / m->n_kv_heads <= ROSE_MEGA_MAX_GROUP &&
           a->d_model <= ROSE_MEGA_MAX_D && a->d_model % 16 == 0 &&
           rose_arch_any(a)->mlp.d_ff % 16 == 0 && m->softcap == 0;
}

static bool norm_fits(const rose_cuda_norm_by *by)
{
    return by->kind != ROSE_CUDA_NORM_NONE && by->w != NULL;
}

/* Whether the layer has the parts that the megakernel computes. */
static bool layer_fits(const rose_cuda_layer *l)
{
    return norm_fits(&l->ln1) && norm_fits(&l->ln2) && l->post1.w == NULL && l->post2.w == NULL &&
           (l->q_norm == NULL) == (l->k_norm == NULL);
}

static bool same_shape(const rose_cuda_matrix *a, const rose_cuda_matrix *b)
{
    return a->format == b->format && a->k == b->k && a->k_pad == b->k_pad && a->n == b->n &&
           a->n_pad == b->n_pad && a->n_parts == b->n_parts && a->gated == b->gated &&
           memcmp(a->cut, b->cut, (a->n_parts + 1) * sizeof *a->cut) == 0;
}

static bool layers_fit(const rose_cuda_rank *rank)
{
    const rose_cuda_layer *l = rank->weights.layers;
    int rope = -1; /* the layers that rotate use the same tables */
    for (uint32_t i = 0; i < rank->c->arch.n_layers; i++) {
        if (!layer_fits(&l[i])) return false;
        for (int r = 0; r < ROSE_N_ROLES; r++)
            if (!same_shape(&l[i].m[r], &l[0].m[r])) return false;
        if (l[i].rope >= 0 && rope >= 0 && l[i].rope != rope) return false;
        if (l[i].rope >= 0) rope = l[i].rope;
    }
    return true;
}

/* ---- arguments ---- */

static const rose_mega_op op_of[ROSE_N_ROLES] = {[ROSE_QKV] = ROSE_MEGA_QKV,
                                                 [ROSE_OUT] = ROSE_MEGA_OUT,
                                                 [ROSE_UP] = ROSE_MEGA_UP,
                                                 [ROSE_DOWN] = ROSE_MEGA_DOWN};

static rose_mega_layer layer_of(const rose_cuda_rank *rank, uint32_t i)
{
    const rose_cuda_layer *l = &rank->weights.layers[i];
    rose_mega_layer to;
    memset(&to, 0, sizeof to);
    for (int r = 0; r < ROSE_N_ROLES; r++) {
        to.w[op_of[r]] = l->m[r].w;
        to.bias[op_of[r]] = l->m[r].bias;
    }
    to.norm[0] = l->ln1;
    to.norm[1] = l->ln2;
    to.q_norm = l->q_norm;
    to.k_norm = l->k_norm;
    to.kv = rose_cuda_layer_kv(rank, i).base;
    to.scale = l->scale;
    to.rope = l->rope >= 0;
    return to;
}

static void fill_model(rose_mega *a, const rose_cuda_rank *rank)
{
    const rose_cuda_weights *w = &rank->weights;
    const rose_cuda_layer *l = w->layers;
    a->last = w->lnf;
    a->head = w->head.w;
    a->tok = w->tok;
    a->tok_k_pad = w->head.k_pad;
    a->pos = w->pos;
    for (uint32_t i = 0; i < rank->c->arch.n_layers; i++)
        if (l[i].rope >= 0) {
            a->cos = w->cos[l[i].rope];
            a->sin = w->sin[l[i].rope];
            a->rot_dim = w->rot_dim[l[i].rope];
        }
    for (int r = 0; r < ROSE_N_ROLES; r++)
        rose_mega_matrix_of(&a->matrix[op_of[r]], &l->m[r]);
    rose_mega_matrix_of(&a->matrix[ROSE_MEGA_HEAD], &w->head);
}

static void fill_args(rose_mega *a, const rose_cuda_rank *rank)
{
    const rose_arch *arch = &rank->c->arch;
    const rose_kind *any = rose_arch_any(arch);
    fill_model(a, rank);
    a->sampled = rank->scratch.sampled;
    a->logits = rank->scratch.logits;
    a->key = rank->scratch.key;
    a->page_elems = rose_cuda_layer_kv(rank, 0).page_elems;
    a->embed_scale = arch->embed_scale;
    a->eps = arch->norm_eps;
    a->softcap = arch->logit_softcap;
    a->d = arch->d_model;
    a->n_layers = arch->n_layers;
    a->n_q = any->mixer.n_heads;
    a->n_kv = any->mixer.n_kv_heads;
    a->head_dim = any->mixer.head_dim;
    a->vocab = arch->vocab_size;
    a->act = (uint32_t)any->mlp.act;
    a->gated = rank->weights.layers->m[ROSE_UP].gated;
}

/* ---- memory ---- */

/* The table of layers and the slots, in one allocation. */
static cudaError_t fill_memory(rose_cuda_mega *m, const rose_cuda_rank *rank,
                               rose_mega_layer *layers)
{
    rose_mega *a = &m->args;
    const uint32_t positions = rank->c->plan.max_model_len;
    const size_t table =
        (a->n_layers * sizeof *layers + ROSE_CUDA_ALIGN - 1) / ROSE_CUDA_ALIGN * ROSE_CUDA_ALIGN;
    const size_t bytes = table + rose_mega_layout(a, NULL, positions) * sizeof(uint64_t);
    cudaError_t e = cudaMalloc(&m->memory, bytes);
    if (e != cudaSuccess) return e;
    a->layers = m->memory;
    rose_mega_layout(a, (uint64_t *)(void *)((uint8_t *)m->memory + table), positions);
    for (uint32_t i = 0; i < a->n_layers; i++)
        layers[i] = layer_of(rank, i);
    /* Slots with number 0 are from no step. */
    e = cudaMemsetAsync(m->memory, 0, bytes, rank->stream);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(m->memory, layers, a->n_layers * sizeof *layers, cudaMemcpyHostToDevice,
                            rank->stream);
    return e != cudaSuccess ? e : cudaStreamSynchronize(rank->stream);
}

/* The graph of one sequence comes first; its shape gives the places of the tables. */
static cudaError_t run(rose_cuda_rank *rank, const rose_cuda_launch *at)
{
    rose_mega a = rank->mega->args;
    rose_cuda_header h;
    rose_cuda_layout_header(&h, &rank->graphs[0].shape);
    a.tokens = (void *)(rank->header + h.tokens);
    a.where = (void *)(rank->header + h.where);
    a.slot = (void *)(rank->header + h.slot);
    a.table = (void *)(rank->header + h.tables);
    a.turn = (void *)(rank->header + h.turn);
    return rose_mega_run(at, &a);
}

rose_status rose_cuda_mega_open(rose_cuda_rank *rank, rose_err *err)
{
    bool fits = false;
    cudaError_t e = cudaSuccess;

    if (!sizes_fit(rank) || !layers_fit(rank) || !norm_fits(&rank->weights.lnf)) return ROSE_OK;
    rose_cuda_mega *m = calloc(1, sizeof *m);
    rose_mega_layer *layers = calloc(rank->c->arch.n_layers, sizeof *layers);
    rank->mega = m;
    if (m == NULL || layers == NULL) {
        free(layers);
        return rose_fail(err, ROSE_E_NOMEM, "megakernel: out of memory");
    }
    fill_args(&m->args, rank);
    if (rose_mega_measure(&m->args, rank->device.sms, rank->device.shared_max)) {
        e = rose_mega_prepare(&rank->device, rank->c->type, &m->args, &fits);
        if (e == cudaSuccess && fits) e = fill_memory(m, rank, layers);
        if (e == cudaSuccess && fits) rank->fast = run;
    }
    free(layers);
    return rose_cuda_status(err, e, "preparing the megakernel");
}

void rose_cuda_mega_close(rose_cuda_rank *rank)
{
    if (rank->mega == NULL) return;
    cudaFree(rank->mega->memory);
    free(rank->mega);
    rank->mega = NULL;
    rank->fast = NULL;
}
