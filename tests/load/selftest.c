/* tests/load/selftest.c - see selftest.h; `load client` runs it. The server is one thread with
 * blocking sockets. At each tick all streams get one event in a burst, as the streams of a batch do
 * after an engine step. */
#include "load/selftest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/opts.h"
#include "bench/load.h"
#include "load/load.h"

enum { MAX_STREAMS = 256, LIMIT_US = 50, TEST_STREAMS = 20, TEST_SECONDS = 2 };

typedef struct instant_server {
    uint32_t n_streams, n_events, rate;
    int listener;
    uint16_t port;
    uint64_t *sent_ns; /* [n_streams][n_events], owned */
    uint64_t first_ns, last_ns;
    bool failed;
} instant_server;

static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n";
static const char event[] =
    "data: {\"id\":\"cmpl-00000000000000000000000000000000\",\"object\":\"text_completion\","
    "\"created\":1700000000,\"model\":\"self-test\",\"choices\":[{\"index\":0,\"text\":\" word\","
    "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";
static const char last[] =
    "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
    "data: [DONE]\n\n";

static bool write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        bytes += k;
        n -= (size_t)k;
    }
    return true;
}

static size_t chunk(char *out, size_t cap, const char *text)
{
    return (size_t)snprintf(out, cap, "%zx\r\n%s\r\n", strlen(text), text);
}

/* Accepts one stream. The path of the request holds the number of the stream. */
static int accept_stream(const instant_server *s, uint32_t *index)
{
    char buf[4096];
    size_t n = 0;
    const int one = 1;
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    buf[0] = '\0';
    while (strstr(buf, "\r\n\r\n") == NULL && n + 1 < sizeof buf) {
        ssize_t k = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (k <= 0) break;
        n += (size_t)k;
        buf[n] = '\0';
    }
    *index = (uint32_t)strtoul(strncmp(buf, "GET /", 5) == 0 ? buf + 5 : "", NULL, 10);
    if (*index < s->n_streams && write_all(fd, head, sizeof head - 1)) return fd;
    close(fd);
    return -1;
}

static void stream_all(instant_server *s, const int *fd)
{
    char bytes[1024], tail[512];
    const size_t n = chunk(bytes, sizeof bytes, event), n_tail = chunk(tail, sizeof tail, last);
    const uint64_t tick_ns = (uint64_t)s->n_streams * 1000000000u / s->rate;
    uint64_t at = rose_now_ns() + 5000000;
    for (uint32_t e = 0; e < s->n_events && !s->failed; e++, at += tick_ns) {
        const struct timespec ts = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
        for (uint32_t i = 0; i < s->n_streams; i++) {
            s->last_ns = s->sent_ns[(size_t)i * s->n_events + e] = rose_now_ns();
            if (s->first_ns == 0) s->first_ns = s->last_ns;
            if (!write_all(fd[i], bytes, n)) s->failed = true;
        }
    }
    for (uint32_t i = 0; i < s->n_streams; i++) {
        if (!write_all(fd[i], tail, n_tail) || !write_all(fd[i], "0\r\n\r\n", 5)) s->failed = true;
    }
}

static void *serve(void *arg)
{
    instant_server *s = arg;
    int fd[MAX_STREAMS];
    for (uint32_t i = 0; i < MAX_STREAMS; i++)
        fd[i] = -1;
    for (uint32_t i = 0; i < s->n_streams && !s->failed; i++) {
        uint32_t index = 0;
        int f = accept_stream(s, &index);
        if (f < 0 || fd[index] >= 0) {
            s->failed = true;
            if (f >= 0) close(f);
        } else {
            fd[index] = f;
        }
    }
    if (!s->failed) stream_all(s, fd);
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        if (fd[i] >= 0) close(fd[i]);
    }
    return NULL;
}

static rose_status listen_local(instant_server *s, rose_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, n) != 0 ||
        listen(s->listener, MAX_STREAMS) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &n) != 0)
        return rose_fail(err, ROSE_E_IO, "self-test: %s", strerror(errno));
    s->port = ntohs(a.sin_port);
    return ROSE_OK;
}

static rose_status compare(const instant_server *s, const rose_reply *replies, rose_self_test *out)
{
    rose_samples errors = {0}, late = {0};
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < s->n_streams && st == ROSE_OK; i++) {
        const rose_reply *r = &replies[i];
        if (r->error[0] != '\0' || r->n_events != s->n_events) out->n_failed++;
        st = rose_samples_add(&late, (double)(r->start_ns - r->due_ns) * 1e-9);
        for (uint32_t e = 0; e < r->n_events && e < s->n_events && st == ROSE_OK; e++) {
            uint64_t sent = s->sent_ns[(size_t)i * s->n_events + e];
            st = rose_samples_add(&errors, ((double)r->arrivals[e].t_ns - (double)sent) * 1e-9);
        }
    }
    const double span = (double)(s->last_ns - s->first_ns) * 1e-9;
    out->rate = span > 0 ? (double)s->n_streams * (s->n_events - 1) / span : 0;
    out->error = rose_summarise(errors.v, errors.n);
    out->lateness = rose_summarise(late.v, late.n);
    rose_samples_free(&errors);
    rose_samples_free(&late);
    return st;
}

