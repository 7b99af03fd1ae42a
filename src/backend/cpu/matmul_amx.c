/* backend/cpu/matmul_amx.c - bf16 GEMM on AMX tiles. TDPBF16PS over 32 k is rule 1 of
 * docs/NUMERICS.md in hardware: two chains from zero, then acc + (even + odd), with denormals as
 * zero.
 *
 * Rows are taken in groups whose tiles stay in L2. They are converted to tiles once, which is exact
 * because their values are bf16 already. Then every panel is multiplied in blocks of 2 row tiles x
 * 2 panels, so that each loaded tile serves two tile products. A B tile is the panel itself: 16
 * rows of 64 bytes.
 *
 * Up to 16 rows, a tile has only as many rows as are needed. A block of bf16 weights is then 1 row
 * tile x FEW_PANELS panels. Above 16 rows, short tiles are filled with zero rows that are not
 * stored. A single row is multiplied by AVX-512 with the same bits, ROW_PANELS or ROW_I8_PANELS
 * panels at a time.
 *
 * Each step of 32 k also does a little of three other things. It runs the epilogue of the previous
 * block, whose sums are in memory. It prefetches the outputs that the epilogue of this block will
 * write. It prefetches weights into L1, 4 KB ahead. Bringing the next pair of panels into L2
 * instead took 10 % longer (512 rows, two cores of a Xeon with AMX, 2026-11-21;
 * docs/PERFORMANCE.md).
 *
 * int8 panels are widened to bf16 in scratch, two at a time. Up to about 32 rows the limit is
 * reading weights. With more rows it is L2 to L1 traffic (4 KB a step) and TDPBF16PS (16 cycles,
 * 4 a step). */
#include "backend/cpu/kernels_internal.h"

#if defined(__AMX_TILE__) || defined(__AMXTILE__) /* gcc; clang 14 */

#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/amx_tiles.h"
#include "backend/cpu/matmul_simd.h"

enum {
    BLOCK_ROWS = ROSE_AMX_ROW_UNIT,
    SUM_FLOATS = TILE_ROWS * ROSE_PANEL, /* of a tile */
    NEAR_BYTES = 4096,                   /* how far ahead of its loads a panel is prefetched */
    FEW_I8_ROWS = 4, /* int8: up to this many rows, AVX-512 is faster than widening to tiles */
    /* Panels that one row multiplies at a time, and how far ahead all of them together are
     * prefetched. Measured on two cores of a Xeon with AMX, 2026-11-21. Times are relative to the
     * best loop that only reads.
     * bf16: 1 panel 1.17 to 1.29, 2 1.10 to 1.17, 4 1.03 to 1.10, 8 0.91 to 1.03, tiles 1.02
     * to 1.14. int8, limited by widening: 1 panel 1.5, 2 1.46, 4 1.28, 8 1.3 to 1.55. */
    ROW_PANELS = 8,
    ROW_I8_PANELS = 4,
    ROW_AHEAD_BYTES = 8192,
    /* Panels that one row tile multiplies at a time, and how far ahead each is prefetched. On
     * the same machine, steps of 8 and 16 sequences take 0.85 of the time with 2 panels. */
    FEW_PANELS = 6,
    FEW_NEAR_BYTES = 1024
};

_Static_assert((int)BLOCK_ROWS == 2 * (int)TILE_ROWS, "a block is two row tiles");
_Static_assert(sizeof(float) * FEW_PANELS * SUM_FLOATS == ROSE_AMX_SUM_BYTES, "sums of a block");

/* ---- one row ---- */

/* Computes one row times n_panels (a constant) panels from panel p on. The loop reads n_panels
 * places in memory in turn. The L2 prefetcher follows each place by itself, and keeps more lines
 * in flight than L1 may request. */
