/* base/ring.c - see ring.h. The data of a cell is plain memory. One release store publishes it,
 * and one acquire load takes it. */
#include "base/ring.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64, MAX_CAP = 1u << 24 };

static bool round_cap(uint32_t *cap)
{
    if (*cap == 0 || *cap > MAX_CAP) return false;
    uint32_t c = 2;
    while (c < *cap)
        c *= 2;
    *cap = c;
    return true;
}

struct rose_spsc {
    alignas(CACHE_LINE) _Atomic uint32_t tail; /* next to write; producer's */
    uint32_t head_seen;                        /* producer's last view of head */
    alignas(CACHE_LINE) _Atomic uint32_t head; /* next to read; consumer's */
    uint32_t tail_seen;                        /* consumer's last view of tail */
    alignas(CACHE_LINE) uint32_t cap;
    uint32_t elem_size;
    unsigned char cells[];
};

rose_status rose_spsc_create(rose_spsc **out, uint32_t cap, uint32_t elem_size)
{
    *out = NULL;
    if (!round_cap(&cap) || elem_size == 0 || elem_size > 4096) return ROSE_E_INVAL;
    size_t bytes = sizeof(rose_spsc) + (size_t)cap * elem_size;
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    rose_spsc *r = aligned_alloc(CACHE_LINE, bytes);
    if (r == NULL) return ROSE_E_NOMEM;
    atomic_init(&r->tail, 0);
    atomic_init(&r->head, 0);
    r->head_seen = r->tail_seen = 0;
    r->cap = cap;
    r->elem_size = elem_size;
    *out = r;
    return ROSE_OK;
}

void rose_spsc_destroy(rose_spsc *r)
{
    free(r);
}

rose_status rose_spsc_push(rose_spsc *r, const void *elem)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed); /* only we write it */
    if (tail - r->head_seen == r->cap) {
        /* acquire: pairs with the release in pop; the cell we reuse has been read */
        r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire);
        if (tail - r->head_seen == r->cap) return ROSE_E_FULL;
    }
    memcpy(r->cells + (size_t)(tail & (r->cap - 1)) * r->elem_size, elem, r->elem_size);
    /* release: pairs with the acquire in pop; the cell is complete before it is visible */
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return ROSE_OK;
}

rose_status rose_spsc_pop(rose_spsc *r, void *elem)
{
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed); /* only we write it */
    if (head == r->tail_seen) {
        /* acquire: pairs with the release in push */
        r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
        if (head == r->tail_seen) return ROSE_E_EMPTY;
    }
    memcpy(elem, r->cells + (size_t)(head & (r->cap - 1)) * r->elem_size, r->elem_size);
    /* release: pairs with the acquire in push; we have read the cell before it is reused */
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return ROSE_OK;
}

/* Cell i is free for ticket t when seq[i] == t, and full when seq[i] == t + 1. */
struct rose_mpsc {
    alignas(CACHE_LINE) _Atomic uint32_t tail; /* next ticket; producers compete for it */
    alignas(CACHE_LINE) uint32_t head;         /* consumer's alone */
    alignas(CACHE_LINE) uint32_t cap;
    uint32_t elem_size;
    _Atomic uint32_t *seq; /* [cap], stored after the struct */
    unsigned char *cells;  /* [cap][elem_size], stored after seq */
};

rose_status rose_mpsc_create(rose_mpsc **out, uint32_t cap, uint32_t elem_size)
{
    *out = NULL;
    if (!round_cap(&cap) || elem_size == 0 || elem_size > 4096) return ROSE_E_INVAL;
    size_t seq_bytes = ((size_t)cap * sizeof(uint32_t) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    size_t bytes = sizeof(rose_mpsc) + seq_bytes + (size_t)cap * elem_size;
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    rose_mpsc *r = aligned_alloc(CACHE_LINE, bytes);
    if (r == NULL) return ROSE_E_NOMEM;
    atomic_init(&r->tail, 0);
    r->head = 0;
    r->cap = cap;
    r->elem_size = elem_size;
    r->seq = (_Atomic uint32_t *)(void *)(r + 1);
    r->cells = (unsigned char *)(r + 1) + seq_bytes;
    for (uint32_t i = 0; i < cap; i++)
        atomic_init(&r->seq[i], i);
    *out = r;
    return ROSE_OK;
}

void rose_mpsc_destroy(rose_mpsc *r)
{
    free(r);
}

rose_status rose_mpsc_push(rose_mpsc *r, const void *elem)
{
    uint32_t t = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (;;) {
        uint32_t i = t & (r->cap - 1);
        /* acquire: pairs with the release in pop; the consumer has finished with the cell */
        uint32_t seq = atomic_load_explicit(&r->seq[i], memory_order_acquire);
        int32_t d = (int32_t)(seq - t);
        if (d < 0) return ROSE_E_FULL;
        if (d > 0) { /* another producer took ticket t */
            t = atomic_load_explicit(&r->tail, memory_order_relaxed);
            continue;
        }
        /* relaxed: the ticket orders nothing; the cell's seq does */
        if (!atomic_compare_exchange_weak_explicit(&r->tail, &t, t + 1, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        memcpy(r->cells + (size_t)i * r->elem_size, elem, r->elem_size);
        /* release: pairs with the acquire in pop */
        atomic_store_explicit(&r->seq[i], t + 1, memory_order_release);
        return ROSE_OK;
    }
}

rose_status rose_mpsc_pop(rose_mpsc *r, void *elem)
{
    uint32_t i = r->head & (r->cap - 1);
    /* acquire: pairs with the release in push */
    if (atomic_load_explicit(&r->seq[i], memory_order_acquire) != r->head + 1) return ROSE_E_EMPTY;
    memcpy(elem, r->cells + (size_t)i * r->elem_size, r->elem_size);
    /* release: pairs with the acquire in push; free for the ticket one round later */
    atomic_store_explicit(&r->seq[i], r->head + r->cap, memory_order_release);
    r->head++;
    return ROSE_OK;
}

bool rose_mpsc_is_empty(const rose_mpsc *r)
{
    /* relaxed: who wants the element pops it */
    return atomic_load_explicit(&r->seq[r->head & (r->cap - 1)], memory_order_relaxed) !=
           r->head + 1;
}
