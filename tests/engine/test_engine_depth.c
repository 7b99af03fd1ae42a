/* Prefix cache, preemption and policies in the engine, on the fake backend: a few hundred requests
 * with common beginnings give what each gives alone, however they are cut, cached, preempted and
 * ordered; and the backend has checked that every row read what its sequence wrote. */
#include "engine/engine_client.h"

enum { N_REQS = 300, N_FAMILIES = 5 };

/* A prompt that begins like others of its family, and may be one of them to the end. */
static void rec_family(rec *x, uint64_t *s, uint64_t families, uint32_t max_prompt,
                       uint32_t max_tokens)
{
    rec_random(x, s, max_prompt, max_tokens);
    uint64_t f = families + rnd_in(s, 0, N_FAMILIES - 1);
    uint32_t common = rnd_in(s, 0, 2) == 0 ? x->n_prompt : rnd_in(s, 0, x->n_prompt);
    for (uint32_t i = 0; i < common; i++)
        x->prompt[i] = (uint32_t)(fake_mix(f, i, 1) >> 9) % FAKE_VOCAB;
    x->priority = (int32_t)rnd_in(s, 0, 2) - 1;
    if (rnd_in(s, 0, 3) == 0) memcpy(x->salt, "tenant", 7);
    x->skip_cache = rnd_in(s, 0, 15) == 0;
    rec_expect(x);
}

/* Runs them all, some cancelled before, during or never; returns the counters at the end. */
static rose_engine_stats run_sized(const rose_engine_opts *o, uint64_t seed, bool cancels,
                                   uint32_t max_prompt, uint32_t max_tokens)
{
    fake_reset();
    uint64_t s = seed, c = seed ^ 77;
    rose_engine *e = open_engine(o);
    rose_wakeq *sink = open_sink(N_REQS);
    rec *x = malloc(N_REQS * sizeof *x);
    uint32_t n_cached = 0;
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec_family(&x[i], &s, seed, max_prompt, max_tokens);
        uint32_t how = cancels ? rnd_in(&c, 0, 3) : 3;
        if (how == 0) x[i].cancel_after = rnd_in(&c, 1, 20);
        rose_status st;
        while ((st = rec_submit(&x[i], e, sink, NULL)) == ROSE_E_FULL)
            usleep(100);
        assert_int_equal(st, ROSE_OK);
        if (how == 1 && i % 3 == 0) rose_request_cancel(x[i].r);
    }
    consume(sink, N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec_verify(&x[i]);
        assert_true(x[i].n_cached < x[i].n_prompt);
        if (x[i].skip_cache) assert_int_equal(x[i].n_cached, 0);
        n_cached += x[i].n_cached;
    }
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.finished, N_REQS);
    assert_int_equal(st.waiting_tokens, 0);
    assert_int_equal(st.prefix_hits, n_cached);
    if (!o->prefix_cache) assert_int_equal(st.prefix_queries + st.kv_pages_cached, 0);
    printf("%llu steps, %llu rows, %llu of %llu prompt tokens cached, %llu evictions, %llu "
           "preemptions, %llu tokens again\n",
           (unsigned long long)st.steps, (unsigned long long)atomic_load(&fake.rows),
           (unsigned long long)st.prefix_hits, (unsigned long long)st.prefix_queries,
           (unsigned long long)st.prefix_evictions, (unsigned long long)st.preemptions,
           (unsigned long long)st.recomputed_tokens);
    close_all(e, sink, x);
    return st;
}

static rose_engine_stats run_all(const rose_engine_opts *o, uint64_t seed, bool cancels)
{
    return run_sized(o, seed, cancels, 100, 27);
}

static rose_engine_opts depth_opts(void)
{
    rose_engine_opts o = small_opts();
    o.max_queued = 1000;
    o.backend.kv_pages = 100;
    return o;
}

static void test_same_bytes(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const uint32_t chunks[] = {0, 1, 7, 16, 33};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        rose_engine_opts o = depth_opts();
        o.prefill_chunk_size = chunks[i];
        rose_engine_stats st = run_all(&o, seed, false);
        assert_true(st.prefix_hits * 4 > st.prefix_queries);
        o.backend.kv_pages = 12; /* one of the longest takes eight */
        st = run_all(&o, seed, i % 2 == 0);
        assert_true(st.preemptions > 20 && st.recomputed_tokens > 0 && st.prefix_evictions > 100);
    }
}

