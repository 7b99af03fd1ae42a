/* batch/output.c - the results of a batch. A result is appended as one line, by one write(2) if the
 * kernel takes it whole, so a process that is killed leaves at most one torn line, the last. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "batch/lines.h"

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
    st = rose_json_scan_open(s, '{');
    for (bool first = true; rose_json_scan_more(s, '}', &first, &st);) {
        const char *key;
        size_t n;
        st = rose_json_scan_key(s, scratch, &key, &n);
        if (st != ROSE_OK) break;
        if (n == 11 && memcmp(key, "status_code", 11) == 0)
            st = rose_json_scan_id(s, 1000, status);
        else
            st = rose_json_scan_skip(s);
        if (st != ROSE_OK) break;
    }
    return st;
}

static rose_status read_result(result *r, const char *text, size_t len)
{
    rose_json_scan s = {.begin = text, .p = text, .end = text + len, .path = "line"};
    rose_buf scratch = {0};
    int64_t status = 0;
    rose_status st = rose_json_scan_open(&s, '{');
    r->id.len = 0;
    for (bool first = true; rose_json_scan_more(&s, '}', &first, &st);) {
        const char *key, *value;
        size_t n, n_value;
        st = rose_json_scan_key(&s, &scratch, &key, &n);
        if (st != ROSE_OK) break;
        if (n == 9 && memcmp(key, "custom_id", 9) == 0) {
            st = rose_json_scan_string(&s, &scratch, &value, &n_value);
            if (st == ROSE_OK) st = rose_buf_add(&r->id, value, n_value);
        } else if (n == 8 && memcmp(key, "response", 8) == 0) {
            st = read_response(&s, &scratch, &status);
        } else {
            st = rose_json_scan_skip(&s);
        }
        if (st != ROSE_OK) break;
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
    for (size_t at = 0; at < line->len;) {
        const ssize_t n = write(o->fd, line->data + at, line->len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const int why = errno;
            if (o->regular && ftruncate(o->fd, (off_t)o->len) < 0) {
            } /* the torn line stays; a resume cuts it off */
            return rose_fail(err, ROSE_E_IO, "write %s: %s", o->name, strerror(why));
        }
        at += (size_t)n;
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
