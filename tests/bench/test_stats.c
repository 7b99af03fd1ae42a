/* Percentiles, means and deviations against numpy 2 (np.percentile, np.std(ddof=1)); moments of the
 * random numbers. */
#include "bench/bench_fixture.h"

#include "bench/stats.h"
#include "bench/workload.h"

static const double ps[8] = {0, 1, 37.5, 50, 90, 95, 99, 100};
static const struct {
    size_t n;
    double v[23], p[8], mean, sd;
} golden[] = {
    {1, {3.5}, {3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5}, 3.5, 0},
    {2,
     {2.0, -1.0},
     {-1.0, -0.97, 0.125, 0.5, 1.7000000000000002, 1.8499999999999999, 1.97, 2.0},
     0.5,
     2.1213203435596424},
    {6,
     {1.0, 1.0, 1.0, 2.0, 2.0, 9.0},
     {1.0, 1.0, 1.0, 1.5, 5.5, 7.25, 8.650000000000002, 9.0},
     2.6666666666666665,
     3.141125063837266},
    {23,
     {0.300323, 0.137169,  0.68898,  1.878865, 5.496271, 1.178874,  0.436498, 0.308149,
      3.074427, 11.613574, 1.505542, 0.157238, 0.237545, 11.023492, 1.355708, 0.074407,
      0.882017, 0.174673,  0.389095, 0.480942, 0.343019, 2.293474,  0.90971},
     {0.074407, 0.08821464000000001, 0.40094575, 0.68898, 5.0119022000000015, 10.470769899999992,
      11.48375596, 11.613574},
     1.953912695652173,
     3.2024247182741283},
};

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.17g, expected %.17g", got, want);
}

static void test_numpy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        double v[23];
        memcpy(v, golden[i].v, sizeof v);
        const rose_summary s = rose_summarise(v, golden[i].n);
        for (int k = 0; k < 8; k++)
            near(rose_percentile(v, golden[i].n, ps[k]), golden[i].p[k], 1e-12);
        near(s.mean, golden[i].mean, 1e-12);
        near(s.sd, golden[i].sd, 1e-12);
        near(s.p90, golden[i].p[4], 1e-12);
        near(s.p95, golden[i].p[5], 1e-12);
        near(s.max, golden[i].p[7], 0);
        assert_int_equal(s.n, golden[i].n);
    }
}

/* Gaps are pooled over the tokens of all good replies. The expected percentiles are numpy's:
 * np.percentile over np.diff of the arrivals of each reply, each as often as the event has
 * tokens. */
static void test_run_numpy(void **state)
{
    (void)state;
    enum { N = 5, MOST = 5 };
    static const struct {
        uint32_t us, n_tokens;
    } events[N][MOST] = {{{900, 1}, {1100, 1}, {1350, 3}, {1351, 1}, {9000, 2}},
                         {{400, 2}, {700, 1}},
                         {{5000, 1}},
                         {{10, 1}, {90000, 1}}, /* a failed reply does not count */
                         {{800, 1}, {820, 4}, {2500, 1}, {2777, 1}, {4004, 1}}};
    rose_arrival arrivals[N][MOST];
    rose_reply replies[N] = {{0}};
    rose_load_trace_row rows[N] = {{0}};
    const rose_load_trace trace = {.rows = rows, .n = N};
    const rose_run run = {.trace = &trace, .replies = replies, .n = N, .start_ns = 1000000};
    rose_run_stats s;
    for (uint32_t i = 0; i < N; i++) {
        rose_reply *r = &replies[i];
        r->due_ns = r->start_ns = run.start_ns + i * 12345678;
        r->arrivals = arrivals[i];
        r->counted = true;
        for (; r->n_events < MOST && events[i][r->n_events].n_tokens > 0; r->n_events++) {
            const uint64_t at = r->start_ns + events[i][r->n_events].us * UINT64_C(1000);
            arrivals[i][r->n_events] =
                (rose_arrival){.t_ns = at, .n_tokens = events[i][r->n_events].n_tokens};
            r->n_tokens += events[i][r->n_events].n_tokens;
            r->last_ns = r->end_ns = at;
        }
        r->first_ns = arrivals[i][0].t_ns;
    }
    snprintf(replies[3].error, sizeof replies[3].error, "gone");
    assert_int_equal(rose_run_stats_make(&run, &s), ROSE_OK);
    assert_int_equal(s.itl.n, 16);
    near(s.itl.p50, 1.0500000000000093e-05, 1e-15);
    near(s.itl.p90, 0.0014535, 1e-15);
    near(s.itl.p95, 0.0031722499999999997, 1e-15);
    near(s.itl.p99, 0.006753649999999997, 1e-15);
    near(s.itl.mean, 0.0007252500000000001, 1e-15);
    near(s.itl.max, 0.0076489999999999995, 1e-15);
    near(s.itl_cdf[75], 0.0002827499999999999, 1e-15);
    near(s.tpot.p50, 0.0004577142857142857, 1e-15);
    near(s.tpot.p90, 0.0010172571428571427, 1e-15);
    near(s.tpot.p99, 0.0011431542857142855, 1e-15);
    near(s.ttft.p90, 0.0037700000000000008, 1e-15);
    near(s.ttft.p99, 0.004876999999999999, 1e-15);
}

