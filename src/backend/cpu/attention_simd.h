/* backend/cpu/attention_simd.h - causal attention over KV pages on vec16 (docs/NUMERICS.md, rule
 * 5). Include after vec_<isa>.h.
 *
 * Three passes. Scores: a K block is a panel of 16 tokens, so a vector holds the scores of a page
 * and the loads of K serve a block of rows. Softmax: row by row over its own positions; what lies
 * outside is masked lane by lane and never mixes. Values: groups of 32 positions that every row
 * sees are done for a block of rows at once; the first and last ones row by row, over its own
 * positions, so that no other slot is read. Pages wholly before the window of all rows are skipped.
 * Bound: one row, bytes of K and V; more, FMA throughput. */
#ifndef ROSE_BACKEND_CPU_ATTENTION_SIMD_H
#define ROSE_BACKEND_CPU_ATTENTION_SIMD_H

#include "backend/cpu/matmul_simd.h"

ROSE_INLINE rose_format kv_type(bool bf16)
{
    return bf16 ? ROSE_BF16 : ROSE_F32;
}

/* The call's view of its scratch. */
typedef struct attention_scratch {
    float *q; /* [n_rows][depth], zero from head_dim to depth */
    float *o; /* [n_rows][depth]: value sums */
    float *s; /* [n_rows][stride]: scores, later probabilities */
    size_t depth, stride;
    float inv[ROSE_ROW_TILE]; /* 1 / sum of a row's probabilities */
} attention_scratch;

static void attention_scratch_init(attention_scratch *t, const rose_attention *a)
{
    t->depth = rose_round_up(a->head_dim, ROSE_K_GROUP);
    t->stride = rose_score_stride(rose_row_end(a, a->n_rows - 1));
    t->q = a->scratch;
    t->o = t->q + a->n_rows * t->depth;
    t->s = t->o + a->n_rows * t->depth;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        memcpy(t->q + r * t->depth, rose_row_q(a, r), a->head_dim * sizeof(float));
        memset(t->q + r * t->depth + a->head_dim, 0, (t->depth - a->head_dim) * sizeof(float));
    }
    memset(t->o, 0, a->n_rows * t->depth * sizeof(float));
}

ROSE_INLINE const uint8_t *page_at(const rose_attention *a, uint32_t page)
{
    return a->kv + (size_t)a->pages[page] * a->page_stride;
}

/* Returns the distance in bytes from a page to the page to prefetch while it is read. That is
 * the same page of the next attention call or, without a next call, the page `step` pages later;
 * 0 if there is none. Pages lie anywhere in memory, so the hardware prefetcher cannot predict
 * them. */
ROSE_INLINE intptr_t ahead_of(const rose_attention *a, uint32_t page, uint32_t step,
                              uint32_t n_pages)
{
    const uint8_t *to = page_at(a, page);
    if (page < a->next_n_pages)
        to = a->next_kv + (size_t)a->next_pages[page] * a->page_stride;
    else if (a->next_n_pages == 0 && page + step < n_pages)
        to = page_at(a, page + step);
    return (intptr_t)to - (intptr_t)page_at(a, page);
}

/* Scores of n_rows rows from `row` against all pages that one of them sees. */
ROSE_INLINE void score_rows(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t n_rows)
{
    uint32_t n_pages = (rose_row_end(a, row + n_rows - 1) + ROSE_PANEL - 1) / ROSE_PANEL;
    size_t group_bytes = (size_t)ROSE_K_GROUP * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *q = t->q + row * t->depth;
    float *s = t->s + row * t->stride;

    for (uint32_t page = rose_row_first(a, row) / ROSE_PANEL; page < n_pages; page++) {
        const uint8_t *k = page_at(a, page);
        intptr_t ahead = ahead_of(a, page, 1, n_pages);
        vec16 acc[ROSE_MAX_ROW_BLOCK];
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            acc[r] = v_zero();
        for (size_t d = 0; d < t->depth; d += ROSE_K_GROUP) {
            vec16 e[ROSE_MAX_ROW_BLOCK], o[ROSE_MAX_ROW_BLOCK];
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                e[r] = o[r] = v_zero();
            v_chains(e, o, k, kv_type(bf16), ROSE_K_GROUP, q + d, t->depth, n_rows, ahead, false);
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                acc[r] = v_add(acc[r], v_add(e[r], o[r]));
            k += group_bytes;
        }
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            v_store(s + r * t->stride + page * ROSE_PANEL, v_mul(acc[r], v_set1(a->scale)));
        }
    }
}

