/* batch/lines.c - reads files line by line, and one line as a request. The scanner of base/json.h
 * steps over the body without a tree, so the body reaches the API byte by byte as it was written.
 */
#include "batch/lines.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

enum { READ_BYTES = 256 << 10 };

const char *const rose_batch_endpoints[] = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",
    "/v1/messages",         "/v1/rerank",      "/v1/score",     NULL};

const char *rose_batch_endpoint(const char *text, size_t len)
{
    for (size_t i = 0; rose_batch_endpoints[i] != NULL; i++) {
        const char *e = rose_batch_endpoints[i];
        if (strlen(e) == len && memcmp(e, text, len) == 0) return e;
    }
    return NULL;
}

/* ---- lines ---- */

/* Reads more bytes behind those that are there. Sets r->end at the end of the file. */
static rose_status read_more(rose_batch_reader *r, rose_err *err)
{
    ssize_t n = -1;
    if (r->begin > 0) {
        r->buf.len -= r->begin;
        memmove(r->buf.data, r->buf.data + r->begin, r->buf.len);
        r->begin = 0;
    }
    if (rose_buf_reserve(&r->buf, READ_BYTES) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", r->name);
    do {
        n = pread(r->fd, r->buf.data + r->buf.len, READ_BYTES, (off_t)r->read_at);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return rose_fail(err, ROSE_E_IO, "read %s: %s", r->name, strerror(errno));
    r->buf.len += (size_t)n;
    r->read_at += (uint64_t)n;
    r->end = n == 0;
    return ROSE_OK;
}

rose_status rose_batch_reader_next(rose_batch_reader *r, const char **text, size_t *len,
                                   bool *whole, rose_err *err)
{
    size_t seen = 0; /* bytes of the line that have no newline */
    for (;;) {
        const size_t left = r->buf.len - r->begin;
        const char *begin = r->buf.data + r->begin;
        const char *nl = left > seen ? memchr(begin + seen, '\n', left - seen) : NULL;
        const size_t n = nl != NULL ? (size_t)(nl - begin) : left;
        if (n > r->max_bytes)
            return rose_fail(err, ROSE_E_FORMAT, "%s line %u: longer than %zu bytes", r->name,
                             r->line + 1, r->max_bytes);
        if (nl == NULL && !r->end) {
            seen = left;
            const rose_status st = read_more(r, err);
            if (st != ROSE_OK) return st;
            continue;
        }
        if (nl == NULL && left == 0) return ROSE_E_EMPTY;
        *text = begin;
        *len = n;
        *whole = nl != NULL;
        r->at = r->read_at - left;
        r->begin += n + (nl != NULL);
        r->line++;
        return ROSE_OK;
    }
}

void rose_batch_reader_free(rose_batch_reader *r)
{
    rose_buf_free(&r->buf);
}

/* ---- one request ---- */

static void wrong(rose_batch_request *q, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The first thing that is wrong stays. */
static void wrong(rose_batch_request *q, const char *code, const char *param, const char *fmt, ...)
{
    va_list args;
    if (q->code != NULL) return;
    q->code = code;
    q->param = param;
    va_start(args, fmt);
    vsnprintf(q->why, sizeof q->why, fmt, args);
    va_end(args);
}

/* Reads the next value if it is a string; else steps over it. *len is 0 for other values. */
static rose_status take_string(rose_json_scan *s, rose_buf *scratch, const char **text, size_t *len)
{
    *len = 0;
    if (rose_json_scan_peek(s) == '"') return rose_json_scan_string(s, scratch, text, len);
    return rose_json_scan_skip(s);
}

/* Whether the body, an object, has the member stream: true. A body that is no JSON is the API's to
 * refuse. */
static bool asks_for_stream(const char *body, size_t len, rose_buf *scratch)
{
    rose_json_scan s = {.begin = body, .p = body, .end = body + len, .path = "body"};
    rose_status st = rose_json_scan_open(&s, '{');
    bool streams = false;
    for (bool first = true; rose_json_scan_more(&s, '}', &first, &st);) {
        const char *key;
        size_t n;
        st = rose_json_scan_key(&s, scratch, &key, &n);
        if (st != ROSE_OK) break;
        const bool is = n == 6 && memcmp(key, "stream", 6) == 0;
        const bool yes = rose_json_scan_peek(&s) == 't';
        if (is) streams = yes; /* as the API's parser would see it; it refuses a second one */
        st = rose_json_scan_skip(&s);
        if (st != ROSE_OK) break;
    }
    return streams;
}

typedef struct fields {
    bool id, body;
    size_t method_len, url_len;
    char method[8], url[32]; /* longer ones are cut, and wrong */
} fields;

static void keep(char *out, size_t cap, size_t *out_len, const char *text, size_t len)
{
    *out_len = len;
    memcpy(out, text, len < cap ? len : cap);
}

/* Reads the value of one member. */
static rose_status take_member(rose_batch_request *q, fields *f, rose_json_scan *s, const char *key,
                               size_t n, rose_buf *scratch)
{
    const char *text = "";
    size_t len = 0;
    rose_status st;
    if (n == 9 && memcmp(key, "custom_id", 9) == 0) {
        st = take_string(s, scratch, &text, &len);
        q->id.len = 0;
        f->id = st == ROSE_OK && len > 0 && len <= ROSE_BATCH_ID_BYTES;
        return f->id ? rose_buf_add(&q->id, text, len) : st;
    }
    if (n == 6 && memcmp(key, "method", 6) == 0) {
        st = take_string(s, scratch, &text, &len);
        if (st == ROSE_OK) keep(f->method, sizeof f->method, &f->method_len, text, len);
        return st;
    }
    if (n == 3 && memcmp(key, "url", 3) == 0) {
        st = take_string(s, scratch, &text, &len);
        if (st == ROSE_OK) keep(f->url, sizeof f->url, &f->url_len, text, len);
        return st;
    }
    if (n != 4 || memcmp(key, "body", 4) != 0) return rose_json_scan_skip(s);
    f->body = rose_json_scan_peek(s) == '{';
    q->body = s->p;
    st = rose_json_scan_skip(s);
    q->body_len = (size_t)(s->p - q->body);
    return st;
}

static rose_status scan_line(rose_batch_request *q, fields *f, rose_json_scan *s, rose_buf *scratch)
{
    rose_status st = rose_json_scan_open(s, '{');
    for (bool first = true; rose_json_scan_more(s, '}', &first, &st);) {
        const char *key;
        size_t n;
        st = rose_json_scan_key(s, scratch, &key, &n);
        if (st != ROSE_OK) break;
        char name[16]; /* scratch, to which key may point, is used again */
        memcpy(name, key, n < sizeof name ? n : sizeof name);
        st = take_member(q, f, s, name, n < sizeof name ? n : 0, scratch);
        if (st != ROSE_OK) break;
    }
    if (st == ROSE_OK && rose_json_scan_peek(s) != 0)
        st = rose_json_scan_bad(s, "more follows the object");
    return st;
}

static void check_fields(rose_batch_request *q, const fields *f, const char *endpoint,
                         rose_buf *scratch)
{
    if (!f->id) {
        wrong(q, "missing_required_parameter", "custom_id",
              "the line has no 'custom_id', a string of 1 to %d bytes", ROSE_BATCH_ID_BYTES);
        return;
    }
    q->named = true;
    if (f->method_len != 4 || memcmp(f->method, "POST", 4) != 0)
        wrong(q, "invalid_method", "method", "'method' must be \"POST\"");
    if (f->url_len <= sizeof f->url) q->path = rose_batch_endpoint(f->url, f->url_len);
    if (q->path == NULL)
        wrong(q, "invalid_url", "url",
              "'url' must be /v1/chat/completions, /v1/completions, /v1/responses, "
              "/v1/embeddings, /v1/messages, /v1/rerank or /v1/score");
    else if (endpoint != NULL && strcmp(q->path, endpoint) != 0)
        wrong(q, "mismatched_url", "url", "'url' is %s, but the batch is for %s", q->path,
              endpoint);
    if (!f->body)
        wrong(q, "invalid_body", "body", "'body' must be a JSON object");
    else if (asks_for_stream(q->body, q->body_len, scratch))
        wrong(q, "stream_not_supported", "stream",
              "a request of a batch cannot stream; leave 'stream' out of the body");
}

rose_status rose_batch_request_read(rose_batch_request *q, const char *text, size_t len,
                                    const char *endpoint)
{
    rose_buf scratch = {0}, id = q->id;
    fields f = {0};
    rose_err err = {{0}};
    rose_json_scan s = {.begin = text, .p = text, .end = text + len, .path = "line", .err = &err};
    *q = (rose_batch_request){.id = id};
    q->id.len = 0;
    const rose_status st = scan_line(q, &f, &s, &scratch);
    if (st == ROSE_OK)
        check_fields(q, &f, endpoint, &scratch);
    else if (st != ROSE_E_NOMEM)
        wrong(q, "invalid_json_line", NULL, "the line is no JSON object: %s at byte %zu",
              s.what != NULL ? s.what : "it cannot be read", (size_t)(s.p - text));
    rose_buf_free(&scratch);
    return st == ROSE_E_NOMEM ? st : ROSE_OK;
}

void rose_batch_request_free(rose_batch_request *q)
{
    rose_buf_free(&q->id);
}
