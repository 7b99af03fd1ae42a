/* bench/verdict.c - see verdict.h. */
#include "bench/verdict.h"

#include <math.h>
#include <string.h>

#include "bench/stats.h"

/* Sorts v; returns (max - min) / 2 / median. */
static double half_spread(double *v, uint32_t n)
{
    rose_sort_f64(v, n);
    return (v[n - 1] - v[0]) / rose_percentile(v, n, 50) / 2;
}

rose_verdict rose_verdict_make(const double *on, const double *off, uint32_t n)
{
    double ratio[ROSE_MAX_PAIRS], a[ROSE_MAX_PAIRS], b[ROSE_MAX_PAIRS];
    rose_verdict v;
    if (n > ROSE_MAX_PAIRS) n = ROSE_MAX_PAIRS;
    memcpy(a, on, n * sizeof *a);
    memcpy(b, off, n * sizeof *b);
    for (uint32_t i = 0; i < n; i++)
        ratio[i] = off[i] / on[i];
    rose_sort_f64(ratio, n);
    v.ratio = rose_percentile(ratio, n, 50);
    v.min = ratio[0];
    v.max = ratio[n - 1];
    v.noise = fmax(half_spread(a, n), half_spread(b, n));
    v.changed = n >= ROSE_MIN_PAIRS && (a[n - 1] < b[0] || b[n - 1] < a[0]);
    return v;
}
