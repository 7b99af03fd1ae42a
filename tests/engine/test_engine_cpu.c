/* Same request, same bits, on the CPU backend or the one that ROSE_TEST_DEVICE names. Seeded
 * requests of mixed parameters over small random models run one at a time without any cache and
 * give the reference ids. The ids must be the same bit for bit in all other conditions:
 * together, in pieces of any size, after cached prefixes, with so few pages that requests are
 * preempted hundreds of times, with cancels, and with steps that run ahead of each other. One
 * request in six has penalties and reports, which are also compared. */
#include "engine/ahead_cpu.h"
#include "engine/engine_client.h"

#include "backend/cpu_fixture.h"

#ifdef __SANITIZE_THREAD__ /* the kernels are slow there */
enum { N_REQS = 40, N_FAMILIES = 2, MIN_PREEMPTIONS = 10 };
#else
enum { N_REQS = 300, N_FAMILIES = 4, MIN_PREEMPTIONS = 200 };
#endif

static const fx_shape g_shapes[] = {
    {"f32", 2, 48, 3, 104, 77, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false},
    {"bf16", 1, 64, 2, 128, 130, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_BF16, false, false, false,
     false},
};

typedef struct creq {
    rec rec; /* first: what is polled is a rec */
    rose_sampling sampling;
    bool rules;
    uint64_t want_reports; /* hash of all reports */
} creq;

typedef struct fixture {
    rose_model *m;
    creq *reqs; /* [N_REQS]; want is the reference */
} fixture;

static const char *g_isa = "auto";
static const rose_backend_ops *g_ops; /* the backend, or the CPU's on its own thread */

static rose_engine *open_cpu(const rose_model *m, const rose_engine_opts *o)
{
    rose_engine *e = NULL;
    rose_err err = {{0}};
    if (rose_engine_open(&e, g_ops, m, o, &err) != ROSE_OK) fail_msg("open: %s", err.msg);
    return e;
}

static rose_engine_opts cpu_opts(void)
{
    rose_engine_opts o = small_opts();
    o.backend.cpu.n_threads = 1;
    o.backend.cpu.isa = g_isa;
    o.backend.cuda.graph = o.backend.cuda.pdl = true;
    o.backend.max_seqs = 16;
    o.backend.max_step_tokens = 128;
    o.backend.kv_pages = 200;
    o.max_queued = N_REQS;
    return o;
}

static void creq_random(creq *q, uint64_t *s, uint32_t vocab)
{
    rec *x = &q->rec;
    memset(q, 0, sizeof *q);
    x->n_prompt = rnd_in(s, 1, rnd_in(s, 0, 1) ? 70 : 20);
    x->max_tokens = rnd_in(s, 1, 50);
    x->cancel_after = UINT32_MAX;
    x->ignore_eos = rnd_in(s, 0, 1) == 0;
    x->priority = (int32_t)rnd_in(s, 0, 2);
    if (rnd_in(s, 0, 4) == 0) memcpy(x->salt, "x", 2);
    uint64_t family = rnd_in(s, 0, N_FAMILIES - 1);
    uint32_t common = rnd_in(s, 0, x->n_prompt);
    for (uint32_t i = 0; i < x->n_prompt; i++)
        x->prompt[i] =
            i < common ? (uint32_t)(fake_mix(family, i, 3) >> 9) % vocab : rnd_in(s, 0, vocab - 1);
    q->sampling = (rose_sampling){.temperature = (float)rnd_in(s, 0, 3) * 0.5f,
                                  .top_p = rnd_in(s, 0, 1) ? 1.0f : 0.9f,
                                  .min_p = rnd_in(s, 0, 3) ? 0.0f : 0.05f,
                                  .top_k = rnd_in(s, 0, 1) ? 0 : 20,
                                  .seed = rnd(s)};
    q->rules = rnd_in(s, 0, 5) == 0;
}

static void creq_submit(creq *q, rose_engine *e, rose_wakeq *sink)
{
    rec *x = &q->rec;
    x->n_got = 0;
    x->finish = ROSE_FINISH_NONE;
    x->reports = 1;
    x->has_reports = q->rules;
    static const rose_request_rules rules = {
        .repetition = 1.2f, .presence = 0.3f, .logprobs = true, .n_top = 2};
    const rose_request_opts o = {.prompt = x->prompt,
                                 .n_prompt = x->n_prompt,
                                 .max_tokens = x->max_tokens,
                                 .sampling = q->sampling,
                                 .rules = q->rules ? &rules : NULL,
                                 .ignore_eos = x->ignore_eos,
                                 .sink = sink,
                                 .user = x,
                                 .priority = x->priority,
                                 .cache_salt = x->salt,
                                 .cache_salt_len = strlen(x->salt)};
    rose_err err = {{0}};
    if (rose_engine_submit(e, &o, &x->r, &err) != ROSE_OK) fail_msg("submit: %s", err.msg);
}

