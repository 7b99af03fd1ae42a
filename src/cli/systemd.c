/* cli/systemd.c - what a service manager passes in the environment, without libsystemd: a socket to
 * report to (NOTIFY_SOCKET, sd_notify(3)), a listening socket (LISTEN_FDS, sd_listen_fds(3)), and a
 * watchdog (WATCHDOG_USEC, sd_watchdog_enabled(3)). The main thread opens, reports and closes; the
 * watchdog has a thread of its own, which asks the caller whether the program still works. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cpuinfo.h"
#include "base/log.h"
#include "cli/cli.h"

enum { FIRST_FD = 3, SEND_S = 2 };

/* Reads a whole number. False: text is none. */
static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* True if the variable `pid` names another process, for which the other variables were meant. */
static bool for_another(const char *pid)
{
    uint64_t n;
    return pid != NULL && (!read_number(pid, &n) || n != (uint64_t)getpid());
}

/* ---- the listening socket ---- */

static rose_status take_socket(int *out, const char *count, rose_err *err)
{
    uint64_t n;
    if (!read_number(count, &n) || n == 0)
        return rose_fail(err, ROSE_E_INVAL, "LISTEN_FDS is '%.40s': expected the number of sockets",
                         count);
    if (n > 1)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "LISTEN_FDS is %" PRIu64 ": the server takes over one socket; leave one "
                         "ListenStream= in the socket unit",
                         n);
    const int flags = fcntl(FIRST_FD, F_GETFD);
    if (flags < 0 || fcntl(FIRST_FD, F_SETFD, flags | FD_CLOEXEC) < 0)
        return rose_fail(err, ROSE_E_INVAL, "LISTEN_FDS is 1, but descriptor %d is not open: %s",
                         FIRST_FD, strerror(errno));
    *out = FIRST_FD;
    return ROSE_OK;
}

rose_status rose_systemd_socket(int *out, rose_err *err)
{
    const char *count = getenv("LISTEN_FDS");
    rose_status st = ROSE_OK;
    *out = 0;
    if (count != NULL && getenv("LISTEN_PID") != NULL && !for_another(getenv("LISTEN_PID")))
        st = take_socket(out, count, err);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_PIDFDID");
    unsetenv("LISTEN_FDNAMES");
    return st;
}

/* ---- reports ---- */

struct rose_notify {
    int fd;
    struct sockaddr_un to;
    socklen_t to_len;
    bool warned;        /* a report was lost, and the log says so. Main thread */
    uint64_t period_ns; /* the watchdog wants a sign of life in this time; 0 = no watchdog */
    bool (*alive)(void *arg);
    void *arg;
    bool watching; /* the thread runs */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under lock */
};

static rose_status read_address(rose_notify *n, const char *path, rose_err *err)
{
    const size_t len = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || len < 2 || len >= sizeof n->to.sun_path)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "NOTIFY_SOCKET is '%.120s': expected a path, or '@' and an abstract name, "
                         "of at most %zu bytes",
                         path, sizeof n->to.sun_path - 1);
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, path, len);
    if (path[0] == '@') n->to.sun_path[0] = '\0';
    n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return ROSE_OK;
}

static rose_status read_watchdog(rose_notify *n, const char *usec, rose_err *err)
{
    uint64_t us;
    if (usec == NULL || for_another(getenv("WATCHDOG_PID"))) return ROSE_OK;
    if (!read_number(usec, &us) || us == 0 || us > UINT64_MAX / 1000)
        return rose_fail(err, ROSE_E_INVAL, "WATCHDOG_USEC is '%.40s': expected microseconds",
                         usec);
    n->period_ns = us * 1000;
    return ROSE_OK;
}

