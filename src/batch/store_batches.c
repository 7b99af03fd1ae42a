/* batch/store_batches.c - the batches of a store: what clients see, and what is on the disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "batch/store_internal.h"

void rose_store_batch_free(store_batch *b)
{
    if (b == NULL) return;
    rose_json_decref(b->shown);
    free(b);
}

static store_batch *find(rose_batch_store *s, const char *owner, const char *id)
{
    store_batch *b;
    TAILQ_FOREACH(b, &s->batches, link)
    {
        if (strcmp(b->id, id) == 0) return strcmp(b->owner, owner) == 0 ? b : NULL;
    }
    return NULL;
}

static rose_status no_such_batch(const char *id, rose_err *err)
{
    return rose_fail(err, ROSE_E_NOTFOUND, "No such Batch object: %.60s", id);
}

bool rose_store_in_use(const rose_batch_store *s, const char *file_id)
{
    const store_batch *b;
    TAILQ_FOREACH(b, &s->batches, link)
    {
        if (!b->ended && strcmp(b->input, file_id) == 0) return true;
    }
    return false;
}

bool rose_store_batch_status(rose_batch_store *s, store_batch *b, const char *status)
{
    char key[32];
    snprintf(key, sizeof key, "%s_at", status);
    return rose_json_set_new(b->shown, "status", rose_json_string(status)) == 0 &&
           (strcmp(status, "validating") == 0 ||
            rose_json_set_new(b->shown, key, rose_json_integer(rose_store_now(s))) == 0);
}

/* ---- on the disk ---- */

rose_status rose_store_batch_save(rose_batch_store *s, store_batch *b, rose_err *err)
{
    char name[STORE_ID + 8];
    rose_buf text = {0};
    const rose_batch_counts *c = &b->counts;
    rose_json *v =
        rose_json_pack("{s s s s s s s s s s? s b s I s I s I s [I I I] s O}", "owner", b->owner,
                       "input", b->input, "out_id", b->out_id, "err_id", b->err_id, "end", b->end,
                       "ended", (int)b->ended, "ended_at", b->ended_at, "output_expire_s",
                       (int64_t)b->output_expire_s, "seq", (int64_t)b->seq, "counts",
                       (int64_t)c->total, (int64_t)c->done, (int64_t)c->failed, "shown", b->shown);
    rose_status st = v == NULL ? ROSE_E_NOMEM : rose_json_dump(&text, v, ROSE_JSON_COMPACT);
    rose_json_decref(v);
    snprintf(name, sizeof name, "%s.json", b->id);
    if (st != ROSE_OK)
        st = rose_fail(err, st, "out of memory");
    else
        st = rose_store_write(s->batches_fd, name, text.data, text.len, err);
    rose_buf_free(&text);
    return st;
}

void rose_store_batch_forget(rose_batch_store *s, store_batch *b)
{
    static const char *const parts[] = {".json", ".out", ".err"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[STORE_ID + 8];
        snprintf(name, sizeof name, "%s%s", b->id, parts[i]);
        unlinkat(s->batches_fd, name, 0);
    }
    TAILQ_REMOVE(&s->batches, b, link);
    rose_store_batch_free(b);
}

static void insert(rose_batch_store *s, store_batch *b)
{
    store_batch *after = TAILQ_LAST(&s->batches, store_batches);
    while (after != NULL && after->seq > b->seq)
        after = TAILQ_PREV(after, store_batches, link);
    if (after == NULL)
        TAILQ_INSERT_HEAD(&s->batches, b, link);
    else
        TAILQ_INSERT_AFTER(&s->batches, after, b, link);
    if (b->seq >= s->next_seq) s->next_seq = b->seq + 1;
}

static const char *constant_end(const rose_json *v)
{
    static const char *const ends[] = {"completed", "failed", "expired", "cancelled"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (rose_json_is_string(v) && strcmp(rose_json_text(v), ends[i]) == 0) return ends[i];
    }
    return NULL;
}

static uint64_t size_of(const rose_batch_store *s, const store_batch *b, const char *part)
{
    char name[STORE_ID + 8];
    struct stat info;
    snprintf(name, sizeof name, "%s%s", b->id, part);
    return fstatat(s->batches_fd, name, &info, 0) == 0 ? (uint64_t)info.st_size : 0;
}

