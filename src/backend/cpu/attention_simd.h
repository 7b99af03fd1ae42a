/* backend/cpu/attention_simd.h - causal attention over KV pages on vec16 (docs/NUMERICS.md, rule
 * 5). Include after vec_<isa>.h.
 *
 * There are three passes. Scores: a K block is a panel of 16 tokens, so a vector holds the scores
 * of one page. Each load of K serves a whole block of rows. Softmax: row by row over the row's own
 * key count; lanes past it are masked and never mix with others. Values: groups of 32 positions
 * that every row sees are computed for the whole block. The remaining positions are computed row by
 * row up to the row's own key count, so that no slot past it is read.
 *
 * The limit for one row is reading K and V; for more rows it is FMA throughput. */
#ifndef ROSE_BACKEND_CPU_ATTENTION_SIMD_H
#define ROSE_BACKEND_CPU_ATTENTION_SIMD_H

#include "backend/cpu/matmul_simd.h"

ROSE_INLINE rose_weight_type kv_type(bool bf16)
{
    return bf16 ? ROSE_W_BF16 : ROSE_W_F32;
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
    t->stride = rose_score_stride(a->n_ctx + a->n_rows - 1);
    t->q = a->scratch;
    t->o = t->q + a->n_rows * t->depth;
    t->s = t->o + a->n_rows * t->depth;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        memcpy(t->q + r * t->depth, a->q + r * a->ldq, a->head_dim * sizeof(float));
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

/* Computes the scores of n_rows rows, from row `row` on, against all pages. */
ROSE_INLINE void score_rows(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t n_rows)
{
    uint32_t n_pages = (a->n_ctx + row + n_rows - 1 + ROSE_PANEL - 1) / ROSE_PANEL;
    size_t group_bytes = (size_t)ROSE_K_GROUP * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *q = t->q + row * t->depth;
    float *s = t->s + row * t->stride;

    for (uint32_t page = 0; page < n_pages; page++) {
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

/* Turns the scores of a row into probabilities and returns 1 / their sum. Lanes at or past n may
 * hold anything. */
ROSE_INLINE float softmax_row(float *s, uint32_t n, bool bf16)
{
    uint32_t whole = n / ROSE_PANEL * ROSE_PANEL;
    float lane[ROSE_PANEL], top = -INFINITY;

    vec16 max = v_set1(-INFINITY);
    for (uint32_t j = 0; j < whole; j += ROSE_PANEL)
        max = v_max(v_load(s + j), max);
    if (whole < n) max = v_first_of(v_max(v_load(s + whole), max), max, n - whole);
    v_store(lane, max);
    for (uint32_t l = 0; l < ROSE_PANEL; l++)
        top = lane[l] > top ? lane[l] : top;

    max = v_set1(top);
    vec16 sum = v_zero();
    for (uint32_t j = 0; j < n; j += ROSE_PANEL) {
        vec16 p = v_exp(v_sub(v_load(s + j), max));
        if (bf16) p = v_round_bf16(p);
        p = v_first_of(p, v_zero(), n - j);
        v_store(s + j, p);
        sum = v_add(sum, p);
    }
    return 1.0f / v_tree(sum);
}

/* Computes the value sums of n_rows rows over groups [0, n_groups). Every row sees all positions
 * of these groups. */
ROSE_INLINE void value_rows(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t n_rows, uint32_t n_groups)
{
    size_t v_at = rose_kv_k_bytes(bf16, a->head_dim);
    size_t panel_bytes = (size_t)ROSE_PANEL * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *p = t->s + row * t->stride;

    for (uint32_t g = 0; g < n_groups; g++, p += ROSE_K_GROUP) {
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

/* Adds the first n of a page's 16 positions to the even and odd chains of one row. A page with n
 * < 16 is always the last. */
ROSE_INLINE void value_page(vec16 *e, vec16 *o, const uint8_t *v, bool bf16, const float *p,
                            uint32_t n, intptr_t ahead)
{
    uint32_t even = n & ~1u;
    v_chains(e, o, v, kv_type(bf16), even, p, 0, 1, ahead, false);
    if (even == n) return;
    v += (size_t)even * ROSE_PANEL * (bf16 ? 2 : 4);
    vec16 w = bf16 ? v_pairs_even(v_load_pairs(v)) : v_load((const float *)(const void *)v);
    *e = v_fma(v_set1(p[even]), w, *e);
}

/* Adds the last group of a row, of which the row sees n = 1 .. 32 positions. Padding adds +0 to
 * a chain. That changes only a -0, as the definition does. */
ROSE_INLINE void value_last_group(const rose_attention *a, const attention_scratch *t, bool bf16,
                                  uint32_t row, uint32_t group, uint32_t n)
{
    size_t v_at = rose_kv_k_bytes(bf16, a->head_dim);
    size_t panel_bytes = (size_t)ROSE_PANEL * ROSE_PANEL * (bf16 ? 2 : 4);
    const float *p = t->s + row * t->stride + group * ROSE_K_GROUP;
    uint32_t n0 = n < ROSE_PANEL ? n : ROSE_PANEL, n1 = n - n0;
    const uint8_t *v0 = page_at(a, 2 * group) + v_at;
    const uint8_t *v1 = n1 > 0 ? page_at(a, 2 * group + 1) + v_at : v0;
    const intptr_t ahead0 = ahead_of(a, 2 * group, 1, 0);
    const intptr_t ahead1 = n1 > 0 ? ahead_of(a, 2 * group + 1, 1, 0) : 0;

    for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
        float *y = t->o + row * t->depth + d;
        vec16 e = v_zero(), o = v_zero();
        value_page(&e, &o, v0, bf16, p, n0, ahead0);
        value_page(&e, &o, v1, bf16, p + ROSE_PANEL, n1, ahead1);
        if (n < ROSE_K_GROUP - 1) e = v_add(e, v_zero());
        if (n < ROSE_K_GROUP) o = v_add(o, v_zero());
        v_store(y, v_add(v_load(y), v_add(e, o)));
        v0 += panel_bytes;
        v1 += panel_bytes;
    }
}

/* Computes scores, softmax and the value groups that all rows see, for n_rows rows (a
 * compile-time constant). */
ROSE_INLINE void attend_block(const rose_attention *a, attention_scratch *t, bool bf16,
                              uint32_t row, uint32_t n_rows)
{
    score_rows(a, t, bf16, row, n_rows);
    for (uint32_t r = row; r < row + n_rows; r++) {
        t->inv[r] = softmax_row(t->s + r * t->stride, a->n_ctx + r, bf16);
    }
    value_rows(a, t, bf16, row, n_rows, (a->n_ctx + row) / ROSE_K_GROUP);
}

ROSE_INLINE void finish_row(const rose_attention *a, const attention_scratch *t, bool bf16,
                            uint32_t row, uint32_t first_group)
{
    uint32_t n = a->n_ctx + row;
    for (uint32_t g = first_group; g * ROSE_K_GROUP < n; g++) {
        uint32_t left = n - g * ROSE_K_GROUP;
        value_last_group(a, t, bf16, row, g, left < ROSE_K_GROUP ? left : ROSE_K_GROUP);
    }
    vec16 inv = v_set1(t->inv[row]);
    for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
        vec16 y = v_mul(v_load(t->o + row * t->depth + d), inv);
        v_store_n(a->out + row * a->ldo + d, bf16 ? v_round_bf16(y) : y, a->head_dim - d);
    }
}

/* max_block: the number of rows in a block: 8, 4 or 2, as many rows as the registers can hold. */
ROSE_INLINE void attend(const rose_attention *a, bool bf16, uint32_t max_block)
{
    attention_scratch t;
    attention_scratch_init(&t, a);
    uint32_t row = 0;
    while (row < a->n_rows) {
        uint32_t left = a->n_rows - row, block;
        if (max_block >= 8 && left >= 8) {
            attend_block(a, &t, bf16, row, block = 8);
        } else if (max_block >= 4 && left >= 4) {
            attend_block(a, &t, bf16, row, block = 4);
        } else if (left >= 2) {
            attend_block(a, &t, bf16, row, block = 2);
        } else {
            attend_block(a, &t, bf16, row, block = 1);
        }
        uint32_t shared = (a->n_ctx + row) / ROSE_K_GROUP;
        for (uint32_t end = row + block; row < end; row++)
            finish_row(a, &t, bf16, row, shared);
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

/* Defines the two kernels of an instruction set; attention computes `rows` rows at a time. */
#define ROSE_ATTENTION_KERNELS(isa, rows)                                                          \
    void rose_attention_##isa(const rose_attention *a)                                             \
    {                                                                                              \
        if (a->bf16)                                                                               \
            attend(a, true, rows);                                                                 \
        else                                                                                       \
            attend(a, false, rows);                                                                \
    }                                                                                              \
    void rose_kv_append_##isa(uint8_t *head_block, uint32_t slot, const float *k, const float *v,  \
                              uint32_t head_dim, bool bf16)                                        \
    {                                                                                              \
        if (bf16)                                                                                  \
            append_bf16(head_block, slot, k, v, head_dim);                                         \
        else                                                                                       \
            rose_kv_append_ref(head_block, slot, k, v, head_dim, false);                           \
    }

#endif
