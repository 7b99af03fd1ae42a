/* tests/http/test_http_limits.c - limits, time-outs, clients that stall, load, drain,
 * stop. Each test runs a server of its own, with short time-outs where they are the matter; nothing
 * is checked against the clock but that a wait ends at all. */
#include <malloc.h>

#include "http_fixture.h"

static const char HELLO[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";

/* Descriptors and connections are back where they were. */
static int g_fds;

static int setup(void **state)
{
    (void)state;
    g_fds = count_fds();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (g_http != NULL) server_stop();
    return count_fds() == g_fds ? 0 : -1;
}

static void expect_refusal(int fd, int status)
{
    rose_buf b = {0};
    assert_int_equal(hear(fd, &b, 0), 0);
    const char *text = rose_buf_str(&b);
    char code[32];
    snprintf(code, sizeof code, "\"code\":%d}}", status);
    assert_int_equal(status_of(&b), status);
    assert_non_null(strstr(text, "\r\nContent-Type: application/json\r\nConnection: close\r\n"));
    assert_non_null(strstr(text, code));
    assert_int_equal(strstr(text, "\r\nRetry-After: 1\r\n") != NULL, status == 503);
    rose_buf_free(&b);
    close(fd);
}

/* ---- sizes ---- */

static void test_header_limits(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.max_header_bytes = 256;
    server_start(&o);
    char text[512];
    static const char start[] = "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ";
    for (size_t total = 255; total <= 257; total++) { /* exact to the byte */
        size_t n = (size_t)snprintf(text, sizeof text, "%s", start);
        memset(text + n, 'a', total - n - 4);
        memcpy(text + total - 4, "\r\n\r\n", 4);
        assert_int_equal(status_for(text, total), total <= 256 ? 200 : 431);
    }
    memset(text, 'a', sizeof text);
    memcpy(text, "GET /", 5);
    assert_int_equal(status_for(text, sizeof text), 414);
    server_stop();

    o = test_opts();
    server_start(&o);
    for (int n = 256; n <= 257; n++) {
        rose_buf b = {0};
        rose_buf_addf(&b, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        for (int i = 2; i < n; i++)
            rose_buf_addf(&b, "X-%d: v\r\n", i);
        rose_buf_addf(&b, "\r\n");
        assert_int_equal(status_for(b.data, b.len), n == 256 ? 200 : 431);
        rose_buf_free(&b);
    }
}

static void test_body_limits(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.max_body_bytes = 8;
    server_start(&o);
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {200, "Content-Length: 8\r\nConnection: close\r\n\r\n12345678"},
        {413, "Content-Length: 9\r\n\r\n"}, /* answered with no body sent */
        {413, "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"},
        {413, "Content-Length: 9223372036854775807\r\n\r\n"},
        {200, "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
              "4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n"},
        {413, "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n5\r\n"},
        {413, "Transfer-Encoding: chunked\r\n\r\n7fffffffffffff\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        int n = snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: x\r\n%s", cases[i].text);
        int status = status_for(text, (size_t)n);
        if (status != cases[i].status) fail_msg("%d for: %s", status, text);
    }

    /* A client that sends all of a large body before it reads still gets to see why. */
    rose_buf b = {0};
    enum { BODY = 20 << 20 };
    assert_int_equal(
        rose_buf_addf(&b, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", BODY),
        ROSE_OK);
    assert_int_equal(rose_buf_reserve(&b, BODY), ROSE_OK);
    memset(b.data + b.len, 'z', BODY);
    int fd = client();
    assert_true(say_bytes(fd, b.data, b.len + BODY));
    expect_refusal(fd, 413);
    rose_buf_free(&b);
    assert_int_equal(atomic_load(&g_requests), 2);
}

/* Bytes after the last request must not cost the client its reply (a close would reset). */
static void test_excess_input(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    server_start(&o);
    static const char *const asks[] = {
        "GET /later?ms=50 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    };
    for (int i = 0; i < 2; i++) {
        rose_buf b = {0};
        int fd = client();
        rose_buf_addf(&b, "%s", asks[i]);
        for (int k = 0; k < 2000; k++)
            rose_buf_add(&b, HELLO, sizeof HELLO - 1);
        assert_true(say_bytes(fd, b.data, b.len)); /* in one piece: some of it is there in time */
        b.len = 0;
        wait_for(&g_requests, (uint32_t)i + 1);
        usleep(150000); /* the answer lies in our socket; a reset would now throw it away */
        assert_int_equal(hear(fd, &b, 0), 0);
        assert_int_equal(status_of(&b), 200);
        rose_buf_free(&b);
        close(fd);
    }
}

static void test_trailer_and_extension_limits(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.max_header_bytes = 1024;
    server_start(&o);
    rose_buf b = {0};
    static const char head[] = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    rose_buf_addf(&b, "%s0\r\n", head);
    for (int i = 0; i < 400; i++)
        rose_buf_addf(&b, "A: b\r\n");
    assert_int_equal(status_for(b.data, b.len), 400);
    b.len = 0;
    rose_buf_addf(&b, "%s1;", head);
    for (int i = 0; i < 2000; i++)
        rose_buf_add(&b, "e", 1);
    assert_int_equal(status_for(b.data, b.len), 400);
    rose_buf_free(&b);
}

/* Each body is within its limit, all of them together are not: one is refused, the others go on. */
static void test_bodies_together(void **state)
{
    (void)state;
    enum { N = 3, PART = 40000, WHOLE = 50000 };
    static const char head[] = "POST /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                               "Content-Length: 50000\r\n\r\n";
    static char text[sizeof head + WHOLE];
    rose_http_opts o = test_opts();
    o.max_body_bytes = WHOLE;
    o.max_total_body_bytes = 100000;
    server_start(&o);
    memset(text, 'x', sizeof text);
    memcpy(text, head, sizeof head - 1);
    struct pollfd p[N];
    int n_refused = 0;
    for (int i = 0; i < N; i++) {
        p[i] = (struct pollfd){.fd = client(), .events = POLLIN};
        assert_true(say_bytes(p[i].fd, text, sizeof head - 1 + PART));
    }
    assert_true(poll(p, N, 20000) > 0);
    for (int i = 0; i < N; i++) {
        if (p[i].revents == 0) continue;
        expect_refusal(p[i].fd, 503);
        p[i].fd = -1;
        n_refused++;
    }
    assert_int_equal(n_refused, 1);
    for (int i = 0; i < N; i++) {
        rose_buf b = {0};
        if (p[i].fd < 0) continue;
        assert_true(say_bytes(p[i].fd, text + sizeof head - 1, WHOLE - PART));
        assert_int_equal(hear(p[i].fd, &b, 0), 0);
        assert_int_equal(status_of(&b), 200);
        rose_buf_free(&b);
        close(p[i].fd);
    }
    wait_no_connections();
    for (int i = 0; i < 5; i++) /* nothing stays counted */
        assert_int_equal(status_for(text, sizeof head - 1 + WHOLE), 200);
    server_stop();
    rose_err err = {""};
    o.max_total_body_bytes = WHOLE - 1;
    assert_int_equal(rose_http_start(&g_http, &o, &g_cb, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "limit for all bodies"));
}

/* Replies that nobody reads are bounded together: the one that has waited longest goes. */
static void test_replies_together(void **state)
{
    enum { N = 4, REPLY = 8 << 20, FIT = 2 };
    static const char ask[] =
        "GET /give?n=8388608 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    (void)state;
    rose_http_opts o = test_opts();
    o.max_total_pending_bytes = FIT * REPLY + REPLY / 2;
    server_start(&o);
    int fd[N];
    rose_buf got[N] = {{0}};
    for (uint32_t i = 0; i < N; i++) {
        fd[i] = client_with_rcvbuf(4096);
        say(fd[i], ask);
        assert_int_equal(hear(fd[i], &got[i], 100), 1); /* so its turn is over */
    }
    for (uint64_t left = 1; left > 0; usleep(1000))
        left = rose_http_connections(g_http) - FIT;
    assert_int_equal(rose_http_n_slow(g_http, ROSE_HTTP_SLOW_TOTAL), N - FIT);
    expect_hello();
    for (int i = 0; i < N; i++) {
        int rc = hear(fd[i], &got[i], 0);
        assert_true(i < N - FIT ? got[i].len < REPLY : rc == 0 && got[i].len > REPLY);
        close(fd[i]);
    }
    wait_no_connections();
    for (int i = 0; i < N; i++) { /* nothing stays counted, and one alone may be longer than all */
        fd[0] = client_with_rcvbuf(4096);
        got[0].len = 0;
        say(fd[0], "GET /give?n=40000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert_int_equal(hear(fd[0], &got[0], 0), 0);
        assert_true(got[0].len > 40000000);
        close(fd[0]);
        wait_no_connections();
    }
    for (int i = 0; i < N; i++)
        rose_buf_free(&got[i]);
    assert_int_equal(rose_http_n_slow(g_http, ROSE_HTTP_SLOW_TOTAL), N - FIT);
    assert_int_equal(rose_http_n_slow(g_http, ROSE_HTTP_SLOW_STALLED), 0);
    server_stop();
    rose_err err = {""};
    o.max_total_pending_bytes = o.max_pending_bytes - 1;
    assert_int_equal(rose_http_start(&g_http, &o, &g_cb, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "limit for all replies"));
}

/* ---- time ---- */

/* A machine may stand still for longer than a time-out of the server; what is served in time is
 * tried so often. A server that is at fault fails every time. */
enum { TRIES = 10 };

static void test_slow_headers(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.header_timeout_ms = 200;
    server_start(&o);
    int fd = client();
    bool answered = false;
    for (int i = 0; i < 1000 && !answered; i++) { /* a byte now and then does not extend the time */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        answered = !say_bytes(fd, i == 0 ? "G" : "E", 1) || poll(&p, 1, 10) > 0;
    }
    assert_true(answered);
    expect_refusal(fd, 408);
    /* the second request of a connection has its own time */
    rose_buf b = {0};
    for (int i = 0; i < TRIES && status_of(&b) != 200; i++) {
        if (i > 0) close(fd);
        b.len = 0;
        fd = client();
        (void)say_bytes(fd, HELLO, strlen(HELLO));
        (void)hear(fd, &b, 12);
    }
    assert_int_equal(status_of(&b), 200);
    say(fd, "POST / HTTP/1.1\r\nHost: x\r\n");
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_non_null(strstr(rose_buf_str(&b), "HTTP/1.1 408 "));
    rose_buf_free(&b);
    close(fd);
    assert_int_equal(atomic_load(&g_requests), 1);
}

static void test_slow_body(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.body_timeout_ms = 1000;
    o.body_min_rate = 2; /* one more byte allows half a second more */
    o.header_timeout_ms = 800;
    server_start(&o);
    /* Longer in all than both time-outs, no pause over the limit: served. */
    static const char head[] =
        "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
    int fd;
    rose_buf b = {0};
    for (int i = 0; i < TRIES && status_of(&b) != 200; i++) {
        b.len = 0;
        fd = client();
        (void)say_bytes(fd, head, sizeof head - 1);
        for (int k = 0; k < 10; k++) {
            usleep(110000);
            (void)say_bytes(fd, "x", 1);
        }
        (void)hear(fd, &b, 0);
        close(fd);
    }
    assert_int_equal(status_of(&b), 200);
    rose_buf_free(&b);
    fd = client();
    say(fd, "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
    expect_refusal(fd, 408);
}

/* One byte every 10 ms until the server answers: 408, and which limit it was. */
static void expect_body_cut_off(const rose_http_opts *o, bool sends, const char *why)
{
    rose_buf b = {0};
    server_start(o);
    int fd = client();
    say(fd, "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 10) == 0) {
        if (sends && !say_bytes(fd, "x", 1)) break;
    }
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_int_equal(status_of(&b), 408);
    if (strstr(rose_buf_str(&b), why) == NULL) fail_msg("'%s' is not in %s", why, b.data);
    rose_buf_free(&b);
    close(fd);
    assert_int_equal(atomic_load(&g_requests), 0);
    server_stop();
}

/* A byte now and then must not hold a connection for ever. */
static void test_body_rates(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.body_timeout_ms = 500;
    o.body_min_rate = 1000;
    expect_body_cut_off(&o, true, "slower than 1000 bytes a second (--body-min-rate)");
    o.body_min_rate = 0;
    expect_body_cut_off(&o, false, "came for 500 ms (--body-timeout-ms)");
    o.body_timeout_ms = 60000;
    o.body_total_ms = 300;
    expect_body_cut_off(&o, true, "longer than 300 ms (--body-total-timeout-ms)");
    o.body_total_ms = 0;
    rose_err err = {""};
    assert_int_equal(rose_http_start(&g_http, &o, &g_cb, &err), ROSE_E_INVAL);
}

static void test_idle(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.idle_timeout_ms = 600;
    server_start(&o);
    static const char *const asks[] = {
        HELLO, /* waiting for a reply is not idling: */
        "GET /later?ms=900 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"};
    rose_buf b = {0};
    int fresh = client();
    assert_int_equal(hear(fresh, &b, 0), 0);
    assert_int_equal(b.len, 0); /* silently */
    close(fresh);
    for (int k = 0; k < 2; k++) {
        b.len = 0;
        for (int i = 0; i < TRIES && status_of(&b) != 200; i++) {
            int fd = client();
            b.len = 0;
            (void)say_bytes(fd, asks[k], strlen(asks[k]));
            if (hear(fd, &b, 0) != 0) b.len = 0; /* its end is also awaited */
            close(fd);
        }
        assert_int_equal(status_of(&b), 200);
    }
    rose_buf_free(&b);
}

/* ---- clients that read slowly ---- */

static void test_slow_reader(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.max_pending_bytes = 64 << 10;
    server_start(&o);
    int fd = client_with_rcvbuf(4096);
    say(fd, "GET /stream?n=1000000&ms=0&size=8192 HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&g_requests, 1);
    for (int i = 0; i < 5; i++)
        expect_hello(); /* others are served meanwhile */
    wait_for(&g_gone, 1);
    assert_int_equal(atomic_load(&g_writes_refused), 1);
    wait_no_connections();
    close(fd);
    /* a burst in one turn, far over the limit, to a client that reads */
    rose_buf b = {0};
    fd = client();
    say(fd, "GET /burst?n=20000 HTTP/1.0\r\n\r\n");
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_true(b.len > 20000 * 16);
    rose_buf_free(&b);
    close(fd);
}

static void test_write_timeout(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.write_timeout_ms = 1000;
    o.max_pending_bytes = SIZE_MAX / 4;
    server_start(&o);
    int stream = client_with_rcvbuf(4096), reply = client_with_rcvbuf(4096);
    say(stream, "GET /stream?n=1000000&ms=0&size=8192 HTTP/1.1\r\nHost: x\r\n\r\n");
    say(reply, "GET /big?n=30000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&g_gone, 1); /* the stream; the reply had ended, so nobody is told */
    wait_no_connections();
    close(stream);
    close(reply);
    /* a large reply to a client that is slow but reads */
    rose_buf b = {0};
    for (int i = 0; i < TRIES && b.len <= 3000000; i++) {
        b.len = 0;
        int fd = client_with_rcvbuf(4096);
        say(fd, "GET /big?n=3000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        while (hear(fd, &b, b.len + 300000) == 1)
            usleep(20000);
        close(fd);
    }
    assert_true(b.len > 3000000);
    rose_buf_free(&b);
    assert_int_equal(atomic_load(&g_gone), 1);
}

/* ---- idle connections ---- */

/* Reads until what has come ends with `end`. */
static void exchange(int fd, const char *request, const char *end)
{
    rose_buf b = {0};
    const size_t n = strlen(end);
    say(fd, request);
    while (b.len < n || memcmp(b.data + b.len - n, end, n) != 0) {
        assert_int_equal(rose_buf_reserve(&b, 65536), ROSE_OK);
        ssize_t got = recv(fd, b.data + b.len, 65536, 0);
        assert_true(got > 0);
        b.len += (size_t)got;
    }
    rose_buf_free(&b);
}

/* A connection that waits for its next request holds little, whatever its last one took. (Under a
 * sanitizer mallinfo2 says 0, and this finds nothing.) */
static void test_idle_memory(void **state)
{
    enum { N = 100, LOOKAHEAD = 100, EACH = 14 << 10 };
    int fds[N];
    rose_buf many = {0};
    (void)state;
    rose_http_opts o = test_opts();
    server_start(&o);
    for (int i = 0; i < LOOKAHEAD; i++) /* the first holds up the others */
        rose_buf_addf(&many, "GET %s HTTP/1.1\r\nHost: x\r\nX: %0*d\r\n\r\n",
                      i == 0 ? "/later?ms=1" : "/hello", 50, i);
    rose_buf_addf(&many, "GET /echo HTTP/1.1\r\nHost: x\r\nX-Tag: last\r\n\r\n");
    const struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < N; i++) {
        fds[i] = client();
        exchange(fds[i], "GET /burst?n=8000 HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n0\r\n\r\n");
        exchange(fds[i], rose_buf_str(&many), "tag=last 0:");
        exchange(fds[i], HELLO, "hello"); /* the turn before has ended */
    }
    const struct mallinfo2 after = mallinfo2();
    assert_true(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + (size_t)N * EACH);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    rose_buf_free(&many);
}

/* ---- load ---- */

enum { STREAMS = 500, CHUNKS = 50 };

/* Reads all streams to their end with one poll loop; each must be whole and in order. */
static void read_streams(int *fds)
{
    static struct pollfd polls[STREAMS];
    static rose_buf got[STREAMS];
    rose_buf want = {0};
    int open_left = STREAMS;
    for (int i = 0; i < CHUNKS; i++)
        rose_buf_addf(&want, "%x\r\ndata: %d\n\n\r\n", i < 10 ? 9 : 10, i);
    rose_buf_addf(&want, "0\r\n\r\n");
    for (int i = 0; i < STREAMS; i++)
        polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    while (open_left > 0) {
        assert_true(poll(polls, STREAMS, 20000) > 0);
        for (int i = 0; i < STREAMS; i++) {
            char tmp[4096];
            if (polls[i].revents == 0) continue;
            ssize_t n = recv(fds[i], tmp, sizeof tmp, 0);
            assert_true(n >= 0);
            if (n > 0) assert_int_equal(rose_buf_add(&got[i], tmp, (size_t)n), ROSE_OK);
            if (n > 0) continue;
            polls[i].fd = -1;
            open_left--;
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        const char *body = strstr(rose_buf_str(&got[i]), "\r\n\r\n");
        assert_non_null(body);
        assert_string_equal(body + 4, rose_buf_str(&want));
        rose_buf_free(&got[i]);
        close(fds[i]);
    }
    rose_buf_free(&want);
}

static void test_many_streams(void **state)
{
    (void)state;
    static int fds[STREAMS];
    rose_http_opts o = test_opts();
    o.n_threads = 2;
    server_start(&o);
    for (int i = 0; i < STREAMS; i++) {
        fds[i] = client();
        say(fds[i], "GET /stream?n=50&ms=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    }
    read_streams(fds);
    assert_int_equal(atomic_load(&g_ended), STREAMS);
    assert_int_equal(atomic_load(&g_gone), 0);
    wait_no_connections();
}

static void test_drain(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    o.n_threads = 2;
    server_start(&o);
    int idle = client(), stream = client(), half = client(), late = client();
    rose_buf b = {0};
    say(idle, HELLO);
    assert_int_equal(hear(idle, &b, 10), 1);
    say(stream, "GET /stream?n=20&ms=20 HTTP/1.1\r\nHost: x\r\n\r\n");
    say(late, "GET /later?ms=300 HTTP/1.1\r\nHost: x\r\n\r\n");
    say(half, "GET /hello HT");
    wait_for(&g_requests, 3);
    /* until the half request has been read; only then is it not idle. It came before this one, to
     * the same thread */
    b.len = 0;
    say(idle, HELLO);
    assert_int_equal(hear(idle, &b, 10), 1);
    rose_http_drain(g_http);
    assert_int_equal(hear(idle, &b, 0), 0);

    b.len = 0;
    say(half, "TP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(hear(half, &b, 0), 0);
    assert_non_null(strstr(rose_buf_str(&b), "\r\nConnection: close\r\n"));
    b.len = 0;
    assert_int_equal(hear(late, &b, 0), 0);
    assert_non_null(strstr(rose_buf_str(&b), "late"));
    b.len = 0;
    assert_int_equal(hear(stream, &b, 0), 0);
    assert_non_null(strstr(rose_buf_str(&b), "data: 19\n\n\r\n0\r\n\r\n"));
    rose_buf_free(&b);
    wait_no_connections();

    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(rose_http_port(g_http))};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    close(idle);
    close(stream);
    close(half);
    close(late);
}

typedef struct bother_arg {
    struct sockaddr_in sa;
    _Atomic bool end;
} bother_arg;

/* Clients that come, ask and go, also while the server ends. */
static void *bother(void *arg)
{
    bother_arg *a = arg;
    static const char ask[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                              "GET /stream?n=5 HTTP/1.1\r\nHost: x\r\n\r\n"
                              "GET /later?ms=3 HTTP/1.1\r\nHost: x\r\n\r\n";
    for (uint32_t i = 0; !atomic_load(&a->end); i++) {
        char tmp[512];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a->sa, sizeof a->sa) == 0) {
            (void)say_bytes(fd, ask, sizeof ask - 1);
            if (i % 3 != 0) (void)recv(fd, tmp, sizeof tmp, i % 3 == 1 ? 0 : MSG_DONTWAIT);
        }
        close(fd);
    }
    return NULL;
}

static void stop_under_load(bool drain_first)
{
    enum { N = 8 };
    pthread_t threads[2];
    rose_http_opts o = test_opts();
    o.n_threads = 3;
    server_start(&o);
    bother_arg arg = {.sa = {.sin_family = AF_INET, .sin_port = htons(rose_http_port(g_http))}};
    arg.sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int streams[N];
    for (int i = 0; i < N; i++) {
        streams[i] = client();
        say(streams[i], "GET /stream?n=1000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    wait_for(&g_requests, N);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, bother, &arg), 0);
    usleep(100000);
    if (drain_first) {
        rose_http_drain(g_http);
        usleep(20000);
    }
    assert_true(rose_http_inflight(g_http) >= N);
    rose_http_stop(g_http); /* the script's last posts still see g_http */
    g_http = NULL;
    atomic_store(&arg.end, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_true(atomic_load(&g_gone) >= N);
    /* each request was given back in one way, so ASAN finds no script left */
    for (int i = 0; i < N; i++)
        close(streams[i]);
}

static void test_stop_under_load(void **state)
{
    (void)state;
    stop_under_load(false);
    stop_under_load(true);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_header_limits),   TEST(test_body_limits),
        TEST(test_excess_input),    TEST(test_trailer_and_extension_limits),
        TEST(test_bodies_together), TEST(test_replies_together),
        TEST(test_slow_headers),    TEST(test_slow_body),
        TEST(test_body_rates),      TEST(test_idle),
        TEST(test_slow_reader),     TEST(test_write_timeout),
        TEST(test_idle_memory),     TEST(test_many_streams),
        TEST(test_drain),           TEST(test_stop_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
