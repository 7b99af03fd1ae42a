/* http/listen.c - opens the listening socket: TCP (a name, IPv4, IPv6) or "unix:PATH". */
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http_internal.h"

enum { BACKLOG = 4096 };

/* True if no server answers on the socket file. A killed server left the file, so it may be
 * removed. */
static bool unix_path_is_stale(const struct sockaddr_un *sa)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool stale = connect(fd, (const struct sockaddr *)sa, sizeof *sa) < 0 && errno == ECONNREFUSED;
    close(fd);
    return stale;
}

static rose_status listen_unix(rose_http *h, const char *path, rose_err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof sa.sun_path)
        return rose_fail(err, ROSE_E_INVAL, "unix socket path must have 1 to %zu bytes",
                         sizeof sa.sun_path - 1);
    memcpy(sa.sun_path, path, n);
    h->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->listen_fd < 0) return rose_fail(err, ROSE_E_IO, "socket: %s", strerror(errno));
    int rc = bind(h->listen_fd, (struct sockaddr *)&sa, sizeof sa);
    if (rc < 0 && errno == EADDRINUSE && unix_path_is_stale(&sa) && unlink(path) == 0)
        rc = bind(h->listen_fd, (struct sockaddr *)&sa, sizeof sa);
    if (rc < 0) return rose_fail(err, ROSE_E_IO, "bind unix:%s: %s", path, strerror(errno));
    h->on_unix = true;
    if ((h->unix_path = strdup(path)) == NULL) {
        unlink(path);
        return rose_fail(err, ROSE_E_NOMEM, "unix:%s: out of memory", path);
    }
    if (listen(h->listen_fd, BACKLOG) < 0)
        return rose_fail(err, ROSE_E_IO, "listen on unix:%s: %s", path, strerror(errno));
    return ROSE_OK;
}

/* Reads the port in use, and whether the address is a loopback one, for which Host headers are
 * checked. */
static void read_address(rose_http *h)
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    if (getsockname(h->listen_fd, (struct sockaddr *)&sa, &n) < 0) return;
    char host[INET6_ADDRSTRLEN + IF_NAMESIZE], port[8];
    if (getnameinfo((struct sockaddr *)&sa, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    h->port = (uint16_t)strtoul(port, NULL, 10);
    const rose_opt_list *allowed = &h->opts.allowed_hosts;
    h->check_host = (allowed->n > 0 || rose_http_host_is_loopback(host, strlen(host))) &&
                    !rose_http_host_listed(allowed, "*", 1);
}

/* Returns 0 or an errno; on failure listen_fd is closed again. */
static int listen_at(rose_http *h, const struct addrinfo *ai)
{
    int one = 1;
    h->listen_fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->listen_fd < 0) return errno;
    if (setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(h->listen_fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(h->listen_fd, BACKLOG) == 0)
        return 0;
    int e = errno;
    close(h->listen_fd);
    h->listen_fd = -1;
    return e;
}

rose_status rose_http_listen(rose_http *h, rose_err *err)
{
    const char *host = h->opts.host;
    if (strncmp(host, "unix:", 5) == 0) return listen_unix(h, host + 5, err);

    char port[12];
    snprintf(port, sizeof port, "%u", h->opts.port);
    struct addrinfo *list = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0)
        return rose_fail(err, ROSE_E_IO, "cannot resolve host \"%s\": %s", host, gai_strerror(rc));
    int e = EADDRNOTAVAIL;
    for (struct addrinfo *ai = list; ai != NULL && h->listen_fd < 0; ai = ai->ai_next)
        e = listen_at(h, ai);
    freeaddrinfo(list);
    if (h->listen_fd < 0)
        return rose_fail(err, ROSE_E_IO, "cannot listen on %s port %u: %s%s", host, h->opts.port,
                         strerror(e), e == EADDRINUSE ? " (is another server running?)" : "");
    read_address(h);
    return ROSE_OK;
}

void rose_http_unlisten(rose_http *h)
{
    if (h->listen_fd >= 0) close(h->listen_fd);
    h->listen_fd = -1;
    if (h->unix_path != NULL) unlink(h->unix_path);
    free(h->unix_path);
    h->unix_path = NULL;
}
