/* http/places.c - decides which connections keep their place at --max-connections.
 *
 * Opening a connection costs a client nothing. So thousands of clients that never send a whole
 * request must not lock out those that do. Each thread keeps two lists, both with the oldest
 * connection first.
 *
 * waiting: connections without a complete request and without reply bytes to send. They are new or
 * idle, send their headers or body slowly, or linger after a refusal. A new connection over the
 * limit takes the place of the one that has waited longest.
 *
 * reserve: if no connection waits, all of them have work, and none of it is given up for a new
 * client. The new connection then goes into a small reserve. If it asks for a vital path (health,
 * readiness, metrics) it is answered; any other request gets 503. If the reserve is full, its
 * oldest connection goes.
 *
 * Neither list needs a lock, because each belongs to one thread. The accepting thread reads the
 * lengths of the waiting lists. With them it can give a connection over the limit to a thread
 * where another connection waits. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "http/http_internal.h"

enum { SELDOM_S = 60, MIN_RESERVE = 4, MAX_READS = 16 };

bool rose_http_place_seldom(http_seldom *s)
{
    uint64_t now = rose_now_ns();
    uint64_t next = atomic_load_explicit(&s->next_ns, memory_order_relaxed);
    /* relaxed: one of several threads wins the exchange, and no other data depends on its result */
    return now >= next && atomic_compare_exchange_strong_explicit(
                              &s->next_ns, &next, now + SELDOM_S * UINT64_C(1000000000),
                              memory_order_relaxed, memory_order_relaxed);
}

static void add_waiting(rose_http_io *io, uint32_t by)
{
    /* relaxed: a hint for the accepting thread */
    atomic_fetch_add_explicit(&io->n_waiting, by, memory_order_relaxed);
}

rose_http_io *rose_http_place_pick(rose_http *h)
{
    rose_http_io *most = NULL;
    uint32_t n_most = 0;
    for (uint32_t i = 0; i < h->opts.n_threads; i++) {
        uint32_t n = atomic_load_explicit(&h->ios[i].n_waiting, memory_order_relaxed);
        if (n <= n_most) continue;
        n_most = n;
        most = &h->ios[i];
    }
    return most;
}

void rose_http_place_leave(rose_http_conn *c)
{
    if (c->place == HTTP_PLACE_WAITING) {
        TAILQ_REMOVE(&c->io->waiting, c, place_link);
        add_waiting(c->io, UINT32_MAX); /* one less */
    } else if (c->place == HTTP_PLACE_RESERVE) {
        TAILQ_REMOVE(&c->io->reserve, c, place_link);
        c->io->n_reserve--;
    }
    c->place = HTTP_PLACE_NONE;
}

void rose_http_place_work(rose_http_conn *c)
{
    if (c->place == HTTP_PLACE_WAITING) rose_http_place_leave(c);
}

void rose_http_place_update(rose_http_conn *c)
{
    if (c->place == HTTP_PLACE_RESERVE || c->over) return;
    bool waits = !c->doomed && http_pending(c) == 0 &&
                 (c->state == CONN_HEAD || c->state == CONN_BODY || c->state == CONN_LINGER);
    if (waits == (c->place == HTTP_PLACE_WAITING)) return;
    if (!waits) {
        rose_http_place_leave(c);
        return;
    }
    c->place = HTTP_PLACE_WAITING;
    TAILQ_INSERT_TAIL(&c->io->waiting, c, place_link);
    add_waiting(c->io, 1);
}

/* Drops a connection. If an answer is due, the client is told, but we do not wait until it has
 * read that. */
static void drop(rose_http_conn *c)
{
    const bool begun = c->state == CONN_BODY || (c->state == CONN_HEAD && c->head.len > 0);
    rose_http_place_leave(c);
    if (c->extra && c->state == CONN_HEAD)
        rose_http_refuse_extra(c);
    else if (begun)
        rose_http_refuse(c, 503,
                         "the server has too many connections, and dropped this one because its "
                         "request was not complete");
    rose_http_conn_flush(c);
    rose_http_conn_doom(c);
    if (!c->extra) /* relaxed: a count */
        atomic_fetch_add_explicit(&c->io->h->n_dropped, 1, memory_order_relaxed);
}

static void log_full(rose_http *h)
{
    if (!rose_http_place_seldom(&h->full)) return;
    rose_log(ROSE_LOG_WARN, "http",
             "the limit of %" PRIu32 " connections is met (--max-connections): so far %" PRIu64
             " without a complete request were dropped, and %" PRIu64 " new ones got 503. Raise "
             "the limit, or find the clients that open too many",
             h->opts.max_connections, rose_http_n_dropped(h), rose_http_n_refused(h));
}

static uint32_t reserve_cap(const rose_http *h)
{
    uint32_t cap = HTTP_RESERVE / h->opts.n_threads;
    return cap < MIN_RESERVE ? MIN_RESERVE : cap;
}

/* Puts a connection into the reserve, because all others have work. Connections of the reserve
 * that are being answered are spared. */
static void enter_reserve(rose_http_conn *c)
{
    rose_http_io *io = c->io;
    rose_http_conn *oldest = TAILQ_FIRST(&io->reserve);
    while (oldest != NULL && oldest->state == CONN_BUSY)
        oldest = TAILQ_NEXT(oldest, place_link);
    if (io->n_reserve >= reserve_cap(io->h) && oldest == NULL) oldest = c;
    c->extra = true;
    atomic_fetch_sub_explicit(&io->h->connections, 1, memory_order_relaxed); /* a gauge */
    c->place = HTTP_PLACE_RESERVE;
    TAILQ_INSERT_TAIL(&io->reserve, c, place_link);
    io->n_reserve++;
    c->read_deadline = rose_now_ns() + HTTP_RESERVE_MS * UINT64_C(1000000);
    if (io->n_reserve > reserve_cap(io->h)) drop(oldest);
}

/* Returns the connection that has waited longest for its request; NULL: no connection waits. Its
 * request may lie complete in the socket, unread, because many events came at once. So its bytes
 * are read first: with a complete request it waits no longer, and the next one is asked.
 * MAX_READS bounds the work. */
static rose_http_conn *oldest_waiting(rose_http_io *io)
{
    /* relaxed: the thread that stops the server reads nothing more */
    const bool stopping = atomic_load_explicit(&io->h->stopping, memory_order_relaxed);
    rose_http_conn *c = TAILQ_FIRST(&io->waiting);
    for (int i = 0; c != NULL && i < MAX_READS && !stopping; i++) {
        rose_http_conn_read_now(c);
        if (c->place == HTTP_PLACE_WAITING) return c;
        c = TAILQ_FIRST(&io->waiting);
    }
    return c;
}

void rose_http_place_enter(rose_http_conn *c)
{
    if (!c->over) return;
    c->over = false;
    rose_http_conn *oldest = oldest_waiting(c->io);
    if (oldest != NULL)
        drop(oldest);
    else
        enter_reserve(c);
    log_full(c->io->h);
}
