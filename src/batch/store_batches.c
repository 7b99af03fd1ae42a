/* batch/store_batches.c - the batches of a store: what clients see, what is on the disk, and the
 * run of each on a thread of its own.
 *
 * The results go to batches/ID.out and ID.err, as those of `roseinfer batch` go to its output, and
 * a batch that was interrupted continues by the same rules. At the end the record says how the
 * batch ends, then both files get their place in files/. Each step can be done again, so a kill in
 * between loses nothing. */
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

bool rose_store_in_use(const rose_batch_store *s, const char *file_id)
{
    const store_record *r;
    TAILQ_FOREACH(r, &s->batches.records, link)
    {
        const store_batch *b = (const store_batch *)r;
        if (!b->ended && strcmp(b->input, file_id) == 0) return true;
    }
    return false;
}

/* Sets the status and the time stamp "STATUS_at"; false: no memory. */
static bool set_status(rose_batch_store *s, store_batch *b, const char *status)
{
    char key[32];
    snprintf(key, sizeof key, "%s_at", status);
    return rose_json_set_new(b->shown, "status", rose_json_string(status)) == 0 &&
           (strcmp(status, "validating") == 0 ||
            rose_json_set_new(b->shown, key, rose_json_integer(rose_store_now(s))) == 0);
}

/* ---- on the disk ---- */

static rose_status save(rose_batch_store *s, store_batch *b, rose_err *err)
{
    const rose_batch_counts *c = &b->counts;
    rose_json *v =
        rose_json_pack("{s s s s s s s s s s? s b s I s I s I s [I I I] s O}", "owner", b->r.owner,
                       "input", b->input, "out_id", b->out_id, "err_id", b->err_id, "end", b->end,
                       "ended", (int)b->ended, "ended_at", b->ended_at, "output_expire_s",
                       (int64_t)b->output_expire_s, "seq", (int64_t)b->r.seq, "counts",
                       (int64_t)c->total, (int64_t)c->done, (int64_t)c->failed, "shown", b->shown);
    return rose_store_save(&s->batches, b->r.id, v, err);
}

void rose_store_batch_forget(rose_batch_store *s, store_batch *b)
{
    static const char *const parts[] = {".json", ".out", ".err"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[STORE_ID + 8];
        snprintf(name, sizeof name, "%s%s", b->r.id, parts[i]);
        unlinkat(s->batches.fd, name, 0);
    }
    TAILQ_REMOVE(&s->batches.records, &b->r, link);
    rose_store_batch_free(b);
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
    snprintf(name, sizeof name, "%s%s", b->r.id, part);
    return fstatat(s->batches.fd, name, &info, 0) == 0 ? (uint64_t)info.st_size : 0;
}

/* Fills b from a record; false: it is not ours. */
static bool read_record(rose_batch_store *s, store_batch *b, const rose_json *v, const char *name)
{
    const rose_json *counts = rose_json_get(v, "counts"), *shown = rose_json_get(v, "shown");
    const rose_json *endpoint = rose_json_get(shown, "endpoint");
    const rose_json *status = rose_json_get(shown, "status");
    if (!rose_json_is_object(shown) ||
        !rose_store_read_head(&b->r, v, rose_json_get(shown, "id"), name) ||
        !rose_store_take_text(b->input, sizeof b->input, rose_json_get(v, "input")) ||
        !rose_store_take_text(b->out_id, sizeof b->out_id, rose_json_get(v, "out_id")) ||
        !rose_store_take_text(b->err_id, sizeof b->err_id, rose_json_get(v, "err_id")))
        return false;
    if (!rose_json_is_string(endpoint) || !rose_json_is_string(status)) return false;
    b->endpoint = rose_batch_endpoint(rose_json_text(endpoint), rose_json_text_len(endpoint));
    b->shown = rose_json_incref(shown);
    b->end = constant_end(rose_json_get(v, "end"));
    b->ended = rose_json_is_true(rose_json_get(v, "ended"));
    b->cancel = strcmp(rose_json_text(status), "cancelling") == 0;
    b->ended_at = rose_json_int(rose_json_get(v, "ended_at"));
    b->expires = rose_json_int(rose_json_get(shown, "expires_at"));
    b->output_expire_s = (uint32_t)rose_json_int(rose_json_get(v, "output_expire_s"));
    b->counts = (rose_batch_counts){.total = (uint32_t)rose_json_int(rose_json_at(counts, 0)),
                                    .done = (uint32_t)rose_json_int(rose_json_at(counts, 1)),
                                    .failed = (uint32_t)rose_json_int(rose_json_at(counts, 2))};
    if (!b->ended) b->live = size_of(s, b, ".out") + size_of(s, b, ".err");
    return b->endpoint != NULL;
}

