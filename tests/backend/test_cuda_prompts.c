/* tests/backend/test_cuda_prompts.c - the kernels in front of and behind attention by cuDNN,
 * without cuDNN: prompts of any length, in pages in any order, heads of any size. Outputs are
 * poisoned, with canaries behind them; of the blocks what belongs to no item must stay. Values only
 * move: all 65,536 patterns of a half. */
#include "backend/cuda_fixture.h"
#include "backend/kv_places.h"

enum {
    PAGE = ROSE_KV_PAGE_TOKENS,
    MAX_PROMPTS = 8,
    MAX_ROWS = 100,
    POISON = 0xa5,
    CANARY = 64 /* bytes */
};

typedef struct problem {
    uint32_t heads, head_dim, hd_pad, d, page_elems;
    uint32_t n_prompts, n_seqs, n_pages, n_rows, n_items, most_pages, kv_rows;
    rose_cuda_prompt prompts[MAX_PROMPTS];
    rose_cuda_item items[MAX_PROMPTS * (MAX_ROWS / PAGE + 1)];
    uint32_t *tables; /* [n_pages], a permutation */
    uint16_t *pool;   /* [n_pages][page_elems] */
    uint16_t *rows;   /* [n_rows][d] */
} problem;

static uint16_t *random_halves(fx_random *r, size_t n)
{
    uint16_t *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = (uint16_t)fx_below(r, 65536);
    return v;
}

/* Prompts whose rows have others between them, contexts one behind the other in whole pages. */
static problem make_problem(fx_random *r)
{
    problem p = {.heads = 1 + fx_below(r, 12), .head_dim = 8 * (1 + fx_below(r, 16))};
    p.hd_pad = (p.head_dim + 15) / 16 * 16;
    p.d = p.heads * p.head_dim;
    p.page_elems = p.heads * 2 * PAGE * p.hd_pad;
    p.n_prompts = 1 + fx_below(r, MAX_PROMPTS);
    p.n_seqs = p.n_prompts + fx_below(r, 4);
    for (uint32_t i = 0; i < p.n_prompts; i++) {
        rose_cuda_prompt *q = &p.prompts[i];
        p.n_rows += fx_below(r, 3);
        *q = (rose_cuda_prompt){.row = p.n_rows,
                                .n_rows = 1 + fx_below(r, MAX_ROWS),
                                .pos = fx_below(r, 3) == 0 ? 0 : fx_below(r, 200),
                                .table = p.n_pages,
                                .kv_row = p.kv_rows};
        const uint32_t pages = (q->pos + q->n_rows + PAGE - 1) / PAGE;
        for (uint32_t row = 0; row < q->n_rows; row += PAGE)
            p.items[p.n_items++] = (rose_cuda_item){
                .row = q->row + row, .n_rows = q->n_rows - row < PAGE ? q->n_rows - row : PAGE};
        p.n_rows += q->n_rows;
        p.n_pages += pages;
        p.kv_rows += pages * PAGE;
        if (pages > p.most_pages) p.most_pages = pages;
    }
    p.tables = malloc(p.n_pages * sizeof *p.tables);
    assert_non_null(p.tables);
    for (uint32_t i = 0; i < p.n_pages; i++) {
        const uint32_t j = fx_below(r, i + 1);
        p.tables[i] = p.tables[j];
        p.tables[j] = i;
    }
    p.pool = random_halves(r, (size_t)p.n_pages * p.page_elems);
    p.rows = random_halves(r, (size_t)p.n_rows * p.d);
    return p;
}

static void free_problem(problem *p)
{
    free(p->tables);
    free(p->pool);
    free(p->rows);
}

/* `bytes` of the device and a canary, all poison. */
static void *poisoned(size_t bytes)
{
    void *p = fx_to_device(NULL, bytes + CANARY);
    assert_int_equal(cudaMemset(p, POISON, bytes + CANARY), cudaSuccess);
    return p;
}

