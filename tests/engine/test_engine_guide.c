/* Guides in the engine: a mask of allowed ids for each sample, computed by other threads. A fake
 * guide allows ids by a hash of the history. It checks that only ids that it allowed reach it, that
 * one thread calls it at a time, and that it is destroyed once. On the fake backends, and on the
 * CPU's with the same ids in every kind of crowd. */
#include <dirent.h>
#include <pthread.h>

#include "engine/ahead_cpu.h"
#include "engine/engine_client.h"
#include "engine/guide_internal.h"
#include "engine/request_internal.h"

#include "backend/cpu_fixture.h"

#ifdef __SANITIZE_THREAD__ /* the kernels are slow there */
enum { N_REQS = 150, N_CPU = 40 };
#else
enum { N_REQS = 300, N_CPU = 150 };
#endif

/* ---- the fake guide ---- */

/* Calls of guides that wait at it go on when it opens. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    uint32_t n_waiting; /* calls that wait or have waited */
} gate;

typedef struct guide {
    uint64_t h; /* of the history */
    uint32_t n, vocab, mask[8];
    uint32_t fail_advance, fail_mask; /* the n-th call fails; 0 = none */
    uint32_t empty_from;              /* masks after this many ids are empty; 0 = none */
    uint32_t eos_from;                /* masks after this many ids hold FAKE_EOS alone; 0 = none */
    uint32_t n_masks, n_at_mask;      /* calls; ids at the last of them */
    gate *gate;
    uint32_t gate_from; /* calls after this many ids wait at the gate */
    bool silent;        /* a failure has no message */
    bool slow;
    atomic_flag busy;
} guide;

static _Atomic uint32_t g_made, g_destroyed, g_wrong, g_known, g_walked;

static void wrong(const char *what)
{
    if (atomic_fetch_add(&g_wrong, 1) < 5) fprintf(stderr, "fake guide: %s\n", what);
}

static uint64_t guide_next(uint64_t h, uint32_t id, uint32_t n)
{
    return fake_mix(h, id + 1, n);
}

static bool guide_allows(uint64_t h, uint32_t id, uint32_t vocab)
{
    return fake_mix(h, id, 17) >> 20 & 1 ? false
                                         : (fake_mix(h, id, 18) >> 20) % 3 == 0 || id == h % vocab;
}

