/* base/wakeq.h - passes pointers from any threads to one consumer that sleeps in an event loop:
 * a bounded MPSC ring and an eventfd. The consumer watches the fd. Producers push and then
 * signal once for a whole batch. */
#ifndef ROSE_BASE_WAKEQ_H
#define ROSE_BASE_WAKEQ_H

#include "base/ring.h"

typedef struct rose_wakeq rose_wakeq;

rose_status rose_wakeq_create(rose_wakeq **out, uint32_t cap, rose_err *err);
void rose_wakeq_destroy(rose_wakeq *q); /* accepts NULL; no producer is left */

int rose_wakeq_fd(const rose_wakeq *q); /* file descriptor that is readable while a signal is
                                         * pending; for epoll or poll */

rose_status rose_wakeq_push(rose_wakeq *q, void *p); /* any thread; ROSE_E_FULL; does not wake */
void rose_wakeq_signal(rose_wakeq *q);               /* any thread; one write(2) at most */

/* Consumer: clear the signal, then pop until EMPTY. A push after the clear signals again. */
void rose_wakeq_clear(rose_wakeq *q);
rose_status rose_wakeq_pop(rose_wakeq *q, void **p); /* ROSE_E_EMPTY */
/* Consumer that is awake anyway: tells whether a pop would find nothing, whether it was
 * signalled or not. */
bool rose_wakeq_is_empty(const rose_wakeq *q);

/* Consumer without an event loop: sleeps until signalled or until timeout_ns have passed (0 =
 * returns at once). */
void rose_wakeq_wait(rose_wakeq *q, uint64_t timeout_ns);

#endif
