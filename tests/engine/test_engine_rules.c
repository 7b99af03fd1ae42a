/* Rules of a request in the engine: what is banned when, what counts as seen, what is refused, and
 * prompts that are only scored. The rules alone first, then through the engine and its fake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "engine/rules_internal.h"
#include "engine_client.h"

static const uint32_t g_eos[] = {FAKE_EOS, FAKE_EOS2};
static const uint32_t g_prompt[] = {3, 4, 3, 9};

static rose_rules_ctx ctx(uint32_t max_tokens)
{
    return (rose_rules_ctx){.prompt = g_prompt,
                            .n_prompt = 4,
                            .max_tokens = max_tokens,
                            .vocab = FAKE_VOCAB,
                            .eos = g_eos,
                            .n_eos = 2,
                            .n_guess = ROSE_SPEC_MAX,
                            .caps = ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES};
}

static bool banned(const rose_output_rules *o, uint32_t id)
{
    for (uint32_t i = 0; i < o->n_banned; i++)
        if (o->banned[i] == id) return true;
    return false;
}

static void test_bans(void **state)
{
    const uint32_t stop[] = {40}, bad[] = {7, 10, 11, 12, 10, 13}, lens[] = {1, 3, 2};
    const rose_request_rules q = {.repetition = 1,
                                  .min_tokens = 2,
                                  .stop_ids = stop,
                                  .n_stop = 1,
                                  .bad_ids = bad,
                                  .bad_len = lens,
                                  .n_bad = 3};
    const uint32_t text[] = {10, 11, 12, 10, 10};
    const rose_rules_ctx c = ctx(8);
    rose_event events[8] = {0};
    rose_output_rules o;
    (void)state;
    assert_int_equal(rose_rules_check(&q, &c, NULL), ROSE_OK);
    rose_rules *u = rose_rules_create(&q, &c);
    assert_non_null(u);
    for (uint32_t n = 0; n <= 5; n++) {
        if (n > 0) events[n - 1].id = text[n - 1];
        rose_rules_next(u, events, n, 0, &o);
        assert_int_equal(banned(&o, FAKE_EOS), n < 2);
        assert_int_equal(banned(&o, FAKE_EOS2), n < 2);
        assert_int_equal(banned(&o, 40), n < 2);
        assert_true(banned(&o, 7));
        assert_int_equal(banned(&o, 12), n == 2);                     /* banned after 10 11 */
        assert_int_equal(banned(&o, 13), n == 1 || n == 4 || n == 5); /* banned after 10 */
        assert_null(o.report);
        assert_int_equal(o.n_seen, 0);
    }
    rose_output_rules deep[6]; /* the same text as a guess: all bans stand at once */
    for (uint32_t d = 0; d <= 5; d++)
        rose_rules_next(u, events, 0, d, &deep[d]);
    for (uint32_t d = 0; d <= 5; d++) {
        assert_int_equal(banned(&deep[d], FAKE_EOS) && banned(&deep[d], 40), d < 2);
        assert_int_equal(banned(&deep[d], 12), d == 2);
        assert_int_equal(banned(&deep[d], 13), d == 1 || d == 4 || d == 5);
    }
    assert_true(rose_rules_stops(u, 40) && !rose_rules_stops(u, 41));
    free(u);
}

static void check_counts(const rose_output_rules *o, const bool *seen, const uint32_t *counts)
{
    bool there[FAKE_VOCAB] = {false};
    uint32_t n_seen = 0;
    for (uint32_t id = 0; id < FAKE_VOCAB; id++)
        n_seen += seen[id];
    assert_int_equal(o->n_seen, n_seen);
    for (uint32_t i = 0; i < o->n_seen; i++) {
        assert_true(seen[o->seen_ids[i]] && !there[o->seen_ids[i]]);
        there[o->seen_ids[i]] = true;
        assert_int_equal(o->seen_counts[i], counts[o->seen_ids[i]]);
    }
}

/* Against a plain array of counts; the last ids are a guess, whose outputs stand at once, and which
 * leaves no trace. */
