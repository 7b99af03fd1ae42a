/* tests/http/test_http_places.c - the limits of connections and of descriptors: who is dropped, who
 * is answered, and what the log says. Nothing is checked against the clock. */
#include <semaphore.h>
#include <sys/resource.h>

#include "http_fixture.h"
#include "log_capture.h"

static const char HELLO[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
static const char NEVER[] = "GET /never HTTP/1.1\r\nHost: x\r\n\r\n";
static const char SLOW_BODY[] = "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n1";

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

static void close_all(int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
}

static void wait_connections(uint32_t n)
{
    for (int i = 0; i < 20000 && rose_http_connections(g_http) != n; i++)
        usleep(1000);
    assert_int_equal(rose_http_connections(g_http), n);
}

static bool is_open(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* The status of the reply to `request`, which must hold `text`, and end the connection. */
static void expect(const char *request, int status, const char *text)
{
    rose_buf b = {0};
    int fd = client();
    (void)say_bytes(fd, request, strlen(request));
    assert_int_equal(hear(fd, &b, 0), 0);
    if (status_of(&b) != status || strstr(rose_buf_str(&b), text) == NULL)
        fail_msg("not %d with '%s': %s", status, text, b.data);
    rose_buf_free(&b);
    close(fd);
}

/* An upload in two parts is honest work like any other. */
static void expect_upload(void)
{
    rose_buf b = {0};
    int fd = client();
    say(fd, "POST /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\n\r\n1234");
    usleep(1000);
    say(fd, "5678");
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_int_equal(status_of(&b), 200);
    assert_non_null(strstr(rose_buf_str(&b), " 8:12345678"));
    rose_buf_free(&b);
    close(fd);
}

/* Clients that send no complete request give way to new ones, the oldest first. */
static void crowd(uint32_t limit, uint32_t n, const char *opening)
{
    rose_http_opts o = test_opts();
    o.max_connections = limit;
    server_start(&o);
    int *fds = calloc(n, sizeof *fds);
    assert_non_null(fds);
    for (uint32_t i = 0; i < n; i++) {
        fds[i] = client();
        (void)say_bytes(fds[i], opening, strlen(opening));
    }
    wait_connections(limit);
    for (uint64_t left = 1; left > 0; usleep(1000)) /* every one has been accepted */
        left = n - limit - rose_http_n_dropped(g_http);
    for (uint32_t i = 0; i < n; i++)
        if (is_open(fds[i]) != (i >= n - limit)) fail_msg("%u of %u", i, n);
    for (int i = 0; i < 10; i++) {
        expect_hello();
        expect_upload();
    }
    assert_int_equal(rose_http_n_dropped(g_http), n - limit + 1); /* the first hello's place is free
                                                                      for those after it */
    assert_int_equal(rose_http_n_refused(g_http), 0);
    close_all(fds, n);
    free(fds);
    wait_no_connections();
    server_stop();
}

static void test_crowds(void **state)
{
    (void)state;
    log_begin();
    crowd(64, 300, SLOW_BODY);
    crowd(64, 300, "GET /hello HTTP/1.1\r\nX: ");
    crowd(64, 300, "");
    char *log = log_end();
    assert_int_equal(log_count(log, "the limit of 64 connections is met (--max-connections)"), 3);
    assert_int_equal(log_count(log, "\n"), 3); /* one line a server */
    free(log);
}

/* The numbers with which a first user was locked out. */
static void test_crowd_of_thousands(void **state)
{
    enum { LIMIT = 4096, N = 4200, FDS = 2 * N + 256 };
    struct rlimit old, wide;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    if (old.rlim_max < FDS) skip();
    wide = old;
    if (wide.rlim_cur < FDS) wide.rlim_cur = FDS;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &wide), 0);
    rose_log_set_level(ROSE_LOG_OFF);
    crowd(LIMIT, N, SLOW_BODY);
    rose_log_set_level(ROSE_LOG_INFO);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* A connection between requests also waits; it is closed silently, as by an idle time-out. */
static void test_idle_give_way(void **state)
{
    enum { LIMIT = 4, N = 10 };
    int fds[N];
    rose_buf b[N] = {{0}};
    (void)state;
    rose_http_opts o = test_opts();
    o.max_connections = LIMIT;
    server_start(&o);
    rose_log_set_level(ROSE_LOG_OFF);
    for (int i = 0; i < N; i++) {
        fds[i] = client();
        say(fds[i], HELLO);
        assert_int_equal(hear(fds[i], &b[i], 10), 1);
        if (i > 0) continue;
        b[0].len = 0; /* its reply's last bytes */
    }
    for (int i = 0; i < N; i++) {
        bool gone = i < N - LIMIT;
        if (gone) assert_int_equal(hear(fds[i], &b[i], 0), 0);
        if (gone && i > 0) assert_null(strstr(rose_buf_str(&b[i]), "503"));
        rose_buf_free(&b[i]);
    }
    /* work makes the oldest the youngest */
    say(fds[N - LIMIT], HELLO);
    assert_int_equal(hear(fds[N - LIMIT], &b[0], 150), 1);
    expect_hello();
    wait_connections(LIMIT - 1);
    assert_int_equal(hear(fds[N - LIMIT + 1], &b[1], 0), 0);
    rose_buf_free(&b[0]);
    rose_buf_free(&b[1]);
    rose_log_set_level(ROSE_LOG_INFO);
    close_all(fds, N);
    wait_no_connections();
}

/* Refused clients may linger, but not in another's place. */
static void test_lingering_give_way(void **state)
{
    enum { LIMIT = 8 };
    int fds[LIMIT];
    (void)state;
    rose_http_opts o = test_opts();
    o.max_connections = LIMIT;
    server_start(&o);
    rose_log_set_level(ROSE_LOG_OFF);
    for (int i = 0; i < LIMIT; i++) {
        rose_buf b = {0};
        fds[i] = client();
        say(fds[i], "BREW / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_int_equal(hear(fds[i], &b, 0), 0); /* its answer; we do not close */
        assert_int_equal(status_of(&b), 400);
        rose_buf_free(&b);
    }
    assert_int_equal(rose_http_connections(g_http), LIMIT);
    expect_hello();
    assert_int_equal(rose_http_n_dropped(g_http), 1);
    rose_log_set_level(ROSE_LOG_INFO);
    close_all(fds, LIMIT);
    wait_no_connections();
}

static sem_t g_stands, g_may_go_on;

static void stand_still(void *arg)
{
    (void)arg;
    sem_post(&g_stands);
    while (sem_wait(&g_may_go_on) != 0) /* EINTR */
        ;
}

/* A request that has come is work, although its thread has not read it when a new client comes. */
static void test_unread_request_is_work(void **state)
{
    rose_buf b = {0};
    (void)state;
    rose_http_opts o = test_opts();
    o.max_connections = 1;
    server_start(&o);
    rose_log_set_level(ROSE_LOG_OFF);
    assert_int_equal(sem_init(&g_stands, 0, 0) | sem_init(&g_may_go_on, 0, 0), 0);
    int first = client();
    wait_connections(1);
    assert_int_equal(rose_http_post(g_http, 0, stand_still, NULL), ROSE_OK);
    while (sem_wait(&g_stands) != 0) /* EINTR */
        ;
    int second = client(); /* before the request, so that the thread learns of it first */
    say(first, NEVER);
    say(second, HELLO);
    sem_post(&g_may_go_on);
    assert_int_equal(hear(second, &b, 0), 0);
    assert_int_equal(status_of(&b), 200);
    assert_true(is_open(first));
    assert_int_equal(rose_http_n_dropped(g_http), 0);
    assert_int_equal(atomic_load(&g_requests), 2);
    rose_log_set_level(ROSE_LOG_INFO);
    rose_buf_free(&b);
    close(second);
    close(first);
    wait_for(&g_gone, 1);
    wait_no_connections();
    sem_destroy(&g_stands);
    sem_destroy(&g_may_go_on);
}

/* All connections have work: none of it is given up, vital paths are answered, the rest gets 503.
 */
static void all_have_work(uint32_t n_threads)
{
    enum { LIMIT = 16, SILENT = 200 };
    int fds[LIMIT], silent[SILENT];
    static const char *const others[] = {
        "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1",
        "GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n",
        "POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n1",
        "GET /hello HTTP/1.1\r\nX: slow",
        "",
    };
    const uint32_t n_others = sizeof others / sizeof *others;
    rose_http_opts o = test_opts();
    o.max_connections = LIMIT;
    o.n_threads = n_threads;
    server_start(&o);
    for (uint32_t i = 0; i < LIMIT; i++) {
        fds[i] = client();
        say(fds[i], NEVER);
    }
    wait_for(&g_requests, LIMIT);
    for (int i = 0; i < 3; i++) {
        expect(HELLO, 200, "\r\nConnection: close\r\n");
        expect("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n", 200, "\r\nConnection: close\r\n");
    }
    for (uint32_t i = 0; i < n_others; i++)
        expect(others[i], 503, "\r\nRetry-After: 1\r\n");
    assert_int_equal(rose_http_n_refused(g_http), n_others);
    for (uint32_t i = 0; i < SILENT; i++) /* more than the reserve has places */
        silent[i] = client();
    for (int i = 0; i < 10; i++)
        expect(HELLO, 200, "hello");
    assert_int_equal(rose_http_connections(g_http), LIMIT);
    assert_int_equal(rose_http_n_dropped(g_http), 0);
    assert_int_equal(atomic_load(&g_gone), 0);
    assert_true(is_open(fds[0]) && is_open(fds[LIMIT - 1]));
    close_all(silent, SILENT);
    close_all(fds, LIMIT);
    wait_for(&g_gone, LIMIT);
    wait_no_connections();
    expect_hello();
    server_stop();
}

static void test_all_have_work(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    all_have_work(1);
    all_have_work(3);
    rose_log_set_level(ROSE_LOG_INFO);
}

/* Several threads: a new connection goes to one where somebody waits. */
static void test_threads_find_places(void **state)
{
    enum { LIMIT = 64, BUSY = 40, N = 300 };
    int busy[BUSY], fds[N];
    (void)state;
    rose_http_opts o = test_opts();
    o.max_connections = LIMIT;
    o.n_threads = 4;
    server_start(&o);
    rose_log_set_level(ROSE_LOG_OFF);
    for (int i = 0; i < BUSY; i++) {
        busy[i] = client();
        say(busy[i], NEVER);
    }
    wait_for(&g_requests, BUSY);
    for (int i = 0; i < N; i++) {
        fds[i] = client();
        (void)say_bytes(fds[i], SLOW_BODY, sizeof SLOW_BODY - 1);
    }
    for (int i = 0; i < 20; i++)
        expect_hello();
    assert_int_equal(atomic_load(&g_gone), 0);
    rose_log_set_level(ROSE_LOG_INFO);
    close_all(fds, N);
    close_all(busy, BUSY);
    wait_for(&g_gone, BUSY);
    wait_no_connections();
}

/* ---- descriptors ---- */

enum { CLIENTS = 20 };

/* Sockets for later, then no descriptor more. */
static void use_up_descriptors(int fds[CLIENTS], struct rlimit *old)
{
    struct timeval tv = {20, 0};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    }
    int lowest = dup(0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, old), 0);
    struct rlimit low = *old;
    low.rlim_cur = (rlim_t)lowest;
    close(lowest);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
}

