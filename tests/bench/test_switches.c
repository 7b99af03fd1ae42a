/* The table of `bench ablate`: names, and the traces of its workloads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "bench/switches.h"

static void test_table(void **state)
{
    (void)state;
    const rose_switch *s;
    uint32_t n = 0;
    for (; (s = rose_switch_at(n)) != NULL; n++) {
        /* no name is there twice */
        assert_ptr_equal(rose_switch_find(s->name, strlen(s->name)), s);
        assert_string_not_equal(s->on, s->off);
        assert_non_null(strstr(s->on, s->name));
        assert_non_null(strstr(s->off, s->name));
        assert_null(strchr(s->name, ','));
        assert_non_null(rose_switch_load_name(s->load));
    }
    assert_true(n >= 10);
    assert_null(rose_switch_at(UINT32_MAX));
    assert_null(rose_switch_find("prefix", 6));
    assert_null(rose_switch_find("", 0));
    assert_non_null(rose_switch_find("mlock,prefault", 5));
}

static void test_traces(void **state)
{
    (void)state;
    const rose_load_trace_gen base = {
        .seed = 1, .n = 40, .rate = 10, .burstiness = 1, .in_median = 20, .out_median = 8};
    const uint32_t contexts[] = {0, 3, 64, 512};
    for (int load = 0; load < ROSE_N_LOADS; load++) {
        for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++) {
            rose_load_trace t;
            rose_prompt_mode mode;
            bool at_once;
            uint32_t n_long = 0;
            assert_int_equal(rose_switch_trace((rose_switch_load)load, &base, contexts[c], &t,
                                               &mode, &at_once, NULL),
                             ROSE_OK);
            assert_int_equal(t.n, 40);
            for (uint32_t i = 0; i < t.n; i++) {
                assert_true(t.rows[i].n_in >= 1 && t.rows[i].n_out >= 1);
                if (contexts[c] > 0) assert_true(t.rows[i].n_in + t.rows[i].n_out < contexts[c]);
                n_long += t.rows[i].n_in > 20;
            }
            assert_int_equal(mode == ROSE_PROMPT_SHARED, load == ROSE_LOAD_SHARED);
            assert_int_equal(mode == ROSE_PROMPT_TEXT, load == ROSE_LOAD_TEXT);
            assert_int_equal(at_once, load == ROSE_LOAD_BURST);
            if (contexts[c] == 512) {
                if (load == ROSE_LOAD_PLAIN || load == ROSE_LOAD_COLD || load == ROSE_LOAD_TEXT)
                    assert_int_equal(n_long, 0);
                if (load == ROSE_LOAD_LONG) assert_int_equal(n_long, 5);
                if (load == ROSE_LOAD_FULL || load == ROSE_LOAD_SHARED)
                    assert_int_equal(n_long, 40);
            }
            rose_load_trace_free(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
