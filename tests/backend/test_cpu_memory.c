/* tests/backend/test_cpu_memory.c - --mlock and --prefault of the CPU backend: what is locked, and
 * the page faults of the steps that follow. */
#include "backend/cpu_fixture.h"

#include <sys/prctl.h>
#include <sys/resource.h>
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

static uint64_t minor_faults(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return (uint64_t)u.ru_minflt;
}

/* SEQS prompts of LEN tokens in chunks, every page of the pool: the faults of these steps.
 * *kv_bytes is the size of the pool. */
static uint64_t faults_of_steps(const rose_model *m, bool prefault, uint32_t *last_ids,
                                uint64_t *kv_bytes)
{
    static uint32_t tokens[CHUNK], pages[LEN / ROSE_KV_PAGE_TOKENS];
    rose_batch_seq seq = {.n = CHUNK, .table = pages};
    rose_batch_out out = {.row = CHUNK - 1}; /* greedy */
    const rose_batch b = {.n_seqs = 1,
                          .n_tokens = CHUNK,
                          .n_outputs = 1,
                          .tokens = tokens,
                          .seqs = &seq,
                          .outs = &out};
    const uint32_t n_pages = LEN / ROSE_KV_PAGE_TOKENS;
    const rose_backend_ops *ops = rose_backend_cpu();
    rose_backend_opts o = options();
    rose_memory_plan p;
    rose_step_result result;
    rose_err err = {""};
    void *ctx = NULL;
    uint64_t ticket;
    o.cpu.prefault = prefault;
    assert_int_equal(ops->plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(ops->open(&ctx, m, &o, &p, &err), ROSE_OK);
    *kv_bytes = p.kv;
    uint64_t before = minor_faults();
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
    uint64_t faults = minor_faults() - before;
    ops->close(ctx);
    return faults;
}

static void test_prefault(void **state)
{
    (void)state;
    uint32_t ids[2][SEQS];
    uint64_t kv_bytes;
    rose_model *m = fx_model(&g_shape, 1);
    /* Small pages only, so that the number of faults is that of the pages. With huge ones an
     * aligned pool took 4 faults, and how much beside it fell on a huge page was chance: 7 to 280
     * in all. */
    const bool small = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0;
    const uint64_t page = small ? (uint64_t)sysconf(_SC_PAGESIZE) : 2 << 20;
    faults_of_steps(m, false, ids[0], &kv_bytes); /* the program's own pages */
    uint64_t without = faults_of_steps(m, false, ids[0], &kv_bytes);
    uint64_t with = faults_of_steps(m, true, ids[1], &kv_bytes);
    print_message("page faults of %d steps: %llu, prefaulted %llu\n", SEQS * LEN / CHUNK,
                  (unsigned long long)without, (unsigned long long)with);
    assert_true(without >= kv_bytes / page / 2); /* less is padding: no step touches it */
#if !defined(__SANITIZE_THREAD__)                /* its shadow memory faults beside ours */
    assert_true(with <= without / 4);
#endif
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
