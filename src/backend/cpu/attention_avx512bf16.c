/* backend/cpu/attention_avx512bf16.c - attention at the level avx512-bf16: rule 5 of
 * docs/NUMERICS.md, multiplied by VDPBF16PS (rule 11).
 *
 * Rows are taken 16, 8, 4, 2 or 1 at a time, their q as pairs [dim / 2][rows]. Scores: a vector
 * holds those of a page, so a K block is a panel; with few rows four pages at a time, or the chains
 * would wait for themselves. Softmax is attention_simd.h's. Values:
 * groups of 32 positions that all rows of the block see, p as pairs [16][rows]; the first and last
 * ones row by row over its own positions, so that no other slot is read. fp32 stays on AVX-512.
 *
 * Scores: a vector holds the scores of one page, so a K block is one panel. With few rows, four
 * pages are computed at a time; otherwise each chain of additions would wait for its own last
 * result. Softmax is that of attention_simd.h.
 *
 * Values: groups of 32 positions that every row of the block sees are computed for the whole block,
 * with p as pairs, [16][rows]. The remaining positions are computed row by row up to the row's own
 * key count, so that no slot past it is read. For fp32 the AVX-512 kernel runs.
 *
 * The limit for one row is reading K and V; for 16 rows it is exp and VDPBF16PS. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AVX512BF16__)

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/attention_simd.h"
#include "backend/cpu/bf16_pairs.h"

enum {
    MAX_PAGES = 4, /* of a score block */
    MAX_DIM = 256,
    LINE = 64 /* bytes: 16 outputs of a pair */
};

/* Computes the scores of n_rows rows, from row `row` on, against n pages from page `page` on.
 * Their q is at q. */
ROSE_INLINE void score_pages(const rose_attention *a, const attention_scratch *t, const uint32_t *q,
                             uint32_t row, uint32_t n_rows, uint32_t page, uint32_t n,
                             uint32_t n_pages)
{
    const uint8_t *k[MAX_PAGES];
    intptr_t ahead[MAX_PAGES];
    vec16 sum[ROSE_ROW_TILE];

    ROSE_UNROLL
    for (uint32_t j = 0; j < n; j++) {
        k[j] = page_at(a, page + j);
        ahead[j] = ahead_of(a, page + j, n, n_pages);
    }
    ROSE_UNROLL
    for (uint32_t i = 0; i < n_rows * n; i++)
        sum[i] = v_zero();
    for (size_t at = 0; at < t->depth / 2 * LINE; at += LINE, q += n_rows) {
        ivec16 pairs[MAX_PAGES];
        ROSE_UNROLL
        for (uint32_t j = 0; j < n; j++) {
            pairs[j] = v_load_pairs(k[j] + at);
            prefetch_at(k[j] + at, ahead[j]);
        }
        ROSE_UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            ROSE_UNROLL
            for (uint32_t j = 0; j < n; j++)
                sum[r * n + j] = v_dot(sum[r * n + j], q[r], pairs[j]);
        }
    }
    ROSE_UNROLL
    for (uint32_t r = 0; r < n_rows; r++) {
        ROSE_UNROLL
        for (uint32_t j = 0; j < n; j++)
            v_store(t->s + (row + r) * t->stride + (page + j) * ROSE_PANEL,
                    v_mul(sum[r * n + j], v_set1(a->scale)));
    }
}

/* Value sums of n_rows rows over groups [g, n_groups), all of whose positions they see. */
ROSE_INLINE void value_groups(const rose_attention *a, const attention_scratch *t, uint32_t row,
                              uint32_t n_rows, uint32_t g, uint32_t n_groups)
{
    const size_t v_at = rose_kv_k_bytes(true, a->head_dim);
    const size_t panel_bytes = ROSE_PANEL / 2 * LINE;
    uint32_t p[ROSE_K_GROUP / 2 * ROSE_ROW_TILE];

    for (; g < n_groups; g++) {
        const uint8_t *v0 = page_at(a, 2 * g) + v_at, *v1 = page_at(a, 2 * g + 1) + v_at;
        rows_to_pairs(t->s + row * t->stride + g * ROSE_K_GROUP, t->stride, ROSE_K_GROUP, n_rows,
                      p);
        const intptr_t ahead0 = ahead_of(a, 2 * g, 2, 2 * n_groups);
        const intptr_t ahead1 = ahead_of(a, 2 * g + 1, 2, 2 * n_groups);
        for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
            float *y = t->o + row * t->depth + d;
            vec16 sum[ROSE_ROW_TILE];
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                sum[r] = v_load(y + r * t->depth);
            for (uint32_t i = 0; i < ROSE_K_GROUP / 2; i++) {
                const uint8_t *v = i < ROSE_PANEL / 2 ? v0 : v1;
                ivec16 pairs = v_load_pairs(v + i % (ROSE_PANEL / 2) * LINE);
                prefetch_at(v + i % (ROSE_PANEL / 2) * LINE, i < ROSE_PANEL / 2 ? ahead0 : ahead1);
                ROSE_UNROLL
                for (uint32_t r = 0; r < n_rows; r++)
                    sum[r] = v_dot(sum[r], p[i * n_rows + r], pairs);
            }
            ROSE_UNROLL
            for (uint32_t r = 0; r < n_rows; r++)
                v_store(y + r * t->depth, sum[r]);
            v0 += panel_bytes;
            v1 += panel_bytes;
        }
    }
}

