/* http/parse.c - turns bytes into requests.
 *
 * We find the end of the head ourselves (an empty line, with every line ended by CRLF) and hand the
 * head to http_parser in one piece. So limits are exact, and fields are slices of one buffer. It
 * also means that two parsers must agree where a head ends, which request smuggling attacks.
 *
 * We refuse whatever the specification lets a server refuse because intermediaries disagree on
 * it: bare LF, folded lines, Content-Length together with Transfer-Encoding, either of them
 * twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/profile.h"
#include "base/utf8.h"
#include "http/http_internal.h"

static int refuse_in_callback(rose_http_conn *c, int status, const char *why)
{
    c->refuse_status = status;
    c->refuse_why = why;
    return -1;
}

static int on_url(http_parser *p, const char *at, size_t n)
{
    rose_http_conn *c = p->data;
    c->url = (uint32_t)(at - c->head.data);
    c->url_len = (uint32_t)n;
    return 0;
}

static int on_header_field(http_parser *p, const char *at, size_t n)
{
    rose_http_conn *c = p->data;
    if (c->n_headers == HTTP_MAX_HEADERS)
        return refuse_in_callback(c, 431, "more than 256 header fields");
    if (c->n_headers == c->cap_headers) {
        uint32_t cap = c->cap_headers == 0 ? 32 : c->cap_headers * 2;
        http_header *h = realloc(c->headers, cap * sizeof *h);
        if (h == NULL) return refuse_in_callback(c, 503, "out of memory");
        c->headers = h;
        c->cap_headers = cap;
    }
    uint32_t name = (uint32_t)(at - c->head.data);
    c->headers[c->n_headers++] = (http_header){name, (uint32_t)n, name + (uint32_t)n, 0};
    return 0;
}

static int on_header_value(http_parser *p, const char *at, size_t n)
{
    rose_http_conn *c = p->data;
    if (c->n_headers == 0) return -1;
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
        n--;
    if (n == 0)
        return 0; /* an empty value: `at` may lie in the next line, so keep the "" at the end of the
                     field name */
    http_header *h = &c->headers[c->n_headers - 1];
    h->value = (uint32_t)(at - c->head.data);
    h->value_len = (uint32_t)n;
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    rose_http_conn *c = p->data;
    c->content_length = p->content_length;
    c->keep_alive = http_should_keep_alive(p) != 0;
    c->head_done = true;
    p->upgrade = 0; /* ignore the header Upgrade, as the HTTP specification allows */
    return 0;
}

static const http_parser_settings g_settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
};

void rose_http_parse_reset(rose_http_conn *c)
{
    rose_http_body_uncount(c);
    c->head.len = c->head_scan = c->line_start = 0;
    c->body.len = 0;
    c->chunk = CHUNK_SIZE_FIRST;
    c->chunk_left = c->line_bytes = c->trailer_bytes = 0;
    c->n_headers = 0;
    c->url = c->url_len = c->authority = c->authority_len = 0;
    c->head_done = c->head_sliced = c->complete = c->keep_alive = false;
    c->refuse_status = 0;
    c->content_length = 0;
    c->req = (rose_http_req){
        .conn = c, .info = {.path = "", .query = "", .thread = c->io->index, .own = c->own}};
    if (c->body.cap > HTTP_KEEP_BYTES) rose_buf_free(&c->body);
    if (c->head.cap > HTTP_KEEP_BYTES) rose_buf_free(&c->head);
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
}

static bool header_is(const rose_http_conn *c, const http_header *h, const char *name)
{
    return strlen(name) == h->name_len &&
           strncasecmp(c->head.data + h->name, name, h->name_len) == 0;
}

static bool value_is(const rose_http_conn *c, const http_header *h, const char *value)
{
    return strlen(value) == h->value_len &&
           strncasecmp(c->head.data + h->value, value, h->value_len) == 0;
}

/* A name of n bytes in a head, whose CR ends the search at the latest. */
static bool is_token(const char *s, size_t n)
{
    return n > 0 && strspn(s, ROSE_ALNUM "!#$%&'*+-.^_`|~") >= n;
}

/* Checks the lines of a complete head: no control bytes, CR only before LF, no folded line. */
static bool head_is_clean(const rose_http_conn *c)
{
    const unsigned char *p = (const unsigned char *)c->head.data;
    for (size_t i = 0; i < c->head.len; i++) {
        if (p[i] >= 0x20 && p[i] != 0x7f) continue;
        if (p[i] == '\r' && i + 1 < c->head.len && p[i + 1] == '\n') continue;
        if (p[i] == '\n' && (i + 1 == c->head.len || (p[i + 1] != ' ' && p[i + 1] != '\t')))
            continue;
        if (p[i] != '\t') return false;
    }
    return true;
}

