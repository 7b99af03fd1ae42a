/* A replay whose times can be computed by hand, and one whose prompts share the blocks that the
 * trace says they share. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "load/replay.h"

static void parse(rose_load_trace *t, const char *text)
{
    assert_int_equal(rose_load_trace_parse(t, "t", text, strlen(text), 1000, NULL, NULL), ROSE_OK);
}

static rose_sched_opts small(void)
{
    return (rose_sched_opts){.max_seqs = 2,
                             .max_step_tokens = 64,
                             .max_model_len = 100,
                             .max_queued = 2,
                             .page_tokens = 16,
                             .chunked_prefill = true,
                             .decode_first = true,
                             .prefix_cache = true};
}

static void test_times(void **state)
{
    (void)state;
    rose_load_trace t;
    rose_replay_result r;
    const rose_replay_opts o = {.step_us = 1000, .row_us = 100, .scale = 2, .kv_pages = 10};
    const rose_sched_opts so = small();
    parse(&t, "Timestamp,ContextTokens,GeneratedTokens\n0,10,3\n1,20,1\n2,99,9\n");
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.n_done, 2);
    assert_int_equal(r.n_refused, 1); /* longer than the context */
    assert_int_equal(r.n_steps, 4);
    assert_true(fabs(r.ttft.max - 3) < 1e-6 && fabs(r.ttft.p50 - 2.5) < 1e-6);
    assert_true(fabs(r.itl.p50 - 1.1) < 1e-6 && fabs(r.itl.max - 1.1) < 1e-6);
    assert_true(fabs(r.e2e.max - 4.2) < 1e-6); /* TTFT of 2, then two gaps of 1.1 */
    assert_true(fabs(r.duration_s - 2.003) < 1e-9);
    rose_load_trace_free(&t);
}

/* Prompts with equal hashes are found in the prefix cache again, others are not. */
static void test_blocks(void **state)
{
    (void)state;
    rose_load_trace t;
    rose_replay_result r;
    const rose_replay_opts o = {.step_us = 1000, .row_us = 100, .scale = 1, .kv_pages = 20};
    rose_sched_opts so = small();
    char text[1024] = "";
    for (int i = 0; i < 4; i++)
        sprintf(text + strlen(text),
                "{\"chat_id\": 1, \"timestamp\": %d.5, \"input_length\": 40, \"output_length\": 2, "
                "\"hash_ids\": "
                "[7, %d, 9]}\n",
                i, i < 2 ? 8 : i);
    parse(&t, text);
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.n_done, 4);
    assert_int_equal(r.stats.prefix_queries, 160);
    assert_int_equal(r.stats.prefix_hits, 32 + 16 + 16);
    so.prefix_cache = false;
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.stats.prefix_hits, 0);
    rose_load_trace_free(&t);
}

/* Twice the load that the machine can take, and two goals. Without steering nearly all requests
 * miss the goals; with steering most of the served ones meet both. */
static void test_goals(void **state)
{
    enum { N = 300 };
    (void)state;
    rose_load_trace t;
    rose_replay_result r[2];
    rose_replay_opts o = {
        .step_us = 1000, .row_us = 100, .scale = 1, .kv_pages = 2000, .ttft_ms = 300, .itl_ms = 12};
    rose_sched_opts so = small();
    so.max_seqs = 32;
    so.max_step_tokens = 512;
    so.max_model_len = 512;
    so.max_queued = N;
    char *text = calloc(N, 40);
    sprintf(text, "Timestamp,ContextTokens,GeneratedTokens\n");
    for (uint32_t i = 0, at = 40; i < N; i++)
        at += (uint32_t)sprintf(text + at, "%.3f,%u,%u\n", i * 0.015, 100 + i * 37 % 200,
                                10 + i % 30);
    parse(&t, text);
    for (int k = 0; k < 2; k++) {
        o.steer = k == 1;
        assert_int_equal(rose_replay_run(&t, &o, &so, &r[k], NULL), ROSE_OK);
        assert_int_equal(r[k].n_done + r[k].n_late + r[k].n_refused, N);
        assert_true(r[k].n_met <= r[k].n_met_ttft && r[k].n_met <= r[k].n_met_itl);
        assert_true(r[k].n_met_ttft <= r[k].n_done && r[k].n_met_itl <= r[k].n_done);
    }
    assert_int_equal(r[0].n_late, 0);
    assert_true(r[1].n_late > 0 && r[1].n_met > 3 * r[0].n_met && r[1].n_met > N / 4);
    assert_true(r[1].n_met * 10 > r[1].n_done * 8);
    free(text);
    rose_load_trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_goals),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