/* Lanes below `first` from b, the others from a. */
ROSE_INLINE vec16 v_from(vec16 a, vec16 b, uint32_t first)
{
    return v_first_of(b, a, first);
}

/* Scores of row r to probabilities; returns 1 / their sum. Lanes outside of its positions may hold
 * anything; in the vectors of its positions they become zero. */
ROSE_INLINE float softmax_row(const rose_attention *a, float *s, uint32_t r, bool bf16)
{
    const uint32_t first = rose_row_first(a, r), n = rose_row_end(a, r);
    const uint32_t from = first / ROSE_PANEL * ROSE_PANEL;
    float lane[ROSE_PANEL], top = -INFINITY;

    vec16 max = v_set1(-INFINITY), cap = v_set1(a->cap);
    for (uint32_t j = from; j < n; j += ROSE_PANEL) {
        vec16 x = v_load(s + j);
        if (a->cap > 0.0f) v_store(s + j, x = v_softcap(x, cap));
        x = v_max(x, max);
        if (j < first) x = v_from(x, max, first - j);
        max = j + ROSE_PANEL <= n ? x : v_first_of(x, max, n - j);
    }
    v_store(lane, max);
    for (uint32_t l = 0; l < ROSE_PANEL; l++)
        top = lane[l] > top ? lane[l] : top;

    max = v_set1(top);
    vec16 sum = v_zero();
    for (uint32_t j = from; j < n; j += ROSE_PANEL) {
        vec16 p = v_exp(v_sub(v_load(s + j), max));
        if (bf16) p = v_round_bf16(p);
        if (j < first) p = v_from(p, v_zero(), first - j);
        p = v_first_of(p, v_zero(), n - j);
        v_store(s + j, p);
        sum = v_add(sum, p);
    }
    return 1.0f / v_tree(sum);
}

/* Value sums of n_rows rows over groups [g, n_groups), all of whose positions they see. */
ROSE_INLINE void value_rows(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t n_rows, uint32_t g, uint32_t n_groups)
{
    size_t v_at = rose_kv_k_bytes(bf16, a->head_dim);
    size_t panel_bytes = (size_t)ROSE_PANEL * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *p = t->s + row * t->stride + g * ROSE_K_GROUP;

    for (; g < n_groups; g++, p += ROSE_K_GROUP) {
        const uint8_t *v0 = page_at(a, 2 * g) + v_at, *v1 = page_at(a, 2 * g + 1) + v_at;
        intptr_t ahead0 = ahead_of(a, 2 * g, 2, 2 * n_groups);
        intptr_t ahead1 = ahead_of(a, 2 * g + 1, 2, 2 * n_groups);
        for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
            vec16 e[ROSE_MAX_ROW_BLOCK], o[ROSE_MAX_ROW_BLOCK];
            float *sum = t->o + row * t->depth + d;
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                e[r] = o[r] = v_zero();
            v_chains(e, o, v0, kv_type(bf16), ROSE_PANEL, p, t->stride, n_rows, ahead0, false);
            v_chains(e, o, v1, kv_type(bf16), ROSE_PANEL, p + ROSE_PANEL, t->stride, n_rows, ahead1,
                     false);
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++) {
                float *y = sum + r * t->depth;
                v_store(y, v_add(v_load(y), v_add(e[r], o[r])));
            }
            v0 += panel_bytes;
            v1 += panel_bytes;
        }
    }
}

