/* tests/load/visit.c - see visit.h. A slot holds a visit, or a connection kept for a later visit,
 * or nothing. Every few milliseconds all slots are checked for timers that are due (leave, drip,
 * sip, time-out); there are a few thousand slots at most. */
#include "load/visit.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"

enum { RX_BYTES = 65536, MAX_EVENTS = 256, SCAN_NS = 4000000, MAX_BODY = 64 << 20 };
#define NONE UINT32_MAX

typedef enum slot_state { SLOT_FREE, SLOT_KEPT, SLOT_CONNECT, SLOT_BUSY } slot_state;

typedef struct slot {
    rose_visit v;
    http_parser parser;
    rose_visitors *pool;
    int fd;
    slot_state state;
    uint32_t next;    /* next slot in the free list or in the kept list */
    uint32_t watched; /* epoll events that are waited for */
    size_t sent, n_send;
    uint64_t t_ns; /* arrival time of the bytes that are being parsed */
    uint64_t drip_ns, sip_ns, leave_ns, timeout_ns; /* when each timer is due; 0 = not set */
    bool reused, keep_alive, after_lf, over, broken;
    uint8_t match; /* how many bytes of the header name match so far */
    /* the turn in which the visit began; events of older turns belong to the slot's former visit */
    uint64_t since;
} slot;

struct rose_visitors {
    rose_visitors_opts o;
    struct addrinfo *addr;
    int ep, timer;
    slot *slots; /* [o.max], owned */
    uint32_t free_head, kept_head, n_active;
    uint64_t scan_ns, armed_ns, n_turns;
    char rx[RX_BYTES];
};

const char *rose_visit_end_name(rose_visit_end e)
{
    static const char *const names[] = {"replied", "left",    "closed by the server",
                                        "refused", "garbled", "timeout"};
    return names[e];
}

/* ---- replies ---- */

static const char retry_name[] = "retry-after";

static int on_field(http_parser *p, const char *at, size_t n)
{
    slot *s = p->data;
    for (size_t i = 0; i < n; i++) {
        bool same = s->match < sizeof retry_name - 1 && (at[i] | 32) == retry_name[s->match];
        s->match = same ? (uint8_t)(s->match + 1) : UINT8_MAX;
    }
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t n)
{
    slot *s = p->data;
    (void)at, (void)n;
    if (s->match == sizeof retry_name - 1) s->v.retry_after = true;
    s->match = 0;
    return 0;
}

static int on_begin(http_parser *p)
{
    slot *s = p->data;
    s->v.retry_after = false;
    s->match = 0;
    return 0;
}

static int on_headers(http_parser *p)
{
    slot *s = p->data;
    /* after "100 Continue" the real reply is still to come */
    if (p->status_code / 100 == 1) return 0;
    if (s->v.n_replies < ROSE_VISIT_MAX_REPLIES) s->v.status[s->v.n_replies] = (int)p->status_code;
    return s->v.plan.head ? 1 : 0;
}

static int on_body(http_parser *p, const char *at, size_t n)
{
    slot *s = p->data;
    rose_visit *v = &s->v;
    if (v->last_ns != 0 && v->plan.watch_gaps && p->status_code == 200 && s->pool->o.on_gap != NULL)
        s->pool->o.on_gap(s->pool->o.user, v, v->last_ns, s->t_ns, at, n);
    if (v->first_ns == 0) v->first_ns = s->t_ns;
    v->last_ns = s->t_ns;
    for (size_t i = 0; i < n; i++) {
        v->n_events += at[i] == '\n' && s->after_lf;
        s->after_lf = at[i] == '\n' && !s->after_lf;
    }
    if (memmem(at, n, "\"error\":{", 9) != NULL) v->has_error = true;
    if (!v->plan.keep_body) return 0;
    return v->body.len + n <= MAX_BODY && rose_buf_add(&v->body, at, n) == ROSE_OK ? 0 : -1;
}

static int on_complete(http_parser *p)
{
    slot *s = p->data;
    if (p->status_code / 100 == 1) return 0;
    s->keep_alive = http_should_keep_alive(p) != 0;
    if (++s->v.n_replies == s->v.plan.n_replies) {
        s->over = true;
        http_parser_pause(p, 1);
    }
    return 0;
}

static const http_parser_settings settings = {
    .on_message_begin = on_begin,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers,
    .on_body = on_body,
    .on_message_complete = on_complete,
};

