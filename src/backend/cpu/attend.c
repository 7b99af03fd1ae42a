/* backend/cpu/attend.c - attention of one layer over a block of rows: QK-norm and RoPE, the store
 * into KV pages, and the calls of the attention kernel. Work is split into (sequence, KV head, row
 * tile), weighted by its cost: what one thread turns, stores and reads of a tile is its own. */
#include "backend/cpu/cpu_internal.h"

/* A place in the list of a block's (piece, KV head, tile), in this order. */
typedef struct cursor {
    uint32_t piece, head, tile;
} cursor;

/* The first place with at least `cost` before it. */
static cursor cursor_at(const rose_cpu_worker *w, const rose_cpu_block *block, uint64_t cost)
{
    const rose_cpu_scratch *sc = &w->c->scratch;
    const uint32_t n_heads = rose_arch_any(&w->c->arch)->mixer.n_kv_heads,
                   end = block->first_piece + block->n_pieces;
    cursor at = {block->first_piece, 0, 0};

    for (; at.piece < end; at.piece++) {
        const rose_cpu_piece *q = &sc->pieces[at.piece];
        if (cost >= q->cost * n_heads) {
            cost -= q->cost * n_heads;
            continue;
        }
        at.head = (uint32_t)(cost / q->cost);
        cost %= q->cost;
        while (at.tile < q->n_tiles && cost > 0) {
            uint32_t tile_cost = sc->tiles[q->first_tile + at.tile++].cost;
            cost = cost > tile_cost ? cost - tile_cost : 0;
        }
        if (at.tile == q->n_tiles) {
            at.tile = 0;
            at.head++;
        }
        if (at.head == n_heads) at = (cursor){at.piece + 1, 0, 0};
        break;
    }
    return at;
}

static void cursor_next(const rose_cpu_worker *w, cursor *at)
{
    if (++at->tile < w->c->scratch.pieces[at->piece].n_tiles) return;
    at->tile = 0;
    if (++at->head < rose_arch_any(&w->c->arch)->mixer.n_kv_heads) return;
    at->head = 0;
    at->piece++;
}

static bool cursor_before(const cursor *a, const cursor *b)
{
    if (a->piece != b->piece) return a->piece < b->piece;
    if (a->head != b->head) return a->head < b->head;
    return a->tile < b->tile;
}

/* What a thread does of one block's attention in one layer. */
typedef struct attending {
    const rose_cpu_worker *w;
    const rose_cpu_block *block;
    const rose_mixer *m; /* of the layer */
    uint32_t layer;
    cursor to;
} attending;

/* The layer's pages of a piece's sequence. */
static const uint32_t *pages_of(const attending *n, const rose_cpu_piece *q)
{
    return n->w->b->seqs[q->seq].table[n->w->c->weights.layers[n->layer].pool];
}

/* QK-norm and RoPE of one head of one row, in place. */
static void turn(const rose_cpu *c, const rose_cpu_layer *l, uint32_t hd, const float *weight,
                 float *x, uint32_t pos)
{
    const bool rotates = l->rope >= 0;
    if (weight != NULL) c->kernels.rmsnorm(x, weight, c->arch.norm_eps, hd, c->bf16 && !rotates, x);
    if (!rotates) return;
    const rose_cpu_rope *r = &c->weights.rope[l->rope];
    const size_t at = (size_t)pos * r->half;
    c->kernels.rope(x, r->cos + at, r->sin + at, r->half, hd, c->bf16);
}

static void append_tile(const attending *n, const cursor *at, const rose_cpu_tile *t)
{
    rose_cpu *c = n->w->c;
    const rose_cpu_scratch *sc = &c->scratch;
    const rose_cpu_layer *l = &c->weights.layers[n->layer];
    const size_t hd = n->m->head_dim, first_k = n->m->n_heads * hd;
    const uint32_t page = pages_of(n, &sc->pieces[at->piece])[t->pos / ROSE_KV_PAGE_TOKENS];
    uint8_t *head = l->kv + page * l->kv_block_bytes + at->head * c->kv_head_bytes;

    for (uint32_t i = 0; i < t->n_rows; i++) {
        float *k =
            sc->qkv + (t->row - n->block->first_row + i) * sc->ld_qkv + first_k + at->head * hd;
        turn(c, l, (uint32_t)hd, l->k_norm, k, t->pos + i);
        c->kernels.kv_append(head, (t->pos + i) % ROSE_KV_PAGE_TOKENS, k, k + n->m->n_kv_heads * hd,
                             (uint32_t)hd, c->bf16);
    }
}