/* What is there now, behind it an intact canary; frees the device's. */
static void *fetched(void *from, size_t bytes)
{
    uint8_t *v = malloc(bytes + CANARY);
    assert_non_null(v);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(v, from, bytes + CANARY, cudaMemcpyDeviceToHost), cudaSuccess);
    for (uint32_t i = 0; i < CANARY; i++)
        assert_int_equal(v[bytes + i], POISON);
    cudaFree(from);
    return v;
}

static void check_context(const problem *p, const uint16_t *k, const uint16_t *v)
{
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        const rose_cuda_prompt *q = &p->prompts[i];
        const uint32_t end = (q->pos + q->n_rows + PAGE - 1) / PAGE * PAGE; /* whole pages */
        for (uint32_t t = 0; t < end; t++)
            for (uint32_t j = 0; j < p->d; j++) {
                const uint16_t *page = p->pool +
                                       (size_t)p->tables[q->table + t / PAGE] * p->page_elems +
                                       (size_t)(j / p->head_dim) * 2 * PAGE * p->hd_pad;
                const size_t at = (size_t)(q->kv_row + t) * p->d + j;
                const uint32_t dim = j % p->head_dim;
                assert_int_equal(k[at], page[kv_k_place(t % PAGE, dim)]);
                assert_int_equal(v[at], page[PAGE * p->hd_pad + kv_v_place(t % PAGE, dim)]);
            }
    }
}

static void check_tables(const problem *p, const int32_t *q_len, const int32_t *kv_len,
                         const int32_t *q_at, const int32_t *kv_at)
{
    const rose_cuda_prompt *last = &p->prompts[p->n_prompts - 1];
    for (uint32_t i = 0; i <= p->n_seqs; i++) {
        const bool has = i < p->n_prompts;
        const rose_cuda_prompt *q = has ? &p->prompts[i] : last;
        assert_int_equal(q_at[i], (has ? q->row : last->row + last->n_rows) * p->d);
        assert_int_equal(kv_at[i], (has ? q->kv_row : p->kv_rows) * p->d);
        if (i == p->n_seqs) continue;
        assert_int_equal(q_len[i], has ? q->n_rows : 0);
        assert_int_equal(kv_len[i], has ? q->pos + q->n_rows : 0);
    }
}

static void check_unpack(const problem *p, rose_cuda_launch at)
{
    const size_t kv_bytes = (size_t)p->kv_rows * p->d * 2, int_bytes = p->n_seqs * 4;
    void *pool = fx_to_device(p->pool, (size_t)p->n_pages * p->page_elems * 2);
    void *tables = fx_to_device(p->tables, p->n_pages * sizeof *p->tables);
    void *prompts = fx_to_device(p->prompts, p->n_prompts * sizeof *p->prompts);
    const rose_cuda_unpack u = {.kv = {.base = pool,
                                       .page_elems = p->page_elems,
                                       .head_dim = p->head_dim,
                                       .hd_pad = p->hd_pad,
                                       .n_heads = p->heads},
                                .tables = tables,
                                .prompts = prompts,
                                .n_prompts = p->n_prompts,
                                .most_pages = p->most_pages,
                                .n_seqs = p->n_seqs,
                                .d = p->d,
                                .k = poisoned(kv_bytes),
                                .v = poisoned(kv_bytes),
                                .q_len = poisoned(int_bytes),
                                .kv_len = poisoned(int_bytes),
                                .q_at = poisoned(int_bytes + 4),
                                .kv_at = poisoned(int_bytes + 4)};
    assert_int_equal(rose_cuda_unpack_run(&at, &u), cudaSuccess);
    uint16_t *k = fetched(u.k, kv_bytes), *v = fetched(u.v, kv_bytes);
    int32_t *q_len = fetched(u.q_len, int_bytes), *kv_len = fetched(u.kv_len, int_bytes);
    int32_t *q_at = fetched(u.q_at, int_bytes + 4), *kv_at = fetched(u.kv_at, int_bytes + 4);
    check_context(p, k, v);
    check_tables(p, q_len, kv_len, q_at, kv_at);
    free(k);
    free(v);
    free(q_len);
    free(kv_len);
    free(q_at);
    free(kv_at);
    cudaFree(pool);
    cudaFree(tables);
    cudaFree(prompts);
}

