/* api/turns.h - who may compile a grammar next. Compiling takes up to half a second of CPU time, so
 * only a few workers do it at a time, and one client must not delay the others.
 *
 * Each turn belongs to a client: its API key, or its address. Among those that wait, a turn whose
 * client has had its last turn longest ago comes first, then the one that arrived first. A turn
 * begins as a quick one, with a small bound of work. If the bound is too small, the grammar is a
 * costly one and takes a second turn, in which it is compiled again with the whole bound. Quick
 * turns come before costly ones, but for one in nine, and one place is always kept for them. So a
 * common grammar never waits for costly ones, if two may be compiled at a time.
 *
 * While a text is compiled, other turns of the same text wait: then the cache has it.
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

enum { ROSE_API_QUICK_STEPS = 2000000 }; /* of a quick turn: about 20 ms */
enum { ROSE_API_MAX_RUNNING = 64, ROSE_API_CLIENTS = 1024 };

typedef struct rose_api_turn {
    uint64_t client;         /* a hash of what identifies it */
    uint64_t text;           /* a hash of what is compiled */
    const atomic_bool *gone; /* borrowed: nobody waits for the result any more */
    bool costly;
    bool is_long; /* the job has a long body, of which not all workers may have one */
    struct rose_api_turn *next;
} rose_api_turn;

typedef struct rose_api_turns {
    rose_api_turn *first; /* those that wait, in order of arrival */
    uint32_t n_waiting, max_waiting;
    rose_api_turn *running[ROSE_API_MAX_RUNNING];
    uint32_t n_running, n_costly, max_running; /* n_costly: of those that run */
    uint32_t n_passed;                         /* quick turns since a costly one could have begun */
    uint64_t now, served[ROSE_API_CLIENTS];    /* by client: the number of its last turn. Two
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
