/* backend/cpu/attention_ref.c - causal attention over KV pages, and the store into them, in plain
 * C. It is the definition (docs/NUMERICS.md, rule 5).
 *
 * Positions past a row's own or before its window are never read: their slots may hold anything.
 * The padding of head_dim to 32 inside a K block is zero, written slot by slot. */
#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/numerics.h"

/* Index of element (depth, output) within a panel of a KV page. */
static size_t panel_index(bool bf16, uint32_t depth, uint32_t output)
{
    if (bf16) return ((size_t)(depth / 2) * ROSE_PANEL + output) * 2 + depth % 2;
    return (size_t)depth * ROSE_PANEL + output;
}

static float load_at(const uint8_t *block, bool bf16, size_t i)
{
    if (bf16) {
        uint16_t b;
        memcpy(&b, block + i * sizeof b, sizeof b);
        return rose_f32_from_bf16(b);
    }
    float f;
    memcpy(&f, block + i * sizeof f, sizeof f);
    return f;
}

static void store_at(uint8_t *block, bool bf16, size_t i, float x)
{
    if (bf16) {
        uint16_t b = rose_bf16_from_f32(x);
        memcpy(block + i * sizeof b, &b, sizeof b);
    } else {
        memcpy(block + i * sizeof x, &x, sizeof x);
    }
}

void rose_kv_append_ref(uint8_t *head_block, uint32_t slot, const float *k, const float *v,
                        uint32_t head_dim, bool bf16)
{
    uint8_t *v_block = head_block + rose_kv_k_bytes(bf16, head_dim);
    size_t v_panel = ROSE_PANEL * ROSE_PANEL; /* elements */

    for (uint32_t d = 0; d < rose_round_up(head_dim, ROSE_K_GROUP); d++) {
        store_at(head_block, bf16, panel_index(bf16, d, slot), d < head_dim ? k[d] : 0.0f);
    }
    for (uint32_t d = 0; d < head_dim; d++) {
        size_t i = d / ROSE_PANEL * v_panel + panel_index(bf16, slot, d % ROSE_PANEL);
        store_at(v_block, bf16, i, v[d]);
    }
}

static const uint8_t *page_of(const rose_attention *a, uint32_t pos)
{
    return a->kv + (size_t)a->pages[pos / ROSE_PANEL] * a->page_stride;
}

/* Returns the dot product of q with the key at position pos, summed over head_dim by rule 1 of
 * docs/NUMERICS.md. */
static float score(const rose_attention *a, const float *q, uint32_t pos)
{
    const uint8_t *k_block = page_of(a, pos);
    float acc = 0.0f;
    for (uint32_t g = 0; g < a->head_dim; g += ROSE_K_GROUP) {
        float c[2] = {0.0f, 0.0f};
        for (uint32_t d = g; d < g + ROSE_K_GROUP; d++) {
            bool real = d < a->head_dim;
            float k =
                real ? load_at(k_block, a->bf16, panel_index(a->bf16, d, pos % ROSE_PANEL)) : 0.0f;
            c[d % 2] = fmaf(real ? q[d] : 0.0f, k, c[d % 2]);
        }
        acc = acc + (c[0] + c[1]);
    }
    return acc;
}

/* Sum over positions first .. n-1 of p[j] v[j][d], rule 1 over positions. What lies before first is
 * zero: whole groups and the zeros that begin a chain leave its +0, so they are skipped. */
static float value(const rose_attention *a, const float *p, uint32_t first, uint32_t n, uint32_t d)
{
    size_t v_at = rose_kv_k_bytes(a->bf16, a->head_dim);
    size_t panel = (size_t)(d / ROSE_PANEL) * ROSE_PANEL * ROSE_PANEL;
    float acc = 0.0f;
    for (uint32_t g = first / ROSE_K_GROUP * ROSE_K_GROUP; g < n; g += ROSE_K_GROUP) {
        float c[2] = {0.0f, 0.0f};
        for (uint32_t j = g; j < g + ROSE_K_GROUP; j++) {
            float pj = 0.0f, v = 0.0f;
            if (j >= first && j < n) {
                pj = p[j];
                v = load_at(page_of(a, j) + v_at, a->bf16,
                            panel + panel_index(a->bf16, j % ROSE_PANEL, d % ROSE_PANEL));
            }
            c[j % 2] = fmaf(pj, v, c[j % 2]);
        }
        acc = acc + (c[0] + c[1]);
    }
    return acc;
}

/* The dot product of q with one key, by rule 11 of docs/NUMERICS.md. There is one running sum.
 * Within each pair of dims the odd one is added first, as VDPBF16PS does. */
static float score_pairs(const rose_attention *a, const float *q, uint32_t pos)
{
    const uint8_t *k_block = page_of(a, pos);
    float acc = 0.0f;
    for (uint32_t i = 0; i < rose_round_up(a->head_dim, ROSE_K_GROUP); i++) {
        uint32_t d = i ^ 1u;
        bool real = d < a->head_dim;
        float k =
            real ? load_at(k_block, a->bf16, panel_index(a->bf16, d, pos % ROSE_PANEL)) : 0.0f;
        acc = fmaf(real ? q[d] : 0.0f, k, acc);
    }
    return acc;
}

static float value_pairs(const rose_attention *a, const float *p, uint32_t first, uint32_t n,
                         uint32_t d)
{
    size_t v_at = rose_kv_k_bytes(a->bf16, a->head_dim);
    size_t panel = (size_t)(d / ROSE_PANEL) * ROSE_PANEL * ROSE_PANEL;
    float acc = 0.0f;
    for (uint32_t i = first / 2 * 2; i < rose_round_up(n, 2); i++) {
        uint32_t j = i ^ 1u;
        bool real = j >= first && j < n;
        float v = 0.0f;
        if (real)
            v = load_at(page_of(a, j) + v_at, a->bf16,
                        panel + panel_index(a->bf16, j % ROSE_PANEL, d % ROSE_PANEL));
        acc = fmaf(real ? p[j] : 0.0f, v, acc);
    }
    return acc;
}

static void attend_row(const rose_attention *a, bool pairs, uint32_t r)
{
    const uint32_t first = rose_row_first(a, r), n = rose_row_end(a, r);
    const float *q = rose_row_q(a, r);
    float *p = a->scratch, *out = rose_row_out(a, r), max = -INFINITY;
    for (uint32_t j = first; j < n; j++) {
        p[j] = (pairs ? score_pairs : score)(a, q, j) * a->scale;
        if (a->cap > 0.0f) p[j] = rose_softcap_ref(p[j], a->cap);
        if (p[j] > max) max = p[j];
    }
    float lane[ROSE_PANEL] = {0};
    for (uint32_t j = first; j < n; j++) {
        p[j] = rose_round_if(a->bf16, rose_expf_ref(p[j] - max));
        lane[j % ROSE_PANEL] = lane[j % ROSE_PANEL] + p[j];
    }
    float inv = 1.0f / rose_tree16_ref(lane);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        out[d] = rose_round_if(a->bf16, (pairs ? value_pairs : value)(a, p, first, n, d) * inv);
    }
}

static void attend(const rose_attention *a, bool pairs)
{
    for (uint32_t r = 0; r < a->n_rows; r++)
        attend_row(a, pairs, r);
}

void rose_attention_ref(const rose_attention *a)
{
    attend(a, false);
}

void rose_attention_pairs_ref(const rose_attention *a)
{
    attend(a, true);
}
