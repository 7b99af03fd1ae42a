/* tests/bench/test_machine.c - what a benchmark says of the machine: figures there are, within
 * reason and in order; refusals; the better of two. Nothing about how fast it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/pool.h"
#include "base/cpuinfo.h"
#include "bench/machine.h"

static void figures_are_there(void **state)
{
    (void)state;
    int cpu;
    assert_int_equal(rose_cpus_allowed(&cpu, 1), 1);
    for (uint32_t n = 1; n <= 2; n++) {
        rose_machine m;
        rose_err err = {""};
        assert_int_equal(rose_machine_measure(&m, n, n == 1 ? &cpu : NULL, n == 1, &err), ROSE_OK);
        assert_int_equal(m.n_threads, n);
        assert_true(m.read_bytes_per_s > 1e7 && m.read_bytes_per_s < 1e13);
        assert_in_range(m.n_streams, 1, 8);
        assert_in_range(m.prefetch_bytes, 0, 8192);
        assert_true(m.barrier_ns > 0 && m.barrier_ns <= m.barrier_p99_ns);
        assert_true(m.job_ns > 0);
    }
    int now;
    assert_int_equal(rose_cpus_allowed(&now, 1), 1); /* not pinned any more */
    assert_int_equal(now, cpu);
}

static void thread_counts_are_checked(void **state)
{
    (void)state;
    rose_machine m;
    rose_err err = {""};
    assert_int_equal(rose_machine_measure(&m, 0, NULL, 0, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "compute threads: 0"));
    assert_int_equal(rose_machine_measure(&m, ROSE_POOL_MAX_THREADS + 1, NULL, 0, NULL),
                     ROSE_E_INVAL);
}

static void better_takes_each_figure(void **state)
{
    (void)state;
    const rose_machine a = {.n_threads = 2,
                            .read_bytes_per_s = 2e10,
                            .n_streams = 1,
                            .prefetch_bytes = 0,
                            .barrier_ns = 200,
                            .barrier_p99_ns = 300,
                            .job_ns = 900};
    rose_machine b = a;
    b.read_bytes_per_s = 3e10;
    b.n_streams = 4;
    b.prefetch_bytes = 4096;
    b.barrier_ns = 250;
    b.job_ns = 800;
    rose_machine m = a;
    rose_machine_better(&m, &b);
    assert_true(m.read_bytes_per_s == 3e10 && m.barrier_ns == 200 && m.job_ns == 800);
    assert_int_equal(m.n_streams, 4);
    assert_int_equal(m.prefetch_bytes, 4096);
    rose_machine_better(&m, &a);
    assert_true(m.read_bytes_per_s == 3e10);
    assert_int_equal(m.n_streams, 4);
    assert_true(rose_floor_ms(&m, 30000000) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_there),
        cmocka_unit_test(thread_counts_are_checked),
        cmocka_unit_test(better_takes_each_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
