/* Verdicts on pairs of runs, goodput limits, lists of servers, result folders. */
#include "bench/bench_fixture.h"

#include "bench/online_internal.h"
#include "bench/results.h"
#include "bench/server.h"
#include "bench/stats.h"

static void test_verdict(void **state)
{
    (void)state;
    const double on[] = {1.0, 1.1, 0.9, 1.05}, slower[] = {1.3, 1.25, 1.2, 1.4},
                 mixed[] = {1.3, 1.0, 1.2, 1.4}, faster[] = {0.5, 0.4, 0.45, 0.5};
    rose_verdict v = rose_verdict_make(on, slower, 4);
    assert_true(v.changed && v.ratio > 1.2 && v.min > 1.13 && v.max < 1.34);
    assert_true(fabs(v.noise - 0.2 / 1.025 / 2) < 1e-12);
    assert_false(rose_verdict_make(on, mixed, 4).changed); /* 1.0 lies among the `off` values */
    v = rose_verdict_make(on, faster, 4);
    assert_true(v.changed && v.ratio < 0.6);
    assert_false(rose_verdict_make(on, slower, 2).changed); /* too few pairs to tell */
    assert_false(rose_verdict_make(on, on, 4).changed);
    v = rose_verdict_make(on, slower, 1);
    assert_true(!v.changed && v.ratio == 1.3 && v.min == v.max && v.noise == 0);
}

/* If both sides have one distribution, a change is reported as rarely as the header says. */
static void test_verdict_by_chance(void **state)
{
    (void)state;
    rose_random r = {test_seed(), 1, 0};
    int changed = 0;
    enum { N = 20000 };
    for (int i = 0; i < N; i++) {
        double on[5], off[5];
        for (int k = 0; k < 5; k++) {
            on[k] = 1 + rose_random_exp(&r);
            off[k] = 1 + rose_random_exp(&r);
        }
        changed += rose_verdict_make(on, off, 5).changed;
    }
    const double want = N / 126.0;
    if (fabs(changed - want) > 5 * sqrt(want)) fail_msg("%d of %d, expected %g", changed, N, want);
}

static void test_goodput_limits(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "ttft",     "ttft:",   "ttft:0", "ttft:-1",
                                      "ttft:nan", "ttft:1,",  "ttft:1;", "tt:1",   "ttftx:1",
                                      "itl:inf",  "ttft:1e9", ",ttft:1", ":5",     "e2e:5ms"};
    rose_goodput_limits l;
    rose_err err = {""};
    assert_int_equal(rose_goodput_parse("ttft:200,e2e:1e3", &l, &err), ROSE_OK);
    assert_true(fabs(l.ttft - 0.2) < 1e-12 && fabs(l.e2e - 1) < 1e-12 && l.tpot == 0 && l.itl == 0);
    rose_run_stats s = {.n_success = 5, .ttft = {.n = 5, .p99 = 0.2}, .e2e = {.n = 5, .p99 = 0.9}};
    s.ttft.p99 = l.ttft;
    assert_true(rose_goodput_met(&l, &s)); /* exactly at the limit */
    s.n_error = 1;
    assert_false(rose_goodput_met(&l, &s));
    s.n_error = 0;
    s.e2e.p99 = 1.001;
    assert_false(rose_goodput_met(&l, &s));
    s.n_success = 0;
    s.e2e = s.ttft = (rose_summary){0};
    assert_false(rose_goodput_met(&l, &s));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.msg[0] = '\0';
        if (rose_goodput_parse(bad[i], &l, &err) != ROSE_E_INVAL || err.msg[0] == '\0')
            fail_msg("'%s' was taken", bad[i]);
    }
}

static void test_server_list(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "rosé",
                                      "roseinfer,",
                                      "roseinfer,roseinfer",
                                      "url=x",
                                      "url==http://a",
                                      "url=../x=http://a",
                                      "url=a b=http://a",
                                      "url=.x=http://a",
                                      "url=x=https://a",
                                      "url=roseinfer=http://a,roseinfer",
                                      "roseinfer=",
                                      "roseinfer=a/b",
                                      "roseinfer=a,vllm=a",
                                      "rose=a",
                                      "roseinfer=a=b"};
    rose_server_spec s[ROSE_MAX_BACKENDS];
    uint32_t n;
    rose_err err = {""};
    if (rose_server_list_parse("roseinfer,vllm,url=my-1=http://h:9/v,llama", s, &n, &err) !=
        ROSE_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(n, 4);
    assert_true(s[0].driver == 0 && s[1].driver == 1 && s[2].driver == -1 && s[3].driver == 4);
    assert_string_equal(s[2].label, "my-1");
    assert_string_equal(s[2].url.path, "/v");
    assert_int_equal(rose_server_list_parse("roseinfer=batch-8,roseinfer=b.32", s, &n, &err),
                     ROSE_OK);
    assert_true(n == 2 && s[0].driver == 0 && s[1].driver == 0);
    assert_string_equal(s[0].label, "batch-8");
    assert_string_equal(s[1].label, "b.32");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.msg[0] = '\0';
        if (rose_server_list_parse(bad[i], s, &n, &err) != ROSE_E_INVAL || err.msg[0] == '\0')
            fail_msg("'%s' was taken", bad[i]);
    }
}

static void test_results_folder(void **state)
{
    (void)state;
    char base[] = "/tmp/rose-results-XXXXXX", dir[256], a[512], b[512], command[300];
    rose_err err = {""};
    rose_json *root = NULL;
    assert_non_null(mkdtemp(base));
    snprintf(dir, sizeof dir, "%s/x/y", base);
    assert_int_equal(rose_results_dir(dir, "t", a, sizeof a, &err), ROSE_OK);
    assert_int_equal(rose_results_dir(dir, "t", b, sizeof b, &err), ROSE_OK);
    assert_string_not_equal(a, b); /* also for two folders within one second */
    rose_json *o = rose_json_pack("{s:f}", "x", 0.125);
    assert_int_equal(rose_results_write(o, a, "r.json", &err), ROSE_OK);
    rose_json_decref(o);
    assert_int_equal(rose_results_read(&root, a, "r.json", &err), ROSE_OK);
    assert_true(rose_json_real_value(rose_json_get(root, "x")) == 0.125);
    rose_json_decref(root);
    assert_int_equal(rose_results_read(&root, a, "none.json", &err), ROSE_E_NOTFOUND);
    assert_int_equal(rose_results_dir("/proc/none", "t", a, sizeof a, &err), ROSE_E_IO);
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdict),        cmocka_unit_test(test_verdict_by_chance),
        cmocka_unit_test(test_goodput_limits), cmocka_unit_test(test_server_list),
        cmocka_unit_test(test_results_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
