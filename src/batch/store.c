/* batch/store.c - see store.h: the directory, its lock and secret, the thread that starts batches
 * and sweeps. */
#include "batch/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"
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

static rose_status write_all(int fd, const char *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        const ssize_t n = write(fd, bytes + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ROSE_E_IO;
        at += (size_t)n;
    }
    return ROSE_OK;
}

rose_status rose_store_write(int dir, const char *name, const void *bytes, size_t len,
                             rose_err *err)
{
    char temp[STORE_ID + 32];
    rose_status st = ROSE_OK;
    snprintf(temp, sizeof temp, ".tmp-%s", name);
    const int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || write_all(fd, bytes, len) != ROSE_OK || fsync(fd) < 0 ||
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
    sigset_t all, old;
    s->server = *server;
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&s->keeper, NULL, keep, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
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