static void test_counts(void **state)
{
    uint64_t s = test_seed();
    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t counts[FAKE_VOCAB] = {0};
        bool seen[FAKE_VOCAB] = {false}, repetition = (rnd(&s) & 4) != 0;
        const rose_request_rules q = {.repetition = repetition ? 1.5f : 1,
                                      .presence = repetition ? 0 : 0.5f};
        const rose_rules_ctx c = ctx(300); /* more than the vocabulary */
        rose_rules *u = rose_rules_create(&q, &c);
        rose_output_rules o[ROSE_SPEC_MAX + 1];
        rose_event events[300] = {{0}};
        uint32_t n = rnd_in(&s, 0, 300), n_guess = rnd_in(&s, 0, ROSE_SPEC_MAX);
        if (n_guess > 299 - n % 300) n_guess = 0;
        for (uint32_t i = 0; repetition && i < 4; i++)
            seen[g_prompt[i]] = true;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t id = rnd_in(&s, 0, FAKE_VOCAB - 1);
            rose_rules_note(u, id);
            counts[id]++;
            seen[id] = true;
        }
        for (uint32_t d = 0; d <= n_guess; d++) {
            events[d].id = rnd_in(&s, 0, FAKE_VOCAB - 1);
            rose_rules_next(u, events, 0, d, &o[d]);
        }
        for (uint32_t d = 0; d <= n_guess; d++) {
            check_counts(&o[d], seen, counts);
            counts[events[d].id]++;
            seen[events[d].id] = true;
            if (d == 0) { /* it was right, and no more */
                rose_rules_note(u, events[0].id);
                rose_rules_next(u, NULL, 0, 0, &o[0]);
                check_counts(&o[0], seen, counts);
            }
        }
        free(u);
    }
}

/* Is an id left? Against a plain table, with a vocabulary small enough to run out of it. */
static void test_leave_one(void **state)
{
    uint64_t s = test_seed();
    uint32_t n_left = 0, n_rounds = 20000;
    (void)state;
    for (uint32_t round = 0; round < n_rounds; round++) {
        enum { SMALL = 6 };
        uint32_t allowed[8], stop[3], bad[8], lens[4] = {1, 1, 2, 1};
        bool out[SMALL] = {false};
        rose_event events[4] = {{0}};
        uint32_t n = rnd_in(&s, 0, 3), n_bad_ids = 0;
        for (uint32_t i = 0; i < 8; i++) {
            allowed[i] = rnd_in(&s, 0, SMALL - 1);
            bad[i] = rnd_in(&s, 0, SMALL - 1);
        }
        for (uint32_t i = 0; i < 3; i++) {
            stop[i] = rnd_in(&s, 0, SMALL - 1);
            events[i].id = rnd_in(&s, 0, SMALL - 1);
        }
        const rose_request_rules q = {.repetition = 1,
                                      .allowed = allowed,
                                      .n_allowed = rnd_in(&s, 0, 3) ? rnd_in(&s, 0, 8) : 0,
                                      .bad_ids = bad,
                                      .bad_len = lens,
                                      .n_bad = rnd_in(&s, 0, 4),
                                      .stop_ids = stop,
                                      .n_stop = rnd_in(&s, 0, 3),
                                      .min_tokens = rnd_in(&s, 0, 3)};
        rose_rules_ctx c = ctx(8);
        c.vocab = SMALL;
        c.eos = allowed; /* any */
        c.n_eos = rnd_in(&s, 0, 1);
        rose_rules *u = rose_rules_create(&q, &c);
        for (uint32_t id = 0; id < SMALL; id++) {
            out[id] = q.n_allowed > 0;
            for (uint32_t i = 0; i < q.n_allowed; i++)
                if (allowed[i] == id) out[id] = false;
        }
        for (uint32_t i = 0; i < q.n_bad; n_bad_ids += lens[i++])
            if (lens[i] == 1 || (n > 0 && events[n - 1].id == bad[n_bad_ids]))
                out[bad[n_bad_ids + lens[i] - 1]] = true;
        for (uint32_t i = 0; n < q.min_tokens && i < q.n_stop; i++)
            out[stop[i]] = true;
        if (n < q.min_tokens && c.n_eos > 0) out[allowed[0]] = true;
        bool left = false;
        for (uint32_t id = 0; id < SMALL; id++)
            left = left || !out[id];
        assert_int_equal(rose_rules_leave_one(u, NULL, events, n), left);
        n_left += left;
        free(u);
    }
    assert_true(n_left > n_rounds / 10 && n_left < n_rounds * 99 / 100);
}

