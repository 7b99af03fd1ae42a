/* The whole server in one process, real rooms and the demo model: golden bytes on a socket, and
 * stopping with requests in every state. `--bench` measures the I/O thread's work per streamed
 * token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/log.h"

typedef struct server {
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_api *api;
    rose_http *http;
} server;

static const char *model_dir(void)
{
    static char path[4096];
    const char *root = getenv("ROSE_ROOT");
    snprintf(path, sizeof path, "%s/models/rose-tiny", root != NULL ? root : ".");
    return path;
}

static void start(server *s, uint32_t n_io, bool async)
{
    rose_err err = {0};
    rose_model *m = NULL;
    rose_engine_opts e;
    rose_api_opts a;
    rose_http_opts h;
    rose_engine_opts_default(&e);
    e.backend.kv_pages = 256;
    e.backend.cpu.n_threads = 1;
    e.backend.max_seqs = 16;
    e.backend.max_step_tokens = 128;
    e.max_queued = 8;
    rose_api_opts_default(&a);
    a.model_id = "tiny";
    a.n_io_threads = n_io;
    a.n_workers = 2;
    a.async_admit = async;
    rose_http_opts_default(&h);
    h.port = 0;
    h.n_threads = n_io;
    if (rose_model_open(&m, model_dir(), &err) != ROSE_OK ||
        rose_tokenizer_open(&s->tok, model_dir(), &err) != ROSE_OK ||
        rose_engine_open(&s->engine, rose_backend_cpu(), m, &e, &err) != ROSE_OK ||
        rose_api_create(&s->api, &a, &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    const rose_http_callbacks cb = rose_api_callbacks(s->api);
    if (rose_http_start(&s->http, &h, &cb, &err) != ROSE_OK ||
        rose_api_attach(s->api, s->http, &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    rose_model_close(m);
    rose_api_set_engine(s->api, s->engine, s->tok);
}

static void stop(server *s)
{
    rose_http_stop(s->http);
    rose_api_stop(s->api);
    rose_engine_close(s->engine);
    rose_api_destroy(s->api);
    rose_tokenizer_close(s->tok);
}

static int send_request(const server *s, const char *path, const char *body)
{
    char head[512];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(rose_http_port(s->http))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)(const void *)&to, sizeof to), 0);
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                     path, strlen(body));
    assert_int_equal(write(fd, head, (size_t)n), n);
    assert_int_equal(write(fd, body, strlen(body)), strlen(body));
    return fd;
}

/* Everything until the server closes. */
static char *read_all(int fd)
{
    rose_buf b = {0};
    char part[4096];
    ssize_t n;
    while ((n = read(fd, part, sizeof part)) > 0)
        assert_int_equal(rose_buf_add(&b, part, (size_t)n), ROSE_OK);
    close(fd);
    assert_non_null(rose_buf_str(&b));
    return b.data;
}

/* Replace what follows each mark up to its stop byte by '*'. */
static void blank(char *s)
{
    static const char *const cuts[][2] = {{"\r\nDate: ", "\r"},      {"\"id\":\"", "\""},
                                          {"\"created\":", ","},     {"\"timings\":{", "}"},
                                          {"Server-Timing: ", "\r"}, {"\"text\":\"", "\""},
                                          {"Content-Length: ", "\r"}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char *p = s;
        while ((p = strstr(p, cuts[i][0])) != NULL) {
            p += strlen(cuts[i][0]);
            size_t n = 0;
            while (p[n] != '\0' && p[n] != cuts[i][1][0])
                n += p[n] == '\\' && p[n + 1] != '\0' ? 2 : 1; /* a quote in the text is escaped */
            if (n == 0) continue;
            *p = '*';
            memmove(p + 1, p + n, strlen(p + n) + 1);
        }
    }
}

/* Drop the chunk framing: lines of hex digits and the ends of chunks. */
static void unchunk(char *s)
{
    char *in = strstr(s, "\r\n\r\n") + 4, *out = in;
    size_t n;
    while ((n = strtoul(in, &in, 16)) > 0) {
        in += 2;
        memmove(out, in, n);
        out += n;
        in += n + 2;
    }
    *out = '\0';
}

