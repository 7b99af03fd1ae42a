/* backend/cuda/forward.c - launches the kernels of one step in order, for every model family.
 *
 * A layer is: norm, mixer, add, norm, MLP, add. All tables of a step are in the header on the
 * device, and their offsets depend only on the shape of the step. graphs.c captures steps. */
#include "backend/cuda/cuda_internal.h"

/* In steps of up to this many rows all of the L1 is shared memory, so that the next kernel can
 * already be on the SM. Kernels are so short there that this saves 2 to 3 % (2 to 16 rows). From 32
 * rows on it costs 1 to 2 % (H100). */
enum { SHARED_ROWS = 16 };

bool rose_cuda_carveout(uint32_t without, uint32_t n_rows)
{
    return n_rows <= SHARED_ROWS && (without & ROSE_CUDA_WITHOUT_CARVEOUT) == 0;
}

/* ---- a pass ---- */

rose_cuda_pass rose_cuda_pass_begin(rose_cuda_rank *rank, const rose_cuda_shape *s)
{
    rose_cuda_pass p = {.rank = rank,
                        .s = s,
                        .launch = {.device = &rank->device,
                                   .stream = rank->stream,
                                   .type = rank->c->type,
                                   .shared = rose_cuda_carveout(rank->c->without, s->n_rows),
                                   .without = rank->c->without,
                                   .forced = rank->c->forced,
                                   .tuned = &rank->c->tuned}};
    rose_cuda_layout_header(&p.at, s);
    return p;
}

static void note(rose_cuda_pass *p, cudaError_t e)
{
    if (p->e == cudaSuccess) p->e = e;
    p->launch.dependent = p->rank->c->pdl;
}

static void *table(const rose_cuda_pass *p, uint64_t at)
{
    return p->rank->header + at;
}

static void gemm(rose_cuda_pass *p, const rose_cuda_matrix *m, const rose_gemm_io *io)
{
    note(p, rose_gemm_run(&p->launch, m, io));
}

/* ---- norms ---- */

/* The rows of a GEMM are normed rows of x. One kernel if the GEMM norms them itself, else two. */
static void norm(rose_cuda_pass *p, const rose_cuda_norm_by *by, const rose_cuda_matrix *m,
                 rose_gemm_io *io)
{
    rose_cuda_rank *rank = p->rank;
    io->rows = p->s->n_rows;
    io->norm = *by;
    io->x = rank->scratch.x;
    io->ld_x = rank->c->arch.d_model;
    if (rose_gemm_norms(&p->launch, m, io)) return;
    const rose_cuda_norm a = {.x = io->x,
                              .by = *by,
                              .out = rank->scratch.h,
                              .out_k_pad = m->k_pad,
                              .d = rank->c->arch.d_model,
                              .rows = p->s->n_rows};
    note(p, rose_cuda_norm_run(&p->launch, &a));
    io->h = a.out;
}

/* x += m h, or x += norm(m h) in an architecture that norms what a layer adds. */
static void add(rose_cuda_pass *p, const rose_cuda_matrix *m, void *h,
                const rose_cuda_norm_by *post)
{
    rose_cuda_rank *rank = p->rank;
    const bool normed = post->w != NULL;
    float *x = rank->scratch.x;
    const rose_gemm_io io = {.end = ROSE_END_RESIDUAL,
                             .rows = p->s->n_rows,
                             .h = h,
                             .x = normed ? rank->scratch.y : x,
                             .ld_x = rank->c->arch.d_model};
    gemm(p, m, &io);
    if (!normed) return;
    const rose_cuda_norm_add a = {
        .x = x, .y = io.x, .by = *post, .d = rank->c->arch.d_model, .rows = p->s->n_rows};
    note(p, rose_cuda_norm_add_run(&p->launch, &a));
}

/* ---- qkv, rope, attend ---- */

static uint32_t qkv_width(const rose_arch *a)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    return (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
}

/* Rows of the QKV GEMM are rounded to T only after QK-norm and RoPE. */
static bool qkv_f32(const rose_cuda_layer *l)
{
    return l->rope >= 0 || l->q_norm != NULL;
}

static void qkv(rose_cuda_pass *p, const rose_cuda_layer *l)
{
    rose_cuda_rank *rank = p->rank;
    const uint32_t width = qkv_width(&rank->c->arch);
    rose_gemm_io io = {
        .end = ROSE_END_ROWS, .out = rank->scratch.qkv, .out_pitch = width, .out_f32 = qkv_f32(l)};
    norm(p, &l->ln1, &l->m[ROSE_QKV], &io);
    gemm(p, &l->m[ROSE_QKV], &io);
}

