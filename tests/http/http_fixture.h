/* tests/http/http_fixture.h - an in-process server with a scripted handler, and raw client sockets.
 * What the handler does is in the path: see on_request. One server at a time. */
#ifndef ROSE_TESTS_HTTP_FIXTURE_H
#define ROSE_TESTS_HTTP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "http/http.h"

/* Each program uses some of this. */
#pragma GCC diagnostic ignored "-Wunused-function"

static rose_http *g_http;
static _Atomic uint32_t g_requests, g_gone, g_ended, g_writes_refused;

typedef struct script {
    rose_http_req *r; /* NULL once gone or ended */
    rose_http_timer *timer;
    uint32_t thread, left, ms, size, n_sent;
} script;

/* on_gone: every script waits on a timer, since a post that is queued cannot be cancelled. */
static void script_end(script *s)
{
    rose_http_timer_cancel(s->timer);
    free(s);
}

static void script_step(void *arg);

/* Without memory for a timer the reply breaks off: an end is owed in any case. */
static void arm_script(script *s)
{
    s->timer = rose_http_timer_start(g_http, s->thread, s->ms, script_step, s);
    if (s->timer != NULL) return;
    if (s->left == 0)
        rose_http_reply(s->r, 503, "text/plain", NULL, "memory", 6);
    else
        rose_http_stream_end(s->r);
    free(s);
}

/* After every await: the next chunk of a stream, or a late reply. */
static void script_step(void *arg)
{
    script *s = arg;
    char chunk[8192];
    s->timer = NULL;
    if (s->left == 0) { /* /later */
        rose_http_reply(s->r, 200, "text/plain", NULL, "late", 4);
        atomic_fetch_add(&g_ended, 1);
        free(s);
        return;
    }
    uint32_t n = s->size;
    if (n == 0) {
        n = (uint32_t)snprintf(chunk, sizeof chunk, "data: %u\n\n", s->n_sent);
    } else {
        if (n > sizeof chunk) n = sizeof chunk;
        memset(chunk, 'x', n);
    }
    s->n_sent++;
    if (!rose_http_stream_write(s->r, chunk, n)) {
        atomic_fetch_add(&g_writes_refused, 1);
        return; /* on_gone frees */
    }
    if (--s->left == 0) {
        rose_http_stream_end(s->r);
        atomic_fetch_add(&g_ended, 1);
        free(s);
        return;
    }
    arm_script(s);
}

static unsigned query_num(const char *query, const char *key, unsigned otherwise)
{
    const char *p = strstr(query, key);
    return p == NULL ? otherwise : (unsigned)strtoul(p + strlen(key), NULL, 10);
}

static void reply_echo(rose_http_req *r)
{
    rose_buf b = {0};
    size_t n;
    const char *body = rose_http_req_body(r, &n);
    const char *tag = rose_http_req_header(r, "x-tag");
    rose_buf_addf(&b, "%s %s [%s] tag=%s %zu:", rose_http_req_info(r)->method,
                  rose_http_req_info(r)->path, rose_http_req_info(r)->query,
                  tag == NULL ? "-" : tag, n);
    rose_buf_add(&b, body, n);
    rose_http_reply(r, 200, "text/plain", "X-Test: 1\r\n", b.data, b.len);
    rose_buf_free(&b);
}

/* A burst is written by a chain of timers, since a post that is still queued cannot be cancelled.
 */
static void start_script(rose_http_req *r, uint32_t chunks, uint32_t ms, uint32_t size)
{
    script *s = calloc(1, sizeof *s);
    if (s == NULL) {
        if (chunks == 0)
            rose_http_reply(r, 503, "text/plain", NULL, "memory", 6);
        else
            rose_http_stream_end(r);
        return;
    }
    *s = (script){
        .r = r, .thread = rose_http_req_info(r)->thread, .left = chunks, .ms = ms, .size = size};
    rose_http_req_set_user(r, s);
    if (ms < UINT32_MAX) arm_script(s);
}

