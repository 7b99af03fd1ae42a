/* tests/backend/test_cuda_attention.c - compares the attention kernels with each other bit for
 * bit. Prompts of any length begin anywhere, next to each other, and there are many single rows,
 * with pages in any order. Outputs are poisoned before, with canaries after them. Tiles must
 * give the rows of a prompt the bits that the rows get one by one. K and V that attention writes
 * into the page of a row must have the same effect as K and V already there. The launcher
 * decides which kernel runs. Tests of single rows therefore record what was launched, and fail
 * if they no longer meet each kernel with heads of each size. (test_cuda_attention_exact
 * compares with other arithmetic.) */
#include "backend/cuda_fixture.h"

enum {
    N_PAGES = 512,
    MAX_ITEMS = 256,
    MAX_HEADS = 12,
    CANARY = 40,
    FAR = 1000, /* a long context: rings of splits go round many times */
    LONGEST = 3000
};
static const uint16_t g_poison = 0x1234;
static const uint32_t g_dims[] = {64, 16, 24, 32, 100, 128};
enum { N_DIMS = sizeof g_dims / sizeof *g_dims };

typedef struct problem {
    rose_cuda_type type;
    rose_cuda_attention a; /* out excepted */
    uint32_t rows, head_dim, n_heads, n_singles;
    bool together;                 /* one row a sequence */
    bool far;                      /* of which one has a long context */
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

/* Sequences of one row each; they share their pages, one has a long context, some one of a row, and
 * some are padding. */
static void make_rows(fx_random *r, rose_cuda_item *items, uint32_t n)
{
    const uint32_t far = fx_below(r, n), longest = fx_below(r, 3) == 0 ? LONGEST : 400;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pos = i == far              ? FAR + fx_below(r, LONGEST - FAR)
                             : fx_below(r, 6) == 0 ? fx_below(r, 40)
                                                   : fx_below(r, longest);
        const uint32_t n_pages = pos / ROSE_KV_PAGE_TOKENS + 1;
        items[i] = (rose_cuda_item){i, i == far || fx_below(r, 8) != 0, pos,
                                    fx_below(r, N_PAGES - n_pages)};
    }
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

/* n_rows single rows; 0: tiles. */
static problem make_problem(fx_random *r, rose_cuda_type type, uint32_t head_dim, uint32_t n_rows)
{
    problem p = {.type = type,
                 .rows = n_rows,
                 .head_dim = head_dim,
                 .n_heads = n_rows > 0 ? MAX_HEADS : 1 + fx_below(r, 3),
                 .together = n_rows > 0,
                 .far = n_rows > 0};
    const uint32_t pad = rose_cuda_hd_pad(head_dim), d = p.n_heads * head_dim;
    const uint64_t page = (uint64_t)p.n_heads * 2 * ROSE_KV_PAGE_TOKENS * pad;
    rose_cuda_item items[MAX_ITEMS];
    uint32_t tables[N_PAGES], n_table, n_items = n_rows;
    if (p.together)
        make_rows(r, items, n_rows);
    else
        n_items = make_items(r, items, &n_table, &p.rows);
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

/* ---- which kernels have run ---- */

enum {
    MAX_WARPS = 12,
    AHEAD_UNITS = 96 /* (row, head) that a block of attention_ahead.cuh takes */
};

/* Kernels met for single rows with a long context. The indices: whether attention writes K and V
 * into the pages, whether it runs next to the other half of a step, and the warps of its blocks.
 * The value has a bit for each size of heads and a bit for each type. */
static uint32_t g_met[2][2][MAX_WARPS + 1];
enum { MET_TYPE = 4, MET_ALL = 0x3f };
static bool g_full[2]; /* beside: blocks of as many units as they take */

static void forget_met(void)
{
    memset(g_met, 0, sizeof g_met);
    memset(g_full, 0, sizeof g_full);
}

/* The kernel that this launches; a capture tells. */
static struct cudaKernelNodeParams kernel_of(rose_cuda_launch at, const rose_cuda_attention *a)
{
    struct cudaKernelNodeParams k;
    cudaGraph_t graph;
    cudaGraphNode_t node;
    size_t n = 1;
    assert_int_equal(cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    assert_int_equal(rose_cuda_attention_run(&at, a, true), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(at.stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphGetNodes(graph, &node, &n), cudaSuccess);
    assert_int_equal(n, 1);
    assert_int_equal(cudaGraphKernelNodeGetParams(node, &k), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(at.stream);
    return k;
}

static void note_met(const problem *p, const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    const struct cudaKernelNodeParams k = kernel_of(*at, a);
    const uint32_t warps = k.blockDim.x / 32, n_units = a->n_items * a->kv.n_heads;
    uint32_t size = 0;
    while ((16u << size) < a->kv.hd_pad)
        size++;
    assert_true(warps <= MAX_WARPS && size < MET_TYPE);
    if (p->far)
        g_met[a->kv_rows != NULL][at->beside][warps] |=
            1u << size | 1u << (MET_TYPE + (uint32_t)p->type);
    if (n_units > k.gridDim.x * (AHEAD_UNITS - 1)) g_full[at->beside] = true;
}

static void check_met(bool kv_rows, bool beside, uint32_t warps)
{
    const uint32_t met = g_met[kv_rows][beside][warps];
    if (met != MET_ALL)
        fail_msg("kernels of %u warps, beside %d, with rows of K and V %d: of types and sizes of "
                 "heads 0x%x have run with a long context, not 0x%x",
                 warps, beside, kv_rows, met, (unsigned)MET_ALL);
}

/* Checks that the kernels of attention_ahead.cuh were met. */
static void check_met_ahead(bool kv_rows)
{
    if ((int)fx_gpu()->code < 90) return;
    check_met(kv_rows, false, 3);
    check_met(kv_rows, true, 3);
    check_met(kv_rows, true, 6);
}

typedef struct way {
    uint32_t without;
    bool beside;
} way;

/* singles: row by row, though they come in tiles. The caller frees. */
static uint16_t *run(const problem *p, way w, bool singles, size_t *n)
{
    const rose_cuda_launch at = {
        .device = fx_gpu(), .type = p->type, .without = w.without, .beside = w.beside};
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
    if (p->together) note_met(p, &at, &a);
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

static void compare(fx_random *r, rose_cuda_type type, uint32_t head_dim, uint32_t n_rows)
{
    static const way ways[] = {{ROSE_CUDA_WITHOUT_AHEAD, false}, {0, false}, {0, true}};
    problem p = make_problem(r, type, head_dim, n_rows);
    size_t n;
    uint16_t *want = run(&p, ways[0], false, &n);
    check_canaries(&p, want, n);
    const way apart_way = {ROSE_CUDA_WITHOUT_AHEAD | ROSE_CUDA_WITHOUT_SPREAD, false};
    uint16_t *apart = run(&p, apart_way, false, &n);
    if (memcmp(want, apart, n * sizeof *apart) != 0)
        fail_msg("type %d, %u rows in %u items, %u heads of %u: with spread they differ", (int)type,
                 p.rows, p.a.n_items, p.n_heads, head_dim);
    free(apart);
    for (size_t i = p.together ? 1 : 0; i < sizeof ways / sizeof *ways; i++) {
        uint16_t *got = run(&p, ways[i], !p.together, &n);
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

static rose_cuda_type either(uint32_t i)
{
    return i % 2 == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16;
}

static void test_same_bits(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 5};
    for (uint32_t i = 0; i < 20; i++)
        for (uint32_t j = 0; j < N_DIMS; j++)
            compare(&r, either(i + j), g_dims[i % 3 == 0 ? 0 : j], 0);
}

/* Rows of 12 heads as one kernel each has them: 12 warps a block, 5, then those of
 * attention_ahead.cuh: three alone and six beside, three in both. */
static void test_single_rows(void **state)
{
    (void)state;
    static const struct {
        uint32_t least, below;
    } rows[] = {{1, 12}, {12, 34}, {34, 58}, {58, 128}};
    enum { N = sizeof rows / sizeof *rows };
    fx_random r = {.seed = fx_seed() + 7};
    forget_met();
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < N_DIMS; j++)
            compare(&r, either(i + j), g_dims[j],
                    rows[i].least + fx_below(&r, rows[i].below - rows[i].least));
    check_met(false, false, 12);
    check_met(false, false, 5);
    check_met(false, false, 4);
    check_met_ahead(false);
}

/* ---- K and V that attention puts into the pages ---- */

enum { SEQS = 160, N_SHARED = 400, HOLE = 0x7bff /* the largest of fp16, 2.6e36 of bf16 */ };

/* Sequences of one row: their last page is their own, those before are anybody's. */
typedef struct append {
    problem p;
    size_t page, n_values;  /* values of a page and of all pages */
    uint16_t *full, *holes; /* the pages; and without the rows' own K and V */
    uint16_t *rows;         /* [SEQS][2][d] */
    uint32_t n, n_shared, tables[SEQS * (LONGEST / ROSE_KV_PAGE_TOKENS + 1)];
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
    uint16_t *page = a->holes + (a->n_shared + seq) * a->page;
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

/* How large a problem is. */
typedef struct append_size {
    uint32_t head_dim, heads, n, n_shared; /* n sequences; pages that they share */
} append_size;

static append *make_append(fx_random *r, rose_cuda_type type, append_size size)
{
    append *a = calloc(1, sizeof *a);
    assert_non_null(a);
    const uint32_t head_dim = size.head_dim, heads = size.heads, n = size.n, d = heads * head_dim;
    const uint32_t far = n > 3 ? fx_below(r, n) : UINT32_MAX;
    uint32_t n_table = 0;
    a->n = n;
    a->n_shared = size.n_shared;
    a->page = (size_t)heads * 2 * 16 * rose_cuda_hd_pad(head_dim);
    a->n_values = (a->n_shared + n) * a->page;
    a->full = fx_random_16(r, type, a->n_values, 2);
    a->holes = malloc(a->n_values * sizeof *a->holes);
    a->rows = malloc((size_t)n * 2 * d * sizeof *a->rows);
    assert_true(a->holes != NULL && a->rows != NULL);
    memcpy(a->holes, a->full, a->n_values * sizeof *a->holes);
    a->p =
        (problem){.type = type, .rows = n, .head_dim = head_dim, .together = true, .far = far < n};
    a->p.a.d = d;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pos = i == far ? FAR + fx_below(r, LONGEST - FAR)
                                      : fx_below(r, fx_below(r, 4) == 0 ? FAR : 40);
        a->items[i] = (rose_cuda_item){i, i == far || fx_below(r, 8) != 0, pos, n_table};
        for (uint32_t j = 0; j < pos / 16; j++)
            a->tables[n_table++] = fx_below(r, a->n_shared);
        a->tables[n_table++] = a->n_shared + i;
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

static void compare_append(fx_random *r, rose_cuda_type type, append_size size)
{
    static const way ways[] = {{ROSE_CUDA_WITHOUT_AHEAD, false}, {0, false}, {0, true}};
    append *a = make_append(r, type, size);
    uint16_t *pages = malloc(a->n_values * sizeof *pages);
    size_t bytes;
    assert_non_null(pages);
    memcpy(pages, a->full, a->n_values * sizeof *pages);
    uint16_t *want = run_append(a, ways[0], NULL, pages, &bytes);
    assert_memory_equal(pages, a->full, a->n_values * sizeof *pages);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        const rose_cuda_launch at = {.device = fx_gpu(), .type = type, .beside = ways[i].beside};
        if (!rose_cuda_attention_adds(&at, size.n * size.heads)) continue;
        memcpy(pages, a->holes, a->n_values * sizeof *pages);
        uint16_t *got = run_append(a, ways[i], a->p.memory[4], pages, &bytes);
        const bool rows = memcmp(want, got, bytes * sizeof *got) == 0,
                   there = memcmp(pages, a->full, a->n_values * sizeof *pages) == 0;
        if (!rows || !there)
            fail_msg("type %d, %u rows, %u heads of %u, without %u, beside %d: %s differ",
                     (int)type, size.n, size.heads, size.head_dim, ways[i].without, ways[i].beside,
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

/* As many sequences as give `least` to `below` - 1 units. */
static append_size some_units(fx_random *r, uint32_t head_dim, uint32_t least, uint32_t below)
{
    const uint32_t fewest = (least + SEQS - 1) / SEQS,
                   heads = fewest + fx_below(r, MAX_HEADS + 1 - fewest);
    const uint32_t first = (least + heads - 1) / heads, end = (below - 1) / heads + 1;
    const uint32_t most = end < SEQS + 1 ? end : SEQS + 1;
    return (append_size){head_dim, heads, first + fx_below(r, most - first), N_SHARED};
}

/* Units as one kernel each has them beside: three warps a block, six, three with several units
 * each; and so many that there are more blocks than otherwise. */
static void test_append(void **state)
{
    (void)state;
    static const struct {
        uint32_t least, below;
    } units[] = {{1, 397}, {397, 694}, {397, 694}, {694, 1800}, {694, 1800}};
    enum { N = sizeof units / sizeof *units };
    fx_random r = {.seed = fx_seed() + 8};
    forget_met();
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < N_DIMS; j++)
            compare_append(&r, either(i + j),
                           some_units(&r, g_dims[j], units[i].least, units[i].below));
    compare_append(&r, either(fx_below(&r, 2)), (append_size){64, 3, 1, N_SHARED});
    compare_append(&r, either(fx_below(&r, 2)), (append_size){16, 256, SEQS, 8});
    check_met_ahead(true);
    if ((int)fx_gpu()->code < 90) return;
    assert_true(g_full[false]);
    assert_true(g_full[true]);
}

/* What the sanitizers run. */
static void test_little(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 6};
    for (int i = 0; i < 3; i++)
        compare(&r, ROSE_CUDA_F16, 64, i == 2 ? 40 : 0);
    compare_append(&r, ROSE_CUDA_F16, (append_size){64, 6, 3, N_SHARED});
    compare_append(&r, ROSE_CUDA_BF16, (append_size){64, 6, 70, N_SHARED});
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
