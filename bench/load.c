/* bench/load.c - see load.h. Connections are kept and used again. If the server closed a kept
 * connection while it was idle, its next request is sent once more on a new connection. No other
 * failure leads to a second try. */
#include "bench/load.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fds.h"

enum { RX_BYTES = 16384, MAX_EVENTS = 256, SCAN_NS = 20000000, NO_ITEM = -1, OWN_FDS = 64 };
enum { MAX_AGE_NS = 1000000000, CLOCKS_APART_NS = 2000 };

/* ---- time stamps ---- */

void rose_stamp_enable(int fd)
{
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
}

/* The kernel stamps with the wall clock, and we use the monotonic one. So the age of the bytes is
 * computed by the wall clock and subtracted from our clock. Returns the present time if there is no
 * stamp, or an impossible one because the wall clock was set. */
static uint64_t arrival_ns(struct msghdr *m)
{
    struct timespec wall, stamp;
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    while (c != NULL && (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS))
        c = CMSG_NXTHDR(m, c);
    if (c == NULL || c->cmsg_len < CMSG_LEN(sizeof stamp)) return rose_now_ns();
    memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
    uint64_t before, now = rose_now_ns();
    int tries = 0;
    do { /* Reads both clocks; repeats that if the thread lost its CPU between the two. */
        before = now;
        clock_gettime(CLOCK_REALTIME, &wall);
        now = rose_now_ns();
    } while (now - before > CLOCKS_APART_NS && ++tries < 4);
    int64_t age = (wall.tv_sec - stamp.tv_sec) * 1000000000 + (wall.tv_nsec - stamp.tv_nsec);
    return age > 0 && age < MAX_AGE_NS ? now - (uint64_t)age : now;
}

ssize_t rose_recv_stamped(int fd, void *buf, size_t n, uint64_t *t_ns)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct timespec)) + 64];
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = n};
    struct msghdr m;
    ssize_t got;
    do {
        m = (struct msghdr){.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
        got = recvmsg(fd, &m, 0);
    } while (got < 0 && errno == EINTR);
    const int e = errno;
    *t_ns = got > 0 ? arrival_ns(&m) : rose_now_ns();
    errno = e;
    return got;
}

/* ---- connections ---- */

typedef enum conn_state { CONN_IDLE, CONN_CONNECT, CONN_BUSY } conn_state;

typedef struct conn {
    struct conn *next_idle;
    rose_reader reader;
    int fd;
    conn_state state;
    bool want_write, reused;
    int64_t item; /* index of the request, or NO_ITEM */
    size_t sent;
    uint64_t
        heard_ns;   /* when the last byte came; before the first byte: when the request started */
    ssize_t rx_len; /* result of the read phase: number of bytes, 0 = closed, -1 = failed */
    int rx_errno;
    uint64_t rx_ns;
    char rx[RX_BYTES];
} conn;

typedef struct load {
    const rose_load_opts *o;
    const rose_load_item *items;
    rose_reply *replies;
    uint32_t n, next, n_done, n_busy;
    uint64_t start_ns, scan_ns;
    int ep, timer;
    struct addrinfo *addr;
    conn **all; /* owned, n_all of them */
    uint32_t n_all, cap_all;
    conn *idle;
} load;

static rose_status resolve(const rose_url *u, struct addrinfo **out, rose_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(u->host, u->port, &hints, out);
    if (rc != 0) {
        *out = NULL;
        return rose_fail(err, ROSE_E_NOTFOUND, "%s:%s: %s", u->host, u->port, gai_strerror(rc));
    }
    return ROSE_OK;
}

static void conn_close(conn *c)
{
    if (c->fd >= 0) close(c->fd); /* closing the descriptor also removes it from the epoll set */
    c->fd = -1;
    c->state = CONN_IDLE;
    c->item = NO_ITEM;
}

static conn *conn_new(load *l)
{
    if (l->n_all == l->cap_all) {
        uint32_t cap = l->cap_all == 0 ? 64 : l->cap_all * 2;
        conn **p = realloc(l->all, cap * sizeof *p);
        if (p == NULL) return NULL;
        l->all = p;
        l->cap_all = cap;
    }
    conn *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    rose_reader_init(&c->reader);
    c->fd = -1;
    c->item = NO_ITEM;
    l->all[l->n_all++] = c;
    return c;
}

