/* http/body.c - request bodies: their framing, their memory, and the time that they may take. */
#include <stdio.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "http/http_internal.h"

/* ---- memory ---- */

void rose_http_body_uncount(rose_http_conn *c)
{
    /* relaxed: the count of body bytes is only a bound; no other data depends on it */
    atomic_fetch_sub_explicit(&c->io->h->body_bytes, c->body_counted, memory_order_relaxed);
    c->body_counted = 0;
}

/* Counts n more bytes of received bodies; false over the limit. Many clients that each stop
 * before the end of a body must not fill the memory together. */
static bool count_body(rose_http_conn *c, size_t n)
{
    rose_http *h = c->io->h;
    c->body_counted += n;
    return atomic_fetch_add_explicit(&h->body_bytes, n, memory_order_relaxed) + n <=
           h->opts.max_total_body_bytes;
}

/* Takes from the len bytes at data as many as the body still needs. */
static size_t take_body(rose_http_conn *c, const char *data, size_t len, uint64_t *left)
{
    size_t n = len < *left ? len : (size_t)*left;
    if (!count_body(c, n)) {
        rose_buf_free(&c->body);
        rose_http_body_uncount(c);
        rose_http_refuse(c, 503, "too many request bodies at once");
        return len;
    }
    if (rose_buf_add(&c->body, data, n) != ROSE_OK) {
        rose_http_refuse(c, 503, "out of memory");
        return len;
    }
    c->req.body_bytes += n;
    *left -= n;
    return n;
}

/* ---- framing ---- */

/* The size line is complete. */
static void begin_chunk(rose_http_conn *c)
{
    c->line_bytes = 0;
    c->chunk = c->chunk_left == 0 ? CHUNK_TRAILER : CHUNK_DATA;
    if (c->chunk_left > c->io->h->opts.max_body_bytes - c->body.len)
        rose_http_refuse(c, 413, "request body over the limit");
}

/* One byte of framing. False: malformed. */
static bool chunk_byte(rose_http_conn *c, char ch)
{
    int digit = rose_hex_digit(ch);
    switch (c->chunk) {
    case CHUNK_SIZE_FIRST:
        if (digit < 0) return false;
        c->chunk = CHUNK_SIZE;
        c->chunk_left = (uint64_t)digit;
        return true;
    case CHUNK_SIZE:
        if (digit >= 0) {
            c->chunk_left = c->chunk_left * 16 + (uint64_t)digit;
            return c->chunk_left <= UINT64_MAX / 32;
        }
        c->chunk = ch == '\r' ? CHUNK_SIZE_LF : CHUNK_EXT;
        return ch == '\r' || ch == ';' || ch == ' ' || ch == '\t';
    case CHUNK_EXT: /* extensions mean nothing to us */
        if (ch == '\r') c->chunk = CHUNK_SIZE_LF;
        return ++c->line_bytes <= HTTP_MAX_CHUNK_EXT && ch != '\n' && ch != '\0';
    case CHUNK_SIZE_LF:
        if (ch == '\n') begin_chunk(c);
        return ch == '\n';
    case CHUNK_DATA:
        return false; /* not framing */
    case CHUNK_DATA_CR:
        c->chunk = CHUNK_DATA_LF;
        return ch == '\r';
    case CHUNK_DATA_LF:
        c->chunk = CHUNK_SIZE_FIRST;
        return ch == '\n';
    case CHUNK_TRAILER: /* its lines are skipped */
        if (ch == '\r')
            c->chunk = CHUNK_TRAILER_LF;
        else
            c->line_bytes++;
        return ++c->trailer_bytes <= c->io->h->opts.max_header_bytes && ch != '\n' && ch != '\0';
    case CHUNK_TRAILER_LF:
        c->chunk = CHUNK_TRAILER;
        c->complete = c->line_bytes == 0;
        c->line_bytes = 0;
        return ch == '\n';
    }
    return false;
}

static size_t parse_chunked(rose_http_conn *c, const char *data, size_t len)
{
    size_t used = 0;
    while (used < len && c->state == CONN_BODY && !c->complete) {
        if (c->chunk == CHUNK_DATA) {
            used += take_body(c, data + used, len - used, &c->chunk_left);
            if (c->chunk_left == 0) c->chunk = CHUNK_DATA_CR;
        } else if (!chunk_byte(c, data[used++])) {
            rose_http_refuse(c, 400, "malformed chunked body");
        }
    }
    return used;
}

size_t rose_http_body_parse(rose_http_conn *c, const char *data, size_t len)
{
    if (c->chunked) return parse_chunked(c, data, len);
    size_t used = take_body(c, data, len, &c->content_length);
    c->complete = c->state == CONN_BODY && c->content_length == 0;
    return used;
}

/* ---- time ---- */

typedef struct body_limits {
    uint64_t total; /* ns on the monotonic clock */
    uint64_t rate;  /* ns: without more bytes until then, the average rate is too low; UINT64_MAX =
                       no limit */
} body_limits;

/* The limits of a body's time. A total alone would either cut off an honest 30 MB over a slow
 * link, or let one byte now and then hold a connection for as long. */
static body_limits limits_of_body(const rose_http_conn *c)
{
    const rose_http_opts *o = &c->io->h->opts;
    const uint64_t got_ns =
        o->body_min_rate == 0 ? 0 : (uint64_t)c->body.len * 1000000000u / o->body_min_rate;
    body_limits l = {c->body_began_ns + (uint64_t)o->body_total_ms * 1000000u, UINT64_MAX};
    if (o->body_min_rate != 0)
        l.rate = c->body_began_ns + (uint64_t)o->body_timeout_ms * 1000000u + got_ns;
    return l;
}

uint64_t rose_http_body_deadline(const rose_http_conn *c)
{
    const body_limits l = limits_of_body(c);
    uint64_t at = rose_now_ns() + (uint64_t)c->io->h->opts.body_timeout_ms * 1000000u;
    if (l.rate < at) at = l.rate;
    return l.total < at ? l.total : at;
}

void rose_http_body_late(rose_http_conn *c)
{
    const rose_http_opts *o = &c->io->h->opts;
    const body_limits l = limits_of_body(c);
    const uint64_t now = rose_now_ns();
    char why[160];
    if (now >= l.total)
        snprintf(why, sizeof why,
                 "timed out: the request body took longer than %u ms (--body-total-timeout-ms)",
                 o->body_total_ms);
    else if (now >= l.rate)
        snprintf(why, sizeof why,
                 "timed out: the request body came slower than %u bytes a second "
                 "(--body-min-rate)",
                 o->body_min_rate);
    else
        snprintf(why, sizeof why,
                 "timed out: nothing more of the request body came for %u ms (--body-timeout-ms)",
                 o->body_timeout_ms);
    rose_http_refuse(c, 408, why);
}
