/* Visits against a scripted server, with every way in which one can end. Also tests the
 * percentiles, the fitted line and the parser of /metrics. */
#include "bench/bench_fixture.h"

#include "base/clock.h"
#include "load/abuse_internal.h"
#include "load/soak_internal.h"

static rose_visit last; /* bytes and body are not valid here */
static char last_body[256];
static uint32_t n_done, n_gaps;

static void on_done(void *user, const rose_visit *v)
{
    (void)user;
    last = *v;
    snprintf(last_body, sizeof last_body, "%.*s", (int)v->body.len,
             v->body.data != NULL ? v->body.data : "");
    n_done++;
}

static void on_gap(void *user, const rose_visit *v, uint64_t from_ns, uint64_t to_ns,
                   const char *piece, size_t n)
{
    (void)user, (void)v;
    assert_true(from_ns <= to_ns);
    assert_true(n == 9 && memcmp(piece, "data: 1\n\n", 9) == 0);
    n_gaps++;
}

static rose_visitors *open_visitors(const scripted *s, uint32_t max, uint32_t timeout_ms)
{
    const rose_visitors_opts o = {
        .url = &s->url, .max = max, .timeout_ms = timeout_ms, .done = on_done, .on_gap = on_gap};
    rose_visitors *v = NULL;
    rose_err err = {{0}};
    n_done = n_gaps = 0;
    assert_int_equal(rose_visitors_create(&v, &o, &err), ROSE_OK);
    return v;
}

static void turn_until(rose_visitors *v, uint32_t n)
{
    const uint64_t end = rose_now_ns() + UINT64_C(20000000000);
    while (n_done < n && rose_now_ns() < end)
        assert_int_equal(rose_visitors_turn(v, rose_now_ns() + 50000000), ROSE_OK);
    assert_int_equal(n_done, n);
}

static void visit(rose_visitors *v, rose_visit_plan p, const char *bytes)
{
    const uint32_t n = n_done;
    assert_int_equal(rose_buf_add(&p.bytes, bytes, strlen(bytes)), ROSE_OK);
    assert_int_equal(rose_visitors_start(v, &p), ROSE_OK);
    turn_until(v, n + 1);
    assert_int_equal(rose_visitors_n_active(v), 0);
}

