/* batch/store.c - see store.h: the directory, its lock and secret, what the records of files and
 * batches have in common, the thread that starts batches and sweeps, and the files: uploads, and
 * the results of batches that have ended. */
#include "batch/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "batch/store_internal.h"

enum { SWEEP_S = 60 };

void rose_batch_store_opts_default(rose_batch_store_opts *o)
{
    *o = (rose_batch_store_opts){.max_lines = 50000,
                                 .max_files = 500,
                                 .max_bytes = (uint64_t)16 << 30,
                                 .expire_hours = 720,
                                 .max_line_bytes = 33u << 20};
}

int64_t rose_store_now(const rose_batch_store *s)
{
    return s->o.now != NULL ? s->o.now(s->o.now_arg) : rose_unix_time();
}

void rose_store_new_id(char out[STORE_ID], const char *prefix)
{
    uint64_t v[2];
    while (getrandom(v, sizeof v, 0) != (ssize_t)sizeof v) {
    }
    snprintf(out, STORE_ID, "%s%016llx%016llx", prefix, (unsigned long long)v[0],
             (unsigned long long)v[1]);
}

void rose_batch_store_owner(const rose_batch_store *s, const char *key, char out[ROSE_BATCH_OWNER])
{
    rose_sha256 h;
    char hex[65];
    out[0] = '\0';
    if (key == NULL) return;
    rose_sha256_init(&h);
    rose_sha256_add(&h, s->secret, sizeof s->secret);
    rose_sha256_add(&h, key, strlen(key));
    rose_sha256_hex(&h, hex);
    memcpy(out, hex, ROSE_BATCH_OWNER - 1);
    out[ROSE_BATCH_OWNER - 1] = '\0';
}

/* ---- files of the directory ---- */

/* Appends the n bytes that fd has. Errors: IO (with errno; 0: there are fewer), NOMEM. */
static rose_status read_all(int fd, rose_buf *out, size_t n)
{
    if (rose_buf_reserve(out, n + 1) != ROSE_OK) return ROSE_E_NOMEM;
    for (const size_t end = out->len + n; out->len < end;) {
        errno = 0;
        const ssize_t got = read(fd, out->data + out->len, end - out->len);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return ROSE_E_IO;
        out->len += (size_t)got;
    }
    return ROSE_OK;
}

/* Writes a whole file in folder `dir` and syncs it: all of it, or nothing. Needs no lock. */
static rose_status write_file(int dir, const char *name, const void *bytes, size_t len,
                              rose_err *err)
{
    char temp[STORE_ID + 32];
    rose_status st = ROSE_OK;
    snprintf(temp, sizeof temp, ".tmp-%s", name);
    const int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || !rose_file_write(fd, bytes, len) || fsync(fd) < 0 ||
        renameat(dir, temp, dir, name) < 0 || fsync(dir) < 0) {
        st = rose_fail(err, ROSE_E_IO, "the batch directory: write %s: %s", name, strerror(errno));
        if (fd >= 0) unlinkat(dir, temp, 0);
    }
    if (fd >= 0) close(fd);
    return st;
}

/* Reads dir/name into *out, an object. */
static rose_status read_json(int dir, const char *name, rose_json **out)
{
    rose_status st = ROSE_OK;
    struct stat info;
    rose_buf b = {0};
    *out = NULL;
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &info) < 0)
        st = ROSE_E_IO;
    else if (info.st_size > STORE_META_BYTES)
        st = ROSE_E_FORMAT;
    else
        st = read_all(fd, &b, (size_t)info.st_size);
    if (st == ROSE_OK) st = rose_json_parse(out, b.data, b.len, 0, NULL);
    if (fd >= 0) close(fd);
    rose_buf_free(&b);
    return st;
}

bool rose_store_take_text(char *out, size_t cap, const rose_json *v)
{
    const size_t n = rose_json_text_len(v);
    if (!rose_json_is_string(v) || n >= cap) return false;
    memcpy(out, rose_json_text(v), n + 1);
    return true;
}

