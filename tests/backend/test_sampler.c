/* tests/backend/test_sampler.c - the sampler against exact probabilities, computed by a full sort
 * in double precision: chi-square for every way through the code, and the edges by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/sampler.h"
#include "base/philox.h"

static rose_cpu_kernels g_kernels;
static uint64_t g_seed = 20261121;

static uint32_t pick(const float *x, uint32_t n, const rose_sampling *p, uint32_t position)
{
    static void *scratch;
    static size_t size;
    size_t need = (rose_sampler_scratch(n) + 63) / 64 * 64;
    if (need > size) {
        free(scratch);
        scratch = aligned_alloc(64, need);
        assert_non_null(scratch);
        size = need;
    }
    memset(scratch, 0xA5, size < 4096 ? size : 4096); /* nothing may be expected of it */
    return rose_sampler_pick(&g_kernels, x, n, p, position, scratch);
}

/* ---- exact probabilities ---- */

typedef struct entry {
    double logit;
    uint32_t id;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void exact(const float *x, uint32_t n, const rose_sampling *p, double *prob)
{
    entry *e = calloc(n, sizeof *e);
    double *w = calloc(n, sizeof *w), total = 0, mass = 0;
    uint32_t kept = 0;
    assert_true(e != NULL && w != NULL);
    for (uint32_t i = 0; i < n; i++) {
        e[i] = (entry){isnan(x[i]) ? (double)-INFINITY : (double)x[i], i};
        prob[i] = 0;
    }
    qsort(e, n, sizeof *e, by_rank);
    for (; kept < n && e[kept].logit > (double)-INFINITY; kept++) {
        w[kept] = exp((e[kept].logit - e[0].logit) / (double)p->temperature);
        if (w[kept] < (double)p->min_p || (p->top_k > 0 && kept == p->top_k)) break;
        total += w[kept];
    }
    for (uint32_t i = 0; i < kept && p->top_p < 1; i++) {
        mass += w[i];
        if (mass >= (double)p->top_p * total) {
            total = mass;
            kept = i + 1;
        }
    }
    for (uint32_t i = 0; i < kept; i++)
        prob[e[i].id] = w[i] / total;
    free(e);
    free(w);
}

/* Upper tail of chi-square as a normal deviate (Wilson and Hilferty). */
static double chi_deviate(double chi2, double df)
{
    return (cbrt(chi2 / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
}

/* Draw n_draws ids at successive positions; compare their counts with the exact probabilities. */
static void check(const char *name, const float *x, uint32_t n, const rose_sampling *p,
                  uint32_t n_draws)
{
    double *prob = calloc(n, sizeof *prob), chi2 = 0, rest_want = 0;
    uint32_t *got = calloc(n, sizeof *got), n_cells = 0, rest_got = 0;
    assert_true(prob != NULL && got != NULL);
    exact(x, n, p, prob);
    for (uint32_t i = 0; i < n_draws; i++) {
        uint32_t id = pick(x, n, p, i);
        if (id >= n || prob[id] <= 0)
            fail_msg("%s: T %g top_k %u top_p %g min_p %g: id %u has probability 0", name,
                     (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, id);
        got[id]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        double want = prob[i] * n_draws;
        if (want < 8) { /* small cells together */
            rest_want += want;
            rest_got += got[i];
            continue;
        }
        chi2 += (got[i] - want) * (got[i] - want) / want;
        n_cells++;
    }
    if (rest_want >= 8) {
        chi2 += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
        n_cells++;
    }
    if (n_cells > 1 && chi_deviate(chi2, n_cells - 1) > 5) /* 1 in 3.5 million for a right one */
        fail_msg("%s: T %g top_k %u top_p %g min_p %g: chi-square %.1f in %u cells", name,
                 (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, chi2,
                 n_cells);
    free(prob);
    free(got);
}

typedef enum dist { WIDE, PEAKED, TIES, FLAT, HOLES, N_DISTS } dist;
static const char *const g_dists[] = {"wide", "peaked", "ties", "flat", "holes"};

static void fill(float *x, uint32_t n, dist d)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = rose_philox_uniform(g_seed, i, 1), b = rose_philox_uniform(g_seed, i, 2);
        float normal = sqrtf(-2 * logf(1 - a)) * cosf(6.2831853f * b);
        switch (d) {
        case WIDE:
            x[i] = 2 * normal;
            break;
        case PEAKED:
            x[i] = 4 * normal - (a > 0.01f ? 12 : 0);
            break;
        case TIES:
            x[i] = floorf(4 * b) - 2;
            if (x[i] == 0 && a > 0.5f) x[i] = -0.0f;
            break;
        case FLAT:
            x[i] = 3;
            break;
        case HOLES:
        case N_DISTS:
            x[i] = a < 0.3f ? NAN : a < 0.6f ? -INFINITY : normal;
            break;
        }
    }
    if (d == HOLES) x[n - 1] = 1; /* at least one can be chosen */
}

static void sweep(uint32_t n, uint32_t n_draws)
{
    static const float temperatures[] = {0.6f, 1.0f, 2.5f}, top_ps[] = {1.0f, 0.9f, 0.45f, 0.01f};
    static const float min_ps[] = {0, 0.03f, 1};
    const uint32_t top_ks[] = {0, 1, 3, 40, n / 2 + 1, n + 5};
    float *x = calloc(n, sizeof *x);
    uint32_t combo = 0;
    assert_non_null(x);
    for (dist d = 0; d < N_DISTS; d++) {
        fill(x, n, d);
        for (int i = 0; i < 3 * 4 * 3 * 6; i++) {
            rose_sampling p = {.temperature = temperatures[i % 3],
                               .top_p = top_ps[i / 3 % 4],
                               .min_p = min_ps[i / 12 % 3],
                               .top_k = top_ks[i / 36],
                               .seed = g_seed + combo++};
            check(g_dists[d], x, n, &p, n_draws);
        }
    }
    free(x);
}

static void test_exact_small(void **state)
{
    (void)state;
    sweep(1, 20);
    sweep(2, 300);
    sweep(17, 800);
    sweep(300, 400);
}

static void test_exact_large(void **state)
{
    (void)state;
    sweep(1500, 80);
    sweep(9001, 8); /* over 70 blocks: top_k 3 and top_p take the short ways */
}

static void test_long_run(void **state)
{
    (void)state;
    float x[200];
    fill(x, 200, WIDE);
    rose_sampling p = {.temperature = 1, .top_p = 0.95f, .top_k = 50, .seed = g_seed};
    check("long", x, 200, &p, 60000);
    p = (rose_sampling){.temperature = 1.3f, .top_p = 1, .seed = g_seed};
    check("long", x, 200, &p, 60000);
}

static void test_greedy_and_ties(void **state)
{
    (void)state;
    const float x[] = {1, NAN, 5, -INFINITY, 5, 5, -3};
    rose_sampling p = {.temperature = 0, .top_p = 1};
    assert_int_equal(pick(x, 7, &p, 0), 2);
    for (uint32_t i = 0; i < 50; i++) { /* equal logits: the lower id has the rank */
        p = (rose_sampling){.temperature = 1, .top_p = 1, .top_k = 1, .seed = i};
        assert_int_equal(pick(x, 7, &p, i), 2);
        p = (rose_sampling){.temperature = 1, .top_p = 0.001f, .seed = i};
        assert_int_equal(pick(x, 7, &p, i), 2);
        p = (rose_sampling){.temperature = 1e-40f, .top_p = 1, .seed = i}; /* 1/T is infinite */
        assert_int_equal(pick(x, 7, &p, i), 2);
        p = (rose_sampling){.temperature = 1, .top_p = 1, .top_k = 2, .seed = i};
        uint32_t id = pick(x, 7, &p, i);
        assert_true(id == 2 || id == 4);
    }
    const float zeros[] = {-0.0f, 0.0f, -0.0f};
    p = (rose_sampling){.temperature = 1, .top_p = 1, .top_k = 1};
    assert_int_equal(pick(zeros, 3, &p, 0), 0);
}

static void test_not_finite(void **state)
{
    (void)state;
    const float none[] = {NAN, -INFINITY, NAN, -INFINITY};
    const float inf[] = {3, NAN, INFINITY, INFINITY};
    const rose_sampling all[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_p = 0.5f},
        {.temperature = 1, .top_p = 1, .top_k = 2},
        {.temperature = 1, .top_p = 0.5f, .min_p = 0.5f, .top_k = 3},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(pick(none, 4, &all[i], 0), ROSE_TOKEN_NONE);
        assert_int_equal(pick(none, 1, &all[i], 0), ROSE_TOKEN_NONE);
        assert_int_equal(pick(inf, 4, &all[i], 0), 2);
    }
}

/* A number depends on (seed, position) alone, and does depend on both. */
static void test_keys(void **state)
{
    (void)state;
    float x[300];
    uint32_t ids[200], n_same_position = 0, n_same_seed = 0;
    fill(x, 300, WIDE);
    for (uint32_t i = 0; i < 200; i++) {
        rose_sampling p = {.temperature = 2, .top_p = 1, .seed = 42};
        ids[i] = pick(x, 300, &p, i);
        if (i > 0 && ids[i] == ids[i - 1]) n_same_position++;
    }
    for (uint32_t i = 200; i-- > 0;) {
        rose_sampling p = {.temperature = 2, .top_p = 1, .seed = 43};
        if (pick(x, 300, &p, i) == ids[i]) n_same_seed++;
        p.seed = 42;
        assert_int_equal(pick(x, 300, &p, i), ids[i]);
    }
    assert_true(n_same_position < 60);
    assert_true(n_same_seed < 60);
}

static void test_levels_agree(void **state)
{
    (void)state;
    rose_cpu_kernels best = g_kernels, scalar;
    static float x[5000];
    rose_cpu_kernels_init(&scalar, ROSE_ISA_SCALAR);
    for (dist d = 0; d < N_DISTS; d++) {
        fill(x, 5000, d);
        for (uint32_t i = 0; i < 60; i++) {
            rose_sampling p = {.temperature = 0.3f * (float)(i % 5),
                               .top_p = 1 - 0.2f * (float)(i % 3),
                               .min_p = i % 4 == 0 ? 0.1f : 0,
                               .top_k = i % 7 * 9,
                               .seed = i};
            g_kernels = scalar;
            uint32_t want = pick(x, 5000, &p, i);
            g_kernels = best;
            assert_int_equal(pick(x, 5000, &p, i), want);
        }
    }
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    if (seed != NULL) g_seed = strtoull(seed, NULL, 0);
    print_message("seed %llu\n", (unsigned long long)g_seed);
    rose_cpu_kernels_init(&g_kernels, rose_isa_probe());
    rose_thread_ftz();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_small),  cmocka_unit_test(test_exact_large),
        cmocka_unit_test(test_long_run),     cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_not_finite),   cmocka_unit_test(test_keys),
        cmocka_unit_test(test_levels_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