static void to_idle(load *l, conn *c)
{
    c->next_idle = l->idle;
    l->idle = c;
}

static void finish_item(load *l, conn *c)
{
    rose_reply *r = &l->replies[c->item];
    rose_reply_settle(r);
    if (r->end_ns == 0 && r->start_ns != 0) r->end_ns = rose_now_ns();
    c->item = NO_ITEM;
    l->n_busy--;
    l->n_done++;
    if (l->o->progress != NULL) l->o->progress(l->o->user, l->n_done, l->n);
}

static void watch(load *l, conn *c, bool write, int op)
{
    struct epoll_event ev = {.events = EPOLLIN | (write ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(l->ep, op, c->fd, &ev);
    c->want_write = write;
}

/* Opens a socket and starts to connect. Returns false if that fails; the reply then holds the
 * error. */
static bool conn_open(load *l, conn *c, rose_reply *r)
{
    const int one = 1;
    const struct addrinfo *a = l->addr;
    c->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (c->fd < 0) {
        rose_reply_fail(r, "socket: %s", strerror(errno));
        return false;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    rose_stamp_enable(c->fd);
    if (connect(c->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        rose_reply_fail(r, "connect: %s", strerror(errno));
        conn_close(c);
        return false;
    }
    c->state = CONN_CONNECT;
    watch(l, c, true, EPOLL_CTL_ADD);
    return true;
}

/* Ends the request on c with the result in its reply, and closes the connection if the reply does
 * not let us keep it. */
static void give_up(load *l, conn *c)
{
    if (c->item != NO_ITEM) finish_item(l, c);
    conn_close(c);
    to_idle(l, c);
}

static void conn_write(load *l, conn *c)
{
    const rose_load_item *it = &l->items[c->item];
    while (c->sent < it->len) {
        ssize_t n = send(c->fd, it->bytes + c->sent, it->len - c->sent, MSG_NOSIGNAL);
        if (n >= 0) {
            c->sent += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!c->want_write) watch(l, c, true, EPOLL_CTL_MOD);
            return;
        } else if (errno != EINTR) {
            return; /* the read side reports the same error, perhaps after a reply that came first
                     */
        }
    }
    if (c->want_write) watch(l, c, false, EPOLL_CTL_MOD);
}

static void start_on(load *l, conn *c, int64_t item)
{
    rose_reply *r = &l->replies[item];
    c->item = item;
    c->sent = 0;
    c->heard_ns = rose_now_ns();
    if (r->start_ns == 0) r->start_ns = c->heard_ns;
    rose_reader_begin(&c->reader, r);
    c->reused = c->fd >= 0;
    if (c->reused) {
        c->state = CONN_BUSY;
        conn_write(l, c);
    } else if (!conn_open(l, c, r)) {
        give_up(l, c);
    }
}

static rose_status start_item(load *l, uint32_t item)
{
    conn *c = l->idle;
    if (c != NULL)
        l->idle = c->next_idle;
    else if ((c = conn_new(l)) == NULL)
        return ROSE_E_NOMEM;
    l->n_busy++;
    rose_reply *r = &l->replies[item];
    r->due_ns = l->o->concurrency > 0 ? rose_now_ns() : l->start_ns + l->items[item].due_ns;
    start_on(l, c, item);
    return ROSE_OK;
}

/* The server closed a connection that we had kept. The request is sent once more on a new one. */
static bool retry(load *l, conn *c)
{
    if (!c->reused || c->reader.started) return false;
    int64_t item = c->item;
    conn_close(c);
    start_on(l, c, item);
    return true;
}

static void conn_connected(load *l, conn *c)
{
    int e = 0;
    socklen_t n = sizeof e;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n);
    if (e != 0) {
        rose_reply_fail(&l->replies[c->item], "connect: %s", strerror(e));
        give_up(l, c);
        return;
    }
    c->state = CONN_BUSY;
    conn_write(l, c);
}

/* Phase one: only read bytes and note when they arrived. */
static void conn_receive(conn *c)
{
    c->rx_len = rose_recv_stamped(c->fd, c->rx, sizeof c->rx, &c->rx_ns);
    c->rx_errno = errno;
}

/* Phase two: parse the bytes of phase one. */
static void conn_digest(load *l, conn *c)
{
    if (c->rx_len < 0 && (c->rx_errno == EAGAIN || c->rx_errno == EWOULDBLOCK)) return;
    if (c->item == NO_ITEM) { /* an idle connection: the server closed it, or sent bytes that nobody
                                 asked for */
        for (conn **p = &l->idle; *p != NULL; p = &(*p)->next_idle) {
            if (*p == c) {
                *p = c->next_idle;
                break;
            }
        }
        give_up(l, c);
        return;
    }
    c->heard_ns = c->rx_ns;
    rose_status st;
    if (c->rx_len > 0) {
        st = rose_reader_feed(&c->reader, c->rx, (size_t)c->rx_len, c->rx_ns);
    } else {
        if (retry(l, c)) return;
        if (c->rx_len < 0)
            rose_reply_fail(&l->replies[c->item],
                            "the connection failed after %" PRIu32 " events: %s",
                            l->replies[c->item].n_events, strerror(c->rx_errno));
        st = rose_reader_eof(&c->reader, c->rx_ns);
    }
    if (st == ROSE_OK && !c->reader.complete) return;
    if (st == ROSE_OK && c->reader.keep_alive && c->sent == l->items[c->item].len) {
        finish_item(l, c);
        c->state = CONN_IDLE;
        to_idle(l, c);
        return;
    }
    give_up(l, c);
}

static void check_timeouts(load *l, uint64_t now)
{
    const rose_load_opts *o = l->o;
    if (now < l->scan_ns) return;
    l->scan_ns = now + SCAN_NS;
    for (uint32_t i = 0; i < l->n_all; i++) {
        conn *c = l->all[i];
        if (c->item == NO_ITEM) continue;
        rose_reply *r = &l->replies[c->item];
        if (o->timeout_ns != 0 && now > r->start_ns + o->timeout_ns)
            rose_reply_fail(r, "no end after %.1f s (%" PRIu32 " events)",
                            (double)o->timeout_ns * 1e-9, r->n_events);
        else if (o->stall_ns != 0 && now > c->heard_ns + o->stall_ns)
            rose_reply_fail(r, "silence of %.1f s after %" PRIu32 " events",
                            (double)o->stall_ns * 1e-9, r->n_events);
        else
            continue;
        give_up(l, c);
    }
}

/* Sends the requests that are due. Returns the time at which to wake next. */
static rose_status send_due(load *l, uint64_t *wake_ns)
{
    *wake_ns = l->scan_ns;
    while (l->next < l->n) {
        if (l->o->concurrency > 0) {
            if (l->n_busy >= l->o->concurrency) break;
        } else {
            uint64_t due = l->start_ns + l->items[l->next].due_ns;
            if (due > rose_now_ns()) {
                if (due < *wake_ns) *wake_ns = due;
                break;
            }
        }
        rose_status st = start_item(l, l->next++);
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

static void arm(const load *l, uint64_t wake_ns)
{
    const struct itimerspec at = {
        .it_value = {(time_t)(wake_ns / 1000000000u), (long)(wake_ns % 1000000000u)}};
    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void one_turn(load *l, struct epoll_event *ev, int n)
{
    for (int i = 0; i < n; i++) {
        conn *c = ev[i].data.ptr;
        if (c == NULL) {
            uint64_t ticks;
            if (read(l->timer, &ticks, sizeof ticks) < 0)
                continue; /* nothing to read: the timer was set to a later time after it had
                           * fired */
        } else if (c->state == CONN_CONNECT) {
            c->rx_ns = 0;
        } else if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            conn_receive(c);
        } else {
            c->rx_ns = 0;
        }
    }
    for (int i = 0; i < n; i++) {
        conn *c = ev[i].data.ptr;
        if (c == NULL) continue;
        if (c->state == CONN_CONNECT) {
            conn_connected(l, c);
            continue;
        }
        if ((ev[i].events & EPOLLOUT) && c->state == CONN_BUSY) conn_write(l, c);
        if (c->rx_ns != 0) conn_digest(l, c);
    }
}

static rose_status run_loop(load *l)
{
    struct epoll_event ev[MAX_EVENTS];
    uint64_t armed = 0;
    while (l->n_done < l->n) {
        uint64_t wake;
        if (l->o->stop != NULL && *l->o->stop) break;
        rose_status st = send_due(l, &wake);
        if (st != ROSE_OK) return st;
        if (l->n_done == l->n) break;
        if (wake != armed) arm(l, armed = wake);
        int n = epoll_wait(l->ep, ev, MAX_EVENTS, -1);
        if (n < 0 && errno != EINTR) return ROSE_E_IO;
        one_turn(l, ev, n < 0 ? 0 : n);
        check_timeouts(l, rose_now_ns());
    }
    for (uint32_t i = 0; i < l->n_all; i++) {
        conn *c = l->all[i];
        if (c->item == NO_ITEM) continue;
        rose_reply_fail(&l->replies[c->item], "the run was stopped");
        give_up(l, c);
    }
    for (; l->next < l->n; l->next++)
        rose_reply_fail(&l->replies[l->next], "the run was stopped before it was sent");
    return ROSE_OK;
}

rose_status rose_load_run(const rose_load_opts *o, const rose_load_item *items, uint32_t n,
                          rose_reply *replies, rose_err *err)
{
    load l = {.o = o, .items = items, .replies = replies, .n = n, .ep = -1, .timer = -1};
    rose_status st = resolve(o->url, &l.addr, err);
    if (st != ROSE_OK) goto done;
    const uint32_t open_at_once = o->concurrency > 0 && o->concurrency < n ? o->concurrency : n;
    rose_fds_widen(open_at_once > UINT16_MAX ? UINT16_MAX : open_at_once + OWN_FDS);
    l.ep = epoll_create1(EPOLL_CLOEXEC);
    l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (l.ep < 0 || l.timer < 0 || epoll_ctl(l.ep, EPOLL_CTL_ADD, l.timer, &ev) != 0) {
        st = rose_fail(err, ROSE_E_IO, "epoll: %s", strerror(errno));
        goto done;
    }
    l.start_ns = rose_now_ns();
    l.scan_ns = l.start_ns + SCAN_NS;
    st = run_loop(&l);
    if (st != ROSE_OK)
        rose_fail(err, st, st == ROSE_E_NOMEM ? "out of memory" : "epoll: the run cannot go on");
done:
    for (uint32_t i = 0; i < l.n_all; i++) {
        conn_close(l.all[i]);
        rose_reader_free(&l.all[i]->reader);
        free(l.all[i]);
    }
    free(l.all);
    if (l.addr != NULL) freeaddrinfo(l.addr);
    if (l.ep >= 0) close(l.ep);
    if (l.timer >= 0) close(l.timer);
    return st;
}

/* ---- request heads, and one blocking call ---- */

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

static rose_status take_reply(void *ctx, const char *bytes, size_t n, bool *done)
{
    rose_reader *rd = ctx;
    const rose_status st =
        n > 0 ? rose_reader_feed(rd, bytes, n, rose_now_ns()) : rose_reader_eof(rd, rose_now_ns());
    *done = rd->complete;
    return st;
}

rose_status rose_http_call(const rose_url *u, const char *path, const char *key, const char *post,
                           uint32_t timeout_ms, int *status, rose_buf *body, rose_err *err)
{
    rose_reader rd;
    rose_reply reply = {0};
    rose_buf head = {0};

    rose_reader_init(&rd);
    rose_reader_begin(&rd, &reply);
    rose_status st = rose_request_write(&head, u, path, key, post, post != NULL ? strlen(post) : 0);
    if (st == ROSE_OK)
        st = rose_fetch(u, NULL, head.data, head.len, timeout_ms, take_reply, &rd, err);
    else
        rose_fail(err, st, "out of memory");
    if (st != ROSE_OK && reply.error[0] != '\0') rose_fail(err, st, "%s", reply.error);
    *status = reply.status;
    if (st == ROSE_OK && body != NULL && rose_buf_add(body, rd.body.data, rd.body.len) != ROSE_OK)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_buf_free(&head);
    rose_reader_free(&rd);
    rose_reply_free(&reply);
    return st;
}
