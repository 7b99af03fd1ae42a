/* The engine on a fake backend whose output is a pure function of the request: whatever runs beside
 * it, however it is cut into steps, every token is accounted for. */
#include <math.h>

#include "engine/engine_client.h"

/* ---- generation ---- */

static void one(rose_engine *e, rose_wakeq *sink, rec *x)
{
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    rec_verify(x);
    verify_idle(e);
}

static void test_one_request(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    fake_reset();
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(4);
    rec *x = malloc(sizeof *x);
    for (int i = 0; i < 50; i++) {
        rec_random(x, &s, MAX_LEN - 1, 30);
        one(e, sink, x);
        assert_true(x->times.submitted <= x->times.admitted);
        assert_true(x->times.admitted <= x->times.first_token);
        assert_true(x->times.first_token <= x->times.finished);
    }
    rec_random(x, &s, 1, 1); /* the smallest */
    x->max_tokens = 1;
    rec_expect(x);
    one(e, sink, x);
    rec_random(x, &s, MAX_LEN - 1, 1); /* the longest prompt, max_tokens beyond the context */
    while (x->n_prompt < MAX_LEN - 1)
        x->prompt[x->n_prompt++] = 9;
    x->max_tokens = UINT32_MAX;
    x->ignore_eos = true;
    rec_expect(x);
    one(e, sink, x);
    assert_int_equal(x->n_got, 1);
    assert_int_equal(x->finish, ROSE_FINISH_LENGTH);
    rose_engine_close(e);
    assert_int_equal(atomic_load(&fake.closed), 1);
    rose_wakeq_destroy(sink);
    free(x);
}

static void run_mix(const rose_engine_opts *o, uint64_t seed, uint32_t n, uint32_t max_prompt)
{
    fake_reset();
    rose_engine *e = open_engine(o);
    rose_wakeq *sink = open_sink(n);
    rec *x = malloc(n * sizeof *x);
    uint64_t s = seed, n_tokens = 0, n_prompt = 0;
    for (uint32_t i = 0; i < n; i++) {
        rec_random(&x[i], &s, max_prompt, 40);
        if (i % 17 == 5) x[i].seed = FAKE_NAN_SEED; /* these end in ERROR, alone */
        rec_expect(&x[i]);
        assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
    }
    consume(sink, n);
    for (uint32_t i = 0; i < n; i++) {
        rec_verify(&x[i]);
        n_tokens += x[i].n_got;
        n_prompt += x[i].n_prompt;
    }
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.generated_tokens, n_tokens);
    assert_int_equal(st.prompt_tokens, n_prompt);
    assert_int_equal(st.finished, n);
    assert_int_equal(st.cancelled, 0);
    assert_int_equal(st.steps, atomic_load(&fake.n_steps));
    assert_false(st.failed);
    close_all(e, sink, x);
}

static void test_mixes(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const uint32_t chunks[] = {0, 1, 7, 16, 32, 1000};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        rose_engine_opts o = small_opts();
        o.prefill_chunk_size = chunks[i];
        run_mix(&o, seed, 100, 80);
    }
    rose_engine_opts o = small_opts();
    o.chunked_prefill = false;
    run_mix(&o, seed, 100, 32);
    o = small_opts();
    o.backend.max_seqs = 1;
    o.backend.max_step_tokens = 1;
    run_mix(&o, seed, 30, 20);
    o.backend.max_seqs = 64;
    o.backend.max_step_tokens = 64;
    o.backend.kv_pages = 9; /* room for one or two at a time */
    run_mix(&o, seed, 100, 80);
    o.backend.kv_pages = 600;
    o.backend.max_step_tokens = 512;
    /* wide batches need this thread to submit faster than the engine finishes: not a given on a
     * busy machine */
    for (uint64_t i = 0; i < 50 && atomic_load(&fake.widest) <= 32; i++)
        run_mix(&o, seed + i, 250, 80);
    assert_true(atomic_load(&fake.widest) > 32);
}

/* ---- refusals ---- */

static void refuse(rose_engine *e, rose_request_opts o, const char *word)
{
    rose_request *r = (rose_request *)(void *)1;
    rose_err err = {0};
    assert_int_equal(rose_engine_submit(e, &o, &r, &err), ROSE_E_INVAL);
    assert_null(r);
    if (strstr(err.msg, word) == NULL) fail_msg("'%s' lacks '%s'", err.msg, word);
}

