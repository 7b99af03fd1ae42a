/* Bodies that change owner instead of being copied: a request's body is taken away, and a
 * reply's body is given away. Further requests follow on the same connection. */
#include "http_fixture.h"

enum { OUT_HIGH = 256 * 1024 }; /* below: copied */

/* One whole reply from the front of got: head, and n bytes of c. Returns its length. */
static size_t check_given(const char *p, size_t len, size_t n, char c)
{
    char want[64];
    const char *end = memmem(p, len, "\r\n\r\n", 4);
    assert_non_null(end);
    size_t head = (size_t)(end - p) + 4;
    snprintf(want, sizeof want, "Content-Length: %zu\r\n", n);
    assert_memory_equal(p, "HTTP/1.1 200 ", 13);
    assert_non_null(memmem(p, head, want, strlen(want)));
    assert_true(len - head >= n);
    for (size_t i = 0; i < n; i++) {
        if (p[head + i] != c) fail_msg("byte %zu of %zu is %d", i, n, p[head + i]);
    }
    return head + n;
}

/* All sizes round the border, in one burst of pipelined requests; some clients read slowly. */
static void test_given(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,       1, OUT_HIGH - 1, OUT_HIGH, OUT_HIGH + 1,
                                   5000000, 3, 5000001,      7};
    enum { N = sizeof sizes / sizeof *sizes };
    rose_http_opts o = test_opts();
    server_start(&o);
    for (int slow = 0; slow < 2; slow++) {
        rose_buf ask = {0}, got = {0};
        for (size_t i = 0; i < N; i++)
            rose_buf_addf(&ask, "GET /give?n=%zu&c=%d HTTP/1.1\r\nHost: x\r\n%s\r\n", sizes[i],
                          (int)('a' + i), i + 1 == N ? "Connection: close\r\n" : "");
        int fd = slow ? client_with_rcvbuf(4096) : client();
        say(fd, rose_buf_str(&ask));
        if (slow) usleep(100000);
        while (hear(fd, &got, got.len + 1000000) == 1) {
        }
        size_t at = 0;
        for (size_t i = 0; i < N; i++)
            at += check_given(got.data + at, got.len - at, sizes[i], (char)('a' + i));
        assert_int_equal(at, got.len);
        close(fd);
        rose_buf_free(&ask);
        rose_buf_free(&got);
    }
    wait_no_connections();
    assert_int_equal(rose_http_inflight(g_http), 0);
}

/* Longer than the idle time, but not idle: the client reads. */
static void test_given_slowly(void **state)
{
    (void)state;
    enum { SIZE = 12000000 };
    static char scratch[SIZE / 24];
    static const char ask[] = "GET /give?n=12000000 HTTP/1.1\r\nHost: x\r\n\r\n";
    size_t total = 0;
    int fd = -1;
    rose_http_opts o = test_opts();
    o.idle_timeout_ms = 150;
    server_start(&o);
    for (int i = 0; i < 10 && total < SIZE; i++) { /* again where we stood still ourselves */
        if (i > 0) close(fd);
        total = 0;
        fd = client_with_rcvbuf(4096);
        (void)say_bytes(fd, ask, sizeof ask - 1);
        for (ssize_t n; total < SIZE && (n = recv(fd, scratch, sizeof scratch, MSG_WAITALL)) > 0;) {
            total += (size_t)n;
            usleep(30000);
        }
    }
    assert_true(total >= SIZE); /* of head and body, as much as was read */
    wait_no_connections();      /* and then it is */
    close(fd);
}

static void test_given_to_nobody(void **state)
{
    (void)state;
    rose_buf got = {0};
    rose_http_opts o = test_opts();
    server_start(&o);
    int fd = client();
    say(fd, "HEAD /give?n=1000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(hear(fd, &got, 0), 0);
    assert_non_null(strstr(rose_buf_str(&got), "Content-Length: 1000000\r\n"));
    assert_memory_equal(got.data + got.len - 4, "\r\n\r\n", 4);
    close(fd);
    for (int i = 0; i < 20; i++) { /* gone before, or while, it is sent */
        fd = client_with_rcvbuf(4096);
        say(fd, "GET /give?n=9000000 HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: "
                "x\r\n\r\n");
        if (i % 2 == 0) usleep(2000);
        close(fd);
    }
    wait_no_connections();
    fd = client_with_rcvbuf(4096);
    say(fd, "GET /give?n=30000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&g_requests, 22);
    server_stop(); /* with most of it unsent */
    close(fd);
    rose_buf_free(&got);
}

static void test_taken(void **state)
{
    (void)state;
    rose_http_opts o = test_opts();
    server_start(&o);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rose_buf ask = {0}, got = {0};
        char want[96];
        uint32_t sum = 0;
        rose_buf_addf(&ask, "POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                      sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++) {
            char c = (char)(k * 7 + i);
            sum = sum * 31 + (unsigned char)c;
            rose_buf_add(&ask, &c, 1);
        }
        sum *= 31;
        /* a second request on the connection whose body was taken */
        rose_buf_addf(&ask, "POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
                            "Connection: close\r\n\r\nab");
        int fd = client();
        say_bytes(fd, ask.data, ask.len);
        assert_int_equal(hear(fd, &got, 0), 0);
        snprintf(want, sizeof want, "\r\n\r\n%zu 0 %u", sizes[i], sum);
        assert_non_null(strstr(rose_buf_str(&got), want));
        snprintf(want, sizeof want, "\r\n\r\n2 0 %u", (uint32_t)('a' * 31 + 'b') * 31);
        assert_non_null(strstr(rose_buf_str(&got), want));
        close(fd);
        rose_buf_free(&ask);
        rose_buf_free(&got);
    }
}

static int stop(void **state)
{
    (void)state;
    server_stop();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_given, stop),
        cmocka_unit_test_teardown(test_given_slowly, stop),
        cmocka_unit_test_teardown(test_given_to_nobody, stop),
        cmocka_unit_test_teardown(test_taken, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
