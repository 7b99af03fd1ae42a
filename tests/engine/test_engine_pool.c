/* Pooled states: requests for the state of the last token or the mean of all states give the same
 * bits alone, together, in pieces of any size, after cached prefixes and after preemptions. The
 * mean equals the states of all prefixes, added in order. ROSE_TEST_DEVICE names another backend.
 */
#include "engine/engine_client.h"

#include "backend/cpu_fixture.h"

enum { N_REQS = 120, MAX_WIDTH = 64, MIN_PREEMPTIONS = 10 };

static const fx_shape g_shapes[] = {
    {"f32", 2, 48, 3, 104, 77, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false},
    {"bf16", 1, 64, 2, 128, 130, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_BF16, false, false, false,
     false},
};

typedef struct preq {
    uint32_t prompt[MAX_LEN], n_prompt;
    rose_pooling pool; /* NONE: a request that generates, beside the others */
    uint32_t max_tokens;
    int32_t priority;
    bool cancel;
    rose_request *r;
    rose_finish finish;
    float want[MAX_WIDTH], got[MAX_WIDTH];
    uint32_t n_cached;
} preq;

static const rose_backend_ops *test_device(void)
{
    const char *device = getenv("ROSE_TEST_DEVICE");
    const rose_backend_ops *ops;
    rose_err err = {{0}};
    if (rose_backend_pick(&ops, device != NULL ? device : "cpu", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    return ops;
}

static rose_engine_opts pool_opts(void)
{
    rose_engine_opts o = small_opts();
    o.backend.cpu.n_threads = 2;
    o.backend.cpu.isa = "auto";
    o.backend.cuda.graph = o.backend.cuda.pdl = true;
    o.backend.max_seqs = 16;
    o.backend.max_step_tokens = 128;
    o.backend.kv_pages = 200;
    o.max_queued = N_REQS;
    o.overlap = true;
    return o;
}

static rose_engine *open_real(const rose_model *m, const rose_engine_opts *o)
{
    rose_engine *e = NULL;
    rose_err err = {{0}};
    if (rose_engine_open(&e, test_device(), m, o, &err) != ROSE_OK) fail_msg("open: %s", err.msg);
    return e;
}

static rose_request_opts request_of(const preq *q, rose_wakeq *sink)
{
    return (rose_request_opts){.prompt = q->prompt,
                               .n_prompt = q->n_prompt,
                               .max_tokens = q->max_tokens,
                               .pool = q->pool,
                               .sampling = {.temperature = 0, .top_p = 1},
                               .ignore_eos = true,
                               .sink = sink,
                               .user = (void *)(uintptr_t)q,
                               .priority = q->priority};
}

static void submit(preq *q, rose_engine *e, rose_wakeq *sink)
{
    const rose_request_opts o = request_of(q, sink);
    rose_err err = {{0}};
    q->finish = ROSE_FINISH_NONE;
    if (rose_engine_submit(e, &o, &q->r, &err) != ROSE_OK) fail_msg("submit: %s", err.msg);
    if (q->cancel) rose_request_cancel(q->r);
}

/* Takes the events of all requests until n have finished. */
static void take_all(rose_wakeq *sink, uint32_t n, uint32_t width)
{
    rose_event ev;
    while (n > 0) {
        void *p;
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK) {
            preq *q = rose_request_user(p);
            while (q->finish == ROSE_FINISH_NONE && rose_request_poll(p, &ev) == ROSE_OK) {
                q->finish = (rose_finish)ev.finish;
                if (q->pool != ROSE_POOL_NONE) assert_false(ev.has_token);
            }
            if (q->finish == ROSE_FINISH_NONE) continue;
            if (q->pool != ROSE_POOL_NONE && q->finish == ROSE_FINISH_LENGTH)
                memcpy(q->got, rose_request_state(p), width * sizeof *q->got);
            q->n_cached = rose_request_cached_tokens(p);
            rose_request_release(p);
            n--;
        }
        if (n > 0) rose_wakeq_wait(sink, 1000000000u);
    }
}

static void preq_random(preq *q, uint64_t *s, uint32_t vocab)
{
    memset(q, 0, sizeof *q);
    const uint32_t kind = rnd_in(s, 0, 4);
    q->pool = kind < 2 ? ROSE_POOL_LAST : kind < 4 ? ROSE_POOL_MEAN : ROSE_POOL_NONE;
    q->n_prompt = rnd_in(s, 1, rnd_in(s, 0, 1) ? 90 : 20);
    q->max_tokens = q->pool == ROSE_POOL_NONE ? rnd_in(s, 20, 60) : 1;
    if (q->pool == ROSE_POOL_NONE) q->n_prompt = rnd_in(s, 1, 30);
    q->priority = q->pool == ROSE_POOL_NONE ? 0 : (int32_t)rnd_in(s, 0, 2);
    const uint64_t family = rnd_in(s, 0, 3);
    const uint32_t common = rnd_in(s, 0, q->n_prompt);
    for (uint32_t i = 0; i < q->n_prompt; i++)
        q->prompt[i] =
            i < common ? (uint32_t)(fake_mix(family, i, 3) >> 9) % vocab : rnd_in(s, 0, vocab - 1);
}

/* One at a time, no cache, prompts in one piece. */
static preq *make_reference(const rose_model *m)
{
    preq *reqs = calloc(N_REQS, sizeof *reqs);
    uint64_t s = test_seed();
    assert_non_null(reqs);
    rose_engine_opts o = pool_opts();
    o.prefix_cache = o.chunked_prefill = false;
    rose_engine *e = open_real(m, &o);
    rose_wakeq *sink = open_sink(2);
    for (uint32_t i = 0; i < N_REQS; i++) {
        preq *q = &reqs[i];
        preq_random(q, &s, m->arch.vocab_size);
        submit(q, e, sink);
        take_all(sink, 1, m->arch.d_model);
        assert_int_equal(q->finish, ROSE_FINISH_LENGTH);
        memcpy(q->want, q->got, sizeof q->want);
    }
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    return reqs;
}

static rose_engine_stats compare(const rose_model *m, preq *reqs, const char *name,
                                 const rose_engine_opts *o, bool cancels)
{
    uint64_t s = test_seed() ^ 0x77;
    uint32_t n_cached = 0, n_pooled = 0;
    rose_engine *e = open_real(m, o);
    rose_wakeq *sink = open_sink(N_REQS + 1);
    for (uint32_t i = 0; i < N_REQS; i++) {
        reqs[i].cancel = cancels && rnd_in(&s, 0, 5) == 0;
        memset(reqs[i].got, 0, sizeof reqs[i].got);
        submit(&reqs[i], e, sink);
    }
    take_all(sink, N_REQS, m->arch.d_model);
    for (uint32_t i = 0; i < N_REQS; i++) {
        const preq *q = &reqs[i];
        if (q->pool == ROSE_POOL_NONE || q->finish == ROSE_FINISH_CANCELLED) continue;
        assert_int_equal(q->finish, ROSE_FINISH_LENGTH);
        if (memcmp(q->got, q->want, m->arch.d_model * sizeof *q->got) != 0)
            fail_msg("%s: request %u, pooling %d, has other bits", name, i, (int)q->pool);
        if (q->pool == ROSE_POOL_MEAN) assert_int_equal(q->n_cached, 0);
        n_cached += q->n_cached;
        n_pooled++;
    }
    const rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.kv_pages_free, st.kv_pages);
    printf("  %s: %u pooled, %u tokens cached, %llu preemptions, %llu tokens again\n", name,
           n_pooled, n_cached, (unsigned long long)st.preemptions,
           (unsigned long long)st.recomputed_tokens);
    if (o->prefix_cache && o->backend.kv_pages > 100) assert_true(n_cached > 0);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    return st;
}

