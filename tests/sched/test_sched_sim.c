/* A million steps of seeded random events through the scheduler, every invariant checked after
 * every step (sched_sim.h). */
#include "sched/sched_sim.h"

static const rose_sched_opts base_opts = {.max_seqs = 4,
                                          .max_step_tokens = 16,
                                          .max_model_len = 64,
                                          .max_queued = 8,
                                          .page_tokens = 4,
                                          .chunked_prefill = true,
                                          .decode_first = true,
                                          .priority_age = 50,
                                          .prefix_cache = true};

static const sim_load base_load = {.n_families = 4, .n_salts = 2, .n_priorities = 3, .max_own = 12};

static rose_sched_stats simulate(const char *name, rose_sched_opts o, sim_load load,
                                 uint32_t n_pages, uint64_t seed, uint32_t n_steps)
{
    sim m = sim_open(o, load, n_pages, seed);
    sim_start(&m);
    sim_run(&m, n_steps);
    sim_print(&m, name);
    rose_sched_stats st = rose_sched_get_stats(m.s);
    assert_true(m.n_cancelled > 0 && m.n_full > 0);
    if (o.prefix_cache) assert_int_equal(st.prefix_hits, m.n_cached);
    sim_close(&m);
    return st;
}

/* Pools with windows, of few pages: beside one for whole sequences, or alone. Rows read the window
 * and up to 7 positions before it. */
static void test_windows(void **state)
{
    static const struct {
        uint32_t n[3], windows[3], page_tokens, chunk;
        bool whole, pack;
    } rows[] = {
        {{40, 24}, {0, 10}, 4, 0, false, false},
        {{40, 7}, {0, 10}, 4, 0, false, true},
        {{17, 30}, {0, 17}, 4, 5, false, false},
        {{20}, {10}, 4, 0, false, false},
        {{7}, {10}, 4, 7, false, true},
        {{12, 9}, {20, 9}, 4, 0, false, false},
        {{40, 20, 24}, {0, 8, 20}, 4, 0, true, false},
        {{14}, {9}, 4, 0, true, false},
        {{80, 40, 20}, {0, 1, 3}, 1, 0, false, false},
        {{14, 5}, {0, 13}, 5, 0, false, false},
        {{12, 9}, {0, 30}, 16, 0, false, true},
        {{40}, {64}, 4, 0, false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int cache = 0; cache < 2; cache++) {
            rose_sched_opts o = base_opts;
            o.windows[0] = rows[i].windows[0];
            o.page_tokens = rows[i].page_tokens;
            o.prefill_chunk_size = rows[i].chunk;
            o.chunked_prefill = !rows[i].whole;
            o.prefix_cache = cache > 0;
            if (rows[i].pack) o.admission = ROSE_ADMISSION_PACK;
            if (i == 3) o.prefix_max_pages = 9;
            sim_load load = base_load;
            load.max_guess = (uint32_t)(i % 3) * 7; /* guesses beside windows */
            sim m = sim_open(o, load, rows[i].n[0], test_seed() + i * 2);
            for (int k = 1; k < 3 && rows[i].n[k] > 0; k++)
                sim_add_pool(&m, rows[i].n[k], rows[i].windows[k]);
            sim_start(&m);
            sim_run(&m, 30000);
            sim_print(&m, "windows");
            const rose_sched_stats st = rose_sched_get_stats(m.s);
            assert_int_equal(st.prefix_hits, m.n_cached);
            assert_true(!o.prefix_cache || (st.prefix_hits > 0 && st.evictions > 1000));
            sim_close(&m);
        }
    }
}

static void test_base(void **state)
{
    (void)state;
    rose_sched_stats st = simulate("base", base_opts, base_load, 40, test_seed(), 200000);
    assert_true(st.prefix_hits > 1000 && st.evictions > 1000);
    st = simulate("few pages", base_opts, base_load, 17, test_seed() + 2, 200000);
    assert_true(st.preemptions > 1000 && st.recomputed_tokens > 1000);
    sim_load own = base_load;
    own.n_families = 1;
    own.n_salts = own.n_priorities = 1;
    st = simulate("one family", base_opts, own, 24, test_seed() + 4, 100000);
    assert_true(st.prefix_hits * 4 > st.prefix_queries);
}