static void gate_wait(guide *g)
{
    gate *t = g->gate;
    if (t == NULL || g->n < g->gate_from) return;
    pthread_mutex_lock(&t->lock);
    t->n_waiting++;
    pthread_cond_broadcast(&t->changed);
    while (!t->open)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static void gate_await(gate *t, uint32_t n)
{
    pthread_mutex_lock(&t->lock);
    while (t->n_waiting < n)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static void gate_open(gate *t)
{
    pthread_mutex_lock(&t->lock);
    t->open = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static rose_status guide_fail(const guide *g, rose_err *err, const char *what)
{
    return g->silent ? ROSE_E_INVAL : rose_fail(err, ROSE_E_INVAL, "%s %u", what, g->n);
}

static rose_status guide_advance(void *state, uint32_t id, rose_err *err)
{
    guide *g = state;
    if (atomic_flag_test_and_set(&g->busy)) wrong("two threads call it");
    if (id >= g->vocab || (g->mask[id / 32] >> id % 32 & 1) == 0) wrong("an id that it forbade");
    g->h = guide_next(g->h, id, g->n++);
    gate_wait(g);
    bool fails = g->n == g->fail_advance;
    atomic_flag_clear(&g->busy);
    return fails ? guide_fail(g, err, "advance") : ROSE_OK;
}

/* The mask after the ids so far. */
static void write_mask(guide *g, uint32_t *words)
{
    memset(g->mask, 0, sizeof g->mask);
    for (uint32_t id = 0; id < g->vocab; id++)
        if (guide_allows(g->h, id, g->vocab)) g->mask[id / 32] |= 1u << id % 32;
    if (g->empty_from != 0 && g->n >= g->empty_from) memset(g->mask, 0, sizeof g->mask);
    if (g->eos_from != 0 && g->n >= g->eos_from) {
        memset(g->mask, 0, sizeof g->mask);
        g->mask[FAKE_EOS / 32] = 1u << FAKE_EOS % 32;
    }
    for (uint32_t i = 0; i < (g->vocab + 31) / 32; i++)
        words[i] = g->mask[i];
    words[g->vocab / 32] |= ~0u << g->vocab % 32; /* mean nothing */
}

static rose_status guide_mask(void *state, uint32_t *words, rose_err *err)
{
    guide *g = state;
    if (atomic_flag_test_and_set(&g->busy)) wrong("two threads call it");
    if (g->n_masks++ > 0 && g->n == g->n_at_mask) wrong("a mask again without an id");
    g->n_at_mask = g->n;
    if (g->n == 0) gate_wait(g);
    write_mask(g, words);
    bool fails = g->n_masks == g->fail_mask;
    atomic_flag_clear(&g->busy);
    return fails ? guide_fail(g, err, "mask") : ROSE_OK;
}

static void guide_destroy(void *state)
{
    guide *g = state;
    if (atomic_flag_test_and_set(&g->busy)) wrong("destroyed while it is called");
    atomic_fetch_add(&g_destroyed, 1);
    free(g);
}

static bool guide_is_slow(void *state)
{
    const guide *g = state;
    return g->slow;
}

/* Some histories are known: the engine thread gets their masks at once. */
static bool guide_try_next(void *state, uint32_t id, uint32_t *words)
{
    guide *g = state;
    rose_err err;
    if (g->gate != NULL || g->slow || g->n + 1 == g->fail_advance || g->n_masks + 1 == g->fail_mask)
        return false;
    if (fake_mix(g->h, id, 19) >> 20 & 1) return false;
    atomic_fetch_add(&g_known, 1);
    return guide_advance(state, id, &err) == ROSE_OK && guide_mask(state, words, &err) == ROSE_OK;
}

/* Along what try_next knows; the guide itself stays. */
static uint32_t guide_walk(void *state, const uint32_t *ids, uint32_t n, uint32_t *words)
{
    const guide *g = state;
    guide at = {.h = g->h,
                .n = g->n,
                .vocab = g->vocab,
                .empty_from = g->empty_from,
                .eos_from = g->eos_from};
    uint32_t k = 0;
    if (g->gate != NULL || g->slow || g->fail_advance != 0 || g->fail_mask != 0) return 0;
    memcpy(at.mask, g->mask, sizeof at.mask);
    for (; k < n; k++) {
        if (fake_mix(at.h, ids[k], 19) >> 20 & 1) break;
        if (ids[k] >= g->vocab) wrong("an id that there is not");
        at.h = guide_next(at.h, ids[k], at.n++);
        write_mask(&at, words + (size_t)k * ((g->vocab + 31) / 32));
    }
    atomic_fetch_add(&g_walked, k);
    return k;
}

/* The first id that is allowed, again and again. */
static uint32_t guide_propose(void *state, uint32_t cap, uint32_t *ids, bool compute)
{
    const guide *g = state;
    guide at = {.h = g->h, .n = g->n, .vocab = g->vocab};
    uint32_t words[8], k = 0, id = 0;
    for (; k < cap && k < 3 + (compute ? 1 : 0); k++) {
        write_mask(&at, words);
        for (id = 0; id < g->vocab && (at.mask[id / 32] >> id % 32 & 1) == 0;)
            id++;
        if (id == g->vocab) break;
        ids[k] = id;
        at.h = guide_next(at.h, id, at.n++);
    }
    return k;
}

static const rose_guide_ops g_guide_ops = {guide_advance,  guide_mask, guide_destroy, guide_is_slow,
                                           guide_try_next, guide_walk, guide_propose};

static guide *guide_make(uint64_t seed, uint32_t vocab)
{
    guide *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->h = seed | 1;
    g->vocab = vocab;
    atomic_flag_clear(&g->busy);
    atomic_fetch_add(&g_made, 1);
    return g;
}

static rose_guide guide_of(guide *g)
{
    return (rose_guide){.ops = g != NULL ? &g_guide_ops : NULL, .state = g};
}

/* All that were made are destroyed, each once: a second time would be a use after free. */
static void verify_guides(void)
{
    assert_int_equal(atomic_load(&g_destroyed), atomic_load(&g_made));
    assert_int_equal(atomic_load(&g_wrong), 0);
}

/* ---- the work of a job ---- */

/* min_tokens and ignore_eos against the words of engine.h. */
static void test_ends(void **state)
{
    static const uint32_t eos[] = {FAKE_EOS, FAKE_EOS2}, stop[] = {40, FAKE_EOS, 96};
    uint64_t s = test_seed();
    uint32_t n_kept = 0;
    (void)state;
    for (uint32_t round = 0; round < 4000; round++) {
        const rose_request_rules rules = {
            .stop_ids = stop, .n_stop = rnd_in(&s, 0, 3), .min_tokens = rnd_in(&s, 0, 3)};
        guide *g = guide_make(rnd(&s), FAKE_VOCAB);
        const rose_request_opts o = {.guide = guide_of(g),
                                     .rules = rnd_in(&s, 0, 4) == 0 ? NULL : &rules,
                                     .ignore_eos = rnd_in(&s, 0, 1) == 0};
        const rose_rules_ctx c = {.vocab = FAKE_VOCAB, .eos = eos, .n_eos = 2};
        const uint32_t n = rnd_in(&s, 0, 3);
        rose_guided *d = rose_guided_create(&o, &c);
        assert_non_null(d);
        g->n = n > 0 ? n - 1 : 0;
        g->n_masks = n;
        memset(g->mask, 0xff, sizeof g->mask); /* of the id before */
        d->n_generated = n;
        d->n_ids = n > 0;
        d->ids[0] = 3;
        if (rnd_in(&s, 0, 4) == 0) g->empty_from = 1 + rnd_in(&s, 0, 3);
        if (rnd_in(&s, 0, 4) == 0) g->eos_from = 1 + rnd_in(&s, 0, 3);
        rose_guided_work(d);
        assert_int_equal(d->st, ROSE_OK);
        bool want[FAKE_VOCAB], any = false;
        const bool too_short = o.rules != NULL && n < rules.min_tokens;
        for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
            bool end = (too_short || o.ignore_eos) && (id == eos[0] || id == eos[1]);
            for (uint32_t i = 0; too_short && i < rules.n_stop; i++)
                end = end || stop[i] == id;
            want[id] = (g->mask[id / 32] >> id % 32 & 1) != 0 && !end;
            any = any || want[id];
        }
        for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
            bool allowed = (d->mask[id / 32] >> id % 32 & 1) != 0;
            assert_int_equal(allowed, any ? want[id] : g->mask[id / 32] >> id % 32 & 1);
        }
        n_kept += !any && rose_guided_allows_any(d, d->mask);
        assert_int_equal(d->mask[FAKE_VOCAB / 32] >> FAKE_VOCAB % 32, 0);
        rose_guided_destroy(d);
    }
    assert_in_range(n_kept, 100, 2000);
    verify_guides();
}

/* ---- the same ids in every kind of crowd, on the fake backends ---- */

enum { PLAIN, GUIDED, GUIDED_RULES, GUIDED_PENALTIES, N_KINDS };

static const uint32_t g_stop[] = {40, 41};
static const rose_request_rules g_rules[N_KINDS] = {
    [GUIDED_RULES] = {.repetition = 1, .min_tokens = 5, .stop_ids = g_stop, .n_stop = 2},
    [GUIDED_PENALTIES] = {.repetition = 1.2f, .presence = 0.5f, .logprobs = true},
};

typedef struct greq {
    rec rec; /* first: what is polled is a rec */
    uint32_t kind;
    uint64_t guide_seed;
    uint32_t vocab;
    rose_sampling sampling;
    guide set; /* what the guide gets besides, from fail_advance on */
    bool has_error;
    char error[200];
} greq;

/* One of every guided_in requests has a guide. */
static void greq_random(greq *q, uint64_t *s, uint32_t vocab, uint32_t n_families,
                        uint32_t guided_in)
{
    rec *x = &q->rec;
    memset(q, 0, sizeof *q);
    x->n_prompt = rnd_in(s, 1, 60);
    x->max_tokens = rnd_in(s, 1, 40);
    x->seed = rnd(s);
    x->ignore_eos = rnd_in(s, 0, 2) == 0;
    x->cancel_after = UINT32_MAX;
    x->priority = (int32_t)rnd_in(s, 0, 2) - 1;
    uint64_t f = rnd_in(s, 0, n_families - 1);
    uint32_t common = rnd_in(s, 0, x->n_prompt);
    for (uint32_t i = 0; i < x->n_prompt; i++)
        x->prompt[i] =
            i < common ? (uint32_t)(fake_mix(f, i, 1) >> 9) % vocab : rnd_in(s, 0, vocab - 1);
    q->kind = rnd_in(s, 1, guided_in) == 1 ? rnd_in(s, GUIDED, N_KINDS - 1) : PLAIN;
    q->guide_seed = rnd(s);
    q->vocab = vocab;
    q->sampling = (rose_sampling){.temperature = (float)rnd_in(s, 0, 3) * 0.5f,
                                  .top_p = rnd_in(s, 0, 1) ? 1.0f : 0.9f,
                                  .top_k = rnd_in(s, 0, 1) ? 0 : 20,
                                  .seed = x->seed};
}

static rose_status greq_submit(greq *q, rose_engine *e, rose_wakeq *sink, rose_err *err)
{
    rec *x = &q->rec;
    guide *g = q->kind != PLAIN ? guide_make(q->guide_seed, q->vocab) : NULL;
    if (g != NULL) {
        g->fail_advance = q->set.fail_advance;
        g->fail_mask = q->set.fail_mask;
        g->empty_from = q->set.empty_from;
        g->eos_from = q->set.eos_from;
        g->gate = q->set.gate;
        g->gate_from = q->set.gate_from;
        g->slow = q->set.slow;
        g->silent = q->set.silent;
    }
    const rose_request_rules *rules = &g_rules[q->kind];
    const rose_request_opts o = {.prompt = x->prompt,
                                 .n_prompt = x->n_prompt,
                                 .max_tokens = x->max_tokens,
                                 .sampling = q->sampling,
                                 .rules = q->kind >= GUIDED_RULES ? rules : NULL,
                                 .guide = guide_of(g),
                                 .ignore_eos = x->ignore_eos,
                                 .sink = sink,
                                 .user = q,
                                 .priority = x->priority};
    x->n_got = 0;
    x->finish = ROSE_FINISH_NONE;
    x->reports = 1;
    q->has_error = false;
    return rose_engine_submit(e, &o, &x->r, err);
}

static bool greq_poll(greq *q, rose_request *r)
{
    rec *x = &q->rec;
    rose_event ev;
    while (rose_request_poll(r, &ev) == ROSE_OK) {
        if (ev.has_token) {
            if (q->kind == GUIDED_PENALTIES) {
                const rose_logprob *l = rose_request_logprobs(r, x->n_got);
                uint32_t bits;
                assert_int_equal(l->id, ev.id);
                memcpy(&bits, &l->logprob, sizeof bits);
                x->reports = fake_mix(x->reports, l->id, bits);
            }
            x->got[x->n_got++] = ev.id;
            if (x->n_got == x->cancel_after) rose_request_cancel(r);
        }
        if (ev.finish == ROSE_FINISH_NONE) continue;
        x->finish = (rose_finish)ev.finish;
        const char *why = rose_request_guide_error(r);
        q->has_error = why != NULL;
        snprintf(q->error, sizeof q->error, "%s", why != NULL ? why : "");
        rose_request_release(r);
        return true;
    }
    return false;
}

static void greq_consume(rose_wakeq *sink, uint32_t n_live)
{
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (n_live > 0) {
        void *p;
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK)
            n_live -= greq_poll(rose_request_user(p), p) ? 1 : 0;
        if (rose_now_ns() > deadline) fail_msg("%u requests did not finish", n_live);
        if (n_live > 0) rose_wakeq_wait(sink, 1000000000u);
    }
}

