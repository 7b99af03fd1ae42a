/* base/ring.h - the two bounded lock-free queues between threads. Both carry elements of a fixed
 * size and never allocate after create. When full, they refuse (ROSE_E_FULL) instead of waiting.
 * The indices are on separate cache lines; in ring.c each atomic names the one it pairs with. */
#ifndef ROSE_BASE_RING_H
#define ROSE_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* rose_spsc: a queue for one producer thread and one consumer thread. */
typedef struct rose_spsc rose_spsc;

/* cap elements of elem_size bytes; cap is rounded up to a power of two (2 .. 2^24). */
rose_status rose_spsc_create(rose_spsc **out, uint32_t cap, uint32_t elem_size);
void rose_spsc_destroy(rose_spsc *r); /* accepts NULL; both sides have stopped */

rose_status rose_spsc_push(rose_spsc *r, const void *elem); /* producer; ROSE_E_FULL */
rose_status rose_spsc_pop(rose_spsc *r, void *elem);        /* consumer; ROSE_E_EMPTY */

/* rose_mpsc: a queue for any number of producers and one consumer (Vyukov's bounded queue: a
 * sequence number per cell). The elements of one producer keep their order. */
typedef struct rose_mpsc rose_mpsc;

rose_status rose_mpsc_create(rose_mpsc **out, uint32_t cap, uint32_t elem_size);
void rose_mpsc_destroy(rose_mpsc *r);
rose_status rose_mpsc_push(rose_mpsc *r, const void *elem); /* any thread; ROSE_E_FULL */
rose_status rose_mpsc_pop(rose_mpsc *r, void *elem);        /* the consumer; ROSE_E_EMPTY */
bool rose_mpsc_is_empty(const rose_mpsc *r);                /* the consumer: pop would say so now */

#endif
