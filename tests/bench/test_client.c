/* The client: SSE and HTTP in pieces of any size, tokens counted from ids, usage or events, URLs,
 * and whole runs against a server that misbehaves. */
#include "bench/bench_fixture.h"

#include "base/clock.h"
#include "bench/proc.h"
#include "bench/stats.h"

/* ---- why a program ended ---- */

static void test_log_why(void **state)
{
    (void)state;
    static const struct {
        const char *log, *why;
    } all[] = {
        {"", ""},
        {"\n \n", ""},
        {"one\ntwo \r\n\n", "two"},
        {"no newline", "no newline"},
        {"start\n(W pid=1) ERROR 1 [x.py:9] ValueError: too small\n  File \"y\"\n"
         "RuntimeError: failed. See above.\n",
         "ValueError: too small; at the end: RuntimeError: failed. See above."},
        {"a.b.MyException: first\r\nlast\n", "a.b.MyException: first; at the end: last"},
        {"text\nKeyError: 'k'\n", "KeyError: 'k'"}, /* the only line is also the last */
        {"Error: \xff\xfe\nx\n", "Error: ??; at the end: x"},
    };
    char path[] = "/tmp/rose-log-XXXXXX", why[256];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        FILE *f = fopen(path, "w");
        fputs(all[i].log, f);
        fclose(f);
        rose_proc_log_why(path, why, sizeof why);
        assert_string_equal(why, all[i].why);
    }
    FILE *f = fopen(path, "w"); /* longer than the part that is read, and without a line end */
    for (int i = 0; i < 3000000; i++)
        fputc('x', f);
    fclose(f);
    rose_proc_log_why(path, why, sizeof why);
    assert_int_equal(strlen(why), sizeof why - 1);
    unlink(path);
    rose_proc_log_why(path, why, sizeof why);
    assert_string_equal(why, "");
    rose_proc_log_why("", why, sizeof why);
    assert_string_equal(why, "");
}

/* ---- SSE ---- */

static char events[4096];

static rose_status note_event(void *user, const char *data, size_t len)
{
    (void)user;
    size_t n = strlen(events);
    snprintf(events + n, sizeof events - n, "<%.*s>", (int)len, data);
    return ROSE_OK;
}

static void test_sse_split(void **state)
{
    (void)state;
    static const char text[] = ": comment\n\ndata: one\n\ndata:two\r\ndata: three\r\n\r\nevent: x\n"
                               "data:  four\r\rdata\n\ndatax: no\nid: 1\n\ndata: five\n\ndata: cut";
    static const char want[] = "<one><two\nthree>< four><><five>";
    const size_t n = sizeof text - 1;
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            rose_sse s = {0};
            events[0] = '\0';
            assert_int_equal(rose_sse_feed(&s, text, a, note_event, NULL), ROSE_OK);
            assert_int_equal(rose_sse_feed(&s, text + a, b - a, note_event, NULL), ROSE_OK);
            assert_int_equal(rose_sse_feed(&s, text + b, n - b, note_event, NULL), ROSE_OK);
            if (strcmp(events, want) != 0) fail_msg("split at %zu and %zu: %s", a, b, events);
            rose_sse_free(&s);
        }
    }
}

static void test_sse_limits(void **state)
{
    (void)state;
    char *big = malloc(ROSE_SSE_MAX_EVENT + 16);
    memset(big, 'x', ROSE_SSE_MAX_EVENT + 16);
    memcpy(big, "data:", 5);
    rose_sse s = {0};
    assert_int_equal(rose_sse_feed(&s, big, ROSE_SSE_MAX_EVENT + 16, note_event, NULL),
                     ROSE_E_FORMAT); /* a line without an end */
    rose_sse_free(&s);
    rose_status st = ROSE_OK;
    for (int i = 0; i < 4 && st == ROSE_OK; i++) { /* an event of lines without an end */
        big[ROSE_SSE_MAX_EVENT / 3] = '\n';
        st = rose_sse_feed(&s, big, ROSE_SSE_MAX_EVENT / 3 + 1, note_event, NULL);
    }
    assert_int_equal(st, ROSE_E_FORMAT);
    rose_sse_free(&s);
    free(big);
}

/* ---- replies ---- */

