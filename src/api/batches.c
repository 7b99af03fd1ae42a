/* api/batches.c - /v1/files and /v1/batches, over the store of batch/store.h. The I/O thread notes
 * what is asked (rose_api_store_call); a tokenizer worker does it, because it reads and writes
 * files. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api_internal.h"
#include "api/doors.h"
#include "base/utf8.h"
#include "batch/store.h"

enum { MAX_ID = 63, MIN_EXPIRY_S = 3600, MAX_EXPIRY_S = 30 * 24 * 3600, MAX_WINDOW_H = 30 * 24 };

/* What is asked: a row of `ops`. */
typedef struct op {
    bool file;          /* under /v1/files, else under /v1/batches */
    const char *method; /* GET: HEAD likewise */
    const char *word;   /* after the id; "": nothing; NULL: there is no id either */
    const char *type;   /* of the reply; NULL: JSON */
    /* One of three: makes something; lists; does something with what has the id. */
    void (*create)(rose_api_job *j, rose_api_ignored *g);
    rose_status (*list)(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                        rose_buf *out, rose_err *err);
    rose_status (*one)(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                       rose_err *err);
} op;

struct rose_api_store_call {
    const op *op; /* NULL: nothing is at this path */
    char id[MAX_ID + 1];
    char owner[ROSE_BATCH_OWNER];
    char *type, *query; /* owned: Content-Type, or NULL; the query */
};

bool rose_api_store_may(const rose_api *a, const rose_http_req *r, rose_api_error *err)
{
    if (a->o.batches == NULL)
        return rose_api_fail(err, 404, "batches_disabled", NULL,
                             "this server keeps no files and batches: it was started without "
                             "--batch-dir DIR");
    /* A browser sends Origin if a page asks. A page of another site may send an upload without
     * asking first, so no page may. */
    if (strcmp(rose_http_req_info(r)->method, "POST") == 0 &&
        rose_http_req_header(r, "Origin") != NULL)
        return rose_api_fail(err, 403, "batch_from_page", "Origin",
                             "a web page may not upload files or make batches");
    return true;
}

void rose_api_store_call_free(rose_api_store_call *c)
{
    if (c == NULL) return;
    free(c->type);
    free(c->query);
    free(c);
}

/* ---- worker: what requests say ---- */

static bool fail_status(rose_api_error *e, rose_status st, const rose_err *err)
{
    if (st == ROSE_E_NOMEM) return rose_api_fail_nomem(e);
    if (st == ROSE_E_NOTFOUND) return rose_api_fail(e, 404, "not_found", "id", "%s", err->msg);
    if (st == ROSE_E_INVAL) return rose_api_fail(e, 400, NULL, NULL, "%s", err->msg);
    if (st == ROSE_E_FULL) return rose_api_fail(e, 400, "limit_reached", NULL, "%s", err->msg);
    return rose_api_fail(e, 500, "storage_error", NULL, "%s", err->msg);
}

/* Copies the value of `key` in the query; false: it is not there. A value that is too long for any
 * of the keys is cut, and stays wrong. */
static bool query_value(const char *query, const char *key, char *out, size_t cap)
{
    const size_t n = strlen(key);
    for (const char *p = query; *p != '\0';) {
        const size_t len = strcspn(p, "&");
        if (len > n && strncmp(p, key, n) == 0 && p[n] == '=') {
            const size_t value = len - n - 1 < cap ? len - n - 1 : cap - 1;
            memcpy(out, p + n + 1, value);
            out[value] = '\0';
            return true;
        }
        p += len + (p[len] == '&');
    }
    return false;
}

/* Reads a number of at most `most` that has digits alone; 0: it is none. */
static uint32_t read_number(const char *text, size_t len, uint32_t most)
{
    uint64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        v = v * 10 + (uint64_t)(text[i] - '0');
        if (v > most) return 0;
    }
    return (uint32_t)v;
}

static bool read_page(rose_batch_page *p, const rose_api_store_call *c, char after[MAX_ID + 1],
                      char purpose[32], uint32_t def, uint32_t most, rose_api_error *err)
{
    char text[16];
    *p = (rose_batch_page){.limit = def};
    if (query_value(c->query, "limit", text, sizeof text)) {
        p->limit = read_number(text, strlen(text), most);
        if (p->limit == 0)
            return rose_api_fail(err, 400, NULL, "limit", "'limit' must be 1 to %u", most);
    }
    if (query_value(c->query, "order", text, sizeof text)) {
        p->oldest_first = strcmp(text, "asc") == 0;
        if (!p->oldest_first && strcmp(text, "desc") != 0)
            return rose_api_fail(err, 400, NULL, "order", "'order' must be asc or desc");
    }
    if (query_value(c->query, "after", after, MAX_ID + 1)) p->after = after;
    if (query_value(c->query, "purpose", purpose, 32)) p->purpose = purpose;
    return true;
}