rose_cuda_kv rose_cuda_layer_kv(const rose_cuda_rank *rank, uint32_t layer)
{
    const rose_cuda_layer *l = &rank->weights.layers[layer];
    const rose_mixer *m = &rose_arch_kind(&rank->c->arch, layer)->mixer;
    return (rose_cuda_kv){.base = (uint8_t *)rank->kv_base + l->kv_at,
                          .page_elems = rank->c->plan.pools[l->pool].block_bytes /
                                        rose_format_size(rank->c->type),
                          .head_dim = m->head_dim,
                          .hd_pad = rank->c->hd_pad,
                          .n_heads = m->n_kv_heads};
}

static rose_cuda_rotary rotary_of(const rose_cuda_pass *p, uint32_t layer)
{
    const rose_cuda_rank *rank = p->rank;
    const rose_cuda_weights *w = &rank->weights;
    const rose_cuda_layer *l = &w->layers[layer];
    const bool turns = l->rope >= 0;
    return (rose_cuda_rotary){.qkv = rank->scratch.qkv,
                              .qkv_f32 = qkv_f32(l),
                              .rows = p->s->n_rows,
                              .n_q = rose_arch_kind(&rank->c->arch, layer)->mixer.n_heads,
                              .kv = rose_cuda_layer_kv(rank, layer),
                              .slot =
                                  (uint32_t *)table(p, p->at.slot) + (size_t)l->pool * p->s->n_rows,
                              .where = turns ? table(p, p->at.where) : NULL,
                              .q_norm = l->q_norm,
                              .k_norm = l->k_norm,
                              .eps = rank->c->arch.norm_eps,
                              .cos = turns ? w->cos[l->rope] : NULL,
                              .sin = turns ? w->sin[l->rope] : NULL,
                              .rot_dim = turns ? w->rot_dim[l->rope] : 0,
                              .q = rank->scratch.q};
}

/* Whether the decode kernel does the work of rose_cuda_rotary_run: every row is single, and no row
 * sees another one. */
static bool appends(const rose_cuda_pass *p)
{
    return p->s->n_single == p->s->n_rows && !p->s->shared && !p->rank->c->plain &&
           p->rank->scratch.dense == NULL &&
           (p->rank->c->without & ROSE_CUDA_WITHOUT_KV_APPEND) == 0;
}

static void rope(rose_cuda_pass *p, uint32_t layer)
{
    const rose_cuda_rotary a = rotary_of(p, layer);
    if (!appends(p)) note(p, rose_cuda_rotary_run(&p->launch, &a));
}

static void take_cut(const rose_cuda_pass *p, uint32_t pool, rose_cuda_attend *a)
{
    const rose_cuda_shape *s = p->s;
    a->cutting = (rose_attend_cutting *)table(p, p->at.cuttings) + pool;
    a->units = (rose_attend_unit *)table(p, p->at.units) + (size_t)pool * s->n_units;
    a->folds = (rose_attend_fold *)table(p, p->at.folds) + (size_t)pool * s->n_single;
    a->parts = p->rank->scratch.parts;
    a->arrivals = p->rank->scratch.arrivals;
    a->grid_units = s->n_units; /* the launch has no more blocks than the SMs hold */
}

static void singles(rose_cuda_pass *p, uint32_t layer, rose_cuda_attend a)
{
    rose_cuda_rotary fused;
    a.n_items = p->s->n_single;
    a.item_rows = 1;
    if (p->rank->c->plain) {
        note(p, rose_cuda_attend_plain(&p->launch, &a));
        return;
    }
    take_cut(p, p->rank->weights.layers[layer].pool, &a);
    if (appends(p)) {
        fused = rotary_of(p, layer);
        a.fused = &fused;
    }
    note(p, rose_cuda_decode_run(&p->launch, &a));
}

static void tiles(rose_cuda_pass *p, rose_cuda_attend a)
{
    a.items += p->s->n_single;
    a.n_items = p->s->n_tiles;
    a.item_rows = rose_cuda_item_rows(&p->rank->c->arch);
    rose_cuda_launch at = p->launch;
    if (p->rank->c->mma_prompts) at.without |= ROSE_CUDA_WITHOUT_WIDE;
    note(p, p->rank->c->plain || p->rank->c->naive ? rose_cuda_attend_plain(&at, &a)
                                                   : rose_cuda_prompt_run(&at, &a));
}

