/* The report page: text stays text, embedded files are complete, and the numbers are there. Also
 * the export with the keys of vllm bench serve. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/online_internal.h"
#include "bench/plot_internal.h"
#include "bench/report_internal.h"

static void test_text(void **state)
{
    (void)state;
    rose_html h = {0};
    rose_html_text(&h, "a<b>&\"'\x01\n\t\x7f");
    rose_html_text(&h, NULL);
    rose_html_text(&h, "");
    rose_html_raw(&h, "<%d>", 5);
    assert_string_equal(rose_buf_str(&h.out),
                        "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd\n\t\xef\xbf\xbd<5>");
    h.out.len = 0;
    rose_html_text(&h, "/m\xff/\xc3\xa9\xe2\x82<\xc3");
    assert_string_equal(rose_buf_str(&h.out), "/m\xef\xbf\xbd/\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd&lt;"
                                              "\xef\xbf\xbd");
    h.out.len = 0;
    char long_text[3000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    rose_html_raw(&h, "[%s]", long_text);
    assert_int_equal(h.out.len, 3001);
    assert_int_equal(h.out.data[3000], ']');
    rose_buf_free(&h.out);
}

/* base64: the examples of RFC 4648, section 10, and every byte value */
static void test_base64(void **state)
{
    static const char *const cases[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_html h = {0};
        char want[64];
        snprintf(want, sizeof want, "data:text/plain;base64,%s", cases[i][1]);
        rose_html_data_uri(&h, "text/plain", cases[i][0], strlen(cases[i][0]));
        assert_string_equal(rose_buf_str(&h.out), want);
        rose_buf_free(&h.out);
    }
    rose_html h = {0};
    rose_html_data_uri(&h, "x", "\xfb\xff\xbf\x00\x80", 5);
    assert_string_equal(rose_buf_str(&h.out), "data:x;base64,+/+/AIA=");
    rose_buf_free(&h.out);
}

static void test_clean(void **state)
{
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"\xe2\x82\xac", "\xe2\x82\xac"},
        {"a\xe2\x82", "a??"}, /* a character that is cut in two */
        {"\xff\xfe"
         "b",
         "??b"},
        {"\xc0\x80", "??"},        /* an overlong form */
        {"\xed\xa0\x80x", "???x"}, /* a surrogate */
        {"", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        assert_string_equal(rose_results_text(text), cases[i][1]);
        rose_json *j = rose_json_string(text);
        assert_non_null(j);
        rose_json_decref(j);
    }
}

