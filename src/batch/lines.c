/* batch/lines.c - the files of a batch: reads a file line by line, one line as a request, a file as
 * a list of requests; appends results. The scanner of base/json.h steps over the body without a
 * tree, so the body reaches the API byte by byte as it was written. The lines stay in the file: a
 * batch of any size needs 40 bytes of memory a line. A result is appended by one write(2) if the
 * kernel takes it whole, so a process that is killed leaves at most one torn line, the last. */
#include "batch/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/siphash.h"

enum { READ_BYTES = 256 << 10, FIRST_TABLE = 1024 };

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

/* Appends further bytes of the file to buf. Sets r->end at the end of the file. */
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
    rose_status st = ROSE_OK;
    bool streams = false;
    for (rose_json_member m = {0}; rose_json_scan_member(&s, scratch, &m, &st);) {
        /* as the API's parser would see it; it refuses a second one */
        if (rose_json_member_is(&m, "stream")) streams = rose_json_scan_peek(&s) == 't';
        st = rose_json_scan_skip(&s);
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
static rose_status take_member(rose_batch_request *q, fields *f, rose_json_scan *s,
                               const rose_json_member *m, rose_buf *scratch)
{
    const char *text = "";
    size_t len = 0;
    rose_status st;
    if (rose_json_member_is(m, "custom_id")) {
        st = take_string(s, scratch, &text, &len);
        q->id.len = 0;
        f->id = st == ROSE_OK && len > 0 && len <= ROSE_BATCH_ID_BYTES;
        return f->id ? rose_buf_add(&q->id, text, len) : st;
    }
    if (rose_json_member_is(m, "method")) {
        st = take_string(s, scratch, &text, &len);
        if (st == ROSE_OK) keep(f->method, sizeof f->method, &f->method_len, text, len);
        return st;
    }
    if (rose_json_member_is(m, "url")) {
        st = take_string(s, scratch, &text, &len);
        if (st == ROSE_OK) keep(f->url, sizeof f->url, &f->url_len, text, len);
        return st;
    }
    if (!rose_json_member_is(m, "body")) return rose_json_scan_skip(s);
    f->body = rose_json_scan_peek(s) == '{';
    q->body = s->p;
    st = rose_json_scan_skip(s);
    q->body_len = (size_t)(s->p - q->body);
    return st;
}

static rose_status scan_line(rose_batch_request *q, fields *f, rose_json_scan *s, rose_buf *scratch)
{
    rose_status st = ROSE_OK;
    for (rose_json_member m = {0}; rose_json_scan_member(s, scratch, &m, &st);)
        st = take_member(q, f, s, &m, scratch);
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

/* ---- the input ---- */

static rose_status out_of_memory(const rose_batch_input *in, rose_err *err)
{
    return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", in->name);
}

static void note(rose_batch_problems *p, uint32_t line, const char *code, const char *param,
                 const char *msg)
{
    if (p->n < ROSE_BATCH_MAX_PROBLEMS) {
        rose_batch_problem *v = &p->v[p->n];
        *v = (rose_batch_problem){.line = line, .code = code, .param = param};
        snprintf(v->msg, sizeof v->msg, "%.255s", msg);
    }
    p->n++;
}

/* ---- the table of custom_ids ---- */

static void place(rose_batch_input *in, uint32_t i)
{
    uint64_t at = in->v[i].hash & (in->n_table - 1);
    while (in->table[at] != 0)
        at = (at + 1) & (in->n_table - 1);
    in->table[at] = i + 1;
}

static bool grow(rose_batch_input *in)
{
    const uint64_t n = in->n_table == 0 ? FIRST_TABLE : in->n_table * 2;
    uint32_t *table = calloc(n, sizeof *table);
    if (table == NULL) return false;
    free(in->table);
    in->table = table;
    in->n_table = n;
    for (uint32_t i = 0; i < in->n; i++)
        place(in, i);
    return true;
}

rose_status rose_batch_input_find(rose_batch_input *in, const rose_buf *id, uint32_t *found,
                                  rose_err *err)
{
    const uint64_t hash = rose_siphash_bytes(in->key, id->data, id->len);
    rose_batch_request q = {0};
    rose_status st = ROSE_OK;
    *found = UINT32_MAX;
    for (uint64_t at = hash & (in->n_table - 1); in->n_table > 0 && in->table[at] != 0;
         at = (at + 1) & (in->n_table - 1)) {
        const uint32_t i = in->table[at] - 1;
        if (in->v[i].hash != hash) continue;
        st = rose_batch_input_read(in, i, &q, err);
        if (st != ROSE_OK) break;
        if (q.id.len == id->len && memcmp(q.id.data, id->data, id->len) == 0) {
            *found = i;
            break;
        }
    }
    rose_batch_request_free(&q);
    return st;
}

/* ---- reading ---- */

static rose_status add(rose_batch_input *in, const rose_batch_reader *r, size_t len,
                       const rose_batch_request *q, rose_batch_problems *p, rose_err *err)
{
    char msg[256];
    uint32_t twin;
    const rose_status st = rose_batch_input_find(in, &q->id, &twin, err);
    if (st != ROSE_OK) return st;
    if (twin != UINT32_MAX) {
        snprintf(msg, sizeof msg, "the custom_id '%.*s' of line %u is also that of line %u",
                 (int)(q->id.len < 100 ? q->id.len : 100), q->id.data, r->line, in->v[twin].line);
        note(p, r->line, "duplicate_custom_id", "custom_id", msg);
        return ROSE_OK;
    }
    if (in->n == in->cap) {
        const uint32_t cap = in->cap == 0 ? 256 : in->cap * 2;
        rose_batch_entry *v = realloc(in->v, cap * sizeof *v);
        if (v == NULL) return out_of_memory(in, err);
        in->v = v;
        in->cap = cap;
    }
    if (2 * ((uint64_t)in->n + 1) > in->n_table && !grow(in)) return out_of_memory(in, err);
    in->v[in->n] = (rose_batch_entry){.at = r->at,
                                      .hash = rose_siphash_bytes(in->key, q->id.data, q->id.len),
                                      .len = (uint32_t)len,
                                      .line = r->line};
    place(in, in->n++);
    return ROSE_OK;
}

/* A line without its carriage return and, in the first line, without a byte order mark. */
static void strip(rose_batch_reader *r, const char **text, size_t *len)
{
    if (*len > 0 && (*text)[*len - 1] == '\r') --*len;
    if (r->line == 1 && *len >= 3 && memcmp(*text, "\xEF\xBB\xBF", 3) == 0) {
        *text += 3;
        *len -= 3;
        r->at += 3;
    }
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] != ' ' && text[i] != '\t') return false;
    }
    return true;
}