static const char get[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
static const char two[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";

static bool say_ok(int fd, uint32_t request)
{
    (void)request;
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
}

static void test_replied_and_kept(void **state)
{
    (void)state;
    scripted s;
    scripted_start(&s, say_ok);
    rose_visitors *v = open_visitors(&s, 4, 10000);
    for (int i = 0; i < 5; i++) {
        visit(v, (rose_visit_plan){.keep_body = true}, get);
        assert_int_equal(last.end, ROSE_VISIT_REPLIED);
        assert_int_equal(last.status[0], 200);
        assert_string_equal(last_body, "hi");
        assert_true(last.start_ns <= last.first_ns && last.first_ns <= last.end_ns);
    }
    assert_int_equal(s.n_connections, 1); /* the connection was kept and used again */
    rose_visitors_drop_kept(v);
    visit(v, (rose_visit_plan){.fresh = true}, get);
    assert_int_equal(s.n_connections, 2);
    rose_visitors_destroy(v);
    scripted_stop(&s);
}

static bool refuse_then_close(int fd, uint32_t request)
{
    if (request % 2 == 1) return false; /* the server hangs up on a kept connection */
    return say(fd, "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: "
                   "11\r\n\r\n{\"error\":{}}");
}

static void test_kept_connection_that_closed(void **state)
{
    (void)state;
    scripted s;
    scripted_start(&s, refuse_then_close);
    rose_visitors *v = open_visitors(&s, 4, 10000);
    /* from the second request on, the server closes without a byte; the client tries once more */
    for (int i = 0; i < 4; i++) {
        visit(v, (rose_visit_plan){0}, get);
        assert_int_equal(last.end, ROSE_VISIT_REPLIED);
        assert_int_equal(last.status[0], 429);
        assert_true(last.retry_after);
        assert_true(last.has_error);
    }
    rose_visitors_destroy(v);
    scripted_stop(&s);
}

static bool say_stream(int fd, uint32_t request)
{
    (void)request;
    if (!say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")) return false;
    for (int i = 0; i < 5; i++) {
        if (!say(fd, "9\r\ndata: 1\n\n\r\n")) return false;
        usleep(2000);
    }
    return say(fd, "0\r\n\r\n");
}

static void test_stream(void **state)
{
    (void)state;
    scripted s;
    scripted_start(&s, say_stream);
    rose_visitors *v = open_visitors(&s, 4, 10000);
    visit(v, (rose_visit_plan){.fresh = true, .watch_gaps = true}, get);
    assert_int_equal(last.end, ROSE_VISIT_REPLIED);
    assert_int_equal(last.n_events, 5);
    assert_int_equal(n_gaps, 4);
    visit(v, (rose_visit_plan){.fresh = true, .leave_bytes = 60, .reset = true}, get);
    assert_int_equal(last.end, ROSE_VISIT_LEFT);
    assert_int_equal(n_gaps, 4); /* not watched */
    visit(v, (rose_visit_plan){.receive_buffer_bytes = 4096, .sip_bytes = 10, .sip_ms = 1}, get);
    assert_int_equal(last.end, ROSE_VISIT_REPLIED);
    assert_int_equal(last.n_events, 5);
    rose_visitors_destroy(v);
    scripted_stop(&s);
}

static bool say_two(int fd, uint32_t request)
{
    (void)request; /* the fixture reads both requests as one */
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 404 Not "
                   "Found\r\nContent-Length: 0\r\n\r\n");
}

static void test_pipelined(void **state)
{
    (void)state;
    scripted s;
    scripted_start(&s, say_two);
    rose_visitors *v = open_visitors(&s, 4, 10000);
    visit(v, (rose_visit_plan){.n_replies = 2}, two);
    assert_int_equal(last.end, ROSE_VISIT_REPLIED);
    assert_int_equal(last.n_replies, 2);
    assert_int_equal(last.status[0], 200);
    assert_int_equal(last.status[1], 404);
    rose_visitors_destroy(v);
    scripted_stop(&s);
}

static bool hang_up_at_once(int fd, uint32_t request)
{
    (void)fd, (void)request;
    return false;
}

static bool say_garbage(int fd, uint32_t request)
{
    (void)request;
    return say(fd, "no HTTP at all\r\n\r\n");
}

static bool say_nothing(int fd, uint32_t request)
{
    (void)fd, (void)request;
    return true;
}

static void test_bad_ends(void **state)
{
    (void)state;
    const struct {
        script_fn *script;
        rose_visit_plan plan;
        rose_visit_end end;
    } all[] = {
        {hang_up_at_once, {.fresh = true}, ROSE_VISIT_CLOSED},
        {say_garbage, {.fresh = true}, ROSE_VISIT_GARBLED},
        {say_nothing, {.fresh = true}, ROSE_VISIT_TIMEOUT},
        {say_nothing, {.fresh = true, .leave_ms = 5}, ROSE_VISIT_LEFT},
        {say_nothing, {.fresh = true, .n_send = 3, .leave_ms = 5, .reset = true}, ROSE_VISIT_LEFT},
        {say_ok, {.deaf = true, .fresh = true, .leave_ms = 30}, ROSE_VISIT_LEFT},
        {say_ok, {.fresh = true, .drip_bytes = 5, .drip_ms = 1}, ROSE_VISIT_REPLIED},
        {say_ok, {.fresh = true, .half_close = true}, ROSE_VISIT_REPLIED},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        scripted s;
        scripted_start(&s, all[i].script);
        rose_visitors *v = open_visitors(&s, 2, 300);
        visit(v, all[i].plan, get);
        assert_int_equal(last.end, all[i].end);
        rose_visitors_destroy(v);
        scripted_stop(&s);
    }
}

static void test_refused_and_full(void **state)
{
    (void)state;
    scripted s;
    scripted_start(&s, say_nothing);
    rose_visitors *v = open_visitors(&s, 1, 60000);
    rose_visit_plan p = {0};
    rose_buf_add(&p.bytes, get, sizeof get - 1);
    assert_int_equal(rose_visitors_start(v, &p), ROSE_OK);
    assert_null(p.bytes.data); /* the visitors own the bytes now */
    rose_buf_add(&p.bytes, get, sizeof get - 1);
    assert_int_equal(rose_visitors_start(v, &p), ROSE_E_FULL);
    assert_null(p.bytes.data);
    rose_visitors_destroy(v); /* one visit is under way */
    scripted_stop(&s);
    v = open_visitors(&s, 1, 60000); /* nobody listens there any more */
    visit(v, (rose_visit_plan){0}, get);
    assert_int_equal(last.end, ROSE_VISIT_REFUSED);
    rose_visitors_destroy(v);
    rose_visitors_destroy(NULL);
}

/* ---- abuse: the same seed, the same events ---- */

static void test_abuse_requests(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    const rose_abuse_env e = {.url = {.host = "127.0.0.1", .port = "1"},
                              .model = "m",
                              .context = 128,
                              .vocab = 1000,
                              .max_body = 65536,
                              .timeout_ms = 400};
    uint32_t seen[64] = {0}, differ = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        rose_visit_plan a, b, c;
        assert_int_equal(rose_abuse_make(&e, seed, i, &a), ROSE_OK);
        assert_int_equal(rose_abuse_make(&e, seed, i, &b), ROSE_OK);
        assert_int_equal(rose_abuse_make(&e, seed + 1, i, &c), ROSE_OK);
        assert_true(a.bytes.len > 0 && a.n_replies <= ROSE_VISIT_MAX_REPLIES);
        assert_int_equal(a.kind, b.kind);
        assert_int_equal(a.bytes.len, b.bytes.len);
        assert_memory_equal(a.bytes.data, b.bytes.data, a.bytes.len);
        differ += a.bytes.len != c.bytes.len;
        seen[a.kind]++;
        rose_buf_free(&a.bytes);
        rose_buf_free(&b.bytes);
        rose_buf_free(&c.bytes);
    }
    assert_true(differ > 1000);
    for (uint32_t k = 0; k < rose_abuse_n_kinds; k++)
        assert_true(seen[k] > 0);
}

static void test_abuse_right(void **state)
{
    (void)state;
    rose_visit v = {.end = ROSE_VISIT_REPLIED, .status = {200}, .n_replies = 1};
    assert_string_equal(rose_abuse_kinds[0].name, "plain");
    assert_true(rose_abuse_right(&v));
    v.status[0] = 500;
    assert_false(rose_abuse_right(&v));
    v.status[0] = 429;
    assert_true(rose_abuse_right(&v));
    v.status[0] = 200;
    v.has_error = true; /* an error within the stream */
    assert_false(rose_abuse_right(&v));
    v.has_error = false;
    v.end = ROSE_VISIT_CLOSED;
    assert_false(rose_abuse_right(&v));
    v.end = ROSE_VISIT_TIMEOUT;
    for (uint32_t k = 0; k < rose_abuse_n_kinds; k++) {
        v.plan.kind = (int)k;
        assert_false(rose_abuse_right(&v));
    }
}

/* ---- figures ---- */

static void test_spread(void **state)
{
    (void)state;
    static rose_spread s;
    rose_random r = {.seed = test_seed()};
    static double v[20000];
    for (size_t i = 0; i < 20000; i++) {
        v[i] = floor(pow(10, 1 + 8 * rose_random_uniform(&r)));
        rose_spread_add(&s, (uint64_t)v[i]);
    }
    rose_sort_f64(v, 20000);
    assert_int_equal(s.n, 20000);
    assert_true((double)s.min == v[0] && (double)s.max == v[19999]);
    for (double p = 0; p <= 100; p += 0.5) {
        double want = v[(size_t)(p / 100 * 19999)], got = (double)rose_spread_percentile(&s, p);
        assert_true(fabs(got - want) <= 0.022 * want + 1);
    }
    static rose_spread edge;
    assert_int_equal(rose_spread_percentile(&edge, 50), 0);
    rose_spread_add(&edge, 0);
    assert_int_equal(rose_spread_percentile(&edge, 50), 0);
    rose_spread_add(&edge, UINT64_MAX);
    assert_int_equal(edge.max, UINT64_MAX);
}

static void test_fit_slope(void **state)
{
    (void)state;
    const double x[] = {0, 1, 2, 3}, y[] = {5, 7, 9, 11}, flat[] = {3, 3, 3, 3};
    assert_true(fabs(rose_fit_slope(x, y, 4) - 2) < 1e-12);
    assert_true(fabs(rose_fit_slope(x, flat, 4)) < 1e-12);
    assert_true(rose_fit_slope(x, y, 1) == 0);
    assert_true(rose_fit_slope(flat, y, 4) == 0);
    assert_true(rose_fit_slope(x, y, 0) == 0);
}

static void test_metrics(void **state)
{
    (void)state;
    static const char text[] = "# HELP roseinfer:kv_pages x\nroseinfer:kv_pages{engine=\"0\"} 12\n"
                               "roseinfer:kv_pages{engine=\"1\"} 30\nroseinfer:kv_pages_free 7\n"
                               "process_open_fds 13";
    const size_t n = sizeof text - 1;
    assert_true(rose_watch_metric(text, n, "roseinfer:kv_pages") == 42);
    assert_true(rose_watch_metric(text, n, "roseinfer:kv") == 0);
    assert_true(rose_watch_metric(text, n, "process_open_fds") == 13);
    assert_true(rose_watch_metric("", 0, "x") == 0);
    /* A line that ends before its value, in memory that ends with it. */
    static const char cut[] = "roseinfer:kv_pages{engine=";
    char *copy = malloc(sizeof cut - 1);
    assert_non_null(copy);
    memcpy(copy, cut, sizeof cut - 1);
    assert_true(rose_watch_metric(copy, sizeof cut - 1, "roseinfer:kv_pages") == 0);
    free(copy);
    rose_watch w = {0};
    rose_watch_parse(&w, text, n);
    assert_true(w.kv_pages == 42 && w.kv_pages_free == 7 && w.open_fds == 13);
    rose_watch_process(&w, getpid());
    assert_true((double)rose_watch_peak_bytes(getpid()) >= w.resident_bytes);
    assert_int_equal(rose_watch_peak_bytes(0), 0); /* there is no such process */
    assert_true(w.resident_bytes > 100000 && w.open_fds >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replied_and_kept), cmocka_unit_test(test_kept_connection_that_closed),
        cmocka_unit_test(test_stream),           cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_bad_ends),         cmocka_unit_test(test_refused_and_full),
        cmocka_unit_test(test_abuse_requests),   cmocka_unit_test(test_abuse_right),
        cmocka_unit_test(test_spread),           cmocka_unit_test(test_fit_slope),
        cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
