/* tests/backend/test_cuda_attention.c - the kernels of attention against each other bit for bit:
 * prompts of any length that begin anywhere, side by side, and many single rows, in pages in any
 * order; the outputs poisoned before, canaries behind them. The rows of a prompt must come out of
 * tiles as they come out one by one, and K and V of a row that attention puts into its page as if
 * they had been there. (Against other arithmetic: test_cuda_attention_exact.) */
#include "backend/cuda_fixture.h"

enum { N_PAGES = 512, MAX_ITEMS = 256, MAX_HEADS = 12, CANARY = 40 };
static const uint16_t g_poison = 0x1234;

typedef struct problem {
    rose_cuda_type type;
    rose_cuda_attention a; /* out excepted */
    uint32_t rows, head_dim, n_heads, n_singles;
    bool together;                 /* one row a sequence */
    const rose_cuda_item *singles; /* the same, one row an item */
    void *memory[5];               /* to be freed */
} problem;

static uint16_t *random_values(fx_random *r, rose_cuda_type t, size_t n, float scale)
{
    uint16_t *v = fx_random_16(r, t, n, scale), *d = fx_to_device(v, n * sizeof *v);
    free(v);
    return d;
}

/* Tiles of 1 .. 5 sequences: whole prompts, chunks of longer ones, a few rows. */
static uint32_t make_items(fx_random *r, rose_cuda_item *items, uint32_t *n_table, uint32_t *rows)
{
    uint32_t n = 0;
    *n_table = *rows = 0;
    for (uint32_t left = 1 + fx_below(r, 5); left > 0; left--) {
        const uint32_t pos = fx_below(r, 2) == 0 ? 0 : fx_below(r, 700);
        const uint32_t kind = fx_below(r, 3);
        const uint32_t length = kind == 0   ? 2 + fx_below(r, 30)
                                : kind == 1 ? 64 * (1 + fx_below(r, 4))
                                            : 2 + fx_below(r, 300);
        const uint32_t n_pages = (pos + length - 1) / ROSE_KV_PAGE_TOKENS + 1;
        for (uint32_t i = 0; i < length; i += ROSE_CUDA_TILE_ROWS, n++) {
            const uint32_t most = length - i;
            items[n] =
                (rose_cuda_item){*rows + i, most < ROSE_CUDA_TILE_ROWS ? most : ROSE_CUDA_TILE_ROWS,
                                 pos + i, *n_table};
        }
        *rows += length;
        *n_table += n_pages;
    }
    assert_true(n <= MAX_ITEMS && *n_table <= N_PAGES);
    return n;
}

/* Sequences of one row each, so many that kernels for many run; they share their pages, some have a
 * context of one row, and some are padding. */
static uint32_t make_rows(fx_random *r, rose_cuda_item *items, uint32_t *n_table, uint32_t *rows)
{
    const uint32_t n = 34 + fx_below(r, 9), longest = fx_below(r, 3) == 0 ? 3000 : 400;
    *rows = n;
    *n_table = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pos = fx_below(r, 6) == 0 ? fx_below(r, 40) : fx_below(r, longest);
        const uint32_t n_pages = pos / ROSE_KV_PAGE_TOKENS + 1;
        items[i] = (rose_cuda_item){i, fx_below(r, 8) != 0, pos, fx_below(r, N_PAGES - n_pages)};
        *n_table = N_PAGES;
    }
    return n;
}

/* The items' rows, each an item of its own. */
static rose_cuda_item *single_rows(const rose_cuda_item *items, uint32_t n_items, uint32_t rows,
                                   uint32_t *n)
{
    rose_cuda_item *all = calloc(rows, sizeof *all), *d;
    assert_non_null(all);
    *n = 0;
    for (uint32_t i = 0; i < n_items; i++)
        for (uint32_t j = 0; j < items[i].n_rows; j++)
            all[(*n)++] = (rose_cuda_item){items[i].row + j, 1, items[i].pos + j, items[i].table};
    d = fx_to_device(all, rows * sizeof *all);
    free(all);
    return d;
}

