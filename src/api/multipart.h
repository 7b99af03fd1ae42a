/* api/multipart.h - reads the body of an upload, multipart/form-data (RFC 7578). It copies nothing:
 * parts point into the body. Any thread. */
#ifndef ROSE_API_MULTIPART_H
#define ROSE_API_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { ROSE_MULTIPART_BOUNDARY = 70, ROSE_MULTIPART_MAX_PARTS = 64 };

typedef struct rose_multipart {
    const char *p, *end;                    /* the rest of the body; borrowed */
    char mark[ROSE_MULTIPART_BOUNDARY + 5]; /* CR LF - - BOUNDARY */
    size_t mark_len;
    unsigned n; /* parts so far */
} rose_multipart;

typedef struct rose_multipart_part {
    const char *name, *filename, *data; /* filename: NULL: the part is no file */
    size_t name_len, filename_len, len;
} rose_multipart_part;

/* Takes the boundary from the value of Content-Type. Errors: FORMAT (the type is another one, or
 * has no sound boundary), with a message. */
rose_status rose_multipart_begin(rose_multipart *m, const char *type, const char *body, size_t len,
                                 rose_err *err);
/* The next part. Errors: EMPTY (there is no further part), FORMAT (with a message). */
rose_status rose_multipart_next(rose_multipart *m, rose_multipart_part *part, rose_err *err);

#endif