static void test_hundreds_of_preemptions(void **state)
{
    (void)state;
    rose_engine_opts o = depth_opts();
    o.backend.max_seqs = o.backend.max_step_tokens = 32;
    o.backend.kv_pages = 14;
    for (int cache = 0; cache < 2; cache++) {
        o.prefix_cache = cache == 1;
        uint64_t n = 0;
        for (uint64_t k = 0; k < 4; k++)
            n += run_sized(&o, test_seed() + 2 * k, k == 3, 30, 90).preemptions;
        assert_true(n > 300);
    }
}

/* Pools with windows beside a pool for whole sequences, or alone; the longest sequence is twice as
 * long as what they keep. */
static void test_windows(void **state)
{
    static const struct {
        uint32_t n_pools, windows[3], n_blocks[3];
    } rows[] = {{2, {0, 5}, {60, 60}},
                {2, {0, 20}, {60, 10}},
                {2, {0, 2}, {14, 60}},
                {1, {5}, {12}},
                {3, {0, 5, 60}, {20, 12, 14}}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rose_engine_opts o = depth_opts();
        if (i % 2 > 0) o.prefill_chunk_size = 7;
        fake_n_pools = rows[i].n_pools;
        for (uint32_t k = 0; k < fake_n_pools; k++)
            fake_pools[k] =
                (rose_pool){.n_blocks = rows[i].n_blocks[k], .window = rows[i].windows[k]};
        const rose_engine_stats st = run_all(&o, test_seed() + 2 * i, i % 2 == 0);
        assert_true(st.prefix_hits > 200 && st.prefix_evictions > 100);
        assert_true(i == 0 || st.preemptions > 20);
        o.prefix_cache = false;
        (void)run_sized(&o, test_seed() + 2 * i, false, 30, 90);
    }
    fake_n_pools = 1;
    fake_pools[0] = (rose_pool){0};
}

/* The gauges are those of the fullest pool, in pages of the first. */
static void test_fullest_pool(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    rose_engine_opts o = depth_opts();
    fake_reset();
    atomic_store(&fake.gate, 2);
    fake_n_pools = 2;
    fake_pools[0] = (rose_pool){.n_blocks = 60};
    fake_pools[1] = (rose_pool){.n_blocks = 12, .window = 20};
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(1);
    rec *x = calloc(1, sizeof *x);
    rec_random(x, &s, 1, 5);
    x->n_prompt = 30; /* two pages in each pool */
    x->max_tokens = 2;
    x->ignore_eos = true;
    rec_expect(x);
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    while (atomic_load(&fake.n_steps) < 2)
        usleep(100);
    const rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.kv_pages, 60);
    assert_int_equal(st.kv_pages_free, 60 * 10 / 12);
    atomic_store(&fake.gate, 0);
    consume(sink, 1);
    rec_verify(x);
    verify_idle(e);
    assert_int_equal(rose_engine_get_stats(e).kv_pages_cached, 1); /* all equally free: the first */
    close_all(e, sink, x);
    fake_n_pools = 1;
    fake_pools[0] = fake_pools[1] = (rose_pool){0};
}

static void test_policies(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int i = 0; i < 13; i++) {
        rose_engine_opts o = depth_opts();
        o.backend.kv_pages = 30;
        if (i == 0) o.prefix_cache = false;
        if (i == 1) o.admission = ROSE_ENGINE_PACK, o.lookahead = 10, o.force_fifo_every = 4;
        if (i == 2) o.decode_first = false;
        if (i == 3) o.prefill_max_seqs = 1;
        if (i == 4) o.prefill_max_tokens = 5;
        if (i == 5) o.max_active = 3;
        if (i == 6) o.prefix_cache_max_pages = 4;
        if (i == 7) o.priority_age_ms = 0;
        if (i == 9) o.itl_slo_ms = 1;
        if (i == 10) o.itl_slo_ms = 1, o.ttft_slo_ms = 3600000;
        if (i >= 11) o.backend.max_step_tokens = ROSE_STEP_AUTO;
        if (i == 12) o.itl_slo_ms = 30;
        if (i == 8) {
            o.chunked_prefill = false;
            o.backend.max_step_tokens = 127;
        }
        rose_engine_stats st = run_all(&o, seed, true);
        if (i == 5) assert_true(atomic_load(&fake.widest) <= 3);
        if (i == 6) assert_true(st.kv_pages_cached <= 4);
        if (i >= 11) assert_true(atomic_load(&fake.longest) > 16);
    }
}

/* With ROSE_STEP_AUTO a prompt that comes while a sequence decodes runs in steps of 16 rows, unless
 * nobody waits for single tokens. */
