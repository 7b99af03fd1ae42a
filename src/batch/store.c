/* batch/store.c - see store.h: the directory, its lock and secret, the thread that starts batches
 * and sweeps, and the files: uploads, and the results of batches that have ended. */
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

rose_status rose_store_write(int dir, const char *name, const void *bytes, size_t len,
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

rose_status rose_store_read_json(int dir, const char *name, rose_json **out, rose_err *err)
{
    rose_status st = ROSE_OK;
    struct stat info;
    rose_buf b = {0};
    *out = NULL;
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &info) < 0)
        st = rose_fail(err, ROSE_E_IO, "%s: %s", name, strerror(errno));
    else if (info.st_size > STORE_META_BYTES)
        st = rose_fail(err, ROSE_E_FORMAT, "%s: too large", name);
    else
        st = rose_buf_reserve(&b, STORE_META_BYTES);
    while (st == ROSE_OK && b.len < STORE_META_BYTES) {
        const ssize_t n = read(fd, b.data + b.len, STORE_META_BYTES - b.len);
        if (n < 0) st = rose_fail(err, ROSE_E_IO, "%s: %s", name, strerror(errno));
        if (n <= 0) break;
        b.len += (size_t)n;
    }
    if (st == ROSE_OK) st = rose_json_parse(out, b.data, b.len, 0, NULL);
    if (st == ROSE_OK && !rose_json_is_object(*out)) {
        rose_json_decref(*out);
        *out = NULL;
        st = ROSE_E_FORMAT;
    }
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