/* Bytes that cannot stand in JSON become escapes, and nothing is lost. */
static void test_string(void **state)
{
    static const char *const cases[][2] = {
        {"", ""},
        {"/models/\xc3\xa9", "/models/\xc3\xa9"},
        {"/m\xffod", "/m\\xffod"},
        {"\xff\xfe", "\\xff\\xfe"},
        {"a\xe2\x82", "a\\xe2\\x82"}, /* a character that is cut in two */
        {"\xc0\x80x\xed\xa0\x80", "\\xc0\\x80x\\xed\\xa0\\x80"},
        {"\xf0\x9f\x92\xa9\x80", "\xf0\x9f\x92\xa9\\x80"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_json *j = rose_results_string(cases[i][0]);
        assert_string_equal(rose_json_text(j), cases[i][1]);
        rose_json_decref(j);
    }
    rose_json *j = rose_results_stringn(NULL, 0);
    assert_string_equal(rose_json_text(j), "");
    rose_json_decref(j);
    j = rose_results_stringn("ab\xff", 2);
    assert_string_equal(rose_json_text(j), "ab");
    rose_json_decref(j);
    j = rose_results_string(NULL);
    assert_true(rose_json_is_null(j));
    rose_json_decref(j);
    char bench[] = "online", model[] = "/m\xffod", *argv[] = {bench, model, NULL};
    j = rose_results_meta(2, argv);
    assert_string_equal(rose_json_text(rose_json_get(j, "command")),
                        "roseinfer bench online /m\\xffod");
    rose_json_decref(j);
}

static void test_tables(void **state)
{
    (void)state;
    rose_html h = {0};
    rose_json *online = rose_json_loads(
        "{\"meta\":{\"device\":\"a <cpu>\",\"command\":\"bench online "
        "<x>\",\"versions\":{\"r\":\"1\"}},"
        "\"summaries\":[{\"backend\":\"<b>\",\"scale\":0.4,\"concurrency\":0,\"num_requests\":9,"
        "\"num_success\":8,\"num_error\":1,\"ttft_ms\":{\"p50\":1.5,\"p90\":null},\"req_per_s\":3},"
        "{\"backend\":\"dead\",\"error\":\"exit <3>\"},{\"backend\":7},[],null],"
        "\"by_backend\":{\"<b>\":{\"cmd\":\"serve & "
        "go\",\"goodput_rps\":2.5,\"goodput_limits\":\"ttft:5\"}}}",
        0, NULL);
    assert_non_null(online);
    rose_report_online(&h, online);
    rose_report_environment(&h, online);
    const char *page = rose_buf_str(&h.out);
    assert_non_null(strstr(page, "&lt;b&gt;"));
    assert_non_null(strstr(page, "<td class=\"bad\">8/9</td>"));
    assert_non_null(strstr(page, "failed: exit &lt;3&gt;"));
    assert_non_null(strstr(page, ">1.50</td>"));
    assert_non_null(strstr(page, "2.500 req/s within ttft:5"));
    assert_non_null(strstr(page, "<pre>serve &amp; go</pre>"));
    assert_non_null(strstr(page, "bench online &lt;x&gt;"));
    assert_null(strstr(page, "<b>"));
    rose_json_decref(online);
    h.out.len = 0;
    rose_json *ablate = rose_json_loads(
        "{\"switches\":{\"fast-sse\":{\"setting\":{\"on\":\"--fast-sse\",\"workload\":\"plain\"},"
        "\"ttft\":{\"off_over_on\":1.25,\"verdict\":\"no change\"}},\"x\":{\"error\":\"<gone>\"}}}",
        0, NULL);
    rose_report_ablate(&h, ablate);
    page = rose_buf_str(&h.out);
    assert_non_null(strstr(page, "<td>--fast-sse</td><td></td><td>plain</td><td>ttft</td>"
                                 "<td>1.250</td>"));
    assert_non_null(strstr(page, "failed: &lt;gone&gt;"));
    assert_null(strstr(page, "setting"));
    rose_json_decref(ablate);
    h.out.len = 0;
    rose_json *any =
        rose_json_loads("{\"meta\":{},\"ready\":{\"p50\":2,\"n\":3},\"deep\":{\"x\":{\"y\":true}},"
                        "\"results\":[{\"k\":1},{\"k\":2,\"l\":3}]}",
                        0, NULL);
    rose_report_any(&h, any);
    page = rose_buf_str(&h.out);
    assert_non_null(strstr(page, "deep.x.y</th><td>yes</td>"));
    assert_non_null(strstr(page, "ready</th><td>3</td>"));
    assert_non_null(strstr(page, "<tr><td>2</td></tr>"));
    rose_json_decref(any);
    rose_buf_free(&h.out);
}

static double real(const rose_json *o, const char *key)
{
    const rose_json *v = rose_json_get(o, key);
    if (!rose_json_is_number(v)) fail_msg("no number '%s'", key);
    return rose_json_number_value(v);
}

/* What vLLM (two engines; a float has an exponent) and our server write, and what becomes of it. */
static void test_guesses(void **state)
{
    (void)state;
    static const char first[] =
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a b\"} 100.0\n"
        "vllm:spec_decode_num_drafts_total{engine=\"1\",model_name=\"a b\"} 20.0\n"
        "vllm:spec_decode_num_drafts_created{engine=\"0\"} 1.7e+09\n"
        "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 3.6e+02\n"
        "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 200.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 110.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"2\"} 30.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",position=\"2\"} 4.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",position=\"99\"} 4.0\n";
    rose_watch_guesses a, b = {0}, none;
    rose_watch_parse_guesses(&a, first, sizeof first - 1);
    assert_true(a.known && a.drafts == 120 && a.draft_tokens == 360 && a.accepted == 200);
    assert_true(a.n_places == 3 && a.accepted_at[0] == 110 && a.accepted_at[1] == 0 &&
                a.accepted_at[2] == 34);
    rose_watch_parse_guesses(&none, "vllm:num_requests_running 0\n", 28);
    assert_true(!none.known && none.n_places == 0);
    b = a;
    b.drafts += 50, b.draft_tokens += 160, b.accepted += 40;
    b.accepted_at[0] += 30, b.accepted_at[2] += 10;
    assert_false(rose_watch_guesses_since(&none, &b).known);
    assert_false(rose_watch_guesses_since(&b, &a).known); /* the server began anew */
    rose_watch_guesses d = rose_watch_guesses_since(&a, &b);
    rose_json *j = rose_online_guesses_json(&d);
    assert_int_equal(rose_json_int(rose_json_get(j, "num_drafts")), 50);
    assert_int_equal(rose_json_int(rose_json_get(j, "draft_tokens")), 160);
    assert_int_equal(rose_json_int(rose_json_get(j, "accepted_tokens")), 40);
    assert_true(fabs(real(j, "acceptance_rate") - 0.25) < 1e-12);
    assert_true(fabs(real(j, "acceptance_length") - 1.8) < 1e-12);
    const rose_json *places = rose_json_get(j, "per_position_acceptance_rates");
    assert_int_equal(rose_json_count(places), 3);
    assert_true(fabs(rose_json_number_value(rose_json_at(places, 2)) - 0.2) < 1e-12);
    rose_json *root = rose_json_pack("{s:[{s:s, s:i, s:o}, {s:s, s:i, s:n}]}", "summaries",
                                     "backend", "ours<", "concurrency", 4, "speculation", j,
                                     "backend", "llama", "concurrency", 4, "speculation");
    assert_non_null(root);
    rose_html h = {0};
    rose_report_online(&h, root);
    assert_non_null(
        strstr(rose_buf_str(&h.out),
               "<th scope=\"row\">ours&lt;</th><td>4 at once</td><td>50</td><td>160</td>"
               "<td>40</td><td>0.250</td><td>1.800</td></tr>\n</tbody>"));
    rose_buf_free(&h.out);
    rose_json_decref(root);
    d = rose_watch_guesses_since(&a, &a); /* known, and nothing was guessed: no rate */
    j = rose_online_guesses_json(&d);
    assert_true(rose_json_is_null(rose_json_get(j, "acceptance_rate")) &&
                rose_json_is_null(rose_json_get(j, "acceptance_length")));
    assert_int_equal(rose_json_int(rose_json_get(j, "num_drafts")), 0);
    rose_json_decref(j);
    j = rose_online_guesses_json(&none);
    assert_true(rose_json_is_null(j));
    rose_json_decref(j);
}

/* Two good requests and a failed one, with times that are easy to add up. */
static void test_vllm_keys(void **state)
{
    static const char *const keys[] = {"date",
                                       "backend",
                                       "model_id",
                                       "tokenizer_id",
                                       "num_prompts",
                                       "request_rate",
                                       "burstiness",
                                       "max_concurrency",
                                       "duration",
                                       "completed",
                                       "failed",
                                       "total_input_tokens",
                                       "total_output_tokens",
                                       "request_throughput",
                                       "request_goodput",
                                       "output_throughput",
                                       "total_token_throughput",
                                       "input_lens",
                                       "output_lens",
                                       "ttfts",
                                       "itls",
                                       "latencies",
                                       "start_times",
                                       "queue_times",
                                       "errors",
                                       "max_output_tokens_per_s",
                                       "max_concurrent_requests",
                                       "mean_ttft_ms",
                                       "median_ttft_ms",
                                       "std_ttft_ms",
                                       "p99_ttft_ms",
                                       "mean_tpot_ms",
                                       "median_tpot_ms",
                                       "std_tpot_ms",
                                       "p99_tpot_ms",
                                       "mean_itl_ms",
                                       "median_itl_ms",
                                       "std_itl_ms",
                                       "p99_itl_ms",
                                       "mean_e2el_ms",
                                       "median_e2el_ms",
                                       "std_e2el_ms",
                                       "p99_e2el_ms"};
    enum { S = 1000000000 };
    (void)state;
    rose_arrival a[] = {{2 * (uint64_t)S, 1}, {3 * (uint64_t)S, 1}},
                 b[] = {{4 * (uint64_t)S, 1}, {5 * (uint64_t)S, 2}};
    rose_reply replies[] = {{.start_ns = S,
                             .first_ns = a[0].t_ns,
                             .last_ns = a[1].t_ns,
                             .end_ns = a[1].t_ns,
                             .arrivals = a,
                             .n_events = 2,
                             .n_tokens = 2,
                             .status = 200,
                             .counted = true},
                            {.start_ns = S,
                             .first_ns = b[0].t_ns,
                             .last_ns = b[1].t_ns,
                             .end_ns = b[1].t_ns,
                             .arrivals = b,
                             .n_events = 2,
                             .n_tokens = 3,
                             .status = 200,
                             .counted = true},
                            {.start_ns = S, .end_ns = S + 1, .error = "gone"}};
    rose_load_trace_row rows[] = {{0, 10, 2, 0, 0}, {0, 20, 3, 0, 0}, {0, 30, 4, 0, 0}};
    const rose_load_trace t = {.rows = rows, .n = 3, .format = "generated"};
    const rose_run run = {
        .spec = {.scale = 1}, .trace = &t, .replies = replies, .n = 3, .start_ns = S};
    const rose_online_opts o = {.burstiness = 0.5f};
    rose_online online = {.o = &o, .model_dir = "folder", .limits = {.ttft = 2}};
    char dir[] = "/tmp/rose-vllm-XXXXXX", path[128];
    rose_run_stats s;
    rose_json *j;
    assert_non_null(mkdtemp(dir));
    snprintf(online.results.dir, sizeof online.results.dir, "%s", dir);
    assert_int_equal(rose_run_stats_make(&run, &s), ROSE_OK);
    assert_int_equal(rose_online_export_vllm(&online, "x", "model", &run, &s, NULL), ROSE_OK);
    snprintf(path, sizeof path, "%s/vllm", dir);
    assert_int_equal(rose_results_read(&j, path, "x-scale1.json", NULL), ROSE_OK);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (rose_json_get(j, keys[i]) == NULL) fail_msg("no '%s'", keys[i]);
    }
    assert_true(real(j, "completed") == 2 && real(j, "failed") == 1 && real(j, "num_prompts") == 3);
    assert_true(real(j, "duration") == 4 && real(j, "total_input_tokens") == 30);
    assert_true(real(j, "total_output_tokens") == 5 && real(j, "output_throughput") == 1.25);
    assert_true(real(j, "mean_ttft_ms") == 2000 && real(j, "std_ttft_ms") == 1000);
    assert_true(real(j, "mean_e2el_ms") == 3000 && real(j, "mean_itl_ms") == 1000);
    assert_true(fabs(real(j, "mean_tpot_ms") - 750) < 1e-9);
    assert_true(real(j, "request_goodput") == 0.25); /* one request in four seconds */
    assert_true(real(j, "max_output_tokens_per_s") == 2);
    assert_true(real(j, "max_concurrent_requests") == 2);
    assert_int_equal(rose_json_count(rose_json_get(j, "itls")), 3);
    assert_int_equal(rose_json_count(rose_json_at(rose_json_get(j, "itls"), 2)), 0);
    assert_string_equal(rose_json_text(rose_json_at(rose_json_get(j, "errors"), 2)), "gone");
    assert_string_equal(rose_json_text(rose_json_get(j, "request_rate")), "inf");
    rose_json_decref(j);
    snprintf(path, sizeof path, "%s/vllm/x-scale1.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/vllm", dir);
    rmdir(path);
    rmdir(dir);
}

