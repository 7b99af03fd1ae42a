/* The published workload, compared with the numbers of Python itself; rows and summaries of offline
 * results. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "bench/offline_internal.h"

/* random.seed(0), then drawn as bench.py of nano-vllm does; CPython 3.11 prints these numbers. */
static void test_nano_vllm(void **state)
{
    static const uint32_t in[] = {964, 724, 484, 508, 316}, out[] = {845, 312, 607, 843, 500},
                          last_in[] = {714, 652, 251}, last_out[] = {895, 354, 312};
    (void)state;
    rose_load_trace t;
    uint64_t sum_in = 0, sum_out = 0;
    assert_int_equal(rose_offline_nano_vllm(&t, NULL), ROSE_OK);
    assert_int_equal(t.n, 256);
    for (uint32_t i = 0; i < t.n; i++) {
        assert_in_range(t.rows[i].n_in, 100, 1024);
        assert_in_range(t.rows[i].n_out, 100, 1024);
        sum_in += t.rows[i].n_in;
        sum_out += t.rows[i].n_out;
    }
    for (int i = 0; i < 5; i++)
        assert_true(t.rows[i].n_in == in[i] && t.rows[i].n_out == out[i]);
    for (int i = 0; i < 3; i++)
        assert_true(t.rows[253 + i].n_in == last_in[i] && t.rows[253 + i].n_out == last_out[i]);
    assert_int_equal(sum_in, 142827);
    assert_int_equal(sum_out, 133966); /* the total that both projects print */
    rose_load_trace_free(&t);
}

static void test_prompts(void **state)
{
    (void)state;
    rose_load_trace_row rows[] = {{0, 300, 1, 0, 0}, {0, 300, 1, 0, 0}};
    const rose_offline_work w = {.rows = rows, .n = 2, .vocab = 50, .seed = 7};
    uint32_t a[300], b[300], seen[50] = {0}, n_seen = 0;
    rose_offline_prompt(&w, rose_offline_seed(&w, false, 0), 0, a);
    rose_offline_prompt(&w, rose_offline_seed(&w, false, 0), 0, b);
    assert_memory_equal(a, b, sizeof a);
    rose_offline_prompt(&w, rose_offline_seed(&w, false, 0), 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    rose_offline_prompt(&w, rose_offline_seed(&w, false, 1), 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    rose_offline_prompt(&w, rose_offline_seed(&w, true, 0), 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    for (int i = 0; i < 300; i++) {
        assert_in_range(a[i], 0, 49);
        n_seen += seen[a[i]]++ == 0;
    }
    assert_true(n_seen > 40);
}

static double real(const rose_json *o, const char *key)
{
    const rose_json *v = rose_json_get(o, key);
    if (!rose_json_is_number(v)) fail_msg("no number '%s'", key);
    return rose_json_number_value(v);
}

static rose_json *make_row(const char *label, const char *error, const rose_offline_work *w)
{
    rose_offline_result r = {.n_runs = error == NULL ? 3 : 0};
    if (error == NULL) {
        r.ready_s = 0.25;
        r.resident_peak_bytes = 3u << 20;
    }
    snprintf(r.label, sizeof r.label, "%s", label);
    if (error != NULL) snprintf(r.error, sizeof r.error, "%s", error);
    r.runs = calloc(3, sizeof *r.runs);
    assert_non_null(r.runs);
    const double seconds[] = {4, 1, 2};
    for (int i = 0; i < 3; i++)
        r.runs[i] = (rose_offline_run){.total_s = seconds[i],
                                       .ttft_p50 = (double)NAN,
                                       .tpot_p50 = 0.5,
                                       .input_tokens = 80,
                                       .output_tokens = 40};
    rose_json *row = rose_offline_row(&r, w, "m");
    rose_offline_result_free(&r);
    assert_non_null(row);
    return row;
}

/* A row has every key, the median repeat first, and the spread. */
static void test_rows(void **state)
{
    static const char *const schema[] = {"backend",
                                         "model",
                                         "device",
                                         "num_prompts",
                                         "input_len",
                                         "output_len",
                                         "prefill_s",
                                         "decode_s",
                                         "total_input_tokens",
                                         "total_s",
                                         "total_output_tokens",
                                         "request_throughput_rps",
                                         "extra",
                                         "output_throughput_tps",
                                         "total_throughput_tps"};
    (void)state;
    rose_load_trace_row rows[] = {{0, 30, 10, 0, 0}, {0, 50, 30, 0, 0}};
    const rose_offline_work w = {.rows = rows, .n = 2, .vocab = 50};
    rose_json *row = make_row("x", NULL, &w), *bad = make_row("y", "it died", &w);
    for (size_t i = 0; i < sizeof schema / sizeof *schema; i++) {
        if (rose_json_get(row, schema[i]) == NULL || rose_json_get(bad, schema[i]) == NULL)
            fail_msg("no '%s'", schema[i]);
    }
    assert_true(real(row, "total_s") == 2 && real(row, "output_throughput_tps") == 20);
    assert_true(real(row, "request_throughput_rps") == 1 &&
                real(row, "total_throughput_tps") == 60);
    assert_true(real(row, "output_throughput_tps_min") == 10);
    assert_true(real(row, "output_throughput_tps_max") == 40);
    assert_true(real(row, "input_len") == 40 && real(row, "output_len") == 20);
    assert_int_equal(rose_json_count(rose_json_get(row, "repeats")), 3);
    assert_true(rose_json_is_null(rose_json_get(row, "ttft_p50_ms")) &&
                real(row, "tpot_p50_ms") == 500);
    assert_true(real(row, "ready_s") == 0.25 && real(row, "resident_peak_bytes") == 3 << 20);
    assert_true(rose_json_is_null(rose_json_get(bad, "ready_s")) &&
                rose_json_is_null(rose_json_get(bad, "resident_peak_bytes")));
    assert_true(real(bad, "output_throughput_tps") == 0);
    assert_string_equal(rose_json_text(rose_json_get(rose_json_get(bad, "extra"), "error")),
                        "it died");

    char dir[] = "/tmp/rose-offline-test-XXXXXX", path[128];
    rose_buf text = {0};
    assert_non_null(mkdtemp(dir));
    rose_json *root = rose_json_pack("{s:{s:s}, s:[o, o]}", "meta", "command", "bench offline",
                                     "results", row, bad);
    assert_int_equal(rose_offline_summary(root, dir, NULL), ROSE_OK);
    snprintf(path, sizeof path, "%s/offline_summary.md", dir);
    assert_int_equal(rose_file_read(&text, path, 1 << 20, NULL), ROSE_OK);
    const char *md = rose_buf_str(&text);
    assert_non_null(strstr(md,
                           "| x | 2 | 1.00 | 20.0 (10.0 to 40.0) | 60.0 | 2.000 | - | 500.0/0.0 | "
                           "0.250 | 3 |\n"));
    assert_non_null(strstr(md, "| y | failed: it died |"));
    unlink(path);
    rmdir(dir);
    rose_buf_free(&text);
    rose_json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano_vllm),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
