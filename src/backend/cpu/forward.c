/* backend/cpu/forward.c - the forward pass of one step over a ragged batch, and the choice of the
 * next ids. A step is one job of the thread pool. Every compute thread runs step_thread() from
 * start to end and meets the others at barriers. Work is split statically: GEMMs by (row block,
 * panel), row-wise operations by rows, attention by (sequence, head, row tile) weighted by its
 * cost.
 *
 * Many rows go through each layer in blocks, so that the intermediate results are small and stay in
 * the cache. A row sees the K and V of earlier blocks, whose layer is finished.
 *
 * After the K and V of the last layer, only the rows whose logits are needed continue. They are
 * gathered in blocks, so a chunk of a prompt skips most of the last layer.
 *
 * A step allocates nothing (the checked build guards this) and checks nothing, because
 * cpu_backend.c has checked the batch. */
#include "backend/cpu/cpu_internal.h"

#include <string.h>

#include "backend/cpu/numerics.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/sampler.h"
#include "base/allocguard.h"
#include "base/profile.h"
#include "model/convert.h"

typedef struct rose_cpu_step {
    rose_cpu *c;
    const rose_batch *b;
    uint32_t n_slots; /* rows whose logits are needed */
    uint32_t n_tiles, n_blocks;
} step;

/* Every thread has done its share of the op. */
static void op_done(const rose_cpu_worker *w)
{
    rose_pool_barrier(w->c->pool);
}

/* ---- the division of a step into tiles and blocks, on the engine thread before the job begins
 * ---- */

/* Adds to the block the tile that begins at `row`, position `pos`, of sequence seq, whose rows
 * end at `end`. The rows of a tile lie in one KV page, so that one thread makes all writes to a
 * page of one head. */
static uint32_t add_tile(step *s, rose_cpu_block *block, uint32_t seq, uint32_t row, uint32_t end,
                         uint32_t pos)
{
    rose_cpu_scratch *sc = &s->c->scratch;
    const uint32_t room = ROSE_KV_PAGE_TOKENS - pos % ROSE_KV_PAGE_TOKENS;
    const uint32_t n_rows = end - row < room ? end - row : room;
    /* One row streams the keys; further rows of a tile find them in the cache. */
    const rose_mixer *m = &rose_arch_any(&s->c->arch)->mixer;
    const uint32_t group = m->n_heads / m->n_kv_heads;
    const uint32_t cost = 32 + (pos + 1 + n_rows) * (1 + n_rows * (group < 8 ? group : 8));
    rose_cpu_piece *next = &sc->pieces[block->first_piece + block->n_pieces];

    if (block->n_pieces == 0 || next[-1].seq != seq) {
        *next++ = (rose_cpu_piece){.seq = seq, .first_tile = s->n_tiles};
        block->n_pieces++;
    }
    rose_cpu_piece *piece = next - 1;
    sc->tiles[s->n_tiles++] = (rose_cpu_tile){row, n_rows, pos, cost, false};
    piece->n_tiles++;
    piece->cost += cost;
    if (piece->n_tiles > 1) block->shared_pages = true;
    block->n_rows += n_rows;
    block->cost += (uint64_t)cost * m->n_kv_heads;
    return n_rows;
}

/* Makes blocks of nearly equal size. The tile that fills a block closes it. */
static void make_tiles(step *s)
{
    enum { FULL = ROSE_CPU_BLOCK_ROWS - ROSE_ROW_TILE };
    rose_cpu_scratch *sc = &s->c->scratch;
    const rose_batch *b = s->b;
    const uint32_t rows = b->n_tokens,
                   n_blocks = rows <= ROSE_CPU_BLOCK_ROWS ? 1 : (rows + FULL - 1) / FULL,
                   fair = (rows + n_blocks - 1) / n_blocks;
    rose_cpu_block *block = &sc->blocks[0];

    *block = (rose_cpu_block){0};
    for (uint32_t i = 0; i < b->n_seqs;) {
        const rose_batch_seq q = rose_batch_next(b, &i);
        uint32_t row = q.first, pos = q.pos;
        const uint32_t end = row + q.n;
        while (row < end) {
            if (block->n_rows >= fair) {
                const uint32_t piece = block->first_piece + block->n_pieces;
                *++block = (rose_cpu_block){.first_row = row, .first_piece = piece};
            }
            const uint32_t n = add_tile(s, block, i - 1, row, end, pos);
            row += n;
            pos += n;
        }
    }
    s->n_blocks = (uint32_t)(block - sc->blocks) + 1;
}