/* ---- records ---- */

rose_status rose_store_put(rose_buf *out, rose_json *v, rose_err *err)
{
    const rose_status st = v == NULL ? ROSE_E_NOMEM : rose_json_dump(out, v, ROSE_JSON_COMPACT);
    rose_json_decref(v);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

void *rose_store_find(store_folder *f, const char *owner, const char *id, rose_err *err)
{
    store_record *r;
    TAILQ_FOREACH(r, &f->records, link)
    {
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) return r;
    }
    rose_fail(err, ROSE_E_NOTFOUND, "No such %s object: %.60s", f->what, id);
    return NULL;
}

void rose_store_insert(rose_batch_store *s, store_folder *f, store_record *r)
{
    store_record *after = TAILQ_LAST(&f->records, store_records);
    while (after != NULL && after->seq > r->seq)
        after = TAILQ_PREV(after, store_records, link);
    if (after == NULL)
        TAILQ_INSERT_HEAD(&f->records, r, link);
    else
        TAILQ_INSERT_AFTER(&f->records, after, r, link);
    if (r->seq >= s->next_seq) s->next_seq = r->seq + 1;
}

rose_status rose_store_save(const store_folder *f, const char *id, rose_json *v, rose_err *err)
{
    rose_buf b = {0};
    char name[STORE_ID + 8];
    rose_status st = rose_store_put(&b, v, err);
    snprintf(name, sizeof name, "%s.json", id);
    if (st == ROSE_OK) st = write_file(f->fd, name, b.data, b.len, err);
    rose_buf_free(&b);
    return st;
}

bool rose_store_read_head(store_record *r, const rose_json *v, const rose_json *id,
                          const char *name)
{
    r->seq = (uint64_t)rose_json_int(rose_json_get(v, "seq"));
    return rose_store_take_text(r->id, sizeof r->id, id) &&
           rose_store_take_text(r->owner, sizeof r->owner, rose_json_get(v, "owner")) &&
           strlen(name) == strlen(r->id) + 5 && strncmp(name, r->id, strlen(r->id)) == 0;
}