static void bad(rose_request_rules q, const char *word)
{
    const rose_rules_ctx c = ctx(8);
    rose_err err = {0};
    if (!(q.repetition < 0) && !(q.repetition > 0)) q.repetition = 1;
    assert_int_not_equal(rose_rules_check(&q, &c, &err), ROSE_OK);
    if (strstr(err.msg, word) == NULL) fail_msg("'%s' lacks '%s'", err.msg, word);
}

static void test_refusals(void **state)
{
    static uint32_t many[ROSE_MAX_BAD_IDS + 2];
    static float floats[ROSE_MAX_BIAS + 1];
    const uint32_t out[] = {FAKE_VOCAB}, huge[] = {UINT32_MAX, UINT32_MAX};
    const float nan[] = {NAN};
    (void)state;
    bad((rose_request_rules){.repetition = -1}, "repetition");
    bad((rose_request_rules){.repetition = INFINITY}, "repetition");
    bad((rose_request_rules){.presence = NAN}, "penalty");
    bad((rose_request_rules){.logprobs = true, .n_top = 21}, "21 logprobs");
    bad((rose_request_rules){.bias_ids = out, .bias = floats, .n_bias = 1}, "logit_bias");
    bad((rose_request_rules){.bias_ids = many, .bias = nan, .n_bias = 1}, "bias");
    bad((rose_request_rules){.bias_ids = many, .bias = floats, .n_bias = ROSE_MAX_BIAS + 1},
        "limit");
    bad((rose_request_rules){.stop_ids = many, .n_stop = ROSE_MAX_STOP_IDS + 1}, "stop_token_ids");
    bad((rose_request_rules){.allowed = out, .n_allowed = 1}, "allowed_token_ids");
    bad((rose_request_rules){.bad_ids = many, .bad_len = huge, .n_bad = 2}, "bad_words");
    /* a backend that cannot: by name, at submit */
    fake_reset();
    const rose_engine_opts eo = small_opts();
    rose_engine *e = open_engine(&eo);
    rose_wakeq *sink = open_sink(4);
    const rose_request_rules wants[] = {{.repetition = 1, .logprobs = true},
                                        {.repetition = 1, .min_tokens = 1}};
    for (int i = 0; i < 2; i++) {
        const rose_request_opts o = {.prompt = g_prompt,
                                     .n_prompt = 4,
                                     .max_tokens = 4,
                                     .rules = &wants[i],
                                     .sampling = {.top_p = 1},
                                     .sink = sink};
        rose_request *r;
        rose_err err = {0};
        assert_int_equal(rose_engine_submit(e, &o, &r, &err), ROSE_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "this device"));
    }
    verify_idle(e);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
}

/* One event without a token; a prompt may fill the context, and not more. */
static void test_score_only(void **state)
{
    static uint32_t ids[MAX_LEN + 1];
    (void)state;
    fake_reset();
    const rose_engine_opts eo = small_opts();
    rose_engine *e = open_engine(&eo);
    rose_wakeq *sink = open_sink(4);
    const uint32_t sizes[] = {1, 2, 17, MAX_LEN, MAX_LEN + 1};
    for (int i = 0; i < 5; i++) {
        rose_request_opts o = {.prompt = ids,
                               .n_prompt = sizes[i],
                               .score_only = true,
                               .sampling = {.top_p = 1, .temperature = 1},
                               .sink = sink};
        rose_request *r;
        rose_event ev;
        void *p;
        rose_status st = rose_engine_submit(e, &o, &r, NULL);
        assert_int_equal(st, sizes[i] > MAX_LEN ? ROSE_E_INVAL : ROSE_OK);
        if (st != ROSE_OK) continue;
        while (rose_wakeq_pop(sink, &p) != ROSE_OK) {
            rose_wakeq_clear(sink);
            rose_wakeq_wait(sink, 10000000u);
        }
        assert_int_equal(rose_request_poll(r, &ev), ROSE_OK);
        assert_true(!ev.has_token && ev.finish == ROSE_FINISH_LENGTH);
        rose_request_release(r);
    }
    verify_idle(e);
    assert_int_equal(rose_engine_get_stats(e).generated_tokens, 0);
    rose_engine_close(e);
    rose_wakeq_destroy(sink);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bans),       cmocka_unit_test(test_counts),
        cmocka_unit_test(test_leave_one),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_score_only),
    };
    int failed = 0;
    for (test_mode = 0; test_mode < N_MODES; test_mode++)
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    return failed;
}
