/* tests/backend/test_rules.c - reports and rules of the CPU sampler against the naive ones of
 * rules_reference.h. */
#include "backend/rules_reference.h"

#include "backend/cpu/sampler.h"

static rose_cpu_kernels g_kernels;
static void *scratch_for(uint32_t vocab)
{
    static void *p;
    free(p);
    size_t size = (rose_sampler_scratch(vocab) + 63) / 64 * 64;
    p = aligned_alloc(64, size);
    assert_non_null(p);
    memset(p, 0xA5, size); /* nothing may be expected of it */
    return p;
}

static void reports(void **state)
{
    static const uint32_t sizes[] = {1, 2, 21, 127, 128, 129, 2700, MAX_VOCAB};
    static float x[MAX_VOCAB];
    (void)state;
    for (int round = 0; round < 400; round++) {
        uint32_t n = sizes[rnd(8)];
        uint32_t n_top = rnd((n < 20 ? n : 20) + 1);
        rose_logprob r[21 + 2];
        memset(r, 0xEE, sizeof r);
        random_row(x, n);
        bool score = rnd(2) == 0;
        const rose_output_rules u = {
            .score_id = score ? rnd(n) : ROSE_TOKEN_NONE, .report = r, .n_top = n_top};
        const rose_sampling p = {
            .temperature = rnd(2) ? 1.2f : 0, .top_p = rnd(2) ? 0.9f : 1, .seed = rnd(1000)};
        uint32_t id = rose_sampler_run(&g_kernels, x, n, &p, &u, 7, scratch_for(n));
        uint32_t plain = rose_sampler_pick(&g_kernels, x, n, &p, 7, scratch_for(n));
        assert_int_equal(id, score ? u.score_id : plain); /* a report changes no choice */
        assert_int_equal(r[0].id, id);
        check_report(x, n, r, n_top);
        assert_int_equal(((const uint8_t *)&r[n_top + 1])[0], 0xEE); /* nothing behind its end */
    }
}

/* Every level of the CPU gives the same bits. */
static void levels(void **state)
{
    static float x[MAX_VOCAB];
    (void)state;
    for (int round = 0; round < 50; round++) {
        rose_logprob want[21] = {0};
        random_row(x, MAX_VOCAB);
        for (int isa = ROSE_ISA_SCALAR; isa <= (int)rose_isa_probe(); isa++) {
            rose_cpu_kernels k;
            rose_logprob got[21] = {0};
            rose_cpu_kernels_init(&k, (rose_isa)isa);
            const rose_output_rules u = {.score_id = 5, .report = got, .n_top = 20};
            const rose_sampling p = {.top_p = 1};
            rose_sampler_run(&k, x, MAX_VOCAB, &p, &u, 0, scratch_for(MAX_VOCAB));
            if (isa == ROSE_ISA_SCALAR) memcpy(want, got, sizeof want);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

/* The choice under rules is the choice from the changed row; the row itself and the report stay. */
static void rules(void **state)
{
    static float x[MAX_VOCAB], y[MAX_VOCAB], copy[MAX_VOCAB];
    static const uint32_t sizes[] = {1, 3, 100, 130, 2700, MAX_VOCAB};
    uint32_t n_changed = 0;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint32_t n = sizes[rnd(6)];
        rose_logprob r[6];
        rule_set s;
        random_row(x, n);
        memcpy(copy, x, sizeof copy);
        random_rules(&s, n);
        if (rnd(2) == 0) {
            s.u.report = r;
            s.u.n_top = n < 5 ? n : 5;
        }
        const rose_sampling p = {.temperature = rnd(3) ? rnd_float(0.2f, 2) : 0,
                                 .top_p = rnd(2) ? rnd_float(0.3f, 1) : 1,
                                 .min_p = rnd(3) ? 0 : 0.05f,
                                 .top_k = rnd(2) ? rnd(50) : 0,
                                 .seed = g_state};
        uint32_t position = rnd(1000);
        uint32_t got = rose_sampler_run(&g_kernels, x, n, &p, &s.u, position, scratch_for(n));
        apply_naively(&s, x, n, y);
        uint32_t want = rose_sampler_pick(&g_kernels, y, n, &p, position, scratch_for(n));
        assert_int_equal(got, want);
        assert_memory_equal(x, copy, sizeof x);
        n_changed += got != rose_sampler_pick(&g_kernels, x, n, &p, position, scratch_for(n));
        if (s.u.report != NULL && got != ROSE_TOKEN_NONE) check_report(x, n, r, s.u.n_top);
    }
    assert_true(n_changed > 500);
}

static void edges(void **state)
{
    const float inf[] = {1, INFINITY, 2}, nan_row[] = {1, NAN, 2},
                none[] = {-INFINITY, -INFINITY, -INFINITY}, one[] = {-3, 5, -3};
    const rose_sampling p = {.top_p = 1};
    const uint32_t all[] = {0, 1, 2};
    rose_logprob r[4];
    (void)state;
    rose_output_rules u = {.score_id = ROSE_TOKEN_NONE, .report = r, .n_top = 3};
    assert_int_equal(rose_sampler_run(&g_kernels, inf, 3, &p, &u, 0, scratch_for(3)), 1);
    for (int i = 0; i < 4; i++)
        assert_true(isnan(r[i].logprob)); /* beside an infinity nothing has a probability */
    assert_int_equal(rose_sampler_run(&g_kernels, nan_row, 3, &p, &u, 0, scratch_for(3)), 2);
    assert_true(fabs((double)r[0].logprob - -log1p(exp(-1))) < 1e-6); /* NaN weighs nothing */
    assert_true(r[3].id == 1 && isnan(r[3].logprob));
    assert_int_equal(rose_sampler_run(&g_kernels, none, 3, &p, &u, 0, scratch_for(3)),
                     ROSE_TOKEN_NONE);
    assert_int_equal(rose_sampler_run(&g_kernels, one, 3, &p, &u, 0, scratch_for(3)), 1);
    assert_int_equal(r[2].id, 0); /* of equal logits the lower id */
    assert_int_equal(r[3].id, 2);
    u.banned = all;
    u.n_banned = 3;
    assert_int_equal(rose_sampler_run(&g_kernels, one, 3, &p, &u, 0, scratch_for(3)),
                     ROSE_TOKEN_NONE);
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    g_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)g_state);
    rose_cpu_kernels_init(&g_kernels, rose_isa_probe());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports),
        cmocka_unit_test(levels),
        cmocka_unit_test(rules),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
