/* bench/http_get.c - parses URLs, writes request heads, and sends one blocking GET or POST. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/load.h"

rose_status rose_url_parse(rose_url *out, const char *text, rose_err *err)
{
    *out = (rose_url){.port = "80"};
    if (strncasecmp(text, "http://", 7) != 0)
        return rose_fail(err, ROSE_E_INVAL, "url '%s': must begin with http://", text);
    const char *p = text + 7;
    const char *end = p + strcspn(p, "/");
    const char *host = p, *host_end, *port = NULL;
    if (*p == '[') {
        host = p + 1;
        host_end = memchr(host, ']', (size_t)(end - host));
        if (host_end == NULL || (host_end + 1 < end && host_end[1] != ':'))
            return rose_fail(err, ROSE_E_INVAL, "url '%s': no closing bracket", text);
        if (host_end + 1 < end) port = host_end + 2;
    } else {
        host_end = memchr(p, ':', (size_t)(end - p));
        if (host_end != NULL) port = host_end + 1;
        if (host_end == NULL) host_end = end;
    }
    size_t n_host = (size_t)(host_end - host), n_path = strlen(end);
    while (n_path > 0 && end[n_path - 1] == '/')
        n_path--;
    if (n_host == 0 || n_host >= sizeof out->host || n_path >= sizeof out->path ||
        memchr(host, '@', n_host) != NULL || strpbrk(text, " \t\r\n\"?#") != NULL)
        return rose_fail(err, ROSE_E_INVAL, "url '%s': expected http://HOST[:PORT][/PATH]", text);
    if (port != NULL) {
        size_t n = (size_t)(end - port);
        if (n == 0 || n > 5 || strspn(port, "0123456789") < n)
            return rose_fail(err, ROSE_E_INVAL, "url '%s': the port is no number", text);
        snprintf(out->port, sizeof out->port, "%.*s", (int)n, port);
    }
    memcpy(out->host, host, n_host);
    memcpy(out->path, end, n_path);
    return ROSE_OK;
}

rose_status rose_request_write(rose_buf *out, const rose_url *u, const char *path, const char *key,
                               const char *body, size_t len)
{
    const bool v6 = strchr(u->host, ':') != NULL;
    rose_status st = rose_buf_addf(out, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAccept: */*\r\n",
                                   body != NULL ? "POST" : "GET", u->path, path, v6 ? "[" : "",
                                   u->host, v6 ? "]" : "", u->port);
    if (st == ROSE_OK && key != NULL) st = rose_buf_addf(out, "Authorization: Bearer %s\r\n", key);
    if (st == ROSE_OK && body != NULL)
        st = rose_buf_addf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", len);
    if (st == ROSE_OK) st = rose_buf_add(out, "\r\n", 2);
    if (st == ROSE_OK && body != NULL) st = rose_buf_add(out, body, len);
    return st;
}

/* Reads until the reply is complete or the deadline has passed. */
static rose_status receive(int fd, rose_reader *rd, uint64_t deadline_ns, rose_err *err)
{
    char buf[8192];
    while (!rd->complete) {
        if (rose_now_ns() > deadline_ns) return rose_fail(err, ROSE_E_IO, "no reply in time");
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return rose_fail(err, ROSE_E_IO, "recv: %s", strerror(errno));
        rose_status st = n > 0 ? rose_reader_feed(rd, buf, (size_t)n, rose_now_ns())
                               : rose_reader_eof(rd, rose_now_ns());
        if (st != ROSE_OK) return rose_fail(err, st, "%s", rd->reply->error);
    }
    return ROSE_OK;
}

rose_status rose_http_get(const rose_url *u, const char *path, uint32_t timeout_ms, int *status,
                          rose_buf *body, rose_err *err)
{
    return rose_http_call(u, path, NULL, timeout_ms, status, body, err);
}

rose_status rose_http_call(const rose_url *u, const char *path, const char *post,
                           uint32_t timeout_ms, int *status, rose_buf *body, rose_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const struct timeval tv = {timeout_ms / 1000, (timeout_ms % 1000) * 1000};
    struct addrinfo *a = NULL;
    rose_reader rd;
    rose_reply reply = {0};
    rose_buf head = {0};
    rose_status st = ROSE_OK;
    int fd = -1;

    *status = 0;
    rose_reader_init(&rd);
    int rc = getaddrinfo(u->host, u->port, &hints, &a);
    if (rc != 0) {
        st = rose_fail(err, ROSE_E_NOTFOUND, "%s:%s: %s", u->host, u->port, gai_strerror(rc));
        a = NULL;
        goto done;
    }
    if ((st = rose_request_write(&head, u, path, NULL, post, post != NULL ? strlen(post) : 0)) !=
        ROSE_OK) {
        rose_fail(err, st, "out of memory");
        goto done;
    }
    fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    }
    if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0 ||
        send(fd, head.data, head.len, MSG_NOSIGNAL) != (ssize_t)head.len) {
        st = rose_fail(err, ROSE_E_IO, "%s:%s: %s", u->host, u->port, strerror(errno));
        goto done;
    }
    rose_reader_begin(&rd, &reply);
    st = receive(fd, &rd, rose_now_ns() + (uint64_t)timeout_ms * 1000000u, err);
    *status = reply.status;
    if (st == ROSE_OK && body != NULL && rose_buf_add(body, rd.body.data, rd.body.len) != ROSE_OK)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
done:
    if (fd >= 0) close(fd);
    if (a != NULL) freeaddrinfo(a);
    rose_buf_free(&head);
    rose_reader_free(&rd);
    rose_reply_free(&reply);
    return st;
}
