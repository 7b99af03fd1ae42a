/* bench/stats.c - see stats.h. */
#include "bench/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

rose_status rose_samples_add(rose_samples *s, double x)
{
    if (s->n == s->cap) {
        size_t cap = s->cap == 0 ? 256 : s->cap * 2;
        double *v = cap > SIZE_MAX / sizeof *v ? NULL : realloc(s->v, cap * sizeof *v);
        if (v == NULL) return ROSE_E_NOMEM;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = x;
    return ROSE_OK;
}

void rose_samples_free(rose_samples *s)
{
    free(s->v);
    *s = (rose_samples){0};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void rose_sort_f64(double *v, size_t n)
{
    if (n > 1) qsort(v, n, sizeof *v, by_value);
}

double rose_percentile(const double *sorted, size_t n, double p)
{
    if (n == 0) return (double)NAN;
    double at = p / 100.0 * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return sorted[n - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

rose_summary rose_summarise(double *v, size_t n)
{
    const double nan = (double)NAN;
    rose_summary s = {0, nan, nan, nan, nan, nan, nan, nan, nan};
    double sum = 0, squares = 0;
    if (n == 0) return s;
    rose_sort_f64(v, n);
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    s.n = n;
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (v[i] - s.mean) * (v[i] - s.mean);
    s.sd = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    s.min = v[0];
    s.p50 = rose_percentile(v, n, 50);
    s.p90 = rose_percentile(v, n, 90);
    s.p95 = rose_percentile(v, n, 95);
    s.p99 = rose_percentile(v, n, 99);
    s.max = v[n - 1];
    return s;
}

rose_json *rose_number_json(double x)
{
    return isfinite(x) ? rose_json_real(x) : rose_json_null();
}

rose_json *rose_summary_json(const rose_summary *s, double factor)
{
    return rose_json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "mean", rose_number_json(s->mean * factor),
        "p50", rose_number_json(s->p50 * factor), "p90", rose_number_json(s->p90 * factor), "p95",
        rose_number_json(s->p95 * factor), "p99", rose_number_json(s->p99 * factor), "max",
        rose_number_json(s->max * factor), "std", rose_number_json(s->sd * factor), "min",
        rose_number_json(s->min * factor), "n", (int64_t)s->n);
}

int rose_summary_digits(double x)
{
    const double a = fabs(x);
    return a >= 99.95 ? 0 : a >= 9.995 ? 1 : a >= 0.9995 ? 2 : 3;
}

const char *rose_summary_text(const rose_summary *s, double factor, char out[ROSE_SUMMARY_TEXT])
{
    const double p[3] = {s->p50 * factor, s->p90 * factor, s->p99 * factor};
    snprintf(out, ROSE_SUMMARY_TEXT, "-");
    if (s->n > 0)
        snprintf(out, ROSE_SUMMARY_TEXT, "%.*f/%.*f/%.*f", rose_summary_digits(p[0]), p[0],
                 rose_summary_digits(p[1]), p[1], rose_summary_digits(p[2]), p[2]);
    return out;
}

/* Sorts v; returns (max - min) / 2 / median. */
static double half_spread(double *v, uint32_t n)
{
    rose_sort_f64(v, n);
    return (v[n - 1] - v[0]) / rose_percentile(v, n, 50) / 2;
}

rose_verdict rose_verdict_make(const double *on, const double *off, uint32_t n)
{
    double ratio[ROSE_MAX_PAIRS] = {0}, a[ROSE_MAX_PAIRS], b[ROSE_MAX_PAIRS];
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

uint32_t rose_random_u32(rose_random *r)
{
    const uint32_t ctr[4] = {r->at++, r->stream, 0x62656e63u,
                             0}; /* "benc": other numbers than the sampler's for the same seed */
    const uint32_t key[2] = {(uint32_t)r->seed, (uint32_t)(r->seed >> 32)};
    uint32_t out[4];
    rose_philox4x32(ctr, key, out);
    return out[0];
}

double rose_random_uniform(rose_random *r)
{
    return ((double)rose_random_u32(r) + 0.5) * 0x1p-32;
}

double rose_random_normal(rose_random *r)
{
    double u = rose_random_uniform(r), v = rose_random_uniform(r); /* Box-Muller transform */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

double rose_random_exp(rose_random *r)
{
    return -log(rose_random_uniform(r));
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. */
double rose_random_gamma(rose_random *r, double shape)
{
    if (shape < 1.0) {
        double u = rose_random_uniform(r);
        return rose_random_gamma(r, shape + 1.0) * pow(u, 1.0 / shape);
    }
    const double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        double x = rose_random_normal(r), v = 1.0 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(rose_random_uniform(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}
