/* base/hist.h - a histogram of whole numbers (nanoseconds, tokens) with fixed bounds. One thread
 * adds and any thread reads, with relaxed atomics, no lock and no atomic read-modify-write. A
 * reader may see the last value in its bucket before it is in the sum. Memory: a plain value;
 * all zeros is empty. An add costs a binary search in at most 31 bounds. */
#ifndef ROSE_BASE_HIST_H
#define ROSE_BASE_HIST_H

#include <stdatomic.h>
#include <stdint.h>

enum { ROSE_HIST_MAX = 31 };

typedef struct rose_hist_bounds {
    uint32_t n;                 /* 1 .. ROSE_HIST_MAX */
    uint64_t le[ROSE_HIST_MAX]; /* upper bounds of the buckets, ascending; bucket i takes le[i-1]
                                 * < value <= le[i] */
} rose_hist_bounds;

typedef struct rose_hist {
    _Atomic uint64_t count[ROSE_HIST_MAX + 1]; /* count[n]: above the last bound */
    _Atomic uint64_t sum;
} rose_hist;

extern const rose_hist_bounds rose_hist_latency; /* ns: 50 us .. 2560 s */
extern const rose_hist_bounds rose_hist_step;    /* ns: 1 us .. 10 s */
extern const rose_hist_bounds rose_hist_tokens;  /* 1 2 5 10 .. 1,000,000 */

/* relaxed: one thread writes, and no other data depends on the count */
static inline void rose_count_add(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static inline uint64_t rose_count_get(const _Atomic uint64_t *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void rose_hist_add(rose_hist *h, const rose_hist_bounds *b, uint64_t value)
{
    uint32_t lo = 0, hi = b->n; /* the first bound that is not below value */
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (b->le[mid] < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    rose_count_add(&h->count[lo], 1);
    rose_count_add(&h->sum, value);
}

#endif