/* The path without the prefix of --root-path, which a proxy may have taken off already. */
static const char *below_root(const char *path, const char *root)
{
    size_t n = root == NULL ? 0 : strlen(root);
    while (n > 0 && root[n - 1] == '/')
        n--;
    if (n == 0 || strncmp(path, root, n) != 0) return path;
    if (path[n] == '\0') return "/";
    return path[n] == '/' ? path + n : path;
}

/* Splits the request target and terminates all strings in place. False: malformed. */
static bool slice_head(rose_http_conn *c)
{
    char *url = c->head.data + c->url;
    for (uint32_t i = 0; i < c->url_len; i++) {
        if (url[i] <= 0x20 || url[i] >= 0x7f) return false;
    }
    struct http_parser_url u;
    http_parser_url_init(&u);
    if (http_parser_parse_url(url, c->url_len, 0, &u) != 0) return false;
    c->req.info.path = "/";
    c->req.info.query = "";
    if (u.field_set & (1u << UF_HOST)) {
        c->authority = c->url + u.field_data[UF_HOST].off;
        c->authority_len = u.field_data[UF_HOST].len;
    }
    if (u.field_set & (1u << UF_PATH)) {
        c->req.info.path = url + u.field_data[UF_PATH].off;
        url[u.field_data[UF_PATH].off + u.field_data[UF_PATH].len] = '\0';
        c->req.info.path = below_root(c->req.info.path, c->io->h->opts.root_path);
    }
    if (u.field_set & (1u << UF_QUERY)) {
        c->req.info.query = url + u.field_data[UF_QUERY].off;
        url[u.field_data[UF_QUERY].off + u.field_data[UF_QUERY].len] = '\0';
    }
    for (uint32_t i = 0; i < c->n_headers; i++) {
        http_header *h = &c->headers[i];
        c->head.data[h->name + h->name_len] = '\0';
        c->head.data[h->value + h->value_len] = '\0';
    }
    c->req.info.method = http_method_str((enum http_method)c->parser.method);
    c->head_sliced = true;
    return true;
}

/* Checks for exactly "METHOD target HTTP/d.d\r\n", because Debian's build of the parser is more
 * lenient. */
static bool request_line_is_exact(const rose_http_conn *c)
{
    const char *method = http_method_str((enum http_method)c->parser.method);
    size_t n = strlen(method);
    if (c->url != n + 1 || memcmp(c->head.data, method, n) != 0 || c->head.data[n] != ' ')
        return false;
    size_t end = (size_t)c->url + c->url_len;
    const char *p = c->head.data + end;
    return c->head.len - end > 11 && memcmp(p, " HTTP/", 6) == 0 && p[7] == '.' &&
           memcmp(p + 9, "\r\n", 2) == 0;
}

typedef struct head_facts {
    uint32_t n_host, n_length, n_encoding;
    bool chunked, expect, expect_unknown;
} head_facts;

static bool collect_facts(const rose_http_conn *c, head_facts *f)
{
    for (uint32_t i = 0; i < c->n_headers; i++) {
        const http_header *h = &c->headers[i];
        if (!is_token(c->head.data + h->name, h->name_len)) return false;
        if (header_is(c, h, "Host")) f->n_host++;
        if (header_is(c, h, "Content-Length")) f->n_length++;
        if (header_is(c, h, "Transfer-Encoding")) {
            f->n_encoding++;
            f->chunked = value_is(c, h, "chunked");
        }
        if (header_is(c, h, "Expect")) {
            f->expect = value_is(c, h, "100-continue");
            f->expect_unknown = f->expect_unknown || !f->expect;
        }
    }
    return true;
}

/* Refuses heads that the parser accepts and we do not. Returns 0, or the status with which to
 * refuse. */
static int judge_head(rose_http_conn *c, const head_facts *f, const char **why)
{
    const http_parser *p = &c->parser;
    bool v11 = p->http_major == 1 && p->http_minor >= 1;
    *why = "malformed request";
    if (p->http_major != 1) return *why = "only HTTP/1.0 and HTTP/1.1 are served", 505;
    if (f->n_host > 1) return *why = "Host header given twice", 400;
    if (f->n_host == 0 && v11) return *why = "Host header missing", 400;
    if (f->n_length > 1) return *why = "Content-Length given twice", 400;
    if (f->n_encoding > 0 && f->n_length > 0)
        return *why = "both Content-Length and Transfer-Encoding", 400;
    if (f->n_encoding > 1) return *why = "Transfer-Encoding given twice", 400;
    if (f->n_encoding > 0 && !v11) return *why = "Transfer-Encoding in an HTTP/1.0 request", 400;
    if (f->n_encoding > 0 && !f->chunked)
        return *why = "unsupported Transfer-Encoding, use chunked", 501;
    if (p->method == HTTP_CONNECT) return *why = "CONNECT is not supported", 501;
    return 0;
}

