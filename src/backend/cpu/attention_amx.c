/* backend/cpu/attention_amx.c - attention of several rows of one sequence on AMX tiles: rule 5 of
 * docs/NUMERICS.md, multiplied by TDPBF16PS. Its bits are those of attention_simd.h.
 *
 * Scores: a K block is one B tile for each 32 dims. One tile product therefore gives the scores of
 * 16 rows against the 16 tokens of a page. Softmax is that of attention_simd.h.
 *
 * Values: a B tile holds 32 positions by 16 dims of V, copied from two pages. One P tile serves all
 * dims of a head, whose sums stay in tiles.
 *
 * One row, fp32, rows that span two groups of 32 and rows that a window cuts stay on AVX-512.
 * Bound: exp of the scores. */
#include "backend/cpu/kernels_internal.h"

#if defined(__AMX_TILE__) || defined(__AMXTILE__) /* gcc; clang 14 */

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/attention_simd.h"

enum {
    MIN_ROWS = 3,  /* below, AVX-512 is at least as fast */
    SUM_TILES = 4, /* tiles 0-3: scores of 4 pages, later sums of 4 x 16 dims */
};

typedef struct tile_attention {
    const rose_attention *a;
    attention_scratch t; /* after q has been converted to q_tiles, t.q is reused for the value
                          * sums that include the last group */
    uint8_t *q_tiles;    /* [depth / 32] tiles */
    uint8_t *p_tile;
    uint8_t *v_tiles; /* [SUM_TILES] */
    uint32_t n_max;   /* keys of the last row */
    uint32_t n_whole; /* full groups of 32 positions that every row sees, except the last group */
    bool finite;      /* so is V in the last group */
} tile_attention;

ROSE_INLINE void score_page(const tile_attention *s, const uint8_t *k, int tile)
{
    for (uint32_t g = 0; g < s->t.depth / ROSE_K_GROUP; g++) {
        _tile_loadd(4, s->q_tiles + g * TILE_BYTES, 64);
        _tile_loadd(5, k + g * TILE_BYTES, 64);
        switch (tile) { /* an operand is part of the instruction */
        case 0:
            _tile_dpbf16ps(0, 4, 5);
            break;
        case 1:
            _tile_dpbf16ps(1, 4, 5);
            break;
        case 2:
            _tile_dpbf16ps(2, 4, 5);
            break;
        default:
            _tile_dpbf16ps(3, 4, 5);
            break;
        }
    }
}

/* Computes the raw scores of all rows against all pages. Scores past a row's own key count are
 * never read. */
static void scores(const tile_attention *s)
{
    const uint32_t n_pages = (s->n_max + ROSE_PANEL - 1) / ROSE_PANEL;
    const size_t stride = s->t.stride * sizeof(float);
    for (uint32_t page = 0; page < n_pages; page += SUM_TILES) {
        const uint32_t n = n_pages - page < SUM_TILES ? n_pages - page : SUM_TILES;
        float *out = s->t.s + page * ROSE_PANEL;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        score_page(s, page_at(s->a, page), 0);
        if (n > 1) score_page(s, page_at(s->a, page + 1), 1);
        if (n > 2) score_page(s, page_at(s->a, page + 2), 2);
        if (n > 3) score_page(s, page_at(s->a, page + 3), 3);
        _tile_stored(0, out, stride);
        if (n > 1) _tile_stored(1, out + ROSE_PANEL, stride);
        if (n > 2) _tile_stored(2, out + 2 * ROSE_PANEL, stride);
        if (n > 3) _tile_stored(3, out + 3 * ROSE_PANEL, stride);
    }
    MEMORY_BARRIER();
}

static void softmax(tile_attention *s)
{
    const vec16 scale = v_set1(s->a->scale);
    for (uint32_t r = 0; r < s->a->n_rows; r++) {
        float *row = s->t.s + r * s->t.stride;
        const uint32_t n = rose_row_end(s->a, r);
        for (uint32_t j = 0; j < n; j += ROSE_PANEL)
            v_store(row + j, v_mul(v_load(row + j), scale));
        s->t.inv[r] = softmax_row(s->a, row, r, true);
    }
}

/* Loads the P tile: the probabilities of one group of 32 positions, zero past each row's own key
 * count. */
static void load_p(const tile_attention *s, uint32_t group)
{
    for (uint32_t r = 0; r < s->a->n_rows; r++) {
        uint32_t left = rose_row_end(s->a, r) - group * ROSE_K_GROUP;
        tile_row_store(s->p_tile + (size_t)r * 64,
                       s->t.s + r * s->t.stride + (size_t)group * ROSE_K_GROUP,
                       left < ROSE_K_GROUP ? left : ROSE_K_GROUP);
    }
    MEMORY_BARRIER();
    _tile_loadd(4, s->p_tile, 64);
}

/* Copies panel `panel` of V for a group whose 32 positions all exist. */
ROSE_INLINE void copy_v(const tile_attention *s, uint32_t group, uint32_t panel, uint8_t *out)
{
    const size_t at = rose_kv_k_bytes(true, s->a->head_dim) + (size_t)panel * TILE_BYTES / 2;
    const uint8_t *v0 = page_at(s->a, 2 * group) + at, *v1 = page_at(s->a, 2 * group + 1) + at;
    ROSE_UNROLL
    for (int i = 0; i < 8; i++)
        _mm512_storeu_si512(out + 64 * i, _mm512_loadu_si512(v0 + 64 * i));
    ROSE_UNROLL
    for (int i = 0; i < 8; i++)
        _mm512_storeu_si512(out + 512 + 64 * i, _mm512_loadu_si512(v1 + 64 * i));
}