/* The pure function on the fake backend, for requests without penalties. */
static void greq_expect(greq *q)
{
    rec *x = &q->rec;
    const bool guided = q->kind != PLAIN, short_rules = q->kind == GUIDED_RULES;
    uint64_t state = 1, h = q->guide_seed | 1;
    uint32_t k;
    if (!guided) {
        rec_expect(x);
        return;
    }
    for (uint32_t i = 0; i < x->n_prompt; i++)
        state = fake_mix(state, x->prompt[i], i);
    x->want_finish = ROSE_FINISH_LENGTH;
    for (k = 0; k < x->max_tokens; k++) {
        uint32_t all[4] = {0}, mask[4] = {0}, any = 0;
        const bool too_short = short_rules && k < 5, no_eos = x->ignore_eos || too_short;
        for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
            if (!guide_allows(h, id, FAKE_VOCAB)) continue;
            all[id / 32] |= 1u << id % 32;
            if (no_eos && (id == FAKE_EOS || id == FAKE_EOS2)) continue;
            if (too_short && (id == g_stop[0] || id == g_stop[1])) continue;
            mask[id / 32] |= 1u << id % 32;
            any = 1;
        }
        uint32_t pos = x->n_prompt + k;
        uint32_t id = fake_masked(any ? mask : all, fake_mix(state, x->seed ^ 1, pos));
        x->want[k] = id;
        bool stop = short_rules && (id == g_stop[0] || id == g_stop[1]);
        if (stop || id == FAKE_EOS || id == FAKE_EOS2) {
            x->want_finish = ROSE_FINISH_STOP;
            k++;
            break;
        }
        state = fake_mix(state, id, pos);
        h = guide_next(h, id, k);
    }
    x->n_want = k;
}

static rose_engine *open_guided(const rose_engine_opts *o, int mode)
{
    static rose_backend_ops ops;
    test_mode = mode;
    ops = *mode_ops();
    ops.caps |= ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES;
    fake_reset();
    return open_ops(o, &ops);
}