static rose_status read_all(rose_batch_input *in, const rose_batch_limits *limits,
                            rose_batch_problems *p, rose_err *err)
{
    const size_t most = limits->max_line_bytes;
    rose_batch_reader r = {.fd = in->fd,
                           .name = in->name,
                           .max_bytes = most < ROSE_BATCH_MAX_LINE ? most : ROSE_BATCH_MAX_LINE};
    rose_batch_request q = {0};
    rose_status st;
    const char *text;
    size_t len;
    bool whole;
    while ((st = rose_batch_reader_next(&r, &text, &len, &whole, err)) == ROSE_OK) {
        strip(&r, &text, &len);
        if (is_blank(text, len)) continue;
        if (in->n >= limits->max_lines) {
            char msg[100];
            snprintf(msg, sizeof msg, "more than %u requests", limits->max_lines);
            note(p, r.line, "too_many_requests", NULL, msg);
            break;
        }
        if ((st = rose_batch_request_read(&q, text, len, limits->endpoint)) != ROSE_OK) {
            st = out_of_memory(in, err);
            break;
        }
        if (q.named)
            st = add(in, &r, len, &q, p, err);
        else
            note(p, r.line, q.code, q.param, q.why);
        if (st != ROSE_OK) break;
    }
    if (st == ROSE_E_FORMAT) note(p, r.line + 1, "line_too_long", NULL, err->msg);
    if (st == ROSE_E_EMPTY) st = ROSE_OK;
    rose_batch_request_free(&q);
    rose_batch_reader_free(&r);
    return st;
}