static problem make_problem(fx_random *r, rose_cuda_type type, uint32_t head_dim, bool together)
{
    problem p = {.type = type,
                 .head_dim = head_dim,
                 .n_heads = together ? MAX_HEADS : 1 + fx_below(r, 3),
                 .together = together};
    const uint32_t pad = rose_cuda_hd_pad(head_dim), d = p.n_heads * head_dim;
    const uint64_t page = (uint64_t)p.n_heads * 2 * ROSE_KV_PAGE_TOKENS * pad;
    rose_cuda_item items[MAX_ITEMS];
    uint32_t tables[N_PAGES], n_table;
    const uint32_t n_items = (together ? make_rows : make_items)(r, items, &n_table, &p.rows);

    for (uint32_t i = 0; i < N_PAGES; i++)
        tables[i] = i * 237 % N_PAGES;
    p.memory[0] = random_values(r, type, (size_t)p.rows * d, 3);
    p.memory[1] = random_values(r, type, N_PAGES * page, 2);
    p.memory[2] = fx_to_device(items, n_items * sizeof *items);
    p.memory[3] = fx_to_device(tables, sizeof tables);
    p.singles = p.memory[4] = single_rows(items, n_items, p.rows, &p.n_singles);
    p.a = (rose_cuda_attention){.q = p.memory[0],
                                .kv = {.base = p.memory[1],
                                       .page_elems = page,
                                       .head_dim = head_dim,
                                       .hd_pad = pad,
                                       .n_heads = p.n_heads},
                                .tables = p.memory[3],
                                .items = p.memory[2],
                                .n_items = n_items,
                                .scale = 0.18f,
                                .out_k_pad = (d + 31) / 32 * 32,
                                .d = d};
    return p;
}

typedef struct way {
    uint32_t without;
    bool beside;
} way;

/* singles: row by row, though they come in tiles. The caller frees. */
static uint16_t *run(const problem *p, way w, bool singles, size_t *n)
{
    const rose_cuda_launch at = {.type = p->type, .without = w.without, .beside = w.beside};
    rose_cuda_attention a = p->a;
    if (singles) {
        a.items = p->singles;
        a.n_items = p->n_singles;
    }
    *n = (size_t)(p->rows + CANARY) / 8 * 8 * a.out_k_pad;
    uint16_t *out = malloc(*n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < *n; i++)
        out[i] = g_poison;
    a.out = fx_to_device(out, *n * sizeof *out);
    assert_int_equal(rose_cuda_attention_run(&at, &a, p->together || singles), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(out, a.out, *n * sizeof *out, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree(a.out);
    return out;
}

/* Nothing but the rows is written. */
static void check_canaries(const problem *p, const uint16_t *out, size_t n)
{
    const uint32_t k_pad = p->a.out_k_pad;
    for (size_t i = 0; i < n; i++) {
        const size_t row = i / ((size_t)k_pad * 8) * 8 + i % 64 / 8;
        const size_t k = i % ((size_t)k_pad * 8) / 64 * 8 + i % 8;
        if (row >= p->rows || k >= p->a.d) assert_int_equal(out[i], g_poison);
    }
}

static void compare(fx_random *r, rose_cuda_type type, uint32_t head_dim, bool together)
{
    static const way ways[] = {{ROSE_CUDA_WITHOUT_AHEAD, false}, {0, false}, {0, true}};
    problem p = make_problem(r, type, head_dim, together);
    size_t n;
    uint16_t *want = run(&p, ways[0], false, &n);
    check_canaries(&p, want, n);
    const way apart_way = {ROSE_CUDA_WITHOUT_AHEAD | ROSE_CUDA_WITHOUT_SPREAD, false};
    uint16_t *apart = run(&p, apart_way, false, &n);
    if (memcmp(want, apart, n * sizeof *apart) != 0)
        fail_msg("type %d, %u rows in %u items, %u heads of %u: with spread they differ", (int)type,
                 p.rows, p.a.n_items, p.n_heads, head_dim);
    free(apart);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint16_t *got = run(&p, ways[i], true, &n);
        if (memcmp(want, got, n * sizeof *got) != 0)
            fail_msg(
                "type %d, %u rows in %u items, %u heads of %u: row by row they differ, without "
                "%u, beside %d",
                (int)type, p.rows, p.a.n_items, p.n_heads, head_dim, ways[i].without,
                ways[i].beside);
        free(got);
    }
    free(want);
    for (int i = 0; i < 5; i++)
        cudaFree(p.memory[i]);
}

static void test_same_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 16, 24, 32, 100, 128};
    fx_random r = {.seed = fx_seed() + 5};
    for (int i = 0; i < 120; i++)
        compare(&r, i % 2 == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16, dims[i % 3 == 0 ? 0 : i % 6],
                false);
}

