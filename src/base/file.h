/* base/file.h - reads, maps and writes files. Any thread. */
#ifndef ROSE_BASE_FILE_H
#define ROSE_BASE_FILE_H

#include <stdbool.h>

#include "base/buf.h"

/* Appends the content of path to out. A file over max_bytes, a directory, or a read error fails
 * with a message that names the path. If there is no such file, the status is ROSE_E_NOTFOUND. A
 * symbolic link without a target is ROSE_E_IO, and a Git LFS pointer is ROSE_E_FORMAT: in both
 * cases somebody meant the file to be there. */
rose_status rose_file_read(rose_buf *out, const char *path, size_t max_bytes, rose_err *err);

/* Writes all n bytes to fd. False: errno says why. */
bool rose_file_write(int fd, const void *bytes, size_t n);

/* A read-only private mapping. `data` stays valid until rose_file_unmap; the descriptor is
 * closed at once. If another program truncates the file, reading past its new end raises SIGBUS.
 * Model files must therefore not be changed in place while they are served (the README says so). */
typedef struct rose_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;         /* bytes */
} rose_map;

/* Errors: as rose_file_read. */
rose_status rose_file_map(rose_map *out, const char *path, rose_err *err);
void rose_file_unmap(rose_map *m); /* accepts {0}; leaves {0} */

/* True for a regular file that can be read, and for a symbolic link without a target. Reading
 * such a link fails with a message that names it. */
bool rose_file_exists(const char *path);

/* If path is a symbolic link without a target, returns ROSE_E_IO with a message that names link
 * and target. */
rose_status rose_file_check_link(const char *path, rose_err *err);

/* The path as messages show it: whole, or "..." and its tail. */
void rose_path_label(char out[256], const char *path);

#endif
