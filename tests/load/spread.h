/* tests/load/spread.h - percentiles of millions of times in a few kilobytes: a histogram with 32
 * buckets in each octave. A percentile is exact within 2.2 %, min and max are exact. A plain value;
 * all zero is empty. One thread. */
#ifndef ROSE_LOAD_SPREAD_H
#define ROSE_LOAD_SPREAD_H

#include <stdint.h>

#include "base/json.h"

enum { ROSE_SPREAD_SUB = 32, ROSE_SPREAD_OCTAVES = 48 };

typedef struct rose_spread {
    uint64_t n, min, max;
    double sum;
    uint64_t count[ROSE_SPREAD_SUB * ROSE_SPREAD_OCTAVES];
} rose_spread;

void rose_spread_add(rose_spread *s, uint64_t ns); /* larger values count as 2^48 */

/* The p-th percentile (0 .. 100): the middle of its bucket, but within [min, max]; 0 if there are
 * no values. */
uint64_t rose_spread_percentile(const rose_spread *s, double p);

/* Makes {mean, p50, p90, p95, p99, p999, max, min, n} with each value times factor; null if there
 * are no values. */
rose_json *rose_spread_json(const rose_spread *s, double factor);

#endif
