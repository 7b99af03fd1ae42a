/* batch/input.c - the requests of a batch: where each line is, and which are done. The lines
 * themselves stay in the file, so a batch of any size needs 40 bytes of memory a line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/siphash.h"
#include "batch/batch_internal.h"

enum { FIRST_TABLE = 1024 };

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
        snprintf(msg, sizeof msg, "the custom_id '%.*s' of line %u is that of line %u, too",
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
    rose_batch_reader r = {.fd = in->fd, .name = in->name, .max_bytes = limits->max_line_bytes};
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
