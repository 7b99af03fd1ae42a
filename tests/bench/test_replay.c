/* Traces in each format that is read, refusals with the line, and a replay whose times can be
 * worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/replay.h"

static rose_status read_text(rose_trace *t, const char *text, uint32_t max, rose_err *err)
{
    char path[] = "/tmp/rose-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    rose_status st = rose_trace_read(t, path, max, err);
    unlink(path);
    return st;
}

static void expect(const rose_trace *t, uint32_t i, double at_s, uint32_t n_prompt,
                   uint32_t n_output)
{
    assert_true(fabs(t->requests[i].at_s - at_s) < 1e-6);
    assert_int_equal(t->requests[i].n_prompt, n_prompt);
    assert_int_equal(t->requests[i].n_output, n_output);
}

static void test_csv(void **state)
{
    (void)state;
    rose_trace t;
    assert_int_equal(read_text(&t,
                               "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                               "2023-11-16 23:59:59.5000000,374,44\r\n"
                               "2023-11-17 00:00:01.2500000,5,6\r\n"
                               "2023-11-17 00:00:00,7,0\r\n", /* no output: left out */
                               0, NULL),
                     ROSE_OK);
    assert_int_equal(t.n, 2);
    expect(&t, 0, 0, 374, 44);
    expect(&t, 1, 1.75, 5, 6);
    rose_trace_free(&t);
    assert_int_equal(read_text(&t,
                               "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log\n"
                               "5,ChatGPT,472,18,490,Conversation log\n"
                               "2.5,GPT-4,9,8,17,API log\n" /* not in order */
                               "45,ChatGPT,1,1,2,API log\n",
                               2, NULL),
                     ROSE_OK);
    assert_int_equal(t.n, 2);
    expect(&t, 0, 0, 9, 8);
    expect(&t, 1, 2.5, 472, 18);
    rose_trace_free(&t);
    rose_trace_free(&t);
}

static void test_json(void **state)
{
    (void)state;
    rose_trace t;
    assert_int_equal(read_text(&t,
                               "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, "
                               "\"hash_ids\": [1, 2]}\n\n"
                               "{\"timestamp\": 1500, \"input_length\": 20, \"output_length\": 6}",
                               0, NULL),
                     ROSE_OK);
    expect(&t, 0, 0, 700, 5);
    expect(&t, 1, 1.5, 20, 6); /* whole numbers: milliseconds */
    assert_int_equal(t.requests[0].n_blocks, 2);
    assert_int_equal(t.requests[0].block_tokens, 512);
    assert_int_equal(t.requests[1].n_blocks, 0);
    rose_trace_free(&t);
    assert_int_equal(read_text(&t,
                               "{\"timestamp\": 1, \"input_length\": 20, \"output_length\": 6, "
                               "\"hash_ids\": [1, 2]}\n"
                               "{\"timestamp\": 1.5, \"input_length\": 20, \"output_length\": 6}\n",
                               0, NULL),
                     ROSE_OK);
    expect(&t, 1, 0.5, 20, 6);
    assert_int_equal(t.requests[0].block_tokens, 16);
    rose_trace_free(&t);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "no requests"},
        {"a,b,c\n1,2,3\n", "line 1"},
        {"Timestamp,ContextTokens,GeneratedTokens\n1,2\n", "line 2"},
        {"Timestamp,ContextTokens,GeneratedTokens\n1,2,3\nx,2,3\n", "line 3"},
        {"Timestamp,ContextTokens,GeneratedTokens\n1,-2,3\n", "line 2"},
        {"Timestamp,ContextTokens,GeneratedTokens\n1,99999999999,3\n", "line 2"},
        {"Timestamp,ContextTokens,GeneratedTokens\n1,0,3\n", "no requests"},
        {"{\"timestamp\": 1}\n{]\n", "line 2"},
        {"{\"timestamp\": \"1\", \"input_length\": 1, \"output_length\": 1}\n", "line 1"},
        {"{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 1}\n", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rose_trace t;
        rose_err err = {{0}};
        assert_int_equal(read_text(&t, bad[i][0], 0, &err), ROSE_E_FORMAT);
        if (strstr(err.msg, bad[i][1]) == NULL) fail_msg("'%s' lacks '%s'", err.msg, bad[i][1]);
        assert_int_equal(t.n, 0);
        assert_null(t.requests);
    }
    rose_trace t;
    assert_int_equal(rose_trace_read(&t, "/nonexistent/trace", 0, NULL), ROSE_E_IO);
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
    rose_trace t;
    rose_replay_result r;
    const rose_replay_opts o = {.step_us = 1000, .row_us = 100, .scale = 2, .kv_pages = 10};
    const rose_sched_opts so = small();
    assert_int_equal(
        read_text(&t, "Timestamp,ContextTokens,GeneratedTokens\n0,10,3\n1,20,1\n2,99,9\n", 0, NULL),
        ROSE_OK);
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.n_done, 2);
    assert_int_equal(r.n_refused, 1); /* longer than the context */
    assert_int_equal(r.n_steps, 4);
    assert_true(fabs(r.ttft.max - 3) < 1e-6 && fabs(r.ttft.p50 - 2.5) < 1e-6);
    assert_true(fabs(r.itl.p50 - 1.1) < 1e-6 && fabs(r.itl.max - 1.1) < 1e-6);
    assert_true(fabs(r.e2e.max - 4.2) < 1e-6); /* 2 + 1.1 + 1.1 */
    assert_true(fabs(r.duration_s - 2.003) < 1e-9);
    rose_trace_free(&t);
}

/* Prompts that the trace calls equal are found again, others are not. */
static void test_blocks(void **state)
{
    (void)state;
    rose_trace t;
    rose_replay_result r;
    const rose_replay_opts o = {.step_us = 1000, .row_us = 100, .scale = 1, .kv_pages = 20};
    rose_sched_opts so = small();
    char text[1024] = "";
    for (int i = 0; i < 4; i++)
        sprintf(text + strlen(text),
                "{\"timestamp\": %d.5, \"input_length\": 40, \"output_length\": 2, \"hash_ids\": "
                "[7, %d, 9]}\n",
                i, i < 2 ? 8 : i);
    assert_int_equal(read_text(&t, text, 0, NULL), ROSE_OK);
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.n_done, 4);
    assert_int_equal(r.stats.prefix_queries, 160);
    assert_int_equal(r.stats.prefix_hits, 32 + 16 + 16);
    so.prefix_cache = false;
    assert_int_equal(rose_replay_run(&t, &o, &so, &r, NULL), ROSE_OK);
    assert_int_equal(r.stats.prefix_hits, 0);
    rose_trace_free(&t);
}

/* Twice what the machine can do, and two goals: without steering nearly all miss them, with it most
 * of what can be served meets both. */
static void test_goals(void **state)
{
    enum { N = 300 };
    (void)state;
    rose_trace t;
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
    assert_int_equal(read_text(&t, text, 0, NULL), ROSE_OK);
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
    rose_trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv),   cmocka_unit_test(test_json),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_times), cmocka_unit_test(test_blocks), cmocka_unit_test(test_goals),
    };
    return cmocka_run_group_tests_name("trace and replay", tests, NULL, NULL);
}
