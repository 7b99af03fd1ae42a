/* tests/backend/test_cpu_memory.c - --mlock and --prefault of the CPU backend: what is locked,
 * and which pages are in memory. */
#include "backend/cpu_fixture.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/memlock.h"

static const fx_shape g_shape = {.name = "small",
                                 .n_layers = 4,
                                 .d_model = 128,
                                 .n_heads = 4,
                                 .d_ff = 512,
                                 .vocab = 500,
                                 .max_positions = 512};

enum { SEQS = 4, LEN = 512, CHUNK = 64, THREADS = 2 };

static rose_backend_opts options(void)
{
    rose_backend_opts o;
    rose_backend_opts_default(&o);
    o.cpu.n_threads = THREADS;
    o.max_seqs = SEQS;
    o.max_step_tokens = CHUNK;
    o.max_model_len = LEN;
    o.kv_pages = SEQS * LEN / ROSE_KV_PAGE_TOKENS;
    return o;
}

static void test_lock(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o = options();
    rose_memory_plan p;
    rose_err err = {""};
    void *ctx = NULL;
    const rose_backend_ops *ops = rose_backend_cpu();
    uint64_t before = rose_memory_locked();
    o.cpu.lock_memory = true;
    if (ops->plan(m, &o, &p, &err) != ROSE_OK) {
        print_message("skipped: %s\n", err.msg);
        fx_model_free(m);
        skip();
    }
    assert_int_equal(rose_memory_locked(), before);
    assert_int_equal(ops->open(&ctx, m, &o, &p, &err), ROSE_OK);
    assert_true(rose_memory_locked() - before >= p.total);
    ops->close(ctx);
    assert_int_equal(rose_memory_locked(), before);
    fx_model_free(m);
}

/* How many pages of the region are in memory. */
static uint64_t resident(const rose_region *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (r->size + page - 1) / page;
    unsigned char *in = malloc(n);
    uint64_t sum = 0;
    assert_non_null(in);
    assert_int_equal(mincore(r->base, r->size, in), 0);
    for (size_t i = 0; i < n; i++)
        sum += in[i] & 1u;
    free(in);
    return sum;
}

/* SEQS prompts of LEN tokens in chunks, which use every page of the pool. */
static void run_steps(void *ctx, uint32_t *last_ids)
{
    static uint32_t tokens[CHUNK], pages[LEN / ROSE_KV_PAGE_TOKENS];
    rose_batch_seq seq = {.n = CHUNK, .table = {pages}};
    rose_batch_out out = {.row = CHUNK - 1}; /* greedy */
    const rose_batch b = {.n_seqs = 1,
                          .n_tokens = CHUNK,
                          .n_outputs = 1,
                          .tokens = tokens,
                          .seqs = &seq,
                          .outs = &out};
    const uint32_t n_pages = LEN / ROSE_KV_PAGE_TOKENS;
    const rose_backend_ops *ops = rose_backend_cpu();
    rose_step_result result;
    rose_err err = {""};
    uint64_t ticket;
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t i = 0; i < n_pages; i++)
            pages[i] = s * n_pages + i;
        for (seq.pos = 0; seq.pos < LEN; seq.pos += CHUNK) {
            for (uint32_t i = 0; i < CHUNK; i++)
                tokens[i] = (s * 31 + seq.pos + i * 7) % g_shape.vocab;
            out.pos = seq.pos + CHUNK;
            assert_int_equal(ops->step(ctx, &b, &ticket, &err), ROSE_OK);
            assert_int_equal(ops->collect(ctx, ticket, &result, &err), ROSE_OK);
            last_ids[s] = result.ids[0];
        }
    }
}

/* With --prefault every page is in memory before the first step, so no step faults on one. Without
 * it the pool is empty until steps write to it. */
static void test_prefault(void **state)
{
    (void)state;
    uint32_t ids[2][SEQS];
    rose_model *m = fx_model(&g_shape, 1);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* A huge page would reach from the weights into the pool, which may stand next to them. */
    const bool small = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0;
    for (int prefault = 0; prefault < 2; prefault++) {
        const rose_backend_ops *ops = rose_backend_cpu();
        rose_backend_opts o = options();
        rose_memory_plan p;
        rose_err err = {""};
        void *ctx = NULL;
        o.cpu.prefault = prefault == 1;
        assert_int_equal(ops->plan(m, &o, &p, &err), ROSE_OK);
        assert_int_equal(ops->open(&ctx, m, &o, &p, &err), ROSE_OK);
        const rose_cpu *c = ctx;
        const rose_region *all[] = {&c->kv_region, &c->weights_region, &c->scratch_region};
        for (int i = 0; i < 3 && prefault == 1; i++)
            assert_int_equal(resident(all[i]), (all[i]->size + page - 1) / page);
        if (prefault == 0 && small) assert_int_equal(resident(&c->kv_region), 0);
        run_steps(ctx, ids[prefault]);
        assert_true(resident(&c->kv_region) > 0);
        ops->close(ctx);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    if (small) assert_int_equal(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    fx_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_prefault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
