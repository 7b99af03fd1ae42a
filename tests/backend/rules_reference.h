/* tests/backend/rules_reference.h - reports and rules of an output, naively: log-probabilities in
 * double by a full sort, the rules one by one in fp32 as backend.h words them; and random ones.
 * Header-only: each test is one program. */
#ifndef TESTS_BACKEND_RULES_REFERENCE_H
#define TESTS_BACKEND_RULES_REFERENCE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

enum { MAX_VOCAB = 4099 };

static uint64_t g_state;

static inline uint32_t rnd(uint32_t n)
{
    g_state = g_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(g_state >> 33) % n;
}

static inline float rnd_float(float lo, float hi)
{
    return lo + (hi - lo) * (float)rnd(1 << 20) / (float)(1 << 20);
}

static const float *g_row;

static inline int by_rank(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (g_row[x] > g_row[y] || g_row[x] < g_row[y]) return g_row[x] > g_row[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static inline double naive_logprob(const float *x, uint32_t n, uint32_t id)
{
    double max = (double)-INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((double)x[i] > max) max = (double)x[i];
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return (double)x[id] - max - log(sum);
}

static inline uint32_t naive_rank(const float *x, uint32_t n, uint32_t id)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < n; i++)
        rank += x[i] > x[id];
    return rank;
}

static inline void random_row(float *x, uint32_t n)
{
    float width = rnd(3) == 0 ? 0.01f : 12.0f;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = rnd_float(-width, width);
        if (rnd(4) == 0) x[i] = roundf(x[i]); /* equal logits */
        if (rnd(50) == 0) x[i] = -INFINITY;
    }
    x[rnd(n)] = 1;
}

static inline void check_report(const float *x, uint32_t n, const rose_logprob *r, uint32_t n_top)
{
    static uint32_t order[MAX_VOCAB];
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    g_row = x;
    qsort(order, n, sizeof *order, by_rank);
    for (uint32_t i = 0; i <= n_top; i++) {
        double want = naive_logprob(x, n, r[i].id), got = (double)r[i].logprob;
        if (i > 0) assert_int_equal(r[i].id, order[i - 1]);
        assert_int_equal(r[i].rank, i > 0 ? i : naive_rank(x, n, r[i].id));
        if (isinf(want))
            assert_true(isinf(got) && got < 0);
        else if (!(fabs(got - want) <= 2e-6 + 1e-6 * fabs(want)))
            fail_msg("id %u of %u: %.9g, not %.9g", r[i].id, n, got, want);
    }
}

typedef struct rule_set {
    uint32_t allowed[64], banned[16], bias_ids[32], seen_ids[64], seen_counts[64];
    float bias[32];
    uint32_t mask[(MAX_VOCAB + 31) / 32];
    rose_output_rules u;
} rule_set;

/* n distinct ids below vocab. */
static inline uint32_t distinct(uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint32_t have = 0;
    if (n > vocab) n = vocab;
    while (have < n) {
        uint32_t id = rnd(vocab), i = 0;
        while (i < have && ids[i] != id)
            i++;
        if (i == have) ids[have++] = id;
    }
    return n;
}

static inline void random_rules(rule_set *s, uint32_t vocab)
{
    memset(s, 0, sizeof *s);
    s->u = (rose_output_rules){.score_id = ROSE_TOKEN_NONE,
                               .allowed = s->allowed,
                               .banned = s->banned,
                               .bias_ids = s->bias_ids,
                               .bias = s->bias,
                               .seen_ids = s->seen_ids,
                               .seen_counts = s->seen_counts,
                               .repetition = rnd(2) ? rnd_float(0.5f, 2) : 1,
                               .frequency = rnd(2) ? rnd_float(-2, 2) : 0,
                               .presence = rnd(2) ? rnd_float(-2, 2) : 0};
    if (rnd(3) == 0) {
        const uint32_t one_in = 1 + rnd(rnd(2) ? 4 : 2 * vocab); /* nearly all, or nearly none */
        s->u.mask = s->mask;
        for (uint32_t id = 0; id < vocab; id++)
            if (rnd(one_in) == 0) s->mask[id / 32] |= 1u << id % 32;
    }
    if (rnd(3) == 0) s->u.n_allowed = distinct(s->allowed, 1 + rnd(64), vocab);
    if (rnd(2) == 0) s->u.n_banned = distinct(s->banned, rnd(16), vocab);
    if (rnd(2) == 0) s->u.n_bias = distinct(s->bias_ids, rnd(32), vocab);
    if (rnd(2) == 0) s->u.n_seen = distinct(s->seen_ids, rnd(64), vocab);
    for (uint32_t i = 0; i < s->u.n_bias; i++)
        s->bias[i] = rnd_float(-100, 100);
    for (uint32_t i = 0; i < s->u.n_seen; i++)
        s->seen_counts[i] = rnd(4);
}

static inline void apply_naively(const rule_set *s, const float *x, uint32_t n, float *y)
{
    for (uint32_t id = 0; id < n; id++) {
        volatile float v = x[id]; /* one rounding at a time */
        bool allowed = s->u.n_allowed == 0;
        for (uint32_t i = 0; i < s->u.n_allowed; i++)
            allowed = allowed || s->allowed[i] == id;
        if (s->u.mask != NULL && (s->mask[id / 32] >> id % 32 & 1) == 0) allowed = false;
        if (!allowed) v = -INFINITY;
        for (uint32_t i = 0; i < s->u.n_banned; i++)
            if (s->banned[i] == id) v = -INFINITY;
        for (uint32_t i = 0; i < s->u.n_bias; i++)
            if (s->bias_ids[i] == id) v = v + s->bias[i];
        for (uint32_t i = 0; i < s->u.n_seen; i++) {
            if (s->seen_ids[i] != id) continue;
            v = v > 0 ? v / s->u.repetition : v * s->u.repetition;
            if (s->seen_counts[i] == 0) continue;
            volatile float by = s->u.frequency * (float)s->seen_counts[i];
            v = v - by;
            v = v - s->u.presence;
        }
        y[id] = v;
    }
}

#endif