static int ask(int fd, const char *request)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(rose_http_port(g_http))};
    rose_buf b = {0};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0) return -1;
    (void)say_bytes(fd, request, strlen(request));
    if (hear(fd, &b, 0) < 0 && errno == EAGAIN) return -2; /* it hangs */
    int status = b.len == 0 ? 0 : status_of(&b);
    rose_buf_free(&b);
    return status;
}

/* Nobody waits, so nobody gives way: each new client is told at once, and the log once. */
static void test_no_descriptors(void **state)
{
    int fds[CLIENTS], status[CLIENTS];
    struct rlimit old;
    (void)state;
    rose_http_opts o = test_opts();
    server_start(&o);
    int busy = client();
    say(busy, NEVER);
    wait_for(&g_requests, 1);
    log_begin();
    use_up_descriptors(fds, &old);
    for (int i = 0; i < CLIENTS; i++)
        status[i] = ask(fds[i], HELLO_CLOSE);
    setrlimit(RLIMIT_NOFILE, &old);
    char *log = log_end();
    for (int i = 0; i < CLIENTS; i++) /* a reset may overtake the answer */
        assert_true(status[i] == 503 || status[i] == 0 || status[i] == -1);
    assert_int_equal(status[0], 503);
    assert_int_equal(log_count(log, "(ulimit -n, now "), 1);
    assert_int_equal(log_count(log, "\n"), 1);
    free(log);
    expect_hello();
    close_all(fds, CLIENTS);
    assert_int_equal(atomic_load(&g_gone), 0);
    close(busy);
    wait_for(&g_gone, 1);
    wait_no_connections();
}

