/* bench/sse.h - server-sent events out of bytes in any pieces (the text/event-stream rules: lines
 * end in LF, CR or CRLF; `data` fields of one event are joined by LF; comments and other fields are
 * passed over). A plain value, zero-initialise, free with rose_sse_free. */
#ifndef ROSE_BENCH_SSE_H
#define ROSE_BENCH_SSE_H

#include <stdbool.h>

#include "base/buf.h"

enum { ROSE_SSE_MAX_EVENT = 1 << 20 }; /* bytes of a line, and of an event */

typedef struct rose_sse {
    rose_buf line, data; /* owned */
    bool has_data;       /* the event has a data field, though it may be empty */
    bool after_cr;       /* an LF now belongs to the line before */
} rose_sse;

/* Called for each event with its data (borrowed, not NUL-terminated). Not OK stops the feeding. */
typedef rose_status rose_sse_fn(void *user, const char *data, size_t len);

/* Errors: FORMAT (a line or event over the limit), NOMEM, or what fn returned. */
rose_status rose_sse_feed(rose_sse *s, const char *bytes, size_t n, rose_sse_fn *fn, void *user);

void rose_sse_free(rose_sse *s); /* accepts {0}; leaves {0} */

#endif
