/* The cost model of steps: that it finds an exact law, forgets an old one, is not misled by steps
 * that were held up, keeps what nothing shows any more, and survives any numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "sched/cost.h"

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

typedef struct law {
    double a, b, c;
} law;

static uint64_t law_ns(const law *w, uint32_t d, uint32_t p)
{
    return (uint64_t)(w->a + w->b * d + w->c * p);
}

/* n steps as an engine has them: mostly decodes, now and then a chunk. */
static void observe(rose_sched_cost *c, const law *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = below(200), p = below(3) == 0 ? 1 + below(512) : 0;
        if (d + p == 0) d = 1;
        rose_sched_cost_observe(c, d, p, law_ns(w, d, p));
    }
}

static void assert_law(const rose_sched_cost *c, const law *w, double tolerance)
{
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t d = 1 + below(256), p = below(2048);
        double want = (double)law_ns(w, d, p), got = rose_sched_cost_ns(c, d, p);
        if (!(fabs(got - want) <= tolerance * want))
            fail_msg("%u decodes, %u rows: %g ns, not %g", d, p, got, want);
    }
}

static void finds_and_forgets(void **state)
{
    static const law laws[] = {
        {5e6, 3e4, 1e5}, {2e5, 100, 900}, {0, 5e4, 5e4}, {1e6, 0, 0}, {100, 1, 1e6}};
    (void)state;
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        rose_sched_cost c = {0};
        observe(&c, &laws[i], 300);
        assert_law(&c, &laws[i], 0.02);
        assert_true(c.spread < 0.05);
        const law slow = {laws[i].a * 3, laws[i].b * 3, laws[i].c * 3};
        observe(&c, &slow, 1000);
        assert_law(&c, &slow, 0.02);
    }
}

/* One step in fifty takes a hundred times as long: the estimate stays that of the others, and the
 * drag tells how much longer the whole is. */
static void held_up(void **state)
{
    const law w = {5e6, 3e4, 1e5};
    rose_sched_cost c = {0};
    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        observe(&c, &w, 1);
        if (i % 50 == 0) rose_sched_cost_observe(&c, 10, 0, 100 * law_ns(&w, 10, 0));
    }
    assert_law(&c, &w, 0.15);
    double drag = rose_sched_cost_drag(&c);
    assert_true(drag > 1.2 && drag < 4);
}

/* A long time of decodes alone: the cost of prompts is what it was. */
static void keeps_the_unseen(void **state)
{
    const law w = {5e6, 3e4, 1e5};
    rose_sched_cost c = {0};
    (void)state;
    observe(&c, &w, 300);
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t d = 1 + below(200);
        rose_sched_cost_observe(&c, d, 0, law_ns(&w, d, 0));
    }
    assert_law(&c, &w, 0.03);
}

static void limits(void **state)
{
    const law w = {5e6, 3e4, 1e5};
    rose_sched_cost c = {0};
    (void)state;
    assert_int_equal(rose_sched_cost_prefill(&c, 9, 1, 77), 77); /* nothing is known */
    assert_int_equal(rose_sched_cost_decodes(&c, 9, 1, 77), 77);
    observe(&c, &w, 2000);
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t d = below(300), p = below(1000), most = 1 + below(1000);
        uint64_t goal = below(100000000);
        double margin = 1 + 2 * c.spread;
        uint32_t n = rose_sched_cost_prefill(&c, d, goal, most);
        assert_true(n <= most);
        if (n > 0) assert_true(rose_sched_cost_ns(&c, d, n) * margin <= (double)goal * 1.001);
        if (n < most)
            assert_true(rose_sched_cost_ns(&c, d, n + 1) * margin >= (double)goal * 0.999);
        n = rose_sched_cost_decodes(&c, p, goal, most);
        assert_true(n <= most);
        if (n > 0) assert_true(rose_sched_cost_ns(&c, n, p) * margin <= (double)goal * 1.001);
        if (n < most)
            assert_true(rose_sched_cost_ns(&c, n + 1, p) * margin >= (double)goal * 0.999);
    }
}

static void any_numbers(void **state)
{
    static const uint32_t rows[] = {0, 1, 2, 4096, 1u << 24, UINT32_MAX};
    static const uint64_t times[] = {0, 1, 1000, 50000000, UINT64_MAX};
    rose_sched_cost c = {0}, again = {0};
    uint64_t start = rng;
    (void)state;
    for (int round = 0; round < 2; round++) {
        rose_sched_cost *x = round == 0 ? &c : &again;
        rng = start;
        for (uint32_t i = 0; i < 200000; i++) {
            uint32_t d = rows[below(6)], p = rows[below(6)];
            rose_sched_cost_observe(x, d, p, times[below(5)]);
            double ns = rose_sched_cost_ns(x, d, p), drag = rose_sched_cost_drag(x);
            assert_true(isfinite(ns) && ns >= 0 && drag >= 1 && drag <= 16);
            assert_true(x->spread >= 0 && x->spread <= 1);
            assert_true(rose_sched_cost_prefill(x, d, times[below(5)], p) <= p);
        }
    }
    assert_memory_equal(&c, &again, sizeof c); /* the same events, the same bits */
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    rng = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)rng);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_and_forgets), cmocka_unit_test(held_up),
        cmocka_unit_test(keeps_the_unseen),  cmocka_unit_test(limits),
        cmocka_unit_test(any_numbers),
    };
    return cmocka_run_group_tests_name("cost of steps", tests, NULL, NULL);
}
