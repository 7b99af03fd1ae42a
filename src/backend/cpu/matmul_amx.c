/* backend/cpu/matmul_amx.c - bf16 matrix product on AMX tiles. TDPBF16PS over 32 k is rule 1 of
 * docs/NUMERICS.md in hardware: two chains from zero, then acc + (even + odd), denormals as zero.
 *
 * Rows are taken so many at a time that their tiles stay in L2: converted once (exact: they are
 * bf16 already), then every panel passes by, 2 row tiles x 2 panels at a time, a block, so that a
 * loaded tile serves two products. A B tile is the panel itself: 16 rows of 64 bytes. Up to 16 rows
 * the tiles have just that many; above, short ones are filled with zero rows that are not stored.
 * One row stays on AVX-512 (the bits are the same).
 *
 * Three things go on beside the tile products, a little at each step of 32 k: the epilogue of the
 * block before, from sums in memory; the fetching of the outputs that this block's epilogue will
 * touch; and the fetching of the weights, 4 KB ahead, into L1. (To bring the next pair of panels to
 * L2 instead, spread over all blocks of a pair, takes 10 % longer: 512 rows, two cores of a Xeon
 * with AMX, 2026-11-21; docs/results/README.md.)
 *
 * int8 panels are widened to bf16 in scratch, two at a time. Bound: weight bytes up to about 32
 * rows, then L2 to L1 (4 KB a step) and TDPBF16PS (16 cycles, 4 a step). */
#include "backend/cpu/kernels_internal.h"

#if defined(__AMX_TILE__) || defined(__AMXTILE__) /* gcc; clang 14 */

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/matmul_simd.h"

enum {
    BLOCK_ROWS = ROSE_AMX_ROW_UNIT,
    SUM_FLOATS = TILE_ROWS * ROSE_PANEL, /* of a tile */
    NEAR_BYTES = 4096,                   /* how far ahead of its loads a panel is prefetched */
    FEW_I8_ROWS = 4 /* int8: up to so many rows AVX-512 beats widening to tiles */
};

_Static_assert((int)BLOCK_ROWS == 2 * (int)TILE_ROWS, "a block is two row tiles");
_Static_assert(4 * SUM_FLOATS * sizeof(float) == ROSE_AMX_SUM_BYTES, "sums of a block");

/* A product of as many rows as rose_amx_tile_bytes holds, on one thread. */
typedef struct tile_matmul {
    const rose_matmul *a;
    float *sums;      /* [row tile][panel][16][16] of a block */
    uint8_t *tiles;   /* [row tile][group][16][32] bf16 */
    uint8_t *widened; /* two int8 panels as bf16 */
    size_t stride;    /* bytes of a row tile and of a panel */
    uint32_t n_groups;
    uint32_t m, n_rows; /* rows of x and y */
    uint32_t p1;        /* panels end here */
} tile_matmul;

/* 1 or 2 row tiles times 1 or 2 panels. */
typedef struct block {
    uint32_t m, n_rows, p;
    bool two_panels;
    uint32_t n_done; /* rows whose outputs are written */
} block;

/* Rows m .. m + n_rows of x to tiles; up to a whole tile, zeros. */
static void convert_rows(const rose_matmul *a, uint32_t m, uint32_t n_rows, uint8_t *tiles)
{
    size_t stride = (size_t)(a->k_pad / ROSE_K_GROUP) * TILE_BYTES;
    for (uint32_t r = 0; r < rose_round_up(n_rows, TILE_ROWS); r++) {
        uint8_t *out = tiles + r / TILE_ROWS * stride + (size_t)(r % TILE_ROWS) * 64;
        const float *x = a->x + (m + r) * a->ldx;
        for (uint32_t k = 0; k < a->k_pad; k += ROSE_K_GROUP, out += TILE_BYTES) {
            tile_row_store(out, x + k, r < n_rows ? ROSE_K_GROUP : 0);
        }
    }
}

/* ---- beside the tile products ---- */

/* Outputs of rows up to `until` of the block whose sums are stored. Not inlined: one copy of the
 * activations is enough. */
