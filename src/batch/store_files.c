/* batch/store_files.c - the files of a store: uploads, and the results of batches that have ended.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/utf8.h"
#include "batch/store_internal.h"

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

/* Removes what an upload has left that did not come to its end. */
static void remove_orphans(rose_batch_store *s, DIR *dir)
{
    const struct dirent *e;
    rewinddir(dir);
    while ((e = readdir(dir)) != NULL) {
        store_file *f;
        bool known = e->d_name[0] == '.' && strncmp(e->d_name, ".tmp-", 5) != 0;
        TAILQ_FOREACH(f, &s->files, link)
        {
            const size_t n = strlen(f->id);
            if (strncmp(e->d_name, f->id, n) == 0) known = true;
        }
        if (!known) unlinkat(s->files_fd, e->d_name, 0);
    }
}

rose_status rose_store_files_load(rose_batch_store *s, rose_err *err)
{
    const struct dirent *e;
    const int fd = fcntl(s->files_fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return rose_fail(err, ROSE_E_IO, "--batch-dir %s: %s", s->dir, strerror(errno));
    }
    while ((e = readdir(dir)) != NULL) {
        const size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.' || n < 6 || strcmp(e->d_name + n - 5, ".json") != 0) continue;
        store_file *f = load(s, e->d_name);
        if (f == NULL) continue;
        s->bytes += f->bytes;
        insert(s, f);
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
    f->name[rose_utf8_valid_prefix((const uint8_t *)f->name, strlen(f->name))] = '\0';
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