/* Copies panel `panel` of V for the last group, with zeros from position n_max on. Notes in
 * s->finite whether all values are finite. */
static void copy_last_v(tile_attention *s, uint32_t group, uint32_t panel, uint8_t *out)
{
    const size_t at = rose_kv_k_bytes(true, s->a->head_dim) + (size_t)panel * TILE_BYTES / 2;
    const uint32_t n = s->n_max - group * ROSE_K_GROUP;
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (uint32_t i = 0; i < TILE_ROWS; i++) {
        __m512i v = _mm512_setzero_si512();
        if (2 * i < n) {
            const uint8_t *page = page_at(s->a, 2 * group + i / 8) + at;
            v = _mm512_loadu_si512(page + (size_t)(i % 8) * 64);
            if (2 * i + 1 == n) v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
        }
        if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent) != 0)
            s->finite = false;
        _mm512_storeu_si512(out + (size_t)i * 64, v);
    }
}

/* Tiles 0 .. n-1 += P times n panels of V. */
ROSE_INLINE void value_products(const tile_attention *s, uint32_t n)
{
    MEMORY_BARRIER();
    _tile_loadd(5, s->v_tiles, 64);
    _tile_dpbf16ps(0, 4, 5);
    if (n > 1) {
        _tile_loadd(6, s->v_tiles + TILE_BYTES, 64);
        _tile_dpbf16ps(1, 4, 6);
    }
    if (n > 2) {
        _tile_loadd(5, s->v_tiles + 2 * TILE_BYTES, 64);
        _tile_dpbf16ps(2, 4, 5);
    }
    if (n > 3) {
        _tile_loadd(6, s->v_tiles + 3 * TILE_BYTES, 64);
        _tile_dpbf16ps(3, 4, 6);
    }
}

static void store_sums(const tile_attention *s, float *out, uint32_t n)
{
    const size_t stride = s->t.depth * sizeof(float);
    _tile_stored(0, out, stride);
    if (n > 1) _tile_stored(1, out + ROSE_PANEL, stride);
    if (n > 2) _tile_stored(2, out + 2 * ROSE_PANEL, stride);
    if (n > 3) _tile_stored(3, out + 3 * ROSE_PANEL, stride);
    MEMORY_BARRIER();
}

/* Stores the value sums over the whole groups to t.o, and the sums that include the last group
 * to t.q. */
static void values(tile_attention *s)
{
    const uint32_t n_panels = (s->a->head_dim + ROSE_PANEL - 1) / ROSE_PANEL;
    for (uint32_t first = 0; first < n_panels; first += SUM_TILES) {
        const uint32_t n = n_panels - first < SUM_TILES ? n_panels - first : SUM_TILES;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (uint32_t g = 0; g < s->n_whole; g++) {
            load_p(s, g);
            for (uint32_t p = 0; p < n; p++)
                copy_v(s, g, first + p, s->v_tiles + p * TILE_BYTES);
            value_products(s, n);
        }
        store_sums(s, s->t.o + (size_t)first * ROSE_PANEL, n);
        load_p(s, s->n_whole);
        for (uint32_t p = 0; p < n; p++)
            copy_last_v(s, s->n_whole, first + p, s->v_tiles + p * TILE_BYTES);
        value_products(s, n);
        store_sums(s, s->t.q + (size_t)first * ROSE_PANEL, n);
    }
}

static bool has_zero(const float *x, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t d = 0; d < n; d += ROSE_PANEL)
        found |=
            _mm512_mask_cmp_ps_mask(v_first(n - d), v_load_n(x + d, n - d), v_zero(), _CMP_EQ_OQ);
    return found != 0;
}

static void finish(tile_attention *s)
{
    const rose_attention *a = s->a;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const float *sum = s->t.q + r * s->t.depth;
        if (!s->finite || has_zero(sum, a->head_dim)) {
            finish_row(a, &s->t, true, r, s->n_whole);
            continue;
        }
        const vec16 inv = v_set1(s->t.inv[r]);
        for (uint32_t d = 0; d < a->head_dim; d += ROSE_PANEL)
            v_store_n(rose_row_out(a, r) + d, v_round_bf16(v_mul(v_load(sum + d), inv)),
                      a->head_dim - d);
    }
}

void rose_attention_amx(const rose_attention *a)
{
    tile_attention s = {.a = a, .n_max = rose_row_end(a, a->n_rows - 1), .finite = true};
    s.n_whole = (a->n_ctx - 1) / ROSE_K_GROUP;
    if (!a->bf16 || a->n_rows < MIN_ROWS || (s.n_max - 1) / ROSE_K_GROUP != s.n_whole ||
        rose_row_first(a, a->n_rows - 1) > 0) {
        rose_kernels_avx512.attention(a);
        return;
    }
    attention_scratch_init(&s.t, a);
    s.q_tiles = (uint8_t *)(s.t.s + a->n_rows * s.t.stride);
    s.p_tile = s.q_tiles + s.t.depth / ROSE_K_GROUP * TILE_BYTES;
    s.v_tiles = s.p_tile + TILE_BYTES;
    for (uint32_t r = 0; r < a->n_rows; r++)
        for (uint32_t d = 0; d < s.t.depth; d += ROSE_K_GROUP)
            tile_row_store(s.q_tiles + (size_t)d / ROSE_K_GROUP * TILE_BYTES + (size_t)r * 64,
                           s.t.q + r * s.t.depth + d, ROSE_K_GROUP);
    tiles_configure(a->n_rows, 5);
    scores(&s);
    softmax(&s);
    values(&s);
    _tile_release();
    finish(&s);
}

#endif