rose_status rose_store_list_end(store_list *l, rose_buf *out, rose_err *err)
{
    const size_t n = rose_json_count(l->data);
    const rose_json *first = n > 0 ? rose_json_get(rose_json_at(l->data, 0), "id") : NULL;
    const rose_json *last = n > 0 ? rose_json_get(rose_json_at(l->data, n - 1), "id") : NULL;
    rose_json *reply = rose_json_pack("{s s s O s s? s s? s b}", "object", "list", "data", l->data,
                                      "first_id", rose_json_text(first), "last_id",
                                      rose_json_text(last), "has_more", (int)l->more);
    const rose_status st =
        reply == NULL ? ROSE_E_NOMEM : rose_json_dump(out, reply, ROSE_JSON_COMPACT);
    rose_json_decref(reply);
    rose_json_decref(l->data);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
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
        return rose_store_write(s->dir_fd, "secret", s->secret, sizeof s->secret, err);
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
    s->dir_fd = s->files_fd = s->batches_fd = -1;
    TAILQ_INIT(&s->files);
    TAILQ_INIT(&s->batches);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    rose_status st = ROSE_OK;
    if ((s->dir = strdup(o->dir)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "--batch-dir: out of memory");
    if (st == ROSE_OK) st = open_folder(&s->dir_fd, AT_FDCWD, o->dir, err);
    if (st == ROSE_OK) st = lock_dir(s, err);
    if (st == ROSE_OK) st = read_secret(s, err);
    if (st == ROSE_OK) st = open_folder(&s->files_fd, s->dir_fd, "files", err);
    if (st == ROSE_OK) st = open_folder(&s->batches_fd, s->dir_fd, "batches", err);
    if (st == ROSE_OK) st = rose_store_batches_load(s, err);
    if (st == ROSE_OK) st = rose_store_files_load(s, err);
    if (st == ROSE_OK) rose_batch_store_sweep(s);
    if (st == ROSE_OK)
        *out = s;
    else
        rose_batch_store_close(s);
    return st;
}

void rose_batch_store_close(rose_batch_store *s)
{
    store_file *f;
    store_batch *b;
    if (s == NULL) return;
    rose_batch_store_stop(s);
    while ((f = TAILQ_FIRST(&s->files)) != NULL) {
        TAILQ_REMOVE(&s->files, f, link);
        rose_store_file_free(f);
    }
    while ((b = TAILQ_FIRST(&s->batches)) != NULL) {
        TAILQ_REMOVE(&s->batches, b, link);
        rose_store_batch_free(b);
    }
    if (s->files_fd >= 0) close(s->files_fd);
    if (s->batches_fd >= 0) close(s->batches_fd);
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
    store_batch *b;
    TAILQ_FOREACH(b, &s->batches, link)
    {
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
    store_file *f, *next_f;
    store_batch *b, *next_b;
    pthread_mutex_lock(&s->lock);
    const int64_t now = rose_store_now(s), age = (int64_t)s->o.expire_hours * 3600;
    for (f = TAILQ_FIRST(&s->files); f != NULL; f = next_f) {
        next_f = TAILQ_NEXT(f, link);
        if (f->expires != 0 && f->expires <= now && !rose_store_in_use(s, f->id)) {
            rose_log(ROSE_LOG_INFO, "batch", "%s has expired", f->id);
            rose_store_file_forget(s, f);
        }
    }
    for (b = TAILQ_FIRST(&s->batches); b != NULL; b = next_b) {
        next_b = TAILQ_NEXT(b, link);
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

store_file *rose_store_file(rose_batch_store *s, const char *owner, const char *id)
{
    store_file *f;
    TAILQ_FOREACH(f, &s->files, link)
    {
        if (strcmp(f->id, id) == 0) return strcmp(f->owner, owner) == 0 ? f : NULL;
    }
    return NULL;
}

static rose_status no_such_file(const char *id, rose_err *err)
{
    return rose_fail(err, ROSE_E_NOTFOUND, "No such File object: %.60s", id);
}

int64_t rose_store_expiry(const rose_batch_store *s, uint32_t expire_s)
{
    const uint64_t age = expire_s > 0 ? expire_s : (uint64_t)s->o.expire_hours * 3600;
    return age == 0 ? 0 : rose_store_now(s) + (int64_t)age;
}

static rose_json *shown(const store_file *f)
{
    rose_json *v = rose_json_pack(
        "{s s s s s I s I s s s s s s s n}", "id", f->id, "object", "file", "bytes",
        (int64_t)f->bytes, "created_at", f->created, "filename", f->name, "purpose",
        f->output ? "batch_output" : "batch", "status", "processed", "status_details");
    if (v != NULL && f->expires != 0 &&
        rose_json_set_new(v, "expires_at", rose_json_integer(f->expires)) != 0) {
        rose_json_decref(v);
        return NULL;
    }
    return v;
}

/* Appends v as text, and releases it. */
static rose_status put(rose_buf *out, rose_json *v, rose_err *err)
{
    const rose_status st = v == NULL ? ROSE_E_NOMEM : rose_json_dump(out, v, ROSE_JSON_COMPACT);
    rose_json_decref(v);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

/* ---- on the disk ---- */

static void insert(rose_batch_store *s, store_file *f)
{
    store_file *after = TAILQ_LAST(&s->files, store_files);
    while (after != NULL && after->seq > f->seq)
        after = TAILQ_PREV(after, store_files, link);
    if (after == NULL)
        TAILQ_INSERT_HEAD(&s->files, f, link);
    else
        TAILQ_INSERT_AFTER(&s->files, after, f, link);
    if (f->seq >= s->next_seq) s->next_seq = f->seq + 1;
}

rose_status rose_store_file_add(rose_batch_store *s, store_file *f, rose_err *err)
{
    rose_buf b = {0};
    char name[STORE_ID + 8];
    f->seq = s->next_seq++;
    rose_status st =
        put(&b,
            rose_json_pack("{s s s s s s s b s I s I s I}", "id", f->id, "owner", f->owner,
                           "filename", f->name, "output", (int)f->output, "created_at", f->created,
                           "expires_at", f->expires, "seq", (int64_t)f->seq),
            err);
    snprintf(name, sizeof name, "%s.json", f->id);
    if (st == ROSE_OK) st = rose_store_write(s->files_fd, name, b.data, b.len, err);
    rose_buf_free(&b);
    if (st == ROSE_OK)
        insert(s, f);
    else
        rose_store_file_free(f);
    return st;
}

/* The .json goes first, so that a kill in between leaves content that the next start removes. */
void rose_store_file_forget(rose_batch_store *s, store_file *f)
{
    char name[STORE_ID + 8];
    snprintf(name, sizeof name, "%s.json", f->id);
    unlinkat(s->files_fd, name, 0);
    unlinkat(s->files_fd, f->id, 0);
    s->bytes -= f->bytes;
    TAILQ_REMOVE(&s->files, f, link);
    rose_store_file_free(f);
}

/* Reads files/ID.json; NULL: it is none of ours, or its content is gone. */
static store_file *load(rose_batch_store *s, const char *name)
{
    rose_json *v = NULL;
    store_file *f = calloc(1, sizeof *f);
    struct stat info;
    bool ok = f != NULL && rose_store_read_json(s->files_fd, name, &v, NULL) == ROSE_OK;
    ok = ok && rose_store_take_text(f->id, sizeof f->id, rose_json_get(v, "id")) &&
         rose_store_take_text(f->owner, sizeof f->owner, rose_json_get(v, "owner"));
    ok = ok && strlen(name) == strlen(f->id) + 5 && strncmp(name, f->id, strlen(f->id)) == 0;
    const rose_json *text = rose_json_get(v, "filename");
    ok = ok && rose_json_is_string(text) && (f->name = strdup(rose_json_text(text))) != NULL;
    ok =
        ok && fstatat(s->files_fd, f->id, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
    if (ok) {
        f->bytes = (uint64_t)info.st_size;
        f->output = rose_json_is_true(rose_json_get(v, "output"));
        f->created = rose_json_int(rose_json_get(v, "created_at"));
        f->expires = rose_json_int(rose_json_get(v, "expires_at"));
        f->seq = (uint64_t)rose_json_int(rose_json_get(v, "seq"));
    } else {
        rose_store_file_free(f);
        f = NULL;
    }
    rose_json_decref(v);
    return f;
}

static bool is_gone(const rose_batch_store *s, const char *name)
{
    struct stat info;
    return fstatat(s->files_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* Tells whether a kill left this file: it is a temporary file, or content without its record, or a
 * record without its content. Other names are not ours: DIR may have had a folder `files` before.
 */
static bool is_orphan(const rose_batch_store *s, const char *name)
{
    static const char prefix[] = "file-";
    enum { PREFIX = sizeof prefix - 1, DIGITS = 32 };
    char id[STORE_ID], record[STORE_ID + 8];
    const bool temporary = strncmp(name, ".tmp-", 5) == 0;
    const char *begin = temporary ? name + 5 : name;
    if (strncmp(begin, prefix, PREFIX) != 0 || strspn(begin + PREFIX, "0123456789abcdef") != DIGITS)
        return false;
    const char *rest = begin + PREFIX + DIGITS;
    if (*rest != '\0' && strcmp(rest, ".json") != 0) return false;
    snprintf(id, sizeof id, "%.*s", PREFIX + DIGITS, begin);
    snprintf(record, sizeof record, "%s.json", id);
    return temporary || is_gone(s, id) || is_gone(s, record);
}

static void remove_orphans(const rose_batch_store *s, DIR *dir)
{
    const struct dirent *e;
    rewinddir(dir);
    while ((e = readdir(dir)) != NULL) {
        if (is_orphan(s, e->d_name)) unlinkat(s->files_fd, e->d_name, 0);
    }
}

DIR *rose_store_walk(const rose_batch_store *s, int folder, rose_err *err)
{
    const int fd = fcntl(folder, F_DUPFD_CLOEXEC, 3);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir != NULL) return dir;
    rose_fail(err, ROSE_E_IO, "--batch-dir %s: %s", s->dir, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
}

rose_status rose_store_files_load(rose_batch_store *s, rose_err *err)
{
    const struct dirent *e;
    DIR *dir = rose_store_walk(s, s->files_fd, err);
    if (dir == NULL) return ROSE_E_IO;
    while ((e = readdir(dir)) != NULL) {
        const size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.' || n < 6 || strcmp(e->d_name + n - 5, ".json") != 0) continue;
        store_file *f = load(s, e->d_name);
        if (f != NULL) {
            s->bytes += f->bytes;
            insert(s, f);
        } else if (!is_orphan(s, e->d_name)) {
            rose_log(ROSE_LOG_WARN, "batch", "%s/files/%s is no record of a file; passed over",
                     s->dir, e->d_name);
        }
    }
    remove_orphans(s, dir);
    closedir(dir);
    return ROSE_OK;
}

/* ---- what clients ask ---- */

/* Reserves the bytes of an upload, or says which limit forbids it. */
static rose_status may_add(rose_batch_store *s, const char *owner, size_t len, rose_err *err)
{
    uint32_t n = 0;
    const store_file *f;
    TAILQ_FOREACH(f, &s->files, link)
    n += strcmp(f->owner, owner) == 0;
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
    rose_store_new_id(f->id, "file-");
    snprintf(f->owner, sizeof f->owner, "%s", owner);
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
    memcpy(id, f->id, sizeof id);
    st = rose_store_write(s->files_fd, id, bytes, len, err);
    pthread_mutex_lock(&s->lock);
    rose_json *v = shown(f);
    if (st == ROSE_OK && v == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        st = rose_store_file_add(s, f, err);
    else
        rose_store_file_free(f);
    if (st != ROSE_OK) s->bytes -= len;
    pthread_mutex_unlock(&s->lock);
    if (st != ROSE_OK) {
        unlinkat(s->files_fd, id, 0);
        rose_json_decref(v);
        return st;
    }
    return put(out, v, err);
}

rose_status rose_batch_file_get(rose_batch_store *s, const char *owner, const char *id,
                                rose_buf *out, rose_err *err)
{
    pthread_mutex_lock(&s->lock);
    const store_file *f = rose_store_file(s, owner, id);
    const rose_status st = f == NULL ? no_such_file(id, err) : put(out, shown(f), err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static bool is_listed(const store_file *f, const char *owner, const rose_batch_page *p)
{
    if (strcmp(f->owner, owner) != 0) return false;
    return p->purpose == NULL || strcmp(p->purpose, f->output ? "batch_output" : "batch") == 0;
}

rose_status rose_batch_file_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                                 rose_buf *out, rose_err *err)
{
    store_list l = {.data = rose_json_array()};
    rose_status st = l.data == NULL ? rose_fail(err, ROSE_E_NOMEM, "out of memory") : ROSE_OK;
    pthread_mutex_lock(&s->lock);
    const store_file *f =
        p->oldest_first ? TAILQ_FIRST(&s->files) : TAILQ_LAST(&s->files, store_files);
    if (st == ROSE_OK && p->after != NULL) {
        f = rose_store_file(s, owner, p->after);
        if (f == NULL) st = no_such_file(p->after, err);
        if (f != NULL) f = p->oldest_first ? TAILQ_NEXT(f, link) : TAILQ_PREV(f, store_files, link);
    }
    for (; f != NULL && st == ROSE_OK && !l.more;
         f = p->oldest_first ? TAILQ_NEXT(f, link) : TAILQ_PREV(f, store_files, link)) {
        if (!is_listed(f, owner, p)) continue;
        l.more = rose_json_count(l.data) == p->limit;
        if (!l.more && rose_json_append_new(l.data, shown(f)) != 0)
            st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    pthread_mutex_unlock(&s->lock);
    if (st == ROSE_OK) return rose_store_list_end(&l, out, err);
    rose_json_decref(l.data);
    return st;
}

rose_status rose_batch_file_content(rose_batch_store *s, const char *owner, const char *id,
                                    rose_buf *out, rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    const store_file *f = rose_store_file(s, owner, id);
    const uint64_t bytes = f != NULL ? f->bytes : 0;
    const int fd = f == NULL ? -1 : openat(s->files_fd, f->id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (f == NULL)
        st = no_such_file(id, err);
    else if (fd < 0)
        st = rose_fail(err, ROSE_E_IO, "the batch directory: open %s: %s", f->id, strerror(errno));
    pthread_mutex_unlock(&s->lock);
    if (st == ROSE_OK && bytes > MAX_CONTENT)
        st = rose_fail(err, ROSE_E_INVAL,
                       "the file has %llu bytes, more than one reply carries; it is in the "
                       "server's --batch-dir",
                       (unsigned long long)bytes);
    if (st == ROSE_OK && rose_buf_reserve(out, bytes + 1) != ROSE_OK)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    while (st == ROSE_OK && out->len < bytes) {
        const ssize_t n = read(fd, out->data + out->len, bytes - out->len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            st = rose_fail(err, ROSE_E_IO, "the batch directory: read %s: %s", id,
                           n < 0 ? strerror(errno) : "the file is shorter than it was");
        else
            out->len += (size_t)n;
    }
    if (fd >= 0) close(fd);
    return st;
}

rose_status rose_batch_file_delete(rose_batch_store *s, const char *owner, const char *id,
                                   rose_buf *out, rose_err *err)
{
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&s->lock);
    store_file *f = rose_store_file(s, owner, id);
    if (f == NULL)
        st = no_such_file(id, err);
    else if (rose_store_in_use(s, id))
        st = rose_fail(err, ROSE_E_INVAL,
                       "the file is the input of a batch that has not ended; cancel it first");
    else
        st = put(out, rose_json_pack("{s s s s s b}", "id", f->id, "object", "file", "deleted", 1),
                 err);
    if (st == ROSE_OK) rose_store_file_forget(s, f);
    pthread_mutex_unlock(&s->lock);
    return st;
}