static void test_no_cache(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.prefix_cache = false;
    rose_sched_stats st = simulate("no cache", o, base_load, 20, test_seed(), 80000);
    assert_int_equal(st.prefix_hits + st.evictions, 0);
    assert_true(st.preemptions > 100);
    o.chunked_prefill = false;
    simulate("no cache, whole prompts", o, base_load, 20, test_seed(), 50000);
}

static void test_chunks(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 3, 4, 16, 100};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        rose_sched_opts o = base_opts;
        o.prefill_chunk_size = chunks[i];
        simulate("chunks", o, base_load, 24, test_seed() + i * 2, 30000);
    }
    rose_sched_opts o = base_opts;
    o.chunked_prefill = false;
    simulate("whole prompts", o, base_load, 24, test_seed(), 50000);
    o.prefill_max_tokens = 7;
    simulate("whole prompts, 7 rows", o, base_load, 24, test_seed(), 30000);
}

static void test_policies(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.admission = ROSE_ADMISSION_PACK;
    o.lookahead = 5;
    simulate("pack", o, base_load, 24, test_seed(), 50000);
    o.chunked_prefill = false;
    o.force_fifo_every = 3;
    simulate("pack, whole prompts", o, base_load, 24, test_seed(), 50000);
    o = base_opts;
    o.decode_first = false;
    o.max_step_tokens = 5;
    simulate("prompts first", o, base_load, 24, test_seed(), 50000);
    o.prefill_max_batch = 1;
    o.prefill_max_tokens = 3;
    o.max_active = 3;
    simulate("limits", o, base_load, 24, test_seed(), 50000);
    o = base_opts;
    o.prefix_max_pages = 5;
    simulate("five idle pages", o, base_load, 40, test_seed(), 50000);
}

/* Sequences that wait for masks between their samples, beside others. */
static void test_guided(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    sim_load load = base_load;
    load.guided_in = 2;
    simulate("guided", o, load, 40, test_seed(), 100000);
    assert_true(simulate("guided, few pages", o, load, 17, test_seed() + 2, 100000).preemptions >
                500);
    o.prefill_chunk_size = 5;
    o.admission = ROSE_ADMISSION_PACK;
    simulate("guided, pack, chunks", o, load, 24, test_seed() + 4, 50000);
    o.prefix_cache = false;
    o.admission = ROSE_ADMISSION_FIFO;
    o.decode_first = false;
    simulate("guided, no cache", o, load, 24, test_seed() + 6, 50000);
    o.chunked_prefill = false;
    o.max_step_tokens = 64; /* every prompt is one piece */
    load.guided_in = 1;
    simulate("all guided, whole prompts", o, load, 24, test_seed() + 8, 50000);
}

/* Guesses that are right in part, whose results come before the next plan or after it. */
static void test_guesses(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_pages, max_guess, guided_in, max_step_tokens, page_tokens;
        bool no_cache, prompts_first;
    } rows[] = {{40, 3, 0, 16, 4, false, false},  {17, 15, 0, 64, 4, false, false},
                {40, 15, 2, 64, 4, false, false}, {17, 5, 2, 16, 4, true, false},
                {24, 15, 3, 32, 4, false, true},  {80, 15, 0, 100, 1, false, false},
                {16, 15, 0, 6, 16, false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rose_sched_opts o = base_opts;
        sim_load load = base_load;
        o.max_step_tokens = rows[i].max_step_tokens;
        o.page_tokens = rows[i].page_tokens;
        o.prefix_cache = !rows[i].no_cache;
        o.decode_first = !rows[i].prompts_first;
        load.guided_in = rows[i].guided_in;
        load.max_guess = rows[i].max_guess;
        sim m = sim_open(o, load, rows[i].n_pages, test_seed() + i * 2);
        sim_start(&m);
        sim_run(&m, 50000);
        sim_print(&m, "guesses");
        printf("    %llu of %llu rows of guesses right\n", (unsigned long long)m.n_right,
               (unsigned long long)m.n_tried);
        assert_true(m.n_right > 1000 && m.n_tried > m.n_right + 1000);
        if (i == 1) assert_true(rose_sched_get_stats(m.s).preemptions > 500);
        sim_close(&m);
    }
}