static __attribute__((noinline)) void finish_rows(const tile_matmul *t, block *b, uint32_t until)
{
    const rose_matmul *a = t->a;
    const uint32_t n0 = b->p * ROSE_PANEL, n1 = n0 + ROSE_PANEL;
    const bool whole = b->two_panels && n1 + ROSE_PANEL <= a->n;
    for (uint32_t r = b->n_done; r < until; r++) {
        const float *sum = t->sums + r / TILE_ROWS * 2 * SUM_FLOATS + r % TILE_ROWS * ROSE_PANEL;
        if (whole) { /* no masks */
            float *y = a->y + (b->m + r) * a->ldy;
            v_store(y + n0, v_epilogue(a, v_load(sum), b->m + r, n0, ROSE_PANEL));
            v_store(y + n1, v_epilogue(a, v_load(sum + SUM_FLOATS), b->m + r, n1, ROSE_PANEL));
            continue;
        }
        finish_outputs(a, v_load(sum), b->m + r, n0);
        if (b->two_panels) finish_outputs(a, v_load(sum + SUM_FLOATS), b->m + r, n1);
    }
    b->n_done = until;
}

/* Lines of y of rows r .. until, to be written. (__builtin_prefetch would need -mprfchw.) */
ROSE_INLINE void prefetch_outputs(const rose_matmul *a, const block *b, uint32_t r, uint32_t until)
{
    for (; r < until; r++) {
        const float *y = a->y + (b->m + r) * a->ldy + b->p * ROSE_PANEL;
        __asm__ volatile("prefetchw %0" : : "m"(*y));
        if (b->two_panels) __asm__ volatile("prefetchw %0" : : "m"(*(y + ROSE_PANEL)));
    }
}

ROSE_INLINE void prefetch_tile(const uint8_t *w, intptr_t ahead)
{
    intptr_t at = (intptr_t)w + ahead; /* may lie outside: a prefetch ignores that */
    ROSE_UNROLL
    for (intptr_t line = 0; line < TILE_BYTES; line += 64)
        _mm_prefetch((const char *)(at + line), _MM_HINT_T0);
}

/* ---- a block ---- */

/* One group of 32 k. two_rows, two_panels and near are constants. */
ROSE_INLINE void group_product(const uint8_t *x, const uint8_t *w, size_t stride, bool two_rows,
                               bool two_panels, bool near, intptr_t ahead)
{
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    if (near) prefetch_tile(w, ahead);
    _tile_dpbf16ps(0, 4, 6);
    if (two_panels) {
        _tile_loadd(7, w + stride, 64);
        if (near) prefetch_tile(w + stride, ahead);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (two_rows) {
        _tile_loadd(5, x + stride, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (two_panels) _tile_dpbf16ps(3, 5, 7);
    }
}

/* The sums of block b, from row tiles x and panels w, while block `before` (or NULL), whose sums
 * are stored, is finished. two_rows, two_panels and near (the weights are fetched) are constants.
 */
ROSE_INLINE void tile_product(const tile_matmul *t, block *b, block *before, const uint8_t *x,
                              const uint8_t *w, bool two_rows, bool two_panels, bool near)
{
    const uint32_t turn = t->n_groups - NEAR_BYTES / TILE_BYTES; /* 2^32 - n: never */
    intptr_t ahead = NEAR_BYTES;
    uint32_t due = 0, share = 0, n_fetched = 0; /* rows of outputs in step with the groups */

    MEMORY_BARRIER(); /* rows and widened panels are stored: the loads below do not say so */
    _tile_zero(0);
    if (two_panels) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_panels) _tile_zero(3);
    for (uint32_t g = 0; g < t->n_groups; g++, x += TILE_BYTES, w += TILE_BYTES) {
        if (near && two_panels && g == turn) ahead += (intptr_t)t->stride; /* the next pair */
        group_product(x, w, t->stride, two_rows, two_panels, near, ahead);
        for (share += BLOCK_ROWS; share >= t->n_groups; share -= t->n_groups)
            due++;
        const uint32_t to = due < b->n_rows ? due : b->n_rows;
        prefetch_outputs(t->a, b, n_fetched, to);
        n_fetched = to;
        if (before != NULL && before->n_done < before->n_rows)
            finish_rows(t, before, due < before->n_rows ? due : before->n_rows);
    }
    if (before != NULL) finish_rows(t, before, before->n_rows);
    _tile_stored(0, t->sums, 64);
    if (two_panels) _tile_stored(1, t->sums + SUM_FLOATS, 64);
    if (two_rows) _tile_stored(2, t->sums + 2 * SUM_FLOATS, 64);
    if (two_rows && two_panels) _tile_stored(3, t->sums + 3 * SUM_FLOATS, 64);
    MEMORY_BARRIER();
}

/* tile_product with its constants. near: not for int8, whose weights were just widened. */
ROSE_INLINE void block_product(const tile_matmul *t, block *b, block *before, const uint8_t *x,
                               const uint8_t *w, bool near)
{
    const bool two_rows = b->n_rows > TILE_ROWS;
    if (two_rows && b->two_panels)
        tile_product(t, b, before, x, w, true, true, near);
    else if (two_rows)
        tile_product(t, b, before, x, w, true, false, near);
    else if (b->two_panels)
        tile_product(t, b, before, x, w, false, true, near);
    else
        tile_product(t, b, before, x, w, false, false, near);
}

/* ---- all blocks ---- */

/* An int8 panel as a bf16 one: integers up to 127 are exact. */
static void widen_panel(const rose_matmul *a, uint32_t p, uint8_t *out)
{
    const __m512i top = _mm512_set1_epi32((int)0xffff0000);
    const uint8_t *w = (const uint8_t *)a->w + (size_t)p * a->k_pad * ROSE_PANEL;
    for (uint32_t k = 0; k < a->k_pad; k += 2, w += 2 * ROSE_PANEL, out += 64) {
        __m512i even = v_bits(v_load_i8(w)), odd = v_bits(v_load_i8(w + ROSE_PANEL));
        prefetch_at(w, ROSE_PREFETCH_BYTES);
        _mm512_storeu_si512(
            out, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, top)));
    }
}