/* ---- worker: files ---- */

typedef struct upload {
    const char *name, *data; /* name: owned by the caller of read_upload */
    char *copy;
    size_t len;
    uint32_t expire_s;
    bool has_file, has_purpose;
} upload;

static bool part_is(const rose_multipart_part *p, const char *name)
{
    return p->name_len == strlen(name) && memcmp(p->name, name, p->name_len) == 0;
}

static bool value_is(const rose_multipart_part *p, const char *text)
{
    return p->len == strlen(text) && memcmp(p->data, text, p->len) == 0;
}

static bool take_part(upload *u, const rose_multipart_part *p, rose_api_ignored *g,
                      rose_api_error *err)
{
    char name[ROSE_API_IGNORED_BYTES + 1];
    if (part_is(p, "file")) {
        if (u->has_file) return rose_api_fail(err, 400, NULL, "file", "'file' comes twice");
        u->has_file = true;
        u->data = p->data;
        u->len = p->len;
        u->copy = strndup(p->filename != NULL ? p->filename : "upload.jsonl",
                          p->filename != NULL ? p->filename_len : 12);
        if (u->copy == NULL) return rose_api_fail_nomem(err);
        rose_api_utf8_clean(u->copy);
        return true;
    }
    if (part_is(p, "purpose")) {
        u->has_purpose = true;
        return value_is(p, "batch") ||
               rose_api_fail(err, 400, NULL, "purpose",
                             "'purpose' must be batch: this server keeps files for batches only");
    }
    if (part_is(p, "expires_after[anchor]"))
        return value_is(p, "created_at") ||
               rose_api_fail(err, 400, NULL, "expires_after",
                             "'expires_after[anchor]' must be created_at");
    if (part_is(p, "expires_after[seconds]")) {
        u->expire_s = read_number(p->data, p->len, MAX_EXPIRY_S);
        return u->expire_s >= MIN_EXPIRY_S ||
               rose_api_fail(err, 400, NULL, "expires_after",
                             "'expires_after[seconds]' must be %d to %d", MIN_EXPIRY_S,
                             MAX_EXPIRY_S);
    }
    const size_t n = p->name_len < sizeof name - 1 ? p->name_len : sizeof name - 1;
    memcpy(name, p->name, n);
    name[n] = '\0';
    return rose_api_unknown_field(g, name, err);
}

static bool read_upload(upload *u, const rose_api_job *j, rose_api_ignored *g, rose_api_error *err)
{
    rose_multipart m;
    rose_multipart_part part;
    rose_err e = {{0}};
    rose_status st = rose_multipart_begin(&m, j->store->type, j->body, j->body_len, &e);
    if (st != ROSE_OK) return rose_api_fail(err, 415, "unsupported_media_type", NULL, "%s", e.msg);
    while ((st = rose_multipart_next(&m, &part, &e)) == ROSE_OK) {
        if (!take_part(u, &part, g, err)) return false;
    }
    if (st != ROSE_E_EMPTY) return rose_api_fail(err, 400, NULL, NULL, "%s", e.msg);
    if (!u->has_file) return rose_api_fail(err, 400, NULL, "file", "the upload has no part 'file'");
    if (!u->has_purpose)
        return rose_api_fail(err, 400, NULL, "purpose", "the upload has no part 'purpose'");
    return u->len > 0 || rose_api_fail(err, 400, NULL, "file", "the file is empty");
}

static void create_file(rose_api_job *j, rose_api_ignored *g)
{
    upload u = {0};
    rose_err err = {{0}};
    if (read_upload(&u, j, g, &j->err)) {
        const rose_status st = rose_batch_file_create(j->api->o.batches, j->store->owner, u.copy,
                                                      u.data, u.len, u.expire_s, &j->reply.b, &err);
        if (st != ROSE_OK) fail_status(&j->err, st, &err);
    }
    free(u.copy);
}

/* ---- worker: batches ---- */

/* "24h": a number of minutes, hours or days. 0: it is none, or too long. */
static uint32_t window_seconds(const rose_json *v)
{
    const size_t n = rose_json_text_len(v);
    if (!rose_json_is_string(v) || n < 2 || n > 8) return 0;
    const char unit = rose_json_text(v)[n - 1];
    const uint32_t s = unit == 'm' ? 60 : unit == 'h' ? 3600 : unit == 'd' ? 86400 : 0;
    const uint32_t count = read_number(rose_json_text(v), n - 1, MAX_WINDOW_H * 60);
    return (uint64_t)count * s <= (uint64_t)MAX_WINDOW_H * 3600 ? count * s : 0;
}

