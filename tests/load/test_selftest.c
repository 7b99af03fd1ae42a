/* The client against a server that notes when it sends each event: no event is lost. How exact the
 * times are depends on the machine; `load client` measures it. */
#include "bench/bench_fixture.h"

#include "load/selftest.h"

static void test_self_test(void **state)
{
    (void)state;
    rose_self_test t;
    rose_err err = {""};
    if (rose_self_test_run(10, 100, 5000, &t, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(t.n_failed, 0);
    assert_int_equal(t.error.n, 1000);
    assert_true(t.error.min >= 0); /* an event never arrives before it was sent */
    assert_int_equal(rose_self_test_run(0, 100, 5000, &t, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_self_test_run(100000, 100, 5000, &t, NULL), ROSE_E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_self_test)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