static rose_status explain(const rose_batch_input *in, const rose_batch_problems *p, rose_err *err)
{
    char more[64] = "";
    if (p->n > 1) snprintf(more, sizeof more, " (and %u more lines are wrong)", p->n - 1);
    return rose_fail(err, ROSE_E_FORMAT, "%s line %u: %s%s", in->name, p->v[0].line, p->v[0].msg,
                     more);
}

rose_status rose_batch_input_open(rose_batch_input **out, int fd, const char *name,
                                  const rose_batch_limits *limits, rose_batch_problems *problems,
                                  rose_err *err)
{
    rose_batch_input *in = calloc(1, sizeof *in);
    rose_status st = ROSE_OK;
    *out = NULL;
    problems->n = 0;
    if (in == NULL || (in->name = strdup(name)) == NULL) {
        free(in);
        close(fd);
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", name);
    }
    in->fd = fd;
    in->endpoint = limits->endpoint;
    if (getrandom(in->key, sizeof in->key, 0) != (ssize_t)sizeof in->key)
        st = rose_fail(err, ROSE_E_IO, "getrandom: %s", strerror(errno));
    if (st == ROSE_OK) st = read_all(in, limits, problems, err);
    if (st == ROSE_OK && in->n == 0 && problems->n == 0) {
        note(problems, 1, "empty_file", NULL, "the file has no request");
        st = ROSE_E_FORMAT;
    }
    if (problems->n > 0) st = explain(in, problems, err);
    if (st == ROSE_OK)
        *out = in;
    else
        rose_batch_input_close(in);
    return st;
}

void rose_batch_input_close(rose_batch_input *in)
{
    if (in == NULL) return;
    close(in->fd);
    free(in->name);
    free(in->v);
    free(in->table);
    rose_buf_free(&in->text);
    free(in);
}

rose_status rose_batch_input_read(rose_batch_input *in, uint32_t i, rose_batch_request *q,
                                  rose_err *err)
{
    const rose_batch_entry *e = &in->v[i];
    in->text.len = 0;
    if (rose_buf_reserve(&in->text, (size_t)e->len + 1) != ROSE_OK) return out_of_memory(in, err);
    while (in->text.len < e->len) {
        const ssize_t n = pread(in->fd, in->text.data + in->text.len, e->len - in->text.len,
                                (off_t)(e->at + in->text.len));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return rose_fail(err, ROSE_E_IO, "read %s: %s", in->name, strerror(errno));
        if (n == 0) break;
        in->text.len += (size_t)n;
    }
    if (rose_batch_request_read(q, in->text.data, in->text.len, in->endpoint) != ROSE_OK)
        return out_of_memory(in, err);
    if (q->named && rose_siphash_bytes(in->key, q->id.data, q->id.len) == e->hash) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO,
                     "%s line %u: the file was changed while the batch ran; run the batch again "
                     "with an input that does not change",
                     in->name, e->line);
}

/* ==== the output ==== */

#define SYNC_NS (UINT64_C(5) * 1000000000)

/* ---- resume ---- */

/* What a line of the output says. */
typedef struct result {
    rose_buf id; /* owned: the custom_id */
    bool failed;
} result;

/* Reads the status of a response; 0 = it has none. */
static rose_status read_response(rose_json_scan *s, rose_buf *scratch, int64_t *status)
{
    rose_status st = ROSE_OK;
    if (rose_json_scan_peek(s) != '{') return rose_json_scan_skip(s);
    for (rose_json_member m = {0}; rose_json_scan_member(s, scratch, &m, &st);)
        st = rose_json_member_is(&m, "status_code") ? rose_json_scan_id(s, 1000, status)
                                                    : rose_json_scan_skip(s);
    return st;
}

static rose_status read_result(result *r, const char *text, size_t len)
{
    rose_json_scan s = {.begin = text, .p = text, .end = text + len, .path = "line"};
    rose_buf scratch = {0};
    int64_t status = 0;
    rose_status st = ROSE_OK;
    r->id.len = 0;
    for (rose_json_member m = {0}; rose_json_scan_member(&s, &scratch, &m, &st);) {
        const char *value;
        size_t n;
        if (rose_json_member_is(&m, "custom_id")) {
            st = rose_json_scan_string(&s, &scratch, &value, &n);
            if (st == ROSE_OK) st = rose_buf_add(&r->id, value, n);
        } else if (rose_json_member_is(&m, "response")) {
            st = read_response(&s, &scratch, &status);
        } else {
            st = rose_json_scan_skip(&s);
        }
    }
    r->failed = status != 200;
    if (st == ROSE_OK && (rose_json_scan_peek(&s) != 0 || r->id.len == 0)) st = ROSE_E_FORMAT;
    rose_buf_free(&scratch);
    return st;
}