#define SSE_HEAD          "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
#define CHUNK(size, text) size "\r\n" text "\r\n"
#define EV(text)          "data: {\"choices\":[{\"index\":0,\"text\":\"" text "\"}]}\n\n"
#define END               "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
#define USAGE(n)                                                                                   \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":" #n "}}\n\n"
#define DONE "data: [DONE]\n\n"

/* Feeds the whole reply, which ends when the connection closes, in two pieces that meet at every
 * possible byte. */
static rose_reply feed(const char *text, size_t cut)
{
    rose_reader r;
    rose_reply reply = {.max_tokens = 9};
    const size_t n = strlen(text);
    rose_reader_init(&r);
    rose_reader_begin(&r, &reply);
    rose_status st = rose_reader_feed(&r, text, cut, 100);
    if (st == ROSE_OK && !r.complete && cut < n)
        st = rose_reader_feed(&r, text + cut, n - cut, 200);
    if (st == ROSE_OK && !r.complete) rose_reader_eof(&r, 300);
    rose_reply_settle(&reply);
    rose_reader_free(&r);
    return reply;
}

typedef struct reply_case {
    const char *text, *error; /* error: a part of the expected message; NULL = success */
    uint32_t n_events, n_tokens;
    bool lies;
} reply_case;

static const reply_case cases[] = {
    {SSE_HEAD "\r\n" EV("a") EV("b") END USAGE(2) DONE, NULL, 2, 2, false},
    {SSE_HEAD "\r\n" EV("a") EV("b") END USAGE(5) DONE, NULL, 2, 5,
     false}, /* several tokens in one event */
    /* without usage, events are counted */
    {SSE_HEAD "\r\n" EV("a") EV("b") END DONE, NULL, 2, 2, false},
    /* the usage is impossible */
    {SSE_HEAD "\r\n" EV("a") EV("b") END USAGE(1) DONE, NULL, 2, 2, true},
    {SSE_HEAD "\r\n" EV("a") EV("") EV("b") DONE, NULL, 2, 2, false},
    {SSE_HEAD "\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
              "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n" DONE,
     NULL, 1, 1, false},
    {SSE_HEAD "\r\ndata: {\"choices\":[{\"text\":\"abc\",\"token_ids\":[1,2,3]}]}\n\n"
              "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[4]}]}\n\n" END USAGE(4) DONE,
     NULL, 2, 4, false},
    {SSE_HEAD "\r\ndata: {\"choices\":[{\"text\":\"abc\",\"token_ids\":[1,2]}]}\n\n" END USAGE(9)
         DONE,
     NULL, 1, 2, true},
    {SSE_HEAD
     "\r\ndata: {\"choices\":[{\"text\":\"ab\"}],\"usage\":{\"completion_tokens\":2}}\n\n"
     "data: {\"choices\":[{\"text\":\"cde\"}],\"usage\":{\"completion_tokens\":5}}\n\n" DONE,
     NULL, 2, 5, false},
    /* a token that ends amid a character has no text, but the running usage counts it */
    {SSE_HEAD
     "\r\ndata: {\"choices\":[{\"text\":\"\"}],\"usage\":{\"completion_tokens\":1}}\n\n"
     "data: {\"choices\":[{\"text\":\"cde\"}],\"usage\":{\"completion_tokens\":2}}\n\n" DONE,
     NULL, 2, 2, false},
    {SSE_HEAD "Transfer-Encoding: chunked\r\n\r\n" CHUNK("5", "data:") CHUNK("1", " ")
         CHUNK("26", "{\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DON") CHUNK("4", "E]\n\n")
             CHUNK("0", ""),
     NULL, 1, 1, false},
    {"HTTP/1.1 100 Continue\r\n\r\n" SSE_HEAD "\r\n" EV("a") DONE, NULL, 1, 1, false},
    {SSE_HEAD "\r\n" EV("a") EV("\\u0000") EV("b") DONE, NULL, 3, 3, false},
    {SSE_HEAD "\r\n" DONE, "no token", 0, 0, false},
    {SSE_HEAD "\r\n" EV("a"), "ended after 1", 1, 1, false},
    {SSE_HEAD "\r\n" EV("a") "data: {\"error\":{\"message\":\"boom\"}}\n\n" DONE, "boom", 1, 1,
     false},
    {SSE_HEAD "\r\n" EV("a") "data: {nonsense\n\n" DONE, "no JSON", 1, 1, false},
    {SSE_HEAD "\r\ndata: [1,2]\n\ndata: 7\n\n" DONE, "no JSON", 0, 0, false},
    {SSE_HEAD "\r\ndata: {\"choices\":7,\"usage\":[],\"timings\":3,\"error\":null}\n\n" DONE,
     "no token", 0, 0, false},
    {SSE_HEAD "\r\ndata: {\"choices\":[{\"text\":5,\"token_ids\":\"x\",\"finish_reason\":1}],"
              "\"usage\":{\"completion_tokens\":-5}}\n\n" DONE,
     "no token", 0, 0, false},
    {SSE_HEAD "\r\n" EV("a") EV("b") END USAGE(9) DONE, NULL, 2, 9, false},
    {SSE_HEAD "\r\n" EV("a") EV("b") END USAGE(10) DONE, NULL, 2, 2,
     true}, /* more tokens than were asked for */
    {SSE_HEAD
     "\r\ndata: {\"choices\":[{\"text\":\"ab\"}],\"usage\":{\"completion_tokens\":100}}\n\n"
     "data: {\"choices\":[{\"text\":\"cde\"}],\"usage\":{\"completion_tokens\":200}}\n\n" DONE,
     NULL, 2, 2, true},
    {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
     "no event stream, but content type 'application/json'", 0, 0, false},
    {"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: "
     "45\r\n\r\n"
     "{\"error\":{\"message\":\"the queue is full now\"}}",
     "429: the queue is full", 0, 0, false},
    {"HTTP/1.1 400 Bad\r\nContent-Length: 26\r\n\r\n{\"detail\":\"no \xe2\x82\xac at all\"}",
     "400: no \xe2\x82\xac at all", 0, 0, false}, /* the shape of FastAPI's errors */
    {"HTTP/1.1 400 Bad\r\nContent-Length: 15\r\n\r\n{\"error\":\"gone\"}", "HTTP status 400", 0, 0,
     false},
    {"HTTP/1.1 400 Bad\r\nContent-Length: 16\r\n\r\n{\"error\":\"gone\"}", "400: gone", 0, 0,
     false},
    {"HTTP/1.1 500 Internal\r\nContent-Length: 4\r\n\r\noops", "HTTP status 500", 0, 0, false},
    {"HTTP/1.1 204 No Content\r\n\r\n", "HTTP status 204", 0, 0, false},
    {"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP", 0, 0, false},
    {SSE_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP", 0, 0, false},
    {SSE_HEAD "Transfer-Encoding: chunked\r\n\r\n" CHUNK("5", "data:"), "closed the connection", 0,
     0, false},
    {SSE_HEAD "Content-Length: 500\r\n\r\n" EV("a"), "closed the connection", 1, 1, false},
};

static void test_replies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const reply_case *c = &cases[i];
        for (size_t cut = 1; cut <= strlen(c->text); cut++) {
            rose_reply r = feed(c->text, cut);
            bool ok = c->error == NULL ? r.error[0] == '\0' : strstr(r.error, c->error) != NULL;
            if (!ok || r.n_events != c->n_events || r.n_tokens != c->n_tokens ||
                r.usage_lies != c->lies)
                fail_msg("case %zu cut at %zu: '%s', %u events, %u tokens, lies %d", i, cut,
                         r.error, r.n_events, r.n_tokens, r.usage_lies);
            rose_reply_free(&r);
        }
    }
}