static bool check_metadata(const rose_json *v, rose_api_error *err)
{
    const char *key;
    const rose_json *value;
    bool ok = rose_json_is_object(v) && rose_json_size(v) <= 16;
    if (ok) {
        rose_json_each (v, key, value) {
            if (strlen(key) > 64 || !rose_json_is_string(value) || rose_json_text_len(value) > 512)
                ok = false;
        }
    }
    return ok || rose_api_fail(err, 400, NULL, "metadata",
                               "'metadata' must be an object of at most 16 strings, with keys of "
                               "64 and values of 512 bytes at most");
}

static bool read_expiry(uint32_t *s, const rose_json *v, rose_api_error *err)
{
    const int64_t n = rose_json_is_object(v) ? rose_json_int(rose_json_get(v, "seconds")) : 0;
    if (n < MIN_EXPIRY_S || n > MAX_EXPIRY_S ||
        !rose_api_json_is(rose_json_get(v, "anchor"), "created_at"))
        return rose_api_fail(err, 400, NULL, "output_expires_after",
                             "'output_expires_after' must be {\"anchor\": \"created_at\", "
                             "\"seconds\": %d to %d}",
                             MIN_EXPIRY_S, MAX_EXPIRY_S);
    *s = (uint32_t)n;
    return true;
}

static bool take_field(rose_batch_order_form *f, const char *key, const rose_json *v,
                       rose_api_ignored *g, rose_api_error *err)
{
    if (strcmp(key, "input_file_id") == 0) {
        f->input_file_id = rose_json_text(v);
    } else if (strcmp(key, "endpoint") == 0) {
        if (rose_json_is_string(v))
            f->endpoint = rose_batch_endpoint(rose_json_text(v), rose_json_text_len(v));
    } else if (strcmp(key, "completion_window") == 0) {
        f->window_s = window_seconds(v);
        f->window_text = rose_json_text(v);
    } else if (strcmp(key, "metadata") == 0) {
        if (rose_json_is_null(v)) return true;
        f->metadata = v;
        return check_metadata(v, err);
    } else if (strcmp(key, "output_expires_after") == 0) {
        return rose_json_is_null(v) || read_expiry(&f->output_expire_s, v, err);
    } else {
        return rose_api_unknown_field(g, key, err);
    }
    return true;
}

static bool read_order(rose_batch_order_form *f, const rose_json *root, rose_api_ignored *g,
                       rose_api_error *err)
{
    const char *key;
    const rose_json *v;
    rose_json_each (root, key, v) {
        if (!take_field(f, key, v, g, err)) return false;
    }
    if (f->input_file_id == NULL)
        return rose_api_fail(err, 400, NULL, "input_file_id",
                             "'input_file_id' must be the id of an uploaded file");
    if (f->endpoint == NULL)
        return rose_api_fail(err, 400, NULL, "endpoint",
                             "'endpoint' must be /v1/chat/completions, /v1/completions, "
                             "/v1/responses, /v1/embeddings, /v1/messages, /v1/rerank or "
                             "/v1/score");
    if (f->window_s == 0)
        return rose_api_fail(err, 400, NULL, "completion_window",
                             "'completion_window' must be a time of at most 30 days, such as 24h");
    return true;
}

static void create_batch(rose_api_job *j, rose_api_ignored *g)
{
    rose_json *root = NULL;
    rose_batch_order_form f = {0};
    rose_err err = {{0}};
    if (!rose_api_is_json_type(j->store->type, &j->err)) return;
    if (!rose_api_json_load(&root, j->body, j->body_len, 1024, &j->err)) return;
    if (read_order(&f, root, g, &j->err)) {
        const rose_status st =
            rose_batch_submit(j->api->o.batches, j->store->owner, &f, &j->reply.b, &err);
        if (st != ROSE_OK) fail_status(&j->err, st, &err);
    }
    rose_json_decref(root);
}

/* ---- the table of operations ---- */

static const op ops[] = {
    {true, "POST", NULL, .create = create_file},
    {true, "GET", NULL, .list = rose_batch_file_list},
    {true, "GET", "", .one = rose_batch_file_get},
    {true, "DELETE", "", .one = rose_batch_file_delete},
    {true, "GET", "content", .type = "application/octet-stream", .one = rose_batch_file_content},
    {false, "POST", NULL, .create = create_batch},
    {false, "GET", NULL, .list = rose_batch_list},
    {false, "GET", "", .one = rose_batch_get},
    {false, "POST", "cancel", .one = rose_batch_cancel},
};