/* ---- plots ---- */

/* Returns the script for n backends with long names, without TPOT and ITL, with TTFT up to
 * ttft_p99. The caller frees it. */
static char *script_of(int n, double ttft_p99)
{
    rose_json *rows = rose_json_array(), *root = rose_json_object();
    char name[80], *text = NULL;
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "a-backend-with-a-rather-long-name-%d", i);
        rose_json_append_new(
            rows, rose_json_pack("{s:s, s:f, s:i, s:i, s:{s:f, s:f, s:f}, s:{s:n, s:n, s:n}, "
                                 "s:{s:f, s:f, s:f}}",
                                 "backend", name, "scale", 1.0 + 0.01 * i * i, "concurrency", 0,
                                 "num_success", 3, "ttft_ms", "p50", 1.0, "p90", 2.0, "p99",
                                 ttft_p99, "tpot_ms", "p50", "p90", "p99", "e2e_ms", "p50", 4.0,
                                 "p90", 5.0, "p99", 6.0));
    }
    rose_json_set_new(root, "summaries", rows);
    FILE *gp = open_memstream(&text, &len);
    assert_true(rose_plot_online(gp, root));
    fclose(gp);
    rose_json_decref(root);
    return text;
}

/* Names stand in rows within the picture and never overlap. Ticks that are close together share one
 * name. */