static void test_auto_steps(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    for (int offline = 0; offline < 2; offline++) {
        rose_engine_opts o = depth_opts();
        fake_reset();
        atomic_store(&fake.gate, 3);
        o.backend.max_step_tokens = ROSE_STEP_AUTO;
        o.offline = offline > 0;
        rose_engine *e = open_engine(&o);
        rose_wakeq *sink = open_sink(2);
        rec *x = calloc(2, sizeof *x);
        for (int i = 0; i < 2; i++) {
            rec_random(&x[i], &s, 1, 1);
            x[i].n_prompt = i == 0 ? 4 : 100;
            for (uint32_t k = 0; k < x[i].n_prompt; k++)
                x[i].prompt[k] = rnd_in(&s, 0, FAKE_VOCAB - 1);
            x[i].max_tokens = i == 0 ? 90 : 5;
            x[i].ignore_eos = true;
            rec_expect(&x[i]);
            assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
            while (atomic_load(&fake.n_steps) < 2)
                usleep(100);
        }
        atomic_store(&fake.gate, 0);
        consume(sink, 2);
        rec_verify(&x[0]);
        rec_verify(&x[1]);
        assert_int_equal(atomic_load(&fake.longest), offline ? 101 : 16);
        verify_idle(e);
        close_all(e, sink, x);
    }
}

/* ---- what a request is told ---- */

static void ask(rose_engine *e, rose_wakeq *sink, rec *x, uint32_t want_cached)
{
    x->n_got = 0;
    x->finish = ROSE_FINISH_NONE;
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    rec_verify(x);
    assert_int_equal(x->n_cached, want_cached);
    verify_idle(e);
}

static void test_cached_tokens(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    fake_reset();
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(2);
    rec *x = malloc(sizeof *x);
    rec_random(x, &s, 1, 1);
    x->n_prompt = 48;
    for (uint32_t i = 0; i < x->n_prompt; i++)
        x->prompt[i] = i % FAKE_VOCAB;
    x->max_tokens = 40;
    x->ignore_eos = true;
    rec_expect(x);
    ask(e, sink, x, 0);
    ask(e, sink, x, 32); /* not all 48: the last token's logits are wanted */
    memcpy(x->salt, "a", 2);
    ask(e, sink, x, 0);
    ask(e, sink, x, 32);
    memcpy(x->salt, "b", 2);
    ask(e, sink, x, 0);
    x->salt[0] = '\0';
    x->skip_cache = true;
    ask(e, sink, x, 0);
    x->skip_cache = false;
    /* the next turn of a talk: the prompt, the answer, and more */
    memcpy(x->prompt + 48, x->want, 40 * sizeof x->want[0]);
    x->n_prompt = 90;
    x->prompt[88] = x->prompt[89] = 1;
    x->max_tokens = 5;
    rec_expect(x);
    ask(e, sink, x, 80); /* 48 + 39 were computed: five full pages */
    x->prompt[17] ^= 1;  /* in the second page */
    rec_expect(x);
    ask(e, sink, x, 16);
    assert_int_equal(rose_engine_get_stats(e).prefix_hits, 32 + 32 + 80 + 16);
    close_all(e, sink, x);
}

