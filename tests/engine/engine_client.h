/* What the engine tests share: an engine on the fake backend, and a consumer that keeps count of
 * every event and compares it with the pure function. */
#ifndef TESTS_ENGINE_ENGINE_CLIENT_H
#define TESTS_ENGINE_ENGINE_CLIENT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/fake_backend.h"

enum { MAX_LEN = 128, DEADLINE_S = 60 };

typedef struct rec {
    uint32_t prompt[MAX_LEN], n_prompt, max_tokens;
    uint32_t want[MAX_LEN], n_want;
    rose_finish want_finish;
    uint32_t got[MAX_LEN], n_got;
    rose_finish finish;
    uint64_t seed;
    bool ignore_eos;
    uint32_t cancel_after; /* tokens; UINT32_MAX = never */
    int32_t priority;
    uint64_t t_ns;
    char salt[8];
    bool skip_cache;
    uint32_t n_reserved;
    uint32_t n_cached;
    rose_request_times times;
    bool has_reports; /* logprobs with two alternatives */
    uint64_t reports; /* hash of those polled */
    rose_request *r;
} rec;

static inline uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static inline uint32_t rnd_in(uint64_t *s, uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)(rnd(s) >> 16) % (hi - lo + 1);
}

static inline uint64_t test_seed(void)
{
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t s = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    static bool told;
    if (!told) printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)s);
    told = true;
    return s * 2 + 1;
}

static inline rose_engine_opts small_opts(void)
{
    rose_engine_opts o;
    memset(&o, 0, sizeof o);
    o.backend.max_seqs = 8;
    o.backend.max_step_tokens = 32;
    o.backend.max_model_len = MAX_LEN;
    o.backend.kv_pages = 40;
    o.max_queued = 256;
    o.chunked_prefill = true;
    o.decode_first = true;
    o.prefix_cache = true;
    o.priority_age_ms = 1000;
    o.engine_cpu = -1;
    return o;
}

/* Each test of the engine runs in each mode: a backend that computes within step(); one that takes
 * a step before the last one is collected; and that one, not made use of. */
enum { MODE_SYNC, MODE_OVERLAP, MODE_NO_OVERLAP, N_MODES };
static int test_mode;

static inline const rose_backend_ops *mode_ops(void)
{
    return test_mode == MODE_SYNC ? &fake_ops : &fake_ahead_ops;
}

static inline rose_engine *open_ops(const rose_engine_opts *opts, const rose_backend_ops *ops)
{
    rose_engine_opts with_mode = *opts, *o = &with_mode;
    with_mode.overlap = test_mode != MODE_NO_OVERLAP;
    rose_model m;
    rose_engine *e = NULL;
    rose_err err = {0};
    memset(&m, 0, sizeof m);
    m.arch.vocab_size = FAKE_VOCAB;
    m.arch.max_positions = MAX_LEN;
    m.arch.n_eos = 2;
    m.arch.eos_ids[0] = FAKE_EOS;
    m.arch.eos_ids[1] = FAKE_EOS2;
    rose_status st = rose_engine_open(&e, ops, &m, o, &err);
    if (st != ROSE_OK) fail_msg("open: %s", err.msg);
    return e;
}

static inline rose_engine *open_engine(const rose_engine_opts *o)
{
    return open_ops(o, mode_ops());
}

static inline rose_wakeq *open_sink(uint32_t cap)
{
    rose_wakeq *q = NULL;
    assert_int_equal(rose_wakeq_create(&q, cap, NULL), ROSE_OK);
    return q;
}

static inline void close_all(rose_engine *e, rose_wakeq *sink, rec *x)
{
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
    free(x);
}

static inline void rec_expect(rec *x)
{
    uint32_t max = x->max_tokens < MAX_LEN - x->n_prompt ? x->max_tokens : MAX_LEN - x->n_prompt;
    x->n_want =
        fake_expect(x->prompt, x->n_prompt, max, x->seed, x->ignore_eos, x->want, &x->want_finish);
}

static inline void rec_random(rec *x, uint64_t *s, uint32_t max_prompt, uint32_t max_tokens)
{
    memset(x, 0, sizeof *x);
    x->n_prompt = rnd_in(s, 1, max_prompt);
    for (uint32_t i = 0; i < x->n_prompt; i++)
        x->prompt[i] = rnd_in(s, 0, FAKE_VOCAB - 1);
    x->max_tokens = rnd_in(s, 1, max_tokens);
    x->seed = rnd(s);
    x->ignore_eos = (rnd(s) & 4) != 0;
    x->cancel_after = UINT32_MAX;
    rec_expect(x);
}

static inline rose_status rec_submit(rec *x, rose_engine *e, rose_wakeq *sink, rose_err *err)
{
    rose_request_opts o = {.prompt = x->prompt,
                           .n_prompt = x->n_prompt,
                           .max_tokens = x->max_tokens,
                           .sampling = {.temperature = 1, .top_p = 1},
                           .ignore_eos = x->ignore_eos,
                           .sink = sink,
                           .user = x,
                           .priority = x->priority,
                           .t_ns = x->t_ns,
                           .cache_salt = x->salt,
                           .cache_salt_len = strlen(x->salt),
                           .n_reserved = x->n_reserved,
                           .skip_prefix_cache = x->skip_cache};
    o.sampling.seed = x->seed;
    o.sampling.top_k = x->n_prompt; /* the fake backend's NaN needs it */
    return rose_engine_submit(e, &o, &x->r, err);
}