static void on_request(void *arg, rose_http_req *r)
{
    const char *path = rose_http_req_info(r)->path;
    const char *query = rose_http_req_info(r)->query;
    (void)arg;
    atomic_fetch_add(&g_requests, 1);
    if (rose_http_req_info(r)->complete_ns < rose_http_req_info(r)->arrival_ns) abort();
    if (strcmp(path, "/hello") == 0) {
        rose_http_reply(r, 200, "text/plain", NULL, "hello", 5);
    } else if (strcmp(path, "/later") == 0) {
        start_script(r, 0, query_num(query, "ms=", 20), 0);
    } else if (strcmp(path, "/never") == 0) {
        start_script(r, 0, UINT32_MAX, 0);
    } else if (strcmp(path, "/stream") == 0) {
        rose_http_stream_begin(r, 200, "text/event-stream", NULL);
        start_script(r, query_num(query, "n=", 3), query_num(query, "ms=", 1),
                     query_num(query, "size=", 0));
    } else if (strcmp(path, "/burst") == 0) { /* all chunks in one turn */
        rose_http_stream_begin(r, 200, "text/event-stream", NULL);
        for (unsigned i = query_num(query, "n=", 3); i > 0; i--)
            rose_http_stream_write(r, "0123456789abcdef", 16);
        rose_http_stream_end(r);
    } else if (strcmp(path, "/big") == 0) {
        unsigned n = query_num(query, "n=", 1000);
        char *p = malloc(n);
        if (p != NULL) memset(p, 'b', n);
        rose_http_reply(r, p == NULL ? 503 : 200, NULL, NULL, p, p == NULL ? 0 : n);
        free(p);
    } else if (strcmp(path, "/give") == 0) { /* the byte says which reply it is */
        unsigned n = query_num(query, "n=", 1000);
        rose_buf b = {0};
        if (rose_buf_reserve(&b, n + 1) == ROSE_OK) {
            memset(b.data, (int)query_num(query, "c=", 'b'), n);
            b.len = n;
        }
        rose_http_reply_take(r, b.data == NULL ? 503 : 200, NULL, NULL, &b);
        if (b.data != NULL) abort();
    } else if (strcmp(path, "/take") == 0) {
        size_t n, again;
        char *body = rose_http_req_take_body(r, &n), line[64];
        uint32_t sum = 0;
        for (size_t i = 0; body != NULL && i <= n; i++) /* the NUL too */
            sum = sum * 31 + (unsigned char)body[i];
        free(body);
        rose_http_req_body(r, &again);
        int len = snprintf(line, sizeof line, "%zu %zu %u", n, again, sum);
        rose_http_reply(r, body == NULL ? 503 : 200, NULL, NULL, line, (size_t)len);
    } else if (strcmp(path, "/204") == 0) {
        rose_http_reply(r, 204, NULL, NULL, NULL, 0);
    } else {
        reply_echo(r);
    }
}

static void on_gone(void *arg, rose_http_req *r)
{
    (void)arg;
    script_end(rose_http_req_user(r));
    atomic_fetch_add(&g_gone, 1);
}

static void error_body(void *arg, const char *path, int status, const char *message, rose_buf *out)
{
    (void)arg;
    (void)path;
    rose_buf_addf(out, "{\"error\":{\"message\":\"%s\",\"code\":%d}}", message, status);
}

static atomic_uint g_polls[64]; /* by thread */

static void on_poll(void *arg, uint32_t thread)
{
    (void)arg;
    atomic_fetch_add(&g_polls[thread], 1);
}

static bool is_vital(void *arg, const char *path)
{
    (void)arg;
    return strcmp(path, "/hello") == 0;
}

static const rose_http_callbacks g_cb = {.on_request = on_request,
                                         .on_gone = on_gone,
                                         .is_vital = is_vital,
                                         .error_body = error_body,
                                         .poll = on_poll};

static rose_http_opts test_opts(void)
{
    rose_http_opts o;
    rose_http_opts_default(&o);
    o.port = 0;
    assert_true(rose_opt_list_add(&o.allowed_hosts, "x,h")); /* what the tests call the server */
    return o;
}