/* Returns how many outputs with a mask were in flight when the next step came. */
static uint64_t run_all(greq *q, const rose_engine_opts *o, int mode, bool reference, bool cancels)
{
    uint64_t s = test_seed() + 4;
    rose_engine *e = open_guided(o, mode);
    rose_wakeq *sink = open_sink(N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec *x = &q[i].rec;
        x->cancel_after = cancels && rnd_in(&s, 0, 2) == 0 ? rnd_in(&s, 1, 20) : UINT32_MAX;
        assert_int_equal(greq_submit(&q[i], e, sink, NULL), ROSE_OK);
        if (cancels && rnd_in(&s, 0, 7) == 0) rose_request_cancel(x->r);
    }
    greq_consume(sink, N_REQS);
    for (uint32_t i = 0; i < N_REQS; i++) {
        rec *x = &q[i].rec;
        if (reference && q[i].kind == GUIDED_PENALTIES) {
            memcpy(x->want, x->got, sizeof x->want);
            x->n_want = x->n_got;
            x->want_finish = x->finish;
            q[i].set.h = x->reports;
        }
        rec_verify(x);
        assert_false(q[i].has_error);
        if (q[i].kind == GUIDED_PENALTIES && x->finish != ROSE_FINISH_CANCELLED)
            assert_true(x->reports == q[i].set.h);
    }
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.finished, N_REQS);
    printf("mode %d: %llu steps, %llu of them ahead, %llu preemptions\n", mode,
           (unsigned long long)st.steps, (unsigned long long)atomic_load(&fake.n_ahead),
           (unsigned long long)st.preemptions);
    if (mode != MODE_OVERLAP) assert_int_equal(atomic_load(&fake.n_ahead), 0);
    uint64_t n_masked = atomic_load(&fake.n_masked);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    verify_guides();
    return n_masked;
}

static greq *make_all(uint32_t guided_in)
{
    uint64_t s = test_seed();
    greq *q = calloc(N_REQS, sizeof *q);
    assert_non_null(q);
    for (uint32_t i = 0; i < N_REQS; i++) {
        greq_random(&q[i], &s, FAKE_VOCAB, 4, guided_in);
        q[i].sampling.top_k = q[i].rec.n_prompt;
        if (q[i].kind != GUIDED_PENALTIES) greq_expect(&q[i]);
    }
    return q;
}

static void test_same(void **state)
{
    greq *q = make_all(2);
    (void)state;
    rose_engine_opts o = small_opts();
    o.max_queued = N_REQS;
    o.prefix_cache = false;
    o.backend.kv_pages = 100;
    run_all(q, &o, MODE_SYNC, true, false);
    assert_true(atomic_load(&g_known) > 0);
    o.prefix_cache = true;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_all(q, &o, mode, false, false);
        run_all(q, &o, mode, false, true);
    }
    o.backend.kv_pages = 9;
    o.backend.max_seqs = 16;
    o.prefill_chunk_size = 5;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_all(q, &o, mode, false, false);
        run_all(q, &o, mode, false, true);
    }
    atomic_store(&g_walked, 0);
    for (int kind = 0; kind < N_HOSTILE; kind++) {
        hostile h = hostile_make(q, sizeof *q, N_REQS, kind, FAKE_VOCAB);
        o.spec = hostile_opts(&h);
        o.backend.kv_pages = kind % 2 == 0 ? 100 : 20;
        for (int mode = 0; mode < N_MODES; mode++)
            run_all(q, &o, mode, false, mode == MODE_OVERLAP && kind >= PARTLY);
    }
    assert_true(atomic_load(&g_walked) > 1000);
    free(q);
}

/* Few requests have guides: steps run ahead of those with a mask. Whether they do in one run
 * depends on when the masks are there. */
static void test_few(void **state)
{
    const uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    greq *q = make_all(1);
    (void)state;
    rose_engine_opts o = small_opts();
    o.max_queued = N_REQS;
    o.backend.max_seqs = 40;
    o.backend.max_step_tokens = 64;
    o.backend.kv_pages = 300;
    for (uint32_t i = 0; i < N_REQS; i++) { /* few steps have prompts */
        rec *x = &q[i].rec;
        if (x->n_prompt > 5) x->n_prompt = 5;
        x->max_tokens = 60;
        x->ignore_eos = true;
        x->priority = 0;
        q[i].kind = i % 40 == 0 ? GUIDED + i / 40 % 3 : PLAIN;
        q[i].sampling.top_k = x->n_prompt;
        if (q[i].kind != GUIDED_PENALTIES) greq_expect(&q[i]);
    }
    run_all(q, &o, MODE_SYNC, true, false);
    while (run_all(q, &o, MODE_OVERLAP, false, false) == 0)
        if (rose_now_ns() > deadline) fail_msg("no step runs ahead of one with a mask");
    run_all(q, &o, MODE_OVERLAP, false, true);
    o.backend.kv_pages = 60;
    run_all(q, &o, MODE_OVERLAP, false, false);
    run_all(q, &o, MODE_OVERLAP, false, true);
    free(q);
}

/* ---- threads ---- */

static greq *greq_simple(uint64_t seed, uint32_t kind, uint32_t max_tokens)
{
    uint64_t s = test_seed() + seed * 2;
    greq *q = calloc(1, sizeof *q);
    assert_non_null(q);
    greq_random(q, &s, FAKE_VOCAB, 1, 1);
    q->kind = kind;
    q->rec.max_tokens = max_tokens;
    q->rec.ignore_eos = true;
    q->rec.priority = 0;
    q->sampling.top_k = q->rec.n_prompt;
    greq_expect(q);
    return q;
}

static uint32_t count_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    uint32_t n = 0;
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d)) != NULL;)
        n += x->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A server whose requests have no guides has no threads for them. The first test, so that no thread
 * of an engine before is just going. */
static void test_threads(void **state)
{
    const rose_engine_opts o = small_opts();
    rose_engine *e = open_guided(&o, MODE_SYNC);
    rose_wakeq *sink = open_sink(4);
    greq *q[] = {greq_simple(40, PLAIN, 9), greq_simple(41, GUIDED, 9), greq_simple(42, GUIDED, 9)};
    uint32_t n[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(greq_submit(q[i], e, sink, NULL), ROSE_OK);
        greq_consume(sink, 1);
        rec_verify(&q[i]->rec);
        free(q[i]);
        n[i] = count_threads();
    }
    assert_in_range(n[1] - n[0], 3, 6); /* more than 3 from 16 CPUs on */
    assert_int_equal(n[2], n[1]);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    verify_guides();
}

/* ---- slow guides ---- */

typedef struct bench {
    rose_engine *e;
    rose_wakeq *sink;
    gate gate;
} bench;

