/* http/reply.c - replies and streams: appends bytes to the connection's output buffer. The
 * buffer keeps its memory during a reply, so a stream in steady state allocates nothing. The end
 * of the event-loop iteration sends the bytes (conn.c). On the connection's thread. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "http/http_internal.h"

static void put(rose_http_conn *c, const char *s, size_t n)
{
    c->req.bytes_out += n;
    if (rose_buf_add(&c->out, s, n) != ROSE_OK) rose_http_conn_doom(c);
}

static void put_str(rose_http_conn *c, const char *s)
{
    put(c, s, strlen(s));
}

static void put_u64(rose_http_conn *c, uint64_t v)
{
    char s[20];
    size_t at = sizeof s;
    do {
        s[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    put(c, s + at, sizeof s - at);
}

static const char *reason(int status)
{
    switch (status) {
#define REASON(num, name, string)                                                                  \
    case num:                                                                                      \
        return #string;
        HTTP_STATUS_MAP(REASON)
#undef REASON
    default:
        return "Unknown";
    }
}

/* Returns "Sat, 21 Nov 2026 01:00:00 GMT", made once a second. */
static const char *date_now(rose_http_io *io)
{
    int64_t now = (int64_t)time(NULL);
    if (now == io->date_s) return io->date;
    time_t t = (time_t)now;
    struct tm tm;
    gmtime_r(&t, &tm);
    evutil_date_rfc1123(io->date, sizeof io->date, &tm);
    io->date_s = now;
    return io->date;
}

/* Writes the head up to the framing headers, and decides whether the connection stays open. */
static void put_head(rose_http_conn *c, int status, const char *content_type, const char *headers)
{
    if (atomic_load_explicit(&c->io->h->draining, memory_order_relaxed)) c->keep_alive = false;
    c->req.status = status;
    if (c->io->h->cb.on_done != NULL) c->req.first_ns = rose_now_ns();
    put_str(c, "HTTP/1.1 ");
    put_u64(c, (uint64_t)status);
    put_str(c, " ");
    put_str(c, reason(status));
    put_str(c, "\r\nDate: ");
    put_str(c, date_now(c->io));
    if (content_type != NULL) {
        put_str(c, "\r\nContent-Type: ");
        put_str(c, content_type);
    }
    if (!c->keep_alive)
        put_str(c, "\r\nConnection: close");
    else if (c->parser.http_minor == 0)
        put_str(c, "\r\nConnection: keep-alive");
    put_str(c, "\r\n");
    if (headers != NULL) put_str(c, headers);
    const size_t before = c->out.len;
    if (!rose_http_cors_headers(c, &c->out)) rose_http_conn_doom(c);
    c->req.bytes_out += c->out.len - before;
}

/* Writes a status line and a body in one piece; 1xx, 204 and 304 have no body by definition. */
static void put_reply(rose_http_conn *c, int status, const char *content_type, const char *headers,
                      const void *body, size_t len, rose_buf *owned)
{
    bool bodyless = status < 200 || status == 204 || status == 304;
    put_head(c, status, content_type, headers);
    if (!bodyless) {
        put_str(c, "Content-Length: ");
        put_u64(c, len);
        put_str(c, "\r\n");
    }
    put_str(c, "\r\n");
    if (bodyless || c->parser.method == HTTP_HEAD) {
        /* nothing follows the head */
    } else if (owned != NULL && len >= HTTP_OUT_HIGH && c->next.len == 0) {
        c->req.bytes_out += len;
        c->next =
            *owned; /* with this many bytes waiting to be sent, no further request is parsed */
        *owned = (rose_buf){0};
    } else {
        put(c, body, len);
    }
    rose_http_conn_touch(c);
}

void rose_http_refuse(rose_http_conn *c, int status, const char *why)
{
    rose_http_refuse_with(c, status, why, status == 503 ? "Retry-After: 1\r\n" : NULL);
}

