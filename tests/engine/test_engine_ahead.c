/* Steps that run ahead: on the lazy fake, which computes a step only when it is collected. What a
 * late discovery (end of sequence, a NaN, a cancel, a failure) made void leaves no trace; rules
 * that depend on the ids before stay exact. */
#include "engine/engine_client.h"

enum { N_REQS = 300, N_FAMILIES = 4 };

/* ---- rules beside requests without any ---- */

typedef struct areq {
    rec rec;
    uint32_t kind; /* of rules; 0 = none */
    uint64_t reports, want_reports;
} areq;

static const uint32_t g_bad[] = {7, 10, 11, 12, 10, 13}, g_bad_len[] = {1, 3, 2};
static const uint32_t g_stop[] = {40, 41};
static const rose_request_rules g_rules[] = {
    {.repetition = 1.5f},
    {.repetition = 1, .presence = 0.5f, .frequency = -0.25f},
    {.repetition = 1, .bad_ids = g_bad, .bad_len = g_bad_len, .n_bad = 3},
    {.repetition = 1, .min_tokens = 5, .stop_ids = g_stop, .n_stop = 2},
    {.repetition = 1, .logprobs = true},
    {.repetition = 1, .logprobs = true, .prompt_logprobs = true},
    {.repetition = 1, .stop_ids = g_stop, .n_stop = 2},
};
enum { N_KINDS = sizeof g_rules / sizeof g_rules[0] };

static void areq_random(areq *q, uint64_t *s, uint64_t families, uint32_t rules_in)
{
    rec *x = &q->rec;
    rec_random(x, s, 60, 40);
    uint64_t f = families + rnd_in(s, 0, N_FAMILIES - 1);
    uint32_t common = rnd_in(s, 0, x->n_prompt);
    for (uint32_t i = 0; i < common; i++)
        x->prompt[i] = (uint32_t)(fake_mix(f, i, 1) >> 9) % FAKE_VOCAB;
    x->priority = (int32_t)rnd_in(s, 0, 2) - 1;
    if (rnd_in(s, 0, 19) == 0) x->seed = FAKE_NAN_SEED;
    q->kind = rnd_in(s, 1, rules_in) == 1 ? rnd_in(s, 1, N_KINDS) : 0;
    q->reports = 0;
}

static rose_status areq_submit(areq *q, rose_engine *e, rose_wakeq *sink)
{
    rec *x = &q->rec;
    const rose_request_opts o = {
        .prompt = x->prompt,
        .n_prompt = x->n_prompt,
        .max_tokens = x->max_tokens,
        .sampling = {.temperature = 1, .top_p = 1, .seed = x->seed, .top_k = x->n_prompt},
        .rules = q->kind > 0 ? &g_rules[q->kind - 1] : NULL,
        .ignore_eos = x->ignore_eos,
        .sink = sink,
        .user = q,
        .priority = x->priority};
    x->n_got = 0;
    x->finish = ROSE_FINISH_NONE;
    q->reports = 1;
    return rose_engine_submit(e, &o, &x->r, NULL);
}

static void add_report(areq *q, const rose_logprob *l)
{
    uint32_t bits;
    memcpy(&bits, &l->logprob, sizeof bits);
    q->reports = fake_mix(q->reports, l->id, bits);
}

static bool areq_poll(areq *q, rose_request *r)
{
    rec *x = &q->rec;
    rose_event ev;
    const rose_request_rules *rules = q->kind > 0 ? &g_rules[q->kind - 1] : NULL;
    while (rose_request_poll(r, &ev) == ROSE_OK) {
        if (ev.has_token) {
            if (rules != NULL && rules->logprobs) {
                assert_int_equal(rose_request_logprobs(r, x->n_got)->id, ev.id);
                add_report(q, rose_request_logprobs(r, x->n_got));
            }
            x->got[x->n_got++] = ev.id;
            if (x->n_got == x->cancel_after) rose_request_cancel(r);
        }
        if (ev.finish == ROSE_FINISH_NONE) continue;
        x->finish = (rose_finish)ev.finish;
        bool scored = rules != NULL && rules->prompt_logprobs;
        for (uint32_t i = 1; scored && ev.finish != ROSE_FINISH_CANCELLED && i < x->n_prompt; i++)
            add_report(q, rose_request_prompt_logprobs(r, i));
        rose_request_release(r);
        return true;
    }
    return false;
}