/* Rows of items as blocks; all else of the blocks as it was. */
static void check_blocks(const problem *p, rose_cuda_launch at)
{
    const uint32_t k_pad = (p->d + 31) / 32 * 32, all = (p->n_rows + 7) / 8 * 8;
    const size_t bytes = (size_t)all * k_pad * 2;
    void *rows = fx_to_device(p->rows, (size_t)p->n_rows * p->d * 2);
    void *items = fx_to_device(p->items, p->n_items * sizeof *p->items);
    const rose_cuda_rows a = {.rows = rows,
                              .items = items,
                              .n_items = p->n_items,
                              .out = poisoned(bytes),
                              .out_k_pad = k_pad,
                              .d = p->d};
    uint16_t *want = malloc(bytes);
    assert_non_null(want);
    memset(want, POISON, bytes);
    for (uint32_t i = 0; i < p->n_items; i++)
        for (uint32_t j = 0; j < p->items[i].n_rows * p->d; j++) {
            const uint32_t row = p->items[i].row + j / p->d, dim = j % p->d;
            want[fx_h_at(row, dim, k_pad)] = p->rows[(size_t)row * p->d + dim];
        }
    assert_int_equal(rose_cuda_block_rows_run(&at, &a), cudaSuccess);
    uint16_t *got = fetched(a.out, bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
    free(want);
    cudaFree(rows);
    cudaFree(items);
}

static void check_some(uint32_t n)
{
    fx_random r = {.seed = fx_seed() + 11};
    for (uint32_t i = 0; i < n; i++) {
        const rose_cuda_launch at = {.type = i % 2 == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16,
                                     .dependent = fx_below(&r, 2) != 0};
        problem p = make_problem(&r);
        check_unpack(&p, at);
        check_blocks(&p, at);
        free_problem(&p);
    }
}

static void test_prompts(void **state)
{
    (void)state;
    check_some(200);
}

/* The same, for slow tools. */
static void test_little(void **state)
{
    (void)state;
    check_some(6);
}

static void test_refused(void **state)
{
    (void)state;
    const rose_cuda_prompt one = {.n_rows = 1};
    const rose_cuda_unpack u = {
        .kv = {.head_dim = 8}, .prompts = &one, .n_prompts = 1, .n_seqs = 1};
    const rose_cuda_rows b = {.n_items = 1, .d = 8};
    rose_cuda_launch at = {.type = ROSE_CUDA_F32};
    assert_int_equal(rose_cuda_unpack_run(&at, &u), cudaErrorInvalidValue);
    assert_int_equal(rose_cuda_block_rows_run(&at, &b), cudaErrorInvalidValue);
    at.type = ROSE_CUDA_F16;
    for (int i = 0; i < 3; i++) {
        rose_cuda_unpack bad = u;
        if (i == 0) bad.kv.head_dim = 12;
        if (i == 1) bad.n_prompts = 0;
        if (i == 2) bad.n_prompts = 2;
        assert_int_equal(rose_cuda_unpack_run(&at, &bad), cudaErrorInvalidValue);
    }
    const rose_cuda_rows odd = {.n_items = 1, .d = 12}, none = {.d = 8};
    assert_int_equal(rose_cuda_block_rows_run(&at, &odd), cudaErrorInvalidValue);
    assert_int_equal(rose_cuda_block_rows_run(&at, &none), cudaSuccess);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts),
                                       cmocka_unit_test(test_little),
                                       cmocka_unit_test(test_refused)};
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