static bool is_gone(const store_folder *f, const char *name)
{
    struct stat info;
    return fstatat(f->fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* Tells whether a kill left this file: it is a temporary file, or content without its record, or a
 * record without its content. Other names are not ours: DIR may have had such a folder before. */
static bool is_orphan(const store_folder *f, const char *name)
{
    enum { DIGITS = 32 };
    const size_t n = strlen(f->prefix);
    char id[STORE_ID], record[STORE_ID + 8];
    const bool temporary = strncmp(name, ".tmp-", 5) == 0;
    const char *begin = temporary ? name + 5 : name;
    if (strncmp(begin, f->prefix, n) != 0 || strspn(begin + n, "0123456789abcdef") != DIGITS)
        return false;
    const char *rest = begin + n + DIGITS;
    if (*rest != '\0' && strcmp(rest, ".json") != 0) return false;
    snprintf(id, sizeof id, "%.*s", (int)n + DIGITS, begin);
    snprintf(record, sizeof record, "%s.json", id);
    return temporary || (f->has_content && (is_gone(f, id) || is_gone(f, record)));
}

/* Reads all records of a folder, and removes what a kill has left. */
static rose_status load(rose_batch_store *s, store_folder *f, rose_err *err)
{
    const struct dirent *e;
    const int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        rose_fail(err, ROSE_E_IO, "--batch-dir %s: %s", s->dir, strerror(errno));
        if (fd >= 0) close(fd);
        return ROSE_E_IO;
    }
    while ((e = readdir(dir)) != NULL) {
        const size_t n = strlen(e->d_name);
        rose_json *v = NULL;
        if (is_orphan(f, e->d_name)) {
            unlinkat(f->fd, e->d_name, 0);
            continue;
        }
        if (e->d_name[0] == '.' || n < 6 || strcmp(e->d_name + n - 5, ".json") != 0) continue;
        store_record *r =
            read_json(f->fd, e->d_name, &v) == ROSE_OK ? f->read(s, v, e->d_name) : NULL;
        rose_json_decref(v);
        if (r != NULL)
            rose_store_insert(s, f, r);
        else
            rose_log(ROSE_LOG_WARN, "batch", "%s/%s/%s is no record of this server; passed over",
                     s->dir, f->name, e->d_name);
    }
    closedir(dir);
    return ROSE_OK;
}

rose_status rose_store_get(rose_batch_store *s, store_folder *f, const char *owner, const char *id,
                           rose_buf *out, rose_err *err)
{
    pthread_mutex_lock(&s->lock);
    const store_record *r = rose_store_find(f, owner, id, err);
    const rose_status st = r == NULL ? ROSE_E_NOTFOUND : rose_store_put(out, f->show(r), err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static store_record *next_of(store_record *r, const rose_batch_page *p)
{
    return p->oldest_first ? TAILQ_NEXT(r, link) : TAILQ_PREV(r, store_records, link);
}

rose_status rose_store_list(rose_batch_store *s, store_folder *f, const char *owner,
                            const rose_batch_page *p,
                            bool (*wanted)(const store_record *, const rose_batch_page *),
                            rose_buf *out, rose_err *err)
{
    rose_json *data = rose_json_array();
    rose_status st = ROSE_OK;
    bool more = false;
    pthread_mutex_lock(&s->lock);
    store_record *r =
        p->oldest_first ? TAILQ_FIRST(&f->records) : TAILQ_LAST(&f->records, store_records);
    if (p->after != NULL) {
        r = rose_store_find(f, owner, p->after, err);
        if (r == NULL) st = ROSE_E_NOTFOUND;
        if (r != NULL) r = next_of(r, p);
    }
    for (; r != NULL && st == ROSE_OK && !more; r = next_of(r, p)) {
        if (strcmp(r->owner, owner) != 0 || (wanted != NULL && !wanted(r, p))) continue;
        more = rose_json_count(data) == p->limit;
        if (!more && rose_json_append_new(data, f->show(r)) != 0)
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    pthread_mutex_unlock(&s->lock);
    const rose_json *first = rose_json_get(rose_json_at(data, 0), "id");
    const rose_json *last = rose_json_get(rose_json_at(data, rose_json_count(data) - 1), "id");
    if (st == ROSE_OK)
        st = rose_store_put(out,
                            rose_json_pack("{s s s O s s? s s? s b}", "object", "list", "data",
                                           data, "first_id", rose_json_text(first), "last_id",
                                           rose_json_text(last), "has_more", (int)more),
                            err);
    rose_json_decref(data);
    return st;
}

/* ---- files as records ---- */

static const char *purpose_of(const store_file *f)
{
    return f->output ? "batch_output" : "batch";
}

static rose_json *show_file(const store_record *r)
{
    const store_file *f = (const store_file *)r;
    rose_json *v =
        rose_json_pack("{s s s s s I s I s s s s s s s n}", "id", r->id, "object", "file", "bytes",
                       (int64_t)f->bytes, "created_at", f->created, "filename", f->name, "purpose",
                       purpose_of(f), "status", "processed", "status_details");
    if (v != NULL && f->expires != 0 &&
        rose_json_set_new(v, "expires_at", rose_json_integer(f->expires)) != 0) {
        rose_json_decref(v);
        return NULL;
    }
    return v;
}

static store_record *read_file(rose_batch_store *s, const rose_json *v, const char *name)
{
    store_file *f = calloc(1, sizeof *f);
    struct stat info;
    const char *text = rose_json_text(rose_json_get(v, "filename"));
    if (f == NULL || !rose_store_read_head(&f->r, v, rose_json_get(v, "id"), name) ||
        text == NULL || (f->name = strdup(text)) == NULL ||
        fstatat(s->files.fd, f->r.id, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode)) {
        rose_store_file_free(f);
        return NULL;
    }
    f->bytes = (uint64_t)info.st_size;
    f->output = rose_json_is_true(rose_json_get(v, "output"));
    f->created = rose_json_int(rose_json_get(v, "created_at"));
    f->expires = rose_json_int(rose_json_get(v, "expires_at"));
    s->bytes += f->bytes;
    return &f->r;
}

/* ---- open ---- */

static rose_status open_folder(int *fd, int at, const char *name, rose_err *err)
{
    if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
        return rose_fail(err, ROSE_E_IO, "--batch-dir: mkdir %s: %s", name, strerror(errno));
    *fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd >= 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "--batch-dir: open %s: %s", name, strerror(errno));
}

static rose_status lock_dir(rose_batch_store *s, rose_err *err)
{
    if (flock(s->dir_fd, LOCK_EX | LOCK_NB) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "--batch-dir %s: %s", s->dir,
                     errno == EWOULDBLOCK ? "another server uses this directory" : strerror(errno));
}

static rose_status read_secret(rose_batch_store *s, rose_err *err)
{
    const int fd = openat(s->dir_fd, "secret", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        while (getrandom(s->secret, sizeof s->secret, 0) != (ssize_t)sizeof s->secret) {
        }
        return write_file(s->dir_fd, "secret", s->secret, sizeof s->secret, err);
    }
    const bool ok = fd >= 0 && read(fd, s->secret, sizeof s->secret) == (ssize_t)sizeof s->secret;
    if (fd >= 0) close(fd);
    if (ok) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "--batch-dir %s: the file 'secret' cannot be read", s->dir);
}

rose_status rose_batch_store_open(rose_batch_store **out, const rose_batch_store_opts *o,
                                  rose_err *err)
{
    rose_batch_store *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) return rose_fail(err, ROSE_E_NOMEM, "--batch-dir: out of memory");
    s->o = *o;
    s->dir_fd = -1;
    s->files = (store_folder){.name = "files",
                              .prefix = "file-",
                              .what = "File",
                              .has_content = true,
                              .read = read_file,
                              .show = show_file,
                              .fd = -1};
    s->batches = (store_folder){.name = "batches",
                                .prefix = "batch_",
                                .what = "Batch",
                                .read = rose_store_batch_read,
                                .show = rose_store_batch_show,
                                .fd = -1};
    TAILQ_INIT(&s->files.records);
    TAILQ_INIT(&s->batches.records);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    rose_status st = ROSE_OK;
    if ((s->dir = strdup(o->dir)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "--batch-dir: out of memory");
    if (st == ROSE_OK) st = open_folder(&s->dir_fd, AT_FDCWD, o->dir, err);
    if (st == ROSE_OK) st = lock_dir(s, err);
    if (st == ROSE_OK) st = read_secret(s, err);
    if (st == ROSE_OK) st = open_folder(&s->files.fd, s->dir_fd, s->files.name, err);
    if (st == ROSE_OK) st = open_folder(&s->batches.fd, s->dir_fd, s->batches.name, err);
    if (st == ROSE_OK) st = load(s, &s->batches, err);
    if (st == ROSE_OK) st = load(s, &s->files, err);
    if (st == ROSE_OK) rose_batch_store_sweep(s);
    if (st == ROSE_OK)
        *out = s;
    else
        rose_batch_store_close(s);
    return st;
}

void rose_batch_store_close(rose_batch_store *s)
{
    store_record *r;
    if (s == NULL) return;
    rose_batch_store_stop(s);
    while ((r = TAILQ_FIRST(&s->files.records)) != NULL) {
        TAILQ_REMOVE(&s->files.records, r, link);
        rose_store_file_free((store_file *)r);
    }
    while ((r = TAILQ_FIRST(&s->batches.records)) != NULL) {
        TAILQ_REMOVE(&s->batches.records, r, link);
        rose_store_batch_free((store_batch *)r);
    }
    if (s->files.fd >= 0) close(s->files.fd);
    if (s->batches.fd >= 0) close(s->batches.fd);
    if (s->dir_fd >= 0) close(s->dir_fd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->dir);
    free(s);
}

/* ---- the keeper ---- */

typedef struct runner {
    rose_batch_store *s;
    store_batch *b;
} runner;

static void *run_batch(void *arg)
{
    const runner r = *(runner *)arg;
    free(arg);
    rose_store_run(r.s, r.b);
    pthread_mutex_lock(&r.s->lock);
    r.b->running = false;
    atomic_fetch_sub_explicit(&r.s->n_running, 1, memory_order_relaxed);
    pthread_cond_broadcast(&r.s->changed);
    pthread_mutex_unlock(&r.s->lock);
    return NULL;
}

/* Starts the thread of a batch. The lock is held. */
static void start_one(rose_batch_store *s, store_batch *b)
{
    runner *r = malloc(sizeof *r);
    pthread_t thread;
    pthread_attr_t detached;
    b->again_at = rose_store_now(s) + 5; /* should this fail */
    if (r == NULL || pthread_attr_init(&detached) != 0) {
        free(r);
        return;
    }
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED); /* stop waits for n_running */
    *r = (runner){s, b};
    b->running = true;
    atomic_fetch_add_explicit(&s->n_running, 1, memory_order_relaxed);
    if (pthread_create(&thread, &detached, run_batch, r) != 0) {
        b->running = false;
        atomic_fetch_sub_explicit(&s->n_running, 1, memory_order_relaxed);
        free(r);
    }
    pthread_attr_destroy(&detached);
}

static void start_waiting(rose_batch_store *s)
{
    const int64_t now = rose_store_now(s);
    store_record *r;
    TAILQ_FOREACH(r, &s->batches.records, link)
    {
        store_batch *b = (store_batch *)r;
        if (atomic_load_explicit(&s->n_running, memory_order_relaxed) >= ROSE_BATCH_MAX_RUNNING)
            return;
        if (!b->ended && !b->running && b->again_at <= now) start_one(s, b);
    }
}

static void *keep(void *arg)
{
    rose_batch_store *s = arg;
    uint64_t swept = rose_now_ns();
    pthread_mutex_lock(&s->lock);
    while (!atomic_load_explicit(&s->stopping, memory_order_relaxed)) {
        struct timespec until;
        if (!s->server.failed(s->server.arg)) start_waiting(s);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
        if (rose_now_ns() - swept < SWEEP_S * UINT64_C(1000000000)) continue;
        swept = rose_now_ns();
        pthread_mutex_unlock(&s->lock);
        rose_batch_store_sweep(s);
        pthread_mutex_lock(&s->lock);
    }
    while (atomic_load_explicit(&s->n_running, memory_order_relaxed) > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

rose_status rose_batch_store_start(rose_batch_store *s, const rose_batch_server *server,
                                   rose_err *err)
{
    s->server = *server;
    const int rc = rose_thread_start(&s->keeper, keep, s);
    s->started = rc == 0;
    if (rc == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO, "cannot start a thread: %s", strerror(rc));
}

void rose_batch_store_stop(rose_batch_store *s)
{
    if (s == NULL || !s->started) return;
    pthread_mutex_lock(&s->lock);
    atomic_store_explicit(&s->stopping, true, memory_order_relaxed);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper, NULL);
    s->started = false;
}

/* ---- expiry ---- */

void rose_batch_store_sweep(rose_batch_store *s)
{
    store_record *r, *next;
    pthread_mutex_lock(&s->lock);
    const int64_t now = rose_store_now(s), age = (int64_t)s->o.expire_hours * 3600;
    for (r = TAILQ_FIRST(&s->files.records); r != NULL; r = next) {
        store_file *f = (store_file *)r;
        next = TAILQ_NEXT(r, link);
        if (f->expires != 0 && f->expires <= now && !rose_store_in_use(s, r->id)) {
            rose_log(ROSE_LOG_INFO, "batch", "%s has expired", r->id);
            rose_store_file_forget(s, f);
        }
    }
    for (r = TAILQ_FIRST(&s->batches.records); r != NULL; r = next) {
        store_batch *b = (store_batch *)r;
        next = TAILQ_NEXT(r, link);
        if (b->ended && !b->running && age > 0 && b->ended_at + age <= now)
            rose_store_batch_forget(s, b);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ==== files ==== */

/* Longest content that one reply carries; a longer one is in the directory. */
#define MAX_CONTENT ((uint64_t)1 << 30)

void rose_store_file_free(store_file *f)
{
    if (f == NULL) return;
    free(f->name);
    free(f);
}

int64_t rose_store_expiry(const rose_batch_store *s, uint32_t expire_s)
{
    const uint64_t age = expire_s > 0 ? expire_s : (uint64_t)s->o.expire_hours * 3600;
    return age == 0 ? 0 : rose_store_now(s) + (int64_t)age;
}

/* ---- on the disk ---- */

rose_status rose_store_file_add(rose_batch_store *s, store_file *f, rose_err *err)
{
    f->r.seq = s->next_seq++;
    const rose_status st = rose_store_save(
        &s->files, f->r.id,
        rose_json_pack("{s s s s s s s b s I s I s I}", "id", f->r.id, "owner", f->r.owner,
                       "filename", f->name, "output", (int)f->output, "created_at", f->created,
                       "expires_at", f->expires, "seq", (int64_t)f->r.seq),
        err);
    if (st == ROSE_OK)
        rose_store_insert(s, &s->files, &f->r);
    else
        rose_store_file_free(f);
    return st;
}

/* The .json goes first, so that a kill in between leaves content that the next start removes. */
void rose_store_file_forget(rose_batch_store *s, store_file *f)
{
    char name[STORE_ID + 8];
    snprintf(name, sizeof name, "%s.json", f->r.id);
    unlinkat(s->files.fd, name, 0);
    unlinkat(s->files.fd, f->r.id, 0);
    s->bytes -= f->bytes;
    TAILQ_REMOVE(&s->files.records, &f->r, link);
    rose_store_file_free(f);
}

/* ---- what clients ask ---- */

/* Reserves the bytes of an upload, or says which limit forbids it. */
static rose_status may_add(rose_batch_store *s, const char *owner, size_t len, rose_err *err)
{
    uint32_t n = 0;
    const store_record *r;
    TAILQ_FOREACH(r, &s->files.records, link)
    n += strcmp(r->owner, owner) == 0;
    if (n >= s->o.max_files)
        return rose_fail(err, ROSE_E_FULL,
                         "the key has %u files, and no more are possible (--batch-max-files); "
                         "delete some",
                         n);
    if (len > s->o.max_bytes - (s->bytes < s->o.max_bytes ? s->bytes : s->o.max_bytes))
        return rose_fail(err, ROSE_E_FULL,
                         "the server's batch directory is full (--batch-max-bytes); delete files");
    s->bytes += len;
    return ROSE_OK;
}

rose_status rose_batch_file_create(rose_batch_store *s, const char *owner, const char *name,
                                   const void *bytes, size_t len, uint32_t expire_s, rose_buf *out,
                                   rose_err *err)
{
    store_file *f = calloc(1, sizeof *f);
    if (f == NULL || (f->name = strndup(name, ROSE_BATCH_MAX_NAME)) == NULL) {
        rose_store_file_free(f);
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    f->name[rose_utf8_valid_prefix(f->name, strlen(f->name))] = '\0';
    rose_store_new_id(f->r.id, s->files.prefix);
    snprintf(f->r.owner, sizeof f->r.owner, "%s", owner);
    f->bytes = len;
    f->created = rose_store_now(s);
    f->expires = rose_store_expiry(s, expire_s);
    pthread_mutex_lock(&s->lock);
    rose_status st = may_add(s, owner, len, err);
    pthread_mutex_unlock(&s->lock);
    if (st != ROSE_OK) {
        rose_store_file_free(f);
        return st;
    }
    char id[STORE_ID];
    memcpy(id, f->r.id, sizeof id);
    st = write_file(s->files.fd, id, bytes, len, err);
    pthread_mutex_lock(&s->lock);
    rose_json *v = show_file(&f->r);
    if (st == ROSE_OK && v == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        st = rose_store_file_add(s, f, err);
    else
        rose_store_file_free(f);
    if (st != ROSE_OK) s->bytes -= len;
    pthread_mutex_unlock(&s->lock);
    if (st != ROSE_OK) {
        unlinkat(s->files.fd, id, 0);
        rose_json_decref(v);
        return st;
    }
    return rose_store_put(out, v, err);
}

rose_status rose_batch_file_get(rose_batch_store *s, const char *owner, const char *id,
                                rose_buf *out, rose_err *err)
{
    return rose_store_get(s, &s->files, owner, id, out, err);
}

static bool has_purpose(const store_record *r, const rose_batch_page *p)
{
    return p->purpose == NULL || strcmp(p->purpose, purpose_of((const store_file *)r)) == 0;
}

rose_status rose_batch_file_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                                 rose_buf *out, rose_err *err)
{
    return rose_store_list(s, &s->files, owner, p, has_purpose, out, err);
}

rose_status rose_batch_file_content(rose_batch_store *s, const char *owner, const char *id,
                                    rose_buf *out, rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    const store_file *f = rose_store_find(&s->files, owner, id, err);
    const uint64_t bytes = f != NULL ? f->bytes : 0;
    const int fd = f == NULL ? -1 : openat(s->files.fd, f->r.id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (f == NULL)
        st = ROSE_E_NOTFOUND;
    else if (fd < 0)
        st =
            rose_fail(err, ROSE_E_IO, "the batch directory: open %s: %s", f->r.id, strerror(errno));
    pthread_mutex_unlock(&s->lock);
    if (st == ROSE_OK && bytes > MAX_CONTENT)
        st = rose_fail(err, ROSE_E_INVAL,
                       "the file has %llu bytes, more than one reply carries; it is in the "
                       "server's --batch-dir",
                       (unsigned long long)bytes);
    if (st == ROSE_OK) st = read_all(fd, out, bytes);
    if (st == ROSE_E_NOMEM) rose_fail(err, st, "out of memory");
    if (st == ROSE_E_IO && fd >= 0)
        rose_fail(err, st, "the batch directory: read %s: %s", id,
                  errno != 0 ? strerror(errno) : "the file is shorter than it was");
    if (fd >= 0) close(fd);
    return st;
}

rose_status rose_batch_file_delete(rose_batch_store *s, const char *owner, const char *id,
                                   rose_buf *out, rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    store_file *f = rose_store_find(&s->files, owner, id, err);
    if (f == NULL)
        st = ROSE_E_NOTFOUND;
    else if (rose_store_in_use(s, id))
        st = rose_fail(err, ROSE_E_INVAL,
                       "the file is the input of a batch that has not ended; cancel it first");
    else
        st = rose_store_put(
            out, rose_json_pack("{s s s s s b}", "id", f->r.id, "object", "file", "deleted", 1),
            err);
    if (st == ROSE_OK) rose_store_file_forget(s, f);
    pthread_mutex_unlock(&s->lock);
    return st;
}