static void areq_consume(rose_wakeq *sink, uint32_t n_live)
{
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (n_live > 0) {
        void *p;
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK)
            n_live -= areq_poll(rose_request_user(p), p) ? 1 : 0;
        if (rose_now_ns() > deadline) fail_msg("%u requests did not finish", n_live);
        if (n_live > 0) rose_wakeq_wait(sink, 1000000000u);
    }
}

static rose_engine *open_with_rules(const rose_engine_opts *o, int mode)
{
    static rose_backend_ops ops;
    test_mode = mode;
    ops = *mode_ops();
    ops.caps |= ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES;
    fake_reset();
    return open_ops(o, &ops);
}

static void verify(const areq *q)
{
    const rec *x = &q->rec;
    assert_true(x->n_got <= x->n_want);
    assert_memory_equal(x->got, x->want, x->n_got * sizeof x->got[0]);
    if (x->finish == ROSE_FINISH_CANCELLED) return;
    assert_int_equal(x->finish, x->want_finish);
    assert_int_equal(x->n_got, x->n_want);
    assert_true(q->reports == q->want_reports);
}

/* All at once, in this mode; the first run of all gives what the others must repeat. */
static void run_all(areq *q, const rose_engine_opts *o, int mode, bool reference, bool cancels)
{
    uint64_t s = test_seed() + 4;
    rose_engine *e = open_with_rules(o, mode);
    rose_wakeq *sink = open_sink(N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec *x = &q[i].rec;
        x->cancel_after = cancels && rnd_in(&s, 0, 2) == 0 ? rnd_in(&s, 1, 20) : UINT32_MAX;
        assert_int_equal(areq_submit(&q[i], e, sink), ROSE_OK);
        if (cancels && rnd_in(&s, 0, 7) == 0) rose_request_cancel(x->r);
    }
    areq_consume(sink, N_REQS);
    uint64_t n_tokens = 0;
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec *x = &q[i].rec;
        n_tokens += x->n_got;
        if (reference) {
            memcpy(x->want, x->got, sizeof x->want);
            x->n_want = x->n_got;
            x->want_finish = x->finish;
            q[i].want_reports = q[i].reports;
        }
        verify(&q[i]);
    }
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.generated_tokens, n_tokens);
    assert_int_equal(st.steps, atomic_load(&fake.n_steps));
    assert_int_equal(st.finished, N_REQS);
    printf("mode %d: %llu steps, %llu of them ahead, %llu references, %llu preemptions\n", mode,
           (unsigned long long)st.steps, (unsigned long long)atomic_load(&fake.n_ahead),
           (unsigned long long)atomic_load(&fake.n_refs), (unsigned long long)st.preemptions);
    /* with guesses for all of them no step runs ahead */
    const bool ahead = o->spec.other == NULL || atomic_load(&fake.n_ahead) > 0;
    assert_int_equal(atomic_load(&fake.n_ahead) > 0, mode == MODE_OVERLAP && ahead);
    assert_int_equal(atomic_load(&fake.n_refs) > 0, mode == MODE_OVERLAP && ahead);
    assert_int_equal(rose_engine_get_spec(e).n_tried > 0, o->spec.other != NULL);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
}