static void test_plot_key(void **state)
{
    (void)state;
    char *text = script_of(9, 3);
    double last_x = 0, last_y = 2;
    const char *p = strstr(text, "set label 101 ");
    for (int i = 0; i < 9; i++) {
        double x, y;
        int label;
        assert_non_null(p);
        assert_int_equal(
            sscanf(p, "set label %d 'a-backend-with-a-rather-long-name-%*d' at screen %lf,%lf",
                   &label, &x, &y),
            3);
        assert_int_equal(label, 101 + i);
        assert_true(x > 0 && x + 0.2 < 1 && y > 0.85 && y < 0.97);
        assert_true(y < last_y || (y == last_y && x > last_x + 0.2));
        last_x = x;
        last_y = y;
        p = strstr(p + 1, "set label ");
    }
    assert_non_null(strstr(text, "unset label 109\n"));
    assert_non_null(strstr(text, "set xtics ('1' 1, '' 1.01, '' 1.04, '1.09' 1.09"));
    free(text);
}

/* An open loop is drawn over its rates, and the figure says what was measured where. Without the
 * rates the axis of the scales is reversed. In both cases the load grows to the right. */
static void test_plot_rates(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *gp = open_memstream(&text, &len);
    rose_json *root = rose_json_loads(
        "{\"meta\":{\"model\":\"models/a\\\"b\",\"dtype\":\"bfloat16\",\"device\":\"AMD EPYC\","
        "\"cpus\":2},\"summaries\":["
        "{\"backend\":\"a\",\"scale\":0.5,\"concurrency\":0,\"offered_rps\":8.125,\"num_success\":"
        "3,"
        "\"ttft_ms\":{\"p50\":1,\"p90\":2,\"p99\":3}},"
        "{\"backend\":\"a\",\"scale\":2,\"concurrency\":0,\"offered_rps\":2,\"num_success\":3,"
        "\"ttft_ms\":{\"p50\":4,\"p90\":5,\"p99\":6}}]}",
        0, NULL);
    assert_non_null(root);
    assert_true(rose_plot_online(gp, root));
    fclose(gp);
    assert_non_null(strstr(text, "$sttft_0 << EOD\n2 4 5 6\n8.125 1 2 3\nEOD\n"));
    assert_non_null(strstr(text, "set xlabel 'offered load (requests/s)'\n"));
    assert_non_null(strstr(text, "set xtics ('2' 2, '8.12' 8.125)"));
    assert_non_null(strstr(text, "\\na_b, bfloat16 on AMD EPYC, 2 CPUs\""));
    assert_non_null(strstr(text, "Distribution at 2 requests/s (scale 2)"));
    free(text);
    rose_json_decref(root);
    text = script_of(3, 3); /* scales from 1 to 1.04, and no rates */
    assert_non_null(strstr(text, "set xlabel 'scale of the trace times"));
    assert_non_null(strstr(text, "set xrange [1.196:0.869565217]"));
    free(text);
}