/* 16 can run and 8 wait: so many choices are served whenever nothing else waits, more never. */
static void choices(void **state)
{
    static const char with_n[] = "{\"prompt\":\"a\",\"n\":%d,\"max_tokens\":2,\"ignore_eos\":true}";
    char body[128];
    server s = {0};
    (void)state;
    start(&s, 1, true);
    for (int i = 0; i < 8; i++) {
        snprintf(body, sizeof body, with_n, i % 2 == 0 ? 24 : 25);
        char *got = read_all(send_request(&s, "/v1/completions", body));
        const char *status = i % 2 == 0 ? "HTTP/1.1 200" : "HTTP/1.1 400";
        if (strncmp(got, status, strlen(status)) != 0) fail_msg("%s", got);
        if (i % 2 != 0) {
            assert_non_null(strstr(got, "\"param\":\"n\""));
            assert_non_null(strstr(got, "8 wait (--max-num-queued-reqs)"));
            assert_null(strstr(got, "Retry-After"));
        }
        free(got);
    }
    stop(&s);
}

static void golden(void **state)
{
    server s = {0};
    (void)state;
    start(&s, 1, true);
    char *got = read_all(send_request(&s, "/v1/completions",
                                      "{\"prompt\":[1,2,3],\"max_tokens\":3,\"ignore_eos\":true}"));
    blank(got);
    assert_string_equal(
        got,
        "HTTP/1.1 200 OK\r\nDate: *\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Server-Timing: *\r\nContent-Length: *\r\n\r\n"
        "{\"id\":\"*\",\"object\":\"text_completion\",\"created\":*,\"model\":\"tiny\","
        "\"choices\":[{\"index\":0,\"text\":\"*\",\"logprobs\":null,\"finish_reason\":"
        "\"length\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,"
        "\"total_tokens\":6,\"prompt_tokens_details\":{\"cached_tokens\":0}},\"timings\":{*}}");
    free(got);
    got = read_all(send_request(&s, "/v1/completions",
                                "{\"prompt\":\"The\",\"max_tokens\":1,\"temperature\":0,"
                                "\"stream\":true}"));
    unchunk(got);
    blank(got);
    assert_string_equal(
        got, "HTTP/1.1 200 OK\r\nDate: *\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
             "Connection: close\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
             "Server-Timing: *\r\nTransfer-Encoding: chunked\r\n\r\n"
             "data: {\"id\":\"*\",\"object\":\"text_completion\",\"created\":*,\"model\":\"tiny\","
             "\"choices\":[{\"index\":0,\"text\":\"*\",\"logprobs\":null,\"finish_reason\":"
             "\"length\",\"stop_reason\":null}],\"timings\":{*}}\n\ndata: [DONE]\n\n");
    free(got);
    got = read_all(send_request(&s, "/v1/completions", "{\"prompt\":\"x\",\"suffix\":\"a\"}"));
    blank(got);
    assert_string_equal(
        got, "HTTP/1.1 400 Bad Request\r\nDate: *\r\nContent-Type: application/json\r\n"
             "Connection: close\r\nContent-Length: *\r\n\r\n"
             "{\"error\":{\"message\":\"field 'suffix' is not supported by this server\",\"type\":"
             "\"invalid_request_error\",\"param\":\"suffix\",\"code\":\"unsupported_field\"}}");
    free(got);
    got = read_all(send_request(&s, "/detokenize", "{\"tokens\":[1,2],\"a\\r\\nb: c\":1}"));
    blank(got);
    assert_string_equal(
        got, "HTTP/1.1 200 OK\r\nDate: *\r\nContent-Type: application/json\r\n"
             "Connection: close\r\nX-Ignored-Fields: a%0D%0Ab%3A%20c\r\nContent-Length: *\r\n\r\n"
             "{\"prompt\":\"!\\\"\"}");
    free(got);
    stop(&s);
}