/* Adds to e and o, the running sums of one query row, the positions [from, to) of a page of 16. */
ROSE_INLINE void value_page(vec16 *e, vec16 *o, const uint8_t *v, bool bf16, const float *p,
                            uint32_t from, uint32_t to, intptr_t ahead)
{
    const size_t bytes = (size_t)ROSE_PANEL * (bf16 ? 2 : 4); /* of a position */
    if (from >= to) return;
    if (from % 2 == 1) { /* the second of a pair alone */
        const uint8_t *at = v + (size_t)(from - 1) * bytes;
        vec16 w = bf16 ? v_pairs_odd(v_load_pairs(at))
                       : v_load((const float *)(const void *)(at + bytes));
        *o = v_fma(v_set1(p[from]), w, *o);
        from++;
    }
    const uint32_t even = to & ~1u;
    if (from < even)
        v_chains(e, o, v + from * bytes, kv_type(bf16), even - from, p + from, 0, 1, ahead, false);
    if (even == to || even < from) return;
    const uint8_t *at = v + even * bytes;
    vec16 w = bf16 ? v_pairs_even(v_load_pairs(at)) : v_load((const float *)(const void *)at);
    *e = v_fma(v_set1(p[even]), w, *e);
}

/* Positions [from, to) of a group of one row. Zeros that begin a chain leave its +0; those that end
 * it add +0, which changes only -0 and keeps the definition. */
ROSE_INLINE void value_part(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t group, uint32_t from, uint32_t to)
{
    size_t v_at = rose_kv_k_bytes(bf16, a->head_dim);
    size_t panel_bytes = (size_t)ROSE_PANEL * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *p = t->s + row * t->stride + group * ROSE_K_GROUP;
    const bool has0 = from < ROSE_PANEL;
    const bool has1 = to > ROSE_PANEL;
    const uint8_t *v0 = has0 ? page_at(a, 2 * group) + v_at : NULL;
    const uint8_t *v1 = has1 ? page_at(a, 2 * group + 1) + v_at : NULL;
    const intptr_t ahead0 = has0 ? ahead_of(a, 2 * group, 1, 0) : 0;
    const intptr_t ahead1 = has1 ? ahead_of(a, 2 * group + 1, 1, 0) : 0;
    const uint32_t to0 = to < ROSE_PANEL ? to : ROSE_PANEL, from1 = has0 ? 0 : from - ROSE_PANEL;

    for (uint32_t d = 0, at = 0; d < a->head_dim; d += ROSE_PANEL, at += (uint32_t)panel_bytes) {
        float *y = t->o + row * t->depth + d;
        vec16 e = v_zero(), o = v_zero();
        if (has0) value_page(&e, &o, v0 + at, bf16, p, from, to0, ahead0);
        if (has1) value_page(&e, &o, v1 + at, bf16, p + ROSE_PANEL, from1, to - ROSE_PANEL, ahead1);
        if (to < ROSE_K_GROUP - 1) e = v_add(e, v_zero());
        if (to < ROSE_K_GROUP) o = v_add(o, v_zero());
        v_store(y, v_add(v_load(y), v_add(e, o)));
    }
}

/* Groups [g, end) of one row, of each its own positions. */
ROSE_INLINE void value_parts(const rose_attention *a, const attention_scratch *t, bool bf16,
                             uint32_t row, uint32_t g, uint32_t end)
{
    const uint32_t first = rose_row_first(a, row), n = rose_row_end(a, row);
    for (; g < end; g++) {
        const uint32_t at = g * ROSE_K_GROUP, left = n - at;
        value_part(a, t, bf16, row, g, first > at ? first - at : 0,
                   left < ROSE_K_GROUP ? left : ROSE_K_GROUP);
    }
}

ROSE_INLINE uint32_t end_group(const rose_attention *a, uint32_t row)
{
    return (rose_row_end(a, row) + ROSE_K_GROUP - 1) / ROSE_K_GROUP;
}

/* The groups [from, to) that rows `row` .. `last` see whole; from = to if there is none. */
typedef struct group_range {
    uint32_t from, to;
} group_range;

ROSE_INLINE group_range shared_groups(const rose_attention *a, uint32_t row, uint32_t last)
{
    group_range g = {(rose_row_first(a, last) + ROSE_K_GROUP - 1) / ROSE_K_GROUP,
                     rose_row_end(a, row) / ROSE_K_GROUP};
    if (g.to < g.from) g.to = g.from = end_group(a, row) < g.from ? end_group(a, row) : g.from;
    return g;
}

/* Scores, softmax, and values but for the last groups, of n_rows rows (a constant); returns the
 * group up to which they are done. */
