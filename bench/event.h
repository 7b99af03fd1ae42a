/* bench/event.h - a quick look at one event of a stream. Most events hold only text or token ids. A
 * JSON tree for each of them would make the client slower than the server. No state; any thread. */
#ifndef ROSE_BENCH_EVENT_H
#define ROSE_BENCH_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
