/* http/accept.c - new connections: thread 0 accepts them and hands them out to all threads in turn.
 *
 * When the process has no descriptor left, a client that connected would wait in the backlog,
 * and the listening socket would stay readable. So we hold one spare descriptor. Closing it lets
 * us accept the client and tell it to come back later. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_internal.h"

enum { BURST = 64, RETRY_MS = 20 };

static void adopt(void *arg)
{
    rose_http_conn_start(arg);
}

/* True while too many connections over the limit were handed out. Their threads settle them at
 * the end of an event-loop iteration; until then new connections wait in the backlog. */
static bool too_many_on_the_way(const rose_http *h)
{
    return atomic_load_explicit(&h->connections, memory_order_relaxed) >=
           (uint64_t)h->opts.max_connections + HTTP_RESERVE + BURST;
}

/* Gives fd to the next thread; over the limit, to a thread on which it may replace another
 * connection. */
static void hand_out(rose_http *h, int fd, bool no_fd)
{
    int one = 1;
    if (!h->on_unix) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const bool over = no_fd || atomic_load_explicit(&h->connections, memory_order_relaxed) >=
                                   h->opts.max_connections;
    rose_http_io *io = over ? rose_http_place_pick(h) : NULL;
    if (io == NULL) io = &h->ios[h->next_io++ % h->opts.n_threads];
    rose_http_conn *c = rose_http_conn_new(io, fd, over);
    if (c == NULL) {
        close(fd);
    } else if (io->index == 0) {
        rose_http_conn_start(c);
    } else if (rose_http_post(h, io->index, adopt, c) != ROSE_OK) {
        close(fd);
        atomic_fetch_sub_explicit(&h->connections, 1, memory_order_relaxed);
        free(c);
    }
}

rose_status rose_http_connect(rose_http *h, uint32_t thread, int *fd, rose_err *err)
{
    int ends[2];
    *fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        return rose_fail(err, ROSE_E_IO, "socketpair: %s", strerror(errno));
    rose_http_conn *c = rose_http_conn_new(&h->ios[thread], ends[1], false);
    rose_status st = c == NULL ? rose_fail(err, ROSE_E_NOMEM, "http: out of memory") : ROSE_OK;
    if (c != NULL) {
        c->own = true;
        st = rose_http_post(h, thread, adopt, c);
        if (st != ROSE_OK) atomic_fetch_sub_explicit(&h->connections, 1, memory_order_relaxed);
    }
    if (st == ROSE_OK) {
        *fd = ends[0];
        return ROSE_OK;
    }
    free(c);
    close(ends[0]);
    close(ends[1]);
    return st;
}

static void pause_accepting(rose_http *h)
{
    struct timeval tv = {0, RETRY_MS * 1000};
    event_del(&h->ev_accept);
    event_add(&h->ev_accept_again, &tv);
}

static void log_no_fd(rose_http *h, int why)
{
    struct rlimit l = {0};
    if (!rose_http_place_seldom(&h->no_fd)) return;
    (void)getrlimit(RLIMIT_NOFILE, &l);
    rose_log(ROSE_LOG_WARN, "http",
             "accept: %s; %" PRIu64 " clients so far were turned away with 503. Raise the limit of "
             "descriptors (ulimit -n, now %llu), or lower --max-connections",
             strerror(why), h->n_no_fd, (unsigned long long)l.rlim_cur);
}

static void take_spare(rose_http *h)
{
    if (h->spare_fd < 0) h->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Accepts a client when no descriptor is left, by closing the spare one. The client replaces a
 * connection that waits for its request, if there is one; otherwise it is turned away. The spare
 * descriptor is opened again when a connection has ended. */
static void accept_by_spare(rose_http *h, int why)
{
    if (h->spare_fd < 0) {
        log_no_fd(h, why);
        pause_accepting(h);
        return;
    }
    close(h->spare_fd);
    h->spare_fd = -1;
    int fd = accept4(h->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (rose_http_place_pick(h) != NULL) {
        hand_out(h, fd, true);
    } else {
        h->n_no_fd++;
        rose_http_conn_turn_away(&h->ios[0], fd, "the server has no file descriptor left");
    }
    log_no_fd(h, why);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    rose_http *h = arg;
    (void)what;
    rose_http_phase(&h->ios[0], "accept");
    take_spare(h);
    for (int i = 0; i < BURST; i++) {
        if (too_many_on_the_way(h)) {
            pause_accepting(h);
            return;
        }
        int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client >= 0) {
            hand_out(h, client, false);
        } else if (errno == EMFILE || errno == ENFILE) {
            accept_by_spare(h, errno);
            return;
        } else if (errno == ENOBUFS || errno == ENOMEM) {
            log_no_fd(h, errno);
            pause_accepting(h); /* waiting clients keep the socket readable, so without a pause this
                                   would spin */
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
    rose_http *h = arg;
    (void)fd;
    (void)what;
    event_add(&h->ev_accept, NULL);
}

rose_status rose_http_accept_start(rose_http *h, rose_err *err)
{
    if (h->opts.no_port) return ROSE_OK;
    take_spare(h);
    evtimer_assign(&h->ev_accept_again, h->ios[0].base, on_accept_again, h);
    event_assign(&h->ev_accept, h->ios[0].base, h->listen_fd, EV_READ | EV_PERSIST, on_accept, h);
    if (event_add(&h->ev_accept, NULL) < 0)
        return rose_fail(err, ROSE_E_IO, "http: cannot watch the listening socket");
    h->accept_added = true;
    return ROSE_OK;
}

void rose_http_accept_stop(rose_http *h)
{
    if (h->accept_added) {
        event_del(&h->ev_accept);
        event_del(&h->ev_accept_again);
        h->accept_added = false;
    }
    if (h->spare_fd >= 0) close(h->spare_fd);
    h->spare_fd = -1;
    rose_http_unlisten(h);
}
