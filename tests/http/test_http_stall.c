/* --stall-warn-ms in the I/O threads: a turn that takes long names the callback at fault, a client
 * that takes nothing is told from one that is dropped, and the loop that watches serves and stops
 * as the one that does not. */
#include "http_fixture.h"

#include "base/stall.h"
#include "log_capture.h"

static void slow(void *arg)
{
    usleep(60000);
    atomic_store((atomic_bool *)arg, true);
}

static void watched_server(uint64_t limit_ms)
{
    rose_http_opts o = test_opts();
    rose_stall_set_limit(limit_ms * 1000000u);
    server_start(&o);
}

static int unwatch(void **state)
{
    (void)state;
    server_stop();
    rose_stall_set_limit(0);
    return 0;
}

/* What is logged of a turn in which a callback takes 60 ms. */
static char *slow_turn(void)
{
    uint64_t before = rose_stall_count(ROSE_STALL_IO_TURN);
    atomic_bool done = false;
    log_begin();
    watched_server(40);
    assert_int_equal(rose_http_post(g_http, 0, slow, &done), ROSE_OK);
    while (!atomic_load(&done))
        usleep(1000);
    expect_hello(); /* the next turn */
    server_stop();
    char *text = log_end();
    assert_true(rose_stall_count(ROSE_STALL_IO_TURN) > before);
    return text;
}

static void test_slow_callback(void **state)
{
    (void)state;
    bool named = false;
    /* A busy machine makes a turn before it long, which takes the second's line: then once more. */
    for (int i = 0; i < 10 && !named; i++) {
        if (i > 0) usleep(1100000);
        char *text = slow_turn();
        const char *line = strstr(text, "rose-io-0: io_turn (");
        named = line != NULL && strstr(line, "the longest wake with ") != NULL;
        free(text);
    }
    assert_true(named);
}

static void wait_for_stall(uint64_t count)
{
    for (int i = 0; i < 10000 && rose_stall_count(ROSE_STALL_WRITE) < count; i++)
        usleep(1000);
    assert_true(rose_stall_count(ROSE_STALL_WRITE) >= count);
}

/* What is logged of a client that reads late, then of one that never does. */
static char *slow_clients(void)
{
    uint64_t before = rose_stall_count(ROSE_STALL_WRITE);
    rose_buf b = {0};
    log_begin();
    watched_server(100);
    int fd = client_with_rcvbuf(4096);
    say(fd, "GET /big?n=12000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    usleep(1000000); /* nothing is read */
    while (hear(fd, &b, b.len + 1000000) == 1) {
    }
    assert_true(b.len > 12000000);
    wait_for_stall(before + 1);
    close(fd);
    fd = client_with_rcvbuf(4096);
    say(fd, "GET /big?n=12000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    usleep(1100000); /* also: the next line may be logged */
    before = rose_stall_count(ROSE_STALL_WRITE);
    close(fd);
    wait_for_stall(before + 1);
    server_stop();
    rose_buf_free(&b);
    return log_end();
}

static void test_slow_client(void **state)
{
    (void)state;
    bool told = false;
    /* Where this thread stands still between, another stall may take the line of one: once more. */
    for (int i = 0; i < 10 && !told; i++) {
        if (i > 0) usleep(1100000);
        char *text = slow_clients();
        const char *first = strstr(text, "stall: client_write took ");
        told = first != NULL && strstr(first, "; now it reads") != NULL &&
               strstr(first, "; it is dropped") != NULL;
        free(text);
    }
    assert_true(told);
}

static void test_serves(void **state)
{
    (void)state;
    rose_buf b = {0};
    watched_server(3600000);
    for (int i = 0; i < 50; i++)
        expect_hello();
    int fd = client();
    say(fd, "GET /stream?n=100&ms=0 HTTP/1.0\r\n\r\n");
    assert_int_equal(hear(fd, &b, 0), 0);
    assert_non_null(strstr(rose_buf_str(&b), "data: 99\n\n"));
    close(fd);
    rose_buf_free(&b);
    fd = client();
    say(fd, "GET /never HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&g_requests, 52);
    server_stop(); /* with a request open */
    assert_int_equal(atomic_load(&g_gone), 1);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_slow_callback, unwatch),
        cmocka_unit_test_teardown(test_slow_client, unwatch),
        cmocka_unit_test_teardown(test_serves, unwatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