/* Fills b from a record; false: it is not ours. */
static bool read_record(rose_batch_store *s, store_batch *b, const rose_json *v, const char *name)
{
    const rose_json *counts = rose_json_get(v, "counts"), *shown = rose_json_get(v, "shown");
    const rose_json *endpoint = rose_json_get(shown, "endpoint");
    const rose_json *status = rose_json_get(shown, "status");
    if (!rose_json_is_object(shown) ||
        !rose_store_take_text(b->id, sizeof b->id, rose_json_get(shown, "id")) ||
        !rose_store_take_text(b->owner, sizeof b->owner, rose_json_get(v, "owner")) ||
        !rose_store_take_text(b->input, sizeof b->input, rose_json_get(v, "input")) ||
        !rose_store_take_text(b->out_id, sizeof b->out_id, rose_json_get(v, "out_id")) ||
        !rose_store_take_text(b->err_id, sizeof b->err_id, rose_json_get(v, "err_id")))
        return false;
    if (strlen(name) != strlen(b->id) + 5 || strncmp(name, b->id, strlen(b->id)) != 0) return false;
    if (!rose_json_is_string(endpoint) || !rose_json_is_string(status)) return false;
    b->endpoint = rose_batch_endpoint(rose_json_text(endpoint), rose_json_text_len(endpoint));
    b->shown = rose_json_incref(shown);
    b->end = constant_end(rose_json_get(v, "end"));
    b->ended = rose_json_is_true(rose_json_get(v, "ended"));
    b->cancel = strcmp(rose_json_text(status), "cancelling") == 0;
    b->ended_at = rose_json_int(rose_json_get(v, "ended_at"));
    b->expires = rose_json_int(rose_json_get(shown, "expires_at"));
    b->output_expire_s = (uint32_t)rose_json_int(rose_json_get(v, "output_expire_s"));
    b->seq = (uint64_t)rose_json_int(rose_json_get(v, "seq"));
    b->counts = (rose_batch_counts){.total = (uint32_t)rose_json_int(rose_json_at(counts, 0)),
                                    .done = (uint32_t)rose_json_int(rose_json_at(counts, 1)),
                                    .failed = (uint32_t)rose_json_int(rose_json_at(counts, 2))};
    if (!b->ended) b->live = size_of(s, b, ".out") + size_of(s, b, ".err");
    return b->endpoint != NULL;
}

rose_status rose_store_batches_load(rose_batch_store *s, rose_err *err)
{
    const struct dirent *e;
    const int fd = fcntl(s->batches_fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return rose_fail(err, ROSE_E_IO, "--batch-dir %s: %s", s->dir, strerror(errno));
    }
    while ((e = readdir(dir)) != NULL) {
        const size_t n = strlen(e->d_name);
        rose_json *v = NULL;
        if (strncmp(e->d_name, ".tmp-", 5) == 0) unlinkat(s->batches_fd, e->d_name, 0);
        if (e->d_name[0] == '.' || n < 6 || strcmp(e->d_name + n - 5, ".json") != 0) continue;
        store_batch *b = calloc(1, sizeof *b);
        const bool ok = b != NULL &&
                        rose_store_read_json(s->batches_fd, e->d_name, &v, NULL) == ROSE_OK &&
                        read_record(s, b, v, e->d_name);
        rose_json_decref(v);
        if (ok) {
            s->bytes += b->live;
            insert(s, b);
        } else {
            rose_log(ROSE_LOG_WARN, "batch", "%s/batches/%s is no record of a batch; passed over",
                     s->dir, e->d_name);
            rose_store_batch_free(b);
        }
    }
    closedir(dir);
    return ROSE_OK;
}

/* ---- what clients ask ---- */

/* The batch with its counts, a new reference. */
static rose_json *show(const store_batch *b)
{
    const rose_batch_counts *c = &b->counts;
    rose_json *v = rose_json_copy(b->shown);
    rose_json *counts =
        rose_json_pack("{s I s I s I}", "total", (int64_t)c->total, "completed",
                       (int64_t)c->done - (int64_t)c->failed, "failed", (int64_t)c->failed);
    if (v != NULL && rose_json_set_new(v, "request_counts", counts) == 0) return v;
    if (v == NULL) rose_json_decref(counts);
    rose_json_decref(v);
    return NULL;
}

