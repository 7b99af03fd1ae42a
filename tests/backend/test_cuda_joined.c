/* tests/backend/test_cuda_joined.c - compares LayerNorm, QKV and attention in one kernel
 * (joined.cu) with the two kernels that do the same work. Every bit of the rows and of all pages
 * must agree, for contexts of any length and with padding among the rows. Outputs are poisoned
 * before, with canaries after them. */
#include "backend/cuda_fixture.h"

enum { HEAD = 64, MAX_ROWS = 8, MAX_POS = 1400, TABLE = MAX_POS / ROSE_KV_PAGE_TOKENS + 1 };
enum { N_PAGES = MAX_ROWS * TABLE, CANARY_ROWS = 16 };
static const uint16_t g_poison = 0x1234;

typedef struct problem {
    rose_cuda_type type;
    uint32_t rows;
    rose_cuda_linear l;
    rose_cuda_io io;
    rose_cuda_attention a; /* out excepted */
    uint64_t pool;         /* values of all pages */
    void *memory[9];       /* to be freed */
    int n_memory;
} problem;

static void *keep(problem *p, const void *from, size_t bytes)
{
    void *d = fx_to_device(from, bytes);
    p->memory[p->n_memory++] = d;
    return d;
}

static void *keep_halves(problem *p, fx_random *r, size_t n, float scale)
{
    uint16_t *v = fx_random_16(r, p->type, n, scale);
    void *d = keep(p, v, n * sizeof *v);
    free(v);
    return d;
}

static float *keep_floats(problem *p, fx_random *r, size_t n)
{
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = (2 * fx_uniform(r) - 1) * (fx_below(r, 50) == 0 ? 30.0f : 1.0f);
    float *d = keep(p, v, n * sizeof *v);
    free(v);
    return d;
}

/* Each row has pages of its own, in no order. One in six is padding where there are several. */
static void make_rows(problem *p, fx_random *r, uint32_t longest)
{
    static const uint32_t edges[] = {0, 15, 16, 31, 32, 287, 383, 384, 385, 767, 768, 1151};
    rose_cuda_item items[MAX_ROWS];
    uint32_t tables[N_PAGES], slot[MAX_ROWS];
    for (uint32_t i = 0; i < N_PAGES; i++)
        tables[i] = i * 237 % N_PAGES;
    for (uint32_t i = 0; i < p->rows; i++) {
        const uint32_t edge = edges[fx_below(r, sizeof edges / sizeof *edges)];
        const uint32_t pos = fx_below(r, 2) == 0 && edge <= longest ? edge : fx_below(r, longest);
        items[i] = (rose_cuda_item){i, 1, pos, i * TABLE};
        slot[i] = tables[i * TABLE + pos / ROSE_KV_PAGE_TOKENS] * ROSE_KV_PAGE_TOKENS +
                  pos % ROSE_KV_PAGE_TOKENS;
        if (p->rows > 1 && fx_below(r, 6) == 0) {
            items[i] = (rose_cuda_item){0};
            slot[i] = ROSE_CUDA_NO_SLOT;
        }
    }
    p->a.items = keep(p, items, p->rows * sizeof *items);
    p->a.tables = keep(p, tables, sizeof tables);
    p->io.slot = keep(p, slot, p->rows * sizeof *slot);
}

static problem make_problem(fx_random *r, rose_cuda_type type, uint32_t n_heads, uint32_t rows,
                            uint32_t longest)
{
    const uint32_t d = n_heads * HEAD;
    const uint64_t page = (uint64_t)n_heads * 2 * ROSE_KV_PAGE_TOKENS * HEAD;
    problem p = {.type = type, .rows = rows, .pool = N_PAGES * page};
    const rose_cuda_kv kv = {
        .page_elems = page, .head_dim = HEAD, .hd_pad = HEAD, .n_heads = n_heads};

    p.l = (rose_cuda_linear){.k = d, .k_pad = d, .n = 3 * d, .n_pad = (3 * d + 127) / 128 * 128};
    p.l.w = keep_halves(&p, r, (size_t)d * p.l.n_pad, 0.05f);
    p.l.bias = fx_below(r, 5) == 0 ? NULL : keep_floats(&p, r, p.l.n);
    p.io = (rose_cuda_io){.x = keep_floats(&p, r, (size_t)rows * d),
                          .norm_w = keep_floats(&p, r, d),
                          .norm_b = keep_floats(&p, r, d),
                          .norm_eps = 1e-5f,
                          .epilogue = ROSE_CUDA_EPI_QKV,
                          .kv = kv,
                          .rows = rows,
                          .ld_x = d};
    p.a = (rose_cuda_attention){.kv = kv, .n_items = rows, .scale = 0.18f, .out_k_pad = d, .d = d};
    make_rows(&p, r, longest);
    return p;
}

typedef struct result {
    uint16_t *out, *pool;
    size_t n_out;
} result;

static uint16_t *fetch(const void *from, size_t n)
{
    uint16_t *to = malloc(n * sizeof *to);
    assert_non_null(to);
    assert_int_equal(cudaMemcpy(to, from, n * sizeof *to, cudaMemcpyDeviceToHost), cudaSuccess);
    return to;
}

