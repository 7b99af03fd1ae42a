/* tests/backend/test_cuda_sampler.c - the sampler kernel: every id that it picks must be the one
 * that the rules of backend.h give in double precision, up to rounding at the cuts; special values;
 * the distribution. */
#include "backend/cuda_fixture.h"

enum { VOCAB = 5003, ROWS = 64 };

static float *g_logits;
static unsigned long long *g_key;
static rose_cuda_pick *g_pick;
static uint32_t *g_ids, **g_where;

static void *shared_memory(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), cudaSuccess);
    return p;
}

static uint32_t order_of(float x)
{
    uint32_t u;
    if (isnan(x)) return 0;
    x += 0.0f;
    memcpy(&u, &x, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* Rows of `vocab` logits with stride VOCAB. */
static void run(uint32_t rows, uint32_t vocab)
{
    for (uint32_t r = 0; r < rows; r++) {
        g_key[r] = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            unsigned long long k =
                (unsigned long long)order_of(g_logits[(size_t)r * VOCAB + i]) << 32 | (uint32_t)~i;
            if (k > g_key[r]) g_key[r] = k;
        }
        g_ids[r] = 0xdeadbeef;
    }
    *g_where = g_ids;
    const rose_cuda_launch at = {.device = fx_gpu(), .dependent = false};
    const rose_cuda_sampler s = {.logits = g_logits,
                                 .key = g_key,
                                 .pick = g_pick,
                                 .ids = g_where,
                                 .vocab = vocab,
                                 .ld_logits = VOCAB,
                                 .rows = rows};
    assert_int_equal(rose_cuda_sampler_run(&at, &s), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

static rose_cuda_pick pick(float temperature, float top_p, float min_p, uint32_t top_k,
                           uint64_t seed, uint32_t pos)
{
    return (rose_cuda_pick){1.0f / temperature,     top_p, min_p, top_k, (uint32_t)seed,
                            (uint32_t)(seed >> 32), pos,   0};
}

typedef struct entry {
    double x, w;
    uint32_t id;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->x != y->x) return x->x < y->x ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* Is id what the rules give? Rounding may move a cut by one id that lies within 1e-5 of it. */
static bool is_right(const float *x, uint32_t vocab, const rose_cuda_pick *p, uint32_t id)
{
    static entry e[VOCAB];
    double total = 0, mass = 0, cum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        e[i] = (entry){(double)x[i], 0, i};
    qsort(e, vocab, sizeof *e, by_rank);
    uint32_t n = p->top_k > 0 && p->top_k < vocab ? p->top_k : vocab;
    for (uint32_t i = 0; i < n; i++) {
        e[i].w = exp((e[i].x - e[0].x) * (double)p->inv_temperature);
        if (e[i].w < (double)p->min_p) e[i].w = 0;
        total += e[i].w;
    }
    uint32_t least = n, most = n; /* ids kept if the cut falls early, or late */
    for (uint32_t i = 0; i < n && p->top_p < 1; i++) {
        mass += e[i].w;
        if (least == n && mass >= ((double)p->top_p - 1e-5) * total) least = i + 1;
        if (mass >= ((double)p->top_p + 1e-5) * total) {
            most = i + 1;
            break;
        }
    }
    const double u =
        (double)rose_philox_uniform((uint64_t)p->seed_hi << 32 | p->seed_lo, p->pos, 0);
    for (uint32_t kept = least; kept <= most; kept++) {
        double sum = 0, own = 0;
        cum = 0;
        for (uint32_t i = 0; i < kept; i++) {
            sum += e[i].w;
            if (e[i].id < id) cum += e[i].w;
            if (e[i].id == id) own = e[i].w;
        }
        if (own > 0 && cum <= (u + 1e-5) * sum && cum + own >= (u - 1e-5) * sum) return true;
    }
    return false;
}

static void test_against_rules(void **state)
{
    (void)state;
    static const uint32_t ks[] = {0, 1, 2, 50, 511, 513, 3000, VOCAB};
    static const float ps[] = {1.0f, 0.9f, 0.5f, 0.99f, 1e-6f}, ms[] = {0, 0.05f},
                       ts[] = {0.7f, 1.0f, 3.0f}, spreads[] = {0.05f, 1.0f, 6.0f};
    fx_random r = {.seed = fx_seed()};
    uint32_t n = 0;
    for (int k = 0; k < 8; k++)
        for (int p = 0; p < 5; p++)
            for (int m = 0; m < 2; m++)
                for (int s = 0; s < 3; s++) {
                    const uint32_t vocab = fx_below(&r, 3) == 0 ? 1 + fx_below(&r, 1500) : VOCAB;
                    for (uint32_t i = 0; i < ROWS * VOCAB; i++)
                        g_logits[i] = spreads[s] * 3 *
                                      (fx_uniform(&r) + fx_uniform(&r) + fx_uniform(&r) - 1.5f);
                    for (uint32_t i = 0; i < ROWS; i++)
                        g_pick[i] =
                            pick(ts[fx_below(&r, 3)], ps[p], ms[m], ks[k], fx_seed() + i, n + i);
                    run(ROWS, vocab);
                    for (uint32_t i = 0; i < ROWS; i++, n++)
                        if (g_ids[i] >= vocab ||
                            !is_right(g_logits + (size_t)i * VOCAB, vocab, &g_pick[i], g_ids[i]))
                            fail_msg(
                                "vocab %u, top_k %u, top_p %g, min_p %g, spread %g, row %u: id %u",
                                vocab, ks[k], (double)ps[p], (double)ms[m], (double)spreads[s], i,
                                g_ids[i]);
                }
    print_message("%u draws\n", n);
}

static void test_special_values(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8 * VOCAB; i++)
        g_logits[i] = -1;
    float *x = g_logits;
    x[7] = x[3] = 2; /* greedy: the lower id of a tie */
    g_pick[0] = pick(0, 1, 0, 0, 1, 1);
    x += VOCAB;
    for (uint32_t i = 0; i < VOCAB; i++)
        x[i] = i % 2 ? NAN : -INFINITY; /* nothing */
    g_pick[1] = pick(1, 1, 0, 0, 1, 1);
    x += VOCAB;
    x[5] = INFINITY; /* outright */
    g_pick[2] = pick(1, 0.5f, 0, 10, 1, 1);
    x += VOCAB;
    for (uint32_t i = 0; i < VOCAB; i++)
        x[i] = i == 4711 ? -50 : NAN; /* one finite */
    g_pick[3] = pick(1, 0.9f, 0, 50, 1, 1);
    x += VOCAB;
    x[10] = 1; /* top_k 1 and a tie for the rest */
    g_pick[4] = pick(1, 1, 0, 1, 1, 1);
    x += VOCAB;
    x[0] = 0; /* ties at the cut of top_k: the lower ids, 0 .. 3 */
    g_pick[5] = pick(1000, 1, 0, 4, 9, 1);
    x += VOCAB;
    x[VOCAB - 1] = 100; /* the last id */
    g_pick[6] = pick(1, 1, 0, 0, 1, 1);
    x += VOCAB;
    x[9] = -0.5f; /* a temperature whose inverse overflows is greedy */
    g_pick[7] = pick(1e-40f, 1, 0, 0, 1, 1);
    run(8, VOCAB);
    assert_int_equal(g_ids[0], 3);
    assert_int_equal(g_ids[1], ROSE_TOKEN_NONE);
    assert_int_equal(g_ids[2], 5);
    assert_int_equal(g_ids[3], 4711);
    assert_int_equal(g_ids[4], 10);
    assert_in_range(g_ids[5], 0, 3);
    assert_int_equal(g_ids[6], VOCAB - 1);
    assert_int_equal(g_ids[7], 9);
}

/* 64,000 draws of 20 weights: chi-square of 19 degrees of freedom, 0.1 % point 43.8. */
static void test_distribution(void **state)
{
    (void)state;
    enum { N = 20, ROUNDS = 1000 };
    double want[N], total = 0, chi = 0;
    uint32_t got[N] = {0};
    for (uint32_t i = 0; i < ROWS * VOCAB; i++)
        g_logits[i] = i % VOCAB < N ? (float)(i % VOCAB) * 0.1f : -30;
    for (int i = 0; i < N; i++)
        total += want[i] = exp(i * 0.1);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ROWS; i++)
            g_pick[i] = pick(1, 1, 0, round % 2 ? N : 0, fx_seed(), round * ROWS + i);
        run(ROWS, VOCAB);
        for (uint32_t i = 0; i < ROWS; i++) {
            assert_in_range(g_ids[i], 0, N - 1);
            got[g_ids[i]]++;
        }
    }
    for (int i = 0; i < N; i++) {
        double e = want[i] / total * ROWS * ROUNDS;
        chi += (got[i] - e) * (got[i] - e) / e;
    }
    print_message("chi-square %.1f (19 degrees of freedom)\n", chi);
    assert_true(chi < 43.8);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_rules),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_distribution),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    g_logits = shared_memory(sizeof(float) * ROWS * VOCAB);
    g_key = shared_memory(sizeof *g_key * ROWS);
    g_pick = shared_memory(sizeof *g_pick * ROWS);
    g_ids = shared_memory(sizeof *g_ids * ROWS);
    g_where = shared_memory(sizeof *g_where);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
