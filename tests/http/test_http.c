/* tests/http/test_http.c - what a client sees: transcripts byte by byte, parsing, refusals. */
#include <sched.h>

#include "base/philox.h"
#include "http_fixture.h"

static const char REPLY_HELLO[] = "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                                  "Content-Length: 5\r\n\r\nhello";
static const char REPLY_HELLO_CLOSE[] = "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                                        "Connection: close\r\nContent-Length: 5\r\n\r\nhello";

static void test_reply(void **state)
{
    (void)state;
    expect_dialogue("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    REPLY_HELLO_CLOSE);
    expect_dialogue("POST /a/b?q=1&r HTTP/1.1\r\nHost: x\r\nX-TAG:  v  \r\nContent-Length: 3\r\n"
                    "Connection: close\r\n\r\nabc",
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Connection: close\r\nX-Test: 1\r\nContent-Length: 29\r\n\r\n"
                    "POST /a/b [q=1&r] tag=v 3:abc");
}

static void test_reply_kinds(void **state)
{
    (void)state;
    expect_dialogue("HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Connection: close\r\nContent-Length: 5\r\n\r\n");
    expect_dialogue("GET /204 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    "HTTP/1.1 204 No Content\r\nDate: D\r\nConnection: close\r\n\r\n");
    expect_dialogue("GET /later?ms=5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Connection: close\r\nContent-Length: 4\r\n\r\nlate");
    /* HTTP/1.0: closes by default, lives on by wish */
    expect_dialogue("GET /hello HTTP/1.0\r\n\r\n", REPLY_HELLO_CLOSE);
    expect_dialogue("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
                    "GET /hello HTTP/1.0\r\n\r\n",
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Connection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Connection: close\r\nContent-Length: 5\r\n\r\nhello");
}

static void test_streams(void **state)
{
    (void)state;
    static const char head[] = "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/event-stream\r\n";
    char want[1024];
    snprintf(want, sizeof want, "%s%s", head,
             "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
             "9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n");
    expect_dialogue("GET /stream?n=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", want);
    snprintf(want, sizeof want, "%s%s", head,
             "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
             "10\r\n0123456789abcdef\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    expect_dialogue("GET /burst?n=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", want);
    /* HTTP/1.0 knows no chunks: the close is the end */
    snprintf(want, sizeof want, "%s%s", head, "Connection: close\r\n\r\ndata: 0\n\ndata: 1\n\n");
    expect_dialogue("GET /stream?n=2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", want);
    snprintf(want, sizeof want, "%s%s", head,
             "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    expect_dialogue("HEAD /stream?n=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", want);
}

static void test_pipelining(void **state)
{
    (void)state;
    /* The slow first reply holds the others back; the order is the requests'. */
    char want[2048];
    snprintf(
        want, sizeof want,
        "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nlate"
        "%s"
        "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/event-stream\r\n"
        "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 0\n\n\r\n0\r\n\r\n"
        "%s",
        REPLY_HELLO, REPLY_HELLO_CLOSE);
    expect_dialogue("GET /later?ms=30 HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /stream?n=1 HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                    "GET /hello HTTP/1.1\r\nHost: ignored\r\n\r\n",
                    want);

    /* More pipelined bytes than the lookahead holds: nothing is lost. */
    enum { N = 3000 };
    static const char one[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    rose_buf send_buf = {0}, got = {0};
    assert_int_equal(rose_buf_addf(&send_buf, "GET /later?ms=50 HTTP/1.1\r\nHost: x\r\n\r\n"),
                     ROSE_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(rose_buf_add(&send_buf, one, sizeof one - 1), ROSE_OK);
    int fd = client();
    assert_true(say_bytes(fd, send_buf.data, send_buf.len));
    say(fd, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(hear(fd, &got, 0), 0);
    int n = 0;
    for (const char *p = rose_buf_str(&got); (p = strstr(p, "hello")) != NULL; p++)
        n++;
    assert_int_equal(n, N + 1);
    rose_buf_free(&send_buf);
    rose_buf_free(&got);
    close(fd);
}

#define ECHO(len, text)                                                                            \
    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\nConnection: close\r\n"              \
    "X-Test: 1\r\nContent-Length: " len "\r\n\r\n" text

static void test_bodies(void **state)
{
    (void)state;
    expect_dialogue("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n"
                    "Connection: close\r\n\r\n"
                    "3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Tag: trailer\r\n\r\n",
                    ECHO("33", "POST /c [] tag=- 13:abc0123456789"));
    expect_dialogue("POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
                    "Connection: close\r\n\r\nok",
                    "HTTP/1.1 100 Continue\r\n\r\n" ECHO("21", "POST /c [] tag=- 2:ok"));
    expect_dialogue("POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    ECHO("19", "POST /c [] tag=- 0:"));
    expect_dialogue("POST /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    ECHO("19", "POST /c [] tag=- 0:"));
}

static void test_targets(void **state)
{
    (void)state;
    expect_dialogue("GET http://h:1/p?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    ECHO("21", "GET /p [a=b] tag=- 0:"));
    expect_dialogue("GET http://h HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    ECHO("17", "GET / [] tag=- 0:"));
    expect_dialogue("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    ECHO("21", "OPTIONS * [] tag=- 0:"));
    expect_dialogue("GET /%2e%00?%zz#frag HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    ECHO("26", "GET /%2e%00 [%zz] tag=- 0:"));
    expect_dialogue("GET /u HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\n"
                    "Upgrade: websocket\r\n\r\n",
                    ECHO("18", "GET /u [] tag=- 0:"));
}

static void test_refusals(void **state)
{
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        /* smuggling: two views of one body */
        {400,
         "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400,
         "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551617\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\n Content-Length: 3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tfolded\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
              "Transfer-Encoding: identity\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZ\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
              "11111111111111111\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n"},
        {400, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n"},
        /* line structure */
        {400, "GET / HTTP/1.1\nHost: x\n\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\n: v\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA B: v\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA(: v\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA: \x7f\r\n\r\n"},
        /* request line */
        {400, "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET relative HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "BREW / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "get / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET / HTTQ/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET / HTTP/1.\r\nHost: x\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: x\r\n\r\n"},
        {505, "GET /\r\n\r\n"},
        {400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
        {400, "\x16\x03\x01\x02\r\n\r\n"},
        {501, "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
        {417, "POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n"},
    };
    (void)state;
    uint32_t before = atomic_load(&g_requests);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = status_for(cases[i].text, strlen(cases[i].text));
        if (status != cases[i].status)
            fail_msg("%d instead of %d for: %s", status, cases[i].status, cases[i].text);
    }
    static const char nul[] = "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n";
    assert_int_equal(status_for(nul, sizeof nul - 1), 400);
    assert_int_equal(atomic_load(&g_requests), before); /* none of it reached the handler */
}

static void test_refusal_body(void **state)
{
    (void)state;
    expect_dialogue("GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                    "Content-Length: 5\r\n\r\nhello"
                    "HTTP/1.1 400 Bad Request\r\nDate: D\r\nContent-Type: application/json\r\n"
                    "Connection: close\r\nContent-Length: 54\r\n\r\n"
                    "{\"error\":{\"message\":\"Host header missing\",\"code\":400}}");
}

static void test_odd_but_valid(void **state)
{
    (void)state;
    expect_dialogue("\r\n\r\nGET /hello HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
                    REPLY_HELLO_CLOSE);
    expect_dialogue(
        "GET /hello HTTP/1.1\r\nhost: x\r\nX-Empty:\r\nX-Blank:   \r\nX-High: \xc3\xa9\r\n"
        "X-Tab: a\tb\r\nCONNECTION: CLOSE\r\n\r\n",
        REPLY_HELLO_CLOSE);
    expect_dialogue("POST /e HTTP/1.1\r\nHost: x\r\nX-Tag:\r\nConnection: close\r\n\r\n",
                    ECHO("18", "POST /e [] tag= 0:"));
}

static void test_split_everywhere(void **state)
{
    static const char requests[] =
        "POST /e?x HTTP/1.1\r\nHost: x\r\nX-Tag: t\r\nContent-Length: 4\r\n\r\nbody"
        "POST /e?y HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2;a=b\r\nxy\r\n1\r\nz\r\n0\r\nT: r\r\n\r\n";
    static const char replies[] =
        "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\nX-Test: 1\r\n"
        "Content-Length: 24\r\n\r\nPOST /e [x] tag=t 4:body"
        "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\nX-Test: 1\r\n"
        "Content-Length: 23\r\n\r\nPOST /e [y] tag=- 3:xyz";
    enum { DATES = 2 * 28 };
    (void)state;
    int fd = client();
    for (size_t k = 0; k < sizeof requests; k++) { /* k = 0: every byte on its own */
        rose_buf b = {0};
        if (k == 0) {
            for (size_t i = 0; i + 1 < sizeof requests; i++) {
                assert_true(say_bytes(fd, requests + i, 1));
                usleep(100);
            }
        } else {
            assert_true(say_bytes(fd, requests, k));
            usleep(300);
            assert_true(say_bytes(fd, requests + k, sizeof requests - 1 - k));
        }
        assert_int_equal(hear(fd, &b, sizeof replies - 1 + DATES), 1);
        assert_string_equal(without_dates(&b), replies);
        rose_buf_free(&b);
    }
    close(fd);
}

/* Random bytes, and valid requests with random damage: no crash, and the next client is served. */
static void test_garbage(void **state)
{
    static const char valid[] =
        "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody"
        "POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    (void)state;
    const char *seed_text = getenv("ROSE_TEST_SEED");
    uint64_t seed = seed_text == NULL ? 1 : strtoull(seed_text, NULL, 0);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < 1500; i++) {
        char bytes[sizeof valid];
        uint32_t draw = 0;
        size_t n = sizeof valid - 1;
#define DRAW(k) ((uint32_t)(rose_philox_uniform(seed, draw++, i) * (float)(k)))
        memcpy(bytes, valid, n);
        if (i % 3 == 0) {
            n = 1 + DRAW(sizeof valid - 1);
            for (size_t k = 0; k < n; k++)
                bytes[k] = (char)DRAW(256);
        } else {
            for (uint32_t k = 1 + DRAW(4); k > 0; k--) {
                uint32_t at = DRAW(sizeof valid - 1);
                bytes[at] = (char)DRAW(256);
            }
            if (i % 3 == 1) n = DRAW(sizeof valid - 1);
        }
#undef DRAW
        int fd = client();
        (void)say_bytes(fd, bytes, n);
        if (i % 2 == 0) shutdown(fd, SHUT_WR);
        if (i % 5 == 0) {
            rose_buf b = {0};
            if (i % 2 == 0) (void)hear(fd, &b, 0);
            rose_buf_free(&b);
        }
        close(fd);
    }
    expect_dialogue("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    REPLY_HELLO_CLOSE);
    wait_no_connections();
}

static _Atomic uint32_t g_posted, g_watched;
static int g_pipe[2];

static void count_post(void *arg)
{
    (void)arg;
    atomic_fetch_add(&g_posted, 1);
}

static void read_pipe(void *arg)
{
    char c;
    (void)arg;
    if (read(g_pipe[0], &c, 1) == 1) atomic_fetch_add(&g_watched, 1);
}

static void *post_many(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        while (rose_http_post(g_http, 1, count_post, arg) != ROSE_OK)
            sched_yield();
    }
    return NULL;
}

static void test_posts_and_watch(void **state)
{
    pthread_t threads[3];
    rose_err err = {""};
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, NULL), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    wait_for(&g_posted, 60000);

    assert_int_equal(pipe(g_pipe), 0);
    assert_int_equal(rose_http_watch(g_http, 1, g_pipe[0], read_pipe, NULL, &err), ROSE_OK);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_int_equal(write(g_pipe[1], "x", 1), 1);
        wait_for(&g_watched, i);
    }
    assert_int_equal(rose_http_watch(g_http, 0, -1, read_pipe, NULL, &err), ROSE_E_IO);
    assert_true(err.msg[0] != '\0');
}

/* ---- other sockets: these stop and start the server themselves ---- */

static int talk_to(const struct sockaddr *sa, socklen_t n)
{
    rose_buf b = {0};
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, sa, n) < 0) {
        close(fd);
        return -1;
    }
    say(fd, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(hear(fd, &b, 0), 0);
    int status = status_of(&b);
    rose_buf_free(&b);
    close(fd);
    return status;
}

static void test_port_in_use(void **state)
{
    (void)state;
    rose_http *second = NULL;
    rose_err err = {""};
    rose_http_opts o = test_opts();
    o.port = rose_http_port(g_http);
    assert_int_equal(rose_http_start(&second, &o, &g_cb, &err), ROSE_E_IO);
    assert_null(second);
    assert_non_null(strstr(err.msg, "Address already in use"));
    o.host = "no.such.host.invalid";
    assert_int_equal(rose_http_start(&second, &o, &g_cb, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "no.such.host.invalid"));
    o = test_opts();
    o.n_threads = 0;
    assert_int_equal(rose_http_start(&second, &o, &g_cb, &err), ROSE_E_INVAL);
}

static void test_ipv6(void **state)
{
    (void)state;
    rose_http *main_server = g_http;
    rose_http_opts o = test_opts();
    rose_err err;
    o.host = "::1";
    if (rose_http_start(&g_http, &o, &g_cb, &err) != ROSE_OK) {
        g_http = main_server;
        skip(); /* a container without IPv6 */
    }
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(rose_http_port(g_http))};
    sa.sin6_addr.s6_addr[15] = 1;
    assert_int_equal(talk_to((struct sockaddr *)&sa, sizeof sa), 200);
    server_stop();
    g_http = main_server;
}

static void test_unix_socket(void **state)
{
    (void)state;
    rose_http *main_server = g_http, *second = NULL;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    char host[128];
    rose_err err = {""};
    rose_http_opts o = test_opts();
    snprintf(sa.sun_path, sizeof sa.sun_path, "/tmp/rose-test-%d.sock", (int)getpid());
    snprintf(host, sizeof host, "unix:%s", sa.sun_path);
    o.host = host;

    /* A file left over by a dead server is replaced; a living server's is not. */
    int stale = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(stale, (struct sockaddr *)&sa, sizeof sa), 0);
    close(stale);
    assert_int_equal(rose_http_start(&g_http, &o, &g_cb, &err), ROSE_OK);
    assert_int_equal(rose_http_port(g_http), 0);
    assert_int_equal(rose_http_start(&second, &o, &g_cb, &err), ROSE_E_IO);
    assert_int_equal(talk_to((struct sockaddr *)&sa, sizeof sa), 200);
    server_stop();
    assert_int_equal(access(sa.sun_path, F_OK), -1);
    o.host = "unix:";
    assert_int_equal(rose_http_start(&second, &o, &g_cb, &err), ROSE_E_INVAL);
    g_http = main_server;
}

static void stay_awake(void *arg)
{
    const uint64_t *until = arg;
    rose_http_stay_awake(g_http, 1, *until);
}

static void slept(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

static void on_thread_1(void (*fn)(void *), void *arg)
{
    while (rose_http_post(g_http, 1, fn, arg) != ROSE_OK)
        usleep(100);
}

/* A thread that stays awake polls, and serves; the other one does not poll; then it sleeps again,
 * told so or in time. */
static void test_stay_awake(void **state)
{
    (void)state;
    static const char text[] = "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    const uint64_t ends[] = {UINT64_MAX, rose_now_ns() + 30000000};
    for (int i = 0; i < 2; i++) {
        uint64_t until = ends[i], none = 0;
        atomic_bool done = false;
        const unsigned before = atomic_load(&g_polls[1]);
        on_thread_1(stay_awake, &until);
        while (i == 0 && atomic_load(&g_polls[1]) - before < 100)
            usleep(100);
        for (int k = 0; k < 4; k++) { /* two on each thread */
            char reply[16] = "";
            const int fd = client();
            assert_true(say_bytes(fd, text, sizeof text - 1));
            assert_int_equal(recv(fd, reply, 12, MSG_WAITALL), 12);
            assert_memory_equal(reply, "HTTP/1.1 200", 12);
            close(fd);
        }
        if (i == 0) on_thread_1(stay_awake, &none);
        while (rose_now_ns() < ends[1])
            usleep(1000);
        on_thread_1(slept, &done); /* what came before is over */
        while (!atomic_load(&done))
            usleep(100);
        const unsigned polls = atomic_load(&g_polls[1]);
        usleep(20000);
        assert_int_equal(atomic_load(&g_polls[1]), polls);
    }
    assert_int_equal(atomic_load(&g_polls[0]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply),         cmocka_unit_test(test_reply_kinds),
        cmocka_unit_test(test_streams),       cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_bodies),        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_refusal_body),
        cmocka_unit_test(test_odd_but_valid), cmocka_unit_test(test_split_everywhere),
        cmocka_unit_test(test_garbage),       cmocka_unit_test(test_posts_and_watch),
        cmocka_unit_test(test_port_in_use),   cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_unix_socket),   cmocka_unit_test(test_stay_awake),
    };
    rose_http_opts o = test_opts();
    o.n_threads = 2;
    server_start(&o);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    close(g_pipe[0]);
    close(g_pipe[1]);
    return rc == 0 ? 0 : 1;
}
