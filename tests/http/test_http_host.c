/* tests/http/test_http_host.c - which Host headers are accepted, and where. */
#include "http_fixture.h"

static int teardown(void **state)
{
    (void)state;
    if (g_http != NULL) server_stop();
    return 0;
}

static void start(const char *host, const char *allowed)
{
    rose_http_opts o = test_opts();
    o.host = host;
    o.allowed_hosts = (rose_opt_list){0};
    if (allowed != NULL) assert_true(rose_opt_list_add(&o.allowed_hosts, allowed));
    server_start(&o);
}

/* The reply to a request of this target with this Host; NULL = without the header. */
static void ask(rose_buf *out, const char *target, const char *host, int minor)
{
    rose_buf b = {0};
    rose_buf_addf(&b, "GET %s HTTP/1.%d\r\nConnection: close\r\n", target, minor);
    if (host != NULL) rose_buf_addf(&b, "Host: %s\r\n", host);
    rose_buf_addf(&b, "\r\n");
    int fd = client();
    assert_true(say_bytes(fd, b.data, b.len));
    assert_int_equal(hear(fd, out, 0), 0);
    rose_buf_free(&b);
    close(fd);
}

static void expect(int status, const char *host)
{
    rose_buf b = {0};
    ask(&b, "/hello", host, 1);
    if (status_of(&b) != status) fail_msg("not %d for '%s': %s", status, host, rose_buf_str(&b));
    rose_buf_free(&b);
}

static const char *const ours[] = {"localhost",
                                   "LocalHost",
                                   "localhost:1",
                                   "localhost.",
                                   "localhost.:8888",
                                   "127.0.0.1",
                                   "127.0.0.1:8",
                                   "127.1.2.3",
                                   "127.255.255.254:80",
                                   "[::1]",
                                   "[::1]:8888",
                                   "[0:0:0:0:0:0:0:1]",
                                   "",
                                   "[::ffff:127.0.0.1]"};
static const char *const others[] = {"evil.example",
                                     "evil.example:80",
                                     "localhost.evil.example",
                                     "evil-localhost",
                                     "xlocalhost",
                                     "127.0.0.1.evil.example",
                                     "128.0.0.1",
                                     "127.0.0.1x",
                                     "127.1",
                                     "10.0.0.1",
                                     "[::2]",
                                     "[::1",
                                     "[::1]x",
                                     "::1]",
                                     "localhost:80x",
                                     "localhost, evil.example",
                                     "user@localhost",
                                     "*",
                                     ":80",
                                     ".",
                                     "-"};

static void test_loopback(void **state)
{
    (void)state;
    start("127.0.0.1", NULL);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        expect(200, ours[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect(403, others[i]);
    rose_buf b = {0};
    ask(&b, "/hello", NULL, 0); /* HTTP/1.0 has no Host */
    assert_int_equal(status_of(&b), 200);
    b.len = 0;
    ask(&b, "/hello", "evil.example:80", 1); /* says what to do; and the connection ends */
    assert_non_null(strstr(rose_buf_str(&b), "the host 'evil.example:80' is not a name of this "
                                             "server; to allow it, start the server with "
                                             "--allowed-hosts evil.example:80\""));
    assert_non_null(strstr(rose_buf_str(&b), "\r\nConnection: close\r\n"));
    rose_buf_free(&b);
    assert_int_equal(atomic_load(&g_requests), sizeof ours / sizeof *ours + 1);
}

/* An absolute URI names the host; the header is then no matter. */
static void test_absolute(void **state)
{
    static const struct {
        int status;
        const char *target, *host;
    } cases[] = {
        {200, "http://localhost/hello", "localhost"},
        {200, "http://localhost:8888/hello", "evil.example"},
        {200, "http://[::1]:8888/hello", "evil.example"},
        {403, "http://evil.example/hello", "localhost"},
        {403, "http://evil.example:80/hello", "localhost"},
        {403, "http://localhost@evil.example/hello", "localhost"},
        {403, "http://[::2]/hello", "localhost"},
    };
    (void)state;
    start("127.0.0.1", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_buf b = {0};
        ask(&b, cases[i].target, cases[i].host, 1);
        if (status_of(&b) != cases[i].status)
            fail_msg("not %d for %s: %s", cases[i].status, cases[i].target, rose_buf_str(&b));
        rose_buf_free(&b);
    }
}

static void test_allowed(void **state)
{
    (void)state;
    start("127.0.0.1", "a.example,B.example:443,[fe80::1]");
    expect(200, "a.example");
    expect(200, "A.EXAMPLE:8080");
    expect(200, "b.example");
    expect(200, "[fe80::1]:1");
    expect(200, "localhost");
    expect(403, "c.example");
    expect(403, "x.a.example");
    expect(403, "a.example,");
    server_stop();
    start("127.0.0.1", "a.example,*");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect(200, others[i]);
    server_stop();
    start("localhost", NULL);
    expect(200, "localhost");
    expect(403, "evil.example");
}

/* On all addresses the names are unknown: no check, unless they are given. Then those of this
 * machine and the address that the client has reached still count. */
static void test_any_address(void **state)
{
    (void)state;
    start("0.0.0.0", NULL);
    expect(200, "evil.example");
    server_stop();
    start("0.0.0.0", "a.example");
    expect(200, "a.example");
    expect(200, "127.0.0.1:8888");
    expect(200, "localhost");
    expect(200, "0.0.0.0");
    expect(403, "evil.example");
    expect(403, "10.9.8.7");
}

static void test_unix(void **state)
{
    char host[160];
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    rose_buf b = {0};
    (void)state;
    snprintf(sa.sun_path, sizeof sa.sun_path, "/tmp/rose-host-%d.sock", (int)getpid());
    snprintf(host, sizeof host, "unix:%s", sa.sun_path);
    start(host, NULL);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    say(fd, "GET /hello HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_int_equal(status_of(&b), 200);
    rose_buf_free(&b);
    close(fd);
}

#define TEST(fn) cmocka_unit_test_teardown(fn, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_loopback),    TEST(test_absolute), TEST(test_allowed),
        TEST(test_any_address), TEST(test_unix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