/* What follows at `at` before `to`, for the prefetch: unless it is this head again. */
static void attend_next(const attending *n, cursor at, rose_attention *a)
{
    const rose_cpu *c = n->w->c;
    const cursor here = at;
    cursor_next(n->w, &at);
    if (!cursor_before(&at, &n->to) || (at.piece == here.piece && at.head == here.head)) return;
    const rose_cpu_piece *q = &c->scratch.pieces[at.piece];
    const rose_cpu_tile *t = &c->scratch.tiles[q->first_tile + at.tile];
    a->next_kv = c->weights.layers[n->layer].kv + at.head * c->kv_head_bytes;
    a->next_pages = pages_of(n, q);
    a->next_n_pages = (t->pos + t->n_rows - 1) / ROSE_KV_PAGE_TOKENS + 1;
}

/* How many query heads of a group share a call, so that the calls are as few, and so as full, as
 * they can be: the larger number if it makes no difference. */
static uint32_t heads_of_call(uint32_t group, uint32_t tokens)
{
    uint32_t best = 1, fewest = UINT32_MAX;
    for (uint32_t heads = 1; heads <= group && heads <= ROSE_ROW_TILE; heads++) {
        const uint32_t most = ROSE_ROW_TILE / heads;
        const uint32_t calls = (group + heads - 1) / heads * ((tokens + most - 1) / most);
        if (calls > fewest) continue;
        fewest = calls;
        best = heads;
    }
    return best;
}

/* Query heads of a KV head read its keys together, as many rows as a call takes. */
static void attend_group(const rose_cpu *c, const rose_attention *tile, uint32_t group,
                         uint32_t tokens)
{
    const uint32_t step = heads_of_call(group, tokens), most = ROSE_ROW_TILE / step;
    for (uint32_t h = 0; h < group; h += step) {
        const uint32_t heads = group - h < step ? group - h : step;
        for (uint32_t i = 0; i < tokens; i += most) {
            rose_attention a = *tile;
            a.q += i * a.ldq + (size_t)h * a.head_dim;
            a.out += i * a.ldo + (size_t)h * a.head_dim;
            a.n_heads = heads;
            a.n_rows = (tokens - i < most ? tokens - i : most) * heads;
            a.n_ctx += i;
            c->kernels.attention(&a);
        }
    }
}

static void attend_tile(const attending *n, const cursor *at, const rose_cpu_tile *t)
{
    rose_cpu *c = n->w->c;
    const rose_cpu_scratch *sc = &c->scratch;
    const rose_cpu_layer *l = &c->weights.layers[n->layer];
    const uint32_t hd = n->m->head_dim, group = n->m->n_heads / n->m->n_kv_heads;
    const size_t column = (size_t)at->head * group * hd;
    float *q = sc->qkv + (t->row - n->block->first_row) * sc->ld_qkv + column;
    rose_attention a = {
        .q = q,
        .ldq = sc->ld_qkv,
        .ldo = sc->ld_o,
        .n_ctx = t->pos + 1,
        .window = n->m->window,
        .head_dim = hd,
        .scale = l->scale,
        .cap = n->m->softcap,
        .kv = l->kv + at->head * c->kv_head_bytes,
        .page_stride = l->kv_block_bytes,
        .pages = pages_of(n, &sc->pieces[at->piece]),
        .bf16 = c->bf16,
        .out = sc->o + t->row * sc->ld_o + column,
        .scratch = n->w->scratch,
    };
    for (uint32_t i = 0; i < t->n_rows * group; i++)
        turn(c, l, hd, l->q_norm, q + i / group * sc->ld_qkv + (size_t)(i % group) * hd,
             t->pos + i / group);
    attend_next(n, *at, &a);
    attend_group(c, &a, group, t->n_rows);
}

/* The rows of a piece with one tile are appended by the thread that attends with them; those of a
 * longer one must all be in the pages before any thread reads them. */
void rose_cpu_attend(const rose_cpu_worker *w, uint32_t layer, const rose_cpu_block *block)
{
    const rose_cpu_scratch *sc = &w->c->scratch;
    const bool all = layer + 1 < w->c->arch.n_layers;
    const cursor from = cursor_at(w, block, rose_share(block->cost, w->tid, w->n));
    const attending n = {w, block, &rose_arch_kind(&w->c->arch, layer)->mixer, layer,
                         cursor_at(w, block, rose_share(block->cost, w->tid + 1, w->n))};

    if (block->shared_pages) {
        for (cursor at = from; cursor_before(&at, &n.to); cursor_next(w, &at)) {
            const rose_cpu_piece *q = &sc->pieces[at.piece];
            if (q->n_tiles > 1) append_tile(&n, &at, &sc->tiles[q->first_tile + at.tile]);
        }
        rose_pool_barrier(w->c->pool);
    }
    for (cursor at = from; cursor_before(&at, &n.to); cursor_next(w, &at)) {
        const rose_cpu_piece *q = &sc->pieces[at.piece];
        const rose_cpu_tile *t = &sc->tiles[q->first_tile + at.tile];
        if (q->n_tiles == 1) append_tile(&n, &at, t);
        if (all || t->has_output) attend_tile(&n, &at, t);
    }
}