/* rules_in: one of every rules_in requests has rules. */
static void same_with_rules(uint32_t rules_in)
{
    uint64_t s = test_seed() + 2 * rules_in;
    areq *q = calloc(N_REQS, sizeof *q);
    for (uint32_t i = 0; i < N_REQS; i++)
        areq_random(&q[i], &s, test_seed(), rules_in);
    rose_engine_opts o = small_opts();
    o.max_queued = N_REQS;
    o.prefix_cache = false;
    o.backend.kv_pages = 100;
    run_all(q, &o, MODE_SYNC, true, false);
    o.prefix_cache = true;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_all(q, &o, mode, false, false);
        run_all(q, &o, mode, false, true);
    }
    o.backend.kv_pages = 9;
    o.backend.max_seqs = 16;
    o.prefill_chunk_size = 5;
    run_all(q, &o, MODE_OVERLAP, false, false);
    run_all(q, &o, MODE_OVERLAP, false, true);
    for (int kind = 0; kind < N_HOSTILE; kind++) {
        hostile h = hostile_make(q, sizeof *q, N_REQS, kind, FAKE_VOCAB);
        o.spec = hostile_opts(&h);
        o.backend.kv_pages = kind % 2 == 0 ? 100 : 20;
        for (int mode = 0; mode < N_MODES; mode++)
            run_all(q, &o, mode, false, mode == MODE_OVERLAP && kind >= PARTLY);
    }
    free(q);
}

static void test_rules(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF); /* of the NaNs */
    same_with_rules(3);
    same_with_rules(40);
    rose_log_set_level(ROSE_LOG_WARN);
}

/* ---- late discoveries ---- */

typedef struct bench {
    rose_engine *e;
    rose_wakeq *sink;
} bench;

static bench bench_open(const rose_engine_opts *o)
{
    test_mode = MODE_OVERLAP;
    fake_reset();
    return (bench){open_engine(o), open_sink(8)};
}

static void bench_close(bench *b)
{
    verify_idle(b->e);
    rose_engine_close(b->e);
    rose_wakeq_destroy(b->sink);
}

static void plain(rec *x, uint32_t n_prompt, uint64_t seed, uint32_t max_tokens)
{
    memset(x, 0, sizeof *x);
    x->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        x->prompt[i] = (i * 7 + 1) % FAKE_VOCAB;
    x->seed = seed;
    x->max_tokens = max_tokens;
    x->cancel_after = UINT32_MAX;
    rec_expect(x);
}

static void ask(bench *b, rec *x)
{
    x->n_got = 0;
    x->finish = ROSE_FINISH_NONE;
    assert_int_equal(rec_submit(x, b->e, b->sink, NULL), ROSE_OK);
    consume(b->sink, 1);
    rec_verify(x);
    verify_idle(b->e);
}

/* The row after the NaN was the last of its page. That page is not in the index; the page before
 * it is. */
static void test_nan_is_not_indexed(void **state)
{
    (void)state;
    const rose_engine_opts o = small_opts();
    bench b = bench_open(&o);
    rec *x = malloc(sizeof *x);
    rose_log_set_level(ROSE_LOG_OFF);
    plain(x, 2 * ROSE_KV_PAGE_TOKENS - 1 - FAKE_NAN_AFTER, FAKE_NAN_SEED, 20);
    ask(&b, x);
    rose_log_set_level(ROSE_LOG_WARN);
    assert_int_equal(x->finish, ROSE_FINISH_ERROR);
    assert_int_equal(x->n_got, FAKE_NAN_AFTER);
    assert_int_equal(atomic_load(&fake.n_refs), FAKE_NAN_AFTER); /* the NaN among them */
    assert_int_equal(rose_engine_get_stats(b.e).kv_pages_cached, 1);
    bench_close(&b);
    free(x);
}

/* The end-of-sequence id was computed ahead, and completed a page: that page is good. */
static void test_eos_is_indexed(void **state)
{
    (void)state;
    enum { LAST = ROSE_KV_PAGE_TOKENS - 1 }; /* where it shall stand */
    const rose_engine_opts o = small_opts();
    bench b = bench_open(&o);
    rec *x = malloc(sizeof *x);
    uint64_t seed = 1;
    do
        plain(x, 10, seed++, 20);
    while (x->n_prompt + x->n_want != LAST + 1 || x->want_finish != ROSE_FINISH_STOP);
    ask(&b, x);
    assert_int_equal(rose_engine_get_stats(b.e).kv_pages_cached, 1);
    assert_int_equal(rose_engine_get_stats(b.e).generated_tokens, x->n_want);
    rec *y = malloc(sizeof *y);
    plain(y, LAST + 3, 5, 10);
    memcpy(y->prompt + 10, x->want, x->n_want * sizeof x->want[0]);
    rec_expect(y);
    ask(&b, y);
    assert_int_equal(y->n_cached, ROSE_KV_PAGE_TOKENS);
    y->prompt[LAST] = FAKE_EOS + FAKE_EOS2 - y->prompt[LAST]; /* the other one */
    rec_expect(y);
    ask(&b, y);
    assert_int_equal(y->n_cached, 0);
    bench_close(&b);
    free(x);
    free(y);
}

