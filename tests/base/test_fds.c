/* tests/base/test_fds.c - the table of descriptors as the kernel shows it (FDSize). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fds.h"
#include "base/procstat.h"

static unsigned table_size(void)
{
    char line[256];
    unsigned n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL && sscanf(line, "FDSize: %u", &n) != 1)
        continue;
    fclose(f);
    return n;
}

static void set_limit(rlim_t n)
{
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &l), 0);
}

static void test_widen(void **state)
{
    (void)state;
    struct rlimit before;
    const uint32_t open = rose_procstat_read().open_fds;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < 1024) skip();
    const unsigned at_first = table_size();
    set_limit(600);
    rose_fds_widen(0);
    assert_int_equal(table_size(), at_first);
    rose_fds_widen(UINT32_MAX); /* more than the limit: up to the limit */
    assert_true(table_size() >= 600);
    if (at_first < 1024) assert_true(table_size() <= 1024);
    set_limit(1024);
    rose_fds_widen(1024);
    assert_true(table_size() >= 1024);
    assert_int_equal(rose_procstat_read().open_fds, open);
    set_limit(before.rlim_cur);
}

/* No descriptor left to do it with: nothing happens, nothing is lost. */
static void test_none_left(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const uint32_t open = rose_procstat_read().open_fds;
    const unsigned size = table_size();
    set_limit(3);
    rose_fds_widen(1u << 20);
    set_limit(0);
    rose_fds_widen(1u << 20);
    set_limit(before.rlim_cur);
    assert_int_equal(table_size(), size);
    assert_int_equal(rose_procstat_read().open_fds, open);
}

static void test_raise(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < 1024) skip();
    set_limit(64);
    assert_int_equal(rose_fds_raise(32), 64); /* never down */
    assert_int_equal(rose_fds_raise(1000), 1000);
    const uint64_t most = rose_fds_raise(UINT32_MAX);
    if (before.rlim_max < UINT32_MAX) assert_int_equal(most, before.rlim_max);
    set_limit(before.rlim_cur);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen),
        cmocka_unit_test(test_none_left),
        cmocka_unit_test(test_raise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