static void test_single_rows(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 16, 24, 32, 100, 128};
    fx_random r = {.seed = fx_seed() + 7};
    for (int i = 0; i < 24; i++)
        compare(&r, i % 2 == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16, dims[i % 3 == 0 ? 0 : i % 6],
                true);
}

/* ---- K and V that attention puts into the pages ---- */

enum { SEQS = 140, HOLE = 0x7bff /* the largest of fp16, 2.6e36 of bf16 */ };

/* Sequences of one row: their last page is their own, those before are anybody's. */
typedef struct append {
    problem p;
    size_t page, n_values;  /* values of a page and of all pages */
    uint16_t *full, *holes; /* the pages; and without the rows' own K and V */
    uint16_t *rows;         /* [SEQS][2][d] */
    uint32_t n, tables[SEQS * 64];
    rose_cuda_item items[SEQS];
} append;

/* Where layout.cuh has them. */
static size_t k_place(uint32_t token, uint32_t dim)
{
    return dim / 16 * 256 + (token % 8 * 4 + dim % 8 / 2) * 8 + token / 8 * 4 + dim % 16 / 8 * 2 +
           dim % 2;
}
static size_t v_place(uint32_t token, uint32_t dim)
{
    return dim / 16 * 256 + (dim % 8 * 4 + token % 8 / 2) * 8 + dim % 16 / 8 * 4 + token / 8 * 2 +
           token % 2;
}

/* Takes the row's K and V out of its page; padding keeps the hole. */
static void take_out(append *a, uint32_t seq)
{
    const uint32_t hd = a->p.head_dim, pad = rose_cuda_hd_pad(hd), d = a->p.a.d;
    const uint32_t token = a->items[seq].pos % 16;
    uint16_t *page = a->holes + (N_PAGES + seq) * a->page;
    for (uint32_t i = 0; i < d; i++) {
        const size_t head = (size_t)(i / hd) * 2 * 16 * pad;
        uint16_t *k = page + head + k_place(token, i % hd),
                 *v = page + head + 16 * pad + v_place(token, i % hd);
        a->rows[(size_t)seq * 2 * d + i] = *k;
        a->rows[(size_t)seq * 2 * d + d + i] = *v;
        *k = *v = HOLE;
        if (a->items[seq].n_rows > 0) continue;
        a->full[k - a->holes] = a->full[v - a->holes] = HOLE;
    }
}

static append *make_append(fx_random *r, rose_cuda_type type, uint32_t head_dim, uint32_t n)
{
    append *a = calloc(1, sizeof *a);
    assert_non_null(a);
    const uint32_t heads = 1 + fx_below(r, MAX_HEADS), d = heads * head_dim;
    uint32_t n_table = 0;
    a->n = n;
    a->page = (size_t)heads * 2 * 16 * rose_cuda_hd_pad(head_dim);
    a->n_values = (N_PAGES + n) * a->page;
    a->full = fx_random_16(r, type, a->n_values, 2);
    a->holes = malloc(a->n_values * sizeof *a->holes);
    a->rows = malloc((size_t)n * 2 * d * sizeof *a->rows);
    assert_true(a->holes != NULL && a->rows != NULL);
    memcpy(a->holes, a->full, a->n_values * sizeof *a->holes);
    a->p = (problem){.type = type, .rows = n, .head_dim = head_dim, .together = true};
    a->p.a.d = d;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pos = fx_below(r, fx_below(r, 4) == 0 ? 1000 : 40), last = pos / 16;
        a->items[i] = (rose_cuda_item){i, fx_below(r, 8) != 0, pos, n_table};
        for (uint32_t j = 0; j < last; j++)
            a->tables[n_table++] = fx_below(r, N_PAGES);
        a->tables[n_table++] = N_PAGES + i;
        take_out(a, i);
    }
    a->p.memory[0] = random_values(r, type, (size_t)n * d, 3);
    a->p.memory[2] = fx_to_device(a->items, n * sizeof *a->items);
    a->p.memory[3] = fx_to_device(a->tables, n_table * sizeof *a->tables);
    a->p.memory[4] = fx_to_device(a->rows, (size_t)n * 2 * d * sizeof *a->rows);
    a->p.a = (rose_cuda_attention){.q = a->p.memory[0],
                                   .kv = {.page_elems = a->page,
                                          .head_dim = head_dim,
                                          .hd_pad = rose_cuda_hd_pad(head_dim),
                                          .n_heads = heads},
                                   .tables = a->p.memory[3],
                                   .items = a->p.memory[2],
                                   .n_items = n,
                                   .scale = 0.18f,
                                   .out_k_pad = (d + 31) / 32 * 32,
                                   .d = d};
    return a;
}