/* The mean is the sum of the last states of all prefixes, in order, divided once. */
static void check_mean(const rose_model *m)
{
    enum { N = 37 };
    preq q[N + 1];
    float sum[MAX_WIDTH] = {0};
    uint64_t s = test_seed() ^ 0x99;
    const rose_engine_opts o = pool_opts();
    rose_engine *e = open_real(m, &o);
    rose_wakeq *sink = open_sink(N + 2);
    for (uint32_t i = 0; i <= N; i++) {
        preq_random(&q[i], &s, m->arch.vocab_size);
        q[i].n_prompt = i < N ? i + 1 : N;
        q[i].pool = i < N ? ROSE_POOL_LAST : ROSE_POOL_MEAN;
        for (uint32_t k = 0; k < q[i].n_prompt; k++)
            q[i].prompt[k] = (k * 7 + 3) % m->arch.vocab_size;
        submit(&q[i], e, sink);
    }
    take_all(sink, N + 1, m->arch.d_model);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < m->arch.d_model; k++)
            sum[k] += q[i].got[k];
    for (uint32_t k = 0; k < m->arch.d_model; k++)
        sum[k] /= (float)N;
    assert_memory_equal(sum, q[N].got, m->arch.d_model * sizeof *sum);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
}

static void compare_all(const fx_shape *shape)
{
    rose_model *m = fx_model(shape, test_seed());
    preq *reqs = make_reference(m);
    rose_engine_opts o = pool_opts();
    o.prefix_cache = false;
    compare(m, reqs, "together", &o, false);
    o.prefill_chunk_size = 5;
    compare(m, reqs, "pieces of 5", &o, false);
    o.overlap = false;
    o.backend.cpu.n_threads = 1;
    compare(m, reqs, "pieces of 5, one thread, no overlap", &o, true);
    o = pool_opts();
    o.prefix_cache = false;
    o.backend.max_step_tokens = 1000; /* several blocks of outputs in a step */
    compare(m, reqs, "large steps", &o, false);
    o = pool_opts();
    compare(m, reqs, "prefix cache", &o, false);
    o.prefill_chunk_size = 1;
    compare(m, reqs, "prefix cache, pieces of 1", &o, true);
    o = pool_opts();
    o.backend.kv_pages = 10;
    o.prefill_chunk_size = 3;
    uint64_t n = compare(m, reqs, "ten pages", &o, false).preemptions;
    n += compare(m, reqs, "ten pages, cancels", &o, true).preemptions;
    o.prefix_cache = false;
    n += compare(m, reqs, "ten pages, no cache", &o, false).preemptions;
    assert_true(n > MIN_PREEMPTIONS);
    check_mean(m);
    fx_model_free(m);
    free(reqs);
}

