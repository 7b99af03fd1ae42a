/* api/turns.h - who may compile a grammar, or render a slow chat template, next. Compiling takes up
 * to half a second of CPU time, so only a few workers do it at a time, and one client must not
 * delay the others.
 *
 * Each turn belongs to a client: its API key, or its address. Among those that wait, a turn whose
 * client has had its last turn longest ago comes first, then the one that arrived first. A
 * grammar's first turn has a small bound of work. If the bound is too small, the grammar takes a
 * second turn with a larger bound, and a third one without: it is compiled again each time, which
 * costs an eighth more. First turns come before second ones, and these before third ones, but for
 * one in nine. One place is always kept for first and second turns. So a common grammar never waits
 * for costly ones, if two may be compiled at a time.
 *
 * While a text is compiled, other turns of the same text wait: then the cache has it.
 *
 * A chat template that takes long has a third turn of its own, because no cache has its result.
 *
 * The queue is bounded. A client may have as many waiting turns as there are free places, so a
 * single client gets half of them, and others find room.
 *
 * Threads: the caller locks. Nothing depends on time. */
#ifndef ROSE_API_TURNS_H
#define ROSE_API_TURNS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Turns of one grammar, and the steps of the first and second: about 5 and 30 ms. */
enum { ROSE_API_FIRST_STEPS = 500000, ROSE_API_SECOND_STEPS = 3000000, ROSE_API_LAST_TURN = 2 };
enum { ROSE_API_MAX_RUNNING = 64, ROSE_API_CLIENTS = 1024 };

typedef struct rose_api_turn {
    uint64_t client;         /* a hash of what identifies it */
    uint64_t text;           /* a hash of what is compiled */
    const atomic_bool *gone; /* borrowed: nobody waits for the result any more */
    uint32_t nth;            /* 0: the first turn of the grammar; at most ROSE_API_LAST_TURN */
    bool is_long;            /* the job has a long body, of which not all workers may have one */
    struct rose_api_turn *next;
} rose_api_turn;

typedef struct rose_api_turns {
    rose_api_turn *first; /* those that wait, in order of arrival */
    uint32_t n_waiting, max_waiting;
    rose_api_turn *running[ROSE_API_MAX_RUNNING];
    uint32_t n_running, n_last, max_running; /* n_last: third turns that run */
    uint32_t n_passed;                       /* turns since a later one could have begun */
    uint64_t now, served[ROSE_API_CLIENTS];  /* by client: the number of its last turn. Two
                                              * clients may share a place; then they share turns */
} rose_api_turns;

/* max_running: 1 .. ROSE_API_MAX_RUNNING. */
void rose_api_turns_init(rose_api_turns *t, uint32_t max_running, uint32_t max_waiting);

/* OK: the turn begins at once. EMPTY: it must wait, and a place is kept for it: call
 * rose_api_turns_wait as soon as its thread has given it up. FULL: it cannot wait. */
rose_status rose_api_turns_ask(rose_api_turns *t, rose_api_turn *x);
void rose_api_turns_wait(rose_api_turns *t, rose_api_turn *x);

/* Begins a turn that waits, and takes it out of the queue; NULL: none may begin. no_long: none of a
 * job with a long body. A turn that nobody waits for begins at once, because its job only ends. */
rose_api_turn *rose_api_turns_next(rose_api_turns *t, bool no_long);
void rose_api_turns_end(rose_api_turns *t, rose_api_turn *x);

/* Does anybody wait for what this turn, which runs, compiles? */
bool rose_api_turns_wanted(const rose_api_turns *t, const rose_api_turn *x);

#endif