/* Choices of one prompt: only the first computes it. */
static void test_choices(void **state)
{
    (void)state;
    enum { N = 4 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    o.backend.max_step_tokens = 512;
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    for (uint32_t i = 0; i < N; i++) {
        if (i == 0) rec_random(&x[0], &s, 1, 10);
        x[0].n_prompt = 100;
        x[i] = x[0];
        x[i].seed = i;
        rec_expect(&x[i]);
        assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
    }
    atomic_store(&fake.gate, 0);
    consume(sink, N);
    for (uint32_t i = 0; i < N; i++) {
        rec_verify(&x[i]);
        assert_int_equal(x[i].n_cached, i == 0 ? 0 : 96);
    }
    verify_idle(e);
    close_all(e, sink, x);
}

static void test_queued_tokens(void **state)
{
    (void)state;
    enum { N = 4 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 1;
    o.max_queued_tokens = 50;
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    static const uint32_t lens[N] = {60, 90, 20, 20};
    for (uint32_t i = 0; i < N; i++) {
        rec_random(&x[i], &s, 1, 5);
        x[i].n_prompt = lens[i];
        rec_expect(&x[i]);
    }
    assert_int_equal(rec_submit(&x[0], e, sink, NULL), ROSE_OK); /* alone: however long */
    while (atomic_load(&fake.n_steps) == 0)
        usleep(100);
    assert_int_equal(rec_submit(&x[2], e, sink, NULL), ROSE_OK);
    assert_int_equal(rec_submit(&x[1], e, sink, NULL), ROSE_E_FULL);
    assert_int_equal(rec_submit(&x[3], e, sink, NULL), ROSE_OK);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.waiting, 2);
    assert_int_equal(st.waiting_tokens, 40);
    atomic_store(&fake.gate, 0);
    consume(sink, 3);
    assert_int_equal(rec_submit(&x[1], e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    for (uint32_t i = 0; i < N; i++)
        rec_verify(&x[i]);
    verify_idle(e);
    close_all(e, sink, x);
}

/* One runs, another's time comes while it waits: it is told, the first goes on, and whoever comes
 * when nothing runs is served whatever his time. */
static void test_late(void **state)
{
    (void)state;
    enum { N = 4 };
    uint64_t s = test_seed();
    fake_reset();
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 1;
    o.ttft_slo_ms = 30000;
    /* on a machine that has just begun no stamp is late */
    while (rose_now_ns() <= (uint64_t)o.ttft_slo_ms * 1000000)
        usleep(100000);
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    for (uint32_t i = 0; i < N; i++) {
        rec_random(&x[i], &s, 5, 5);
        x[i].max_tokens = 20;
        x[i].ignore_eos = true;
        rec_expect(&x[i]);
    }
    assert_int_equal(rose_engine_retry_after_s(e), 1); /* nothing is known */
    assert_int_equal(rec_submit(&x[0], e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    atomic_store(&fake.gate, 1);
    uint64_t n_steps = atomic_load(&fake.n_steps);
    x[1].t_ns = 1; /* its time was over long ago */
    assert_int_equal(rec_submit(&x[1], e, sink, NULL), ROSE_OK);
    while (atomic_load(&fake.n_steps) == n_steps)
        usleep(100);
    rose_status submitted = ROSE_E_LATE;
    for (int i = 0; i < 10 && submitted == ROSE_E_LATE;
         i++) { /* unless we stood still for so long */
        x[2].t_ns = rose_now_ns() - (uint64_t)30000 * 1000000 + 700000000; /* over in 0.7 s */
        submitted = rec_submit(&x[2], e, sink, NULL);
    }
    assert_int_equal(submitted, ROSE_OK);
    usleep(710000);
    x[3].t_ns = 1;
    assert_int_equal(rec_submit(&x[3], e, sink, NULL), ROSE_E_LATE); /* at the door */
    assert_null(x[3].r);
    atomic_store(&fake.gate, 0);
    consume(sink, 2);
    assert_int_equal(x[2].finish, ROSE_FINISH_LATE);
    assert_int_equal(x[2].n_got, 0);
    rec_verify(&x[0]);
    rec_verify(&x[1]);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.late, 1);
    assert_int_equal(st.waiting_tokens, 0);
    verify_idle(e);
    assert_int_equal(rec_submit(&x[3], e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    rec_verify(&x[3]);
    close_all(e, sink, x);
}

/* The order in which those that wait begin. */
static void test_priority(void **state)
{
    (void)state;
    enum { N = 6 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 1;
    o.priority_age_ms = 60000; /* longer than this test */
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    static const int32_t priorities[N] = {0, 3, 1, 2, -5, INT32_MAX};
    static const uint32_t want[N] = {0, 4, 2, 3, 1, 5};
    for (uint32_t i = 0; i < N; i++) {
        rec_random(&x[i], &s, 5, 5);
        x[i].priority = priorities[i];
        assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
        while (i == 0 && atomic_load(&fake.n_steps) == 0)
            usleep(100); /* the first has begun */
    }
    atomic_store(&fake.gate, 0);
    consume(sink, N);
    for (uint32_t i = 1; i < N; i++)
        assert_true(x[want[i - 1]].times.admitted < x[want[i]].times.admitted);
    close_all(e, sink, x);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),    cmocka_unit_test(test_hundreds_of_preemptions),
        cmocka_unit_test(test_auto_steps),    cmocka_unit_test(test_policies),
        cmocka_unit_test(test_cached_tokens), cmocka_unit_test(test_choices),
        cmocka_unit_test(test_queued_tokens), cmocka_unit_test(test_late),
        cmocka_unit_test(test_priority),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_fullest_pool),
    };
    int failed = 0;
    for (test_mode = 0; test_mode < N_MODES; test_mode++)
        failed += cmocka_run_group_tests_name("engine in depth", tests, NULL, NULL);
    return failed;
}
