/* tests/http/test_http_leaving.c - clients that leave, and clients that only end their sending
 * side. The first are noticed, and their work is taken back; the second get their replies. Nothing
 * is checked against the clock but that a wait ends at all. */
#include <netinet/tcp.h>

#include "http_fixture.h"

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

static int unix_client(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval tv = {20, 0};
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* Each test runs over TCP and over a Unix socket: the server learns of a client's end in ways that
 * differ. */
static char g_path[64];

static void start(bool over_unix, uint32_t n_threads)
{
    static char host[80];
    rose_http_opts o = test_opts();
    snprintf(g_path, sizeof g_path, "/tmp/rose-leaving-%d.sock", (int)getpid());
    snprintf(host, sizeof host, "unix:%s", g_path);
    o.n_threads = n_threads;
    if (over_unix)
        o.host = host;
    else
        g_path[0] = '\0';
    server_start(&o);
}

static int come(void)
{
    return g_path[0] != '\0' ? unix_client(g_path) : client();
}

typedef enum leave_how { LEAVE_CLOSE, LEAVE_RESET, LEAVE_HALF } leave_how;

static void leave(int fd, leave_how how)
{
    /* Where the kernel does not tell the server of closed sockets, it forgets this one soon. */
    const int forget_s = 1;
    struct linger l = {1, 0};
    if (g_path[0] == '\0') setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &forget_s, sizeof forget_s);
    if (how == LEAVE_RESET) setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
}

/* Ends the sending side, and leaves while the reply is due. */
static void leave_after_half(int fd, bool replies, uint32_t gone)
{
    rose_buf b = {0};
    char byte;
    shutdown(fd, SHUT_WR);
    if (gone == 0) {
        assert_int_equal(hear(fd, &b, 0), 0); /* the server ends it, we need not */
    } else if (replies) {
        assert_int_equal(hear(fd, &b, 100), 1);
    } else {
        assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
    }
    rose_buf_free(&b);
    leave(fd, LEAVE_CLOSE);
}

static void leave_at_every_stage(bool over_unix)
{
    static const struct {
        const char *text;
        uint32_t requests; /* that reach the handler */
        uint32_t gone;
        bool replies; /* at once, and without an end */
    } stages[] = {
        {"", 0, 0, false},
        {"GET /hel", 0, 0, false},
        {"GET /hello HTTP/1.1\r\nHost: x\r\n", 0, 0, false},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", 0, 0, false},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 0, 0, false},
        {"GET /never HTTP/1.1\r\nHost: x\r\n\r\n", 1, 1, false},
        {"GET /never HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n", 1, 1,
         false},
        {"GET /stream?n=1000000 HTTP/1.1\r\nHost: x\r\n\r\n", 1, 1, true},
        {"GET /stream?n=2&ms=1000000 HTTP/1.1\r\nHost: x\r\n\r\n", 1, 1, true},
        {"GET /later?ms=1000000 HTTP/1.0\r\n\r\n", 1, 1, false},
        {"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", 1, 0, false},
    };
    start(over_unix, 2);
    uint32_t requests = 0, gone = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        for (int how = LEAVE_CLOSE; how <= LEAVE_HALF; how++) {
            int fd = come();
            say(fd, stages[i].text);
            requests += stages[i].requests;
            wait_for(&g_requests, requests);
            if (how == LEAVE_HALF)
                leave_after_half(fd, stages[i].replies, stages[i].gone);
            else
                leave(fd, (leave_how)how);
            gone += stages[i].gone;
            wait_for(&g_gone, gone);
            wait_no_connections();
        }
    }
    server_stop();
}

static void test_leaving(void **state)
{
    (void)state;
    leave_at_every_stage(false);
    leave_at_every_stage(true);
}

