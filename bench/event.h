/* bench/event.h - a short look at one event of a stream. Most events of a stream say no more than
 * that text, or ids, have come; building a tree for each would make the client the slower side.
 * Pure; any thread. */
#ifndef ROSE_BENCH_EVENT_H
#define ROSE_BENCH_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the first choice. */
typedef struct rose_event_look {
    bool text;      /* text, delta.content or delta.reasoning_content is a string with bytes */
    uint32_t n_ids; /* elements of token_ids */
} rose_event_look;

/* True: data[0 .. len) is sound JSON with a first choice, and nothing is in it that a client acts
 * on but what out tells: no usage, timings, error or finish_reason other than null. False: it may
 * be anything, a parser has to say (also of text beyond ASCII, \u escapes, long numbers, one of
 * those members given twice); *out is of no use. Another member given twice passes. */
bool rose_event_glance(const char *data, size_t len, rose_event_look *out);

#endif