/* Refuses bodies that the head announces and we do not take. By then the path is known, so that the
 * answer has the form that the path's clients expect. */
static int judge_body(const rose_http_conn *c, const head_facts *f, const char **why)
{
    if (f->n_length > 0 && c->content_length > c->io->h->opts.max_body_bytes)
        return *why = "request body over the limit", 413;
    if (f->expect_unknown) return *why = "unknown Expect", 417;
    return 0;
}

/* Names the cause of a common mistake in a request line, because the parser's messages only name
 * its state; else NULL. */
static const char *request_line_fault(const rose_http_conn *c)
{
    const char *line = c->head.data;
    const char *end = memchr(line, '\r', c->head.len);
    if (end == NULL) return NULL;
    const char *first = memchr(line, ' ', (size_t)(end - line));
    const char *last = memrchr(line, ' ', (size_t)(end - line));
    if (first == NULL || first == last) return NULL;
    for (const char *p = first + 1; p < last; p++) {
        if (*p == ' ') return "the path holds a space; write it as %20";
        if ((unsigned char)*p >= 0x80)
            return "the path holds a byte that is not ASCII; write its UTF-8 bytes "
                   "percent-encoded, as in %C3%A9";
    }
    return NULL;
}

static int malformed(const rose_http_conn *c, const char *otherwise, const char **why)
{
    *why = request_line_fault(c);
    if (*why == NULL) *why = otherwise;
    return 400;
}

/* Runs the parser over a complete head and checks the result. Returns 0, or the status with
 * which to refuse. */
static int read_head(rose_http_conn *c, head_facts *f, const char **why)
{
    size_t used = http_parser_execute(&c->parser, &g_settings, c->head.data, c->head.len);
    enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
    if (c->refuse_status != 0) return *why = c->refuse_why, c->refuse_status;
    if (e != HPE_OK) return malformed(c, http_errno_description(e), why);
    if (!collect_facts(c, f)) return *why = "invalid header name", 400;
    int status = judge_head(c, f, why);
    if (status != 0) return status;
    if (used != c->head.len || !c->head_done || !request_line_is_exact(c) || !slice_head(c))
        return malformed(c, "malformed request", why);
    return judge_body(c, f, why);
}

/* Checks the name that the client asks for: that of an absolute URI, else that of the Host
 * header. */
static bool host_is_ours(rose_http_conn *c)
{
    const char *host = rose_http_req_header(&c->req, "Host");
    size_t n = host == NULL ? 0 : strlen(host);
    char why[320];
    if (c->authority_len > 0) {
        host = c->head.data + c->authority;
        n = c->authority_len;
    }
    if (rose_http_host_allowed(c, host, n)) return true;
    snprintf(why, sizeof why,
             "the host '%.*s' is not a name of this server; to allow it, start the server with "
             "--allowed-hosts %.*s",
             n < 100 ? (int)n : 100, host, n < 100 ? (int)n : 100, host);
    rose_http_refuse(c, 403, why);
    return false;
}

/* Asks the user of this HTTP server, before anything of the body is read. */
static bool head_is_accepted(rose_http_conn *c)
{
    const rose_http_callbacks *cb = &c->io->h->cb;
    const char *why = NULL, *headers = NULL;
    if (cb->on_head == NULL) return true;
    const int status = cb->on_head(cb->arg, &c->req, &why, &headers);
    if (status != 0) rose_http_refuse_with(c, status, why, headers);
    return status == 0;
}

/* A connection over the limit gets one answer, and only a vital request gets more than 503. */
static bool may_go_on(rose_http_conn *c)
{
    const rose_http_callbacks *cb = &c->io->h->cb;
    if (!c->extra) return true;
    c->keep_alive = false;
    const bool reads = c->parser.method == HTTP_GET || c->parser.method == HTTP_HEAD;
    if (reads && c->complete && cb->is_vital != NULL && cb->is_vital(cb->arg, c->req.info.path))
        return true;
    rose_http_refuse_extra(c);
    return false;
}

