/* tests/load/record_turns.h - measures what the recorder costs the threads that serve streams. In
 * one long run, turns with and without a recording alternate, and the CPU time of the threads is
 * read at each turn. The two turns of a pair are neighbours, so nothing else differs between
 * them. */
#ifndef ROSE_LOAD_RECORD_TURNS_H
#define ROSE_LOAD_RECORD_TURNS_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

typedef struct rose_record_turns rose_record_turns;

typedef struct rose_record_opts {
    const char *const *threads;   /* [n_threads] names of threads of this process; borrowed */
    uint32_t n_threads;           /* 1 .. 8 */
    uint64_t (*tokens)(void *of); /* tokens generated so far; any thread may ask */
    void *of;
    uint64_t from, until; /* turns count only between these two numbers of tokens */
    uint32_t turn_ms;
} rose_record_opts;

/* Starts the thread that records in turns. Errors: NOTFOUND (this process has no such thread),
 * NOMEM, IO. */
rose_status rose_record_turns_start(rose_record_turns **out, const rose_record_opts *o,
                                    rose_err *err);

/* Ends the thread, stops the last recording and destroys t (accepts NULL). Returns {"events",
 * "dropped", "pairs": [{"off": {NAME: CPU ns for each token, ..., "tokens"}, "on": ...}]}, or NULL
 * if out of memory. */
rose_json *rose_record_turns_end(rose_record_turns *t);

#endif