static void test_reply_times(void **state)
{
    (void)state;
    static const char a[] = SSE_HEAD "\r\n" EV("a");
    static const char b[] = EV("b") END "data: {\"choices\":[],\"timings\":{\"queue_wait_ms\":1.5,"
                                        "\"ttft_ms\":3}}\n\n" DONE;
    rose_reader rd;
    rose_reply r = {0};
    rose_reader_init(&rd);
    rose_reader_begin(&rd, &r);
    assert_int_equal(rose_reader_feed(&rd, a, sizeof a - 1, 1000), ROSE_OK);
    assert_int_equal(rose_reader_feed(&rd, b, sizeof b - 1, 5000), ROSE_OK);
    assert_int_equal(rose_reader_eof(&rd, 7000), ROSE_OK);
    assert_true(r.first_ns == 1000 && r.last_ns == 5000 && r.end_ns == 7000);
    assert_true(r.has_times && r.times.queue_wait == 1.5 && r.times.ttft == 3 && r.times.e2e == -1);
    assert_string_equal(r.finish, "length");
    rose_reader_free(&rd);
    rose_reply_free(&r);
}

/* A kernel's stamp is converted between two clocks, so it may be earlier than the stamp
 * before it. */
static void test_stamps_backwards(void **state)
{
    (void)state;
    rose_reader rd;
    rose_reply r = {0};
    rose_reader_init(&rd);
    rose_reader_begin(&rd, &r);
    const char *const parts[] = {SSE_HEAD "\r\n" EV("a"), EV("b"), EV("c") END DONE};
    const uint64_t stamps[] = {1000, 990, 1100};
    for (int i = 0; i < 3; i++)
        assert_int_equal(rose_reader_feed(&rd, parts[i], strlen(parts[i]), stamps[i]), ROSE_OK);
    assert_int_equal(rose_reader_eof(&rd, 1050), ROSE_OK);
    assert_int_equal(r.n_events, 3);
    assert_true(r.arrivals[0].t_ns == 1000 && r.arrivals[1].t_ns == 1000);
    assert_true(r.arrivals[2].t_ns == 1100 && r.last_ns == 1100 && r.end_ns == 1100);
    rose_reader_free(&rd);
    rose_reply_free(&r);
}