/* A clock and goals: within them nothing starves either, and all of it ends or is refused. */
static void test_goals(void **state)
{
    static const struct {
        sim_clock clock;
        uint64_t itl_ns;
    } rows[] = {{{1000, 100, 50, 0}, 3000},      {{1000, 100, 50, 30000}, 3000},
                {{1000, 100, 50, 30000}, 0},     {{1000, 100, 50, 200000}, 1}, /* unattainable */
                {{1000, 1000, 1, 100000}, 7500}, {{10, 1, 1000, 300000}, 40000}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rose_sched_opts o = base_opts;
        o.max_seqs = 12;
        o.max_queued = 80; /* more than lookahead */
        o.max_step_tokens = 128;
        o.max_model_len = 200;
        o.itl_goal_ns = rows[i].itl_ns;
        if (i == 2) o.admission = ROSE_ADMISSION_PACK;
        sim m = sim_open(o, (sim_load){6, 2, 3, 60, 0, 0}, 500, test_seed() + i * 2);
        m.clock = rows[i].clock;
        sim_start(&m);
        sim_run(&m, 12000);
        sim_print(&m, "goals");
        printf("    %llu refused as late, %llu in time, %llu steps close to the goal\n",
               (unsigned long long)m.n_late, (unsigned long long)m.n_in_time,
               (unsigned long long)m.n_tight);
        assert_int_equal(m.n_late > 0, m.clock.ttft_ns > 0);
        if (rows[i].itl_ns == 3000) assert_true(m.n_tight > 100);
        sim_close(&m);
    }
}

/* Steps of changing length: as many rows as the clock allows while nothing decodes, or as the goal
 * allows; else those of a busy step. */
static void test_step_rows(void **state)
{
    static const struct {
        sim_clock clock;
        uint64_t itl_ns;
        bool cache, first;
    } rows[] = {{{1000000, 100000, 900000, 0}, 0, true, true},
                {{1000000, 100000, 400000, 0}, 0, false, false},
                {{1000000, 1, 1, 0}, 0, true, true},
                {{1000000, 100000, 900000, 0}, 30000000, true, true},
                {{1000000, 10000, 900000, 90000000}, 60000000, false, true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rose_sched_opts o = base_opts;
        o.max_step_tokens = 128;
        o.busy_step_tokens = 16;
        o.max_model_len = 250;
        o.itl_goal_ns = rows[i].itl_ns;
        o.prefix_cache = rows[i].cache;
        o.decode_first = rows[i].first;
        sim m = sim_open(o, (sim_load){6, 2, 3, 120, 0, 0}, 200, test_seed() + i * 2);
        m.clock = rows[i].clock;
        sim_start(&m);
        sim_run(&m, 20000);
        sim_print(&m, "rows of a step");
        printf("    %llu long steps without decodes, %llu with decodes\n",
               (unsigned long long)m.n_long[0], (unsigned long long)m.n_long[1]);
        assert_true(m.n_long[0] > 20);
        assert_true(o.itl_goal_ns > 0 ? m.n_long[1] > 20 : m.n_long[1] == 0);
        sim_close(&m);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.max_seqs = o.max_step_tokens = o.max_queued = 1;
    simulate("one at a time", o, base_load, 16, test_seed(), 30000);
    o = base_opts;
    simulate("three pages", o, base_load, 3, test_seed(), 30000);
    o.page_tokens = 1;
    simulate("pages of one token", o, base_load, 80, test_seed(), 30000);
    o.page_tokens = 64;
    o.max_model_len = 200;
    simulate("pages of 64", o, (sim_load){4, 1, 1, 100, 0, 0}, 6, test_seed(), 30000);
    o.page_tokens = 5;
    o.max_seqs = 24;
    o.max_queued = 40;
    o.max_step_tokens = 60;
    simulate("24 sequences", o, (sim_load){6, 2, 3, 40, 0, 0}, 100, test_seed(), 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),    cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_chunks),  cmocka_unit_test(test_policies),
        cmocka_unit_test(test_guided),  cmocka_unit_test(test_goals),
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_windows),
        cmocka_unit_test(test_guesses), cmocka_unit_test(test_step_rows),
    };
    return cmocka_run_group_tests_name("scheduler simulation", tests, NULL, NULL);
}