/* Finds the operation by "/v1/files", or "/v1/batches", and after it "/ID" or "/ID/WORD". */
static const op *find_op(const rose_http_req *r, char id[MAX_ID + 1])
{
    static const char files[] = "/v1/files", batches[] = "/v1/batches";
    const char *path = rose_http_req_info(r)->path, *method = rose_http_req_info(r)->method,
               *word = NULL;
    const bool file = strncmp(path, files, sizeof files - 1) == 0;
    path += file ? sizeof files - 1 : sizeof batches - 1;
    path += *path == '/';
    const size_t n = strcspn(path, "/");
    if (n > MAX_ID || (n == 0 && *path != '\0')) return NULL;
    memcpy(id, path, n);
    id[n] = '\0';
    if (n > 0) word = path[n] == '/' ? path + n + 1 : "";
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (const op *o = ops; o < ops + sizeof ops / sizeof *ops; o++) {
        const bool fits =
            word == NULL || o->word == NULL ? word == o->word : strcmp(word, o->word) == 0;
        if (fits && o->file == file && strcmp(method, o->method) == 0) return o;
    }
    return NULL;
}

rose_api_store_call *rose_api_store_call_new(const rose_api *a, const rose_http_req *r)
{
    rose_api_store_call *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    const char *type = rose_http_req_header(r, "Content-Type");
    const char *auth = rose_http_req_header(r, "Authorization");
    c->op = find_op(r, c->id);
    c->type = type == NULL ? NULL : strdup(type);
    c->query = strdup(rose_http_req_info(r)->query);
    const char *key = a->o.keys != NULL && auth != NULL ? rose_api_bearer(auth) : NULL;
    rose_batch_store_owner(a->o.batches, key, c->owner);
    if (c->query != NULL && (type == NULL || c->type != NULL)) return c;
    rose_api_store_call_free(c);
    return NULL;
}

void rose_api_store_run(rose_api_job *j, rose_api_ignored *g)
{
    rose_batch_store *s = j->api->o.batches;
    const rose_api_store_call *c = j->store;
    char after[MAX_ID + 1], purpose[32];
    rose_batch_page p;
    rose_err err = {{0}};
    rose_status st = ROSE_OK;
    if (c->op == NULL) {
        rose_api_fail(&j->err, 404, "not_found", NULL,
                      "there is nothing at this path with this method; there are GET, POST "
                      "/v1/files, GET, DELETE /v1/files/ID, GET /v1/files/ID/content, GET, POST "
                      "/v1/batches, GET /v1/batches/ID and POST /v1/batches/ID/cancel");
    } else if (c->op->create != NULL) {
        c->op->create(j, g);
    } else if (c->op->one != NULL) {
        st = c->op->one(s, c->owner, c->id, &j->reply.b, &err);
        j->reply_type = c->op->type;
    } else if (read_page(&p, c, after, purpose, c->op->file ? 10000 : 20, c->op->file ? 10000 : 100,
                         &j->err)) {
        st = c->op->list(s, c->owner, &p, &j->reply.b, &err);
    }
    if (st != ROSE_OK) fail_status(&j->err, st, &err);
}

/* ==== multipart/form-data ==== */

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* Finds "; NAME=VALUE" or ; NAME="VALUE" in [p, end). False: it is not there. The value is not
 * unescaped: a quote within it is %22 in what browsers send, and \" in what others do. */
static bool parameter(const char *p, const char *end, const char *name, const char **value,
                      size_t *len)
{
    const size_t n = strlen(name);
    while (p < end) {
        const char *semicolon = memchr(p, ';', (size_t)(end - p));
        if (semicolon == NULL) return false;
        for (p = semicolon + 1; p < end && is_space(*p); p++) {
        }
        const bool is = (size_t)(end - p) > n && strncasecmp(p, name, n) == 0 && p[n] == '=';
        while (p < end && *p != '=' && *p != ';')
            p++;
        if (p == end || *p == ';') continue;
        p++;
        const bool quoted = p < end && *p == '"';
        const char *begin = p += quoted;
        while (p < end && (quoted ? *p != '"' : *p != ';'))
            p += quoted && *p == '\\' && end - p > 1 ? 2 : 1;
        if (quoted && p >= end) return false;
        *value = begin;
        *len = (size_t)(p - begin);
        while (!quoted && *len > 0 && is_space(begin[*len - 1]))
            --*len;
        if (is) return true;
        p += quoted;
    }
    return false;
}