static void test_plot_without_values(void **state)
{
    (void)state;
    char *text = script_of(1, 3);
    assert_non_null(strstr(text, "set title 'TPOT'\nset yrange [0:1]\nset label 1 'no values"));
    assert_null(strstr(text, "set output 'online_tpot_ms."));
    assert_null(strstr(text, "set output 'online_itl_ms."));
    assert_non_null(strstr(text, "set output 'online_e2e_ms."));
    free(text);
}

/* Rows of one backend at scales 1 and 2 (TTFT p90 of 11 and 12), and rows of a goodput search at
 * scales 1 and 4 (21 and 24), for that backend and for another one that has no other rows. */
static char *script_of_search(void)
{
    static const struct {
        const char *backend;
        double scale, ms;
        bool search;
    } runs[] = {{"a", 1, 21, true}, {"a", 1, 11, false}, {"a", 2, 12, false},
                {"a", 4, 24, true}, {"b", 1, 31, true},  {"b", 4, 34, true}};
    rose_json *rows = rose_json_array(), *by = rose_json_object();
    char *text = NULL;
    size_t len = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        rose_json *b = rose_json_get(by, runs[i].backend);
        rose_json *row = rose_json_pack("{s:s, s:f, s:i, s:i, s:{s:f, s:f, s:f}, s:[f]}", "backend",
                                        runs[i].backend, "scale", runs[i].scale, "concurrency", 0,
                                        "num_success", 3, "ttft_ms", "p50", 1.0, "p90", runs[i].ms,
                                        "p99", runs[i].ms + 1, "itl_cdf_ms", runs[i].ms + 100);
        if (runs[i].search) rose_json_set_new(row, "goodput_search", rose_json_true());
        if (b == NULL) {
            b = rose_json_pack("{s:[]}", "runs");
            rose_json_set_new(by, runs[i].backend, b);
        }
        rose_json_append_new(rose_json_get(b, "runs"), rose_json_pack("{s:O}", "summary", row));
        rose_json_append_new(rows, row);
    }
    rose_json *root = rose_json_pack("{s:o, s:o}", "summaries", rows, "by_backend", by);
    FILE *gp = open_memstream(&text, &len);
    assert_true(rose_plot_online(gp, root));
    assert_int_equal(rose_json_count(rose_json_get(root, "summaries")), 6); /* unchanged */
    fclose(gp);
    rose_json_decref(root);
    return text;
}

