/* base/file.c - see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The start of a Git LFS pointer, a short text that stands in the place of a large file. */
static const char lfs_pointer[] = "version https://git-lfs";

rose_status rose_file_check_link(const char *path, rose_err *err)
{
    char target[256];
    struct stat st;
    const ssize_t n = readlink(path, target, sizeof target);
    if (n < 0 || stat(path, &st) == 0 || errno != ENOENT) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO,
                     "%.200s is a symbolic link to '%.*s', which does not exist: was the download "
                     "interrupted?",
                     path, (int)n, target);
}

static rose_status check_pointer(const char *path, const void *data, size_t n, rose_err *err)
{
    if (n < sizeof lfs_pointer - 1 || memcmp(data, lfs_pointer, sizeof lfs_pointer - 1) != 0)
        return ROSE_OK;
    return rose_fail(
        err, ROSE_E_FORMAT,
        "%s is a Git LFS pointer, which only names the file: run \"git lfs pull\" in its "
        "folder",
        path);
}

/* Opens path and calls fstat; fails with a message if it is not a regular file. */
static rose_status open_regular(int *fd, struct stat *st, const char *path, rose_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* NONBLOCK: a FIFO must not hang us */
    if (*fd < 0) {
        const int why = errno;
        const rose_status linked = rose_file_check_link(path, err);
        if (linked != ROSE_OK) return linked;
        rose_status s = why == ENOENT ? ROSE_E_NOTFOUND : ROSE_E_IO;
        return rose_fail(err, s, "open %s: %s", path, strerror(why));
    }
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode)) return ROSE_OK;
    close(*fd);
    *fd = -1;
    return rose_fail(err, ROSE_E_IO, "%s is not a regular file", path);
}

rose_status rose_file_read(rose_buf *out, const char *path, size_t max_bytes, rose_err *err)
{
    int fd;
    struct stat st;
    rose_status s = open_regular(&fd, &st, path, err);
    if (s != ROSE_OK) return s;
    size_t start = out->len;
    if ((uint64_t)st.st_size > max_bytes) {
        s = rose_fail(err, ROSE_E_FORMAT, "%s: %lld bytes, over the limit of %zu", path,
                      (long long)st.st_size, max_bytes);
        goto done;
    }
    if (rose_buf_reserve(out, (size_t)st.st_size + 1) != ROSE_OK) {
        s = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
        goto done;
    }
    while (out->len - start < (size_t)st.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - (out->len - start));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            s = rose_fail(err, ROSE_E_IO, "read %s: %s", path, strerror(errno));
            goto done;
        }
        if (n == 0) break; /* the file has become shorter since fstat: keep what was read */
        out->len += (size_t)n;
    }
    s = check_pointer(path, out->data + start, out->len - start, err);
done:
    if (s != ROSE_OK) out->len = start;
    close(fd);
    return s;
}

bool rose_file_write(int fd, const void *bytes, size_t n)
{
    for (const char *p = bytes; n > 0;) {
        const ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

rose_status rose_file_map(rose_map *out, const char *path, rose_err *err)
{
    int fd;
    struct stat st;
    *out = (rose_map){0};
    rose_status s = open_regular(&fd, &st, path, err);
    if (s != ROSE_OK) return s;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            s = rose_fail(err, ROSE_E_IO, "mmap %s: %s", path, strerror(errno));
        else
            *out = (rose_map){p, (size_t)st.st_size};
    }
    close(fd);
    if (s == ROSE_OK) s = check_pointer(path, out->data, out->size, err);
    if (s != ROSE_OK) rose_file_unmap(out);
    return s;
}

void rose_file_unmap(rose_map *m)
{
    if (m->data != NULL) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (rose_map){0};
}

bool rose_file_exists(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return errno == ENOENT && lstat(path, &st) == 0;
    return S_ISREG(st.st_mode) && access(path, R_OK) == 0;
}

void rose_path_label(char out[256], const char *path)
{
    size_t len = strlen(path), keep = 200;
    snprintf(out, 256, "%s%s", len > keep ? "..." : "", len > keep ? path + len - keep : path);
}