/* Let attention read dense copies of the pages (--paged-attn off). */
static void gather(rose_cuda_pass *p, rose_cuda_attend *a)
{
    const rose_cuda_scratch *s = &p->rank->scratch;
    rose_cuda_attend from = *a;
    if (s->dense == NULL) return;
    from.n_items = p->s->n_single + p->s->n_tiles;
    note(p, rose_cuda_gather_run(&p->launch, &from, s->dense));
    a->kv.base = s->dense;
    a->kv.page_elems = (uint64_t)a->kv.n_heads * 2 * ROSE_KV_PAGE_TOKENS * a->kv.hd_pad;
    a->tables = s->dense_table;
}

static void attend(rose_cuda_pass *p, uint32_t layer)
{
    const rose_cuda_rank *rank = p->rank;
    const rose_cuda_layer *l = &rank->weights.layers[layer];
    const rose_mixer *m = &rose_arch_kind(&rank->c->arch, layer)->mixer;
    rose_cuda_attend a = {.q = rank->scratch.q,
                          .kv = rose_cuda_layer_kv(rank, layer),
                          .n_q = m->n_heads,
                          .tables = table(p, p->at.tables),
                          .items = rose_cuda_items(table(p, p->at.items), p->s, l->pool),
                          .scale = l->scale,
                          .softcap = m->softcap,
                          .window = rank->c->plan.pools[l->pool].window,
                          .out = rank->scratch.o,
                          .out_k_pad = l->m[ROSE_OUT].k_pad};
    gather(p, &a);
    if (p->s->n_single > 0) singles(p, layer, a);
    if (p->s->n_tiles > 0) tiles(p, a);
}

/* The mixer of a layer, with the norm before it: from the residual stream to scratch.o. */
static void attention(rose_cuda_pass *p, uint32_t layer)
{
    qkv(p, &p->rank->weights.layers[layer]);
    rope(p, layer);
    attend(p, layer);
}

/* ---- mlp ---- */

/* The activation in a kernel of its own (--fused-mlp off). `y` are the rows of the GEMM. */
static void activate(rose_cuda_pass *p, const rose_cuda_layer *l, const float *y, void *to)
{
    const rose_cuda_act a = {.y = y,
                             .n = l->m[ROSE_UP].n,
                             .gated = l->m[ROSE_UP].gated,
                             .act = l->act,
                             .out = to,
                             .out_k_pad = l->m[ROSE_DOWN].k_pad,
                             .rows = p->s->n_rows};
    note(p, rose_cuda_act_run(&p->launch, &a));
}

/* With the norm before it: from the residual stream to scratch.ff. */
static void mlp(rose_cuda_pass *p, const rose_cuda_layer *l)
{
    rose_cuda_rank *rank = p->rank;
    const bool fused = (rank->c->without & ROSE_CUDA_WITHOUT_MLP) == 0;
    void *to = rank->scratch.ff;
    float *y = fused ? NULL : rank->scratch.up;
    rose_gemm_io io = {.end = l->m[ROSE_UP].gated ? ROSE_END_GATED : ROSE_END_ACT,
                       .out = to,
                       .out_pitch = l->m[ROSE_DOWN].k_pad,
                       .act = l->act};
    if (!fused)
        io = (rose_gemm_io){
            .end = ROSE_END_ROWS, .out = y, .out_pitch = l->m[ROSE_UP].n, .out_f32 = true};
    norm(p, &l->ln2, &l->m[ROSE_UP], &io);
    gemm(p, &l->m[ROSE_UP], &io);
    if (!fused) activate(p, l, y, to);
}

/* ---- embedding and outputs ---- */

static void embed(rose_cuda_pass *p)
{
    rose_cuda_rank *rank = p->rank;
    const rose_cuda_embed a = {.tok = rank->weights.tok,
                               .pos = rank->weights.pos,
                               .scale = rank->c->arch.embed_scale,
                               .ids = table(p, p->at.tokens),
                               .sampled = rank->scratch.sampled,
                               .where = table(p, p->at.where),
                               .x = rank->scratch.x,
                               .d = rank->c->arch.d_model,
                               .k_pad = rank->weights.head.k_pad,
                               .rows = p->s->n_rows,
                               .vocab = rank->c->arch.vocab_size};
    note(p, rose_cuda_embed_run(&p->launch, &a));
}