/* The weights of panels p and p + 1 as bf16. */
static const uint8_t *take_panels(const tile_matmul *t, bool i8, uint32_t p)
{
    if (!i8) return (const uint8_t *)t->a->w + p * t->stride;
    widen_panel(t->a, p, t->widened); /* which fetches */
    if (p + 1 < t->p1) widen_panel(t->a, p + 1, t->widened + t->stride);
    return t->widened;
}

ROSE_INLINE void matmul_rows(const tile_matmul *t, bool i8, uint32_t p0)
{
    block blocks[2], *before = NULL;
    uint32_t which = 0;

    tiles_configure(t->n_rows < TILE_ROWS ? t->n_rows : TILE_ROWS, 6);
    for (uint32_t p = p0; p < t->p1; p += 2) {
        const uint8_t *w = take_panels(t, i8, p);
        for (uint32_t r = 0; r < t->n_rows; r += BLOCK_ROWS, which ^= 1) {
            const uint32_t left = t->n_rows - r;
            block *b = &blocks[which];
            *b = (block){.m = t->m + r,
                         .n_rows = left < BLOCK_ROWS ? left : BLOCK_ROWS,
                         .p = p,
                         .two_panels = p + 1 < t->p1};
            uint8_t *x = t->tiles + r / TILE_ROWS * t->stride;
            if (p == p0) convert_rows(t->a, b->m, b->n_rows, x);
            block_product(t, b, before, x, w, !i8);
            before = b;
        }
    }
    if (before != NULL) finish_rows(t, before, before->n_rows);
}

static void matmul_tiles(const rose_matmul *a, bool i8, uint32_t p0, uint32_t p1)
{
    uint8_t *scratch = a->scratch;
    tile_matmul t = {.a = a,
                     .sums = a->scratch,
                     .tiles = scratch + ROSE_AMX_SUM_BYTES,
                     .widened = scratch + ROSE_AMX_SUM_BYTES + rose_amx_tile_bytes(a->k_pad),
                     .n_groups = a->k_pad / ROSE_K_GROUP,
                     .p1 = p1};
    const uint32_t most = (uint32_t)(rose_amx_tile_bytes(a->k_pad) / ((size_t)a->k_pad * 2)) /
                          BLOCK_ROWS * BLOCK_ROWS;
    const uint32_t n_parts = (a->m_rows + most - 1) / most;

    t.stride = (size_t)t.n_groups * TILE_BYTES;
    const uint32_t part = rose_round_up((a->m_rows + n_parts - 1) / n_parts, BLOCK_ROWS);
    for (t.m = 0; t.m < a->m_rows; t.m += part) {
        t.n_rows = a->m_rows - t.m < part ? a->m_rows - t.m : part;
        matmul_rows(&t, i8, p0);
    }
    _tile_release();
}

void rose_matmul_bf16_amx(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    if (a->m_rows == 1)
        rose_matmul_bf16_avx512(a, p0, p1);
    else
        matmul_tiles(a, false, p0, p1);
}

void rose_matmul_i8_amx(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    if (a->m_rows <= FEW_I8_ROWS)
        rose_matmul_i8_avx512(a, p0, p1);
    else
        matmul_tiles(a, true, p0, p1);
}

#endif
