/* http/conn.c - one connection: reading, sending, time-outs, its end. On its I/O thread.
 *
 * Reading stays enabled while the user works on a request, so that a client that leaves is seen at
 * once. Bytes that arrive go to a bounded lookahead buffer. When it is full, or the client has
 * closed its sending side, reading turns into an edge-triggered check for errors.
 *
 * A client that has closed its sending side (`printf ... | nc -N`, some proxies) may still read, so
 * it gets its replies. The FIN that came does not say whether it reads: close() sends the same FIN
 * as shutdown(SHUT_WR). The client counts as gone, and its work is cancelled, if one of these says
 * so:
 * - recv, send or poll reports an error or a hang-up. A closed socket answers the first bytes of
 *   a reply with a reset, so a stream ends about one token later. A client that closes with
 *   unread bytes resets at once. A Unix socket hangs up at once.
 * - the kernel, if the client runs on this machine. peer.c asks it several times while the reply
 *   is due.
 * - TCP keep-alive probes. The client's kernel forgets a closed socket (Linux: after a minute),
 *   and then answers a probe with a reset.
 * So work for a client that left continues for at most about 70 seconds, and only if the reply is
 * not streamed and the client ran on another machine.
 *
 * Sending: there is one send(2) at the end of a turn. The write event is armed only while the
 * socket is full, so a stream whose client reads costs no epoll_ctl. MSG_NOSIGNAL: SIGPIPE needs no
 * handling.
 *
 * Time-outs: there are two deadlines and one libevent timer. The timer is moved only if it would
 * fire too late; if it fires early, it is armed again. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/profile.h"
#include "http/http_internal.h"

static uint64_t deadline_in(uint32_t ms)
{
    return rose_now_ns() + (uint64_t)ms * 1000000u;
}

void rose_http_conn_touch(rose_http_conn *c)
{
    rose_http_io *io = c->io;
    if (c->dirty) return;
    c->dirty = true;
    TAILQ_INSERT_TAIL(&io->dirty, c, dirty_link);
    if (io->turn_pending) return;
    io->turn_pending = true;
    /* Queues the work for the end of this event-loop iteration after the events that libevent
     * has already found, so that all those events run before we send. */
    event_active(&io->ev_turn, EV_WRITE, 0);
}

void rose_http_conn_doom(rose_http_conn *c)
{
    c->doomed = true;
    rose_http_conn_touch(c);
}

void rose_http_conn_slow(rose_http_conn *c, rose_http_slow why)
{
    if (c->doomed)
        return; /* count the connection only once, and not if it already ends for
                 * another reason */
    /* relaxed: a count */
    atomic_fetch_add_explicit(&c->io->h->n_slow[why], 1, memory_order_relaxed);
    rose_http_conn_doom(c);
}

/* ---- sending ---- */

static void out_consume(rose_http_conn *c, size_t n)
{
    c->out_off += n;
    if (c->out_off == c->out.len) {
        c->out_off = c->out.len = 0;
        c->out_whole = false;
        if (c->out.cap > HTTP_OUT_HIGH || c->next.len > 0) rose_buf_free(&c->out);
        if (c->next.len == 0) return;
        c->out = c->next;
        c->next = (rose_buf){0};
        c->out_whole = true;
    } else if (c->out_off > HTTP_SCRATCH && c->out_off > c->out.len / 2 &&
               (!c->out_whole || c->out.len - c->out_off < HTTP_OUT_HIGH)) {
        c->out.len -= c->out_off;
        memmove(c->out.data, c->out.data + c->out_off, c->out.len);
        c->out_off = 0;
        c->out_whole = false;
    }
}

/* Stops watching for room to write: the client takes bytes again, or never will. */
static void watch_writes(rose_http_conn *c, bool goes_on)
{
    if (c->blocked_ns == 0) return;
    uint64_t took = rose_now_ns() - c->blocked_ns;
    c->blocked_ns = 0;
    if (took > rose_stall_limit)
        rose_stall_report_idle(ROSE_STALL_WRITE, took,
                               "the client took nothing, %zu bytes wait for it; %s",
                               http_pending(c), goes_on ? "now it reads" : "it is dropped");
}

static ssize_t send_some(rose_http_conn *c, const void *bytes, size_t n)
{
    return c->ssl != NULL ? rose_http_tls_write(c, bytes, n) : send(c->fd, bytes, n, MSG_NOSIGNAL);
}

