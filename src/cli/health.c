/* cli/health.c - `roseinfer health`: asks a server whether it is well, for containers that hold
 * neither a shell nor curl. One GET over a blocking socket; one deadline bounds it all. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/opts.h"
#include "cli/cli.h"

enum { MAX_HOST = 255, MAX_PATH = 1024 };

typedef struct target {
    char host[MAX_HOST + 1]; /* without the brackets of an IPv6 address */
    char port[6];
    char path[MAX_PATH + 1];
} target;

/* http://HOST[:PORT][/PATH], or [HOST] in brackets. */
static rose_status parse_url(target *t, const char *url, rose_err *err)
{
    static const char scheme[] = "http://";
    if (strncmp(url, "https://", 8) == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: health does not speak TLS; use another probe", url);
    if (strncmp(url, scheme, strlen(scheme)) != 0)
        return rose_fail(err, ROSE_E_INVAL, "'%s' is no URL of the form http://HOST:PORT/health",
                         url);
    const char *host = url + strlen(scheme);
    const bool brackets = *host == '[';
    if (brackets) host++;
    const size_t n = strcspn(host, brackets ? "]" : ":/");
    const char *rest = host + n;
    const bool closed = !brackets || *rest == ']';
    if (brackets && closed) rest++;
    size_t n_port = 0;
    if (*rest == ':') n_port = strspn(++rest, "0123456789");
    const char *path = rest + n_port;
    if (n == 0 || n > MAX_HOST || !closed || n_port > 5 || (rest[-1] == ':' && n_port == 0) ||
        (*path != '/' && *path != '\0') || strlen(path) > MAX_PATH ||
        strpbrk(path, " \t\r\n") != NULL)
        return rose_fail(err, ROSE_E_INVAL,
                         "'%.200s' is no URL of the form http://HOST:PORT/health", url);
    snprintf(t->host, sizeof t->host, "%.*s", (int)n, host);
    snprintf(t->port, sizeof t->port, "%.*s", n_port > 0 ? (int)n_port : 2,
             n_port > 0 ? rest : "80");
    snprintf(t->path, sizeof t->path, "%s", *path != '\0' ? path : "/health");
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
        return rose_fail(err, ROSE_E_INVAL, "--uds '%.120s': the path is too long", path);
    memcpy(a.sun_path, path, strlen(path));
    *fd = connect_to(AF_UNIX, (const struct sockaddr *)&a, sizeof a, deadline);
    if (*fd >= 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "unix:%s: %s", path, strerror(errno));
}

static rose_status connect_tcp(int *fd, const target *t, uint64_t deadline, rose_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(t->host, t->port, &hints, &list);
    if (rc != 0) return rose_fail(err, ROSE_E_IO, "host '%s': %s", t->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next)
        *fd = connect_to(a->ai_family, a->ai_addr, a->ai_addrlen, deadline);
    const int error = errno;
    freeaddrinfo(list);
    if (*fd >= 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "%s port %s: %s", t->host, t->port, strerror(error));
}

/* Sends the request and reads the status line to line, which is then terminated. */
static rose_status ask(int fd, const target *t, char *line, size_t cap, uint64_t deadline,
                       rose_err *err)
{
    char request[MAX_PATH + MAX_HOST + 80];
    const int n = snprintf(request, sizeof request,
                           "GET %s HTTP/1.1\r\nHost: %s%s%s\r\nConnection: close\r\n\r\n", t->path,
                           strchr(t->host, ':') != NULL ? "[" : "", t->host,
                           strchr(t->host, ':') != NULL ? "]" : "");
    size_t sent = 0, got = 0;
    while (sent < (size_t)n) {
        const ssize_t w = send(fd, request + sent, (size_t)n - sent, MSG_NOSIGNAL);
        if (w > 0)
            sent += (size_t)w;
        else if (errno != EAGAIN && errno != EINTR)
            return rose_fail(err, ROSE_E_IO, "%s: %s", t->path, strerror(errno));
        else if (!wait_for(fd, POLLOUT, deadline))
            return rose_fail(err, ROSE_E_IO, "%s: the server did not take the request in time",
                             t->path);
    }
    while (got < cap - 1 && memchr(line, '\n', got) == NULL) {
        if (!wait_for(fd, POLLIN, deadline))
            return rose_fail(err, ROSE_E_IO, "%s: the server did not answer in time", t->path);
        const ssize_t r = recv(fd, line + got, cap - 1 - got, 0);
        if (r > 0)
            got += (size_t)r;
        else if (r == 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    line[got] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    return ROSE_OK;
}

/* Where `serve` with the same environment listens. Kubernetes may set ROSEINFER_PORT to a URL,
 * which `serve` ignores as well. */
static const char *default_url(char url[64])
{
    const char *port = getenv("ROSEINFER_PORT");
    const bool number = port != NULL && port[0] != '\0' && strlen(port) <= 5 &&
                        port[strspn(port, "0123456789")] == '\0';
    snprintf(url, 64, "http://127.0.0.1:%s/health", number ? port : "8888");
    return url;
}

int rose_cmd_health(int argc, char **argv)
{
    char url[64];
    const char *uds = getenv("ROSEINFER_UDS"), *args[1] = {default_url(url)};
    uint32_t timeout_s = 5, n_args = 0;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("uds", &uds, "PATH", "Unix socket to ask instead of the URL's host",
                        .says = "$ROSEINFER_UDS"),
        ROSE_ROW_U32("timeout-s", &timeout_s, "S", 1, 3600, "give up after S seconds"),
    };
    const rose_command c = {
        .usage = "roseinfer health [URL] [options]",
        .about =
            "Asks a server whether it is well. URL is http://127.0.0.1:8888/health by default, "
            "with the\nport of $ROSEINFER_PORT if that is set; /ready asks whether the server "
            "takes requests. The\nexit code is 0 if the answer is 200, else 1.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .max_args = 1};
    const int rc = rose_opts_parse(&c, argc, argv, args, &n_args);
    if (rc >= 0) return rc;

    rose_err err = {{0}};
    target t;
    char line[256];
    int fd = -1;
    if (uds != NULL && *uds == '\0') uds = NULL;
    const uint64_t deadline = rose_now_ns() + (uint64_t)timeout_s * 1000000000u;
    rose_status st = parse_url(&t, args[0], &err);
    if (st == ROSE_OK)
        st = uds != NULL ? connect_unix(&fd, uds, deadline, &err)
                         : connect_tcp(&fd, &t, deadline, &err);
    if (st == ROSE_OK) st = ask(fd, &t, line, sizeof line, deadline, &err);
    if (fd >= 0) close(fd);
    if (st == ROSE_OK && strncmp(line, "HTTP/1.1 200", 12) != 0)
        st = rose_fail(&err, ROSE_E_IO, "%s: the server answered '%s'", t.path,
                       line[0] != '\0' ? line : "nothing");
    if (st != ROSE_OK) return rose_die(&err);
    printf("%s: %s\n", t.path, line);
    return 0;
}