static void finish_head(rose_http_conn *c)
{
    head_facts f = {0};
    const char *why = NULL;
    int status = read_head(c, &f, &why);
    if (status != 0) {
        rose_http_refuse(c, status, why);
        return;
    }
    if (!host_is_ours(c)) return;
    c->chunked = f.chunked;
    c->complete = !f.chunked && (f.n_length == 0 || c->content_length == 0);
    c->req.info.has_body = !c->complete;
    if (!rose_http_cors_may_ask(c) || !head_is_accepted(c) || !may_go_on(c)) return;
    c->state = CONN_BODY;
    c->body_began_ns = rose_now_ns();
    if (c->complete) return;
    if (f.expect && c->parser.http_minor >= 1) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        if (rose_buf_add(&c->out, go_on, sizeof go_on - 1) != ROSE_OK) rose_http_conn_doom(c);
        rose_http_conn_touch(c);
    }
}

typedef enum head_end { HEAD_MORE, HEAD_FOUND, HEAD_BAD } head_end;

/* Looks for the empty line that ends the headers, from where the last search stopped, and cuts
 * `head` after that line. */
static head_end find_head_end(rose_http_conn *c)
{
    for (;;) {
        const char *data = c->head.data;
        const char *nl = c->head_scan == c->head.len
                             ? NULL
                             : memchr(data + c->head_scan, '\n', c->head.len - c->head_scan);
        if (nl == NULL) break;
        size_t i = (size_t)(nl - data);
        if (i == 0 || data[i - 1] != '\r') return HEAD_BAD;
        bool empty = i - 1 == c->line_start;
        c->head_scan = c->line_start = i + 1;
        if (!empty) continue;
        c->head.len = i + 1;
        return HEAD_FOUND;
    }
    c->head_scan = c->head.len;
    return HEAD_MORE;
}

static size_t parse_head(rose_http_conn *c, const char *data, size_t len)
{
    size_t skipped = 0;
    if (c->head.len == 0) { /* skip empty lines before a request, which the specification allows */
        while (skipped < len && (data[skipped] == '\r' || data[skipped] == '\n'))
            skipped++;
        if (skipped == len) return len;
        c->req.info.arrival_ns = rose_now_ns();
        if (!c->extra)
            c->read_deadline =
                c->req.info.arrival_ns + (uint64_t)c->io->h->opts.header_timeout_ms * 1000000u;
    }
    size_t limit = c->io->h->opts.max_header_bytes;
    size_t before = c->head.len;
    size_t n = len - skipped < limit - before ? len - skipped : limit - before;
    if (rose_buf_add(&c->head, data + skipped, n) != ROSE_OK) {
        rose_http_conn_doom(c);
        return len;
    }
    switch (find_head_end(c)) {
    case HEAD_MORE:
        if (c->head.len < limit) return len;
        rose_http_refuse(c, c->line_start == 0 ? 414 : 431,
                         c->line_start == 0 ? "request line over the limit"
                                            : "request headers over the limit");
        return len;
    case HEAD_BAD:
        rose_http_refuse(c, 400,
                         c->head.data[0] == 0x16 ? "this port speaks plain HTTP, not TLS"
                                                 : "a header line does not end in CRLF");
        return len;
    case HEAD_FOUND:
        break;
    }
    size_t used = skipped + c->head.len - before;
    if (!head_is_clean(c))
        rose_http_refuse(c, 400, "control byte or folded line in the headers");
    else
        finish_head(c);
    return used;
}

static void deliver(rose_http_conn *c)
{
    rose_http *h = c->io->h;
    c->state = CONN_BUSY;
    c->read_deadline = 0;
    rose_http_place_work(c);
    c->req.info.complete_ns = rose_now_ns();
    c->req.info.prof_id = rose_prof_on() ? rose_prof_new_id() : 0;
    atomic_fetch_add_explicit(&h->inflight, 1, memory_order_relaxed); /* a gauge, orders nothing */
    const rose_prof_span span = rose_prof_begin("http.request");
    rose_prof_flow(ROSE_PROF_FLOW_BEGIN, c->req.info.prof_id);
    if (rose_http_req_is_preflight(&c->req))
        rose_http_cors_answer(&c->req);
    else
        h->cb.on_request(h->cb.arg, &c->req);
    rose_prof_end(&span);
}

size_t rose_http_parse(rose_http_conn *c, const char *data, size_t len)
{
    size_t used = 0;
    while (used < len && !c->doomed && http_pending(c) < HTTP_OUT_HIGH) {
        if (c->state == CONN_HEAD)
            used += parse_head(c, data + used, len - used);
        else if (c->state == CONN_BODY)
            used += rose_http_body_parse(c, data + used, len - used);
        else
            break;
        if (c->state == CONN_BODY && c->complete)
            deliver(c);
        else if (c->state == CONN_BODY)
            c->read_deadline = rose_http_body_deadline(c);
    }
    return used;
}