void rose_http_refuse_with(rose_http_conn *c, int status, const char *why, const char *headers)
{
    const rose_http_callbacks *cb = &c->io->h->cb;
    rose_buf body = {0};
    c->keep_alive = false;
    c->linger = true;
    if (cb->error_body != NULL) {
        cb->error_body(cb->arg, c->req.info.path, status, why, &body);
        put_reply(c, status, "application/json", headers, body.data, body.len, NULL);
    } else {
        put_reply(c, status, "text/plain", headers, why, strlen(why), NULL);
    }
    rose_buf_free(&body);
    rose_http_done_with(c, false);
    c->state = CONN_CLOSING;
    c->read_deadline = 0;
}

void rose_http_refuse_extra(rose_http_conn *c)
{
    rose_http_refuse(c, 503, "too many connections");
    atomic_fetch_add_explicit(&c->io->h->n_refused, 1, memory_order_relaxed); /* a count */
}

/* The reply is complete in `out`: go on to the next request, or close. */
static void end_reply(rose_http_conn *c)
{
    rose_http *h = c->io->h;
    rose_http_conn_sent(c); /* if several replies end in one event-loop iteration, only the end of
                             * the last reply is exact */
    c->sent_id = c->req.info.prof_id;
    c->sent_arrival_ns = c->req.info.arrival_ns;
    rose_http_done_with(c, false);
    c->n_unsent++; /* the reply is in flight until the socket has taken it, so that a drain does
                    * not cut it off */
    if (!c->keep_alive || atomic_load_explicit(&h->draining, memory_order_relaxed)) {
        c->state = CONN_CLOSING;
        c->linger = c->ahead.len > c->ahead_off;
        c->read_deadline = 0;
    } else {
        c->state = CONN_HEAD;
        rose_http_parse_reset(c);
        c->read_deadline = rose_now_ns() + (uint64_t)h->opts.idle_timeout_ms * 1000000u;
    }
    rose_http_conn_touch(c);
}

void rose_http_reply(rose_http_req *r, int status, const char *content_type, const char *headers,
                     const void *body, size_t len)
{
    rose_http_conn *c = r->conn;
    if (c->state != CONN_BUSY || r->streaming) return;
    put_reply(c, status, content_type, headers, body, len, NULL);
    end_reply(c);
}

void rose_http_reply_take(rose_http_req *r, int status, const char *content_type,
                          const char *headers, rose_buf *body)
{
    rose_http_conn *c = r->conn;
    if (c->state == CONN_BUSY && !r->streaming) {
        put_reply(c, status, content_type, headers, body->data, body->len, body);
        end_reply(c);
    }
    rose_buf_free(body);
}