rose_status rose_notify_open(rose_notify **out, rose_err *err)
{
    const char *path = getenv("NOTIFY_SOCKET");
    rose_status st;
    *out = NULL;
    if (path == NULL || path[0] == '\0') return ROSE_OK;
    rose_notify *n = calloc(1, sizeof *n);
    if (n == NULL) return rose_fail(err, ROSE_E_NOMEM, "NOTIFY_SOCKET: out of memory");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&n->lock, NULL);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    st = n->fd < 0 ? rose_fail(err, ROSE_E_IO, "NOTIFY_SOCKET: socket: %s", strerror(errno))
                   : read_address(n, path, err);
    const struct timeval longest = {.tv_sec = SEND_S};
    if (st == ROSE_OK && setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest) < 0)
        st = rose_fail(err, ROSE_E_IO, "NOTIFY_SOCKET: SO_SNDTIMEO: %s", strerror(errno));
    if (st == ROSE_OK) st = read_watchdog(n, getenv("WATCHDOG_USEC"), err);
    if (st != ROSE_OK) {
        rose_notify_close(n);
        return st;
    }
    unsetenv("NOTIFY_SOCKET"); /* not for programs that we might start */
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    *out = n;
    return ROSE_OK;
}

/* A manager that does not read fills the socket; a report then waits for at most SEND_S. */
static bool send_text(const rose_notify *n, const char *text, int flags)
{
    ssize_t rc;
    do {
        rc = sendto(n->fd, text, strlen(text), MSG_NOSIGNAL | flags,
                    (const struct sockaddr *)&n->to, n->to_len);
    } while (rc < 0 && errno == EINTR);
    return rc >= 0;
}

void rose_notify_send(rose_notify *n, const char *state, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (n == NULL) return;
    const size_t head =
        (size_t)snprintf(text, sizeof text, "%s%sSTATUS=", state, state[0] != '\0' ? "\n" : "");
    va_start(ap, fmt);
    vsnprintf(text + head, sizeof text - head, fmt, ap);
    va_end(ap);
    for (char *p = text + head; *p != '\0'; p++) {
        if ((unsigned char)*p < ' ') *p = '?'; /* a line end would begin another assignment */
    }
    if (send_text(n, text, 0) || n->warned) return;
    rose_log(ROSE_LOG_WARN, "serve", "NOTIFY_SOCKET: the service manager gets no report: %s",
             strerror(errno));
    n->warned = true;
}

static void add_ns(struct timespec *t, uint64_t ns)
{
    ns += (uint64_t)t->tv_nsec;
    t->tv_sec += (time_t)(ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
}

/* Asks four times in the time of the watchdog. One missing sign of life is harmless: a request may
 * have come a moment before the question. A program that does not work sends none, and the service
 * manager kills it and starts it again. */
static void *watch(void *arg)
{
    rose_notify *n = arg;
    struct timespec next;
    uint32_t silent = 0; /* questions in a row that were answered with no */
    pthread_mutex_lock(&n->lock);
    clock_gettime(CLOCK_MONOTONIC, &next);
    while (!n->stop) {
        const bool alive = n->alive(n->arg);
        if (alive) send_text(n, "WATCHDOG=1", MSG_DONTWAIT);
        silent = alive ? 0 : silent + 1;
        if (silent == 2)
            rose_log(ROSE_LOG_ERROR, "serve",
                     "the engine has requests and made no step, or has failed: the watchdog of the "
                     "service manager gets no sign of life");
        add_ns(&next, n->period_ns / 4);
        int rc = 0;
        while (!n->stop && rc == 0)
            rc = pthread_cond_timedwait(&n->wake, &n->lock, &next);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

rose_status rose_notify_watch(rose_notify *n, bool (*alive)(void *arg), void *arg, rose_err *err)
{
    if (n == NULL || n->period_ns == 0) return ROSE_OK;
    n->alive = alive;
    n->arg = arg;
    const int rc = rose_thread_start(&n->thread, watch, n);
    if (rc != 0)
        return rose_fail(err, ROSE_E_IO, "cannot start a thread for the watchdog: %s",
                         strerror(rc));
    n->watching = true;
    return ROSE_OK;
}

void rose_notify_unwatch(rose_notify *n)
{
    if (n == NULL || !n->watching) return;
    pthread_mutex_lock(&n->lock);
    n->stop = true;
    pthread_cond_signal(&n->wake);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    n->watching = false;
}

void rose_notify_close(rose_notify *n)
{
    if (n == NULL) return;
    rose_notify_unwatch(n);
    if (n->fd >= 0) close(n->fd);
    pthread_cond_destroy(&n->wake);
    pthread_mutex_destroy(&n->lock);
    free(n);
}