static ssize_t receive(rose_http_conn *c, void *out, size_t cap)
{
    return c->ssl != NULL ? rose_http_tls_read(c, out, cap) : recv(c->fd, out, cap, 0);
}

void rose_http_conn_flush(rose_http_conn *c)
{
    bool waits = false; /* for bytes of the client: TLS */
    while (http_pending(c) > 0 && !c->wblocked && !waits && !c->doomed) {
        size_t want = c->out.len - c->out_off;
        const rose_prof_span span = rose_prof_begin_at("http.send", c->io->marked_ns);
        ssize_t n = send_some(c, c->out.data + c->out_off, want);
        c->io->marked_ns = rose_prof_end_at(&span, 0, "bytes", n > 0 ? (uint64_t)n : 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            rose_http_conn_doom(c);
            return;
        }
        if (n > 0) {
            out_consume(c, (size_t)n);
            c->write_deadline = 0;
            watch_writes(c, true);
        }
        if (c->ssl != NULL)
            waits = n < 0; /* a write over TLS may be short for other reasons */
        else if (n < 0 || (size_t)n < want)
            c->wblocked = true;
    }
    if ((c->wblocked || waits) && c->write_deadline == 0) {
        c->write_deadline = deadline_in(c->io->h->opts.write_timeout_ms);
        if (rose_stall_limit != 0) c->blocked_ns = rose_now_ns();
    }
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
    rose_http_conn *c = arg;
    (void)fd;
    (void)what;
    rose_http_phase(c->io, "send");
    c->wblocked = false;
    if (c->tls_read_again) event_active(&c->ev_read, EV_READ, 0);
    c->tls_read_again = false;
    rose_http_conn_touch(c);
}

/* ---- receiving ---- */

static void keep_ahead(rose_http_conn *c, const char *data, size_t len)
{
    if (rose_buf_add(&c->ahead, data, len) != ROSE_OK) rose_http_conn_doom(c);
}

static void take_input(rose_http_conn *c, const char *data, size_t len)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGER) return;
    size_t used = 0;
    if (c->ahead.len == 0) used = rose_http_parse(c, data, len);
    if (c->state == CONN_CLOSING) {
        c->linger = c->linger || used < len;
        return;
    }
    if (used < len) keep_ahead(c, data + used, len - used);
}

static void take_input_recorded(rose_http_conn *c, size_t len)
{
    const rose_prof_span span = rose_prof_begin("http.parse");
    take_input(c, c->io->scratch, len);
    rose_prof_end_with(&span, "bytes", len);
}

static size_t unparsed(const rose_http_conn *c)
{
    return c->ahead.len - c->ahead_off;
}

/* Asks the kernel whether the client has closed its socket. The first answer may come too early,
 * because close() sends its FIN before it releases the socket. So the question is repeated after
 * 20 ms, 40 ms and so on up to once a second, until the reply is sent. */
static void ask_peer(rose_http_conn *c)
{
    enum { FIRST_MS = 20, MOST_MS = 1000 };
    const http_peer before = c->peer, answer = rose_http_peer_ask(c->fd);
    if (answer != HTTP_PEER_UNKNOWN) /* otherwise no descriptor was left for the question, which
                                      * says nothing about the client */
        c->peer = answer;
    else if (before == HTTP_PEER_UNKNOWN)
        c->peer = HTTP_PEER_REMOTE;
    if (c->peer == HTTP_PEER_CLOSED || (c->peer == HTTP_PEER_REMOTE && before == HTTP_PEER_OPEN)) {
        rose_http_conn_doom(
            c); /* a socket that was open before and can no longer be found has closed */
    } else if (c->peer == HTTP_PEER_OPEN) {
        c->peer_wait_ms = c->peer_wait_ms == 0 ? FIRST_MS : 2 * c->peer_wait_ms;
        if (c->peer_wait_ms > MOST_MS) c->peer_wait_ms = MOST_MS;
        c->read_deadline = deadline_in(c->peer_wait_ms);
    }
}

