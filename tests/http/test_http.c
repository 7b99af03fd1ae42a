/* tests/http/test_http.c - what a client sees: transcripts byte by byte, parsing, refusals. */
#include "http_fixture.h"

__attribute__((unused)) static const char REPLY_HELLO[] =
    "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
    "Content-Length: 5\r\n\r\nhello";
static const char REPLY_HELLO_CLOSE[] = "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/plain\r\n"
                                        "Connection: close\r\nContent-Length: 5\r\n\r\nhello";

#define REFUSAL(line, code, text)                                                                  \
    "HTTP/1.1 " line "\r\nDate: D\r\nContent-Type: application/json\r\nConnection: close\r\n"      \
    "Content-Length: " text

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply),
        cmocka_unit_test(test_reply_kinds),
        cmocka_unit_test(test_streams),
    };
    rose_http_opts o = test_opts();
    server_start(&o);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return rc == 0 ? 0 : 1;
}