ROSE_INLINE uint32_t attend_block(const rose_attention *a, attention_scratch *t, bool bf16,
                                  uint32_t row, uint32_t n_rows)
{
    const group_range shared = shared_groups(a, row, row + n_rows - 1);
    score_rows(a, t, bf16, row, n_rows);
    for (uint32_t r = row; r < row + n_rows; r++) {
        t->inv[r] = softmax_row(a, t->s + r * t->stride, r, bf16);
        if (a->window > 0)
            value_parts(a, t, bf16, r, rose_row_first(a, r) / ROSE_K_GROUP, shared.from);
    }
    value_rows(a, t, bf16, row, n_rows, shared.from, shared.to);
    return shared.to;
}

ROSE_INLINE void finish_row(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t first_group)
{
    value_parts(a, t, bf16, row, first_group, end_group(a, row));
    vec16 inv = v_set1(t->inv[row]);
    for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
        vec16 y = v_mul(v_load(t->o + row * t->depth + d), inv);
        v_store_n(rose_row_out(a, row) + d, bf16 ? v_round_bf16(y) : y, a->head_dim - d);
    }
}

#define BLOCK(rows)                                                                                \
    case rows:                                                                                     \
        return max_block >= (rows) ? attend_block(a, t, bf16, row, rows) : 0

/* max_block: as many rows as the registers can hold, a constant: 8, 4 or 2. */
ROSE_INLINE uint32_t attend_rows(const rose_attention *a, attention_scratch *t, bool bf16,
                                 uint32_t row, uint32_t n_rows, uint32_t max_block)
{
    switch (n_rows) {
        BLOCK(1);
        BLOCK(2);
        BLOCK(3);
        BLOCK(4);
        BLOCK(5);
        BLOCK(6);
        BLOCK(7);
        BLOCK(8);
    default:
        return 0;
    }
}

#undef BLOCK

ROSE_INLINE void attend(const rose_attention *a, bool bf16, uint32_t max_block)
{
    attention_scratch t;
    attention_scratch_init(&t, a);
    for (uint32_t row = 0, n; row < a->n_rows; row += n) {
        n = a->n_rows - row < max_block ? a->n_rows - row : max_block;
        const uint32_t done = attend_rows(a, &t, bf16, row, n, max_block);
        for (uint32_t r = row; r < row + n; r++)
            finish_row(a, &t, bf16, r, done);
    }
}

/* Stores to K are scattered by token slot and stores to V by dimension, so this is scalar code,
 * the same at every level. Rounding is vectorised where whole vectors exist. */
ROSE_INLINE void append_bf16(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                             uint32_t head_dim)
{
    uint32_t *k_pairs = (uint32_t *)(void *)head_block + slot;
    uint16_t *v_half = (uint16_t *)(void *)(head_block + rose_kv_k_bytes(true, head_dim)) +
                       (size_t)(slot / 2) * ROSE_PANEL * 2 + slot % 2;
    uint32_t depth = rose_round_up(head_dim, ROSE_K_GROUP);

    for (uint32_t d = 0; d < depth; d += ROSE_PANEL) {
        uint32_t n = d < head_dim ? head_dim - d : 0, bits[ROSE_PANEL];
        v_int_store(bits, v_bits(v_round_bf16(v_load_n(k + (n > 0 ? d : 0), n))));
        for (uint32_t i = 0; i < ROSE_PANEL; i += 2) {
            k_pairs[(size_t)(d + i) / 2 * ROSE_PANEL] = bits[i] >> 16 | bits[i + 1];
        }
        if (n == 0) continue;
        v_int_store(bits, v_bits(v_round_bf16(v_load_n(v + d, n))));
        uint16_t *out = v_half + (size_t)d * ROSE_PANEL;
        for (uint32_t i = 0; i < ROSE_PANEL && i < n; i++)
            out[2 * i] = (uint16_t)(bits[i] >> 16);
    }
}

ROSE_INLINE void append_row(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                            uint32_t head_dim, bool bf16)
{
    if (bf16)
        append_bf16(head_block, slot, k, v, head_dim);
    else
        rose_kv_append_ref(head_block, slot, k, v, head_dim, false);
}

#endif