/* A search measures the first scale again, but two points never stand at one place. */
static void test_plot_search(void **state)
{
    (void)state;
    char *text = script_of_search();
    assert_non_null(strstr(text, "$sttft_0 << EOD\n1 1 11 12\n2 1 12 13\nEOD\n"));
    assert_non_null(strstr(text, "$sttft_1 << EOD\n1 1 31 32\n4 1 34 35\nEOD\n"));
    assert_non_null(strstr(text, "\n111 "));
    assert_null(strstr(text, "\n121 "));
    /* next to the other backend's, which is measured apart */
    assert_non_null(strstr(text, "\n131 "));
    free(text);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++)
        n++;
    return n;
}

/* If values differ by a factor of fifty, a linear axis would show a line at 0. Only the metric that
 * needs it gets a logarithmic axis. */
static void test_plot_wide(void **state)
{
    (void)state;
    char *text = script_of(1, 50);
    assert_int_equal(count(text, "set logscale y"), 0);
    free(text);
    text = script_of(1, 51);
    assert_int_equal(count(text, "set ylabel 'TTFT (ms, logarithmic)'\n"), 2);
    assert_int_equal(count(text, "set logscale y\nset yrange [*:*]\nplot $sttft_0"), 4);
    assert_int_equal(count(text, "\nunset logscale y\n"), 4);
    assert_int_equal(count(text, "set ylabel 'E2E (ms)'\nset title \"E2E\"\nset yrange [0:*]\n"),
                     1);
    free(text);
}

/* gnuplot's own format would write 1e+06 between 500000 and 1.5e+06. */
static void test_plot_millions(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *gp = open_memstream(&text, &len);
    rose_json *root = rose_json_pack("{s:[{s:s, s:f, s:f, s:f}]}", "results", "backend", "flash",
                                     "request_throughput_rps", 2.9, "output_throughput_tps", 2927.0,
                                     "total_throughput_tps", 1501433.0);
    assert_true(rose_plot_offline(gp, root));
    fclose(gp);
    assert_int_equal(count(text, "set xtics 500000\nset format x '%.0f'\n"), 1);
    assert_int_equal(count(text, "set format x '%g'\n"), 2);
    free(text);
    rose_json_decref(root);
}

/* The parts of a TTFT of which most passes outside the server. */
static void test_plot_outside(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *gp = open_memstream(&text, &len);
    rose_json *root = rose_json_pack("{s:{s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}}}", "times",
                                     "ttft_outside_server_ms", "p50", 4.5, "p95", 6.25, "p99", 6.5,
                                     "ttft_ms", "p50", 7.5, "p95", 8.5, "p99", 9.0);
    assert_true(rose_plot_stream(gp, root));
    fclose(gp);
    assert_non_null(strstr(text, "'outside the server' -6, 'TTFT (client)' -7)"));
    assert_int_equal(count(text, "\n-6 4.5\n"), 1);
    assert_int_equal(count(text, "\n-6 6.25\n"), 1);
    free(text);
    rose_json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_guesses),
        cmocka_unit_test(test_vllm_keys),
        cmocka_unit_test(test_plot_key),
        cmocka_unit_test(test_plot_rates),
        cmocka_unit_test(test_plot_search),
        cmocka_unit_test(test_plot_without_values),
        cmocka_unit_test(test_plot_wide),
        cmocka_unit_test(test_plot_millions),
        cmocka_unit_test(test_plot_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