ROSE_INLINE void row_panels(const rose_matmul *a, rose_format type, uint32_t p, uint32_t n_panels)
{
    const size_t pair_bytes = 2 * ROSE_PANEL * rose_format_size(type); /* of a panel */
    const size_t panel_bytes = a->k_pad / 2 * pair_bytes;
    const uint8_t *w = (const uint8_t *)a->w + p * panel_bytes;
    const float *x = a->x;
    intptr_t ahead = ROW_AHEAD_BYTES / (intptr_t)n_panels;
    const uint32_t turn =
        a->k_pad - 2 * (uint32_t)((size_t)ahead / pair_bytes); /* 2^32 - n: never */
    vec16 acc[ROW_PANELS];

    ROSE_UNROLL
    for (uint32_t i = 0; i < n_panels; i++)
        acc[i] = v_zero();
    for (uint32_t g = 0; g < a->k_pad; g += ROSE_K_GROUP) {
        vec16 e[ROW_PANELS], o[ROW_PANELS];
        if (g == turn) ahead += (intptr_t)((n_panels - 1) * panel_bytes); /* the next ones */
        ROSE_UNROLL
        for (uint32_t i = 0; i < n_panels; i++)
            e[i] = o[i] = v_zero();
        for (const float *end = x + ROSE_K_GROUP; x < end;) {
            for (size_t line = 0; line < 64; line += pair_bytes, x += 2, w += pair_bytes) {
                const vec16 even = v_set1(x[0]), odd = v_set1(x[1]);
                ROSE_UNROLL
                for (uint32_t i = 0; i < n_panels; i++) {
                    const uint8_t *at = w + i * panel_bytes;
                    if (line == 0) prefetch_weights(at, ahead, true);
                    e[i] = v_fma(even, v_weights(at, type, false), e[i]);
                    o[i] = v_fma(odd, v_weights(at, type, true), o[i]);
                }
            }
        }
        ROSE_UNROLL
        for (uint32_t i = 0; i < n_panels; i++)
            acc[i] = v_add(acc[i], v_add(e[i], o[i]));
    }
    ROSE_UNROLL
    for (uint32_t i = 0; i < n_panels; i++)
        finish_outputs(a, acc[i], 0, (p + i) * ROSE_PANEL);
}

/* Multiplies one row with panels p .. p1-1, at most `most` (a constant) panels at a time. */
ROSE_INLINE void matmul_row(const rose_matmul *a, rose_format type, uint32_t p, uint32_t p1,
                            uint32_t most)
{
    for (; p1 - p >= most; p += most)
        row_panels(a, type, p, most);
    if (most > 4 && p1 - p >= 4) {
        row_panels(a, type, p, 4);
        p += 4;
    }
    for (; p < p1; p++)
        row_panels(a, type, p, 1);
}

/* ---- rows in tiles ---- */

/* A GEMM on one thread, of as many rows as rose_amx_tile_bytes holds. */
typedef struct tile_matmul {
    const rose_matmul *a;
    float *sums; /* sums of a block: [row tile][2 panels][16][16], or [panel][16][16] with one row
                    tile */
    uint8_t *tiles;   /* [row tile][group][16][32] bf16 */
    uint8_t *widened; /* two int8 panels as bf16 */
    size_t stride;    /* bytes of a row tile and of a panel */
    uint32_t n_groups;
    uint32_t m, n_rows; /* rows of x and y */
    uint32_t p1;        /* panels end here */
} tile_matmul;

/* A block: 2 row tiles times 1 or 2 panels, or 1 row tile times up to FEW_PANELS. */
typedef struct block {
    uint32_t m, n_rows, p, n_panels;
    uint32_t n_done; /* rows whose outputs are written */
} block;

/* Converts rows m .. m + n_rows of x to tiles, and fills the last tile with zero rows. */
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

/* Writes the outputs, up to row `until`, of the block whose sums are stored. It is not inlined,
 * because one copy of the activation functions is enough. */