/* One at a time, no cache, prompts in one piece. */
static fixture make_reference(const fx_shape *shape)
{
    fixture f = {fx_model(shape, test_seed()), calloc(N_REQS, sizeof(creq))};
    uint64_t s = test_seed(), n_tokens = 0, n_stop = 0;
    f.m->arch.n_eos = 1;
    f.m->arch.eos_ids[0] = 7;
    rose_engine_opts o = cpu_opts();
    o.prefix_cache = false;
    o.chunked_prefill = false;
    rose_engine *e = open_cpu(f.m, &o);
    rose_wakeq *sink = open_sink(1);
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec *x = &f.reqs[i].rec;
        creq_random(&f.reqs[i], &s, shape->vocab);
        creq_submit(&f.reqs[i], e, sink);
        consume(sink, 1);
        assert_true(x->finish == ROSE_FINISH_STOP || x->finish == ROSE_FINISH_LENGTH);
        memcpy(x->want, x->got, sizeof x->want);
        x->n_want = x->n_got;
        x->want_finish = x->finish;
        f.reqs[i].want_reports = x->reports;
        n_tokens += x->n_got;
        n_stop += x->finish == ROSE_FINISH_STOP;
    }
    printf("%s: %d requests, %llu tokens, %llu ended by EOS\n", shape->name, N_REQS,
           (unsigned long long)n_tokens, (unsigned long long)n_stop);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    return f;
}

static rose_engine_stats compare(const fixture *f, const char *name, const rose_engine_opts *o,
                                 bool cancels)
{
    uint64_t s = test_seed() ^ 0x55;
    rose_engine *e = open_cpu(f->m, o);
    rose_wakeq *sink = open_sink(N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        f->reqs[i].rec.cancel_after =
            cancels && rnd_in(&s, 0, 2) == 0 ? rnd_in(&s, 1, 20) : UINT32_MAX;
        creq_submit(&f->reqs[i], e, sink);
        if (cancels && rnd_in(&s, 0, 7) == 0) rose_request_cancel(f->reqs[i].rec.r);
    }
    consume(sink, N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        const rec *x = &f->reqs[i].rec;
        rec_verify(x);
        if (x->finish != ROSE_FINISH_CANCELLED) assert_true(x->reports == f->reqs[i].want_reports);
    }
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.kv_pages_free, st.kv_pages);
    assert_int_equal(st.running + st.waiting, 0);
    printf("  %s: %llu steps, %llu of %llu prompt tokens cached, %llu evictions, %llu preemptions, "
           "%llu tokens again, %llu cancelled\n",
           name, (unsigned long long)st.steps, (unsigned long long)st.prefix_hits,
           (unsigned long long)st.prefix_queries, (unsigned long long)st.prefix_evictions,
           (unsigned long long)st.preemptions, (unsigned long long)st.recomputed_tokens,
           (unsigned long long)st.cancelled);
    const rose_spec_stats sp = rose_engine_get_spec(e);
    if (sp.n_guesses > 0)
        printf("    %llu guesses, %llu of %llu ids right\n", (unsigned long long)sp.n_guesses,
               (unsigned long long)sp.n_right, (unsigned long long)sp.n_tried);
    if (o->spec.always) assert_true(sp.n_tried > 0);
    if (o->spec.method == ROSE_SPEC_NONE && o->spec.other == NULL) assert_int_equal(sp.n_tried, 0);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    return st;
}