static void test_refusals(void **state)
{
    (void)state;
    fake_reset();
    rose_engine_opts eo = small_opts();
    eo.backend.kv_pages = 4;
    rose_engine *e = open_engine(&eo);
    rose_wakeq *sink = open_sink(4);
    uint32_t ids[MAX_LEN] = {0};
    const rose_request_opts good = {
        .prompt = ids, .n_prompt = 4, .max_tokens = 4, .sampling = {.top_p = 1}, .sink = sink};
    rose_request_opts o = good;
    o.n_prompt = 0;
    refuse(e, o, "empty");
    o = good;
    o.prompt = NULL;
    refuse(e, o, "empty");
    o = good;
    o.sink = NULL;
    refuse(e, o, "sink");
    o = good;
    o.n_prompt = MAX_LEN;
    refuse(e, o, "context");
    o.n_prompt = UINT32_MAX;
    refuse(e, o, "context");
    o = good;
    o.max_tokens = 0;
    refuse(e, o, "max_tokens");
    o.max_tokens = 62; /* 4 + 62 - 1 places = 65 > 4 pages */
    refuse(e, o, "pages");
    o = good;
    ids[2] = FAKE_VOCAB;
    refuse(e, o, "token 2");
    ids[2] = 0;
    const float bad_t[] = {-1.0f, (float)NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        o = good;
        o.sampling.temperature = bad_t[i];
        refuse(e, o, "temperature");
        o = good;
        o.sampling.top_p = i == 0 ? 0.0f : i == 1 ? (float)NAN : 1.5f;
        refuse(e, o, "top_p");
        o = good;
        o.sampling.min_p = i == 0 ? -0.1f : i == 1 ? (float)NAN : 1.5f;
        refuse(e, o, "min_p");
    }
    verify_idle(e);
    o = good; /* the largest that fits: 64 places */
    o.max_tokens = 61;
    o.ignore_eos = true;
    rec *x = calloc(1, sizeof *x);
    x->n_prompt = 4;
    x->max_tokens = 61;
    x->ignore_eos = true;
    x->cancel_after = UINT32_MAX;
    rec_expect(x);
    one(e, sink, x);
    free(x);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
}