/* The lookahead is full, so nothing is read any more: leaving must be seen all the same. */
static void test_leaving_behind_full_lookahead(void **state)
{
    (void)state;
    start(false, 1);
    for (uint32_t how = LEAVE_CLOSE; how <= LEAVE_HALF; how++) {
        rose_buf b = {0};
        while (b.len < 100000)
            assert_int_equal(rose_buf_addf(&b, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"), ROSE_OK);
        int fd = come();
        say(fd, "GET /never HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_true(say_bytes(fd, b.data, b.len));
        rose_buf_free(&b);
        wait_for(&g_requests, how + 1);
        usleep(20000); /* let the server read what it will */
        if (how == LEAVE_HALF)
            leave_after_half(fd, false, 1);
        else
            leave(fd, (leave_how)how);
        wait_for(&g_gone, how + 1);
        wait_no_connections();
    }
}

/* ---- half-closed ---- */

/* How often `what` stands in the text. */
static uint32_t count(const rose_buf *b, const char *what)
{
    uint32_t n = 0;
    const size_t len = strlen(what);
    for (size_t i = 0; i + len <= b->len;) {
        bool here = b->data[i] == what[0] && memcmp(b->data + i, what, len) == 0;
        n += here;
        i += here ? len : 1;
    }
    return n;
}

/* Send, end the sending side, and read to the end of the connection. */
static void ask_half_closed(rose_buf *out, const char *request)
{
    int fd = come();
    say(fd, request);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_int_equal(hear(fd, out, 0), 0);
    close(fd);
}

static void half_closed_is_answered(bool over_unix)
{
    static const struct {
        const char *request, *what;
        uint32_t n; /* how often that stands in the replies */
    } cases[] = {
        {"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nhello", 1},
        {"GET /hello HTTP/1.0\r\n\r\n", "\r\n\r\nhello", 1},
        {"GET /later?ms=100 HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nlate", 1},
        {"GET /later?ms=100 HTTP/1.1\r\nHost: x\r\n\r\n", "\r\nConnection: close\r\n", 1},
        {"POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", " 4:body", 1},
        {"POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
         " 3:abc", 1},
        {"GET /stream?n=50&ms=2 HTTP/1.1\r\nHost: x\r\n\r\n", "data: ", 50},
        {"GET /stream?n=50&ms=2 HTTP/1.1\r\nHost: x\r\n\r\n", "data: 49\n\n\r\n0\r\n\r\n", 1},
        {"GET /stream?n=50&ms=2 HTTP/1.0\r\n\r\n", "data: 49\n\n", 1},
        {"GET /big?n=3000000 HTTP/1.1\r\nHost: x\r\n\r\n", "bbbbbbbbbb", 300000},
        {"GET /later?ms=50 HTTP/1.1\r\nHost: x\r\n\r\nGET /stream?n=5 HTTP/1.1\r\nHost: x\r\n\r\n"
         "GET /later?ms=50 HTTP/1.1\r\nHost: x\r\n\r\n",
         "HTTP/1.1 200 OK\r\n", 3},
        {"GET /later?ms=50 HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTT", "HTTP/1.1 ", 1},
        {"POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nbody", "", 0},
        {"GET /hello HTTP/1.1\r\nHost: x\r\n", "", 0},
    };
    start(over_unix, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_buf b = {0};
        ask_half_closed(&b, cases[i].request);
        if (cases[i].n == 0)
            assert_int_equal(b.len, 0);
        else if (count(&b, cases[i].what) != cases[i].n)
            fail_msg("not %u times '%s' in the reply to %s", cases[i].n, cases[i].what,
                     cases[i].request);
        rose_buf_free(&b);
        wait_no_connections();
    }
    assert_int_equal(atomic_load(&g_gone), 0);
    server_stop();
}

static void test_half_closed(void **state)
{
    (void)state;
    half_closed_is_answered(false);
    half_closed_is_answered(true);
}

/* More requests than the lookahead holds, so that the end of input is read only after many replies.
 */
static void test_half_closed_pipeline(void **state)
{
    enum { N = 3000 };
    (void)state;
    start(false, 1);
    rose_buf ask = {0}, b = {0};
    rose_buf_addf(&ask, "GET /later?ms=50 HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < N; i++)
        rose_buf_addf(&ask, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    ask_half_closed(&b, rose_buf_str(&ask));
    assert_int_equal(count(&b, "\r\n\r\nhello"), N);
    assert_int_equal(count(&b, "\r\n\r\nlate"), 1);
    rose_buf_free(&ask);
    rose_buf_free(&b);
    wait_no_connections();
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_leaving),
        TEST(test_leaving_behind_full_lookahead),
        TEST(test_half_closed),
        TEST(test_half_closed_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