static void test_text(void **state)
{
    (void)state;
    double v[2] = {0.0015, 0.0005};
    char text[ROSE_SUMMARY_TEXT];
    const rose_summary none = rose_summarise(NULL, 0), two = rose_summarise(v, 2);
    assert_string_equal(rose_summary_text(&none, 1e3, text), "-");
    assert_string_equal(rose_summary_text(&two, 1e3, text), "1.00/1.40/1.49");
    assert_string_equal(rose_summary_text(&two, 1e4, text), "10.0/14.0/14.9");
    assert_string_equal(rose_summary_text(&two, 1e7, text), "10000/14000/14900");
    assert_string_equal(rose_summary_text(&two, 1e2, text), "0.100/0.140/0.149");
}

static void test_empty(void **state)
{
    (void)state;
    const rose_summary s = rose_summarise(NULL, 0);
    assert_true(isnan(s.p50) && isnan(s.mean) && isnan(rose_percentile(NULL, 0, 50)));
    rose_json *j = rose_summary_json(&s, 1e3);
    assert_true(rose_json_is_null(rose_json_get(j, "p99")));
    assert_int_equal(rose_json_int(rose_json_get(j, "n")), 0);
    rose_json_decref(j);
}

static void test_samples_grow(void **state)
{
    (void)state;
    rose_samples s = {0};
    for (int i = 0; i < 100000; i++)
        assert_int_equal(rose_samples_add(&s, 99999 - i), ROSE_OK);
    rose_sort_f64(s.v, s.n);
    for (int i = 0; i < 100000; i++)
        assert_true(s.v[i] == i);
    rose_samples_free(&s);
    assert_null(s.v);
}

/* Mean and variance are within 5 standard errors of the theory. */
static void check_moments(const char *what, double (*draw)(rose_random *), double mean, double var,
                          double kurtosis)
{
    enum { N = 200000 };
    rose_random r = {test_seed(), 7, 0};
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        double x = draw(&r);
        sum += x;
        squares += (x - mean) * (x - mean);
    }
    if (fabs(sum / N - mean) > 5 * sqrt(var / N)) fail_msg("%s: mean %g", what, sum / N);
    if (fabs(squares / N - var) > 5 * sqrt((kurtosis - 1) * var * var / N))
        fail_msg("%s: variance %g", what, squares / N);
}

static double gamma_half(rose_random *r)
{
    return rose_random_gamma(r, 0.5);
}

static double gamma_four(rose_random *r)
{
    return rose_random_gamma(r, 4);
}

static void test_moments(void **state)
{
    (void)state;
    check_moments("uniform", rose_random_uniform, 0.5, 1.0 / 12, 1.8);
    check_moments("normal", rose_random_normal, 0, 1, 3);
    check_moments("exp", rose_random_exp, 1, 1, 9);
    check_moments("gamma 0.5", gamma_half, 0.5, 0.5, 15);
    check_moments("gamma 4", gamma_four, 4, 4, 4.5);
}

static void test_streams_differ(void **state)
{
    (void)state;
    rose_random a = {1, 1, 0}, b = {1, 2, 0}, c = {2, 1, 0}, again = {1, 1, 0};
    int same_b = 0, same_c = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t x = rose_random_u32(&a);
        assert_int_equal(x, rose_random_u32(&again));
        same_b += x == rose_random_u32(&b);
        same_c += x == rose_random_u32(&c);
    }
    assert_int_equal(same_b + same_c, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numpy),          cmocka_unit_test(test_run_numpy),
        cmocka_unit_test(test_text),           cmocka_unit_test(test_empty),
        cmocka_unit_test(test_samples_grow),   cmocka_unit_test(test_moments),
        cmocka_unit_test(test_streams_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
