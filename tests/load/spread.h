/* tests/load/spread.h - percentiles of millions of times in a few kilobytes: a histogram with 32
 * buckets an octave, so a percentile is right within 2.2 %. Min and max are exact. A plain value,
 * zero is empty. One thread. */
#ifndef ROSE_LOAD_SPREAD_H
#define ROSE_LOAD_SPREAD_H

#include <jansson.h>
#include <stdint.h>

enum { ROSE_SPREAD_SUB = 32, ROSE_SPREAD_OCTAVES = 48 };

typedef struct rose_spread {
    uint64_t n, min, max;
    double sum;
    uint64_t count[ROSE_SPREAD_SUB * ROSE_SPREAD_OCTAVES];
} rose_spread;

void rose_spread_add(rose_spread *s, uint64_t ns); /* beyond 2^48 counts as that */

/* The p-th percentile (0 .. 100): the middle of its bucket, within [min, max]; 0 when empty. */
uint64_t rose_spread_percentile(const rose_spread *s, double p);

/* {mean, p50, p90, p95, p99, p999, max, min, n}, values times factor; null where empty. */
json_t *rose_spread_json(const rose_spread *s, double factor);

#endif