/* The rows' outputs; `pages` becomes what the pages then are. */
static uint16_t *run_append(append *a, way w, const void *kv_rows, uint16_t *pages, size_t *n)
{
    a->p.a.kv_rows = kv_rows;
    a->p.a.kv.base = fx_to_device(pages, a->n_values * sizeof *pages);
    uint16_t *out = run(&a->p, w, false, n);
    assert_int_equal(
        cudaMemcpy(pages, a->p.a.kv.base, a->n_values * sizeof *pages, cudaMemcpyDeviceToHost),
        cudaSuccess);
    cudaFree(a->p.a.kv.base);
    return out;
}

static void compare_append(fx_random *r, rose_cuda_type type, uint32_t head_dim, uint32_t n)
{
    static const way ways[] = {{ROSE_CUDA_WITHOUT_AHEAD, false}, {0, false}, {0, true}};
    append *a = make_append(r, type, head_dim, n);
    uint16_t *pages = malloc(a->n_values * sizeof *pages);
    size_t bytes;
    assert_non_null(pages);
    memcpy(pages, a->full, a->n_values * sizeof *pages);
    uint16_t *want = run_append(a, ways[0], NULL, pages, &bytes);
    assert_memory_equal(pages, a->full, a->n_values * sizeof *pages);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        const rose_cuda_launch at = {.type = type, .beside = ways[i].beside};
        if (!rose_cuda_attention_adds(&at, n * a->p.a.kv.n_heads)) continue;
        memcpy(pages, a->holes, a->n_values * sizeof *pages);
        uint16_t *got = run_append(a, ways[i], a->p.memory[4], pages, &bytes);
        const bool rows = memcmp(want, got, bytes * sizeof *got) == 0,
                   there = memcmp(pages, a->full, a->n_values * sizeof *pages) == 0;
        if (!rows || !there)
            fail_msg("type %d, %u rows, %u heads of %u, without %u, beside %d: %s differ",
                     (int)type, n, a->p.a.kv.n_heads, head_dim, ways[i].without, ways[i].beside,
                     rows ? "the pages" : "the rows");
        free(got);
    }
    free(want);
    free(pages);
    free(a->full);
    free(a->holes);
    free(a->rows);
    for (int i = 0; i < 5; i++)
        cudaFree(a->p.memory[i]);
    free(a);
}

static void test_append(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 16, 24, 32, 100, 128};
    static const uint32_t ns[] = {1, 3, 34, 40, 48, 64, 128, SEQS};
    fx_random r = {.seed = fx_seed() + 8};
    for (int i = 0; i < 32; i++)
        compare_append(&r, i % 2 == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16,
                       dims[i % 3 == 0 ? 0 : i % 6], ns[i % 8]);
}

/* What the sanitizers run. */
static void test_little(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 6};
    for (int i = 0; i < 3; i++)
        compare(&r, ROSE_CUDA_F16, 64, i == 2);
    compare_append(&r, ROSE_CUDA_F16, 64, 3);
    compare_append(&r, ROSE_CUDA_BF16, 64, 70);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_single_rows),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_little),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