static void server_start(const rose_http_opts *o)
{
    rose_err err = {""};
    g_requests = g_gone = g_ended = g_writes_refused = 0;
    rose_status st = rose_http_start(&g_http, o, &g_cb, &err);
    if (st != ROSE_OK) fail_msg("start: %s", err.msg);
}

static void server_stop(void)
{
    rose_http_stop(g_http);
    g_http = NULL;
}

/* ---- the client ---- */

static int client_with_rcvbuf(int rcvbuf)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(rose_http_port(g_http))};
    struct timeval tv = {20, 0}; /* a guard against hanging, never part of a check */
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (rcvbuf > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static int client(void)
{
    return client_with_rcvbuf(0);
}

/* False: the server closed first. */
static bool say_bytes(int fd, const void *p, size_t n)
{
    const char *s = p;
    while (n > 0) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue; /* stopped and continued */
        if (k < 0) return false;
        s += k;
        n -= (size_t)k;
    }
    return true;
}

static void say(int fd, const char *s)
{
    assert_true(say_bytes(fd, s, strlen(s)));
}

/* Read until the server closes, or (want > 0) want bytes have come. -1: reset or hang. */
static int hear(int fd, rose_buf *out, size_t want)
{
    char tmp[65536];
    while (want == 0 || out->len < want) {
        size_t room = want == 0 || want - out->len > sizeof tmp ? sizeof tmp : want - out->len;
        ssize_t n = recv(fd, tmp, room, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) return 0;
        if (n < 0) return -1;
        assert_int_equal(rose_buf_add(out, tmp, (size_t)n), ROSE_OK);
    }
    return 1;
}

/* The text of a transcript with each Date's value replaced by "D". */
static const char *without_dates(rose_buf *b)
{
    static const char key[] = "\r\nDate: ";
    char *at = (char *)(uintptr_t)rose_buf_str(b);
    assert_non_null(at);
    while ((at = strstr(at, key)) != NULL) {
        at += sizeof key - 1;
        assert_true(strlen(at) > 29);
        assert_memory_equal(at + 25, " GMT", 4);
        *at = 'D';
        memmove(at + 1, at + 29, strlen(at + 29) + 1);
        b->len -= 28;
    }
    return b->data;
}

/* Send `request`, half-close never, read to the end of the connection, compare. */
static void expect_dialogue(const char *request, const char *reply)
{
    rose_buf b = {0};
    int fd = client();
    say(fd, request);
    if (hear(fd, &b, 0) != 0) fail_msg("no end of connection after: %s", request);
    assert_string_equal(without_dates(&b), reply);
    rose_buf_free(&b);
    close(fd);
}

static int status_of(const rose_buf *b)
{
    if (b->len < 12 || memcmp(b->data, "HTTP/1.1 ", 9) != 0) return -1;
    return (b->data[9] - '0') * 100 + (b->data[10] - '0') * 10 + (b->data[11] - '0');
}

/* The status of the only reply to these bytes; 0 = closed without one. */
static int status_for(const void *bytes, size_t n)
{
    rose_buf b = {0};
    int fd = client();
    (void)say_bytes(fd, bytes, n);
    int rc = hear(fd, &b, 0);
    int status = b.len == 0 && rc == 0 ? 0 : status_of(&b);
    rose_buf_free(&b);
    close(fd);
    return status;
}

static const char HELLO_CLOSE[] = "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/* The server serves a new client. */
static void expect_hello(void)
{
    rose_buf b = {0};
    int fd = client();
    say(fd, HELLO_CLOSE);
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_int_equal(status_of(&b), 200);
    rose_buf_free(&b);
    close(fd);
}

static void wait_for(const _Atomic uint32_t *counter, uint32_t value)
{
    for (int i = 0; i < 20000 && atomic_load(counter) < value; i++)
        usleep(1000);
    assert_int_equal(atomic_load(counter), value);
}

static void wait_no_connections(void)
{
    for (int i = 0; i < 20000 && rose_http_connections(g_http) > 0; i++)
        usleep(1000);
    assert_int_equal(rose_http_connections(g_http), 0);
    assert_int_equal(rose_http_inflight(g_http), 0);
}

static int count_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

#endif
