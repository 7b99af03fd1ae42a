/* bench/verdict.h - is a switch worth anything? Pairs of runs, on and off, taken in turn. */
#ifndef ROSE_BENCH_VERDICT_H
#define ROSE_BENCH_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rose_verdict {
    double ratio;    /* median of off[i] / on[i] */
    double min, max; /* of the pairs */
    double noise;    /* relative: the larger half spread of equal runs, (max - min) / 2 / median */
    bool changed;    /* every `on` value lies on one side of every `off` value */
} rose_verdict;

enum { ROSE_MAX_PAIRS = 64, ROSE_MIN_PAIRS = 3 };

/* on[i] and off[i] > 0, n pairs (1 .. ROSE_MAX_PAIRS). If the switch did nothing, `changed` would
 * come out by chance once in 10 times for 3 pairs, once in 126 for 5; fewer than 3 never say it. */
rose_verdict rose_verdict_make(const double *on, const double *off, uint32_t n);

#endif