static void bench_open(bench *b, int mode)
{
    const rose_engine_opts o = small_opts();
    *b = (bench){.e = open_guided(&o, mode), .sink = open_sink(64)};
    pthread_mutex_init(&b->gate.lock, NULL);
    pthread_cond_init(&b->gate.changed, NULL);
}

static void bench_close(bench *b)
{
    if (b->e != NULL) verify_idle(b->e);
    rose_engine_close(b->e);
    rose_wakeq_destroy(b->sink);
    pthread_mutex_destroy(&b->gate.lock);
    pthread_cond_destroy(&b->gate.changed);
    verify_guides();
}

/* One guide waits, before its first id or later. Others, one of them guided, run to their end
 * meanwhile, and the engine then sleeps: it takes no step. */
static void run_slow(int mode, uint32_t gate_from)
{
    bench b;
    bench_open(&b, mode);
    greq *slow = greq_simple(1, GUIDED, 30);
    greq *others[] = {greq_simple(2, PLAIN, 30), greq_simple(3, PLAIN, 20),
                      greq_simple(4, GUIDED, 30)};
    slow->set.gate = &b.gate;
    slow->set.gate_from = gate_from;
    assert_int_equal(greq_submit(slow, b.e, b.sink, NULL), ROSE_OK);
    gate_await(&b.gate, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(greq_submit(others[i], b.e, b.sink, NULL), ROSE_OK);
    greq_consume(b.sink, 3);
    for (int i = 0; i < 3; i++)
        rec_verify(&others[i]->rec);
    assert_int_equal(slow->rec.finish, ROSE_FINISH_NONE);
    assert_true(slow->rec.n_got <= gate_from);
    const uint64_t n_steps = rose_engine_get_stats(b.e).steps;
    usleep(2000); /* a step in this time would be wrong, however long it lasts */
    assert_int_equal(rose_engine_get_stats(b.e).steps, n_steps);
    gate_open(&b.gate);
    greq_consume(b.sink, 1);
    rec_verify(&slow->rec);
    bench_close(&b);
    free(slow);
    for (int i = 0; i < 3; i++)
        free(others[i]);
}

/* Many slow guides occupy the threads of slow guides, so another guide goes on. */
static void run_many_slow(int mode, uint32_t gate_from)
{
    enum { N = 4 };
    bench b;
    bench_open(&b, mode);
    greq *q[N];
    for (uint32_t i = 0; i < N; i++) {
        q[i] = greq_simple(50 + i, GUIDED, 20);
        q[i]->set.gate = i + 1 < N ? &b.gate : NULL;
        q[i]->set.gate_from = gate_from;
        q[i]->set.slow = i + 1 < N;
    }
    assert_int_equal(greq_submit(q[0], b.e, b.sink, NULL), ROSE_OK);
    gate_await(&b.gate, 1);
    for (uint32_t i = 1; i < N; i++)
        assert_int_equal(greq_submit(q[i], b.e, b.sink, NULL), ROSE_OK);
    greq_consume(b.sink, 1);
    rec_verify(&q[N - 1]->rec);
    assert_in_range(b.gate.n_waiting, 1, N - 1); /* one for eight CPUs */
    gate_open(&b.gate);
    greq_consume(b.sink, N - 1);
    for (uint32_t i = 0; i < N; i++) {
        rec_verify(&q[i]->rec);
        free(q[i]);
    }
    bench_close(&b);
}

/* The waiting job comes first whose request has had the least time; of equal
 * ones the first. */
static void test_least_time(void **state)
{
    enum { N = 5 };
    static const uint64_t spent[N] = {700, 30, 900, 30, 50};
    static const uint32_t order[N] = {1, 3, 4, 0, 2};
    rose_request *r[N], *list = NULL;
    (void)state;
    for (uint32_t i = N; i-- > 0;) {
        r[i] = calloc(1, sizeof *r[i]);
        r[i]->guided = calloc(1, sizeof *r[i]->guided);
        r[i]->guided->spent_ns = spent[i];
        r[i]->guided->next = list;
        list = r[i];
    }
    for (uint32_t i = 0; i < N; i++) {
        rose_request **at = rose_guided_least(&list);
        assert_ptr_equal(*at, r[order[i]]);
        *at = (*at)->guided->next;
    }
    assert_null(list);
    for (uint32_t i = 0; i < N; i++) {
        free(r[i]->guided);
        free(r[i]);
    }
}

static void test_slow(void **state)
{
    (void)state;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_slow(mode, 0);
        run_slow(mode, 4);
        run_many_slow(mode, 0);
        run_many_slow(mode, 3);
    }
}

/* ---- ends ---- */

static void run_failing(int mode, guide set, rose_finish finish, uint32_t n_tokens, const char *why)
{
    bench b;
    bench_open(&b, mode);
    greq *q = greq_simple(5, GUIDED, 30), *other = greq_simple(6, GUIDED, 30);
    q->set = set;
    assert_int_equal(greq_submit(q, b.e, b.sink, NULL), ROSE_OK);
    assert_int_equal(greq_submit(other, b.e, b.sink, NULL), ROSE_OK);
    greq_consume(b.sink, 2);
    rec_verify(&other->rec);
    assert_int_equal(q->rec.finish, finish);
    assert_int_equal(q->rec.n_got, n_tokens);
    const bool forced = finish == ROSE_FINISH_STOP;
    assert_memory_equal(q->rec.got, q->rec.want, (n_tokens - forced) * sizeof q->rec.got[0]);
    if (forced) assert_int_equal(q->rec.got[n_tokens - 1], FAKE_EOS);
    assert_int_equal(q->has_error, finish == ROSE_FINISH_GUIDE);
    if (why != NULL) assert_string_equal(q->error, why);
    bench_close(&b);
    free(q);
    free(other);
}

