/* libFuzzer target: arbitrary bytes on one connection to a real server, split in two at a point
 * that the first byte gives. The client ends its sending side and reads until the server closes, or
 * it leaves at once; either way the input runs until the server has no connection. Checked: what
 * the handler is given keeps its promises, and each answer is one. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http.h"

enum { MAX_HEADER = 2048, MAX_BODY = 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rose_http *g_http;
static char g_host[64];

static void check_text(const char *s)
{
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f) abort();
    }
}

static rose_http_timer *g_timer; /* of the one request that is answered late */

static void answer_late(void *arg)
{
    g_timer = NULL;
    rose_http_reply(arg, 200, "text/plain", NULL, "late", 4);
}

static void on_request(void *arg, rose_http_req *r)
{
    size_t n;
    const char *body = rose_http_req_body(r, &n);
    (void)arg;
    check_text(rose_http_req_info(r)->path);
    check_text(rose_http_req_info(r)->query);
    check_text(rose_http_req_info(r)->method);
    if (n > MAX_BODY) abort();
    const char *tag = rose_http_req_header(r, "X-Tag");
    if (tag != NULL && strlen(tag) > MAX_HEADER) abort();
    if (strchr(rose_http_req_info(r)->path, 's') != NULL) {
        rose_http_stream_begin(r, 200, "text/plain", NULL);
        rose_http_stream_write(r, body, n);
        rose_http_stream_write(r, "x", 1);
        rose_http_stream_end(r);
    } else if (strchr(rose_http_req_info(r)->path, 'n') != NULL) {
        g_timer = rose_http_timer_start(g_http, rose_http_req_info(r)->thread, 1, answer_late, r);
        if (g_timer == NULL) abort();
    } else {
        rose_http_reply(r, 200, "text/plain", NULL, body, n);
    }
}

static void on_gone(void *arg, rose_http_req *r)
{
    (void)arg;
    rose_http_req_set_user(r, NULL);
    rose_http_timer_cancel(g_timer);
    g_timer = NULL;
}

static void stop(void)
{
    rose_http_stop(g_http);
}

static void start(void)
{
    static const rose_http_callbacks cb = {.on_request = on_request, .on_gone = on_gone};
    rose_http_opts o;
    rose_http_opts_default(&o);
    memcpy(g_host, "unix:/tmp/rose-fuzz-XXXXXX", 27);
    int fd = mkstemp(g_host + 5);
    if (fd < 0) abort();
    close(fd);
    unlink(g_host + 5);
    o.host = g_host;
    o.max_header_bytes = MAX_HEADER;
    if (!rose_opt_list_add(&o.allowed_origins, "http://a,http://b")) abort();
    o.max_body_bytes = MAX_BODY;
    if (rose_http_start(&g_http, &o, &cb, NULL) != ROSE_OK) abort();
    atexit(stop);
}

static void say(int fd, const uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return; /* the server has seen enough */
        p += k;
        n -= (size_t)k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    char got[4096];
    if (g_http == NULL) start();
    if (size == 0) return 0;
    memcpy(sa.sun_path, g_host + 5, strlen(g_host + 5) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0) abort();
    size_t split = (size - 1) * data[0] / 255;
    say(fd, data + 1, split);
    if (split < size - 1) {
        usleep(data[0] % 4 == 0 ? 50 : 0); /* sometimes let the server see the first part alone */
        say(fd, data + 1 + split, size - 1 - split);
    }
    if (data[0] % 8 != 0) {
        shutdown(fd, SHUT_WR);
        ssize_t n = recv(fd, got, sizeof got, 0);
        if (n >= 9 && memcmp(got, "HTTP/1.1 ", 9) != 0) abort();
        while (n > 0)
            n = recv(fd, got, sizeof got, 0);
    }
    close(fd);
    while (rose_http_connections(g_http) > 0)
        usleep(20);
    return 0;
}