/* ---- slots ---- */

static void watch(slot *s, uint32_t events, int op)
{
    struct epoll_event ev = {.events = events, .data.ptr = s};
    if (op == EPOLL_CTL_MOD && events == s->watched) return;
    epoll_ctl(s->pool->ep, op, s->fd, &ev);
    s->watched = events;
}

static void hang_up(slot *s)
{
    const struct linger hard = {1, 0};
    if (s->fd < 0) return;
    if (s->v.plan.reset && s->v.end == ROSE_VISIT_LEFT)
        setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(s->fd); /* closing the descriptor also removes it from the epoll set */
    s->fd = -1;
}

static void to_free(slot *s)
{
    rose_visitors *p = s->pool;
    s->state = SLOT_FREE;
    s->next = p->free_head;
    p->free_head = (uint32_t)(s - p->slots);
}

static void unlink_kept(slot *s)
{
    rose_visitors *p = s->pool;
    const uint32_t i = (uint32_t)(s - p->slots);
    for (uint32_t *at = &p->kept_head; *at != NONE; at = &p->slots[*at].next) {
        if (*at == i) {
            *at = s->next;
            break;
        }
    }
}

static void finish(slot *s, rose_visit_end end)
{
    rose_visitors *p = s->pool;
    rose_visit v;
    s->v.end = end;
    s->v.end_ns = end == ROSE_VISIT_REPLIED ? s->t_ns : rose_now_ns();
    bool keep = end == ROSE_VISIT_REPLIED && s->keep_alive && !s->v.plan.fresh &&
                s->sent == s->v.plan.bytes.len;
    if (keep) {
        watch(s, EPOLLIN, EPOLL_CTL_MOD);
        s->state = SLOT_KEPT;
        s->next = p->kept_head;
        p->kept_head = (uint32_t)(s - p->slots);
    } else {
        hang_up(s);
        to_free(s);
    }
    p->n_active--;
    v = s->v; /* the callback may start a visit in this slot */
    s->v = (rose_visit){0};
    p->o.done(p->o.user, &v);
    rose_buf_free(&v.plan.bytes);
    rose_buf_free(&v.body);
}

static bool connect_slot(slot *s)
{
    const int one = 1, size = (int)s->v.plan.receive_buffer_bytes;
    const struct addrinfo *a = s->pool->addr;
    s->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (s->fd < 0) return false;
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (size > 0) setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    rose_stamp_enable(s->fd);
    if (connect(s->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        hang_up(s);
        return false;
    }
    s->state = SLOT_CONNECT;
    watch(s, EPOLLOUT, EPOLL_CTL_ADD);
    return true;
}

/* All that could be sent at once is sent. Sets the epoll events to wait for next. */
static void watch_replies(slot *s, bool write)
{
    const rose_visit_plan *p = &s->v.plan;
    uint32_t events = write ? EPOLLOUT : 0u;
    if (!p->deaf && p->sip_ms == 0) events |= EPOLLIN;
    watch(s, events, EPOLL_CTL_MOD);
}

static void send_more(slot *s)
{
    const rose_visit_plan *p = &s->v.plan;
    size_t end = s->n_send;
    if (p->drip_ms > 0 && s->sent + p->drip_bytes < end) end = s->sent + p->drip_bytes;
    while (s->sent < end) {
        ssize_t n = send(s->fd, p->bytes.data + s->sent, end - s->sent, MSG_NOSIGNAL);
        if (n >= 0)
            s->sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno != EINTR)
            break; /* the read side reports the same error, perhaps after a reply that came first */
    }
    bool blocked = s->sent < end;
    if (s->sent < s->n_send && p->drip_ms > 0)
        s->drip_ns = rose_now_ns() + p->drip_ms * UINT64_C(1000000);
    else
        s->drip_ns = 0;
    if (s->sent == s->n_send && p->half_close) shutdown(s->fd, SHUT_WR);
    watch_replies(s, blocked && p->drip_ms == 0);
}

static void begin(slot *s)
{
    http_parser_init(&s->parser, HTTP_RESPONSE);
    s->parser.data = s;
    s->sent = 0;
    s->after_lf = s->over = s->keep_alive = false;
    s->match = 0;
    s->since = s->pool->n_turns;
    s->reused = s->fd >= 0;
    if (s->reused) {
        s->state = SLOT_BUSY;
        send_more(s);
    } else if (!connect_slot(s)) {
        finish(s, ROSE_VISIT_REFUSED);
    }
}