static rose_cpu_tile *tile_of_row(const step *s, uint32_t row)
{
    rose_cpu_tile *tiles = s->c->scratch.tiles;
    uint32_t lo = 0, hi = s->n_tiles; /* tiles[lo].row <= row < tiles[hi].row */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (tiles[mid].row <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &tiles[lo];
}

/* Neighbouring outputs of the same row share its logits. */
static void make_slots(step *s)
{
    rose_cpu_scratch *sc = &s->c->scratch;
    const rose_batch *b = s->b;

    for (uint32_t i = 0; i < b->n_outputs; i++) {
        const uint32_t row = b->outs[i].row;
        if (i > 0 && row == b->outs[i - 1].row) continue;
        tile_of_row(s, row)->has_output = true;
        sc->slot_row[s->n_slots] = row;
        sc->slot_first[s->n_slots++] = i;
    }
    sc->slot_first[s->n_slots] = b->n_outputs;
}

/* ---- the operations; each thread computes a part of each operation ---- */

static void matmul(rose_cpu_worker *w, const rose_cpu_linear *l, const float *x, size_t ldx,
                   uint32_t rows, float *y, size_t ldy, rose_epilogue epilogue, bool round)
{
    rose_matmul a = {
        .k_pad = l->k_pad,
        .x = x,
        .ldx = ldx,
        .m_rows = rows,
        .gated = l->gated,
        .epilogue = epilogue,
        .cap = w->c->arch.logit_softcap,
        .round_bf16 = round,
        .ldy = ldy,
        .scratch = w->scratch,
    };
    for (const rose_cpu_run *r = l->runs; r < l->runs + l->n_runs; r++) {
        a.w = r->w;
        a.n = r->n;
        a.scale = r->scale;
        a.bias = l->bias != NULL ? l->bias + r->first : NULL;
        a.y = y + r->first;
        rose_cpu_matmul_share(
            rose_cpu_matmul_fn(&w->c->kernels, r->type, w->c->plan.int8_activations), &a, w->tid,
            w->n);
    }
}

static void embed_row(rose_cpu *c, uint32_t id, uint32_t pos, float *x)
{
    const rose_cpu_weights *wt = &c->weights;
    const uint32_t d = c->arch.d_model;

    if (wt->tok.data == NULL) {
        const rose_cpu_run *head = &wt->head.runs[0];
        rose_panel_row(x, head->w, head->scale, head->type, d, id);
    } else {
        rose_tensor_read_f32(&wt->tok, (uint64_t)id * d, d, x);
    }
    if (c->plan.dtype == ROSE_COMPUTE_BF16 && rose_format_is_quant(wt->tok.dtype))
        for (uint32_t i = 0; i < d; i++)
            x[i] = rose_round_bf16(x[i]);
    if (c->arch.embed_scale != 1.0f)
        for (uint32_t i = 0; i < d; i++)
            x[i] = x[i] * c->arch.embed_scale;
    if (wt->pos != NULL)
        for (uint32_t i = 0; i < d; i++)
            x[i] += wt->pos[(size_t)pos * d + i];
}

static void embed(rose_cpu_worker *w)
{
    const rose_batch *b = w->b;
    const rose_cpu_scratch *sc = &w->c->scratch;
    const uint32_t first = (uint32_t)rose_share(b->n_tokens, w->tid, w->n);
    const uint32_t end = (uint32_t)rose_share(b->n_tokens, w->tid + 1, w->n);

    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const rose_batch_seq *q = &b->seqs[i];
        uint32_t row = q->first > first ? q->first : first;
        uint32_t stop = q->first + q->n < end ? q->first + q->n : end;
        for (; row < stop; row++)
            embed_row(w->c, b->tokens[row], q->pos + (row - q->first), sc->x + row * sc->ld_d);
    }
}