static void test_queue_full(void **state)
{
    (void)state;
    enum { N = 12 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 2;
    o.max_queued = 3;
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    uint32_t n = 0;
    rec_random(&x[0], &s, 10, 10);
    assert_int_equal(rec_submit(&x[n++], e, sink, NULL), ROSE_OK);
    while (atomic_load(&fake.n_steps) == 0)
        usleep(100); /* the engine is inside a step and holds still */
    for (uint32_t i = 0; i < 3; i++) {
        rec_random(&x[n], &s, 10, 10);
        assert_int_equal(rec_submit(&x[n++], e, sink, NULL), ROSE_OK);
    }
    assert_int_equal(rose_engine_get_stats(e).waiting, 3);
    rec_random(&x[n], &s, 10, 10);
    rose_err err = {0};
    for (int i = 0; i < 10; i++)
        assert_int_equal(rec_submit(&x[n], e, sink, &err), ROSE_E_FULL);
    assert_null(x[n].r);
    assert_string_equal(err.msg, "");
    rose_request_cancel(x[1].r); /* it waits: its place is free after the next boundary */
    atomic_store(&fake.gate, 0);
    consume(sink, n);
    assert_int_equal(x[1].finish, ROSE_FINISH_CANCELLED);
    assert_int_equal(x[1].n_got, 0);
    for (uint32_t i = 0; i < n; i++)
        rec_verify(&x[i]);
    verify_idle(e);
    one(e, sink, &x[n]);
    close_all(e, sink, x);
}

/* The figure of free pages follows a request that grows, not only its start and end. */
static void test_pages_in_use(void **state)
{
    (void)state;
    enum { PROMPT = 20, STEPS = 20, PAGES = (PROMPT + STEPS) / ROSE_KV_PAGE_TOKENS + 1 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, STEPS);
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(4);
    rec *x = calloc(1, sizeof *x);
    rec_random(x, &s, 1, 1);
    while (x->n_prompt < PROMPT)
        x->prompt[x->n_prompt++] = 9;
    x->max_tokens = 2 * STEPS;
    x->ignore_eos = true;
    rec_expect(x);
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    rose_engine_stats st = rose_engine_get_stats(e);
    for (uint32_t i = 0; i < 100000 && st.kv_pages - st.kv_pages_free != PAGES; i++) {
        usleep(100); /* until the engine waits at the gate */
        st = rose_engine_get_stats(e);
    }
    assert_int_equal(st.kv_pages - st.kv_pages_free, PAGES);
    assert_int_equal(st.running, 1);
    atomic_store(&fake.gate, 0);
    consume(sink, 1);
    rec_verify(x);
    verify_idle(e);
    close_all(e, sink, x);
}

/* Groups: all places or none; where nothing waits as many as can run and wait; more never. */
static void test_groups(void **state)
{
    (void)state;
    enum { N = 5 };
    uint64_t s = test_seed();
    rose_err err = {0};
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 4;
    o.max_active = 2;
    o.max_queued = 3;
    o.max_queued_tokens = 20;
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    assert_int_equal(rose_engine_reserve(e, N + 1, 1, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "2 run"));
    assert_non_null(strstr(err.msg, "3 wait (--max-num-queued-reqs)"));
    assert_int_equal(rose_engine_get_stats(e).waiting, 0);
    for (int i = 0; i < 3; i++) { /* what is given back is free again */
        assert_int_equal(rose_engine_reserve(e, N, 100, NULL), ROSE_OK); /* alone: however long */
        assert_int_equal(rose_engine_reserve(e, 1, 1, NULL), ROSE_E_FULL);
        rose_engine_unreserve(e, N, 100);
        assert_int_equal(rose_engine_reserve(e, 1, 10, NULL), ROSE_OK);
        assert_int_equal(rose_engine_reserve(e, 2, 11, NULL), ROSE_E_FULL); /* tokens */
        assert_int_equal(rose_engine_reserve(e, 3, 3, NULL), ROSE_E_FULL);  /* not alone */
        assert_int_equal(rose_engine_reserve(e, 2, 10, NULL), ROSE_OK);
        rose_engine_unreserve(e, 3, 20);
        assert_int_equal(rose_engine_get_stats(e).waiting_tokens, 0);
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < N; i++) {
        rec_random(&x[i], &s, 10, 10);
        total += x[i].n_prompt;
    }
    assert_int_equal(rose_engine_reserve(e, N, total, NULL), ROSE_OK);
    for (uint32_t i = 0; i < N; i++) {
        const rec sound = x[i];
        x[i].n_reserved = N - i;
        if (i == 3)
            x[i].prompt[0] = UINT32_MAX; /* a submission that fails also uses its place up */
        assert_int_equal(rec_submit(&x[i], e, sink, NULL), i == 3 ? ROSE_E_INVAL : ROSE_OK);
        if (i == 3) x[i] = sound;
    }
    rec_random(&x[3], &s, 10, 10);
    for (int ms = 0; rose_engine_has_room(e); ms++) { /* once the counts have settled */
        assert_true(ms < DEADLINE_S * 1000);
        usleep(1000);
    }
    assert_false(rose_request_has_begun(x[4].r)); /* two run at a time, and the gate holds them */
    atomic_store(&fake.gate, 0);
    consume(sink, N - 1);
    assert_true(rose_engine_has_room(e));
    one(e, sink, &x[3]);
    for (uint32_t i = 0; i < N; i++)
        rec_verify(&x[i]);
    verify_idle(e);
    assert_int_equal(rose_engine_get_stats(e).waiting, 0);
    assert_int_equal(rose_engine_get_stats(e).waiting_tokens, 0);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    free(x);
}

/* ---- failures ---- */

static void failing(uint64_t step, uint64_t collect)
{
    enum { N = 40 };
    uint64_t s = test_seed();
    fake_reset();
    fake.fail_step = step;
    fake.fail_collect = collect;
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N, sizeof *x);
    uint32_t n = 0, n_error = 0;
    rose_status st = ROSE_OK;
    while (n < N) {
        rec_random(&x[n], &s, 20, 20);
        x[n].ignore_eos = true;
        rec_expect(&x[n]);
        if ((st = rec_submit(&x[n], e, sink, NULL)) != ROSE_OK) break;
        n++;
    }
    assert_true(st == ROSE_OK || st == ROSE_E_BACKEND);
    consume(sink, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_memory_equal(x[i].got, x[i].want, x[i].n_got * sizeof x[i].got[0]);
        n_error += x[i].finish == ROSE_FINISH_ERROR;
    }
    assert_true(n_error > 0);
    assert_true(rose_engine_get_stats(e).failed);
    verify_idle(e);
    rose_err err = {0};
    assert_int_equal(rec_submit(&x[0], e, sink, &err), ROSE_E_BACKEND);
    assert_non_null(strstr(err.msg, collect != 0 ? "collect fails" : "step "));
    assert_string_equal(rose_engine_failure(e), err.msg);
    close_all(e, sink, x);
}

