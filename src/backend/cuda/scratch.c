/* backend/cuda/scratch.c - the place of everything that a step uses besides weights and KV pages:
 * activations, logits, and the tables of a step (the header).
 *
 * The layout functions run twice: in plan() without memory, to add up the sizes, and in open() over
 * the allocated region. Threads: any. */
#include "backend/checks.h"
#include "backend/cuda/cuda_internal.h"

enum { TILE_PAIRS = 64 /* pairs of a query row and a head of the group in a tile of attention */ };

/* ---- shapes ---- */

uint32_t rose_cuda_item_rows(const rose_arch *a)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const uint32_t group = m->n_heads / m->n_kv_heads;
    return group < TILE_PAIRS ? TILE_PAIRS / group : 1;
}

rose_attend_limits rose_cuda_attend_limits(const rose_arch *a, const rose_memory_plan *p,
                                           uint32_t sms, uint32_t n)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    return rose_attend_limits_of(sms, m->n_heads, m->n_kv_heads, m->head_dim, n, p->max_model_len,
                                 p->pools[0].n_blocks);
}

void rose_cuda_shape_cuts(rose_cuda_shape *s, const rose_arch *a, const rose_memory_plan *p,
                          uint32_t sms)
{
    s->n_pools = p->n_pools;
    s->n_units = s->n_single > 0 ? rose_cuda_attend_limits(a, p, sms, s->n_single).max_units : 0;
}

/* A sequence has at most one tile for each item_rows of its rows, and one more. */
static rose_cuda_shape largest_shape(const rose_arch *a, const rose_memory_plan *p, uint32_t sms)
{
    rose_cuda_shape s = {.n_rows = p->max_step_tokens,
                         .n_outputs = p->max_step_tokens,
                         .n_single = p->max_seqs,
                         .n_tiles = p->max_seqs + p->max_step_tokens / rose_cuda_item_rows(a),
                         .n_table =
                             p->n_pools * p->max_seqs * (uint32_t)rose_backend_context_pages(p)};
    rose_cuda_shape_cuts(&s, a, p, sms);
    return s;
}

void rose_cuda_layout_header(rose_cuda_header *h, const rose_cuda_shape *s)
{
    rose_bump b = {.align = ROSE_CUDA_ALIGN};
    const uint64_t rows = (uint64_t)s->n_rows * sizeof(uint32_t), pools = s->n_pools;
#define PLACE(field, bytes)                                                                        \
    h->field = b.used;                                                                             \
    rose_bump_take(&b, bytes)
    PLACE(turn, sizeof(uint32_t));
    PLACE(ids, sizeof(uint32_t *));
    PLACE(picks, s->n_outputs * sizeof(rose_cuda_pick));
    PLACE(items, pools * (s->n_single + s->n_tiles) * sizeof(rose_cuda_item));
    PLACE(tokens, rows);
    PLACE(where, rows);
    PLACE(slot, pools * rows);
    PLACE(gather, s->n_outputs * sizeof(uint32_t));
    PLACE(cuttings, pools * sizeof(rose_attend_cutting));
    PLACE(units, pools * s->n_units * sizeof(rose_attend_unit));
    PLACE(folds, pools * s->n_single * sizeof(rose_attend_fold));
    PLACE(tables, s->n_table * sizeof(uint32_t));
#undef PLACE
    h->end = b.used;
}

/* ---- scratch ---- */

