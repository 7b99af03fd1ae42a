/* backend/cuda/weights.c - the place of every weight on the device. The layout runs twice: in
 * plan() without memory, to add up the sizes, and in open() over the allocated region. Sizes cannot
 * overflow 64 bits, because the checks of plan.c limit every dimension first. */
#include "backend/cuda/cuda_internal.h"
#include "model/rope.h"

uint64_t rose_cuda_kv_block_bytes(const rose_arch *a, uint32_t n_layers, const rose_memory_plan *p)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    return (uint64_t)n_layers * m->n_kv_heads * 2 * ROSE_KV_PAGE_TOKENS *
           rose_cuda_attend_pad(m->head_dim) * rose_format_size(rose_compute_format(p->dtype));
}

static void *take_packed(const rose_cuda_matrix *m, rose_bump *b)
{
    return rose_bump_take(b, rose_values_bytes(m->format, (uint64_t)m->n_pad * m->k_pad));
}

/* Shapes and packed values of a layer's matrices. One whose output is added to the residual stream
 * has its sums in four parts (NUMERICS.md, contract 2). */
static void take_matrices(rose_cuda_layer *l, rose_bump *b, const rose_arch *a, uint32_t layer,
                          rose_format format)
{
    rose_matrix_spec specs[ROSE_N_ROLES];
    const size_t n = rose_kind_matrices(a, rose_arch_kind(a, layer), specs);
    *l = (rose_cuda_layer){0};
    for (size_t i = 0; i < n; i++) {
        const rose_matrix_spec *s = &specs[i];
        const bool parts = s->split == ROSE_SPLIT_INPUTS;
        rose_cuda_matrix *m = &l->m[s->role];
        rose_cuda_matrix_shape(m, format, s->k, s->n, parts ? ROSE_GEMM_PARTS : 1,
                               parts ? s->unit : 0, s->gated);
        m->w = take_packed(m, b);
    }
}

static rose_cuda_norm_by take_norm(rose_bump *b, const rose_arch *a, const rose_tensor *w,
                                   const rose_tensor *bias)
{
    rose_cuda_norm_by by = {.kind = ROSE_CUDA_NORM_NONE, .eps = a->norm_eps};
    if (w->data == NULL) return by;
    by.kind = a->norm == ROSE_NORM_LAYER ? ROSE_CUDA_NORM_LAYER : ROSE_CUDA_NORM_RMS;
    by.w = rose_bump_floats(b, a->d_model);
    if (bias != NULL && bias->data != NULL) by.b = rose_bump_floats(b, a->d_model);
    return by;
}

static void take_bias(rose_cuda_matrix *m, rose_bump *b, const rose_linear *from)
{
    m->bias = from->b[0].data != NULL ? rose_bump_floats(b, m->n) : NULL;
}

static void take_vectors(rose_cuda_layer *l, rose_bump *b, const rose_arch *a, uint32_t head_dim,
                         const rose_layer *from)
{
    l->ln1 = take_norm(b, a, &from->ln1_w, &from->ln1_b);
    l->ln2 = take_norm(b, a, &from->ln2_w, &from->ln2_b);
    l->post1 = take_norm(b, a, &from->post1, NULL);
    l->post2 = take_norm(b, a, &from->post2, NULL);
    l->q_norm = from->q_norm.data != NULL ? rose_bump_floats(b, head_dim) : NULL;
    l->k_norm = from->k_norm.data != NULL ? rose_bump_floats(b, head_dim) : NULL;
    for (int i = 0; i < ROSE_N_ROLES; i++)
        take_bias(&l->m[i], b, &from->m[i]);
}

/* Learned positions, or the tables of RoPE. */
static void take_positions(rose_cuda_weights *w, rose_bump *b, const rose_arch *a,
                           uint32_t positions)
{
    w->pos =
        a->pos == ROSE_POS_LEARNED ? rose_bump_floats(b, (uint64_t)positions * a->d_model) : NULL;
    for (uint32_t i = 0; i < a->n_kinds; i++) {
        w->rot_dim[i] = rose_rope_of_kind(a, i) == (int)i ? a->kinds[i].mixer.rope.dim : 0;
        if (w->rot_dim[i] == 0) continue;
        w->cos[i] = rose_bump_floats(b, (uint64_t)positions * (w->rot_dim[i] / 2));
        w->sin[i] = rose_bump_floats(b, (uint64_t)positions * (w->rot_dim[i] / 2));
    }
}

/* The pool of each layer, and its place there. */
static void place_kv(rose_cuda_layer *layers, const rose_arch *a, const rose_memory_plan *p)
{
    uint8_t pool_of_kind[ROSE_MAX_KINDS];
    rose_pool_spec specs[ROSE_MAX_POOLS];
    uint64_t next[ROSE_MAX_POOLS], at = 0;
    const uint32_t n_pools = rose_arch_pools(a, specs, pool_of_kind);
    for (uint32_t i = 0; i < n_pools; i++) {
        next[i] = at;
        at += p->pools[i].block_bytes * p->pools[i].n_blocks;
    }
    for (uint32_t i = 0; i < a->n_layers; i++) {
        layers[i].pool = pool_of_kind[a->kind_of[i]];
        layers[i].kv_at = next[layers[i].pool];
        next[layers[i].pool] += rose_cuda_kv_block_bytes(a, 1, p);
    }
}

/* The small parameters of all layers are stored next to each other, apart from the matrices. Stored
 * between the matrices they made a decode step 26 to 30 us longer on an H100. */
void rose_cuda_layout_weights(rose_cuda_weights *w, rose_bump *b, const rose_model *m,
                              const rose_memory_plan *p)
{
    const rose_arch *a = &m->arch;
    const rose_format format = rose_compute_format(p->dtype);
    rose_cuda_layer nowhere = {0};

    for (uint32_t i = 0; i < a->n_layers; i++)
        take_matrices(w->layers == NULL ? &nowhere : &w->layers[i], b, a, i, format);
    w->head = (rose_cuda_matrix){0};
    rose_cuda_matrix_shape(&w->head, format, a->d_model, a->vocab_size, 1, 0, false);
    w->head.w = take_packed(&w->head, b);
    w->tok = a->tied_head ? w->head.w : take_packed(&w->head, b);
    take_positions(w, b, a, p->max_model_len);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const rose_layer *from = &m->layers[i];
        rose_cuda_layer *l = w->layers == NULL ? &nowhere : &w->layers[i];
        const rose_kind *k = rose_arch_kind(a, i);
        take_vectors(l, b, a, k->mixer.head_dim, from);
        l->scale = rose_arch_scale(a, i);
        l->rope = rose_rope_of_kind(a, a->kind_of[i]);
        l->act = (uint32_t)k->mlp.act;
    }
    w->lnf = take_norm(b, a, &m->lnf_w, &m->lnf_b);
    if (w->layers != NULL) place_kv(w->layers, a, p);
}