static inline void rec_report(rec *x, const rose_logprob *l, uint32_t id)
{
    assert_int_equal(l[0].id, id);
    for (int i = 0; i < 3; i++) {
        uint32_t bits;
        memcpy(&bits, &l[i].logprob, sizeof bits);
        x->reports = fake_mix(x->reports, l[i].id, bits);
    }
}

/* Poll until EMPTY or finished; true = finished and released. */
static inline bool rec_poll(rec *x, rose_request *r)
{
    rose_event ev;
    while (rose_request_poll(r, &ev) == ROSE_OK) {
        assert_true(x->finish == ROSE_FINISH_NONE);
        if (ev.has_token) {
            assert_true(rose_request_has_begun(r));
            assert_true(x->n_got < MAX_LEN);
            if (x->has_reports) rec_report(x, rose_request_logprobs(r, x->n_got), ev.id);
            x->got[x->n_got++] = ev.id;
            if (x->n_got == x->cancel_after) rose_request_cancel(r);
        }
        if (ev.finish == ROSE_FINISH_NONE) continue;
        x->finish = (rose_finish)ev.finish;
        x->times = rose_request_get_times(r);
        x->n_cached = rose_request_cached_tokens(r);
        rose_request_release(r);
        x->r = NULL;
        return true;
    }
    return false;
}

/* Consume until n_live requests have finished. */
static inline void consume(rose_wakeq *sink, uint32_t n_live)
{
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (n_live > 0) {
        void *p;
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK)
            n_live -= rec_poll(rose_request_user(p), p) ? 1 : 0;
        if (n_live == 0) break;
        if (rose_now_ns() > deadline) fail_msg("%u requests did not finish", n_live);
        rose_wakeq_wait(sink, 1000000000u);
    }
}

/* Everything that arrived is right, and complete unless the request was cut short. */
static inline void rec_verify(const rec *x)
{
    assert_true(x->n_got <= x->n_want);
    assert_memory_equal(x->got, x->want, x->n_got * sizeof x->got[0]);
    if (x->finish == ROSE_FINISH_CANCELLED) return;
    assert_int_equal(x->finish, x->want_finish);
    assert_int_equal(x->n_got, x->n_want);
}

static inline void verify_idle(const rose_engine *e)
{
    rose_engine_stats s = rose_engine_get_stats(e);
    assert_int_equal(s.kv_pages_free, s.kv_pages);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(atomic_load(&fake.n_bad), 0);
}

/* ---- guesses, which change no id ---- */

/* What a hostile source does. RIGHT knows the reference; MIXED does any of the others, or nothing,
 * from call to call. */
enum { RIGHT, WRONG, RANDOM, PARTLY, OUTSIDE, MIXED, N_HOSTILE };

typedef struct hostile {
    const void *reqs; /* [n] of `size` bytes; each begins with a rec whose `want` is known */
    size_t size;
    uint32_t n;
    int kind;
    uint64_t s;
    uint32_t vocab;
} hostile;

static inline const rec *find_rec(const hostile *h, const uint32_t *text, uint32_t n,
                                  uint32_t n_prompt)
{
    for (uint32_t i = 0; i < h->n; i++) {
        const rec *x = (const void *)((const char *)h->reqs + i * h->size);
        if (x->n_prompt == n_prompt && n - n_prompt <= x->n_want &&
            memcmp(x->prompt, text, n_prompt * sizeof *text) == 0 &&
            memcmp(x->want, text + n_prompt, (n - n_prompt) * sizeof *text) == 0)
            return x;
    }
    return NULL;
}

static inline uint32_t hostile_guess(void *user, const uint32_t *text, uint32_t n,
                                     uint32_t n_prompt, uint32_t cap, uint32_t *ids)
{
    hostile *h = user;
    const rec *x = find_rec(h, text, n, n_prompt);
    const int kind = h->kind == MIXED ? (int)rnd_in(&h->s, 0, MIXED) : h->kind;
    uint32_t k = 0;
    if (kind == MIXED) return 0;
    for (; k < cap; k++) {
        const uint32_t at = n - n_prompt + k;
        const uint32_t right = x != NULL && at < x->n_want ? x->want[at] : 0;
        ids[k] = right; /* past the end too */
        if (kind == WRONG) ids[k] = (right + 1) % h->vocab;
        if (kind == RANDOM || (kind == PARTLY && rnd_in(&h->s, 0, 3) == 0))
            ids[k] = rnd_in(&h->s, 0, h->vocab - 1);
        if (kind == OUTSIDE && rnd_in(&h->s, 0, 3) == 0) ids[k] = UINT32_MAX - rnd_in(&h->s, 0, 9);
    }
    return kind == PARTLY ? rnd_in(&h->s, 0, k) : k;
}

static inline hostile hostile_make(const void *reqs, size_t size, uint32_t n, int kind,
                                   uint32_t vocab)
{
    return (hostile){.reqs = reqs,
                     .size = size,
                     .n = n,
                     .kind = kind,
                     .s = test_seed() + 2 * (uint64_t)kind,
                     .vocab = vocab};
}

static inline rose_spec_opts hostile_opts(hostile *h)
{
    rose_spec_opts o;
    rose_spec_opts_default(&o);
    o.method = ROSE_SPEC_NONE;
    o.always = true;
    o.n_tokens = rnd_in(&h->s, 1, ROSE_SPEC_MAX);
    o.other = hostile_guess;
    o.user = h;
    return o;
}

#endif
