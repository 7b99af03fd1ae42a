/* base/buf.h - a growable byte buffer, used by one thread. Initialise it with {0} and free it
 * with rose_buf_free. `data` ends in a NUL only if rose_buf_str was the last call. */
#ifndef ROSE_BASE_BUF_H
#define ROSE_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_buf {
    char *data; /* owned; NULL while cap == 0 */
    size_t len; /* bytes in use */
    size_t cap; /* bytes allocated */
} rose_buf;

/* Makes room for `more` further bytes. On ROSE_E_NOMEM the buffer is unchanged. The capacity
 * grows geometrically. */
rose_status rose_buf_reserve(rose_buf *b, size_t more);

/* The functions rose_buf_add* append to the buffer; on ROSE_E_NOMEM nothing was appended. */
rose_status rose_buf_add(rose_buf *b, const void *bytes, size_t n);
rose_status rose_buf_addf(rose_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts a NUL after the content (not counted in len) and returns data; NULL when out of memory. */
const char *rose_buf_str(rose_buf *b);

void rose_buf_free(rose_buf *b); /* accepts {0}; leaves {0} */

#endif