static void test_failing(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    for (int mode = 0; mode < N_MODES; mode++) {
        run_failing(mode, (guide){.fail_mask = 1}, ROSE_FINISH_GUIDE, 0, "mask 0");
        run_failing(mode, (guide){.fail_mask = 4}, ROSE_FINISH_GUIDE, 3, "mask 3");
        run_failing(mode, (guide){.fail_advance = 1}, ROSE_FINISH_GUIDE, 1, "advance 1");
        run_failing(mode, (guide){.fail_advance = 7}, ROSE_FINISH_GUIDE, 7, "advance 7");
        run_failing(mode, (guide){.fail_advance = 2, .silent = true}, ROSE_FINISH_GUIDE, 2,
                    "the guide of the request gave no reason");
        run_failing(mode, (guide){.empty_from = 3}, ROSE_FINISH_NO_TOKEN, 3, NULL);
        /* the text cannot go on, so the request ends, although it ignores EOS */
        run_failing(mode, (guide){.eos_from = 4}, ROSE_FINISH_STOP, 5, NULL);
    }
    rose_log_set_level(ROSE_LOG_WARN);
}

/* A guide and rules that together leave nothing; the sampler is the CPU backend's. */
static rose_engine *open_cpu(const rose_model *m, const rose_engine_opts *o,
                             const rose_backend_ops *ops)
{
    rose_engine *e = NULL;
    rose_err err = {{0}};
    if (rose_engine_open(&e, ops, m, o, &err) != ROSE_OK) fail_msg("open: %s", err.msg);
    return e;
}

/* The guide is destroyed when submit fails, whatever the reason. */
static void test_refusals(void **state)
{
    static const uint32_t all_bad[] = {1}, bad_len[] = {1};
    (void)state;
    bench b;
    bench_open(&b, MODE_SYNC);
    greq *q = greq_simple(7, GUIDED, 5);
    rose_err err = {{0}};
    q->rec.n_prompt = 0;
    assert_int_equal(greq_submit(q, b.e, b.sink, &err), ROSE_E_INVAL);
    verify_guides();
    q->rec.n_prompt = 4;
    q->sampling.temperature = -1;
    assert_int_equal(greq_submit(q, b.e, b.sink, &err), ROSE_E_INVAL);
    verify_guides();
    q->sampling.temperature = 1;
    /* after the request was made: the rules leave no id */
    const rose_request_rules rules = {.repetition = 1,
                                      .allowed = all_bad,
                                      .n_allowed = 1,
                                      .bad_ids = all_bad,
                                      .bad_len = bad_len,
                                      .n_bad = 1};
    rose_request *r;
    rose_request_opts o = {.prompt = q->rec.prompt,
                           .n_prompt = 4,
                           .max_tokens = 4,
                           .sampling = {.top_p = 1},
                           .rules = &rules,
                           .guide = guide_of(guide_make(1, FAKE_VOCAB)),
                           .sink = b.sink};
    assert_int_equal(rose_engine_submit(b.e, &o, &r, &err), ROSE_E_INVAL);
    assert_null(r);
    verify_guides();
    /* a prompt that is only scored needs none */
    o.rules = NULL;
    o.score_only = true;
    o.user = q;
    o.guide = guide_of(guide_make(1, FAKE_VOCAB));
    assert_int_equal(rose_engine_submit(b.e, &o, &q->rec.r, &err), ROSE_OK);
    verify_guides();
    greq_consume(b.sink, 1);
    assert_int_equal(q->rec.finish, ROSE_FINISH_LENGTH);
    rose_engine_drain(b.e);
    assert_int_equal(greq_submit(q, b.e, b.sink, &err), ROSE_E_CLOSED);
    bench_close(&b);
    /* a backend that cannot */
    fake_reset();
    test_mode = MODE_SYNC;
    const rose_engine_opts eo = small_opts();
    rose_engine *e = open_engine(&eo);
    rose_wakeq *sink = open_sink(4);
    assert_int_equal(greq_submit(q, e, sink, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "structured output"));
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    verify_guides();
    free(q);
}

/* The queue is full: submit refuses, and a guide that is not used is destroyed. */
static void test_full(void **state)
{
    rose_engine_opts o = small_opts();
    bench b = {.gate = {.open = false}};
    greq *q[12];
    uint32_t n = 0;
    (void)state;
    o.backend.max_seqs = 2;
    o.max_queued = 3;
    b.e = open_guided(&o, MODE_SYNC);
    b.sink = open_sink(64);
    pthread_mutex_init(&b.gate.lock, NULL);
    pthread_cond_init(&b.gate.changed, NULL);
    for (uint32_t i = 0; i < 12; i++) {
        q[i] = greq_simple(20 + i, GUIDED, 6);
        q[i]->set.gate = &b.gate;
        rose_status st = greq_submit(q[i], b.e, b.sink, NULL);
        assert_true(st == ROSE_OK || st == ROSE_E_FULL);
        n += st == ROSE_OK;
    }
    assert_true(n >= 3 && n <= 5);
    assert_int_equal(atomic_load(&g_made) - atomic_load(&g_destroyed), n);
    gate_open(&b.gate);
    greq_consume(b.sink, n);
    bench_close(&b);
    for (uint32_t i = 0; i < 12; i++)
        free(q[i]);
}

/* Cancelled while the guide works: the end comes at once, the guide goes when it is done. */
static void run_cancel(int mode, uint32_t gate_from)
{
    bench b;
    bench_open(&b, mode);
    greq *q = greq_simple(8, GUIDED, 30), *other = greq_simple(9, GUIDED, 30);
    q->set.gate = &b.gate;
    q->set.gate_from = gate_from;
    assert_int_equal(greq_submit(q, b.e, b.sink, NULL), ROSE_OK);
    gate_await(&b.gate, 1);
    rose_request_cancel(q->rec.r);
    greq_consume(b.sink, 1); /* it also releases q */
    assert_int_equal(q->rec.finish, ROSE_FINISH_CANCELLED);
    assert_int_equal(atomic_load(&g_destroyed) + 1, atomic_load(&g_made));
    assert_int_equal(greq_submit(other, b.e, b.sink, NULL), ROSE_OK);
    greq_consume(b.sink, 1);
    rec_verify(&other->rec);
    gate_open(&b.gate);
    bench_close(&b);
    free(q);
    free(other);
}

static void test_cancel(void **state)
{
    (void)state;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_cancel(mode, 0);
        run_cancel(mode, 3);
    }
}