/* Marks the request of one result as done. */
static rose_status take_result(rose_batch_output *o, rose_batch_input *in, uint32_t line,
                               const result *r, rose_err *err)
{
    uint32_t i;
    const int n = (int)(r->id.len < 100 ? r->id.len : 100);
    const rose_status st = rose_batch_input_find(in, &r->id, &i, err);
    if (st != ROSE_OK) return st;
    if (i == UINT32_MAX)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s line %u has the result of '%.*s', which %s does not have: the file "
                         "is the output of another batch",
                         o->name, line, n, r->id.data, in->name);
    if (in->v[i].done)
        return rose_fail(err, ROSE_E_FORMAT, "%s line %u has a second result of '%.*s'", o->name,
                         line, n, r->id.data);
    in->v[i].done = true;
    in->n_done++;
    if (r->failed) in->n_failed++;
    return ROSE_OK;
}

/* Reads the results that are there. A last line without its newline was torn by a kill. */
static rose_status resume(rose_batch_output *o, rose_batch_input *in, rose_err *err)
{
    rose_batch_reader r = {.fd = o->fd, .name = o->name, .max_bytes = ROSE_BATCH_MAX_LINE};
    result got = {0};
    rose_status st;
    const char *text;
    size_t len;
    bool whole;
    while ((st = rose_batch_reader_next(&r, &text, &len, &whole, err)) == ROSE_OK) {
        if (!whole) {
            o->cut = len;
            break;
        }
        st = read_result(&got, text, len);
        if (st != ROSE_OK) {
            st = rose_fail(err, st,
                           "%s line %u is no result of a batch: --resume cannot continue "
                           "this file",
                           o->name, r.line);
            break;
        }
        if ((st = take_result(o, in, r.line, &got, err)) != ROSE_OK) break;
        o->len = r.at + len + 1;
    }
    if (st == ROSE_E_EMPTY) st = ROSE_OK;
    if (st == ROSE_OK && o->cut > 0 && ftruncate(o->fd, (off_t)o->len) < 0)
        st =
            rose_fail(err, ROSE_E_IO, "cut the torn last line of %s: %s", o->name, strerror(errno));
    rose_buf_free(&got.id);
    rose_batch_reader_free(&r);
    return st;
}

/* ---- open and close ---- */

static rose_status prepare(rose_batch_output *o, rose_batch_how how, rose_batch_input *in,
                           rose_err *err)
{
    struct stat s, of_input;
    if (fstat(o->fd, &s) < 0) return rose_fail(err, ROSE_E_IO, "%s: %s", o->name, strerror(errno));
    o->regular = S_ISREG(s.st_mode);
    if (fstat(in->fd, &of_input) == 0 && s.st_dev == of_input.st_dev && s.st_ino == of_input.st_ino)
        return rose_fail(err, ROSE_E_INVAL, "%s is the input; give another file for the output",
                         o->name);
    if (!o->regular)
        return how == ROSE_BATCH_RESUME
                   ? rose_fail(err, ROSE_E_INVAL, "--resume needs a file; %s is none", o->name)
                   : ROSE_OK;
    if (flock(o->fd, LOCK_EX | LOCK_NB) < 0)
        return rose_fail(err, ROSE_E_IO, "%s: %s", o->name,
                         errno == EWOULDBLOCK ? "another batch writes this file" : strerror(errno));
    if (how == ROSE_BATCH_RESUME) return resume(o, in, err);
    if (how == ROSE_BATCH_NEW && s.st_size > 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "%s exists: --resume continues it, --overwrite replaces it", o->name);
    if (ftruncate(o->fd, 0) < 0)
        return rose_fail(err, ROSE_E_IO, "%s: %s", o->name, strerror(errno));
    return ROSE_OK;
}