bool rose_http_stream_begin(rose_http_req *r, int status, const char *content_type,
                            const char *headers)
{
    rose_http_conn *c = r->conn;
    if (c->state != CONN_BUSY || c->doomed || r->streaming) return false;
    r->streaming = true;
    r->chunked = c->parser.http_minor != 0;
    if (!r->chunked) c->keep_alive = false; /* an HTTP/1.0 stream ends with the close */
    put_head(c, status, content_type, headers);
    put_str(c, r->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    rose_http_conn_touch(c);
    return !c->doomed;
}

/* Writes "<hex>\r\n" into s, which holds 18 bytes. */
static size_t chunk_size_line(char *s, size_t len)
{
    size_t digits = 1;
    for (size_t v = len >> 4; v != 0; v >>= 4)
        digits++;
    for (size_t i = digits; i > 0; i--) {
        s[i - 1] = "0123456789abcdef"[len & 15];
        len >>= 4;
    }
    s[digits] = '\r';
    s[digits + 1] = '\n';
    return digits + 2;
}

static void put_chunk(rose_http_conn *c, const void *bytes, size_t len)
{
    char line[18];
    size_t n = chunk_size_line(line, len);
    if (len > SIZE_MAX / 4 || rose_buf_reserve(&c->out, n + len + 2) != ROSE_OK) {
        rose_http_conn_doom(c);
        return;
    }
    put(c, line, n);
    put(c, bytes, len);
    put(c, "\r\n", 2);
}

bool rose_http_stream_write(rose_http_req *r, const void *bytes, size_t len)
{
    rose_http_conn *c = r->conn;
    if (c->state != CONN_BUSY || c->doomed || !r->streaming) return false;
    if (len == 0 || c->parser.method == HTTP_HEAD) return true; /* an empty chunk would end it */
    if (r->chunked)
        put_chunk(c, bytes, len);
    else
        put(c, bytes, len);
    /* The limit counts only bytes that the socket did not take, so a burst within one event-loop
     * iteration is fine. */
    if (http_pending(c) > c->io->h->opts.max_pending_bytes) {
        rose_http_conn_flush(c);
        c->io->marked_ns = 0;
        if (http_pending(c) > c->io->h->opts.max_pending_bytes)
            rose_http_conn_slow(c, ROSE_HTTP_SLOW_STREAM);
    }
    rose_http_conn_touch(c);
    return !c->doomed;
}

void rose_http_stream_end(rose_http_req *r)
{
    rose_http_conn *c = r->conn;
    if (c->state != CONN_BUSY || !r->streaming) return;
    if (r->chunked && c->parser.method != HTTP_HEAD) put_str(c, "0\r\n\r\n");
    end_reply(c);
}

void rose_http_done_with(rose_http_conn *c, bool gone)
{
    const rose_http_callbacks *cb = &c->io->h->cb;
    if (cb->on_done == NULL) return;
    const rose_http_done d = {.readable = c->head_sliced,
                              .gone = gone,
                              .status = c->req.status,
                              .bytes_in = c->head.len + c->req.body_bytes,
                              .bytes_out = c->req.bytes_out,
                              .first_ns = c->req.first_ns,
                              .end_ns = rose_now_ns()};
    cb->on_done(cb->arg, &c->req, &d);
}

/* ---- the request ---- */

const rose_http_info *rose_http_req_info(const rose_http_req *r)
{
    return &r->info;
}

const char *rose_http_req_header(const rose_http_req *r, const char *name)
{
    const rose_http_conn *c = r->conn;
    for (uint32_t i = 0; i < c->n_headers; i++) {
        if (strcasecmp(c->head.data + c->headers[i].name, name) == 0)
            return c->head.data + c->headers[i].value;
    }
    return NULL;
}

uint32_t rose_http_req_header_count(const rose_http_req *r, const char *name)
{
    const rose_http_conn *c = r->conn;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_headers; i++)
        n += strcasecmp(c->head.data + c->headers[i].name, name) == 0;
    return n;
}

const char *rose_http_req_body(const rose_http_req *r, size_t *len)
{
    *len = r->conn->body.len;
    return r->conn->body.len == 0 ? "" : r->conn->body.data;
}

char *rose_http_req_take_body(rose_http_req *r, size_t *len)
{
    rose_buf *b = &r->conn->body;
    *len = 0;
    if (rose_buf_str(b) == NULL) return NULL; /* ends it with a NUL */
    char *body = b->data;
    *len = b->len;
    *b = (rose_buf){0};
    rose_http_body_uncount(r->conn);
    return body;
}

char *rose_http_req_note(rose_http_req *r)
{
    return r->note;
}

void rose_http_req_client(const rose_http_req *r, char out[ROSE_HTTP_CLIENT])
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    const void *addr = NULL;
    const char *name = r->conn->io->h->on_unix ? "unix" : "unknown";
    snprintf(out, ROSE_HTTP_CLIENT, "%s", r->conn->own ? "batch" : name);
    if (getpeername(r->conn->fd, (struct sockaddr *)&sa, &n) < 0) return;
    if (sa.ss_family == AF_INET) addr = &((const struct sockaddr_in *)&sa)->sin_addr;
    if (sa.ss_family == AF_INET6) addr = &((const struct sockaddr_in6 *)&sa)->sin6_addr;
    if (addr != NULL) inet_ntop(sa.ss_family, addr, out, ROSE_HTTP_CLIENT);
}

void rose_http_req_set_user(rose_http_req *r, void *user)
{
    r->user = user;
}

void *rose_http_req_user(const rose_http_req *r)
{
    return r->user;
}