static rose_status put(rose_buf *out, const store_batch *b, rose_err *err)
{
    rose_json *v = show(b);
    const rose_status st = v == NULL ? ROSE_E_NOMEM : rose_json_dump(out, v, ROSE_JSON_COMPACT);
    rose_json_decref(v);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

/* At the limit the oldest batch of the key that has ended makes room. Its result files stay. */
static rose_status may_create(rose_batch_store *s, const char *owner, rose_err *err)
{
    uint32_t n = 0;
    store_batch *b, *oldest = NULL;
    TAILQ_FOREACH(b, &s->batches, link)
    {
        if (strcmp(b->owner, owner) != 0) continue;
        n++;
        if (oldest == NULL && b->ended && !b->running) oldest = b;
    }
    if (n < s->o.max_files) return ROSE_OK;
    if (oldest == NULL)
        return rose_fail(err, ROSE_E_FULL,
                         "the key has %u batches that have not ended, and no more are possible "
                         "(--batch-max-files)",
                         n);
    rose_store_batch_forget(s, oldest);
    return ROSE_OK;
}

static store_batch *new_batch(rose_batch_store *s, const char *owner,
                              const rose_batch_order_form *f)
{
    store_batch *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    const int64_t now = rose_store_now(s);
    rose_store_new_id(b->id, "batch_");
    rose_store_new_id(b->out_id, "file-");
    rose_store_new_id(b->err_id, "file-");
    snprintf(b->owner, sizeof b->owner, "%s", owner);
    snprintf(b->input, sizeof b->input, "%s", f->input_file_id);
    b->endpoint = f->endpoint;
    b->expires = now + f->window_s;
    b->output_expire_s = f->output_expire_s;
    b->shown = rose_json_pack("{s s s s s s s n s s s s s s s n s n s I s I s O}", "id", b->id,
                              "object", "batch", "endpoint", f->endpoint, "errors", "input_file_id",
                              b->input, "completion_window", f->window_text, "status", "validating",
                              "output_file_id", "error_file_id", "created_at", now, "expires_at",
                              b->expires, "metadata", f->metadata != NULL ? f->metadata : NULL);
    return b;
}

rose_status rose_batch_submit(rose_batch_store *s, const char *owner,
                              const rose_batch_order_form *f, rose_buf *out, rose_err *err)
{
    rose_json *none = f->metadata == NULL ? rose_json_null() : NULL;
    rose_batch_order_form form = *f;
    if (f->metadata == NULL) form.metadata = none;
    pthread_mutex_lock(&s->lock);
    const store_file *input = rose_store_file(s, owner, f->input_file_id);
    rose_status st = ROSE_OK;
    store_batch *b = NULL;
    if (input == NULL || input->output)
        st = rose_fail(err, ROSE_E_INVAL,
                       "input_file_id: there is no file '%.60s' with purpose "
                       "batch",
                       f->input_file_id);
    if (st == ROSE_OK) st = may_create(s, owner, err);
    if (st == ROSE_OK) {
        b = new_batch(s, owner, &form);
        if (b == NULL || b->shown == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    if (st == ROSE_OK) {
        b->seq = s->next_seq++;
        st = rose_store_batch_save(s, b, err);
    }
    if (st == ROSE_OK) {
        insert(s, b);
        st = put(out, b, err);
        pthread_cond_broadcast(&s->changed);
    } else {
        rose_store_batch_free(b);
    }
    pthread_mutex_unlock(&s->lock);
    rose_json_decref(none);
    return st;
}

rose_status rose_batch_get(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                           rose_err *err)
{
    pthread_mutex_lock(&s->lock);
    const store_batch *b = find(s, owner, id);
    const rose_status st = b == NULL ? no_such_batch(id, err) : put(out, b, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

rose_status rose_batch_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                            rose_buf *out, rose_err *err)
{
    store_list l = {.data = rose_json_array()};
    rose_status st = l.data == NULL ? rose_fail(err, ROSE_E_NOMEM, "out of memory") : ROSE_OK;
    pthread_mutex_lock(&s->lock);
    const store_batch *b = TAILQ_LAST(&s->batches, store_batches);
    if (st == ROSE_OK && p->after != NULL) {
        b = find(s, owner, p->after);
        if (b == NULL) st = no_such_batch(p->after, err);
        if (b != NULL) b = TAILQ_PREV(b, store_batches, link);
    }
    for (; b != NULL && st == ROSE_OK && !l.more; b = TAILQ_PREV(b, store_batches, link)) {
        if (strcmp(b->owner, owner) != 0) continue;
        l.more = rose_json_count(l.data) == p->limit;
        if (!l.more && rose_json_append_new(l.data, show(b)) != 0)
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    pthread_mutex_unlock(&s->lock);
    if (st == ROSE_OK) return rose_store_list_end(&l, out, err);
    rose_json_decref(l.data);
    return st;
}

rose_status rose_batch_cancel(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                              rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    store_batch *b = find(s, owner, id);
    if (b == NULL) {
        st = no_such_batch(id, err);
    } else if (b->ended || (b->end != NULL && !b->cancel)) {
        st = rose_fail(err, ROSE_E_INVAL, "Cannot cancel a batch with status '%s'.",
                       rose_json_text(rose_json_get(b->shown, "status")));
    } else if (!b->cancel) {
        b->cancel = true;
        if (!rose_store_batch_status(s, b, "cancelling"))
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        if (st == ROSE_OK) st = rose_store_batch_save(s, b, err);
        pthread_cond_broadcast(&s->changed);
    }
    if (st == ROSE_OK) st = put(out, b, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}