static void layout_rows(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                        const rose_memory_plan *p)
{
    const rose_format type = rose_compute_format(p->dtype);
    const uint64_t size = rose_format_size(type);
    const uint64_t rows = rose_align_up(p->max_step_tokens, ROSE_CUDA_ROW_PAD);
    const rose_kind *k = rose_arch_any(a);
    const rose_mixer *m = &k->mixer;
    const uint64_t heads = (uint64_t)m->n_heads * m->head_dim;
    const uint64_t qkv = heads + 2 * (uint64_t)m->n_kv_heads * m->head_dim;
    const bool rotated = a->pos == ROSE_POS_ROPE || m->qk_norm; /* in fp32: rose_cuda_rotary */
    const uint64_t d_ff = k->mlp.d_ff,
                   n_up = rose_align_up((k->mlp.gated ? 2 : 1) * d_ff, ROSE_CUDA_N_PAD);

    s->x = rose_bump_floats(b, rows * a->d_model);
    s->y = rose_norms_after(&k->norms) > 0 ? rose_bump_floats(b, rows * a->d_model) : NULL;
    s->h = rose_bump_take(b, rows * rose_align_up(a->d_model, ROSE_CUDA_K_PAD) * size);
    s->qkv = rose_bump_take(b, rows * qkv * (rotated ? sizeof(float) : size));
    s->q = rose_bump_take(b, rows * m->n_heads * rose_cuda_attend_pad(m->head_dim) * size);
    s->o = rose_bump_take(b, rows * rose_align_up(heads, ROSE_CUDA_K_PAD) * size);
    s->ff = rose_bump_take(b, rows * rose_align_up(d_ff, ROSE_CUDA_K_PAD) * size);
    s->up = (p->without & ROSE_CUDA_WITHOUT_MLP) != 0 ? rose_bump_floats(b, rows * n_up) : NULL;
}

static void layout_outputs(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                           const rose_memory_plan *p)
{
    const uint64_t size = rose_format_size(rose_compute_format(p->dtype));
    const uint64_t most = rose_align_up(p->max_step_tokens, ROSE_CUDA_OUT_BLOCK);

    s->ld_logits = (uint32_t)rose_align_up(a->vocab_size, 32);
    const uint64_t fit = ROSE_CUDA_OUT_BYTES / (s->ld_logits * sizeof(float));
    s->out_block = p->max_seqs < ROSE_CUDA_OUT_BLOCK ? p->max_seqs : ROSE_CUDA_OUT_BLOCK;
    if (s->out_block > fit) s->out_block = fit > 0 ? (uint32_t)fit : 1;
    s->out_h = rose_bump_take(b, rose_align_up(s->out_block, ROSE_CUDA_ROW_PAD) *
                                     rose_align_up(a->d_model, ROSE_CUDA_K_PAD) * size);
    s->logits = rose_bump_floats(b, (uint64_t)s->out_block * s->ld_logits);
    s->key = rose_bump_take(b, most * sizeof *s->key);
    s->sampled = rose_bump_take(b, most * sizeof *s->sampled);
    s->n_changed = s->out_block < ROSE_CUDA_CHANGED ? s->out_block : ROSE_CUDA_CHANGED;
    s->changed = rose_bump_floats(b, (uint64_t)s->n_changed * s->ld_logits);
    s->rules_bytes = rose_cuda_rules_bytes(a->vocab_size);
    s->rules = rose_bump_take(b, s->rules_bytes);
}

static void layout_dense(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                         const rose_memory_plan *p, uint32_t n_table)
{
    s->dense = NULL;
    s->dense_table = NULL;
    s->n_dense = (p->without & ROSE_CUDA_WITHOUT_PAGED) != 0 ? n_table : 0;
    if (s->n_dense == 0) return;
    s->dense = rose_bump_take(b, s->n_dense * rose_cuda_kv_block_bytes(a, 1, p));
    s->dense_table = rose_bump_take(b, s->n_dense * sizeof *s->dense_table);
}

void rose_cuda_layout_scratch(rose_cuda_scratch *s, rose_bump *b, const rose_arch *a,
                              const rose_memory_plan *p, uint32_t sms)
{
    const rose_attend_limits limits = rose_cuda_attend_limits(a, p, sms, p->max_seqs);
    const rose_cuda_shape largest = largest_shape(a, p, sms);
    rose_cuda_header header;

    layout_rows(s, b, a, p);
    layout_outputs(s, b, a, p);
    s->parts = rose_bump_take(b, limits.bytes);
    s->arrivals = rose_bump_take(b, (uint64_t)p->max_seqs * rose_arch_any(a)->mixer.n_kv_heads *
                                        sizeof *s->arrivals);
    layout_dense(s, b, a, p, largest.n_table);
    rose_cuda_layout_header(&header, &largest);
    s->header_bytes = header.end;
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++)
        s->header[i] = rose_bump_take(b, s->header_bytes);
}