/* Cancelled after its prompt, while two steps are in flight. The first step gives its token, the
 * second gives none. All pages go to the next request while the second step is still in flight. */
static void test_cancel_in_flight(void **state)
{
    (void)state;
    rose_engine_opts o = small_opts();
    o.backend.kv_pages = 8;
    o.backend.max_step_tokens = MAX_LEN;
    bench b = bench_open(&o);
    rec *x = calloc(2, sizeof *x);
    for (int round = 0; round < 20; round++) {
        uint64_t n = atomic_load(&fake.n_steps);
        plain(&x[0], 120, 1, 8);
        plain(&x[1], 119, 2 + (uint64_t)round, 9);
        x[0].ignore_eos = x[1].ignore_eos = true; /* nothing is in flight when the round ends */
        x[0].skip_cache = x[1].skip_cache = true;
        rec_expect(&x[0]);
        rec_expect(&x[1]);
        atomic_store(&fake.gate, n + 2);
        assert_int_equal(rec_submit(&x[0], b.e, b.sink, NULL), ROSE_OK);
        while (atomic_load(&fake.n_steps) < n + 3)
            usleep(50);
        rose_request_cancel(x[0].r);
        assert_int_equal(rec_submit(&x[1], b.e, b.sink, NULL), ROSE_OK);
        atomic_store(&fake.gate, 0);
        consume(b.sink, 2);
        assert_int_equal(x[0].finish, ROSE_FINISH_CANCELLED);
        assert_int_equal(x[0].n_got, 2);
        rec_verify(&x[0]);
        rec_verify(&x[1]);
    }
    bench_close(&b);
    free(x);
}

/* The place of a request in the scheduler goes to another one while its last row is in flight. */
static void test_handle_in_flight(void **state)
{
    (void)state;
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 1;
    o.max_queued = 1; /* few handles in all */
    bench b = bench_open(&o);
    rec *x = malloc(sizeof *x);
    for (uint64_t i = 0; i < 2000; i++) {
        plain(x, 1 + (uint32_t)i % 20, i, 6);
        x->cancel_after = i % 3 == 0 ? 1 + (uint32_t)i % 5 : UINT32_MAX;
        rose_status st;
        while ((st = rec_submit(x, b.e, b.sink, NULL)) == ROSE_E_FULL)
            usleep(10);
        assert_int_equal(st, ROSE_OK);
        consume(b.sink, 1); /* the next one comes while a wasted step is in flight */
        rec_verify(x);
    }
    bench_close(&b);
    free(x);
}

/* ---- failures with a step in flight ---- */

static void failing(uint64_t step, uint64_t collect, uint32_t kind)
{
    enum { N = 12 };
    uint64_t s = test_seed() + step * 3 + collect;
    rose_engine_opts o = small_opts();
    o.backend.kv_pages = 12; /* some are preempted */
    areq *q = calloc(N, sizeof *q);
    for (uint32_t i = 0; i < N; i++) {
        areq_random(&q[i], &s, 1, 1000000);
        q[i].rec.cancel_after = UINT32_MAX;
        q[i].rec.seed = i;
        q[i].rec.ignore_eos = true;
        q[i].kind = i == 5 ? kind : 0;
        rec_expect(&q[i].rec);
    }
    rose_engine *e = open_with_rules(&o, MODE_OVERLAP);
    rose_wakeq *sink = open_sink(N);
    fake.fail_step = step;
    fake.fail_collect = collect;
    atomic_store(&fake.gate, 1);
    uint32_t n = 0, n_error = 0;
    while (n < N && areq_submit(&q[n], e, sink) == ROSE_OK) /* or it has failed already */
        n++;
    atomic_store(&fake.gate, 0);
    areq_consume(sink, n);
    for (uint32_t i = 0; i < n; i++) {
        const rec *x = &q[i].rec;
        if (q[i].kind == 0) assert_memory_equal(x->got, x->want, x->n_got * sizeof x->got[0]);
        n_error += x->finish == ROSE_FINISH_ERROR;
    }
    assert_true(n_error > 0);
    assert_true(rose_engine_get_stats(e).failed);
    verify_idle(e);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    free(q);
}