static void norm_row(const rose_cpu *c, const float *x, const float *weight, const float *bias,
                     bool round, float *y)
{
    const rose_arch *a = &c->arch;
    if (a->norm == ROSE_NORM_LAYER) {
        c->kernels.layernorm(x, weight, bias, a->norm_eps, a->d_model, round, y);
    } else if (weight != NULL) {
        c->kernels.rmsnorm(x, weight, a->norm_eps, a->d_model, round, y);
    } else { /* this architecture norms what comes out */
        for (uint32_t i = 0; i < a->d_model; i++)
            y[i] = rose_round_if(round, x[i]);
    }
}

/* Normed rows of x, for the product `to` that follows: in h after a barrier, or, when they are few,
 * in each thread's own copy, which costs less than a barrier. */
static const float *norm(rose_cpu_worker *w, const float *x, float *h, uint32_t rows,
                         const float *weight, const float *bias, const rose_cpu_linear *to)
{
    const size_t ld = w->c->scratch.ld_d;
    const bool own = rows <= ROSE_CPU_OWN_ROWS;
    float *out = own ? w->own_h : h;
    uint32_t row = own ? 0 : (uint32_t)rose_share(rows, w->tid, w->n);
    uint32_t end = own ? rows : (uint32_t)rose_share(rows, w->tid + 1, w->n);

    for (; row < end; row++)
        norm_row(w->c, x + row * ld, weight, bias, to->rounds_x, out + row * ld);
    if (!own) op_done(w);
    return out;
}

/* ---- activations and adds ---- */

static const rose_epilogue g_activations[] = {[ROSE_ACT_GELU_TANH] = ROSE_EPI_GELU_TANH,
                                              [ROSE_ACT_GELU_ERF] = ROSE_EPI_GELU_ERF,
                                              [ROSE_ACT_RELU] = ROSE_EPI_RELU,
                                              [ROSE_ACT_SILU] = ROSE_EPI_SILU};

/* x += l's product of `in`, normed first where the architecture has a norm there. */
static void add_branch(rose_cpu_worker *w, const rose_cpu_linear *l, const float *post,
                       const float *in, size_t ld_in, uint32_t rows, float *x)
{
    const rose_cpu *c = w->c;
    const uint32_t d = c->arch.d_model;
    const size_t ld = c->scratch.ld_d;

    if (post == NULL) {
        matmul(w, l, in, ld_in, rows, x, ld, ROSE_EPI_RESIDUAL, false);
        op_done(w);
        return;
    }
    matmul(w, l, in, ld_in, rows, c->scratch.branch, ld, ROSE_EPI_NONE, false);
    op_done(w);
    const uint32_t end = (uint32_t)rose_share(rows, w->tid + 1, w->n);
    for (uint32_t row = (uint32_t)rose_share(rows, w->tid, w->n); row < end; row++) {
        float *y = c->scratch.branch + row * ld, *to = x + row * ld;
        c->kernels.rmsnorm(y, post, c->arch.norm_eps, d, false, y);
        for (uint32_t i = 0; i < d; i++)
            to[i] = to[i] + y[i];
    }
    op_done(w);
}

/* ---- a layer: norm, mixer, add, norm, MLP, add ---- */

/* The mixer of a layer, with the norm before it: from the residual stream to sc->o. */
static void attention(rose_cpu_worker *w, uint32_t layer, const rose_cpu_block *block)
{
    rose_cpu *c = w->c;
    const rose_cpu_scratch *sc = &c->scratch;
    const rose_cpu_layer *l = &c->weights.layers[layer];
    const rose_cpu_linear *m = &l->m[ROSE_QKV];
    const uint32_t rows = block->n_rows;
    const float *x = sc->x + block->first_row * sc->ld_d;
    const bool turned = l->rope >= 0 || l->q_norm != NULL; /* q and k are rounded after that */
    const float *normed =
        norm(w, x, sc->h + block->first_row * sc->ld_d, rows, l->ln1_w, l->ln1_b, m);

    matmul(w, m, normed, sc->ld_d, rows, sc->qkv, sc->ld_qkv, ROSE_EPI_NONE, c->bf16 && !turned);
    op_done(w);
    rose_cpu_attend(w, layer, block);
    op_done(w);
}