static void test_mutated_replies(void **state)
{
    (void)state;
    rose_random rnd = {test_seed(), 1, 0};
    for (int i = 0; i < 20000; i++) {
        const char *seed = cases[rose_random_u32(&rnd) % (sizeof cases / sizeof *cases)].text;
        char text[1024];
        size_t n = strlen(seed);
        memcpy(text, seed, n + 1);
        for (uint32_t k = 1 + rose_random_u32(&rnd) % 3; k > 0; k--)
            text[rose_random_u32(&rnd) % n] = (char)(1 + rose_random_u32(&rnd) % 255);
        rose_reply r = feed(text, 1 + rose_random_u32(&rnd) % n);
        assert_true(r.error[0] != '\0' || (r.n_events > 0 && r.finished && r.status == 200));
        rose_reply_free(&r);
    }
}

/* ---- URLs and arguments ---- */

static void test_urls(void **state)
{
    (void)state;
    const struct {
        const char *url, *host, *port, *path; /* host NULL: the URL is refused */
    } all[] = {{"http://a", "a", "80", ""},
               {"http://127.0.0.1:8000/", "127.0.0.1", "8000", ""},
               {"HTTP://h:1/base/v2/", "h", "1", "/base/v2"},
               {"http://[::1]:9/x", "::1", "9", "/x"},
               {"http://[::1]", "::1", "80", ""},
               {"https://a", NULL, NULL, NULL},
               {"a:80", NULL, NULL, NULL},
               {"http://", NULL, NULL, NULL},
               {"http://:80", NULL, NULL, NULL},
               {"http://a:", NULL, NULL, NULL},
               {"http://a:x", NULL, NULL, NULL},
               {"http://a:123456", NULL, NULL, NULL},
               {"http://[::1", NULL, NULL, NULL},
               {"http://[::1]x", NULL, NULL, NULL},
               {"http://a b", NULL, NULL, NULL},
               {"http://a/\r\nX: y", NULL, NULL, NULL},
               {"http://u@h", NULL, NULL, NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        rose_url u;
        rose_err err = {""};
        rose_status st = rose_url_parse(&u, all[i].url, &err);
        if ((st == ROSE_OK) != (all[i].host != NULL)) fail_msg("%s: %s", all[i].url, err.msg);
        if (st != ROSE_OK) continue;
        assert_string_equal(u.host, all[i].host);
        assert_string_equal(u.port, all[i].port);
        assert_string_equal(u.path, all[i].path);
    }
}

static void test_args_split(void **state)
{
    (void)state;
    rose_buf copy = {0};
    char *args[ROSE_PROC_MAX_ARGS];
    uint32_t n = 0;
    assert_int_equal(rose_args_split("  a 'b c'  \"\" d\"e f\"g ", &copy, args, &n, NULL), ROSE_OK);
    assert_int_equal(n, 4);
    assert_string_equal(args[0], "a");
    assert_string_equal(args[1], "b c");
    assert_string_equal(args[2], "");
    assert_string_equal(args[3], "de fg");
    assert_int_equal(rose_args_split("x 'y", &copy, args, &n, NULL), ROSE_E_INVAL);
    rose_buf_free(&copy);
}

/* ---- whole runs ---- */

static const char good[] = SSE_HEAD "Transfer-Encoding: chunked\r\n\r\n"
                                    "2c\r\ndata: {\"choices\":[{\"text\":\"hello\"}]}      \n\n\r\n"
                                    "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static bool always_good(int fd, uint32_t i)
{
    (void)i;
    return say(fd, good);
}

/* The scripted server serves one connection at a time, so closing one makes room for the next. */
static bool good_and_close(int fd, uint32_t i)
{
    (void)i;
    say(fd, SSE_HEAD "Connection: close\r\n\r\n" EV("a") DONE);
    return false;
}

/* What the server does by the number of the request: answers, closes at once, closes in the middle
 * of a reply, goes silent, sends 503, sends garbage, closes while idle. */
static bool rogue(int fd, uint32_t i)
{
    switch (i) {
    case 1:
        return false;
    case 2:
        say(fd, SSE_HEAD "\r\n" EV("a"));
        return false;
    case 3:
        /* silent until the client leaves */
        return say(fd, SSE_HEAD "Content-Length: 9999\r\n\r\n" EV("a"));
    case 4:
        return say(fd, "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    case 5:
        say(fd, "\x16\x03\x01 what");
        return false;
    default:
        return say(fd, good);
    }
}

typedef struct whole_run {
    rose_buf bytes;
    rose_load_item items[64];
    rose_reply replies[64];
} whole_run;

static void run_load(whole_run *w, const rose_load_opts *o, uint32_t n, uint64_t gap_ns)
{
    *w = (whole_run){0};
    rose_err err = {""};
    assert_int_equal(rose_request_write(&w->bytes, o->url, "/v1/completions", "key", "{}", 2),
                     ROSE_OK);
    for (uint32_t i = 0; i < n; i++)
        w->items[i] = (rose_load_item){w->bytes.data, w->bytes.len, i * gap_ns};
    if (rose_load_run(o, w->items, n, w->replies, &err) != ROSE_OK) fail_msg("%s", err.msg);
}

static void free_run(whole_run *w)
{
    for (int i = 0; i < 64; i++)
        rose_reply_free(&w->replies[i]);
    rose_buf_free(&w->bytes);
}

static void test_closed_loop(void **state)
{
    (void)state;
    scripted s;
    whole_run w;
    scripted_start(&s, always_good);
    const rose_load_opts o = {.url = &s.url, .concurrency = 1, .timeout_ns = 5000000000u};
    run_load(&w, &o, 64, 0);
    scripted_stop(&s);
    for (int i = 0; i < 64; i++) {
        const rose_reply *r = &w.replies[i];
        if (r->error[0] != '\0') fail_msg("request %d: %s", i, r->error);
        assert_int_equal(r->n_tokens, 1);
        assert_true(r->due_ns <= r->start_ns && r->start_ns <= r->first_ns &&
                    r->first_ns <= r->end_ns);
        if (i > 0) assert_true(r->start_ns >= w.replies[i - 1].end_ns); /* one request at a time */
    }
    assert_int_equal(s.n_requests, 64);
    assert_int_equal(s.n_connections, 1); /* the connection is kept and used again */
    free_run(&w);
}

static void test_open_loop_times(void **state)
{
    (void)state;
    scripted s;
    whole_run w;
    scripted_start(&s, good_and_close);
    const rose_load_opts o = {.url = &s.url, .timeout_ns = 5000000000u};
    run_load(&w, &o, 20, 3000000);
    scripted_stop(&s);
    for (int i = 0; i < 20; i++) {
        assert_string_equal(w.replies[i].error, "");
        /* a request is never sent early */
        assert_true(w.replies[i].start_ns >= w.replies[i].due_ns);
        if (i > 0) assert_int_equal(w.replies[i].due_ns - w.replies[i - 1].due_ns, 3000000);
    }
    free_run(&w);
}

/* Returns false if a reply that should be no stall was silent for stall_ns, as happens when the
 * machine stood still. */
static bool misbehaving_server(uint64_t stall_ns)
{
    static const char *const want[] = {
        "", "without a reply", "ended after 1", "silence", "503", "not HTTP", "", "", ""};
    scripted s;
    whole_run w;
    uint32_t n_silent = 0;
    scripted_start(&s, rogue);
    const rose_load_opts o = {
        .url = &s.url, .concurrency = 1, .timeout_ns = 20000000000u, .stall_ns = stall_ns};
    run_load(&w, &o, 9, 0);
    scripted_stop(&s);
    for (int i = 0; i < 9; i++)
        n_silent += strstr(w.replies[i].error, "silence") != NULL;
    if (n_silent > 1) {
        free_run(&w);
        return false;
    }
    /* request 1 failed on the kept connection and was sent again, so later requests have higher
     * numbers */
    int k = 0;
    assert_string_equal(w.replies[k++].error, "");
    for (int i = 2; i <= 5; i++, k++) {
        if (strstr(w.replies[k].error, want[i]) == NULL)
            fail_msg("reply %d: '%s', expected '%s'", k, w.replies[k].error, want[i]);
    }
    for (; k < 9; k++)
        assert_string_equal(w.replies[k].error, "");
    free_run(&w);
    return true;
}

static void test_misbehaving_server(void **state)
{
    (void)state;
    assert_true(misbehaving_server(600000000u) || misbehaving_server(6000000000u));
}

static bool dies_fresh(int fd, uint32_t i)
{
    (void)fd;
    (void)i;
    return false;
}

static void test_dead_server(void **state)
{
    (void)state;
    scripted s;
    whole_run w;
    scripted_start(&s, dies_fresh);
    rose_load_opts o = {.url = &s.url, .concurrency = 4, .timeout_ns = 5000000000u};
    run_load(&w, &o, 8, 0);
    scripted_stop(&s);
    for (int i = 0; i < 8; i++)
        assert_non_null(strstr(w.replies[i].error, "without a reply"));
    free_run(&w);
    run_load(&w, &o, 8, 0); /* nobody listens any more */
    for (int i = 0; i < 8; i++)
        assert_non_null(strstr(w.replies[i].error, "connect: "));
    free_run(&w);
}

static void test_stopped(void **state)
{
    (void)state;
    static volatile sig_atomic_t stop = 1;
    scripted s;
    whole_run w;
    scripted_start(&s, always_good);
    const rose_load_opts o = {.url = &s.url, .stop = &stop};
    run_load(&w, &o, 4, 0);
    scripted_stop(&s);
    for (int i = 0; i < 4; i++)
        assert_non_null(strstr(w.replies[i].error, "stopped"));
    free_run(&w);
}

static void test_http_get(void **state)
{
    (void)state;
    scripted s;
    int status;
    rose_buf body = {0};
    rose_url nobody = {.host = "127.0.0.1"};
    snprintf(nobody.port, sizeof nobody.port, "%u", rose_free_port());
    scripted_start(&s, rogue);
    assert_int_equal(rose_http_call(&s.url, "/x", NULL, NULL, 2000, &status, NULL, NULL), ROSE_OK);
    assert_int_equal(status, 200);
    assert_int_not_equal(rose_http_call(&s.url, "/x", NULL, NULL, 2000, &status, NULL, NULL),
                         ROSE_OK);
    assert_int_not_equal(rose_http_call(&nobody, "/x", NULL, NULL, 500, &status, &body, NULL),
                         ROSE_OK);
    assert_int_equal(status, 0);
    scripted_stop(&s);
    rose_buf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_why),         cmocka_unit_test(test_sse_split),
        cmocka_unit_test(test_sse_limits),      cmocka_unit_test(test_replies),
        cmocka_unit_test(test_reply_times),     cmocka_unit_test(test_stamps_backwards),
        cmocka_unit_test(test_mutated_replies), cmocka_unit_test(test_urls),
        cmocka_unit_test(test_args_split),      cmocka_unit_test(test_closed_loop),
        cmocka_unit_test(test_open_loop_times), cmocka_unit_test(test_misbehaving_server),
        cmocka_unit_test(test_dead_server),     cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_http_get),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