rose_status rose_multipart_begin(rose_multipart *m, const char *type, const char *body, size_t len,
                                 rose_err *err)
{
    static const char form[] = "multipart/form-data";
    const char *value;
    size_t n;
    if (type == NULL || strncasecmp(type, form, sizeof form - 1) != 0 ||
        !parameter(type, type + strlen(type), "boundary", &value, &n))
        return rose_fail(err, ROSE_E_FORMAT,
                         "the upload needs the header 'Content-Type: multipart/form-data; "
                         "boundary=...'");
    if (n == 0 || n > ROSE_MULTIPART_BOUNDARY || value[n - 1] == ' ' ||
        strspn(value, ROSE_ALNUM "'()+_,-./:=? ") < n) /* RFC 2046 */
        return rose_fail(err, ROSE_E_FORMAT, "the boundary in Content-Type has 1 to %d characters",
                         ROSE_MULTIPART_BOUNDARY);
    *m = (rose_multipart){.p = body, .end = body + len};
    memcpy(m->mark, "\r\n--", 4);
    memcpy(m->mark + 4, value, n);
    m->mark_len = n + 4;
    return ROSE_OK;
}

/* Goes to the next boundary; *len: the bytes before it. NULL: there is none. */
static const char *to_mark(rose_multipart *m, size_t *len)
{
    const char *begin = m->p;
    const char *mark = memmem(begin, (size_t)(m->end - begin), m->mark, m->mark_len);
    if (mark == NULL) return NULL;
    *len = (size_t)(mark - begin);
    m->p = mark + m->mark_len;
    return begin;
}

/* Reads name and filename from the lines of a part's head. */
static bool read_head(rose_multipart_part *part, const char *p, const char *end)
{
    static const char header[] = "Content-Disposition:";
    while (p < end) {
        const char *stop = memmem(p, (size_t)(end - p), "\r\n", 2);
        if (stop == NULL) stop = end;
        if ((size_t)(stop - p) >= sizeof header - 1 &&
            strncasecmp(p, header, sizeof header - 1) == 0) {
            const char *value = p + sizeof header - 1;
            if (!parameter(value, stop, "filename", &part->filename, &part->filename_len))
                part->filename = NULL;
            return parameter(value, stop, "name", &part->name, &part->name_len);
        }
        p = stop == end ? end : stop + 2;
    }
    return false;
}

rose_status rose_multipart_next(rose_multipart *m, rose_multipart_part *part, rose_err *err)
{
    size_t n;
    *part = (rose_multipart_part){0};
    if (m->n == 0) { /* the first boundary may begin the body, without a line end before it */
        const size_t first = m->mark_len - 2;
        if ((size_t)(m->end - m->p) >= first && memcmp(m->p, m->mark + 2, first) == 0)
            m->p += first;
        else if (to_mark(m, &n) == NULL)
            return rose_fail(err, ROSE_E_FORMAT,
                             "the body has no part: its boundary is not that "
                             "of the header Content-Type");
    }
    while (m->p < m->end && is_space(*m->p))
        m->p++;
    if (m->end - m->p >= 2 && memcmp(m->p, "--", 2) == 0) return ROSE_E_EMPTY;
    if (m->end - m->p < 2 || memcmp(m->p, "\r\n", 2) != 0)
        return rose_fail(err, ROSE_E_FORMAT, "the multipart body is cut off or malformed");
    if (++m->n > ROSE_MULTIPART_MAX_PARTS)
        return rose_fail(err, ROSE_E_FORMAT, "the multipart body has more than %d parts",
                         ROSE_MULTIPART_MAX_PARTS);
    const char *head =
        m->p; /* a head without lines has one line end, which also ends the empty line */
    const char *blank = memmem(head, (size_t)(m->end - head), "\r\n\r\n", 4);
    if (blank == NULL || !read_head(part, head + 2, blank))
        return rose_fail(err, ROSE_E_FORMAT,
                         "part %u of the multipart body has no header Content-Disposition with a "
                         "name",
                         m->n);
    m->p = blank + 4;
    /* Without content the boundary's line end is that of the empty line. */
    const size_t rest = m->mark_len - 2;
    if ((size_t)(m->end - m->p) >= rest && memcmp(m->p, m->mark + 2, rest) == 0) {
        part->data = m->p;
        m->p += rest;
        return ROSE_OK;
    }
    part->data = to_mark(m, &part->len);
    return part->data != NULL
               ? ROSE_OK
               : rose_fail(err, ROSE_E_FORMAT, "part %u of the multipart body has no end", m->n);
}