/* With the norm before it: from the residual stream x to sc->ff. */
static void mlp(rose_cpu_worker *w, uint32_t layer, const float *x, float *h, uint32_t rows)
{
    const rose_cpu_layer *l = &w->c->weights.layers[layer];
    const rose_act act = rose_arch_kind(&w->c->arch, layer)->mlp.act;
    const rose_cpu_scratch *sc = &w->c->scratch;
    const rose_cpu_linear *m = &l->m[ROSE_UP];
    const float *normed = norm(w, x, h, rows, l->ln2_w, l->ln2_b, m);

    matmul(w, m, normed, sc->ld_d, rows, sc->ff, sc->ld_ff, g_activations[act],
           l->m[ROSE_DOWN].rounds_x);
    op_done(w);
}

/* What follows the mixer, on any set of rows: x is the residual stream, o the mixer's output, h
 * scratch (and maybe the same memory as o). */
static void after_mixer(rose_cpu_worker *w, uint32_t layer, float *x, const float *o, float *h,
                        uint32_t rows)
{
    const rose_cpu_layer *l = &w->c->weights.layers[layer];
    const rose_cpu_scratch *sc = &w->c->scratch;

    add_branch(w, &l->m[ROSE_OUT], l->post1, o, sc->ld_o, rows, x);
    mlp(w, layer, x, h, rows);
    add_branch(w, &l->m[ROSE_DOWN], l->post2, sc->ff, sc->ld_ff, rows, x);
}

/* The last layer ends with its mixer: only rows with outputs go on, in outputs(). */
static void layer(rose_cpu_worker *w, uint32_t i, const rose_cpu_block *block)
{
    const rose_cpu_scratch *sc = &w->c->scratch;
    const size_t at = block->first_row * sc->ld_d;

    attention(w, i, block);
    if (i + 1 < w->c->arch.n_layers)
        after_mixer(w, i, sc->x + at, sc->o + block->first_row * sc->ld_o, sc->h + at,
                    block->n_rows);
}

static void layers(rose_cpu_worker *w)
{
    for (uint32_t i = 0; i < w->c->arch.n_layers; i++) {
        rose_prof_span span = {0};
        if (w->tid == 0) span = rose_prof_begin("cpu.layer");
        for (uint32_t j = 0; j < w->s->n_blocks; j++)
            layer(w, i, &w->c->scratch.blocks[j]);
        rose_prof_end_with(&span, "layer", i);
    }
}

/* Copies the residual stream and the attention output of n slots to the rows of an output block. */
static void gather(rose_cpu_worker *w, uint32_t first, uint32_t n)
{
    const rose_cpu_scratch *sc = &w->c->scratch;
    const rose_arch *a = &w->c->arch;
    const size_t x_bytes = a->d_model * sizeof(float);
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const size_t o_bytes = (size_t)m->n_heads * m->head_dim * sizeof(float);
    uint32_t end = (uint32_t)rose_share(n, w->tid + 1, w->n);

    for (uint32_t i = (uint32_t)rose_share(n, w->tid, w->n); i < end; i++) {
        size_t row = sc->slot_row[first + i];
        memcpy(sc->out_x + i * sc->ld_d, sc->x + row * sc->ld_d, x_bytes);
        memcpy(sc->out_o + i * sc->ld_o, sc->o + row * sc->ld_o, o_bytes);
    }
}

/* Adds the states of slots first .. first+n-1 to their sums. Each thread has a share of the width,
 * so that every sum is in order of the outputs. */
static void add_states(rose_cpu_worker *w, const float *normed, uint32_t first, uint32_t n)
{
    const rose_cpu_scratch *sc = &w->c->scratch;
    const uint32_t d = w->c->arch.d_model;
    const uint32_t begin = (uint32_t)rose_share(d, w->tid, w->n);
    const uint32_t end = (uint32_t)rose_share(d, w->tid + 1, w->n);

    for (uint32_t slot = first; slot < first + n; slot++) {
        const float *x = normed + (slot - first) * sc->ld_d;
        for (uint32_t i = sc->slot_first[slot]; i < sc->slot_first[slot + 1]; i++) {
            float *sum = w->b->outs[i].sum;
            for (uint32_t k = begin; sum != NULL && k < end; k++)
                sum[k] = sum[k] + x[k];
        }
    }
}