/* Many requests that are cancelled while two guides hold both workers up: there is a bound. */
static void test_bound(void **state)
{
    rose_engine_opts o = small_opts();
    bench b = {.gate = {.open = false}};
    uint32_t n = 0;
    rose_status st = ROSE_OK;
    (void)state;
    o.backend.max_seqs = 2;
    o.max_queued = 3;
    b.e = open_guided(&o, MODE_SYNC);
    b.sink = open_sink(64);
    pthread_mutex_init(&b.gate.lock, NULL);
    pthread_cond_init(&b.gate.changed, NULL);
    greq *q = greq_simple(10, GUIDED, 30);
    q->set.gate = &b.gate;
    for (; n < 1000; n++) {
        if ((st = greq_submit(q, b.e, b.sink, NULL)) != ROSE_OK) break;
        rose_request_cancel(q->rec.r);
        greq_consume(b.sink, 1);
    }
    assert_int_equal(st, ROSE_E_FULL);
    assert_in_range(n, 5, 64);
    assert_int_equal(rose_engine_get_stats(b.e).waiting, 0);
    gate_open(&b.gate);
    /* the places come back: as soon as the engine thread has taken the jobs back */
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (greq_submit(q, b.e, b.sink, NULL) != ROSE_OK) {
        if (rose_now_ns() > deadline) fail_msg("the places are lost");
        usleep(100);
    }
    greq_consume(b.sink, 1);
    rec_verify(&q->rec);
    bench_close(&b);
    free(q);
}

/* The engine is closed while guides work: the ends come first, then the guides are waited for. */
static void *closer(void *arg)
{
    rose_engine_close(arg);
    return NULL;
}

static void run_close(int mode, uint32_t gate_from)
{
    bench b;
    pthread_t t;
    greq *q[4];
    bench_open(&b, mode);
    for (uint32_t i = 0; i < 4; i++) { /* two work, two wait for a worker */
        q[i] = greq_simple(11 + i, GUIDED, 30);
        q[i]->set.gate = &b.gate;
        q[i]->set.gate_from = gate_from;
        assert_int_equal(greq_submit(q[i], b.e, b.sink, NULL), ROSE_OK);
    }
    gate_await(&b.gate, 2);
    assert_int_equal(pthread_create(&t, NULL, closer, b.e), 0);
    greq_consume(b.sink, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(q[i]->rec.finish, ROSE_FINISH_CANCELLED);
        free(q[i]);
    }
    gate_open(&b.gate);
    pthread_join(t, NULL);
    b.e = NULL;
    bench_close(&b);
}

static void test_close(void **state)
{
    (void)state;
    for (int mode = 0; mode < N_MODES; mode++) {
        run_close(mode, 0);
        run_close(mode, 2);
    }
}

/* The backend fails: every request ends, and every guide. */
static void test_broken(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    for (int mode = 0; mode < N_MODES; mode++) {
        bench b;
        greq *q[8];
        bench_open(&b, mode);
        fake.fail_step = mode == MODE_SYNC ? 9 : 0;
        fake.fail_collect = mode == MODE_SYNC ? 0 : 9;
        uint32_t n = 0;
        for (uint32_t i = 0; i < 8; i++) {
            q[i] = greq_simple(30 + i, i % 3 == 0 ? PLAIN : GUIDED, 30);
            rose_status st = greq_submit(q[i], b.e, b.sink, NULL);
            assert_true(st == ROSE_OK || st == ROSE_E_BACKEND);
            n += st == ROSE_OK;
        }
        greq_consume(b.sink, n);
        for (uint32_t i = 0; i < 8; i++) {
            assert_true(q[i]->rec.finish == ROSE_FINISH_ERROR ||
                        q[i]->rec.finish == ROSE_FINISH_NONE || q[i]->rec.n_got > 0);
            free(q[i]);
        }
        assert_non_null(rose_engine_failure(b.e));
        bench_close(&b);
    }
    rose_log_set_level(ROSE_LOG_WARN);
}

/* ---- the CPU backend ---- */

static const fx_shape g_shapes[] = {
    {"f32", 2, 48, 3, 104, 77, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false},
    {"bf16", 1, 64, 2, 128, 130, MAX_LEN, ROSE_ACT_GELU_TANH, ROSE_BF16, false, false, false,
     false},
};

static rose_engine_opts cpu_opts(void)
{
    rose_engine_opts o = small_opts();
    o.backend.cpu.n_threads = 1;
    o.backend.cpu.isa = "auto";
    o.backend.cuda.graph = o.backend.cuda.pdl = true;
    o.backend.max_seqs = 16;
    o.backend.max_step_tokens = 128;
    o.backend.kv_pages = 200;
    o.max_queued = N_CPU;
    return o;
}

static uint64_t compare(greq *q, const rose_model *m, const rose_backend_ops *ops, const char *name,
                        const rose_engine_opts *o, bool cancels)
{
    uint64_t s = test_seed() ^ 0x55;
    rose_engine *e = open_cpu(m, o, ops);
    rose_wakeq *sink = open_sink(N_CPU);
    for (uint32_t i = 0; i < N_CPU; i++) {
        q[i].rec.cancel_after = cancels && rnd_in(&s, 0, 2) == 0 ? rnd_in(&s, 1, 20) : UINT32_MAX;
        assert_int_equal(greq_submit(&q[i], e, sink, NULL), ROSE_OK);
        if (cancels && rnd_in(&s, 0, 7) == 0) rose_request_cancel(q[i].rec.r);
    }
    greq_consume(sink, N_CPU);
    for (uint32_t i = 0; i < N_CPU; i++) {
        rec_verify(&q[i].rec);
        if (q[i].rec.finish != ROSE_FINISH_CANCELLED) assert_true(q[i].rec.reports == q[i].set.h);
    }
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.kv_pages_free, st.kv_pages);
    printf("  %s: %llu steps, %llu preemptions\n", name, (unsigned long long)st.steps,
           (unsigned long long)st.preemptions);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    verify_guides();
    return st.preemptions;
}