static const rose_backend_ops *test_device(void)
{
    const char *device = getenv("ROSE_TEST_DEVICE");
    const rose_backend_ops *ops;
    rose_err err = {{0}};
    if (rose_backend_pick(&ops, device != NULL ? device : "cpu", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    return ops;
}

/* Steps of 24 rows, or of up to 128 while nothing decodes; and those of a goal between tokens. */
static rose_status plan_auto(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                             rose_err *err)
{
    const rose_status st = test_device()->plan(m, o, out, err);
    out->busy_step_tokens = 24;
    return st;
}

static void compare_auto(const fixture *f)
{
    const rose_backend_ops *ops = g_ops;
    rose_backend_ops with = *ops;
    with.plan = plan_auto;
    g_ops = &with;
    rose_engine_opts o = cpu_opts();
    compare(f, "steps of changing length", &o, false);
    o.itl_slo_ms = 2;
    compare(f, "steps of changing length, a goal, cancels", &o, true);
    o.backend.kv_pages = 10;
    o.decode_first = false;
    compare(f, "steps of changing length, ten pages", &o, false);
    g_ops = ops;
}

/* A backend that runs ahead by itself. */
static void compare_overlap(const fixture *f)
{
    rose_engine_opts o = cpu_opts();
    o.overlap = true;
    compare(f, "overlap", &o, false);
    o.prefill_chunk_size = 5;
    compare(f, "overlap, pieces of 5, cancels", &o, true);
    o = cpu_opts();
    o.overlap = true;
    o.backend.kv_pages = 10;
    assert_true(compare(f, "overlap, ten pages", &o, false).preemptions > MIN_PREEMPTIONS / 3);
    compare(f, "overlap, ten pages, cancels", &o, true);
}

/* The same with the backend on its own thread: some rules keep a step from running ahead. */
static void compare_ahead(const fixture *f)
{
    g_ops = ahead_cpu_ops();
    rose_engine_opts o = cpu_opts();
    atomic_store(&ahead_cpu_steps, 0);
    atomic_store(&ahead_cpu_under, 0);
    compare(f, "a thread, no overlap", &o, false);
    uint64_t n = atomic_exchange(&ahead_cpu_steps, 0);
    assert_int_equal(atomic_load(&ahead_cpu_under), 0);
    o.overlap = true;
    compare(f, "overlap", &o, false);
    o.prefill_chunk_size = 5;
    compare(f, "overlap, pieces of 5, cancels", &o, true);
    o = cpu_opts();
    o.overlap = true;
    o.backend.kv_pages = 10;
    assert_true(compare(f, "overlap, ten pages", &o, false).preemptions > MIN_PREEMPTIONS / 3);
    compare(f, "overlap, ten pages, cancels", &o, true);
    printf("  %llu steps without overlap, then %llu; %llu were given while one was computed\n",
           (unsigned long long)n, (unsigned long long)atomic_exchange(&ahead_cpu_steps, 0),
           (unsigned long long)atomic_load(&ahead_cpu_under));
    assert_true(atomic_exchange(&ahead_cpu_under, 0) > 0);
}

static void compare_guesses(const fixture *f, bool overlap)
{
    static const char *const names[N_HOSTILE] = {
        [RIGHT] = "right guesses",   [WRONG] = "wrong guesses",
        [RANDOM] = "random guesses", [PARTLY] = "guesses right in part",
        [OUTSIDE] = "ids outside",   [MIXED] = "guesses switched on and off"};
    for (int kind = 0; kind < N_HOSTILE; kind++) {
        hostile h = hostile_make(f->reqs, sizeof *f->reqs, N_REQS, kind, f->m->arch.vocab_size);
        rose_engine_opts o = cpu_opts();
        o.overlap = overlap;
        o.spec = hostile_opts(&h);
        compare(f, names[kind], &o, kind == RANDOM);
        o.backend.kv_pages = 10;
        assert_true(compare(f, "and ten pages", &o, kind == PARTLY).preemptions > 0);
    }
    rose_engine_opts o = cpu_opts();
    o.overlap = overlap;
    rose_spec_opts_default(&o.spec);
    compare(f, "suffix, adaptive", &o, true);
    o.spec.always = true;
    compare(f, "suffix", &o, false);
    o.spec.method = ROSE_SPEC_NGRAM;
    o.spec.ngram_min = o.spec.ngram_max = 1;
    compare(f, "ngram", &o, true);
}

static void compare_all(const fx_shape *shape)
{
    g_ops = test_device();
    fixture f = make_reference(shape);
    rose_engine_opts o = cpu_opts();
    o.prefix_cache = false;
    compare(&f, "together", &o, false);
    o.prefill_chunk_size = 5;
    compare(&f, "pieces of 5", &o, false);
    o = cpu_opts();
    rose_engine_stats st = compare(&f, "prefix cache", &o, false);
    assert_true(st.prefix_hits > N_REQS);
    o.prefill_chunk_size = 1;
    compare(&f, "prefix cache, pieces of 1", &o, false);
    o.prefill_chunk_size = 23;
    o.decode_first = false;
    o.admission = ROSE_ENGINE_PACK;
    compare(&f, "prefix cache, pieces of 23, pack, prompts first", &o, true);
    o = cpu_opts();
    o.backend.kv_pages = 10;
    o.backend.max_seqs = 16;
    uint64_t n = compare(&f, "ten pages", &o, false).preemptions;
    n += compare(&f, "ten pages, cancels", &o, true).preemptions;
    o.prefix_cache = false;
    n += compare(&f, "ten pages, no cache", &o, false).preemptions;
    assert_true(n > MIN_PREEMPTIONS);
    compare_guesses(&f, false);
    compare_auto(&f);
    if ((g_ops->caps & ROSE_CAP_AHEAD) != 0)
        compare_overlap(&f);
    else
        compare_ahead(&f);
    compare_guesses(&f, true); /* on the backend that runs ahead */
    fx_model_free(f.m);
    free(f.reqs);
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

/* The level beside the ladder: its bits are its own, and as indifferent to company. */
static void test_bf16_pairs(void **state)
{
    (void)state;
    rose_isa isa;
    rose_err err;
    if (strcmp(test_device()->name, "cpu") != 0) skip();
    if (rose_isa_parse("avx512-bf16", &isa, &err) != ROSE_OK) {
        print_message("NOT RUN: %s\n", err.msg);
        skip();
    }
    g_isa = "avx512-bf16";
    compare_all(&g_shapes[1]);
    g_isa = "auto";
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f32), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_bf16_pairs)};
    return cmocka_run_group_tests_name("engine on the CPU backend", tests, NULL, NULL);
}