static void keep_alive_probes(const rose_http_conn *c)
{
    static const int on = 1, seconds = 10, count = 3;
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

/* The client sends nothing more, but a reply to it is due: see the top of this file. */
static void watch_half_closed(rose_http_conn *c)
{
    if (!c->half_closed || c->state != CONN_BUSY || c->read_deadline != 0) return;
    if (c->io->h->on_unix || c->own || c->peer == HTTP_PEER_REMOTE) return;
    if (c->peer == HTTP_PEER_UNKNOWN) keep_alive_probes(c);
    ask_peer(c);
}

static void take_eof(rose_http_conn *c)
{
    c->eof = c->half_closed = true;
    if (c->state == CONN_LINGER) c->doomed = true; /* it has read our answer */
    if (c->state == CONN_BUSY && unparsed(c) == 0) c->keep_alive = false;
}

/* The connection ends within a request, to which there is no answer. */
static void end_unfinished(rose_http_conn *c)
{
    if (c->state == CONN_BODY || (c->state == CONN_HEAD && c->head.len > 0))
        rose_http_done_with(c, true);
}

/* All input of the client is parsed and no more comes: the connection ends after the replies. */
static void end_input(rose_http_conn *c)
{
    if (!c->eof || unparsed(c) > 0 || (c->state != CONN_HEAD && c->state != CONN_BODY)) return;
    end_unfinished(c);
    c->state = CONN_CLOSING;
    c->linger = false;
    c->read_deadline = 0;
}

/* While nothing is read, checks whether the peer has gone. Unread data cannot tell, poll can. */
static void probe(rose_http_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return;
    if ((p.revents & ~POLLRDHUP) != 0 || c->state == CONN_LINGER) c->doomed = true;
    c->half_closed = true;
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    rose_http_conn *c = arg;
    (void)fd;
    (void)what;
    rose_http_phase(c->io, "read");
    if (c->read_mode == HTTP_READ_PROBE) {
        probe(c);
        rose_http_conn_touch(c);
        return;
    }
    /* Bytes that do not fit into the lookahead (`ahead`) stay in the kernel, where they slow the
     * sender down. */
    size_t room = HTTP_SCRATCH;
    if (c->state == CONN_BUSY || c->ahead.len > 0) room = HTTP_LOOKAHEAD - unparsed(c);
    if (room == 0) {
        rose_http_conn_touch(c);
        return;
    }
    const rose_prof_span span = rose_prof_begin("http.recv");
    ssize_t n = receive(c, c->io->scratch, room);
    rose_prof_end_with(&span, "bytes", n > 0 ? (uint64_t)n : 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (c->ssl != NULL) rose_http_conn_touch(c); /* a write may have waited for this */
        return;
    }
    if (n > 0)
        take_input_recorded(c, (size_t)n);
    else if (n == 0)
        take_eof(c);
    else
        c->doomed = true;
    rose_http_conn_touch(c);
}

void rose_http_conn_read_now(rose_http_conn *c)
{
    if (c->read_mode == HTTP_READ_ON && !c->doomed) on_read(c->fd, EV_READ, c);
}

/* Parses input that had to wait for the reply before it. True: some of it was used. */
static bool feed_ahead(rose_http_conn *c)
{
    size_t len = unparsed(c);
    if (len == 0 || (c->state != CONN_HEAD && c->state != CONN_BODY)) return false;
    c->io->marked_ns = 0; /* this is no part of the next send */
    size_t used = rose_http_parse(c, c->ahead.data + c->ahead_off, len);
    c->ahead_off += used;
    if (c->state == CONN_CLOSING && used < len) c->linger = true;
    if (used == len || c->state == CONN_CLOSING) {
        c->ahead.len = c->ahead_off = 0;
    } else if (used > 0) {
        memmove(c->ahead.data, c->ahead.data + c->ahead_off, len - used);
        c->ahead.len = len - used;
        c->ahead_off = 0;
    }
    return used > 0;
}

/* ---- time ---- */

static void read_timed_out(rose_http_conn *c)
{
    c->read_deadline = 0;
    if (c->place == HTTP_PLACE_RESERVE && c->state == CONN_HEAD)
        rose_http_refuse_extra(c);
    else if (c->state == CONN_BUSY) /* watch_half_closed looks again */
        return;
    else if (c->state == CONN_BODY)
        rose_http_body_late(c);
    else if (c->state == CONN_HEAD && c->head.len > 0)
        rose_http_refuse(c, 408, "timed out waiting for the headers");
    else if (c->state == CONN_HEAD && http_pending(c) > 0) /* it reads: write_deadline sees to it */
        c->read_deadline = deadline_in(c->io->h->opts.idle_timeout_ms);
    else
        c->doomed = true; /* idle, or lingered long enough */
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    rose_http_conn *c = arg;
    uint64_t now = rose_now_ns();
    (void)fd;
    (void)what;
    rose_http_phase(c->io, "timer");
    c->timer_at = 0;
    rose_http_conn_touch(c);
    if (c->write_deadline != 0 && now >= c->write_deadline) {
        rose_http_conn_slow(c, ROSE_HTTP_SLOW_STALLED);
        return;
    }
    if (c->read_deadline != 0 && now >= c->read_deadline) read_timed_out(c);
}

static void arm_timer(rose_http_conn *c)
{
    uint64_t d = c->read_deadline;
    if (c->write_deadline != 0 && (d == 0 || c->write_deadline < d)) d = c->write_deadline;
    if (d == 0 || (c->timer_at != 0 && c->timer_at <= d)) return;
    uint64_t now = rose_now_ns();
    uint64_t us = d > now ? (d - now) / 1000 + 1000 : 1000;
    struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    if (event_add(&c->ev_timer, &tv) < 0) {
        c->doomed = true;
        return;
    }
    c->timer_at = now + us * 1000;
}

/* ---- events ---- */

static void set_read_mode(rose_http_conn *c, http_read_mode mode)
{
    if (c->read_mode == mode) return;
    event_del(&c->ev_read);
    c->read_mode = mode;
    if (mode == HTTP_READ_OFF) return;
    short what = EV_READ | EV_PERSIST;
    if (mode == HTTP_READ_PROBE) what = EV_READ | EV_CLOSED | EV_ET | EV_PERSIST;
    event_assign(&c->ev_read, c->io->base, c->fd, what, on_read, c);
    if (event_add(&c->ev_read, NULL) < 0) c->doomed = true;
}

static void arm_events(rose_http_conn *c)
{
    if (!c->eof && unparsed(c) < HTTP_LOOKAHEAD)
        set_read_mode(c, HTTP_READ_ON);
    else /* libevent cannot mix edge and level triggers on one fd; a send will notice the peer's end
          */
        set_read_mode(c, c->wblocked ? HTTP_READ_OFF : HTTP_READ_PROBE);

    bool armed = event_pending(&c->ev_write, EV_WRITE, NULL) != 0;
    if (c->wblocked && !armed && event_add(&c->ev_write, NULL) < 0) c->doomed = true;
    if (!c->wblocked && armed) event_del(&c->ev_write);
    arm_timer(c);
    if (c->read_mode == HTTP_READ_ON && rose_http_tls_pending(c))
        event_active(&c->ev_read, EV_READ, 0);
}

/* ---- the turn, birth and death ---- */

/* Called when all is sent. True: wait until the client has read it; otherwise the connection can
 * end now. */
static bool start_linger(rose_http_conn *c)
{
    if (c->linger && !c->eof) rose_http_tls_say_end(c);
    if (!c->linger || c->eof || shutdown(c->fd, SHUT_WR) < 0) return false;
    c->state = CONN_LINGER;
    c->read_deadline = deadline_in(HTTP_LINGER_MS);
    return true;
}

void rose_http_conn_sent(rose_http_conn *c)
{
    if (c->sent_id == 0) return;
    rose_prof_flow(ROSE_PROF_FLOW_END, c->sent_id);
    rose_prof_async("request", c->sent_id, c->sent_arrival_ns, rose_now_ns());
    c->sent_id = 0;
    c->io->marked_ns = 0; /* the flow ends between two sends */
}

/* Counts n requests of this connection as no longer in flight. */
static void settle(rose_http_conn *c, uint32_t n)
{
    c->n_unsent = 0;
    if (n > 0)
        atomic_fetch_sub_explicit(&c->io->h->inflight, n, memory_order_relaxed); /* a gauge */
}

/* Frees memory when replies of this thread hold too much. Each reply has a limit of its own, but
 * there may be many. The connection whose client has taken nothing for longest goes first, which
 * spares slow clients that read. A single reply may have any size. */
static void shed(rose_http_io *io)
{
    while (io->held > io->max_held) {
        rose_http_conn *c, *worst = NULL;
        uint32_t n = 0;
        TAILQ_FOREACH(c, &io->conns, all_link)
        {
            if (c->held == 0) continue;
            n++;
            if (worst == NULL || c->write_deadline < worst->write_deadline) worst = c;
        }
        if (n < 2) return;
        io->held -= worst->held;
        worst->held = 0;
        rose_http_conn_slow(worst, ROSE_HTTP_SLOW_TOTAL);
    }
}

static void count_held(rose_http_conn *c)
{
    size_t held = c->doomed || http_pending(c) == 0 ? 0 : c->out.cap + c->next.cap;
    c->io->held = c->io->held - c->held + held;
    c->held = held;
}

/* Called between requests: frees large buffers of an idle connection. One long reply, or a
 * client that once read slowly, makes them large. They would stay so until the client leaves,
 * and the memory of many connections would grow for hours. */
static void let_go(rose_http_conn *c)
{
    if (c->out.cap > HTTP_KEEP_BYTES) rose_buf_free(&c->out);
    if (c->ahead.cap > HTTP_KEEP_BYTES && c->ahead.len == 0) rose_buf_free(&c->ahead);
}

void rose_http_conn_turn(rose_http_conn *c)
{
    do {
        rose_http_conn_flush(c);
    } while (!c->doomed && feed_ahead(c));
    end_input(c);
    watch_half_closed(c);
    if (!http_pending(c)) {
        c->write_deadline = 0;
        rose_http_conn_sent(c);
        settle(c, c->n_unsent);
        if (c->state == CONN_HEAD) let_go(c);
    }
    if (c->state == CONN_CLOSING && http_pending(c) == 0 && !start_linger(c)) c->doomed = true;
    rose_http_place_update(c);
    count_held(c);
    if (c->io->held > c->io->max_held) shed(c->io);
    if (!c->doomed) arm_events(c);
    if (c->doomed) rose_http_conn_destroy(c);
}

rose_http_conn *rose_http_conn_new(rose_http_io *io, int fd, bool over)
{
    rose_http_conn *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->io = io;
    c->fd = fd;
    c->over = over;
    c->state = CONN_HEAD;
    c->read_mode = HTTP_READ_OFF;
    atomic_fetch_add_explicit(&io->h->connections, 1, memory_order_relaxed); /* orders nothing */
    return c;
}

void rose_http_conn_start(rose_http_conn *c)
{
    rose_http_io *io = c->io;
    TAILQ_INSERT_TAIL(&io->conns, c, all_link);
    event_assign(&c->ev_read, io->base, c->fd, EV_READ | EV_PERSIST, on_read, c);
    event_assign(&c->ev_write, io->base, c->fd, EV_WRITE | EV_PERSIST, on_write, c);
    evtimer_assign(&c->ev_timer, io->base, on_timer, c);
    rose_http_parse_reset(c);
    c->read_deadline = deadline_in(io->h->opts.idle_timeout_ms);
    rose_http_place_enter(c);
    if (!c->own && !rose_http_tls_begin(c)) c->doomed = true;
    if (io->drained) rose_http_conn_drain(c);
    rose_http_conn_touch(c);
}

void rose_http_conn_turn_away(rose_http_io *io, int fd, const char *why)
{
    rose_http_conn *c = rose_http_conn_new(io, fd, false);
    if (c == NULL) {
        close(fd);
        return;
    }
    rose_http_conn_start(c);
    rose_http_refuse(c, 503, why);
    /* Unread bytes would turn our close into a reset, which may overtake the answer. */
    while (recv(fd, io->scratch, HTTP_SCRATCH, MSG_DONTWAIT) > 0) {
    }
    rose_http_conn_flush(c);
    rose_http_conn_doom(c);
}

void rose_http_conn_destroy(rose_http_conn *c)
{
    rose_http *h = c->io->h;
    watch_writes(c, false);
    rose_http_place_leave(c);
    rose_http_body_uncount(c);
    c->io->held -= c->held;
    if (c->state == CONN_BUSY) {
        c->state = CONN_CLOSING; /* after this, calls that the user of this HTTP server makes on
                                  * the request do nothing */
        h->cb.on_gone(h->cb.arg, &c->req);
        rose_http_done_with(c, true);
        settle(c, c->n_unsent + 1);
    }
    end_unfinished(c);
    settle(c, c->n_unsent);
    if (c->dirty) TAILQ_REMOVE(&c->io->dirty, c, dirty_link);
    TAILQ_REMOVE(&c->io->conns, c, all_link);
    event_del(&c->ev_read);
    event_del(&c->ev_write);
    event_del(&c->ev_timer);
    rose_http_tls_free(c);
    close(c->fd);
    rose_buf_free(&c->out);
    rose_buf_free(&c->next);
    rose_buf_free(&c->ahead);
    rose_buf_free(&c->head);
    rose_buf_free(&c->body);
    free(c->headers);
    if (!c->extra) atomic_fetch_sub_explicit(&h->connections, 1, memory_order_relaxed);
    free(c);
}

void rose_http_conn_drain(rose_http_conn *c)
{
    if (c->state != CONN_HEAD || c->head.len > 0) return;
    c->state = CONN_CLOSING;
    c->read_deadline = 0;
    rose_http_conn_touch(c);
}