/* One at a time, then in crowds. The guides check that each id was allowed. */
static void same_on(const fx_shape *shape, const rose_backend_ops *ops)
{
    rose_model *m = fx_model(shape, test_seed());
    greq *q = calloc(N_CPU, sizeof *q);
    uint64_t s = test_seed(), n_stop = 0;
    m->arch.n_eos = 1;
    m->arch.eos_ids[0] = 7;
    rose_engine_opts o = cpu_opts();
    o.prefix_cache = false;
    rose_engine *e = open_cpu(m, &o, ops);
    rose_wakeq *sink = open_sink(1);
    for (uint32_t i = 0; i < N_CPU; i++) {
        rec *x = &q[i].rec;
        greq_random(&q[i], &s, shape->vocab, 3, i % 3 == 0 ? 1 : 3);
        assert_int_equal(greq_submit(&q[i], e, sink, NULL), ROSE_OK);
        greq_consume(sink, 1);
        assert_true(x->finish == ROSE_FINISH_STOP || x->finish == ROSE_FINISH_LENGTH);
        memcpy(x->want, x->got, sizeof x->want);
        x->n_want = x->n_got;
        x->want_finish = x->finish;
        q[i].set.h = x->reports;
        n_stop += x->finish == ROSE_FINISH_STOP;
    }
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    printf("%s: %llu of %d ended by EOS or a stop id\n", shape->name, (unsigned long long)n_stop,
           N_CPU);
    compare(q, m, ops, "together", &o, false);
    o.prefill_chunk_size = 5;
    o.prefix_cache = true;
    compare(q, m, ops, "pieces of 5, prefix cache, cancels", &o, true);
    o.backend.kv_pages = 10;
    assert_true(compare(q, m, ops, "ten pages", &o, false) > 10);
    const bool ahead = (ops->caps & ROSE_CAP_AHEAD) != 0;
    const rose_backend_ops *runs_ahead = ahead ? ops : ahead_cpu_ops();
    o.overlap = true;
    compare(q, m, runs_ahead, "ten pages, overlap", &o, false);
    compare(q, m, runs_ahead, "ten pages, overlap, cancels", &o, true);
    o = cpu_opts();
    o.overlap = true;
    compare(q, m, runs_ahead, "overlap", &o, false);
    compare(q, m, runs_ahead, "overlap, cancels", &o, true);
    for (int kind = 0; kind < N_HOSTILE; kind++) {
        hostile h = hostile_make(q, sizeof *q, N_CPU, kind, m->arch.vocab_size);
        o.spec = hostile_opts(&h);
        compare(q, m, ops, "guesses", &o, false);
        compare(q, m, runs_ahead, "guesses, overlap, cancels", &o, kind >= PARTLY);
    }
    fx_model_free(m);
    free(q);
}

static void test_backend(void **state)
{
    const char *device = getenv("ROSE_TEST_DEVICE");
    const rose_backend_ops *ops;
    rose_err err = {{0}};
    (void)state;
    if (rose_backend_pick(&ops, device != NULL ? device : "cpu", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof g_shapes / sizeof *g_shapes; i++)
        same_on(&g_shapes[i], ops);
}

/* Guide and rules leave no id together: NO_TOKEN, not ERROR. A bias lifts no mask, and a forced id
 * has the log-probability of the raw logits. */
static void test_with_rules(void **state)
{
    rose_model *m = fx_model(&g_shapes[0], test_seed());
    const uint32_t vocab = m->arch.vocab_size, prompt[] = {3, 4, 5};
    const rose_engine_opts o = cpu_opts();
    rose_engine *e = open_cpu(m, &o, rose_backend_cpu());
    rose_wakeq *sink = open_sink(4);
    (void)state;
    m->arch.n_eos = 0;
    guide *g = guide_make(77, vocab);
    uint32_t bad[128], lens[128], n_bad = 0, first = UINT32_MAX, banned_bias = 0;
    float bias[1] = {1000};
    for (uint32_t id = 0; id < vocab; id++) {
        if (!guide_allows(g->h, id, vocab)) {
            banned_bias = id;
            continue;
        }
        if (first == UINT32_MAX) first = id;
        lens[n_bad] = 1;
        bad[n_bad++] = id;
    }
    assert_true(n_bad > 1 && n_bad < vocab);
    rose_request_rules rules = {
        .repetition = 1, .bad_ids = bad, .bad_len = lens, .n_bad = n_bad, .logprobs = true};
    rose_request_opts ro = {.prompt = prompt,
                            .n_prompt = 3,
                            .max_tokens = 1,
                            .sampling = {.temperature = 1, .top_p = 1, .seed = 5},
                            .rules = &rules,
                            .guide = guide_of(g),
                            .sink = sink};
    greq q = {.rec = {.cancel_after = UINT32_MAX}};
    ro.user = &q;
    assert_int_equal(rose_engine_submit(e, &ro, &q.rec.r, NULL), ROSE_OK);
    greq_consume(sink, 1);
    assert_int_equal(q.rec.finish, ROSE_FINISH_NO_TOKEN);
    assert_int_equal(q.rec.n_got, 0);
    /* all but one banned, and a bias for a forbidden id: the one is forced */
    float forced = 0;
    for (int guided = 1; guided >= 0; guided--) {
        rules.n_bad = guided ? n_bad - 1 : 0;
        bad[0] = bad[n_bad - 1]; /* `first` is free */
        rules.bias_ids = &banned_bias;
        rules.bias = bias;
        rules.n_bias = guided ? 1 : 0;
        rules.allowed = &first;
        rules.n_allowed = guided ? 0 : 1;
        ro.guide = guided ? guide_of(guide_make(77, vocab)) : (rose_guide){0};
        rose_request *r;
        rose_event ev;
        void *p;
        assert_int_equal(rose_engine_submit(e, &ro, &r, NULL), ROSE_OK);
        while (rose_wakeq_pop(sink, &p) != ROSE_OK)
            rose_wakeq_wait(sink, 1000000000u), rose_wakeq_clear(sink);
        while (rose_request_poll(r, &ev) != ROSE_OK)
            ;
        assert_int_equal(ev.finish, ROSE_FINISH_LENGTH);
        assert_int_equal(ev.id, first);
        const float l = rose_request_logprobs(r, 0)->logprob;
        if (guided)
            forced = l;
        else
            assert_memory_equal(&l, &forced, sizeof l);
        rose_request_release(r);
    }
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    fx_model_free(m);
    verify_guides();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_ends),
        cmocka_unit_test(test_same),       cmocka_unit_test(test_few),
        cmocka_unit_test(test_least_time), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_failing),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_full),       cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_bound),      cmocka_unit_test(test_close),
        cmocka_unit_test(test_broken),     cmocka_unit_test(test_backend),
        cmocka_unit_test(test_with_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