static void test_backend_failure(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    failing(1, 0);
    failing(7, 0);
    failing(0, 1);
    failing(0, 9);
    rose_log_set_level(ROSE_LOG_WARN);
}

static void test_open_failure(void **state)
{
    (void)state;
    for (int i = 0; i < 7; i++) {
        rose_engine *e = (rose_engine *)(void *)1;
        rose_model m;
        rose_err err = {0};
        rose_engine_opts o = small_opts();
        memset(&m, 0, sizeof m);
        m.arch.vocab_size = FAKE_VOCAB;
        fake_reset();
        fake.fail_plan = i == 0;
        fake.fail_open = i == 1;
        if (i == 2) o.max_queued = 0;
        if (i == 3) o.max_queued = 65537;
        if (i == 4) o.backend.max_seqs = 0;
        if (i == 5) o.backend.max_step_tokens = 7; /* below max_seqs */
        if (i == 6) o.backend.kv_pages = 0;
        assert_int_not_equal(rose_engine_open(&e, mode_ops(), &m, &o, &err), ROSE_OK);
        assert_null(e);
        assert_true(err.msg[0] != '\0');
        assert_int_equal(atomic_load(&fake.opened), i == 1);
        assert_int_equal(atomic_load(&fake.closed), i == 1);
    }
    rose_engine_close(NULL);
}

/* ---- drain and close ---- */

static void test_drain(void **state)
{
    (void)state;
    enum { N = 30 };
    uint64_t s = test_seed();
    fake_reset();
    atomic_store(&fake.gate, 1);
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(N);
    rec *x = calloc(N + 1, sizeof *x);
    for (uint32_t i = 0; i < N; i++) {
        rec_random(&x[i], &s, 50, 20);
        assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
    }
    rose_engine_drain(e);
    rose_engine_drain(e);
    rec_random(&x[N], &s, 50, 20);
    assert_int_equal(rec_submit(&x[N], e, sink, NULL), ROSE_E_CLOSED);
    atomic_store(&fake.gate, 0);
    consume(sink, N);
    for (uint32_t i = 0; i < N; i++)
        rec_verify(&x[i]);
    verify_idle(e);
    close_all(e, sink, x);
}

/* Close with n requests open, the engine idle, busy, or failed; poll, cancel and release after. */
static void close_with(uint32_t n, bool drain, uint64_t fail_step, unsigned delay_us)
{
    uint64_t s = test_seed();
    fake_reset();
    fake.fail_step = fail_step;
    fake.delay_us = delay_us;
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(n + 1);
    rec *x = calloc(n + 1, sizeof *x);
    for (uint32_t i = 0; i < n; i++) {
        rec_random(&x[i], &s, 50, 50);
        if (rec_submit(&x[i], e, sink, NULL) != ROSE_OK) n = i;
    }
    if (drain) rose_engine_drain(e);
    if (delay_us > 0) usleep(delay_us * 3);
    rose_engine_close(e);
    for (uint32_t i = 0; i < n; i++)
        rose_request_cancel(x[i].r); /* of no effect */
    consume(sink, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_memory_equal(x[i].got, x[i].want, x[i].n_got * sizeof x[i].got[0]);
        assert_int_not_equal(x[i].finish, ROSE_FINISH_NONE);
    }
    assert_int_equal(atomic_load(&fake.closed), 1);
    rose_wakeq_destroy(sink);
    free(x);
}

static void test_close(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    static const uint32_t ns[] = {0, 1, 5, 200};
    for (int i = 0; i < 4; i++) {
        close_with(ns[i], false, 0, 0);
        close_with(ns[i], false, 0, 300);
        close_with(ns[i], true, 0, 0);
        close_with(ns[i], true, 0, 300);
        close_with(ns[i], false, 2, 0);
        close_with(ns[i], true, 2, 300);
    }
    rose_log_set_level(ROSE_LOG_WARN);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),     cmocka_unit_test(test_mixes),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_pages_in_use),    cmocka_unit_test(test_groups),
        cmocka_unit_test(test_backend_failure), cmocka_unit_test(test_open_failure),
        cmocka_unit_test(test_drain),           cmocka_unit_test(test_close),
    };
    int failed = 0;
    for (test_mode = 0; test_mode < N_MODES; test_mode++)
        failed += cmocka_run_group_tests_name("engine", tests, NULL, NULL);
    return failed;
}