/* Who has no complete request gives way at this limit as at the other one. */
static void test_no_descriptors_but_waiting(void **state)
{
    int fds[CLIENTS], slow[CLIENTS], status[CLIENTS];
    struct rlimit old;
    (void)state;
    rose_http_opts o = test_opts();
    o.n_threads = 2;
    server_start(&o);
    for (int i = 0; i < CLIENTS; i++) {
        slow[i] = client();
        say(slow[i], SLOW_BODY);
    }
    wait_connections(CLIENTS);
    rose_log_set_level(ROSE_LOG_OFF);
    use_up_descriptors(fds, &old);
    for (int i = 0; i < CLIENTS; i++)
        status[i] = ask(fds[i], HELLO_CLOSE);
    setrlimit(RLIMIT_NOFILE, &old);
    rose_log_set_level(ROSE_LOG_INFO);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(status[i], 200);
    close_all(fds, CLIENTS);
    close_all(slow, CLIENTS);
    wait_no_connections();
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_crowds),
        TEST(test_crowd_of_thousands),
        TEST(test_idle_give_way),
        TEST(test_lingering_give_way),
        TEST(test_unread_request_is_work),
        TEST(test_all_have_work),
        TEST(test_threads_find_places),
        TEST(test_no_descriptors),
        TEST(test_no_descriptors_but_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
