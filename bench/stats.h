/* bench/stats.h - statistics, and the random numbers of the workload generator. No shared state. */
#ifndef ROSE_BENCH_STATS_H
#define ROSE_BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

/* A list of doubles that grows. Zero-initialise it, free it with rose_samples_free. */
typedef struct rose_samples {
    double *v; /* owned */
    size_t n, cap;
} rose_samples;

rose_status rose_samples_add(rose_samples *s, double x); /* NOMEM leaves the list unchanged */
void rose_samples_free(rose_samples *s);                 /* accepts {0}; leaves {0} */

enum { ROSE_SUMMARY_TEXT = 128 };

/* The statistics of a list; all are NaN for n == 0. sd is that of a sample (n - 1); 0 for n
 * == 1. */
typedef struct rose_summary {
    size_t n;
    double mean, sd, min, p50, p90, p95, p99, max;
} rose_summary;

void rose_sort_f64(double *v, size_t n); /* v is sorted and holds no NaN */

/* The p-th percentile (0 .. 100) of sorted[0..n), by linear interpolation between the two nearest
 * ranks, as numpy does by default. NaN for n == 0. */
double rose_percentile(const double *sorted, size_t n, double p);

rose_summary rose_summarise(double *v, size_t n); /* sorts v */

rose_json *rose_number_json(double x); /* null for NaN and infinity */

/* Makes a JSON object {mean, p50, p90, p95, p99, max, std, min, n} of a summary. Each value is
 * multiplied by factor; NaN becomes null. */
rose_json *rose_summary_json(const rose_summary *s, double factor);

/* The decimal places with which a figure has three significant digits; a measured time has no more.
 */
int rose_summary_digits(double x);

/* Writes "p50/p90/p99" with each value multiplied by factor, or "-" for n == 0. Returns out. */
const char *rose_summary_text(const rose_summary *s, double factor, char out[ROSE_SUMMARY_TEXT]);

/* ---- pairs of runs, on and off in turn: did a switch change anything? ---- */

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

/* ---- random numbers ---- */

/* A stream of random numbers. The numbers of one (seed, stream) pair never depend on those of
 * another. */
typedef struct rose_random {
    uint64_t seed;
    uint32_t stream, at;
} rose_random;

uint32_t rose_random_u32(rose_random *r);
double rose_random_uniform(rose_random *r);             /* uniform in (0, 1), both ends excluded */
double rose_random_normal(rose_random *r);              /* mean 0, sd 1 */
double rose_random_exp(rose_random *r);                 /* mean 1 */
double rose_random_gamma(rose_random *r, double shape); /* mean = variance = shape; shape > 0 */

#endif
