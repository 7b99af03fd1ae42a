/* tests/http/test_oom.c - out of memory at the Nth allocation of the server, for every N, once and
 * from then on: start fails cleanly, a client gets a right answer, a 503 or a closed connection,
 * the server serves the next one, nothing leaks. And a stream in its steady state allocates
 * nothing. Replaces the process's allocator, so builds that bring their own skip it. */
#include "failing_alloc.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

#include "http_fixture.h"

static void test_start(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.n_threads = 2;
    server_start(&o); /* what libc and libevent keep for ever comes now */
    server_stop();
    long before = atomic_load(&falloc.live);
    int fds = count_fds();
    rose_log_set_level(ROSE_LOG_OFF);
    bool failed = true;
    long n = 1;
    for (; failed; n++) {
        rose_err err = {""};
        rose_http *h = NULL;
        falloc_arm(n, false);
        rose_status st = rose_http_start(&h, &o, &g_cb, &err);
        failed = falloc_disarm();
        if (st == ROSE_OK) {
            rose_http_stop(h);
        } else {
            assert_null(h);
            assert_true(err.msg[0] != '\0');
        }
        assert_int_equal(count_fds(), fds);
    }
    rose_log_set_level(ROSE_LOG_INFO);
    assert_true(n > 10);
    assert_int_equal(atomic_load(&falloc.live), before);
}

/* One of everything; each answer must be whole and right, or missing from some point on. */
static void dialogue(void)
{
    static const char ask[] =
        "POST /stream?n=3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n0\r\n\r\n"
        "GET /big?n=70000 HTTP/1.1\r\nHost: x\r\n\r\n"
        "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    rose_buf b = {0};
    int fd = client();
    (void)say_bytes(fd, ask, sizeof ask - 1);
    (void)hear(fd, &b, 0);
    if (b.len > 0) {
        int status = status_of(&b);
        assert_true(status == 200 || status == 503);
    }
    rose_buf_free(&b);
    close(fd);
}

static void test_dialogue(void **state)
{
    (void)state;
    falloc_exempt = true;
    rose_log_set_level(ROSE_LOG_OFF);
    for (int persistent = 0; persistent < 2; persistent++) {
        bool failed = true;
        long n = 1;
        for (; failed && n < 1000; n++) {
            rose_http_opts o = test_opts();
            server_start(&o);
            expect_hello();
            int fds = count_fds();
            falloc_arm(n, persistent != 0);
            dialogue();
            failed = falloc_disarm();
            expect_hello();
            wait_no_connections();
            assert_int_equal(count_fds(), fds);
            server_stop();
        }
        assert_true(n > 8 && n < 1000);
    }
    long before = atomic_load(&falloc.live);
    rose_http_opts o = test_opts();
    server_start(&o);
    falloc_arm(3, false);
    dialogue();
    falloc_disarm();
    server_stop();
    assert_int_equal(atomic_load(&falloc.live), before);
    rose_log_set_level(ROSE_LOG_INFO);
    falloc_exempt = false;
}

/* ---- a steady stream ---- */

static rose_http_req *g_stream;

static void keep_stream(void *arg, rose_http_req *r)
{
    (void)arg;
    g_stream = r;
    rose_http_stream_begin(r, 200, "text/event-stream", NULL);
    atomic_fetch_add(&g_requests, 1);
}

static void drop_stream(void *arg, rose_http_req *r)
{
    (void)arg;
    (void)r;
}

static void write_event(void *arg)
{
    char event[200];
    memset(event, 'e', sizeof event);
    if (!rose_http_stream_write(g_stream, event, sizeof event)) abort();
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

static void test_steady_stream(void **state)
{
    enum { WARM = 50, EVENTS = 1000, BYTES = 200 + 6 };
    static const rose_http_callbacks cb = {.on_request = keep_stream, .on_gone = drop_stream};
    _Atomic uint32_t written = 0;
    rose_http_opts o = test_opts();
    rose_buf b = {0};
    (void)state;
    falloc_exempt = true;
    atomic_store(&g_requests, 0);
    assert_int_equal(rose_http_start(&g_http, &o, &cb, NULL), ROSE_OK);
    int fd = client();
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&g_requests, 1);
    assert_int_equal(rose_buf_reserve(&b, (WARM + EVENTS + 10) * BYTES), ROSE_OK);
    while (b.len < 4 || memcmp(b.data + b.len - 4, "\r\n\r\n", 4) != 0)
        assert_int_equal(hear(fd, &b, b.len + 1), 1);
    for (uint32_t i = 0; i < WARM + EVENTS; i++) {
        if (i == WARM) falloc_arm(LONG_MAX, false);
        size_t before = b.len;
        assert_int_equal(rose_http_post(g_http, 0, write_event, &written), ROSE_OK);
        assert_int_equal(hear(fd, &b, before + BYTES), 1);
    }
    falloc_disarm();
    assert_int_equal(atomic_load(&falloc.count), 0);
    close(fd);
    server_stop();
    rose_buf_free(&b);
    falloc_exempt = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_dialogue),
        cmocka_unit_test(test_steady_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}

#endif
