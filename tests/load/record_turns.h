/* tests/load/record_turns.h - what the recorder costs a thread that serves streams: a recording
 * runs and does not run in turns of one long run, and the CPU time of the threads is read at each
 * turn. The two halves of a pair are neighbours, so nothing else differs between them. */
#ifndef ROSE_LOAD_RECORD_TURNS_H
#define ROSE_LOAD_RECORD_TURNS_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_record_turns rose_record_turns;

typedef struct rose_record_opts {
    const char *const *threads;   /* [n_threads] of this process, by name; borrowed */
    uint32_t n_threads;           /* 1 .. 8 */
    uint64_t (*tokens)(void *of); /* so far; any thread may ask */
    void *of;
    uint64_t from, until; /* tokens between which turns count */
    uint32_t turn_ms;
} rose_record_opts;

/* Starts the thread that does it. Errors: NOTFOUND (no such thread here), NOMEM, IO. */
rose_status rose_record_turns_start(rose_record_turns **out, const rose_record_opts *o,
                                    rose_err *err);

/* Waits for its end, stops the last recording; {"events", "dropped", "pairs": [{"off": {NAME: CPU
 * ns a token, ..., "tokens"}, "on": ...}]}; NULL without memory. Destroys t; accepts NULL. */
json_t *rose_record_turns_end(rose_record_turns *t);

#endif
