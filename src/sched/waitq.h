/* sched/waitq.h - the waiting sequences in order of (key, order), as a skip list over handles.
 * Inserting, removing any sequence and looking at the first few are cheap however many wait.
 * Threads: owned by the engine thread.  Memory: allocates in _create only, 48 bytes a handle. */
#ifndef ROSE_SCHED_WAITQ_H
#define ROSE_SCHED_WAITQ_H

#include <stdbool.h>
#include <stdint.h>

#define ROSE_WAITQ_END UINT32_MAX

enum { ROSE_WAITQ_LEVELS = 8 };

typedef struct rose_waitq_node {
    int64_t key;
    uint64_t order; /* unique order number: of two sequences with equal keys, the one that came
                     * first goes first */
    uint32_t next[ROSE_WAITQ_LEVELS];
} rose_waitq_node;

typedef struct rose_waitq {
    rose_waitq_node *nodes; /* [n + 1], owned; the last one is the head */
    uint32_t n, n_waiting;
} rose_waitq;

bool rose_waitq_create(rose_waitq *q, uint32_t n); /* handles 0 .. n - 1; false: out of memory */
void rose_waitq_destroy(rose_waitq *q);

void rose_waitq_insert(rose_waitq *q, uint32_t i, int64_t key, uint64_t order); /* O(log n) */
void rose_waitq_remove(rose_waitq *q, uint32_t i);                              /* O(log n) */

uint32_t rose_waitq_first(const rose_waitq *q); /* ROSE_WAITQ_END: empty */
uint32_t rose_waitq_next(const rose_waitq *q, uint32_t i);

#endif