/* A pipe or device cannot always be read, and a file must be for --resume. */
static int open_path(const char *path, mode_t mode)
{
    if (strcmp(path, "-") == 0) return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    struct stat s;
    const bool pipe = stat(path, &s) == 0 && !S_ISREG(s.st_mode);
    return open(path, (pipe ? O_WRONLY : O_RDWR | O_APPEND) | O_CREAT | O_CLOEXEC | O_NOCTTY, mode);
}

rose_status rose_batch_output_open(rose_batch_output **out, const char *path, rose_batch_how how,
                                   mode_t mode, rose_batch_input *in, rose_err *err)
{
    rose_batch_output *o = calloc(1, sizeof *o);
    rose_status st = ROSE_OK;
    *out = NULL;
    if (o == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
    o->fd = open_path(path, mode);
    o->name = strdup(strcmp(path, "-") == 0 ? "standard output" : path);
    o->synced_ns = rose_now_ns();
    if (o->fd < 0)
        st = rose_fail(err, ROSE_E_IO, "open %s: %s", path, strerror(errno));
    else if (o->name == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
    else if (strcmp(path, "-") != 0 || how == ROSE_BATCH_RESUME)
        st = prepare(o, how, in, err);
    if (st == ROSE_OK)
        *out = o;
    else
        rose_batch_output_close(o);
    return st;
}

void rose_batch_output_close(rose_batch_output *o)
{
    if (o == NULL) return;
    if (o->fd >= 0) close(o->fd);
    free(o->name);
    free(o);
}

/* ---- writing ---- */

rose_status rose_batch_output_write(rose_batch_output *o, const rose_buf *line, rose_err *err)
{
    if (!rose_file_write(o->fd, line->data, line->len)) {
        const int why = errno;
        if (o->regular && ftruncate(o->fd, (off_t)o->len) < 0) {
        } /* the torn line stays; a resume cuts it off */
        return rose_fail(err, ROSE_E_IO, "write %s: %s", o->name, strerror(why));
    }
    o->len += line->len;
    o->dirty = true;
    return ROSE_OK;
}

rose_status rose_batch_output_sync(rose_batch_output *o, bool at_once, rose_err *err)
{
    const uint64_t now = rose_now_ns();
    if (!o->dirty || !o->regular || (!at_once && now - o->synced_ns < SYNC_NS)) return ROSE_OK;
    if (fdatasync(o->fd) < 0)
        return rose_fail(err, ROSE_E_IO, "write %s: %s", o->name, strerror(errno));
    o->synced_ns = now;
    o->dirty = false;
    return ROSE_OK;
}

static rose_status put_string(rose_buf *line, const char *s, size_t len)
{
    rose_status st = rose_buf_add(line, "\"", 1);
    if (st == ROSE_OK) st = rose_json_escape(line, s, len);
    return st == ROSE_OK ? rose_buf_add(line, "\"", 1) : st;
}

static rose_status put_head(rose_buf *line, const char *id, const rose_buf *custom_id)
{
    line->len = 0;
    rose_status st = rose_buf_addf(line, "{\"id\":\"%s\",\"custom_id\":", id);
    return st == ROSE_OK ? put_string(line, custom_id->data, custom_id->len) : st;
}

rose_status rose_batch_put_response(rose_buf *line, const char *id, const rose_buf *custom_id,
                                    int status, const char *body, size_t body_len)
{
    static const char tail[] = "},\"error\":null}\n";
    rose_status st = put_head(line, id, custom_id);
    if (st == ROSE_OK)
        st = rose_buf_addf(
            line, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", status, id);
    const size_t at = line->len;
    if (st == ROSE_OK) st = rose_buf_add(line, body, body_len);
    if (st != ROSE_OK) return st;
    for (size_t i = at; i < line->len; i++) {
        if (line->data[i] == '\n' || line->data[i] == '\r') line->data[i] = ' ';
    }
    return rose_buf_add(line, tail, sizeof tail - 1);
}

rose_status rose_batch_put_error(rose_buf *line, const char *id, const rose_buf *custom_id,
                                 const char *code, const char *message)
{
    rose_status st = put_head(line, id, custom_id);
    if (st == ROSE_OK)
        st =
            rose_buf_addf(line, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", code);
    if (st == ROSE_OK) st = put_string(line, message, strlen(message));
    return st == ROSE_OK ? rose_buf_add(line, "}}\n", 3) : st;
}
