/* base/fetch.c - see fetch.h. The socket does not block; one deadline bounds all waiting. */
#include "base/fetch.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

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

/* False: the deadline came first. */
static bool wait_for(int fd, short events, uint64_t deadline)
{
    for (;;) {
        const uint64_t now = rose_now_ns();
        if (now >= deadline) return false;
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, (int)((deadline - now) / 1000000u) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* A connected socket, or -1 with errno. */
static int connect_to(int family, const struct sockaddr *address, socklen_t len, uint64_t deadline)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (fd < 0) return -1;
    if (connect(fd, address, len) < 0) {
        error = errno;
        if (error == EINPROGRESS && !wait_for(fd, POLLOUT, deadline))
            error = ETIMEDOUT;
        else if (error == EINPROGRESS)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

static rose_status connect_unix(int *fd, const char *path, uint64_t deadline, rose_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return rose_fail(err, ROSE_E_INVAL, "unix:%.120s: the path is too long", path);
    memcpy(a.sun_path, path, strlen(path));
    *fd = connect_to(AF_UNIX, (const struct sockaddr *)&a, sizeof a, deadline);
    if (*fd >= 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "unix:%s: %s", path, strerror(errno));
}

static rose_status connect_tcp(int *fd, const rose_url *u, uint64_t deadline, rose_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(u->host, u->port, &hints, &list);
    if (rc != 0) return rose_fail(err, ROSE_E_NOTFOUND, "host '%s': %s", u->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next)
        *fd = connect_to(a->ai_family, a->ai_addr, a->ai_addrlen, deadline);
    const int error = errno;
    freeaddrinfo(list);
    if (*fd >= 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "%s port %s: %s", u->host, u->port, strerror(error));
}

static rose_status send_all(int fd, const char *request, size_t len, uint64_t deadline,
                            rose_err *err)
{
    for (size_t sent = 0; sent < len;) {
        const ssize_t n = send(fd, request + sent, len - sent, MSG_NOSIGNAL);
        if (n > 0)
            sent += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            return rose_fail(err, ROSE_E_IO, "send: %s", strerror(errno));
        else if (!wait_for(fd, POLLOUT, deadline))
            return rose_fail(err, ROSE_E_IO, "the server did not take the request in time");
    }
    return ROSE_OK;
}

static rose_status receive(int fd, uint64_t deadline, rose_fetch_take *take, void *ctx,
                           rose_err *err)
{
    char buf[8192];
    for (bool done = false; !done;) {
        if (!wait_for(fd, POLLIN, deadline))
            return rose_fail(err, ROSE_E_IO, "the server did not answer in time");
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n < 0) return rose_fail(err, ROSE_E_IO, "recv: %s", strerror(errno));
        const rose_status st = take(ctx, buf, (size_t)n, &done);
        if (st != ROSE_OK || n == 0) return st;
    }
    return ROSE_OK;
}

rose_status rose_fetch(const rose_url *u, const char *uds, const char *request, size_t len,
                       uint32_t timeout_ms, rose_fetch_take *take, void *ctx, rose_err *err)
{
    const uint64_t deadline = rose_now_ns() + timeout_ms * UINT64_C(1000000);
    int fd = -1;
    rose_status st =
        uds != NULL ? connect_unix(&fd, uds, deadline, err) : connect_tcp(&fd, u, deadline, err);
    if (st == ROSE_OK) st = send_all(fd, request, len, deadline, err);
    if (st == ROSE_OK) st = receive(fd, deadline, take, ctx, err);
    if (fd >= 0) close(fd);
    return st;
}