/* One row over positions [from, n) of a group: the first and the last pair may be half. */
static void value_end(const rose_attention *a, const attention_scratch *t, uint32_t row,
                      uint32_t group, uint32_t from, uint32_t n)
{
    const size_t v_at = rose_kv_k_bytes(true, a->head_dim);
    const bool two = n > ROSE_PANEL; /* pages */
    const uint8_t *v[2] = {page_at(a, 2 * group) + v_at,
                           two ? page_at(a, 2 * group + 1) + v_at : NULL};
    const intptr_t ahead[2] = {ahead_of(a, 2 * group, 1, 0),
                               two ? ahead_of(a, 2 * group + 1, 1, 0) : 0};
    uint32_t p[ROSE_K_GROUP / 2]; /* of a half pair softmax left zero */
    rows_to_pairs(t->s + row * t->stride + group * ROSE_K_GROUP, 0, ROSE_K_GROUP, 1, p);

    for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
        float *y = t->o + row * t->depth + d;
        vec16 sum = v_load(y);
        for (uint32_t i = from / 2; 2 * i < n; i++) {
            const uint8_t *at = v[i / 8] + d / 2 * LINE + i % 8 * LINE;
            ivec16 pairs = v_load_pairs(at);
            prefetch_at(at, ahead[i / 8]);
            if (2 * i + 1 == n) pairs = v_int_and(pairs, v_int_set1(0xffff));
            if (2 * i < from) pairs = v_int_and(pairs, v_int_set1((int32_t)0xffff0000));
            sum = v_dot(sum, p[i], pairs);
        }
        v_store(y, sum);
    }
}

/* Groups [g, end) of one row, of each its own positions. */
static void value_ends(const rose_attention *a, const attention_scratch *t, uint32_t row,
                       uint32_t g, uint32_t end)
{
    const uint32_t first = rose_row_first(a, row), n = rose_row_end(a, row);
    for (; g < end; g++) {
        const uint32_t at = g * ROSE_K_GROUP, left = n - at;
        value_end(a, t, row, g, first > at ? first - at : 0,
                  left < ROSE_K_GROUP ? left : ROSE_K_GROUP);
    }
}

static void end_row(const rose_attention *a, const attention_scratch *t, uint32_t row,
                    uint32_t first_group)
{
    value_ends(a, t, row, first_group, end_group(a, row));
    const vec16 inv = v_set1(t->inv[row]);
    for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL) {
        vec16 y = v_round_bf16(v_mul(v_load(t->o + row * t->depth + d), inv));
        v_store_n(rose_row_out(a, row) + d, y, a->head_dim - d);
    }
}

/* Computes attention for n_rows rows, with scores for n pages at a time. Both counts are
 * compile-time constants. */
ROSE_INLINE void rows_block(const rose_attention *a, attention_scratch *t, uint32_t row,
                            uint32_t n_rows, uint32_t n)
{
    const uint32_t n_pages = (rose_row_end(a, row + n_rows - 1) + ROSE_PANEL - 1) / ROSE_PANEL;
    const group_range shared = shared_groups(a, row, row + n_rows - 1);
    uint32_t q[MAX_DIM / 2 * ROSE_ROW_TILE], page = rose_row_first(a, row) / ROSE_PANEL;

    rows_to_pairs(t->q + row * t->depth, t->depth, (uint32_t)t->depth, n_rows, q);
    for (; page + n <= n_pages; page += n)
        score_pages(a, t, q, row, n_rows, page, n, n_pages);
    for (; page < n_pages; page++)
        score_pages(a, t, q, row, n_rows, page, 1, n_pages);
    for (uint32_t r = row; r < row + n_rows; r++) {
        t->inv[r] = softmax_row(a, t->s + r * t->stride, r, true);
        if (a->window > 0) value_ends(a, t, r, rose_row_first(a, r) / ROSE_K_GROUP, shared.from);
    }
    value_groups(a, t, row, n_rows, shared.from, shared.to);
    for (uint32_t r = row; r < row + n_rows; r++)
        end_row(a, t, r, shared.to);
}

void rose_attention_avx512bf16(const rose_attention *a)
{
    if (!a->bf16) {
        rose_kernels_avx512.attention(a);
        return;
    }
    attention_scratch t;
    attention_scratch_init(&t, a);
    for (uint32_t row = 0, n; row < a->n_rows; row += n) {
        const uint32_t left = a->n_rows - row;
        if (left >= 16)
            rows_block(a, &t, row, n = 16, 1);
        else if (left >= 8)
            rows_block(a, &t, row, n = 8, 2);
        else if (left >= 4)
            rows_block(a, &t, row, n = 4, 4);
        else if (left >= 2)
            rows_block(a, &t, row, n = 2, 4);
        else
            rows_block(a, &t, row, n = 1, 4);
    }
}

#endif