rose_status rose_visitors_start(rose_visitors *p, rose_visit_plan *plan)
{
    const bool own = plan->fresh || plan->receive_buffer_bytes > 0;
    uint32_t *head = !own && p->kept_head != NONE ? &p->kept_head : &p->free_head;
    /* no slot is free, so a kept connection is closed */
    if (*head == NONE && p->kept_head != NONE) {
        slot *k = &p->slots[p->kept_head];
        p->kept_head = k->next;
        hang_up(k);
        to_free(k);
    }
    if (*head == NONE) {
        rose_buf_free(&plan->bytes);
        return ROSE_E_FULL;
    }
    slot *s = &p->slots[*head];
    *head = s->next;
    const uint64_t now = rose_now_ns();
    s->v = (rose_visit){.plan = *plan, .start_ns = now};
    plan->bytes = (rose_buf){0};
    rose_visit_plan *q = &s->v.plan;
    q->fresh = own;
    if (q->n_replies == 0) q->n_replies = 1;
    s->n_send = q->n_send == 0 || q->n_send > q->bytes.len ? q->bytes.len : q->n_send;
    s->drip_ns = 0;
    s->sip_ns = q->sip_ms > 0 ? now + q->sip_ms * UINT64_C(1000000) : 0;
    s->leave_ns = q->leave_ms > 0 ? now + q->leave_ms * UINT64_C(1000000) : 0;
    s->timeout_ns = now + p->o.timeout_ms * UINT64_C(1000000);
    p->n_active++;
    begin(s);
    return ROSE_OK;
}

/* ---- events ---- */

/* The server closed a kept connection: the visit is tried once more on a new one. */
static bool again(slot *s)
{
    if (!s->reused || s->v.bytes_in > 0) return false;
    hang_up(s);
    begin(s);
    return true;
}

static void digest(slot *s, const char *bytes, size_t n)
{
    s->v.bytes_in += n;
    size_t used = http_parser_execute(&s->parser, &settings, bytes, n);
    if (s->over) {
        finish(s, ROSE_VISIT_REPLIED);
    } else if (used != n) {
        finish(s, ROSE_VISIT_GARBLED);
    } else if (s->v.plan.leave_bytes > 0 && s->v.bytes_in >= s->v.plan.leave_bytes) {
        finish(s, ROSE_VISIT_LEFT);
    }
}

static void receive(slot *s, size_t most)
{
    rose_visitors *p = s->pool;
    ssize_t n = rose_recv_stamped(s->fd, p->rx, most < RX_BYTES ? most : RX_BYTES, &s->t_ns);
    if (n > 0) {
        digest(s, p->rx, (size_t)n);
        return;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (again(s)) return;
    /* for a body without a length, the end of the connection is its end */
    http_parser_execute(&s->parser, &settings, p->rx, 0);
    finish(s, s->over ? ROSE_VISIT_REPLIED : ROSE_VISIT_CLOSED);
}

static void connected(slot *s)
{
    int e = 0;
    socklen_t n = sizeof e;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &n);
    if (e != 0) {
        hang_up(s);
        finish(s, ROSE_VISIT_REFUSED);
        return;
    }
    s->state = SLOT_BUSY;
    send_more(s);
}

static void on_event(slot *s, uint32_t events)
{
    switch (s->state) {
    case SLOT_FREE:
        return;
    case SLOT_KEPT: /* a kept connection: the server closed it, or sent bytes that nobody asked for
                     */
        unlink_kept(s);
        hang_up(s);
        to_free(s);
        return;
    case SLOT_CONNECT:
        connected(s);
        return;
    case SLOT_BUSY:
        if (s->v.plan.deaf || s->v.plan.sip_ms > 0) {
            if (events & (EPOLLHUP | EPOLLERR)) {
                finish(s, ROSE_VISIT_CLOSED);
                return;
            }
        } else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            receive(s, RX_BYTES);
            return; /* writing continues in the next turn */
        }
        if (events & EPOLLOUT) send_more(s);
        return;
    }
}