static __attribute__((noinline)) void finish_rows(const tile_matmul *t, block *b, uint32_t until)
{
    const rose_matmul *a = t->a;
    const bool whole = !a->gated && (b->p + b->n_panels) * ROSE_PANEL <= a->n;
    for (uint32_t r = b->n_done; r < until; r++) {
        const float *sum = t->sums + r / TILE_ROWS * 2 * SUM_FLOATS + r % TILE_ROWS * ROSE_PANEL;
        uint32_t n0 = b->p * ROSE_PANEL;
        for (uint32_t i = 0; i < b->n_panels; i++, sum += SUM_FLOATS, n0 += ROSE_PANEL) {
            if (whole) /* no masks */
                v_store(a->y + (b->m + r) * a->ldy + n0,
                        v_epilogue(a, v_load(sum), b->m + r, n0, n0, ROSE_PANEL));
            else
                finish_outputs(a, v_load(sum), b->m + r, n0);
        }
    }
    b->n_done = until;
}

/* Prefetches, for writing, the lines of y of rows r .. until. (__builtin_prefetch would need
 * -mprfchw.) */
ROSE_INLINE void prefetch_outputs(const rose_matmul *a, const block *b, uint32_t r, uint32_t until)
{
    for (; r < until; r++) {
        const float *y = a->y + (b->m + r) * a->ldy + rose_panel_column(a, b->p);
        for (uint32_t i = 0; i < b->n_panels; i += a->gated ? 2 : 1, y += ROSE_PANEL)
            __asm__ volatile("prefetchw %0" : : "m"(*y));
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

/* Multiplies one group of 32 k for two row tiles. n_panels (1 or 2) and near are compile-time
 * constants. */
ROSE_INLINE void group_product(const uint8_t *x, const uint8_t *w, size_t stride, uint32_t n_panels,
                               bool near, intptr_t ahead)
{
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    if (near) prefetch_tile(w, ahead);
    _tile_dpbf16ps(0, 4, 6);
    if (n_panels > 1) {
        _tile_loadd(7, w + stride, 64);
        if (near) prefetch_tile(w + stride, ahead);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_loadd(5, x + stride, 64);
    _tile_dpbf16ps(2, 5, 6);
    if (n_panels > 1) _tile_dpbf16ps(3, 5, 7);
}

/* Multiplies one group of 32 k for one row tile. Tile numbers are part of the instructions, so
 * this is a macro. */
#define FEW_STEP(i)                                                                                \
    if (n_panels > (i)) {                                                                          \
        _tile_loadd(7, w + (i)*stride, 64);                                                        \
        if (near) prefetch_tile(w + (i)*stride, ahead);                                            \
        _tile_dpbf16ps(i, 6, 7);                                                                   \
    }

ROSE_INLINE void few_product(const uint8_t *x, const uint8_t *w, size_t stride, uint32_t n_panels,
                             bool near, intptr_t ahead)
{
    _tile_loadd(6, x, 64);
    FEW_STEP(0)
    FEW_STEP(1)
    FEW_STEP(2)
    FEW_STEP(3)
    FEW_STEP(4)
    FEW_STEP(5)
}

/* Tells whether sum i belongs to the block. Two row tiles: [row tile][2 panels]; one row tile:
 * [panel]. */
ROSE_INLINE bool has_sum(uint32_t i, bool two_rows, uint32_t n_panels)
{
    return two_rows ? i < 4 && i % 2 < n_panels : i < n_panels;
}

#define ZERO_SUM(i)                                                                                \
    if (has_sum(i, two_rows, n_panels)) _tile_zero(i);
#define STORE_SUM(i)                                                                               \
    if (has_sum(i, two_rows, n_panels)) _tile_stored(i, t->sums + (i)*SUM_FLOATS, 64);
#define EACH_SUM(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)

/* Computes the sums of block b from row tiles x and panels w. At the same time it finishes block
 * `before` (or NULL), whose sums are stored. two_rows, n_panels and near (prefetch the weights)
 * are compile-time constants. */
ROSE_INLINE void tile_product(const tile_matmul *t, block *b, block *before, const uint8_t *x,
                              const uint8_t *w, bool two_rows, uint32_t n_panels, bool near)
{
    intptr_t ahead = n_panels > 2 ? FEW_NEAR_BYTES : NEAR_BYTES;
    const uint32_t turn = t->n_groups - (uint32_t)(ahead / TILE_BYTES); /* 2^32 - n: never */
    uint32_t due = 0, share = 0, n_fetched = 0; /* rows of outputs in step with the groups */

    MEMORY_BARRIER(); /* rows and widened panels were stored; the tile loads do not say that they
                         read them */
    EACH_SUM(ZERO_SUM)
    for (uint32_t g = 0; g < t->n_groups; g++, x += TILE_BYTES, w += TILE_BYTES) {
        if (near && g == turn) ahead += (intptr_t)((n_panels - 1) * t->stride); /* the next ones */
        if (two_rows)
            group_product(x, w, t->stride, n_panels, near, ahead);
        else
            few_product(x, w, t->stride, n_panels, near, ahead);
        for (share += BLOCK_ROWS; share >= t->n_groups; share -= t->n_groups)
            due++;
        const uint32_t to = due < b->n_rows ? due : b->n_rows;
        prefetch_outputs(t->a, b, n_fetched, to);
        n_fetched = to;
        if (before != NULL && before->n_done < before->n_rows)
            finish_rows(t, before, due < before->n_rows ? due : before->n_rows);
    }
    if (before != NULL) finish_rows(t, before, before->n_rows);
    EACH_SUM(STORE_SUM)
    MEMORY_BARRIER();
}

/* Calls tile_product with constants. near is false for int8, whose weights were just widened and
 * are in the cache. */
ROSE_INLINE void block_product(const tile_matmul *t, block *b, block *before, const uint8_t *x,
                               const uint8_t *w, bool near)
{
    const bool two_rows = b->n_rows > TILE_ROWS;
    if (two_rows && b->n_panels == 2)
        tile_product(t, b, before, x, w, true, 2, near);
    else if (two_rows)
        tile_product(t, b, before, x, w, true, 1, near);
    else if (near && b->n_panels == FEW_PANELS)
        tile_product(t, b, before, x, w, false, FEW_PANELS, near);
    else if (b->n_panels == 2)
        tile_product(t, b, before, x, w, false, 2, near);
    else
        tile_product(t, b, before, x, w, false, 1, near);
}

/* ---- all blocks ---- */

/* Returns the weights of panels p and p + 1 as bf16. */
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

    const bool few = !i8 && t->n_rows <= TILE_ROWS;

    tiles_configure(t->n_rows < TILE_ROWS ? t->n_rows : TILE_ROWS, 7);
    for (uint32_t p = p0, n_panels; p < t->p1; p += n_panels) {
        const uint8_t *w = take_panels(t, i8, p);
        n_panels = few && t->p1 - p >= FEW_PANELS ? FEW_PANELS : t->p1 - p >= 2 ? 2 : 1;
        for (uint32_t r = 0; r < t->n_rows; r += BLOCK_ROWS, which ^= 1) {
            const uint32_t left = t->n_rows - r;
            block *b = &blocks[which];
            *b = (block){.m = t->m + r,
                         .n_rows = left < BLOCK_ROWS ? left : BLOCK_ROWS,
                         .p = p,
                         .n_panels = n_panels};
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
        matmul_row(a, ROSE_BF16, p0, p1, ROW_PANELS);
    else
        matmul_tiles(a, false, p0, p1);
}

void rose_matmul_i8_amx(const rose_matmul *a, uint32_t p0, uint32_t p1)
{
    if (a->m_rows == 1)
        matmul_row(a, ROSE_I8, p0, p1, ROW_I8_PANELS);
    else if (a->m_rows <= FEW_I8_ROWS)
        rose_matmul_i8_avx512(a, p0, p1);
    else
        matmul_tiles(a, true, p0, p1);
}

#endif