/* Requests in the workers' queue, in the engine's queue, running, half answered. */
static void stop_at_any_time(void **state)
{
    (void)state;
    srand(20261121);
    for (int i = 0; i < 12; i++) {
        server s = {0};
        int fd[40];
        char body[160];
        start(&s, 1 + (uint32_t)i % 3, i % 4 != 3);
        for (int k = 0; k < 40; k++) {
            snprintf(body, sizeof body,
                     "{\"prompt\":\"%d\",\"max_tokens\":200,\"ignore_eos\":true,\"n\":%d,"
                     "\"stream\":%s}",
                     k, 1 + k % 2, k % 3 != 0 ? "true" : "false");
            fd[k] = send_request(&s, "/v1/completions", body);
            if (k % 5 == 4) close(fd[k]);
        }
        usleep((useconds_t)(rand() % 30000));
        stop(&s);
        for (int k = 0; k < 40; k++) {
            if (k % 5 != 4) close(fd[k]);
        }
    }
}

/* ---- ns per token: detokenise, look for stop strings, write the event ---- */

static double bench_once(const rose_tokenizer *t, bool fast, bool chat, uint32_t n_stops)
{
    enum { N = 200000 };
    static const char *const strings[] = {"\nUser:", "###", "<|end|>", "Observation:"};
    rose_api api = {.o = {.model_id = "rose-tiny", .fast_sse = fast}};
    const rose_api_dialect *d = chat ? &rose_api_dialect_chat : &rose_api_dialect_completion;
    rose_api_job j = {.api = &api,
                      .kind = chat ? ROSE_API_CHAT : ROSE_API_COMPLETION,
                      .dialect = d,
                      .created = 1795226514};
    uint32_t states[4] = {0}, vocab = rose_tokenizer_vocab_size(t);
    rose_api_choice c = {.job = &j, .begun = true, .stop = {.state = states}};
    rose_api_out text = {0}, out = {0};
    char *piece = malloc(rose_detok_cap(t) + 16);
    snprintf(j.id, sizeof j.id, "cmpl-0123456789abcdef");
    for (uint32_t i = 0; i < n_stops; i++)
        rose_stops_add(&j.stops, strings[i], strlen(strings[i]));
    d->head(&j.head, &j, NULL);
    uint64_t t0 = rose_now_ns(), bytes = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t id = (i * 2654435761u) % vocab;
        rose_api_out_reset(&text);
        rose_api_out_reset(&out);
        size_t n = rose_detok_push(&c.detok, t, id, ROSE_DECODE_SKIP_SPECIAL, piece);
        if (rose_buf_reserve(&text.b, c.stop.held + n) != ROSE_OK) abort();
        rose_stop_push(&j.stops, &c.stop, piece, n, &text.b);
        if (!rose_api_part_add(&c, ROSE_API_PART_TEXT, 0, text.b.data, text.b.len)) abort();
        if (text.b.len > 0) d->event(&out, &c, false);
        bytes += out.b.len;
    }
    double ns = (double)(rose_now_ns() - t0) / N;
    if (bytes == 0) abort();
    free(piece);
    free(c.parts);
    rose_buf_free(&c.text);
    rose_stops_free(&j.stops);
    rose_api_out_free(&j.head);
    rose_api_out_free(&text);
    rose_api_out_free(&out);
    return ns;
}

static int bench(void)
{
    rose_tokenizer *t = NULL;
    rose_err err = {0};
    if (rose_tokenizer_open(&t, model_dir(), &err) != ROSE_OK) return 1;
    for (int chat = 0; chat < 2; chat++) {
        for (uint32_t n_stops = 0; n_stops <= 4; n_stops += 2) {
            double best[2] = {1e9, 1e9};
            for (int i = 0; i < 10; i++) { /* interleaved, best of five each */
                double ns = bench_once(t, i % 2 == 0, chat != 0, n_stops);
                if (ns < best[i % 2]) best[i % 2] = ns;
            }
            printf("%s, %u stop strings: fast %.0f ns a token, generic %.0f ns, ratio %.1f\n",
                   chat ? "chat" : "completion", n_stops, best[0], best[1], best[1] / best[0]);
        }
    }
    rose_tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    rose_log_set_level(ROSE_LOG_WARN);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices),
        cmocka_unit_test(golden),
        cmocka_unit_test(stop_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
