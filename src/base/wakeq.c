/* base/wakeq.c - see wakeq.h. A producer writes the eventfd only when no signal is pending, so a
 * burst of signals costs one system call. */
#include "base/wakeq.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct rose_wakeq {
    rose_mpsc *ring;
    int fd;
    _Atomic int pending; /* 1 from a signal until the consumer clears it */
};

rose_status rose_wakeq_create(rose_wakeq **out, uint32_t cap, rose_err *err)
{
    *out = NULL;
    rose_wakeq *q = calloc(1, sizeof *q);
    if (q == NULL) return rose_fail(err, ROSE_E_NOMEM, "wake queue: out of memory");
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        rose_fail(err, ROSE_E_IO, "eventfd: %s", strerror(errno));
        rose_wakeq_destroy(q);
        return ROSE_E_IO;
    }
    rose_status st = rose_mpsc_create(&q->ring, cap, sizeof(void *));
    if (st != ROSE_OK) {
        rose_fail(err, st, "wake queue of %u entries: %s", cap, rose_status_name(st));
        rose_wakeq_destroy(q);
        return st;
    }
    *out = q;
    return ROSE_OK;
}

void rose_wakeq_destroy(rose_wakeq *q)
{
    if (q == NULL) return;
    if (q->fd >= 0) close(q->fd);
    rose_mpsc_destroy(q->ring);
    free(q);
}

int rose_wakeq_fd(const rose_wakeq *q)
{
    return q->fd;
}

rose_status rose_wakeq_push(rose_wakeq *q, void *p)
{
    return rose_mpsc_push(q->ring, &p);
}

void rose_wakeq_signal(rose_wakeq *q)
{
    /* acq_rel: if the consumer's clear reads the 1 that we write here, the consumer sees our
     * pushes. If the consumer cleared earlier, this write signals it */
    if (atomic_exchange_explicit(&q->pending, 1, memory_order_acq_rel) != 0) return;
    uint64_t one = 1;
    /* EAGAIN means the counter is at its maximum: the fd is readable, which is all we want */
    if (write(q->fd, &one, sizeof one) < 0 && errno != EAGAIN) abort();
}

void rose_wakeq_clear(rose_wakeq *q)
{
    uint64_t n;
    if (read(q->fd, &n, sizeof n) < 0 && errno != EAGAIN && errno != EINTR) abort();
    /* acq_rel: after this exchange a producer signals again; we then pop and see everything
     * pushed before */
    atomic_exchange_explicit(&q->pending, 0, memory_order_acq_rel);
}

rose_status rose_wakeq_pop(rose_wakeq *q, void **p)
{
    return rose_mpsc_pop(q->ring, p);
}

bool rose_wakeq_is_empty(const rose_wakeq *q)
{
    return rose_mpsc_is_empty(q->ring);
}

void rose_wakeq_wait(rose_wakeq *q, uint64_t timeout_ns)
{
    struct pollfd pfd = {.fd = q->fd, .events = POLLIN};
    struct timespec ts = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    (void)ppoll(&pfd, 1, &ts, NULL); /* if a signal interrupts the wait, the wait is only shorter:
                                      * the caller loops */
}
