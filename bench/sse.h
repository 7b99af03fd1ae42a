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

/* ---- event.c ---- */

/* A quick look at one event. Most events hold only text or token ids. A JSON tree for each of them
 * would make the client slower than the server. No state; any thread. */

/* What the first choice of the event holds. */
typedef struct rose_event_look {
    bool text; /* text, delta.content or delta.reasoning_content is a string that is not empty */
    uint32_t n_ids; /* number of elements of token_ids */
} rose_event_look;

/* Returns true if data[0 .. len) is valid JSON with a first choice, and *out tells all that a
 * client needs from it. That means no usage, timings, error or finish_reason other than null.
 * Returns false if a full parser must decide, and then *out means nothing. It also returns false
 * for text beyond ASCII, \u escapes, long numbers and members that are given twice. Only members
 * that it does not know may be given twice. */
bool rose_event_glance(const char *data, size_t len, rose_event_look *out);

#endif
