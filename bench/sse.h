/* bench/sse.h - finds server-sent events in bytes that come in pieces of any size. As
 * text/event-stream demands, lines end in LF, CR or CRLF, and the `data` fields of one event are
 * joined by LF. Comments and other fields are skipped. A parser is a plain value: zero-initialise
 * it, free it with rose_sse_free. */
#ifndef ROSE_BENCH_SSE_H
#define ROSE_BENCH_SSE_H

#include <stdbool.h>

#include "base/buf.h"

enum { ROSE_SSE_MAX_EVENT = 1 << 20 }; /* most bytes of a line, and of an event */

typedef struct rose_sse {
    rose_buf line, data; /* owned */
    bool has_data;       /* the event has a data field, which may be empty */
    bool after_cr;       /* an LF that comes next belongs to the CR before it */
} rose_sse;

/* Called for each event with its data (borrowed, not NUL-terminated). A status other than OK stops
 * the parsing. */
typedef rose_status rose_sse_fn(void *user, const char *data, size_t len);

/* Errors: FORMAT (a line or event over the limit), NOMEM, or the status that fn returned. */
rose_status rose_sse_feed(rose_sse *s, const char *bytes, size_t n, rose_sse_fn *fn, void *user);

void rose_sse_free(rose_sse *s); /* accepts {0}; leaves {0} */

#endif
