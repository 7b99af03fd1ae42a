/* bench/verdict.h - decides from pairs of runs, on and off in turn, whether a switch changed
 * anything. */
#ifndef ROSE_BENCH_VERDICT_H
#define ROSE_BENCH_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rose_verdict {
    double ratio;    /* median of off[i] / on[i] */
    double min, max; /* least and largest ratio of the pairs */
    /* noise of equal runs, relative: the larger (max - min) / 2 / median of both sides */
    double noise;
    bool changed; /* all `on` values are smaller than all `off` values, or all are larger */
} rose_verdict;

enum { ROSE_MAX_PAIRS = 64, ROSE_MIN_PAIRS = 3 };

/* on[i] and off[i] are positive; n pairs (1 .. ROSE_MAX_PAIRS). If the switch does nothing,
 * `changed` is true by chance once in 10 times for 3 pairs, and once in 126 times for 5. It is
 * never true for fewer than 3 pairs. */
rose_verdict rose_verdict_make(const double *on, const double *off, uint32_t n);

#endif