/* From the same pages. Rows of padding are left as they were, poison. */
static result run(const problem *p, const uint16_t *pool, bool join)
{
    const rose_cuda_launch at = {.device = fx_gpu(), .type = p->type, .shared = true};
    const uint32_t d = p->l.k;
    result res = {.n_out = (size_t)(MAX_ROWS + CANARY_ROWS) * d};
    rose_cuda_attention a = p->a;
    rose_cuda_io io = p->io;
    void *pages = fx_to_device(pool, p->pool * 2);
    void *q = fx_to_device(NULL, (size_t)MAX_ROWS * d * 2);
    uint16_t *poison = malloc(res.n_out * 2);
    assert_non_null(poison);
    for (size_t i = 0; i < res.n_out; i++)
        poison[i] = g_poison;
    a.out = fx_to_device(poison, res.n_out * 2);
    free(poison);
    io.kv.base = a.kv.base = pages;
    if (join) {
        assert_true(rose_cuda_joins(&at, &p->l, &io, &a));
        assert_int_equal(rose_cuda_joined_run(&at, &p->l, &io, &a), cudaSuccess);
    } else {
        a.q = io.q = q;
        assert_int_equal(rose_cuda_linear_run(&at, &p->l, &io), cudaSuccess);
        assert_int_equal(rose_cuda_attention_run(&at, &a, true), cudaSuccess);
    }
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    res.out = fetch(a.out, res.n_out);
    res.pool = fetch(pages, p->pool);
    cudaFree(a.out);
    cudaFree(pages);
    cudaFree(q);
    return res;
}

static void compare(fx_random *r, rose_cuda_type type, uint32_t n_heads, uint32_t rows,
                    uint32_t longest)
{
    problem p = make_problem(r, type, n_heads, rows, longest);
    uint16_t *pool = fx_random_16(r, type, p.pool, 2);
    result want = run(&p, pool, false), got = run(&p, pool, true);
    if (memcmp(want.out, got.out, want.n_out * 2) != 0)
        fail_msg("type %d, %u heads, %u rows: the rows differ", (int)type, n_heads, rows);
    if (memcmp(want.pool, got.pool, p.pool * 2) != 0)
        fail_msg("type %d, %u heads, %u rows: the pages differ", (int)type, n_heads, rows);
    for (size_t i = (size_t)MAX_ROWS * p.l.k; i < got.n_out; i++)
        assert_int_equal(got.out[i], g_poison);
    free(want.out);
    free(want.pool);
    free(got.out);
    free(got.pool);
    free(pool);
    for (int i = 0; i < p.n_memory; i++)
        cudaFree(p.memory[i]);
}

/* Where blocks have less shared memory, most shapes are refused. */
static bool runs_here(void)
{
    return fx_gpu()->code >= 90 && fx_gpu()->shared_max >= 200 * 1024;
}

static void test_same_bits(void **state)
{
    (void)state;
    static const uint32_t heads[] = {12, 1, 3, 16, 4};
    fx_random r = {.seed = fx_seed() + 8};
    if (!runs_here()) skip();
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
            for (uint32_t rows = 1; rows <= MAX_ROWS; rows++)
                compare(&r, (rose_cuda_type)t, heads[i], rows, rows % 2 == 0 ? 400 : MAX_POS);
}

/* What the sanitizers run. */
static void test_little(void **state)
{
    (void)state;
    fx_random r = {.seed = fx_seed() + 9};
    if (!runs_here()) skip();
    compare(&r, ROSE_CUDA_F16, 12, 3, 400);
    compare(&r, ROSE_CUDA_BF16, 2, 8, 1000);
}

/* Refused, not done otherwise. */
static void test_refused(void **state)
{
    (void)state;
    const float one = 1;
    if (!runs_here()) skip();
    for (int i = 0; i < 9; i++) {
        rose_cuda_launch at = {.device = fx_gpu(), .without = 0};
        rose_cuda_linear l = {.k = 768, .k_pad = 768, .n = 2304, .n_pad = 2304};
        rose_cuda_io io = {.epilogue = ROSE_CUDA_EPI_QKV, .rows = 8, .norm_w = &one};
        rose_cuda_attention a = {.kv = {.head_dim = HEAD, .hd_pad = HEAD, .n_heads = 12},
                                 .n_items = 8};
        if (i == 1) at.without = ROSE_CUDA_WITHOUT_JOINED;
        if (i == 2) at.without = ROSE_CUDA_WITHOUT_NORMED;
        if (i == 3) at.type = ROSE_CUDA_F32;
        if (i == 4) io.rows = a.n_items = 9;
        if (i == 5) a.n_items = 7;
        if (i == 6) a.kv.n_heads = 6;
        if (i == 7) a.kv.head_dim = 48;
        if (i == 8) io.epilogue = ROSE_CUDA_EPI_ACT;
        assert_int_equal(rose_cuda_joins(&at, &l, &io, &a), i == 0);
        if (i > 0) assert_int_equal(rose_cuda_joined_run(&at, &l, &io, &a), cudaErrorInvalidValue);
    }
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_little),
        cmocka_unit_test(test_refused),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