static void test_failures(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    for (uint64_t k = 2; k < 30; k++) {
        failing(k, 0, (uint32_t)k % 3 == 0 ? 5 : 0);
        failing(0, k, (uint32_t)k % 3 == 0 ? 6 : 0);
    }
    rose_log_set_level(ROSE_LOG_WARN);
}

/* ---- what the engine tells of its time ---- */

static uint64_t samples(const rose_hist *h)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= ROSE_HIST_MAX; i++)
        n += rose_count_get(&h->count[i]);
    return n;
}

static void test_times(void **state)
{
    (void)state;
    for (int mode = 0; mode < N_MODES; mode++) {
        const rose_engine_opts o = small_opts();
        bench b = bench_open(&o);
        bench_close(&b);
        test_mode = mode;
        fake_reset();
        b = (bench){open_engine(&o), open_sink(1)};
        rec *x = malloc(sizeof *x);
        plain(x, 5, 3, 30);
        x->ignore_eos = true;
        rec_expect(x);
        ask(&b, x);
        uint64_t n = atomic_load(&fake.n_steps);
        rose_engine *e = b.e;
        while (samples(&rose_engine_get_hists(e)->tokens) <
               n) /* the last sample is noted after its event */
            usleep(50);
        const rose_engine_hists *h = rose_engine_get_hists(e);
        assert_int_equal(samples(&h->host_ns), n);
        assert_int_equal(samples(&h->compute_ns), n);
        assert_int_equal(samples(&h->exposed_ns), n);
        assert_int_equal(n, 30); /* its length was known: nothing ran in vain */
        bench_close(&b);
        free(x);
    }
}

/* A device that would wait gets its next step before the consumer is woken; and he is woken before
 * that step is over. */
static void test_wakes_under_the_next_step(void **state)
{
    (void)state;
    rose_engine_opts o = small_opts();
    test_mode = MODE_NO_OVERLAP;
    fake_reset();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(2);
    rec *x = malloc(sizeof *x);
    plain(x, 5, 3, 4);
    x->ignore_eos = true;
    rec_expect(x);
    atomic_store(&fake.gate, 2);
    atomic_store(&fake.watch_fd, rose_wakeq_fd(sink));
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    for (uint64_t n = 2; n <= 4; n++) { /* step n is held, the one before it was collected */
        struct pollfd told = {.fd = rose_wakeq_fd(sink), .events = POLLIN};
        void *p = NULL;
        assert_int_equal(poll(&told, 1, DEADLINE_S * 1000), 1);
        assert_int_equal(atomic_load(&fake.n_steps), n);
        rose_wakeq_clear(sink);
        assert_int_equal(rose_wakeq_pop(sink, &p), ROSE_OK);
        assert_false(rec_poll(x, p));
        assert_int_equal(x->n_got, n - 1);
        atomic_store(&fake.gate, n + 1);
    }
    consume(sink, 1); /* there is no fifth: it sleeps, and says so before */
    assert_int_equal(atomic_load(&fake.n_told), 0);
    rec_verify(x);
    verify_idle(e);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    free(x);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_nan_is_not_indexed),
        cmocka_unit_test(test_eos_is_indexed),
        cmocka_unit_test(test_cancel_in_flight),
        cmocka_unit_test(test_handle_in_flight),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_wakes_under_the_next_step),
    };
    return cmocka_run_group_tests_name("engine, steps ahead", tests, NULL, NULL);
}