rose_status rose_self_test_run(uint32_t n_streams, uint32_t n_events, uint32_t rate,
                               rose_self_test *out, rose_err *err)
{
    instant_server s = {.n_streams = n_streams, .n_events = n_events, .rate = rate, .listener = -1};
    rose_load_item items[MAX_STREAMS];
    rose_reply replies[MAX_STREAMS] = {{0}};
    rose_buf requests[MAX_STREAMS] = {{0}};
    rose_url url = {.host = "127.0.0.1"};
    pthread_t thread;
    bool running = false;

    *out = (rose_self_test){.n_streams = n_streams, .n_events = n_events};
    if (n_streams == 0 || n_streams > MAX_STREAMS || n_events < 2 || rate == 0)
        return rose_fail(err, ROSE_E_INVAL, "self-test: 1 to %d streams of 2 events or more",
                         MAX_STREAMS);
    s.sent_ns = calloc((size_t)n_streams * n_events, sizeof *s.sent_ns);
    rose_status st = s.sent_ns == NULL ? rose_fail(err, ROSE_E_NOMEM, "out of memory") : ROSE_OK;
    if (st == ROSE_OK) st = listen_local(&s, err);
    snprintf(url.port, sizeof url.port, "%u", s.port);
    for (uint32_t i = 0; i < n_streams && st == ROSE_OK; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%u", i);
        st = rose_request_write(&requests[i], &url, path, NULL, NULL, 0);
        items[i] = (rose_load_item){requests[i].data, requests[i].len, (i + 1) * UINT64_C(2000000)};
    }
    if (st == ROSE_OK) {
        running = pthread_create(&thread, NULL, serve, &s) == 0;
        if (!running) st = rose_fail(err, ROSE_E_IO, "self-test: no thread");
    }
    if (st == ROSE_OK) {
        const rose_load_opts o = {.url = &url, .timeout_ns = 60000000000u};
        st = rose_load_run(&o, items, n_streams, replies, err);
    }
    if (running) {
        shutdown(s.listener, SHUT_RDWR); /* ends an accept() that would wait for ever */
        pthread_join(thread, NULL);
    }
    if (st == ROSE_OK) st = compare(&s, replies, out);
    for (uint32_t i = 0; i < n_streams; i++) {
        rose_reply_free(&replies[i]);
        rose_buf_free(&requests[i]);
    }
    if (s.listener >= 0) close(s.listener);
    free(s.sent_ns);
    return st;
}

static int run(uint32_t rate)
{
    rose_self_test t;
    rose_err err = {{0}};
    const uint32_t n_events = rate * TEST_SECONDS / TEST_STREAMS;
    if (rose_self_test_run(TEST_STREAMS, n_events < 2 ? 2 : n_events, rate, &t, &err) != ROSE_OK)
        return rose_die(&err);
    const bool ok = t.n_failed == 0 && t.error.p99 * 1e6 <= LIMIT_US;
    rose_json *j = rose_json_pack(
        "{s:i, s:i, s:f, s:i, s:o, s:o, s:i, s:b}", "streams", (int)t.n_streams,
        "events_per_stream", (int)t.n_events, "events_per_s", t.rate, "streams_failed",
        (int)t.n_failed, "error_us", rose_summary_json(&t.error, 1e6), "send_lateness_us",
        rose_summary_json(&t.lateness, 1e6), "limit_p99_us", (int)LIMIT_US, "pass", (int)ok);
    if (j != NULL) rose_json_dumpf(j, stdout, ROSE_JSON_INDENT(1) | ROSE_JSON_REAL_PRECISION(6));
    putchar('\n');
    rose_json_decref(j);
    fprintf(stderr, "client error at %.0f events/s: p50 %.1f us, p99 %.1f us, max %.1f us: %s\n",
            t.rate, t.error.p50 * 1e6, t.error.p99 * 1e6, t.error.max * 1e6,
            ok ? "p99 within 50 us" : "p99 over 50 us, or events lost");
    return ok ? 0 : 1;
}

int rose_load_client(int argc, char **argv)
{
    uint32_t rate = 20000, n_args;
    const rose_opt opts[] = {
        ROSE_ROW_U32("rate", &rate, "N", 100, 1000000, "events per second, over all streams"),
    };
    const rose_command cmd = {
        .usage = "load client [options]",
        .about =
            "The timing error of the HTTP client that the benchmarks use. A server in this "
            "process notes\nwhen it sends each event, and the client measures as it always "
            "does. The exit code is 0\nif no event is lost and the p99 of the error is at most "
            "50 us.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    const int rc = rose_opts_parse(&cmd, argc, argv, NULL, &n_args);
    return rc >= 0 ? rc : run(rate);
}
