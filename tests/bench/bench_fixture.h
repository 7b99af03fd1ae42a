/* tests/bench/bench_fixture.h - common includes, the seed, and a scripted HTTP server on
 * loopback. */
#ifndef ROSE_TESTS_BENCH_FIXTURE_H
#define ROSE_TESTS_BENCH_FIXTURE_H

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/load.h"

static inline const char *repo_root(void)
{
    const char *root = getenv("ROSE_ROOT");
    return root != NULL ? root : ".";
}

static inline uint64_t test_seed(void)
{
    const char *s = getenv("ROSE_TEST_SEED");
    uint64_t seed = s != NULL ? strtoull(s, NULL, 10) : 20261121;
    printf("seed %llu\n", (unsigned long long)seed);
    return seed;
}

/* The server takes one connection after another, reads requests and calls the script with the
 * number of the request, counted over all connections. If the script returns false, the connection
 * is closed. */
typedef bool script_fn(int fd, uint32_t request);

typedef struct scripted {
    int listener;
    uint32_t n_requests, n_connections;
    script_fn *script;
    pthread_t thread;
    rose_url url;
} scripted;

static inline bool read_request(int fd)
{
    char buf[65536];
    size_t n = 0;
    for (;;) {
        ssize_t k = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (k <= 0) return false;
        n += (size_t)k;
        buf[n] = '\0';
        const char *end = strstr(buf, "\r\n\r\n"), *len = strstr(buf, "Content-Length: ");
        if (end == NULL) continue;
        size_t body = len != NULL ? strtoul(len + 16, NULL, 10) : 0;
        if (n >= (size_t)(end + 4 - buf) + body) return true;
    }
}

static inline void *scripted_main(void *arg)
{
    scripted *s = arg;
    for (;;) {
        int fd = accept(s->listener, NULL, NULL);
        if (fd < 0) return NULL;
        s->n_connections++;
        while (read_request(fd)) {
            if (!s->script(fd, s->n_requests++)) break;
        }
        close(fd);
    }
}

static inline void scripted_start(scripted *s, script_fn *script)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *s = (scripted){.script = script, .url = {.host = "127.0.0.1"}};
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(s->listener, 64), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &n), 0);
    snprintf(s->url.port, sizeof s->url.port, "%u", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, scripted_main, s), 0);
}

static inline void scripted_stop(scripted *s)
{
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

static inline bool say(int fd, const char *text)
{
    return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

#endif