void rose_cuda_pass_sample(rose_cuda_pass *p, uint32_t first, uint32_t n)
{
    rose_cuda_rank *rank = p->rank;
    const rose_cuda_scratch *s = &rank->scratch;
    const rose_cuda_sampler sampler = {.logits = s->logits,
                                       .key = s->key + first,
                                       .pick = (rose_cuda_pick *)table(p, p->at.picks) + first,
                                       .ids = table(p, p->at.ids),
                                       .first = first,
                                       .vocab = rank->c->arch.vocab_size,
                                       .ld_logits = s->ld_logits,
                                       .rows = n,
                                       .sampled = s->sampled};
    note(p, rose_cuda_sampler_run(&p->launch, &sampler));
}

/* The logits of the block, and the key of the largest one of each row. */
static void head(rose_cuda_pass *p, uint32_t first, uint32_t n)
{
    rose_cuda_rank *rank = p->rank;
    const rose_cuda_scratch *s = &rank->scratch;
    const bool fused = (rank->c->without & ROSE_CUDA_WITHOUT_SAMPLER) == 0;
    const rose_gemm_io io = {.end = ROSE_END_LOGITS,
                             .rows = n,
                             .h = s->out_h,
                             .logits = s->logits,
                             .ld_logits = s->ld_logits,
                             .softcap = rank->c->arch.logit_softcap,
                             .key = fused ? s->key + first : NULL};
    gemm(p, &rank->weights.head, &io);
    if (fused) return;
    const rose_cuda_largest a = {.logits = s->logits,
                                 .key = s->key + first,
                                 .vocab = rank->c->arch.vocab_size,
                                 .ld_logits = s->ld_logits,
                                 .rows = n};
    note(p, rose_cuda_largest_run(&p->launch, &a));
}

/* Outputs first .. first + n - 1, at most one block of logits. */
static void outputs(rose_cuda_pass *p, const rose_cuda_step *step, uint32_t first, uint32_t n)
{
    rose_cuda_rank *rank = p->rank;
    const rose_cuda_scratch *s = &rank->scratch;
    const rose_cuda_weights *w = &rank->weights;
    const rose_cuda_norm gathered = {.x = s->x,
                                     .by = w->lnf,
                                     .gather = (uint32_t *)table(p, p->at.gather) + first,
                                     .key = s->key + first,
                                     .out = s->out_h,
                                     .out_k_pad = w->head.k_pad,
                                     .d = rank->c->arch.d_model,
                                     .rows = n};
    note(p, rose_cuda_norm_run(&p->launch, &gathered));
    if (step != NULL && !rose_batch_needs_logits(step->batch, first, first + n)) return;
    head(p, first, n);
    rose_cuda_pass_sample(p, first, n);
}

static cudaError_t copy_logits(rose_cuda_rank *rank, const rose_batch *b, uint32_t first,
                               uint32_t n)
{
    const size_t row = rank->c->arch.vocab_size * sizeof(float);
    return cudaMemcpy2DAsync(b->logits + (size_t)first * rank->c->arch.vocab_size, row,
                             rank->scratch.logits, rank->scratch.ld_logits * sizeof(float), row, n,
                             cudaMemcpyDeviceToHost, rank->stream);
}

cudaError_t rose_cuda_after(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                            uint32_t n)
{
    const rose_batch *b = step->batch;
    cudaError_t e =
        rose_batch_has_rules(b) ? rose_cuda_rules_run(rank, step, first, n) : cudaSuccess;
    if (e == cudaSuccess && step->slot->n_sums > 0) e = rose_cuda_sums_run(rank, step, first, n);
    if (e == cudaSuccess && b->logits != NULL) e = copy_logits(rank, b, first, n);
    return e;
}

cudaError_t rose_cuda_forward(rose_cuda_rank *rank, const rose_cuda_shape *s,
                              const rose_cuda_step *step)
{
    rose_cuda_pass p = rose_cuda_pass_begin(rank, s);
    embed(&p);
    for (uint32_t i = 0; i < rank->c->arch.n_layers; i++) {
        const rose_cuda_layer *l = &rank->weights.layers[i];
        attention(&p, i);
        add(&p, &l->m[ROSE_OUT], rank->scratch.o, &l->post1);
        mlp(&p, l);
        add(&p, &l->m[ROSE_DOWN], rank->scratch.ff, &l->post2);
    }
    for (uint32_t first = 0; first < s->n_outputs; first += rank->scratch.out_block) {
        const uint32_t left = s->n_outputs - first;
        const uint32_t n = left < rank->scratch.out_block ? left : rank->scratch.out_block;
        outputs(&p, step, first, n);
        if (step != NULL && p.e == cudaSuccess) p.e = rose_cuda_after(rank, step, first, n);
    }
    return p.e;
}
