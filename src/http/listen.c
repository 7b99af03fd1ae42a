/* http/listen.c - opens the listening socket: TCP (a name, IPv4, IPv6) or "unix:PATH"; or takes
 * over one that the process inherited. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http_internal.h"

enum { BACKLOG = 4096 };

/* ---- Unix sockets ---- */

/* Locks the folder of the socket, so that of two servers that start at the same time only one
 * replaces a socket. The descriptor holds the lock until it is closed. */
static rose_status lock_folder(int *out, const char *path, rose_err *err)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1,
             slash == NULL ? "." : path);
    *out = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = *out < 0 ? -1 : flock(*out, LOCK_EX);
    while (rc < 0 && *out >= 0 && errno == EINTR)
        rc = flock(*out, LOCK_EX);
    if (rc == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "unix:%s: cannot lock the folder %s: %s", path, folder,
                     strerror(errno));
}

/* Removes the socket that a killed server has left. A socket on which a server answers stays, and
 * so does a file that is no socket: connect() gives ECONNREFUSED for it as well. */
static rose_status remove_stale(const struct sockaddr_un *sa, rose_err *err)
{
    const char *path = sa->sun_path;
    struct stat s;
    if (lstat(path, &s) < 0) return rose_fail(err, ROSE_E_IO, "unix:%s: %s", path, strerror(errno));
    if (!S_ISSOCK(s.st_mode))
        return rose_fail(err, ROSE_E_INVAL, "unix:%s: a file that is no socket is there", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return rose_fail(err, ROSE_E_IO, "socket: %s", strerror(errno));
    const int rc = connect(fd, (const struct sockaddr *)sa, sizeof *sa);
    const int why = rc < 0 ? errno : 0; /* EAGAIN: its backlog is full */
    close(fd);
    if (why == 0 || why == EAGAIN)
        return rose_fail(err, ROSE_E_IO, "unix:%s: another server listens on this socket", path);
    if (why != ECONNREFUSED || unlink(path) < 0)
        return rose_fail(err, ROSE_E_IO, "unix:%s: cannot replace the socket: %s", path,
                         strerror(why != ECONNREFUSED ? why : errno));
    return ROSE_OK;
}

/* fchmod before bind() makes the socket appear with this mode or a stricter one, so there is no
 * moment in which others may connect. chmod then undoes the umask. */
static rose_status bind_unix(rose_http *h, const struct sockaddr_un *sa, rose_err *err)
{
    const char *path = sa->sun_path;
    const mode_t mode = (mode_t)h->opts.unix_mode;
    struct stat s;
    if (fchmod(h->listen_fd, mode) < 0)
        return rose_fail(err, ROSE_E_IO, "unix:%s: fchmod: %s", path, strerror(errno));
    int rc = bind(h->listen_fd, (const struct sockaddr *)sa, sizeof *sa);
    if (rc < 0 && errno == EADDRINUSE) {
        const rose_status st = remove_stale(sa, err);
        if (st != ROSE_OK) return st;
        rc = bind(h->listen_fd, (const struct sockaddr *)sa, sizeof *sa);
    }
    if (rc < 0) return rose_fail(err, ROSE_E_IO, "bind unix:%s: %s", path, strerror(errno));
    h->unix_path = strdup(path);
    if (lstat(path, &s) == 0) {
        h->unix_dev = s.st_dev;
        h->unix_ino = s.st_ino;
    }
    if (h->unix_path == NULL) {
        unlink(path);
        return rose_fail(err, ROSE_E_NOMEM, "unix:%s: out of memory", path);
    }
    if (chmod(path, mode) < 0 || listen(h->listen_fd, BACKLOG) < 0)
        return rose_fail(err, ROSE_E_IO, "listen on unix:%s: %s", path, strerror(errno));
    return ROSE_OK;
}

static rose_status listen_unix(rose_http *h, const char *path, rose_err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    int lock = -1;
    if (n == 0 || n >= sizeof sa.sun_path)
        return rose_fail(err, ROSE_E_INVAL,
                         "the path of a Unix socket must have 1 to %zu bytes; '%.200s' has %zu",
                         sizeof sa.sun_path - 1, path, n);
    memcpy(sa.sun_path, path, n);
    h->on_unix = true;
    h->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->listen_fd < 0) return rose_fail(err, ROSE_E_IO, "socket: %s", strerror(errno));
    rose_status st = lock_folder(&lock, path, err);
    if (st == ROSE_OK) st = bind_unix(h, &sa, err);
    if (lock >= 0) close(lock);
    return st;
}

/* Removes our socket. Another server may have taken its place, after someone removed ours. */
static void remove_unix(const rose_http *h)
{
    struct stat s;
    if (lstat(h->unix_path, &s) == 0 && s.st_dev == h->unix_dev && s.st_ino == h->unix_ino)
        unlink(h->unix_path);
}

/* ---- TCP ---- */

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

/* Takes over a socket that another process has bound, as a service manager does. Its folder, its
 * mode and its removal are that process's job. */
static rose_status listen_inherited(rose_http *h, int fd, rose_err *err)
{
    int type = 0, listens = 0, domain = 0;
    socklen_t n = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0)
        return rose_fail(err, ROSE_E_INVAL, "the inherited descriptor %d: %s", fd, strerror(errno));
    n = sizeof listens;
    if (type != SOCK_STREAM || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) < 0 ||
        listens == 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "the inherited descriptor %d is no listening stream socket "
                         "(ListenStream= in a socket unit, with Accept=no)",
                         fd);
    n = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 ||
        (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "the inherited descriptor %d is neither a TCP nor a Unix socket", fd);
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return rose_fail(err, ROSE_E_IO, "the inherited descriptor %d: fcntl: %s", fd,
                         strerror(errno));
    h->listen_fd = fd;
    h->on_unix = domain == AF_UNIX;
    if (!h->on_unix) read_address(h);
    return ROSE_OK;
}

rose_status rose_http_listen(rose_http *h, rose_err *err)
{
    const char *host = h->opts.host;
    if (h->opts.no_port) return ROSE_OK;
    if (h->opts.listen_fd > 0) return listen_inherited(h, h->opts.listen_fd, err);
    if (h->opts.uds != NULL) return listen_unix(h, h->opts.uds, err);
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
    if (h->unix_path != NULL) remove_unix(h);
    free(h->unix_path);
    h->unix_path = NULL;
}
