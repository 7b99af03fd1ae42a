/* tests/load/spread.c - see spread.h. Values below 32 have a bucket each. For larger values, the
 * five bits after the highest set bit give the bucket within the octave. */
#include "load/spread.h"

enum { SUB_BITS = 5, LAST = ROSE_SPREAD_SUB * ROSE_SPREAD_OCTAVES - 1 };

static uint32_t bucket_of(uint64_t v)
{
    if (v < ROSE_SPREAD_SUB) return (uint32_t)v;
    const uint32_t high = 63u - (uint32_t)__builtin_clzll(v);
    const uint32_t b = (high - SUB_BITS + 1) * ROSE_SPREAD_SUB +
                       (uint32_t)(v >> (high - SUB_BITS)) % ROSE_SPREAD_SUB;
    return b < LAST ? b : LAST;
}

/* The middle of bucket b. */
static uint64_t value_of(uint32_t b)
{
    if (b < ROSE_SPREAD_SUB) return b;
    const uint32_t shift = b / ROSE_SPREAD_SUB - 1;
    const uint64_t low = (uint64_t)(ROSE_SPREAD_SUB + b % ROSE_SPREAD_SUB) << shift;
    return low + ((UINT64_C(1) << shift) >> 1);
}

void rose_spread_add(rose_spread *s, uint64_t ns)
{
    if (s->n == 0 || ns < s->min) s->min = ns;
    if (ns > s->max) s->max = ns;
    s->n++;
    s->sum += (double)ns;
    s->count[bucket_of(ns)]++;
}

uint64_t rose_spread_percentile(const rose_spread *s, double p)
{
    if (s->n == 0) return 0;
    const double rank = p / 100 * (double)(s->n - 1);
    uint64_t seen = 0;
    for (uint32_t b = 0; b <= LAST; b++) {
        seen += s->count[b];
        if ((double)seen <= rank) continue;
        uint64_t v = value_of(b);
        if (v < s->min) v = s->min;
        return v > s->max ? s->max : v;
    }
    return s->max;
}

rose_json *rose_spread_json(const rose_spread *s, double factor)
{
    static const struct {
        const char *key;
        double p;
    } all[] = {{"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"p999", 99.9}};
    rose_json *o = rose_json_object();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rose_json_set_new(
            o, all[i].key,
            s->n == 0 ? rose_json_null()
                      : rose_json_real((double)rose_spread_percentile(s, all[i].p) * factor));
    const double mean = s->n > 0 ? s->sum / (double)s->n : 0;
    rose_json_set_new(o, "mean", s->n == 0 ? rose_json_null() : rose_json_real(mean * factor));
    rose_json_set_new(o, "min",
                      s->n == 0 ? rose_json_null() : rose_json_real((double)s->min * factor));
    rose_json_set_new(o, "max",
                      s->n == 0 ? rose_json_null() : rose_json_real((double)s->max * factor));
    rose_json_set_new(o, "n", rose_json_integer((int64_t)s->n));
    return o;
}