static void test_f32(void **state)
{
    (void)state;
    compare_all(&g_shapes[0]);
}

static void test_bf16(void **state)
{
    (void)state;
    compare_all(&g_shapes[1]);
}

static void test_refusals(void **state)
{
    static const rose_request_rules rules = {.repetition = 1, .logprobs = true};
    rose_model *m = fx_model(&g_shapes[0], test_seed());
    const rose_engine_opts o = pool_opts();
    rose_engine *e = open_real(m, &o), *without;
    rose_wakeq *sink = open_sink(2);
    rose_request *r;
    rose_err err = {{0}};
    preq q = {.n_prompt = 3, .pool = ROSE_POOL_LAST};
    (void)state;

    rose_request_opts ro = request_of(&q, sink);
    ro.rules = &rules;
    assert_int_equal(rose_engine_submit(e, &ro, &r, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "pooled"));
    ro.rules = NULL;
    ro.n_prompt = MAX_LEN; /* a place stays free for the sample that is not taken */
    assert_int_equal(rose_engine_submit(e, &ro, &r, &err), ROSE_E_INVAL);
    test_mode = MODE_SYNC;
    const rose_engine_opts small = small_opts();
    without = open_engine(&small);
    ro = request_of(&q, sink);
    assert_int_equal(rose_engine_submit(without, &ro, &r, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "embeddings"));
    rose_engine_close(without);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    fx_model_free(m);
}

/* A state that is not finite ends its request alone. */
static void test_not_finite(void **state)
{
    rose_model *m = fx_model(&g_shapes[0], test_seed());
    const rose_engine_opts o = pool_opts();
    rose_wakeq *sink = open_sink(3);
    preq q[2] = {{.n_prompt = 2, .prompt = {5, 6}, .pool = ROSE_POOL_MEAN},
                 {.n_prompt = 2, .prompt = {7, 8}, .pool = ROSE_POOL_MEAN}};
    (void)state;

    float huge = 3e38f; /* finite, but its square is not */
    for (uint32_t i = 0; i < m->arch.d_model; i += 2)
        memcpy((char *)(uintptr_t)m->tok_embed.data + (5 * m->arch.d_model + i) * sizeof huge,
               &huge, sizeof huge);
    rose_engine *e = open_real(m, &o);
    for (uint32_t i = 0; i < 2; i++)
        submit(&q[i], e, sink);
    take_all(sink, 2, m->arch.d_model);
    assert_int_equal(q[0].finish, ROSE_FINISH_ERROR);
    assert_int_equal(q[1].finish, ROSE_FINISH_LENGTH);
    assert_null(rose_engine_failure(e));
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    fx_model_free(m);
}

/* The log-probability of the last prompt token alone (rules.prompt_from) has the bits of a whole
 * report, and the tokens before it may come from the cache. */
static void test_prompt_from(void **state)
{
    enum { N = 50 };
    rose_model *m = fx_model(&g_shapes[0], test_seed());
    const rose_engine_opts o = pool_opts();
    rose_engine *e = open_real(m, &o);
    rose_wakeq *sink = open_sink(2);
    preq q = {.n_prompt = N, .max_tokens = 1};
    float want = 0, got = 0;
    rose_err err = {{0}};
    (void)state;

    for (uint32_t i = 0; i < N; i++)
        q.prompt[i] = i % m->arch.vocab_size;
    for (uint32_t i = 0; i < 3; i++) {
        rose_request_rules rules = {
            .repetition = 1, .prompt_logprobs = true, .prompt_from = i == 0 ? 0 : N - 1};
        rose_request_opts ro = request_of(&q, sink);
        rose_request *r;
        rose_event ev;
        void *p;
        ro.score_only = true;
        ro.rules = &rules;
        assert_int_equal(rose_engine_submit(e, &ro, &r, &err), ROSE_OK);
        do {
            rose_wakeq_wait(sink, 1000000000u);
            rose_wakeq_clear(sink);
        } while (rose_wakeq_pop(sink, &p) != ROSE_OK);
        assert_int_equal(rose_request_poll(p, &ev), ROSE_OK);
        assert_int_equal(ev.finish, ROSE_FINISH_LENGTH);
        memcpy(i == 0 ? &want : &got, &rose_request_prompt_logprobs(r, N - 1)->logprob,
               sizeof want);
        assert_int_equal(rose_request_cached_tokens(r), i == 0 ? 0 : 48);
        if (i > 0) assert_memory_equal(&want, &got, sizeof want);
        rose_request_release(r);
        rules.prompt_from = N;
        assert_int_equal(rose_engine_submit(e, &ro, &r, &err), ROSE_E_INVAL);
    }
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    fx_model_free(m);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32), cmocka_unit_test(test_bf16), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_prompt_from)};
    return cmocka_run_group_tests_name("pooled states", tests, NULL, NULL);
}