/* Chooses the ids of slots first .. first+n-1, whose logits are in the block. */
static void sample_block(rose_cpu_worker *w, uint32_t first, uint32_t n)
{
    rose_cpu *c = w->c;
    const rose_batch *b = w->b;
    const rose_cpu_scratch *sc = &c->scratch;
    const uint32_t vocab = c->arch.vocab_size;
    const uint32_t base = sc->slot_first[first];
    const uint32_t count = sc->slot_first[first + n] - base;
    const uint32_t end = base + (uint32_t)rose_share(count, w->tid + 1, w->n);
    uint32_t slot = first;

    for (uint32_t i = base + (uint32_t)rose_share(count, w->tid, w->n); i < end; i++) {
        while (sc->slot_first[slot + 1] <= i)
            slot++;
        const rose_batch_out *o = &b->outs[i];
        if (o->sum != NULL) {
            sc->ids[i] = ROSE_TOKEN_NONE;
            continue;
        }
        const float *logits = sc->logits + (slot - first) * sc->ld_vocab;
        if (b->logits != NULL)
            memcpy(b->logits + (size_t)i * vocab, logits, vocab * sizeof *logits);
        if (o->rules == NULL)
            sc->ids[i] =
                rose_sampler_pick(&c->kernels, logits, vocab, &o->params, o->pos, w->scratch);
        else
            sc->ids[i] = rose_sampler_run(&c->kernels, logits, vocab, &o->params, o->rules, o->pos,
                                          w->scratch);
    }
}

static void outputs(rose_cpu_worker *w)
{
    rose_prof_span span = {0};
    if (w->tid == 0) span = rose_prof_begin("cpu.outputs");
    rose_cpu *c = w->c;
    const rose_cpu_scratch *sc = &c->scratch;
    const rose_cpu_weights *wt = &c->weights;
    const rose_epilogue of_logits = c->arch.logit_softcap > 0 ? ROSE_EPI_SOFTCAP : ROSE_EPI_NONE;

    for (uint32_t first = 0; first < w->s->n_slots; first += sc->out_block) {
        uint32_t n = w->s->n_slots - first < sc->out_block ? w->s->n_slots - first : sc->out_block;
        gather(w, first, n);
        op_done(w);
        after_mixer(w, c->arch.n_layers - 1, sc->out_x, sc->out_o, sc->out_h, n);
        const float *normed = norm(w, sc->out_x, sc->out_h, n, wt->lnf_w, wt->lnf_b, &wt->head);
        add_states(w, normed, first, n);
        if (rose_batch_needs_logits(w->b, sc->slot_first[first], sc->slot_first[first + n]))
            matmul(w, &wt->head, normed, sc->ld_d, n, sc->logits, sc->ld_vocab, of_logits, false);
        op_done(w);
        sample_block(w, first, n); /* every thread finishes sampling before the first barrier of
                                    * the next block */
    }
    rose_prof_end_with(&span, "rows", w->s->n_slots);
}

static void step_thread(void *arg, uint32_t tid, uint32_t n)
{
    step *s = arg;
    rose_cpu_worker w = {.s = s, .c = s->c, .b = s->b, .tid = tid, .n = n};

    rose_alloc_guard_begin("cpu backend step");
    w.scratch = s->c->scratch.thread + tid * s->c->scratch.thread_stride;
    w.own_h = s->c->scratch.own_h + tid * s->c->scratch.own_stride;
    embed(&w);
    op_done(&w);
    layers(&w);
    outputs(&w);
    rose_alloc_guard_end();
}

void rose_cpu_forward(rose_cpu *c, const rose_batch *b)
{
    step s = {.c = c, .b = b};

    rose_alloc_guard_begin("cpu backend step");
    make_tiles(&s);
    make_slots(&s);
    rose_pool_run(c->pool, step_thread, &s);
    rose_alloc_guard_end();
}
