/* tests/backend/test_cpu_blocks.c - steps of more rows than go through a layer together. The
 * logits of every sequence, and those of a decode step after it, must be as when the sequence is
 * alone in small steps. Sequences begin anywhere in a page, and a block's border may cut them
 * anywhere. */
#define FX_MAX_ROWS 2100
#include "backend/cpu_fixture.h"

enum { MOST = 40, LONGEST = 240 };

static const fx_shape g_shapes[] = {
    {"heads of 24", 2, 96, 4, 384, 211, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     false},
    {"padded", 2, 80, 5, 200, 97, 256, ROSE_ACT_GELU_ERF, ROSE_F16, true, true, true, false},
};

/* Numbers of tokens before the step and within it; one more comes after it. */
typedef struct plan {
    uint32_t n, before[MOST], within[MOST];
} plan;

/* n_rows rows in all; some sequences have one. */
static plan make_plan(fx_random *r, uint32_t n_rows)
{
    plan p = {0};
    while (n_rows > 0) {
        uint32_t n = fx_below(r, 4) == 0 ? 1 : 1 + fx_below(r, LONGEST - 60);
        if (p.n >= MOST - 12 || n > n_rows) n = n_rows;
        while (n > LONGEST - 60)
            n -= 7;
        assert_true(p.n < MOST);
        p.before[p.n] = fx_below(r, 50);
        p.within[p.n++] = n;
        n_rows -= n;
    }
    return p;
}

static void check(const rose_model *m, rose_compute dtype, uint32_t threads, uint32_t n_rows,
                  fx_random *r)
{
    const plan p = make_plan(r, n_rows);
    const uint64_t seed = fx_seed() + n_rows;
    fx_backend alone = fx_open(m, dtype, "auto", 1, 7), f = fx_open(m, dtype, "auto", threads, 8);
    fx_seq s[MOST];
    fx_part parts[MOST] = {0};
    char what[120];

    for (uint32_t i = 0; i < p.n; i++) {
        s[i] = fx_seq_make(m, seed + i, p.before[i] + p.within[i] + 1);
        if (p.before[i] > 0) fx_step(&f, &(fx_part){&s[i], p.before[i], FX_NONE}, 1);
        parts[i] = (fx_part){&s[i], p.within[i], FX_LAST};
    }
    fx_step(&f, parts, p.n);
    for (uint32_t i = 0; i < p.n; i++)
        parts[i].n_rows = 1;
    fx_step(&f, parts, p.n);
    for (uint32_t i = 0; i < p.n; i++) {
        fx_seq want = fx_seq_make(m, seed + i, p.before[i] + p.within[i] + 1);
        while (want.done < p.before[i] + p.within[i]) {
            const uint32_t left = p.before[i] + p.within[i] - want.done;
            fx_step(&alone,
                    &(fx_part){&want, left < 37 ? left : 37, left <= 37 ? FX_LAST : FX_NONE}, 1);
        }
        fx_step(&alone, &(fx_part){&want, 1, FX_LAST}, 1);
        snprintf(what, sizeof what, "%u rows, %u threads, sequence %u of %u", n_rows, threads, i,
                 p.n);
        fx_same(m, &want, &s[i], what);
        fx_seq_drop(&alone, &want);
        fx_seq_free(&want);
        fx_seq_free(&s[i]);
    }
    fx_close(&f);
    fx_close(&alone);
}

static void test_blocks(void **state)
{
    (void)state;
    static const uint32_t rows[] = {511, 512, 513, 527, 800, 993, 1024, 1488, 1489, 2048, 2100};
    fx_random r = {.seed = fx_seed()};
    for (int shape = 0; shape < 2; shape++) {
        rose_model *m = fx_model(&g_shapes[shape], fx_seed());
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            check(m, (i + (size_t)shape) % 2 == 0 ? ROSE_COMPUTE_BF16 : ROSE_COMPUTE_F32,
                  1 + (uint32_t)i % 3, rows[i], &r);
        fx_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