static void check_timers(slot *s, uint64_t now)
{
    const rose_visit_plan *p = &s->v.plan;
    if (now >= s->timeout_ns) {
        finish(s, ROSE_VISIT_TIMEOUT);
    } else if (s->leave_ns != 0 && now >= s->leave_ns) {
        finish(s, ROSE_VISIT_LEFT);
    } else if (s->state == SLOT_BUSY && s->drip_ns != 0 && now >= s->drip_ns) {
        send_more(s);
    } else if (s->state == SLOT_BUSY && s->sip_ns != 0 && now >= s->sip_ns) {
        s->sip_ns = now + p->sip_ms * UINT64_C(1000000);
        receive(s, p->sip_bytes);
    }
}

static void scan(rose_visitors *p)
{
    const uint64_t now = rose_now_ns();
    if (now < p->scan_ns) return;
    p->scan_ns = now + SCAN_NS;
    for (uint32_t i = 0; i < p->o.max; i++) {
        slot *s = &p->slots[i];
        if (s->state == SLOT_CONNECT || s->state == SLOT_BUSY) check_timers(s, now);
    }
}

rose_status rose_visitors_turn(rose_visitors *p, uint64_t until_ns)
{
    struct epoll_event ev[MAX_EVENTS];
    uint64_t wake = p->n_active > 0 && p->scan_ns < until_ns ? p->scan_ns : until_ns;
    if (wake != p->armed_ns) {
        const struct itimerspec at = {
            .it_value = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)}};
        timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &at, NULL);
        p->armed_ns = wake;
    }
    int n = epoll_wait(p->ep, ev, MAX_EVENTS, -1);
    if (n < 0 && errno != EINTR) return ROSE_E_IO;
    p->n_turns++;
    for (int i = 0; i < n; i++) {
        slot *s = ev[i].data.ptr;
        if (s != NULL) {
            if (s->since != p->n_turns) on_event(s, ev[i].events);
        } else {
            uint64_t ticks;
            p->armed_ns = 0;
            /* the timer was set again since it fired */
            if (read(p->timer, &ticks, sizeof ticks) < 0) continue;
        }
    }
    scan(p);
    return ROSE_OK;
}

/* ---- create and destroy ---- */

rose_status rose_visitors_create(rose_visitors **out, const rose_visitors_opts *o, rose_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    *out = NULL;
    rose_visitors *p = calloc(1, sizeof *p);
    if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    p->o = *o;
    p->ep = p->timer = -1;
    p->free_head = p->kept_head = NONE;
    rose_status st = ROSE_OK;
    p->slots = calloc(o->max, sizeof *p->slots);
    if (p->slots == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        goto done;
    }
    for (uint32_t i = o->max; i-- > 0;) {
        p->slots[i].pool = p;
        p->slots[i].fd = -1;
        to_free(&p->slots[i]);
    }
    int rc = getaddrinfo(o->url->host, o->url->port, &hints, &p->addr);
    if (rc != 0) {
        p->addr = NULL;
        st = rose_fail(err, ROSE_E_NOTFOUND, "%s:%s: %s", o->url->host, o->url->port,
                       gai_strerror(rc));
        goto done;
    }
    p->ep = epoll_create1(EPOLL_CLOEXEC);
    p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (p->ep < 0 || p->timer < 0 || epoll_ctl(p->ep, EPOLL_CTL_ADD, p->timer, &ev) != 0)
        st = rose_fail(err, ROSE_E_IO, "epoll: %s", strerror(errno));
done:
    if (st != ROSE_OK) {
        rose_visitors_destroy(p);
        return st;
    }
    *out = p;
    return ROSE_OK;
}

void rose_visitors_destroy(rose_visitors *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; p->slots != NULL && i < p->o.max; i++) {
        hang_up(&p->slots[i]);
        rose_buf_free(&p->slots[i].v.plan.bytes);
        rose_buf_free(&p->slots[i].v.body);
    }
    free(p->slots);
    if (p->addr != NULL) freeaddrinfo(p->addr);
    if (p->ep >= 0) close(p->ep);
    if (p->timer >= 0) close(p->timer);
    free(p);
}

uint32_t rose_visitors_n_active(const rose_visitors *p)
{
    return p->n_active;
}

void rose_visitors_drop_kept(rose_visitors *p)
{
    while (p->kept_head != NONE) {
        slot *s = &p->slots[p->kept_head];
        p->kept_head = s->next;
        hang_up(s);
        to_free(s);
    }
}