store_record *rose_store_batch_read(rose_batch_store *s, const rose_json *v, const char *name)
{
    store_batch *b = calloc(1, sizeof *b);
    if (b != NULL && read_record(s, b, v, name)) {
        s->bytes += b->live;
        return &b->r;
    }
    rose_store_batch_free(b);
    return NULL;
}

/* ---- what clients ask ---- */

/* The batch with its counts. */
rose_json *rose_store_batch_show(const store_record *r)
{
    const store_batch *b = (const store_batch *)r;
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

/* At the limit the oldest batch of the key that has ended makes room. Its result files stay. */
static rose_status may_create(rose_batch_store *s, const char *owner, rose_err *err)
{
    uint32_t n = 0;
    store_batch *oldest = NULL;
    store_record *r;
    TAILQ_FOREACH(r, &s->batches.records, link)
    {
        store_batch *b = (store_batch *)r;
        if (strcmp(r->owner, owner) != 0) continue;
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
    rose_store_new_id(b->r.id, s->batches.prefix);
    rose_store_new_id(b->out_id, s->files.prefix);
    rose_store_new_id(b->err_id, s->files.prefix);
    snprintf(b->r.owner, sizeof b->r.owner, "%s", owner);
    snprintf(b->input, sizeof b->input, "%s", f->input_file_id);
    b->endpoint = f->endpoint;
    b->expires = now + f->window_s;
    b->output_expire_s = f->output_expire_s;
    b->shown = rose_json_pack("{s s s s s s s n s s s s s s s n s n s I s I s O}", "id", b->r.id,
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
    const store_file *input = rose_store_find(&s->files, owner, f->input_file_id, NULL);
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
        b->r.seq = s->next_seq++;
        st = save(s, b, err);
    }
    if (st == ROSE_OK) {
        rose_store_insert(s, &s->batches, &b->r);
        st = rose_store_put(out, rose_store_batch_show(&b->r), err);
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
    return rose_store_get(s, &s->batches, owner, id, out, err);
}

rose_status rose_batch_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                            rose_buf *out, rose_err *err)
{
    rose_batch_page page = *p;
    page.oldest_first = false; /* OpenAI's list of batches has no order */
    return rose_store_list(s, &s->batches, owner, &page, NULL, out, err);
}

rose_status rose_batch_cancel(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                              rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    store_batch *b = rose_store_find(&s->batches, owner, id, err);
    if (b == NULL) {
        st = ROSE_E_NOTFOUND;
    } else if (b->ended || (b->end != NULL && !b->cancel)) {
        st = rose_fail(err, ROSE_E_INVAL, "Cannot cancel a batch with status '%s'.",
                       rose_json_text(rose_json_get(b->shown, "status")));
    } else if (!b->cancel) {
        char was[32];
        snprintf(was, sizeof was, "%s", rose_json_text(rose_json_get(b->shown, "status")));
        b->cancel = true;
        if (!set_status(s, b, "cancelling")) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        if (st == ROSE_OK) st = save(s, b, err);
        if (st != ROSE_OK) { /* nothing was cancelled */
            b->cancel = false;
            set_status(s, b, was);
        }
        pthread_cond_broadcast(&s->changed);
    }
    if (st == ROSE_OK) st = rose_store_put(out, rose_store_batch_show(&b->r), err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ==== the run of one batch ==== */

enum { AGAIN_S = 30 };

typedef struct job {
    rose_batch_store *s;
    store_batch *b;
    rose_batch_input *in;
    rose_batch_output *out, *errors;
    const char *why_stopped; /* NULL: nothing; else how the batch ends, or "later" */
    rose_err full;           /* why the batch failed, if it did */
} job;

/* The error that the client sees of the whole batch. code, param: constants; line 0 = none. */
static rose_json *new_error(const char *code, const char *param, const char *msg, uint32_t line)
{
    rose_json *at = line > 0 ? rose_json_integer(line) : rose_json_null();
    return rose_json_pack("{s s s o s s s s?}", "code", code, "line", at, "message", msg, "param",
                          param);
}

/* Sets `errors` to a list of these. Takes `data`. */
static void set_errors(store_batch *b, rose_json *data)
{
    rose_json *list =
        data == NULL ? NULL : rose_json_pack("{s s s o}", "object", "list", "data", data);
    if (list != NULL) (void)rose_json_set_new(b->shown, "errors", list);
}

/* ---- while it runs ---- */

static uint32_t window(void *arg)
{
    const job *j = arg;
    const uint32_t n = atomic_load_explicit(&j->s->n_running, memory_order_relaxed);
    const uint32_t share = j->s->server.window / (n > 0 ? n : 1);
    return share < 1 ? 1 : share > ROSE_BATCH_MAX_WINDOW ? ROSE_BATCH_MAX_WINDOW : share;
}

/* Counts the bytes of the results; false: the directory has too many. */
static bool count_bytes(job *j)
{
    const uint64_t live = j->out->len + j->errors->len;
    j->s->bytes += live - j->b->live;
    j->b->live = live;
    return j->s->bytes <= j->s->o.max_bytes;
}

static rose_batch_order ask(void *arg, const rose_batch_counts *c)
{
    job *j = arg;
    rose_batch_store *s = j->s;
    const char *why = NULL;
    pthread_mutex_lock(&s->lock);
    j->b->counts = *c;
    const bool room = count_bytes(j);
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed) ||
        s->server.failed(s->server.arg)) {
        why = "later";
    } else if (j->b->cancel) {
        why = "cancelled";
    } else if (j->b->expires <= rose_store_now(s)) {
        why = "expired";
    } else if (!room) {
        why = "failed";
        rose_fail(&j->full, ROSE_E_FULL,
                  "the server's batch directory is full "
                  "(--batch-max-bytes); delete files");
    }
    pthread_mutex_unlock(&s->lock);
    if (why != NULL && j->why_stopped == NULL) j->why_stopped = why;
    return j->why_stopped != NULL ? ROSE_BATCH_STOP : ROSE_BATCH_GO;
}

/* ---- begin ---- */

/* Notes why the batch does not begin. */
static void refuse(job *j, const rose_batch_problems *p, const rose_err *err)
{
    rose_json *data = rose_json_array();
    pthread_mutex_lock(&j->s->lock);
    for (uint32_t i = 0; i < p->n && i < ROSE_BATCH_MAX_PROBLEMS && data != NULL; i++) {
        const rose_batch_problem *v = &p->v[i];
        (void)rose_json_append_new(data, new_error(v->code, v->param, v->msg, v->line));
    }
    if (p->n == 0 && data != NULL)
        (void)rose_json_append_new(data, new_error("server_error", NULL, err->msg, 0));
    set_errors(j->b, data);
    pthread_mutex_unlock(&j->s->lock);
}

static rose_status open_input(job *j, rose_err *err)
{
    rose_batch_store *s = j->s;
    const rose_batch_limits limits = {.max_lines = s->o.max_lines,
                                      .max_line_bytes = s->o.max_line_bytes,
                                      .endpoint = j->b->endpoint};
    rose_batch_problems *p = calloc(1, sizeof *p);
    rose_status st = ROSE_OK;
    const int fd = openat(s->files.fd, j->b->input, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (p == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    else if (fd < 0)
        st = rose_fail(err, ROSE_E_IO, "the input file is gone: %s", strerror(errno));
    if (st == ROSE_OK)
        st = rose_batch_input_open(&j->in, fd, "the input file", &limits, p, err);
    else if (fd >= 0)
        close(fd);
    if (st != ROSE_OK && p != NULL) refuse(j, p, err);
    free(p);
    return st;
}

static rose_status open_output(job *j, rose_batch_output **out, const char *part, rose_err *err)
{
    rose_buf path = {0};
    if (rose_buf_addf(&path, "%s/batches/%s%s", j->s->dir, j->b->r.id, part) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    const rose_status st =
        rose_batch_output_open(out, path.data, ROSE_BATCH_RESUME, 0600, j->in, err);
    rose_buf_free(&path);
    return st;
}

static rose_status begin(job *j, rose_err *err)
{
    store_batch *b = j->b;
    rose_status st = open_output(j, &j->out, ".out", err);
    if (st == ROSE_OK) st = open_output(j, &j->errors, ".err", err);
    if (st != ROSE_OK) return st;
    pthread_mutex_lock(&j->s->lock);
    b->counts =
        (rose_batch_counts){.total = j->in->n, .done = j->in->n_done, .failed = j->in->n_failed};
    const rose_json *at = rose_json_get(b->shown, "in_progress_at");
    if (!b->cancel && at == NULL) {
        if (!set_status(j->s, b, "in_progress")) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        if (st == ROSE_OK) st = save(j->s, b, err);
    }
    pthread_mutex_unlock(&j->s->lock);
    return st;
}

/* Runs it. Returns how it ends, a constant; "later" = it continues after a restart. */
static const char *work(job *j, rose_err *err)
{
    rose_batch_counts c;
    rose_status st = begin(j, err);
    const rose_batch_run_opts o = {.http = j->s->server.http,
                                   .n_threads = j->s->server.n_threads,
                                   .in = j->in,
                                   .out = j->out,
                                   .errors = j->errors,
                                   .window = window,
                                   .ask = ask,
                                   .arg = j};
    if (st == ROSE_OK) st = rose_batch_run(&o, &c, err);
    if (st == ROSE_OK && j->why_stopped != NULL && strcmp(j->why_stopped, "expired") == 0)
        st = rose_batch_fail_rest(
            j->in, j->errors, "batch_expired",
            "This request could not be executed before the completion window expired.", err);
    if (st == ROSE_OK && j->why_stopped != NULL && strcmp(j->why_stopped, "failed") == 0) {
        *err = j->full;
        st = ROSE_E_FULL;
    }
    pthread_mutex_lock(&j->s->lock);
    if (j->in->n > 0)
        j->b->counts = (rose_batch_counts){
            .total = j->in->n, .done = j->in->n_done, .failed = j->in->n_failed};
    if (j->out != NULL && j->errors != NULL) (void)count_bytes(j);
    if (st != ROSE_OK) {
        rose_json *data = rose_json_array();
        const char *code = st == ROSE_E_FULL ? "storage_limit" : "storage_error";
        if (data != NULL) (void)rose_json_append_new(data, new_error(code, NULL, err->msg, 0));
        set_errors(j->b, data);
    }
    pthread_mutex_unlock(&j->s->lock);
    if (st != ROSE_OK) return "failed";
    return j->why_stopped != NULL ? j->why_stopped : "completed";
}

/* ---- end ---- */

/* Moves a result file to its place, unless it is empty or there already. The lock is held. */
static rose_status place(job *j, const char *part, const char *id, const char *key, rose_err *err)
{
    rose_batch_store *s = j->s;
    store_batch *b = j->b;
    char name[STORE_ID + 8];
    struct stat info;
    rose_status st = ROSE_OK;
    snprintf(name, sizeof name, "%s%s", b->r.id, part);
    const bool here = fstatat(s->batches.fd, name, &info, 0) == 0;
    const bool there = rose_store_find(&s->files, b->r.owner, id, NULL) != NULL;
    if (here && info.st_size > 0 && !there) {
        store_file *f = calloc(1, sizeof *f);
        if (f == NULL || (f->name = malloc(sizeof name + 16)) == NULL) {
            rose_store_file_free(f);
            return rose_fail(err, ROSE_E_NOMEM, "out of memory");
        }
        snprintf(f->name, sizeof name + 16, "%s_%s.jsonl", b->r.id,
                 strcmp(part, ".out") == 0 ? "output" : "error");
        memcpy(f->r.id, id, sizeof f->r.id);
        memcpy(f->r.owner, b->r.owner, sizeof f->r.owner);
        f->output = true;
        f->bytes = (uint64_t)info.st_size;
        f->created = rose_store_now(s);
        f->expires = rose_store_expiry(s, b->output_expire_s);
        st = rose_store_file_add(s, f, err);
    }
    if (st == ROSE_OK && here && info.st_size > 0) {
        if (renameat(s->batches.fd, name, s->files.fd, id) < 0 || fsync(s->files.fd) < 0)
            st = rose_fail(err, ROSE_E_IO, "the batch directory: rename %s: %s", name,
                           strerror(errno));
    } else if (here) {
        unlinkat(s->batches.fd, name, 0);
    }
    if (st == ROSE_OK && (there || (here && info.st_size > 0)) &&
        rose_json_set_new(b->shown, key, rose_json_string(id)) != 0)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    return st;
}

/* The lock is held. The results are the files' bytes from here on. */
static rose_status finish(job *j, rose_err *err)
{
    rose_batch_store *s = j->s;
    store_batch *b = j->b;
    rose_status st = place(j, ".out", b->out_id, "output_file_id", err);
    if (st == ROSE_OK) st = place(j, ".err", b->err_id, "error_file_id", err);
    if (st != ROSE_OK) return st;
    b->ended_at = rose_store_now(s);
    b->ended = true;
    b->live = 0;
    if (!set_status(s, b, b->end)) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) st = save(s, b, err);
    if (st != ROSE_OK) b->ended = false;
    return st;
}

/* Ends the batch; if the disk does not take that, it is tried again later. */
static void end(job *j, const char *how, rose_err *err)
{
    rose_batch_store *s = j->s;
    store_batch *b = j->b;
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    if (b->end == NULL) {
        if (b->cancel && strcmp(how, "failed") != 0) how = "cancelled";
        b->end = how;
        if (strcmp(how, "cancelled") != 0 && strcmp(how, "failed") != 0 &&
            !set_status(s, b, "finalizing"))
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        if (st == ROSE_OK) st = save(s, b, err);
    }
    if (st == ROSE_OK) st = finish(j, err);
    if (st != ROSE_OK) {
        rose_log(ROSE_LOG_ERROR, "batch", "%s cannot end, and tries again in %d s: %s", b->r.id,
                 AGAIN_S, err->msg);
        b->again_at = rose_store_now(s) + AGAIN_S;
    } else {
        rose_log(ROSE_LOG_INFO, "batch", "%s: %s, %u of %u requests done, %u of them failed",
                 b->r.id, b->end, b->counts.done, b->counts.total, b->counts.failed);
    }
    pthread_mutex_unlock(&s->lock);
}

void rose_store_run(rose_batch_store *s, store_batch *b)
{
    job j = {.s = s, .b = b};
    rose_err err = {{0}};
    pthread_mutex_lock(&s->lock);
    const char *how = b->end;
    if (how == NULL && b->cancel && b->counts.total == 0) how = "cancelled";
    pthread_mutex_unlock(&s->lock);
    if (how == NULL) how = open_input(&j, &err) == ROSE_OK ? work(&j, &err) : "failed";
    rose_batch_output_close(j.out);
    rose_batch_output_close(j.errors);
    rose_batch_input_close(j.in);
    if (strcmp(how, "later") != 0) end(&j, how, &err);
}
